package client

import (
	"time"

	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/lateness"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/client/queries"
)

// A Missed says of a query that was late, refused or failed, for which cause.
type Missed struct {
	Model string // or a family; "" if it is not known
	Cause lateness.Cause
	Agent string // whose doing it is; "" if it is none's, or not known
}

// A missedSum sums up queries of one Missed.
type missedSum struct {
	count uint64
	time  time.Duration // that the cause took
}

// Missed notes that a query of the gateway's owner was late, refused or failed, so that the leader
// can say why. A Client notes its queries itself. time is how much of the query's time the cause
// took.
func (g *Gateway) Missed(m Missed, time time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.missed == nil {
		g.missed = map[Missed]missedSum{}
	}
	if sum, ok := g.missed[m]; ok || len(g.missed) < maxFailures {
		g.missed[m] = missedSum{sum.count + 1, sum.time + time}
	}
	if g.link != nil && !g.closed {
		g.startWatch()
	}
}

// MissedBy is why a query with the record r, which may be nil, was late or, with the given reason,
// failed; "" if it was answered in time. time is how much of the query's time that took.
func MissedBy(model, reason string, r *lateness.Record) (m Missed, time time.Duration) {
	m.Model = model
	switch {
	case reason != "":
		m.Cause = lateness.CauseOfFailure(reason, r)
	case r != nil:
		m.Cause = r.Cause()
	}
	if r != nil {
		time = r.Of(m.Cause)
		if m.Cause.IsOfAgent() {
			m.Agent = r.Agent
		}
	}
	return m, time
}

// noteMissed notes a query of a Client that was late or failed.
func (g *Gateway) noteMissed(req *oip.Request, err error, after time.Duration) {
	reason := ""
	if err != nil {
		_, target, _ := g.Version(req.Model, req.Version)
		reason = oip.ReasonAfter(oip.Reason(status.Convert(err)), after, target)
	}
	if m, time := MissedBy(req.Model, reason, req.Late); m.Cause != "" {
		g.Missed(m, time)
	}
}

// nextMissed adds to m what the leader is to be told of queries that were missed. The caller holds
// the lock.
func (g *Gateway) nextMissed(m *control.GatewayMessage) {
	for key, sum := range g.missed {
		if len(m.Missed) == maxTold {
			break
		}
		m.Missed = append(m.Missed, &control.Missed{
			Model: key.Model, Cause: string(key.Cause), Agent: key.Agent, Count: sum.count,
			TimeNs: int64(sum.time),
		})
		delete(g.missed, key)
	}
}

// spentTime is what a gateway measures of a query, or a part of one.
type spentTime struct {
	lost   time.Duration // on attempts that have failed
	sent   time.Duration // when the last attempt was sent, in the gateway's time
	ended  time.Duration // when that ended; 0: it was not made, or has not
	waited time.Duration // as [queries.Target]
	agent  names.AgentName
	spent  [lateness.Components]time.Duration // at the agent
	lanes  [lateness.Components]time.Duration // as [Attempt.Lanes]
	own    bool                               // the gateway chose the lane
	says   bool                               // it has said that
	failed bool                               // that attempt has failed
	unled  bool                               // an attempt has failed with the leader's agent
}

// noteAttempt notes an attempt that has ended. The caller holds the lock.
func (t *spentTime) noteAttempt(to *queries.Target, now time.Duration, a *Attempt, failed bool,
	leader names.AgentName) {
	if t.failed {
		t.lost += t.ended - t.sent
	}
	t.failed = failed
	t.unled = t.unled || failed && to.Agent == leader
	t.sent, t.ended, t.waited, t.agent = to.Sent(), now, to.Waited, to.Agent
	t.own = to.Reservation != 0
	t.spent, t.says, t.lanes = a.Spent, a.HasSpent, a.Lanes
}

// quickShare is the share of the target below which a worker does not say where its time went: the
// query is late by what happened elsewhere, and by how much is known to as much.
const quickShare = 4

// slowestPart is the part of q that ended last, or q itself if it has run whole.
func (q *gatewayQuery) slowestPart() *gatewayQuery {
	slowest := q
	for _, part := range q.Parts() {
		if part := part.Tag.(*gatewayQuery); part.spent.ended >= slowest.spent.ended {
			slowest = part
		}
	}
	return slowest
}

// recordLate sets req.Late if q, whose target is given and which began at the gateway at the time
// began, was late or has failed.
func (g *Gateway) recordLate(q *gatewayQuery, req *oip.Request, began, target time.Duration,
	err error) {
	now := g.timeNow()
	if total := now - q.Arrival; target <= 0 || err == nil && total <= target {
		return
	}
	slowest := q.slowestPart()
	r := &lateness.Record{Target: target}
	g.mu.Lock()
	unled := slowest.IsUnled()
	standstill := g.standstills.within(q.Arrival, now)
	g.mu.Unlock()
	slowest.spent.fill(r, spentQuery{
		arrival: q.Arrival, began: began, now: now, unled: unled,
		measures: g.measures(slowest.spent.agent),
	})
	g.moveStandstill(r, standstill)
	req.Late = r
}

// measures reports whether an agent says where queries' time goes.
func (g *Gateway) measures(agent names.AgentName) bool {
	m := g.members.Load().byName[agent]
	return m == nil || m.GetMeasures()
}

// A spentQuery is what else fill needs to know of a query.
type spentQuery struct {
	arrival, began, now time.Duration
	unled, measures     bool
}

// fill divides a query's time. It is pure.
func (t *spentTime) fill(r *lateness.Record, q spentQuery) {
	r.Agent = string(t.agent)
	parts := &r.Parts
	parts[lateness.ArrivedLate] = max(0, q.began-q.arrival)
	if t.agent == "" { // no attempt was made
		wait := lateness.AwaitedLane
		if q.unled {
			wait = lateness.AwaitedLeader
		}
		parts[wait] += max(0, q.now-q.began)
		return
	}
	t.fillWait(parts, q)
	at := max(0, q.now-t.sent)
	within := time.Duration(0)
	for _, d := range t.spent {
		within += d
	}
	switch {
	case t.says:
		// a clock that runs faster there must not take more than there is
		for c, d := range t.spent {
			if within > at {
				d = time.Duration(float64(d) * float64(at) / float64(within))
			}
			parts[c] += d
		}
		parts[lateness.OnTheWay] += max(0, at-within)
	case !q.measures || t.ended == 0:
		parts[lateness.Unmeasured] += at
	default:
		quick := min(at, r.Target/quickShare)
		parts[lateness.RanAsProfiled] += quick
		parts[lateness.OnTheWay] += at - quick
	}
}

// fillWait divides the time until the last attempt was sent.
func (t *spentTime) fillWait(parts *[lateness.Components]time.Duration, q spentQuery) {
	wait := max(0, t.sent-q.began)
	lost := min(t.lost, wait)
	lostTo := lateness.LostToHost
	if t.unled {
		lostTo = lateness.AwaitedLeader
	}
	parts[lostTo] += lost
	wait -= lost
	switch {
	case q.unled:
		parts[lateness.AwaitedLeader] += wait
	case t.own: // there is a leader, whose answer took too long
		parts[lateness.OnTheWay] += wait
	case t.waited >= 0:
		// The leader's time is since the arrival. What it does not know of is the way to it and
		// back.
		known := min(max(0, t.waited-(q.began-q.arrival)), wait)
		// The leader let the query wait for what kept the lanes, which are busy all the time.
		lateness.DivideWait(parts, known, &t.lanes, 1)
		parts[lateness.OnTheWay] += wait - known
	default:
		parts[lateness.Unmeasured] += wait
	}
}

// moveStandstill moves the time in which this process stood still to its cause.
func (g *Gateway) moveStandstill(r *lateness.Record, d time.Duration) {
	to := lateness.ArrivedLate
	if g.config.Agent != "" {
		to = lateness.LackedCPU
	}
	moved := time.Duration(0)
	for _, from := range []lateness.Component{
		lateness.ArrivedLate, lateness.OnTheWay, lateness.AwaitedLane, lateness.AwaitedLeader,
		lateness.Unmeasured,
	} {
		moved += r.Move(from, to, d-moved)
	}
	if g.config.Agent != "" && moved > r.Total()/2 {
		r.Agent = string(g.config.Agent)
	}
}

// A standstill is a time in which this process did not run, or hardly.
type standstill struct{ from, to time.Duration }

// standstills are the last ones of a process, noticed by a timer that fires late.
type standstills struct {
	last [16]standstill // a ring
	next int
	due  time.Duration // when the timer is to fire; 0: it is not set
	busy time.Duration // when there was a query last
}

// While there is no query the timer goes on for watchIdle, each idleWatch: a client that stands
// still has often just got its last answer. Chosen: ten wake-ups after a query cost nothing.
const watchIdle, idleWatch = time.Second, 100 * time.Millisecond

// goesOn reports whether the timer goes on without a query, and then notes when it is to fire.
func (s *standstills) goesOn(now time.Duration) bool {
	if now-s.busy > watchIdle {
		return false
	}
	s.due = now + idleWatch
	return true
}

// minStandstill is how late a timer must fire. Chosen: busy machines run a process within some
// milliseconds, and no target is so short that less would matter.
const minStandstill = 10 * time.Millisecond

// noteTimer notes that the timer has fired now.
func (s *standstills) noteTimer(now time.Duration) {
	if s.due > 0 && now-s.due >= minStandstill {
		s.last[s.next%len(s.last)] = standstill{s.due, now}
		s.next++
	}
	s.due = 0
}

// within is for how long of the time from arrival to end the process stood still. A process that
// stood still for long sends at once what has come meanwhile: queries that arrive in as long a time
// after a standstill wait for each other because of it, for as long at most.
// A query that ends with a standstill may be here before the timer.
func (s *standstills) within(arrival, end time.Duration) (sum time.Duration) {
	add := func(x standstill) {
		length := x.to - x.from
		sum += max(0, min(end, x.to+length)-max(arrival, x.from))
	}
	for _, x := range s.last {
		add(x)
	}
	if s.due > 0 && end-s.due >= minStandstill {
		add(standstill{s.due, end})
	}
	return min(sum, end-arrival)
}
