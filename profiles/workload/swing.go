package workload

import (
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// A Swing lets the rate of each model's queries rise and fall as a sine, by the part Depth of its
// mean in each direction. The models' sines are evenly shifted against each other.
type Swing struct {
	Period time.Duration // > 0
	Depth  float64       // in (0, 1]
}

// Validate reports what is wrong with s.
func (s Swing) Validate() error {
	if s.Period <= 0 || !(s.Depth > 0 && s.Depth <= 1) {
		return fmt.Errorf("swing of %v by %v, want a period above 0 and a depth in (0, 1]",
			s.Period,
			s.Depth)
	}
	return nil
}

// Most is how many times its mean a rate is at most.
func (s Swing) Most() float64 { return 1 + s.Depth }

// Thin leaves of stream, whose rates are Most times the mean ones, what arrives in a swing.
func (s Swing) Thin(seed uint64, stream iter.Seq[Query], models []string) iter.Seq[Query] {
	return func(yield func(Query) bool) {
		rng := rand.New(rand.NewPCG(seed, 3))
		for q := range stream {
			phase := q.At.Seconds()/s.Period.Seconds() +
				float64(slices.Index(models, q.Model))/float64(len(models))
			rate := (1 + s.Depth*math.Sin(2*math.Pi*phase)) / s.Most()
			if rng.Float64() < rate && !yield(q) {
				return
			}
		}
	}
}
