package serve

import (
	"context"
	"net/http"
	"strings"
	"time"

	otelcodes "go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tracing"
)

// requestIDHeader is the header in which proxies and clients give a query an id.
const requestIDHeader = "x-request-id"

// traceID is the id of the trace that the caller's headers name, else of this agent's own span; ""
// without either.
func traceID(ctx context.Context) string {
	for _, ctx := range []context.Context{tracing.Extract(ctx), ctx} {
		if id := trace.SpanContextFromContext(ctx).TraceID(); id.IsValid() {
			return id.String()
		}
	}
	return ""
}

// traceCall begins the span of a query that came by gRPC. The span is nil if there is no tracer.
func (s *Server) traceCall(ctx context.Context, req *oip.Request,
	arrival time.Time) (context.Context, trace.Span) {
	if s.config.Tracer == nil {
		return ctx, nil
	}
	return s.config.Tracer.Start(tracing.Extract(ctx), tracing.Method, trace.WithTimestamp(arrival),
		trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(tracing.RPC()...), trace.WithAttributes(tracing.Query(req)...))
}

// endCall ends a span of traceCall, with the outcome err.
func endCall(span trace.Span, err error) {
	if span == nil {
		return
	}
	if err != nil {
		err = outcome.GRPC(err)
	}
	tracing.EndServer(span, err)
}

// traceRequest begins the span of a query that came by REST. The span is nil if there is no tracer.
func (s *Server) traceRequest(ctx context.Context, req *http.Request,
	arrival time.Time) (context.Context, trace.Span) {
	if s.config.Tracer == nil {
		return ctx, nil
	}
	return s.config.Tracer.Start(tracing.Extract(ctx), req.Pattern, trace.WithTimestamp(arrival),
		trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(semconv.HTTPRequestMethodPost,
			semconv.HTTPRoute(strings.TrimPrefix(req.Pattern, "POST ")),
			semconv.URLPath(req.URL.Path)))
}

// endRequest ends a span of traceRequest, with the outcome err.
func endRequest(span trace.Span, err error) {
	if span == nil {
		return
	}
	code := http.StatusOK
	if err != nil {
		code = outcome.Of(err).HTTPStatus
		if code >= http.StatusInternalServerError {
			span.SetStatus(otelcodes.Error, err.Error())
		} else {
			span.AddEvent("refused", trace.WithAttributes(tracing.Reason.String(err.Error())))
		}
	}
	span.SetAttributes(semconv.HTTPResponseStatusCode(code))
	span.End()
}
