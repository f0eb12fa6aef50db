package picture

import (
	"image/color"
	"math"
	"strconv"
)

// A BarChart is groups of bars side by side.
type BarChart struct {
	Title, YLabel string
	Groups        []string
	Series        []Series
	Reference     bool    // the others are compared with the first series
	Line          float64 // a dashed line across at this value; 0: none
	LineName      string  // what the line is
}

// A Series is the values of one thing: in a BarChart, one bar in each group.
type Series struct {
	Name   string    // "" if the chart has no other, and the axis says what it is
	Values []float64 // by group; NaN: the group has none
	Errors []float64 // half the length of its whisker; nil: none
}

// labelSize is that of the values above the bars, in points.
const labelSize = 7.5

// NewPanel returns the chart as a panel of a page.
func (c *BarChart) NewPanel() *Panel {
	p := New(c.Title, "", c.YLabel)
	p.Y.Min, p.Y.Max = 0, c.Line
	p.Add(Grid{})

	// A bar is at least so wide that its value fits above it, upright or turned; a group, that its
	// name does.
	group := 46.
	for _, name := range c.Groups {
		group = max(group, TickText.Width(name)/0.75)
	}
	each := max(labelSize+2, 0.75*group/float64(len(c.Series)))
	group = max(group, each*float64(len(c.Series))*1.35)
	p.Width = max(420, group*float64(len(c.Groups))+80)
	turned := false
	var above []Plotter // of the line
	for i, s := range c.Series {
		b := &bars{
			Series: s, color: c.seriesColor(i), width: each,
			offset: each * float64(float64(i)-float64(len(c.Series)-1)/2),
		}
		p.Add(b)
		above = append(above, &values{b, &turned})
		if s.Name != "" {
			p.Legend(s.Name, Swatch{Color: b.color})
		}
		for j, v := range s.Values {
			if !math.IsNaN(v) {
				p.Y.Max = max(p.Y.Max, v+s.error(j))
			}
			turned = turned || label.Width(ValueLabel(v)) > each
		}
	}
	p.Headroom = 18
	if turned {
		p.Headroom = 34
	}
	if c.Line > 0 {
		rule := Rule{At: c.Line, Color: Dark}
		p.Add(rule)
		p.Legend(c.LineName, rule)
	}
	p.Add(above...)
	p.NameX(c.Groups...)
	p.X.Min, p.X.Max = -0.5, float64(len(c.Groups))-0.5
	return p
}

// seriesColor is grey for the reference and one of its own for each other series.
func (c *BarChart) seriesColor(i int) color.Color {
	if c.Reference {
		i--
	}
	if i < 0 {
		return Grey
	}
	return Colour(i)
}

// error is half the length of the whisker of group i.
func (s *Series) error(i int) float64 {
	if s.Errors == nil {
		return 0
	}
	return s.Errors[i]
}

// bars are those of one series, with whiskers.
type bars struct {
	Series
	color         color.Color
	offset, width float64
}

// Plot draws them.
func (b *bars) Plot(c Canvas, p *Panel) {
	x, y := p.Transforms(c)
	style := LineStyle{Color: color.Black, Width: 0.75}
	for i, v := range b.Values {
		if math.IsNaN(v) {
			continue
		}
		at := x(float64(i)) + b.offset
		left, right := at-b.width/2, at+b.width/2
		c.FillPolygon(b.color, []Point{
			{X: left, Y: y(0)}, {X: right, Y: y(0)}, {X: right, Y: y(v)}, {X: left, Y: y(v)},
		})
		if e := b.error(i); e > 0 {
			c.StrokeLine(style, Point{X: at, Y: y(v - e)}, Point{X: at, Y: y(v + e)})
		}
	}
}

var label = TextOf(labelSize)

// ValueLabel returns the text above the bar of a value.
func ValueLabel(v float64) string {
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
func (b *values) Plot(c Canvas, p *Panel) {
	x, y := p.Transforms(c)
	style := label
	style.XAlign, style.YAlign = Middle, Left
	if *b.turned {
		style.Turned, style.XAlign, style.YAlign = true, Left, Middle
	}
	for i, v := range b.Values {
		high := 0.0
		if !math.IsNaN(v) {
			high = v + b.error(i)
		}
		text := ValueLabel(v)
		wide, tall := label.Width(text), labelSize
		if *b.turned {
			wide, tall = tall, wide
		}
		at := Point{X: x(float64(i)) + b.offset, Y: y(high) + 2}
		c.FillPolygon(color.White, []Point{
			{X: at.X - wide/2, Y: at.Y}, {X: at.X + wide/2, Y: at.Y},
			{X: at.X + wide/2, Y: at.Y + tall}, {X: at.X - wide/2, Y: at.Y + tall},
		})
		c.FillText(style, at, text)
	}
}
