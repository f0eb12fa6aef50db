package fluid

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// Validate reports everything that is wrong with p, or nil.
func (p *Program) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("fluid program: "+format, args...))
	}
	if len(p.Types) == 0 {
		bad("no types")
	}
	for _, t := range p.Types {
		if t.Count < 0 {
			bad("type %s: count is %d, want >= 0", t.Name, t.Count)
		}
	}
	shares := 0.0
	for _, b := range p.Bins {
		if !(b.Share >= 0) || math.IsInf(b.Share, 0) {
			bad("%s at batch size %d: share is %v, want >= 0", b.Model, b.BatchSize, b.Share)
		}
		shares += b.Share
		if len(b.Latency) != len(p.Types) {
			bad("%s at batch size %d: %d latencies for %d types", b.Model, b.BatchSize,
				len(b.Latency), len(p.Types))
		}
		for i, l := range b.Latency {
			if l < 0 {
				bad("%s at batch size %d: latency %d is %v, want >= 0", b.Model, b.BatchSize, i, l)
			}
		}
		if b.Late != nil && len(b.Late) != len(p.Types) {
			bad("%s at batch size %d: %d late latencies for %d types", b.Model, b.BatchSize,
				len(b.Late), len(p.Types))
		}
		for i, l := range b.Late {
			if l < 0 {
				bad("%s at batch size %d: late latency %d is %v, want >= 0", b.Model, b.BatchSize,
					i,
					l)
			}
		}
	}
	if !(shares > 0) {
		bad("the shares of %d bins sum to %v, want > 0", len(p.Bins), shares)
	}
	if !(p.Unserved >= 0 && p.Unserved < 1) {
		bad("unserved is %v, want in [0, 1)", p.Unserved)
	}
	return errors.Join(errs...)
}

// A column of the master program is one way to split the queries: it sends each bin wholly to one
// type or leaves it unserved. The column's variable is the rate, in queries/ms, of the queries
// split in this way. A slack is a column too.
type column struct {
	// use is, by row of a type, the ms of its time that a query takes; by row of a model, the part
	// of all queries that are the model's and left unserved, less the part that may be; by row of
	// what is kept, the ms for which a query blocks it.
	use []float64
	// served is the part of the queries sent to each type in the pool.
	served []float64
	rate   float64 // the column's coefficient in the objective: 1, or 0 for a slack
}

// A Solver solves programs. Between two programs it keeps only its buffers. The zero value is ready
// to use. It is not safe for concurrent use.
type Solver struct {
	types     []int            // indices of the types that have instances
	models    []names.ModelKey // in the order of their first bins
	permitted []float64        // by model: the part of all queries that may go unserved
	model     []int            // by bin
	share     []float64        // by bin, normalised
	// latency is by bin and type in the pool, ms; +Inf: misses the QoS target, or for a late bin:
	// does not hold the model.
	latency  []float64
	splitter splitter
	unmet    []float64   // by model, see [Unmet.Share]; 0: it meets its target
	late     []bool      // by bin: it is work without a deadline
	kept     [][]float64 // by row of what is kept, see setKept
	counted  float64     // the part of all arrivals that some type serves, in time or late
	// MaxWork is after how much work of the simplex method a program is solved approximately, in
	// steps times the square of the rows; 0: DefaultWork.
	MaxWork int
	// approximates makes it solve programs of few types as those of many, for tests.
	approximates bool

	// The simplex tableau in revised form: everything by row, the inverse of the basis by row and
	// column.
	basis   []column
	inverse []float64
	value   []float64
	price   []float64
	change  []float64
	entry   column // the column that enters the basis
}

// Solve solves p. A pool that cannot serve enough of the bins at any rate has a
// limit of 0 and no prices.
//
// Solve uses the revised simplex method with column generation (Dantzig and Wolfe, Operations
// Research 8, 1960). Only the types' time and the unserved shares tie the bins together, so the
// program has one row per type and per model. At given prices the best column sends each bin to its
// cheapest type. A program of more than maxExact types, or one that takes it more than MaxWork, is
// solved approximately.
func (s *Solver) Solve(p *Program) (*Solution, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	s.prepareRows(p)
	if s.counted == 0 {
		return s.makeSolution(p), nil
	}
	if len(s.types) > maxExact || s.approximates {
		return s.solveApproximately(p), nil
	}
	for range cmp.Or(s.MaxWork, DefaultWork) / (len(s.basis) * len(s.basis)) {
		s.computeDuals()
		if !s.chooseEntry() {
			return s.makeSolution(p), nil
		}
		if !s.pivotEntry() {
			return nil, fmt.Errorf(
				"fluid program of %d types and %d bins: the rate has no limit; latencies may be "+
					"too small", len(p.Types), len(p.Bins))
		}
	}
	return s.solveApproximately(p), nil
}

func (s *Solver) prepareRows(p *Program) {
	s.types, s.models, s.permitted, s.model = s.types[:0], s.models[:0], s.permitted[:0],
		s.model[:0]
	for i, t := range p.Types {
		if t.Count > 0 {
			s.types = append(s.types, i)
		}
	}
	sum := 0.0
	for _, b := range p.Bins {
		sum += b.Share
	}
	s.share, s.latency, s.kept = s.share[:0], s.latency[:0], nil
	for _, b := range p.Bins {
		share := b.Share / sum
		m := slices.Index(s.models, b.Model)
		if m < 0 {
			m = len(s.models)
			s.models, s.permitted = append(s.models, b.Model), append(s.permitted, 0)
		}
		s.model, s.share = append(s.model, m), append(s.share, share)
		s.permitted[m] += p.Unserved * share
		for _, t := range s.types {
			ms := math.Inf(1)
			if b.Latency[t] > 0 {
				ms = toMs(b.Latency[t])
			}
			s.latency = append(s.latency, ms)
		}
	}
	n := len(s.types)
	rows := n + len(s.models) + len(p.Kept)
	s.inverse, s.basis = make([]float64, rows*rows), make([]column, rows)
	s.value, s.price, s.change = make([]float64, rows), make([]float64, rows), make([]float64, rows)
	for i := range rows {
		s.basis[i] = column{use: make([]float64, rows), served: make([]float64, n)}
		s.basis[i].use[i] = 1
		s.inverse[i*rows+i] = 1
		if i < n {
			s.value[i] = float64(p.Types[s.types[i]].Count)
		}
	}
	s.entry = column{use: make([]float64, rows), served: make([]float64, n)}
	s.late, s.unmet = make([]bool, len(p.Bins)), make([]float64, len(s.models))
	s.splitter.takeBins(p, s.late)
	s.counted = 1
	if slices.ContainsFunc(p.Bins, func(b Bin) bool { return b.Late != nil }) {
		s.setLate(p)
	}
	s.setKept(p)
}

// setLate makes work without a deadline of the bins that no type serves in time, where they are
// more than their model may have unserved. It leaves those out that nothing serves at all.
func (s *Solver) setLate(p *Program) {
	s.splitter.computeCosts(s.cheapestWhole) // all prices are 0: what costs +Inf cannot be served
	missed, asked := make([]float64, len(s.models)), make([]float64, len(s.models))
	for b, share := range s.share {
		asked[s.model[b]] += share
		if s.late[b] = !s.isServable(b); s.late[b] {
			missed[s.model[b]] += share
		}
	}
	for m, permitted := range s.permitted {
		if missed[m] > permitted+tolerance {
			s.unmet[m], s.permitted[m] = missed[m]/asked[m], 0
		}
	}
	n, lost := len(s.types), 0.0
	for b := range p.Bins {
		if s.late[b] = s.late[b] && s.unmet[s.model[b]] > 0; !s.late[b] {
			continue
		}
		for i, t := range s.types {
			if l := p.Bins[b].Late; l != nil && l[t] > 0 {
				s.latency[b*n+i] = toMs(l[t])
			}
		}
		if _, cost := s.cheapestWhole(b); math.IsInf(cost, 1) {
			lost += s.share[b]
			s.share[b] = 0
		}
	}
	if s.counted = 1 - lost; s.counted < tolerance {
		s.counted = 0
		return
	}
	for b := range s.share {
		s.share[b] /= s.counted
	}
	for m := range s.permitted {
		s.permitted[m] /= s.counted
	}
	s.splitter.takeBins(p, s.late)
}

// isServable reports whether some type serves a query of bin b, whole or as parts. The splitter
// must have prices.
func (s *Solver) isServable(b int) bool {
	_, cost := s.cheapestWhole(b)
	return !math.IsInf(cost, 1) || !math.IsInf(s.splitter.splitCost(b), 1)
}

// computeDuals computes the prices of the rows (the duals) at which each column of the basis costs
// what it is worth.
func (s *Solver) computeDuals() {
	rows := len(s.basis)
	clear(s.price)
	for k, b := range s.basis {
		if b.rate > 0 {
			for i := range rows {
				s.price[i] += s.inverse[k*rows+i]
			}
		}
	}
}

const tolerance = 1e-9

// chooseEntry sets entry to the column that gains most at the present prices, and reports whether
// any column gains.
func (s *Solver) chooseEntry() bool {
	e := &s.entry
	clear(e.use)
	clear(e.served)
	n := len(s.types)
	for i, y := range s.price {
		if y < -tolerance {
			e.rate, e.use[i] = 0, 1
			return true
		}
	}
	s.splitter.computeCosts(func(b int) (int, float64) { return s.cheapestWhole(b) })
	serve := func(b, to int, share float64) {
		e.use[to] += share * s.latency[b*n+to]
		for k, row := range s.kept {
			e.use[n+len(s.models)+k] += share * row[b*n+to]
		}
		e.served[to] += share
	}
	cost := 0.0
	for b, share := range s.share {
		to, c := s.cheapestType(b)
		if cost += share * c; to == unserved {
			e.use[n+s.model[b]] += share
		} else if to == split {
			s.splitter.eachPart(b, func(part, to int) { serve(part, to, share) })
		} else {
			serve(b, to, share)
		}
	}
	for m, permitted := range s.permitted {
		e.use[n+m] -= permitted
		cost -= permitted * s.price[n+m]
	}
	e.rate = 1
	return 1-cost > tolerance
}

// What may become of a bin beside a type that serves it.
const (
	unserved = -1
	split    = -2
)

// cheapestType returns the type where a query of bin b costs least, or that it is split or left
// unserved, and that cost. Among equal costs it prefers to serve it whole, on the fastest type.
func (s *Solver) cheapestType(b int) (to int, cost float64) {
	if to, cost = s.cheapestWhole(b); s.splitter.splitCost(b) < cost-tolerance {
		to, cost = split, s.splitter.splitCost(b)
	}
	if leave := max(0, s.price[len(s.types)+s.model[b]]); leave < cost {
		return unserved, leave
	}
	return to, cost
}

// cheapestWhole returns the type that serves a query of bin b whole at the least cost, of several
// the fastest, and that cost; it is +Inf if none does.
func (s *Solver) cheapestWhole(b int) (to int, cost float64) {
	n := len(s.types)
	to, cost = unserved, math.Inf(1)
	for t, ms := range s.latency[b*n : (b+1)*n] {
		if math.IsInf(ms, 1) {
			continue
		}
		c := max(0, s.price[t]) * ms
		for k, row := range s.kept {
			c += max(0, s.price[n+len(s.models)+k]) * row[b*n+t]
		}
		if c < cost || c == cost && ms < s.latency[b*n+to] {
			to, cost = t, c
		}
	}
	return to, cost
}

// pivotEntry puts entry into the basis in place of the column whose rate first falls to 0. It
// reports false if there is no such column. Ties are broken lexicographically, so the method does
// not cycle.
func (s *Solver) pivotEntry() bool {
	rows := len(s.basis)
	out := -1
	for k := range rows {
		d := 0.0
		for i, u := range s.entry.use {
			d += s.inverse[k*rows+i] * u
		}
		s.change[k] = d
		if d > tolerance && (out < 0 || s.limitsBefore(k, out)) {
			out = k
		}
	}
	if out < 0 {
		return false
	}
	d := s.change[out]
	step := s.value[out] / d
	pivotRow := s.inverse[out*rows : (out+1)*rows]
	for i := range pivotRow {
		pivotRow[i] /= d
	}
	for k := range rows {
		if k == out || s.change[k] == 0 {
			continue
		}
		s.value[k] = max(0, s.value[k]-step*s.change[k])
		for i := range rows {
			s.inverse[k*rows+i] -= s.change[k] * pivotRow[i]
		}
	}
	s.value[out] = step
	s.basis[out], s.entry = s.entry, s.basis[out]
	return true
}

// limitsBefore reports whether row k limits entry more than row o.
func (s *Solver) limitsBefore(k, o int) bool {
	rows := len(s.basis)
	a, b := s.value[k]/s.change[k], s.value[o]/s.change[o]
	for i := 0; a == b && i < rows; i++ {
		a, b = s.inverse[k*rows+i]/s.change[k], s.inverse[o*rows+i]/s.change[o]
	}
	return a < b
}

func (s *Solver) makeSolution(p *Program) *Solution {
	served := make([]float64, len(p.Types))
	sol := s.newSolution(p)
	if s.counted == 0 {
		sol.setPrices(p, served, tolerance)
		return sol
	}
	for k, b := range s.basis {
		if b.rate == 0 {
			continue
		}
		sol.Rate += s.value[k] * 1000 / s.counted
		for i, t := range s.types {
			sol.Busy[t] += s.value[k] * b.use[i]
			served[t] += s.value[k] * b.served[i]
		}
	}
	s.setWorth(sol, p)
	sol.setPrices(p, served, tolerance)
	return sol
}

func (s *Solver) newSolution(p *Program) *Solution {
	sol := &Solution{
		PerMs: make([]float64, len(p.Types)),
		Worth: make([]float64, len(p.Bins)),
		Busy:  make([]float64, len(p.Types)),
	}
	for m, share := range s.unmet {
		if share > 0 {
			sol.Unmet = append(sol.Unmet, Unmet{s.models[m], share})
		}
	}
	return sol
}

// setWorth sets what queries and the types' time are worth at the solver's prices.
func (s *Solver) setWorth(sol *Solution, p *Program) {
	if sol.Rate == 0 {
		return
	}
	for b := range p.Bins {
		if s.share[b] > 0 || p.Bins[b].Share == 0 { // else nothing serves it
			_, sol.Worth[b] = s.cheapestType(b)
		}
	}
	for i, t := range s.types {
		sol.PerMs[t] = max(0, s.price[i])
	}
	for t := range p.Types { // a type without instances: its price is what its best bin would pay
		if p.Types[t].Count > 0 {
			continue
		}
		for b, bin := range p.Bins {
			if bin.Latency[t] > 0 {
				sol.PerMs[t] = max(sol.PerMs[t], sol.Worth[b]/toMs(bin.Latency[t]))
			}
		}
	}
}

// setPrices sets the prices by name. served is, by type, the rate of the queries, or parts, that
// are sent to it. Prices of classes that differ by no more than a share are alike.
func (sol *Solution) setPrices(p *Program, served []float64, share float64) {
	index := map[names.LaneType]int{} // into Prices
	var busy, queries []float64
	service := func(busy, served float64) time.Duration {
		if served == 0 {
			return 0
		}
		return time.Duration(busy / served * float64(time.Millisecond))
	}
	for t, typ := range p.Types {
		i, ok := index[typ.Name]
		if !ok {
			i = len(sol.Prices)
			index[typ.Name] = i
			sol.Prices = append(sol.Prices, Price{Type: typ.Name})
			busy, queries = append(busy, 0), append(queries, 0)
		}
		sol.Prices[i].Classes = append(sol.Prices[i].Classes, ClassPrice{
			Models: typ.Models, PerMs: sol.PerMs[t], Service: service(sol.Busy[t], served[t]),
		})
		// Until it is divided by the time, PerMs is what the time of the type is worth.
		sol.Prices[i].PerMs += sol.PerMs[t] * sol.Busy[t]
		busy[i] += sol.Busy[t]
		queries[i] += served[t]
	}
	for i := range sol.Prices {
		price := &sol.Prices[i]
		price.Service = service(busy[i], queries[i])
		if price.isOfAll(share) {
			price.PerMs, price.Classes = price.Classes[0].PerMs, nil
		} else if busy[i] > 0 {
			price.PerMs /= busy[i]
		}
	}
}

// isOfAll reports whether the prices of the classes differ from that of the first by no more than a
// share of it.
func (p *Price) isOfAll(share float64) bool {
	first := p.Classes[0].PerMs
	return !slices.ContainsFunc(p.Classes, func(c ClassPrice) bool {
		return math.Abs(c.PerMs-first) > share*first+tolerance
	})
}

func toMs(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
