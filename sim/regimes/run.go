package regimes

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/inquire"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/runtime/queue/merge"
	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/fleet"
)

// A Result is what became of the queries of a regime under a policy, over some seeds.
type Result struct {
	Policy string
	// Models are in the regime's order.
	Models []ModelResult
	// Duration is how long queries arrived, over all seeds.
	Duration time.Duration
	// Steps counts the steps of leaders; Cost is the time that they took, by Options.Clock.
	Steps int
	Cost  time.Duration
}

// A ModelResult is the part of a Result that is of one model.
type ModelResult struct {
	Queries  int
	InTime   int // answered within the QoS target
	Answered int
	// latencies are those of the answered queries.
	latencies []time.Duration
}

// LateShare is the share of the queries of feasible models that were not answered in time.
func (x *Result) LateShare(r *Regime) float64 {
	queries, inTime := x.countFeasible(r)
	return 1 - float64(inTime)/float64(queries)
}

// InTimeRate is the rate of answers in time, in queries/s.
func (x *Result) InTimeRate(r *Regime) float64 {
	_, inTime := x.countFeasible(r)
	return float64(inTime) / x.Duration.Seconds()
}

func (x *Result) countFeasible(r *Regime) (queries, inTime int) {
	for i, m := range x.Models {
		if !r.Models[i].Infeasible {
			queries, inTime = queries+m.Queries, inTime+m.InTime
		}
	}
	return max(queries, 1), inTime
}

// Quantile is the quantile p of the latency of answered queries of feasible models, in QoS targets
// of their models; 0 if none was answered.
func (x *Result) Quantile(r *Regime, p float64) float64 {
	var all []float64
	for i, m := range x.Models {
		if r.Models[i].Infeasible {
			continue
		}
		target := float64(r.Models[i].QoSTarget)
		for _, l := range m.latencies {
			all = append(all, float64(l)/target)
		}
	}
	slices.Sort(all)
	return quantileOf(all, p)
}

// QuantileMS is the same in ms.
func (x *Result) QuantileMS(r *Regime, p float64) float64 {
	var all []time.Duration
	for i, m := range x.Models {
		if !r.Models[i].Infeasible {
			all = append(all, m.latencies...)
		}
	}
	slices.Sort(all)
	return float64(quantileOf(all, p)) / 1e6
}

func quantileOf[T any](sorted []T, p float64) (at T) {
	if n := len(sorted); n > 0 {
		at = sorted[min(int(p*float64(n)), n-1)]
	}
	return at
}

// InTimeShare is the share of a model's queries that were answered in time.
func (m *ModelResult) InTimeShare() float64 {
	return float64(m.InTime) / float64(max(m.Queries, 1))
}

func (m *ModelResult) add(o *ModelResult) {
	m.Queries += o.Queries
	m.InTime += o.InTime
	m.Answered += o.Answered
	m.latencies = append(m.latencies, o.latencies...)
}

// Options say how a regime is run.
type Options struct {
	Seeds []uint64
	// Short says to take Regime.ShortQueries for Regime.Queries.
	Short bool
	// Clock, if not nil, is a wall clock, with which Result.Cost is measured.
	Clock func() time.Duration
}

// Run runs a regime under a policy. The result depends on the arguments only, but for its Cost.
func (r *Regime) Run(ctx context.Context, p *Policy, o *Options) (*Result, error) {
	all := &Result{Policy: p.Name, Models: make([]ModelResult, len(r.Models))}
	for _, seed := range o.Seeds {
		x, err := r.runSeed(ctx, p, o, seed)
		if err != nil {
			return nil, fmt.Errorf("regime %s, policy %s, seed %d: %w", r.Name, p.Name, seed, err)
		}
		for i := range x.Models {
			all.Models[i].add(&x.Models[i])
		}
		all.Duration += x.Duration
		all.Steps += x.Steps
		all.Cost += x.Cost
	}
	return all, nil
}

// An execution is one run of a fleet.
type execution struct {
	r       *Regime
	fleet   *fleet.Fleet
	lanes   []*Lanes // by lane of the fleet
	open    map[uint64]arrival
	results []ModelResult
	// sequence is that of the last query, or try.
	sequence uint64
}

// An arrival is a query without an outcome, or one try of it.
type arrival struct {
	fleet.ArrivingQuery
	first   time.Duration // when its first try began
	tries   int           // so far
	cancels bool          // its client does not wait for ever
	counts  bool
}

func (r *Regime) runSeed(ctx context.Context, p *Policy, o *Options, seed uint64) (*Result, error) {
	rate, err := r.arrivalRate()
	if err != nil {
		return nil, err
	}
	e := &execution{r: r, open: map[uint64]arrival{}, results: make([]ModelResult, len(r.Models))}
	cfg, err := e.fleetConfig(p, seed)
	if err != nil {
		return nil, err
	}
	cfg.Clock = o.Clock
	if e.fleet, err = fleet.New(cfg); err != nil {
		return nil, err
	}
	queries := r.Queries
	if o.Short {
		queries = r.ShortQueries
	}
	last, err := e.runArrivals(ctx, rate, queries, seed)
	if err != nil {
		return nil, err
	}
	if err := e.fleet.Until(ctx, fleet.Never); err != nil {
		return nil, err
	}
	x := &Result{Models: e.results, Duration: last}
	x.Steps, x.Cost = e.fleet.Steps()
	return x, nil
}

// runArrivals lets the queries arrive, and returns when the last one has.
func (e *execution) runArrivals(ctx context.Context, rate float64, queries int,
	seed uint64) (last time.Duration, err error) {
	r := e.r
	drawn := &sim.Config{Rate: rate, Seed: seed}
	index := map[string]int{}
	for i := range r.Models {
		drawn.Models = append(drawn.Models, r.Models[i].Model)
		index[r.Models[i].Name] = i
	}
	var phases []sim.Phase
	if r.Phases != nil {
		phases = r.Phases(seed)
	}
	stream, err := sim.StreamOf(cmp.Or(r.Arrivals, "poisson"), phases...)(drawn)
	if err != nil {
		return 0, err
	}
	uniforms, clients := rand.New(rand.NewPCG(seed, 11)), rand.New(rand.NewPCG(seed, 12))
	warmUp, begin := int(r.WarmUp*float64(queries)), time.Duration(0)
	arrived := 0
	for q := range stream {
		if arrived == queries {
			break
		}
		if err := e.fleet.Until(ctx, q.At); err != nil {
			return 0, err
		}
		a := arrival{
			ArrivingQuery: fleet.ArrivingQuery{
				Model: index[q.Model], BatchSize: q.BatchSize, Arrival: q.At,
				Uniform: uniforms.Float64(),
			},
			first: q.At, counts: arrived >= warmUp,
		}
		if r.CancelShare > 0 {
			a.cancels = clients.Float64() < r.CancelShare
			a.counts = a.counts && (!a.cancels || r.Retries > 0)
		}
		if arrived == warmUp {
			begin = q.At
		}
		arrived++
		if a.counts {
			e.results[a.Model].Queries++
		}
		e.fleet.Arrive(e.beginTry(&a))
		last = q.At
	}
	return last - begin, nil
}

// beginTry notes a try of a query, and returns it.
func (e *execution) beginTry(a *arrival) fleet.ArrivingQuery {
	e.sequence++
	a.Sequence = e.sequence
	a.tries++
	if a.cancels {
		a.CancelAfter = scaleDuration(e.r.Models[a.Model].QoSTarget, e.r.CancelAfter)
	}
	e.open[a.Sequence] = *a
	return a.ArrivingQuery
}

// In a fleet of more than manyLanes only the first candidates agents may lead: the election of a
// fleet in which all may costs more time than its queries do.
const manyLanes, candidates = 100, 5

// fleetConfig describes the fleet.
func (e *execution) fleetConfig(p *Policy, seed uint64) (*fleet.Config, error) {
	r := e.r
	for i := range r.Lanes {
		for range r.Lanes[i].Count {
			e.lanes = append(e.lanes, &r.Lanes[i])
		}
	}
	c := &fleet.Config{
		Seed: seed, RTT: r.RTT, Jitter: r.Jitter, Deadline: r.DeadlineAfter,
		Gateways: cmp.Or(r.Gateways, 4),
		Probes:   inquire.DefaultProbes, Faults: r.Faults, NewChooser: p.NewChooser,
		GossipDelay: time.Second, Service: e.serviceTime, Finish: e.countOutcome,
		Split: func(uint64) {}, Waits: func(uint64, bool) {},
	}
	if p.NewChooser == nil {
		c.Policy = p.Name
	}
	var err error
	if r.Leaderless && p.Name == Subject {
		c.Candidates = -1
	} else if len(e.lanes) > manyLanes {
		c.Candidates = candidates
	}
	if r.Learns {
		c.Learns, c.Prior = true, e.priorTable
	} else if c.Limit, c.Prices, err = r.fluidAdvice(); err != nil {
		return nil, err
	}
	for i := range r.Models {
		m := &r.Models[i]
		c.Models = append(c.Models, fleet.Model{
			Share: qosShare, Deadline: scaleDuration(m.QoSTarget, r.Deadline),
			Model: match.Model{
				Name: names.ModelKey(m.Name), QoSTarget: m.QoSTarget,
				LargestBatchSize: m.BatchSizes.Largest(), Splits: m.Splits, Merge: m.Merge,
			},
		})
	}
	tables := map[[2]string]*match.LatencyTable{} // by model and type
	for i := range r.Lanes {
		l := &r.Lanes[i]
		for range l.Count {
			lane, err := r.newLane(l, tables)
			if err != nil {
				return nil, err
			}
			c.Lanes = append(c.Lanes, lane)
		}
	}
	return c, nil
}

// newLane describes a lane. It keeps tables for others.
func (r *Regime) newLane(l *Lanes, tables map[[2]string]*match.LatencyTable) (fleet.LaneConfig,
	error) {
	lane := fleet.LaneConfig{Type: names.LaneType(l.Type), Distance: l.Distance}
	for i := range r.Models {
		m := &r.Models[i]
		var known match.Latencies
		var table *match.LatencyTable
		if l.holdModel(m) {
			known = m.knownLatencies(l.Type)
			key := [2]string{m.Name, l.Type}
			if table = tables[key]; table == nil {
				var err error
				if table, err = match.NewTable(known, m.largestRun()); err != nil {
					return lane, fmt.Errorf("model %s on %s: %w", m.Name, l.Type, err)
				}
				tables[key] = table
			}
		}
		lane.Known, lane.Predicted = append(lane.Known, known), append(lane.Predicted, table)
		var kind *merge.Kind
		if table != nil && m.Merge.Merges() {
			kind = &merge.Kind{Policy: m.Merge, Latency: table, Largest: table.Largest()}
		}
		lane.Kinds = append(lane.Kinds, kind)
	}
	return lane, nil
}

// serviceTime is how long a lane runs a query.
func (e *execution) serviceTime(lane int, q *fleet.ArrivingQuery) time.Duration {
	on := e.lanes[lane]
	l := on.slowDown(e.r.Models[q.Model].Latencies[on.Type])
	return max(1, l.Quantile(q.Uniform, q.BatchSize))
}

// priorKnots is the number of batch sizes at which a leader that learns knows latencies at first.
const priorKnots = 20

// priorTable is what a leader that learns knows at first of a model on a type.
func (e *execution) priorTable(model int, laneType names.LaneType) *profiles.Table {
	m := &e.r.Models[model]
	l := m.knownLatencies(string(laneType))
	if l == nil {
		return nil
	}
	var knots []profiles.Knot
	largest := m.largestRun()
	for i := range priorKnots {
		batch := 1 + i*(largest-1)/(priorKnots-1)
		if n := len(knots); n > 0 && knots[n-1].BatchSize == batch {
			continue
		}
		knots = append(knots, profiles.Knot{
			BatchSize: batch, Mean: l.Mean(batch), P50: l.Quantile(.5, batch),
			P90: l.Quantile(.9, batch), P99: l.Quantile(.99, batch), Error: 0.05,
		})
	}
	// The knots are valid, since latencies are above 0 and quantiles ascend.
	table, _ := profiles.NewTable(profiles.Key{Model: m.Name}, profiles.Measured, e.r.Name, knots)
	return table
}

// countOutcome counts the outcome of a query.
func (e *execution) countOutcome(sequence uint64, o fleet.Outcome, _ fleet.Answer) {
	q := e.open[sequence]
	delete(e.open, sequence)
	m, target, now := &e.results[q.Model], e.r.Models[q.Model].QoSTarget, e.fleet.Now()
	switch {
	case o == fleet.Cancelled && q.tries <= e.r.Retries:
		q.Arrival = now + scaleDuration(target, e.r.RetryAfter)
		e.fleet.ArriveLater(e.beginTry(&q))
	case !q.counts:
	case o == fleet.Served:
		m.Answered++
		m.latencies = append(m.latencies, now-q.first)
		if now-q.Arrival <= target {
			m.InTime++
		}
	}
}

func scaleDuration(d time.Duration, by float64) time.Duration {
	return time.Duration(float64(d) * by)
}
