package figures

import (
	"context"
	"fmt"
	"html"
	"io"
	"math"
	"strings"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles/published"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/baselines"
)

// A Chart is README's: what a budget serves, by policy.
type Chart struct {
	Budget  float64
	Seeds   int
	Queries int
	Models  []ChartModel
}

// A ChartModel has the allowable throughput of each policy with a model.
type ChartModel struct {
	Name string
	Bars []sim.Entry // by chartBars
}

// chartBars name the bars, and the policies behind them. The first is the best homogeneous fleet.
var chartBars = []struct{ title, policy, color string }{
	{"best homogeneous fleet, scaled to the price", "", "#999999"},
	{"round robin", "round-robin", "#e69f00"},
	{"least loaded", "least-outstanding", "#56b4e9"},
	{"power of two choices", "power-of-two", "#009e73"},
	{"Muster", match.DefaultPolicy, "#0072b2"},
}

// MakeChart measures README's chart. Each policy gets the fleet within the budget that is best for
// it. The baselines queue a query at an instance that would answer it in time if it were idle, and
// their lanes merge queries as Muster's do.
func MakeChart(ctx context.Context, o Options) (*Chart, error) {
	l, err := newLab(o, published.KAIROS)
	if err != nil {
		return nil, err
	}
	c := &Chart{Budget: budget, Seeds: o.Seeds, Queries: o.Queries}
	var policies []string
	var fair []sim.Policy
	for _, bar := range chartBars[1:] {
		policies = append(policies, bar.policy)
		if bar.policy != match.DefaultPolicy {
			newChooser := baselines.NewCapable(bar.policy)
			fair = append(fair, sim.Policy{
				Name: bar.policy, NewChooser: func(*sim.Config) match.Chooser { return newChooser() },
			})
		}
	}
	for _, model := range paperModels {
		cfg, err := l.config(model, workload.Trace())
		if err != nil {
			return nil, err
		}
		cfg.Others, cfg.Merge, cfg.Models[0].Splits = fair, names.MergeDeadline, true
		found, err := l.compare(ctx, cfg, policies)
		if err != nil {
			return nil, err
		}
		alone := found.Homogeneous // scaled, because a whole number of instances leaves money over
		scaled := *alone.Throughput
		scaled.StandardError *= found.HomogeneousScaled / scaled.Rate
		scaled.Rate = found.HomogeneousScaled
		alone.Throughput, alone.PriceUSDPerHour = &scaled, budget
		c.Models = append(c.Models, ChartModel{
			model, append([]sim.Entry{alone}, found.Policies...),
		})
	}
	return c, nil
}

// WriteTable writes the numbers as a table of Markdown: queries/s with their standard error, and the
// fleet.
func (c *Chart) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "| model | policy | queries/s | $/hr | fleet |\n| --- | --- | --- | --- | --- |\n")
	for _, m := range c.Models {
		for i, e := range m.Bars {
			fmt.Fprintf(&b, "| %s | %s | %.1f ± %.1f | %.3f | %s |\n", m.Name, chartBars[i].title,
				e.Rate, e.StandardError, e.PriceUSDPerHour, e.Pool)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Sizes of the drawing, in pixels.
const (
	chartWidth, chartHeight = 880, 360
	chartLeft, chartRight   = 56, 12
	chartTop, chartBottom   = 74, 40
	chartBar                = 29
)

// WriteSVG draws the chart: throughput relative to the best homogeneous fleet, with queries/s above
// the bars. It has a background of its own, which follows the reader's colour scheme.
func (c *Chart) WriteSVG(w io.Writer) error {
	most := 0.0
	for _, m := range c.Models {
		for _, e := range m.Bars {
			most = max(most, e.Rate/m.Bars[0].Rate)
		}
	}
	most = math.Ceil(most*2) / 2
	plotHeight := float64(chartHeight - chartTop - chartBottom)
	y := func(v float64) float64 { return chartTop + plotHeight*(1-v/most) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" `+
		`role="img" aria-label="Queries per second in time for $%v per hour, by policy and model">
<style>
 text { font: 12px -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
 .title { font-size: 15px; font-weight: 600 }
 .value { font-size: 10.5px; text-anchor: middle }
 .bold { font-weight: 700 }
 .name { text-anchor: middle; font-size: 13px }
 .tick { text-anchor: end; fill: #59636e }
 .back { fill: #ffffff } .grid { stroke: #d1d9e0 }
 @media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .tick { fill: #9198a1 } .back { fill: #0d1117 } .grid { stroke: #3d444d }
 }
</style>
<rect class="back" width="%d" height="%d" rx="6"/>
`, chartWidth, chartHeight, chartWidth, chartHeight, c.Budget, chartWidth, chartHeight)
	fmt.Fprintf(&b, `<text class="title" x="%d" y="24">Queries per second in time, for $%v per hour `+
		`(1: the best homogeneous fleet)</text>`+"\n", chartLeft-40, c.Budget)
	x := chartLeft - 40
	for _, bar := range chartBars {
		fmt.Fprintf(&b, `<rect x="%d" y="38" width="12" height="12" fill="%s"/>`+
			`<text x="%d" y="48">%s</text>`+"\n", x, bar.color, x+17, html.EscapeString(bar.title))
		x += 34 + 13*len(bar.title)/2
	}
	for v := 0.0; v <= most; v += 0.5 {
		fmt.Fprintf(&b, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>`+
			`<text class="tick" x="%d" y="%.1f">%.1f</text>`+"\n", chartLeft, chartWidth-chartRight,
			y(v), y(v), chartLeft-6, y(v)+4, v)
	}
	group := float64(chartWidth-chartLeft-chartRight) / float64(len(c.Models))
	for i, m := range c.Models {
		center := chartLeft + group*(float64(i)+.5)
		fmt.Fprintf(&b, `<text class="name" x="%.1f" y="%d">%s</text>`+"\n", center,
			chartHeight-chartBottom+20, html.EscapeString(m.Name))
		left := center - chartBar*float64(len(m.Bars))/2
		for k, e := range m.Bars {
			at, top := left+chartBar*float64(k), y(e.Rate/m.Bars[0].Rate)
			bold := ""
			if k == len(m.Bars)-1 {
				bold = " bold"
			}
			fmt.Fprintf(&b, `<rect x="%.1f" y="%.1f" width="%d" height="%.1f" fill="%s"/>`+
				`<text class="value%s" x="%.1f" y="%.1f">%.0f</text>`+"\n", at+1, top, chartBar-2,
				y(0)-top, chartBars[k].color, bold, at+chartBar/2, top-4, e.Rate)
		}
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}
