package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
)

// Fleet returns what is wrong with a fleet, by the status that an agent gives.
func Fleet(s *control.FleetStatus) []Finding {
	var f findings
	checkLeader(&f, s)
	checkAgents(&f, s)
	checkModels(&f, s.GetView().GetMembers())
	checkProfiles(&f, s.GetView())
	return f
}

func checkLeader(f *findings, s *control.FleetStatus) {
	l := s.GetView().GetLeadership()
	if l.GetLeader() == "" {
		f.add("leader", Warning,
			"start an agent with --leader may and a state directory that can be "+
				"written", "none; gateways choose workers alone")
		return
	}
	f.add("leader", OK, "", "%s, epoch %d",
		s.GetView().ShownNames().Agent(l.GetLeader()), l.GetEpoch())
	if limit := s.GetFluidLimit(); limit > 0 && s.GetRate() > limit {
		f.add("load", Warning, "add agents (muster plan live says which), or send less",
			"%.1f queries/s, above the limit of %.1f", s.GetRate(), limit)
	}
}

func checkAgents(f *findings, s *control.FleetStatus) {
	members, shown := s.GetView().GetMembers(), s.GetView().ShownNames()
	overdue := map[string]bool{}
	for _, a := range s.GetAgents() {
		overdue[a.GetName()] = a.GetOverdue()
	}
	versions, displays := map[string][]string{}, map[string][]string{}
	for _, m := range members {
		agent := shown.Agent(m.GetName())
		versions[m.GetSoftware()] = append(versions[m.GetSoftware()], agent)
		if d := m.GetDisplayName(); d != "" {
			displays[d] = append(displays[d], m.GetName())
		}
		if name := m.GetCertificateName(); name != "" {
			f.add("certificate", OK, "", "that of %s is named %s", agent, name)
		}
		switch {
		case overdue[m.GetName()]:
			f.add("agent", Warning, "look at that machine: muster doctor there says more",
				"%s does not end its runs in time", agent)
		case m.GetDraining():
			f.add("agent", Warning, "", "%s drains", agent)
		case len(m.GetModels()) == 0:
			f.add("agent", Warning, "muster models list says why", "%s serves no model",
				agent)
		}
		if m.GetPriceUsdPerHour() == 0 {
			f.add("price", Warning, "give --price there, or list the type in --catalogue FILE: "+
				"plans need prices", "%s, a %s, has none", agent, shown.Type(m.GetInstanceType()))
		}
		if g := m.GetGpu(); g.GetXid() > 0 || g.GetUncorrected() > 0 || len(g.GetSlowed()) > 0 {
			f.add("gpu", Warning, "docs/gpu.md says what each trouble means",
				"%s: Xid %d, %d uncorrected errors, slowed %v", agent, g.GetXid(),
				g.GetUncorrected(), g.GetSlowed())
		}
		for _, p := range m.GetProblems() {
			level, serves := Fault, "does not serve"
			if p.GetServes() {
				level, serves = Warning, "serves what it loaded before"
			}
			f.add("model", level, "correct the files there; the agent loads them again by itself",
				"%s %s %s: %s", agent, serves, versionName(p.GetModel(), p.GetVersion()),
				p.GetReason())
		}
	}
	if len(versions) > 1 {
		f.add("versions", Warning, "upgrade the others (docs/fleet.md#upgrading)",
			"%d versions of Muster: %s", len(versions), groupNames(versions))
	} else {
		f.add("versions", OK, "", "%s with %s", terminal.CountNoun(len(members), "agent"),
			strings.Join(slices.Collect(maps.Keys(versions)), ""))
	}
	for _, d := range slices.Sorted(maps.Keys(displays)) {
		if len(displays[d]) > 1 {
			f.add("names", Warning, "give each agent its own --name", "%s is the name of %s", d,
				strings.Join(displays[d], ", "))
		}
	}
}

// checkModels compares what agents say of the same version.
func checkModels(f *findings, members []*control.Member) {
	type settings struct {
		sum, text string
	}
	seen := map[names.ModelKey]map[settings][]string{}
	for _, m := range members {
		for _, held := range m.GetModels() {
			key := names.NewModelKey(held.GetName(), held.GetVersion())
			if seen[key] == nil {
				seen[key] = map[settings][]string{}
			}
			of := settings{held.GetChecksum(), fmt.Sprint(held.GetQosTargetNs(),
				held.GetQosPercentile(), held.GetDeadlineNs(), held.GetLargestBatchSize(),
				held.GetRejectLate(), held.GetSplits(), held.GetMerge(), held.GetAccuracy())}
			seen[key][of] = append(seen[key][of], m.GetName())
		}
	}
	for _, key := range slices.Sorted(maps.Keys(seen)) {
		if len(seen[key]) < 2 {
			continue
		}
		sums := map[string]bool{}
		var groups []string
		for of, agents := range seen[key] {
			sums[of.sum] = true
			groups = append(groups, strings.Join(agents, ", "))
		}
		slices.Sort(groups)
		what := "settings in model.yaml"
		if len(sums) > 1 {
			what = "files"
		}
		f.add("model", Warning, "copy the same files to all agents, or use a --model-store",
			"%s has different %s at %s", key, what, strings.Join(groups, " | "))
	}
}

// checkProfiles looks for models whose latency nobody knows on some lanes. An agent that says
// nothing of profiles gives no cause.
func checkProfiles(f *findings, v *control.View) {
	if len(v.GetProfiles()) == 0 {
		return
	}
	known := map[names.TableKey]bool{}
	for _, p := range v.GetProfiles() {
		key := p.TableKey()
		typ, _, _ := strings.Cut(string(key.Type), "@") // an agent's own profile will do
		known[names.TableKey{Model: key.Model, Type: names.LaneType(typ)}] = true
	}
	missing := map[string][]string{}
	for _, m := range v.GetMembers() {
		for _, held := range m.GetModels() {
			model := names.NewModelKey(held.GetName(), held.GetVersion())
			typ := m.LaneTypeOf(held.GetName())
			if !known[names.TableKey{Model: model, Type: typ}] {
				missing[string(model)] = append(missing[string(model)], string(typ))
			}
		}
	}
	for _, model := range slices.Sorted(maps.Keys(missing)) {
		types := missing[model]
		slices.Sort(types)
		f.add("profile", Warning, "send queries, or measure it there: muster profile",
			"%s has none for %s", model, strings.Join(slices.Compact(types), ", "))
	}
}

func versionName(model string, version int64) string {
	if version == 0 {
		return model
	}
	return string(names.NewModelKey(model, version))
}

// groupNames lists what has which value: "0.1.0: a, b; 0.2.0: c".
func groupNames(all map[string][]string) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		named := all[key]
		if len(named) > 3 {
			named = append(named[:3:3], fmt.Sprintf("%d more", len(named)-3))
		}
		parts = append(parts, cmp.Or(key, "unknown")+": "+strings.Join(named, ", "))
	}
	return strings.Join(parts, "; ")
}
