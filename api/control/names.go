package control

import (
	"time"

	"github.com/muster-serve/muster/api/names"
)

// Key returns the profile's key.
func (p *Profile) Key() names.TableKey {
	return names.TableKey{
		Model: names.ModelKey(p.GetModel()), Type: names.LaneType(p.GetType()),
	}
}

// Key names the version of the model that is asked for.
func (m *ModelDemand) Key() names.ModelKey {
	return names.NewModelKey(m.GetModel(), m.GetVersion())
}

// Key names the version of the model.
func (m *Model) Key() names.ModelKey { return names.NewModelKey(m.GetName(), m.GetVersion()) }

// ProfileKeys adds to keys the keys of all profiles that can apply to the member: for each model
// that it holds, that of its LaneType and that of its OwnLaneType.
func (m *Member) ProfileKeys(keys map[names.TableKey]bool) {
	general, own := m.LaneType(), m.OwnLaneType()
	for _, held := range m.GetModels() {
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
