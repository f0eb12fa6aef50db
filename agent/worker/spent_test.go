package worker

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/lateness"
)

// TestDivideWait: a wait for a lane is laid to what kept the lanes, if they would have had room
// without it; its parts add up to it in any case.
func TestDivideWait(t *testing.T) {
	const ms = time.Millisecond
	type parts = [lateness.Components]time.Duration
	for _, c := range []struct {
		name   string
		recent runSecond
		want   parts
	}{
		{"nothing ran", runSecond{}, parts{lateness.AwaitedLane: 600 * ms}},
		{"more than the lane can do", runSecond{spent: parts{lateness.RanAsProfiled: 5 * time.Second}},
			parts{lateness.AwaitedLane: 600 * ms}},
		{"half a quota", runSecond{
			spent: parts{lateness.RanAsProfiled: 2500 * ms, lateness.WasThrottled: 2500 * ms},
		}, parts{lateness.WasThrottled: 600 * ms}},
		{"two causes", runSecond{spent: parts{
			lateness.RanAsProfiled: 2000 * ms, lateness.WasThrottled: 2000 * ms,
			lateness.LackedCPU: 1000 * ms,
		}}, parts{lateness.WasThrottled: 600 * ms}},
		{"two causes, neither alone enough", runSecond{spent: parts{
			lateness.RanAsProfiled: 3600 * ms, lateness.WasThrottled: 1600 * ms,
			lateness.LackedCPU: 800 * ms,
		}}, parts{lateness.WasThrottled: 400 * ms, lateness.LackedCPU: 200 * ms}},
		{"too much, with or without", runSecond{
			spent: parts{lateness.RanAsProfiled: 5000 * ms, lateness.LackedCPU: 5000 * ms},
		}, parts{lateness.LackedCPU: 300 * ms, lateness.AwaitedLane: 300 * ms}},
		{"next to nothing lost", runSecond{
			spent: parts{lateness.RanAsProfiled: 4600 * ms, lateness.LackedCPU: 400 * ms},
		}, parts{lateness.AwaitedLane: 600 * ms}},
	} {
		var got parts
		divideWait(&got, 600*ms, &c.recent, 1)
		if got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	random := rand.New(rand.NewPCG(2, 59))
	for range 1000 {
		recent := runSecond{}
		for c := range recent.spent {
			recent.spent[c] = time.Duration(random.IntN(1000)) * ms
		}
		r := lateness.Record{}
		divideWait(&r.Parts, 600*ms, &recent, 1+random.IntN(4))
		if off := (r.Total() - 600*ms).Abs(); off > lateness.Components {
			t.Fatalf("%+v: parts of %v, want 600 ms", recent, r.Total())
		}
	}
}

// TestBaseline: what is faster counts soon, and a cause that lasts still shows after minutes.
func TestBaseline(t *testing.T) {
	const ms = time.Millisecond
	b := &runBaseline{}
	for range 100 {
		b.observe(64, 10*ms)
	}
	for range 500 {
		b.observe(64, 100*ms)
	}
	if got := b.observe(64, 100*ms); got < 10*ms || got > 14*ms {
		t.Errorf("after 500 runs of 10 times as long: %v, want nearly 10 ms", got)
	}
	for range 100 {
		b.observe(64, 5*ms)
	}
	if got := b.observe(64, 5*ms); got < 5*ms || got > 6*ms {
		t.Errorf("after 100 runs of 5 ms: %v, want nearly that", got)
	}
	if got := b.observe(1<<20, 7*ms); got != 7*ms {
		t.Errorf("the first run of a size: %v, want its own time", got)
	}
}
