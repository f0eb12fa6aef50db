package placements

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-serve/muster/leader/place"
)

// A Family is what queries ask for.
type Family struct {
	Name   string
	Target time.Duration // of a query's latency
	// Expected is the rate in queries/s that an operator provisions for, >= 0.
	Expected float64
}

// A Variant is a model that answers for a family.
type Variant struct {
	Model    string
	Family   int     // index in the fleet
	Accuracy float64 // points, 0 to 100
}

// A Fleet is agents of which each holds one variant, as in Proteus's experiments, and what they
// can do.
type Fleet struct {
	Types    []place.Type
	Families []Family
	Variants []Variant
	// Sizes are the numbers of queries that may run as one, rising from 1.
	Sizes []int
	// Latency is that of a run by type, variant and index in Sizes; 0 if it was not measured.
	Latency [][][]time.Duration
}

// Validate reports all that is wrong with f.
func (f *Fleet) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(f.Sizes) == 0 || f.Sizes[0] != 1 {
		bad("sizes are %v, want some that rise from 1", f.Sizes)
	}
	for i := 1; i < len(f.Sizes); i++ {
		if f.Sizes[i] <= f.Sizes[i-1] {
			bad("sizes are %v, want some that rise from 1", f.Sizes)
		}
	}
	for _, k := range f.Families {
		if k.Target <= 0 || !(k.Expected >= 0) {
			bad("family %s: target %v and expected rate %v, want > 0 and >= 0", k.Name, k.Target,
				k.Expected)
		}
	}
	for _, v := range f.Variants {
		if v.Family < 0 || v.Family >= len(f.Families) {
			bad("variant %s: family is %d, and there are %d", v.Model, v.Family, len(f.Families))
		}
	}
	if len(f.Latency) != len(f.Types) {
		bad("latencies of %d types, and there are %d", len(f.Latency), len(f.Types))
	}
	for t, of := range f.Latency {
		if len(of) != len(f.Variants) {
			bad("type %d: latencies of %d variants, and there are %d", t, len(of), len(f.Variants))
		}
		for v, l := range of {
			if len(l) != len(f.Sizes) {
				bad("type %d, variant %d: latencies of %d sizes, and there are %d", t, v, len(l),
					len(f.Sizes))
			}
		}
	}
	return errors.Join(errs...)
}

// Largest returns the index in Sizes of the largest run of a variant on a type that takes less
// than half of the family's target: a query that just misses a run then is in time with the next.
// It returns -1 if not even one query does.
func (f *Fleet) Largest(typ, variant int) int {
	largest := -1
	for k, l := range f.Latency[typ][variant] {
		if l > 0 && l < f.Families[f.Variants[variant].Family].Target/2 {
			largest = k
		}
	}
	return largest
}

// Rate is how many queries a second an agent of a type answers by a variant, in runs of that size;
// 0 if it cannot. Where no agent runs even one query of a family in half of its target, as when all
// take longer than was known, one in all of it counts: else the family would be left without any.
func (f *Fleet) Rate(typ, variant int) float64 {
	k := f.Largest(typ, variant)
	if k < 0 {
		family := f.Variants[variant].Family
		l := f.Latency[typ][variant][0]
		if l <= 0 || l > f.Families[family].Target || f.anyLargest(family) {
			return 0
		}
		k = 0
	}
	return float64(f.Sizes[k]) / f.Latency[typ][variant][k].Seconds()
}

// anyLargest reports whether Largest finds a run for any type and variant of a family.
func (f *Fleet) anyLargest(family int) bool {
	for t := range f.Types {
		for v := range f.Variants {
			if f.Variants[v].Family == family && f.Largest(t, v) >= 0 {
				return true
			}
		}
	}
	return false
}

// Best is the most accurate variant of a family that some type can serve, or that the type can
// serve if typ >= 0; -1 if there is none.
func (f *Fleet) Best(family, typ int) int {
	return f.extreme(family, typ, func(a, b float64) bool { return a > b })
}

// Worst is the least accurate one.
func (f *Fleet) Worst(family, typ int) int {
	return f.extreme(family, typ, func(a, b float64) bool { return a < b })
}

func (f *Fleet) extreme(family, typ int, better func(a, b float64) bool) int {
	found := -1
	for v, x := range f.Variants {
		if x.Family != family || found >= 0 && !better(x.Accuracy, f.Variants[found].Accuracy) {
			continue
		}
		for t := range f.Types {
			if (typ < 0 || t == typ) && f.Rate(t, v) > 0 {
				found = v
				break
			}
		}
	}
	return found
}

// Program is the placement program of the fleet for a demand in queries/s by family, with the
// variants for which allowed is true, and where each choice's variant is in the fleet.
func (f *Fleet) Program(demand []float64, allowed func(typ, variant int) bool) (*place.Program,
	[]int) {
	p := &place.Program{Types: f.Types}
	for _, v := range f.Variants {
		p.Variants = append(p.Variants, place.Variant{
			Model: v.Model, Family: f.Families[v.Family].Name, Accuracy: v.Accuracy,
		})
	}
	for k := range f.Families {
		p.Classes = append(p.Classes, place.Class{Family: f.Families[k].Name, Rate: demand[k]})
	}
	var variants []int
	for t := range f.Types {
		for v, x := range f.Variants {
			rate := f.Rate(t, v)
			if rate == 0 || allowed != nil && !allowed(t, v) {
				continue
			}
			variants = append(variants, v)
			p.Choices = append(p.Choices, place.Choice{
				Type: t, Layout: x.Model,
				Partitions: [][]place.Service{{{Class: x.Family, Variant: v, Rate: rate}}},
			})
		}
	}
	return p, variants
}

// An Agent is what an agent holds and does.
type Agent struct {
	Type    int
	Variant int // -1: none
	// Size is the index in Sizes of the run for which the agent waits, if its rival sets it.
	Size int
	// Holds is how many queries wait or run there.
	Holds int
	// Placed is the number of its placement, which rises over all agents.
	Placed int
}

// A State is a fleet at one moment. Rivals change what agents hold, nothing else.
type State struct {
	*Fleet
	Agents []Agent // by type
	// Demand is the rate of arrivals of the last second, in queries/s by family.
	Demand []float64
	// Forecast is the rate for which a rival is to plan.
	Forecast []float64
	// Ended counts the queries that have an outcome, by family; Late those of them that were late
	// or dropped.
	Ended, Late []uint64

	placements int
}

// NewState returns a fleet whose agents hold nothing.
func NewState(f *Fleet) *State {
	s := &State{
		Fleet: f, Demand: make([]float64, len(f.Families)),
		Forecast: make([]float64, len(f.Families)), Ended: make([]uint64, len(f.Families)),
		Late: make([]uint64, len(f.Families)),
	}
	for t := range f.Types {
		for range f.Types[t].Count {
			s.Agents = append(s.Agents, Agent{Type: t, Variant: -1})
		}
	}
	return s
}

// Put makes an agent hold a variant, -1 for none.
func (s *State) Put(agent, variant int) {
	a := &s.Agents[agent]
	a.Variant, a.Holds, a.Size = variant, 0, -1
	if variant >= 0 {
		a.Size = s.Largest(a.Type, variant)
	}
	s.placements++
	a.Placed = s.placements
}

// Hold makes counts agents of each type hold each variant, and returns which are left over, and
// hold what they held. Agents that hold a variant of which there are to be some keep it.
func (s *State) Hold(counts [][]int) (spare []int) {
	return s.hold(counts, func(int, int) bool { return true })
}

// hold is Hold of the variants that agents may get.
func (s *State) hold(counts [][]int, may func(agent, variant int) bool) (spare []int) {
	left := make([][]int, len(counts))
	for t := range counts {
		left[t] = slices.Clone(counts[t])
	}
	var open []int
	for i := range s.Agents {
		if a := &s.Agents[i]; a.Variant >= 0 && left[a.Type][a.Variant] > 0 {
			left[a.Type][a.Variant]--
			continue
		}
		open = append(open, i)
	}
	for _, i := range open {
		a := &s.Agents[i]
		placed := false
		for v, n := range left[a.Type] {
			if n > 0 && may(i, v) {
				left[a.Type][v]--
				s.Put(i, v)
				placed = true
				break
			}
		}
		if !placed {
			spare = append(spare, i)
		}
	}
	return spare
}

// A Rival is another system: what its agents hold, and which of them gets a query.
type Rival interface {
	// Place decides what agents hold, by [State.Put]. It is called at the start and once a period.
	Place(s *State) error
	// Route returns the agent that gets a query of a family; -1: none, and the query is lost.
	Route(s *State, family int, rng *rand.Rand) int
}
