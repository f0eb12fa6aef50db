package tensor

import (
	"encoding/binary"
	"math"
	"slices"
)

// An Arithmetic is what computes the answers that are compared.
type Arithmetic int

// The arithmetics.
const (
	// Kernels are those of a run: they sum in another order for another number of rows.
	Kernels Arithmetic = iota
	// Card is a card's, whose products may be of TF32, and whose CUDA graphs sum in another order each
	// time.
	Card
)

// Tolerance is by how much two answers to the same may differ. share is relative to the output's
// largest value, step absolute; both are 0 of types that must be equal. All comparisons of answers
// go by it.
func Tolerance(t DataType, of Arithmetic) (share, step float64) {
	switch t {
	case FP16, BF16:
		return 5e-3, 0
	case FP32, FP64:
		if of == Card {
			return 2e-3, 0
		}
		return 1e-5, 0
	case Int8, Uint8: // a quantized number, rounded the other way
		return 0, 1
	}
	return 0, 0
}

// Agree reports whether two tensors have the same values, up to [Tolerance]. Values that are not
// numbers agree with each other.
func Agree(a, b Tensor, of Arithmetic) bool {
	if a.DataType != b.DataType || !slices.Equal(a.Shape, b.Shape) || len(a.Data) != len(b.Data) {
		return false
	}
	share, step := Tolerance(a.DataType, of)
	if share == 0 && step == 0 || slices.Equal(a.Data, b.Data) {
		return slices.Equal(a.Data, b.Data)
	}
	at, largest := valueOf(a.DataType), 0.
	n := len(a.Data) / a.DataType.Size()
	for i := range n {
		if x := math.Abs(at(b.Data, i)); !math.IsInf(x, 0) && !math.IsNaN(x) {
			largest = max(largest, x)
		}
	}
	for i := range n {
		x, y := at(a.Data, i), at(b.Data, i)
		if x != y && !(math.IsNaN(x) && math.IsNaN(y)) &&
			!(math.Abs(x-y) <= share*largest+step) {
			return false
		}
	}
	return true
}

// valueOf returns what reads an element of a type that has a [Tolerance].
func valueOf(t DataType) func(data []byte, i int) float64 {
	switch t {
	case FP16, BF16:
		return func(data []byte, i int) float64 {
			return OfHalf(t, binary.LittleEndian.Uint16(data[2*i:]))
		}
	case FP64:
		return func(data []byte, i int) float64 {
			return math.Float64frombits(binary.LittleEndian.Uint64(data[8*i:]))
		}
	case Int8:
		return func(data []byte, i int) float64 { return float64(int8(data[i])) }
	case Uint8:
		return func(data []byte, i int) float64 { return float64(data[i]) }
	}
	return func(data []byte, i int) float64 {
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:])))
	}
}
