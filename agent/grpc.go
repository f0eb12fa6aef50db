package agent

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
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
	to := boundedServer{server, oip.Bounded(server, func(method string) int64 {
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

// A boundedServer is a server that services are registered at by way of [oip.Bounded].
type boundedServer struct {
	*grpc.Server
	bounded grpc.ServiceRegistrar
}

func (s boundedServer) RegisterService(desc *grpc.ServiceDesc, service any) {
	s.bounded.RegisterService(desc, service)
}

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
	a.metrics.failedWithoutVersion("", err)
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

// A receipt is the arrival of a query by gRPC.
type receipt struct {
	arrival time.Time
	header  metadata.MD // must not be changed
	// tooSlow ends the call unless the query was received before. The end of the call stops
	// it, and has the leader told of an attempt that was cut off, until unlink.
	tooSlow *time.Timer
	unlink  func() bool
}

type receiptKey struct{}

// tap sees a call when its headers have arrived and before its message is read.
// It runs on the connection's goroutine, so it only looks at credentials and
// counters.
func (a *Agent) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	ctx, err := a.guard.Tap(ctx, info)
	if err != nil {
		return ctx, err
	}
	switch {
	case info.FullMethodName == inference.GRPCInferenceService_ModelInfer_FullMethodName:
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

// tapQuery refuses a query where overload costs least, and has one that is let
// in arrive in time.
func (a *Agent) tapQuery(ctx context.Context, header metadata.MD) (context.Context, error) {
	if err := a.intake.full(ctx); err != nil {
		return ctx, a.refuseArrival(err, len(header[control.AttemptHeader]) > 0)
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &receipt{arrival: time.Now(), header: header, tooSlow: time.AfterFunc(a.receiveTimeout, cancel)}
	r.unlink = context.AfterFunc(ctx, func() {
		r.tooSlow.Stop()
		if attempt := header[control.AttemptHeader]; len(attempt) > 0 {
			a.station.cutOff(attempt[0], r.arrival)
		}
	})
	return context.WithValue(ctx, receiptKey{}, r), nil
}

// received says that the query of a call has been read, and returns when it
// began to arrive, and whether the call had not ended before.
func received(ctx context.Context) (arrival time.Time, inTime bool) {
	r, ok := ctx.Value(receiptKey{}).(*receipt)
	if !ok {
		return time.Now(), true
	}
	inTime = r.unlink()
	r.tooSlow.Stop()
	return r.arrival, inTime
}

// headers are those of a call with that name, which must not be changed. Looking for them
// in the receipt copies nothing.
func headers(ctx context.Context, name string) []string {
	if r, ok := ctx.Value(receiptKey{}).(*receipt); ok {
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
	if err := handle(service, &impatientStream{stream, a.sendTimeout}); err != nil {
		return grpcError(err)
	}
	return nil
}

// An impatientStream ends the connection of a client that does not read what it is sent.
type impatientStream struct {
	grpc.ServerStream
	timeout time.Duration
}

func (s *impatientStream) SendMsg(m any) error {
	tooSlow := time.AfterFunc(s.timeout, func() { secure.CloseConnection(s.Context()) })
	defer tooSlow.Stop()
	return s.ServerStream.SendMsg(m)
}

// answered counts an answer by gRPC until the client's connection has taken it, or refuses it and
// releases it. grpc keeps an answer for as long as the connection is open, even if its call has
// ended; so one that is not taken in time ends the connection.
func (a *Agent) answered(ctx context.Context, resp *oip.Response) error {
	charge := oip.NewCharge(ctx, &a.answers)
	if err := charge.AtLeast(answerBytes(resp)); err != nil {
		resp.Release()
		return err
	}
	gaveBack := sync.OnceFunc(func() { charge.Only(0) })
	tooSlow := time.AfterFunc(a.sendTimeout, func() {
		secure.CloseConnection(ctx)
		gaveBack() // grpc forgets an answer whose connection has ended, without a word
	})
	resp.AlsoOnRelease(func() {
		tooSlow.Stop()
		gaveBack()
	})
	return nil
}

// panicked logs a panic of a handler and returns the error that the client gets.
func (a *Agent) panicked(where string, p any) error {
	a.log.Error("handler panicked", "handler", where, "panic", p, "stack", string(debug.Stack()))
	return fmt.Errorf("%w in %s", errPanic, where)
}
