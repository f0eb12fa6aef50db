package choose

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// TestHistoryOutlivesChooser: a chooser that takes over what another has seen of a load that
// repeats needs the same from then on, whenever it takes over and however long nobody has looked
// meanwhile; one that takes over nothing does not.
func TestHistoryOutlivesChooser(t *testing.T) {
	const step = 2 * time.Second
	differing := map[bool]int{}
	asked := 0
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 56))
		period := time.Duration(5+20*r.Float64()) * time.Minute
		load := square(period, period*10/22)
		if seed%2 == 1 {
			load = saw(period)
		}
		config := Config{Headroom: 1.15, Calm: 5 * time.Minute}
		first, heir, amnesiac := New(config), New(config), New(config)
		from := 3*period + time.Duration(r.Float64()*float64(period))
		gap := time.Duration(r.IntN(120)) * time.Second
		var loads []float64
		var told time.Duration // when it was
		for at := time.Duration(0); at < from+2*period; at += step {
			rate := noisy(r, load(at))
			if first.Observe(at, rate); at < from {
				var age time.Duration
				if loads, age = first.History(at); age > 0 {
					told = at - age
				}
				continue
			}
			if at < from+gap {
				continue
			}
			term := at - from - gap // the time of those that begin with it
			if term < step {
				heir.SetHistory(term, loads, at-told)
			}
			heir.Observe(term, rate)
			amnesiac.Observe(term, rate)
			want, _ := first.Needed(at)
			asked++
			for _, c := range []*Chooser{heir, amnesiac} {
				if got, _ := c.Needed(term); math.Abs(got-want) > .15*want {
					differing[c == heir]++
				}
			}
		}
	}
	if of := float64(differing[true]) / float64(asked); of > .05 {
		t.Errorf("the heir needs something else in %.1f %% of the time", 100*of)
	}
	if of := float64(differing[false]) / float64(asked); of < .2 {
		t.Errorf("who knows nothing needs something else in only %.1f %% of the time", 100*of)
	}
	t.Logf("of %d times the heir differed in %d, who knows nothing in %d", asked, differing[true],
		differing[false])
}

// TestHistoryOfOthers: what no leader can have seen is not taken over.
func TestHistoryOfOthers(t *testing.T) {
	for _, tt := range []struct {
		name  string
		loads []float64
		age   time.Duration
	}{
		{"nothing", nil, 0},
		{"not a number", []float64{1, math.NaN()}, 0},
		{"infinite", []float64{math.Inf(1)}, 0},
		{"negative", []float64{-1}, 0},
		{"of the future", []float64{1}, -time.Second},
		{"of yesterday", []float64{1}, 24 * time.Hour},
	} {
		c := New(Config{Headroom: 1, Calm: time.Minute})
		c.SetHistory(0, tt.loads, tt.age)
		if loads, _ := c.History(0); len(loads) > 0 {
			t.Errorf("%s: takes over %v", tt.name, loads)
		}
	}
	c := New(Config{Headroom: 1, Calm: time.Minute})
	long := make([]float64, 10*maxPeriod)
	c.SetHistory(0, long, 0)
	if loads, _ := c.History(0); len(loads) > 2*maxPeriod+1 {
		t.Errorf("takes over %d slots", len(loads))
	}
}
