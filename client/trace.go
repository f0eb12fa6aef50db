package client

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tracing"
	"github.com/muster-serve/muster/client/queries"
)

// trace begins the span of a query; nil: it is not traced.
func (c *Client) trace(ctx context.Context, req *oip.Request) (context.Context, trace.Span) {
	tracer := c.tracer
	if tracer == nil {
		span := trace.SpanFromContext(ctx)
		if !span.IsRecording() {
			return ctx, nil
		}
		tracer = span.TracerProvider().Tracer(tracing.Scope)
	}
	ctx, span := tracer.Start(ctx, tracing.Method, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(tracing.RPC()...), trace.WithAttributes(tracing.Query(req)...))
	return ctx, span
}

// A queryTrace makes a gateway's spans of a query: children of the span that the
// query came with, by the same provider. A nil one, of a query that is not traced, does nothing.
type queryTrace struct {
	span   trace.Span // of the query
	ctx    context.Context
	tracer trace.Tracer
	// traceparent and tracestate are the span's, for the leader.
	traceparent, tracestate string
	// step is the wait for a lane, or the attempt, that goes on. Only the query's caller uses it.
	step trace.Span
}

func newQueryTrace(ctx context.Context) *queryTrace {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return nil
	}
	t := &queryTrace{span: span, ctx: ctx, tracer: span.TracerProvider().Tracer(tracing.Scope)}
	t.traceparent, t.tracestate = tracing.Format(span.SpanContext())
	return t
}

// wait begins the wait until it is known where the query goes.
func (t *queryTrace) wait() {
	if t != nil {
		_, t.step = t.tracer.Start(t.ctx, tracing.Assign)
	}
}

// send ends that wait and begins an attempt, whose context it returns.
func (t *queryTrace) send(ctx context.Context, to queries.Target) context.Context {
	if t == nil {
		return ctx
	}
	where := trace.WithAttributes(tracing.Agent.String(string(to.Agent)),
		tracing.Lane.Int(int(to.Lane)),
		tracing.Attempt.Int(int(to.Attempt)))
	t.step.SetAttributes(tracing.Agent.String(string(to.Agent)),
		tracing.Attempt.Int(int(to.Attempt)))
	t.step.End()
	ctx, t.step = t.tracer.Start(ctx, tracing.Method, where,
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(tracing.RPC()...))
	return ctx
}

// sent ends an attempt; superseded: it was cut off because the query goes elsewhere.
func (t *queryTrace) sent(err error, superseded bool) {
	if t == nil {
		return
	}
	if superseded {
		t.step.AddEvent("superseded")
	}
	tracing.EndClient(t.step, err)
}

// end ends what goes on.
func (t *queryTrace) end() {
	if t != nil {
		t.step.End() // again, where it was an attempt: that does nothing
	}
}

// submitted notes that the leader is asked, and tells it of the trace.
func (t *queryTrace) submitted(s *control.Submit) {
	if t != nil {
		s.Traceparent, s.Tracestate = t.traceparent, t.tracestate
		t.span.AddEvent("submitted",
			trace.WithAttributes(tracing.Attempt.Int(int(s.GetAttempts())+1)))
	}
}

// offeredAgain notes that the leader has given an attempt up.
func (t *queryTrace) offeredAgain(o *control.OfferAgain) {
	if t != nil {
		t.span.AddEvent("offered again",
			trace.WithAttributes(tracing.Attempt.Int(int(o.GetAttempt())),
				tracing.Reason.String(o.GetReason())))
	}
}

// decide begins a decision without a leader.
func (t *queryTrace) decide() *decision {
	if t == nil {
		return nil
	}
	_, span := t.tracer.Start(t.ctx, tracing.Decide)
	return &decision{span}
}

// A decision without a leader, as it is traced; nil: it is not.
type decision struct{ span trace.Span }

// heard notes a member's answer: that it would have answered so long from now; less than 0: that it
// declines.
func (d *decision) heard(agent names.AgentName, finish time.Duration) {
	if d == nil {
		return
	}
	said := tracing.Action.String("decline")
	if finish >= 0 {
		said = tracing.Ms(tracing.Finish, finish)
	}
	d.span.AddEvent("probed", trace.WithAttributes(tracing.Agent.String(string(agent)), said))
}

// silent notes that a member has not answered in time.
func (d *decision) silent(agent names.AgentName) {
	if d != nil {
		d.span.AddEvent("probe unanswered",
			trace.WithAttributes(tracing.Agent.String(string(agent))))
	}
}

// end ends the decision: t, or nobody for the reason given.
func (d *decision) end(t queries.Target, waited time.Duration, why string) {
	if d == nil {
		return
	}
	if t.Agent == "" {
		d.span.SetAttributes(tracing.Epoch.Int64(0), tracing.Reason.String(why))
	} else {
		d.span.SetAttributes(tracing.Epoch.Int64(0), tracing.Action.String("assign"),
			tracing.Reason.String("no-leader"), tracing.Agent.String(string(t.Agent)),
			tracing.Ms(tracing.Waited, waited), tracing.Ms(tracing.PredictedLatency, waited+t.Took))
	}
	d.span.End()
}
