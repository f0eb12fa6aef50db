package runtime_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/runtimetest"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// openBoth opens the executors on the machine's card and on its CPU, whose log is the test's.
func openBoth(t testing.TB, cfg runtime.Config) (card, cpu *runtime.ONNX) {
	cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	return runtimetest.OpenCard(t, cfg)
}

// apart is the largest difference of two models' answers, as a share of the largest value.
func apart(t testing.TB, a, b runtime.Model, v *models.Version, batch int, seed uint64) float64 {
	t.Helper()
	inputs := seededInputs(v, batch, seed)
	x, err := a.Run(context.Background(), inputs)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Release()
	y, err := b.Run(context.Background(), inputs)
	if err != nil {
		t.Fatal(err)
	}
	defer y.Release()
	most := 0.
	for i, out := range x.Outputs {
		if !slices.Equal(out.Shape, y.Outputs[i].Shape) {
			t.Fatalf("output %s has shapes %v and %v", out.Name, out.Shape, y.Outputs[i].Shape)
		}
		difference, largest := 0., 1e-9
		for k := range len(out.Data) / 4 {
			p := float64(math.Float32frombits(binary.LittleEndian.Uint32(out.Data[4*k:])))
			q := float64(math.Float32frombits(binary.LittleEndian.Uint32(y.Outputs[i].Data[4*k:])))
			if !(math.Abs(p-q) <= difference) {
				difference = math.Abs(p - q)
			}
			largest = max(largest, math.Abs(q))
		}
		most = max(most, difference/largest)
	}
	return most
}

// TestCardAnswers: the card answers as the CPU does, whatever the batch size and the order.
func TestCardAnswers(t *testing.T) {
	card, cpu := openBoth(t, runtime.Config{})
	for _, name := range zoo.Names() {
		t.Run(name, func(t *testing.T) {
			v := generate(t, name, zoo.Small)
			a, b := load(t, card, v), load(t, cpu, v)
			random := rand.New(rand.NewPCG(1, 2))
			sizes := []int{1, 2, 3, 1000, 5, 64, 200, 257, 1000, 1, 2500, 0}
			for range 20 {
				sizes = append(sizes, 1+random.IntN(1000))
			}
			most := 0.
			for i, batch := range sizes {
				d := apart(t, a, b, v, batch, uint64(i))
				if most = max(most, d); !(d <= 1e-4) {
					t.Fatalf("batch size %d: %g apart", batch, d)
				}
			}
			t.Logf("at most %.1e apart", most)
		})
	}
}

// A laned model runs on a lane, merged with what else waits.
type laned struct {
	runtime.Model
	lanes *runtime.Lanes
	v     *models.Version
}

func (l laned) Run(ctx context.Context, inputs []tensor.Tensor) (*runtime.Result, error) {
	return l.lanes.Do(ctx, runtime.Query{
		Model: l.Model, Inputs: inputs, BatchSize: int(inputs[0].Shape[0]),
		Profile: names.NewModelKey(l.v.Model, l.v.Number), QoSTarget: time.Minute,
		Merge: names.MergeDeadline, LargestBatch: 2000,
	})
}

// TestCardConcurrency: queries to several models and of several sizes, at a time, merged and not,
// get their own answers, also while another model is loaded and closed.
func TestCardConcurrency(t *testing.T) {
	card, cpu := openBoth(t, runtime.Config{})
	var group sync.WaitGroup
	for _, name := range []string{"ncf", "wnd"} {
		v := generate(t, name, zoo.Small)
		a, b := load(t, card, v), load(t, cpu, v)
		merged := laned{a, runtime.NewLanes(runtime.LanesConfig{}), v}
		for worker := range 16 {
			group.Go(func() {
				random := rand.New(rand.NewPCG(uint64(worker), 2))
				a := a
				if worker >= 4 {
					a = merged
				}
				for i := range 40 {
					batch := 1 + random.IntN(300)
					if d := apart(t, a, b, v, batch, uint64(i)); !(d <= 1e-4) {
						t.Errorf("%s, batch size %d: %g apart", name, batch, d)
						return
					}
				}
			})
		}
	}
	v := generate(t, "rm2", zoo.Small)
	for range 5 {
		m, err := card.Load(context.Background(), v)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	group.Wait()
}

// TestCardWithoutGraphs: a model whose rows are not independent runs all the same.
func TestCardWithoutGraphs(t *testing.T) {
	card, cpu := openBoth(t, runtime.Config{})
	v := generate(t, "wnd", zoo.Small)
	v.Config.RowsIndependent = false
	a, b := load(t, card, v), load(t, cpu, v)
	for _, batch := range []int{1, 7, 300} {
		if d := apart(t, a, b, v, batch, 3); !(d <= 1e-4) {
			t.Fatalf("batch size %d: %g apart", batch, d)
		}
	}
}

// TestCardMemory: tables for which the card's memory is too small stay in the machine's, a model
// without such tables does not load, and another one runs on.
func TestCardMemory(t *testing.T) {
	card, cpu := openBoth(t, runtime.Config{GPUMemory: 200 << 20})
	small := generate(t, "wnd", zoo.Small)
	a, b := load(t, card, small), load(t, cpu, small)
	_, err := card.Load(context.Background(), generate(t, "dien", zoo.Default))
	wantError(t, err, "it does not fit into the memory of GPU 0", "it asked for")
	t.Log(err)
	large := generate(t, "rm2", zoo.Default)
	x, y := load(t, card, large), load(t, cpu, large)
	for _, batch := range []int{1, 100} {
		if d := apart(t, x, y, large, batch, 3); !(d <= 1e-4) {
			t.Fatalf("tables off the card, batch size %d: %g apart", batch, d)
		}
	}
	if d := apart(t, a, b, small, 100, 3); !(d <= 1e-4) {
		t.Fatalf("%g apart", d)
	}
}

// TestCardFull: models answer on while another process has taken all memory of the card but 4 MiB,
// also after one more could not be loaded. One without graphs has run its largest query before; it
// takes no more memory for queries of other goroutines.
func TestCardFull(t *testing.T) {
	card, cpu := openBoth(t, runtime.Config{})
	v := generate(t, "wnd", zoo.Small)
	plain := *v
	plain.Config.RowsIndependent = false
	loaded := []runtime.Model{load(t, card, v), load(t, card, &plain)}
	want := load(t, cpu, v)
	for _, m := range loaded {
		if d := apart(t, m, want, v, 1000, 3); !(d <= 1e-4) {
			t.Fatalf("%g apart", d)
		}
	}

	said, empty, err := harness.OccupyCardMemory(t.Context(), 4)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := empty(); err != nil {
			t.Error(err)
		}
	}()
	t.Log(said)
	_, err = card.Load(t.Context(), generate(t, "dien", zoo.Default))
	wantError(t, err, "it does not fit into the memory of GPU 0")
	var group sync.WaitGroup
	for worker := range 16 {
		group.Go(func() {
			for _, m := range loaded {
				for _, batch := range []int{1, 64, 300, 1000} {
					if d := apart(t, m, want, v, batch, uint64(worker)); !(d <= 1e-4) {
						t.Errorf("batch size %d: %g apart", batch, d)
					}
				}
			}
		})
	}
	group.Wait()
}

// BenchmarkCardCopies compares runs with their graphs alone, which copy small inputs and all
// outputs.
func BenchmarkCardCopies(b *testing.B) {
	card, _ := openBoth(b, runtime.Config{})
	for _, name := range []string{"ncf", "rm2", "wnd", "mtwnd", "dien"} {
		v := generate(b, name, zoo.Default)
		m := load(b, card, v)
		graphs := runtime.GraphTimes(m)
		for _, batch := range slices.Sorted(maps.Keys(graphs)) {
			b.Run(fmt.Sprintf("%s/%d", name, batch), func(b *testing.B) {
				inputs := randomInputs(v, batch)
				var took []float64
				for b.Loop() {
					start := time.Now()
					r, err := m.Run(context.Background(), inputs)
					if err != nil {
						b.Fatal(err)
					}
					took = append(took, float64(time.Since(start).Nanoseconds())/1e3)
					r.Release()
				}
				b.ReportMetric(quantile(took, .5), "run-us")
				b.ReportMetric(float64(graphs[batch].Nanoseconds())/1e3, "graph-us")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
