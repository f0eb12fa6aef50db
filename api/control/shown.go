package control

import "strings"

// ShownNames are the names by which people know a fleet's agents and instance types: the display
// name of an agent, and a short type for a machine that no provider names. What two agents or two
// types would share stays as it is, so that all are told apart. Its zero value knows no names.
type ShownNames struct {
	agents, types map[string]string
}

// ShownNames returns the names for people of the members.
func (v *View) ShownNames() ShownNames {
	n := ShownNames{map[string]string{}, map[string]string{}}
	for _, m := range v.GetMembers() {
		n.agents[m.GetName()] = m.GetDisplayName()
		n.types[m.GetInstanceType()] = shortType(m.GetInstanceType())
	}
	return n.withoutShared()
}

// ShownNames returns the names for people of the agents.
func (f *Fleet) ShownNames() ShownNames {
	n := ShownNames{map[string]string{}, map[string]string{}}
	for _, a := range f.GetAgents() {
		n.agents[a.GetName()] = a.GetDisplayName()
	}
	for _, t := range f.GetTypes() {
		n.types[t.GetName()] = shortType(t.GetName())
	}
	return n.withoutShared()
}

// Agent returns the name of an agent for people; its name, if it has no other or shares it.
func (n ShownNames) Agent(name string) string { return shown(n.agents, name) }

// Type returns the name of an instance type for people.
func (n ShownNames) Type(name string) string { return shown(n.types, name) }

func shown(names map[string]string, name string) string {
	if s := names[name]; s != "" {
		return s
	}
	return name
}

func (n ShownNames) withoutShared() ShownNames {
	dropShared(n.agents)
	dropShared(n.types)
	return n
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
