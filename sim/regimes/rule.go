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

// fewQueries is the number of a model's queries below which its share says little. Chosen: one
// query more or less is then the 2 % that the rule lets differ.
const fewQueries = 50

// exceptions are the groups of regimes, see [Regime.Group], for which the rule does not hold, with
// the reason and the numbers; three at most.
var exceptions = map[string]string{}

// Exception is why the rule does not hold for the regime; "" if it does.
func (r *Regime) Exception() string { return exceptions[r.Group()] }

// A Break is a figure in which a baseline is better than the subject by more than the rule allows.
type Break struct {
	Policy string // the baseline
	Figure string
	// Theirs and Ours are the baseline's figure and the subject's.
	Theirs, Ours float64
}

func (b Break) String() string {
	return fmt.Sprintf("%s: %s %.4g, with %s %.4g", b.Policy, b.Figure, b.Theirs, Subject, b.Ours)
}

// Broken returns where the subject breaks the rule in a regime. results has one result for each
// policy.
func (r *Regime) Broken(results []*Result) (broken []Break, err error) {
	var subject *Result
	for _, x := range results {
		if x.Policy == Subject {
			subject = x
		}
	}
	if subject == nil {
		return nil, fmt.Errorf("regime %s: no result of %s", r.Name, Subject)
	}
	var alone []float64
	if r.isFair() {
		if alone, err = r.sharesAlone(); err != nil {
			return nil, err
		}
	}
	for _, x := range results {
		if x != subject {
			broken = append(broken, r.compareWith(subject, x, alone)...)
		}
	}
	return broken, nil
}

// isFair reports whether the rule is about fairness: several models are above the limit.
func (r *Regime) isFair() bool { return r.countFeasible() > 1 && r.Load > 1 }

// compareWith returns where a baseline is better. alone is nil unless fairness counts.
func (r *Regime) compareWith(subject, x *Result, alone []float64) (broken []Break) {
	note := func(better bool, figure string, theirs, ours float64) {
		if better {
			broken = append(broken, Break{x.Policy, figure, theirs, ours})
		}
	}
	ours, theirs := subject.InTimeRate(r), x.InTimeRate(r)
	tolerance := moreThroughput
	if alone != nil {
		tolerance = totalAbove
	}
	note(theirs > (1+tolerance)*ours, "in time/s", theirs, ours)
	if alone != nil {
		ours, theirs = subject.minShare(alone), x.minShare(alone)
		note(theirs > ours+lessFair, "least of a model", theirs, ours)
		return broken
	}
	ours, theirs = subject.LateShare(r), x.LateShare(r)
	note(theirs < ours-lessLate, "late %", 100*theirs, 100*ours)
	if theirs > ours+lessLate {
		return broken // not the same lateness
	}
	for _, p := range []float64{0.5, 0.99} {
		ours, theirs := subject.Quantile(r, p), x.Quantile(r, p)
		note(theirs < (1-fasterLatency)*ours, fmt.Sprintf("p%.0f / target", 100*p), theirs, ours)
	}
	return broken
}

// countFeasible is the number of feasible models.
func (r *Regime) countFeasible() (n int) {
	for i := range r.Models {
		if !r.Models[i].Infeasible {
			n++
		}
	}
	return n
}

// minShare is the least part that a model gets of the share that it would reach alone. Models
// that would reach nothing, or have few queries, do not count.
func (x *Result) minShare(alone []float64) float64 {
	least := math.Inf(1)
	for i := range x.Models {
		if alone[i] > 0 && x.Models[i].Queries >= fewQueries {
			least = min(least, x.Models[i].InTimeShare()/alone[i])
		}
	}
	return least
}

// A Description has the numbers of the rule, for people.
type Description struct {
	Subject string
	// Seeds is how many seeds the whole form has in most regimes, ShortSeeds are those of the short
	// form.
	Seeds      int
	ShortSeeds []uint64
	// Percent, LessLate in points, LessFair as a share.
	MoreThroughput, LessLate, FasterLatency, LessFair, TotalAbove float64
}

// DescribeRule returns the numbers of the rule.
func DescribeRule() Description {
	const percent = 100
	var usual Regime
	return Description{
		Subject: Subject, Seeds: len(usual.SeedsOf(false)), ShortSeeds: usual.SeedsOf(true),
		MoreThroughput: percent * moreThroughput, LessLate: percent * lessLate,
		FasterLatency: percent * fasterLatency, LessFair: lessFair,
		TotalAbove: percent * totalAbove,
	}
}
