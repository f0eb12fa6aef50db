package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/muster-serve/muster/profiles"
)

// DefaultThreshold is the default of [Replanner.Threshold]. A smaller gain does not pay for the
// minutes in which new instances start.
const DefaultThreshold = 0.05

// React plans for the least cost that serves a demand. The weights of p's models are the rates at
// which they are asked for now, queries/s, 0 included; its objective, budget and rate are not read.
// The answer comes at once, by fluid limits, as no configuration is evaluated.
//
// The planner is [Fluid], as in its one shot it found better fleets than [Kairos], whose bound is
// for one model, and as good ones as [Ribbon] within 7 %, which has to evaluate some dozen.
func React(ctx context.Context, p *Problem, current Configuration) (*Decision, error) {
	asked := *p
	asked.Objective, asked.Budget, asked.Rate = LeastCost, 0, 0
	asked.Models = slices.DeleteFunc(slices.Clone(p.Models), func(m ModelDemand) bool {
		return m.Weight == 0 // else it would count as 1
	})
	if len(asked.Models) == 0 {
		return nil, errors.New("no model is asked for")
	}
	for _, m := range asked.Models {
		asked.Rate += m.Weight
	}
	return (&Replanner{Planner: Fluid{Top: 1}}).Decide(ctx, current, &asked, nil)
}

// SureTarget is the share of queries to plan for so that the target holds although batch sizes are
// known of a sample of queries only: of a hundredth that may be late, a thousand queries may show
// none too many, and a plan without a type that answers the largest ones would meet the target of
// those queries alone. It is two standard errors above the target.
func SureTarget(target float64, queries int) float64 {
	return min(target+2*math.Sqrt(target*(1-target)/float64(max(1, queries))), max(target, 0.9999))
}

// A Replanner decides whether a fleet should change after its demand has changed (profiles.Monitor
// detects that). Its planner chooses the new configuration: kairos in one shot, ribbon starting
// from earlier evaluations.
type Replanner struct {
	Planner Planner
	// Threshold is the least gain for which to change, as a share: 0.05 is 5 %; 0 means
	// DefaultThreshold. A change that ends a violation of the budget, or of the QoS target at the
	// demand's rate, is made whatever its gain.
	Threshold float64
}

// A Decision says whether to change the fleet, and the expected gain.
type Decision struct {
	Change bool
	// Plan is the planner's first plan. Current is the present configuration as a plan for the same
	// demand.
	Plan, Current Plan
	// Gain is the share by which Plan serves more than Current, or costs less if the objective is
	// LeastCost. It is negative if meeting a rate costs more.
	Gain   float64
	Reason string
	// Result is the planner's whole result.
	Result *Result
}

// WithDemand returns a copy of the problem with another distribution of a model's batch sizes (nil:
// unchanged) and another rate of all queries together (0: unchanged).
func (p *Problem) WithDemand(model string, sizes profiles.Distribution, rate float64) (*Problem,
	error) {
	i := slices.IndexFunc(p.Models, func(m ModelDemand) bool { return m.Name == model })
	if i < 0 {
		return nil, fmt.Errorf("no model %q in the problem", model)
	}
	changed := *p
	changed.Models = slices.Clone(p.Models)
	if sizes != nil {
		changed.Models[i].BatchSizes = slices.Clone(sizes)
	}
	if rate > 0 {
		changed.Rate = rate
	}
	return &changed, nil
}

// Decide plans for p and compares the best plan with the current configuration. If the planner
// evaluated the plan, the current configuration is evaluated too; otherwise their fluid limits are
// compared.
func (r *Replanner) Decide(ctx context.Context, current Configuration, p *Problem,
	e Evaluator) (*Decision, error) {
	if len(current) != len(p.Types) {
		return nil, fmt.Errorf(
			"the current configuration %s is not of the problem's %d instance types", current,
			len(p.Types))
	}
	a, err := Analyse(p)
	if err != nil {
		return nil, err
	}
	result, err := r.Planner.Plan(ctx, p, e)
	if err != nil {
		return nil, err
	}
	if len(result.Plans) == 0 {
		return nil, errors.New("the planner found no plan")
	}
	d := &Decision{Plan: result.Plans[0], Result: result}
	if d.Current, err = a.DescribeConfiguration(current, "what runs now"); err != nil {
		return nil, err
	}
	if d.Plan.Evaluated {
		estimate, err := recallOrEvaluate(ctx, result.Evaluations, e, current)
		if err != nil {
			return nil, err
		}
		d.Current = a.Evaluated(d.Current, estimate)
	}
	r.decideOn(d, p)
	return d, nil
}

// recallOrEvaluate returns the known estimate of c, or evaluates c.
func recallOrEvaluate(ctx context.Context, known []Evaluation, e Evaluator,
	c Configuration) (Estimate,
	error) {
	for _, k := range known {
		if slices.Equal(k.Configuration, c) {
			return k.Estimate, nil
		}
	}
	return e.Evaluate(ctx, c)
}

func (r *Replanner) decideOn(d *Decision, p *Problem) {
	threshold := r.Threshold
	if threshold == 0 {
		threshold = DefaultThreshold
	}
	if slices.Equal(d.Plan.Configuration, d.Current.Configuration) {
		d.Reason = fmt.Sprintf("%s is still the best", p.Name(d.Current.Configuration))
		return
	}
	change := fmt.Sprintf("%s instead of %s", p.Name(d.Plan.Configuration),
		p.Name(d.Current.Configuration))
	if p.Objective == LeastCost {
		if d.Current.Price > 0 {
			d.Gain = 1 - d.Plan.Price/d.Current.Price
		}
		change += fmt.Sprintf(" costs %.4g instead of %.4g $/hr", d.Plan.Price, d.Current.Price)
		switch now, then := d.Current.meetsTarget(p), d.Plan.meetsTarget(p); {
		case now && !then:
			d.Reason = fmt.Sprintf("nothing better than %s was found for %.6g queries/s",
				p.Name(d.Current.Configuration), p.Rate)
			return
		case then && !now:
			d.Change, d.Reason = true, change+
				fmt.Sprintf(", and only that serves %.6g queries/s", p.Rate)
			return
		case !now: // neither serves the rate, so the price does not count
			d.Change = d.Plan.isNearer(&d.Current)
			d.Reason = change + fmt.Sprintf(", and neither serves %.6g queries/s", p.Rate)
			if d.Change {
				d.Reason += ", but it comes nearer"
			}
			return
		}
	} else {
		before, after := d.Current.FluidLimit, d.Plan.FluidLimit
		if d.Plan.Evaluated {
			before, after = d.Current.Predicted, d.Plan.Predicted
		}
		if before == 0 {
			if after == 0 {
				d.Reason = fmt.Sprintf(
					"nothing better than %s was found: no configuration serves any rate within "+
						"the QoS target", p.Name(d.Current.Configuration))
				return
			}
			d.Change, d.Gain, d.Reason = true, 1, change+
				": that serves no rate within the QoS target any more"
			return
		}
		d.Gain = after/before - 1
		change += fmt.Sprintf(" serves %.1f %% more", 100*d.Gain)
	}
	if !p.Affordable(d.Current.Configuration) {
		d.Change, d.Reason = true, change+", and that is no longer within the limits"
		return
	}
	d.Change = d.Gain >= threshold
	d.Reason = change
	if !d.Change {
		d.Reason += fmt.Sprintf(", less than the %.3g %% for which it is worth changing",
			100*threshold)
	}
}

// meetsTarget reports whether the plan is expected to meet the QoS target at the problem's rate.
func (plan *Plan) meetsTarget(p *Problem) bool {
	if plan.Evaluated {
		return plan.Satisfaction >= p.targetOrDefault()
	}
	return plan.Predicted >= p.Rate*(1-1e-9)
}

// isNearer reports whether the plan comes nearer than another to a rate that neither serves: by
// their evaluations, or by their fluid limits if the evaluations are equal.
func (plan *Plan) isNearer(than *Plan) bool {
	return cmp.Or(cmp.Compare(plan.Satisfaction, than.Satisfaction),
		cmp.Compare(plan.FluidLimit, than.FluidLimit)) > 0
}
