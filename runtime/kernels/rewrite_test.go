package kernels_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/runtime/kernels"
)

// one is a model of one node after a Gather of a table [10, 8] with ids [N, 4].
func one(kind tensor.DataType, table []int64, n ...onnx.Node) onnx.Model {
	size := int64(kind.Size())
	for _, d := range table {
		size *= d
	}
	axes := func(name string, axis byte) onnx.Initializer {
		return onnx.Initializer{Name: name, DataType: tensor.Int64, Shape: []int64{1},
			Data: []byte{axis, 0, 0, 0, 0, 0, 0, 0}}
	}
	return onnx.Model{
		Name: "one",
		Inputs: []onnx.ValueDescription{{Name: "ids", DataType: tensor.Int64,
			Shape: []int64{onnx.Dynamic, 4}}},
		Outputs: []onnx.ValueDescription{{Name: "y", DataType: kind}},
		Nodes: append([]onnx.Node{{Op: "Gather", Name: "gather", Inputs: []string{"table", "ids"},
			Outputs: []string{"rows"}}}, n...),
		Initializers: []onnx.Initializer{
			{Name: "table", DataType: kind, Shape: table, Data: make([]byte, size)},
			axes("one", 1), axes("two", 2),
		},
	}
}

func sum(axes string) onnx.Node {
	return onnx.Node{Op: "ReduceSum", Name: "sum", Inputs: []string{"rows", axes},
		Outputs: []string{"y"}}
}

func rewrite(t *testing.T, m onnx.Model) *kernels.Rewritten {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.onnx")
	if err := os.WriteFile(path, m.Marshal(), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := onnx.ReadSignature(path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := kernels.Rewrite(path, s, 1)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Sums of rows that do not fit are named with the reason.
func TestLeft(t *testing.T) {
	fp32, matrix := tensor.DataType(tensor.FP32), []int64{10, 8}
	elsewhere := one(fp32, matrix, sum("one"))
	elsewhere.Outputs = append(elsewhere.Outputs, onnx.ValueDescription{Name: "rows",
		DataType: fp32})
	computed := one(fp32, matrix, sum("one"))
	computed.Nodes = append([]onnx.Node{{Op: "Relu", Name: "relu", Inputs: []string{"table"},
		Outputs: []string{"computed"}}}, computed.Nodes...)
	computed.Nodes[1].Inputs = []string{"computed", "ids"}
	for name, test := range map[string]struct {
		model onnx.Model
		want  string
	}{
		"fits":     {one(fp32, matrix, sum("one")), ""},
		"elements": {one(fp32, matrix, sum("two")), "sums over the elements of a row"},
		"half":     {one(tensor.FP16, matrix, sum("one")), "it sums in FP16, expected FP32"},
		"three": {one(fp32, []int64{10, 2, 4}, sum("one")),
			"table table has 3 dimensions"},
		"elsewhere":      {elsewhere, "its rows are used elsewhere too"},
		"computed table": {computed, ""},
	} {
		r := rewrite(t, test.model)
		if fits := r.Model != nil; fits != (name == "fits") {
			t.Errorf("%s: fits is %v", name, fits)
		}
		if test.want == "" && len(r.Left) > 0 || !strings.Contains(r.Reason(), test.want) {
			t.Errorf("%s: got reason %q, want %q", name, r.Reason(), test.want)
		}
	}
}

// The check finds an operator that gives something else.
func TestCheck(t *testing.T) {
	var log strings.Builder
	executors(t, &log) // loads the library
	options, err := ort.NewSessionOptions()
	if err != nil {
		t.Fatal(err)
	}
	defer options.Destroy()
	if err := kernels.Register(options); err != nil {
		t.Fatal(err)
	}
	m := one(tensor.FP32, []int64{10, 8}, sum("one"))
	for i := range m.Initializers[0].Data {
		m.Initializers[0].Data[i] = byte(i%3 + 60)
	}
	r := rewrite(t, m)
	if err := r.Check(options); err != nil {
		t.Errorf("got error %v", err)
	}
	kernels.Break(r)
	err = r.Check(options)
	if err == nil || !strings.Contains(err.Error(), "of the standard operators") {
		t.Errorf("an operator that computes means: got error %v", err)
	}
}
