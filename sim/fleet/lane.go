package fleet

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/runtime/lane"
	"github.com/muster-serve/muster/sim/colocate"
)

// sendGreeting sends an agent's description and the attempts that its lane holds to t's leader, if
// the agent follows it.
func (a *agent) sendGreeting(t *term) {
	if a.follow != t.claim {
		return
	}
	a.link = t
	e := leader.Event{
		Kind: leader.Greeted, Agent: a.member.Name, Free: []time.Duration{a.busyTime()},
	}
	for _, c := range a.held {
		e.Holds = append(e.Holds, leader.Held{
			Gateway: c.gateway.id, Sequence: c.of.state.Sequence, Attempt: c.number,
			Model: a.f.cfg.Models[c.model].leaderID(), BatchSize: c.of.BatchSize,
		})
	}
	a.sendToLeader(func(t *term) {
		t.handleDescription(&leader.Event{Kind: leader.Described, Member: a.member, Free: e.Free})
		t.step(&e)
	})
}

// sendToLeader sends a message to the leader that the agent follows.
func (a *agent) sendToLeader(what func(t *term)) {
	if t := a.link; t != nil && a.follow == t.claim {
		a.f.send(&a.endpoint, t.host, func() {
			if !t.over {
				what(t)
			}
		}, nil)
	}
}

// tellEnd tells the leader of the end of an attempt; of one that was cut off, how long it had run.
func (a *agent) tellEnd(c *call, refused bool, ran time.Duration) {
	f := a.f
	e := leader.Event{
		Kind: leader.Completed, Agent: a.member.Name,
		Gateway: c.gateway.id, Sequence: c.gateway.numberAtLeader(c.of.state.Sequence),
		Attempt: c.number, Model: f.cfg.Models[c.model].leaderID(), BatchSize: c.of.BatchSize,
		Users: c.of.Users, Values: c.of.Values, Remaining: a.busyTime(), Refused: refused,
		Execution: ran, Latency: f.now - c.of.Arrival,
	}
	if !refused {
		e.Execution, e.Queue = f.now-c.Started(), c.Started()-c.cameAt
		e.MergedUsers, e.MergedValues = c.mergedUsers, c.mergedValues
		if e.Merged = c.merged; c.joined {
			e.Execution, e.Queue = 0, f.now-c.cameAt
		}
	}
	if t := a.link; t != nil && a.follow == t.claim {
		m := f.newMessage(completed)
		m.term, m.event = t, e
		f.sendMessage(0, &a.endpoint, t.host, m)
	}
}

// sendAnswer tells an attempt's gateway how the attempt has ended.
func (a *agent) sendAnswer(c *call, how attemptExit) {
	m := a.f.newMessage(attemptEnded)
	m.call, m.how, m.remaining = c, how, a.remainingTime()
	a.f.sendMessage(0, &a.endpoint, &c.gateway.endpoint, m)
}

// tableEstimator predicts what a lane runs by what is assumed of it; the lane learns nothing by
// itself.
type tableEstimator struct {
	of     *LaneConfig
	models map[names.ModelKey]int
}

// Estimate implements [lane.Estimator].
func (e *tableEstimator) Estimate(profile names.ModelKey, batchSize int) time.Duration {
	return e.of.Predicted[e.models[profile]].Mean(batchSize)
}

// High implements [lane.Estimator]: it is the mean, for nothing that simulated lanes decide reads
// the difference.
func (e *tableEstimator) High(profile names.ModelKey, batchSize int) time.Duration {
	return e.Estimate(profile, batchSize)
}

// Observe implements [lane.Estimator].
func (e *tableEstimator) Observe(names.ModelKey, int, time.Duration) {}

// resetLane makes the agent's lane one that has nothing.
func (a *agent) resetLane() {
	a.running, a.held, a.promises = a.running[:0], nil, nil
	a.laneWakesAt = Never
	a.lanes = lane.New(lane.Config{
		Lanes: 1, Cores: 1, MaxWaiting: math.MaxInt, MaxWaitingBytes: math.MaxInt64,
		Estimator: &tableEstimator{a.lane, a.f.indexOf},
	})
	a.classes = make([]lane.Class, len(a.lane.Kinds))
}

// classOf returns what a query of a model shares with those that it may run together with, as is
// assumed now; nil if it runs alone.
func (a *agent) classOf(model int) *lane.Class {
	if a.lane.Kinds == nil || a.lane.Kinds[model] == nil {
		return nil
	}
	kind, c := a.lane.Kinds[model], &a.classes[model]
	c.Policy, c.Latency, c.Largest = kind.Policy, kind.Latency, kind.Largest
	return c
}

// stepLane tells the lane what has happened, and carries out what is to be done. What becomes of
// the members of a run that has ended is for the caller.
func (a *agent) stepLane(e lane.Event) {
	actions, wakeAt := a.lanes.Step(a.f.now, e)
	for i := range actions {
		c := actions[i].Query.Owner.(*call)
		switch actions[i].Kind {
		case lane.Start:
			a.start(c, actions[i].Run)
		case lane.CancelRun:
			a.cancelled = c
		case lane.Refuse:
			if actions[i].Reason == lane.Late {
				a.endsEarly(c, rejected, 0)
			}
		}
	}
	if wakeAt < a.laneWakesAt {
		a.laneWakesAt = wakeAt
		a.f.callAt(&a.endpoint, wakeAt-a.f.now, func() {
			if a.laneWakesAt == wakeAt {
				a.laneWakesAt = Never
			}
			a.stepLane(lane.Event{Kind: lane.TimePassed})
		})
	}
}

// takeAttempt handles an attempt that has arrived: the lane runs it, queues it or refuses it.
func (a *agent) takeAttempt(c *call) {
	f, l := a.f, a.lane
	if c.over { // cut off on its way
		return
	}
	m := &f.cfg.Models[c.model]
	if l.Predicted[c.model] == nil {
		f.fail(fmt.Errorf("query %d of %s is on %s, which cannot run it", c.of.Sequence, m.Name,
			a.member.Name))
		return
	}
	c.Query = lane.Query{
		Owner: c, Profile: m.Name, BatchSize: f.sizeOf(&c.of.ArrivingQuery), Arrival: f.now - c.waited,
		QoSTarget: m.QoSTarget, RejectLate: m.RejectLate, Class: a.classOf(c.model), Group: c.sent,
	}
	promised := false
	if c.Reservation = a.takePromise(c.gateway, c.reservation); c.Reservation != nil {
		promised = a.lanes.HasReserved(c.Reservation, f.now)
	}
	c.cameAt, c.found = f.now, len(a.held)
	if deadline := f.cfg.deadlineOf(c.model); deadline > 0 && !promised &&
		f.now+a.remainingTime() > c.Arrival+deadline {
		a.endsEarly(c, refused, 0)
		return
	}
	before := a.busyTime()
	a.held = append(a.held, c)
	a.stepLane(lane.Event{Kind: lane.Arrived, Query: &c.Query})
	if c.reservation != 0 && !c.over { // not sent by the leader
		free := []time.Duration{before + l.Predicted[c.model].Mean(c.BatchSize)}
		a.sendToLeader(func(t *term) {
			t.step(&leader.Event{Kind: leader.LanesFree, Agent: a.member.Name, Free: free})
		})
	}
}

// start starts attempts on the idle lane: c, or those of a run.
func (a *agent) start(c *call, run *lane.Run) {
	f, l, whole := a.f, a.lane, &a.query
	*whole = c.of.ArrivingQuery
	whole.Model = c.model
	a.running = a.running[:0]
	if run == nil {
		a.running = append(a.running, c)
	} else {
		whole.BatchSize, whole.Work, whole.Users, whole.Values = 0, 0, 0, 0
		for _, q := range run.Members {
			of := &q.Owner.(*call).of.ArrivingQuery
			whole.BatchSize, whole.Work = whole.BatchSize+of.BatchSize, whole.Work+of.Size()
			whole.Users, whole.Values = whole.Users+of.Users, whole.Values+of.Values
		}
		for _, q := range run.Members {
			x := q.Owner.(*call)
			x.merged, x.joined = whole.BatchSize, x != c
			x.mergedUsers, x.mergedValues = whole.Users, whole.Values
			a.running = append(a.running, x)
		}
	}
	service := f.cfg.Service(a.index, whole)
	l.Served += len(a.running)
	a.freeAt, f.movedAt = f.now, f.now
	if on := l.Seat.Machine; on != nil {
		on.Start(f.now, l.Seat.Lane, c.model, service)
		f.retimeRuns(on)
		return
	}
	a.scheduleEnd(f.now + service)
}

// scheduleEnd makes the lane's run end at a time.
func (a *agent) scheduleEnd(at time.Duration) {
	f := a.f
	a.runs++
	a.lane.Busy += at - a.freeAt
	a.freeAt = at
	m := f.newMessage(runEnded)
	m.agent, m.run = a, a.runs
	f.scheduleMessage(at-f.now, &a.endpoint, m)
}

// retimeRuns changes the ends of runs that changes on their machine have moved.
func (f *Fleet) retimeRuns(on *colocate.Machine) {
	for lane, end := range on.Moved() {
		f.agents[lane].scheduleEnd(end)
	}
}

// vacateMachine tells the lane's machine, if it shares one, that nothing runs there any more.
func (a *agent) vacateMachine() {
	if on := a.lane.Seat.Machine; on != nil {
		on.Stop(a.f.now, a.lane.Seat.Lane)
		a.f.retimeRuns(on)
	}
}

// runEnded handles that it is time for a run to end.
func (a *agent) runEnded(run int) {
	if a.runs != run || len(a.running) == 0 { // it was cut off before, or ends at another time
		return
	}
	first := a.running[0]
	e := lane.Event{Kind: lane.RunEnded, Query: &first.Query, Execution: a.f.now - first.Started()}
	if first.over { // others of its run went on
		e.Cause = lane.CallerLeft
	}
	ended := a.running
	a.running, a.ended = a.ended[:0], ended
	ended = slices.DeleteFunc(ended, func(c *call) bool { return c.over }) // cut off before
	for _, c := range ended {
		a.removeCall(c)
	}
	a.vacateMachine()
	a.stepLane(e)
	for _, c := range ended {
		a.tellEnd(c, false, 0)
		a.sendAnswer(c, answered)
	}
	a.endIfDrained()
}

func (a *agent) removeCall(c *call) {
	c.over = true
	a.held = slices.DeleteFunc(a.held, func(o *call) bool { return o == c })
}

// endsEarly reports that the lane does not run an attempt, or not any more; then ran is how long it
// had run.
func (a *agent) endsEarly(c *call, why attemptExit, ran time.Duration) {
	a.removeCall(c)
	a.tellEnd(c, true, ran)
	a.sendAnswer(c, why)
	a.f.callAt(&a.endpoint, 0, a.endIfDrained)
}

// cutOff makes the lane stop an attempt that waits or runs. Others of its run go on.
func (a *agent) cutOff(c *call) {
	if c.over {
		return
	}
	ran := time.Duration(0)
	a.cancelled = nil
	a.stepLane(lane.Event{Kind: lane.Cancelled, Query: &c.Query, Cause: lane.CallerLeft})
	if first := a.cancelled; first != nil {
		if len(a.running) == 1 {
			ran = a.f.now - c.Started()
		}
		a.lane.Busy -= max(0, a.freeAt-a.f.now)
		a.running = a.running[:0]
		a.vacateMachine()
		a.stepLane(lane.Event{
			Kind: lane.RunFailed, Query: &first.Query, Cause: lane.CallerLeft,
		})
	}
	a.endsEarly(c, refused, ran)
}

// busyTime is how long the agent expects its lane to be busy with what it has, as it tells leaders
// and gossip: they would not hear that a promise lapses.
func (a *agent) busyTime() time.Duration { return a.lanes.LaneRemaining(0, a.f.now) }

// remainingTime is the same including the time that the agent has promised; it is what gateways
// that ask are told.
func (a *agent) remainingTime() time.Duration { return a.lanes.TimeUntilFree(a.f.now) }

// answerProbe makes the agent answer a question, and reserve its lane.
func (a *agent) answerProbe(g *gateway, id uint64, model int, batch int) {
	const certainty = 0.9
	r := &lane.Reservation{
		Profile: a.f.cfg.Models[model].Name, BatchSize: batch, Keep: keepPlace,
	}
	a.stepLane(lane.Event{Kind: lane.Reserved, Reservation: r})
	remaining := r.Remaining
	finish := remaining + a.lane.Known[model].Quantile(certainty, batch)
	a.promises = slices.DeleteFunc(a.promises, func(p promise) bool {
		return !a.lanes.HasReserved(p.of, a.f.now)
	})
	a.promises = append(a.promises, promise{g, id, r})
	a.f.send(&a.endpoint, &g.endpoint, func() { g.handleProbeAnswer(a, id, remaining, finish) },
		nil)
}

// takePromise takes a reservation off the promises; nil if there is none.
func (a *agent) takePromise(g *gateway, id uint64) *lane.Reservation {
	i := slices.IndexFunc(a.promises, func(p promise) bool { return p.gateway == g && p.id == id })
	if i < 0 {
		return nil
	}
	r := a.promises[i].of
	a.promises = slices.Delete(a.promises, i, i+1)
	return r
}

// releasePromise ends a reservation, if there is one.
func (a *agent) releasePromise(g *gateway, id uint64) {
	if r := a.takePromise(g, id); r != nil {
		a.stepLane(lane.Event{Kind: lane.Released, Reservation: r})
	}
}
