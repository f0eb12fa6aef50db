package lead

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/tracing"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/match"
)

// A queryTrace is what the leader needs for the spans of its decisions about a query. The state
// keeps it with the query.
type queryTrace struct {
	ctx   context.Context // has the span of the query at its gateway
	since time.Time       // when the query began to wait for a decision
	again match.Reason    // why it waits again
	tried bool            // it does
	batch int
}

// traced is what is needed to trace the decisions about a query; nil: they are not traced.
func (t *term) traced(s *control.Submit) *queryTrace {
	if t.leader.config.Tracer == nil || s.GetTraceparent() == "" {
		return nil
	}
	return &queryTrace{
		ctx: tracing.Parse(t.ctx, s.GetTraceparent(), s.GetTracestate()), since: t.now,
		batch: int(s.GetBatchSize()),
	}
}

// trace makes the span of a decision about a query, if that is traced.
func (t *term) trace(a *leader.Action) {
	q, _ := a.Tag.(*queryTrace)
	if q == nil {
		return
	}
	d := &a.Decision
	if a.Kind == leader.OfferAgain {
		q.since, q.again, q.tried = t.now, d.Reason, true
		return
	}
	_, span := t.leader.config.Tracer.Start(q.ctx, tracing.Decide, trace.WithTimestamp(q.since),
		trace.WithAttributes(
			tracing.Epoch.Int64(int64(t.claim.Epoch)),
			tracing.Policy.String(cmp.Or(t.leader.config.Policy, match.DefaultPolicy)),
			tracing.Action.String(d.Action.String()), tracing.Reason.String(d.Reason.String()),
			tracing.BatchSize.Int(q.batch), tracing.Ms(tracing.Waited, d.Waited)))
	if a.Model.Name != "" {
		span.SetAttributes(tracing.Model.String(a.Model.Name),
			tracing.Version.String(strconv.FormatInt(a.Model.Version, 10)))
	}
	if q.tried {
		span.AddEvent("offered again", trace.WithTimestamp(q.since),
			trace.WithAttributes(tracing.Reason.String(q.again.String())))
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
	span.End(trace.WithTimestamp(t.now))
}
