package choose

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// noisy is a rate with what a slot's count has by chance.
func noisy(r *rand.Rand, rate float64) float64 {
	return max(0, rate+math.Sqrt(rate/slotWidth.Seconds())*r.NormFloat64())
}

// TestRhythmFindsPeriod: a square or a saw of any period is known after two of them, nearly to a
// slot, and then what it will be a minute ahead is foreseen.
func TestRhythmFindsPeriod(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 6))
		period := 9 + r.IntN(maxPeriod-9)
		low := 5 + 50*r.Float64()
		high, on := low*(1.5+5*r.Float64()), max(4, int(float64(period)*(.15+.7*r.Float64())))
		shape := func(slot int) float64 {
			at := slot % period
			switch {
			case seed%3 == 0:
				return low + (high-low)*float64(at)/float64(period)
			case at < on:
				return high
			}
			return low
		}
		f := rhythm{}
		slots := 2*period + minOverlap
		for i := range slots + 1 {
			f.observe(time.Duration(i)*slotWidth, noisy(r, shape(i)))
		}
		if d := f.period - period; max(d, -d) > max(1, period/40) {
			t.Errorf("seed %d: found a period of %d slots, want %d", seed, f.period, period)
			continue
		}
		now := time.Duration(slots) * slotWidth
		got, want := f.maxLoad(now, now+time.Minute), 0.0
		for i := range 7 {
			want = max(want, shape(slots+i))
		}
		if on >= 6 && (got < .75*want-2 || got > 1.3*want+2) && seed%3 != 0 {
			t.Errorf("seed %d: period %d: foresees %.1f, want %.1f", seed, period, got, want)
		}
	}
}

// TestRhythmFindsNone: loads that do not repeat have no period: constant ones, slow rises, and
// steps at random, nearly all the time.
func TestRhythmFindsNone(t *testing.T) {
	known, all := 0, 0
	for seed := range uint64(9) {
		r := rand.New(rand.NewPCG(seed, 7))
		f, level := rhythm{}, 50.0
		for i := range 3000 {
			switch seed % 3 {
			case 1:
				level = 20 + float64(i)/50
			case 2:
				if r.IntN(60) == 0 {
					level = 10 + 100*r.Float64()
				}
			}
			f.observe(time.Duration(i)*slotWidth, noisy(r, level))
			if all++; f.period > 0 {
				known++
				if seed%3 < 2 {
					t.Fatalf("seed %d: a period of %d slots after %d", seed, f.period, i)
				}
			}
		}
	}
	if known > all/10 {
		t.Errorf("a period is known in %d of %d slots", known, all)
	}
}
