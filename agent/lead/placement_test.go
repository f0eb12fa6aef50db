package lead_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
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
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/place/replan"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/isolate"
)

// TestPlaced: agents come to the layouts that the leader says while they answer queries, and none
// fails.
func TestPlaced(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		s := &agenttest.Script{Most: 1}
		variants := f.Variants(time.Millisecond, agenttest.Both)
		agents := []*agenttest.Member{
			f.Start(variants, f.Placed(s, "ncf/1")), f.Start(variants, f.Placed(s, "ncf-int8/1")),
		}
		f.Settled(agents...)
		f.Family("rank", "ncf ncf-int8", agents...)
		f.Led(agents...)
		a, b := string(agents[0].AgentName()), string(agents[1].AgentName())
		f.Hold(map[string]string{a: "ncf/1", b: "ncf-int8/1"}, agents...)
		stop := f.UnderLoad("rank", agents...)
		for _, want := range []map[string]string{
			{a: "ncf/1", b: "ncf/1"}, {a: "ncf-int8/1", b: "ncf/1"},
			{a: "ncf-int8/1", b: "ncf-int8/1,ncf/1"}, {a: "ncf/1", b: "ncf-int8/1"},
		} {
			s.Want(want)
			f.Hold(want, agents...)
		}
		if sent, failed := stop(); len(failed) > 0 || sent < 500 {
			f.Errorf("%d of %d queries failed: %v", len(failed), sent,
				errors.Join(failed[:min(len(failed), 5)]...))
		}
		for _, x := range agents {
			kept, err := os.ReadFile(filepath.Join(x.Config().StateDir, "layout"))
			want := map[string]string{a: "ncf/1", b: "ncf-int8/1"}[string(x.AgentName())]
			if err != nil || strings.TrimSpace(string(kept)) != want {
				f.Errorf("%s keeps %q, %v, want %q", x.Host, kept, err, want)
			}
		}
	})
}

// TestNeedsLoad: what agents hold answers queries. One that only a model on their disks may answer is
// FAILED_PRECONDITION, and says which model and whose disks; what is on no disk is NOT_FOUND.
func TestNeedsLoad(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		s := &agenttest.Script{Most: 1}
		variants := f.Variants(time.Millisecond, agenttest.Both)
		agents := []*agenttest.Member{
			f.Start(variants, f.Placed(s, "ncf-int8/1")),
			f.Start(variants, f.Placed(s, "ncf-int8/1")),
		}
		f.Settled(agents...)
		f.Family("rank", "ncf-int8", agents...)
		f.Led(agents...)
		a, b := string(agents[0].AgentName()), string(agents[1].AgentName())
		f.Hold(map[string]string{a: "ncf-int8/1", b: "ncf-int8/1"}, agents...)
		const precondition = codes.FailedPrecondition
		expect := func(name string, least float64, want codes.Code, words ...string) {
			f.Helper()
			for _, x := range agents {
				_, err := x.OIP.ModelInfer(f.Context(), agenttest.NewRequest(name, least))
				if status.Code(err) != want {
					f.Errorf("%s, %s of %v: %v, want %v", x.Host, name, least, err, want)
				}
				for _, word := range words {
					if err != nil && !strings.Contains(err.Error(), word) {
						f.Errorf("%s, %s of %v: %v, want %q in it", x.Host, name, least, err, word)
					}
				}
			}
		}
		expect("rank", .95, codes.OK)
		expect("rank", .99, precondition, "ncf has 1", "could load it", a, b)
		expect("ncf", 0, precondition, "no agent holds model ncf", a, b)
		expect("ncg", 0, codes.NotFound)
		want := map[string]string{a: "ncf/1", b: "ncf-int8/1"}
		s.Want(want)
		f.Hold(want, agents...)
		f.Family("rank", "ncf ncf-int8", agents...)
		expect("rank", .99, codes.OK)
		expect("ncf", 0, codes.OK)
	})
}

// TestPlacedFailover: agents whose leader dies in the middle of a change keep what they hold
// until another leads; it knows the placement, goes on, and no agent takes an older layout.
func TestPlacedFailover(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		s := &agenttest.Script{Most: 1}
		variants := f.Variants(time.Millisecond, agenttest.Both)
		never := func(a agent.Inside) { a.Config().Leader = "never" }
		agents := []*agenttest.Member{
			f.Start(variants, f.Placed(s, "ncf/1")), f.Start(variants, f.Placed(s, "ncf/1")),
			f.Start(variants, f.Placed(s, "ncf/1"), never),
			f.Start(variants, f.Placed(s, "ncf/1"), never),
		}
		f.Settled(agents...)
		leader := f.Led(agents...)
		want := map[string]string{}
		for _, a := range agents[2:] {
			want[string(a.AgentName())] = "ncf-int8/1"
		}
		stop := f.UnderLoad("rank", agents[2:]...)
		s.Want(want)
		f.Eventually(time.Minute, func() string {
			state := agents[2].Worker().LayoutState()
			if state.GetState() == "draining" {
				return ""
			}
			return "an agent is " + state.GetState()
		})
		f.Kill(leader)
		rest := slices.DeleteFunc(slices.Clone(agents),
			func(a *agenttest.Member) bool { return a == leader })
		next := f.Led(rest...)
		f.Eventually(time.Minute, func() string {
			for _, a := range agents[2:] {
				if state := a.Worker().LayoutState(); state.GetHolds() != "ncf-int8/1" ||
					state.GetState() != "reached" {
					return fmt.Sprint(a.Host, " ", state)
				}
			}
			return ""
		})
		if sent, failed := stop(); len(failed) > 0 {
			f.Errorf("%d of %d queries failed: %v", len(failed), sent,
				errors.Join(failed[:min(len(failed), 5)]...))
		}
		s.Mu.Lock()
		defer s.Mu.Unlock()
		if n := len(s.Epochs); n != 2 || s.Epochs[1] <= s.Epochs[0] {
			f.Fatalf("leaders of epochs %v decided, want two", s.Epochs)
		}
		if got := s.Memories[1].Placements; len(got) != 1 || len(got[0].Agents) != 2 {
			f.Errorf("the next leader, %s, began with %+v, want the placement", next.Host, got)
		}
		f.Fenced(agents...)
	})
}

// TestPlacedFails: an agent that cannot load a model keeps what it held and serves it, says which
// model failed and why, and takes the next layout.
func TestPlacedFails(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		s := &agenttest.Script{}
		variants := f.Variants(time.Millisecond, agenttest.Both)
		fails := func(a agent.Inside) {
			a.Environment().OpenExecutor = func(agent.Config, *slog.Logger) (runtime.Executor, error) {
				return failing{runtime.NewEmulated(
					func(*models.Version, int) time.Duration { return time.Millisecond })}, nil
			}
		}
		a := f.Start(variants, fails, f.Placed(s, "ncf/1"))
		f.Settled(a)
		f.Led(a)
		stop := f.UnderLoad("ncf", a)
		s.Want(map[string]string{string(a.AgentName()): "ncf-int8/1,ncf/1"})
		state := f.State(a, "failed")
		if !slices.Equal(state.GetFailed(), []string{"ncf-int8/1"}) ||
			!strings.Contains(state.GetWhy(), "no memory") || state.GetHolds() != "ncf/1" {
			f.Errorf("got %v, want that ncf-int8/1 failed for no memory", state)
		}
		f.Eventually(time.Minute, func() string {
			s.Mu.Lock()
			defer s.Mu.Unlock()
			if seen := s.Seen[string(a.AgentName())]; seen.State != replan.Failed ||
				len(seen.Failed) != 1 {
				return fmt.Sprintf("the leader knows %+v", seen)
			}
			return ""
		})
		for _, c := range []struct{ layout, why string }{
			{"none/1", "none/1 is not on disk"}, {"ncf/7", "ncf/7 is not the newest version, 1 is"},
			{"ncf/1:1x1+ncf-int8/1:1x1", "takes 2 cores, and this agent has 1"},
		} {
			s.Want(map[string]string{string(a.AgentName()): c.layout})
			f.Eventually(time.Minute, func() string {
				if state := a.Worker().LayoutState(); !strings.Contains(state.GetWhy(), c.why) {
					return fmt.Sprintf("%v, want %s", state, c.why)
				}
				return ""
			})
		}
		s.Want(map[string]string{string(a.AgentName()): "ncf/1"})
		if sent, failed := stop(); len(failed) > 0 {
			f.Errorf("%d of %d queries failed: %v", len(failed), sent, failed[0])
		}
		if _, err := a.OIP.RepositoryModelLoad(f.Context(),
			&inference.RepositoryModelLoadRequest{ModelName: "ncf-int8"}); status.Code(err) !=
			codes.FailedPrecondition || !strings.Contains(err.Error(), "muster place pin") {
			f.Errorf("load by call: %v, want that the leader says what the agent holds", err)
		}
	})
}

// slowly is an executor whose loads take longer than others need to see that an agent is gone.
type slowly struct{ *runtime.Emulated }

func (e slowly) Load(ctx context.Context, v *models.Version) (runtime.Model, error) {
	select {
	case <-time.After(8 * time.Second):
		return e.Emulated.Load(ctx, v)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// failing is an executor that cannot load the 8-bit variant.
type failing struct{ *runtime.Emulated }

func (e failing) Load(ctx context.Context, v *models.Version) (runtime.Model, error) {
	if v.Model == "ncf-int8" {
		return nil, errors.New("no memory")
	}
	return e.Emulated.Load(ctx, v)
}

// modelBytes is what a variant takes in memory.
func modelBytes(f *agenttest.Fleet) (bytes int64) {
	_ = filepath.WalkDir(filepath.Join(f.Dir, "ncf", "1"),
		func(_ string, e fs.DirEntry, _ error) error {
			if info, err := e.Info(); err == nil && !info.IsDir() {
				bytes += info.Size()
			}
			return nil
		})
	return bytes
}

// TestPlacedMemory: an agent in whose memory two models do not fit unloads one before it loads the
// other, and refuses what does not fit at all; without a layout it loads what fits.
func TestPlacedMemory(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		s := &agenttest.Script{}
		variants := f.Variants(time.Millisecond, agenttest.Both)
		bytes := modelBytes(f)
		small := func(a agent.Inside) { a.Config().ModelMemory = bytes * 3 / 2 }
		a := f.Start(variants, small, f.Placed(s, ""))
		f.Settled(a) // with one model, after a while without an order
		first := f.State(a, "reached").GetHolds()
		if first != "ncf/1" && first != "ncf-int8/1" {
			f.Fatalf("the agent holds %q by itself, want what fits: one model", first)
		}
		f.Led(a)
		for _, want := range []string{"ncf/1", "ncf-int8/1", "ncf/1"} {
			s.Want(map[string]string{string(a.AgentName()): want})
			f.Hold(map[string]string{string(a.AgentName()): want}, a)
		}
		s.Want(map[string]string{string(a.AgentName()): "ncf-int8/1,ncf/1"})
		if state := f.State(a, "failed"); !strings.Contains(state.GetWhy(), "models may take") ||
			state.GetHolds() != "ncf/1" {
			f.Errorf("got %v, want that both do not fit", state)
		}
	})
}

// TestPlaceCalls: people's calls about the placement reach the leader through any agent, and are
// audited; an agent that holds what its settings say is never asked to change.
func TestPlaceCalls(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		s := &agenttest.Script{}
		variants := f.Variants(time.Millisecond, agenttest.Both)
		fixed := f.Start(variants, func(a agent.Inside) { a.Environment().NewReplanner = s.Replanner })
		placed := f.Start(variants, f.Placed(s, "ncf/1"))
		f.Settled(fixed, placed)
		f.Led(fixed, placed)
		s.Want(map[string]string{string(fixed.AgentName()): "ncf/1"})
		f.Hold(map[string]string{string(placed.AgentName()): "ncf/1"}, fixed, placed)
		f.Eventually(time.Minute, func() string {
			s.Mu.Lock()
			defer s.Mu.Unlock()
			seen := s.Seen[string(fixed.AgentName())]
			if !seen.Fixed || seen.Held.String() != "ncf-int8/1,ncf/1" {
				return fmt.Sprintf("the leader knows %+v of an agent that nobody places", seen)
			}
			return ""
		})
		for _, c := range []struct {
			req  *control.PlaceRequest
			code codes.Code
			want string
		}{
			{&control.PlaceRequest{Verb: "pause"}, codes.OK, ""},
			{&control.PlaceRequest{Verb: "pin", Agent: string(placed.AgentName()), Layout: "ncf/1"},
				codes.OK, ""},
			{&control.PlaceRequest{Verb: "pin", Agent: string(placed.AgentName()), Layout: "ncf/1:x"},
				codes.InvalidArgument, "LANESxCORES"},
			{&control.PlaceRequest{Verb: "pin", Agent: string(fixed.AgentName()), Layout: "ncf/1"},
				codes.FailedPrecondition, "--model-control leader"},
			{&control.PlaceRequest{Verb: "unpin", Agent: "nobody"}, codes.NotFound,
				`no agent "nobody"`},
			{&control.PlaceRequest{Verb: "explain", Agent: string(placed.AgentName())}, codes.OK, ""},
			{&control.PlaceRequest{Verb: "explode"}, codes.InvalidArgument, "want pause, resume"},
		} {
			for _, at := range []*agenttest.Member{fixed, placed} {
				resp, err := at.Control.Place(f.Context(), c.req)
				if status.Code(err) != c.code || !strings.Contains(fmt.Sprint(err), c.want) {
					f.Errorf("%v at %s: %v, want %v, %s", c.req, at.Host, err, c.code, c.want)
				}
				if c.req.Verb == "explain" && len(resp.GetLines()) != 1 {
					f.Errorf("explained by %v", resp)
				}
			}
		}
		s.Mu.Lock()
		defer s.Mu.Unlock()
		if n := len(s.Commands); n != 4 || s.Commands[0].Verb != replan.Pause ||
			s.Commands[2].Verb != replan.Pin || s.Commands[2].Layout.String() != "ncf/1" {
			f.Errorf("got the commands %+v, want two pauses and two pins", s.Commands)
		}
		for _, a := range []*agenttest.Member{fixed, placed} {
			if !strings.Contains(a.Log.String(), `asked to pause the placement"`) {
				f.Errorf("%s has not logged who asked to pause", a.Host)
			}
		}
	})
}

// TestPlacedNoMore: once the last agent that the leader places has gone, the status has no
// placement, and there is none to change.
func TestPlacedNoMore(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		s := &agenttest.Script{}
		variants := f.Variants(time.Millisecond, agenttest.Both)
		fixed := f.Start(variants, func(a agent.Inside) { a.Environment().NewReplanner = s.Replanner })
		placed := f.Start(variants, f.Placed(s, "ncf/1"),
			func(a agent.Inside) { a.Config().Leader = "never" })
		f.Settled(fixed, placed)
		f.Led(fixed)
		f.Hold(map[string]string{string(placed.AgentName()): "ncf/1"}, fixed)
		f.Kill(placed)
		f.Eventually(time.Minute, func() string {
			s, err := fixed.Control.Status(f.Context(), &control.StatusRequest{})
			if err != nil || s.GetPlacement() != nil {
				return fmt.Sprintf("the placement is %v, %v, want none", s.GetPlacement(), err)
			}
			return ""
		})
		_, err := fixed.Control.Place(f.Context(), &control.PlaceRequest{Verb: "pause"})
		if status.Code(err) != codes.FailedPrecondition {
			f.Errorf("a pause of no placement: %v", err)
		}
	})
}

// TestPlacedOnlyHost: a family's only host, which leads, is killed. Queries for the family wait until
// another leads and has an agent load it; none fails. So do those that come when nobody holds it.
func TestPlacedOnlyHost(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		settings := map[string]string{
			"ncf": agenttest.Exact["ncf"], "ncf-int8": agenttest.Coarse["ncf-int8"], "other": "",
		}
		for name := range settings { // patience of a client for longer than a load takes
			settings[name] += "deadline_ms: 30000\n"
		}
		variants := f.Variants(time.Millisecond, settings)
		one := func(a agent.Inside) {
			a.Config().ModelMemory = modelBytes(f) * 3 / 2
			a.Environment().OpenExecutor = func(agent.Config, *slog.Logger) (runtime.Executor, error) {
				return slowly{runtime.NewEmulated(
					func(*models.Version, int) time.Duration { return time.Millisecond })}, nil
			}
		}
		start := func(layout string, more ...func(agent.Inside)) *agenttest.Member {
			return f.Start(append([]func(agent.Inside){variants, one, f.Placed(nil, layout)}, more...)...)
		}
		only := start("ncf/1", func(a agent.Inside) { a.Config().Leader = "must" })
		rest := []*agenttest.Member{start("other/1"), start("other/1"), start("other/1")}
		all := append([]*agenttest.Member{only}, rest...)
		f.Settled(all...)
		if leader := f.Led(all...); leader != only {
			f.Fatalf("%s leads, want %s", leader.Host, only.Host)
		}
		f.Family("rank", "ncf", all...)
		done := make(chan struct{})
		var sending sync.WaitGroup
		var mu sync.Mutex
		var failed []error
		sending.Go(func() { // in turn by each agent, whatever waits
			for sent := 0; ; sent++ {
				select {
				case <-done:
					return
				case <-time.After(50 * time.Millisecond):
				}
				a := rest[sent%len(rest)]
				sending.Go(func() {
					if _, err := a.OIP.ModelInfer(f.Context(), agenttest.NewRequest("rank", 0)); err != nil {
						mu.Lock()
						defer mu.Unlock()
						failed = append(failed, fmt.Errorf("at %s: %w", a.Host, err))
					}
				})
			}
		})
		f.Kill(only)
		f.Led(rest...)
		f.Eventually(5*time.Second, func() string { // before a new leader settles
			for _, a := range rest {
				if strings.Contains(a.Log.String(), ` layout=ncf`) {
					return ""
				}
			}
			return "no agent is to load a variant of rank"
		})
		f.Eventually(20*time.Second, func() string {
			for _, a := range rest {
				if strings.Contains(a.Worker().LayoutState().GetHolds(), "ncf") {
					return ""
				}
			}
			return "no agent holds a variant of rank"
		})
		close(done)
		sending.Wait()
		if len(failed) > 0 {
			f.Errorf("%d queries failed: %v", len(failed),
				errors.Join(failed[:min(len(failed), 5)]...))
		}
		f.Fenced(all...)
	})
}

// TestPlacedSlower: a model that becomes slower than its profile by 3 times is said to be, and
// planned with as it is, within two periods.
func TestPlacedSlower(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		var factor atomic.Int64
		factor.Store(1)
		variants := f.Variants(time.Millisecond, map[string]string{
			"ncf":      agenttest.Exact["ncf"] + "qos_target_ms: 100\ndeadline_ms: 5000\nmerge: none\n",
			"ncf-int8": agenttest.Coarse["ncf-int8"] + "qos_target_ms: 100\ndeadline_ms: 5000\nmerge: none\n",
		})
		slow := func(a agent.Inside) {
			a.Environment().OpenExecutor = func(agent.Config, *slog.Logger) (runtime.Executor, error) {
				return runtime.NewEmulated(func(v *models.Version, _ int) time.Duration {
					if v.Model == "ncf" {
						return time.Duration(factor.Load()) * 1200 * time.Microsecond // as shipped
					}
					return time.Millisecond
				}), nil
			}
		}
		agents := []*agenttest.Member{
			f.Start(variants, slow, f.Placed(nil, "ncf/1")),
			f.Start(variants, slow, f.Placed(nil, "ncf/1")),
		}
		f.Settled(agents...)
		leader := f.Led(agents...)
		stop := f.UnderLoad("rank", agents...)
		time.Sleep(20 * time.Second) // of virtual time: latencies are learned, and planned with
		if strings.Contains(leader.Log.String(), "kind=slower") {
			f.Error("a model is said to be slower before it is")
		}
		plans := func() (n uint64) {
			families, err := leader.Registry().Gather()
			if err != nil {
				f.Fatal(err)
			}
			for _, family := range families {
				if family.GetName() == "muster_placement_solve_seconds" {
					n = family.GetMetric()[0].GetHistogram().GetSampleCount()
				}
			}
			return n
		}
		before := plans()
		factor.Store(3)
		f.Eventually(20*time.Second, func() string {
			if !strings.Contains(leader.Log.String(), `kind=slower what="model ncf/1 takes `) {
				return "it is not said that ncf is slower"
			}
			if plans() == before {
				return "no plan is made with it"
			}
			return ""
		})
		if sent, failed := stop(); len(failed) > 0 {
			f.Errorf("%d of %d queries failed: %v", len(failed), sent, failed[0])
		}
	})
}

// TestPartitionsCount: agents with partitions count as what they serve, be it by their own settings
// or because a person has pinned them. Under more load than they carry, a placement expects of them
// within 10 % what they answer.
func TestPartitionsCount(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	if cores, _ := isolate.Cores(); cores < 2 {
		t.Skip("this machine has one core")
	}
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		takes := map[string]time.Duration{
			"rm2": 100 * time.Millisecond, "wnd": 50 * time.Millisecond,
		}
		const settings = "qos_target_ms: 500\ndeadline_ms: 1500\nmerge: none\naccuracy: 1\nfamily: "
		variants := f.Variants(0, map[string]string{
			"rm2": settings + "rank\n", "wnd": settings + "feed\n",
		})
		timed := func(a agent.Inside) {
			a.Config().Cores = 2
			a.Environment().OpenExecutor = func(agent.Config, *slog.Logger) (runtime.Executor,
				error) {
				return runtime.NewEmulated(func(v *models.Version, _ int) time.Duration {
					return takes[v.Model]
				}), nil
			}
		}
		fixed := f.Start(variants, timed,
			func(a agent.Inside) { a.Config().Layout = "rm2:1x1+wnd:1x1" })
		pinned := f.Start(variants, timed, f.Placed(nil, "rm2/1,wnd/1"))
		f.Settled(fixed, pinned)
		f.Led(fixed, pinned)
		f.Hold(map[string]string{string(pinned.AgentName()): "rm2/1,wnd/1"}, fixed, pinned)
		const layout = "rm2/1:1x1+wnd/1:1x1"
		f.Eventually(time.Minute, func() string { // the leader's replanner has begun
			_, err := fixed.Control.Place(f.Context(), &control.PlaceRequest{
				Verb: "pin", Agent: string(pinned.AgentName()), Layout: layout,
			})
			if err != nil {
				return err.Error()
			}
			return ""
		})
		f.Hold(map[string]string{string(pinned.AgentName()): layout}, fixed, pinned)
		set, stop := f.Offers(fixed, pinned)
		set("rm2", 40) // queries/s; a lane serves 10
		set("wnd", 80) // and 20
		status := func() *control.FleetStatus {
			s, err := fixed.Control.Status(f.Context(), &control.StatusRequest{})
			if err != nil {
				f.Fatal(err)
			}
			return s
		}
		time.Sleep(30 * time.Second) // latencies are learned, and planned with
		before := status()
		time.Sleep(20 * time.Second)
		after := status()
		stop()
		answered := map[string]float64{} // queries/s
		for _, m := range after.GetModels() {
			answered[m.GetModel()] += float64(m.GetAnswered()) / 20
		}
		for _, m := range before.GetModels() {
			answered[m.GetModel()] -= float64(m.GetAnswered()) / 20
		}
		for _, c := range []struct{ family, model string }{{"rank", "rm2"}, {"feed", "wnd"}} {
			i := slices.IndexFunc(after.GetFamilies(), func(s *control.FamilyStatus) bool {
				return s.GetFamily() == c.family
			})
			if i < 0 {
				f.Fatalf("no family %s in %v", c.family, after.GetFamilies())
			}
			planned := after.GetFamilies()[i].GetDemand() * after.GetFamilies()[i].GetServed()
			capacity := 2 / takes[c.model].Seconds()
			if got := answered[c.model]; math.Abs(got/capacity-1) > .1 ||
				math.Abs(planned/got-1) > .1 {
				f.Errorf("%s: planned %.3g queries/s, answered %.3g of %.3g", c.family, planned,
					got, capacity)
			}
		}
	})
}

// TestPartitionsUntried: as long as no query has run on lanes of fewer cores than an agent's own, a
// placement takes it that they are as many times slower, not that they are as a guess says.
func TestPartitionsUntried(t *testing.T) {
	if cores, _ := isolate.Cores(); cores < 2 {
		t.Skip("this machine has one core")
	}
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		s := &agenttest.Script{}
		a := f.Start(f.Variants(time.Millisecond, agenttest.Both), f.Placed(s, "ncf-int8/1,ncf/1"),
			func(a agent.Inside) { a.Config().Cores = 2 })
		f.Settled(a)
		f.Led(a)
		want := map[string]string{string(a.AgentName()): "ncf-int8/1:1x1+ncf/1:1x1"}
		s.Want(want)
		f.Hold(want, a)
		f.Eventually(10*time.Second, func() string {
			s.Mu.Lock()
			defer s.Mu.Unlock()
			whole := names.TableKey{Model: "ncf/1", Type: "r5n.large/cpu/2"}
			part := whole
			part.Type = whole.Type.Partition(1, []string{"ncf-int8"}, 0)
			if s.Known[whole] == nil || s.Known[part] == nil {
				return fmt.Sprintf("no latencies in %v", s.Known)
			}
			got, alone := s.Known[part].Mean(10), s.Known[whole].Mean(10)
			if got != 2*alone {
				return fmt.Sprintf("%v on one core, and %v on two", got, alone)
			}
			return ""
		})
	})
}
