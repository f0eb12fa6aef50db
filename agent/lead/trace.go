package lead

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/tracing"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/match"
)

// A queryTrace holds what the spans of the decisions about a query need. The state keeps it as the
// query's tag.
type queryTrace struct {
	ctx   context.Context // carries the query's span at its gateway
	since time.Time       // when the query began to wait for a decision
	again match.Reason    // if tried: why the query was offered again
	tried bool            // the query was assigned before and was offered again
	batch int
	part  int   // the number of the part of a query that it is; 0: it is whole
	rows  []int // of the parts, which share the trace; nil: the query was not split here
}

// queryTraceOf returns the queryTrace of a submitted query; nil if the query is not traced.
func (t *term) queryTraceOf(s *control.Submit) *queryTrace {
	if t.leader.config.Tracer == nil || s.GetTraceparent() == "" {
		return nil
	}
	q := &queryTrace{
		ctx: tracing.Parse(t.ctx, s.GetTraceparent(), s.GetTracestate()), since: t.now,
		batch: int(s.GetBatchSize()),
	}
	if s.GetSplits() {
		q.part = partOf(match.QueryID{Sequence: s.GetSequence()})
	}
	return q
}

// partOf returns the number of the part of a query that id names, 0 if it names a whole query.
func partOf(id match.QueryID) int { return int(id.Sequence - id.Whole().Sequence) }

// traceDecision makes the span of a decision about a query, if the query is traced.
func (t *term) traceDecision(a *leader.Action) {
	q, _ := a.Tag.(*queryTrace)
	if q == nil {
		return
	}
	d := &a.Decision
	if a.Kind == leader.OfferAgain {
		q.since, q.again, q.tried = t.now, d.Reason, true
		return
	}
	part, batch := q.part, q.batch
	if n := partOf(d.Query); n > 0 && n <= len(q.rows) {
		part, batch = n, q.rows[n-1]
	}
	_, span := t.leader.config.Tracer.Start(q.ctx, tracing.Decide, trace.WithTimestamp(q.since),
		trace.WithAttributes(
			tracing.Epoch.Int64(int64(t.claim.Epoch)),
			tracing.Policy.String(cmp.Or(t.leader.config.Policy, match.DefaultPolicy)),
			tracing.Action.String(d.Action.String()), tracing.Reason.String(d.Reason.String()),
			tracing.BatchSize.Int(batch), tracing.Ms(tracing.Waited, d.Waited)))
	if a.Model.Name != "" {
		span.SetAttributes(tracing.Model.String(a.Model.Name),
			tracing.Version.String(strconv.FormatInt(a.Model.Version, 10)))
	}
	if part != 0 {
		span.SetAttributes(tracing.Part.Int(part))
	}
	if q.tried {
		span.AddEvent("offered again", trace.WithTimestamp(q.since),
			trace.WithAttributes(tracing.Reason.String(q.again.String())))
	}
	if a.Kind == leader.Split {
		q.since, q.tried, q.rows = t.now, false, slices.Clone(d.Rows)
	}
	if a.Kind == leader.Assign {
		span.SetAttributes(tracing.Attempt.Int(d.Attempt), tracing.Agent.String(string(a.Agent)),
			tracing.Lane.Int(a.Lane),
			tracing.InstanceType.String(t.described[a.Agent].GetInstanceType()),
			tracing.Cost.Float64(d.Cost),
			tracing.Ms(tracing.PredictedWait, d.Wait),
			tracing.Ms(tracing.PredictedExecution, d.Latency),
			tracing.Ms(tracing.PredictedLatency, d.Waited+d.Wait+d.Latency),
			tracing.Ms(tracing.Slack, d.Slack))
	}
	if d.Family != "" {
		span.SetAttributes(tracing.Accuracy.Float64(d.Accuracy))
	}
	span.End(trace.WithTimestamp(t.now))
}
