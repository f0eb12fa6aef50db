package sim

import (
	"fmt"
	"time"

	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/leader/match"
)

// FluidLimit solves the fluid program of the pool and the models' mix, by the
// latencies that the policy knows: what the pool could serve at most in the
// mean, in queries/s of all models, and the prices of its instances' time. A
// rate of 0 says that the pool cannot serve enough of the queries at any rate.
func FluidLimit(models []Model, pool Pool) (*fluid.Solution, error) {
	types := typeOrder(models, pool)
	p := fluid.Program{Bins: bins(models, types), Unserved: 1}
	for _, name := range types {
		p.Types = append(p.Types, fluid.Type{Name: name, Count: pool.Of(name)})
	}
	for i := range models {
		p.Unserved = min(p.Unserved, 1-models[i].qosShare())
	}
	s, err := new(fluid.Solver).Solve(&p)
	if err != nil {
		return nil, fmt.Errorf("fluid limit of pool %s: %w", pool, err)
	}
	return s, nil
}

// binWidth is the width of the bins of batch sizes: the grid on which the
// published latencies were measured.
const binWidth = 10

// bins are the models' batch sizes in steps of binWidth, with their mean latency
// on each type as the policy knows it; 0 where the largest of the bin is too slow.
func bins(models []Model, types []string) []fluid.Bin {
	var weights float64
	for i := range models {
		weights += models[i].weight()
	}
	var all []fluid.Bin
	for i := range models {
		m := &models[i]
		known := make([]match.Latencies, len(types))
		for t, name := range types {
			known[t] = m.known(name)
		}
		pmf := m.BatchSizes.PMF()
		for len(pmf) > 0 {
			step := (pmf[0].BatchSize + binWidth - 1) / binWidth
			n := 1
			for n < len(pmf) && pmf[n].BatchSize <= step*binWidth {
				n++
			}
			bin := fluid.Bin{Model: m.Name, BatchSize: pmf[n-1].BatchSize, Latency: make([]time.Duration, len(types))}
			for _, p := range pmf[:n] {
				bin.Share += p.P
			}
			for t, l := range known {
				if l == nil || l.Mean(bin.BatchSize) > m.QoSTarget {
					continue
				}
				var sum float64
				for _, p := range pmf[:n] {
					sum += p.P * float64(l.Mean(p.BatchSize))
				}
				bin.Latency[t] = time.Duration(sum / bin.Share)
			}
			bin.Share *= m.weight() / weights
			all = append(all, bin)
			pmf = pmf[n:]
		}
	}
	return all
}
