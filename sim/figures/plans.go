package figures

import (
	"fmt"
	"image/color"
	"io"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"

	"github.com/muster-serve/muster/leader/plan"
)

// DrawPlans draws as PNG the bound of each plan beside the throughput it was simulated to have
// (KAIROS Fig. 13), and below that what it costs. names are those of the plans.
func DrawPlans(w io.Writer, title string, names []string, plans []plan.Plan,
	simulated []plan.Estimate) error {
	if len(plans) == 0 || len(names) != len(plans) || len(simulated) != len(plans) {
		return fmt.Errorf("draw plans: %d names and %d simulations of %d plans", len(names),
			len(simulated), len(plans))
	}
	rates := chart{title: title, yLabel: "queries/s", groups: names, reference: true,
		series: []series{{name: "upper bound"}, {name: "simulated"}}}
	prices := chart{yLabel: "$/hr", groups: names, series: []series{{name: "price"}}}
	for i, p := range plans {
		rates.series[0].values = append(rates.series[0].values, p.Bound)
		rates.series[1].values = append(rates.series[1].values, simulated[i].Value)
		rates.series[1].errors = append(rates.series[1].errors, simulated[i].StdErr)
		prices.series[0].values = append(prices.series[0].values, p.Price)
	}
	return drawBelow(w, &rates, &prices)
}

// drawBelow draws charts of the same groups as PNG, one below the other.
func drawBelow(w io.Writer, charts ...*chart) error {
	var width, height vg.Length
	heights := make([]vg.Length, len(charts))
	drawn := make([]func(draw.Canvas), len(charts))
	for i, c := range charts {
		p, cw, ch, err := c.plot()
		if err != nil {
			return err
		}
		drawn[i], heights[i] = p.Draw, ch
		width, height = max(width, cw), height+ch
	}
	canvas := vgimg.PngCanvas{
		Canvas: vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(144),
			vgimg.UseBackgroundColor(color.White)),
	}
	all := draw.New(canvas)
	top := vg.Length(0)
	for i, h := range heights {
		drawn[i](draw.Crop(all, vg.Points(4), -vg.Points(8), height-top-h+vg.Points(4),
			-top-vg.Points(6)))
		top += h
	}
	_, err := canvas.WriteTo(w)
	return err
}
