package sim

import (
	"fmt"
	"slices"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/sim/workload"
)

// FluidLimit solves the fluid program of the pool and the models' mix, with the latencies that the
// policy knows. The solution's Rate is the highest mean rate, in queries/s of all models, that the
// pool could serve if no query were split; 0 means that it cannot serve enough of the queries at
// any rate.
func FluidLimit(models []Model, pool Pool) (*fluid.Solution, error) {
	return fluidLimit(models, pool, false)
}

// fluidLimit is FluidLimit or, with splits, the limit with queries split as the models allow.
func fluidLimit(models []Model, pool Pool, splits bool) (*fluid.Solution, error) {
	types := typeOrder(models, pool)
	p := fluid.Program{Bins: bins(models, types), Unserved: 1}
	for _, name := range types {
		p.Types = append(p.Types, fluid.Type{Name: names.LaneType(name), Count: pool.Of(name)})
	}
	for i := range p.Bins {
		p.Bins[i].Splits = splits && slices.ContainsFunc(models,
			func(m Model) bool { return m.Splits && m.Name == string(p.Bins[i].Model) })
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

// bins returns the bins of the models' batch sizes, with the mean latencies that the policy knows.
func bins(models []Model, types []string) []fluid.Bin {
	var weights float64
	for i := range models {
		weights += models[i].weight()
	}
	var all []fluid.Bin
	for i := range models {
		m := &models[i]
		known := make([]fluid.Latencies, len(types))
		for t, name := range types {
			if l := m.known(name); l != nil {
				known[t] = l
			}
		}
		all = append(
			all,
			fluid.Bins(names.ModelKey(m.Name), m.weight()/weights, Distribution(m.BatchSizes),
				m.QoSTarget,
				known)...)
	}
	return all
}

// Distribution converts batch sizes to a distribution of package profiles.
func Distribution(sizes *workload.BatchSizes) profiles.Distribution {
	pmf := sizes.PMF()
	d := make(profiles.Distribution, len(pmf))
	for i, p := range pmf {
		d[i] = profiles.Share{BatchSize: p.BatchSize, Share: p.P}
	}
	return d
}
