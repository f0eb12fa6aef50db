package worker_test

import (
	"context"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/isolate"
)

// A locating executor notes on which processors the threads of its models' runs may be.
type locating struct {
	runtime.Executor
	mu sync.Mutex
	at map[string][][]int // by model
}

func (x *locating) Load(ctx context.Context, v *models.Version) (runtime.Model, error) {
	m, err := x.Executor.Load(ctx, v)
	return &locatingModel{m, x, v.Model}, err
}

type locatingModel struct {
	runtime.Model
	of   *locating
	name string
}

func (m *locatingModel) Run(ctx context.Context, inputs []tensor.Tensor) (*runtime.Result, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, err
	}
	var cpus []int
	for n := range 1024 {
		if set.IsSet(n) {
			cpus = append(cpus, n)
		}
	}
	m.of.mu.Lock()
	m.of.at[m.name] = append(m.of.at[m.name], cpus)
	m.of.mu.Unlock()
	return m.Model.Run(ctx, inputs)
}

// TestLanesOfModels: each model of a layout runs on its own lane and processor, alone and led, and
// others are not served.
func TestLanesOfModels(t *testing.T) {
	top, err := isolate.Read()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := top.Assign([]isolate.Want{
		{Lanes: 1, Cores: 1}, {Lanes: 1, Cores: 1},
	}); err != nil {
		t.Skip(err)
	}
	config := agenttest.Config(t)
	config.Layout = "ncf:1x1+wnd:1x1"
	x := &locating{at: map[string][][]int{}, Executor: runtime.NewEmulated(
		func(*models.Version, int) time.Duration { return 0 })}
	a := agenttest.Start(t, config, x)
	parts := a.Members().Own().GetParts()
	if len(parts) != 2 || parts[0].GetFirst() != 0 || parts[1].GetFirst() != 1 ||
		parts[0].GetLanes() != 1 || !slices.Equal(parts[0].GetModels(), []string{"ncf"}) ||
		!slices.Equal(parts[1].GetModels(), []string{"wnd"}) {
		t.Errorf("parts %v", parts)
	}
	if got := a.Worker().Lanes().Stats().Lanes; got != 2 {
		t.Errorf("%d lanes, want 2", got)
	}
	for range 4 {
		if _, err := a.GRPC.ModelInfer(t.Context(), agenttest.NCFRequest(3)); err != nil {
			t.Fatal(err)
		}
	}
	for _, model := range []string{"ncf", "wnd"} { // wnd has warmed up
		runs := x.at[model]
		if len(runs) == 0 {
			t.Errorf("%s did not run", model)
		}
		for _, cpus := range runs {
			if len(cpus) != 1 || cpus[0] != runs[0][0] {
				t.Errorf("%s ran on processors %v, and first on %v", model, cpus, runs[0])
			}
		}
	}
	if x.at["ncf"][0][0] == x.at["wnd"][0][0] {
		t.Errorf("both models ran on processor %d", x.at["wnd"][0][0])
	}
	index, err := a.GRPC.RepositoryIndex(t.Context(), &inference.RepositoryIndexRequest{})
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for _, m := range index.GetModels() {
		if m.GetState() != "READY" {
			refused++
			want := `the layout ncf:1x1+wnd:1x1 has no lanes for model "` + m.GetName() + `"`
			if !strings.Contains(m.GetReason(), want) {
				t.Errorf("%s: %q, want %q", m.GetName(), m.GetReason(), want)
			}
		}
	}
	if refused == 0 || refused != len(index.GetModels())-2 {
		t.Errorf("%d of %d models are refused", refused, len(index.GetModels()))
	}
}

// TestLanesOfModelsLed: a leader sends each model's queries to its lane.
func TestLanesOfModelsLed(t *testing.T) {
	if n := goruntime.NumCPU(); n < 2 {
		t.Skipf("a layout of two lanes needs two cores, and the machine has %d", n)
	}
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		layout := func(a agent.Inside) { a.Config().Layout, a.Config().Cores = "ncf:1x1+wnd:1x1", 0 }
		agents := []*agenttest.Member{f.Start(layout), f.Start(layout)}
		f.Led(agents...)
		f.Eventually(30*time.Second, func() string {
			for _, a := range agents {
				if !a.Server().Ready() {
					return string(a.AgentName()) + " is not ready"
				}
			}
			return ""
		})
		busy := func(a *agenttest.Member, part int) time.Duration {
			return a.Worker().Lanes().Parts()[part].Stats().Busy
		}
		before := []time.Duration{busy(agents[0], 1), busy(agents[1], 1)}
		if got := f.Send(40, 2*time.Millisecond, agents...); len(got) > 0 {
			f.Errorf("queries failed: %v", got)
		}
		for i, a := range agents {
			if busy(a, 0) == 0 || busy(a, 1) != before[i] {
				f.Errorf("%s: lanes were busy for %v, and for %v more", a.Host, busy(a, 0),
					busy(a, 1)-before[i])
			}
		}
	})
}
