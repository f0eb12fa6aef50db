package fleetcmd

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/leader/rent"
)

// A row is a kind's line in the table.
type row struct {
	desired, serve, start, drain int
	price                        float64
}

// rowsOf counts a state by kind.
func rowsOf(s *control.FleetState) map[string]*row {
	rows := map[string]*row{}
	at := func(kind string) *row {
		if rows[kind] == nil {
			rows[kind] = &row{}
		}
		return rows[kind]
	}
	for _, c := range s.GetDesired().GetCounts() {
		at(c.Kind).desired += int(c.Count)
	}
	for _, m := range s.GetMachines() {
		kind := m.Slot
		if slot, err := rent.ParseSlotTag(m.Slot); err == nil {
			kind = slot.Kind.String()
		}
		r := at(kind)
		r.price += m.PriceUsdPerHour
		switch m.Phase {
		case "serving", "leaving":
			r.serve++
		case "draining", "drained":
			r.drain++
		default:
			r.start++
		}
	}
	for _, c := range s.GetForeign() {
		at(c.Kind + " (not rented)").serve += int(c.Count)
	}
	return rows
}

// idleReason says that nothing rents, and why; it is "" where something does.
func idleReason(s *control.FleetState) string {
	if s.GetMode() != "" || len(s.GetMachines()) > 0 {
		return ""
	}
	return fmt.Sprintf("no agent rents machines now: %s\n",
		cmp.Or(s.GetFault(), "the leader is new"))
}

// Print prints a state for people.
func Print(w io.Writer, s *control.FleetState) error {
	terminal.SanitizeFields(s)
	if why := idleReason(s); why != "" {
		_, err := io.WriteString(w, why)
		return err
	}
	var b strings.Builder
	state := "changing"
	switch {
	case !s.GetDesired().GetKnown():
		state = "no machines are desired yet"
	case s.GetExact():
		state = "as desired"
	}
	fmt.Fprintf(&b, "mode %s, %s; $%.3f/hr of at most $%.3f; version %d", s.GetMode(), state,
		s.GetPriceUsdPerHour(), s.GetLimitUsdPerHour(), s.GetDesired().GetVersion())
	if why := s.GetDesired().GetWhy(); why != "" {
		fmt.Fprintf(&b, " (%s)", why)
	}
	b.WriteString("\n")
	if rows := rowsOf(s); len(rows) > 0 {
		b.WriteString("\n")
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "instance type\tdesired\tserve\tstart\tdrain\t$/hr\t")
		for _, kind := range slices.Sorted(maps.Keys(rows)) {
			r := rows[kind]
			fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%.3f\t\n", kind, r.desired, r.serve, r.start,
				r.drain, r.price)
		}
		_ = t.Flush() // to a strings.Builder
	}
	printPlan(&b, s)
	if s.GetFault() != "" {
		fmt.Fprintf(&b, "\nthe provider's last fault: %s\n", s.GetFault())
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// printPlan prints what is proposed, what would be done and what is held.
func printPlan(b *strings.Builder, s *control.FleetState) {
	var plan control.Plan
	plan.SetRented(s)
	if lines := plan.Lines(); len(lines) > 0 {
		fmt.Fprintf(b, "\n%s\n", strings.Join(lines, "\n"))
	}
	if len(s.GetNext()) > 0 {
		b.WriteString("\nnext changes\n")
		for _, n := range s.Next {
			fmt.Fprintf(b, "  %s\n", n)
		}
	}
	if len(s.GetHeld()) > 0 {
		b.WriteString("\nheld back\n")
		for _, h := range s.Held {
			fmt.Fprintf(b, "  %s: %s%s\n", h.What, h.Why, forText(h.ForNs))
		}
	}
	if len(s.GetLacking()) > 0 {
		b.WriteString("\nunavailable\n")
		for _, l := range s.Lacking {
			fmt.Fprintf(b, "  %s: %s%s\n", l.Kind, l.Why, forText(l.ForNs))
		}
	}
}

func forText(ns int64) string {
	if ns <= 0 {
		return ""
	}
	return fmt.Sprintf(" (for another %v)", time.Duration(ns).Round(time.Second))
}
