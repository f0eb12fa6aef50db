package tensor

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// texts is the data of BYTES elements.
func texts(elements ...string) (data []byte) {
	for _, s := range elements {
		data = append(binary.LittleEndian.AppendUint32(data, uint32(len(s))), s...)
	}
	return data
}

func TestSplit(t *testing.T) {
	numbers := Tensor{
		Name: "n", DataType: Int16, Shape: []int64{3, 2},
		Data: []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
	}
	words := Tensor{
		Name: "w", DataType: Bytes, Shape: []int64{3, 2},
		Data: texts("a", "bc", "", "", "def", "g"),
	}
	for _, tt := range []struct {
		t    Tensor
		rows []int
		want [][]byte
	}{
		{numbers, []int{1, 2}, [][]byte{{0, 1, 2, 3}, {4, 5, 6, 7, 8, 9, 10, 11}}},
		{numbers, []int{3}, [][]byte{numbers.Data}},
		{words, []int{1, 1, 1}, [][]byte{texts("a", "bc"), texts("", ""), texts("def", "g")}},
		{words, []int{2, 1}, [][]byte{texts("a", "bc", "", ""), texts("def", "g")}},
		{
			Tensor{Name: "s", DataType: Bool, Shape: []int64{2}, Data: []byte{0, 1}}, []int{1, 1},
			[][]byte{{0}, {1}},
		},
		{
			Tensor{Name: "e", DataType: Int16, Shape: []int64{2, 0}}, []int{1, 1},
			[][]byte{{}, {}},
		},
	} {
		parts, err := Split(tt.t, tt.rows)
		if err != nil {
			t.Errorf("%v: %v", tt.t, err)
			continue
		}
		at := 0
		for i, part := range parts {
			shape := append([]int64{int64(tt.rows[i])}, tt.t.Shape[1:]...)
			if part.Name != tt.t.Name || part.DataType != tt.t.DataType ||
				!slices.Equal(part.Shape, shape) || !bytes.Equal(part.Data, tt.want[i]) ||
				cap(part.Data) != len(part.Data) {
				t.Errorf("%v of %v: part %d is %v", tt.rows, tt.t, i, part)
			}
			if len(part.Data) > 0 && &part.Data[0] != &tt.t.Data[at] {
				t.Errorf("%v of %v: part %d is a copy", tt.rows, tt.t, i)
			}
			at += len(part.Data)
		}
	}
}

func TestSplitWrong(t *testing.T) {
	for _, tt := range []struct {
		t    Tensor
		rows []int
		want string
	}{
		{Tensor{DataType: Int8, Shape: []int64{3}, Data: make([]byte, 3)}, []int{1, 1},
			"shape [3], want a first dimension of 2 for parts of [1 1] rows"},
		{Tensor{DataType: Int8}, []int{1}, "shape [], want a first dimension of 1"},
		{Tensor{DataType: Int8, Shape: []int64{0}}, nil, "want a first dimension of 0"},
		{Tensor{DataType: Int8, Shape: []int64{1}, Data: make([]byte, 1)}, []int{2, -1},
			"a part of -1 rows"},
		{Tensor{DataType: Int8, Shape: []int64{2}, Data: make([]byte, 1)}, []int{1, 1},
			"1 bytes, too few for shape [2] of INT8"},
		{Tensor{DataType: Int8, Shape: []int64{2}, Data: make([]byte, 3)}, []int{1, 1},
			"1 bytes after the last element"},
		{Tensor{DataType: "INT9", Shape: []int64{1}}, []int{1}, `unknown type "INT9"`},
		{Tensor{DataType: Int8, Shape: []int64{1, -1}}, []int{1}, "negative dimension"},
		{Tensor{DataType: Bytes, Shape: []int64{2}, Data: texts("a")}, []int{1, 1},
			"the elements end beyond its 5 bytes"},
		{Tensor{DataType: Bytes, Shape: []int64{2}, Data: []byte{255, 255, 255, 255}}, []int{1, 1},
			"the elements end beyond its 4 bytes"},
	} {
		tt.t.Name = "x"
		parts, err := Split(tt.t, tt.rows)
		if err == nil || !strings.Contains(err.Error(), tt.want) ||
			!strings.Contains(err.Error(), `tensor "x"`) {
			t.Errorf("%v of %v: got %v, %v, want %q", tt.rows, tt.t, parts, err, tt.want)
		}
	}
}

func TestJoin(t *testing.T) {
	a := Tensor{"x", Bool, []int64{1, 2}, []byte{0, 1}}
	b := Tensor{"x", Bool, []int64{2, 2}, []byte{1, 1, 0, 0}}
	got, err := Join([]Tensor{a, b, a})
	want := Tensor{"x", Bool, []int64{4, 2}, []byte{0, 1, 1, 1, 0, 0, 0, 1}}
	if err != nil || !reflect.DeepEqual(got, want) || cap(got.Data) != len(got.Data) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	parts := []Tensor{a, b}
	// The data and the shape.
	if n := testing.AllocsPerRun(100, func() { _, _ = Join(parts) }); n > 2 {
		t.Errorf("%v allocations, want 2", n)
	}
	for _, other := range []Tensor{
		{"x", Int8, []int64{1, 2}, []byte{0, 1}}, {"x", Bool, []int64{1, 1}, []byte{0}},
		{"x", Bool, []int64{1}, []byte{0}}, {"x", Bool, nil, []byte{0}},
	} {
		if got, err := Join([]Tensor{a, other}); err == nil {
			t.Errorf("%v and %v: got %v, want an error", a, other, got)
		}
	}
	if got, err := Join([]Tensor{{"x", Bool, nil, []byte{0}}}); err == nil {
		t.Errorf("of no rows: got %v, want an error", got)
	}
}

// FuzzSplit splits whatever comes as a tensor. What is split is the tensor again when joined.
func FuzzSplit(f *testing.F) {
	f.Add(string(Bytes), int64(3), int64(2), uint8(1), uint8(2), texts("a", "bc", "", "", "d", "e"))
	f.Add(string(Bytes), int64(2), int64(1), uint8(1), uint8(1), []byte{255, 255, 255, 255, 0})
	f.Add(string(FP32), int64(2), int64(1), uint8(1), uint8(1), make([]byte, 8))
	f.Add(string(Int64), int64(1<<62), int64(4), uint8(1), uint8(1), make([]byte, 8))
	f.Fuzz(func(t *testing.T, typ string, rows, width int64, first, second uint8, data []byte) {
		whole := Tensor{Name: "x", DataType: DataType(typ), Shape: []int64{rows, width}, Data: data}
		numbers := []int{int(first), int(second)}
		if rest := rows - int64(first) - int64(second); rest > 0 {
			numbers = append(numbers, int(rest))
		}
		parts, err := Split(whole, numbers)
		if err != nil {
			return
		}
		again, err := Join(parts)
		if err != nil || !reflect.DeepEqual(again.Shape, whole.Shape) ||
			!bytes.Equal(again.Data, whole.Data) {
			t.Errorf("%v, joined again: %v, %v", whole, again, err)
		}
		for i, part := range parts {
			if part.Shape[0] != int64(numbers[i]) {
				t.Errorf("part %d is %v, want %d rows", i, part, numbers[i])
			}
			if _, err := Split(part, []int{numbers[i]}); err != nil { // its data fits its shape
				t.Errorf("part %d is %v: %v", i, part, err)
			}
		}
	})
}
