package serve

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/client"
)

// metrics are a server's own metrics, in addition to those of its worker.
type metrics struct {
	passed         *prometheus.CounterVec
	passedAnswered prometheus.Counter // the one of passed that counts nearly all
}

// newMetrics makes the metrics and registers them, with metrics that read the intake and the
// gateway whenever they are scraped.
func newMetrics(registry prometheus.Registerer, in *intake, gateway func() client.Stats) *metrics {
	m := &metrics{passed: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "muster_gateway_queries_total",
		Help: "Queries that came to this agent for the fleet to answer, by outcome.",
	}, []string{"outcome"})}
	// All series exist from the start, so that rate() sees their first increase.
	for _, reason := range outcome.Reasons() {
		m.passed.WithLabelValues(reason)
	}
	m.passedAnswered = m.passed.WithLabelValues("answered")
	ofGateway := func(name, help string, labels prometheus.Labels,
		value func(client.Stats) uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: name, Help: help, ConstLabels: labels,
		},
			func() float64 { return float64(value(gateway())) })
	}
	const (
		attempts  = "muster_gateway_attempts_total"
		resubmits = "muster_gateway_resubmits_total"
	)
	registry.MustRegister(
		m.passed,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "muster_held_bytes",
			Help: "Bytes of the queries in the agent, being read, waiting and running, and of " +
				"answers still to be sent.",
		}, func() float64 { return float64(in.all()) }),
		ofGateway("muster_gateway_submits_total",
			"Requests for a lane made to leaders, repeated ones included.", nil,
			func(s client.Stats) uint64 { return s.Submits }),
		ofGateway("muster_gateway_submit_messages_total",
			"Messages that carried the requests for a lane.", nil,
			func(s client.Stats) uint64 { return s.SubmitMessages }),
		ofGateway(resubmits, "Requests for a lane that were repeated, by reason.",
			prometheus.Labels{"reason": "attempt-failed"},
			func(s client.Stats) uint64 { return s.ResubmitsFailed }),
		ofGateway(resubmits, "Requests for a lane that were repeated, by reason.",
			prometheus.Labels{"reason": "new-leader"},
			func(s client.Stats) uint64 { return s.ResubmitsLeader }),
		ofGateway(attempts, "Attempts of this gateway to have a query run, by who chose the lane.",
			prometheus.Labels{"chosen_by": "leader"},
			func(s client.Stats) uint64 { return s.Attempts - s.Leaderless }),
		ofGateway(attempts, "Attempts of this gateway to have a query run, by who chose the lane.",
			prometheus.Labels{"chosen_by": "gateway"},
			func(s client.Stats) uint64 { return s.Leaderless }),
		ofGateway("muster_gateway_superseded_attempts_total",
			"Attempts that were cut off as the query was assigned anew.", nil,
			func(s client.Stats) uint64 { return s.Superseded }),
		ofGateway("muster_gateway_unused_assignments_total",
			"Lanes that a leader assigned and that were given back.", nil,
			func(s client.Stats) uint64 { return s.Unused }),
		ofGateway("muster_gateway_probes_total",
			"Questions to agents, without a leader, when they would finish a query.", nil,
			func(s client.Stats) uint64 { return s.Probes }),
		ofGateway("muster_gateway_unanswered_probes_total",
			"Those of the questions that were not answered in time.", nil,
			func(s client.Stats) uint64 { return s.ProbesUnanswered }),
		ofGateway("muster_gateway_leader_silences_total",
			"Times that a leader did not answer in time, and this gateway decided alone.", nil,
			func(s client.Stats) uint64 { return s.Silences }),
		ofGateway("muster_gateway_leader_links_total", "Links to leaders that were opened.", nil,
			func(s client.Stats) uint64 { return s.Links }),
	)
	return m
}
