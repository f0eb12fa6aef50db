package election

import (
	"fmt"

	"github.com/muster-serve/muster/api/names"
)

// A MessageKind says what one node tells another. Beside each stand the fields
// of [Message] it uses.
type MessageKind uint8

const (
	// Heartbeat: Claim, Successor. The sender leads.
	Heartbeat MessageKind = iota
	// Ack: Claim. The sender has heard that heartbeat and follows its leader.
	Ack
	// Propose: Claim. The sender wants to lead and asks who objects.
	Propose
	// Grant: Claim. The sender does not object to that proposal.
	Grant
	// Refuse: Claim, Heard. The sender knows of this claim to lead, which stands
	// against what it was sent.
	Refuse
	// Resign: Claim, Successor. The sender leads under Claim and wants to leave that
	// to Successor; if that is empty, it leads no more.
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
	// Successor is who should lead after the sender; empty if there is nobody.
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

// A Kind says what happened. Beside each stand the fields of [Event] it uses.
type Kind uint8

const (
	// TimePassed says only that time has passed; the caller steps with it when the
	// node asked to be stepped and nothing else happened.
	TimePassed Kind = iota
	// MemberUp: ID, Rank. The agent is a member, or its rank has changed. The rank of
	// the node's own agent holds from its next claim on. Whoever should hear who
	// leads can be a member, with the rank 0.
	MemberUp
	// MemberDown: ID. Gossip has given the agent up, or it has left.
	MemberDown
	// StreamBroken: ID. A stream to or from that agent has broken or could not be
	// opened; not told of one that was ended in order or replaced. This is quicker than
	// gossip; the agent stays a member.
	StreamBroken
	// ProcessEnded: ID. The agent's process has ended, so it seems: its stream broke, and
	// then its host refused a connection.
	ProcessEnded
	// Received: ID, Message. The agent, a member or not, has sent this.
	Received
	// Persisted: Epoch. What [Persist] asked for has been done and will be there
	// after a crash.
	Persisted
	// Resigned: the agent wants to stop and never leads again. If it leads, it hands
	// over; [StepDown] tells that it has.
	Resigned
)

var eventNames = [...]string{TimePassed: "time", MemberUp: "up", MemberDown: "down",
	StreamBroken: "broken", ProcessEnded: "ended", Received: "received",
	Persisted: "persisted", Resigned: "resigned"}

// An Event tells a node what happened. Kind says which fields count.
type Event struct {
	Kind    Kind
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

// An ActionKind says what to do. Beside each stand the fields of [Action] it uses.
type ActionKind uint8

const (
	// Send: To, Message.
	Send ActionKind = iota
	// Persist: Claim. Make Claim.Epoch durable, unless a higher one is that is not
	// [Beyond] it, then step the node with [Persisted]. Without that answer the node does
	// not claim; after [Config.Silence] it tries again. A successor has the epoch of the
	// claim to come made durable ahead.
	Persist
	// Lead: Claim. The agent leads from now on, with an empty matcher. Always
	// followed by Follow with the same claim.
	Lead
	// StepDown: Claim, Reason. The agent no longer leads: it stops the work of its leader.
	// Always followed by Follow or NoLeader.
	StepDown
	// Follow: Claim. This is the leader from now on: gateways re-submit to it what
	// waits and what is sent, workers greet it with what their lanes hold. What a
	// leader knows already may be told it again.
	Follow
	// NoLeader: Reason. The leader followed so far is lost; gateways decide alone.
	NoLeader
	// Look: To. The stream of the leader has broken whose successor the agent is: step the node
	// with [ProcessEnded] should that agent's process have ended.
	Look
)

var actionNames = [...]string{Send: "send", Persist: "persist", Lead: "lead", StepDown: "step down",
	Follow:   "follow",
	NoLeader: "no leader", Look: "look"}

// A Reason says why an agent no longer leads or follows.
type Reason uint8

const (
	_ Reason = iota
	// HigherClaim: another leads under a higher claim.
	HigherClaim
	// Frozen: the node was not stepped for so long that others may lead by now.
	Frozen
	// HandedOver: the leader has resigned.
	HandedOver
	// Silent: the leader was not heard for [Config.Silence].
	Silent
	// Broken: the leader's stream broke and did not come back.
	Broken
	// Ended: its process has.
	Ended
	// Restarted: the leader asks to be elected, so its term is over.
	Restarted
	// Gone: gossip has given the leader up.
	Gone
	// Disowned: the leader's epoch was a lie, or of another fleet; see [Beyond].
	Disowned
)

var reasonNames = [...]string{HigherClaim: "higher claim", Frozen: "frozen",
	HandedOver: "handed over", Silent: "silent",
	Broken: "broken", Ended: "ended", Restarted: "restarted", Gone: "gone",
	Disowned: "epoch is far above others'"}

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
