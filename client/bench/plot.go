package bench

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/muster-serve/muster/api/picture"
)

// WritePlot draws the latencies by percentile in a format of [picture.Format]: for each model
// a curve, its QoS target as a dashed line, and its p99 as a mark. A failed query counts as
// one of infinite latency: where failures begin, a curve steps up into the band at the top,
// which is marked "failed".
func (r *Report) WritePlot(w io.Writer, format string) error {
	return r.drawPicture().Write(w, format)
}

func (r *Report) drawPicture() *picture.Picture {
	title := fmt.Sprintf("Latency of %s, %s arrivals, batch sizes %s",
		countText(r.countQueries(), "query", "queries"), r.Workload.Arrivals, r.Workload.BatchSizes)
	if r.Interrupted {
		title += "; cut short"
	}
	p := picture.New(title, "percentile of the queries, failed ones included", "latency, ms")
	p.Width, p.Height = 648, 403
	p.Y.Log, p.X.Ticks = true, percentileTicks

	lowest, highest, failing := math.Inf(1), 0.0, 0
	right := nines(0.999)
	for _, m := range r.Models {
		if m.Answered > 0 {
			lowest = min(lowest, float64(percentileLatency(m.latencies, 0.001))/1e6)
			highest = max(highest, m.LatencyMS.Max)
		}
		highest = max(highest, m.QoSTargetMS)
		lowest = min(lowest, m.QoSTargetMS)
		right = max(right, min(nines(1-1/float64(m.Queries+1)), 5))
		if m.Failed > 0 { // however few, the step is in the picture
			right = max(right, nines(m.answeredShare())+0.15)
			failing++
		}
	}
	p.Y.Min, p.Y.Max = lowest/1.5, highest
	p.X.Min, p.X.Max = 0, right
	p.Add(picture.Grid{Vertical: true})
	notes := addTargets(p, r.Models)
	band := failedBand{from: highest, models: failing}
	if failing > 0 {
		p.Headroom = band.bandHeight() + 12
		notes = append(notes, picture.Note{Text: "failed", Color: picture.Dark,
			At: band.bandMiddle})
		p.Add(band)
	}
	p.Margin = notes.Width()
	p.Add(notes)
	failing = 0
	for i, m := range r.Models {
		v := curveOf(m, i, right)
		if m.Failed > 0 {
			lane := failing
			v.failedAt = func(c picture.Canvas, p *picture.Panel) float64 {
				return band.modelLineY(c, p, lane)
			}
			failing++
		}
		p.Add(v)
		p.Legend(legendOf(m), &picture.Curve{LineStyle: v.line, Mark: v.mark})
	}
	return picture.Page(1, p)
}

func (r *Report) countQueries() (n int64) {
	for _, m := range r.Models {
		n += m.Queries
	}
	return n
}

// nines is the place of a quantile on the axis: 1 for 0.9, 2 for 0.99, 3 for 0.999.
func nines(quantile float64) float64 { return -math.Log10(1 - quantile) }

// answeredShare is that of the queries that came to an end; 1 if there are none.
func (m *ModelReport) answeredShare() float64 {
	return float64(m.Answered) / float64(max(1, m.Answered+m.Failed))
}

// latencyAt is the latency in ms at a quantile of all queries; ok is false if that one failed.
func (m *ModelReport) latencyAt(q float64) (ms float64, ok bool) {
	d := quantileOfAll(m.latencies, m.Failed, 100*q)
	return toMs(d), d != never && m.Answered > 0
}

// legendOf says of a model what the curve shows.
func legendOf(m ModelReport) string {
	if m.Answered+m.Failed == 0 {
		return m.Model + ": no query came to an end"
	}
	p99 := "failed"
	if ms, ok := m.latencyAt(0.99); ok {
		p99 = formatFigures(ms) + " ms"
	}
	parts := []string{
		fmt.Sprintf("%s: %s/s, p99 %s, %s within %g ms", m.Model, formatFigures(m.OfferedQPS), p99,
			Percent(m.QoSSatisfaction), m.QoSTargetMS),
	}
	if m.Late > 0 {
		parts = append(parts, fmt.Sprintf("%d late", m.Late))
	}
	if m.Failed > 0 {
		parts = append(parts, fmt.Sprintf("%d failed", m.Failed))
	}
	return strings.Join(parts, ", ")
}

// addTargets draws each QoS target as a dashed line, in its model's colour unless several models
// share it, and returns the notes that name them.
func addTargets(p *picture.Panel, models []ModelReport) (notes picture.Notes) {
	for i, m := range models {
		same := func(o ModelReport) bool { return o.QoSTargetMS == m.QoSTargetMS }
		if slices.ContainsFunc(models[:i], same) {
			continue
		}
		c := picture.Colour(i)
		if len(models) == 1 || slices.ContainsFunc(models[i+1:], same) {
			c = picture.Dark
		}
		p.Add(picture.Rule{At: m.QoSTargetMS, Color: c})
		notes = append(notes, picture.Note{
			Text: fmt.Sprintf("target %g ms", m.QoSTargetMS), Color: c,
			At: func(c picture.Canvas, p *picture.Panel) float64 {
				_, y := p.Transforms(c)
				return y(m.QoSTargetMS)
			},
		})
	}
	return notes
}

// A failedBand is the room above the largest latency for failed queries, with a line for each model
// that has some.
type failedBand struct {
	from   float64 // ms
	models int
}

const bandGap, laneHeight = 8, 6 // points

func (b failedBand) bandHeight() float64 { return float64(laneHeight * (b.models + 1)) }

func (b failedBand) bandBottom(c picture.Canvas, p *picture.Panel) float64 {
	_, y := p.Transforms(c)
	return y(b.from) + bandGap
}

func (b failedBand) bandMiddle(c picture.Canvas, p *picture.Panel) float64 {
	return b.bandBottom(c, p) + b.bandHeight()/2
}

// modelLineY is where the i-th of the models has its line.
func (b failedBand) modelLineY(c picture.Canvas, p *picture.Panel, i int) float64 {
	return b.bandBottom(c, p) + float64(laneHeight*(i+1))
}

// Plot draws the band.
func (b failedBand) Plot(c picture.Canvas, p *picture.Panel) {
	low, high := b.bandBottom(c, p), b.bandBottom(c, p)+b.bandHeight()
	c.FillPolygon(color.RGBA{0xf4, 0xe3, 0xe0, 0xff}, []picture.Point{
		{X: c.Min.X, Y: low}, {X: c.Max.X, Y: low}, {X: c.Max.X, Y: high}, {X: c.Min.X, Y: high},
	})
}

// A curve is a model's latency by percentile.
type curve struct {
	values []picture.Point // of the answered queries
	line   picture.LineStyle
	mark   picture.MarkStyle
	marked []picture.Point // the p99, unless it failed
	// failedAt is the height of the line of the failed queries, which are those from the percentile
	// at from to the one at to; nil if there are none.
	failedAt func(picture.Canvas, *picture.Panel) float64
	from, to float64
}

// curveOf is the curve of model i up to the place right on the axis.
func curveOf(m ModelReport, i int, right float64) *curve {
	v := &curve{
		line: picture.LineOf(i), mark: picture.MarkOf(i), from: nines(m.answeredShare()), to: right,
	}
	v.mark.Radius = 4
	const steps = 500
	for i := range steps {
		x := right * float64(i) / (steps - 1)
		if ms, ok := m.latencyAt(1 - math.Pow(10, -x)); ok {
			v.values = append(v.values, picture.Point{X: x, Y: ms})
		}
	}
	if ms, ok := m.latencyAt(0.99); ok {
		v.marked = append(v.marked, picture.Point{X: nines(0.99), Y: ms})
	}
	return v
}

// Plot draws it.
func (v *curve) Plot(c picture.Canvas, p *picture.Panel) {
	x, y := p.Transforms(c)
	var points []picture.Point
	for _, one := range v.values {
		points = append(points, picture.Point{X: x(one.X), Y: y(one.Y)})
	}
	if v.failedAt != nil {
		if len(points) > 0 { // straight up
			points = append(points, picture.Point{X: x(v.from), Y: points[len(points)-1].Y})
		}
		high := v.failedAt(c, p)
		points = append(points, picture.Point{X: x(v.from), Y: high}, picture.Point{X: x(v.to),
			Y: high})
	}
	c.StrokeLine(v.line, points...)
	for _, one := range v.marked {
		c.DrawMark(v.mark, picture.Point{X: x(one.X), Y: y(one.Y)})
	}
}

// percentileTicks marks the common percentiles.
func percentileTicks(lo, hi float64) []picture.Tick {
	var ticks []picture.Tick
	for _, s := range []string{
		"0", "50", "75", "90", "95", "99", "99.5", "99.9", "99.99", "99.999",
	} {
		var percentile float64
		fmt.Sscan(s, &percentile)
		if x := nines(percentile / 100); x >= lo && x <= hi+1e-9 {
			ticks = append(ticks, picture.Tick{Value: x, Label: s})
		}
	}
	return ticks
}

// countText is "1 query" or "7 queries".
func countText(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
