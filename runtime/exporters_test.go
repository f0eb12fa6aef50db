package runtime_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// readClassifier puts a model of testdata into a fresh repository and reads it back.
func readClassifier(t *testing.T, name, config string) *models.Version {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".onnx"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	writeFiles(t, dir, map[string][]byte{
		"m/1/model.onnx": data, "m/model.yaml": []byte(config),
	})
	v, err := models.ReadVersion(dir, "m", 1)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// texts are the elements of a tensor of labels.
func texts(t *testing.T, x tensor.Tensor) (all []string) {
	t.Helper()
	if x.DataType == tensor.Int64 {
		for _, n := range must(tensor.Values[int64](x)) {
			all = append(all, fmt.Sprint(n))
		}
		return all
	}
	for data := x.Data; len(data) > 0; {
		n := binary.LittleEndian.Uint32(data)
		all, data = append(all, string(data[4:4+n])), data[4+n:]
	}
	return all
}

// TestClassifiers: what exporters of classifiers write by default, maps of probabilities beside a
// label that some declare as [1], is served in batches, with the answers that ONNX Runtime gives in
// Python (testdata/make.py).
func TestClassifiers(t *testing.T) {
	var answers struct {
		Rows   [][]float32
		Models map[string]struct {
			Input         string
			Label, Labels []string
			Values        [][]float32
		}
	}
	data, err := os.ReadFile("testdata/answers.json")
	if err == nil {
		err = json.Unmarshal(data, &answers)
	}
	if err != nil || len(answers.Models) != 4 {
		t.Fatal(err, len(answers.Models))
	}
	x := runtimetest.Open(t)
	for name, want := range answers.Models {
		for _, config := range []string{"", "rows_independent: true\n"} {
			t.Run(name+" "+config, func(t *testing.T) {
				v := readClassifier(t, name, config)
				if v.Batchless || len(v.Outputs) != 2 {
					t.Fatalf("batchless: %v, outputs: %v", v.Batchless, v.Outputs)
				}
				values := v.Outputs[1]
				if !slices.Equal(values.Labels, want.Labels) || values.DataType != tensor.FP32 ||
					!slices.Equal(values.Shape, []int64{models.Dynamic, int64(len(want.Labels))}) ||
					!slices.Equal(v.Outputs[0].Shape, []int64{models.Dynamic}) {
					t.Errorf("outputs are %+v, want the labels %q", v.Outputs, want.Labels)
				}
				m := load(t, x, v)
				for _, n := range []int{5, 1, 3} {
					in := slices.Concat(answers.Rows[:n]...)
					r, err := m.Run(context.Background(),
						[]tensor.Tensor{must(tensor.Of(want.Input, in, int64(n), 3))})
					if err != nil {
						t.Fatal(err)
					}
					if got := texts(t, r.Outputs[0]); !slices.Equal(got, want.Label[:n]) {
						t.Errorf("%d rows: labels are %q, want %q", n, got, want.Label[:n])
					}
					wantShape := []int64{int64(n), int64(len(want.Labels))}
					if !slices.Equal(r.Outputs[1].Shape, wantShape) {
						t.Errorf("shape is %v, want %v", r.Outputs[1].Shape, wantShape)
					}
					got := must(tensor.Values[float32](r.Outputs[1]))
					for i, w := range slices.Concat(want.Values[:n]...) {
						if math.Abs(float64(got[i]-w)) > 1e-5 {
							t.Errorf("%d rows: value %d is %v, want %v", n, i, got[i], w)
						}
					}
					r.Release()
				}
			})
		}
	}
}

// TestOutputsOfOtherShapes: outputs that have not a row for each item, as the file declares one or
// not, are answered with the shape that ONNX Runtime gives them.
func TestOutputsOfOtherShapes(t *testing.T) {
	const free = onnx.Dynamic
	port := func(name string, shape ...int64) onnx.ValueDescription {
		return onnx.ValueDescription{Name: name, DataType: tensor.FP32, Shape: shape}
	}
	whole := func(name string, shape ...int64) onnx.ValueDescription {
		return onnx.ValueDescription{Name: name, DataType: tensor.Int64, Shape: shape}
	}
	node := func(op string, inputs []string, attributes ...onnx.Attribute) onnx.Node {
		return onnx.Node{Op: op, Inputs: inputs, Outputs: []string{"y"}, Attributes: attributes}
	}
	constants := []onnx.Initializer{
		{Name: "c", DataType: tensor.FP32, Shape: []int64{3, 2}, Data: floats(1, 2, 3, 4, 5, 6)},
		{Name: "first", DataType: tensor.Int64, Shape: []int64{1}, Data: ints(0)},
	}
	x := runtimetest.Open(t)
	for _, tt := range []struct {
		name  string
		out   onnx.ValueDescription
		node  onnx.Node
		shape func(n int64) []int64
	}{
		{"sum", port("y", free, 2), node("ReduceSum", []string{"x", "first"}),
			func(int64) []int64 { return []int64{1, 2} }},
		{"mean", port("y", free, 2), node("ReduceMean", []string{"x"},
			onnx.Attribute{Name: "axes", Value: []int64{0}}),
			func(int64) []int64 { return []int64{1, 2} }},
		{"mean without its dimension", port("y", free), node("ReduceMean", []string{"x"},
			onnx.Attribute{Name: "axes", Value: []int64{0}},
			onnx.Attribute{Name: "keepdims", Value: int64(0)}),
			func(int64) []int64 { return []int64{2} }},
		{"constant", port("y", free, 2), node("Identity", []string{"c"}),
			func(int64) []int64 { return []int64{3, 2} }},
		{"constant as declared", port("y", 3, 2), node("Identity", []string{"c"}),
			func(int64) []int64 { return []int64{3, 2} }},
		{"one row of a constant", port("y", free, 2), node("Gather", []string{"c", "first"}),
			func(int64) []int64 { return []int64{1, 2} }},
		{"rows declared as one", port("y", 1, 2), node("Neg", []string{"x"}),
			func(n int64) []int64 { return []int64{n, 2} }},
		{"shape", whole("y", free), node("Shape", []string{"x"}),
			func(int64) []int64 { return []int64{2} }},
		{"columns", port("y", free, 2), node("Transpose", []string{"x"}),
			func(n int64) []int64 { return []int64{2, n} }},
	} {
		for _, independent := range []bool{false, true} {
			t.Run(fmt.Sprint(tt.name, independent), func(t *testing.T) {
				m := onnx.Model{
					Inputs: []onnx.ValueDescription{port("x", free, 2)},
					Outputs: []onnx.ValueDescription{port("z", free, 2),
						tt.out},
					Initializers: constants,
					Nodes: []onnx.Node{
						{Op: "Abs", Inputs: []string{"x"}, Outputs: []string{"z"}}, tt.node,
					},
				}
				v := write(t, &m, nil)
				if v.Batchless {
					t.Fatal("the version is batchless")
				}
				v.Config.RowsIndependent = independent
				loaded := load(t, x, v)
				for _, n := range []int64{64, 3, 1, 2, 5} {
					in := make([]float32, 2*n)
					for i := range in {
						in[i] = float32(i + 1)
					}
					r, err := loaded.Run(context.Background(),
						[]tensor.Tensor{must(tensor.Of("x", in, n, 2))})
					if err != nil {
						t.Fatalf("%d rows: %v", n, err)
					}
					if got := must(tensor.Values[float32](r.Outputs[0])); !slices.Equal(got, in) {
						t.Errorf("%d rows: z is %v", n, got)
					}
					y := r.Outputs[1]
					if want := tt.shape(n); !slices.Equal(y.Shape, want) {
						t.Errorf("%d rows: y has shape %v, want %v", n, y.Shape, want)
					}
					if size := must(tensor.Elements(y.Shape)) * y.DataType.Size(); len(y.Data) != size {
						t.Errorf("%d rows: y has %d bytes, want %d", n, len(y.Data), size)
					}
					if y.DataType == tensor.FP32 {
						got := must(tensor.Values[float32](y))
						if sum := slices.Max(got); sum == 0 && tt.name != "rows declared as one" {
							t.Errorf("%d rows: y is %v", n, got)
						}
					}
					r.Release()
				}
			})
		}
	}
}
