// Package picture says how all pictures of Muster look: one typeface without serifs, colours,
// dashes and marks that tell series apart, a frame around the data, and a legend in that
// frame which no data runs through. Who draws adds plotters to a Panel, and writes panels as PNG or
// SVG.
package picture

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"path/filepath"
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

var dashes = [][]float64{
	nil, {7, 3}, {2, 2}, {8, 2, 2, 2}, {4, 2}, {12, 3}, {5, 2, 1, 2, 1, 2},
}

// Colour is that of series i.
func Colour(i int) color.RGBA { return Colours[i%len(Colours)] }

// LineOf is how series i is drawn as a line. A later one is thinner and has gaps, so one below it
// shows where both run alike.
func LineOf(i int) LineStyle {
	return LineStyle{
		Color: Colour(i), Width: max(1.2, 2.4-0.4*float64(i)), Dashes: dashes[i%len(dashes)],
	}
}

// MarkOf is how a point of series i is drawn.
func MarkOf(i int) MarkStyle {
	return MarkStyle{Color: Colour(i), Radius: 3, Shape: Disc + Shape(i)%Plus}
}

// TextOf is the style of text of a size in points.
func TextOf(size float64) TextStyle { return TextStyle{Size: size, Color: color.Black} }

// A Plotter draws data. If it has a method
// DataRange() (xMin, xMax, yMin, yMax float64), the axes contain that.
type Plotter interface {
	// Plot draws on the canvas within the panel's frame.
	Plot(c Canvas, p *Panel)
}

// A Thumbnailer draws what the legend shows of a plotter.
type Thumbnailer interface{ Thumbnail(c Canvas) }

// A Panel is a plot with a frame and a legend; lengths are in points. Set X.Min, X.Max, Y.Min and
// Y.Max to the range of the data, or add plotters that tell it; there is made room above that for
// Headroom and the legend.
type Panel struct {
	Title         string
	X, Y          Axis
	Width, Height float64
	Headroom      float64 // kept free of data below the legend, for labels
	Margin        float64 // kept free right of the frame, for labels
	plotters      []Plotter
	entries       []entry
}

type entry struct {
	name   string
	thumbs []Thumbnailer
}

const tickLength = 4

// New returns a panel of 520 x 300 points.
func New(title, xLabel, yLabel string) *Panel {
	axis := func(label string) Axis {
		return Axis{Label: label, Min: math.Inf(1), Max: math.Inf(-1), TickLength: tickLength}
	}
	return &Panel{
		Title: title, X: axis(xLabel), Y: axis(yLabel), Width: 520, Height: 300, Headroom: 8,
	}
}

// Add adds plotters, the lowest first.
func (p *Panel) Add(plotters ...Plotter) {
	for _, one := range plotters {
		if data, ok := one.(interface {
			DataRange() (xMin, xMax, yMin, yMax float64)
		}); ok {
			xMin, xMax, yMin, yMax := data.DataRange()
			p.X.contain(xMin)
			p.X.contain(xMax)
			p.Y.contain(yMin)
			p.Y.contain(yMax)
		}
	}
	p.plotters = append(p.plotters, plotters...)
}

// Legend adds a line of the legend: a name, and what it looks like.
func (p *Panel) Legend(name string, thumbs ...Thumbnailer) {
	p.entries = append(p.entries, entry{name, thumbs})
}

// NameX labels 0, 1, 2 and so on of the X axis.
func (p *Panel) NameX(names ...string) { p.X.name(names) }

// NameY labels 0, 1, 2 and so on of the Y axis.
func (p *Panel) NameY(names ...string) { p.Y.name(names) }

// Transforms are where values of X and Y are on a canvas of the data.
func (p *Panel) Transforms(c Canvas) (x, y func(float64) float64) {
	size := c.Size()
	return func(v float64) float64 { return c.Min.X + size.X*p.X.place(v) },
		func(v float64) float64 { return c.Min.Y + size.Y*p.Y.place(v) }
}

// The styles of a panel's texts, and the sizes of its legend.
var (
	titleText, axisText          = TextOf(11), TextOf(10)
	TickText, legendText         = TextOf(9), TextOf(9)
	rowHeight, thumb, thumbGap   = 13., 24., 4.
	entryGap, legendMargin       = 14., 5.
	titleGap, labelGap, frameGap = 6., 3., 2.
)

// legendColumns is how many entries of the legend fit beside each other, and how wide each is.
func (p *Panel) legendColumns(width float64) (n int, each float64) {
	for _, e := range p.entries {
		each = max(each, thumb+thumbGap+legendText.Width(e.name)+entryGap)
	}
	n = min(len(p.entries), int((width-2*legendMargin+entryGap)/max(each, 1)))
	return max(n, 1), each
}

// legendHeight is that of the legend in a frame of the width.
func (p *Panel) legendHeight(width float64) float64 {
	if len(p.entries) == 0 {
		return 0
	}
	n, _ := p.legendColumns(width)
	return float64((len(p.entries)+n-1)/n)*rowHeight + legendMargin
}

// minWidth is the width at which the title and each entry of the legend have room.
func (p *Panel) minWidth() (width float64) {
	const axis = 70 // labels and title of Y, and what is left free at the edges
	for _, e := range p.entries {
		width = max(width, axis+thumb+thumbGap+legendText.Width(e.name)+2*legendMargin)
	}
	return p.Margin + max(width, titleText.Width(p.Title)+24)
}

// draw draws the panel.
func (p *Panel) draw(c Canvas) {
	c = c.Crop(6, -12-p.Margin, 5, -8)
	whole := *p
	whole.X.settle()
	whole.Y.settle()
	low, high := whole.Y.Min, whole.Y.Max
	// The frame's size depends on the labels of the axis, and these on the range.
	for range 2 {
		frame := whole.dataCanvas(c).Size()
		share := max(0.2, 1-(p.legendHeight(frame.X)+p.Headroom)/frame.Y)
		if p.Y.Log {
			whole.Y.Max = low * math.Pow(high/low, 1/share)
		} else {
			whole.Y.Max = low + (high-low)/share
		}
	}
	data := whole.dataCanvas(c)
	whole.drawAxes(c, data)
	for _, one := range p.plotters {
		one.Plot(data, &whole)
	}
	whole.drawFrame(data)
}

// dataCanvas is the part of a panel's canvas that is in the frame.
func (p *Panel) dataCanvas(c Canvas) Canvas {
	left, right, bottom, top := 0., 0., 0., 0.
	if p.Title != "" {
		top = titleText.Size + titleGap
	}
	for _, t := range p.Y.ticks() {
		left = max(left, TickText.Width(t.Label))
	}
	left += p.Y.TickLength + frameGap
	if p.Y.Label != "" {
		left += axisText.Size + labelGap
	}
	bottom = TickText.Size + p.X.TickLength + frameGap
	if p.X.Label != "" {
		bottom += axisText.Size + labelGap
	}
	data := c.Crop(left, 0, bottom, -top)
	x, _ := p.Transforms(data)
	for _, t := range p.X.ticks() { // the first and the last may stand beyond the frame
		half := TickText.Width(t.Label) / 2
		right = max(right, x(t.Value)+half-c.Max.X-p.Margin-tickLength)
		left = max(left, left+c.Min.X-(x(t.Value)-half))
	}
	return c.Crop(left, -right, bottom, -top)
}

// drawAxes draws the title, and the labels and marks of the axes.
func (p *Panel) drawAxes(c, data Canvas) {
	centred := func(style TextStyle) TextStyle { style.XAlign = Middle; return style }
	half := titleText.Width(p.Title) / 2 // a long title has room only beside the frame, too
	c.FillText(centred(titleText), Point{
		max(c.Min.X+half, min(data.Center().X, c.Max.X-half)), c.Max.Y - capitals*titleText.Size,
	}, p.Title)
	c.FillText(centred(axisText), Point{data.Center().X, c.Min.Y + 0.2*axisText.Size}, p.X.Label)
	turned := centred(axisText)
	turned.Turned = true
	c.FillText(turned, Point{c.Min.X + capitals*axisText.Size, data.Center().Y}, p.Y.Label)
	x, y := p.Transforms(data)
	style := LineStyle{Color: frameColour, Width: 0.5}
	length := func(of Axis, t Tick) float64 {
		if t.Label == "" {
			return of.TickLength / 2
		}
		return of.TickLength
	}
	for _, t := range p.X.ticks() {
		at := Point{x(t.Value), data.Min.Y}
		if n := length(p.X, t); n > 0 {
			c.StrokeLine(style, at, at.Sub(Point{Y: n}))
		}
		c.FillText(centred(TickText), at.Sub(Point{
			Y: p.X.TickLength + frameGap + capitals*TickText.Size,
		}), t.Label)
	}
	for _, t := range p.Y.ticks() {
		at := Point{data.Min.X, y(t.Value)}
		if n := length(p.Y, t); n > 0 {
			c.StrokeLine(style, at, at.Sub(Point{X: n}))
		}
		left := TickText
		left.YAlign = Middle
		c.FillText(left, at.Sub(Point{
			X: p.Y.TickLength + frameGap + TickText.Width(t.Label),
		}), t.Label)
	}
}

var frameColour = color.Gray{0x66}

// drawFrame draws a panel's frame and, in it, the legend.
func (p *Panel) drawFrame(c Canvas) {
	n, each := p.legendColumns(c.Size().X)
	if height := p.legendHeight(c.Size().X); height > 0 {
		// Lines of the grid end below the legend.
		c.FillRectangle(color.White, Rectangle{Point{c.Min.X, c.Max.Y - height}, c.Max})
	}
	for i, e := range p.entries {
		at := Point{
			X: c.Min.X + legendMargin + float64(i%n)*each,
			Y: c.Max.Y - legendMargin - float64(i/n+1)*rowHeight,
		}
		icon := c
		icon.Rectangle = Rectangle{
			Min: at.Add(Point{Y: 2}), Max: at.Add(Point{X: thumb, Y: rowHeight - 2}),
		}
		for _, t := range e.thumbs {
			t.Thumbnail(icon)
		}
		style := legendText
		style.YAlign = Middle
		c.FillText(style, at.Add(Point{X: thumb + thumbGap, Y: rowHeight / 2}), e.name)
	}
	c.StrokeOutline(LineStyle{Color: frameColour, Width: 0.75}, c.corners())
}

// A Picture is panels in rows of so many columns.
type Picture struct {
	Columns int
	Panels  []*Panel
}

// Page is a picture of panels.
func Page(columns int, panels ...*Panel) *Picture { return &Picture{columns, panels} }

// panelSizes are the heights of the rows or the widths of the columns: each column is as wide as its
// widest panel, or as the title and the legend of one need, and each row as high as its highest.
func (p *Picture) panelSizes(rows bool) []float64 {
	n := p.Columns
	if rows {
		n = (len(p.Panels) + p.Columns - 1) / p.Columns
	}
	sizes := make([]float64, n)
	for i, one := range p.Panels {
		at, size := i%p.Columns, max(one.Width, one.minWidth())
		if rows {
			at, size = i/p.Columns, one.Height
		}
		sizes[at] = max(sizes[at], size)
	}
	return sizes
}

// Draw draws the picture.
func (p *Picture) Draw() *Drawing {
	d := &Drawing{}
	widths, heights := p.panelSizes(false), p.panelSizes(true)
	for _, w := range widths {
		d.Width += w
	}
	for _, h := range heights {
		d.Height += h
	}
	all := Canvas{Rectangle{Max: Point{d.Width, d.Height}}, d}
	all.FillRectangle(color.White, all.Rectangle)
	top := d.Height
	for row, h := range heights {
		left := 0.
		for column, w := range widths {
			if i := row*p.Columns + column; i < len(p.Panels) {
				p.Panels[i].draw(all.Crop(left, left+w-d.Width, top-h, top-d.Height))
			}
			left += w
		}
		top -= h
	}
	return d
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
		return p.Draw().writePNG(w)
	}
	return p.Draw().writeSVG(w)
}
