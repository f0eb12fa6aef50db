package control

import (
	"time"

	"github.com/muster-serve/muster/api/names"
)

// Key is what the profile is about.
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

// ProfileKeys adds to keys what the profiles that hold for the member are about: each model that it
// holds, on lanes of its type and on its own.
func (m *Member) ProfileKeys(keys map[names.TableKey]bool) {
	general, own := m.LaneType(), m.OwnLaneType()
	for _, held := range m.GetModels() {
		keys[names.TableKey{Model: held.Key(), Type: general}] = true
		keys[names.TableKey{Model: held.Key(), Type: own}] = true
	}
}

// Duration is a duration of a message: not negative, and at most a day, so that
// whoever reckons with what another says need not think of overflow.
func Duration(ns int64) time.Duration { return min(max(time.Duration(ns), 0), 24*time.Hour) }

// LaneType is how prices and profiles name what a lane of the member is: lanes
// are alike where instance type, provider and cores are.
func (m *Member) LaneType() names.LaneType {
	return names.NewLaneType(m.GetInstanceType(), m.GetProvider(), m.GetCores())
}

// AgentName is the member's name.
func (m *Member) AgentName() names.AgentName { return names.AgentName(m.GetName()) }

// OwnLaneType is the same of a member whose latency departs from its type's.
// Where there is a price or a profile under this name it holds for the member,
// in place of that of its LaneType.
func (m *Member) OwnLaneType() names.LaneType { return m.LaneType().Own(m.AgentName()) }
