package gossip

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

// How memberlist is set: that a member failed is known after about five seconds;
// what must be noticed sooner, the agents' streams show.
const (
	probeInterval = 500 * time.Millisecond
	probeTimeout  = 250 * time.Millisecond
	// A suspected member has 2 s (times the logarithm of the cluster's size) to
	// say that it lives, three times that unless two others suspect it as well.
	suspicionMult    = 4
	suspicionMaxMult = 3

	gossipInterval = 100 * time.Millisecond
	gossipNodes    = 3
	// Whole states are exchanged with one random member this often, less often
	// beyond 32 members (20 s at 50): it makes good what gossip lost.
	pushPullInterval = 10 * time.Second
	// streamTimeout bounds each exchange over TCP, and so what a seed that takes
	// connections but does not answer costs.
	streamTimeout = 5 * time.Second
	// leaveDelay lets word of an agent's leaving go round before memberlist's.
	leaveDelay = 3 * gossipInterval
	// packetSize fits the payload of a packet into every usual MTU.
	packetSize = 1400
)

// A Gossip is one agent's part in gossip. It owns three goroutines, which join,
// hand out events and pass on what arrives, besides those of memberlist. All
// methods may be called concurrently, but not from [Config].Accept.
type Gossip struct {
	config    Config
	advertise netip.AddrPort
	faults    *faultLog
	list      *memberlist.Memberlist
	queue     queue
	transport *transport
	keyring   *memberlist.Keyring // nil without encryption

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	leave  context.CancelFunc // ends joining
	wg     sync.WaitGroup
	ready  chan struct{}
	rejoin chan struct{} // of size 1: join need not wait longer
	events chan Event    // unbuffered: what waits is in pending
	wake   chan struct{} // tells deliver that something waits
	count  atomic.Int64  // len(members)
	stats  counters

	keyMu sync.Mutex // serializes changes of the keyring

	endMu sync.Mutex // serializes Leave and Close
	left  bool
	ended bool

	mu        sync.Mutex // never held while calling memberlist
	meta      []byte
	members   map[string]*entry
	ids       map[memberID]*entry
	failed    map[string]failure
	strangers int                       // members that nobody has vouched for
	gone      []departed                // strangers that went within strangerMemory
	vouched   map[string]netip.AddrPort // vouched for, but not members yet: to be joined
	pending   map[eventKey]Event
	order     []eventKey // of pending; may name events that are no longer there
	refused   int        // Refused events in pending
	own       Load
	nextLoad  []byte
	loadTimer *time.Timer // will send nextLoad; nil if none waits
	stopped   bool        // no more loads
}

// NewName is a name for an agent on host, another one for each call: a host
// that restarts is another member.
func NewName(host string) string {
	var boot [4]byte
	rand.Read(boot[:])
	return host + "-" + hex.EncodeToString(boot[:])
}

// Open listens and begins to join; it does not wait for the seeds, see
// [Gossip.Ready]. The context bounds only the look-up of the advertised host.
// The first line logged has the advertised address. The caller must Close it.
func Open(ctx context.Context, config Config) (*Gossip, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("gossip: %w", err)
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	if config.Resolve == nil {
		config.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	config.Meta, config.Seeds = slices.Clone(config.Meta), slices.Clone(config.Seeds)

	g := &Gossip{
		config:  config,
		faults:  newFaultLog(config.Logger),
		ready:   make(chan struct{}),
		rejoin:  make(chan struct{}, 1),
		events:  make(chan Event),
		wake:    make(chan struct{}, 1),
		meta:    config.Meta,
		members: map[string]*entry{},
		ids:     map[memberID]*entry{},
		failed:  map[string]failure{},
		vouched: map[string]netip.AddrPort{},
		pending: map[eventKey]Event{},
	}
	g.queue.members = func() int { return int(g.count.Load()) }
	g.queue.newest = map[memberID]*broadcast{}
	if len(config.Keys) > 0 {
		keys := make([][]byte, len(config.Keys))
		for i, key := range config.Keys {
			keys[i] = slices.Clone(key)
		}
		var err error
		if g.keyring, err = memberlist.NewKeyring(keys, keys[0]); err != nil {
			return nil, fmt.Errorf("gossip: keys: %w", err)
		}
	}

	base, bound, err := listen(config)
	if err != nil {
		return nil, err
	}
	if g.advertise, err = advertised(ctx, config, base, bound); err != nil {
		return nil, errors.Join(err, base.Shutdown())
	}
	g.transport = newTransport(base, g.advertise, g.keyring != nil, &g.stats)
	config.Logger.Info("gossip: listening", "member", config.Name, "advertised_addr", g.advertise,
		"addr", bound, "seeds", config.Seeds,
		"encrypted", g.keyring != nil)

	if g.list, err = memberlist.Create(g.memberlistConfig()); err != nil {
		return nil, errors.Join(fmt.Errorf("gossip: %w", err), g.transport.Shutdown())
	}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	joining, leave := context.WithCancel(g.ctx)
	g.leave = leave
	g.wg.Go(g.deliver)
	g.wg.Go(func() { g.join(joining) })
	return g, nil
}

func (g *Gossip) memberlistConfig() *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	c.Name = g.config.Name
	c.Transport = g.transport
	c.BindPort = int(g.advertise.Port())
	c.Keyring = g.keyring
	c.Logger = g.faults.logger()

	c.ProbeInterval, c.ProbeTimeout = probeInterval, probeTimeout
	c.SuspicionMult, c.SuspicionMaxTimeoutMult = suspicionMult, suspicionMaxMult
	c.GossipInterval, c.GossipNodes = gossipInterval, gossipNodes
	c.PushPullInterval = pushPullInterval
	c.TCPTimeout = streamTimeout
	c.UDPBufferSize = packetSize
	// Encrypted numbers hardly get smaller, and each packet would cost 64 KiB of
	// garbage.
	c.EnableCompression = false

	cb := callbacks{g}
	c.Delegate, c.Events, c.Alive, c.Merge, c.Conflict = cb, cb, cb, cb, cb
	return c
}

// Name is this agent's.
func (g *Gossip) Name() string { return g.config.Name }

// Addr is the advertised address.
func (g *Gossip) Addr() netip.AddrPort { return g.advertise }

// Ready is closed once this agent has joined another, or has tried all seeds in
// vain, or has none.
func (g *Gossip) Ready() <-chan struct{} { return g.ready }

// SetMeta changes what this agent says about itself, at most 512 bytes, and
// returns without waiting for the others to hear of it.
func (g *Gossip) SetMeta(meta []byte) error {
	if len(meta) > MaxMeta {
		return fmt.Errorf("gossip: meta has %d bytes, want at most %d", len(meta), MaxMeta)
	}
	g.mu.Lock()
	g.meta = slices.Clone(meta)
	g.mu.Unlock()
	// The message is in memberlist's queue before it begins to wait, which it
	// need not do here: its only error is that the time is over.
	_ = g.list.UpdateNode(time.Nanosecond)
	return nil
}

// Leave tells the others that this agent goes, so that they need not find out,
// and ends joining. It takes about half a second, and gives up after the timeout,
// which must be > 0. The agent should Close soon after: it cannot come back.
func (g *Gossip) Leave(timeout time.Duration) error {
	g.endMu.Lock()
	defer g.endMu.Unlock()
	if g.left || g.ended {
		return nil
	}
	g.left = true
	g.leave()
	deadline := time.Now().Add(timeout)

	// memberlist does not tell those that stay whether a member left or failed,
	// so they hear from us before it says that we are gone: each directly, and
	// what is lost from the others.
	g.mu.Lock()
	g.stopLoads()
	g.own.Seq++
	leaving := frame{kind: leavingFrame, member: idOf(g.config.Name), seq: g.own.Seq}
	g.queue.add(&broadcast{frame: leaving, made: time.Now()})
	g.mu.Unlock()
	if members := g.Members(); len(members) > 1 {
		for _, m := range members {
			if m.Name != g.config.Name {
				// Its only errors are the network's.
				_ = g.list.SendToAddress(memberlist.Address{Addr: m.Addr.String(), Name: m.Name},
					leaving.encode())
			}
		}
		time.Sleep(min(leaveDelay, timeout/2))
	}
	if err := g.list.Leave(max(time.Until(deadline), time.Millisecond)); err != nil {
		return fmt.Errorf("gossip: leave: %w", err)
	}
	return nil
}

// stopLoads ends the sending of loads. g.mu is held.
func (g *Gossip) stopLoads() {
	g.stopped = true
	if g.loadTimer != nil {
		g.loadTimer.Stop()
		g.loadTimer = nil
	}
}

// Close stops at once, without telling the others, and waits for the goroutines
// that the Gossip owns. A probe of memberlist's may go on for some seconds, with
// nothing left to send on. Calls after the first do nothing.
func (g *Gossip) Close() error {
	g.endMu.Lock()
	defer g.endMu.Unlock()
	if g.ended {
		return nil
	}
	g.ended = true
	g.mu.Lock()
	g.stopLoads()
	g.mu.Unlock()
	g.cancel()
	err := g.list.Shutdown()
	g.wg.Wait()
	return err
}

// Stats are numbers of an agent's gossip since Open.
type Stats struct {
	Members int // live, this agent too
	// Health is memberlist's: 0 if this agent can keep the protocol's times, up to
	// 7 the less it can. It then gives others more time before suspecting them.
	Health int

	PacketsSent, PacketsReceived         int64
	PacketBytesSent, PacketBytesReceived int64 // without UDP and IP headers
	StreamBytesSent, StreamBytesReceived int64

	LoadsReceived int64 // loads that were news
	LoadsRepeated int64 // loads that were known already
	Malformed     int64 // messages of ours that could not be read
	Refused       int64 // packets and streams beyond what is read of their sender
}

// counters are what Stats reads.
type counters struct {
	packetsSent, packetsReceived         atomic.Int64
	packetBytesSent, packetBytesReceived atomic.Int64
	streamBytesSent, streamBytesReceived atomic.Int64
	loadsNew, loadsKnown                 atomic.Int64
	malformed, refused                   atomic.Int64
}

// Stats are this agent's numbers now.
func (g *Gossip) Stats() Stats {
	s := &g.stats
	return Stats{
		Members:             int(g.count.Load()),
		Health:              g.list.GetHealthScore(),
		PacketsSent:         s.packetsSent.Load(),
		PacketsReceived:     s.packetsReceived.Load(),
		PacketBytesSent:     s.packetBytesSent.Load(),
		PacketBytesReceived: s.packetBytesReceived.Load(),
		StreamBytesSent:     s.streamBytesSent.Load(),
		StreamBytesReceived: s.streamBytesReceived.Load(),
		LoadsReceived:       s.loadsNew.Load(),
		LoadsRepeated:       s.loadsKnown.Load(),
		Malformed:           s.malformed.Load(),
		Refused:             s.refused.Load(),
	}
}

// listen opens the transport; bound is the address it listens on.
func listen(config Config) (base memberlist.Transport, bound netip.AddrPort, err error) {
	if config.Transport != nil {
		ip, port, err := config.Transport.FinalAdvertiseAddr("", 0)
		addr, _ := netip.AddrFromSlice(ip)
		return config.Transport, netip.AddrPortFrom(addr.Unmap(), uint16(port)), err
	}
	if bound, err = parseBind(config.Bind); err != nil {
		return nil, bound, err
	}
	// The system chooses a port for TCP, and the same one may be taken for UDP.
	for range 10 {
		var s *sockets
		if s, err = listenSockets(bound); err == nil {
			return s, netip.AddrPortFrom(bound.Addr(), s.port()), nil
		}
		if bound.Port() != 0 {
			break
		}
	}
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		err = op.Err
	}
	return nil, bound, fmt.Errorf("gossip: listen on %v: %w", bound, err)
}

// advertised is the address by which others reach an agent that listens on bound.
func advertised(ctx context.Context, config Config, base memberlist.Transport,
	bound netip.AddrPort) (netip.AddrPort, error) {
	if config.Advertise != "" {
		host, port, err := splitHostPort(config.Advertise, 0)
		if err != nil {
			return bound, err
		}
		if port == 0 {
			port = bound.Port()
		}
		addrs, err := lookup(ctx, config, host)
		if err != nil {
			return bound, fmt.Errorf("gossip: advertised host %q: %w", host, err)
		}
		return netip.AddrPortFrom(addrs[0], port), nil
	}
	if !bound.Addr().IsUnspecified() {
		return bound, nil
	}
	addr, err := Outbound()
	if err != nil {
		return bound, fmt.Errorf("gossip: this machine has no address to advertise, name one: %w",
			err)
	}
	return netip.AddrPortFrom(addr, bound.Port()), nil
}

// Outbound is the address from which this machine reaches others: that of the
// default route, or else the first one that is not for this machine alone.
func Outbound() (netip.Addr, error) {
	// Connecting a UDP socket sends nothing, but chooses the route. The address
	// is one of those kept for documentation.
	if conn, err := net.Dial("udp4", "192.0.2.1:9"); err == nil {
		defer conn.Close()
		return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range addrs {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil &&
			prefix.Addr().IsGlobalUnicast() {
			return prefix.Addr().Unmap(), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("only %v", addrs)
}
