package match

import (
	"iter"
	"slices"

	"github.com/muster-serve/muster/api/list"
)

// A shard is a group of lanes that are matched together, with the queries that wait for them. A
// small pool is one shard.
type shard struct {
	m       *Matcher
	policy  policy
	lanes   []*lane          // in the order of sortLanes
	live    list.List[query] // waiting queries that can still be in time, the oldest first
	classes []*queryClass    // some may have no queries now
	starts  int              // how many queries have got a lane
	tried   int              // starts when a query last went where none had gone for long
	flows   []*flow          // some may have no queries now
	// virtual is, by band, the start tag of the query that started last, and owed the lanes' time,
	// in ms, that the lowest band lacks to its floor.
	virtual [MaxBand + 1]float64
	owed    float64
	inTurn  []*flow          // scratch of waitingFlows
	demands []*shardDemand   // of the families whose queries have come lately
	late    list.List[query] // waiting queries that cannot, in the order in which they became late
	usable  int              // number of lanes that are usable
	// work is, by size class, the sum of the least mean latencies of the live queries, ms.
	work     [2]float64
	lateWork float64 // sum of the mean latencies of the late queries, ms
	spare    spareTime
	// when all that were refused can have been served after trying again, ms
	returned float64
	dirty    bool         // something has changed since the last round
	groups   []*laneGroup // as of the generation grouped; see laneGroups
	grouped  uint64
	index    int // among the matcher's shards
	// by model: how many usable lanes hold it; no lane holds one beyond the end
	holders  []int32
	unsorted bool           // lanes are not in order
	order    classesByShare // scratch of byShare
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
	// enqueueArrival is called when a query begins to wait at the shard, for policies that queue it
	// at once. The shard takes the query out of the queue again.
	enqueueArrival(s *shard, q *query)
	// assignQueries assigns queries to open lanes. It is called when at least one query waits and
	// at least one lane is open.
	assignQueries(s *shard)
}

const defaultShardLanes = 15

func newShard(m *Matcher) *shard {
	return &shard{m: m, policy: m.newPolicy(), spare: spareTime{share: 1}}
}

// markDirty has s's policy run at the end of the step.
func (s *shard) markDirty() {
	if !s.dirty {
		s.dirty, s.m.dirty = true, append(s.m.dirty, s)
	}
}

// addLive adds q to the live queries of s.
func (s *shard) addLive(q *query) {
	q.shard, q.waiting, q.isLate = s, true, false
	s.enterFlow(q)
	s.live.InsertSorted(q, &q.inShard, byArrival)
	q.class = s.classOf(q)
	q.class.live.InsertSorted(q, &q.inClass, byArrival)
	s.m.countWaiting(q, 1)
	s.work[q.sizeClass] += q.waitingWork()
	s.markDirty()
}

func (s *shard) leaveLive(q *query) {
	s.live.Remove(&q.inShard)
	q.class.live.Remove(&q.inClass)
	s.leaveFlow(q)
	if s.work[q.sizeClass] -= q.waitingWork(); s.live.Len() == 0 {
		s.work = [2]float64{} // drop the rounding error
	}
}

// classOf returns the class of a query that becomes live.
func (s *shard) classOf(q *query) *queryClass {
	allowed := len(q.allowedVariants())
	var free *queryClass
	for _, k := range s.classes {
		if k.family == q.family && k.allowed == allowed && k.flowKey == q.flowKey {
			if k.demand.family != k.family || k.demand.flowKey != k.flowKey { // it was forgotten
				k.demand = s.demandOf(k.family, k.flowKey)
			}
			return k
		}
		if k.live.Len() == 0 && k.late == 0 {
			free = k
		}
	}
	if free == nil {
		free = &queryClass{}
		s.classes = append(s.classes, free)
	}
	free.family, free.allowed, free.flowKey = q.family, allowed, q.flowKey
	free.demand = s.demandOf(q.family, q.flowKey)
	free.gathered = 0
	return free
}

// oldestLive iterates over the live queries, the oldest first, at most so many of each class. The
// loop must not change which queries are live.
func (s *shard) oldestLive(most int) iter.Seq[*query] {
	return func(yield func(*query) bool) {
		for _, k := range s.classes {
			k.next, k.looked = k.live.First(), 0
		}
		for {
			var k *queryClass
			for _, o := range s.classes {
				if o.next != nil && o.looked < most &&
					(k == nil || byArrival(o.next, k.next) < 0) {
					k = o
				}
			}
			if k == nil {
				return
			}
			q := k.next
			k.next, k.looked = q.inClass.Next(), k.looked+1
			if !yield(q) {
				return
			}
		}
	}
}

// removeWaiting removes a waiting query from the shard.
func (s *shard) removeWaiting(q *query) {
	if q.queue != nil {
		q.queue.remove(q)
	}
	if q.isLate {
		s.late.Remove(&q.inShard)
		if s.lateWork -= q.lateWork; s.late.Len() == 0 {
			s.lateWork = 0
		}
		k := q.class
		k.late--
		if k.lateWork -= q.lateWork; k.late == 0 {
			k.lateWork = 0
		}
	} else {
		s.leaveLive(q)
	}
	s.m.countWaiting(q, -1)
	q.waiting, q.class = false, nil
	s.m.timers.remove(&q.timer)
}

// runPolicy calls the policy if a query waits and a lane is open.
func (s *shard) runPolicy() {
	if s.live.Len()+s.late.Len() > 0 && s.hasOpen() {
		s.policy.assignQueries(s)
	}
	s.noteSpare()
}

// hasOpen reports whether a lane of s is open.
func (s *shard) hasOpen() bool {
	for _, g := range s.laneGroups() {
		if g.hasOpen(s.m) {
			return true
		}
	}
	return false
}

// assignToLane sends a waiting query to a lane, to run the given variant, and reports false,
// without effect, if the lane is not open or does not serve the variant. The cost only goes into
// the decision.
func (s *shard) assignToLane(q *query, l *lane, model int, cost float64) bool {
	if !q.waiting || q.shard != s || l.shard != s || model < 0 || !q.allowsModel(model) ||
		!l.open() ||
		!l.outlastsRun(l.latencyTable(model), q.batch) {
		return false
	}
	s.removeWaiting(q)
	q.model = model
	latency, wait, waited := l.latencyTable(model).mean[q.batch], l.start(), s.m.now-q.arrival
	if q.isLate {
		s.giveSpare(latency)
	}
	slack := q.family.target - waited - wait - latency
	reason := Matched
	if slack < 0 {
		reason = Late
		if !q.isLate {
			s.adaptToLoss(q)
		}
	} else {
		s.noteStart(q)
	}
	s.noteLane(l)
	s.chargeFlow(q, latency)
	q.attempt++
	q.sent, q.lane = true, l
	l.reserveWait(
		reservation{
			query: q.id, family: q.family, flow: q.flowKey, attempt: q.attempt, latency: latency,
			grace: l.overdueGrace(q.model, q.batch),
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
	d.Query, d.Model, d.Family, d.Accuracy = q.id, model.Name, q.family.name, model.accuracyOrBest()
	return d
}

// allWaiting iterates over all waiting queries, late or not, roughly the oldest first. The loop may
// assign the query that it was given.
func (s *shard) allWaiting(yield func(*query) bool) {
	a, b := s.live.First(), s.late.First()
	for a != nil || b != nil {
		q := a
		if a == nil || b != nil && byArrival(b, a) < 0 {
			q, b = b, b.inShard.Next()
		} else {
			a = a.inShard.Next()
		}
		if !yield(q) {
			return
		}
	}
}

// keepsQuery reports whether q may go on waiting at s after lanes were dealt to shards anew: s
// still has a lane for q, or no shard has one, and the lane in whose queue q is has stayed. moved
// says that latencies of q's model have changed.
func (s *shard) keepsQuery(q *query, moved bool) bool {
	if u := q.queue; u != nil && u.lane != nil && (moved || u.lane.shard != s ||
		!u.lane.isUsable() ||
		!u.lane.canServe(q)) {
		return false
	}
	return s == s.m.nowhere || s.hasLaneFor(q)
}

// routeQuery returns the shard at which q is to wait: of two drawn at random that can serve q, the
// one with the shorter backlog for q's size class (the power of two choices; Mitzenmacher, IEEE
// TPDS 12, 2001). A query that no lane can serve goes to the shard nowhere until the lanes change.
func (m *Matcher) routeQuery(q *query) *shard {
	if len(m.shards) == 1 {
		if m.shards[0].hasLaneFor(q) {
			return m.shards[0]
		}
		return m.nowhere
	}
	a := m.draw(q)
	if a == nil {
		return m.nowhere
	}
	if b := m.draw(q); b.backlogMs(q) < a.backlogMs(q) {
		return b
	}
	return a
}

// maxDraws is how often draw draws before it looks at one shard after the other. Chosen: where a
// quarter of the shards hold a model, one query in ten needs more.
const maxDraws = 8

// draw returns a shard that accepts q, drawn at random from those that do, or nil if none does. It
// draws again where a shard does not accept q: were it to take the next one that does, a shard would
// get the more queries for a model, the more shards in front of it do not hold the model. Only after
// maxDraws it does so.
func (m *Matcher) draw(q *query) *shard {
	from := 0
	for range maxDraws {
		from = m.rng.IntN(len(m.shards))
		if s := m.shards[from]; s.hasLaneFor(q) {
			return s
		}
	}
	for i := 1; i < len(m.shards); i++ {
		if s := m.shards[(from+i)%len(m.shards)]; s.hasLaneFor(q) {
			return s
		}
	}
	return nil
}

// hasLaneFor reports whether s has a lane for q; if some lane of the pool can meet q's QoS target,
// s must have one that can.
func (s *shard) hasLaneFor(q *query) bool {
	if !slices.ContainsFunc(q.allowedVariants(), s.holdsVariant) {
		return false
	}
	for _, l := range s.lanes {
		s.m.visited++
		if l.suitsQuery(q) {
			return true
		}
	}
	return false
}

// holdsVariant reports whether some usable lane of s holds the variant.
func (s *shard) holdsVariant(v variant) bool {
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

// suitsQuery reports whether l may be given q, and can meet q's QoS target if any type in the pool
// can.
func (l *lane) suitsQuery(q *query) bool {
	return l.isUsable() && l.laneSpec.suitsQuery(q)
}

// backlogMs returns about how long, in ms, a query of q's size class would wait at s; 0, which
// stands for unknown, if s has no lanes.
func (s *shard) backlogMs(q *query) float64 {
	work, n := s.work[baseOnly], 0
	if q.sizeClass == shared {
		work += s.work[shared]
	}
	for _, g := range s.laneGroups() {
		if g.spec.suitsQuery(q) {
			for i := range g.freeAt {
				work += g.startMs(s.m, i)
			}
			n += len(g.freeAt)
		}
	}
	return work / float64(max(n, 1))
}
