package runtime

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/muster-serve/muster/runtime/isolate"
)

// A ExecutionProvider is an execution provider of ONNX Runtime: the hardware that it computes on.
type ExecutionProvider string

// The providers that a Config can choose.
const (
	CPU  ExecutionProvider = "cpu"
	CUDA ExecutionProvider = "cuda" // an NVIDIA GPU; needs a CUDA build of the library
	Auto ExecutionProvider = "auto" // CUDA if the library and the machine support it, else CPU
)

// A Config says which ONNX Runtime to use and how. Its zero value is usable in
// a binary with an embedded library.
type Config struct {
	// LibraryPath is the shared library to load. Empty means the installed CUDA build, if there is
	// one and Provider can use it, else the library embedded in this binary; a binary without one
	// (plain `go build`) needs a path.
	LibraryPath string
	// Provider is the hardware to compute on; empty means Auto.
	Provider ExecutionProvider
	// GPU is the card or MIG slice to use, as [gpu.Open] takes it; empty means the first. GPUMemory
	// is how many bytes of its memory each session, which is a loaded model, may take for tensors;
	// 0 means no bound. Both have no effect on the CPU.
	GPU       string
	GPUMemory int64
	// Cores is how many CPU cores the lanes share; 0 for isolate.Cores.
	Cores int
	// Lanes is how many queries run at a time, each with Cores / Lanes threads;
	// 0 means 1.
	Lanes int
	// MapData leaves the external data of models mapped from its files. Processes then share the
	// memory, and the system can take it back, but truncating such a file kills the process. If
	// MapData is false, the data is copied into memory if it fits.
	MapData bool
	// Kernels makes models use the operators of package kernels for lookups in embedding tables.
	// Only on the CPU.
	Kernels bool
	// Divide makes models that the lanes of several cores can run on one core each, several queries
	// at a time ([Query.Divide]). Only on the CPU. It takes some memory for each model: its dense
	// weights a second time.
	Divide bool
	// Logger gets the library's version at start and warnings about models' data; nil discards
	// them.
	Logger *slog.Logger
}

// Validate reports all faults of the configuration at once.
func (c Config) Validate() error {
	var errs []error
	switch c.Provider {
	case "", CPU, CUDA, Auto:
	default:
		errs = append(errs, fmt.Errorf("provider %q: want cpu, cuda or auto", c.Provider))
	}
	if c.Cores < 0 {
		errs = append(errs, fmt.Errorf("cores %d: want at least 1, or 0 for all", c.Cores))
	}
	if c.Lanes < 0 {
		errs = append(errs, fmt.Errorf("lanes %d: want at least 1, or 0 for one", c.Lanes))
	}
	if c.GPUMemory < 0 {
		errs = append(errs, fmt.Errorf("GPU memory %d: want 0 or more", c.GPUMemory))
	}
	if cores := c.coresOrDefault(); c.Cores >= 0 && c.Lanes > cores {
		errs = append(errs, fmt.Errorf("lanes %d: more than the %d cores", c.Lanes, cores))
	}
	return errors.Join(errs...)
}

func (c Config) coresOrDefault() int {
	if c.Cores > 0 {
		return c.Cores
	}
	cores, _ := isolate.Cores()
	return cores
}
