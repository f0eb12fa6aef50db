package agent_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// TestServe sends queries of every model by gRPC and REST to an agent with the
// real ONNX Runtime, and wants the outputs that the model has when run alone.
func TestServe(t *testing.T) {
	executor := runtimetest.Open(t)
	a := agenttest.Start(t, agenttest.Config(t), executor)
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
			inputs := agenttest.RandomInputs(t, v, batchSize)
			want, err := alone.Run(t.Context(), inputs)
			if err != nil {
				t.Fatal(err)
			}
			wantData := want.Outputs[0].Data

			resp, err := a.GRPC.ModelInfer(t.Context(), agenttest.RawRequest(model, inputs))
			if err != nil {
				t.Fatalf("%s, batch size %d, gRPC: %v", model, batchSize, err)
			}
			if len(resp.GetRawOutputContents()) != len(v.Outputs) ||
				!alike(resp.GetRawOutputContents()[0], wantData) {
				t.Errorf("%s, batch size %d, gRPC: outputs differ from the model's", model,
					batchSize)
			}
			if got := inferBinary(a, model, inputs); !alike(got[0], wantData) {
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
		config := agenttest.Config(t)
		*map[string]*string{
			"http": &config.HTTPAddress, "grpc": &config.GRPCAddress,
			"metrics": &config.MetricsAddress, "gossip": &config.GossipAddress,
		}[name] = l.Addr().String()
		a, err := agent.New(config, slog.New(slog.DiscardHandler))
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
	config := agenttest.Config(t)
	config.ModelDir = filepath.Join(t.TempDir(), "models")
	a, err := agent.New(config, slog.New(slog.DiscardHandler))
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
	b := agenttest.Start(t, config, agenttest.Emulated())
	if !strings.Contains(b.Log.String(), "the model directory has no model") ||
		!strings.Contains(b.Log.String(), "muster models generate ncf --out "+config.ModelDir) {
		t.Errorf("empty directory: log is %s", b.Log)
	}
	if _, err := zoo.Generate(t.Context(), config.ModelDir, "ncf",
		zoo.Options{Scale: zoo.Small}); err != nil {
		t.Fatal(err)
	}
	if status, body := b.Do("POST", "/v2/repository/models/ncf/load", ""); status != http.StatusOK {
		t.Fatalf("load: %d %s", status, body)
	}
	if status, body := b.Do("POST", "/v2/models/ncf/infer", agenttest.NCFBody(1)); status != http.StatusOK {
		t.Errorf("infer: %d %s", status, body)
	}
}

// TestFirstLogLines: what others need to reach the agent comes first, that of
// gossip in the very first line.
func TestFirstLogLines(t *testing.T) {
	a := agenttest.Start(t, agenttest.Config(t), agenttest.Emulated())
	lines := strings.SplitN(a.Log.String(), "\n", 3)
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
	if !strings.Contains(a.Log.String(), "executor=emulated") {
		t.Error("the log does not say that the executor is emulated")
	}
}

// TestDrain: an agent that is asked to stop finishes what runs, refuses what is
// new, says that it is not ready, and ends without error.
func TestDrain(t *testing.T) {
	g, config := agenttest.NewGate(), agenttest.Config(t)
	config.DrainTimeout = time.Minute // for what is asked of the agent meanwhile, on a busy machine
	a := agenttest.Start(t, config, g)
	g.Close()
	running := make(chan error, 2)
	go func() {
		_, err := a.GRPC.ModelInfer(context.Background(), agenttest.WithTimeout(agenttest.NCFRequest(1), time.Minute))
		running <- err
	}()
	<-g.Entered
	go func() {
		body := strings.Replace(agenttest.NCFBody(1), `{"inputs"`,
			`{"parameters":{"timeout":60000000},"inputs"`, 1)
		resp, err := a.HTTP.Post("http://"+a.Addresses().HTTP+"/v2/models/ncf/infer",
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
	go func() { stopped <- a.Stop() }()
	health := healthpb.NewHealthClient(a.Conn)
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
	if status, body := a.Do("GET", "/readyz", ""); status != http.StatusServiceUnavailable ||
		!strings.Contains(body, "draining") {
		t.Errorf("readyz: got %d %s", status, body)
	}
	if status, _ := a.Do("GET", "/livez", ""); status != http.StatusOK {
		t.Errorf("livez: got %d", status)
	}
	if resp, err := a.GRPC.ServerReady(t.Context(), &inference.ServerReadyRequest{}); err != nil ||
		resp.GetReady() {
		t.Errorf("ServerReady: got %v, %v", resp, err)
	}
	agenttest.WantCode(t, a.InferGRPC(agenttest.NCFRequest(1)), "Unavailable", "draining")
	if status, body := a.Do("POST", "/v2/models/ncf/infer",
		agenttest.NCFBody(1)); status != http.StatusServiceUnavailable {
		t.Errorf("new query by REST: got %d %s", status, body)
	}
	select {
	case err := <-running:
		t.Errorf("a query ended before its time: %v", err)
	case err := <-stopped:
		t.Errorf("the agent stopped with queries in it: %v", err)
	default:
	}
	g.Open()
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
	g := agenttest.NewGate()
	config := agenttest.Config(t)
	config.DrainTimeout = 0
	a := agenttest.Start(t, config, g)
	g.Close()
	ended := make(chan error, 1)
	go func() { ended <- a.InferGRPC(agenttest.WithTimeout(agenttest.NCFRequest(1), time.Minute)) }()
	<-g.Entered
	if err := a.Stop(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil {
		t.Error("the query was answered")
	}
}

// TestServerFails: when one of the servers cannot go on, the agent ends with the
// reason.
func TestServerFails(t *testing.T) {
	config := agenttest.Config(t)
	a, err := agent.New(config, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	agent.Inside{Agent: a}.Environment().OpenExecutor = func(agent.Config, *slog.Logger) (runtime.Executor, error) {
		return nil, errors.New("no library")
	}
	if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "no library") {
		t.Errorf("got %v", err)
	}
}
