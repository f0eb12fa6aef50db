package place

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// TestRenting: for fewer agents, what is found is as good as for a program of so many, and worth no
// more than the bounds by the prices of any other counts.
func TestRenting(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "seed"), 2))
		p := random(rng)
		p.Objective = MostAccurate
		p.Classes[0].Rate++ // without any demand nothing is worth anything
		renting, err := NewCountRelaxation(p)
		if err != nil {
			r.Fatal(err)
		}
		draw := func() []int {
			counts := make([]int, len(p.Types))
			for t := range counts {
				counts[t] = rng.IntN(p.Types[t].Count + 1)
			}
			return counts
		}
		_, rest, prices := renting.Bound(draw())
		for range 3 {
			counts := draw()
			few := *p
			few.Types = nil
			for t, n := range counts {
				few.Types = append(few.Types, Type{p.Types[t].Name, n, 0})
			}
			want, err := Solve(&few, 5000)
			if err != nil {
				r.Fatal(err)
			}
			got := renting.Solve(counts, 5000)
			checkSolution(r, &few, got)
			if math.Abs(got.Served-want.Served) > 1e-7 ||
				want.Served > 1e-7 && math.Abs(got.Accuracy-want.Accuracy) > 1e-3 {
				r.Fatalf("%v: served %v accuracy %v, want %v and %v\n%+v", counts, got.Served,
					got.Accuracy, want.Served, want.Accuracy, p)
			}
			worth := renting.Worth(got.Served, got.Accuracy)
			others := rest
			for t, n := range counts {
				others += prices[t] * float64(n)
			}
			own, _, _ := renting.Bound(counts)
			if slack := 1e-12 * renting.Worth(1, 0); own < worth-slack || others < worth-slack {
				r.Fatalf("%v: worth %v, its bound %v, that by other counts %v\n%+v", counts, worth,
					own,
					others, p)
			}
		}
	})
}
