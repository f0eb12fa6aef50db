//go:build linux && cgo

package profilecmd

import (
	"fmt"
	"image/color"
	"math"

	"github.com/muster-serve/muster/api/picture"
	"github.com/muster-serve/muster/profiles/sharing"
)

// drawChart draws the measurements: how models scale with workers, how long a batch takes, and,
// where it was measured, how much longer beside another model.
func drawChart(f *sharing.File) *picture.Picture {
	panels := []*picture.Panel{newScalabilityPanel(f), newLatencyPanel(f)}
	if f.Slowdown != nil {
		panels = append(panels, newSlowdownPanel(f))
	}
	return picture.Page(len(panels), panels...)
}

// newScalabilityPanel is queries/s by workers, in parts of those of one.
func newScalabilityPanel(f *sharing.File) *picture.Panel {
	p := picture.New("Queries/s by workers", "workers, a core each", "parts of one worker's")
	p.Width = 320
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, float64(f.Cores)+.2, 0, float64(f.Cores)
	p.Add(picture.Grid{Vertical: true})
	ideal := &picture.Curve{
		Values:    []picture.Point{{X: 0, Y: 0}, {X: float64(f.Cores), Y: float64(f.Cores)}},
		LineStyle: picture.LineStyle{Color: picture.Grey, Width: 1},
	}
	p.Add(ideal)
	for i, name := range modelsOf(f) {
		one := f.QPS[name][1][0]
		if one <= 0 {
			continue
		}
		c := &picture.Curve{LineStyle: picture.LineOf(i), Mark: picture.MarkOf(i)}
		for n := range f.Cores + 1 {
			c.Values = append(c.Values, picture.Point{X: float64(n), Y: f.QPS[name][n][0] / one})
		}
		p.Add(c)
		p.Legend(fmt.Sprintf("%s (%.4g queries/s)", name, one), c)
	}
	p.Legend("no loss", ideal)
	return p
}

// newLatencyPanel are medians by batch size, of one worker and of all.
func newLatencyPanel(f *sharing.File) *picture.Panel {
	p := picture.New("Time of a batch; dots: beside workers on all other cores", "batch size",
		"median, ms")
	p.Width = 340
	p.X.Log, p.Y.Log = true, true
	p.Add(picture.Grid{Vertical: true})
	least, most := math.Inf(1), 0.0
	for i, name := range modelsOf(f) {
		c := &picture.Curve{LineStyle: picture.LineOf(i)}
		all := newDots(i)
		for _, l := range f.Latencies[name] {
			at := picture.Point{X: float64(l.BatchSize), Y: l.P50}
			if l.Workers == f.Latencies[name][0].Workers {
				c.Values = append(c.Values, at)
			}
			if l.Workers == f.Cores {
				all.Values = append(all.Values, at)
			}
			least, most = min(least, l.P50), max(most, l.P50)
		}
		p.Add(c, all)
		p.Legend(name, c, all)
	}
	p.X.Min, p.X.Max = 1, 1200
	p.Y.Min, p.Y.Max = floor10(least), 1.5*most
	return p
}

// newDots is a curve of marks without a line.
func newDots(i int) *picture.Curve {
	return &picture.Curve{
		LineStyle: picture.LineStyle{Color: color.Transparent}, Mark: picture.MarkOf(i),
	}
}

// floor10 is the power of ten below x.
func floor10(x float64) float64 { return math.Pow10(int(math.Floor(math.Log10(max(x, 1e-6))))) }

// newSlowdownPanel is a table with a colour for each cell.
func newSlowdownPanel(f *sharing.File) *picture.Panel {
	names := modelsOf(f)
	p := picture.New("Slowdown of a model beside another", "beside", "")
	p.Width, p.Headroom = max(240, float64(90+46*len(names))), 0
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, float64(len(names)), 0, float64(len(names))
	var ticks []picture.Tick
	for i, name := range names {
		ticks = append(ticks, picture.Tick{Value: float64(i) + .5, Label: name})
	}
	all := func(float64, float64) []picture.Tick { return ticks }
	p.X.Ticks, p.Y.Ticks = all, all
	p.Add(&heat{names, f.Slowdown})
	return p
}

// A heat draws a cell for each two models, the darker the slower.
type heat struct {
	names    []string
	slowdown map[string]map[string]float64
}

// Plot draws the cells.
func (h *heat) Plot(c picture.Canvas, p *picture.Panel) {
	x, y := p.Transforms(c)
	for i, of := range h.names {
		for j, beside := range h.names {
			s := h.slowdown[of][beside]
			dark := min(max(0, (s-1)/.5), 1) // half as long again is the darkest
			cell := []picture.Point{
				{X: x(float64(j)), Y: y(float64(i))}, {X: x(float64(j + 1)), Y: y(float64(i))},
				{X: x(float64(j + 1)), Y: y(float64(i + 1))}, {
					X: x(float64(j)), Y: y(float64(i + 1)),
				},
			}
			blend := func(to uint8) uint8 { return uint8(255 - dark*float64(255-to)) }
			full := picture.Colour(1)
			c.FillPolygon(color.RGBA{blend(full.R), blend(full.G), blend(full.B), 255}, cell)
			style := picture.TextOf(9)
			style.XAlign, style.YAlign = picture.Middle, picture.Middle
			c.FillText(style, picture.Point{X: x(float64(j) + .5), Y: y(float64(i) + .5)},
				fmt.Sprintf("%.2f", s))
		}
	}
}
