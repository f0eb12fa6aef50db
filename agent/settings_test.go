package agent_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/profiles"
)

// TestSettingsChangeOneByOne changes a model.yaml on one agent after the other, to a larger largest
// batch size and back, while the fleet serves and others come and go: the leader's matcher hears of
// each change once, has a table of the model all the time, and no query fails.
func TestSettingsChangeOneByOne(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		record := filepath.Join(f.TempDir(), "record")
		agents := []*agenttest.Member{
			f.Start(ownModels(f),
				func(a agent.Inside) { a.Config().Leader, a.Config().Record = "must", record }),
			f.Start(ownModels(f)), f.Start(ownModels(f)),
		}
		f.Settled(agents...)
		f.Led(agents...)
		// something is learned
		if failed := f.Send(100, time.Millisecond, agents...); len(failed) > 0 {
			f.Fatalf("failed: %v", failed)
		}
		var enough atomic.Bool
		var load sync.WaitGroup
		load.Go(func() {
			for !enough.Load() {
				if failed := f.Send(20, max(5*time.Millisecond, agenttest.Pace()), agents...); len(failed) > 0 {
					f.Errorf("failed: %v", failed)
				}
			}
		})
		byName := slices.SortedFunc(slices.Values(agents),
			func(a, b *agenttest.Member) int { return strings.Compare(string(a.AgentName()), string(b.AgentName())) })
		for _, largest := range []int{1500, 1000} {
			for _, changed := range byName {
				settings(changed, map[string]string{"largest_batch_size": fmt.Sprint(largest)})
				f.Eventually(time.Minute, func() string {
					for _, a := range agents {
						if got := a.Members().Member(
							names.AgentName(
								changed.AgentName())).GetModels()[0].GetLargestBatchSize(); int(
							got) != largest {
							return fmt.Sprintf("%s sees largest batch size %d at %s, want %d",
								a.AgentName(), got, changed.AgentName(), largest)
						}
					}
					return ""
				})
				guest := f.Start(ownModels(f), agenttest.NeverLeads,
					func(a agent.Inside) { a.Config().Executor = "emulated" })
				f.Settled(append([]*agenttest.Member{guest}, agents...)...)
				if err := guest.Stop(); err != nil {
					f.Error(err)
				}
				f.Settled(agents...)
			}
		}
		enough.Store(true)
		load.Wait()
		for _, a := range agents {
			if err := a.Stop(); err != nil {
				f.Error(err)
			}
		}

		file, err := os.Open(record)
		if err != nil {
			f.Fatal(err)
		}
		defer file.Close()
		if replayed, err := leader.Replay(file); err != nil || replayed.Decisions == 0 {
			f.Errorf("what the leader has recorded replays: %+v, %v", replayed, err)
		}
	})
}

// ownModels gives an agent a model directory of its own.
func ownModels(f *agenttest.Fleet) func(agent.Inside) {
	return func(a agent.Inside) {
		a.Config().ModelDir = f.TempDir()
		if err := os.CopyFS(a.Config().ModelDir, os.DirFS(f.Dir)); err != nil {
			f.Fatal(err)
		}
	}
}

// settings changes lines of the model.yaml of the agent's NCF, which are there already.
func settings(a *agenttest.Member, changes map[string]string) {
	a.Fleet.Helper()
	path := filepath.Join(a.Config().ModelDir, "ncf", "model.yaml")
	data, err := os.ReadFile(path)
	if err != nil {
		a.Fleet.Fatal(err)
	}
	lines, changed := strings.Split(string(data), "\n"), 0
	for i, line := range lines {
		key, _, _ := strings.Cut(line, ":")
		if value, ok := changes[key]; ok {
			lines[i] = key + ": " + value
			changed++
		}
	}
	err = errors.Join(os.WriteFile(path+"~", []byte(strings.Join(lines, "\n")), 0o644),
		os.Rename(path+"~", path))
	if err != nil || changed != len(changes) {
		a.Fleet.Fatalf("%d of %v changed: %v", changed, changes, err)
	}
}

// TestColdWorker: an agent on which nothing has run knows from the shipped profile how long a query
// takes, and learns under the same key as the leader.
func TestColdWorker(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		agents := []*agenttest.Member{f.Start(), f.Start()}
		f.Settled(agents...)
		leads := f.Led(agents...)
		shipped, err := profiles.ShippedLibrary().Table("ncf", "r5n.large")
		if err != nil {
			f.Fatal(err)
		}
		agree := func() {
			f.Helper()
			for _, a := range agents {
				own := a.Members().Own()
				// as its own estimates have it
				worker := members.KeyOf(a.Catalogue(), own, own.Models[0])
				known := leads.Members().Member(names.AgentName(a.AgentName()))
				key := members.KeyOf(leads.Catalogue(), known, known.Models[0])
				if key != worker || key.Cores != 0 || key.Checksum == "" {
					f.Errorf(
						"of %s the leader learns under %+v, it itself under %+v; want the same, "+
							"of the whole machine, with a checksum", a.AgentName(), key, worker)
				}
			}
		}
		for _, a := range agents {
			if got, want := a.Worker().Lanes().Estimate("ncf/1",
				100), shipped.Mean(100); got != want {
				f.Errorf("%s, cold, expects %v at batch size 100, want %v as shipped", a.AgentName(), got,
					want)
			}
		}
		agree()
		if failed := f.Send(200, time.Millisecond, agents...); len(failed) > 0 {
			f.Errorf("failed: %v", failed)
		}
		agree()
		f.Eventually(time.Second, func() string {
			d := &control.FleetDemand{}
			if leads.Leading().Demand(d); len(d.Profiles) != 1 || d.Profiles[0].Queries < 200 {
				return fmt.Sprintf("the leader has learned %v, want of one key 200 queries",
					d.Profiles)
			}
			return ""
		})
	})
}
