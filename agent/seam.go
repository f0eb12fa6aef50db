package agent

import (
	"context"

	"google.golang.org/grpc"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/agent/worker"
	"github.com/muster-serve/muster/api/control"
)

// An agent in a fleet has two halves that know each other by these interfaces
// only: one that takes part in elections and leads when elected, and one that
// serves queries and knows the fleet.

// A stream is one end of a two-way stream of messages, over gRPC or in process
// (a pipe). Send and Recv may be called concurrently with each other, but
// neither with itself. A message belongs to the receiver once it is sent.
type stream[Out, In any] interface {
	Send(*Out) error
	// Recv returns io.EOF when the other end has ended the stream in order.
	Recv() (*In, error)
	// Context ends with the stream.
	Context() context.Context
}

// A clientStream is the end of the one who has opened it.
type clientStream[Out, In any] interface {
	stream[Out, In]
	// CloseSend ends the stream in order: the other end receives io.EOF after what was sent.
	CloseSend() error
}

// leading is the half that takes part in elections and leads when elected. Its
// methods may be called concurrently, and before run.
type leading interface {
	// run takes part, and leads whenever this agent is the leader, until ctx ends.
	run(ctx context.Context) error
	// leadership says whom this agent follows; itself perhaps. It is never nil
	// and must not be changed.
	leadership() *control.Leadership
	// changed returns a channel that is closed at the next change of leadership.
	changed() <-chan struct{}
	// match serves the Match stream of a gateway, this agent's own among them. It
	// ends at once with FAILED_PRECONDITION and the leadership as it is known if this
	// agent does not lead, and so it does when the leadership is lost.
	match(gateway stream[control.MatchMessage, control.GatewayMessage]) error
	// linked tells that the agent named has opened a Link to this one: what the
	// election has to say to that agent goes by send, which must not block, until
	// closed is called, which tells whether the agent has ended the Link in order, or it broke.
	// Only the first call counts.
	linked(from string, send func(*control.Election)) (closed func(inOrder bool))
	// elect takes an election message that came by such a Link.
	elect(*control.Election)
	// status fills in what only the leader knows.
	status(*control.FleetStatus)
	// demand fills in what only the leader knows, and reports whether this agent is it.
	demand(*control.FleetDemand) bool
	// resign hands the leadership over if this agent has it, or as soon as ctx ends just gives it up;
	// it does not take it again. It returns when this agent does not lead.
	resign(ctx context.Context)
}

// fleet is the half that serves and knows the fleet. Its methods may be called
// concurrently.
type fleet interface {
	// self is the name of this agent.
	self() string
	// view is the fleet as this agent knows it, this agent included. It must not
	// be changed.
	view() *control.View
	// changed returns a channel that is closed at the next change of the view's
	// members.
	changed() <-chan struct{}
	// dial returns the connection to a member, which is shared and not to be closed.
	dial(name string) (grpc.ClientConnInterface, error)
	// gone reports whether a member's process has ended: its address refuses a connection.
	gone(ctx context.Context, name string) bool
	// link serves a Link, as the member's side of it. The leader half opens this agent's own in process.
	link(leader stream[control.WorkerMessage, control.LeaderMessage]) error
}

// An agentFleet is the half that serves, as the one that leads knows it.
type agentFleet struct {
	members *members.Members
	worker  *worker.Worker
}

func (f agentFleet) self() string             { return f.members.Self() }
func (f agentFleet) view() *control.View      { return f.members.View() }
func (f agentFleet) changed() <-chan struct{} { return f.members.Changed() }

func (f agentFleet) dial(name string) (grpc.ClientConnInterface, error) { return f.members.Dial(name) }

func (f agentFleet) gone(ctx context.Context, name string) bool { return f.members.Gone(ctx, name) }

func (f agentFleet) link(leader stream[control.WorkerMessage, control.LeaderMessage]) error {
	return f.worker.Link(leader)
}

// following is the half that leads, as the one that serves knows it; it follows nobody as long as
// there is none.
type following struct{ agent *Agent }

// Leadership implements [members.Leading].
func (f following) Leadership() *control.Leadership {
	if f.agent.leading == nil {
		return &control.Leadership{}
	}
	return f.agent.leading.leadership()
}

// Changed implements [members.Leading].
func (f following) Changed() <-chan struct{} { return f.agent.leading.changed() }

// Linked implements [worker.Leading].
func (f following) Linked(from string, send func(*control.Election)) (closed func(inOrder bool)) {
	return f.agent.leading.linked(from, send)
}

// Match implements [serve.Leading].
func (f following) Match(gateway control.Control_MatchServer) error {
	return f.agent.leading.match(gateway)
}

// Status implements [serve.Leading].
func (f following) Status(s *control.FleetStatus) { f.agent.leading.status(s) }

// Demand implements [serve.Leading].
func (f following) Demand(d *control.FleetDemand) bool { return f.agent.leading.demand(d) }

// Elect implements [worker.Leading].
func (f following) Elect(m *control.Election) { f.agent.leading.elect(m) }

// eventKey is the attribute that makes a line of the log an event, as serve.Events has it.
const eventKey = "event"

// What the half that leads uses of the members' room, by the names that it has for it.

// A broadcast is a [members.Broadcast].
type broadcast struct{ members.Broadcast }

func (b *broadcast) next() <-chan struct{} { return b.Next() }
func (b *broadcast) tell()                 { b.Tell() }

var (
	checkDescription = members.CheckDescription
	keyOf            = members.KeyOf
	visibleProfiles  = members.VisibleProfiles
)

// Members keep what the leader has told longer than it does, which tells it anew to lanes that are
// back later than that.
const _ = uint(members.KeepTold - keepGone - lookGone)
