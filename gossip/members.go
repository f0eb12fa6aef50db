package gossip

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/memberlist"
)

// A Member is an agent in gossip, with its description of itself.
type Member struct {
	Name string
	Addr netip.AddrPort // its advertised gossip address
	Meta []byte         // must not be modified
}

// An MemberEvent is a change of this agent's view of the others.
type MemberEvent struct {
	Kind   EventKind
	Member Member     // the member after the change, or before it went
	Load   MemberLoad // the load of a Loaded event
}

// EventKind says what has changed.
type EventKind int

// The kinds of events. A member that has Left announced that it would. One that has Failed was
// silent for some seconds; it comes back under the same name if it was only cut off. One that was
// Refused is not accepted, because there are MaxStrangers strangers; [Gossip.Vouch] makes this
// agent join it.
const (
	Joined EventKind = iota
	Updated
	Left
	Failed
	Loaded
	Refused
)

// String returns the kind's name in lower case.
func (k EventKind) String() string {
	switch k {
	case Joined:
		return "joined"
	case Updated:
		return "updated"
	case Left:
		return "left"
	case Failed:
		return "failed"
	case Loaded:
		return "loaded"
	case Refused:
		return "refused"
	}
	return fmt.Sprintf("EventKind(%d)", int(k))
}

// entry is the state of a live member.
type entry struct {
	Member
	load     MemberLoad // zero At: none yet; Seq also counts leaving frames
	leaving  bool
	stranger bool // Vouch has not been called for it
	reserved bool // it has a place reserved for hosts with an open stream
}

// A departedMember is a stranger that has gone and still keeps its place.
type departedMember struct {
	at       time.Time
	host     netip.Addr
	reserved bool
}

// strangerMemory is how long a stranger that has gone keeps its place: as long as memberlist may
// keep a dead member in memory.
const strangerMemory = time.Minute

// hostReserve is how many reserved places for strangers one host may have. Chosen: as many agents
// as commonly share a machine; others at that host wait for the places that are free to all. The
// sender's address of a packet may be forged, that of a stream may not. So a quarter of the places
// is reserved for members at hosts that have a stream open to this agent, as a joining agent has.
const hostReserve = 4

var errStrangers = errors.New("too many members have not said what they are")

const (
	// maxVouched bounds the vouched agents that wait to be joined.
	maxVouched = 256
	// maxRefused bounds the Refused events that wait for the reader; further ones are dropped.
	maxRefused = 256
)

// Vouch tells gossip that the caller has verified m to be an agent: it is no stranger from then on.
// If gossip has refused m, this agent joins it. Vouch does not block.
func (g *Gossip) Vouch(m Member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.members[m.Name]
	switch {
	case e == nil:
		if _, waits := g.vouched[m.Name]; !waits && len(g.vouched) >= maxVouched {
			// An agent at whose address there is a member may wait for ever. A random one gives
			// way, so that such agents cannot keep the others out.
			for name := range g.vouched {
				delete(g.vouched, name)
				break
			}
		}
		g.vouched[m.Name] = m.Addr
		g.rejoin.Send()
	case e != nil && e.stranger:
		e.stranger, e.reserved = false, false
		g.strangers--
		g.transport.intake.raiseLimits(e.Addr)
	}
}

// isStranger reports whether the agent called name would be a stranger if it became a member now.
// g.mu is held.
func (g *Gossip) isStranger(name string) bool {
	_, failed := g.failed[name]
	_, vouched := g.vouched[name]
	return g.config.MaxStrangers > 0 && name != g.config.Name && !failed && !vouched
}

// admitStranger returns an error, and queues a Refused event, if m is a new stranger and there is
// no place for it.
func (g *Gossip) admitStranger(m Member) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.members[m.Name] != nil || !g.isStranger(m.Name) || !g.isFull() ||
		g.mayReserve(m.Addr.Addr()) {
		return nil
	}
	if g.refused < maxRefused {
		g.enqueueEvent(MemberEvent{Kind: Refused, Member: m})
	}
	return errStrangers
}

// isFull reports whether all places for strangers are taken, except the reserved ones. g.mu is
// held.
func (g *Gossip) isFull() bool {
	g.gone = slices.DeleteFunc(g.gone,
		func(d departedMember) bool { return time.Since(d.at) > strangerMemory })
	return g.strangers+len(g.gone) >= g.config.MaxStrangers-g.config.MaxStrangers/4
}

// mayReserve reports whether a stranger at the host may have a reserved place. g.mu is held.
func (g *Gossip) mayReserve(host netip.Addr) bool {
	if g.strangers+len(g.gone) >= g.config.MaxStrangers || !g.transport.streamOpen(host) {
		return false
	}
	n := 0
	for _, e := range g.members {
		if e.reserved && e.Addr.Addr() == host {
			n++
		}
	}
	for _, d := range g.gone {
		if d.reserved && d.host == host {
			n++
		}
	}
	return n < hostReserve
}

// This agent tries to join failed members again for failedMemory, and remembers at most maxFailed
// of them. Chosen: after an hour a partition is rarely mended by itself, and failedTries of 256
// members are enough to find the other side.
const (
	failedMemory = time.Hour
	maxFailed    = 256
)

// A failure is a failed member, and when it failed.
type failure struct {
	Member
	at time.Time
}

// Members returns the live members, this agent included, sorted by name. A member that has just
// failed is among them until that is certain. The caller owns the slice.
func (g *Gossip) Members() []Member {
	g.mu.Lock()
	defer g.mu.Unlock()
	members := make([]Member, 0, len(g.members))
	for _, e := range g.members {
		members = append(members, e.Member)
	}
	slices.SortFunc(members, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	return members
}

// Lost returns the names of members that failed within the last hour, sorted. They did not announce
// that they leave, so they may come back. It leaves out a member whose address another member has
// now.
func (g *Gossip) Lost() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.forgetFailed()
	return slices.Sorted(maps.Keys(g.failed))
}

// forgetFailed removes members from failed that failed long ago, or whose address another member
// has. g.mu is held.
func (g *Gossip) forgetFailed() {
	taken := map[netip.AddrPort]bool{g.advertise: true}
	for _, e := range g.members {
		taken[e.Addr] = true
	}
	maps.DeleteFunc(g.failed,
		func(_ string, f failure) bool { return time.Since(f.at) > failedMemory || taken[f.Addr] })
}

// Events returns the channel of the changes of the view, in order, except those of this agent
// itself. It is the same channel in all calls, and Close closes it. A newer event of a member
// replaces an unread one, so a slow reader may miss changes; it may read Joined for a member that
// it knows, or Left for one that it does not. Loaded events replace only Loaded events.
func (g *Gossip) Events() <-chan MemberEvent { return g.events }

// Events with the same eventKey replace each other.
type eventKey struct {
	name string
	kind EventKind // Loaded, Refused, or Joined for all others
}

// enqueueEvent queues an event for the reader of Events. g.mu is held.
func (g *Gossip) enqueueEvent(e MemberEvent) {
	if e.Member.Name == g.config.Name {
		return
	}
	key := eventKey{e.Member.Name, Joined}
	if e.Kind == Loaded || e.Kind == Refused {
		key.kind = e.Kind
	}
	if before, ok := g.pending[key]; !ok {
		g.order = append(g.order, key)
		if e.Kind == Refused {
			g.refused++
		}
	} else if before.Kind == Joined && e.Kind == Updated {
		e.Kind = Joined
	}
	g.pending[key] = e
	g.wake.Send()
}

// nextEvent removes and returns the first queued event; it reports false if there is none.
func (g *Gossip) nextEvent() (MemberEvent, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.order) > 0 {
		key := g.order[0]
		g.order = g.order[1:]
		if e, ok := g.pending[key]; ok {
			delete(g.pending, key)
			if e.Kind == Refused {
				g.refused--
			}
			return e, true
		}
	}
	return MemberEvent{}, false
}

// deliverEvents sends queued events to the reader of Events, until g.ctx ends.
func (g *Gossip) deliverEvents() {
	defer close(g.events)
	for {
		e, ok := g.nextEvent()
		if !ok {
			select {
			case <-g.wake:
				continue
			case <-g.ctx.Done():
				return
			}
		}
		select {
		case g.events <- e:
		case <-g.ctx.Done():
			return
		}
	}
}

// callbacks are the methods that memberlist calls, perhaps with its locks held.
type callbacks struct{ g *Gossip }

var (
	_ memberlist.Delegate         = callbacks{}
	_ memberlist.EventDelegate    = callbacks{}
	_ memberlist.AliveDelegate    = callbacks{}
	_ memberlist.MergeDelegate    = callbacks{}
	_ memberlist.ConflictDelegate = callbacks{}
)

// memberOf returns a copy of n as a Member. Without encryption n may come from anybody, so memberOf
// checks it.
func memberOf(n *memberlist.Node) (Member, error) {
	addr, ok := netip.AddrFromSlice(n.Addr)
	if !ok || n.Port == 0 || len(n.Name) == 0 || len(n.Name) > maxName ||
		!utf8.ValidString(n.Name) || len(n.Meta) > MaxMeta {
		return Member{}, fmt.Errorf("malformed: name %q, address %v:%d, %d bytes of meta", n.Name,
			net.IP(n.Addr), n.Port, len(n.Meta))
	}
	return Member{
		Name: n.Name, Addr: netip.AddrPortFrom(addr.Unmap(), n.Port), Meta: slices.Clone(n.Meta),
	}, nil
}

// NotifyJoin implements [memberlist.EventDelegate].
func (c callbacks) NotifyJoin(n *memberlist.Node) { c.handleAlive(n, Joined) }

// NotifyUpdate implements [memberlist.EventDelegate].
func (c callbacks) NotifyUpdate(n *memberlist.Node) { c.handleAlive(n, Updated) }

func (c callbacks) handleAlive(n *memberlist.Node, kind EventKind) {
	m, err := memberOf(n)
	if err != nil {
		return // cannot happen: NotifyAlive has refused it
	}
	g := c.g
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.members[m.Name]
	if e == nil {
		e = &entry{stranger: g.isStranger(m.Name)}
		if e.stranger {
			e.reserved = g.isFull() // otherwise admit would have refused it
			g.strangers++
		} else {
			g.transport.intake.raiseLimits(m.Addr)
		}
		g.members[m.Name], g.ids[idOf(m.Name)] = e, e
		g.count.Store(int64(len(g.members)))
	} else if !e.stranger && e.Addr != m.Addr {
		g.transport.intake.restoreLimits(e.Addr)
		g.transport.intake.raiseLimits(m.Addr)
	}
	delete(g.vouched, m.Name)
	e.Member = m // leaving stays set, even if the member has changed just before it leaves
	delete(g.failed, m.Name)
	g.enqueueEvent(MemberEvent{Kind: kind, Member: m})
}

// NotifyLeave implements [memberlist.EventDelegate]. memberlist does not say whether the member
// left or failed; a member that leaves has sent a leaving frame before.
func (c callbacks) NotifyLeave(n *memberlist.Node) {
	g := c.g
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.members[n.Name]
	if e == nil {
		return
	}
	delete(g.members, n.Name)
	delete(g.ids, idOf(n.Name))
	delete(g.pending, eventKey{n.Name, Loaded})
	g.count.Store(int64(len(g.members)))
	kind := Left
	if !e.leaving {
		kind = Failed
	}
	if e.stranger {
		g.strangers--
		g.gone = append(g.gone, departedMember{time.Now(), e.Addr.Addr(), e.reserved})
	} else {
		g.transport.intake.restoreLimits(e.Addr)
		if kind == Failed {
			g.fail(e.Member)
		}
	}
	g.enqueueEvent(MemberEvent{Kind: kind, Member: e.Member})
}

// fail adds a failed member to g.failed, in place of the oldest one if there are maxFailed. g.mu is
// held.
func (g *Gossip) fail(m Member) {
	if len(g.failed) >= maxFailed {
		var oldest failure
		for _, f := range g.failed {
			if oldest.at.IsZero() || f.at.Before(oldest.at) {
				oldest = f
			}
		}
		delete(g.failed, oldest.Name)
	}
	g.failed[m.Name] = failure{m, time.Now()}
}

// NotifyAlive implements [memberlist.AliveDelegate].
func (c callbacks) NotifyAlive(n *memberlist.Node) error {
	if n.Name == c.g.config.Name {
		return nil
	}
	m, err := memberOf(n)
	if err == nil {
		err = c.g.acceptMember(m)
	}
	if err != nil {
		c.g.faults.warn("gossip: member refused", "member", n.Name, "addr", n.Address(), "reason",
			err)
		return err
	}
	if err = c.g.admitStranger(m); err != nil {
		c.g.faults.logAs(err.Error(), slog.LevelWarn, "gossip: member refused", "member", n.Name,
			"addr", n.Address(), "reason", err,
			"most", c.g.config.MaxStrangers)
	}
	return err
}

// acceptMember calls Config.Accept.
func (g *Gossip) acceptMember(m Member) error {
	if g.config.Accept == nil {
		return nil
	}
	return g.config.Accept(m)
}

// NotifyMerge implements [memberlist.MergeDelegate]: a join fails if this agent can accept none of
// the other side's members. One is enough; NotifyAlive refuses the others one by one.
func (c callbacks) NotifyMerge(peers []*memberlist.Node) error {
	var refused *refusal
	for _, n := range peers {
		if n.Name == c.g.config.Name || n.State != memberlist.StateAlive {
			continue
		}
		m, err := memberOf(n)
		if err == nil {
			err = c.g.acceptMember(m)
		}
		if err == nil {
			return nil
		}
		// The peers are in random order. The first by name is logged, so that the same fault has
		// the same text.
		if refused == nil || n.Name < refused.member {
			refused = &refusal{n.Name, err}
		}
	}
	if refused == nil {
		return nil
	}
	return fmt.Errorf("member %s refused: %w", refused.member, refused.err)
}

// refusal is the reason why a member is not accepted.
type refusal struct {
	member string
	err    error
}

// NotifyConflict implements [memberlist.ConflictDelegate].
func (c callbacks) NotifyConflict(existing, other *memberlist.Node) {
	c.g.faults.warn("gossip: two members have the same name; the second is ignored", "member",
		existing.Name, "addr", existing.Address(),
		"other_addr", other.Address())
}

// NodeMeta implements [memberlist.Delegate].
func (c callbacks) NodeMeta(int) []byte {
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	return c.g.meta
}

// NotifyMsg implements [memberlist.Delegate].
func (c callbacks) NotifyMsg(b []byte) {
	f, err := parseFrame(b)
	if err != nil {
		c.g.stats.malformed.Add(1)
		return
	}
	c.g.handleFrame(f, true)
}

// GetBroadcasts implements [memberlist.Delegate].
func (c callbacks) GetBroadcasts(overhead, limit int) [][]byte {
	return c.g.queue.takeMessages(overhead, limit)
}

// LocalState implements [memberlist.Delegate]. It returns the known loads, so that an agent that
// joins need not wait for the next ones.
func (c callbacks) LocalState(bool) []byte { return appendFrames(nil, c.g.loadFrames()) }

// MergeRemoteState implements [memberlist.Delegate].
func (c callbacks) MergeRemoteState(b []byte, _ bool) {
	frames, err := parseFrames(b)
	if err != nil {
		c.g.stats.malformed.Add(1)
	}
	for _, f := range frames {
		c.g.handleFrame(f, false)
	}
}
