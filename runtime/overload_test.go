package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/runtime"
)

// A timed is a model whose runs take a time that varies.
type timed struct {
	mean time.Duration
	cut  *atomic.Int64 // runs that a deadline ended
	how  varying
}

// A varying is how the times of runs vary.
type varying string

const (
	steady varying = "steady" // by a tenth
	// As on a machine that others use: each by 30 %, and all by 30 % more in the course of three
	// seconds.
	sharedTensors varying = "shared"
	// As where others take the cores at times: one in ten takes several times as long.
	uneven varying = "uneven"
)

func (m timed) Run(ctx context.Context, _ []tensor.Tensor) (*runtime.Result, error) {
	factor := .9 + .2*rand.Float64()
	switch m.how {
	case sharedTensors:
		now := float64(time.Now().UnixNano()) / 1e9
		factor = (.7 + .6*rand.Float64()) * (1 + .3*math.Sin(2*math.Pi*now/3))
	case uneven:
		if rand.Float64() < .1 {
			factor *= 1 + 2.5*rand.ExpFloat64()
		}
		factor /= 1.25 // the mean of that
	}
	took := time.Duration(float64(m.mean) * factor)
	select {
	case <-time.After(took):
	case <-ctx.Done():
		m.cut.Add(1)
		return nil, ctx.Err()
	}
	return &runtime.Result{Execution: took}, nil
}

func (timed) Close() error { return nil }

// Outcomes are what has become of queries.
type outcomes struct {
	answered          []time.Duration // their latencies
	refused, deadline int
	atOnce            int // of the refused
}

// runs returns a model with runs of a mean duration, which take longer on one core of a lane.
func runs(whole, onCore time.Duration, how varying) (m runtime.Model, cut *atomic.Int64) {
	cut = new(atomic.Int64)
	return runtime.Divisible(timed{whole, cut, how}, timed{onCore, cut, how}), cut
}

// queryBytes are the inputs of a query.
var queryBytes = make([]byte, 100<<10)

// closedLoop has clients send queries for a time, each at most one in a pace, and the next one when
// it knows the outcome of the last; after a refusal, when it is to try again.
func closedLoop(t *testing.T, clients int, model runtime.Model, target, pace, lasts time.Duration,
	lanes *runtime.Lanes) outcomes {
	var all outcomes
	var mu sync.Mutex
	var running sync.WaitGroup
	end := time.Now().Add(lasts)
	for i := range clients {
		running.Go(func() {
			time.Sleep(time.Duration(rand.Float64() * float64(pace)))
			for time.Now().Before(end) {
				arrival := time.Now()
				deadline := arrival.Add(10 * target)
				ctx, cancel := t.Context(), context.CancelFunc(func() {})
				if i%2 == 1 { // its own, earlier than the model's
					ctx, cancel = context.WithDeadline(ctx, deadline)
					deadline = arrival.Add(time.Minute)
				}
				r, err := lanes.Do(ctx, runtime.Query{
					Model: model, Inputs: []tensor.Tensor{{Data: queryBytes}}, BatchSize: 256,
					Profile: "wnd/1", Arrival: arrival, QoSTarget: target, Deadline: deadline,
					Refuse: true, Divide: true,
				})
				cancel()
				var over *runtime.OverloadedError
				mu.Lock()
				switch {
				case err == nil:
					r.Release()
					all.answered = append(all.answered, time.Since(arrival))
				case errors.As(err, &over):
					all.refused++
					if time.Since(arrival) == 0 {
						all.atOnce++
					}
				case errors.Is(err, context.DeadlineExceeded):
					all.deadline++
				default:
					t.Error(err)
				}
				mu.Unlock()
				if over != nil {
					time.Sleep(over.RetryAfter)
				}
				time.Sleep(time.Until(arrival.Add(pace)))
			}
		})
	}
	running.Wait()
	slices.Sort(all.answered)
	return all
}

// inTime returns how many were answered within the target.
func (l outcomes) inTime(target time.Duration) (n int) {
	for _, d := range l.answered {
		if d <= target {
			n++
		}
	}
	return n
}

// TestOverload: clients that ask for more than the lanes can do are answered in time or refused,
// and the lanes do as much in time as they can, or nearly; also on a machine that others use, where
// two cores of a lane serve no more when they run a query each, and where one run in ten takes
// long.
func TestOverload(t *testing.T) {
	const target, mean, lasts = 25 * time.Millisecond, 8 * time.Millisecond, 20 * time.Second
	for _, c := range []struct {
		lanes, cores int
		how          varying
	}{
		{1, 1, steady}, {2, 1, steady}, {1, 2, steady},
		{1, 1, sharedTensors}, {2, 1, sharedTensors}, {1, 2, sharedTensors},
		{1, 1, uneven}, {2, 1, uneven}, {1, 2, uneven},
	} {
		for _, clients := range []int{-512, -8, 8, 64, 512} {
			if testing.Short() && clients != -8 && clients != 512 {
				continue
			}
			t.Run(fmt.Sprintf("%+v, %d clients", c, clients), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := runtime.NewLanes(runtime.LanesConfig{Lanes: c.lanes, Cores: c.cores})
					each := mean / time.Duration(c.lanes) // for a query; less if lanes divide
					onCore, percent, most := mean*3/2, 85, 3*target
					if c.how != steady {
						onCore, percent, most = mean*2, 75, 5*target
					} else if c.cores > 1 {
						each = onCore / time.Duration(c.cores)
					}
					// three times what the lanes can do, or at once
					pace := time.Duration(clients) * each / 3
					if clients < 0 {
						pace, clients = 0, -clients
					}
					model, cut := runs(mean, onCore, c.how)
					got := closedLoop(t, clients, model, target, pace, lasts, l)
					capacity := int(lasts / each)
					p99 := got.answered[len(got.answered)*99/100]
					t.Logf(
						"answered %d, in time %d, of %d possible; refused %d, %d at once, "+
							"deadline %d; p99 %v",
						len(got.answered), got.inTime(target), capacity, got.refused, got.atOnce,
						got.deadline, p99)
					// a run behind which they waited took longer than expected
					if n := got.deadline - int(cut.Load()); n*500 > len(got.answered) {
						t.Errorf("%d queries wait in vain until their deadline", n)
					}
					// runs that took longer than expected
					if n := int(cut.Load()); n*500 > len(got.answered) {
						t.Errorf("%d of %d are cut off while they run, want 1 in 500", n,
							len(got.answered))
					}
					if got.atOnce*10 < got.refused*3 {
						t.Errorf("%d of %d refusals at once, want 0.3 of them", got.atOnce,
							got.refused)
					}
					// clients try again one after the other
					if most := len(got.answered)*3/2 + clients; got.refused > most {
						t.Errorf("%d are refused, want at most %d", got.refused, most)
					}
					if n := got.inTime(target); n*100 < capacity*percent {
						t.Errorf("%d are in time, want at least %d %% of %d", n, percent, capacity)
					}
					if p99 > most {
						t.Errorf("99 %% are answered within %v, want %v", p99, most)
					}
				})
			})
		}
	}
}

// TestRefusesUnread: while an overload lasts, and only then, no more queries are read than the
// lanes serve in four targets, and those that are refused unread are told to try again one after
// the other.
func TestRefusesUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const target, mean = 25 * time.Millisecond, 8 * time.Millisecond
		l := runtime.NewLanes(runtime.LanesConfig{})
		most := int64(len(queryBytes)) * int64(4*target/mean)
		want := func(when string, lasts bool) {
			t.Helper()
			for held, want := range map[int64]bool{
				1 << 20: false, most * 9 / 10: false, most * 5 / 4: lasts,
			} {
				if got := l.RefusesUnread(held); got != want {
					t.Errorf("%s: beside %d bytes got %v, want %v", when, held, got, want)
				}
			}
		}
		want("at first", false)
		model, _ := runs(mean, mean, steady)
		closedLoop(t, 2, model, target, 0, time.Second, l)
		want("with two clients", false)
		closedLoop(t, 8, model, target, 0, time.Second, l)
		want("with eight", true)
		const refused = 20
		first, last := l.UnreadError(most), new(runtime.OverloadedError)
		for range refused {
			last = l.UnreadError(most)
		}
		if wait := last.RetryAfter - first.RetryAfter; wait < refused*mean*9/10 ||
			wait > refused*mean*11/10 || first.WaitingBytes != most {
			t.Errorf("got %+v, and %d refusals later %+v, want %v more", *first, refused, *last,
				refused*mean)
		}
		for range 3 {
			time.Sleep(2 * target)
			want("while others are refused", true)
		}
		time.Sleep(4 * target)
		want("while none comes", false)
		for range 40 {
			_, err := l.Do(t.Context(), runtime.Query{
				Model: model, Inputs: []tensor.Tensor{{Data: queryBytes}}, BatchSize: 256,
				Profile: "wnd/1", Arrival: time.Now().Add(-11 * target), QoSTarget: target,
				Deadline: time.Now().Add(-target), Refuse: true,
			})
			if !errors.Is(err, runtime.ErrDeadline) {
				t.Fatal(err)
			}
			time.Sleep(target / 8)
		}
		want("while deadlines pass before queries have been read", true)
	})
}

// otherAtFirst is a model whose first runs take other times.
type otherAtFirst struct {
	timed
	first []time.Duration
	runs  *atomic.Int64
}

func (m otherAtFirst) Run(ctx context.Context, inputs []tensor.Tensor) (*runtime.Result, error) {
	if n := int(m.runs.Add(1)); n <= len(m.first) {
		m.mean = m.first[n-1]
	}
	return m.timed.Run(ctx, inputs)
}

// TestFirstRuns: first runs on one core that were so slow by accident, or so different, that
// queries seem to have no time for one do not keep the lane whole for ever, nor do clients that try
// again all at once.
func TestFirstRuns(t *testing.T) {
	const target, lasts, onCore = 25 * time.Millisecond, 20 * time.Second, 12 * time.Millisecond
	for _, first := range [][]time.Duration{
		{18 * time.Millisecond, 18 * time.Millisecond},
		{3 * time.Millisecond, 20 * time.Millisecond, 3 * time.Millisecond, 20 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := runtime.NewLanes(runtime.LanesConfig{Lanes: 1, Cores: 2})
			cut := new(atomic.Int64)
			model := runtime.Divisible(timed{8 * time.Millisecond, cut, steady},
				otherAtFirst{timed{onCore, cut, steady}, first, new(atomic.Int64)})
			got := closedLoop(t, 8, model, target, 0, lasts, l).inTime(target)
			if possible := int(2 * lasts / onCore); got*100 < possible*82 {
				t.Errorf("first runs of %v: %d are in time, want at least 82 %% of %d", first, got,
					possible)
			}
		})
	}
}

// TestBurst: queries that come at once while nobody waits are all answered, though most are late
// and a query in time has kept the lane busy just before.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const target = 25 * time.Millisecond
		l := runtime.NewLanes(runtime.LanesConfig{})
		for _, mean := range []time.Duration{8 * time.Millisecond, 40 * time.Millisecond} {
			model, _ := runs(mean, mean, steady)
			for _, pause := range []time.Duration{0, time.Second} {
				warm := closedLoop(t, 1, model, target, 0, time.Second, l)
				if warm.refused+warm.deadline > 0 {
					t.Errorf("one client: %d refused", warm.refused+warm.deadline)
				}
				time.Sleep(pause)
				n := int(200 * time.Millisecond / mean)
				got := closedLoop(t, n, model, target, 0, time.Nanosecond, l)
				if len(got.answered) != n {
					t.Errorf("%d of %d are answered, %d refused, %d at their deadline",
						len(got.answered), n, got.refused, got.deadline)
				}
			}
		}
	})
}

// TestRefusalsBelowCapacity: where queries at random times keep a lane busy for seven tenths of the
// time, hardly more are refused than would else wait until their deadline.
func TestRefusalsBelowCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const target, mean, queries = 25 * time.Millisecond, 8 * time.Millisecond, 20_000
		l := runtime.NewLanes(runtime.LanesConfig{})
		model, _ := runs(mean, mean, steady)
		var refused, deadline atomic.Int64
		var all sync.WaitGroup
		r := rand.New(rand.NewPCG(21, 1))
		for range queries {
			time.Sleep(time.Duration(r.ExpFloat64() * float64(mean) / 0.7))
			all.Go(func() {
				result, err := l.Do(t.Context(), runtime.Query{
					Model: model, BatchSize: 256, Profile: "wnd/1", QoSTarget: target,
					Deadline: time.Now().Add(10 * target), Refuse: true,
				})
				var over *runtime.OverloadedError
				switch {
				case err == nil:
					result.Release()
				case errors.As(err, &over):
					refused.Add(1)
				default:
					deadline.Add(1)
				}
			})
		}
		all.Wait()
		t.Logf("%d of %d refused, %d at their deadline", refused.Load(), queries, deadline.Load())
		if refused.Load() > queries/100 || deadline.Load() > queries/1000 {
			t.Errorf("%d of %d queries refused, %d at their deadline", refused.Load(), queries,
				deadline.Load())
		}
	})
}

// TestSlowModel: queries that take longer than their target, all late, are served in turn.
func TestSlowModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const target = 25 * time.Millisecond
		l := runtime.NewLanes(runtime.LanesConfig{})
		model, _ := runs(40*time.Millisecond, 40*time.Millisecond, steady)
		got := closedLoop(t, 4, model, target, 0, 10*time.Second, l)
		if got.refused+got.deadline > 0 || len(got.answered) < 230 {
			t.Errorf("answered %d of 250, refused %d, deadline %d", len(got.answered), got.refused,
				got.deadline)
		}
	})
}

// TestRetryBesideLongRun: who is refused while lanes run what takes long, and longer than anybody
// knew, is not told to try again at once, again and again. So is who rejects to be late.
func TestRetryBesideLongRun(t *testing.T) {
	const long = 29 * time.Second
	for _, name := range []string{"refused", "late"} {
		t.Run(name, func(t *testing.T) {
			onStage(t, runtime.LanesConfig{MaxWaiting: 1}, func(t *testing.T, s *stage) {
				s.takes = func(rows int) time.Duration { return time.Duration(rows) * time.Second }
				// Nothing is known yet of how long the model takes.
				s.send(t.Context(), "first", int(long/time.Second), nil)
				s.send(t.Context(), "waits", 1, nil)
				tries := 0
				for begin := time.Now(); time.Since(begin) < long; tries++ {
					q := runtime.Query{
						Model: s.model, Inputs: []tensor.Tensor{{Data: queryBytes}}, BatchSize: 1,
						Profile: "m/1",
					}
					if name == "late" {
						q.Arrival, q.QoSTarget = time.Now().Add(-time.Second), time.Millisecond
						q.RejectLate = true
					}
					_, err := s.lanes.Do(t.Context(), q)
					var over *runtime.OverloadedError
					var late *runtime.LateError
					switch {
					case name == "refused" && errors.As(err, &over):
						time.Sleep(over.RetryAfter)
					case name == "late" && errors.As(err, &late) && errors.Is(err, runtime.ErrLate):
						time.Sleep(late.RetryAfter)
					default:
						t.Fatalf("got %v", err)
					}
				}
				if tries > 20 {
					t.Errorf("it tried %d times in %v, want at most 20", tries, long)
				}
			})
		})
	}
}
