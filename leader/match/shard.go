package match

import (
	"iter"
	"slices"
)

// A shard is a group of lanes that are matched together, with the queries that wait for them. A
// small pool is one shard.
type shard struct {
	m       *Matcher
	policy  policy
	lanes   []*lane   // in the order of sortLanes
	live    list      // waiting queries that can still be in time, the oldest first
	kins    []*kin    // some may have no queries now
	starts  int       // how many queries have got a lane
	tried   int       // starts when a query last went where none had gone for long
	demands []*demand // of the families whose queries have come lately
	late    list      // waiting queries that cannot, in the order in which they became late
	usable  int       // number of lanes that are usable
	// work is, by size class, the sum of the least mean latencies of the live queries, ms.
	work     [2]float64
	lateWork float64 // sum of the mean latencies of the late queries, ms
	spare    spareTime
	returned float64     // when all that were refused can have been served after trying again, ms
	dirty    bool        // something has changed since the last round
	index    int         // among the matcher's shards
	holders  []int32     // by model: how many usable lanes hold it; no lane holds one beyond the end
	unsorted bool        // lanes are not in order
	order    kinsByShare // scratch of byShare
}

// The size classes of queries.
const (
	shared   = iota // some auxiliary type in the pool can meet the QoS target
	baseOnly        // no auxiliary type can
)

// A policy chooses which waiting queries go to which lanes of its shard. It
// reads the shard and its queries and lanes, and changes them only through
// shard.assign and the queues of lanes.
type policy interface {
	// arrived is called when a query begins to wait at the shard, for policies that queue it at
	// once. The shard takes the query out of the queue again.
	arrived(s *shard, q *query)
	// choose assigns queries to open lanes. It is called when at least one query waits and at least
	// one lane is open.
	choose(s *shard)
}

const defaultShardLanes = 15

func newShard(m *Matcher) *shard {
	return &shard{m: m, policy: m.newPolicy(), spare: spareTime{share: 1}}
}

// enter adds q to the live queries of s.
func (s *shard) enter(q *query) {
	q.shard, q.waiting, q.isLate = s, true, false
	s.live.insert(q)
	s.kinOf(q).insert(q)
	s.m.count(q, 1)
	s.work[q.class] += q.work()
	s.dirty = true
}

func (s *shard) leaveLive(q *query) {
	s.live.remove(q)
	q.kin.remove(q)
	if s.work[q.class] -= q.work(); s.live.n == 0 {
		s.work = [2]float64{} // drop the rounding error
	}
}

// kinOf returns the kin of a query that becomes live.
func (s *shard) kinOf(q *query) *kin {
	allowed := len(q.allowed())
	var free *kin
	for _, k := range s.kins {
		if k.family == q.family && k.allowed == allowed {
			if k.demand.family != k.family { // it was forgotten
				k.demand = s.demandOf(k.family)
			}
			return k
		}
		if k.first == nil && k.late == 0 {
			free = k
		}
	}
	if free == nil {
		free = &kin{}
		s.kins = append(s.kins, free)
	}
	free.family, free.allowed, free.demand = q.family, allowed, s.demandOf(q.family)
	return free
}

// oldest iterates over the live queries, the oldest first, at most so many of each kin. The loop
// must not change which queries are live.
func (s *shard) oldest(most int) iter.Seq[*query] {
	return func(yield func(*query) bool) {
		for _, k := range s.kins {
			k.next, k.looked = k.first, 0
		}
		for {
			var k *kin
			for _, o := range s.kins {
				if o.next != nil && o.looked < most &&
					(k == nil || byArrival(o.next, k.next) < 0) {
					k = o
				}
			}
			if k == nil {
				return
			}
			q := k.next
			k.next, k.looked = q.nextKin, k.looked+1
			if !yield(q) {
				return
			}
		}
	}
}

// leave removes a waiting query from the shard.
func (s *shard) leave(q *query) {
	if q.queue != nil {
		q.queue.remove(q)
	}
	if q.isLate {
		s.late.remove(q)
		if s.lateWork -= q.lateWork; s.late.n == 0 {
			s.lateWork = 0
		}
		k := q.kin
		k.late--
		if k.lateWork -= q.lateWork; k.late == 0 {
			k.lateWork = 0
		}
	} else {
		s.leaveLive(q)
	}
	s.m.count(q, -1)
	q.waiting, q.kin = false, nil
	s.m.timers.remove(&q.timer)
}

// round calls the policy if a query waits and a lane is open.
func (s *shard) round() {
	if s.live.n+s.late.n > 0 && slices.ContainsFunc(s.lanes, (*lane).open) {
		s.policy.choose(s)
	}
	s.noteSpare()
}

// assign sends a waiting query to a lane, to run the given variant, and reports false, without
// effect, if the lane is not open or does not serve the variant. The cost only goes into the
// decision.
func (s *shard) assign(q *query, l *lane, model int, cost float64) bool {
	if !q.waiting || q.shard != s || l.shard != s || model < 0 || !q.may(model) || !l.open() ||
		!l.lasts(l.table(model), q.batch) {
		return false
	}
	s.leave(q)
	q.model = model
	latency, wait, waited := l.table(model).mean[q.batch], l.start(), s.m.now-q.arrival
	if q.isLate {
		s.giveSpare(latency)
	}
	slack := q.family.target - waited - wait - latency
	reason := Matched
	if slack < 0 {
		reason = Late
		if !q.isLate {
			s.noteLost(q)
		}
	} else {
		s.noteStart(q)
	}
	s.noteLane(l)
	q.attempt++
	q.sent, q.lane = true, l
	l.reserve(
		reservation{
			query: q.id, family: q.family, attempt: q.attempt, latency: latency, grace: l.grace(q.model, q.batch),
			since: s.m.now,
		}, wait)
	l.setFree(s.m.now + wait + latency)
	s.m.out = append(s.m.out,
		s.m.bind(q, Decision{Action: Assign, Reason: reason, Attempt: q.attempt, Lane: l.id,
			Cost: cost, Latency: fromMs(latency), Waited: fromMs(waited), Wait: fromMs(wait),
			Slack: fromMs(slack)}))
	return true
}

// bind completes a decision that binds q to the variant q.model.
func (m *Matcher) bind(q *query, d Decision) Decision {
	model := &m.models[q.model]
	d.Query, d.Model, d.Family, d.Accuracy = q.id, model.Name, q.family.name, model.accuracy()
	return d
}

// all iterates over all waiting queries, late or not, roughly the oldest first. The loop may assign
// the query that it was given.
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

// keeps reports whether q may go on waiting at s after lanes were dealt to shards anew: s still has
// a lane for q, or no shard has one, and the lane in whose queue q is has stayed. moved says that
// latencies of q's model have changed.
func (s *shard) keeps(q *query, moved bool) bool {
	if u := q.queue; u != nil && u.lane != nil && (moved || u.lane.shard != s || !u.lane.usable() ||
		!u.lane.serves(q)) {
		return false
	}
	return s == s.m.nowhere || s.accepts(q)
}

// route returns the shard at which q is to wait: of two drawn at random that can serve q, the one
// with the shorter backlog for q's size class. A query that no lane can serve goes to the shard
// nowhere until the lanes change.
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

// draw draws a shard at random and returns the first from there on that accepts q, or nil.
func (m *Matcher) draw(q *query) *shard {
	from := m.rng.IntN(len(m.shards))
	for i := range m.shards {
		if s := m.shards[(from+i)%len(m.shards)]; s.accepts(q) {
			return s
		}
	}
	return nil
}

// accepts reports whether s has a lane for q; if some lane of the pool can meet q's QoS target, s
// must have one that can.
func (s *shard) accepts(q *query) bool {
	if !slices.ContainsFunc(q.allowed(), s.holds) {
		return false
	}
	for _, l := range s.lanes {
		s.m.visited++
		if l.suits(q) {
			return true
		}
	}
	return false
}

// holds reports whether some usable lane of s holds the variant.
func (s *shard) holds(v variant) bool {
	s.m.visited++
	return v.model < len(s.holders) && s.holders[v.model] > 0
}

// countHolders adds n to the number of lanes of s that hold the models of a set.
func (s *shard) countHolders(of *modelSet, n int32) {
	if last := len(of.models) - 1; last >= 0 && of.models[last] >= len(s.holders) {
		more := of.models[last] + 1 - len(s.holders)
		s.holders = append(s.holders, make([]int32, more)...)
	}
	for _, i := range of.models {
		s.holders[i] += n
	}
}

// suits reports whether l may be given q, and can meet q's QoS target if any type in the pool can.
func (l *lane) suits(q *query) bool {
	return l.usable() && l.serves(q) && (l.latency(q) <= q.family.target ||
		q.least > q.family.target)
}

// backlog returns about how long, in ms, a query of q's size class would wait at s; 0, which stands
// for unknown, if s has no lanes.
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
