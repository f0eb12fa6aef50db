//go:build linux && cgo

package gpu

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

// What is asked of libcuda.so.1; the types are those of cuda.h.
typedef int (*cu_init)(unsigned int);
typedef int (*cu_number)(int *);
typedef int (*cu_text)(int, const char **);

static void *symbol(void *library, const char *name) { return dlsym(library, name); }
static int call_init(void *f) { return ((cu_init)f)(0); }
static int call_number(void *f, int *n) { return ((cu_number)f)(n); }
static int call_text(void *f, int code, const char **text) { return ((cu_text)f)(code, text); }
*/
import "C"

import (
	"errors"
	"fmt"
	goruntime "runtime"
	"strings"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/dl"
)

// The driver's libraries, which the loader finds. Tests name others.
var (
	libcuda = "libcuda.so.1"
	libnvml = "libnvidia-ml.so.1"
)

// minDriver is the oldest driver, by its branch, that runs what was built for a major version of
// CUDA, as NVIDIA's page "CUDA Compatibility" lists it.
var minDriver = map[int]int{11: 450, 12: 525, 13: 580}

// A driver is libcuda.so.1, loaded.
type driver struct{ library unsafe.Pointer }

// openDriver loads libcuda.so.1, which stays loaded.
func openDriver() (*driver, error) {
	goruntime.LockOSThread() // dlerror is of the thread
	defer goruntime.UnlockOSThread()
	name := C.CString(libcuda)
	defer C.free(unsafe.Pointer(name))
	library := C.dlopen(name, C.RTLD_NOW|C.RTLD_GLOBAL)
	if library == nil {
		text := C.GoString(C.dlerror())
		if strings.Contains(text, "No such file") {
			return nil, fmt.Errorf("%w: %s not found", ErrNoDriver, libcuda)
		}
		return nil, fmt.Errorf("%w that can be loaded: %s", ErrNoDriver, text)
	}
	return &driver{library}, nil
}

func (d *driver) findSymbol(name string) (unsafe.Pointer, error) {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	if f := C.symbol(d.library, c); f != nil {
		return f, nil
	}
	return nil, fmt.Errorf("%s has no %s: it is not NVIDIA's driver", libcuda, name)
}

// callForInt calls a function that sets an int.
func (d *driver) callForInt(name string) (int, error) {
	f, err := d.findSymbol(name)
	if err != nil {
		return 0, err
	}
	var n C.int
	if code := C.call_number(f, &n); code != 0 {
		return 0, d.failureOf(name, code)
	}
	return int(n), nil
}

// failureOf is the error of a call that returned code, in the driver's words.
func (d *driver) failureOf(call string, code C.int) error {
	text := "no text"
	if f, err := d.findSymbol("cuGetErrorString"); err == nil {
		var s *C.char
		if C.call_text(f, code, &s) == 0 && s != nil {
			text = C.GoString(s)
		}
	}
	return &cudaError{call, int(code), text}
}

// A cudaError is a call of the driver that failed.
type cudaError struct {
	call string
	code int
	text string
}

func (e *cudaError) Error() string {
	return fmt.Sprintf("%s: CUDA error %d: %s", e.call, e.code, e.text)
}

// noDevice is CUDA's code for a machine without a GPU that this process may use.
const noDevice = 100

// checkVersion reports why the driver cannot run what was built for a major version of CUDA; nil if
// it can. version is the driver's own, "" if it is not known.
func (d *driver) checkVersion(major int, version string) error {
	n, err := d.callForInt("cuDriverGetVersion")
	if err != nil {
		return err
	}
	if n/1000 >= major { // as 13000 for CUDA 13.0
		return nil
	}
	advice := "install a newer one"
	if least, ok := minDriver[major]; ok {
		advice = fmt.Sprintf("install driver %d or later", least)
	}
	return fmt.Errorf("NVIDIA driver%s supports CUDA %d.%d, the library needs %d.x: %s",
		spaced(version), n/1000, n%1000/10, major, advice)
}

// spaced puts a space before a text that is not empty.
func spaced(text string) string {
	if text == "" {
		return ""
	}
	return " " + text
}

// initCUDA has CUDA look for the GPUs of CUDA_VISIBLE_DEVICES.
func (d *driver) initCUDA(version string) error {
	f, err := d.findSymbol("cuInit")
	if err != nil {
		return err
	}
	n := 0
	if code := C.call_init(f); code != 0 {
		err = d.failureOf("cuInit", code)
	} else {
		n, err = d.callForInt("cuDeviceGetCount")
	}
	var failed *cudaError
	switch {
	case err == nil && n > 0:
		return nil
	case err == nil, errors.As(err, &failed) && failed.code == noDevice:
		return noGPU(version)
	}
	return fmt.Errorf("NVIDIA driver%s cannot start: %w", spaced(version), err)
}

func noGPU(version string) error {
	return fmt.Errorf("NVIDIA driver%s is there but finds no GPU that this process may use "+
		"(/dev/nvidia*)", spaced(version))
}

// Preload loads shared libraries by their paths, in the order given. What is loaded later and needs
// a library of that name then has it, wherever the loader would look. They stay loaded.
func Preload(paths []string) error {
	for _, path := range paths {
		if err := dl.New(path, dl.RTLD_NOW|dl.RTLD_LOCAL).Open(); err != nil {
			return fmt.Errorf("load library: %w", err) // dlopen names the path
		}
	}
	return nil
}
