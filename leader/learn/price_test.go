package learn

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
)

// crowd is a fleet of so many lanes of four types and of 200 models, for all of which queries
// arrive. Each lane holds one of so many sets of about a quarter of the models; if there is one set,
// it has all.
func crowd(t testing.TB, lanes, sets int) *world {
	w := newWorld(t, 1)
	rng := rand.New(rand.NewPCG(1, 2))
	model := func(k int) leader.ModelID {
		return leader.ModelID{Name: fmt.Sprint("m", k), Version: 1}
	}
	held := make([][]leader.ModelID, sets)
	for s := range held {
		for k := range 200 {
			if sets == 1 || (k+s)%4 == 0 || rng.IntN(100) == 0 {
				held[s] = append(held[s], model(k))
			}
		}
	}
	var all []*leader.Member
	for i := range lanes {
		all = append(all, member(names.AgentName(fmt.Sprintf("w%04d", i)),
			names.LaneType(fmt.Sprint("t", i%4)), "", held[i%sets]...))
	}
	w.are(all...)
	for range 100 {
		w.now = w.now.Add(100 * time.Millisecond)
		for k := range 200 {
			w.arrives(model(k), 1+rng.IntN(largest))
		}
	}
	return w
}

// TestPricesOfManyModels: a fleet of many models has a limit and prices.
func TestPricesOfManyModels(t *testing.T) {
	w := crowd(t, 40, 1)
	w.look()
	// Queries take a quarter of the target in the mean, as long as nothing is known.
	want := 40 / (target.Seconds() * .3)
	if l := w.last.Limit; l < want*.9 || l > want*1.3 || len(w.State.prices) != 4 {
		t.Errorf("the limit is %v queries/s, with the prices %v; want about %v, and four", l,
			w.State.prices, want)
	}
}

// BenchmarkPrices computes limit and prices of 1,000 lanes. With one set they are as if all lanes of
// a type held the same.
func BenchmarkPrices(b *testing.B) {
	for _, sets := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprint(sets, " sets"), func(b *testing.B) {
			w := crowd(b, 1000, sets)
			w.look()
			b.ReportMetric(float64(len(w.fluidProgram(w.now).Types)), "classes")
			for b.Loop() {
				a := &leader.Advice{}
				if err := w.solvePrices(a, w.now); err != nil || !(a.Limit > 0) {
					b.Fatalf("the limit is %v: %v", a.Limit, err)
				}
			}
		})
	}
}
