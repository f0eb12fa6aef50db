package fleet

import (
	"time"

	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/election"
)

// currentLeader is the agent that leads, the latest elected if there are several; nil if none
// leads.
func (f *Fleet) currentLeader() (leads *agent) {
	for _, a := range f.agents {
		if !a.dead && a.term != nil && (leads == nil ||
			leads.term.claim.Compare(a.term.claim) < 0) {
			leads = a
		}
	}
	return leads
}

// strikeFault makes a fault happen.
func (f *Fleet) strikeFault(fault Fault, r *Result) {
	f.faultAt = f.now
	var hit *agent
	switch fault.Target {
	case "":
	case TheLeader:
		hit = f.currentLeader()
	default:
		hit = f.named[fault.Target]
	}
	if fault.Target != "" {
		if hit == nil || hit.dead {
			return
		}
		r.Agent = hit.member.Name
	}
	until := Never
	if fault.Duration > 0 {
		until = f.now + fault.Duration
	}
	if hit != nil && hit == f.currentLeader() && fault.Verb != slow {
		for i := range f.results { // the leader that earlier faults hit still leads
			f.results[i].open = false
		}
		r.HitLeader, r.open = true, true
	}
	switch fault.Verb {
	case kill:
		hit.killProcess()
	case drain:
		hit.beginDrain(fault.Duration)
	case freeze:
		hit.freezeUntil(until)
	case cut:
		hit.cutNetwork(until, into, outOf)
	case deafen:
		hit.cutNetwork(until, into)
	case mute:
		hit.cutNetwork(until, outOf)
	case slow:
		d := delay{until: until, amount: fault.Amount}
		if hit != nil {
			d.of = &hit.endpoint
		}
		f.delays = append(f.delays, d)
	}
}

// eachOther calls do for all agents but a.
func (a *agent) eachOther(do func(b *agent)) {
	for _, b := range a.f.agents {
		if b != a {
			do(b)
		}
	}
}

// killProcess ends an agent's process. All connections to it break.
func (a *agent) killProcess() {
	f := a.f
	a.dead, a.inbox = true, nil
	if a.term != nil {
		a.term.markOver()
	}
	if len(a.running) > 0 {
		a.lane.Busy -= max(0, a.freeAt-f.now)
		a.vacateMachine()
	}
	for _, c := range a.held {
		c.over = true
	}
	a.resetLane()
	a.eachOther(func(b *agent) {
		f.send(&a.endpoint, &b.endpoint, func() { b.handleBrokenConnection(a) },
			nil)
	})
	for _, g := range f.gateways {
		f.send(&a.endpoint, &g.endpoint, func() { g.handleBrokenConnection(a) }, nil)
	}
	life := a.lives
	f.do(f.now+gossipGivesUp, func() {
		if a.lives == life {
			a.handleRemoval()
		}
	})
}

// beginDrain makes an agent end when its lane has nothing left, and start again a time after that;
// 0: never.
func (a *agent) beginDrain(back time.Duration) {
	if a.member.Draining {
		return
	}
	a.setDraining(true)
	a.startsAgainAfter = back
	a.f.tellViews()
	a.sendToLeader(func(t *term) {
		t.step(&leader.Event{
			Kind: leader.Described, Member: a.member, Free: []time.Duration{a.busyTime()},
		})
	})
	a.step(&election.Event{Kind: election.Resigned})
	a.endIfDrained()
}

// setDraining makes a new description of the agent.
func (a *agent) setDraining(draining bool) {
	member := *a.member
	member.Draining = draining
	member.Revision++
	a.member = &member
}

// endIfDrained ends the process of an agent that drains, if its lane has nothing left and it does
// not lead. An attempt that is on its way to it is then sent elsewhere.
func (a *agent) endIfDrained() {
	f := a.f
	if !a.member.Draining || a.dead || len(a.held) > 0 || a.term != nil {
		return
	}
	a.killProcess()
	a.handleRemoval() // it says so
	if a.startsAgainAfter > 0 {
		f.do(f.now+a.startsAgainAfter, a.startAgain)
	}
}

// startAgain starts the agent's process again.
func (a *agent) startAgain() {
	a.dead, a.lives = false, a.lives+1
	a.setDraining(false)
	a.follow, a.link, a.wakeAt = election.Claim{}, nil, Never
	node, err := election.New(election.Config{
		ID: a.member.Name, Rank: a.electionRank(), Epoch: a.epoch,
	})
	if err != nil {
		a.f.fail(err)
		return
	}
	a.node = node
	a.step(&election.Event{Kind: election.TimePassed})
	a.comeBack()
}

// freezeUntil stops an agent until a time.
func (a *agent) freezeUntil(until time.Duration) {
	f := a.f
	if !a.isFrozen() {
		a.froze = f.now
	}
	a.thaws = max(a.thaws, until)
	f.do(f.now+gossipGivesUp, func() {
		if a.isFrozen() && !a.dead && f.now-a.froze >= gossipGivesUp {
			a.handleRemoval()
		}
	})
	if until == Never {
		return
	}
	f.do(until, func() {
		if a.dead || a.isFrozen() {
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

// cutNetwork cuts the network between an agent and all other hosts, in some directions.
func (a *agent) cutNetwork(until time.Duration, ways ...direction) {
	f := a.f
	for _, way := range ways {
		o := &a.cuts[way]
		if o.until <= f.now {
			o.since = f.now
		}
		o.until = max(o.until, until)
	}
	f.do(f.now+connectionTimeout, func() {
		if a.dead || !f.cutFor(&a.endpoint, connectionTimeout) {
			return
		}
		a.eachOther(func(b *agent) {
			f.callAt(&b.endpoint, 0, func() { b.handleBrokenConnection(a) })
			f.callAt(&a.endpoint, 0, func() { a.handleBrokenConnection(b) })
		})
		for _, g := range f.gateways {
			g.handleBrokenConnection(a)
		}
	})
	// Gossip needs both directions: a ping, and its answer.
	f.do(f.now+gossipGivesUp, func() {
		if !a.dead && f.cutFor(&a.endpoint, gossipGivesUp) {
			a.handleRemoval()
		}
	})
	if until != Never {
		f.do(until+gossipReturns, a.comeBack)
	}
}

// handleRemoval handles that gossip removes an agent as a member, and all others at that agent.
func (a *agent) handleRemoval() {
	if a.left {
		return
	}
	a.left = true
	f := a.f
	a.eachOther(func(b *agent) {
		if b.left {
			return
		}
		f.callAt(&b.endpoint, 0, func() {
			b.step(&election.Event{
				Kind: election.MemberDown, ID: a.member.Name,
			})
		})
		f.callAt(&a.endpoint, 0, func() {
			a.step(&election.Event{
				Kind: election.MemberDown, ID: b.member.Name,
			})
		})
	})
	f.tellViews()
	for _, g := range f.gateways {
		g.handleLeft(a)
	}
}

// comeBack handles that gossip hears an agent again.
func (a *agent) comeBack() {
	f := a.f
	if !a.left || a.dead || a.isFrozen() || f.cutFor(&a.endpoint, 0) {
		return
	}
	a.left = false
	a.eachOther(func(b *agent) {
		if b.left {
			return
		}
		f.callAt(&b.endpoint, 0, func() { b.addMember(a) })
		f.callAt(&a.endpoint, 0, func() { a.addMember(b) })
	})
	f.tellViews()
	for _, g := range f.gateways {
		g.handleJoined(a)
	}
}

// tellViews tells all leaders which agents are members.
func (f *Fleet) tellViews() {
	for _, a := range f.agents {
		f.callAt(&a.endpoint, 0, func() {
			if a.term != nil {
				a.term.viewChanged()
			}
		})
	}
}
