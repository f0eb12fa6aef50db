//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// A receiver takes spans by OTLP, as OpenTelemetry's collector does.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*otlp.Span
	by    map[string]int // how many, by service and instance
}

func (r *receiver) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (
	*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range req.ResourceSpans {
		who := map[string]string{}
		for _, a := range of.Resource.Attributes {
			who[a.Key] = a.Value.GetStringValue()
		}
		for _, s := range of.ScopeSpans {
			r.spans = append(r.spans, s.Spans...)
			r.by[who["service.name"]+" "+who["service.instance.id"]] += len(s.Spans)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// ServeHTTP is the same by HTTP.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	exported := &collector.ExportTraceServiceRequest{}
	if err = errors.Join(err, proto.Unmarshal(body, exported)); err != nil ||
		req.URL.Path != "/v1/traces" {
		http.Error(w, "no spans", http.StatusBadRequest)
		return
	}
	_, _ = r.Export(req.Context(), exported) // it does not fail
}

func startReceiver(t *testing.T, protocol string) (r *receiver, endpoint string) {
	r = &receiver{by: map[string]int{}}
	if protocol != "grpc" {
		server := httptest.NewServer(r)
		t.Cleanup(server.Close)
		return r, server.URL
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, r)
	go func() { _ = server.Serve(l) }() // ends with Stop
	t.Cleanup(server.Stop)
	return r, "http://" + l.Addr().String()
}

// TestTraces: with --traces otlp a query's spans of client and agent reach a receiver of OTLP,
// where OpenTelemetry's variables say; the agent's last ones when it ends.
func TestTraces(t *testing.T) {
	for _, protocol := range []string{"grpc", "http/protobuf"} {
		t.Run(strings.ReplaceAll(protocol, "/", " "), func(t *testing.T) {
			r, endpoint := startReceiver(t, protocol)
			t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
			t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000") // what comes, comes at the end
			t.Setenv("MUSTER_TRACES", "otlp")
			p := startProcess(t)
			_, stderr, err := execute(t, "infer", "ncf", "--server", p.grpc)
			if err != nil {
				t.Fatal(err)
			}
			id := regexp.MustCompile(`trace ([0-9a-f]{32})`).FindStringSubmatch(stderr)
			if id == nil {
				t.Fatalf("infer says %q, want its trace", stderr)
			}
			if err := p.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			p.waitForLog(t, "event=drained")
			if err := p.Wait(); err != nil {
				t.Errorf("the agent ended with %v", err)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			var names []string
			for _, s := range r.spans {
				names = append(names, s.Name)
				if got := hex.EncodeToString(s.TraceId); got != id[1] {
					t.Errorf("span %s is of the trace %s, want %s", s.Name, got, id[1])
				}
			}
			slices.Sort(names)
			method := "inference.GRPCInferenceService/ModelInfer"
			if want := []string{
				method, method, "muster infer", "muster.execute", "muster.queue",
			}; !slices.Equal(names, want) {
				t.Errorf("spans are %q, want %q", names, want)
			}
			if len(r.by) != 2 || r.by["muster "] != 2 {
				t.Errorf("spans by service and instance are %v, want 2 of a client and the agent's",
					r.by)
			}
		})
	}
}

// TestTracesCannotBeExported: a receiver that is not there costs a line of log.
func TestTracesCannotBeExported(t *testing.T) {
	p := startProcess(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+l.Addr().String())
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "50") // ms
	_ = l.Close()                                // nobody listens there
	out, stderr, err := execute(t, "infer", "ncf", "--server", p.grpc, "--traces", "otlp")
	if err != nil || !strings.Contains(out, "answered") {
		t.Errorf("infer: %q, %v", out, err)
	}
	if strings.Count(stderr, "spans cannot be exported") != 1 {
		t.Errorf("infer says %q, want one line of the spans", stderr)
	}
	// Without an endpoint spans go where a collector on this machine listens, in the clear.
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	_, stderr, err = execute(t, "infer", "ncf", "--server", p.grpc, "--traces", "otlp")
	if err != nil || strings.Contains(stderr, "spans cannot be exported") &&
		!strings.Contains(stderr, "http://localhost:4318") {
		t.Errorf("infer without an endpoint says %q, %v, want http://localhost:4318", stderr, err)
	}
}

type exporterFunc func() error

func (f exporterFunc) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return f() }
func (f exporterFunc) Shutdown(context.Context) error                             { return nil }

// TestWatchedExporter: the log tells once that spans are lost, and once that they no longer are.
func TestWatchedExporter(t *testing.T) {
	var log bytes.Buffer
	var fails error
	e := &watchedExporter{
		SpanExporter: exporterFunc(func() error { return fails }),
		log:          slog.New(slog.NewTextHandler(&log, nil)),
	}
	for _, err := range []error{nil, io.ErrUnexpectedEOF, io.ErrUnexpectedEOF, nil, nil} {
		fails = err
		if err := e.ExportSpans(t.Context(), nil); err != nil {
			t.Error(err)
		}
	}
	if lost, again := strings.Count(log.String(), "level=WARN"), strings.Count(log.String(),
		"level=INFO"); lost != 1 || again != 1 {
		t.Errorf("log is %s, want one line of each", &log)
	}
}

func TestTraceSettings(t *testing.T) {
	for _, tt := range []struct{ name, value, args, want string }{
		{"X", "", "--traces jaeger", `traces: "jaeger", want none or otlp`},
		{"OTEL_TRACES_EXPORTER", "zipkin", "", `traces: "zipkin", want none or otlp`},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "--traces otlp",
			`is "http/json", want grpc or http/protobuf`},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "", ""},
		{"OTEL_TRACES_EXPORTER", "otlp", "", ""},
	} {
		t.Run(tt.value+tt.args, func(t *testing.T) {
			t.Setenv(tt.name, tt.value)
			_, _, err := execute(t,
				append([]string{"config", "print"}, strings.Fields(tt.args)...)...)
			if (err == nil) != (tt.want == "") ||
				err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
