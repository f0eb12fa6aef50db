package figures

import (
	"bytes"
	"encoding/csv"
	"image/png"
	"math"
	"strings"
	"testing"

	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/workload"
)

// published is where the papers' samples are; a test that needs them fails without them.
const published = "../../../shared/reference/kairos"

// TestReproduce makes each figure from few queries: all that is checked is that it is whole.
func TestReproduce(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for _, name := range []string{"kairos-fig3", "kairos-fig5", "kairos-fig14"} {
		t.Run(name, func(t *testing.T) {
			f, err := Reproduce(t.Context(), name, Options{Data: published, Seeds: 1, Queries: 300})
			if err != nil {
				t.Fatal(err)
			}
			var table, picture, text bytes.Buffer
			if err := f.WriteCSV(&table); err != nil {
				t.Fatal(err)
			}
			rows, err := csv.NewReader(&table).ReadAll()
			if err != nil || len(rows) < 5 {
				t.Errorf("%d rows, %v", len(rows), err)
			}
			if err := f.WritePNG(&picture); err != nil {
				t.Fatal(err)
			}
			if _, err := png.Decode(&picture); err != nil {
				t.Error(err)
			}
			if err := f.WriteText(&text); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(text.String(), "eproduce") || !strings.Contains(text.String(), "samples.csv.gz") || strings.Contains(text.String(), "NaN") {
				t.Errorf("text: %s", &text)
			}
		})
	}
}

func TestFig5(t *testing.T) {
	f, err := Reproduce(t.Context(), "kairos-fig5", Options{Data: published, Seeds: 1, Queries: 1})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(f.Text[0], "Reproduces: of four queries KAIROS serves 4 within the QoS target, first come first served 3") {
		t.Errorf("%s", f.Text[0])
	}
}

// TestUpperBound holds Eq. 15 against its cases by hand: queries of 1 and 3 items, half each, on a base type
// that takes a second an item and an auxiliary one that takes two and may serve queries of 1 only.
func TestUpperBound(t *testing.T) {
	sizes, err := workload.ReadBatchSizes("sizes", strings.NewReader("batch_size\n1\n3\n"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := newLab(Options{})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := l.config("rm2", sizes)
	if err != nil {
		t.Fatal(err)
	}
	m := &cfg.Models[0]
	m.QoSTarget = 5e9
	m.Latencies["base"] = sim.Fixed{PerItem: 1e9}
	m.Latencies["auxiliary"] = sim.Fixed{PerItem: 2e9}
	for _, test := range []struct {
		base, auxiliary int
		want            float64
	}{
		{1, 0, 1 / 2.},              // a mean of two seconds
		{1, 4, (1 / 3.) / (1 / 2.)}, // the base is the bottleneck, Eq. 12: 1/3 of large ones a second, which are half
		// The auxiliary one is: 1/2 small ones a second, which are half of the queries, so 1; C = 1/2; two base instances
		// serve 2/3 large ones, so they have a quarter left of the one average query a second that they serve.
		{2, 1, 1 + 1/4.},
	} {
		pool := sim.Pool{{Type: "base", Count: test.base}, {Type: "auxiliary", Count: test.auxiliary}}
		if got := upperBound(m, pool, "base"); math.Abs(got-test.want) > 1e-9 {
			t.Errorf("%s: bound %v, want %v", pool, got, test.want)
		}
	}
}

func TestChoice(t *testing.T) {
	at := func(base, auxiliary int) bounded {
		return bounded{pool: sim.Pool{{Type: baseType, Count: base}, {Type: "r5n.large", Count: auxiliary}}}
	}
	if got := choice([]bounded{at(2, 3), at(2, 2), at(2, 1), at(1, 9)}); got.String() != "g4dn.xlarge=2,r5n.large=3" {
		t.Errorf("three of as many base instances: %s", got)
	}
	if got := choice([]bounded{at(1, 9), at(3, 1), at(2, 4), at(2, 5), at(2, 3)}); got.String() != "g4dn.xlarge=2,r5n.large=4" {
		t.Errorf("the one in the middle: %s", got)
	}
}
