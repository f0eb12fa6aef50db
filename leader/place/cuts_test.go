package place

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestCuts: no whole counts are worth more than the bound with cuts, in the region of all choices
// and in those where some keep their counts; and it is much nearer to what they are worth than the
// bound without cuts.
func TestCuts(t *testing.T) {
	gap, with := 0.0, 0.0
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 2))
		p := random(rng)
		if combinations(p) > 5000 {
			continue
		}
		s := newSearch(newScaledProgram(p))
		if len(s.m.choices) == 0 {
			continue
		}
		var free []int
		for i := range s.m.choices {
			c := &s.m.choices[i]
			if room := min(c.most, s.m.types[c.typ]-s.used[c.typ]); rng.IntN(3) == 0 {
				s.changeCount(i, rng.IntN(room+1))
			} else {
				free = append(free, i)
			}
		}
		s.set(s.n)
		if len(free) == 0 {
			continue
		}
		r := s.newRegion(free)
		lo, hi := make([]int, len(free)), make([]int, len(free))
		for f, i := range free {
			hi[f] = min(s.m.choices[i].most, r.capacity[s.m.choices[i].typ])
		}
		_, loose, _ := r.solveRelaxation(lo, hi)
		_, bound, _ := r.relaxWithCuts(lo, hi)

		best := math.Inf(-1)
		b := &branchAndBound{region: r}
		counts := make([]int, len(free))
		var each func(f int)
		each = func(f int) {
			if f == len(free) {
				b.best = math.Inf(-1)
				b.compareWithBest(counts)
				best = max(best, b.best)
				return
			}
			left := &r.capacity[s.m.choices[free[f]].typ]
			for ; counts[f] <= hi[f] && *left >= 0; counts[f]++ {
				each(f + 1)
				*left--
			}
			*left += counts[f]
			counts[f] = 0
		}
		each(0)
		if bound < best-1e-6*max(1, math.Abs(best)) {
			t.Fatalf("seed %d: counts are worth %v, bound %v\n%+v", seed, best, bound, p)
		}
		gap += (loose - best) / served
		with += (bound - best) / served
	}
	t.Logf("bounds are %.4f too high without cuts, %.4f with them", gap, with)
	if with > gap*2/3 {
		t.Errorf("bounds are %.4f too high without cuts, and %.4f with them", gap, with)
	}
}
