package planners

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/muster-serve/muster/leader/plan"
)

// exhaustive evaluates every configuration, in the order of their counts, and prunes none.
func exhaustive(ctx context.Context, s *search) error {
	for i := range s.space {
		if _, err := s.evaluate(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// random evaluates random configurations (RIBBON's RANDOM).
func random(ctx context.Context, s *search) error {
	for s.left > 0 {
		if _, err := s.evaluate(ctx, s.pick()); err != nil {
			return err
		}
	}
	return nil
}

// hillClimb climbs from random configurations (RIBBON's Hill-Climb).
func hillClimb(ctx context.Context, s *search) error {
	s.byPrice = true
	for s.left > 0 {
		if err := s.climb(ctx, s.pick()); err != nil {
			return err
		}
	}
	return nil
}

// climb moves from a configuration to the first better neighbour, until no neighbour is better.
func (s *search) climb(ctx context.Context, from int) error {
	score, known := s.scores[from]
	if !known {
		var err error
		if score, err = s.evaluate(ctx, from); err != nil {
			return err
		}
	}
	for better := true; better; {
		better = false
		for _, j := range s.beside(from) {
			if s.closed[j] {
				continue
			}
			next, err := s.evaluate(ctx, j)
			if err != nil {
				return err
			}
			if next > score {
				from, score, better = j, next, true
				break
			}
		}
	}
	return nil
}

// responseSurface evaluates a face-centred central composite design, corners, centres of the faces
// and the centre of the space, and climbs from its points, the best first (RIBBON's RSM). Then it
// climbs from random configurations that are left.
func responseSurface(ctx context.Context, s *search) error {
	s.byPrice = true
	types := len(s.p.Types)
	most := make(plan.Configuration, types)
	for _, c := range s.space {
		for t, n := range c {
			most[t] = max(most[t], n)
		}
	}
	var design []int
	levels := make([]int, types) // 0: none, 1: half, 2: all
	for {
		halves := 0
		c := make(plan.Configuration, types)
		for t, level := range levels {
			c[t] = most[t] * level / 2
			if level == 1 {
				halves++
			}
		}
		if i, ok := s.index[c.String()]; ok && (halves == 0 || halves >= types-1) &&
			!slices.Contains(design, i) {
			design = append(design, i)
			if _, err := s.evaluate(ctx, i); err != nil {
				return err
			}
		}
		t := 0
		for ; t < types && levels[t] == 2; t++ {
			levels[t] = 0
		}
		if t == types {
			break
		}
		levels[t]++
	}
	slices.SortStableFunc(design,
		func(a, b int) int { return cmp.Compare(s.scores[b], s.scores[a]) })
	for _, i := range design {
		if err := s.climb(ctx, i); err != nil {
			return err
		}
	}
	return hillClimb(ctx, s)
}

// Parameters of the genetic algorithm.
const (
	population = 16
	mutation   = 0.3 // probability that a count changes by one
	// attempts is how many children are made before an open configuration is drawn instead;
	// children that are evaluated or pruned are discarded.
	attempts = 20
)

// genetic crosses the better configurations of a population (KAIROS's GENE).
func genetic(ctx context.Context, s *search) error {
	var parents []int
	for s.left > 0 {
		next := -1
		for try := 0; try < attempts && len(parents) == population && next < 0; try++ {
			next = s.child(parents)
		}
		if next < 0 {
			next = s.pick()
		}
		if _, err := s.evaluate(ctx, next); err != nil {
			return err
		}
		parents = append(parents, next)
		slices.SortStableFunc(parents,
			func(a, b int) int { return cmp.Compare(s.scores[b], s.scores[a]) })
		parents = parents[:min(population, len(parents))]
	}
	return nil
}

// child makes a configuration whose counts come from two parents, each the better of two drawn, and
// changes some counts; -1 if it is not open.
func (s *search) child(parents []int) int {
	parent := func() plan.Configuration {
		return s.space[parents[min(s.random.IntN(len(parents)), s.random.IntN(len(parents)))]]
	}
	a, b := parent(), parent()
	c := a.Clone()
	for t := range c {
		if s.random.IntN(2) == 0 {
			c[t] = b[t]
		}
		if s.random.Float64() < mutation {
			c[t] += 2*s.random.IntN(2) - 1
		}
	}
	if i, ok := s.index[c.String()]; ok && !s.closed[i] {
		return i
	}
	return -1
}

// Parameters of simulated annealing; temperatures are shares of the best score.
const (
	hottest = 0.2
	cooling = 0.97 // factor of the temperature per evaluation
)

// annealing moves to a neighbour of the present configuration; a move to a worse one becomes rarer
// over time. If all neighbours are closed, it goes on from a random configuration.
func annealing(ctx context.Context, s *search) error {
	at, temperature := -1, hottest
	for ; s.left > 0; temperature *= cooling {
		next := -1
		if at >= 0 {
			if open := slices.DeleteFunc(s.beside(at),
				func(j int) bool { return s.closed[j] }); len(open) > 0 {
				next = open[0]
			}
		}
		jump := next < 0
		if jump {
			next = s.pick()
		}
		score, err := s.evaluate(ctx, next)
		if err != nil {
			return err
		}
		worse := 0.0
		if !jump {
			worse = (s.scores[at] - score) / max(s.scores[s.best], 1e-12)
		}
		if jump || worse <= 0 || s.random.Float64() < math.Exp(-worse/temperature) {
			at = next
		}
	}
	return nil
}
