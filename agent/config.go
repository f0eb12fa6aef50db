package agent

import (
	"errors"
	"fmt"
	"net"
	goruntime "runtime"
	"slices"
	"strconv"
	"time"
)

// A Config says what an agent serves, where, and with how much of the machine.
// [DefaultConfig] is a working one; zero means what each field says.
type Config struct {
	// HTTPAddress, GRPCAddress and MetricsAddress are where the agent listens,
	// as host:port; port 0 lets the system choose. None may be empty. Default
	// 127.0.0.1, ports 8000, 8001 and 8002: an agent is not reachable from
	// elsewhere unless asked.
	HTTPAddress    string
	GRPCAddress    string
	MetricsAddress string

	// ModelDir is the model repository. It must exist, and may be empty.
	// Default ./model-repository.
	ModelDir string
	// StateDir is where the agent keeps what must outlive it. It is made when
	// first needed. Default ./state.
	StateDir string

	// Cores is how many CPU cores queries run on, in [1, the machine's]; 0
	// means all of them, which is the default.
	Cores int
	// Lanes is how many queries run at once, in [1, Cores], each on its share
	// of the cores; 0 means 1, which is the default.
	Lanes int
	// Provider is ONNX Runtime's execution provider: "cpu", "cuda", or "auto",
	// which is CUDA where that works and the CPU elsewhere. Default "auto".
	Provider string
	// ONNXRuntimeLib is the path of the ONNX Runtime library; empty means the
	// one embedded in the binary. Default empty.
	ONNXRuntimeLib string

	// MaxWaitingQueries bounds the queries that wait for a lane; one more is
	// refused. Must be > 0. Default 1024.
	MaxWaitingQueries int
	// MaxWaitingBytes bounds the bytes of the queries in the agent, running ones
	// included, counted before a query is read; it is also the most that one
	// query may have. Must be > 0. Default 256 MiB.
	MaxWaitingBytes int64

	// DrainTimeout is how long running queries may take to finish once the agent
	// is asked to stop; 0 cuts them off at once. Default 30 s.
	DrainTimeout time.Duration

	// Pprof serves Go's profiles under /debug/pprof/ on the metrics address.
	// Default false.
	Pprof bool
}

// DefaultConfig is the configuration of `muster agent` without arguments.
func DefaultConfig() Config {
	return Config{
		HTTPAddress:       "127.0.0.1:8000",
		GRPCAddress:       "127.0.0.1:8001",
		MetricsAddress:    "127.0.0.1:8002",
		ModelDir:          "./model-repository",
		StateDir:          "./state",
		Provider:          "auto",
		MaxWaitingQueries: 1024,
		MaxWaitingBytes:   256 << 20,
		DrainTimeout:      30 * time.Second,
	}
}

// Providers are the values of Config.Provider.
func Providers() []string { return []string{"auto", "cpu", "cuda"} }

// Validate reports all faults of c at once, each with the value found; the
// names are those of the agent's flags.
func (c Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	addresses := map[string]string{}
	for _, a := range []struct{ name, address string }{
		{"http", c.HTTPAddress}, {"grpc", c.GRPCAddress}, {"metrics", c.MetricsAddress},
	} {
		if err := validateAddress(a.address); err != nil {
			fault("%s: %w", a.name, err)
			continue
		}
		_, port, _ := net.SplitHostPort(a.address)
		if first, taken := addresses[a.address]; taken && port != "0" {
			fault("%s: address %q is that of %s too", a.name, a.address, first)
		}
		addresses[a.address] = a.name
	}
	if c.ModelDir == "" {
		fault("model-dir: empty, want the path of a directory")
	}
	if c.StateDir == "" {
		fault("state-dir: empty, want the path of a directory")
	}
	machine := goruntime.NumCPU()
	if c.Cores < 0 || c.Cores > machine {
		fault("cores: %d, want 1 to %d (the machine's), or 0 for all", c.Cores, machine)
	} else if cores := c.cores(); c.Lanes < 0 || c.Lanes > cores {
		fault("lanes: %d, want 1 to %d (the cores), or 0 for one", c.Lanes, cores)
	}
	if !slices.Contains(Providers(), c.Provider) {
		fault("provider: %q, want one of %q", c.Provider, Providers())
	}
	if c.MaxWaitingQueries <= 0 {
		fault("max-waiting-queries: %d, want more than 0", c.MaxWaitingQueries)
	}
	if c.MaxWaitingBytes <= 0 {
		fault("max-waiting-bytes: %d, want more than 0", c.MaxWaitingBytes)
	}
	if c.DrainTimeout < 0 {
		fault("drain-timeout: %v, want 0 or more", c.DrainTimeout)
	}
	return errors.Join(faults...)
}

// cores is Cores with its default filled in.
func (c Config) cores() int {
	if c.Cores == 0 {
		return goruntime.NumCPU()
	}
	return c.Cores
}

// lanes is Lanes with its default filled in.
func (c Config) lanes() int { return max(c.Lanes, 1) }

func validateAddress(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("address %q, want host:port", address)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("address %q: port %q, want 0 to 65535", address, port)
	}
	return nil
}
