package queries

import (
	"container/heap"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
)

const (
	// leastOverdue is the least time beyond its predicted end after which an attempt is given up
	// where no leader watches it.
	leastOverdue = 100 * time.Millisecond
	// mostLed is how many attempts in a row may fail where the leader has sent a query. It
	// may not know yet which members are out of reach of this gateway, so the query is
	// then decided without it.
	mostLed = 2
	// mostInquiries are decided about without a leader at a time, the oldest queries first.
	mostInquiries = 8
	// mostTogether is how many submits, cancellations and assignments one message has: an agent
	// takes 64 KiB, and the longest of them has about 1 KiB.
	mostTogether = 48
	// firstAgain is how long a query waits whose second member in a row could not be reached.
	firstAgain = 10 * time.Millisecond
	// past is earlier than any time.
	past = time.Duration(math.MinInt64)
)

// A State is that of a gateway's queries and of its link to the leader. It decides which queries go
// to the leader, which are decided without one, which attempt counts and what the outcome is. After
// each event the caller takes from Next what is to be done, then from Inquire what is to be decided
// without a leader, and from Message what the leader is to be told.
//
// A query has at most one attempt under way, which its caller makes, and exactly one outcome. Times
// count from whenever the caller likes. A State is not safe for concurrent use.
type State struct {
	sequence    uint64
	bySequence  map[uint64]*Query
	first, last *Query // in the order they arrived
	ready       turns  // those to be decided without a leader now
	later       turns  // and those that may be, each from its due time on
	inquiries   int    // how many are being decided so

	leaders leaders
	link    linkState
	lost    bool    // the last leader was lost, and no other has answered: nobody waits for one
	message Message // for the leader, not sent yet
	// when the submits were made that the leader has not acknowledged; the oldest first
	unacked   []time.Duration
	submitted uint64 // on this link
	acked     uint64
	heardAt   time.Duration
	usual     time.Duration // between a submit and its acknowledgement

	slow    func(q *Query, agent names.AgentName) time.Duration
	actions []Action
	taken   int // of actions
	stats   Stats
}

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

// A Query is one that the gateway owns. The caller fills in the exported fields but Sequence before
// it arrives, and does not change them.
type Query struct {
	Sequence uint64 // 1 for the gateway's first
	Arrival  time.Duration
	Deadline time.Duration // 0: none
	Tag      any           // the caller's own

	previous, next *Query
	since          time.Duration // when it began to wait unheard
	stage          stage
	atLeader       atLeader
	submit         uint64 // the number of its last submit on the link
	err            error  // of one that has ended without an answer, or is refused by the leader

	at       Target // of the attempt under way
	goesTo   Target
	attempts int    // made so far
	number   uint32 // of the last attempt; the leader counts those it voids

	inquired bool // it is being decided without a leader
	again    time.Duration
	failed   []names.AgentName // members that have failed it

	turns *turns // where it waits for its turn to be decided without a leader; nil: nowhere
	index int    // there
	due   time.Duration
}

// A stage is how far a query is at its gateway.
type stage uint8

const (
	held  stage = iota // it waits for a target
	bound              // it has one, goesTo, where its caller is to send it
	sent               // an attempt is under way: at
	// so it is, given up by the leader or overdue, until there is another target
	doubted
	cutOff // so it is, aborted, for there is another target: goesTo
	ended
)

// atLeader is what the leader has to do with a query.
type atLeader uint8

const (
	unknown  atLeader = iota // it knows nothing of it
	waits                    // it knows that the query waits for a lane
	assigned                 // it knows which lane the query is on, or on its way to
	// it has refused the query while an attempt was under way: the last one
	refused
	passed // the query is decided without it, though there may be one
)

// hasTarget reports whether the query has a target where it is not sent yet.
func (q *Query) hasTarget() bool { return q.stage == bound || q.stage == cutOff }

// underWay reports whether an attempt is made.
func (q *Query) underWay() bool {
	return q.stage == sent || q.stage == doubted || q.stage == cutOff
}

// submitted reports whether the leader knows of the query.
func (q *Query) submitted() bool { return q.atLeader == waits || q.atLeader == assigned }

// Ended reports whether the query has its outcome: err, or nil for the answer that its caller has.
func (q *Query) Ended() (err error, done bool) {
	if q.stage != ended {
		return nil, false
	}
	return q.err, true
}

// At is the agent where an attempt is under way, "" if none is.
func (q *Query) At() names.AgentName {
	if !q.underWay() {
		return ""
	}
	return q.at.Agent
}

// Failed are the agents that have failed the query.
func (q *Query) Failed() []names.AgentName { return q.failed }

// Backoff is about how long the caller waits before it reports an attempt under way that has failed
// without a word of the agent: the leader may not know yet that it is out of reach. An attempt that
// is cut off does not wait.
func (q *Query) Backoff() time.Duration {
	if q.attempts < 2 {
		return 0
	}
	return firstAgain << (2 * (q.attempts - 2))
}

// A Target is where an attempt is, or is to go.
type Target struct {
	Agent       names.AgentName
	Attempt     uint32
	Lane        uint32
	Reservation uint64        // the probe's; 0: a leader chose
	Took        time.Duration // predicted, until the answer

	// the leader knows of it from this gateway: the lane may tell another one of its end
	claimed bool
	sent    time.Duration
	// from when on it is given up where no leader watches it; past: not yet known
	overdue time.Duration
}

// An Assign is a leader's choice for a query, or one that is given back.
type Assign struct {
	Sequence uint64
	Attempt  uint32 // 1 is the first
	Agent    names.AgentName
	Lane     uint32
	Took     time.Duration // predicted, until the answer
}

// A Submit asks the leader for a lane; one with an Agent says where the query is already.
type Submit struct {
	Query            *Query
	Waited, TimeLeft time.Duration // TimeLeft 0: for ever
	Attempts         uint32        // made so far
	Agent            names.AgentName
	Lane             uint32
}

// A Message is what the leader is told: it reads what is submitted before what is cancelled, that
// before what is unused.
type Message struct {
	Submit []Submit
	Cancel []uint64
	Unused []Assign // the lanes will not run these attempts
}

// An ActionKind says what is to be done. Beside each stand the fields of [Action] that it has.
type ActionKind uint8

const (
	// Wake: Query. It has a target, to be had from Take, or its outcome.
	Wake ActionKind = iota
	// CutOff: Query. The attempt under way is to be cut off; its caller reports its
	// end all the same.
	CutOff
	// Release: Agent, Reservation. What was reserved is not needed.
	Release
	// HangUp: the stream to the one tried, or linked, is to be ended: somebody else leads.
	HangUp
)

// An Action is something to be done, at once: before the next event.
type Action struct {
	Kind        ActionKind
	Query       *Query
	Agent       names.AgentName
	Reservation uint64
}

// An Outcome is what an attempt came to.
type Outcome uint8

const (
	Answered  Outcome = iota // the query is answered
	Final                    // the query is wrong: no other would answer
	Elsewhere                // this member failed: another may answer
)

// GaveUp is the error of a query that as many attempts have failed as it may have.
type GaveUp struct {
	Attempts int
	Agent    names.AgentName // of the last
	Err      error           // its error
}

func (e *GaveUp) Error() string {
	return fmt.Sprintf("gave up after %d attempts, the last on agent %q: %v", e.Attempts, e.Agent,
		e.Err)
}

// New returns the state of a gateway without queries that knows of no leader. slow is the 99th
// percentile of how long a query runs at an agent, 0 if it is not known. It is asked once an
// attempt, and only where no leader watches it.
func New(slow func(q *Query, agent names.AgentName) time.Duration) *State {
	s := &State{bySequence: map[uint64]*Query{}, later: turns{soonest: true}, slow: slow}
	s.leaders.retry = firstRetry
	return s
}

// Next returns what is to be done, in order, until there is nothing.
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

// Message returns what the leader is to be told now, or as much of it as may go together; false:
// nothing. It is good until the next event. Of what is cancelled nothing goes before what is
// submitted, nor what is unused before either.
func (s *State) Message() (m Message, ok bool) {
	if !s.HasMessage() {
		return m, false
	}
	s.stats.SubmitMessages++
	all, room := s.message, mostTogether
	m.Submit, s.message.Submit = cut(all.Submit, &room)
	m.Cancel, s.message.Cancel = cut(all.Cancel, &room)
	m.Unused, s.message.Unused = cut(all.Unused, &room)
	return m, true
}

// HasMessage reports whether there is anything to tell the leader.
func (s *State) HasMessage() bool {
	return len(s.message.Submit)+len(s.message.Cancel)+len(s.message.Unused) > 0
}

// cut divides all after as many as there is room for.
func cut[T any](all []T, room *int) (now, later []T) {
	if len(all) <= *room {
		*room -= len(all)
		return all, all[:0]
	}
	n := *room
	*room = 0
	return all[:n:n], all[n:]
}

// Stats counts what has been done; the caller adds the probes.
func (s *State) Stats() Stats { return s.stats }

// Len is how many queries have no outcome yet.
func (s *State) Len() int { return len(s.bySequence) }

// Unacknowledged is how many submits the leader has not acknowledged.
func (s *State) Unacknowledged() int { return len(s.unacked) }

// Arrive takes a new query.
func (s *State) Arrive(q *Query, now time.Duration) {
	s.sequence++
	q.Sequence, q.since, q.again = s.sequence, now, past
	s.bySequence[q.Sequence] = q
	if q.previous = s.last; q.previous != nil {
		q.previous.next = q
	} else {
		s.first = q
	}
	s.last = q
	s.stats.Queries++
	if s.link == linkOpen {
		s.submit(q, now)
	}
	s.schedule(q)
}

// submit has the leader look for a lane, or, for a query that is sent and not given up, reserve the
// one it is on.
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
	// The leader reads it before what the message cancels. It takes the place of what the leader
	// knows of the query: where it is, or more attempts.
	s.message.Cancel = slices.DeleteFunc(s.message.Cancel,
		func(sequence uint64) bool { return sequence == q.Sequence })
	s.submitted++
	q.submit = s.submitted
	s.unacked = append(s.unacked, now)
	s.stats.Submits++
}

// Assign takes the leader's choice for a query.
func (s *State) Assign(a Assign) {
	q := s.bySequence[a.Sequence]
	switch {
	case q == nil:
		s.cancelled(a.Sequence)
		s.unused(a)
		return
	case !q.submitted(): // decided meanwhile; the leader is told already
		s.unused(a)
		return
	case s.crosses(q), a.Attempt <= max(q.number, q.goesTo.Attempt):
		// Chosen before the leader read that the query is elsewhere, or has been: an attempt
		// under way goes on.
		s.unused(a)
		return
	case q.attempts >= match.MaxAttempts: // the last one goes on
		s.withdraw(q)
		s.unused(a)
		return
	}
	q.atLeader = assigned
	s.goTo(q, Target{Agent: a.Agent, Attempt: a.Attempt, Lane: a.Lane, Took: a.Took})
}

// crosses reports whether what the leader says of q was said before it read the last submit of q.
func (s *State) crosses(q *Query) bool { return q.submit > s.acked }

// goTo has the caller of q send it to t, and give up the attempt under way.
func (s *State) goTo(q *Query, t Target) {
	s.dropTarget(q)
	q.goesTo = t
	if q.underWay() {
		q.stage = cutOff
		s.stats.Superseded++
		s.do(Action{Kind: CutOff, Query: q})
	} else {
		q.stage = bound
		s.do(Action{Kind: Wake, Query: q})
	}
	s.schedule(q)
}

// dropTarget gives back the target where q was to go.
func (s *State) dropTarget(q *Query) {
	if !q.hasTarget() {
		return
	}
	if t := q.goesTo; t.Reservation == 0 {
		s.giveBack(q, &t)
	} else {
		s.release(t)
	}
	s.unbind(q)
}

func (s *State) release(t Target) {
	s.do(Action{Kind: Release, Agent: t.Agent, Reservation: t.Reservation})
}

// unbind forgets where q was to go. An attempt that was cut off for that does not go on.
func (s *State) unbind(q *Query) {
	q.goesTo = Target{}
	if q.stage == cutOff {
		q.stage = doubted
	} else {
		q.stage = held
	}
}

// unused gives back an assignment.
func (s *State) unused(a Assign) {
	s.stats.Unused++
	if s.link >= linkOpen {
		s.message.Unused = append(s.message.Unused, a)
	}
}

// giveBack gives back a lane of q's.
func (s *State) giveBack(q *Query, t *Target) {
	s.unused(Assign{Sequence: q.Sequence, Attempt: t.Attempt, Agent: t.Agent, Lane: t.Lane})
}

// cancelled tells the leader that a query's outcome is decided.
func (s *State) cancelled(sequence uint64) {
	if s.link >= linkOpen {
		s.message.Cancel = append(s.message.Cancel, sequence)
	}
}

// withdraw takes q away from the leader.
func (s *State) withdraw(q *Query) {
	if q.submitted() {
		q.atLeader = unknown
		s.cancelled(q.Sequence)
	}
}

// OfferAgain takes it that the leader has given up an attempt. One that is under way goes on until
// the query is assigned anew. It returns the query, nil if that is none of the leader's any more.
func (s *State) OfferAgain(sequence uint64, attempt uint32) *Query {
	q := s.bySequence[sequence]
	switch {
	case q == nil:
		s.cancelled(sequence)
		return nil
	case !q.submitted() || s.crosses(q):
		return nil
	case q.hasTarget() && q.goesTo.Reservation == 0 && q.goesTo.Attempt == attempt:
		s.unbind(q)
		q.atLeader = waits
		q.number = max(q.number, attempt)
	case q.underWay() && q.at.Attempt == attempt:
		q.atLeader = waits
		if q.stage == sent {
			q.stage = doubted
		}
	}
	s.schedule(q)
	return q
}

// Reject takes it that the leader does not serve a query, for a reason that is the caller's own. An
// attempt under way goes on, as the last one.
func (s *State) Reject(sequence uint64, why error) {
	q := s.bySequence[sequence]
	if q == nil || !q.submitted() {
		return
	}
	if s.crosses(q) { // the leader will read the query again
		s.withdraw(q)
	}
	q.atLeader = unknown
	if q.stage == held {
		s.End(q, why)
		return
	}
	q.atLeader, q.err = refused, why
}

// Take is called by the caller of q: it returns where to send the query now, if it is to be sent.
func (s *State) Take(q *Query, now time.Duration) (t Target, ok bool) {
	if q.stage != bound {
		return Target{}, false
	}
	q.goesTo.sent, q.goesTo.overdue = now, past
	q.at, q.stage = q.goesTo, sent
	q.goesTo = Target{}
	q.attempts++
	q.number = max(q.number, q.at.Attempt)
	s.stats.Attempts++
	if q.at.Reservation != 0 {
		s.stats.Leaderless++
	}
	s.schedule(q)
	return q.at, true
}

// Attempted is called by the caller of q when its attempt is over. A query that has not ended then
// goes on, and its caller waits to be woken.
func (s *State) Attempted(q *Query, o Outcome, err error, now time.Duration) {
	switch {
	case q.stage == ended:
		return
	case o == Answered, o == Final:
		// The leader hears of it from the worker, unless it waits for another one, or the worker
		// did not follow it yet.
		switch {
		case q.atLeader != assigned || q.hasTarget():
		case q.at.claimed:
			s.giveBack(q, &q.at)
		case o == Answered:
			q.atLeader = unknown
		}
		s.End(q, err)
		return
	case q.hasTarget(): // cut off for that, or failed just before
		q.stage = bound
		s.do(Action{Kind: Wake, Query: q})
		return
	}
	q.stage = held
	q.failed = append(q.failed, q.at.Agent)
	switch {
	case q.atLeader == refused:
		s.End(q, q.err)
		return
	case q.attempts >= match.MaxAttempts:
		s.End(q, &GaveUp{q.attempts, q.at.Agent, err})
		return
	}
	q.since = now
	if q.atLeader == assigned { // the lane is not to be reserved for it any more
		s.giveBack(q, &q.at)
	}
	switch {
	case len(q.failed) >= mostLed:
		s.withdraw(q)
		q.atLeader = passed
	case q.atLeader == waits: // the leader has given the attempt up already
	case q.atLeader == assigned, s.link == linkOpen:
		s.stats.ResubmitsFailed++
		s.submit(q, now)
	}
	s.schedule(q)
}

// End decides the outcome of q: err, or nil for the answer that its caller has. A caller that makes
// an attempt cuts it off itself.
func (s *State) End(q *Query, err error) {
	if q.stage == ended {
		return
	}
	s.withdraw(q)
	s.dropTarget(q)
	q.stage, q.err = ended, err
	s.schedule(q)
	delete(s.bySequence, q.Sequence)
	if q.previous != nil {
		q.previous.next = q.next
	} else {
		s.first = q.next
	}
	if q.next != nil {
		q.next.previous = q.previous
	} else {
		s.last = q.previous
	}
	q.previous, q.next = nil, nil
	s.do(Action{Kind: Wake, Query: q})
}

// Close ends all queries.
func (s *State) Close(why error) {
	for s.first != nil {
		q := s.first
		underWay := q.underWay()
		if s.End(q, why); underWay {
			s.do(Action{Kind: CutOff, Query: q})
		}
	}
}

// Inquire returns a query that is to be decided without a leader now, the oldest, or nil. What
// comes of it is told to Decided or Undecided. Only so many are decided at a time.
func (s *State) Inquire(now time.Duration) *Query {
	if s.inquiries >= mostInquiries {
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
	q.inquired = true
	if q.stage == sent {
		q.stage = doubted
	}
	s.schedule(q)
	return q
}

// Unheard reports whether there are queries that Inquire returns now or later.
func (s *State) Unheard() bool { return len(s.ready.queries)+len(s.later.queries) > 0 }

// schedule brings in line when q is to be decided without a leader, after whatever that depends on
// has changed.
func (s *State) schedule(q *Query) {
	if q.turns != nil {
		heap.Remove(q.turns, q.index)
	}
	led := s.link == linkOpen && q.atLeader != passed
	if led || q.stage == ended || q.inquired || q.hasTarget() || q.attempts >= match.MaxAttempts {
		return
	}
	if q.due = s.dueLeaderless(q); q.due == past {
		heap.Push(&s.ready, q)
	} else {
		heap.Push(&s.later, q)
	}
}

// dueLeaderless is from when on q, which waits or is sent, may be decided without a leader.
func (s *State) dueLeaderless(q *Query) time.Duration {
	due := q.again
	if s.link == linkOpening && !s.lost {
		due = max(due, q.since+leastSilence)
	}
	if q.stage == sent {
		if q.at.overdue == past {
			q.at.overdue = q.at.sent + q.at.Took + max(leastOverdue, 3*s.slow(q, q.at.Agent))
		}
		due = max(due, q.at.overdue)
	}
	return due
}

// Decided ends what Inquire began: q goes to t, unless it is not to be sent any more.
func (s *State) Decided(q *Query, t Target) {
	s.inquired(q)
	if q.stage == ended || q.hasTarget() || q.stage == sent || q.attempts >= match.MaxAttempts {
		s.release(t)
		return
	}
	s.withdraw(q)
	t.Attempt = q.number + 1
	s.goTo(q, t)
}

// Undecided ends what Inquire began: nobody takes q, and it is to be tried again at the given time.
func (s *State) Undecided(q *Query, again time.Duration) {
	q.again = again
	s.inquired(q)
}

func (s *State) inquired(q *Query) {
	s.inquiries--
	q.inquired = false
	s.schedule(q)
}
