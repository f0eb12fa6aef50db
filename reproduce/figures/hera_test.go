package figures

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gonum.org/v1/gonum/stat"

	"github.com/muster-serve/muster/api/picture/picturetest"
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/profiles/sharing"
)

// TestHeraUtilisation: the utilisations of pairs are those that an independent program found, to a
// thousandth, and no pair that Hera chooses is below 1.
func TestHeraUtilisation(t *testing.T) {
	f, err := Reproduce(t.Context(), "hera-fig11", Options{})
	if err != nil {
		t.Fatal(err)
	}
	by := map[string][]float64{}
	for _, row := range f.Rows[1:] {
		x, err := strconv.ParseFloat(row[3], 64)
		if err != nil {
			t.Fatal(err)
		}
		by[row[0]] = append(by[row[0]], x)
		low := strings.Contains(row[1]+row[2], "DLRM-B") ||
			strings.Contains(row[1]+row[2], "DLRM-D")
		if row[0] == "Random" && low {
			by["with low"] = append(by["with low"], x)
		} else if row[0] == "Random" {
			by["high"] = append(by["high"], x)
		}
	}
	for _, tt := range []struct {
		of   string
		n    int
		mean float64
	}{{"Random", 28, 1.152}, {"with low", 13, 1.343}, {"high", 15, .987}} {
		if mean := stat.Mean(by[tt.of], nil); len(by[tt.of]) != tt.n ||
			math.Abs(mean-tt.mean) > 1e-3 {
			t.Errorf("%s: %d pairs, mean %.4f, want %d and %v", tt.of, len(by[tt.of]), mean, tt.n,
				tt.mean)
		}
	}
	if least, most := slices.Min(by["Random"]), slices.Max(by["Random"]); math.Abs(least-
		.959) > 1e-3 ||
		math.Abs(most-1.624) > 1e-3 {
		t.Errorf("utilisations are %.4f to %.4f, want .959 to 1.624", least, most)
	}
	if least := slices.Min(by["Hera"]); least < 1 {
		t.Errorf("Hera chooses a pair of utilisation %v", least)
	}
	if !strings.HasPrefix(f.Text[0], "Reproduces: the mean EMU is 1.334 by Hera") {
		t.Errorf("the order of the schedulers: %s", f.Text[0])
	}
}

// TestHeraSaving: the verdict on figure 15 is about how many servers are saved, and not only about
// the order of the schedulers, which alone would reproduce with a saving of 6 %.
func TestHeraSaving(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts servers for half a minute")
	}
	f, err := Reproduce(t.Context(), "hera-fig15", Options{Seeds: 1})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(f.Text[0], "Does not reproduce in size: ") ||
		!strings.HasPrefix(f.Text[1], "Reproduces in order: ") {
		t.Errorf("each model alike: %q", f.Text[:2])
	}
	for _, tt := range []struct {
		here, paper float64
		like        bool
	}{{26, 26, true}, {20, 26, true}, {6, 26, false}, {40, 26, false}} {
		if got := isLike(tt.here, tt.paper); got != tt.like {
			t.Errorf("%v is like %v: %t", tt.here, tt.paper, got)
		}
	}
}

// TestHeraPairs: figures are of what muster profile has measured, where they can be, and say so.
func TestHeraPairs(t *testing.T) {
	measured := &sharing.File{
		Machine: sharing.Machine{CPU: "a test's", Cores: 4}, Cores: 4, Bandwidth: 20,
		Low: []string{"rm2"}, Models: map[string]sharing.MeasuredModel{},
		QPS: map[string][][]float64{
			"rm2": {{0}, {80}, {95}, {98}, {100}}, "wnd": {{0}, {50}, {100}, {150}, {200}},
			"ncf": {{0}, {500}, {1000}, {1500}, {2000}},
		},
		HalfBandwidth: map[string]float64{"rm2": 15, "wnd": 2, "ncf": 8},
		Slowdown: map[string]map[string]float64{
			"rm2": {"rm2": 1.6, "wnd": 1.1, "ncf": 1.25}, "wnd": {"rm2": 1.1, "wnd": 1, "ncf": 1},
			"ncf": {"rm2": 1.25, "wnd": 1, "ncf": 1},
		},
	}
	for model := range measured.QPS {
		measured.Models[model] = sharing.MeasuredModel{Version: 1}
	}
	write := func(f *sharing.File) string {
		path := filepath.Join(t.TempDir(), "pairs.json")
		var b bytes.Buffer
		if err := f.Write(&b); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	path := write(measured)
	for _, name := range ofPairs {
		f, err := Reproduce(t.Context(), name, Options{Seeds: 1, Pairs: path})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		picturetest.Check(t, f.picture())
		if text := strings.Join(f.Text, "\n"); !strings.Contains(text, "measured on 4 cores of a "+
			"test's") || strings.Contains(text, "synthetic") || strings.Contains(text, "NaN") {
			t.Errorf("%s: %s", name, text)
		}
		if name != "hera-fig10" {
			continue
		}
		for _, row := range f.Rows[1:] {
			if row[0] == "ncf" && row[1] == "rm2" && (row[2] != "0.8696" || row[3] != "0.8000") {
				t.Errorf("ncf beside rm2: %v, want 20 of 23 GB/s, and what was measured", row)
			}
		}
	}
	if _, err := Reproduce(t.Context(), "hera-fig12", Options{Pairs: path}); err == nil ||
		!strings.Contains(err.Error(), "hera-fig10, hera-fig11, hera-fig15") {
		t.Errorf("a figure of the paper's models: %v", err)
	}
	delete(measured.Slowdown["wnd"], "ncf")
	if _, err := Reproduce(t.Context(), "hera-fig10", Options{Pairs: write(measured)}); err == nil ||
		!strings.Contains(err.Error(), "slowdown.wnd.ncf is missing") {
		t.Errorf("a pair that was not measured: %v", err)
	}
}

// TestHeraClaims: which of the paper's claims hold here.
func TestHeraClaims(t *testing.T) {
	for name, want := range map[string][]string{
		"hera-fig6": {"Reproduces"}, "hera-fig7": {"Reproduces"}, "hera-fig10": {"Reproduces"},
		"hera-fig14": {"Reproduces", "Reproduces"}, "hera-fig17": {"Reproduces", "Reproduces"},
	} {
		f, err := Reproduce(t.Context(), name, Options{Seeds: 1})
		if err != nil {
			t.Fatal(err)
		}
		picturetest.Check(t, f.picture())
		for i, prefix := range want {
			if !strings.HasPrefix(f.Text[i], prefix+": ") {
				t.Errorf("%s: %s", name, f.Text[i])
			}
		}
	}
	if _, err := Reproduce(t.Context(), "hera-fig6", Options{Data: "x"}); err == nil {
		t.Error("--data is ignored")
	}
}

// TestHeraServers: the order of the schedulers at ten times each model's most.
func TestHeraServers(t *testing.T) {
	h, err := newTenancy(&lab{})
	if err != nil {
		t.Fatal(err)
	}
	servers, err := h.servers(h.demand(10), 1)
	if err != nil {
		t.Fatal(err)
	}
	if servers[0] != 80 || servers[3] != 75 || servers[4] != 74 || !(servers[1] < servers[0]) ||
		!(servers[2] < servers[1]) || !(servers[3] < servers[2]) {
		t.Errorf("servers by one model, Random, Hera(Random), Hera and Solve: %v", servers)
	}
}

// TestFewPairs: the few pairs that are worth choosing from need no more servers than all pairs at
// all splits, of which a program for integers found the fewest.
func TestFewPairs(t *testing.T) {
	h, err := newTenancy(&lab{})
	if err != nil {
		t.Fatal(err)
	}
	for load, want := range map[float64]int{1: 8, 3: 23, 10: 74} {
		host := place.Host{
			Type: place.Type{Name: "server", Count: 100}, Machine: h.Machine, Profiles: h.profiles,
		}
		program := place.SharingOn([]place.Host{host}, h.demand(load), place.FewestAgents)
		s, err := place.Solve(program, place.DefaultSteps)
		if err != nil || s.Served < 1-1e-9 || s.Agents != want || len(program.Choices) > 40 {
			t.Errorf("at %v times its most of each: %d servers of %d choices, want %d (%v)", load,
				s.Agents, len(program.Choices), want, err)
		}
	}
}

// TestHeraSustains: beside DLRM-D, Hera's manager sustains more of DLRM-A than PARTIES.
func TestHeraSustains(t *testing.T) {
	h, err := newTenancy(&lab{})
	if err != nil {
		t.Fatal(err)
	}
	d, a := h.named("DLRM-D"), h.named("DLRM-A")
	hera, parties := h.sustained(managers[0], d, a, .6), h.sustained(managers[1], d, a, .6)
	if hera < h.byProfile(d, a, .6)-loadStep || parties >= hera {
		t.Errorf("Hera sustains %.2f of DLRM-A, PARTIES %.2f; by the profiles it is %.2f", hera,
			parties,
			h.byProfile(d, a, .6))
	}
}
