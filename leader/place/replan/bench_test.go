package replan

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/place"
)

// BenchmarkSolve plans fleets of 100 and more agents, which hold one variant each at first, and
// have memory for a few. It reports by how many points of accuracy a better plan may exceed the
// plan found.
func BenchmarkSolve(b *testing.B) {
	for _, c := range []struct {
		types, agents, families, fits int
	}{{12, 10, 3, 5}, {12, 100, 3, 5}, {12, 10, 10, 6}, {4, 25, 20, 10}} {
		b.Run(fmt.Sprintf("%dx%dx%d", c.types, c.agents, c.families), func(b *testing.B) {
			gap := 0.0
			for range b.N {
				plan := fleetOf(c.types, c.agents, c.families, c.fits).Solve()
				if plan.Served < 1-1e-6 {
					b.Errorf("served %v, want all", plan.Served)
				}
				gap = plan.Bound - plan.Accuracy
			}
			b.ReportMetric(gap, "points-gap")
		})
	}
}

// fleetOf is the problem of so many types of so many agents each, which have memory for fits
// variants, and of families of four variants.
func fleetOf(types, agents, families, fits int) *Problem {
	p := &Problem{
		only: map[names.AgentName]bool{}, latencies: map[names.TableKey]Latencies{},
		steps: place.DefaultSteps,
	}
	var all []names.ModelKey
	for f := range families {
		name := fmt.Sprintf("f%d", f)
		p.families = append(p.families, Family{Name: name, QoSTarget: time.Second})
		p.rate = append(p.rate, float64(types*agents)*8/float64(families))
		for v := range 4 {
			m := names.ModelKey(fmt.Sprintf("%s-v%d/1", name, v))
			all = append(all, m)
			p.variants = append(p.variants, Variant{
				Model: m, Family: name, Accuracy: 1 - .02*float64(v), Bytes: 100, Load: time.Second,
			})
			for t := range types {
				key := names.TableKey{Model: m, Type: names.LaneType(fmt.Sprint("t", t))}
				p.latencies[key] = flat(time.Duration(100+17*t+5*f) * time.Millisecond >> v)
			}
		}
	}
	p.demand = append(p.demand, p.rate...)
	for t := range types {
		for i := range agents {
			p.agents = append(p.agents, Agent{
				Name: names.AgentName(fmt.Sprint(t, "-", i)), Type: names.LaneType(fmt.Sprint("t", t)),
				Lanes: 1, Memory: int64(100 * fits), Available: all,
			})
			p.current = append(p.current, place.NewLayout(all[(t+i)%len(all)]))
		}
	}
	return p
}
