package fleet

import (
	"time"

	"github.com/muster-serve/muster/leader/election"
	"github.com/muster-serve/muster/runtime/queue"
	"github.com/muster-serve/muster/runtime/queue/merge"
)

// leader is the agent that leads, the latest elected if there are several; nil if none leads.
func (f *Fleet) leader() (leads *agent) {
	for _, a := range f.agents {
		if !a.dead && a.term != nil && (leads == nil ||
			leads.term.claim.Compare(a.term.claim) < 0) {
			leads = a
		}
	}
	return leads
}

// strike makes a fault happen.
func (f *Fleet) strike(fault Fault, r *Result) {
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
	until := Never
	if fault.Duration > 0 {
		until = f.now + fault.Duration
	}
	if hit != nil && hit == f.leader() && fault.Verb != slow {
		for i := range f.results { // the leader that earlier faults hit still leads
			f.results[i].open = false
		}
		r.HitLeader, r.open = true, true
	}
	switch fault.Verb {
	case kill:
		hit.kill()
	case freeze:
		hit.freeze(until)
	case cut:
		hit.cutOffFromAll(until)
	case slow:
		d := delay{until: until, amount: fault.Amount}
		if hit != nil {
			d.of = &hit.host
		}
		f.delays = append(f.delays, d)
	}
}

// others calls do for all agents but a.
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
	if a.running != nil {
		a.lane.Busy -= max(0, a.freeAt-f.now)
	}
	for _, c := range a.held {
		c.over = true
	}
	a.running, a.held, a.promises = nil, nil, nil
	a.waiting, a.groups = queue.Queue[*call]{}, merge.Groups{}
	a.others(func(b *agent) { f.send(&a.host, &b.host, func() { b.broken(a) }, nil) })
	for _, g := range f.gateways {
		f.send(&a.host, &g.host, func() { g.broken(a) }, nil)
	}
	f.do(f.now+gossipGivesUp, a.leave)
}

// freeze stops an agent until a time.
func (a *agent) freeze(until time.Duration) {
	f := a.f
	if !a.frozen() {
		a.froze = f.now
	}
	a.thaws = max(a.thaws, until)
	f.do(f.now+gossipGivesUp, func() {
		if a.frozen() && !a.dead && f.now-a.froze >= gossipGivesUp {
			a.leave()
		}
	})
	if until == Never {
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

// cutOffFromAll cuts the network between an agent and all other hosts.
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
	if until != Never {
		f.do(until+gossipReturns, a.comeBack)
	}
}

// leave handles that gossip removes an agent as a member, and all others at that agent.
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
		f.on(&b.host, 0, func() {
			b.step(&election.Event{
				Kind: election.MemberDown, ID: a.member.Name,
			})
		})
		f.on(&a.host, 0, func() {
			a.step(&election.Event{
				Kind: election.MemberDown, ID: b.member.Name,
			})
		})
	})
	f.tellViews()
	for _, g := range f.gateways {
		g.left(a)
	}
}

// comeBack handles that gossip hears an agent again.
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

// tellViews tells all leaders which agents are members.
func (f *Fleet) tellViews() {
	for _, a := range f.agents {
		f.on(&a.host, 0, func() {
			if a.term != nil {
				a.term.viewChanged()
			}
		})
	}
}
