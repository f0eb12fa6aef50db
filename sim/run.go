package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim/colocate"
	"github.com/muster-serve/muster/sim/fleet"
	"github.com/muster-serve/muster/sim/latency"
	"github.com/muster-serve/muster/sim/placement"
	"github.com/muster-serve/muster/sim/renting"
)

// A query is a query that has arrived.
type query struct {
	arrival time.Duration
	model   int32
	batch   int32
	live    bool // it has no outcome
	waits   bool // it, or one of its parts, waits for a lane
	late    bool // counted as late before it has an outcome
	early   bool // it came in the warm-up and counts for nothing
}

// A lane is one instance of the pool.
type lane struct {
	instanceType int
	only         []string              // the models that it holds at the start; nil: all
	execution    []match.Latencies     // by variant; nil: the lane cannot run it
	known        []match.Latencies     // by variant: the latencies that the policy knows
	predicted    []*match.LatencyTable // by variant: known, as a table
	seat         colocate.Seat
}

// holdsModel reports whether the lane holds a model at the start.
func (l *lane) holdsModel(model string) bool {
	return l.only == nil || slices.Contains(l.only, model)
}

// A simulation is the state of one simulation.
type simulation struct {
	cfg   *Config
	limit *fluid.Solution // if no query were split
	// splitLimit is the solution with queries split as the models allow; the policy has its prices.
	splitLimit *fluid.Solution
	models     []modelState
	byName     map[string]int // by name of a model or family: its index in models
	variants   []variantState // what can run, in the order of models
	types      []string       // base types first
	lanes      []lane
	known      []lane             // by type: a lane that holds all models
	placed     *placement.Planner // nil: what lanes hold does not change
	rental     *renting.Rental    // nil: no machines are rented
	arrivals   []dayArrivals      // by family, of a day in which machines are rented
	balanced   *balancedPolicy    // nil: no balancer of another system decides
	fleet      *fleet.Fleet
	serves     fleet.Config // describes fleet, which counts in its lanes
	log        *queryLog

	now time.Duration
	// ring has the queries from first to next, by their numbers.
	ring        []query
	first, next uint64 // of the oldest in ring and of the next to arrive
	overdueAt   uint64 // queries before it are counted as late, or have their outcome

	ranks, noise *rand.Rand
	draws        *rand.Rand // of variants

	// warmUp is how long queries arrive before those that count.
	warmUp time.Duration

	// stopWhenLost ends the run as soon as too many queries of a model are late. Of the result only
	// Satisfied then counts.
	stopWhenLost bool
	lost         bool

	waiting      int
	queueSum     float64 // integral of the number of waiting queries over time, query-ns
	queueSince   time.Duration
	queueLongest int

	err error
}

// A variantState is a variant of a family, or a model that is in none.
type variantState struct {
	Variant
	family string // "" if it is in none
	served int    // queries answered that count
}

type modelState struct {
	*Model
	first   int       // its first variant
	shares  []float64 // by variant, if they are drawn
	shared  []bool    // by batch size: whether some auxiliary type meets the QoS target
	allowed int       // how many queries may be late for the QoS share to hold
	counts  OutcomeCounts
	classes [2]OutcomeCounts // by size class; Queries and Late only
	latency *hdrhistogram.Histogram
}

// Size classes: a query is shared if some auxiliary type of the pool serves it
// within its QoS target, otherwise base-only.
const (
	baseOnly = iota
	shared
)

// Run simulates cfg and returns the result. If ctx ends before, Run returns its error.
func Run(ctx context.Context, cfg *Config) (*Result, error) {
	r, err := newRun(cfg)
	if err != nil {
		return nil, err
	}
	if err := r.simulateAll(ctx); err != nil {
		return nil, err
	}
	return r.makeResult(), r.err
}

func newRun(cfg *Config) (*simulation, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r := &simulation{
		cfg:    cfg,
		ring:   make([]query, 64),
		ranks:  rand.New(rand.NewPCG(cfg.Seed, 11)),
		noise:  rand.New(rand.NewPCG(cfg.Seed, 12)),
		byName: map[string]int{},
		draws:  rand.New(rand.NewPCG(cfg.Seed, 15)),
	}
	r.types = typeOrder(cfg.Models, cfg.Pool)
	var err error
	if r.limit, err = cfg.FluidLimit(false, true); err != nil {
		return nil, err
	}
	r.splitLimit = r.limit
	if slices.ContainsFunc(cfg.Models, func(m Model) bool { return m.Splits }) {
		if r.splitLimit, err = cfg.FluidLimit(true, true); err != nil {
			return nil, err
		}
	}
	for i := range cfg.Models {
		m := &cfg.Models[i]
		r.byName[m.Name] = i
		state := modelState{
			Model:   m,
			first:   len(r.variants),
			shared:  sharedSizes(m, cfg.Pool),
			allowed: allowedLate(m.qosShare(), cfg.Queries),
			latency: newHistogram(),
		}
		if len(m.Variants) > 0 && cfg.Bind == BindDrawn {
			if state.shares, err = cfg.drawnShares(m); err != nil {
				return nil, err
			}
		}
		r.models = append(r.models, state)
		for _, v := range m.variantsOf() {
			r.variants = append(r.variants, variantState{Variant: v, family: m.familyName()})
		}
	}
	if cfg.Log != nil {
		if r.log, err = newQueryLog(cfg.Log); err != nil {
			return nil, err
		}
	}
	misjudgements := rand.New(rand.NewPCG(cfg.Seed, 13))
	for t, name := range r.types {
		l := lane{instanceType: t}
		for i := range r.variants {
			v := &r.variants[i]
			m := &cfg.Models[r.modelOf(i)]
			execution, known := v.Latencies[name], v.assumedLatencies()[name]
			var predicted *match.LatencyTable
			if execution != nil && known != nil {
				if cfg.PredictionNoise > 0 {
					known = latency.Misjudge(known, cfg.largestRun(m), cfg.PredictionNoise,
						misjudgements)
				}
				if predicted, err = match.NewTable(known, cfg.largestRun(m)); err != nil {
					return nil, fmt.Errorf("model %s on %s: %w", v.Name, name, err)
				}
			}
			l.execution = append(l.execution, execution)
			l.known = append(l.known, known)
			l.predicted = append(l.predicted, predicted)
		}
		r.known = append(r.known, l)
		for _, p := range cfg.poolParts() {
			if p.typ != name {
				continue
			}
			its := l
			its.only = p.holds
			if p.holds != nil && cfg.Placement == nil {
				its = l.withModels(func(variant int) bool { return p.hasModel(r.variants[variant].Name) })
			}
			for range p.count {
				r.lanes = append(r.lanes, its)
			}
		}
	}
	if s := cfg.Sharing; s != nil {
		var lanes []string
		for i := range r.lanes {
			lanes = append(lanes, r.types[r.lanes[i].instanceType])
		}
		seats, err := s.Seats(lanes, len(r.variants))
		if err != nil {
			return nil, err
		}
		for i, seat := range seats {
			r.lanes[i].seat = seat
		}
	}
	return r, nil
}

// modelOf is the index of the model or family of which a variant is.
func (r *simulation) modelOf(variant int) int {
	i := len(r.models) - 1
	for r.models[i].first > variant {
		i--
	}
	return i
}

func (r *simulation) matchModels() []match.Model {
	var models []match.Model
	for i, v := range r.variants {
		m := &r.models[r.modelOf(i)]
		accuracy := v.Accuracy
		if v.family == "" {
			accuracy = 0
		}
		models = append(models, match.Model{
			Name:             names.ModelKey(v.Name),
			Family:           names.ModelKey(v.family),
			Accuracy:         accuracy,
			QoSTarget:        m.QoSTarget,
			LargestBatchSize: m.BatchSizes.Largest(),
			RejectLate:       m.RejectLate,
			Splits:           m.Splits,
		})
	}
	return models
}

func (r *simulation) simulateAll(ctx context.Context) error {
	stream, err := r.cfg.queryStream()
	if err != nil {
		return err
	}
	if r.cfg.Policy == Oracle {
		return errors.New("the oracle serves a sequence of queries at its own rate: ask for its " +
			"throughput")
	}
	if slices.Contains(withBalancers, r.cfg.Policy) {
		r.balanced, r.warmUp = newBalanced(r), balancing
	}
	r.describeFleet()
	if r.fleet, err = fleet.New(&r.serves); err != nil {
		return err
	}
	if r.placed, err = newPlanner(r); err != nil {
		return err
	}
	r.beginRenting()
	arrived := 0
	for q := range stream {
		r.runUntil(ctx, q.At)
		r.addQuery(&q)
		if q.At >= r.warmUp {
			if arrived++; arrived%interruptible == 0 && r.cfg.Progress != nil {
				r.cfg.Progress(arrived)
			}
		}
		if arrived == r.cfg.Queries || r.lost || r.err != nil {
			break
		}
	}
	switch {
	case arrived > 0 || r.err != nil || r.lost:
	case r.warmUp > 0:
		return fmt.Errorf("no queries arrive after the %v of warm-up that %s needs", r.warmUp,
			r.cfg.Policy)
	default:
		return errors.New("no queries arrive")
	}
	r.runUntil(ctx, fleet.Never)
	if r.err != nil {
		return r.err
	}
	r.now = r.fleet.Now()
	r.accountQueue()
	if r.log != nil {
		r.err = r.log.flush()
	}
	return r.err
}

// interruptible is the number of queries after which a run tells how many have arrived.
const interruptible = 1 << 12

// runUntil lets happen what happens up to a time.
func (r *simulation) runUntil(ctx context.Context, t time.Duration) {
	if err := r.fleet.Until(ctx, t); err != nil {
		r.fail(err)
	}
}

func (r *simulation) addQuery(q *workload.Query) {
	r.now = q.At
	model := 0
	if q.Model != r.models[0].Name {
		var ok bool
		if model, ok = r.byName[q.Model]; !ok {
			r.err = fmt.Errorf("a query arrives for model %q, which is not simulated", q.Model)
			return
		}
	}
	m := &r.models[model]
	if q.BatchSize > m.BatchSizes.Largest() {
		r.err = fmt.Errorf("a query of %s arrives with batch size %d, the largest is %d", m.Name,
			q.BatchSize, m.BatchSizes.Largest())
		return
	}
	if r.next-r.first == uint64(len(r.ring)) {
		r.grow()
	}
	seq := r.next
	r.next++
	*r.queryAt(seq) = query{
		arrival: r.now, model: int32(model), batch: int32(q.BatchSize), live: true,
		early: q.At < r.warmUp,
	}
	asked := fleet.ArrivingQuery{
		Sequence: seq, Model: m.first, BatchSize: q.BatchSize, Users: q.Users, Values: q.Values,
		Work: q.Work, Arrival: r.now,
		Uniform: drawUniform(r.ranks), Noise: r.drawFactor(r.noise),
	}
	if m.shares != nil {
		asked.Model += draw(m.shares, r.draws)
	} else {
		asked.Family = names.ModelKey(m.familyName())
	}
	if !r.queryAt(seq).early {
		m.counts.Queries++
	}
	if r.placed != nil && r.rental == nil {
		r.placed.Arrived(model)
	}
	r.markLate()
	r.fleet.Arrive(asked)
}

// drawUniform draws a number that is uniform in (0, 1).
func drawUniform(from *rand.Rand) float64 { return (float64(from.Uint64()>>12) + 0.5) / (1 << 52) }

// drawFactor draws the factor of a service time.
func (r *simulation) drawFactor(from *rand.Rand) float64 {
	if r.cfg.LatencyNoise == 0 {
		return 1
	}
	return latency.NoiseFactor(r.cfg.LatencyNoise, from)
}

func (r *simulation) queryAt(seq uint64) *query { return &r.ring[seq&uint64(len(r.ring)-1)] }

func (r *simulation) grow() {
	ring := make([]query, 2*len(r.ring))
	for seq := r.first; seq < r.next; seq++ {
		ring[seq&uint64(len(ring)-1)] = *r.queryAt(seq)
	}
	r.ring = ring
}

// markLate counts queries as late as soon as they are, served or not, so that stopWhenLost ends a
// run early.
func (r *simulation) markLate() {
	if !r.stopWhenLost {
		return
	}
	for r.overdueAt = max(r.overdueAt, r.first); r.overdueAt < r.next; r.overdueAt++ {
		q := r.queryAt(r.overdueAt)
		m := &r.models[q.model]
		if r.now-q.arrival <= m.QoSTarget {
			return
		}
		if q.live && !q.early {
			q.late = true
			r.countLate(m)
		}
	}
}

func (r *simulation) countLate(m *modelState) {
	m.counts.Late++
	if r.stopWhenLost && m.counts.Late > m.allowed {
		r.lost = true
		r.fleet.Stop()
	}
}

func (r *simulation) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// setWaiting sets whether a query waits for a lane.
func (r *simulation) setWaiting(seq uint64, waits bool) {
	q := r.queryAt(seq)
	if q.waits == waits {
		return
	}
	q.waits = waits
	r.accountQueue()
	if waits {
		r.waiting++
		r.queueLongest = max(r.queueLongest, r.waiting)
	} else {
		r.waiting--
	}
}

func (r *simulation) accountQueue() {
	r.queueSum += float64(r.waiting) * float64(r.now-r.queueSince)
	r.queueSince = r.now
}

// finishQuery gives a query its outcome. by counts if it is served.
func (r *simulation) finishQuery(seq uint64, o Outcome, by fleet.Answer) {
	q := r.queryAt(seq)
	r.setWaiting(seq, false)
	q.live = false
	if !q.early {
		r.countOutcome(seq, q, o, by)
	}
	if r.placed != nil || r.rental != nil {
		r.tellEnd(q, o, by)
	}
	for r.first < r.next && !r.queryAt(r.first).live {
		r.first++
	}
}

// countOutcome counts a query's outcome.
func (r *simulation) countOutcome(seq uint64, q *query, o Outcome, by fleet.Answer) {
	m := &r.models[q.model]
	latency := r.now - q.arrival
	onTime := o == Served && latency <= m.QoSTarget
	class := baseOnly
	if m.shared[q.batch] {
		class = shared
	}
	m.classes[class].Queries++
	if !onTime {
		m.classes[class].Late++
		if !q.late {
			r.countLate(m)
		}
	}
	switch o {
	case Served:
		m.counts.Served++
		r.variants[by.Model].served++
		// Cannot fail: the value is in the histogram's range.
		_ = m.latency.RecordValue(int64(min(latency, MaxLatency)))
	case Rejected:
		m.counts.Rejected++
	case Dropped:
		m.counts.Dropped++
	case NeverServed:
		m.counts.NeverServed++
	case Lost:
		m.counts.Lost++
	}
	if r.cfg.OnOutcome != nil {
		r.cfg.OnOutcome(int(q.model), q.arrival, onTime)
	}
	if r.log != nil {
		if err := r.log.write(r, seq, q, o, onTime, by); err != nil {
			r.fail(fmt.Errorf("write log of queries: %w", err))
		}
	}
}

// typeOrder lists the types of the pool: first those that meet the QoS targets of all models at
// every batch size, then the others, each in the pool's order.
func typeOrder(models []Model, pool Pool) []string {
	var base, auxiliary []string
	for _, in := range pool {
		if in.Count == 0 {
			continue
		}
		if isBase(models, in.Type) {
			base = append(base, in.Type)
		} else {
			auxiliary = append(auxiliary, in.Type)
		}
	}
	return append(base, auxiliary...)
}

func isBase(models []Model, instanceType string) bool {
	return !slices.ContainsFunc(models, func(m Model) bool {
		l := m.assumedLatencies(instanceType)
		return l == nil || l.Mean(m.BatchSizes.Largest()) > m.QoSTarget
	})
}

// sharedSizes says, by batch size, whether some auxiliary type of the pool serves it within the QoS
// target.
func sharedSizes(m *Model, pool Pool) []bool {
	shared := make([]bool, m.BatchSizes.Largest()+1)
	for _, in := range pool {
		l := m.assumedLatencies(in.Type)
		if in.Count == 0 || l == nil || l.Mean(m.BatchSizes.Largest()) <= m.QoSTarget {
			continue
		}
		for b := 1; b < len(shared); b++ {
			shared[b] = shared[b] || l.Mean(b) <= m.QoSTarget
		}
	}
	return shared
}

// Of is the number of instances of one type.
func (p Pool) Of(instanceType string) int {
	for _, in := range p {
		if in.Type == instanceType {
			return in.Count
		}
	}
	return 0
}
