package agent_test

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/runtime/isolate"
)

// TestQuotaChanges: an agent whose CPU quota has become that of another number of cores drains and
// starts anew, once the quota stands and another agent serves meanwhile. One with settings of its
// own only says so.
func TestQuotaChanges(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		cores, _ := isolate.Cores()
		var usable atomic.Int64
		usable.Store(int64(cores))
		limited := func(a agent.Inside) {
			a.Config().Cores = 0
			a.Environment().ReadCores = func() (int, string) { return int(usable.Load()), "a test" }
		}
		set := func(a agent.Inside) {
			limited(a)
			a.Config().Cores = 1
		}
		first := f.Start(limited)
		f.Settled(first)
		usable.Store(int64(cores + 1))
		time.Sleep(5 * time.Minute)
		if first.Draining() {
			t.Error("an agent that serves alone drains")
		}
		usable.Store(int64(cores))
		time.Sleep(time.Minute)

		second := f.Start(set)
		f.Settled(first, second)
		usable.Store(int64(cores + 1))
		time.Sleep(15 * time.Second)
		usable.Store(int64(cores)) // it did not last
		time.Sleep(2 * time.Minute)
		if first.Draining() || second.Draining() {
			t.Error("an agent drains for a quota that did not last")
		}
		usable.Store(int64(cores + 2))
		f.Eventually(2*time.Minute, func() string {
			if !first.Draining() {
				return "the agent does not drain"
			}
			return ""
		})
		for failure, n := range f.Send(100, 20*time.Millisecond, second) {
			f.Errorf("%d queries failed: %s", n, failure)
		}
		if err := first.Stop(); !errors.Is(err, agent.ErrRestart) {
			t.Errorf("the agent ended with %v, want %v", err, agent.ErrRestart)
		}
		f.Agents = f.Agents[1:]
		if second.Draining() {
			t.Error("an agent with cores of its own drains")
		}
		for _, a := range []*agenttest.Member{first, second} {
			if !strings.Contains(a.Log.String(), "cores now, and its lanes have") {
				t.Errorf("%s says nothing of its quota", a.Host)
			}
		}
	})
}

// TestHeapLimit: Go's memory limit is what the control group leaves beside foreign memory, and
// follows both.
func TestHeapLimit(t *testing.T) {
	const mb = 1 << 20
	var set []int64
	h := agent.NewHeapLimit(func(limit int64) { set = append(set, limit/mb) })
	for _, step := range [][2]int64{
		{-1, 0}, {1000 * mb, 0}, {1000 * mb, 5 * mb}, {1000 * mb, 400 * mb}, {1000 * mb, 950 * mb},
		{2000 * mb, 950 * mb},
	} {
		h(step[0], step[1])
	}
	if want := []int64{900, 500, 100, 850}; !slices.Equal(set, want) {
		t.Errorf("got %v MiB, want %v", set, want)
	}
}
