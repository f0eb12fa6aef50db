package agenttest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/lead"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/leader/place/replan"
)

// A Script decides on placements as a test says, for all leaders of a fleet.
type Script struct {
	Mu       sync.Mutex
	version  uint64
	wants    map[string]string // layouts, by agent
	Most     int               // agents that may change at once; 0: any number
	Epochs   []uint64          // of the leaders, in order
	Seen     map[string]replan.Agent
	Known    map[names.TableKey]replan.Latencies
	Commands []replan.Command
	Memories []replan.Memory // that leaders began with
	refuse   error           // of commands
}

// A scriptedReplanner is the replanner of one leader.
type scriptedReplanner struct {
	*Script
	epoch  uint64
	memory replan.Memory
	told   uint64 // the version last remembered
}

func (s *Script) Replanner(c replan.Config, m replan.Memory) (lead.Replanner, error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.Epochs, s.Memories = append(s.Epochs, c.Epoch), append(s.Memories, m)
	return &scriptedReplanner{Script: s, epoch: c.Epoch, memory: m}, nil
}

// Want makes all leaders want these layouts from now on.
func (s *Script) Want(layouts map[string]string) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.version++
	s.wants = layouts
}

func (s *scriptedReplanner) Step(now time.Time, shot *replan.Snapshot) *replan.Answer {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.Seen, s.Known = map[string]replan.Agent{}, shot.Latencies
	p := place.Placement{Version: s.version, Reason: "as the test says"}
	a := &replan.Answer{Placement: &p, Next: now.Add(time.Second)}
	changing := 0
	for _, known := range shot.Agents {
		s.Seen[string(known.Name)] = known
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
		case s.Most > 0 && changing >= s.Most:
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

func (s *scriptedReplanner) Solved(*replan.Plan) {}

func (s *scriptedReplanner) Command(c replan.Command) error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.refuse == nil {
		s.Commands = append(s.Commands, c)
	}
	return s.refuse
}

func (s *scriptedReplanner) Memory() replan.Memory { return s.memory }

func (s *scriptedReplanner) Explain(one names.AgentName) ([]string, error) {
	return []string{string(one) + " holds what the test says"}, nil
}

// Placed makes an agent hold what the leader says, and at first the layout; "" for none.
func (f *Fleet) Placed(s *Script, layout string) func(agent.Inside) {
	return func(a agent.Inside) {
		a.Config().ModelControl = "leader"
		if s != nil { // else the real one
			a.Environment().NewReplanner = s.Replanner
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

// Both are the variants of rank, which every agent has on disk.
var Both = map[string]string{"ncf": Exact["ncf"], "ncf-int8": Coarse["ncf-int8"]}

// Hold waits until the agents hold these layouts, by agent, as the leader sees it.
func (f *Fleet) Hold(want map[string]string, agents ...*Member) {
	f.Helper()
	f.Eventually(2*time.Minute, func() string {
		time.Sleep(100 * time.Millisecond) // it takes seconds, and each look costs
		for _, a := range agents {
			s, err := a.Control.Status(f.Context(), &control.StatusRequest{})
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
				return fmt.Sprintf("%s says that agents hold %v, want %v", a.Host, got, want)
			}
		}
		return ""
	})
}

// UnderLoad sends queries for a family through each of the agents until stop is called, which
// returns how many there were, and what was wrong with those that failed.
func (f *Fleet) UnderLoad(family string, agents ...*Member) (stop func() (int, []error)) {
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
				_, err := a.OIP.ModelInfer(f.Context(), NewRequest(family, 0))
				mu.Lock()
				if sent++; err != nil {
					failed = append(failed, fmt.Errorf("at %s: %w", a.Host, err))
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

var orderTaken = regexp.MustCompile(
	`changes to layout [^"]*" layout=(\S+) epoch=(\d+) version=(\d+)`)

// Fenced checks that no agent has taken a layout older than its last.
func (f *Fleet) Fenced(agents ...*Member) {
	f.Helper()
	for _, a := range agents {
		var last place.Stamp
		for _, m := range orderTaken.FindAllStringSubmatch(a.Log.String(), -1) {
			epoch, _ := strconv.ParseUint(m[2], 10, 64)
			version, _ := strconv.ParseUint(m[3], 10, 64)
			now := place.Stamp{Epoch: epoch, Version: version}
			if now.Compare(last) <= 0 {
				f.Errorf("%s took %v after %v", a.Host, now, last)
			}
			last = now
		}
	}
}

// State waits until the agent is in a state, and returns what it tells of its layout.
func (f *Fleet) State(a *Member, want string) *control.LayoutState {
	f.Helper()
	var state *control.LayoutState
	f.Eventually(2*time.Minute, func() string {
		state = a.Worker().LayoutState()
		if state.GetState() != want {
			return fmt.Sprintf("%s is %v, want %s", a.Host, state, want)
		}
		return ""
	})
	return state
}

// Twins are two models whose queries take as long, and may wait until lanes have moved.
var Twins = map[string]string{
	"rm2": "qos_target_ms: 45\ndeadline_ms: 3000", "wnd": "qos_target_ms: 45\ndeadline_ms: 3000",
}

// SharesLanes makes an agent share its lanes between the twins, and lets the leader move them.
func SharesLanes(layout string) func(agent.Inside) {
	return func(a agent.Inside) {
		a.Config().Layout, a.Config().Cores, a.Config().ModelControl = layout, 0, "leader"
	}
}

// Offers sends queries for models at rates, through the agents in turn, until stop is called, which
// returns how many there were and what was wrong with those that failed. set changes the rates.
func (f *Fleet) Offers(agents ...*Member) (set func(model string, rate int),
	stop func() (int, []error)) {
	done := make(chan struct{})
	var mu sync.Mutex
	var failed []error
	sent, rates := 0, map[string]int{}
	var sending sync.WaitGroup
	for model := range Twins {
		sending.Go(func() {
			for n := 0; ; n++ {
				mu.Lock()
				rate := max(1, rates[model])
				mu.Unlock()
				select {
				case <-done:
					return
				case <-time.After(time.Second / time.Duration(rate)):
				}
				a := agents[n%len(agents)]
				sending.Go(func() {
					_, err := a.OIP.ModelInfer(f.Context(), NewRequest(model, 0))
					mu.Lock()
					defer mu.Unlock()
					if sent++; err != nil {
						failed = append(failed, fmt.Errorf("%s at %s: %w", model, a.Host, err))
					}
				})
			}
		})
	}
	set = func(model string, rate int) {
		mu.Lock()
		defer mu.Unlock()
		rates[model] = rate
	}
	return set, func() (int, []error) {
		close(done)
		sending.Wait()
		return sent, failed
	}
}
