package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/muster-serve/muster/leader/match"
)

// gateways serve without a leader, by match.Priced. A query belongs to the gateway
// of its turn. Half a round trip after its arrival the lanes asked promise it a
// place and say when they would be done; half a round trip later the gateway asks others or chooses; again half a
// round trip later the payload is at the lane, and the promises are void. They count in the time
// that a lane says it is busy, but not in the order in which it serves, which is [queue.Queue]'s.
type gateways struct {
	*run
	each   []*match.Priced
	probes int                 // 0: none
	asking map[uint64]*inquiry // by query
	unused []*inquiry          // for asking
	stale  time.Duration
}

// An inquiry is what a gateway asks about a query.
type inquiry struct {
	candidates []match.Candidate // worth asking, the best first
	answers    []match.Answer    // of those asked so far
	asked      int               // of them before the last round
}

func newGateways(r *run) (*gateways, error) {
	g := &gateways{run: r, probes: r.cfg.Probes, asking: map[uint64]*inquiry{}, stale: r.cfg.GossipDelay}
	if g.probes == 0 {
		g.probes = match.DefaultProbes
	}
	g.probes = max(0, g.probes)
	n := r.cfg.Gateways
	if n == 0 {
		n = 4
	}
	for i := range n {
		p, err := match.NewPriced(r.matchModels(), r.cfg.Seed*uint64(n)+uint64(i))
		if err != nil {
			return nil, err
		}
		for id := range r.lanes {
			l := &r.lanes[id]
			name := r.types[l.instanceType]
			var models []string
			for m, table := range l.predicted {
				if table == nil {
					continue
				}
				models = append(models, r.models[m].Name)
				if err := p.SetProfile(r.models[m].Name, name, table); err != nil {
					return nil, err
				}
			}
			p.Join(match.LaneID(id), name, models)
		}
		p.SetPrices(r.limit.Prices)
		g.each = append(g.each, p)
	}
	if g.stale > 0 {
		for id := range r.lanes { // one after the other, so that they do not speak at once
			r.heap.push(event{at: g.stale * time.Duration(id) / time.Duration(len(r.lanes)), kind: gossips, lane: int32(id)})
		}
	}
	return g, nil
}

func (g *gateways) of(seq uint64) *match.Priced { return g.each[seq%uint64(len(g.each))] }

// gossip has a lane tell all gateways of its load.
func (g *gateways) gossip(id int32) {
	for _, p := range g.each {
		p.Heard(match.LaneID(id), epoch.Add(g.now), g.remaining(&g.lanes[id]))
	}
	g.heap.push(event{at: g.now + g.stale, kind: gossips, lane: id})
}

// arrived asks the lanes that look best for a query, or sends it to the best.
func (g *gateways) arrived(seq uint64) {
	p, q := g.of(seq), g.at(seq)
	model := g.models[q.model].Name
	now := epoch.Add(g.now)
	if g.stale == 0 {
		for id := range g.lanes {
			p.Heard(match.LaneID(id), now, g.remaining(&g.lanes[id]))
		}
	}
	defer g.measure()()
	candidates := p.Rank(now, model, int(q.batch), g.network(), max(1, 2*g.probes))
	if len(candidates) == 0 {
		g.fail(fmt.Errorf("query %d: no lane holds %s", seq, model))
		return
	}
	if g.probes == 0 {
		c := candidates[0]
		g.send(seq, int32(c.Lane), c.Wait+c.Latency)
		return
	}
	in := &inquiry{}
	if n := len(g.unused); n > 0 {
		in, g.unused = g.unused[n-1], g.unused[:n-1]
	}
	in.candidates, in.answers = append(in.candidates[:0], candidates...), in.answers[:0]
	g.asking[seq] = in
	g.ask(seq, in, p.Ask(model, 0, g.cfg.RTT, g.probes, 0, nil, candidates))
}

// ask asks the next n lanes about a query.
func (g *gateways) ask(seq uint64, in *inquiry, n int) {
	in.asked = len(in.answers)
	for _, c := range in.candidates[in.asked : in.asked+n] {
		in.answers = append(in.answers, match.Answer{Candidate: c})
		if n == 1 {
			g.of(seq).Sent(c.Lane, epoch.Add(g.now), c.Latency)
		}
		if g.cfg.RTT == 0 {
			g.probed(int32(c.Lane), seq)
		} else {
			g.heap.push(event{at: g.now + g.cfg.RTT/2, kind: probeArrives, lane: int32(c.Lane), query: seq})
		}
	}
	if g.cfg.RTT == 0 {
		g.answered(seq)
	} else {
		g.heap.push(event{at: g.now + g.cfg.RTT, kind: answersBack, query: seq})
	}
}

// network is what a query will spend on the way: to the lanes asked and back, to the lane, and back with the answer.
func (g *gateways) network() time.Duration {
	if g.probes == 0 {
		return g.cfg.RTT
	}
	return 2 * g.cfg.RTT
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
func (g *gateways) probed(id int32, seq uint64) {
	l, q := &g.lanes[id], g.at(seq)
	answers := g.asking[seq].answers
	i := slices.IndexFunc(answers, func(a match.Answer) bool { return a.Lane == match.LaneID(id) })
	a := &answers[i]
	a.Remaining = g.remaining(l)
	const certainty = 0.9
	// The payload takes a round trip from here; the answer to it half a one, which that to the probe has taken.
	a.Finish = max(a.Remaining, g.cfg.RTT) + l.known[q.model].Quantile(certainty, int(q.batch))
	l.promised = append(l.promised, seq)
}

// answered has the gateway choose.
func (g *gateways) answered(seq uint64) {
	p, q := g.of(seq), g.at(seq)
	in := g.asking[seq]
	model := g.models[q.model].Name
	for _, a := range in.answers[in.asked:] {
		p.Heard(a.Lane, epoch.Add(g.now), max(0, a.Remaining-g.cfg.RTT/2))
	}
	answers := in.answers
	if n := p.Ask(model, g.now-q.arrival, g.cfg.RTT, g.probes, len(answers), answers, in.candidates[len(answers):]); n > 0 {
		g.ask(seq, in, n)
		return
	}
	best := p.Choose(model, g.now-q.arrival, answers)
	for i := range answers {
		id := int32(answers[i].Lane)
		switch {
		case i == best:
			g.send(seq, id, max(0, answers[i].Remaining-g.cfg.RTT/2)+answers[i].Latency)
		case g.cfg.RTT == 0:
			g.lanes[id].unpromise(seq)
		default:
			g.heap.push(event{at: g.now + g.cfg.RTT/2, kind: releaseArrives, lane: id, query: seq})
		}
	}
	delete(g.asking, seq)
	g.unused = append(g.unused, in)
}

// send sends the payload; busy is how long the gateway then takes the lane to be.
func (g *gateways) send(seq uint64, id int32, busy time.Duration) {
	g.of(seq).Heard(match.LaneID(id), epoch.Add(g.now), busy)
	g.dispatch(seq, id, g.cfg.RTT/2)
}
