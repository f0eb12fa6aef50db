package client

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/profiles"
)

// idle reaches members that are free, without a network and without a leader.
type idle struct{}

func (idle) Match(context.Context, *control.Member) (MatchStream, error) {
	return nil, status.Error(codes.Unavailable, "nobody leads")
}

func (idle) Infer(context.Context, *control.Member, *oip.Request, *Attempt) (*oip.Response, error) {
	return &oip.Response{}, nil
}

func (idle) Probe(ctx context.Context, _ *control.Member) (ProbeStream, error) {
	return &idleProbe{ctx, make(chan *control.ProbeAnswer, 16)}, nil
}

type idleProbe struct {
	ctx     context.Context
	answers chan *control.ProbeAnswer
}

func (p *idleProbe) Send(r *control.ProbeRequest) error {
	if !r.Release {
		p.answers <- &control.ProbeAnswer{Id: r.Id, FinishNs: int64(time.Millisecond)}
	}
	return nil
}

func (p *idleProbe) Recv() (*control.ProbeAnswer, error) {
	select {
	case a := <-p.answers:
		return a, nil
	case <-p.ctx.Done():
		return nil, p.ctx.Err()
	}
}

// idleGateway is a gateway without a leader that has a few idle members with known profiles.
func idleGateway(tb testing.TB) *Gateway {
	tb.Helper()
	ms := time.Millisecond
	knot := func(batch int) profiles.Knot {
		return profiles.Knot{BatchSize: batch, Mean: ms, P50: ms, P90: ms, P99: ms}
	}
	table, err := profiles.NewTable(profiles.Key{Model: "sum", InstanceType: "local"},
		profiles.Measured, "test", []profiles.Knot{knot(1), knot(1000)})
	if err != nil {
		tb.Fatal(err)
	}
	data, err := json.Marshal(table)
	if err != nil {
		tb.Fatal(err)
	}
	g, err := NewGateway(GatewayConfig{ID: 1, Transport: idle{}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(g.Close)
	view := &control.View{}
	for _, name := range []string{"a", "b", "c"} {
		view.Members = append(view.Members,
			&control.Member{Name: name, InstanceType: "local", Provider: "cpu", Lanes: 1, Cores: 1,
				Models: []*control.Model{
					{Name: "sum", Version: 1, Newest: true, QosTargetNs: int64(time.Second),
						LargestBatchSize: 1000}}})
	}
	view.Profiles = []*control.Profile{
		{Model: string(names.NewModelKey("sum", 1)), Type: string(view.Members[0].LaneType()),
			Table: data},
	}
	g.SetView(view)
	return g
}

// BenchmarkLeaderlessGateway is all that a gateway without a leader does for a query, where members
// and network take no time.
func BenchmarkLeaderlessGateway(b *testing.B) {
	g := idleGateway(b)
	req := sumQuery(3)
	defer req.Release()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := g.Infer(b.Context(), req, time.Now()); err != nil {
			b.Fatal(err)
		}
	}
}

// TestLeaderlessGatewayAllocates: what a query costs without a leader, of which its question is
// asked and answered, its attempt made, and its context and deadline kept.
func TestLeaderlessGatewayAllocates(t *testing.T) {
	g := idleGateway(t)
	req := sumQuery(3)
	defer req.Release()
	n := testing.AllocsPerRun(1000, func() {
		if _, err := g.Infer(t.Context(), req, time.Now()); err != nil {
			t.Fatal(err)
		}
	})
	if n > mostAllocated {
		t.Errorf("a query allocates %v times, want %d at most", n, mostAllocated)
	}
}

const mostAllocated = 12 // two of them by the transport here
