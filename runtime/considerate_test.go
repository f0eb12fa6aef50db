package runtime_test

import (
	"context"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
)

// TestConsiderate: a warm-up pauses between its runs only while ten queries come a second.
func TestConsiderate(t *testing.T) {
	v := &models.Version{Model: "m", Number: 1, Inputs: []models.TensorSpec{
		{Name: "x", DataType: tensor.Uint8, Shape: []int64{models.Dynamic}},
	}}
	v.Config.WarmUp = []int{10} // in one run of 10 ms
	onStage(t, runtime.LanesConfig{}, func(t *testing.T, s *stage) {
		warm := func(ctx context.Context, want time.Duration, when string) {
			t.Helper()
			before := time.Now()
			if err := runtime.Warm(ctx, s.lanes, s.model, v); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(before); took != want {
				t.Errorf("%s: took %v, want %v", when, took, want)
			}
		}
		ctx := s.lanes.Considerate(t.Context())
		time.Sleep(ms)
		warm(ctx, 10*ms, "nothing is served")
		warm(t.Context(), 100*ms, "without lanes to consider")
		for range 9 {
			s.send(t.Context(), "query", 5, nil)
		}
		s.wg.Wait()
		warm(ctx, 10*ms, "nine queries came just before")
		s.send(t.Context(), "query", 5, nil)
		s.wg.Wait()
		warm(ctx, 100*ms, "ten queries came just before")
		time.Sleep(time.Second)
		warm(ctx, 10*ms, "ten queries came a second ago")
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if err := runtime.Pause(ended, time.Hour); err != context.Canceled {
			t.Errorf("the context has ended: got %v", err)
		}
	})
}
