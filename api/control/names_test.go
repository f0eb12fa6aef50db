package control

import (
	"slices"
	"testing"

	"github.com/muster-serve/muster/api/names"
)

// TestTypesOfParts: lanes of which only a part runs a model are of a type that names the cores, the
// ways and the models beside it.
func TestTypesOfParts(t *testing.T) {
	m := &Member{
		Name: "eve", InstanceType: "c5n.2xlarge", Provider: "cpu", Lanes: 6, Cores: 1,
		Models: []*Model{
			{Name: "rm2", Version: 1}, {Name: "wnd", Version: 2}, {Name: "ncf", Version: 1},
		},
	}
	if got := m.LaneTypeOf("rm2"); got != m.LaneType() {
		t.Errorf("without parts: %s", got)
	}
	m.Parts = []*Part{
		{Lanes: 2, Models: []string{"rm2"}, Cores: 2, Ways: 4},
		{First: 2, Lanes: 4, Models: []string{"wnd", "ncf"}},
	}
	keys := map[names.TableKey]bool{}
	m.ProfileKeys(keys)
	for model, want := range map[string]names.LaneType{
		"rm2": "c5n.2xlarge/cpu/2+ncf+wnd/4w", "wnd": "c5n.2xlarge/cpu/1+rm2",
		"ncf": "c5n.2xlarge/cpu/1+rm2", "other": "c5n.2xlarge/cpu/1",
	} {
		if got := m.LaneTypeOf(model); got != want {
			t.Errorf("%s runs on %s, want %s", model, got, want)
		}
		i := slices.IndexFunc(m.Models, func(held *Model) bool { return held.Name == model })
		if i >= 0 && (!keys[names.TableKey{Model: m.Models[i].Key(), Type: want}] ||
			!keys[names.TableKey{Model: m.Models[i].Key(), Type: want.Own("eve")}]) {
			t.Errorf("no keys of %s on %s: %v", model, want, keys)
		}
	}
	if len(keys) != 6 {
		t.Errorf("%d keys, want 6", len(keys))
	}
}
