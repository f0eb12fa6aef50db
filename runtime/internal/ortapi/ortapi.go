// Package ortapi calls what ONNX Runtime has and its Go binding lacks.
package ortapi

// #cgo CFLAGS: -O2 -Wall
// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "calls.h"
import "C"

import (
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
	return failure("set how threads start", C.threads_set(o))
}

// ShareInitializer has a session use value in place of its model's initializer of that name. The
// value must outlive the session.
func ShareInitializer(options *ort.SessionOptions, name string,
	value *ort.CustomDataTensor) error {
	o, err := Pointer(options)
	if err != nil {
		return err
	}
	v, err := pointer(value, "ortValue")
	if err != nil {
		return err
	}
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	return failure("share initializer "+name, C.initializer_set(o, n, v))
}

// failure returns the error of a call, whose text it frees; nil if there is none.
func failure(doing string, text *C.char) error {
	if text == nil {
		return nil
	}
	defer C.free(unsafe.Pointer(text))
	return fmt.Errorf("%s: %s", doing, C.GoString(text))
}

// Pointer returns the OrtSessionOptions, which the binding keeps to itself. It is valid until the
// options are destroyed.
func Pointer(options *ort.SessionOptions) (unsafe.Pointer, error) { return pointer(options, "o") }

// pointer returns the pointer that a struct of the binding has in a field.
func pointer(of any, name string) (unsafe.Pointer, error) {
	field := reflect.ValueOf(of).Elem().FieldByName(name)
	if !field.IsValid() || field.Kind() != reflect.Pointer {
		return nil, fmt.Errorf("the binding's %T has no pointer %s", of, name)
	}
	return field.UnsafePointer(), nil
}
