package match

import (
	"math"
	"slices"
)

// A query is one that waits or is sent. Queries are recycled.
type query struct {
	id       QueryID
	model    int
	batch    int
	arrival  float64
	deadline float64 // +Inf: none
	bound
	lateWork float64 // its part of the shard's, while it waits and is lost
	attempt  int     // of the last assignment; 0: none yet

	waiting bool  // in a list of its shard
	isLate  bool  // waiting, and lost
	sent    bool  // to lane
	lane    *lane // where it is sent
	shard   *shard

	prev, next             *query // in the shard's list
	queue                  *queue // the policy's, while it waits; may be nil
	prevQueued, nextQueued *query
	queuedWork             float64
	timer                  timer
}

// A bound is what the pool can do for a query.
type bound struct {
	lostAt float64 // no type can meet the QoS target of one that still waits then
	class  int     // size class
	least  float64 // the least mean latency on any type in the pool; +Inf: none serves it
}

// work is what the query adds to that of those waiting: nothing is known of one that no lane
// serves.
func (b bound) work() float64 {
	if math.IsInf(b.least, 1) {
		return 0
	}
	return b.least
}

// In ms: a lane is overdue by so many 99 % quantiles, and at least overdueLeast, or overdueDoubt
// where its latency is hardly known; it is asked again what it has every overdueAgain; onTheWay is
// how long, beside twice the usual, a query may take to its lane after it was assigned, or its
// gateway said where it is.
const (
	overdueQuantiles = 3
	overdueLeast     = 100
	overdueDoubt     = 1000
	overdueAgain     = 2000
	onTheWay         = 20
)

// LaneDepth is how many queries a lane may be given that it has not answered, those that it runs
// included. Only where they are short beside DispatchAhead are there more than two.
const LaneDepth = 8

// A lane as the matcher knows it.
type lane struct {
	m     *Matcher
	id    LaneID
	typ   *instanceType
	holds []bool // by model
	shard *shard

	freeAt   float64
	held     []reservation // sent and unanswered; the oldest first
	draining bool
	overdue  bool
	asked    int // how often, since it is overdue
	timer    timer
	// when it should have answered, or is to be asked again; set while it holds something
	due timer

	queue queue // of waiting queries, for policies that place them on lanes
}

// A reservation is an assignment that the lane has not answered.
type reservation struct {
	query   QueryID
	attempt int
	latency float64 // predicted
	grace   float64 // how late it may be
	since   float64 // when it was assigned, or first spoken of
	claimed bool    // by the gateway; the lane has not spoken of it
	told    bool    // by the lane: it has it
}

// usable says whether l may be given anything, now or later.
func (l *lane) usable() bool { return !l.draining && !l.overdue }

// open says whether l may be given a query now.
func (l *lane) open() bool {
	if !l.usable() {
		return false
	}
	if l.m.ahead > 0 {
		// One that is late with what it holds is not given more: nobody knows when it will be free.
		return l.freeAt <= l.m.now+l.m.ahead && (len(l.held) == 0 ||
			l.freeAt >= l.m.now && l.room())
	}
	return len(l.held) == 0 && l.freeAt <= l.m.now
}

// room says whether l, which holds something, may be given a query before it answers: one that is
// to follow, or more as long as it is known that all it holds takes no longer than the way there.
func (l *lane) room() bool {
	if len(l.held) == 1 {
		return true
	}
	held := 0.0
	for i := range l.held {
		if l.held[i].latency == 0 {
			return false
		}
		held += l.held[i].latency
	}
	return len(l.held) < LaneDepth && held <= l.m.ahead
}

// start returns in how many ms a query given to l now, or as soon as l may be given one, would
// start.
func (l *lane) start() float64 { return max(l.m.ahead, l.freeAt-l.m.now) }

// latency returns the predicted mean latency of q on l; l must hold q's model
// and its profile be known.
func (l *lane) latency(q *query) float64 { return l.typ.tables[q.model].mean[q.batch] }

// serves says whether l holds q's model and its latency is known.
func (l *lane) serves(q *query) bool { return l.holds[q.model] && l.typ.tables[q.model] != nil }

// setFree says when l will be free, and asks to be stepped when it opens
// without an answer.
func (l *lane) setFree(at float64) {
	l.freeAt = at
	if opens := at - l.m.ahead; opens > l.m.now && (len(l.held) == 0 || l.m.ahead > 0) {
		l.m.timers.set(&l.timer, opens)
	} else {
		l.m.timers.remove(&l.timer)
	}
}

// release takes an attempt from l, and reports whether l had it.
func (l *lane) release(id QueryID, attempt int) bool {
	i := l.reservation(id, attempt)
	if i >= 0 {
		l.held = slices.Delete(l.held, i, i+1)
	}
	return i >= 0
}

// reserve notes that l has an attempt, or is to get it after the given wait.
func (l *lane) reserve(r reservation, wait float64) {
	l.held = append(l.held, r)
	if len(l.held) == 1 {
		l.setDue(l.m.now + wait + r.latency + r.grace)
	}
}

// spoke says that l has answered, and has, as it says, so much left to do.
func (l *lane) spoke(remaining float64) {
	held, grace, end := 0.0, 0.0, 0.0
	for i := range l.held {
		r := &l.held[i]
		held += r.latency
		grace = max(grace, r.grace)
		// The lane has not counted what is on its way there, and starts it when it has come.
		if !r.told && !r.claimed {
			end = max(end, r.since+l.m.ahead)
		}
		end += r.latency
	}
	// What has just started there the lane may not have counted either.
	l.setFree(max(l.m.now+max(remaining, held-l.m.ahead), end))
	l.setDue(l.m.now + max(remaining, held) + grace)
}

// setDue says when l should have answered, if it holds anything.
func (l *lane) setDue(at float64) {
	if len(l.held) == 0 {
		l.m.dues.remove(&l.due)
	} else {
		l.m.dues.set(&l.due, at)
	}
}

// grace returns by how much a query may be late on l before l is overdue.
func (l *lane) grace(model, batch int) float64 {
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

// reservation returns the place in held of an attempt, -1 if it is not there.
func (l *lane) reservation(id QueryID, attempt int) int {
	return slices.IndexFunc(l.held,
		func(r reservation) bool { return r.query == id && r.attempt == attempt })
}

// predict returns the predicted mean latency of a query that l has, 0 where nothing is known.
func (l *lane) predict(model, batch int) float64 {
	if t := l.typ.tables[model]; t != nil && batch >= 1 && batch <= t.Largest() {
		return t.mean[batch]
	}
	return 0
}

// A queue orders waiting queries by arrival, for a policy: those placed on a
// lane, or those of one kind.
type queue struct {
	lane        *lane // whose it is; nil: none's
	first, last *query
	n           int
	work        float64 // the predicted latencies of all
}

// push adds q, which is predicted to take the given time.
func (u *queue) push(q *query, latency float64) {
	after := u.last
	for after != nil && byArrival(after, q) > 0 {
		after = after.prevQueued
	}
	q.queue, q.prevQueued, q.queuedWork = u, after, latency
	if after != nil {
		q.nextQueued, after.nextQueued = after.nextQueued, q
	} else {
		q.nextQueued, u.first = u.first, q
	}
	if q.nextQueued != nil {
		q.nextQueued.prevQueued = q
	} else {
		u.last = q
	}
	u.n++
	u.work += latency
}

func (u *queue) remove(q *query) {
	if q.prevQueued != nil {
		q.prevQueued.nextQueued = q.nextQueued
	} else {
		u.first = q.nextQueued
	}
	if q.nextQueued != nil {
		q.nextQueued.prevQueued = q.prevQueued
	} else {
		u.last = q.prevQueued
	}
	q.queue, q.prevQueued, q.nextQueued = nil, nil, nil
	u.n--
	if u.work -= q.queuedWork; u.n == 0 {
		u.work = 0 // no rounding left behind
	}
}

// A list of waiting queries.
type list struct {
	first, last *query
	n           int
}

// insert puts q behind all that arrived before it, in a list that is so ordered.
func (l *list) insert(q *query) {
	after := l.last
	for after != nil && byArrival(after, q) > 0 {
		after = after.prev
	}
	q.prev = after
	if after != nil {
		q.next, after.next = after.next, q
	} else {
		q.next, l.first = l.first, q
	}
	if q.next != nil {
		q.next.prev = q
	} else {
		l.last = q
	}
	l.n++
}

// push puts q last.
func (l *list) push(q *query) {
	if q.prev = l.last; q.prev != nil {
		q.prev.next = q
	} else {
		l.first = q
	}
	l.last = q
	l.n++
}

func (l *list) remove(q *query) {
	if q.prev != nil {
		q.prev.next = q.next
	} else {
		l.first = q.next
	}
	if q.next != nil {
		q.next.prev = q.prev
	} else {
		l.last = q.prev
	}
	q.prev, q.next = nil, nil
	l.n--
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
