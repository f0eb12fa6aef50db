package releasing

import (
	"context"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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
