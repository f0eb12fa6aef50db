package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/runtime/queue"
)

// A lane of the simulated fleet: one instance that runs one query at a time. The others wait in
// production's queue.
type lane struct {
	instanceType int
	execution    []match.Latencies // by model; nil: cannot run it
	known        []match.Latencies // by model, what is believed of execution
	predicted    []*match.Table    // by model, the same as the leader has it
	queue        queue.Queue[*attempt]
	running      *attempt      // nil: idle, and nothing waits
	freeAt       time.Duration // when the running query ends
	promised     []uint64      // queries that are promised a place and not there (priced)
	busy         time.Duration // summed execution time
	served       int           // queries it has started
}

// An attempt is a query on its way to a lane, there, or on its way back. Attempts are recycled.
type attempt struct {
	queue.Place
	query   uint64 // its sequence number
	lane    int32
	number  int8          // 1 for the first of its query
	cameAt  time.Duration // at the lane
	start   time.Duration // of its execution
	end     time.Duration // of that
	remains time.Duration // until the lane is free, as it says then
	over    bool          // the lane has run it, or given it back
	rejects bool          // the lane rejects the query itself: it is late, and its model is set so
	revoked bool          // cut off by its gateway; as events may still name it, it is not recycled
}

// dispatch sends a query to a lane, where it is after the given time. An attempt under way is cut
// off at that time.
func (r *run) dispatch(seq uint64, to int32, way time.Duration) {
	q := r.at(seq)
	r.setWaits(q, false)
	if former := q.last; former != nil && !former.over {
		r.revoke(former, way)
	}
	var a *attempt
	if n := len(r.unused); n > 0 {
		a, r.unused = r.unused[n-1], r.unused[:n-1]
	} else {
		a = &attempt{}
	}
	q.sent++
	q.open++
	*a = attempt{query: seq, lane: to, number: q.sent}
	q.last = a
	if r.cfg.Deadline > 0 {
		r.heap.push(event{
			at: max(r.now, q.arrival+r.cfg.Deadline), kind: deadlinePasses, query: seq,
		})
	}
	if way > 0 {
		r.heap.push(event{at: r.now + way, kind: payloadArrives, attempt: a})
		return
	}
	r.enqueue(a)
}

// enqueue has a lane run an attempt that has arrived, or have it wait, or refuse it.
func (r *run) enqueue(a *attempt) {
	l, q := &r.lanes[a.lane], r.at(a.query)
	m := &r.models[q.model]
	if l.predicted[q.model] == nil {
		r.fail(fmt.Errorf("query %d of %s is on lane %d, a %s, which cannot run it",
			a.query, m.Name, a.lane, r.types[l.instanceType]))
		return
	}
	promised := l.unpromise(a.query)
	a.cameAt, r.movedAt = r.now, r.now
	// The gateway has told how long the query had waited when it was sent. How long it was on its
	// way no clock tells.
	arrival := q.arrival + r.cfg.RTT/2
	a.Estimate = l.predicted[q.model].Mean(int(q.batch))
	a.LatestStart = queue.LatestStart(arrival, m.QoSTarget, a.Estimate)
	switch {
	case !q.live, // decided meanwhile
		r.cfg.Deadline > 0 && !promised && r.now+r.remaining(l) > arrival+r.cfg.Deadline:
		r.giveBack(a)
	case m.RejectLate && a.LatestStart < r.now:
		a.rejects = true
		r.giveBack(a)
	case l.running == nil:
		r.serve(l, a)
	default:
		l.queue.Push(a, r.now)
		if m.RejectLate {
			r.heap.push(event{at: a.LatestStart + 1, kind: becomesLate, query: a.query})
		}
	}
}

// service is how long a lane runs a query.
func (r *run) service(l *lane, q *query) time.Duration {
	service := l.execution[q.model].Quantile(q.uniform, int(q.batch))
	if q.noise != 1 {
		service = time.Duration(float64(service) * q.noise)
	}
	return min(max(service, 1), MaxLatency)
}

// serve has an idle lane run an attempt.
func (r *run) serve(l *lane, a *attempt) {
	service := r.service(l, r.at(a.query))
	a.start = r.now
	l.running = a
	l.busy += service
	l.served++
	l.freeAt = r.now + service
	r.heap.push(event{at: l.freeAt, kind: laneDone, attempt: a})
}

// free has a lane take the next query.
func (r *run) free(l *lane) {
	l.running = nil
	if next, ok := l.queue.Pop(r.now); ok {
		r.serve(l, next)
	}
}

func (r *run) done(a *attempt) {
	if a.over { // cut off before
		return
	}
	a.over, a.end = true, r.now
	r.free(&r.lanes[a.lane])
	a.remains = r.remaining(&r.lanes[a.lane])
	if r.cfg.RTT > 0 {
		r.heap.push(event{at: r.now + r.cfg.RTT/2, kind: completionKnown, attempt: a})
		return
	}
	r.completed(a)
}

// completed tells the leader; the answer has reached the gateway at the same time, for both are
// half a round trip away. Of several attempts the first to answer counts.
func (r *run) completed(a *attempt) {
	q := r.at(a.query)
	if q.live {
		// by the leader, to whom its answer is no outcome: the gateway says so
		givenUp := q.waits || q.last != a
		r.finish(a.query, q, Served, a)
		if givenUp && r.priced == nil {
			q.open++
			r.heap.push(event{at: r.now + r.cfg.RTT/2, kind: cancelKnown, query: a.query})
		}
	}
	if r.priced == nil {
		r.term.ended(a, false)
	}
	r.recycle(a)
}

// giveBack has a lane tell that it will not run an attempt that it does not hold (any more).
func (r *run) giveBack(a *attempt) {
	a.over, a.remains = true, r.remaining(&r.lanes[a.lane])
	r.heap.push(event{at: r.now + r.cfg.RTT/2, kind: refusalKnown, attempt: a})
}

// refused is known to leader and gateway. The query is sent again, unless there is an attempt after
// this one or it is rejected.
func (r *run) refused(a *attempt) {
	q := r.at(a.query)
	concerned := func() bool { return q.live && !q.waits && q.last == a }
	switch {
	case concerned() && a.rejects:
		r.finish(a.query, q, Rejected, nil)
		q.open++
		r.cancelled(a.query) // before the refusal, so that it is not offered again
	case concerned() && r.priced != nil && a.number < match.MaxAttempts:
		r.setWaits(q, true)
		r.priced.arrived(a.query, match.LaneID(a.lane))
	}
	if r.priced == nil {
		r.term.ended(a, true)
	}
	if concerned() { // nobody offers it again
		r.finish(a.query, q, Rejected, nil)
	}
	r.recycle(a)
}

// revoke has a gateway cut an attempt off, of which its lane hears after the given time.
func (r *run) revoke(a *attempt, way time.Duration) {
	a.revoked = true
	if way > 0 {
		r.heap.push(event{at: r.now + way, kind: cutsOff, attempt: a})
		return
	}
	r.cutOff(a)
}

// cutOff has a lane stop an attempt that waits or runs.
func (r *run) cutOff(a *attempt) {
	if a.over {
		return
	}
	l := &r.lanes[a.lane]
	if !l.queue.Remove(a) {
		l.busy -= l.freeAt - r.now
		r.free(l)
	}
	r.giveBack(a)
}

// deadline passes at the gateway of a query that has been sent to a lane: nobody waits for the
// answer any more. What waits at the leader the matcher drops.
func (r *run) deadline(seq uint64) {
	if seq < r.first {
		return
	}
	q := r.at(seq)
	if !q.live || q.waits {
		return
	}
	last := q.last
	q.open++ // until the leader knows
	r.finish(seq, q, Dropped, nil)
	r.heap.push(event{at: r.now + r.cfg.RTT/2, kind: cancelKnown, query: seq})
	if last != nil && !last.over {
		r.revoke(last, r.cfg.RTT/2)
	}
}

// cancelled is known to the leader: a gateway has decided a query's outcome.
func (r *run) cancelled(seq uint64) {
	if r.priced == nil {
		r.term.cancelled(seq)
	}
	r.close(r.at(seq))
}

// becameLate has a lane reject a query that still waits there.
func (r *run) becameLate(seq uint64) {
	if seq < r.first {
		return
	}
	a := r.at(seq).last
	if a == nil || !a.Waits() || a.LatestStart >= r.now {
		return
	}
	r.lanes[a.lane].queue.Remove(a)
	a.rejects = true
	r.giveBack(a)
}

// recycle ends an attempt of which all is known.
func (r *run) recycle(a *attempt) {
	q := r.at(a.query)
	if q.last == a {
		q.last = nil
	}
	if !a.revoked {
		r.unused = append(r.unused, a)
	}
	r.close(q)
}

// close ends one of the things that still concern a query.
func (r *run) close(q *query) {
	q.open--
	r.forget()
}

// remaining is how long the worker expects the lane to be busy with what it has and has promised to
// take.
func (r *run) remaining(l *lane) time.Duration {
	d := l.queue.Estimate()
	if a := l.running; a != nil {
		d += max(0, a.start+a.Estimate-r.now)
	}
	for _, seq := range l.promised {
		q := r.at(seq)
		d += l.predicted[q.model].Mean(int(q.batch))
	}
	return d
}

// unpromise voids the promise of a place to a query, and reports whether there was one.
func (l *lane) unpromise(seq uint64) bool {
	i := slices.Index(l.promised, seq)
	if i >= 0 {
		l.promised = slices.Delete(l.promised, i, i+1)
	}
	return i >= 0
}
