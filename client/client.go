package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/direct"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/queryconn"
	"github.com/muster-serve/muster/api/tracing"
	"github.com/muster-serve/muster/client/stream"
)

// maxAttempts is the number of servers on which a call is tried at most. Chosen: one that has just
// gone and one that drains are passed over, and a call that would fail everywhere fails soon.
const maxAttempts = 3

// A Client sends queries to one or more servers. It spreads them over the servers to which it has a
// connection. If a server cannot be reached or the connection breaks, it tries another one, at most
// twice. So a query may run twice, which is harmless because inference is idempotent. The Client
// does not retry after any other failure: an overloaded server must be left alone for a while (see
// [Error.RetryAfter]).
//
// If a server is an agent of a fleet, the Client finds the other agents and sends queries straight
// to workers (see [Gateway]): it asks the leader which agent is to serve a query, sends the query
// there, and to another agent if that one fails. It does so while it has a connection to an agent
// that it found. Otherwise its servers pass its queries on.
//
// Its methods may be called concurrently.
type Client struct {
	servers []server
	next    atomic.Uint64 // counts calls, to take servers in turn
	timeout time.Duration
	dial    []grpc.DialOption
	queries *queryconn.Dialer // nil: there are no connections for queries
	closed  atomic.Bool
	noFleet bool
	fleet   *discovery   // nil if noFleet
	tracer  trace.Tracer // nil: the provider of the span in a query's context
}

type server struct {
	address string
	conn    *stream.Conn
}

// An Option changes how a Client works.
type Option func(*Client)

// WithTimeout sets the timeout of calls whose context has no deadline. Without it such a call waits
// as long as the server lets it.
func WithTimeout(d time.Duration) Option { return func(c *Client) { c.timeout = d } }

// WithDialOptions adds gRPC dial options, such as [secure.ClientConfig.DialOptions]. Without any,
// connections are not encrypted.
func WithDialOptions(opts ...grpc.DialOption) Option {
	return func(c *Client) {
		c.dial = append(c.dial, opts...)
		c.queries = queryconn.DialerOf(opts)
	}
}

// WithoutFleet makes the Client send queries only to the given servers, even if they are agents of
// a fleet.
func WithoutFleet() Option { return func(c *Client) { c.noFleet = true } }

// WithTracerProvider makes the Client start a span for each query, with child spans for its steps.
// Without it, only queries whose context has a span are traced, by that span's provider. The span's
// context and baggage are sent to the servers.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(c *Client) { c.tracer = p.Tracer(tracing.Scope) }
}

// New returns a client of the servers at addresses ("host:port"). It starts to connect and does not
// wait for connections. The caller closes the client.
func New(addresses []string, opts ...Option) (*Client, error) {
	if len(addresses) == 0 {
		return nil, errors.New("client: no addresses")
	}
	plain := direct.Credentials(insecure.NewCredentials())
	c := &Client{queries: &queryconn.Dialer{Dial: queryconn.TCP, Credentials: plain}}
	c.dial = append(oip.DialOptions(),
		grpc.WithTransportCredentials(plain),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: 3 * time.Second,
			},
			MinConnectTimeout: 3 * time.Second,
		}),
		// The purpose is the timeout: the kernel closes a connection whose other end has
		// acknowledged nothing for that long. The pings alone would notice that late, and a server
		// may close the connection if they come more often.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 5 * time.Minute, Timeout: 3 * time.Second,
		}),
	)
	for _, o := range opts {
		o(c)
	}
	for _, address := range addresses {
		conn, err := grpc.NewClient(address, c.dial...)
		if err != nil {
			c.Close()
			return nil, fmt.Errorf("client: address %q: %w", address, err)
		}
		conn.Connect()
		c.servers = append(c.servers, server{address, stream.Calls(conn)})
	}
	if !c.noFleet {
		c.fleet = c.startDiscovery()
	}
	return c, nil
}

// Close ends all calls and connections, and returns when the client's goroutines have ended.
func (c *Client) Close() error {
	c.closed.Store(true)
	if c.fleet != nil {
		c.fleet.close()
	}
	var errs []error
	for _, s := range c.servers {
		errs = append(errs, s.conn.Close())
	}
	return errors.Join(errs...)
}

// Infer sends a query and returns the answer. The deadline is that of ctx, or req.Timeout from now
// if that is earlier; after it the servers drop the query too. Errors are [*Error].
//
// The inputs are not copied and must not change until Infer returns. After an error a connection
// may still be reading them: the caller must not reuse their memory until the function given to
// [oip.Request.OnRelease] is called. (After an answer a connection may be reading them too, if the
// query was sent twice; but that attempt's answer is discarded.) Infer does not release req.
//
// The outputs are valid until the response's Release, which lets later answers reuse their memory.
// Without Release the garbage collector frees it.
func (c *Client) Infer(ctx context.Context, req *oip.Request) (*oip.Response, error) {
	if err := req.Check(); err != nil {
		return nil, &Error{kind: ErrInvalid, status: status.New(codes.InvalidArgument, err.Error())}
	}
	if req.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, req.Timeout)
		defer cancel()
	}
	ctx, cancel := c.withTimeout(ctx)
	defer cancel()
	ctx, span := c.beginSpan(ctx, req)
	resp, err := c.sendQuery(ctx, req)
	if span != nil {
		tracing.EndClient(span, err)
	}
	return resp, err
}

// sendQuery sends the query through the fleet's gateway, or if there is none to a server.
func (c *Client) sendQuery(ctx context.Context, req *oip.Request) (*oip.Response, error) {
	if gateway := c.fleet.fleetGateway(); gateway != nil {
		sent := time.Now()
		resp, err := gateway.Infer(ctx, req, sent)
		switch status.Code(err) {
		case codes.OK:
			if req.Late != nil {
				gateway.noteMissed(req, nil, 0)
			}
			return resp, nil
		// an agent may know of a member that the gateway does not know yet
		case codes.Unavailable, codes.NotFound:
			if ctx.Err() == nil && !c.closed.Load() {
				break
			}
			fallthrough
		default:
			after := time.Since(sent)
			gateway.failedWith(req, err, after)
			gateway.noteMissed(req, err, after)
			return nil, c.newError("", err)
		}
	}
	resp := new(oip.Response)
	if err := c.callUnary(ctx, inference.GRPCInferenceService_ModelInfer_FullMethodName, req,
		resp); err != nil {
		resp.Release()
		return nil, err
	}
	return resp, nil
}

// callUnary makes a unary call, and tries it on other servers if the first cannot be reached.
func (c *Client) callUnary(ctx context.Context, method string, req, resp any) error {
	ctx, cancel := c.withTimeout(ctx)
	defer cancel()
	servers := c.serversInOrder()
	ctx = tracing.Inject(ctx)
	for n, s := range servers {
		err := s.conn.Invoke(ctx, method, req, resp)
		if err == nil {
			return nil
		}
		last := n == min(maxAttempts, len(servers))-1
		if last || status.Code(err) != codes.Unavailable || c.closed.Load() {
			return c.newError(s.address, err)
		}
		trace.SpanFromContext(ctx).AddEvent("server failed", trace.WithAttributes(
			semconv.ServerAddress(s.address), tracing.Reason.String(status.Convert(err).Message())))
	}
	panic("unreachable: there is at least one server")
}

// withTimeout is ctx, with the client's timeout if ctx has no deadline.
func (c *Client) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); !ok && c.timeout > 0 {
		return context.WithTimeout(ctx, c.timeout)
	}
	return ctx, func() {}
}

// serversInOrder is the servers in the order in which to try them: round-robin, those with a
// connection first. If none of the given servers has a connection, the agents of their fleet
// follow. A server whose address a member says to be its own is reached by the connection to that
// member: nothing stands between that would balance calls, so small queries may go on a stream.
func (c *Client) serversInOrder() []server {
	members := c.fleet.peersOf()
	if len(c.servers) == 1 && len(members) == 0 {
		return c.servers
	}
	first := int(c.next.Add(1) % uint64(len(c.servers)))
	order := slices.Concat(c.servers[first:], c.servers[:first])
	for _, p := range members {
		at := slices.IndexFunc(order, func(s server) bool { return s.address == p.address })
		if at < 0 {
			order = append(order, p.server)
		} else if p.conn.GetState() == connectivity.Ready {
			order[at] = p.server
		}
	}
	ready := 0
	for i, s := range order {
		switch s.conn.GetState() {
		case connectivity.Ready:
			order[ready], order[i] = s, order[ready]
			ready++
		case connectivity.Idle:
			s.conn.Connect()
		}
	}
	return order
}

// Gateway returns the gateway through which the client sends queries to the fleet, so that its
// [Gateway.Stats] can be read; nil while queries go to the servers.
func (c *Client) Gateway() *Gateway { return c.fleet.fleetGateway() }

// Live reports whether a server answers.
func (c *Client) Live(ctx context.Context) (bool, error) {
	resp := new(inference.ServerLiveResponse)
	err := c.callUnary(ctx, inference.GRPCInferenceService_ServerLive_FullMethodName,
		&inference.ServerLiveRequest{}, resp)
	return resp.Live, err
}

// Ready reports whether a server takes queries.
func (c *Client) Ready(ctx context.Context) (bool, error) {
	resp := new(inference.ServerReadyResponse)
	err := c.callUnary(ctx, inference.GRPCInferenceService_ServerReady_FullMethodName,
		&inference.ServerReadyRequest{}, resp)
	return resp.Ready, err
}

// ModelReady reports whether a model takes queries. An empty version means the one that the model's
// version policy chooses.
func (c *Client) ModelReady(ctx context.Context, model, version string) (bool, error) {
	resp := new(inference.ModelReadyResponse)
	err := c.callUnary(ctx, inference.GRPCInferenceService_ModelReady_FullMethodName,
		&inference.ModelReadyRequest{Name: model, Version: version}, resp)
	return resp.Ready, err
}

// ServerMetadata returns a server's name and version, and the extensions of the protocol that it
// has.
func (c *Client) ServerMetadata(ctx context.Context) (*inference.ServerMetadataResponse, error) {
	resp := new(inference.ServerMetadataResponse)
	err := c.callUnary(ctx, inference.GRPCInferenceService_ServerMetadata_FullMethodName,
		&inference.ServerMetadataRequest{}, resp)
	return orNil(resp, err)
}

// ModelMetadata describes a model's versions, inputs and outputs; [oip.ParseProperties] reads the
// properties that Muster adds.
func (c *Client) ModelMetadata(ctx context.Context, model,
	version string) (*inference.ModelMetadataResponse, error) {
	resp := new(inference.ModelMetadataResponse)
	err := c.callUnary(ctx, inference.GRPCInferenceService_ModelMetadata_FullMethodName,
		&inference.ModelMetadataRequest{Name: model, Version: version}, resp)
	return orNil(resp, err)
}

// ModelStatistics returns a model's counters on one server; an empty name stands for all models.
func (c *Client) ModelStatistics(ctx context.Context, model,
	version string) ([]*inference.ModelStatistics, error) {
	resp := new(inference.ModelStatisticsResponse)
	err := c.callUnary(ctx, inference.GRPCInferenceService_ModelStatistics_FullMethodName,
		&inference.ModelStatisticsRequest{Name: model, Version: version}, resp)
	return resp.ModelStats, err
}

// RepositoryIndex lists the models in a server's repository, or only those
// that are ready.
func (c *Client) RepositoryIndex(ctx context.Context,
	ready bool) ([]*inference.RepositoryIndexResponse_ModelIndex, error) {
	resp := new(inference.RepositoryIndexResponse)
	err := c.callUnary(ctx, inference.GRPCInferenceService_RepositoryIndex_FullMethodName,
		&inference.RepositoryIndexRequest{Ready: ready}, resp)
	return resp.Models, err
}

// LoadModel makes one server load a model, or load it again, and waits until the model takes
// queries.
func (c *Client) LoadModel(ctx context.Context, model string) error {
	return c.callUnary(ctx, inference.GRPCInferenceService_RepositoryModelLoad_FullMethodName,
		&inference.RepositoryModelLoadRequest{ModelName: model},
		new(inference.RepositoryModelLoadResponse))
}

// UnloadModel makes one server unload a model.
func (c *Client) UnloadModel(ctx context.Context, model string) error {
	return c.callUnary(ctx, inference.GRPCInferenceService_RepositoryModelUnload_FullMethodName,
		&inference.RepositoryModelUnloadRequest{ModelName: model},
		new(inference.RepositoryModelUnloadResponse))
}

func orNil[T any](v *T, err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	return v, nil
}
