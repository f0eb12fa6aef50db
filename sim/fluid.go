package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/workload"
)

// FluidLimit solves the fluid program of the pool and the models' mix, with the latencies that the
// policy knows. The solution's Rate is the highest mean rate, in queries/s of all models, that the
// pool could serve if no query were split; 0 means that it cannot serve enough of the queries at
// any rate.
func FluidLimit(models []Model, pool Pool) (*fluid.Solution, error) {
	var parts []instanceGroup
	for _, name := range typeOrder(models, pool) {
		parts = append(parts, instanceGroup{typ: name, count: pool.Of(name)})
	}
	return solveFluid(models, parts, false, false)
}

// FluidLimit is as the function of that name, of what each instance holds. With splits, queries are
// split as the models allow; with late, models may miss their QoS targets, as for a leader, see
// [fluid.Bin.Late].
func (c *Config) FluidLimit(splits, late bool) (*fluid.Solution, error) {
	types, parts := typeOrder(c.Models, c.Pool), c.poolParts()
	slices.SortStableFunc(parts, func(a, b instanceGroup) int {
		return slices.Index(types, a.typ) - slices.Index(types, b.typ)
	})
	return solveFluid(c.Models, parts, splits, late)
}

// solveFluid solves the fluid program of the models' mix on parts of a pool.
func solveFluid(models []Model, parts []instanceGroup, splits, late bool) (*fluid.Solution, error) {
	var weights float64
	p := fluid.Program{Unserved: 1}
	for i := range models {
		weights += models[i].weightOrDefault()
		p.Unserved = min(p.Unserved, 1-models[i].qosShare())
	}
	for i := range parts {
		typ := fluid.Type{Name: names.LaneType(parts[i].typ), Count: parts[i].count}
		if slices.ContainsFunc(parts, func(o instanceGroup) bool {
			return o.typ == parts[i].typ && !slices.Equal(o.holds, parts[i].holds)
		}) {
			typ.Models = parts[i].heldModels(models)
		}
		p.Types = append(p.Types, typ)
	}
	for i := range models {
		m := &models[i]
		known := make([]fluid.Latencies, len(parts))
		for k := range parts {
			if l := parts[k].bestLatencies(m); l != nil {
				known[k] = l
			}
		}
		bins := fluid.Bins(names.ModelKey(m.Name), m.weightOrDefault()/weights,
			Distribution(m.BatchSizes),
			m.QoSTarget, known)
		for b := range bins {
			bins[b].Splits = splits && m.Splits
			if late {
				bins[b].Late = lateLatencies(m, &bins[b], known)
			}
		}
		p.Bins = append(p.Bins, bins...)
	}
	s, err := (&fluid.Solver{MaxWork: fluid.PatientWork}).Solve(&p)
	if err != nil {
		return nil, fmt.Errorf("fluid limit: %w", err)
	}
	return s, nil
}

// lateLatencies are the mean latencies of a bin that no part serves in time; 0 if late queries are
// rejected, and nil if some part serves it in time.
func lateLatencies(m *Model, bin *fluid.Bin, known []fluid.Latencies) []time.Duration {
	if slices.ContainsFunc(bin.Latency, func(l time.Duration) bool { return l > 0 }) {
		return nil
	}
	late := make([]time.Duration, len(known))
	for k, l := range known {
		if l != nil && !m.RejectLate {
			late[k] = l.Mean(bin.BatchSize)
		}
	}
	return late
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
