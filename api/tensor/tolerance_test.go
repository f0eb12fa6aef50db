package tensor

import (
	"encoding/binary"
	"math"
	"testing"
)

func TestAgree(t *testing.T) {
	floats := func(values ...float64) (data []byte) {
		for _, v := range values {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(v)))
		}
		return data
	}
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		t    DataType
		a, b []byte
		of   Arithmetic
		want bool
	}{
		{FP32, floats(1, 100), floats(1.0009, 100), Kernels, true}, // 1e-5 of the largest
		{FP32, floats(1, 100), floats(1.0011, 100), Kernels, false},
		{FP32, floats(1, 100), floats(1.19, 100), Card, true},
		{FP32, floats(1, 100), floats(1.21, 100), Card, false},
		{FP32, floats(1, nan), floats(1, nan), Kernels, true},
		{FP32, floats(1, nan), floats(1, 1), Kernels, false},
		{FP32, floats(1, inf), floats(1, inf), Kernels, true},
		{FP32, floats(1, inf), floats(2, inf), Kernels, false},
		{FP32, floats(1, inf), floats(1, -inf), Kernels, false},
		{Int8, []byte{3, 255}, []byte{4, 0}, Kernels, true}, // -1 and 0
		{Int8, []byte{3, 255}, []byte{5, 255}, Kernels, false},
		{Uint8, []byte{3, 255}, []byte{3, 0}, Kernels, false},
		{Int64, []byte{1, 0, 0, 0, 0, 0, 0, 0}, []byte{2, 0, 0, 0, 0, 0, 0, 0}, Card, false},
		{FP16, []byte{0, 0x3c, 0, 0x3c}, []byte{4, 0x3c, 0, 0x3c}, Kernels, true}, // 1 and 1.0039
		{FP16, []byte{0, 0x3c, 0, 0x3c}, []byte{8, 0x3c, 0, 0x3c}, Kernels, false},
	} {
		n := int64(len(c.a) / c.t.Size())
		a := Tensor{DataType: c.t, Shape: []int64{n}, Data: c.a}
		b := Tensor{DataType: c.t, Shape: []int64{n}, Data: c.b}
		if got := Agree(a, b, c.of); got != c.want {
			t.Errorf("%s %v and %v of %v: %v, want %v", c.t, c.a, c.b, c.of, got, c.want)
		}
	}
	if Agree(Tensor{DataType: FP32, Shape: []int64{1}, Data: floats(1)},
		Tensor{DataType: FP32, Shape: []int64{1, 1}, Data: floats(1)}, Card) {
		t.Error("tensors of other shapes agree")
	}
}
