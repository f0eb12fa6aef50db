package runtime_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// TestExecutors holds every executor to the same contract.
func TestExecutors(t *testing.T) {
	t.Run("onnx", func(t *testing.T) { testExecutor(t, "onnx", runtimetest.Open(t)) })
	t.Run("emulated", func(t *testing.T) {
		testExecutor(t, "emulated",
			runtime.NewEmulated(func(_ *models.Version, batch int) time.Duration {
				return time.Duration(batch) * 100 * time.Microsecond
			}))
	})
}

func testExecutor(t *testing.T, name string, x runtime.Executor) {
	ctx := context.Background()
	quick := writeEmbedding(t)
	long := write(t, slow(), nil)

	t.Run("info", func(t *testing.T) {
		if info := x.Info(); info.Executor != name || info.Provider != runtime.CPU ||
			info.Threads < 1 {
			t.Errorf("got %+v", info)
		}
	})
	t.Run("outputs", func(t *testing.T) {
		m := load(t, x, quick)
		for _, batch := range []int{1, 100, 7} {
			_, _, inputs := embeddingInputs(batch)
			r, err := m.Run(ctx, inputs)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Outputs) != 1 {
				t.Fatalf("got %d outputs, want 1", len(r.Outputs))
			}
			out := r.Outputs[0]
			if out.Name != "score" || out.DataType != tensor.FP32 ||
				!slices.Equal(out.Shape, []int64{int64(batch), 3}) || len(out.Data) != batch*3*4 {
				t.Errorf("got output %q %s %v of %d bytes", out.Name, out.DataType, out.Shape,
					len(out.Data))
			}
			if r.Execution <= 0 || r.Queue != 0 {
				t.Errorf("got execution %v, queue %v", r.Execution, r.Queue)
			}
			r.Release()
			r.Release()
			if slices.ContainsFunc(r.Outputs, func(t tensor.Tensor) bool { return t.Data != nil }) {
				t.Error("outputs can be used after Release")
			}
		}
	})
	t.Run("bad inputs", func(t *testing.T) {
		m := load(t, x, quick)
		good := func() []tensor.Tensor { _, _, inputs := embeddingInputs(2); return inputs }
		for want, spoil := range map[string]func(in []tensor.Tensor) []tensor.Tensor{
			"got 1 inputs, want 2": func(in []tensor.Tensor) []tensor.Tensor { return in[:1] },
			"is INT64, want FP32": func(in []tensor.Tensor) []tensor.Tensor {
				in[0] = in[1]
				return in
			},
			"31 bytes": func(in []tensor.Tensor) []tensor.Tensor {
				in[0].Data = in[0].Data[:31]
				return in
			},
			"28 bytes": func(in []tensor.Tensor) []tensor.Tensor {
				in[0].Data = in[0].Data[:28]
				return in
			},
			"negative dimension": func(in []tensor.Tensor) []tensor.Tensor {
				in[0].Shape = []int64{-2, 4}
				return in
			},
			`input "dense" has shape [], want [-1 4]`: func(in []tensor.Tensor) []tensor.Tensor {
				in[0].Shape = nil
				return in
			},
			"has batch size 2": func(in []tensor.Tensor) []tensor.Tensor {
				_, _, in3 := embeddingInputs(3)
				in[0] = in3[0]
				return in
			},
			"too many elements": func(in []tensor.Tensor) []tensor.Tensor {
				in[0].Shape = []int64{1 << 62, 1 << 62}
				return in
			},
			`input "ids" is FP32`: func(in []tensor.Tensor) []tensor.Tensor {
				in[1] = in[0]
				return in
			},
			"of FP32": func(in []tensor.Tensor) []tensor.Tensor {
				in[0].Data = append(in[0].Data, 0, 0, 0, 0)
				return in
			},
			`input "ids" has 0 byt`: func(in []tensor.Tensor) []tensor.Tensor {
				in[1].Data = nil
				return in
			},
		} {
			_, err := m.Run(ctx, spoil(good()))
			wantError(t, err, "m version 1", want)
		}
		if _, err := m.Run(ctx, good()); err != nil {
			t.Errorf("after bad inputs: %v", err)
		}
	})
	t.Run("huge", func(t *testing.T) {
		v := *quick
		v.Inputs = slices.Clone(v.Inputs)
		v.Inputs[0].Shape = []int64{models.Dynamic, models.Dynamic}
		m := load(t, x, &v)
		_, err := m.Run(ctx, []tensor.Tensor{
			{Name: "dense", DataType: tensor.FP32, Shape: []int64{1 << 60, 0}},
			{Name: "ids", DataType: tensor.Int64, Shape: []int64{1 << 60, 0}},
		})
		wantError(t, err, "m version 1", `"score"`, "more than")
	})
	t.Run("ended context", func(t *testing.T) {
		m := load(t, x, quick)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		_, _, inputs := embeddingInputs(1)
		if _, err := m.Run(ended, inputs); err != context.Canceled {
			t.Errorf("run: got error %v, want %v", err, context.Canceled)
		}
		if _, err := x.Load(ended, quick); !errors.Is(err, context.Canceled) {
			t.Errorf("load: got error %v, want %v", err, context.Canceled)
		}
	})
	t.Run("deadline while running", func(t *testing.T) {
		m := load(t, x, long)
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		if _, err := m.Run(short, slowInputs(4000)); err != context.DeadlineExceeded {
			t.Errorf("got error %v, want %v", err, context.DeadlineExceeded)
		}
	})
	t.Run("close", func(t *testing.T) {
		m, err := x.Load(ctx, quick)
		if err != nil {
			t.Fatal(err)
		}
		_, _, inputs := embeddingInputs(200)
		var wg sync.WaitGroup
		var once sync.Once
		running := make(chan struct{})
		for range 4 {
			wg.Go(func() {
				for {
					r, err := m.Run(ctx, inputs)
					if err == runtime.ErrClosed {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					r.Release()
					once.Do(func() { close(running) })
				}
			})
		}
		<-running
		for range 2 {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}
		wg.Wait()
		if _, err := m.Run(ctx, inputs); err != runtime.ErrClosed {
			t.Errorf("run after close: got error %v, want %v", err, runtime.ErrClosed)
		}
	})
	t.Run("lanes", func(t *testing.T) {
		m := load(t, x, quick)
		lanes := runtime.NewLanes(runtime.LanesConfig{Lanes: 2})
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				_, _, inputs := embeddingInputs(20)
				r, err := lanes.Do(ctx, runtime.Query{
					Model: m, Inputs: inputs, BatchSize: 20, Profile: "m/1", QoSTarget: time.Second,
				})
				if err != nil {
					t.Error(err)
					return
				}
				r.Release()
			})
		}
		wg.Wait()
		if s := lanes.Stats(); s.Running != 0 || s.Waiting != 0 || s.Busy <= 0 ||
			s.Dropped != (runtime.DropCounts{}) {
			t.Errorf("got %+v", s)
		}
	})
}
