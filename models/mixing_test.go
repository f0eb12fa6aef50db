package models

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/onnx"
)

// TestNoteOfMixedRows: what mixes rows is named if the settings say that they are independent, and
// nothing is said of a model that keeps them apart or of an operator that is not known.
func TestNoteOfMixedRows(t *testing.T) {
	port := func(name string) []onnx.ValueDescription {
		return []onnx.ValueDescription{{Name: name, DataType: tensor.FP32,
			Shape: []int64{onnx.Dynamic, 4}}}
	}
	node := func(op, in, out string, attributes ...onnx.Attribute) onnx.Node {
		return onnx.Node{Op: op, Name: out, Inputs: []string{in}, Outputs: []string{out},
			Attributes: attributes}
	}
	for _, c := range []struct {
		node           onnx.Node
		settings, want string
	}{
		{node("ReduceMean", "x", "y", onnx.Attribute{Name: "axes", Value: []int64{0}}),
			"rows_independent: true", `ReduceMean "y": it works over rows`},
		{node("ReduceMean", "x", "y", onnx.Attribute{Name: "axes", Value: []int64{0}}), "", ""},
		{node("Relu", "x", "y"), "rows_independent: true", ""},
		{node("DynamicQuantizeLinear", "x", "y"), "rows_independent: true", ""},
	} {
		m := onnx.Model{Inputs: port("x"), Outputs: port("y"), Nodes: []onnx.Node{c.node}}
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, "m", "1"), 0o755); err != nil {
			t.Fatal(err)
		}
		for path, data := range map[string]string{
			"m/1/model.onnx": string(m.Marshal()), "m/model.yaml": c.settings + "\n",
		} {
			if err := os.WriteFile(filepath.Join(dir, path), []byte(data), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		v, err := ReadVersion(dir, "m", 1)
		if err != nil {
			t.Fatal(err)
		}
		notes := strings.Join(v.Config.Notes, "\n")
		if got := strings.Contains(notes, "rows depend on one another"); got != (c.want != "") ||
			!strings.Contains(notes, c.want) {
			t.Errorf("%s, %q: notes are %q, want %q", c.node.Op, c.settings, notes, c.want)
		}
	}
}
