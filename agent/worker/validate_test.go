package worker

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/zoo"
)

// largest is the largest query of a small model of the zoo, all of it zero.
func largest(tb testing.TB, model string) (*models.Version, *oip.Request) {
	tb.Helper()
	dir := tb.TempDir()
	if _, err := zoo.Generate(tb.Context(), dir, model, zoo.Options{Scale: zoo.Small}); err != nil {
		tb.Fatal(err)
	}
	v, err := models.ReadVersion(dir, model, 1)
	if err != nil {
		tb.Fatal(err)
	}
	req := &oip.Request{Model: model}
	for _, p := range v.Inputs {
		in := tensor.Tensor{
			Name: p.Name, DataType: p.DataType,
			Shape: append([]int64{int64(v.Config.LargestBatchSize)}, p.Shape[1:]...),
		}
		n, err := tensor.Elements(in.Shape)
		if err != nil {
			tb.Fatal(err)
		}
		in.Data = make([]byte, n*p.DataType.Size())
		req.Inputs = append(req.Inputs, in)
	}
	return v, req
}

// BenchmarkValidate checks the largest query of a model: 3.8 million ids of RM2.
func BenchmarkValidate(b *testing.B) {
	for _, model := range []string{"ncf", "rm2", "wnd"} {
		v, req := largest(b, model)
		b.Run(model, func(b *testing.B) {
			b.SetBytes(req.Bytes())
			for b.Loop() {
				if _, err := validate(v, req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestValidateAllocations: to check a query takes the room for its inputs, and no more
// the larger it is.
func TestValidateAllocations(t *testing.T) {
	v, req := largest(t, "ncf")
	if n := testing.AllocsPerRun(100, func() {
		if _, err := validate(v, req); err != nil {
			t.Fatal(err)
		}
	}); n > 2 {
		t.Errorf("%v allocations, want at most 2", n)
	}
}

// TestZeroByte: ONNX Runtime's strings end at a zero byte, so a query with one is refused as
// invalid, by an emulated agent too.
func TestZeroByte(t *testing.T) {
	v := &models.Version{}
	v.Config.LargestBatchSize = 10
	v.Inputs = []models.TensorSpec{{Name: "x", DataType: tensor.Bytes,
		Shape: []int64{models.Dynamic}}}
	req := &oip.Request{Inputs: []tensor.Tensor{{
		Name: "x", DataType: tensor.Bytes, Shape: []int64{2},
		Data: []byte("\x01\x00\x00\x00a\x03\x00\x00\x00b\x00c"),
	}}}
	_, err := validate(v, req)
	want :=
		`input "x": element 1, "b\x00c", has a zero byte, which ONNX Runtime's strings cannot hold`
	if !errors.Is(err, outcome.ErrInvalid) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want an invalid query: %s", err, want)
	}
}

// TestIDs: ids are within the bounds of the configuration, or of the model's tables, which ids
// count from the end too.
func TestIDs(t *testing.T) {
	const n = models.Dynamic
	for _, tt := range []struct {
		port models.TensorSpec
		ids  []int64 // of one item
		want string
	}{
		{models.TensorSpec{Shape: []int64{n, 2}, InferredBounds: []int64{5}}, []int64{-5, 4}, ""},
		{models.TensorSpec{Shape: []int64{n, 2}, InferredBounds: []int64{5}}, []int64{4, 5},
			"id 5 at position [1 1], want -5 to 4"},
		{models.TensorSpec{Shape: []int64{n, 2}, InferredBounds: []int64{5}}, []int64{-6, 0},
			"id -6 at position [1 0], want -5 to 4"},
		{models.TensorSpec{Shape: []int64{n, 2}, InferredBounds: []int64{5}},
			[]int64{math.MinInt64, 0},
			"id -9223372036854775808 at position [1 0], want -5 to 4"},
		{models.TensorSpec{Shape: []int64{n, 3}, InferredBounds: []int64{5, 0, 7}},
			[]int64{4, math.MinInt64, -7}, ""},
		{models.TensorSpec{Shape: []int64{n, 3}, InferredBounds: []int64{5, 0, 7}},
			[]int64{4, math.MaxInt64, 6}, ""},
		{models.TensorSpec{Shape: []int64{n, 3}, InferredBounds: []int64{5, 0, 7}}, []int64{4, -1,
			7},
			"id 7 at position [1 2], want -7 to 6"},
		{models.TensorSpec{Shape: []int64{n, 2}, IDBounds: []int64{5}}, []int64{0, -1},
			"id -1 at position [1 1], want 0 to 4"},
		{models.TensorSpec{Shape: []int64{n, 2}, IDBounds: []int64{5, 9},
			InferredBounds: []int64{7}},
			[]int64{4, 7}, "id 7 at position [1 1], want 0 to 6"}, // of two models of an ensemble
		{models.TensorSpec{Shape: []int64{n, 2}, IDBounds: []int64{5},
			InferredBounds: []int64{1 << 62}},
			[]int64{4, math.MaxInt64}, "id 9223372036854775807 at position [1 1], want 0 to 4"},
		{models.TensorSpec{Shape: []int64{n, 2}, InferredBounds: []int64{1 << 62}},
			[]int64{math.MinInt64, math.MaxInt64},
			"want -4611686018427387904 to 4611686018427387903"},
	} {
		tt.port.Name, tt.port.DataType = "ids", tensor.Int64
		v := &models.Version{Inputs: []models.TensorSpec{tt.port}}
		v.Config.LargestBatchSize = 10
		ids := append(make([]int64, len(tt.ids)), tt.ids...) // the first item is all zero
		in, err := tensor.Of("ids", ids, 2, int64(len(tt.ids)))
		if err != nil {
			t.Fatal(err)
		}
		_, err = validate(v, &oip.Request{Inputs: []tensor.Tensor{in}})
		if tt.want == "" {
			if err != nil {
				t.Errorf("%v: %v", tt.ids, err)
			}
		} else if !errors.Is(err, outcome.ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: got %v, want %q", tt.ids, err, tt.want)
		}
	}
}

// TestScalarsAndEmptyDimensions: a scalar may be sent with shape [] or [1], wherever it stands, and
// says nothing of the batch size; a dynamic dimension may be 0.
func TestScalarsAndEmptyDimensions(t *testing.T) {
	const n = models.Dynamic
	of := func(shape ...int64) tensor.Tensor {
		elements, err := tensor.Elements(shape)
		if err != nil {
			t.Fatal(err)
		}
		return tensor.Tensor{DataType: tensor.Int64, Shape: shape, Data: make([]byte, 8*elements)}
	}
	for _, tt := range []struct {
		ports     [][]int64
		batchless bool
		given     []tensor.Tensor
		batch     int
		want      string
	}{
		{[][]int64{{}, {n, 3}}, false, []tensor.Tensor{of(), of(5, 3)}, 5, ""},
		{[][]int64{{}, {n, 3}}, false, []tensor.Tensor{of(1), of(5, 3)}, 5, ""},
		{[][]int64{{}, {}}, true, []tensor.Tensor{of(1, 1), of()}, 1, ""},
		{[][]int64{{}, {n, 3}}, false, []tensor.Tensor{of(2), of(5, 3)}, 0, "want rank 0"},
		{[][]int64{{}, {n, 3}, {n}}, false, []tensor.Tensor{of(1), of(5, 3), of(2)}, 0,
			`input "c": batch size 2, but input "b" has 5`},
		{[][]int64{{}, {n, 3}, {n}}, false, []tensor.Tensor{of(1), of(5, 3), of(1)}, 5, ""},
		{[][]int64{{n, n}}, false, []tensor.Tensor{of(3, 0)}, 3, ""},
		{[][]int64{{n, n, 2}}, false, []tensor.Tensor{of(3, 0, 2)}, 3, ""},
		{[][]int64{{n, n}}, false, []tensor.Tensor{of(0, 3)}, 0, "batch size 0, want 1 to 10"},
		{[][]int64{{n, 3}}, false, []tensor.Tensor{of(3, 0)}, 0, "shape [3 0], want [N 3]"},
		{[][]int64{{n}}, true, []tensor.Tensor{of(0)}, 1, ""},
		{[][]int64{{n, 2}}, true, []tensor.Tensor{of(0, 2)}, 1, ""},
	} {
		v := &models.Version{Batchless: tt.batchless}
		v.Config.LargestBatchSize = 10
		req := &oip.Request{}
		for i, shape := range tt.ports {
			name := string(rune('a' + i))
			p := models.TensorSpec{Name: name, DataType: tensor.Int64, Shape: shape,
				IDBounds: []int64{4}}
			if len(shape) == 2 && shape[1] == 2 {
				p.IDBounds = []int64{4, 5}
			}
			v.Inputs = append(v.Inputs, p)
			in := tt.given[i]
			in.Name = name
			req.Inputs = append(req.Inputs, in)
		}
		q, err := validate(v, req)
		switch {
		case tt.want != "":
			if !errors.Is(err, outcome.ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v: got %v, want %q", tt.ports, err, tt.want)
			}
		case err != nil || q.batchSize != tt.batch:
			t.Errorf("%v: got batch size %d, %v, want %d", tt.ports, q.batchSize, err, tt.batch)
		default:
			for i, p := range v.Inputs {
				if len(q.inputs[i].Shape) != len(p.Shape) {
					t.Errorf("%v: input %s has shape %v", tt.ports, p.Name, q.inputs[i].Shape)
				}
			}
		}
	}
}
