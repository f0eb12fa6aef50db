package balancers

import (
	"math"
	"testing"
	"time"
)

// picks returns how often each server is picked in n queries at a time.
func picks(w *Weighted, now time.Duration, n int) []int {
	got := make([]int, len(w.reported))
	for range n {
		got[w.Pick(now)]++
	}
	return got
}

func near(t *testing.T, when string, got []int, want ...float64) {
	t.Helper()
	for i, n := range got {
		if math.Abs(float64(n)-want[i]) > 2 {
			t.Errorf("%s: %v, want about %v", when, got, want)
			return
		}
	}
}

// TestWeighted: weights count after the blackout and until they expire, a server without one has
// the mean, and errors cost.
func TestWeighted(t *testing.T) {
	const s = time.Second
	w := NewWeighted(3, 0)
	report := func(at time.Duration) {
		w.Reported(at, 0, 0.5, 100, 0)  // 200
		w.Reported(at, 1, 0.5, 50, 0)   // 100
		w.Reported(at, 2, 0, 100, 0)    // nothing
		w.Reported(at, 2, 0.5, 0, 0)    // nothing
		w.Reported(at, 1, 0.25, 50, 12) // 102
	}
	near(t, "at first", picks(w, 0, 300), 100, 100, 100)
	report(s)
	near(t, "in the blackout", picks(w, 10*s, 300), 100, 100, 100)
	weights := []float64{200, 50 / (0.25 + 0.24), 0}
	weights[2] = (weights[0] + weights[1]) / 2
	sum := weights[0] + weights[1] + weights[2]
	for i := range weights {
		weights[i] *= 3000 / sum
	}
	near(t, "before the next update", picks(w, 10*s+s/2, 300), 100, 100, 100)
	near(t, "after it", picks(w, 11*s, 3000), weights...)
	near(t, "long after", picks(w, s+expiration-1, 3000), weights...)
	near(t, "when all have expired", picks(w, s+expiration+s, 300), 100, 100, 100)
	report(200 * s)
	near(t, "in the blackout after that", picks(w, 209*s, 300), 100, 100, 100)
}

// TestWeightedEvenly: picks of a server are spread: never does a server with a third of the weight
// get two in a row.
func TestWeightedEvenly(t *testing.T) {
	w := NewWeighted(2, 0)
	for at := range 2 {
		w.Reported(time.Duration(at)*blackout, 0, 0.5, 100, 0)
		w.Reported(time.Duration(at)*blackout, 1, 0.5, 50, 0)
	}
	last := 0
	for i := range 3000 {
		server := w.Pick(blackout)
		if server == 1 && last == 1 {
			t.Fatalf("pick %d: the slower server twice in a row", i)
		}
		last = server
	}
}
