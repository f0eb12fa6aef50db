package sim

import (
	"fmt"
	"time"

	"github.com/muster-serve/muster/runtime/load"
	"github.com/muster-serve/muster/sim/balancers"
	"github.com/muster-serve/muster/sim/fleet"
)

// withBalancers are the policies by which gateways balance with a balancer of another system.
var withBalancers = []string{Prequal, ORCA}

// balancing is the warm-up of a run with a balancer. It is longer than the time for which weighted
// round robin does not use new weights.
const balancing = 12 * time.Second

// A balancedPolicy has gateways that each balance the queries of a model over the lanes that hold
// it. Queries are assigned to gateways in turn, and a query goes to its lane at once. Lanes answer
// Prequal's probes, and report their load to ORCA's clients with each answer to a query.
type balancedPolicy struct {
	*simulation
	servers []balancedServer
	each    []balancedGateway // by model and gateway
	asked   uint64            // probes
}

// A balancedServer is what a lane does for balancers.
type balancedServer struct {
	balancers.ProbedServer
	meter    load.Meter
	answered uint64
}

// A balancedGateway is one gateway's balancer for one model; one of the two is set.
type balancedGateway struct {
	lanes    []int // those that hold the model, by the balancer's numbers
	server   []int // the balancer's numbers, by lane; -1: the lane does not hold the model
	prequal  *balancers.Prequal
	weighted *balancers.Weighted
}

func newBalanced(r *simulation) *balancedPolicy {
	b := &balancedPolicy{simulation: r, servers: make([]balancedServer, len(r.lanes))}
	for m := range r.models {
		var g balancedGateway
		for id := range r.lanes {
			g.server = append(g.server, -1)
			if r.lanes[id].predicted[m] != nil {
				g.server[id] = len(g.lanes)
				g.lanes = append(g.lanes, id)
			}
		}
		for i := range r.cfg.gatewaysOrDefault() {
			seed := r.cfg.Seed*uint64(r.cfg.gatewaysOrDefault()) + uint64(i)
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

// chooseLane says to which lane a gateway sends a query, and sends the probes that it wants.
func (b *balancedPolicy) chooseLane(gateway int, q *fleet.ArrivingQuery) int {
	g := &b.each[q.Model*b.cfg.gatewaysOrDefault()+gateway]
	if len(g.lanes) == 0 {
		b.fail(fmt.Errorf("query %d: no lane holds %s", q.Sequence, b.models[q.Model].Name))
		return 0
	}
	if g.weighted != nil {
		return g.lanes[g.weighted.Pick(b.fleet.Now())]
	}
	server, probes := g.prequal.Pick(b.fleet.Now())
	for _, probed := range probes {
		b.asked++
		b.fleet.Schedule(b.fleet.Now(), func() { // after the query
			b.fleet.Schedule(b.fleet.Now()+b.cfg.RTT/2, func() { b.answerProbe(g, probed) })
		})
	}
	return g.lanes[server]
}

// answerProbe makes a lane answer a probe of a gateway, which knows it by a number.
func (b *balancedPolicy) answerProbe(g *balancedGateway, server int) {
	lane := g.lanes[server]
	answer := b.servers[lane].Answer(b.fleet.Has(lane))
	b.fleet.Schedule(b.fleet.Now()+b.cfg.RTT/2, func() {
		g.prequal.Probed(b.fleet.Now(), server, answer)
	})
}

// noteAnswer reports a lane's load to the gateway of a query that it has answered.
func (b *balancedPolicy) noteAnswer(gateway int, q *fleet.ArrivingQuery, by fleet.Answer) {
	s, g, now := &b.servers[by.Lane], &b.each[q.Model*b.cfg.gatewaysOrDefault()+gateway],
		b.fleet.Now()
	if g.prequal != nil {
		s.Ended(by.Found, now-b.cfg.RTT/2-by.CameAt)
		return
	}
	s.answered++
	report := s.meter.Measure(now, load.Totals{
		Lanes: 1, Busy: b.fleet.BusySoFar(by.Lane), Answered: s.answered,
	}, by.Remaining)
	g.weighted.Reported(now, g.server[by.Lane], report.Utilization, report.QPS, report.EPS)
}
