package control

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestFamilies(t *testing.T) {
	variant := func(name string, version int64, accuracy float64, newest bool) *Model {
		return &Model{Name: name, Version: version, Newest: newest, Family: "ctr",
			Accuracy: accuracy, LargestBatchSize: uint32(100 * version)}
	}
	members := []*Member{
		{Name: "a", Models: []*Model{
			variant("wnd-int8", 1, .9994, false), variant("wnd-int8", 2, .9994, true),
			{Name: "ncf", Version: 1, Newest: true},
		}},
		{Name: "b", Models: []*Model{variant("wnd-int8", 1, .9994, true), variant("wnd", 1, 1, true)}},
		{Name: "c", Draining: true, Models: []*Model{
			variant("wnd-int8", 3, .9994, true), variant("wnd-xs", 1, .9, true),
		}},
		{Name: "d", Models: []*Model{
			{Name: "ncf-int8", Version: 1, Newest: true, Family: "ncf"}, // refused by d soon
			{Name: "din-int8", Version: 1, Newest: true, Family: "din"},
		}},
	}
	families := Families(members)
	if len(families) != 2 || families["din"] == nil {
		t.Fatalf("got %v, want ctr and din: ncf is a model", families)
	}
	var got []string
	for _, v := range families["ctr"].Variants {
		got = append(got, fmt.Sprint(v.Key(), " ", v.Serving))
	}
	if want := "wnd/1 true, wnd-int8/2 true, wnd-xs/1 false"; strings.Join(got, ", ") != want {
		t.Errorf("got %s, want %s", got, want)
	}
	f := families["ctr"]
	if !f.Serving() || f.LargestBatchSize() != 100 {
		t.Errorf("serving %v, batch sizes up to %d, want true and 100", f.Serving(),
			f.LargestBatchSize())
	}
	if v := families["din"].Variants[0]; v.KnownAccuracy() != 1 {
		t.Errorf("an unknown accuracy counts as %v, want 1", v.KnownAccuracy())
	}
	if Families(members[3:3]) != nil {
		t.Error("want nil of no members")
	}
	for _, c := range []struct {
		version string
		least   float64
		want    string
		invalid bool
	}{
		{"", 0, "", false}, {"", 1, "", false},
		{"2", 0, `version "2" of "ctr", which is a family`, true},
	} {
		if why, invalid := f.Refuses(c.version, c.least); !strings.Contains(why, c.want) ||
			(c.want == "") != (why == "") || invalid != c.invalid {
			t.Errorf("version %q, least %v: %q, %v, want %q, %v", c.version, c.least, why, invalid,
				c.want, c.invalid)
		}
	}
	f.Variants = f.Variants[1:]
	const want = `no variant of family "ctr" reaches min_accuracy 0.9995; the most accurate is ` +
		`wnd-int8 with 0.9994`
	if why, invalid := f.Refuses("", .9995); why != want || invalid {
		t.Errorf("got %q, %v, want %q", why, invalid, want)
	}
}

// TestFamiliesLeaveOut: what older members announce for a family, and is too inaccurate beside what
// others hold or can load, does not answer for it.
func TestFamiliesLeaveOut(t *testing.T) {
	variant := func(name string, accuracy float64) *Model {
		return &Model{Name: name, Version: 1, Newest: true, Family: "ctr", Accuracy: accuracy}
	}
	guess := &Member{Name: "older", Models: []*Model{variant("guess", .044)}}
	for want, members := range map[string][]*Member{
		"[guess]":         {guess},
		"[wnd fifth]":     {guess, {Name: "b", Models: []*Model{variant("wnd", 1), variant("fifth", .8)}}},
		"[wnd]":           {guess, {Name: "c", Loadable: []*Model{variant("wnd", 1)}}},
		"[unknown fifth]": {guess, {Name: "d", Models: []*Model{variant("unknown", 0), variant("fifth", .8)}}},
	} {
		if got := fmt.Sprint(Families(members)["ctr"].Names()); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	// What any model states for the family counts, whether it answers for it or not.
	states := variant("fifth", .8)
	states.Family, states.StatesFor, states.MinAccuracy = "", "ctr", .99
	got := fmt.Sprint(Families([]*Member{
		{Name: "a", Models: []*Model{variant("wnd", 1), variant("wnd-int8", .98)}},
		{Name: "b", Models: []*Model{states}},
	})["ctr"].Names())
	if got != "[wnd]" {
		t.Errorf("of at least .99: got %s, want [wnd]", got)
	}
	got = fmt.Sprint(Families([]*Member{
		{Name: "a", Models: []*Model{variant("wnd", 1), variant("wnd-int8", .98)}},
		{Name: "b", Accuracies: []*FamilyAccuracy{{Family: "ctr", MinAccuracy: .99}}},
	})["ctr"].Names())
	if got != "[wnd]" {
		t.Errorf("by a fleet.yaml of at least .99: got %s, want [wnd]", got)
	}
}

// TestFamiliesLoadable: what members may load is a family of its own only if no member holds a
// variant, and says of the others that they may have more.
func TestFamiliesLoadable(t *testing.T) {
	model := func(name, family string, accuracy float64) *Model {
		return &Model{Name: name, Version: 1, Newest: true, Family: family, Accuracy: accuracy}
	}
	loadable := []*Model{
		model("wnd", "ctr", 1), model("wnd-int8", "ctr", .99), model("din", "feed", 1),
		model("ncf", "", 0), model("x", "held", 1),
	}
	members := []*Member{
		{Name: "a", Loadable: loadable}, {Name: "b", Loadable: loadable[:1]},
		{Name: "c", Models: []*Model{model("din-int8", "feed", .9)}},
		{Name: "d", Models: []*Model{model("held", "", 0)}},
		{Name: "e", Draining: true, Loadable: []*Model{model("y", "leaves", 1)}},
	}
	families := Families(members)
	var got []string
	for _, name := range slices.Sorted(maps.Keys(families)) {
		f := families[name]
		got = append(got, fmt.Sprint(name, f.Names(), f.Serving(), f.Loadable))
	}
	want := "ctr[wnd wnd-int8] false true, feed[din-int8] true true"
	if strings.Join(got, ", ") != want {
		t.Errorf("got %s, want %s", strings.Join(got, ", "), want)
	}
}
