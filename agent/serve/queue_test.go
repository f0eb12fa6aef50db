package serve_test

import (
	"context"
	"fmt"
	"net/http"
	goruntime "runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/api/version"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/runtime"
)

// occupy closes the gate and sends waiting + 1 queries: one that runs, and the
// others that wait. finish opens the gate and checks that all were answered.
func occupy(a *agenttest.Agent, g *agenttest.Gate, waiting int) (finish func()) {
	a.T.Helper()
	g.Close()
	streamAnswer := make(chan error, waiting+1)
	for range waiting + 1 {
		go func() { streamAnswer <- a.InferGRPC(agenttest.Patient(8)) }()
	}
	<-g.Entered
	for a.Worker().Lanes().Stats().Waiting < waiting {
		goruntime.Gosched()
	}
	return func() {
		g.Open()
		for range waiting + 1 {
			if err := <-streamAnswer; err != nil {
				a.T.Errorf("a query that was let in: %v", err)
			}
		}
	}
}

// wantOverloaded sends a query by gRPC and REST and wants both refused, with a
// hint when to come again.
func wantOverloaded(a *agenttest.Agent) {
	a.T.Helper()
	err := a.InferGRPC(agenttest.Patient(8))
	agenttest.WantCode(a.T, err, "ResourceExhausted", "overloaded")
	hinted := false
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok && info.GetRetryDelay().AsDuration() > 0 {
			hinted = true
		}
	}
	if !hinted {
		a.T.Errorf("gRPC: no RetryInfo in %v", err)
	}
	resp, body := a.Exchange("POST", "/v2/models/ncf/infer", agenttest.NCFBody(8), nil)
	if seconds, err := strconv.Atoi(
		resp.Header.Get("Retry-After")); resp.StatusCode != http.StatusTooManyRequests ||
		err != nil || seconds < 1 {
		a.T.Errorf("REST: got %d, Retry-After %q, %s", resp.StatusCode,
			resp.Header.Get("Retry-After"), body)
	}
}

// TestOverload: a full queue refuses at once, and what it holds is answered.
func TestOverload(t *testing.T) {
	config := agenttest.Config(t)
	config.MaxWaitingQueries = 3
	g := agenttest.NewGate()
	a := agenttest.Start(t, config, g)
	finish := occupy(a, g, 3)
	wantOverloaded(a)
	finish()
	if err := a.InferGRPC(agenttest.NCFRequest(8)); err != nil {
		t.Errorf("after the overload: %v", err)
	}
	wantMetric(a, `muster_failed_queries_total{model="ncf",reason="overloaded",version="1"}`, 2)
}

// TestOverloadBytes: so does an agent that holds as many bytes as it may, before
// it reads the query.
func TestOverloadBytes(t *testing.T) {
	config := agenttest.Config(t)
	config.MaxWaitingBytes = 2 * 8 * 4 * 8 // two queries of batch size 8
	g := agenttest.NewGate()
	a := agenttest.Start(t, config, g)
	finish := occupy(a, g, 1)
	wantOverloaded(a)
	wantMetric(a, "muster_held_bytes", float64(config.MaxWaitingBytes))
	finish()
	// One query alone is let in, though it is larger, also on a stream.
	if err := a.InferGRPC(agenttest.NCFRequest(20)); err != nil {
		t.Errorf("after the overload: %v", err)
	}
	stream, err := a.GRPC.ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(agenttest.Patient(20)); err != nil {
		t.Fatal(err)
	}
	if got, err := stream.Recv(); err != nil || got.GetErrorMessage() != "" {
		t.Errorf("after the overload, on a stream: %v, %v", got, err)
	}
}

// TestDeadlines: a query waits as long as its client says, by either way of
// saying it, and else as long as its model does.
func TestDeadlines(t *testing.T) {
	g := agenttest.NewGate()
	config := agenttest.Config(t)
	var err error
	if config.ModelDir, err = agenttest.NCFDir(); err != nil { // whose deadline is its own
		t.Fatal(err)
	}
	a := agenttest.Start(t, config, g)
	finish := occupy(a, g, 0)
	defer finish()

	agenttest.WantCode(t, a.InferGRPC(agenttest.WithTimeout(agenttest.NCFRequest(1),
		time.Millisecond)),
		"DeadlineExceeded")
	// the model's: 50 ms
	agenttest.WantCode(t, a.InferGRPC(agenttest.NCFRequest(1)), "DeadlineExceeded")
	body := strings.Replace(agenttest.NCFBody(1), `{"inputs"`,
		`{"parameters":{"timeout":1000},"inputs"`, 1)
	if status, answer := a.Do("POST", "/v2/models/ncf/infer",
		body); status != http.StatusGatewayTimeout {
		t.Errorf("REST with a timeout: got %d %s", status, answer)
	}
	// A query counts soon after it has ceased to wait.
	const deadline = `muster_failed_queries_total{model="ncf",reason="deadline",version="1"}`
	for scrape(a)[deadline] < 3 {
		goruntime.Gosched()
	}
	wantMetric(a, deadline, 3)
	// On a busy machine a query may arrive only after its client's deadline, or so shortly before
	// that the client has gone within the QoS target; it then counts as none, or as cancelled.
	for wait := 200 * time.Millisecond; scrape(a)[deadline] < 4; wait *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		_, err = a.GRPC.ModelInfer(ctx, agenttest.Patient(1))
		cancel()
		agenttest.WantCode(t, err, "DeadlineExceeded")
		for a.Worker().Lanes().Stats().Waiting > 0 {
			goruntime.Gosched()
		}
	}
}

// TestCancel: a query whose client goes away stops waiting, and stops running.
func TestCancel(t *testing.T) {
	g := agenttest.NewGate()
	a := agenttest.Start(t, agenttest.Config(t), g)
	g.Close()
	defer g.Open()

	// By gRPC, while it runs.
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := a.GRPC.ModelInfer(ctx, agenttest.Patient(1))
		ended <- err
	}()
	<-g.Entered
	cancel()
	agenttest.WantCode(t, <-ended, "Canceled")
	for a.Worker().Lanes().Stats().Running > 0 {
		goruntime.Gosched()
	}

	// By REST: the client closes the connection.
	ctx, cancel = context.WithCancel(t.Context())
	body := strings.Replace(agenttest.NCFBody(1), `{"inputs"`,
		`{"parameters":{"timeout":300000000},"inputs"`,
		1)
	req, err := http.NewRequestWithContext(ctx, "POST",
		"http://"+a.Addresses().HTTP+"/v2/models/ncf/infer", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		resp, err := a.HTTP.Do(req)
		if err == nil {
			_ = resp.Body.Close() // there is an answer where none should be
		}
		ended <- err
	}()
	<-g.Entered
	cancel()
	if err := <-ended; err == nil {
		t.Error("REST: the query was answered")
	}
	for a.Worker().Lanes().Stats().Running > 0 || agenttest.Held(a.Inside,
		"serve: bytes of queries") > 0 {
		goruntime.Gosched()
	}
	// It is cancelled before the QoS target has passed, and else too late.
	failed := scrape(a)
	if cancelled, deadline :=
		failed[`muster_failed_queries_total{model="ncf",reason="cancelled",version="1"}`],
		failed[`muster_failed_queries_total{model="ncf",reason="deadline",version="1"}`]; cancelled+
		deadline != 2 {
		t.Errorf("got %v queries cancelled and %v too late, want 2 in all", cancelled, deadline)
	}
}

// wantMetric checks a value that the metrics address serves.
func wantMetric(a *agenttest.Agent, series string, want float64) {
	a.T.Helper()
	got, ok := scrape(a)[series]
	if !ok || got != want {
		a.T.Errorf("%s: got %v, want %v", series, got, want)
	}
}

// scrape is what the metrics address serves: values by series.
func scrape(a *agenttest.Agent) map[string]float64 {
	a.T.Helper()
	resp, err := a.HTTP.Get("http://" + a.Addresses().Metrics + "/metrics")
	if err != nil {
		a.T.Fatal(err)
	}
	defer resp.Body.Close()
	values := map[string]float64{}
	for line := range linesOf(a.T, resp.Body) {
		if series, value, ok := cutLast(line, " "); ok && !strings.HasPrefix(line, "#") {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				a.T.Fatalf("metric %q: %v", line, err)
			}
			values[series] = v
		}
	}
	return values
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// TestCounts: what the metrics and the protocol's statistics say of a handful of
// queries.
func TestCounts(t *testing.T) {
	a := agenttest.Start(t, agenttest.Config(t), agenttest.Emulated())
	for _, batchSize := range []int{1, 2, 3} {
		if err := a.InferGRPC(agenttest.NCFRequest(batchSize)); err != nil {
			t.Fatal(err)
		}
	}
	if status, body := a.Do("POST", "/v2/models/ncf/infer",
		agenttest.NCFBody(10)); status != http.StatusOK {
		t.Fatal(status, body)
	}
	agenttest.WantCode(t, a.InferGRPC(agenttest.NCFRequest(1001)), "InvalidArgument")
	req := agenttest.NCFRequest(1)
	req.ModelName = "dlrm"
	agenttest.WantCode(t, a.InferGRPC(req), "NotFound")

	ncf := `{model="ncf",version="1"}`
	for series, want := range map[string]float64{
		"muster_queries_total" + ncf:                                            4,
		"muster_items_total" + ncf:                                              16,
		"muster_request_duration_seconds_count" + ncf:                           4,
		"muster_queue_duration_seconds_count" + ncf:                             4,
		"muster_execution_duration_seconds_count" + ncf:                         4,
		`muster_failed_queries_total{model="ncf",reason="invalid",version="1"}`: 1,
		`muster_failed_queries_total{model="",reason="not_found",version=""}`:   1,
		`muster_model_state{model="ncf",state="READY",version="1"}`:             1,
		`muster_model_loads_total{model="ncf",result="loaded",version="1"}`:     1,
		"muster_model_qos_target_seconds" + ncf:                                 0.005,
		"muster_model_load_duration_seconds_count" + ncf:                        1,
		"muster_model_warm_up_duration_seconds_count" + ncf:                     1,
		"muster_lanes":           1,
		"muster_lanes_busy":      0,
		"muster_waiting_queries": 0,
		"muster_held_bytes":      0,
		`muster_runtime_info{executor="emulated",provider="cpu",version=""}`: 1,
		fmt.Sprintf(`muster_build_info{version=%q}`, version.Current()):      1,
	} {
		wantMetric(a, series, want)
	}
	stats, err := a.GRPC.ModelStatistics(t.Context(), &inference.ModelStatisticsRequest{
		Name: "ncf", Version: "1",
	})
	if err != nil {
		t.Fatal(err)
	}
	s := stats.GetModelStats()[0]
	if s.GetInferenceCount() != 16 || s.GetExecutionCount() != 4 ||
		s.GetInferenceStats().GetSuccess().GetCount() != 4 ||
		s.GetInferenceStats().GetFail().GetCount() != 1 ||
		s.GetInferenceStats().GetSuccess().GetNs() == 0 {
		t.Errorf("statistics: got %v", s)
	}
}

// TestMerged: queries that wait run as one, which statistics and metrics count as one execution,
// and from which the estimate of small queries does not grow.
func TestMerged(t *testing.T) {
	const floor = 50 * time.Millisecond
	executor := runtime.NewEmulated(func(*models.Version, int) time.Duration { return floor })
	a := agenttest.Start(t, agenttest.Config(t), executor)
	for _, batchSize := range []int{1, 64, 1} { // the lane learns that a large one takes no longer
		if err := a.InferGRPC(agenttest.Patient(batchSize)); err != nil {
			t.Fatal(err)
		}
	}
	const queries = 20
	var all errgroup.Group
	for range queries {
		all.Go(func() error { return a.InferGRPC(agenttest.Patient(1)) })
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	stats, err := a.GRPC.ModelStatistics(t.Context(), &inference.ModelStatisticsRequest{
		Name: "ncf", Version: "1",
	})
	if err != nil {
		t.Fatal(err)
	}
	s := stats.GetModelStats()[0]
	if s.GetInferenceCount() != 66+queries || s.GetInferenceStats().GetSuccess().GetCount() !=
		3+queries || s.GetExecutionCount() >= 3+queries/2 {
		t.Errorf("%d items of %d queries in %d executions, want far fewer executions",
			s.GetInferenceCount(), s.GetInferenceStats().GetSuccess().GetCount(),
			s.GetExecutionCount())
	}
	wantMetric(a, `muster_lane_merged_queries_count{model="ncf",version="1"}`,
		float64(s.GetExecutionCount()))
	wantMetric(a, `muster_lane_merged_queries_sum{model="ncf",version="1"}`, 3+queries)
}

// TestLate: an answer after the QoS target is counted as late.
func TestLate(t *testing.T) {
	const slowBatch = 7 // none that warms up
	executor := runtime.NewEmulated(func(v *models.Version, batchSize int) time.Duration {
		if batchSize == slowBatch {
			return 2 * v.Config.QoSTarget
		}
		return 0
	})
	a := agenttest.Start(t, agenttest.Config(t), executor)
	if err := a.InferGRPC(agenttest.NCFRequest(slowBatch)); err != nil {
		t.Fatal(err)
	}
	wantMetric(a, `muster_late_queries_total{model="ncf",version="1"}`, 1)
}

// TestLargestMessage: the limit on a message is what the largest batch of the
// models there are needs, and no more.
func TestLargestMessage(t *testing.T) {
	config := agenttest.Config(t)
	config.ModelDir = t.TempDir()
	a := agenttest.Start(t, config, agenttest.Emulated())
	generate := func(model string) {
		t.Helper()
		if _, err := zoo.Generate(t.Context(), config.ModelDir, model,
			zoo.Options{Scale: zoo.Small}); err != nil {
			t.Fatal(err)
		}
		if status, body := a.Do("POST", "/v2/repository/models/"+model+"/load",
			""); status != http.StatusOK {
			t.Fatalf("load %s: %d %s", model, status, body)
		}
	}
	largest := func(model string) *inference.ModelInferRequest {
		t.Helper()
		v, err := models.ReadVersion(config.ModelDir, model, 1)
		if err != nil {
			t.Fatal(err)
		}
		return agenttest.WithTimeout(agenttest.RawRequest(model, agenttest.RandomInputs(t, v,
			v.Config.LargestBatchSize)),
			time.Minute)
	}
	generate("ncf")
	if err := a.InferGRPC(largest("ncf")); err != nil {
		t.Errorf("NCF's largest query: %v", err)
	}
	tooLarge := agenttest.NCFRequest(1)
	tooLarge.RawInputContents = [][]byte{make([]byte, 1<<20)}
	agenttest.WantCode(t, a.InferGRPC(tooLarge), "ResourceExhausted", "want at most")

	// A model with larger queries raises it, under the feet of a query.
	generate("wnd")
	if err := a.InferGRPC(largest("wnd")); err != nil {
		t.Errorf("WND's largest query: %v", err)
	}
	agenttest.WantCode(t, a.InferGRPC(tooLarge), "InvalidArgument")
	if err := a.InferGRPC(largest("ncf")); err != nil {
		t.Errorf("NCF's largest query, again: %v", err)
	}
	wantMetric(a, `muster_failed_queries_total{model="",reason="too_large",version=""}`, 1)
}

// TestSlowClients: those who begin a query and never finish it are cut off, and
// hold nothing after.
func TestSlowClients(t *testing.T) {
	a := agenttest.Start(t, agenttest.Config(t), agenttest.Emulated(),
		// others must arrive in it
		func(a agent.Inside) { a.Environment().ReceiveTimeout = 500 * time.Millisecond })
	code, message := rawOutcome(a,
		"POST /v2/models/ncf/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
		false)
	if code != "408" || !strings.Contains(message, "not received within 500ms") {
		t.Errorf("REST: got %s %s", code, message)
	}
	code, message = rawOutcome(a,
		"POST /v2/models/ncf/infer HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 100\r\n\r\n{",
		false)
	if code != "403" {
		t.Errorf("a request that is refused before it is read: got %s %s", code, message)
	}
	stream, err := a.Conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true},
		inference.GRPCInferenceService_ModelInfer_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	err = stream.RecvMsg(&inference.ModelInferResponse{}) // without sending anything
	if err == nil {
		t.Error("gRPC: got an answer")
	}
	if held := agenttest.Held(a.Inside, "serve: bytes of queries"); held != 0 {
		t.Errorf("%d bytes are held", held)
	}
	if err := a.InferGRPC(agenttest.NCFRequest(1)); err != nil {
		t.Errorf("next query: %v", err)
	}
	// the agent may still end the call
	for agenttest.Counted(a.Inside, "muster_arrived_queries_total") < 3 {
		goruntime.Gosched()
	}
	wantMetric(a, `muster_failed_queries_total{model="ncf",reason="slow",version="1"}`, 1) // REST
	wantMetric(a, `muster_failed_queries_total{model="",reason="slow",version=""}`, 1)
}

// TestPanic: a panic while a query is served is an error of that query.
func TestPanic(t *testing.T) {
	a := agenttest.Start(t, agenttest.Config(t), panicky{agenttest.Emulated()})
	agenttest.WantCode(t, a.InferGRPC(agenttest.NCFRequest(panickyBatch)), "Internal",
		"internal error in /inference.GRPCInferenceService/ModelInfer")
	status, body := a.Do("POST", "/v2/models/ncf/infer", agenttest.NCFBody(panickyBatch))
	if status != http.StatusInternalServerError || !strings.Contains(body, "internal error") ||
		strings.Contains(body, "on purpose") {
		t.Errorf("REST: got %d %s", status, body)
	}
	if !strings.Contains(a.Log.String(), "on purpose") {
		t.Error("the log does not tell of the panic")
	}
	if err := a.InferGRPC(agenttest.NCFRequest(1)); err != nil {
		t.Errorf("next query: %v", err)
	}
}

const panickyBatch = 13

// panicky is an executor whose models panic at one batch size.
type panicky struct{ runtime.Executor }

func (p panicky) Load(ctx context.Context, v *models.Version) (runtime.Model, error) {
	m, err := p.Executor.Load(ctx, v)
	return panickyModel{m}, err
}

type panickyModel struct{ runtime.Model }

func (p panickyModel) Run(ctx context.Context, inputs []tensor.Tensor) (*runtime.Result, error) {
	if inputs[0].Shape[0] == panickyBatch {
		panic("on purpose")
	}
	return p.Model.Run(ctx, inputs)
}
