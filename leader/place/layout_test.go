package place

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/muster-serve/muster/api/names"
)

func TestLayoutTexts(t *testing.T) {
	for text, want := range map[string]string{
		"-":                         "-",
		"wnd/1":                     "wnd/1",
		"wnd/1,ncf/1":               "ncf/1,wnd/1",
		"wnd/1:6x1/7w+rm2/1:2x1/4w": "rm2/1:2x1/4w+wnd/1:6x1/7w",
		"a%2Bb:1x2":                 "a%2Bb:1x2",
		"%2D":                       "%2D",
	} {
		l, err := ParseLayout(text)
		if err != nil || l.String() != want {
			t.Errorf("%q: got %q, %v, want %q", text, l, err, want)
		}
	}
	for text, want := range map[string]string{
		"":                         "a model without a name",
		"a,":                       "a model without a name",
		"a:1":                      `has "1" for its lanes`,
		"a:0x1":                    `has "0x1" for its lanes`,
		"a:1x0":                    "1 lanes of 0 cores",
		"a:1x1/0w":                 `has "1x1/0w" for its lanes`,
		"a:1x1/-2w":                `has "1x1/-2w" for its lanes`,
		"a:1x1/2":                  `has "1x1/2" for its lanes`,
		"a+b:1x1":                  "partition \"a\" of 2 has no number of lanes",
		"a,a":                      "has model a twice",
		"a%2":                      "an escape that is not complete",
		"a%zz":                     "want % and two hexadecimal digits",
		"a:99999999999999999999x1": "for its lanes",
		// as many cores as an int overflows to 0 with
		"a:4611686018427387904x4": "at most 65536 of each",
		"a:1x1/65537w":            "at most 65536 of each",
	} {
		if l, err := ParseLayout(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %q, %v, want an error with %q", text, l, err, want)
		}
	}
}

// TestLayoutNames: a layout's name is read as the same layout, in whatever order it was made, and
// no two have one name.
func TestLayoutNames(t *testing.T) {
	seen := map[string]Layout{}
	rapid.Check(t, func(r *rapid.T) {
		model := rapid.StringMatching(`[-a%+:, /x1-3]{1,4}`)
		var l Layout
		for range rapid.IntRange(0, 3).Draw(r, "partitions") {
			var p Partition
			for _, m := range rapid.SliceOfNDistinct(model, 1, 3, rapid.ID).Draw(r, "models") {
				p.Models = append(p.Models, names.ModelKey(m))
			}
			p.Lanes, p.Cores = rapid.IntRange(1, 3).Draw(r, "lanes"), rapid.IntRange(1, 2).Draw(r,
				"c")
			p.Ways = rapid.IntRange(0, 2).Draw(r, "ways")
			l.Partitions = append(l.Partitions, p)
		}
		if len(l.Partitions) == 1 && rapid.Bool().Draw(r, "whole") {
			l.Partitions[0] = Partition{Models: l.Partitions[0].Models}
		}
		back, err := ParseLayout(l.String())
		if err != nil || back.String() != l.String() {
			r.Fatalf("%#v is named %q, which is read as %#v, %v", l, l, back, err)
		}
		turned := Layout{slices.Clone(l.Partitions)}
		slices.Reverse(turned.Partitions)
		if !turned.Equal(l) {
			r.Fatalf("%q and, in another order, %q", l, turned)
		}
		if was, ok := seen[l.String()]; ok && !same(was, l) {
			r.Fatalf("%#v and %#v are both named %q", was, l, l)
		}
		seen[l.String()] = l
		text, err := json.Marshal(l)
		var read Layout
		if err != nil || json.Unmarshal(text, &read) != nil || !read.Equal(l) {
			r.Fatalf("%s", text)
		}
	})
}

// same compares by parts, without names.
func same(a, b Layout) bool {
	a, b = a.canonicalForm(), b.canonicalForm()
	return slices.EqualFunc(a.Partitions, b.Partitions, func(p, q Partition) bool {
		return slices.Equal(p.Models, q.Models) && p.Lanes == q.Lanes && p.Cores == q.Cores &&
			p.Ways == q.Ways
	})
}

func TestLaneTypeOfPartition(t *testing.T) {
	l, err := ParseLayout("rm2/1:2x1/4w+wnd/1:6x1")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		i          int
		of, expect names.LaneType
	}{
		{0, "c5n.2xlarge/cpu/8", "c5n.2xlarge/cpu/1+wnd/4w"},
		{1, "c5n.2xlarge/cpu/8@eve", "c5n.2xlarge/cpu/1+rm2@eve"},
	} {
		if got := l.LaneType(c.i, c.of); got != c.expect {
			t.Errorf("partition %d on %s: got %s, want %s", c.i, c.of, got, c.expect)
		}
	}
	if got := NewLayout("a").LaneType(0, "x/cpu/8"); got != "x/cpu/8" {
		t.Errorf("all of the agent: got %s", got)
	}
}
