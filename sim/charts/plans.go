package charts

import (
	"fmt"
	"io"

	"github.com/muster-serve/muster/api/picture"
	"github.com/muster-serve/muster/leader/plan"
)

// DrawPlans draws, in a format of [picture.Format], the bound of each plan beside the
// throughput it was simulated to have (KAIROS Fig. 13), and below that what it costs. names are
// those of the plans.
func DrawPlans(w io.Writer, format, title string, names []string, plans []plan.Plan,
	simulated []plan.Estimate) error {
	drawing, err := plansPicture(title, names, plans, simulated)
	if err != nil {
		return err
	}
	return drawing.Write(w, format)
}

func plansPicture(title string, names []string, plans []plan.Plan,
	simulated []plan.Estimate) (*picture.Picture, error) {
	if len(plans) == 0 || len(names) != len(plans) || len(simulated) != len(plans) {
		return nil, fmt.Errorf("draw plans: %d names and %d simulations of %d plans", len(names),
			len(simulated), len(plans))
	}
	rates := chart{title: title, yLabel: "queries/s", groups: names, reference: true,
		series: []series{{name: "upper bound"}, {name: "simulated"}}}
	prices := chart{yLabel: "$/hr", groups: names, series: []series{{}}}
	for i, p := range plans {
		rates.series[0].values = append(rates.series[0].values, p.Bound)
		rates.series[1].values = append(rates.series[1].values, simulated[i].Value)
		rates.series[1].errors = append(rates.series[1].errors, simulated[i].StdErr)
		prices.series[0].values = append(prices.series[0].values, p.Price)
	}
	above, below := rates.newPanel(), prices.newPanel()
	widest := max(above.Width, below.Width) // so that they are alike
	above.Width, below.Width = widest, widest
	return picture.Page(1, above, below), nil
}
