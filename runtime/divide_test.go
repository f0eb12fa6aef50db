package runtime_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/queue"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

func divide(q *runtime.Query) { q.Divide = true }

// dueIn lets a lane divide for a query with a QoS target.
func dueIn(d time.Duration) func(*runtime.Query) {
	return func(q *runtime.Query) { q.Divide, q.QoSTarget = true, d }
}

// TestDivide: a lane of two cores runs queries side by side from when two wait until hardly any come.
// On one core a row takes 1.5 ms, as nobody knows at first.
func TestDivide(t *testing.T) {
	onStage(t, runtime.LanesConfig{Cores: 2}, func(t *testing.T, s *stage) {
		ctx := context.Background()
		s.learn()
		s.send(ctx, "a", 10, divide)
		s.send(ctx, "b", 10, divide)
		s.send(ctx, "c", 4, divide)
		time.Sleep(12 * ms)
		stats := s.lanes.Stats()
		// Of b and c 20 and 8 ms are expected, twice what they take on the lane; 2 have passed.
		if got := stats.RemainingByLane[0].Round(ms / 100); stats.Running != 2 || got != 12*ms ||
			stats.Remaining.Round(ms/100) != 6*ms {
			t.Errorf("two run side by side: %+v, the lane is busy for %v", stats, got)
		}
		time.Sleep(2 * ms)
		s.send(ctx, "d", 2, divide)
		s.wg.Wait()
		// Both cores are free, but others come.
		s.send(ctx, "e", 2, divide)
		s.send(ctx, "f", 4, divide)
		s.wg.Wait()
		time.Sleep(100 * ms) // no others come
		s.send(ctx, "g", 2, divide)
		s.send(ctx, "h", 2, divide)
		s.want("a: ok at 10ms", "c: ok on a core at 16ms", "d: ok on a core after 2ms at 19ms",
			"b: ok on a core at 25ms", "e: ok on a core after 0s at 28ms",
			"f: ok on a core after 0s at 31ms", "g: ok after 0s at 133ms", "h: ok after 2ms at 135ms")
		if got, want := s.lanes.Stats().Busy, (11+10+2+2)*ms+(15+6+3+3+6)*ms/2; got != want {
			t.Errorf("busy for %v, want %v", got, want)
		}
	})
}

// onCore returns how many queries have run on one core.
func (s *stage) onCore() (n int) {
	for _, outcome := range s.done {
		if strings.Contains(outcome, "core") {
			n++
		}
	}
	return n
}

// TestLoneClientHasTheLane: after others have shared a lane with it, a client that sends one query
// after the other soon has the whole lane again, while two go on to share it.
func TestLoneClientHasTheLane(t *testing.T) {
	for clients := 1; clients <= 2; clients++ {
		onStage(t, runtime.LanesConfig{Cores: 2}, func(t *testing.T, s *stage) {
			s.learn()
			for range 4 {
				s.send(t.Context(), "", 10, divide)
			}
			s.wg.Wait()
			s.done = nil
			for range clients {
				s.wg.Go(func() {
					for range 30 {
						s.ask(t.Context(), "", 10, divide)
						time.Sleep(ms)
					}
				})
			}
			s.wg.Wait()
			onCore := s.onCore()
			if clients == 1 && (onCore == 0 || onCore > 25) || clients == 2 && onCore != 60 {
				t.Errorf("%d clients: %d of %d on a core", clients, onCore, len(s.done))
			}
		})
	}
}

// TestDivideLearns: what runs on one core is expected to take as long as it took there, and nobody
// learns of it for the whole lane.
func TestDivideLearns(t *testing.T) {
	onStage(t, runtime.LanesConfig{Cores: 2}, func(t *testing.T, s *stage) {
		ctx := context.Background()
		s.learn()
		for range 2 {
			s.send(ctx, "", 1, divide)
			s.send(ctx, "", 2, divide)
			s.send(ctx, "", 8, divide)
			s.wg.Wait()
		}
		s.send(ctx, "", 1, divide)
		s.send(ctx, "", 10, divide)
		s.send(ctx, "", 10, divide)
		time.Sleep(1 * ms)
		synctest.Wait()
		if got := s.lanes.RemainingByLane()[0].Round(ms); got != 15*ms {
			t.Errorf("the lane is busy for %v, want 15 ms", got)
		}
		s.wg.Wait()
		time.Sleep(time.Second)
		s.send(ctx, "", 10, divide)
		if got := s.lanes.RemainingByLane()[0].Round(ms / 10); got != 10*ms {
			t.Errorf("the whole lane is busy for %v, want 10 ms", got)
		}
	})
}

// TestNotDivided: a lane stays whole for what must not, cannot or would rather not run on one core,
// and no query overtakes the next one because of it.
func TestNotDivided(t *testing.T) {
	for name, change := range map[string]func(*runtime.Query){
		"not allowed":                 nil,
		"in time on the whole lane":   dueIn(17 * ms), // 5 ms run before it, and on one core 20
		"of a model that runs on all": func(q *runtime.Query) { q.Divide, q.Model = true, whole{q.Model} },
		"nobody knows how long":       func(q *runtime.Query) { q.Divide, q.Profile = true, "other/1" },
	} {
		t.Run(name, func(t *testing.T) {
			onStage(t, runtime.LanesConfig{Cores: 2}, func(t *testing.T, s *stage) {
				ctx := context.Background()
				s.learn()
				s.send(ctx, "a", 5, divide)
				s.send(ctx, "b", 10, change)
				s.send(ctx, "c", 2, divide)
				s.send(ctx, "d", 4, divide)
				s.want("a: ok at 5ms", "b: ok at 15ms", "c: ok on a core at 18ms",
					"d: ok on a core at 21ms")
			})
		})
	}
}

// TestLateForOneCore: a query that has waited until it is late for one core, but not for the whole lane,
// gets the whole lane. It does not while as many wait as the lane has cores, as that takes more of its
// time.
func TestLateForOneCore(t *testing.T) {
	onStage(t, runtime.LanesConfig{Cores: 4}, func(t *testing.T, s *stage) {
		ctx := t.Context()
		s.learn()
		reject := func(q *runtime.Query) { dueIn(100 * ms)(q); q.RejectLate = true }
		s.send(ctx, "long", 70, nil)
		s.send(ctx, "a", 10, reject) // on one core 40 ms are expected
		s.wg.Wait()
		s.want("long: ok at 70ms", "a: ok at 80ms")

		s.done, s.at = nil, time.Now()
		s.send(ctx, "long", 70, nil)
		s.send(ctx, "no target", 10, nil)
		s.send(ctx, "a", 10, dueIn(100*ms))
		s.wg.Wait()
		s.want("long: ok at 70ms", "a: ok at 80ms", "no target: ok at 90ms")

		s.done, s.at = nil, time.Now()
		s.send(ctx, "long", 70, nil)
		for range 4 {
			s.send(ctx, "b", 10, reject)
		}
		s.want("b: late at 60ms", "long: ok at 70ms", "b: ok at 80ms", "b: ok at 90ms",
			"b: ok at 100ms")
	})
}

// narrow has one row take 300 us on a core and 350 us on the whole lane, and ten rows 1.2 ms and 0.8.
func (s *stage) narrow() {
	s.takes = func(rows int) time.Duration { return time.Duration(300+50*rows) * ms / 1000 }
	s.takesOnCore = func(rows int) time.Duration { return time.Duration(200+100*rows) * ms / 1000 }
	s.learn()
}

// TestNarrow: one core runs what it serves as fast as the whole lane, as the first such query shows;
// others run beside it. What takes longer on one core waits for the whole lane, and is not overtaken.
func TestNarrow(t *testing.T) {
	onStage(t, runtime.LanesConfig{Cores: 2}, func(t *testing.T, s *stage) {
		ctx := t.Context()
		s.narrow()
		s.send(ctx, "a", 1, divide)
		s.wg.Wait()
		s.send(ctx, "b", 1, divide)
		time.Sleep(ms / 10)
		s.send(ctx, "c", 1, divide)
		if got := s.lanes.Stats(); got.Running != 2 || got.Remaining.Round(ms/100) != ms/5 {
			t.Errorf("two run side by side: %+v", got)
		}
		s.wg.Wait()
		s.send(ctx, "d", 1, divide)
		time.Sleep(ms / 10)
		s.send(ctx, "e", 10, divide)
		time.Sleep(ms / 2)
		s.send(ctx, "f", 1, divide)
		s.want("a: ok on a core at 300µs", "b: ok on a core after 0s at 600µs",
			"c: ok on a core after 0s at 700µs", "d: ok on a core after 0s at 1ms",
			"e: ok after 200µs at 1.8ms", "f: ok on a core after 500µs at 2.1ms")
	})
}

// TestNarrowLeaveTurns: a query without a target that needs the whole lane waits for a moment when none
// waits that goes before it, but not until none runs.
func TestNarrowLeaveTurns(t *testing.T) {
	for _, policy := range []names.MergePolicy{"", names.MergeDeadline} {
		onStage(t, runtime.LanesConfig{Cores: 2}, func(t *testing.T, s *stage) {
			s.narrow()
			for client := range 2 {
				s.wg.Go(func() {
					time.Sleep(time.Duration(client) * 100 * time.Microsecond)
					for range 1000 {
						s.ask(t.Context(), "", 1, dueIn(10*ms))
					}
				})
			}
			time.Sleep(ms)
			s.ask(t.Context(), "", 10, func(q *runtime.Query) {
				q.Merge, q.LargestBatch = policy, 100
			})
			if waited := time.Since(s.at); waited > 110*ms {
				t.Errorf("merging by %q: answered after %v, want little more than %v", policy, waited,
					queue.BackgroundWait)
			}
		})
	}
}

// TestNarrowLearns: now and then a short query runs the other way. So the lanes notice when one core
// takes longer than all, and when it no longer does. Long queries have all cores, whatever is known.
func TestNarrowLearns(t *testing.T) {
	onStage(t, runtime.LanesConfig{Cores: 2}, func(t *testing.T, s *stage) {
		onCore := func(queries, rows int) int {
			s.done = nil
			for range queries {
				s.ask(t.Context(), "", rows, divide)
			}
			return s.onCore()
		}
		s.narrow()
		if got := onCore(1280, 1); got != 1270 {
			t.Errorf("%d of 1280 on a core, want all but each 128th", got)
		}
		s.takesOnCore = func(int) time.Duration { return ms }
		onCore(1280, 1)
		if got := onCore(1280, 1); got != 10 {
			t.Errorf("%d of 1280 on a core when that takes longer, want each 128th", got)
		}
		if got := onCore(1280, 10); got != 0 {
			t.Errorf("%d long queries of 1280 on a core, want none", got)
		}
		s.takesOnCore = func(int) time.Duration { return ms / 5 }
		for range 500 { // some wait, so that it is known
			for range 4 {
				s.send(t.Context(), "", 10, divide)
			}
			s.wg.Wait()
		}
		time.Sleep(100 * ms)
		if got := onCore(1280, 10); got != 0 {
			t.Errorf("%d long queries of 1280 on a core, which has once taken less; want none", got)
		}
		onCore(128*200, 1)
		if got := onCore(1280, 1); got != 1270 {
			t.Errorf("%d of 1280 on a core when that takes less again, want all but each 128th", got)
		}
	})
}

// TestDividesOrMerges: queries that wait run on one core each, or as one on all, whichever takes less
// of the lane's time; and it is noticed when that changes.
func TestDividesOrMerges(t *testing.T) {
	onStage(t, runtime.LanesConfig{Cores: 2}, func(t *testing.T, s *stage) {
		longer := 1.5 // than on all cores
		s.takes = func(rows int) time.Duration { return time.Duration(4+rows) * ms }
		s.takesOnCore = func(rows int) time.Duration {
			return time.Duration(longer * float64(s.takes(rows)))
		}
		s.learn()
		onCore := func(queries, rows int) float64 {
			s.done = nil
			for range 8 {
				s.wg.Go(func() {
					for range queries / 8 {
						s.ask(t.Context(), "", rows, func(q *runtime.Query) {
							q.Divide, q.Merge, q.LargestBatch = true, names.MergeDeadline, 100
						})
					}
				})
			}
			s.wg.Wait()
			return float64(s.onCore()) / float64(len(s.done))
		}
		// Alone a query takes 20 ms, on one core 30, and four take 68 together: 17 each, beside 15.
		if got := onCore(800, 16); got < 0.98 {
			t.Errorf("large queries: %.2f on a core, want all but the last", got)
		}
		// Alone a query takes 8 ms, on one core 12, and four take 20 together: 5 each, beside 6.
		if got := onCore(800, 4); got > 0.02 {
			t.Errorf("small queries: %.2f on a core, want those that try", got)
		}
		longer = 2.5
		onCore(4000, 16)
		if got := onCore(800, 16); got > 0.02 {
			t.Errorf("when a core is slow: %.2f on a core, want those that try", got)
		}
		longer = 1.5
		onCore(8000, 16)
		if got := onCore(800, 16); got < 0.98 {
			t.Errorf("when a core is fast again: %.2f on a core, want all but the last", got)
		}
	})
}

// whole is a model that does not run on one core.
type whole struct{ runtime.Model }

// TestDivideRandomly: whatever comes, a lane runs one query, or as many as it has cores on one core
// each; every query ends, and the lanes are whole in the end.
func TestDivideRandomly(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		lanes, cores := 1+r.IntN(3), 2+r.IntN(3)
		onStage(t, runtime.LanesConfig{Lanes: lanes, Cores: cores},
			func(t *testing.T, s *stage) {
				var busy occupied
				if seed%2 == 0 { // one core serves small queries as fast
					s.takesOnCore = func(rows int) time.Duration {
						return time.Duration(3*rows-3)*ms/2 + ms/2
					}
				}
				s.model = runtime.Divisible(busy.by(s.whole, cores), busy.by(s.single, 1))
				s.learn()
				for range 100 {
					time.Sleep(time.Duration(r.ExpFloat64() * float64(3*ms)))
					ctx, cancel := context.WithCancel(t.Context())
					if r.IntN(10) == 0 {
						time.AfterFunc(time.Duration(r.IntN(20))*ms, cancel)
					}
					defer cancel()
					s.send(ctx, "", 1+r.IntN(20), func(q *runtime.Query) {
						q.Divide, q.Background = r.IntN(4) > 0, r.IntN(10) == 0
						q.RejectLate, q.Refuse = r.IntN(10) == 0, r.IntN(3) == 0
						if r.IntN(2) == 0 {
							q.QoSTarget = time.Duration(r.IntN(100)) * ms
							q.Deadline = time.Now().Add(3 * q.QoSTarget)
						}
						q.Merge = []names.MergePolicy{"", names.MergeDeadline}[r.IntN(2)]
						q.LargestBatch = 40
					})
				}
				s.wg.Wait()
				if busy.most > lanes*cores || busy.most < cores {
					t.Errorf("seed %d: %d cores were busy at once, of %d lanes of %d", seed,
						busy.most, lanes, cores)
				}
				// All lanes are whole: each of them runs one that must have a whole one.
				for range lanes {
					s.send(t.Context(), "", 5, nil)
				}
				if stats := s.lanes.Stats(); stats.Running != lanes || stats.Waiting != 0 {
					t.Errorf("seed %d: %+v", seed, stats)
				}
			})
	}
}

// occupied counts cores that are busy.
type occupied struct {
	mu        sync.Mutex
	now, most int
}

// by returns a model whose runs keep n cores busy.
func (o *occupied) by(m runtime.Model, n int) runtime.Model { return occupying{m, o, n} }

type occupying struct {
	runtime.Model
	all *occupied
	n   int
}

func (m occupying) Run(ctx context.Context, inputs []tensor.Tensor) (*runtime.Result, error) {
	add := func(n int) {
		m.all.mu.Lock()
		defer m.all.mu.Unlock()
		m.all.now += n
		m.all.most = max(m.all.most, m.all.now)
	}
	add(m.n)
	defer add(-m.n)
	return m.Model.Run(ctx, inputs)
}

// TestDivideONNX: on one core of a lane a model gives the answers that it gives on all, from the same
// tables in memory.
func TestDivideONNX(t *testing.T) {
	const rows, dim, size = 1 << 18, 64, 64 << 20
	var data []byte
	for i := range rows {
		data = append(data, bytes.Repeat(floats(float32(i)), dim)...)
	}
	v := gatheredFrom(t, rows, dim, data)
	data = nil
	file := filepath.Join(filepath.Dir(v.Path), "model.onnx.data")
	for _, mapped := range []bool{true, false} {
		x, err := runtime.OpenONNX(runtime.Config{
			LibraryPath: runtimetest.Library(t), Provider: runtime.CPU, Cores: 2,
			MapData: mapped, Divide: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		before := anonymous(t)
		m, err := x.Load(t.Context(), v)
		if err != nil {
			t.Fatal(err)
		}
		grown, maps := anonymous(t)-before, must(os.ReadFile("/proc/self/maps"))
		if n := strings.Count(string(maps), file); mapped && (n != 1 || grown > size/2) ||
			!mapped && (n != 0 || grown > size*3/2) {
			t.Errorf("mapped %v: memory grew by %d bytes for a table of %d, mapped %d times",
				mapped, grown, size, n)
		}
		if !mapped { // what becomes of the file changes nothing
			if err := os.Truncate(file, 0); err != nil {
				t.Fatal(err)
			}
		}
		divided := 0
		lanes := runtime.NewLanes(runtime.LanesConfig{Cores: 2})
		for range 3 { // nobody knows at first how long it takes, so it does not divide
			for i, r := range atOnce(t, lanes, m, 8, rows) {
				if r.Divided == 2 {
					divided++
				}
				if got := must(tensor.Values[float32](r.Outputs[0])); got[0] != float32(i) ||
					got[len(got)-1] != rows-1 {
					t.Errorf("query %d: got %v to %v", i, got[0], got[len(got)-1])
				}
				r.Release()
			}
		}
		if divided < 8 {
			t.Errorf("%d of 24 queries ran on one core", divided)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

// atOnce runs queries for two rows of a table, one of them that with the query's number, which all
// wait before the first one runs. It returns their results.
func atOnce(t *testing.T, l *runtime.Lanes, m runtime.Model, n, rows int) []*runtime.Result {
	t.Helper()
	go_, started := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	do := func(q runtime.Query) *runtime.Result {
		r, err := l.Do(t.Context(), q)
		if err != nil {
			t.Error(err)
			return &runtime.Result{}
		}
		return r
	}
	all.Go(func() { do(runtime.Query{Model: blocked{started, go_}, Profile: "blocked/1"}).Release() })
	<-started
	results := make([]*runtime.Result, n)
	for i := range results {
		all.Go(func() {
			ids := must(tensor.Of("ids", []int64{int64(i), int64(rows - 1)}, 2))
			results[i] = do(runtime.Query{
				Model: m, Inputs: []tensor.Tensor{ids}, BatchSize: 2, Profile: "m/1", Divide: true,
			})
		})
	}
	for l.Stats().Waiting < n {
		time.Sleep(time.Millisecond)
	}
	close(go_)
	all.Wait()
	return results
}

// blocked is a model whose run says that it has started, and ends when it may.
type blocked struct{ started, end chan struct{} }

func (m blocked) Run(context.Context, []tensor.Tensor) (*runtime.Result, error) {
	close(m.started)
	<-m.end
	return &runtime.Result{}, nil
}

func (blocked) Close() error { return nil }

// anonymous returns how many bytes of this process's memory are of no file, once Go has given back
// what it does not need.
func anonymous(t *testing.T) (size int) {
	t.Helper()
	debug.FreeOSMemory()
	status := string(must(os.ReadFile("/proc/self/status")))
	_, line, _ := strings.Cut(status, "RssAnon:")
	if _, err := fmt.Sscanf(line, "%d kB", &size); err != nil {
		t.Fatal(err)
	}
	return size << 10
}
