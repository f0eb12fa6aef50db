package roles

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/muster-serve/muster/api/tensor"
)

// Tolerance is by how much two answers to the same may differ, as a share of the output's largest
// value: kernels sum in another order for another number of rows.
func Tolerance(t tensor.DataType) float64 {
	switch t {
	case tensor.FP16, tensor.BF16:
		return 5e-3
	case tensor.FP32, tensor.FP64:
		return 1e-5
	}
	return 0
}

// Agree reports whether two tensors have the same values, up to [Tolerance] of the largest.
func Agree(a, b tensor.Tensor) bool {
	if a.DataType != b.DataType || !slices.Equal(a.Shape, b.Shape) || len(a.Data) != len(b.Data) {
		return false
	}
	tolerance := Tolerance(a.DataType)
	if tolerance == 0 {
		return slices.Equal(a.Data, b.Data)
	}
	at, largest := valueOf(a.DataType), 0.
	n := len(a.Data) / a.DataType.Size()
	for i := range n {
		if x := math.Abs(at(a.Data, i)); !math.IsInf(x, 0) && !math.IsNaN(x) {
			largest = max(largest, x)
		}
	}
	for i := range n {
		x, y := at(a.Data, i), at(b.Data, i)
		if x != y && !(math.IsNaN(x) && math.IsNaN(y)) && !(math.Abs(x-y) <= tolerance*largest) {
			return false
		}
	}
	return true
}

// valueOf returns what reads an element of a floating-point type.
func valueOf(t tensor.DataType) func(data []byte, i int) float64 {
	switch t {
	case tensor.FP16, tensor.BF16:
		return func(data []byte, i int) float64 {
			return tensor.OfHalf(t, binary.LittleEndian.Uint16(data[2*i:]))
		}
	case tensor.FP64:
		return func(data []byte, i int) float64 {
			return math.Float64frombits(binary.LittleEndian.Uint64(data[8*i:]))
		}
	}
	return func(data []byte, i int) float64 {
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:])))
	}
}

// Answer brings the outputs of a query's run into the form of an answer: those of role Row have as
// many rows as the query, and those of role User one. The run may have had a row where the query
// has none, and the user once for each row, whose outputs then must agree. outputs is changed. The
// error names the output.
func (r *Roles) Answer(outputs []tensor.Tensor, size QuerySize) error {
	if r.SizeOf != "" && r.RoleOfInput(r.SizeOf) != Row {
		return nil
	}
	for i := range outputs {
		t := &outputs[i]
		role := r.RoleOfOutput(t.Name)
		switch {
		case role == Query:
		case len(t.Shape) == 0:
			return fmt.Errorf("output %q is a scalar, its role is %s", t.Name, role)
		case role == Row && size.Rows == 0:
			t.Shape = slices.Clone(t.Shape)
			t.Shape[0], t.Data = 0, nil
		case role == User && t.Shape[0] > 1:
			each := make([]int, t.Shape[0])
			for k := range each {
				each[k] = 1
			}
			users, err := tensor.Split(*t, each)
			if err != nil {
				return err
			}
			if *t, err = SameOf(users); err != nil {
				return err
			}
		}
	}
	return nil
}

// SameOf returns the first of the answers to a user for several parts, or rows, of a query. It is
// an error that names the output if they do not agree.
func SameOf(parts []tensor.Tensor) (tensor.Tensor, error) {
	for k := 1; k < len(parts); k++ {
		if !Agree(parts[0], parts[k]) {
			return tensor.Tensor{},
				fmt.Errorf("output %q is of the user, but differs between the rows of "+
					"a query: its role is not user, or the query has several users", parts[0].Name)
		}
	}
	return parts[0], nil
}
