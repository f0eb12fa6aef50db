package figures

import (
	"fmt"
	"image/color"
	"io"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// A scatterChart has named points of several kinds, and a vertical line.
type scatterChart struct {
	title, xLabel, yLabel string
	kinds                 []pointKind
	line                  float64
	left, right           float64 // of the x axis
}

type pointKind struct {
	name   string
	points []namedPoint
}

type namedPoint struct {
	name string
	x, y float64
}

// draw writes the chart as PNG.
func (c *scatterChart) draw(w io.Writer) error {
	p := newPlot(c.title, c.xLabel, c.yLabel)
	p.Legend.Top, p.Legend.Left = true, true
	glyphs := []draw.GlyphDrawer{draw.CircleGlyph{}, draw.PyramidGlyph{}, draw.BoxGlyph{}}
	top := 0.0
	for i, kind := range c.kinds {
		points, labels := make(plotter.XYs, len(kind.points)), plotter.XYLabels{}
		for j, one := range kind.points {
			points[j] = plotter.XY{X: one.x, Y: one.y}
			labels.Labels = append(labels.Labels, one.name)
			top = max(top, one.y)
		}
		labels.XYs = points
		dots, err := plotter.NewScatter(points)
		if err != nil {
			return fmt.Errorf("points of %s: %w", kind.name, err)
		}
		dots.Color, dots.Shape, dots.Radius = palette[1+
			i%(len(palette)-1)], glyphs[i%len(glyphs)], vg.Points(4)
		names, err := plotter.NewLabels(labels)
		if err != nil {
			return fmt.Errorf("names of %s: %w", kind.name, err)
		}
		for j := range names.TextStyle {
			names.TextStyle[j].Font.Size = vg.Points(8)
			names.TextStyle[j].XAlign, names.TextStyle[j].YAlign = draw.XRight, draw.YCenter
		}
		names.Offset = vg.Point{X: -vg.Points(6)}
		p.Add(dots, names)
		p.Legend.Add(kind.name, dots)
	}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = c.left, c.right, 0, 1.35*top
	target, err := plotter.NewLine(plotter.XYs{{X: c.line, Y: 0}, {X: c.line, Y: p.Y.Max}})
	if err != nil {
		return err
	}
	target.Color, target.Width = color.RGBA{0xcc, 0, 0, 0xff}, vg.Points(1.5)
	p.Add(target)
	return writePlots(w, vg.Points(520), vg.Points(340), 1, p)
}

// newPlot is a plot in the style of all figures.
func newPlot(title, xLabel, yLabel string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, xLabel, yLabel
	p.Title.Padding = vg.Points(6)
	p.Title.TextStyle.Font.Size = vg.Points(11)
	p.Y.Tick.Marker, p.X.Tick.Marker = plot.TickerFunc(roundTicks), plot.TickerFunc(roundTicks)
	p.Legend.TextStyle.Font.Size = vg.Points(9)
	return p
}

// writePlots writes plots of the given size as one PNG, in rows of so many.
func writePlots(w io.Writer, width, height vg.Length, columns int, plots ...*plot.Plot) error {
	rows := (len(plots) + columns - 1) / columns
	canvas := vgimg.PngCanvas{Canvas: vgimg.NewWith(
		vgimg.UseWH(width*vg.Length(columns), height*vg.Length(rows)),
		vgimg.UseDPI(144), vgimg.UseBackgroundColor(color.White))}
	all := draw.New(canvas)
	for i, p := range plots {
		left, below := width*vg.Length(i%columns), height*vg.Length(rows-1-i/columns)
		p.Draw(draw.Crop(all, left+vg.Points(4), left+width-all.Max.X-vg.Points(8),
			below+vg.Points(4), below+height-all.Max.Y-vg.Points(6)))
	}
	_, err := canvas.WriteTo(w)
	return err
}

// A gridChart is what a search evaluated of all configurations of two types (RIBBON Fig. 12).
type gridChart struct {
	title, xLabel, yLabel string
	share                 [][]float64 // within QoS, by counts of the two types; NaN: not there
	price                 [][]float64
	target                float64
	evaluated             [][2]int
	optimum               [2]int
}

// plot makes the chart: red misses the target, the lighter the less; green meets it, the darker the
// cheaper; circles are what was evaluated, the star is the optimum.
func (c *gridChart) plot() *plot.Plot {
	p := newPlot(c.title, c.xLabel, c.yLabel)
	p.Add(c)
	p.X.Min, p.X.Max = -0.5, float64(len(c.share))-0.5
	p.Y.Min, p.Y.Max = -0.5, float64(len(c.share[0]))-0.5
	return p
}

// Plot draws the cells and the marks.
func (c *gridChart) Plot(canvas draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&canvas)
	least, most := math.Inf(1), 0.0 // prices of what meets the target
	for i := range c.share {
		for j, share := range c.share[i] {
			if share >= c.target {
				least, most = min(least, c.price[i][j]), max(most, c.price[i][j])
			}
		}
	}
	for i := range c.share {
		for j, share := range c.share[i] {
			if math.IsNaN(share) {
				continue
			}
			cell := mix(color.RGBA{0x99, 0x10, 0x10, 0xff}, color.RGBA{0xff, 0xdd, 0xd5, 0xff},
				share/c.target)
			if share >= c.target {
				cell = mix(color.RGBA{0x00, 0x6e, 0x3c, 0xff}, color.RGBA{0xd5, 0xf0, 0xdd, 0xff},
					(c.price[i][j]-least)/max(most-least, 1e-9))
			}
			l, r, b, t := x(float64(i)-0.48), x(float64(i)+0.48), y(float64(j)-0.46), y(float64(j)+
				0.46)
			canvas.FillPolygon(cell, []vg.Point{
				{X: l, Y: b}, {X: r, Y: b}, {X: r, Y: t}, {X: l, Y: t},
			})
		}
	}
	at := func(c [2]int) vg.Point { return vg.Point{X: x(float64(c[0])), Y: y(float64(c[1]))} }
	for _, e := range c.evaluated {
		canvas.DrawGlyph(
			draw.GlyphStyle{Color: palette[1], Radius: vg.Points(4), Shape: draw.CircleGlyph{}},
			at(e))
	}
	canvas.FillPolygon(color.RGBA{0xff, 0xc8, 0x00, 0xff}, star(at(c.optimum), vg.Points(8)))
	outline := star(at(c.optimum), vg.Points(8))
	canvas.StrokeLines(draw.LineStyle{Color: color.Black, Width: vg.Points(0.7)},
		append(outline, outline[0]))
}

// star is one of five rays.
func star(at vg.Point, radius vg.Length) []vg.Point {
	var points []vg.Point
	for k := range 10 {
		r := radius
		if k%2 == 1 {
			r *= 0.4
		}
		angle := math.Pi/2 + float64(k)*math.Pi/5
		points = append(points, vg.Point{
			X: at.X + r*vg.Length(math.Cos(angle)), Y: at.Y + r*vg.Length(math.Sin(angle)),
		})
	}
	return points
}

// mix goes from a, at 0, to b, at 1.
func mix(a, b color.RGBA, part float64) color.Color {
	part = max(0, min(1, part))
	between := func(a, b uint8) uint8 {
		return uint8(math.Round(float64(a) + part*(float64(b)-float64(a))))
	}
	return color.RGBA{between(a.R, b.R), between(a.G, b.G), between(a.B, b.B), 0xff}
}
