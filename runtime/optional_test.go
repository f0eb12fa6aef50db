package runtime_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// readModel puts a model and its settings into a fresh repository and reads them back.
func readModel(t *testing.T, m *onnx.Model, settings map[string]string) (*models.Version, error) {
	t.Helper()
	dir := t.TempDir()
	files := map[string][]byte{"m/1/model.onnx": m.Marshal()}
	for name, text := range settings {
		files["m/"+name] = []byte(text)
	}
	writeFiles(t, dir, files)
	return models.ReadVersion(dir, "m", 1)
}

// biased is y = x + bias, where bias has a default of [2, 2].
func biased(first int64) *onnx.Model {
	const free = onnx.Dynamic
	return &onnx.Model{
		Inputs: []onnx.ValueDescription{
			{Name: "x", DataType: tensor.FP32, Shape: []int64{free, 2}},
			{Name: "bias", DataType: tensor.FP32, Shape: []int64{first, 2}},
		},
		Outputs: []onnx.ValueDescription{{Name: "y", DataType: tensor.FP32, Shape: []int64{free,
			2}}},
		Initializers: []onnx.Initializer{
			{Name: "bias", DataType: tensor.FP32, Shape: []int64{1, 2}, Data: floats(2, 2)},
		},
		Nodes: []onnx.Node{{Op: "Add", Inputs: []string{"x", "bias"}, Outputs: []string{"y"}}},
	}
}

// TestInputsWithDefaults: a query may give an input that is an initializer too, or leave it out.
func TestInputsWithDefaults(t *testing.T) {
	x := runtimetest.Open(t)
	const port = `{name: "x" data_type: TYPE_FP32 dims: [-1, 2]}`
	for _, tt := range []struct {
		name     string
		first    int64
		settings map[string]string
		hidden   bool // it is a weight
	}{
		{"no settings", 1, nil, false},
		{"with rows", onnx.Dynamic, nil, false},
		{"config.pbtxt", 1, map[string]string{"config.pbtxt": "max_batch_size: 8\n" +
			`input [{name: "x" data_type: TYPE_FP32 dims: [2]}, ` +
			`{name: "bias" data_type: TYPE_FP32 dims: [2] optional: true}]`}, false},
		{"config.pbtxt without batches", 1,
			map[string]string{"config.pbtxt": "max_batch_size: 0\n" +
				"input [" + port +
				`, {name: "bias" data_type: TYPE_FP32 dims: [1, 2] optional: true}]`},
			false},
		{"named", 1,
			map[string]string{"model.yaml": "rows_independent: true\ninputs: [{name: bias}]"},
			false},
		{"independent rows", 1, map[string]string{"model.yaml": "rows_independent: true"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v, err := readModel(t, biased(tt.first), tt.settings)
			if err != nil {
				t.Fatal(err)
			}
			if (len(v.Inputs) == 1) != tt.hidden {
				t.Fatalf("inputs are %+v", v.Inputs)
			}
			if tt.hidden {
				if !v.Config.RowsIndependent || len(v.Config.Notes) != 1 {
					t.Errorf("rows are independent: %v, notes %q", v.Config.RowsIndependent,
						v.Config.Notes)
				}
				return
			}
			if p := v.Inputs[1]; !p.Optional || p.Whole != (tt.first == 1) ||
				v.Config.RowsIndependent {
				t.Errorf("input is %+v, rows are independent: %v", p, v.Config.RowsIndependent)
			}
			loaded := load(t, x, v)
			lanes := runtime.NewLanes(runtime.LanesConfig{})
			if err := runtime.Warm(context.Background(), lanes, loaded, v); err != nil {
				t.Error(err)
			}
			for _, n := range []int64{3, 1} {
				ones := must(tensor.Of("x", slices.Repeat([]float32{1}, int(2*n)), n, 2))
				rows := int64(1)
				if tt.first == onnx.Dynamic {
					rows = n
				}
				for bias, want := range map[float32]float32{0: 3, 7: 8} {
					inputs := []tensor.Tensor{ones, {}}
					if bias > 0 {
						inputs[1] = must(tensor.Of("bias",
							slices.Repeat([]float32{bias}, int(2*rows)), rows, 2))
					}
					r, err := loaded.Run(context.Background(), inputs)
					if err != nil {
						t.Fatal(err)
					}
					got := must(tensor.Values[float32](r.Outputs[0]))
					if !slices.Equal(got, slices.Repeat([]float32{want}, int(2*n))) {
						t.Errorf("%d rows, bias %v: got %v, want %v", n, bias, got, want)
					}
					r.Release()
				}
			}
		})
	}
}

// TestOldWeights: before IR version 4 all weights were inputs, so only the settings make one
// optional.
func TestOldWeights(t *testing.T) {
	data := biased(1).Marshal()
	if data[0] != 8 || data[1] != onnx.IRVersion { // the first field
		t.Fatalf("the model begins with %x", data[:2])
	}
	data[1] = 3
	for settings, want := range map[string]int{"": 1, "inputs: [{name: bias}]": 2} {
		dir := t.TempDir()
		writeFiles(t, dir, map[string][]byte{
			"m/1/model.onnx": data, "m/model.yaml": []byte(settings),
		})
		v, err := models.ReadVersion(dir, "m", 1)
		if err != nil || len(v.Inputs) != want || len(v.Config.Notes) != 0 {
			t.Errorf("%q: %v, %+v, want %d inputs", settings, err, v, want)
		}
	}
	path := filepath.Join(t.TempDir(), "m.onnx")
	if err := os.WriteFile(path, biased(1).Marshal(), 0o644); err != nil {
		t.Fatal(err)
	}
	if v, err := models.FileVersion(path); err != nil || len(v.Inputs) != 2 ||
		!v.Inputs[1].Optional {
		t.Errorf("a file: %v, %+v", err, v)
	}
}

// TestWeightsThatAreInputs: the weights of a model whose exporter declares all of them as inputs
// are not its clients' to give.
func TestWeightsThatAreInputs(t *testing.T) {
	m := biased(1)
	for i := range 40 {
		name := fmt.Sprint("w", i)
		m.Inputs = append(m.Inputs, onnx.ValueDescription{Name: name, DataType: tensor.FP32,
			Shape: []int64{1}})
		m.Initializers = append(m.Initializers, onnx.Initializer{Name: name, DataType: tensor.FP32,
			Shape: []int64{1}, Data: floats(1)})
	}
	v, err := readModel(t, m, nil)
	if err != nil || len(v.Inputs) != 1 || len(v.Config.Notes) != 1 ||
		!strings.Contains(v.Config.Notes[0], "41 inputs with a default are taken for weights") {
		t.Fatalf("%v, %+v", err, v)
	}
	if v, err = readModel(t, m,
		map[string]string{"model.yaml": "inputs: [{name: w3}]"}); err != nil ||
		len(v.Inputs) != 2 || v.Inputs[1].Name != "w3" {
		t.Errorf("named: %v, %+v", err, v)
	}
}

// TestReshape: clients and models may see other shapes of the same elements, as Triton's settings
// say.
func TestReshape(t *testing.T) {
	const free = onnx.Dynamic
	x := runtimetest.Open(t)
	for _, tt := range []struct {
		name       string
		in, out    []int64 // of the model
		settings   string
		given, got []int64
		want       string // an error
	}{
		{"row of one", []int64{free}, []int64{free}, `max_batch_size: 8
			input [{name: "x" data_type: TYPE_FP32 dims: [1] reshape {shape: []}}]
			output [{name: "y" data_type: TYPE_FP32 dims: [1] reshape {shape: []}}]`,
			[]int64{3, 1}, []int64{3, 1}, ""},
		{"matrix", []int64{free, 2, 3}, []int64{free, 2, 3}, `max_batch_size: 8
			input [{name: "x" data_type: TYPE_FP32 dims: [6] reshape {shape: [2, 3]}}]`,
			[]int64{4, 6}, []int64{4, 2, 3}, ""},
		{"dynamic", []int64{free, free, 2}, []int64{free, free, 2}, `max_batch_size: 8
			input [{name: "x" data_type: TYPE_FP32 dims: [2, -1] reshape {shape: [-1, 2]}}]
			output [{name: "y" data_type: TYPE_FP32 dims: [1, -1, 2] reshape {shape: [-1, 2]}}]`,
			[]int64{4, 2, 5}, []int64{4, 1, 5, 2}, ""},
		{"scalar", []int64{}, []int64{}, `max_batch_size: 0
			input [{name: "x" data_type: TYPE_FP32 dims: [1] reshape {shape: []}}]
			output [{name: "y" data_type: TYPE_FP32 dims: [1] reshape {shape: []}}]`,
			[]int64{1}, []int64{1}, ""},
		{"scalar as Triton has it", []int64{}, []int64{}, `max_batch_size: 0
			input [{name: "x" data_type: TYPE_FP32 dims: [1]}]
			output [{name: "y" data_type: TYPE_FP32 dims: [1]}]`, []int64{}, []int64{}, ""},
		{"unlike", []int64{free, 2}, []int64{free, 2}, `max_batch_size: 8
			input [{name: "x" data_type: TYPE_FP32 dims: [3] reshape {shape: [2]}}]`,
			nil, nil, "reshape of dims [3] to [2], expected as many elements"},
		{"not the model's", []int64{free, 2}, []int64{free, 2}, `max_batch_size: 8
			input [{name: "x" data_type: TYPE_FP32 dims: [3] reshape {shape: [1, 3]}}]`,
			nil, nil, "reshape makes [-1 1 3], the model has [-1 2]"},
		{"shape of the settings", nil, nil, `max_batch_size: 8
			input [{name: "x" data_type: TYPE_FP32 dims: [2]}]`, []int64{3, 2}, []int64{3, 2}, ""},
		{"no shape", nil, nil, "max_batch_size: 8", nil, nil, `input "x" has no shape`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := relu(tt.in, tt.out)
			v, err := readModel(t, m, map[string]string{"config.pbtxt": tt.settings})
			if tt.want != "" {
				wantError(t, err, tt.want)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			values := make([]float32, must(tensor.Elements(tt.given)))
			for i := range values {
				values[i] = float32(i)
			}
			loaded := load(t, x, v)
			for range 2 {
				r, err := loaded.Run(context.Background(),
					[]tensor.Tensor{must(tensor.Of("x", values, tt.given...))})
				if err != nil {
					t.Fatal(err)
				}
				got := must(tensor.Values[float32](r.Outputs[0]))
				if !slices.Equal(r.Outputs[0].Shape, tt.got) || !slices.Equal(got, values) {
					t.Errorf("got %v of shape %v, want %v of %v", got, r.Outputs[0].Shape, values,
						tt.got)
				}
				r.Release()
			}
		})
	}
}

// TestManyInputs: a model may have an input for each of some thousand features.
func TestManyInputs(t *testing.T) {
	const count = 3000
	m := onnx.Model{
		Outputs: []onnx.ValueDescription{{Name: "y", DataType: tensor.FP32,
			Shape: []int64{onnx.Dynamic, count}}},
		Nodes: []onnx.Node{{Op: "Concat", Outputs: []string{"y"},
			Attributes: []onnx.Attribute{{Name: "axis", Value: int64(1)}}}},
	}
	var inputs []tensor.Tensor
	for i := range count {
		name := fmt.Sprint("x", i)
		m.Inputs = append(m.Inputs, onnx.ValueDescription{Name: name, DataType: tensor.FP32,
			Shape: []int64{onnx.Dynamic, 1}})
		m.Nodes[0].Inputs = append(m.Nodes[0].Inputs, name)
		inputs = append(inputs, must(tensor.Of(name, []float32{float32(i), 1}, 2, 1)))
	}
	v, err := readModel(t, &m, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := load(t, runtimetest.Open(t), v).Run(context.Background(), inputs)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	if got := must(tensor.Values[float32](r.Outputs[0])); got[count-1] != count-1 ||
		got[2*count-1] != 1 {
		t.Errorf("got %v", got[count-1:])
	}
	for i := count; i <= tensor.MaxCount; i++ {
		m.Inputs = append(m.Inputs, onnx.ValueDescription{Name: fmt.Sprint("x", i),
			DataType: tensor.FP32,
			Shape:    []int64{onnx.Dynamic, 1}})
	}
	_, err = readModel(t, &m, nil)
	wantError(t, err, fmt.Sprintf("the model has %d inputs", tensor.MaxCount+1))
}

// TestEmptyHistory: a dimension of size 0 is one, with the kernels of Muster as with the operators
// that they replace.
func TestEmptyHistory(t *testing.T) {
	const free = onnx.Dynamic
	x, err := runtime.OpenONNX(runtime.Config{
		LibraryPath: runtimetest.Library(t), Provider: runtime.CPU, Kernels: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range []string{"ReduceSum", "ReduceMean"} {
		m := onnx.Model{
			Opset: 18,
			Inputs: []onnx.ValueDescription{{Name: "ids", DataType: tensor.Int64,
				Shape: []int64{free, free}}},
			Outputs: []onnx.ValueDescription{{Name: "y", DataType: tensor.FP32,
				Shape: []int64{free, 2}}},
			Initializers: []onnx.Initializer{
				{Name: "t", DataType: tensor.FP32, Shape: []int64{4, 2},
					Data: floats(1, 2, 3, 4, 5, 6, 7, 8)},
				{Name: "axis", DataType: tensor.Int64, Shape: []int64{1}, Data: ints(1)},
			},
			Nodes: []onnx.Node{
				{Op: "Gather", Inputs: []string{"t", "ids"}, Outputs: []string{"rows"}},
				{Op: op, Inputs: []string{"rows", "axis"}, Outputs: []string{"y"},
					Attributes: []onnx.Attribute{{Name: "keepdims", Value: int64(0)}}},
			},
		}
		v := write(t, &m, nil)
		plain, own := load(t, runtimetest.Open(t), v), load(t, x, v)
		for _, length := range []int64{2, 0, 3} {
			var answers [2][]float32
			for i, loaded := range []runtime.Model{plain, own} {
				r, err := loaded.Run(context.Background(), []tensor.Tensor{
					must(tensor.Of("ids", slices.Repeat([]int64{1}, int(3*length)), 3, length)),
				})
				if err != nil {
					t.Fatal(err)
				}
				answers[i] = slices.Clone(must(tensor.Values[float32](r.Outputs[0])))
				r.Release()
			}
			if !slices.Equal(answers[0], answers[1]) {
				t.Errorf("%s of histories of %d: got %v, want %v", op, length, answers[1],
					answers[0])
			}
		}
	}
}
