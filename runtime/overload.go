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
)

// An overload says which queries that wait are refused; see Query.Refuse.
type overload struct {
	timely    int           // cores that run a query which was in time when it started
	spare     queue.Spare   // since a lane was idle
	spareOver time.Duration // over which spare is averaged; 0 until a query may be refused
}

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
	l.spareOver = spareTargets * q.QoSTarget
	r := refusable{q.QoSTarget, math.MaxInt64, math.MaxInt64}
	if !q.Deadline.IsZero() {
		r.deadline = q.Deadline.Sub(l.start)
		r.patience = arrival + time.Duration(latePatience*float64(r.deadline-arrival))
	}
	return r
}

// inVain reports whether t, a late query with the given work of late queries up to it, its own
// included, is expected to start too late to be worth its time. Queries in time that come later go
// first, so that work takes longer than it would alone: by the share of spare time, but only while
// such queries wait.
func (l *Lanes) inVain(t *turn, work, now time.Duration) bool {
	if t.target <= 0 {
		return false
	}
	share := 1.
	if l.queue.Before(math.MaxInt64, now) > 0 {
		share = max(leastSpare, l.spare.Share(now, l.spareOver))
	}
	start, until := time.Duration(l.less(work)/(share*float64(l.lanes))), t.deadline
	if share < busySpare {
		until = min(until, t.patience)
	}
	return now+start > until-t.Estimate-max(0, t.spread)
}

// hopeless reports whether t, which would have to wait, is expected neither to be in time nor to
// start as a late query while that is worth it.
func (l *Lanes) hopeless(t *turn, now time.Duration) bool {
	if t.target <= 0 {
		return false
	}
	free := l.remaining(now) - l.work()/time.Duration(l.lanes) // until the first lane is free
	before := time.Duration(l.less(l.queue.Before(t.LatestStart+t.Estimate, now)))
	if now+max(0, free)+before/time.Duration(l.lanes)+max(0, t.spread) <= t.LatestStart {
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
	if t.timely = t.Estimate > 0 && now <= t.LatestStart; t.timely {
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
		l.remove(t)
		t.refusal = l.overloaded(now)
		l.leave(t)
		close(t.granted)
		first, last, work, ok = l.queue.Late(now)
	}
}
