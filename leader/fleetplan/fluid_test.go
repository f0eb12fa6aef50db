package fleetplan

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
)

// randomProblem makes a problem of some types and families, each of some variants, with rates that
// some machines serve.
func randomProblem(r *rand.Rand, types, families, variants int) *Problem {
	p := &Problem{Unserved: []float64{0, 0.01, 0.05}[r.IntN(3)]}
	speed := make([]float64, types)
	for t := range types {
		speed[t] = math.Exp(r.NormFloat64())
		p.Types = append(p.Types, Type{
			Name: string(rune('a' + t)), PriceUSDPerHour: .1 + r.Float64()*speed[t], Capacity: 1,
			Max: r.IntN(6),
		})
	}
	for f := range families {
		family := Family{Name: string(rune('f' + f))}
		cost := make([]float64, variants)
		for v := range variants {
			accuracy := 1 - .1*float64(v)*r.Float64()
			cost[v] = math.Exp(-float64(v) * r.Float64())
			family.Variants = append(family.Variants, Variant{
				Model:    names.ModelKey(string(rune('f'+f)) + "/" + string(rune('1'+v))),
				Accuracy: accuracy, SizeBytes: 1,
			})
		}
		for b := range 1 + r.IntN(6) {
			bin := Bin{BatchSize: 10 * (b + 1), Rate: 20 * r.ExpFloat64()}
			for v := range variants {
				times := make([]float64, types)
				for t := range types {
					s := .002 * float64(b+1) * cost[v] / speed[t] * math.Exp(.3*r.NormFloat64())
					if r.IntN(8) > 0 && s < .015 {
						times[t] = s
					}
				}
				bin.RunTime = append(bin.RunTime, times)
			}
			family.Bins = append(family.Bins, bin)
		}
		p.Families = append(p.Families, family)
	}
	return p
}

// TestEqualsFluid: a fleet without variants serves everything up to the fluid limit of KAIROS, and
// no more.
func TestEqualsFluid(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	tested := 0
	for range 400 {
		p := randomProblem(r, 1+r.IntN(4), 1+r.IntN(3), 1)
		program := &fluid.Program{Unserved: p.Unserved}
		total := 0.0
		for i := range p.Types {
			p.Types[i].Min = p.Types[i].Max
			program.Types = append(program.Types, fluid.Type{
				Name: names.LaneType(p.Types[i].Name), Count: p.Types[i].Max,
			})
		}
		for _, f := range p.Families {
			for _, b := range f.Bins {
				bin := fluid.Bin{Model: f.Variants[0].Model, BatchSize: b.BatchSize, Share: b.Rate}
				for i := range p.Types {
					bin.Latency = append(bin.Latency,
						time.Duration(math.Round(b.RunTime[0][i]*1e9)))
					b.RunTime[0][i] = bin.Latency[i].Seconds()
				}
				program.Bins = append(program.Bins, bin)
				total += b.Rate
			}
		}
		var solver fluid.Solver
		limit, err := solver.Solve(program)
		if err != nil {
			t.Fatal(err)
		}
		if limit.Rate == 0 {
			continue
		}
		tested++
		for _, factor := range []float64{1 - 1e-6, 1 + 1e-3} {
			scaled := *p
			scaled.Families = nil
			for _, f := range p.Families {
				f.Bins = append([]Bin(nil), f.Bins...)
				for b := range f.Bins {
					f.Bins[b].Rate *= limit.Rate / total * factor
				}
				scaled.Families = append(scaled.Families, f)
			}
			plan, err := Solve(&scaled)
			if err != nil {
				t.Fatal(err)
			}
			if all := plan.Served > 1-1e-7; all != (factor < 1) {
				t.Errorf("at %v of the fluid limit of %.6g queries/s: serves %.9f of %+v", factor,
					limit.Rate, plan.Served, p)
			}
		}
	}
	t.Logf("%d problems with a limit above 0", tested)
	if tested < 100 {
		t.Errorf("only %d problems have a limit above 0", tested)
	}
}
