package placements

import (
	"math/rand/v2"

	"github.com/muster-serve/muster/leader/place"
)

// steps is how many a rival lets place.Solve search.
const steps = 20_000

// solve returns how many agents of each type hold each variant, and the flow in queries/s, for a
// demand.
func solve(f *Fleet, demand []float64, allowed func(typ, variant int) bool, steps int) (counts [][]int,
	flow [][]float64, served float64, err error) {
	p, variants := f.Program(demand, allowed)
	sol, err := place.Solve(p, steps)
	if err != nil {
		return nil, nil, 0, err
	}
	counts, flow = make([][]int, len(f.Types)), make([][]float64, len(f.Types))
	for t := range counts {
		counts[t], flow[t] = make([]int, len(f.Variants)), make([]float64, len(f.Variants))
	}
	for i, c := range p.Choices {
		counts[c.Type][variants[i]] += sol.Counts[i]
		flow[c.Type][variants[i]] += sol.Flow[i][0][0]
	}
	return counts, flow, sol.Served, nil
}

// provision returns a placement for the largest multiple of the expected rates that is served
// whole, so that agents are divided as the load is. Without expected rates all are alike.
func provision(f *Fleet, allowed func(typ, variant int) bool) (counts [][]int, flow [][]float64,
	err error) {
	demand := make([]float64, len(f.Families))
	lo, hi := 0.0, 1.0
	sum := 0.0
	for k := range demand {
		sum += f.Families[k].Expected
	}
	try := func(times float64) (bool, error) {
		for k := range demand {
			demand[k] = times * f.Families[k].Expected
			if sum == 0 {
				demand[k] = times
			}
		}
		c, x, served, err := solve(f, demand, allowed, steps/10)
		if err == nil && (served > 1-1e-9 || counts == nil) {
			counts, flow = c, x
		}
		return served > 1-1e-9, err
	}
	for ok := true; ok && hi < 1e9; {
		if ok, err = try(hi); err != nil {
			return nil, nil, err
		}
		if ok {
			lo, hi = hi, 2*hi
		}
	}
	for range 12 {
		ok, err := try((lo + hi) / 2)
		if err != nil {
			return nil, nil, err
		}
		if ok {
			lo = (lo + hi) / 2
		} else {
			hi = (lo + hi) / 2
		}
	}
	return counts, flow, nil
}

// Weights are by type and variant: which part of a family's queries its agents get.
type Weights [][]float64

// route draws a type and variant by the weights, and one of the agents that hold it.
func (w Weights) route(s *State, family int, rng *rand.Rand) int {
	total := 0.0
	for t := range w {
		for v, x := range w[t] {
			if s.Variants[v].Family == family {
				total += x
			}
		}
	}
	if total == 0 {
		return -1
	}
	at := rng.Float64() * total
	for t := range w {
		for v, x := range w[t] {
			if s.Variants[v].Family != family || x == 0 {
				continue
			}
			if at -= x; at < 0 {
				return s.any(rng, func(a *Agent) bool { return a.Type == t && a.Variant == v })
			}
		}
	}
	return -1
}

// any draws an agent for which is is true, -1 if there is none.
func (s *State) any(rng *rand.Rand, is func(*Agent) bool) int {
	found, n := -1, 0
	for i := range s.Agents {
		if is(&s.Agents[i]) {
			if n++; rng.IntN(n) == 0 {
				found = i
			}
		}
	}
	return found
}

// Clipper holds one variant of each family always: its most accurate one, or its least accurate
// one. Agents are divided among the families in proportion to what is expected.
type Clipper struct {
	MostAccurate bool
	weights      Weights
}

// Place implements [Rival].
func (c *Clipper) Place(s *State) error {
	if c.weights != nil {
		return nil
	}
	the := make(map[int]bool)
	for k := range s.Families {
		v := s.Worst(k, -1)
		if c.MostAccurate {
			v = s.Best(k, -1)
		}
		the[v] = true
	}
	counts, flow, err := provision(s.Fleet, func(_, variant int) bool { return the[variant] })
	if err != nil {
		return err
	}
	s.Hold(counts)
	c.weights = flow
	return nil
}

// Route implements [Rival].
func (c *Clipper) Route(s *State, family int, rng *rand.Rand) int {
	return c.weights.route(s, family, rng)
}

// Fixed holds what it is told and routes by given weights, as Proteus's artifact has Clipper do.
type Fixed struct {
	Counts  [][]int // by type and variant
	Weights Weights
	placed  bool
}

// Place implements [Rival].
func (f *Fixed) Place(s *State) error {
	if !f.placed {
		s.Hold(f.Counts)
		f.placed = true
	}
	return nil
}

// Route implements [Rival].
func (f *Fixed) Route(s *State, family int, rng *rand.Rand) int {
	return f.Weights.route(s, family, rng)
}
