package figures

import (
	"image/color"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/muster-serve/muster/api/picture"
)

// A chart is groups of bars side by side.
type chart struct {
	title, yLabel string
	groups        []string
	series        []series
	reference     bool    // the first series is what the others are held against
	line          float64 // a dashed line across at this value; 0: none
	lineName      string  // what it is
}

// A series is one bar in each group.
type series struct {
	name   string    // "" if the chart has no other, and the axis says what it is
	values []float64 // by group; NaN: there is none
	errors []float64 // half the length of its whisker; nil: none
}

// homogeneousLine names the line at 1 where throughputs are relative.
const homogeneousLine = "homogeneous, scaled to budget"

// labelSize is that of the values above the bars, in points.
const labelSize = 7.5

// panel makes the chart.
func (c *chart) panel() *picture.Panel {
	p := picture.New(c.title, "", c.yLabel)
	p.Y.Min, p.Y.Max = 0, c.line
	p.Y.Tick.Marker = plot.TickerFunc(roundTicks)
	p.Add(picture.Grid(false))

	// A bar is at least so wide that its value fits above it, upright or turned; a group, that its
	// name does.
	group := vg.Points(46)
	for _, name := range c.groups {
		group = max(group, p.X.Tick.Label.Width(name)/0.75)
	}
	each := max(vg.Points(labelSize+2), 0.75*group/vg.Length(len(c.series)))
	group = max(group, each*vg.Length(len(c.series))*1.35)
	p.Width = max(vg.Points(420), group*vg.Length(len(c.groups))+vg.Points(80))
	turned := false
	var above []plot.Plotter // of the line
	for i, s := range c.series {
		b := &bars{
			series: s, color: c.color(i), width: each,
			offset: each * vg.Length(float64(i)-float64(len(c.series)-1)/2),
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
	p.Headroom = vg.Points(18)
	if turned {
		p.Headroom = vg.Points(34)
	}
	if c.line > 0 {
		rule := picture.Rule{At: c.line, Color: picture.Dark}
		p.Add(rule)
		p.Legend(c.lineName, rule)
	}
	p.Add(above...)
	p.NominalX(c.groups...)
	p.X.LineStyle.Width, p.X.Padding, p.Y.Padding = 0, vg.Points(3), 0
	p.X.Min, p.X.Max = -0.5, float64(len(c.groups))-0.5
	return p
}

// color is grey for the reference and one of its own for each other series.
func (c *chart) color(i int) color.Color {
	if c.reference {
		i--
	}
	if i < 0 {
		return picture.Grey
	}
	return picture.Colour(i)
}

// roundTicks are five to ten labelled steps of 1, 2 or 5 times a power of ten.
func roundTicks(lo, hi float64) []plot.Tick {
	step := math.Pow10(int(math.Floor(math.Log10((hi - lo) / 5))))
	for _, times := range []float64{5, 2} {
		if (hi-lo)/(step*times) >= 5 {
			step *= times
			break
		}
	}
	var ticks []plot.Tick
	for i := math.Ceil(lo / step); i*step <= hi; i++ {
		ticks = append(ticks, plot.Tick{
			Value: i * step, Label: strconv.FormatFloat(math.Round(i*step*1e6)/1e6+0, 'g', -1, 64),
		})
	}
	return ticks
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
	offset, width vg.Length
}

// Plot draws them.
func (b *bars) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	style := draw.LineStyle{Color: color.Black, Width: vg.Points(0.75)}
	for i, v := range b.values {
		if math.IsNaN(v) {
			continue
		}
		at := x(float64(i)) + b.offset
		left, right := at-b.width/2, at+b.width/2
		c.FillPolygon(b.color, []vg.Point{
			{X: left, Y: y(0)}, {X: right, Y: y(0)}, {X: right, Y: y(v)}, {X: left, Y: y(v)},
		})
		if e := b.error(i); e > 0 {
			c.StrokeLine2(style, at, y(v-e), at, y(v+e))
		}
	}
}

var label = picture.Text(labelSize)

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
func (b *values) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	style := label
	style.XAlign, style.YAlign = draw.XCenter, draw.YBottom
	if *b.turned {
		style.Rotation, style.XAlign, style.YAlign = math.Pi/2, draw.XLeft, draw.YCenter
	}
	for i, v := range b.values {
		high := 0.0
		if !math.IsNaN(v) {
			high = v + b.error(i)
		}
		text := valueLabel(v)
		wide, tall := label.Width(text), vg.Points(labelSize)
		if *b.turned {
			wide, tall = tall, wide
		}
		at := vg.Point{X: x(float64(i)) + b.offset, Y: y(high) + vg.Points(2)}
		c.FillPolygon(color.White, []vg.Point{
			{X: at.X - wide/2, Y: at.Y}, {X: at.X + wide/2, Y: at.Y},
			{X: at.X + wide/2, Y: at.Y + tall}, {X: at.X - wide/2, Y: at.Y + tall},
		})
		c.FillText(style, at, text)
	}
}
