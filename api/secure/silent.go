package secure

import (
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"

	"google.golang.org/grpc/mem"

	"github.com/muster-serve/muster/api/direct"
)

// ConnState is for an HTTP server's field ConnState. It registers the server's silent connections
// for [Guard.HangUp].
func (g *Guard) ConnState(conn net.Conn, state http.ConnState) {
	if state == http.StateNew {
		g.silent.addConnection(conn)
	} else {
		g.silent.removeConnection(conn)
	}
}

// HangUp closes the connections that have sent nothing yet, and from then on each new one. A server
// must call it before it stops, because it would wait for them.
func (g *Guard) HangUp() { g.silent.close() }

// silent holds the connections that have sent nothing yet after their handshake.
type silent struct {
	mu     sync.Mutex
	conns  map[net.Conn]bool
	closed bool
}

func (s *silent) addConnection(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = conn.Close() // nobody is there to hear of an error
		return
	}
	if s.conns == nil {
		s.conns = map[net.Conn]bool{}
	}
	s.conns[conn] = true
}

func (s *silent) removeConnection(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
}

func (s *silent) close() {
	s.mu.Lock()
	s.closed = true
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close()
	}
}

// A newcomer is a connection to a gRPC server, registered as silent until its first byte.
type newcomer struct {
	net.Conn
	raw   net.Conn // its key in silent
	guard *Guard
	begun bool   // Read is called by one goroutine at a time
	first []byte // what preface has read, for Read
}

// readPreface reads as many bytes as p has and reports whether they are p. If not, Read returns
// them again.
func (c *newcomer) readPreface(p string) (is bool, err error) {
	b := make([]byte, len(p))
	if _, err := io.ReadFull(c, b); err != nil {
		return false, err
	}
	if string(b) == p {
		return true, nil
	}
	c.first = b
	return false, nil
}

func (c *newcomer) Read(b []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(b, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	n, err := c.Conn.Read(b)
	if !c.begun && n > 0 {
		c.begun = true
		c.guard.silent.removeConnection(c.raw)
	}
	return n, err
}

// SyscallConn implements [syscall.Conn].
func (c *newcomer) SyscallConn() (syscall.RawConn, error) { return syscallConn(c.raw) }

func (c *newcomer) Close() error {
	c.guard.silent.removeConnection(c.raw)
	return c.Conn.Close()
}

// A plainNewcomer is a newcomer without TLS.
type plainNewcomer struct{ *newcomer }

// ReadOnReady implements [direct.Reader], for gRPC. gRPC has called Read before, for the first
// bytes of the connection, which say all that the Guard wants to know.
func (c plainNewcomer) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	return direct.ReadOnReady(c.raw, size, pool)
}
