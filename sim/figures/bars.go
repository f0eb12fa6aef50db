package figures

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/muster-serve/muster/sim"
)

// The palette of Okabe and Ito, which colour-blind readers can tell apart; the
// first is for what the others are held against.
var palette = []color.Color{
	color.RGBA{0x99, 0x99, 0x99, 0xff},
	color.RGBA{0x00, 0x72, 0xb2, 0xff},
	color.RGBA{0xd5, 0x5e, 0x00, 0xff},
	color.RGBA{0x00, 0x9e, 0x73, 0xff},
	color.RGBA{0xe6, 0x9f, 0x00, 0xff},
	color.RGBA{0x56, 0xb4, 0xe9, 0xff},
	color.RGBA{0xcc, 0x79, 0xa7, 0xff},
	color.RGBA{0xf0, 0xe4, 0x42, 0xff},
	color.RGBA{0x33, 0x33, 0x33, 0xff},
}

// A chart is groups of bars side by side.
type chart struct {
	title, yLabel string
	groups        []string
	series        []series
	reference     bool    // the first series is what the others are held against
	line          float64 // a dashed line across at this value; 0: none
}

// A series is one bar in each group.
type series struct {
	name   string
	values []float64 // by group; 0: no bar
	errors []float64 // half the length of its whisker; nil: none
}

// draw writes the chart as PNG.
func (c *chart) draw(w io.Writer) error { return drawBelow(w, c) }

// plot makes the chart, and says how large it should be.
func (c *chart) plot() (p *plot.Plot, width, height vg.Length, err error) {
	p = plot.New()
	p.Title.Text, p.Y.Label.Text = c.title, c.yLabel
	p.Title.Padding = vg.Points(6)
	p.Title.TextStyle.Font.Size = vg.Points(11)
	p.Y.Min = 0
	p.Y.Tick.Marker = plot.TickerFunc(roundTicks)
	p.Legend.Top = true
	p.Legend.TextStyle.Font.Size = vg.Points(9)
	p.Legend.Padding = vg.Points(2)
	grid := plotter.NewGrid()
	grid.Vertical.Width = 0
	grid.Horizontal.Color = color.Gray{0xdd}
	p.Add(grid)

	const groupWidth = 46
	// At least so wide that the labels of the groups have room.
	barWidth := vg.Points(max(6, groupWidth/float64(len(c.series))))
	top := c.line
	for i, s := range c.series {
		bars, err := plotter.NewBarChart(plotter.Values(s.values), barWidth)
		if err != nil {
			return nil, 0, 0, fmt.Errorf("bars of %s: %w", s.name, err)
		}
		bars.Color, bars.LineStyle.Width = c.color(i), 0
		bars.Offset = barWidth * vg.Length(float64(i)-float64(len(c.series)-1)/2)
		p.Add(bars)
		p.Legend.Add(s.name, bars)
		for _, v := range s.values {
			top = max(top, v)
		}
		if s.errors != nil {
			p.Add(&whiskers{s, bars.Offset})
		}
	}
	if c.line > 0 {
		f := plotter.NewFunction(func(float64) float64 { return c.line })
		f.Dashes, f.Width = []vg.Length{vg.Points(4), vg.Points(3)}, vg.Points(1)
		p.Add(f)
	}
	p.NominalX(c.groups...)
	p.X.Min, p.X.Max = -0.5, float64(len(c.groups))-0.5
	// Room for the legend, which has a line of its own for every series.
	legend := vg.Points(14) * vg.Length(len(c.series))
	height = vg.Points(280) + legend
	p.Y.Max = top * 1.05 * float64(height/(height-legend))
	return p, max(vg.Points(420),
		barWidth*vg.Length(len(c.series)*len(c.groups))*1.35+vg.Points(70)), height, nil
}

// color is grey for the reference and one of its own for each other series.
func (c *chart) color(i int) color.Color {
	if c.reference && i == 0 {
		return palette[0]
	}
	if !c.reference {
		i++
	}
	return palette[1+(i-1)%(len(palette)-1)]
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

// whiskers are the error bars of one series, offset as its bars are.
type whiskers struct {
	series
	offset vg.Length
}

// Plot draws them.
func (e *whiskers) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	style := draw.LineStyle{Color: color.Black, Width: vg.Points(0.75)}
	for i, v := range e.values {
		if v > 0 && e.errors[i] > 0 {
			at := x(float64(i)) + e.offset
			c.StrokeLine2(style, at, y(v-e.errors[i]), at, y(v+e.errors[i]))
		}
	}
}

// DrawComparisons draws as PNG what each policy reaches on each model, relative to
// the best homogeneous pool scaled to the budget. Whiskers are a standard error.
func DrawComparisons(w io.Writer, all []*sim.Comparison) error {
	c := chart{
		title:  "Allowable throughput of policies",
		yLabel: "relative to homogeneous, scaled to budget",
		line:   1,
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
	return c.draw(w)
}
