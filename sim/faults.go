package sim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/inquire"
	"github.com/muster-serve/muster/sim/fleet"
)

// mostAgents bounds the agents of a fleet with faults, because each of them knows all others.
const mostAgents = 1000

// validateFaults reports what is wrong with the faults, and settings that cannot be simulated with
// faults.
func (c *Config) validateFaults() (errs []error) {
	if len(c.Faults) == 0 {
		return nil
	}
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if slices.Contains([]string{DRS, Priced, Prequal, ORCA, Oracle}, c.policy()) {
		bad("policy %s cannot be simulated with faults: no agent leads with it", c.policy())
	}
	if n := c.Pool.Count(); n > mostAgents {
		bad("pool has %d instances, want 1..%d with faults", n, mostAgents)
	}
	if c.Probes < 0 {
		bad("number of lanes asked is %d, want 0 or more with faults: gateways of a fleet ask",
			c.Probes)
	}
	types, counts := make([]names.LaneType, len(c.Pool)), make([]int, len(c.Pool))
	for i, in := range c.Pool {
		types[i], counts[i] = names.LaneType(in.Type), in.Count
	}
	return append(errs, fleet.CheckTargets(c.Faults, types, counts)...)
}

// outcomes maps a fleet's outcomes to a run's.
var outcomes = [...]Outcome{
	fleet.Served: Served, fleet.Rejected: Rejected, fleet.Dropped: Dropped,
	fleet.NeverServed: NeverServed, fleet.Lost: Lost, fleet.Cancelled: Dropped,
}

// newFleet returns the fleet that serves the run's queries in place of the run's own lanes.
func newFleet(r *run) (*fleet.Fleet, error) {
	c := &fleet.Config{
		Policy: r.cfg.Policy, Seed: r.cfg.Seed, RTT: r.cfg.RTT, Jitter: r.cfg.Jitter,
		Deadline: r.cfg.Deadline,
		Gateways: r.cfg.gateways(), GossipDelay: r.cfg.GossipDelay,
		Probes: cmp.Or(r.cfg.Probes, inquire.DefaultProbes), Faults: r.cfg.Faults,
		Limit: r.splitLimit.Rate, Prices: r.splitLimit.Prices, Record: r.cfg.Record,
		Clock: r.cfg.Clock,
	}
	for i, m := range r.matchModels() {
		m.Merge = r.cfg.Merge
		c.Models = append(c.Models, fleet.Model{Model: m, Share: r.models[i].qosShare()})
	}
	for i := range r.lanes {
		l := &r.lanes[i]
		c.Lanes = append(c.Lanes, fleet.Lane{
			Type: names.LaneType(r.types[l.instanceType]), Known: l.known, Predicted: l.predicted,
			Kinds: l.kinds,
		})
	}
	c.Service = func(lane int, q *fleet.Query) time.Duration {
		drawn := query{uniform: q.Uniform, noise: q.Noise}
		return r.service(&r.lanes[lane], &drawn, int32(q.Model), q.BatchSize)
	}
	c.Waits = func(seq uint64, waits bool) {
		r.now = r.fleet.Now()
		r.setWaits(seq*numbering, waits)
	}
	c.Split = func(seq uint64) { r.models[r.at(seq*numbering).model].counts.Split++ }
	c.Finish = func(seq uint64, o fleet.Outcome, lane int, start time.Duration) {
		r.now = r.fleet.Now()
		seq *= numbering
		r.finish(seq, r.at(seq), outcomes[o], &attempt{lane: int32(lane), start: start})
	}
	r.lanesOf = c.Lanes
	return fleet.New(c)
}

// arriveAtFleet passes an arriving query to the fleet.
func (r *run) arriveAtFleet(seq uint64) {
	q := r.at(seq)
	r.fleet.Arrive(fleet.Query{
		Sequence: seq / numbering, Model: int(q.model), BatchSize: int(q.batch), Arrival: q.arrival,
		Uniform: q.uniform, Noise: q.noise,
	})
}

// fleetIsDone copies the fleet's counters into the run.
func (r *run) fleetIsDone() {
	r.now = r.fleet.Now()
	r.steps, r.cost = r.fleet.Steps()
	for i, l := range r.lanesOf {
		r.lanes[i].busy, r.lanes[i].served = l.Busy, l.Served
	}
}
