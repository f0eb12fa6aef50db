package client

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
)

// BenchmarkHops compares the way of a query by a gateway, to the leader and back and to the worker
// and back, with that by a relay that passes the same bytes on and does nothing else. Both are over
// loopback, within this process; `scripts/bench/overhead` does it with processes.
func BenchmarkHops(b *testing.B) {
	worker := listen(b, &benchWorker{})
	b.Run("relay", func(b *testing.B) {
		relay := listen(b, &benchRelay{conn: dialBench(b, worker)})
		conn := dialBench(b, relay)
		runBench(b, func(ctx context.Context, req *oip.Request) (*oip.Response, error) {
			resp := new(oip.Response)
			return resp, conn.Invoke(ctx, inference.GRPCInferenceService_ModelInfer_FullMethodName,
				req, resp)
		})
	})
	b.Run("gateway", func(b *testing.B) {
		leader := listen(b, &benchWorker{})
		conns := map[string]*grpc.ClientConn{
			"leader": dialBench(b, leader), "worker": dialBench(b, worker),
		}
		g, err := NewGateway(GatewayConfig{
			ID: 1, Transport: Remote{
				Dial: func(m *control.Member) (grpc.ClientConnInterface, error) {
					return conns[m.GetName()], nil
				},
			},
		})
		if err != nil {
			b.Fatal(err)
		}
		defer g.Close()
		g.SetView(&control.View{Leadership: &control.Leadership{Epoch: 1, Leader: "leader"},
			Members: []*control.Member{
				{Name: "leader", Lanes: 1}, {
					Name: "worker", Lanes: 1, Models: []*control.Model{
						{Name: "ncf", Version: 1, Newest: true, LargestBatchSize: 1000},
					},
				},
			}})
		for g.Leader() == "" {
			time.Sleep(time.Millisecond)
		}
		runBench(b, func(ctx context.Context, req *oip.Request) (*oip.Response, error) {
			return g.Infer(ctx, req, time.Now())
		})
		if s := g.Stats(); s.Silences > 0 {
			b.Logf("stats are %+v", s)
		}
	})
}

// runBench sends queries like NCF's of batch size 8, one at a time and many.
func runBench(b *testing.B, infer func(context.Context, *oip.Request) (*oip.Response, error)) {
	ids, err := tensor.Of("ids", make([]int64, 16), 8, 2)
	if err != nil {
		b.Fatal(err)
	}
	one := func(b *testing.B) {
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
		defer cancel()
		resp, err := infer(ctx, &oip.Request{Model: "ncf", Inputs: []tensor.Tensor{ids}})
		if err != nil {
			b.Error(err)
			return
		}
		resp.Release()
	}
	b.Run("in turn", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			one(b)
		}
	})
	b.Run("at a time=32", func(b *testing.B) {
		b.ReportAllocs()
		b.SetParallelism(16) // times GOMAXPROCS
		b.RunParallel(func(p *testing.PB) {
			for p.Next() {
				one(b)
			}
		})
	})
}

func listen(b *testing.B, s interface {
	oip.Server
	control.ControlServer
}) (address string) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	server := grpc.NewServer(append(oip.ServerOptions(1<<20), grpc.NumStreamWorkers(32))...)
	oip.RegisterServer(server, s)
	control.RegisterControlServer(server, s)
	served := make(chan struct{})
	go func() { defer close(served); server.Serve(lis) }()
	b.Cleanup(func() { server.Stop(); <-served })
	return lis.Addr().String()
}

func dialBench(b *testing.B, address string) *grpc.ClientConn {
	conn, err := grpc.NewClient(address,
		append(oip.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	return conn
}

// A benchWorker answers at once, and assigns every query to the worker.
type benchWorker struct {
	oip.Server
	control.UnimplementedControlServer
}

func (*benchWorker) ModelInfer(ctx context.Context, req *oip.Request) (*oip.Response, error) {
	defer req.Release()
	if md, _ := metadata.FromIncomingContext(ctx); len(md.Get(control.AttemptHeader)) > 0 {
		if _, err := control.ParseAttempt(md.Get(control.AttemptHeader)[0], "", ""); err != nil {
			return nil, err
		}
	}
	out, err := tensor.Of("score", make([]float32, 8), 8, 1)
	return &oip.Response{Model: "ncf", Version: "1", Outputs: []tensor.Tensor{out}}, err
}

func (*benchWorker) Match(s grpc.BidiStreamingServer[control.GatewayMessage,
	control.MatchMessage]) error {
	var n uint64
	for {
		m, err := s.Recv()
		if err == io.EOF || s.Context().Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		out := &control.MatchMessage{}
		for _, submit := range m.Submit {
			n++
			out.Assign = append(out.Assign, &control.Assign{
				Sequence: submit.Sequence, Attempt: 1, Agent: "worker",
			})
		}
		out.Received = n
		if err := s.Send(out); err != nil {
			return err
		}
	}
}

// A benchRelay passes queries on.
type benchRelay struct {
	benchWorker
	conn *grpc.ClientConn
}

func (r *benchRelay) ModelInfer(ctx context.Context, req *oip.Request) (*oip.Response, error) {
	defer req.Release()
	resp := new(oip.Response)
	if err := r.conn.Invoke(ctx, inference.GRPCInferenceService_ModelInfer_FullMethodName, req,
		resp); err != nil {
		return nil, err
	}
	return resp, nil
}
