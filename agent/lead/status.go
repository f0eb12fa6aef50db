package lead

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/beat"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
)

// memberOf converts a member's description to the form that [leader.State] takes.
func memberOf(c *profiles.Catalogue, m *control.Member) *leader.Member {
	out := &leader.Member{
		Name: m.AgentName(), Type: m.LaneType(), OwnType: m.OwnLaneType(), Lanes: int(m.GetLanes()),
		Draining: m.GetDraining(), Ends: control.Duration(m.GetRented().GetEndsNs()),
		Revision: m.GetRevision(), Models: modelsOf(c, m, m.GetModels()),
		Loadable: modelsOf(c, m, m.GetLoadable()),
	}
	out.Parts = partsOf(m, out)
	return out
}

// A ranking is what the term knows of models whose inputs have roles.
type ranking struct {
	needs map[leader.ModelID]bool // only agents that know roles answer their queries
	// splits are the names of models and families whose queries only gateways that know roles can
	// split.
	splits map[string]bool
}

// rankingOf returns what the members' descriptions say of roles.
func rankingOf(members []*control.Member) ranking {
	r := ranking{map[leader.ModelID]bool{}, map[string]bool{}}
	for _, m := range members {
		for _, held := range slices.Concat(m.GetModels(), m.GetLoadable()) {
			if oip.NeedsRoles(held.GetMetadata().GetProperties()) {
				r.needs[leader.ModelID{Name: held.GetName(), Version: held.GetVersion()}] = true
			}
			if held.GetSplitsByRoles() {
				r.splits[held.GetName()] = true
				if f := held.GetFamily(); f != "" {
					r.splits[f] = true
				}
			}
		}
	}
	return r
}

// equals reports whether nothing has changed.
func (r ranking) equals(o ranking) bool {
	return maps.Equal(r.needs, o.needs) && maps.Equal(r.splits, o.splits)
}

// removeUnserved removes from a member that does not know roles the models that need it to.
func (r ranking) removeUnserved(m *control.Member, described *leader.Member) {
	if m.KnowsRoles() || len(r.needs) == 0 {
		return
	}
	needs := func(held leader.HeldModel) bool { return r.needs[held.ModelID] }
	described.Models = slices.DeleteFunc(described.Models, needs)
	described.Loadable = slices.DeleteFunc(described.Loadable, needs)
}

// modelsOf converts a member's descriptions of models.
func modelsOf(c *profiles.Catalogue, m *control.Member, all []*control.Model) []leader.HeldModel {
	if len(all) == 0 {
		return nil
	}
	out := make([]leader.HeldModel, len(all))
	for i, held := range all {
		out[i] = leader.HeldModel{
			ModelID:   leader.ModelID{Name: held.GetName(), Version: held.GetVersion()},
			QoSTarget: time.Duration(held.GetQosTargetNs()), Share: held.GetQosPercentile(),
			Largest:    int(held.GetLargestBatchSize()),
			RejectLate: held.GetRejectLate(),
			Splits:     held.GetSplits() || held.GetSplitsByRoles(),
			Merge:      held.GetMerge(),
			Family:     held.GetFamily(), Accuracy: held.GetAccuracy(),
			MinAccuracy: held.GetMinAccuracy(), TargetAccuracy: held.GetTargetAccuracy(),
			Profile: members.KeyOf(c, m, held),
		}
	}
	return out
}

// partsOf converts the parts of a member's lanes; nil if each lane has all models, or the parts are
// not all of the member's lanes in their order. A model that no part names is not held as far as
// the leader is concerned.
func partsOf(m *control.Member, of *leader.Member) (parts []leader.PartitionLanes) {
	next, lanes := uint64(0), uint64(0)
	for _, p := range m.GetParts() {
		if uint64(p.GetFirst()) < next {
			return nil
		}
		next = uint64(p.GetFirst()) + uint64(p.GetLanes())
		if lanes += uint64(p.GetLanes()); lanes > uint64(m.GetLanes()) {
			return nil
		}
		part := leader.PartitionLanes{
			First: int(p.GetFirst()), Lanes: int(p.GetLanes()), Draining: of.Draining,
			Type: of.Type,
		}
		if len(p.GetModels()) > 0 {
			part.Type = m.LaneTypeOf(p.GetModels()[0])
		}
		part.OwnType = part.Type.Own(of.Name)
		for _, held := range of.Models {
			if slices.Contains(p.GetModels(), held.Name) {
				part.Models = append(part.Models, held.ModelID)
			}
		}
		parts = append(parts, part)
	}
	return parts
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
			NonFinite: m.NonFinite, UnmetShare: m.Unmet, WhyUnmet: m.WhyUnmet,
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
	for i := range s.Families {
		out.Families = append(out.Families, familyOf(&s.Families[i]))
	}
	out.Decisions = append(out.Decisions, s.Decisions...)
}

// familyOf converts the status of a family.
func familyOf(f *leader.FamilyStatus) *control.FamilyStatus {
	status := &control.FamilyStatus{Family: f.Name, Rate: f.Rate, Best: f.Best}
	if f.Any {
		status.WithinQos = proto.Float64(f.Within)
	}
	if f.Accuracy > 0 {
		status.Accuracy = proto.Float64(f.Accuracy)
	}
	for _, v := range f.Variants {
		status.Variants = append(status.Variants, &control.FamilyStatus_VariantShare{
			Model: v.Name, Version: v.Version, Accuracy: v.Accuracy, Share: v.Share,
			Answered: v.Answered,
		})
	}
	return status
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
	unmet     *prometheus.GaugeVec
	byType    *prometheus.CounterVec
	factors   *prometheus.GaugeVec

	placements       prometheus.Counter
	placementVersion prometheus.Gauge
	placementSolve   prometheus.Histogram
	placementGap     prometheus.Gauge

	mu            sync.Mutex
	changed       map[names.ModelKey]bool // that have series of demandChanges
	gone          profiles.Absence[names.ModelKey]
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
		changed: map[names.ModelKey]bool{},
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "muster_leader_decisions_total",
			Help: "Decisions of this agent as the leader, by action and reason.",
		}, []string{"action", "reason"}),
		loopDelay: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "muster_leader_loop_delay_seconds",
			Help: "Time from when the leader is told something until it " +
				"looks at it.",
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
	m.byType = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "muster_leader_queries_by_type_total",
		Help: "Queries, and parts of queries, that this agent as the leader has assigned, by the " +
			"type of instance.",
	}, []string{"instance_type"})
	m.factors = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "muster_agent_factor",
		Help: "Latency of an agent's lanes against the mean of their type, as this agent as the " +
			"leader has learned it.",
	}, []string{"agent"})
	m.unmet = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "muster_leader_unmet_share",
		Help: "Share of a model's queries that would be late if no other queries came, where that is " +
			"more than its QoS target allows.",
	}, []string{"model", "version"})
	m.placements = counter("muster_placement_changes_total",
		"Placements that this agent has made as the leader.")
	m.placementVersion = gauge("muster_placement_version",
		"The version of the last placement that this agent has made as the leader; 0: none.")
	m.placementGap = gauge("muster_placement_bound_gap_points",
		"How much more accurate, in points, no placement can be than the last plan.")
	m.placementSolve = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "muster_placement_solve_seconds",
		Help:    "Time to solve a placement, at a priority below that of queries.",
		Buckets: []float64{.01, .1, 1, 10},
	})
	m.demandChanges = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "muster_demand_changes_total",
		Help: "Times that what is asked of a model changed, by what did.",
	}, []string{"model", "version", "kind"})
	m.instances = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "muster_proposed_instances",
		Help: "Instances of the last plan, by type; what ran when it was made, where it is not " +
			"worth changing.",
	}, []string{"instance_type"})
	m.gain = gauge("muster_proposed_gain",
		"By which share the last plan costs less than what ran; below 0: costs more.")
	m.matched = m.decisions.WithLabelValues(match.Assign.String(), match.Matched.String())
	registry.MustRegister(m.decisions, m.loopDelay, m.elections, m.leads, m.epoch, m.gateways,
		m.overdue, m.ahead, m.limit, m.unmet, m.byType, m.factors,
		m.placements, m.placementVersion, m.placementSolve, m.placementGap,
		m.demandChanges, m.instances, m.gain)
	return m
}

// countAssigned counts queries that go to a type of instance, by bins of batch sizes.
func (m *metrics) countAssigned(typ string, bins *[beat.Bins]uint32) {
	sum := 0.0
	for _, n := range bins {
		sum += float64(n)
	}
	m.byType.WithLabelValues(typ).Add(sum)
}

// demandChanged counts a change of what is asked of a model.
func (m *metrics) demandChanged(p *control.Proposal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changed[names.NewModelKey(p.GetModel(), p.GetVersion())] = true
	m.demandChanges.WithLabelValues(p.GetModel(), fmt.Sprint(p.GetVersion()), p.GetKind()).Inc()
}

// keepSeries is how long the series of versions that are gone stay, so that scrapers read the last
// counts. Chosen: longer than any usual scrape interval.
const keepSeries = 10 * time.Minute

// Forget removes the series of versions that the fleet has not held for ten minutes. Agents that
// have led, and lead no more, have some too. It must be called from time to time.
func (l *Leader) Forget(now time.Time, held map[names.ModelKey]bool) {
	m := l.metrics
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range m.gone.Over(now, keepSeries, maps.Keys(m.changed),
		func(key names.ModelKey) bool { return held[key] }) {
		model, version := key.Split()
		delete(m.changed, key)
		m.demandChanges.DeletePartialMatch(prometheus.Labels{
			"model": model, "version": fmt.Sprint(version),
		})
	}
}

// factorsAre sets the metrics of the agents' factors.
func (m *metrics) factorsAre(factors map[string]float64) {
	m.factors.Reset()
	for agent, factor := range factors {
		m.factors.WithLabelValues(agent).Set(factor)
	}
}

// unmetAre sets the metrics of the models that miss their QoS targets.
func (m *metrics) unmetAre(all []leader.Unmet) {
	m.unmet.Reset()
	for _, u := range all {
		m.unmet.WithLabelValues(u.Model.Name, fmt.Sprint(u.Model.Version)).Set(u.Share)
	}
}

// setPlan sets the metrics of the last plan.
func (m *metrics) setPlan(p *control.Plan) {
	m.instances.Reset()
	fleet := p.GetProposed()
	if fleet == nil {
		fleet = p.GetNow()
	}
	for _, i := range fleet.GetInstances() {
		m.instances.WithLabelValues(i.GetType()).Set(float64(i.GetCount()))
	}
	m.gain.Set(p.GetGain())
}

// countDecision counts a decision. It avoids a label lookup for the most frequent kind.
func (m *metrics) countDecision(d *match.Decision) {
	if d.Action == match.Assign && d.Reason == match.Matched {
		m.matched.Inc()
		return
	}
	m.decisions.WithLabelValues(d.Action.String(), d.Reason.String()).Inc()
}
