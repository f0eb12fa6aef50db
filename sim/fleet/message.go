package fleet

import (
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/match"
)

// A messageKind says what a message is; its comment lists the fields of [message] that it sets.
type messageKind uint8

const (
	// function: its arrival calls do. All kinds of messages that few queries need are of this kind.
	function messageKind = iota
	// submitted: term, gateway, event. A gateway submits a query to the leader.
	submitted
	// decided: term, gateway, read, action, decision, agent. The leader decides about a query.
	decided
	// acknowledged: term, gateway, read. The leader has read so many submits.
	acknowledged
	// attempted: call. An attempt comes to its lane.
	attempted
	// ended: call, ending, remaining. An attempt's end comes to its gateway.
	attemptEnded
	// completed: term, event. An attempt's end comes to the leader.
	completed
	// runEnded: agent, run. A lane's run is over; it comes from the lane itself.
	runEnded
)

// A message is on its way from one host to another. The messages of each query have kinds of their
// own, and not functions, so that their memory is used again.
type message struct {
	kind     messageKind
	from, to *endpoint
	way      time.Duration // how long it takes
	do       func()
	refused  func() // called at from if to's process has ended; nil: nothing is

	term     *term
	gateway  *gateway
	agent    *agent
	call     *call
	event    leader.Event
	read     uint64
	action   leader.ActionKind
	decision match.Decision
	model    string // of the action
	name     names.AgentName

	how       attemptExit
	remaining time.Duration
	run       int
}

// newMessage returns a message, which sendMessage sends.
func (f *Fleet) newMessage(kind messageKind) *message {
	if n := len(f.spare); n > 0 {
		m := f.spare[n-1]
		f.spare = f.spare[:n-1]
		m.kind = kind
		return m
	}
	return &message{kind: kind}
}

// handle handles a message at its host.
func (f *Fleet) handle(m *message) {
	switch m.kind {
	case function:
		m.do()
	case submitted:
		m.term.hearSubmit(m.gateway, &m.event)
	case decided:
		m.gateway.handleDecision(m)
	case acknowledged:
		m.gateway.handleMessage(m.term, m.read)
	case attempted:
		m.call.to.takeAttempt(m.call)
	case attemptEnded:
		m.call.handleEnd(m.how, m.remaining)
	case completed:
		if !m.term.over {
			m.term.step(&m.event)
		}
	case runEnded:
		m.agent.runEnded(m.run)
	}
}

// tellsOfEnd reports whether the sender of a message learns that to's process has ended.
func (m *message) tellsOfEnd() bool { return m.kind == attempted || m.refused != nil }

// wasRefused tells the sender so.
func (m *message) wasRefused() {
	if m.kind == attempted {
		m.call.handleEnd(unheard, -1)
		return
	}
	m.refused()
}
