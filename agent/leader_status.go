package agent

import (
	"cmp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader/match"
)

// rateSeconds is over how long the rates of a status are, at most.
const rateSeconds = 10

// rateSpan is over how long they are now: not longer than this agent has led, but
// long enough that a single query is not taken for many a second.
func (r *reign) rateSpan() time.Duration {
	return min(max(r.now.Sub(r.start), time.Second), rateSeconds*time.Second)
}

// count adds to what is known of the model's queries.
func (m *leaderModel) count(now time.Time, t tally) {
	second := now.Unix()
	p := &m.perSecond[second%statusSeconds]
	if p.second != second {
		*p = tally{second: second}
	}
	for _, to := range []*tally{p, &m.total} {
		to.answered += t.answered
		to.late += t.late
		to.refused += t.refused
	}
}

// last sums the last seconds.
func (m *leaderModel) last(now time.Time, seconds int64) (sum tally) {
	for i := range m.perSecond {
		if p := &m.perSecond[i]; p.second > now.Unix()-seconds && p.second <= now.Unix() {
			sum.answered += p.answered
			sum.late += p.late
			sum.refused += p.refused
		}
	}
	return sum
}

// fillStatus adds what the leader knows.
func (r *reign) fillStatus(s *control.FleetStatus) {
	all, late := r.matcher.Waiting()
	s.Waiting, s.WaitingLate = uint32(all), uint32(late)
	span := r.rateSpan()
	s.Rate = r.arrived.sum(r.now, span) / span.Seconds()
	s.FluidLimit = r.limit
	for _, w := range r.workers {
		i := slices.IndexFunc(s.Agents, func(a *control.AgentStatus) bool { return a.GetName() == w.name })
		if i < 0 {
			i = len(s.Agents)
			s.Agents = append(s.Agents, &control.AgentStatus{Name: w.name})
		}
		a := s.Agents[i]
		a.Factor = r.factors[w.name]
		if len(w.lanes) > 0 {
			a.Busy = min(1, w.busy.sum(r.now, span)/float64(span)/float64(len(w.lanes)))
		}
		a.Overdue = slices.ContainsFunc(w.lanes, func(ln *lane) bool { return ln.overdue })
	}
	slices.SortFunc(s.Agents, func(a, b *control.AgentStatus) int { return cmp.Compare(a.Name, b.Name) })
	for _, m := range r.models {
		minute := m.last(r.now, statusSeconds)
		status := &control.ModelStatus{
			Model: m.name, Version: m.version,
			Answered: m.total.answered, Late: m.total.late, Refused: m.total.refused,
		}
		lately := m.last(r.now, rateSeconds)
		status.Rate = float64(lately.answered+lately.refused) / span.Seconds()
		if n := minute.answered + minute.refused; n > 0 {
			status.WithinQos = proto.Float64(float64(minute.answered-minute.late) / float64(n))
		}
		s.Models = append(s.Models, status)
	}
	slices.SortFunc(s.Models, func(a, b *control.ModelStatus) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Version, b.Version))
	})
	for i := range len(r.decisions) {
		d := &r.decisions[(r.decided-1-i)%len(r.decisions)]
		text := match.AppendDecision(nil, d)
		if ln := r.lanes[d.Lane]; ln != nil && d.Action == match.Assign {
			text = append(text, " agent="+ln.worker.name...)
		}
		s.Decisions = append(s.Decisions, string(text))
	}
}

// leaderMetrics are what an agent's leading half counts.
type leaderMetrics struct {
	decisions *prometheus.CounterVec
	matched   prometheus.Counter // one of those, nearly all
	loopDelay prometheus.Histogram
	elections prometheus.Counter
	leads     prometheus.Gauge
	epoch     prometheus.Gauge
	gateways  prometheus.Gauge
	overdue   prometheus.Counter
	refusals  prometheus.Counter
	ahead     prometheus.Gauge
	limit     prometheus.Gauge
}

// newLeaderMetrics registers them.
func newLeaderMetrics(registry prometheus.Registerer) *leaderMetrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &leaderMetrics{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "muster_leader_decisions_total", Help: "Decisions of this agent as the leader, by action and reason.",
		}, []string{"action", "reason"}),
		loopDelay: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "muster_leader_loop_delay_seconds", Help: "Time from when the leader is told something until it looks at it.",
			Buckets: prometheus.ExponentialBuckets(5e-6, 2, 18), // 5 us to 0.65 s
		}),
		elections: counter("muster_leader_elections_total", "Times that this agent has become the leader."),
		leads:     gauge("muster_leader", "1 while this agent leads, else 0."),
		epoch:     gauge("muster_leader_epoch", "The epoch of the leader that this agent follows."),
		gateways:  gauge("muster_leader_gateways", "Gateways connected to this agent as the leader."),
		overdue:   counter("muster_leader_overdue_lanes_total", "Times that a lane was overdue."),
		refusals:  counter("muster_leader_refused_attempts_total", "Attempts that a worker has refused or broken off."),
		ahead:     gauge("muster_leader_dispatch_ahead_seconds", "How long before a lane is free the leader gives it the next query."),
		limit:     gauge("muster_leader_fluid_limit", "The highest rate, queries/s, that the lanes could serve if queries were like water; 0: unknown."),
	}
	m.matched = m.decisions.WithLabelValues(match.Assign.String(), match.Matched.String())
	registry.MustRegister(m.decisions, m.loopDelay, m.elections, m.leads, m.epoch, m.gateways, m.overdue, m.refusals, m.ahead, m.limit)
	return m
}

func (m *leaderMetrics) decided(d *match.Decision) {
	if d.Action == match.Assign && d.Reason == match.Matched {
		m.matched.Inc()
		return
	}
	m.decisions.WithLabelValues(d.Action.String(), d.Reason.String()).Inc()
}
