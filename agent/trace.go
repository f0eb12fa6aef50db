package agent

import (
	"context"
	"net/http"
	"strings"
	"time"

	otelcodes "go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tracing"
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
