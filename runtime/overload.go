package runtime

import (
	"context"
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
	// An overload lasts when mostMissed of the last missedOver queries or so, or more, have missed their
	// targets for overloadTargets of these, and others kept coming.
	mostMissed      = 0.25
	missedOver      = 32
	overloadTargets = 3
	// longestReturn bounds how long after a lane is free a refused client is told to try again: not all
	// do.
	longestReturn = 10 * time.Second
	// While an overload lasts, queries are read while they are at most leastHeld bytes in all, or what
	// lanes serve in mostHeld QoS targets.
	leastHeld = 1 << 20
	mostHeld  = 4
)

// An overload says which queries that wait are refused; see Query.Refuse.
type overload struct {
	timely    int           // cores that run a query which was in time when it started
	spare     queue.Spare   // since a lane was idle
	spareOver time.Duration // over which spare is averaged; 0 until a query may be refused
	missed    missed
	returned  time.Duration // when all that were refused can have been served after trying again
	// meanWork and meanBytes are moving averages of the queries that may be refused: of their share of
	// the time of all lanes, in ns, and of the bytes of their inputs.
	meanWork, meanBytes float64
}

// A missed tells a lasting overload from a burst. Under a lasting one each late query that runs makes
// those late that come meanwhile, until all are. So lanes run none any more that has become late by
// waiting. A queue that a burst left drains by itself: CoDel (Nichols and Jacobson, 2012) tells the
// two apart in the same way, by how long it lasts.
type missed struct {
	// share is that of the queries that were refused, or late at their start or their deadline, a
	// moving average.
	share   float64
	since   time.Duration // since when it is mostMissed or more, and others keep coming
	arrived time.Duration // the last query that may be refused
}

// arrives notes that a query with a target has come.
func (m *missed) arrives(target, now time.Duration) {
	if now-m.arrived > overloadTargets*target {
		m.since = now
	}
	m.arrived = max(m.arrived, now)
}

// note notes whether a query that could have been in time missed its target; see missed.share.
func (m *missed) note(did bool, now time.Duration) {
	one := 0.
	if did {
		one = 1
	}
	if m.share += (one - m.share) / missedOver; m.share < mostMissed {
		m.since = now
	}
}

// lasts reports whether there is a lasting overload, for queries with a target.
func (m *missed) lasts(target, now time.Duration) bool {
	return m.share >= mostMissed && now-m.since > overloadTargets*target &&
		now-m.arrived <= overloadTargets*target
}

// A refusable holds what is needed to refuse a query while it waits. Times count from the lanes'
// start.
type refusable struct {
	target   time.Duration // the QoS target; 0: the query is not refused
	deadline time.Duration
}

// newRefusable returns what is needed to refuse q, which has arrived by now and runs with ctx.
func (l *Lanes) newRefusable(ctx context.Context, q *Query, now time.Duration) refusable {
	if !q.Refuse || q.Background || q.QoSTarget <= 0 {
		return refusable{}
	}
	l.spareOver = spareTargets * q.QoSTarget
	l.missed.arrives(q.QoSTarget, now)
	r := refusable{q.QoSTarget, math.MaxInt64}
	if deadline, ok := ctx.Deadline(); ok { // the query's, or its client's if that is earlier
		r.deadline = deadline.Sub(l.start)
	}
	return r
}

// capable reports whether t can be in time on lanes that are free.
func (t *turn) capable() bool { return t.Estimate > 0 && t.Estimate <= t.target }

// noteMissed notes whether t was refused, is late as it starts, or has met its deadline before.
func (l *Lanes) noteMissed(t *turn, did bool, now time.Duration) {
	if t.capable() {
		l.missed.note(did, now)
	}
}

// inVain reports whether t, a late query with the given work of late queries up to it, its own
// included, is expected to start too late to be worth its time. Queries in time that come later go
// first, so that work takes longer than it would alone: by the share of spare time, but only while
// such queries wait.
func (l *Lanes) inVain(t *turn, work, now time.Duration) bool {
	if t.target <= 0 {
		return false
	}
	if t.capable() && l.missed.lasts(t.target, now) {
		return true
	}
	share := 1.
	if l.queue.Before(math.MaxInt64, now) > 0 {
		share = max(leastSpare, l.spare.Share(now, l.spareOver))
	}
	start := time.Duration(l.less(work) / (share * float64(l.lanes)))
	return now+start > t.deadline-t.Estimate-max(0, t.spread)
}

// refusesAtOnce reports whether t, which would have to wait, is to be refused: it is expected neither to
// be in time nor to start as a late query while that is worth it.
func (l *Lanes) refusesAtOnce(t *turn, now time.Duration) bool {
	if t.target <= 0 {
		return false
	}
	free := l.remaining(now) - l.work()/time.Duration(l.lanes) // until the first lane is free
	before := time.Duration(l.less(l.queue.Before(t.LatestStart+t.Estimate, now)))
	before /= time.Duration(l.lanes)
	margin := time.Duration(0)
	if before >= t.Estimate && l.overloads(now) {
		margin = t.margin()
	}
	if now+max(0, free)+before+margin <= t.LatestStart {
		return false
	}
	if _, _, late, _ := l.queue.Late(now); !l.inVain(t, late+t.Estimate, now) {
		return false
	}
	l.noteMissed(t, true, now)
	return true
}

// less returns a part of the waiting work less what merging and dividing save of it.
func (l *Lanes) less(part time.Duration) float64 {
	if all := l.queue.Estimate(); all > 0 {
		return float64(part) * float64(l.work()) / float64(all)
	}
	return float64(part)
}

// overloaded returns the error of t, which is refused.
func (l *Lanes) overloaded(t *turn, now time.Duration) *OverloadedError {
	l.dropped.Overloaded++
	work := (t.Estimate - l.saves(t)) / time.Duration(l.lanes)
	return &OverloadedError{l.queue.Len(), l.queue.Bytes(), l.tryAgain(work, now)}
}

// tryAgain returns after which time the client of a refused query, which takes work of the time of all
// lanes, is to try again: when the lanes can have served those that were told so before. If all of them
// tried again as soon as a lane is free, refusals would take the more time from queries, the more
// clients there are.
func (l *Lanes) tryAgain(work, now time.Duration) time.Duration {
	free := now + max(l.remaining(now), l.overdue(now))
	again := min(max(l.returned, free), free+longestReturn)
	l.returned = again + work
	return max(again-now, time.Millisecond)
}

// overdue returns for how long every lane has run longer than expected, which is since its run's start
// if nothing was known of it; 0 if one has not. The best guess of how much longer such a run takes is
// as long again, and at most longestReturn: so who is refused asks a few times, and not a thousand times
// a second.
func (l *Lanes) overdue(now time.Duration) time.Duration {
	if len(l.idle)+len(l.free) > 0 {
		return 0
	}
	least := time.Duration(-1)
	for t := range l.current {
		if t.running {
			over := max(0, now-t.started-t.Estimate)
			if least < 0 || over < least {
				least = over
			}
		}
	}
	return min(max(0, least), longestReturn)
}

// late returns the error of t, which rejects to be late and is.
func (l *Lanes) late(t *turn, now time.Duration) error {
	l.dropped.Late++
	return &LateError{l.tryAgain((t.Estimate-l.saves(t))/time.Duration(l.lanes), now)}
}

// noteSize notes how large t is.
func (l *Lanes) noteSize(t *turn) {
	if t.target > 0 && t.Estimate > 0 {
		l.meanWork += (float64(t.Estimate)/float64(l.lanes) - l.meanWork) / missedOver
		l.meanBytes += (float64(t.Bytes) - l.meanBytes) / missedOver
	}
}

// RefusesUnread reports whether a query that begins to arrive, beside held bytes of others that arrive,
// wait or run, is to be refused unread, and counts it if so. While an overload lasts, so many may arrive
// at once that each of them is late before it has been read.
func (l *Lanes) RefusesUnread(held int64) bool {
	if held <= leastHeld {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now, target := l.now(), l.spareOver/spareTargets
	if !l.overloads(now) || float64(held)*l.meanWork <= mostHeld*float64(target)*l.meanBytes {
		return false
	}
	l.missed.arrives(target, now)
	l.missed.note(true, now)
	return true
}

// UnreadError returns the error of a query that is refused unread, beside held bytes of others.
func (l *Lanes) UnreadError(held int64) *OverloadedError {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &OverloadedError{l.queue.Len(), held, l.tryAgain(time.Duration(l.meanWork), l.now())}
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
	l.noteMissed(t, !t.timely, now)
	if t.timely {
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
		return
	}
	l.spare.Note(now, l.spareOver, held)
	first, last, work, ok := l.queue.Late(now)
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
	l.noteMissed(t, true, now)
	l.refuseTurn(t, l.overloaded(t, now))
}

// refuseTurn refuses t, which was to wait, for a reason.
func (l *Lanes) refuseTurn(t *turn, reason error) {
	t.refusal = reason
	l.leave(t)
	close(t.granted)
}

// margin returns how much longer than expected t may run and still surely be in time: hardly any run
// takes twice as much longer than expected as nine of ten do.
func (t *turn) margin() time.Duration { return 2 * max(0, t.spread) }

// overloads reports whether the overload lasts. So many queries come then that lanes can choose among
// those that wait.
func (l *Lanes) overloads(now time.Duration) bool {
	return l.missed.lasts(l.spareOver/spareTargets, now)
}

// preferSafe refuses queries that may well end too late, in favour of others that wait, while the
// overload lasts. What is due first runs first, so else many queries would end just too late.
func (l *Lanes) preferSafe(now time.Duration) {
	for l.overloads(now) {
		l.first = l.queue.First(l.first[:0], now, 2)
		if len(l.first) < 2 {
			return
		}
		t := l.first[0]
		if t.Due() == queue.NoTarget || !t.capable() || now+t.margin() <= t.LatestStart {
			return
		}
		l.refuseWaiting(t, now)
	}
}
