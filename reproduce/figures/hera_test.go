package figures

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gonum.org/v1/gonum/stat"

	"github.com/muster-serve/muster/api/picture/picturetest"
	"github.com/muster-serve/muster/leader/place"
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
