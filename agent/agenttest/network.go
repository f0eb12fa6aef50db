package agenttest

import (
	"context"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/test/bufconn"
)

// hosts are a network of streams in memory, beside that of gossip: connections
// between their owners stall while a partition parts them, and break when one is killed.
type hosts struct {
	mu        sync.Mutex
	listeners map[string]*hostListener
	conns     map[*hostConn]bool
	part      map[string]int
	delays    map[string]time.Duration // of what goes to and from an owner
	killed    map[string]bool
	changed   chan struct{} // closed at the next change of the partition
	OneWay    time.Duration // that what is sent takes
}

func newHosts() *hosts {
	return &hosts{
		listeners: map[string]*hostListener{}, conns: map[*hostConn]bool{},
		delays: map[string]time.Duration{}, killed: map[string]bool{}, changed: make(chan struct{}),
	}
}

func (h *hosts) Partition(part map[string]int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.part = part
	close(h.changed)
	h.changed = make(chan struct{})
}

// Delay has what goes to and from an owner take so much longer.
func (h *hosts) Delay(owner string, delay time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.delays[owner] = delay
}

// reachable says whether two hosts reach each other, how long that takes, and when to look again.
func (h *hosts) reachable(from, to string) (reachable bool, delay time.Duration,
	changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.part[from] == h.part[to], h.delays[from] + h.delays[to], h.changed
}

// kill breaks the connections of an owner, and frees its addresses.
func (h *hosts) kill(owner string) {
	h.mu.Lock()
	h.killed[owner] = true
	for address, l := range h.listeners {
		if l.owner == owner {
			delete(h.listeners, address)
		}
	}
	var broken []*hostConn
	for c := range h.conns {
		if c.from == owner || c.to == owner {
			broken = append(broken, c)
		}
	}
	h.mu.Unlock()
	for _, c := range broken {
		_ = c.Close()
	}
}

func (h *hosts) listen(owner, address string) (net.Listener, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.listeners[address] != nil {
		return nil, fmt.Errorf("listen %s: %w", address, syscall.EADDRINUSE)
	}
	l := &hostListener{hosts: h, owner: owner, address: address, Listener: bufconn.Listen(1 << 16)}
	h.listeners[address] = l
	return l, nil
}

func (h *hosts) Dial(ctx context.Context, from, address string) (net.Conn, error) {
	var l *hostListener
	for {
		h.mu.Lock()
		l = h.listeners[address]
		killed, changed := h.killed[from], h.changed
		reachable := l == nil || h.part[from] == h.part[l.owner]
		h.mu.Unlock()
		if l == nil || killed {
			return nil, fmt.Errorf("dial %s: %w", address, syscall.ECONNREFUSED)
		}
		if reachable {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	conn, err := l.DialContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, syscall.ECONNREFUSED)
	}
	c := &hostConn{Conn: conn, hosts: h, from: from, to: l.owner, closed: make(chan struct{})}
	h.mu.Lock()
	h.conns[c] = true
	h.mu.Unlock()
	return c, nil
}

type hostListener struct {
	hosts          *hosts
	owner, address string
	*bufconn.Listener
}

func (l *hostListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil { // bufconn has an error of its own
		err = net.ErrClosed
	}
	return conn, err
}

func (l *hostListener) Close() error {
	l.hosts.mu.Lock()
	if l.hosts.listeners[l.address] == l {
		delete(l.hosts.listeners, l.address)
	}
	l.hosts.mu.Unlock()
	return l.Listener.Close()
}

func (l *hostListener) Addr() net.Addr { return hostAddr(l.address) }

type hostAddr string

func (hostAddr) Network() string { return "tcp" }

func (a hostAddr) String() string { return string(a) }

// A hostConn is the dialler's end of a connection. Both directions pass through
// it, so a partition stalls both.
type hostConn struct {
	net.Conn
	hosts    *hosts
	from, to string // owners
	once     sync.Once
	closed   chan struct{}
}

// pass waits until the hosts reach each other, and for as long as that takes.
func (c *hostConn) pass() error {
	for {
		ok, delay, changed := c.hosts.reachable(c.from, c.to)
		if ok {
			if delay == 0 {
				return nil
			}
			select {
			case <-time.After(delay):
				return nil
			case <-c.closed:
				return net.ErrClosed
			}
		}
		select {
		case <-changed:
		case <-c.closed:
			return net.ErrClosed
		}
	}
}

func (c *hostConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	time.Sleep(c.hosts.OneWay)
	if e := c.pass(); e != nil {
		return 0, e
	}
	return n, err
}

func (c *hostConn) Write(b []byte) (int, error) {
	if err := c.pass(); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(b)
	if err != nil {
		// The reader must hear of it, too, before time goes on: until it does grpc tries again
		// without end, and in virtual time that is for ever.
		_ = c.Close()
	}
	return n, err
}

func (c *hostConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	c.hosts.mu.Lock()
	delete(c.hosts.conns, c)
	c.hosts.mu.Unlock()
	return c.Conn.Close()
}
