package choose

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/profiles"
)

const low, high = 20.0, 120.0 // queries/s

// square is high for the first part of each period, and low for the rest.
func square(period, on time.Duration) func(time.Duration) float64 {
	return func(at time.Duration) float64 {
		if at%period < on {
			return high
		}
		return low
	}
}

// saw rises evenly through each period, and falls at once.
func saw(period time.Duration) func(time.Duration) float64 {
	return func(at time.Duration) float64 {
		return low + (high-low)*float64(at%period)/float64(period)
	}
}

// crowds come for three minutes at random, each half an hour or so.
func crowds(lasts time.Duration) func(time.Duration) float64 {
	r := rand.New(rand.NewPCG(26, 4))
	var begins []time.Duration
	for at := time.Duration(0); at < lasts; {
		at += time.Duration((5 + 50*r.Float64()) * float64(time.Minute))
		begins = append(begins, at)
	}
	return func(at time.Duration) float64 {
		for _, b := range begins {
			if at >= b && at < b+3*time.Minute {
				return high
			}
		}
		return low
	}
}

// A bench knows fleets for rates, for comparison.
type bench struct {
	t      *testing.T
	p      *plan.Problem
	serves func(map[profiles.InstanceType]int) float64
	ideals map[float64]map[rent.Kind]int
}

func newBench(t *testing.T) *bench {
	p := problem(t, onDemand)
	p.Types[0].Max, p.Types[1].Max, p.Types[2].Max = 4, 6, 20 // c5n, g4dn, r5n
	capacity, err := NewCapacity(&Fleet{Problem: p})
	if err != nil {
		t.Fatal(err)
	}
	return &bench{t, p, capacity.SafeRate, map[float64]map[rent.Kind]int{}}
}

// ideal is the cheapest fleet for a rate.
func (b *bench) ideal(rate float64) map[rent.Kind]int {
	rate = math.Ceil(rate)
	if b.ideals[rate] != nil {
		return b.ideals[rate]
	}
	p := *b.p
	p.Objective, p.Rate, p.Budget = plan.LeastCost, rate, 6
	found, err := plan.Fluid{Top: 1}.Plan(context.Background(), &p, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	counts := map[rent.Kind]int{}
	for i, n := range found.Plans[0].Configuration {
		if n > 0 {
			counts[rent.Kind{Type: p.Types[i].Name}] = n
		}
	}
	b.ideals[rate] = counts
	return counts
}

func priceOf(counts map[rent.Kind]int) (usd float64) {
	for kind, n := range counts {
		usd += float64(n) * onDemand[kind]
	}
	return usd
}

// within is the cheapest part of a fleet that serves a rate.
func (b *bench) within(whole map[rent.Kind]int, rate float64) (best map[rent.Kind]int) {
	best = whole
	for {
		smaller := best
		for kind := range best {
			less := maps.Clone(best)
			less[kind]--
			of := map[profiles.InstanceType]int{}
			for kind, n := range less {
				of[kind.Type] += n
			}
			if less[kind] >= 0 && b.serves(of) >= rate && priceOf(less) < priceOf(smaller) {
				smaller = less
			}
		}
		if priceOf(smaller) == priceOf(best) {
			return best
		}
		best = smaller
	}
}

// fixed is the best fleet that never changes, from the beginning of the time on.
func (b *bench) fixed(lasts time.Duration) (dollars float64) {
	return priceOf(b.ideal(high*1.15)) * lasts.Hours()
}

// schedule is the better of two that know the load, and launch machines so early that they serve in
// time: one takes the cheapest fleet for each load, the other the cheapest part of that for the
// highest.
func (b *bench) schedule(of scenario, from time.Duration) (best result) {
	boots := max(of.boots, time.Minute)
	best.dollars = math.Inf(1)
	for _, nested := range []bool{false, true} {
		of.decide = func(at time.Duration) map[rent.Kind]int {
			rate := 0.0
			for s := at; s <= at+2*boots+tick; s += tick {
				if s <= at+boots+tick {
					rate = max(rate, of.load(s))
				} else { // eight at a time: what the second launch adds is not needed yet
					rate = max(rate, of.load(s)*.6)
				}
			}
			if nested {
				return b.within(b.ideal(high*1.15), rate*1.15)
			}
			return b.ideal(rate * 1.15)
		}
		whole := live(b.t, of)
		if got := whole.since(from); got.dollars < best.dollars {
			best = got
		}
	}
	return best
}

// A wave is a load that returns after a period, or about so, if it is irregular.
type wave struct {
	name      string
	period    time.Duration
	load      func(time.Duration) float64
	irregular bool
}

// waves are those of which every test run tries a few, and the slow one all.
func waves(all bool) (list []wave) {
	minutes := []float64{2, 10, 22}
	if all {
		minutes = []float64{1, 2, 3, 5, 7, 10, 15, 22, 30, 45, 60, 90, 120}
	}
	for _, m := range minutes {
		period := time.Duration(m * float64(time.Minute))
		list = append(list, wave{name: fmt.Sprintf("square of %v", period), period: period,
			load: square(period, (period * 10 / 22).Round(tick))})
	}
	minutes = []float64{30}
	if all {
		minutes = []float64{10, 30, 120}
	}
	for _, m := range minutes {
		period := time.Duration(m * float64(time.Minute))
		list = append(list, wave{name: fmt.Sprintf("saw of %v", period), period: period,
			load: saw(period)})
	}
	return append(list, wave{name: "3 of 40 min", period: 40 * time.Minute,
		load: square(40*time.Minute, 3*time.Minute)},
		wave{"3 min at random", time.Hour, crowds(12 * time.Hour), true})
}

// TestWaves: where a load repeats, from the third period on the fleet costs at most 1.02 times as
// much as the better of the best fixed fleet and the best schedule that knows the load, and before
// that 1.3 times; from the third period on it is not short for longer than they are, once the first
// machines have started. Crowds that come at random cost at most 1.3 times as much, and the fleet
// is not short for longer than an autoscaler's.
func TestWaves(t *testing.T) {
	if testing.Short() {
		t.Skip("it simulates many hours")
	}
	b := newBench(t)
	for _, boots := range []time.Duration{time.Minute, 5 * time.Minute} {
		for _, w := range waves(os.Getenv("MUSTER_SLOW_TESTS") != "") {
			// The first machines are there, and a period of a minute has come three times.
			from := max(2*w.period, 3*boots, 5*time.Minute)
			from = (from + w.period - 1) / w.period * w.period
			of := scenario{lasts: max(4*time.Hour, 5*w.period), boots: boots, load: w.load}
			rest := (of.lasts - from).Hours()
			whole := live(t, of)
			got, known, fixed := whole.since(from), b.schedule(of, from), b.fixed(of.lasts-from)
			scaled := autoscaled(t, of.lasts, boots, w.load)
			then := scaled.since(from)
			best := min(known.dollars, fixed)
			ratio := got.dollars / best
			before := (whole.dollars - got.dollars) / from.Hours() / (best / rest)
			t.Logf("| %s | %v | %.2f | %.2f | %.3f | %.2f | %.2f | %.2f | %v | %v |", w.name, boots,
				got.dollars/rest, before*best/rest, ratio, fixed/rest, known.dollars/rest,
				then.dollars/rest, got.short, then.short)
			switch {
			case w.irregular:
				if ratio > 1.3 || got.short > then.short {
					t.Errorf("%s, boots of %v: %.3f times the best, short for %v", w.name, boots,
						ratio, got.short)
				}
			case ratio > 1.02 || before > 1.3 || got.short > 0:
				t.Errorf("%s, boots of %v: %.3f times the best, before %.3f times, short for %v",
					w.name, boots, ratio, before, got.short)
			}
		}
	}
}
