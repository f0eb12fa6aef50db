package load

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestMeter: two lanes, of which one is busy half of the time with queries of 10 ms.
func TestMeter(t *testing.T) {
	var m Meter
	if r := m.Measure(0, Totals{Lanes: 2}, 0); r != (Report{}) {
		t.Errorf("before any time has passed: %+v", r)
	}
	at := func(s int) Totals {
		return Totals{
			Lanes: 2, Busy: time.Duration(s) * time.Second / 2, Answered: uint64(49 * s),
			Failed: uint64(s),
		}
	}
	for s := 1; s < 30; s++ {
		r := m.Measure(time.Duration(s)*time.Second, at(s), 500*time.Millisecond)
		near := func(what string, got, want float64) {
			if math.Abs(got-want) > 1e-9 {
				t.Errorf("%s after %d s: %v, want %v", what, s, got, want)
			}
		}
		near("busy", r.Busy, 0.25)
		near("utilization", r.Utilization, 0.75)
		near("queries/s", r.QPS, 50)
		near("errors/s", r.EPS, 1)
	}
	idle := m.Measure(60*time.Second, at(29), -time.Second)
	if want := 0.25 * math.Exp(-3.1); math.Abs(idle.Utilization/want-1) > 0.1 {
		t.Errorf("after 31 idle seconds: %+v, want a utilization of about %v", idle, want)
	}
}

// TestMeterAverages: however often it is asked, a meter says the same of a constant load, and
// nothing that no load could be.
func TestMeterAverages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m Meter
		lanes := rapid.IntRange(1, 8).Draw(t, "lanes")
		share := rapid.Float64Range(0, 1).Draw(t, "busy")
		now := time.Duration(0)
		for range rapid.IntRange(1, 50).Draw(t, "times") {
			now += time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "step"))
			r := m.Measure(now, Totals{
				Lanes: lanes, Busy: time.Duration(share * float64(lanes) * float64(now)),
				Answered: uint64(now / time.Millisecond),
			}, 0)
			if now == 0 {
				continue
			}
			if r.Busy < 0 || r.Busy > 1 || r.Utilization < r.Busy || r.QPS < 0 || r.EPS != 0 {
				t.Fatalf("%+v", r)
			}
			if now > time.Second && (math.Abs(r.Busy-share) > 1e-3) {
				t.Fatalf("busy %v after %v, want %v", r.Busy, now, share)
			}
		}
	})
}
