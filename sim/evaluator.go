package sim

import (
	"context"
	"fmt"

	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/profiles"
)

// Problem is the planning problem of models, as the policy knows their latencies, and instance
// types with their prices. The objective and its numbers are left to the caller. A type without a
// profile for a model is a nil Latencies, which the problem's validation names.
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
			if l := m.known(price.Type); l != nil {
				known[t] = l
			}
		}
		p.Models = append(p.Models, plan.Model{
			Name: m.Name, QoSTarget: m.QoSTarget, Weight: m.weight(),
			BatchSizes: Distribution(m.BatchSizes), Latencies: known,
		})
	}
	return p
}

// An Evaluator is a plan.Evaluator that simulates.
type Evaluator struct {
	// Config says what is simulated, but for its pool. Its Rate is that at which the share within
	// the QoS target is found.
	Config *Config
	// Types are the instance types, in the problem's order.
	Types []string
	// Seeds is how many runs an estimate is the mean of, >= 1; all configurations
	// see the same queries.
	Seeds     int
	Objective plan.Objective
}

// Pool is the configuration as a pool.
func (e *Evaluator) Pool(c plan.Configuration) Pool {
	pool := make(Pool, len(c))
	for i, n := range c {
		pool[i] = Instances{e.Types[i], n}
	}
	return pool
}

// Evaluate finds the configuration's allowable throughput, or the share of queries within their QoS
// target at the rate: of several models the least of their shares.
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
