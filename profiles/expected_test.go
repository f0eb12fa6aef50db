package profiles_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/profiles"
)

// TestShown: what models of a kind of lane have shown is expected of their family there, less of
// other families and of few queries, and of other kinds not at all.
func TestShown(t *testing.T) {
	s := &profiles.ProfileErrors{}
	if f := s.Factor("cpu", "a"); f != 1 {
		t.Errorf("where nothing has run %v is expected, want 1", f)
	}
	s.Add("cpu", "a", 1.5, 1e6)
	s.Add("cpu", "b", 1, 1e6)
	s.Add("few", "a", 1.5, 4)
	s.Add("kept", "a", 1.01, 1e6)
	s.Add("none", "a", math.NaN(), 1e6)
	s.Add("none", "a", 2, 0)
	for _, c := range []struct {
		lane, family string
		least, most  float64
	}{
		{"cpu", "a", 1.35, 1.5}, {"cpu", "b", 1, 1.15}, {"cpu", "c", 1.15, 1.3},
		{"few", "a", 1.05, 1.35}, {"kept", "a", 1, 1}, {"none", "a", 1, 1}, {"gpu", "a", 1, 1},
	} {
		if f := s.Factor(c.lane, c.family); !(f >= c.least && f <= c.most) {
			t.Errorf("of family %s on %s %.3f is expected, want %v to %v", c.family, c.lane, f,
				c.least, c.most)
		}
	}
}

// TestExpected: profiles that no query has confirmed are scaled as those that ran on their kind of
// lane, and only once, whoever begins from them.
func TestExpected(t *testing.T) {
	key := func(model, typ string) profiles.Key {
		return profiles.Key{
			Model: model, Version: 1, InstanceType: profiles.InstanceType(typ), Provider: "cpu",
		}
	}
	said := func(model, typ string) *profiles.Table {
		knot := func(batch int, mean time.Duration) profiles.Knot {
			return profiles.Knot{BatchSize: batch, Mean: mean, P50: mean, P90: mean, P99: mean}
		}
		table, err := profiles.NewTable(key(model, typ), profiles.Measured, "", []profiles.Knot{
			knot(1, 2*time.Millisecond), knot(100, 20*time.Millisecond),
		})
		if err != nil {
			t.Fatal(err)
		}
		return table
	}
	family := func(string) string { return "f" }
	b := profiles.NewBook(nil)
	for _, typ := range []string{"x", "y"} {
		for _, model := range []string{"fast", "slow"} {
			b.Begin(key(model, typ), said(model, typ))
		}
	}
	for i := range 200 {
		took := time.Duration(1.5 * float64(said("fast", "x").Mean(1+i%100)))
		if err := b.Observe(key("fast", "x"), 1+i%100, took, "a",
			time.Unix(int64(i), 0)); err != nil {
			t.Fatal(err)
		}
	}
	times := func(b *profiles.Book, model, typ string) float64 {
		table := b.Expected(key(model, typ), b.ProfileErrors(family), "f")
		return float64(table.Mean(50)) / float64(said(model, typ).Mean(50))
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got/want-1) > .07 {
			t.Errorf("%s is expected to take %.3f times as long, want %v", what, got, want)
		}
	}
	near("what has run", times(b, "fast", "x"), 1.5)
	near("what has not", times(b, "slow", "x"), 1.5)
	near("what ran on another type", times(b, "fast", "y"), 1)
	near("what has not, there", times(b, "slow", "y"), 1)

	// A successor is told of it, in the form that goes through JSON, and saves it.
	told := b.Expected(key("slow", "x"), b.ProfileErrors(family), "f")
	data, err := json.Marshal(told)
	var read profiles.Table
	if err == nil {
		err = json.Unmarshal(data, &read)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !read.HasRun() || read.Origin() == profiles.Learned ||
		!strings.Contains(read.Source(), "measured of slow") {
		t.Errorf("it is %s, %q", read.Origin(), read.Source())
	}
	b.Begin(key("other", "x"), &read)
	near("what was scaled before", times(b, "other", "x"), 1.5)
}
