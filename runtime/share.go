//go:build linux && cgo

package runtime

import (
	"errors"
	"fmt"
	"path/filepath"
	"unsafe"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/runtime/internal/ortapi"
)

// A sharedTensors is the tensors of external data that a session shares with an earlier session of
// the same model: tensors that the earlier one has in memory as they are in the file, such as
// embedding tables. Weights that ONNX Runtime has rearranged for its kernels are not among them. It
// must outlive the session, and the earlier session must outlive it. It is nil for the first
// session of a model.
type sharedTensors map[string]*ort.CustomDataTensor

// shareWith returns what a further session of the model at path can have in common with s.
func (s *session) shareWith(path string) (_ sharedTensors, err error) {
	common := sharedTensors{}
	if len(s.memory) == 0 {
		return common, nil
	}
	graph, err := onnx.ReadGraph(path)
	if err != nil {
		return nil, err
	}
	tensors, err := graph.Externals()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, common.Close())
		}
	}()
	dir := filepath.Dir(path)
	for _, t := range tensors {
		file, err := realPath(dir, t.External.Location)
		if err != nil {
			return nil, err
		}
		elements, err := tensor.Elements(t.Shape)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		data := s.heldBytes(file, t.External.Offset, int64(elements*t.DataType.Size()))
		if data == nil || len(t.Shape) == 0 { // the binding makes no scalars
			continue
		}
		if common[t.Name], err = ort.NewCustomDataTensor(t.Shape, data,
			elementTypes[t.DataType]); err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
	}
	return common, nil
}

// heldBytes returns length bytes of a file from an offset on, if the session has all of them in
// memory; else nil. They are valid until the session is closed.
func (s *session) heldBytes(file string, offset, length int64) []byte {
	for _, m := range s.memory {
		from, size := int64(m.offset), int64(m.to-m.from)
		if length > 0 && m.path == file && offset >= from && length <= size &&
			offset-from <= size-length {
			// Not memory of Go's: ONNX Runtime mapped it, or detach put it there.
			at := unsafe.Add(unsafe.Pointer(nil), m.from+uintptr(offset-from))
			return unsafe.Slice((*byte)(at), length)
		}
	}
	return nil
}

// add has a session with the options use the tensors.
func (c sharedTensors) add(options *ort.SessionOptions) error {
	var errs []error
	for name, value := range c {
		errs = append(errs, ortapi.ShareInitializer(options, name, value))
	}
	return errors.Join(errs...)
}

// Close frees what stands for the tensors, not their memory.
func (c sharedTensors) Close() error {
	var errs []error
	for _, value := range c {
		errs = append(errs, value.Destroy())
	}
	clear(c)
	return errors.Join(errs...)
}
