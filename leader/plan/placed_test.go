package plan

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/profiles"
)

// randomPlaced is a small problem of instances and what they hold, some of them pairs.
func randomPlaced(rng *rand.Rand) (*Problem, *place.Program) {
	p, program := &Problem{}, &place.Program{}
	for t := range 1 + rng.IntN(3) {
		name := fmt.Sprint("t", t)
		p.Types = append(p.Types, Type{
			Name: profiles.InstanceType(name), Price: .1 * float64(1+rng.IntN(8)),
			Max: 1 + rng.IntN(4),
		})
		program.Types = append(program.Types, place.Type{Name: name})
	}
	var family []int
	for f := range 1 + rng.IntN(2) {
		program.Classes = append(program.Classes, place.Class{
			Family: fmt.Sprint("f", f), Rate: float64(5 + rng.IntN(60)),
		})
		for v := range 1 + rng.IntN(2) {
			program.Variants = append(program.Variants, place.Variant{
				Model: fmt.Sprint("f", f, "v", v), Family: fmt.Sprint("f", f),
				Accuracy: 70 + 30*rng.Float64(),
			})
			family = append(family, f)
		}
	}
	rate := func() float64 { return 1 + rng.Float64()*40 }
	for t := range program.Types {
		for v := range program.Variants {
			program.Choices = append(program.Choices, place.Choice{
				Type: t, Partitions: [][]place.Service{{{Class: family[v], Variant: v, Rate: rate()}}},
			})
		}
		a, b := rng.IntN(len(family)), rng.IntN(len(family))
		if rng.IntN(2) == 0 {
			program.Choices = append(program.Choices, place.Choice{
				Type: t, Partitions: [][]place.Service{
					{{Class: family[a], Variant: a, Rate: rate()}},
					{{Class: family[b], Variant: b, Rate: rate()}},
				},
			})
		}
	}
	return p, program
}

// TestPlacedAgainstAll: the plan is as good as the best of all configurations, each placed on its
// own: within a budget, and for an accuracy.
func TestPlacedAgainstAll(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "seed"), 3))
		p, program := randomPlaced(rng)
		least := 0.0
		if rng.IntN(2) == 0 {
			least = 75 + 20*rng.Float64()
		}
		if p.Budget = .8 + 2*rng.Float64(); least > 0 && rng.IntN(2) == 0 {
			p.Budget = 0
		}
		all := *p
		if all.Budget == 0 {
			all.Budget = 1e6
		}
		space, err := all.Space()
		if err != nil {
			r.Skip()
		}
		share, accuracy, cheapest := 0.0, 0.0, math.Inf(1)
		for _, c := range space {
			one := *program
			one.Types = nil
			for i, n := range c {
				one.Types = append(one.Types, place.Type{Name: program.Types[i].Name, Count: n})
			}
			sol, err := place.Solve(&one, 2000)
			if err != nil {
				r.Fatal(err)
			}
			if sol.Served > share+1e-9 || sol.Served > share-1e-9 && sol.Accuracy > accuracy {
				share, accuracy = sol.Served, sol.Accuracy
			}
			if sol.Served > 1-1e-9 && sol.Accuracy >= least {
				cheapest = min(cheapest, p.Price(c))
			}
		}
		got, err := Placed{Program: program, LeastAccuracy: least}.Plan(context.Background(), p)
		if err != nil {
			r.Fatal(err)
		}
		first := got.Plans[0]
		if !all.Affordable(first.Configuration) {
			r.Fatalf("%v is not within the limits", first.Configuration)
		}
		if met := least > 0 && !math.IsInf(cheapest, 1); met {
			if !got.Met || math.Abs(first.Price-cheapest) > 1e-9 || first.Accuracy < least-1e-3 ||
				got.BoundPrice > cheapest+1e-9 {
				r.Fatalf("%v at %v $/hr, bound %v; want %v $/hr for accuracy %v", first.Configuration,
					first.Price, got.BoundPrice, cheapest, least)
			}
			return
		}
		if got.Met != (least == 0 && share > 1-1e-9) {
			r.Fatalf("met is %v, and %v can be served", got.Met, share)
		}
		if first.Served < share-1e-7 || first.Accuracy < accuracy-PlacedTolerance ||
			got.BoundServed < share-1e-9 ||
			math.Abs(first.Served-share) < 1e-9 && got.Bound < accuracy-1e-6 {
			r.Fatalf("%v serves %v (bound %v) at %v (bound %v), want %v and %v", first.Configuration,
				first.Served, got.BoundServed, first.Accuracy, got.Bound, share, accuracy)
		}
	})
}

// TestPlacedCheapest: of fleets that serve the same as accurately the cheapest is taken, and what
// would serve nothing is not rented.
func TestPlacedCheapest(t *testing.T) {
	p := &Problem{Budget: 10, Types: []Type{{Name: "dear", Price: 1}, {Name: "cheap", Price: .3}}}
	program := &place.Program{
		Types:    []place.Type{{Name: "dear"}, {Name: "cheap"}},
		Variants: []place.Variant{{Model: "v", Family: "f", Accuracy: 100}},
		Classes:  []place.Class{{Family: "f", Rate: 20}},
	}
	for typ := range 2 {
		program.Choices = append(program.Choices, place.Choice{
			Type: typ, Partitions: [][]place.Service{{{Rate: 10}}},
		})
	}
	r, err := Placed{Program: program}.Plan(context.Background(), p)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Plans[0]; got.Configuration.String() != "(0,2)" || got.Served != 1 || !r.Met {
		t.Errorf("got %v, which serves %v", got.Configuration, got.Served)
	}
}

func TestPlacedBadInput(t *testing.T) {
	p, program := randomPlaced(rand.New(rand.NewPCG(1, 1)))
	for i := range p.Types {
		p.Types[i].Max = 0
	}
	if _, err := (Placed{Program: program}).Plan(context.Background(), p); err == nil ||
		!strings.Contains(err.Error(), "which budget") {
		t.Errorf("without a budget: %v", err)
	}
	p.Budget = 1e9
	if _, err := (Placed{Program: program}).Plan(context.Background(), p); err == nil {
		t.Error("a budget that buys a billion instances has no error")
	}
	p.Budget = 0
	program.Classes[0].Rate = math.NaN()
	if _, err := (Placed{Program: program, LeastAccuracy: 90}).Plan(context.Background(),
		p); err == nil || !strings.Contains(err.Error(), "rate is NaN") {
		t.Errorf("a rate that is no number: %v", err)
	}
}
