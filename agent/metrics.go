package agent

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/gossip"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/runtime"
)

// durationBuckets are the upper bounds of every duration of a query, in
// seconds, alike everywhere so that histograms of several agents add up. They
// begin well below a millisecond and include the zoo's QoS targets (5, 25, 35,
// 100, 350 ms), so that the share within a target is exact.
var durationBuckets = []float64{
	50e-6, 100e-6, 200e-6, 300e-6, 500e-6, 750e-6,
	1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3, 7.5e-3,
	10e-3, 15e-3, 20e-3, 25e-3, 35e-3, 50e-3, 75e-3,
	100e-3, 150e-3, 200e-3, 350e-3, 500e-3, 750e-3,
	1, 2, 3.5, 5, 10,
}

// metrics are what the agent counts, on a registry of its own. docs/metrics.md
// describes every one; a test keeps the two alike.
type metrics struct {
	registry *prometheus.Registry

	queries        *prometheus.CounterVec
	items          *prometheus.CounterVec
	late           *prometheus.CounterVec
	failures       *prometheus.CounterVec
	failureSeconds *prometheus.CounterVec
	request        *prometheus.HistogramVec
	queue          *prometheus.HistogramVec
	execution      *prometheus.HistogramVec
	loads          *prometheus.CounterVec
	loadDuration   *prometheus.HistogramVec
	warmUpDuration *prometheus.HistogramVec
	modelState     *prometheus.GaugeVec
	refusals       *prometheus.CounterVec
	qosTarget      *prometheus.GaugeVec
	attempts       prometheus.Counter
	refused        *prometheus.CounterVec
	passed         *prometheus.CounterVec
	passedAnswered prometheus.Counter // one of those, nearly all
	probes         prometheus.Counter

	mu       sync.Mutex
	versions map[versionKey]*versionMetrics
	states   map[versionKey]models.State // "": neither on disk nor in memory any more
	nowhere  map[string]bool             // models with failures before the version was known
	// Since when a version does not serve, is not there, and a model is not known.
	unserved, gone profiles.Absence[versionKey]
	unknown        profiles.Absence[string]
}

type versionKey struct {
	model   string
	version int64
}

// newMetrics registers everything that can be counted before the agent runs.
func newMetrics() *metrics {
	version := []string{"model", "version"}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	duration := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: durationBuckets,
			// For those who scrape native histograms: 10 % wide buckets.
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160,
		}, version)
	}
	loading := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.005, 2, 16), // 5 ms to 164 s
		}, version)
	}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		versions: map[versionKey]*versionMetrics{}, states: map[versionKey]models.State{}, nowhere: map[string]bool{},

		queries:        counter("muster_queries_total", "Queries answered.", version...),
		items:          counter("muster_items_total", "Items in the queries answered: the sum of their batch sizes.", version...),
		late:           counter("muster_late_queries_total", "Queries answered after the QoS target of their model.", version...),
		failures:       counter("muster_failed_queries_total", "Queries that got an error, by reason.", "model", "version", "reason"),
		failureSeconds: counter("muster_failed_queries_seconds_total", "Time spent on queries that got an error.", version...),
		request:        duration("muster_request_duration_seconds", "Time from a query's arrival to its answer, of queries answered."),
		queue:          duration("muster_queue_duration_seconds", "Time a query waited for a lane, of queries answered."),
		execution:      duration("muster_execution_duration_seconds", "Time the model itself took, of queries answered."),
		loads:          counter("muster_model_loads_total", "Loads of a model version that ended, by result.", "model", "version", "result"),
		loadDuration:   loading("muster_model_load_duration_seconds", "Time to load a model version, without warming it up."),
		warmUpDuration: loading("muster_model_warm_up_duration_seconds", "Time to warm a model version up, beside serving."),
		refusals:       counter("muster_refusals_total", "Connections and calls refused for who makes them, by reason.", "reason"),
		attempts:       prometheus.NewCounter(prometheus.CounterOpts{Name: "muster_attempts_total", Help: "Attempts of gateways to have a query run here."}),
		refused:        counter("muster_attempts_not_run_total", "Attempts that were not run, or not to their end, by reason.", "reason"),
		passed:         counter("muster_gateway_queries_total", "Queries that came to this agent for the fleet to answer, by outcome.", "outcome"),
		probes:         prometheus.NewCounter(prometheus.CounterOpts{Name: "muster_probes_answered_total", Help: "Questions of gateways when this agent would finish a query."}),
		modelState: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "muster_model_state", Help: "1 for the state a model version is in, 0 for the others.",
		}, []string{"model", "version", "state"}),
		qosTarget: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "muster_model_qos_target_seconds", Help: "The QoS target of a model version.",
		}, version),
	}
	for _, reason := range outcome.Reasons() { // there from the start, so that their rates are right
		m.refused.WithLabelValues(reason)
		m.passed.WithLabelValues(reason)
	}
	m.refused.WithLabelValues("refused")
	m.passedAnswered = m.passed.WithLabelValues("answered")
	build := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "muster_build_info", Help: "The version of this binary, as a label; always 1.",
		ConstLabels: prometheus.Labels{"version": Version()},
	}, func() float64 { return 1 })
	m.registry.MustRegister(
		m.queries, m.items, m.late, m.failures, m.failureSeconds, m.request, m.queue, m.execution,
		m.loads, m.loadDuration, m.warmUpDuration, m.modelState, m.qosTarget, m.refusals, build,
		m.attempts, m.refused, m.passed, m.probes,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// watch registers what is read from the agent's parts whenever it is asked for.
func (m *metrics) watch(info runtime.Info, lanes *runtime.Lanes, in *intake) {
	gauge := func(name, help string, value func(runtime.LanesStats) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return value(lanes.Stats()) })
	}
	m.registry.MustRegister(
		gauge("muster_lanes", "Lanes of this agent.", func(s runtime.LanesStats) float64 { return float64(s.Lanes) }),
		gauge("muster_lanes_busy", "Lanes that run a query.", func(s runtime.LanesStats) float64 { return float64(s.Running) }),
		gauge("muster_waiting_queries", "Queries waiting for a lane.", func(s runtime.LanesStats) float64 { return float64(s.Waiting) }),
		gauge("muster_waiting_bytes", "Bytes of the inputs of the queries waiting for a lane.", func(s runtime.LanesStats) float64 { return float64(s.WaitingBytes) }),
		gauge("muster_remaining_seconds", "Estimate of the time until a lane is free for a new query.", func(s runtime.LanesStats) float64 { return s.Remaining.Seconds() }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "muster_lane_busy_seconds_total", Help: "Time queries have spent on lanes, summed over the lanes."},
			func() float64 { return lanes.Stats().Busy.Seconds() }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "muster_held_bytes", Help: "Bytes of the queries in the agent, being read, waiting and running, and of answers still to be sent."},
			func() float64 { return float64(in.all()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "muster_runtime_info", Help: "What runs the models, as labels; always 1.",
			ConstLabels: prometheus.Labels{"executor": info.Executor, "version": info.Version, "provider": string(info.Provider)},
		}, func() float64 { return 1 }),
	)
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

// A versionMetrics counts the queries of one model version. Its methods may be
// called concurrently.
type versionMetrics struct {
	key            versionKey
	queries        prometheus.Counter
	items          prometheus.Counter
	late           prometheus.Counter
	failures       map[string]prometheus.Counter // by reason; complete, never written again
	failureSeconds prometheus.Counter
	request        prometheus.Histogram
	queue          prometheus.Histogram
	execution      prometheus.Histogram
	lastInference  atomic.Int64 // Unix time in ms; 0 before the first
}

// version returns the counters of a version, the same ones every time.
func (m *metrics) version(model string, number int64) *versionMetrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := versionKey{model, number}
	if v := m.versions[key]; v != nil {
		return v
	}
	labels := []string{model, strconv.FormatInt(number, 10)}
	v := &versionMetrics{
		key:            key,
		queries:        m.queries.WithLabelValues(labels...),
		items:          m.items.WithLabelValues(labels...),
		late:           m.late.WithLabelValues(labels...),
		failures:       map[string]prometheus.Counter{},
		failureSeconds: m.failureSeconds.WithLabelValues(labels...),
		request:        m.request.WithLabelValues(labels...).(prometheus.Histogram),
		queue:          m.queue.WithLabelValues(labels...).(prometheus.Histogram),
		execution:      m.execution.WithLabelValues(labels...).(prometheus.Histogram),
	}
	for _, reason := range outcome.Reasons() {
		v.failures[reason] = m.failures.WithLabelValues(append(labels, reason)...)
	}
	m.versions[key] = v
	return v
}

func (v *versionMetrics) answered(batchSize int, request, queue, execution, qosTarget time.Duration) {
	v.queries.Inc()
	v.items.Add(float64(batchSize))
	if request > qosTarget {
		v.late.Inc()
	}
	v.request.Observe(request.Seconds())
	v.queue.Observe(queue.Seconds())
	v.execution.Observe(execution.Seconds())
	v.lastInference.Store(time.Now().UnixMilli())
}

func (v *versionMetrics) failed(err error, after time.Duration) {
	v.failures[classify(err).Reason].Inc()
	v.failureSeconds.Add(after.Seconds())
}

// failedWithoutVersion counts a query that never reached a version. model is
// empty where there is none of that name: clients must not be able to make
// new series.
func (m *metrics) failedWithoutVersion(model string, err error) {
	m.mu.Lock()
	m.nowhere[model] = true
	m.mu.Unlock()
	m.failures.WithLabelValues(model, "", classify(err).Reason).Inc()
}

// observe follows the life of the model versions.
func (m *metrics) observe(e models.Event) {
	key := versionKey{e.Model, e.Version}
	m.mu.Lock()
	if m.states[key] = e.State; e.Gone {
		m.states[key] = ""
	}
	m.mu.Unlock()
	version := strconv.FormatInt(e.Version, 10)
	for _, state := range []models.State{models.Unavailable, models.Loading, models.Ready, models.Unloading} {
		value := 0.0
		if e.State == state {
			value = 1
		}
		m.modelState.WithLabelValues(e.Model, version, string(state)).Set(value)
	}
	switch {
	case e.Err != nil:
		m.loads.WithLabelValues(e.Model, version, "failed").Inc()
	case e.LoadTime > 0:
		m.loads.WithLabelValues(e.Model, version, "loaded").Inc()
	}
}

// keepSeries is how long the series of a version stay that is gone: whoever scrapes has had its
// last counts.
const keepSeries = 10 * time.Minute

// forget takes out all series of versions that no longer serve, but for what state those are in
// that are still on disk, and of models that are not known any more.
func (m *metrics) forget(now time.Time, known func(model string) bool) {
	m.mu.Lock()
	nowhere := slices.Collect(maps.Keys(m.nowhere))
	m.mu.Unlock()
	there := map[string]bool{"": true}
	for _, model := range nowhere {
		there[model] = there[model] || known(model) // which may ask those that are about to call observe
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	served := func(key versionKey) bool { s := m.states[key]; return s != "" && s != models.Unavailable }
	for _, key := range m.unserved.Over(now, keepSeries, maps.Keys(m.versions), served) {
		delete(m.versions, key)
		key.drop(m.queries, m.items, m.late, m.failures, m.failureSeconds, m.request, m.queue, m.execution,
			m.loadDuration, m.warmUpDuration, m.qosTarget)
	}
	exists := func(key versionKey) bool { return m.states[key] != "" }
	for _, key := range m.gone.Over(now, keepSeries, maps.Keys(m.states), exists) {
		delete(m.states, key)
		key.drop(m.loads, m.modelState)
	}
	isKnown := func(model string) bool { return there[model] }
	for _, model := range m.unknown.Over(now, keepSeries, maps.Keys(m.nowhere), isKnown) {
		delete(m.nowhere, model)
		m.failures.DeletePartialMatch(prometheus.Labels{"model": model, "version": ""})
	}
}

// drop takes a version's series out of each family.
func (k versionKey) drop(families ...interface {
	DeletePartialMatch(prometheus.Labels) int
}) {
	for _, f := range families {
		f.DeletePartialMatch(prometheus.Labels{"model": k.model, "version": strconv.FormatInt(k.version, 10)})
	}
}

// totals are the count and the sum of a histogram of seconds.
func totals(h prometheus.Histogram) (count uint64, sum time.Duration) {
	var m dto.Metric
	if err := h.Write(&m); err != nil {
		return 0, 0 // a histogram's Write returns no error
	}
	return m.GetHistogram().GetSampleCount(), time.Duration(m.GetHistogram().GetSampleSum() * float64(time.Second))
}

// total is the value of a counter.
func total(c prometheus.Counter) float64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		return 0 // a counter's Write returns no error
	}
	return m.GetCounter().GetValue()
}
