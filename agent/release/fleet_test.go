package release_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/runtime"
)

// answered sends n queries that name no version to the agents in turn, and returns how many each
// version answered, and how many failed, as version 0.
func answered(f *agenttest.Fleet, n int, interval time.Duration, agents ...*agenttest.Member) map[string]int {
	f.Helper()
	var sent sync.WaitGroup
	var mu sync.Mutex
	by := map[string]int{}
	for i := range n {
		sent.Go(func() {
			ctx, cancel := context.WithTimeout(f.Context(), 5*time.Second)
			defer cancel()
			resp, err := agents[i%len(agents)].OIP.ModelInfer(ctx, agenttest.NCFRequest(10))
			mu.Lock()
			defer mu.Unlock()
			if by[resp.GetModelVersion()]++; err != nil {
				f.Logf("query %d: %v", i, err)
			}
		})
		time.Sleep(interval)
	}
	sent.Wait()
	return by
}

// answers sends 200 queries and wants each version to have answered its share of them, within five
// standard deviations: a hash of their ids chooses.
func answers(f *agenttest.Fleet, what string, want map[string]float64, agents ...*agenttest.Member) {
	f.Helper()
	const n = 200
	got := answered(f, n, 5*time.Millisecond, agents...)
	for _, v := range slices.Sorted(maps.Keys(got)) {
		most := 5 * math.Sqrt(n*want[v]*(1-want[v]))
		if d := float64(got[v]) - want[v]*n; math.Abs(d) > most || want[v] == 0 {
			f.Errorf("%s: got %v answers by version, want shares %v", what, got, want)
			return
		}
	}
}

// tellsRelease checks that a leader with a canary on trial has the metrics that docs/metrics.md
// lists.
func tellsRelease(f *agenttest.Fleet, leader *agenttest.Member) {
	f.Helper()
	_, documented := agenttest.DocumentedMetrics(f)
	families, err := leader.Registry().Gather()
	if err != nil {
		f.Fatal(err)
	}
	there := 0
	for _, family := range families {
		if name := family.GetName(); strings.HasPrefix(name, "muster_release_") {
			there++
			if served := agenttest.TypeAndLabels(family); documented[name] != served {
				f.Errorf("%s is a %q, docs/metrics.md has %q", name, served, documented[name])
			}
		}
	}
	if there != 4 {
		f.Errorf("there are %d metrics of releases, want 4", there)
	}
}

// TestReleases: the newest version serves until one is released. A canary gets its share through
// each agent, also under the next leader, and nothing once it is rolled back.
func TestReleases(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		dir, with := f.Versions(agenttest.TwoVersions)
		agents := []*agenttest.Member{f.Start(with), f.Start(with), f.Start(with)}
		f.Settled(agents...)
		leader := f.Led(agents...)
		answers(f, "nothing released", map[string]float64{"2": 1}, agents...)
		if resp, err := agents[1].Control.Release(f.Context(), &control.ReleaseRequest{}); err != nil ||
			len(resp.GetReleases()) != 0 {
			f.Errorf("got %v, %v, want no release", resp, err)
		}
		for _, a := range agents { // each passes it to the leader
			f.Release(a, &control.SetReleaseRequest{Version: 1})
		}
		f.Released(1, 0, 0, agents...)
		answers(f, "1 is released", map[string]float64{"1": 1}, agents...)
		f.Publish(dir, 3)
		f.Eventually(10*time.Second, func() string {
			if len(leader.Members().Own().GetModels()) != 3 {
				return "version 3 does not serve"
			}
			return ""
		})
		answers(f, "3 has come", map[string]float64{"1": 1}, agents...)
		state := f.Release(agents[2], &control.SetReleaseRequest{Version: 2, Share: .25})
		if state.GetState() != "on trial" || state.GetRelease().GetBy() != "" {
			f.Errorf("got %v", state)
		}
		f.Released(1, 2, .25, agents...)
		answers(f, "2 is on trial", map[string]float64{"1": .75, "2": .25}, agents...)

		f.Kill(leader)
		rest := slices.DeleteFunc(slices.Clone(agents), func(a *agenttest.Member) bool { return a == leader })
		f.Eventually(20*time.Second, func() string {
			if l := rest[0].Leading().Leadership().GetLeader(); l == "" || l == leader.Name() {
				return "there is no other leader"
			}
			return ""
		})
		next := f.Led(rest...)
		answers(f, "under the next leader", map[string]float64{"1": .75, "2": .25}, rest...)
		// A hash chooses of 200 queries about 50 for the canary, with a deviation of 6.
		f.Eventually(10*time.Second, func() string {
			resp, err := rest[0].Control.Release(f.Context(), &control.ReleaseRequest{Model: "ncf"})
			if err != nil || resp.GetReleases()[0].GetCanary().GetQueries() < 20 {
				return fmt.Sprintf("got %v, %v", resp, err)
			}
			return ""
		})
		tellsRelease(f, next)
		f.Release(rest[1], &control.SetReleaseRequest{})
		f.Released(1, 2, 0, rest...)
		answers(f, "2 is rolled back", map[string]float64{"1": 1}, rest...)
		if log := next.Log.String(); !strings.Contains(log, "event=release") {
			f.Errorf("the leader has logged no event")
		}
		if _, err := rest[1].Control.SetRelease(f.Context(),
			&control.SetReleaseRequest{Model: "ncf"}); status.Code(err) != codes.FailedPrecondition {
			f.Errorf("nothing to roll back: got %v", err)
		}
	})
}

// TestReleaseAloneAndLeaderless: gateways without a leader, and an agent alone, follow the last
// known release.
func TestReleaseAloneAndLeaderless(t *testing.T) {
	kept := `{"releases": [{"model": "ncf", "number": "7", "current": "1", "canary": "2", "share": 0.25}]}`
	for n, what := range map[int]string{1: "alone", 2: "without a leader"} {
		t.Run(what, func(t *testing.T) {
			agenttest.InFleet(t, func(f *agenttest.Fleet) {
				_, with := f.Versions(agenttest.TwoVersions)
				keeps := func(a agent.Inside) {
					a.Config().Leader = "never"
					if err := os.WriteFile(filepath.Join(a.Config().StateDir, "releases.json"),
						[]byte(kept), 0o644); err != nil {
						f.Fatal(err)
					}
				}
				var agents []*agenttest.Member
				for range n {
					agents = append(agents, f.Start(with, keeps))
				}
				f.Settled(agents...)
				f.Eventually(10*time.Second, func() string {
					for _, a := range agents {
						if n := len(a.Members().Own().GetModels()); n != 2 {
							return fmt.Sprintf("%s serves %d versions", a.Host, n)
						}
					}
					return ""
				})
				answers(f, "from the disk", map[string]float64{"1": .75, "2": .25}, agents...)
				if _, err := agents[0].Control.SetRelease(f.Context(), &control.SetReleaseRequest{
					Model: "ncf", Version: 2,
				}); status.Code(err) != codes.Unavailable {
					f.Errorf("a release without a leader: got %v", err)
				}
				resp, err := agents[0].Control.Release(f.Context(), &control.ReleaseRequest{Model: "ncf"})
				if err != nil || resp.GetReleases()[0].GetRelease().GetCanary() != 2 {
					f.Errorf("got %v, %v", resp, err)
				}
			})
		})
	}
}

// TestReleaseErrors: what cannot be released is refused, and changes nothing.
func TestReleaseErrors(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		_, with := f.Versions(map[int64]time.Duration{1: time.Millisecond})
		a := f.Start(with)
		f.Settled(a)
		f.Led(a)
		for _, tt := range []struct {
			req  *control.SetReleaseRequest
			code codes.Code
			says string
		}{
			{&control.SetReleaseRequest{}, codes.InvalidArgument, "want its name"},
			{&control.SetReleaseRequest{Model: "ncf"}, codes.FailedPrecondition, "no canary"},
			{&control.SetReleaseRequest{Model: "nfc", Version: 1}, codes.NotFound, "no agent serves"},
			{&control.SetReleaseRequest{Model: "ncf", Version: 9}, codes.NotFound, "there are [1]"},
			{&control.SetReleaseRequest{Model: "ncf", Version: 1, Share: 1}, codes.InvalidArgument,
				"below 1"},
			{&control.SetReleaseRequest{Model: "ncf", Version: 1, Share: .1},
				codes.FailedPrecondition, "beside which 1 could be tried"},
			{&control.SetReleaseRequest{Model: "ncf", Version: -1}, codes.InvalidArgument, "below 0"},
		} {
			_, err := a.Control.SetRelease(f.Context(), tt.req)
			if status.Code(err) != tt.code || !strings.Contains(err.Error(), tt.says) {
				f.Errorf("%v: got %v, want %v with %q", tt.req, err, tt.code, tt.says)
			}
		}
		if all := a.Releases().All(); len(all) != 0 {
			f.Errorf("there are releases: %v", all)
		}
		_, err := a.Control.Release(f.Context(), &control.ReleaseRequest{Model: "ncf"})
		if status.Code(err) != codes.NotFound {
			f.Errorf("got %v", err)
		}
	})
}

// TestSlowCanary: a canary that takes twice as long is rolled back within a minute of load, and one
// that is as fast is promoted.
func TestSlowCanary(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	for slower, want := range map[time.Duration]string{1: "promoted by", 2: "rolled back by"} {
		t.Run(want, func(t *testing.T) {
			agenttest.InFleet(t, func(f *agenttest.Fleet) {
				_, with := f.Versions(map[int64]time.Duration{
					1: 2 * time.Millisecond, 2: slower * 2 * time.Millisecond,
				})
				agents := []*agenttest.Member{f.Start(with), f.Start(with)}
				f.Settled(agents...)
				f.Led(agents...)
				f.Release(agents[0], &control.SetReleaseRequest{Version: 1})
				f.Released(1, 0, 0, agents...)
				answered(f, 500, 10*time.Millisecond, agents...) // its latency is learned
				f.Release(agents[0], &control.SetReleaseRequest{
					Version: 2, Share: .5, PromoteAfterNs: int64(15 * time.Second),
				})
				began := time.Now()
				for {
					answered(f, 100, 10*time.Millisecond, agents...)
					resp, err := agents[1].Control.Release(f.Context(), &control.ReleaseRequest{})
					if err != nil {
						f.Fatal(err)
					}
					s := resp.GetReleases()[0]
					if why := s.GetRelease().GetWhy(); strings.HasPrefix(why, want) {
						f.Logf("after %v: %s", time.Since(began).Round(time.Second), why)
						break
					}
					if time.Since(began) > time.Minute {
						f.Fatalf("after a minute: %v", s)
					}
				}
				if slower == 1 {
					f.Released(2, 0, 0, agents...)
					answers(f, "2 is promoted", map[string]float64{"2": 1}, agents...)
				} else {
					f.Released(1, 2, 0, agents...)
					answers(f, "2 is rolled back", map[string]float64{"1": 1}, agents...)
				}
			})
		})
	}
}

// TestFailingCanary: a canary that fails each eighth of its queries, beside a version that fails none,
// is not promoted when that is due, but rolled back, though all that fails are gateways' reports and
// all that is answered is told by workers.
func TestFailingCanary(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		_, with := f.Versions(agenttest.TwoVersions)
		var fails atomic.Bool // once it is loaded and warm
		failing := func(a agent.Inside) {
			open := a.Environment().OpenExecutor
			a.Environment().OpenExecutor = func(c agent.Config, log *slog.Logger) (runtime.Executor, error) {
				e, err := open(c, log)
				return agenttest.WrongExecutor{Executor: e, Every: 8, Fails: &fails}, err
			}
		}
		agents := []*agenttest.Member{f.Start(with, failing), f.Start(with, failing)}
		f.Settled(agents...)
		f.Led(agents...)
		f.Release(agents[0], &control.SetReleaseRequest{Version: 1})
		f.Released(1, 0, 0, agents...)
		f.Release(agents[0], &control.SetReleaseRequest{
			Version: 2, Share: .25, PromoteQueries: 20,
		})
		fails.Store(true)
		undecided := ""
		for sent := 0; ; sent += 20 {
			answered(f, 20, 8*time.Millisecond, agents...)
			resp, err := agents[1].Control.Release(f.Context(), &control.ReleaseRequest{})
			if err != nil {
				f.Fatal(err)
			}
			s := resp.GetReleases()[0]
			if v := s.GetVerdict(); strings.Contains(v, "queries failed, 0.0 % of the current version's ") &&
				strings.HasPrefix(v, "undecided") {
				undecided = v
			}
			if why := s.GetRelease().GetWhy(); s.GetState() == "taken back" &&
				strings.HasPrefix(why, "rolled back by the rule") &&
				strings.Contains(why, "queries failed, 0.0 % of the current version's ") {
				f.Logf("before: %s; after %d queries: %s", undecided, sent, why)
				break
			}
			if s.GetRelease().GetShare() == 0 || sent > 4000 {
				f.Fatalf("after %d queries: got %v, want it rolled back because it fails", sent, s)
			}
		}
		if undecided == "" {
			f.Error("it was never said to be undecided")
		}
		f.Released(1, 2, 0, agents...)
	})
}

// TestWrongCanary: a canary that answers 1 % of its queries wrongly is rolled back, whatever clients
// use, and the shadows that show it count for no client. That is a matter of a minute, but for
// chance: leader/canary has the shares.
func TestWrongCanary(t *testing.T) {
	t.Run("SDK", func(t *testing.T) { testWrongCanary(t, true) })
	if testing.Short() {
		return
	}
	t.Run("clients of the protocol", func(t *testing.T) { testWrongCanary(t, false) })
}

func testWrongCanary(t *testing.T, sdk bool) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		_, with := f.Versions(agenttest.TwoVersions)
		wrong := func(a agent.Inside) {
			open := a.Environment().OpenExecutor
			a.Environment().OpenExecutor = func(c agent.Config, log *slog.Logger) (runtime.Executor, error) {
				e, err := open(c, log)
				return agenttest.WrongExecutor{Executor: e, Every: 100}, err
			}
		}
		agents := []*agenttest.Member{f.Start(with, wrong), f.Start(with, wrong)}
		f.Settled(agents...)
		f.Led(agents...)
		f.Release(agents[0], &control.SetReleaseRequest{Version: 1})
		f.Released(1, 0, 0, agents...)
		req := &control.SetReleaseRequest{Version: 2, Share: .3} // as older commands ask
		if sdk {
			difference := .05
			req.MaxDifference = &difference
		}
		f.Release(agents[0], req)
		sent := 0
		send := func() { answered(f, 100, 8*time.Millisecond, agents...) }
		if sdk {
			c := f.SDK(agents...)
			defer c.Close()
			ids, err := tensor.Of("ids", agenttest.NCFIDs(10), 10, 4)
			if err != nil {
				f.Fatal(err)
			}
			send = func() {
				for range 100 {
					resp, err := c.Infer(f.Context(),
						&oip.Request{Model: "ncf", Inputs: []tensor.Tensor{ids}})
					if err != nil {
						f.Fatal(err)
					}
					resp.Release()
					time.Sleep(8 * time.Millisecond)
				}
			}
		}
		for began := time.Now(); ; {
			sent += 100
			send()
			resp, err := agents[1].Control.Release(f.Context(), &control.ReleaseRequest{})
			if err != nil {
				f.Fatal(err)
			}
			s := resp.GetReleases()[0]
			if strings.HasPrefix(s.GetRelease().GetWhy(), "rolled back by") {
				f.Logf("after %v: %v", time.Since(began).Round(time.Second), s)
				if !strings.Contains(s.GetRelease().GetWhy(), "answers differ") {
					f.Errorf("got %v", s)
				}
				break
			}
			if time.Since(began) > 5*time.Minute {
				f.Fatalf("after 5 minutes: %v", s)
			}
		}
		f.Released(1, 2, 0, agents...)
		answered := 0
		for _, a := range agents {
			answered += int(a.Worker().Statistics("ncf", 1).GetInferenceStats().GetSuccess().GetCount() +
				a.Worker().Statistics("ncf", 2).GetInferenceStats().GetSuccess().GetCount())
		}
		if answered != sent {
			f.Errorf("%d queries of clients were answered, want %d", answered, sent)
		}
	})
}
