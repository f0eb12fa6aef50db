package agent

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	otelcodes "go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tracing"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
)

// Trace has the agent make spans of the queries that it passes on, decides about and
// runs. Without it the trace context of a query goes through it as it came. It is called before Run.
func (a *Agent) Trace(p trace.TracerProvider) { a.tracer = p.Tracer(tracing.Scope) }

// Name is the agent's name in its fleet.
func (a *Agent) Name() string { return a.name }

// traceCall begins the span of a query that came by gRPC; nil: nothing is traced.
func (a *Agent) traceCall(ctx context.Context, req *oip.Request, arrival time.Time) (context.Context, trace.Span) {
	if a.tracer == nil {
		return ctx, nil
	}
	return a.tracer.Start(tracing.Extract(ctx), tracing.Method, trace.WithTimestamp(arrival), trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(tracing.RPC()...), trace.WithAttributes(tracing.Query(req)...))
}

// endCall ends such a span.
func endCall(span trace.Span, err error) {
	if span == nil {
		return
	}
	if err != nil {
		err = grpcError(err)
	}
	tracing.EndServer(span, err)
}

// traceRequest begins the span of a query that came by REST; nil: nothing is traced.
func (a *Agent) traceRequest(ctx context.Context, req *http.Request, arrival time.Time) (context.Context, trace.Span) {
	if a.tracer == nil {
		return ctx, nil
	}
	return a.tracer.Start(tracing.Extract(ctx), req.Pattern, trace.WithTimestamp(arrival), trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(semconv.HTTPRequestMethodPost, semconv.HTTPRoute(strings.TrimPrefix(req.Pattern, "POST ")), semconv.URLPath(req.URL.Path)))
}

// endRequest ends such a span.
func endRequest(span trace.Span, err error) {
	if span == nil {
		return
	}
	code := http.StatusOK
	if err != nil {
		code = classify(err).HTTPStatus
		if code >= http.StatusInternalServerError {
			span.SetStatus(otelcodes.Error, err.Error())
		} else {
			span.AddEvent("refused", trace.WithAttributes(tracing.Reason.String(err.Error())))
		}
	}
	span.SetAttributes(semconv.HTTPResponseStatusCode(code))
	span.End()
}

// traceExecution makes the spans of a query that has just been run, of its wait and its run.
func (a *Agent) traceExecution(ctx context.Context, loaded *models.Loaded[*servedModel], q query, arrival time.Time, result *runtime.Result) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	v, info, ended := loaded.Version, a.executor.Info(), time.Now()
	span.SetAttributes(tracing.Late.Bool(ended.Sub(arrival) > v.Config.QoSTarget))
	started := ended.Add(-result.Execution)
	_, queue := a.tracer.Start(ctx, tracing.Queue, trace.WithTimestamp(started.Add(-result.Queue)))
	queue.End(trace.WithTimestamp(started))
	_, execute := a.tracer.Start(ctx, tracing.Execute, trace.WithTimestamp(started), trace.WithAttributes(
		tracing.Model.String(v.Model), tracing.Version.String(strconv.FormatInt(v.Number, 10)), tracing.BatchSize.Int(q.batchSize),
		tracing.Lane.Int(result.Lane), tracing.InstanceType.String(string(a.instanceType())),
		tracing.Executor.String(info.Executor), tracing.Provider.String(string(info.Provider))))
	execute.End(trace.WithTimestamp(ended))
}

// A leaderTrace is what the leader needs for the spans of its decisions about a query.
type leaderTrace struct {
	ctx   context.Context // has the span of the query at its gateway
	since time.Time       // when the query began to wait for a decision
	again match.Reason    // why it waits again
	tried bool            // it does
}

// traced is what is needed to trace the decisions about a query; nil: they are not traced.
func (r *reign) traced(s *control.Submit) *leaderTrace {
	if r.leader.config.Tracer == nil || s.GetTraceparent() == "" {
		return nil
	}
	return &leaderTrace{ctx: tracing.Parse(r.ctx, s.GetTraceparent(), s.GetTracestate()), since: r.now}
}

// trace makes the span of a decision about q, if that is traced.
func (r *reign) trace(q *leaderQuery, d *match.Decision) {
	if q == nil || q.trace == nil {
		return
	}
	t := q.trace
	if d.Action == match.OfferAgain {
		t.since, t.again, t.tried = r.now, d.Reason, true
		return
	}
	_, span := r.leader.config.Tracer.Start(t.ctx, tracing.Decide, trace.WithTimestamp(t.since), trace.WithAttributes(
		tracing.Epoch.Int64(int64(r.claim.Epoch)), tracing.Policy.String(cmp.Or(r.leader.config.Policy, match.DefaultPolicy)),
		tracing.Action.String(d.Action.String()), tracing.Reason.String(d.Reason.String()),
		tracing.BatchSize.Int(q.batch), tracing.Ms(tracing.Waited, d.Waited)))
	if q.model != nil {
		span.SetAttributes(tracing.Model.String(q.model.name), tracing.Version.String(strconv.FormatInt(q.model.version, 10)))
	}
	if t.tried {
		span.AddEvent("offered again", trace.WithTimestamp(t.since), trace.WithAttributes(tracing.Reason.String(t.again.String())))
	}
	if ln := r.lanes[d.Lane]; d.Action == match.Assign && ln != nil {
		span.SetAttributes(tracing.Attempt.Int(d.Attempt), tracing.Agent.String(ln.worker.name), tracing.Lane.Int(int(ln.index)),
			tracing.InstanceType.String(ln.worker.member.GetInstanceType()), tracing.Cost.Float64(d.Cost),
			tracing.Ms(tracing.PredictedWait, d.Wait), tracing.Ms(tracing.PredictedExecution, d.Latency),
			tracing.Ms(tracing.PredictedLatency, d.Waited+d.Wait+d.Latency), tracing.Ms(tracing.Slack, d.Slack))
	}
	span.End(trace.WithTimestamp(r.now))
}
