package place

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// fleet is a synthetic program in which each agent holds one variant, like that of the Proteus
// paper. Its load is a part of what the agents could serve if each family had a part of them all.
func fleet(seed uint64, types, families, variants, agents int, load float64) *Program {
	rng := rand.New(rand.NewPCG(seed, 1))
	p := &Program{Seed: 1}
	for t := range types {
		p.Types = append(p.Types, Type{Name: fmt.Sprint("t", t), Count: agents / types})
	}
	for q := range families {
		share := 0.5 + rng.Float64()
		base := 20 * math.Exp(rng.Float64()*math.Log(25))
		speed := make([]float64, types)
		for t := range speed {
			speed[t] = math.Exp(rng.NormFloat64() * .6)
		}
		p.Classes = append(p.Classes, Class{Family: fmt.Sprint("f", q)})
		k := variants / families
		for j := range k {
			v := len(p.Variants)
			p.Variants = append(p.Variants, Variant{
				Model: fmt.Sprint("f", q, "-", j), Family: fmt.Sprint("f", q),
				Accuracy: 75 + 25*(float64(j)+rng.Float64())/float64(k),
			})
			for t := range types {
				rate := base * speed[t] *
					math.Exp(-2.5*float64(j)/float64(k)+rng.NormFloat64()*.15)
				p.Choices = append(p.Choices, Choice{
					Type: t, Layout: p.Variants[v].Model,
					Partitions: [][]Service{{{q, v, rate}}},
				})
				if j == 0 {
					p.Classes[q].Rate += load * share * rate * float64(agents/types) /
						float64(families)
				}
			}
		}
	}
	return p
}

// BenchmarkSolve measures the time that Solve takes at its usual number of steps, and how far its
// placement is from the bound.
func BenchmarkSolve(b *testing.B) {
	for _, c := range []struct {
		types, families, variants, agents int
	}{
		{3, 9, 45, 40}, {3, 9, 45, 1000}, {3, 9, 45, 10000}, {3, 17, 450, 160}, {8, 17, 450, 160},
		{12, 60, 2000, 10000},
	} {
		for _, load := range []float64{.5, .9, 1.5} {
			name := fmt.Sprintf("types=%d/variants=%d/agents=%d/load=%v", c.types, c.variants,
				c.agents, load)
			b.Run(name, func(b *testing.B) {
				p := fleet(3, c.types, c.families, c.variants, c.agents, load)
				var sol *Solution
				for range b.N {
					var err error
					if sol, err = Solve(p, DefaultSteps); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(sol.Bound-sol.Accuracy, "points-below-bound")
				b.ReportMetric(100*sol.Served, "%served")
				b.ReportMetric(float64(sol.Steps), "steps")
			})
		}
	}
}
