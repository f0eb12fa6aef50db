package election

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// A world is agents, a network and gossip between them, and virtual time. A
// referee watches every step; the first broken promise is fault.
type world struct {
	rng   *rand.Rand
	now   time.Duration
	heap  items
	count int // of items, to order equal times
	procs []*proc

	loss  float64       // of each message
	delay time.Duration // of a message: 50 µs and up to this
	// messages overtake each other, some come twice, some to a restarted process
	wild     bool
	cut      [8][8]bool // who cannot talk
	refusing [8]bool    // whose host refuses connections, though it runs
	lastAt   [8][8]time.Duration
	mutant   *mutant
	led      map[Claim]bool // by anyone
	changes  int            // how often somebody started to lead
	fault    error
	trace    func(format string, args ...any) // nil: no trace
}

// A proc is an agent: a node that may crash and restart, a gateway with queries
// that always wait, a worker, and the leader's book of submitted queries.
type proc struct {
	id     names.AgentName
	index  int
	rank   Rank
	disk   uint64 // persisted epoch
	ledMax uint64 // the highest epoch led, whatever the process remembers

	running     bool
	incarnation int
	node        *Node
	rate        float64       // of its clock
	paused      time.Duration // for how long its clock stood still
	frozenAt    time.Duration
	frozen      bool
	clockStops  bool // while frozen
	inbox       []item
	wakeAt      time.Duration
	joinWait    time.Duration

	known    [8]bool // members by gossip
	unknown  [8]int  // ticks in which one was there and not known
	missedAt [8]time.Duration
	leading  bool  // as the actions told
	follows  Claim // zero: none
	highest  Claim // ever followed by this incarnation
	obeyed   Claim
	pending  uint8 // queries that the gateway has not had acknowledged by follows
	book     [8]entry
	leaving  bool
}

type entry struct {
	incarnation int
	queries     uint8 // a set
}

const allQueries = 1<<3 - 1

// mostUnknown is after how many ticks gossip has told a member of another one at the latest: 1 s. A
// leader sends heartbeats to members alone, so without it the agents need not agree within bound.
const mostUnknown = 20

type itemKind uint8

const (
	wake itemKind = iota // a node's timer
	deliver
	breakStream
	ended // a host has refused a connection
	persisted
	tick // every 50 ms: gossip, gateways and leaders do what they do
	thaw
	start
	act // what the schedule does
)

type packetKind uint8

const (
	election packetKind = iota
	submit
	submitAck
	control
)

type packet struct {
	kind  packetKind
	msg   Message
	epoch uint64
	entry entry
}

type item struct {
	at          time.Duration
	order       int
	kind        itemKind
	from, to    int
	incarnation int
	packet      packet
	do          func()
}

type items []item

func (h items) Len() int { return len(h) }
func (h items) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h items) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *items) Push(x any)   { *h = append(*h, x.(item)) }
func (h *items) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

func newWorld(seed uint64) *world {
	return &world{
		rng: rand.New(rand.NewPCG(seed, 0)), delay: time.Millisecond, led: map[Claim]bool{},
	}
}

func (w *world) add(rank Rank) *proc {
	p := &proc{
		id: names.AgentName(rune('a' + len(w.procs))), index: len(w.procs), rank: rank, rate: 1,
	}
	w.procs = append(w.procs, p)
	return p
}

func (w *world) failf(format string, args ...any) {
	if w.fault == nil {
		w.fault = fmt.Errorf("%v: "+format, append([]any{w.now}, args...)...)
	}
}

func (w *world) note(format string, args ...any) {
	if w.trace != nil {
		w.trace("%9.3f ms  %s", float64(w.now)/1e6, fmt.Sprintf(format, args...))
	}
}

func (w *world) push(it item) {
	w.count++
	it.order = w.count
	heap.Push(&w.heap, it)
}

func (w *world) after(d time.Duration, do func()) { w.push(item{at: w.now + d, kind: act, do: do}) }

// between is a random duration.
func (w *world) between(a, b time.Duration) time.Duration {
	return a + time.Duration(w.rng.Int64N(int64(b-a)+1))
}

// run lets time pass until the given time.
func (w *world) run(until time.Duration) {
	for w.fault == nil && len(w.heap) > 0 && w.heap[0].at <= until {
		it := heap.Pop(&w.heap).(item)
		w.now = it.at
		w.handle(&it)
	}
	w.now = until
}

func (w *world) handle(it *item) {
	if it.kind == act {
		it.do()
		return
	}
	p := w.procs[it.to]
	stale := it.incarnation != p.incarnation && !(w.wild && it.kind == deliver)
	if !p.running || stale {
		return
	}
	if p.frozen && it.kind != thaw {
		if it.kind != wake { // the timer is looked at after the thaw anyway
			p.inbox = append(p.inbox, *it)
		}
		return
	}
	switch it.kind {
	case wake:
		if it.at == p.wakeAt {
			w.step(p, Event{Kind: TimePassed})
		}
	case deliver:
		w.deliver(p, it)
	case breakStream:
		w.step(p, Event{Kind: StreamBroken, ID: w.procs[it.from].id})
	case ended:
		w.step(p, Event{Kind: ProcessEnded, ID: w.procs[it.from].id})
	case persisted:
		p.disk = max(p.disk, it.packet.epoch)
		w.step(p, Event{Kind: Persisted, Epoch: it.packet.epoch})
	case tick:
		w.tick(p)
	case thaw:
		w.thaw(p)
	}
}

// local is the process's clock.
func (p *proc) local(now time.Duration) time.Time {
	return epoch.Add(time.Duration(float64(now-p.paused) * p.rate))
}

func (w *world) start(p *proc) {
	p.incarnation++
	p.running, p.frozen, p.leading, p.leaving = true, false, false, false
	p.follows, p.highest, p.obeyed = Claim{}, Claim{}, Claim{}
	p.pending, p.book, p.known, p.unknown, p.missedAt, p.inbox = allQueries, [8]entry{}, [8]bool{},
		[8]int{}, [8]time.Duration{}, p.inbox[:0]
	cfg := Config{ID: p.id, Rank: p.rank, Epoch: p.disk, JoinWait: p.joinWait}
	if w.mutant != nil && w.mutant.forgets {
		cfg.Epoch = 0
	}
	var err error
	if p.node, err = New(cfg); err != nil {
		w.failf("%v", err)
		return
	}
	w.note("%s starts with epoch %d, %v", p.id, cfg.Epoch, p.rank.Role())
	w.push(item{
		at: w.now + w.between(0, 50*time.Millisecond), kind: tick, to: p.index,
		incarnation: p.incarnation,
	})
	w.step(p, Event{Kind: TimePassed})
}

// stop ends a process: killed, so that its streams break, or with its machine's power.
func (w *world) stop(p *proc, killed bool) {
	if !p.running {
		return
	}
	w.note("%s stops, killed %v", p.id, killed)
	p.running, p.frozen, p.leading = false, false, false
	for _, q := range w.procs {
		if killed && q != p {
			w.carry(p.index, item{kind: breakStream, to: q.index}, false)
		}
	}
}

// breakStreams breaks a process's streams to some others.
func (w *world) breakStreams(p *proc) {
	for _, q := range w.procs {
		if q != p && w.rng.IntN(2) == 0 {
			w.carry(p.index, item{kind: breakStream, to: q.index}, false)
			w.carry(q.index, item{kind: breakStream, to: p.index}, false)
		}
	}
}

func (w *world) freeze(p *proc, d time.Duration, clockStops bool) {
	if !p.running || p.frozen {
		return
	}
	w.note("%s is frozen for %v, its clock stops %v", p.id, d, clockStops)
	p.frozen, p.frozenAt, p.clockStops = true, w.now, clockStops
	w.push(item{at: w.now + d, kind: thaw, to: p.index, incarnation: p.incarnation})
}

func (w *world) thaw(p *proc) {
	if !p.frozen {
		return
	}
	w.note("%s thaws", p.id)
	p.frozen = false
	if p.clockStops {
		p.paused += w.now - p.frozenAt
	}
	inbox := p.inbox
	p.inbox = nil
	if w.rng.IntN(2) == 0 { // its timer is looked at first
		w.step(p, Event{Kind: TimePassed})
	}
	for i := range inbox {
		w.handle(&inbox[i])
	}
	w.step(p, Event{Kind: TimePassed})
}

// carry brings an item over the network, or loses it.
func (w *world) carry(from int, it item, lossy bool) {
	to := it.to
	it.from = from
	if w.cut[from][to] || lossy && w.rng.Float64() < w.loss {
		return
	}
	it.at = w.now + w.between(50*time.Microsecond, w.delay)
	it.incarnation = w.procs[to].incarnation
	if !w.wild { // a stream keeps the order
		it.at = max(it.at, w.lastAt[from][to])
		w.lastAt[from][to] = it.at
	} else if lossy && w.rng.IntN(20) == 0 {
		again := it
		again.at += w.between(0, 10*w.delay)
		w.push(again)
	}
	w.push(it)
}

func (w *world) sendPacket(p *proc, to int, pk packet) {
	if to == p.index {
		w.deliver(p, &item{from: to, to: to, packet: pk})
		return
	}
	if q := w.procs[to]; !q.running && !w.cut[p.index][to] { // its machine refuses
		w.push(item{
			at: w.now + w.between(50*time.Microsecond, w.delay), kind: breakStream, from: to,
			to: p.index, incarnation: p.incarnation,
		})
		return
	}
	w.carry(p.index, item{kind: deliver, to: to, packet: pk}, true)
}

func (w *world) indexOf(id names.AgentName) int { return int(id[0] - 'a') }

func (w *world) deliver(p *proc, it *item) {
	pk := &it.packet
	from := w.procs[it.from]
	switch pk.kind {
	case election:
		w.step(p, Event{Kind: Received, ID: from.id, Message: pk.msg})
	case submit:
		if p.leading && p.follows.Epoch == pk.epoch {
			e := &p.book[it.from]
			if e.incarnation < pk.entry.incarnation {
				*e = entry{incarnation: pk.entry.incarnation}
			}
			if e.incarnation == pk.entry.incarnation {
				e.queries |= pk.entry.queries
			}
			w.sendPacket(p, it.from, packet{kind: submitAck, epoch: pk.epoch, entry: pk.entry})
		}
	case submitAck:
		if p.follows.Leader == from.id && p.follows.Epoch == pk.epoch &&
			p.incarnation == pk.entry.incarnation {
			p.pending &^= pk.entry.queries
		}
	case control:
		if !p.node.obeys(pk.epoch, from.id) && (w.mutant == nil || !w.mutant.unfenced) {
			return
		}
		c := Claim{Epoch: pk.epoch, Rank: from.rank, Leader: from.id}
		if c.Compare(p.obeyed) < 0 {
			w.failf("%s obeys %v after %v", p.id, c, p.obeyed)
		}
		p.obeyed = c
	}
}

// tick is what an agent does every 50 ms beside the election.
func (w *world) tick(p *proc) {
	w.push(item{
		at: w.now + 50*time.Millisecond, kind: tick, to: p.index, incarnation: p.incarnation,
	})
	for _, q := range w.procs {
		if q == p {
			continue
		}
		there := q.running && !w.cut[p.index][q.index]
		switch {
		case there:
			p.missedAt[q.index] = 0
			if p.known[q.index] {
				continue
			}
			p.unknown[q.index]++
			if w.rng.IntN(4) == 0 || p.unknown[q.index] == mostUnknown {
				p.known[q.index], p.unknown[q.index] = true, 0
				w.step(p, Event{Kind: MemberUp, ID: q.id, Rank: q.rank})
			}
		case p.known[q.index] && p.missedAt[q.index] == 0:
			p.missedAt[q.index] = w.now + w.between(0, 3*time.Second)
		case p.known[q.index] && w.now >= p.missedAt[q.index]:
			p.known[q.index] = false
			w.step(p, Event{Kind: MemberDown, ID: q.id})
		}
	}
	if p.follows != (Claim{}) && p.pending != 0 {
		w.submit(p)
	}
	if p.leading {
		for _, q := range w.procs {
			if q == p || p.known[q.index] {
				w.sendPacket(p, q.index, packet{kind: control, epoch: p.follows.Epoch})
			}
		}
	}
	if p.leaving && !p.leading && w.rng.IntN(4) == 0 {
		w.stop(p, true)
	}
}

// submit sends the queries that are not acknowledged to the leader followed.
func (w *world) submit(p *proc) {
	if p.follows != (Claim{}) {
		w.sendPacket(p, w.indexOf(p.follows.Leader), packet{
			kind: submit, epoch: p.follows.Epoch, entry: entry{p.incarnation, p.pending},
		})
	}
}

func (w *world) step(p *proc, e Event) {
	if w.fault != nil || !p.running {
		return
	}
	if m := w.mutant; m != nil && m.before != nil && !m.before(p.node, &e) {
		return
	}
	actions, next := p.node.Step(p.local(w.now), &e)
	if w.trace != nil && e.Kind != TimePassed && (e.Kind != Received || e.Message.Kind > Ack) {
		w.note("%s: %v", p.id, e)
	}
	if m := w.mutant; m != nil && m.after != nil {
		actions = m.after(p.node, actions)
	}
	if !next.IsZero() {
		d := next.Sub(p.local(w.now))
		if d < 0 {
			w.failf("%s wants to be stepped %v ago", p.id, -d)
		}
		at := w.now + time.Duration(float64(d)/p.rate) + 1
		if at != p.wakeAt || e.Kind == TimePassed {
			p.wakeAt = at
			w.push(item{at: at, kind: wake, to: p.index, incarnation: p.incarnation})
		}
	} else {
		p.wakeAt = 0
	}
	for i := range actions {
		w.watch(p, actions, i)
		if w.fault != nil {
			w.note("%s", w.fault)
			return
		}
	}
}

// watch carries out one action, and checks that it may be.
func (w *world) watch(p *proc, actions []Action, i int) {
	a := &actions[i]
	if a.Kind != Send {
		w.note("%s: %v", p.id, *a)
	}
	follows := i+1 < len(actions) && (actions[i+1].Kind == Follow ||
		actions[i+1].Kind == NoLeader && a.Kind == StepDown)
	switch a.Kind {
	case Send:
		m := &a.Message
		if m.Claim.Leader == p.id && m.Claim.Epoch > p.disk && m.Kind != Refuse && m.Kind != Ack &&
			m.Kind != Grant {
			w.failf("%s sends %v, but has persisted %d", p.id, m, p.disk)
		}
		w.sendPacket(p, w.indexOf(a.To), packet{kind: election, msg: *m})
	case Persist:
		w.push(item{at: w.now + w.between(0, 10*time.Millisecond), kind: persisted, to: p.index,
			incarnation: p.incarnation,
			packet:      packet{epoch: a.Claim.Epoch}})
	case Lead:
		switch {
		case p.leading:
			w.failf("%s leads twice: %v while it leads %v", p.id, a.Claim, p.follows)
		case a.Claim.Epoch <= p.ledMax:
			w.failf("%s leads %v, but has led epoch %d", p.id, a.Claim, p.ledMax)
		case a.Claim.Leader != p.id || p.rank == 0 || !follows:
			w.failf("%s must not lead %v: %v", p.id, a.Claim, actions)
		}
		p.ledMax = a.Claim.Epoch
		p.book = [8]entry{}
		w.led[a.Claim] = true
		p.leading = true
		w.changes++
	case StepDown:
		if !p.leading || p.follows != a.Claim || !follows {
			w.failf("%s must not step down from %v: %v", p.id, a.Claim, actions)
		}
		p.leading = false
	case Follow:
		switch {
		case a.Claim.Compare(p.highest) < 0:
			w.failf("%s follows %v after %v", p.id, a.Claim, p.highest)
		case a.Claim == p.follows:
			w.failf("%s follows %v twice", p.id, a.Claim)
		case !w.led[a.Claim]:
			w.failf("%s follows %v, which nobody leads", p.id, a.Claim)
		case p.leading != (a.Claim.Leader == p.id):
			w.failf("%s leads is %v, but follows %v", p.id, p.leading, a.Claim)
		}
		p.follows, p.highest, p.pending = a.Claim, a.Claim, allQueries
	case NoLeader:
		if p.follows == (Claim{}) || p.leading {
			w.failf("%s must not be without a leader: %v", p.id, actions)
		}
		p.follows = Claim{}
	case Look:
		q := w.procs[w.indexOf(a.To)]
		if p.leading || a.To != p.follows.Leader {
			w.failf("%s must not %v: it follows %v", p.id, *a, p.follows)
		}
		if !q.running && !w.cut[p.index][q.index] || w.refusing[q.index] {
			w.push(item{
				at: w.now + w.between(0, 2*w.delay), kind: ended, from: q.index, to: p.index,
				incarnation: p.incarnation,
			})
		}
	}
}

// followed is the claim of the leader that the node follows, its own if it leads; false
// if there is none.
func (n *Node) followed() (Claim, bool) {
	if !n.following {
		return Claim{}, false
	}
	return n.top, true
}

// obeys reports whether a worker accepts control that names this leader and epoch: only from the
// highest claim that the node knows, also while its leader is silent.
func (n *Node) obeys(epoch uint64, leader names.AgentName) bool {
	return n.top.Epoch == epoch && n.top.Leader == leader && leader != ""
}

// reached is, while the node leads, how many members it reaches and how many there are,
// itself included in both.
func (n *Node) reached() (reached, members int) {
	reached = 1
	for _, m := range n.members {
		if n.hasFollower(m) {
			reached++
		}
	}
	return reached, len(n.members) + 1
}

// split cuts the network in two sides at random.
func (w *world) split() {
	side := w.rng.UintN(1 << len(w.procs))
	w.note("split %b", side)
	for i := range w.procs {
		for j := range w.procs {
			w.cut[i][j] = w.cut[i][j] || side>>i&1 != side>>j&1
		}
	}
}

func (w *world) cutLink(i, j int) {
	w.note("cut %s-%s", w.procs[i].id, w.procs[j].id)
	w.cut[i][j], w.cut[j][i] = i != j, i != j
}

// cutOneWayLink loses what i sends to j.
func (w *world) cutOneWayLink(i, j int) {
	w.note("cut %s to %s", w.procs[i].id, w.procs[j].id)
	w.cut[i][j] = i != j
}

func (w *world) heal() {
	w.note("heal")
	w.cut, w.refusing = [8][8]bool{}, [8]bool{}
}

// hasten has what is on its way arrive within the delay. A wild world's second copies take up to
// ten times as long: a claim of before a restart that comes seconds after the last fault is a fault
// itself, and from it on there is another bound until all agree.
func (w *world) hasten() {
	for i := range w.heap {
		if it := &w.heap[i]; it.kind == deliver {
			it.at = min(it.at, w.now+w.delay)
		}
	}
	heap.Init(&w.heap)
}

// agreed is why the world is not as it should be when quiet, nil if it is: one leads,
// of the highest role there is, and all follow it.
func (w *world) agreed() error {
	var leader *proc
	var best Role
	for _, p := range w.procs {
		if !p.running {
			continue
		}
		best = max(best, p.rank.Role())
		if p.leading {
			if leader != nil {
				return fmt.Errorf("two lead: %v and %v", leader.follows, p.follows)
			}
			leader = p
		}
	}
	if leader == nil {
		if best != Never {
			return fmt.Errorf("nobody leads")
		}
		return nil
	}
	if leader.rank.Role() != best {
		return fmt.Errorf("%v leads, of role %v, but there is one of role %v", leader.follows,
			leader.rank.Role(), best)
	}
	for _, p := range w.procs {
		if !p.running {
			continue
		}
		if c, ok := p.node.followed(); !ok || c != leader.follows ||
			p.node.Leading() != (p == leader) {
			return fmt.Errorf("%s follows %v, but %v leads", p.id, c, leader.follows)
		}
	}
	return nil
}

// resubmitted is whose queries the leader does not have, nil if it has all.
func (w *world) resubmitted() error {
	for _, l := range w.procs {
		for _, p := range w.procs {
			if l.running && l.leading && p.running &&
				l.book[p.index] != (entry{p.incarnation, allQueries}) {
				return fmt.Errorf("the leader %v lacks queries of %s: has %v", l.follows, p.id,
					l.book[p.index])
			}
		}
	}
	return nil
}
