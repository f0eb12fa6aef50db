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

// beginSpan begins the span of a query; nil if the query is not traced.
func (c *Client) beginSpan(ctx context.Context, req *oip.Request) (context.Context, trace.Span) {
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

// A queryTrace makes a gateway's spans for a query: children of the span in the query's context, by
// the same provider. A nil queryTrace, for a query that is not traced, does nothing.
type queryTrace struct {
	span   trace.Span // the query's span
	ctx    context.Context
	tracer trace.Tracer
	// traceparent and tracestate are the span's W3C trace context, for the leader.
	traceparent, tracestate string
	own                     bool // the span is that of a part, which ends with the trace
	// step is the span of the present step: the wait for a lane, or an attempt. Only the query's
	// caller uses it.
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

// hedgeTrace is a trace for an attempt that is made beside another one; it waits for a target.
func (t *queryTrace) hedgeTrace() *queryTrace {
	if t == nil {
		return nil
	}
	other := *t
	other.own = false
	other.wait()
	return &other
}

// wait begins the span of the wait for a target.
func (t *queryTrace) wait() {
	if t != nil {
		_, t.step = t.tracer.Start(t.ctx, tracing.Assign)
	}
}

// send ends the wait's span and begins an attempt's, whose context it returns.
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
	if to.Model != "" {
		t.step.SetAttributes(tracing.Variant.String(string(to.Model)),
			tracing.Accuracy.Float64(to.Accuracy))
	}
	return ctx
}

// endAttempt ends an attempt's span. superseded says that the attempt was cut off because the query
// goes elsewhere.
func (t *queryTrace) endAttempt(err error, superseded bool) {
	if t == nil {
		return
	}
	if superseded {
		t.step.AddEvent("superseded")
	}
	tracing.EndClient(t.step, err)
}

// endStep ends the span of the present step, and that of a part.
func (t *queryTrace) endStep() {
	if t == nil {
		return
	}
	t.step.End() // an attempt's span has ended before; ending it again does nothing
	if t.own {
		t.span.End()
	}
}

// withSpan returns ctx with the span, of a part, as the parent of those of the part's attempts.
func (t *queryTrace) withSpan(ctx context.Context) context.Context {
	if t == nil {
		return ctx
	}
	return trace.ContextWithSpan(ctx, t.span)
}

// partTrace returns the trace of a part of the query, which has a span of its own and
// waits for a target.
func (t *queryTrace) partTrace(p part) *queryTrace {
	if t == nil {
		return nil
	}
	ctx, _ := t.tracer.Start(t.ctx, tracing.InParts, trace.WithAttributes(
		tracing.Part.Int(int(p.number)), tracing.BatchSize.Int(p.end-p.from)))
	of := newQueryTrace(ctx)
	if of != nil {
		of.own = true
		of.wait()
	}
	return of
}

// noteSubmit adds an event for the submit to the span, and the trace context to the submit.
func (t *queryTrace) noteSubmit(s *control.Submit) {
	if t != nil {
		s.Traceparent, s.Tracestate = t.traceparent, t.tracestate
		t.span.AddEvent("submitted",
			trace.WithAttributes(tracing.Attempt.Int(int(s.GetAttempts())+1)))
	}
}

// offeredAgain adds an event: the leader has given an attempt up.
func (t *queryTrace) offeredAgain(o *control.OfferAgain) {
	if t != nil {
		t.span.AddEvent("offered again",
			trace.WithAttributes(tracing.Attempt.Int(int(o.GetAttempt())),
				tracing.Reason.String(o.GetReason())))
	}
}

// beginDecision begins the span of a decision without a leader.
func (t *queryTrace) beginDecision() *decision {
	if t == nil {
		return nil
	}
	_, span := t.tracer.Start(t.ctx, tracing.Decide)
	return &decision{span}
}

// A decision is the span of a decision without a leader; nil if it is not traced.
type decision struct{ span trace.Span }

// noteAnswer adds an event for a member's answer: it would have the query answered after finish; a
// negative finish means that it refuses.
func (d *decision) noteAnswer(agent names.AgentName, finish time.Duration) {
	if d == nil {
		return
	}
	said := tracing.Action.String("decline")
	if finish >= 0 {
		said = tracing.Ms(tracing.Finish, finish)
	}
	d.span.AddEvent("probed", trace.WithAttributes(tracing.Agent.String(string(agent)), said))
}

// noteSilence adds an event: a member has not answered in time.
func (d *decision) noteSilence(agent names.AgentName) {
	if d != nil {
		d.span.AddEvent("probe unanswered",
			trace.WithAttributes(tracing.Agent.String(string(agent))))
	}
}

// endDecision ends the decision's span with the target t, or with the reason why there is none.
func (d *decision) endDecision(t queries.Target, waited time.Duration, why string) {
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
