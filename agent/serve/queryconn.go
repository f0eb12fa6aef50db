package serve

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/direct"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/queryconn"
	"github.com/muster-serve/muster/api/secure"
)

// lookAgain is how often the server looks for query connections whose clients have gone, or which
// have been idle for too long. Chosen: a client that has gone holds memory for a quarter of a
// second, and four looks a second cost nothing.
const lookAgain = 250 * time.Millisecond

// queryConns are the query connections of a server ([queryconn]). Each has a goroutine, which
// serves its queries as ModelInfer calls; one more looks after them while there are any.
type queryConns struct {
	server  *Server
	handler localUnaryMethod // of ModelInfer, with the bounds on its messages
	running sync.WaitGroup

	stopped chan struct{} // closed by stop: connections end when they have no query

	mu    sync.Mutex
	conns map[*queryConn]struct{}
	looks bool // a goroutine looks after the connections
}

// A queryConn is a query connection.
type queryConn struct {
	*queryconn.Server
	conn   net.Conn
	ctx    context.Context // has the client's address and credentials
	cancel context.CancelFunc

	// client is that of the last query, "" if it has no name; unfollow ends the watch over its
	// rights, nil: none. They are the connection's goroutine's.
	client   string
	unfollow func()
	lost     atomic.Bool // the client may not query any more: the connection ends with its query
}

// followRights has the connection end when the client of its last query, which the guard has let in
// as the call of ctx, may not query any more.
func (q *queryConn) followRights(guard *secure.Guard, ctx context.Context, method string) {
	client := guard.Client(ctx)
	if client == q.client {
		return
	}
	if q.unfollow != nil {
		q.unfollow()
	}
	q.client, q.unfollow = client, guard.Follow(ctx, method, q.endAfterQuery)
}

// endAfterQuery ends the connection, if it has a query after that.
func (q *queryConn) endAfterQuery() {
	q.lost.Store(true)
	if phase, _ := q.Phase(); phase == queryconn.Idle {
		_ = q.conn.Close() // its goroutine ends
	}
}

// RegisterService implements [grpc.ServiceRegistrar]: it takes the handler of ModelInfer.
func (c *queryConns) RegisterService(desc *grpc.ServiceDesc, service any) {
	if desc.ServiceName != inference.GRPCInferenceService_ServiceDesc.ServiceName {
		return
	}
	i := slices.IndexFunc(desc.Methods, func(m grpc.MethodDesc) bool {
		return m.MethodName == "ModelInfer"
	})
	c.handler = localUnaryMethod{service, grpc.MethodHandler(desc.Methods[i].Handler)}
}

// serve serves the queries of a connection, and blocks until it has ended. It owns the connection.
func (c *queryConns) serve(conn net.Conn, info credentials.AuthInfo) {
	ctx, cancel := context.WithCancel(peer.NewContext(context.Background(),
		&peer.Peer{Addr: conn.RemoteAddr(), LocalAddr: conn.LocalAddr(), AuthInfo: info}))
	q := &queryConn{Server: queryconn.NewServer(conn, queryconn.Timeouts{
		Head: connectTimeout, Rest: c.server.config.ReceiveTimeout,
	}), conn: conn, ctx: ctx, cancel: cancel}
	defer func() {
		cancel()
		if q.unfollow != nil {
			q.unfollow()
		}
		_ = conn.Close() // nobody would hear of an error
		q.Release()
	}()
	if !c.addConn(q) {
		return
	}
	defer c.removeConn(q)
	for ctx.Err() == nil && !c.isStopping() && !q.lost.Load() {
		query, err := q.Next()
		if err != nil || c.answerQuery(q, query) != nil {
			return
		}
	}
}

// answerQuery serves a query, and sends its answer. It returns an error if the connection has
// broken.
func (c *queryConns) answerQuery(q *queryConn, query *oip.StreamedQuery) error {
	header := query.Header()
	ctx := metadata.NewIncomingContext(q.ctx, header)
	var cancel context.CancelFunc
	if query.Timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, query.Timeout)
	} else {
		ctx, cancel = context.WithCancel(ctx)
	}
	defer cancel()
	call := &queryCall{
		localTransport: localTransport{
			method: inference.GRPCInferenceService_ModelInfer_FullMethodName,
		},
		Server: q.Server,
	}
	resp, err := c.runQuery(ctx, q, call, header)
	a := &oip.StreamedAnswer{Answer: resp}
	if err != nil {
		a.Error = status.Convert(outcome.GRPC(err)).Proto()
	}
	a.Remaining, a.HasRemaining = control.RemainingOf(call.trailer)
	a.Spent, a.Lanes = control.SpentBytes(call.trailer)
	if load := call.trailer[loadTrailer]; len(load) == 1 {
		a.Load = load[0]
	}
	return q.Answer(a)
}

// A queryCall is a query of a query connection in place of gRPC's stream: it has the methods with
// which package oip reads the query.
type queryCall struct {
	localTransport
	*queryconn.Server
}

// runQuery does what gRPC's server does with a ModelInfer call.
func (c *queryConns) runQuery(ctx context.Context, q *queryConn, call *queryCall,
	header metadata.MD) (*oip.Response, error) {
	ctx, err := c.server.tapCall(ctx, &tap.Info{FullMethodName: call.method, Header: header})
	if err != nil {
		return nil, err
	}
	q.followRights(c.server.config.Guard, ctx, call.method)
	call.Begin(ctx)
	resp, err := c.handler.handle(c.handler.service,
		grpc.NewContextWithServerTransportStream(ctx, call), nil, c.interceptQuery)
	if err != nil {
		return nil, err
	}
	return resp.(*oip.Response), nil
}

func (c *queryConns) interceptQuery(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handle grpc.UnaryHandler) (any, error) {
	return c.server.interceptUnary(ctx, req, info, func(ctx context.Context, req any) (any, error) {
		return c.server.config.Guard.Unary(ctx, req, info, handle)
	})
}

// addConn adds a connection, and reports false if the server stops.
func (c *queryConns) addConn(q *queryConn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isStopping() {
		return false
	}
	if c.conns[q] = struct{}{}; !c.looks {
		c.looks = true
		c.running.Go(c.checkConns)
	}
	c.running.Add(1)
	return true
}

func (c *queryConns) removeConn(q *queryConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.conns, q)
	c.running.Done()
}

// isStopping reports whether stop was called.
func (c *queryConns) isStopping() bool {
	select {
	case <-c.stopped:
		return true
	default:
		return false
	}
}

// checkConns cancels the queries whose clients have gone, and closes connections that have had no
// query for idleTimeout. It returns when there are no connections, or the server stops.
func (c *queryConns) checkConns() {
	ticker := time.NewTicker(lookAgain)
	defer ticker.Stop()
	for {
		select {
		case <-c.stopped:
			return
		case now := <-ticker.C:
			if !c.lookOnce(now) {
				return
			}
		}
	}
}

// lookOnce reports whether there are any connections.
func (c *queryConns) lookOnce(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for q := range c.conns {
		switch phase, since := q.Phase(); {
		case phase == queryconn.Answering && now.Sub(since) > lookAgain && q.hasEnded():
			q.cancel()
		case (phase == queryconn.Idle || phase == queryconn.Sending) &&
			(now.Sub(since) > idleTimeout || q.lost.Load()):
			_ = q.conn.Close() // its goroutine ends
		}
	}
	c.looks = len(c.conns) > 0
	return c.looks
}

// hasEnded reports whether the client has closed the connection.
func (q *queryConn) hasEnded() bool {
	conn, ok := q.conn.(syscall.Conn)
	return ok && direct.Ended(conn)
}

// stop closes the connections that have no query now, and each other one when its query is
// answered. It blocks until then; when ctx ends, it ends the queries.
func (c *queryConns) stop(ctx context.Context) {
	c.mu.Lock()
	close(c.stopped) // with the lock, so that no connection enters afterwards
	for q := range c.conns {
		if phase, _ := q.Phase(); phase == queryconn.Idle {
			_ = q.conn.Close()
		}
	}
	c.mu.Unlock()
	defer context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for q := range c.conns {
			q.cancel()
			_ = q.conn.Close()
		}
	})()
	c.running.Wait()
}
