package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/muster-serve/muster/leader/place"
)

// Placed plans how many instances of each type to rent and what each of them holds, together. A
// configuration is worth what [place.Solve] makes of it: the share of the demand that is served,
// then accuracy. Duals of a few linear relaxations bound what all other configurations are worth,
// so that few are searched.
type Placed struct {
	// Program has the problem's types in its order. Their counts are not read.
	Program *place.Program
	// LeastAccuracy, if above 0, asks for the cheapest configuration that serves all of the demand
	// at this mean accuracy, in points. Otherwise the problem has a budget, and the best within it
	// is asked for.
	LeastAccuracy float64
	// Top is how many plans to return; 0 means DefaultTop.
	Top int
}

// A Placement is a configuration and what its instances hold.
type Placement struct {
	Configuration Configuration // what holds nothing is not rented
	Price         float64       // $/hr
	*place.Solution
	worth float64
}

// A PlacedResult is what [Placed] finds.
type PlacedResult struct {
	// Plans are the best found, the best first: with LeastAccuracy those that reach it, by price,
	// or, if none does, those that come nearest.
	Plans []Placement
	// Met says that the first plan serves all of the demand, and at LeastAccuracy.
	Met bool
	// Bound: no configuration within the limits serves a larger share than BoundServed, nor the
	// same share as the first plan at a higher accuracy than Bound. With LeastAccuracy, none that
	// reaches it is cheaper than BoundPrice.
	BoundServed, Bound, BoundPrice float64
	SearchSpace, Evaluations       int
	// Doubt says why the first plan may not be the best one, "" if it is, but for Tolerance.
	Doubt string
}

// PlacedTolerance is the accuracy, in points, by which the best plan may exceed the found one;
// chosen.
const PlacedTolerance = 0.01

const (
	searchSteps = 2_000  // of each searched configuration; chosen
	finalSteps  = 50_000 // of each returned configuration; chosen
	// maxSearched bounds the configurations that are searched; chosen.
	maxSearched = 600
)

// errBudget is errTooMany without a budget that could be lowered.
var errBudget = errors.New("too many configurations to choose from: give a budget, limit how " +
	"many of a type, or name fewer types")

// Plan finds the plans. p's models and objective are not read.
func (e Placed) Plan(ctx context.Context, p *Problem) (*PlacedResult, error) {
	of := *p
	of.Objective, of.Models, of.Rate = LeastCost, nil, 0
	if err := of.Validate(); err != nil {
		return nil, err
	}
	if of.Budget > 0 {
		s, err := e.search(&of)
		if err != nil {
			return nil, err
		}
		return s.makePlan(ctx)
	}
	if !(e.LeastAccuracy > 0) {
		return nil, errors.New("budget: the best within which budget? give one above 0")
	}
	// The least price is not known, so the budget doubles until it suffices.
	of.Types = slices.Clone(of.Types)
	for i, n := range e.Program.Enough() {
		if t := &of.Types[i]; t.Max == 0 {
			t.Max = max(1, n)
		}
	}
	all := 0.0
	for _, t := range of.Types {
		of.Budget = max(of.Budget, t.Price)
		all += t.Price * float64(t.Max)
	}
	for {
		s, err := e.search(&of)
		if errors.Is(err, errTooMany) {
			return nil, errBudget
		}
		if err != nil {
			return nil, err
		}
		if s.isReachable() || of.Budget >= all {
			r, err := s.makePlan(ctx)
			if err != nil || r.Met || of.Budget >= all {
				return r, err
			}
		}
		of.Budget *= 2
	}
}

// A placedSearch is the search among the configurations of a budget.
type placedSearch struct {
	Placed
	p       *Problem
	renting *place.CountRelaxation
	space   []Configuration
	price   []float64
	bound   []float64 // by configuration: it is worth no more
	relaxed []bool    // its own relaxation has been solved
	done    []bool    // by configuration: it was searched
	tried   int       // how many were
	need    float64   // worth of what LeastAccuracy asks for
	found   []Placement
}

func (e Placed) search(p *Problem) (*placedSearch, error) {
	most, _, err := p.searchLimits()
	if err != nil {
		return nil, err
	}
	program := *e.Program
	program.Types = slices.Clone(program.Types)
	for t := range program.Types {
		program.Types[t].Count, program.Types[t].Price = most[t], p.Types[t].Price
	}
	s := &placedSearch{Placed: e, p: p}
	if s.renting, err = place.NewCountRelaxation(&program); err != nil {
		return nil, err
	}
	if s.space, err = p.Space(); err != nil {
		return nil, err
	}
	s.bound, s.price = make([]float64, len(s.space)), make([]float64, len(s.space))
	s.relaxed, s.done = make([]bool, len(s.space)), make([]bool, len(s.space))
	for i, c := range s.space {
		s.bound[i], s.price[i] = math.Inf(1), p.Price(c)
	}
	s.need = s.renting.Worth(1, s.LeastAccuracy-1e-4) // rounding of flows and accuracies is less
	s.relaxAround(most)
	return s, nil
}

// relaxAround lowers the bounds of all configurations by the relaxation of one, and returns its
// own.
func (s *placedSearch) relaxAround(c Configuration) float64 {
	bound, rest, prices := s.renting.Bound(c)
	for j, other := range s.space {
		if s.relaxed[j] {
			continue
		}
		b := rest
		for t, n := range other {
			b += prices[t] * float64(n)
		}
		s.bound[j] = min(s.bound[j], b)
	}
	return bound
}

// ownBound solves the relaxation of configuration i, if that is not done.
func (s *placedSearch) ownBound(i int) float64 {
	if !s.relaxed[i] {
		s.bound[i] = min(s.bound[i], s.relaxAround(s.space[i]))
		s.relaxed[i] = true
	}
	return s.bound[i]
}

// isReachable reports whether the bound of some configuration reaches what is needed.
func (s *placedSearch) isReachable() bool {
	for i := range s.space {
		if s.bound[i] >= s.need && s.ownBound(i) >= s.need {
			return true
		}
	}
	return false
}

// tryConfiguration searches configuration i, and returns its worth.
func (s *placedSearch) tryConfiguration(i int) float64 {
	s.done[i] = true
	s.tried++
	return s.placeModels(s.space[i], searchSteps)
}

// placeModels finds what the instances of c should hold, and what that is worth.
func (s *placedSearch) placeModels(c Configuration, steps int) float64 {
	sol := s.renting.Solve(c, steps)
	used := make(Configuration, len(c))
	for i, n := range sol.Counts {
		used[s.Program.Choices[i].Type] += n
	}
	one := Placement{used, s.p.Price(used), sol, s.renting.Worth(sol.Served, sol.Accuracy)}
	key := used.String()
	if i := slices.IndexFunc(s.found, func(o Placement) bool {
		return o.Configuration.String() == key
	}); i < 0 {
		s.found = append(s.found, one)
	} else if s.found[i].worth < one.worth {
		s.found[i] = one
	}
	return one.worth
}

// makePlan searches and ranks.
func (s *placedSearch) makePlan(ctx context.Context) (*PlacedResult, error) {
	r := &PlacedResult{SearchSpace: len(s.space)}
	need, worth := s.need, 0.0
	if !(s.LeastAccuracy > 0) || !s.isReachable() {
		best, bound, err := s.searchBest(ctx)
		if err != nil {
			return nil, err
		}
		worth, need = bound, best-PlacedTolerance/2
	}
	cheapest, err := s.searchCheapest(ctx, need)
	if err != nil {
		return nil, err
	}
	s.rankFound(need)
	for _, f := range slices.Clone(s.found[:min(topOr(s.Top), len(s.found))]) {
		s.placeModels(f.Configuration, finalSteps)
	}
	s.rankFound(need)
	r.Plans = s.found[:min(topOr(s.Top), len(s.found))]
	r.Evaluations = s.tried
	if len(r.Plans) == 0 { // nothing can be served
		return r, nil
	}
	first := &r.Plans[0]
	if s.LeastAccuracy > 0 {
		if r.Met = first.worth >= s.need; r.Met {
			if r.BoundPrice = min(cheapest, first.Price); r.BoundPrice < first.Price-roundingError {
				r.Doubt = fmt.Sprintf("a fleet of %.4g $/hr or more may do, and not all were "+
					"searched", r.BoundPrice)
			}
			return r, nil
		}
	}
	unit := s.renting.Worth(1, 0)
	r.Met = s.LeastAccuracy == 0 && first.Served >= 1-1e-9
	r.BoundServed = min(1, max(first.Served, worth/unit))
	best := 0.0
	for _, v := range s.Program.Variants {
		best = max(best, v.Accuracy)
	}
	if r.Bound = first.Accuracy; first.Served > 0 {
		r.Bound = max(r.Bound, min(best, worth/first.Served-unit))
	}
	if worth > first.worth+PlacedTolerance {
		r.Doubt = "bounds do not exclude a better one, and not all were searched"
	}
	return r, nil
}

// searchBest searches for the configuration that is worth most, and returns its worth and a bound
// of that.
func (s *placedSearch) searchBest(ctx context.Context) (worth, bound float64, err error) {
	// More instances are worth no less, so only configurations are searched to which none can be
	// added.
	var full []int
	for i, c := range s.space {
		more := false
		for t, n := range c {
			of := &s.p.Types[t]
			more = more || (of.Max == 0 || n < of.Max) &&
				s.price[i]+of.Price <= s.p.Budget+roundingError
		}
		if !more {
			full = append(full, i)
		}
	}
	for {
		next := -1
		for _, i := range full {
			if !s.done[i] && (next < 0 || s.bound[i] > s.bound[next]) {
				next = i
			}
		}
		switch {
		case next < 0:
			return worth, worth, nil
		case s.bound[next] <= worth+PlacedTolerance/2, s.tried >= maxSearched:
			return worth, max(worth, s.bound[next]), nil
		case !s.relaxed[next]:
			s.ownBound(next)
			continue
		}
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
		worth = max(worth, s.tryConfiguration(next))
	}
}

// searchCheapest searches for the cheapest configuration that is worth what is needed, and returns
// a price below which there is none. It searches no fleet as dear as a known one, or dearer.
func (s *placedSearch) searchCheapest(ctx context.Context, need float64) (float64, error) {
	order := make([]int, len(s.space))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(s.price[a], s.price[b]), cmp.Compare(s.bound[b], s.bound[a]))
	})
	known := func() float64 {
		least := math.Inf(1)
		for i := range s.found {
			if s.found[i].worth >= need {
				least = min(least, s.found[i].Price)
			}
		}
		return least
	}
	least, from, tried, skipped := known(), math.Inf(1), 0, 0.0
	for _, i := range order {
		if s.price[i] >= least-roundingError {
			break
		}
		if s.price[i] < skipped || s.bound[i] < need || s.done[i] || s.ownBound(i) < need {
			continue
		}
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		s.tryConfiguration(i)
		if least = known(); least <= s.price[i]+roundingError {
			break
		}
		// Some prices are passed over once many were searched in vain, so that a plan is found at
		// all.
		if tried++; tried%(maxSearched/3) == 0 {
			from, skipped = min(from, s.price[i]), 1.02*s.price[i]
		}
	}
	return min(from, least), nil
}

// rankFound orders the found plans: those that are worth what is needed by price, then the others
// by worth.
func (s *placedSearch) rankFound(need float64) {
	slices.SortStableFunc(s.found, func(a, b Placement) int {
		x, y := a.worth >= need, b.worth >= need
		switch {
		case x != y && x:
			return -1
		case x != y:
			return 1
		case x && math.Abs(a.Price-b.Price) > roundingError:
			return cmp.Compare(a.Price, b.Price)
		}
		return cmp.Or(cmp.Compare(b.worth, a.worth), cmp.Compare(a.Price, b.Price),
			slices.Compare(a.Configuration, b.Configuration))
	})
}
