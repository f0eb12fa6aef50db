package figures

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/muster-serve/muster/sim"
)

// TestChart: the drawing is XML, and drawing and table have each bar's number.
func TestChart(t *testing.T) {
	c := Chart{Budget: 2.5}
	for i, name := range []string{"a<b", "c"} {
		m := ChartModel{Name: name}
		for k := range chartBars {
			m.Bars = append(m.Bars, sim.Entry{
				Pool: "x=1", Throughput: &sim.Throughput{Rate: float64(1000*(i+1) + 111*k)},
			})
		}
		c.Models = append(c.Models, m)
	}
	var drawing, table bytes.Buffer
	if err := errors.Join(c.WriteSVG(&drawing), c.WriteTable(&table)); err != nil {
		t.Fatal(err)
	}
	texts := map[string]int{}
	for d := xml.NewDecoder(&drawing); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if text, ok := token.(xml.CharData); ok {
			texts[string(text)]++
		}
	}
	want := []string{"a<b", "c"}
	for i, bar := range chartBars {
		want = append(want, bar.title, fmt.Sprint(1000+111*i), fmt.Sprint(2000+111*i))
		if !strings.Contains(table.String(), fmt.Sprintf("| %s | %d.0 ", bar.title, 1000+111*i)) {
			t.Errorf("the table lacks %s: %s", bar.title, &table)
		}
	}
	for _, text := range want {
		if texts[text] != 1 {
			t.Errorf("%q is drawn %d times, want once", text, texts[text])
		}
	}
}

// TestMakeChart: Muster serves the most of each model, and every policy something.
func TestMakeChart(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	c, err := MakeChart(t.Context(), Options{Seeds: 1, Queries: 300})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range c.Models {
		for i, e := range m.Bars {
			if e.Rate <= 0 || e.Rate > m.Bars[len(m.Bars)-1].Rate {
				t.Errorf("%s: %s serves %v, Muster %v", m.Name, chartBars[i].title, e.Rate,
					m.Bars[len(m.Bars)-1].Rate)
			}
		}
	}
}
