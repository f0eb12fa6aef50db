package agent

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// zooDir holds the small models, for agents in real time; tests must not write there. On a busy
// machine a query may wait for longer than a model's own deadline, so theirs are longer. They warm up
// with few rows: with 1000 each agent needs 2 s under the race detector.
var zooDir = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "muster-agent-test")
	if err != nil {
		return "", err
	}
	for _, model := range zoo.Names() {
		if _, err := zoo.Generate(context.Background(), dir, model,
			zoo.Options{Scale: zoo.Small}); err != nil {
			return "", err
		}
		config := filepath.Join(dir, model, models.ConfigFile)
		settings, err := os.ReadFile(config)
		if err != nil {
			return "", err
		}
		for name, value := range map[string]string{"deadline_ms": "30000", "warm_up": "[1, 10]"} {
			line := regexp.MustCompile(`(?m)^` + name + `: .*$`)
			if !line.Match(settings) {
				return "", fmt.Errorf("%s has no %s", config, name)
			}
			settings = line.ReplaceAll(settings, []byte(name+": "+value))
		}
		if err := os.WriteFile(config, settings, 0o644); err != nil {
			return "", err
		}
	}
	return dir, nil
})

// ncfDir holds a small NCF alone.
var ncfDir = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "muster-agent-test")
	if err != nil {
		return "", err
	}
	_, err = zoo.Generate(context.Background(), dir, "ncf", zoo.Options{Scale: zoo.Small})
	return dir, err
})

// dienDir holds a model named dien alone, with DIEN's QoS target and deadline and NCF's inputs,
// which are smaller, for agents that emulate it.
var dienDir = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "muster-agent-test")
	if err != nil {
		return "", err
	}
	return dir, copyNCF(dir, "dien", func(settings []byte) []byte {
		return []byte(strings.NewReplacer("qos_target_ms: 5", "qos_target_ms: 35", "deadline_ms: 50",
			"deadline_ms: 350").Replace(string(settings)))
	})
})

// copyNCF copies ncfDir's model into a model directory under a name, with its settings changed.
func copyNCF(dir, name string, change func(settings []byte) []byte) error {
	ncf, err := ncfDir()
	if err != nil {
		return err
	}
	return copyModel(filepath.Join(ncf, "ncf"), filepath.Join(dir, name), change)
}

// copyModel copies a model's directory, with its settings changed.
func copyModel(from, to string, change func(settings []byte) []byte) error {
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return err
	}
	config := filepath.Join(to, models.ConfigFile)
	settings, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	return os.WriteFile(config, change(settings), 0o644)
}

func TestMain(m *testing.M) {
	if raceDetector {
		// Go 1.26 has all timers of a bubble that are due at once share one context of the race
		// detector, whichever threads they run on, and crashes when two of them do so at a time
		// (racegostart, ThreadSanitizer CHECK). Gossip and gRPC in memory make such timers.
		goruntime.GOMAXPROCS(1)
	}
	code := m.Run()
	for _, made := range []func() (string, error){zooDir, ncfDir, dienDir} {
		if dir, err := made(); err == nil {
			_ = os.RemoveAll(dir)
		}
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "agent: leaked:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// A testAgent is an agent that serves on loopback until the test ends.
type testAgent struct {
	Inside
	t    testing.TB
	runs *atomic.Int64 // of models, warm-up apart
	// execution is how long the latest run of a model took, in ns.
	execution *atomic.Int64
	grpc      inference.GRPCInferenceServiceClient
	conn      *grpc.ClientConn
	http      *http.Client
	log       *logBuffer
	// stop asks the agent to drain and returns what Run returned.
	stop func() error
}

// testConfig serves the small zoo on ports of the system's choice.
func testConfig(t testing.TB) Config {
	t.Helper()
	dir, err := zooDir()
	if err != nil {
		t.Fatal(err)
	}
	config := DefaultConfig()
	config.HTTPAddress, config.GRPCAddress, config.MetricsAddress = "127.0.0.1:0", "127.0.0.1:0",
		"127.0.0.1:0"
	config.GossipAddress, config.InstanceType = "127.0.0.1:0", "t3.xlarge"
	config.ModelDir = dir
	config.StateDir = t.TempDir()
	config.DrainTimeout = 10 * time.Second
	return config
}

// emulated is an executor whose runs take no time.
func emulated() runtime.Executor {
	return runtime.NewEmulated(func(*models.Version, int) time.Duration { return 0 })
}

// startAgent runs an agent, changed as given, and waits until it is ready.
func startAgent(t testing.TB, config Config, executor runtime.Executor,
	changes ...func(Inside)) *testAgent {
	t.Helper()
	a := newTestAgent(t, config, executor, changes...)
	select {
	case <-a.Worker().Settled():
	case <-t.Context().Done():
	}
	for !a.Server().Ready() { // settled, and about to say so
		goruntime.Gosched()
	}
	a.runs.Store(0)
	return a
}

// newTestAgent runs an agent and waits until it listens.
func newTestAgent(t testing.TB, config Config, executor runtime.Executor,
	changes ...func(Inside)) *testAgent {
	t.Helper()
	log := &logBuffer{}
	agent, err := New(config,
		slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		t.Fatal(err)
	}
	a := &testAgent{
		Inside: Inside{agent}, t: t, runs: new(atomic.Int64), execution: new(atomic.Int64), log: log,
	}
	a.Environment().OpenExecutor = func(Config, *slog.Logger) (runtime.Executor, error) {
		return countingExecutor{executor, a.runs, a.execution}, nil
	}
	for _, change := range changes {
		change(a.Inside)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(ctx) }()
	a.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	select {
	case <-a.Listening():
	case err := <-ended:
		t.Fatalf("agent: %v", err)
	}
	a.conn, err = grpc.NewClient(a.Addresses().GRPC,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30)))
	if err != nil {
		t.Fatal(err)
	}
	a.grpc = inference.NewGRPCInferenceServiceClient(a.conn)
	transport := &http.Transport{}
	a.http = &http.Client{Transport: transport}
	t.Cleanup(func() {
		_ = a.conn.Close() // some tests close it before
		transport.CloseIdleConnections()
		if err := a.stop(); err != nil {
			t.Errorf("agent: %v", err)
		}
		if t.Failed() {
			t.Logf("agent's log:\n%s", log)
		}
	})
	return a
}

// A countingExecutor counts the runs of its models and notes how long they took.
type countingExecutor struct {
	runtime.Executor
	runs      *atomic.Int64
	execution *atomic.Int64
}

func (c countingExecutor) Load(ctx context.Context, v *models.Version) (runtime.Model, error) {
	m, err := c.Executor.Load(ctx, v)
	if err != nil {
		return nil, err
	}
	return countingModel{m, c}, nil
}

type countingModel struct {
	runtime.Model
	executor countingExecutor
}

func (c countingModel) Run(ctx context.Context, inputs []tensor.Tensor) (*runtime.Result, error) {
	c.executor.runs.Add(1)
	result, err := c.Model.Run(ctx, inputs)
	if err == nil {
		c.executor.execution.Store(int64(result.Execution))
	}
	return result, err
}

// A gate is an executor whose runs wait, once it is closed, until it opens.
type gate struct {
	runtime.Executor
	entered chan struct{} // receives one value a run that waits

	mu   sync.Mutex
	wait chan struct{} // closed when runs may go on; nil while the gate is open
}

func newGate() *gate { return &gate{Executor: emulated(), entered: make(chan struct{}, 100)} }

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wait = make(chan struct{})
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.wait != nil {
		close(g.wait)
		g.wait = nil
	}
}

// pass opens the gate for what comes next, and not for what is at it until held is closed.
func (g *gate) pass() (held chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	held, g.wait = g.wait, nil
	return held
}

func (g *gate) Load(ctx context.Context, v *models.Version) (runtime.Model, error) {
	m, err := g.Executor.Load(ctx, v)
	return gatedModel{m, g}, err
}

type gatedModel struct {
	runtime.Model
	gate *gate
}

func (m gatedModel) Run(ctx context.Context, inputs []tensor.Tensor) (*runtime.Result, error) {
	m.gate.mu.Lock()
	wait := m.gate.wait
	m.gate.mu.Unlock()
	if wait != nil {
		m.gate.entered <- struct{}{}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return m.Model.Run(ctx, inputs)
}

// A logBuffer is a log that several goroutines write.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// do sends a request to the REST server and returns the status and the body.
func (a *testAgent) do(method, path, body string) (int, string) {
	a.t.Helper()
	resp, answer := a.exchange(method, path, body, nil)
	return resp.StatusCode, answer
}

func (a *testAgent) exchange(method, path, body string, header map[string]string) (*http.Response,
	string) {
	a.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method,
		"http://"+a.Addresses().HTTP+path, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	for name, value := range header {
		req.Header.Set(name, value)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return resp, string(answer)
}

// ncfIDs is a valid input of a small NCF.
func ncfIDs(batchSize int) []int64 {
	ids := make([]int64, 4*batchSize)
	for i := range ids {
		ids[i] = int64(i % 28)
	}
	return ids
}

// ncfRequest is a valid query for NCF by gRPC.
func ncfRequest(batchSize int) *inference.ModelInferRequest {
	return &inference.ModelInferRequest{
		ModelName: "ncf",
		Inputs: []*inference.ModelInferRequest_InferInputTensor{{
			Name: "ids", Datatype: "INT64", Shape: []int64{int64(batchSize), 4},
			Contents: &inference.InferTensorContents{Int64Contents: ncfIDs(batchSize)},
		}},
	}
}

// ncfBody is a valid query for NCF by REST.
func ncfBody(batchSize int) string {
	ids := strings.ReplaceAll(strings.Trim(fmt.Sprint(ncfIDs(batchSize)), "[]"), " ", ",")
	return fmt.Sprintf(`{"inputs":[{"name":"ids","datatype":"INT64","shape":[%d,4],"data":[%s]}]}`,
		batchSize, ids)
}

// TestServe sends queries of every model by gRPC and REST to an agent with the
// real ONNX Runtime, and wants the outputs that the model has when run alone.
func TestServe(t *testing.T) {
	executor := runtimetest.Open(t)
	a := startAgent(t, testConfig(t), executor)
	for _, model := range zoo.Names() {
		v, err := models.ReadVersion(a.Config().ModelDir, model, 1)
		if err != nil {
			t.Fatal(err)
		}
		alone, err := executor.Load(t.Context(), v)
		if err != nil {
			t.Fatal(err)
		}
		defer alone.Close()
		for _, batchSize := range []int{1, 7, 64} {
			inputs := randomInputs(t, v, batchSize)
			want, err := alone.Run(t.Context(), inputs)
			if err != nil {
				t.Fatal(err)
			}
			wantData := want.Outputs[0].Data

			resp, err := a.grpc.ModelInfer(t.Context(), rawRequest(model, inputs))
			if err != nil {
				t.Fatalf("%s, batch size %d, gRPC: %v", model, batchSize, err)
			}
			if len(resp.GetRawOutputContents()) != len(v.Outputs) ||
				!alike(resp.GetRawOutputContents()[0], wantData) {
				t.Errorf("%s, batch size %d, gRPC: outputs differ from the model's", model,
					batchSize)
			}
			if got := a.inferBinary(model, inputs); !alike(got[0], wantData) {
				t.Errorf("%s, batch size %d, REST: outputs differ from the model's", model,
					batchSize)
			}
			want.Release()
		}
	}
}

// alike compares float32 outputs. On a busy machine a batch may be run in more
// pieces, and ONNX Runtime rounds differently in batches of other sizes.
func alike(got, want []byte) bool {
	if len(got) != len(want) {
		return false
	}
	for i := 0; i < len(want); i += 4 {
		g := float64(math.Float32frombits(binary.LittleEndian.Uint32(got[i:])))
		w := float64(math.Float32frombits(binary.LittleEndian.Uint32(want[i:])))
		if !(math.Abs(g-w) <= 1e-5*(1+math.Abs(w))) {
			return false
		}
	}
	return true
}

// TestAddressInUse: the error says which address of the four, at start.
func TestAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, name := range []string{"http", "grpc", "metrics", "gossip"} {
		config := testConfig(t)
		*map[string]*string{
			"http": &config.HTTPAddress, "grpc": &config.GRPCAddress,
			"metrics": &config.MetricsAddress, "gossip": &config.GossipAddress,
		}[name] = l.Addr().String()
		a, err := New(config, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		err = a.Run(t.Context())
		if err == nil || !strings.HasPrefix(err.Error(), name+": ") ||
			!strings.Contains(err.Error(), l.Addr().String()) ||
			!strings.Contains(err.Error(),
				"address already in use; choose another address with --"+name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestNoModels: an agent without a model says how to make one, and serves it
// once it is there.
func TestNoModels(t *testing.T) {
	config := testConfig(t)
	config.ModelDir = filepath.Join(t.TempDir(), "models")
	a, err := New(config, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Run(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "muster models generate ncf --out "+config.ModelDir) {
		t.Errorf("no directory: got %v", err)
	}
	if err := os.Mkdir(config.ModelDir, 0o755); err != nil {
		t.Fatal(err)
	}
	b := startAgent(t, config, emulated())
	if !strings.Contains(b.log.String(), "there is no model yet") ||
		!strings.Contains(b.log.String(), "muster models generate ncf --out "+config.ModelDir) {
		t.Errorf("empty directory: log is %s", b.log)
	}
	if _, err := zoo.Generate(t.Context(), config.ModelDir, "ncf",
		zoo.Options{Scale: zoo.Small}); err != nil {
		t.Fatal(err)
	}
	if status, body := b.do("POST", "/v2/repository/models/ncf/load", ""); status != http.StatusOK {
		t.Fatalf("load: %d %s", status, body)
	}
	if status, body := b.do("POST", "/v2/models/ncf/infer", ncfBody(1)); status != http.StatusOK {
		t.Errorf("infer: %d %s", status, body)
	}
}

// TestFirstLogLines: what others need to reach the agent comes first, that of
// gossip in the very first line.
func TestFirstLogLines(t *testing.T) {
	a := startAgent(t, testConfig(t), emulated())
	lines := strings.SplitN(a.log.String(), "\n", 3)
	if want := "advertised_addr=" + a.Gossip().Addr().String(); !strings.Contains(lines[0], want) {
		t.Errorf("first log line is %q, want %q in it", lines[0], want)
	}
	first := lines[1]
	for _, want := range []string{
		"http=" + a.Addresses().HTTP, "grpc=" + a.Addresses().GRPC, "metrics=" + a.Addresses().Metrics,
	} {
		if !strings.Contains(first, want) {
			t.Errorf("second log line is %q, want %q in it", first, want)
		}
	}
	if !strings.Contains(a.log.String(), "executor=emulated") {
		t.Error("the log does not say that the executor is emulated")
	}
}

// TestDrain: an agent that is asked to stop finishes what runs, refuses what is
// new, says that it is not ready, and ends without error.
func TestDrain(t *testing.T) {
	g, config := newGate(), testConfig(t)
	config.DrainTimeout = time.Minute // for what is asked of the agent meanwhile, on a busy machine
	a := startAgent(t, config, g)
	g.close()
	running := make(chan error, 2)
	go func() {
		_, err := a.grpc.ModelInfer(context.Background(), withTimeout(ncfRequest(1), time.Minute))
		running <- err
	}()
	<-g.entered
	go func() {
		body := strings.Replace(ncfBody(1), `{"inputs"`,
			`{"parameters":{"timeout":60000000},"inputs"`, 1)
		resp, err := a.http.Post("http://"+a.Addresses().HTTP+"/v2/models/ncf/infer",
			"application/json", strings.NewReader(body))
		if err == nil {
			if err = resp.Body.Close(); resp.StatusCode != http.StatusOK {
				err = fmt.Errorf("status %d", resp.StatusCode)
			}
		}
		running <- err
	}()
	for a.Worker().Lanes().Stats().Waiting == 0 { // the second waits for the only lane
		goruntime.Gosched()
	}

	stopped := make(chan error, 1)
	go func() { stopped <- a.stop() }()
	health := healthpb.NewHealthClient(a.conn)
	watch, err := health.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		status, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if status.GetStatus() == healthpb.HealthCheckResponse_NOT_SERVING {
			break
		}
	}
	// The servers still answer while the lanes drain.
	if status, body := a.do("GET", "/readyz", ""); status != http.StatusServiceUnavailable ||
		!strings.Contains(body, "draining") {
		t.Errorf("readyz: got %d %s", status, body)
	}
	if status, _ := a.do("GET", "/livez", ""); status != http.StatusOK {
		t.Errorf("livez: got %d", status)
	}
	if resp, err := a.grpc.ServerReady(t.Context(), &inference.ServerReadyRequest{}); err != nil ||
		resp.GetReady() {
		t.Errorf("ServerReady: got %v, %v", resp, err)
	}
	wantCode(t, a.inferGRPC(ncfRequest(1)), "Unavailable", "draining")
	if status, body := a.do("POST", "/v2/models/ncf/infer",
		ncfBody(1)); status != http.StatusServiceUnavailable {
		t.Errorf("new query by REST: got %d %s", status, body)
	}
	select {
	case err := <-running:
		t.Errorf("a query ended before its time: %v", err)
	case err := <-stopped:
		t.Errorf("the agent stopped with queries in it: %v", err)
	default:
	}
	g.open()
	for range 2 {
		if err := <-running; err != nil {
			t.Errorf("a query that was in the agent: %v", err)
		}
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// TestDrainTimeout: queries that do not finish in time are cut off.
func TestDrainTimeout(t *testing.T) {
	g := newGate()
	config := testConfig(t)
	config.DrainTimeout = 0
	a := startAgent(t, config, g)
	g.close()
	ended := make(chan error, 1)
	go func() { ended <- a.inferGRPC(withTimeout(ncfRequest(1), time.Minute)) }()
	<-g.entered
	if err := a.stop(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil {
		t.Error("the query was answered")
	}
}

// TestServerFails: when one of the servers cannot go on, the agent ends with the
// reason.
func TestServerFails(t *testing.T) {
	config := testConfig(t)
	a, err := New(config, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	Inside{a}.Environment().OpenExecutor = func(Config, *slog.Logger) (runtime.Executor, error) {
		return nil, errors.New("no library")
	}
	if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "no library") {
		t.Errorf("got %v", err)
	}
}
