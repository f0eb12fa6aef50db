package release

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/canary"
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
						ModelRollout: leader.ModelRollout{Model: "ncf", Rollout: r.Of("ncf")},
						Serves:       true,
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

// TestBounded: what an older agent tells, or an earlier version has kept, does not go on to others
// as it came: texts are cut, and a number that leaves no room for later ones is left out. Only the
// owner may read the file.
func TestBounded(t *testing.T) {
	long := strings.Repeat("why", 1<<20)
	dir := t.TempDir()
	path := filepath.Join(dir, "releases.json")
	kept := &control.View{Releases: []*control.Release{
		{Model: "ncf", Number: 3, Current: 2, Why: long, By: long},
		{Model: "wnd", Number: 1<<63 - 1, Kept: 1<<63 - 1, Current: 2},
	}}
	text, err := protojson.Marshal(kept)
	if err == nil {
		err = os.WriteFile(path, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	r := New(Config{
		StateDir: dir, Apply: func([]*control.Release) {},
		Registry: prometheus.NewRegistry(), Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	is := func(when string, want ...string) {
		t.Helper()
		var got []string
		for _, x := range r.All() {
			got = append(got, fmt.Sprint(x.GetModel(), " ", x.GetNumber()))
			if len(x.GetWhy()) > control.MaxWhyBytes || len(x.GetBy()) > control.MaxByBytes {
				t.Errorf("%s: %s has a text of %d bytes, made by one of %d", when, x.GetModel(),
					len(x.GetWhy()), len(x.GetBy()))
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", when, got, want)
		}
	}
	is("kept", "ncf 3")
	if !strings.Contains(log.String(), "wnd: number 9223372036854775807") {
		t.Errorf("the log does not say what was left out: %s", &log)
	}
	r.AdoptReleases([]*control.Release{
		{Model: "ncf", Number: 4, Current: 2, Why: long},
		{Model: "ncf", Number: 1 << 62, Current: 2},
		{Model: "wnd", Number: 1, Kept: 1 << 62, Current: 2},
		{Model: "wnd", Number: 7, Kept: 7, Current: 1},
	})
	is("heard", "ncf 4", "wnd 7")
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 || info.Size() > 1<<14 {
		t.Errorf("releases.json: got %v of %d bytes, %v, want -rw------- and few", info.Mode(),
			info.Size(), err)
	}
}

// A tried is an agent that leads, with version 4 of ncf on trial beside version 3.
type tried struct {
	*Releases
	counted atomic.Pointer[canary.Trial] // what its leader counts
	log     lockedText
}

// A lockedText is a log that may be read while it is written.
type lockedText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// try makes one, and has test look at it. Time is virtual.
func try(t *testing.T, req *control.SetReleaseRequest, test func(*testing.T, *tried)) {
	synctest.Test(t, func(t *testing.T) {
		x := &tried{}
		x.counted.Store(&canary.Trial{})
		x.Releases = New(Config{
			StateDir: t.TempDir(), Apply: func([]*control.Release) {},
			Registry: prometheus.NewRegistry(), Log: slog.New(slog.NewTextHandler(&x.log, nil)),
		})
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer stop()
		running.Go(func() {
			x.Run(ctx, Term{
				Epoch: 1, Tell: func([]*control.Release) {},
				Trials: func() []leader.Trial {
					return []leader.Trial{{
						ModelRollout: leader.ModelRollout{Model: "ncf", Rollout: x.Of("ncf")},
						Serves:       true,
						Trial:        *x.counted.Load(),
					}}
				},
				Serving: func() map[string][]int64 { return map[string][]int64{"ncf": {3, 4}} },
			})
		})
		synctest.Wait()
		req.Model, req.Version, req.Share = "ncf", 4, .05
		if _, err := x.Set(ctx, req); err != nil {
			t.Fatal(err)
		}
		test(t, x)
	})
}

// after lets time pass and returns the state of the release then.
func (x *tried) after(t *testing.T, passes time.Duration) *control.ReleaseState {
	t.Helper()
	time.Sleep(passes)
	synctest.Wait()
	resp, err := x.State("ncf")
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetReleases()[0]
}

// TestUndecided: a canary whose promotion is due and that fails 6 of 50 queries stays on trial. The
// state and an event say why.
func TestUndecided(t *testing.T) {
	try(t, &control.SetReleaseRequest{PromoteQueries: 50}, func(t *testing.T, x *tried) {
		counted := &canary.Trial{}
		counted.Canary.CountFailed(1, 6)
		counted.Canary.Classes[0].Answered = 44
		counted.Current.Classes[0].Answered = 950
		x.counted.Store(counted)
		const says = "undecided: 12 % of 50 queries failed, 0.0 % of the current version's 950: "
		if s := x.after(t, 3*every); s.GetState() != "on trial" ||
			!strings.HasPrefix(s.GetVerdict(), says) {
			t.Errorf("got %v, want it undecided", s)
		}
		events := func() int { return strings.Count(x.log.String(), says) }
		if n := events(); n != 1 {
			t.Errorf("%d events say so, want one:\n%s", n, &x.log)
		}
		x.mu.Lock()
		x.trials["ncf"].age += remindAfter // a day of looking each second takes a while
		x.mu.Unlock()
		x.after(t, every)
		if n := events(); n != 2 {
			t.Errorf("%d events say so after a day, want another one", n)
		}
	})
}

// TestCompared: what counts as wrong, and whether promotion needs it.
func TestCompared(t *testing.T) {
	answers := func(compared, wrong uint64, sum float64) []*control.AnswersCompared {
		return []*control.AnswersCompared{{
			Model: "ncf", Canary: 4, Current: 3, Compared: compared, Wrong: wrong, Sum: sum,
		}}
	}
	good := canary.Trial{}
	good.Canary.Classes[0].Answered, good.Current.Classes[0].Answered = 1000, 19_000
	t.Run("not asked for", func(t *testing.T) {
		// as the command asks; older agents compare nevertheless
		req := &control.SetReleaseRequest{Tolerance: control.OlderTolerance(nil)}
		try(t, req, func(t *testing.T, x *tried) {
			if x.Compares("ncf") {
				t.Error("answers are to be compared")
			}
			x.Releases.Compared(answers(50, 50, 1))
			if s := x.after(t, 3*every); s.GetState() != "on trial" ||
				s.GetAnswers().GetCompared() > 0 {
				t.Errorf("got %v", s)
			}
		})
	})
	t.Run("by an older command", func(t *testing.T) {
		try(t, &control.SetReleaseRequest{PromoteQueries: 1}, func(t *testing.T, x *tried) {
			if within, compared := x.All()[0].ComparedWithin(); within != .05 || !compared ||
				!x.Compares("ncf") {
				t.Errorf("got %v, %v, want 0.05", within, compared)
			}
			x.counted.Store(&good)
			if s := x.after(t, 3*every); s.GetState() != "released" {
				t.Errorf("nothing was compared: got %v, want it promoted as before", s)
			}
		})
	})
	t.Run("asked for", func(t *testing.T) {
		req := &control.SetReleaseRequest{PromoteQueries: 1, MaxDifference: proto.Float64(0)}
		try(t, req, func(t *testing.T, x *tried) {
			x.counted.Store(&good)
			if s := x.after(t, 3*every); s.GetState() != "on trial" || !strings.Contains(
				s.GetVerdict(), "undecided: 0 of 0 compared answers differ") {
				t.Errorf("nothing was compared: got %v", s)
			}
			x.Releases.Compared(answers(2000, 0, math.NaN()))
			if s := x.after(t, 3*every); s.GetState() != "on trial" ||
				s.GetAnswers().GetCompared() > 0 {
				t.Errorf("a sum that is no number: got %v", s)
			}
			x.Releases.Compared(answers(2000, 0, 1))
			if s := x.after(t, 3*every); s.GetState() != "released" {
				t.Errorf("2000 answers alike: got %v, want it promoted", s)
			}
		})
	})
}

// TestGoesOn: a trial is counted anew if what it compares is another.
func TestGoesOn(t *testing.T) {
	of := func(current, canary int64, share float64, most float64) *control.Release {
		return &control.Release{
			Current: current, Canary: canary, Share: share, MaxDifference: &most,
		}
	}
	for _, tt := range []struct {
		what         string
		before, next *control.Release
		want         bool
	}{
		{"other terms", of(3, 4, .1, 0), of(3, 4, .1, 0), true},
		{"taken back", of(3, 4, .1, 0), of(3, 4, 0, 0), true},
		{"tried again", of(3, 4, 0, 0), of(3, 4, .1, 0), false},
		{"a larger share", of(3, 4, .1, 0), of(3, 4, .2, 0), false},
		{"another difference", of(3, 4, .1, 0), of(3, 4, .1, .1), false},
		{"another canary", of(3, 4, .1, 0), of(3, 5, .1, 0), false},
		{"another current version", of(3, 4, .1, 0), of(2, 4, .1, 0), false},
		{"promoted", of(3, 4, .1, 0), of(4, 0, 0, 0), false},
	} {
		if got := goesOn(tt.before, tt.next); got != tt.want {
			t.Errorf("%s: got %v", tt.what, got)
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
		sides[0].AdoptReleases(second)
		sides[1].AdoptReleases(first)
		if a, b := sides[0].Of("ncf"), sides[1].Of("ncf"); a != b {
			t.Errorf("one side follows %+v, the other %+v", a, b)
		}
	})
}

// A slowStore is a store that cannot be written at first; then it takes what was to be written
// until it is told to go on, and denies what others write meanwhile.
type slowStore struct {
	denies atomic.Bool
	goOn   chan struct{}
	mu     sync.Mutex
	has    []*control.Release
}

func (s *slowStore) Versions(context.Context, string) ([]int64, error) {
	return []int64{1, 3, 4}, nil
}

func (s *slowStore) Create(ctx context.Context, r *control.Release) (*control.Release, error) {
	if s.denies.Load() {
		return nil, errors.New("denied")
	}
	s.denies.Store(true)
	defer s.denies.Store(false)
	select {
	case <-s.goOn:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.has = append(s.has, r)
	return nil, nil
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
		r.AdoptReleases([]*control.Release{{
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
