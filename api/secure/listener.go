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
)

const (
	// handshakeTimeout is how long a client may take to prove itself.
	handshakeTimeout = 10 * time.Second
	// mostWaiting bounds the connections whose handshake is going on. One more
	// ends the one that has taken longest, so that those who say nothing
	// cannot keep out those who do.
	mostWaiting = 1024
)

// A protocol is what is spoken over TLS, as ALPN names it.
type protocol string

const (
	http1 protocol = "http/1.1"
	http2 protocol = "h2"
)

// tlsConfigs are the configurations that follow from an identity. They are kept
// as long as it is, since the tickets that resume sessions are theirs.
type tlsConfigs struct {
	of    *identity
	http1 *tls.Config
	http2 *tls.Config
}

// serverConfig is how to take a connection now.
func (g *Guard) serverConfig(p protocol) *tls.Config {
	id := g.identity.get()
	g.tlsMu.Lock()
	defer g.tlsMu.Unlock()
	if g.tls.of != id {
		g.tls = tlsConfigs{
			of: id, http1: id.server(http1, g.config.RequireClientCert),
			http2: id.server(http2, g.config.RequireClientCert),
		}
	}
	if p == http1 {
		return g.tls.http1
	}
	return g.tls.http2
}

// cipherSuites are those of TLS 1.2 that Go offers by default, but for the ones with CBC, whose
// padding has been attacked again and again. TLS 1.3 has its own, none of them with CBC.
var cipherSuites = []uint16{
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
	tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

// server is how to take connections for p.
func (id *identity) server(p protocol, requireClient bool) *tls.Config {
	c := &tls.Config{
		Certificates: []tls.Certificate{*id.cert},
		ClientCAs:    id.clients,
		MinVersion:   tls.VersionTLS12,
		CipherSuites: cipherSuites,
		NextProtos:   []string{string(p)},
		// Of clients without a certificate there are no chains.
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

// errEvicted is why a handshake failed that took longest of too many.
var errEvicted = errors.New("too many connections say nothing")

// handshake makes a connection of TLS out of raw, or returns why it cannot be,
// counted and logged. It does not close raw.
func (g *Guard) handshake(raw net.Conn, p protocol) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	leave := g.waiting.enter(raw)
	taking := &turnConn{Conn: raw, turns: g.turns, ctx: ctx, holder: holderOf(raw.RemoteAddr())}
	conn := tls.Server(taking, g.serverConfig(p))
	err := conn.HandshakeContext(ctx)
	taking.finish()
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

// handshakeReason is the kind of an error of a handshake; "" is one that says
// nothing of anybody's intent, as when a load balancer looks whether the port
// is open.
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
	// crypto/tls has no type for it
	case strings.Contains(err.Error(), "didn't provide a certificate"):
		return "no certificate"
	case strings.HasPrefix(err.Error(), "remote error"):
		return "the peer broke off the handshake"
	}
	return "handshake failed"
}

// waiting are the connections whose handshake goes on, the oldest first.
type waiting struct {
	limit int

	mu    sync.Mutex
	conns list.List // of *waiter
}

type waiter struct {
	conn    net.Conn
	evicted bool
}

// enter adds conn, and closes the oldest if there are too many. leave takes it
// away, and reports whether it had to go before.
func (w *waiting) enter(conn net.Conn) (leave func() (evicted bool)) {
	me := &waiter{conn: conn}
	w.mu.Lock()
	defer w.mu.Unlock()
	element := w.conns.PushBack(me)
	if w.conns.Len() > w.limit {
		oldest := w.conns.Front().Value.(*waiter)
		w.conns.Remove(w.conns.Front())
		oldest.evicted = true
		_ = oldest.conn.Close() // its handshake fails of that
	}
	return func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.conns.Remove(element) // does nothing if it is gone
		return me.evicted
	}
}

// Listen takes connections for an HTTP/1.1 server: l's, by TLS if there is a
// certificate. Closing it closes l and ends the goroutines that it started:
// one that accepts, and one a handshake.
func (g *Guard) Listen(l net.Listener) net.Listener {
	if !g.config.TLS() {
		return plainListener{l, g}
	}
	ready := &tlsListener{
		Listener: l, guard: g, accepted: make(chan accepted), closed: make(chan struct{}),
		shaking: map[net.Conn]bool{},
	}
	ready.running.Go(ready.accept)
	return ready
}

type tlsListener struct {
	net.Listener
	guard    *Guard
	accepted chan accepted
	running  sync.WaitGroup

	once    sync.Once
	closed  chan struct{}
	mu      sync.Mutex
	shaking map[net.Conn]bool // connections whose handshake goes on; nil once closed
}

type accepted struct {
	conn net.Conn
	err  error
}

func (l *tlsListener) accept() {
	for {
		raw, err := l.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			if !l.deliver(accepted{err: err}) { // the server waits a little and comes again
				return
			}
			continue
		}
		if !l.begin(raw) {
			_ = raw.Close() // nobody is there to hear of an error
			return
		}
		l.running.Go(func() { l.handshake(raw) })
	}
}

// begin has Close end the handshake of raw; false if it has been called.
func (l *tlsListener) begin(raw net.Conn) bool {
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

func (l *tlsListener) handshake(raw net.Conn) {
	conn, err := l.guard.handshake(raw, http1)
	l.mu.Lock()
	delete(l.shaking, raw)
	l.mu.Unlock()
	if err != nil {
		var record tls.RecordHeaderError
		if errors.As(err, &record) && slices.Contains(beginnings, string(record.RecordHeader[:])) {
			// Whoever it was learns what to do.
			_ = raw.SetWriteDeadline(time.Now().Add(time.Second))
			_, _ = io.WriteString(raw,
				"HTTP/1.0 400 Bad Request\r\nContent-Type: "+
					"application/json\r\n\r\n{\"error\":\"plain HTTP on a port with TLS: use "+
					"https\"}\n")
		}
		_ = raw.Close() // it was of no use
		return
	}
	if !l.deliver(accepted{conn: conn}) {
		_ = conn.Close() // nobody will serve it
	}
}

// deliver reports whether the server has taken a.
func (l *tlsListener) deliver(a accepted) bool {
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
			_ = raw.Close() // its handshake fails of that
		}
		l.shaking = nil
		l.mu.Unlock()
	})
	l.running.Wait()
	return err
}

// A plainListener tells of those who speak TLS where there is none.
type plainListener struct {
	net.Listener
	guard *Guard
}

func (l plainListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.guard.plain(conn), nil
}

// plain is conn, which ends when the first thing that comes is TLS.
func (g *Guard) plain(conn net.Conn) net.Conn { return &plainConn{Conn: conn, guard: g} }

type plainConn struct {
	net.Conn
	guard *Guard
	begun bool // something has been read; Read is called by one goroutine at a time
}

// CloseWrite tells the client that no more will come, as an HTTP server does
// before it ends a connection that the client still writes to.
func (c *plainConn) CloseWrite() error { return closeWrite(c.Conn) }

func closeWrite(conn net.Conn) error {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

var errTLSOnPlain = errors.New("TLS on a port without: want plain text, or an agent with tls-cert")

// handshakeRecord is the first byte of a connection by TLS.
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
