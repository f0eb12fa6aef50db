package serve

import (
	"context"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/agent/picker"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
)

// A Local is this agent's gRPC connection to itself, without sockets. With it, the code of leader,
// worker and gateway is the same for this agent as for another. Messages are copied, except the
// tensors of queries and answers. It may be used concurrently once the services are registered.
type Local struct {
	unary   map[string]localUnaryMethod
	streams map[string]localStreamMethod
	// intercept is the server's interceptor, which gives errors their codes.
	intercept grpc.UnaryServerInterceptor
	// server answers InferAlone.
	server *Server
	// closing is a context whose end ends all streams.
	closing context.Context
	running sync.WaitGroup // handlers of streams
}

type localUnaryMethod struct {
	service any
	handle  grpc.MethodHandler
}

type localStreamMethod struct {
	service any
	handle  grpc.StreamHandler
}

// NewLocal returns an agent's connection to itself. It serves calls once [New] has registered the
// services. The end of closing ends all its streams.
func NewLocal(closing context.Context) *Local {
	return &Local{
		unary: map[string]localUnaryMethod{}, streams: map[string]localStreamMethod{},
		closing: closing,
	}
}

// Close blocks until the handlers of all streams have returned. The context closing must have
// ended.
func (c *Local) Close() { c.running.Wait() }

// RegisterService implements [grpc.ServiceRegistrar].
func (c *Local) RegisterService(desc *grpc.ServiceDesc, service any) {
	for _, m := range desc.Methods {
		c.unary["/"+desc.ServiceName+"/"+m.MethodName] = localUnaryMethod{
			service, grpc.MethodHandler(m.Handler),
		}
	}
	for _, s := range desc.Streams {
		c.streams["/"+desc.ServiceName+"/"+s.StreamName] = localStreamMethod{service, s.Handler}
	}
}

type localKey struct{}

// isLocal reports whether a call came through a Local, from this agent itself.
func isLocal(ctx context.Context) bool { return ctx.Value(localKey{}) != nil }

// localContext returns the context for a handler: the caller's, with the caller's outgoing headers
// as incoming ones.
func localContext(ctx context.Context) context.Context {
	headers, _ := metadata.FromOutgoingContext(ctx)
	ctx = metadata.NewIncomingContext(ctx, headers)
	ctx = context.WithValue(ctx, receiptKey{}, nil) // hide the receipt of the client's call
	return context.WithValue(metadata.NewOutgoingContext(ctx, nil), localKey{}, true)
}

// Invoke implements [grpc.ClientConnInterface]. It runs the handler on the caller's goroutine. It
// ignores all options but [grpc.Trailer] and [grpc.Header].
func (c *Local) Invoke(ctx context.Context, method string, args, reply any,
	options ...grpc.CallOption) error {
	m, ok := c.unary[method]
	if !ok {
		return status.Errorf(codes.Unimplemented, "unknown method %s", method)
	}
	transport := &localTransport{method: method}
	answer, err := m.handle(m.service,
		grpc.NewContextWithServerTransportStream(localContext(ctx), transport),
		func(request any) error { return copyMessage(request, args) }, c.intercept)
	for _, option := range options {
		switch o := option.(type) {
		case grpc.TrailerCallOption:
			*o.TrailerAddr = transport.trailer
		case grpc.HeaderCallOption:
			*o.HeaderAddr = transport.header
		}
	}
	if err != nil {
		return err
	}
	return copyMessage(reply, answer)
}

// InferAlone implements [client.Own]. Nothing is copied.
func (c *Local) InferAlone(ctx context.Context, req *oip.Request, id control.Attempt,
	arrival time.Time, canary int64) (*oip.Response, error) {
	if picker.IsPick(ctx) {
		return nil, picker.ErrAlone
	}
	return c.server.inferLocally(ctx, req, id, arrival, canary)
}

// copyMessage copies the message from into to. Copies of queries and answers share the tensors.
func copyMessage(to, from any) error {
	switch to := to.(type) {
	case *oip.Request:
		// the sender may release its copy before the handler is done
		*to = *from.(*oip.Request).Share()
	case *oip.Response:
		*to = *from.(*oip.Response)
	case proto.Message:
		proto.Reset(to)
		proto.Merge(to, from.(proto.Message))
	default:
		return status.Errorf(codes.Internal, "message of type %T", to)
	}
	return nil
}

// A localTransport keeps the headers and trailers that a handler sets.
type localTransport struct {
	method string

	mu              sync.Mutex
	header, trailer metadata.MD
}

func (t *localTransport) Method() string { return t.method }

func (t *localTransport) SetHeader(md metadata.MD) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.header = metadata.Join(t.header, md)
	return nil
}

func (t *localTransport) SendHeader(md metadata.MD) error { return t.SetHeader(md) }

func (t *localTransport) SetTrailer(md metadata.MD) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trailer = metadata.Join(t.trailer, md)
	return nil
}

// localBuffer is how many unread messages a stream holds in each direction before SendMsg blocks;
// it replaces a connection's flow control. Chosen: more messages than either side sends while the
// other is not scheduled; they are pointers, so a full buffer takes 2 KiB.
const localBuffer = 256

// NewStream implements [grpc.ClientConnInterface].
func (c *Local) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string,
	_ ...grpc.CallOption) (grpc.ClientStream, error) {
	m, ok := c.streams[method]
	if !ok {
		return nil, status.Errorf(codes.Unimplemented, "unknown method %s", method)
	}
	if c.closing.Err() != nil {
		return nil, status.Error(codes.Unavailable, "the agent stops")
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &localStream{
		ctx: ctx, toServer: make(chan proto.Message, localBuffer),
		toClient: make(chan proto.Message, localBuffer),
		sent:     make(chan struct{}), ended: make(chan struct{}),
	}
	stop := context.AfterFunc(c.closing, cancel)
	transport := &localTransport{method: method}
	server := &localServerStream{
		s, grpc.NewContextWithServerTransportStream(localContext(ctx), transport), transport,
	}
	c.running.Go(func() {
		defer stop()
		defer cancel()
		s.err = outcome.GRPC(m.handle(m.service, server))
		close(s.ended)
	})
	return s, nil
}

// A localStream is the client's end of a stream in process.
type localStream struct {
	ctx       context.Context
	toServer  chan proto.Message
	toClient  chan proto.Message
	closeOnce sync.Once
	sent      chan struct{} // closed by CloseSend
	ended     chan struct{} // closed when the handler has returned; err is set then
	err       error
}

func (s *localStream) Header() (metadata.MD, error) { return nil, nil }
func (s *localStream) Trailer() metadata.MD         { return nil }
func (s *localStream) Context() context.Context     { return s.ctx }

func (s *localStream) CloseSend() error {
	s.closeOnce.Do(func() { close(s.sent) })
	return nil
}

func (s *localStream) SendMsg(m any) error {
	select {
	case <-s.ended:
		return io.EOF // as with gRPC, RecvMsg returns the reason
	default:
	}
	select {
	case s.toServer <- proto.Clone(m.(proto.Message)):
		return nil
	case <-s.ended:
		return io.EOF
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err()
	}
}

func (s *localStream) RecvMsg(m any) error {
	select {
	case message := <-s.toClient:
		return copyMessage(m, message)
	default:
	}
	select {
	case message := <-s.toClient:
		return copyMessage(m, message)
	case <-s.ended:
	}
	select { // first the messages sent before the end
	case message := <-s.toClient:
		return copyMessage(m, message)
	default:
	}
	if s.err == nil {
		return io.EOF
	}
	return s.err
}

// A localServerStream is the handler's end of a stream in process.
type localServerStream struct {
	*localStream
	ctx       context.Context
	transport *localTransport
}

func (s *localServerStream) Context() context.Context        { return s.ctx }
func (s *localServerStream) SetHeader(md metadata.MD) error  { return s.transport.SetHeader(md) }
func (s *localServerStream) SendHeader(md metadata.MD) error { return s.transport.SetHeader(md) }
func (s *localServerStream) SetTrailer(md metadata.MD)       { _ = s.transport.SetTrailer(md) }

func (s *localServerStream) SendMsg(m any) error {
	select {
	case s.toClient <- proto.Clone(m.(proto.Message)):
		return nil
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err()
	}
}

func (s *localServerStream) RecvMsg(m any) error {
	select {
	case message := <-s.toServer:
		return copyMessage(m, message)
	default:
	}
	select {
	case message := <-s.toServer:
		return copyMessage(m, message)
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err()
	case <-s.sent:
	}
	select { // first the messages sent before CloseSend
	case message := <-s.toServer:
		return copyMessage(m, message)
	default:
		return io.EOF
	}
}
