package replan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fleetplan"
)

// TestMaximalSets: the sets are those that fit and to which nothing could be added, as a look at
// all subsets finds them; of many, each that is listed is one.
func TestMaximalSets(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 1))
	for n := range 400 {
		p := &Problem{families: []Family{{Name: "a"}, {Name: "b"}, {Name: "c"}}}
		var all []int
		for v := range 1 + rng.IntN(7) {
			all = append(all, v)
			p.variants = append(p.variants, Variant{
				Model: names.ModelKey(fmt.Sprint(v)), Family: p.families[rng.IntN(3)].Name,
				Accuracy: rng.Float64(), Bytes: int64(rng.IntN(5)),
			})
		}
		memory := int64(rng.IntN(20))
		isMaximal := func(set []int) bool {
			bytes := int64(0)
			for _, v := range set {
				bytes += p.variants[v].Bytes
			}
			fits := memory == 0 || bytes <= memory
			return fits && !slices.ContainsFunc(all, func(v int) bool {
				return !slices.Contains(set, v) &&
					(memory == 0 || bytes+p.variants[v].Bytes <= memory)
			})
		}
		want := 0
		for bits := range 1 << len(all) {
			if isMaximal(slices.DeleteFunc(slices.Clone(all), func(v int) bool {
				return bits>>v&1 == 0
			})) {
				want++
			}
		}
		got := p.maximalSets(all, memory)
		if n%4 == 0 { // and those of many
			got, want = p.greedySets(all, max(memory, 4)), len(all)
			memory = max(memory, 4)
		}
		if len(got) != want {
			t.Errorf("%+v in %d: got %d sets, want %d", p.variants, memory, len(got), want)
		}
		for i, set := range got {
			if !isMaximal(set) || !slices.IsSorted(set) || n%4 != 0 &&
				slices.ContainsFunc(got[:i], func(o []int) bool { return slices.Equal(o, set) }) {
				t.Fatalf("%+v in %d: set %v is none, or there twice", p.variants, memory, set)
			}
		}
	}
	// Many variants: no more sets than the bound, and soon.
	p := &Problem{families: []Family{{Name: "a"}}}
	var all []int
	for v := range 200 {
		all = append(all, v)
		p.variants = append(p.variants, Variant{Family: "a", Bytes: int64(90 + v%17)})
	}
	if got := len(p.maximalSets(all, 900)); got != maxSets {
		t.Errorf("got %d sets of 200 variants, want %d", got, maxSets)
	}
}

// TestFleetProblemHoldsAll: what instances of a fleet to come would hold is what agents of such a
// fleet hold: as much as their memory has room for.
func TestFleetProblemHoldsAll(t *testing.T) {
	for fits, want := range map[int]int{0: 8, 2: 2} { // of 8 variants
		p := fleetOf(2, 1, 2, fits)
		for i := range p.agents {
			if fits > 0 { // a plan leaves room to load another
				p.agents[i].Memory += 100
			}
		}
		fleet, _ := NewFleetProblem(&Snapshot{
			Agents: p.agents, Families: p.families, Variants: p.variants, Latencies: p.latencies,
		}, p.demand)
		for i := range fleet.Types {
			fleet.Types[i].Min, fleet.Types[i].Max = 2, 2
		}
		plan, err := fleetplan.Solve(fleet)
		if err != nil {
			t.Fatal(err)
		}
		held := 0
		for _, h := range plan.Holdings {
			held += h.Count
			models := 0
			for _, variants := range h.Variants {
				models += len(variants)
			}
			if models != want {
				t.Errorf("room for %d: an instance holds %v, want %d variants", fits, h.Variants, want)
			}
		}
		if held != 2*len(fleet.Types) {
			t.Errorf("room for %d: %d instances hold something, want %d", fits, held,
				2*len(fleet.Types))
		}
	}
}
