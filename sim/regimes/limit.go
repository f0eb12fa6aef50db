package regimes

import (
	"cmp"
	"fmt"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/sim"
)

// qosShare is the share of queries that should be in time.
const qosShare = 0.99

// solve solves the fluid program of the regime's lanes and the given models, with lanes of one type
// that hold different models as types of their own. latency is what a model takes on a type.
// Infeasible models are left out.
func (r *Regime) solve(models []Model, splits bool,
	latency func(m *Model, laneType string) match.Latencies) (*fluid.Solution, error) {
	p := fluid.Program{Unserved: 1 - qosShare}
	for i := range r.Lanes {
		l := &r.Lanes[i]
		p.Types = append(p.Types, fluid.Type{
			Name: names.LaneType(fmt.Sprintf("%s-%d", l.Type, i)), Count: l.Count,
		})
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
		on := make([]fluid.Latencies, len(r.Lanes))
		for k := range r.Lanes {
			if l := &r.Lanes[k]; l.holds(m) {
				on[k] = latency(m, l.Type)
			}
		}
		bins := fluid.Bins(names.ModelKey(m.Name), cmp.Or(m.Weight, 1)/weights,
			sim.Distribution(m.BatchSizes), m.QoSTarget, on)
		for b := range bins {
			bins[b].Splits = splits && m.Splits
		}
		p.Bins = append(p.Bins, bins...)
	}
	s, err := new(fluid.Solver).Solve(&p)
	if err != nil {
		return nil, fmt.Errorf("fluid limit of regime %s: %w", r.Name, err)
	}
	return s, nil
}

func trueLatency(m *Model, laneType string) match.Latencies { return m.Latencies[laneType] }

// Limit is the fluid limit, in queries/s of all feasible models together.
func (r *Regime) Limit() (float64, error) {
	s, err := r.solve(r.Models, false, trueLatency)
	if err != nil {
		return 0, err
	}
	return s.Rate, nil
}

// rate is the mean arrival rate of all models together, in queries/s.
func (r *Regime) rate() (float64, error) {
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

// alone returns, by model, the share of its queries that the lanes could answer in time if no other
// model had any, by the fluid limit. By it the shares that models get in overload are compared.
func (r *Regime) alone() ([]float64, error) {
	rate, err := r.rate()
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
		s, err := r.solve(r.Models[i:i+1], false, trueLatency)
		if err != nil {
			return nil, err
		}
		shares[i] = min(1, s.Rate/(rate*cmp.Or(m.Weight, 1)/weights))
	}
	return shares, nil
}

// advice is the solution that leaders and gateways know, by the type of lanes: the price of a type
// whose lanes hold different models is the mean of theirs.
func (r *Regime) advice() (limit float64, prices []match.Price, err error) {
	s, err := r.solve(r.Models, true, func(m *Model, laneType string) match.Latencies {
		return m.known(laneType)
	})
	if err != nil {
		return 0, nil, err
	}
	lanes := map[string]float64{}
	for i := range r.Lanes {
		lanes[r.Lanes[i].Type] += float64(r.Lanes[i].Count)
	}
	at := map[string]int{}
	for i, p := range s.Prices {
		l := &r.Lanes[i]
		k, ok := at[l.Type]
		if !ok {
			k, at[l.Type] = len(prices), len(prices)
			prices = append(prices, match.Price{Type: names.LaneType(l.Type)})
		}
		share := float64(l.Count) / lanes[l.Type]
		prices[k].PerMs += share * p.PerMs
		prices[k].Service += max(0, scale(p.Service, share))
	}
	return s.Rate, prices, nil
}
