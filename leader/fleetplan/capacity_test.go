package fleetplan

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
)

// carrying is the problem of so many machines of c's that are to carry a multiple of the demand.
func (c *Capacity) carrying(multiple float64, counts []int) *Problem {
	p := c.problem.ScaledBy(multiple)
	p.MaxMultiple = 1
	for t, n := range counts {
		p.Types[t].Min, p.Types[t].Max = n, n
	}
	return p
}

// TestCapacity: machines carry the multiple of the demand that a Capacity says, at the target
// accuracies, and no more; machines more carry no less; and with one variant each it is the fluid
// limit of KAIROS, in multiples.
func TestCapacity(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	tested, bounded, fluids := 0, 0, 0
	for k := range tries(100) {
		variants := 1 + r.IntN(3)
		p := randomProblem(r, 1+r.IntN(3), 1+r.IntN(3), variants)
		if r.IntN(2) == 0 && variants > 1 {
			p.Families[0].TargetAccuracy = .93 + .07*r.Float64()
		}
		if r.IntN(3) == 0 {
			for i := range p.Types {
				p.Types[i].MemoryBytes = float64(1 + r.IntN(3))
			}
		}
		if r.IntN(4) == 0 {
			randomLayouts(r, p)
		}
		c, err := NewCapacity(p)
		if err != nil {
			t.Fatal(err)
		}
		counts := make([]int, len(p.Types))
		program := &fluid.Program{Unserved: p.Unserved}
		for i := range counts {
			counts[i] = r.IntN(6)
			program.Types = append(program.Types, fluid.Type{
				Name: names.LaneType(p.Types[i].Name), Count: counts[i],
			})
		}
		multiple := c.MaxMultiple(counts)
		if c.bounded {
			bounded++
		}
		if multiple > 0 && multiple < maxMultiple {
			tested++
			below := mustSolve(t, c.carrying(multiple*(1-1e-4), counts))
			above := mustSolve(t, c.carrying(multiple*(1+1e-3), counts))
			if below.Multiple < 1-1e-6 && !c.bounded || below.Multiple < .95 {
				t.Errorf("%d: carry %v times the demand, and the plan for a little less serves %v",
					k, multiple, below.Multiple)
			}
			if above.Multiple > 1-1e-6 && !c.bounded || above.Multiple > 1-1e-6 &&
				mustSolve(t, c.carrying(multiple*1.3, counts)).Multiple > 1-1e-6 {
				t.Errorf("%d: carry %v times the demand, and the plan for more serves it", k,
					multiple)
			}
			reachable := copyOf(p)
			for f := range reachable.Families {
				reachable.Families[f].TargetAccuracy = c.master.target[f]
			}
			if shortage(reachable, below) > 1e-6 {
				t.Errorf("%d: carry %v times the demand, at less than the target accuracy", k,
					multiple)
			}
		}
		more := append([]int(nil), counts...)
		more[r.IntN(len(more))]++
		if m := c.MaxMultiple(more); m < multiple*(1-1e-6) && !c.bounded || m < .9*multiple {
			t.Errorf("%d: %v carry %v times the demand, %v only %v", k, counts, multiple, more, m)
		}
		if variants > 1 || c.bounded {
			continue
		}
		fluids++
		total := 0.0
		for _, f := range p.Families {
			for _, b := range f.Bins {
				bin := fluid.Bin{Model: f.Variants[0].Model, BatchSize: b.BatchSize, Share: b.Rate}
				for i := range p.Types {
					bin.Latency = append(bin.Latency, time.Duration(math.Round(b.RunTime[0][i]*1e9)))
				}
				program.Bins = append(program.Bins, bin)
				total += b.Rate
			}
		}
		var solver fluid.Solver
		sol, err := solver.Solve(program)
		if err != nil {
			t.Fatal(err)
		}
		// What no type answers does not count here.
		if want := sol.Rate / total; want > 0 && math.Abs(multiple-want) > 1e-4*(1+want) {
			t.Errorf("%d: carry %v times the demand, and the fluid limit is %v times", k, multiple,
				want)
		}
	}
	t.Logf("%d problems, %d with memory for some or layouts, %d fluid", tested, bounded, fluids)
	if tested < 60 || bounded < 25 || fluids < 10 {
		t.Error("too few of a kind")
	}
}

// TestCapacityWithoutRoom: what no machine has memory for does not count, so that the others are
// planned for.
func TestCapacityWithoutRoom(t *testing.T) {
	bins := []Bin{{BatchSize: 1, Rate: 1, RunTime: [][]float64{{.1}}}}
	c, err := NewCapacity(&Problem{
		Types: []Type{{Name: "a", Capacity: 1, MemoryBytes: 2}},
		Families: []Family{
			{Name: "large", Variants: []Variant{{Model: "l", Accuracy: 1, SizeBytes: 3}}, Bins: bins},
			{Name: "small", Variants: []Variant{{Model: "s", Accuracy: 1, SizeBytes: 1}}, Bins: bins},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.MaxMultiple([]int{3}); math.Abs(got-30) > 1e-6 {
		t.Errorf("three machines carry %v times the demand, want 30", got)
	}
}
