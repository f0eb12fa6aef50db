package worker

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/runtime"
)

// durationBuckets are the bucket bounds, in seconds, of all histograms of a query's durations. All
// agents use the same, so that their histograms can be added. The bounds begin well below a
// millisecond and include the QoS targets of the zoo's models (5, 25, 35, 100, 350 ms), so that the
// share of queries within a target is exact.
var durationBuckets = []float64{
	50e-6, 100e-6, 200e-6, 300e-6, 500e-6, 750e-6,
	1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3, 7.5e-3,
	10e-3, 15e-3, 20e-3, 25e-3, 35e-3, 50e-3, 75e-3,
	100e-3, 150e-3, 200e-3, 350e-3, 500e-3, 750e-3,
	1, 2, 3.5, 5, 10,
}

// metrics are a worker's metrics. The methods may be called concurrently.
type metrics struct {
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
	qosTarget      *prometheus.GaugeVec
	attempts       prometheus.Counter
	refused        *prometheus.CounterVec
	probes         prometheus.Counter

	mu       sync.Mutex
	versions map[versionKey]*versionMetrics
	states   map[versionKey]models.State // "": neither on disk nor in memory
	nowhere  map[string]bool             // models with failed queries that reached no version
	// Since when a version has not served, has not existed, and a model has not been known.
	unserved, gone profiles.Absence[versionKey]
	unknown        profiles.Absence[string]
}

type versionKey struct {
	model   string
	version int64
}

// newMetrics makes the metrics, without those that read the lanes.
func newMetrics() *metrics {
	version := []string{"model", "version"}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	duration := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: durationBuckets,
			// Scrapers that support native histograms get buckets 10 % wide.
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160,
		}, version)
	}
	loading := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			// 5 ms to 164 s
			Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.005, 2, 16),
		}, version)
	}
	m := &metrics{
		versions: map[versionKey]*versionMetrics{}, states: map[versionKey]models.State{},
		nowhere: map[string]bool{},

		queries: counter("muster_queries_total", "Queries answered.", version...),
		items: counter("muster_items_total",
			"Items in the queries answered: the sum of their batch sizes.", version...),
		late: counter("muster_late_queries_total",
			"Queries answered after the QoS target of their model.", version...),
		failures: counter("muster_failed_queries_total",
			"Queries that got an error, by reason.", "model", "version", "reason"),
		failureSeconds: counter("muster_failed_queries_seconds_total",
			"Time spent on queries that got an error.", version...),
		request: duration("muster_request_duration_seconds",
			"Time from a query's arrival to its answer, of queries answered."),
		queue: duration("muster_queue_duration_seconds",
			"Time a query waited for a lane, of queries answered."),
		execution: duration("muster_execution_duration_seconds",
			"Time the model itself took, of queries answered."),
		loads: counter("muster_model_loads_total",
			"Loads of a model version that ended, by result.", "model", "version", "result"),
		loadDuration: loading("muster_model_load_duration_seconds",
			"Time to load a model version, without warming it up."),
		warmUpDuration: loading("muster_model_warm_up_duration_seconds",
			"Time to warm a model version up, beside serving."),
		attempts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "muster_attempts_total", Help: "Attempts of gateways to have a query run here.",
		}),
		refused: counter("muster_attempts_not_run_total",
			"Attempts that were not run, or not to their end, by reason.", "reason"),
		probes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "muster_probes_answered_total",
			Help: "Questions of gateways when this agent would finish a query.",
		}),
		modelState: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "muster_model_state",
			Help: "1 for the state a model version is in, 0 for the others.",
		}, []string{"model", "version", "state"}),
		qosTarget: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "muster_model_qos_target_seconds", Help: "The QoS target of a model version.",
		}, version),
	}
	// All series exist from the start, so that rate() sees their first increase.
	for _, reason := range outcome.Reasons() {
		m.refused.WithLabelValues(reason)
	}
	m.refused.WithLabelValues("refused")
	return m
}

// register registers the metrics, with metrics that read the lanes whenever they are scraped.
func (m *metrics) register(registry prometheus.Registerer, info runtime.Info,
	lanes *runtime.Lanes) {
	gauge := func(name, help string, value func(runtime.LanesStats) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help},
			func() float64 { return value(lanes.Stats()) })
	}
	registry.MustRegister(
		m.queries, m.items, m.late, m.failures, m.failureSeconds, m.request, m.queue, m.execution,
		m.loads, m.loadDuration, m.warmUpDuration, m.modelState, m.qosTarget, m.attempts, m.refused,
		m.probes,
		gauge("muster_lanes", "Lanes of this agent.",
			func(s runtime.LanesStats) float64 { return float64(s.Lanes) }),
		gauge("muster_lanes_busy", "Lanes that run a query.",
			func(s runtime.LanesStats) float64 { return float64(s.Running) }),
		gauge("muster_waiting_queries", "Queries waiting for a lane.",
			func(s runtime.LanesStats) float64 { return float64(s.Waiting) }),
		gauge("muster_waiting_bytes", "Bytes of the inputs of the queries waiting for a lane.",
			func(s runtime.LanesStats) float64 { return float64(s.WaitingBytes) }),
		gauge("muster_remaining_seconds",
			"Estimate of the time until a lane is free for a new query.",
			func(s runtime.LanesStats) float64 { return s.Remaining.Seconds() }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "muster_lane_busy_seconds_total",
			Help: "Time queries have spent on lanes, summed over the lanes.",
		},
			func() float64 { return lanes.Stats().Busy.Seconds() }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "muster_runtime_info", Help: "What runs the models, as labels; always 1.",
			ConstLabels: prometheus.Labels{
				"executor": info.Executor, "version": info.Version,
				"provider": string(info.Provider),
			},
		}, func() float64 { return 1 }),
	)
}

// A versionMetrics holds the metrics of one model version, so that a query needs no label lookups.
// Its methods may be called concurrently.
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

// version returns the metrics of a version: the same object in all calls, until forget has removed
// the version.
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

// answered counts an answered query: its batch size, its whole latency, and its time in the queue
// and on the lane.
func (v *versionMetrics) answered(batchSize int, request, queue, execution,
	qosTarget time.Duration) {
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

// failed counts a query that failed with err, a time after its arrival.
func (v *versionMetrics) failed(err error, after time.Duration) {
	v.failures[outcome.Of(err).Reason].Inc()
	v.failureSeconds.Add(after.Seconds())
}

// Failed counts a query that failed before it reached a version. model must be "" unless a model of
// that name exists: clients must not be able to create metric series.
func (w *Worker) Failed(model string, err error) {
	m := w.metrics
	m.mu.Lock()
	m.nowhere[model] = true
	m.mu.Unlock()
	m.failures.WithLabelValues(model, "", outcome.Of(err).Reason).Inc()
}

// observe updates the metrics of state and loads after a change of a version's state.
func (m *metrics) observe(e models.Event) {
	key := versionKey{e.Model, e.Version}
	m.mu.Lock()
	if m.states[key] = e.State; e.Gone {
		m.states[key] = ""
	}
	m.mu.Unlock()
	version := strconv.FormatInt(e.Version, 10)
	for _, state := range []models.State{
		models.Unavailable, models.Loading, models.Ready, models.Unloading,
	} {
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

// keepSeries is how long the series of a removed version stay, so that every scraper reads its last
// counts.
const keepSeries = 10 * time.Minute

// forget removes all series of versions that have not served for keepSeries, except the state of a
// version that is still on disk, and the series of models that are not known any more.
func (m *metrics) forget(now time.Time, known func(model string) bool) {
	m.mu.Lock()
	nowhere := slices.Collect(maps.Keys(m.nowhere))
	m.mu.Unlock()
	there := map[string]bool{"": true}
	for _, model := range nowhere {
		// m.mu is not held: known may wait for a goroutine that is about to call observe.
		there[model] = there[model] || known(model)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	served := func(key versionKey) bool {
		s := m.states[key]
		return s != "" && s != models.Unavailable
	}
	for _, key := range m.unserved.Over(now, keepSeries, maps.Keys(m.versions), served) {
		delete(m.versions, key)
		key.drop(m.queries, m.items, m.late, m.failures, m.failureSeconds, m.request, m.queue,
			m.execution,
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

// drop removes a version's series from each family.
func (k versionKey) drop(families ...interface {
	DeletePartialMatch(prometheus.Labels) int
}) {
	for _, f := range families {
		f.DeletePartialMatch(prometheus.Labels{
			"model": k.model, "version": strconv.FormatInt(k.version, 10),
		})
	}
}

// totals returns the count and the sum of a histogram that is in seconds.
func totals(h prometheus.Histogram) (count uint64, sum time.Duration) {
	var m dto.Metric
	if err := h.Write(&m); err != nil {
		return 0, 0 // a histogram's Write returns no error
	}
	return m.GetHistogram().GetSampleCount(), time.Duration(m.GetHistogram().GetSampleSum() *
		float64(time.Second))
}

// total returns the value of a counter.
func total(c prometheus.Counter) float64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		return 0 // a counter's Write returns no error
	}
	return m.GetCounter().GetValue()
}

// Statistics returns the counts of a version in the inference protocol's form.
func (w *Worker) Statistics(model string, number int64) *inference.ModelStatistics {
	return w.metrics.version(model, number).statistics()
}

// statistics returns the counts in the inference protocol's form. Queries are not batched together,
// so each query is one execution; inference_count counts items, as in other servers.
func (v *versionMetrics) statistics() *inference.ModelStatistics {
	duration := func(count uint64, sum time.Duration) *inference.StatisticDuration {
		return &inference.StatisticDuration{Count: count, Ns: uint64(sum)}
	}
	failed := 0.0
	for _, c := range v.failures {
		failed += total(c)
	}
	requests, requestTime := totals(v.request)
	queued, queueTime := totals(v.queue)
	executed, executionTime := totals(v.execution)
	none := duration(executed, 0) // the time for copying is not measured
	return &inference.ModelStatistics{
		Name:           v.key.model,
		Version:        strconv.FormatInt(v.key.version, 10),
		LastInference:  uint64(v.lastInference.Load()),
		InferenceCount: uint64(total(v.items)),
		ExecutionCount: executed,
		InferenceStats: &inference.InferStatistics{
			Success: duration(requests, requestTime),
			Fail: duration(uint64(failed),
				time.Duration(total(v.failureSeconds)*float64(time.Second))),
			Queue:         duration(queued, queueTime),
			ComputeInput:  none,
			ComputeInfer:  duration(executed, executionTime),
			ComputeOutput: none,
			CacheHit:      duration(0, 0),
			CacheMiss:     duration(0, 0),
		},
	}
}
