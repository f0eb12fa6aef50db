package beat

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
)

// TestBins: the bins cover all sizes in order, and the pages that draw them can compute the same.
func TestBins(t *testing.T) {
	seen, last := map[int]bool{}, 0
	for size := -1; size <= 1100; size++ {
		bin := BinOf(size)
		want := 0
		switch {
		case size > 1000:
			want = 43
		case size > 8:
			want = int(math.Ceil(42*math.Log(float64(size)/8)/math.Log(125) - 1e-9))
		}
		if bin != want || bin < last {
			t.Fatalf("batch %d is in bin %d after %d, want %d", size, bin, last, want)
		}
		seen[bin], last = true, bin
	}
	if len(seen) < 40 || last != Bins-1 {
		t.Errorf("%d bins are used, up to %d of %d", len(seen), last, Bins)
	}
}

// TestQuantiles compares the histogram's quantiles with those of sorted samples.
func TestQuantiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var l Histogram
	if !math.IsNaN(l.Quantile(0.5)) {
		t.Error("the median of nothing is known")
	}
	var all []time.Duration
	for range 10_000 {
		d := time.Duration(float64(3*time.Millisecond) * math.Exp(rng.NormFloat64()))
		all = append(all, d)
		l.Add(d)
	}
	slices.Sort(all)
	for _, q := range []float64{0.01, 0.5, 0.99, 1} {
		want := float64(all[int(q*float64(len(all)))-1])
		if got := l.Quantile(q); math.Abs(got/want-1) > 0.031 {
			t.Errorf("quantile %v is %.0f ns, want %.0f ± 3 %%", q, got, want)
		}
	}
	for _, d := range []time.Duration{-1, 0, math.MaxInt64} {
		l.Add(d) // neither is out of the buckets
	}
}

var ncf = leader.ModelID{Name: "ncf", Version: 1}

// TestSample: at any rate there are at most MostShots shots, and they stand for all decisions.
func TestSample(t *testing.T) {
	var c *Counts
	for _, rate := range []int{7, 7, 100_000, 100_000, 300} {
		c = NewCounts(c)
		for i := range rate {
			c.Decided("g4dn.xlarge", ncf, 1+i%1000, false)
		}
		n := len(c.Shots)
		if n == 0 || n > MostShots || c.Decisions != rate {
			t.Fatalf("%d shots of %d decisions, counted %d", n, rate, c.Decisions)
		}
		if got := n * c.Weight(); math.Abs(float64(got-rate)) > 0.5*float64(n) {
			t.Errorf("%d shots of weight %d stand for %d decisions, want %d", n, c.Weight(), got,
				rate)
		}
	}
}

// TestMeter: percentiles are of the last 15 s, busy shares settle on what was in use, and what is
// gone is forgotten.
func TestMeter(t *testing.T) {
	m := NewMeter()
	lanes := map[names.AgentName]int{"a": 2}
	for range 60 {
		c := NewCounts(nil)
		for range 4 {
			c.Answered("a", 1, ncf, 125*time.Millisecond, 200*time.Millisecond)
		}
		c.Answered("a", 1<<30, ncf, time.Second, time.Second) // a lane that nobody has
		m.Take(c, time.Second, lanes)
	}
	if busy := m.Busy("a", 1); math.Abs(busy-0.5) > 0.01 || m.Busy("a", 0) != 0 {
		t.Errorf("lanes are %.3f and %.3f busy, want 0 and 0.5", m.Busy("a", 0), busy)
	}
	if p50, _ := m.Quantiles(ncf); math.Abs(p50/2e8-1) > 0.03 {
		t.Errorf("the median is %v ns, want 200 ms", p50)
	}
	for i := range 20 {
		m.Take(NewCounts(nil), time.Second, nil)
		if _, p99 := m.Quantiles(ncf); math.IsNaN(p99) != (i >= latencySeconds-1) {
			t.Errorf("%d s after the last answer the 99th percentile is %v", i+1, p99)
		}
	}
	if len(m.busy)+len(m.latency) != 0 || m.Busy("a", 1) != 0 {
		t.Errorf("it keeps %d agents and %d models that are gone", len(m.busy), len(m.latency))
	}
}
