//go:build linux && cgo

package runtime

import (
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/runtime/gpu"
	"github.com/muster-serve/muster/runtime/internal/ortapi"
	"github.com/muster-serve/muster/runtime/internal/ortlib"
	"github.com/muster-serve/muster/runtime/kernels"
)

// ONNX is the executor that runs models with ONNX Runtime.
type ONNX struct {
	info    Info
	card    *gpu.Card // nil on the CPU
	memory  int64     // Config.GPUMemory
	mapData bool
	kernels bool
	divide  bool
	log     *slog.Logger
}

// startedThreads are the threads of a session that are not its caller.
type startedThreads = ortapi.Threads

// The library is loaded once in a process and never unloaded, because the thread pools and
// allocators of models are part of it.
var library struct {
	sync.Mutex
	loaded bool
	path   string // as in Config.LibraryPath
}

// OpenONNX loads the ONNX Runtime library, once in a process, and returns an executor. It
// is an error if the library is missing, is not ONNX Runtime or is too old, or if it
// cannot use the provider.
func OpenONNX(cfg Config) (*ONNX, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("open ONNX Runtime: %w", err)
	}
	start := time.Now()
	path := cfg.LibraryPath
	var card *gpu.Card
	var noCUDA error
	if cfg.Provider != CPU {
		var build *cudaBuild
		if build, card, noCUDA = cfg.openCUDA(); noCUDA == nil {
			path = build.library
		} else if cfg.Provider == CUDA {
			return nil, fmt.Errorf("open ONNX Runtime: provider cuda: %w", noCUDA)
		}
	}
	if err := load(path); err != nil {
		return nil, fmt.Errorf("open ONNX Runtime: %w", err)
	}
	o := &ONNX{mapData: cfg.MapData, log: cfg.Logger, info: Info{
		Executor: "onnx",
		Version:  ort.GetVersion(),
		Library:  cmp.Or(path, "embedded"),
		Provider: CPU,
		Threads:  cfg.coresOrDefault() / max(cfg.Lanes, 1),
	}}
	if o.log == nil {
		o.log = slog.New(slog.DiscardHandler)
	}
	if card != nil {
		noCUDA = explainCUDA(probeCUDA(cfg.GPUMemory), path)
	}
	switch {
	case cfg.Provider == CPU:
	case noCUDA == nil:
		o.info.Provider, o.card, o.memory = CUDA, card, cfg.GPUMemory
	case cfg.Provider == CUDA:
		return nil, fmt.Errorf("open ONNX Runtime: provider cuda with library %s: %w",
			o.info.Library, noCUDA)
	default:
		o.info.Fallback = noCUDA.Error()
	}
	o.kernels = cfg.Kernels && o.info.Provider == CPU
	o.divide = cfg.Divide && o.info.Provider == CPU
	if log := cfg.Logger; log != nil {
		log.Info("ONNX Runtime loaded", "version", o.info.Version, "library", o.info.Library,
			"provider", o.info.Provider, "threads", o.info.Threads,
			"took_ms", float64(time.Since(start).Microseconds())/1e3)
		if o.info.Fallback != "" {
			log.Info("ONNX Runtime runs on the CPU: CUDA is not available", "reason",
				o.info.Fallback)
		}
		if card := o.card; card != nil {
			log.Info("ONNX Runtime runs on a GPU", "gpu", card.String(), "driver", card.Driver,
				"others", card.Others)
			if card.Unwatched != nil {
				log.Warn("the agent uses the GPU but cannot watch it", "reason", card.Unwatched)
			}
		}
	}
	return o, nil
}

// Info returns the library and provider that the executor uses.
func (o *ONNX) Info() Info { return o.info }

// GPU returns the card that models run on; nil on the CPU.
func (o *ONNX) GPU() *gpu.Card { return o.card }

// load loads the library at path, or the embedded one if path is "". A second call with the
// same path does nothing.
func load(path string) error {
	library.Lock()
	defer library.Unlock()
	if library.loaded {
		if path != library.path {
			return fmt.Errorf(
				"library %q is already loaded in this process, cannot load %q beside it",
				library.path, path)
		}
		return nil
	}
	name := path
	if path == "" {
		f, err := ortlib.Open()
		if errors.Is(err, ortlib.ErrNone) {
			return fmt.Errorf(
				"%w: build with `make build`, or give a library with --onnxruntime-lib or "+
					"MUSTER_ONNXRUNTIME_LIB", err)
		}
		if err != nil {
			return err
		}
		defer f.Close() // the mapping of the loaded library keeps the file's memory
		name = f.Name()
	} else {
		var err error
		if name, err = filepath.Abs(path); err != nil {
			return err
		}
		// The loader maps a library without checks: a truncated one would kill the process.
		f, err := elf.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("library %s does not exist", name)
		}
		if err != nil {
			return fmt.Errorf("library %s is no shared library: %w", name, err)
		}
		f.Close()
	}
	// Otherwise the library sends data about sessions and the machine to Microsoft.
	if err := os.Setenv("ORT_DISABLE_TELEMETRY", "1"); err != nil {
		return err
	}
	ort.SetSharedLibraryPath(name)
	// The calls that fail return their errors, so the library need not print them as well.
	if err := ort.InitializeEnvironment(ort.WithLogLevelFatal()); err != nil {
		if strings.Contains(err.Error(), "ORT API base") {
			return fmt.Errorf("library %s is too old: this Muster is made for ONNX Runtime %s",
				name, ortlib.Version)
		}
		text := strings.TrimPrefix(err.Error(), "Platform-specific initialization failed: ")
		return fmt.Errorf("library %s is no usable ONNX Runtime library: %s", name, text)
	}
	if err := shareArena(); err != nil {
		return fmt.Errorf("make the allocator that models share: %w", err)
	}
	if err := errors.Join(ortapi.Open(name), kernels.Open(name)); err != nil {
		return err
	}
	library.loaded, library.path = true, path
	nameBusErrors()
	return nil
}

// shareArena makes one arena from which all sessions allocate. If each session had its
// own, the memory that a large query needed would stay with its model, unused, and other
// models would lack it.
func shareArena() error {
	memory, err := ort.GetMemoryInfo()
	if err != nil {
		return err
	}
	config, err := ort.NewArenaCfg(0, -1, -1, -1) // the library's defaults
	if err != nil {
		return err
	}
	defer config.Destroy()
	return ort.CreateAndRegisterAllocator(memory, config)
}

// probeCUDA runs a small model on the GPU and returns the error if that fails.
func probeCUDA(memory int64) error {
	opts, err := ort.NewSessionOptions()
	if err != nil {
		return err
	}
	defer opts.Destroy()
	if err := addCUDA(opts, memory, false, nil); err != nil {
		return err
	}
	s, err := ort.NewDynamicAdvancedSessionWithONNXData(probeModel(), []string{"x"}, []string{"y"},
		opts)
	if err != nil {
		return err
	}
	defer s.Destroy()
	x, err := ort.NewTensor(ort.NewShape(1), []float32{1})
	if err != nil {
		return err
	}
	defer x.Destroy()
	outputs := []ort.Value{nil}
	if err := s.Run([]ort.Value{x}, outputs); err != nil {
		return err
	}
	return outputs[0].Destroy()
}

// probeModel returns the smallest model that computes something: y = Relu(x).
func probeModel() []byte {
	port := func(name string) []onnx.ValueDescription {
		return []onnx.ValueDescription{{Name: name, DataType: tensor.FP32,
			Shape: []int64{onnx.Dynamic}}}
	}
	m := onnx.Model{
		Name:    "probe",
		Inputs:  port("x"),
		Outputs: port("y"),
		Nodes:   []onnx.Node{{Op: "Relu", Inputs: []string{"x"}, Outputs: []string{"y"}}},
	}
	return m.Marshal()
}
