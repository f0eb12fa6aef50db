package plan

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// KairosPlus is KAIROS's search (Algorithm 1): it evaluates configurations by falling bound, and
// drops those whose bound is no better than the best found and all sub-configurations of those
// evaluated. It ends when none is left.
//
// The bound is the paper's Eq. 15. It is not quite a bound, but the search ended at the best
// configuration of all five models with it, after half the evaluations that the fluid limit needs.
type KairosPlus struct {
	// FluidBound takes the fluid limit as the bound, which is one; where there are several models
	// it is taken in any case.
	FluidBound bool
	// Top is how many plans to return at least; 0 means DefaultTop.
	Top int
}

// Plan plans with the evaluator. Its plans are all that was evaluated, the best first; for the most
// throughput they are filled up with those of the highest bound among the others.
func (k KairosPlus) Plan(ctx context.Context, p *Problem, e Evaluator) (*Result, error) {
	if e == nil {
		return nil, errors.New("kairos+ evaluates configurations: give it an evaluator")
	}
	if p.Objective == LeastCost {
		return leastCost(ctx, p, NewLog(e))
	}
	return k.mostThroughput(ctx, p, NewLog(e))
}

func (k KairosPlus) mostThroughput(ctx context.Context, p *Problem, log *Log) (*Result, error) {
	a, space, err := search(p, 1)
	if err != nil {
		return nil, err
	}
	next := k.order(a, space)
	var plans []Plan
	var others []bounded
	best := 0.0
	for {
		b, err := next()
		if err != nil {
			return nil, err
		}
		if b.c == nil {
			break
		}
		if b.bound <= best {
			if len(plans)+len(others) >= topOr(k.Top) {
				break
			}
			others = append(others, b)
			continue
		}
		if slices.ContainsFunc(log.Evaluations(),
			func(e Evaluation) bool { return b.c.Within(e.Configuration) }) {
			others = append(others, b)
			continue
		}
		estimate, err := log.Evaluate(ctx, b.c)
		if err != nil {
			return nil, err
		}
		best = max(best, estimate.Value)
		plan, err := a.Plan(b.c, "")
		if err != nil {
			return nil, err
		}
		plan.Bound = b.bound
		plans = append(plans, a.Evaluated(plan, estimate))
	}
	p.rank(plans)
	for i := range plans {
		switch {
		case i > 0:
			plans[i].Reason = servesLess(&plans[i], &plans[0])
		case best == 0:
			plans[0].Reason = servesNothing + "; this one has the highest fluid limit of them"
			a.Notes = append(a.Notes, servesNothing+": these are ranked by their fluid limits")
		default:
			plans[0].Reason = fmt.Sprintf(
				"the best of %d configurations: the bounds of those not evaluated are no higher",
				len(space))
		}
	}
	for _, b := range others[:max(0, min(len(others), topOr(k.Top)-len(plans)))] {
		plan, err := a.unevaluated(b,
			"not evaluated: by its bound it serves no more than the first")
		if err != nil {
			return nil, err
		}
		if b.bound > best {
			plan.Reason = "not evaluated: it has no more of any type than one that was"
		}
		plans = append(plans, plan)
	}
	return &Result{
		Plans: plans, Evaluations: log.Evaluations(), SearchSpace: len(space), Notes: a.Notes,
	}, nil
}

// order returns a function that returns the configurations by falling bound, after the last
// one a nil one.
func (k KairosPlus) order(a *Analysis, space []Configuration) func() (bounded, error) {
	if k.FluidBound || a.eq15 == nil {
		return newRelaxation(a, space).next
	}
	all := make([]bounded, len(space))
	for i, c := range space {
		all[i] = bounded{c: c, bound: a.eq15.of(c)}
	}
	slices.SortStableFunc(all, byEq15)
	return func() (b bounded, err error) {
		if len(all) > 0 {
			b, all = all[0], all[1:]
		}
		return b, nil
	}
}

const (
	// A fleet that reaches less than this share of its fluid limit is not looked for: it bounds the
	// price where there is no budget.
	leastEfficiency = 0.6
	// A configuration is taken to fail where a cheaper one failed whose fluid limit is higher by
	// more than this share: by so much the shares of their limits that configurations of about the
	// same price reach may differ.
	efficiencySpread = 0.02
)

// leastCost bisects the configurations that have a higher fluid limit than all cheaper ones for the
// cheapest that satisfies. Then it evaluates the cheaper ones beside them, as far as their limit is
// hardly below that of the dearest that failed.
func leastCost(ctx context.Context, p *Problem, log *Log) (*Result, error) {
	a, space, err := search(p, leastEfficiency)
	if err != nil {
		return nil, err
	}
	r := newRelaxation(a, space)
	frontier, err := r.frontier(p.Rate)
	if err != nil {
		return nil, err
	}
	unmet := len(frontier) == 0
	if unmet {
		if frontier, err = r.highest(1); err != nil {
			return nil, err
		}
	}
	satisfies := func(c Configuration) (bool, error) {
		e, err := log.Evaluate(ctx, c)
		return e.Value >= p.target(), err
	}
	failed, met := -1, len(frontier)
	for met-failed > 1 {
		mid := (failed + met) / 2
		ok, err := satisfies(frontier[mid].c)
		if err != nil {
			return nil, err
		}
		if ok {
			met = mid
		} else {
			failed = mid
		}
	}
	if unmet || met == len(frontier) {
		a.noteUnmet(ctx)
	}
	if met < len(frontier) && failed >= 0 {
		near, err := r.cheapest(len(space), frontier[failed].bound*(1-efficiencySpread))
		if err != nil {
			return nil, err
		}
		for _, b := range near {
			if b.price >= frontier[met].price {
				break
			}
			if slices.ContainsFunc(log.Evaluations(), func(e Evaluation) bool {
				return b.c.Within(e.Configuration) && e.Value < p.target()
			}) {
				continue
			}
			if ok, err := satisfies(b.c); err != nil {
				return nil, err
			} else if ok {
				break
			}
		}
	}
	return leastCostResult(a, space, log)
}

// leastCostResult ranks what was evaluated: what satisfies by price, then the rest by
// how nearly it does.
func leastCostResult(a *Analysis, space []Configuration, log *Log) (*Result, error) {
	target := a.Problem.target()
	r := &Result{Evaluations: log.Evaluations(), SearchSpace: len(space), Notes: a.Notes}
	for _, e := range log.Evaluations() {
		plan, err := a.Plan(e.Configuration, "")
		if err != nil {
			return nil, err
		}
		r.Plans = append(r.Plans, a.Evaluated(plan, e.Estimate))
	}
	a.Problem.rank(r.Plans)
	for i := range r.Plans {
		plan := &r.Plans[i]
		plan.Reason = fmt.Sprintf(
			"meets the target of %.4g %%, and costs %.2g %% more than the first",
			100*target, 100*(plan.Price/r.Plans[0].Price-1))
		if plan.Satisfaction < target {
			plan.Reason = fmt.Sprintf("misses the target of %.4g %%", 100*target)
		} else if i == 0 {
			plan.Reason = fmt.Sprintf(
				"the cheapest of %d configurations that meets the target of %.4g %%; fluid "+
					"limits tell what need not be evaluated", len(space), 100*target)
		}
	}
	return r, nil
}
