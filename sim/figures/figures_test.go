package figures

import (
	"bytes"
	"encoding/csv"
	"image/png"
	"os"
	"strings"
	"testing"
)

// TestReproduce makes figures from few queries, with MUSTER_SLOW_TESTS=1 all of them: all that is checked is that they are whole.
func TestReproduce(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	names := []string{"kairos-fig1", "kairos-fig2", "kairos-fig3", "kairos-fig5", "kairos-fig12", "kairos-fig14", "ribbon-fig9", "ribbon-fig14"}
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
	f, err := Reproduce(t.Context(), "kairos-fig5", Options{Seeds: 1, Queries: 1})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(f.Text[0], "Reproduces: of four queries KAIROS serves 4 within the QoS target, first come first served 3") {
		t.Errorf("%s", f.Text[0])
	}
}
