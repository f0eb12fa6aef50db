package fleet

import (
	"fmt"
	"slices"
	"time"

	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/runtime/queue"
	"github.com/muster-serve/muster/runtime/queue/merge"
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
		t.described(&leader.Event{Kind: leader.Described, Member: a.member, Free: e.Free})
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

// ended tells the leader of the end of an attempt; of one that was cut off, how long it had run.
func (a *agent) ended(c *call, refused bool, ran time.Duration) {
	f := a.f
	e := leader.Event{
		Kind: leader.Completed, Agent: a.member.Name,
		Gateway: c.gateway.id, Sequence: c.of.state.Sequence, Attempt: c.number,
		Model: f.cfg.Models[c.of.Model].id(), BatchSize: c.of.BatchSize,
		Remaining: a.busy(), Refused: refused,
		Execution: ran, Latency: f.now - c.of.Arrival,
	}
	if !refused {
		e.Execution, e.Queue = f.now-c.start, c.start-c.cameAt
		if e.Merged = c.merged; c.joined {
			e.Execution, e.Queue = 0, f.now-c.cameAt
		}
	}
	if t := a.link; t != nil && a.follow == t.claim {
		m := f.newMessage(completed)
		m.term, m.event = t, e
		f.post(0, &a.host, &t.agent.host, m)
	}
}

// answer tells an attempt's gateway how the attempt has ended.
func (a *agent) answer(c *call, how ending) {
	m := a.f.newMessage(attemptEnded)
	m.call, m.how, m.remaining = c, how, a.remaining()
	a.f.post(0, &a.host, &c.gateway.host, m)
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
	arrival, deadline := f.now-c.waited, f.cfg.deadline(c.of.Model)
	c.Estimate = l.Predicted[c.of.Model].Mean(c.of.BatchSize)
	c.LatestStart = queue.LatestStart(arrival, m.QoSTarget, c.Estimate)
	switch {
	case deadline > 0 && !promised && f.now+a.remaining() > arrival+deadline:
		a.giveBack(c, refused)
		return
	case m.RejectLate && c.LatestStart < f.now:
		a.giveBack(c, rejected)
		return
	}
	a.held = append(a.held, c)
	if l.Kinds != nil {
		c.kind = l.Kinds[c.of.Model]
	}
	if c.reservation != 0 { // not sent by the leader
		free := []time.Duration{a.busy() + c.Estimate}
		a.tell(func(t *term) {
			t.step(&leader.Event{Kind: leader.LanesFree, Agent: a.member.Name, Free: free})
		})
	}
	if a.running == nil && c.kind == nil && a.waiting.Len() == 0 {
		a.serve([]*call{c})
		return
	}
	a.waiting.Push(c, f.now)
	if c.kind != nil {
		c.kind.Enter(c.of.BatchSize, c.Estimate)
		c.group = a.groups.Arrive(c.sent, f.now, c.LatestStart)
	}
	if a.running == nil { // others may come in the same moment
		a.startAt(f.now)
	}
	if m.RejectLate {
		f.on(&a.host, c.LatestStart+1-f.now, func() {
			if c.Waits() && c.LatestStart < f.now {
				a.remove(c)
				a.giveBack(c, rejected)
			}
		})
	}
}

// Merging implements [merge.Query].
func (c *call) Merging() (kind *merge.Kind, batch int, group *merge.Group) {
	return c.kind, c.of.BatchSize, c.group
}

// remove takes an attempt out of the lane's queue, and reports whether it was there.
func (a *agent) remove(c *call) bool {
	if !a.waiting.Remove(c) {
		return false
	}
	a.taken(c)
	return true
}

// taken counts an attempt that has left the lane's queue.
func (a *agent) taken(c *call) {
	if c.kind != nil {
		c.kind.Leave(c.of.BatchSize, c.Estimate)
	}
}

// startAt makes the idle lane look at its queue at a time.
func (a *agent) startAt(at time.Duration) {
	if a.startsAt <= at {
		return
	}
	a.startsAt = at
	a.f.on(&a.host, at-a.f.now, func() {
		if a.startsAt == at {
			a.startsAt = Never
		}
		if a.running == nil {
			a.next()
		}
	})
}

// next starts what the lane's queue has for it.
func (a *agent) next() {
	a.running = nil
	run, until := a.taker.Take(&a.waiting, a.f.now)
	if len(run) == 0 {
		if until != merge.Never {
			a.startAt(until)
		}
		return
	}
	for _, c := range run {
		a.taken(c)
	}
	a.serve(slices.Clone(run))
}

// serve starts attempts on the idle lane, as one run.
func (a *agent) serve(run []*call) {
	f, l, c, sum := a.f, a.lane, run[0], 0
	for _, x := range run {
		x.start = f.now
		sum += x.of.BatchSize
	}
	whole := c.of.Query
	whole.BatchSize = sum
	service := f.cfg.Service(a.index, &whole)
	if len(run) > 1 {
		c.Estimate = l.Predicted[c.of.Model].Mean(sum)
		for _, x := range run {
			x.merged, x.joined = sum, x != c
		}
	}
	a.running = run
	a.runs++
	l.Busy += service
	l.Served += len(run)
	a.freeAt = f.now + service
	f.movedAt = f.now
	m := f.newMessage(runEnded)
	m.agent, m.run, m.items = a, a.runs, sum
	f.postAfter(service, &a.host, m)
}

// runEnded handles that it is time for a run of so many items to end.
func (a *agent) runEnded(run, items int) {
	if a.runs == run && a.running != nil { // else it was cut off before
		a.done(items)
	}
}

// done ends the lane's run, of so many items.
func (a *agent) done(items int) {
	f, kind, late := a.f, a.running[0].kind, false
	for _, c := range a.running {
		late = late || f.now > c.of.Arrival+f.cfg.Models[c.of.Model].QoSTarget
	}
	if kind != nil {
		kind.Ran(items, late)
	}
	run := slices.DeleteFunc(a.running, func(c *call) bool { return c.over }) // cut off before
	for _, c := range run {
		a.drop(c)
	}
	a.next()
	for _, c := range run {
		a.ended(c, false, 0)
		a.answer(c, answered)
	}
	a.endIfDrained()
}

func (a *agent) drop(c *call) {
	c.over = true
	a.groups.Leave(c.group)
	c.group = nil
	a.held = slices.DeleteFunc(a.held, func(o *call) bool { return o == c })
}

// giveBack reports that the lane will not run an attempt, which it does not hold (any more).
func (a *agent) giveBack(c *call, why ending) {
	a.endsEarly(c, why, 0)
}

// endsEarly is giveBack of an attempt that had run for some time.
func (a *agent) endsEarly(c *call, why ending, ran time.Duration) {
	a.drop(c)
	a.ended(c, true, ran)
	a.answer(c, why)
	a.f.on(&a.host, 0, a.endIfDrained)
}

// cutOff makes the lane stop an attempt that waits or runs.
func (a *agent) cutOff(c *call) {
	if c.over {
		return
	}
	waits := a.remove(c)
	c.over = true
	runs := func(c *call) bool { return !c.over } // others of its run go on
	stops := !waits && slices.Contains(a.running, c) && !slices.ContainsFunc(a.running, runs)
	ran := time.Duration(0)
	if stops {
		if len(a.running) == 1 {
			ran = a.f.now - c.start
		}
		a.lane.Busy -= max(0, a.freeAt-a.f.now)
		a.running = nil
	}
	a.endsEarly(c, refused, ran)
	if stops {
		a.next()
	}
}

// busy is how long the agent expects its lane to be busy with what it has, as it tells leaders and
// gossip: they would not hear that a promise lapses.
func (a *agent) busy() time.Duration {
	d := a.waiting.Estimate()
	for _, k := range a.lane.Kinds {
		if k != nil {
			d -= k.Saved()
		}
	}
	if a.running != nil {
		d += max(0, a.running[0].start+a.running[0].Estimate-a.f.now)
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
