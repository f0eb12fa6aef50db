package lead_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/api/tracing"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
)

// askBy sends a query with the test headers.
func askBy(a *agenttest.Member, protocol string) {
	f := a.Fleet
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), 5*time.Second)
	defer cancel()
	if protocol == "gRPC" {
		for name, value := range agenttest.TestHeaders {
			ctx = metadata.AppendToOutgoingContext(ctx, name, value)
		}
		if _, err := a.OIP.ModelInfer(ctx, agenttest.NCFRequest(100)); err != nil {
			f.Fatal(err)
		}
		synctest.Wait()
		return
	}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, to string) (net.Conn, error) {
			return f.Network.Dial(ctx, "client", to)
		},
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, "POST",
		"http://"+a.Host+":8000/v2/models/ncf/infer", strings.NewReader(agenttest.NCFBody(100)))
	if err != nil {
		f.Fatal(err)
	}
	for name, value := range agenttest.TestHeaders {
		req.Header.Set(name, value)
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		f.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		f.Fatalf("%s %s, %v", resp.Status, body, err)
	}
	synctest.Wait() // the agent ends its span after the answer
}

// holdOnly has one agent alone hold the model.
func holdOnly(f *agenttest.Fleet, holder *agenttest.Member, rest ...*agenttest.Member) {
	f.Helper()
	for _, a := range rest {
		if _, err := a.OIP.RepositoryModelUnload(f.Context(),
			&inference.RepositoryModelUnloadRequest{ModelName: "ncf",
				Parameters: map[string]*inference.ModelRepositoryParameter{
					"agent": {
						ParameterChoice: &inference.ModelRepositoryParameter_StringParam{
							StringParam: string(a.AgentName()),
						},
					},
				}}); err != nil {
			f.Fatal(err)
		}
	}
	f.Eventually(5*time.Second, func() string {
		for _, a := range append(rest, holder) {
			for _, m := range a.Members().View().Members {
				if (len(m.Models) > 0) != (m.Name == holder.Name()) {
					return string(a.AgentName() + " sees models elsewhere")
				}
			}
		}
		return ""
	})
	time.Sleep(time.Second) // the leader hears of it too
}

// TestTrace: a query makes one trace, whose spans come from client, gateway, leader and worker,
// each a child of what it was done for.
func TestTrace(t *testing.T) {
	for _, protocol := range []string{"gRPC", "REST"} {
		for _, led := range []bool{true, false} {
			name := protocol + map[bool]string{true: " led", false: " without a leader"}[led]
			t.Run(name, func(t *testing.T) {
				agenttest.InFleet(t, func(f *agenttest.Fleet) { testTraced(f, protocol, led) })
			})
		}
	}
}

func testTraced(f *agenttest.Fleet, protocol string, led bool) {
	var made []*tracetest.InMemoryExporter
	start := func(role string) *agenttest.Member {
		spans := tracetest.NewInMemoryExporter()
		made = append(made, spans)
		return f.Start(func(a agent.Inside) {
			a.Config().Leader = role
			a.Trace(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)))
		})
	}
	first := "never"
	if led {
		first = "must"
	}
	leader, gateway, worker := start(first), start("never"), start("never")
	f.Settled(leader, gateway, worker)
	if led {
		f.Led(leader, gateway, worker)
	}
	holdOnly(f, worker, leader, gateway)
	askBy(gateway, protocol)

	atLeader, atGateway, atWorker := made[0].GetSpans(), made[1].GetSpans(), made[2].GetSpans()
	for _, s := range slices.Concat(atLeader, atGateway, atWorker) {
		if s.SpanContext.TraceID().String() != agenttest.TestTrace ||
			s.SpanContext.TraceState().String() != "shop=cart7" {
			f.Errorf("span %s is of trace %s with state %q", s.Name, s.SpanContext.TraceID(),
				s.SpanContext.TraceState())
		}
	}
	query := one(f, atGateway,
		map[string]string{
			"gRPC": tracing.Method, "REST": "POST /v2/models/{model}/infer",
		}[protocol], trace.SpanKindServer)
	attempt := one(f, atGateway, tracing.Method, trace.SpanKindClient)
	ran := one(f, atWorker, tracing.Method, trace.SpanKindServer)
	if query.Parent.SpanID().String() != agenttest.TestSpan {
		f.Errorf("the query's span is a child of %s, want the client's", query.Parent.SpanID())
	}
	child(f, one(f, atGateway, tracing.Assign, trace.SpanKindInternal), query)
	child(f, attempt, query)
	child(f, ran, attempt)
	child(f, one(f, atWorker, tracing.Queue, trace.SpanKindInternal), ran)
	execute := one(f, atWorker, tracing.Execute, trace.SpanKindInternal)
	child(f, execute, ran)
	attributes(f,
		execute,
		"muster.model=ncf muster.version=1 muster.batch_size=100 muster.instance_type=r5n.large "+
			"muster.executor=emulated")
	attributes(f,
		attempt,
		string("muster.agent="+worker.AgentName()+" muster.attempt=1 rpc.response.status_code=OK"))
	attributes(f, query, "muster.model=ncf muster.batch_size=100")

	decided := atGateway
	if led {
		decided = atLeader
	}
	decide := one(f, decided, tracing.Decide, trace.SpanKindInternal)
	child(f, decide, query)
	attributes(f, decide, string("muster.action=assign muster.agent="+worker.AgentName()))
	if led {
		attributes(f,
			decide,
			"muster.reason=matched muster.policy="+leader.Config().Policy+
				" muster.attempt=1 muster.epoch=1 muster.lane=0")
		return
	}
	attributes(f, decide, "muster.reason=no-leader muster.epoch=0")
	if len(atLeader) > 0 || len(decide.Events) != 1 || decide.Events[0].Name != "probed" {
		f.Errorf("the one not asked made the spans %v, and the decision has the events %v",
			atLeader, decide.Events)
	}
}

// one is the only span of that name and kind.
func one(f *agenttest.Fleet, spans tracetest.SpanStubs, name string,
	kind trace.SpanKind) (found tracetest.SpanStub) {
	f.Helper()
	n := 0
	for _, s := range spans {
		if s.Name == name && s.SpanKind == kind {
			n, found = n+1, s
		}
	}
	if n != 1 {
		f.Fatalf("%d spans are named %q, want 1; there are: %v", n, name, spans)
	}
	return found
}

func child(f *agenttest.Fleet, of, parent tracetest.SpanStub) {
	f.Helper()
	if of.Parent.SpanID() != parent.SpanContext.SpanID() {
		f.Errorf("span %s is not a child of %s", of.Name, parent.Name)
	}
	if of.StartTime.Before(parent.StartTime) || of.EndTime.After(parent.EndTime) {
		f.Errorf("span %s lasts from %v to %v, its parent from %v to %v", of.Name, of.StartTime,
			of.EndTime, parent.StartTime, parent.EndTime)
	}
}

// attributes checks that a span has those of want, "key=value" and spaces between them.
func attributes(f *agenttest.Fleet, of tracetest.SpanStub, want string) {
	f.Helper()
	has := map[string]bool{}
	for _, a := range of.Attributes {
		has[string(a.Key)+"="+a.Value.String()] = true
	}
	for _, w := range strings.Fields(want) {
		if !has[w] {
			f.Errorf("span %s has %v, want %s", of.Name, of.Attributes, w)
		}
	}
}

// A headerExecutor keeps the headers that queries came with.
type headerExecutor struct {
	runtime.Executor
	mu      *sync.Mutex
	headers *metadata.MD
}

type headerModel struct {
	runtime.Model
	headerExecutor
}

func (e headerExecutor) Load(ctx context.Context, v *models.Version) (runtime.Model, error) {
	m, err := e.Executor.Load(ctx, v)
	return headerModel{m, e}, err
}

func (m headerModel) Run(ctx context.Context, inputs []tensor.Tensor) (*runtime.Result, error) {
	m.mu.Lock()
	*m.headers, _ = metadata.FromIncomingContext(ctx)
	m.mu.Unlock()
	return m.Model.Run(ctx, inputs)
}

// TestTraceContextPasses: agents that do not trace hand the headers on as they came, and one that
// does hands on its own context and what is the client's.
func TestTraceContextPasses(t *testing.T) {
	for _, protocol := range []string{"gRPC", "REST"} {
		for _, traced := range []bool{false, true} {
			agenttest.InFleet(t, func(f *agenttest.Fleet) {
				var headers metadata.MD
				var mu sync.Mutex
				worker := f.Start(func(a agent.Inside) {
					open := a.Environment().OpenExecutor
					a.Environment().OpenExecutor = func(c agent.Config, log *slog.Logger) (runtime.Executor, error) {
						e, err := open(c, log)
						return headerExecutor{e, &mu, &headers}, err
					}
				})
				gateway := f.Start(func(a agent.Inside) {
					if traced {
						a.Trace(sdktrace.NewTracerProvider())
					}
				})
				f.Settled(worker, gateway)
				f.Led(worker, gateway)
				holdOnly(f, worker, gateway)
				askBy(gateway, protocol)
				mu.Lock()
				defer mu.Unlock()
				for name, want := range agenttest.TestHeaders {
					got := strings.Join(headers.Get(name), ",")
					if traced && name == "traceparent" {
						if got == want || !strings.HasPrefix(got, "00-"+agenttest.TestTrace+"-") {
							f.Errorf("%s, traced: %s is %q, want another span of the trace %s",
								protocol, name, got, agenttest.TestTrace)
						}
					} else if got != want {
						f.Errorf("%s, traced %v: %s is %q, want %q", protocol, traced, name, got,
							want)
					}
				}
			})
		}
	}
}
