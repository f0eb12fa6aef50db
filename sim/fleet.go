package sim

import (
	"bytes"
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/election"
	"github.com/muster-serve/muster/runtime/queue"
)

const (
	// warmUp is how long before queries arrive a fleet begins: it elects a leader meanwhile.
	warmUp = 2 * time.Second
	// heartbeats is how far a leader's heartbeats are apart.
	heartbeats = 50 * time.Millisecond
	// persistTime is how long an agent takes to write an epoch to its disk.
	persistTime = time.Millisecond
	// connectionTimeout is after how long a connection breaks that brings nothing through.
	connectionTimeout = 3 * time.Second
	// gossipGivesUp is after how long gossip takes an agent that is not heard for no member any more,
	// gossipReturns how long it takes to notice that one is back.
	gossipGivesUp, gossipReturns = 5 * time.Second, 200 * time.Millisecond
	// redial is how long a leader waits before it opens a broken link again.
	redial = 100 * time.Millisecond
	// keepPlace is how long a lane keeps the place that it has promised.
	keepPlace = 20 * time.Millisecond
	// patience is for how long nothing may happen to any query before those left count as never served.
	patience = 2 * time.Minute
)

// A fleet is a run with faults: agents with a lane each, which elect a leader among them
// (leader/election); the leader, which is a [leader.State]; gateways, which decide by
// [match.Leaderless] while none answers; and a network between them. All rank alike, so of the
// agents there the last by name leads.
//
// A message takes half a round trip, and its turn among those of the same two hosts. What becomes of
// it when something goes wrong is what becomes of it in a TCP connection; see [Kill], [Freeze], [Cut].
type fleet struct {
	*run
	rng       *rand.Rand
	deeds     deeds
	scheduled uint64
	agents    []*agent
	named     map[string]*agent
	gateways  []*fleetGateway
	lastAt    map[[2]*host]time.Duration // when the last message of one host to another arrives
	delays    []delay                    // those that last
	known     *leader.Advice             // what is known of latencies and prices
	ahead     time.Duration              // as the last leader has found it
	terms     []*term                    // all there were
	results   []FaultResult              // of the faults, by time
	faultAt   time.Duration              // when the last one happened
	movedAt   time.Duration              // when something last happened to a query
}

// A deed is something to be done at a time.
type deed struct {
	at    time.Duration
	order uint64
	do    func()
}

type deeds []deed

func (h deeds) Len() int { return len(h) }
func (h deeds) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h deeds) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *deeds) Push(x any)   { *h = append(*h, x.(deed)) }
func (h *deeds) Pop() any {
	last := (*h)[len(*h)-1]
	(*h)[len(*h)-1] = deed{}
	*h = (*h)[:len(*h)-1]
	return last
}

// A host is an agent or a gateway to the network.
type host struct {
	dead     bool
	thaws    time.Duration // it stands still until then
	inbox    []func()      // what has come to it meanwhile
	cutSince time.Duration
	cutUntil time.Duration // it and all others do not reach each other until then
}

func newHost() host { return host{thaws: -warmUp, cutUntil: -warmUp} }

// A delay is one of messages that lasts until a time: those of one host, or all.
type delay struct {
	of     *host // nil: all
	until  time.Duration
	amount time.Duration
}

// An agent runs queries on its lane, and may lead.
type agent struct {
	host
	f      *fleet
	index  int // of its lane too
	member *leader.Member
	left   bool // gossip has given it up, and it all others
	node   *election.Node
	wakeAt time.Duration  // when the node wants to be stepped
	follow election.Claim // zero: nobody
	term   *term          // nil: it does not lead
	link   *term          // whom it has greeted

	waiting  queue.Queue[*call]
	running  *call
	held     []*call // all that the lane has, the one that runs first
	promises []promise
}

// A promise is a place on a lane that is kept for a gateway.
type promise struct {
	gateway  *fleetGateway
	id       uint64
	until    time.Duration
	estimate time.Duration
}

// A term is an agent's leadership.
type term struct {
	f      *fleet
	agent  *agent
	claim  election.Claim
	state  *leader.State
	began  time.Duration
	wakeAt time.Duration // when the state wants to be stepped
	linked []bool        // by gateway: it has a stream
	read   []uint64      // by gateway: submits on its stream
	over   bool
	record bytes.Buffer
	rec    *leader.Recorder // may be nil
}

func newFleet(r *run) (*fleet, error) {
	f := &fleet{
		run: r, rng: rand.New(rand.NewPCG(r.cfg.Seed, 14)), named: map[string]*agent{}, lastAt: map[[2]*host]time.Duration{}, ahead: r.cfg.RTT,
		known: &leader.Advice{Limit: r.limit.Rate, Prices: r.limit.Prices, Priced: true},
	}
	r.now = -warmUp
	number := map[int]int{}
	for id := range r.lanes {
		l := &r.lanes[id]
		number[l.instanceType]++
		typ := r.types[l.instanceType]
		a := &agent{host: newHost(), f: f, index: id, wakeAt: never}
		a.member = &leader.Member{Name: agentName(typ, number[l.instanceType]), Type: typ, Lanes: 1}
		a.member.OwnType = typ + "@" + a.member.Name
		for i := range r.models {
			m := &r.models[i]
			if l.predicted[i] == nil {
				continue
			}
			a.member.Models = append(a.member.Models, leader.Model{
				ModelID: modelID(m), QoSTarget: m.QoSTarget, Share: m.qosShare(), Largest: m.BatchSizes.Largest(), RejectLate: m.RejectLate,
			})
			if number[l.instanceType] == 1 {
				key := leader.TableKey{Model: modelID(m).Key(), Type: typ}
				f.known.Latencies = append(f.known.Latencies, &leader.Latency{TableKey: key, Table: l.predicted[i]})
			}
		}
		f.agents = append(f.agents, a)
		f.named[a.member.Name] = a
	}
	n := r.cfg.Gateways
	if n == 0 {
		n = 4
	}
	for i := range n {
		g, err := newFleetGateway(f, i, n)
		if err != nil {
			return nil, err
		}
		f.gateways = append(f.gateways, g)
	}
	begin := f.now + time.Duration(f.rng.Int64N(int64(heartbeats))) // so that they fall differently with each seed
	for _, a := range f.agents {
		if err := a.join(begin); err != nil {
			return nil, err
		}
	}
	for i, fault := range byTime(r.cfg.Faults) {
		f.results = append(f.results, FaultResult{Fault: fault.String(), at: fault.At})
		f.do(fault.At, func() { f.strike(fault, &f.results[i]) })
	}
	return f, nil
}

// modelID names a model as a leader does.
func modelID(m *modelState) leader.ModelID { return leader.ModelID{Name: m.Name, Version: 1} }

// do has something done at a time.
func (f *fleet) do(at time.Duration, what func()) {
	f.scheduled++
	heap.Push(&f.deeds, deed{max(at, f.now), f.scheduled, what})
}

// until lets happen what happens up to the time. When there is none it ends with the last query,
// unless the last fault is not over yet.
func (f *fleet) until(ctx context.Context, t time.Duration) {
	for f.err == nil && len(f.deeds) > 0 && f.deeds[0].at <= t {
		if f.happened++; f.happened%interruptible == 0 && ctx.Err() != nil {
			f.fail(ctx.Err())
			return
		}
		if t == never && (f.first == f.next && f.now >= f.faultAt+faultWindow || f.idle()) {
			return
		}
		d := heap.Pop(&f.deeds).(deed)
		f.now = d.at
		d.do()
	}
}

// idle reports that nothing has happened to any query for long, and nothing runs.
func (f *fleet) idle() bool {
	return f.now-f.movedAt > patience && !slices.ContainsFunc(f.agents, func(a *agent) bool { return a.running != nil && !a.frozen() })
}

// writeRecordings hands the recordings of the terms over, one after the other.
func (f *fleet) writeRecordings() error {
	for _, t := range f.terms {
		if t.rec == nil {
			continue
		}
		if err := t.rec.Flush(); err != nil {
			return err
		}
		if _, err := f.cfg.Record.Write(t.record.Bytes()); err != nil {
			return fmt.Errorf("write recording: %w", err)
		}
	}
	return nil
}

// The network.

func (f *fleet) frozen(h *host) bool { return h.thaws > f.now }

func (a *agent) frozen() bool { return a.f.frozen(&a.host) }

// on has something done at a host after a time: later if it stands still then, never if it is dead.
func (f *fleet) on(h *host, after time.Duration, what func()) {
	f.do(f.now+after, func() { f.deliver(h, what) })
}

func (f *fleet) deliver(h *host, what func()) {
	switch {
	case h.dead:
	case f.frozen(h), len(h.inbox) > 0: // what came before comes first
		h.inbox = append(h.inbox, what)
	default:
		what()
	}
}

// way is how long a message takes.
func (f *fleet) way(from, to *host) time.Duration {
	if from == to {
		return 0
	}
	way := f.cfg.RTT / 2
	f.delays = slices.DeleteFunc(f.delays, func(d delay) bool { return d.until <= f.now })
	for _, d := range f.delays {
		if d.of == nil || d.of == from || d.of == to {
			way += d.amount
		}
	}
	return way
}

// cut is until when two hosts do not reach each other, 0 if they do, and whether the connections
// between them break.
func (f *fleet) cut(a, b *host) (until time.Duration, breaks bool) {
	for _, h := range []*host{a, b} {
		if a != b && h.cutUntil > f.now {
			until = max(until, h.cutUntil)
			breaks = breaks || h.cutUntil-h.cutSince > connectionTimeout
		}
	}
	return until, breaks
}

// send has something done at another host when a message is there. refused, unless it is nil, is done
// at the first if the other's process has ended, or the connection is known to be broken.
func (f *fleet) send(from, to *host, what, refused func()) {
	way := f.way(from, to)
	at := f.now + way
	if until, breaks := f.cut(from, to); until > 0 {
		if breaks {
			if since := max(from.cutSince, to.cutSince); refused != nil && f.now-since >= connectionTimeout {
				f.on(from, way, refused)
			}
			return
		}
		at += until - f.now // it is sent again until it gets through
	}
	key := [2]*host{from, to}
	if last, ok := f.lastAt[key]; ok {
		at = max(at, last)
	}
	f.lastAt[key] = at
	f.do(at, func() {
		if to.dead && refused != nil {
			f.on(from, way, refused)
		}
		f.deliver(to, what)
	})
}

// Faults.

// leader is the agent that leads, the latest elected if there are several; nil: none does.
func (f *fleet) leader() (leads *agent) {
	for _, a := range f.agents {
		if !a.dead && a.term != nil && (leads == nil || leads.term.claim.Compare(a.term.claim) < 0) {
			leads = a
		}
	}
	return leads
}

// strike has a fault happen.
func (f *fleet) strike(fault Fault, r *FaultResult) {
	f.faultAt = f.now
	var hit *agent
	switch fault.Target {
	case "":
	case TheLeader:
		hit = f.leader()
	default:
		hit = f.named[fault.Target]
	}
	if fault.Target != "" {
		if hit == nil || hit.dead {
			return
		}
		r.Agent = hit.member.Name
	}
	until := never
	if fault.Duration > 0 {
		until = f.now + fault.Duration
	}
	if hit != nil && hit == f.leader() && fault.Verb != Delay {
		for i := range f.results { // the leader that they hit has gone on
			f.results[i].open = false
		}
		r.HitLeader, r.open = true, true
	}
	switch fault.Verb {
	case Kill:
		hit.kill()
	case Freeze:
		hit.freeze(until)
	case Cut:
		hit.cutOffFromAll(until)
	case Delay:
		d := delay{until: until, amount: fault.Amount}
		if hit != nil {
			d.of = &hit.host
		}
		f.delays = append(f.delays, d)
	}
}

// others calls for all agents but one.
func (a *agent) others(do func(b *agent)) {
	for _, b := range a.f.agents {
		if b != a {
			do(b)
		}
	}
}

// kill ends an agent's process. All connections to it break.
func (a *agent) kill() {
	f := a.f
	a.dead, a.inbox = true, nil
	if a.term != nil {
		a.term.over = true
	}
	if c := a.running; c != nil {
		f.lanes[a.index].busy -= max(0, f.lanes[a.index].freeAt-f.now)
	}
	for _, c := range a.held {
		c.over = true
	}
	a.running, a.held, a.promises, a.waiting = nil, nil, nil, queue.Queue[*call]{}
	a.others(func(b *agent) { f.send(&a.host, &b.host, func() { b.broken(a) }, nil) })
	for _, g := range f.gateways {
		f.send(&a.host, &g.host, func() { g.broken(a) }, nil)
	}
	f.do(f.now+gossipGivesUp, a.leave)
}

// freeze has an agent stand still.
func (a *agent) freeze(until time.Duration) {
	f := a.f
	a.thaws = max(a.thaws, until)
	f.do(f.now+gossipGivesUp, func() {
		if a.frozen() && !a.dead {
			a.leave()
		}
	})
	if until == never {
		return
	}
	f.do(until, func() {
		if a.dead || a.frozen() {
			return
		}
		a.step(&election.Event{Kind: election.TimePassed})
		inbox := a.inbox
		a.inbox = nil
		for _, what := range inbox {
			what()
		}
		f.do(f.now+gossipReturns, a.comeBack)
	})
}

// cutOffFromAll has an agent and all others not reach each other.
func (a *agent) cutOffFromAll(until time.Duration) {
	f := a.f
	if a.cutUntil <= f.now {
		a.cutSince = f.now
	}
	a.cutUntil = max(a.cutUntil, until)
	cut := func() bool { return !a.dead && a.cutUntil > f.now }
	f.do(f.now+connectionTimeout, func() {
		if !cut() || f.now-a.cutSince < connectionTimeout {
			return
		}
		a.others(func(b *agent) {
			f.on(&b.host, 0, func() { b.broken(a) })
			f.on(&a.host, 0, func() { a.broken(b) })
		})
		for _, g := range f.gateways {
			g.broken(a)
		}
	})
	f.do(f.now+gossipGivesUp, func() {
		if cut() && f.now-a.cutSince >= gossipGivesUp {
			a.leave()
		}
	})
	if until != never {
		f.do(until+gossipReturns, a.comeBack)
	}
}

// leave is what follows when gossip has given an agent up, and it all others.
func (a *agent) leave() {
	if a.left {
		return
	}
	a.left = true
	f := a.f
	a.others(func(b *agent) {
		if b.left {
			return
		}
		f.on(&b.host, 0, func() { b.step(&election.Event{Kind: election.MemberDown, ID: a.member.Name}) })
		f.on(&a.host, 0, func() { a.step(&election.Event{Kind: election.MemberDown, ID: b.member.Name}) })
	})
	f.tellViews()
	for _, g := range f.gateways {
		g.left(a)
	}
}

// comeBack is what follows when gossip hears an agent again.
func (a *agent) comeBack() {
	f := a.f
	if !a.left || a.dead || a.frozen() || a.cutUntil > f.now {
		return
	}
	a.left = false
	a.others(func(b *agent) {
		if b.left {
			return
		}
		f.on(&b.host, 0, func() { b.meet(a) })
		f.on(&a.host, 0, func() { a.meet(b) })
	})
	f.tellViews()
	for _, g := range f.gateways {
		g.joined(a)
	}
}

// tellViews tells all leaders who is a member.
func (f *fleet) tellViews() {
	for _, a := range f.agents {
		f.on(&a.host, 0, func() {
			if a.term != nil {
				a.term.viewChanged()
			}
		})
	}
}

// Agents.

// join has an agent begin at a time, which knows all others.
func (a *agent) join(at time.Duration) (err error) {
	rank := election.RankOf(election.May, false, 0)
	if a.node, err = election.New(election.Config{ID: a.member.Name, Rank: rank}); err != nil {
		return err
	}
	a.f.on(&a.host, at-a.f.now, func() {
		a.step(&election.Event{Kind: election.TimePassed})
		a.others(a.meet)
	})
	return nil
}

func (a *agent) meet(b *agent) {
	a.step(&election.Event{Kind: election.MemberUp, ID: b.member.Name, Rank: election.RankOf(election.May, false, 0)})
	if a.term != nil {
		a.term.open(b)
	}
}

// knows reports whether another agent, or this one, is a member to it.
func (a *agent) knows(b *agent) bool { return a == b || !a.left && !b.left }

// step steps the election and does what it asks for.
func (a *agent) step(e *election.Event) {
	f := a.f
	actions, next := a.node.Step(epoch.Add(f.now), e)
	for i := range actions {
		a.carryOut(actions[i])
	}
	at := never
	if !next.IsZero() {
		at = next.Sub(epoch)
	}
	if at == a.wakeAt {
		return
	}
	if a.wakeAt = at; at == never {
		return
	}
	f.on(&a.host, at-f.now, func() {
		if a.wakeAt == at {
			a.wakeAt = never
			a.step(&election.Event{Kind: election.TimePassed})
		}
	})
}

func (a *agent) carryOut(act election.Action) {
	f := a.f
	switch act.Kind {
	case election.Send:
		b := f.named[act.To]
		f.send(&a.host, &b.host, func() {
			b.step(&election.Event{Kind: election.Received, ID: a.member.Name, Message: act.Message})
		}, func() { a.step(&election.Event{Kind: election.StreamBroken, ID: act.To}) })
	case election.Persist:
		f.on(&a.host, persistTime, func() { a.step(&election.Event{Kind: election.Persisted, Epoch: act.Claim.Epoch}) })
	case election.Lead:
		a.lead(act.Claim)
	case election.StepDown:
		a.term.end()
		a.term = nil
	case election.Follow:
		a.follow = act.Claim
		for _, g := range f.gateways {
			f.send(&a.host, &g.host, func() { g.learn(act.Claim, "") }, nil)
		}
	case election.NoLeader:
		a.follow = election.Claim{}
	}
}

// broken takes it that the connection to another agent has broken. Whether its process has ended
// shows when it is connected to anew.
func (a *agent) broken(b *agent) {
	a.step(&election.Event{Kind: election.StreamBroken, ID: b.member.Name})
	a.f.on(&a.host, a.f.cfg.RTT, func() {
		if b.dead {
			a.step(&election.Event{Kind: election.ProcessEnded, ID: b.member.Name})
		}
		if a.term != nil {
			a.term.broken(b)
		}
	})
}

// Terms.

// lead has an agent begin to lead.
func (a *agent) lead(claim election.Claim) {
	f := a.f
	cfg := leader.Config{Self: a.member.Name, Policy: f.cfg.Policy, Seed: f.cfg.Seed + claim.Epoch, Ahead: f.ahead}
	t := &term{
		f: f, agent: a, claim: claim, began: f.now, wakeAt: never,
		linked: make([]bool, len(f.gateways)), read: make([]uint64, len(f.gateways)),
	}
	var err error
	if t.state, err = leader.New(cfg); err != nil {
		f.fail(err)
		return
	}
	if f.cfg.Record != nil {
		if t.rec, err = leader.NewRecorder(&t.record, &cfg); err != nil {
			f.fail(fmt.Errorf("write recording: %w", err))
			return
		}
	}
	for i := range f.results {
		if r := &f.results[i]; r.open && r.Agent != a.member.Name {
			r.open, r.NextLeader, r.WithoutLeaderMS = false, a.member.Name, float64(f.now-r.at)/1e6
		}
	}
	a.term = t
	f.terms = append(f.terms, t)
	t.viewChanged()
	t.step(&leader.Event{Kind: leader.TimePassed})
	t.step(&leader.Event{Kind: leader.Learned, Advice: f.known})
	for _, b := range f.agents {
		t.open(b)
	}
}

// end has its streams end.
func (t *term) end() {
	t.over = true
	for i, g := range t.f.gateways {
		if t.linked[i] {
			t.f.send(&t.agent.host, &g.host, func() { g.closed(t) }, nil)
		}
	}
}

func (t *term) viewChanged() {
	var members []*leader.Member
	for _, b := range t.f.agents {
		if t.agent.knows(b) {
			members = append(members, b.member)
		}
	}
	t.step(&leader.Event{Kind: leader.ViewChanged, Members: members})
}

// open has the leader open a link to a member, which then says what its lane holds.
func (t *term) open(b *agent) {
	if t.over || !t.agent.knows(b) {
		return
	}
	hello := election.Message{Kind: election.Heartbeat, Claim: t.claim, Successor: t.agent.node.Successor()}
	t.f.send(&t.agent.host, &b.host, func() {
		if b != t.agent {
			b.step(&election.Event{Kind: election.Received, ID: t.agent.member.Name, Message: hello})
		}
		b.greet(t)
	}, func() { t.broken(b) })
}

// broken takes it that the link to a member has broken.
func (t *term) broken(b *agent) {
	if t.over {
		return
	}
	t.step(&leader.Event{Kind: leader.LinkBroken, Agent: b.member.Name, Gone: b.dead, Why: "it does not answer"})
	if !b.dead {
		t.f.on(&t.agent.host, redial, func() { t.open(b) })
	}
}

// connect takes in a gateway's stream.
func (t *term) connect(g *fleetGateway) {
	t.linked[g.index], t.read[g.index] = true, 0
	t.step(&leader.Event{Kind: leader.GatewayConnected, Gateway: g.id})
}

// disconnect forgets a gateway whose stream has ended.
func (t *term) disconnect(g *fleetGateway) {
	if !t.over && t.linked[g.index] {
		t.linked[g.index] = false
		t.step(&leader.Event{Kind: leader.GatewayLost, Gateway: g.id})
	}
}

// tell has something done at a gateway with a stream.
func (t *term) tell(g *fleetGateway, what func()) {
	if t.linked[g.index] {
		t.f.send(&t.agent.host, &g.host, what, nil)
	}
}

// step tells the state of an event and carries out what it asks for.
func (t *term) step(e *leader.Event) {
	f := t.f
	if t.over || f.err != nil {
		return
	}
	var before time.Duration
	if f.cfg.Clock != nil {
		before = f.cfg.Clock()
	}
	now := f.now - t.began
	actions := t.state.Step(now, e)
	if f.cfg.Clock != nil {
		f.cost += f.cfg.Clock() - before
	}
	f.steps++
	if t.rec != nil {
		if err := t.rec.Step(now, e, actions); err != nil {
			f.fail(fmt.Errorf("write recording: %w", err))
			return
		}
	}
	for i := range actions {
		t.carryOut(&actions[i])
	}
	at := max(f.now, t.began+t.state.Next())
	if e.Kind == leader.TimePassed {
		at = max(at, f.now+1) // time must pass
	}
	if at == t.wakeAt {
		return
	}
	t.wakeAt = at
	f.on(&t.agent.host, at-f.now, func() {
		if t.wakeAt == at {
			t.wakeAt = never
			t.step(&leader.Event{Kind: leader.TimePassed})
		}
	})
}

func (t *term) carryOut(a *leader.Action) {
	f := t.f
	switch a.Kind {
	case leader.Assign, leader.Reject, leader.OfferAgain:
		g, kind, d, name := f.gateways[a.Decision.Query.Gateway-1], a.Kind, a.Decision, a.Agent
		t.tell(g, func() { g.told(t, kind, &d, name) })
	case leader.Welcome:
		g := f.gateways[a.Gateway-1]
		t.tell(g, func() { g.opened(t) })
	case leader.Heartbeat:
		for i, g := range f.gateways {
			read, successor := t.read[i], t.agent.node.Successor()
			t.tell(g, func() {
				g.learn(t.claim, successor)
				g.heard(t, read)
			})
		}
	case leader.TellAhead:
		f.ahead = a.Duration
	case leader.AskHeld:
		t.open(f.named[a.Agent])
	case leader.Nonsense:
		f.fail(fmt.Errorf("the leader %s at %v: an event makes no sense: %s", t.agent.member.Name, f.now, a.Message))
	}
}

// Lanes.

// greet has an agent say what it is and what its lane holds, if it follows the leader.
func (a *agent) greet(t *term) {
	if a.follow != t.claim {
		return
	}
	a.link = t
	e := leader.Event{Kind: leader.Greeted, Agent: a.member.Name, Free: []time.Duration{a.remaining()}}
	for _, c := range a.held {
		e.Holds = append(e.Holds, leader.Held{
			Gateway: c.gateway.id, Sequence: c.query, Attempt: int(c.number), Model: modelID(&a.f.models[c.of.model]), BatchSize: int(c.of.batch),
		})
	}
	a.tell(func(t *term) {
		t.step(&leader.Event{Kind: leader.Described, Member: a.member, Free: e.Free})
		t.step(&e)
	})
}

// tell has the leader followed be told something.
func (a *agent) tell(what func(t *term)) {
	if t := a.link; t != nil && a.follow == t.claim {
		a.f.send(&a.host, &t.agent.host, func() {
			if !t.over {
				what(t)
			}
		}, nil)
	}
}

// ended tells the leader of the end of an attempt.
func (a *agent) ended(c *call, refused bool) {
	f := a.f
	e := leader.Event{
		Kind: leader.Completed, Agent: a.member.Name, Gateway: c.gateway.id, Sequence: c.query, Attempt: int(c.number),
		Remaining: a.remaining(), Refused: refused, Model: modelID(&f.models[c.of.model]), BatchSize: int(c.of.batch),
		Latency: f.now - c.of.arrival,
	}
	if !refused {
		e.Execution, e.Queue = f.now-c.start, c.start-c.cameAt
	}
	a.tell(func(t *term) { t.step(&e) })
}

// takes has a lane run an attempt that has arrived, or have it wait, or refuse it.
func (a *agent) takes(c *call) {
	f, l := a.f, &a.f.lanes[a.index]
	m := &f.models[c.of.model]
	if l.predicted[c.of.model] == nil {
		f.fail(fmt.Errorf("query %d of %s is on %s, which cannot run it", c.query, m.Name, a.member.Name))
		return
	}
	promised := a.unpromise(c.gateway, c.reservation)
	c.cameAt = f.now
	arrival := f.now - c.waited
	c.Estimate = l.predicted[c.of.model].Mean(int(c.of.batch))
	c.LatestStart = queue.LatestStart(arrival, m.QoSTarget, c.Estimate)
	switch {
	case f.cfg.Deadline > 0 && !promised && f.now+a.remaining() > arrival+f.cfg.Deadline:
		a.giveBack(c, elsewhere)
		return
	case m.RejectLate && c.LatestStart < f.now:
		a.giveBack(c, rejected)
		return
	}
	a.held = append(a.held, c)
	if c.reservation != 0 { // its leader has not sent it
		free := []time.Duration{a.remaining() + c.Estimate}
		a.tell(func(t *term) { t.step(&leader.Event{Kind: leader.LanesFree, Agent: a.member.Name, Free: free}) })
	}
	if a.running == nil {
		a.serve(c)
		return
	}
	a.waiting.Push(c, f.now)
	if m.RejectLate {
		f.on(&a.host, c.LatestStart+1-f.now, func() {
			if c.Waits() && c.LatestStart < f.now {
				a.waiting.Remove(c)
				a.giveBack(c, rejected)
			}
		})
	}
}

func (a *agent) serve(c *call) {
	f, l := a.f, &a.f.lanes[a.index]
	service := f.service(l, &c.of.query)
	c.start, a.running = f.now, c
	l.busy += service
	l.served++
	l.freeAt = f.now + service
	f.movedAt = f.now
	f.on(&a.host, service, func() {
		if c.over { // cut off before
			return
		}
		a.drop(c)
		a.next()
		a.ended(c, false)
		f.send(&a.host, &c.gateway.host, func() { c.ended(answered) }, nil)
	})
}

// next has the lane take the next query.
func (a *agent) next() {
	a.running = nil
	if c, ok := a.waiting.Pop(a.f.now); ok {
		a.serve(c)
	}
}

func (a *agent) drop(c *call) {
	c.over = true
	a.held = slices.DeleteFunc(a.held, func(o *call) bool { return o == c })
}

// giveBack tells that the lane will not run an attempt that it does not hold (any more).
func (a *agent) giveBack(c *call, why outcome) {
	a.drop(c)
	a.ended(c, true)
	a.f.send(&a.host, &c.gateway.host, func() { c.ended(why) }, nil)
}

// cutOff has the lane stop an attempt that waits or runs.
func (a *agent) cutOff(c *call) {
	if c.over {
		return
	}
	if !a.waiting.Remove(c) {
		l := &a.f.lanes[a.index]
		l.busy -= max(0, l.freeAt-a.f.now)
		a.running = nil
	}
	a.giveBack(c, elsewhere)
	if a.running == nil {
		a.next()
	}
}

// remaining is how long the agent expects its lane to be busy with what it has and has promised.
func (a *agent) remaining() time.Duration {
	d := a.waiting.Estimate()
	if c := a.running; c != nil {
		d += max(0, c.start+c.Estimate-a.f.now)
	}
	a.promises = slices.DeleteFunc(a.promises, func(p promise) bool { return p.until < a.f.now })
	for _, p := range a.promises {
		d += p.estimate
	}
	return d
}

// probed has a lane answer when it would be done, and promise the place.
func (a *agent) probed(g *fleetGateway, id uint64, model int32, batch int) {
	l := &a.f.lanes[a.index]
	const certainty = 0.9
	remaining := a.remaining()
	finish := remaining + l.known[model].Quantile(certainty, batch)
	a.promises = append(a.promises, promise{g, id, a.f.now + keepPlace, l.predicted[model].Mean(batch)})
	a.f.send(&a.host, &g.host, func() { g.answered(a, id, remaining, finish) }, nil)
}

// unpromise voids the promise of a place, and reports whether there was one.
func (a *agent) unpromise(g *fleetGateway, id uint64) bool {
	i := slices.IndexFunc(a.promises, func(p promise) bool { return p.gateway == g && p.id == id })
	if i >= 0 {
		a.promises = slices.Delete(a.promises, i, i+1)
	}
	return i >= 0
}
