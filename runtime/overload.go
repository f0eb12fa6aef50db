package runtime

import (
	"math"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/runtime/queue"
)

const (
	// spareTargets is the time constant of the average of spare time, in QoS targets.
	spareTargets = 5
	// leastSpare is a lower bound for the share of spare time in estimates.
	leastSpare = 0.01
	// busySpare is the share of spare time below which lanes are overloaded: a late query then
	// waits no longer than latePatience, as a share of the time from its arrival to its deadline.
	// Otherwise its deadline decides.
	busySpare    = 0.2
	latePatience = 0.25
	// Late queries are a standing queue when they have waited for standingTargets QoS targets without a
	// break, and standingLate or more of the runs meanwhile were of late ones.
	standingTargets = 3
	standingLate    = 1. / 3
	// mostlyRefused is the share of queries refused on arrival, of the last refusedOver or so, above
	// which so many come that lanes can choose among those that wait.
	mostlyRefused = 0.5
	refusedOver   = 32
)

// An overload says which queries that wait are refused; see Query.Refuse.
type overload struct {
	timely    int           // cores that run a query which was in time when it started
	spare     queue.Spare   // since a lane was idle
	spareOver time.Duration // over which spare is averaged; 0 until a query may be refused
	standing  standing
	refused   float64 // share of the queries that were refused on arrival, a moving average
}

// A standing tells whether there is a standing queue of late queries: they have waited for long while
// others kept coming, and many of the runs are theirs. Then each late query that runs makes those late
// that come meanwhile, until all are, and that lasts as long as the load. So lanes run no query any
// more that has become late by waiting. A queue that a burst left drains by itself: CoDel (Nichols and
// Jacobson, 2012) tells the two apart in the same way.
type standing struct {
	late        bool          // late queries wait that could have been in time
	since       time.Duration // since when, if late
	runs, lates int           // runs since then, and how many of them were late when they started
	arrived     time.Duration // the last query that may be refused
	until       time.Duration // until when a standing queue is believed to be there
}

// waits reports whether late queries have waited for long, for a query with a target.
func (s *standing) waits(target, now time.Duration) bool {
	return s.late && now-s.since > standingTargets*target
}

// queue reports whether there is a standing queue, for a query with a target.
func (s *standing) queue(target, now time.Duration) bool {
	return now < s.until ||
		s.waits(target, now) && float64(s.lates) >= standingLate*float64(s.runs)
}

// note notes whether late queries wait that could have been in time, with a target.
func (s *standing) note(late bool, target, now time.Duration) {
	if !s.late || now-s.arrived > target {
		s.since, s.runs, s.lates = now, 0, 0
	}
	s.late = late
}

// started notes that a run has started.
func (s *standing) started(timely bool) {
	if s.runs++; !timely {
		s.lates++
	}
}

// refused notes that a query with a target was refused because of a standing queue.
func (s *standing) refused(target, now time.Duration) { s.until = now + standingTargets*target }

// A refusable holds what is needed to refuse a query while it waits. Times count from the lanes'
// start.
type refusable struct {
	target   time.Duration // the QoS target; 0: the query is not refused
	deadline time.Duration
	patience time.Duration // the deadline of a late query while lanes are overloaded
}

// newRefusable returns what is needed to refuse q, which arrived at arrival.
func (l *Lanes) newRefusable(q *Query, arrival time.Duration) refusable {
	if !q.Refuse || q.Background || q.QoSTarget <= 0 {
		return refusable{}
	}
	l.spareOver, l.standing.arrived = spareTargets*q.QoSTarget, arrival
	r := refusable{q.QoSTarget, math.MaxInt64, math.MaxInt64}
	if !q.Deadline.IsZero() {
		r.deadline = q.Deadline.Sub(l.start)
		r.patience = arrival + time.Duration(latePatience*float64(r.deadline-arrival))
	}
	return r
}

// capable reports whether t can be in time on lanes that are free.
func (t *turn) capable() bool { return t.target > 0 && t.Estimate+max(0, t.spread) <= t.target }

// inVain reports whether t, a late query with the given work of late queries up to it, its own
// included, is expected to start too late to be worth its time. Queries in time that come later go
// first, so that work takes longer than it would alone: by the share of spare time, but only while
// such queries wait.
func (l *Lanes) inVain(t *turn, work, now time.Duration) bool {
	if t.target <= 0 {
		return false
	}
	if t.capable() && l.standing.queue(t.target, now) {
		l.standing.refused(t.target, now)
		return true
	}
	share := 1.
	if l.queue.Before(math.MaxInt64, now) > 0 {
		share = max(leastSpare, l.spare.Share(now, l.spareOver))
	}
	start, until := time.Duration(l.less(work)/(share*float64(l.lanes))), t.deadline
	if share < busySpare || l.standing.waits(2*t.target, now) {
		until = min(until, t.patience)
	}
	return now+start > until-t.Estimate-max(0, t.spread)
}

// refusesAtOnce reports whether t, which would have to wait, is to be refused: it is expected neither to
// be in time nor to start as a late query while that is worth it.
func (l *Lanes) refusesAtOnce(t *turn, now time.Duration) bool {
	if t.target <= 0 {
		return false
	}
	hopeless, refused := l.hopeless(t, now), 0.
	if hopeless {
		refused = 1
	}
	l.overload.refused += (refused - l.overload.refused) / refusedOver
	return hopeless
}

// hopeless says what refusesAtOnce reports, of a query with a target.
func (l *Lanes) hopeless(t *turn, now time.Duration) bool {
	free := l.remaining(now) - l.work()/time.Duration(l.lanes) // until the first lane is free
	before := time.Duration(l.less(l.queue.Before(t.LatestStart+t.Estimate, now)))
	if now+max(0, free)+before/time.Duration(l.lanes)+l.margin(t, now) <= t.LatestStart {
		return false
	}
	_, _, late, _ := l.queue.Late(now)
	return l.inVain(t, late+t.Estimate, now)
}

// less returns a part of the waiting work less what merging and dividing save of it.
func (l *Lanes) less(part time.Duration) float64 {
	if all := l.queue.Estimate(); all > 0 {
		return float64(part) * float64(l.work()) / float64(all)
	}
	return float64(part)
}

// overloaded returns the error of a query that is refused.
func (l *Lanes) overloaded(now time.Duration) *OverloadedError {
	l.dropped.Overloaded++
	return &OverloadedError{
		l.queue.Len(), l.queue.Bytes(), max(l.remaining(now), time.Millisecond),
	}
}

// estimateAnew estimates the queries that wait for which nothing was known when they came, now that
// the first run of their profile has ended.
func (l *Lanes) estimateAnew(profile names.ModelKey, now time.Duration) {
	for t := range l.current {
		if t.profile != profile || t.Estimate != 0 || !l.remove(t) {
			continue
		}
		t.expect(l.estimator.Estimate(profile, t.batch))
		t.whole, t.spread = t.Estimate, l.estimator.High(profile, t.batch)-t.Estimate
		l.queue.PushAgain(t, now)
		l.entered(t)
	}
}

// starts notes that t has got a lane, or one core of it.
func (l *Lanes) starts(t *turn, now time.Duration) {
	t.running = true
	if !t.onCore {
		l.stays[t.lane] = false
	}
	l.noteLoad(t, now)
	t.timely = t.Estimate > 0 && now <= t.LatestStart
	if l.standing.started(t.timely); t.timely {
		l.timely += l.coresOf(t)
	}
}

// refuse measures spare time, and refuses late queries that wait in vain: the first, behind nobody,
// and the last, behind all others, as long as there are such.
func (l *Lanes) refuse(now time.Duration) {
	if l.spareOver == 0 {
		return
	}
	held := float64(l.timely) / float64(l.lanes*l.cores)
	if len(l.idle) > 0 {
		l.spare.Restart(now, held)
		l.standing.note(false, 0, now)
		return
	}
	l.spare.Note(now, l.spareOver, held)
	first, last, work, ok := l.queue.Late(now)
	l.standing.note(ok && last.capable(), l.spareOver/spareTargets, now)
	for ok {
		t := first
		if !l.inVain(first, first.Estimate, now) {
			if t = last; !l.inVain(last, work, now) {
				return
			}
		}
		l.refuseWaiting(t, now)
		first, last, work, ok = l.queue.Late(now)
	}
}

// refuseWaiting refuses t, which waits.
func (l *Lanes) refuseWaiting(t *turn, now time.Duration) {
	l.remove(t)
	l.refuseTurn(t, l.overloaded(now))
}

// refuseTurn refuses t, which was to wait, for a reason.
func (l *Lanes) refuseTurn(t *turn, reason error) {
	t.refusal = reason
	l.leave(t)
	close(t.granted)
}

// picks reports whether lanes can choose among those that wait, because so many come: there is a standing
// queue, or most queries are refused on arrival.
func (l *Lanes) picks(now time.Duration) bool {
	return now < l.standing.until || l.overload.refused > mostlyRefused
}

// margin returns how much longer than expected t may run and still has to be in time: nine runs of ten
// take no longer and, where lanes can choose, hardly any takes longer.
func (l *Lanes) margin(t *turn, now time.Duration) time.Duration {
	if l.picks(now) {
		return 2 * max(0, t.spread)
	}
	return max(0, t.spread)
}

// preferSafe refuses queries that may well end too late, in favour of others that wait, where lanes can
// choose. What is due first runs first, so else many queries would end just too late.
func (l *Lanes) preferSafe(now time.Duration) {
	for l.picks(now) {
		l.first = l.queue.First(l.first[:0], now, 2)
		if len(l.first) < 2 {
			return
		}
		t := l.first[0]
		if t.Due() == queue.NoTarget || !t.capable() || now+l.margin(t, now) <= t.LatestStart {
			return
		}
		l.refuseWaiting(t, now)
	}
}
