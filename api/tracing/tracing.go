package tracing

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
)

// Scope names the instrumentation.
const Scope = "github.com/muster-serve/muster"

// Names of spans.
const (
	Assign  = "muster.assign"  // a gateway waits until it is known where a query goes
	Decide  = "muster.decide"  // a leader, or a gateway alone, decides where
	Queue   = "muster.queue"   // a query waits for a lane at its worker
	Execute = "muster.execute" // the model runs
)

// Method names the spans of a query by gRPC: a client's, that of an attempt, and those of the
// agents that serve them.
var Method = strings.TrimPrefix(inference.GRPCInferenceService_ModelInfer_FullMethodName, "/")

// Keys of attributes. Times are in milliseconds.
const (
	Model        = attribute.Key("muster.model")
	Version      = attribute.Key("muster.version")
	BatchSize    = attribute.Key("muster.batch_size")
	Attempt      = attribute.Key("muster.attempt")
	Agent        = attribute.Key("muster.agent") // that the query goes to
	Lane         = attribute.Key("muster.lane")
	InstanceType = attribute.Key("muster.instance_type")
	Executor     = attribute.Key("muster.executor") // "onnx" or "emulated"
	Provider     = attribute.Key("muster.provider")
	Late         = attribute.Key("muster.late") // the QoS target was missed

	// Of decisions, as leader/match means them.
	Action = attribute.Key("muster.action")
	Reason = attribute.Key("muster.reason")
	Policy = attribute.Key("muster.policy")
	// of the leader; 0: the gateway decided alone
	Epoch              = attribute.Key("muster.epoch")
	Cost               = attribute.Key("muster.cost")
	Waited             = attribute.Key("muster.waited_ms")
	PredictedWait      = attribute.Key("muster.predicted_wait_ms")
	PredictedExecution = attribute.Key("muster.predicted_execution_ms")
	// from the arrival to the answer
	PredictedLatency = attribute.Key("muster.predicted_latency_ms")
	// until the answer, as an agent that is asked says
	Finish = attribute.Key("muster.finish_ms")
	Slack  = attribute.Key("muster.slack_ms")
)

// Ms is the attribute of a time.
func Ms(key attribute.Key, d time.Duration) attribute.KeyValue {
	return key.Float64(float64(d) / float64(time.Millisecond))
}

// RPC are the attributes of a query's call by gRPC.
func RPC() []attribute.KeyValue {
	return []attribute.KeyValue{semconv.RPCSystemNameGRPC, semconv.RPCMethod(Method)}
}

// Query are the attributes of a query.
func Query(req *oip.Request) []attribute.KeyValue {
	attributes := []attribute.KeyValue{Model.String(req.Model)}
	if req.Version != "" {
		attributes = append(attributes, Version.String(req.Version))
	}
	if len(req.Inputs) > 0 && len(req.Inputs[0].Shape) > 0 {
		attributes = append(attributes, BatchSize.Int64(req.Inputs[0].Shape[0]))
	}
	return attributes
}

// EndClient ends the span of a call that ended with err, which is gRPC's, or nil.
func EndClient(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(otelcodes.Error, status.Convert(err).Message())
	}
	span.SetAttributes(semconv.RPCResponseStatusCode(code.Code(status.Code(err)).String()))
	span.End()
}

// EndServer ends the span of who served such a call. By the semantic conventions it has not
// failed where the client is to blame.
func EndServer(span trace.Span, err error) {
	switch status.Code(err) {
	case codes.Unknown, codes.DeadlineExceeded, codes.Unimplemented, codes.Internal,
		codes.Unavailable, codes.DataLoss:
		EndClient(span, err)
		return
	}
	if err != nil {
		span.AddEvent("refused", trace.WithAttributes(Reason.String(status.Convert(err).Message())))
	}
	span.SetAttributes(semconv.RPCResponseStatusCode(code.Code(status.Code(err)).String()))
	span.End()
}

// Headers are those of W3C Trace Context, and what travels with it.
var Headers = []string{"traceparent", "tracestate", "baggage"}

var propagator = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{},
	propagation.Baggage{})

// Inject has the context of the span in ctx, and baggage, go along with a call, in
// place of those that would. Without a span nothing changes.
func Inject(ctx context.Context) context.Context {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	headers, ok := metadata.FromOutgoingContext(ctx)
	if !ok {
		headers = metadata.MD{}
	}
	delete(headers, "tracestate") // that of another span
	propagator.Inject(ctx, carrier(headers))
	return metadata.NewOutgoingContext(ctx, headers)
}

// Extract returns ctx with the context of the span that a call came with as the
// parent of spans, in place of any that is there.
func Extract(ctx context.Context) context.Context {
	headers, _ := metadata.FromIncomingContext(ctx)
	return propagator.Extract(trace.ContextWithSpanContext(ctx, trace.SpanContext{}),
		carrier(headers))
}

// A carrier is metadata as OpenTelemetry wants it.
type carrier metadata.MD

func (c carrier) Get(key string) string { return strings.Join(c[key], ",") }
func (c carrier) Set(key, value string) { c[key] = []string{value} }
func (c carrier) Keys() []string        { return slices.Collect(maps.Keys(c)) }

// mostTracestate is how long a tracestate may be to travel, in bytes: W3C Trace Context wants that
// much, and has longer ones dropped.
const mostTracestate = 512

// Format returns the context of a span as headers would have it, without a tracestate that is too
// long.
func Format(sc trace.SpanContext) (traceparent, tracestate string) {
	c := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), sc), c)
	if tracestate = c["tracestate"]; len(tracestate) > mostTracestate {
		tracestate = ""
	}
	return c["traceparent"], tracestate
}

// Parse returns ctx with what Format has written as the parent of spans.
func Parse(ctx context.Context, traceparent, tracestate string) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{
		"traceparent": traceparent, "tracestate": tracestate,
	})
}
