package secure

import (
	"cmp"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/muster-serve/muster/api/direct"
)

// connections are the open connections of all servers that are of no agent. Those whose client has
// shown who it is (an API key, or a certificate) count for that client, within its share of all;
// the others are strangers', and count for their address. When there is no room for one more, it
// takes the place of the stranger's that has been idle for the longest time: a client that has
// shown who it is never loses its connection to somebody who has not, and somebody new always gets
// in to show it, as long as not all are clients'.
type connections struct {
	quota
	named bool // clients must show who they are: without, strangers are the clients
	known int  // units of clients

	strangers map[*countedConn]struct{}
	clients   map[*countedConn]struct{}
}

// idleEnough is how long a stranger's connection must have been idle before another's takes its
// place where strangers are let in to query. One that waits for the answer to a query has been idle
// for as long. Chosen as the time after which one that has said nothing is closed.
const idleEnough = 10 * time.Second

// addConnection counts a connection. If there is no room, it takes the place of another one, which
// the caller must close; ok is false if there is none.
func (cs *connections) addConnection(c *countedConn) (displaced *countedConn, ok bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if !cs.hasRoom(c.holder, 1) {
		if displaced = cs.idlestStranger(c.holder); displaced == nil {
			return nil, false
		}
		cs.remove(displaced)
	}
	cs.add(c)
	return displaced, true
}

// idlestStranger returns the stranger's connection that is idle for the longest time, of those
// whose place one of holder may take: those of addresses that have more or, if there are none, its
// own. So an address with many cannot close the only one of another. It returns nil if there is
// none. cs.mu is held.
func (cs *connections) idlestStranger(holder string) *countedConn {
	most := time.Now().UnixNano()
	if !cs.named {
		most -= int64(idleEnough)
	}
	var others, own *countedConn
	for c := range cs.strangers {
		found := &others
		if c.holder == holder {
			found = &own
		} else if cs.by[c.holder] <= cs.by[holder] {
			continue
		}
		if last := c.last.Load(); last <= most && (*found == nil || last < (*found).last.Load()) {
			*found = c
		}
	}
	return cmp.Or(others, own)
}

// add counts c as a stranger's. cs.mu is held.
func (cs *connections) add(c *countedConn) {
	if cs.strangers == nil {
		cs.strangers, cs.clients = map[*countedConn]struct{}{}, map[*countedConn]struct{}{}
	}
	cs.strangers[c] = struct{}{}
	cs.grantUnits(c.holder, 1)
}

// remove counts c no more. Calls after the first do nothing. cs.mu is held.
func (cs *connections) remove(c *countedConn) {
	if _, strange := cs.strangers[c]; strange {
		delete(cs.strangers, c)
		cs.release(c.holder, 1)
	} else if _, known := cs.clients[c]; known {
		delete(cs.clients, c)
		cs.release(clientHolder(*c.client.Load()), 1)
		cs.known--
	}
}

// clientHolder is a client as a holder of units.
func clientHolder(name string) string { return "client " + name }

// removeConnection counts c no more.
func (cs *connections) removeConnection(c *countedConn) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.remove(c)
}

// noteName notes that the client of c has shown that it has this name. A client's connections may
// take the share freeShare of the places that no client has yet; further ones stay strangers'.
func (cs *connections) noteName(c *countedConn, name string) {
	if c.hasShown(name) {
		return
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if _, strange := cs.strangers[c]; !strange { // of an agent, closed, or of the first client
		return
	}
	holder := clientHolder(name)
	if cs.limit > 0 && cs.by[holder]+1 > freeShare*(cs.limit-cs.known) {
		return
	}
	cs.remove(c)
	c.client.Store(&name)
	cs.clients[c] = struct{}{}
	cs.grantUnits(holder, 1)
	cs.known++
}

// doubtAll takes all connections for strangers' until their clients show again who they are: what
// showed it may hold no more.
func (cs *connections) doubtAll() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for c := range cs.clients {
		cs.remove(c)
		c.client.Store(nil)
		cs.add(c)
	}
}

// isCrowded reports whether more than half of all units are held, without strangers' where these
// can only wait to be displaced.
func (cs *connections) isCrowded() bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	held := cs.held
	if cs.named {
		held = cs.known
	}
	return cs.limit > 0 && held > cs.limit/2
}

var (
	errTooManyConnections = errors.New("one more than may be open at a time")
	errDisplaced          = errors.New("its client has not shown who it is, and others have come: " +
		"it was idle for the longest time")
)

// Limit returns a listener that closes, counts and logs connections beyond Limits.Connections. A
// connection that proves to be an agent's no longer counts.
func (g *Guard) Limit(l net.Listener) net.Listener { return limitedListener{l, g} }

type limitedListener struct {
	net.Listener
	guard *Guard
}

func (l limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &countedConn{
			Conn: conn, connections: &l.guard.connections, holder: holderOf(conn.RemoteAddr()),
		}
		c.noteActive()
		displaced, ok := l.guard.connections.addConnection(c)
		if displaced != nil {
			l.guard.closeConnection(displaced.Conn, "displaced by another", errDisplaced)
		}
		if ok {
			return c, nil
		}
		l.guard.closeConnection(conn, "too many connections", errTooManyConnections)
	}
}

// closeConnection closes a connection for which there is no room.
func (g *Guard) closeConnection(conn net.Conn, reason string, err error) {
	g.observe(ReasonConnections)
	g.refusals.add(conn.RemoteAddr(), "connection refused", reason, err)
	_ = conn.Close() // no caller would handle an error
}

// A countedConn is a connection that counts until it is closed or proves to be an agent's.
type countedConn struct {
	net.Conn
	connections *connections
	holder      string       // of its address
	last        atomic.Int64 // when it last carried bytes, in nanoseconds since 1970
	// client is the name that its client has shown; nil: none. It is written with connections.mu.
	client atomic.Pointer[string]
}

// noteActive notes that the connection is not idle.
func (c *countedConn) noteActive() { c.last.Store(time.Now().UnixNano()) }

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.noteActive()
	}
	return n, err
}

func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if n > 0 {
		c.noteActive()
	}
	return n, err
}

func (c *countedConn) Close() error {
	err := c.Conn.Close()
	c.connections.removeConnection(c)
	return err
}

// ReadOnReady implements [direct.Reader].
func (c *countedConn) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	buffer, n, err := direct.ReadOnReady(c.Conn, size, pool)
	if n > 0 {
		c.noteActive()
	}
	return buffer, n, err
}

// SyscallConn implements [syscall.Conn].
func (c *countedConn) SyscallConn() (syscall.RawConn, error) { return syscallConn(c.Conn) }

func syscallConn(conn net.Conn) (syscall.RawConn, error) {
	if c, ok := conn.(syscall.Conn); ok {
		return c.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

// CloseWrite closes the writing side; see plainConn.
func (c *countedConn) CloseWrite() error { return closeWrite(c.Conn) }

// hasShown reports whether the connection's client has shown that it has this name.
func (c *countedConn) hasShown(name string) bool {
	if c == nil {
		return false
	}
	client := c.client.Load()
	return client != nil && *client == name
}

// proveName notes that a caller has shown its name on the connection; nil: a connection that does
// not count.
func (c *countedConn) proveName(by caller) {
	if c != nil && by.name != "" && !by.agent {
		c.connections.noteName(c, by.name)
	}
}

// countedOf returns the connection below one of a server that counts; nil: none does.
func countedOf(conn net.Conn) *countedConn {
	for {
		switch c := conn.(type) {
		case *countedConn:
			return c
		case *tls.Conn:
			conn = c.NetConn()
		case *turnConn:
			conn = c.Conn
		case *plainConn:
			conn = c.Conn
		default:
			return nil
		}
	}
}

// provenBy counts a connection no more that has proven to be an agent's, or notes its client's
// name. state is that of its handshake.
func (g *Guard) provenBy(conn net.Conn, state tls.ConnectionState) {
	counted := countedOf(conn)
	if counted == nil {
		return
	}
	switch c, err := g.identity.get().callerOf(state); {
	case err != nil:
	case c.agent:
		counted.connections.removeConnection(counted)
	default:
		counted.proveName(c)
	}
}
