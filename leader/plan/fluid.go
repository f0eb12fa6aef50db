package plan

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/muster-serve/muster/leader/staffing"
)

// Fluid is the planner that takes the configuration of the highest fluid limit, or, for the least
// cost, the cheapest one whose limit times [Configuration.SafeShare] reaches the rate. It evaluates
// none. Where there are too many to list, it chooses from a shortlist that holds the best one.
type Fluid struct {
	// Top is how many plans to return; 0 means DefaultTop.
	Top int
}

// Plan implements [Planner]. The evaluator is not used and may be nil.
func (f Fluid) Plan(_ context.Context, p *Problem, _ Evaluator) (*Result, error) {
	a, space, err := search(p, staffing.SafeShare, limitsFor(p.Rate)...)
	if err != nil {
		return nil, err
	}
	if p.Objective == LeastCost {
		found, err := newRelaxation(a, space).cheapestReaching(topOr(f.Top), needFor(p.Rate))
		if err != nil {
			return nil, err
		}
		if len(found) > 0 {
			return a.makeResult(len(space), found, a.cheapestReason(len(space), found))
		}
		a.noteUnmet()
	}
	// Not the relaxation above, which does not look again at what it has found to be too little.
	found, err := newRelaxation(a, space).highestLimits(topOr(f.Top))
	if err != nil {
		return nil, err
	}
	return a.makeResult(len(space), found, func(i int) string {
		if i == 0 {
			return fmt.Sprintf("the highest fluid limit of %d configurations", len(space))
		}
		return fmt.Sprintf("its fluid limit is %s %% below the first's",
			formatPercent(percentBelow(found[i].bound, found[0].bound)))
	})
}

// limitsFor are fluid limits from which fleets of few and of many instances are assumed to serve a
// rate: a search that lists no configurations begins with them, and goes on with those of the counts
// it finds.
func limitsFor(rate float64) (limits []float64) {
	for _, instances := range []float64{4, 512} {
		limits = append(limits, rate/staffing.SafeShare(instances))
	}
	return limits
}

// needFor is the fluid limit from which a configuration is assumed to serve a rate.
func needFor(rate float64) func(Configuration) float64 {
	return func(c Configuration) float64 { return rate / c.SafeShare() }
}

// analyse analyses p. If p has no budget, it sets one: the price of the base instances that alone
// would serve the rate at the given share of their fluid limit, by how many they are.
func analyse(p *Problem, share func(instances float64) float64) (*Analysis, error) {
	a, err := Analyse(p)
	if err != nil {
		return nil, err
	}
	if a.Problem.Budget == 0 {
		one := make(Configuration, len(a.Problem.Types))
		one[a.Base] = 1
		sol, err := a.Fluid(one)
		if err != nil {
			return nil, err
		}
		a.unbudgeted = true
		a.Problem.Budget = a.homogeneousPrice(p.Rate, sol.Rate, share)
	}
	return a, nil
}

// maxListed is how many configurations are listed. Of 100,000 the fluid limits take a second or
// two; the shortlist in their place takes a few hundredths, whatever their number.
const maxListed = 100_000

// search analyses p and lists its search space. Of more than maxListed configurations it returns a
// shortlist: for the least cost, the cheapest ones whose fluid limits reach each of the rates, for
// the most throughput, the one of the highest limit, and those within one instance of these. These
// are too large for Eq. 15, which may be half of what fleets of hundreds serve: the analysis is
// without it.
func search(p *Problem, share func(instances float64) float64, rates ...float64) (*Analysis,
	[]Configuration, error) {
	a, err := analyse(p, share)
	if err != nil {
		return nil, nil, err
	}
	if most, budget, err := a.Problem.searchLimits(); err == nil &&
		a.Problem.countConfigurations(most, budget) <= maxListed {
		space, err := a.Space()
		return a, space, err
	}
	a.eq15 = nil
	space, err := a.shortlistSpace(share, rates)
	return a, space, err
}

// shortlistSpace returns the configurations that [search] describes, without the others.
func (a *Analysis) shortlistSpace(share func(instances float64) float64,
	rates []float64) (space []Configuration, err error) {
	known := map[string]bool{}
	add := func(s *countSearch, c Configuration) {
		for _, c := range s.nearbyCounts(c) {
			if key := c.String(); !known[key] && a.Feasible(c) {
				known[key] = true
				space = append(space, c)
			}
		}
	}
	if a.Problem.Objective == LeastCost {
		s, err := newCountSearch(a, slices.Max(rates))
		if err != nil {
			return nil, err
		}
		tried := map[float64]bool{}
		for _, rate := range slices.Sorted(slices.Values(rates)) {
			c := Configuration(nil)
			for range 1 + maxSettling { // of other counts other limits are enough
				// Rates that differ by a ten-thousandth have the same counts mostly, and a search
				// takes as long as a second.
				class := math.Round(1e4 * math.Log(rate))
				if tried[class] {
					break
				}
				tried[class] = true
				if c, err = s.cheapestCounts(rate, false); err != nil {
					return nil, err
				}
				if c == nil {
					break
				}
				add(s, c)
				rate = a.Problem.Rate / share(float64(c.Count()))
			}
			if len(space) == 0 && c == nil { // what does not reach this rate reaches no higher one
				break
			}
		}
	}
	if len(space) == 0 {
		s, err := newCountSearch(a, math.Inf(1))
		if err != nil {
			return nil, err
		}
		c, err := s.fastestCounts()
		if err != nil {
			return nil, err
		}
		if c == nil {
			return nil, a.noneFeasible()
		}
		add(s, c)
	}
	a.Notes = append(a.Notes, fmt.Sprintf(
		"more than %d configurations: this is the choice among the %d of the best fluid limits for "+
			"their price", maxListed, len(space)))
	return space, nil
}

// maxSettling bounds how often a search looks again for the number of instances that it has found.
// Chosen: three times are enough but for fleets of a few.
const maxSettling = 3

// homogeneousPrice is the price of the fewest base instances that serve rate at the share of their
// bound, of which each is that of one; 0 if the limit on their number does not allow so many.
func (a *Analysis) homogeneousPrice(rate, each float64,
	share func(instances float64) float64) float64 {
	base := a.Problem.Types[a.Base]
	n := math.Ceil(rate / each)
	for range maxSettling {
		n = math.Ceil(rate / each / share(n))
	}
	for each > 0 && n*each*share(n) < rate {
		n++
	}
	if !(each > 0) || base.Max > 0 && n > float64(base.Max) {
		return 0
	}
	return n * base.Price
}

// noteUnmet adds a note that no configuration within the limits is expected to serve the rate, and
// names one beyond the limits that would.
func (a *Analysis) noteUnmet() {
	p := *a.Problem
	note := fmt.Sprintf(
		"no configuration within the limits is expected to serve %.6g queries/s: these come "+
			"nearest", p.Rate)
	p.Budget, p.Types = 0, slices.Clone(p.Types)
	for i := range p.Types {
		p.Types[i].Max = 0
	}
	if free, space, err := search(&p, staffing.SafeShare, limitsFor(p.Rate)...); err == nil {
		found, err := newRelaxation(free, space).cheapestReaching(1, needFor(p.Rate))
		if err == nil && len(found) > 0 {
			note += fmt.Sprintf("; %s at %.4g $/hr would", p.Name(found[0].c), found[0].price)
		}
	}
	a.Notes = append(a.Notes, note)
}

// makeResult makes a Result of the configurations found, none of which was evaluated.
func (a *Analysis) makeResult(space int, found []boundedConfiguration,
	reason func(i int) string) (*Result, error) {
	r := &Result{SearchSpace: space, Notes: a.Notes}
	for i, b := range found {
		plan, err := a.unevaluatedPlan(b, reason(i))
		if err != nil {
			return nil, err
		}
		r.Plans = append(r.Plans, plan)
	}
	return r, nil
}

// unevaluatedPlan is the plan of a configuration of which only the bound is known.
func (a *Analysis) unevaluatedPlan(b boundedConfiguration, reason string) (Plan, error) {
	plan, err := a.DescribeConfiguration(b.c, reason)
	plan.Bound = b.bound
	plan.Predicted = min(plan.Predicted, b.c.SafeShare()*b.bound)
	return plan, err
}

// cheapestReason returns the reason for the i-th of the configurations found for the rate, which
// are by rising price.
func (a *Analysis) cheapestReason(space int, found []boundedConfiguration) func(i int) string {
	return func(i int) string {
		if i == 0 {
			return fmt.Sprintf(
				"the cheapest of %d configurations whose bound leaves room for %.6g queries/s, "+
					"if distribution reaches %.0f %% of it",
				space, a.Problem.Rate, 100*found[0].c.SafeShare())
		}
		return fmt.Sprintf("costs %s %% more than the first",
			formatPercent(100*(found[i].price/found[0].price-1)))
	}
}
