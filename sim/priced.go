package sim

import (
	"cmp"
	"fmt"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
)

// gateways serve without a leader, by match.Leaderless. A query belongs to the gateway of its turn.
// Half a round trip after its arrival the lanes asked promise it a place and say when they would be
// done; half a round trip later the gateway asks others or chooses; again half a round trip later
// the payload is at the lane, and the promises are void. They count in the time that a lane says it
// is busy, but not in the order in which it serves, which is [queue.Queue]'s.
type gateways struct {
	*run
	each      []*gateway
	probes    bool                 // false: the lane that seems best gets the query unasked
	questions map[uint64]*question // of all gateways, by id, until they are released or sent
	unused    []*question
	stale     time.Duration
}

// A gateway decides about its part of the queries.
type gateway struct {
	id       int
	known    *match.Priced
	decision *match.Leaderless
	wakeAt   time.Duration // 0: it is not to be woken
}

// A question is one on its way to a lane, or answered.
type question struct {
	query             uint64
	remaining, finish time.Duration
}

func newGateways(r *run) (*gateways, error) {
	g := &gateways{
		run: r, probes: r.cfg.Probes >= 0, questions: map[uint64]*question{},
		stale: r.cfg.GossipDelay,
	}
	probes, n := cmp.Or(r.cfg.Probes, match.DefaultProbes), r.cfg.gateways()
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
				key := names.ModelKey(r.models[m].Name)
				models = append(models, key)
				if err := p.SetProfile(key, typ, table); err != nil {
					return nil, err
				}
			}
			p.Join(match.LaneID(id), typ, models)
		}
		p.SetPrices(r.limit.Prices)
		decision := match.NewLeaderless(probes, seed)
		decision.Know(p)
		g.each = append(g.each, &gateway{id: i, known: p, decision: decision})
	}
	if g.stale > 0 {
		for id := range r.lanes { // one after the other, so that they do not speak at once
			r.heap.push(event{
				at: g.stale * time.Duration(id) / time.Duration(len(r.lanes)), kind: gossips,
				lane: int32(id),
			})
		}
	}
	return g, nil
}

func (g *gateways) of(seq uint64) *gateway { return g.each[seq%uint64(len(g.each))] }

// gossip has a lane tell all gateways of its load.
func (g *gateways) gossip(id int32) {
	for _, at := range g.each {
		at.known.Heard(match.LaneID(id), epoch.Add(g.now), g.remaining(&g.lanes[id]))
	}
	g.heap.push(event{at: g.now + g.stale, kind: gossips, lane: id})
}

// arrived has the gateway of a query decide about it; failed are lanes that have refused it.
func (g *gateways) arrived(seq uint64, failed ...match.LaneID) {
	at, q := g.of(seq), g.at(seq)
	model := names.ModelKey(g.models[q.model].Name)
	now := epoch.Add(g.now)
	if g.stale == 0 {
		for id := range g.lanes {
			at.known.Heard(match.LaneID(id), now, g.remaining(&g.lanes[id]))
		}
	}
	done := g.measure()
	if g.probes {
		at.decision.Begin(now, match.Inquiry{
			Query: seq, Model: model, BatchSize: int(q.batch), Arrival: epoch.Add(q.arrival),
			Failed: failed,
		})
		done()
		g.carryOut(at)
		return
	}
	best := at.known.Rank(now, model, int(q.batch), g.cfg.RTT, 1)
	done()
	if len(best) == 0 {
		g.noLane(seq)
		return
	}
	at.known.Sent(best[0].Lane, now, best[0].Latency)
	g.dispatch(seq, int32(best[0].Lane), g.cfg.RTT/2)
}

func (g *gateways) noLane(seq uint64) {
	g.fail(fmt.Errorf("query %d: no lane holds %s", seq, g.models[g.at(seq).model].Name))
}

// carryOut does what a gateway has decided, and has it woken when it wants to be.
func (g *gateways) carryOut(at *gateway) {
	for do, ok := at.decision.Next(); ok && g.err == nil; do, ok = at.decision.Next() {
		// unlike those of others
		lane, id := int32(do.Lane), do.ID*uint64(len(g.each))+uint64(at.id)
		switch do.Kind {
		case match.AskLane:
			q := &question{}
			if n := len(g.unused); n > 0 {
				q, g.unused = g.unused[n-1], g.unused[:n-1]
			}
			q.query = do.Query
			g.questions[id] = q
			if g.cfg.RTT > 0 {
				g.heap.push(event{
					at: g.now + g.cfg.RTT/2, kind: probeArrives, lane: lane, query: id,
				})
				continue
			}
			g.probed(lane, id)
		case match.ReleaseLane:
			if g.cfg.RTT > 0 {
				g.heap.push(event{
					at: g.now + g.cfg.RTT/2, kind: releaseArrives, lane: lane, query: id,
				})
				continue
			}
			g.released(lane, id)
		case match.SendQuery:
			g.drop(id)
			g.dispatch(do.Query, lane, g.cfg.RTT/2)
		case match.NoLane:
			if do.Asked == 0 {
				g.noLane(do.Query)
				return
			}
			g.heap.push(event{at: do.Again.Sub(epoch), kind: arrivesAgain, query: do.Query})
		}
	}
	if wake := at.decision.Wake(); !wake.IsZero() && at.wakeAt == 0 {
		at.wakeAt = max(wake.Sub(epoch), g.now+1) // time must pass
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

// measure counts a step and its cost, from the call of measure to that of what it returns.
func (g *gateways) measure() func() {
	g.steps++
	if g.cfg.Clock == nil {
		return func() {}
	}
	before := g.cfg.Clock()
	return func() { g.cost += g.cfg.Clock() - before }
}

// probed has a lane answer when it would be done, and promise the place.
func (g *gateways) probed(id int32, question uint64) {
	l, asked := &g.lanes[id], g.questions[question]
	q := g.at(asked.query)
	const certainty = 0.9
	asked.remaining = g.remaining(l)
	asked.finish = asked.remaining + l.known[q.model].Quantile(certainty, int(q.batch))
	l.promised = append(l.promised, asked.query)
	if g.cfg.RTT > 0 {
		g.heap.push(event{at: g.now + g.cfg.RTT/2, kind: answerBack, lane: id, query: question})
		return
	}
	g.answered(id, question)
}

// answered has the gateway hear it, and ask others or choose.
func (g *gateways) answered(id int32, question uint64) {
	n := uint64(len(g.each))
	at, q := g.each[question%n], g.questions[question]
	done := g.measure()
	at.decision.Answered(epoch.Add(g.now), match.LaneID(id), question/n, q.remaining, q.finish)
	done()
	if g.cfg.RTT > 0 { // else carryOut goes on
		g.carryOut(at)
	}
}

// released voids a promise.
func (g *gateways) released(id int32, question uint64) {
	g.lanes[id].unpromise(g.questions[question].query)
	g.drop(question)
}
