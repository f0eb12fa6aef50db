package gossip

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/time/rate"
)

// sockets are UDP and TCP on one port. Its transport reads them, unlike memberlist's own, which has
// 64 KiB of garbage for each packet, whoever sends it.
type sockets struct {
	udp   *net.UDPConn
	tcp   *net.TCPListener
	open  context.Context // ends with Shutdown
	close context.CancelFunc
}

// receiveBuffer is how much may wait of packets, in bytes, as far as the system allows it.
const receiveBuffer = 2 << 20

// listenSockets listens on the address; port 0 is one that the system chooses.
func listenSockets(addr netip.AddrPort) (*sockets, error) {
	var c net.ListenConfig
	c.KeepAlive = -1 // streams are short
	l, err := c.Listen(context.Background(), "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	s := &sockets{tcp: l.(*net.TCPListener)}
	s.udp, err = net.ListenUDP("udp",
		net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr.Addr(), s.port())))
	if err != nil {
		_ = l.Close() // nobody knows of it
		return nil, err
	}
	s.open, s.close = context.WithCancel(context.Background())
	_ = s.udp.SetReadBuffer(receiveBuffer) // packets may be lost as it is
	return s, nil
}

func (s *sockets) port() uint16 { return s.tcp.Addr().(*net.TCPAddr).AddrPort().Port() }

var _ memberlist.Transport = (*sockets)(nil)

func (s *sockets) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	addr := s.tcp.Addr().(*net.TCPAddr)
	return addr.IP, addr.Port, nil
}

func (s *sockets) PacketCh() <-chan *memberlist.Packet { return nil }
func (s *sockets) StreamCh() <-chan net.Conn           { return nil }

func (s *sockets) WriteTo(b []byte, addr string) (time.Time, error) {
	to, err := netip.ParseAddrPort(addr)
	if err == nil {
		_, err = s.udp.WriteToUDPAddrPort(b, netip.AddrPortFrom(to.Addr().Unmap(), to.Port()))
	}
	return time.Now(), err
}

func (s *sockets) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return (&net.Dialer{Timeout: timeout}).DialContext(s.open, "tcp", addr)
}

func (s *sockets) Shutdown() error {
	s.close()
	return errors.Join(s.udp.Close(), s.tcp.Close())
}

// transport is another transport, counted and with bounds on what is read of whom, and with an end:
// Shutdown closes the connections that are open and gives up those that are being made, so that
// memberlist's goroutines end too.
type transport struct {
	memberlist.Transport // what is under it
	advertise            netip.AddrPort
	stats                *counters
	encrypted            bool
	packets              chan *memberlist.Packet // unbuffered, as memberlist's own
	streams              chan net.Conn
	intake               *intake

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // passOn, or readPackets and accept

	mu    sync.Mutex
	conns map[*conn]struct{} // nil after Shutdown
	// What strangers opened of them, and what members did.
	strangers, members opened
}

// opened are streams that others opened.
type opened struct {
	streams int
	by      map[netip.Addr]int // of each address, how many
	bytes   int                // read of them
}

var _ memberlist.NodeAwareTransport = (*transport)(nil)

func newTransport(base memberlist.Transport, advertise netip.AddrPort, encrypted bool,
	stats *counters) *transport {
	t := &transport{
		Transport: base,
		encrypted: encrypted,
		advertise: advertise,
		stats:     stats,
		packets:   make(chan *memberlist.Packet),
		streams:   make(chan net.Conn),
		intake:    newIntake(),
		conns:     map[*conn]struct{}{},
		strangers: opened{by: map[netip.Addr]int{}},
		members:   opened{by: map[netip.Addr]int{}},
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	if s, ok := base.(*sockets); ok {
		t.wg.Go(func() { t.readPackets(s.udp) })
		t.wg.Go(func() { t.accept(s.tcp) })
	} else {
		t.wg.Go(t.passOn)
	}
	return t
}

// readPackets reads packets until Shutdown.
func (t *transport) readPackets(c *net.UDPConn) {
	buffer := make([]byte, maxPacket+1)
	limit := rate.NewLimiter(readRate, readBurst)
	for t.ctx.Err() == nil {
		n, from, err := c.ReadFromUDPAddrPort(buffer)
		if err != nil || !limit.Allow() {
			t.pause(readPause)
		}
		if from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port()); err == nil &&
			t.wants(buffer[:n], from) {
			t.passPacket(&memberlist.Packet{
				Buf: slices.Clone(buffer[:n]), From: net.UDPAddrFromAddrPort(from),
				Timestamp: time.Now(),
			})
		}
	}
}

// accept takes streams until Shutdown.
func (t *transport) accept(l *net.TCPListener) {
	limit := rate.NewLimiter(acceptRate, acceptBurst)
	for t.ctx.Err() == nil {
		c, err := l.Accept()
		if err == nil {
			t.passStream(c)
		}
		if err != nil || !limit.Allow() {
			t.pause(readPause)
		}
	}
}

// pause waits for so long, less if Shutdown comes.
func (t *transport) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-t.ctx.Done():
	}
}

// passOn takes what comes of the transport under this one until Shutdown.
func (t *transport) passOn() {
	for {
		select {
		case p := <-t.Transport.PacketCh():
			if t.wants(p.Buf, p.From.(*net.UDPAddr).AddrPort()) {
				t.passPacket(p)
			}
		case c := <-t.Transport.StreamCh():
			t.passStream(c)
		case <-t.ctx.Done():
			return
		}
	}
}

// wants counts a packet, and reports whether memberlist gets it.
func (t *transport) wants(b []byte, from netip.AddrPort) bool {
	t.stats.packetsReceived.Add(1)
	t.stats.packetBytesReceived.Add(int64(len(b)))
	if !t.intake.packet(from) {
		t.stats.refused.Add(1)
		return false
	}
	if len(b) == 0 || len(b) > maxPacket || !t.encrypted && isForeign(b) {
		t.stats.malformed.Add(1)
		return false
	}
	return true
}

func (t *transport) passPacket(p *memberlist.Packet) {
	select {
	case t.packets <- p:
	case <-t.ctx.Done():
	}
}

func (t *transport) passStream(c net.Conn) {
	stream, err := t.track(c, true)
	if err != nil {
		return
	}
	select {
	case t.streams <- stream:
	case <-t.ctx.Done():
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
	c, err := t.Transport.DialTimeout(addr, timeout)
	if err != nil {
		return nil, err
	}
	return t.track(c, false)
}

// DialAddressTimeout implements [memberlist.NodeAwareTransport].
func (t *transport) DialAddressTimeout(addr memberlist.Address, timeout time.Duration) (net.Conn,
	error) {
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
	tracked := &conn{Conn: c, transport: t}
	if inbound {
		from, _ := netip.ParseAddrPort(c.RemoteAddr().String()) // both kinds of transport have such
		tracked.from, tracked.opened = from.Addr().Unmap(), &t.strangers
		if t.intake.isMember(tracked.from) {
			tracked.opened = &t.members
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conns == nil || inbound && !t.mayOpen(tracked) {
		c.Close()
		return nil, net.ErrClosed
	}
	if inbound {
		tracked.opened.streams++
		tracked.opened.by[tracked.from]++
	}
	t.conns[tracked] = struct{}{}
	return tracked, nil
}

// mayOpen reports whether there is room for a stream that another opened. t.mu is held.
func (t *transport) mayOpen(c *conn) bool {
	o := c.opened
	if o.streams < maxStreams && o.by[c.from] < maxHostStreams && (o == &t.members ||
		t.intake.strangers.streams.Allow()) {
		return true
	}
	t.stats.refused.Add(1)
	return false
}

// streamOpen reports whether the host has opened a stream that is still open.
func (t *transport) streamOpen(host netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.strangers.by[host] > 0 || t.members.by[host] > 0
}

// conn is a connection of a transport.
type conn struct {
	net.Conn
	transport *transport
	opened    *opened // that it is one of; nil of one that this agent opened
	from      netip.Addr
	read      int // guarded by transport.mu
}

// Read implements [net.Conn].
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.transport.stats.streamBytesReceived.Add(int64(n))
	if c.opened != nil && n > 0 {
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
	c.opened.bytes += len(b)
	switch {
	case c.opened.bytes > maxStreamBytes:
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
	if _, open := t.conns[c]; open && c.opened != nil {
		c.opened.streams--
		c.opened.bytes -= c.read
		c.read = 0
		if c.opened.by[c.from]--; c.opened.by[c.from] == 0 {
			delete(c.opened.by, c.from)
		}
	}
	delete(t.conns, c)
	t.mu.Unlock()
	return c.Conn.Close()
}
