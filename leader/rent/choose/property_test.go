package choose

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/profiles"
)

// mean is the mean of loads that were observed after from and until to, and their number.
func mean(loads []load, from, to time.Duration) (rate float64, n int) {
	for _, l := range loads {
		if l.at > from && l.at <= to {
			rate, n = rate+l.rate, n+1
		}
	}
	return rate / float64(max(n, 1)), n
}

// TestPeak: whatever was observed, the peak is the mean of a minute, or of Calm if that is shorter,
// that ended within Calm, or of the last 20 s; and none of these is higher.
func TestPeak(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 3))
		calm := time.Duration(r.IntN(600)) * time.Second
		every := time.Duration(1+r.IntN(10)) * time.Second
		c, now := New(Config{Calm: calm}), time.Hour
		var all []load
		level := 100 * r.Float64()
		for range 1 + r.IntN(150) {
			if now += every; r.IntN(10) == 0 {
				now += time.Duration(r.IntN(60)) * time.Second // nothing was observed
			}
			if r.IntN(15) == 0 {
				level = 100 * r.Float64()
			}
			all = append(all, load{now, level * (.9 + .2*r.Float64())})
			c.Observe(now, all[len(all)-1].rate)
		}
		got, lasts := c.Peak(now)
		over := min(time.Minute, calm)
		want := 0.0
		// A minute of which less than four fifths were seen counts only while it is the last one.
		first := slices.IndexFunc(all, func(l load) bool { return now-l.at <= calm+time.Minute })
		for i, l := range all {
			whole := l.at-all[first].at >= over*4/5 || i == len(all)-1
			if rate, n := mean(all, l.at-max(over, 1), l.at); n > 0 && whole && now-l.at <= calm {
				want = max(want, rate)
			}
		}
		sudden := false // it is of the last 20 s, and not for Calm
		if rate, n := mean(all, now-20*time.Second-1, now); n >= 2 &&
			rate-2*math.Sqrt(rate/20) > want {
			want, sudden = rate, true
		}
		if math.Abs(got-want) > 1e-9*want {
			t.Errorf("seed %d: the peak of %v is %v, want %v", seed, all, got, want)
		}
		if lasts < 0 || lasts > calm {
			t.Errorf("seed %d: the peak counts for %v, want at most %v", seed, lasts, calm)
		}
		if still, _ := c.Peak(now + lasts); still < got*(1-1e-9) && !sudden {
			t.Errorf("seed %d: after %v the peak is %v, want still %v", seed, lasts, still, got)
		}
	}
}

// TestPeakFollowsRise: a load that rises counts in full 20 s later, and one that falls for Calm.
func TestPeakFollowsRise(t *testing.T) {
	const calm = 10 * time.Minute
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 4))
		every := time.Duration(1+r.IntN(9)) * time.Second
		low := 10 * r.Float64()
		high := low + 5 + 90*r.Float64() // more than chance explains
		c, now := New(Config{Calm: calm}), time.Hour
		observe := func(of time.Duration, rate float64) {
			for until := now + of; now < until; {
				now += every
				c.Observe(now, rate)
			}
		}
		observe(20*time.Minute, low)
		observe(20*time.Second+every, high)
		if got, _ := c.Peak(now); math.Abs(got-high) > 1e-9 {
			t.Errorf("seed %d: 20 s after a rise from %v to %v the peak is %v", seed, low, high, got)
		}
		observe(time.Minute, high)
		observe(calm-time.Minute, low)
		if got, _ := c.Peak(now); math.Abs(got-high) > 1e-9 {
			t.Errorf("seed %d: 9 min after a fall from %v to %v the peak is %v", seed, high, low, got)
		}
		observe(2*time.Minute, low)
		if got, _ := c.Peak(now); math.Abs(got-low) > 1e-9 {
			t.Errorf("seed %d: 11 min after a fall from %v to %v the peak is %v", seed, high, low, got)
		}
	}
}

// TestChangePaysWithinHour: a fleet that serves what is asked for becomes a cheaper one if within an
// hour that saves more than what is paid twice while the new machines start, and not otherwise. Two
// plans have to agree.
func TestChangePaysWithinHour(t *testing.T) {
	table, err := profiles.ShippedLibrary().Table("rm2", "r5n.large")
	if err != nil {
		t.Fatal(err)
	}
	old, other := rent.Kind{Type: "old"}, rent.Kind{Type: "other"}
	p := &plan.Problem{
		Types: []plan.Type{{Name: old.Type}, {Name: other.Type}},
		Models: []plan.ModelDemand{{
			Name: "rm2", QoSTarget: 350 * time.Millisecond, Weight: 1,
			BatchSizes: []profiles.Share{{BatchSize: 100, Share: 1}},
			Latencies:  []plan.Latencies{table, table}, // the same machine by two names
		}},
	}
	changes, stays := 0, 0
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 5))
		price := .05 + r.Float64()
		f := &Fleet{Problem: p, Prices: map[rent.Kind]float64{
			old: price, other: price * (1 - .04*r.Float64()),
		}}
		c := New(Config{
			Rate: 10 + 100*r.Float64(), Headroom: 1, MaxPrice: 100,
			Types: map[profiles.InstanceType]Limits{old.Type: {Max: 50}, other.Type: {Max: 50}},
		})
		boots := time.Duration(20+r.IntN(200)) * time.Second
		c.ObserveBoot(other.Type, boots)
		// What it costs least to serve with the old type alone.
		alone := *f
		alone.Prices = map[rent.Kind]float64{old: price}
		first, err := c.Choose(t.Context(), 0, &alone)
		if err != nil {
			t.Fatal(err)
		}
		kept := r.IntN(first.Counts[old]) // of the other type already
		f.Desired = map[rent.Kind]int{old: first.Counts[old] - kept, other: kept}
		var choice *Choice
		for range 2 {
			if choice != nil && choice.Change {
				t.Errorf("seed %d: changes before another plan agrees", seed)
			}
			if choice, err = c.Choose(t.Context(), 0, f); err != nil {
				t.Fatal(err)
			}
		}
		n := float64(f.Desired[old])
		saved := n * (price - f.Prices[other]) // within an hour
		twice := n * f.Prices[other] * boots.Hours()
		if choice.Change != (saved > twice) || choice.Urgent {
			t.Errorf("seed %d: %v machines, $%.4f saved within an hour, $%.4f paid twice: got %+v",
				seed, n, saved, twice, choice)
		}
		if choice.Change {
			changes++
		} else {
			stays++
		}
	}
	if min(changes, stays) < 10 {
		t.Errorf("%d changes and %d not: too few of one of them", changes, stays)
	}
}

// TestTooLargeFleetShrinks: a fleet that is far too large becomes a cheaper one at any load, also
// where the cheapest that bears the load has no room for what chance may add; what it becomes stays.
func TestTooLargeFleetShrinks(t *testing.T) {
	for rate := 40.; rate < 60; rate++ {
		c := New(Config{
			Rate: rate, Headroom: 1.15, MaxPrice: 6, MinInstances: 1, Threshold: .05,
			Types: map[profiles.InstanceType]Limits{oneGPU.Type: {Max: 6}, small.Type: {Max: 20}},
		})
		f := &Fleet{
			Problem: problem(t, onDemand), Prices: onDemand,
			Desired: map[rent.Kind]int{oneGPU: 1, small: 9},
		}
		var choice *Choice
		for range agreeing {
			var err error
			if choice, err = c.Choose(t.Context(), 0, f); err != nil {
				t.Fatal(err)
			}
		}
		if !choice.Change || choice.Urgent || choice.Price > choice.Now-.149*2 {
			t.Errorf("%v queries/s: change %v, %s", rate, choice.Change, choice.Why)
			continue
		}
		f.Desired = choice.Counts
		for range agreeing {
			var err error
			if choice, err = c.Choose(t.Context(), 0, f); err != nil || choice.Change {
				t.Errorf("%v queries/s: and then %s, %v", rate, choice.Why, err)
			}
		}
	}
}
