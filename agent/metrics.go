package agent

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/muster-serve/muster/api/version"
	"github.com/muster-serve/muster/gossip"
	"github.com/muster-serve/muster/runtime/gpu"
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
		ConstLabels: prometheus.Labels{"version": version.Current()},
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

// watchStateDir registers the metric of the state directory.
func (m *metrics) watchStateDir(stateless bool) {
	writable := 1.0
	if stateless {
		writable = 0
	}
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "muster_state_dir_writable",
		Help: "0 if the agent was to be one that may lead and cannot write its state directory.",
	}, func() float64 { return writable }))
}

// watchGPU registers metrics of the card that read its status at each scrape. A card that cannot be
// watched has only the metric that names it.
func (m *metrics) watchGPU(card *gpu.Card, status func() gpu.Status) {
	text := func(of string) string { return strings.ToValidUTF8(of, "?") } // of the driver
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "muster_gpu_info", Help: "The card that models run on, as labels; always 1.",
		ConstLabels: prometheus.Labels{
			"gpu": strconv.Itoa(card.Index), "name": text(card.Name), "uuid": text(card.UUID),
			"driver": text(card.Driver),
		},
	}, func() float64 { return 1 }))
	if card.Unwatched != nil {
		return
	}
	gauge := func(name, help string, labels prometheus.Labels, value func(gpu.Status) float64) {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "muster_gpu_" + name, Help: help, ConstLabels: labels,
		}, func() float64 { return value(status()) }))
	}
	counter := func(name, help string, labels prometheus.Labels, value func(gpu.Status) uint64) {
		m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "muster_gpu_" + name, Help: help, ConstLabels: labels,
		}, func() float64 { return float64(value(status())) }))
	}
	reading := func(value float64) float64 {
		if value < 0 { // the card does not say
			return math.NaN()
		}
		return value
	}
	gauge("memory_bytes", "Memory of the card.", nil,
		func(s gpu.Status) float64 { return float64(s.Memory) })
	gauge("memory_used_bytes", "Memory of the card that is in use.", nil,
		func(s gpu.Status) float64 { return float64(s.Used) })
	gauge("utilization_ratio", "Share of the time in which the card computed.", nil,
		func(s gpu.Status) float64 { return reading(s.Utilization) })
	gauge("temperature_celsius", "Temperature of the card.", nil,
		func(s gpu.Status) float64 { return reading(float64(s.Temperature)) })
	gauge("power_watts", "Power that the card draws.", nil,
		func(s gpu.Status) float64 { return reading(s.Power) })
	for _, reason := range gpu.SlowedBy() {
		gauge("slowed", "1 if the card's clocks are low for the reason, else 0.",
			prometheus.Labels{"reason": reason}, func(s gpu.Status) float64 {
				if slices.Contains(s.Slowed, reason) {
					return 1
				}
				return 0
			})
	}
	const errors = "Errors of the card's memory since its driver was loaded, by kind."
	counter("memory_errors_total", errors, prometheus.Labels{"kind": "corrected"},
		func(s gpu.Status) uint64 { return s.Corrected })
	counter("memory_errors_total", errors, prometheus.Labels{"kind": "uncorrected"},
		func(s gpu.Status) uint64 { return s.Uncorrected })
	counter("xid_errors_total", "Faults (Xid) that the card's driver told of.", nil,
		func(s gpu.Status) uint64 { return s.Xids })
	gauge("last_xid", "Number of the last of them; 0: there was none.", nil,
		func(s gpu.Status) float64 { return float64(s.Xid) })
}
