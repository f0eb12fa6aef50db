package serve

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/muster-serve/muster/api/wakeup"
)

const (
	// maxIdle is how long proxies keep a connection that they do not use: nginx and AWS's load
	// balancers for 60 s. A client that has not used one for longer has closed it, or forgotten it.
	maxIdle = time.Minute
	// quietTime is how long no query must have come by HTTP before a draining agent of a fleet
	// closes its port. A proxy that opens a connection for each query does so until its health
	// check fails: after 2 s with HAProxy's defaults and three failures after 6 s; Kubernetes takes
	// a pod out of its services within a second or two.
	quietTime = 5 * time.Second
)

// httpConns knows which connections of the HTTP servers wait for their clients' next query.
//
// A server that closes an idle connection loses the query that the client is sending on it at that
// moment, and proxies do not send a POST again. So a draining agent says "Connection: close" in
// every answer, and leaves an idle connection open until it has carried one more answer or its
// client does not use it any more.
//
// Its methods may be called concurrently.
type httpConns struct {
	// changed receives a value when a connection's state has changed; its capacity is 1.
	changed wakeup.Signal

	mu        sync.Mutex
	conns     map[net.Conn]*httpConn
	lastQuery time.Time // when a query came by HTTP; zero: none has
}

// An httpConn is an open connection. httpConns.mu guards its fields.
type httpConn struct {
	queried   bool      // it has carried a query
	idleSince time.Time // zero while a request is being answered
}

// httpConnKey is the key of the *httpConn in the context of a connection's requests.
type httpConnKey struct{}

func newHTTPConns() *httpConns {
	return &httpConns{changed: wakeup.New(), conns: map[net.Conn]*httpConn{}}
}

// connContext is for an HTTP server's field ConnContext.
func (c *httpConns) connContext(ctx context.Context, conn net.Conn) context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns[conn] = &httpConn{}
	return context.WithValue(ctx, httpConnKey{}, c.conns[conn])
}

// connState is for an HTTP server's field ConnState.
func (c *httpConns) connState(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.conns[conn]
	if known == nil {
		return
	}
	switch state {
	case http.StateActive:
		known.idleSince = time.Time{}
	case http.StateIdle:
		known.idleSince = time.Now()
	case http.StateClosed, http.StateHijacked:
		delete(c.conns, conn)
	}
	c.changed.Send()
}

// noteQuery notes that the request with context ctx is a query, which arrived at the given time.
func (c *httpConns) noteQuery(ctx context.Context, arrival time.Time) {
	conn, _ := ctx.Value(httpConnKey{}).(*httpConn)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastQuery = arrival
	if conn != nil {
		conn.queried = true
	}
}

// expectedConns returns how many connections may carry another query, and until when: the zero time
// if that depends on what is being answered. A query may also come on a new connection until quiet
// after the last one.
func (c *httpConns) expectedConns(now time.Time, quiet time.Duration) (conns int, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if end := c.lastQuery.Add(quiet); end.After(now) {
		until = end
	}
	for _, conn := range c.conns {
		end := conn.idleSince.Add(maxIdle)
		switch {
		case !conn.queried:
		case conn.idleSince.IsZero():
			conns++
		case end.After(now):
			conns++
			if end.After(until) {
				until = end
			}
		}
	}
	return conns, until
}

// AwaitClients blocks until the clients that send queries by HTTP have been told that this agent
// drains, and are expected to send no more, or until ctx ends. It returns how many connections may
// carry another query all the same. In a fleet it also waits until no query has come for quietTime:
// the agent can still have another one answer it. waiting is called once if there is something to
// wait for, with the number of connections. The agent must be draining.
func (s *Server) AwaitClients(ctx context.Context, waiting func(conns int)) (left int) {
	for first := true; ; first = false {
		quiet := quietTime
		if s.Alone() {
			quiet = 0 // it could only refuse a query, and a closed port says the same
		}
		now := time.Now()
		conns, until := s.conns.expectedConns(now, quiet)
		if conns == 0 && until.IsZero() || ctx.Err() != nil {
			return conns
		}
		if first {
			waiting(conns)
		}
		var due <-chan time.Time // nil: blocks
		var timer *time.Timer
		if !until.IsZero() {
			timer = time.NewTimer(until.Sub(now))
			due = timer.C
		}
		select {
		case <-s.conns.changed:
		case <-due:
		case <-ctx.Done():
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

// A closingWriter adds "Connection: close" to an answer that begins while the agent drains.
// net/http then closes the connection after the answer, and the client does not use it again. Its
// method [http.Server.SetKeepAlivesEnabled] would do that too, and close the idle connections at
// once.
type closingWriter struct {
	http.ResponseWriter
	draining func() bool
	begun    bool
}

// beginAnswer is to be called before the answer's header is written, and may be called again.
func (w *closingWriter) beginAnswer() {
	if !w.begun && w.draining() {
		w.Header().Set("Connection", "close")
	}
	w.begun = true
}

func (w *closingWriter) WriteHeader(status int) {
	w.beginAnswer()
	w.ResponseWriter.WriteHeader(status)
}

func (w *closingWriter) Write(b []byte) (int, error) {
	w.beginAnswer()
	return w.ResponseWriter.Write(b)
}

// Unwrap is for [http.ResponseController].
func (w *closingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
