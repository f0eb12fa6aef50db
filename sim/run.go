package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/sim/workload"
)

type eventKind uint8

const (
	submitArrives   eventKind = iota // a query at the leader
	payloadArrives                   // a query at its lane
	laneDone                         // a lane has run its query
	completionKnown                  // at the leader and the gateway
	probeArrives                     // at a lane (priced)
	answersBack                      // of all probes for a query, at its gateway (priced)
	releaseArrives                   // at a lane whose answer was not taken (priced)
	gossips                          // a lane, to all gateways (priced)
)

// epoch is the time at which every run starts; only differences matter.
var epoch = time.Unix(0, 0).UTC()

// never is later than any event.
const never = time.Duration(math.MaxInt64)

// A query that has no outcome yet.
type query struct {
	arrival time.Duration
	start   time.Duration // of its execution
	uniform float64       // rank of its service time in (0, 1)
	noise   float64       // what multiplies its service time
	model   int32
	batch   int32
	lane    int32
	attempt int32
	live    bool // has no outcome
	there   bool // its payload is at the lane
	late    bool // known to be late before it has an outcome
}

// A lane of the simulated fleet: one instance that runs one query at a time,
// the others in the order in which they came or were promised a place, late ones behind.
type lane struct {
	instanceType int
	execution    []match.Latencies // by model; nil: cannot run it
	known        []match.Latencies // by model, what is believed of execution
	predicted    []*match.Table    // by model, the same as the matcher has it
	queue        []uint64          // [0] is running, if any is
	running      bool
	freeAt       time.Duration // when the running query ends
	busy         time.Duration // summed execution time
	served       int           // queries it has started
}

// A run is the state of one simulation.
type run struct {
	cfg     *Config
	limit   *fluid.Solution
	models  []modelState
	byName  map[string]int
	types   []string // base types first
	lanes   []lane
	matcher *match.Matcher
	priced  *gateways       // in place of the matcher, or nil
	rec     *match.Recorder // may be nil
	log     *queryLog

	now      time.Duration
	wakeAt   time.Duration // when the matcher wants to be stepped
	heap     eventHeap
	happened int // events
	ev       match.Event

	ring        []query // of the live queries and what lies between them, by sequence number
	first, next uint64  // sequence numbers of the oldest in ring and of the next to arrive
	overdueAt   uint64  // queries before it are served, or late

	ranks, noise *rand.Rand

	// stopWhenLost ends the run as soon as more queries of a model are late
	// than may be; result is then incomplete but for Satisfied.
	stopWhenLost bool
	lost         bool

	waiting      int
	queueSum     float64 // of waiting queries over time, in query-ns
	queueSince   time.Duration
	queueLongest int

	steps int
	cost  time.Duration
	err   error
}

type modelState struct {
	*Model
	shared  []bool // by batch size: some auxiliary type meets the QoS target
	allowed int    // late queries that a run may have before its fate is sealed
	counts  Counts
	classes [2]Counts // by size class; Queries and Late only
	latency *hdrhistogram.Histogram
}

// Size classes: a query is shared if some auxiliary type of the pool serves it
// within its QoS target, otherwise base-only.
const (
	baseOnly = iota
	shared
)

// Run simulates cfg. If ctx ends before, so does the run, with its error.
func Run(ctx context.Context, cfg *Config) (*Result, error) {
	r, err := newRun(cfg)
	if err != nil {
		return nil, err
	}
	if err := r.simulate(ctx); err != nil {
		return nil, err
	}
	return r.result(), nil
}

func newRun(cfg *Config) (*run, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r := &run{
		cfg:    cfg,
		wakeAt: never,
		ring:   make([]query, 64),
		ranks:  rand.New(rand.NewPCG(cfg.Seed, 11)),
		noise:  rand.New(rand.NewPCG(cfg.Seed, 12)),
		byName: map[string]int{},
	}
	r.types = typeOrder(cfg.Models, cfg.Pool)
	var err error
	if r.limit, err = FluidLimit(cfg.Models, cfg.Pool); err != nil {
		return nil, err
	}
	for i := range cfg.Models {
		m := &cfg.Models[i]
		r.byName[m.Name] = i
		r.models = append(r.models, modelState{
			Model:   m,
			shared:  sharedSizes(m, cfg.Pool),
			allowed: allowedLate(m.qosShare(), cfg.Queries),
			latency: newHistogram(),
		})
	}
	if cfg.Log != nil {
		if r.log, err = newQueryLog(cfg.Log); err != nil {
			return nil, err
		}
	}
	misjudgements := rand.New(rand.NewPCG(cfg.Seed, 13))
	for t, name := range r.types {
		l := lane{instanceType: t}
		for i := range r.models {
			m := &r.models[i]
			execution, known := m.Latencies[name], m.known(name)
			var predicted *match.Table
			if execution != nil && known != nil {
				if cfg.PredictionNoise > 0 {
					known = misjudge(known, m.BatchSizes.Largest(), cfg.PredictionNoise, misjudgements)
				}
				if predicted, err = match.NewTable(known, m.BatchSizes.Largest()); err != nil {
					return nil, fmt.Errorf("model %s on %s: %w", m.Name, name, err)
				}
			}
			l.execution = append(l.execution, execution)
			l.known = append(l.known, known)
			l.predicted = append(l.predicted, predicted)
		}
		for range cfg.Pool.Of(name) {
			r.lanes = append(r.lanes, l)
		}
	}
	return r, nil
}

func (r *run) matchModels() []match.Model {
	var models []match.Model
	for _, m := range r.models {
		models = append(models, match.Model{
			Name:             m.Name,
			QoSTarget:        m.QoSTarget,
			LargestBatchSize: m.BatchSizes.Largest(),
			RejectLate:       m.RejectLate,
		})
	}
	return models
}

// startMatcher tells a new matcher of profiles, prices and lanes.
func (r *run) startMatcher() error {
	mc := match.Config{
		Models:        r.matchModels(),
		Policy:        r.cfg.Policy,
		Threshold:     r.cfg.Threshold,
		DispatchAhead: r.cfg.RTT,
		ShardLanes:    r.cfg.ShardLanes,
		Seed:          r.cfg.Seed,
	}
	var err error
	if r.matcher, err = match.New(mc); err != nil {
		return err
	}
	if r.cfg.Record != nil {
		if r.rec, err = match.NewRecorder(r.cfg.Record, &mc); err != nil {
			return fmt.Errorf("write recording: %w", err)
		}
	}
	known := make([]bool, len(r.types))
	for id := range r.lanes {
		l := &r.lanes[id]
		name := r.types[l.instanceType]
		var models []string
		for i, table := range l.predicted {
			if table == nil {
				continue
			}
			models = append(models, r.models[i].Name)
			if !known[l.instanceType] {
				r.step(&match.Event{Kind: match.ProfileChanged, Model: r.models[i].Name, Type: name, Table: table})
			}
		}
		known[l.instanceType] = true
		r.step(&match.Event{Kind: match.LaneJoined, Lane: match.LaneID(id), Agent: fmt.Sprintf("%s-%d", name, id), Type: name, Models: models})
	}
	r.step(&match.Event{Kind: match.PricesChanged, Prices: r.limit.Prices})
	return r.err
}

func (r *run) simulate(ctx context.Context) error {
	stream, err := r.cfg.stream()
	if err != nil {
		return err
	}
	switch r.cfg.Policy {
	case Oracle:
		return errors.New("the oracle serves a sequence of queries at its own rate: ask for its throughput")
	case Priced:
		r.priced, err = newGateways(r)
	default:
		err = r.startMatcher()
	}
	if err != nil {
		return err
	}
	arrived := 0
	for q := range stream {
		r.until(ctx, q.At)
		r.arrive(&q)
		if arrived++; arrived%interruptible == 0 && r.cfg.Progress != nil {
			r.cfg.Progress(arrived)
		}
		if arrived == r.cfg.Queries || r.lost || r.err != nil {
			break
		}
	}
	if arrived == 0 && r.err == nil {
		return fmt.Errorf("no queries arrive")
	}
	r.until(ctx, never)
	if r.err != nil {
		return r.err
	}
	for seq := r.first; seq < r.next && !r.lost; seq++ {
		if q := r.at(seq); q.live { // never served
			r.finish(seq, q, NeverServed)
		}
	}
	r.accountQueue()
	if r.log != nil && r.err == nil {
		r.err = r.log.flush()
	}
	if r.err == nil && r.rec != nil {
		r.err = r.rec.Flush()
	}
	return r.err
}

// interruptible is after how many events a run looks whether it should end.
const interruptible = 1 << 12

// until lets happen what happens up to the time, in order; at one time what
// was scheduled first, and the matcher's wish last.
func (r *run) until(ctx context.Context, t time.Duration) {
	for !r.lost && r.err == nil {
		if r.happened++; r.happened%interruptible == 0 && ctx.Err() != nil {
			r.err = ctx.Err()
			return
		}
		if t == never && r.first == r.next {
			return // nothing is left but talk
		}
		next := never
		if len(r.heap.events) > 0 {
			next = r.heap.events[0].at
		}
		switch {
		case next <= r.wakeAt && next < never && next <= t:
			e := r.heap.pop()
			r.now = e.at
			r.handle(&e)
		case r.wakeAt < next && r.wakeAt <= t && r.wakeAt < never:
			r.now = max(r.now, r.wakeAt)
			r.wakeAt = never
			r.ev = match.Event{Kind: match.TimePassed}
			r.step(&r.ev)
		default:
			return
		}
	}
}

func (r *run) handle(e *event) {
	switch e.kind {
	case submitArrives:
		r.submit(e.query)
	case payloadArrives:
		r.enqueue(e.lane, e.query)
	case laneDone:
		r.done(e.lane, e.query)
	case completionKnown:
		r.completed(e.lane, e.query)
	case probeArrives:
		r.priced.probed(e.lane, e.query)
	case answersBack:
		r.priced.answered(e.query)
	case releaseArrives:
		r.priced.released(e.lane, e.query)
	case gossips:
		r.priced.gossip(e.lane)
	}
}

func (r *run) arrive(q *workload.Query) {
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
		r.err = fmt.Errorf("a query of %s arrives with batch size %d, the largest is %d", m.Name, q.BatchSize, m.BatchSizes.Largest())
		return
	}
	if r.next-r.first == uint64(len(r.ring)) {
		r.grow()
	}
	seq := r.next
	r.next++
	*r.at(seq) = query{arrival: r.now, uniform: r.rank(), noise: r.factor(), model: int32(model), batch: int32(q.BatchSize), lane: -1, live: true}
	m.counts.Queries++
	r.markLate()
	switch {
	case r.priced != nil:
		r.setWaiting(+1)
		r.priced.arrived(seq)
	case r.cfg.RTT > 0:
		r.heap.push(event{at: r.now + r.cfg.RTT/2, kind: submitArrives, query: seq})
	default:
		r.submit(seq)
	}
}

// rank is uniform in (0, 1).
func (r *run) rank() float64 { return (float64(r.ranks.Uint64()>>12) + 0.5) / (1 << 52) }

func (r *run) factor() float64 {
	if r.cfg.LatencyNoise == 0 {
		return 1
	}
	return noiseFactor(r.cfg.LatencyNoise, r.noise)
}

func (r *run) at(seq uint64) *query { return &r.ring[seq&uint64(len(r.ring)-1)] }

func (r *run) grow() {
	ring := make([]query, 2*len(r.ring))
	for seq := r.first; seq < r.next; seq++ {
		ring[seq&uint64(len(ring)-1)] = *r.at(seq)
	}
	r.ring = ring
}

// markLate counts queries as late once they are, served or not, so that
// a run that is lost is seen to be.
func (r *run) markLate() {
	if !r.stopWhenLost {
		return
	}
	for r.overdueAt = max(r.overdueAt, r.first); r.overdueAt < r.next; r.overdueAt++ {
		q := r.at(r.overdueAt)
		m := &r.models[q.model]
		if r.now-q.arrival <= m.QoSTarget {
			return
		}
		if q.live {
			q.late = true
			r.countLate(m)
		}
	}
}

func (r *run) countLate(m *modelState) {
	m.counts.Late++
	if r.stopWhenLost && m.counts.Late > m.allowed {
		r.lost = true
	}
}

// network is what a query loses on the way to the leader and with the answer on its way back. The
// way from the decision to the lane is the matcher's DispatchAhead.
func (r *run) network() time.Duration { return r.cfg.RTT }

func (r *run) submit(seq uint64) {
	q := r.at(seq)
	m := &r.models[q.model]
	r.setWaiting(+1)
	r.ev = match.Event{Kind: match.Submitted, Query: match.QueryID{Sequence: seq}, Model: m.Name, BatchSize: int(q.batch), Waited: r.network()}
	if r.cfg.Deadline > 0 {
		r.ev.TimeLeft = max(1, q.arrival+r.cfg.Deadline-r.now)
	}
	r.step(&r.ev)
}

// step steps the matcher and carries out what it decides.
func (r *run) step(e *match.Event) {
	var before time.Duration
	if r.cfg.Clock != nil {
		before = r.cfg.Clock()
	}
	now := epoch.Add(r.now)
	decisions, next, err := r.matcher.Step(now, e)
	if r.cfg.Clock != nil {
		r.cost += r.cfg.Clock() - before
	}
	r.steps++
	if err != nil {
		r.fail(fmt.Errorf("matcher at %v: %w", r.now, err))
		return
	}
	if r.rec != nil {
		if err := r.rec.Step(r.now, e, decisions); err != nil {
			r.fail(fmt.Errorf("write recording: %w", err))
			return
		}
	}
	r.wakeAt = never
	if !next.IsZero() {
		r.wakeAt = max(r.now, next.Sub(epoch))
		if e.Kind == match.TimePassed {
			r.wakeAt = max(r.wakeAt, r.now+1) // time must pass
		}
	}
	for i := range decisions {
		r.carryOut(&decisions[i])
	}
}

func (r *run) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *run) carryOut(d *match.Decision) {
	seq := d.Query.Sequence
	if seq < r.first || seq >= r.next || !r.at(seq).live {
		r.fail(fmt.Errorf("matcher at %v: decides about query %d, which it does not hold", r.now, seq))
		return
	}
	q := r.at(seq)
	switch d.Action {
	case match.Assign:
		if q.lane >= 0 || int(d.Lane) >= len(r.lanes) {
			r.fail(fmt.Errorf("matcher at %v: assigns query %d to lane %d while it is on lane %d", r.now, seq, d.Lane, q.lane))
			return
		}
		q.lane, q.attempt = int32(d.Lane), int32(d.Attempt)
		r.setWaiting(-1)
		if r.cfg.RTT > 0 {
			r.heap.push(event{at: r.now + r.cfg.RTT, kind: payloadArrives, lane: q.lane, query: seq})
			return
		}
		r.enqueue(q.lane, seq)
	case match.Reject:
		outcome := Rejected
		if d.Reason == match.DeadlinePassed {
			outcome = Dropped
		}
		r.setWaiting(-1)
		r.finish(seq, q, outcome)
	case match.OfferAgain:
		r.fail(fmt.Errorf("matcher at %v: offers query %d again though nothing refused it", r.now, seq))
	}
}

func (r *run) enqueue(laneID int32, seq uint64) {
	l := &r.lanes[laneID]
	r.at(seq).there = true
	if r.priced == nil || !slices.Contains(l.queue, seq) { // there was no promise
		l.queue = append(l.queue, seq)
	}
	r.start(laneID)
}

// start runs the first query of the lane's queue that is there and in time, or else
// the first that is there, unless one runs.
func (r *run) start(laneID int32) {
	l := &r.lanes[laneID]
	if l.running {
		return
	}
	i := -1
	for k, seq := range l.queue {
		if q := r.at(seq); q.there && q.lane == laneID {
			if r.now+l.predicted[q.model].Mean(int(q.batch)) <= q.arrival+r.models[q.model].QoSTarget {
				i = k
				break
			}
			if i < 0 {
				i = k // late, unless another is in time
			}
		}
	}
	if i < 0 {
		return
	}
	seq := l.queue[i]
	copy(l.queue[1:i+1], l.queue[:i])
	l.queue[0], l.running = seq, true
	q := r.at(seq)
	execution := l.execution[q.model]
	if execution == nil {
		r.fail(fmt.Errorf("query %d of %s is on lane %d, a %s, which cannot run it", seq, r.models[q.model].Name, laneID, r.types[l.instanceType]))
		return
	}
	service := execution.Quantile(q.uniform, int(q.batch))
	if q.noise != 1 {
		service = time.Duration(float64(service) * q.noise)
	}
	service = min(max(service, 1), MaxLatency)
	q.start = r.now
	l.busy += service
	l.served++
	l.freeAt = r.now + service
	r.heap.push(event{at: l.freeAt, kind: laneDone, lane: laneID, query: seq})
}

func (r *run) done(laneID int32, seq uint64) {
	l := &r.lanes[laneID]
	l.queue, l.running = l.queue[:copy(l.queue, l.queue[1:])], false
	r.start(laneID)
	if r.cfg.RTT > 0 {
		r.heap.push(event{at: r.now + r.cfg.RTT/2, kind: completionKnown, lane: laneID, query: seq})
		return
	}
	r.completed(laneID, seq)
}

// completed tells the leader; the answer has reached the gateway at the same
// time, for both are half a round trip away.
func (r *run) completed(laneID int32, seq uint64) {
	q := r.at(seq)
	r.ev = match.Event{
		Kind:      match.Completed,
		Query:     match.QueryID{Sequence: seq},
		Attempt:   int(q.attempt),
		Lane:      match.LaneID(laneID),
		Remaining: r.remaining(&r.lanes[laneID]),
	}
	r.finish(seq, q, Served)
	if r.priced == nil {
		r.step(&r.ev)
	}
}

// remaining is how long the worker expects the lane to be busy with what it has and has promised to take.
func (r *run) remaining(l *lane) (d time.Duration) {
	for i, seq := range l.queue {
		q := r.at(seq)
		mean := l.predicted[q.model].Mean(int(q.batch))
		if i == 0 && l.running {
			mean = max(0, q.start+mean-r.now)
		}
		d += mean
	}
	return d
}

func (r *run) setWaiting(change int) {
	r.accountQueue()
	r.waiting += change
	r.queueLongest = max(r.queueLongest, r.waiting)
}

func (r *run) accountQueue() {
	r.queueSum += float64(r.waiting) * float64(r.now-r.queueSince)
	r.queueSince = r.now
}

// finish gives a query its outcome.
func (r *run) finish(seq uint64, q *query, o Outcome) {
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
		// The value is in the histogram's range, so there is no error.
		_ = m.latency.RecordValue(int64(min(latency, MaxLatency)))
	case Rejected:
		m.counts.Rejected++
	case Dropped:
		m.counts.Dropped++
	case NeverServed:
		m.counts.NeverServed++
	}
	if r.log != nil {
		if err := r.log.write(r, seq, q, o, onTime); err != nil {
			r.fail(fmt.Errorf("write log of queries: %w", err))
		}
	}
	q.live = false
	for r.first < r.next && !r.at(r.first).live {
		r.first++
	}
}

// typeOrder lists the types of the pool, those that meet the QoS targets of all
// models at every batch size first, otherwise in the pool's order.
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
		l := m.known(instanceType)
		return l == nil || l.Mean(m.BatchSizes.Largest()) > m.QoSTarget
	})
}

// sharedSizes tells by batch size whether some type of the pool that does not
// serve every query in time serves this one.
func sharedSizes(m *Model, pool Pool) []bool {
	shared := make([]bool, m.BatchSizes.Largest()+1)
	for _, in := range pool {
		l := m.known(in.Type)
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
