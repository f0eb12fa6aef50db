package gossiptest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"google.golang.org/grpc/test/bufconn"
)

// Conditions say what a network does to packets. The zero value delivers each packet once and
// without delay. Streams are reliable; only opening one takes Delay.
type Conditions struct {
	Loss      float64       // the share of packets lost, in [0, 1]
	Duplicate float64       // the share of packets delivered twice, in [0, 1]
	Delay     time.Duration // the least one-way delay of each packet
	// the largest random addition to Delay; it lets packets overtake each other
	Jitter time.Duration
}

// Settle is how long memberlist's goroutines may outlive a closed agent: a test in a bubble must
// sleep for it at its end.
const Settle = 10 * time.Second

// queueSize is how many unread packets an address holds; further ones are lost.
const queueSize = 1024

// A Network connects transports. All methods may be called concurrently.
type Network struct {
	mu         sync.Mutex
	rand       *rand.Rand
	conditions Conditions
	transports map[netip.AddrPort]*Transport
	// the part of the network that an address is in; 0 if Partition did not name it
	apart map[netip.AddrPort]int
}

// NewNetwork returns a network without faults. seed determines which packets it loses, delays and
// duplicates, as far as the order of packets does not depend on chance.
func NewNetwork(seed uint64) *Network {
	return &Network{
		rand:       rand.New(rand.NewPCG(seed, 0)),
		transports: map[netip.AddrPort]*Transport{},
	}
}

// SetConditions changes what happens to packets from now on.
func (n *Network) SetConditions(c Conditions) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conditions = c
}

// Partition divides the network so that only addresses of the same part reach each other; all
// addresses not named are one more part. It closes streams between parts. It replaces an earlier
// partition.
func (n *Network) Partition(parts ...[]netip.AddrPort) {
	n.mu.Lock()
	apart := map[netip.AddrPort]int{}
	for i, part := range parts {
		for _, addr := range part {
			apart[addr] = i + 1
		}
	}
	n.apart = apart
	var cut []*stream
	for _, t := range n.transports {
		for s := range t.streams {
			if apart[s.local] != apart[s.remote] {
				cut = append(cut, s)
			}
		}
	}
	n.mu.Unlock()
	for _, s := range cut {
		s.Close()
	}
}

// Heal ends the partition.
func (n *Network) Heal() { n.Partition() }

// Listen opens a transport at addr, as ip:port. It panics if the address is
// malformed or taken.
func (n *Network) Listen(addr string) *Transport {
	t := &Transport{
		network:  n,
		addr:     netip.MustParseAddrPort(addr),
		packets:  make(chan *memberlist.Packet, queueSize),
		accepted: make(chan net.Conn, queueSize),
		done:     make(chan struct{}),
		streams:  map[*stream]struct{}{},
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.transports[t.addr] != nil {
		panic(fmt.Sprintf("gossiptest: address %v is taken", addr))
	}
	n.transports[t.addr] = t
	return t
}

// route returns the transport at to, nil if there is none, and whether from and to are in the same
// part. n.mu is held.
func (n *Network) route(from, to netip.AddrPort) (t *Transport, reachable bool) {
	return n.transports[to], n.apart[from] == n.apart[to]
}

// Transport is one agent's end of the network.
type Transport struct {
	network  *Network
	addr     netip.AddrPort
	packets  chan *memberlist.Packet
	accepted chan net.Conn
	done     chan struct{} // closed by Shutdown, with network.mu held

	streams map[*stream]struct{} // the open streams; guarded by network.mu
}

var _ memberlist.Transport = (*Transport)(nil)

// Addr returns the address that the transport listens on.
func (t *Transport) Addr() netip.AddrPort { return t.addr }

// FinalAdvertiseAddr implements [memberlist.Transport].
func (t *Transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.addr.Addr().AsSlice(), int(t.addr.Port()), nil
}

// PacketCh implements [memberlist.Transport].
func (t *Transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh implements [memberlist.Transport].
func (t *Transport) StreamCh() <-chan net.Conn { return t.accepted }

// WriteTo implements [memberlist.Transport]. Like UDP, it does not tell whether
// the packet arrives.
func (t *Transport) WriteTo(b []byte, addr string) (time.Time, error) {
	now := time.Now()
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return now, err
	}
	n := t.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if t.closed() {
		return now, net.ErrClosed
	}
	c := n.conditions
	copies := 1
	if n.rand.Float64() < c.Duplicate {
		copies = 2
	}
	for range copies {
		if n.rand.Float64() < c.Loss {
			continue
		}
		// Each receiver may decrypt in place.
		b := slices.Clone(b)
		if delay := n.delay(); delay > 0 {
			time.AfterFunc(delay, func() {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.deliver(t.addr, to, b)
			})
		} else {
			n.deliver(t.addr, to, b)
		}
	}
	return now, nil
}

// delay draws the delay of a packet. n.mu is held.
func (n *Network) delay() time.Duration {
	delay := n.conditions.Delay
	if n.conditions.Jitter > 0 {
		delay += time.Duration(n.rand.Int64N(int64(n.conditions.Jitter)))
	}
	return delay
}

// deliver puts a packet into the receiver's queue if the receiver can be reached and its queue has
// room. n.mu is held.
func (n *Network) deliver(from, to netip.AddrPort, b []byte) {
	t, reachable := n.route(from, to)
	if t == nil || !reachable {
		return
	}
	select {
	case t.packets <- &memberlist.Packet{
		Buf: b, From: net.UDPAddrFromAddrPort(from), Timestamp: time.Now(),
	}:
	default:
	}
}

// DialTimeout implements [memberlist.Transport]. It fails at once if nothing listens at addr, and
// only after timeout if addr is in another part of the network.
func (t *Transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	fail := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, fail(err)
	}
	n := t.network
	n.mu.Lock()
	delay := n.delay()
	n.mu.Unlock()
	if delay > 0 {
		if err := t.wait(min(delay, timeout)); err != nil {
			return nil, fail(err)
		}
	}

	n.mu.Lock()
	peer, reachable := n.route(t.addr, to)
	switch {
	case t.closed():
		n.mu.Unlock()
		return nil, fail(net.ErrClosed)
	case !reachable || delay > timeout:
		n.mu.Unlock()
		if err := t.wait(max(0, timeout-delay)); err != nil {
			return nil, fail(err)
		}
		return nil, fail(os.ErrDeadlineExceeded)
	case peer == nil:
		n.mu.Unlock()
		return nil, fail(errors.New("connection refused"))
	}
	defer n.mu.Unlock()
	ours, theirs := pipe()
	near := &stream{Conn: ours, transport: t, local: t.addr, remote: to}
	far := &stream{Conn: theirs, transport: peer, local: to, remote: t.addr}
	select {
	case peer.accepted <- far:
	default:
		return nil, fail(errors.New("connection refused"))
	}
	t.streams[near], peer.streams[far] = struct{}{}, struct{}{}
	return near, nil
}

// wait waits for d, or returns an error at Shutdown.
func (t *Transport) wait(d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-t.done:
		return net.ErrClosed
	}
}

// pipe returns the two ends of an in-memory connection with buffers, so that both sides may write
// at once, as on a real one.
func pipe() (a, b net.Conn) {
	l := bufconn.Listen(1 << 16)
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := l.Accept() // the listener is open until Dial returns
		accepted <- c
	}()
	a, err := l.DialContext(context.Background())
	if err != nil {
		panic(err) // unreachable: nobody else closes the listener
	}
	return a, <-accepted
}

// Shutdown implements [memberlist.Transport]. The address is free again.
func (t *Transport) Shutdown() error {
	n := t.network
	n.mu.Lock()
	if t.closed() {
		n.mu.Unlock()
		return nil
	}
	close(t.done)
	delete(n.transports, t.addr)
	open := slices.Collect(maps.Keys(t.streams))
	n.mu.Unlock()
	for _, s := range open {
		s.Close()
	}
	return nil
}

func (t *Transport) closed() bool {
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

// A stream is one end of a connection, with the addresses of both ends.
type stream struct {
	net.Conn
	transport     *Transport
	local, remote netip.AddrPort
}

// LocalAddr implements [net.Conn].
func (s *stream) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(s.local) }

// RemoteAddr implements [net.Conn].
func (s *stream) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(s.remote) }

// Close implements [net.Conn].
func (s *stream) Close() error {
	s.transport.network.mu.Lock()
	delete(s.transport.streams, s)
	s.transport.network.mu.Unlock()
	return s.Conn.Close()
}
