// Package ortapi calls what ONNX Runtime has and its Go binding lacks.
package ortapi

// #cgo CFLAGS: -O2 -Wall
// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "threads.h"
import "C"

import (
	"errors"
	"fmt"
	"reflect"
	"unsafe"

	ort "github.com/yalue/onnxruntime_go"
)

// Open finds ONNX Runtime in the library at path, which the process has loaded and initialized. It
// must be called once, before StartThreads, on a thread of the usual priority that may run on all
// processors of the process.
func Open(path string) error {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	if text := C.threads_open(name); text != nil {
		return fmt.Errorf("use the interface of %s: %s", path, C.GoString(text))
	}
	return nil
}

// StartThreads has the threads of a session started as Open's thread would start them. Otherwise
// they have the priority and the processors of the thread that makes the session, for good.
func StartThreads(options *ort.SessionOptions) error {
	o, err := Pointer(options)
	if err != nil {
		return err
	}
	if text := C.threads_set(o); text != nil {
		defer C.free(unsafe.Pointer(text))
		return fmt.Errorf("set how threads start: %s", C.GoString(text))
	}
	return nil
}

// Pointer returns the OrtSessionOptions, which the binding keeps to itself. It is valid until the
// options are destroyed.
func Pointer(options *ort.SessionOptions) (unsafe.Pointer, error) {
	field := reflect.ValueOf(options).Elem().FieldByName("o")
	if !field.IsValid() || field.Kind() != reflect.Pointer {
		return nil, errors.New("the binding's session options have no pointer o")
	}
	return field.UnsafePointer(), nil
}
