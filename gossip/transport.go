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

// sockets are a UDP and a TCP socket on one port. transport reads them itself, because memberlist's
// own transport allocates 64 KiB for each packet of any sender.
type sockets struct {
	udp   *net.UDPConn
	tcp   *net.TCPListener
	open  context.Context // ends at Shutdown
	close context.CancelFunc
}

// receiveBuffer is the size of the UDP receive buffer, in bytes, as far as the system allows it.
const receiveBuffer = 2 << 20

// listenSockets listens on the address; with port 0 the system chooses the port.
func listenSockets(addr netip.AddrPort) (*sockets, error) {
	var c net.ListenConfig
	c.KeepAlive = -1 // streams are short
	l, err := c.Listen(context.Background(), "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	s := &sockets{tcp: l.(*net.TCPListener)}
	s.udp, err = net.ListenUDP("udp",
		net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr.Addr(), s.tcpPort())))
	if err != nil {
		_ = l.Close() // it was never used
		return nil, err
	}
	s.open, s.close = context.WithCancel(context.Background())
	_ = s.udp.SetReadBuffer(receiveBuffer) // a smaller buffer only loses more packets
	return s, nil
}

func (s *sockets) tcpPort() uint16 { return s.tcp.Addr().(*net.TCPAddr).AddrPort().Port() }

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

// transport wraps another transport. It counts traffic and applies the limits of intake. Its
// Shutdown closes the open connections and cancels those being dialled, so that memberlist's
// goroutines end too.
type transport struct {
	memberlist.Transport // the wrapped transport
	advertise            netip.AddrPort
	stats                *counters
	encrypted            bool
	packets              chan *memberlist.Packet // unbuffered, as memberlist's own
	streams              chan net.Conn
	intake               *intakeLimits

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // the goroutines of passOn, or of readPackets and accept

	mu    sync.Mutex
	conns map[*conn]struct{} // nil after Shutdown
	// the streams of strangers, and those of vouched members
	strangers, members openedStreams
}

// openedStreams counts streams that other hosts have opened.
type openedStreams struct {
	streams int
	by      map[netip.Addr]int // how many streams of each address
	bytes   int                // bytes read from them
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
		intake:    newIntakeLimits(),
		conns:     map[*conn]struct{}{},
		strangers: openedStreams{by: map[netip.Addr]int{}},
		members:   openedStreams{by: map[netip.Addr]int{}},
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	if s, ok := base.(*sockets); ok {
		t.wg.Go(func() { t.readPackets(s.udp) })
		t.wg.Go(func() { t.acceptStreams(s.tcp) })
	} else {
		t.wg.Go(t.passOn)
	}
	return t
}

// readPackets reads UDP packets, and passes those within the limits to memberlist, until Shutdown.
func (t *transport) readPackets(c *net.UDPConn) {
	buffer := make([]byte, maxPacket+1)
	limit := rate.NewLimiter(readRate, readBurst)
	for t.ctx.Err() == nil {
		n, from, err := c.ReadFromUDPAddrPort(buffer)
		if err != nil || !limit.Allow() {
			t.pauseFor(readPause)
		}
		if from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port()); err == nil &&
			t.wantsPacket(buffer[:n], from) {
			t.passPacket(&memberlist.Packet{
				Buf: slices.Clone(buffer[:n]), From: net.UDPAddrFromAddrPort(from),
				Timestamp: time.Now(),
			})
		}
	}
}

// acceptStreams accepts TCP streams, and passes them to memberlist, until Shutdown.
func (t *transport) acceptStreams(l *net.TCPListener) {
	limit := rate.NewLimiter(acceptRate, acceptBurst)
	for t.ctx.Err() == nil {
		c, err := l.Accept()
		if err == nil {
			t.passStream(c)
		}
		if err != nil || !limit.Allow() {
			t.pauseFor(readPause)
		}
	}
}

// pauseFor waits for d, or until Shutdown.
func (t *transport) pauseFor(d time.Duration) {
	select {
	case <-time.After(d):
	case <-t.ctx.Done():
	}
}

// passOn passes the packets and streams of the wrapped transport to memberlist, until Shutdown.
func (t *transport) passOn() {
	for {
		select {
		case p := <-t.Transport.PacketCh():
			if t.wantsPacket(p.Buf, p.From.(*net.UDPAddr).AddrPort()) {
				t.passPacket(p)
			}
		case c := <-t.Transport.StreamCh():
			t.passStream(c)
		case <-t.ctx.Done():
			return
		}
	}
}

// wantsPacket counts a packet, and reports whether it is within the limits and may come from an
// agent.
func (t *transport) wantsPacket(b []byte, from netip.AddrPort) bool {
	t.stats.packetsReceived.Add(1)
	t.stats.packetBytesReceived.Add(int64(len(b)))
	if !t.intake.countPacket(from) {
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

// Shutdown implements [memberlist.Transport]. memberlist still reads from t while it runs.
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

// track registers a connection, so that Shutdown closes it. It closes the connection at once, and
// returns net.ErrClosed, after Shutdown or if another host has opened it and has too many.
func (t *transport) track(c net.Conn, inbound bool) (net.Conn, error) {
	tracked := &conn{Conn: c, transport: t}
	if inbound {
		// both kinds of transport have such addresses
		from, _ := netip.ParseAddrPort(c.RemoteAddr().String())
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

// mayOpen reports whether a stream that another host has opened is within the limits. t.mu is held.
func (t *transport) mayOpen(c *conn) bool {
	o := c.opened
	if o.streams < maxStreams && o.by[c.from] < maxHostStreams && (o == &t.members ||
		t.intake.strangers.streams.Allow()) {
		return true
	}
	t.stats.refused.Add(1)
	return false
}

// streamOpen reports whether a stream that the host has opened is still open.
func (t *transport) streamOpen(host netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.strangers.by[host] > 0 || t.members.by[host] > 0
}

// conn is a registered connection of a transport.
type conn struct {
	net.Conn
	transport *transport
	opened    *openedStreams // the counts that the stream is part of; nil: this agent opened it
	from      netip.Addr
	read      int // guarded by transport.mu
}

// Read implements [net.Conn].
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.transport.stats.streamBytesReceived.Add(int64(n))
	if c.opened != nil && n > 0 {
		if err := c.countRead(b[:n]); err != nil {
			return 0, err
		}
	}
	return n, err
}

// countRead counts bytes read from a connection that another host has opened. It returns why the
// connection must be closed; nil if it need not.
func (c *conn) countRead(b []byte) error {
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
