package balancers

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const ms = time.Millisecond

// TestHotCold: the fastest of the cold servers is chosen, and if all are hot the one with the
// fewest requests in flight.
func TestHotCold(t *testing.T) {
	p := NewPrequal(100, 1)
	// most of what was heard lately is 2 in flight, so more is hot
	for range recentAnswers {
		p.Probed(0, 99, ProbeAnswer{InFlight: 2})
	}
	p.pool = nil
	p.Probed(0, 0, ProbeAnswer{InFlight: 9, Latency: ms})
	p.Probed(0, 1, ProbeAnswer{InFlight: 2, Latency: 7 * ms})
	p.Probed(0, 2, ProbeAnswer{InFlight: 1, Latency: 5 * ms})
	p.Probed(0, 3, ProbeAnswer{InFlight: 8, Latency: ms})
	p.Probed(0, 4, ProbeAnswer{InFlight: 0, Latency: 9 * ms})
	for i := range p.pool {
		p.pool[i].uses = 9
	}
	if best, worst := p.rank(); p.pool[best].server != 2 || p.pool[worst].server != 0 {
		t.Errorf("best is %+v, worst %+v, want 2 and 0", p.pool[best], p.pool[worst])
	}
	server, probes := p.Pick(ms)
	if server != 2 {
		t.Errorf("chose %d, want 2", server)
	}
	if distinct := slices.Compact(slices.Sorted(slices.Values(probes))); len(distinct) != 3 {
		t.Errorf("probes %v, want three servers", probes)
	}
	// The pick has added a request to server 2 and removed the oldest answer, 0; the next removes
	// the worst, 3.
	for i := range p.pool {
		if a := &p.pool[i]; a.server == 2 {
			if a.InFlight != 2 {
				t.Errorf("server 2 has %d in flight, want 2", a.InFlight)
			}
			a.InFlight = 7
		} else if a.server == 0 {
			t.Error("the oldest answer was not removed")
		}
	}
	p.pool = slices.DeleteFunc(p.pool, func(a pooledAnswer) bool { return a.InFlight <= 2 })
	if server, _ := p.Pick(2 * ms); server != 2 {
		t.Errorf("of the hot servers it chose %d, want 2 with 7 in flight", server)
	}
	if len(p.pool) != 1 || p.pool[0].server != 2 {
		t.Errorf("pool %+v, want the worst removed", p.pool)
	}
	p.Probed(3*ms, 5, ProbeAnswer{})
	p.Pick(3*ms + oldest)
	if len(p.pool) != 0 {
		t.Errorf("pool %+v, want all answers dropped by age", p.pool)
	}
}

// TestReuse: answers may be used as often as the paper's formula says.
func TestReuse(t *testing.T) {
	for servers, want := range map[int]float64{
		32:  2 / (0.5*3 - 1),
		64:  2 / (0.75*3 - 1),
		400: 2 / (0.96*3 - 1),
		1e6: 2 / (3 - 1.0),
	} {
		p, sum := NewPrequal(servers, 1), 0
		const n = 20_000
		for range n {
			sum += p.uses()
		}
		if mean := float64(sum) / n; math.Abs(mean/want-1) > 0.01 {
			t.Errorf("%d servers: %v uses, want %v", servers, mean, want)
		}
	}
}

// TestPool: whatever is picked and answered, servers exist, the pool has at most its size and one
// answer a server, and no answer is used up or too old.
func TestPool(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		servers := rapid.IntRange(1, 60).Draw(t, "servers")
		p := NewPrequal(servers, rapid.Uint64().Draw(t, "seed"))
		now := time.Duration(0)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now += time.Duration(rapid.Int64Range(0, int64(300*ms)).Draw(t, "time"))
			if rapid.Bool().Draw(t, "pick") {
				server, probes := p.Pick(now)
				if server < 0 || server >= servers || len(probes) != min(probeRate, servers) {
					t.Fatalf("chose %d of %d, probes %v", server, servers, probes)
				}
				for _, a := range p.pool {
					if now-a.at >= oldest || a.uses < 1 {
						t.Fatalf("pool at %v: %+v", now, a)
					}
				}
			} else {
				p.Probed(now, rapid.IntRange(0, servers-1).Draw(t, "server"), ProbeAnswer{
					rapid.IntRange(0, 20).Draw(t, "in flight"),
					time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "latency")),
				})
			}
			of := map[int]bool{}
			for _, a := range p.pool {
				of[a.server] = true
			}
			if len(p.pool) > p.size || len(of) != len(p.pool) {
				t.Fatalf("pool %+v, want at most %d answers of different servers", p.pool, p.size)
			}
		}
	})
}

// TestLatencyInFlight: a server answers with the median of latencies near its requests in flight.
func TestLatencyInFlight(t *testing.T) {
	var s ProbedServer
	if a := s.Answer(3); a != (ProbeAnswer{InFlight: 3}) {
		t.Errorf("before the first latency: %+v", a)
	}
	for i := range 3 * latencies { // of which the last 16 count, 33 to 48 ms
		s.Ended(1, time.Duration(i+1)*ms)
	}
	s.Ended(5, 100*ms)
	for inFlight, want := range map[int]time.Duration{
		0: 41 * ms, 1: 41 * ms, 2: 41 * ms, 3: 41 * ms, 4: 100 * ms, 5: 100 * ms, 50: 100 * ms,
	} {
		if a := s.Answer(inFlight); a != (ProbeAnswer{inFlight, want}) {
			t.Errorf("%d in flight: %+v, want %v", inFlight, a, want)
		}
	}
}
