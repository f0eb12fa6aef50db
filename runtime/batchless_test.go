package runtime_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// relu is a model y = max(x, 0) whose tensors have the given shapes.
func relu(in, out []int64) *onnx.Model {
	return &onnx.Model{
		Inputs:  []onnx.ValueDescription{{Name: "x", DataType: tensor.FP32, Shape: in}},
		Outputs: []onnx.ValueDescription{{Name: "y", DataType: tensor.FP32, Shape: out}},
		Nodes:   []onnx.Node{{Op: "Relu", Inputs: []string{"x"}, Outputs: []string{"y"}}},
	}
}

// TestBatchless: tensors without a batch dimension keep their shapes, whichever of them the model
// fixes.
func TestBatchless(t *testing.T) {
	const free = onnx.Dynamic
	ctx := context.Background()
	for _, tt := range []struct {
		in, out, given []int64
		batchless      bool // said, and not seen from the shapes
	}{
		{in: []int64{2, 3}, out: []int64{2, 3}, given: []int64{2, 3}},
		{in: []int64{6}, out: []int64{6}, given: []int64{6}},
		{in: []int64{2, free}, out: []int64{2, free}, given: []int64{2, 3}},
		{in: []int64{1, 6}, out: nil, given: []int64{1, 6}},
		{[]int64{free, 3}, []int64{free, 3}, []int64{2, 3}, true},
	} {
		v := write(t, relu(tt.in, tt.out), nil)
		if v.Batchless == tt.batchless {
			t.Errorf("%v: the version is batchless: %v", tt.in, v.Batchless)
		}
		v.Batchless = true
		if !tt.batchless && (v.Config.LargestBatchSize != 1 ||
			!slices.Equal(v.Config.WarmUp, []int{1})) {
			t.Errorf("%v: largest batch size %d, warm-up %v, want 1", tt.in,
				v.Config.LargestBatchSize, v.Config.WarmUp)
		}
		values := []float32{-1, 2, -3, 4, 5, -6}
		inputs := []tensor.Tensor{must(tensor.Of("x", values, tt.given...))}
		m := load(t, runtimetest.Open(t), v)
		for range 2 { // with new memory, and with that of the run before
			r, err := m.Run(ctx, inputs)
			if err != nil {
				t.Fatalf("%v: %v", tt.in, err)
			}
			got, err := tensor.Values[float32](r.Outputs[0])
			if err != nil || !slices.Equal(got, []float32{0, 2, 0, 4, 5, 0}) ||
				!slices.Equal(r.Outputs[0].Shape, tt.given) {
				t.Errorf("%v: got %v of shape %v, %v", tt.in, got, r.Outputs[0].Shape, err)
			}
			r.Release()
		}
		lanes := runtime.NewLanes(runtime.LanesConfig{})
		if err := runtime.Warm(ctx, lanes, m, v); err != nil {
			t.Errorf("%v: %v", tt.in, err)
		}
		batches := 0
		emulated := load(t, runtime.NewEmulated(func(_ *models.Version, batch int) time.Duration {
			batches += batch
			return 0
		}), v)
		r, err := emulated.Run(ctx, inputs)
		if err != nil || batches != 1 {
			t.Errorf("%v, emulated: %v, batch size %d, want 1", tt.in, err, batches)
		} else if n := len(tt.out); n > 0 && len(r.Outputs[0].Shape) != n {
			t.Errorf("%v, emulated: output of shape %v, want %v", tt.in, r.Outputs[0].Shape, tt.out)
		}
	}
}

// TestBatchlessRows: a model without a batch dimension has no rows that could be independent.
func TestBatchlessRows(t *testing.T) {
	dir := t.TempDir()
	writeFiles(t, dir, map[string][]byte{
		"m/1/model.onnx": relu([]int64{2, 3}, []int64{2, 3}).Marshal(),
		"m/model.yaml":   []byte("rows_independent: true\n"),
	})
	_, err := models.ReadVersion(dir, "m", 1)
	if err == nil || !strings.Contains(err.Error(), `rows_independent is true, but the model has `+
		`no rows: input "x" has shape [2 3]`) {
		t.Errorf("got %v", err)
	}
}

func writeFiles(t testing.TB, dir string, files map[string][]byte) {
	t.Helper()
	for name, data := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
