package replan

import (
	"math"
	"testing"
	"time"
)

// TestSafeLoadIsPlannedFor: where queries were late on agents that were expected to serve them, what
// agents hold is planned for as much more as the safe load is less.
func TestSafeLoadIsPlannedFor(t *testing.T) {
	demand := map[float64]float64{}
	for _, safe := range []float64{0, .5} {
		w := newWorld(4, 1, 3)
		w.safeLoad = safe
		for f := range w.rates {
			w.rates[f] = 10
		}
		w.elect(Memory{})
		w.run(2 * time.Minute)
		demand[safe] = w.answer.Placement.Families[0].Demand
	}
	if ratio := demand[.5] / demand[0]; math.Abs(ratio-2) > .2 {
		t.Errorf("queries/s planned for by safe load: %v", demand)
	}
}
