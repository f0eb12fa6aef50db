package models

import (
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/models/onnx"
)

// TestInferredIndependence: a graph that proves its rows independent has queries split and merged;
// settings that say otherwise count, and so do inputs that queries cannot share.
func TestInferredIndependence(t *testing.T) {
	rows := []onnx.ValueDescription{port("x", "n", 4)}
	ranker := []onnx.ValueDescription{port("items", "n"), port("user", "u")}
	fixed := []onnx.ValueDescription{port("items", "n"), port("user", 1)}
	scalar := []onnx.ValueDescription{port("items", "n"), port("k")}
	out := []onnx.ValueDescription{port("y", "n", 4)}
	for _, tt := range []struct {
		name, settings string
		inputs         []onnx.ValueDescription
		by             string
		merge          names.MergePolicy
	}{
		{"nothing said", "", rows, "graph", names.MergeDeadline},
		{"said", "rows_independent: true", rows, "settings", names.MergeDeadline},
		{"denied", "rows_independent: false", rows, "", names.MergeNone},
		{"not merged", "merge: none", rows, "graph", names.MergeNone},
		{"a ranker", "", ranker, "graph", names.MergeDeadline},
		{"the query's own", "", fixed, "graph", names.MergeNone},
		{"a scalar", "", scalar, "", names.MergeNone},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v, err := ReadVersion(putModel(t, tt.inputs, out, tt.settings), "m", 1)
			if err != nil {
				t.Fatal(err)
			}
			if v.IndependentBy() != tt.by || v.Config.Merging() != tt.merge ||
				v.Config.Splits() != (tt.by != "") {
				t.Errorf("by %q, merges %q, splits %t, want by %q and %q", v.IndependentBy(),
					v.Config.Merging(), v.Config.Splits(), tt.by, tt.merge)
			}
			again, err := v.Config.YAML()
			if err != nil || strings.Contains(string(again), "rows_independent") !=
				strings.Contains(tt.settings, "rows_independent") {
				t.Errorf("the settings are written as %s, %v, want %q", again, err, tt.settings)
			}
		})
	}
}
