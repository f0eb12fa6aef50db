package kernels

// #cgo CFLAGS: -O2 -Wall
// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "bags.h"
// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/muster-serve/muster/runtime/internal/ortapi"
)

// Open makes the operator for the ONNX Runtime library at path, which the process has loaded and
// initialized. It must be called once, before Register.
func Open(path string) error {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	if text := C.shim_open(name); text != nil {
		return fmt.Errorf("make operator %s: %s", operator, C.GoString(text))
	}
	return nil
}

// Register adds the operator to the options of a session.
func Register(options *ort.SessionOptions) error {
	o, err := ortapi.Pointer(options)
	if err != nil {
		return err
	}
	if text := C.shim_register(o); text != nil {
		defer C.free(unsafe.Pointer(text))
		return fmt.Errorf("register operator %s: %s", operator, C.GoString(text))
	}
	return nil
}

// Target returns the instruction set that sums of rows use on this processor.
func Target() string { return C.GoString(C.bags_target(0)) }

const fieldCount = C.SHIM_FIELDS

// fields are what the operator's attribute "bags" says of one table.
type fields struct {
	ids, split, size, reduce, table, offsets, weights int64
	drop, keep, last                                  bool
}

func fieldsOf(f []int64) fields {
	return fields{
		ids: f[C.SHIM_IDS], split: f[C.SHIM_SPLIT], size: f[C.SHIM_SIZE],
		reduce: f[C.SHIM_REDUCE], table: f[C.SHIM_TABLE],
		offsets: f[C.SHIM_OFFSETS], weights: f[C.SHIM_WEIGHTS],
		drop: f[C.SHIM_DROP] != 0, keep: f[C.SHIM_KEEP] != 0, last: f[C.SHIM_LAST] != 0,
	}
}
