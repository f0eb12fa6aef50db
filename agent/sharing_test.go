package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-serve/muster/agent/worker"
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/profiles/sharing"
	"github.com/muster-serve/muster/runtime/isolate"
)

// twins are two models whose queries take as long, and may wait until lanes have moved.
var twins = map[string]string{
	"rm2": "qos_target_ms: 45\ndeadline_ms: 3000", "wnd": "qos_target_ms: 45\ndeadline_ms: 3000",
}

// sharesLanes makes an agent share its lanes between the twins, and lets the leader move them.
func sharesLanes(layout string) func(Inside) {
	return func(a Inside) {
		a.Config().Layout, a.Config().Cores, a.Config().ModelControl = layout, 0, "leader"
	}
}

// lanes are how many lanes each of the agent's parts has, as it tells others.
func (a *fleetAgent) lanes() string {
	var all []string
	for _, p := range a.Members().Own().GetParts() {
		all = append(all, fmt.Sprint(strings.Join(p.GetModels(), ","), ":", p.GetLanes()))
	}
	return strings.Join(all, " ")
}

// offers sends queries for models at rates, through the agents in turn, until stop is called, which
// returns how many there were and what was wrong with those that failed. set changes the rates.
func (f *testFleet) offers(agents ...*fleetAgent) (set func(model string, rate int),
	stop func() (int, []error)) {
	done := make(chan struct{})
	var mu sync.Mutex
	var failed []error
	sent, rates := 0, map[string]int{}
	var sending sync.WaitGroup
	for model := range twins {
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
					_, err := a.oip.ModelInfer(f.Context(), asks(model, 0))
					mu.Lock()
					defer mu.Unlock()
					if sent++; err != nil {
						failed = append(failed, fmt.Errorf("%s at %s: %w", model, a.host, err))
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

// TestLanesMove: when the loads of two models that share agents swap, lanes move within two seconds
// and no query fails: of an agent, and of that of two which answers most of the model's queries.
func TestLanesMove(t *testing.T) {
	const before, after = "rm2:2 wnd:1", "rm2:1 wnd:2"
	for n := 1; n <= 2; n++ {
		t.Run(fmt.Sprint(n, " agents"), func(t *testing.T) {
			testInFleet(t, func(f *testFleet) {
				var agents []*fleetAgent
				variants := f.variants(20*time.Millisecond, twins)
				for range n {
					agents = append(agents, f.start(variants, sharesLanes("rm2:2x1+wnd:1x1")))
				}
				f.settled(agents...)
				f.led(agents...)
				f.eventually(30*time.Second, func() string {
					for _, a := range agents {
						if !a.Server().Ready() {
							return a.host + " is not ready"
						}
					}
					return ""
				})
				set, stop := f.offers(agents...)
				many, few := 46*n, 10*n // queries/s; a lane serves 50, but in time only half as many
				set("rm2", many)
				set("wnd", few)
				time.Sleep(4 * time.Second)
				for _, a := range agents {
					if got := a.lanes(); got != before {
						f.Errorf("%s: %s before the swap", a.host, got)
					}
				}
				set("rm2", few)
				set("wnd", many)
				start := time.Now()
				var moved *fleetAgent
				f.eventually(10*time.Second, func() string {
					all := ""
					for _, a := range agents {
						got := a.lanes()
						if got == after {
							moved = a
							return ""
						}
						all += a.host + ": " + got + " "
					}
					return all
				})
				if took := time.Since(start); took > 2*time.Second {
					f.Errorf("lanes have moved after %v, want 2 s at most", took)
				}
				time.Sleep(2 * time.Second)
				if got := moved.lanes(); got != after {
					f.Errorf("%s: %s with steady loads", moved.host, got)
				}
				if former := moved.Worker().Lanes().Former(); len(former) > 0 {
					f.Errorf("%s: %d partitions were not retired", moved.host, len(former))
				}
				if wnd := moved.Worker().Lanes().Of("wnd"); n == 1 && wnd.Stats().Busy == 0 {
					f.Errorf("%s: the lanes of wnd ran nothing", moved.host)
				}
				sent, failed := stop()
				if len(failed) > 0 || sent < 300*n {
					f.Errorf("%d of %d queries failed: %v", len(failed), sent,
						errors.Join(failed[:min(len(failed), 5)]...))
				}
			})
		})
	}
}

// TestPlacedPartitions: agents come to layouts of several partitions that the leader says, and back,
// while queries come, and none fails.
func TestPlacedPartitions(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	testInFleet(t, func(f *testFleet) {
		s := &script{most: 1}
		variants := f.variants(time.Millisecond, both)
		cores := func(a Inside) { a.Config().Cores = 0 }
		agents := []*fleetAgent{
			f.start(variants, cores, f.placed(s, "ncf/1")),
			f.start(variants, cores, f.placed(s, "ncf-int8/1,ncf/1")),
		}
		if cores, _ := isolate.Cores(); cores < 2 {
			f.Skip("this machine has one core")
		}
		f.settled(agents...)
		f.led(agents...)
		a, b := string(agents[0].AgentName()), string(agents[1].AgentName())
		f.hold(map[string]string{a: "ncf/1", b: "ncf-int8/1,ncf/1"}, agents...)
		stop := f.underLoad("rank", agents...)
		for _, want := range []map[string]string{
			{a: "ncf-int8/1:1x1+ncf/1:1x1", b: "ncf/1"},
			{a: "ncf-int8/1:1x1", b: "ncf-int8/1:1x1+ncf/1:1x1"},
			{a: "ncf/1:2x1", b: "ncf-int8/1:1x2"},
			{a: "ncf-int8/1,ncf/1", b: "ncf-int8/1,ncf/1:1x1"},
		} {
			s.want(want)
			f.hold(want, agents...)
			for _, x := range agents {
				lanes := 0
				for _, p := range x.Members().Own().GetParts() {
					lanes += int(p.GetLanes())
				}
				if own := int(x.Members().Own().GetLanes()); lanes != own && lanes != 0 {
					f.Errorf("%s: its parts have %d lanes, and it has %d", x.host, lanes, own)
				}
			}
		}
		// More cores than there are: the agent keeps what it holds, and says why.
		s.want(map[string]string{a: "ncf/1:4000x1"})
		state := f.state(agents[0], "failed")
		if state.GetHolds() != "ncf-int8/1,ncf/1" ||
			!strings.Contains(state.GetWhy(), "takes 4000 cores, and this agent has") {
			f.Errorf("%v", state)
		}
		if sent, failed := stop(); len(failed) > 0 || sent < 300 {
			f.Errorf("%d of %d queries failed: %v", len(failed), sent,
				errors.Join(failed[:min(len(failed), 5)]...))
		}
		f.fenced(agents...)
	})
}

// TestMeasuredSlowdowns: what is learned of models beside others starts from the measured slowdowns,
// at the agent and at its leader, and what was measured of other models or machines is refused by
// name.
func TestMeasuredSlowdowns(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		variants := f.variants(20*time.Millisecond, twins)
		file := filepath.Join(f.TempDir(), "sharing.json")
		measured := func(change func(*sharing.File)) func(Inside) {
			return func(a Inside) {
				variants(a)
				a.Config().Sharing = file
				m := &sharing.File{
					Cores: goruntime.NumCPU(), Models: map[string]sharing.Model{},
					QPS: map[string][][]float64{},
					Slowdown: map[string]map[string]float64{
						"rm2": {"wnd": 1.5, "rm2": 2}, "wnd": {"rm2": 1.25},
					},
				}
				for model := range twins {
					v, err := models.ReadNewest(a.Config().ModelDir, model)
					if err != nil {
						f.Fatal(err)
					}
					sum, err := worker.Checksum(f.Context(), v)
					if err != nil {
						f.Fatal(err)
					}
					m.Models[model] = sharing.Model{Version: 1, Checksum: sum}
				}
				change(m)
				out, err := os.Create(file)
				if err != nil {
					f.Fatal(err)
				}
				defer out.Close()
				if err := m.Write(out); err != nil {
					f.Fatal(err)
				}
			}
		}
		for want, change := range map[string]func(*sharing.File){
			"": func(*sharing.File) {},
			`model "wnd" was measured as version 7, and it is version 1 now`: func(m *sharing.File) {
				m.Models["wnd"] = sharing.Model{Version: 7}
			},
			`model "wnd", version 1, was measured with other files`: func(m *sharing.File) {
				m.Models["wnd"] = sharing.Model{Version: 1, Checksum: "0123456789"}
			},
			"was measured on a machine with 1000 cores": func(m *sharing.File) { m.Cores = 1000 },
		} {
			a := f.start(sharesLanes("rm2:1x1+wnd:1x1"), measured(change))
			f.settled(a)
			text := a.log.String()
			if refused := strings.Contains(text, "measured slowdowns are not used"); refused !=
				(want != "") || !strings.Contains(strings.ReplaceAll(text, `\"`, `"`), want) {
				f.Errorf("want %q in the log:\n%s", want, text)
			}
			rm2, wnd := a.Slowdowns()["rm2"]["wnd"], a.Slowdowns()["wnd"]["rm2"]
			if want == "" && (rm2 != 1.5 || wnd != 1.25) || want != "" && rm2+wnd != 0 {
				f.Errorf("%q: slowdowns %v", want, a.Slowdowns())
			}
			if err := a.stop(); err != nil {
				f.Error(err)
			}
			f.agents = nil
		}
	})
}

// TestLayoutsGoOn: an agent that cannot isolate the models of its layout serves them all the same,
// and says why they are not isolated. Lanes may have unlike numbers of cores.
func TestLayoutsGoOn(t *testing.T) {
	machine := goruntime.NumCPU()
	for _, c := range []struct{ layout, want string }{
		{fmt.Sprintf("rm2:1x%d+wnd:2x1", machine),
			fmt.Sprintf("lanes are not pinned to processors|the layout wants %d cores", machine+2)},
		{"rm2:1x1/4w+wnd:1x1", "models share the whole cache|cannot be divided"},
	} {
		testInFleet(t, func(f *testFleet) {
			if strings.Contains(c.layout, "w+") && (machine < 2 || isolate.Open().Limits().Ways > 0) {
				f.Skip("this machine has one core, or can divide its cache")
			}
			a := f.start(f.variants(time.Millisecond, twins), func(a Inside) {
				a.Config().Layout, a.Config().Cores = c.layout, 0
			})
			f.settled(a)
			f.eventually(30*time.Second, func() string {
				if !a.Server().Ready() {
					return "it is not ready"
				}
				return ""
			})
			for _, text := range strings.Split(c.want, "|") {
				if !strings.Contains(a.log.String(), text) {
					f.Errorf("want %q in the log:\n%s", text, a.log.String())
				}
			}
			for model := range twins {
				if _, err := a.oip.ModelInfer(f.Context(), asks(model, 0)); err != nil {
					f.Errorf("%s: %v", model, err)
				}
			}
			layout, err := place.ParseLayout(a.Config().Layout)
			if err != nil {
				f.Fatal(err)
			}
			for i, p := range a.Members().Own().GetParts() {
				if want := layout.Partitions[i]; int(p.GetCores()) != want.Cores ||
					int(p.GetLanes()) != want.Lanes || int(p.GetWays()) != want.Ways {
					f.Errorf("%s: part %d is %v", c.layout, i, p)
				}
			}
		})
	}
}

// TestPairTooLarge: an agent that is to hold a pair which does not fit its memory keeps what it
// holds, and says what does not fit.
func TestPairTooLarge(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		s := &script{most: 1}
		variants := f.variants(time.Millisecond, both)
		var bytes int64
		for _, model := range []string{"ncf"} {
			for _, path := range []string{"model.onnx", "model.onnx.data"} {
				info, err := os.Stat(filepath.Join(f.dir, model, "1", path))
				if err == nil {
					bytes += info.Size()
				}
			}
		}
		a := f.start(variants, f.placed(s, "ncf/1"), func(a Inside) {
			a.Config().Cores, a.Config().ModelMemory = 0, bytes*3/2
		})
		f.settled(a)
		f.led(a)
		f.hold(map[string]string{string(a.AgentName()): "ncf/1"}, a)
		s.want(map[string]string{string(a.AgentName()): "ncf-int8/1:1x1+ncf/1:1x1"})
		state := f.state(a, "failed")
		if state.GetHolds() != "ncf/1" || state.GetLanes() != "" ||
			!strings.Contains(state.GetWhy(), "ncf-int8 would take") {
			f.Errorf("%v", state)
		}
		if _, err := a.oip.ModelInfer(f.Context(), asks("ncf", 0)); err != nil {
			f.Error(err)
		}
	})
}
