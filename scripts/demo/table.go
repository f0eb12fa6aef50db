package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// A row is one line of the closing table.
type row struct {
	model, what string
	qps         float64
	p50, p99    float64 // ms
	load        string  // the columns "in time" and "answered"; empty if there was no load
}

// loadRow is the row of a model under load.
func loadRow(m bench.ModelReport, what string) row {
	r := row{
		model: m.Model, what: what, qps: m.OfferedQPS, p50: m.LatencyMS.P50, p99: m.LatencyMS.P99,
	}
	r.load = fmt.Sprintf("%s within %g ms\t%d of %d", percent(m.QoSSatisfaction), m.QoSTargetMS,
		m.Answered, m.Queries)
	if n := harness.Refusals(m); n > 0 {
		r.load += fmt.Sprintf(", %d refused", n)
	}
	return r
}

// timesRow is the row of queries that were sent one at a time, which took these times.
func timesRow(model, what string, times []time.Duration) row {
	times = slices.Sorted(slices.Values(times))
	return row{
		model: model, what: what, qps: 1 / mean(times).Seconds(),
		p50: milliseconds(quantile(times, 0.5)), p99: milliseconds(quantile(times, 0.99)),
	}
}

// writeTable writes the closing table. A model's name stands in the first of its rows only.
func writeTable(w io.Writer, rows []row) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "WHAT WAS SHOWN\t\tqueries/s\tp50 ms\tp99 ms\tin time\tanswered")
	last := ""
	for _, r := range rows {
		model := r.model
		if model == last {
			model = ""
		}
		last = r.model
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", model, r.what, figures(r.qps), figures(r.p50),
			figures(r.p99), cmp.Or(r.load, "\t"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(b.String()) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// figures writes x with three significant figures, or as a whole number from 100 on.
func figures(x float64) string {
	if math.IsInf(x, 1) { // of queries that failed
		return "∞"
	}
	if x >= 100 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.3g", x)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// quantile is the least of the sorted times that is not exceeded by the share q of them.
func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

func mean(times []time.Duration) time.Duration {
	var sum time.Duration
	for _, t := range times {
		sum += t
	}
	return sum / time.Duration(len(times))
}

// percent writes a share with one decimal. It rounds down, so that only a share of 1 is 100.0 %.
func percent(share float64) string {
	return fmt.Sprintf("%.1f %%", math.Floor(1000*share+1e-9)/10)
}
