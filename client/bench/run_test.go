package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/profiles/workload"
)

// A fakeServer answers as a function says. Its model "m" takes an FP32 and an
// id input.
type fakeServer struct {
	answer     func(ctx context.Context, req *oip.Request) error
	properties map[string]string
}

func (s *fakeServer) Infer(ctx context.Context, req *oip.Request) (*oip.Response, error) {
	if err := s.answer(ctx, req); err != nil {
		return nil, err
	}
	return &oip.Response{}, nil
}

func (s *fakeServer) ModelMetadata(_ context.Context, model,
	_ string) (*inference.ModelMetadataResponse, error) {
	if model == "missing" {
		return nil, errors.New("no such model")
	}
	return &inference.ModelMetadataResponse{
		Name: model,
		Inputs: []*inference.ModelMetadataResponse_TensorMetadata{
			{Name: "dense", Datatype: "FP32", Shape: []int64{-1, 3}},
			{Name: "ids", Datatype: "INT64", Shape: []int64{-1, 2, 4}},
		},
		Properties: s.properties,
	}, nil
}

// properties of the fake models: 10 ms in 99 %, ids below 7 and 1000.
func fakeProperties() map[string]string {
	return oip.Properties{
		QoSTarget: 10 * time.Millisecond, QoSPercentile: 99, Deadline: 100 * time.Millisecond,
		LargestBatchSize: 64,
		IDBounds:         map[string][]int64{"ids": {7, 1000}},
	}.Map()
}

// after answers each query after d, unless its context ends before.
func after(d time.Duration) func(context.Context, *oip.Request) error {
	return func(ctx context.Context, _ *oip.Request) error { return sleep(ctx, d) }
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sleepUntil waits on Go's timers, which a synctest bubble drives.
func sleepUntil(ctx context.Context, until time.Time) error { return sleep(ctx, time.Until(until)) }

func fakeModel(t *testing.T, s *fakeServer, name string) *TargetModel {
	t.Helper()
	m, err := NewTargetModel(t.Context(), s, name, ModelOptions{LargestBatchSize: 64, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// steady is a stream of queries of batch size 8 at a constant rate.
func steady(t *testing.T, rate float64, models ...string) iter.Seq[workload.Query] {
	t.Helper()
	sizes, err := workload.Fixed(8)
	if err != nil {
		t.Fatal(err)
	}
	return stream(t, "constant", rate, sizes, models...)
}

func stream(t *testing.T, arrivals string, rate float64, sizes *workload.BatchSizes,
	models ...string) iter.Seq[workload.Query] {
	t.Helper()
	a, err := workload.ParseArrivals(arrivals, rate)
	if err != nil {
		t.Fatal(err)
	}
	var loads []workload.Load
	for _, m := range models {
		loads = append(loads, workload.Load{Model: m, Share: 1, BatchSizes: sizes})
	}
	qs, err := workload.Queries(1, a, loads...)
	if err != nil {
		t.Fatal(err)
	}
	return qs
}

func mustRun(t *testing.T, s *fakeServer, c Config, models ...string) *Report {
	t.Helper()
	var ms []*TargetModel
	for _, name := range models {
		ms = append(ms, fakeModel(t, s, name))
	}
	r, err := run(t.Context(), s, ms, c, sleepUntil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRunCountsAndMeasures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		s := &fakeServer{properties: fakeProperties(),
			answer: func(ctx context.Context, req *oip.Request) error {
				switch k := n.Add(1); {
				case k%100 == 50:
					return fmt.Errorf("a detail: %w", client.ErrOverloaded)
				case k%100 == 60:
					return sleep(ctx, time.Hour)
				case k%100 == 70:
					return sleep(ctx, 20*time.Millisecond)
				}
				return sleep(ctx, 2*time.Millisecond)
			}}
		r := mustRun(t, s, Config{Queries: steady(t, 1000, "m"), Duration: 2 * time.Second}, "m")
		m := r.Models[0]
		if m.Queries != 1999 || m.Answered != 1959 || m.Late != 20 || m.Failed != 40 ||
			m.Unfinished != 0 {
			t.Errorf("got %+v, want 1999 queries, 1959 answered, 20 late, 40 failed", m)
		}
		if want := 1939. / 1999; math.Abs(m.QoSSatisfaction-want) > 1e-12 || m.QoSMet ||
			r.QoSMet() {
			t.Errorf("QoS satisfaction %v (met: %v), want %v and not met", m.QoSSatisfaction,
				m.QoSMet, want)
		}
		if len(m.Failures) != 2 || m.Failures[0].Reason != "deadline exceeded" ||
			m.Failures[0].Count != 20 ||
			m.Failures[1] != (Failure{"server overloaded", 20, "a detail: server overloaded"}) {
			t.Errorf("failures %+v", m.Failures)
		}
		if l := m.LatencyMS; l.P50 < 1.99 || l.P50 > 2.01 || l.P95 > 2.01 ||
			!math.IsInf(l.P99, 1) || !math.IsInf(l.P999, 1) || l.Max < 19.98 || l.Max > 20.02 {
			t.Errorf("latencies %+v, want 2 ms, and never for the two in a hundred that failed", l)
		}
		if math.Abs(m.OfferedQPS-1000) > 1 || r.DurationS != 2 || !r.GeneratorOnSchedule ||
			r.Interrupted {
			t.Errorf("report %+v", r)
		}
	})
}

// TestQoSMet: just the share that the target asks for meets it, whatever 99.9 divided by 100 is. A
// share below it does not, and is not written as if it did.
func TestQoSMet(t *testing.T) {
	for _, tt := range []struct {
		percentile    float64
		answers, late int
		met           bool
		text          string // that of the share
	}{
		{99.9, 1000, 1, true, "99.90 %"},
		{99.9, 1000, 2, false, "99.80 %"},
		{99, 10_000, 100, true, "99.00 %"},
		{99, 30_000, 301, false, "98.99 %"}, // of 98.997
		{100, 30_000, 1, false, "99.99 %"},
		{100, 1000, 0, true, "100.00 %"},
	} {
		m := newRecorder(&TargetModel{
			Name: "m", QoSTarget: 10 * time.Millisecond, QoSPercentile: tt.percentile,
		})
		for i := range tt.answers {
			m.countSent(1)
			latency := time.Millisecond
			if i < tt.late {
				latency = 20 * time.Millisecond
			}
			m.countFinished(latency, nil, false)
		}
		r := &Report{Models: []ModelReport{m.modelReport(time.Second, time.Second)}}
		var text strings.Builder
		if err := r.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		if r.QoSMet() != tt.met || !strings.Contains(text.String(), " "+tt.text) ||
			strings.Contains(text.String(), "missed") == tt.met {
			t.Errorf("%d of %d late, want %v %%: met is %v, want %v and %s; the report is\n%s",
				tt.late, tt.answers, tt.percentile, r.QoSMet(), tt.met, tt.text, &text)
		}
	}
}

// TestRunDoesNotOmit has the server stall for a second: a generator that waited
// for answers would have seen one slow query, an open loop sees them all.
func TestRunDoesNotOmit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s := &fakeServer{properties: fakeProperties(),
			answer: func(ctx context.Context, _ *oip.Request) error {
				if at := time.Since(start); at > time.Second && at < 2*time.Second {
					return sleep(ctx, 2*time.Second-at)
				}
				return sleep(ctx, time.Millisecond)
			}}
		m, err := NewTargetModel(t.Context(), s, "m", ModelOptions{
			LargestBatchSize: 64, Timeout: time.Minute,
		})
		if err != nil {
			t.Fatal(err)
		}
		start = time.Now()
		r, err := run(t.Context(), s, []*TargetModel{m},
			Config{Queries: steady(t, 100, "m"), Duration: 4 * time.Second}, sleepUntil)
		if err != nil {
			t.Fatal(err)
		}
		if m := r.Models[0]; m.Late != 98 || math.Abs(m.LatencyMS.P90-600) > 10 ||
			m.LatencyMS.Max < 980 {
			t.Errorf("late %d, p90 %v ms, max %v ms; want 98, about 600 and 990", m.Late,
				m.LatencyMS.P90, m.LatencyMS.Max)
		}
	})
}

func TestRunBoundsQueriesInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int64
		s := &fakeServer{properties: fakeProperties(),
			answer: func(ctx context.Context, req *oip.Request) error {
				if req.Inputs[0].Shape[0] == 1 {
					return nil // the first query, before the run
				}
				n := now.Add(1)
				defer now.Add(-1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				return sleep(ctx, time.Hour)
			}}
		r := mustRun(t, s, Config{Queries: steady(t, 1000, "m"), MaxQueries: 50, MaxInFlight: 20},
			"m")
		m := r.Models[0]
		if most.Load() != 20 || m.Queries != 50 || m.Failed != 50 {
			t.Errorf("%d in flight, want 20; %d queries, %d failed, want 50 and 50", most.Load(),
				m.Queries, m.Failed)
		}
		if i := slices.IndexFunc(m.Failures,
			func(f Failure) bool { return f.Reason == "not sent" }); i < 0 ||
			m.Failures[i].Count != 30 {
			t.Errorf("failures %+v, want 30 not sent", m.Failures)
		}
	})
}

func TestRunEndsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{properties: fakeProperties(), answer: after(50 * time.Millisecond)}
		m := fakeModel(t, s, "m")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r, err := run(ctx, s, []*TargetModel{m},
			Config{Queries: steady(t, 100, "m"), Duration: time.Hour}, sleepUntil)
		if err != nil {
			t.Fatal(err)
		}
		if !r.Interrupted || r.Models[0].Queries < 98 || r.Models[0].Queries > 100 ||
			math.Abs(r.DurationS-1) > 0.001 {
			t.Errorf("report %+v, want about 100 queries in 1 s, interrupted", r)
		}
		if u := r.Models[0]; u.Answered+u.Failed+u.Unfinished != u.Queries {
			t.Errorf("%d answered, %d failed, %d unfinished of %d", u.Answered, u.Failed,
				u.Unfinished, u.Queries)
		}
	})
}

func TestRunSeveralModelsWithProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{properties: fakeProperties(),
			answer: func(ctx context.Context, req *oip.Request) error {
				if req.Model == "slow" {
					return sleep(ctx, 30*time.Millisecond)
				}
				return sleep(ctx, time.Millisecond)
			}}
		var mu sync.Mutex
		var seen []Progress
		r := mustRun(t, s, Config{
			Queries:  steady(t, 200, "fast", "slow"),
			Duration: 3500 * time.Millisecond,
			Progress: func(p Progress) {
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, p)
			},
		}, "fast", "slow")
		if r.Models[0].Late != 0 || r.Models[1].Late != r.Models[1].Answered ||
			r.Models[1].Answered < 300 {
			t.Errorf("fast: %d late; slow: %d late of %d", r.Models[0].Late, r.Models[1].Late,
				r.Models[1].Answered)
		}
		if len(seen) != 3 {
			t.Fatalf("%d lines of progress, want 3", len(seen))
		}
		if p := seen[1]; p.Elapsed != 2*time.Second || math.Abs(p.Rate-200) > 8 ||
			p.P99[1].Latency < 29*time.Millisecond || p.P99[1].Model != "slow" {
			t.Errorf("progress %+v", p)
		}
	})
}

// TestGeneratorBehindSchedule has the stream itself take longer than the gaps.
func TestGeneratorBehindSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{properties: fakeProperties(), answer: after(time.Millisecond)}
		slow := func(yield func(workload.Query) bool) {
			for q := range steady(t, 1000, "m") {
				time.Sleep(2 * time.Millisecond)
				if !yield(q) {
					return
				}
			}
		}
		r := mustRun(t, s, Config{Queries: slow, MaxQueries: 100}, "m")
		if r.GeneratorOnSchedule || math.Abs(r.GeneratorDelayMS.Max-100) > 2 {
			t.Errorf("on schedule: %v, delay %+v; want late by 100 ms", r.GeneratorOnSchedule,
				r.GeneratorDelayMS)
		}
		if m := r.Models[0]; m.LatencyMS.Max < 99 {
			t.Errorf("latency %v ms, want it counted from when the query was due", m.LatencyMS.Max)
		}
		var text bytes.Buffer
		if err := r.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text.String(), "could not keep its schedule") {
			t.Errorf("the text does not say that the generator was late:\n%s", &text)
		}
	})
}

func TestRunRefusesUnknownQueries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{properties: fakeProperties(), answer: after(time.Millisecond)}
		m := fakeModel(t, s, "m")
		for want, q := range map[string]workload.Query{
			`model "other"`:   {Model: "other", BatchSize: 1},
			"batch size 1000": {Model: "m", BatchSize: 1000},
		} {
			_, err := run(t.Context(), s, []*TargetModel{m},
				Config{Queries: slices.Values([]workload.Query{q})}, sleepUntil)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want one with %q", err, want)
			}
		}
	})
}

// TestTimer checks the real timer: never early, ended by its context, and of use
// after that.
func TestTimer(t *testing.T) {
	timer, err := newTimer()
	if err != nil {
		t.Fatal(err)
	}
	defer timer.close()
	for range 20 {
		due := time.Now().Add(300 * time.Microsecond)
		if err := timer.wait(t.Context(), due); err != nil {
			t.Fatal(err)
		}
		if early := time.Until(due); early > 0 {
			t.Errorf("woke %v early", early)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		if err := timer.wait(ctx, time.Now().Add(time.Hour)); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want that of the context", err)
		}
	}
}

func TestInputs(t *testing.T) {
	s := &fakeServer{
		properties: fakeProperties(),
		answer:     func(_ context.Context, req *oip.Request) error { return checkRequest(req) },
	}
	m := fakeModel(t, s, "m")
	pick := rand.New(rand.NewPCG(1, 0))
	distinct := map[int64]bool{}
	for b := 1; b <= 64; b++ {
		req, _ := m.makeRequest(workload.Query{BatchSize: b}, pick)
		if err := checkRequest(req); err != nil {
			t.Fatalf("batch size %d: %v", b, err)
		}
		ids, err := tensor.Values[int64](req.Inputs[1])
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			distinct[id] = true
		}
	}
	if len(distinct) < 300 {
		t.Errorf("%d distinct ids, want most of 1000", len(distinct))
	}
}

// checkRequest holds a request of the fake model against its signature.
func checkRequest(req *oip.Request) error {
	batch := req.Inputs[0].Shape[0]
	if want := []int64{batch, 3}; !slices.Equal(req.Inputs[0].Shape, want) ||
		len(req.Inputs[0].Data) != int(batch)*3*4 {
		return fmt.Errorf("input 0: shape %v and %d bytes, want %v", req.Inputs[0].Shape,
			len(req.Inputs[0].Data), want)
	}
	if want := []int64{batch, 2, 4}; !slices.Equal(req.Inputs[1].Shape, want) ||
		len(req.Inputs[1].Data) != int(batch)*8*8 {
		return fmt.Errorf("input 1: shape %v and %d bytes, want %v", req.Inputs[1].Shape,
			len(req.Inputs[1].Data), want)
	}
	ids, err := tensor.Values[int64](req.Inputs[1])
	if err != nil {
		return err
	}
	for i, id := range ids {
		if bound := []int64{7, 1000}[i%8/4]; id < 0 || id >= bound {
			return fmt.Errorf("id %d at %d, want it in [0, %d)", id, i, bound)
		}
	}
	return nil
}

func TestRandomQuery(t *testing.T) {
	s := &fakeServer{properties: fakeProperties()}
	metadata, err := s.ModelMetadata(t.Context(), "m", "")
	if err != nil {
		t.Fatal(err)
	}
	query, notes, err := RandomQuery(metadata, 64, 1, nil)
	if err != nil || len(notes) != 0 || checkRequest(query) != nil {
		t.Errorf("query %+v, notes %v, error %v", query, notes, err)
	}
	if _, _, err := RandomQuery(metadata, 65, 1, nil); err == nil ||
		!strings.Contains(err.Error(), "at most 64") {
		t.Errorf("batch size 65: error %v", err)
	}
}

// TestShapes: dimensions that a model leaves open are as its user says, and 1 otherwise; an
// optional input is left out unless its shape is given.
func TestShapes(t *testing.T) {
	type described = inference.ModelMetadataResponse_TensorMetadata
	metadata := &inference.ModelMetadataResponse{Name: "m", Inputs: []*described{
		{Name: "images", Datatype: "FP32", Shape: []int64{-1, 3, -1, -1}},
		{Name: "s", Datatype: "FP32"},
		{Name: "bias", Datatype: "FP32", Shape: []int64{-1, 2}},
	}, Properties: oip.Properties{Optional: []string{"bias"}}.Map()}
	shapesOf := func(shapes map[string][]int64) (all [][]int64, err error) {
		query, _, err := RandomQuery(metadata, 4, 1, shapes)
		if err != nil {
			return nil, err
		}
		for _, in := range query.Inputs {
			n, _ := tensor.Elements(in.Shape)
			if len(in.Data) != 4*n {
				t.Errorf("%s of shape %v has %d bytes", in.Name, in.Shape, len(in.Data))
			}
			all = append(all, in.Shape)
		}
		return all, nil
	}
	for _, tt := range []struct {
		given map[string][]int64
		want  string
	}{
		{nil, "[[4 3 1 1] []]"},
		{map[string][]int64{"images": {1, 3, 320, 640}}, "[[4 3 320 640] []]"},
		{map[string][]int64{"bias": {1, 2}}, "[[4 3 1 1] [] [4 2]]"},
		{map[string][]int64{"images": {1, 4, 320, 640}}, "[1 4 320 640] cannot be that"},
		{map[string][]int64{"images": {1, 3, 320}}, "[1 3 320] cannot be that"},
		{map[string][]int64{"images": {4, 3, 320, 640}}, "is the batch size"},
		{map[string][]int64{"image": {1, 3, 320, 640}}, `no input "image"`},
	} {
		got, err := shapesOf(tt.given)
		if text := fmt.Sprint(got); err == nil && text != tt.want ||
			err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: got %s, %v, want %s", tt.given, text, err, tt.want)
		}
	}
}

func TestNewModelErrors(t *testing.T) {
	ok := after(0)
	for want, c := range map[string]struct {
		server *fakeServer
		name   string
		o      ModelOptions
	}{
		"no such model": {&fakeServer{answer: ok}, "missing", ModelOptions{LargestBatchSize: 1}},
		"no QoS target": {&fakeServer{answer: ok}, "m", ModelOptions{LargestBatchSize: 1}},
		// The report would round it to 0 ms, of which the picture has no logarithm.
		"QoS target 499ns, want at least 1µs": {
			&fakeServer{answer: ok, properties: fakeProperties()}, "m",
			ModelOptions{LargestBatchSize: 1, QoSTarget: 499},
		},
		`"soon", want a number`: {
			&fakeServer{answer: ok, properties: map[string]string{"qos_target_ms": "soon"}}, "m",
			ModelOptions{LargestBatchSize: 1},
		},
		"first query to model": {
			&fakeServer{
				answer:     func(context.Context, *oip.Request) error { return client.ErrInvalid },
				properties: fakeProperties(),
			}, "m", ModelOptions{LargestBatchSize: 1},
		},
	} {
		if _, err := NewTargetModel(t.Context(), c.server, c.name, c.o); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	metadata := func(datatype string, shape ...int64) *inference.ModelMetadataResponse {
		return &inference.ModelMetadataResponse{
			Inputs: []*inference.ModelMetadataResponse_TensorMetadata{
				{Name: "x", Datatype: datatype, Shape: shape},
			},
		}
	}
	o := ModelOptions{LargestBatchSize: 10, QoSTarget: time.Second}
	for want, md := range map[string]*inference.ModelMetadataResponse{
		"no inputs":                {},
		`elements of type "COMPL"`: metadata("COMPL", -1, 1),
		"0 elements a row":         metadata("FP32", -1, 0),
		"too many elements":        metadata("FP32", -1, math.MaxInt64, math.MaxInt64),
		"take":                     metadata("FP32", -1, 100_000_000),
	} {
		if _, err := newModel(md, "m", o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	m, err := NewTargetModel(t.Context(), &fakeServer{answer: ok, properties: fakeProperties()},
		"m",
		ModelOptions{LargestBatchSize: 65})
	if err != nil || m.LargestBatchSize != 64 || len(m.Notes) != 1 ||
		!strings.Contains(m.Notes[0], "up to 64") {
		t.Errorf("a model that takes less: %+v, error %v", m, err)
	}
	m, err = newModel(metadata("FP16", -1, -1), "m", o)
	if err != nil || len(m.Notes) != 1 || !strings.Contains(m.Notes[0], "dimension 1 is dynamic") {
		t.Errorf("a dynamic dimension: notes %v, error %v", m.Notes, err)
	}
}

func TestReportJSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{properties: fakeProperties(), answer: after(time.Millisecond)}
		r := mustRun(t, s, Config{Queries: steady(t, 100, "m"), Duration: time.Second}, "m")
		data, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var object map[string]any
		if err := json.Unmarshal(data, &object); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{
			"started", "workload", "duration_s", "interrupted", "generator_delay_ms",
			"generator_on_schedule", "models",
		} {
			if _, ok := object[key]; !ok {
				t.Errorf("no key %q in %s", key, data)
			}
		}
		model := object["models"].([]any)[0].(map[string]any)
		for _, key := range []string{"model", "qos_target_ms", "qos_percentile", "queries",
			"answered", "late", "failed", "unfinished", "failures",
			"qos_satisfaction", "qos_met", "offered_qps", "achieved_qps", "items_per_second",
			"latency_ms"} {
			if _, ok := model[key]; !ok {
				t.Errorf("no key %q in a model of %s", key, data)
			}
		}
	})
}

// TestLatenciesOfFailed: everywhere a failed query counts as infinitely late, and JSON says null.
func TestLatenciesOfFailed(t *testing.T) {
	h := newHistogram()
	for i := range 990 {
		recordLatency(h, time.Duration(i+1)*time.Millisecond)
	}
	for _, tt := range []struct {
		failed   int64
		p99, p50 float64
		json     string
	}{
		{0, 981, 495, `"p99":98`},
		{5, 985, 497, `"p99":98`},
		{10, 990, 500, `"p99":990.`}, // just one in a hundred failed
		{11, math.Inf(1), 500, `"p99":null,"p999":null,"max":990.`},
		{2000, math.Inf(1), math.Inf(1), `"p50":null`},
	} {
		l := summarizeLatencies(h, tt.failed)
		if !(math.Abs(l.P99-tt.p99) <= 2 || l.P99 == tt.p99) ||
			!(math.Abs(l.P50-tt.p50) <= 2 || l.P50 == tt.p50) {
			t.Errorf("%d failed: p50 %v, p99 %v, want %v and %v", tt.failed, l.P50, l.P99, tt.p50,
				tt.p99)
		}
		data, err := json.Marshal(l)
		if err != nil || !strings.Contains(string(data), tt.json) {
			t.Errorf("%d failed: JSON %s, %v, want %s in it", tt.failed, data, err, tt.json)
		}
		var back Latencies
		if err := json.Unmarshal(data, &back); err != nil || back != l {
			t.Errorf("%s becomes %+v, %v", data, back, err)
		}
		p := Progress{P99: []ModelLatency{{"m", quantileOfAll(h, tt.failed, 99)}}}
		if strings.Contains(p.String(), "m p99 ∞") != math.IsInf(tt.p99, 1) {
			t.Errorf("%d failed: progress %q", tt.failed, p)
		}
	}
	if l := summarizeLatencies(newHistogram(), 1); !math.IsInf(l.P50, 1) || !math.IsInf(l.Max, 1) {
		t.Errorf("all failed: %+v", l)
	}
	if l := summarizeLatencies(newHistogram(), 0); l != (Latencies{}) {
		t.Errorf("no queries: %+v", l)
	}
}
