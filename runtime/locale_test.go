package runtime_test

import (
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// TestLocale: a model that needs a locale that this machine does not have is not loaded, and the
// error says what to install.
func TestLocale(t *testing.T) {
	x := runtimetest.Open(t)
	for _, locale := range []string{"", "xx_XX.UTF-8"} {
		normalize := onnx.Node{
			Op: "StringNormalizer", Name: "normalize", Inputs: []string{"text"},
			Outputs:    []string{"words"},
			Attributes: []onnx.Attribute{{Name: "case_change_action", Value: "LOWER"}},
		}
		want := "en_US.UTF-8"
		if locale != "" {
			want = locale
			normalize.Attributes = append(normalize.Attributes,
				onnx.Attribute{Name: "locale", Value: locale})
		}
		v := write(t, &onnx.Model{
			Name: "text",
			Inputs: []onnx.ValueDescription{{Name: "text", DataType: tensor.Bytes,
				Shape: []int64{onnx.Dynamic}}},
			Outputs: []onnx.ValueDescription{{Name: "words", DataType: tensor.Bytes,
				Shape: []int64{onnx.Dynamic}}},
			Nodes: []onnx.Node{normalize},
		}, nil)
		m, err := x.Load(t.Context(), v)
		if err == nil { // the machine has en_US.UTF-8
			if locale != "" {
				t.Errorf("a locale that is nowhere was found")
			}
			m.Close()
			continue
		}
		if !strings.Contains(err.Error(), "install the locale "+want) {
			t.Errorf("got %v, want that the locale %s is to be installed", err, want)
		}
		if strings.Count(err.Error(), v.Path) != 1 {
			t.Errorf("got %v, want the path once", err)
		}
	}
}
