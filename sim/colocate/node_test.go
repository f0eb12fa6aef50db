package colocate

import (
	"math"
	"testing"
	"time"

	"github.com/muster-serve/muster/leader/place"
)

// named are profiles of the built-in ones.
func named(t *testing.T, models ...string) (m place.Machine, found [2]*place.Profile) {
	t.Helper()
	m, all, err := Synthetic()
	if err != nil || len(all) != 8 {
		t.Fatalf("%d profiles, %v", len(all), err)
	}
	for _, p := range all {
		for i, model := range models {
			if p.Model == model {
				found[i] = p
			}
		}
	}
	return m, found
}

// TestSwap: the loads of two models are swapped. Algorithm 3 has moved the workers within two
// seconds, the tails are soon back within their targets, and every query is answered.
func TestSwap(t *testing.T) {
	m, of := named(t, "DLRM-A", "WnD")
	const swap = 20 * time.Second
	loads := [2][2]float64{{.7, .2}, {.2, .7}}
	n := &Node{
		Machine: m, Profiles: of, Workers: [2]int{8, 8}, Ways: [2]int{5, 6}, Period: time.Second,
		Manager: m.Adjust, Seed: 1,
	}
	for i, p := range of {
		n.MostRates[i] = p.Most()
		n.Rates[i] = func(at time.Duration) float64 {
			if at < swap {
				return p.Most() * loads[0][i]
			}
			return p.Most() * loads[1][i]
		}
	}
	run := n.Simulate(40 * time.Second)
	before, after, moved, back := [2]int{}, [2]int{}, time.Duration(0), time.Duration(0)
	for _, p := range run.Periods {
		switch {
		case p.End <= swap:
			before = p.Workers
		case p.End <= 40*time.Second:
			if after == ([2]int{}) && p.Workers != before {
				after, moved = p.Workers, p.End+p.Moved-swap
			}
			if max(p.Tail[0], p.Tail[1]) > 1 {
				back = p.End - swap
			}
		}
	}
	if before[0] <= before[1] || after[1] <= before[1] || moved == 0 || moved > 2*time.Second {
		t.Errorf("workers %v, then %v after %v; want them moved within 2 s", before, after, moved)
	}
	if back > 4*time.Second {
		t.Errorf("tails are beyond their targets until %v after the swap", back)
	}
	if run.Served != run.Arrived || run.Arrived[0] < 1000 || run.Arrived[1] < 1000 {
		t.Errorf("%v queries arrived and %v were answered", run.Arrived, run.Served)
	}
	// Without a manager, the model whose load rises is late to the end.
	n.Manager, n.Workers, n.Ways = nil, before, [2]int{5, 6}
	if n.Simulate(40*time.Second).Sustains(swap, 40*time.Second) {
		t.Error("the swap needs no manager, so it shows nothing")
	}
}

// TestSaturated: a machine of which all workers always run serves what the profiles say, as much
// more as workers are busy less.
func TestSaturated(t *testing.T) {
	m, of := named(t, "DLRM-D", "NCF")
	for _, s := range m.GoodSplits(of[0], of[1]) {
		if s.Workers[0] != 12 || s.Ways[0] > 4 {
			continue
		}
		n := &Node{
			Machine: m, Profiles: of, Workers: s.Workers, Ways: s.Ways, Period: time.Second,
			Seed: 1,
		}
		for i := range of {
			n.MostRates[i] = 1.3 * s.QPS[i]
			n.Rates[i] = Steady(n.MostRates[i])
		}
		served := [2]int{}
		for _, p := range n.Simulate(40 * time.Second).Periods[10:40] {
			served[0], served[1] = served[0]+p.Served[0], served[1]+p.Served[1]
		}
		for i, qps := range s.QPS {
			if got := float64(served[i]) / 30; math.Abs(got*busyAtMost/qps-1) > .04 {
				t.Errorf("%+v: %s served %v queries/s, want %v", s, of[i].Model, got,
					qps/busyAtMost)
			}
		}
	}
}

// TestNodeRepeats: the same node and seed give the same run.
func TestNodeRepeats(t *testing.T) {
	m, of := named(t, "DLRM-B", "DIN")
	simulate := func(seed uint64) Period {
		n := &Node{
			Machine: m, Profiles: of, Workers: [2]int{8, 8}, Ways: [2]int{5, 6},
			Period:  time.Second,
			Manager: m.Adjust, Seed: seed,
			Rates:     [2]func(time.Duration) float64{Steady(40), Steady(300)},
			MostRates: [2]float64{40, 300},
		}
		return n.Simulate(5 * time.Second).Periods[4]
	}
	if a, b := simulate(1), simulate(1); a != b {
		t.Errorf("%+v and %+v", a, b)
	}
	if a, b := simulate(1), simulate(2); a == b {
		t.Error("the seed does not matter")
	}
}
