package agent

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/gossip"
)

// metrics are what the agent counts beside what its rooms do, on the registry of all. docs/metrics.md
// describes every one; a test keeps the two alike.
type metrics struct {
	registry       *prometheus.Registry
	refusals       *prometheus.CounterVec
	passed         *prometheus.CounterVec
	passedAnswered prometheus.Counter // one of those, nearly all
}

// newMetrics registers what can be counted before the agent runs.
func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "muster_refusals_total", Help: "Connections and calls refused for who makes them, by reason.",
		}, []string{"reason"}),
		passed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "muster_gateway_queries_total", Help: "Queries that came to this agent for the fleet to answer, by outcome.",
		}, []string{"outcome"}),
	}
	for _, reason := range outcome.Reasons() { // there from the start, so that their rates are right
		m.passed.WithLabelValues(reason)
	}
	m.passedAnswered = m.passed.WithLabelValues("answered")
	build := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "muster_build_info", Help: "The version of this binary, as a label; always 1.",
		ConstLabels: prometheus.Labels{"version": Version()},
	}, func() float64 { return 1 })
	m.registry.MustRegister(m.refusals, m.passed, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// watch registers what is read from the intake whenever it is asked for.
func (m *metrics) watch(in *intake) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "muster_held_bytes", Help: "Bytes of the queries in the agent, being read, waiting and running, and of answers still to be sent.",
	}, func() float64 { return float64(in.all()) }))
}

// watchFleet registers what the agent's gateway and its gossip count.
func (m *metrics) watchFleet(gateway func() client.Stats, gossiped func() gossip.Stats) {
	ofGateway := func(name, help string, labels prometheus.Labels, value func(client.Stats) uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return float64(value(gateway())) })
	}
	ofGossip := func(name, help string, value func(gossip.Stats) int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(value(gossiped())) })
	}
	const (
		attempts  = "muster_gateway_attempts_total"
		resubmits = "muster_gateway_resubmits_total"
	)
	m.registry.MustRegister(
		ofGateway("muster_gateway_submits_total", "Requests for a lane made to leaders, repeated ones included.", nil,
			func(s client.Stats) uint64 { return s.Submits }),
		ofGateway("muster_gateway_submit_messages_total", "Messages that carried the requests for a lane.", nil,
			func(s client.Stats) uint64 { return s.SubmitMessages }),
		ofGateway(resubmits, "Requests for a lane that were repeated, by reason.", prometheus.Labels{"reason": "attempt-failed"},
			func(s client.Stats) uint64 { return s.ResubmitsFailed }),
		ofGateway(resubmits, "Requests for a lane that were repeated, by reason.", prometheus.Labels{"reason": "new-leader"},
			func(s client.Stats) uint64 { return s.ResubmitsLeader }),
		ofGateway(attempts, "Attempts of this gateway to have a query run, by who chose the lane.", prometheus.Labels{"chosen_by": "leader"},
			func(s client.Stats) uint64 { return s.Attempts - s.Leaderless }),
		ofGateway(attempts, "Attempts of this gateway to have a query run, by who chose the lane.", prometheus.Labels{"chosen_by": "gateway"},
			func(s client.Stats) uint64 { return s.Leaderless }),
		ofGateway("muster_gateway_superseded_attempts_total", "Attempts that were cut off as the query was assigned anew.", nil,
			func(s client.Stats) uint64 { return s.Superseded }),
		ofGateway("muster_gateway_unused_assignments_total", "Lanes that a leader assigned and that were given back.", nil,
			func(s client.Stats) uint64 { return s.Unused }),
		ofGateway("muster_gateway_probes_total", "Questions to agents, without a leader, when they would finish a query.", nil,
			func(s client.Stats) uint64 { return s.Probes }),
		ofGateway("muster_gateway_unanswered_probes_total", "Those of the questions that were not answered in time.", nil,
			func(s client.Stats) uint64 { return s.ProbesUnanswered }),
		ofGateway("muster_gateway_leader_silences_total", "Times that a leader did not answer in time, and this gateway decided alone.", nil,
			func(s client.Stats) uint64 { return s.Silences }),
		ofGateway("muster_gateway_leader_links_total", "Links to leaders that were opened.", nil,
			func(s client.Stats) uint64 { return s.Links }),

		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "muster_gossip_members", Help: "Agents that gossip says are there, this one included."},
			func() float64 { return float64(gossiped().Members) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "muster_gossip_health_score", Help: "0 if this agent keeps gossip's times, up to 7 the less it does."},
			func() float64 { return float64(gossiped().Health) }),
		ofGossip("muster_gossip_sent_packets_total", "Packets sent.", func(s gossip.Stats) int64 { return s.PacketsSent }),
		ofGossip("muster_gossip_received_packets_total", "Packets received.", func(s gossip.Stats) int64 { return s.PacketsReceived }),
		ofGossip("muster_gossip_sent_packet_bytes_total", "Bytes of the packets sent, without UDP and IP headers.",
			func(s gossip.Stats) int64 { return s.PacketBytesSent }),
		ofGossip("muster_gossip_received_packet_bytes_total", "Bytes of the packets received, without UDP and IP headers.",
			func(s gossip.Stats) int64 { return s.PacketBytesReceived }),
		ofGossip("muster_gossip_sent_stream_bytes_total", "Bytes sent over TCP.", func(s gossip.Stats) int64 { return s.StreamBytesSent }),
		ofGossip("muster_gossip_received_stream_bytes_total", "Bytes received over TCP.", func(s gossip.Stats) int64 { return s.StreamBytesReceived }),
		ofGossip("muster_gossip_new_loads_total", "Loads of other agents received that were news.", func(s gossip.Stats) int64 { return s.LoadsReceived }),
		ofGossip("muster_gossip_known_loads_total", "Loads of other agents received that were known.", func(s gossip.Stats) int64 { return s.LoadsRepeated }),
		ofGossip("muster_gossip_malformed_messages_total", "Messages that could not be read.", func(s gossip.Stats) int64 { return s.Malformed }),
	)
}
