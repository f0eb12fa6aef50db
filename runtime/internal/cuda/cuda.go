// Package cuda does with a card what ONNX Runtime's provider leaves to its user: memory that both the
// card and the machine reach, CUDA graphs, which do the work of a whole run by one call, and scratch
// memory for cuBLAS. It calls the driver, in the context that ONNX Runtime uses.
package cuda

// #cgo CFLAGS: -O2 -Wall
// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "driver.h"
import "C"

import (
	"errors"
	"fmt"
	goruntime "runtime"
	"unsafe"
)

// An Error is a failed call of the driver.
type Error struct {
	Call string // what was being done
	Code int    // a CUresult
	Text string // the driver's
}

func (e *Error) Error() string {
	return fmt.Sprintf("CUDA failure %d: %s (%s)", e.Code, e.Text, e.Call)
}

func failure(call string, code C.int) error {
	if code == 0 {
		return nil
	}
	return &Error{call, int(code), C.GoString(C.cuda_text(code))}
}

// Open readies the card that CUDA shows this process, the first one. A call after one that succeeded
// does nothing. CUDA must have been initialized.
func Open() error {
	var missing *C.char
	code := C.cuda_open(&missing)
	if missing != nil {
		return fmt.Errorf("the NVIDIA driver lacks %s", C.GoString(missing))
	}
	return failure("use the card's context", code)
}

// A Buffer is memory of the machine and as much of the card's, between which it is copied. It is never
// memory of Go's.
type Buffer struct {
	// Host is the machine's, which the card reads and writes by itself.
	Host   []byte
	device unsafe.Pointer
}

// NewBuffer allocates size bytes of each, all zeros in the machine's. size is at least 1.
func NewBuffer(size int) (*Buffer, error) {
	var host, device unsafe.Pointer
	if err := failure("allocate memory", C.cuda_allocate(C.size_t(size), &host, &device)); err != nil {
		return nil, err
	}
	b := &Buffer{unsafe.Slice((*byte)(host), size), device}
	clear(b.Host)
	return b, nil
}

// Device is the address of the card's memory.
func (b *Buffer) Device() unsafe.Pointer { return b.device }

// Free gives the memory back; nothing may use it any more.
func (b *Buffer) Free() error {
	return failure("free memory", C.cuda_free(unsafe.Pointer(&b.Host[0]), b.device))
}

// A Stream is work for the card, which is done in order. Its methods may be called concurrently, but
// for those of a capture.
type Stream struct{ handle unsafe.Pointer }

// NewStream returns a stream, which does not wait for others.
func NewStream() (*Stream, error) {
	s := &Stream{}
	if err := failure("make a stream", C.cuda_stream(&s.handle)); err != nil {
		return nil, err
	}
	return s, nil
}

// Handle is the cudaStream_t.
func (s *Stream) Handle() unsafe.Pointer { return s.handle }

// Free ends the stream; its work must be done.
func (s *Stream) Free() error { return failure("free a stream", C.cuda_stream_free(s.handle)) }

// Wait blocks until all work is done.
func (s *Stream) Wait() error { return failure("wait for work", C.cuda_wait(s.handle)) }

// ToDevice has n bytes from byte at on copied from the machine's memory to the card's.
func (s *Stream) ToDevice(b *Buffer, at, n int) error {
	return failure("copy to the card", C.cuda_to_device(unsafe.Add(b.device, at),
		unsafe.Pointer(&b.Host[at:][0]), C.size_t(n), s.handle))
}

// ToHost has the first n bytes of the card's memory copied to the machine's.
func (s *Stream) ToHost(b *Buffer, n int) error {
	return failure("copy from the card",
		C.cuda_to_host(unsafe.Pointer(&b.Host[0]), b.device, C.size_t(n), s.handle))
}

// Capture returns the work that work gives the stream as a graph, without doing it. Nobody else may
// use the stream meanwhile.
func (s *Stream) Capture(work func() error) (*Graph, error) {
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	if err := failure("begin a graph", C.cuda_capture(s.handle)); err != nil {
		return nil, err
	}
	err := work()
	g := &Graph{}
	if code := C.cuda_captured(s.handle, &g.handle); code != 0 {
		return nil, errors.Join(err, failure("make a graph", code))
	}
	if err != nil {
		return nil, errors.Join(err, g.Free())
	}
	return g, nil
}

// A Graph is work that is done again and again.
type Graph struct{ handle unsafe.Pointer }

// Run does the work on a stream and blocks until it is done. Runs of one graph must not overlap.
func (g *Graph) Run(s *Stream) error {
	return failure("run a graph", C.cuda_launch(g.handle, s.handle))
}

// Free frees the graph.
func (g *Graph) Free() error { return failure("free a graph", C.cuda_graph_free(g.handle)) }
