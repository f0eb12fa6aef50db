package client

import (
	"context"
	"slices"
	"testing"
	"time"

	otelcodes "go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tracing"
	"github.com/muster-serve/muster/client/queries"
)

// TestTraceOfRetry: an attempt that fails, and the next one, are spans of their own.
func TestTraceOfRetry(t *testing.T) {
	bubble(t, 3, func(t *testing.T, f *testFleet) {
		f.lead("agent-0", "agent-1")
		f.agent("agent-1").refuse = status.Error(codes.Unavailable, "the lane is full")
		f.agent("agent-0").assign = func(s *control.Submit, n int) *control.MatchMessage {
			return assignTo(map[int]string{1: "agent-1", 2: "agent-2"}[n])(s, n)
		}
		g := f.gateway()
		settle()
		spans := tracetest.NewInMemoryExporter()
		provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
		ctx, query := provider.Tracer("test").Start(t.Context(), "query")
		good(t, g, ctx)
		query.End()
		var names, failed []string
		for _, s := range spans.GetSpans() {
			names = append(names, s.Name)
			if s.Status.Code == otelcodes.Error {
				failed = append(failed, s.Name+": "+s.Status.Description)
			}
			if s.Name != "query" && s.Parent.SpanID() != query.SpanContext().SpanID() {
				t.Errorf("span %s is no child of the query's", s.Name)
			}
		}
		if want := []string{
			tracing.Assign, tracing.Method, tracing.Assign, tracing.Method, "query",
		}; !slices.Equal(names, want) {
			t.Errorf("spans are %q, want %q", names, want)
		}
		if want := []string{tracing.Method + ": the lane is full"}; !slices.Equal(failed, want) {
			t.Errorf("spans that failed are %q, want %q", failed, want)
		}
		traceparent, _ := tracing.Format(query.SpanContext())
		for _, s := range f.agent("agent-0").submits {
			if s.Traceparent != traceparent {
				t.Errorf("the leader is told of %q, want the query's span %q", s.Traceparent,
					traceparent)
			}
		}
	})
}

// TestClientTraces: a client makes a span of a query if it is given a provider, or else if the
// query comes with a span; servers get its context.
func TestClientTraces(t *testing.T) {
	for _, given := range []bool{true, false} {
		spans := tracetest.NewInMemoryExporter()
		provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
		var header string
		server := &fake{}
		server.infer = func(ctx context.Context, req *oip.Request) (*oip.Response, error) {
			header = metadata.ValueFromIncomingContext(ctx, "traceparent")[0]
			return server.sum(req)
		}
		ctx, options := t.Context(), []Option{WithTracerProvider(provider)}
		if !given {
			ctx, _ = provider.Tracer("test").Start(ctx, "caller")
			options = nil
		}
		c := connect(t, []*fake{server}, options...)
		if _, err := c.Infer(ctx, sumQuery(1)); err != nil {
			t.Fatal(err)
		}
		made := spans.GetSpans()
		if len(made) != 1 || made[0].Name != tracing.Method {
			t.Fatalf("given a provider %v: spans are %v, want one", given, made)
		}
		if traceparent, _ := tracing.Format(made[0].SpanContext); header != traceparent {
			t.Errorf("given a provider %v: the server gets %q, want %q", given, header, traceparent)
		}
	}
}

// TestUntracedCostsNothing: what is there for traces allocates nothing for a query without one.
func TestUntracedCostsNothing(t *testing.T) {
	submit, offer, to := &control.Submit{}, &control.OfferAgain{}, queries.Target{Agent: "a"}
	c, req := &Client{}, &oip.Request{Model: "sum"}
	n := testing.AllocsPerRun(100, func() {
		ctx, _ := c.beginSpan(t.Context(), req)
		q := newQueryTrace(ctx)
		q.wait()
		q.noteSubmit(submit)
		q.offeredAgain(offer)
		d := q.beginDecision()
		d.noteAnswer("a", time.Millisecond)
		d.noteSilence("a")
		d.endDecision(to, time.Millisecond, "")
		tracing.Inject(q.send(ctx, to))
		q.endAttempt(nil, false)
		q.endStep()
	})
	if n != 0 || submit.Traceparent != "" {
		t.Errorf("%v allocations, and the leader is told of %q, want none and nothing", n,
			submit.Traceparent)
	}
}
