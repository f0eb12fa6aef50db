package fluid

import (
	"math"
	"slices"
	"sort"
)

// maxParts is the most parts into which a query is split.
const maxParts = 3

// A splitter finds the cheapest ways to run queries as parts. A part has the size of a bin of its
// model.
type splitter struct {
	sizes []int   // by bin: the batch size
	order [][]int // by model: its bins that may be split or be a part's, by batch size
	at    []int   // by bin: its place in order
	of    []int   // by bin: its model, -1 if it may not be split
	// By number of parts less 1, and by bin: the least cost of running a query of the bin's size as
	// at most so many parts, and the first part's bin, -1 if more parts are no better.
	costs  [maxParts][]float64
	firsts [maxParts][]int
	types  []int // by bin: where a part of its size costs least
}

// takeBins takes the bins of p, of which those that are late run whole.
func (s *splitter) takeBins(p *Program, late []bool) {
	s.sizes, s.order = make([]int, len(p.Bins)), s.order[:0]
	s.of, s.at = slices.Repeat([]int{-1}, len(p.Bins)), make([]int, len(p.Bins))
	for b := range p.Bins {
		if s.sizes[b] = p.Bins[b].BatchSize; !p.Bins[b].Splits || late[b] {
			continue
		}
		m := slices.IndexFunc(s.order,
			func(bins []int) bool { return p.Bins[bins[0]].Model == p.Bins[b].Model })
		if m < 0 {
			m = len(s.order)
			s.order = append(s.order, nil)
		}
		s.of[b], s.order[m] = m, append(s.order[m], b)
	}
	for _, bins := range s.order {
		slices.SortStableFunc(bins, func(a, b int) int { return s.size(a) - s.size(b) })
		for i, b := range bins {
			s.at[b] = i
		}
	}
	s.types = make([]int, len(p.Bins))
	for k := range s.costs {
		s.costs[k], s.firsts[k] = make([]float64, len(p.Bins)), make([]int, len(p.Bins))
	}
}

func (s *splitter) size(bin int) int { return s.sizes[bin] }

// computeCosts computes the costs, given where a query of a bin costs least, and how much.
func (s *splitter) computeCosts(cheapest func(bin int) (to int, cost float64)) {
	for _, bins := range s.order {
		for _, b := range bins {
			s.types[b], s.costs[0][b] = cheapest(b)
		}
		for k := 1; k < maxParts; k++ {
			one, fewer := s.costs[0], s.costs[k-1]
			for i, b := range bins {
				least, best := fewer[b], -1
				rest, size := i, s.sizes[b] // the rest gets smaller as the first part gets larger
				for _, first := range bins[:i] {
					for left := size - s.sizes[first]; rest > 0 && s.sizes[bins[rest-1]] >= left; {
						rest--
					}
					if c := one[first] + fewer[bins[rest]]; c < least {
						least, best = c, first
					}
				}
				s.costs[k][b], s.firsts[k][b] = least, best
			}
		}
	}
}

// restBin is the smallest bin that holds what is left of bin b without its first part.
func (s *splitter) restBin(bins []int, b, first int) int {
	left := s.size(b) - s.size(first)
	return bins[sort.Search(s.at[b], func(i int) bool { return s.size(bins[i]) >= left })]
}

// splitCost is the least cost of a query of a bin that may be split; +Inf if it may not.
func (s *splitter) splitCost(b int) float64 {
	if s.of[b] < 0 {
		return math.Inf(1)
	}
	return s.costs[maxParts-1][b]
}

// eachPart calls do with each part of bin b, split as is cheapest, and with its type.
func (s *splitter) eachPart(b int, do func(part, to int)) {
	for k := maxParts - 1; k > 0; k-- {
		if first := s.firsts[k][b]; first >= 0 {
			do(first, s.types[first])
			b = s.restBin(s.order[s.of[b]], b, first)
		}
	}
	do(b, s.types[b])
}
