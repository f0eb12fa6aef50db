package day

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/muster-serve/muster/sim/renting"
)

// Text writes the days of one or several forms for people: the first one's by hours, and all of
// them side by side. speed is how many seconds of the day a second of the run was.
func Text(w io.Writer, all []*Result, speed float64) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(cells ...any) {
		for _, c := range cells {
			fmt.Fprintf(t, "%v\t", c)
		}
		fmt.Fprintln(t)
	}
	first := all[0]
	fmt.Fprintf(&b, "%s:\n", first.describe())
	row("hour", "queries/s", "machines", "$", "in time", "accuracy", "use")
	line := func(name string, h *renting.Totals) {
		row(name, fmt.Sprintf("%.1f", h.Rate), fmt.Sprintf("%.1f", h.Machines),
			fmt.Sprintf("%.2f", h.Dollars), fmt.Sprintf("%.2f %%", 100*h.InTime),
			fmt.Sprintf("%.4f", h.Accuracy), fmt.Sprintf("%.0f %%", 100*h.Use))
	}
	for _, h := range first.Hours() {
		line(fmt.Sprintf("%.0f", h.StartH), &h)
	}
	line("all", &first.Totals)
	t.Flush()
	fmt.Fprintf(&b, "%d changes of what is rented, %d machines launched, %d returned", first.Changes,
		first.Launches, first.Returns)
	if first.SpotTaken > 0 {
		fmt.Fprintf(&b, ", %d taken by the provider", first.SpotTaken)
	}
	if first.Placements > 0 {
		fmt.Fprintf(&b, "; %d placements, %d changes of what machines hold", first.Placements,
			first.HoldingChanges)
	}
	b.WriteString("\n")
	for _, f := range first.Faults {
		fmt.Fprintf(&b, "%s: it hit %s", f.Fault, f.Agent)
		if f.NextLeader != "" {
			fmt.Fprintf(&b, ", and %s led %.0f ms later", f.NextLeader, f.WithoutLeaderMS)
		}
		b.WriteString("\n")
	}
	if len(all) > 1 {
		b.WriteString("\n")
		row("form", "$", "in time", "accuracy", "lowest", "use", "machines", "changes")
		for _, r := range all {
			row(r.Form, fmt.Sprintf("%.2f", r.Dollars), fmt.Sprintf("%.2f %%", 100*r.InTime),
				fmt.Sprintf("%.4f", r.Accuracy), fmt.Sprintf("%.4f", r.Floor),
				fmt.Sprintf("%.0f %%", 100*r.Use), fmt.Sprintf("%.1f", r.Machines),
				r.Changes+r.HoldingChanges)
		}
		t.Flush()
		for _, r := range all {
			fmt.Fprintf(&b, "%s\n", r.describe())
		}
	}
	fmt.Fprintf(&b, "%d queries: one second of each %.0f of the day; leaders count the others. "+
		"Queries and elections last %.0f times as long a part of the day.\n", first.Queries, speed,
		speed)
	_, err := io.WriteString(w, b.String())
	return err
}

// describe says what a form is.
func (r *Result) describe() string {
	switch r.Form {
	case Joint:
		return "joint: machines are rented, and variants placed on them"
	case Renting:
		return "renting: machines are rented, and hold the best variants"
	case Placement:
		return "placement: a fixed fleet for the mean load, " + r.Fleet + ", and variants placed on it"
	case Tracking:
		return "tracking: as many of " + r.Fleet + " as an autoscaler has, which keeps them busy for " +
			"60 % of their time; they hold the best variants"
	}
	return "fixed: a fixed fleet for the peak, " + r.Fleet + ", that holds the best variants"
}
