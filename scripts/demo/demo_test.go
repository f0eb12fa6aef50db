package main

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/profiles/workload"
)

const ms = time.Millisecond

func TestChooseTarget(t *testing.T) {
	for _, c := range []struct {
		largest []time.Duration
		want    time.Duration
	}{
		{[]time.Duration{time.Microsecond, ms}, 50 * ms}, // no machine keeps less
		{[]time.Duration{10 * ms, 30 * ms}, 160 * ms},
		{[]time.Duration{10 * ms, 30*ms + time.Nanosecond}, 170 * ms},
		{[]time.Duration{100 * ms, 800 * ms}, 3600 * ms}, // however slow the machine
	} {
		if got := chooseTarget(c.largest); got != c.want {
			t.Errorf("largest queries of %v: target %v, want %v", c.largest, got, c.want)
		}
	}
}

// The chosen load would keep half of the chosen target, by the arithmetic of one lane that serves
// in order of arrival, however the models differ.
func TestChosenLoadKeepsTheTarget(t *testing.T) {
	for _, ratio := range []float64{1, 4, 20} {
		largest := []time.Duration{20 * ms, time.Duration(ratio * float64(20*ms))}
		subjects := []*subject{{name: "a"}, {name: "b"}}
		execution := func(model string, batchSize int) time.Duration {
			i := int(model[0] - 'a')
			return time.Duration((0.05 +
				0.95*float64(batchSize)/float64(sizes.Largest())) * float64(largest[i]))
		}
		var means []time.Duration
		for _, s := range subjects {
			var sum float64
			for _, p := range sizes.PMF() {
				sum += p.P * float64(execution(s.name, p.BatchSize))
			}
			means = append(means, time.Duration(sum))
		}
		target := chooseTarget(largest)
		loads, rate := chooseLoad(subjects, means)
		arrivals, err := workload.ParseArrivals("poisson", rate)
		if err != nil {
			t.Fatal(err)
		}
		queries, err := workload.Queries(1, arrivals, loads...)
		if err != nil {
			t.Fatal(err)
		}
		var free, busy, last time.Duration
		sent, late := map[string]int{}, map[string]int{}
		for q := range queries {
			took := execution(q.Model, q.BatchSize)
			free = max(free, q.At) + took
			busy, last = busy+took, q.At
			sent[q.Model]++
			if free-q.At > target/2 {
				late[q.Model]++
			}
			if sent["a"]+sent["b"] == 200_000 {
				break
			}
		}
		if used := busy.Seconds() / last.Seconds(); math.Abs(used-0.5) > 0.02 {
			t.Errorf("ratio %v: the load takes %.3f of the lane's time, want half", ratio, used)
		}
		for model, n := range sent {
			if share := float64(late[model]) / float64(n); share > 0.001 {
				t.Errorf(
					"ratio %v: %.4f of the queries to %s take more than half of the target, want "+
						"at most 0.001", ratio, share, model)
			}
		}
	}
}

func TestChooseFleetLoad(t *testing.T) {
	rate, err := chooseFleetLoad([]float64{7, 0}, 68)
	if err != nil || rate != 34 {
		t.Errorf("rate %v, error %v, want 34", rate, err)
	}
	if _, err := chooseFleetLoad([]float64{7, 20}, 68); err == nil {
		t.Error("a load that a member nearly serves alone is no error")
	}
}

func TestTable(t *testing.T) {
	times := make([]time.Duration, 200)
	for i := range times {
		times[len(times)-1-i] = time.Duration(i+1) * ms / 100
	}
	whole := bench.ModelReport{
		Model: "rm2", QoSTargetMS: 350, Queries: 2000, Answered: 1997, Failed: 3,
		QoSSatisfaction: 0.99961, OfferedQPS: 33.84,
		LatencyMS: bench.Latencies{P50: 76.7, P99: 277},
		Failures: []bench.Failure{
			{Reason: client.ErrOverloaded.Error(), Count: 2}, {
				Reason: client.ErrUnavailable.Error(), Count: 1, Example: "gone",
			},
		},
	}
	var b strings.Builder
	rows := []row{
		timesRow("ncf", "alone", times), loadRow(whole, "fleet"), loadRow(whole, "killed"),
	}
	if err := writeTable(&b, rows); err != nil {
		t.Fatal(err)
	}
	const want = `
WHAT WAS SHOWN          queries/s  p50 ms  p99 ms  in time               answered
ncf             alone   995        1       1.98
rm2             fleet   33.8       76.7    277     99.9 % within 350 ms  1997 of 2000, 2 refused
                killed  33.8       76.7    277     99.9 % within 350 ms  1997 of 2000, 2 refused
`
	if got := "\n" + b.String(); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

func TestWrongAnswers(t *testing.T) {
	of := func(values []float32, shape ...int64) []tensor.Tensor {
		x, err := tensor.Of("scores", values, shape...)
		if err != nil {
			t.Fatal(err)
		}
		return []tensor.Tensor{x}
	}
	want := of([]float32{0, 1, 2000}, 3, 1)
	if err := sameAnswer(want, of([]float32{1e-6, 0.99999, 2000.01}, 3, 1)); err != nil {
		t.Errorf("another order of sums: %v", err)
	}
	for name, got := range map[string][]tensor.Tensor{
		"none":       nil,
		"shape":      of([]float32{0, 1, 2000}, 1, 3),
		"value":      of([]float32{0, 1.01, 2000}, 3, 1),
		"not number": of([]float32{0, 1, float32(math.NaN())}, 3, 1),
	} {
		if sameAnswer(want, got) == nil {
			t.Errorf("%s: no error", name)
		}
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
		answer.Outputs = nil
	}
	return answer, nil
}

// TestDrive holds that a load fails where queries are lost or answered wrongly, and
// not for being late.
func TestDrive(t *testing.T) {
	shares := map[string]float64{"m": 1}
	s := &fakeServer{}
	_, err := new(demo).sendLoad(t.Context(), s, true, 2000, 50*ms, shares)
	lost, wrong := s.lost.Load(), s.wrong.Load()
	if lost == 0 || wrong == 0 || s.refused.Load() == 0 {
		t.Fatalf("only %d queries were sent", s.queries.Load())
	}
	if err == nil {
		t.Fatal("no error")
	}
	if want := fmt.Sprintf("%d were lost, %d answered wrongly", lost,
		wrong); !strings.Contains(err.Error(), want) {
		t.Errorf("error %q, want one that says %q", err, want)
	}
	// The next is slow, too, and refuses all the same.
	patient := &fakeServer{sound: true}
	report, err := new(demo).sendLoad(t.Context(), patient, true, 2000, 50*ms, shares)
	if err != nil {
		t.Fatal(err)
	}
	if m := report.Models[0]; m.QoSSatisfaction != 0 || m.Late == 0 ||
		m.Failed != patient.refused.Load() {
		t.Errorf("%d late and %d failed of %d queries, want all, of which %d were refused", m.Late,
			m.Failed, m.Queries, patient.refused.Load())
	}
}
