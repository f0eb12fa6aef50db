package place

import (
	"math"
	"slices"
)

// A cut is an inequality that all whole counts respect and the relaxation need not: the flow of a
// greedy group at a level or higher ones is at most constant plus, for each agent, of its choice.
//
// Let left be what agents that are certain leave to serve. Agents of rate d serve floor(left/d)*d,
// and one more adds only the rest; so above that, agent by agent, the flow rises by no more than
// the rest, while the relaxation takes a part of an agent for it. Mixed integer rounding (Nemhauser
// and Wolsey, Mathematical Programming 46, 1990) says what agents of other rates count. Without
// cuts, layouts of several variants have bounds that are points of accuracy too high, and branch
// and bound gets nowhere.
type cut struct {
	group, level int
	constant     float64
	of           []float64 // by free choice
	row          int       // of the simplex
	price        float64   // in the relaxation of all choices
}

// isBinding says that flow to group g at a level counts.
func (c *cut) isBinding(g, level int) bool { return c.group == g && level <= c.level }

const (
	// Most of what cuts can win is won in so many rounds; each makes relaxations larger.
	cutRounds = 3
	// worthCutting is the least flow by which a relaxation must exceed a cut. Less does not pay for
	// one more row.
	worthCutting = 1e-3
)

// relaxWithCuts relaxes the region as relax does, and then again with the cuts that the relaxation
// does not respect, for some rounds. Later relaxations have these cuts, too.
func (r *region) relaxWithCuts(lo, hi []int) (value, bound float64, ok bool) {
	value, bound, ok = r.solveRelaxation(lo, hi)
	for k := 0; ok && k < cutRounds && r.addCuts(); k++ {
		least := bound
		value, bound, ok = r.solveRelaxation(lo, hi)
		bound = min(bound, least)
	}
	return value, bound, ok
}

// addCuts adds for each group and level the cut that the relaxation is farthest from, if there is
// one.
func (r *region) addCuts() (found bool) {
	for _, g := range r.groups {
		group := &r.s.m.groups[g]
		if !group.mixed {
			continue
		}
		at := make([]float64, len(group.levels)) // flow of the relaxation
		for j, x := range r.x {
			if c := &r.columns[j]; c.free < 0 && c.group == g {
				at[c.level] += x
			}
		}
		flow, certain := 0.0, 0.0
		for level, x := range at {
			flow += x
			certain += r.fixed[g][level]
			if x < worthCutting || certain > 1-worthCutting {
				continue
			}
			if c, ok := r.farthestCut(g, level, flow, certain); ok {
				r.cuts = append(r.cuts, c)
				found = true
			}
		}
	}
	return found
}

// farthestCut is the cut of group g at a level that the relaxation's flow exceeds most.
func (r *region) farthestCut(g, level int, flow, certain float64) (c cut, ok bool) {
	left := 1 - certain
	rate := make([]float64, len(r.free)) // of an agent, to that level
	var sizes []float64
	for f, i := range r.free {
		for p := range r.s.m.choices[i].parts {
			part := &r.s.m.choices[i].parts[p]
			if part.group == g && part.offers[0].level <= level {
				rate[f] += part.offers[0].rate
			}
		}
		if rate[f] = min(rate[f], left); rate[f] > 0 && r.agents[f] > 1e-6 {
			sizes = append(sizes, rate[f], rate[f]/2, rate[f]/3)
		}
	}
	slices.Sort(sizes)
	size, far := 0.0, worthCutting
	for _, d := range slices.Compact(sizes) {
		whole, rest := math.Modf(left / d)
		if rest < 1e-4 || rest > 1-1e-6 || whole > 200 {
			continue
		}
		most := d * whole * (1 - rest)
		for f, n := range r.agents {
			if n > 0 {
				most += n * roundedCount(rate[f], d, rest)
			}
		}
		r.s.work += 5 * len(r.free)
		if flow-certain-most > far {
			size, far = d, flow-certain-most
		}
	}
	if size == 0 {
		return c, false
	}
	whole, rest := math.Modf(left / size)
	c = cut{
		group: g, level: level, constant: certain + size*whole*(1-rest), of: rate,
	}
	for f := range rate {
		c.of[f] = roundedCount(rate[f], size, rest)
	}
	return c, true
}

// roundedCount is what an agent of some rate counts in the cut for agents of rate d, of which a
// whole number and the part rest serve what is left.
func roundedCount(rate, d, rest float64) float64 {
	full := math.Floor(rate/d + 1e-9)
	return d * (full*rest + min(max(0, rate/d-full), rest))
}
