package control

import (
	"strconv"
	"time"
)

// ModelKey is how a version of a model is named where one string must do, in
// [Profile] and in the leader: "name/version".
func ModelKey(name string, version int64) string {
	return name + "/" + strconv.FormatInt(version, 10)
}

// A ProfileKey says what a [Profile] is about.
type ProfileKey struct {
	Model    string // as [ModelKey] names it
	LaneType string // of a member, or its own
}

// Key is what the profile is about.
func (p *Profile) Key() ProfileKey { return ProfileKey{Model: p.GetModel(), LaneType: p.GetType()} }

// ProfileKeys adds to keys what the profiles that hold for the member are about: each model that it
// holds, on lanes of its type and on its own.
func (m *Member) ProfileKeys(keys map[ProfileKey]bool) {
	general, own := m.LaneType(), m.OwnLaneType()
	for _, held := range m.GetModels() {
		model := ModelKey(held.GetName(), held.GetVersion())
		keys[ProfileKey{model, general}], keys[ProfileKey{model, own}] = true, true
	}
}

// Duration is a duration of a message: not negative, and at most a day, so that
// whoever reckons with what another says need not think of overflow.
func Duration(ns int64) time.Duration { return min(max(time.Duration(ns), 0), 24*time.Hour) }

// LaneType is how prices and profiles name what a lane of the member is: lanes
// are alike where instance type, provider and cores are.
func (m *Member) LaneType() string {
	return m.GetInstanceType() + "/" + m.GetProvider() + "/" +
		strconv.FormatUint(uint64(m.GetCores()), 10)
}

// OwnLaneType is the same of a member whose latency departs from its type's.
// Where there is a price or a profile under this name it holds for the member,
// in place of that of its LaneType.
func (m *Member) OwnLaneType() string { return m.LaneType() + "@" + m.GetName() }
