package queries

import (
	"container/heap"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/list"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
)

const (
	// minOverdue is how late, at least, an attempt that no leader watches must be before it is
	// given up. Chosen: what a leader allows a lane whose latency it knows.
	minOverdue = 100 * time.Millisecond
	// maxLed is how many attempts in a row may fail that the leader chose. After them the query is
	// decided without the leader, which may not know yet which members this gateway cannot reach.
	// Chosen: half of match.MaxAttempts.
	maxLed = 2
	// maxInquiries is how many queries are decided without a leader at a time, the oldest first.
	// Chosen: each asks several lanes, and further queries would ask the same ones.
	maxInquiries = 8
	// maxTogether is how many submits, cancellations and assignments one message may have. An
	// agent accepts messages of 64 KiB, and the longest of these takes about 1 KiB.
	maxTogether = 48
	// firstAgain is the backoff of a query after the second member in a row could not be reached;
	// see [Query.Backoff]. Chosen: many times a network's delay, and a part of most QoS targets.
	firstAgain = 10 * time.Millisecond
	// A query that goes elsewhere while an attempt of it is under way has both go on: it is hedged
	// (Dean and Barroso, "The Tail at Scale", Communications of the ACM 56, 2013). hedgeShare is
	// the share of attempts that may do so over time, hedgeBurst how many at once: a token bucket.
	// Chosen: a hedge takes at most one more run of a lane, so lanes have at most 5 % more to do,
	// which is less than what the slowest runs of a fleet cost without; the queries of a few lanes
	// that stop together are within the burst, and beyond it an attempt is cut off for the next.
	hedgeShare, hedgeBurst = 0.05, 16
	// past is earlier than any time.
	past = time.Duration(math.MinInt64)
)

// A State is the state of a gateway's queries and of its link to the leader. It decides which
// queries go to the leader, which are decided without one, which attempt counts and what the
// outcome is. After each event the caller carries out the actions of Next, then begins a decision
// for each query of Inquire, then sends the messages of Message.
//
// A query has at most one attempt under way, or two while it is hedged, which the query's caller
// makes, and exactly one outcome: the first answer, which ends the other attempt. A query that the
// leader has split waits, by Split, for the outcomes of its parts, which are queries of their own.
// Times are since a fixed time that the caller chooses. A State is not safe for concurrent use.
type State struct {
	sequence   uint64
	bySequence map[uint64]*Query
	// pending has the queries without outcomes in the order of arrival; not those that were split,
	// but their parts.
	pending   list.List[Query]
	ready     turns // queries to decide without a leader now
	later     turns // queries that may be decided so from their due times on
	inquiries int   // how many are being decided without a leader

	leaders leaders
	link    linkState
	lost    bool    // the last leader is lost, no other has answered: queries do not wait for one
	message Message // for the leader, not sent yet
	// unacked has the times of the submits that the leader has not acknowledged, the oldest first.
	unacked   []time.Duration
	submitted uint64 // on this link
	acked     uint64
	heardAt   time.Duration
	busyAt    time.Duration // when a query last came while there was none
	usual     time.Duration // usual time between a submit and its acknowledgement

	hedges  float64 // how many attempts may be made beside another; a token bucket
	slow    func(q *Query, agent names.AgentName) time.Duration
	actions []Action
	taken   int // actions that Next has returned
	stats   Stats
}

// Stats has a gateway's counters since its start.
type Stats struct {
	Queries uint64 // parts do not count
	// Splits counts queries that ran as parts. All counters below count each part as a query.
	Splits uint64
	// Submits counts submits to leaders, first and repeated ones; SubmitMessages counts the
	// messages that carried them.
	Submits, SubmitMessages uint64
	// ResubmitsFailed and ResubmitsLeader count submits repeated because an attempt failed, or
	// because there was a new leader.
	ResubmitsFailed, ResubmitsLeader uint64
	// Attempts counts payloads sent, Leaderless those of them that were decided without a leader.
	Attempts, Leaderless uint64
	// Superseded counts attempts cut off because the query was assigned anew, Hedged those that
	// then went on beside the new one.
	Superseded, Hedged uint64
	// Unused counts assignments given back to leaders.
	Unused uint64
	// Probes counts questions to workers, ProbesUnanswered those without an answer in time.
	Probes, ProbesUnanswered uint64
	// Silences counts how often a leader became silent, Links the links opened to leaders.
	Silences, Links uint64
}

// A Query is a query that the gateway owns. Before [State.Arrive] the caller fills in the exported
// fields except Sequence; afterwards nobody changes them.
//
// Invariants, between two events:
//   - goesTo is set if and only if the stage is bound or cutOff; at is the target of an attempt if
//     the stage is sent, doubted or cutOff; earlier, the target of a second attempt, is set in no
//     other stage than bound, sent and doubted. Attempt 0 means not set.
//   - The query is in State.pending until its stage is divided or ended, and in a heap of turns
//     only if a decision without a leader may be made for it.
//   - atLeader is refused only while an attempt is under way or about to be made, which is the
//     query's last.
//   - open counts the parts without an outcome; it is above 0 if and only if the stage is divided.
//   - attempts <= match.MaxAttempts. number is at least the number of the attempt under way, and
//     never falls.
type Query struct {
	// Sequence is a multiple of 4. The numbers between are those of the query's parts; see
	// [match.QueryID].
	Sequence uint64
	Arrival  time.Duration
	Deadline time.Duration // 0: none
	Tag      any           // a value of the caller's

	whole *Query   // the query of which it is a part; nil: it is no part
	parts []*Query // nil: it was not split
	open  int      // parts without an outcome

	inPending list.Node[Query] // its place in State.pending
	since     time.Duration    // when it began to wait without an answer of the leader
	stage     stage
	atLeader  atLeader
	submit    uint64 // the number of its last submit on the link
	err       error  // why it ended without an answer, or why the leader refused it

	at       Target // target of the attempt under way
	aborted  bool   // that attempt is cut off
	earlier  Target // of an attempt under way beside it, made before; Attempt 0: there is none
	goesTo   Target
	attempts int    // attempts made so far
	number   uint32 // number of the last attempt; the leader counts those that it voids too

	inquired bool // a decision without a leader is open
	unled    bool // it was without a leader while it had no answer
	again    time.Duration
	failed   []names.AgentName // members that have failed it

	turns *turns // the heap that has it; nil if none has
	index int    // its index there
	due   time.Duration
}

// A stage is the progress of a query at its gateway.
type stage uint8

const (
	held stage = iota // the query waits for a target
	// bound: its caller is to send it to its target, goesTo. An attempt before may be under way,
	// earlier.
	bound
	sent // an attempt is under way at the target at
	// doubted: an attempt is under way, but the leader has given it up or it is overdue. It goes on
	// until there is another target, and beside that target if a hedge is permitted.
	doubted
	cutOff  // the attempt under way is aborted: another target, goesTo, is known
	divided // its parts run instead; an attempt that was under way is aborted
	ended
)

// atLeader is the state of a query at the leader.
type atLeader uint8

const (
	unknown  atLeader = iota // the leader does not know the query
	waits                    // the leader knows that it waits for a lane
	assigned                 // the leader knows the lane that it is on, or on its way to
	// refused: the leader refused it while an attempt was under way, which is its last.
	refused
	passed // the gateway decides without the leader, though there may be one
)

// hasTarget reports whether the query has a target to which it is not sent yet.
func (q *Query) hasTarget() bool { return q.stage == bound || q.stage == cutOff }

// underWay reports whether an attempt is under way.
func (q *Query) underWay() bool {
	return q.stage == sent || q.stage == doubted || q.stage == cutOff
}

// isKnownToLeader reports whether the leader knows of the query.
func (q *Query) isKnownToLeader() bool { return q.atLeader == waits || q.atLeader == assigned }

// Ended reports whether the query has its outcome. err is nil if the outcome is the answer, which
// the query's caller has.
func (q *Query) Ended() (err error, done bool) {
	if q.stage != ended {
		return nil, false
	}
	return q.err, true
}

// At is the agent at which an attempt is under way, the last one of two, "" if there is none.
func (q *Query) At() names.AgentName {
	if !q.underWay() {
		return q.earlier.Agent
	}
	return q.at.Agent
}

// Variant is the model of the attempt under way, "" if there is none or the query names a model.
func (q *Query) Variant() names.ModelKey {
	if !q.underWay() {
		return ""
	}
	return q.at.Model
}

// IsHedged reports whether the query is to be sent to a target while an attempt is under way.
func (q *Query) IsHedged() bool { return q.stage == bound && q.earlier.Attempt != 0 }

// Parts returns the queries that the query's caller is to run in its place, in the order of their
// rows; nil unless the query was split. The caller must not change the slice.
func (q *Query) Parts() []*Query { return q.parts }

// Failed returns the agents that have failed the query. The caller must not change the slice.
func (q *Query) Failed() []names.AgentName { return q.failed }

// IsUnled reports whether the query was without a leader: it was lost, or said nothing. A leader that
// is far, or slow to answer a query, is there.
func (q *Query) IsUnled() bool { return q.unled }

// Backoff is about how long the caller waits before it reports an attempt that failed without an
// answer of the agent, because the leader may not know yet that the agent is out of reach. It does
// not wait if the attempt was cut off.
func (q *Query) Backoff() time.Duration {
	if q.attempts < 2 {
		return 0
	}
	return firstAgain << (2 * (q.attempts - 2))
}

// A Target is the lane to which an attempt is sent.
type Target struct {
	Agent       names.AgentName
	Attempt     uint32
	Lane        uint32
	Reservation uint64        // of the lane's answer to a probe; 0 if a leader chose the lane
	Took        time.Duration // predicted time until the answer
	// Waited is as in [Assign].
	Waited time.Duration
	// Merge and Merged name the queries with which it is to run, as in [Assign].
	Merge  uint64
	Merged uint32
	ChosenVariant

	// claimed: the leader knows of the attempt from this gateway; the lane may report its end to
	// another leader.
	claimed bool
	sent    time.Duration
	// overdue is when the attempt is given up if no leader watches it; past means not computed yet.
	overdue time.Duration
}

// Sent is when [State.Take] returned the target.
func (t *Target) Sent() time.Duration { return t.sent }

// A ChosenVariant is the model that is to answer a query that names a family, with its version;
// empty for a query that names a model.
type ChosenVariant struct {
	Model    names.ModelKey
	Accuracy float64 // in (0, 1]
}

// An Assign is a leader's choice of a lane for a query, or such a choice given back.
type Assign struct {
	Sequence uint64
	Attempt  uint32 // 1 is the first
	Agent    names.AgentName
	Lane     uint32
	Took     time.Duration // predicted time until the answer
	// Waited is how long the query had waited when the leader decided, as far as the leader knows;
	// less than 0: it does not say.
	Waited time.Duration
	// Merge, if not 0, is the leader's number for the queries that are to run together on the lane;
	// Merged is how many they are.
	Merge  uint64
	Merged uint32
	ChosenVariant
}

// A Submit asks the leader for a lane. If Agent is set, it says instead where the query is already.
type Submit struct {
	Query            *Query
	Waited, TimeLeft time.Duration // TimeLeft 0 means no deadline
	Attempts         uint32        // attempts made so far
	Agent            names.AgentName
	Lane             uint32
}

// A Message is a message to the leader. The leader reads Submit before Cancel, and Cancel before
// Unused.
type Message struct {
	Submit []Submit
	Cancel []uint64
	Unused []Assign // the lanes will not run these attempts
}

// An ActionKind says what the caller is to do. The comment of each kind lists the fields of
// [Action] that it sets.
type ActionKind uint8

const (
	// Wake: Query. Wake the query's caller: the query has a target, which Take returns, or its
	// outcome.
	Wake ActionKind = iota
	// CutOff: Query, Attempt. Cancel that attempt, which is under way. The query's caller still
	// reports its end with Attempted.
	CutOff
	// Release: Agent, Reservation. Tell the agent that the reservation is not needed.
	Release
	// HangUp: end the stream to the agent that is tried or linked, because another one leads.
	HangUp
)

// An Action is an action for the caller, to be carried out before the next event.
type Action struct {
	Kind        ActionKind
	Query       *Query
	Attempt     uint32
	Agent       names.AgentName
	Reservation uint64
}

// An Outcome is the outcome of an attempt.
type Outcome uint8

const (
	Answered  Outcome = iota // the query is answered
	Final                    // the query is invalid: no member would answer it
	Elsewhere                // this member failed: another one may answer
)

// GaveUp is the error of a query whose last permitted attempt has failed.
type GaveUp struct {
	Attempts int
	Agent    names.AgentName // the last attempt's
	Err      error           // its error
}

func (e *GaveUp) Error() string {
	return fmt.Sprintf("gave up after %d attempts, the last on agent %q: %v", e.Attempts, e.Agent,
		e.Err)
}

// New returns the state of a gateway without queries that knows of no leader. slow returns the 99th
// percentile of a query's execution latency at an agent, 0 if unknown. It is called at most once
// per attempt, and only for attempts that no leader watches.
func New(slow func(q *Query, agent names.AgentName) time.Duration) *State {
	s := &State{
		bySequence: map[uint64]*Query{}, later: turns{soonest: true}, slow: slow,
		hedges: hedgeBurst,
	}
	s.leaders.retry = firstRetry
	return s
}

// Next returns the next action; false if there is none.
func (s *State) Next() (a Action, ok bool) {
	if s.taken == len(s.actions) {
		clear(s.actions)
		s.actions, s.taken = s.actions[:0], 0
		return a, false
	}
	s.taken++
	return s.actions[s.taken-1], true
}

func (s *State) do(a Action) { s.actions = append(s.actions, a) }

// Message returns the next message to the leader, with at most maxTogether items; false if there
// is nothing to tell. It is valid until the next event. Cancellations go only after all submits,
// and unused assignments only after both.
func (s *State) Message() (m Message, ok bool) {
	if !s.HasMessage() {
		return m, false
	}
	s.stats.SubmitMessages++
	all, room := s.message, maxTogether
	m.Submit, s.message.Submit = cutToRoom(all.Submit, &room)
	m.Cancel, s.message.Cancel = cutToRoom(all.Cancel, &room)
	m.Unused, s.message.Unused = cutToRoom(all.Unused, &room)
	return m, true
}

// HasMessage reports whether there is anything to tell the leader.
func (s *State) HasMessage() bool {
	return len(s.message.Submit)+len(s.message.Cancel)+len(s.message.Unused) > 0
}

// cutToRoom splits all into the first items, for which there is room, and the others.
func cutToRoom[T any](all []T, room *int) (now, later []T) {
	if len(all) <= *room {
		*room -= len(all)
		return all, all[:0]
	}
	n := *room
	*room = 0
	return all[:n:n], all[n:]
}

// Stats returns the counters; the caller adds those of the probes.
func (s *State) Stats() Stats { return s.stats }

// Len is how many queries have no outcome yet, each part counting too.
func (s *State) Len() int { return len(s.bySequence) }

// Unacknowledged is how many submits the leader has not acknowledged.
func (s *State) Unacknowledged() int { return len(s.unacked) }

// Number returns the next number of a query, for one that the State does not own.
func (s *State) Number() uint64 {
	s.sequence += match.MostParts + 1
	return s.sequence
}

// Arrive takes a new query.
func (s *State) Arrive(q *Query, now time.Duration) {
	q.Sequence, q.since = s.Number(), now
	if s.pending.Len() == 0 {
		s.busyAt = now
	}
	s.insert(q, nil)
	s.stats.Queries++
	if s.link == linkOpen {
		s.submit(q, now)
	}
	s.scheduleLeaderless(q)
}

// insert adds q after the query before, at the end if that is nil.
func (s *State) insert(q, before *Query) {
	q.again = past
	s.bySequence[q.Sequence] = q
	if before == nil {
		s.pending.Append(q, &q.inPending)
	} else {
		s.pending.InsertAfter(q, &q.inPending, &before.inPending)
	}
}

// submit asks the leader for a lane. If an attempt of q is under way and not given up, it asks the
// leader to reserve that lane.
func (s *State) submit(q *Query, now time.Duration) {
	m := Submit{Query: q, Waited: now - q.Arrival, Attempts: q.number}
	if q.Deadline != 0 {
		m.TimeLeft = max(1, q.Deadline-now)
	}
	q.atLeader = waits
	claimed := (*Target)(nil)
	switch {
	case q.hasTarget():
		claimed = &q.goesTo
	case q.stage == sent:
		claimed = &q.at
	}
	if claimed != nil {
		m.Agent, m.Lane, m.Attempts = claimed.Agent, claimed.Lane, claimed.Attempt
		q.atLeader, claimed.claimed = assigned, true
	}
	s.message.Submit = append(s.message.Submit, m)
	// The leader reads this submit before the message's cancellations, and replaces by it what it
	// knew of the query: where it is, or how many attempts were made.
	s.message.Cancel = slices.DeleteFunc(s.message.Cancel,
		func(sequence uint64) bool { return sequence == q.Sequence })
	s.submitted++
	q.submit = s.submitted
	s.unacked = append(s.unacked, now)
	s.stats.Submits++
}

// HandleAssignment takes the leader's choice for a query.
func (s *State) HandleAssignment(a Assign) {
	q := s.bySequence[a.Sequence]
	switch {
	case q == nil:
		s.reportForgotten(a.Sequence)
		s.returnAssignment(a)
		return
	case !q.isKnownToLeader(): // the query was decided meanwhile, and the leader has been told
		s.returnAssignment(a)
		return
	case s.crossesSubmit(q), a.Attempt <= max(q.number, q.goesTo.Attempt):
		// The leader chose before it read that the query is, or was, elsewhere: an attempt under
		// way goes on.
		s.returnAssignment(a)
		return
	case q.attempts >= match.MaxAttempts: // the last one goes on
		s.cancelAtLeader(q)
		s.returnAssignment(a)
		return
	}
	q.atLeader = assigned
	s.goTo(q, Target{
		Agent: a.Agent, Attempt: a.Attempt, Lane: a.Lane, Took: a.Took, Waited: a.Waited,
		Merge: a.Merge, Merged: a.Merged, ChosenVariant: a.ChosenVariant,
	})
}

// reportForgotten tells the leader that the outcome of a query or part that is not known here is
// decided; but not if the query was never split here. It has then been submitted since the leader
// split it, which replaces its parts, and the leader may have split it once more.
func (s *State) reportForgotten(sequence uint64) {
	whole := s.bySequence[match.QueryID{Sequence: sequence}.Whole().Sequence]
	if whole == nil || whole.stage == divided {
		s.reportCancelled(sequence)
	}
}

// ToSplit takes the leader's decision to split a query. It returns the query for Split; nil if the
// query is not to be split, because the leader chose before it read where the query is or was, or
// that it is cancelled.
func (s *State) ToSplit(sequence uint64) *Query {
	q := s.bySequence[sequence]
	if q == nil || q.whole != nil || q.atLeader != waits || s.crossesSubmit(q) {
		return nil
	}
	return q
}

// Split makes q, which ToSplit has returned, wait for the outcomes of 2 to match.MostParts parts,
// in the order of their rows, of which the caller has set the tags. They wait at the leader, have
// the arrival and the deadline of q, and go their own ways. q is answered when all of them are; the
// first other outcome of a part is that of q, and the outcome of q ends the parts that have none.
func (s *State) Split(q *Query, parts []*Query) {
	q.atLeader, q.parts, q.open = unknown, parts, len(parts)
	s.stats.Splits++
	before := q
	for i, part := range parts {
		part.Sequence = match.QueryID{Sequence: q.Sequence}.Part(i + 1).Sequence
		part.Arrival, part.Deadline, part.since = q.Arrival, q.Deadline, q.since
		part.whole, part.atLeader = q, waits
		s.insert(part, before)
		s.scheduleLeaderless(part)
		before = part
	}
	s.pending.Remove(&q.inPending)
	s.stats.Superseded += uint64(s.cutOff(q, 0))
	q.stage = divided
	s.scheduleLeaderless(q)
	s.do(Action{Kind: Wake, Query: q})
}

// cutOff cuts off the attempts of q that are under way, but for the given one, and returns how
// many.
func (s *State) cutOff(q *Query, but uint32) (n int) {
	if q.underWay() && !q.aborted && q.at.Attempt != but {
		q.aborted = true
		s.do(Action{Kind: CutOff, Query: q, Attempt: q.at.Attempt})
		n++
	}
	if q.earlier.Attempt != 0 && q.earlier.Attempt != but {
		s.do(Action{Kind: CutOff, Query: q, Attempt: q.earlier.Attempt})
		n++
	}
	q.earlier = Target{}
	return n
}

// crossesSubmit reports whether the leader sent its message about q before it had read q's last
// submit.
func (s *State) crossesSubmit(q *Query) bool { return q.submit > s.acked }

// goTo makes t the target of q. An attempt under way goes on beside the next one, if that is within
// the budget of hedges; of two, the first one is cut off. Without budget all are cut off.
func (s *State) goTo(q *Query, t Target) {
	s.dropTarget(q)
	q.goesTo = t
	switch {
	case !q.underWay():
		q.stage = bound
		s.do(Action{Kind: Wake, Query: q})
	case q.aborted:
		q.stage = cutOff
	case s.hedges >= 1:
		s.stats.Superseded += uint64(s.cutOff(q, q.at.Attempt))
		q.earlier, q.stage = q.at, bound
		s.hedges--
		s.do(Action{Kind: Wake, Query: q})
	default:
		s.stats.Superseded += uint64(s.cutOff(q, 0))
		q.stage = cutOff
	}
	s.scheduleLeaderless(q)
}

// dropTarget gives back the target to which q was to be sent.
func (s *State) dropTarget(q *Query) {
	if !q.hasTarget() {
		return
	}
	if t := q.goesTo; t.Reservation == 0 {
		s.returnUnusedLane(q, &t)
	} else {
		s.release(t)
	}
	s.clearTarget(q)
}

func (s *State) release(t Target) {
	s.do(Action{Kind: Release, Agent: t.Agent, Reservation: t.Reservation})
}

// clearTarget removes q's target. An attempt that was cut off for it stays cut off, and one that
// was to go on beside it goes on.
func (s *State) clearTarget(q *Query) {
	q.goesTo = Target{}
	switch {
	case q.stage == cutOff:
		q.stage = doubted
	case q.earlier.Attempt != 0:
		s.hedges++
		q.fallBack()
	default:
		q.stage = held
	}
}

// fallBack makes the earlier one of two attempts the only one.
func (q *Query) fallBack() {
	q.at, q.earlier, q.aborted, q.stage = q.earlier, Target{}, false, doubted
}

// returnAssignment gives an assignment back to the leader.
func (s *State) returnAssignment(a Assign) {
	s.stats.Unused++
	if s.link >= linkOpen {
		s.message.Unused = append(s.message.Unused, a)
	}
}

// returnUnusedLane gives the lane of a target that q does not need back to the leader.
func (s *State) returnUnusedLane(q *Query, t *Target) {
	s.returnAssignment(Assign{Sequence: q.Sequence, Attempt: t.Attempt, Agent: t.Agent,
		Lane: t.Lane})
}

// giveBackClaimed gives back the lane of the earlier attempt, which has ended, if its lane may have
// told another leader so.
func (s *State) giveBackClaimed(q *Query) {
	if q.earlier.claimed {
		s.returnUnusedLane(q, &q.earlier)
	}
}

// reportCancelled tells the leader that a query's outcome is decided.
func (s *State) reportCancelled(sequence uint64) {
	if s.link >= linkOpen {
		s.message.Cancel = append(s.message.Cancel, sequence)
	}
}

// cancelAtLeader cancels q at the leader.
func (s *State) cancelAtLeader(q *Query) {
	if q.isKnownToLeader() {
		q.atLeader = unknown
		s.reportCancelled(q.Sequence)
	}
}

// OfferAgain notes that the leader has given up an attempt. An attempt under way goes on until the
// query is assigned anew. OfferAgain returns the query, nil if the leader does not have it any
// more.
func (s *State) OfferAgain(sequence uint64, attempt uint32) *Query {
	q := s.bySequence[sequence]
	switch {
	case q == nil:
		s.reportForgotten(sequence)
		return nil
	case !q.isKnownToLeader() || s.crossesSubmit(q):
		return nil
	case q.hasTarget() && q.goesTo.Reservation == 0 && q.goesTo.Attempt == attempt:
		s.clearTarget(q)
		q.atLeader = waits
		q.number = max(q.number, attempt)
	case q.underWay() && q.at.Attempt == attempt:
		q.atLeader = waits
		if q.stage == sent {
			q.stage = doubted
		}
	}
	s.scheduleLeaderless(q)
	return q
}

// Left notes that an agent is no member any more. The leader may have been told of the end of an
// attempt there whose answer was lost on its way: it watches such an attempt no more, and the
// connection may stay open without a word. So the gateway gives up all attempts under way there.
// Each goes on until the query has another target.
func (s *State) Left(agent names.AgentName, now time.Duration) {
	for q := s.pending.First(); q != nil; q = q.inPending.Next() {
		// While the leader was silent it may have been overdue, and no lane took it. The leader,
		// heard again, does not know that.
		overdue := q.stage == doubted && q.atLeader == assigned
		if q.stage != sent && !overdue || q.at.Agent != agent || q.atLeader == refused ||
			q.attempts >= match.MaxAttempts {
			continue
		}
		if q.stage, q.since = doubted, now; q.atLeader == assigned {
			s.returnUnusedLane(q, &q.at)
		}
		if q.atLeader == assigned || s.link == linkOpen && q.atLeader == unknown {
			s.stats.ResubmitsFailed++
			s.submit(q, now)
		}
		s.scheduleLeaderless(q)
	}
}

// Reject notes that the leader has rejected a query; why becomes the query's error. An attempt
// under way goes on, as the last one.
func (s *State) Reject(sequence uint64, why error) {
	q := s.bySequence[sequence]
	if q == nil || !q.isKnownToLeader() {
		return
	}
	if s.crossesSubmit(q) { // the leader has not read the last submit yet
		s.cancelAtLeader(q)
	}
	q.atLeader = unknown
	if q.stage == held {
		s.End(q, why)
		return
	}
	q.atLeader, q.err = refused, why
}

// Take returns the target to which q's caller is to send q now; false if there is none.
func (s *State) Take(q *Query, now time.Duration) (t Target, ok bool) {
	if q.stage != bound {
		return Target{}, false
	}
	q.goesTo.sent, q.goesTo.overdue = now, past
	q.at, q.stage, q.aborted = q.goesTo, sent, false
	q.goesTo = Target{}
	s.hedges = min(s.hedges+hedgeShare, hedgeBurst)
	if q.earlier.Attempt != 0 {
		s.stats.Hedged++
	}
	q.attempts++
	q.number = max(q.number, q.at.Attempt)
	s.stats.Attempts++
	if q.at.Reservation != 0 {
		s.stats.Leaderless++
	}
	s.scheduleLeaderless(q)
	return q.at, true
}

// Attempted notes that an attempt of q's caller has ended, also one that was cut off. If q has no
// outcome then, its caller waits for a Wake.
func (s *State) Attempted(q *Query, attempt uint32, o Outcome, err error, now time.Duration) {
	current, hedged := q.underWay() && q.at.Attempt == attempt, q.earlier.Attempt != 0
	switch {
	case q.stage == ended:
		return
	case o == Answered, o == Final && (current && !hedged || q.stage == divided):
		// The worker tells the leader of the end, unless the leader waits for another attempt, or
		// the worker did not follow this leader yet.
		switch {
		case !current || q.atLeader != assigned || q.hasTarget():
		case q.at.claimed:
			s.returnUnusedLane(q, &q.at)
		case o == Answered:
			q.atLeader = unknown
		}
		if hedged && q.earlier.Attempt == attempt {
			s.giveBackClaimed(q)
		}
		s.cutOff(q, attempt)
		s.End(q, err)
		return
	case q.stage == divided: // the attempt was cut off for the parts
		return
	case hedged && q.earlier.Attempt == attempt: // the one after it goes on
		q.failed = append(q.failed, q.earlier.Agent)
		s.giveBackClaimed(q)
		q.earlier = Target{}
		return
	case !current: // the attempt was cut off for its successor
		return
	case q.hasTarget(): // the attempt was cut off for the target, or failed just before
		q.stage = bound
		s.do(Action{Kind: Wake, Query: q})
		return
	}
	q.stage = held
	last := q.at
	q.failed = append(q.failed, last.Agent)
	if hedged {
		q.fallBack()
	}
	switch {
	case q.atLeader == refused && hedged: // the earlier attempt is the last
		s.scheduleLeaderless(q)
		return
	case q.atLeader == refused:
		s.End(q, q.err)
		return
	case q.attempts >= match.MaxAttempts && !hedged:
		s.End(q, &GaveUp{q.attempts, last.Agent, err})
		return
	}
	q.since = now
	if q.atLeader == assigned { // the leader need not reserve the lane any more
		s.returnUnusedLane(q, &last)
	}
	switch {
	case o == Final, q.attempts >= match.MaxAttempts: // the earlier attempt is the last
		if s.cancelAtLeader(q); o == Final {
			q.atLeader, q.err = refused, err
		}
	case len(q.failed) >= maxLed:
		s.cancelAtLeader(q)
		q.atLeader = passed
	case q.atLeader == waits: // the leader has already given the attempt up
	case q.atLeader == assigned, s.link == linkOpen:
		s.stats.ResubmitsFailed++
		s.submit(q, now)
	}
	s.scheduleLeaderless(q)
}

// Unsent gives back the lane of an attempt of which its worker knows nothing. The query, or the
// attempt, is ended by another call.
func (s *State) Unsent(q *Query, attempt uint32) {
	for _, t := range []*Target{&q.at, &q.earlier} {
		switch {
		case t.Attempt != attempt || !q.underWay():
		case t.Reservation != 0:
			s.release(*t)
		default:
			s.returnUnusedLane(q, t)
		}
	}
}

// End decides the outcome of q: err, or nil if q's caller has the answer. If an attempt of q is
// under way, the caller cancels it itself, and so for two.
func (s *State) End(q *Query, err error) {
	if q.stage == ended {
		return
	}
	s.cancelAtLeader(q)
	s.dropTarget(q)
	if q.stage != divided {
		s.pending.Remove(&q.inPending)
	}
	q.stage, q.err = ended, err
	s.scheduleLeaderless(q)
	delete(s.bySequence, q.Sequence)
	s.do(Action{Kind: Wake, Query: q})
	if whole := q.whole; whole != nil {
		if whole.open--; err != nil || whole.open == 0 {
			s.End(whole, err)
		}
	}
	if err == nil {
		err = errWhole
	}
	for _, part := range q.parts {
		s.abandonQuery(part, err)
	}
}

// errWhole is the error of parts that are not needed, because an attempt that was cut off for them
// has yet answered the whole query.
var errWhole = errors.New("the whole query is answered")

// abandonQuery is End, and cancels the attempts under way.
func (s *State) abandonQuery(q *Query, why error) {
	s.cutOff(q, 0)
	s.End(q, why)
}

// Close ends all queries with the error why.
func (s *State) Close(why error) {
	for s.pending.Len() > 0 {
		s.abandonQuery(s.pending.First(), why)
	}
}

// Inquire returns the oldest query that is to be decided without a leader now, or nil. The caller
// reports the result with Decided or Undecided. At most maxInquiries decisions are open at a time.
func (s *State) Inquire(now time.Duration) *Query {
	if s.inquiries >= maxInquiries {
		return nil
	}
	for len(s.later.queries) > 0 && now >= s.later.queries[0].due {
		q := heap.Pop(&s.later).(*Query)
		heap.Push(&s.ready, q)
	}
	if len(s.ready.queries) == 0 {
		return nil
	}
	s.inquiries++
	q := s.ready.queries[0]
	q.inquired, q.unled = true, q.unled || !s.isLed(now)
	if q.stage == sent {
		q.stage = doubted
	}
	s.scheduleLeaderless(q)
	return q
}

// Unheard reports whether there are queries that Inquire may return now or later.
func (s *State) Unheard() bool { return len(s.ready.queries)+len(s.later.queries) > 0 }

// scheduleLeaderless recomputes when q is to be decided without a leader. It is called after a
// change of anything on which that depends.
func (s *State) scheduleLeaderless(q *Query) {
	if q.turns != nil {
		heap.Remove(q.turns, q.index)
	}
	led := s.link == linkOpen && q.atLeader != passed
	if led || q.stage >= divided || q.inquired || q.hasTarget() || q.attempts >= match.MaxAttempts {
		return
	}
	if q.due = s.dueLeaderless(q); q.due == past {
		heap.Push(&s.ready, q)
	} else {
		heap.Push(&s.later, q)
	}
}

// dueLeaderless is the time from which q, which waits or is sent, may be decided without a leader.
func (s *State) dueLeaderless(q *Query) time.Duration {
	due := q.again
	if s.link == linkOpening && !s.lost {
		due = max(due, q.since+minSilence)
	}
	if q.stage == sent {
		if q.at.overdue == past {
			q.at.overdue = q.at.sent + q.at.Took + max(minOverdue, 3*s.slow(q, q.at.Agent))
		}
		due = max(due, q.at.overdue)
	}
	return due
}

// Decided ends the decision that Inquire began: q goes to t, unless it need not be sent any more.
func (s *State) Decided(q *Query, t Target) {
	s.endInquiry(q)
	if q.stage >= divided || q.hasTarget() || q.stage == sent || q.attempts >= match.MaxAttempts {
		s.release(t)
		return
	}
	s.cancelAtLeader(q)
	t.Attempt = q.number + 1
	s.goTo(q, t)
}

// Undecided ends the decision that Inquire began: no lane takes q, and the next decision may begin
// at again.
func (s *State) Undecided(q *Query, again time.Duration) {
	q.again = again
	s.endInquiry(q)
}

func (s *State) endInquiry(q *Query) {
	s.inquiries--
	q.inquired = false
	s.scheduleLeaderless(q)
}
