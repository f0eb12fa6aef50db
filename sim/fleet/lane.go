package fleet

import (
	"fmt"
	"slices"
	"time"

	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/runtime/queue"
)

// greet sends an agent's description and the attempts that its lane holds to t's leader, if the
// agent follows it.
func (a *agent) greet(t *term) {
	if a.follow != t.claim {
		return
	}
	a.link = t
	e := leader.Event{
		Kind: leader.Greeted, Agent: a.member.Name, Free: []time.Duration{a.busy()},
	}
	for _, c := range a.held {
		e.Holds = append(e.Holds, leader.Held{
			Gateway: c.gateway.id, Sequence: c.of.state.Sequence, Attempt: c.number,
			Model: a.f.cfg.Models[c.of.Model].id(), BatchSize: c.of.BatchSize,
		})
	}
	a.tell(func(t *term) {
		t.step(&leader.Event{Kind: leader.Described, Member: a.member, Free: e.Free})
		t.step(&e)
	})
}

// tell sends a message to the leader that the agent follows.
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
		Kind: leader.Completed, Agent: a.member.Name,
		Gateway: c.gateway.id, Sequence: c.of.state.Sequence, Attempt: c.number,
		Model: f.cfg.Models[c.of.Model].id(), BatchSize: c.of.BatchSize,
		Remaining: a.busy(), Refused: refused,
		Latency: f.now - c.of.Arrival,
	}
	if !refused {
		e.Execution, e.Queue = f.now-c.start, c.start-c.cameAt
	}
	a.tell(func(t *term) { t.step(&e) })
}

// takes handles an attempt that has arrived: the lane runs it, queues it or refuses it.
func (a *agent) takes(c *call) {
	f, l := a.f, a.lane
	m := &f.cfg.Models[c.of.Model]
	if l.Predicted[c.of.Model] == nil {
		f.fail(fmt.Errorf("query %d of %s is on %s, which cannot run it", c.of.Sequence, m.Name,
			a.member.Name))
		return
	}
	promised := a.unpromise(c.gateway, c.reservation)
	c.cameAt = f.now
	arrival := f.now - c.waited
	c.Estimate = l.Predicted[c.of.Model].Mean(c.of.BatchSize)
	c.LatestStart = queue.LatestStart(arrival, m.QoSTarget, c.Estimate)
	switch {
	case f.cfg.Deadline > 0 && !promised && f.now+a.remaining() > arrival+f.cfg.Deadline:
		a.giveBack(c, refused)
		return
	case m.RejectLate && c.LatestStart < f.now:
		a.giveBack(c, rejected)
		return
	}
	a.held = append(a.held, c)
	if c.reservation != 0 { // not sent by the leader
		free := []time.Duration{a.busy() + c.Estimate}
		a.tell(func(t *term) {
			t.step(&leader.Event{Kind: leader.LanesFree, Agent: a.member.Name, Free: free})
		})
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
	f, l := a.f, a.lane
	service := f.cfg.Service(a.index, &c.of.Query)
	c.start, a.running = f.now, c
	l.Busy += service
	l.Served++
	a.freeAt = f.now + service
	f.movedAt = f.now
	f.on(&a.host, service, func() {
		if c.over { // it was cut off before
			return
		}
		a.drop(c)
		a.next()
		a.ended(c, false)
		remaining := a.remaining()
		f.send(&a.host, &c.gateway.host, func() { c.ended(answered, remaining) }, nil)
	})
}

// next starts the next query of the lane's queue.
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

// giveBack reports that the lane will not run an attempt, which it does not hold (any more).
func (a *agent) giveBack(c *call, why ending) {
	a.drop(c)
	a.ended(c, true)
	remaining := a.remaining()
	a.f.send(&a.host, &c.gateway.host, func() { c.ended(why, remaining) }, nil)
}

// cutOff makes the lane stop an attempt that waits or runs.
func (a *agent) cutOff(c *call) {
	if c.over {
		return
	}
	if !a.waiting.Remove(c) {
		a.lane.Busy -= max(0, a.freeAt-a.f.now)
		a.running = nil
	}
	a.giveBack(c, refused)
	if a.running == nil {
		a.next()
	}
}

// busy is how long the agent expects its lane to be busy with what it has, as it tells leaders and
// gossip: they would not hear that a promise lapses.
func (a *agent) busy() time.Duration {
	d := a.waiting.Estimate()
	if c := a.running; c != nil {
		d += max(0, c.start+c.Estimate-a.f.now)
	}
	return d
}

// remaining is the same with what the agent has promised, as it tells gateways that ask.
func (a *agent) remaining() time.Duration {
	d := a.busy()
	a.promises = slices.DeleteFunc(a.promises, func(p promise) bool { return p.until < a.f.now })
	for _, p := range a.promises {
		d += p.estimate
	}
	return d
}

// probed makes the agent answer a question, and reserve its lane.
func (a *agent) probed(g *gateway, id uint64, model int, batch int) {
	l := a.lane
	const certainty = 0.9
	remaining := a.remaining()
	finish := remaining + l.Known[model].Quantile(certainty, batch)
	a.promises = append(a.promises, promise{
		g, id, a.f.now + keepPlace, l.Predicted[model].Mean(batch),
	})
	a.f.send(&a.host, &g.host, func() { g.answered(a, id, remaining, finish) }, nil)
}

// unpromise removes a reservation, and reports whether there was one.
func (a *agent) unpromise(g *gateway, id uint64) bool {
	i := slices.IndexFunc(a.promises, func(p promise) bool { return p.gateway == g && p.id == id })
	if i >= 0 {
		a.promises = slices.Delete(a.promises, i, i+1)
	}
	return i >= 0
}
