package plan

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/leader/staffing"
	"github.com/muster-serve/muster/profiles"
)

// TestReplanAfterChange: the monitor sees queries grow small, kairos plans for them in one shot,
// and the decision says what it brings.
func TestReplanAfterChange(t *testing.T) {
	p := rm2()
	first, err := (Kairos{}).Plan(t.Context(), p, nil)
	if err != nil {
		t.Fatal(err)
	}
	current := first.Plans[0].Configuration
	r := rand.New(rand.NewPCG(5, 6))
	now := time.Unix(0, 0)
	m := profiles.NewMonitor()
	observe := func(n int, batch func() int) {
		for range n {
			now = now.Add(time.Duration(r.ExpFloat64() * 1e7))
			if err := m.Observe(batch(), now); err != nil {
				t.Fatal(err)
			}
		}
	}
	observe(2000, func() int { return 1 + r.IntN(200) })
	if _, changed := m.Change(); changed {
		t.Fatal("a change where there was none")
	}
	observe(4000, func() int { return 700 + r.IntN(300) })
	if _, changed := m.Change(); !changed {
		t.Fatal("no change seen")
	}
	m.Rebase()
	p, err = p.WithDemand("rm2", m.Distribution(), m.Rate(now, time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	d, err := (&Replanner{Planner: Kairos{}}).Decide(t.Context(), current, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	// Large queries are for the base type.
	if !d.Change || d.Gain < 0.5 || d.Plan.Configuration[0] != 3 ||
		!strings.Contains(d.Reason, "instead of g4dn.xlarge=1") {
		t.Errorf("%+v", d)
	}
	if _, err := p.WithDemand("ncf", nil, 1); err == nil || !strings.Contains(err.Error(), "ncf") {
		t.Errorf("unknown model: %v", err)
	}
}

func TestDecide(t *testing.T) {
	best := Configuration{1, 0, 13, 0}
	for _, tt := range []struct {
		name      string
		planner   Planner
		current   Configuration
		budget    float64
		rate      float64 // least cost for it; 0: most throughput
		threshold float64
		change    bool
		reason    string
	}{
		{"the best", KairosPlus{}, best, 2.5, 0, 0, false, "still the best"},
		{"much better", KairosPlus{}, Configuration{4, 0, 0, 0}, 2.5, 0, 0, true, "% more"},
		{"a little better", Fluid{}, Configuration{1, 0, 12, 1}, 2.5, 0, 0, false,
			"less than the 5 %"},
		{"a little better is enough", Fluid{}, Configuration{1, 0, 12, 1}, 2.5, 0, 0.01, true,
			"% more"},
		{"beyond the budget", Fluid{}, Configuration{1, 0, 14, 0}, 2.5, 0, 0, true,
			"no longer within the limits"},
		{"serves nothing", Kairos{}, Configuration{0, 0, 9, 0}, 2.5, 0, 0, true, "serves no rate"},
		{"cheaper", KairosPlus{}, Configuration{2, 0, 0, 0}, 0, 20, 0, true, "costs"},
		{"cheaper, in one shot", Fluid{}, Configuration{5, 0, 0, 0}, 0, 60, 0, true, "costs"},
		{"not enough", KairosPlus{}, Configuration{1, 0, 0, 0}, 0, 20, 0, true,
			"only that serves 20"},
		{"not enough, in one shot", Fluid{}, Configuration{1, 0, 1, 0}, 0, 60, 0, true,
			"only that serves 60"},
		{"no plan is enough", Fluid{}, Configuration{5, 0, 0, 0}, 1, 60, 0, false,
			"nothing better"},
	} {
		p := rm2()
		p.Budget = tt.budget
		if tt.rate > 0 {
			p.Objective, p.Rate = LeastCost, tt.rate
		}
		d, err := (&Replanner{tt.planner, tt.threshold}).Decide(t.Context(), tt.current, p,
			atShare(t, p, 0.85))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if d.Change != tt.change || !strings.Contains(d.Reason, tt.reason) {
			t.Errorf("%s: %v, %s; want %v, %q", tt.name, d.Change, d.Reason, tt.change, tt.reason)
		}
	}
}

// TestDecideNeverAdvisesLess: where evaluations do not tell configurations apart because none
// serves the demand, a smaller fleet is no advice, however much cheaper it is.
func TestDecideNeverAdvisesLess(t *testing.T) {
	none := EvaluatorFunc(func(context.Context, Configuration) (Estimate, error) {
		return Estimate{}, nil
	})
	for _, tt := range []struct {
		objective Objective
		planner   Planner
		current   Configuration
	}{
		{MostThroughput, KairosPlus{}, Configuration{1, 0, 3, 0}},
		{MostThroughput, Ribbon{}, Configuration{1, 0, 3, 0}},
		{LeastCost, KairosPlus{}, Configuration{1, 0, 3, 0}},
		{LeastCost, Ribbon{}, Configuration{1, 0, 3, 0}},
	} {
		p := rm2()
		p.Budget = 1.1
		if p.Objective = tt.objective; p.Objective == LeastCost {
			p.Rate = 60
		}
		d, err := (&Replanner{Planner: tt.planner}).Decide(t.Context(), tt.current, p, none)
		if err != nil {
			t.Fatal(err)
		}
		if math.IsNaN(d.Gain) || math.IsInf(d.Gain, 0) || strings.Contains(d.Reason, "NaN") {
			t.Errorf("%T: gain %v, %s", tt.planner, d.Gain, d.Reason)
		}
		if d.Change && d.Plan.FluidLimit <= d.Current.FluidLimit {
			t.Errorf("%T: advises %s for %s: %s", tt.planner, d.Plan.Configuration,
				d.Current.Configuration, d.Reason)
		}
	}
}

// TestReact: the cheapest fleet is planned that serves what is asked for.
func TestReact(t *testing.T) {
	small := profiles.Distribution{{BatchSize: 50, Share: 1}}
	for _, tt := range []struct {
		name    string
		sizes   profiles.Distribution
		rate    float64
		current Configuration
		change  bool
		price   float64 // at most
		reason  string
	}{
		{"half again as many", trace(), 180, Configuration{1, 0, 13, 0}, true, 4,
			"only that serves 180"},
		{"far fewer", trace(), 30, Configuration{1, 0, 13, 0}, true, 1.3, "costs"},
		{"a little fewer", trace(), 142, Configuration{1, 0, 13, 0}, false, 2.5, "still the best"},
		{"small queries", small, 60, Configuration{4, 0, 0, 0}, true, 1, "costs"},
		{"a large fleet", trace(), 18_000, Configuration{100, 0, 1300, 0}, true, 400,
			"only that serves"},
	} {
		p := rm2()
		p.Models[0].BatchSizes, p.Models[0].Weight = tt.sizes, tt.rate
		d, err := React(t.Context(), p, tt.current)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		t.Logf("%s: %s", tt.name, d.Reason)
		if d.Change != tt.change || !strings.Contains(d.Reason, tt.reason) ||
			d.Plan.Price > tt.price {
			t.Errorf("%s: %v at %.4g $/hr, %s; want %v, at most %.4g $/hr, %q", tt.name, d.Change,
				d.Plan.Price, d.Reason, tt.change, tt.price, tt.reason)
		}
	}
}

// TestReactToNone: a model that is not asked for any more, with a weight of 0, needs no instances.
func TestReactToNone(t *testing.T) {
	p := rm2()
	large := p.Models[0]
	large.Name, large.BatchSizes = "large", profiles.Distribution{{BatchSize: 900, Share: 1}}
	p.Models[0].BatchSizes = profiles.Distribution{{BatchSize: 50, Share: 1}}
	p.Models[0].Weight = 60
	current := Configuration{4, 0, 0, 0}
	alone, err := React(t.Context(), p, current)
	if err != nil {
		t.Fatal(err)
	}
	p.Models = append(p.Models, large)
	d, err := React(t.Context(), p, current)
	if err != nil || d.Reason != alone.Reason {
		t.Errorf("%v, %v, want %s as without the model", d, err, alone.Reason)
	}
	p.Models[0].Weight = 0
	if _, err := React(t.Context(), p, current); err == nil {
		t.Error("a plan for no model")
	}
}

// manyTypes is a problem with twenty types, five of each kind, without a budget.
func manyTypes(rate float64, limit int) *Problem {
	p := rm2()
	p.Objective, p.Rate, p.Budget = LeastCost, rate, 0
	types, latencies := p.Types, p.Models[0].Latencies
	p.Types, p.Models[0].Latencies = nil, nil
	for i := range 20 {
		like := types[i%len(types)]
		like.Name, like.Max = profiles.InstanceType(fmt.Sprint(like.Name, "-", i)), limit
		p.Types = append(p.Types, like)
		p.Models[0].Latencies = append(p.Models[0].Latencies, latencies[i%len(latencies)])
	}
	return p
}

// TestManyTypes: without a budget, and with so many types that one instance of each is too
// much to choose from, what is planned is within the types' limits.
func TestManyTypes(t *testing.T) {
	p := manyTypes(1000, 1)
	r, err := Fluid{Top: 1}.Plan(t.Context(), p, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c := r.Plans[0].Configuration; c.Count() == 0 || !p.Affordable(c) {
		t.Errorf("%s, want at most one of each", p.Name(c))
	}
}

// TestTypesThatAreAlike: types that are alike, or dearer and else alike, change neither what a fleet
// costs nor how many of the types a search has to look at.
func TestTypesThatAreAlike(t *testing.T) {
	p, one := manyTypes(1000, 0), rm2()
	one.Objective, one.Rate, one.Budget = LeastCost, 1000, 0
	for i := len(one.Types); i < len(p.Types); i++ {
		p.Types[i].Price *= 1 + float64(i%3)/100
	}
	want, err := Fluid{Top: 1}.Plan(t.Context(), one, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Fluid{Top: 1}.Plan(t.Context(), p, nil)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := got.Plans[0].Price, want.Plans[0].Price; math.Abs(a-b) > 1e-3*b {
		t.Errorf("$%v/hr with twenty types, $%v/hr with %d", a, b, len(one.Types))
	}
	a, err := analyse(p, staffing.SafeShare)
	if err != nil {
		t.Fatal(err)
	}
	for i := range p.Types {
		if !a.isDominated(i) && i >= len(one.Types) {
			t.Errorf("%s is looked at beside %s", p.Types[i].Name, p.Types[i%len(one.Types)].Name)
		}
	}
	for i := range p.Types { // a limited type takes the place of no other
		p.Types[i].Max = 1
	}
	if a, err = analyse(p, staffing.SafeShare); err != nil {
		t.Fatal(err)
	}
	for i := range p.Types {
		if a.isDominated(i) {
			t.Errorf("%s is not looked at, and others are limited", p.Types[i].Name)
		}
	}
}

// TestReactToFewQueries: batch sizes are known of a sample. Where it has by chance no more of the
// largest queries than may be late, the plan must have an instance that answers them all the same.
func TestReactToFewQueries(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	plain := 0
	for range 200 {
		const queries, tooLarge = 1000, 0.015 // for all but the base type
		large := 0
		for range queries {
			if r.Float64() < tooLarge {
				large++
			}
		}
		share := float64(large) / queries
		seen := rm2()
		seen.Models[0].Weight = 60
		seen.Models[0].BatchSizes = profiles.Distribution{
			{BatchSize: 150, Share: 1 - share}, {BatchSize: 950, Share: share},
		}
		d, err := React(t.Context(), seen, Configuration{1, 0, 8, 0})
		if err != nil {
			t.Fatal(err)
		}
		if d.Plan.Configuration[0] == 0 {
			plain++
		}
		seen.Target = SureTarget(DefaultTarget, queries)
		if d, err = React(t.Context(), seen,
			Configuration{1, 0, 8, 0}); err != nil {
			t.Fatal(err)
		}
		if d.Plan.Configuration[0] == 0 && large > 0 {
			t.Errorf("%d of %d queries need g4dn.xlarge, the plan is %s", large, queries, d.Reason)
		}
	}
	if plain == 0 {
		t.Error("without a sure target no plan lacked what the largest queries need: this shows " +
			"nothing")
	}
}
