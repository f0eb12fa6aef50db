package agent_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/profiles"
)

// TestStateOfOthers: whatever profiles.json holds, an agent starts and serves, keeps what the file
// held under a name that the log tells, and leaves what it has learned itself.
func TestStateOfOthers(t *testing.T) {
	old, err := os.ReadFile(filepath.Join("..", "profiles", "testdata", "profiles-format1.json"))
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct{ in, kept, log string }{
		"damaged": {string(old[:len(old)-100]), "profiles.json.damaged", "level=WARN"},
		"newer": {
			`{"format":99,"rooms":[{"key":"value"}]}`, "profiles.json.format99", "level=WARN",
		},
		"older": {string(old), "profiles.json.format1", "level=INFO"},
	} {
		t.Run(name, func(t *testing.T) {
			agenttest.InFleet(t, func(f *agenttest.Fleet) {
				dir := f.TempDir()
				path, kept := filepath.Join(dir, "profiles.json"), filepath.Join(dir, x.kept)
				if err := os.WriteFile(path, []byte(x.in), 0o600); err != nil {
					f.Fatal(err)
				}
				a := f.Start(func(a agent.Inside) { a.Config().StateDir = dir })
				f.Settled(a)
				f.Led(a)
				if failed := f.Send(100, time.Millisecond, a); len(failed) > 0 {
					f.Errorf("failed: %v", failed)
				}
				if err := a.Stop(); err != nil {
					f.Error(err)
				}
				if got, err := os.ReadFile(kept); err != nil || string(got) != x.in {
					f.Errorf("%s holds %.60q, %v", kept, got, err)
				}
				if !slices.ContainsFunc(strings.Split(a.Log.String(), "\n"),
					func(line string) bool {
						return strings.Contains(line, x.log) &&
							strings.Contains(line, "file="+path+" ") &&
							strings.Contains(line, "kept_as="+kept)
					}) {
					f.Errorf("no line of the log at %s names both %s and %s:\n%s", x.log, path,
						kept, a.Log)
				}
				book, models := profiles.NewBook(nil), map[string]int{}
				if err := book.Load(path); err != nil {
					f.Fatal(err)
				}
				for _, key := range book.Keys() {
					models[key.Model]++
				}
				if models["ncf"] != 1 || (models["wnd"] == 2) != (name == "older") {
					f.Errorf("kept afterwards: %v", book.Keys())
				}
			})
		})
	}
}

// TestStateStays: what cannot be given another name is not written over, and keeps no agent from
// starting.
func TestStateStays(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		dir := f.TempDir()
		inside := filepath.Join(dir, "profiles.json", "x")
		if err := os.MkdirAll(inside, 0o755); err != nil {
			f.Fatal(err)
		}
		a := f.Start(func(a agent.Inside) { a.Config().StateDir = dir })
		f.Settled(a)
		f.Led(a)
		if failed := f.Send(100, time.Millisecond, a); len(failed) > 0 {
			f.Errorf("failed: %v", failed)
		}
		if err := a.Stop(); err != nil {
			f.Error(err)
		}
		if log := a.Log.String(); strings.Count(log, "the leader saves none") != 1 ||
			!strings.Contains(log, "level=ERROR") {
			f.Errorf("the log does not say once that what is learned is not saved:\n%s", log)
		}
		if _, err := os.Stat(inside); err != nil {
			f.Error(err)
		}
	})
}

// TestWorksStay: what is known of the work of queries outlives a restart of all agents; a damaged
// file of it is logged, and keeps no agent from starting.
func TestWorksStay(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		dir := f.TempDir()
		path := filepath.Join(dir, "works.json")
		law := `{"format":1,"models":[{"model":"ncf","version":1,"rows_per_value":0.5}]}`
		for _, in := range []string{law, law[:20]} {
			if err := os.WriteFile(path, []byte(in), 0o600); err != nil {
				f.Fatal(err)
			}
			a := f.Start(func(a agent.Inside) { a.Config().StateDir = dir })
			f.Settled(a)
			f.Led(a)
			f.Eventually(time.Second, func() string {
				for _, p := range a.Members().View().Profiles {
					if p.TableKey().Model == names.NewModelKey("ncf", 1) &&
						(p.GetRowsPerValue() == 0.5) == (in == law) {
						return ""
					}
				}
				return fmt.Sprintf("with %s no profile of ncf is told as it says", in)
			})
			// Fewer than a fit of the law takes, which would find that these queries have no values.
			if failed := f.Send(30, time.Millisecond, a); len(failed) > 0 {
				f.Errorf("failed: %v", failed)
			}
			if err := a.Stop(); err != nil {
				f.Error(err)
			}
			kept, err := os.ReadFile(path)
			if in == law && (err != nil || !strings.Contains(string(kept), `"rows_per_value":0.5`)) {
				f.Errorf("kept afterwards: %s, %v", kept, err)
			}
			if warned := strings.Contains(a.Log.String(), "file="+path); warned != (in != law) {
				f.Errorf("with %s the log names the file: %t\n%s", in, warned, a.Log)
			}
		}
	})
}

// TestUpgradeForgetsNothing: what an agent has learned before there were checksums it knows of the
// files that it has now.
func TestUpgradeForgetsNothing(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		dir := f.TempDir()
		key := profiles.Key{Model: "ncf", Version: 1, InstanceType: "r5n.large", Provider: "cpu"}
		book := profiles.NewBook(nil)
		const slow = 40 * time.Millisecond // what no shipped profile says
		for i := range 1000 {
			if err := book.Observe(key, 1+i, slow, "before", time.Now()); err != nil {
				f.Fatal(err)
			}
		}
		path := filepath.Join(dir, "profiles.json")
		if err := book.Save(path); err != nil {
			f.Fatal(err)
		}
		a := f.Start(func(a agent.Inside) { a.Config().StateDir = dir })
		f.Settled(a)
		f.Led(a)
		var told profiles.Table
		f.Eventually(time.Second, func() string {
			for _, p := range a.Members().View().Profiles {
				if p.TableKey().Model == names.NewModelKey("ncf", 1) &&
					json.Unmarshal(p.Table, &told) == nil &&
					told.Origin() == profiles.Learned {
					return ""
				}
			}
			return "no profile that was learned is told"
		})
		if got := told.Mean(500); math.Abs(float64(got)/float64(slow)-1) > 0.05 {
			f.Errorf("%v at batch size 500 is told, want %v as learned before", got, slow)
		}
	})
}
