package harness

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client"
)

// A fakeServer answers zeros, except to queries 3 to 8, to which its answer is missing or wrong.
type fakeServer struct {
	queries  atomic.Int64
	first    chan string   // has the id of query 2, which is answered, for query 5
	answered chan struct{} // nil: at once
}

func newFakeServer() *fakeServer { return &fakeServer{first: make(chan string, 1)} }

func (s *fakeServer) ModelMetadata(context.Context, string,
	string) (*inference.ModelMetadataResponse, error) {
	return &inference.ModelMetadataResponse{
		Inputs: []*inference.ModelMetadataResponse_TensorMetadata{
			{Name: "x", Datatype: "FP32", Shape: []int64{-1, 1}},
		},
		Properties: oip.Properties{QoSTarget: time.Minute, Deadline: time.Minute}.Map(),
	}, nil
}

func (s *fakeServer) Infer(_ context.Context, req *oip.Request) (*oip.Response, error) {
	n := s.queries.Add(1)
	if n > 1 && s.answered != nil { // the first finds out what the model is
		<-s.answered
	}
	zeros, err := tensor.Of("y", make([]float32, req.Inputs[0].Shape[0]), req.Inputs[0].Shape[0])
	answer := &oip.Response{Model: req.Model, ID: req.ID, Outputs: []tensor.Tensor{zeros}}
	switch n {
	case 2:
		s.first <- req.ID
	case 3:
		return nil, client.ErrOverloaded
	case 4:
		return nil, errors.New("gone")
	case 5:
		answer.ID = <-s.first // that query's second answer
	case 6:
		answer.Outputs[0].Shape = []int64{req.Inputs[0].Shape[0] + 1}
	case 7:
		answer.Outputs[0].Data[0] = 1
	case 8:
		answer.Outputs = nil
	}
	return answer, err
}

// TestLedger sends queries to a fakeServer and checks the count of each outcome.
func TestLedger(t *testing.T) {
	s := newFakeServer()
	d, err := NewDriver(t.Context(), s, map[string]float64{"m": 1}, 0)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	for s.queries.Load() < 20 {
		if _, err := d.Run(t.Context(),
			Load{Rate: 2000, Duration: 10 * time.Millisecond}); err != nil {
			t.Fatal(err)
		}
	}
	c := d.Between(begin, time.Now())
	if c.Queries != d.Sent() || int64(c.Queries) != s.queries.Load()-1 {
		t.Errorf("%d entries of %d queries, %d arrived", c.Queries, d.Sent(), s.queries.Load()-1)
	}
	if c.Refused != 1 || c.Failed+c.Robbed != 1 || c.Wrong != 4 || c.OnTime != c.Queries-6 ||
		c.Late != 0 {
		t.Errorf("%v: want 1 refused, 1 failed, 4 wrong, the others on time", c)
	}
	if d.Twice() != 1 {
		t.Errorf("%d queries were answered twice, want one", d.Twice())
	}
	if c := d.Between(begin.Add(-time.Hour), begin); c.Queries != 0 {
		t.Errorf("%d queries before the first", c.Queries)
	}
}

// TestStopWaits checks that Stop waits for the queries under way, so that each has an outcome.
func TestStopWaits(t *testing.T) {
	s := newFakeServer()
	s.answered = make(chan struct{})
	d, err := NewDriver(t.Context(), s, map[string]float64{"m": 1}, 0)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := d.Start(t.Context(), Load{Rate: 2000}); err != nil {
		t.Fatal(err)
	}
	s.answered <- struct{}{} // one is under way
	d.stopped.Store(true)    // as Stop does first
	close(s.answered)
	if err := d.Stop(); err != nil {
		t.Fatal(err)
	}
	if c := d.Between(begin, time.Now()); c.Queries != d.Sent() || c.Queries == 0 {
		t.Errorf("%d of %d queries have an outcome", c.Queries, d.Sent())
	}
}

func TestUsage(t *testing.T) {
	u, err := parseUsage([]byte(`# HELP go_goroutines Number of goroutines that currently exist.
go_goroutines 41
process_open_fds 12
process_resident_memory_bytes 1.048576e+08
go_memstats_sys_bytes 3.145728e+07
go_memstats_heap_released_bytes 1.048576e+07
muster_queries_total{model="a b",outcome="x y"} 3
`))
	if want := (Usage{
		Goroutines: 41, Descriptors: 12, Memory: 100, GoMemory: 20, Series: 6,
	}); err != nil || u != want {
		t.Errorf("%+v, %v, want %+v", u, err, want)
	}
	if _, err := parseUsage([]byte("up 1\n")); err == nil {
		t.Error("metrics without go_goroutines: no error")
	}
}
