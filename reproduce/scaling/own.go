package scaling

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/reproduce/placements"
)

// Windows are the seconds by ten.
func (r *Result) Windows() (all []Second) {
	for i, s := range r.Seconds {
		if i%window == 0 {
			all = append(all, Second{})
		}
		all[len(all)-1].Add(s)
	}
	return all
}

// ArtifactPeriods says when the artifact of Proteus places anew: each interval seconds, more often
// from 60 to 100 s and in bursts, and at some moments of a trace.
func ArtifactPeriods(trace string, interval int) func(second int, s *placements.State) bool {
	var demands []float64
	return func(second int, s *placements.State) bool {
		sum := 0.0
		for _, d := range s.Demand {
			sum += d
		}
		demands = append(demands, sum)
		demands = demands[max(0, len(demands)-10):]
		period := interval
		switch {
		case trace == Bursty && slices.Max(demands) > 200:
			period = 2
		case second >= 60 && second <= 100:
			period = interval / 2
		}
		return second%period == 0 || second == 5 || second == 20 ||
			strings.Contains(trace, "normal_load") && slices.Contains([]int{47, 59, 71, 83}, second)
	}
}

// ownSeconds is how long the own traces are.
const ownSeconds = 240

// Arrivals is the own trace that is to a fleet as a trace of the artifact is to its fleet: Twitter
// rises and falls twice, with spikes of a few seconds; Bursty changes between a low and a high
// rate; the others are flat. Gaps are exponential, but for Gamma (shape .05) and Uniform. The
// expected rates of the families are the mean. The same fleet and name give the same queries.
func Arrivals(f *placements.Fleet, trace string) (queries []Query) {
	for k, family := range f.Families {
		rng := rand.New(rand.NewPCG(uint64(k), 31))
		for at := rng.Float64() / family.Expected; at < ownSeconds; {
			queries = append(queries, Query{At: time.Duration(at * 1e9), Family: k})
			gap := rng.ExpFloat64()
			switch trace {
			case Gamma:
				gap = gamma(rng, 0.05) / 0.05
			case Uniform:
				gap = 1
			}
			at += gap / (family.Expected * shape(trace, at))
		}
	}
	slices.SortStableFunc(queries, func(a, b Query) int { return int(a.At - b.At) })
	return queries
}

// shape is a trace's rate at a second beside its mean.
func shape(trace string, at float64) float64 {
	switch trace {
	case Twitter:
		rate := 0.75 + 0.55*math.Sin(2*math.Pi*(at-30)/120)
		for _, spike := range []float64{57, 93, 178, 205} {
			if at >= spike && at < spike+6 {
				rate *= 1.7
			}
		}
		return rate
	case Bursty:
		if at >= 50 && at < 90 || at >= 140 && at < 200 {
			return 2
		}
		return 0.4
	}
	return 1
}

// gamma draws from a gamma distribution of a shape below 1 and scale 1 (Ahrens and Dieter, 1974).
func gamma(rng *rand.Rand, shape float64) float64 {
	b := 1 + shape/math.E
	for {
		p := b * rng.Float64()
		if p <= 1 {
			if x := math.Pow(p, 1/shape); rng.ExpFloat64() >= x {
				return x
			}
		} else if x := -math.Log((b - p) / shape); rng.ExpFloat64() >= (1-shape)*math.Log(x) {
			return x
		}
	}
}

// Synthetic is a placement program of so many agents, types, variants and families. Its demand is
// more than the most accurate variants of all families can serve.
func Synthetic(agents, types, variants, families int) *place.Program {
	rng := rand.New(rand.NewPCG(uint64(agents*types), uint64(variants*families)))
	p := &place.Program{}
	speed := make([]float64, types)
	for t := range types {
		p.Types = append(p.Types, place.Type{
			Name: fmt.Sprintf("type%d", t), Count: (agents + t) / types,
		})
		speed[t] = math.Exp(1.2 * rng.NormFloat64())
	}
	capacity := make([]float64, families) // of all agents
	for v := range variants {
		k := v % families
		rank := float64(v/families) / float64(max(1, variants/families-1))
		p.Variants = append(p.Variants, place.Variant{
			Model: fmt.Sprintf("model%d", v), Family: fmt.Sprintf("family%d", k),
			Accuracy: 100 - 20*rank*rng.Float64(),
		})
		all := 0.0
		for t := range types {
			rate := 5 * speed[t] * math.Exp(2.5*rank+0.3*rng.NormFloat64())
			all += rate * float64(p.Types[t].Count)
			p.Choices = append(p.Choices, place.Choice{
				Type: t, Layout: p.Variants[v].Model,
				Partitions: [][]place.Service{{{Class: k, Variant: v, Rate: rate}}},
			})
		}
		capacity[k] = max(capacity[k], all)
	}
	zipf := 0.0
	for k := range families {
		zipf += 1 / float64(k+1)
	}
	for k := range families {
		p.Classes = append(p.Classes, place.Class{
			Family: fmt.Sprintf("family%d", k), Rate: 0.6 * capacity[k] / float64(k+1) / zipf,
		})
	}
	return p
}
