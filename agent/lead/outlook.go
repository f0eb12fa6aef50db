package lead

import (
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/profiles"
)

const (
	// outlookEvery is how often the planning loop looks whether the fleet is to be planned for
	// anew.
	outlookEvery = 10 * time.Second
	// outlookRate is by which share the rate must change for that.
	outlookRate = 0.15
)

// An outlook is the plan that the dashboard shows: what runs, what would serve the same for less,
// and what one more instance adds. The planning loop makes it when the demand has changed, the
// instances or the rate, at most one each planRest. It changes nothing in the fleet.
type outlook struct {
	number uint64
	made   time.Time      // zero: none was made yet
	counts map[string]int // instances by type that it is for
	rate   float64        // that it is for
}

// instancesOf counts the instances that serve, by type.
func instancesOf(members []*control.Member) map[string]int {
	counts := map[string]int{}
	for _, m := range members {
		if !m.GetDraining() && hasDescription(m) {
			counts[m.GetInstanceType()]++
		}
	}
	return counts
}

// trigger returns why the outlook is to be made anew; "" if it is not.
func (o *outlook) trigger(now time.Time, counts map[string]int, rate float64) string {
	switch {
	case rate <= 0 || len(counts) == 0:
		return ""
	case o.made.IsZero():
		return "fleet"
	case now.Sub(o.made) < planRest:
		return ""
	case !maps.Equal(o.counts, counts):
		return "fleet"
	case math.Abs(rate-o.rate) > outlookRate*max(o.rate, rate):
		return "time"
	}
	return ""
}

// look makes the outlook anew if that is due.
func (s *planning) look(ctx context.Context) {
	counts := instancesOf(s.term.leader.fleet.View().GetMembers())
	rate := s.term.beating.arrivalRate()
	if trigger := s.outlook.trigger(time.Now(), counts, rate); trigger != "" {
		s.show(ctx, trigger, counts, rate)
	}
}

// show makes the outlook, and passes it on as a plan that says why where there is none.
func (s *planning) show(ctx context.Context, trigger string, counts map[string]int, rate float64) {
	l := s.term.leader
	d := &control.FleetDemand{Members: l.fleet.View().GetMembers()}
	if !s.term.learning.askLoop(func() { s.term.learning.fillDemand(d, time.Now()) }) {
		return // the term has ended
	}
	p := &control.Plan{Trigger: trigger, Approximate: true, Priced: true}
	prices, err := PricesOf(d, l.config.Catalogue, true)
	if err != nil {
		p.Priced, prices = false, map[string]float64{}
		p.Notes = append(p.Notes, err.Error())
		for t := range counts {
			prices[t] = 1
		}
	}
	if err := outlookOf(ctx, d, prices, l.config.Library, p); err != nil {
		p.Reason = "no plan: " + err.Error()
	} else {
		s.outlook.made, s.outlook.counts, s.outlook.rate = time.Now(), counts, rate
	}
	if ctx.Err() != nil {
		return
	}
	s.outlook.number++
	p.Number = s.term.claim.Epoch<<20 | s.outlook.number // beyond those of earlier leaders
	if p.Reason != s.reason || p.Now != nil {
		s.reason = p.Reason
		l.config.Beat(&control.PulseMessage{Plan: p})
	}
}

// outlookOf adds to p what runs, what one more instance adds and, if p is priced, what is best for
// the demand.
func outlookOf(ctx context.Context, d *control.FleetDemand, prices map[string]float64,
	library *profiles.Library, p *control.Plan) error {
	problem, running, err := problemAt(d, func() (map[string]float64, error) { return prices, nil },
		library)
	if err != nil {
		return err
	}
	for i := range problem.Models {
		p.Rate += problem.Models[i].Weight
	}
	var now plan.Plan
	if p.Priced {
		decision, err := plan.React(ctx, profiles.BothChanged, problem, running)
		if err != nil {
			return err
		}
		now = decision.Current
		p.Change, p.Gain, p.Reason = decision.Change, decision.Gain, decision.Reason
		p.Notes = append(p.Notes, decision.Result.Notes...)
		if decision.Change {
			p.Proposed = choiceOf(problem, &decision.Plan, true)
		}
	} else {
		problem.Objective, problem.Rate = plan.LeastCost, p.Rate
		a, err := plan.Analyse(problem)
		if err != nil {
			return err
		}
		if now, err = a.DescribeConfiguration(running, "what runs now"); err != nil {
			return err
		}
		p.Reason = "the leader proposes no fleet before it knows the prices of all types"
	}
	p.Now = choiceOf(problem, &now, p.Priced)
	for _, g := range now.Gains {
		more := &control.Plan_Gain{Type: g.Type, Rate: g.Rate}
		if p.Priced {
			more.Price = g.Price
		}
		p.More = append(p.More, more)
	}
	slices.SortStableFunc(p.More, func(a, b *control.Plan_Gain) int {
		worth := func(g *control.Plan_Gain) float64 { return g.Rate / max(g.Price, 1e-9) }
		switch x, y := worth(a), worth(b); {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	return nil
}

func choiceOf(problem *plan.Problem, p *plan.Plan, priced bool) *control.Plan_Choice {
	c := &control.Plan_Choice{
		Limit: p.FluidLimit, Allowable: approximately * p.FluidLimit, Binding: p.Binding,
	}
	if priced {
		c.Price = p.Price
	}
	for i, n := range p.Configuration {
		if n > 0 {
			of := &control.Plan_FleetCount{Type: string(problem.Types[i].Name), Count: uint32(n)}
			if priced {
				of.Price = problem.Types[i].Price
			}
			c.Instances = append(c.Instances, of)
		}
	}
	return c
}
