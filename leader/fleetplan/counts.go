package fleetplan

import (
	"cmp"
	"math"
	"slices"

	"github.com/muster-serve/muster/leader/internal/branch"
	"github.com/muster-serve/muster/leader/place"
)

// worthwhile is by how much a fleet must be better to matter, in parts of the scale.
const worthwhile = 1e-6

// close is by how much a fleet must be better that a long search is for, in parts of the scale.
const close = 1e-4

// maxWork bounds the operations of a search for counts, so that it ends, with the same result on
// any machine: about a third of a second.
const maxWork = 200_000_000

// A countSearch looks for the whole numbers of machines that are worth most.
type countSearch struct {
	m     *master
	limit int   // of m.work
	best  []int // nil: none found
	value float64
	bound float64 // no counts are worth more
	// found are the counts that were tried, and what they are worth.
	found []candidate
	// placed is, where the placement program decided all there is to decide, its solution.
	placed *place.Solution
	margin *Margin
}

type candidate struct {
	counts []int
	value  float64
}

// newCountSearch returns a search for counts of so many operations.
func newCountSearch(m *master, work int) *countSearch {
	return &countSearch{
		m: m, limit: m.work + work, value: math.Inf(-1), bound: math.Inf(1),
	}
}

// branch searches by branch and bound, the highest bound first. Its best is nil if no counts are
// within the limits.
func (s *countSearch) branch() {
	lo, hi := s.m.limits()
	var open branch.Frontier
	open.Push(&branch.Node{Lo: lo, Hi: hi, Bound: s.bound})
	bound := math.Inf(-1) // of what is not open
	for root := true; open.Len() > 0; root = false {
		n := open.Pop()
		if n.Bound <= s.value+worthwhile || s.isSpent(n.Bound) && !root {
			bound = max(bound, n.Bound) // and of the others, which are no higher
			break
		}
		r, ok := s.m.solve(n.Lo, n.Hi)
		if !ok {
			continue
		}
		if root {
			s.margin = s.m.priceMargin(r)
		}
		n.Bound = min(n.Bound, r.bound)
		i := s.m.maxFractional(r.counts)
		if i < 0 {
			s.note(s.m.round(r.counts, math.Round), r.value)
			bound = max(bound, n.Bound)
			continue
		}
		if root || s.best == nil {
			s.tryRounded(r.counts)
		}
		if n.Bound <= s.value+worthwhile {
			bound = max(bound, n.Bound)
			continue
		}
		open.Split(n, i, int(math.Floor(r.counts[i])))
	}
	s.bound = min(s.bound, max(bound, s.value))
}

// isSpent reports whether the search has taken all of its operations, or a quarter of them and
// nothing is worth much more than the best.
func (s *countSearch) isSpent(bound float64) bool {
	return s.m.work > s.limit || s.m.work > s.limit/4 && bound <= s.value+close
}

// note keeps counts, and reports whether they are the best.
func (s *countSearch) note(counts []int, value float64) bool {
	if !slices.ContainsFunc(s.found, func(c candidate) bool {
		return slices.Equal(c.counts, counts)
	}) {
		s.found = append(s.found, candidate{counts, value})
	}
	if value <= s.value {
		return false
	}
	s.best, s.value = counts, value
	return true
}

// tryRounded tries the counts of types rounded up, as far as the budget goes, and then one machine
// less of each type, the dearest first.
func (s *countSearch) tryRounded(x []float64) {
	types := s.m.problem.Types
	counts, order := make([]int, len(types)), make([]int, len(types))
	for t := range types {
		order[t] = t
		counts[t] = min(max(int(math.Ceil(x[t]-1e-6)), types[t].Min), types[t].Max)
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(types[b].PriceUSDPerHour, types[a].PriceUSDPerHour)
	})
	for _, t := range order {
		for counts[t] > types[t].Min && s.m.problem.isTooDear(counts) {
			counts[t]--
		}
	}
	s.try(s.m.dealMachines(counts, x))
	for _, t := range order {
		if s.m.work < s.limit && float64(counts[t]) > x[t] && counts[t] > types[t].Min {
			counts[t]--
			if !s.try(s.m.dealMachines(counts, x)) {
				counts[t]++
			}
		}
	}
}

// dealMachines deals the machines of each type to its pools, as many to each as x has, but for
// rounding by the largest remainder.
func (m *master) dealMachines(ofTypes []int, x []float64) []int {
	types := len(m.problem.Types)
	counts := make([]int, types+len(m.pools))
	rest := make([]int, types)
	for t := range types {
		counts[t] = ofTypes[t]
		rest[t] = counts[t]
	}
	order := make([]int, len(m.pools))
	for i := range m.pools {
		order[i] = i
		t := m.pools[i].typ
		counts[types+i] = min(rest[t], int(math.Floor(x[types+i]+1e-6)))
		if m.pools[i].only {
			counts[types+i] = rest[t]
		}
		rest[t] -= counts[types+i]
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(x[types+b]-float64(counts[types+b]), x[types+a]-float64(counts[types+a]))
	})
	for any := true; any; {
		any = false
		for _, i := range order {
			if t := m.pools[i].typ; rest[t] > 0 {
				counts[types+i]++
				rest[t]--
				any = true
			}
		}
	}
	return counts
}

// begin looks for counts where machines of a type have several pools: of these relaxations say
// little.
func (s *countSearch) begin() {
	lo, hi := s.m.limits()
	part := (s.limit - s.m.work) / 4
	s.dive(lo, hi, s.m.work+part)
	s.climb(s.m.work + part)
}

// dive rounds the relaxation of the counts between lo and hi, one count after the other and each
// time the one that is nearest to the next whole number, and tries what it ends with.
func (s *countSearch) dive(lo, hi []int, limit int) {
	lo, hi = slices.Clone(lo), slices.Clone(hi)
	for s.m.work < limit {
		r, ok := s.m.solve(lo, hi)
		if !ok || r.bound <= s.value+worthwhile {
			return
		}
		next, nearest := -1, math.Inf(1)
		for i, n := range r.counts {
			if up := math.Ceil(n-1e-6) - n; up > 1e-6 && up < nearest {
				next, nearest = i, up
			}
		}
		if next < 0 {
			s.note(s.m.round(r.counts, math.Round), r.value)
			return
		}
		whole := int(math.Ceil(r.counts[next]))
		was := lo[next]
		lo[next] = whole
		if _, ok := s.m.solve(lo, hi); !ok {
			lo[next], hi[next] = was, whole-1
		}
	}
}

// climb adds a machine to a pool, takes one or two away, or lets one be in the place of one or two
// others, while that is better.
func (s *countSearch) climb(limit int) {
	for better := true; better && s.best != nil; {
		better = s.replace(limit, -1, -1)
		used := s.usedPools()
		for _, from := range used {
			better = s.replace(limit, from, -1) || better
		}
		for i := 0; i < len(used) && !better; i++ {
			for _, second := range used[i:] {
				better = s.replace(limit, used[i], second) || better
			}
		}
	}
}

// usedPools returns the pools with machines in the best counts.
func (s *countSearch) usedPools() (used []int) {
	for i, n := range s.best[len(s.m.problem.Types):] {
		if n > 0 {
			used = append(used, i)
		}
	}
	return used
}

// replace tries the best counts with a machine of each of the pools less, -1 is none, and one of
// another pool, or none, more. It reports whether any of them are better.
func (s *countSearch) replace(limit, from, second int) (better bool) {
	types := len(s.m.problem.Types)
	for to := -1; to < len(s.m.pools) && s.m.work <= limit; to++ {
		if to == from || to == second && to >= 0 {
			continue
		}
		counts := slices.Clone(s.best)
		s.m.addMachine(counts, from, -1)
		s.m.addMachine(counts, second, -1)
		if slices.Min(counts[types:]) < 0 {
			break // the best counts have no such machines any more
		}
		if s.m.addMachine(counts, to, 1); s.m.problem.allows(counts) {
			better = s.try(counts) || better
		}
	}
	return better
}

// addMachine adds n machines to a pool; -1: to none.
func (m *master) addMachine(counts []int, pool, n int) {
	if pool >= 0 {
		counts[m.pools[pool].typ] += n
		counts[len(m.problem.Types)+pool] += n
	}
}

// allows reports whether so many machines of each type are within the limits.
func (p *Problem) allows(counts []int) bool {
	for t := range p.Types {
		if counts[t] < p.Types[t].Min || counts[t] > p.Types[t].Max {
			return false
		}
	}
	return !p.isTooDear(counts)
}

// try solves the relaxation of the counts alone, and reports whether they are the best.
func (s *countSearch) try(counts []int) bool {
	r, ok := s.m.solve(counts, counts)
	return ok && s.note(counts, r.value)
}

func (p *Problem) isTooDear(counts []int) bool {
	sum := 0.0
	for t := range p.Types {
		sum += float64(counts[t]) * p.Types[t].PriceUSDPerHour
	}
	return p.BudgetUSDPerHour > 0 && sum > p.BudgetUSDPerHour*(1+rounding)
}

func (m *master) round(x []float64, round func(float64) float64) []int {
	counts := make([]int, len(x))
	for i, n := range x {
		counts[i] = int(round(n))
	}
	return counts
}

// maxFractional returns the count that is farthest from a whole number, one of a type if any is not
// whole; -1 if all are whole.
func (m *master) maxFractional(x []float64) int {
	best, farthest := -1, 1e-6
	for i, n := range x {
		if i == len(m.problem.Types) && best >= 0 {
			break
		}
		if f := math.Abs(n - math.Round(n)); f > farthest {
			best, farthest = i, f
		}
	}
	return best
}
