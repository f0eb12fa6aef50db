package replan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/place"
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
// fleet hold: as much as their memory has room for, and partitions where these are known.
func TestFleetProblemHoldsAll(t *testing.T) {
	for fits, want := range map[int]int{0: 1, 2: 28} { // all, or each two of 8 variants
		p := fleetOf(2, 1, 2, fits)
		parted := place.Layout{Partitions: []place.Partition{
			{Models: p.agents[0].Available[:1], Lanes: 1, Cores: 1},
			{Models: p.agents[0].Available[4:5], Lanes: 1, Cores: 1},
		}}
		for i := range parted.Partitions {
			key := names.TableKey{
				Model: parted.Partitions[i].Models[0], Type: parted.LaneType(i, "t0"),
			}
			p.latencies[key] = flat(time.Millisecond)
		}
		layouts := map[names.LaneType][]place.Layout{"t0": {parted}}
		for i := range p.agents {
			if fits > 0 { // a plan leaves room to load another
				p.agents[i].Memory += 100
			}
		}
		fleet := NewFleetProblem(&Snapshot{
			Agents: p.agents, Families: p.families, Variants: p.variants, Latencies: p.latencies,
			Layouts: layouts,
		}, p.demand)
		count := []int{-1, 0} // and the partitions
		for _, c := range fleet.Program.Choices {
			count[c.Type]++
		}
		if count[0] != want || count[1] != want {
			t.Errorf("room for %d: %d and %d layouts on all lanes, want %d", fits, count[0],
				count[1], want)
		}
	}
}
