package place

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// worth is the most that counts serve, and the accuracy points of that: each class has one variant
// a level, and partitions have one service.
func worth(p *Program, counts []int) (share, points float64) {
	total := 0.0
	for k, c := range p.Classes {
		total += c.Rate
		left := c.Rate
		caps := make([]float64, len(p.Variants))
		for i, n := range counts {
			for _, part := range p.Choices[i].Partitions {
				for _, s := range part {
					if s.Class == k {
						caps[s.Variant] += float64(n) * s.Rate
					}
				}
			}
		}
		for {
			best := -1
			for v, c := range caps {
				if c > 0 && (best < 0 || p.Variants[v].Accuracy > p.Variants[best].Accuracy) {
					best = v
				}
			}
			if best < 0 {
				break
			}
			x := min(left, caps[best])
			share, points, caps[best] = share+x, points+x*p.Variants[best].Accuracy, 0
			left -= x
		}
	}
	if total == 0 {
		return 1, 0
	}
	if share > 0 {
		points /= share
	}
	return share / total, points
}

// brute calls do with all counts.
func brute(p *Program, do func(counts []int)) {
	counts := make([]int, len(p.Choices))
	left := make([]int, len(p.Types))
	for t := range left {
		left[t] = p.Types[t].Count
	}
	var rec func(i int)
	rec = func(i int) {
		if i == len(counts) {
			do(counts)
			return
		}
		t := p.Choices[i].Type
		for n := 0; n <= left[t]; n++ {
			counts[i] = n
			left[t] -= n
			rec(i + 1)
			left[t] += n
		}
		counts[i] = 0
	}
	rec(0)
}

func combinations(p *Program) float64 {
	by := make([]int, len(p.Types))
	for _, c := range p.Choices {
		by[c.Type]++
	}
	all := 1.0
	for t, k := range by {
		for i := range k {
			all *= float64(p.Types[t].Count+k-i) / float64(i+1)
		}
	}
	return all
}

func checkSolution(t interface{ Fatalf(string, ...any) }, p *Program, sol *Solution) {
	used := make([]int, len(p.Types))
	for i, n := range sol.Counts {
		if n < 0 {
			t.Fatalf("count %d is %d", i, n)
		}
		used[p.Choices[i].Type] += n
		for j, part := range p.Choices[i].Partitions {
			time := 0.0
			for k, s := range part {
				f := sol.Flow[i][j][k]
				if !(f >= 0) {
					t.Fatalf("flow %v", f)
				}
				if f > 0 {
					time += f / s.Rate
				}
			}
			if time > float64(n)*(1+1e-6)+1e-9 {
				t.Fatalf("choice %d: %v agents' time of %d agents", i, time, n)
			}
		}
	}
	for ty, n := range used {
		if n > p.Types[ty].Count {
			t.Fatalf("type %d: %d agents of %d", ty, n, p.Types[ty].Count)
		}
	}
	by := make([]float64, len(p.Classes))
	points, all, demand := 0.0, 0.0, 0.0
	for i, c := range p.Choices {
		for j, part := range c.Partitions {
			for k, s := range part {
				f := sol.Flow[i][j][k]
				by[s.Class] += f
				all += f
				points += f * p.Variants[s.Variant].Accuracy
			}
		}
	}
	for k, f := range by {
		if f > p.Classes[k].Rate*(1+1e-9) {
			t.Fatalf("class %d: flow %v of %v", k, f, p.Classes[k].Rate)
		}
		demand += p.Classes[k].Rate
	}
	if demand > 0 && math.Abs(all/demand-sol.Served) > 1e-9 {
		t.Fatalf("served %v, flow says %v", sol.Served, all/demand)
	}
	if all > 0 && math.Abs(points/all-sol.Accuracy) > 1e-6 {
		t.Fatalf("accuracy %v, flow says %v", sol.Accuracy, points/all)
	}
	if sol.Bound < sol.Accuracy-1e-9 {
		t.Fatalf("bound %v < accuracy %v", sol.Bound, sol.Accuracy)
	}
}

func TestSmallAgainstAll(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "seed"), 1))
		p := random(rng)
		if combinations(p) > 20_000 {
			return
		}
		sol, err := Solve(p, 20_000)
		if err != nil {
			r.Fatal(err)
		}
		checkSolution(r, p, sol)
		share, points := -1.0, 0.0
		least := math.MaxInt
		brute(p, func(counts []int) {
			s, a := worth(p, counts)
			agents := 0
			for _, n := range counts {
				agents += n
			}
			if p.Objective == FewestAgents {
				if s > share+1e-9 || s > share-1e-9 && (agents < least ||
					agents == least && a > points) {
					share, points, least = s, a, agents
				}
			} else if s > share+1e-9 || s > share-1e-9 && a > points {
				share, points = s, a
			}
		})
		if math.Abs(sol.Served-share) > 1e-7 || share > 1e-9 &&
			math.Abs(sol.Accuracy-points) > 1e-4 {
			r.Fatalf("served %v accuracy %v, best %v %v; proven %v\n%+v", sol.Served, sol.Accuracy,
				share, points, sol.Proven, p)
		}
		if p.Objective == FewestAgents && (sol.Agents != least || sol.LeastAgents > least) {
			r.Fatalf("%d agents (bound %d), best %d\n%+v", sol.Agents, sol.LeastAgents, least, p)
		}
	})
}

func random(rng *rand.Rand) *Program {
	p := &Program{Seed: 1}
	if rng.IntN(3) == 0 {
		p.Objective = FewestAgents
	}
	for t := range 1 + rng.IntN(3) {
		p.Types = append(p.Types, Type{Name: fmt.Sprint("t", t), Count: rng.IntN(5)})
	}
	families := 1 + rng.IntN(3)
	for q := range families {
		p.Classes = append(p.Classes, Class{
			Family: fmt.Sprint("f", q), Rate: float64(rng.IntN(100)),
		})
		for v := range 1 + rng.IntN(3) {
			p.Variants = append(p.Variants, Variant{fmt.Sprint("f", q, "v", v), fmt.Sprint("f", q),
				70 + 30*rng.Float64()})
		}
	}
	family := func(v int) int {
		var q int
		fmt.Sscanf(p.Variants[v].Family, "f%d", &q)
		return q
	}
	extreme := []float64{0, 1e-9, 1e9, 1e-300, 1e300}
	rate := func() float64 {
		if rng.IntN(20) == 0 {
			return extreme[rng.IntN(len(extreme))]
		}
		return 1 + rng.Float64()*40
	}
	if rng.IntN(2) == 0 {
		for t := range p.Types {
			for v := range p.Variants {
				if rng.IntN(4) > 0 {
					p.Choices = append(p.Choices, Choice{
						Type: t, Partitions: [][]Service{{{family(v), v, rate()}}},
					})
				}
			}
		}
		return p
	}
	for range 1 + rng.IntN(8) {
		c := Choice{Type: rng.IntN(len(p.Types))}
		for range 1 + rng.IntN(3) {
			v := rng.IntN(len(p.Variants))
			c.Partitions = append(c.Partitions, []Service{{family(v), v, rate()}})
		}
		p.Choices = append(p.Choices, c)
	}
	return p
}
