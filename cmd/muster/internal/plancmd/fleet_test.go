package plancmd

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim"
)

// spiked is a latency of which one query in twenty takes ten times as long.
type spiked time.Duration

func (l spiked) Mean(int) time.Duration { return time.Duration(1.45 * float64(l)) }

func (l spiked) Quantile(p float64, _ int) time.Duration {
	if p >= 0.95 {
		return time.Duration(10 * l)
	}
	return time.Duration(l)
}

// TestNeverAdvisesLess: where nothing that the budget buys serves any rate in
// time, as far as simulation goes, price alone told configurations apart: "rent 1
// t3.xlarge, release 2 r5n.large".
func TestNeverAdvisesLess(t *testing.T) {
	prices := []sim.Price{
		{Type: "r5n.large", PriceUSDPerHour: 0.149}, {Type: "t3.xlarge", PriceUSDPerHour: 0.1664},
	}
	sizes, err := workload.ParseBatchSizes("fixed:20")
	if err != nil {
		t.Fatal(err)
	}
	models := []sim.Model{{Name: "m", QoSTarget: 5 * time.Millisecond, BatchSizes: sizes,
		Latencies: map[string]match.Latencies{
			"r5n.large": spiked(time.Millisecond), "t3.xlarge": spiked(2 * time.Millisecond),
		}}}
	for _, tt := range []struct {
		objective plan.Objective
		planner   plan.Planner
	}{{plan.MostThroughput, plan.KairosPlus{}}, {plan.MostThroughput, plan.Ribbon{}},
		{plan.LeastCost, plan.KairosPlus{}}} {
		problem := sim.Problem(models, prices)
		problem.Objective, problem.Target, problem.Budget = tt.objective, 0.99, 0.298
		if tt.objective == plan.LeastCost {
			problem.Rate = 5000
		}
		evaluator := &sim.Evaluator{
			Config: &sim.Config{Models: models, Queries: 1000, Rate: problem.Rate, Seed: 1},
			Types:  []string{"r5n.large", "t3.xlarge"}, Seeds: 1, Objective: tt.objective,
		}
		p := &Problem{Problem: problem, Evaluator: evaluator, Simulation: evaluator}
		r, err := tt.planner.Plan(t.Context(), problem, evaluator)
		if err != nil {
			t.Fatal(err)
		}
		live := &FleetComparison{
			Demand: []liveDemand{{Model: "m", Rate: 5000}}, Counts: map[string]int{"r5n.large": 2},
		}
		if err := live.Compare(t.Context(), p, r); err != nil {
			t.Fatal(err)
		}
		if len(live.Rent)+len(live.Release) > 0 || live.Proposed.name != "r5n.large=2" {
			t.Errorf("%T: rent %v, release %v, for %s at %v $/hr", tt.planner, live.Rent,
				live.Release, live.Proposed.name, live.Proposed.Price)
		}
		notes := strings.Join(live.Notes, " ")
		for _, want := range []string{
			"the demand of 5000 queries/s is above", "within the budget of 0.298 $/hr",
			"by its fluid limit r5n.large=",
		} {
			if !strings.Contains(strings.ToLower(notes), want) {
				t.Errorf("%T: notes %q, want %q", tt.planner, notes, want)
			}
		}
	}
}
