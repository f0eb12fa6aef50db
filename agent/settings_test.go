package agent

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
	testInFleet(t, func(f *testFleet) {
		record := filepath.Join(f.TempDir(), "record")
		agents := []*fleetAgent{
			f.start(ownModels(f),
				func(a Inside) { a.Config().Leader, a.Config().Record = "must", record }),
			f.start(ownModels(f)), f.start(ownModels(f)),
		}
		f.settled(agents...)
		f.led(agents...)
		// something is learned
		if failed := f.send(100, time.Millisecond, agents...); len(failed) > 0 {
			f.Fatalf("failed: %v", failed)
		}
		var enough atomic.Bool
		var load sync.WaitGroup
		load.Go(func() {
			for !enough.Load() {
				if failed := f.send(20, max(5*time.Millisecond, pace()), agents...); len(failed) > 0 {
					f.Errorf("failed: %v", failed)
				}
			}
		})
		byName := slices.SortedFunc(slices.Values(agents),
			func(a, b *fleetAgent) int { return strings.Compare(string(a.AgentName()), string(b.AgentName())) })
		for _, largest := range []int{1500, 1000} {
			for _, changed := range byName {
				changed.settings(map[string]string{"largest_batch_size": fmt.Sprint(largest)})
				f.eventually(time.Minute, func() string {
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
				guest := f.start(ownModels(f), neverLeads,
					func(a Inside) { a.Config().Executor = "emulated" })
				f.settled(append([]*fleetAgent{guest}, agents...)...)
				if err := guest.stop(); err != nil {
					f.Error(err)
				}
				f.settled(agents...)
			}
		}
		enough.Store(true)
		load.Wait()
		for _, a := range agents {
			if err := a.stop(); err != nil {
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
func ownModels(f *testFleet) func(Inside) {
	return func(a Inside) {
		a.Config().ModelDir = f.TempDir()
		if err := os.CopyFS(a.Config().ModelDir, os.DirFS(f.dir)); err != nil {
			f.Fatal(err)
		}
	}
}

// settings changes lines of the model.yaml of the agent's NCF, which are there already.
func (a *fleetAgent) settings(changes map[string]string) {
	a.fleet.Helper()
	path := filepath.Join(a.Config().ModelDir, "ncf", "model.yaml")
	data, err := os.ReadFile(path)
	if err != nil {
		a.fleet.Fatal(err)
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
		a.fleet.Fatalf("%d of %v changed: %v", changed, changes, err)
	}
}

// TestColdWorker: an agent on which nothing has run knows from the shipped profile how long a query
// takes, and learns under the same key as the leader.
func TestColdWorker(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		agents := []*fleetAgent{f.start(), f.start()}
		f.settled(agents...)
		leads := f.led(agents...)
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
		if failed := f.send(200, time.Millisecond, agents...); len(failed) > 0 {
			f.Errorf("failed: %v", failed)
		}
		agree()
		f.eventually(time.Second, func() string {
			d := &control.FleetDemand{}
			if leads.Leading().Demand(d); len(d.Profiles) != 1 || d.Profiles[0].Queries < 200 {
				return fmt.Sprintf("the leader has learned %v, want of one key 200 queries",
					d.Profiles)
			}
			return ""
		})
	})
}
