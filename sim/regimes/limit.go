package regimes

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/sim"
)

// qosShare is the share of queries that should be in time.
const qosShare = 0.99

// A laneClass is lanes that are alike in the fluid program.
type laneClass struct {
	fluid.Type
	lanes *Lanes
}

// laneClasses are the regime's lanes as they differ in fact.
func (r *Regime) laneClasses() (all []laneClass) {
	for i := range r.Lanes {
		l := &r.Lanes[i]
		name := names.LaneType(fmt.Sprintf("%s-%d", l.Type, i))
		all = append(all, laneClass{fluid.Type{Name: name, Count: l.Count}, l})
	}
	return all
}

// knownClasses are the regime's lanes as leaders tell them apart: by type and by what they hold.
func (r *Regime) knownClasses() (all []laneClass) {
	several := map[names.LaneType]bool{}
	for i := range r.Lanes {
		l := &r.Lanes[i]
		t := fluid.Type{Name: names.LaneType(l.Type), Count: l.Count}
		for m := range r.Models {
			if l.holdModel(&r.Models[m]) {
				t.Models = append(t.Models, names.ModelKey(r.Models[m].Name))
			}
		}
		slices.Sort(t.Models)
		at := slices.IndexFunc(all, func(c laneClass) bool {
			return c.Name == t.Name && slices.Equal(c.Models, t.Models)
		})
		if at >= 0 {
			all[at].Count += t.Count
			continue
		}
		several[t.Name] = slices.ContainsFunc(all,
			func(c laneClass) bool { return c.Name == t.Name })
		all = append(all, laneClass{t, l})
	}
	for i := range all {
		if !several[all[i].Name] {
			all[i].Models = nil
		}
	}
	return all
}

// solve solves the fluid program of classes of lanes and models. latency is what a model takes on
// lanes. Infeasible models are left out.
func (r *Regime) solve(classes []laneClass, models []Model, splits bool,
	latency func(m *Model, l *Lanes) match.Latencies) (*fluid.Solution, error) {
	p := fluid.Program{Unserved: 1 - qosShare}
	for i := range classes {
		p.Types = append(p.Types, classes[i].Type)
	}
	weights := 0.0
	for i := range models {
		if !models[i].Infeasible {
			weights += cmp.Or(models[i].Weight, 1)
		}
	}
	for i := range models {
		m := &models[i]
		if m.Infeasible {
			continue
		}
		on := make([]fluid.Latencies, len(classes))
		for k := range classes {
			if l := classes[k].lanes; l.holdModel(m) {
				on[k] = latency(m, l)
			}
		}
		bins := fluid.Bins(names.ModelKey(m.Name), cmp.Or(m.Weight, 1)/weights,
			sim.Distribution(m.BatchSizes), m.QoSTarget, on)
		for b := range bins {
			bins[b].Splits = splits && m.Splits
		}
		p.Bins = append(p.Bins, bins...)
	}
	s, err := (&fluid.Solver{MaxWork: fluid.PatientWork}).Solve(&p)
	if err != nil {
		return nil, fmt.Errorf("fluid limit of regime %s: %w", r.Name, err)
	}
	return s, nil
}

func trueLatency(m *Model, l *Lanes) match.Latencies { return l.slowDown(m.Latencies[l.Type]) }

func knownLatency(m *Model, l *Lanes) match.Latencies { return m.knownLatencies(l.Type) }

// Limit is the fluid limit, in queries/s of all feasible models together.
func (r *Regime) Limit() (float64, error) {
	if r.limit == 0 {
		s, err := r.solve(r.laneClasses(), r.Models, false, trueLatency)
		if err != nil {
			return 0, err
		}
		r.limit = s.Rate
	}
	return r.limit, nil
}

// arrivalRate is the mean arrival rate of all models together, in queries/s.
func (r *Regime) arrivalRate() (float64, error) {
	limit, err := r.Limit()
	if err != nil {
		return 0, err
	}
	feasible, all := 0.0, 0.0
	for i := range r.Models {
		w := cmp.Or(r.Models[i].Weight, 1)
		all += w
		if !r.Models[i].Infeasible {
			feasible += w
		}
	}
	return r.Load * limit * all / feasible, nil
}

// sharesAlone returns, by model, the share of its queries that the lanes could answer in time if no
// other model had any, by the fluid limit. By it the shares that models get in overload are
// compared.
func (r *Regime) sharesAlone() ([]float64, error) {
	rate, err := r.arrivalRate()
	if err != nil {
		return nil, err
	}
	weights := 0.0
	for i := range r.Models {
		weights += cmp.Or(r.Models[i].Weight, 1)
	}
	shares := make([]float64, len(r.Models))
	for i := range r.Models {
		m := &r.Models[i]
		if m.Infeasible {
			continue
		}
		s, err := r.solve(r.laneClasses(), r.Models[i:i+1], false, trueLatency)
		if err != nil {
			return nil, err
		}
		shares[i] = min(1, s.Rate/(rate*cmp.Or(m.Weight, 1)/weights))
	}
	return shares, nil
}

// fluidAdvice is the solution that leaders and gateways know.
func (r *Regime) fluidAdvice() (limit float64, prices []match.Price, err error) {
	if r.known == nil {
		if r.known, err = r.solve(r.knownClasses(), r.Models, true, knownLatency); err != nil {
			return 0, nil, err
		}
	}
	return r.known.Rate, r.known.Prices, nil
}
