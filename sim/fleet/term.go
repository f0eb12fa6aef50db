package fleet

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/election"
	"github.com/muster-serve/muster/leader/learn"
)

// A term is an agent's leadership.
type term struct {
	f           *Fleet
	agent       *agent    // the leader; nil in a settled fleet
	host        *endpoint // where it does
	claim       election.Claim
	state       *leader.State
	began       time.Duration
	wakeAt      time.Duration // when to step the state
	linked      []bool        // by gateway: it has a stream to this leader
	read        []uint64      // by gateway: submits read on its stream
	over        bool
	wakeDelayed bool         // it is time to step the state, but its host is frozen
	told        []uint64     // by gateway: decisions of this leader
	passed      leader.Event // that time has passed; kept, because it is passed often
	// latencies exist of models that the leader did not know when it got them
	lacks  bool
	record bytes.Buffer
	rec    *leader.Recorder // nil: not recorded

	// learned is what the leader learns by; nil unless Config.Learns. It looks at what was seen
	// after learnRest, and again at looksAt.
	learned *learn.State
	seen    learn.Seen
	looksAt time.Duration
}

// learnRest is how long queries and answers gather before a leader learns from them.
const learnRest = 50 * time.Millisecond

// beginTerm starts the term of an agent that has been elected.
func (a *agent) beginTerm(claim election.Claim) {
	f := a.f
	cfg := leader.Config{
		Self: a.member.Name, Policy: f.cfg.Policy, NewChooser: f.cfg.NewChooser,
		Seed: f.cfg.Seed + claim.Epoch, Ahead: f.ahead,
	}
	t, err := f.newTerm(&a.endpoint, cfg)
	if err != nil {
		f.fail(err)
		return
	}
	t.agent, t.claim = a, claim
	for i := range f.results {
		if r := &f.results[i]; r.open && r.Agent != a.member.Name {
			r.open, r.NextLeader, r.WithoutLeaderMS = false, a.member.Name, float64(f.now-r.at)/1e6
		}
	}
	a.term = t
	if f.cfg.Learns {
		t.learned, t.looksAt = learn.New(f.priorBook()), Never
		var told []leader.Latency
		for _, key := range slices.SortedFunc(maps.Keys(f.told), names.TableKey.Compare) {
			told = append(told, f.told[key])
		}
		t.learned.Suggest(a.knownMembers(), told)
	}
	t.viewChanged()
	t.step(&leader.Event{Kind: leader.TimePassed})
	t.tellKnown()
	for _, b := range f.agents {
		t.open(b)
	}
}

// newTerm returns a term that begins now, at a host.
func (f *Fleet) newTerm(at *endpoint, cfg leader.Config) (*term, error) {
	n := len(f.gateways)
	t := &term{
		f: f, host: at, began: f.now, wakeAt: Never,
		linked: make([]bool, n), read: make([]uint64, n), told: make([]uint64, n),
	}
	var err error
	if t.state, err = leader.NewState(cfg); err != nil {
		return nil, err
	}
	if f.cfg.Record != nil {
		w := f.cfg.Record
		if !f.cfg.Settled { // several terms, one after the other
			w = &t.record
		}
		if t.rec, err = leader.NewRecorder(w, &cfg); err != nil {
			return nil, fmt.Errorf("write recording: %w", err)
		}
	}
	f.terms, f.liveTerms = append(f.terms, t), append(f.liveTerms, t)
	return t, nil
}

// endTerm ends the term and its streams.
func (t *term) endTerm() {
	t.markOver()
	for i, g := range t.f.gateways {
		if t.linked[i] {
			t.f.send(t.host, &g.endpoint, func() {
				t.linked[i] = false
				if g.to == t.agent {
					g.handleClosed()
				}
			}, nil)
		}
	}
}

// markOver notes that the leader does nothing any more.
func (t *term) markOver() {
	t.over = true
	t.f.liveTerms = slices.DeleteFunc(t.f.liveTerms, func(o *term) bool { return o == t })
}

// tellKnown tells the leader what is known from the start, unless it learns. It takes no latencies
// of models that it does not know yet, and is told them again when an agent has described itself.
func (t *term) tellKnown() {
	if t.learned == nil {
		t.step(&leader.Event{Kind: leader.Learned, Advice: t.f.known})
		t.lacks = t.state.Sizes()["latencies"] < len(t.f.known.Latencies)
	}
}

// handleDescription takes an agent's description.
func (t *term) handleDescription(e *leader.Event) {
	t.step(e)
	if t.lacks {
		t.tellKnown()
	}
}

func (t *term) viewChanged() {
	t.step(&leader.Event{Kind: leader.ViewChanged, Members: t.agent.knownMembers()})
}

// knownMembers are the members that the agent knows.
func (a *agent) knownMembers() (all []*leader.Member) {
	for _, b := range a.f.agents {
		if a.isMember(b) {
			all = append(all, b.member)
		}
	}
	return all
}

// scheduleLearning has the leader learn from what was seen, after a time.
func (t *term) scheduleLearning(after time.Duration) {
	at := t.f.now + after
	if t.learned == nil || t.looksAt <= at {
		return
	}
	t.looksAt = at
	t.f.callAt(t.host, after, func() {
		if t.over || t.looksAt != at {
			return
		}
		seen := t.seen
		t.seen, t.looksAt = learn.Seen{}, Never
		// prices may be unknown at first
		advice, next, _ := t.learned.Look(epoch.Add(t.f.now), seen)
		if next > 0 {
			t.scheduleLearning(next)
		}
		if advice != nil {
			t.step(&leader.Event{Kind: leader.Learned, Advice: advice})
		}
	})
}

// open makes the leader open a link to a member, which then greets it.
func (t *term) open(b *agent) {
	if t.over || !t.agent.isMember(b) {
		return
	}
	hello := election.Message{
		Kind: election.Heartbeat, Claim: t.claim, Successor: t.agent.node.Successor(),
	}
	t.f.send(t.host, &b.endpoint, func() {
		if b != t.agent {
			b.step(&election.Event{
				Kind: election.Received, ID: t.agent.member.Name, Message: hello,
			})
		}
		b.sendGreeting(t)
	}, func() { t.handleBrokenLink(b) })
}

// handleBrokenLink handles that the link to a member has broken.
func (t *term) handleBrokenLink(b *agent) {
	if t.over {
		return
	}
	t.step(&leader.Event{
		Kind: leader.LinkBroken, Agent: b.member.Name, Gone: b.dead, Why: "it does not answer",
	})
	if !b.dead {
		t.f.callAt(t.host, redial, func() { t.open(b) })
	}
}

// connect accepts a gateway's stream.
func (t *term) connect(g *gateway) {
	t.linked[g.index], t.read[g.index] = true, 0
	t.step(&leader.Event{Kind: leader.GatewayConnected, Gateway: g.id})
}

// handleDisconnect handles that a gateway's stream has ended.
func (t *term) handleDisconnect(g *gateway) {
	if !t.over && t.linked[g.index] {
		t.linked[g.index] = false
		t.step(&leader.Event{Kind: leader.GatewayLost, Gateway: g.id})
	}
}

// handleEvents takes the events of a gateway's message, and acknowledges them.
func (t *term) handleEvents(g *gateway, events []leader.Event) {
	if t.over || !t.linked[g.index] {
		return
	}
	told := t.told[g.index]
	for i := range events {
		if events[i].Kind == leader.Submitted {
			t.read[g.index]++
			told = t.told[g.index]
		}
		t.step(&events[i])
	}
	t.acknowledgeSubmits(g, told)
}

// hearSubmit takes a message of a gateway with one query.
func (t *term) hearSubmit(g *gateway, e *leader.Event) {
	if t.over || !t.linked[g.index] {
		return
	}
	told := t.told[g.index]
	t.read[g.index]++
	t.step(e)
	t.acknowledgeSubmits(g, told)
}

// acknowledgeSubmits tells a gateway how many submits are read, unless a decision has told it
// already: a decision says so, too, and more than told were made. In a fleet that is settled no
// gateway waits for that.
func (t *term) acknowledgeSubmits(g *gateway, told uint64) {
	if !t.linked[g.index] || t.told[g.index] > told || t.f.cfg.Settled {
		return
	}
	m := t.f.newMessage(acknowledged)
	m.term, m.gateway, m.read = t, g, t.read[g.index]
	t.f.sendMessage(0, t.host, &g.endpoint, m)
}

// callGateway calls what at a gateway, if it has a stream, after a message's way.
func (t *term) callGateway(g *gateway, what func()) {
	if t.linked[g.index] {
		t.f.send(t.host, &g.endpoint, what, nil)
	}
}

// step passes an event to the state and carries out its actions.
func (t *term) step(e *leader.Event) {
	f := t.f
	if t.over || f.err != nil {
		return
	}
	if f.seen != nil {
		f.seen(t, e)
	}
	before, now := f.readClock(), f.now-t.began
	actions := t.state.Step(now, e)
	f.countStep(before)
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
	if at != t.wakeAt {
		t.wakeAt, t.wakeDelayed = at, false
	}
}

// readClock returns the wall time, 0 if there is no clock.
func (f *Fleet) readClock() time.Duration {
	if f.cfg.Clock == nil {
		return 0
	}
	return f.cfg.Clock()
}

// countStep counts a step of what decides, which began at a wall time.
func (f *Fleet) countStep(began time.Duration) {
	f.steps++
	f.cost += f.readClock() - began
}

// wake steps the state at the time for which it asked.
func (t *term) wake() {
	f, at, h := t.f, t.wakeAt, t.host
	if !h.dead && !f.isHostFrozen(h) && len(h.inbox) == 0 {
		t.passTime()
		return
	}
	t.wakeDelayed = true
	f.deliverTo(h, func() {
		if t.wakeAt == at {
			t.passTime()
		}
	})
}

func (t *term) passTime() {
	t.wakeAt, t.wakeDelayed = Never, false
	t.passed = leader.Event{Kind: leader.TimePassed}
	t.step(&t.passed)
}

func (t *term) carryOut(a *leader.Action) {
	f := t.f
	switch a.Kind {
	case leader.Assign, leader.Reject, leader.OfferAgain, leader.Split:
		g := f.gateways[a.Decision.Query.Gateway-1]
		if !t.linked[g.index] {
			return
		}
		t.told[g.index]++
		m := f.newMessage(decided)
		m.term, m.gateway, m.read, m.action = t, g, t.read[g.index], a.Kind
		m.decision, m.name, m.model = a.Decision, a.Agent, a.Model.Name
		m.decision.Rows = slices.Clone(a.Decision.Rows)
		f.sendMessage(0, t.host, &g.endpoint, m)
	case leader.Nonsense:
		f.fail(fmt.Errorf("the leader at %v: an event makes no sense: %s", f.now, a.Message))
	default:
		if f.cfg.Settled {
			if f.cfg.Acts != nil {
				f.cfg.Acts(a)
			}
			return
		}
		t.carryOutElse(a)
	}
}

// carryOutElse carries out what is no decision, and needs an agent that leads.
func (t *term) carryOutElse(a *leader.Action) {
	f := t.f
	switch a.Kind {
	case leader.Welcome:
		g := f.gateways[a.Gateway-1]
		successor := t.agent.node.Successor()
		t.callGateway(g, func() { g.handleOpened(t, successor) })
	case leader.Heartbeat:
		for i, g := range f.gateways {
			read, successor := t.read[i], t.agent.node.Successor()
			t.callGateway(g, func() {
				g.noteLeadership(t.claim, successor)
				g.handleMessage(t, read)
			})
		}
	case leader.TellAhead:
		f.ahead = a.Duration
	case leader.AskHeld:
		t.open(f.named[a.Agent])
	default:
		t.noteForLearning(a)
	}
}

// noteForLearning keeps what the learning loop is to be told of.
func (t *term) noteForLearning(a *leader.Action) {
	f := t.f
	if f.cfg.Acts != nil && t == f.currentTerm() {
		f.cfg.Acts(a)
	}
	if !f.cfg.learns() {
		return
	}
	switch a.Kind {
	case leader.TellLatencies:
		t.tellLatencies(slices.Clone(a.Latencies))
	case leader.TellPrices:
		prices := withoutVersions(a.Prices)
		for _, g := range f.gateways {
			t.callGateway(g, func() { g.known.SetPrices(prices) })
		}
	}
	if t.learned == nil {
		return
	}
	switch a.Kind {
	case leader.Arrived:
		t.seen.Arrivals = append(t.seen.Arrivals, learn.Arrival{
			Model: a.Model, BatchSize: a.BatchSize, At: epoch.Add(f.now),
		})
		t.scheduleLearning(learnRest)
	case leader.Observed, leader.ObservedCut:
		t.seen.Observations = append(t.seen.Observations, learn.Observation{
			Member: a.Member, Model: a.Model, BatchSize: a.BatchSize, Users: a.Users,
			Values: a.Values, Execution: a.Duration,
			Cut: a.Kind == leader.ObservedCut, At: epoch.Add(f.now),
		})
		t.scheduleLearning(learnRest)
	case leader.PoolChanged:
		t.seen.Pool = a.Pool
		t.scheduleLearning(0)
	}
}
