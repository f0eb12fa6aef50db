package learn

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
)

// TestDepartsBySizeAndModel has one agent take 1.8 times as long on large batches of one model: what is
// told of it and of the others is right for small and large batches and for both models, and those
// that are as their type says have no type of their own.
func TestDepartsBySizeAndModel(t *testing.T) {
	for _, n := range []int{2, 8} {
		w := newWorld(t, 1)
		var all []*leader.Member
		for i := range n {
			all = append(all, member(names.AgentName(fmt.Sprint("w", i)), "x", "", m, other))
		}
		w.are(all...)
		factor := func(x *leader.Member, id leader.ModelID, batch int) float64 {
			if x.Name == "w0" && id == m && batch > 64 {
				return 1.8
			}
			return 1
		}
		for i := range 2000 {
			for _, x := range all {
				for _, id := range []leader.ModelID{m, other} {
					batch := 1 + w.random.IntN(largest)
					w.runs(x, id, batch, w.latency(batch, factor(x, id, batch)))
				}
			}
			if w.now = w.now.Add(10 * time.Millisecond); i%25 == 0 {
				w.look()
			}
		}
		w.look()
		if w.slow["w0"] != "x@w0" || n > 2 && len(w.slow) > 1 {
			t.Errorf("%d agents: these have types of their own: %v, want w0", n, w.slow)
		}
		for _, x := range all[:2] {
			typ := x.Type
			if own, ok := w.slow[x.Name]; ok {
				typ = own
			}
			for _, id := range []leader.ModelID{m, other} {
				told := w.advised[names.TableKey{Model: id.Key(), Type: typ}].Profile
				for _, batch := range []int{8, 40, 80, 100} {
					e := float64(told.Mean(batch))/(float64(linear(batch))*factor(x, id, batch)) - 1
					t.Logf("%d agents: %s, %s, batches of %d: told with an error of %+.1f %%", n, x.Name, id.Name,
						batch, 100*e)
					if math.Abs(e) > 0.11 { // 1/8 of 0.8 is what w0 adds to the mean of 8 agents
						t.Errorf("%d agents: %s, %s, batches of %d: told with an error of %+.1f %%, want at "+
							"most 11 %%", n, x.Name, id.Name, batch, 100*e)
					}
				}
			}
		}
	}
}

// other is a version of a model beside m.
var other = leader.ModelID{Name: "n", Version: 1}

// BenchmarkCompare has 1,000 agents of four types, a third of which depart, and 50 models compared and
// told.
func BenchmarkCompare(b *testing.B) {
	w := newWorld(b, 1)
	rng := rand.New(rand.NewPCG(1, 2))
	var all []*leader.Member
	for i := range 1000 {
		var holds []leader.ModelID
		for k := range 5 {
			holds = append(holds, leader.ModelID{Name: fmt.Sprint("m", (i+7*k)%50), Version: 1})
		}
		all = append(all, member(names.AgentName(fmt.Sprintf("w%04d", i)),
			names.LaneType(fmt.Sprint("t", i%4)), "", holds...))
	}
	w.are(all...)
	observe := func(n int) {
		for range n {
			for i, x := range all {
				batch, factor := 1+rng.IntN(largest), 1.0
				if i%3 == 0 {
					factor = 1.3
				}
				w.runs(x, x.Models[rng.IntN(5)].ModelID, batch, w.latency(batch, factor))
			}
			w.now = w.now.Add(interval)
		}
	}
	observe(100)
	w.look()
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		observe(1)
		b.StartTimer()
		w.look()
	}
	b.ReportMetric(float64(len(w.slow)), "own-types")
}
