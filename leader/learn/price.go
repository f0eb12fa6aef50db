package learn

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/profiles"
)

const (
	// pricedOver is the time over which the models' arrival rates are averaged for the prices.
	pricedOver = 30 * time.Second
	// mostBins bounds the bins of batch sizes that a model has in the fluid program.
	mostBins = 100
	// leastPriceChange is the least relative change of a price that is told. A price below noPrice
	// counts as 0: it is a rounding error of the solver.
	leastPriceChange, noPrice = 0.02, 1e-9
)

// price solves the fluid program for the pool and the recent demand, and puts limit and prices into
// a.
func (s *State) price(a *leader.Advice, now time.Time) error {
	p := s.program(now)
	if len(p.Bins) == 0 || len(p.Types) == 0 {
		return nil
	}
	solution, err := s.solver.Solve(p)
	if err != nil {
		return fmt.Errorf("prices are not known: %w", err)
	}
	a.Limit, a.Priced = solution.Rate, true
	if solution.Rate > 0 && !samePrices(s.prices, solution.Prices) {
		s.prices = solution.Prices
		a.Prices = slices.Clone(s.prices)
	}
	return nil
}

// program is the fluid program of the pool and the recent demand.
func (s *State) program(now time.Time) *fluid.Program {
	p := &fluid.Program{Unserved: 1}
	index := map[names.LaneType]int{} // into p.Types, by type
	holds := map[names.TableKey]bool{}
	for k := range s.pool.Members {
		m := &s.pool.Members[k]
		if m.Draining {
			continue
		}
		for _, part := range m.Groups() {
			if part.Draining {
				continue
			}
			typ := s.typeOf(m.Member, &part)
			i, ok := index[typ]
			if !ok {
				i = len(p.Types)
				index[typ] = i
				p.Types = append(p.Types, fluid.Type{Name: typ})
			}
			p.Types[i].Count += part.Lanes
		}
		held(m, func(id leader.ModelID, part *leader.Part) {
			holds[names.TableKey{Model: id.Key(), Type: s.typeOf(m.Member, part)}] = true
		})
	}
	for i := range s.pool.Models {
		m := &s.pool.Models[i]
		monitor := s.monitors[m.ModelID]
		if monitor == nil {
			continue
		}
		rate := monitor.Rate(now, pricedOver)
		if rate <= 0 {
			continue
		}
		p.Unserved = min(p.Unserved, 1-m.Share)
		for _, x := range binned(monitor.Distribution(), m.Largest) {
			bin := fluid.Bin{
				Model: m.Key(), BatchSize: x.BatchSize, Share: x.Share * rate, Splits: m.Splits,
				Latency: make([]time.Duration, len(p.Types)),
			}
			for t := range p.Types {
				// The fastest variant that the type holds says how much it can serve.
				for k := range s.pool.Models {
					v := &s.pool.Models[k]
					if v != m && (v.Family == "" || v.Family != m.Family) {
						continue
					}
					key := names.TableKey{Model: v.Key(), Type: p.Types[t].Name}
					if told, ok := s.told[key]; ok && holds[key] {
						// Usual queries are in time, and all of them take the lanes' time.
						l := told.table.Load(bin.BatchSize)
						if told.table.Mean(bin.BatchSize) <= m.QoSTarget &&
							(bin.Latency[t] == 0 || l < bin.Latency[t]) {
							bin.Latency[t] = l
						}
					}
				}
			}
			p.Bins = append(p.Bins, bin)
		}
	}
	p.Unserved = min(max(p.Unserved, 0), 0.5)
	return p
}

// binned reduces the distribution to at most mostBins batch sizes, counting neighbouring sizes as
// the largest of them.
func binned(d profiles.Distribution, largest int) (bins profiles.Distribution) {
	width := (largest + mostBins - 1) / mostBins
	end := 0
	for _, x := range d {
		if x.BatchSize > end {
			end = (x.BatchSize + width - 1) / width * width
			bins = append(bins, profiles.Share{})
		}
		bin := &bins[len(bins)-1]
		bin.BatchSize, bin.Share = x.BatchSize, bin.Share+x.Share
	}
	return bins
}

// samePrices reports whether the lists have the same types and no price or service time differs by
// more than leastPriceChange.
func samePrices(a, b []fluid.Price) bool {
	near := func(x, y float64) bool {
		return math.Abs(x-y) <= max(noPrice, leastPriceChange*max(x, y))
	}
	return slices.EqualFunc(a, b, func(p, q fluid.Price) bool {
		return p.Type == q.Type && near(p.PerMs, q.PerMs) &&
			near(float64(p.Service), float64(q.Service))
	})
}
