package ortapi

// #include <stdlib.h>
// #include "calls.h"
import "C"

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"unsafe"

	ort "github.com/yalue/onnxruntime_go"
)

// NewScalar makes a tensor without dimensions that shares data, which holds its one element. The
// binding makes none.
func NewScalar(data []byte, kind ort.TensorElementDataType) (*ort.CustomDataTensor, error) {
	t, err := ort.NewCustomDataTensor(ort.NewShape(1), data, kind)
	if err != nil {
		return nil, err
	}
	var value unsafe.Pointer
	err = failure("make a scalar", C.scalar_new(unsafe.Pointer(&data[0]), C.size_t(len(data)),
		C.int(kind), &value))
	if err == nil {
		err = replaceValue(t, value)
	}
	if err != nil {
		return nil, errors.Join(err, t.Destroy())
	}
	return t, nil
}

// NewStringScalar makes a tensor of strings without dimensions. The text must have no zero byte.
func NewStringScalar(text string) (*ort.StringTensor, error) {
	t, err := ort.NewStringTensor(ort.NewShape(1))
	if err != nil {
		return nil, err
	}
	c := C.CString(text)
	defer C.free(unsafe.Pointer(c))
	var value unsafe.Pointer
	err = failure("make a scalar", C.string_scalar_new(c, &value))
	if err == nil {
		err = replaceValue(t, value)
	}
	if err != nil {
		return nil, errors.Join(err, t.Destroy())
	}
	return t, nil
}

// replaceValue has a tensor of the binding own value in place of the OrtValue that it has.
func replaceValue(tensor any, value unsafe.Pointer) error {
	before, err := pointer(tensor, "ortValue")
	if err != nil {
		C.value_release(value)
		return err
	}
	C.value_release(before)
	field := reflect.ValueOf(tensor).Elem().FieldByName("ortValue")
	*(*unsafe.Pointer)(field.Addr().UnsafePointer()) = value
	return nil
}

// An Output is a tensor that ONNX Runtime has allocated, in memory of Go's.
type Output struct {
	Shape []int64
	// Data are the elements, little-endian; of strings each is its length, in four bytes, and then
	// its bytes.
	Data []byte
}

// Run runs a session with inputs and outputs in the order of its names. For an output that is nil
// it returns what ONNX Runtime allocates, whatever its type and its dimensions: the binding knows
// neither 16-bit floats nor scalars. sizes are the bytes of an element by output, 0 for strings.
// options may be nil.
func Run(session *ort.DynamicAdvancedSession, options *ort.RunOptions, in, out []ort.Value,
	sizes []int) ([]Output, error) {
	inner, err := pointer(session, "s")
	if err != nil {
		return nil, err
	}
	s := (*ort.AdvancedSession)(inner)
	run, err := pointer(s, "ortSession")
	if err != nil {
		return nil, err
	}
	var with unsafe.Pointer
	if options != nil {
		if with, err = pointer(options, "o"); err != nil {
			return nil, err
		}
	}
	values := make([]unsafe.Pointer, len(in)+len(out))
	for i, v := range in {
		if values[i], err = pointer(v.GetInternals(), "ortValue"); err != nil {
			return nil, err
		}
	}
	made := values[len(in):]
	for i, v := range out {
		if v != nil {
			if made[i], err = pointer(v.GetInternals(), "ortValue"); err != nil {
				return nil, err
			}
		}
	}
	names := func(field string) (**C.char, error) {
		f := reflect.ValueOf(s).Elem().FieldByName(field)
		if !f.IsValid() || f.Kind() != reflect.Slice {
			return nil, fmt.Errorf("the binding's session has no list %s", field)
		}
		return (**C.char)(f.UnsafePointer()), nil
	}
	inputs, err := names("inputNames")
	if err != nil {
		return nil, err
	}
	outputs, err := names("outputNames")
	if err != nil {
		return nil, err
	}
	text := C.session_run(run, with, inputs, &values[0], C.size_t(len(in)), outputs,
		C.size_t(len(out)), &made[0])
	if text != nil {
		defer C.free(unsafe.Pointer(text))
		return nil, errors.New(C.GoString(text))
	}
	defer func() {
		for i, v := range out {
			if v == nil {
				C.value_release(made[i])
			}
		}
	}()
	results := make([]Output, len(out))
	for i, v := range out {
		if v == nil {
			if results[i], err = copyValue(made[i], sizes[i]); err != nil {
				return nil, fmt.Errorf("output %d: %w", i, err)
			}
		}
	}
	return results, nil
}

// maxRank is the most dimensions that an output may have, as calls.h says.
const maxRank = C.MAX_RANK

// copyValue copies a tensor with elements of size bytes; 0: strings.
func copyValue(value unsafe.Pointer, size int) (Output, error) {
	var shape [maxRank]C.int64_t
	var rank, count C.size_t
	var data unsafe.Pointer
	if err := failure("read its shape", C.tensor_shape(value, &shape[0], &rank,
		&count)); err != nil {
		return Output{}, err
	}
	o := Output{Shape: make([]int64, rank)}
	for i := range o.Shape {
		o.Shape[i] = int64(shape[i])
	}
	if count == 0 {
		return o, nil
	}
	if size == 0 {
		var err error
		o.Data, err = copyStrings(value, count)
		return o, err
	}
	if err := failure("read its elements", C.tensor_data(value, &data)); err != nil {
		return Output{}, err
	}
	o.Data = make([]byte, int(count)*size)
	copy(o.Data, unsafe.Slice((*byte)(data), len(o.Data)))
	return o, nil
}

func copyStrings(value unsafe.Pointer, count C.size_t) ([]byte, error) {
	var length C.size_t
	if err := failure("read its strings", C.strings_length(value, &length)); err != nil {
		return nil, err
	}
	text, begins := make([]byte, length+1), make([]C.size_t, count+1)
	if err := failure("read its strings", C.strings_copy(value, unsafe.Pointer(&text[0]), length,
		&begins[0], count)); err != nil {
		return nil, err
	}
	begins[count] = length
	data := make([]byte, 0, int(length)+4*int(count))
	for i := range count {
		s := text[begins[i]:begins[i+1]]
		if uint64(len(s)) > math.MaxUint32 {
			return nil, errors.New("a string of more than 4 GiB")
		}
		data = append(binary.LittleEndian.AppendUint32(data, uint32(len(s))), s...)
	}
	return data, nil
}
