package plan

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Trials summarises repeated runs of a search, compared with the best of all configurations.
type Trials struct {
	Runs int `json:"runs"`
	// Optimum is the best of all configurations, and OptimumPrice its price in $/hr.
	Optimum      Configuration `json:"-"`
	OptimumPrice float64       `json:"-"`
	// Mean, Median and Worst are of the number of evaluations up to and including the optimum's,
	// over the runs that found it.
	Mean   float64 `json:"evaluations_mean"`
	Median float64 `json:"evaluations_median"`
	Worst  int     `json:"evaluations_worst"`
	// Failed is the number of runs that ended without the optimum.
	Failed int `json:"failed_runs"`
	// Ended is the mean number of evaluations when a run ended.
	Ended float64 `json:"evaluations_to_end_mean"`
	// Violating is the mean number of evaluations before the optimum's that missed the target.
	Violating float64 `json:"violating_evaluations_mean"`
	// Cost is the mean total price of the configurations evaluated until the optimum, in percent of
	// the total of all configurations (RIBBON, Fig. 13).
	Cost float64 `json:"exploration_cost_percent"`
}

// Try calls search runs times, one after the other, and compares the results with an evaluation of
// every configuration of p. evaluator must be cheap, such as a [MeasuredTable].
func Try(ctx context.Context, p *Problem, evaluator Evaluator, runs int,
	search func(run int) (*Result, error)) (*Trials, error) {
	if runs < 1 {
		return nil, fmt.Errorf("number of runs is %d, want at least 1", runs)
	}
	space, err := p.Space()
	if err != nil {
		return nil, err
	}
	t := &Trials{Runs: runs}
	var best Evaluation
	exhaustive := 0.0
	for _, c := range space {
		e, err := evaluator.Evaluate(ctx, c)
		if err != nil {
			return nil, err
		}
		exhaustive += p.Price(c)
		if one := (Evaluation{c, e}); t.Optimum == nil || p.isBetter(one, best) {
			t.Optimum, t.OptimumPrice, best = c, p.Price(c), one
		}
	}
	if p.Objective == LeastCost && best.Value < p.targetOrDefault() {
		return nil, fmt.Errorf(
			"no configuration meets the target of %.4g %%: the best, %s, reaches %.4g %%",
			100*p.targetOrDefault(), p.Name(t.Optimum), 100*best.Value)
	}
	var counts []int
	for run := range runs {
		r, err := search(run)
		if err != nil {
			return nil, fmt.Errorf("run %d: %w", run, err)
		}
		if len(r.Plans) == 0 {
			return nil, errors.New("a run without a plan")
		}
		t.Ended += float64(len(r.Evaluations)) / float64(runs)
		until := slices.IndexFunc(r.Evaluations,
			func(e Evaluation) bool { return !p.isBetter(best, e) })
		if until < 0 {
			t.Failed++
			until = len(r.Evaluations) - 1
		} else {
			counts = append(counts, until+1)
		}
		for _, e := range r.Evaluations[:until+1] {
			t.Cost += 100 * p.Price(e.Configuration) / exhaustive / float64(runs)
			if p.Objective == LeastCost && e.Value < p.targetOrDefault() {
				t.Violating += 1 / float64(runs)
			}
		}
	}
	if n := len(counts); n > 0 {
		slices.Sort(counts)
		for _, c := range counts {
			t.Mean += float64(c) / float64(n)
		}
		t.Median, t.Worst = float64(counts[n/2]+counts[(n-1)/2])/2, counts[n-1]
	}
	return t, nil
}

// isBetter reports whether evaluation x is better than y. For the least cost, one that meets the
// target is better than one that does not, and then the cheaper one; for the most throughput, the
// one that serves more.
func (p *Problem) isBetter(x, y Evaluation) bool {
	if p.Objective == MostThroughput {
		return x.Value > y.Value
	}
	xMeets, yMeets := x.Value >= p.targetOrDefault(), y.Value >= p.targetOrDefault()
	if xMeets && yMeets {
		return p.Price(x.Configuration) < p.Price(y.Configuration)-roundingError
	}
	return xMeets || !yMeets && x.Value > y.Value
}
