//go:build linux && cgo

package runtime

import (
	"encoding/binary"
	"fmt"
	"strings"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/runtime/internal/ortapi"
)

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
	if len(in.Shape) == 0 {
		v, err := ortapi.NewStringScalar(values[0])
		if err != nil {
			return nil, err
		}
		return v, nil
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
