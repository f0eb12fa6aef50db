package plan

import (
	"cmp"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/profiles"
)

// atShare is an evaluator that reaches a share of the fluid limit: at LeastCost it satisfies the
// target up to there. The share depends a little on the configuration.
func atShare(t *testing.T, p *Problem, share float64) Evaluator {
	a, err := Analyse(p)
	if err != nil {
		t.Fatal(err)
	}
	return EvaluatorFunc(func(_ context.Context, c Configuration) (Estimate, error) {
		sol, err := a.Fluid(c)
		if err != nil {
			return Estimate{}, err
		}
		rate := sol.Rate * (share + 0.002*math.Sin(float64(7*c[0]+3*c.Count())))
		if p.Objective == MostThroughput {
			return Estimate{Value: rate}, nil
		}
		return Estimate{Value: min(1, 0.99*math.Sqrt(rate/p.Rate))}, nil
	})
}

func TestKairosChoice(t *testing.T) {
	a, err := Analyse(rm2())
	if err != nil {
		t.Fatal(err)
	}
	at := func(base, auxiliary int) boundedConfiguration {
		return boundedConfiguration{
			c: Configuration{base, 0, auxiliary, 0},
		}
	}
	if got, reason := a.chooseSimilar([]boundedConfiguration{at(2, 3), at(2, 2), at(2, 1), at(1,
		9)}, 4); got != 0 ||
		!strings.Contains(reason, "agree on 2 g4dn.xlarge") {
		t.Errorf("three of as many base instances: %d, %s", got, reason)
	}
	if got, _ := a.chooseSimilar([]boundedConfiguration{at(1, 9), at(3, 1), at(2, 4), at(2, 5),
		at(2, 3)},
		5); got != 2 {
		t.Errorf("not the one in the middle: %d", got)
	}
}

func TestPlans(t *testing.T) {
	for _, planner := range []Planner{
		Fluid{}, Kairos{}, KairosPlus{}, KairosPlus{FluidBound: true},
	} {
		p := rm2()
		r, err := planner.Plan(t.Context(), p, atShare(t, p, 0.9))
		if err != nil {
			t.Fatal(err)
		}
		best := r.Plans[0]
		if got := p.Name(best.Configuration); got != "g4dn.xlarge=1,r5n.large=13" {
			t.Errorf("%T chooses %s", planner, got)
		}
		if r.SearchSpace != 331 || best.Reason == "" ||
			best.Binding != "time on g4dn.xlarge and r5n.large" ||
			math.Abs(best.Price-2.463) > 1e-9 {
			t.Errorf("%T: %+v", planner, best)
		}
		// What an instance more brings is what that configuration's limit says.
		for i, g := range best.Gains {
			more := best.Configuration.Clone()
			more[i]++
			a, _ := Analyse(p)
			sol, err := a.Fluid(more)
			if err != nil || g.Rate != sol.Rate-best.FluidLimit || g.Price != p.Types[i].Price ||
				g.Rate <= 0 {
				t.Errorf("%T: gain %+v, the limit is then %v, %v", planner, g, sol.Rate, err)
			}
		}
		_, evaluates := planner.(KairosPlus)
		if evaluates != best.Evaluated || evaluates != (len(r.Evaluations) > 0) ||
			len(r.Evaluations) > 12 {
			t.Errorf("%T: %d evaluations", planner, len(r.Evaluations))
		}
	}
}

// TestPlansHold: over random problems no planner exceeds the budget or a limit, or predicts more
// than the fluid limit; the fluid planner's first is the best of all by the limit, and kairos+
// ends at the best.
func TestPlansHold(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	solved := 0
	for range 30 {
		p := randomProblem(r)
		if r.IntN(3) == 0 {
			p.Objective, p.Rate = LeastCost, 5+50*r.Float64()
		}
		e := atShare(t, p, 0.85)
		for _, planner := range []Planner{
			Fluid{}, Kairos{}, KairosPlus{FluidBound: true}, KairosPlus{},
		} {
			res, err := planner.Plan(t.Context(), p, e)
			if errors.Is(err, errSeveralModels) {
				continue
			} else if err != nil {
				if !strings.Contains(err.Error(), "base type") {
					t.Errorf("%T: %v", planner, err)
				}
				continue
			}
			solved++
			for _, plan := range res.Plans {
				if !p.Affordable(plan.Configuration) ||
					math.Abs(plan.Price-p.Price(plan.Configuration)) > 1e-9 {
					t.Errorf("%T: %s costs %v of %v", planner, plan.Configuration, plan.Price,
						p.Budget)
				}
				if plan.Predicted > plan.FluidLimit || plan.FluidLimit <= 0 || plan.Reason == "" ||
					plan.Binding == "" || len(plan.Gains) != len(p.Types) {
					t.Errorf("%T: %+v", planner, plan)
				}
			}
			if planner == (KairosPlus{FluidBound: true}) {
				checkBest(t, p, e, res)
			}
		}
	}
	if solved < 30 {
		t.Errorf("only %d problems could be solved", solved)
	}
}

// checkBest holds a result against the evaluation of all configurations.
func checkBest(t *testing.T, p *Problem, e Evaluator, r *Result) {
	a, err := Analyse(p)
	if err != nil {
		t.Fatal(err)
	}
	space, err := a.Space()
	if err != nil {
		t.Fatal(err)
	}
	best, cheapest := 0.0, math.Inf(1)
	for _, c := range space {
		v, err := e.Evaluate(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if best = max(best, v.Value); v.Value >= p.targetOrDefault() {
			cheapest = min(cheapest, p.Price(c))
		}
	}
	first := r.Plans[0]
	switch {
	case p.Objective == MostThroughput:
		if first.Predicted < best*(1-1e-6) {
			t.Errorf("%s serves %v, the best %v", first.Configuration, first.Predicted, best)
		}
	case math.IsInf(cheapest, 1):
		if len(r.Notes) == 0 || !strings.Contains(strings.Join(r.Notes, " "), "nearest") {
			t.Errorf("nothing serves %v queries/s, and the notes are %q", p.Rate, r.Notes)
		}
	case first.Satisfaction < p.targetOrDefault() || first.Price > cheapest+1e-9:
		t.Errorf("%s reaches %v for %v $/hr, the cheapest costs %v", first.Configuration,
			first.Satisfaction, first.Price, cheapest)
	}
	if len(r.Evaluations) > len(space) {
		t.Errorf("%d evaluations of %d", len(r.Evaluations), len(space))
	}
}

func TestLeastCost(t *testing.T) {
	for _, planner := range []Planner{Fluid{}, Kairos{}, KairosPlus{}} {
		p := rm2()
		p.Objective, p.Rate, p.Budget = LeastCost, 60, 0
		r, err := planner.Plan(t.Context(), p, atShare(t, p, 0.85))
		if err != nil {
			t.Fatal(err)
		}
		// Base instances alone: 5 x 18.9 queries/s at most, 0.85 of that.
		first := r.Plans[0]
		if first.Price > 4*0.526 || first.FluidLimit < 60/0.86 || len(r.Notes) > 0 {
			t.Errorf("%T: %s at %v $/hr, limit %v, notes %q", planner, first.Configuration,
				first.Price, first.FluidLimit, r.Notes)
		}
		if len(r.Evaluations) > 25 {
			t.Errorf("%T: %d evaluations", planner, len(r.Evaluations))
		}
		// The budget stays a hard limit: the nearest, and what would do.
		p.Budget = 0.9
		if r, err = planner.Plan(t.Context(), p, atShare(t, p, 0.85)); err != nil {
			t.Fatal(err)
		}
		notes := strings.Join(r.Notes, " ")
		if r.Plans[0].Price > 0.9 || !strings.Contains(notes, "nearest") ||
			!strings.Contains(notes, "$/hr would") {
			t.Errorf("%T within 0.9 $/hr: %s, notes %q", planner, r.Plans[0].Configuration, notes)
		}
	}
}

// TestKairosWithoutLimits: where nobody gave a limit, there is a fleet for any rate.
func TestKairosWithoutLimits(t *testing.T) {
	for types := 1; types <= 2; types++ {
		for rate := 1.0; rate < 60; rate++ {
			p := rm2()
			p.Types, p.Models[0].Latencies = p.Types[:types], p.Models[0].Latencies[:types]
			p.Objective, p.Rate, p.Budget = LeastCost, rate, 0
			r, err := Kairos{}.Plan(t.Context(), p, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Notes) > 0 {
				t.Errorf("%d types, %v queries/s: %q", types, rate, r.Notes)
			}
		}
	}
}

func TestSeveralModels(t *testing.T) {
	p := rm2()
	small := p.Models[0]
	small.Name, small.QoSTarget, small.Weight = "small", 400*time.Millisecond, 3
	p.Models = append(p.Models, small)
	if _, err := (Kairos{}).Plan(t.Context(), p, nil); !errors.Is(err, errSeveralModels) {
		t.Errorf("kairos: %v", err)
	}
	r, err := Fluid{Top: 3}.Plan(t.Context(), p, nil)
	if err != nil || len(r.Plans) != 3 ||
		!slices.IsSortedFunc(r.Plans,
			func(a, b Plan) int { return int(b.FluidLimit - a.FluidLimit) }) {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestBoundEvaluator: planners that evaluate by bound come to what fluid takes at once.
func TestBoundEvaluator(t *testing.T) {
	for _, rate := range []float64{0, 20} {
		p := rm2()
		if rate > 0 {
			p.Objective, p.Rate, p.Budget = LeastCost, rate, 0
		}
		a, err := Analyse(p)
		if err != nil {
			t.Fatal(err)
		}
		want, err := Fluid{}.Plan(t.Context(), p, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := KairosPlus{FluidBound: true}.Plan(t.Context(), p, BoundEvaluator{a})
		if err != nil {
			t.Fatal(err)
		}
		if math.Abs(got.Plans[0].Price-want.Plans[0].Price) > 1e-9 ||
			rate == 0 && math.Abs(got.Plans[0].Predicted-want.Plans[0].Predicted) > 1e-5 {
			t.Errorf("rate %v: got %+v, want %+v", rate, got.Plans[0], want.Plans[0])
		}
	}
}

// TestPlansWhereNothingServes: where every evaluation is 0 the plans are ranked by their fluid
// limits, not by price, and say so; no number is a NaN.
func TestPlansWhereNothingServes(t *testing.T) {
	none := EvaluatorFunc(func(context.Context, Configuration) (Estimate, error) {
		return Estimate{}, nil
	})
	for _, objective := range []Objective{MostThroughput, LeastCost} {
		for _, planner := range []Planner{KairosPlus{}, KairosPlus{FluidBound: true}, Ribbon{}} {
			p := rm2()
			p.Budget = 0.9
			if p.Objective = objective; objective == LeastCost {
				p.Rate = 60
			}
			r, err := planner.Plan(t.Context(), p, none)
			if err != nil {
				t.Fatal(err)
			}
			for i, one := range r.Plans {
				if strings.Contains(one.Reason, "NaN") || strings.Contains(one.Reason, "Inf") {
					t.Errorf("%+v: plan %d: %s", planner, i+1, one.Reason)
				}
				if i > 0 && one.Evaluated && one.FluidLimit > r.Plans[i-1].FluidLimit+1e-6 {
					t.Errorf(
						"%+v: plan %d, %s, has a higher fluid limit than the one before it, %s",
						planner, i+1, one.Configuration, r.Plans[i-1].Configuration)
				}
			}
			// The highest fluid limit of what was evaluated, which is far from the cheapest.
			if r.Plans[0].Price < 0.7 {
				t.Errorf("%+v: the first is %s at %v $/hr", planner, r.Plans[0].Configuration,
					r.Plans[0].Price)
			}
			if !strings.Contains(strings.Join(r.Notes, " "), "no configuration") {
				t.Errorf("%+v: notes %q", planner, r.Notes)
			}
		}
	}
}

// TestKairosPlusBeyondBounds: where fleets serve more than their bounds, the search does not end
// with the first evaluation. Others that may exceed their bounds by a little more count, too.
func TestKairosPlusBeyondBounds(t *testing.T) {
	p := rm2()
	p.Types, p.Budget = slices.Clone(p.Types), 1.5
	p.Types[3].Price = p.Types[2].Price // almost the same type once more
	nearly := p.Models[0].Latencies[2].(line)
	nearly.perItem += nearly.perItem / 100
	p.Models[0].Latencies[3] = nearly
	a, err := Analyse(p)
	if err != nil {
		t.Fatal(err)
	}
	space, err := a.Space()
	if err != nil {
		t.Fatal(err)
	}
	limit := func(c Configuration) float64 {
		sol, err := a.Fluid(c)
		if err != nil {
			t.Fatal(err)
		}
		return sol.Rate
	}
	slices.SortFunc(space, func(a, b Configuration) int { return cmp.Compare(limit(b), limit(a)) })
	highest, best := space[0], space[0]
	for _, c := range space[1:] {
		if !c.Within(highest) {
			best = c // of the others the one with the highest limit
			break
		}
	}
	share := 1.02 * limit(highest) / limit(best) * 1.01
	if share > 1.05 {
		t.Fatalf("%v has a limit of %v, %v of %v: too far apart", highest, limit(highest), best,
			limit(best))
	}
	res, err := KairosPlus{FluidBound: true}.Plan(t.Context(), p,
		EvaluatorFunc(func(_ context.Context, c Configuration) (Estimate, error) {
			if slices.Equal(c, best) {
				return Estimate{Value: share * limit(c)}, nil
			}
			return Estimate{Value: 1.02 * limit(c)}, nil
		}))
	if err != nil {
		t.Fatal(err)
	}
	if got := res.Plans[0].Configuration; !slices.Equal(got, best) {
		t.Errorf("got %v after %d evaluations, want %v", got, len(res.Evaluations), best)
	}
	if n := len(res.Evaluations); n > len(space)/4 {
		t.Errorf("%d of %d configurations were evaluated", n, len(space))
	}
}

// TestLargeFleetsWithinBounds: for a budget of hundreds of instances, the bounds that are printed are
// not below what fleets serve.
func TestLargeFleetsWithinBounds(t *testing.T) {
	p := rm2()
	p.Budget = 50
	r, err := KairosPlus{}.Plan(t.Context(), p, atShare(t, p, 0.98))
	if err != nil {
		t.Fatal(err)
	}
	a, err := Analyse(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, plan := range r.Plans {
		sol, err := a.Fluid(plan.Configuration)
		if err != nil {
			t.Fatal(err)
		}
		if plan.Bound < sol.Rate*(1-1e-6) {
			t.Errorf("%s: bound %v queries/s, and its fluid limit is %v", plan.Configuration,
				plan.Bound, sol.Rate)
		}
	}
}

// TestFluidComesNearest: if no configuration within the budget serves the rate, the plan is the one
// that comes nearest, also if it was among those that were tried for the rate.
func TestFluidComesNearest(t *testing.T) {
	for _, rate := range []float64{290, 1000} {
		p := &Problem{
			Types: []Type{{"a", 1, 0}},
			Models: []ModelDemand{{
				Name: "m", QoSTarget: 100 * time.Millisecond,
				BatchSizes: []profiles.Share{{BatchSize: 1, Share: 1}},
				Latencies:  []Latencies{line{0, 10 * time.Millisecond}},
			}},
			Objective: LeastCost, Budget: 1.5, Rate: rate,
		}
		r, err := Fluid{Top: 1}.Plan(t.Context(), p, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Plans) == 0 || r.Plans[0].Configuration[0] != 1 {
			t.Errorf("%v queries/s: plans %v, want 1 of a; notes %v", rate, r.Plans, r.Notes)
		}
	}
}

// TestExactLoad: without a budget, a rate that some instances just serve has a plan, although their
// limit is rounded down.
func TestExactLoad(t *testing.T) {
	p := &Problem{
		Types: []Type{{"a", 1, 0}},
		Models: []ModelDemand{{
			Name: "m", QoSTarget: 100 * time.Millisecond,
			BatchSizes: []profiles.Share{{BatchSize: 1, Share: 1}},
			Latencies:  []Latencies{line{0, time.Millisecond}},
		}},
		Objective: LeastCost, Rate: 1000 / .9 * .7, Target: 0.9,
	}
	r, err := Fluid{}.Plan(t.Context(), p, nil)
	if err != nil {
		t.Fatal(err)
	}
	if first := r.Plans[0].Configuration; first.Count() != 1 || len(r.Notes) > 0 {
		t.Errorf("got %v, %q", first, r.Notes)
	}
}

// TestSoFarWithoutLimits: what was evaluated before an interrupt is returned also if the problem
// has neither budget nor limits, for which the search set its own.
func TestSoFarWithoutLimits(t *testing.T) {
	p := rm2()
	p.Objective, p.Budget, p.Rate = LeastCost, 0, 100
	c := make(Configuration, len(p.Types))
	c[0] = 2
	r, err := SoFar(p, []Evaluation{{c, Estimate{Value: 0.8}}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Plans) != 1 || r.Plans[0].Satisfaction != 0.8 || r.SearchSpace != 0 ||
		r.Doubt != "the search was interrupted after 1 evaluations" {
		t.Errorf("got %+v", r)
	}
}
