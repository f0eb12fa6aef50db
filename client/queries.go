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

// queries are those of a gateway, which it holds and decides what is done about each:
// which go to the leader, which are decided without one, which attempt counts
// and what the outcome is. It starts no goroutine and reads no clock; beyond its
// own state it only fills in the message that the leader gets next, notifies the
// goroutine that waits for a query, and calls a query's abort. Events come as
// method calls, each with its time. It is not safe for concurrent use.
//
// A query has at most one attempt under way, which its caller makes, and exactly
// one outcome: the one that its caller gets.
type queries struct {
	sequence    uint64
	bySequence  map[uint64]*query
	first, last *query // in the order they arrived
	unled       int    // how many of them are decided without a leader though there may be one
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

	released []target // reservations that are not needed
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
	// Attempts are payloads sent; of them Leaderless were decided without a leader.
	Attempts, Leaderless uint64
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
	err   error              // of one that ended without an answer

	since    time.Time // when it began to wait unheard
	stage    stage
	atLeader atLeader
	refused  error // what the leader refused it with while an attempt was under way

	at       target // of the attempt under way
	next     target // where it is to go
	attempts int    // made so far
	number   uint32 // of the last attempt; the leader counts those it voids
	unled    bool   // it is decided without a leader, though there may be one

	inquired bool // somebody decides about it without a leader
	again    time.Time
	why      string   // nothing came of that last
	failed   []string // members that have failed it

	turns *turns // where it waits for its turn to be decided without a leader; nil: nowhere
	index int    // there
	due   time.Time
}

// A stage is how far a query is at its gateway.
type stage uint8

const (
	held    stage = iota // it waits for a target
	bound                // it has one: next, where its caller is to send it
	sent                 // an attempt is under way: at
	doubted              // so it is, given up by the leader or overdue, until there is another target
	cutOff               // so it is, aborted, for there is another target: next
	ended
)

// hasNext reports whether the query has a target where it is not sent yet.
func (q *query) hasNext() bool { return q.stage == bound || q.stage == cutOff }

// underWay reports whether an attempt is made.
func (q *query) underWay() bool {
	return q.stage == sent || q.stage == doubted || q.stage == cutOff
}

// atLeader is what the leader knows of a query.
type atLeader uint8

const (
	unknown  atLeader = iota // nothing
	waits                    // that it waits for a lane
	assigned                 // which lane it is on, or on its way to
)

// A target is where an attempt is, or is to go.
type target struct {
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

func newQueries(grace func(q *query, agent string) time.Duration) queries {
	return queries{bySequence: map[uint64]*query{}, later: turns{soonest: true}, grace: grace}
}

// tell is what the leader gets next.
func (qs *queries) tell() *control.GatewayMessage {
	if qs.message == nil {
		qs.message = &control.GatewayMessage{}
	}
	return qs.message
}

func (q *query) notify() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// arrive takes a new query.
func (qs *queries) arrive(q *query, now time.Time) {
	qs.sequence++
	q.sequence, q.since = qs.sequence, now
	qs.bySequence[q.sequence] = q
	if q.prev = qs.last; q.prev != nil {
		q.prev.nxt = q
	} else {
		qs.first = q
	}
	qs.last = q
	qs.stats.Queries++
	if qs.link == linkOpen {
		qs.submit(q, now)
	}
	qs.schedule(q)
}

// submit has the leader look for a lane, or, for a query that is sent and not
// given up, reserve the one it is on.
func (qs *queries) submit(q *query, now time.Time) {
	s := &control.Submit{
		Sequence: q.sequence, Model: q.model, Version: q.version, BatchSize: q.batch, Bytes: q.bytes,
		WaitedNs: int64(now.Sub(q.arrival)), Attempts: q.number,
	}
	if !q.deadline.IsZero() {
		s.TimeLeftNs = int64(max(1, q.deadline.Sub(now)))
	}
	q.atLeader = waits
	claimed := (*target)(nil)
	switch {
	case q.hasNext():
		claimed = &q.next
	case q.stage == sent:
		claimed = &q.at
	}
	if claimed != nil {
		s.Agent, s.Lane, s.Attempts = claimed.agent, claimed.lane, claimed.attempt
		q.atLeader, claimed.claimed = assigned, true
	}
	q.trace.submitted(s)
	m := qs.tell()
	m.Submit = append(m.Submit, s)
	// The leader reads it before what the message cancels. It takes the place of what the leader knows
	// of the query: where it is, or more attempts.
	m.Cancel = slices.DeleteFunc(m.Cancel, func(sequence uint64) bool { return sequence == q.sequence })
	qs.submitted++
	qs.unacked = append(qs.unacked, now)
	qs.stats.Submits++
}

// assign takes the leader's choice for a query.
func (qs *queries) assign(a *control.Assign) {
	q := qs.bySequence[a.GetSequence()]
	switch {
	case q == nil:
		qs.cancelled(a.GetSequence())
		qs.unused(a)
		return
	case q.atLeader == unknown: // decided meanwhile; the leader is told already
		qs.unused(a)
		return
	case a.GetAttempt() <= max(q.number, q.next.attempt):
		// Chosen before the leader read that the query is elsewhere, or has been: an attempt under way goes on.
		qs.unused(a)
		return
	case q.attempts >= match.MaxAttempts: // the last one goes on
		qs.withdraw(q)
		qs.unused(a)
		return
	}
	q.atLeader = assigned
	qs.goTo(q, target{
		agent: a.GetAgent(), attempt: a.GetAttempt(), lane: a.GetLane(), assign: a,
		took: time.Duration(a.GetWaitNs() + a.GetExecutionNs()),
	})
}

// goTo has the caller of q send it to t, and give up the attempt under way.
func (qs *queries) goTo(q *query, t target) {
	qs.dropNext(q)
	q.next = t
	if q.underWay() {
		q.stage = cutOff
		qs.stats.Superseded++
		q.abort()
	} else {
		q.stage = bound
		q.notify()
	}
	qs.schedule(q)
}

// dropNext gives back the target where q was to go.
func (qs *queries) dropNext(q *query) {
	if !q.hasNext() {
		return
	}
	if q.next.assign != nil {
		qs.unused(q.next.assign)
	} else {
		qs.released = append(qs.released, q.next)
	}
	qs.unbind(q)
}

// unbind forgets where q was to go. An attempt that was cut off for that does not go on.
func (qs *queries) unbind(q *query) {
	q.next = target{}
	if q.stage == cutOff {
		q.stage = doubted
	} else {
		q.stage = held
	}
}

// unused gives back an assignment.
func (qs *queries) unused(a *control.Assign) {
	qs.stats.Unused++
	if qs.link >= linkOpen {
		m := qs.tell()
		m.Unused = append(m.Unused, a)
	}
}

// giveBack gives back the lane of the attempt that is over.
func (qs *queries) giveBack(q *query) {
	qs.unused(&control.Assign{Sequence: q.sequence, Attempt: q.at.attempt, Agent: q.at.agent, Lane: q.at.lane})
}

// cancelled tells the leader that a query's outcome is decided.
func (qs *queries) cancelled(sequence uint64) {
	if qs.link >= linkOpen {
		m := qs.tell()
		m.Cancel = append(m.Cancel, sequence)
	}
}

// withdraw takes q away from the leader.
func (qs *queries) withdraw(q *query) {
	if q.atLeader != unknown {
		q.atLeader = unknown
		qs.cancelled(q.sequence)
	}
}

// offerAgain says that the leader has given up an attempt. One that is under
// way goes on until the query is assigned anew.
func (qs *queries) offerAgain(o *control.OfferAgain) {
	q := qs.bySequence[o.GetSequence()]
	switch {
	case q == nil:
		qs.cancelled(o.GetSequence())
		return
	case q.atLeader == unknown:
		return
	case q.hasNext() && q.next.assign != nil && q.next.attempt == o.GetAttempt():
		qs.unbind(q)
		q.atLeader = waits
		q.number = max(q.number, o.GetAttempt())
	case q.underWay() && q.at.attempt == o.GetAttempt():
		q.atLeader = waits
		if q.stage == sent {
			q.stage = doubted
		}
	}
	qs.schedule(q)
	q.trace.offeredAgain(o)
}

// reject says that the leader does not serve a query.
func (qs *queries) reject(r *control.Reject) {
	q := qs.bySequence[r.GetSequence()]
	if q == nil || q.atLeader == unknown {
		return
	}
	q.atLeader = unknown
	if q.refused = rejection(r); q.stage == held {
		qs.end(q, q.refused)
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
func (qs *queries) take(q *query, abort context.CancelFunc, now time.Time) (t target, ok bool) {
	if q.stage != bound {
		return target{}, false
	}
	q.next.sent = now
	q.at, q.abort, q.stage = q.next, abort, sent
	q.next = target{}
	q.attempts++
	q.number = max(q.number, q.at.attempt)
	qs.stats.Attempts++
	if q.at.reservation != 0 {
		qs.stats.Leaderless++
	}
	qs.schedule(q)
	return q.at, true
}

// An outcome is what an attempt came to.
type outcome uint8

const (
	answered  outcome = iota // the query is answered
	final                    // the query is wrong: no other would answer
	elsewhere                // this member failed: another may answer
)

// attempted is called by the caller of q when its attempt is over. If it
// reports true that was the outcome; else the caller waits on.
func (qs *queries) attempted(q *query, o outcome, err error, now time.Time) (done bool) {
	q.abort = nil
	switch {
	case q.stage == ended:
		return true
	case o == answered, o == final:
		// The leader hears of it from the worker, unless it waits for another one, or the worker did not
		// follow it yet.
		switch {
		case q.atLeader != assigned || q.hasNext():
		case q.at.claimed:
			qs.giveBack(q)
		case o == answered:
			q.atLeader = unknown
		}
		qs.end(q, err)
		return true
	case q.hasNext(): // cut off for that, or failed just before
		q.stage = bound
		q.notify()
		return false
	}
	q.stage = held
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
		qs.end(q, err)
		return true
	}
	q.since = now
	if len(q.failed) >= mostLed && !q.unled {
		q.unled = true
		qs.unled++
	}
	switch {
	case q.unled:
		if q.atLeader == assigned {
			qs.giveBack(q)
		}
		qs.withdraw(q)
	case q.atLeader == waits: // the leader has given the attempt up already
	case q.atLeader == assigned: // the lane is not to be reserved for it any more
		qs.giveBack(q)
		fallthrough
	case qs.link == linkOpen:
		qs.stats.ResubmitsFailed++
		qs.submit(q, now)
	}
	qs.schedule(q)
	return false
}

// end decides the outcome of q: err, or nil for the answer that the caller has.
func (qs *queries) end(q *query, err error) {
	if q.stage == ended {
		return
	}
	if q.unled {
		qs.unled--
	}
	qs.withdraw(q)
	qs.dropNext(q)
	q.stage, q.err = ended, err
	qs.schedule(q)
	delete(qs.bySequence, q.sequence)
	if q.prev != nil {
		q.prev.nxt = q.nxt
	} else {
		qs.first = q.nxt
	}
	if q.nxt != nil {
		q.nxt.prev = q.prev
	} else {
		qs.last = q.prev
	}
	q.prev, q.nxt = nil, nil
	q.notify()
}

// closed says that there is no link to a leader (any more); known tells
// whether somebody leads or is to lead, who will be tried next.
func (qs *queries) closed(known bool, now time.Time) {
	lost := qs.forget(now)
	if known {
		qs.linkIs(linkOpening, lost)
	} else {
		qs.linkIs(linkNone, lost)
	}
}

// opened says that a leader has answered on a new link. Everything goes there, in
// the order it arrived.
func (qs *queries) opened(now time.Time) {
	qs.forget(now)
	qs.heardAt, qs.submitted, qs.acked = now, 0, 0
	qs.linkIs(linkOpen, false)
	qs.stats.Links++
	qs.submitAll(now)
}

// forget drops what belongs to the link that was, and reports whether its leader, or one
// before it, is lost.
func (qs *queries) forget(now time.Time) (lost bool) {
	qs.message, qs.unacked = nil, qs.unacked[:0]
	if qs.link < linkOpen {
		return qs.lost
	}
	for q := qs.first; q != nil; q = q.nxt {
		q.atLeader, q.since = unknown, now
	}
	return true
}

// linkIs notes what the link is now, on which it depends which queries are decided without a leader.
func (qs *queries) linkIs(link linkState, lost bool) {
	if qs.link == link && qs.lost == lost {
		return
	}
	qs.link, qs.lost = link, lost
	for q := qs.first; q != nil; q = q.nxt {
		qs.schedule(q)
	}
}

func (qs *queries) submitAll(now time.Time) {
	for q := qs.first; q != nil; q = q.nxt {
		if q.atLeader == unknown && q.refused == nil && !q.unled {
			qs.stats.ResubmitsLeader++
			qs.submit(q, now)
		}
	}
}

// heard takes a sign of life of the leader, who has read the given number of
// submits.
func (qs *queries) heard(received uint64, now time.Time) {
	if qs.link < linkOpen {
		return
	}
	qs.heardAt = now
	if n := min(received, qs.submitted); n > qs.acked {
		took := now.Sub(qs.unacked[n-qs.acked-1])
		qs.usual += (took - qs.usual) / 8
		qs.unacked = append(qs.unacked[:0], qs.unacked[n-qs.acked:]...)
		qs.acked = n
	}
	if qs.link == linkSilent && len(qs.unacked) == 0 {
		qs.linkIs(linkOpen, qs.lost)
		qs.submitAll(now)
	}
}

// silence is how long the leader may take to acknowledge a submit.
func (qs *queries) silence() time.Duration { return max(leastSilence, 3*qs.usual) }

// check finds out whether the leader is silent.
func (qs *queries) check(now time.Time) {
	if qs.link == linkOpen && (len(qs.unacked) > 0 && now.Sub(qs.unacked[0]) > qs.silence() ||
		now.Sub(qs.heardAt) > max(heartbeatSilence, qs.silence())) {
		qs.linkIs(linkSilent, qs.lost)
		qs.stats.Silences++
	}
}

// lookAgain is how long after check it is to be called again while there are queries.
func (qs *queries) lookAgain(now time.Time) time.Duration {
	wait := watchInterval
	if qs.link == linkOpen && len(qs.unacked) > 0 {
		wait = min(wait, qs.unacked[0].Add(qs.silence()).Sub(now))
	}
	return max(wait, 0) + 1 // check wants more than the silence
}

// inquire returns a query that is to be decided without a leader now, the oldest,
// or nil. It is not returned again until decided or undecided is called.
func (qs *queries) inquire(now time.Time) *query {
	for len(qs.later.queries) > 0 && !now.Before(qs.later.queries[0].due) {
		q := heap.Pop(&qs.later).(*query)
		heap.Push(&qs.ready, q)
	}
	if len(qs.ready.queries) == 0 {
		return nil
	}
	q := qs.ready.queries[0]
	q.inquired = true
	if q.stage == sent {
		q.stage = doubted
	}
	qs.schedule(q)
	return q
}

// unheard reports whether there are queries that inquire returns now or later.
func (qs *queries) unheard() bool { return len(qs.ready.queries)+len(qs.later.queries) > 0 }

// schedule brings in line when q is to be decided without a leader, after whatever that depends on
// has changed.
func (qs *queries) schedule(q *query) {
	if q.turns != nil {
		heap.Remove(q.turns, q.index)
	}
	led := qs.link == linkOpen && !q.unled
	if led || q.stage == ended || q.inquired || q.hasNext() || q.attempts >= match.MaxAttempts {
		return
	}
	if q.due = qs.dueLeaderless(q); q.due.IsZero() {
		heap.Push(&qs.ready, q)
	} else {
		heap.Push(&qs.later, q)
	}
}

// dueLeaderless is from when on q, which waits or is sent, may be decided without a leader.
func (qs *queries) dueLeaderless(q *query) time.Time {
	due := q.again
	if qs.link == linkOpening && !qs.lost {
		due = later(due, q.since.Add(leastSilence))
	}
	if q.stage == sent {
		if q.at.overdue.IsZero() {
			q.at.overdue = q.at.sent.Add(q.at.took + qs.grace(q, q.at.agent))
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

// decided ends what inquire began: the query with this sequence goes to t, unless
// it is not to be sent any more.
func (qs *queries) decided(sequence uint64, t target) {
	q := qs.bySequence[sequence]
	if q != nil {
		q.inquired = false
		qs.schedule(q)
	}
	if q == nil || q.hasNext() || q.stage == sent || q.attempts >= match.MaxAttempts {
		qs.released = append(qs.released, t)
		return
	}
	qs.withdraw(q)
	t.attempt = q.number + 1
	qs.goTo(q, t)
}

// undecided ends what inquire began: nobody takes the query, for the reason given,
// and it is to be tried again at the given time.
func (qs *queries) undecided(sequence uint64, again time.Time, why string) {
	if q := qs.bySequence[sequence]; q != nil {
		q.inquired, q.again, q.why = false, again, why
		qs.schedule(q)
	}
}

// close ends all queries.
func (qs *queries) close() {
	for qs.first != nil {
		q := qs.first
		qs.end(q, status.Error(codes.Canceled, "the gateway is closed"))
		if q.abort != nil {
			q.abort()
		}
	}
}

// late is the outcome of q if its caller waits no longer.
func (q *query) late(ctx context.Context, now time.Time) error {
	s := status.FromContextError(ctx.Err())
	where := "waited for a lane"
	if q.underWay() {
		where = fmt.Sprintf("was at agent %q", q.at.agent)
	}
	if q.why != "" {
		where += "; there was no leader, and " + q.why
	}
	return status.Errorf(s.Code(), "%s %v after the query arrived: it %s", s.Message(), now.Sub(q.arrival).Round(10*time.Microsecond), where)
}
