package serve

import (
	"testing"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
)

// TestMetadataOfOthers: whatever other agents say of the variants of a family, its metadata is made
// of it without a panic, with the bounds that hold for all variants.
func TestMetadataOfOthers(t *testing.T) {
	variant := func(name string, properties map[string]string) control.Variant {
		return control.Variant{Model: &control.Model{
			Name: name, Version: 1, LargestBatchSize: 1,
			Metadata: &inference.ModelMetadataResponse{Name: name, Properties: properties},
		}}
	}
	nothing := variant("a", nil)
	nothing.Metadata = nil
	for _, tt := range []struct {
		a, b   control.Variant
		bounds string
	}{
		{nothing, variant("b", nil), ""},
		{variant("a", nil), nothing, ""},
		{
			variant("a", map[string]string{"id_bounds.ids": "5,6,7"}),
			variant("b", map[string]string{"id_bounds.ids": "6,5"}), "5,5,5",
		},
	} {
		m, err := familyMetadata(&control.Family{
			Name: "family", Variants: []control.Variant{tt.a, tt.b},
		})
		if err != nil || m.GetName() != "family" || m.GetProperties()["id_bounds.ids"] != tt.bounds {
			t.Errorf("got %v, %v, want the bounds %q", m, err, tt.bounds)
		}
	}
	if m := metadataOf(nothing.Model); m.Name != "a" || m.Properties == nil {
		t.Errorf("got %v of a model without metadata", m)
	}
}
