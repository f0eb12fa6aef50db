package releasing

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader"
)

// TestTrialAgain: a canary that was taken back for wrong answers and is tried again, say after its
// tolerance was set, is judged by the answers from then on. Time is virtual.
func TestTrialAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Config{
			StateDir: t.TempDir(), Apply: func([]*control.Release) {},
			Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
		})
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer stop()
		running.Go(func() {
			r.Run(ctx, Term{
				Epoch: 1, Tell: func([]*control.Release) {},
				Trials: func() []leader.Trial {
					return []leader.Trial{{
						Release: leader.Release{Model: "ncf", Release: r.Of("ncf")}, Serves: true,
					}}
				},
				Serving: func() map[string][]int64 { return map[string][]int64{"ncf": {3, 4}} },
			})
		})
		synctest.Wait()
		compared := &control.AnswersCompared{
			Model: "ncf", Canary: 4, Current: 3, Compared: 50, Wrong: 50,
		}
		is := func(when, want string) {
			t.Helper()
			time.Sleep(3 * every)
			synctest.Wait()
			resp, err := r.State("ncf")
			if err != nil || resp.GetReleases()[0].GetState() != want {
				t.Fatalf("%s: got %v, %v, want it %s", when, resp, err, want)
			}
		}
		for model, want := range map[string]string{
			"ncf": `no version of "ncf" was released: its newest version serves`,
			"nfc": `no agent serves model "nfc", the fleet serves: ncf`,
		} {
			if _, err := r.State(model); err == nil || status.Code(err) != codes.NotFound ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %q", model, err, want)
			}
		}
		for round := range 2 {
			if _, err := r.Set(ctx, &control.SetReleaseRequest{
				Model: "ncf", Version: 4, Share: .1,
			}); err != nil {
				t.Fatal(err)
			}
			is("before answers were compared", "on trial")
			if round == 0 {
				r.Compared([]*control.AnswersCompared{compared})
				is("all answers are wrong", "taken back")
				r.Compared([]*control.AnswersCompared{compared}) // which come late
			}
		}
	})
}

// TestValidate: what Set refuses, no release in a store or of another agent may say either.
func TestValidate(t *testing.T) {
	good := func() *control.Release {
		return &control.Release{
			Model: "ncf", Number: 1, Current: 3, Canary: 4, Share: .1, Tolerance: .05,
		}
	}
	if err := Validate(good()); err != nil {
		t.Error(err)
	}
	for _, tt := range []struct {
		change func(*control.Release)
		says   string
	}{
		{func(x *control.Release) { x.Model = "" }, "want a name"},
		{func(x *control.Release) { x.Current = 0 }, "want numbers above 0"},
		{func(x *control.Release) { x.Canary = 3 }, "want another"},
		{func(x *control.Release) { x.Share = math.NaN() }, "below 1"},
		{func(x *control.Release) { x.Tolerance = -1 }, "tolerance -1"},
		{func(x *control.Release) { x.Tolerance = math.NaN() }, "tolerance NaN"},
		{func(x *control.Release) { x.PromoteAfterNs = -1 }, "promote after -1ns"},
	} {
		x := good()
		tt.change(x)
		if err := Validate(x); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%v: got %v, want %q", x, err, tt.says)
		}
	}
}

// TestTwoLeaders: the two sides of a fleet that was cut in two have leaders of the same epoch, and
// both release a model. Once they hear of each other's release, all agents follow the same one.
func TestTwoLeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer stop()
		var sides []*Releases
		for range 2 {
			r := New(Config{
				StateDir: t.TempDir(), Apply: func([]*control.Release) {},
				Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
			})
			sides = append(sides, r)
			running.Go(func() {
				r.Run(ctx, Term{
					Epoch: 5, Tell: func([]*control.Release) {},
					Trials:  func() []leader.Trial { return nil },
					Serving: func() map[string][]int64 { return map[string][]int64{"ncf": {3, 4}} },
				})
			})
		}
		synctest.Wait()
		for i, version := range []int64{3, 4} { // at the same moment
			if _, err := sides[i].Set(ctx, &control.SetReleaseRequest{
				Model: "ncf", Version: version,
			}); err != nil {
				t.Fatal(err)
			}
		}
		first, second := sides[0].All(), sides[1].All()
		sides[0].Heard(second)
		sides[1].Heard(first)
		if a, b := sides[0].Of("ncf"), sides[1].Of("ncf"); a != b {
			t.Errorf("one side follows %+v, the other %+v", a, b)
		}
	})
}

// A slowStore is a store that cannot be written at first; then it takes what was to be written until
// it is told to go on, and denies what others write meanwhile.
type slowStore struct {
	denies atomic.Bool
	goOn   chan struct{}
	mu     sync.Mutex
	has    []*control.Release
}

func (s *slowStore) Versions(context.Context, string) ([]int64, error) {
	return []int64{1, 3, 4}, nil
}

func (s *slowStore) Create(ctx context.Context, r *control.Release) error {
	if s.denies.Load() {
		return errors.New("denied")
	}
	s.denies.Store(true)
	defer s.denies.Store(false)
	select {
	case <-s.goOn:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.has = append(s.has, r)
	return nil
}

// TestTakenBackWhileKept: a version that is taken back, while the store fails, stays so if the
// release before is being written to the store at that moment; and the store gets both.
func TestTakenBackWhileKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowStore{goOn: make(chan struct{})}
		r := New(Config{
			StateDir: t.TempDir(), Apply: func([]*control.Release) {}, Store: s,
			Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
		})
		r.Heard([]*control.Release{{
			Model: "ncf", Number: 2, Kept: 2, Current: 3, Canary: 4, Share: .25, Previous: 1,
		}})
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer stop()
		running.Go(func() {
			r.Run(ctx, Term{
				Epoch: 1, Tell: func([]*control.Release) {},
				Trials:  func() []leader.Trial { return nil },
				Serving: func() map[string][]int64 { return map[string][]int64{"ncf": {1, 3, 4}} },
			})
		})
		synctest.Wait()
		takeBack := func() {
			t.Helper()
			if _, err := r.Set(ctx, &control.SetReleaseRequest{Model: "ncf"}); err != nil {
				t.Fatal(err)
			}
		}
		s.denies.Store(true)
		takeBack() // the canary
		s.denies.Store(false)
		time.Sleep(again + time.Second) // that is being written now
		takeBack()                      // the current version, too
		close(s.goOn)
		synctest.Wait()
		if got := r.Of("ncf").Current; got != 1 {
			t.Errorf("version %d is current, want 1, to which the model was rolled back", got)
		}
		time.Sleep(again)
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := len(s.has); n != 2 || s.has[1].GetNumber() != 4 || s.has[1].GetCurrent() != 1 {
			t.Errorf("the store has got %v, want number 3 and then 4, of version 1", s.has)
		}
	})
}
