package control

import (
	"cmp"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// TableKey returns the profile's key.
func (p *Profile) TableKey() names.TableKey {
	return names.TableKey{
		Model: names.ModelKey(p.GetModel()), Type: names.LaneType(p.GetType()),
	}
}

// isLike reports whether two profiles of one key say the same.
func (p *Profile) isLike(o *Profile) bool {
	return string(p.GetTable()) == string(o.GetTable()) && p.GetRowsPerUser() == o.GetRowsPerUser() &&
		p.GetRowsPerValue() == o.GetRowsPerValue() &&
		string(p.GetWorkTable()) == string(o.GetWorkTable())
}

// Key names the version of the model that is asked for.
func (m *ModelDemand) Key() names.ModelKey {
	return names.NewModelKey(m.GetModel(), m.GetVersion())
}

// Key names the version of the model.
func (m *Model) Key() names.ModelKey { return names.NewModelKey(m.GetName(), m.GetVersion()) }

// ProfileKeys adds to keys the keys of all profiles that can apply to the member: for each model
// that it holds, those of the types of the lanes that run it.
func (m *Member) ProfileKeys(keys map[names.TableKey]bool) {
	for _, held := range m.GetModels() {
		general := m.LaneTypeOf(held.GetName())
		own := general.Own(m.AgentName())
		keys[names.TableKey{Model: held.Key(), Type: general}] = true
		keys[names.TableKey{Model: held.Key(), Type: own}] = true
	}
}

// Duration converts nanoseconds from a message to a duration in [0, 24 h], so that code that
// computes with values of other machines cannot overflow.
func Duration(ns int64) time.Duration { return min(max(time.Duration(ns), 0), 24*time.Hour) }

// LaneType names the kind of the member's lanes in prices and profiles: "instance
// type/provider/cores". Lanes with the same three are alike.
func (m *Member) LaneType() names.LaneType {
	return names.NewLaneType(m.GetInstanceType(), m.GetProvider(), m.GetCores())
}

// AgentName is the member's name.
func (m *Member) AgentName() names.AgentName { return names.AgentName(m.GetName()) }

// OwnLaneType names the lanes of this one member. The leader uses it for a member whose latency
// differs from that of its type: a price or profile with this name applies to the member in place
// of that of its LaneType.
func (m *Member) OwnLaneType() names.LaneType { return m.LaneType().Own(m.AgentName()) }

// PartOf is the part of the member's lanes that run a model; nil if all lanes run all models, or
// none runs this one.
func (m *Member) PartOf(model string) *Part {
	for _, p := range m.GetParts() {
		if slices.Contains(p.GetModels(), model) {
			return p
		}
	}
	return nil
}

// Beside are the models that the member's lanes run which do not run a model of the part's.
func (m *Member) Beside(part *Part) (models []string) {
	for _, p := range m.GetParts() {
		if p != part {
			models = append(models, p.GetModels()...)
		}
	}
	return names.Neighbours(models)
}

// LaneTypeOf is the type of the member's lanes that run a model: LaneType, unless only a part of
// them does.
func (m *Member) LaneTypeOf(model string) names.LaneType {
	part := m.PartOf(model)
	if part == nil {
		return m.LaneType()
	}
	return m.LaneType().Partition(int(m.CoresOf(part)), m.Beside(part), int(part.GetWays()))
}

// CoresOf is the number of cores of each lane of a part, which may be nil.
func (m *Member) CoresOf(part *Part) uint32 { return cmp.Or(part.GetCores(), m.GetCores()) }
