package stream

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/queryconn"
)

const (
	// largest is the size of the largest query on the stream, in bytes, and of the largest answer:
	// what HTTP/2 sends at a time. So a large one never holds up small ones for longer than beside
	// them.
	largest = 16 << 10
	// maxMessage bounds a query with its texts and metadata on the stream, in bytes. An agent
	// accepts messages of 64 KiB, and ends the stream with a longer one.
	maxMessage = 48 << 10
	// maxUnsent bounds the bytes on the stream that the connection has not sent. gRPC lets Send
	// return at once up to 64 KiB. So nobody waits for the stream: beyond it, queries are calls.
	maxUnsent = 48 << 10
	// maxWaiting bounds the queries on the stream that have no answer. An agent runs twice as many
	// at a time. Chosen: more than a gateway sends to the lanes of one machine while it has a
	// leader; beyond it queries are calls.
	maxWaiting = 512
	// maxLarge bounds the models that are remembered for their large answers. Chosen: more than a
	// fleet serves, and a name takes some dozen bytes.
	maxLarge = 1 << 10
	// pause is how long after a stream has begun the next one may begin at the earliest; it doubles
	// up to maxPause with each that the agent does not accept. retire is how long a stream without
	// queries stays open. Chosen: a stream that breaks costs its queries another attempt, so one
	// that an agent refuses is tried ever more rarely; an idle one costs some KiB.
	pause, maxPause, retire = 100 * time.Millisecond, time.Minute, time.Minute
)

// A Conn is a connection to an agent. It may be used concurrently.
type Conn struct {
	*grpc.ClientConn
	offered bool
	pool    *connPool       // nil: there are no query connections
	ctx     context.Context // of the streams; ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	open   *open     // nil: there is no stream that takes queries
	opens  bool      // a goroutine opens one, or receives from it
	next   time.Time // when the next one may begin
	pause  time.Duration
	closed bool
}

// Calls returns a Conn on conn, which it owns, to a server that may be no agent, or to a load
// balancer: each call is a call. The caller closes the Conn.
func Calls(conn *grpc.ClientConn) *Conn {
	c := &Conn{ClientConn: conn, pause: pause}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// New returns a Conn on conn, which it owns, to an agent. dial opens a query connection to it; nil:
// there are none. The caller closes the Conn.
func New(conn *grpc.ClientConn, dial func(context.Context) (*queryconn.Client, error)) *Conn {
	c := Calls(conn)
	c.offered = true
	if dial != nil {
		c.pool = &connPool{
			dial: dial, ctx: c.ctx, running: &c.running, all: map[*queryconn.Client]struct{}{},
		}
	}
	return c
}

// Close ends all calls and the connection, and returns when the Conn's goroutine has ended.
func (c *Conn) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	err := c.ClientConn.Close() // first, so that what waits on the stream ends as calls do
	c.cancel()
	if c.pool != nil {
		c.pool.close()
	}
	c.running.Wait()
	return err
}

// Invoke implements [grpc.ClientConnInterface].
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any,
	options ...grpc.CallOption) error {
	q, ok := args.(*oip.Request)
	if ok && c.offered && method == inference.GRPCInferenceService_ModelInfer_FullMethodName &&
		ctx.Err() == nil {
		if trailer, ok := onlyTrailer(options); ok {
			if err, answered := c.inferOver(ctx, q, reply.(*oip.Response), trailer); answered {
				return err
			}
		}
	}
	return c.ClientConn.Invoke(ctx, method, args, reply, options...)
}

// inferOver has a query answered on a query connection or, if it is small, the stream. answered is
// false if it must be a call.
func (c *Conn) inferOver(ctx context.Context, q *oip.Request, reply *oip.Response,
	trailer *metadata.MD) (err error, answered bool) {
	small := q.Bytes() <= largest
	if c.pool != nil {
		if conn := c.pool.takeConn(small); conn != nil {
			if err, answered := c.pool.sendQuery(ctx, conn, q, reply, trailer); answered {
				return err, true
			}
		}
	}
	if small {
		if s := c.currentStream(); s != nil {
			return s.sendQuery(ctx, q, reply, trailer)
		}
	}
	return nil, false
}

// onlyTrailer returns where the call's trailer is wanted, nil for nowhere. ok is false for calls
// with other options, which the stream does not have.
func onlyTrailer(options []grpc.CallOption) (to *metadata.MD, ok bool) {
	for _, o := range options {
		t, isTrailer := o.(grpc.TrailerCallOption)
		if !isTrailer {
			return nil, false
		}
		to = t.TrailerAddr
	}
	return to, true
}

// currentStream returns the stream that takes queries. Without one it returns nil, and begins to
// open one if the connection is there: a call may wait for the connection, a stream may not.
func (c *Conn) currentStream() *open {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil && !c.opens && !c.closed && !time.Now().Before(c.next) &&
		c.GetState() == connectivity.Ready {
		c.opens, c.next = true, time.Now().Add(c.pause)
		c.running.Go(c.run)
	}
	return c.open
}

// run opens a stream, and receives its answers until it ends.
func (c *Conn) run() {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	s := &open{calls: map[uint64]*call{}, large: map[string]bool{}}
	s.spare.New = func() any { return &call{done: make(chan struct{}, 1)} }
	err := s.start(ctx, c.ClientConn)
	if err == nil {
		s.idle = time.AfterFunc(retire, func() { s.retireIdle(c, cancel) })
		c.mu.Lock()
		c.open, c.pause = s, pause
		c.mu.Unlock()
		err = s.receiveAnswers()
		s.idle.Stop()
	} else {
		c.mu.Lock()
		c.pause = min(2*c.pause, maxPause)
		c.next = time.Now().Add(c.pause)
		c.mu.Unlock()
	}
	c.mu.Lock()
	c.open, c.opens = nil, false
	c.mu.Unlock()
	s.endCalls(err)
}

// An open is a stream.
type open struct {
	stream grpc.ClientStream
	idle   *time.Timer
	unsent oip.Outbox
	spare  sync.Pool // of calls, whose channels are then empty

	sending sync.Mutex // held while a message is sent

	mu    sync.Mutex
	calls map[uint64]*call // that wait for their answers
	last  uint64           // the last id
	used  bool             // since the idle timer fired
	large map[string]bool  // models whose answers are too large
	ended bool             // it takes no further queries
}

// A call is a query on a stream.
type call struct {
	reply   *oip.Response
	trailer *metadata.MD
	err     error
	done    chan struct{} // of size 1
}

// start opens the stream. It blocks until the agent has accepted it.
func (s *open) start(ctx context.Context, conn *grpc.ClientConn) (err error) {
	s.stream, err = conn.NewStream(ctx, &control.Control_ServiceDesc.Streams[queriesStream],
		control.Control_Queries_FullMethodName)
	if err != nil {
		return err
	}
	// A stream that is refused has no header. RecvMsg then returns why, and ends it.
	if header, err := s.stream.Header(); err != nil || header == nil {
		return s.stream.RecvMsg(new(oip.StreamedAnswer))
	}
	return nil
}

// queriesStream is the position of Queries among the control service's streams.
var queriesStream = func() int {
	for i, s := range control.Control_ServiceDesc.Streams {
		if s.StreamName == "Queries" {
			return i
		}
	}
	panic("unreachable: control.proto has Queries")
}()

// sendQuery sends a query and waits for its answer, as a call does. sent is false if the stream did
// not take the query, or cannot.
func (s *open) sendQuery(ctx context.Context, q *oip.Request, reply *oip.Response,
	trailer *metadata.MD) (err error, sent bool) {
	m := &oip.StreamedQuery{Query: q, Outbox: &s.unsent}
	if err := addOutgoing(ctx, m); err != nil {
		return err, true
	}
	size := m.Size()
	if !s.unsent.Take(size, maxUnsent) {
		return nil, false
	}
	waits := s.spare.Get().(*call)
	waits.reply, waits.trailer, waits.err = reply, trailer, nil
	s.mu.Lock()
	if s.ended || len(s.calls) >= maxWaiting || s.large[q.Model] {
		s.mu.Unlock()
		s.unsent.Give(size)
		s.spare.Put(waits)
		return nil, false
	}
	s.last++
	m.ID = s.last
	s.calls[m.ID] = waits
	s.used = true
	s.mu.Unlock()

	if !s.send(m) {
		if s.removeCall(m.ID) == nil { // the stream has ended meanwhile
			<-waits.done
		}
		s.spare.Put(waits)
		return nil, false
	}
	select {
	case <-waits.done:
	case <-ctx.Done():
		if s.removeCall(m.ID) != nil { // nobody else has it now
			err = status.FromContextError(ctx.Err()).Err()
			if errors.Is(ctx.Err(), context.Canceled) {
				s.giveUp(m.ID)
			}
			s.spare.Put(waits)
			return err, true
		}
		<-waits.done // its answer has come
	}
	err = waits.err
	s.spare.Put(waits)
	return err, true
}

// giveUp tells the agent that nobody waits for a query. It says nothing if the connection has much
// to send: the query then runs in vain.
func (s *open) giveUp(id uint64) {
	m := &oip.StreamedQuery{ID: id, Cancel: true, Outbox: &s.unsent}
	if s.unsent.Take(m.Size(), maxUnsent) {
		s.send(m)
	}
}

// send sends a message, whose bytes unsent counts. It reports false if it is none for a stream, of
// which either end would end the stream with all its queries: then a call says what is wrong.
func (s *open) send(m *oip.StreamedQuery) bool {
	wire, err := oip.Codec{}.Marshal(m)
	if err != nil {
		s.unsent.Give(m.Size())
		return false
	}
	if wire.Len() > maxMessage {
		wire.Free()
		return false
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	// RecvMsg returns the reason of an error, which ends receive, and so all calls.
	_ = s.stream.SendMsg(oip.Wire(wire))
	return true
}

// removeCall removes the query with the given id from those that wait, and returns it; nil if it
// does not wait.
func (s *open) removeCall(id uint64) *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	waits := s.calls[id]
	delete(s.calls, id)
	return waits
}

// receiveAnswers gives the answers to the calls, until the stream ends, and returns why it ended.
func (s *open) receiveAnswers() error {
	for {
		var a oip.StreamedAnswer
		if err := s.stream.RecvMsg(&a); err != nil {
			return err
		}
		waits := s.removeCall(a.ID)
		if waits == nil { // given up
			if a.Answer != nil {
				a.Answer.Release()
			}
			continue
		}
		if a.Answer != nil && a.Answer.Bytes() > largest {
			s.mu.Lock()
			if len(s.large) < maxLarge {
				s.large[a.Answer.Model] = true
			}
			s.mu.Unlock()
		}
		waits.err = takeResult(&a, waits.reply, waits.trailer)
		waits.done <- struct{}{}
	}
}

// addOutgoing adds the deadline and the outgoing metadata of ctx to a query, or returns the error
// of a call whose deadline has passed.
func addOutgoing(ctx context.Context, m *oip.StreamedQuery) error {
	if deadline, ok := ctx.Deadline(); ok {
		if m.Timeout = time.Until(deadline); m.Timeout <= 0 {
			return status.FromContextError(context.DeadlineExceeded).Err()
		}
	}
	if md, ok := metadata.FromOutgoingContext(ctx); ok {
		for name, values := range md {
			for _, v := range values {
				m.Metadata = append(m.Metadata, name, v)
			}
		}
	}
	return nil
}

// takeResult returns a call's result: it moves the answer to reply, or returns the error.
func takeResult(a *oip.StreamedAnswer, reply *oip.Response, trailer *metadata.MD) error {
	if trailer != nil {
		*trailer = control.StreamedTrailer(a.Remaining, a.HasRemaining, a.Spent, a.Lanes)
	}
	switch {
	case a.Answer != nil:
		*reply = *a.Answer
		return nil
	case a.Error != nil && a.Error.Code != int32(codes.OK):
		return status.FromProto(a.Error).Err()
	}
	return status.Error(codes.Internal, "an answer without answer or error")
}

// endCalls ends all calls that wait with why the stream has ended: that of a broken connection.
func (s *open) endCalls(why error) {
	code, text := codes.Unavailable, "the stream of queries has ended"
	if why != nil && why != io.EOF {
		if text = status.Convert(why).Message(); status.Code(why) == codes.Canceled {
			code = codes.Canceled
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for _, waits := range s.calls {
		waits.err = status.Error(code, text)
		waits.done <- struct{}{}
	}
	clear(s.calls)
}

// retireIdle ends a stream that had no queries since the last look. The agent then may close the
// connection, and neither keeps memory for it.
func (s *open) retireIdle(c *Conn, cancel context.CancelFunc) {
	s.mu.Lock()
	if s.used || len(s.calls) > 0 {
		s.used = false
		s.mu.Unlock()
		s.idle.Reset(retire)
		return
	}
	s.ended = true
	s.mu.Unlock()
	c.mu.Lock()
	if c.open == s {
		c.open = nil
	}
	c.mu.Unlock()
	cancel()
}
