package members

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/client/stream"
)

// A stillLeading is a Leading whose leadership never changes.
type stillLeading struct{ follows *control.Leadership }

func (l stillLeading) Leadership() *control.Leadership { return l.follows }
func (l stillLeading) Changed() <-chan struct{}        { return nil }

// sampleEstimates have a profile of every model on every lane, which changes whenever learned does.
type sampleEstimates struct{ learned atomic.Uint64 }

func (e *sampleEstimates) Learned() uint64 { return e.learned.Load() }

func (e *sampleEstimates) Complete(v *control.View) {
	known := map[names.TableKey]bool{}
	for _, p := range v.Profiles {
		known[p.TableKey()] = true
	}
	for _, member := range v.Members {
		for _, m := range member.Models {
			key := names.TableKey{
				Model: names.NewModelKey(m.Name, m.Version), Type: member.LaneType(),
			}
			if !known[key] {
				known[key] = true
				v.Profiles = append(v.Profiles, &control.Profile{
					Model: string(key.Model), Type: string(key.Type),
					Table: fmt.Append(nil, e.learned.Load()),
				})
			}
		}
	}
}

// A knowing is an agent's Members without gossip and without connections, with a gateway.
type knowing struct {
	*Members
	estimates sampleEstimates
	gateway   *client.Gateway
}

// newKnowing returns Members and a gateway that know the given number of described members.
func newKnowing(tb testing.TB, members int) *knowing {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var err error
	k := &knowing{}
	if k.gateway, err = client.NewGateway(client.GatewayConfig{
		ID: 1, Transport: client.Remote{},
	}); err != nil {
		tb.Fatal(err)
	}
	k.Members = New(Config{
		Closing: ctx, Leading: stillLeading{&control.Leadership{Epoch: 1}},
		Log: slog.New(slog.DiscardHandler),
	})
	k.Represent(testSelf{
		&k.estimates, func() *control.Member { return sampleMember("self", 0) },
	})
	k.PublishLoads(k.gateway)
	for i := range members - 1 {
		addMember(k.Members, i)
	}
	tb.Cleanup(func() { cancel(); k.gateway.Close(); k.Close() })
	return k
}

// follow makes the gateway and the feed of k follow the view until the test ends.
func follow(tb testing.TB, k *knowing) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { k.feed.run(ctx) })
	running.Go(func() {
		for ctx.Err() == nil {
			changed := k.ViewChanged()
			k.gateway.SetView(k.View())
			k.gateway.SetLoads(k.Loads())
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	})
	tb.Cleanup(func() { cancel(); running.Wait() })
}

// all lets every caller see every model.
func all(string) bool { return true }

// memberName is the name of the i-th other member.
func memberName(i int) string { return fmt.Sprintf("ip-10-0-%03d-%03d-9e3779b1", i/250, i%250) }

// addMember adds another described member to ms.
func addMember(ms *Members, i int) *other {
	name := memberName(i)
	m := sampleMember(name, i)
	o := &other{
		name: names.AgentName(name), address: m.Address,
		said: Meta{Address: m.Address, Revision: 1}, described: m,
		ask: make(chan struct{}, 1),
	}
	o.left, o.leave = context.WithCancel(context.Background())
	// it never connects
	conn, _ := grpc.NewClient("passthrough:///"+m.Address,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	o.conn = stream.New(conn, nil)
	ms.mu.Lock()
	ms.others[names.AgentName(name)] = o
	ms.mu.Unlock()
	return o
}

// sampleMember returns a member with two models of the zoo; every tenth member has a third model.
func sampleMember(name string, i int) *control.Member {
	types := []string{"r5n.large", "c5n.2xlarge", "t3.xlarge"}
	m := &control.Member{
		Name: name, Address: fmt.Sprintf("10.0.%d.%d:8001", i/250, i%250),
		Protocol: control.Spoken.Oldest, InstanceType: types[i%len(types)],
		PriceUsdPerHour: 0.149, Provider: "cpu", Executor: "onnx", Lanes: 2, Cores: 2, Role: "may",
		Revision: 1, Rank: 3,
		Models: []*control.Model{sampleModel("ncf"), sampleModel("rm2")},
	}
	if i%10 == 0 {
		m.Models = append(m.Models, sampleModel("wnd"))
	}
	return m
}

func sampleModel(name string) *control.Model {
	metadata := &inference.ModelMetadataResponse{Name: name, Versions: []string{"1"},
		Platform: "onnxruntime_onnx", Properties: map[string]string{
			"qos_target_ms": "5", "qos_percentile": "99", "deadline_ms": "250",
			"largest_batch_size": "1000"}}
	for i := range 4 {
		input := &inference.ModelMetadataResponse_TensorMetadata{
			Name: fmt.Sprint("input_", i), Datatype: "INT64", Shape: []int64{-1, 80},
		}
		metadata.Inputs = append(metadata.Inputs, input)
		metadata.Properties["id_bounds."+input.Name] = "1000000"
	}
	metadata.Outputs = []*inference.ModelMetadataResponse_TensorMetadata{
		{Name: "probability", Datatype: "FP32", Shape: []int64{-1, 1}},
	}
	return &control.Model{
		Name: name, Version: 1, Newest: true, Metadata: metadata, QosTargetNs: 5e6,
		QosPercentile: .99, DeadlineNs: 25e7, LargestBatchSize: 1000,
		Checksum: "f91f8a52b7a1c7d6a5e2d0c3b1a09f8e",
	}
}

// sampleLoads returns n different encoded loads of agents with two lanes.
func sampleLoads(n int) [][]byte {
	rng := rand.New(rand.NewPCG(1, 2))
	said := make([][]byte, n)
	for i := range said {
		said[i] = gossipedLoad{
			revision: 1, waiting: uint64(rng.IntN(4)), remaining: []time.Duration{
				time.Duration(rng.Int64N(2e7)), time.Duration(rng.Int64N(2e7)),
			},
		}.encode()
	}
	return said
}
