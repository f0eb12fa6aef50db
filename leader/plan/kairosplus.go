package plan

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/muster-serve/muster/leader/staffing"
)

// KairosPlus is the search of KAIROS+ (KAIROS, Algorithm 1). It evaluates configurations by falling
// bound. It drops those whose bound is no better than the best evaluation, and all
// sub-configurations of evaluated ones, until none is left. Once an evaluation has exceeded its
// bound, it goes on as far as others could exceed theirs.
//
// The bound is the paper's Eq. 15. It is not quite an upper bound, but with it the search found the
// best configuration for all five models of the paper, in half the evaluations that the fluid limit
// takes.
type KairosPlus struct {
	// FluidBound says to use the fluid limit as the bound, which is a true upper bound. With
	// several models it is used in any case.
	FluidBound bool
	// Top is how many plans to return at least; 0 means DefaultTop.
	Top int
}

// Plan implements [Planner]. The plans are the evaluated configurations, the best first. For the
// most throughput, if these are fewer than Top, the others of the highest bound follow.
func (k KairosPlus) Plan(ctx context.Context, p *Problem, e Evaluator) (*Result, error) {
	if e == nil {
		return nil, errors.New("kairos+ evaluates configurations: give it an evaluator")
	}
	if p.Objective == LeastCost {
		return minCost(ctx, p, NewLog(e))
	}
	return k.maxThroughput(ctx, p, NewLog(e))
}

func (k KairosPlus) maxThroughput(ctx context.Context, p *Problem, log *Log) (*Result, error) {
	a, space, err := search(p, staffing.SafeShare)
	if err != nil {
		return nil, err
	}
	next := k.orderByBound(a, space)
	var plans []Plan
	var others []boundedConfiguration
	// Fleets that split and merge queries may serve more than their bounds say. What one exceeds
	// its bound by, others may exceed theirs by, too, and efficiencySpread more.
	best, exceeds := 0.0, 1.0
	for {
		b, err := next()
		if err != nil {
			return nil, err
		}
		if b.c == nil {
			break
		}
		if b.bound*exceeds <= best {
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
		if estimate.Value > b.bound {
			exceeds = max(exceeds, (1+efficiencySpread)*estimate.Value/b.bound)
		}
		plan, err := a.DescribeConfiguration(b.c, "")
		if err != nil {
			return nil, err
		}
		plan.Bound = b.bound
		plans = append(plans, a.Evaluated(plan, estimate))
	}
	p.rankPlans(plans)
	for i := range plans {
		switch {
		case i > 0:
			plans[i].Reason = servesLess(&plans[i], &plans[0])
		case best == 0:
			plans[0].Reason = servesNothing + "; this one has the highest fluid limit of them"
			a.Notes = append(a.Notes, servesNothing+": these are ranked by their fluid limits")
		default:
			plans[0].Reason = fmt.Sprintf(
				"the best of %d configurations: by their bounds those not evaluated serve no more",
				len(space))
		}
	}
	for _, b := range others[:max(0, min(len(others), topOr(k.Top)-len(plans)))] {
		plan, err := a.unevaluatedPlan(b,
			"not evaluated: by its bound it serves no more than the first")
		if err != nil {
			return nil, err
		}
		if b.bound*exceeds > best {
			plan.Reason = "not evaluated: it has no more of any type than one that was"
		}
		plans = append(plans, plan)
	}
	return &Result{
		Plans: plans, Evaluations: log.Evaluations(), SearchSpace: len(space), Notes: a.Notes,
	}, nil
}

// orderByBound returns a function that returns the next configuration by falling bound at each
// call, and a nil one after the last.
func (k KairosPlus) orderByBound(a *Analysis, space []Configuration) func() (boundedConfiguration,
	error) {
	if k.FluidBound || a.eq15 == nil {
		return newRelaxation(a, space).next
	}
	all := make([]boundedConfiguration, len(space))
	for i, c := range space {
		all[i] = boundedConfiguration{c: c, bound: a.eq15.boundOf(c)}
	}
	slices.SortStableFunc(all, byEq15)
	return func() (b boundedConfiguration, err error) {
		if len(all) > 0 {
			b, all = all[0], all[1:]
		}
		return b, nil
	}
}

const (
	// minEfficiency is the smallest share of its fluid limit that a fleet is assumed to reach. It
	// bounds the price where the problem has no budget. Chosen: fleets of the papers' models reach
	// .85 or more, and a fleet of one machine somewhat less.
	minEfficiency = 0.6
	// efficiencySpread is by how much the shares of their fluid limits that configurations of
	// similar price reach may differ. A configuration counts as failed if a cheaper one failed
	// whose fluid limit is higher by more than this share.
	efficiencySpread = 0.02
)

// minCost bisects the configurations whose fluid limit is higher than that of all cheaper ones,
// for the cheapest that meets the target. Then it evaluates the cheaper configurations between them
// whose limit is at most efficiencySpread below that of the dearest failed one.
func minCost(ctx context.Context, p *Problem, log *Log) (*Result, error) {
	// Steps as small as what configurations of similar price may differ by.
	rates := []float64{p.Rate}
	for rate := p.Rate; rate < p.Rate/minEfficiency; {
		rate = min(rate*(1+efficiencySpread), p.Rate/minEfficiency)
		rates = append(rates, rate)
	}
	a, space, err := search(p, func(float64) float64 { return minEfficiency }, rates...)
	if err != nil {
		return nil, err
	}
	r := newRelaxation(a, space)
	frontier, err := r.priceFrontier(p.Rate)
	if err != nil {
		return nil, err
	}
	unmet := len(frontier) == 0
	if unmet {
		if frontier, err = r.highestLimits(1); err != nil {
			return nil, err
		}
	}
	satisfies := func(c Configuration) (bool, error) {
		e, err := log.Evaluate(ctx, c)
		return e.Value >= p.targetOrDefault(), err
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
		a.noteUnmet()
	}
	if met < len(frontier) && failed >= 0 {
		near, err := r.cheapestReaching(len(space), func(Configuration) float64 {
			return frontier[failed].bound * (1 - efficiencySpread)
		})
		if err != nil {
			return nil, err
		}
		for _, b := range near {
			if b.price >= frontier[met].price {
				break
			}
			if slices.ContainsFunc(log.Evaluations(), func(e Evaluation) bool {
				return b.c.Within(e.Configuration) && e.Value < p.targetOrDefault()
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
	return minCostResult(a, space, log)
}

// minCostResult ranks the evaluated configurations: first those that meet the target, by price,
// then the others by how near they come to it.
func minCostResult(a *Analysis, space []Configuration, log *Log) (*Result, error) {
	target := a.Problem.targetOrDefault()
	r := &Result{Evaluations: log.Evaluations(), SearchSpace: len(space), Notes: a.Notes}
	for _, e := range log.Evaluations() {
		plan, err := a.DescribeConfiguration(e.Configuration, "")
		if err != nil {
			return nil, err
		}
		r.Plans = append(r.Plans, a.Evaluated(plan, e.Estimate))
	}
	a.Problem.rankPlans(r.Plans)
	for i := range r.Plans {
		plan := &r.Plans[i]
		plan.Reason = fmt.Sprintf(
			"meets the target of %.4g %%, and costs %s %% more than the first",
			100*target, formatPercent(100*(plan.Price/r.Plans[0].Price-1)))
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
