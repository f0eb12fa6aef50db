package agenttest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
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

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/runtime"
)

// made are the directories of the whole test binary; TestMain removes them.
var made struct {
	sync.Mutex
	dirs []string
}

func makeDir() (string, error) {
	dir, err := os.MkdirTemp("", "muster-agent-test")
	made.Lock()
	defer made.Unlock()
	made.dirs = append(made.dirs, dir)
	return dir, err
}

// zooDir holds the small models, for agents in real time; tests must not write there. On a busy
// machine a query may wait for longer than a model's own deadline, so theirs are longer. They warm up
// with few rows: with 1000 each agent needs 2 s under the race detector.
var zooDir = sync.OnceValues(func() (string, error) {
	dir, err := makeDir()
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

// NCFDir holds a small NCF alone.
var NCFDir = sync.OnceValues(func() (string, error) {
	dir, err := makeDir()
	if err != nil {
		return "", err
	}
	_, err = zoo.Generate(context.Background(), dir, "ncf", zoo.Options{Scale: zoo.Small})
	return dir, err
})

// DienDir holds a model named dien alone, with DIEN's QoS target and deadline and NCF's inputs,
// which are smaller, for agents that emulate it.
var DienDir = sync.OnceValues(func() (string, error) {
	dir, err := makeDir()
	if err != nil {
		return "", err
	}
	return dir, CopyNCF(dir, "dien", func(settings []byte) []byte {
		return []byte(strings.NewReplacer("qos_target_ms: 5", "qos_target_ms: 35", "deadline_ms: 50",
			"deadline_ms: 350").Replace(string(settings)))
	})
})

// CopyNCF copies the NCF model into a model directory under a name, with its settings changed.
func CopyNCF(dir, name string, change func(settings []byte) []byte) error {
	ncf, err := NCFDir()
	if err != nil {
		return err
	}
	return CopyModel(filepath.Join(ncf, "ncf"), filepath.Join(dir, name), change)
}

// CopyModel copies a model's directory, with its settings changed.
func CopyModel(from, to string, change func(settings []byte) []byte) error {
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

// Main runs the tests of a package, and finds goroutines that they leave behind.
func Main(m *testing.M) {
	if RaceDetector {
		// Go 1.26 has all timers of a bubble that are due at once share one context of the race
		// detector, whichever threads they run on, and crashes when two of them do so at a time
		// (racegostart, ThreadSanitizer CHECK). Gossip and gRPC in memory make such timers.
		goruntime.GOMAXPROCS(1)
	}
	code := m.Run()
	for _, dir := range made.dirs {
		_ = os.RemoveAll(dir)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "leaked:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// A Agent is an agent that serves on loopback until the test ends.
type Agent struct {
	agent.Inside
	T    testing.TB
	Runs *atomic.Int64 // of models, warm-up apart
	// execution is how long the latest run of a model took, in ns.
	Execution *atomic.Int64
	GRPC      inference.GRPCInferenceServiceClient
	Conn      *grpc.ClientConn
	HTTP      *http.Client
	Log       *LogBuffer
	// stop asks the agent to drain and returns what Run returned.
	Stop func() error
}

// Config serves the small zoo on ports of the system's choice.
func Config(t testing.TB) agent.Config {
	t.Helper()
	dir, err := zooDir()
	if err != nil {
		t.Fatal(err)
	}
	config := agent.DefaultConfig()
	config.HTTPAddress, config.GRPCAddress, config.MetricsAddress = "127.0.0.1:0", "127.0.0.1:0",
		"127.0.0.1:0"
	config.GossipAddress, config.InstanceType = "127.0.0.1:0", "t3.xlarge"
	config.ModelDir = dir
	config.StateDir = t.TempDir()
	config.DrainTimeout = 10 * time.Second
	return config
}

// Emulated is an executor whose runs take no time.
func Emulated() runtime.Executor {
	return runtime.NewEmulated(func(*models.Version, int) time.Duration { return 0 })
}

// Start runs an agent, changed as given, and waits until it is ready.
func Start(t testing.TB, config agent.Config, executor runtime.Executor,
	changes ...func(agent.Inside)) *Agent {
	t.Helper()
	a := newTestAgent(t, config, executor, changes...)
	for _, done := range []<-chan struct{}{a.Worker().Settled(), a.Members().Joined()} {
		select {
		case <-done:
		case <-t.Context().Done():
		}
	}
	for !a.Server().Ready() { // settled, and about to say so
		goruntime.Gosched()
	}
	a.Runs.Store(0)
	return a
}

// newTestAgent runs an agent and waits until it listens.
func newTestAgent(t testing.TB, config agent.Config, executor runtime.Executor,
	changes ...func(agent.Inside)) *Agent {
	t.Helper()
	log := &LogBuffer{}
	inner, err := agent.New(config,
		slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		t.Fatal(err)
	}
	a := &Agent{
		Inside: agent.Inside{Agent: inner},
		T:      t, Runs: new(atomic.Int64), Execution: new(atomic.Int64), Log: log,
	}
	a.Environment().OpenExecutor = func(agent.Config, *slog.Logger) (runtime.Executor, error) {
		return countingExecutor{executor, a.Runs, a.Execution}, nil
	}
	for _, change := range changes {
		change(a.Inside)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- inner.Run(ctx) }()
	a.Stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	select {
	case <-a.Listening():
	case err := <-ended:
		t.Fatalf("agent: %v", err)
	}
	a.Conn, err = grpc.NewClient(a.Addresses().GRPC,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30)))
	if err != nil {
		t.Fatal(err)
	}
	a.GRPC = inference.NewGRPCInferenceServiceClient(a.Conn)
	transport := &http.Transport{}
	a.HTTP = &http.Client{Transport: transport}
	t.Cleanup(func() {
		_ = a.Conn.Close() // some tests close it before
		transport.CloseIdleConnections()
		if err := a.Stop(); err != nil {
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

// A Gate is an executor whose runs wait, once it is closed, until it opens.
type Gate struct {
	runtime.Executor
	Entered chan struct{} // receives one value a run that waits

	mu   sync.Mutex
	wait chan struct{} // closed when runs may go on; nil while the gate is open
}

func NewGate() *Gate { return &Gate{Executor: Emulated(), Entered: make(chan struct{}, 100)} }

func (g *Gate) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wait = make(chan struct{})
}

func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.wait != nil {
		close(g.wait)
		g.wait = nil
	}
}

// Pass opens the gate for what comes next, and not for what is at it until held is closed.
func (g *Gate) Pass() (held chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	held, g.wait = g.wait, nil
	return held
}

func (g *Gate) Load(ctx context.Context, v *models.Version) (runtime.Model, error) {
	m, err := g.Executor.Load(ctx, v)
	return gatedModel{m, g}, err
}

type gatedModel struct {
	runtime.Model
	gate *Gate
}

func (m gatedModel) Run(ctx context.Context, inputs []tensor.Tensor) (*runtime.Result, error) {
	m.gate.mu.Lock()
	wait := m.gate.wait
	m.gate.mu.Unlock()
	if wait != nil {
		m.gate.Entered <- struct{}{}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return m.Model.Run(ctx, inputs)
}

// A LogBuffer is a log that several goroutines write.
type LogBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *LogBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *LogBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Do sends a request to the REST server and returns the status and the body.
func (a *Agent) Do(method, path, body string) (int, string) {
	a.T.Helper()
	resp, answer := a.Exchange(method, path, body, nil)
	return resp.StatusCode, answer
}

func (a *Agent) Exchange(method, path, body string, header map[string]string) (*http.Response,
	string) {
	a.T.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method,
		"http://"+a.Addresses().HTTP+path, strings.NewReader(body))
	if err != nil {
		a.T.Fatal(err)
	}
	for name, value := range header {
		req.Header.Set(name, value)
	}
	resp, err := a.HTTP.Do(req)
	if err != nil {
		a.T.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		a.T.Fatal(err)
	}
	return resp, string(answer)
}

// NCFIDs is a valid input of a small NCF.
func NCFIDs(batchSize int) []int64 {
	ids := make([]int64, 4*batchSize)
	for i := range ids {
		ids[i] = int64(i % 28)
	}
	return ids
}

// NCFRequest is a valid query for NCF by gRPC.
func NCFRequest(batchSize int) *inference.ModelInferRequest {
	return &inference.ModelInferRequest{
		ModelName: "ncf",
		Inputs: []*inference.ModelInferRequest_InferInputTensor{{
			Name: "ids", Datatype: "INT64", Shape: []int64{int64(batchSize), 4},
			Contents: &inference.InferTensorContents{Int64Contents: NCFIDs(batchSize)},
		}},
	}
}

// NCFBody is a valid query for NCF by REST.
func NCFBody(batchSize int) string {
	ids := strings.ReplaceAll(strings.Trim(fmt.Sprint(NCFIDs(batchSize)), "[]"), " ", ",")
	return fmt.Sprintf(`{"inputs":[{"name":"ids","datatype":"INT64","shape":[%d,4],"data":[%s]}]}`,
		batchSize, ids)
}

// Leads waits until the agent leads.
func (a *Agent) Leads() {
	for !a.Leading().Leads() {
		goruntime.Gosched()
	}
}
