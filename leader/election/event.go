package election

import (
	"fmt"

	"github.com/muster-serve/muster/api/names"
)

// A MessageKind says what one node tells another. The comment of each kind lists the fields of
// [Message] that it uses.
type MessageKind uint8

const (
	// Heartbeat: Claim, Successor. The sender leads.
	Heartbeat MessageKind = iota
	// Ack: Claim. The sender has heard the heartbeat of Claim and follows its leader.
	Ack
	// Propose: Claim. The sender wants to lead and asks who objects.
	Propose
	// Grant: Claim. The sender does not object to the proposal of Claim.
	Grant
	// Refuse: Claim, Heard. The sender knows of Claim, which is against the claim that it was sent.
	Refuse
	// Resign: Claim, Successor. The sender leads under Claim and wants Successor to lead instead.
	// If Successor is empty, the sender no longer leads.
	Resign
)

var messageNames = [...]string{
	Heartbeat: "heartbeat", Ack: "ack", Propose: "propose", Grant: "grant", Refuse: "refuse",
	Resign: "resign",
}

func (k MessageKind) String() string {
	if int(k) < len(messageNames) {
		return messageNames[k]
	}
	return fmt.Sprintf("MessageKind(%d)", uint8(k))
}

// A Message is what one node tells another. Messages may be lost, late, repeated
// and out of order.
type Message struct {
	Kind  MessageKind
	Claim Claim
	// Successor is the agent that should lead after the sender; "" if there is none.
	Successor names.AgentName
	// Heard says that the sender hears the leader of Claim at present.
	Heard bool
}

func (m Message) String() string {
	s := m.Kind.String() + " " + m.Claim.String()
	if m.Successor != "" {
		s += " successor " + string(m.Successor)
	}
	if m.Heard {
		s += " heard"
	}
	return s
}

// An EventKind says what happened. The comment of each kind lists the fields of [Event] that
// it uses.
type EventKind uint8

const (
	// TimePassed says only that time has passed; the caller steps with it when the
	// node asked to be stepped and nothing else happened.
	TimePassed EventKind = iota
	// MemberUp: ID, Rank. The agent is a member, or its rank has changed. The rank of the node's
	// own agent holds from its next claim on. Whoever should be told who leads can be made a member
	// of rank 0.
	MemberUp
	// MemberDown: ID. Gossip has given the agent up, or it has left.
	MemberDown
	// StreamBroken: ID. A stream to or from the agent has broken or could not be opened. A stream
	// that was closed on purpose or replaced does not count. The news is quicker than gossip; the
	// agent stays a member.
	StreamBroken
	// ProcessEnded: ID. The agent's process seems to have ended: its stream broke, and then its
	// host refused a connection.
	ProcessEnded
	// Received: ID, Message. The agent, which need not be a member, has sent Message.
	Received
	// Persisted: Epoch. The epoch that [Persist] gave is on disk and survives a crash.
	Persisted
	// Resigned: the agent wants to stop and never leads again. If it leads, it hands over;
	// [StepDown] follows when it has.
	Resigned
)

var eventNames = [...]string{TimePassed: "time", MemberUp: "up", MemberDown: "down",
	StreamBroken: "broken", ProcessEnded: "ended", Received: "received",
	Persisted: "persisted", Resigned: "resigned"}

// An Event tells a node what happened. Kind says which fields count.
type Event struct {
	Kind    EventKind
	ID      names.AgentName
	Rank    Rank
	Epoch   uint64
	Message Message
}

func (e Event) String() string {
	name := fmt.Sprintf("Kind(%d)", uint8(e.Kind))
	if int(e.Kind) < len(eventNames) {
		name = eventNames[e.Kind]
	}
	switch e.Kind {
	case MemberUp:
		return fmt.Sprintf("%s %s rank %#x", name, e.ID, uint32(e.Rank))
	case MemberDown, StreamBroken, ProcessEnded:
		return name + " " + string(e.ID)
	case Received:
		return fmt.Sprintf("%s %s: %v", name, e.ID, e.Message)
	case Persisted:
		return fmt.Sprintf("%s %d", name, e.Epoch)
	}
	return name
}

// An ActionKind says what to do. The comment of each kind lists the fields of [Action] that it
// sets.
type ActionKind uint8

const (
	// Send: To, Message.
	Send ActionKind = iota
	// Persist: Claim. Write Claim.Epoch to disk, unless a higher epoch that is not [Beyond] it is
	// there already; then step the node with [Persisted]. Until then the node does not claim; after
	// [Config.Silence] it asks again. A successor asks for the epoch of its coming claim ahead of
	// time.
	Persist
	// Lead: Claim. The agent leads from now on, with an empty matcher. A Follow with the same claim
	// always comes next.
	Lead
	// StepDown: Claim, Reason. The agent no longer leads and stops its work as leader. A Follow or
	// NoLeader always comes next.
	StepDown
	// Follow: Claim. Claim.Leader leads from now on: gateways submit to it again the queries that
	// wait and those that are sent, and workers greet it with what their lanes hold. A leader may
	// be told again what it knows.
	Follow
	// NoLeader: Reason. The leader followed so far is lost; gateways decide without one.
	NoLeader
	// Look: To. The stream of the leader To has broken, and this agent is its successor. Step the
	// node with [ProcessEnded] if that leader's process has ended.
	Look
)

var actionNames = [...]string{Send: "send", Persist: "persist", Lead: "lead", StepDown: "step down",
	Follow:   "follow",
	NoLeader: "no leader", Look: "look"}

// A Reason says why an agent no longer leads or follows.
type Reason uint8

const (
	_ Reason = iota
	// HigherClaim: another agent leads under a higher claim.
	HigherClaim
	// Frozen: the node was not stepped for so long that others may lead by now.
	Frozen
	// HandedOver: the leader has resigned.
	HandedOver
	// Silent: the leader was not heard for [Config.Silence].
	Silent
	// Broken: the leader's stream broke and did not come back.
	Broken
	// Ended: the leader's process has ended.
	Ended
	// Restarted: the leader asks to be elected, so its term is over.
	Restarted
	// Gone: gossip has declared the leader dead.
	Gone
	// Disowned: the leader's epoch was a lie, or of another fleet; see [Beyond].
	Disowned
	// HearsNobody: the leader has heard no other agent for [Config.Silence].
	HearsNobody
)

var reasonNames = [...]string{HigherClaim: "higher claim", Frozen: "frozen",
	HandedOver: "handed over", Silent: "silent",
	Broken: "broken", Ended: "ended", Restarted: "restarted", Gone: "gone",
	Disowned: "epoch is far above others'", HearsNobody: "hears nobody"}

func (r Reason) String() string {
	if int(r) < len(reasonNames) && reasonNames[r] != "" {
		return reasonNames[r]
	}
	return fmt.Sprintf("Reason(%d)", uint8(r))
}

// An Action is what a node asks its caller to do.
type Action struct {
	Kind    ActionKind
	To      names.AgentName
	Claim   Claim
	Reason  Reason
	Message Message
}

func (a Action) String() string {
	name := fmt.Sprintf("ActionKind(%d)", uint8(a.Kind))
	if int(a.Kind) < len(actionNames) {
		name = actionNames[a.Kind]
	}
	switch a.Kind {
	case Send:
		return fmt.Sprintf("%s %s: %v", name, a.To, a.Message)
	case Persist:
		return fmt.Sprintf("%s %d", name, a.Claim.Epoch)
	case NoLeader:
		return fmt.Sprintf("%s (%v)", name, a.Reason)
	case StepDown:
		return fmt.Sprintf("%s %v (%v)", name, a.Claim, a.Reason)
	case Look:
		return name + " at " + string(a.To)
	}
	return name + " " + a.Claim.String()
}
