package sim

import (
	"time"

	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/runtime/load"
	"github.com/muster-serve/muster/runtime/queue/merge"
	"github.com/muster-serve/muster/sim/balancers"
)

// withBalancers are the policies by which gateways balance with a balancer of another system.
var withBalancers = []string{Prequal, ORCA}

// balancing is the warm-up of a run with a balancer. It is longer than the time for which weighted
// round robin does not use new weights.
const balancing = 12 * time.Second

// A balanced has gateways that each balance the queries of a model over the lanes that hold it.
// Queries are assigned to gateways in turn, and a query goes to its lane at once. Lanes answer
// Prequal's probes, and report their load to ORCA's clients with each answer to a query.
type balanced struct {
	*run
	servers []balancedServer
	each    []balancedGateway // by model and gateway
	asked   uint64
	answers map[uint64]probeAnswer // probes that have not ended, by number
}

// A balancedServer is what a lane does for balancers.
type balancedServer struct {
	balancers.Server
	meter    load.Meter
	answered uint64
}

// A balancedGateway is one gateway's balancer for one model; one of the two is set.
type balancedGateway struct {
	lanes    []int32 // those that hold the model, by the balancer's numbers
	server   []int   // the balancer's numbers, by lane; -1: the lane does not hold the model
	prequal  *balancers.Prequal
	weighted *balancers.Weighted
}

// A probeAnswer is a probe on its way, or its answer on the way back.
type probeAnswer struct {
	gateway *balancedGateway
	balancers.Answer
}

func newBalanced(r *run) *balanced {
	b := &balanced{
		run: r, servers: make([]balancedServer, len(r.lanes)), answers: map[uint64]probeAnswer{},
	}
	for m := range r.models {
		var g balancedGateway
		for id := range r.lanes {
			g.server = append(g.server, -1)
			if r.lanes[id].predicted[m] != nil {
				g.server[id] = len(g.lanes)
				g.lanes = append(g.lanes, int32(id))
			}
		}
		for i := range r.cfg.gateways() {
			seed := r.cfg.Seed*uint64(r.cfg.gateways()) + uint64(i)
			if r.cfg.Policy == Prequal {
				g.prequal = balancers.NewPrequal(len(g.lanes), seed)
			} else {
				g.weighted = balancers.NewWeighted(len(g.lanes), int(seed))
			}
			b.each = append(b.each, g)
		}
	}
	return b
}

// of is the gateway of a query.
func (b *balanced) of(seq uint64) *balancedGateway {
	n := b.cfg.gateways()
	return &b.each[int(b.at(seq).model)*n+int(seq/numbering%uint64(n))]
}

func (b *balanced) arrived(seq uint64, _ ...match.LaneID) {
	g := b.of(seq)
	if len(g.lanes) == 0 {
		b.noLane(seq)
		return
	}
	var server int
	var probes []int
	done := b.measure()
	if g.prequal != nil {
		server, probes = g.prequal.Pick(b.now)
	} else {
		server = g.weighted.Pick(b.now)
	}
	done()
	b.dispatch(seq, g.lanes[server], b.cfg.RTT/2, merge.GroupID{})
	for _, probed := range probes {
		b.asked++
		b.answers[b.asked] = probeAnswer{gateway: g}
		b.heap.push(event{
			at: b.now + b.cfg.RTT/2, kind: probeArrives, lane: g.lanes[probed], query: b.asked,
		})
	}
}

// ended reports a lane's load to the gateway of a query that it has answered.
func (b *balanced) ended(a *attempt, refused bool) {
	if refused {
		return
	}
	s, l, g := &b.servers[a.lane], &b.lanes[a.lane], b.of(a.query)
	if g.prequal != nil {
		s.Ended(int(a.found), a.end-a.cameAt)
		return
	}
	s.answered++
	busy := l.busy
	if l.running != nil {
		busy -= l.freeAt - b.now
	}
	report := s.meter.Measure(b.now, load.Totals{
		Lanes: 1, Busy: busy, Answered: s.answered,
	}, a.remains)
	g.weighted.Reported(b.now, g.server[a.lane], report.Utilization, report.QPS, report.EPS)
}

func (b *balanced) handle(e event) {
	p := b.answers[e.query]
	if e.kind == probeArrives {
		p.Answer = b.servers[e.lane].Answer(b.lanes[e.lane].has())
		b.answers[e.query] = p
		b.heap.push(event{
			at: b.now + b.cfg.RTT/2, kind: answerBack, lane: e.lane, query: e.query,
		})
		return
	}
	delete(b.answers, e.query)
	p.gateway.prequal.Probed(b.now, p.gateway.server[e.lane], p.Answer)
}

func (b *balanced) probes() uint64 { return b.asked }
