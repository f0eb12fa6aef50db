package place

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// profile is that of a model that scales to so many workers, and loses this part of its queries/s
// at one way.
func profile(name string, m Machine, most float64, workers int, loses, bandwidth float64) *Profile {
	p := &Profile{Model: name, Bandwidth: bandwidth, Low: workers < m.Cores}
	for w := range m.Cores + 1 {
		row := make([]float64, m.Ways+1)
		for c := 1; c <= m.Ways; c++ {
			cache := 1 - loses*float64(m.Ways-c)/float64(m.Ways-1)
			row[c] = most * min(1, float64(w)/float64(workers)) * cache
		}
		p.QPS = append(p.QPS, row)
	}
	return p
}

var socket = Machine{Cores: 16, Ways: 11, Bandwidth: 128}

func TestAffinity(t *testing.T) {
	for _, tt := range []struct {
		name string
		a, b *Profile
		want float64
	}{
		// Ten ways lost between them, each of which costs a twentieth: of both, a half each.
		{"cache", profile("a", socket, 100, 16, .5, 1), profile("b", socket, 100, 16, .5, 1),
			1 - .5*11/10/2},
		{"no cache needed", profile("a", socket, 100, 16, 0, 1),
			profile("b", socket, 100, 16, 0, 1), 1},
		{"bandwidth", profile("a", socket, 100, 16, 0, 160), profile("b", socket, 9, 8, 0, 96), .5},
	} {
		if got := socket.Affinity(tt.a, tt.b); math.Abs(got-tt.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
		if socket.Affinity(tt.a, tt.b) != socket.Affinity(tt.b, tt.a) {
			t.Errorf("%s: affinity is not the same both ways", tt.name)
		}
	}
}

func TestBestSplit(t *testing.T) {
	a, b := profile("a", socket, 100, 8, 0, 1), profile("b", socket, 1000, 16, 0, 1)
	s := socket.BestSplit(a, b)
	if s.Workers != [2]int{8, 8} || s.QPS != [2]float64{100, 500} {
		t.Errorf("split %+v, want 8 workers each", s)
	}
	if got := s.Utilisation(a, b); got != 1.5 {
		t.Errorf("utilisation %v, want 1.5", got)
	}
	for _, s := range socket.GoodSplits(a, b) {
		if s.Workers[0] > 8 {
			t.Errorf("split %+v gives the first model more workers than it can use", s)
		}
	}
}

// TestSchedule: each server of a pair gives each of its models its own rate, and no partner is
// chosen that is served while another is not.
func TestSchedule(t *testing.T) {
	low := profile("low", socket, 100, 8, 0, 1)
	near, far := profile("near", socket, 1000, 16, 0, 1), profile("far", socket, 400, 16, .4, 1)
	profiles := []*Profile{low, near, far}
	servers := socket.Schedule(profiles, []float64{300, 500, 100})
	// One server with near serves 500 of it; the next has far, which is served then too; the third
	// has near again, for none is unserved.
	var partners []int
	served := make([]float64, 3)
	for _, s := range servers {
		partners = append(partners, s.Models[len(s.Models)-1])
		for k, i := range s.Models {
			served[i] += s.QPS[k]
		}
	}
	if len(servers) != 3 || partners[0] != 1 || partners[1] != 2 || partners[2] != 1 ||
		served[0] != 300 {
		t.Errorf("servers %+v, want low beside near, far and near", servers)
	}
	if got := len(socket.Schedule(profiles[:1], []float64{250})); got != 3 {
		t.Errorf("a low model alone has %d servers, want 3", got)
	}
	if got := len(socket.Schedule(profiles[1:], []float64{2500, 0})); got != 3 {
		t.Errorf("%d servers, want 3", got)
	}
}

func TestAdjust(t *testing.T) {
	a, b := profile("a", socket, 1600, 16, .2, 1), profile("b", socket, 1600, 16, .2, 1)
	now := func(workersA, workersB int, trafficA, trafficB, tailA, tailB float64) [2]Tenant {
		return [2]Tenant{
			{Profile: a, Workers: workersA, Ways: 6, Traffic: trafficA, Tail: tailA},
			{Profile: b, Workers: workersB, Ways: 5, Traffic: trafficB, Tail: tailB},
		}
	}
	alike := func(t [2]Tenant) [2]Tenant { t[1].Ways = t[0].Ways; return t }
	workers := func(t [2]Tenant) [2]int { return [2]int{t[0].Workers, t[1].Workers} }
	for _, tt := range []struct {
		name string
		now  [2]Tenant
		want [2]int
	}{
		{"within", now(8, 8, 500, 500, .9, .9), [2]int{8, 8}},
		{"late", now(4, 4, 550, 200, 1.2, .9), [2]int{8, 4}}, // 660 at 6 ways: 90 a worker
		{"late, and enough by its profile", now(9, 4, 100, 200, 1.1, .9), [2]int{9, 4}},
		{"both want more than there is", alike(now(8, 8, 1000, 1000, 1.5, 1.5)), [2]int{8, 8}},
		{"the more urgent one first", now(8, 8, 1000, 900, 2, 1.01), [2]int{11, 5}},
		{"what arrives before what waits", now(8, 8, 700, 200, 9, .5), [2]int{13, 3}},
		{"a tail at the target", now(8, 8, 700, 500, 1, .8), [2]int{8, 8}},
		{"more traffic than they serve", now(4, 4, 550, 200, .5, .9), [2]int{7, 4}},
		{"nothing arrives", now(8, 1, 0, 0, 0, 0), [2]int{8, 1}},
	} {
		if got, _ := socket.Adjust(tt.now); workers(got) != tt.want {
			t.Errorf("%s: workers %v, want %v", tt.name, workers(got), tt.want)
		}
	}
	// Down by one worker after three calm periods in a row, and no sooner.
	state := now(8, 8, 200, 700, .5, .9)
	for period := 1; period <= 6; period++ {
		next, changed := socket.Adjust(state)
		if want := 8 - period/3; next[0].Workers != want || changed != (period%3 == 0) {
			t.Errorf("period %d: %d workers, changed %v; want %d", period, next[0].Workers, changed,
				want)
		}
		state = next
	}
}

// TestAdjustKeeps: whatever happened, each tenant has a worker and a way, and both have no more
// than there are.
func TestAdjustKeeps(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "seed"), 2))
		m := Machine{Cores: 2 + rng.IntN(15), Ways: 2 + rng.IntN(10), Bandwidth: 100}
		var now [2]Tenant
		w, c := 1+rng.IntN(m.Cores-1), 1+rng.IntN(m.Ways-1)
		for i := range now {
			now[i] = Tenant{
				Profile: profile("x", m, 1000*rng.Float64(), 1+rng.IntN(m.Cores), rng.Float64(), 1),
				Workers: w, Ways: c,
			}
			w, c = m.Cores-w, m.Ways-c
		}
		for range 20 {
			for i := range now {
				now[i].Traffic, now[i].Tail = 1500*rng.Float64(), 2*rng.Float64()
			}
			next, changed := m.Adjust(now)
			if next[0].Workers < 1 || next[1].Workers < 1 ||
				next[0].Workers+next[1].Workers > m.Cores ||
				next[0].Ways < 1 || next[1].Ways < 1 || next[0].Ways+next[1].Ways != m.Ways {
				r.Fatalf("%+v", next)
			}
			if !changed && (next[0].Workers != now[0].Workers || next[0].Ways != now[0].Ways) {
				r.Fatalf("changed without saying so: %+v", next)
			}
			now = next
		}
	})
}
