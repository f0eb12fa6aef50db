package match

import (
	"math"
	"slices"

	"github.com/muster-serve/muster/api/list"
)

// A query is a query that waits or is sent to a lane. The memory of queries is reused.
type query struct {
	id       QueryID
	family   *family // what it asks for
	accuracy float64 // the least that its answer must have
	// model is the variant that it is sent to run; while horizon merges queries, also the one with
	// which it is planned.
	model    int
	batch    int
	arrival  float64
	deadline float64 // +Inf: none
	bound
	cost     float64 // what the cheapest time costs in which its shard answers it, blurred
	lateWork float64 // its part of the shard's lateWork, while it waits and is late
	attempt  int     // number of the last assignment; 0: none yet
	splits   bool    // its gateway can split it
	part     bool    // it is a part of a query that was split

	lost    bool  // its demand counts it as lost
	waiting bool  // in a list of its shard
	isLate  bool  // waiting, and lost
	sent    bool  // to lane
	lane    *lane // the lane to which it is sent
	shard   *shard

	inShard list.Node[query] // in live or late
	class   *queryClass      // while it waits
	inClass list.Node[query]
	// plannedFor and plannedCost say where horizon has planned a row, while it merges queries.
	plannedFor  *instanceType
	plannedCost float64

	queue      *queue // the policy's queue that it waits in; may be nil
	inQueue    list.Node[query]
	queuedWork float64
	timer      timer

	entersAgain bool   // scratch of arrange
	nextFree    *query // while its memory is unused
}

// A bound says what the pool can do at best for a query.
type bound struct {
	lostAt    float64 // a query that still waits then can meet its QoS target on no type
	sizeClass int     // size class
	least     float64 // the least mean latency on any type in the pool; +Inf: none serves it
}

// waitingWork is what the query adds to the work of the waiting queries; 0, which stands for
// unknown, if no lane serves it.
func (b bound) waitingWork() float64 {
	if math.IsInf(b.least, 1) {
		return 0
	}
	return b.least
}

// All in ms but the first. A lane is overdue when its answer is late by overdueQuantiles times the
// 99 % quantile of the latency and by at least overdueLeast, or overdueDoubt while the latency is
// hardly known. It is asked again what it holds every overdueAgain. A query may take onTheWay,
// beside twice the usual time, to reach its lane after it was assigned or after its gateway said
// where it is.
const (
	overdueQuantiles = 3
	overdueLeast     = 100
	overdueDoubt     = 1000
	overdueAgain     = 2000
	onTheWay         = 20
)

// LaneDepth is how many unanswered queries a lane may have, running ones included. Those that run
// together count as one. It has more than two only if they are short compared with DispatchAhead.
const LaneDepth = 8

// A laneSpec is what a lane is and which models it holds.
type laneSpec struct {
	typ   *instanceType
	holds []bool // by model
	lanePrice
}

// A lane as the matcher knows it.
type lane struct {
	m  *Matcher
	id LaneID
	laneSpec
	set     *modelSet
	class   *laneClass
	shard   *shard
	placed  bool      // among the shard's lanes
	counted bool      // among the usable lanes
	idle    spareTime // kept while there are families

	freeAt   float64
	ends     float64       // its set's
	held     []reservation // attempts sent and not answered, the oldest first
	draining bool
	overdue  bool
	asked    int // how often it was asked what it holds since it is overdue
	timer    timer
	// due is when the lane should have answered or is asked again; it is set while the lane holds
	// something.
	due timer

	started int // shard.starts when it last got a query

	queue queue // waiting queries, for policies that queue them at lanes
}

// A reservation is an attempt that the lane has not answered.
type reservation struct {
	query   QueryID
	family  *family // nil if it is unknown
	attempt int
	latency float64 // predicted
	grace   float64 // how late its answer may be before the lane is overdue
	since   float64 // when it was assigned, or first reported
	claimed bool    // reported by the gateway, not by the lane
	told    bool    // the lane has confirmed it
	joined  bool    // it was to run together with the one before; latency is what it adds
	run     uint64  // those that run together have the same number
}

// isUsable reports whether l may be given queries, now or later.
func (l *lane) isUsable() bool { return !l.draining && !l.overdue }

// open reports whether l may be given a query now.
func (l *lane) open() bool {
	if !l.isUsable() {
		return false
	}
	if l.m.ahead > 0 {
		// A lane that is late with an answer gets no more: nobody knows when it will be free.
		return l.freeAt <= l.m.now+l.m.ahead && (len(l.held) == 0 ||
			l.freeAt >= l.m.now && l.hasRoom())
	}
	return len(l.held) == 0 && l.freeAt <= l.m.now
}

// hasRoom reports whether l, which holds a query, may be given another before it answers: one that
// follows, or more while all that it holds is known to take no longer than the way to the lane.
func (l *lane) hasRoom() bool {
	runs := l.countRuns()
	if runs <= 1 {
		return true
	}
	held := 0.0
	for i := range l.held {
		if l.held[i].latency == 0 && !l.held[i].joined {
			return false
		}
		held += l.held[i].latency
	}
	return runs < LaneDepth && held <= l.m.ahead
}

// start returns in how many ms a query given to l now, or as soon as l may be given one, would
// start.
func (l *lane) start() float64 { return max(l.m.ahead, l.freeAt-l.m.now) }

// outlastsRun reports whether a query that l is given next, and that takes so long there, would
// very likely end before l does; false if t is nil.
func (l *lane) outlastsRun(t *Table, batch int) bool { return l.lastsFrom(l.start(), t, batch) }

// lastsFrom is lasts of a query that starts there in start ms.
func (l *lane) lastsFrom(start float64, t *Table, batch int) bool {
	return t != nil && (math.IsInf(l.ends, 1) || l.m.now+start+t.tail[batch] <= l.ends)
}

// meanLatency returns the predicted mean latency of q on l by the fastest variant; +Inf if l does
// not serve q.
func (l *lane) meanLatency(q *query) float64 {
	if _, t := l.fastestVariant(q); t != nil {
		return t.mean[q.batch]
	}
	return math.Inf(1)
}

// canServe reports whether l holds a variant that may answer q and its latency is known.
func (l *lane) canServe(q *query) bool {
	_, t := l.fastestVariant(q)
	return t != nil
}

// setFree sets when l will be free, and a timer for when l opens without an answer.
func (l *lane) setFree(at float64) {
	l.freeAt = at
	opens := at - l.m.ahead
	if opens <= l.m.now && len(l.held) == 0 {
		opens = at // it has opened ahead of time, though not for lost queries
	}
	if opens > l.m.now && (len(l.held) == 0 || l.m.ahead > 0) {
		l.m.timers.set(&l.timer, opens)
	} else {
		l.m.timers.remove(&l.timer)
	}
}

// release removes an attempt's reservation at l, and reports whether there was one.
func (l *lane) release(id QueryID, attempt int) bool {
	i := l.findReservation(id, attempt)
	if i >= 0 {
		l.held = slices.Delete(l.held, i, i+1)
	}
	return i >= 0
}

// reserveWait reserves l for an attempt that l has, or gets after the given wait.
func (l *lane) reserveWait(r reservation, wait float64) {
	l.addReservation(r)
	if len(l.held) == 1 {
		l.setDue(l.m.now + wait + r.latency + r.grace)
	}
}

// addReservation adds a reservation, which begins a run unless it joins one.
func (l *lane) addReservation(r reservation) {
	if r.joined {
		r.run = l.held[len(l.held)-1].run
	} else {
		l.m.runs++
		r.run = l.m.runs
	}
	l.held = append(l.held, r)
}

// noteAnswer notes that l has answered, and that by its own account it has work for the given time
// left.
func (l *lane) noteAnswer(remaining float64) {
	held, grace, end := 0.0, 0.0, 0.0
	for i := range l.held {
		r := &l.held[i]
		held += r.latency
		grace = max(grace, r.grace)
		// The lane's account leaves out queries on their way to it, which it starts when they
		// arrive.
		if !r.told && !r.claimed {
			end = max(end, r.since+l.m.ahead)
		}
		end += r.latency
	}
	// The account may also leave out a query that has just started there.
	l.setFree(max(l.m.now+max(remaining, held-l.m.ahead), end))
	l.setDue(l.m.now + max(remaining, held) + grace)
}

// setDue sets when l should have answered, if it holds anything.
func (l *lane) setDue(at float64) {
	if len(l.held) == 0 {
		l.m.dues.remove(&l.due)
	} else {
		l.m.dues.set(&l.due, at)
	}
}

// overdueGrace returns how late a query's answer may be before l is overdue.
func (l *lane) overdueGrace(model, batch int) float64 {
	t := l.typ.tables[model]
	if t == nil || batch < 1 || batch > t.Largest() {
		return overdueDoubt
	}
	least := float64(overdueLeast)
	if l.typ.doubtful[model] {
		least = overdueDoubt
	}
	return max(least, overdueQuantiles*t.tail[batch])
}

// findReservation returns the index in held of an attempt, -1 if it is not there.
func (l *lane) findReservation(id QueryID, attempt int) int {
	return slices.IndexFunc(l.held,
		func(r reservation) bool { return r.query == id && r.attempt == attempt })
}

// predictMean returns the predicted mean latency of a query on l, 0 if it is unknown.
func (l *lane) predictMean(model, batch int) float64 {
	if t := l.typ.tables[model]; t != nil && batch >= 1 && batch <= t.Largest() {
		return t.mean[batch]
	}
	return 0
}

// A queue holds waiting queries in the order of their arrival, for a policy: the queries queued at
// one lane, or those of one kind.
type queue struct {
	lane    *lane // the lane that has the queue; nil if none has it
	queries list.List[query]
	work    float64 // the sum of the predicted latencies
}

// push adds q, whose predicted latency is given in ms.
func (u *queue) push(q *query, latency float64) {
	q.queue, q.queuedWork = u, latency
	u.queries.InsertSorted(q, &q.inQueue, byArrival)
	u.work += latency
}

func (u *queue) remove(q *query) {
	u.queries.Remove(&q.inQueue)
	q.queue = nil
	if u.work -= q.queuedWork; u.queries.Len() == 0 {
		u.work = 0 // drop the rounding error
	}
}

// A queryClass is the waiting queries of a shard that the same variants may answer; the live ones
// are in a list, the oldest first. Policies look at a bounded number of queries in a round; by class,
// so that many of a model whose lanes are busy do not hide those of another, whose lanes idle.
type queryClass struct {
	family  *family
	demand  *demand
	allowed int // how many of its variants
	live    list.List[query]
	next    *query // the next one of [shard.oldestLive], which has come to so many
	looked  int
	// scratch of arrange: its queries' places, or what the pool can do for them, may have changed
	unsure, moved bool
	late          int     // how many are late
	lateWork      float64 // their part of the shard's
	// serving is horizon's as of the round with the number gathered; see [horizon.servingGroups].
	serving  []int
	gathered uint64
}

// allowedVariants are those that may answer its queries.
func (k *queryClass) allowedVariants() []variant {
	return k.family.variants[:min(k.allowed, len(k.family.variants))]
}

// byArrival orders queries by arrival, then by id.
func byArrival(a, b *query) int {
	switch {
	case a.arrival < b.arrival || a.arrival == b.arrival && a.id.less(b.id):
		return -1
	case a == b:
		return 0
	}
	return 1
}

func (id QueryID) less(o QueryID) bool {
	return id.Gateway < o.Gateway || id.Gateway == o.Gateway && id.Sequence < o.Sequence
}
