package choose

import (
	"math"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/profiles"
)

// ranks is a fleet for 40 queries/s of a family of rm2 with accuracy 1 and dien with .98, beside a
// machine that was not rented.
func ranks(t *testing.T, target float64) *Fleet {
	t.Helper()
	prices := map[rent.Kind]float64{oneGPU: 0.526, small: 0.149}
	f := &Fleet{Problem: problem(t, prices), Prices: prices,
		Foreign: map[profiles.InstanceType]int{small.Type: 1}}
	f.Problem.Models[0].Weight = 40
	dien := Variant{Name: "dien", Accuracy: .98}
	for _, of := range f.Problem.Types {
		table, err := profiles.ShippedLibrary().Table("dien", of.Name)
		if err != nil {
			t.Fatal(err)
		}
		dien.Latencies = append(dien.Latencies, table)
	}
	f.Families = []Family{{Name: "rank", TargetAccuracy: target, Variants: []Variant{
		{Name: "rm2", Accuracy: 1, Latencies: f.Problem.Models[0].Latencies}, dien,
	}}}
	return f
}

// TestFamilyIsRentedFor: a family whose answers need an accuracy of .99 on average costs less than
// one that needs the best, more than one that needs .98, and has the accuracy; a plan that was taken
// is still the best afterwards, and what it serves is what was asked for.
func TestFamilyIsRentedFor(t *testing.T) {
	config := Config{Rate: 40, Headroom: 1.15, MaxPrice: 3, MinInstances: 1, Threshold: .05,
		Types: map[profiles.InstanceType]Limits{"g4dn.xlarge": {Max: 3}, "r5n.large": {Max: 8}}}
	cost := map[float64]float64{}
	for _, target := range []float64{1, .99, .98} {
		f := ranks(t, target)
		if target == 1 {
			f.Families = nil
		}
		c := New(config)
		choice, err := c.Choose(t.Context(), time.Hour, f)
		if err != nil {
			t.Fatal(err)
		}
		capacity, err := NewCapacity(f)
		if err != nil {
			t.Fatal(err)
		}
		all := map[profiles.InstanceType]int{small.Type: 1} // with what was not rented
		for kind, n := range choice.Counts {
			all[kind.Type] += n
		}
		carries := capacity.SafeRate(all)
		t.Logf("target %v: %s at $%.3f/hr carry %.4g queries/s", target, Text(choice.Counts),
			choice.Price, carries)
		if carries < choice.Rate*(1-1e-5) || choice.Serves < choice.Rate*(1-1e-6) {
			t.Errorf("target %v: carries %v, serves %v of %v", target, carries, choice.Serves,
				choice.Rate)
		}
		cost[target] = choice.Price
		f.Desired = choice.Counts
		if again, err := c.Choose(t.Context(), time.Hour, f); err != nil || again.Change ||
			Text(again.Counts) != Text(choice.Counts) {
			t.Errorf("target %v: then %+v, %v", target, again, err)
		}
	}
	if !(cost[.98] < cost[.99] && cost[.99] < cost[1]) || cost[.99] > .82 {
		t.Errorf("$/hr by target accuracy: %v", cost)
	}
}

// TestClassIsRentedFor: where clients demand the best answers for some of the queries, a fleet that is
// rented for less accurate ones carries those queries, too, with what machines have memory for, and
// costs more for it, but less than one for which all answers are the best.
func TestClassIsRentedFor(t *testing.T) {
	config := Config{Rate: 70, Headroom: 1.15, MaxPrice: 6, MinInstances: 1, Threshold: .05,
		Types: map[profiles.InstanceType]Limits{"g4dn.xlarge": {Max: 3}, "r5n.large": {Max: 20}}}
	for _, memory := range []float64{0, 1} {
		cost := map[float64]float64{}
		for _, share := range []float64{0, .005, .2, 1} {
			f := ranks(t, .98)
			f.Memory = map[profiles.InstanceType]float64{"r5n.large": memory, "g4dn.xlarge": memory}
			f.Sizes = map[string]float64{"rm2": 1, "dien": 1}
			without, err := NewCapacity(f)
			if err != nil {
				t.Fatal(err)
			}
			f.Families[0].Classes = []Class{{Models: []names.ModelKey{"rm2"}, Share: share}}
			choice, err := New(config).Choose(t.Context(), time.Hour, f)
			if err != nil {
				t.Fatal(err)
			}
			all := map[profiles.InstanceType]int{small.Type: 1}
			for kind, n := range choice.Counts {
				all[kind.Type] += n
			}
			t.Logf("memory for %v, %v demand the best: %s at $%.3f/hr, %.4g queries/s, %.4g without",
				memory, share, Text(choice.Counts), choice.Price, choice.Serves,
				without.SafeRate(all))
			if choice.Serves < choice.Rate*(1-1e-6) {
				t.Errorf("memory for %v, share %v: %s", memory, share, choice.Why)
			}
			if cost[share] = choice.Price; memory == 1 && share > 0 && all[small.Type]+
				all[oneGPU.Type] < 2 {
				t.Errorf("share %v: %v hold both variants", share, all)
			}
		}
		if !(cost[0] <= cost[.005] && cost[.005] <= cost[.2] && cost[.2] < cost[1] &&
			cost[0] < cost[.2]) {
			t.Errorf("memory for %v: $/hr by share %v", memory, cost)
		}
	}
}

// TestClassMeter: the part of a class is that of the queries of the last ten minutes, whatever was
// before, and begins anew with a term.
func TestClassMeter(t *testing.T) {
	var m ClassMeter
	now, class, family := time.Unix(0, 0), uint64(0), uint64(0)
	for i, share := range []float64{.5, .5, 0, 0, 0, 1, 0} {
		for range 15 {
			now = now.Add(time.Minute)
			class, family = class+uint64(100*share), family+100
			m.Share(now, "a", class, family)
		}
		if got := m.Share(now, "a", class, family); math.Abs(got-share) > 1e-9 {
			t.Errorf("part %d: %v, want %v", i, got, share)
		}
	}
	if got := m.Share(now, "a", 1, 4); got != .25 {
		t.Errorf("another term: %v, want .25", got)
	}
	if m.Share(now.Add(time.Hour), "b", 0, 0); len(m.counts) != 1 {
		t.Errorf("%d classes are remembered, want 1", len(m.counts))
	}
}

// TestFamilyAtLimit: where the price limit pays for no fleet that keeps the target accuracy, what
// is rented carries the load at less; where it pays for none that carries the load, it carries as much
// as any.
func TestFamilyAtLimit(t *testing.T) {
	types := map[profiles.InstanceType]Limits{"g4dn.xlarge": {Max: 3}, "r5n.large": {Max: 8}}
	for _, tt := range []struct {
		rate, limit float64
		want        int // of the small machines
		carries     bool
	}{{40, .16, 1, true}, {40, .05, 0, false}, {400, .31, 2, false}} {
		f := ranks(t, 1)
		c := New(Config{Rate: tt.rate, Headroom: 1.15, MaxPrice: tt.limit, Types: types})
		choice, err := c.Choose(t.Context(), time.Hour, f)
		if err != nil {
			t.Fatal(err)
		}
		if choice.Counts[small] != tt.want || len(choice.Counts) > 1 ||
			(choice.Serves >= choice.Rate) != tt.carries {
			t.Errorf("%v queries/s for at most $%v/hr: %s serves %v of %v: %s", tt.rate, tt.limit,
				Text(choice.Counts), choice.Serves, choice.Rate, choice.Why)
		}
	}
}

// TestMemoryIsRentedFor: where machines have memory for one variant, more are rented, which carry the
// load with one variant on each; where they have it for both, as many as where memory is not known.
func TestMemoryIsRentedFor(t *testing.T) {
	config := Config{Rate: 70, Headroom: 1.15, MaxPrice: 3, MinInstances: 1, Threshold: .05,
		Types: map[profiles.InstanceType]Limits{"g4dn.xlarge": {Max: 3}, "r5n.large": {Max: 8}}}
	cost := map[float64]float64{}
	for _, memory := range []float64{0, 2, 1} {
		f := ranks(t, .99)
		f.Memory = map[profiles.InstanceType]float64{"r5n.large": memory, "g4dn.xlarge": memory}
		f.Sizes = map[string]float64{"rm2": 1, "dien": 1}
		c := New(config)
		choice, err := c.Choose(t.Context(), time.Hour, f)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("memory for %v: %s at $%.3f/hr serve %.4g of %.4g", memory, Text(choice.Counts),
			choice.Price, choice.Serves, choice.Rate)
		if choice.Serves < choice.Rate*(1-1e-6) {
			t.Errorf("memory for %v: serves %v of %v", memory, choice.Serves, choice.Rate)
		}
		cost[memory] = choice.Price
		f.Desired = choice.Counts
		if again, err := c.Choose(t.Context(), time.Hour, f); err != nil || again.Change {
			t.Errorf("memory for %v: then %+v, %v", memory, again, err)
		}
	}
	if cost[0] != cost[2] || cost[1] <= cost[2] {
		t.Errorf("$/hr by memory: %v", cost)
	}
}
