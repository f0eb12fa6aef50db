package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/agent/lead"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/leader/place/replan"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
)

// A script decides on placements as a test says, for all leaders of a fleet.
type script struct {
	mu       sync.Mutex
	version  uint64
	wants    map[string]string // layouts, by agent
	most     int               // agents that may change at once; 0: any number
	epochs   []uint64          // of the leaders, in order
	seen     map[string]replan.Agent
	commands []replan.Command
	memories []replan.Memory // that leaders began with
	refuse   error           // of commands
}

// A scripted is the replanner of one leader.
type scripted struct {
	*script
	epoch  uint64
	memory replan.Memory
	told   uint64 // the version last remembered
}

func (s *script) replanner(c replan.Config, m replan.Memory) (lead.Replanner, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epochs, s.memories = append(s.epochs, c.Epoch), append(s.memories, m)
	return &scripted{script: s, epoch: c.Epoch, memory: m}, nil
}

// want makes all leaders want these layouts from now on.
func (s *script) want(layouts map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.wants = layouts
}

func (s *scripted) Step(now time.Time, shot *replan.Snapshot) *replan.Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = map[string]replan.Agent{}
	p := place.Placement{Version: s.version, Reason: "as the test says"}
	a := &replan.Answer{Placement: &p, Next: now.Add(time.Second)}
	changing := 0
	for _, known := range shot.Agents {
		s.seen[string(known.Name)] = known
		if known.State == replan.Changing {
			changing++
		}
	}
	for _, known := range shot.Agents {
		text, ok := s.wants[string(known.Name)]
		if !ok || known.Fixed {
			continue
		}
		layout, err := place.ParseLayout(text)
		if err != nil {
			panic(err)
		}
		p.Agents = append(p.Agents, place.AgentLayout{Agent: known.Name, Layout: layout})
		stamp := place.Stamp{Epoch: s.epoch, Version: s.version}
		switch {
		case known.Held.Equal(layout), known.Taken == stamp:
		case s.most > 0 && changing >= s.most:
			a.Waits = append(a.Waits, replan.Wait{
				Agent: known.Name, Layout: layout, Why: "others change",
			})
		default:
			changing++
			a.Moves = append(a.Moves, replan.Move{Agent: known.Name, Layout: layout, Stamp: stamp})
		}
	}
	if s.told != s.version {
		s.told = s.version
		s.memory.Placements = []place.Placement{p}
		a.Changed, a.Remember = true, true
	}
	return a
}

func (s *scripted) Solved(*replan.Plan) {}

func (s *scripted) Command(c replan.Command) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse == nil {
		s.commands = append(s.commands, c)
	}
	return s.refuse
}

func (s *scripted) Memory() replan.Memory { return s.memory }

func (s *scripted) Explain(agent names.AgentName) ([]string, error) {
	return []string{string(agent) + " holds what the test says"}, nil
}

// placed makes an agent hold what the leader says, and at first the layout; "" for none.
func (f *testFleet) placed(s *script, layout string) func(Inside) {
	return func(a Inside) {
		a.Config().ModelControl = "leader"
		if s != nil { // else the real one
			a.Environment().NewReplanner = s.replanner
		}
		if layout == "" {
			return
		}
		if err := os.WriteFile(filepath.Join(a.Config().StateDir, "layout"), []byte(layout),
			0o644); err != nil {
			f.Fatal(err)
		}
	}
}

// both are the variants of rank, which every agent has on disk.
var both = map[string]string{"ncf": exact["ncf"], "ncf-int8": coarse["ncf-int8"]}

// hold waits until the agents hold these layouts, by agent, as the leader sees it.
func (f *testFleet) hold(want map[string]string, agents ...*fleetAgent) {
	f.Helper()
	f.eventually(2*time.Minute, func() string {
		time.Sleep(100 * time.Millisecond) // it takes seconds, and each look costs
		for _, a := range agents {
			s, err := a.ctl.Status(f.Context(), &control.StatusRequest{})
			if err != nil {
				return err.Error()
			}
			got := map[string]string{}
			for _, p := range s.GetPlacement().GetAgents() {
				got[p.GetAgent()] = p.GetHolds()
				if p.GetWanted() != "" || p.GetWaits() != "" {
					got[p.GetAgent()] += fmt.Sprintf(", wants %s, waits for %q", p.GetWanted(),
						p.GetWaits())
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Sprintf("%s says that agents hold %v, want %v", a.host, got, want)
			}
		}
		return ""
	})
}

// underLoad sends queries for a family through each of the agents until stop is called, which
// returns how many there were, and what was wrong with those that failed.
func (f *testFleet) underLoad(family string, agents ...*fleetAgent) (stop func() (int, []error)) {
	f.Helper()
	done := make(chan struct{})
	var mu sync.Mutex
	var failed []error
	sent := 0
	var sending sync.WaitGroup
	for _, a := range agents {
		sending.Go(func() {
			for {
				select {
				case <-done:
					return
				case <-time.After(13 * time.Millisecond):
				}
				_, err := a.oip.ModelInfer(f.Context(), asks(family, 0))
				mu.Lock()
				if sent++; err != nil {
					failed = append(failed, fmt.Errorf("at %s: %w", a.host, err))
				}
				mu.Unlock()
			}
		})
	}
	return func() (int, []error) {
		close(done)
		sending.Wait()
		return sent, failed
	}
}

// TestPlaced: agents come to the layouts that the leader says while they answer queries, and none
// fails.
func TestPlaced(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		s := &script{most: 1}
		variants := f.variants(time.Millisecond, both)
		agents := []*fleetAgent{
			f.start(variants, f.placed(s, "ncf/1")), f.start(variants, f.placed(s, "ncf-int8/1")),
		}
		f.settled(agents...)
		f.family("rank", "ncf ncf-int8", agents...)
		f.led(agents...)
		a, b := string(agents[0].AgentName()), string(agents[1].AgentName())
		f.hold(map[string]string{a: "ncf/1", b: "ncf-int8/1"}, agents...)
		stop := f.underLoad("rank", agents...)
		for _, want := range []map[string]string{
			{a: "ncf/1", b: "ncf/1"}, {a: "ncf-int8/1", b: "ncf/1"},
			{a: "ncf-int8/1", b: "ncf-int8/1,ncf/1"}, {a: "ncf/1", b: "ncf-int8/1"},
		} {
			s.want(want)
			f.hold(want, agents...)
		}
		if sent, failed := stop(); len(failed) > 0 || sent < 500 {
			f.Errorf("%d of %d queries failed: %v", len(failed), sent,
				errors.Join(failed[:min(len(failed), 5)]...))
		}
		for _, x := range agents {
			kept, err := os.ReadFile(filepath.Join(x.Config().StateDir, "layout"))
			want := map[string]string{a: "ncf/1", b: "ncf-int8/1"}[string(x.AgentName())]
			if err != nil || strings.TrimSpace(string(kept)) != want {
				f.Errorf("%s keeps %q, %v, want %q", x.host, kept, err, want)
			}
		}
	})
}

// TestPlacedFailover: agents whose leader dies in the middle of a change keep what they hold
// until another leads; it knows the placement, goes on, and no agent takes an older layout.
func TestPlacedFailover(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	testInFleet(t, func(f *testFleet) {
		s := &script{most: 1}
		variants := f.variants(time.Millisecond, both)
		never := func(a Inside) { a.Config().Leader = "never" }
		agents := []*fleetAgent{
			f.start(variants, f.placed(s, "ncf/1")), f.start(variants, f.placed(s, "ncf/1")),
			f.start(variants, f.placed(s, "ncf/1"), never),
			f.start(variants, f.placed(s, "ncf/1"), never),
		}
		f.settled(agents...)
		leader := f.led(agents...)
		want := map[string]string{}
		for _, a := range agents[2:] {
			want[string(a.AgentName())] = "ncf-int8/1"
		}
		stop := f.underLoad("rank", agents[2:]...)
		s.want(want)
		f.eventually(time.Minute, func() string {
			state := agents[2].Worker().LayoutState()
			if state.GetState() == "draining" {
				return ""
			}
			return "an agent is " + state.GetState()
		})
		f.kill(leader)
		rest := slices.DeleteFunc(slices.Clone(agents),
			func(a *fleetAgent) bool { return a == leader })
		next := f.led(rest...)
		f.eventually(time.Minute, func() string {
			for _, a := range agents[2:] {
				if state := a.Worker().LayoutState(); state.GetHolds() != "ncf-int8/1" ||
					state.GetState() != "reached" {
					return fmt.Sprint(a.host, " ", state)
				}
			}
			return ""
		})
		if sent, failed := stop(); len(failed) > 0 {
			f.Errorf("%d of %d queries failed: %v", len(failed), sent,
				errors.Join(failed[:min(len(failed), 5)]...))
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := len(s.epochs); n != 2 || s.epochs[1] <= s.epochs[0] {
			f.Fatalf("leaders of epochs %v decided, want two", s.epochs)
		}
		if got := s.memories[1].Placements; len(got) != 1 || len(got[0].Agents) != 2 {
			f.Errorf("the next leader, %s, began with %+v, want the placement", next.host, got)
		}
		f.fenced(agents...)
	})
}

var orderTaken = regexp.MustCompile(
	`bringing this agent to a layout" layout=(\S+) epoch=(\d+) version=(\d+)`)

// fenced checks that no agent has taken a layout older than its last.
func (f *testFleet) fenced(agents ...*fleetAgent) {
	f.Helper()
	for _, a := range agents {
		var last place.Stamp
		for _, m := range orderTaken.FindAllStringSubmatch(a.log.String(), -1) {
			epoch, _ := strconv.ParseUint(m[2], 10, 64)
			version, _ := strconv.ParseUint(m[3], 10, 64)
			now := place.Stamp{Epoch: epoch, Version: version}
			if now.Compare(last) <= 0 {
				f.Errorf("%s took %v after %v", a.host, now, last)
			}
			last = now
		}
	}
}

// state waits until the agent is in a state, and returns what it tells of its layout.
func (f *testFleet) state(a *fleetAgent, want string) *control.LayoutState {
	f.Helper()
	var state *control.LayoutState
	f.eventually(2*time.Minute, func() string {
		state = a.Worker().LayoutState()
		if state.GetState() != want {
			return fmt.Sprintf("%s is %v, want %s", a.host, state, want)
		}
		return ""
	})
	return state
}

// TestPlacedFails: an agent that cannot load a model keeps what it held and serves it, says which
// model failed and why, and takes the next layout.
func TestPlacedFails(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		s := &script{}
		variants := f.variants(time.Millisecond, both)
		fails := func(a Inside) {
			a.Environment().OpenExecutor = func(Config, *slog.Logger) (runtime.Executor, error) {
				return failing{runtime.NewEmulated(
					func(*models.Version, int) time.Duration { return time.Millisecond })}, nil
			}
		}
		a := f.start(variants, fails, f.placed(s, "ncf/1"))
		f.settled(a)
		f.led(a)
		stop := f.underLoad("ncf", a)
		s.want(map[string]string{string(a.AgentName()): "ncf-int8/1,ncf/1"})
		state := f.state(a, "failed")
		if !slices.Equal(state.GetFailed(), []string{"ncf-int8/1"}) ||
			!strings.Contains(state.GetWhy(), "no memory") || state.GetHolds() != "ncf/1" {
			f.Errorf("got %v, want that ncf-int8/1 failed for no memory", state)
		}
		f.eventually(time.Minute, func() string {
			s.mu.Lock()
			defer s.mu.Unlock()
			if seen := s.seen[string(a.AgentName())]; seen.State != replan.Failed ||
				len(seen.Failed) != 1 {
				return fmt.Sprintf("the leader knows %+v", seen)
			}
			return ""
		})
		for _, c := range []struct{ layout, why string }{
			{"none/1", "none/1 is not on disk"}, {"ncf/7", "ncf/7 is not the newest version, 1 is"},
			{"ncf/1:1x1+ncf-int8/1:1x1", "takes 2 cores, and this agent has 1"},
		} {
			s.want(map[string]string{string(a.AgentName()): c.layout})
			f.eventually(time.Minute, func() string {
				if state := a.Worker().LayoutState(); !strings.Contains(state.GetWhy(), c.why) {
					return fmt.Sprintf("%v, want %s", state, c.why)
				}
				return ""
			})
		}
		s.want(map[string]string{string(a.AgentName()): "ncf/1"})
		if sent, failed := stop(); len(failed) > 0 {
			f.Errorf("%d of %d queries failed: %v", len(failed), sent, failed[0])
		}
		if _, err := a.oip.RepositoryModelLoad(f.Context(),
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
func (f *testFleet) modelBytes() (bytes int64) {
	_ = filepath.WalkDir(filepath.Join(f.dir, "ncf", "1"),
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
	testInFleet(t, func(f *testFleet) {
		s := &script{}
		variants := f.variants(time.Millisecond, both)
		bytes := f.modelBytes()
		small := func(a Inside) { a.Config().ModelMemory = bytes * 3 / 2 }
		a := f.start(variants, small, f.placed(s, ""))
		f.settled(a) // with one model, after a while without an order
		first := f.state(a, "reached").GetHolds()
		if first != "ncf/1" && first != "ncf-int8/1" {
			f.Fatalf("the agent holds %q by itself, want what fits: one model", first)
		}
		f.led(a)
		for _, want := range []string{"ncf/1", "ncf-int8/1", "ncf/1"} {
			s.want(map[string]string{string(a.AgentName()): want})
			f.hold(map[string]string{string(a.AgentName()): want}, a)
		}
		s.want(map[string]string{string(a.AgentName()): "ncf-int8/1,ncf/1"})
		if state := f.state(a, "failed"); !strings.Contains(state.GetWhy(), "models may take") ||
			state.GetHolds() != "ncf/1" {
			f.Errorf("got %v, want that both do not fit", state)
		}
	})
}

// TestPlaceCalls: people's calls about the placement reach the leader through any agent, and are
// audited; an agent that holds what its settings say is never asked to change.
func TestPlaceCalls(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		s := &script{}
		variants := f.variants(time.Millisecond, both)
		fixed := f.start(variants, func(a Inside) { a.Environment().NewReplanner = s.replanner })
		placed := f.start(variants, f.placed(s, "ncf/1"))
		f.settled(fixed, placed)
		f.led(fixed, placed)
		s.want(map[string]string{string(fixed.AgentName()): "ncf/1"})
		f.hold(map[string]string{string(placed.AgentName()): "ncf/1"}, fixed, placed)
		f.eventually(time.Minute, func() string {
			s.mu.Lock()
			defer s.mu.Unlock()
			seen := s.seen[string(fixed.AgentName())]
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
			for _, at := range []*fleetAgent{fixed, placed} {
				resp, err := at.ctl.Place(f.Context(), c.req)
				if status.Code(err) != c.code || !strings.Contains(fmt.Sprint(err), c.want) {
					f.Errorf("%v at %s: %v, want %v, %s", c.req, at.host, err, c.code, c.want)
				}
				if c.req.Verb == "explain" && len(resp.GetLines()) != 1 {
					f.Errorf("explained by %v", resp)
				}
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := len(s.commands); n != 4 || s.commands[0].Verb != replan.Pause ||
			s.commands[2].Verb != replan.Pin || s.commands[2].Layout.String() != "ncf/1" {
			f.Errorf("got the commands %+v, want two pauses and two pins", s.commands)
		}
		for _, a := range []*fleetAgent{fixed, placed} {
			if !strings.Contains(a.log.String(), `msg="asked to pause the placement"`) {
				f.Errorf("%s has not logged who asked to pause", a.host)
			}
		}
	})
}

// TestPlacedNoMore: once the last agent that the leader places has gone, the status has no
// placement, and there is none to change.
func TestPlacedNoMore(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		s := &script{}
		variants := f.variants(time.Millisecond, both)
		fixed := f.start(variants, func(a Inside) { a.Environment().NewReplanner = s.replanner })
		placed := f.start(variants, f.placed(s, "ncf/1"),
			func(a Inside) { a.Config().Leader = "never" })
		f.settled(fixed, placed)
		f.led(fixed)
		f.hold(map[string]string{string(placed.AgentName()): "ncf/1"}, fixed)
		f.kill(placed)
		f.eventually(time.Minute, func() string {
			s, err := fixed.ctl.Status(f.Context(), &control.StatusRequest{})
			if err != nil || s.GetPlacement() != nil {
				return fmt.Sprintf("the placement is %v, %v, want none", s.GetPlacement(), err)
			}
			return ""
		})
		_, err := fixed.ctl.Place(f.Context(), &control.PlaceRequest{Verb: "pause"})
		if status.Code(err) != codes.FailedPrecondition {
			f.Errorf("a pause of no placement: %v", err)
		}
	})
}

// TestPlacedOnlyHost: a family's only host, which leads, is killed. Queries for the family wait until
// another leads and has an agent load it; none fails. So do those that come when nobody holds it.
func TestPlacedOnlyHost(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		settings := map[string]string{
			"ncf": exact["ncf"], "ncf-int8": coarse["ncf-int8"], "other": "",
		}
		for name := range settings { // patience of a client for longer than a load takes
			settings[name] += "deadline_ms: 30000\n"
		}
		variants := f.variants(time.Millisecond, settings)
		one := func(a Inside) {
			a.Config().ModelMemory = f.modelBytes() * 3 / 2
			a.Environment().OpenExecutor = func(Config, *slog.Logger) (runtime.Executor, error) {
				return slowly{runtime.NewEmulated(
					func(*models.Version, int) time.Duration { return time.Millisecond })}, nil
			}
		}
		start := func(layout string, more ...func(Inside)) *fleetAgent {
			return f.start(append([]func(Inside){variants, one, f.placed(nil, layout)}, more...)...)
		}
		only := start("ncf/1", func(a Inside) { a.Config().Leader = "must" })
		rest := []*fleetAgent{start("other/1"), start("other/1"), start("other/1")}
		all := append([]*fleetAgent{only}, rest...)
		f.settled(all...)
		if leader := f.led(all...); leader != only {
			f.Fatalf("%s leads, want %s", leader.host, only.host)
		}
		f.family("rank", "ncf", all...)
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
					if _, err := a.oip.ModelInfer(f.Context(), asks("rank", 0)); err != nil {
						mu.Lock()
						defer mu.Unlock()
						failed = append(failed, fmt.Errorf("at %s: %w", a.host, err))
					}
				})
			}
		})
		f.kill(only)
		f.led(rest...)
		f.eventually(5*time.Second, func() string { // before a new leader settles
			for _, a := range rest {
				if strings.Contains(a.log.String(), `to a layout" layout=ncf`) {
					return ""
				}
			}
			return "no agent is to load a variant of rank"
		})
		f.eventually(20*time.Second, func() string {
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
		f.fenced(all...)
	})
}

// TestPlacedSlower: a model that becomes slower than its profile by 3 times is said to be, and
// planned with as it is, within two periods.
func TestPlacedSlower(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	testInFleet(t, func(f *testFleet) {
		var factor atomic.Int64
		factor.Store(1)
		variants := f.variants(time.Millisecond, map[string]string{
			"ncf":      exact["ncf"] + "qos_target_ms: 100\ndeadline_ms: 5000\nmerge: none\n",
			"ncf-int8": coarse["ncf-int8"] + "qos_target_ms: 100\ndeadline_ms: 5000\nmerge: none\n",
		})
		slow := func(a Inside) {
			a.Environment().OpenExecutor = func(Config, *slog.Logger) (runtime.Executor, error) {
				return runtime.NewEmulated(func(v *models.Version, _ int) time.Duration {
					if v.Model == "ncf" {
						return time.Duration(factor.Load()) * 1200 * time.Microsecond // as shipped
					}
					return time.Millisecond
				}), nil
			}
		}
		agents := []*fleetAgent{
			f.start(variants, slow, f.placed(nil, "ncf/1")),
			f.start(variants, slow, f.placed(nil, "ncf/1")),
		}
		f.settled(agents...)
		leader := f.led(agents...)
		stop := f.underLoad("rank", agents...)
		time.Sleep(20 * time.Second) // of virtual time: latencies are learned, and planned with
		if strings.Contains(leader.log.String(), "kind=slower") {
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
		f.eventually(20*time.Second, func() string {
			if !strings.Contains(leader.log.String(), `kind=slower what="model ncf/1 takes `) {
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
