package fleetview

import (
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/lateness"
)

// showNames returns a copy of s for people: with the display names of agents that no two agents
// share in place of their names, and with short types of machines that no provider names. What two
// share stays as it is, so that all are told apart. Agents of before have no display names.
func showNames(s *control.FleetStatus) *control.FleetStatus {
	shown := proto.CloneOf(s)
	agents, types := map[string]string{}, map[string]string{}
	for _, m := range s.GetView().GetMembers() {
		agents[m.GetName()] = m.GetDisplayName()
		types[m.GetInstanceType()] = shortType(m.GetInstanceType())
	}
	dropShared(agents)
	dropShared(types)
	agent := func(name *string) {
		if display := agents[*name]; display != "" {
			*name = display
		}
	}
	if l := shown.GetView().GetLeadership(); l != nil {
		agent(&l.Leader)
		agent(&l.Successor)
	}
	for _, m := range shown.GetView().GetMembers() {
		agent(&m.Name)
		if short := types[m.InstanceType]; short != "" {
			m.InstanceType = short
		}
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

// dropShared removes the entries whose values others have, too, or are other entries' keys.
func dropShared(names map[string]string) {
	count := map[string]int{}
	for name, shown := range names {
		count[shown]++
		if shown != name {
			count[name]++
		}
	}
	for name, shown := range names {
		if count[shown] > 1 {
			delete(names, name)
		}
	}
}

// shortType is the type of a machine that no provider names by its cores alone, "local-8c", and
// other types as they are. profiles.Local makes these types of the CPU's name, which fills a line.
func shortType(typ string) string {
	rest, local := strings.CutPrefix(typ, "local:")
	at := strings.LastIndexByte(rest, ':')
	if !local || at < 0 {
		return typ
	}
	return "local-" + rest[at+1:] + "c"
}
