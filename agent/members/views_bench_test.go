package members

import (
	"context"
	"fmt"
	"math"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/client"
)

// BenchmarkViews is what it costs an agent, and those who watch it, that all members say how
// busy they are once a second, which is as often as gossip lets them, and beyond fifty members
// more often. A round is a second of it. CPU is that of this process: of the members, the
// gateway and the gRPC server, and of the watchers' connections. Watchers that are not SDKs
// read and throw away.
func BenchmarkViews(b *testing.B) {
	for _, members := range []int{50, 200, 1000} {
		for _, watching := range []struct{ watchers, sdks int }{{0, 0}, {10, 0}, {10, 10}} {
			b.Run(
				fmt.Sprintf("members=%d/watchers=%d/sdks=%d", members, watching.watchers,
					watching.sdks), func(b *testing.B) {
					benchmarkViews(b, members, watching.watchers, watching.sdks)
				})
		}
	}
}

func benchmarkViews(b *testing.B, members, watchers, sdks int) {
	k := newKnowing(b, members)
	follow(b, k)
	address := serveWatch(b, k.Members)
	var received, messages atomic.Int64
	for i := range watchers {
		watchInBackground(b, address, i < sdks, &received, &messages)
	}
	said := sampleLoads(members)
	second := func(n int) {
		const parts = 50
		for part := range parts {
			began := time.Now()
			for i := part * (members - 1) / parts; i < (part+1)*(members-1)/parts; i++ {
				k.hearLoad(names.AgentName(memberName(i)), said[(i+n)%len(said)], began)
			}
			time.Sleep(time.Second/parts - time.Since(began))
		}
	}
	second(0) // all there is has been sent whole
	b.ResetTimer()
	used, before, beforeMessages := cpuTime(b), received.Load(), messages.Load()
	for n := range b.N {
		second(n + 1)
	}
	// not the time that they took, for where the CPUs do not suffice they take longer
	rounds := float64(b.N)
	b.ReportMetric((cpuTime(b)-used).Seconds()/rounds*100, "%core")
	b.ReportMetric(0, "ns/op")
	if watchers > 0 {
		b.ReportMetric(float64(received.Load()-before)/rounds/float64(watchers), "B/s/watcher")
		b.ReportMetric(float64(messages.Load()-beforeMessages)/rounds/float64(watchers),
			"messages/s/watcher")
	}
}

// cpuTime is what this process has used.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// watchInBackground watches until the benchmark ends, as an SDK does or only counting.
func watchInBackground(b *testing.B, address string, sdk bool, received, messages *atomic.Int64) {
	count := &countingCodec{sdk, received, messages}
	conn, err := grpc.NewClient(address,
		append(oip.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(count)))...)
	if err != nil {
		b.Fatal(err)
	}
	g, err := client.NewGateway(client.GatewayConfig{ID: 1, Transport: client.Remote{}})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan struct{})
	b.Cleanup(func() { cancel(); <-ended; g.Close(); conn.Close() })
	views, err := control.NewControlClient(conn).Watch(ctx, &control.WatchRequest{Changes: true})
	if err != nil {
		b.Fatal(err)
	}
	var watched control.ViewBuilder
	take := func(v *control.View) error { // as an SDK does, connections to members left out
		changed, err := watched.Take(v)
		if changed {
			g.SetView(watched.View())
		}
		g.SetLoads(v.GetLoads())
		return err
	}
	v, err := views.Recv()
	if err != nil || sdk && take(v) != nil {
		b.Fatal("no view", err)
	}
	go func() {
		defer close(ended)
		for {
			v, err := views.Recv()
			if err != nil {
				return
			}
			if !sdk {
				continue
			}
			if err := take(v); err != nil {
				b.Error(err)
				return
			}
		}
	}()
}

// A countingCodec counts what is received, and decodes it or does not.
type countingCodec struct {
	decode             bool
	received, messages *atomic.Int64
}

func (c *countingCodec) Name() string                           { return proto.Name }
func (c *countingCodec) Marshal(v any) (mem.BufferSlice, error) { return oip.Codec{}.Marshal(v) }
func (c *countingCodec) Unmarshal(data mem.BufferSlice, v any) error {
	c.received.Add(int64(data.Len()))
	c.messages.Add(1)
	if !c.decode {
		return nil
	}
	return oip.Codec{}.Unmarshal(data, v)
}

// A watchService serves Watch alone.
type watchService struct {
	control.UnimplementedControlServer
	*Members
}

func (s watchService) Watch(req *control.WatchRequest, stream control.Control_WatchServer) error {
	return s.Members.Watch(req, stream, all)
}

// serveWatch serves the watchers of ms on a loopback address.
func serveWatch(tb testing.TB, ms *Members) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	s := grpc.NewServer(oip.ServerOptions(math.MaxInt32)...)
	control.RegisterControlServer(s, watchService{Members: ms})
	go func() { _ = s.Serve(l) }()
	tb.Cleanup(s.Stop)
	return l.Addr().String()
}
