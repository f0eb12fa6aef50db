package regimes

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// columns are the heads of the table of results.
var columns = []string{
	"regime", "policy", "late %", "p50 ms", "p99 ms", "p50 / t", "p99 / t", "in time/s",
	"of each model %", "µs/step",
}

// manyModels is the number of models above which the table has the least and the mean share of
// theirs, not all.
const manyModels = 4

// WriteHead writes the head of the table in Markdown.
func WriteHead(w io.Writer) error { return writeHead(w, columns) }

func writeHead(w io.Writer, columns []string) error {
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
		if _, err := fmt.Fprintf(w,
			"| %s | %s | %.2f | %.2f | %.2f | %.3f | %.3f | %.1f | %s | %s |\n",
			name, x.Policy, 100*x.LateShare(r), x.QuantileMS(r, .5), x.QuantileMS(r, .99),
			x.Quantile(r, .5), x.Quantile(r, .99), x.InTimeRate(r), x.formatShares(),
			cost); err != nil {
			return err
		}
	}
	return nil
}

// WriteBreaksHead writes the head of the table of breaks.
func WriteBreaksHead(w io.Writer) error {
	return writeHead(w, []string{"regime", "baseline", "figure", "its", Subject + "'s"})
}

// WriteBreaks writes the rows of a regime's breaks.
func (r *Regime) WriteBreaks(w io.Writer, all []Break) error {
	for _, b := range all {
		if _, err := fmt.Fprintf(w, "| %s | %s | %s | %.4g | %.4g |\n", r.Name, b.Policy, b.Figure,
			b.Theirs, b.Ours); err != nil {
			return err
		}
	}
	return nil
}

// formatShares are the shares of the models' queries that were answered in time, in %.
func (x *Result) formatShares() string {
	var all []string
	least, sum := 1.0, 0.0
	for i := range x.Models {
		share := x.Models[i].InTimeShare()
		least, sum = min(least, share), sum+share
		all = append(all, fmt.Sprintf("%.1f", 100*share))
	}
	if len(all) > manyModels {
		return fmt.Sprintf("≥ %.1f, mean %.1f", 100*least, 100*sum/float64(len(all)))
	}
	return strings.Join(all, ", ")
}
