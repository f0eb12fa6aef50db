package tensor

import (
	"fmt"
	"math"
	"math/bits"
	"unsafe"
)

// A DataType is an element type, by its name in the Open Inference Protocol.
type DataType string

// The protocol's element types.
const (
	Bool   DataType = "BOOL"
	Uint8  DataType = "UINT8"
	Uint16 DataType = "UINT16"
	Uint32 DataType = "UINT32"
	Uint64 DataType = "UINT64"
	Int8   DataType = "INT8"
	Int16  DataType = "INT16"
	Int32  DataType = "INT32"
	Int64  DataType = "INT64"
	FP16   DataType = "FP16"
	BF16   DataType = "BF16"
	FP32   DataType = "FP32"
	FP64   DataType = "FP64"
	Bytes  DataType = "BYTES"
)

// Size returns the size of one element in bytes; 0 for [Bytes], whose elements vary in length, and
// for names that the protocol does not have.
func (d DataType) Size() int {
	switch d {
	case Bool, Uint8, Int8:
		return 1
	case Uint16, Int16, FP16, BF16:
		return 2
	case Uint32, Int32, FP32:
		return 4
	case Uint64, Int64, FP64:
		return 8
	}
	return 0
}

// DataTypes are the types of the protocol.
func DataTypes() []DataType {
	return []DataType{
		Bool, Uint8, Uint16, Uint32, Uint64, Int8, Int16, Int32, Int64, FP16, BF16, FP32, FP64, Bytes,
	}
}

// Valid reports whether d is a type of the protocol.
func (d DataType) Valid() bool { return d == Bytes || d.Size() > 0 }

// Limits of a query and of an answer: a list takes more memory decoded than on the wire. Widest are
// models with an input for each feature.
const (
	MaxCount = 1 << 14 // inputs, or outputs
	MaxRank  = 64      // dimensions
)

// A Tensor is an input or an output of one query. The code that makes a Tensor owns Data, and must
// document how long it stays valid.
type Tensor struct {
	Name     string
	DataType DataType
	// Shape has the batch size first. Every dimension is >= 0.
	Shape []int64
	// Data holds the elements in row-major order, little-endian. For
	// [Bytes] each element is its length (4 bytes, little-endian) and then
	// its bytes.
	Data []byte
}

// Elements returns the product of the dimensions of shape, 1 for a shape without dimensions. A
// negative dimension, or a product larger than an int, is an error.
func Elements(shape []int64) (int, error) {
	n := uint64(1)
	for _, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("shape %v has a negative dimension", shape)
		}
		hi, lo := bits.Mul64(n, uint64(d))
		if hi != 0 || lo > math.MaxInt {
			return 0, fmt.Errorf("shape %v has too many elements", shape)
		}
		n = lo
	}
	return int(n), nil
}

// An Element is a Go type that a tensor's data can be viewed as.
type Element interface {
	bool | uint8 | uint16 | uint32 | uint64 | int8 | int16 | int32 | int64 | float32 | float64
}

// TypeOf returns the protocol's type for T. The 16-bit floats have no Go type.
func TypeOf[T Element]() DataType {
	switch any(*new(T)).(type) {
	case bool:
		return Bool
	case uint8:
		return Uint8
	case uint16:
		return Uint16
	case uint32:
		return Uint32
	case uint64:
		return Uint64
	case int8:
		return Int8
	case int16:
		return Int16
	case int32:
		return Int32
	case int64:
		return Int64
	case float32:
		return FP32
	}
	return FP64
}

// Of returns a tensor that shares the memory of values: the caller must not change values while the
// tensor is in use. The product of shape must be len(values).
func Of[T Element](name string, values []T, shape ...int64) (Tensor, error) {
	n, err := Elements(shape)
	if err != nil {
		return Tensor{}, fmt.Errorf("tensor %q: %w", name, err)
	}
	if n != len(values) {
		return Tensor{}, fmt.Errorf("tensor %q: shape %v has %d elements, got %d values", name,
			shape, n, len(values))
	}
	t := Tensor{Name: name, DataType: TypeOf[T](), Shape: shape}
	if n > 0 {
		t.Data = unsafe.Slice((*byte)(unsafe.Pointer(&values[0])), n*t.DataType.Size())
	}
	return t, nil
}

// Values returns the tensor's data as a slice of T that shares its memory, and is valid for as long
// as t.Data. T must be the Go type of t.DataType, and the data aligned for it.
func Values[T Element](t Tensor) ([]T, error) {
	want := TypeOf[T]()
	if t.DataType != want {
		return nil, fmt.Errorf("tensor %q: elements are %s, not %s", t.Name, t.DataType, want)
	}
	size := want.Size()
	if len(t.Data)%size != 0 {
		return nil, fmt.Errorf("tensor %q: %d bytes are no whole number of %s elements", t.Name,
			len(t.Data), want)
	}
	if len(t.Data) == 0 {
		return nil, nil
	}
	p := unsafe.Pointer(&t.Data[0])
	if uintptr(p)%uintptr(size) != 0 {
		return nil, fmt.Errorf("tensor %q: data is not aligned for %s", t.Name, want)
	}
	return unsafe.Slice((*T)(p), len(t.Data)/size), nil
}
