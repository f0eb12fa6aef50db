package runtime_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/lane"
)

// A recorder notes what happens at lanes, and what they decide.
type recorder struct {
	queries map[*lane.Query]int // numbers of those that came, from 0
	steps   []step
}

// A step is an event and what the lanes decided. Of a query that came it has what was known of it.
type step struct {
	now     time.Duration
	event   lane.Event
	number  int // of the event's query
	query   lane.Query
	class   lane.Class // of the query, as it was when the query came
	decided string
}

func (r *recorder) observe(now time.Duration, e *lane.Event, actions []lane.Action) {
	if e == nil {
		r.steps[len(r.steps)-1].decided = decisions(actions, r.queries)
		return
	}
	s := step{now: now, event: *e, number: -1}
	if q := e.Query; q != nil {
		if e.Kind == lane.Arrived {
			r.queries[q] = len(r.queries)
			s.query = *q
			if c := q.Class; c != nil {
				s.class.Profile, s.class.Policy, s.class.Largest = c.Profile, c.Policy, c.Largest
			}
		}
		s.number = r.queries[q]
	}
	r.steps = append(r.steps, s)
}

// decisions are actions as text.
func decisions(actions []lane.Action, numbers map[*lane.Query]int) string {
	var b strings.Builder
	for _, a := range actions {
		fmt.Fprintf(&b, "%d reason %d member %d retry %v waiting %d %d", a.Kind, a.Reason, a.Member,
			a.RetryAfter, a.Waiting, a.WaitingBytes)
		if q := a.Query; q != nil {
			fmt.Fprintf(&b, " query %d lane %d %v %v", numbers[q], q.Lane(), q.IsOnCore(),
				q.Started())
		}
		if a.Run != nil {
			for _, q := range a.Run.Members {
				fmt.Fprintf(&b, " with %d", numbers[q])
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// replay has the events happen to new lanes, which know nothing of the old ones, and returns how
// many lines of decisions there were.
func (r *recorder) replay(t *testing.T, cfg lane.Config) (lines int) {
	s := lane.New(cfg)
	queries, numbers := map[int]*lane.Query{}, map[*lane.Query]int{}
	classes := map[*lane.Class]*lane.Class{}
	reservations := map[*lane.Reservation]*lane.Reservation{}
	reservation := func(of *lane.Reservation) *lane.Reservation {
		if of == nil {
			return nil
		}
		if reservations[of] == nil {
			reservations[of] = &lane.Reservation{
				Profile: of.Profile, BatchSize: of.BatchSize, Keep: of.Keep,
			}
		}
		return reservations[of]
	}
	for i, step := range r.steps {
		e := step.event
		if e.Kind == lane.Arrived {
			q := step.query
			if c := q.Class; c != nil {
				if classes[c] == nil {
					classes[c] = &lane.Class{}
				}
				q.Class = classes[c]
				q.Class.Profile, q.Class.Policy = step.class.Profile, step.class.Policy
				q.Class.Largest = step.class.Largest
			}
			q.Reservation = reservation(q.Reservation)
			queries[step.number] = &q
			numbers[&q] = step.number
		}
		e.Query, e.Reservation = queries[step.number], reservation(e.Reservation)
		actions, _ := s.Step(step.now, e)
		got := decisions(actions, numbers)
		if got != step.decided {
			t.Fatalf("step %d of %d, event %d of query %d: replayed\n%s\nwas\n%s", i, len(r.steps),
				e.Kind, step.number, got, step.decided)
		}
		lines += strings.Count(got, "\n")
	}
	return lines
}

// TestReplay: what live lanes under overload decide, with goroutines and in real time, follows from
// what they were told: replayed, the same events give the same decisions.
func TestReplay(t *testing.T) {
	var all runtime.LanesStats
	for _, cfg := range []runtime.LanesConfig{
		{Lanes: 1, Cores: 1, MaxWaiting: 20}, {Lanes: 2, Cores: 1, MaxWaiting: 1000},
		{Lanes: 1, Cores: 2, MaxWaiting: 40}, {Lanes: 2, Cores: 3, MaxWaiting: 1000},
	} {
		cfg.MaxWaitingBytes = 1 << 20
		t.Run(fmt.Sprintf("%d lanes of %d cores", cfg.Lanes, cfg.Cores), func(t *testing.T) {
			lanes, rec := runtime.NewLanes(cfg), &recorder{queries: map[*lane.Query]int{}}
			lanes.Observe(rec.observe)
			overload(t, lanes)
			lanes.Observe(nil) // a timer may still fire
			lines := rec.replay(t, lane.Config{
				Lanes: cfg.Lanes, Cores: cfg.Cores, Estimator: lane.NewLinearEstimator(),
				MaxWaiting: cfg.MaxWaiting, MaxWaitingBytes: cfg.MaxWaitingBytes,
			})
			stats := lanes.Stats()
			t.Logf("%d events, %d decisions, %+v", len(rec.steps), lines, stats.Dropped)
			all.Add(stats)
		})
	}
	if d := all.Dropped; d.Overloaded == 0 || d.Late == 0 || d.Deadline == 0 || d.Cancelled == 0 {
		t.Errorf("dropped %+v, want some of each", d)
	}
}

// overload has 64 clients send queries as fast as they can, of all sorts, and then drains the
// lanes.
func overload(t *testing.T, lanes *runtime.Lanes) {
	const target = 2 * ms
	x := runtime.NewEmulated(func(_ *models.Version, rows int) time.Duration {
		return time.Duration(100+20*rows) * time.Microsecond
	})
	v := &models.Version{Model: "m", Number: 1,
		Inputs: []models.TensorSpec{
			{Name: "x", DataType: tensor.Uint8, Shape: []int64{models.Dynamic}},
		},
		Outputs: []models.TensorSpec{
			{Name: "y", DataType: tensor.FP32, Shape: []int64{models.Dynamic}},
		}}
	model := runtime.Divisible(load(t, x, v), load(t, x, v))
	var clients sync.WaitGroup
	for i := range 64 {
		clients.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 2))
			for range 40 {
				rows := 1 + r.IntN(10)
				q := runtime.Query{
					Model: model, BatchSize: rows, Profile: "m/1",
					Inputs: []tensor.Tensor{{
						Name: "x", DataType: tensor.Uint8, Shape: []int64{int64(rows)},
						Data: make([]byte, rows),
					}},
					Divide: r.IntN(2) == 0, LargestBatch: 40,
				}
				q.Background = r.IntN(20) == 0
				if r.IntN(3) > 0 {
					q.QoSTarget = time.Duration(1+r.IntN(4)) * target
					q.Refuse, q.RejectLate = r.IntN(3) > 0, r.IntN(3) == 0
					q.Deadline = time.Now().Add(2 * q.QoSTarget)
				}
				if r.IntN(3) == 0 {
					q.Merge = names.MergeDeadline
				}
				if r.IntN(10) == 0 {
					q.Reservation = lanes.Reserve("m/1", rows, target)
				}
				ctx, cancel := context.WithCancel(t.Context())
				if r.IntN(10) == 0 {
					time.AfterFunc(time.Duration(r.IntN(5))*ms, cancel)
				}
				if result, err := lanes.Do(ctx, q); err == nil {
					result.Release()
				}
				cancel()
				lanes.RefusesUnread(int64(r.IntN(8 << 20)))
			}
		})
	}
	clients.Wait()
	if err := lanes.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := lanes.Do(t.Context(), runtime.Query{Model: model}); err != runtime.ErrDraining {
		t.Errorf("got %v after a drain", err)
	}
}
