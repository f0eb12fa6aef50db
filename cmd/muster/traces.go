package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/muster-serve/muster/api/version"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/settings"
)

const (
	noTraces   = "none"
	otlpTraces = "otlp"
	// flushTimeout is how long a process that ends waits for its spans to be exported.
	flushTimeout = 3 * time.Second
)

// traceSettings says whether spans are exported. Everything else about tracing is set by
// OpenTelemetry's own environment variables (OTEL_*).
type traceSettings struct{ traces string }

func (s *traceSettings) add(flags *pflag.FlagSet) {
	fs := pflag.NewFlagSet("traces", pflag.ContinueOnError)
	fs.StringVar(&s.traces, "traces", cmp.Or(os.Getenv("OTEL_TRACES_EXPORTER"), noTraces),
		"where OpenTelemetry spans go: "+noTraces+", or "+otlpTraces+" as OTEL_EXPORTER_OTLP_* say")
	settings.Add(flags, fs)
}

func (s *traceSettings) validate() error {
	switch s.traces {
	case noTraces:
		return nil
	case otlpTraces:
		_, err := otlpProtocol()
		return err
	}
	return fmt.Errorf("traces: %q, want %s or %s", s.traces, noTraces, otlpTraces)
}

// otlpProtocol reads the transport of spans from the environment, because OpenTelemetry's exporters
// do not: there is one exporter for each transport.
func otlpProtocol() (string, error) {
	const general, own = "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
	switch p := cmp.Or(os.Getenv(own), os.Getenv(general), "http/protobuf"); p {
	case "grpc", "http/protobuf":
		return p, nil
	default:
		return "", fmt.Errorf("traces: %s or %s is %q, want grpc or http/protobuf", own, general, p)
	}
}

// open starts tracing and returns the provider of this process's tracers; nil if nothing is traced.
// instance is the process's name in spans; it may be "". The caller calls flush once before the
// process ends: it exports the remaining spans, for at most flushTimeout, and stops tracing.
func (s *traceSettings) open(ctx context.Context, instance string,
	log *slog.Logger) (provider trace.TracerProvider, flush func(), err error) {
	if err := s.validate(); err != nil {
		return nil, nil, misuse.Wrap(err)
	}
	if s.traces == noTraces || strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return nil, func() {}, nil
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Warn("OpenTelemetry reports an error", "error", err)
	}))
	protocol, err := otlpProtocol()
	if err != nil {
		return nil, nil, err
	}
	var plainHTTP []otlptracehttp.Option
	var plainGRPC []otlptracegrpc.Option
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" &&
		os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		// The specification's default is http://localhost, the Go exporters' https.
		plainHTTP = append(plainHTTP, otlptracehttp.WithInsecure())
		plainGRPC = append(plainGRPC, otlptracegrpc.WithInsecure())
	}
	client := otlptracehttp.NewClient(plainHTTP...)
	if protocol == "grpc" {
		client = otlptracegrpc.NewClient(plainGRPC...)
	}
	log.Info("queries are traced", "protocol", protocol)
	exporter, err := otlptrace.New(ctx, client)
	if err != nil {
		return nil, nil, fmt.Errorf("traces: %w", err)
	}
	attributes := []attribute.KeyValue{
		semconv.ServiceName("muster"), semconv.ServiceVersion(version.Current()),
	}
	if instance != "" {
		attributes = append(attributes, semconv.ServiceInstanceID(instance))
	}
	// WithFromEnv comes last, so that OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override the
	// attributes above.
	of, err := resource.New(ctx, resource.WithAttributes(attributes...), resource.WithHost(),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, nil, fmt.Errorf("traces: %w", err)
	}
	sdk := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(&watchedExporter{SpanExporter: exporter, log: log}),
		sdktrace.WithResource(of))
	return sdk, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer cancel()
		if err := sdk.Shutdown(ctx); err != nil {
			log.Warn("spans are lost", "error", err)
		}
	}, nil
}

// A watchedExporter exports spans and logs the first failure and the first success after it, rather
// than each failure.
type watchedExporter struct {
	sdktrace.SpanExporter
	log     *slog.Logger
	failing atomic.Bool
}

func (e *watchedExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	switch {
	case err != nil && !e.failing.Swap(true):
		e.log.Warn("spans cannot be exported and are lost", "error", err)
	case err == nil && e.failing.Swap(false):
		e.log.Info("spans are exported again")
	}
	return nil // the error is logged above
}
