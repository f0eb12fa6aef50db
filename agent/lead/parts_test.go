package lead

import (
	"slices"
	"testing"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/profiles"
)

// TestParts: a member's parts are of types that name the models beside them, and so are the keys of
// what is learned there; parts that contradict its lanes are not believed.
func TestParts(t *testing.T) {
	described := func(parts ...*control.Part) *leader.Member {
		return memberOf(profiles.DefaultCatalogue(), &control.Member{
			Name: "eve", InstanceType: "local", Provider: "cpu", Lanes: 3, Cores: 1, Parts: parts,
			Models: []*control.Model{{Name: "rm2", Version: 1}, {Name: "wnd", Version: 2}},
		})
	}
	rm2 := &control.Part{Lanes: 1, Models: []string{"rm2"}, Cores: 2}
	wnd := &control.Part{First: 1, Lanes: 2, Models: []string{"wnd"}}
	m := described(rm2, wnd)
	if len(m.Parts) != 2 || m.Parts[0].Type != "local/cpu/2+wnd" ||
		m.Parts[0].OwnType != "local/cpu/2+wnd@eve" || m.Parts[1].Type != "local/cpu/1+rm2" ||
		m.Parts[1].First != 1 || m.Parts[1].Lanes != 2 ||
		!slices.Equal(m.Parts[1].Models, []leader.ModelID{{Name: "wnd", Version: 2}}) {
		t.Errorf("parts %+v", m.Parts)
	}
	if k := m.Models[0].Profile; k.Beside != "wnd" || k.Cores != 2 {
		t.Errorf("rm2's profile is that of %s", k)
	}
	for _, parts := range [][]*control.Part{
		{wnd, rm2}, {rm2, rm2}, {rm2, wnd, {First: 3, Lanes: 1}}, {{Lanes: 1 << 31}},
	} {
		if m := described(parts...); m.Parts != nil {
			t.Errorf("these are believed: %+v", m.Parts)
		}
	}
}
