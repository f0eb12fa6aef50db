package figures

import (
	"bytes"
	"encoding/csv"
	"image/png"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/picture/picturetest"
)

// TestReproduce makes figures from few queries, with MUSTER_SLOW_TESTS=1 all of them: what is
// checked is that they are whole and can be read.
func TestReproduce(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	names := []string{"hera-fig6", "hera-fig7", "hera-fig10", "hera-fig11", "hera-fig17",
		"kairos-fig1", "kairos-fig2", "kairos-fig3", "kairos-fig5", "kairos-fig12", "kairos-fig14",
		"ribbon-fig4", "ribbon-fig8", "ribbon-fig9", "ribbon-fig11", "ribbon-fig12", "ribbon-fig14",
		"ribbon-fig15"}
	if os.Getenv("MUSTER_SLOW_TESTS") != "" {
		names = Names()
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			f, err := Reproduce(t.Context(), name, Options{Seeds: 1, Queries: 300})
			if err != nil {
				t.Fatal(err)
			}
			var table, picture, text bytes.Buffer
			if err := f.WriteCSV(&table); err != nil {
				t.Fatal(err)
			}
			rows, err := csv.NewReader(&table).ReadAll()
			if err != nil || len(rows) < 3 {
				t.Errorf("%d rows, %v", len(rows), err)
			}
			if err := f.WritePNG(&picture); err != nil {
				t.Fatal(err)
			}
			if _, err := png.Decode(&picture); err != nil {
				t.Error(err)
			}
			picturetest.Check(t, f.picture())
			if err := f.WriteText(&text); err != nil {
				t.Fatal(err)
			}
			source := "samples.csv.gz"
			switch paper, _, _ := strings.Cut(name, "-"); paper {
			case "hera":
				source = "simulated"
			case proteusPaper:
				source = ""
			}
			if !strings.Contains(text.String(), "eproduce") ||
				!strings.Contains(text.String(), source) ||
				strings.Contains(text.String(), "NaN") {
				t.Errorf("text: %s", &text)
			}
		})
	}
}

func TestFig5(t *testing.T) {
	f, err := Reproduce(t.Context(), "kairos-fig5", Options{Seeds: 1, Queries: 1})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(f.Text[0],
		"Reproduces: of four queries KAIROS serves 4 within the QoS target, first come first "+
			"served 3") {
		t.Errorf("%s", f.Text[0])
	}
}

// TestRibbonFigures: of what is read from the published tables alone, the numbers are known.
func TestRibbonFigures(t *testing.T) {
	for name, want := range map[string][]string{
		"ribbon-fig9": {
			"mtwnd,(5,0,0),2.6300,(4,0,1),2.2530,14.3346",
			"dien,(6,0,0),3.1560,(5,1,0),2.7790,11.9455",
		},
		"ribbon-fig15": {
			"99.0000,mtwnd,(5,0,0),2.6300,(4,0,1),2.2530,14.3346",
			"98.0000,mtwnd,(5,0,0),2.6300,(3,0,3),2.0250,23.0038",
			"98.0000,dien,(6,0,0),3.1560,(4,3,0),2.5510,19.1698",
		},
	} {
		f, err := Reproduce(t.Context(), name, Options{Seeds: 1, Queries: 1})
		if err != nil {
			t.Fatal(err)
		}
		var rows []string
		for _, row := range f.Rows {
			rows = append(rows, strings.Join(row, ","))
		}
		for _, row := range want {
			if !slices.Contains(rows, row) {
				t.Errorf("%s: no row %s in %q", name, row, rows)
			}
		}
		if !strings.HasPrefix(f.Text[0], "Reproduces: ") {
			t.Errorf("%s: %s", name, f.Text[0])
		}
	}
	// In two dimensions every search comes to the star, and the paper's search and
	// ours are held apart.
	f, err := Reproduce(t.Context(), "ribbon-fig12", Options{Seeds: 1, Queries: 1})
	if err != nil {
		t.Fatal(err)
	}
	reached := map[string]int{}
	for _, row := range f.Rows[1:] {
		if row[len(row)-1] == "true" {
			reached[row[0]]++
			if row[3] != "4" || row[4] != "1" {
				t.Errorf("the optimum is (%s, %s), want (4, 1)", row[3], row[4])
			}
		}
	}
	for _, method := range []string{
		"ribbon, plain", "hill-climb", "random", "rsm", "ribbon (ours)",
	} {
		if reached[method] != searchesPerSeed {
			t.Errorf("%s came to the optimum in %d of %d searches", method, reached[method],
				searchesPerSeed)
		}
	}
}
