// Package picture says how all pictures of Muster look: one typeface without serifs, colours,
// dashes and marks that tell series apart, a frame around the data, and a legend in that
// frame which no data runs through. Who draws adds plotters of gonum to a Panel, and writes
// panels as PNG or SVG.
package picture

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Colours are those of series: of Okabe and Ito, which colour-blind readers can tell apart, without
// the yellow, which is hard to see on white.
var Colours = []color.RGBA{
	{0x00, 0x72, 0xb2, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff},
	{0xe6, 0x9f, 0x00, 0xff}, {0x56, 0xb4, 0xe9, 0xff}, {0xcc, 0x79, 0xa7, 0xff},
	{0x33, 0x33, 0x33, 0xff}, {0x8c, 0x51, 0x0a, 0xff},
}

// Grey is the colour of a series that the others are compared with; Dark is that of rules, notes
// and text beside the data.
var (
	Grey = color.RGBA{0x99, 0x99, 0x99, 0xff}
	Dark = color.RGBA{0x55, 0x55, 0x55, 0xff}
)

var (
	dashes = [][]vg.Length{nil, {7, 3}, {2, 2}, {8, 2, 2, 2}, {4, 2}, {12, 3}, {5, 2, 1, 2, 1, 2}}
	marks  = []draw.GlyphDrawer{
		draw.CircleGlyph{}, draw.SquareGlyph{}, draw.PyramidGlyph{}, draw.RingGlyph{},
		draw.BoxGlyph{}, draw.TriangleGlyph{}, draw.CrossGlyph{}, draw.PlusGlyph{},
	}
)

// Colour is that of series i.
func Colour(i int) color.RGBA { return Colours[i%len(Colours)] }

// Line is how series i is drawn as a line. A later one is thinner and has gaps, so one below it
// shows where both run alike.
func Line(i int) draw.LineStyle {
	return draw.LineStyle{
		Color: Colour(i), Width: vg.Points(max(1.2, 2.4-0.4*float64(i))),
		Dashes: dashes[i%len(dashes)],
	}
}

// Mark is how a point of series i is drawn.
func Mark(i int) draw.GlyphStyle {
	return draw.GlyphStyle{Color: Colour(i), Radius: vg.Points(3), Shape: marks[i%len(marks)]}
}

// Text is the style of text of a size in points.
func Text(size float64) text.Style {
	return text.Style{
		Color: color.Black, Handler: plot.DefaultTextHandler,
		Font: font.From(font.Font{Typeface: "Liberation", Variant: "Sans"}, vg.Points(size)),
	}
}

// A Panel is a plot with a frame and a legend. Set X.Min, X.Max, Y.Min and Y.Max to the range of
// the data, or add plotters that tell it; Draw makes room above that for Headroom and the legend.
type Panel struct {
	*plot.Plot
	Width, Height vg.Length
	Headroom      vg.Length // kept free of data below the legend, for labels
	Margin        vg.Length // kept free right of the frame, for labels
	entries       []entry
}

type entry struct {
	name   string
	thumbs []plot.Thumbnailer
}

// New returns a panel of 520 x 300 points.
func New(title, xLabel, yLabel string) *Panel {
	p := &Panel{
		Plot: plot.New(), Width: vg.Points(520), Height: vg.Points(300), Headroom: vg.Points(8),
	}
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, xLabel, yLabel
	p.Title.TextStyle.Font, p.Title.Padding = Text(11).Font, vg.Points(6)
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Label.TextStyle.Font, axis.Tick.Label.Font = Text(10).Font, Text(9).Font
		axis.Label.Padding = vg.Points(3)
		axis.LineStyle.Width, axis.Padding = 0, 0 // the frame is drawn instead
		axis.Tick.Length = vg.Points(4)
	}
	return p
}

// Legend adds a line of the legend: a name, and what it looks like.
func (p *Panel) Legend(name string, thumbs ...plot.Thumbnailer) {
	p.entries = append(p.entries, entry{name, thumbs})
}

// The sizes of the legend, in points.
var (
	legendText             = Text(9)
	rowHeight, thumb       = vg.Points(13), vg.Points(24)
	entryGap, legendMargin = vg.Points(14), vg.Points(5)
)

// legendColumns is how many entries of the legend fit beside each other, and how wide each is.
func (p *Panel) legendColumns(width vg.Length) (n int, each vg.Length) {
	for _, e := range p.entries {
		each = max(each, thumb+vg.Points(4)+legendText.Width(e.name)+entryGap)
	}
	n = min(len(p.entries), int((width-2*legendMargin+entryGap)/max(each, 1)))
	return max(n, 1), each
}

// legendHeight is that of the legend in a frame of the width.
func (p *Panel) legendHeight(width vg.Length) vg.Length {
	if len(p.entries) == 0 {
		return 0
	}
	n, _ := p.legendColumns(width)
	return vg.Length((len(p.entries)+n-1)/n)*rowHeight + legendMargin
}

// minWidth is the width at which the title and each entry of the legend have room.
func (p *Panel) minWidth() (width vg.Length) {
	const axis = 70 // labels and title of Y, and what is left free at the edges
	for _, e := range p.entries {
		width = max(width, axis+thumb+vg.Points(4)+legendText.Width(e.name)+2*legendMargin)
	}
	return p.Margin + max(width, p.Title.TextStyle.Width(p.Title.Text)+vg.Points(24))
}

// Draw draws the panel.
func (p *Panel) Draw(c draw.Canvas) {
	c = draw.Crop(c, vg.Points(6), -vg.Points(12)-p.Margin, vg.Points(5), -vg.Points(8))
	p.DataCanvas(c) // turns a range without data into one
	low, high := p.Y.Min, p.Y.Max
	defer func() { p.Y.Max = high }()
	// The frame's size depends on the labels of the axis, and these on the range.
	for range 2 {
		frame := p.DataCanvas(c).Size()
		share := max(0.2, 1-float64((p.legendHeight(frame.X)+p.Headroom)/frame.Y))
		if _, logarithmic := p.Y.Scale.(plot.LogScale); logarithmic {
			p.Y.Max = low * math.Pow(high/low, 1/share)
		} else {
			p.Y.Max = low + (high-low)/share
		}
	}
	whole := *p.Plot
	whole.Add(frame{p})
	whole.Draw(c)
}

// A frame draws a panel's frame and, in it, the legend.
type frame struct{ panel *Panel }

// Plot draws them.
func (f frame) Plot(c draw.Canvas, _ *plot.Plot) {
	p := f.panel
	n, each := p.legendColumns(c.Size().X)
	if height := p.legendHeight(c.Size().X); height > 0 {
		// Lines of the grid end below the legend.
		c.FillPolygon(color.White, box(c.Min.X, c.Max.Y-height, c.Max.X, c.Max.Y))
	}
	for i, e := range p.entries {
		at := vg.Point{
			X: c.Min.X + legendMargin + vg.Length(i%n)*each,
			Y: c.Max.Y - legendMargin - vg.Length(i/n+1)*rowHeight,
		}
		icon := c
		icon.Rectangle = vg.Rectangle{
			Min: at.Add(vg.Point{Y: vg.Points(2)}),
			Max: at.Add(vg.Point{X: thumb, Y: rowHeight - vg.Points(2)}),
		}
		for _, t := range e.thumbs {
			t.Thumbnail(&icon)
		}
		style := legendText
		style.YAlign = draw.YCenter
		c.FillText(style, at.Add(vg.Point{X: thumb + vg.Points(4), Y: rowHeight / 2}), e.name)
	}
	outline := box(c.Min.X, c.Min.Y, c.Max.X, c.Max.Y)
	c.StrokeLines(draw.LineStyle{Color: color.Gray{0x66}, Width: vg.Points(0.75)},
		append(outline, outline[0]))
}

func box(left, bottom, right, top vg.Length) []vg.Point {
	return []vg.Point{{X: left, Y: bottom}, {X: right, Y: bottom}, {X: right, Y: top},
		{X: left, Y: top}}
}

// A Picture is panels in rows of so many columns.
type Picture struct {
	Columns int
	Panels  []*Panel
}

// Page is a picture of panels.
func Page(columns int, panels ...*Panel) *Picture { return &Picture{columns, panels} }

// Size is the picture's, in points: each column is as wide as its widest panel, or as the title and
// the legend of one need, and each row as high as its highest.
func (p *Picture) Size() (width, height vg.Length) {
	for _, w := range p.panelSizes(false) {
		width += w
	}
	for _, h := range p.panelSizes(true) {
		height += h
	}
	return width, height
}

// panelSizes are the heights of the rows or the widths of the columns.
func (p *Picture) panelSizes(rows bool) []vg.Length {
	n := p.Columns
	if rows {
		n = (len(p.Panels) + p.Columns - 1) / p.Columns
	}
	sizes := make([]vg.Length, n)
	for i, one := range p.Panels {
		at, size := i%p.Columns, max(one.Width, one.minWidth())
		if rows {
			at, size = i/p.Columns, one.Height
		}
		sizes[at] = max(sizes[at], size)
	}
	return sizes
}

// Draw draws the picture on a canvas of its size.
func (p *Picture) Draw(canvas vg.Canvas) {
	width, height := p.Size()
	all := draw.NewCanvas(canvas, width, height)
	widths, heights := p.panelSizes(false), p.panelSizes(true)
	top := height
	for row, h := range heights {
		left := vg.Length(0)
		for column, w := range widths {
			if i := row*p.Columns + column; i < len(p.Panels) {
				p.Panels[i].Draw(draw.Crop(all, left, left+w-width, top-h, top-height))
			}
			left += w
		}
		top -= h
	}
}

// Format is the format of a picture in a file of that name, by the name's ending. The error names
// the endings that there are.
func Format(name string) (format string, err error) {
	switch ending := filepath.Ext(name); ending {
	case ".png", ".svg":
		return ending[1:], nil
	default:
		return "", fmt.Errorf("%s has the ending %q, want .png or .svg", name, ending)
	}
}

// Write writes the picture in a format that Format has returned.
func (p *Picture) Write(w io.Writer, format string) error {
	if format == "png" {
		return p.WritePNG(w)
	}
	width, height := p.Size()
	canvas := vgsvg.New(width, height)
	all := draw.NewCanvas(canvas, width, height)
	all.FillPolygon(color.White, box(0, 0, width, height))
	p.Draw(canvas)
	_, err := canvas.WriteTo(w)
	return err
}

// WritePNG writes the picture, with two pixels for each point.
func (p *Picture) WritePNG(w io.Writer) error {
	width, height := p.Size()
	canvas := vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(144),
		vgimg.UseBackgroundColor(color.White))
	p.Draw(canvas)
	_, err := vgimg.PngCanvas{Canvas: canvas}.WriteTo(w)
	return err
}
