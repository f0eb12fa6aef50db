package fleetview

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
)

// printFamilies writes the families as a table; nothing if there are none.
func printFamilies(w io.Writer, s *control.FleetStatus) error {
	if len(s.GetFamilies()) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	title, forecast := "FORECAST\t", forecastOf
	if s.GetPlacement() == nil { // nobody forecasts
		title, forecast = "", func(*control.FamilyStatus) string { return "" }
	}
	fmt.Fprintln(table,
		"\nFAMILY\tQUERIES/S\tWITHIN QOS\tACCURACY\t"+title+"BEST\tANSWERED BY")
	for _, f := range s.GetFamilies() {
		fmt.Fprintf(table, "%s\t%.1f\t%s\t%s\t%s%.4f\t%s\n", f.GetFamily(), f.GetRate(),
			formatPercent(f.GetWithinQos(), f.WithinQos != nil), accuracyOf(f), forecast(f),
			f.GetBest(),
			formatShares(f))
	}
	return table.Flush()
}

// forecastOf formats the accuracy that the placement expects, and which part of the demand it
// cannot serve, as a cell of a table.
func forecastOf(f *control.FamilyStatus) string {
	switch {
	case f.Forecast == nil:
		return "-\t"
	case f.GetServed() < .9995:
		return fmt.Sprintf("%.4f, serves %.1f %%\t", f.GetForecast(), 100*f.GetServed())
	}
	return fmt.Sprintf("%.4f\t", f.GetForecast())
}

// accuracyOf formats the effective accuracy, "-" if nothing was answered lately.
func accuracyOf(f *control.FamilyStatus) string {
	if f.Accuracy == nil {
		return "-"
	}
	return fmt.Sprintf("%.4f", f.GetAccuracy())
}

// formatShares says which part of the answers is whose: "wnd/1 61 %, wnd-int8/1 39 %"; without
// answers it lists the variants.
func formatShares(f *control.FamilyStatus) string {
	parts := make([]string, len(f.GetVariants()))
	for i, v := range f.GetVariants() {
		parts[i] = string(names.NewModelKey(v.GetModel(), v.GetVersion()))
		if f.Accuracy != nil {
			parts[i] += fmt.Sprintf(" %.0f %%", 100*v.GetShare())
		}
	}
	return strings.Join(parts, ", ")
}

// familyTable lists the families.
func familyTable(s *control.FleetStatus, width int) table {
	var all []string
	for _, f := range s.GetFamilies() {
		all = append(all, f.GetFamily())
	}
	name := min(maxWidth(all, len("FAMILY")), max(12, width/4))
	form := "%s %10s %8s %8s %8s  %s"
	if width < 60 { // what is late, and the accuracy, come first
		form = "%[1]s %8[3]s %8[4]s"
	}
	t := table{
		title: fmt.Sprintf(form, fitText("FAMILY", name), "RATE/S", "LATE 60S", "ACCURACY", "BEST",
			"ANSWERED BY"),
		weight: 1, least: 2,
		rest: func(from int) string {
			families := "more families"
			if len(all)-from == 1 {
				families = "more family"
			}
			return fmt.Sprintf("... %d %s", len(all)-from, families)
		},
	}
	for _, f := range s.GetFamilies() {
		late := "-"
		if f.WithinQos != nil {
			late = fmt.Sprintf("%.1f %%", 100*(1-f.GetWithinQos()))
		}
		t.rows = append(t.rows, row{text: fmt.Sprintf(form, fitText(f.GetFamily(), name),
			perSecond(f.GetRate()), late, accuracyOf(f), fmt.Sprintf("%.4f", f.GetBest()),
			formatShares(f))})
	}
	return t
}
