package lead

import (
	"slices"
	"time"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/profiles"
)

// A tableNeed says of which profile the latencies of a model on a type of lanes are.
type tableNeed struct {
	key     profiles.Key
	target  time.Duration
	largest int
	factor  float64 // by which lanes of one agent's own type are slower
	family  string
	// Of the lanes of a partition: the model's profile on the agent's own lanes, and how many times
	// as many cores these have, at least 1.
	whole      profiles.Key
	coresRatio float64
}

// tableNeeds are the latencies that a snapshot of the fleet is to have.
type tableNeeds map[names.TableKey]tableNeed

// addPartitions adds the latencies of the models of a layout with partitions, on the lanes of these
// partitions. The member's own lanes are of type typ, and n has the latencies of the models that it
// could hold there.
func (n tableNeeds) addPartitions(c *profiles.Catalogue, m *control.Member, typ names.LaneType,
	l place.Layout, could []*control.Model) {
	if l.IsOnAllLanes() {
		return
	}
	lanes := describeLanes(m, l)
	for _, model := range could {
		key := model.Key()
		need := n[names.TableKey{Model: key, Type: typ}]
		need.whole, need.key = need.key, members.KeyOf(c, lanes, model)
		for i := range l.Partitions {
			if p := &l.Partitions[i]; slices.Contains(p.Models, key) {
				need.coresRatio = max(1, float64(m.GetCores())/float64(p.Cores))
				n[names.TableKey{Model: key, Type: l.LaneType(i, typ)}] = need
			}
		}
	}
}

// describeLanes returns what a member with a layout would say of its lanes, from which the keys of
// profiles follow. A layout without partitions has as many lanes as the member has now.
func describeLanes(m *control.Member, l place.Layout) *control.Member {
	out := &control.Member{
		InstanceType: m.GetInstanceType(), Provider: m.GetProvider(), Executor: m.GetExecutor(),
		Lanes: m.GetLanes(), Cores: m.GetCores(),
	}
	if l.IsOnAllLanes() {
		return out
	}
	out.Lanes = 0
	for _, p := range l.Partitions {
		part := &control.Part{
			First: out.Lanes, Lanes: uint32(p.Lanes), Cores: uint32(p.Cores), Ways: uint32(p.Ways),
		}
		for _, key := range p.Models {
			model, _ := key.Split()
			part.Models = append(part.Models, model)
		}
		out.Parts, out.Lanes = append(out.Parts, part), out.Lanes+part.Lanes
	}
	return out
}

// layoutOf returns what a member holds by its own description: the newest versions of its models,
// each on the lanes that run it.
func layoutOf(m *control.Member) place.Layout {
	newest := slices.DeleteFunc(slices.Clone(m.GetModels()),
		func(held *control.Model) bool { return !held.GetNewest() })
	var l place.Layout
	for _, part := range m.GetParts() {
		p := place.Partition{
			Lanes: int(part.GetLanes()), Cores: int(m.CoresOf(part)), Ways: int(part.GetWays()),
		}
		for _, held := range newest {
			if slices.Contains(part.GetModels(), held.GetName()) {
				p.Models = append(p.Models, held.Key())
			}
		}
		if len(p.Models) > 0 {
			l.Partitions = append(l.Partitions, p)
		}
	}
	if len(m.GetParts()) == 0 || l.Validate() != nil {
		return place.NewLayout(keysOf(newest)...)
	}
	return l
}

// wantedLayouts are, by agent, the layouts with partitions that a person has pinned it to and that
// the newest placement wants of it.
func (s *placementPump) wantedLayouts() map[names.AgentName][]place.Layout {
	if s.replanner == nil {
		return nil
	}
	memory := s.replanner.Memory()
	listed := memory.Pins
	if n := len(memory.Placements); n > 0 {
		listed = append(listed, memory.Placements[n-1].Agents...)
	}
	all := map[names.AgentName][]place.Layout{}
	for _, a := range listed {
		if !a.Layout.IsOnAllLanes() {
			all[a.Agent] = append(all[a.Agent], a.Layout)
		}
	}
	return all
}
