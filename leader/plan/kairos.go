package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/muster-serve/muster/leader/staffing"
)

// Kairos is KAIROS's planner (section 5.2). It ranks configurations by Eq. 15, chooses one of the
// highest by the similarity rule, and evaluates none. It plans for one model.
type Kairos struct {
	// Top is how many plans to return; 0 means DefaultTop.
	Top int
}

var errSeveralModels = errors.New(
	"the bound of Eq. 15 is for one model: for several use the fluid planner")

// Plan implements [Planner]. The evaluator is not used and may be nil. For LeastCost it takes the
// cheapest configuration whose bound times [Configuration.SafeShare] reaches the rate.
func (k Kairos) Plan(_ context.Context, p *Problem, _ Evaluator) (*Result, error) {
	a, err := analyse(p, staffing.SafeShare)
	if err != nil {
		return nil, err
	}
	if a.eq15 == nil {
		return nil, errSeveralModels
	}
	top := topOr(k.Top)
	if p.Objective == LeastCost {
		if a.unbudgeted { // by this bound base instances serve less than by their fluid limit
			a.Problem.Budget = max(a.Problem.Budget,
				a.homogeneousPrice(p.Rate, a.eq15.all, staffing.SafeShare))
		}
		found, space, err := a.firstByOrder(top, byPrice, needFor(p.Rate))
		if err != nil {
			return nil, err
		}
		if len(found) > 0 {
			return a.makeResult(space, found, a.cheapestReason(space, found))
		}
		a.noteUnmet()
	}
	all, space, err := a.firstByOrder(max(top, similarOf), byEq15, needFor(0))
	if err != nil {
		return nil, err
	}
	chosen, reason := a.chooseSimilar(all, space)
	found := append([]boundedConfiguration{all[chosen]}, slices.Delete(slices.Clone(all), chosen,
		chosen+1)...)
	found = found[:min(top, len(found))]
	return a.makeResult(space, found, func(i int) string {
		if i == 0 {
			return reason
		}
		return fmt.Sprintf("its bound is %s %% below the highest",
			formatPercent(percentBelow(found[i].bound, all[0].bound)))
	})
}

// byEq15 orders by falling bound alone: KAIROS leaves configurations of equal bound in the order of
// their counts.
func byEq15(a, b boundedConfiguration) int { return cmp.Compare(b.bound, a.bound) }

// firstByOrder returns the first n configurations in the given order, among those whose Eq. 15
// bound is at least what is needed of them; equal ones are in the order of the counts. It keeps
// only n in memory, because there may be millions. space is the number of all configurations.
func (a *Analysis) firstByOrder(n int, order func(x, y boundedConfiguration) int,
	needed func(Configuration) float64) (first []boundedConfiguration,
	space int, err error) {
	all, err := a.Configurations()
	if err != nil {
		return nil, 0, err
	}
	for c := range all {
		space++
		b := boundedConfiguration{c: c, price: roundBound(a.Problem.Price(c)),
			bound: a.eq15.boundOf(c)}
		if b.bound < needed(c) || len(first) == n && order(b, first[n-1]) >= 0 {
			continue
		}
		b.c = c.Clone()
		at := sort.Search(len(first), func(i int) bool { return order(first[i], b) > 0 })
		if len(first) == n {
			first = first[:n-1]
		}
		first = slices.Insert(first, at, b)
	}
	if space == 0 {
		return nil, 0, a.noneFeasible()
	}
	return first, space, nil
}

// similarOf is how many configurations of the highest bounds the similarity rule compares (section
// 5.2).
const similarOf = 10

// chooseSimilar is KAIROS's choice among all, which are sorted by falling bound. If the first three
// have equally many base instances, it is the first one. Otherwise it is the one of the first ten
// with the least sum of squared distances to the others.
func (a *Analysis) chooseSimilar(all []boundedConfiguration, space int) (chosen int,
	reason string) {
	base := func(i int) int { return all[i].c[a.Base] }
	name := a.Problem.Types[a.Base].Name
	if len(all) < 3 || base(0) == base(1) && base(1) == base(2) {
		return 0, fmt.Sprintf(
			"the highest bound (Eq. 15) of %d configurations; the next ones agree on %d %s", space,
			base(0), name)
	}
	top := all[:min(similarOf, len(all))]
	nearest := math.Inf(1)
	for i := range top {
		var sum float64
		for j := range top {
			for t := range top[i].c {
				d := float64(top[i].c[t] - top[j].c[t])
				sum += d * d
			}
		}
		if sum < nearest {
			chosen, nearest = i, sum
		}
	}
	return chosen, fmt.Sprintf(
		"of the %d configurations with the highest bound (Eq. 15) of %d, which differ in the "+
			"number of %s, the nearest to the others", len(top), space, name)
}
