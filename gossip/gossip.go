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

	"github.com/muster-serve/muster/api/wakeup"
)

// Settings of memberlist, which implements SWIM (Das, Gupta and Motivala, DSN 2002) with Lifeguard
// (Dadgar, Phillips and Currey, 2017). With them, a failed member is detected after about five
// seconds. The agents' own streams detect what must be noticed sooner. Chosen: about twice as fast
// as memberlist's defaults for a local network.
const (
	probeInterval = 500 * time.Millisecond
	probeTimeout  = 250 * time.Millisecond
	// A suspected member has 2 s (times the logarithm of the fleet's size) to answer that it lives;
	// three times as long unless two other members suspect it as well.
	suspicionMult    = 4
	suspicionMaxMult = 3

	gossipInterval = 100 * time.Millisecond
	gossipNodes    = 3
	// An agent exchanges its whole state with one random member this often, less often beyond 32
	// members (20 s at 50). It repairs what lost packets have left out.
	pushPullInterval = 10 * time.Second
	// streamTimeout bounds each exchange over TCP, and so the time that a seed costs that accepts
	// connections but does not answer.
	streamTimeout = 5 * time.Second
	// leaveDelay is how long Leave waits between its own message that the agent leaves and
	// memberlist's: three rounds of gossip, so that the former is there first.
	leaveDelay = 3 * gossipInterval
	// packetSize is the largest payload of a packet, in bytes; it fits every usual MTU.
	packetSize = 1400
)

// A Gossip is one agent's connection to the gossip of its fleet. Besides memberlist's goroutines it
// owns one that joins, one that delivers events, and one or two that read packets and accept
// streams. All methods may be called concurrently, but none may be called from [Config].Accept.
// Only Leave, Close and Unseen block.
type Gossip struct {
	config    Config
	advertise netip.AddrPort
	faults    *faultLog
	list      *memberlist.Memberlist
	queue     queue
	transport *transport
	keyring   *memberlist.Keyring // nil: gossip is not encrypted

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	leave  context.CancelFunc // ends joining
	wg     sync.WaitGroup
	ready  chan struct{}
	rejoin wakeup.Signal    // wakes join
	events chan MemberEvent // unbuffered: pending holds the waiting events
	wake   wakeup.Signal    // pending is not empty
	count  atomic.Int64     // len(members)
	stats  counters

	keyMu  sync.Mutex // serializes changes of the keyring
	metaMu sync.Mutex // serializes SetMeta

	endMu sync.Mutex // serializes Leave and Close
	left  bool
	ended bool

	mu        sync.Mutex // never held while calling memberlist
	meta      []byte
	members   map[string]*entry
	ids       map[memberID]*entry
	failed    map[string]failure
	strangers int              // how many members are strangers
	gone      []departedMember // strangers that have gone within strangerMemory
	// agents that Vouch named and that are to be joined, by name
	vouched   map[string]netip.AddrPort
	pending   map[eventKey]MemberEvent
	order     []eventKey // the order of pending; may hold keys that pending lacks
	refused   int        // how many Refused events pending holds
	own       MemberLoad
	nextLoad  []byte
	loadTimer *time.Timer // will send nextLoad; nil: no load waits
	stopped   bool        // no more loads are sent
}

// NewName returns a name for an agent on host: the host's name and a random suffix, so that a
// restarted agent is another member.
func NewName(host string) string {
	var boot [4]byte
	rand.Read(boot[:])
	return host + "-" + hex.EncodeToString(boot[:])
}

// Open listens, and starts to join the seeds without waiting for them; see [Gossip.Ready]. It
// blocks only for a look-up of the advertised host, which ctx bounds. Its first log line has the
// advertised address. The error says which setting is wrong or which address cannot be opened. The
// caller must call Close.
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
		rejoin:  wakeup.New(),
		events:  make(chan MemberEvent),
		wake:    wakeup.New(),
		meta:    config.Meta,
		members: map[string]*entry{},
		ids:     map[memberID]*entry{},
		failed:  map[string]failure{},
		vouched: map[string]netip.AddrPort{},
		pending: map[eventKey]MemberEvent{},
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
	if g.advertise, err = advertisedAddress(ctx, config, base, bound); err != nil {
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
	g.wg.Go(g.deliverEvents)
	g.wg.Go(func() { g.joinAgain(joining) })
	return g, nil
}

func (g *Gossip) memberlistConfig() *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	c.Name = g.config.Name
	c.Transport = g.transport
	c.BindPort = int(g.advertise.Port())
	c.Keyring = g.keyring
	c.Logger = g.faults.newLogger()

	c.ProbeInterval, c.ProbeTimeout = probeInterval, probeTimeout
	c.SuspicionMult, c.SuspicionMaxTimeoutMult = suspicionMult, suspicionMaxMult
	c.GossipInterval, c.GossipNodes = gossipInterval, gossipNodes
	c.PushPullInterval = pushPullInterval
	c.TCPTimeout = streamTimeout
	c.UDPBufferSize = packetSize
	// Compression saves little on encrypted or numeric data, and would cost 64 KiB of garbage a
	// packet.
	c.EnableCompression = false

	cb := callbacks{g}
	c.Delegate, c.Events, c.Alive, c.Merge, c.Conflict = cb, cb, cb, cb, cb
	return c
}

// Name returns the name of this agent.
func (g *Gossip) Name() string { return g.config.Name }

// Addr returns the address that this agent advertises.
func (g *Gossip) Addr() netip.AddrPort { return g.advertise }

// Ready returns a channel that is closed once this agent has joined another agent, has tried all
// its seeds in vain, or has none.
func (g *Gossip) Ready() <-chan struct{} { return g.ready }

// SetMeta changes this agent's meta, at most MaxMeta bytes, which it copies. It does not wait for
// other agents to receive it. It fails only for a meta that is too large.
func (g *Gossip) SetMeta(meta []byte) error {
	if len(meta) > MaxMeta {
		return fmt.Errorf("gossip: meta has %d bytes, want at most %d", len(meta), MaxMeta)
	}
	// UpdateNode reads the meta before it numbers its message: of two at the same time, the one
	// with the older meta might get the higher number.
	g.metaMu.Lock()
	defer g.metaMu.Unlock()
	g.mu.Lock()
	g.meta = slices.Clone(meta)
	g.mu.Unlock()
	// UpdateNode queues the message and then waits for it to be sent. There is no need to wait
	// here, and the only possible error is that the time is over.
	_ = g.list.UpdateNode(time.Nanosecond)
	return nil
}

// Leave tells the other agents that this one leaves, so that they need not detect it, and ends
// joining. It blocks for about half a second, and at most timeout, which must be > 0. An agent that
// has left cannot come back; the caller should call Close soon after. Calls after the first do
// nothing.
func (g *Gossip) Leave(timeout time.Duration) error {
	g.endMu.Lock()
	defer g.endMu.Unlock()
	if g.left || g.ended {
		return nil
	}
	g.left = true
	g.leave()
	deadline := time.Now().Add(timeout)

	// memberlist does not tell the remaining members whether a member left or failed. So this agent
	// first sends each member a message of this package's own; the members forward it to those that
	// miss it.
	g.mu.Lock()
	g.stopLoads()
	g.own.Seq++
	leaving := frame{kind: leavingFrame, member: idOf(g.config.Name), seq: g.own.Seq}
	g.queue.add(&broadcast{frame: leaving, made: time.Now()})
	g.mu.Unlock()
	if members := g.Members(); len(members) > 1 {
		for _, m := range members {
			if m.Name != g.config.Name {
				// Errors are those of the network, where packets may be lost anyway.
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

// stopLoads stops the sending of loads. g.mu is held.
func (g *Gossip) stopLoads() {
	g.stopped = true
	if g.loadTimer != nil {
		g.loadTimer.Stop()
		g.loadTimer = nil
	}
}

// Close stops gossip without telling the other agents, and blocks until the goroutines that the
// Gossip owns have ended. A probe of memberlist may run for some seconds more, but cannot send
// anything. Calls after the first do nothing.
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

// Stats are counts of an agent's gossip since Open.
type Stats struct {
	Members int // live members now, this agent included
	// Health is memberlist's health score: 0 if this agent keeps the protocol's time limits, up to
	// 7 the less it does. With a higher score it gives others more time before it suspects them.
	Health int

	PacketsSent, PacketsReceived         int64
	PacketBytesSent, PacketBytesReceived int64 // UDP payload only
	StreamBytesSent, StreamBytesReceived int64

	LoadsReceived int64 // loads that were new to this agent
	LoadsRepeated int64 // loads that this agent knew already
	Malformed     int64 // messages of this package that could not be decoded
	Refused       int64 // packets and streams beyond their sender's limits
}

// counters are the live counts that Stats copies.
type counters struct {
	packetsSent, packetsReceived         atomic.Int64
	packetBytesSent, packetBytesReceived atomic.Int64
	streamBytesSent, streamBytesReceived atomic.Int64
	loadsNew, loadsKnown                 atomic.Int64
	malformed, refused                   atomic.Int64
}

// Stats returns the current counts.
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

// listen opens config's transport. bound is the address that it listens on.
func listen(config Config) (base memberlist.Transport, bound netip.AddrPort, err error) {
	if config.Transport != nil {
		ip, port, err := config.Transport.FinalAdvertiseAddr("", 0)
		addr, _ := netip.AddrFromSlice(ip)
		return config.Transport, netip.AddrPortFrom(addr.Unmap(), uint16(port)), err
	}
	if bound, err = parseBind(config.Bind); err != nil {
		return nil, bound, err
	}
	// With port 0, the system chooses a free port for TCP; the same port may be in use for UDP, so
	// try again.
	for range 10 {
		var s *sockets
		if s, err = listenSockets(bound); err == nil {
			return s, netip.AddrPortFrom(bound.Addr(), s.tcpPort()), nil
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

// advertisedAddress returns the address that other agents use to reach an agent that listens on
// bound.
func advertisedAddress(ctx context.Context, config Config, base memberlist.Transport,
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
		if err := checkReachable(addrs[0]); err != nil {
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

// Outbound returns the address from which this machine reaches others: that of the default route,
// or else the first one that other machines can reach. It sends nothing and does not block.
func Outbound() (netip.Addr, error) {
	// Connecting a UDP socket chooses a route without sending anything. The address is one reserved
	// for documentation.
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
