//go:build linux && cgo

package runtime

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/muster-serve/muster/runtime/gpu"
	"github.com/muster-serve/muster/runtime/internal/cuda"
	"github.com/muster-serve/muster/runtime/internal/dynlib"
	"github.com/muster-serve/muster/runtime/internal/ortlib"
)

// installedCUDA is where the package muster-cuda has its libraries. Tests name another folder.
var installedCUDA = "/usr/lib/muster/cuda"

// A cudaBuild is a CUDA build of ONNX Runtime: a library and what lies beside it.
type cudaBuild struct {
	library string // its path
	folder  *dynlib.Folder
	major   int // the version of CUDA that it was built for
}

var errNoCUDABuild = errors.New("no CUDA build of ONNX Runtime")

// findCUDA finds the CUDA build that the configuration names, or else the installed one.
func (c Config) findCUDA() (*cudaBuild, error) {
	library := c.LibraryPath
	if library == "" {
		library = filepath.Join(installedCUDA, "libonnxruntime.so."+ortlib.Version)
		if _, err := os.Stat(library); errors.Is(err, fs.ErrNotExist) {
			if _, err := os.Stat(installedCUDA); err == nil {
				return nil, fmt.Errorf("%w %s in %s: install muster-cuda in the version of muster",
					errNoCUDABuild, ortlib.Version, installedCUDA)
			}
			return nil, fmt.Errorf("%w: install the package muster-cuda, or name a library with "+
				"--onnxruntime-lib", errNoCUDABuild)
		}
	}
	dir := filepath.Dir(library)
	if _, err := os.Stat(filepath.Join(dir, ortlib.CUDAProvider)); err != nil {
		return nil, fmt.Errorf("%w: %s has no %s beside it", errNoCUDABuild, library,
			ortlib.CUDAProvider)
	}
	folder, err := dynlib.Read(dir)
	if err != nil {
		return nil, fmt.Errorf("%w that can be loaded: %w", errNoCUDABuild, err)
	}
	for _, needed := range folder.Needs[ortlib.CUDAProvider] {
		if major, ok := strings.CutPrefix(needed, "libcudart.so."); ok {
			b := &cudaBuild{library: library, folder: folder}
			if b.major, err = strconv.Atoi(major); err == nil {
				return b, nil
			}
		}
	}
	return nil, fmt.Errorf("%w: %s does not say for which CUDA it was built", errNoCUDABuild,
		filepath.Join(dir, ortlib.CUDAProvider))
}

// nvidia matches NVIDIA's libraries by their file names.
var nvidia = regexp.MustCompile(`^lib(cublas|cudart|cudnn|cufft|curand|nvrtc|nvJitLink)`)

// prepareCard chooses the card and loads NVIDIA's libraries that lie beside the build, so that the
// loader finds them without LD_LIBRARY_PATH. It must be called before the build is loaded.
func (b *cudaBuild) prepareCard(spec string) (*gpu.Card, error) {
	// cuBLAS's own scratch memory, which package cuda makes needless.
	if err := os.Setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0"); err != nil {
		return nil, err
	}
	card, err := gpu.Open(spec, b.major)
	if err != nil {
		return nil, err
	}
	order := slices.DeleteFunc(b.folder.Order(), func(path string) bool {
		return !nvidia.MatchString(filepath.Base(path))
	})
	return card, gpu.Preload(order)
}

// anyCUDA is a version of CUDA that every driver supports.
const anyCUDA = 1

// openCUDA finds a CUDA build and a card for it, before any library is loaded. The error says what
// is missing: a driver or a card first, since without these a build is of no use.
func (c Config) openCUDA() (*cudaBuild, *gpu.Card, error) {
	build, err := c.findCUDA()
	if err != nil {
		if _, missing := gpu.Open(c.GPU, anyCUDA); missing != nil {
			err = missing
		}
		return nil, nil, err
	}
	card, err := build.prepareCard(c.GPU)
	if err != nil {
		return nil, nil, err
	}
	return build, card, nil
}

// cudaOptions are the options of the CUDA provider where a model may take at most memory bytes; 0:
// no bound. With tf32 products of FP32 have the precision of FP16 on cards since Ampere, and
// answers are up to 1e-3 from the CPU's. The options include others.
func cudaOptions(memory int64, tf32 bool, others map[string]string) map[string]string {
	options := map[string]string{
		"use_tf32": "0", // the provider's default is 1
		// Otherwise the memory doubles each time that it grows.
		"arena_extend_strategy": "kSameAsRequested",
	}
	if tf32 {
		options["use_tf32"] = "1"
	}
	if memory > 0 {
		options["gpu_mem_limit"] = strconv.FormatInt(memory, 10)
	}
	maps.Copy(options, others)
	return options
}

func addCUDA(opts *ort.SessionOptions, memory int64, tf32 bool, others map[string]string) error {
	options, err := ort.NewCUDAProviderOptions()
	if err != nil {
		return err
	}
	defer options.Destroy()
	if err := options.Update(cudaOptions(memory, tf32, others)); err != nil {
		return err
	}
	return opts.AppendExecutionProviderCUDA(options)
}

// explainCUDA returns err of the first use of the CUDA provider beside a library. If the provider
// could not be loaded, it says why, which ONNX Runtime tells only its log.
func explainCUDA(err error, library string) error {
	if err == nil {
		return nil
	}
	if !strings.Contains(err.Error(), "Failed to load shared library") {
		return deviceError(trim(err))
	}
	// The second attempt fails in the same way. It must come after ONNX Runtime's own, because the
	// provider looks for the libraries that ONNX Runtime has loaded.
	provider := filepath.Join(filepath.Dir(library), ortlib.CUDAProvider)
	return cmp.Or(gpu.Preload([]string{provider}), err)
}

// noMemory is CUDA's error for too little memory.
const noMemory = 2

// dead are CUDA's errors after which, by cuda.h, a process must end to use CUDA again: the card or
// the context is lost.
var dead = []int{
	46,  // devices busy or unavailable
	101, // no such device
	214, // uncorrectable ECC error
	220, // uncorrectable NVLink error
	226, // contained error
	700, // illegal address
	702, // launch timed out
	709, // context destroyed
	710, // assertion
	714, // hardware stack error
	715, // illegal instruction
	716, // misaligned address
	717, // invalid address space
	718, // invalid program counter
	719, // launch failed
	721, // cluster launch failed
	999, // unknown
}

var (
	// cudaFailure matches how ONNX Runtime tells a failed call, between names of its own functions.
	cudaFailure = regexp.MustCompile(`\b(CUDA|CUBLAS|CUBLAS_LT|CUDNN|CUDNN_FE|CUFFT|CURAND) ` +
		`failure (\d+): ([^;]*?) ?;(?:.*; expr=([^;]*))?`)
	outOfMemory = regexp.MustCompile(`(?:requested buffer of size|smaller than requested bytes of) ` +
		`(\d+)|CUDA failure 2:|CUBLAS(?:_LT)? failure 3:|ALLOC(?:ATION)?_FAILED`)
)

// deviceError returns err of ONNX Runtime or of package cuda as a DeviceError if it is one, else
// err.
func deviceError(err error) error {
	var failed *cuda.Error
	if errors.As(err, &failed) {
		return &DeviceError{Dead: slices.Contains(dead, failed.Code),
			Memory: failed.Code == noMemory, Text: failed.Error()}
	}
	e := &DeviceError{Text: err.Error()}
	if m := outOfMemory.FindStringSubmatch(e.Text); m != nil {
		e.Memory = true
		e.Wanted, _ = strconv.ParseUint(m[1], 10, 64) // 0 if it is not said
	}
	m := cudaFailure.FindStringSubmatch(e.Text)
	switch {
	case m != nil:
		code, _ := strconv.Atoi(m[2])
		e.Dead = m[1] == "CUDA" && slices.Contains(dead, code)
		if e.Text = fmt.Sprintf("%s failure %d: %s", m[1], code, m[3]); m[4] != "" {
			e.Text += " (" + m[4] + ")"
		}
	case !e.Memory:
		return err
	}
	return e
}

// onCard is err of what was done on a card, as a DeviceError if it is one. A card that this process
// can use no more has then failed.
func onCard(err error, card *gpu.Card) (*DeviceError, error) {
	err = deviceError(err)
	var device *DeviceError
	if errors.As(err, &device) && device.Dead {
		card.Fail(fmt.Errorf("%s: %w", card, device))
	}
	return device, err
}

// runError is err of a run on a card.
func runError(err error, card *gpu.Card) error {
	device, err := onCard(err, card)
	if device != nil && device.Memory {
		device.Free, _ = card.Free() // only for the text
	}
	return err
}

// loadError is err of a model's load on a card that had free bytes of memory, or of which that is
// not known: then free is 0.
func loadError(err error, card *gpu.Card, free uint64) error {
	device, err := onCard(err, card)
	if device == nil || !device.Memory || free == 0 {
		return err
	}
	wanted := ""
	if device.Wanted > 0 {
		wanted = fmt.Sprintf(", and it asked for %s more than it had got", size(device.Wanted))
	}
	return fmt.Errorf("it does not fit into the memory of %s: %s of %s were free%s: %s", card,
		size(free), size(card.Memory), wanted, device.Text)
}
