package client

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tracing"
)

// A Transport is how a [Gateway] reaches the members of the fleet: [Remote], or
// what an agent puts in front of it so as to reach itself without a socket. Its
// methods are called concurrently. Streams end with their context.
type Transport interface {
	// Match opens the gateway's stream to a member that leads.
	Match(ctx context.Context, to *control.Member) (MatchStream, error)
	// Probe opens a stream to ask a member when it would finish queries.
	Probe(ctx context.Context, to *control.Member) (ProbeStream, error)
	// Infer has a member run one attempt of a query. It does not release req.
	// An error with the code Unavailable, NotFound or Canceled, the last if ctx has not
	// ended, is this member's alone: another may serve the query.
	Infer(ctx context.Context, to *control.Member, req *oip.Request,
		attempt *Attempt) (*oip.Response, error)
}

// A MatchStream is the gateway's end of the Match call. Send and Recv may be
// called concurrently with each other, but neither with itself. A message belongs
// to the receiver once it is sent.
type MatchStream interface {
	Send(*control.GatewayMessage) error
	Recv() (*control.MatchMessage, error)
}

// A ProbeStream is the gateway's end of the Probe call; see [MatchStream].
type ProbeStream interface {
	Send(*control.ProbeRequest) error
	Recv() (*control.ProbeAnswer, error)
}

// An Attempt is one try to have a query run.
type Attempt struct {
	control.Attempt
	// Arrival is when the query arrived at its gateway. Waited follows from it when
	// the attempt is sent.
	Arrival time.Time
	// Remaining is set by [Transport.Infer] with an answer, where there is a
	// Reservation and the worker says so: how long until it has a free lane.
	Remaining    time.Duration
	HasRemaining bool
}

// Remote reaches members by gRPC.
type Remote struct {
	// Dial returns the connection to a member, which must have been made with
	// [oip.DialOptions]. It is called for every attempt and must not wait.
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

// Infer implements [Transport]. Outgoing metadata of ctx goes along, and so does the
// context of its span, if it has one.
func (r Remote) Infer(ctx context.Context, to *control.Member, req *oip.Request,
	attempt *Attempt) (*oip.Response, error) {
	conn, err := r.Dial(to)
	if err != nil {
		return nil, err
	}
	ctx = tracing.Inject(ctx)
	attempt.Waited = time.Since(attempt.Arrival)
	ctx = metadata.AppendToOutgoingContext(ctx, control.AttemptHeader, attempt.String())
	var options []grpc.CallOption
	var trailer metadata.MD
	if attempt.Reservation != 0 {
		options = append(options, grpc.Trailer(&trailer))
	}
	resp := new(oip.Response)
	if err := conn.Invoke(ctx, inference.GRPCInferenceService_ModelInfer_FullMethodName, req, resp,
		options...); err != nil {
		resp.Release()
		return nil, err
	}
	if said := trailer.Get(control.RemainingTrailer); len(said) > 0 {
		if ns, err := strconv.ParseInt(said[0], 10, 64); err == nil && ns >= 0 {
			attempt.Remaining, attempt.HasRemaining = time.Duration(ns), true
		}
	}
	return resp, nil
}
