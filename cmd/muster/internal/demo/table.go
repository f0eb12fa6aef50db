package demo

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/muster-serve/muster/client/bench"
)

// A row is one line of the closing table: what served, and how.
type row struct {
	what   string
	report bench.ModelReport
}

// writeTable writes the closing table.
func writeTable(w io.Writer, rows []row) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SEEN (EMULATED)\tqueries\tin time\tp50 ms\tp99 ms\trefused")
	for _, r := range rows {
		m := r.report
		fmt.Fprintf(t, "%s\t%d\t%s\t%.0f\t%.0f\t%d\n", r.what, m.Queries,
			bench.Percent(m.QoSSatisfaction), m.LatencyMS.P50, m.LatencyMS.P99, countRefusals(m))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}
