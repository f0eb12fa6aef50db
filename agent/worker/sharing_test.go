package worker_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/agent/worker"
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/profiles/sharing"
	"github.com/muster-serve/muster/runtime/isolate"
)

// lanes are how many lanes each of the agent's parts has, as it tells others.
func lanes(a *agenttest.Member) string {
	var all []string
	for _, p := range a.Members().Own().GetParts() {
		all = append(all, fmt.Sprint(strings.Join(p.GetModels(), ","), ":", p.GetLanes()))
	}
	return strings.Join(all, " ")
}

// TestLanesMove: when the loads of two models that share agents swap, lanes move within two seconds
// and no query fails: of an agent, and of that of two which answers most of the model's queries.
func TestLanesMove(t *testing.T) {
	const before, after = "rm2:2 wnd:1", "rm2:1 wnd:2"
	for n := 1; n <= 2; n++ {
		t.Run(fmt.Sprint(n, " agents"), func(t *testing.T) {
			agenttest.InFleet(t, func(f *agenttest.Fleet) {
				var agents []*agenttest.Member
				variants := f.Variants(20*time.Millisecond, agenttest.Twins)
				for range n {
					agents = append(agents, f.Start(variants,
						agenttest.SharesLanes("rm2:2x1+wnd:1x1")))
				}
				f.Settled(agents...)
				f.Led(agents...)
				f.Eventually(30*time.Second, func() string {
					for _, a := range agents {
						if !a.Server().Ready() {
							return a.Host + " is not ready"
						}
					}
					return ""
				})
				set, stop := f.Offers(agents...)
				// queries/s; a lane serves 50, but in time only half as many
				many, few := 46*n, 10*n
				set("rm2", many)
				set("wnd", few)
				time.Sleep(4 * time.Second)
				for _, a := range agents {
					if got := lanes(a); got != before {
						f.Errorf("%s: %s before the swap", a.Host, got)
					}
				}
				set("rm2", few)
				set("wnd", many)
				start := time.Now()
				var moved *agenttest.Member
				f.Eventually(10*time.Second, func() string {
					all := ""
					for _, a := range agents {
						got := lanes(a)
						if got == after {
							moved = a
							return ""
						}
						all += a.Host + ": " + got + " "
					}
					return all
				})
				if took := time.Since(start); took > 2*time.Second {
					f.Errorf("lanes have moved after %v, want 2 s at most", took)
				}
				time.Sleep(2 * time.Second)
				if got := lanes(moved); got != after {
					f.Errorf("%s: %s with steady loads", moved.Host, got)
				}
				if former := moved.Worker().Lanes().Former(); len(former) > 0 {
					f.Errorf("%s: %d partitions were not retired", moved.Host, len(former))
				}
				if wnd := moved.Worker().Lanes().Of("wnd"); n == 1 && wnd.Stats().Busy == 0 {
					f.Errorf("%s: the lanes of wnd ran nothing", moved.Host)
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

// TestPlacedPartitions: agents come to layouts of several partitions that the leader says, and
// back, while queries come, and none fails.
func TestPlacedPartitions(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		s := &agenttest.Script{Most: 1}
		variants := f.Variants(time.Millisecond, agenttest.Both)
		cores := func(a agent.Inside) { a.Config().Cores = 0 }
		agents := []*agenttest.Member{
			f.Start(variants, cores, f.Placed(s, "ncf/1")),
			f.Start(variants, cores, f.Placed(s, "ncf-int8/1,ncf/1")),
		}
		if cores, _ := isolate.Cores(); cores < 2 {
			f.Skip("this machine has one core")
		}
		f.Settled(agents...)
		f.Led(agents...)
		a, b := string(agents[0].AgentName()), string(agents[1].AgentName())
		f.Hold(map[string]string{a: "ncf/1", b: "ncf-int8/1,ncf/1"}, agents...)
		stop := f.UnderLoad("rank", agents...)
		for _, want := range []map[string]string{
			{a: "ncf-int8/1:1x1+ncf/1:1x1", b: "ncf/1"},
			{a: "ncf-int8/1:1x1", b: "ncf-int8/1:1x1+ncf/1:1x1"},
			{a: "ncf/1:2x1", b: "ncf-int8/1:1x2"},
			{a: "ncf-int8/1,ncf/1", b: "ncf-int8/1,ncf/1:1x1"},
		} {
			s.Want(want)
			f.Hold(want, agents...)
			for _, x := range agents {
				lanes := 0
				for _, p := range x.Members().Own().GetParts() {
					lanes += int(p.GetLanes())
				}
				if own := int(x.Members().Own().GetLanes()); lanes != own && lanes != 0 {
					f.Errorf("%s: its parts have %d lanes, and it has %d", x.Host, lanes, own)
				}
			}
		}
		// More cores than there are: the agent keeps what it holds, and says why.
		s.Want(map[string]string{a: "ncf/1:4000x1"})
		state := f.State(agents[0], "failed")
		if state.GetHolds() != "ncf-int8/1,ncf/1" ||
			!strings.Contains(state.GetWhy(), "takes 4000 cores, and this agent has") {
			f.Errorf("%v", state)
		}
		if sent, failed := stop(); len(failed) > 0 || sent < 300 {
			f.Errorf("%d of %d queries failed: %v", len(failed), sent,
				errors.Join(failed[:min(len(failed), 5)]...))
		}
		f.Fenced(agents...)
	})
}

// TestMeasuredSlowdowns: what is learned of models beside others starts from the measured
// slowdowns, at the agent and at its leader, and what was measured of other models or machines is
// refused by name.
func TestMeasuredSlowdowns(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		variants := f.Variants(20*time.Millisecond, agenttest.Twins)
		file := filepath.Join(f.TempDir(), "sharing.json")
		measured := func(change func(*sharing.File)) func(agent.Inside) {
			return func(a agent.Inside) {
				variants(a)
				a.Config().Sharing = file
				m := &sharing.File{
					Cores: goruntime.NumCPU(), Models: map[string]sharing.MeasuredModel{},
					QPS: map[string][][]float64{},
					Slowdown: map[string]map[string]float64{
						"rm2": {"wnd": 1.5, "rm2": 2}, "wnd": {"rm2": 1.25},
					},
				}
				for model := range agenttest.Twins {
					v, err := models.ReadNewest(a.Config().ModelDir, model)
					if err != nil {
						f.Fatal(err)
					}
					sum, err := worker.Checksum(f.Context(), v)
					if err != nil {
						f.Fatal(err)
					}
					m.Models[model] = sharing.MeasuredModel{Version: 1, Checksum: sum}
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
				m.Models["wnd"] = sharing.MeasuredModel{Version: 7}
			},
			`model "wnd", version 1, was measured with other files`: func(m *sharing.File) {
				m.Models["wnd"] = sharing.MeasuredModel{Version: 1, Checksum: "0123456789"}
			},
			"was measured on a machine with 1000 cores": func(m *sharing.File) { m.Cores = 1000 },
		} {
			a := f.Start(agenttest.SharesLanes("rm2:1x1+wnd:1x1"), measured(change))
			f.Settled(a)
			text := a.Log.String()
			if refused := strings.Contains(text, "the agent ignores measured slowdowns"); refused !=
				(want != "") || !strings.Contains(strings.ReplaceAll(text, `\"`, `"`), want) {
				f.Errorf("want %q in the log:\n%s", want, text)
			}
			rm2, wnd := a.Slowdowns()["rm2"]["wnd"], a.Slowdowns()["wnd"]["rm2"]
			if want == "" && (rm2 != 1.5 || wnd != 1.25) || want != "" && rm2+wnd != 0 {
				f.Errorf("%q: slowdowns %v", want, a.Slowdowns())
			}
			if err := a.Stop(); err != nil {
				f.Error(err)
			}
			f.Agents = nil
		}
	})
}

// TestLayoutsGoOn: an agent that cannot isolate the models of its layout serves them all the same,
// and says why they are not isolated. Lanes may have unlike numbers of cores.
func TestLayoutsGoOn(t *testing.T) {
	machine := goruntime.NumCPU()
	for _, c := range []struct{ layout, want string }{
		{fmt.Sprintf("rm2:1x%d+wnd:2x1", machine),
			fmt.Sprintf("the agent cannot pin lanes to processors|the layout wants %d cores",
				machine+2)},
		{"rm2:1x1/4w+wnd:1x1", "the agent cannot partition the cache|cannot be divided"},
	} {
		agenttest.InFleet(t, func(f *agenttest.Fleet) {
			if strings.Contains(c.layout, "w+") && (machine < 2 ||
				isolate.Open().Limits().Ways > 0) {
				f.Skip("this machine has one core, or can divide its cache")
			}
			a := f.Start(f.Variants(time.Millisecond, agenttest.Twins), func(a agent.Inside) {
				a.Config().Layout, a.Config().Cores = c.layout, 0
			})
			f.Settled(a)
			f.Eventually(30*time.Second, func() string {
				if !a.Server().Ready() {
					return "it is not ready"
				}
				return ""
			})
			for _, text := range strings.Split(c.want, "|") {
				if !strings.Contains(a.Log.String(), text) {
					f.Errorf("want %q in the log:\n%s", text, a.Log.String())
				}
			}
			for model := range agenttest.Twins {
				if _, err := a.OIP.ModelInfer(f.Context(), agenttest.NewRequest(model,
					0)); err != nil {
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
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		s := &agenttest.Script{Most: 1}
		variants := f.Variants(time.Millisecond, agenttest.Both)
		var bytes int64
		for _, model := range []string{"ncf"} {
			for _, path := range []string{"model.onnx", "model.onnx.data"} {
				info, err := os.Stat(filepath.Join(f.Dir, model, "1", path))
				if err == nil {
					bytes += info.Size()
				}
			}
		}
		a := f.Start(variants, f.Placed(s, "ncf/1"), func(a agent.Inside) {
			a.Config().Cores, a.Config().ModelMemory = 0, bytes*3/2
		})
		f.Settled(a)
		f.Led(a)
		f.Hold(map[string]string{string(a.AgentName()): "ncf/1"}, a)
		s.Want(map[string]string{string(a.AgentName()): "ncf-int8/1:1x1+ncf/1:1x1"})
		state := f.State(a, "failed")
		if state.GetHolds() != "ncf/1" || state.GetLanes() != "" ||
			!strings.Contains(state.GetWhy(), "ncf-int8 would take") {
			f.Errorf("%v", state)
		}
		if _, err := a.OIP.ModelInfer(f.Context(), agenttest.NewRequest("ncf", 0)); err != nil {
			f.Error(err)
		}
	})
}
