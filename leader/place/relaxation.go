package place

import (
	"math"
	"math/rand/v2"
	"slices"
)

// A CountRelaxation bounds what a program is worth with fewer agents than it allows, for a search of
// how many to rent. It is the linear relaxation; what does not depend on the counts is computed
// once. Prices and changes cost nothing. It is not safe for concurrent use.
type CountRelaxation struct {
	program Program
	model   *scaledProgram
	region  *region
	lo, hi  []int
}

// NewCountRelaxation takes the program with the most agents that each type may have.
func NewCountRelaxation(p *Program) (*CountRelaxation, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	r := &CountRelaxation{program: *p}
	r.program.Current, r.program.Objective = nil, MostAccurate
	r.model = newScaledProgram(&r.program)
	for i := range r.model.choices {
		r.model.choices[i].cost = 0
	}
	free := make([]int, len(r.model.choices))
	r.lo, r.hi = make([]int, len(free)), make([]int, len(free))
	for i := range free {
		free[i], r.hi[i] = i, r.model.choices[i].most
	}
	r.region = newSearch(r.model).newRegion(free)
	return r, nil
}

// Worth orders placements: by the share of the demand that is served, and of one share by accuracy.
// It is in points of accuracy of all of the demand.
func (r *CountRelaxation) Worth(share, accuracy float64) float64 {
	return share * (served/r.model.point + accuracy)
}

// Bound is a bound of what counts are worth, and the prices that it follows from: other counts, up
// to the most there may be, are worth at most rest and, for each agent, its type's price.
func (r *CountRelaxation) Bound(counts []int) (bound, rest float64, prices []float64) {
	prices = make([]float64, len(counts))
	if len(r.model.choices) == 0 {
		return 0, 0, prices
	}
	copy(r.region.capacity, counts)
	_, bound, _ = r.region.solveRelaxation(r.lo, r.hi)
	rest = bound
	for t, row := range r.region.typeRow {
		prices[t] = r.region.s.lp.Price[row]
		rest -= prices[t] * float64(counts[t])
	}
	for t := range prices {
		prices[t] /= r.model.point
	}
	return bound / r.model.point, rest / r.model.point, prices
}

// Solve finds what so many agents should hold, as [Solve] does. Agents that would
// serve nothing hold nothing.
func (r *CountRelaxation) Solve(counts []int, steps int) *Solution {
	s := newSearch(r.model.withCounts(counts))
	f := &finder{
		search: s, limit: min(steps, 1<<50) * operations,
		rng: rand.New(rand.NewPCG(r.program.Seed, 0x9E3779B97F4A7C15)),
	}
	f.find()
	return s.makeSolution(&r.program, f)
}

// withCounts is the model with other counts of agents, of no type more than m has.
func (m *scaledProgram) withCounts(counts []int) *scaledProgram {
	with := *m
	with.types, with.choices, with.groups = counts, nil, slices.Clone(m.groups)
	for g := range with.groups {
		with.groups[g].choices = nil
	}
	for _, c := range m.choices {
		if c.most = min(c.most, counts[c.typ]); c.most == 0 {
			continue
		}
		for _, g := range c.appendGroups(nil) {
			with.groups[g].choices = append(with.groups[g].choices, len(with.choices))
		}
		with.choices = append(with.choices, c)
	}
	return &with
}

// Enough is a number of agents of each type more than which serves no more: each serves all of one
// class at most.
func (p *Program) Enough() []int {
	most := make([]int, len(p.Types))
	for t := range most {
		need := make([]float64, len(p.Classes))
		for _, c := range p.Choices {
			if c.Type != t {
				continue
			}
			for _, part := range c.Partitions {
				for _, s := range part {
					if s.Rate > 0 {
						n := math.Ceil(p.Classes[s.Class].Rate / s.Rate)
						need[s.Class] = max(need[s.Class], n)
					}
				}
			}
		}
		sum := 0.0
		for _, n := range need {
			sum += n
		}
		most[t] = int(min(sum, 1e6))
	}
	return most
}
