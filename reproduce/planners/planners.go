package planners

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/muster-serve/muster/leader/plan"
)

// methods are the search methods by name. Each searches until no configuration is open.
var methods = map[string]func(context.Context, *search) error{
	"exhaustive": exhaustive,
	"random":     random,
	"hill-climb": hillClimb,
	"rsm":        responseSurface,
	"genetic":    genetic,
	"annealing":  annealing,
}

// Names are the rivals' names, sorted.
func Names() []string { return slices.Sorted(maps.Keys(methods)) }

// A Rival is a [plan.Planner] that searches by one of the methods.
type Rival struct {
	// Name is one of [Names].
	Name string
	// Seed seeds all randomness.
	Seed uint64
}

// Plan implements [plan.Planner]. It returns the best of the evaluated configurations and reads no
// profiles.
func (r Rival) Plan(ctx context.Context, p *plan.Problem, e plan.Evaluator) (*plan.Result, error) {
	method := methods[r.Name]
	if method == nil {
		return nil, fmt.Errorf("rival %q is unknown, there are: %s", r.Name,
			strings.Join(Names(), ", "))
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	space, err := p.Space()
	if err != nil {
		return nil, err
	}
	s := &search{p: p, log: plan.NewLog(e), space: space, index: make(map[string]int, len(space)),
		random: rand.New(rand.NewPCG(r.Seed, 0)), scores: map[int]float64{},
		closed: make([]bool, len(space)), left: len(space), best: -1, target: p.Target}
	if s.target == 0 {
		s.target = plan.DefaultTarget
	}
	for i, c := range space {
		s.index[c.String()] = i
		s.dearest = max(s.dearest, p.Price(c))
	}
	if err := method(ctx, s); err != nil {
		return nil, err
	}
	return s.result(r.Name), nil
}

// A search is the state of a rival's search. Configurations are indices of space.
type search struct {
	p       *plan.Problem
	log     *plan.Log
	space   []plan.Configuration
	index   map[string]int
	random  *rand.Rand
	target  float64
	dearest float64 // $/hr
	byPrice bool    // prune configurations dearer than one that meets the target

	scores map[int]float64 // scores of the evaluated configurations
	closed []bool          // by configuration: evaluated or pruned
	left   int             // how many are not closed
	best   int             // -1: none
	meets  bool            // the last one evaluated met the target
}

// evaluate returns the score of a configuration: RIBBON's objective (Eq. 2), or the throughput.
// Higher is better. It prunes by the result.
func (s *search) evaluate(ctx context.Context, i int) (float64, error) {
	c := s.space[i]
	e, err := s.log.Evaluate(ctx, c)
	if err != nil {
		return 0, err
	}
	score := e.Value
	s.meets = false
	if s.p.Objective == plan.LeastCost {
		if s.meets = e.Value >= s.target; s.meets {
			score = 1 - s.p.Price(c)/s.dearest/2
		} else {
			score = e.Value / s.target / 2
		}
	}
	s.scores[i] = score
	if s.best < 0 || score > s.scores[s.best] {
		s.best = i
	}
	for j, other := range s.space {
		if !s.closed[j] && (j == i || s.prunes(c, other)) {
			s.closed[j] = true
			s.left--
		}
	}
	return score, nil
}

// prunes reports whether the evaluation of c prunes another configuration.
func (s *search) prunes(c, other plan.Configuration) bool {
	switch {
	case s.p.Objective == plan.MostThroughput:
		return other.Within(c)
	case s.meets && s.byPrice:
		return s.p.Price(other) >= s.p.Price(c)
	case s.meets:
		return fewer(c, other)
	}
	return fewer(other, c)
}

// fewer reports whether c has fewer instances of every type than d.
func fewer(c, d plan.Configuration) bool {
	for t, n := range c {
		if n >= d[t] {
			return false
		}
	}
	return true
}

// pick draws an open configuration; there must be one.
func (s *search) pick() int {
	n := s.random.IntN(s.left)
	for i, closed := range s.closed {
		if !closed {
			if n == 0 {
				return i
			}
			n--
		}
	}
	panic("planners: nothing is open")
}

// beside returns the neighbours of i, those with one instance of one type more or less, in random
// order.
func (s *search) beside(i int) []int {
	c := s.space[i].Clone()
	var all []int
	for t := range c {
		for _, d := range []int{-1, 1} {
			c[t] += d
			if j, ok := s.index[c.String()]; ok {
				all = append(all, j)
			}
			c[t] -= d
		}
	}
	s.random.Shuffle(len(all), func(a, b int) { all[a], all[b] = all[b], all[a] })
	return all
}

func (s *search) result(name string) *plan.Result {
	c := s.space[s.best]
	best := plan.Plan{Configuration: c.Clone(), Price: s.p.Price(c), Evaluated: true}
	for _, e := range s.log.Evaluations() {
		if slices.Equal(e.Configuration, c) {
			best.StdErr = e.StdErr
			if s.p.Objective == plan.LeastCost {
				best.Satisfaction = e.Value
			} else {
				best.Predicted = e.Value
			}
		}
	}
	best.Reason = fmt.Sprintf("the best of %d evaluated by %s out of %d", s.log.Count(), name,
		len(s.space))
	return &plan.Result{
		Plans: []plan.Plan{best}, Evaluations: s.log.Evaluations(), SearchSpace: len(s.space),
	}
}
