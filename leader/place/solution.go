package place

import (
	"math"
	"slices"
)

// makeSolution is what p's solution is by the search's counts, less the agents that serve nothing.
func (s *search) makeSolution(p *Program, f *finder) *Solution {
	s.trim()
	sol := &Solution{
		Counts: make([]int, len(p.Choices)), Flow: make([][][]float64, len(p.Choices)),
		Steps: s.work / operations, Proven: f.proven,
	}
	for i, c := range p.Choices {
		sol.Flow[i] = make([][]float64, len(c.Partitions))
		for j, partition := range c.Partitions {
			sol.Flow[i][j] = make([]float64, len(partition))
		}
	}
	share, points := 0.0, 0.0
	tell := func(i int, o *offer, flow float64) {
		share += s.m.weight[o.class] * flow
		points += s.m.weight[o.class] * flow * p.Variants[o.variant].Accuracy
		source := s.m.choices[i].source
		sol.Flow[source][o.partition][o.service] += flow * s.m.rate[o.class]
	}
	for g := range s.m.groups {
		s.eachFlow(g, tell)
	}
	for i, n := range s.n {
		c := &s.m.choices[i]
		sol.Counts[c.source] += n
		sol.Agents += n
		sol.Price += float64(n) * p.Types[c.typ].Price
	}
	if s.m.demand == 0 {
		sol.Served, sol.Proven = 1, true
		return sol
	}
	if share > 1-1e-12 {
		share = 1 // but for rounding
	}
	if sol.Served = share; share > 0 {
		best := 0.0
		for _, v := range p.Variants {
			best = max(best, v.Accuracy)
		}
		sol.Accuracy = min(points/share, best)
		sol.Bound = max(sol.Accuracy, min(best, s.accuracyBound(p, f, share)))
	}
	if p.Objective == FewestAgents {
		sol.LeastAgents = s.minAgents(p, f, share)
	}
	sol.Steps = s.work / operations
	return sol
}

// trim takes away agents whose loss costs nothing.
func (s *search) trim() {
	for i := range s.n {
		if s.n[i] == 0 || !s.isMovable(i) {
			continue
		}
		for s.n[i] > 0 && s.gainOf(i, -1) > -1e-12 {
			s.changeCount(i, -1)
			for _, g := range s.m.choices[i].appendGroups(nil) {
				s.refreshGroup(g)
			}
		}
	}
	// Partitions whose time is shared: as many agents as their busiest one takes.
	busy := make([]float64, len(s.n))
	for g := range s.m.groups {
		if s.m.groups[g].greedy {
			continue
		}
		time := map[*part]float64{}
		s.sharedValue(g, func(i int, p *part, offer int, flow float64) {
			time[p] += flow / p.offers[offer].rate
			busy[i] = max(busy[i], time[p])
		})
	}
	for i, n := range s.n {
		if n > 0 && !s.isMovable(i) && s.onlyShared(i) {
			s.changeCount(i, min(n, int(math.Ceil(busy[i]-1e-9)))-n)
		}
	}
}

func (s *search) onlyShared(i int) bool {
	return !slices.ContainsFunc(s.m.choices[i].parts, func(p part) bool {
		return s.m.groups[p.group].greedy
	})
}

// eachFlow tells the flow of each offer to group g. What choices serve at one level they share in
// proportion to what they offer.
func (s *search) eachFlow(g int, tell func(i int, o *offer, flow float64)) {
	group := &s.m.groups[g]
	if !group.greedy {
		s.sharedValue(g, func(i int, p *part, offer int, flow float64) {
			tell(i, &p.offers[offer], flow)
		})
		return
	}
	s.refreshGroup(g)
	use := make([]float64, len(group.levels))
	left := 1.0
	for level, rate := range s.caps[g] {
		if rate > 0 {
			x := min(left, rate)
			left -= x
			use[level] = x / rate
		}
	}
	for _, i := range group.choices {
		for p := range s.m.choices[i].parts {
			part := &s.m.choices[i].parts[p]
			if o := &part.offers[0]; part.group == g && s.n[i] > 0 {
				tell(i, o, use[o.level]*o.rate*float64(s.n[i]))
			}
		}
	}
}

// accuracyBound is what no mean accuracy exceeds where the part share of the demand is served.
func (s *search) accuracyBound(p *Program, f *finder, share float64) float64 {
	t := newSearch(s.m)
	all, lo, hi := make([]int, len(t.n)), make([]int, len(t.n)), make([]int, len(t.n))
	for i := range all {
		all[i], hi[i] = i, t.m.choices[i].most
	}
	r := t.newRegion(all)
	r.share = share
	_, bound, _ := r.relaxWithCuts(lo, hi)
	s.work += t.work
	bound /= share * s.m.point
	if free := !slices.ContainsFunc(s.m.choices, func(c choice) bool { return c.cost > 0 }); free {
		// Whoever serves the same share with more accuracy would be worth more than the bound.
		bound = min(bound, (f.bound-served*share)/(share*s.m.point))
	}
	return bound
}

// minAgents is a number than which no placement that serves the part share has fewer agents.
func (s *search) minAgents(p *Program, f *finder, share float64) int {
	agent := math.Inf(1)
	for i := range s.m.choices {
		agent = min(agent, s.m.choices[i].cost)
	}
	if math.IsInf(agent, 1) {
		return 0
	}
	least := math.Inf(1)
	for _, v := range p.Variants {
		least = min(least, v.Accuracy)
	}
	return max(0, int(math.Ceil((share*(served+s.m.point*least)-f.bound)/agent-1e-5)))
}
