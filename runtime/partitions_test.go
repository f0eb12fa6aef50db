package runtime_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/runtime"
)

// sleeper is a model whose runs take 10 ms.
type sleeper struct{}

func (sleeper) Run(ctx context.Context, _ []tensor.Tensor) (*runtime.Result, error) {
	select {
	case <-time.After(10 * time.Millisecond):
		return &runtime.Result{Execution: 10 * time.Millisecond}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (sleeper) Close() error { return nil }

// TestPartitions: queries run on the lanes of their model's partition only, which are numbered
// through, and a full one does not delay the others.
func TestPartitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		part := func(lanes int, models ...string) runtime.Part {
			p, err := runtime.NewPartition(runtime.PartitionConfig{
				LanesConfig: runtime.LanesConfig{Lanes: lanes},
			})
			if err != nil {
				t.Fatal(err)
			}
			return runtime.Part{Partition: p, Models: models}
		}
		all, err := runtime.NewPartitions(part(2, "rm2"), part(1, "wnd"), part(1))
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		var run sync.WaitGroup
		var mu sync.Mutex
		lanes, ended := map[string]map[int]bool{}, map[string]time.Duration{}
		do := func(model string, queries int) {
			for range queries {
				run.Go(func() {
					r, err := all.Do(context.Background(), runtime.Query{
						Model: sleeper{}, BatchSize: 1, Profile: names.NewModelKey(model, 1),
						Lane: 1,
					})
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					defer mu.Unlock()
					if lanes[model] == nil {
						lanes[model] = map[int]bool{}
					}
					lanes[model][r.Lane] = true
					ended[model] = time.Since(start)
				})
			}
		}
		do("rm2", 8)
		do("wnd", 1)
		do("ncf", 2)
		synctest.Wait()
		if s := all.Stats(); s.Lanes != 4 || s.Running != 4 || s.Waiting != 7 ||
			len(s.RemainingByLane) != 4 {
			t.Errorf("got %+v", s)
		}
		run.Wait()
		for model, want := range map[string]struct {
			lanes []int
			ended time.Duration
		}{
			"rm2": {[]int{0, 1}, 40 * time.Millisecond}, "wnd": {[]int{2}, 10 * time.Millisecond},
			"ncf": {[]int{3}, 20 * time.Millisecond},
		} {
			for _, lane := range want.lanes {
				if !lanes[model][lane] || len(lanes[model]) != len(want.lanes) {
					t.Errorf("%s ran on the lanes %v, want %v", model, lanes[model], want.lanes)
				}
			}
			if ended[model] != want.ended {
				t.Errorf("%s: the last ended after %v, want %v", model, ended[model], want.ended)
			}
		}
		if s := all.Stats(); s.Busy != 110*time.Millisecond || s.Running != 0 {
			t.Errorf("afterwards: %+v", s)
		}

		// A reservation counts where it was made.
		r := all.Reserve("rm2/1", 1, time.Second)
		more := all.Reserve("rm2/1", 1, time.Second)
		if all.Remaining("rm2") == 0 || all.Remaining("wnd") != 0 {
			t.Errorf("remaining: %v and %v", all.Remaining("rm2"), all.Remaining("wnd"))
		}
		all.Release(r)
		all.Release(more)
		all.Release(nil)
		if all.Remaining("rm2") != 0 || all.Estimate("rm2/1", 1) != 10*time.Millisecond ||
			all.Estimate("wnd/2", 1) != 0 {
			t.Errorf("got %v, %v, %v", all.Remaining("rm2"), all.Estimate("rm2/1", 1),
				all.Estimate("wnd/2", 1))
		}

		if err := all.Drain(context.Background()); err != nil {
			t.Error(err)
		}
		if _, err := all.Do(context.Background(), runtime.Query{
			Model: sleeper{}, Profile: "wnd/1", BatchSize: 1,
		}); !errors.Is(err, runtime.ErrDraining) {
			t.Errorf("while draining: got %v", err)
		}

		if _, err := runtime.NewPartitions(part(1, "a"), part(1, "b", "a")); err == nil ||
			!strings.Contains(err.Error(), `"a" is in two partitions`) {
			t.Errorf("got %v", err)
		}
		if _, err := runtime.NewPartitions(part(1), part(1)); err == nil {
			t.Error("two partitions for all others: got no error")
		}
		only, err := runtime.NewPartitions(part(1, "a"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := only.Do(context.Background(), runtime.Query{Profile: "b/1"}); err == nil ||
			only.Of("b") != nil || only.Remaining("b") != 0 {
			t.Errorf("a model without a partition: got %v", err)
		}
	})
}

// TestArrange: while lanes move between models, no query fails or is run twice, what was held is
// run where it was, what comes later runs on the new lanes, and the counters only grow.
func TestArrange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		part := func(lanes int, models ...string) runtime.Part {
			p, err := runtime.NewPartition(runtime.PartitionConfig{
				LanesConfig: runtime.LanesConfig{Lanes: lanes},
			})
			if err != nil {
				t.Fatal(err)
			}
			return runtime.Part{Partition: p, Models: models}
		}
		others := part(1, "ncf")
		all, err := runtime.NewPartitions(part(3, "rm2"), part(1, "wnd"), others)
		if err != nil {
			t.Fatal(err)
		}
		ctx := context.Background()
		model := runtime.NewSpread(sleeper{})
		var run sync.WaitGroup
		do := func(name string, n, lane int) {
			for range n {
				run.Go(func() {
					r, err := all.Do(ctx, runtime.Query{
						Model: model, BatchSize: 1, Profile: names.NewModelKey(name, 1), Lane: lane,
					})
					if err != nil {
						t.Errorf("%s: %v", name, err)
						return
					}
					r.Release()
				})
			}
		}
		do("rm2", 6, 0) // two rounds of its three lanes
		do("wnd", 2, 3) // two of its one
		do("ncf", 1, 4)
		synctest.Wait()
		former, err := all.Arrange(part(1, "rm2"), part(3, "wnd"), others)
		if err != nil || len(former) != 2 {
			t.Fatalf("%d partitions are former, %v", len(former), err)
		}
		start := time.Now()
		do("wnd", 3, 0) // to a lane that was rm2's
		synctest.Wait()
		if s := all.Stats(); s.Lanes != 5 || s.Running != 3+1+1+3 || s.Waiting != 3+1 {
			t.Errorf("%d lanes, %d queries run, %d wait", s.Lanes, s.Running, s.Waiting)
		}
		if err := all.Retire(ctx, former); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took != 20*time.Millisecond {
			t.Errorf("the former lanes ended after %v, want 20ms", took)
		}
		run.Wait()
		if s := all.Stats(); s.Busy != 12*10*time.Millisecond || s.Running != 0 {
			t.Errorf("lanes were busy for %v, and %d queries run", s.Busy, s.Running)
		}

		// Lanes for all models take the place of all; a model that none has any more still runs.
		if former, err = all.Arrange(part(1, "wnd")); err != nil {
			t.Fatal(err)
		}
		do("rm2", 1, 0)
		run.Wait()
		if err := all.Retire(ctx, former); err != nil {
			t.Error(err)
		}
		if _, err := all.Do(ctx, runtime.Query{
			Model: model, BatchSize: 1, Profile: names.NewModelKey("rm2", 1),
		}); err == nil || errors.Is(err, runtime.ErrDraining) {
			t.Errorf("a model without lanes: %v", err)
		}
		if _, err := all.Arrange(part(1, "a"), part(1, "a")); err == nil {
			t.Error("a model is in two partitions")
		}
	})
}

// TestArrangeUnderLoad: queries that meet the end of their lanes run on those that follow, and none
// counts as dropped, while all lanes drain and only then.
func TestArrangeUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		part := func() runtime.Part {
			p, err := runtime.NewPartition(runtime.PartitionConfig{})
			if err != nil {
				t.Fatal(err)
			}
			return runtime.Part{Partition: p, Models: []string{"wnd"}}
		}
		all, err := runtime.NewPartitions(part())
		if err != nil {
			t.Fatal(err)
		}
		m := runtime.NewSpread(sleeper{})
		var clients sync.WaitGroup
		for i := range 4 {
			clients.Go(func() {
				for range 50 {
					time.Sleep(time.Duration(i) * time.Millisecond)
					if _, err := all.Do(ctx, runtime.Query{
						Model: m, BatchSize: 1, Profile: "wnd/1",
					}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for range 40 {
			next := part()
			if err := m.Place(ctx, next.Partition); err != nil {
				t.Fatal(err)
			}
			former, err := all.Arrange(next)
			if err != nil {
				t.Fatal(err)
			}
			ended, end := context.WithCancel(ctx)
			end()
			if err := all.Retire(ended, former); err != nil && !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
			for _, p := range former {
				if err := m.Leave(p.Partition); err != nil {
					t.Fatal(err)
				}
			}
		}
		clients.Wait()
		if n := all.Stats().Dropped.Draining; n != 0 {
			t.Errorf("%d answered queries count as dropped", n)
		}
		if err := all.Drain(ctx); err != nil {
			t.Fatal(err)
		}
		_, err = all.Do(ctx, runtime.Query{Model: m, BatchSize: 1, Profile: "wnd/1"})
		if n := all.Stats().Dropped.Draining; n != 1 || !errors.Is(err, runtime.ErrDraining) {
			t.Errorf("lanes that drain answer with %v, and %d queries are dropped", err, n)
		}
	})
}

// endless is a model whose runs go on although they are cancelled, until it is closed.
type endless chan struct{}

func (e endless) Run(context.Context, []tensor.Tensor) (*runtime.Result, error) {
	<-e
	return &runtime.Result{}, nil
}

func (endless) Close() error { return nil }

// TestRetireGivesUp: a run that goes on in a partition which was retired does not count as running
// for ever.
func TestRetireGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		part := func() runtime.Part {
			p, err := runtime.NewPartition(runtime.PartitionConfig{})
			if err != nil {
				t.Fatal(err)
			}
			return runtime.Part{Partition: p, Models: []string{"wnd"}}
		}
		all, err := runtime.NewPartitions(part())
		if err != nil {
			t.Fatal(err)
		}
		model := make(endless)
		go func() {
			_, _ = all.Do(t.Context(), runtime.Query{Model: model, BatchSize: 1, Profile: "wnd/1"})
		}()
		synctest.Wait()
		former, err := all.Arrange(part())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := all.Retire(ctx, former); err == nil {
			t.Error("the run has ended")
		}
		close(model)
		synctest.Wait()
		if n := all.Stats().Running; n != 0 {
			t.Errorf("%d queries run, want none", n)
		}
	})
}
