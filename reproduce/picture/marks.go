package picture

import (
	"cmp"
	"image/color"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Grid is of faint lines, vertical ones too if asked for.
func Grid(vertical bool) *plotter.Grid {
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = color.Gray{0xdd}, color.Gray{0xdd}
	if !vertical {
		grid.Vertical.Width = 0
	}
	return grid
}

// A Curve is a line through points in order of X, and a mark at each if Mark has a shape.
type Curve struct {
	plotter.XYs
	draw.LineStyle
	Mark draw.GlyphStyle
}

// Plot draws it.
func (v *Curve) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	points := make([]vg.Point, len(v.XYs))
	for i, one := range v.XYs {
		points[i] = vg.Point{X: x(one.X), Y: y(one.Y)}
	}
	c.StrokeLines(v.LineStyle, points)
	if v.Mark.Shape != nil {
		for _, at := range points {
			c.DrawGlyph(v.Mark, at)
		}
	}
}

// DataRange is that of the points.
func (v *Curve) DataRange() (xMin, xMax, yMin, yMax float64) { return plotter.XYRange(v) }

// Thumbnail draws the line and a mark.
func (v *Curve) Thumbnail(c *draw.Canvas) {
	c.StrokeLine2(v.LineStyle, c.Min.X, c.Center().Y, c.Max.X, c.Center().Y)
	if v.Mark.Shape != nil {
		c.DrawGlyph(v.Mark, c.Center())
	}
}

// A Swatch is a colour in the legend.
type Swatch struct{ color.Color }

// Thumbnail draws it.
func (s Swatch) Thumbnail(c *draw.Canvas) {
	c.FillPolygon(s.Color, box(c.Min.X, c.Min.Y, c.Max.X, c.Max.Y))
}

// A Glyph is a mark in the legend.
type Glyph struct{ draw.GlyphStyle }

// Thumbnail draws it.
func (g Glyph) Thumbnail(c *draw.Canvas) { c.DrawGlyph(g.GlyphStyle, c.Center()) }

// A Rule is a dashed line at a value, across the frame or up to the legend.
type Rule struct {
	At       float64
	Vertical bool // at a value of X; else of Y
	Color    color.Color
}

func (r Rule) lineStyle() draw.LineStyle {
	return draw.LineStyle{
		Color: r.Color, Width: vg.Points(1), Dashes: []vg.Length{vg.Points(4), vg.Points(3)},
	}
}

// Plot draws it.
func (r Rule) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	if r.Vertical {
		c.StrokeLine2(r.lineStyle(), x(r.At), c.Min.Y, x(r.At), c.Max.Y)
		return
	}
	c.StrokeLine2(r.lineStyle(), c.Min.X, y(r.At), c.Max.X, y(r.At))
}

// Thumbnail draws a piece of it.
func (r Rule) Thumbnail(c *draw.Canvas) {
	if r.Vertical {
		c.StrokeLine2(r.lineStyle(), c.Center().X, c.Min.Y, c.Center().X, c.Max.Y)
		return
	}
	c.StrokeLine2(r.lineStyle(), c.Min.X, c.Center().Y, c.Max.X, c.Center().Y)
}

// A Note stands in the margin, right of the frame.
type Note struct {
	Text  string
	Color color.Color
	// At is its height, on the canvas of the data.
	At func(c draw.Canvas, p *plot.Plot) vg.Length
}

// Notes stand below each other without touching, each as near to its height as that allows.
type Notes []Note

var noteText = Text(9)

// Width is the margin that the notes need.
func (n Notes) Width() (width vg.Length) {
	for _, one := range n {
		width = max(width, noteText.Width(one.Text)+vg.Points(4))
	}
	return width
}

// Plot draws them.
func (n Notes) Plot(c draw.Canvas, p *plot.Plot) {
	type placedMark struct {
		Note
		y vg.Length
	}
	all := make([]placedMark, len(n))
	for i, one := range n {
		all[i] = placedMark{one, one.At(c, p)}
	}
	slices.SortStableFunc(all, func(a, b placedMark) int { return cmp.Compare(b.y, a.y) })
	const apart = 11
	below := c.Min.Y + apart*vg.Length(len(all)-1) // where the lowest of the others still fits
	next := c.Max.Y
	for _, one := range all {
		y := min(next, max(below, one.y))
		style := noteText
		style.Color, style.YAlign = one.Color, draw.YCenter
		c.FillText(style, vg.Point{X: c.Max.X + vg.Points(4), Y: y}, one.Text)
		next, below = y-apart, below-apart
	}
}
