package lane

import (
	"math"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/runtime/queue"
)

const (
	// spareTargets is the time constant of the average of spare time, in QoS targets. Chosen:
	// longer than a burst that queues absorb, and a refused client learns of the overload's end
	// within some targets.
	spareTargets = 5
	// minSpare is a lower bound for the share of spare time in estimates.
	minSpare = 0.01
	// An overload lasts when missedShare of the last missedOver queries or so, or more, have missed
	// their targets for overloadTargets of these, and others kept coming. Chosen; in virtual time,
	// with one run in ten several times as long, .89 to .96 of the queries are in time with them.
	missedShare     = 0.25
	missedOver      = 32
	overloadTargets = 3
	// maxReturn bounds how long after a lane is free a refused client is told to try again: not all
	// do.
	maxReturn = 10 * time.Second
	// MinHeldBytes is how many bytes of queries that arrive, wait or run are never too many: beyond
	// them, and beyond what lanes serve in maxHeldTargets QoS targets, the next query is refused
	// unread while an overload lasts. Chosen: 1 MiB is hundreds of most models' queries, and what
	// waits for more than four targets is dropped by most clients.
	MinHeldBytes   = 1 << 20
	maxHeldTargets = 4
)

// An overload says which queries that wait are refused; see [Query.Refuse].
type overload struct {
	timelyCores int           // cores that run a query which was in time when it started
	spare       queue.Spare   // since a lane was idle
	spareOver   time.Duration // over which spare is averaged; 0 until a query may be refused
	missed      missedTargets
	returned    time.Duration // when all that were refused can have been served after trying again
	// meanWork and meanBytes are moving averages of the queries that may be refused: of their share
	// of the time of all lanes, in ns, and of the bytes of their inputs.
	meanWork, meanBytes float64
}

// A missedTargets tells a lasting overload from a burst. Under a lasting one each late query that
// runs makes those late that come meanwhile, until all are. So lanes run none any more that has
// become late by waiting. A queue that a burst left drains by itself: CoDel (Nichols and Jacobson,
// 2012; RFC 8289) tells the two apart in the same way, by how long they last. It drops from the
// head of the queue at a rising rate; lanes refuse all that is late instead, since its answers
// would be of no use.
type missedTargets struct {
	// share is that of the queries that were refused, or late at their start or their deadline, a
	// moving average.
	share   float64
	since   time.Duration // since when it is missedShare or more, and others keep coming
	arrived time.Duration // the last query that may be refused
}

// noteArrival notes that a query with a target has come.
func (m *missedTargets) noteArrival(target, now time.Duration) {
	if now-m.arrived > overloadTargets*target {
		m.since = now
	}
	m.arrived = max(m.arrived, now)
}

// noteOutcome notes whether a query that could have been in time missed its target; see
// missed.share.
func (m *missedTargets) noteOutcome(did bool, now time.Duration) {
	one := 0.
	if did {
		one = 1
	}
	if m.share += (one - m.share) / missedOver; m.share < missedShare {
		m.since = now
	}
}

// isLasting reports whether there is a lasting overload, for queries with a target.
func (m *missedTargets) isLasting(target, now time.Duration) bool {
	return m.share >= missedShare && now-m.since > overloadTargets*target &&
		now-m.arrived <= overloadTargets*target
}

// noteRefusable notes that q, which has just come, may be refused, if it may.
func (s *State) noteRefusable(q *Query, now time.Duration) {
	if q.isRefusable() {
		s.spareOver = spareTargets * q.QoSTarget
		s.missed.noteArrival(q.QoSTarget, now)
	}
}

// noteSize notes how large q is, if it may be refused.
func (s *State) noteSize(q *Query) {
	if q.isRefusable() && q.Estimate > 0 {
		s.meanWork += (float64(q.Estimate)/float64(s.lanes) - s.meanWork) / missedOver
		s.meanBytes += (float64(q.Bytes) - s.meanBytes) / missedOver
	}
}

// isCapable reports whether q may be refused and can be in time on lanes that are free.
func (q *Query) isCapable() bool {
	return q.isRefusable() && q.Estimate > 0 && q.Estimate <= q.QoSTarget
}

// noteMissed notes whether q was refused, is late as it starts, or has met its deadline before.
func (s *State) noteMissed(q *Query, did bool, now time.Duration) {
	if q.isCapable() {
		s.missed.noteOutcome(did, now)
	}
}

// waitsInVain reports whether q, a late query with the given work of late queries up to it, its own
// included, is expected to start too late to be worth its time. Queries in time that come later go
// first, so that work takes longer than it would alone: by the share of spare time, but only while
// such queries wait.
func (s *State) waitsInVain(q *Query, work, now time.Duration) bool {
	if !q.isRefusable() {
		return false
	}
	if q.isCapable() && s.missed.isLasting(q.QoSTarget, now) {
		return true
	}
	share := 1.
	if s.queue.Before(math.MaxInt64, now) > 0 {
		share = max(minSpare, s.spare.Share(now, s.spareOver))
	}
	start := time.Duration(s.lessSaved(work) / (share * float64(s.lanes)))
	return q.Deadline != 0 && now+start > q.Deadline-q.Estimate-max(0, q.spread)
}

// refusesAtOnce reports whether q, which would have to wait, is to be refused: it is expected
// neither to be in time nor to start as a late query while that is worth it.
func (s *State) refusesAtOnce(q *Query, now time.Duration) bool {
	if !q.isRefusable() {
		return false
	}
	// until the first lane is free
	free := s.TimeUntilFree(now) - s.WaitingWork()/time.Duration(s.lanes)
	before := time.Duration(s.lessSaved(s.queue.Before(q.LatestStart+q.Estimate, now)))
	before /= time.Duration(s.lanes)
	margin := time.Duration(0)
	if before >= q.Estimate && s.isOverloaded(now) {
		margin = q.safetyMargin()
	}
	if now+max(0, free)+before+margin <= q.LatestStart {
		return false
	}
	if _, _, late, _ := s.queue.Late(now); !s.waitsInVain(q, late+q.Estimate, now) {
		return false
	}
	s.noteMissed(q, true, now)
	return true
}

// lessSaved returns a part of the waiting work less what merging and dividing save of it.
func (s *State) lessSaved(part time.Duration) float64 {
	if all := s.queue.Estimate(); all > 0 {
		return float64(part) * float64(s.WaitingWork()) / float64(all)
	}
	return float64(part)
}

// refuseOverload refuses q because too much waits.
func (s *State) refuseOverload(q *Query, now time.Duration) {
	s.dropped.Overloaded++
	s.addAction(Action{
		Kind: Refuse, Query: q, Reason: Overloaded,
		Waiting: s.queue.Len(), WaitingBytes: s.queue.Bytes(), RetryAfter: s.retryOf(q, now),
	})
}

// refuseLate refuses q, which rejects to be late and is.
func (s *State) refuseLate(q *Query, now time.Duration) {
	s.dropped.Late++
	s.addAction(Action{Kind: Refuse, Query: q, Reason: Late, RetryAfter: s.retryOf(q, now)})
}

// retryOf returns after which time the client of q, which is refused, is to try again.
func (s *State) retryOf(q *Query, now time.Duration) time.Duration {
	return s.retryAfter((q.Estimate-s.savedByDividing(q))/time.Duration(s.lanes), now)
}

// retryAfter returns after which time the client of a refused query, which takes work of the time
// of all lanes, is to try again: when the lanes can have served those that were told so before. If
// all of them tried again as soon as a lane is free, refusals would take the more time from
// queries, the more clients there are.
func (s *State) retryAfter(work, now time.Duration) time.Duration {
	free := now + max(s.TimeUntilFree(now), s.overdueTime(now))
	again := min(max(s.returned, free), free+maxReturn)
	s.returned = again + work
	return max(again-now, time.Millisecond)
}

// overdueTime returns for how long every lane has run longer than expected, which is since its
// run's start if nothing was known of it; 0 if one has not. The best guess of how much longer such
// a run takes is as long again, and at most maxReturn: so who is refused asks a few times, and not
// a thousand times a second.
func (s *State) overdueTime(now time.Duration) time.Duration {
	if len(s.idle)+len(s.free) > 0 {
		return 0
	}
	first := Never
	for _, q := range s.running {
		first = min(first, max(0, now-q.started-q.Estimate))
	}
	if first == Never {
		return 0
	}
	return min(first, maxReturn)
}

// refusesUnread reports whether a query that begins to arrive, beside held bytes of others that
// arrive, wait or run, is to be refused unread, and counts it if so. While an overload lasts, so
// many may arrive at once that each of them is late before it has been read.
func (s *State) refusesUnread(held int64, now time.Duration) bool {
	target := s.spareOver / spareTargets
	if held <= MinHeldBytes || !s.isOverloaded(now) ||
		float64(held)*s.meanWork <= maxHeldTargets*float64(target)*s.meanBytes {
		return false
	}
	s.missed.noteArrival(target, now)
	s.missed.noteOutcome(true, now)
	return true
}

// estimateAnew estimates the queries that wait for which nothing was known when they came, now that
// the first run of their profile has ended.
func (s *State) estimateAnew(profile names.ModelKey, now time.Duration) {
	for _, q := range s.admitted {
		if q.Profile != profile || q.Estimate != 0 || !s.removeWaiting(q) {
			continue
		}
		q.setEstimate(s.estimator.Estimate(profile, q.BatchSize))
		q.wholeEstimate = q.Estimate
		q.spread = s.estimator.High(profile, q.BatchSize) - q.Estimate
		s.queue.PushAgain(q, now)
		s.noteWaiting(q)
	}
}

// refuseHopeless measures spare time, and refuses late queries that wait in vain: the first, behind
// nobody, and the last, behind all others, as long as there are such.
func (s *State) refuseHopeless(now time.Duration) {
	if s.spareOver == 0 {
		return
	}
	held := float64(s.timelyCores) / float64(s.lanes*s.cores)
	if len(s.idle) > 0 {
		s.spare.Restart(now, held)
		return
	}
	s.spare.Note(now, s.spareOver, held)
	first, last, work, ok := s.queue.Late(now)
	for ok {
		q := first
		if !s.waitsInVain(first, first.Estimate, now) {
			if q = last; !s.waitsInVain(last, work, now) {
				return
			}
		}
		s.refuseWaiting(q, now)
		first, last, work, ok = s.queue.Late(now)
	}
}

// refuseWaiting refuses q, which waits.
func (s *State) refuseWaiting(q *Query, now time.Duration) {
	s.removeWaiting(q)
	s.noteMissed(q, true, now)
	s.refuseOverload(q, now)
	s.removeAdmitted(q)
}

// safetyMargin returns how much longer than expected q may run and still surely be in time: hardly
// any run takes twice as much longer than expected as nine of ten do.
func (q *Query) safetyMargin() time.Duration { return 2 * max(0, q.spread) }

// isOverloaded reports whether the overload lasts. So many queries come then that lanes can choose
// among those that wait.
func (s *State) isOverloaded(now time.Duration) bool {
	return s.missed.isLasting(s.spareOver/spareTargets, now)
}

// refuseRisky refuses queries that may well end too late, in favour of others that wait, while the
// overload lasts. What is due first runs first, so else many queries would end just too late.
func (s *State) refuseRisky(now time.Duration) {
	for s.isOverloaded(now) {
		s.next = s.queue.First(s.next[:0], now, 2)
		if len(s.next) < 2 {
			return
		}
		q := s.next[0]
		if q.Due() == queue.NoTarget || !q.isCapable() || now+q.safetyMargin() <= q.LatestStart {
			return
		}
		s.refuseWaiting(q, now)
	}
}
