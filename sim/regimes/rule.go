package regimes

import (
	"fmt"
	"math"
)

// The rule's tolerances: by how much a baseline may do better than the subject. Those of fairness
// and of the total hold for several models above the limit, the others for all other regimes.
const (
	moreThroughput = 0.02  // answers in time, as a share
	lessLate       = 0.002 // share of late queries
	fasterLatency  = 0.10  // p50 or p99 at the same lateness, as a share
	lessFair       = 0.02  // the least share that a model gets, of what it would reach alone
	totalAbove     = 0.10  // answers in time of all models, as a share
)

// fewQueries is the number of a model's queries below which its share says little.
const fewQueries = 50

// exceptions are the groups of regimes, see [Regime.Group], for which the rule does not hold, with
// the reason and the numbers; three at most.
var exceptions = map[string]string{}

// Exception is why the rule does not hold for the regime; "" if it does.
func (r *Regime) Exception() string { return exceptions[r.Group()] }

// Broken returns where the subject breaks the rule in a regime: in which figure which baseline is
// better by more than the rule allows, one line each. results has one result for each policy.
func (r *Regime) Broken(results []*Result) (broken []string, err error) {
	var subject *Result
	for _, x := range results {
		if x.Policy == Subject {
			subject = x
		}
	}
	if subject == nil {
		return nil, fmt.Errorf("regime %s: no result of %s", r.Name, Subject)
	}
	fair := r.feasible() > 1 && r.overloaded()
	var alone []float64
	if fair {
		if alone, err = r.alone(); err != nil {
			return nil, err
		}
	}
	for _, x := range results {
		if x == subject {
			continue
		}
		add := func(format string, args ...any) {
			broken = append(broken, x.Policy+": "+fmt.Sprintf(format, args...))
		}
		if fair {
			if ours, theirs := subject.least(alone), x.least(alone); theirs > ours+lessFair {
				add("the model that gets least gets %.3f of what it would reach alone, "+
					"with %s %.3f", theirs, Subject, ours)
			}
			r.compareRate(subject, x, totalAbove, add)
			continue
		}
		r.compareRate(subject, x, moreThroughput, add)
		ours, theirs := subject.LateShare(r), x.LateShare(r)
		if theirs < ours-lessLate {
			add("late %.2f %%, with %s %.2f %%", 100*theirs, Subject, 100*ours)
		}
		if theirs > ours+lessLate {
			continue // not the same lateness
		}
		for _, p := range []float64{0.5, 0.99} {
			ours, theirs := subject.Quantile(r, p), x.Quantile(r, p)
			if theirs < (1-fasterLatency)*ours {
				add("p%.0f %.3f targets, with %s %.3f", 100*p, theirs, Subject, ours)
			}
		}
	}
	return broken, nil
}

func (r *Regime) compareRate(subject, x *Result, tolerance float64,
	add func(format string, args ...any)) {
	if ours, theirs := subject.InTimeRate(r), x.InTimeRate(r); theirs > (1+tolerance)*ours {
		add("%.1f answers/s in time, with %s %.1f", theirs, Subject, ours)
	}
}

// feasible is the number of feasible models.
func (r *Regime) feasible() (n int) {
	for i := range r.Models {
		if !r.Models[i].Infeasible {
			n++
		}
	}
	return n
}

// least is the least part that a model gets of the share that it would reach alone. Models that
// would reach nothing, or have few queries, do not count.
func (x *Result) least(alone []float64) float64 {
	least := math.Inf(1)
	for i := range x.Models {
		if alone[i] > 0 && x.Models[i].Queries >= fewQueries {
			least = min(least, x.Models[i].InTimeShare()/alone[i])
		}
	}
	return least
}
