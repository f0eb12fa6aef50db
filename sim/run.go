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

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/runtime/queue/merge"
	"github.com/muster-serve/muster/sim/fleet"
	"github.com/muster-serve/muster/sim/latency"
	"github.com/muster-serve/muster/sim/placing"
)

type eventKind uint8

const (
	submitArrives   eventKind = iota // a query's submit, at the leader
	payloadArrives                   // an attempt, at its lane
	laneDone                         // the end of an attempt's execution
	completionKnown                  // a completion, at the leader and the gateway
	refusalKnown                     // a refusal, at the leader and the gateway
	cutsOff                          // a gateway's cancelling of an attempt, at its lane
	becomesLate                      // a query becomes late; a lane at which it waits rejects it
	deadlinePasses                   // the deadline of a query that was sent to a lane
	cancelKnown                      // a gateway's Cancelled, at the leader
	probeArrives                     // at a lane, without a leader
	answerBack                       // an answer to a probe, at its gateway
	releaseArrives                   // the release of a reservation, at its lane (priced)
	gossips                          // a report of a lane's load, at all gateways (priced)
	gatewayWakes                     // a gateway's wake (priced)
	// a query that no lane took asks again, at its gateway (priced)
	arrivesAgain
	laneStarts // an idle lane looks at its queue, to merge queries
	planWakes
)

// epoch is the time at which every run starts; only differences matter.
var epoch = time.Unix(0, 0).UTC()

// never is later than any event.
const never = time.Duration(math.MaxInt64)

// A query is a query without an outcome, or with attempts that events still refer to.
type query struct {
	arrival time.Duration
	uniform float64 // quantile of its service time, in (0, 1)
	noise   float64 // factor of its service time
	model   int32
	// variant answers the query, by the last decision; pinned says that its gateway has drawn it.
	variant int32
	pinned  bool
	batch   int32
	last    *attempt // nil: there is none, or it has ended for all
	sent    int8     // attempts so far
	// number of attempts, and of cancellations on their way, that events still refer to
	open  int8
	live  bool // it has no outcome
	waits bool // it, or one of its parts, waits for a lane
	late  bool // counted as late before it has an outcome
	early bool // it came in the warm-up and counts for nothing
	split bool // into parts, of which left have no answer
	left  int8
}

// A run is the state of one simulation.
type run struct {
	cfg   *Config
	limit *fluid.Solution // if no query were split
	// splitLimit is the solution with queries split as the models allow; the policy has its prices.
	splitLimit *fluid.Solution
	models     []modelState
	byName     map[string]int // by name of a model or family: its index in models
	variants   []variantState // what can run, in the order of models
	variantOf  map[string]int32
	types      []string // base types first
	lanes      []lane
	known      []lane           // by type: a lane that holds all models
	placed     *placing.Planner // nil: what lanes hold does not change
	term       *term            // the leader; nil if one of the next two is set
	without    leaderless       // in place of a leader, or nil
	fleet      *fleet.Fleet     // in place of a leader and lanes, with faults
	lanesOf    []fleet.Lane     // the fleet's lanes
	log        *queryLog

	now      time.Duration
	wakeAt   time.Duration // when to step the leader
	movedAt  time.Duration // when something last happened to a query
	heap     eventHeap
	happened int // events

	// ring has the queries from first to next, by sequence number. Queries have multiples of
	// numbering; the numbers between are those of their parts, which are queries of their own.
	ring        []query
	first, next uint64 // sequence numbers of the oldest in ring and of the next to arrive
	overdueAt   uint64 // queries before it are counted as late, or have their outcome
	unused      []*attempt
	taker       merge.Taker[*attempt]
	groups      merge.Groups
	ended       []*attempt // scratch
	alone       [1]*attempt

	ranks, noise, jitter *rand.Rand
	draws                *rand.Rand // of variants

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

	steps int
	cost  time.Duration
	err   error
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

// Run simulates cfg and returns the result. If ctx ends before, Run returns its error.
func Run(ctx context.Context, cfg *Config) (*Result, error) {
	r, err := newRun(cfg)
	if err != nil {
		return nil, err
	}
	if err := r.simulate(ctx); err != nil {
		return nil, err
	}
	return r.result(), r.err
}

func newRun(cfg *Config) (*run, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r := &run{
		cfg:    cfg,
		wakeAt: never,
		ring:   make([]query, 64*numbering),
		ranks:  rand.New(rand.NewPCG(cfg.Seed, 11)),
		noise:  rand.New(rand.NewPCG(cfg.Seed, 12)),
		jitter: rand.New(rand.NewPCG(cfg.Seed, 14)),
		byName: map[string]int{}, variantOf: map[string]int32{},
		draws: rand.New(rand.NewPCG(cfg.Seed, 15)),
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
			if state.shares, err = cfg.shares(m); err != nil {
				return nil, err
			}
		}
		r.models = append(r.models, state)
		for _, v := range m.variants() {
			r.variantOf[v.Name] = int32(len(r.variants))
			r.variants = append(r.variants, variantState{Variant: v, family: m.family()})
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
			execution, known := v.Latencies[name], v.known()[name]
			var predicted *match.Table
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
		for _, p := range cfg.parts() {
			if p.typ != name {
				continue
			}
			its := l
			its.only = p.holds
			if p.holds != nil && cfg.Placement == nil {
				its = l.holding(func(variant int) bool { return p.has(r.variants[variant].Name) })
			}
			for range p.count {
				its.kinds = cfg.kinds(its.predicted)
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
func (r *run) modelOf(variant int) int {
	i := len(r.models) - 1
	for r.models[i].first > variant {
		i--
	}
	return i
}

func (r *run) matchModels() []match.Model {
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

func (r *run) simulate(ctx context.Context) error {
	stream, err := r.cfg.stream()
	if err != nil {
		return err
	}
	switch {
	case r.cfg.Policy == Oracle:
		return errors.New("the oracle serves a sequence of queries at its own rate: ask for its " +
			"throughput")
	case len(r.cfg.Faults) > 0:
		r.fleet, err = newFleet(r)
	case r.cfg.Policy == Priced:
		r.without, err = newGateways(r)
	case slices.Contains(withBalancers, r.cfg.Policy):
		r.without, r.warmUp = newBalanced(r), balancing
	default:
		if r.term, err = newTerm(r); err == nil {
			r.placed, err = newPlanner(r)
		}
	}
	if err != nil {
		return err
	}
	arrived := 0
	for q := range stream {
		r.until(ctx, q.At)
		r.arrive(&q)
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
	r.until(ctx, never)
	if r.err != nil {
		return r.err
	}
	if r.fleet != nil {
		r.fleetIsDone()
	}
	for seq := r.first; seq < r.next && !r.lost; seq += numbering {
		if q := r.at(seq); q.live { // never served
			r.finish(seq, q, NeverServed, nil)
		}
	}
	r.accountQueue()
	if r.log != nil && r.err == nil {
		r.err = r.log.flush()
	}
	if r.err == nil && r.term != nil && r.term.rec != nil {
		r.err = r.term.rec.Flush()
	}
	return r.err
}

// interruptible is the number of events after which a run checks whether ctx has ended.
const interruptible = 1 << 12

// patience is how long nothing may happen to any query before the queries left count as never
// served.
const patience = 2 * time.Minute

// until handles the events up to time t, in order; those of the same time in the order of
// scheduling, and the leader's wake last.
func (r *run) until(ctx context.Context, t time.Duration) {
	if r.fleet != nil {
		if err := r.fleet.Until(ctx, t); err != nil {
			r.fail(err)
		}
		return
	}
	for !r.lost && r.err == nil {
		if r.happened++; r.happened%interruptible == 0 && ctx.Err() != nil {
			r.err = ctx.Err()
			return
		}
		if t == never && (r.first == r.next || r.term != nil && r.idle()) {
			return // only gossip and heartbeats are left
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
			r.term.passed()
		default:
			return
		}
	}
}

// idle reports whether nothing has happened to any query for patience, and no event is due that
// concerns one.
func (r *run) idle() bool {
	return len(r.heap.events) == 0 && r.now-r.movedAt > patience+r.cfg.Deadline
}

func (r *run) handle(e *event) {
	switch e.kind {
	case submitArrives:
		r.submit(e.query)
	case payloadArrives:
		r.enqueue(e.attempt)
	case laneDone:
		r.done(e.attempt)
	case completionKnown:
		r.completed(e.attempt)
	case refusalKnown:
		r.refused(e.attempt)
	case cutsOff:
		r.cutOff(e.attempt)
	case becomesLate:
		r.becameLate(e.query)
	case deadlinePasses:
		r.deadline(e.query)
	case cancelKnown:
		r.cancelled(e.query)
	case probeArrives, answerBack, releaseArrives, gossips, gatewayWakes:
		r.without.handle(*e)
	case arrivesAgain:
		r.without.arrived(e.query)
	case laneStarts:
		r.start(e.lane)
	case planWakes:
		r.wakePlanner()
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
		r.err = fmt.Errorf("a query of %s arrives with batch size %d, the largest is %d", m.Name,
			q.BatchSize, m.BatchSizes.Largest())
		return
	}
	if r.next-r.first == uint64(len(r.ring)) {
		r.grow()
	}
	seq := r.next
	r.next += numbering
	r.movedAt = r.now
	*r.at(seq) = query{
		arrival: r.now, uniform: rank(r.ranks), noise: r.factor(r.noise), model: int32(model),
		batch: int32(q.BatchSize), live: true, early: q.At < r.warmUp,
	}
	r.at(seq).variant = int32(m.first)
	if m.shares != nil {
		r.at(seq).variant += int32(draw(m.shares, r.draws))
		r.at(seq).pinned = true
	}
	if !r.at(seq).early {
		m.counts.Queries++
	}
	if r.placed != nil {
		r.placed.Arrived(model)
	}
	r.markLate()
	switch {
	case r.fleet != nil:
		r.arriveAtFleet(seq)
	case r.without != nil:
		r.setWaits(seq, true)
		r.without.arrived(seq)
	case r.cfg.RTT > 0:
		r.heap.push(event{at: r.now + r.cfg.RTT/2, kind: submitArrives, query: seq})
	default:
		r.submit(seq)
	}
}

// rank draws a number that is uniform in (0, 1).
func rank(from *rand.Rand) float64 { return (float64(from.Uint64()>>12) + 0.5) / (1 << 52) }

// factor draws the factor of a service time.
func (r *run) factor(from *rand.Rand) float64 {
	if r.cfg.LatencyNoise == 0 {
		return 1
	}
	return latency.NoiseFactor(r.cfg.LatencyNoise, from)
}

func (r *run) at(seq uint64) *query { return &r.ring[seq&uint64(len(r.ring)-1)] }

func (r *run) grow() {
	ring := make([]query, 2*len(r.ring))
	for seq := r.first; seq < r.next; seq++ {
		ring[seq&uint64(len(ring)-1)] = *r.at(seq)
	}
	r.ring = ring
}

// markLate counts queries as late as soon as they are, served or not, so that stopWhenLost ends a
// run early.
func (r *run) markLate() {
	if !r.stopWhenLost {
		return
	}
	for r.overdueAt = max(r.overdueAt, r.first); r.overdueAt < r.next; r.overdueAt += numbering {
		q := r.at(r.overdueAt)
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

func (r *run) countLate(m *modelState) {
	m.counts.Late++
	if r.stopWhenLost && m.counts.Late > m.allowed {
		r.lost = true
	}
}

func (r *run) submit(seq uint64) {
	r.setWaits(seq, true)
	r.term.submitted(seq)
}

func (r *run) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// setWaits sets whether a query waits for a lane. A query that was split waits while one of its
// parts does.
func (r *run) setWaits(seq uint64, waits bool) {
	q := r.at(seq)
	if q.waits == waits {
		return
	}
	q.waits = waits
	if whole := wholeOf(seq); whole != seq {
		for part := whole + 1; part < whole+numbering; part++ {
			waits = waits || r.at(part).waits
		}
		r.setWaits(whole, waits)
		return
	}
	r.accountQueue()
	if waits {
		r.waiting++
		r.queueLongest = max(r.queueLongest, r.waiting)
	} else {
		r.waiting--
	}
}

func (r *run) accountQueue() {
	r.queueSum += float64(r.waiting) * float64(r.now-r.queueSince)
	r.queueSince = r.now
}

// finish gives a query its outcome. by is the attempt that answered it, nil if it is not served. A
// query that was split is served with its last part; any other outcome of a part is the query's.
func (r *run) finish(seq uint64, q *query, o Outcome, by *attempt) {
	r.setWaits(seq, false)
	q.live = false
	if whole := wholeOf(seq); whole != seq {
		q = r.at(whole)
		if q.left--; o == Served && q.left > 0 {
			r.forget()
			return
		}
		seq, q.live = whole, false
	}
	if q.left > 0 {
		r.endParts(seq)
	}
	if !q.early {
		r.count(seq, q, o, by)
	}
	if r.placed != nil {
		r.tellEnd(q, o, by)
	}
	r.forget()
}

// count counts a query's outcome.
func (r *run) count(seq uint64, q *query, o Outcome, by *attempt) {
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
		if by != nil {
			r.variants[by.variant].served++
		}
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
	if r.log != nil {
		if err := r.log.write(r, seq, q, o, onTime, by); err != nil {
			r.fail(fmt.Errorf("write log of queries: %w", err))
		}
	}
}

// forget drops the oldest queries from the ring, up to the first that is live or open, or has a
// part that is.
func (r *run) forget() {
	for ; r.first < r.next; r.first += numbering {
		for seq := r.first; seq < r.first+numbering; seq++ {
			if q := r.at(seq); q.live || q.open > 0 {
				return
			}
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
		l := m.known(instanceType)
		return l == nil || l.Mean(m.BatchSizes.Largest()) > m.QoSTarget
	})
}

// sharedSizes says, by batch size, whether some auxiliary type of the pool serves it within the QoS
// target.
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
