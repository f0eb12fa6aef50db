// Package ortapi calls what ONNX Runtime has and its Go binding lacks.
package ortapi

// #cgo CFLAGS: -O2 -Wall
// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "calls.h"
import "C"

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
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

// Threads are those that ONNX Runtime starts for some sessions.
type Threads struct{ group unsafe.Pointer }

// NewThreads returns a group without threads. The caller closes it after the sessions.
func NewThreads() (*Threads, error) {
	g := C.group_new()
	if g == nil {
		return nil, errors.New("no memory for a group of threads")
	}
	return &Threads{g}, nil
}

// Close frees the group. t may be nil.
func (t *Threads) Close() {
	if t != nil {
		C.group_free(t.group)
	}
}

// Start has the threads of a session started as Open's thread would start them, in the group.
// Otherwise they have the priority and the processors of the thread that makes the session, for good.
func (t *Threads) Start(options *ort.SessionOptions) error {
	o, err := Pointer(options)
	if err != nil {
		return err
	}
	return failure("set how threads start", C.group_set(t.group, o))
}

// LeaveCaller has the threads run on other processors than the one that the calling thread is on, if
// there are others. It takes 0.1 us, and 0.6 for each thread if the caller has moved since the last
// call. Calls may be concurrent. Package isolate's Apart says what it is for.
func (t *Threads) LeaveCaller() { C.group_leave(t.group) }

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

// A CardTensor is a tensor in a card's memory.
type CardTensor struct{ value unsafe.Pointer }

// NewCardTensor returns a tensor of size bytes of the card's memory, which must outlive it.
func NewCardTensor(memory unsafe.Pointer, size int, shape []int64,
	kind ort.TensorElementDataType) (*CardTensor, error) {
	t := &CardTensor{}
	return t, failure("make a tensor on the card", C.tensor_on_card(memory, C.size_t(size),
		(*C.int64_t)(unsafe.SliceData(shape)), C.size_t(len(shape)), C.int(kind), &t.value))
}

// Destroy frees the tensor, not its memory.
func (t *CardTensor) Destroy() { C.value_release(t.value) }

// RunOnCard has a session that was made with a stream of the caller's run with inputs and outputs by
// their names. It gives the stream the work, and does not wait for it. The session's own graphs stay
// unused.
func RunOnCard(session *ort.DynamicAdvancedSession, inputs []string, in []*CardTensor,
	outputs []string, out []*CardTensor) error {
	inner, err := pointer(session, "s")
	if err != nil {
		return err
	}
	s, err := pointer((*ort.AdvancedSession)(inner), "ortSession")
	if err != nil {
		return err
	}
	names := make([]*C.char, 0, len(inputs)+len(outputs))
	defer func() {
		for _, name := range names {
			C.free(unsafe.Pointer(name))
		}
	}()
	values := make([]unsafe.Pointer, 0, cap(names))
	for _, name := range slices.Concat(inputs, outputs) {
		names = append(names, C.CString(name))
	}
	for _, t := range slices.Concat(in, out) {
		values = append(values, t.value)
	}
	n := len(inputs)
	return failure("run on the card", C.run_on_card(s, &names[0], &values[0], C.size_t(n), &names[n],
		C.size_t(len(outputs)), &values[n]))
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
