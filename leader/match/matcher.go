package match

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// A Matcher matches queries to lanes; see the package comment. It is not safe for
// concurrent use.
//
// Inside, times are in ms since the first event; latencies, remaining times and targets are in ms.
type Matcher struct {
	cfg    Config
	models []Model   // one without a name is gone; the next new model takes its place
	target []float64 // by model, ms; 0 for one that is gone
	catalogue

	origin  time.Time
	started bool
	now     float64
	ahead   float64
	// spareOver is the time, in ms, over which shards average their spare time.
	spareOver float64
	// decayKeeps is exp(decayedBy): the demands of a shard are mostly of one time.
	decayedBy, decayKeeps float64

	types      []*instanceType // in the order in which they were first named
	typeByName map[names.LaneType]*instanceType
	lanes      map[LaneID]*lane
	all        []*lane // in the order of their ids
	shards     []*shard
	layout
	changes
	dirty     []*shard // those that are dirty, in no order
	wereDirty []*shard // memory for dirty
	// nowhere has no lanes. Queries that no lane can serve wait there.
	nowhere *shard
	rng     *rand.Rand

	queries map[QueryID]*query
	parts   int // how many of queries are parts
	// waiting counts the queries that wait, and lateWaiting those of them that are late; the parts
	// of a query count as one.
	waiting, lateWaiting int
	free                 *query // recycled queries, linked by next
	timers               timers // timers of queries, and of lanes that open
	dues                 timers // timers of lanes that should have answered
	out                  []Decision
	changed              []*query // scratch
	merged               uint64   // runs of several queries, which it numbers
	runs                 uint64   // all runs, by which reservations tell which run together
	// reentered counts the waiting queries that arrange has moved to another shard or queue.
	reentered int
}

// An instanceType is an instance type with what the matcher knows about it.
type instanceType struct {
	name   names.LaneType
	tables []*LatencyTable // by model; nil: unknown
	// doubtful says, by model, whether the table was learned from hardly any queries.
	doubtful []bool
	// coefficient is, by model, the heterogeneity coefficient C_j (KAIROS, Definition 1); 0 if the
	// latency is unknown.
	coefficient []float64
	base        bool            // it meets every model's QoS target at the largest batch size
	lanes       []int           // by model: the number of usable lanes that hold it
	served      []*LatencyTable // by model; nil if the latency is unknown or there is no such lane
	all         int             // the number of its lanes
	known       int             // the number of its tables
	stale       bool            // base and slowness are of before
	// rank is the type's place in the order of speed at the largest batch sizes; 0 is the fastest.
	rank      int
	slowness  float64
	lanePrice // of lanes whose class has no price of its own
	classes   laneClasses
	margins   []margin // by model
	isOwn     bool     // one agent has the type to itself, because it departs from its former type
}

func newInstanceType(name names.LaneType, models int) *instanceType {
	return &instanceType{name: name, tables: make([]*LatencyTable, models), doubtful: make([]bool,
		models),
		coefficient: make([]float64, models), lanes: make([]int, models),
		served: make([]*LatencyTable, models), lanePrice: unpriced, rank: -1, stale: true,
		margins: make([]margin, models), isOwn: name.IsOwn()}
}

// New returns a matcher without lanes, profiles or queries. The models of cfg
// are copied.
func New(cfg Config) (*Matcher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Policy == "" {
		cfg.Policy = DefaultPolicy
	}
	if cfg.MaxWaiting == 0 {
		cfg.MaxWaiting = defaultMaxWaiting
	}
	if cfg.ShardLanes == 0 {
		cfg.ShardLanes = defaultShardLanes
	}
	m := &Matcher{
		cfg:       cfg,
		models:    slices.Clone(cfg.Models),
		catalogue: newCatalogue(),
		ahead:     toMs(cfg.DispatchAhead),
		lanes:     map[LaneID]*lane{},
		layout:    layout{byKey: map[string]*modelSet{}},
		rng:       rand.New(rand.NewPCG(cfg.Seed, 0)),
		queries:   map[QueryID]*query{},
	}
	m.typeByName = map[names.LaneType]*instanceType{}
	for i, model := range m.models {
		m.byName[model.Name] = i
		m.target = append(m.target, toMs(model.QoSTarget))
		m.catalogue.applyModelChange(m.models, i, "")
	}
	m.clearChanges(nil)
	m.numberFamilies()
	m.moved = make([]bool, len(m.models))
	m.touched = make([]bool, len(m.models))
	m.servers = make([][]*instanceType, len(m.models))
	m.spareOver, m.decayKeeps = spareOver(m.target), 1
	m.shards, m.nowhere = []*shard{newShard(m)}, newShard(m)
	return m, nil
}

// Waiting returns how many queries wait, and how many of them are late.
func (m *Matcher) Waiting() (all, late int) { return m.waiting, m.lateWaiting }

// Models returns how many models the matcher knows.
func (m *Matcher) Models() int { return len(m.byName) }

// Waits reports whether a query waits for a lane.
func (m *Matcher) Waits(id QueryID) bool {
	q := m.queries[id]
	return q != nil && q.waiting
}

// A Reservation is an attempt at a lane, or on its way there, as the matcher knows it.
type Reservation struct {
	Query   QueryID
	Attempt int
	// Since is when the attempt was assigned, or first reported.
	Since time.Time
	// Latency is the predicted mean execution latency.
	Latency time.Duration
	// Claimed says that only the gateway has reported the attempt.
	Claimed bool
	// Told says that the lane has reported the attempt.
	Told bool
	// Live says that this attempt is the one that counts for its query.
	Live bool
}

// Holds appends the attempts that a lane holds, as far as known, to all, the oldest first.
func (m *Matcher) Holds(all []Reservation, id LaneID) []Reservation {
	if l := m.lanes[id]; l != nil {
		for i := range l.held {
			all = append(all, m.describeReservation(l, &l.held[i]))
		}
	}
	return all
}

// Has returns the reservation of an attempt at a lane; false if there is none.
func (m *Matcher) Has(id LaneID, query QueryID, attempt int) (Reservation, bool) {
	if l := m.lanes[id]; l != nil {
		if i := l.findReservation(query, attempt); i >= 0 {
			return m.describeReservation(l, &l.held[i]), true
		}
	}
	return Reservation{}, false
}

func (m *Matcher) describeReservation(l *lane, r *reservation) Reservation {
	return Reservation{
		Query: r.query, Attempt: r.attempt, Since: m.origin.Add(fromMs(r.since)),
		Latency: fromMs(r.latency),
		Claimed: r.claimed, Told: r.told, Live: m.liveQueryAt(l, r.query, r.attempt) != nil,
	}
}

// Load returns how many attempts a lane holds, as far as known, and how often it was asked what it
// holds since it is overdue; 0 if it is not overdue.
func (m *Matcher) Load(id LaneID) (holds, asked int) {
	if l := m.lanes[id]; l != nil {
		return len(l.held), l.asked
	}
	return 0, 0
}

// liveQueryAt returns the query whose live attempt is the given one at l, nil if there is none.
func (m *Matcher) liveQueryAt(l *lane, id QueryID, attempt int) *query {
	if q := m.queries[id]; q != nil && q.sent && q.lane == l && q.attempt == attempt {
		return q
	}
	return nil
}

// Step takes an event that happened at now. It returns decisions to carry out, in order, and when
// to call Step with TimePassed if nothing happens before. A zero next means never; one that has
// passed means as soon as all events until now are told. The decisions are valid until the next
// call. Time must not run backwards; an earlier now counts as the latest one seen.
//
// The error is about an event that makes no sense (an unknown lane or model, a lane that joins
// twice). The matcher has ignored the event; the decisions must still be carried out. Events of two
// parties that cross on the way, such as a cancel and a completion, are no error.
func (m *Matcher) Step(now time.Time, e *Event) (decisions []Decision, next time.Time, err error) {
	m.out = m.out[:0]
	if !m.started {
		m.started, m.origin = true, now
	}
	m.now = max(m.now, toMs(now.Sub(m.origin)))
	if m.pending && e.Kind != ProfileChanged {
		m.applyChanges()
	}
	err = m.apply(e)
	if m.pending && e.More {
		return m.out, now, err
	}
	if m.pending {
		m.applyChanges()
	}
	if e.Kind == TimePassed { // with another event, more that happened by now may still come
		m.remindOverdueLanes()
	}
	m.expireTimers()
	m.runDirtyShards()
	t, ok := m.timers.earliestTime()
	if due, any := m.dues.earliestTime(); any && (!ok || due < t) {
		t, ok = due, true
	}
	if ok {
		const never = 9e12 // ms; the most that a Duration holds is little more
		// one ns more, so that rounding does not put next before t
		next = m.origin.Add(time.Duration(min(t, never)*1e6) + 1)
	}
	return m.out, next, err
}

// runDirtyShards runs the policies of the shards for which something has changed, in the order of the
// shards. A shard in which something changes after its turn waits for the next step.
func (m *Matcher) runDirtyShards() {
	m.dirty, m.wereDirty = m.wereDirty[:0], m.dirty
	byIndex := func(a, b *shard) int { return a.index - b.index }
	slices.SortFunc(m.wereDirty, byIndex)
	for i := 0; i < len(m.wereDirty); i++ {
		s := m.wereDirty[i]
		if s.dirty = false; s.index >= len(m.shards) || m.shards[s.index] != s {
			continue
		}
		s.runPolicy()
		m.dirty = slices.DeleteFunc(m.dirty, func(o *shard) bool {
			later := o.index > s.index
			if later {
				m.wereDirty = append(m.wereDirty, o)
				slices.SortFunc(m.wereDirty[i+1:], byIndex)
			}
			return later
		})
	}
	clear(m.wereDirty)
}

// remindOverdueLanes asks the lanes that should have answered by now what they hold. The queries
// that they hold wait again.
func (m *Matcher) remindOverdueLanes() {
	for {
		t, ok := m.dues.earliestTime()
		if !ok || t > m.now {
			return
		}
		m.askOverdueLane(m.dues[0].lane, t)
	}
}

// askOverdueLane asks l, which should have answered at due, what it holds.
func (m *Matcher) askOverdueLane(l *lane, due float64) {
	l.asked++
	m.out = append(m.out, Decision{
		Action: Ask, Reason: LaneOverdue, Attempt: l.asked, Lane: l.id, Waited: fromMs(m.now - due),
	})
	l.setDue(m.now + overdueAgain)
	if !l.overdue {
		l.overdue = true
		m.countUsable(l, false)
		m.applyChanges()
		m.takeBack(l, LaneOverdue)
		l.shard.markDirty()
	}
}

// expireTimers handles the timers that are due by now.
func (m *Matcher) expireTimers() {
	for {
		t, ok := m.timers.earliestTime()
		if !ok || t > m.now {
			return
		}
		item := m.timers.pop()
		if l := item.lane; l != nil {
			l.shard.markDirty()
			// the lane has opened ahead of time, though not for lost queries
			if len(l.held) == 0 && l.freeAt > m.now {
				m.timers.set(&l.timer, l.freeAt)
			}
			continue
		}
		m.enforceDeadline(item.query)
	}
}

// enforceDeadline checks a waiting query. It rejects a query past its deadline, moves one whose QoS
// target no type can meet any more to the late ones, and sets the timer of a query that goes on
// waiting.
func (m *Matcher) enforceDeadline(q *query) {
	switch {
	case q.deadline <= m.now:
		m.rejectQuery(q, DeadlinePassed, 0)
		return
	case !q.isLate && q.lostAt <= m.now:
		if q.family.rejectLate {
			q.shard.adaptToLoss(q)
			m.rejectQuery(q, Late, q.shard.backlogMs(q))
			return
		}
		if q.shard.becomesLate(q); !q.waiting {
			return
		}
	}
	due := q.deadline
	if !q.isLate {
		due = min(due, q.lostAt)
	}
	m.timers.set(&q.timer, due)
}

func (m *Matcher) apply(e *Event) error {
	switch e.Kind {
	case TimePassed:
		return nil
	case Submitted:
		if l := m.lanes[e.Lane]; l != nil && e.Lane != 0 && e.Attempt > 0 {
			m.takeSentQuery(e, l)
		} else {
			m.submit(e)
		}
		return nil
	case Cancelled:
		if q := m.queries[e.Query]; q != nil {
			m.cancel(q)
		}
		m.eachPart(e.Query, m.cancel)
		return nil
	case GatewayLost:
		m.changed = m.changed[:0]
		for id, q := range m.queries {
			if id.Gateway == e.Query.Gateway {
				m.changed = append(m.changed, q)
			}
		}
		slices.SortFunc(m.changed, byArrival)
		for _, q := range m.changed {
			m.cancel(q)
		}
		return nil
	case LaneJoined:
		return m.joinLane(e)
	case ModelChanged:
		return m.changeModel(e)
	case ModelGone:
		return m.forgetModel(e.Model)
	case AheadChanged:
		if e.Ahead < 0 {
			return fmt.Errorf("dispatch ahead is %v, want >= 0", e.Ahead)
		}
		m.ahead = toMs(e.Ahead)
		for _, l := range m.all {
			l.setFree(l.freeAt)
			l.shard.markDirty()
		}
		return nil
	case ProfileChanged:
		return m.setProfile(e)
	case PricesChanged:
		for i := range e.Prices {
			if err := validatePrice(&e.Prices[i]); err != nil {
				return err
			}
		}
		for _, t := range m.types {
			t.unsetPrice()
		}
		for i := range e.Prices {
			m.instanceType(e.Prices[i].Type).setPrice(&e.Prices[i])
		}
		m.setPrices(func(yield func(*laneSpec) bool) {
			for _, l := range m.all {
				if !yield(&l.laneSpec) {
					return
				}
			}
		})
		m.forgetTypes()
		return nil
	}
	return m.applyToLane(e)
}

// applyToLane applies an event of one lane.
func (m *Matcher) applyToLane(e *Event) error {
	l := m.lanes[e.Lane]
	if l == nil {
		// a lane that is lost already may still answer
		if e.Kind == Completed || e.Kind == Refused {
			return nil
		}
		return fmt.Errorf("lane %d: %v, but no such lane has joined", e.Lane, e.Kind)
	}
	if e.Remaining < 0 {
		return fmt.Errorf("lane %d: %v with remaining time %v, want >= 0", e.Lane, e.Kind,
			e.Remaining)
	}
	switch e.Kind {
	case Completed, Refused:
		if q := m.liveQueryAt(l, e.Query, e.Attempt); q != nil && e.Kind == Completed {
			l.adaptMargin(q)
		}
		l.release(e.Query, e.Attempt)
		l.noteAnswer(toMs(e.Remaining))
		if q := m.liveQueryAt(l, e.Query, e.Attempt); q == nil {
		} else if e.Kind == Completed {
			m.deleteQuery(q)
		} else {
			m.offerAgain(q, LaneRefused)
		}
		m.backInTime(l)
	case Unused:
		if !l.release(e.Query, e.Attempt) {
			return nil // a gateway may not change another gateway's queries
		}
		rest := 0.0
		for i := range l.held {
			rest += l.held[i].latency
		}
		l.noteAnswer(rest)
		if q := m.liveQueryAt(l, e.Query, e.Attempt); q != nil {
			m.offerAgain(q, LaneRefused)
		}
		m.backInTime(l)
	case LaneHas:
		m.laneHas(l, e)
	case LaneLost:
		delete(m.lanes, l.id)
		m.all = slices.DeleteFunc(m.all, func(o *lane) bool { return o == l })
		m.timers.remove(&l.timer)
		m.dues.remove(&l.due)
		l.overdue = true // the queries in its queue must wait elsewhere
		m.withdrawLane(l)
		m.applyChanges()
		m.takeBack(l, LaneGone)
	case LaneDraining:
		l.draining = true
		m.countUsable(l, false)
		m.applyChanges()
	case LaneEnds:
		ends := math.Inf(1)
		if e.Remaining > 0 {
			ends = m.now + toMs(e.Remaining)
		}
		m.reclassLane(l, l.typ, m.setOf(l.set.models, ends))
		m.applyChanges()
	case LaneModels:
		holds, err := m.heldModels(e)
		if err != nil {
			return err
		}
		typ := l.typ
		if e.Type != "" {
			typ = m.instanceType(e.Type)
		}
		m.reclassLane(l, typ, m.setOf(holds, l.ends))
		m.applyChanges()
	case LaneRemaining:
		l.setFree(m.now + toMs(e.Remaining))
		if len(l.held) > 0 && !l.overdue {
			l.setDue(m.now + toMs(e.Remaining) + l.held[0].grace)
		}
	default:
		return fmt.Errorf("event of unknown kind %d", e.Kind)
	}
	l.shard.markDirty()
	return nil
}

func (m *Matcher) submit(e *Event) {
	if known := m.queries[e.Query]; known != nil {
		if e.Attempt <= known.attempt {
			return
		}
		m.cancel(known) // its gateway has made attempts on its own since
	} else if e.Attempt == 0 && m.hasParts(e.Query) {
		return // the gateway submitted it before it was split
	}
	reason := Matched
	switch {
	case e.Attempt >= MaxAttempts:
		reason = TooManyAttempts
	case m.waiting >= m.cfg.MaxWaiting:
		reason = Overloaded
	}
	q := m.admitQuery(e, reason)
	if q == nil {
		return
	}
	if m.wait(q); q.waiting {
		q.shard.noteArrival(q)
		q.shard.turnAway(q)
	}
}

// laneHas makes l's reservations agree with the report of what it holds.
func (m *Matcher) laneHas(l *lane, e *Event) {
	var gone []reservation
	coming := 0.0 // work on its way, which the lane did not count
	l.held = slices.DeleteFunc(l.held, func(r reservation) bool {
		switch {
		case slices.ContainsFunc(e.Holds,
			func(h Held) bool { return h.Query == r.query && h.Attempt == r.attempt }):
			return false
		case !r.told && m.now-r.since <= onTheWay+2*m.ahead:
			coming += r.latency
			return false
		}
		gone = append(gone, r)
		return true
	})
	for _, h := range e.Holds {
		model, known := m.byName[h.Model]
		if i := l.findReservation(h.Query, h.Attempt); i >= 0 {
			l.held[i].told, l.held[i].claimed = true, false
		} else if known {
			l.addReservation(reservation{
				query: h.Query, attempt: h.Attempt, latency: l.predictMean(model, h.BatchSize),
				grace: l.overdueGrace(model, h.BatchSize), since: m.now, told: true,
			})
		}
	}
	late := l.overdue && len(gone) == 0 && len(l.held) > 0 // it remains overdue
	if !late {
		l.noteAnswer(toMs(e.Remaining))
	}
	l.setFree(m.now + toMs(e.Remaining) + coming)
	for _, r := range gone {
		if q := m.liveQueryAt(l, r.query, r.attempt); q != nil {
			m.offerAgain(q, LaneRefused)
		}
	}
	if !late {
		m.backInTime(l)
	}
}

// takeSentQuery takes a submitted query that is at lane l already.
func (m *Matcher) takeSentQuery(e *Event, l *lane) {
	if known := m.queries[e.Query]; known != nil {
		if known.sent && (e.Attempt < known.attempt ||
			e.Attempt == known.attempt && known.lane == l) {
			return
		}
		m.cancel(known) // the gateway knows better where it is
	}
	q := m.admitQuery(e, Matched)
	if q == nil {
		return
	}
	q.sent, q.lane = true, l
	// Which variant runs there is not said; the lane says so when it greets.
	if q.model, _ = l.inTime(q, math.Inf(1)); q.model < 0 {
		q.model = q.allowedVariants()[0].model
	}
	if l.findReservation(q.id, q.attempt) < 0 {
		latency, wait := l.predictMean(q.model, q.batch), max(0, l.freeAt-m.now)
		l.reserveWait(
			reservation{
				query: q.id, attempt: q.attempt, latency: latency, grace: l.overdueGrace(q.model,
					q.batch),
				since: m.now, claimed: true,
			}, wait)
		l.setFree(m.now + wait + latency)
	}
	if l.overdue {
		m.offerAgain(q, LaneOverdue)
	}
}

// admitQuery makes a query from a Submitted event, or rejects it: because of its fields, or for the
// given reason unless that is Matched.
func (m *Matcher) admitQuery(e *Event, reason Reason) *query {
	part := e.Splits && e.Query.IsPart()
	if whole := m.queries[e.Query.Whole()]; part && whole != nil {
		m.cancel(whole)
	} else if !part {
		m.eachPart(e.Query, m.cancel)
	}
	add := query{
		id: e.Query, family: m.lookupFamily(e.Model), accuracy: e.LeastAccuracy, batch: e.BatchSize,
		arrival: m.now - toMs(max(0, e.Waited)), deadline: math.Inf(1), attempt: max(0, e.Attempt),
		splits: e.Splits, part: part, rows: cmp.Or(e.Rows, e.BatchSize), once: e.Once,
		flowKey: flowOfBand(e.Band, e.Tenant), weight: weightOrOne(e.Weight),
	}
	switch {
	case add.family == nil || len(add.family.variants) == 0:
		reason = UnknownModel
	case add.rows < 1 || !add.fitsWithin(add.family.largest):
		reason = BadBatchSize
	case len(add.allowedVariants()) == 0:
		reason = LeastAccuracy
	}
	if reason == Matched {
		add.model = add.allowedVariants()[0].model
	} else {
		m.out = append(m.out, Decision{
			Action: Reject, Reason: reason, Query: e.Query, Attempt: e.Attempt,
		})
		if part {
			m.eachPart(e.Query.Whole(), m.cancel)
		}
		return nil
	}
	if e.TimeLeft > 0 {
		add.deadline = m.now + toMs(e.TimeLeft)
	}
	return m.add(add)
}

// add adds a query to the matcher.
func (m *Matcher) add(as query) *query {
	q := m.free
	if q == nil {
		q = &query{}
	} else {
		m.free = q.nextFree
	}
	*q = as
	q.timer = timer{at: -1, query: q}
	m.queries[q.id] = q
	if q.part {
		m.parts++
	}
	return q
}

// wait makes q wait (again).
func (m *Matcher) wait(q *query) {
	q.lane, q.sent = nil, false
	switch { // the family has changed since
	case !q.fitsWithin(q.family.largest):
		m.rejectQuery(q, BadBatchSize, 0)
		return
	case len(q.allowedVariants()) == 0 && len(q.family.variants) > 0:
		m.rejectQuery(q, LeastAccuracy, 0)
		return
	}
	q.bound = m.computeBound(q)
	m.routeQuery(q).addLive(q)
	m.enforceDeadline(q)
	if q.waiting {
		q.shard.policy.enqueueArrival(q.shard, q)
	}
}

// computeBound computes what the pool can do for q at best.
func (m *Matcher) computeBound(q *query) bound {
	target := q.family.target
	b := bound{sizeClass: baseOnly, least: math.Inf(1), lostAt: q.arrival + target}
	for _, v := range q.allowedVariants() {
		for _, t := range m.servers[v.model] {
			latency := t.served[v.model].mean[q.batch]
			b.least = min(b.least, latency)
			if !t.base && latency <= target {
				b.sizeClass = shared
			}
		}
	}
	if !math.IsInf(b.least, 1) {
		b.lostAt -= b.least
	}
	return b
}

// backInTime ends l's being overdue, if it was: it may be given queries again.
func (m *Matcher) backInTime(l *lane) {
	if l.overdue {
		l.overdue, l.asked = false, 0
		m.countUsable(l, l.isUsable())
		m.applyChanges()
	}
}

// takeBack offers the queries that l holds again.
func (m *Matcher) takeBack(l *lane, why Reason) {
	for i := range l.held {
		if q := m.liveQueryAt(l, l.held[i].query, l.held[i].attempt); q != nil {
			m.offerAgain(q, why)
		}
	}
}

func (m *Matcher) offerAgain(q *query, why Reason) {
	if q.attempt >= MaxAttempts {
		m.rejectQuery(q, TooManyAttempts, 0)
		return
	}
	m.out = append(
		m.out,
		Decision{Action: OfferAgain, Reason: why, Query: q.id, Attempt: q.attempt, Lane: q.lane.id,
			Waited: fromMs(m.now - q.arrival)})
	if m.wait(q); q.waiting {
		q.shard.noteArrival(q)
	}
}

// rejectQuery rejects q, and so the query of which q is a part. wait, in ms, is about how long the
// client is to wait before it tries again.
func (m *Matcher) rejectQuery(q *query, why Reason, wait float64) {
	m.out = append(m.out, Decision{
		Action: Reject, Reason: why, Query: q.id, Attempt: q.attempt,
		Waited: fromMs(m.now - q.arrival), Wait: fromMs(wait),
	})
	id, part := q.id.Whole(), q.part
	m.deleteQuery(q)
	if part {
		m.eachPart(id, m.deleteQuery)
	}
}

// cancel forgets q, and its reservation if only the gateway has reported it: the lane may have
// answered long ago, to another leader.
func (m *Matcher) cancel(q *query) {
	if l := q.lane; q.sent {
		if i := l.findReservation(q.id, q.attempt); i >= 0 && l.held[i].claimed {
			free := l.freeAt - l.held[i].latency
			l.held = slices.Delete(l.held, i, i+1)
			l.setFree(max(m.now, free))
			if len(l.held) == 0 {
				m.dues.remove(&l.due)
				m.backInTime(l)
			}
			l.shard.markDirty()
		}
	}
	m.deleteQuery(q)
}

// deleteQuery removes q from the matcher. A lane to which it was sent stays reserved until the lane
// answers.
func (m *Matcher) deleteQuery(q *query) {
	if q.waiting {
		q.shard.removeWaiting(q)
		q.shard.markDirty()
	}
	delete(m.queries, q.id)
	if q.part {
		m.parts--
	}
	*q = query{nextFree: m.free}
	m.free = q
}

func (m *Matcher) joinLane(e *Event) error {
	if m.lanes[e.Lane] != nil {
		return fmt.Errorf("lane %d: joins, but has joined before", e.Lane)
	}
	if e.Remaining < 0 {
		return fmt.Errorf("lane %d: joins with remaining time %v, want >= 0", e.Lane, e.Remaining)
	}
	holds, err := m.heldModels(e)
	if err != nil {
		return err
	}
	l := &lane{
		m: m, id: e.Lane, timer: timer{at: -1}, due: timer{at: -1},
		idle: spareTime{share: 1, since: m.now},
	}
	l.timer.lane, l.due.lane, l.queue.lane = l, l, l
	m.lanes[l.id] = l
	i, _ := slices.BinarySearchFunc(m.all, l.id,
		func(o *lane, id LaneID) int { return int(o.id) - int(id) })
	m.all = slices.Insert(m.all, i, l)
	m.enrollLane(l, m.instanceType(e.Type), m.setOf(holds, math.Inf(1)))
	m.applyChanges()
	l.setFree(m.now + toMs(e.Remaining))
	return nil
}

// heldModels returns the models that the event's lane holds, in order.
func (m *Matcher) heldModels(e *Event) ([]int, error) {
	m.held = m.held[:0]
	for _, name := range e.Models {
		i, ok := m.byName[name]
		if !ok {
			return nil, fmt.Errorf("lane %d holds model %q, configured are: %s", e.Lane, name,
				strings.Join(m.modelNames(), ", "))
		}
		m.held = append(m.held, i)
	}
	slices.Sort(m.held)
	return slices.Compact(m.held), nil
}

func (m *Matcher) modelNames() []string {
	var all []string
	for _, model := range m.models {
		if model.Name != "" {
			all = append(all, string(model.Name))
		}
	}
	return all
}

func (m *Matcher) setProfile(e *Event) error {
	model, ok := m.byName[e.Model]
	if !ok {
		return fmt.Errorf("profile of model %q on %s, configured are: %s", e.Model, e.Type,
			strings.Join(m.modelNames(), ", "))
	}
	if e.Table != nil && e.Table.Largest() < m.models[model].LargestBatchSize {
		return fmt.Errorf("profile of model %q on %s: ends at batch size %d, want %d", e.Model,
			e.Type, e.Table.Largest(), m.models[model].LargestBatchSize)
	}
	t := m.instanceType(e.Type)
	t.doubtful[model] = e.Doubtful
	m.setTable(t, model, e.Table)
	m.changeAllShards()
	return nil
}

// changeModel adds a model or changes one.
func (m *Matcher) changeModel(e *Event) error {
	model := e.modelSettings()
	if err := model.validate(); err != nil {
		return err
	}
	i, known := m.byName[e.Model]
	if !known {
		if i = slices.IndexFunc(m.models, func(m Model) bool { return m.Name == "" }); i < 0 {
			i = len(m.models)
			m.models, m.target = append(m.models, model), append(m.target, 0)
			for _, t := range m.types {
				t.tables, t.coefficient, t.lanes = append(t.tables, nil), append(t.coefficient,
					0), append(t.lanes, 0)
				t.served, t.doubtful = append(t.served, nil), append(t.doubtful, false)
				t.margins = append(t.margins, margin{})
			}
			for _, s := range m.sets {
				s.holds = append(s.holds, false)
			}
			for _, l := range m.all {
				l.holds = l.set.holds
			}
			m.moved, m.touched = append(m.moved, false), append(m.touched, false)
			m.servers = append(m.servers, nil)
		}
		m.byName[e.Model] = i
	}
	was := m.models[i].Family
	m.models[i], m.target[i] = model, toMs(model.QoSTarget)
	m.catalogue.applyModelChange(m.models, i, was)
	m.spareOver = spareOver(m.target)
	for _, t := range m.types {
		t.stale = true
		if t.tables[i] != nil && t.tables[i].Largest() < model.LargestBatchSize {
			m.setTable(t, i, nil)
		}
	}
	m.markModelChanged(i)
	m.numberFamilies()
	m.changeAllShards()
	return nil
}

// forgetModel forgets a model. The next new model takes its index, so no other model's index
// changes.
func (m *Matcher) forgetModel(name names.ModelKey) error {
	i, known := m.byName[name]
	if !known {
		return fmt.Errorf("model %q is gone, configured are: %s", name,
			strings.Join(m.modelNames(), ", "))
	}
	for _, l := range m.all {
		if l.holds[i] {
			return fmt.Errorf("model %q is gone, but lane %d holds it", name, l.id)
		}
	}
	for _, q := range m.queries {
		if q.family == m.alone[i] || q.sent && q.model == i {
			return fmt.Errorf("model %q is gone, but query %v asks for it", name, q.id)
		}
	}
	delete(m.byName, name)
	was := m.models[i].Family
	m.models[i], m.target[i] = Model{}, 0
	m.catalogue.applyModelChange(m.models, i, was)
	m.spareOver = spareOver(m.target)
	for _, t := range m.types {
		t.stale, t.margins[i] = true, margin{}
		m.setTable(t, i, nil)
	}
	m.markModelChanged(i)
	m.numberFamilies()
	m.changeAllShards()
	return nil
}

// forgetTypes forgets the types that have no lane, no profile and no price.
func (m *Matcher) forgetTypes() {
	m.types = slices.DeleteFunc(m.types, func(t *instanceType) bool {
		unused := math.IsNaN(t.price) && t.known == 0 && t.all == 0
		if unused {
			delete(m.typeByName, t.name)
		}
		return unused
	})
}

func (m *Matcher) instanceType(name names.LaneType) *instanceType {
	t := m.typeByName[name]
	if t == nil {
		t = newInstanceType(name, len(m.models))
		m.types, m.typeByName[name] = append(m.types, t), t
	}
	return t
}

// setTable sets what is known of a model on a type; nil means nothing.
func (m *Matcher) setTable(t *instanceType, model int, table *LatencyTable) {
	if t.tables[model] != nil {
		t.known--
	}
	if table != nil {
		t.known++
	}
	t.tables[model], t.stale = table, true
	m.markModelChanged(model)
}

// changes is what has changed since the last arrange, but for the lanes; see [layout].
type changes struct {
	pending bool // arrange is to be called
	// generation counts the changes: as long as it stays the same, so do the usable lanes of each
	// shard, what they hold, and the families.
	generation uint64
	// touched says, by model, that the first usable lane of a type now holds it or the last one
	// does not any more, or that its latency or its settings have changed. touches lists these
	// models.
	touched []bool
	touches []int
	// moved says, by model, that the bounds of its queries may have changed, and anyMoved that some
	// have.
	moved    []bool
	anyMoved bool
	// servers are, by model, the types that serve it.
	servers [][]*instanceType
	held    []int // scratch
}

// markModelChanged notes that what depends on which types serve a model, and how fast, may have
// changed.
func (m *Matcher) markModelChanged(model int) {
	if !m.touched[model] {
		m.touched[model], m.touches = true, append(m.touches, model)
	}
}

// changeAllShards notes a change that concerns all shards.
func (m *Matcher) changeAllShards() {
	m.pending = true
	for _, s := range m.shards {
		s.markDirty()
	}
}

// applyChanges recomputes what depends on the lanes and profiles that have changed since it was
// called last: the coefficients and the order of the types, the shards and their lanes, and where
// and until when each waiting query waits. Queries for which nothing has changed keep their place.
//
// Its cost is in proportion to what has changed: a lane that joins or leaves costs the models that
// it holds, a look at each shard, and the queries of its shard that it alone could serve.
func (m *Matcher) applyChanges() {
	m.pending = false
	m.generation++
	m.recomputeTypes()
	m.forgetTypes()
	m.assignLanesToShards()
	for _, s := range m.shards {
		if s.unsorted {
			m.visited += len(s.lanes)
			s.sortLanes()
		}
	}
	m.changed = m.changed[:0]
	m.findChanged()
	for _, i := range m.touches {
		m.touched[i], m.moved[i] = false, false
	}
	if m.anyMoved {
		clear(m.moved)
	}
	m.touches, m.anyMoved, m.dealt, m.split = m.touches[:0], false, false, false
	clear(m.departed)
	clear(m.closed)
	m.departed, m.closed = m.departed[:0], m.closed[:0]
	m.clearChanges(m.queries)
	m.reentered += len(m.changed)
	slices.SortFunc(m.changed, byArrival)
	for _, q := range m.changed {
		q.entersAgain = false
		q.shard.removeWaiting(q)
	}
	for _, q := range m.changed {
		if m.queries[q.id] == q { // not rejected with another part of the same query
			m.wait(q)
		}
	}
}

// findChanged collects the queries that must enter a shard or a queue again.
func (m *Matcher) findChanged() {
	if m.dealt || m.anyMoved || m.anyRenewed {
		for _, s := range m.shards {
			m.findUnsure(s, nil)
		}
		for _, s := range m.closed {
			m.findUnsure(s, nil)
		}
		m.findUnsure(m.nowhere, nil)
	}
	for i := range m.departed {
		gone := &m.departed[i]
		for q := gone.lane.queue.queries.First(); q != nil; q = q.inQueue.Next() {
			m.enterAgain(q, false)
		}
		like := func(l *lane) bool {
			return l.typ == gone.typ && l.set == gone.set && l.counted
		}
		if !m.dealt && !slices.ContainsFunc(gone.shard.lanes, like) {
			m.findUnsure(gone.shard, gone.set)
		}
	}
}

// findUnsure collects the queries of s that may have to wait elsewhere. If lost is not nil, they
// include those that a lane with this set could serve.
func (m *Matcher) findUnsure(s *shard, lost *modelSet) {
	late := false
	for _, k := range s.classes {
		all := k.allowedVariants()
		k.moved = slices.ContainsFunc(all, func(v variant) bool { return m.moved[v.model] })
		k.unsure = k.moved || m.dealt || k.family.renewed || lost != nil &&
			slices.ContainsFunc(all, func(v variant) bool { return lost.holds[v.model] })
		if !k.unsure {
			continue
		}
		late = late || k.late > 0
		for q := k.live.First(); q != nil; q = q.inClass.Next() {
			m.enterAgain(q, k.moved)
		}
	}
	if late {
		for q := s.late.First(); q != nil; q = q.inShard.Next() {
			if q.class.unsure {
				m.enterAgain(q, q.class.moved)
			}
		}
	}
}

// enterAgain collects q, which must then enter a shard again, unless q may keep its place. moved
// says that q's bound may have changed.
func (m *Matcher) enterAgain(q *query, moved bool) {
	m.visited++
	if !q.entersAgain && (m.split || q.family.renewed || !q.shard.keepsQuery(q, moved) ||
		moved && q.bound != m.computeBound(q)) {
		q.entersAgain = true
		m.changed = append(m.changed, q)
	}
}

// addFamilySpeed adds a family to what is known of t's speed.
func (t *instanceType) addFamilySpeed(f *family) {
	largest := math.Inf(1)
	for _, v := range f.variants {
		if t.tables[v.model] != nil {
			largest = min(largest, t.tables[v.model].mean[f.largest])
		}
	}
	if math.IsInf(largest, 1) {
		t.slowness += 1e3
		return
	}
	t.slowness += largest / f.target
	t.base = t.base && largest <= f.target
}

// recomputeTypes recomputes for each type what depends on the lanes and profiles that have changed,
// and notes the models whose queries' bound may have changed.
func (m *Matcher) recomputeTypes() {
	m.assessTypes()
	for _, i := range m.touches {
		largest := m.models[i].LargestBatchSize
		fastest := math.Inf(1)
		for _, t := range m.types {
			if t.lanes[i] > 0 && t.tables[i] != nil {
				fastest = min(fastest, t.tables[i].mean[largest])
			}
		}
		clear(m.servers[i])
		m.servers[i] = m.servers[i][:0]
		for _, t := range m.types {
			t.coefficient[i] = 0
			if t.tables[i] != nil {
				t.coefficient[i] = min(1, fastest/t.tables[i].mean[largest])
			}
			was := t.served[i]
			if t.served[i] = nil; t.lanes[i] > 0 && t.tables[i] != nil {
				t.served[i] = t.tables[i]
				m.servers[i] = append(m.servers[i], t)
			}
			if t.served[i] != was {
				m.moved[i], m.anyMoved = true, true
			}
		}
	}
	if len(m.touches) > 0 {
		for _, s := range m.shards {
			s.markDirty()
		}
	}
}

// assessTypes recomputes the speed of the types of which other tables are known, or all if a model
// has changed, and their ranks.
func (m *Matcher) assessTypes() {
	var stale []*instanceType
	var wasBase []bool
	for _, t := range m.types {
		if t.stale {
			stale, wasBase = append(stale, t), append(wasBase, t.base)
			t.base, t.slowness, t.stale = true, 0, false
		}
	}
	if stale == nil {
		return
	}
	for f := range m.allFamilies(m.models) {
		for _, t := range stale {
			if len(f.variants) > 0 {
				t.addFamilySpeed(f)
			}
		}
	}
	for k, t := range stale {
		if t.base != wasBase[k] {
			for i := range m.models {
				if t.served[i] != nil {
					m.moved[i], m.anyMoved = true, true
				}
			}
		}
	}
	order := slices.Clone(m.types)
	slices.SortFunc(order, func(a, b *instanceType) int {
		return cmp.Or(cmp.Compare(a.slowness, b.slowness), cmp.Compare(a.name, b.name))
	})
	before := -1
	for i, t := range order {
		if t.rank >= 0 {
			if t.rank < before { // two types have changed places
				for _, s := range m.shards {
					s.unsorted = true
				}
			}
			before = t.rank
		}
		t.rank = i
	}
}
