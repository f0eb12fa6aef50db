package choose

import (
	"testing"
	"time"

	"github.com/muster-serve/muster/leader/plan"
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

// accuracyOf is the mean accuracy of the demand that a choice is for.
func accuracyOf(f *Fleet, p *plan.Problem) (mean float64) {
	all := 0.0
	for _, m := range p.Models {
		for _, v := range f.Families[0].Variants {
			if m.Name == "rank by "+v.Name {
				mean += m.Weight * v.Accuracy
			}
		}
		all += m.Weight
	}
	return mean / all
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
		accuracy := 1.0
		if target < 1 {
			accuracy = accuracyOf(f, choice.Problem)
		}
		t.Logf("target %v: %s at $%.3f/hr, accuracy %.4f", target, Text(choice.Counts),
			choice.Price, accuracy)
		if accuracy < target-1e-6 || choice.Serves < choice.Rate*(1-1e-6) {
			t.Errorf("target %v: accuracy %v, serves %v of %v", target, accuracy, choice.Serves,
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
