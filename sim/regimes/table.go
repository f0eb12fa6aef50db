package regimes

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Columns are the heads of the table of results.
var columns = []string{
	"regime", "policy", "late %", "p50 ms", "p99 ms", "p50 / target", "p99 / target",
	"in time/s", "in time by model %", "µs a step",
}

// manyModels is the number of models above which the table has the least and the mean share of
// theirs, not all.
const manyModels = 4

// WriteHead writes the head of the table in Markdown.
func WriteHead(w io.Writer) error {
	_, err := fmt.Fprintf(w, "| %s |\n|%s\n", strings.Join(columns, " | "),
		strings.Repeat(" --- |", len(columns)))
	return err
}

// WriteRows writes the rows of a regime's results, the first with the regime's name.
func (r *Regime) WriteRows(w io.Writer, results []*Result) error {
	for i, x := range results {
		name := ""
		if i == 0 {
			name = r.Name
		}
		cost := "–"
		if x.Steps > 0 && x.Cost > 0 {
			cost = fmt.Sprintf("%.1f", float64(x.Cost)/float64(x.Steps)/float64(time.Microsecond))
		}
		if _, err := fmt.Fprintf(w, "| %s | %s | %.2f | %.2f | %.2f | %.3f | %.3f | %.1f | %s | %s |\n",
			name, x.Policy, 100*x.LateShare(r), x.QuantileMS(r, .5), x.QuantileMS(r, .99),
			x.Quantile(r, .5), x.Quantile(r, .99), x.InTimeRate(r), x.shares(), cost); err != nil {
			return err
		}
	}
	return nil
}

// shares are the shares of the models' queries that were answered in time, in %.
func (x *Result) shares() string {
	var all []string
	least, sum := 1.0, 0.0
	for i := range x.Models {
		share := x.Models[i].InTimeShare()
		least, sum = min(least, share), sum+share
		all = append(all, fmt.Sprintf("%.1f", 100*share))
	}
	if len(all) > manyModels {
		return fmt.Sprintf("least %.1f, mean %.1f", 100*least, 100*sum/float64(len(all)))
	}
	return strings.Join(all, ", ")
}
