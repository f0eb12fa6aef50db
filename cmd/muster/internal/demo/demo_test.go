package demo

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/client/bench"
)

func TestTable(t *testing.T) {
	whole := bench.ModelReport{
		Queries: 2000, Answered: 1997, Failed: 3, QoSSatisfaction: 0.99961,
		LatencyMS: bench.Latencies{P50: 76.7, P99: 277},
		Failures: []bench.Failure{
			{Reason: client.ErrOverloaded.Error(), Count: 2},
			{Reason: client.ErrUnavailable.Error(), Count: 1, Example: "gone"},
		},
	}
	failed := bench.ModelReport{Queries: 1, LatencyMS: bench.Latencies{
		P50: math.Inf(1), P99: math.Inf(1)}}
	var b strings.Builder
	if err := writeTable(&b, []row{{"plain load balancer", whole}, {"Muster",
		failed}}); err != nil {
		t.Fatal(err)
	}
	const want = `
SEEN (EMULATED)      queries  in time  p50 ms  p99 ms  refused
plain load balancer  2000     99.96 %  77      277     2
Muster               1        0.00 %   +Inf    +Inf    0
`
	if got := "\n" + b.String(); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// A fakeServer loses, refuses and wrongly answers some queries.
type fakeServer struct {
	sound                         bool // refuses only
	queries, lost, refused, wrong atomic.Int64
}

func (s *fakeServer) ModelMetadata(context.Context, string,
	string) (*inference.ModelMetadataResponse, error) {
	return &inference.ModelMetadataResponse{
		Inputs: []*inference.ModelMetadataResponse_TensorMetadata{
			{Name: "x", Datatype: "FP32", Shape: []int64{-1, 1}},
		},
		// all are late
		Properties: oip.Properties{QoSTarget: time.Microsecond, Deadline: time.Minute}.Map(),
	}, nil
}

func (s *fakeServer) Infer(_ context.Context, req *oip.Request) (*oip.Response, error) {
	answer := &oip.Response{Model: req.Model, ID: req.ID, Outputs: req.Inputs}
	switch n := s.queries.Add(1) % 10; {
	case n == 5:
		s.refused.Add(1)
		return nil, client.ErrOverloaded
	case n == 3 && !s.sound:
		s.lost.Add(1)
		return nil, client.ErrUnavailable
	case n == 7 && !s.sound:
		s.wrong.Add(1)
		answer.ID = "another"
	}
	return answer, nil
}

// A load fails where queries are lost or answered wrongly, and not for being late or refused.
func TestLostQueriesFail(t *testing.T) {
	d := &demo{Config: Config{Status: io.Discard}}
	s := &fakeServer{}
	m, wrong, err := d.sendLoad(t.Context(), s, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if s.lost.Load() == 0 || s.wrong.Load() == 0 || s.refused.Load() == 0 {
		t.Fatalf("only %d queries were sent", s.queries.Load())
	}
	want := fmt.Sprintf("%d were lost and %d answered wrongly", s.lost.Load(), s.wrong.Load())
	if err := checkNoneLost(m, wrong); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want one that says %q", err, want)
	}
	patient := &fakeServer{sound: true}
	if m, wrong, err = d.sendLoad(t.Context(), patient, time.Second); err != nil {
		t.Fatal(err)
	}
	if err := checkNoneLost(m, wrong); err != nil {
		t.Error(err)
	}
	if m.QoSSatisfaction != 0 || m.Failed != patient.refused.Load() ||
		countRefusals(m) != m.Failed {
		t.Errorf("%.2f in time, %d failed, %d refused; want 0, and twice %d", m.QoSSatisfaction,
			m.Failed, countRefusals(m), patient.refused.Load())
	}
}

func TestCheckAnswer(t *testing.T) {
	of := func(rows int64) []tensor.Tensor {
		x, err := tensor.Of("x", make([]float32, rows), rows, 1)
		if err != nil {
			t.Fatal(err)
		}
		return []tensor.Tensor{x}
	}
	query := &oip.Request{ID: "1", Model: "m", Inputs: of(3)}
	right := oip.Response{ID: "1", Model: "m", Outputs: of(3)}
	if err := checkAnswer(query, &right); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*oip.Response){
		"id":         func(r *oip.Response) { r.ID = "2" },
		"model":      func(r *oip.Response) { r.Model = "n" },
		"no outputs": func(r *oip.Response) { r.Outputs = nil },
		"rows":       func(r *oip.Response) { r.Outputs = of(2) },
	} {
		wrong := right
		change(&wrong)
		if checkAnswer(query, &wrong) == nil {
			t.Errorf("another %s: no error", name)
		}
	}
}

func TestFindPorts(t *testing.T) {
	seen := map[int]bool{}
	for range 3 {
		ports, err := findPorts(4, func(port int) bool { return port%3 == 0 })
		if err != nil {
			t.Fatal(err)
		}
		for _, port := range ports {
			if port%3 != 0 || seen[port] {
				t.Errorf("found port %d, want a free one that was not found before", port)
			}
			seen[port] = true
		}
	}
	first := true
	_, err := findPorts(4, func(int) bool { defer func() { first = false }(); return first })
	if err == nil || !strings.Contains(err.Error(), "needs 4 TCP ports") ||
		!strings.Contains(err.Error(), "only 1 are free") {
		t.Errorf("with one free port: %v", err)
	}
}

// What lacks is named: the place for files, and what an agent said before it ended.
func TestFaults(t *testing.T) {
	c := Config{
		Program: "/bin/sh", Env: os.Environ(), Load: time.Second, Out: io.Discard,
		Status: io.Discard,
	}
	used := t.TempDir()
	if err := os.WriteFile(filepath.Join(used, "thesis.txt"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		used:                              "is not empty, it has thesis.txt",
		filepath.Join(used, "thesis.txt"): "not a directory",
	} {
		c.Dir = dir
		if err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("dir %s: error %v, want one that says %q", dir, err, want)
		}
	}
	c.Dir = filepath.Join(t.TempDir(), "new")
	err := Run(t.Context(), c) // a shell cannot open a script named agent; any may end first
	for _, want := range []string{
		"the agent on ", " ended by itself", "agent: ", "logs are in " + c.Dir,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
}
