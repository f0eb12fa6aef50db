package fleetview

import (
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/lateness"
)

// showNames returns a copy of s for people, with the names by which they know agents and types.
func showNames(s *control.FleetStatus) *control.FleetStatus {
	shown, names := proto.CloneOf(s), s.GetView().ShownNames()
	agent := func(name *string) { *name = names.Agent(*name) }
	if l := shown.GetView().GetLeadership(); l != nil {
		agent(&l.Leader)
		agent(&l.Successor)
	}
	for _, m := range shown.GetView().GetMembers() {
		agent(&m.Name)
		m.InstanceType = names.Type(m.InstanceType)
	}
	for _, a := range shown.GetAgents() {
		agent(&a.Name)
	}
	for _, a := range shown.GetPlacement().GetAgents() {
		agent(&a.Agent)
	}
	for _, m := range shown.GetMissed().GetMissed() {
		agent(&m.Agent)
	}
	for i, d := range shown.GetDecisions() {
		if before, name, found := strings.Cut(d, " agent="); found {
			name, after, _ := strings.Cut(name, " ")
			agent(&name)
			shown.Decisions[i] = strings.TrimSuffix(before+" agent="+name+" "+after, " ")
		}
	}
	return shown
}

// ShownMissed is what s says of why queries were late, with the names for people; nil if it says
// nothing.
func ShownMissed(s *control.FleetStatus) *lateness.Summary {
	return showNames(s).GetMissed().Summary()
}
