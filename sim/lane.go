package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/runtime/queue"
	"github.com/muster-serve/muster/runtime/queue/merge"
	"github.com/muster-serve/muster/sim/colocate"
)

// A lane is one instance of the pool. It runs one query at a time, or several as one where
// runtime/queue/merge says so; the others wait in a queue of runtime/queue.
type lane struct {
	instanceType int
	only         []string          // the models that it holds at the start; nil: all
	execution    []match.Latencies // by variant; nil: the lane cannot run it
	known        []match.Latencies // by variant: the latencies that the policy knows
	predicted    []*match.Table    // by variant: known, as a table
	queue        queue.Queue[*attempt]
	kinds        []*merge.Kind // by variant; nil: its queries are not merged
	startsAt     time.Duration // 1 ns after the idle lane looks at its queue; 0: it need not
	running      *attempt      // nil: the lane idles
	with         []*attempt    // those that run together with running
	freeAt       time.Duration // when the running query ends
	promised     []promise     // reservations of queries that have not arrived (priced)
	seat         colocate.Seat
	busy         time.Duration // sum of execution times
	served       int           // number of queries started
}

// holds reports whether the lane holds a model at the start.
func (l *lane) holds(model string) bool { return l.only == nil || slices.Contains(l.only, model) }

// A promise is a reservation of a lane, to run a variant for a query.
type promise struct {
	query   uint64
	variant int32
}

// An attempt is a query on its way to a lane, at the lane, or on its way back. The memory of
// attempts is reused.
type attempt struct {
	queue.Place
	query   uint64 // the query's sequence number
	kind    *merge.Kind
	sent    merge.GroupID // with which it is to run
	group   *merge.Group
	batch   int
	merged  int  // items of its run, if others run with it
	joined  bool // it runs with another, which tells the leader of the run
	lane    int32
	variant int32         // which it runs
	found   int32         // number of queries that it found at the lane
	number  int8          // 1 for the first of its query
	cameAt  time.Duration // arrival at the lane
	start   time.Duration // start of its execution
	end     time.Duration // end of its execution
	remains time.Duration // time until the lane is free, which it reports with the end
	over    bool          // the lane has run it or given it back
	rejects bool          // the lane rejects the query, which is late, by its model's RejectLate
	revoked bool          // cut off by its gateway; not reused, because events may still name it
}

// dispatch sends a query to a lane, which it reaches after the time way and the jitter, to run
// together with others if there is a group. An attempt under way is cut off at that moment.
func (r *run) dispatch(seq uint64, to int32, way time.Duration, group merge.GroupID) {
	if r.cfg.Jitter > 0 {
		way += min(time.Duration(r.jitter.ExpFloat64()*float64(r.cfg.Jitter)), MaxLatency)
	}
	q := r.at(seq)
	r.setWaits(seq, false)
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
	*a = attempt{query: seq, lane: to, number: q.sent, sent: group}
	q.last, a.variant = a, q.variant
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

// enqueue takes an attempt that has arrived at its lane: the lane runs it, queues it or refuses it.
func (r *run) enqueue(a *attempt) {
	if a.over { // it was cut off on its way
		return
	}
	l, q := &r.lanes[a.lane], r.at(a.query)
	m := &r.models[q.model]
	if l.predicted[a.variant] == nil {
		r.fail(fmt.Errorf("query %d of %s is on lane %d, a %s, which cannot run it",
			a.query, r.variants[a.variant].Name, a.lane, r.types[l.instanceType]))
		return
	}
	promised := l.unpromise(a.query)
	a.cameAt, r.movedAt = r.now, r.now
	a.found = int32(l.has())
	a.kind, a.batch = l.kinds[a.variant], int(q.batch)
	// The payload says how long the query had waited when it was sent. The time on the way is
	// unknown to the lane, because hosts do not compare clocks.
	arrival := q.arrival + r.cfg.RTT/2
	a.Estimate = l.predicted[a.variant].Mean(int(q.batch))
	a.LatestStart = queue.LatestStart(arrival, m.QoSTarget, a.Estimate)
	switch {
	case !q.live, // the query has an outcome already
		r.cfg.Deadline > 0 && !promised && r.now+r.remaining(l) > arrival+r.cfg.Deadline:
		r.giveBack(a)
	case m.RejectLate && a.LatestStart < r.now:
		a.rejects = true
		r.giveBack(a)
	case l.running == nil && a.kind == nil && l.queue.Len() == 0:
		r.alone[0] = a
		r.serve(l, r.alone[:])
	default:
		l.queue.Push(a, r.now)
		if a.kind != nil {
			a.kind.Enter(a.batch, a.Estimate)
			a.group = r.groups.Arrive(a.sent, r.now, a.LatestStart)
		}
		if l.running == nil { // others may come in the same moment
			r.startAt(a.lane, r.now)
		}
		if m.RejectLate {
			r.heap.push(event{at: a.LatestStart + 1, kind: becomesLate, query: a.query})
		}
	}
}

// remove takes an attempt out of the lane's queue, and reports whether it was there.
func (l *lane) remove(a *attempt) bool {
	if !l.queue.Remove(a) {
		return false
	}
	if a.kind != nil {
		a.kind.Leave(a.batch, a.Estimate)
	}
	return true
}

// Merging implements [merge.Query].
func (a *attempt) Merging() (kind *merge.Kind, batch int, group *merge.Group) {
	return a.kind, a.batch, a.group
}

// startAt makes an idle lane look at its queue at a time.
func (r *run) startAt(lane int32, at time.Duration) {
	l := &r.lanes[lane]
	if l.startsAt > 0 && l.startsAt <= at+1 {
		return
	}
	l.startsAt = at + 1
	r.heap.push(event{at: at, kind: laneStarts, lane: lane})
}

// start makes an idle lane run what its queue has for it.
func (r *run) start(lane int32) {
	l := &r.lanes[lane]
	if l.startsAt <= r.now+1 {
		l.startsAt = 0
	}
	if l.running != nil {
		return
	}
	run, until := r.taker.Take(&l.queue, r.now)
	if len(run) > 0 {
		for _, a := range run {
			if a.kind != nil {
				a.kind.Leave(a.batch, a.Estimate)
			}
		}
		r.serve(l, run)
	} else if until != merge.Never {
		r.startAt(lane, until)
	}
}

// service is how long a lane runs a variant for a query, or others too if batch is larger than its
// own.
func (r *run) service(l *lane, q *query, variant int32, batch int) time.Duration {
	service := l.execution[variant].Quantile(q.uniform, batch)
	if q.noise != 1 {
		service = time.Duration(float64(service) * q.noise)
	}
	return min(max(service, 1), MaxLatency)
}

// serve starts attempts on an idle lane, as one run.
func (r *run) serve(l *lane, run []*attempt) {
	a, sum := run[0], 0
	for _, x := range run {
		x.start = r.now
		sum += x.batch
	}
	service := r.service(l, r.at(a.query), a.variant, sum)
	l.running, l.with = a, append(l.with[:0], run[1:]...)
	if len(run) > 1 {
		a.Estimate = l.predicted[a.variant].Mean(sum)
		for _, x := range run {
			x.merged, x.joined = sum, x != a
		}
	}
	l.served += len(run)
	if l.seat.Machine != nil {
		l.freeAt = r.now
		l.seat.Machine.Start(r.now, l.seat.Lane, int(a.variant), service)
		r.retime(l.seat.Machine)
		return
	}
	l.busy += service
	l.freeAt = r.now + service
	r.heap.push(event{at: l.freeAt, kind: laneDone, attempt: a})
}

// retime schedules anew the ends of runs that changes on their machine have moved.
func (r *run) retime(on *colocate.Machine) {
	for lane, end := range on.Moved() {
		l := &r.lanes[lane]
		l.busy += end - l.freeAt
		l.freeAt = end
		r.heap.push(event{at: end, kind: laneDone, attempt: l.running})
	}
}

// free starts what is next in a lane's queue.
func (r *run) free(lane int32) {
	l := &r.lanes[lane]
	l.running, l.with = nil, l.with[:0]
	if on := l.seat.Machine; on != nil {
		on.Stop(r.now, l.seat.Lane)
		r.retime(on)
	}
	r.start(lane)
}

// done ends the run whose first attempt is a.
func (r *run) done(a *attempt) {
	l := &r.lanes[a.lane]
	if l.running != a || r.now != l.freeAt { // it was cut off before, or ends at another time
		return
	}
	if a.kind != nil {
		late := false
		for _, x := range append(l.with, a) {
			q := r.at(x.query)
			late = late || r.now > q.arrival+r.models[q.model].QoSTarget
		}
		a.kind.Ran(max(a.merged, a.batch), late)
	}
	ended := append(r.ended[:0], a)
	ended = append(ended, l.with...)
	ended = slices.DeleteFunc(ended, func(x *attempt) bool { return x.over }) // cut off before
	r.ended = ended
	for _, x := range ended {
		x.over, x.end = true, r.now
	}
	r.free(a.lane)
	for _, x := range ended {
		x.remains = r.remaining(l)
		if r.cfg.RTT > 0 {
			r.heap.push(event{at: r.now + r.cfg.RTT/2, kind: completionKnown, attempt: x})
		} else {
			r.completed(x)
		}
	}
}

// completed tells the leader of a completion. The answer reaches the gateway at the same time,
// because both are half a round trip away. Of several attempts the first to answer counts.
func (r *run) completed(a *attempt) {
	q := r.at(a.query)
	if q.live {
		// the leader has given it up, so its answer is no outcome there until the gateway says so
		givenUp := q.waits || q.last != a
		r.finish(a.query, q, Served, a)
		if givenUp && r.term != nil {
			q.open++
			r.heap.push(event{at: r.now + r.cfg.RTT/2, kind: cancelKnown, query: a.query})
		}
	}
	r.told(a, false)
	r.recycle(a)
}

// giveBack reports that a lane will not run an attempt, which it does not hold (any more).
func (r *run) giveBack(a *attempt) {
	a.over, a.remains = true, r.remaining(&r.lanes[a.lane])
	r.heap.push(event{at: r.now + r.cfg.RTT/2, kind: refusalKnown, attempt: a})
}

// refused handles a refusal when leader and gateway learn of it. The query is sent again unless
// there is a later attempt or the query is rejected.
func (r *run) refused(a *attempt) {
	q := r.at(a.query)
	concerned := func() bool { return q.live && !q.waits && q.last == a }
	switch {
	case concerned() && a.rejects:
		r.finish(a.query, q, Rejected, nil)
		q.open++
		r.cancelled(a.query) // before the refusal, so that the leader does not offer it again
	case concerned() && r.term == nil && a.number < match.MaxAttempts:
		r.setWaits(a.query, true)
		r.without.arrived(a.query, match.LaneID(a.lane))
	}
	r.told(a, true)
	if concerned() { // there is no leader to offer it again
		r.finish(a.query, q, Rejected, nil)
	}
	r.recycle(a)
}

// told tells the leader, or the gateway if there is none, that an attempt has ended; refused says
// that its lane did not run it.
func (r *run) told(a *attempt, refused bool) {
	if r.term != nil {
		r.term.ended(a, refused)
		return
	}
	r.without.ended(a, refused)
}

// revoke cuts an attempt off at its gateway; its lane learns of it after the time way.
func (r *run) revoke(a *attempt, way time.Duration) {
	a.revoked = true
	if way > 0 {
		r.heap.push(event{at: r.now + way, kind: cutsOff, attempt: a})
		return
	}
	r.cutOff(a)
}

// cutOff makes a lane stop an attempt that waits or runs, or is still on its way.
func (r *run) cutOff(a *attempt) {
	if a.over {
		return
	}
	l := &r.lanes[a.lane]
	waits := l.remove(a)
	a.over = true
	runs := func(x *attempt) bool { return !x.over }
	if !waits && (l.running == a || slices.Contains(l.with, a)) && !runs(l.running) &&
		!slices.ContainsFunc(l.with, runs) { // otherwise others of its run go on
		l.busy -= l.freeAt - r.now
		r.free(a.lane)
	}
	r.giveBack(a)
}

// deadline drops a query, sent to a lane, whose deadline has passed at its gateway. A query that
// waits at the leader is dropped by the matcher.
func (r *run) deadline(seq uint64) {
	if seq < r.first {
		return
	}
	q := r.at(seq)
	if !q.live || q.waits {
		return
	}
	last := q.last
	q.open++ // closed when the leader knows
	r.finish(seq, q, Dropped, nil)
	r.heap.push(event{at: r.now + r.cfg.RTT/2, kind: cancelKnown, query: seq})
	if last != nil && !last.over {
		r.revoke(last, r.cfg.RTT/2)
	}
}

// cancelled tells the leader that a gateway has decided a query's outcome.
func (r *run) cancelled(seq uint64) {
	if r.term != nil {
		r.term.cancelled(seq)
	}
	r.close(r.at(seq))
}

// becameLate makes a lane reject a query that still waits there.
func (r *run) becameLate(seq uint64) {
	if seq < r.first {
		return
	}
	a := r.at(seq).last
	if a == nil || !a.Waits() || a.LatestStart >= r.now {
		return
	}
	r.lanes[a.lane].remove(a)
	a.rejects = true
	r.giveBack(a)
}

// recycle ends an attempt to which no event refers any more.
func (r *run) recycle(a *attempt) {
	r.groups.Leave(a.group)
	a.group = nil
	q := r.at(a.query)
	if q.last == a {
		q.last = nil
	}
	if !a.revoked {
		r.unused = append(r.unused, a)
	}
	r.close(q)
}

// close decrements q.open, and forgets the queries that no longer matter.
func (r *run) close(q *query) {
	q.open--
	r.forget()
}

// busy is how long the worker expects the lane to be busy with the attempts that it has, as gossip
// says.
func (r *run) busy(l *lane) time.Duration {
	d := l.queue.Estimate()
	for _, k := range l.kinds {
		if k != nil {
			d -= k.Saved()
		}
	}
	if a := l.running; a != nil {
		d += max(0, a.start+a.Estimate-r.now)
	}
	return d
}

// remaining is the same with what the lane has promised to take, as it tells gateways.
func (r *run) remaining(l *lane) time.Duration {
	d := r.busy(l)
	for _, p := range l.promised {
		d += l.predicted[p.variant].Mean(int(r.at(p.query).batch))
	}
	return d
}

// has is how many queries a lane runs or has waiting.
func (l *lane) has() int {
	n := l.queue.Len()
	if l.running != nil {
		n += 1 + len(l.with)
	}
	return n
}

// unpromise removes a query's reservation, and reports whether there was one.
func (l *lane) unpromise(seq uint64) bool {
	i := slices.IndexFunc(l.promised, func(p promise) bool { return p.query == seq })
	if i >= 0 {
		l.promised = slices.Delete(l.promised, i, i+1)
	}
	return i >= 0
}
