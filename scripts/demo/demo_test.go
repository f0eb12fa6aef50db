package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/sim/workload"
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

// The chosen load would keep half of the chosen target, by the arithmetic of one lane that serves in
// order of arrival, however the models differ.
func TestChosenLoadKeepsTheTarget(t *testing.T) {
	for _, ratio := range []float64{1, 4, 20} {
		largest := []time.Duration{20 * ms, time.Duration(ratio * float64(20*ms))}
		subjects := []*subject{{name: "a"}, {name: "b"}}
		execution := func(model string, batchSize int) time.Duration {
			i := int(model[0] - 'a')
			return time.Duration((0.05 + 0.95*float64(batchSize)/float64(sizes.Largest())) * float64(largest[i]))
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
				t.Errorf("ratio %v: %.4f of the queries to %s take more than half of the target, want at most 0.001", ratio, share, model)
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

// writeProc writes what of /proc is read: ticks of user, system, idle and stolen time, and those of
// processes, each with its parent and its user and system time, and that of its children that ended.
func writeProc(t *testing.T, dir string, cpu [4]int, processes map[int][5]int) procfs.FS {
	t.Helper()
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("stat", fmt.Sprintf("cpu  %d 0 %d %d 0 0 0 %d 0 0\n", cpu[0], cpu[1], cpu[2], cpu[3]))
	for pid, p := range processes {
		write(fmt.Sprintf("%d/stat", pid), fmt.Sprintf("%d (a process) S %d 1 1 0 -1 0 0 0 0 0 %d %d %d %d 20 0 1 0 1 1 1 1 %s\n",
			pid, p[0], p[1], p[2], p[3], p[4], strings.Repeat("0 ", 27)))
	}
	proc, err := procfs.NewFS(dir)
	if err != nil {
		t.Fatal(err)
	}
	return proc
}

func TestCPUTimeTaken(t *testing.T) {
	dir := t.TempDir()
	processes := map[int][5]int{
		10: {1, 100, 50, 200, 0}, // the demo; ended children took 200
		11: {10, 300, 0, 0, 0},   // an agent
		12: {1, 5000, 0, 0, 0},   // another's
	}
	proc := writeProc(t, dir, [4]int{7000, 1000, 90000, 0}, processes)
	before, err := readCPUTime(proc, 10)
	if err != nil {
		t.Fatal(err)
	}
	if want := (cpuTime{all: 980, busy: 80, own: 6.5}); before != want {
		t.Fatalf("%+v, want %+v", before, want)
	}
	// 20 s of all CPUs: 3 of the demo's own, 4 of others, 1 stolen. The agent has ended.
	delete(processes, 11)
	if err := os.RemoveAll(filepath.Join(dir, "11")); err != nil {
		t.Fatal(err)
	}
	processes[10] = [5]int{1, 200, 100, 600, 50}
	processes[12] = [5]int{1, 5400, 0, 0, 0}
	after, err := readCPUTime(writeProc(t, dir, [4]int{7500, 1200, 91200, 100}, processes), 10)
	if err != nil {
		t.Fatal(err)
	}
	others, stolen := after.taken(before)
	if math.Abs(others-0.20) > 1e-9 || math.Abs(stolen-0.05) > 1e-9 {
		t.Errorf("others took %v and %v was stolen, want 0.20 and 0.05", others, stolen)
	}
	if others, stolen := after.taken(after); others != 0 || stolen != 0 {
		t.Errorf("in no time others took %v and %v was stolen", others, stolen)
	}
}

func TestNeighboursAreToldOfOnce(t *testing.T) {
	if text := note(0.06, 0.03); text != "" {
		t.Errorf("on a quiet machine: %q", text)
	}
	if text := note(0, 0.25); !strings.Contains(text, "stole 25 %") || strings.Contains(text, "programs") {
		t.Errorf("with stolen time: %q", text)
	}
	dir := t.TempDir()
	me := map[int][5]int{10: {}}
	proc := writeProc(t, dir, [4]int{0, 0, 1000, 0}, me)
	n := &neighbours{proc: &proc, pid: 10}
	if text := n.look(); text != "" {
		t.Errorf("while all is idle: %q", text)
	}
	// The time since the last look counts: others take half of it, and a twentieth of all.
	writeProc(t, dir, [4]int{50, 0, 1050, 0}, me)
	if text := n.look(); !strings.Contains(text, "programs took 50 %") || strings.Contains(text, "stole") {
		t.Errorf("with a busy neighbour: %q", text)
	}
	writeProc(t, dir, [4]int{1050, 0, 1050, 0}, me)
	if text := n.look(); text != "" {
		t.Errorf("a second time: %q", text)
	}
}

func TestTable(t *testing.T) {
	times := make([]time.Duration, 200)
	for i := range times {
		times[len(times)-1-i] = time.Duration(i+1) * ms / 100
	}
	whole := bench.ModelReport{
		Model: "rm2", QoSTargetMS: 350, Queries: 2000, Answered: 1997, Failed: 3, QoSSatisfaction: 0.99961, OfferedQPS: 33.84,
		LatencyMS: bench.Latencies{P50: 76.7, P99: 277},
		Failures:  []bench.Failure{{Reason: client.ErrOverloaded.Error(), Count: 2}, {Reason: client.ErrUnavailable.Error(), Count: 1, Example: "gone"}},
	}
	if got := lost(whole); got != 1 {
		t.Errorf("%d are lost, want the one that was not refused", got)
	}
	var b strings.Builder
	rows := []row{timesRow("ncf", "alone", times), loadRow(whole, "fleet"), loadRow(whole, "killed")}
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
	query := &oip.Request{Model: "m", Inputs: of([]float32{1, 2, 3}, 3, 1)}
	if err := wrongSize(query, &oip.Response{Outputs: want}); err != nil {
		t.Errorf("an answer of the query's batch size: %v", err)
	}
	for _, outputs := range [][]tensor.Tensor{nil, of([]float32{1, 2}, 2, 1), of([]float32{1})} {
		if wrongSize(query, &oip.Response{Outputs: outputs}) == nil {
			t.Errorf("no error of the outputs %v for batch size 3", outputs)
		}
	}
}

// A fakeServer loses, refuses and wrongly answers some queries.
type fakeServer struct {
	sound                         bool // refuses only
	queries, lost, refused, wrong atomic.Int64
}

func (s *fakeServer) ModelMetadata(context.Context, string, string) (*inference.ModelMetadataResponse, error) {
	return &inference.ModelMetadataResponse{
		Inputs:     []*inference.ModelMetadataResponse_TensorMetadata{{Name: "x", Datatype: "FP32", Shape: []int64{-1, 1}}},
		Properties: oip.Properties{QoSTarget: time.Nanosecond, Deadline: time.Minute}.Map(), // all are late
	}, nil
}

func (s *fakeServer) Infer(_ context.Context, req *oip.Request) (*oip.Response, error) {
	answer := &oip.Response{Outputs: req.Inputs}
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

// TestDrive holds that a load fails where queries are lost or answered wrongly, and not for being late.
func TestDrive(t *testing.T) {
	s := &fakeServer{}
	_, err := new(demo).drive(t.Context(), s, 2000, 50*ms, workload.Load{Model: "m", Share: 1, BatchSizes: sizes})
	lost, wrong := s.lost.Load(), s.wrong.Load()
	if lost == 0 || wrong == 0 || s.refused.Load() == 0 {
		t.Fatalf("only %d queries were sent", s.queries.Load())
	}
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{fmt.Sprintf("%d of ", lost), "to m were lost", fmt.Sprintf("%d wrong answers", wrong)} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q, want one that says %q", err, want)
		}
	}
	// The next is slow, too, and refuses all the same.
	patient := &fakeServer{sound: true}
	report, err := new(demo).drive(t.Context(), patient, 2000, 50*ms, workload.Load{Model: "m", Share: 1, BatchSizes: sizes})
	if err != nil {
		t.Fatal(err)
	}
	if m := report.Models[0]; m.QoSSatisfaction != 0 || m.Late == 0 || m.Failed != patient.refused.Load() {
		t.Errorf("%d late and %d failed of %d queries, want all, of which %d were refused", m.Late, m.Failed, m.Queries, patient.refused.Load())
	}
}
