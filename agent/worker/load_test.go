package worker_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	orcav3 "github.com/cncf/xds/go/xds/data/orca/v3"
	orcaservice "github.com/cncf/xds/go/xds/service/orca/v3"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/balancer/weightedroundrobin" // registers weighted_round_robin
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
)

// taking makes an agent's queries take a time on its lane, give or take a half, and makes the agent
// a fleet of its own.
func taking(mean time.Duration) func(agent.Inside) {
	return func(a agent.Inside) {
		a.Config().Join = nil
		a.Environment().OpenExecutor = func(agent.Config, *slog.Logger) (runtime.Executor, error) {
			return runtime.NewEmulated(func(*models.Version, int) time.Duration {
				return time.Duration((0.5 + rand.Float64()) * float64(mean))
			}), nil
		}
	}
}

// TestFormerMergePolicy: a model whose model.yaml names a merge policy that Muster had is served, by
// the default, and the log says so.
func TestFormerMergePolicy(t *testing.T) {
	config := agenttest.Config(t)
	config.ModelDir = t.TempDir()
	if err := agenttest.CopyNCF(config.ModelDir, "ncf", func(settings []byte) []byte {
		return append(settings, "\nmerge: nexus\n"...)
	}); err != nil {
		t.Fatal(err)
	}
	a := agenttest.Start(t, config, agenttest.Emulated())
	if err := a.InferGRPC(agenttest.NCFRequest(3)); err != nil {
		t.Fatal(err)
	}
	if want := "model=ncf version=1 merge=nexus default=deadline"; !strings.Contains(a.Log.String(),
		want) {
		t.Errorf("the log lacks %q", want)
	}
	described, err := a.GRPC.ModelConfig(t.Context(), &inference.ModelConfigRequest{Name: "ncf"})
	if err != nil || described.GetConfig().GetDynamicBatching() == nil {
		t.Errorf("described as %v, %v, want that it merges", described, err)
	}
}

// TestWeightedRoundRobin: a client with gRPC's own weighted round robin gives an agent with half
// the speed half the queries, once the reports have told it so.
func TestWeightedRoundRobin(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		agents := []*agenttest.Member{f.Start(taking(8 * time.Millisecond)),
			f.Start(taking(16 * time.Millisecond))}
		list := manual.NewBuilderWithScheme("agents")
		var state resolver.State
		for _, a := range agents {
			f.Settled(a)
			state.Endpoints = append(state.Endpoints, resolver.Endpoint{
				Addresses: []resolver.Address{{Addr: a.Host + ":8001"}},
			})
		}
		list.InitialState(state)
		conn, err := grpc.NewClient("agents:///", grpc.WithResolvers(list),
			grpc.WithDefaultServiceConfig(
				`{"loadBalancingConfig": [{"weighted_round_robin": {}}]}`),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
				return f.Network.Dial(ctx, "client", to)
			}))
		if err != nil {
			f.Fatal(err)
		}
		defer conn.Close()
		to := inference.NewGRPCInferenceServiceClient(conn)
		// shares sends 100 queries/s, of 188 that the two could serve, and returns how many each
		// agent got.
		shares := func(d time.Duration) [2]float64 {
			var before, got [2]float64
			count := func(n *[2]float64) {
				for i, a := range agents {
					answered, _ := a.Worker().Ended()
					n[i] = float64(answered)
				}
			}
			count(&before)
			var sent sync.WaitGroup
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 *
				time.Millisecond) {
				sent.Go(func() {
					if _, err := to.ModelInfer(f.Context(), agenttest.NCFRequest(1)); err != nil {
						f.Error(err)
					}
				})
			}
			sent.Wait()
			count(&got)
			return [2]float64{got[0] - before[0], got[1] - before[1]}
		}
		// gRPC's client balances by reports that are ten seconds old
		first := shares(9 * time.Second)
		shares(5 * time.Second)
		later := shares(20 * time.Second)
		f.Logf("%v queries without weights, %v with", first, later)
		if ratio := first[0] / first[1]; math.Abs(ratio-1) > 0.02 {
			f.Errorf("without weights: %v queries, want equal parts", first)
		}
		if ratio := later[0] / later[1]; math.Abs(ratio-2) > 0.2 {
			f.Errorf("with weights: %v queries, want two to one", later)
		}
	})
}

// TestLoadReports: clients of the protocol get the load in trailers, in a header and by the ORCA
// service, each report once; gateways' attempts do not get it.
func TestLoadReports(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		a := f.Start(taking(10 * time.Millisecond))
		f.Settled(a)
		for range 300 {
			if _, err := a.OIP.ModelInfer(f.Context(), agenttest.NCFRequest(1)); err != nil {
				f.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		check := func(what string, r *orcav3.OrcaLoadReport) {
			f.Helper()
			named := r.GetUtilization()["r5n.large/cpu/1"]
			if u := r.GetApplicationUtilization(); math.Abs(u-0.5) > 0.05 ||
				math.Abs(named-0.5) > 0.05 || named > u ||
				math.Abs(r.GetRpsFractional()-50) > 5 || r.GetEps() != 0 {
				f.Errorf("%s: %v, want 50 queries/s that keep the lane busy half of the time", what,
					r)
			}
		}
		trailer := func(ctx context.Context) (reports []string) {
			var md metadata.MD
			if _, err := a.OIP.ModelInfer(ctx, agenttest.NCFRequest(1), grpc.Trailer(&md)); err != nil {
				f.Error(err)
			}
			return md.Get("endpoint-load-metrics-bin")
		}
		time.Sleep(150 * time.Millisecond) // the last report is sent
		got := trailer(f.Context())
		if len(got) != 1 {
			f.Fatalf("%d reports in the trailers, want 1", len(got))
		}
		r := &orcav3.OrcaLoadReport{}
		if err := proto.Unmarshal([]byte(got[0]), r); err != nil {
			f.Fatal(err)
		}
		check("trailer", r)
		if again := trailer(f.Context()); len(again) != 0 {
			f.Errorf("the same report came twice on a connection")
		}
		time.Sleep(time.Second)
		named := control.Attempt{Gateway: 1, Sequence: 4, Attempt: 1}
		if got := trailer(metadata.AppendToOutgoingContext(f.Context(), control.AttemptHeader,
			named.String())); len(got) != 0 {
			f.Errorf("an attempt's answer has %d reports, want none", len(got))
		}
		if got := trailer(f.Context()); len(got) != 1 {
			f.Errorf("%d reports in the trailers a second later, want 1", len(got))
		}

		ctx, cancel := context.WithCancel(f.Context())
		defer cancel()
		stream, err := orcaservice.NewOpenRcaServiceClient(a.Conn).StreamCoreMetrics(ctx,
			&orcaservice.OrcaLoadReportRequest{})
		if err != nil {
			f.Fatal(err)
		}
		if r, err = stream.Recv(); err != nil || r.GetApplicationUtilization() <= 0 ||
			r.GetRpsFractional() <= 0 || r.GetUtilization()["r5n.large/cpu/1"] <= 0 {
			f.Errorf("service: %v, %v", r, err)
		}

		w := httptest.NewRecorder()
		req := httptest.NewRequest("POST", "/v2/models/ncf/infer", strings.NewReader(agenttest.NCFBody(1)))
		a.Server().REST().ServeHTTP(w, req)
		text, isJSON := strings.CutPrefix(w.Header().Get("endpoint-load-metrics"), "JSON ")
		var said struct {
			Utilization float64 `json:"application_utilization"`
		}
		if err := json.Unmarshal([]byte(text), &said); !isJSON || err != nil ||
			said.Utilization <= 0 {
			f.Errorf("header of an answer with status %d: %q, %v", w.Code, text, err)
		}

		// an invalid query is no failure of the agent, one that it cannot answer in time is
		invalid, hasty := agenttest.NCFRequest(1), agenttest.NCFRequest(1)
		invalid.Inputs = nil
		hasty.Parameters = map[string]*inference.InferParameter{
			"timeout": {ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: 1000}},
		}
		for failures, req := range []*inference.ModelInferRequest{invalid, hasty} {
			if _, err := a.OIP.ModelInfer(f.Context(), req); err == nil {
				f.Error("no error")
			}
			if _, failed := a.Worker().Ended(); failed != uint64(failures) {
				f.Errorf("%d failures, want %d", failed, failures)
			}
		}
	})
}
