package fleetview

import (
	"cmp"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/muster-serve/muster/api/control"
)

// placementOf says in a line which placement the agents should hold; "" if the leader places none.
func placementOf(s *control.FleetStatus) string {
	p := s.GetPlacement()
	if p == nil {
		return ""
	}
	line := fmt.Sprintf("placement %d", p.GetVersion())
	if p.GetPaused() {
		line += ", paused"
	}
	if p.GetReason() != "" {
		// It may long be past: a placement stands until there is cause for another one.
		line += "; why it was made: " + p.GetReason()
	}
	return line
}

// printPlacement writes what the agents hold as a table; nothing if the leader places no models.
func printPlacement(w io.Writer, s *control.FleetStatus) error {
	if s.GetPlacement() == nil {
		return nil
	}
	fmt.Fprintf(w, "\n%s\n", placementOf(s))
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "AGENT\tHOLDS\tWANTED\tWAITS FOR")
	for _, a := range s.GetPlacement().GetAgents() {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", a.GetAgent(), a.GetHolds(), wantedOf(a),
			cmp.Or(a.GetWaits(), "-"))
	}
	return table.Flush()
}

func wantedOf(a *control.PlacementStatus_AgentPlaced) string {
	wanted := cmp.Or(a.GetWanted(), "-")
	if a.GetPinned() {
		wanted += " (pinned)"
	}
	return wanted
}

// placementTable lists the agents that do not hold what they should.
func placementTable(s *control.FleetStatus, width int) table {
	var all []string
	for _, a := range s.GetPlacement().GetAgents() {
		all = append(all, a.GetAgent())
	}
	name := min(maxWidth(all, len("AGENT")), max(12, width/3))
	form := "%s  %s -> %s  %s"
	t := table{
		title:  fmt.Sprintf(form, fitText("AGENT", name), "HOLDS", "WANTED", "WAITS FOR"),
		weight: 1, least: 2,
		rest: func(int) string { return "... more agents" },
	}
	for _, a := range s.GetPlacement().GetAgents() {
		if a.GetWanted() == "" && !a.GetPinned() {
			continue
		}
		t.rows = append(t.rows, row{text: fmt.Sprintf(form, fitText(a.GetAgent(), name),
			a.GetHolds(),
			wantedOf(a), a.GetWaits())})
	}
	return t
}
