package lead

import (
	"context"

	"google.golang.org/grpc"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/secure"
)

// A Stream is one end of a two-way stream of messages, over gRPC or in process ([NewPipe]). One
// goroutine may call Send while another calls Recv; two goroutines may not call the same method at
// once. Send and Recv block until the message is handed over or the stream ends. The receiver owns
// a message once it is sent: the sender must not touch it again.
type Stream[Out, In any] interface {
	Send(*Out) error
	// Recv returns io.EOF when the other end has ended the stream in order.
	Recv() (*In, error)
	// Context ends with the stream.
	Context() context.Context
}

// A ClientStream is the end that the opener of the stream holds.
type ClientStream[Out, In any] interface {
	Stream[Out, In]
	// CloseSend ends the stream in order: the other end receives io.EOF after what was sent.
	CloseSend() error
}

// A Fleet gives package lead its view of the other agents and its connections to them. Its methods
// may be called concurrently, and only Gone and Link block.
type Fleet interface {
	// Self is the name of this agent.
	Self() names.AgentName
	// View returns the fleet as this agent knows it, this agent included. The caller must not
	// change it.
	View() *control.View
	// Changed returns a channel that is closed at the next change of the view's
	// members.
	Changed() <-chan struct{}
	// Proposal returns the last plan that a leader has sent to this agent; nil: none. The caller
	// must not change it.
	Proposal() *control.Proposal
	// Placement returns what the last leader has told this agent of the placement; nil: nothing. The
	// caller must not change it.
	Placement() *control.Placement
	// Dial returns the connection to a member, or an error if the name is no member's. The
	// connection is shared: the caller must not close it.
	Dial(name names.AgentName) (grpc.ClientConnInterface, error)
	// Gone reports whether a member's process has ended, which it takes from a refused connection
	// to the member's address. It blocks until the connection attempt ends, at most about a second.
	Gone(ctx context.Context, name names.AgentName) bool
	// Link serves the member's end of a Link stream. It is called for the link of a leader to its
	// own agent, which runs in process, and blocks until the stream ends.
	Link(leader Stream[control.WorkerMessage, control.LeaderMessage]) error
}

// Clients identify the caller of a gRPC call by the call's context, and enforce its limits. The
// methods may be called concurrently and do not block.
type Clients interface {
	// Client returns the caller's name; "" if the caller has no name or is an agent of this fleet.
	Client(context.Context) string
	// Identity identifies the caller among all: clients and agents of this fleet by their names, and
	// this agent itself; "" if the caller has no name.
	Identity(context.Context) string
	// MayQuery returns nil if the caller may query the model, else an error with the reason.
	MayQuery(ctx context.Context, model string) error
	// Query counts a query of the caller, with the number of its bytes that are known so far. It
	// returns an error if the query exceeds the caller's limits.
	Query(ctx context.Context, w secure.Way, bytes int64) error
	// Bytes counts further bytes of a query that Query has accepted. It can return an error only if
	// first is set, which says that these are the first bytes counted.
	Bytes(ctx context.Context, w secure.Way, bytes int64, first bool) error
}
