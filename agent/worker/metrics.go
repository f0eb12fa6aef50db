package worker

import (
	"cmp"
	"iter"
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
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/runtime"
)

// durationBounds returns the bucket bounds, in seconds, of a version's latency: few, and around its
// QoS target, so that the share of answers within the target is exact. Scrapers that take native
// histograms get buckets 10 % wide in their place.
func durationBounds(target time.Duration) []float64 {
	return []float64{
		(target / 8).Seconds(), (target / 4).Seconds(), (target / 2).Seconds(),
		(3 * target / 4).Seconds(), target.Seconds(), (3 * target / 2).Seconds(),
		(3 * target).Seconds(), (10 * target).Seconds(),
	}
}

// withNativeBuckets sets o to a native histogram with buckets 10 % wide. Without classic buckets, a
// scraper that takes no native ones gets the count and the sum only.
func withNativeBuckets(o prometheus.HistogramOpts) prometheus.HistogramOpts {
	o.NativeHistogramBucketFactor, o.NativeHistogramMaxBucketNumber = 1.1, 160
	return o
}

// metrics are a worker's metrics. The methods may be called concurrently.
type metrics struct {
	registry       prometheus.Registerer
	queries        *prometheus.CounterVec
	items          *prometheus.CounterVec
	late           *prometheus.CounterVec
	queue          *prometheus.HistogramVec
	execution      *prometheus.HistogramVec
	merged         *prometheus.HistogramVec
	accuracy       *prometheus.SummaryVec
	nonFinite      *prometheus.CounterVec
	loads          *prometheus.CounterVec
	loadDuration   *prometheus.HistogramVec
	warmUpDuration *prometheus.HistogramVec
	modelState     *prometheus.GaugeVec
	qosTarget      *prometheus.GaugeVec
	qosPercentile  *prometheus.GaugeVec
	attempts       prometheus.Counter
	refused        *prometheus.CounterVec
	probes         prometheus.Counter
	ended          answerCounts

	mu       sync.Mutex
	versions map[VersionKey]*versionMetrics
	states   map[VersionKey]models.VersionState // "": neither on disk nor in memory
	// Since when a version has not served, and has not existed.
	unserved, gone VersionAbsence
}

// A answerCounts counts the queries that versions answered, and those that failed through no fault
// of the client.
type answerCounts struct{ answered, failed atomic.Uint64 }

// Ended returns how many queries this agent's lanes have answered, and how many have failed there
// through no fault of the client, since the start.
func (w *Worker) Ended() (answered, failed uint64) {
	e := &w.metrics.ended
	return e.answered.Load(), e.failed.Load()
}

// A VersionKey names a version of a model. Its version is 0 for queries that reached none, and its
// model is "", too, if theirs is not known.
type VersionKey struct {
	Model   string
	Version int64
}

// Number returns the version as labels have it.
func (k VersionKey) Number() string {
	if k.Version == 0 {
		return ""
	}
	return strconv.FormatInt(k.Version, 10)
}

// newMetrics makes the metrics, without those that read the lanes.
func newMetrics(registry prometheus.Registerer) *metrics {
	version := []string{"model", "version"}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	duration := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(withNativeBuckets(prometheus.HistogramOpts{
			Name: name, Help: help,
		}), version)
	}
	m := &metrics{
		registry: registry,
		versions: map[VersionKey]*versionMetrics{}, states: map[VersionKey]models.VersionState{},

		queries: counter("muster_queries_total", "Queries answered.", version...),
		items: counter("muster_items_total",
			"Items in the queries answered: the sum of their batch sizes.", version...),
		late: counter("muster_late_queries_total",
			"Queries answered after the QoS target of their model.", version...),
		queue: duration("muster_queue_duration_seconds",
			"Time a query waited for a lane, of queries answered."),
		execution: duration("muster_execution_duration_seconds",
			"Time the model itself took, of queries answered."),
		accuracy: prometheus.NewSummaryVec(prometheus.SummaryOpts{
			Name: "muster_answers_accuracy",
			Help: "Accuracy of the variants that answered queries, by family; an unknown one " +
				"counts as 1.",
		}, []string{"family", "model", "version"}),
		nonFinite: counter("muster_nonfinite_answers_total",
			"Answers with NaN or infinity in an output, by the worst value.", "model", "version",
			"value"),
		merged: duration("muster_lane_merged_queries",
			"Queries that ran as one, of each execution."),
		loads: counter("muster_model_loads_total",
			"Loads of a model version that ended, by result.", "model", "version", "result"),
		loadDuration: duration("muster_model_load_duration_seconds",
			"Time to load a model version, without warming it up."),
		warmUpDuration: duration("muster_model_warm_up_duration_seconds",
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
		modelState: gauge("muster_model_state",
			"1 for the state a model version is in, 0 for the others.", "model", "version",
			"state"),
		qosTarget: gauge("muster_model_qos_target_seconds", "The QoS target of a model version.",
			version...),
		qosPercentile: gauge("muster_model_qos_percentile",
			"The percentage of a model version's queries that the QoS target is for.", version...),
	}
	// All series exist from the start, so that rate() sees their first increase.
	for _, reason := range append(outcome.Reasons(), "refused") {
		m.refused.WithLabelValues(reason)
	}
	registry.MustRegister(m.queries, m.items, m.late,
		m.queue, m.execution, m.merged, m.accuracy, m.nonFinite, m.loads, m.loadDuration,
		m.warmUpDuration,
		m.modelState, m.qosTarget,
		m.qosPercentile, m.attempts, m.refused, m.probes)
	return m
}

// register registers metrics that read the lanes whenever they are scraped.
func (m *metrics) register(info runtime.Info, lanes *runtime.Partitions) {
	gauge := func(name, help string, value func(runtime.LanesStats) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help},
			func() float64 { return value(lanes.Stats()) })
	}
	m.registry.MustRegister(
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
	key           VersionKey
	target        time.Duration // whose bounds the histogram request has
	queries       prometheus.Counter
	items         prometheus.Counter
	late          prometheus.Counter
	request       prometheus.Histogram
	queue         prometheus.Histogram
	execution     prometheus.Histogram
	merged        prometheus.Histogram
	failed        atomic.Uint64          // queries and attempts that failed here
	failedFor     atomic.Int64           // time spent on them, ns
	lastInference atomic.Int64           // Unix time in ms; 0 before the first
	nonFinite     *prometheus.CounterVec // of all versions
	rating        atomic.Pointer[familyRating]
	ended         *answerCounts // of all versions
}

// versionMetrics returns the metrics of a version with a QoS target: the same object in all calls,
// until the target changes or forget has removed the version.
func (m *metrics) versionMetrics(model string, number int64, target time.Duration) *versionMetrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := VersionKey{model, number}
	former := m.versions[key]
	if former != nil && former.target == target {
		return former
	}
	labels := []string{model, key.Number()}
	v := &versionMetrics{
		key: key, target: target, ended: &m.ended,
		nonFinite: m.nonFinite,
		queries:   m.queries.WithLabelValues(labels...),
		items:     m.items.WithLabelValues(labels...),
		late:      m.late.WithLabelValues(labels...),
		// not of a HistogramVec, all of whose histograms have the same bounds
		request: prometheus.NewHistogram(withNativeBuckets(prometheus.HistogramOpts{
			Name:        "muster_request_duration_seconds",
			Help:        "Time from a query's arrival to its answer, of queries answered.",
			ConstLabels: prometheus.Labels{"model": model, "version": key.Number()},
			Buckets:     durationBounds(target),
		})),
		queue:     m.queue.WithLabelValues(labels...).(prometheus.Histogram),
		execution: m.execution.WithLabelValues(labels...).(prometheus.Histogram),
		merged:    m.merged.WithLabelValues(labels...).(prometheus.Histogram),
	}
	if former != nil {
		m.registry.Unregister(former.request)
		v.failed.Store(former.failed.Load())
		v.failedFor.Store(former.failedFor.Load())
		v.lastInference.Store(former.lastInference.Load())
	}
	m.registry.MustRegister(v.request)
	m.versions[key] = v
	return v
}

// A familyRating says what each answer of a version of a family counts as.
type familyRating struct {
	answers  prometheus.Observer
	accuracy float64
}

// rateVersion makes the answers of a version count for the family that its model.yaml names, if it
// does.
func (m *metrics) rateVersion(v *versionMetrics, c *models.Config) {
	if c.Family == "" {
		v.rating.Store(nil)
		return
	}
	v.rating.Store(&familyRating{
		m.accuracy.WithLabelValues(c.Family, v.key.Model, v.key.Number()), cmp.Or(c.Accuracy, 1),
	})
}

// countRun counts a query or a part that has run: its batch size, its time in the queue and on the
// lane, and its execution, which counts once for all queries that ran as one.
func (v *versionMetrics) countRun(batchSize int, result *runtime.Result) {
	v.items.Add(float64(batchSize))
	v.queue.Observe(result.Queue.Seconds())
	v.execution.Observe(result.Execution.Seconds())
	v.lastInference.Store(time.Now().UnixMilli())
	if !result.Joined {
		v.merged.Observe(float64(result.Queries))
	}
}

// countAnswered counts an answered query, whose latency was request.
func (v *versionMetrics) countAnswered(request, qosTarget time.Duration) {
	v.queries.Inc()
	v.ended.answered.Add(1)
	if request > qosTarget {
		v.late.Inc()
	}
	v.request.Observe(request.Seconds())
	if r := v.rating.Load(); r != nil {
		r.answers.Observe(r.accuracy)
	}
}

// valuesOf are the values of the label "value".
var valuesOf = map[tensor.NonFinite]string{
	tensor.HasNaN: "nan", tensor.HasInfinity: "infinity", tensor.HasNegativeInfinity: "-infinity",
}

// answeredWith counts an answer, or that of a part, with values that are no finite numbers. Its
// series exists from the first such answer on: nearly all models have none.
func (v *versionMetrics) answeredWith(n tensor.NonFinite) {
	if n != tensor.Finite {
		v.nonFinite.WithLabelValues(v.key.Model, v.key.Number(), valuesOf[n]).Inc()
	}
}

// failedHere counts, for the protocol's statistics and load reports, a query or an attempt that
// failed here with err, a time after its arrival.
func (v *versionMetrics) failedHere(err error, after time.Duration) {
	v.failed.Add(1)
	v.failedFor.Add(int64(after))
	if !outcome.Excuses(outcome.Of(err).Reason) {
		v.ended.failed.Add(1)
	}
}

// observeEvent updates the metrics of state and loads after a change of a version's state.
func (m *metrics) observeEvent(e models.VersionEvent) {
	key := VersionKey{e.Model, e.Version}
	m.mu.Lock()
	if m.states[key] = e.State; e.Gone {
		m.states[key] = ""
	}
	m.mu.Unlock()
	version := strconv.FormatInt(e.Version, 10)
	if e.Gone { // it has no state; what it counted stays for a while
		key.Drop(m.modelState)
		return
	}
	for _, state := range []models.VersionState{
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

const (
	// keepSeries is how long the counters of a removed version stay, so that every scraper reads
	// its last counts. Scrapers come once a minute or more often.
	keepSeries = 10 * time.Minute
	// keepVersions is how many removed versions of a model keep their counters for so long: the
	// last ones. A version has some 40 series, and one may be pushed each minute.
	keepVersions = 3
)

// A VersionAbsence says since when versions have been absent. It is not safe for concurrent use.
type VersionAbsence struct{ since profiles.Absence[VersionKey] }

// Over returns the versions that have been absent for keepSeries, and those after whose end more
// than keepVersions others of the model have ended. all are the versions with series, there reports
// whether one is not absent.
func (a *VersionAbsence) Over(now time.Time, all iter.Seq[VersionKey],
	there func(VersionKey) bool) []VersionKey {
	gone := a.since.Over(now, keepSeries, all, there)
	for _, key := range a.since.Excess(keepVersions, func(k VersionKey) string { return k.Model },
		func(a, b VersionKey) int { return cmp.Compare(a.Version, b.Version) }) {
		if key.Version != 0 && !slices.Contains(gone, key) {
			gone = append(gone, key)
		}
	}
	return gone
}

// dropGone removes all series of versions that have not served for keepSeries, except the state of
// a version that is still on disk. Of a model that many versions have left, it removes more; see
// VersionAbsence.Over.
func (m *metrics) dropGone(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range m.unserved.Over(now, maps.Keys(m.versions), m.isServing) {
		m.registry.Unregister(m.versions[key].request)
		delete(m.versions, key)
		key.Drop(m.queries, m.items, m.late, m.queue, m.execution, m.merged, m.accuracy,
			m.nonFinite, m.loadDuration, m.warmUpDuration, m.qosTarget, m.qosPercentile)
	}
	exists := func(key VersionKey) bool { return m.states[key] != "" }
	for _, key := range m.gone.Over(now, maps.Keys(m.states), exists) {
		delete(m.states, key)
		key.Drop(m.loads)
	}
}

// isServing reports whether a version serves or is about to. m.mu is held.
func (m *metrics) isServing(key VersionKey) bool {
	s := m.states[key]
	return s != "" && s != models.Unavailable
}

// Serves reports whether a version serves here or is about to.
func (w *Worker) Serves(key VersionKey) bool {
	w.metrics.mu.Lock()
	defer w.metrics.mu.Unlock()
	return w.metrics.isServing(key)
}

// Drop removes a version's series from each family.
func (k VersionKey) Drop(families ...interface {
	DeletePartialMatch(prometheus.Labels) int
}) {
	for _, f := range families {
		f.DeletePartialMatch(prometheus.Labels{"model": k.Model, "version": k.Number()})
	}
}

// histogramTotals returns the count and the sum of a histogram that is in seconds.
func histogramTotals(h prometheus.Histogram) (count uint64, sum time.Duration) {
	var m dto.Metric
	if err := h.Write(&m); err != nil {
		return 0, 0 // a histogram's Write returns no error
	}
	return m.GetHistogram().GetSampleCount(), time.Duration(m.GetHistogram().GetSampleSum() *
		float64(time.Second))
}

// counterValue returns the value of a counter.
func counterValue(c prometheus.Counter) float64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		return 0 // a counter's Write returns no error
	}
	return m.GetCounter().GetValue()
}

// Statistics returns the counts of a version in the inference protocol's form; nil if it has not
// been loaded here.
func (w *Worker) Statistics(model string, number int64) *inference.ModelStatistics {
	m := w.metrics
	m.mu.Lock()
	v := m.versions[VersionKey{model, number}]
	m.mu.Unlock()
	if v == nil {
		return nil
	}
	return v.toStatistics()
}

// toStatistics returns the counts in the inference protocol's form. As in other servers,
// inference_count counts items and execution_count executions. Several queries may be one
// execution, and a query that runs as parts is several; the durations count for each query.
func (v *versionMetrics) toStatistics() *inference.ModelStatistics {
	duration := func(count uint64, sum time.Duration) *inference.StatisticDuration {
		return &inference.StatisticDuration{Count: count, Ns: uint64(sum)}
	}
	requests, requestTime := histogramTotals(v.request)
	queued, queueTime := histogramTotals(v.queue)
	executed, executionTime := histogramTotals(v.execution)
	executions, _ := histogramTotals(v.merged)
	none := duration(executed, 0) // the time for copying is not measured
	return &inference.ModelStatistics{
		Name:           v.key.Model,
		Version:        v.key.Number(),
		LastInference:  uint64(v.lastInference.Load()),
		InferenceCount: uint64(counterValue(v.items)),
		ExecutionCount: executions,
		InferenceStats: &inference.InferStatistics{
			Success:       duration(requests, requestTime),
			Fail:          duration(v.failed.Load(), time.Duration(v.failedFor.Load())),
			Queue:         duration(queued, queueTime),
			ComputeInput:  none,
			ComputeInfer:  duration(executed, executionTime),
			ComputeOutput: none,
			CacheHit:      duration(0, 0),
			CacheMiss:     duration(0, 0),
		},
	}
}
