package charts

import (
	"io"

	"github.com/muster-serve/muster/api/picture"
	"github.com/muster-serve/muster/sim"
)

// homogeneousLine names the line at 1 where throughputs are relative.
const homogeneousLine = "homogeneous, scaled to budget"

// DrawComparisons draws, in a format of [picture.Format], what each policy reaches on each model,
// relative to the best homogeneous pool scaled to the budget. Whiskers are a standard error.
func DrawComparisons(w io.Writer, format string, all []*sim.Comparison) error {
	c := picture.BarChart{
		Title:  "Allowable throughput of policies",
		YLabel: "throughput / homogeneous",
		Line:   1, LineName: homogeneousLine,
	}
	for i, comparison := range all {
		c.Groups = append(c.Groups, comparison.Model)
		for j, e := range comparison.Policies {
			if i == 0 {
				c.Series = append(c.Series, picture.Series{Name: e.Policy})
			}
			s := &c.Series[j]
			s.Values = append(s.Values, e.Ratio)
			s.Errors = append(s.Errors, e.StandardError/comparison.HomogeneousScaled)
		}
	}
	return picture.Page(1, c.NewPanel()).Write(w, format)
}
