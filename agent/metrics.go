package agent

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/muster-serve/muster/gossip"
)

// metrics holds the registry that all parts register their metrics with, and the metrics of package
// agent itself. docs/metrics.md describes every metric; a test compares the two.
type metrics struct {
	registry *prometheus.Registry
	refusals *prometheus.CounterVec
}

// newMetrics makes the registry and registers the metrics that exist before Run.
func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "muster_refusals_total",
			Help: "Connections and calls refused for who makes them, by reason.",
		}, []string{"reason"}),
	}
	build := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "muster_build_info", Help: "The version of this binary, as a label; always 1.",
		ConstLabels: prometheus.Labels{"version": Version()},
	}, func() float64 { return 1 })
	m.registry.MustRegister(m.refusals, build,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// watchGossip registers metrics that read gossip's counters whenever they are scraped.
func (m *metrics) watchGossip(gossiped func() gossip.Stats) {
	ofGossip := func(name, help string, value func(gossip.Stats) int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help},
			func() float64 { return float64(value(gossiped())) })
	}
	m.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "muster_gossip_members",
			Help: "Agents that gossip says are there, this one included.",
		},
			func() float64 { return float64(gossiped().Members) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "muster_gossip_health_score",
			Help: "0 if this agent keeps gossip's times, up to 7 the less it does.",
		},
			func() float64 { return float64(gossiped().Health) }),
		ofGossip("muster_gossip_sent_packets_total", "Packets sent.",
			func(s gossip.Stats) int64 { return s.PacketsSent }),
		ofGossip("muster_gossip_received_packets_total", "Packets received.",
			func(s gossip.Stats) int64 { return s.PacketsReceived }),
		ofGossip("muster_gossip_sent_packet_bytes_total",
			"Bytes of the packets sent, without UDP and IP headers.",
			func(s gossip.Stats) int64 { return s.PacketBytesSent }),
		ofGossip("muster_gossip_received_packet_bytes_total",
			"Bytes of the packets received, without UDP and IP headers.",
			func(s gossip.Stats) int64 { return s.PacketBytesReceived }),
		ofGossip("muster_gossip_sent_stream_bytes_total", "Bytes sent over TCP.",
			func(s gossip.Stats) int64 { return s.StreamBytesSent }),
		ofGossip("muster_gossip_received_stream_bytes_total", "Bytes received over TCP.",
			func(s gossip.Stats) int64 { return s.StreamBytesReceived }),
		ofGossip("muster_gossip_new_loads_total", "Loads of other agents received that were news.",
			func(s gossip.Stats) int64 { return s.LoadsReceived }),
		ofGossip("muster_gossip_known_loads_total",
			"Loads of other agents received that were known.",
			func(s gossip.Stats) int64 { return s.LoadsRepeated }),
		ofGossip("muster_gossip_malformed_messages_total", "Messages that could not be read.",
			func(s gossip.Stats) int64 { return s.Malformed }),
		ofGossip("muster_gossip_refused_total",
			"Packets and streams beyond what is read of their sender.",
			func(s gossip.Stats) int64 { return s.Refused }),
	)
}
