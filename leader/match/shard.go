package match

import "slices"

// A shard is a few lanes that are matched together, and the queries waiting
// for them. A small pool is one shard.
type shard struct {
	m      *Matcher
	policy policy
	lanes  []*lane // by the rank of their type, then by id
	live   list    // waiting, and in time so far: the oldest first
	late   list    // waiting, and lost: in the order they were
	usable int     // lanes
	// work is, by size class, the sum of the least mean latencies of the live queries.
	work     [2]float64
	lateWork float64 // the sum of the mean latencies of the late ones
	spare    spareTime
	dirty    bool // something has changed since the last round
}

// The size classes of queries.
const (
	shared   = iota // some auxiliary type in the pool can meet the QoS target
	baseOnly        // none can
)

// A policy chooses which waiting queries go to which lanes of its shard. It
// reads the shard and its queries and lanes, and changes them only through
// shard.assign and the queues of lanes.
type policy interface {
	// arrived tells of a query that begins to wait at the shard, for policies that
	// queue it at once. The query leaves the queue by itself.
	arrived(s *shard, q *query)
	// choose assigns queries to open lanes. At least one query waits and at least one lane is open.
	choose(s *shard)
}

const defaultShardLanes = 15

func newShard(m *Matcher) *shard {
	return &shard{m: m, policy: policies[m.cfg.Policy](m), spare: spareTime{share: 1}}
}

// enter puts q among the live queries of s.
func (s *shard) enter(q *query) {
	q.shard, q.waiting, q.isLate = s, true, false
	s.live.insert(q)
	s.m.waiting++
	s.work[q.class] += q.work()
	s.dirty = true
}

func (s *shard) leaveLive(q *query) {
	s.live.remove(q)
	if s.work[q.class] -= q.work(); s.live.n == 0 {
		s.work = [2]float64{} // no rounding left behind
	}
}

// leave takes a waiting query out of the shard.
func (s *shard) leave(q *query) {
	if q.queue != nil {
		q.queue.remove(q)
	}
	if q.isLate {
		s.late.remove(q)
		if s.lateWork -= q.lateWork; s.late.n == 0 {
			s.lateWork = 0
		}
	} else {
		s.leaveLive(q)
	}
	q.waiting = false
	s.m.waiting--
	s.m.timers.remove(&q.timer)
}

// round lets the policy choose, if there is anything to choose.
func (s *shard) round() {
	if s.live.n+s.late.n > 0 && slices.ContainsFunc(s.lanes, (*lane).open) {
		s.policy.choose(s)
	}
	s.noteSpare()
}

// assign sends a waiting query to an open lane that serves its model, and says
// whether it was one. The cost is for the record.
func (s *shard) assign(q *query, l *lane, cost float64) bool {
	if !q.waiting || q.shard != s || l.shard != s || !l.open() || !l.serves(q) {
		return false
	}
	s.leave(q)
	latency, wait, waited := l.latency(q), l.start(), s.m.now-q.arrival
	if q.isLate {
		s.giveSpare(latency)
	}
	slack := s.m.target[q.model] - waited - wait - latency
	reason := Matched
	if slack < 0 {
		reason = Late
	}
	q.attempt++
	q.sent, q.lane = true, l
	l.reserve(
		reservation{
			query: q.id, attempt: q.attempt, latency: latency, grace: l.grace(q.model, q.batch),
			since: s.m.now,
		}, wait)
	l.setFree(s.m.now + wait + latency)
	s.m.out = append(s.m.out,
		Decision{Action: Assign, Reason: reason, Query: q.id, Attempt: q.attempt, Lane: l.id,
			Cost: cost, Latency: fromMs(latency), Waited: fromMs(waited), Wait: fromMs(wait),
			Slack: fromMs(slack)})
	return true
}

// all iterates over all waiting queries, late or not, by and large the oldest
// first. The query yielded may be assigned meanwhile.
func (s *shard) all(yield func(*query) bool) {
	a, b := s.live.first, s.late.first
	for a != nil || b != nil {
		q := a
		if a == nil || b != nil && byArrival(b, a) < 0 {
			q, b = b, b.next
		} else {
			a = a.next
		}
		if !yield(q) {
			return
		}
	}
}

// keeps says whether q, which waits at s, may stay there now that lanes have been dealt: s still
// has a lane for it, or there is none anywhere, and the lane in whose queue it is has stayed.
// moved: latencies of its model have changed.
func (s *shard) keeps(q *query, moved bool) bool {
	if u := q.queue; u != nil && u.lane != nil && (moved || u.lane.shard != s || !u.lane.usable() ||
		!u.lane.serves(q)) {
		return false
	}
	return s == s.m.nowhere || s.accepts(q)
}

// deal deals the lanes to the shards, so that every shard has its part of every
// type. A shard that is given up has no lanes any more.
func (m *Matcher) deal() {
	lanes := slices.Clone(m.all)
	slices.SortStableFunc(lanes, func(a, b *lane) int { return a.typ.rank - b.typ.rank })
	want := m.cfg.ShardLanes
	if n := len(lanes); want > 0 && (3*n > 4*want*len(m.shards) || 3*n < 2*want*len(m.shards)) {
		count := max(1, (n+want/2)/want)
		for len(m.shards) < count {
			m.shards = append(m.shards, newShard(m))
		}
		for _, s := range m.shards[count:] {
			s.lanes = nil
		}
		m.shards = m.shards[:count]
	}
	for _, s := range m.shards {
		s.lanes, s.usable, s.dirty = s.lanes[:0], 0, true
	}
	for i, l := range lanes {
		l.shard = m.shards[i%len(m.shards)]
		l.shard.lanes = append(l.shard.lanes, l)
		if l.usable() {
			l.shard.usable++
		}
	}
}

// route returns the shard that q is to wait at: of two drawn at random that can
// serve it, the one with the shorter backlog for q's size class. A query that no
// lane can serve waits nowhere, until the lanes change.
func (m *Matcher) route(q *query) *shard {
	if len(m.shards) == 1 {
		if m.shards[0].accepts(q) {
			return m.shards[0]
		}
		return m.nowhere
	}
	a := m.draw(q)
	if a == nil {
		return m.nowhere
	}
	if b := m.draw(q); b.backlog(q) < a.backlog(q) {
		return b
	}
	return a
}

// draw draws a shard and returns the next from there on that accepts q, or nil.
func (m *Matcher) draw(q *query) *shard {
	from := m.rng.IntN(len(m.shards))
	for i := range m.shards {
		if s := m.shards[(from+i)%len(m.shards)]; s.accepts(q) {
			return s
		}
	}
	return nil
}

// accepts says whether s has a lane for q; if any lane of the pool can meet q's QoS
// target, one that can.
func (s *shard) accepts(q *query) bool {
	for _, l := range s.lanes {
		if l.suits(q) {
			return true
		}
	}
	return false
}

// suits says whether l may be given q, and can meet its QoS target if any type
// in the pool can.
func (l *lane) suits(q *query) bool {
	return l.usable() && l.serves(q) && (l.latency(q) <= l.m.target[q.model] ||
		q.least > l.m.target[q.model])
}

// backlog returns how long a query of q's size class would wait at s, about, in ms; 0, which is
// unknown, where s has no lanes.
func (s *shard) backlog(q *query) float64 {
	work, n := s.work[baseOnly], 0
	if q.class == shared {
		work += s.work[shared]
	}
	for _, l := range s.lanes {
		if l.suits(q) {
			work += l.start()
			n++
		}
	}
	return work / float64(max(n, 1))
}
