package secure

import (
	"container/list"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-serve/muster/api/queryconn"
)

const (
	// handshakeTimeout is how long a TLS handshake may take.
	handshakeTimeout = 10 * time.Second
	// maxWaiting bounds the connections in their handshake. One more closes the connection whose
	// handshake has taken longest, so that silent connections cannot keep others out.
	maxWaiting = 1024
)

// A protocol is the protocol over TLS, by its ALPN name.
type protocol string

const (
	http1 protocol = "http/1.1"
	http2 protocol = "h2"
	// http2OrQueries is HTTP/2 or, if the client asks for it, queryconn.Protocol.
	http2OrQueries protocol = "h2 or queries"
)

// alpnNames returns the names in ALPN, the preferred one first.
func (p protocol) alpnNames() []string {
	if p == http2OrQueries {
		return []string{queryconn.Protocol, string(http2)}
	}
	return []string{string(p)}
}

// tlsConfigs are the TLS configurations for an identity. They are kept as long as the identity,
// because they hold the keys of session tickets.
type tlsConfigs struct {
	of *identity
	by map[protocol]*tls.Config
}

// serverConfig returns the TLS configuration for a new connection.
func (g *Guard) serverConfig(p protocol) *tls.Config {
	id := g.identity.get()
	g.tlsMu.Lock()
	defer g.tlsMu.Unlock()
	if g.tls.of != id {
		g.tls = tlsConfigs{of: id, by: map[protocol]*tls.Config{}}
	}
	if g.tls.by[p] == nil {
		g.tls.by[p] = id.serverConfig(p, g.config.RequireClientCert)
	}
	return g.tls.by[p]
}

// cipherSuites are Go's default cipher suites of TLS 1.2 without those with CBC, whose padding has
// been attacked again and again. TLS 1.3 has its own suites, none with CBC.
var cipherSuites = []uint16{
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
	tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

// serverConfig returns the TLS configuration of a server for p.
func (id *identity) serverConfig(p protocol, requireClient bool) *tls.Config {
	c := &tls.Config{
		Certificates: []tls.Certificate{*id.cert},
		ClientCAs:    id.clients,
		MinVersion:   tls.VersionTLS12,
		CipherSuites: cipherSuites,
		NextProtos:   p.alpnNames(),
		// There are no chains for a client without a certificate.
		VerifyConnection: func(state tls.ConnectionState) error {
			return id.revoked.check(state.VerifiedChains)
		},
	}
	switch {
	case requireClient:
		c.ClientAuth = tls.RequireAndVerifyClientCert
	case id.clients != nil:
		c.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return c
}

// errEvicted is the error of a handshake that was ended because it had taken longest and there were
// too many.
var errEvicted = errors.New("too many connections say nothing")

// performHandshake performs the TLS handshake of a server on raw, and blocks until it has ended. It
// counts and logs a failure, and does not close raw.
func (g *Guard) performHandshake(raw net.Conn, p protocol) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	leave := g.waiting.addConn(raw)
	taking := &turnConn{Conn: raw, turns: g.turns, ctx: ctx, holder: holderOf(raw.RemoteAddr())}
	conn := tls.Server(taking, g.serverConfig(p))
	err := conn.HandshakeContext(ctx)
	taking.finishHandshake()
	if evicted := leave(); evicted {
		err = errEvicted
	}
	if err != nil {
		if reason := handshakeReason(err); reason != "" {
			g.observe(ReasonHandshake)
			g.refusals.add(raw.RemoteAddr(), "connection refused", reason, doubtClock(err))
		}
		return nil, err
	}
	return conn, nil
}

// handshakeReason returns the kind of a handshake's error. It is "" for one that is no sign of a
// wrong configuration or an attack, as when a load balancer tests whether the port is open.
func handshakeReason(err error) string {
	var record tls.RecordHeaderError
	var unknown x509.UnknownAuthorityError
	begun, dated := outOfDate(err)
	switch {
	case errors.Is(err, errEvicted), errors.Is(err, os.ErrDeadlineExceeded),
		errors.Is(err, context.DeadlineExceeded):
		return "no handshake in time"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.Is(err, io.ErrClosedPipe):
		return ""
	case errors.As(err, new(*revokedError)):
		return "certificate revoked"
	case errors.As(err, &record):
		return "plain text on a port with TLS"
	case dated && begun:
		return "certificate expired"
	case dated:
		return "certificate not valid yet"
	case errors.As(err, &unknown):
		return "certificate of an unknown CA"
	// crypto/tls has no type for this error
	case strings.Contains(err.Error(), "didn't provide a certificate"):
		return "no certificate"
	case strings.HasPrefix(err.Error(), "remote error"):
		return "the peer broke off the handshake"
	}
	return "handshake failed"
}

// waitingConns holds the connections in their handshake, the oldest first.
type waitingConns struct {
	limit int

	mu    sync.Mutex
	conns list.List // of *waiter
}

type waiter struct {
	conn    net.Conn
	evicted bool
}

// addConn adds conn, and closes the oldest connection if there are too many. leave removes conn,
// and reports whether it had been closed for another.
func (w *waitingConns) addConn(conn net.Conn) (leave func() (evicted bool)) {
	me := &waiter{conn: conn}
	w.mu.Lock()
	defer w.mu.Unlock()
	element := w.conns.PushBack(me)
	if w.conns.Len() > w.limit {
		oldest := w.conns.Front().Value.(*waiter)
		w.conns.Remove(w.conns.Front())
		oldest.evicted = true
		_ = oldest.conn.Close() // makes its handshake fail
	}
	return func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.conns.Remove(element) // does nothing if it was removed before
		return me.evicted
	}
}

// Listen returns a listener for an HTTP/1.1 server: it accepts l's connections, with TLS if there
// is a certificate. Its Close closes l, and ends the goroutines that it started: one that accepts,
// and one for each handshake.
func (g *Guard) Listen(l net.Listener) net.Listener {
	if !g.config.TLS() {
		return plainListener{l, g}
	}
	ready := &tlsListener{
		Listener: l, guard: g, accepted: make(chan acceptedConn), closed: make(chan struct{}),
		shaking: map[net.Conn]bool{},
	}
	ready.running.Go(ready.acceptLoop)
	return ready
}

type tlsListener struct {
	net.Listener
	guard    *Guard
	accepted chan acceptedConn
	running  sync.WaitGroup

	once    sync.Once
	closed  chan struct{}
	mu      sync.Mutex
	shaking map[net.Conn]bool // connections in their handshake; nil once closed
}

type acceptedConn struct {
	conn net.Conn
	err  error
}

func (l *tlsListener) acceptLoop() {
	for {
		raw, err := l.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// the server waits a little and calls Accept again
			if !l.deliverConn(acceptedConn{err: err}) {
				return
			}
			continue
		}
		if !l.beginHandshake(raw) {
			_ = raw.Close() // nobody is there to hear of an error
			return
		}
		l.running.Go(func() { l.performHandshake(raw) })
	}
}

// beginHandshake registers raw, so that Close ends its handshake; it reports false after Close.
func (l *tlsListener) beginHandshake(raw net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shaking == nil {
		return false
	}
	l.shaking[raw] = true
	return true
}

// beginnings are the first five bytes of a plain HTTP request.
var beginnings = []string{"GET /", "HEAD ", "POST ", "PUT /", "OPTIO", "DELET", "PATCH"}

func (l *tlsListener) performHandshake(raw net.Conn) {
	conn, err := l.guard.performHandshake(raw, http1)
	l.mu.Lock()
	delete(l.shaking, raw)
	l.mu.Unlock()
	if err != nil {
		var record tls.RecordHeaderError
		if errors.As(err, &record) && slices.Contains(beginnings, string(record.RecordHeader[:])) {
			// Tell the client to use https.
			_ = raw.SetWriteDeadline(time.Now().Add(time.Second))
			_, _ = io.WriteString(raw,
				"HTTP/1.0 400 Bad Request\r\nContent-Type: "+
					"application/json\r\n\r\n{\"error\":\"plain HTTP on a port with TLS: use "+
					"https\"}\n")
		}
		_ = raw.Close() // it is not used further
		return
	}
	l.guard.provenBy(raw, conn.ConnectionState())
	if !l.deliverConn(acceptedConn{conn: conn}) {
		_ = conn.Close() // no server will accept it
	}
}

// deliverConn passes a to the server's Accept, and reports false if the listener was closed first.
func (l *tlsListener) deliverConn(a acceptedConn) bool {
	select {
	case l.accepted <- a:
		return true
	case <-l.closed:
		return false
	}
}

func (l *tlsListener) Accept() (net.Conn, error) {
	select {
	case a := <-l.accepted:
		return a.conn, a.err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *tlsListener) Close() error {
	err := net.ErrClosed
	l.once.Do(func() {
		close(l.closed)
		err = l.Listener.Close()
		l.mu.Lock()
		for raw := range l.shaking {
			_ = raw.Close() // makes its handshake fail
		}
		l.shaking = nil
		l.mu.Unlock()
	})
	l.running.Wait()
	return err
}

// A plainListener logs clients that use TLS on a server without TLS.
type plainListener struct {
	net.Listener
	guard *Guard
}

func (l plainListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.guard.refuseTLS(conn), nil
}

// refuseTLS returns conn, whose first Read fails if the client sends TLS.
func (g *Guard) refuseTLS(conn net.Conn) net.Conn { return &plainConn{Conn: conn, guard: g} }

type plainConn struct {
	net.Conn
	guard *Guard
	begun bool // something has been read; Read is called by one goroutine at a time
}

// CloseWrite closes the writing side. An HTTP server does so before it closes a connection to which
// the client still writes.
func (c *plainConn) CloseWrite() error { return closeWrite(c.Conn) }

func closeWrite(conn net.Conn) error {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

var errTLSOnPlain = errors.New("TLS on a port without: want plain text, or an agent with tls-cert")

// handshakeRecord is the first byte that a TLS client sends.
const handshakeRecord = 22

func (c *plainConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if !c.begun && n > 0 {
		c.begun = true
		if b[0] == handshakeRecord {
			c.guard.observe(ReasonHandshake)
			c.guard.refusals.add(c.RemoteAddr(), "connection refused", "TLS on a port without",
				errTLSOnPlain)
			return 0, errTLSOnPlain
		}
	}
	return n, err
}
