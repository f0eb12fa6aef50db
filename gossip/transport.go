package gossip

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// transport is another transport, counted, and with an end: Shutdown closes the
// connections that are open and gives up those that are being made, so that
// memberlist's goroutines end too.
type transport struct {
	memberlist.Transport // what is under it
	advertise            netip.AddrPort
	stats                *counters
	encrypted            bool
	packets              chan *memberlist.Packet // unbuffered, as memberlist's own
	streams              chan net.Conn

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // passOn

	mu    sync.Mutex
	conns map[*conn]struct{} // nil after Shutdown
	// What others opened of them, and the bytes read of those.
	inbound      int
	inboundBytes int
}

var _ memberlist.NodeAwareTransport = (*transport)(nil)

func newTransport(base memberlist.Transport, advertise netip.AddrPort, encrypted bool, stats *counters) *transport {
	t := &transport{
		Transport: base,
		encrypted: encrypted,
		advertise: advertise,
		stats:     stats,
		packets:   make(chan *memberlist.Packet),
		streams:   make(chan net.Conn),
		conns:     map[*conn]struct{}{},
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.wg.Go(t.passOn)
	return t
}

// passOn counts what arrives, and leaves out what agents do not send, until Shutdown.
func (t *transport) passOn() {
	for {
		select {
		case p := <-t.Transport.PacketCh():
			t.stats.packetsReceived.Add(1)
			t.stats.packetBytesReceived.Add(int64(len(p.Buf)))
			if !t.encrypted && hasCompressed(p.Buf) {
				t.stats.malformed.Add(1)
				continue
			}
			select {
			case t.packets <- p:
			case <-t.ctx.Done():
				return
			}
		case c := <-t.Transport.StreamCh():
			stream, err := t.track(c, true)
			if err != nil {
				continue
			}
			select {
			case t.streams <- stream:
			case <-t.ctx.Done():
				return
			}
		case <-t.ctx.Done():
			return
		}
	}
}

// FinalAdvertiseAddr implements [memberlist.Transport].
func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.advertise.Addr().AsSlice(), int(t.advertise.Port()), nil
}

// PacketCh implements [memberlist.Transport].
func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh implements [memberlist.Transport].
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// WriteTo implements [memberlist.Transport].
func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	t.stats.packetsSent.Add(1)
	t.stats.packetBytesSent.Add(int64(len(b)))
	return t.Transport.WriteTo(b, addr)
}

// WriteToAddress implements [memberlist.NodeAwareTransport].
func (t *transport) WriteToAddress(b []byte, addr memberlist.Address) (time.Time, error) {
	return t.WriteTo(b, addr.Addr)
}

// DialTimeout implements [memberlist.Transport].
func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	var c net.Conn
	var err error
	if _, ok := t.Transport.(*memberlist.NetTransport); ok {
		// As it does, but given up at Shutdown.
		c, err = (&net.Dialer{Timeout: timeout}).DialContext(t.ctx, "tcp", addr)
	} else {
		c, err = t.Transport.DialTimeout(addr, timeout)
	}
	if err != nil {
		return nil, err
	}
	return t.track(c, false)
}

// DialAddressTimeout implements [memberlist.NodeAwareTransport].
func (t *transport) DialAddressTimeout(addr memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return t.DialTimeout(addr.Addr, timeout)
}

// Shutdown implements [memberlist.Transport]. memberlist is still reading.
func (t *transport) Shutdown() error {
	err := t.Transport.Shutdown()
	t.cancel()
	t.wg.Wait()
	t.mu.Lock()
	conns := t.conns
	t.conns = nil
	t.mu.Unlock()
	for c := range conns {
		c.Conn.Close()
	}
	return err
}

// track counts and remembers a connection, which it closes after Shutdown, or at once if it is one
// too many of those that others opened.
func (t *transport) track(c net.Conn, inbound bool) (net.Conn, error) {
	tracked := &conn{Conn: c, transport: t, inbound: inbound}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conns == nil || inbound && t.inbound == maxStreams {
		c.Close()
		return nil, net.ErrClosed
	}
	if inbound {
		t.inbound++
	}
	t.conns[tracked] = struct{}{}
	return tracked, nil
}

// conn is a connection of a transport.
type conn struct {
	net.Conn
	transport *transport
	inbound   bool
	read      int // guarded by transport.mu
}

// Read implements [net.Conn].
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.transport.stats.streamBytesReceived.Add(int64(n))
	if c.inbound && n > 0 {
		if err := c.take(b[:n]); err != nil {
			return 0, err
		}
	}
	return n, err
}

// take counts what was read of a connection that another opened, and says why it should not go on.
func (c *conn) take(b []byte) error {
	t := c.transport
	t.mu.Lock()
	defer t.mu.Unlock()
	first := c.read == 0
	c.read += len(b)
	t.inboundBytes += len(b)
	switch {
	case t.inboundBytes > maxStreamBytes:
		return errIntake
	case first && !t.encrypted:
		return checkStream(b)
	}
	return nil
}

// Write implements [net.Conn].
func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.transport.stats.streamBytesSent.Add(int64(n))
	return n, err
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	t := c.transport
	t.mu.Lock()
	if _, open := t.conns[c]; open && c.inbound {
		t.inbound--
		t.inboundBytes -= c.read
		c.read = 0
	}
	delete(t.conns, c)
	t.mu.Unlock()
	return c.Conn.Close()
}
