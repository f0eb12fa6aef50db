package runtime_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	goruntime "runtime"
	"slices"
	"sync"
	"testing"
	"time"

	ort "github.com/yalue/onnxruntime_go"
	"golang.org/x/sys/unix"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// generate puts a model of the zoo into a fresh repository.
func generate(b testing.TB, name string, scale zoo.Scale) *models.Version {
	b.Helper()
	dir := b.TempDir()
	if _, err := zoo.Generate(context.Background(), dir, name,
		zoo.Options{Scale: scale}); err != nil {
		b.Fatal(err)
	}
	v, err := models.ReadVersion(dir, name, 1)
	if err != nil {
		b.Fatal(err)
	}
	return v
}

// randomInputs are inputs with ids within their bounds.
func randomInputs(v *models.Version, batch int) []tensor.Tensor {
	return seededInputs(v, batch, 7)
}

func seededInputs(v *models.Version, batch int, seed uint64) []tensor.Tensor {
	r := rand.New(rand.NewPCG(seed, 7))
	var inputs []tensor.Tensor
	for _, p := range v.Inputs {
		shape := append([]int64{int64(batch)}, p.Shape[1:]...)
		n := must(tensor.Elements(shape))
		switch p.DataType {
		case tensor.FP32:
			values := make([]float32, n)
			for i := range values {
				values[i] = r.Float32()
			}
			inputs = append(inputs, must(tensor.Of(p.Name, values, shape...)))
		case tensor.Int64:
			values := make([]int64, n)
			for i := range values {
				values[i] = r.Int64N(slices.Min(p.IDBounds))
			}
			inputs = append(inputs, must(tensor.Of(p.Name, values, shape...)))
		default:
			panic(p.DataType)
		}
	}
	return inputs
}

// bare is the fastest way to run a model with the binding alone: a session
// set up as ours, tensors made once.
func bare(b *testing.B, x *runtime.ONNX, v *models.Version, inputs []tensor.Tensor) func() {
	check := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	opts, err := ort.NewSessionOptions()
	check(err)
	defer opts.Destroy()
	check(opts.SetIntraOpNumThreads(x.Info().Threads))
	for key, value := range map[string]string{
		"allow_spinning": "1", "spin_duration_us": "200", "spin_backoff_max": "8",
	} {
		check(opts.AddSessionConfigEntry("session.intra_op."+key, value))
	}
	var inNames, outNames []string
	var in, out []ort.Value
	for _, t := range inputs {
		inNames = append(inNames, t.Name)
		if t.DataType == tensor.FP32 {
			v, err := ort.NewTensor(t.Shape, must(tensor.Values[float32](t)))
			check(err)
			in = append(in, v)
		} else {
			v, err := ort.NewTensor(t.Shape, must(tensor.Values[int64](t)))
			check(err)
			in = append(in, v)
		}
	}
	for _, p := range v.Outputs {
		outNames = append(outNames, p.Name)
		shape := append([]int64{inputs[0].Shape[0]}, p.Shape[1:]...)
		if p.DataType != tensor.FP32 || slices.Contains(shape, -1) {
			// A classifier's labels or scores of an undeclared width: ONNX Runtime makes the tensor.
			out = append(out, nil)
			continue
		}
		v, err := ort.NewEmptyTensor[float32](shape)
		check(err)
		out = append(out, v)
	}
	var pinner goruntime.Pinner
	for _, t := range inputs {
		pinner.Pin(&t.Data[0])
	}
	s, err := ort.NewDynamicAdvancedSession(v.Path, inNames, outNames, opts)
	check(err)
	b.Cleanup(func() {
		s.Destroy()
		for _, v := range slices.Concat(in, out) {
			if v != nil {
				v.Destroy()
			}
		}
		pinner.Unpin()
	})
	run := make([]ort.Value, len(out))
	return func() {
		copy(run, out)
		check(s.Run(in, run))
		for i := range run {
			if out[i] == nil {
				run[i].Destroy()
			}
		}
	}
}

// timings of the same thing done again and again, in microseconds: by the
// clock, and of the process's CPU time, whose lowest decile a busy machine
// hardly disturbs.
type timings struct{ wall, cpu []float64 }

func (t *timings) add(f func()) {
	used := func() time.Duration {
		var r unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
			panic(err)
		}
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	cpu, start := used(), time.Now()
	f()
	t.wall = append(t.wall, float64(time.Since(start))/1e3)
	t.cpu = append(t.cpu, float64(used()-cpu)/1e3)
}

func quantile(values []float64, q float64) float64 {
	slices.Sort(values)
	return values[int(q*float64(len(values)))]
}

// BenchmarkExecutor compares ONNX Runtime alone with a query through lanes and
// executor: each iteration times one after the other, and the medians of
// the time and the lowest deciles of the CPU time are reported. Run it with -benchtime=500x or so.
// It takes the models of the repository MUSTER_BENCH_MODELS too, if that is set.
func BenchmarkExecutor(b *testing.B) {
	x := runtimetest.Open(b)
	type test struct {
		repository, model string
		batch             int
	}
	tests := []test{{"", "ncf", 8}, {"", "wnd", 256}}
	if repository := os.Getenv("MUSTER_BENCH_MODELS"); repository != "" {
		entries, err := os.ReadDir(repository)
		if err != nil {
			b.Fatal(err)
		}
		for _, e := range entries {
			for _, batch := range []int{1, 64, 1000} {
				tests = append(tests, test{repository, e.Name(), batch})
			}
		}
	}
	for _, test := range tests {
		b.Run(fmt.Sprintf("%s-%d", test.model, test.batch), func(b *testing.B) {
			var v *models.Version
			if test.repository == "" {
				v = generate(b, test.model, zoo.Small)
			} else {
				v = must(models.ReadVersion(test.repository, test.model, 1))
			}
			inputs := randomInputs(v, test.batch)
			alone := bare(b, x, v, inputs)
			m := load(b, x, v)
			lanes := runtime.NewLanes(runtime.LanesConfig{})
			ours := func() {
				// as a server's would be
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				r, err := lanes.Do(ctx,
					runtime.Query{Model: m, Inputs: inputs, BatchSize: test.batch, Profile: "p",
						QoSTarget: v.Config.QoSTarget, Deadline: time.Now().Add(v.Config.Deadline)})
				if err != nil {
					b.Fatal(err)
				}
				r.Release()
			}
			for range 50 {
				alone()
				ours()
			}
			var base, full timings
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				if i%2 == 0 {
					base.add(alone)
					full.add(ours)
				} else {
					full.add(ours)
					base.add(alone)
				}
			}
			before, after := quantile(base.wall, 0.5), quantile(full.wall, 0.5)
			b.ReportMetric(before, "bare-us")
			b.ReportMetric(after, "executor-us")
			b.ReportMetric(after-before, "added-us")
			b.ReportMetric(100*(after/before-1), "added-%")
			b.ReportMetric(quantile(full.wall, 0.1)/quantile(base.wall, 0.1), "x-lowest-decile")
			if before < 1000 {
				return // too short for the CPU time's resolution
			}
			b.ReportMetric(100*(quantile(full.cpu, 0.1)/quantile(base.cpu, 0.1)-1), "added-cpu-%")
		})
	}
}

// BenchmarkLanes is what lanes cost a query: with an idle lane, and when it
// has to wait for one.
func BenchmarkLanes(b *testing.B) {
	m := load(b, runtime.NewEmulated(func(*models.Version, int) time.Duration { return 0 }),
		&models.Version{})
	for _, waiting := range []bool{false, true} {
		b.Run(map[bool]string{false: "idle", true: "waiting"}[waiting], func(b *testing.B) {
			lanes := runtime.NewLanes(runtime.LanesConfig{})
			do := func() {
				if _, err := lanes.Do(context.Background(),
					runtime.Query{Model: instant{m}, Profile: "p", BatchSize: 1,
						QoSTarget: time.Second,
						Deadline:  time.Now().Add(time.Minute)}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			if !waiting {
				for b.Loop() {
					do()
				}
				return
			}
			b.SetParallelism(16)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					do()
				}
			})
		})
	}
}

// BenchmarkMerge runs WND with one item a query on one lane, 64 queries at a time, in turns merged and
// one by one, and compares their CPU time, which other work on the machine hardly changes.
func BenchmarkMerge(b *testing.B) {
	x := runtimetest.Open(b)
	v := generate(b, "wnd", zoo.Small)
	m := load(b, x, v)
	inputs := randomInputs(v, 1)
	lanes := map[names.MergePolicy]*runtime.Lanes{}
	for _, policy := range []names.MergePolicy{names.MergeNone, names.MergeDeadline} {
		lanes[policy] = runtime.NewLanes(runtime.LanesConfig{})
	}
	const queries = 64 * 32
	round := func(policy names.MergePolicy) {
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				for range queries / 64 {
					r, err := lanes[policy].Do(context.Background(), runtime.Query{
						Model: m, Inputs: inputs, BatchSize: 1, Profile: "wnd/1",
						QoSTarget: time.Second, Merge: policy, LargestBatch: 1000,
					})
					if err != nil {
						b.Error(err)
						return
					}
					r.Release()
				}
			})
		}
		wg.Wait()
	}
	for range 20 { // the lane learns the latencies
		for _, batch := range []int{1, 64} {
			r, err := lanes[names.MergeDeadline].Do(context.Background(), runtime.Query{
				Model: m, Inputs: randomInputs(v, batch), BatchSize: batch, Profile: "wnd/1",
			})
			if err != nil {
				b.Fatal(err)
			}
			r.Release()
		}
	}
	var one, merged timings
	for b.Loop() {
		one.add(func() { round(names.MergeNone) })
		merged.add(func() { round(names.MergeDeadline) })
	}
	b.ReportMetric(quantile(one.cpu, 0.1)/queries, "us-cpu-alone")
	b.ReportMetric(quantile(merged.cpu, 0.1)/queries, "us-cpu-merged")
	b.ReportMetric(quantile(one.wall, 0.5)/quantile(merged.wall, 0.5), "x-throughput")
}

type instant struct{ runtime.Model }

func (instant) Run(context.Context, []tensor.Tensor) (*runtime.Result, error) {
	return &runtime.Result{Execution: time.Microsecond}, nil
}

// BenchmarkLoading compares the latency of NCF at half load, with the production trace's
// batch sizes, in seconds with nothing else going on and seconds in which RM2
// is loaded and warmed again and again.
func BenchmarkLoading(b *testing.B) {
	ctx := context.Background()
	x := runtimetest.Open(b)
	ncf, rm2 := generate(b, "ncf", zoo.Default), generate(b, "rm2", zoo.Default)
	m := load(b, x, ncf)
	lanes := runtime.NewLanes(runtime.LanesConfig{})
	if err := runtime.Warm(ctx, lanes, m, ncf); err != nil {
		b.Fatal(err)
	}
	inputs := randomInputs(ncf, ncf.Config.LargestBatchSize)[0]
	query := func(batch int) time.Duration {
		arrival := time.Now()
		in := inputs
		in.Shape = []int64{int64(batch), in.Shape[1]}
		in.Data = in.Data[:8*int(in.Shape[0]*in.Shape[1])]
		r, err := lanes.Do(ctx,
			runtime.Query{Model: m, Inputs: []tensor.Tensor{in}, BatchSize: batch, Profile: "ncf",
				Arrival: arrival, QoSTarget: ncf.Config.QoSTarget})
		if err != nil {
			b.Error(err)
			return 0
		}
		r.Release()
		return time.Since(arrival)
	}
	random := rand.New(rand.NewPCG(1, 1))
	sizes := workload.Trace()
	// Half of what one query after the other reaches.
	start := time.Now()
	for range 500 {
		query(sizes.Draw(random))
	}
	gap := 2 * time.Since(start) / 500

	// second sends queries for a second and returns their 99th percentile in ms.
	second := func() float64 {
		var mu sync.Mutex
		var wg sync.WaitGroup
		var latencies []float64
		next := time.Now()
		for end := next.Add(time.Second); next.Before(end); {
			next = next.Add(time.Duration(random.ExpFloat64() * float64(gap)))
			time.Sleep(time.Until(next))
			batch := sizes.Draw(random)
			wg.Go(func() {
				d := query(batch)
				mu.Lock()
				defer mu.Unlock()
				latencies = append(latencies, float64(d)/1e6)
			})
		}
		wg.Wait()
		return quantile(latencies, 0.99)
	}
	var alone, beside, loads, warms []float64
	for range b.N {
		alone = append(alone, second())
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				start := time.Now()
				m, err := x.Load(ctx, rm2)
				if err != nil {
					b.Error(err)
					return
				}
				loads = append(loads, float64(time.Since(start))/1e6)
				start = time.Now()
				if err := runtime.Warm(ctx, lanes, m, rm2); err != nil {
					b.Error(err)
				}
				warms = append(warms, float64(time.Since(start))/1e6)
				m.Close()
				select {
				case <-stop:
					return
				default:
				}
			}
		})
		beside = append(beside, second())
		close(stop)
		wg.Wait()
	}
	var ratios []float64
	for i := range alone {
		ratios = append(ratios, beside[i]/alone[i])
	}
	b.ReportMetric(float64(gap)/1e6, "gap-ms")
	b.ReportMetric(quantile(alone, 0.5), "alone-p99-ms")
	b.ReportMetric(quantile(beside, 0.5), "beside-p99-ms")
	b.ReportMetric(quantile(ratios, 0.5), "ratio")
	b.ReportMetric(quantile(loads, 0.5), "load-ms")
	b.ReportMetric(quantile(warms, 0.5), "warm-ms")
	b.ReportMetric(float64(len(loads)), "loads")
}
