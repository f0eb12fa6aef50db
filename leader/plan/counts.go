package plan

import (
	"math"
	"slices"
	"time"

	"github.com/muster-serve/muster/leader/internal/simplex"
)

// maxNodes bounds the linear programs of a countSearch for one rate, maxNodesAny those for one step
// of the bisection by which it finds the highest rate. So it ends, with the same result on any
// machine, also where many types are alike and branch and bound would try all their permutations.
// What it has found by then is a plan, but a better one may exist. Of 1,000 random problems with up
// to five types none needs more than 500.
const (
	maxNodes    = 5_000
	maxNodesAny = 500
)

// A countSearch finds whole numbers of instances without listing configurations.
//
// The fluid limit of the counts n is, by duality, the least of the sums y*n over all prices y that
// are dual feasible, and which prices are does not depend on n. So each fluid program that is
// solved gives a cut, y*n >= rate, which all counts that serve the rate satisfy (Kelley's cutting
// planes, 1960). The cheapest counts within the cuts are found by branch and bound. Where counts
// are within all cuts and their limit is still below the rate, their own prices are the next cut.
type countSearch struct {
	a    *Analysis
	max  []int       // by type: more are not allowed, or would be idle
	cuts [][]float64 // prices by type, queries/s for an instance; they hold for every rate
	lp   simplex.Program
	row  []int // by row of lp, the type

	// The search for one rate.
	rate  float64
	best  Configuration
	cost  float64 // of best; at first what the counts must cost less than
	any   bool    // the first counts found will do
	nodes int     // linear programs that may still be solved
}

// newCountSearch returns a search for rates up to maxRate, queries/s; +Inf if the budget bounds the
// counts.
func newCountSearch(a *Analysis, maxRate float64) (*countSearch, error) {
	s := &countSearch{a: a, max: make([]int, len(a.Problem.Types))}
	for i, t := range a.Problem.Types {
		if !a.useful[i] || a.isDominated(i) {
			continue
		}
		n := math.Inf(1)
		if !math.IsInf(maxRate, 1) {
			work := 0.0 // seconds of an average query, if all that the type can serve go to it
			for _, b := range a.program.Bins {
				work += b.Share * b.Latency[i].Seconds()
			}
			n = math.Ceil(maxRate*work) + 1
		}
		if a.Problem.Budget > 0 {
			n = min(n, math.Floor((a.Problem.Budget+roundingError)/t.Price))
		}
		if t.Max > 0 {
			n = min(n, float64(t.Max))
		}
		if !(n <= 1e6) {
			return nil, errTooMany
		}
		s.max[i] = int(n)
	}
	return s, nil
}

// isDominated reports whether another type, of which there may be any number, costs no more and
// answers all that the type does in no more time: then no counts need the type. So types that are
// alike do not have the search try all ways to divide instances among them.
func (a *Analysis) isDominated(typ int) bool {
	for other := range a.Problem.Types {
		if other != typ && a.dominates(other, typ) && (other < typ || !a.dominates(typ, other)) {
			return true
		}
	}
	return false
}

func (a *Analysis) dominates(typ, other int) bool {
	types := a.Problem.Types
	if types[typ].Max > 0 || types[typ].Price > types[other].Price {
		return false
	}
	for _, b := range a.program.Bins {
		for _, times := range [][]time.Duration{b.Latency, b.Late} {
			if times != nil && times[other] > 0 && !(times[typ] > 0 && times[typ] <= times[other]) {
				return false
			}
		}
	}
	return true
}

// cheapestCounts returns the cheapest counts within the limits whose fluid limit reaches the rate;
// nil if there are none. With any it returns the first that it finds.
func (s *countSearch) cheapestCounts(rate float64, any bool) (Configuration, error) {
	s.rate, s.best, s.cost, s.any, s.nodes = roundBound(rate), nil, math.Inf(1), any, maxNodes
	if any {
		s.nodes = maxNodesAny
	}
	if s.a.Problem.Budget > 0 {
		s.cost = s.a.Problem.Budget + 2*roundingError
	}
	err := s.branchCounts(make([]int, len(s.max)), s.max)
	return s.best, err
}

// branchCounts searches the counts between lo and hi.
func (s *countSearch) branchCounts(lo, hi []int) error {
	var before []float64
	for {
		x, bound, ok := s.relaxCounts(lo, hi)
		if !ok || bound >= s.cost-roundingError || s.nodes == 0 || s.any && s.best != nil {
			return nil
		}
		s.nodes--
		enough, err := s.reachesRate(x)
		if err != nil {
			return err
		}
		if !enough && !slices.Equal(x, before) {
			if err := s.addCut(x); err != nil {
				return err
			}
			before = x
			continue
		}
		if enough {
			s.roundUp(x)
		}
		i := maxFractional(x)
		if i < 0 {
			if enough {
				return nil // the cheapest counts between lo and hi
			}
			// Rounding hides by how much these counts miss their own cut: search the others.
			for t := range lo {
				if i < 0 || hi[t]-lo[t] > hi[i]-lo[i] {
					i = t
				}
			}
			if hi[i] == lo[i] {
				return nil
			}
		}
		// The upper half first: it has a solution if any half has.
		least := min(int(math.Floor(x[i]))+1, hi[i])
		upper, lower := slices.Clone(lo), slices.Clone(hi)
		upper[i], lower[i] = least, least-1
		if err := s.branchCounts(upper, hi); err != nil {
			return err
		}
		hi = lower
	}
}

// relaxCounts returns the cheapest counts between lo and hi that satisfy all cuts, whole or not,
// and what they cost at least. It reports false if there are none.
//
// The linear program is the dual one, a cut a column and a type a row: its slacks are a basis to
// start from, and a new cut adds a column.
func (s *countSearch) relaxCounts(lo, hi []int) (x []float64, bound float64, ok bool) {
	l := &s.lp
	l.Reset()
	s.row = s.row[:0]
	x = make([]float64, len(lo))
	for i := range lo {
		x[i] = float64(lo[i])
		bound += x[i] * s.a.Problem.Types[i].Price
		if hi[i] > lo[i] {
			l.AddRow(s.a.Problem.Types[i].Price)
			s.row = append(s.row, i)
		}
	}
	const unbounded = 1e15 // no column gets there: the cuts were checked to be satisfiable
	for _, y := range s.cuts {
		least, most := 0.0, 0.0
		for i, worth := range y {
			least += worth * float64(lo[i])
			most += worth * float64(hi[i])
		}
		if most < s.rate*(1-1e-9) {
			return nil, 0, false
		}
		if least >= s.rate {
			continue
		}
		for r, i := range s.row {
			l.AddCoefficient(r, y[i]/s.rate)
		}
		l.AddColumn((s.rate-least)/s.rate, unbounded)
	}
	for r, i := range s.row {
		l.AddCoefficient(r, -1)
		l.AddColumn(-float64(hi[i]-lo[i]), unbounded)
	}
	l.Solve()
	for j, v := range l.Solution(nil) {
		bound += v * l.Cost[j]
	}
	for r, i := range s.row {
		x[i] = min(x[i]+max(0, l.Price[r]), float64(hi[i]))
		if n := math.Round(x[i]); math.Abs(x[i]-n) < 1e-6 {
			x[i] = n
		}
	}
	return x, bound, true
}

// part is the number of units in an instance, in which counts that are not whole are given to the
// fluid program.
const part = 1e6

// reachesRate reports whether the fluid limit of the counts reaches the rate.
func (s *countSearch) reachesRate(x []float64) (bool, error) {
	c, scale, rate := make(Configuration, len(x)), 1., s.rate
	if maxFractional(x) >= 0 {
		scale, rate = part, rate*(1-1e-9) // x lies on a cut, but for rounding
	}
	for i := range x {
		c[i] = int(math.Round(x[i] * scale))
	}
	sol, err := s.a.Fluid(c)
	if err != nil {
		return false, err
	}
	return roundBound(sol.Rate/scale) >= rate, nil
}

// addCut adds the cut of the counts. Types that they lack take part with a millionth of an
// instance, so that the prices are dual feasible for these, too.
func (s *countSearch) addCut(x []float64) error {
	c := make(Configuration, len(x))
	for i := range x {
		if s.max[i] > 0 {
			c[i] = max(1, int(math.Round(x[i]*part)))
		}
	}
	sol, err := s.a.Fluid(c)
	if err != nil {
		return err
	}
	cut := make([]float64, len(x))
	for i, p := range sol.Prices {
		if s.max[i] > 0 {
			cut[i] = 1000 * p.PerMs
		}
	}
	s.cuts = append(s.cuts, cut)
	return nil
}

// roundUp notes the counts, rounded up, as the best if they are cheaper. They reach the rate if x
// does.
func (s *countSearch) roundUp(x []float64) {
	c := make(Configuration, len(x))
	for i := range x {
		c[i] = int(math.Ceil(x[i]))
	}
	if cost := s.a.Problem.Price(c); cost < s.cost-roundingError {
		s.best, s.cost = c, cost
	}
}

// maxFractional returns the count that is farthest from a whole number; -1 if all are whole.
func maxFractional(x []float64) int {
	best, farthest := -1, 0.
	for i, n := range x {
		if f := math.Abs(n - math.Round(n)); f > farthest {
			best, farthest = i, f
		}
	}
	return best
}

// fastestCounts returns the counts of the highest fluid limit that the budget and the types' limits
// allow, by bisection of the rate; nil if none has a limit above 0.
func (s *countSearch) fastestCounts() (Configuration, error) {
	limit := func(c Configuration) (float64, error) {
		sol, err := s.a.Fluid(c)
		if err != nil {
			return 0, err
		}
		return roundBound(sol.Rate), nil
	}
	high, err := limit(s.max) // each type as if it had the whole budget
	if err != nil {
		return nil, err
	}
	var best Configuration
	low := 0.
	for high-low > 1e-6*max(high, 1) {
		c, err := s.cheapestCounts((low+high)/2, true)
		if err != nil {
			return nil, err
		}
		if c == nil {
			high = (low + high) / 2
			continue
		}
		best = c
		if low, err = limit(c); err != nil {
			return nil, err
		}
	}
	return best, nil
}

// nearbyCounts returns the affordable counts within one instance of c: one more, one less, or one
// of another type instead; c comes first.
func (s *countSearch) nearbyCounts(c Configuration) (all []Configuration) {
	all = append(all, c)
	for less := -1; less < len(c); less++ {
		for more := -1; more < len(c); more++ {
			if less == more || less >= 0 && c[less] == 0 || more >= 0 && c[more] >= s.max[more] {
				continue
			}
			n := c.Clone()
			if less >= 0 {
				n[less]--
			}
			if more >= 0 {
				n[more]++
			}
			if n.Count() > 0 && s.a.Problem.Affordable(n) {
				all = append(all, n)
			}
		}
	}
	return all
}
