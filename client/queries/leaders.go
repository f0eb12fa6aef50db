package queries

import (
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/election"
)

const (
	// minSilence is the least time that a leader has to acknowledge a submit before it counts as
	// silent. Chosen: longer than a pause of Go's garbage collector or of a busy machine's
	// scheduler.
	minSilence = 10 * time.Millisecond
	// heartbeatSilence is how long a leader may send nothing, while there are queries, before it
	// counts as silent: three heartbeats. Without queries it sends fewer.
	heartbeatSilence = 150 * time.Millisecond
	// lostSilence is how long a leader may send nothing before the gateway looks for another: the
	// time after which agents elect one.
	lostSilence = time.Second
	// firstAnswer is how long a member tried as the leader has to answer. Chosen: longer than a
	// connection takes to open, and so short that a frozen leader is noticed soon.
	firstAnswer = 250 * time.Millisecond
	// firstRetry and lastRetry bound how long the gateway waits before it tries again to reach a
	// leader, a wait that doubles. Chosen: an election takes many times as long.
	firstRetry = 5 * time.Millisecond
	lastRetry  = 25 * time.Millisecond
	// WatchInterval is the longest time between two calls of [State.Check] while there are queries.
	WatchInterval = 5 * time.Millisecond
)

// A linkState is the state of the link to the leader.
type linkState uint8

const (
	// linkNone: no leader is known.
	linkNone linkState = iota
	// linkOpening: a leader is known, and has not answered yet.
	linkOpening
	// linkOpen: queries are submitted to the leader.
	linkOpen
	// linkSilent: the link is open, but the leader has not answered in time.
	linkSilent
)

// A Leadership names the leader, as far as its sender knows, and the successor that is to lead
// next; "" means nobody.
type Leadership struct {
	Epoch             uint64 // 0 if nobody has led yet
	Leader, Successor names.AgentName
}

// leaders is the state of the search for the leader. The search goes in rounds: it tries the known
// leader, then its successor, then pauses.
type leaders struct {
	known   Leadership        // the latest news
	lost    names.AgentName   // the leader lost last
	round   []names.AgentName // members not tried yet in this round; nil: no round has begun
	of      Leadership        // known, at the begin of the round
	tried   names.AgentName   // the member whose stream is open or being opened; "": none
	triedAt time.Duration
	pause   bool // pause before the next round
	retry   time.Duration
}

// Learn takes news of who leads, and reports whether it is new; if so, the caller should call Try.
func (s *State) Learn(l Leadership) (news bool) {
	known := s.leaders.known
	switch {
	case l.Epoch == known.Epoch && l.Leader == "" && known.Leader != "":
		return false
	// the epoch is a lie; see package election
	case election.Beyond(l.Epoch, known.Epoch) && s.link >= linkOpen:
		return false
	case l.Epoch < known.Epoch && !(l.Epoch > 0 && election.Beyond(known.Epoch, l.Epoch)):
		return false
	}
	s.leaders.known = l
	if l.Leader == known.Leader && l.Epoch == known.Epoch {
		return false
	}
	// The successor may be tried before it is known to lead.
	if tried := s.leaders.tried; tried != "" && l.Epoch != s.leaders.of.Epoch && l.Leader != tried {
		s.do(Action{Kind: HangUp})
	}
	return true
}

// ForgetLeaders forgets who leads, because the fleet is another one, whose epochs start anew.
func (s *State) ForgetLeaders() { s.leaders.known = Leadership{} }

// Known returns the latest news of who leads.
func (s *State) Known() Leadership { return s.leaders.known }

// Try returns the agent to which the caller should open a stream now. "" means none until there is
// news or about wait has passed. Try skips agents for which there is false. The caller calls Opened
// when the agent answers as a leader, and Tried in any case when the stream has ended or could not
// be opened.
func (s *State) Try(now time.Duration, there func(agent names.AgentName) bool) (
	agent names.AgentName,
	wait time.Duration) {
	l := &s.leaders
	if l.pause {
		l.pause, l.round = false, nil
		wait, l.retry = l.retry, min(2*l.retry, lastRetry)
		return "", wait
	}
	if l.round == nil || l.hasChanged() {
		l.round, l.of = l.known.candidatesInOrder(l.lost), l.known
		s.noteNoLink(len(l.round) > 0, now)
	}
	for len(l.round) > 0 {
		agent, l.round = l.round[0], l.round[1:]
		if there(agent) {
			l.tried, l.triedAt = agent, now
			return agent, 0
		}
	}
	l.pause = true
	return s.Try(now, there)
}

// Tried notes that the stream to the agent that Try returned has ended, or could not be opened.
func (s *State) Tried(now time.Duration) {
	l := &s.leaders
	if s.link >= linkOpen {
		l.lost, l.round, l.retry = l.tried, nil, firstRetry
		l.pause = now-l.triedAt <= firstRetry
	}
	l.tried = ""
	s.noteNoLink(true, now)
}

// hasChanged reports whether another agent leads than when the round began.
func (l *leaders) hasChanged() bool {
	return l.known.Leader != l.of.Leader || l.known.Epoch != l.of.Epoch
}

// candidatesInOrder returns the agents that may lead, the likeliest first; the leader that was lost
// last comes last.
func (l *Leadership) candidatesInOrder(lost names.AgentName) []names.AgentName {
	all := []names.AgentName{} // not nil
	if l.Leader != "" && l.Leader != lost {
		all = append(all, l.Leader)
	}
	if l.Successor != "" && l.Successor != l.Leader {
		all = append(all, l.Successor)
	}
	if l.Leader != "" && l.Leader == lost {
		all = append(all, l.Leader)
	}
	return all
}

// Linked returns the agent to which a link is open, "" if there is none; led says that it answers
// in time.
func (s *State) Linked() (agent names.AgentName, led bool) {
	if s.link < linkOpen {
		return "", false
	}
	return s.leaders.tried, s.link == linkOpen
}

// Patience is how long the agent tried still has to answer, or a linked leader to send something.
// At 0 or less the caller ends the stream.
func (s *State) Patience(now time.Duration) time.Duration {
	if s.link < linkOpen {
		return s.leaders.triedAt + firstAnswer - now
	}
	return s.heardAt + lostSilence - now
}

// noteNoLink notes that there is no link to a leader (any more). known says whether there is a
// known leader or successor, which will be tried next.
func (s *State) noteNoLink(known bool, now time.Duration) {
	lost := s.dropLink(now)
	if known {
		s.linkIs(linkOpening, lost)
	} else {
		s.linkIs(linkNone, lost)
	}
}

// Opened notes that the agent tried has answered as a leader. All queries are submitted to it, in
// the order of their arrival.
func (s *State) Opened(now time.Duration) {
	s.dropLink(now)
	s.heardAt, s.submitted, s.acked = now, 0, 0
	s.linkIs(linkOpen, false)
	s.stats.Links++
	s.submitAll(now)
}

// dropLink drops the state of the former link, and reports whether its leader, or one before it, is
// lost.
func (s *State) dropLink(now time.Duration) (lost bool) {
	s.message, s.unacked = Message{}, s.unacked[:0]
	if s.link < linkOpen {
		return s.lost
	}
	for q := s.pending.First(); q != nil; q = q.inPending.Next() {
		q.since = now
		if q.isKnownToLeader() {
			q.atLeader, q.unled = unknown, true
		}
	}
	return true
}

// linkIs sets the link's state, and schedules the queries that depend on it.
func (s *State) linkIs(link linkState, lost bool) {
	if s.link == link && s.lost == lost {
		return
	}
	s.link, s.lost = link, lost
	for q := s.pending.First(); q != nil; q = q.inPending.Next() {
		s.scheduleLeaderless(q)
	}
}

func (s *State) submitAll(now time.Duration) {
	for q := s.pending.First(); q != nil; q = q.inPending.Next() {
		if q.atLeader == unknown {
			s.stats.ResubmitsLeader++
			s.submit(q, now)
		}
	}
}

// HandleLeaderMessage takes a message of the leader, which has read received submits of this link
// so far.
func (s *State) HandleLeaderMessage(received uint64, now time.Duration) {
	if s.link < linkOpen {
		return
	}
	s.heardAt = now
	if n := min(received, s.submitted); n > s.acked {
		took := now - s.unacked[n-s.acked-1]
		s.usual += (took - s.usual) / 8
		s.unacked = append(s.unacked[:0], s.unacked[n-s.acked:]...)
		s.acked = n
	}
	if s.link == linkSilent && len(s.unacked) == 0 {
		s.linkIs(linkOpen, s.lost)
		s.submitAll(now)
	}
}

// maxSilence is how long the leader may take to acknowledge a submit: three times the usual time,
// but at least leastSilence.
func (s *State) maxSilence() time.Duration { return max(minSilence, 3*s.usual) }

// Check reports whether the leader has become silent. From then on queries are decided without it,
// until it has acknowledged all submits.
func (s *State) Check(now time.Duration) (silent bool) {
	if s.link == linkOpen && (len(s.unacked) > 0 && now-s.unacked[0] > s.maxSilence() ||
		now-max(s.heardAt, s.busyAt) > max(heartbeatSilence, s.maxSilence())) {
		s.linkIs(linkSilent, s.lost)
		s.stats.Silences++
		return true
	}
	return false
}

// isLed reports whether there is a leader: it has sent something lately, though it may not have
// answered a query in time.
func (s *State) isLed(now time.Duration) bool {
	return s.link >= linkOpen && now-max(s.heardAt, s.busyAt) <= max(heartbeatSilence, s.maxSilence())
}

// Idle reports whether Check and Inquire need not be called before another query arrives.
func (s *State) Idle() bool { return s.pending.Len() == 0 && len(s.unacked) == 0 }

// LookAgain is how long after a Check to call Check and Inquire again, unless the state is idle.
func (s *State) LookAgain(now time.Duration) time.Duration {
	wait := WatchInterval
	if s.link == linkOpen && len(s.unacked) > 0 {
		wait = min(wait, s.unacked[0]+s.maxSilence()-now)
	}
	return max(wait, 0) + 1 // Check fires only after more than the silence
}
