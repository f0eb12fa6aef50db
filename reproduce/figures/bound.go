package figures

import (
	"cmp"
	"context"
	"slices"

	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/sim"
)

// problem is the paper's: the most throughput for a budget in $/hr.
func (l *lab) problem(cfg *sim.Config, budget float64) *plan.Problem {
	p := sim.Problem(cfg.Models, l.prices)
	p.Budget = budget
	return p
}

// evaluator simulates under the policy.
func (l *lab) evaluator(cfg *sim.Config, policy string) *sim.Evaluator {
	one := *cfg
	one.Policy = policy
	return &sim.Evaluator{Config: &one, Types: sim.PaperTypes(), Seeds: l.Seeds}
}

// A bounded pool is a configuration with its Eq. 15.
type bounded struct {
	pool  sim.Pool
	bound float64
}

// byBound are the n pools within the budget of the highest bound, and the one that KAIROS
// chooses without evaluating any.
func (l *lab) byBound(ctx context.Context, cfg *sim.Config, budget float64, n int) (top []bounded,
	chosen sim.Pool, err error) {
	r, err := plan.Kairos{Top: n}.Plan(ctx, l.problem(cfg, budget), nil)
	if err != nil {
		return nil, nil, err
	}
	e := l.evaluator(cfg, "")
	for _, p := range r.Plans {
		top = append(top, bounded{e.Pool(p.Configuration), p.Bound})
	}
	chosen = top[0].pool
	slices.SortStableFunc(top, func(a, b bounded) int { return cmp.Compare(b.bound, a.bound) })
	return top, chosen, nil
}
