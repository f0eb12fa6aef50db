package runtime

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-serve/muster/runtime/gpu"
	"github.com/muster-serve/muster/runtime/gpu/fakenvidia"
	"github.com/muster-serve/muster/runtime/internal/ortlib"
)

// ONNX Runtime's texts, of version 1.30.0.
const (
	call = "/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc:146 " +
		"std::conditional_t<THRW, void, onnxruntime::common::Status> onnxruntime::CudaCall(ERRTYPE, " +
		"const char*, const char*, SUCCTYPE, const char*, const char*, int) [with ERRTYPE = " +
		"cudaError; bool THRW = true; SUCCTYPE = cudaError] "
	place = " ; GPU=0 ; hostname=vm ; file=/onnxruntime_src/x.cc ; line=352 ; "
	arena = "Non-zero status code returned while running Gemm node. Name:'fc' Status Message: " +
		"/onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:376 void* onnxruntime::" +
		"BFCArena::AllocateRawInternal(size_t, bool, onnxruntime::Stream*) "
)

func TestCUDAOptions(t *testing.T) {
	got := cudaOptions(1<<30, true, map[string]string{"user_compute_stream": "7"})
	for key, want := range map[string]string{
		"use_tf32": "1", "gpu_mem_limit": "1073741824", "user_compute_stream": "7",
	} {
		if got[key] != want {
			t.Errorf("%s is %q, want %q", key, got[key], want)
		}
	}
	if got := cudaOptions(0, false, nil); got["use_tf32"] != "0" || got["gpu_mem_limit"] != "" {
		t.Errorf("by default: %v", got)
	}
}

func TestDeviceError(t *testing.T) {
	for text, want := range map[string]DeviceError{
		call + "CUDA failure 36: API call is not supported in the installed CUDA driver" + place +
			"expr=cudaSetDevice(info_.device_id); ": {
			Text: "CUDA failure 36: API call is not supported in the installed CUDA driver " +
				"(cudaSetDevice(info_.device_id))",
		},
		call + "CUDA failure 700: an illegal memory access was encountered" + place +
			"expr=cudaStreamSynchronize(s); ": {Dead: true,
			Text: "CUDA failure 700: an illegal memory access was encountered " +
				"(cudaStreamSynchronize(s))",
		},
		call + "CUDA failure 2: out of memory" + place + "expr=cudaMalloc((void**)&p, size); ": {
			Memory: true, Text: "CUDA failure 2: out of memory (cudaMalloc((void**)&p, size))",
		},
		// A code of another library's is not CUDA's.
		"CUBLAS failure 214: CUBLAS_STATUS_EXECUTION_FAILED" + place + "expr=gemm(x); ": {
			Text: "CUBLAS failure 214: CUBLAS_STATUS_EXECUTION_FAILED (gemm(x))",
		},
		"CUBLAS failure 3: the resource allocation failed" + place + "expr=cublasCreate(&h); ": {
			Memory: true,
			Text:   "CUBLAS failure 3: the resource allocation failed (cublasCreate(&h))",
		},
		"CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED" + place + "expr=cublasCreate(&h); ": {
			Memory: true, Text: "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED (cublasCreate(&h))",
		},
		arena + "Failed to allocate memory for requested buffer of size 2830172160": {
			Memory: true, Wanted: 2830172160,
			Text: arena + "Failed to allocate memory for requested buffer of size 2830172160",
		},
		arena + "Available memory of 1024 is smaller than requested bytes of 4096": {
			Memory: true, Wanted: 4096,
			Text: arena + "Available memory of 1024 is smaller than requested bytes of 4096",
		},
	} {
		var got *DeviceError
		if !errors.As(deviceError(errors.New(text)), &got) || *got != want {
			t.Errorf("of %s: got %+v, want %+v", text, got, want)
		}
	}
	other := errors.New("Non-zero status code returned while running Gather node: indices element " +
		"out of data bounds, idx=700 must be within the inclusive range [-10,9]")
	if got := deviceError(other); got != other {
		t.Errorf("of the query's own fault: got %v", got)
	}
}

// TestDeadCard: after a run that has killed the context the card has failed, and after others not.
func TestDeadCard(t *testing.T) {
	card := &gpu.Card{Unwatched: errors.New("no NVML")}
	runError(errors.New("CUDA failure 2: out of memory ; GPU=0"), card)
	runError(errors.New("indices element out of data bounds"), card)
	failed := make(chan error, 1)
	go card.Watch(t.Context(), func(s gpu.Status) { failed <- s.Failed })
	select {
	case err := <-failed:
		t.Errorf("without reason the card failed: %v", err)
	case <-time.After(500 * time.Millisecond): // twice as long as Watch may take
	}
	runError(errors.New("CUDA failure 700: an illegal memory access was encountered ; GPU=0"), card)
	const want = "GPU: the GPU failed: CUDA failure 700: an illegal memory access was encountered"
	if err := <-failed; err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestRunErrorSaysWhatIsFree has a card of a fake driver, of which 3 GiB are free.
func TestRunErrorSaysWhatIsFree(t *testing.T) {
	driver, err := fakenvidia.Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := driver.Set(fakenvidia.State{Cards: []fakenvidia.Card{
		{UUID: "GPU-a", Memory: 16 << 30, Used: 13 << 30},
	}}); err != nil {
		t.Fatal(err)
	}
	t.Setenv(fakenvidia.Variable, driver.State())
	if err := gpu.Preload([]string{driver.NVML}); err != nil { // found by its name from now on
		t.Fatal(err)
	}
	card, err := gpu.Open("", 0)
	if err != nil {
		t.Fatal(err)
	}
	const full = "Failed to allocate memory for requested buffer of size 4294967296"
	const want = "the GPU has too little memory for 4.0 GiB more, 3.0 GiB are free: " + full
	if got := runError(errors.New(full), card); got.Error() != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

func TestLoadError(t *testing.T) {
	card := &gpu.Card{UUID: "GPU-a", Name: "Fake T4", Memory: 15 << 30}
	full := errors.New("Failed to allocate memory for requested buffer of size 2830172160")
	for _, tt := range []struct {
		err  error
		free uint64
		want string
	}{
		{full, 800 << 20,
			"it does not fit into the memory of GPU 0 (Fake T4, GPU-a): 800.0 MiB of " +
				"15.0 GiB were free, and it asked for 2.6 GiB more than it had got: " + full.Error()},
		{errors.New("CUDA failure 2: out of memory ; GPU=0"), 1 << 30,
			"it does not fit into the memory of GPU 0 (Fake T4, GPU-a): 1.0 GiB of 15.0 GiB were " +
				"free: CUDA failure 2: out of memory"},
		{full, 0, "the GPU has too little memory for 2.6 GiB more: " + full.Error()},
		{errors.New("no such file"), 1, "no such file"},
	} {
		if got := loadError(tt.err, card, tt.free); got.Error() != tt.want {
			t.Errorf("got %v, want %s", got, tt.want)
		}
	}
}

// cudaFolder makes a folder with the files of a CUDA build, of which only the names and what the
// provider needs are right.
func cudaFolder(t *testing.T, version, needs string) string {
	t.Helper()
	dir := t.TempDir()
	gcc := func(name string, with ...string) string {
		out := filepath.Join(dir, name)
		args := append([]string{"-shared", "-Wl,--no-as-needed", "-Wl,-soname," + name, "-o", out,
			"-x", "c", "/dev/null", "-x", "none"}, with...)
		if text, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		return out
	}
	gcc("libonnxruntime.so." + version)
	gcc(ortlib.CUDAProvider, gcc(needs))
	return dir
}

func TestFindCUDA(t *testing.T) {
	before := installedCUDA
	t.Cleanup(func() { installedCUDA = before })
	find := func(installed, library string) (*cudaBuild, error) {
		installedCUDA = installed
		return Config{LibraryPath: library}.findCUDA()
	}
	good := cudaFolder(t, ortlib.Version, "libcudart.so.13")
	library := filepath.Join(good, "libonnxruntime.so."+ortlib.Version)
	nowhere := filepath.Join(t.TempDir(), "none")
	for _, where := range [][2]string{{good, ""}, {nowhere, library}} {
		b, err := find(where[0], where[1])
		if err != nil || b.library != library || b.major != 13 {
			t.Errorf("in %v: got %+v, %v", where, b, err)
		}
	}
	plain := filepath.Join(t.TempDir(), "libonnxruntime.so."+ortlib.Version)
	for _, tt := range []struct{ installed, library, want string }{
		{nowhere, "", "no CUDA build of ONNX Runtime: install the package muster-cuda, or name a " +
			"library with --onnxruntime-lib"},
		{cudaFolder(t, "1.2.3", "libcudart.so.13"), "",
			"install muster-cuda in the version of muster"},
		{good, plain, plain + " has no " + ortlib.CUDAProvider + " beside it"},
		{cudaFolder(t, ortlib.Version, "libcublas.so.13"), "", "does not say for which CUDA"},
	} {
		_, err := find(tt.installed, tt.library)
		if !errors.Is(err, errNoCUDABuild) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("installed in %s, library %q: got error %v, want one with %q", tt.installed,
				tt.library, err, tt.want)
		}
	}
	if err := os.WriteFile(filepath.Join(good, ortlib.CUDAProvider), []byte("cut"),
		0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := find(good, ""); err == nil || !strings.Contains(err.Error(), "no shared library") {
		t.Errorf("with a broken provider: got error %v", err)
	}
}

// TestThread: work is done one after the other on one thread of the system, whoever has it.
func TestThread(t *testing.T) {
	one := newThread()
	defer one.stopThread()
	threads := map[int]bool{} // written without a lock
	failed := errors.New("failed")
	var group sync.WaitGroup
	for range 32 {
		group.Go(func() {
			err := one.do(func() error { threads[unix.Gettid()] = true; return failed })
			if !errors.Is(err, failed) {
				t.Errorf("got %v, want the work's error", err)
			}
		})
	}
	group.Wait()
	if len(threads) != 1 {
		t.Errorf("ran on %d threads, want 1", len(threads))
	}
}
