package learn

import (
	"fmt"
	"maps"
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
	// Chosen: at 10 queries/s their noise is then 6 %, and prices follow a change of the load
	// within a minute.
	pricedOver = 30 * time.Second
	// A model has at most maxBins bins of batch sizes in the fluid program; fewer, but not less
	// than minBins, if there are more than maxAllBins bins of all models, so that the program is
	// solved in a tenth of a second, or maxLatencies latencies by bin and class of lanes: 16 MB.
	maxBins, minBins, maxAllBins, maxLatencies = 100, 5, 2000, 2_000_000
	// minPriceChange is the least relative change of a price that is told. A price below noPrice
	// counts as 0: it is a rounding error of the solver.
	minPriceChange, noPrice = 0.02, 1e-9
)

// solvePrices solves the fluid program for the pool and the recent demand, and puts limit and
// prices into a.
func (s *State) solvePrices(a *leader.Advice, now time.Time) error {
	p := s.fluidProgram(now)
	if len(p.Bins) == 0 || len(p.Types) == 0 {
		return nil
	}
	solution, err := s.solver.Solve(p)
	if err != nil {
		return fmt.Errorf("prices are not known: %w", err)
	}
	a.Limit, a.Priced = solution.Rate, true
	if p.Kept = p.KeptFor(s.qosTargets()); len(p.Kept) > 0 {
		// Only the limit is of this program: where little may be long, no lane's time has a price.
		blocked, err := s.solver.Solve(p)
		if err != nil {
			return fmt.Errorf("the limit is not known: %w", err)
		}
		a.Limit = blocked.Rate
	}
	a.Unmet = s.unmetOf(solution, now)
	if solution.Rate > 0 && !samePrices(s.prices, solution.Prices) {
		s.prices = solution.Prices
		a.Prices = slices.Clone(s.prices)
	}
	return nil
}

// A modelDemand is a model for which queries have arrived lately.
type modelDemand struct {
	*leader.HeldModel
	rate     float64 // queries/s
	variants []int   // the models that may answer for it, as indices into the pool's
}

// recentDemand returns the models for which queries have arrived lately, in the pool's order.
func (s *State) recentDemand(now time.Time) (all []modelDemand) {
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
		d := modelDemand{HeldModel: m, rate: rate}
		for k := range s.pool.Models {
			if v := &s.pool.Models[k]; v == m || v.Family != "" && v.Family == m.Family {
				d.variants = append(d.variants, k)
			}
		}
		all = append(all, d)
	}
	return all
}

// A laneClass is the lanes of a type that hold the same of the models that can answer queries of
// late.
type laneClass struct {
	typ   int // into the types' names
	holds []bool
}

// laneClasses returns the classes of lanes that do not drain, and the names of their types. It adds
// them to p.
func (s *State) laneClasses(p *fluid.Program, asked []modelDemand) (all []laneClass,
	types []names.LaneType) {
	wanted := make([]bool, len(s.pool.Models))
	for i := range asked {
		for _, v := range asked[i].variants {
			wanted[v] = true
		}
	}
	models := make(map[leader.ModelID]int, len(wanted))
	for i := range s.pool.Models {
		models[s.pool.Models[i].ModelID] = i
	}
	index, typeIndex := map[string]int{}, map[names.LaneType]int{}
	for k := range s.pool.Members {
		m := &s.pool.Members[k]
		if m.Draining {
			continue
		}
		for _, part := range m.Groups() {
			if part.Draining {
				continue
			}
			holds := make([]bool, len(wanted))
			key := make([]byte, len(wanted)) // a byte for each model, and the type
			heldBy(m, &part, func(id leader.ModelID) {
				if i, ok := models[id]; ok && wanted[i] {
					holds[i], key[i] = true, 1
				}
			})
			typ := s.typeOf(m.Member, &part)
			t, ok := typeIndex[typ]
			if !ok {
				t = len(types)
				typeIndex[typ], types = t, append(types, typ)
			}
			i, ok := index[string(key)+string(typ)]
			if !ok {
				i = len(all)
				index[string(key)+string(typ)] = i
				all = append(all, laneClass{t, holds})
				p.Types = append(p.Types, fluid.Type{Name: typ})
			}
			p.Types[i].Count += part.Lanes
		}
	}
	s.nameClasses(p, all, len(types))
	return all, types
}

// nameClasses sets the models that tell classes apart of the types that have several.
func (s *State) nameClasses(p *fluid.Program, all []laneClass, types int) {
	count := make([]int, types)
	for i := range all {
		count[all[i].typ]++
	}
	for i := range all {
		if count[all[i].typ] == 1 {
			continue
		}
		p.Types[i].Models = []names.ModelKey{}
		for k, held := range all[i].holds { // the pool's models are by key
			if held {
				p.Types[i].Models = append(p.Types[i].Models, s.pool.Models[k].Key())
			}
		}
	}
}

// qosTargets are the QoS targets of the pool's models.
func (s *State) qosTargets() map[names.ModelKey]time.Duration {
	all := make(map[names.ModelKey]time.Duration, len(s.pool.Models))
	for i := range s.pool.Models {
		all[s.pool.Models[i].Key()] = s.pool.Models[i].QoSTarget
	}
	return all
}

// unmetOf returns the models that miss their targets whatever the leader decides, by key. One
// counts for a while after it was the last time, so that it does not come and go with the mix of
// its queries.
func (s *State) unmetOf(solution *fluid.Solution, now time.Time) []leader.Unmet {
	for _, u := range solution.Unmet {
		s.unmet[u.Model] = unmet{u.Share, now}
	}
	var all []leader.Unmet
	for i := range s.pool.Models {
		id := s.pool.Models[i].ModelID
		if u, ok := s.unmet[id.Key()]; ok && now.Sub(u.at) < pricedOver {
			all = append(all, leader.Unmet{Model: id, Share: u.share})
		}
	}
	maps.DeleteFunc(s.unmet, func(_ names.ModelKey, u unmet) bool {
		return now.Sub(u.at) >= pricedOver
	})
	return all
}

// fluidProgram is the fluid program of the pool and the recent demand.
func (s *State) fluidProgram(now time.Time) *fluid.Program {
	p := &fluid.Program{Unserved: 1}
	asked := s.recentDemand(now)
	classes, types := s.laneClasses(p, asked)
	bins := maxBins
	if n := len(classes) * len(asked); n > 0 {
		bins = min(max(min(maxLatencies/n, maxAllBins/len(asked)), minBins), maxBins)
	}
	for i := range asked {
		d := &asked[i]
		p.Unserved = min(p.Unserved, 1-d.Share)
		tables := make([][]*profiles.Table, len(types)) // by type and variant
		for t, typ := range types {
			for _, v := range d.variants {
				key := names.TableKey{Model: s.pool.Models[v].Key(), Type: typ}
				tables[t] = append(tables[t], s.told[key].table)
			}
		}
		for _, x := range reduceBins(s.monitors[d.ModelID].Distribution(), d.Largest, bins) {
			bin := fluid.Bin{
				Model: d.Key(), BatchSize: x.BatchSize, Share: x.Share * d.rate, Splits: d.Splits,
			}
			bin.Latency, bin.Late = latenciesByClass(d, classes, tables, x.BatchSize)
			p.Bins = append(p.Bins, bin)
		}
	}
	p.Unserved = min(max(p.Unserved, 0), 0.5)
	return p
}

// latenciesByClass returns how long a batch size takes a lane, by class, with the fastest variant
// that the class holds: 0 where no variant is usually in time. If none is in any class, late are
// those whatever the target; all 0 if late queries are rejected, which takes no lane's time.
func latenciesByClass(d *modelDemand, classes []laneClass, tables [][]*profiles.Table,
	batchSize int) (inTime, late []time.Duration) {
	type loads struct{ all, inTime time.Duration }
	of := make([][]loads, len(tables)) // as tables
	for t := range tables {
		of[t] = make([]loads, len(tables[t]))
		for v, table := range tables[t] {
			if table == nil {
				continue
			}
			// Usual queries are in time, and all of them take the lanes' time.
			l := &of[t][v]
			if l.all = table.Load(batchSize); table.Mean(batchSize) <= d.QoSTarget {
				l.inTime = l.all
			}
		}
	}
	inTime, late = make([]time.Duration, len(classes)), make([]time.Duration, len(classes))
	served := false
	least := func(to *time.Duration, l time.Duration) {
		if l > 0 && (*to == 0 || l < *to) {
			*to = l
		}
	}
	for c := range classes {
		for v, model := range d.variants {
			if classes[c].holds[model] {
				least(&inTime[c], of[classes[c].typ][v].inTime)
				least(&late[c], of[classes[c].typ][v].all)
			}
		}
		served = served || inTime[c] > 0
	}
	if served {
		return inTime, nil
	}
	if d.RejectLate {
		return inTime, inTime
	}
	return inTime, late
}

// reduceBins reduces the distribution to at most so many batch sizes, counting neighbouring sizes
// as the largest of them.
func reduceBins(d profiles.Distribution, largest, most int) (bins profiles.Distribution) {
	width := (largest + most - 1) / most
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

// samePrices reports whether the lists have the same types and classes and no price or service time
// differs by more than minPriceChange.
func samePrices(a, b []fluid.Price) bool {
	near := func(x, y float64) bool {
		return math.Abs(x-y) <= max(noPrice, minPriceChange*max(x, y))
	}
	return slices.EqualFunc(a, b, func(p, q fluid.Price) bool {
		return p.Type == q.Type && near(p.PerMs, q.PerMs) &&
			near(float64(p.Service), float64(q.Service)) &&
			slices.EqualFunc(p.Classes, q.Classes, func(c, d fluid.ClassPrice) bool {
				return near(c.PerMs, d.PerMs) && near(float64(c.Service), float64(d.Service)) &&
					slices.Equal(c.Models, d.Models)
			})
	})
}
