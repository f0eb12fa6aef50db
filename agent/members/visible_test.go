package members

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
)

// sharingView has members that share their lanes between models in several ways, one that does not,
// and prices and profiles of all lanes and of some that are gone. All of them differ.
func sharingView() *control.View {
	member := func(name string, parts ...*control.Part) *control.Member {
		m := &control.Member{
			Name: name, InstanceType: "box", Provider: "cpu", Lanes: 2, Cores: 1, Parts: parts,
		}
		for _, p := range parts {
			for _, model := range p.Models {
				m.Models = append(m.Models, &control.Model{Name: model, Version: 1})
			}
		}
		return m
	}
	part := func(models ...string) *control.Part { return &control.Part{Lanes: 1, Models: models} }
	v := &control.View{Members: []*control.Member{
		member("a", part("ncf", "wnd"), part("secret-a")),
		member("b", part("secret-b"), part("wnd")),
		member("c", part("secret-b"), &control.Part{Models: []string{"wnd"}, Cores: 2, Ways: 3}),
		member("d", part("wnd"), part("ncf")),
		member("e", part("secret-a", "secret-b"), part("wnd"), part("mmm"), part("zzz")),
		member("f"),
	}}
	v.Members[5].Models = []*control.Model{{Name: "wnd", Version: 1}}
	v.Members[5].Loadable = []*control.Model{{Name: "secret-a", Version: 1}}
	types := map[names.LaneType]bool{"box/cpu/1+secret-gone": true}
	for _, m := range v.Members {
		types[m.LaneType()], types[m.OwnLaneType()] = true, true
		for _, held := range m.Models {
			types[m.LaneTypeOf(held.Name)] = true
			types[m.LaneTypeOf(held.Name).Own(m.AgentName())] = true
		}
	}
	for typ := range types {
		v.Prices = append(v.Prices, &control.TypePrice{
			Type: string(typ), PerMs: float64(len(v.Prices) + 1), ServiceMs: 1,
			Classes: []*control.ClassPrice{
				{Models: []string{"secret-a/1", "wnd/1"}, PerMs: 1}, {Models: []string{"wnd/1"}},
			},
		})
		for _, model := range []string{"mmm", "ncf", "secret-a", "secret-b", "wnd", "zzz"} {
			v.Profiles = append(v.Profiles, &control.Profile{
				Model: model + "/1", Type: string(typ),
				Table: fmt.Append(nil, len(v.Profiles)),
			})
		}
	}
	return v
}

// knownOf is what a gateway looks up in a view to decide where a model's queries run, by member.
func knownOf(v *control.View, model string) (known []string) {
	price := func(typ names.LaneType) (per float64) {
		for _, p := range v.Prices {
			if p.Type == string(typ) {
				per = p.PerMs
			}
		}
		return per
	}
	table := func(typ names.LaneType) (table string) {
		for _, p := range v.Profiles {
			if p.Model == model+"/1" && p.Type == string(typ) {
				table = string(p.Table)
			}
		}
		return table
	}
	for _, m := range v.Members {
		typ, first := m.LaneTypeOf(model), m.LaneType()
		if len(m.Parts) > 0 {
			first = m.LaneTypeOf(m.Parts[0].Models[0])
		}
		known = append(known, fmt.Sprint(m.Name, " ", price(first), price(m.OwnLaneType()),
			table(typ), table(typ.Own(m.AgentName()))))
	}
	return known
}

// TestVisibleNeighbours: a client that may not query all models is shown no name of the others in
// the lanes of what it may query, and finds for its models the same prices and profiles.
func TestVisibleNeighbours(t *testing.T) {
	ms := newLone(&control.Member{Name: "self"})
	v := sharingView()
	before := proto.CloneOf(v)
	sees := func(model string) bool { return slices.Contains([]string{"ncf", "wnd"}, model) }
	shown := ms.Visible(v, sees)
	if !proto.Equal(v, before) {
		t.Error("the view itself was changed")
	}
	if text := shown.String(); regexp.MustCompile("secret|mmm|zzz").MatchString(text) {
		t.Errorf("a client of ncf and wnd is shown %s", text)
	}
	for _, model := range []string{"ncf", "wnd"} {
		got, want := knownOf(shown, model), knownOf(v, model)
		if strings.Contains(want[0], " 0") {
			t.Fatalf("the test knows too little: %q", want)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: it finds\n%q, want\n%q", model, got, want)
		}
	}
	if got := ms.Visible(v, func(string) bool { return true }); got != v {
		t.Errorf("who may query all is shown %v", got)
	}
	if got := ms.Visible(v, sees); !proto.Equal(got, shown) {
		t.Errorf("another time it is shown %v, want %v", got, shown)
	}
}

// TestAliases: two models have two aliases, and nobody else could have made them of the names.
func TestAliases(t *testing.T) {
	ms, other := &Members{secret: []byte("one")}, &Members{secret: []byte("two")}
	if a, b := ms.aliasOf("a"), ms.aliasOf("b"); a == b || a != ms.aliasOf("a") ||
		a == other.aliasOf("a") {
		t.Errorf("got %q and %q, with another secret %q", a, b, other.aliasOf("a"))
	}
}

// TestHide: a leader's message says nothing of lanes that other models may share, and all else.
func TestHide(t *testing.T) {
	price := func(typ string) *control.TypePrice { return &control.TypePrice{Type: typ, PerMs: 2} }
	profile := func(model, typ string) *control.Profile {
		return &control.Profile{Model: model, Type: typ}
	}
	prices := []*control.TypePrice{price("box/cpu/1"), price("box/cpu/1@a")}
	withClasses := []*control.TypePrice{price("box/cpu/1"), price("box/cpu/1@a")}
	withClasses[0].Classes = []*control.ClassPrice{{Models: []string{"secret/1"}}, {}}
	told := []*control.Profile{
		profile("wnd/1", "box/cpu/1"), profile("wnd/1", "box/cpu/1+secret"),
		profile("secret/1", "box/cpu/1"), profile("wnd/1", "box/cpu/1+secret/4w@a"),
	}
	m := &control.MatchMessage{Received: 7, Prices: withClasses, Profiles: told}
	Hide(m, func(model string) bool { return model == "wnd" })
	if want := (&control.MatchMessage{
		Received: 7, Prices: prices, Profiles: told[:1],
	}); !proto.Equal(m, want) {
		t.Errorf("got %v, want %v", m, want)
	}
	if len(withClasses[0].Classes) != 2 {
		t.Error("the leader's own prices were changed")
	}
	m.Prices = append(prices, price("box/cpu/1+secret"))
	Hide(m, func(model string) bool { return model == "wnd" })
	if m.Prices != nil || len(m.Profiles) != 1 {
		t.Errorf("with a price of shared lanes: got %v", m)
	}
	if told[1].Type != "box/cpu/1+secret" {
		t.Error("the leader's own profiles were changed")
	}
}
