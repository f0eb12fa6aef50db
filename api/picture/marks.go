package picture

import (
	"cmp"
	"image/color"
	"math"
	"slices"
)

// A Grid is of faint lines at the labels of the axes.
type Grid struct {
	Vertical bool // also at those of X
}

// Plot draws it.
func (g Grid) Plot(c Canvas, p *Panel) {
	x, y := p.Transforms(c)
	style := LineStyle{Color: color.Gray{0xdd}, Width: 0.5}
	for _, t := range p.Y.ticks() {
		if t.Label != "" {
			c.StrokeLine(style, Point{c.Min.X, y(t.Value)}, Point{c.Max.X, y(t.Value)})
		}
	}
	for _, t := range p.X.ticks() {
		if g.Vertical && t.Label != "" {
			c.StrokeLine(style, Point{x(t.Value), c.Min.Y}, Point{x(t.Value), c.Max.Y})
		}
	}
}

// A Curve is a line through values in order of X, and a mark at each if Mark has a shape.
type Curve struct {
	Values []Point // of X and Y
	LineStyle
	Mark MarkStyle
}

// Plot draws it.
func (v *Curve) Plot(c Canvas, p *Panel) {
	x, y := p.Transforms(c)
	points := make([]Point, len(v.Values))
	for i, one := range v.Values {
		points[i] = Point{x(one.X), y(one.Y)}
	}
	c.StrokeLine(v.LineStyle, points...)
	for _, at := range points {
		c.DrawMark(v.Mark, at)
	}
}

// DataRange is that of the values.
func (v *Curve) DataRange() (xMin, xMax, yMin, yMax float64) {
	xMin, xMax, yMin, yMax = math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)
	for _, one := range v.Values {
		xMin, xMax = min(xMin, one.X), max(xMax, one.X)
		yMin, yMax = min(yMin, one.Y), max(yMax, one.Y)
	}
	return xMin, xMax, yMin, yMax
}

// Thumbnail draws the line and a mark.
func (v *Curve) Thumbnail(c Canvas) {
	middle := c.Center()
	c.StrokeLine(v.LineStyle, Point{c.Min.X, middle.Y}, Point{c.Max.X, middle.Y})
	c.DrawMark(v.Mark, middle)
}

// A Swatch is a colour in the legend.
type Swatch struct{ color.Color }

// Thumbnail draws it.
func (s Swatch) Thumbnail(c Canvas) {
	c.FillRectangle(s.Color, c.Rectangle)
}

// A Mark is one in the legend.
type Mark struct{ MarkStyle }

// Thumbnail draws it.
func (m Mark) Thumbnail(c Canvas) { c.DrawMark(m.MarkStyle, c.Center()) }

// A Rule is a dashed line at a value, across the frame or up to the legend.
type Rule struct {
	At       float64
	Vertical bool // at a value of X; else of Y
	Color    color.Color
}

func (r Rule) lineStyle() LineStyle {
	return LineStyle{Color: r.Color, Width: 1, Dashes: []float64{4, 3}}
}

// Plot draws it.
func (r Rule) Plot(c Canvas, p *Panel) {
	x, y := p.Transforms(c)
	if r.Vertical {
		c.StrokeLine(r.lineStyle(), Point{x(r.At), c.Min.Y}, Point{x(r.At), c.Max.Y})
		return
	}
	c.StrokeLine(r.lineStyle(), Point{c.Min.X, y(r.At)}, Point{c.Max.X, y(r.At)})
}

// Thumbnail draws a piece of it.
func (r Rule) Thumbnail(c Canvas) {
	if r.Vertical {
		c.StrokeLine(r.lineStyle(), Point{c.Center().X, c.Min.Y}, Point{c.Center().X, c.Max.Y})
		return
	}
	c.StrokeLine(r.lineStyle(), Point{c.Min.X, c.Center().Y}, Point{c.Max.X, c.Center().Y})
}

// A Note stands in the margin, right of the frame.
type Note struct {
	Text  string
	Color color.Color
	// At is its height, on the canvas of the data.
	At func(c Canvas, p *Panel) float64
}

// Notes stand below each other without touching, each as near to its height as that allows.
type Notes []Note

var noteText = TextOf(9)

// Width is the margin that the notes need.
func (n Notes) Width() (width float64) {
	for _, one := range n {
		width = max(width, noteText.Width(one.Text)+4)
	}
	return width
}

// Plot draws them.
func (n Notes) Plot(c Canvas, p *Panel) {
	type placedMark struct {
		Note
		y float64
	}
	all := make([]placedMark, len(n))
	for i, one := range n {
		all[i] = placedMark{one, one.At(c, p)}
	}
	slices.SortStableFunc(all, func(a, b placedMark) int { return cmp.Compare(b.y, a.y) })
	const apart = 11
	below := c.Min.Y + apart*float64(len(all)-1) // where the lowest of the others still fits
	next := c.Max.Y
	for _, one := range all {
		y := min(next, max(below, one.y))
		style := noteText
		style.Color, style.YAlign = one.Color, Middle
		c.FillText(style, Point{X: c.Max.X + 4, Y: y}, one.Text)
		next, below = y-apart, below-apart
	}
}
