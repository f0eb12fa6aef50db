package lead

import (
	"context"

	"google.golang.org/grpc"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/secure"
)

// A Stream is one end of a two-way stream of messages, over gRPC or in process
// ([NewPipe]). Send and Recv may be called concurrently with each other, but
// neither with itself. A message belongs to the receiver once it is sent.
type Stream[Out, In any] interface {
	Send(*Out) error
	// Recv returns io.EOF when the other end has ended the stream in order.
	Recv() (*In, error)
	// Context ends with the stream.
	Context() context.Context
}

// A ClientStream is the end of the one who has opened it.
type ClientStream[Out, In any] interface {
	Stream[Out, In]
	// CloseSend ends the stream in order: the other end receives io.EOF after what was sent.
	CloseSend() error
}

// A Fleet is what the leading room knows of the others. Its methods may be called concurrently.
type Fleet interface {
	// Self is the name of this agent.
	Self() names.AgentName
	// View is the fleet as this agent knows it, this agent included. It must not
	// be changed.
	View() *control.View
	// Changed returns a channel that is closed at the next change of the view's
	// members.
	Changed() <-chan struct{}
	// Proposal is the last plan that a leader has told this agent; nil: none.
	Proposal() *control.Proposal
	// Dial returns the connection to a member, which is shared and not to be closed.
	Dial(name names.AgentName) (grpc.ClientConnInterface, error)
	// Gone reports whether a member's process has ended: its address refuses a connection.
	Gone(ctx context.Context, name names.AgentName) bool
	// Link serves a Link, as the member's side of it. This agent's own is opened in process.
	Link(leader Stream[control.WorkerMessage, control.LeaderMessage]) error
}

// Clients know who makes a call, by its context.
type Clients interface {
	// Client is the caller's name; "" if it has none, or is an agent of this fleet.
	Client(context.Context) string
	// MayQuery says why the caller may not query a model; nil if it may.
	MayQuery(ctx context.Context, model string) error
	// Query counts a query of the caller, of as many bytes as are known yet, or refuses it for the
	// caller's limits.
	Query(ctx context.Context, w secure.Way, bytes int64) error
	// Bytes counts bytes of a query that Query has let in. Only the first can be refused.
	Bytes(ctx context.Context, w secure.Way, bytes int64, first bool) error
}
