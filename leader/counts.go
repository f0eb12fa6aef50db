package leader

import (
	"maps"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// A FamilyCount counts a family's queries since the term began. A model that is in no family is one
// of its own.
type FamilyCount struct {
	Name      string
	QoSTarget time.Duration // of its models; the largest, if they differ for a while
	// Arrived is all queries for the family or one of its variants. Ended are those that were
	// answered, or failed not by their clients' doing, and Late those of Ended that were answered
	// late or failed.
	Arrived, Ended, Late uint64
	WaitingLate          int // of those that wait for a lane now
	// Models are its versions.
	Models []ModelID
	// Classes count those of Arrived that only some of the models may answer.
	Classes []ClassCount
}

// earlier is how long a query has waited that arrived under the leader before: after a takeover,
// gateways submit all that wait, and those are no burst.
const earlier = time.Second

// familyName is the name under which the queries for a model are counted.
func (m *heldModel) familyName() string {
	if m.told != "" {
		return m.told
	}
	return m.Name
}

// familyCount returns the counts of a model's family.
func (s *State) familyCount(m *heldModel) *FamilyCount {
	name := m.familyName()
	f := s.counts[name]
	if f == nil {
		f = &FamilyCount{Name: name}
		s.counts[name] = f
	}
	return f
}

// FamilyCounts returns the counts of each family whose models the state knows, by name.
func (s *State) FamilyCounts() []FamilyCount {
	all := map[string]*FamilyCount{}
	for _, m := range s.models {
		name := m.familyName()
		f := all[name]
		if f == nil {
			f = &FamilyCount{Name: name}
			if known := s.counts[name]; known != nil {
				*f = *known
			}
			all[name] = f
		}
		f.QoSTarget = max(f.QoSTarget, m.target)
		f.Models = append(f.Models, m.ModelID)
	}
	if _, late := s.matcher.Waiting(); late > 0 {
		for _, g := range s.gateways {
			for _, q := range g.queries {
				if f := all[s.familyAsked(q)]; f != nil && s.matcher.Waits(q.matchID()) &&
					s.now-q.heardAt+q.waited > f.QoSTarget {
					f.WaitingLate++
				}
			}
		}
	}
	out := make([]FamilyCount, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		slices.SortFunc(all[name].Models, ModelID.compareTo)
		all[name].Classes = s.classesOf(name)
		out = append(out, *all[name])
	}
	return out
}

// familyAsked is the name under which a query is counted.
func (s *State) familyAsked(q *query) string {
	if q.model != nil {
		return q.model.familyName()
	}
	return q.asked.Name
}

// LaneTypes returns, by agent with lanes, its lanes' type as the matcher knows it: its own, if its
// latencies depart from its type's.
func (s *State) LaneTypes() map[names.AgentName]names.LaneType {
	all := make(map[names.AgentName]names.LaneType, len(s.members))
	for name, m := range s.members {
		all[name] = m.typ
	}
	return all
}

// Factors returns, by agent, its latency against its type's mean. The caller must not change it.
func (s *State) Factors() map[names.AgentName]float64 { return s.factors }
