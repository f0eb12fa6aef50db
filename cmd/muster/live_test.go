//go:build linux

package main

import (
	"context"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/cmd/muster/internal/plancmd"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim"
)

// TestPlanLive: a fleet is planned for from what it is asked for and has learned,
// beside what it is.
func TestPlanLive(t *testing.T) {
	skipSimulations(t)
	// The one that can lead goes on doing so, however busy the machine: another would
	// not know the demand.
	agents := startFleet(t, 1)
	agents = append(
		agents,
		startAgent(t, smallNCF(t), "--executor", "emulated", "--profile", "shipped",
			"--instance-type", "r5n.large",
			"--leader", "never", "--join", agents[0].gossip))
	agents[1].waitForView(t, func(v *control.View) bool {
		return len(v.GetMembers()) == 2 &&
			!slices.ContainsFunc(v.GetMembers(),
				func(m *control.Member) bool { return len(m.GetModels()) == 0 })
	})
	t.Chdir(t.TempDir())
	t.Setenv("MUSTER_SERVER", agents[1].grpc)
	live := []string{"plan", "live", "--planner", "fluid", "--evaluator", "bound"}
	with := func(more ...string) []string { return append(live[:len(live):len(live)], more...) }
	// planned plans while the fleet has a leader and, if asked, once that knows a demand: on a busy
	// machine it may serve few queries, and may be taken for lost at any time, which forgets them.
	planned := func(asked bool, args ...string) (string, error) {
		for try := 0; ; try++ {
			agents[1].waitForView(t, hasLeader)
			out, _, err := execute(t, with(args...)...)
			if err == nil || try == 20 {
				return out, err
			}
			switch {
			case strings.Contains(err.Error(), "the fleet has no leader now"):
			case asked && strings.Contains(err.Error(), "no demand yet"):
				if _, _, err := execute(t, "bench", "--model", "ncf", "--rate", "200", "--queries",
					"200", "--batch", "fixed:20"); err != nil {
					t.Log(err)
				}
			default:
				return out, err
			}
		}
	}
	const none = "no demand yet: a model needs at least 100 queries"
	if _, err := planned(false); err == nil || !strings.Contains(err.Error(), none) ||
		!strings.Contains(err.Error(), "ncf/1 (0 so far") {
		t.Errorf("before any query: %v, want %q", err, none)
	}
	out, err := planned(true, "--json")
	if err != nil {
		t.Fatal(err)
	}
	var report plancmd.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatal(err)
	}
	l := report.Live
	if l == nil || len(l.Demand) != 1 || l.Demand[0].Model != "ncf" || l.Demand[0].Queries < 100 ||
		!(l.Demand[0].Rate > 0) || l.Demand[0].QoS != 5 {
		t.Fatalf("the demand is %+v, want that of ncf", l)
	}
	if want := map[string]int{"r5n.large": 2}; !maps.Equal(l.Current.Configuration, want) ||
		l.Current.Price != 0.298 || !(l.Current.Throughput > 0) {
		t.Errorf("what runs is %+v, want 2 r5n.large at 0.298 $/hr, which serve something",
			l.Current)
	}
	if !(l.Proposed.Price <= 0.298) ||
		!maps.Equal(l.Proposed.Configuration, nonZero(report.Plans[0].Configuration)) {
		t.Errorf("proposed is %+v, want the first plan, %v, for no more than the fleet costs",
			l.Proposed, report.Plans[0].Configuration)
	}
	for _, e := range l.Evidence {
		if (e.Type == "r5n.large") != e.Learned ||
			e.Learned && (e.Queries == 0 || e.Age < 0 || !(e.Error > 0)) {
			t.Errorf(
				"evidence of %s is %+v, want a profile learned on r5n.large and shipped ones "+
					"elsewhere", e.Type, e)
		}
	}

	for _, want := range []string{
		`(?m)^  ncf on r5n.large +learned from \d+ queries`, `(?m)^  rent \d+ `,
	} {
		out, err := planned(true, "--rate", "5000")
		if err != nil || !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("got %v and %q, want a match of %q", err, out, want)
		}
	}
	for _, tt := range []struct {
		want string
		args []string
	}{
		{`the fleet has no model "bert"; it has: ncf`, []string{"--model", "bert"}},
		{"the fleet has r5n.large, which --types must include", []string{
			"--types", "g4dn.xlarge",
		}},
		{"unknown flag: --batch", []string{"--batch", "ribbon"}},
		{`evaluator "table:x.json" is unknown`, []string{"--evaluator", "table:x.json"}},
	} {
		if _, err := planned(true, tt.args...); err == nil ||
			!strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: %v, want %q", tt.args, err, tt.want)
		}
	}
}

func nonZero(counts map[string]int) map[string]int {
	maps.DeleteFunc(counts, func(_ string, n int) bool { return n == 0 })
	return counts
}

// TestPlanLiveWithoutLeader: nobody else knows the demand.
func TestPlanLiveWithoutLeader(t *testing.T) {
	agents := startFleet(t, 1, "--leader", "never")
	wantOutput(t, false, "the fleet has no leader now, and only a leader knows its demand", "plan",
		"live", "--server", agents[0].grpc)
}

// spiked is a latency of which one query in twenty takes ten times as long.
type spiked time.Duration

func (l spiked) Mean(int) time.Duration { return time.Duration(1.45 * float64(l)) }

func (l spiked) Quantile(p float64, _ int) time.Duration {
	if p >= 0.95 {
		return time.Duration(10 * l)
	}
	return time.Duration(l)
}

// TestPlanLiveWarmStart: the search for a fleet that runs begins from what runs, which was found
// for another load; of no fleet that runs, at random.
func TestPlanLiveWarmStart(t *testing.T) {
	prices := []sim.Price{
		{Type: "r5n.large", PriceUSDPerHour: 0.149}, {Type: "t3.xlarge", PriceUSDPerHour: 0.1664},
	}
	models := []sim.Model{{
		Name: "m", QoSTarget: 5 * time.Millisecond, BatchSizes: workload.Trace(),
		Latencies: map[string]match.Latencies{
			"r5n.large": spiked(time.Millisecond), "t3.xlarge": spiked(time.Millisecond),
		},
	}}
	problem := sim.Problem(models, prices)
	problem.Objective, problem.Target, problem.Rate, problem.Budget = plan.LeastCost, 0.99, 3000, 2
	var evaluated []plan.Configuration
	evaluator := plan.EvaluatorFunc(func(_ context.Context, c plan.Configuration) (plan.Estimate,
		error) {
		evaluated = append(evaluated, c.Clone())
		return plan.Estimate{Value: min(1, float64(c.Count())/7)}, nil
	})
	p := &plancmd.Problem{
		Problem: problem,
		Live:    &plancmd.FleetComparison{Counts: map[string]int{"r5n.large": 2, "t3.xlarge": 1}},
	}
	if _, err := planners[ribbonPlanner](&planOptions{}, p, 1).Plan(t.Context(), problem,
		evaluator); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(evaluated[0], plan.Configuration{2, 1}) {
		t.Errorf("the search begins with %s, want what runs, (2,1)", evaluated[0])
	}
}
