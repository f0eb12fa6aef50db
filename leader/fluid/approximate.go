package fluid

import "math"

// Work of the simplex method, for [Solver.MaxWork]. Some tens of steps are usual.
const (
	// DefaultWork is 20 to 50 ms, which a leader can spend every two seconds.
	DefaultWork = 20_000_000
	// PatientWork is a second or two, for those who wait for an answer. 30 types, each of which
	// holds a fifth of 50 models, take a tenth of it; 200 models on 4 types were not done after four
	// times as much.
	PatientWork = 1_000_000_000
)

const (
	// maxExact is the number of types with instances up to which a program is solved exactly. The
	// simplex method takes 0.1 s for 100 types and 50 models, 2 s for 200 and 100.
	maxExact = 64
	// approximate ends when its rate is proven to be within maxGap of the limit.
	maxGap = 0.01
	// minApproximatePrice is the lowest price, beside the mean, that does not count as 0.
	minApproximatePrice = 1e-9
)

// sharpness are the exponents of the rounds of approximate, and roundSteps bounds the steps of
// each. In a round the part of a bin's queries that goes to a type falls with that power of what
// they cost there. The first rounds are stable under large changes of prices, the last divide the
// queries nearly as is cheapest. 100 steps suffice for 4,000 types and 400 models.
var sharpness = [...]int{4, 16, 64, 256}

const roundSteps = 100

// An option is a type that serves a bin whole.
type option struct {
	typ  int32
	ms   float64
	cost float64 // at the present prices
	part float64 // of the bin's queries that go there
}

// A division is one way to divide all queries over the types.
type division struct {
	price  []float64
	cost   float64   // of a mean query at these prices
	load   []float64 // ms of work per query of all
	served []float64 // part of all queries, or of parts of them
	reach  float64   // the rate at which its busiest type is always busy, queries/ms
}

// solveApproximately solves the program that prepare has prepared as one of many types: the rate is
// one that a division reaches, so it is at most the limit, and at least the limit less maxGap if
// the steps suffice and no query is unserved or split in the optimum.
//
// Prices rise where types are busier than the mean and fall where they are less busy, while queries
// go where they cost little: a tâtonnement. Any prices prove an upper bound of the rate and any
// division a lower bound, see [Solution]. What may go unserved is an equal part of each bin of a
// model. Of the bins that no type serves whole, each query is as many more queries of the sizes of
// its parts.
func (s *Solver) solveApproximately(p *Program) *Solution {
	n := len(s.types)
	clear(s.price) // the simplex method may have begun
	s.kept = nil
	sol := s.newSolution(p)
	share, ok := s.wholeShares()
	if !ok {
		sol.setPrices(p, make([]float64, len(p.Types)), maxGap)
		return sol
	}
	var options []option
	var first []int // by bin, into options
	for b := range share {
		first = append(first, len(options))
		if share[b] == 0 {
			continue
		}
		for t, ms := range s.latency[b*n : (b+1)*n] {
			if !math.IsInf(ms, 1) {
				options = append(options, option{typ: int32(t), ms: ms})
			}
		}
	}
	first = append(first, len(options))
	count := make([]float64, n)
	for i, t := range s.types {
		count[i] = float64(p.Types[t].Count)
	}
	best := findDivision(share, first, options, count)
	sol.Rate = best.reach * 1000 / s.counted
	served := make([]float64, len(p.Types))
	scale := 1 / best.cost
	for i, t := range s.types {
		if s.price[i] = best.price[i] * scale; best.price[i] < minApproximatePrice {
			s.price[i] = 0
		}
		sol.Busy[t] = min(count[i], best.reach*best.load[i])
		served[t] = best.reach * best.served[i]
	}
	for m := range s.models { // no query goes unserved because that is cheaper
		s.price[n+m] = math.Inf(1)
	}
	s.splitter.computeCosts(s.cheapestWhole)
	s.setWorth(sol, p)
	for b, worth := range sol.Worth {
		if math.IsInf(worth, 1) {
			sol.Worth[b] = 0
		}
	}
	sol.setPrices(p, served, maxGap)
	return sol
}

// wholeShares returns, by bin, the part of all queries that types serve whole; ok is false if they
// cannot serve enough of some model.
func (s *Solver) wholeShares() (share []float64, ok bool) {
	n := len(s.types)
	for t := range n {
		s.price[t] = 1
	}
	s.splitter.computeCosts(s.cheapestWhole)
	share = make([]float64, len(s.share))
	left := make([]float64, len(s.models)) // by model: what else may go unserved, of all queries
	rest := make([]float64, len(s.models)) // by model: what is served if nothing else does
	copy(left, s.permitted)
	for b, part := range s.share {
		if m := s.model[b]; s.isServable(b) {
			rest[m] += part
		} else {
			left[m] -= part
		}
	}
	for m := range left {
		if left[m] < -tolerance {
			return nil, false
		}
		if left[m] = max(0, left[m]); rest[m] > 0 {
			rest[m] = 1 - left[m]/rest[m]
		}
	}
	for b, part := range s.share {
		part *= rest[s.model[b]]
		if _, cost := s.cheapestWhole(b); !math.IsInf(cost, 1) {
			share[b] += part
		} else if s.isServable(b) {
			s.splitter.eachPart(b, func(of, _ int) { share[of] += part })
		}
	}
	return share, true
}

// findDivision looks for the division with the highest rate. Its prices are those that prove the
// lowest upper bound of all divisions' rates, not the ones at which it was found. first says, by
// bin, which of the options are the bin's.
func findDivision(share []float64, first []int, options []option, count []float64) (best division) {
	n := len(count)
	now := division{
		price: make([]float64, n), load: make([]float64, n), served: make([]float64, n),
	}
	best = division{
		price: make([]float64, n), load: make([]float64, n), served: make([]float64, n),
	}
	for t := range now.price {
		now.price[t] = 1
	}
	bound := math.Inf(1) // no division has a higher rate
	for _, sharp := range sharpness {
		for range roundSteps {
			now.assignShares(share, first, options, sharp)
			money, busiest := 0.0, 0.0
			for t, c := range count {
				money += c * now.price[t]
				busiest = max(busiest, now.load[t]/c)
			}
			now.reach = 1 / busiest
			if money/now.cost < bound {
				bound, best.cost = money/now.cost, now.cost
				copy(best.price, now.price)
			}
			if now.reach > best.reach {
				best.reach = now.reach
				copy(best.load, now.load)
				copy(best.served, now.served)
			}
			if best.reach >= bound*(1-maxGap) {
				return best
			}
			mean := now.cost / money
			for t, c := range count {
				busy := min(max(now.load[t]/c/mean, 1./3), 3) // no price changes by more in a step
				now.price[t] = max(now.price[t]*math.Pow(busy, 1/float64(sharp+1)), 1e-12)
			}
		}
	}
	return best
}

// assignShares divides the queries at the division's prices, as sharply as given.
func (d *division) assignShares(share []float64, first []int, options []option, sharp int) {
	clear(d.load)
	clear(d.served)
	d.cost = 0
	for b := range share {
		of := options[first[b]:first[b+1]]
		least, sum := math.Inf(1), 0.0
		for i := range of {
			o := &of[i]
			o.cost = d.price[o.typ] * o.ms
			least = min(least, o.cost)
		}
		for i := range of {
			o := &of[i]
			o.part = least / o.cost
			for k := sharp; k > 1; k /= 2 {
				o.part *= o.part
			}
			sum += o.part
		}
		if sum == 0 {
			continue
		}
		d.cost += share[b] * least
		for i := range of {
			o := &of[i]
			part := share[b] * o.part / sum
			d.served[o.typ] += part
			d.load[o.typ] += part * o.ms
		}
	}
}
