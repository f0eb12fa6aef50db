package serve

import (
	"context"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/orca"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/extproc"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/secure"
)

const (
	// ReceiveTimeout is how long a client may take to send a query. It frees the memory of queries
	// that clients never finish. On a stream it counts for each query, and the server then closes
	// the client's connection. Chosen: a query of 1 MiB comes in time at 300 kbit/s; twice the time
	// would let stalled clients hold memory twice as long.
	ReceiveTimeout = 30 * time.Second
	// SendTimeout is how long a client may take to read an answer. The server then closes the
	// client's connection. Chosen: as long as to send a query.
	SendTimeout = 30 * time.Second
	// connectTimeout is how long a client may take to open a connection or to send the headers of a
	// request. Chosen: TCP sends a lost packet again after 1, 2 and 4 s, and whoever needs longer
	// holds a connection for nothing.
	connectTimeout = 10 * time.Second
	// idleTimeout is how long a connection without requests stays open. Chosen: longer than proxies
	// keep one (nginx: 60 s), so that they close it and never send a query into a connection that
	// is closing; shorter than the 350 s after which balancers of AWS forget one.
	idleTimeout = 5 * time.Minute
	// streamWorkers is how many goroutines serve calls repeatedly, so that calls need not grow a
	// new stack each; calls beyond them get a goroutine of their own. Chosen: more than the lanes
	// of most machines, and a stack that stays takes some KiB.
	streamWorkers = 32
	// streamsPerConnection bounds the calls in progress on one connection. Chosen: far more than a
	// client's lanes can serve in a second; a call without data takes some KiB.
	streamsPerConnection = 1024
	// largestHeader bounds the headers of a request, in bytes.
	largestHeader = 64 << 10
)

// newGRPCServer returns a server for the inference protocol, the control protocol, health checks
// and reflection. The largest query that it accepts depends on the models that are loaded when the
// query arrives. A call passes these, from the socket inwards:
//
//	Guard.ServerOptions    TLS, who calls; a connection for queries goes to s.queries instead
//	s.tap -> admit         the headers: rights (Guard.Tap), room (intake.full), limits (Guard.Count);
//	                       a query gets its receipt, whose timeout bounds how long it may arrive
//	 unary calls
//	  oip.Bounded          the message: at most so many bytes, counted in arrivals as they come
//	  boundedServer        the error of tap, for calls with a long deadline
//	   untilEnd            of ModelInfer: ends the receipt, which counts what was not received
//	    decode             reads the message
//	     interceptUnary    a panic and each error become a gRPC status, without names that are hidden
//	      Guard.Unary      rights that depend on the message
//	       service, controlService, healthService
//	 streams
//	  interceptStream      the error of tap, panics and errors, clients that do not read
//	   Guard.interceptStream
//	    oip.Bounded        each message
//	     service, controlService
//
// Calls by s.config.Local begin at decode, without the guard. A connection for queries comes to
// queryConns, which does what tap does, and then calls what is registered here as ModelInfer.
func (s *Server) newGRPCServer() *grpc.Server {
	// oip.Bounded below bounds the messages of each method
	options := append(oip.ServerOptions(math.MaxInt32),
		grpc.InTapHandle(s.tapCall),
		grpc.ChainUnaryInterceptor(s.interceptUnary),
		grpc.ChainStreamInterceptor(s.interceptStream),
		grpc.UnknownServiceHandler(unknownMethod),
		grpc.ConnectionTimeout(connectTimeout),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.MaxConcurrentStreams(streamsPerConnection),
		grpc.MaxHeaderListSize(largestHeader),
		// The server notices within two and a half minutes that a client has vanished. A client may
		// send keepalive pings every ten seconds.
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: 2 * time.Minute, Timeout: 20 * time.Second, MaxConnectionIdle: idleTimeout,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime: 10 * time.Second, PermitWithoutStream: true,
		}),
	)
	server := grpc.NewServer(append(options, s.config.Guard.ServerOptions(s.queries.serve)...)...)
	to := boundedServer{server, s, oip.Bounded(both{server, &s.queries}, func(method string) int64 {
		switch method {
		case inference.GRPCInferenceService_ModelInfer_FullMethodName,
			inference.GRPCInferenceService_ModelStreamInfer_FullMethodName:
			return s.largest.Load()
		// only agents call it, and profiles may exceed largestMessage
		case control.Control_Link_FullMethodName:
			return minLimit
		case extproc.ExternalProcessor_Process_FullMethodName:
			return largestPart
		}
		return largestMessage
	}, arrivals{s})}
	s.register(to)
	healthpb.RegisterHealthServer(to, healthService{Server: s})
	reflection.Register(to)
	// cannot fail: the options are complete
	_ = orca.Register(to, orca.ServiceOptions{ServerMetricsProvider: s.loads})
	return server
}

// largestPart bounds a message of a gateway that asks where a request should go, which has a part of
// the request's body: Envoy sends at most what it buffers of a connection, by default 1 MiB.
const largestPart = 2 << 20

// both registers services with both of its registrars.
type both [2]grpc.ServiceRegistrar

// RegisterService implements [grpc.ServiceRegistrar].
func (b both) RegisterService(desc *grpc.ServiceDesc, service any) {
	for _, to := range b {
		to.RegisterService(desc, service)
	}
}

// A boundedServer registers services with bounds on their messages ([oip.Bounded]). It also makes a
// unary call return the error that tap has put into its context (interceptStream does so for
// streams), and ends the receipt of each query with its call.
type boundedServer struct {
	*grpc.Server
	server  *Server
	bounded grpc.ServiceRegistrar
}

func (s boundedServer) RegisterService(desc *grpc.ServiceDesc, service any) {
	d := *desc
	d.Methods = slices.Clone(desc.Methods)
	for i := range d.Methods {
		handle := d.Methods[i].Handler
		if "/"+d.ServiceName+"/"+
			d.Methods[i].MethodName == inference.GRPCInferenceService_ModelInfer_FullMethodName {
			handle = s.server.untilEnd(handle)
		}
		d.Methods[i].Handler = func(service any, ctx context.Context, decode func(any) error,
			interceptor grpc.UnaryServerInterceptor) (any, error) {
			if err, ok := ctx.Value(refusedKey{}).(error); ok {
				return nil, err
			}
			return handle(service, ctx, decode, interceptor)
		}
	}
	s.bounded.RegisterService(&d, service)
}

// untilEnd wraps a handler so that the query's receipt ends when the call does.
func (s *Server) untilEnd(handle grpc.MethodHandler) grpc.MethodHandler {
	return func(service any, ctx context.Context, decode func(any) error,
		interceptor grpc.UnaryServerInterceptor) (any, error) {
		resp, err := handle(service, ctx, decode, interceptor)
		if r := receiptOf(ctx); r != nil {
			r.noteEnd(err)
		}
		return resp, err
	}
}

type refusedKey struct{}

// tapCall calls admit, before gRPC reads the call's message. If tap refused a call with a deadline,
// gRPC would keep the call's context and its timer until the deadline, which a client may set to
// years ahead. So tap lets such a call in with the error in its context, and the handler refuses it
// before its message is read.
func (s *Server) tapCall(ctx context.Context, info *tap.Info) (context.Context, error) {
	admitted, err := s.admitCall(ctx, info)
	if err != nil {
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) > shortTimeout {
			return context.WithValue(ctx, refusedKey{}, err), nil
		}
	}
	return admitted, err
}

// shortTimeout is how long the context of a refused call may stay in memory, at 330 bytes each.
const shortTimeout = time.Second

// arrivals is the intake for queries by gRPC. It gives refusals a gRPC code.
type arrivals struct{ *Server }

// Take implements [oip.Intake].
func (s arrivals) Take(ctx context.Context, n, had int64) error {
	err := s.intake.Take(ctx, n, had)
	if err != nil && isAttempt(ctx) {
		err = asRefused(err)
	}
	return outcome.GRPC(err)
}

// Give implements [oip.Intake].
func (s arrivals) Give(ctx context.Context, n int64) { s.intake.Give(ctx, n) }

// Arriving implements [oip.Patience]: a client that does not send the rest of a query on a stream
// loses its connection, as one does that does not read an answer. Else it would hold the bytes for
// as long as it liked.
func (s arrivals) Arriving(ctx context.Context) (arrived func()) {
	a := &arrivingCall{ctx: ctx}
	s.arriving.addTimeout(&a.timeout, s.config.ReceiveTimeout, a)
	return func() { s.arriving.removeTimeout(&a.timeout) }
}

// An arrivingCall is a query of a stream that has begun to arrive.
type arrivingCall struct {
	ctx     context.Context // of the stream
	timeout timeout         // in Server.arriving
}

func (a *arrivingCall) expire() { secure.CloseConnection(a.ctx) }

// asRefused returns the error of an attempt that this agent does not run because of err: its
// gateway tries another agent.
func asRefused(err error) error { return fmt.Errorf("%w: %w", outcome.ErrRefused, err) }

// register registers the inference service and the control service with to.
func (s *Server) register(to grpc.ServiceRegistrar) {
	oip.RegisterServer(to, service{s})
	control.RegisterControlServer(to, controlService{Server: s})
	control.RegisterDashboardServer(to, s.config.Beats)
	extproc.RegisterExternalProcessorServer(to, s.picker)
}

// isAttempt reports whether a query is a gateway's attempt, which this agent must run itself or
// refuse.
func isAttempt(ctx context.Context) bool {
	return len(headerValues(ctx, control.AttemptHeader)) > 0
}

// A receipt is the state of a query by gRPC from its arrival until its answer is sent. It is also
// the context of the call, and ends if the query takes too long to arrive. Both are one object
// because every query allocates it.
type receipt struct {
	context.Context
	cancel  context.CancelFunc
	server  *Server
	arrival time.Time
	header  metadata.MD // must not be changed
	// timeout belongs to Server.arriving until the query is received, and then to Server.sending,
	// for the answer.
	timeout  timeout
	slow     atomic.Bool // the query took too long to arrive
	received bool
	charge   oip.Charge // the answer's bytes in Server.answers
}

// Value implements [context.Context].
func (r *receipt) Value(key any) any {
	if key == (receiptKey{}) {
		return r
	}
	return r.Context.Value(key)
}

// expire cancels the call because its query takes too long to arrive.
func (r *receipt) expire() {
	r.slow.Store(true)
	r.cancel()
}

// noteEnd must be called when the call ends with err. If the query was not received, end counts it;
// of an attempt, it tells the leader that the attempt was not run.
func (r *receipt) noteEnd(err error) {
	if r.received {
		return
	}
	r.server.arriving.removeTimeout(&r.timeout)
	if attempt := r.header[control.AttemptHeader]; len(attempt) > 0 {
		r.server.config.Worker.CutOff(r, attempt[0], r.arrival)
		return
	}
	s, _ := status.FromError(err)
	switch code := s.Code(); {
	case code == codes.PermissionDenied || code == codes.Unauthenticated:
		r.server.config.Counts.countMissedByRights(r)
		return // refused because of who called: that is counted elsewhere, too
	case code == codes.OK:
		return
	case r.slow.Load():
		err = outcome.ErrSlow
	case len(s.Details()) > 0: // a refusal of the intake, which says its reason
	// The rest are errors of reading the message, with the codes that gRPC gives them.
	case code == codes.ResourceExhausted:
		err = oip.ErrTooLarge
	case code == codes.Internal || code == codes.Unimplemented:
		err = outcome.ErrInvalid
	case code == codes.Unavailable: // the connection has broken
		err = context.Canceled
	}
	// The QoS target is not known. A client that goes away when nearly all of its time has passed
	// has seen its own end of the deadline pass.
	after, patience := time.Since(r.arrival), time.Duration(0)
	if deadline, ok := r.Context.Deadline(); ok {
		patience = deadline.Sub(r.arrival) * 9 / 10
	}
	r.server.config.Counts.Arrived("", 0)
	r.server.config.Counts.Failed("", 0, err, after, max(patience, 0), 0)
	r.server.config.Counts.countMissedQuery(r, &missedQuery{
		err: err, after: after, target: max(patience, 0),
	})
}

// An unsent is a receipt whose answer is on its way to the client.
type unsent receipt

// Released implements [oip.Released]: the connection has taken the answer.
func (s *unsent) Released() {
	if s.server.sending.removeTimeout(&s.timeout) {
		s.charge.Only(0)
	}
}

// expire closes the client's connection because the client does not read the answer.
func (s *unsent) expire() {
	secure.CloseConnection(s.Context)
	s.charge.Only(0) // gRPC does not call Released for an answer whose connection has ended
}

// receiptOf returns the receipt of the call with context ctx; nil if the call did not come by gRPC.
func receiptOf(ctx context.Context) *receipt {
	r, _ := ctx.Value(receiptKey{}).(*receipt)
	return r
}

type receiptKey struct{}

// admitCall decides about a call after its headers have arrived and before its message is read. It
// blocks the connection's goroutine, so it checks only credentials and counters.
func (s *Server) admitCall(ctx context.Context, info *tap.Info) (context.Context, error) {
	ctx, err := s.config.Guard.Tap(ctx, info)
	if err != nil {
		return ctx, err
	}
	isQuery := info.FullMethodName == inference.GRPCInferenceService_ModelInfer_FullMethodName
	if isQuery {
		if err := s.fullFor(ctx, info.Header); err != nil {
			return ctx, err
		}
	}
	if ctx, err = s.config.Guard.Count(ctx, info.FullMethodName); err != nil {
		if isQuery && len(info.Header[control.AttemptHeader]) == 0 {
			s.countRefusedEarly(ctx, "", "", err)
		}
		return ctx, err
	}
	switch {
	case isQuery:
		return s.tapQuery(ctx, info.Header)
	case strings.HasPrefix(info.FullMethodName,
		"/"+inference.GRPCInferenceService_ServiceDesc.ServiceName+"/"),
		// answers what it has received
		info.FullMethodName == control.Control_Queries_FullMethodName:
		return ctx, nil
	}
	// Health watches and reflection streams do not end by themselves. They end when the agent
	// closes, so that they do not delay a drain.
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.config.Closing, cancel)
	context.AfterFunc(ctx, func() { stop() })
	return ctx, nil
}

// fullFor returns an error if the agent has no room for a query, or the client has exceeded its
// limits. It runs before the query is read, when a refusal costs least. header is the call's.
func (s *Server) fullFor(ctx context.Context, header metadata.MD) error {
	return s.withinIntake(ctx, header, s.intake.checkRoom(ctx))
}

// withinIntake is fullFor for a query of which the intake has said err.
func (s *Server) withinIntake(ctx context.Context, header metadata.MD, err error) error {
	if err == nil {
		err = s.countQuery(ctx, header)
	}
	switch {
	case err == nil:
		return nil
	case len(header[control.AttemptHeader]) > 0:
		err = asRefused(err)
	default:
		s.countRefusedEarly(ctx, "", "", err)
	}
	return outcome.GRPC(err)
}

// tapQuery returns the receipt of an admitted query, and starts its timeout for arrival.
func (s *Server) tapQuery(ctx context.Context, header metadata.MD) (context.Context, error) {
	r := &receipt{server: s, arrival: time.Now(), header: header}
	r.Context, r.cancel = context.WithCancel(ctx)
	if err := ctx.Err(); err != nil { // gRPC does not call the handler then, so end is called here
		r.cancel()
		r.noteEnd(err)
		return ctx, status.FromContextError(err).Err()
	}
	s.arriving.addTimeout(&r.timeout, s.config.ReceiveTimeout, r)
	return r, nil
}

// noteArrival ends the timeout for the arrival of the call's query, and returns the time at which
// it began to arrive.
func noteArrival(ctx context.Context) (arrival time.Time) {
	r := receiptOf(ctx)
	if r == nil {
		return time.Now()
	}
	r.server.arriving.removeTimeout(&r.timeout)
	r.received = true
	return r.arrival
}

// headerValues returns the values of a call's header, which the caller must not change. Unlike
// metadata's function it copies nothing if the call has a receipt.
func headerValues(ctx context.Context, name string) []string {
	if r := receiptOf(ctx); r != nil {
		return r.header[name]
	}
	return metadata.ValueFromIncomingContext(ctx, name)
}

// firstHeader returns the first value of a call's header, "" if there is none.
func firstHeader(ctx context.Context, name string) string {
	if values := headerValues(ctx, name); len(values) > 0 {
		return values[0]
	}
	return ""
}

// interceptUnary gives errors their gRPC code, without names that the caller may not know, and
// turns a panic of a handler into an error.
func (s *Server) interceptUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handle grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if p := recover(); p != nil {
			resp, err = nil, outcome.GRPC(s.panicError(info.FullMethod, p))
		}
	}()
	resp, err = handle(ctx, req)
	if err != nil {
		return nil, outcome.GRPC(s.hideNames(ctx, err))
	}
	return resp, nil
}

// interceptStream does for streams what interceptUnary does for calls, and returns the error that
// tap has put into the context.
func (s *Server) interceptStream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handle grpc.StreamHandler) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = outcome.GRPC(s.panicError(info.FullMethod, p))
		}
	}()
	if err, ok := stream.Context().Value(refusedKey{}).(error); ok {
		return err
	}
	if err := handle(service, &impatientStream{ServerStream: stream, server: s}); err != nil {
		return outcome.GRPC(err)
	}
	return nil
}

// An impatientStream closes the connection of a client that does not read a message within
// SendTimeout.
type impatientStream struct {
	grpc.ServerStream
	server  *Server
	timeout timeout // in Server.sending, for the message that is being sent
}

func (s *impatientStream) SendMsg(m any) error {
	s.server.sending.addTimeout(&s.timeout, s.server.config.SendTimeout, s)
	defer s.server.sending.removeTimeout(&s.timeout)
	return s.ServerStream.SendMsg(m)
}

func (s *impatientStream) expire() { secure.CloseConnection(s.Context()) }

// countSentBytes counts the bytes of an answer, which r.charge has, until the client's connection
// has taken them. gRPC keeps an unread answer for as long as its connection is open, even after the
// call has ended, so sends starts a timeout that closes the connection.
func (s *Server) countSentBytes(r *receipt, resp *oip.Response) {
	u := (*unsent)(r)
	s.sending.addTimeout(&u.timeout, s.config.SendTimeout, u)
	resp.AlsoOnRelease(u)
}

// panicError logs a handler's panic with its stack, and returns the error for the client.
func (s *Server) panicError(where string, p any) error {
	s.config.Log.Error("handler panicked", "handler", where, "panic", p, "stack",
		string(debug.Stack()))
	return fmt.Errorf("%w in %s", outcome.ErrPanic, where)
}
