package serve

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/agent/slowlog"
	"github.com/muster-serve/muster/agent/worker"
	"github.com/muster-serve/muster/api/lateness"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/runtime"
)

// QueryCounters count the queries of clients: what arrives at this agent, by whatever protocol, and what
// of it fails, whichever agent was to run it. What the lanes of an agent run is counted by its
// worker, and how a query got its lane by the gateway. The methods may be called concurrently and
// do not block.
type QueryCounters struct {
	config         CountsConfig
	arrived        *prometheus.CounterVec
	failures       *prometheus.CounterVec
	failureSeconds *prometheus.CounterVec
	missed         *prometheus.CounterVec

	mu sync.Mutex
	// asked counts the arrivals at the versions that clients have asked this agent for, or that it
	// has loaded.
	asked map[worker.VersionKey]prometheus.Counter
	// unknown says since when a version has been neither in the fleet nor served here.
	unknown worker.VersionAbsence
}

// A CountsConfig is the surroundings of [QueryCounters].
type CountsConfig struct {
	Name    names.AgentName
	Gateway *client.Gateway // is told of failures, for the leader
	Worker  interface {
		CauseOfWait(now time.Time) lateness.Cause
	}
	Guard *secure.Guard // knows the callers
	Slow  *slowlog.Log  // nil: queries that are missed are not logged
}

// NewCounts registers the counters.
func NewCounts(registry prometheus.Registerer, config CountsConfig) *QueryCounters {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	c := &QueryCounters{
		config: config, asked: map[worker.VersionKey]prometheus.Counter{},
		arrived: counter("muster_arrived_queries_total",
			"Queries of clients that have arrived, refused ones included.", "model", "version"),
		failures: counter("muster_failed_queries_total",
			"Queries of clients that got an error, by reason.", "model", "version", "reason"),
		failureSeconds: counter("muster_failed_queries_seconds_total",
			"Time spent on queries of clients that got an error.", "model", "version"),
		missed: counter("muster_missed_queries_total",
			"Queries of clients that were late, refused or failed, by cause.", "model", "cause"),
	}
	c.makeSeries("", 0)
	c.missed.WithLabelValues("", string(lateness.Lane)) // so that the metric is there
	registry.MustRegister(c.arrived, c.failures, c.failureSeconds, c.missed)
	return c
}

// overload are the reasons of failures in an overload. Their series exist from the first query on,
// so that rate() sees the first failures; those of other reasons from the first failure on.
var overload = []string{"overloaded", "late", "deadline"}

// makeSeries makes the series of a version, so that rate() sees their first increase, and returns
// the counter of its arrivals.
func (c *QueryCounters) makeSeries(model string, version int64) prometheus.Counter {
	key := worker.VersionKey{Model: model, Version: version}
	c.mu.Lock()
	defer c.mu.Unlock()
	arrived := c.asked[key]
	if arrived == nil {
		arrived = c.arrived.WithLabelValues(key.Model, key.Number())
		c.asked[key] = arrived
		c.failureSeconds.WithLabelValues(key.Model, key.Number())
		for _, reason := range overload {
			c.failures.WithLabelValues(key.Model, key.Number(), reason)
		}
	}
	return arrived
}

// Arrived counts a query of a client for a version of a model. version is 0 if the query reached
// none. model must be "" unless a model of that name exists: clients must not be able to create
// metric series.
func (c *QueryCounters) Arrived(model string, version int64) { c.makeSeries(model, version).Inc() }

// Failed counts a query of a client that has arrived and has failed with err, a time after its
// arrival. The first two arguments are those of Arrived; target is the QoS target, 0 if the query
// reached no version. batchSize is that of a query which counts in the trial of a canary, else 0.
func (c *QueryCounters) Failed(model string, version int64, err error, after, target time.Duration,
	batchSize int) {
	reason := oip.ReasonAfter(outcome.Of(err).Reason, after, target)
	c.CountFailed(model, version, reason, 1)
	key := worker.VersionKey{Model: model, Version: version}
	c.failureSeconds.WithLabelValues(key.Model, key.Number()).Add(after.Seconds())
	c.config.Gateway.Failed(client.Failure{
		Model: model, Version: version, Reason: reason, TrialSize: client.TrialSize(batchSize),
	})
}

// A missedQuery is a query of a client that may have been late, or has failed.
type missedQuery struct {
	model, version string // "" if it reached none
	id             string // that it gave itself
	err            error  // nil if it was answered
	// spent is where its time went, nil if that is not known.
	spent *lateness.Record
	after time.Duration // since its arrival
	// target is the QoS target, 0 if the query reached no version.
	target time.Duration
}

// countMissedQuery counts a query of the call with context ctx by why it was missed, if it was, and
// notes it in the slow log. It is the one place for that.
func (c *QueryCounters) countMissedQuery(ctx context.Context, q *missedQuery) {
	reason := ""
	if q.err != nil {
		reason = oip.ReasonAfter(outcome.Of(q.err).Reason, q.after, q.target)
	}
	m, took := client.MissedBy(q.model, reason, q.spent)
	if m.Cause == "" {
		return
	}
	if reason == "overloaded" && m.Cause == lateness.Lane {
		c.explainRefusal(&m, q.err)
	}
	c.CountMissed(q.model, m.Cause, 1)
	c.config.Gateway.Missed(m, took)
	c.note(ctx, q, m, reason)
}

// note notes a query that was missed in the slow log.
func (c *QueryCounters) note(ctx context.Context, q *missedQuery, m client.Missed, reason string) {
	if c.config.Slow == nil {
		return
	}
	c.config.Slow.Note(&slowlog.Query{
		Model: q.model, Version: q.version, Cause: m.Cause, Agent: m.Agent, Reason: reason,
		Client: Callers{c.config.Guard}.Client(ctx), After: q.after, Target: q.target, Spent: q.spent,
		ID: q.id, TraceID: traceID(ctx), RequestID: firstHeader(ctx, requestIDHeader),
	}, time.Now())
}

// countMissedByRights counts a query that was refused because of who its client is.
func (c *QueryCounters) countMissedByRights(ctx context.Context) {
	m := client.Missed{Cause: lateness.Rights}
	c.CountMissed("", m.Cause, 1)
	c.config.Gateway.Missed(m, 0)
	c.note(ctx, &missedQuery{}, m, "")
}

// explainRefusal says why this agent has refused a query: for want of room on its lanes, or for what
// takes their time. One that has no room for the bytes of queries, and lanes with room, lacks memory.
func (c *QueryCounters) explainRefusal(m *client.Missed, err error) {
	var full *runtime.OverloadedError
	if !errors.As(err, &full) {
		return // another agent has refused it, or the leader
	}
	var noRoom *noRoomError
	cause := c.config.Worker.CauseOfWait(time.Now())
	switch {
	case cause != "":
		m.Cause = cause
	case errors.As(err, &noRoom):
		m.Cause = lateness.Memory
	}
	if m.Agent = ""; m.Cause.IsOfAgent() {
		m.Agent = string(c.config.Name)
	}
}

// CountMissed counts n queries that were missed for a cause. The leader calls it for those of
// gateways without an agent.
func (c *QueryCounters) CountMissed(model string, cause lateness.Cause, n uint64) {
	c.missed.WithLabelValues(model, string(cause)).Add(float64(n))
}

// CountFailed counts n queries that have failed for a reason of outcome.Reasons. The leader calls
// it for those of gateways without an agent.
func (c *QueryCounters) CountFailed(model string, version int64, reason string, n uint64) {
	key := worker.VersionKey{Model: model, Version: version}
	c.failures.WithLabelValues(key.Model, key.Number(), reason).Add(float64(n))
}

// Forget removes the series of versions and models that are known no more; see
// [worker.VersionAbsence]. held names the versions that the fleet holds, as "ncf/1"; known reports
// whether the repository or the fleet has a model, and serves whether this agent serves a version.
// Forget must be called from time to time.
func (c *QueryCounters) Forget(now time.Time, held map[names.ModelKey]bool, known func(model string) bool,
	serves func(worker.VersionKey) bool) {
	c.mu.Lock()
	asked := slices.Collect(maps.Keys(c.asked))
	c.mu.Unlock()
	there := map[worker.VersionKey]bool{}
	for _, key := range asked {
		// c.mu is not held: known may wait for a goroutine that is about to call expect.
		there[key] = key == (worker.VersionKey{}) || held[names.NewModelKey(key.Model,
			key.Version)] ||
			key.Version == 0 && known(key.Model) || serves(key)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	isThere := func(key worker.VersionKey) bool { is, seen := there[key]; return is || !seen }
	for _, key := range c.unknown.Over(now, maps.Keys(c.asked), isThere) {
		delete(c.asked, key)
		key.Drop(c.arrived, c.failures, c.failureSeconds)
		if !slices.ContainsFunc(slices.Collect(maps.Keys(c.asked)),
			func(k worker.VersionKey) bool { return k.Model == key.Model }) {
			c.missed.DeletePartialMatch(prometheus.Labels{"model": key.Model})
		}
	}
}
