package client

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/lateness"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tracing"
)

// A Transport connects a [Gateway] to the members of the fleet. [Remote] does so by gRPC; an agent
// puts its own Transport in front of it to reach itself without a socket. The methods are called
// concurrently. A stream ends when its context does.
type Transport interface {
	// Match opens the gateway's stream to a leader. It may block until ctx ends.
	Match(ctx context.Context, to *control.Member) (MatchStream, error)
	// Probe opens a stream to ask a member when it would finish queries.
	Probe(ctx context.Context, to *control.Member) (ProbeStream, error)
	// Infer makes a member run one attempt of a query, and blocks until that ends. It does not
	// release req. After an error with the code Unavailable or NotFound, or Canceled while ctx has
	// not ended, another member may serve the query.
	Infer(ctx context.Context, to *control.Member, req *oip.Request,
		attempt *Attempt) (*oip.Response, error)
}

// A MatchStream is the gateway's end of the Match call. Send and Recv may be called concurrently
// with each other, but neither with itself. Once sent, a message belongs to the receiver, and the
// sender must not use it.
type MatchStream interface {
	Send(*control.GatewayMessage) error
	Recv() (*control.MatchMessage, error)
}

// A ProbeStream is the gateway's end of the Probe call; see [MatchStream].
type ProbeStream interface {
	Send(*control.ProbeRequest) error
	Recv() (*control.ProbeAnswer, error)
}

// An Attempt is one attempt to run a query.
type Attempt struct {
	control.Attempt
	// Arrival is when the query arrived at its gateway. Remote computes Waited from it when it
	// sends the attempt.
	Arrival time.Time
	// Remaining is how long until the worker has a free lane. [Transport.Infer] sets it and
	// HasRemaining with an answer, if the attempt has a Reservation and the worker says how long.
	Remaining    time.Duration
	HasRemaining bool
	// Spent is where the query's time at the worker went. [Transport.Infer] sets it and HasSpent if
	// the worker says so: it does if the query has taken long.
	Spent    [lateness.Components]time.Duration
	HasSpent bool
	// Lanes is where the time of the last runs on the worker's lanes went. [Transport.Infer] sets it
	// if the worker says so, as with Spent; else it is that of the query's own run.
	Lanes [lateness.Components]time.Duration
	// Unsent says that the worker knows nothing of the attempt, so that nobody tells the leader that
	// its lane is free. [Transport.Infer] sets it with an error.
	Unsent bool
}

// Remote is the [Transport] that reaches members by gRPC.
type Remote struct {
	// Dial returns the connection to a member, which must have been made with [oip.DialOptions]. It
	// is called concurrently, for every stream and attempt, and must not block.
	Dial func(to *control.Member) (grpc.ClientConnInterface, error)
}

// Match implements [Transport].
func (r Remote) Match(ctx context.Context, to *control.Member) (MatchStream, error) {
	conn, err := r.Dial(to)
	if err != nil {
		return nil, err
	}
	return control.NewControlClient(conn).Match(ctx)
}

// Probe implements [Transport].
func (r Remote) Probe(ctx context.Context, to *control.Member) (ProbeStream, error) {
	conn, err := r.Dial(to)
	if err != nil {
		return nil, err
	}
	return control.NewControlClient(conn).Probe(ctx)
}

// Infer implements [Transport]. It also sends the outgoing metadata of ctx and the context of its
// span, if it has one.
func (r Remote) Infer(ctx context.Context, to *control.Member, req *oip.Request,
	attempt *Attempt) (*oip.Response, error) {
	conn, err := r.Dial(to)
	if err != nil {
		return nil, err
	}
	ctx = tracing.Inject(ctx)
	attempt.Waited = time.Since(attempt.Arrival)
	ctx = metadata.AppendToOutgoingContext(ctx, control.AttemptHeader, attempt.String())
	if part := attempt.PartString(); part != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, control.PartHeader, part)
	}
	if attempt.Merge != 0 {
		ctx = metadata.AppendToOutgoingContext(ctx, control.MergeHeader, attempt.MergeString())
	}
	if req.OnlyJSON() {
		ctx = metadata.AppendToOutgoingContext(ctx, control.JSONHeader, "1")
	}
	var trailer metadata.MD
	resp := new(oip.Response)
	err = conn.Invoke(ctx, inference.GRPCInferenceService_ModelInfer_FullMethodName, req, resp,
		grpc.Trailer(&trailer))
	attempt.Spent, attempt.HasSpent = control.SpentOf(trailer)
	ok := false
	if attempt.Lanes, ok = control.LanesOf(trailer); !ok {
		attempt.Lanes = attempt.Spent
	}
	if err != nil {
		resp.Release()
		return nil, err
	}
	if attempt.Reservation != 0 {
		attempt.Remaining, attempt.HasRemaining = control.RemainingOf(trailer)
	}
	return resp, nil
}
