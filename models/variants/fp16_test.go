package variants_test

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/models/variants"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// mostHalf is how far the answers of a model in FP16 may be from the model's, as a share of the
// largest value. With every value on the way rounded the zoo's are off by up to 1.2e-3.
const mostHalf = 2e-3

// apart returns how far values are from those wanted, as a share of the largest of these.
func apart(t *testing.T, got, want []float32) float64 {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %d values, want %d", len(got), len(want))
	}
	off, largest := 0., 0.
	for i := range want {
		d := math.Abs(float64(got[i]) - float64(want[i]))
		if !(d <= off) { // also for NaN
			off = d
		}
		largest = max(largest, math.Abs(float64(want[i])))
	}
	return off / largest
}

// makeHalf makes the variant fp16 of a small model of the zoo.
func makeHalf(t *testing.T, model string) (before, after *models.Version) {
	t.Helper()
	dir := generate(t, model)
	if _, err := variants.Make(t.Context(), dir, model, "fp16",
		variants.Options{Family: "all"}); err != nil {
		t.Fatal(err)
	}
	return newest(t, dir, model), newest(t, dir, model+"-fp16")
}

// Every model of the zoo has a variant of half the size with nothing left in FP32 but its inputs
// and outputs, and with close answers.
func TestFP16(t *testing.T) {
	if testing.Short() {
		t.Skip("long, and starts no goroutine")
	}
	ort := runtimetest.Open(t)
	for _, model := range zoo.Names() {
		t.Run(model, func(t *testing.T) {
			t.Parallel()
			before, after := makeHalf(t, model)
			inputs := draw(t, before, 1000)
			off := apart(t, run(t, ort, after, inputs), run(t, ort, before, inputs))
			dir := filepath.Dir(filepath.Dir(filepath.Dir(before.Path)))
			a, b := bytesOf(t, dir, model), bytesOf(t, dir, model+"-fp16")
			t.Logf("off by %.1e, %d bytes of %d", off, b, a)
			if !(off > 0 && off <= mostHalf) || float64(b) > .52*float64(a) {
				t.Errorf("off by %v, %d bytes of %d", off, b, a)
			}
			g, err := onnx.ReadGraph(after.Path)
			if err != nil {
				t.Fatal(err)
			}
			casts := map[any]int{}
			for _, n := range g.Nodes {
				if n.Op == "Cast" {
					casts[n.Attribute("to")]++
				}
				for _, name := range n.Inputs {
					if c, ok := g.Constant(name); ok && c.DataType == tensor.FP32 {
						t.Errorf("%s %s takes the constant %s of FP32", n.Op, n.Name, name)
					}
				}
			}
			want := map[any]int{int64(1): len(after.Outputs)}
			for _, in := range after.Inputs {
				if in.DataType == tensor.FP32 {
					want[int64(10)]++
				}
			}
			if !maps.Equal(casts, want) {
				t.Errorf("got casts by type %v, want one for each input and output: %v", casts,
					want)
			}
		})
	}
}

// What PyTorch's two exporters write is converted too, with the types of values that one declares.
func TestFP16OfPyTorch(t *testing.T) {
	ort := runtimetest.Open(t)
	folder := filepath.Join("..", "..", "runtime", "kernels", "testdata")
	for _, name := range []string{"sum-dynamo", "mean-dynamo", "stack-script"} {
		from, to := filepath.Join(folder, name+".onnx"), filepath.Join(t.TempDir(), "m.onnx")
		if _, err := variants.Quantize(t.Context(), from, to, "fp16", false,
			check(ort)); err != nil {
			t.Fatal(err)
		}
		before, after := fileVersion(t, from), fileVersion(t, to)
		for i := range before.Inputs {
			if before.Inputs[i].DataType == tensor.Int64 { // the smallest table has 50 rows
				before.Inputs[i].IDBounds = []int64{50, 50, 50}
			}
		}
		inputs := draw(t, before, 100)
		off := apart(t, run(t, ort, after, inputs), run(t, ort, before, inputs))
		if !(off > 0 && off <= mostHalf) {
			t.Errorf("%s: off by %v", name, off)
		}
	}
	_, err := variants.Quantize(t.Context(), filepath.Join(folder, "bag-sum-script.onnx"),
		filepath.Join(t.TempDir(), "m.onnx"), "fp16", false, nil)
	want := "Loop /tables.0/Loop: fp16 does not change the graphs within nodes"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got error %v, want one with %q", err, want)
	}
}

func fileVersion(t *testing.T, path string) *models.Version {
	t.Helper()
	v, err := models.FileVersion(path)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Values that are made from shapes and numbers, compared, and given out as well as used on, have
// the types that they need. Arithmetic with indices stays as it is.
func TestFP16OfAnyGraph(t *testing.T) {
	if testing.Short() {
		t.Skip("long, and starts no goroutine")
	}
	ort := runtimetest.Open(t)
	dir := t.TempDir()
	float := func(v float32) []byte {
		return binary.LittleEndian.AppendUint32(nil, math.Float32bits(v))
	}
	to := func(t int64) []onnx.Attribute { return []onnx.Attribute{{Name: "to", Value: t}} }
	from := write(t, dir, func(m *onnx.Model) {
		m.Outputs = append(m.Outputs, onnx.ValueDescription{
			Name: "h", DataType: tensor.FP32, Shape: []int64{onnx.Dynamic, 8},
		}, onnx.ValueDescription{Name: "positive", DataType: tensor.Bool,
			Shape: []int64{onnx.Dynamic, 8}})
		m.Initializers = append(m.Initializers, onnx.Initializer{
			Name: "zero", DataType: tensor.FP32, Shape: []int64{}, Data: float(0),
		}, onnx.Initializer{Name: "two", DataType: tensor.Int64, Shape: []int64{},
			Data: binary.LittleEndian.AppendUint64(nil, 2)})
		m.Nodes = []onnx.Node{
			{Op: "MatMul", Inputs: []string{"x", "w"}, Outputs: []string{"h"}},
			{Op: "Greater", Inputs: []string{"h", "zero"}, Outputs: []string{"positive"}},
			{Op: "Shape", Inputs: []string{"h"}, Outputs: []string{"shape"}},
			{Op: "ConstantOfShape", Inputs: []string{"shape"}, Outputs: []string{"zeros"}},
			{Op: "Where", Inputs: []string{"positive", "h", "zeros"}, Outputs: []string{"relu"}},
			{Op: "Mul", Inputs: []string{"shape", "two"}, Outputs: []string{"double"}},
			{Op: "ReduceMax", Inputs: []string{"double"}, Outputs: []string{"most"}},
			{Op: "Cast", Inputs: []string{"most"}, Outputs: []string{"float"}, Attributes: to(1)},
			{Op: "Constant", Outputs: []string{"tenth"}, Attributes: []onnx.Attribute{
				{Name: "value_float", Value: float32(.1)},
			}},
			{Op: "Mul", Inputs: []string{"float", "tenth"}, Outputs: []string{"step"}},
			{Op: "Add", Inputs: []string{"relu", "step"}, Outputs: []string{"y"}},
		}
	})
	path := filepath.Join(dir, "half.onnx")
	if _, err := variants.Quantize(t.Context(), from, path, "fp16", false, check(ort)); err != nil {
		t.Fatal(err)
	}
	before, after := fileVersion(t, from), fileVersion(t, path)
	inputs := draw(t, before, 50)
	var answers [2][]tensor.Tensor
	for i, v := range []*models.Version{after, before} {
		m, err := ort.Load(t.Context(), v)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		r, err := m.Run(t.Context(), inputs)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Release()
		answers[i] = r.Outputs
	}
	for i, name := range []string{"y", "h"} {
		got, err := tensor.Values[float32](answers[0][i])
		if err != nil {
			t.Fatal(err)
		}
		want, err := tensor.Values[float32](answers[1][i])
		if err != nil {
			t.Fatal(err)
		}
		if off := apart(t, got, want); !(off > 0 && off <= mostHalf) {
			t.Errorf("output %s is off by %v", name, off)
		}
	}
	if !bytes.Equal(answers[0][2].Data, answers[1][2].Data) {
		t.Error("output positive differs")
	}
}

// Indices and masks beside a result of FP16 keep their types, and so does what is computed of them.
// The numbers of this model fit FP16, so that its answers are the same.
func TestFP16KeepsIndices(t *testing.T) {
	ort := runtimetest.Open(t)
	dir := t.TempDir()
	numbers := func(name string, shape []int64, values ...int64) onnx.Initializer {
		var data []byte
		for _, v := range values {
			data = binary.LittleEndian.AppendUint64(data, uint64(v))
		}
		return onnx.Initializer{Name: name, DataType: tensor.Int64, Shape: shape, Data: data}
	}
	from := write(t, dir, func(m *onnx.Model) {
		for i := range 16 * 8 { // columns of x, each times a power of 2
			w := float32(0)
			if i/8 == i%8 {
				w = float32(int(1) << (i % 8))
			}
			binary.LittleEndian.PutUint32(m.Initializers[0].Data[4*i:], math.Float32bits(w))
		}
		m.Outputs = append(m.Outputs, onnx.ValueDescription{
			Name: "next", DataType: tensor.Int64, Shape: []int64{onnx.Dynamic, 4},
		}, onnx.ValueDescription{Name: "dropped", DataType: tensor.Bool,
			Shape: []int64{onnx.Dynamic, 8}},
			onnx.ValueDescription{Name: "places", DataType: tensor.Int64,
				Shape: []int64{onnx.Dynamic, 1, 4}})
		m.Initializers = append(m.Initializers, numbers("four", []int64{1}, 4),
			numbers("one", []int64{}, 1), numbers("eight", []int64{}, 8),
			numbers("middle", []int64{1}, 1))
		m.Nodes = []onnx.Node{
			{Op: "MatMul", Inputs: []string{"x", "w"}, Outputs: []string{"h"}},
			{Op: "TopK", Inputs: []string{"h", "four"}, Outputs: []string{"most", "which"}},
			{Op: "Add", Inputs: []string{"which", "one"}, Outputs: []string{"behind"}},
			{Op: "Mod", Inputs: []string{"behind", "eight"}, Outputs: []string{"next"}},
			{Op: "GatherElements", Inputs: []string{"h", "next"}, Outputs: []string{"beside"},
				Attributes: []onnx.Attribute{{Name: "axis", Value: int64(1)}}},
			{Op: "Concat", Inputs: []string{"most", "beside"}, Outputs: []string{"all"},
				Attributes: []onnx.Attribute{{Name: "axis", Value: int64(1)}}},
			{Op: "Dropout", Inputs: []string{"all"}, Outputs: []string{"y", "mask"}},
			{Op: "Not", Inputs: []string{"mask"}, Outputs: []string{"dropped"}},
			{Op: "Unsqueeze", Inputs: []string{"h", "middle"}, Outputs: []string{"line"}},
			{Op: "MaxPool", Inputs: []string{"line"}, Outputs: []string{"pooled", "at"},
				Attributes: []onnx.Attribute{{Name: "kernel_shape", Value: []int64{2}},
					{Name: "strides", Value: []int64{2}}}},
			{Op: "Mod", Inputs: []string{"at", "eight"}, Outputs: []string{"places"}},
		}
	})
	path := filepath.Join(dir, "half.onnx")
	if _, err := variants.Quantize(t.Context(), from, path, "fp16", false, check(ort)); err != nil {
		t.Fatal(err)
	}
	values := make([]float32, 16*50)
	for i := range values {
		values[i] = float32(i*7%16 + 1) // a row's differ
	}
	x, err := tensor.Of("x", values, 50, 16)
	if err != nil {
		t.Fatal(err)
	}
	var answers [2][]tensor.Tensor
	for i, path := range []string{path, from} {
		m, err := ort.Load(t.Context(), fileVersion(t, path))
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		r, err := m.Run(t.Context(), []tensor.Tensor{x})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Release()
		answers[i] = r.Outputs
	}
	for i, got := range answers[0] {
		if want := answers[1][i]; !bytes.Equal(got.Data, want.Data) {
			t.Errorf("output %s differs", want.Name)
		}
	}
}

// Constants become the nearest numbers of FP16, those below its normal numbers too.
func TestFP16Constants(t *testing.T) {
	dir := t.TempDir()
	weights := []float32{0, float32(math.Copysign(0, -1)), 1, -1.0 / 3, 65504, -65519, 0x1p-14,
		0x1p-14 - 0x1p-24, 0x1p-24, 1.4 * 0x1p-24, -0x1p-25, 1e-9, float32(math.Inf(-1))}
	want := []float64{0, math.Copysign(0, -1), 1, -0.333251953125, 65504, -65504, 0x1p-14,
		0x1p-14 - 0x1p-24, 0x1p-24, 0x1p-24, math.Copysign(0, -1), 0, math.Inf(-1)}
	from := write(t, dir, func(m *onnx.Model) {
		for i, w := range weights {
			binary.LittleEndian.PutUint32(m.Initializers[0].Data[4*i:], math.Float32bits(w))
		}
	})
	to := filepath.Join(dir, "half.onnx")
	if _, err := variants.Quantize(t.Context(), from, to, "fp16", false, nil); err != nil {
		t.Fatal(err)
	}
	g, err := onnx.ReadGraph(to)
	if err != nil {
		t.Fatal(err)
	}
	c, ok := g.Constant("w/fp16")
	if !ok || c.DataType != tensor.FP16 {
		t.Fatalf("got %+v, want a tensor of FP16", c)
	}
	if c, err = g.Rows(c, 16); err != nil || len(c.Data) != 2*16*8 {
		t.Fatalf("got %d bytes and error %v", len(c.Data), err)
	}
	for i := range want {
		got := tensor.OfHalf(tensor.FP16, binary.LittleEndian.Uint16(c.Data[2*i:]))
		if got != want[i] || math.Signbit(got) != math.Signbit(want[i]) {
			t.Errorf("%v became %v, want %v", weights[i], got, want[i])
		}
	}
}

// On a card every node of the zoo's models in FP16 runs on the card, where ONNX Runtime makes no
// graph of a model otherwise, and the answers are close to those of the model on the CPU.
func TestFP16OnCard(t *testing.T) {
	var log bytes.Buffer
	card, cpu := runtimetest.OpenCard(t, runtime.Config{
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	for _, model := range zoo.Names() {
		before, after := makeHalf(t, model)
		for _, rows := range []int{1, 64, 1000} {
			inputs := slice(draw(t, before, 1000), 0, rows)
			off := apart(t, run(t, card, after, inputs), run(t, cpu, before, inputs))
			t.Logf("%s, %d rows: off by %.1e", model, rows, off)
			if !(off <= mostHalf) {
				t.Errorf("%s, %d rows: off by %v", model, rows, off)
			}
		}
	}
	if strings.Contains(log.String(), "runs without CUDA graphs") {
		t.Errorf("not all ran on the card alone: %s", log.String())
	}
}

// The mean and the deviation that LayerNormalization gives beside its result stay in FP32, as its
// stash_type says, whether they are outputs of the model, are computed with, or neither.
func TestFP16OfLayerNormalization(t *testing.T) {
	ort := runtimetest.Open(t)
	ones := func(name string, n int) onnx.Initializer {
		var data []byte
		for i := range n {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(1+float32(i%3)/4))
		}
		return onnx.Initializer{
			Name: name, DataType: tensor.FP32, Shape: []int64{int64(n)}, Data: data,
		}
	}
	column := []int64{onnx.Dynamic, 1}
	for name, change := range map[string]func(m *onnx.Model){
		"its result alone": func(m *onnx.Model) {
			m.Nodes[1].Outputs = []string{"n"}
			m.Nodes = append(m.Nodes, onnx.Node{
				Op: "Relu", Inputs: []string{"n"}, Outputs: []string{"y"},
			})
		},
		"all as outputs": func(m *onnx.Model) {
			m.Nodes[1].Outputs = []string{"y", "mean", "deviation"}
			for _, name := range []string{"mean", "deviation"} {
				m.Outputs = append(m.Outputs,
					onnx.ValueDescription{Name: name, DataType: tensor.FP32, Shape: column})
			}
		},
		"all computed with": func(m *onnx.Model) {
			m.Nodes[1].Outputs = []string{"n", "mean", "deviation"}
			m.Nodes = append(m.Nodes,
				onnx.Node{Op: "Mul", Inputs: []string{"n", "deviation"},
					Outputs: []string{"scaled"}},
				onnx.Node{Op: "Add", Inputs: []string{"scaled", "mean"}, Outputs: []string{"y"}})
		},
		"the deviation as an output, and computed with": func(m *onnx.Model) {
			m.Nodes[1].Outputs = []string{"n", "", "deviation"}
			m.Nodes = append(m.Nodes,
				onnx.Node{Op: "Mul", Inputs: []string{"n", "deviation"}, Outputs: []string{"y"}})
			m.Outputs = append(m.Outputs,
				onnx.ValueDescription{Name: "deviation", DataType: tensor.FP32, Shape: column})
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			from := write(t, dir, func(m *onnx.Model) {
				m.Initializers = append(m.Initializers, ones("scale", 8), ones("bias", 8))
				m.Nodes = []onnx.Node{
					{Op: "MatMul", Inputs: []string{"x", "w"}, Outputs: []string{"h"}},
					{Op: "LayerNormalization", Inputs: []string{"h", "scale", "bias"},
						Attributes: []onnx.Attribute{{Name: "stash_type", Value: int64(1)}}},
				}
				change(m)
			})
			to := filepath.Join(dir, "half.onnx")
			if _, err := variants.Quantize(t.Context(), from, to, "fp16", false,
				check(ort)); err != nil {
				t.Fatal(err)
			}
			before, after := fileVersion(t, from), fileVersion(t, to)
			inputs := draw(t, before, 50)
			got, want := outputsOf(t, ort, after, inputs), outputsOf(t, ort, before, inputs)
			for i := range want {
				if off := apart(t, got[i], want[i]); !(off > 0 && off <= mostHalf) {
					t.Errorf("output %s is off by %v", before.Outputs[i].Name, off)
				}
			}
		})
	}
}

// outputsOf are what a model answers, all of it in FP32.
func outputsOf(t *testing.T, ort *runtime.ONNX, v *models.Version,
	inputs []tensor.Tensor) (all [][]float32) {
	t.Helper()
	m, err := ort.Load(t.Context(), v)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	r, err := m.Run(t.Context(), inputs)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	for _, out := range r.Outputs {
		values, err := tensor.Values[float32](out)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, slices.Clone(values))
	}
	return all
}
