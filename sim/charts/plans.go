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
	rates := picture.BarChart{Title: title, YLabel: "queries/s", Groups: names, Reference: true,
		Series: []picture.Series{{Name: "upper bound"}, {Name: "simulated"}}}
	prices := picture.BarChart{YLabel: "$/hr", Groups: names, Series: []picture.Series{{}}}
	for i, p := range plans {
		rates.Series[0].Values = append(rates.Series[0].Values, p.Bound)
		rates.Series[1].Values = append(rates.Series[1].Values, simulated[i].Value)
		rates.Series[1].Errors = append(rates.Series[1].Errors, simulated[i].StdErr)
		prices.Series[0].Values = append(prices.Series[0].Values, p.Price)
	}
	above, below := rates.NewPanel(), prices.NewPanel()
	widest := max(above.Width, below.Width) // so that they are alike
	above.Width, below.Width = widest, widest
	return picture.Page(1, above, below), nil
}
