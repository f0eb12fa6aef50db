package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
)

const (
	ms     = time.Millisecond
	onCore = ms * 3 / 2 // see stage
)

// A stage is lanes with an emulated model that takes 1 ms per row, and 1.5 ms on one of several
// cores of a lane, in a synctest bubble.
type stage struct {
	t     *testing.T
	lanes *runtime.Lanes
	model runtime.Model // runs as whole, and as single on one core of a lane
	wg    sync.WaitGroup

	whole, single runtime.Model
	// How long whole and single take, by rows; a test may change it.
	takes, takesOnCore func(rows int) time.Duration

	mu   sync.Mutex
	done []string // "name: outcome at time since start", in order
	at   time.Time
}

func onStage(t *testing.T, cfg runtime.LanesConfig, play func(t *testing.T, s *stage)) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{t: t, lanes: runtime.NewLanes(cfg), at: time.Now()}
		s.takes = func(rows int) time.Duration { return time.Duration(rows) * ms }
		s.takesOnCore = func(rows int) time.Duration { return time.Duration(rows) * onCore }
		by := func(takes *func(int) time.Duration) runtime.Executor {
			return runtime.NewEmulated(func(_ *models.Version, batch int) time.Duration {
				return (*takes)(batch)
			})
		}
		v := &models.Version{Model: "m", Number: 1,
			Inputs: []models.TensorSpec{
				{Name: "x", DataType: tensor.Uint8, Shape: []int64{models.Dynamic}},
			},
			Outputs: []models.TensorSpec{
				{Name: "y", DataType: tensor.FP32, Shape: []int64{models.Dynamic}},
			}}
		s.whole, s.single = load(t, by(&s.takes), v), load(t, by(&s.takesOnCore), v)
		s.model = runtime.Divisible(s.whole, s.single)
		play(t, s)
		s.wg.Wait()
		if stats := s.lanes.Stats(); stats.Running != 0 || stats.Waiting != 0 ||
			stats.WaitingBytes != 0 || stats.Remaining != 0 {
			t.Errorf("lanes are not idle at the end: %+v", stats)
		}
	})
}

// send starts a query of so many rows and returns when it runs or waits.
func (s *stage) send(ctx context.Context, name string, rows int, change func(*runtime.Query)) {
	s.wg.Go(func() { s.ask(ctx, name, rows, change) })
	synctest.Wait()
}

// ask sends a query and waits for its outcome.
func (s *stage) ask(ctx context.Context, name string, rows int, change func(*runtime.Query)) {
	q := runtime.Query{
		Model: s.model,
		Inputs: []tensor.Tensor{
			{Name: "x", DataType: tensor.Uint8, Shape: []int64{int64(rows)},
				Data: make([]byte, rows)},
		},
		BatchSize: rows,
		Profile:   "m/1",
	}
	if change != nil {
		change(&q)
	}
	r, err := s.lanes.Do(ctx, q)
	outcome := "ok"
	var overloaded *runtime.OverloadedError
	var cut *runtime.CutError
	ran := ""
	if errors.As(err, &cut) {
		err, ran = cut.Err, fmt.Sprintf(" after a run of %v", cut.After)
	}
	switch {
	case err == nil:
		took := s.takes(rows)
		if r.Divided > 0 {
			took, outcome = s.takesOnCore(rows), "ok on a core"
		}
		if r.Execution != took && r.Queries == 1 {
			s.t.Errorf("%s executed for %v", name, r.Execution)
		}
		if r.Queue != time.Since(s.at)-took {
			outcome = fmt.Sprintf("%s after %v", outcome, r.Queue)
		}
		r.Release()
	case errors.As(err, &overloaded):
		outcome = fmt.Sprintf("overloaded %d %d %v", overloaded.Waiting,
			overloaded.WaitingBytes, overloaded.RetryAfter)
	case err == runtime.ErrDeadline:
		outcome = "deadline"
	case errors.Is(err, runtime.ErrLate):
		outcome = "late"
	case err == runtime.ErrDraining:
		outcome = "draining"
	case err == context.Canceled:
		outcome = "cancelled"
	case err == context.DeadlineExceeded:
		outcome = "timeout"
	default:
		outcome = err.Error()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = append(s.done,
		fmt.Sprintf("%s: %s%s at %v", name, outcome, ran, time.Since(s.at).Round(time.Microsecond)))
}

func target(d time.Duration) func(*runtime.Query) {
	return func(q *runtime.Query) { q.QoSTarget = d }
}

// learn lets the lanes see how long queries take, and sets the clock to 0.
func (s *stage) learn() {
	for _, rows := range []int{1, 10} {
		s.send(context.Background(), "", rows, nil)
		s.wg.Wait()
	}
	s.done, s.at = nil, time.Now()
}

func (s *stage) want(outcomes ...string) {
	s.t.Helper()
	s.wg.Wait()
	if !slices.Equal(s.done, outcomes) {
		s.t.Errorf("got  %q\nwant %q", s.done, outcomes)
	}
}

func TestLanesOrder(t *testing.T) {
	onStage(t, runtime.LanesConfig{}, func(t *testing.T, s *stage) {
		ctx := context.Background()
		s.learn()
		s.send(ctx, "running", 10, target(100*ms))
		s.send(ctx, "background", 1, func(q *runtime.Query) { q.Background = true })
		s.send(ctx, "no target", 1, nil)
		s.send(ctx, "late when it arrives", 5, target(3*ms))
		s.send(ctx, "long, due 40", 20, target(40*ms))
		s.send(ctx, "due 26", 1, target(26*ms))
		s.send(ctx, "due 13", 1, target(13*ms))
		s.send(ctx, "arrived long ago", 1,
			func(q *runtime.Query) { q.QoSTarget = 20 * ms; q.Arrival = time.Now().Add(-8 * ms) })
		s.want(
			"running: ok at 10ms",
			"arrived long ago: ok at 11ms", // due at 12 ms
			"due 13: ok at 12ms",
			"due 26: ok at 13ms",
			"long, due 40: ok at 33ms",
			// from here on late, in order of arrival
			"no target: ok at 34ms",
			"late when it arrives: ok at 39ms",
			"background: ok at 40ms",
		)
	})
}

// TestBackgroundHasItsTurn: on a lane that always has more to do, a background query runs all the
// same, once it has waited for a while.
func TestBackgroundHasItsTurn(t *testing.T) {
	onStage(t, runtime.LanesConfig{}, func(t *testing.T, s *stage) {
		ctx := context.Background()
		s.learn()
		s.send(ctx, "1", 60, nil)
		s.send(ctx, "background", 1, func(q *runtime.Query) { q.Background = true })
		for _, name := range []string{"2", "3", "4"} {
			s.send(ctx, name, 60, nil)
		}
		s.want("1: ok at 60ms", "2: ok at 120ms", "background: ok at 121ms", "3: ok at 181ms",
			"4: ok at 241ms")
	})
}

// TestReserve: a place that is kept is seen by others until it is taken, given
// back or past, and says when the query would be answered. What is told of each
// lane, which is not told anew when the place lapses, leaves it out.
func TestReserve(t *testing.T) {
	onStage(t, runtime.LanesConfig{}, func(t *testing.T, s *stage) {
		ctx := context.Background()
		s.learn()
		reserve := func(rows int, remaining, finish time.Duration) *runtime.Reservation {
			t.Helper()
			r := s.lanes.Reserve("m/1", rows, 5*ms)
			if r.Remaining.Round(ms/100) != remaining || r.Finish.Round(ms/100) != finish {
				t.Errorf("%d rows: remaining %v, finish %v, want %v, %v", rows, r.Remaining,
					r.Finish, remaining, finish)
			}
			return r
		}
		s.send(ctx, "running", 10, nil)
		first := reserve(4, 10*ms, 14*ms)
		second := reserve(3, 14*ms, 17*ms)
		s.lanes.Release(first)
		third := reserve(2, 13*ms, 15*ms)
		s.send(ctx, "second", 3, func(q *runtime.Query) { q.Reservation = second })
		if got := s.lanes.Stats().Remaining.Round(ms / 100); got != 15*ms {
			t.Errorf("remaining %v, want 10 ms that run, 3 that wait and 2 that are reserved", got)
		}
		if got := s.lanes.RemainingByLane()[0].Round(ms / 100); got != 13*ms {
			t.Errorf("the lane is busy for %v, want 10 ms that run and 3 that wait", got)
		}
		time.Sleep(5 * ms) // third is past
		if got := s.lanes.Stats().Remaining.Round(ms / 100); got != 8*ms {
			t.Errorf("remaining %v, want 5 ms that run and 3 that wait", got)
		}
		s.lanes.Release(third)
		s.want("running: ok at 10ms", "second: ok at 13ms")
	})
}

// TestLanesKnowEachOtherApart: a query gets the lane it asks for where that is
// idle, and each lane says how long it is busy.
func TestLanesKnowEachOtherApart(t *testing.T) {
	onStage(t, runtime.LanesConfig{Lanes: 3}, func(t *testing.T, s *stage) {
		s.learn()
		for rows, lane := range map[int]int{4: 2, 7: 1} {
			s.send(context.Background(), "", rows, func(q *runtime.Query) { q.Lane = lane })
		}
		got := s.lanes.Stats().RemainingByLane
		for i, want := range []time.Duration{0, 7 * ms, 4 * ms} {
			if got[i].Round(ms/100) != want {
				t.Errorf("lane %d: %v, want %v", i, got[i], want)
			}
		}
	})
}

func TestLanesRunBesideEachOther(t *testing.T) {
	onStage(t, runtime.LanesConfig{Lanes: 2}, func(t *testing.T, s *stage) {
		ctx := context.Background()
		s.learn()
		s.send(ctx, "a", 10, nil)
		s.send(ctx, "b", 4, nil)
		s.send(ctx, "c", 3, nil)
		s.send(ctx, "d", 5, nil)
		stats := s.lanes.Stats()
		// b's rest, and half of c and d
		if stats.Lanes != 2 || stats.Running != 2 || stats.Waiting != 2 ||
			stats.WaitingBytes != 8 || stats.Remaining.Round(ms/10) != 8*ms {
			t.Errorf("got %+v", stats)
		}
		s.want("b: ok at 4ms", "c: ok at 7ms", "a: ok at 10ms", "d: ok at 12ms")
		if got, want := s.lanes.Stats().Busy, (11+10+4+3+5)*ms; got != want {
			t.Errorf("busy for %v, want %v", got, want)
		}
	})
}

// TestLanesFirstRun: queries that came before anything was known of their model keep their order.
func TestLanesFirstRun(t *testing.T) {
	onStage(t, runtime.LanesConfig{}, func(t *testing.T, s *stage) {
		var want []string
		for i := range 20 {
			name := fmt.Sprint(i)
			s.send(context.Background(), name, 1, func(q *runtime.Query) {
				if i%5 == 4 {
					q.Profile = "other/1"
				}
			})
			want = append(want, fmt.Sprintf("%d: ok at %v", i, time.Duration(i+1)*ms))
		}
		s.want(want...)
	})
}

func TestLanesOverload(t *testing.T) {
	onStage(t, runtime.LanesConfig{MaxWaiting: 2, MaxWaitingBytes: 30},
		func(t *testing.T, s *stage) {
			ctx := context.Background()
			s.learn()
			s.send(ctx, "running", 10, nil)
			s.send(ctx, "first", 20, nil)
			s.send(ctx, "too many bytes", 11, nil)
			s.send(ctx, "second", 10, nil)
			s.send(ctx, "too many", 0, nil)
			// is not refused
			s.send(ctx, "background", 99, func(q *runtime.Query) { q.Background = true })
			time.Sleep(31 * ms)
			s.send(ctx, "third", 1, nil)
			s.want(
				"too many bytes: overloaded 1 20 30ms at 0s",
				"too many: overloaded 2 30 41ms at 0s", // after that
				"running: ok at 10ms",
				"first: ok at 30ms",
				"second: ok at 40ms",
				"third: ok after 9ms at 41ms",
				"background: ok at 140ms",
			)
			if got := s.lanes.Stats().Dropped; got != (runtime.DropCounts{Overloaded: 2}) {
				t.Errorf("got %+v", got)
			}
		})
}

func TestLanesDrop(t *testing.T) {
	onStage(t, runtime.LanesConfig{}, func(t *testing.T, s *stage) {
		s.learn()
		ctx := context.Background()
		cancelled, cancel := context.WithCancel(ctx)
		timeout, stop := context.WithTimeout(ctx, 6*ms)
		defer stop()
		in := func(d time.Duration) func(*runtime.Query) {
			return func(q *runtime.Query) { q.Deadline = time.Now().Add(d) }
		}
		late := func(d time.Duration) func(*runtime.Query) {
			return func(q *runtime.Query) { q.QoSTarget, q.RejectLate = d, true }
		}
		s.send(ctx, "runs into its deadline", 20, in(9*ms))
		s.send(ctx, "waits into its deadline", 1, in(5*ms))
		s.send(ctx, "deadline passed before", 1, in(0))
		s.send(cancelled, "cancelled", 1, nil)
		s.send(timeout, "its caller's timeout", 1, in(time.Hour))
		s.send(ctx, "becomes late", 2, late(9*ms)) // latest start 7 ms
		s.send(ctx, "is late", 4, late(3*ms))
		s.send(ctx, "in time", 1, late(13*ms))
		time.Sleep(3 * ms)
		cancel()
		synctest.Wait()
		if stats := s.lanes.Stats(); stats.Waiting != 5-1 {
			t.Errorf("%d wait after one of 5 was cancelled", stats.Waiting)
		}
		s.want(
			"deadline passed before: deadline at 0s",
			"is late: late at 0s",
			"cancelled: cancelled at 3ms",
			"waits into its deadline: deadline at 5ms",
			"its caller's timeout: timeout at 6ms",
			"becomes late: late at 7ms",
			"runs into its deadline: deadline after a run of 9ms at 9ms",
			"in time: ok at 10ms",
		)
		if got, want := s.lanes.Stats().Dropped, (runtime.DropCounts{
			Deadline: 4, Cancelled: 1, Late: 2,
		}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		// What was cut off must not have taught the lanes anything.
		if got := s.lanes.Estimate("m/1", 20).Round(ms / 10); got != 20*ms {
			t.Errorf("20 rows are expected to take %v, want 20 ms", got)
		}
	})
}

func TestLanesModelError(t *testing.T) {
	onStage(t, runtime.LanesConfig{}, func(t *testing.T, s *stage) {
		s.send(context.Background(), "bad", 1, func(q *runtime.Query) { q.Inputs = nil })
		s.want("bad: run m version 1: got 0 inputs, want 1 at 0s")
		if got := s.lanes.Stats().Dropped; got != (runtime.DropCounts{}) {
			t.Errorf("a failed run counts as dropped: %+v", got)
		}
	})
}

func TestLanesDrain(t *testing.T) {
	ctx := context.Background()
	t.Run("in time", func(t *testing.T) {
		onStage(t, runtime.LanesConfig{}, func(t *testing.T, s *stage) {
			s.send(ctx, "running", 5, nil)
			s.send(ctx, "waiting", 5, nil)
			s.wg.Go(func() {
				if err := s.lanes.Drain(ctx); err != nil || time.Since(s.at) != 10*ms {
					t.Errorf("drain returned %v after %v", err, time.Since(s.at))
				}
			})
			synctest.Wait()
			s.send(ctx, "new", 5, nil)
			s.want("new: draining at 0s", "running: ok at 5ms", "waiting: ok at 10ms")
			if err := s.lanes.Drain(ctx); err != nil {
				t.Errorf("draining again: %v", err)
			}
		})
	})
	t.Run("too long", func(t *testing.T) {
		onStage(t, runtime.LanesConfig{}, func(t *testing.T, s *stage) {
			s.send(ctx, "quick", 5, nil)
			s.send(ctx, "long", 50, nil)
			s.send(ctx, "waiting", 5, nil)
			bounded, cancel := context.WithTimeout(ctx, 20*ms)
			defer cancel()
			if err := s.lanes.Drain(bounded); err != context.DeadlineExceeded ||
				time.Since(s.at) != 20*ms {
				t.Errorf("drain returned %v after %v", err, time.Since(s.at))
			}
			s.wg.Wait()
			slices.Sort(s.done)
			s.want("long: draining after a run of 15ms at 20ms", "quick: ok at 5ms",
				"waiting: draining at 20ms")
			if got := s.lanes.Stats().Dropped; got != (runtime.DropCounts{Draining: 2}) {
				t.Errorf("got %+v", got)
			}
		})
	})
}

// A model that panics must not take its lane along.
type panicky struct{ runtime.Model }

func (panicky) Run(context.Context, []tensor.Tensor) (*runtime.Result, error) { panic("boom") }

func TestLanesSurvivePanic(t *testing.T) {
	lanes := runtime.NewLanes(runtime.LanesConfig{})
	for range 2 {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			lanes.Do(context.Background(), runtime.Query{Model: panicky{}})
		}()
	}
	if s := lanes.Stats(); s.Running != 0 {
		t.Errorf("got %+v", s)
	}
}

// Background work that does not end takes no lane from queries, and does not keep Drain.
func TestLanesEndlessBackground(t *testing.T) {
	onStage(t, runtime.LanesConfig{}, func(t *testing.T, s *stage) {
		background := func(q *runtime.Query) { q.Background = true }
		s.send(context.Background(), "endless", 3600_000, background)
		s.send(context.Background(), "query", 5, nil)
		time.Sleep(ms * 200)
		if err := s.lanes.Drain(context.Background()); err != nil || time.Since(s.at) != 200*ms {
			t.Errorf("drain returned %v after %v", err, time.Since(s.at))
		}
		s.want("query: ok at 105ms", "endless: ok at 1h0m0s")
	})
}

// A stuck model does not return when its context ends.
type stuck struct {
	runtime.Model
	release chan struct{}
}

func (s stuck) Run(context.Context, []tensor.Tensor) (*runtime.Result, error) {
	<-s.release
	return nil, errors.New("at last")
}

func TestLanesDrainStuck(t *testing.T) {
	onStage(t, runtime.LanesConfig{}, func(t *testing.T, s *stage) {
		release := make(chan struct{})
		s.send(context.Background(), "stuck", 1, func(q *runtime.Query) {
			q.Model = stuck{
				q.Model, release,
			}
		})
		ctx, cancel := context.WithTimeout(context.Background(), ms)
		defer cancel()
		if err := s.lanes.Drain(ctx); err != context.DeadlineExceeded {
			t.Errorf("drain returned %v", err)
		}
		close(release)
		s.want("stuck: at last at 5.001s")
	})
}
