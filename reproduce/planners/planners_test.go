package planners

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/published"
)

// monotone is an evaluator whose pruning is right.
var monotone = plan.EvaluatorFunc(func(_ context.Context, c plan.Configuration) (plan.Estimate,
	error) {
	sum := 0.0
	for i, n := range c {
		sum += float64(n) / float64(1+i*i)
	}
	return plan.Estimate{Value: min(1, sum/4)}, nil
})

// TestRivals: where pruning is right every rival ends at the optimum, evaluates nothing twice and
// nothing that is pruned.
func TestRivals(t *testing.T) {
	types := []plan.Type{
		{Name: "a", Price: 1, Max: 5}, {Name: "b", Price: 0.45, Max: 6}, {
			Name: "c", Price: 0.25, Max: 7,
		},
	}
	for _, p := range []*plan.Problem{
		{Types: types, Objective: plan.LeastCost}, {Types: types, Budget: 3.1},
	} {
		for _, name := range Names() {
			for seed := range uint64(5) {
				rival := Rival{Name: name, Seed: seed}
				trials, err := plan.Try(t.Context(), p, monotone, 1,
					func(int) (*plan.Result, error) { return rival.Plan(t.Context(), p, monotone) })
				if err != nil {
					t.Fatal(err)
				}
				r, err := rival.Plan(t.Context(), p, monotone)
				if err != nil {
					t.Fatal(err)
				}
				if trials.Failed > 0 ||
					p.Price(r.Plans[0].Configuration) != trials.OptimumPrice &&
						p.Objective == plan.LeastCost {
					t.Errorf("%s, seed %d: %+v, plan %+v", name, seed, *trials, r.Plans[0])
				}
				if name == "exhaustive" && len(r.Evaluations) != r.SearchSpace ||
					name != "exhaustive" && len(r.Evaluations) >= r.SearchSpace {
					t.Errorf("%s evaluates %d of %d", name, len(r.Evaluations), r.SearchSpace)
				}
				if again, err := rival.Plan(t.Context(), p, monotone); err != nil ||
					len(again.Evaluations) != len(r.Evaluations) {
					t.Errorf("%s does not repeat itself", name)
				}
			}
		}
	}
}

func TestRivalErrors(t *testing.T) {
	p := &plan.Problem{Types: []plan.Type{{Name: "a", Price: 1, Max: 5}}, Objective: plan.LeastCost}
	if _, err := (Rival{Name: "tabu"}).Plan(t.Context(), p, monotone); err == nil ||
		!strings.Contains(err.Error(), "there are: annealing, exhaustive") {
		t.Errorf("unknown: %v", err)
	}
	if _, err := (Rival{Name: "random"}).Plan(t.Context(), &plan.Problem{}, monotone); err == nil {
		t.Error("an empty problem")
	}
	broken := errors.New("broken")
	for _, name := range Names() {
		fails := plan.EvaluatorFunc(func(context.Context, plan.Configuration) (plan.Estimate,
			error) {
			return plan.Estimate{}, broken
		})
		if _, err := (Rival{Name: name}).Plan(t.Context(), p, fails); !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPublishedTable: what the rivals need on a published table is of the order of what their
// authors' needed: random 209, hill climbing 30, response surface 35.
func TestPublishedTable(t *testing.T) {
	f, err := published.Files(published.RIBBON).Open("mtwnd.json")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	table, err := plan.ReadTable("mtwnd", f,
		[]profiles.InstanceType{"g4dn.xlarge", "c5.2xlarge", "r5n.large"},
		profiles.DefaultCatalogue())
	if err != nil {
		t.Fatal(err)
	}
	p := table.Problem(0.99)
	for _, name := range Names() {
		trials, err := plan.Try(t.Context(), p, table, 20, func(run int) (*plan.Result, error) {
			return Rival{Name: name, Seed: uint64(run)}.Plan(t.Context(), p, table)
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %+v", name, *trials)
		if name == "random" && (trials.Mean < 100 || trials.Mean > 300) ||
			name == "hill-climb" && (trials.Mean < 20 || trials.Mean > 60) {
			t.Errorf("%s: %.1f evaluations", name, trials.Mean)
		}
		if trials.Failed > 0 {
			t.Errorf("%s: %d failed runs", name, trials.Failed)
		}
	}
}
