package serve_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// tables writes a repository of models that look up rows of a table of ten, whose elements are the
// row's number: plain, which looks up its ids, moved, which looks up ids + 5, and bounded, which is
// plain with id_bounds of 3. The ensembles of plain and of moved have the names plainest and
// movedest.
func tables(t *testing.T, dir string) {
	t.Helper()
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	numbers, err := tensor.Of("table", []float32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 10)
	if err != nil {
		t.Fatal(err)
	}
	five, err := tensor.Of("five", []int64{5}, 1)
	if err != nil {
		t.Fatal(err)
	}
	shape := []int64{onnx.Dynamic, 2}
	for _, moved := range []bool{false, true} {
		m := onnx.Model{
			Inputs:  []onnx.ValueDescription{{Name: "ids", DataType: tensor.Int64, Shape: shape}},
			Outputs: []onnx.ValueDescription{{Name: "rows", DataType: tensor.FP32, Shape: shape}},
			Nodes: []onnx.Node{{Op: "Gather", Name: "/secret/Gather",
				Inputs: []string{"table", "ids"}, Outputs: []string{"rows"}}},
			Initializers: []onnx.Initializer{
				{Name: "table", DataType: tensor.FP32, Shape: []int64{10}, Data: numbers.Data},
				{Name: "five", DataType: tensor.Int64, Shape: []int64{1}, Data: five.Data},
			},
		}
		name := "plain"
		if moved {
			name = "moved"
			m.Nodes[0].Inputs[1] = "moved"
			m.Nodes = append([]onnx.Node{{Op: "Add", Name: "add", Inputs: []string{"ids", "five"},
				Outputs: []string{"moved"}}}, m.Nodes...)
		} else {
			write("bounded/1/model.onnx", string(m.Marshal()))
		}
		write(name+"/1/model.onnx", string(m.Marshal()))
		write(name+"est/1/.keep", "")
		write(name+"est/config.pbtxt", fmt.Sprintf(`
			platform: "ensemble" max_batch_size: 16
			input { name: "in" data_type: TYPE_INT64 dims: 2 }
			output { name: "rows" data_type: TYPE_FP32 dims: 2 }
			ensemble_scheduling { step [ { model_name: %q model_version: -1
				input_map { key: "ids" value: "in" } output_map { key: "rows" value: "rows" } } ] }`,
			name))
	}
	write("bounded/model.yaml", "inputs: [{name: ids, id_bounds: [3]}]\n")
}

// TestIDsOutsideOfTables: an id that is not in the table is its client's fault, whether the model's
// file says what is in it or ONNX Runtime finds out, and what ONNX Runtime answers is answered.
func TestIDsOutsideOfTables(t *testing.T) {
	config := agenttest.Config(t)
	config.ModelDir = t.TempDir()
	tables(t, config.ModelDir)
	a := agenttest.Start(t, config, runtimetest.Open(t))
	for _, tt := range []struct {
		model string
		ids   [2]int64
		want  string // of an error
	}{
		{"plain", [2]int64{0, 9}, ""},
		{"plain", [2]int64{-1, -10}, ""},
		{"plain", [2]int64{3, 10}, `input "ids": id 10 at position [0 1], want -10 to 9`},
		{"plain", [2]int64{-11, 3}, `input "ids": id -11 at position [0 0], want -10 to 9`},
		{"bounded", [2]int64{0, 2}, ""},
		{"bounded", [2]int64{3, 0}, `input "ids": id 3 at position [0 0], want 0 to 2`},
		{"bounded", [2]int64{-1, 0}, `input "ids": id -1 at position [0 0], want 0 to 2`},
		{"moved", [2]int64{-15, 4}, ""},
		{"moved", [2]int64{0, 5}, "index 10 is out of bounds, want -10 to 9"},
		{"plainest", [2]int64{-1, 9}, ""},
		{"plainest", [2]int64{0, 10}, `input "in": id 10 at position [0 1], want -10 to 9`},
		{"movedest", [2]int64{-6, 4}, ""},
		{"movedest", [2]int64{0, 5}, "index 10 is out of bounds, want -10 to 9"},
	} {
		name := fmt.Sprint(tt.model, tt.ids)
		ids, err := tensor.Of("ids", tt.ids[:], 1, 2)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(tt.model, "est") {
			ids.Name = "in"
		}
		failed := agenttest.Counted(a.Inside, "muster_failed_queries_total", tt.model, "invalid")
		resp, err := a.GRPC.ModelInfer(t.Context(), agenttest.RawRequest(tt.model,
			[]tensor.Tensor{ids}))
		code, body := a.Do("POST", "/v2/models/"+tt.model+"/infer", fmt.Sprintf(
			`{"inputs":[{"name":%q,"datatype":"INT64","shape":[1,2],"data":[%d,%d]}]}`, ids.Name,
			tt.ids[0], tt.ids[1]))
		if tt.want == "" {
			if err != nil || code != 200 {
				t.Errorf("%s: got %v, %d %s", name, err, code, body)
				continue
			}
			y := tensor.Tensor{DataType: tensor.FP32, Shape: []int64{1, 2},
				Data: resp.GetRawOutputContents()[0]}
			rows, err := tensor.Values[float32](y)
			for i, row := range rows {
				want := tt.ids[i]
				if strings.HasPrefix(tt.model, "moved") {
					want += 5
				}
				if err != nil || row != float32((want+10)%10) {
					t.Errorf("%s: got rows %v, %v", name, rows, err)
				}
			}
			continue
		}
		if status.Code(err) != codes.InvalidArgument || code != 400 {
			t.Errorf("%s: got %v, %d %s", name, err, code, body)
		}
		body = strings.ReplaceAll(body, `\"`, `"`)
		for _, text := range []string{fmt.Sprint(err), body} {
			if !strings.Contains(text, tt.want) || strings.Contains(text, "secret") ||
				strings.Contains(text, "onnxruntime") || strings.Contains(text, "Gather") {
				t.Errorf("%s: got %q, want %q and nothing of ONNX Runtime's", name, text, tt.want)
			}
		}
		if n := agenttest.Counted(a.Inside, "muster_failed_queries_total", tt.model,
			"invalid") - failed; n != 2 {
			t.Errorf("%s: counted as the client's fault %v times, want 2", name, n)
		}
	}
	for model, want := range map[string]string{"plain": "10", "bounded": "3", "moved": ""} {
		metadata, err := a.GRPC.ModelMetadata(t.Context(),
			&inference.ModelMetadataRequest{Name: model})
		if err != nil {
			t.Fatal(err)
		}
		if got := metadata.GetProperties()["id_bounds.ids"]; got != want {
			t.Errorf("%s: got id bounds %q, want %q", model, got, want)
		}
		if _, err := oip.ParseProperties(metadata.GetProperties()); err != nil {
			t.Error(err)
		}
	}
}
