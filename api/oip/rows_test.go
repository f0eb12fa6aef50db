package oip

import (
	"slices"
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/tensor"
)

// TestSplitQuery: the parts of a query have its inputs' rows in order and all else of it, and keep
// the inputs' memory until the last is released.
func TestSplitQuery(t *testing.T) {
	binary := true
	freed := 0
	q := &Request{
		Model: "m", Version: "2", ID: "mine", Parameters: map[string]any{"a": true},
		Inputs: []tensor.Tensor{
			{Name: "a", DataType: tensor.Int8, Shape: []int64{3, 2}, Data: []byte{
				0, 1, 2, 3, 4, 5,
			}},
			{Name: "b", DataType: tensor.Bool, Shape: []int64{3}, Data: []byte{0, 1, 1}},
		},
		Outputs: []RequestedOutput{{Name: "out", Binary: &binary}}, BinaryOutputs: true,
	}
	q.OnRelease(func() { freed++ })
	parts, err := q.Split([]int{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][][]byte{{{0, 1}, {0}}, {{2, 3, 4, 5}, {1, 1}}} {
		p := parts[i]
		if p.Model != q.Model || p.Version != q.Version || p.ID != q.ID || !p.BinaryOutputs ||
			len(p.Parameters) != 1 || !slices.Equal(p.Outputs, q.Outputs) || len(p.Inputs) != 2 ||
			!slices.Equal(p.Inputs[0].Data, want[0]) || !slices.Equal(p.Inputs[1].Data, want[1]) {
			t.Errorf("part %d is %+v", i, p)
		}
		if err := p.Check(); err != nil {
			t.Errorf("part %d: %v", i, err)
		}
	}
	q.Release()
	parts[1].Release()
	if freed != 0 {
		t.Error("the inputs' memory is freed, and a part still has it")
	}
	if parts[0].Release(); freed != 1 {
		t.Errorf("the inputs' memory was freed %d times, want once", freed)
	}
	q.Inputs[1].Shape = []int64{1, 3}
	if _, err := q.Split([]int{1, 2}); err == nil || !strings.Contains(err.Error(), `"b"`) {
		t.Errorf("an input with one row: got %v, want an error that names it", err)
	}
}

// TestJoinAnswers: the answer has the outputs' rows in order, and all else of the first part.
func TestJoinAnswers(t *testing.T) {
	answer := func(rows int64, data ...byte) *Response {
		return &Response{
			Model: "m", Version: "2", ID: "mine", Parameters: map[string]any{"a": true},
			Outputs: []tensor.Tensor{
				{Name: "a", DataType: tensor.Int8, Shape: []int64{rows, 1}, Data: data},
				{Name: "b", DataType: tensor.Int8, Shape: []int64{rows}, Data: data},
			},
		}
	}
	parts := []*Response{answer(1, 7), answer(2, 8, 9)}
	got, err := Join(parts, []int{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	if got.Model != "m" || got.Version != "2" || got.ID != "mine" || len(got.Parameters) != 1 ||
		!slices.Equal(got.Outputs[0].Shape, []int64{3, 1}) ||
		!slices.Equal(got.Outputs[1].Shape, []int64{3}) ||
		!slices.Equal(got.Outputs[0].Data, []byte{7, 8, 9}) {
		t.Errorf("got %+v", got)
	}
	parts[1].Emulated = true
	if got, err = Join(parts, []int{1, 2}); err != nil || !got.Emulated {
		t.Errorf("no model has run for a part: got %+v, %v, want that it says so", got, err)
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = Join(parts, []int{1, 2}) }); n > 7 {
		t.Errorf("%v allocations, want 7: two for each output", n)
	}
}
