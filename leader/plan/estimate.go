package plan

import "context"

// A BoundEvaluator is an [Evaluator] that runs nothing. Its estimate of the allowable throughput is
// [Configuration.SafeShare] of the fluid limit. For the least cost, where the demand's rate exceeds
// that estimate, it counts the excess queries as late.
type BoundEvaluator struct {
	Analysis *Analysis
}

// Evaluate implements [Evaluator].
func (b BoundEvaluator) Evaluate(_ context.Context, c Configuration) (Estimate, error) {
	sol, err := b.Analysis.Fluid(c)
	if err != nil {
		return Estimate{}, err
	}
	p := b.Analysis.Problem
	rate := c.SafeShare() * sol.Rate
	if p.Objective == LeastCost {
		return Estimate{Value: min(1, rate/p.Rate)}, nil
	}
	return Estimate{Value: rate}, nil
}
