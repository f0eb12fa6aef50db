package client

import (
	"container/heap"
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader/match"
)

const (
	// leastSilence is how long a leader may at least take to acknowledge a submit.
	leastSilence = 10 * time.Millisecond
	// heartbeatSilence is how long a leader may say nothing: three heartbeats.
	heartbeatSilence = 150 * time.Millisecond
	// leastOverdue is the least time beyond its predicted end after which an
	// attempt is given up where no leader watches it.
	leastOverdue = 100 * time.Millisecond
	// mostLed is how many attempts in a row may fail where the leader has sent a query. It
	// may not know yet which members are out of reach of this gateway, so the query is then
	// decided without it.
	mostLed = 2
)

// A desk holds the queries of a gateway and decides what is done about each:
// which go to the leader, which are decided without one, which attempt counts
// and what the outcome is. It starts no goroutine and reads no clock; beyond its
// own state it only fills in the message that the leader gets next, notifies the
// goroutine that waits for a query, and calls a query's abort. Events come as
// method calls, each with its time. It is not safe for concurrent use.
//
// A query has at most one attempt under way, which its caller makes, and exactly
// one outcome: the one that its caller gets.
type desk struct {
	sequence    uint64
	queries     map[uint64]*query
	first, last *query // in the order they arrived
	strays      int    // how many of them stray
	ready       turns  // those to be decided without a leader now
	later       turns  // and those that may be, each from its due time on

	link      linkState
	lost      bool                    // the last leader was lost, and no other has answered: nobody waits for one
	message   *control.GatewayMessage // for the leader, not sent yet; nil: nothing
	unacked   []time.Time             // when the submits were made that the leader has not acknowledged; the oldest first
	submitted uint64                  // on this link
	acked     uint64
	heardAt   time.Time
	usual     time.Duration // between a submit and its acknowledgement

	released []place // reservations that are not needed
	// grace is how long beyond its predicted end an attempt may take. It is asked once an attempt,
	// and only where no leader watches it.
	grace func(q *query, agent string) time.Duration
	stats Stats
}

type linkState uint8

const (
	// linkNone: nobody is known to lead.
	linkNone linkState = iota
	// linkOpening: a leader is known, and has not answered yet.
	linkOpening
	// linkOpen: queries are submitted.
	linkOpen
	// linkSilent: the leader is linked, but has not answered in time.
	linkSilent
)

// Stats counts what a gateway has done since its start.
type Stats struct {
	Queries uint64
	// Submits to leaders, the first ones and those below; SubmitMessages carried
	// them.
	Submits, SubmitMessages uint64
	// Submits made again because an attempt failed or because there was a new
	// leader.
	ResubmitsFailed, ResubmitsLeader uint64
	// Attempts are payloads sent; of them Alone were decided without a leader.
	Attempts, Alone uint64
	// Attempts cut off because the query was assigned anew.
	Superseded uint64
	// Assignments given back.
	Unused uint64
	// Probes are questions to workers, Unanswered those without an answer in time.
	Probes, ProbesUnanswered uint64
	// Silences of leaders, and links to leaders that were opened.
	Silences, Links uint64
}

// A query is one that the gateway owns.
type query struct {
	sequence  uint64
	model     string
	version   int64 // 0: the newest
	batch     uint32
	bytes     uint64
	arrival   time.Time
	deadline  time.Time // zero: none
	prev, nxt *query

	trace *queryTrace        // nil: it is not traced
	wake  chan struct{}      // has room for one; the caller looks again
	abort context.CancelFunc // of the attempt under way; nil: none is
	ended bool
	err   error // of one that ended without an answer

	since     time.Time // when it began to wait unheard
	submitted bool      // the leader has it
	waits     bool      // at the leader it waits for a lane
	refused   error     // what the leader refused it with while an attempt was under way

	at       place // of the attempt under way
	void     bool  // that attempt is given up by the leader, or overdue
	next     place // where it is to go
	hasNext  bool
	attempts int    // made so far
	number   uint32 // of the last attempt; the leader counts those it voids
	strays   bool   // it is decided without a leader, though there may be one

	probing bool // somebody decides about it without a leader
	again   time.Time
	alone   string   // what came of that last, in words
	failed  []string // members that have failed it

	turns *turns // where it waits for its turn to be decided without a leader; nil: nowhere
	place int    // there
	due   time.Time
}

// A place is where an attempt is, or is to go.
type place struct {
	agent       string
	attempt     uint32
	lane        uint32
	reservation uint64          // the probe's; 0: a leader chose
	assign      *control.Assign // the leader's choice
	claimed     bool            // the leader knows of it from this gateway: the lane may tell another one of its end
	took        time.Duration   // predicted, until the answer
	sent        time.Time
	overdue     time.Time // from when on it is given up where no leader watches it; zero: not yet known
}

func newDesk(grace func(q *query, agent string) time.Duration) desk {
	return desk{queries: map[uint64]*query{}, later: turns{soonest: true}, grace: grace}
}

// tell is what the leader gets next.
func (d *desk) tell() *control.GatewayMessage {
	if d.message == nil {
		d.message = &control.GatewayMessage{}
	}
	return d.message
}

func (q *query) notify() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// arrive takes a new query.
func (d *desk) arrive(q *query, now time.Time) {
	d.sequence++
	q.sequence, q.since = d.sequence, now
	d.queries[q.sequence] = q
	if q.prev = d.last; q.prev != nil {
		q.prev.nxt = q
	} else {
		d.first = q
	}
	d.last = q
	d.stats.Queries++
	if d.link == linkOpen {
		d.submit(q, now)
	}
	d.schedule(q)
}

// submit has the leader look for a lane, or, for a query that is sent and not
// given up, reserve the one it is on.
func (d *desk) submit(q *query, now time.Time) {
	s := &control.Submit{
		Sequence: q.sequence, Model: q.model, Version: q.version, BatchSize: q.batch, Bytes: q.bytes,
		WaitedNs: int64(now.Sub(q.arrival)), Attempts: q.number,
	}
	if !q.deadline.IsZero() {
		s.TimeLeftNs = int64(max(1, q.deadline.Sub(now)))
	}
	q.submitted, q.waits = true, true
	switch {
	case q.hasNext:
		s.Agent, s.Lane, s.Attempts, q.waits = q.next.agent, q.next.lane, q.next.attempt, false
		q.next.claimed = true
	case q.abort != nil && !q.void:
		s.Agent, s.Lane, s.Attempts, q.waits = q.at.agent, q.at.lane, q.at.attempt, false
		q.at.claimed = true
	}
	q.trace.submitted(s)
	m := d.tell()
	m.Submit = append(m.Submit, s)
	// The leader reads it before what the message cancels. It takes the place of what the leader knows
	// of the query: where it is, or more attempts.
	m.Cancel = slices.DeleteFunc(m.Cancel, func(sequence uint64) bool { return sequence == q.sequence })
	d.submitted++
	d.unacked = append(d.unacked, now)
	d.stats.Submits++
}

// assign takes the leader's choice for a query.
func (d *desk) assign(a *control.Assign) {
	q := d.queries[a.GetSequence()]
	switch {
	case q == nil:
		d.cancelled(a.GetSequence())
		d.unused(a)
		return
	case !q.submitted: // decided meanwhile; the leader is told already
		d.unused(a)
		return
	case a.GetAttempt() <= max(q.number, q.next.attempt):
		// Chosen before the leader read that the query is elsewhere, or has been: an attempt under way goes on.
		d.unused(a)
		return
	case q.attempts >= match.MaxAttempts: // the last one goes on
		d.withdraw(q)
		d.unused(a)
		return
	}
	q.waits = false
	d.goTo(q, place{
		agent: a.GetAgent(), attempt: a.GetAttempt(), lane: a.GetLane(), assign: a,
		took: time.Duration(a.GetWaitNs() + a.GetExecutionNs()),
	})
}

// goTo has the caller of q send it to p, and give up the attempt under way.
func (d *desk) goTo(q *query, p place) {
	d.dropNext(q)
	q.next, q.hasNext = p, true
	d.schedule(q)
	if q.abort == nil {
		q.notify()
		return
	}
	d.stats.Superseded++
	q.abort()
}

// dropNext gives back the place where q was to go.
func (d *desk) dropNext(q *query) {
	if !q.hasNext {
		return
	}
	if q.hasNext = false; q.next.assign != nil {
		d.unused(q.next.assign)
	} else {
		d.released = append(d.released, q.next)
	}
	q.next = place{}
}

// unused gives back an assignment.
func (d *desk) unused(a *control.Assign) {
	d.stats.Unused++
	if d.link >= linkOpen {
		m := d.tell()
		m.Unused = append(m.Unused, a)
	}
}

// giveBack gives back the lane of the attempt that is over.
func (d *desk) giveBack(q *query) {
	d.unused(&control.Assign{Sequence: q.sequence, Attempt: q.at.attempt, Agent: q.at.agent, Lane: q.at.lane})
}

// cancelled tells the leader that a query's outcome is decided.
func (d *desk) cancelled(sequence uint64) {
	if d.link >= linkOpen {
		m := d.tell()
		m.Cancel = append(m.Cancel, sequence)
	}
}

// withdraw takes q away from the leader.
func (d *desk) withdraw(q *query) {
	if q.submitted {
		q.submitted, q.waits = false, false
		d.cancelled(q.sequence)
	}
}

// offerAgain says that the leader has given up an attempt. One that is under
// way goes on until the query is assigned anew.
func (d *desk) offerAgain(o *control.OfferAgain) {
	q := d.queries[o.GetSequence()]
	switch {
	case q == nil:
		d.cancelled(o.GetSequence())
		return
	case !q.submitted:
		return
	case q.hasNext && q.next.assign != nil && q.next.attempt == o.GetAttempt():
		q.next, q.hasNext, q.waits = place{}, false, true
		q.number = max(q.number, o.GetAttempt())
	case q.abort != nil && q.at.attempt == o.GetAttempt():
		q.void, q.waits = true, true
	}
	d.schedule(q)
	q.trace.offeredAgain(o)
}

// reject says that the leader does not serve a query.
func (d *desk) reject(r *control.Reject) {
	q := d.queries[r.GetSequence()]
	if q == nil || !q.submitted {
		return
	}
	q.submitted, q.waits = false, false
	if q.refused = rejection(r); q.abort == nil && !q.hasNext {
		d.end(q, q.refused)
	}
}

// rejection is the error of a query that the leader has rejected.
func rejection(r *control.Reject) error {
	code := codes.ResourceExhausted
	switch r.GetReason() {
	case match.UnknownModel.String():
		code = codes.NotFound
	case match.BadBatchSize.String():
		code = codes.InvalidArgument
	case match.DeadlinePassed.String():
		code = codes.DeadlineExceeded
	case match.TooManyAttempts.String():
		code = codes.Unavailable
	}
	message := r.GetMessage()
	if message == "" {
		message = "rejected by the leader: " + r.GetReason()
	}
	s := status.New(code, message)
	if retry := time.Duration(r.GetRetryAfterNs()); code == codes.ResourceExhausted {
		detailed, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(max(retry, time.Millisecond))})
		if err == nil {
			s = detailed
		}
	}
	return s.Err()
}

// take is called by the caller of q: it returns where to send the query now,
// if it is to be sent. abort must cut that attempt off.
func (d *desk) take(q *query, abort context.CancelFunc, now time.Time) (p place, ok bool) {
	if q.ended || !q.hasNext {
		return place{}, false
	}
	q.next.sent = now
	q.at, q.abort, q.void = q.next, abort, false
	q.next, q.hasNext = place{}, false
	q.attempts++
	q.number = max(q.number, q.at.attempt)
	d.stats.Attempts++
	if q.at.reservation != 0 {
		d.stats.Alone++
	}
	d.schedule(q)
	return q.at, true
}

// A verdict is what an attempt came to.
type verdict uint8

const (
	answered  verdict = iota // the query is answered
	final                    // the query is wrong: no other would answer
	elsewhere                // this member failed: another may answer
)

// attempted is called by the caller of q when its attempt is over. If it
// reports true that was the outcome; else the caller waits on.
func (d *desk) attempted(q *query, v verdict, err error, now time.Time) (done bool) {
	q.abort = nil
	switch {
	case q.ended:
		return true
	case v == answered, v == final:
		// The leader hears of it from the worker, unless it waits for another one, or the worker did not
		// follow it yet.
		switch {
		case !q.submitted || q.waits || q.hasNext:
		case q.at.claimed:
			d.giveBack(q)
		case v == answered:
			q.submitted = false
		}
		d.end(q, err)
		return true
	case q.hasNext: // cut off for that, or failed just before
		q.notify()
		return false
	}
	q.failed = append(q.failed, q.at.agent)
	if q.refused != nil {
		err = q.refused
	}
	if q.refused != nil || q.attempts >= match.MaxAttempts {
		if q.refused == nil {
			s := status.Convert(err)
			code := s.Code()
			if code == codes.Canceled { // not by the caller
				code = codes.Unavailable
			}
			err = status.Errorf(code, "gave up after %d attempts, the last on agent %q: %s", q.attempts, q.at.agent, s.Message())
		}
		d.end(q, err)
		return true
	}
	q.since = now
	if len(q.failed) >= mostLed && !q.strays {
		q.strays = true
		d.strays++
	}
	switch {
	case q.strays:
		if q.submitted && !q.waits {
			d.giveBack(q)
		}
		d.withdraw(q)
	case q.submitted && q.waits: // the leader has given the attempt up already
	case q.submitted: // the lane is not to be reserved for it any more
		d.giveBack(q)
		fallthrough
	case d.link == linkOpen:
		d.stats.ResubmitsFailed++
		d.submit(q, now)
	}
	d.schedule(q)
	return false
}

// end decides the outcome of q: err, or nil for the answer that the caller has.
func (d *desk) end(q *query, err error) {
	if q.ended {
		return
	}
	q.ended, q.err = true, err
	if q.strays {
		d.strays--
	}
	d.withdraw(q)
	d.dropNext(q)
	d.schedule(q)
	delete(d.queries, q.sequence)
	if q.prev != nil {
		q.prev.nxt = q.nxt
	} else {
		d.first = q.nxt
	}
	if q.nxt != nil {
		q.nxt.prev = q.prev
	} else {
		d.last = q.prev
	}
	q.prev, q.nxt = nil, nil
	q.notify()
}

// closed says that there is no link to a leader (any more); known tells
// whether somebody leads or is to lead, who will be tried next.
func (d *desk) closed(known bool, now time.Time) {
	lost := d.forget(now)
	if known {
		d.linkIs(linkOpening, lost)
	} else {
		d.linkIs(linkNone, lost)
	}
}

// opened says that a leader has answered on a new link. Everything goes there, in
// the order it arrived.
func (d *desk) opened(now time.Time) {
	d.forget(now)
	d.heardAt, d.submitted, d.acked = now, 0, 0
	d.linkIs(linkOpen, false)
	d.stats.Links++
	d.submitAll(now)
}

// forget drops what belongs to the link that was, and reports whether its leader, or one
// before it, is lost.
func (d *desk) forget(now time.Time) (lost bool) {
	d.message, d.unacked = nil, d.unacked[:0]
	if d.link < linkOpen {
		return d.lost
	}
	for q := d.first; q != nil; q = q.nxt {
		q.submitted, q.waits, q.since = false, false, now
	}
	return true
}

// linkIs notes what the link is now, on which it depends which queries are decided without a leader.
func (d *desk) linkIs(link linkState, lost bool) {
	if d.link == link && d.lost == lost {
		return
	}
	d.link, d.lost = link, lost
	for q := d.first; q != nil; q = q.nxt {
		d.schedule(q)
	}
}

func (d *desk) submitAll(now time.Time) {
	for q := d.first; q != nil; q = q.nxt {
		if !q.submitted && q.refused == nil && !q.strays {
			d.stats.ResubmitsLeader++
			d.submit(q, now)
		}
	}
}

// heard takes a sign of life of the leader, who has read the given number of
// submits.
func (d *desk) heard(received uint64, now time.Time) {
	if d.link < linkOpen {
		return
	}
	d.heardAt = now
	if n := min(received, d.submitted); n > d.acked {
		took := now.Sub(d.unacked[n-d.acked-1])
		d.usual += (took - d.usual) / 8
		d.unacked = append(d.unacked[:0], d.unacked[n-d.acked:]...)
		d.acked = n
	}
	if d.link == linkSilent && len(d.unacked) == 0 {
		d.linkIs(linkOpen, d.lost)
		d.submitAll(now)
	}
}

// silence is how long the leader may take to acknowledge a submit.
func (d *desk) silence() time.Duration { return max(leastSilence, 3*d.usual) }

// check finds out whether the leader is silent.
func (d *desk) check(now time.Time) {
	if d.link == linkOpen && (len(d.unacked) > 0 && now.Sub(d.unacked[0]) > d.silence() ||
		now.Sub(d.heardAt) > max(heartbeatSilence, d.silence())) {
		d.linkIs(linkSilent, d.lost)
		d.stats.Silences++
	}
}

// lookAgain is how long after check it is to be called again while there are queries.
func (d *desk) lookAgain(now time.Time) time.Duration {
	wait := watchInterval
	if d.link == linkOpen && len(d.unacked) > 0 {
		wait = min(wait, d.unacked[0].Add(d.silence()).Sub(now))
	}
	return max(wait, 0) + 1 // check wants more than the silence
}

// alone returns a query that is to be decided without a leader now, the oldest,
// or nil. It is not returned again until decided or undecided is called.
func (d *desk) alone(now time.Time) *query {
	for len(d.later.queries) > 0 && !now.Before(d.later.queries[0].due) {
		q := heap.Pop(&d.later).(*query)
		heap.Push(&d.ready, q)
	}
	if len(d.ready.queries) == 0 {
		return nil
	}
	q := d.ready.queries[0]
	q.void, q.probing = q.abort != nil, true
	d.schedule(q)
	return q
}

// schedule brings in line when q is to be decided without a leader, after whatever that depends on
// has changed.
func (d *desk) schedule(q *query) {
	if q.turns != nil {
		heap.Remove(q.turns, q.place)
	}
	if !q.ended && !q.probing && !q.hasNext && (d.link != linkOpen || q.strays) && q.attempts < match.MaxAttempts {
		if q.due = d.dueAlone(q); q.due.IsZero() {
			heap.Push(&d.ready, q)
		} else {
			heap.Push(&d.later, q)
		}
	}
}

// dueAlone is from when on q, which waits or is sent, may be decided without a leader.
func (d *desk) dueAlone(q *query) time.Time {
	due := q.again
	if d.link == linkOpening && !d.lost {
		due = later(due, q.since.Add(leastSilence))
	}
	if q.abort != nil && !q.void {
		if q.at.overdue.IsZero() {
			q.at.overdue = q.at.sent.Add(q.at.took + d.grace(q, q.at.agent))
		}
		due = later(due, q.at.overdue)
	}
	return due
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// decided ends what alone began: the query with this sequence goes to p, unless
// it is not to be sent any more.
func (d *desk) decided(sequence uint64, p place) {
	q := d.queries[sequence]
	if q != nil {
		q.probing = false
		d.schedule(q)
	}
	if q == nil || q.hasNext || q.abort != nil && !q.void || q.attempts >= match.MaxAttempts {
		d.released = append(d.released, p)
		return
	}
	d.withdraw(q)
	p.attempt = q.number + 1
	d.goTo(q, p)
}

// undecided ends what alone began: nobody takes the query, for the reason given,
// and it is to be tried again at the given time.
func (d *desk) undecided(sequence uint64, again time.Time, why string) {
	if q := d.queries[sequence]; q != nil {
		q.probing, q.again, q.alone = false, again, why
		d.schedule(q)
	}
}

// close ends all queries.
func (d *desk) close() {
	for d.first != nil {
		q := d.first
		d.end(q, status.Error(codes.Canceled, "the gateway is closed"))
		if q.abort != nil {
			q.abort()
		}
	}
}

// late is the outcome of q if its caller waits no longer.
func (q *query) late(ctx context.Context, now time.Time) error {
	s := status.FromContextError(ctx.Err())
	where := "waited for a lane"
	if q.abort != nil {
		where = fmt.Sprintf("was at agent %q", q.at.agent)
	}
	if q.alone != "" {
		where += "; there was no leader, and " + q.alone
	}
	return status.Errorf(s.Code(), "%s %v after the query arrived: it %s", s.Message(), now.Sub(q.arrival).Round(10*time.Microsecond), where)
}
