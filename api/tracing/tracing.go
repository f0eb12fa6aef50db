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

// Scope is the name of the tracers that make the spans.
const Scope = "github.com/muster-serve/muster"

// Names of spans.
const (
	Assign  = "muster.assign"  // a gateway waits for the decision where a query runs
	Decide  = "muster.decide"  // a leader, or a gateway without one, decides where a query runs
	Queue   = "muster.queue"   // a query waits for a lane at its worker
	Execute = "muster.execute" // the model runs
	InParts = "muster.part"    // a part of a query, from the leader's decision to its answer
)

// Method is the name of the spans of gRPC calls with a query: a client's call, a gateway's attempt,
// and the server's side of both.
var Method = strings.TrimPrefix(inference.GRPCInferenceService_ModelInfer_FullMethodName, "/")

// Keys of attributes. Times are in milliseconds.
const (
	Model     = attribute.Key("muster.model")
	Version   = attribute.Key("muster.version")
	BatchSize = attribute.Key("muster.batch_size")
	// The model and version that answers a query for a family, "wnd-int8/1", and its accuracy.
	Variant      = attribute.Key("muster.variant")
	Accuracy     = attribute.Key("muster.accuracy")
	Attempt      = attribute.Key("muster.attempt")
	Part         = attribute.Key("muster.part")  // the number of a part of a query, from 1 on
	Agent        = attribute.Key("muster.agent") // the agent that the query goes to
	Lane         = attribute.Key("muster.lane")
	InstanceType = attribute.Key("muster.instance_type")
	Executor     = attribute.Key("muster.executor") // "onnx" or "emulated"
	Provider     = attribute.Key("muster.provider")
	Late         = attribute.Key("muster.late") // the QoS target was missed

	// Attributes of decisions; leader/match defines the values.
	Action = attribute.Key("muster.action")
	Reason = attribute.Key("muster.reason")
	Policy = attribute.Key("muster.policy")
	// The leader's epoch; 0: the gateway decided without a leader.
	Epoch              = attribute.Key("muster.epoch")
	Cost               = attribute.Key("muster.cost")
	Waited             = attribute.Key("muster.waited_ms")
	PredictedWait      = attribute.Key("muster.predicted_wait_ms")
	PredictedExecution = attribute.Key("muster.predicted_execution_ms")
	// From the query's arrival to its answer.
	PredictedLatency = attribute.Key("muster.predicted_latency_ms")
	// The time until the answer that a probed agent predicts.
	Finish = attribute.Key("muster.finish_ms")
	Slack  = attribute.Key("muster.slack_ms")
)

// Ms returns an attribute with d in milliseconds.
func Ms(key attribute.Key, d time.Duration) attribute.KeyValue {
	return key.Float64(float64(d) / float64(time.Millisecond))
}

// RPC returns the attributes of a gRPC call with a query.
func RPC() []attribute.KeyValue {
	return []attribute.KeyValue{semconv.RPCSystemNameGRPC, semconv.RPCMethod(Method)}
}

// Query returns the attributes of a query.
func Query(req *oip.Request) []attribute.KeyValue {
	attributes := []attribute.KeyValue{Model.String(req.Model)}
	if req.Version != "" {
		attributes = append(attributes, Version.String(req.Version))
	}
	if len(req.Inputs) > 0 {
		attributes = append(attributes, BatchSize.Int64(req.Rows()))
	}
	return attributes
}

// Answer returns the attributes of the answer to a query for a family.
func Answer(resp *oip.Response) []attribute.KeyValue {
	return []attribute.KeyValue{
		Variant.String(resp.Variant + "/" + resp.VariantVersion), Accuracy.Float64(resp.Accuracy),
	}
}

// EndClient ends a client's span of a gRPC call that returned err, a gRPC status or nil.
func EndClient(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(otelcodes.Error, status.Convert(err).Message())
	}
	span.SetAttributes(semconv.RPCResponseStatusCode(code.Code(status.Code(err)).String()))
	span.End()
}

// EndServer ends a server's span of a gRPC call that returned err. As OpenTelemetry's semantic
// conventions demand, errors that the client has caused do not mark the span as failed.
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

// Headers are the headers of W3C Trace Context and of W3C Baggage.
var Headers = []string{"traceparent", "tracestate", "baggage"}

var propagator = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{},
	propagation.Baggage{})

// Inject returns a context for a gRPC call that carries the context of ctx's span, and its baggage,
// in place of any trace headers that ctx has. Without a span it returns ctx.
func Inject(ctx context.Context) context.Context {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	headers, ok := metadata.FromOutgoingContext(ctx)
	if !ok {
		headers = metadata.MD{}
	}
	delete(headers, "tracestate") // of another span
	propagator.Inject(ctx, carrier(headers))
	return metadata.NewOutgoingContext(ctx, headers)
}

// Extract returns ctx with the span context from the headers of an incoming gRPC call as the parent
// of new spans, in place of any parent in ctx.
func Extract(ctx context.Context) context.Context {
	headers, _ := metadata.FromIncomingContext(ctx)
	return propagator.Extract(trace.ContextWithSpanContext(ctx, trace.SpanContext{}),
		carrier(headers))
}

// A carrier adapts gRPC metadata to OpenTelemetry's TextMapCarrier.
type carrier metadata.MD

func (c carrier) Get(key string) string { return strings.Join(c[key], ",") }
func (c carrier) Set(key, value string) { c[key] = []string{value} }
func (c carrier) Keys() []string        { return slices.Collect(maps.Keys(c)) }

// maxTracestateBytes is the longest tracestate that is sent, in bytes. W3C Trace Context demands
// support for that length, and allows dropping longer ones.
const maxTracestateBytes = 512

// Format returns a span context as the values of the headers traceparent and tracestate; a
// tracestate that is too long becomes "".
func Format(sc trace.SpanContext) (traceparent, tracestate string) {
	c := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), sc), c)
	if tracestate = c["tracestate"]; len(tracestate) > maxTracestateBytes {
		tracestate = ""
	}
	return c["traceparent"], tracestate
}

// Parse returns ctx with the span context that Format has written as the parent of new spans.
func Parse(ctx context.Context, traceparent, tracestate string) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{
		"traceparent": traceparent, "tracestate": tracestate,
	})
}
