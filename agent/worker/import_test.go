package worker_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// TestForeignModels: an agent serves models as their exporters write them, and says what it makes
// of them: one that cannot run with the shapes that the warm-up chooses, a classifier with maps,
// and one with an optional input and a scalar.
func TestForeignModels(t *testing.T) {
	const free = onnx.Dynamic
	port := func(name string, shape ...int64) onnx.ValueDescription {
		return onnx.ValueDescription{Name: name, DataType: tensor.FP32, Shape: shape}
	}
	constant := func(name string, shape ...int64) onnx.Initializer {
		n, _ := tensor.Elements(shape)
		return onnx.Initializer{Name: name, DataType: tensor.FP32, Shape: shape,
			Data: make([]byte, 4*n)}
	}
	product := onnx.Model{
		Inputs:       []onnx.ValueDescription{port("x", free, free)},
		Outputs:      []onnx.ValueDescription{port("y", free, 1)},
		Initializers: []onnx.Initializer{constant("w", 6, 1)},
		Nodes: []onnx.Node{{Op: "MatMul", Inputs: []string{"x", "w"},
			Outputs: []string{"y"}}},
	}
	scaled := onnx.Model{
		Inputs: []onnx.ValueDescription{{Name: "s", DataType: tensor.FP32, Shape: []int64{}},
			port("x", free, 2), port("bias", 1, 2)},
		Outputs:      []onnx.ValueDescription{port("y", free, 2)},
		Initializers: []onnx.Initializer{constant("bias", 1, 2)},
		Nodes: []onnx.Node{
			{Op: "Mul", Inputs: []string{"x", "s"}, Outputs: []string{"z"}},
			{Op: "Add", Inputs: []string{"z", "bias"}, Outputs: []string{"y"}},
		},
	}
	classifier, err := os.ReadFile("../../runtime/testdata/lightgbm.onnx")
	if err != nil {
		t.Fatal(err)
	}
	config := agenttest.Config(t)
	config.ModelDir = t.TempDir()
	for name, data := range map[string][]byte{
		"product": product.Marshal(), "scaled": scaled.Marshal(), "classifier": classifier,
	} {
		folder := filepath.Join(config.ModelDir, name, "1")
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "model.onnx"), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	a := agenttest.Start(t, config, runtimetest.Open(t))
	ask := func(model, body, want string) {
		t.Helper()
		status, answer := a.Do("POST", "/v2/models/"+model+"/infer", body)
		if status != 200 || !strings.Contains(answer, want) {
			t.Errorf("%s: %d %s, want %s", model, status, answer, want)
		}
	}
	input := func(name, shape, data string) string {
		return fmt.Sprintf(`{"name":%q,"datatype":"FP32","shape":%s,"data":%s}`, name, shape, data)
	}
	ask("product", `{"inputs":[`+input("x", "[2,6]", "[1,2,3,4,5,6,1,2,3,4,5,null]")+`]}`,
		`"shape":[2,1],"data":[0,"NaN"]`)
	for _, want := range []string{
		"the warm-up failed with shapes that the model leaves open", "model=product",
		"inputs: [{name: x, shape: [-1, ...]}]",
	} {
		if !strings.Contains(a.Log.String(), want) {
			t.Errorf("the log lacks %q", want)
		}
	}
	rows := input("x", "[2,2]", "[1,2,3,4]")
	ask("scaled", `{"inputs":[`+input("s", "[1]", "[10]")+","+rows+`]}`, `"data":[10,20,30,40]`)
	ask("scaled", `{"inputs":[`+rows+","+input("bias", "[1,2]", "[1,2]")+","+
		input("s", "[]", "[10]")+`]}`, `"data":[11,22,31,42]`)
	ask("classifier", `{"inputs":[`+input("input", "[3,3]", "[[0,0,1],[1,0,1],[0,1,1]]")+
		`],"outputs":[{"name":"probabilities"}]}`,
		`{"name":"probabilities","datatype":"FP32","shape":[3,2]`)
	for model, want := range map[string]map[string]string{
		"classifier": {"labels.probabilities": `["0","1"]`, "batchless": ""},
		"scaled":     {"optional": `["bias"]`},
	} {
		metadata, err := a.GRPC.ModelMetadata(t.Context(),
			&inference.ModelMetadataRequest{Name: model})
		for name, value := range want {
			if got := metadata.GetProperties()[name]; err != nil || got != value {
				t.Errorf("%s: %s is %q, %v, want %q", model, name, got, err, value)
			}
		}
	}
	described, err := a.GRPC.ModelConfig(t.Context(), &inference.ModelConfigRequest{Name: "scaled"})
	if in := described.GetConfig().GetInput(); err != nil || len(in) != 3 || !in[2].GetOptional() ||
		in[1].GetOptional() {
		t.Errorf("described as %v, %v", described, err)
	}
}

// TestMixedRows: a version whose rows depend on one another, whatever its settings say, is served
// without being split or merged, and an event says why. One whose graph proves nothing, and whose
// rows are independent when they run, is served as its settings say.
func TestMixedRows(t *testing.T) {
	port := func(name string) []onnx.ValueDescription {
		return []onnx.ValueDescription{{
			Name: name, DataType: tensor.FP32, Shape: []int64{onnx.Dynamic, 2},
		}}
	}
	graph := func(nodes ...onnx.Node) onnx.Model {
		return onnx.Model{Inputs: port("x"), Outputs: port("y"), Nodes: nodes}
	}
	axis := []onnx.Attribute{{Name: "axis", Value: int64(0)}}
	config := agenttest.Config(t)
	config.ModelDir = t.TempDir()
	for name, m := range map[string]onnx.Model{
		"mixing": graph(onnx.Node{
			Op: "Softmax", Inputs: []string{"x"}, Outputs: []string{"y"}, Attributes: axis,
		}),
		"unproven": graph(onnx.Node{
			Op: "MeanVarianceNormalization", Inputs: []string{"x"}, Outputs: []string{"y"},
			Attributes: []onnx.Attribute{{Name: "axes", Value: []int64{1}}},
		}),
	} {
		m.Opset = 13
		folder := filepath.Join(config.ModelDir, name)
		if err := os.MkdirAll(filepath.Join(folder, "1"), 0o755); err != nil {
			t.Fatal(err)
		}
		for file, data := range map[string][]byte{
			"1/model.onnx": m.Marshal(), "model.yaml": []byte("rows_independent: true\n"),
		} {
			if err := os.WriteFile(filepath.Join(folder, file), data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	a := agenttest.Start(t, config, runtimetest.Open(t))
	for name, merges := range map[string]bool{"mixing": false, "unproven": true} {
		described, err := a.GRPC.ModelConfig(t.Context(),
			&inference.ModelConfigRequest{Name: name})
		if err != nil || described.GetConfig().GetDynamicBatching() != nil != merges {
			t.Errorf("%s is described as %v, %v; merges should be %v", name, described, err, merges)
		}
		event := name + " is not served as its model.yaml says: rows depend on one another"
		if log := a.Log.String(); strings.Contains(log, event) == merges {
			t.Errorf("the log is %s; %q should be in it: %v", log, event, !merges)
		}
	}
}
