package agent

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/profiles"
)

// A stillLeading knows of no leader, and of no change.
type stillLeading struct {
	leading
	follows *control.Leadership
}

func (l stillLeading) leadership() *control.Leadership { return l.follows }
func (l stillLeading) changed() <-chan struct{}        { return nil }

// newKnowing is the half of an agent that knows the fleet, of so many members that have described
// themselves: its roster, its gateway and its feed, and nothing else. There are no connections.
func newKnowing(tb testing.TB, members int) *Agent {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	a := &Agent{log: slog.New(slog.DiscardHandler), name: "self"}
	a.front = &front{limit: math.MaxInt64}
	a.leading = stillLeading{follows: &control.Leadership{Epoch: 1}}
	a.roster = newRoster(ctx, network{}, nil, a.log)
	a.roster.leadership = a.leading.leadership
	library := profiles.ShippedLibrary()
	a.estimates = newEstimates(library, profiles.DefaultCatalogue(), func() *control.Member { return sampleMember("self", 0) })
	a.estimates.loaded("ncf/1", sampleModel("ncf").Checksum)
	a.roster.complete = a.estimates.complete
	a.roster.learned = a.estimates.learnedTimes.Load
	a.roster.updateSelf(sampleMember("self", 0))
	for i := range members - 1 {
		addMember(a, i)
	}
	var err error
	if a.gateway, err = client.NewGateway(client.GatewayConfig{ID: 1, Transport: client.Remote{}}); err != nil {
		tb.Fatal(err)
	}
	a.feed = &feed{roster: a.roster}
	tb.Cleanup(func() { cancel(); a.gateway.Close(); a.roster.close() })
	return a
}

// follow has the gateway and the feed of a follow its roster, until the test ends.
func follow(tb testing.TB, a *Agent) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { a.followView(ctx) })
	running.Go(func() { a.feed.run(ctx, a.leading.changed) })
	tb.Cleanup(func() { cancel(); running.Wait() })
}

// memberName is that of the i-th of the other members.
func memberName(i int) string { return fmt.Sprintf("ip-10-0-%03d-%03d-9e3779b1", i/250, i%250) }

// addMember has a know another member, which has described itself.
func addMember(a *Agent, i int) *other {
	name := memberName(i)
	m := sampleMember(name, i)
	o := &other{name: name, address: m.Address, said: meta{address: m.Address, revision: 1}, described: m, ask: make(chan struct{}, 1)}
	o.left, o.leave = context.WithCancel(context.Background())
	o.conn, _ = grpc.NewClient("passthrough:///"+m.Address, grpc.WithTransportCredentials(insecure.NewCredentials())) // it never connects
	a.roster.mu.Lock()
	a.roster.others[name] = o
	a.roster.mu.Unlock()
	return o
}

// sampleMember is a member with two models of the zoo, every tenth with a third one.
func sampleMember(name string, i int) *control.Member {
	types := []string{"r5n.large", "c5n.2xlarge", "t3.xlarge"}
	m := &control.Member{
		Name: name, Address: fmt.Sprintf("10.0.%d.%d:8001", i/250, i%250), Protocol: control.Protocol, InstanceType: types[i%len(types)],
		PriceUsdPerHour: 0.149, Provider: "cpu", Executor: "onnx", Lanes: 2, Cores: 2, Role: "may", Revision: 1, Rank: 3,
		Models: []*control.Model{sampleModel("ncf"), sampleModel("rm2")},
	}
	if i%10 == 0 {
		m.Models = append(m.Models, sampleModel("wnd"))
	}
	return m
}

func sampleModel(name string) *control.Model {
	metadata := &inference.ModelMetadataResponse{Name: name, Versions: []string{"1"}, Platform: "onnxruntime_onnx", Properties: map[string]string{
		"qos_target_ms": "5", "qos_percentile": "99", "deadline_ms": "250", "largest_batch_size": "1000"}}
	for i := range 4 {
		input := &inference.ModelMetadataResponse_TensorMetadata{Name: fmt.Sprint("input_", i), Datatype: "INT64", Shape: []int64{-1, 80}}
		metadata.Inputs = append(metadata.Inputs, input)
		metadata.Properties["id_bounds."+input.Name] = "1000000"
	}
	metadata.Outputs = []*inference.ModelMetadataResponse_TensorMetadata{{Name: "probability", Datatype: "FP32", Shape: []int64{-1, 1}}}
	return &control.Model{
		Name: name, Version: 1, Newest: true, Metadata: metadata, QosTargetNs: 5e6, QosPercentile: .99, DeadlineNs: 25e7, LargestBatchSize: 1000,
		Checksum: "f91f8a52b7a1c7d6a5e2d0c3b1a09f8e",
	}
}

// sampleLoads are as gossip carries them, of agents with two lanes; none is like the next.
func sampleLoads(n int) [][]byte {
	rng := rand.New(rand.NewPCG(1, 2))
	said := make([][]byte, n)
	for i := range said {
		said[i] = load{revision: 1, waiting: uint64(rng.IntN(4)), remaining: []time.Duration{time.Duration(rng.Int64N(2e7)), time.Duration(rng.Int64N(2e7))}}.encode()
	}
	return said
}
