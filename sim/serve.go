package sim

import (
	"cmp"
	"math/rand/v2"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/inquire"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/sim/fleet"
)

// outcomes maps a fleet's outcomes to a run's.
var outcomes = [...]Outcome{
	fleet.Served: Served, fleet.Rejected: Rejected, fleet.Dropped: Dropped,
	fleet.NeverServed: NeverServed, fleet.Lost: Lost, fleet.Cancelled: Dropped,
}

// describeFleet describes the fleet that serves the run's queries.
func (r *simulation) describeFleet() {
	r.serves = fleet.Config{
		Policy: r.cfg.Policy, Seed: r.cfg.Seed,
		RTT: r.cfg.RTT, Jitter: r.cfg.Jitter, Deadline: r.cfg.Deadline,
		Gateways: r.cfg.gatewaysOrDefault(), GossipDelay: r.cfg.GossipDelay,
		Probes: cmp.Or(r.cfg.Probes, inquire.DefaultProbes),
		Faults: r.cfg.Faults, Settled: len(r.cfg.Faults) == 0 && r.cfg.Renting == nil,
		Limit: r.splitLimit.Rate, Prices: r.splitLimit.Prices, Record: r.cfg.Record,
		Clock: r.cfg.Clock, Service: r.serviceTime, Luck: r.drawLuck,
	}
	c := &r.serves
	for i, m := range r.matchModels() {
		m.Merge = r.cfg.Merge
		of := &r.models[r.modelOf(i)]
		c.Models = append(c.Models, fleet.Model{Model: m, Share: of.qosShare(), Law: of.Law})
	}
	number := map[int]int{}
	for i := range r.lanes {
		its := r.describeLane(&r.lanes[i])
		if r.cfg.Renting != nil {
			t := r.lanes[i].instanceType
			number[t]++
			its.Absent = number[t] > r.cfg.Kept.Of(r.types[t])
			its.NeverLeads = its.Absent
		}
		c.Lanes = append(c.Lanes, its)
	}
	if r.cfg.Renting != nil && r.cfg.Placement == nil {
		c.Learns, c.Prior = true, r.priorOf
	}
	switch {
	case r.balanced != nil:
		c.Policy, c.Candidates = "", -1
		c.Choose, c.Answered = r.balanced.chooseLane, r.balanced.noteAnswer
	case r.cfg.Policy == Priced:
		c.Policy, c.Candidates = "", -1
	}
	if other := r.cfg.findOther(); other != nil {
		c.Policy = ""
		c.NewChooser = func() match.Chooser { return other.NewChooser(r.cfg) }
	}
	if r.cfg.Placement != nil {
		c.Acts = r.notePlannerAction
	}
	c.Waits = func(seq uint64, waits bool) {
		r.now = r.fleet.Now()
		r.setWaiting(seq, waits)
	}
	c.Split = func(seq uint64) { r.models[r.queryAt(seq).model].counts.Split++ }
	c.Finish = func(seq uint64, o fleet.Outcome, by fleet.Answer) {
		r.now = r.fleet.Now()
		r.finishQuery(seq, outcomes[o], by)
	}
}

func (r *simulation) describeLane(l *lane) fleet.LaneConfig {
	its := fleet.LaneConfig{
		Type: names.LaneType(r.types[l.instanceType]), Known: l.known, Predicted: l.predicted,
		Kinds: r.cfg.mergeKinds(l.predicted), Seat: l.seat,
	}
	if l.only != nil {
		its.Holds = []int{}
		for i := range r.variants {
			if l.predicted[i] != nil && l.holdsModel(r.variants[i].Name) {
				its.Holds = append(its.Holds, i)
			}
		}
	}
	return its
}

// serviceTime is how long a lane runs a query.
func (r *simulation) serviceTime(lane int, q *fleet.ArrivingQuery) time.Duration {
	service := r.lanes[lane].execution[q.Model].Quantile(q.Uniform, q.Size())
	if q.Noise != 1 {
		service = time.Duration(float64(service) * q.Noise)
	}
	return min(max(service, 1), MaxLatency)
}

// drawLuck draws the random numbers of a part of a query.
func (r *simulation) drawLuck(q *fleet.ArrivingQuery, part int) {
	const numbers = match.MostParts + 1 // of a query and its parts
	luck := rand.New(rand.NewPCG(r.cfg.Seed, q.Sequence*numbers+uint64(part)))
	q.Uniform, q.Noise = drawUniform(luck), r.drawFactor(luck)
}
