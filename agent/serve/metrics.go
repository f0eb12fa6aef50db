package serve

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/client"
)

// registerMetrics registers a server's own metrics, in addition to those of its worker. They read
// the intake, the gateway and this agent's description whenever they are scraped.
func registerMetrics(registry prometheus.Registerer, in *intake, gateway func() client.Stats,
	own func() *control.Member) {
	ofGateway := func(name, help string, labels prometheus.Labels,
		value func(client.Stats) uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: name, Help: help, ConstLabels: labels,
		},
			func() float64 { return float64(value(gateway())) })
	}
	instanceInfo := prometheus.NewDesc("muster_instance_info",
		"What this machine is and costs, $/hour, as labels; always 1.",
		[]string{"instance_type", "provider", "price"}, nil)
	const (
		attempts  = "muster_gateway_attempts_total"
		resubmits = "muster_gateway_resubmits_total"
	)
	registry.MustRegister(
		prometheus.CollectorFunc(func(metrics chan<- prometheus.Metric) {
			m := own()
			metrics <- prometheus.MustNewConstMetric(instanceInfo, prometheus.GaugeValue, 1,
				m.GetInstanceType(), m.GetProvider(),
				strconv.FormatFloat(m.GetPriceUsdPerHour(), 'g', -1, 64))
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "muster_held_bytes",
			Help: "Bytes of the queries in the agent, being read, waiting and running, and of " +
				"answers still to be sent.",
		}, func() float64 { return float64(in.heldBytes()) }),
		ofGateway("muster_gateway_split_queries_total",
			"Queries of this gateway that ran as several parts.", nil,
			func(s client.Stats) uint64 { return s.Splits }),
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
		ofGateway("muster_gateway_hedged_attempts_total",
			"Attempts made while another one of the same query went on.", nil,
			func(s client.Stats) uint64 { return s.Hedged }),
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
}
