package runtime_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/queue/merge"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// A floor is an estimator of runs that take 10 ms and a tenth for each item. It notes what it is
// told.
type floor struct {
	mu   sync.Mutex
	seen []int // batch sizes
}

func (*floor) Estimate(_ names.ModelKey, batch int) time.Duration {
	return 10*ms + time.Duration(batch)*ms/10
}

func (f *floor) High(p names.ModelKey, batch int) time.Duration { return f.Estimate(p, batch) }

func (f *floor) Observe(_ names.ModelKey, batch int, _ time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = append(f.seen, batch)
}

// An observer is a model that notes the batch sizes of its runs and may replace them.
type observer struct {
	runtime.Model
	mu      sync.Mutex
	batches []int64
	replace func(ctx context.Context, batch int64) error // nil, or an error in place of the run
}

func (o *observer) Run(ctx context.Context, inputs []tensor.Tensor) (*runtime.Result, error) {
	o.mu.Lock()
	o.batches = append(o.batches, inputs[0].Shape[0])
	o.mu.Unlock()
	if o.replace != nil {
		if err := o.replace(ctx, inputs[0].Shape[0]); err != nil {
			return nil, err
		}
	}
	return o.Model.Run(ctx, inputs)
}

// A merging is lanes with an emulated model whose runs take as long as floor says, in virtual time.
type merging struct {
	t     *testing.T
	lanes *runtime.Lanes
	known *floor
	model *observer
	wg    sync.WaitGroup
	mu    sync.Mutex
	done  []string
	at    time.Time
}

func onMerging(t *testing.T, play func(m *merging)) {
	synctest.Test(t, func(t *testing.T) {
		known := &floor{}
		x := runtime.NewEmulated(func(_ *models.Version, batch int) time.Duration {
			return known.Estimate("", batch)
		})
		v := &models.Version{Model: "m", Number: 1,
			Inputs: []models.TensorSpec{
				{Name: "x", DataType: tensor.Uint8, Shape: []int64{models.Dynamic, models.Dynamic}},
			},
			Outputs: []models.TensorSpec{
				{Name: "y", DataType: tensor.FP32, Shape: []int64{models.Dynamic, 2}},
			}}
		m := &merging{
			t: t, known: known, model: &observer{Model: load(t, x, v)}, at: time.Now(),
			lanes: runtime.NewLanes(runtime.LanesConfig{Estimator: known}),
		}
		play(m)
		m.wg.Wait()
		if s := m.lanes.Stats(); s.Running != 0 || s.Waiting != 0 || s.Remaining != 0 {
			t.Errorf("lanes are not idle at the end: %+v", s)
		}
		if err := m.lanes.Drain(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// send starts a query of so many rows and returns when it runs or waits.
func (m *merging) send(ctx context.Context, name string, rows int, change func(*runtime.Query)) {
	q := runtime.Query{
		Model: m.model, BatchSize: rows, Profile: "m/1", QoSTarget: time.Second,
		Merge: names.MergeDeadline, LargestBatch: 100,
		Inputs: []tensor.Tensor{{
			Name: "x", DataType: tensor.Uint8, Shape: []int64{int64(rows), 1},
			Data: make([]byte, rows),
		}},
	}
	if change != nil {
		change(&q)
	}
	m.wg.Go(func() {
		defer func() {
			if p := recover(); p != nil {
				m.note("%s: panic", name)
			}
		}()
		r, err := m.lanes.Do(ctx, q)
		if err != nil {
			m.note("%s: %v", name, err)
			return
		}
		joined := ""
		if r.Joined {
			joined = ", joined"
		}
		if got := r.Outputs[0]; !slices.Equal(got.Shape, []int64{int64(q.BatchSize), 2}) ||
			len(got.Data) != 8*q.BatchSize {
			m.t.Errorf("%s: output of shape %v with %d bytes", name, got.Shape, len(got.Data))
		}
		m.note("%s: %d of %d items%s, waited %v", name, r.Queries, r.Items, joined, r.Queue)
		r.Release()
	})
	synctest.Wait()
}

func (m *merging) note(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done = append(m.done, fmt.Sprintf(format, args...)+
		fmt.Sprintf(" at %v", time.Since(m.at).Round(time.Microsecond)))
}

// want compares the outcomes, in order of name, and the batch sizes of the runs.
func (m *merging) want(batches []int64, outcomes ...string) {
	m.t.Helper()
	m.wg.Wait()
	slices.Sort(m.done)
	if !slices.Equal(m.done, outcomes) {
		m.t.Errorf("got  %q\nwant %q", m.done, outcomes)
	}
	if !slices.Equal(m.model.batches, batches) {
		m.t.Errorf("runs of %v items, want %v", m.model.batches, batches)
	}
}

var background = context.Background()

func TestMerge(t *testing.T) {
	onMerging(t, func(m *merging) {
		m.send(background, "a", 1, nil)
		m.send(background, "b", 1, nil)
		m.send(background, "c", 2, nil)
		if got, want := m.lanes.RemainingByLane()[0], 10100*time.Microsecond+
			10300*time.Microsecond; got !=
			want {
			t.Errorf("the lane is busy for %v, want %v: the two that wait run as one", got, want)
		}
		m.send(background, "other shape", 2, func(q *runtime.Query) {
			q.BatchSize, q.Inputs[0].Shape = 1, []int64{1, 2}
		})
		m.wg.Wait()
		if got := m.lanes.Stats().Busy; got != (101+103+101)*ms/10 {
			t.Errorf("lanes were busy for %v", got)
		}
		if !slices.Equal(m.known.seen, []int{1, 3, 1}) {
			t.Errorf("the estimator saw runs of %v items", m.known.seen)
		}
	})
}

// TestCollect: an idle lane waits for the queries that a leader sent to run together.
func TestCollect(t *testing.T) {
	group := func(number uint64, queries int) func(*runtime.Query) {
		return func(q *runtime.Query) {
			q.Group = merge.GroupID{Number: number, Queries: queries}
		}
	}
	onMerging(t, func(m *merging) {
		m.send(background, "a", 1, group(5, 3))
		time.Sleep(ms / 2)
		m.send(background, "b", 1, group(5, 3))
		m.send(background, "x", 1, func(q *runtime.Query) { q.Merge = names.MergeNone })
		if s := m.lanes.Stats(); s.Running != 0 || s.Waiting != 3 {
			t.Errorf("of a group of three two are there, and another query: %d run, %d wait",
				s.Running, s.Waiting)
		}
		time.Sleep(ms / 2)
		m.send(background, "c", 2, group(5, 3))
		m.wg.Wait()
		m.want([]int64{4, 1},
			"a: 3 of 4 items, waited 1ms at 11.4ms",
			"b: 3 of 4 items, joined, waited 500µs at 11.4ms",
			"c: 3 of 4 items, joined, waited 0s at 11.4ms",
			"x: 1 of 1 items, waited 10.9ms at 21.5ms",
		)
	})
	onMerging(t, func(m *merging) { // one is cancelled, one comes too late
		ctx, cancel := context.WithCancel(background)
		m.send(background, "a", 1, group(6, 3))
		m.send(ctx, "b", 1, group(6, 3))
		time.Sleep(ms)
		cancel()
		time.Sleep(3 * ms)
		m.send(background, "c", 1, group(6, 3))
		m.want([]int64{1, 1},
			"a: 1 of 1 items, waited 2ms at 12.1ms",
			"b: context canceled at 1ms",
			"c: 1 of 1 items, waited 8.1ms at 22.2ms",
		)
	})
}

func TestMergeOutcomes(t *testing.T) {
	ending, end := context.WithCancel(background)
	defer end()
	rejects := func(d time.Duration) func(q *runtime.Query) {
		return func(q *runtime.Query) { q.QoSTarget, q.RejectLate = d, true }
	}
	for _, tt := range []struct {
		name    string
		play    func(m *merging)
		batches []int64
		want    []string
	}{
		{"as one", func(m *merging) {
			m.send(background, "a", 1, nil)
			m.send(background, "b", 1, nil)
			time.Sleep(4 * ms)
			m.send(background, "c", 2, nil)
		}, []int64{1, 3}, []string{
			"a: 1 of 1 items, waited 0s at 10.1ms",
			"b: 2 of 3 items, waited 10.1ms at 20.4ms",
			"c: 2 of 3 items, joined, waited 6.1ms at 20.4ms",
		}},
		{"what may not be merged", func(m *merging) {
			m.send(background, "a", 1, nil)
			m.send(background, "b", 1, func(q *runtime.Query) { q.Merge = names.MergeNone })
			m.send(background, "c", 1, func(q *runtime.Query) { q.Profile = "m/2" })
			m.send(background, "d", 1, func(q *runtime.Query) { q.Background = true })
			m.send(background, "e", 99, nil)
			m.send(background, "f", 2, nil)
		}, []int64{1, 1, 1, 99, 2, 1}, []string{
			"a: 1 of 1 items, waited 0s at 10.1ms", "b: 1 of 1 items, waited 10.1ms at 20.2ms",
			"c: 1 of 1 items, waited 20.2ms at 30.3ms", "d: 1 of 1 items, waited 60.4ms at 70.5ms",
			"e: 1 of 99 items, waited 30.3ms at 50.2ms", "f: 1 of 2 items, waited 50.2ms at 60.4ms",
		}},
		{"members are cancelled", func(m *merging) {
			m.send(background, "a", 1, nil)
			m.send(ending, "b", 1, nil)
			m.send(background, "c", 1, nil)
			m.send(ending, "d", 1, nil)
			time.Sleep(15 * ms)
			end()
		}, []int64{1, 3}, []string{
			"a: 1 of 1 items, waited 0s at 10.1ms", "b: context canceled at 20.4ms",
			"c: 3 of 3 items, joined, waited 10.1ms at 20.4ms", "d: context canceled at 15ms",
		}},
		{"all members are cancelled", func(m *merging) {
			ctx, cancel := context.WithCancel(background)
			m.send(background, "a", 1, nil)
			m.send(ctx, "b", 1, nil)
			m.send(ctx, "c", 1, nil)
			time.Sleep(15 * ms)
			m.send(background, "d", 1, nil)
			cancel()
		}, []int64{1, 2, 1}, []string{
			"a: 1 of 1 items, waited 0s at 10.1ms", "b: context canceled at 15ms",
			"c: context canceled at 15ms", "d: 1 of 1 items, waited 0s at 25.1ms",
		}},
		{"a deadline", func(m *merging) {
			m.send(background, "a", 1, nil)
			m.send(background, "b", 1, func(q *runtime.Query) {
				q.Deadline = time.Now().Add(12 * ms)
			})
			m.send(background, "c", 1, func(q *runtime.Query) {
				q.Deadline = time.Now().Add(14 * ms)
			})
			m.send(background, "d", 1, nil)
		}, []int64{1, 3}, []string{
			"a: 1 of 1 items, waited 0s at 10.1ms",
			"b: runtime: deadline passed: context deadline exceeded at 20.4ms",
			"c: runtime: deadline passed: context deadline exceeded at 14ms",
			"d: 3 of 3 items, joined, waited 10.1ms at 20.4ms",
		}},
		{"the run fails", func(m *merging) {
			m.model.replace = func(_ context.Context, batch int64) error {
				if batch > 2 {
					return errors.New("too large")
				}
				return nil
			}
			m.send(background, "a", 1, nil)
			m.send(background, "b", 1, nil)
			m.send(background, "c", 2, nil)
			m.send(background, "d", 1, nil)
		}, []int64{1, 4, 1, 2, 1}, []string{
			"a: 1 of 1 items, waited 0s at 10.1ms", "b: 1 of 1 items, waited 10.1ms at 20.2ms",
			"c: 1 of 2 items, waited 20.2ms at 30.4ms", "d: 1 of 1 items, waited 30.4ms at 40.5ms",
		}},
		{"the run fails, and some are late by then", func(m *merging) {
			m.model.replace = func(_ context.Context, batch int64) error {
				if batch > 1 {
					time.Sleep(5 * ms)
					return errors.New("too large")
				}
				return nil
			}
			m.send(background, "a", 1, nil)
			m.send(background, "b", 1, rejects(23*ms))
			m.send(background, "c", 1, rejects(24*ms))
			m.send(background, "d", 1, rejects(60*ms))
		}, []int64{1, 3, 1}, []string{
			"a: 1 of 1 items, waited 0s at 10.1ms",
			"b: runtime: query can no longer meet its QoS target at 15.1ms",
			"c: runtime: query can no longer meet its QoS target at 15.1ms",
			"d: 1 of 1 items, waited 15.1ms at 25.2ms",
		}},
		{"the run panics", func(m *merging) {
			m.model.replace = func(_ context.Context, batch int64) error {
				if batch > 1 {
					panic("boom")
				}
				return nil
			}
			m.send(background, "a", 1, nil)
			m.send(background, "b", 1, nil)
			m.send(background, "c", 1, nil)
		}, []int64{1, 2, 1}, []string{
			"a: 1 of 1 items, waited 0s at 10.1ms", "b: panic at 10.1ms",
			"c: 1 of 1 items, waited 10.1ms at 20.2ms",
		}},
		{"late ones are rejected before they run, not after", func(m *merging) {
			m.send(background, "a", 1, nil)
			m.send(background, "b", 1, rejects(19*ms))
			m.send(background, "c", 1, rejects(21*ms)) // its latest start is 10.9 ms
			m.send(background, "d", 1, rejects(22*ms))
		}, []int64{1, 2}, []string{
			"a: 1 of 1 items, waited 0s at 10.1ms",
			"b: runtime: query can no longer meet its QoS target at 8.9ms",
			"c: 2 of 2 items, waited 10.1ms at 20.3ms",
			"d: 2 of 2 items, joined, waited 10.1ms at 20.3ms",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onMerging(t, func(m *merging) {
				tt.play(m)
				m.want(tt.batches, tt.want...)
			})
		})
	}
}

// TestMergedRows: whatever is merged, awaited, cancelled or refused by ONNX Runtime, each query
// gets the rows for its own inputs, in order, and only bad queries fail. Callers use their inputs
// for something else as soon as Do returns.
func TestMergedRows(t *testing.T) {
	x := runtimetest.Open(t)
	m := &observer{Model: load(t, x, writeEmbedding(t))}
	m.replace = func(context.Context, int64) error { // the model itself takes some microseconds
		time.Sleep(200 * time.Microsecond)
		return nil
	}
	lanes := runtime.NewLanes(runtime.LanesConfig{Lanes: 2, Estimator: &floor{}})
	var queries, merged, bad, cancelled, grouped atomic.Int64
	one := func(r *rand.Rand) {
		dense, ids, _ := embeddingInputs(100)
		from := r.IntN(90)
		rows := 1 + r.IntN(9)
		dense, ids = slices.Clone(dense[4*from:4*(from+rows)]), slices.Clone(ids[2*from:2*(from+
			rows)])
		isBad := r.IntN(40) == 0
		want := embeddingScores(dense, ids)
		if isBad {
			ids[r.IntN(len(ids))] = 10
		}
		inputs := []tensor.Tensor{
			must(tensor.Of("dense", dense, int64(rows), 4)),
			must(tensor.Of("ids", ids, int64(rows), 2)),
		}
		ctx, cancel := context.WithCancel(background)
		defer cancel()
		switch r.IntN(10) {
		case 0:
			cancel()
		case 1, 2:
			time.AfterFunc(time.Duration(r.IntN(2000))*time.Microsecond, cancel)
		}
		q := runtime.Query{
			Model: m, Inputs: inputs, BatchSize: rows, Profile: "m/1", QoSTarget: time.Minute,
			Merge: names.MergeDeadline, LargestBatch: 50,
		}
		if r.IntN(10) == 0 {
			q.Merge = names.MergeNone
		}
		if r.IntN(2) == 0 { // three come of a group of two to five
			n := grouped.Add(1)
			q.Group = merge.GroupID{Number: uint64(1 + n/3), Queries: 2 + int(n/3%4)}
		}
		queries.Add(1)
		result, err := lanes.Do(ctx, q)
		clear(dense) // the query's memory is its caller's again
		for i := range ids {
			ids[i] = 1 << 40
		}
		switch {
		case err != nil && ctx.Err() != nil:
			cancelled.Add(1)
		case err != nil && isBad && strings.Contains(err.Error(), "index 10 "):
			bad.Add(1)
		case err != nil || isBad:
			t.Errorf("bad %v, got error %v", isBad, err)
		default:
			if result.Queries > 1 {
				merged.Add(1)
			}
			got := must(tensor.Values[float32](result.Outputs[0]))
			if len(got) != len(want) {
				t.Errorf("%d values, want %d", len(got), len(want))
			}
			for i := range min(len(got), len(want)) {
				if math.Abs(float64(got[i]-want[i])) > 1e-3 {
					t.Errorf("value %d of %d is %v, want %v", i, len(want), got[i], want[i])
					break
				}
			}
			result.Release()
		}
	}
	var wg sync.WaitGroup
	for g := range 32 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(16, uint64(g)))
			for range 60 {
				one(r)
			}
		})
	}
	wg.Wait()
	if s := lanes.Stats(); s.Waiting+s.Running > 0 || s.Remaining > 0 {
		t.Errorf("in the end %+v", s)
	}
	if err := lanes.Drain(background); err != nil {
		t.Error(err)
	}
	t.Logf("%d queries in %d runs, %d of them merged, %d bad, %d cancelled", queries.Load(),
		len(m.batches), merged.Load(), bad.Load(), cancelled.Load())
	if merged.Load() < 100 || bad.Load() == 0 || cancelled.Load() == 0 ||
		int64(len(m.batches)) >= queries.Load() {
		t.Error("want queries of each sort, and fewer runs than queries")
	}
}

// TestMergedTypes: outputs of all types and of shapes that only ONNX Runtime knows are divided too.
func TestMergedTypes(t *testing.T) {
	x := runtimetest.Open(t)
	for name, m := range map[string]*onnx.Model{
		"fixed": identity(false), "dynamic": identity(true),
	} {
		v := write(t, m, nil)
		v.Config.RowsIndependent = true
		gate := make(chan struct{})
		o := &observer{Model: load(t, x, v)}
		o.replace = func(context.Context, int64) error { <-gate; return nil }
		lanes := runtime.NewLanes(runtime.LanesConfig{Estimator: &floor{}})
		var wg sync.WaitGroup
		for i := range 4 {
			inputs := identityInputs(m, 1+i, 100*i)
			q := runtime.Query{
				Model: o, Inputs: inputs, BatchSize: 1 + i, Profile: "m/1",
				Merge: names.MergeDeadline, LargestBatch: 100,
			}
			wg.Go(func() {
				r, err := lanes.Do(background, q)
				if err != nil {
					t.Error(err)
					return
				}
				for k, out := range r.Outputs {
					if in := inputs[k]; !slices.Equal(out.Shape, in.Shape) ||
						!bytes.Equal(out.Data, in.Data) {
						t.Errorf("query %d, %s: %v, want %v", i, out.DataType, out, in)
					}
				}
				r.Release()
			})
			for s := lanes.Stats(); s.Running+s.Waiting <= i; s = lanes.Stats() {
				time.Sleep(time.Millisecond) // until it runs or waits
			}
		}
		close(gate)
		wg.Wait()
		if want := []int64{1, 9}; !slices.Equal(o.batches, want) {
			t.Errorf("%s: runs of %v items, want %v", name, o.batches, want)
		}
	}
}

// TestMergeOtherRows: a model whose output has not a row for each item is not merged twice.
func TestMergeOtherRows(t *testing.T) {
	x := runtimetest.Open(t)
	v := write(t, &onnx.Model{
		Inputs: []onnx.ValueDescription{{Name: "x", DataType: tensor.FP32,
			Shape: []int64{onnx.Dynamic, 2}}},
		Outputs: []onnx.ValueDescription{
			{Name: "y", DataType: tensor.FP32, Shape: []int64{onnx.Dynamic, 2}},
		},
		Nodes: []onnx.Node{{
			Op: "Concat", Inputs: []string{"x", "x"}, Outputs: []string{"y"},
			Attributes: []onnx.Attribute{{Name: "axis", Value: int64(0)}},
		}},
	}, nil)
	gate := make(chan struct{})
	o := &observer{Model: load(t, x, v)}
	o.replace = func(context.Context, int64) error { <-gate; return nil }
	lanes := runtime.NewLanes(runtime.LanesConfig{Estimator: &floor{}})
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			values := []float32{float32(i), 5}
			r, err := lanes.Do(background, runtime.Query{
				Model: o, BatchSize: 1, Profile: "m/1", Merge: names.MergeDeadline, LargestBatch: 9,
				Inputs: []tensor.Tensor{must(tensor.Of("x", values, 1, 2))},
			})
			if err != nil {
				t.Error(err)
				return
			}
			got := must(tensor.Values[float32](r.Outputs[0]))
			if !slices.Equal(got, append(slices.Clone(values), values...)) {
				t.Errorf("got %v, want %v twice", got, values)
			}
			r.Release()
		})
		for s := lanes.Stats(); s.Running+s.Waiting <= i; s = lanes.Stats() {
			time.Sleep(time.Millisecond)
		}
	}
	close(gate)
	wg.Wait()
	if want := []int64{1, 2, 1, 1}; !slices.Equal(o.batches, want) {
		t.Errorf("runs of %v items, want %v", o.batches, want)
	}
}

// TestMergeAllocations: a query that is not merged allocates no more because it could be.
func TestMergeAllocations(t *testing.T) {
	allocs := func(policy names.MergePolicy) float64 {
		lanes := runtime.NewLanes(runtime.LanesConfig{Estimator: &floor{}})
		q := runtime.Query{
			Model: &instant{}, BatchSize: 1, Profile: "m/1", Merge: policy, LargestBatch: 9,
			Inputs: []tensor.Tensor{must(tensor.Of("x", []float32{1}, 1, 1))},
		}
		return testing.AllocsPerRun(200, func() {
			r, err := lanes.Do(background, q)
			if err != nil {
				t.Fatal(err)
			}
			r.Release()
		})
	}
	if none, may := allocs(names.MergeNone), allocs(names.MergeDeadline); may > none {
		t.Errorf("%v allocations of a query that may be merged, %v of one that may not", may, none)
	}
}

// TestMergeFailsBesideIdleLane: when a run of several queries fails, an idle lane takes those that
// wait again; they do not wait for the lane that the run was on.
func TestMergeFailsBesideIdleLane(t *testing.T) {
	onMerging(t, func(m *merging) {
		m.lanes = runtime.NewLanes(runtime.LanesConfig{Lanes: 2, Estimator: m.known})
		m.model.replace = func(_ context.Context, batch int64) error {
			if batch <= 2 {
				return nil
			}
			time.Sleep(5 * ms) // until the other lane is idle
			return errors.New("too large")
		}
		m.send(background, "a", 1, nil)
		m.send(background, "b", 1, nil)
		m.send(background, "c", 1, nil)
		m.send(background, "d", 2, nil)
		m.wg.Wait()
		slices.Sort(m.model.batches) // the last two begin at the same time
		m.want([]int64{1, 1, 1, 2, 3},
			"a: 1 of 1 items, waited 0s at 10.1ms", "b: 1 of 1 items, waited 0s at 10.1ms",
			"c: 1 of 1 items, waited 10.1ms at 25.2ms", "d: 1 of 2 items, waited 15.1ms at 25.3ms",
		)
	})
}
