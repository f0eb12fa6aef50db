package charts

import (
	"image/color"
	"io"
	"math"
	"strconv"

	"github.com/muster-serve/muster/api/picture"
	"github.com/muster-serve/muster/sim"
)

// A chart is groups of bars side by side.
type chart struct {
	title, yLabel string
	groups        []string
	series        []series
	reference     bool    // the others are compared with the first series
	line          float64 // a dashed line across at this value; 0: none
	lineName      string  // what it is
}

// A series is one bar in each group.
type series struct {
	name   string    // "" if the chart has no other, and the axis says what it is
	values []float64 // by group; NaN: the group has none
	errors []float64 // half the length of its whisker; nil: none
}

// homogeneousLine names the line at 1 where throughputs are relative.
const homogeneousLine = "homogeneous, scaled to budget"

// labelSize is that of the values above the bars, in points.
const labelSize = 7.5

// newPanel makes the chart.
func (c *chart) newPanel() *picture.Panel {
	p := picture.New(c.title, "", c.yLabel)
	p.Y.Min, p.Y.Max = 0, c.line
	p.Add(picture.Grid{})

	// A bar is at least so wide that its value fits above it, upright or turned; a group, that its
	// name does.
	group := 46.
	for _, name := range c.groups {
		group = max(group, picture.TickText.Width(name)/0.75)
	}
	each := max(labelSize+2, 0.75*group/float64(len(c.series)))
	group = max(group, each*float64(len(c.series))*1.35)
	p.Width = max(420, group*float64(len(c.groups))+80)
	turned := false
	var above []picture.Plotter // of the line
	for i, s := range c.series {
		b := &bars{
			series: s, color: c.seriesColor(i), width: each,
			offset: each * float64(float64(i)-float64(len(c.series)-1)/2),
		}
		p.Add(b)
		above = append(above, &values{b, &turned})
		if s.name != "" {
			p.Legend(s.name, picture.Swatch{Color: b.color})
		}
		for j, v := range s.values {
			if !math.IsNaN(v) {
				p.Y.Max = max(p.Y.Max, v+s.error(j))
			}
			turned = turned || label.Width(valueLabel(v)) > each
		}
	}
	p.Headroom = 18
	if turned {
		p.Headroom = 34
	}
	if c.line > 0 {
		rule := picture.Rule{At: c.line, Color: picture.Dark}
		p.Add(rule)
		p.Legend(c.lineName, rule)
	}
	p.Add(above...)
	p.NameX(c.groups...)
	p.X.Min, p.X.Max = -0.5, float64(len(c.groups))-0.5
	return p
}

// seriesColor is grey for the reference and one of its own for each other series.
func (c *chart) seriesColor(i int) color.Color {
	if c.reference {
		i--
	}
	if i < 0 {
		return picture.Grey
	}
	return picture.Colour(i)
}

// error is half the length of the whisker of group i.
func (s *series) error(i int) float64 {
	if s.errors == nil {
		return 0
	}
	return s.errors[i]
}

// bars are those of one series, with whiskers.
type bars struct {
	series
	color         color.Color
	offset, width float64
}

// Plot draws them.
func (b *bars) Plot(c picture.Canvas, p *picture.Panel) {
	x, y := p.Transforms(c)
	style := picture.LineStyle{Color: color.Black, Width: 0.75}
	for i, v := range b.values {
		if math.IsNaN(v) {
			continue
		}
		at := x(float64(i)) + b.offset
		left, right := at-b.width/2, at+b.width/2
		c.FillPolygon(b.color, []picture.Point{
			{X: left, Y: y(0)}, {X: right, Y: y(0)}, {X: right, Y: y(v)}, {X: left, Y: y(v)},
		})
		if e := b.error(i); e > 0 {
			c.StrokeLine(style, picture.Point{X: at, Y: y(v - e)}, picture.Point{X: at, Y: y(v + e)})
		}
	}
}

var label = picture.TextOf(labelSize)

// valueLabel is the text above a bar.
func valueLabel(v float64) string {
	switch {
	case math.IsNaN(v):
		return "none"
	case v == math.Trunc(v):
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// values are the texts above bars, turned by a quarter where they are wider than a bar.
type values struct {
	*bars
	turned *bool // one for all bars of a chart
}

// Plot draws them, on white, for a line may be there.
func (b *values) Plot(c picture.Canvas, p *picture.Panel) {
	x, y := p.Transforms(c)
	style := label
	style.XAlign, style.YAlign = picture.Middle, picture.Left
	if *b.turned {
		style.Turned, style.XAlign, style.YAlign = true, picture.Left, picture.Middle
	}
	for i, v := range b.values {
		high := 0.0
		if !math.IsNaN(v) {
			high = v + b.error(i)
		}
		text := valueLabel(v)
		wide, tall := label.Width(text), labelSize
		if *b.turned {
			wide, tall = tall, wide
		}
		at := picture.Point{X: x(float64(i)) + b.offset, Y: y(high) + 2}
		c.FillPolygon(color.White, []picture.Point{
			{X: at.X - wide/2, Y: at.Y}, {X: at.X + wide/2, Y: at.Y},
			{X: at.X + wide/2, Y: at.Y + tall}, {X: at.X - wide/2, Y: at.Y + tall},
		})
		c.FillText(style, at, text)
	}
}

// DrawComparisons draws, in a format of [picture.Format], what each policy reaches on each model,
// relative to the best homogeneous pool scaled to the budget. Whiskers are a standard error.
func DrawComparisons(w io.Writer, format string, all []*sim.Comparison) error {
	c := chart{
		title:  "Allowable throughput of policies",
		yLabel: "throughput / homogeneous",
		line:   1, lineName: homogeneousLine,
	}
	for i, comparison := range all {
		c.groups = append(c.groups, comparison.Model)
		for j, e := range comparison.Policies {
			if i == 0 {
				c.series = append(c.series, series{name: e.Policy})
			}
			s := &c.series[j]
			s.values = append(s.values, e.Ratio)
			s.errors = append(s.errors, e.StandardError/comparison.HomogeneousScaled)
		}
	}
	return picture.Page(1, c.newPanel()).Write(w, format)
}
