package match

import (
	"math"
	"slices"
)

const (
	// spareTargets is the time over which spare time is averaged, in QoS targets of the slowest
	// model. Chosen: twice that of a lane (package runtime/lane), since a fleet's load changes more
	// slowly than one lane's.
	spareTargets = 10
	// minSpare is a lower bound for the share of spare time in estimates.
	minSpare = 0.01
	// longestReturn bounds how long, in ms, a refused client is told to wait beyond what its query
	// would have. Chosen, since some clients never come back.
	longestReturn = 10_000
)

// A spareTime is the share of a shard's lane time that is left for late queries: the time in which
// lanes idle while no live query waits, or run late queries. Or it is the share of the time in
// which a lane idles. It is a moving average that starts at 1.
type spareTime struct {
	share float64
	idle  float64 // share of the lanes that idle since the last look
	since float64
}

// spareOver is the time over which spare time is averaged.
func spareOver(targets []float64) (over float64) {
	for _, t := range targets {
		over = max(over, spareTargets*t)
	}
	return over
}

// updateAverage updates the average, which is taken over the given time, to now.
func (t *spareTime) updateAverage(now, over float64) {
	if now > t.since {
		t.share -= (t.idle - t.share) * math.Expm1((t.since-now)/over)
		t.since = now
	}
}

// hasSpareLanes reports whether lanes are plenty, so that a lost query that starts hardly ever
// delays another.
func (s *shard) hasSpareLanes() bool {
	s.spare.updateAverage(s.m.now, s.m.spareOver)
	return s.usable > 0 && s.spare.share > min(spareMost, spareLanes/float64(s.usable))
}

// noteSpare records how many lanes are idle from now on.
func (s *shard) noteSpare() {
	s.spare.updateAverage(s.m.now, s.m.spareOver)
	s.spare.idle = 0
	if len(s.m.named) > 0 {
		for _, l := range s.lanes {
			l.noteIdle()
		}
	}
	if s.live.Len() > 0 || s.usable == 0 {
		return
	}
	for _, g := range s.laneGroups() {
		for i, at := range g.freeAt {
			if at <= s.m.now && len(g.lanes[i].held) == 0 {
				s.spare.idle += 1 / float64(s.usable)
			}
		}
	}
}

// idleOver is the time over which a lane's idling is averaged.
func (m *Matcher) idleOver() float64 { return idleTargets / spareTargets * m.spareOver }

// noteIdle records whether l is idle from now on.
func (l *lane) noteIdle() {
	l.idle.updateAverage(l.m.now, l.m.idleOver())
	l.idle.idle = 0
	if len(l.held) == 0 && l.freeAt <= l.m.now {
		l.idle.idle = 1
	}
}

// giveSpare records that a late query gets a lane for the given time, in ms.
func (s *shard) giveSpare(latency float64) {
	s.spare.updateAverage(s.m.now, s.m.spareOver)
	s.spare.share = min(1, s.spare.share+latency/s.m.spareOver/float64(s.usable))
}

// lateWait is how long, in ms, q is expected to wait behind the late queries, without itself, that
// may run on its lanes.
func (s *shard) lateWait(q *query) float64 {
	if s.lateWork-q.lateWork <= 0 {
		return 0
	}
	lanes, work := 0, -q.lateWork
	for _, l := range s.lanes {
		if l.isUsable() && l.canServe(q) {
			lanes++
		}
	}
	for _, k := range s.classes {
		if k.late > 0 && (k == q.class || s.canContend(q, k)) {
			work += k.lateWork
		}
	}
	if work <= 0 || lanes == 0 {
		return 0
	}
	s.spare.updateAverage(s.m.now, s.m.spareOver)
	return work / (max(minSpare, s.spare.share) * float64(lanes))
}

// canContend reports whether some lane may run both q and the queries of a class.
func (s *shard) canContend(q *query, k *queryClass) bool {
	return slices.ContainsFunc(s.lanes, func(l *lane) bool {
		return l.isUsable() && l.canServe(q) && slices.ContainsFunc(k.allowedVariants(),
			func(v variant) bool {
				return l.latencyTable(v.model) != nil
			})
	})
}

// isSettling reports whether [Config.Settle] has not passed yet, so that some lanes may not have
// joined.
func (m *Matcher) isSettling() bool { return m.now < toMs(m.cfg.Settle) }

// becomesLate moves q to the late queries of s. Then it rejects late queries, the newest first,
// until the newest is expected to start before its deadline.
func (s *shard) becomesLate(q *query) {
	s.m.countWaiting(q, -1)
	s.leaveLive(q)
	q.isLate = true
	s.adaptToLoss(q)
	s.late.Append(q, &q.inShard)
	s.m.countWaiting(q, 1)
	q.lateWork = s.meanLatency(q)
	s.lateWork += q.lateWork
	q.class.late++
	q.class.lateWork += q.lateWork
	s.markDirty()
	if s.m.isSettling() {
		return
	}
	for o := s.late.Last(); o != nil; o = s.late.Last() {
		wait := s.lateWait(o)
		if s.m.now+wait <= o.deadline {
			return
		}
		if o.deadline <= s.m.now { // its turn to be looked at has not come in this step
			s.m.rejectQuery(o, DeadlinePassed, 0)
		} else {
			s.refuseQuery(o, wait)
		}
	}
}

// refuseQuery rejects q, which would have waited so long, in ms. It tells the client to try again
// when the lanes can also have served the queries of those that were told so before. If all of them
// tried again after the wait alone, the more clients there were, the more time would go into
// refusals.
func (s *shard) refuseQuery(q *query, wait float64) {
	again := min(max(s.m.now+wait, s.returned), s.m.now+wait+longestReturn)
	s.returned = again + s.meanLatency(q)/float64(max(s.usable, 1))
	s.m.rejectQuery(q, Overloaded, again-s.m.now)
}

// turnAway rejects q, which has just arrived, if it is certain to be late and then not expected to
// start before its deadline.
func (s *shard) turnAway(q *query) {
	if !q.waiting || q.isLate {
		return
	}
	wait := s.lateWait(q)
	if s.usable > 0 && !s.m.isSettling() && !q.isLate && q.lostAt+wait > q.deadline && s.isFull(q) {
		s.adaptToLoss(q)
		s.refuseQuery(q, q.lostAt-s.m.now+wait)
	}
}

// isFull reports whether the live queries that take no longer than q fill all lanes until it is too
// late for q. Longer queries do not count, because q may go before them, nor do those of families
// that have got a larger share under horizon.
func (s *shard) isFull(q *query) bool {
	room := 0.0
	_, fair := s.policy.(*horizon)
	goesBefore := func(o *query) bool {
		if fair && o.flow != q.flow {
			return q.flow.goesBeforeFlow(o.flow)
		}
		return fair && o.family != q.family &&
			o.class.demand.servedShare() > q.class.demand.servedShare()
	}
	for _, l := range s.lanes {
		if l.suitsQuery(q) {
			room += max(0, q.lostAt-s.m.now-l.start())
		}
	}
	for o := s.live.First(); o != nil && room >= 0; o = o.inShard.Next() {
		if o != q && o.least <= q.least && !goesBefore(o) {
			room -= o.least
		}
	}
	return room < 0
}

// meanLatency is q's mean latency over the lanes of s that serve it, 0 if there are none.
func (s *shard) meanLatency(q *query) float64 {
	sum, n := 0.0, 0
	for _, l := range s.lanes {
		if _, t := l.fastestVariant(q); t != nil && l.isUsable() {
			sum += t.mean[q.batch]
			n++
		}
	}
	return sum / float64(max(n, 1))
}
