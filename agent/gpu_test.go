package agent_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/gpu"
	"github.com/muster-serve/muster/runtime/gpu/fakenvidia"
)

// fakeCard has this process find a driver with one card, which is at hand.
func fakeCard(t *testing.T, card fakenvidia.Card) (set func(fakenvidia.Card)) {
	t.Helper()
	driver, err := fakenvidia.Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	set = func(card fakenvidia.Card) {
		t.Helper()
		if err := driver.Set(fakenvidia.State{Cards: []fakenvidia.Card{card}}); err != nil {
			t.Fatal(err)
		}
	}
	set(card)
	t.Setenv(fakenvidia.Variable, driver.State())
	// A library that is loaded is found by its name, wherever it lies.
	if err := gpu.Preload([]string{driver.NVML}); err != nil {
		t.Fatal(err)
	}
	return set
}

// TestGPU: an agent with a card has the metrics of docs/metrics.md, tells the fleet of the card, and
// leaves when it fails.
func TestGPU(t *testing.T) {
	card := fakenvidia.Card{
		UUID: "GPU-a", Name: "Fake T4", Memory: 16 << 30, Used: 3 << 30, Percent: 37, Celsius: 55,
		Watts: 60, Corrected: 5, Uncorrected: 1,
	}
	set := fakeCard(t, card)
	config := agenttest.Config(t)
	config.GPU = "GPU-a"
	a := agenttest.Start(t, config, agenttest.Emulated())
	value := func(name string, labels ...string) float64 {
		t.Helper()
		families, err := a.Registry().Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			for _, m := range family.GetMetric() {
				matches := family.GetName() == name
				for _, l := range m.GetLabel() {
					matches = matches && l.GetValue() == strings.Join(labels, "")
				}
				if matches {
					return m.GetGauge().GetValue() + m.GetCounter().GetValue()
				}
			}
		}
		return math.NaN()
	}
	await := func(what string, is func() bool) {
		t.Helper()
		poll := time.NewTicker(10 * time.Millisecond)
		defer poll.Stop()
		for deadline := time.Now().Add(time.Minute); !is(); <-poll.C {
			if time.Now().After(deadline) {
				t.Fatalf("after a minute not %s; the log:\n%s", what, a.Log)
			}
		}
	}
	await("looked at", func() bool { return value("muster_gpu_memory_bytes") > 0 })
	for _, tt := range []struct {
		name, label string
		want        float64
	}{
		{"muster_gpu_memory_bytes", "", 16 << 30}, {"muster_gpu_memory_used_bytes", "", 3 << 30},
		{"muster_gpu_utilization_ratio", "", .37}, {"muster_gpu_temperature_celsius", "", 55},
		{"muster_gpu_power_watts", "", 60}, {"muster_gpu_slowed", gpu.Heat, 0},
		{"muster_gpu_memory_errors_total", "corrected", 5},
		{"muster_gpu_memory_errors_total", "uncorrected", 1},
		{"muster_gpu_xid_errors_total", "", 0}, {"muster_gpu_last_xid", "", 0},
	} {
		if got := value(tt.name, tt.label); got != tt.want {
			t.Errorf("%s of %q: got %v, want %v", tt.name, tt.label, got, tt.want)
		}
	}
	agenttest.ServesAsDocumented(t, a.Inside, "muster_gpu_")

	card.Throttled, card.Xid, card.Event = 0x40, 63, 1 // a thermal slowdown; a row was remapped
	set(card)
	own := func() *control.GPU { return a.Members().Own().GetGpu() }
	await("told", func() bool { return own().GetXid() == 63 && len(own().GetSlowed()) > 0 })
	if g := own(); g.GetName() != "Fake T4" || g.GetUsedBytes() != 3<<30 || g.GetSlowed()[0] != gpu.Heat ||
		g.GetUncorrected() != 1 {
		t.Errorf("the fleet is told %v", g)
	}
	if got := value("muster_gpu_slowed", gpu.Heat); got != 1 {
		t.Errorf("muster_gpu_slowed by heat: got %v, want 1", got)
	}

	card.Xid, card.Event = 79, 2
	set(card)
	const want = "GPU 0 (Fake T4, GPU-a) failed: Xid 79: the GPU has fallen off the bus; it needs a reset"
	await("failed", func() bool { return strings.Contains(a.Log.String(), "has failed") })
	if err := a.Stop(); err == nil || err.Error() != want {
		t.Errorf("the agent ended with %v, want %s", err, want)
	}
	a.Stop = func() error { return nil } // it has ended as it should
	for _, line := range []string{
		"is slowed (", "xid=63", "leaves: its GPU", "event=drained",
	} {
		if !strings.Contains(a.Log.String(), line) {
			t.Errorf("the log has no %s:\n%s", line, a.Log)
		}
	}
}

// A brokenExecutor is one on a card that fails each run while it is broken.
type brokenExecutor struct {
	runtime.Executor
	broken *atomic.Bool
	failed *atomic.Int64
}

type brokenModel struct {
	runtime.Model
	brokenExecutor
}

func (e brokenExecutor) Load(ctx context.Context, v *models.Version) (runtime.Model, error) {
	m, err := e.Executor.Load(ctx, v)
	return brokenModel{m, e}, err
}

func (m brokenModel) Run(ctx context.Context, inputs []tensor.Tensor) (*runtime.Result, error) {
	if m.broken.Load() {
		m.failed.Add(1)
		return nil, fmt.Errorf("run ncf/1: %w", &runtime.DeviceError{Memory: true, Text: "full"})
	}
	return m.Model.Run(ctx, inputs)
}

// TestGPUErrors: a query whose run fails of the card runs on another agent. An agent that is alone
// says that it could.
func TestGPUErrors(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		var broken atomic.Bool
		var failed atomic.Int64
		with := func(a agent.Inside) {
			open := a.Environment().OpenExecutor
			a.Environment().OpenExecutor = func(c agent.Config, log *slog.Logger) (runtime.Executor, error) {
				e, err := open(c, log)
				return brokenExecutor{e, &broken, &failed}, err
			}
		}
		bad := f.Start(with)
		f.Settled(bad)
		broken.Store(true)
		for error := range f.Send(1, 0, bad) {
			const want = "rpc error: code = Unavailable desc = run ncf/1: the GPU has too little memory: full"
			if error != want {
				f.Errorf("alone: got %q, want %q", error, want)
			}
		}
		if failed.Swap(0) != 1 {
			f.Error("alone: no run failed")
		}
		if got := agenttest.Counted(bad.Inside, "muster_failed_queries_total", "gpu"); got != 1 {
			f.Errorf("alone: %v queries failed for the reason gpu, want 1", got)
		}

		broken.Store(false)
		good := f.Start()
		f.Settled(bad, good)
		f.Led(bad, good)
		broken.Store(true)
		if errors := f.Send(40, 5*time.Millisecond, bad, good); len(errors) > 0 {
			f.Errorf("failed: %v", errors)
		}
		if failed.Load() == 0 {
			f.Error("no run failed, so nothing was tried again")
		}
		if got := agenttest.Counted(bad.Inside, "muster_attempts_not_run_total", "gpu"); got != float64(failed.Load()) {
			f.Errorf("%v attempts were not run for the reason gpu, want %d", got, failed.Load())
		}
	})
}
