package placecmd

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-serve/muster/agent/worker"
	apinames "github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fleetplan"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/profiles/sharing"
)

// profiles are those of Hera's figures.
const profiles = "../../../../sim/colocate/synthetic.json"

func hera(t *testing.T, args ...string) (r sharingReport) {
	t.Helper()
	out, err := muster(t, "", append([]string{"hera", profiles, "--json"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestHera: affinities and utilisations are those that an independent program found, and the
// servers are as few.
func TestHera(t *testing.T) {
	text, err := os.ReadFile("testdata/hera-answers.json")
	if err != nil {
		t.Fatal(err)
	}
	var want sharingReport
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	got := hera(t, "--load", "10")
	near := func(what string, got, want float64) {
		t.Helper()
		if !(math.Abs(got-want) <= 1e-3) {
			t.Errorf("%s is %v, want %v", what, got, want)
		}
	}
	for a, by := range want.Affinity {
		for b, x := range by {
			near("affinity of "+a+" and "+b, got.Affinity[a][b], x)
		}
	}
	if len(got.EMU) != 28 || len(want.EMU) != 28 {
		t.Errorf("%d and %d pairs, want 28", len(got.EMU), len(want.EMU))
	}
	for pair, x := range want.EMU {
		near("utilisation of "+pair, got.EMU[pair], x)
	}
	for _, tt := range []struct {
		load string
		want serverCounts
	}{
		{"1", serverCounts{8, 10, 8}}, {"10", serverCounts{80, 75, 74}},
	} {
		if got := hera(t, "--load", tt.load).Servers; got != tt.want {
			t.Errorf("load %s: %+v servers, want %+v", tt.load, got, tt.want)
		}
	}
}

// TestHeraIsAFleet: the planner of whole fleets finds as few servers as "muster place hera" does, of
// the same layouts.
func TestHeraIsAFleet(t *testing.T) {
	s, err := readSharing(profiles, nil)
	if err != nil {
		t.Fatal(err)
	}
	for load, want := range map[float64]int{1: 8, 10: 74} { // as in TestHera
		demand := make([]float64, len(s.profiles))
		p := &fleetplan.Problem{Types: []fleetplan.Type{
			{Name: "server", PriceUSDPerHour: 1, Max: 1000, Capacity: 1},
		}}
		for i, profile := range s.profiles {
			demand[i] = load * profile.Most()
			p.Families = append(p.Families, fleetplan.Family{
				Name:     profile.Model,
				Variants: []fleetplan.Variant{{Model: apinames.ModelKey(profile.Model), Accuracy: 1}},
				Bins:     []fleetplan.Bin{{Rate: demand[i], RunTime: [][]float64{{0}}}},
			})
		}
		for _, c := range s.machine.Sharing(s.profiles, demand).Choices {
			layout := fleetplan.Layout{Name: c.Layout}
			for _, part := range c.Partitions {
				layout.Partitions = append(layout.Partitions, fleetplan.Partition{
					Capacity: 1, Services: []fleetplan.Service{{
						Family: part[0].Class, RunTime: []float64{1 / part[0].Rate},
					}},
				})
			}
			p.Types[0].Layouts = append(p.Types[0].Layouts, layout)
		}
		plan, err := fleetplan.Solve(p)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("load %v: %d servers of %d layouts, at least %.2f, proven %v", load, plan.Counts[0],
			len(p.Types[0].Layouts), plan.MinCostUSDPerHour, plan.Proven)
		if plan.Served < 1-1e-9 || plan.Counts[0] != want ||
			plan.MinCostUSDPerHour > float64(want) {
			t.Errorf("load %v: %d servers, at least %v, serve %v; want %d", load, plan.Counts[0],
				plan.MinCostUSDPerHour, plan.Served, want)
		}
	}
}

func TestHeraText(t *testing.T) {
	out, err := muster(t, "", "hera", profiles, "--load", "3")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"affinity", "utilisation", "DLRM-D", "24 with one model each"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}

func TestHeraRefuses(t *testing.T) {
	const small = `{"cores": 2, "ways": 2, "bw_gbs": 10, "low": ["a"],
 "qps": {"a": [[0,0,0],[0,1,2],[0,2,3]], "b": [[0,0,0],[0,1,2],[0,2,3]]},
 "membw_half_cores": {"a": 1, "b": 2}}`
	if _, err := muster(t, small, "hera", "-"); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ old, new, want string }{
		{`"cores": 2`, `"cores": 1`, "cores: is 1, want at least 2"},
		{`"cores": 2`, `"cores": 3`, "qps.a: has 3 rows, want one for each"},
		{`[0,1,2]`, `[0,1]`, "qps.a[1]: has 2 numbers"},
		{`[0,1,2]`, `[0,1,NaN]`, "qps.a[1][2]: is NaN"},
		{`["a"]`, `["c"]`, `low[0]: qps has no model "c"`},
		{`["a"]`, `["a", "a"]`, `low[1]: "a" is given twice`},
		{`"b": 2}`, `"c": 2}`, "membw_half_cores.c: qps has no such model"},
		{`, "b": 2}`, `}`, "qps.b: membw_half_cores has no such model"},
		{`"bw_gbs": 10`, `"bw_gbs": -1`, "bw_gbs: is -1"},
	} {
		text := strings.Replace(small, tt.old, tt.new, 1)
		if text == small {
			t.Fatalf("%q is not in the file", tt.old)
		}
		if _, err := muster(t, text, "hera", "-"); err == nil ||
			!strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s for %s: %v, want %q", tt.new, tt.old, err, tt.want)
		}
	}
}

// TestHeraMeasured: measured slowdowns take the place of the memory's bandwidth, and a file of
// other models than those in the repository is refused by their names.
func TestHeraMeasured(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	if _, err := zoo.Generate(ctx, dir, "ncf", zoo.Options{Scale: zoo.Small}); err != nil {
		t.Fatal(err)
	}
	v, err := models.ReadNewest(dir, "ncf")
	if err != nil {
		t.Fatal(err)
	}
	sum, err := worker.Checksum(ctx, v)
	if err != nil {
		t.Fatal(err)
	}
	f := &sharing.File{
		Cores: 2, Bandwidth: 1, QPS: map[string][][]float64{
			"ncf": {{0}, {10}, {16}}, "rm2": {{0}, {5}, {8}},
		},
		HalfBandwidth: map[string]float64{"ncf": 1, "rm2": 1}, Low: []string{},
		Slowdown: map[string]map[string]float64{
			"ncf": {"ncf": 1.25, "rm2": 1.25}, "rm2": {"ncf": 1, "rm2": 1.25},
		},
		Models: map[string]sharing.MeasuredModel{
			"ncf": {Version: 1, Checksum: sum}, "rm2": {Version: 1, Checksum: "x"},
		},
	}
	path := filepath.Join(t.TempDir(), "s.json")
	write := func() {
		t.Helper()
		var b bytes.Buffer
		if err := f.Write(&b); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write()
	out, err := muster(t, "", "hera", path, "--json", "--model-dir", dir)
	if err != nil {
		t.Fatal(err)
	}
	var r sharingReport
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	// 10/1.25 of 16, and 5 of 8; without slowdowns the bandwidth would leave half of each.
	if got := r.EMU["ncf|rm2"]; math.Abs(got-1.125) > 1e-9 {
		t.Errorf("utilisation %v, want 1.125", got)
	}
	if got := r.Affinity["ncf"]["rm2"]; math.Abs(got-.9) > 1e-9 {
		t.Errorf("affinity %v, want .9", got)
	}

	f.Models["ncf"] = sharing.MeasuredModel{Version: 1, Checksum: "0123456789abcdef"}
	write()
	if _, err := muster(t, "", "hera", path, "--model-dir", dir); err == nil ||
		!strings.Contains(err.Error(),
			path+`: model "ncf", version 1, was measured with other files`) {
		t.Errorf("got %v", err)
	}
	if _, err := muster(t, "", "hera", path); err != nil {
		t.Errorf("without a repository: %v", err)
	}
	f.Slowdown["ncf"]["rm2"] = 0
	write()
	if _, err := muster(t, "", "hera", path); err == nil ||
		!strings.Contains(err.Error(), "slowdown.ncf.rm2: is 0, want a number above 0") {
		t.Errorf("got %v", err)
	}
}
