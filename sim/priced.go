package sim

import (
	"cmp"
	"fmt"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/inquire"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/runtime/queue/merge"
)

// A leaderless decides where queries go in a run without a leader.
type leaderless interface {
	// arrived makes a query's gateway decide where it goes; failed are lanes that have refused it.
	arrived(seq uint64, failed ...match.LaneID)
	// ended tells the gateway that an attempt has been answered or refused.
	ended(a *attempt, refused bool)
	// handle handles an event of gateways and their probes.
	handle(e event)
	// probes is how many probes have been sent.
	probes() uint64
}

// gateways are the gateways of a run without a leader; they decide by inquire.State. Queries are
// assigned to gateways in turn. Half a round trip after a query's arrival the lanes asked reserve a
// place for it and say when they would finish it. Half a round trip later the gateway asks others
// or chooses. After another half round trip the payload is at its lane, and the reservations end.
// Reservations count in the time for which a lane says it is busy. They do not affect the order in
// which it serves, which is [queue.Queue]'s.
type gateways struct {
	*run
	each      []*gateway
	ask       bool                 // false: the lane ranked best gets the query without being asked
	questions map[uint64]*question // of all gateways, by id, until released or sent
	unused    []*question
	stale     time.Duration
}

// A gateway decides where its part of the queries goes.
type gateway struct {
	id       int
	known    *match.Priced
	decision *inquire.State
	wakeAt   time.Duration // 0: it need not be woken
}

// A question is a question to a lane, on its way or answered.
type question struct {
	query             uint64
	variant           int32
	remaining, finish time.Duration
}

func newGateways(r *run) (*gateways, error) {
	g := &gateways{
		run: r, ask: r.cfg.Probes >= 0, questions: map[uint64]*question{},
		stale: r.cfg.GossipDelay,
	}
	probes, n := cmp.Or(r.cfg.Probes, inquire.DefaultProbes), r.cfg.gateways()
	for i := range n {
		seed := r.cfg.Seed*uint64(n) + uint64(i)
		p, err := match.NewPriced(r.matchModels(), seed)
		if err != nil {
			return nil, err
		}
		for id := range r.lanes {
			l := &r.lanes[id]
			typ := names.LaneType(r.types[l.instanceType])
			var models []names.ModelKey
			for m, table := range l.predicted {
				if table == nil {
					continue
				}
				key := names.ModelKey(r.variants[m].Name)
				models = append(models, key)
				if err := p.SetProfile(key, typ, table); err != nil {
					return nil, err
				}
			}
			p.Join(match.LaneID(id), typ, models)
		}
		p.SetPrices(r.splitLimit.Prices)
		decision := inquire.New(probes, seed)
		decision.Know(p)
		g.each = append(g.each, &gateway{id: i, known: p, decision: decision})
	}
	if g.stale > 0 {
		for id := range r.lanes { // at different times, so that lanes do not all report at once
			r.heap.push(event{
				at: g.stale * time.Duration(id) / time.Duration(len(r.lanes)), kind: gossips,
				lane: int32(id),
			})
		}
	}
	return g, nil
}

func (g *gateways) of(seq uint64) *gateway { return g.each[seq/numbering%uint64(len(g.each))] }

// ended tells a query's gateway how busy the lane was when it answered or refused.
func (g *gateways) ended(a *attempt, _ bool) {
	at := epoch.Add(g.now - g.cfg.RTT/2)
	g.of(a.query).known.Heard(match.LaneID(a.lane), at, a.remains)
}

func (g *gateways) handle(e event) {
	switch e.kind {
	case probeArrives:
		g.probed(e.lane, e.query)
	case answerBack:
		g.answered(e.lane, e.query)
	case releaseArrives:
		g.released(e.lane, e.query)
	case gossips:
		g.gossip(e.lane)
	case gatewayWakes:
		g.wake(e.lane)
	}
}

func (g *gateways) probes() (n uint64) {
	for _, at := range g.each {
		asked, _ := at.decision.Counts()
		n += asked
	}
	return n
}

// gossip reports a lane's load to all gateways.
func (g *gateways) gossip(id int32) {
	for _, at := range g.each {
		at.known.Heard(match.LaneID(id), epoch.Add(g.now), g.busy(&g.lanes[id]))
	}
	g.heap.push(event{at: g.now + g.stale, kind: gossips, lane: id})
}

func (g *gateways) arrived(seq uint64, failed ...match.LaneID) {
	at, q := g.of(seq), g.at(seq)
	model := names.ModelKey(g.asks(q))
	now := epoch.Add(g.now)
	if g.stale == 0 {
		for id := range g.lanes {
			at.known.Heard(match.LaneID(id), now, g.remaining(&g.lanes[id]))
		}
	}
	about := match.Inquiry{
		Query: seq, Model: model, BatchSize: int(q.batch), Arrival: epoch.Add(q.arrival),
		Failed: failed,
	}
	done := g.measure()
	if g.ask {
		at.decision.Begin(now, about)
		done()
		g.carryOut(at)
		return
	}
	best := at.known.Rank(now, &about, g.cfg.RTT, 1)
	done()
	if len(best) == 0 {
		g.noLane(seq)
		return
	}
	at.known.Sent(best[0].Lane, now, best[0].Latency)
	q.variant = g.variantOf[string(best[0].Model)]
	g.dispatch(seq, int32(best[0].Lane), g.cfg.RTT/2, merge.GroupID{})
}

func (r *run) noLane(seq uint64) {
	r.fail(fmt.Errorf("query %d: no lane holds %s", seq, r.models[r.at(seq).model].Name))
}

// carryOut carries out a gateway's actions, and schedules its next wake.
func (g *gateways) carryOut(at *gateway) {
	for do, ok := at.decision.Next(); ok && g.err == nil; do, ok = at.decision.Next() {
		// make the id differ from those of other gateways
		lane, id := int32(do.Lane), do.ID*uint64(len(g.each))+uint64(at.id)
		switch do.Kind {
		case inquire.AskLane:
			q := &question{}
			if n := len(g.unused); n > 0 {
				q, g.unused = g.unused[n-1], g.unused[:n-1]
			}
			q.query, q.variant = do.Query, g.variantOf[string(do.Model)]
			g.questions[id] = q
			if g.cfg.RTT > 0 {
				g.heap.push(event{
					at: g.now + g.cfg.RTT/2, kind: probeArrives, lane: lane, query: id,
				})
				continue
			}
			g.probed(lane, id)
		case inquire.ReleaseLane:
			if g.cfg.RTT > 0 {
				g.heap.push(event{
					at: g.now + g.cfg.RTT/2, kind: releaseArrives, lane: lane, query: id,
				})
				continue
			}
			g.released(lane, id)
		case inquire.SendQuery:
			g.drop(id)
			g.at(do.Query).variant = g.variantOf[string(do.Model)]
			g.dispatch(do.Query, lane, g.cfg.RTT/2, merge.GroupID{})
		case inquire.NoLane:
			if do.Asked == 0 {
				g.noLane(do.Query)
				return
			}
			g.heap.push(event{at: do.Again.Sub(epoch), kind: arrivesAgain, query: do.Query})
		}
	}
	if wake := at.decision.Wake(); !wake.IsZero() && at.wakeAt == 0 {
		at.wakeAt = max(wake.Sub(epoch), g.now+1) // so that virtual time advances
		g.heap.push(event{at: at.wakeAt, kind: gatewayWakes, lane: int32(at.id)})
	}
}

// wake tells a gateway that time has passed.
func (g *gateways) wake(id int32) {
	at := g.each[id]
	at.wakeAt = 0
	at.decision.Pass(epoch.Add(g.now))
	g.carryOut(at)
}

// drop forgets a question.
func (g *gateways) drop(id uint64) {
	g.unused = append(g.unused, g.questions[id])
	delete(g.questions, id)
}

// measure counts a step, and its cost from this call to the call of the function returned.
func (r *run) measure() func() {
	r.steps++
	if r.cfg.Clock == nil {
		return func() {}
	}
	before := r.cfg.Clock()
	return func() { r.cost += r.cfg.Clock() - before }
}

// probed makes a lane answer a question and reserve a place.
func (g *gateways) probed(id int32, question uint64) {
	l, asked := &g.lanes[id], g.questions[question]
	q := g.at(asked.query)
	const certainty = 0.9
	asked.remaining = g.remaining(l)
	asked.finish = asked.remaining + l.known[asked.variant].Quantile(certainty, int(q.batch))
	l.promised = append(l.promised, promise{asked.query, asked.variant})
	if g.cfg.RTT > 0 {
		g.heap.push(event{at: g.now + g.cfg.RTT/2, kind: answerBack, lane: id, query: question})
		return
	}
	g.answered(id, question)
}

// answered passes the answer to the gateway, which asks others or chooses.
func (g *gateways) answered(id int32, question uint64) {
	n := uint64(len(g.each))
	at, q := g.each[question%n], g.questions[question]
	done := g.measure()
	at.decision.Answered(epoch.Add(g.now), match.LaneID(id), question/n, q.remaining, q.finish)
	done()
	if g.cfg.RTT > 0 { // with RTT 0, carryOut's loop takes the actions
		g.carryOut(at)
	}
}

// released removes a reservation.
func (g *gateways) released(id int32, question uint64) {
	g.lanes[id].unpromise(g.questions[question].query)
	g.drop(question)
}
