package serve

import (
	"context"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/secure"
)

const (
	// ReceiveTimeout is how long a client may take to send a query. It
	// keeps those who never finish from holding on to memory.
	ReceiveTimeout = 30 * time.Second
	// SendTimeout is how long a client may take to read an answer. One that takes longer
	// loses its connection.
	SendTimeout = 30 * time.Second
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

// newGRPCServer serves the protocol, the agents' own calls, health checks and reflection. How large
// a query may be follows from the models as they are when it comes.
func (s *Server) newGRPCServer() *grpc.Server {
	options := append(oip.ServerOptions(math.MaxInt32), // what each method takes is bounded below
		grpc.InTapHandle(s.tap),
		grpc.ChainUnaryInterceptor(s.interceptUnary),
		grpc.ChainStreamInterceptor(s.interceptStream),
		grpc.ConnectionTimeout(connectTimeout),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.MaxConcurrentStreams(streamsPerConnection),
		grpc.MaxHeaderListSize(largestHeader),
		// What a connection holds that says nothing. Frames that are larger are read past it.
		grpc.ReadBufferSize(readBuffer),
		// A client that vanished is noticed within two minutes and a half; one
		// may ask for life signs every ten seconds.
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: 2 * time.Minute, Timeout: 20 * time.Second, MaxConnectionIdle: idleTimeout,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime: 10 * time.Second, PermitWithoutStream: true,
		}),
	)
	server := grpc.NewServer(append(options, s.config.Guard.ServerOptions()...)...)
	to := boundedServer{server, s, oip.Bounded(server, func(method string) int64 {
		switch method {
		case inference.GRPCInferenceService_ModelInfer_FullMethodName:
			return s.largest.Load()
		case control.Control_Link_FullMethodName: // of agents, and profiles are larger
			return leastLimit
		}
		return largestMessage
	}, arrivals{s})}
	s.register(to)
	healthpb.RegisterHealthServer(to, s.config.Health.server)
	reflection.Register(to)
	return server
}

// A boundedServer is a server that services are registered at by way of [oip.Bounded]. Calls end
// first with the error that their tap has left them (streams in interceptStream), and it hears of
// queries that are not received.
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

// untilEnd has the receipt of a query end with its call.
func (s *Server) untilEnd(handle grpc.MethodHandler) grpc.MethodHandler {
	return func(service any, ctx context.Context, decode func(any) error,
		interceptor grpc.UnaryServerInterceptor) (any, error) {
		if r := receiptOf(ctx); r != nil {
			defer r.end()
		}
		return handle(service, ctx, decode, interceptor)
	}
}

type refusedKey struct{}

// tap is admit. grpc never ends the context of a call that a tap refuses, and one with a deadline
// has a timer, which holds on to it until then, be it a thousand years. So where that is not soon
// the call is let in, to be refused before its message is read.
func (s *Server) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	admitted, err := s.admit(ctx, info)
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
type arrivals struct{ *Server }

// Take implements [oip.Intake].
func (s arrivals) Take(ctx context.Context, n, had int64) error {
	if err := s.intake.Take(ctx, n, had); err != nil {
		return s.refuseArrival(err, isAttempt(ctx))
	}
	return nil
}

// Give implements [oip.Intake].
func (s arrivals) Give(ctx context.Context, n int64) { s.intake.Give(ctx, n) }

// refuseArrival is the error of a query that is refused before it is read.
func (s *Server) refuseArrival(err error, attempt bool) error {
	if attempt {
		return outcome.GRPC(fmt.Errorf("%w: %w", outcome.ErrRefused, err))
	}
	s.config.Worker.Failed("", err)
	return outcome.GRPC(err)
}

// register has the agent's own services answer the calls that come by to.
func (s *Server) register(to grpc.ServiceRegistrar) {
	oip.RegisterServer(to, service{s})
	control.RegisterControlServer(to, controlService{Server: s})
}

// isAttempt reports whether a query is an attempt of a gateway's: to be run
// here, and not to be passed on.
func isAttempt(ctx context.Context) bool {
	return len(headers(ctx, control.AttemptHeader)) > 0
}

// A receipt is what the agent knows of a query by gRPC from its arrival until its answer is sent.
// It is the context of the call, which ends too when the query takes too long to arrive. It is one
// object, as every query needs one.
type receipt struct {
	context.Context
	cancel  context.CancelFunc
	server  *Server
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
	r.server.arriving.end(&r.timeout)
	if attempt := r.header[control.AttemptHeader]; len(attempt) > 0 {
		r.server.config.Worker.CutOff(attempt[0], r.arrival)
	}
}

// An unsent is a receipt from when there is an answer.
type unsent receipt

// Released implements [oip.Released]: the connection has taken the answer.
func (s *unsent) Released() {
	if s.server.sending.end(&s.timeout) {
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
func (s *Server) admit(ctx context.Context, info *tap.Info) (context.Context, error) {
	ctx, err := s.config.Guard.Tap(ctx, info)
	if err != nil {
		return ctx, err
	}
	isQuery := info.FullMethodName == inference.GRPCInferenceService_ModelInfer_FullMethodName
	if isQuery {
		if err := s.fullFor(ctx, len(info.Header[control.AttemptHeader]) > 0); err != nil {
			return ctx, err
		}
	}
	if err := s.config.Guard.Count(ctx, info.FullMethodName); err != nil {
		return ctx, err
	}
	switch {
	case isQuery:
		return s.tapQuery(ctx, info.Header)
	case strings.HasPrefix(info.FullMethodName,
		"/"+inference.GRPCInferenceService_ServiceDesc.ServiceName+"/"):
		return ctx, nil
	}
	// Those who watch the health, or hold a reflection stream, would do so for
	// ever: they must not keep a draining agent from stopping.
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.config.Closing, cancel)
	context.AfterFunc(ctx, func() { stop() })
	return ctx, nil
}

// fullFor refuses a query where overload, and what is beyond its client's limits, costs least.
func (s *Server) fullFor(ctx context.Context, attempt bool) error {
	err := s.intake.full(ctx)
	if err == nil {
		err = s.config.Guard.Query(ctx, wayOf(attempt), 0)
	}
	if err != nil {
		return s.refuseArrival(err, attempt)
	}
	return nil
}

// tapQuery has a query that is let in arrive in time.
func (s *Server) tapQuery(ctx context.Context, header metadata.MD) (context.Context, error) {
	r := &receipt{server: s, arrival: time.Now(), header: header}
	if err := ctx.Err(); err != nil { // then the call is not handled
		r.end()
		return ctx, status.FromContextError(err).Err()
	}
	r.Context, r.cancel = context.WithCancel(ctx)
	s.arriving.begin(&r.timeout, s.config.ReceiveTimeout, r)
	return r, nil
}

// received says that the query of a call has been read, and returns when it
// began to arrive.
func received(ctx context.Context) (arrival time.Time) {
	r := receiptOf(ctx)
	if r == nil {
		return time.Now()
	}
	r.server.arriving.end(&r.timeout)
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
func (s *Server) interceptUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handle grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if p := recover(); p != nil {
			resp, err = nil, outcome.GRPC(s.panicked(info.FullMethod, p))
		}
	}()
	resp, err = handle(ctx, req)
	if err != nil {
		return nil, outcome.GRPC(err)
	}
	return resp, nil
}

// interceptStream does the same for streams.
func (s *Server) interceptStream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handle grpc.StreamHandler) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = outcome.GRPC(s.panicked(info.FullMethod, p))
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

// An impatientStream ends the connection of a client that does not read what it is sent.
type impatientStream struct {
	grpc.ServerStream
	server  *Server
	timeout timeout // of the message that is being sent
}

func (s *impatientStream) SendMsg(m any) error {
	s.server.sending.begin(&s.timeout, s.server.config.SendTimeout, s)
	defer s.server.sending.end(&s.timeout)
	return s.ServerStream.SendMsg(m)
}

func (s *impatientStream) expire() { secure.CloseConnection(s.Context()) }

// sent counts an answer by gRPC until the client's connection has taken it, or refuses it and
// releases it. grpc keeps an answer for as long as the connection is open, even if its call has
// ended; so one that is not taken in time ends the connection.
func (s *Server) sent(ctx context.Context, resp *oip.Response) error {
	r := receiptOf(ctx)
	if r == nil {
		r = &receipt{Context: ctx, server: s}
	}
	r.charge = *oip.NewCharge(ctx, &s.answers)
	if err := r.charge.AtLeast(resp.Bytes()); err != nil {
		resp.Release()
		return err
	}
	u := (*unsent)(r)
	s.sending.begin(&u.timeout, s.config.SendTimeout, u)
	resp.AlsoOnRelease(u)
	return nil
}

// panicked logs a panic of a handler and returns the error that the client gets.
func (s *Server) panicked(where string, p any) error {
	s.config.Log.Error("handler panicked", "handler", where, "panic", p, "stack",
		string(debug.Stack()))
	return fmt.Errorf("%w in %s", outcome.ErrPanic, where)
}
