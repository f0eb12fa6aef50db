package sim

import (
	"context"
	"fmt"

	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/profiles"
)

// Problem returns the planning problem of the models, with the latencies that the policy knows, and
// the instance types with their prices. The caller sets the objective and its numbers. For a type
// without a profile of a model, Latencies has a nil entry, which the problem's validation reports.
func Problem(models []Model, prices []Price) *plan.Problem {
	p := &plan.Problem{}
	for _, price := range prices {
		p.Types = append(p.Types, plan.Type{
			Name: profiles.InstanceType(price.Type), Price: price.PriceUSDPerHour,
		})
	}
	for i := range models {
		m := &models[i]
		known := make([]plan.Latencies, len(prices))
		for t, price := range prices {
			if l := m.assumedLatencies(price.Type); l != nil {
				known[t] = l
			}
		}
		p.Models = append(p.Models, plan.ModelDemand{
			Name: m.Name, QoSTarget: m.QoSTarget, Weight: m.weightOrDefault(),
			BatchSizes: Distribution(m.BatchSizes), Latencies: known,
		})
	}
	return p
}

// An Evaluator is a plan.Evaluator that simulates.
type Evaluator struct {
	// Config describes the runs; its Pool is not read. For LeastCost its Rate is the demand's.
	Config *Config
	// Types are the instance types, in the problem's order.
	Types []string
	// Seeds is the number of runs over which an estimate is averaged, >= 1. All configurations get
	// the same queries.
	Seeds     int
	Objective plan.Objective
}

// Pool converts a configuration to a pool.
func (e *Evaluator) Pool(c plan.Configuration) Pool {
	pool := make(Pool, len(c))
	for i, n := range c {
		pool[i] = Instances{e.Types[i], n}
	}
	return pool
}

// Evaluate implements [plan.Evaluator]. It returns the configuration's allowable throughput, or the
// share of queries within their QoS target at Config.Rate, with several models the lowest of their
// shares.
func (e *Evaluator) Evaluate(ctx context.Context, c plan.Configuration) (plan.Estimate, error) {
	cfg := *e.Config
	cfg.Pool = e.Pool(c)
	if e.Objective == plan.MostThroughput {
		t, err := FindThroughput(ctx, &cfg, e.Seeds, nil)
		if err != nil {
			return plan.Estimate{}, fmt.Errorf("simulate %s: %w", cfg.Pool, err)
		}
		return plan.Estimate{Value: t.Rate, StdErr: t.StandardError}, nil
	}
	r, err := RunSeeds(ctx, &cfg, e.Seeds, nil)
	if err != nil {
		return plan.Estimate{}, fmt.Errorf("simulate %s: %w", cfg.Pool, err)
	}
	shares := make([]float64, len(r.Runs))
	for i, run := range r.Runs {
		shares[i] = 1
		for _, m := range run.Models {
			shares[i] = min(shares[i], m.QoSSatisfaction)
		}
	}
	mean, standardError := meanAndError(shares)
	return plan.Estimate{Value: mean, StdErr: standardError}, nil
}
