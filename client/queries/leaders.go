package queries

import (
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/election"
)

const (
	// leastSilence is how long a leader may at least take to acknowledge a submit.
	leastSilence = 10 * time.Millisecond
	// heartbeatSilence is how long a leader may say nothing: three heartbeats.
	heartbeatSilence = 150 * time.Millisecond
	// lostSilence is how long a leader may say nothing before another is looked for: as long as it
	// takes the agents to elect one.
	lostSilence = time.Second
	// firstAnswer is how long one who may lead has to say so.
	firstAnswer = 250 * time.Millisecond
	// firstRetry and lastRetry bound how long the gateway waits before it tries again
	// to reach a leader.
	firstRetry = 5 * time.Millisecond
	lastRetry  = 25 * time.Millisecond
	// WatchInterval is how often at least a gateway with queries looks after its leader.
	WatchInterval = 5 * time.Millisecond
)

// A linkState says what there is of a leader.
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

// A Leadership says who leads as far as somebody knows, and who is to lead next; "": nobody.
type Leadership struct {
	Epoch             uint64 // 0: nobody has led yet
	Leader, Successor names.AgentName
}

// leaders is who may lead, and how far the search for one is. It goes in rounds: the leader as far
// as known, and its successor; then a pause.
type leaders struct {
	known   Leadership        // the latest heard of
	lost    names.AgentName   // the leader that was lost last
	round   []names.AgentName // those of this round who are not tried yet; nil: there is no round
	of      Leadership        // known when the round began
	tried   names.AgentName   // whose stream is open, or being opened; "": none is
	triedAt time.Duration
	pause   bool // before the next round
	retry   time.Duration
}

// Learn takes news of who leads, and reports whether it is any: then Try is worth while.
func (s *State) Learn(l Leadership) (news bool) {
	known := s.leaders.known
	switch {
	case l.Epoch == known.Epoch && l.Leader == "" && known.Leader != "":
		return false
	case election.Beyond(l.Epoch, known.Epoch) && s.link >= linkOpen: // a lie; see package election
		return false
	case l.Epoch < known.Epoch && !(l.Epoch > 0 && election.Beyond(known.Epoch, l.Epoch)):
		return false
	}
	s.leaders.known = l
	if l.Leader == known.Leader && l.Epoch == known.Epoch {
		return false
	}
	// Whoever is to lead next is tried before it is known to.
	if tried := s.leaders.tried; tried != "" && l.Epoch != s.leaders.of.Epoch && l.Leader != tried {
		s.do(Action{Kind: HangUp})
	}
	return true
}

// ForgetLeaders takes it that the fleet is another, whose epochs count from the beginning.
func (s *State) ForgetLeaders() { s.leaders.known = Leadership{} }

// Known is who leads, as far as known.
func (s *State) Known() Leadership { return s.leaders.known }

// Try says to whom to open a stream now; "": to nobody, until there is news or about wait has
// passed. It passes over who is not there. The caller then calls Opened once that member answers as
// a leader, and Tried in any case when the stream has ended, or could not be opened.
func (s *State) Try(now time.Duration, there func(agent names.AgentName) bool) (
	agent names.AgentName,
	wait time.Duration) {
	l := &s.leaders
	if l.pause {
		l.pause, l.round = false, nil
		wait, l.retry = l.retry, min(2*l.retry, lastRetry)
		return "", wait
	}
	if l.round == nil || l.changed() {
		l.round, l.of = l.known.candidates(l.lost), l.known
		s.closed(len(l.round) > 0, now)
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

// Tried takes it that the stream to the one tried has ended, or could not be opened.
func (s *State) Tried(now time.Duration) {
	l := &s.leaders
	if s.link >= linkOpen {
		l.lost, l.round, l.retry = l.tried, nil, firstRetry
		l.pause = now-l.triedAt <= firstRetry
	}
	l.tried = ""
	s.closed(true, now)
}

// changed reports whether somebody else leads than when the round began.
func (l *leaders) changed() bool {
	return l.known.Leader != l.of.Leader || l.known.Epoch != l.of.Epoch
}

// candidates are those who may lead, the likeliest first: the leader that was lost last comes last.
func (l *Leadership) candidates(lost names.AgentName) []names.AgentName {
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

// Linked is the member that is linked as the leader, "" if none is; led says that it answers.
func (s *State) Linked() (agent names.AgentName, led bool) {
	if s.link < linkOpen {
		return "", false
	}
	return s.leaders.tried, s.link == linkOpen
}

// Patience is how long the one tried may take yet to answer, or a leader to say something; of 0 or
// less the caller ends the stream.
func (s *State) Patience(now time.Duration) time.Duration {
	if s.link < linkOpen {
		return s.leaders.triedAt + firstAnswer - now
	}
	return s.heardAt + lostSilence - now
}

// closed takes it that there is no link to a leader (any more); known tells whether somebody leads
// or is to lead, who will be tried next.
func (s *State) closed(known bool, now time.Duration) {
	lost := s.forget(now)
	if known {
		s.linkIs(linkOpening, lost)
	} else {
		s.linkIs(linkNone, lost)
	}
}

// Opened takes it that the one tried has answered as a leader. Everything goes there, in
// the order it arrived.
func (s *State) Opened(now time.Duration) {
	s.forget(now)
	s.heardAt, s.submitted, s.acked = now, 0, 0
	s.linkIs(linkOpen, false)
	s.stats.Links++
	s.submitAll(now)
}

// forget drops what belongs to the link that was, and reports whether its leader, or one before it,
// is lost.
func (s *State) forget(now time.Duration) (lost bool) {
	s.message, s.unacked = Message{}, s.unacked[:0]
	if s.link < linkOpen {
		return s.lost
	}
	for q := s.first; q != nil; q = q.next {
		q.since = now
		if q.submitted() {
			q.atLeader = unknown
		}
	}
	return true
}

// linkIs notes what the link is now, on which it depends which queries are decided without a
// leader.
func (s *State) linkIs(link linkState, lost bool) {
	if s.link == link && s.lost == lost {
		return
	}
	s.link, s.lost = link, lost
	for q := s.first; q != nil; q = q.next {
		s.schedule(q)
	}
}

func (s *State) submitAll(now time.Duration) {
	for q := s.first; q != nil; q = q.next {
		if q.atLeader == unknown {
			s.stats.ResubmitsLeader++
			s.submit(q, now)
		}
	}
}

// Heard takes a sign of life of the leader, who has read the given number of submits.
func (s *State) Heard(received uint64, now time.Duration) {
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

// silence is how long the leader may take to acknowledge a submit.
func (s *State) silence() time.Duration { return max(leastSilence, 3*s.usual) }

// Check finds out whether the leader is silent, and reports whether it has become so. Queries are
// decided without it then, until it has acknowledged all submits.
func (s *State) Check(now time.Duration) (silent bool) {
	if s.link == linkOpen && (len(s.unacked) > 0 && now-s.unacked[0] > s.silence() ||
		now-s.heardAt > max(heartbeatSilence, s.silence())) {
		s.linkIs(linkSilent, s.lost)
		s.stats.Silences++
		return true
	}
	return false
}

// Idle reports whether Check and Inquire need not be called before another query arrives.
func (s *State) Idle() bool { return s.first == nil && len(s.unacked) == 0 }

// LookAgain is how long after Check it is to be called again, and Inquire, unless
// the state is idle.
func (s *State) LookAgain(now time.Duration) time.Duration {
	wait := WatchInterval
	if s.link == linkOpen && len(s.unacked) > 0 {
		wait = min(wait, s.unacked[0]+s.silence()-now)
	}
	return max(wait, 0) + 1 // Check wants more than the silence
}
