package lane

import (
	"math"
	"time"
)

// Never is a time that does not come.
const Never time.Duration = math.MaxInt64

// An EventKind is the kind of an [Event].
type EventKind uint8

const (
	// Arrived: Query has come. Cause is set if nobody waits for it by now. The lanes start it, or
	// refuse it, or it waits.
	Arrived EventKind = iota + 1
	// Cancelled: nobody waits for Query any more, by Cause. It waits, or it runs; if it runs,
	// RunEnded or RunFailed follows.
	Cancelled
	// RunEnded: the run of Query, the first of those that run together, has ended with a result
	// after Execution. Cause is set if nobody waits for Query any more: its result is dropped.
	RunEnded
	// RunFailed: the run of Query, the first of those that run together, has ended without a
	// result: the model failed, or, if Cause is set, nobody waits for Query any more, or the model
	// panicked. The reason may lie in one of those that run together, so each of them runs alone
	// then.
	RunFailed
	// TimePassed: the time that Step has asked for has come, or any other.
	TimePassed
	// Reserved: Reservation, whose first fields are set, is made; Step sets the others.
	Reserved
	// Released: Reservation has ended.
	Released
	// ReadBegan: a query begins to arrive, beside HeldBytes of others that arrive, wait or run. The
	// lanes refuse to read it by RefuseUnread.
	ReadBegan
	// UnreadRefused: a query is refused unread, beside HeldBytes of others. Refuse, without a
	// query, says when its client is to try again.
	UnreadRefused
	// DrainBegan: the lanes admit no query any more. Drained says when the last one has ended.
	DrainBegan
	// DrainTimedOut: the queries that wait or run are to be dropped.
	DrainTimedOut
)

// An Event is something that has happened at the lanes or to a query. Its kind says which fields
// are set.
type Event struct {
	Kind        EventKind
	Cause       Reason
	Query       *Query
	Execution   time.Duration
	Reservation *Reservation
	HeldBytes   int64
}

// A Reason is why a query gets no answer.
type Reason uint8

const (
	// Overloaded: too much waits.
	Overloaded Reason = iota + 1
	// Late: the query can no longer meet its QoS target, and rejects to be late.
	Late
	// DeadlinePassed: the query's deadline has passed.
	DeadlinePassed
	// CallerLeft: the sender of the query does not wait for the answer.
	CallerLeft
	// Draining: the lanes drain.
	Draining
	// Panicked: the model panicked, and its caller with it.
	Panicked
)

// An ActionKind is what the caller is to do.
type ActionKind uint8

const (
	// Start: Query gets a lane, or one core of it. If Run is not nil it runs together with the
	// others of Run, of which it is the first. Its Estimate is how long that is expected to take.
	Start ActionKind = iota + 1
	// Rerun: Query, the first of a run that has failed, runs alone now, on the lane that it has.
	Rerun
	// Refuse: Query gets no answer, by Reason, and does not run, or does not run on. RetryAfter is
	// when its client may try again if the reason is Overloaded or Late.
	Refuse
	// Answer: the run that Query was part of has ended. Its part of the result is that of the
	// member Member.
	Answer
	// CancelRun: nobody waits for the run of Query, the first of those that run together.
	CancelRun
	// Abandon: Query is to be cancelled, since draining has taken too long.
	Abandon
	// RefuseUnread: the query that begins to arrive is to be refused.
	RefuseUnread
	// Drained: no query is left, and none comes.
	Drained
)

// An Action is something to be done. Which fields are set depends on its kind.
type Action struct {
	Kind   ActionKind
	Reason Reason
	Member int
	Query  *Query
	Run    *Run
	// RetryAfter is when to try again, > 0: when the lanes can have served the queries that wait,
	// and those whose clients were told so before. Waiting and WaitingBytes are the queries that
	// wait now, and the bytes of their inputs.
	RetryAfter   time.Duration
	Waiting      int
	WaitingBytes int64
}
