package agent

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/secure"
)

const (
	// defaultReceiveTimeout is how long a client may take to send a query. It
	// keeps those who never finish from holding on to memory.
	defaultReceiveTimeout = 30 * time.Second
	// defaultSendTimeout is how long a client may take to read an answer. One that takes longer
	// loses its connection.
	defaultSendTimeout = 30 * time.Second
	// connectTimeout is how long a client may take to open a connection or to
	// send the headers of a request.
	connectTimeout = 10 * time.Second
	// idleTimeout is how long a connection without requests stays open.
	idleTimeout = 5 * time.Minute
	// streamWorkers goroutines take calls in turn, so that calls need not grow a
	// new stack each; calls beyond them get a goroutine of their own.
	streamWorkers = 32
	// streamsPerConnection bounds the calls of one connection at a time.
	streamsPerConnection = 1024
	// readBuffer is what each connection of gRPC has to read with, in bytes.
	readBuffer = 4 << 10
	// largestHeader bounds the headers of a request, in bytes.
	largestHeader = 64 << 10
)

// newGRPCServer serves the protocol, health checks and reflection, to queries
// of at most largestQuery bytes and other messages of at most largestMessage.
func (a *Agent) newGRPCServer(largestQuery int64) *grpc.Server {
	options := append(oip.ServerOptions(int(largestQuery)),
		grpc.InTapHandle(a.tap),
		grpc.ChainUnaryInterceptor(a.interceptUnary),
		grpc.ChainStreamInterceptor(a.interceptStream),
		grpc.ConnectionTimeout(connectTimeout),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.MaxConcurrentStreams(streamsPerConnection),
		grpc.MaxHeaderListSize(largestHeader),
		// What a connection holds that says nothing. Frames that are larger are read past it.
		grpc.ReadBufferSize(readBuffer),
		// A client that vanished is noticed within two minutes and a half; one
		// may ask for life signs every ten seconds.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 2 * time.Minute, Timeout: 20 * time.Second, MaxConnectionIdle: idleTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	)
	server := grpc.NewServer(append(options, a.guard.ServerOptions()...)...)
	to := boundedServer{server, a, oip.Bounded(server, func(method string) int64 {
		switch method {
		case inference.GRPCInferenceService_ModelInfer_FullMethodName:
			return largestQuery
		case control.Control_Link_FullMethodName: // of agents, and profiles are larger
			return leastLimit
		}
		return largestMessage
	}, arrivals{a})}
	a.register(to)
	healthpb.RegisterHealthServer(to, a.health)
	reflection.Register(to)
	return server
}

// A boundedServer is a server that services are registered at by way of [oip.Bounded]. Calls end first
// with the error that their tap has left them (streams in interceptStream), and it hears of queries
// that are not received.
type boundedServer struct {
	*grpc.Server
	agent   *Agent
	bounded grpc.ServiceRegistrar
}

func (s boundedServer) RegisterService(desc *grpc.ServiceDesc, service any) {
	d := *desc
	d.Methods = slices.Clone(desc.Methods)
	for i := range d.Methods {
		handle := d.Methods[i].Handler
		if "/"+d.ServiceName+"/"+d.Methods[i].MethodName == inference.GRPCInferenceService_ModelInfer_FullMethodName {
			handle = s.agent.untilEnd(handle)
		}
		d.Methods[i].Handler = func(service any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			if err, ok := ctx.Value(refusedKey{}).(error); ok {
				return nil, err
			}
			return handle(service, ctx, decode, interceptor)
		}
	}
	s.bounded.RegisterService(&d, service)
}

// untilEnd has the receipt of a query end with its call.
func (a *Agent) untilEnd(handle grpc.MethodHandler) grpc.MethodHandler {
	return func(service any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		if r := receiptOf(ctx); r != nil {
			defer r.end()
		}
		return handle(service, ctx, decode, interceptor)
	}
}

type refusedKey struct{}

// tap is admit. grpc never ends the context of a call that a tap refuses, and one with a deadline has
// a timer, which holds on to it until then, be it a thousand years. So where that is not soon the call
// is let in, to be refused before its message is read.
func (a *Agent) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	admitted, err := a.admit(ctx, info)
	if err != nil {
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) > shortTimeout {
			return context.WithValue(ctx, refusedKey{}, err), nil
		}
	}
	return admitted, err
}

// shortTimeout is how long the contexts of calls that were refused may stay, 330 bytes each.
const shortTimeout = time.Second

// arrivals are the agent's intake for queries by gRPC: their refusals are counted, and have a code.
type arrivals struct{ *Agent }

// Take implements [oip.Intake].
func (a arrivals) Take(ctx context.Context, n, had int64) error {
	if err := a.intake.Take(ctx, n, had); err != nil {
		return a.refuseArrival(err, isAttempt(ctx))
	}
	return nil
}

// Give implements [oip.Intake].
func (a arrivals) Give(ctx context.Context, n int64) { a.intake.Give(ctx, n) }

// refuseArrival is the error of a query that is refused before it is read.
func (a *Agent) refuseArrival(err error, attempt bool) error {
	if attempt {
		return grpcError(fmt.Errorf("%w: %w", errRefused, err))
	}
	a.worker.Failed("", err)
	return grpcError(err)
}

// register has the agent's own services answer the calls that come by to.
func (a *Agent) register(to grpc.ServiceRegistrar) {
	oip.RegisterServer(to, service{a})
	control.RegisterControlServer(to, controlService{Agent: a})
}

func newHealth() *health.Server {
	h := health.NewServer()
	h.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	h.SetServingStatus(inference.GRPCInferenceService_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_NOT_SERVING)
	return h
}

// isAttempt reports whether a query is an attempt of a gateway's: to be run
// here, and not to be passed on.
func isAttempt(ctx context.Context) bool {
	return len(headers(ctx, control.AttemptHeader)) > 0
}

// A receipt is what the agent knows of a query by gRPC from its arrival until its answer is sent. It
// is the context of the call, which ends too when the query takes too long to arrive. It is one
// object, as every query needs one.
type receipt struct {
	context.Context
	cancel  context.CancelFunc
	agent   *Agent
	arrival time.Time
	header  metadata.MD // must not be changed
	// timeout is that of the query, one of agent.arriving, until received, and then that of the
	// answer, one of agent.sending.
	timeout  timeout
	received bool
	charge   oip.Charge // the answer's
}

// Value implements [context.Context].
func (r *receipt) Value(key any) any {
	if key == (receiptKey{}) {
		return r
	}
	return r.Context.Value(key)
}

// expire ends the call: the query takes too long to arrive.
func (r *receipt) expire() { r.cancel() }

// end is for when the call has been handled. It has the leader told of an attempt that was cut off.
func (r *receipt) end() {
	if r.received {
		return
	}
	r.agent.arriving.end(&r.timeout)
	if attempt := r.header[control.AttemptHeader]; len(attempt) > 0 {
		r.agent.worker.CutOff(attempt[0], r.arrival)
	}
}

// An unsent is a receipt from when there is an answer.
type unsent receipt

// Released implements [oip.Released]: the connection has taken the answer.
func (s *unsent) Released() {
	if s.agent.sending.end(&s.timeout) {
		s.charge.Only(0)
	}
}

// expire ends the connection, whose client does not read the answer.
func (s *unsent) expire() {
	secure.CloseConnection(s.Context)
	s.charge.Only(0) // grpc forgets an answer whose connection has ended, without a word
}

// receiptOf is that of the call that ctx is of, nil of one that did not come by gRPC.
func receiptOf(ctx context.Context) *receipt {
	r, _ := ctx.Value(receiptKey{}).(*receipt)
	return r
}

type receiptKey struct{}

// admit sees a call when its headers have arrived and before its message is read.
// It runs on the connection's goroutine, so it only looks at credentials and
// counters.
func (a *Agent) admit(ctx context.Context, info *tap.Info) (context.Context, error) {
	ctx, err := a.guard.Tap(ctx, info)
	if err != nil {
		return ctx, err
	}
	isQuery := info.FullMethodName == inference.GRPCInferenceService_ModelInfer_FullMethodName
	if isQuery {
		if err := a.fullFor(ctx, len(info.Header[control.AttemptHeader]) > 0); err != nil {
			return ctx, err
		}
	}
	if err := a.guard.Count(ctx, info.FullMethodName); err != nil {
		return ctx, err
	}
	switch {
	case isQuery:
		return a.tapQuery(ctx, info.Header)
	case strings.HasPrefix(info.FullMethodName, "/"+inference.GRPCInferenceService_ServiceDesc.ServiceName+"/"):
		return ctx, nil
	}
	// Those who watch the health, or hold a reflection stream, would do so for
	// ever: they must not keep a draining agent from stopping.
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(a.closing, cancel)
	context.AfterFunc(ctx, func() { stop() })
	return ctx, nil
}

// fullFor refuses a query where overload, and what is beyond its client's limits, costs least.
func (a *Agent) fullFor(ctx context.Context, attempt bool) error {
	err := a.intake.full(ctx)
	if err == nil {
		err = a.guard.Query(ctx, wayOf(attempt), 0)
	}
	if err != nil {
		return a.refuseArrival(err, attempt)
	}
	return nil
}

// tapQuery has a query that is let in arrive in time.
func (a *Agent) tapQuery(ctx context.Context, header metadata.MD) (context.Context, error) {
	r := &receipt{agent: a, arrival: time.Now(), header: header}
	if err := ctx.Err(); err != nil { // then the call is not handled
		r.end()
		return ctx, status.FromContextError(err).Err()
	}
	r.Context, r.cancel = context.WithCancel(ctx)
	a.arriving.begin(&r.timeout, a.receiveTimeout, r)
	return r, nil
}

// received says that the query of a call has been read, and returns when it
// began to arrive.
func received(ctx context.Context) (arrival time.Time) {
	r := receiptOf(ctx)
	if r == nil {
		return time.Now()
	}
	r.agent.arriving.end(&r.timeout)
	r.received = true
	return r.arrival
}

// headers are those of a call with that name, which must not be changed. Looking for them
// in the receipt copies nothing.
func headers(ctx context.Context, name string) []string {
	if r := receiptOf(ctx); r != nil {
		return r.header[name]
	}
	return metadata.ValueFromIncomingContext(ctx, name)
}

// interceptUnary gives errors their code, and turns a panic into an error.
func (a *Agent) interceptUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if p := recover(); p != nil {
			resp, err = nil, grpcError(a.panicked(info.FullMethod, p))
		}
	}()
	resp, err = handle(ctx, req)
	if err != nil {
		return nil, grpcError(err)
	}
	return resp, nil
}

// interceptStream does the same for streams.
func (a *Agent) interceptStream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = grpcError(a.panicked(info.FullMethod, p))
		}
	}()
	if err, ok := stream.Context().Value(refusedKey{}).(error); ok {
		return err
	}
	if err := handle(service, &impatientStream{ServerStream: stream, agent: a}); err != nil {
		return grpcError(err)
	}
	return nil
}

// An impatientStream ends the connection of a client that does not read what it is sent.
type impatientStream struct {
	grpc.ServerStream
	agent   *Agent
	timeout timeout // of the message that is being sent
}

func (s *impatientStream) SendMsg(m any) error {
	s.agent.sending.begin(&s.timeout, s.agent.sendTimeout, s)
	defer s.agent.sending.end(&s.timeout)
	return s.ServerStream.SendMsg(m)
}

func (s *impatientStream) expire() { secure.CloseConnection(s.Context()) }

// sent counts an answer by gRPC until the client's connection has taken it, or refuses it and
// releases it. grpc keeps an answer for as long as the connection is open, even if its call has
// ended; so one that is not taken in time ends the connection.
func (a *Agent) sent(ctx context.Context, resp *oip.Response) error {
	r := receiptOf(ctx)
	if r == nil {
		r = &receipt{Context: ctx, agent: a}
	}
	r.charge = *oip.NewCharge(ctx, &a.answers)
	if err := r.charge.AtLeast(answerBytes(resp)); err != nil {
		resp.Release()
		return err
	}
	s := (*unsent)(r)
	a.sending.begin(&s.timeout, a.sendTimeout, s)
	resp.AlsoOnRelease(s)
	return nil
}

// panicked logs a panic of a handler and returns the error that the client gets.
func (a *Agent) panicked(where string, p any) error {
	a.log.Error("handler panicked", "handler", where, "panic", p, "stack", string(debug.Stack()))
	return fmt.Errorf("%w in %s", errPanic, where)
}
