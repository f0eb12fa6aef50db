package place

import (
	"cmp"
	"math"
	"slices"

	"github.com/muster-serve/muster/leader/internal/branch"
)

// worthwhile is the least gain for which the search goes on: a hundred-thousandth of a point of
// accuracy or so.
const worthwhile = 1e-7

// A branchAndBound is branch and bound over a region: each free choice has between a node's Lo and
// Hi agents. In the master program of patterns each group may use so many of each type.
type branchAndBound struct {
	*region
	best   float64 // value of the best counts so far, or what is to be exceeded
	counts []int   // those counts by free choice; nil if none exceeds best
	trial  []int
	caps   []float64
}

// searchCounts looks for counts of the region's free choices that are worth more than best. It
// relaxes nodes nodes at most and ends when the search's work reaches limit. bound is what no
// counts of the region exceed; if the search was not cut off, that is the value of the best counts.
func (r *region) searchCounts(best float64, nodes, limit int) (counts []int, value, bound float64) {
	b := &branchAndBound{region: r, best: best, trial: make([]int, len(r.free))}
	s := r.s
	root := &branch.Node{Lo: make([]int, len(r.free)), Hi: make([]int, len(r.free))}
	for f, i := range r.free {
		c := &s.m.choices[i]
		root.Hi[f] = min(c.most, r.capacity[c.typ])
		if c.isSimple() {
			root.Hi[f] = min(root.Hi[f], int(math.Ceil(1/c.parts[0].offers[0].rate-1e-9)))
		}
	}
	root.Bound = math.Inf(1)
	var open branch.Frontier
	open.Push(root)
	for k := 0; open.Len() > 0; k++ {
		n := open.Pop()
		if n.Bound <= b.best+worthwhile {
			return b.counts, b.best, max(b.best, n.Bound)
		}
		if k >= nodes || s.work >= limit {
			return b.counts, b.best, n.Bound
		}
		relax := b.solveRelaxation
		if k == 0 {
			relax = b.relaxWithCuts
		}
		_, bound, ok := relax(n.Lo, n.Hi)
		n.Bound = min(n.Bound, bound)
		if !ok || n.Bound <= b.best+worthwhile {
			continue
		}
		if k%64 == 0 {
			b.diveToWhole(n, limit)
			if _, _, ok := b.solveRelaxation(n.Lo, n.Hi); !ok || n.Bound <= b.best+worthwhile {
				continue
			}
		}
		b.tryRoundings()
		f := b.mostFractionalChoice()
		if f < 0 {
			// The relaxation has whole counts only, and its rounding was tried: no counts of this
			// node are better.
			continue
		}
		open.Split(n, f, int(math.Floor(b.agents[f]+1e-7)))
	}
	return b.counts, b.best, b.best
}

// mostFractionalChoice is the free choice whose agents are farthest from whole, -1 if all are
// whole.
func (b *branchAndBound) mostFractionalChoice() int {
	best, far := -1, 1e-6
	for f, x := range b.agents {
		part := x - math.Floor(x)
		if d := min(part, 1-part); d > far {
			best, far = f, d
		}
	}
	return best
}

// tryRoundings compares two roundings of the last relaxation with the best counts: up, if there are
// so many agents, so that all of its flow is served; and by the largest remainders.
func (b *branchAndBound) tryRoundings() {
	left := slices.Clone(b.capacity)
	fits := true
	for f, n := range b.need {
		t := b.s.m.choices[b.free[f]].typ
		left[t] -= n
		fits = fits && left[t] >= 0 && n <= b.s.m.choices[b.free[f]].most
	}
	if fits {
		b.compareWithBest(b.need)
		return
	}
	copy(left, b.capacity)
	order := make([]int, 0, 16)
	for f, x := range b.agents {
		c := &b.s.m.choices[b.free[f]]
		t := c.typ
		// left and most: x is as exact as rounding allows
		n := max(0, min(left[t], c.most, int(math.Floor(x+1e-7))))
		b.trial[f] = n
		left[t] -= n
		if x-float64(n) > 1e-7 {
			order = append(order, f)
		}
	}
	slices.SortStableFunc(order, func(i, j int) int {
		return cmp.Compare(b.agents[j]-math.Floor(b.agents[j]), b.agents[i]-math.Floor(b.agents[i]))
	})
	for _, f := range order {
		if c := &b.s.m.choices[b.free[f]]; left[c.typ] > 0 && b.trial[f] < c.most {
			left[c.typ]--
			b.trial[f]++
		}
	}
	b.compareWithBest(b.trial)
}

// compareWithBest compares counts with the best.
func (b *branchAndBound) compareWithBest(counts []int) {
	s := b.s
	value := 0.0
	for f, n := range counts {
		value -= float64(n) * s.m.choices[b.free[f]].cost
	}
	for _, g := range b.groups {
		group := &s.m.groups[g]
		if !group.greedy {
			// The group's flow takes a program of its own, so its counts are set for a moment.
			value += b.sharedValue(g, counts)
			continue
		}
		b.caps = append(b.caps[:0], b.fixed[g]...)
		for f, n := range counts {
			if n == 0 {
				continue
			}
			for p := range s.m.choices[b.free[f]].parts {
				part := &s.m.choices[b.free[f]].parts[p]
				if part.group == g {
					b.caps[part.offers[0].level] += float64(n) * part.offers[0].rate
				}
			}
		}
		left := 1.0
		for level, rate := range b.caps {
			x := min(left, rate)
			value += x * group.levels[level]
			if left -= x; left <= 0 {
				break
			}
		}
	}
	s.work += len(b.groups) * len(counts)
	if value > b.best+worthwhile/10 {
		b.best, b.counts = value, slices.Clone(counts)
	}
}

func (b *branchAndBound) sharedValue(g int, counts []int) float64 {
	was := make([]int, len(counts))
	for f, n := range counts {
		was[f], b.s.n[b.free[f]] = b.s.n[b.free[f]], n
	}
	v := b.s.sharedValue(g, nil)
	for f, n := range was {
		b.s.n[b.free[f]] = n
	}
	return v
}

// diveToWhole goes from the last relaxation, that of n, to whole counts: it makes the whole parts
// certain, all at once, and when there are none, one more agent of the choice with the largest
// fraction.
func (b *branchAndBound) diveToWhole(n *branch.Node, limit int) {
	lo, hi := slices.Clone(n.Lo), slices.Clone(n.Hi)
	for range 200 {
		b.tryRoundings()
		if b.s.work >= limit {
			return
		}
		used := make([]int, len(b.capacity))
		for f, k := range lo {
			used[b.s.m.choices[b.free[f]].typ] += k
		}
		moved := false
		for f, x := range b.agents {
			t := b.s.m.choices[b.free[f]].typ
			whole := int(math.Floor(x + 1e-7))
			if whole > lo[f] && whole <= hi[f] && used[t]+whole-lo[f] <= b.capacity[t] {
				used[t] += whole - lo[f]
				lo[f] = whole
				moved = true
			}
		}
		if !moved {
			most, at := 1e-7, -1
			for f, x := range b.agents {
				t := b.s.m.choices[b.free[f]].typ
				if x-float64(lo[f]) > most && lo[f] < hi[f] && used[t] < b.capacity[t] {
					most, at = x-float64(lo[f]), f
				}
			}
			if at < 0 {
				return
			}
			lo[at]++
		}
		if _, bound, ok := b.solveRelaxation(lo, hi); !ok || bound <= b.best+worthwhile {
			return
		}
	}
}
