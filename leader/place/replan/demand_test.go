package replan

import (
	"math"
	"testing"
	"time"
)

func TestDemand(t *testing.T) {
	var d Demand
	at := time.Unix(100, 0)
	if d.Last() != 0 || d.Likely(at, time.Minute) != 0 || d.Known(at) != 0 {
		t.Error("the zero value has a demand")
	}
	arrived := uint64(1000) // before the first look: no rate
	d.Count(at, arrived)
	step := func(rate float64, seconds int) {
		for range 4 * seconds {
			at = at.Add(time.Second / 4)
			arrived += uint64(rate / 4)
			d.Count(at, arrived)
		}
	}
	step(40, 30)
	step(100, 1)
	step(40, 10)
	// 100 in a second are explained by chance at 80 queries/s.
	if d.Last() != 40 || d.Likely(at, 20*time.Second) != 80 || math.Abs(d.Mean()-40) > 1 {
		t.Errorf("got last %v, likely %v, mean %v; want 40, 80, about 40", d.Last(),
			d.Likely(at, 20*time.Second), d.Mean())
	}
	if got := d.Likely(at, 5*time.Second); got != 40 {
		t.Errorf("what is likely by 5 s, without the burst: got %v, want 40", got)
	}
	if got := d.Known(at).Seconds(); got < 40 || got > 41 {
		t.Errorf("known for %v s, want 40-41", got)
	}
	arrived = 3 // the counter begins anew
	d.Count(at, arrived)
	step(20, 2)
	if d.Last() != 20 {
		t.Errorf("after the count began anew: got %v, want 20", d.Last())
	}
	// Looks that are seconds apart.
	at, arrived = at.Add(5*time.Second), arrived+50
	d.Count(at, arrived)
	if d.Last() != 10 {
		t.Errorf("50 queries in 5 s: got %v", d.Last())
	}
	step(8, 600)
	if len(d.windows) > 500 || d.Likely(at, time.Minute) != 8 {
		t.Errorf("%d windows are kept, %v is likely", len(d.windows),
			d.Likely(at, time.Minute))
	}
}
