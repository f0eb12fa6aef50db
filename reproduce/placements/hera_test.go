package placements

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/muster-serve/muster/leader/place"
)

var machine = place.Machine{Cores: 8, Ways: 4, Bandwidth: 100}

// profile is that of a model that scales to so many workers and needs no cache.
func profile(name string, most float64, workers int) *place.Profile {
	p := &place.Profile{Model: name, Bandwidth: 1, Low: workers < machine.Cores}
	for w := range machine.Cores + 1 {
		row := make([]float64, machine.Ways+1)
		for c := 1; c <= machine.Ways; c++ {
			row[c] = most * min(1, float64(w)/float64(workers))
		}
		p.QPS = append(p.QPS, row)
	}
	return p
}

func TestOneModel(t *testing.T) {
	profiles := []*place.Profile{
		profile("a", 100, 8), profile("b", 50, 4), profile("none", 0, 8),
	}
	servers := OneModel(profiles, []float64{250, 50, 10})
	if len(servers) != 4 || servers[2].Models[0] != 0 || servers[3].Models[0] != 1 {
		t.Errorf("%+v, want three servers of a and one of b", servers)
	}
}

// TestRandomPairs: whatever is drawn, all demand is served; with lowFirst no two models of high,
// and no two of low scalability share a server.
func TestRandomPairs(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "seed"), 1))
		var profiles []*place.Profile
		var demand []float64
		for range 1 + rng.IntN(6) {
			profiles = append(profiles, profile("m", 10+100*rng.Float64(), 2+rng.IntN(7)))
			demand = append(demand, 500*rng.Float64()*float64(rng.IntN(3)))
		}
		for _, lowFirst := range []bool{false, true} {
			served := make([]float64, len(profiles))
			for _, s := range RandomPairs(machine, profiles, demand, lowFirst, rng) {
				for k, i := range s.Models {
					served[i] += s.QPS[k]
				}
				if len(s.Models) == 2 && lowFirst &&
					profiles[s.Models[0]].Low == profiles[s.Models[1]].Low {
					r.Fatalf("%+v share a server", s.Models)
				}
			}
			for i, d := range demand {
				if served[i] < d*(1-1e-6) {
					r.Fatalf("%v of model %d is served, want %v", served[i], i, d)
				}
			}
		}
	})
}

func TestParties(t *testing.T) {
	p := profile("p", 100, 8)
	now := func(workersA, workersB int, tailA, tailB float64) [2]place.Tenant {
		return [2]place.Tenant{
			{Profile: p, Workers: workersA, Ways: 2, Tail: tailA},
			{Profile: p, Workers: workersB, Ways: 2, Tail: tailB},
		}
	}
	parties := &Parties{Machine: machine}
	step := func(what string, in [2]place.Tenant, workers, ways [2]int) [2]place.Tenant {
		t.Helper()
		out, changed := parties.Adjust(in)
		for i := range out {
			if out[i].Workers != workers[i] || out[i].Ways != ways[i] {
				t.Fatalf("%s: %+v, want workers %v, ways %v", what, out, workers, ways)
			}
		}
		if same := in[0].Workers == out[0].Workers && in[1].Workers == out[1].Workers &&
			in[0].Ways == out[0].Ways && in[1].Ways == out[1].Ways; changed == same {
			t.Fatalf("%s: changed is %v", what, changed)
		}
		return out
	}
	step("little slack, a core is free", now(4, 3, .97, .5), [2]int{5, 3}, [2]int{2, 2})
	step("it helped, none is free", now(5, 3, .96, .5), [2]int{6, 2}, [2]int{2, 2})
	step("it did not help: a way", now(6, 2, 1.2, .5), [2]int{6, 2}, [2]int{3, 1})
	step("enough", now(6, 2, .9, .5), [2]int{6, 2}, [2]int{2, 2})
	taken := step("much slack", now(6, 2, .7, .5), [2]int{6, 1}, [2]int{2, 2})
	taken[1].Tail = 1.1
	step("that broke a target", taken, [2]int{6, 2}, [2]int{2, 2})
	step("it holds", now(6, 2, .7, .5), [2]int{6, 2}, [2]int{2, 2})
	parties = &Parties{Machine: machine, Keeps: true}
	step("it takes nothing", now(6, 2, .7, .5), [2]int{6, 2}, [2]int{2, 2})
}

// TestPartiesKeeps: whatever happens, each tenant has a core and a way, and both no more than there
// are.
func TestPartiesKeeps(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "seed"), 1))
		p := &Parties{Machine: machine, Keeps: rng.IntN(2) == 0}
		now := [2]place.Tenant{{Workers: 4, Ways: 2}, {Workers: 4, Ways: 2}}
		for range 300 {
			for i := range now {
				now[i].Tail = 1.5 * rng.Float64()
			}
			now, _ = p.Adjust(now)
			a, b := now[0], now[1]
			if min(a.Workers, b.Workers, a.Ways, b.Ways) < 1 ||
				a.Workers+b.Workers > machine.Cores ||
				a.Ways+b.Ways > machine.Ways {
				r.Fatalf("%+v", now)
			}
		}
	})
}
