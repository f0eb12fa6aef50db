package client

import (
	"context"
	"encoding/binary"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
)

// What FuzzGateway does: a byte for it, a length, and as many bytes.
const (
	viewed   = iota // a View
	led             // a MatchMessage of the leader
	probed          // a ProbeAnswer, to the next question
	asked           // a query arrives
	passTime        // as many ms as there are bytes
	failing         // the next attempt fails with the code of the first byte
	parted          // the streams end
)

// A scriptedFleet says to a gateway what it is told to.
type scriptedFleet struct {
	said    chan *control.MatchMessage
	answers chan *control.ProbeAnswer
	codes   chan codes.Code
	parts   chan struct{}
}

func (f *scriptedFleet) Match(ctx context.Context, _ *control.Member) (MatchStream, error) {
	return &scriptedStream{f, ctx}, nil
}

func (f *scriptedFleet) Probe(ctx context.Context, _ *control.Member) (ProbeStream, error) {
	return &scriptedProbes{f, ctx, make(chan *control.ProbeRequest, 1)}, nil
}

func (f *scriptedFleet) Infer(ctx context.Context, _ *control.Member, _ *oip.Request,
	_ *Attempt) (*oip.Response, error) {
	select {
	case <-time.After(time.Millisecond):
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	select {
	case code := <-f.codes:
		return nil, status.Error(code, "as the script says")
	default:
		return &oip.Response{}, nil
	}
}

type scriptedStream struct {
	*scriptedFleet
	ctx context.Context
}

func (s *scriptedStream) Send(m *control.GatewayMessage) error {
	_, err := proto.Marshal(m)
	return err
}

func (s *scriptedStream) Recv() (*control.MatchMessage, error) {
	select {
	case m := <-s.said:
		return m, nil
	case <-s.parts:
	case <-s.ctx.Done():
	}
	return nil, status.Error(codes.Unavailable, "ended")
}

type scriptedProbes struct {
	*scriptedFleet
	ctx       context.Context
	questions chan *control.ProbeRequest
}

func (s *scriptedProbes) Send(r *control.ProbeRequest) error {
	if !r.Release {
		select {
		case s.questions <- r:
		default: // it does not answer all
		}
	}
	return nil
}

func (s *scriptedProbes) Recv() (*control.ProbeAnswer, error) {
	select {
	case q := <-s.questions:
		select {
		case answer := <-s.answers:
			if answer.Id == 0 {
				answer.Id = q.Id
			}
			return answer, nil
		default:
			return &control.ProbeAnswer{Id: q.Id, FinishNs: 1e6}, nil
		}
	case <-s.parts:
	case <-s.ctx.Done():
	}
	return nil, status.Error(codes.Unavailable, "ended")
}

// FuzzGateway has a fleet say to a gateway whatever it likes. Each query must have its one
// outcome in time, and nothing may go on after Close.
func FuzzGateway(f *testing.F) {
	var b []byte
	add := func(what byte, m proto.Message, n int) {
		data := make([]byte, n)
		if m != nil {
			data, _ = proto.Marshal(m) // made here, and right
		}
		b = append(binary.AppendUvarint(append(b, what), uint64(len(data))), data...)
	}
	member := &control.Member{
		Name: "a", Address: "a:1", Protocol: control.Spoken.Oldest, InstanceType: "box", Lanes: 1,
		Cores: 1,
		Models: []*control.Model{
			{Name: "m", Version: 1, Newest: true, QosTargetNs: 1e7, QosPercentile: 0.99,
				DeadlineNs: 1e8, LargestBatchSize: 10},
		},
	}
	view := &control.View{Members: []*control.Member{member}, Leadership: &control.Leadership{
		Epoch: 1, Leader: "a", Successor: "b",
	},
		Prices: []*control.TypePrice{
			{Type: string(member.LaneType()), PerMs: math.NaN(), ServiceMs: math.Inf(-1)},
		},
		Loads: []*control.LaneLoad{
			{Agent: "a", AgeNs: math.MinInt64, RemainingNs: []int64{math.MaxInt64}},
		},
		Profiles: []*control.Profile{
			{Model: "m/1", Type: string(member.LaneType()), Table: []byte(`{"knots":[]}`)},
		}}
	leads := &control.MatchMessage{Leadership: view.Leadership}
	assign := &control.MatchMessage{
		Received: 1, Assign: []*control.Assign{
			{Sequence: 4, Attempt: 1, Agent: "a", WaitNs: math.MaxInt64,
				ExecutionNs: math.MaxInt64},
		},
	}
	split := &control.MatchMessage{
		Received: 3, Split: []*control.Split{
			{Sequence: 8, Rows: []uint32{1, 2}}, {Sequence: 12, Rows: []uint32{1<<32 - 1, 4}},
		},
		Assign: []*control.Assign{{Sequence: 9, Attempt: 1, Agent: "a"}},
	}
	absurd := &control.MatchMessage{Received: math.MaxUint64, Assign: []*control.Assign{
		{Sequence: 4, Attempt: math.MaxUint32, Agent: "nobody"}, {Sequence: 9},
	},
		OfferAgain: []*control.OfferAgain{{Sequence: 4, Attempt: 1}, {Sequence: 9}},
		Reject: []*control.Reject{
			{Sequence: 4, Reason: "?", RetryAfterNs: math.MinInt64}, {Sequence: 9},
		},
		Leadership: &control.Leadership{Epoch: math.MaxUint64, Leader: "z"}, Prices: view.Prices}
	add(viewed, view, 0)
	add(led, leads, 0)
	add(asked, nil, 3)
	add(led, assign, 0)
	add(led, assign, 0)
	add(led, split, 0)
	add(failing, nil, 15)
	add(asked, nil, 1)
	add(led, absurd, 0)
	add(passTime, nil, 200)
	f.Add(b)
	b = nil
	add(viewed, &control.View{Members: view.Members, Loads: view.Loads}, 0)
	add(probed, &control.ProbeAnswer{FinishNs: math.MaxInt64, RemainingNs: math.MinInt64}, 0)
	add(asked, nil, 3)
	add(probed, &control.ProbeAnswer{Id: math.MaxUint64}, 0)
	add(asked, nil, 3)
	add(passTime, nil, 30)
	add(parted, nil, 0)
	add(viewed, &control.View{}, 0)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		synctest.Test(t, func(t *testing.T) { playGateway(t, b) })
	})
}

func playGateway(t *testing.T, b []byte) {
	fleet := &scriptedFleet{
		said: make(chan *control.MatchMessage, 100), answers: make(chan *control.ProbeAnswer, 100),
		codes: make(chan codes.Code, 100), parts: make(chan struct{}),
	}
	g, err := NewGateway(GatewayConfig{ID: 1, Transport: fleet})
	if err != nil {
		t.Fatal(err)
	}
	const patience = time.Second
	queries := 0
	outcomes := make(chan time.Duration, 100)
	for len(b) > 0 {
		what := b[0]
		length, n := binary.Uvarint(b[1:])
		if n <= 0 {
			break
		}
		b = b[1+n:]
		data := b[:min(length, uint64(len(b)))]
		b = b[len(data):]
		switch what {
		case viewed:
			if v := new(control.View); proto.Unmarshal(data, v) == nil {
				g.SetView(v)
			}
		case led:
			if m := new(control.MatchMessage); proto.Unmarshal(data, m) == nil &&
				len(fleet.said) < cap(fleet.said) {
				fleet.said <- m
			}
		case probed:
			if m := new(control.ProbeAnswer); proto.Unmarshal(data, m) == nil &&
				len(fleet.answers) < cap(fleet.answers) {
				fleet.answers <- m
			}
		case asked:
			if queries == cap(outcomes) {
				continue
			}
			queries++
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				arrival := time.Now()
				req := &oip.Request{Model: "m", Inputs: []tensor.Tensor{{
					Name: "x", DataType: tensor.Uint8, Shape: []int64{int64(len(data))}, Data: data,
				}}}
				resp, err := g.Infer(ctx, req, arrival)
				if (resp == nil) == (err == nil) {
					t.Errorf("a query gets %v and %v", resp, err)
				}
				outcomes <- time.Since(arrival)
			}()
		case passTime:
			time.Sleep(time.Duration(min(len(data), 2000)) * time.Millisecond)
		case failing:
			if len(data) > 0 && len(fleet.codes) < cap(fleet.codes) {
				fleet.codes <- codes.Code(data[0]%17 | 1)
			}
		case parted:
			close(fleet.parts)
			synctest.Wait()
			fleet.parts = make(chan struct{})
		}
		synctest.Wait()
	}
	for range queries {
		if took := <-outcomes; took > patience {
			t.Errorf("a query took %v, want at most %v", took, patience)
		}
	}
	g.Close()
}
