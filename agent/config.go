package agent

import (
	"errors"
	"fmt"
	"net"
	"os"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/agent/rent"
	"github.com/muster-serve/muster/agent/worker"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/gossip"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime/isolate"
)

// A Config says what an agent serves, on which addresses, and with how much of the machine.
// [DefaultConfig] returns one that works; each field says what its zero value means.
type Config struct {
	// HTTPAddress, GRPCAddress and MetricsAddress are where the agent listens,
	// as host:port; port 0 lets the system choose. None may be empty. Default
	// 127.0.0.1, ports 8000, 8001 and 8002: an agent is not reachable from
	// elsewhere unless asked.
	HTTPAddress    string
	GRPCAddress    string
	MetricsAddress string

	// ProbeAddress is where the agent answers, over plain HTTP and to anybody, whether it lives and
	// is ready, and nothing else. Empty, the default, is nowhere.
	ProbeAddress string

	// ModelDir is the model repository. It must exist, and may be empty.
	// Default ./model-repository.
	ModelDir string
	// ModelStore is the URL of a model store whose models are fetched into ModelDir, which the
	// agent then makes; see package remote for the URLs. Empty, the default, fetches none. The
	// fields below have an effect only with it.
	ModelStore string
	// StoreModels are the names of the models to fetch; none, the default, means all.
	StoreModels []string
	// ModelCacheSize is how many bytes the store's files may take in ModelDir; 0, the default, is
	// 80 % of its file system. What is loaded is never removed for it.
	ModelCacheSize int64
	// StoreRate is how many bytes a second the agent receives of the store and of other agents, and
	// sends to them. Must be 0, which is no bound, or at least 1 MiB. Default 128 MiB.
	StoreRate int64
	// StorePoll is the time between two looks at the store. Must be > 0. Default 15 s.
	StorePoll time.Duration
	// RequireSignature is the path of a file with public keys of minisign, of which one must have
	// signed each version, release and revocation. Empty, the default, requires none.
	RequireSignature string
	// FleetName is the name for which releases and revocations must be signed. Default: the URL of
	// ModelStore without its parameters.
	FleetName string
	// StateDir is the directory for what must survive a restart: the last epoch and the learned
	// latency profiles. The agent makes the directory if there is none; an agent that cannot write
	// to it never leads. Default ./state.
	StateDir string

	// Cores is how many CPU cores queries run on, in [1, the machine's]; 0
	// means all of them, which is the default.
	Cores int
	// Lanes is how many queries run at once, in [1, Cores], each on its share
	// of the cores; 0 means 1, which is the default.
	Lanes int
	// Layout gives models lanes on cores of their own, as "rm2:2x1+wnd:1x1": rm2 two lanes of one
	// core each, wnd one. The agent then has these lanes and models only; with ModelControl
	// "leader" the leader moves lanes between them as their loads change. Default "": all models
	// have all lanes.
	Layout string
	// Sharing is the path of a file of `muster profile --pairs`: what is learned of models beside
	// each other starts from the slowdowns measured there. Default "": from none.
	Sharing string
	// Executor is what runs the models: "onnx", or "emulated", which runs nothing
	// and waits as long as Profile says. Default "onnx".
	Executor string
	// Profile says where the emulated executor takes its latencies from: the path of a file that
	// `go run ./scripts/tools/profiles` writes, or "shipped" for the profiles that come with the
	// program. Must be empty for other executors. Default empty.
	Profile string
	// Provider is ONNX Runtime's execution provider: "cpu", "cuda", or "auto", which is CUDA on a
	// machine where CUDA works and the CPU elsewhere. Default "auto".
	Provider string
	// GPU is the card that models run on, or a MIG slice of one: its place in the machine ("1") or
	// its UUID. Empty, the default, is the first that CUDA shows. An emulated executor has no card;
	// the agent watches the one that is named, and runs are longer while that is slowed.
	GPU string
	// GPUMemory is how many bytes of the card's memory each loaded model may take for its tensors;
	// 0, the default, is no bound.
	GPUMemory int64
	// ModelData says where the external data of loaded models is held: "memory" copies it, "mapped"
	// maps the files, which nobody may then write to. Default "memory".
	ModelData string
	// Kernels says whether lookups in embedding tables run as operators of package kernels: "on",
	// or "off" for ONNX Runtime's own. Default "on".
	Kernels string
	// ModelControl says when models load: "poll" is at start and whenever their files change,
	// "explicit" by calls alone, and "leader" when the fleet's leader places them here. Default
	// "poll".
	ModelControl string
	// ModelMemory is how many bytes models may take in all where the leader places them; 0, the
	// default, is the memory that the agent may use, less a tenth and less what it uses otherwise.
	ModelMemory int64
	// ONNXRuntimeLib is the path of the ONNX Runtime library. Empty, the default, means the
	// installed CUDA build where Provider allows it and CUDA works, else the one embedded in the
	// binary.
	ONNXRuntimeLib string

	// MaxWaitingQueries bounds the queries that wait for a lane; the agent refuses one more with
	// RESOURCE_EXHAUSTED or 429. Must be > 0. Default 1024.
	MaxWaitingQueries int
	// MaxWaitingBytes bounds the bytes of the queries in the agent, running ones
	// included, counted before a query is read; it is also the most that one
	// query may have. Must be > 0. Default 256 MiB.
	MaxWaitingBytes int64
	// Limits bound the connections and calls that callers without an agent's certificate hold open,
	// in all. Default 384 connections and 384 calls; docs/internals/limits.md says what they cost.
	Limits secure.Limits

	// LoadTimeout is how long a model version may take to load and warm up; the load fails when it
	// takes longer. Must be > 0. Default 15 min.
	LoadTimeout time.Duration

	// DrainTimeout is how long running queries may take to finish once the agent is asked to stop;
	// 0 interrupts them at once. Default 30 s.
	DrainTimeout time.Duration
	// DrainDelay is how long an agent that is asked to stop goes on taking queries while it reports
	// that it is not ready, until whoever sends it queries has noticed. It comes before DrainTimeout
	// and does not count in it. Default 0.
	DrainDelay time.Duration

	// GossipAddress is where the agent listens for other agents, TCP and UDP, as
	// host:port; port 0 lets the system choose. Default 127.0.0.1:7946.
	GossipAddress string
	// Advertise is the address that other agents and SDKs use to reach this agent, as host or
	// host:port; port is that of gossip. Empty, the default, advertises the listening addresses; an
	// address without a host is replaced by the machine's first private address.
	Advertise string
	// Join lists gossip addresses, host:port, of agents of the fleet to join, in any order. The
	// agent tries again, as long as it runs, those that do not answer. Empty, the default, starts a
	// fleet that others may join.
	Join []string
	// GossipKey encrypts gossip, and keeps out agents without the key. It is 32 bytes in base64, or
	// the path of a file with one or more such keys, one a line: the agent encrypts with the first
	// and decrypts with all. When the fleet's keys are rotated, the agent writes the new keys to
	// the file. Empty, the default, means no encryption; gossip then listens only on loopback,
	// unless Insecure is set.
	GossipKey string
	// Insecure allows gossip without a key, and the other servers without TLS, on
	// addresses that others can reach. Default false.
	Insecure bool

	// Security configures TLS, and which callers may query and control. All agents of a fleet must
	// use the same kind of security. Default: no TLS, and every caller may do everything.
	Security secure.Config

	// Rent is the path of a fleet.yaml: while this agent leads, it rents and returns machines.
	// Empty, the default, rents none.
	Rent string
	// Rented is what this machine is to the fleet that has rented it: "ID SLOT ZONE", or "ec2",
	// which asks EC2's metadata service. Empty, the default, asks that unless InstanceType is set.
	Rented string
	// Leader is the agent's role in elections: "never" stands for none; "must" wins over "may".
	// Default "may".
	Leader string
	// Policy names how this agent, while it leads, matches queries to lanes: one of match.Policies.
	// Default match.DefaultPolicy.
	Policy string
	// Record is the path of a file to which this agent, while it leads, appends its events and
	// decisions, for `muster sim --replay`. Empty, the default, records nothing.
	Record string
	// SlowLog is the path of a file to which the agent appends a line for queries of clients that
	// were late, refused or failed. Empty, the default, writes none.
	SlowLog string
	// Capture is where the agent keeps queries of the models whose settings say so: a folder, or the
	// URL of a bucket. Empty, the default, keeps none.
	Capture string
	// CaptureBytes bounds what is kept: all that a folder holds, or what goes to a bucket in a day.
	// Must be > 0. Default 1 GiB.
	CaptureBytes int64
	// CaptureKeyFile is the path of a file with the key of hashes. Empty, the default, means a random
	// key for each start.
	CaptureKeyFile string
	// Name is the name by which people know this agent: at most 64 bytes without spaces. Two agents
	// should not have the same. Empty, the default, means the one that StateDir keeps, else the
	// host's.
	Name string
	// Price is what this machine costs, in USD per hour; 0, the default, means the price of its
	// instance type in the catalogue.
	Price float64
	// InstanceType is the instance type of this machine. Empty, the default, makes the agent ask
	// EC2's metadata service; if there is none, the type is named after the CPU and the number of
	// cores.
	InstanceType string
	// Catalogue is the path of a YAML file with instance types and prices in addition to those that
	// come with the program. Empty, the default, means none.
	Catalogue string

	// Dashboard serves a page that shows the fleet, under /dashboard/ on the HTTP address. Default
	// true.
	Dashboard bool

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
		StoreRate:         128 << 20,
		StorePoll:         15 * time.Second,
		Executor:          "onnx",
		Provider:          "auto",
		ModelData:         "memory",
		Kernels:           "on",
		ModelControl:      "poll",
		GossipAddress:     "127.0.0.1:7946",
		Leader:            "may",
		Policy:            match.DefaultPolicy,
		MaxWaitingQueries: 1024,
		MaxWaitingBytes:   256 << 20,
		CaptureBytes:      1 << 30,
		LoadTimeout:       models.DefaultLoadTimeout,
		Limits:            secure.Limits{Connections: 384, Calls: 384},
		DrainTimeout:      30 * time.Second,
		Dashboard:         true,
	}
}

// Providers are the values of Config.Provider.
func Providers() []string { return []string{"auto", "cpu", "cuda"} }

// KernelSwitch are the values of Config.Kernels.
func KernelSwitch() []string { return []string{"on", "off"} }

// ModelControls are the values of Config.ModelControl.
func ModelControls() []string { return []string{"poll", "explicit", "leader"} }

// ModelDatas are the values of Config.ModelData.
func ModelDatas() []string { return []string{"memory", "mapped"} }

// Executors are the values of Config.Executor.
func Executors() []string { return []string{"onnx", "emulated"} }

// Roles are the values of Config.Leader.
func Roles() []string { return []string{"never", "may", "must"} }

// Validate returns all faults of c joined in one error, or nil. Each fault names the agent's flag,
// the value found and the value wanted.
func (c Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf(format, args...))
	}

	addresses := map[string]string{}
	for _, a := range []struct{ name, address string }{
		{"http", c.HTTPAddress}, {"grpc", c.GRPCAddress}, {"metrics", c.MetricsAddress},
		{"gossip", c.GossipAddress}, {"probe", c.ProbeAddress},
	} {
		if a.name == "probe" && a.address == "" {
			continue // there is none
		}
		if err := members.CheckAddress(a.address); err != nil {
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
	if c.StoreRate != 0 && c.StoreRate < 1<<20 {
		fault("model-store-rate: %d, want 0, which is no bound, or at least %d", c.StoreRate, 1<<20)
	}
	if c.StorePoll <= 0 {
		fault("model-store-poll: %v, want more than 0", c.StorePoll)
	}
	if c.ModelCacheSize < 0 {
		fault("model-cache-size: %d, want 0, which is 80 %% of the file system, or more",
			c.ModelCacheSize)
	}
	if c.ModelStore == "" && (len(c.StoreModels) > 0 || c.ModelCacheSize != 0 ||
		c.RequireSignature != "" || c.FleetName != "") {
		fault("model-store: empty, want the store that store-models, model-cache-size, " +
			"require-signature or fleet-name are about")
	}
	if len(c.FleetName) > control.MaxNameBytes {
		fault("fleet-name: %d bytes, want at most %d", len(c.FleetName), control.MaxNameBytes)
	}
	if c.StateDir == "" {
		fault("state-dir: empty, want the path of a directory")
	}
	machine := goruntime.NumCPU()
	if c.Cores < 0 || c.Cores > machine {
		fault("cores: %d, want 1 to %d (the machine's), or 0 for all that the process may use",
			c.Cores, machine)
	} else if cores := c.coresOrDefault(); c.Lanes < 0 || c.Lanes > cores {
		_, why := isolate.Cores()
		if c.Cores != 0 {
			why = "the cores"
		}
		fault("lanes: %d, want 1 to %d (%s), or 0 for one", c.Lanes, cores, why)
	}
	if c.Layout != "" {
		if _, err := c.parseLayout(); err != nil {
			fault("layout: %w", err)
		}
		if c.Lanes != 0 || c.Cores != 0 {
			fault("layout: it says which lanes and cores there are, so lanes and cores must not")
		}
	}
	if !slices.Contains(Providers(), c.Provider) {
		fault("provider: %q, want one of %q", c.Provider, Providers())
	}
	if c.Provider == "cpu" && (c.GPU != "" || c.GPUMemory != 0) {
		fault("gpu: %q with gpu-memory %d, want neither with provider cpu", c.GPU, c.GPUMemory)
	}
	if c.GPUMemory < 0 {
		fault("gpu-memory: %d, want 0, which is no bound, or more", c.GPUMemory)
	}
	if !slices.Contains(ModelDatas(), c.ModelData) {
		fault("model-data: %q, want one of %q", c.ModelData, ModelDatas())
	}
	if !slices.Contains(KernelSwitch(), c.Kernels) {
		fault("kernels: %q, want one of %q", c.Kernels, KernelSwitch())
	}
	if !slices.Contains(ModelControls(), c.ModelControl) {
		fault("model-control: %q, want one of %q", c.ModelControl, ModelControls())
	}
	if c.ModelMemory < 0 {
		fault("model-memory: %d, want 0 or more", c.ModelMemory)
	} else if c.ModelMemory > 0 && c.ModelControl != "leader" {
		fault("model-memory: %d without model-control leader, which alone minds it", c.ModelMemory)
	}
	if c.MaxWaitingQueries <= 0 {
		fault("max-waiting-queries: %d, want more than 0", c.MaxWaitingQueries)
	}
	if c.MaxWaitingBytes <= 0 {
		fault("max-waiting-bytes: %d, want more than 0", c.MaxWaitingBytes)
	}
	if c.CaptureBytes <= 0 {
		fault("capture-bytes: %d, want more than 0", c.CaptureBytes)
	}
	if c.LoadTimeout <= 0 {
		fault("load-timeout: %v, want more than 0", c.LoadTimeout)
	}
	if c.Limits.Connections < 0 {
		fault("max-connections: %d, want 0, which is no limit, or more", c.Limits.Connections)
	}
	if c.Limits.Calls < 0 {
		fault("max-calls: %d, want 0, which is no limit, or more", c.Limits.Calls)
	}
	if c.DrainTimeout < 0 {
		fault("drain-timeout: %v, want 0 or more", c.DrainTimeout)
	}
	if c.DrainDelay < 0 {
		fault("drain-delay: %v, want 0 or more", c.DrainDelay)
	}
	if !slices.Contains(Executors(), c.Executor) {
		fault("executor: %q, want one of %q", c.Executor, Executors())
	}
	if c.Executor == "emulated" {
		if c.Profile == "" {
			fault(
				"profile: empty, want %q or a file: the emulated executor takes its latencies "+
					"from there", worker.ShippedProfile)
		}
		if c.InstanceType == "" {
			fault("instance-type: empty, want the type that the emulated executor plays")
		}
	} else if c.Profile != "" {
		fault("profile: %q, want none: only the emulated executor has one", c.Profile)
	}
	if !slices.Contains(Roles(), c.Leader) {
		fault("leader: %q, want one of %q", c.Leader, Roles())
	}
	if c.Rent != "" && c.Leader == "never" {
		fault("rent: %q, want none: only an agent that may lead rents", c.Rent)
	}
	if c.Rented != "" && c.Rented != rentedEC2 && rent.ParseRented(c.Rented) == nil {
		fault(
			"rented: %q, want \"ec2\", or \"ID SLOT ZONE\" with a slot such as "+
				"r5n.large/on-demand/0/0",
			c.Rented)
	}
	if !slices.Contains(match.Policies(), c.Policy) && !match.IsFormerPolicy(c.Policy) {
		fault("policy: %q, want one of %q", c.Policy, match.Policies())
	}
	if err := validateInstanceType(c.InstanceType); err != nil {
		fault("instance-type: %w", err)
	}
	if err := validateDisplayName(c.Name); err != nil {
		fault("name: %q, %w", c.Name, err)
	}
	if !(c.Price >= 0 && c.Price <= maxPriceUSDPerHour) {
		fault("price: %v, want USD per hour up to %v, or 0 for the price of the type", c.Price,
			maxPriceUSDPerHour)
	}
	c.validateFleet(fault)
	c.validateSecurity(fault)
	return errors.Join(faults...)
}

// validateFleet reports the faults of the settings for gossip: Join, Advertise and GossipKey.
func (c Config) validateFleet(fault func(format string, args ...any)) {
	for _, seed := range c.Join {
		if err := members.CheckAddress(seed); err != nil {
			fault("join: %w", err)
		} else if host, port, _ := net.SplitHostPort(seed); host == "" || port == "0" {
			fault("join: address %q, want a host and a port above 0", seed)
		}
	}
	if c.Advertise != "" {
		host, _ := c.splitAdvertise()
		if err := gossip.CheckAdvertised(c.Advertise); err != nil {
			fault("advertise: %w", err)
		} else if most := members.LargestString - len(":65535"); len(host) > most {
			fault(
				"advertise: host of %d characters, want at most %d, which fit into what agents "+
					"gossip", len(host), most)
		}
	}
	keys, err := c.gossipKeys()
	if err != nil {
		fault("gossip-key: %w", err)
	}
	if members.CheckAddress(c.GossipAddress) == nil && err == nil && len(keys) == 0 &&
		!c.Insecure && !secure.Loopback(c.GossipAddress) {
		fault(
			"gossip: address %q is not loopback, and any machine that reaches it could join: "+
				"give the "+
				"agents a --gossip-key, or --insecure to do without", c.GossipAddress)
	}
}

// validateSecurity reports the faults of TLS and access control, and servers that other machines
// could reach without encryption.
func (c Config) validateSecurity(fault func(format string, args ...any)) {
	if err := c.Security.Validate(); err != nil {
		fault("%w", err)
		return
	}
	if !c.Insecure {
		for _, address := range c.exposedServers() {
			fault(
				"%s can be reached from other machines and is not encrypted: give the agent a "+
					"--tls-cert (muster certs makes one), or --insecure to do without", address)
		}
	}
	if len(c.Join) == 0 {
		return
	}
	switch s := c.Security; {
	case s.TLS() && s.CAFile == "":
		fault("tls-ca: empty, want the CA of the fleet's agents: those to join must prove that " +
			"they are agents")
	case s.Named() && !s.TLS():
		fault("tls-cert: empty, want a certificate: where clients need a name, agents must prove " +
			"to each other that they are agents")
	}
}

// exposedServers lists the servers that other machines can reach and that do not encrypt, each as
// "grpc: address ...".
func (c Config) exposedServers() []string {
	if c.Security.TLS() {
		return nil
	}
	var exposed []string
	for _, a := range []struct{ name, address string }{
		{"http", c.HTTPAddress}, {"grpc", c.GRPCAddress}, {"metrics", c.MetricsAddress},
	} {
		if members.CheckAddress(a.address) == nil && !secure.Loopback(a.address) {
			exposed = append(exposed, fmt.Sprintf("%s: address %q", a.name, a.address))
		}
	}
	return exposed
}

// splitAdvertise splits Advertise into host and port; port is "" if Advertise has none.
func (c Config) splitAdvertise() (host, port string) {
	if host, port, err := net.SplitHostPort(c.Advertise); err == nil {
		return host, port
	}
	return strings.Trim(c.Advertise, "[]"), ""
}

// gossipKeyFile is the path that GossipKey holds, or "" if GossipKey is empty or is a key itself.
func (c Config) gossipKeyFile() string {
	if _, err := gossip.ParseKey(c.GossipKey); err == nil {
		return ""
	}
	return c.GossipKey
}

// gossipKeys returns the keys of GossipKey, or of the file that it names; none if it is empty. The
// errors never show GossipKey itself, which could be a key.
func (c Config) gossipKeys() ([][]byte, error) {
	if c.GossipKey == "" {
		return nil, nil
	}
	if key, err := gossip.ParseKey(c.GossipKey); err == nil {
		return [][]byte{key}, nil
	}
	if _, err := os.Stat(c.GossipKey); err != nil {
		return nil, fmt.Errorf(
			"neither %d bytes in base64 (muster keys generate) nor a file that can be read",
			gossip.KeySize)
	}
	content, err := secure.ReadSecret("file of keys", c.GossipKey)
	if err != nil {
		return nil, err
	}
	var keys [][]byte
	for i, line := range strings.Fields(string(content)) {
		key, err := gossip.ParseKey(line)
		if err != nil {
			return nil, fmt.Errorf("%s: key %d: %w", c.GossipKey, i+1, err)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s: empty, want a key of %d bytes in base64", c.GossipKey,
			gossip.KeySize)
	}
	return keys, nil
}

// largestInstanceType is the longest name of an instance type in bytes: the name must fit into a
// gossip message.
const largestInstanceType = 80

// maxPriceUSDPerHour bounds the price of a machine. Chosen: far above that of any machine, and low
// enough that sums stay finite.
const maxPriceUSDPerHour = 1e6

func validateInstanceType(name string) error {
	if len(name) > largestInstanceType ||
		strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == '"' || r > '~' }) {
		return fmt.Errorf("%q, want at most %d letters, digits and signs, without spaces", name,
			largestInstanceType)
	}
	return nil
}

// maxShared bounds the cores of a layout, as a multiple of the machine's: lanes may share cores,
// but a number far above is a mistake. Chosen: a layout of a machine with 16 times as many cores is
// tested on a small one, and each lane is a thread.
const maxShared = 16

// parseLayout is Layout as a value.
func (c Config) parseLayout() (place.Layout, error) {
	if c.Layout == "" {
		return place.Layout{}, nil
	}
	l, err := place.ParseLayout(c.Layout)
	if err != nil {
		return l, err
	}
	if err := worker.CheckLayout(l); err != nil {
		return l, fmt.Errorf("%q: %w", c.Layout, err)
	}
	// With more cores than there are, lanes share them and are not pinned.
	if _, cores := worker.LanesOf(l); cores > maxShared*goruntime.NumCPU() {
		return l, fmt.Errorf("%q: %d cores, and the machine has %d: want at most %d times as many",
			c.Layout, cores, goruntime.NumCPU(), maxShared)
	}
	return l, nil
}

// coresOrDefault is Cores with its default filled in.
func (c Config) coresOrDefault() int {
	if l, err := c.parseLayout(); err == nil && len(l.Partitions) > 0 {
		_, cores := worker.LanesOf(l)
		return cores
	}
	if c.Cores == 0 {
		cores, _ := isolate.Cores()
		return cores
	}
	return c.Cores
}

// lanesOrDefault is Lanes with its default filled in.
func (c Config) lanesOrDefault() int {
	if l, err := c.parseLayout(); err == nil && len(l.Partitions) > 0 {
		lanes, _ := worker.LanesOf(l)
		return lanes
	}
	return max(c.Lanes, 1)
}
