package plan

import "context"

// A BoundEvaluator is an [Evaluator] that runs nothing: it takes the share of the fluid limit that
// [Problem.Efficiency] says for the allowable throughput, and at the least cost, as far as that
// falls short of the rate, the rest of the queries for late.
type BoundEvaluator struct {
	Analysis *Analysis
}

// Evaluate estimates.
func (b BoundEvaluator) Evaluate(_ context.Context, c Configuration) (Estimate, error) {
	sol, err := b.Analysis.Fluid(c)
	if err != nil {
		return Estimate{}, err
	}
	p := b.Analysis.Problem
	rate := p.efficiency() * sol.Rate
	if p.Objective == LeastCost {
		return Estimate{Value: min(1, rate/p.Rate)}, nil
	}
	return Estimate{Value: rate}, nil
}
