package bench

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// colours are the models' colours; colour-blind readers can distinguish them (Okabe and Ito).
var colours = []color.RGBA{
	{0, 114, 178, 255}, {213, 94, 0, 255}, {0, 158, 115, 255}, {204, 121, 167, 255},
	{86, 180, 233, 255}, {230, 159, 0, 255},
}

// WritePlot draws the latencies by percentile as PNG: for each model a curve, its QoS target as a
// dashed line, and its p99 as a point. A failed query counts as one of infinite latency, so a curve
// ends where failures begin.
func (r *Report) WritePlot(w io.Writer) error {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("Latency of %s, %s arrivals, batch sizes %s",
		count(r.queries(), "query", "queries"), r.Workload.Arrivals, r.Workload.BatchSizes)
	p.Title.TextStyle.Font.Size = 13
	p.Title.Padding = 8
	p.X.Label.Text = "percentile of the queries"
	p.Y.Label.Text = "latency, ms"
	p.X.Scale, p.Y.Scale = plot.LinearScale{}, plot.LogScale{}
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding = 3
	p.Legend.TextStyle.Font.Size = 11
	p.Legend.XOffs, p.Legend.YOffs = 8, -4

	lowest, highest := math.Inf(1), 0.0
	right := nines(0.999)
	for _, m := range r.Models {
		if m.Answered > 0 {
			lowest = min(lowest, float64(quantile(m.latencies, 0.001))/1e6)
			highest = max(highest, m.LatencyMS.Max)
		}
		highest = max(highest, m.QoSTargetMS)
		lowest = min(lowest, m.QoSTargetMS)
		right = max(right, min(nines(1-1/float64(m.Queries+1)), 5))
	}
	// Leave room above for the legend.
	p.Y.Min, p.Y.Max = lowest/1.5, highest*math.Pow(1.5, float64(2+len(r.Models)))
	p.X.Min, p.X.Max = 0, 1.03*right
	p.X.Tick.Marker = percentileTicks{}
	p.Y.Tick.Marker = logTicks{}
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = color.Gray{225}, color.Gray{225}
	p.Add(grid)

	if err := addTargets(p, r.Models, right); err != nil {
		return err
	}
	for i, m := range r.Models {
		if err := addCurve(p, m, colours[i%len(colours)], right); err != nil {
			return err
		}
	}
	canvas := vgimg.NewWith(vgimg.UseWH(9*vg.Inch, 5.6*vg.Inch), vgimg.UseDPI(120))
	p.Draw(draw.NewCanvas(canvas, 9*vg.Inch, 5.6*vg.Inch))
	_, err := vgimg.PngCanvas{Canvas: canvas}.WriteTo(w)
	return err
}

func (r *Report) queries() (n int64) {
	for _, m := range r.Models {
		n += m.Queries
	}
	return n
}

// nines is the place of a quantile on the axis: 1 for 0.9, 2 for 0.99, 3 for 0.999.
func nines(quantile float64) float64 { return -math.Log10(1 - quantile) }

// addTargets draws each QoS target as a dashed line, in its model's colour unless several models
// share it.
func addTargets(p *plot.Plot, models []ModelReport, right float64) error {
	for i, m := range models {
		same := func(o ModelReport) bool { return o.QoSTargetMS == m.QoSTargetMS }
		if slices.ContainsFunc(models[:i], same) {
			continue
		}
		c := colours[i%len(colours)]
		if slices.ContainsFunc(models[i+1:], same) {
			c = color.RGBA{90, 90, 90, 255}
		}
		line, err := plotter.NewLine(plotter.XYs{
			{X: 0, Y: m.QoSTargetMS}, {X: right, Y: m.QoSTargetMS},
		})
		if err != nil {
			return err
		}
		line.Color = c
		line.Width = 1
		line.Dashes = []vg.Length{5, 4}
		label, err := plotter.NewLabels(plotter.XYLabels{
			XYs:    plotter.XYs{{X: 0, Y: m.QoSTargetMS}},
			Labels: []string{fmt.Sprintf("QoS target %g ms", m.QoSTargetMS)},
		})
		if err != nil {
			return err
		}
		label.TextStyle[0].Color = c
		label.TextStyle[0].Font.Size = 10
		label.Offset = vg.Point{X: 5, Y: 4}
		p.Add(line, label)
	}
	return nil
}

// addCurve draws one model's curve up to the place right on the axis.
func addCurve(p *plot.Plot, m ModelReport, c color.RGBA, right float64) error {
	finished := m.Answered + m.Failed
	if m.Answered == 0 {
		return nil
	}
	// at is the latency at a quantile of all queries, failed ones included.
	at := func(q float64) (ms float64, ok bool) {
		q *= float64(finished) / float64(m.Answered)
		return milliseconds(quantile(m.latencies, 100*q)), q <= 1
	}
	var curve plotter.XYs
	const steps = 500
	for i := range steps {
		x := right * float64(i) / (steps - 1)
		if ms, ok := at(1 - math.Pow(10, -x)); ok {
			curve = append(curve, plotter.XY{X: x, Y: ms})
		}
	}
	line, err := plotter.NewLine(curve)
	if err != nil {
		return err
	}
	line.Color = c
	line.Width = 2
	p.Add(line)
	p.Legend.Add(fmt.Sprintf("%s: %s/s, p99 %s ms, %.2f %% within %g ms",
		m.Model, figures(m.OfferedQPS), figures(m.LatencyMS.P99), 100*m.QoSSatisfaction,
		m.QoSTargetMS), line)
	p99, ok := at(0.99)
	if !ok {
		return nil // more than one in a hundred failed
	}
	point, err := plotter.NewScatter(plotter.XYs{{X: 2, Y: p99}})
	if err != nil {
		return err
	}
	point.GlyphStyle = draw.GlyphStyle{Color: c, Radius: 4, Shape: draw.CircleGlyph{}}
	p.Add(point)
	return nil
}

// percentileTicks marks the common percentiles.
type percentileTicks struct{}

func (percentileTicks) Ticks(lo, hi float64) []plot.Tick {
	var ticks []plot.Tick
	for _, s := range []string{
		"0", "50", "75", "90", "95", "99", "99.5", "99.9", "99.99", "99.999",
	} {
		var percentile float64
		fmt.Sscan(s, &percentile)
		if x := nines(percentile / 100); x >= lo && x <= hi+1e-9 {
			ticks = append(ticks, plot.Tick{Value: x, Label: s})
		}
	}
	return ticks
}

// logTicks labels 1, 2 and 5 times the powers of ten.
type logTicks struct{}

func (logTicks) Ticks(lo, hi float64) []plot.Tick {
	var ticks []plot.Tick
	for decade := math.Pow(10, math.Floor(math.Log10(lo))); decade <= hi; decade *= 10 {
		for i := 1; i < 10; i++ {
			y := float64(i) * decade
			if y < lo || y > hi {
				continue
			}
			t := plot.Tick{Value: y}
			if i == 1 || i == 2 || i == 5 {
				t.Label = fmt.Sprintf("%.6g", y)
			}
			ticks = append(ticks, t)
		}
	}
	return ticks
}

// count is "1 query" or "7 queries".
func count(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
