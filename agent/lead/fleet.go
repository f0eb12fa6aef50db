package lead

import (
	"context"

	"google.golang.org/grpc"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/lateness"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/secure"
)

// A ClientStream is the end that the opener of the stream holds.
type ClientStream[Out, In any] interface {
	control.Stream[Out, In]
	// CloseSend ends the stream in order: the other end receives io.EOF after what was sent.
	CloseSend() error
}

// A AgentDirectory gives package lead its view of the other agents and its connections to them. Its
// methods may be called concurrently, and only Gone blocks.
type AgentDirectory interface {
	// Self is the name of this agent.
	Self() names.AgentName
	// View returns the fleet as this agent knows it, this agent included. The caller must not
	// change it.
	View() *control.View
	// Changed returns a channel that is closed at the next change of the view's
	// members.
	Changed() <-chan struct{}
	// Plan returns the last plan that a leader has sent to this agent, and Proposal the last change
	// of demand; nil: none. The caller must not change them.
	Plan() *control.Plan
	Proposal() *control.Proposal
	// Placement returns what the last leader has told this agent of the placement; nil: nothing.
	// The caller must not change it.
	Placement() *control.Placement
	// Dial returns the connection to a member, or an error if the name is no member's. The
	// connection is shared: the caller must not close it.
	Dial(name names.AgentName) (grpc.ClientConnInterface, error)
	// Gone reports whether a member's process has ended, which it takes from a refused connection
	// to the member's address. It blocks until the connection attempt ends, at most about a second.
	Gone(ctx context.Context, name names.AgentName) bool
}

// A Worker is this agent's own.
type Worker interface {
	// Link serves the member's end of a Link stream. It is called for the link of a leader to its
	// own agent, which runs in process, and blocks until the stream ends.
	Link(leader control.Stream[control.WorkerMessage, control.LeaderMessage],
		elections control.Elections) error
}

// QueryCounter count queries of clients, as package serve does. The methods may be called
// concurrently and do not block.
type QueryCounter interface {
	// Arrived counts a query for a version of a model; "" and 0 where it reached none.
	Arrived(model string, version int64)
	// CountFailed counts n queries that have failed for a reason of outcome.Reasons.
	CountFailed(model string, version int64, reason string, n uint64)
	// CountMissed counts n queries that were late, refused or failed for a cause.
	CountMissed(model string, cause lateness.Cause, n uint64)
}

// Clients identify the caller of a gRPC call by the call's context, and enforce its limits. The
// methods may be called concurrently and do not block.
type Clients interface {
	// Client returns the caller's name; "" if the caller has no name or is an agent of this fleet.
	Client(context.Context) string
	// Identity identifies the caller among all: clients and agents of this fleet by their names,
	// and this agent itself; "" if the caller has no name.
	Identity(context.Context) string
	// MayQuery returns nil if the caller may query the model, else an error with the reason.
	MayQuery(ctx context.Context, model string) error
	// LoadShare is the share of the agents that may hold models only because the caller asks for
	// them; 0: it has no right to have models loaded.
	LoadShare(ctx context.Context) float64
	// Query counts a query of the caller, with the number of its bytes that are known so far. It
	// returns an error if the query exceeds the caller's limits.
	Query(ctx context.Context, w secure.Way, bytes int64) error
	// Bytes counts further bytes of a query that Query has accepted. It can return an error only if
	// first is set, which says that these are the first bytes counted.
	Bytes(ctx context.Context, w secure.Way, bytes int64, first bool) error
}
