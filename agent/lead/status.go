package lead

import (
	"cmp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
)

// memberOf converts a member's description to the form that [leader.State] takes.
func memberOf(c *profiles.Catalogue, m *control.Member) *leader.Member {
	out := &leader.Member{
		Name: m.AgentName(), Type: m.LaneType(), OwnType: m.OwnLaneType(), Lanes: int(m.GetLanes()),
		Draining: m.GetDraining(),
		Revision: m.GetRevision(), Models: make([]leader.Model, len(m.GetModels())),
	}
	for i, held := range m.GetModels() {
		out.Models[i] = leader.Model{
			ModelID:   leader.ModelID{Name: held.GetName(), Version: held.GetVersion()},
			QoSTarget: time.Duration(held.GetQosTargetNs()), Share: held.GetQosPercentile(),
			Largest:    int(held.GetLargestBatchSize()),
			RejectLate: held.GetRejectLate(), Splits: held.GetSplits(),
			Merge:   held.GetMerge(),
			Profile: members.KeyOf(c, m, held),
		}
	}
	return out
}

// fillStatus adds the state's figures to out: of the queue, of each agent and of each model.
func (t *term) fillStatus(out *control.FleetStatus) {
	s := t.state.Status()
	out.Waiting, out.WaitingLate = uint32(s.Waiting), uint32(s.WaitingLate)
	out.Rate, out.FluidLimit = s.Rate, s.Limit
	for _, known := range s.Agents {
		i := slices.IndexFunc(out.Agents,
			func(a *control.AgentStatus) bool { return a.GetName() == string(known.Name) })
		if i < 0 {
			i = len(out.Agents)
			out.Agents = append(out.Agents, &control.AgentStatus{Name: string(known.Name)})
		}
		out.Agents[i].Factor, out.Agents[i].Busy, out.Agents[i].Overdue = known.Factor, known.Busy,
			known.Overdue
	}
	slices.SortFunc(out.Agents,
		func(a, b *control.AgentStatus) int { return cmp.Compare(a.Name, b.Name) })
	for _, m := range s.Models {
		status := &control.ModelStatus{
			Model: m.Name, Version: m.Version, Rate: m.Rate, Answered: m.Answered, Late: m.Late,
		}
		for reason, n := range m.Refused {
			status.Refused += n
			status.Refusals = append(status.Refusals, &control.ModelStatus_Refusals{
				Reason: reason, Count: n,
			})
		}
		slices.SortFunc(status.Refusals, func(a, b *control.ModelStatus_Refusals) int {
			return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Reason, b.Reason))
		})
		if m.Any {
			status.WithinQos = proto.Float64(m.Within)
		}
		out.Models = append(out.Models, status)
	}
	out.Decisions = append(out.Decisions, s.Decisions...)
}

// metrics are the metrics of an agent as leader; all are registered even while it does not lead.
type metrics struct {
	decisions *prometheus.CounterVec
	matched   prometheus.Counter // the one of decisions that counts nearly all
	loopDelay prometheus.Histogram
	elections prometheus.Counter
	leads     prometheus.Gauge
	epoch     prometheus.Gauge
	gateways  prometheus.Gauge
	overdue   prometheus.Counter
	ahead     prometheus.Gauge
	limit     prometheus.Gauge

	demandChanges *prometheus.CounterVec
	instances     *prometheus.GaugeVec
	gain          prometheus.Gauge
}

// newMetrics makes the metrics and registers them.
func newMetrics(registry prometheus.Registerer) *metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "muster_leader_decisions_total",
			Help: "Decisions of this agent as the leader, by action and reason.",
		}, []string{"action", "reason"}),
		loopDelay: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:                        "muster_leader_loop_delay_seconds",
			Help:                        "Time from when the leader is told something until it looks at it.",
			Buckets:                     []float64{1e-4, 1e-3, 1e-2, 1e-1},
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160,
		}),
		elections: counter("muster_leader_elections_total",
			"Times that this agent has become the leader."),
		leads: gauge("muster_leader", "1 while this agent leads, else 0."),
		epoch: gauge("muster_leader_epoch", "The epoch of the leader that this agent follows."),
		gateways: gauge("muster_leader_gateways",
			"Gateways connected to this agent as the leader."),
		overdue: counter("muster_leader_overdue_lanes_total", "Times that a lane was overdue."),
		ahead: gauge("muster_leader_dispatch_ahead_seconds",
			"How long before a lane is free the leader gives it the next query."),
		limit: gauge("muster_leader_fluid_limit",
			"The highest rate, queries/s, that the lanes could serve if queries could be divided "+
				"at will; "+
				"0: unknown."),
	}
	m.demandChanges = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "muster_demand_changes_total",
		Help: "Times that what is asked of a model changed, by what did.",
	}, []string{"model", "version", "kind"})
	m.instances = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "muster_proposed_instances",
		Help: "Instances of the last plan for a changed demand, by type; what ran when it was " +
			"made, where it is not worth changing.",
	}, []string{"instance_type"})
	m.gain = gauge("muster_proposed_gain",
		"By which share the last plan for a changed demand serves more than what ran, or costs "+
			"less; below 0: costs more.")
	m.matched = m.decisions.WithLabelValues(match.Assign.String(), match.Matched.String())
	registry.MustRegister(m.decisions, m.loopDelay, m.elections, m.leads, m.epoch, m.gateways,
		m.overdue, m.ahead, m.limit,
		m.demandChanges, m.instances, m.gain)
	return m
}

// proposed sets the metrics of the proposed plan.
func (m *metrics) proposed(p *control.Proposal) {
	m.instances.Reset()
	for _, i := range p.GetProposed() {
		m.instances.WithLabelValues(i.GetType()).Set(float64(i.GetCount()))
	}
	m.gain.Set(p.GetGain())
}

// decided counts a decision. It avoids a label lookup for the most frequent kind.
func (m *metrics) decided(d *match.Decision) {
	if d.Action == match.Assign && d.Reason == match.Matched {
		m.matched.Inc()
		return
	}
	m.decisions.WithLabelValues(d.Action.String(), d.Reason.String()).Inc()
}
