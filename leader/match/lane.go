package match

import (
	"math"
	"slices"

	"github.com/muster-serve/muster/api/list"
)

// A query is a query that waits or is sent to a lane. The memory of queries is reused.
//
// Invariant, between two steps: the query either waits or is sent.
//   - One that waits is in one list of its shard: late if isLate, else live. It has a class there,
//     which counts it, and no lane. Its deadline has not passed, and neither has lostAt if it is
//     live. Its timer is set to the earlier of these two, if that is finite.
//   - One that is sent has a lane that has joined and keeps a reservation for its last attempt. It
//     has no class and is in no list, and its timer is not set.
type query struct {
	id       QueryID
	family   *family // the family or the single model that the query names
	accuracy float64 // the minimum for the answer, 0..1
	// model is the variant that the lane is to run; while horizon merges queries, also the variant
	// with which horizon plans the query.
	model    int
	batch    int     // its size: its work in rows
	rows     int     // its rows; fewer than batch if users and values count
	once     int     // what each part of it has of batch again
	arrival  float64 // ms; before the first event if negative
	deadline float64 // ms; +Inf: none
	bound
	flowKey
	weight   float64 // of its tenant
	cost     float64 // the lowest price at which its shard can answer it, blurred
	lateWork float64 // its part of the shard's lateWork, ms, while it waits and is late
	attempt  int     // number of the last assignment; 0: none yet
	splits   bool    // its gateway can split it
	part     bool    // it is a part of a query that was split

	lost    bool  // its demand counts it as lost
	waiting bool  // in a list of its shard
	isLate  bool  // no type could meet its QoS target any more when it last waited
	sent    bool  // to lane
	lane    *lane // the lane to which it is sent
	shard   *shard

	inShard list.Node[query] // in live or late
	class   *queryClass      // while it waits
	flow    *flow            // while it is live
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
//
// Invariant: lostAt is the arrival plus the QoS target less the least latency, if that is finite.
type bound struct {
	lostAt    float64 // ms; a query that still waits then meets its QoS target on no type
	sizeClass int     // shared or baseOnly
	least     float64 // the minimum mean latency of all types in the pool, ms; +Inf: none serves it
}

// waitingWork is what the query adds to the work of the waiting queries; 0, which stands for
// unknown, if no lane serves it.
func (b bound) waitingWork() float64 {
	if math.IsInf(b.least, 1) {
		return 0
	}
	return b.least
}

const (
	// A lane is overdue when its answer is late by overdueQuantiles times the 99 % quantile of the
	// latency, and by at least overdueLeast ms, or overdueDoubt ms while the latency is hardly
	// known. Three quantiles, because a run that takes eight times as long as most must not count
	// as overdue if one run in twenty does so (docs/internals/lanes.md); 100 ms and 1 s are chosen:
	// longer than a pause of a garbage collector, and than a first run.
	overdueQuantiles = 3
	overdueLeast     = 100
	overdueDoubt     = 1000
	// overdueAgain is after how many ms the matcher asks an overdue lane again. Chosen: a lane that
	// runs a long query is asked a few times, and one that answers again is found within two
	// seconds.
	overdueAgain = 2000
	// A query may take onTheWay ms, beside twice the usual time, to reach its lane after it was
	// assigned or after its gateway said where it is. Chosen: many times a network's delay, and
	// a fraction of overdueLeast.
	onTheWay = 20
)

// LaneDepth is how many unanswered queries a lane may have, running ones included. Those that run
// together count as one. A lane has more than two only if they are short compared with
// DispatchAhead. Chosen: with 8, short queries cost 0.6 of the CPU time that they cost with two,
// because messages carry several of them.
const LaneDepth = 8

// A laneSpec is the type, models and price of a lane.
type laneSpec struct {
	typ   *instanceType
	holds []bool // by model
	lanePrice
}

// A lane is a lane as the matcher knows it.
//
// Invariants, between two steps:
//   - The timer due is set if and only if the lane holds a reservation.
//   - An overdue lane holds a reservation and was asked at least once what it holds; a lane that is
//     not overdue has asked = 0.
//   - counted equals isUsable, and every lane is in exactly one shard.
//   - Reservations of one run are neighbours in held, and the numbers of the runs ascend.
type lane struct {
	m  *Matcher
	id LaneID
	laneSpec
	set     *modelSet
	class   *laneClass
	shard   *shard
	group   *laneGroup // nil while it is in none
	place   int        // in its group
	placed  bool       // among the shard's lanes
	counted bool       // among the usable lanes
	idle    spareTime  // kept while there are families

	freeAt   float64       // ms; when the lane has run all that it holds, as predicted
	ends     float64       // ms; its set's
	held     []reservation // attempts sent and not answered, the oldest first
	draining bool
	overdue  bool
	asked    int   // how often the matcher has asked what it holds since it is overdue
	timer    timer // when the lane opens without an answer
	due      timer // when the lane should have answered, or the matcher asks it again

	started int // shard.starts when it last got a query

	queue queue // waiting queries, for policies that queue them at lanes
}

// A reservation is an attempt that the lane has not answered.
//
// Invariants: claimed and told exclude each other; latency >= 0, and 0 if it is unknown; since is
// not in the future.
type reservation struct {
	query   QueryID
	family  *family // nil if it is unknown
	flow    flowKey
	attempt int
	latency float64 // predicted mean, ms; of a reservation that joined a run, what it adds
	grace   float64 // ms by which the answer may be late before the lane is overdue
	since   float64 // ms; when the attempt was assigned, or first reported
	claimed bool    // the gateway has reported the attempt, and the lane has not
	told    bool    // the lane has confirmed the attempt
	joined  bool    // it runs together with the reservation before it
	run     uint64  // the number of its run
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
func (l *lane) outlastsRun(t *LatencyTable, batch int) bool {
	return l.lastsFrom(l.start(), t, batch)
}

// lastsFrom is outlastsRun for a query that starts at l in start ms.
func (l *lane) lastsFrom(start float64, t *LatencyTable, batch int) bool {
	return t != nil && (math.IsInf(l.ends, 1) || l.m.now+start+t.tail[batch] <= l.ends)
}

// canServe reports whether l holds a variant that may answer q and its latency is known.
func (l *lane) canServe(q *query) bool {
	_, t := l.fastestVariant(q)
	return t != nil
}

// setFree sets when l will be free, and a timer for when l opens without an answer.
func (l *lane) setFree(at float64) {
	l.freeAt = at
	if l.group != nil {
		l.group.freeAt[l.place] = at
	}
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

// noteAnswer notes that l has answered, and that l says it has work left for the given time, ms.
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
	// The account may also leave out a query that has just started at the lane.
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
	lane    *lane // the lane whose queue this is; nil: a policy's own
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
// are in a list, the oldest first. Policies look at a bounded number of queries of each class in a
// round. Without classes, many queries of a model whose lanes are busy would hide the queries of
// another model whose lanes idle.
//
// Invariants: live has the live queries of the shard with this class, late counts the late ones,
// and lateWork is the sum of their lateWork. All queries of a class name the same family and are of
// one flow, and the same number of the variants may answer them.
type queryClass struct {
	family *family
	flowKey
	demand  *shardDemand
	allowed int // how many of the family's variants may answer
	live    list.List[query]
	next    *query // scratch of [shard.oldestLive]: the next query, after looked others
	looked  int
	// scratch of arrange: its queries' places, or what the pool can do for them, may have changed
	unsure, moved bool
	late          int
	lateWork      float64 // ms
	// serving is horizon's as of the generation gathered; see [horizon.servingGroups].
	serving  []int
	gathered uint64
}

// allowedVariants are the variants that may answer the queries of the class.
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
