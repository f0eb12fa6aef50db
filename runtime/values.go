//go:build linux && cgo

package runtime

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"unsafe"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/muster-serve/muster/api/tensor"
)

// takeOutput sets t's shape and data to those of v, an output that ONNX Runtime allocated. The
// binding has already copied the data into Go memory, which t then shares.
func takeOutput(v ort.Value, t *tensor.Tensor) error {
	t.Shape = v.GetShape()
	switch v := v.(type) {
	case *ort.StringTensor:
		values, err := v.GetContents()
		if err != nil {
			return err
		}
		return appendStrings(t, values)
	case *ort.CustomDataTensor:
		t.Data = v.GetData()
	case *ort.Tensor[bool]:
		t.Data = bytesOf(v.GetData())
	case *ort.Tensor[uint8]:
		t.Data = v.GetData()
	case *ort.Tensor[uint16]:
		t.Data = bytesOf(v.GetData())
	case *ort.Tensor[uint32]:
		t.Data = bytesOf(v.GetData())
	case *ort.Tensor[uint64]:
		t.Data = bytesOf(v.GetData())
	case *ort.Tensor[int8]:
		t.Data = bytesOf(v.GetData())
	case *ort.Tensor[int16]:
		t.Data = bytesOf(v.GetData())
	case *ort.Tensor[int32]:
		t.Data = bytesOf(v.GetData())
	case *ort.Tensor[int64]:
		t.Data = bytesOf(v.GetData())
	case *ort.Tensor[float32]:
		t.Data = bytesOf(v.GetData())
	case *ort.Tensor[float64]:
		t.Data = bytesOf(v.GetData())
	default:
		return fmt.Errorf("is a %T, not a tensor", v)
	}
	return nil
}

// bytesOf returns the memory of values as bytes, without a copy.
func bytesOf[T tensor.Element](values []T) []byte {
	if len(values) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&values[0])),
		len(values)*int(unsafe.Sizeof(values[0])))
}

// newStrings makes ONNX Runtime's string tensor of an input of type BYTES. The caller destroys it.
func newStrings(in tensor.Tensor) (ort.Value, error) {
	n, err := tensor.Elements(in.Shape)
	if err != nil {
		return nil, err
	}
	values, err := splitStrings(in.Data, n)
	if err != nil {
		return nil, err
	}
	v, err := ort.NewStringTensor(ort.Shape(in.Shape))
	if err != nil {
		return nil, err
	}
	if err := v.SetContents(values); err != nil {
		v.Destroy()
		return nil, err
	}
	return v, nil
}

// splitStrings splits data of type BYTES into n elements. Each element is its length, as four
// little-endian bytes, and then its contents. Any other number of elements is an error.
func splitStrings(data []byte, n int) ([]string, error) {
	if n > len(data)/4 {
		return nil, fmt.Errorf("%d bytes are too few for %d elements of type BYTES", len(data), n)
	}
	values := make([]string, n)
	for i := range values {
		if len(data) < 4 {
			return nil, fmt.Errorf("data ends before element %d of %d", i, n)
		}
		size := binary.LittleEndian.Uint32(data)
		data = data[4:]
		if uint64(size) > uint64(len(data)) {
			return nil, fmt.Errorf("element %d has %d bytes, only %d are left", i, size, len(data))
		}
		values[i], data = string(data[:size]), data[size:]
		if strings.IndexByte(values[i], 0) >= 0 {
			return nil, fmt.Errorf(
				"element %d contains a zero byte, which ONNX Runtime's string tensors cannot hold",
				i)
		}
	}
	if len(data) > 0 {
		return nil, fmt.Errorf("%d bytes after the last of %d elements", len(data), n)
	}
	return values, nil
}

// appendStrings sets t's data to values in the form that splitStrings reads.
func appendStrings(t *tensor.Tensor, values []string) error {
	t.Data = nil
	for _, v := range values {
		if len(v) > math.MaxUint32 {
			return errors.New("string of more than 4 GiB")
		}
		t.Data = binary.LittleEndian.AppendUint32(t.Data, uint32(len(v)))
		t.Data = append(t.Data, v...)
	}
	return nil
}
