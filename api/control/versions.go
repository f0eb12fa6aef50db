package control

import "fmt"

// Versions are the protocol versions that an agent or an SDK speaks, from the oldest to the newest.
// Messages carry the oldest first: code that knows only one version compares that field with its
// own.
type Versions struct{ Oldest, Newest uint32 }

// Spoken are the versions that this code speaks. Raise the newest when a side has to know what the
// other understands, and then keep at least the version before, so that a fleet can be upgraded
// agent by agent. Raise the oldest only when old and new code would misunderstand each other, or to
// remove code for old peers. Until then, add fields to messages, which older code ignores.
var Spoken = Versions{Oldest: 7, Newest: VersionRoles}

// VersionRoles is the first version in which a query may have its user's inputs once beside many
// candidates, and inputs of several values a row: agents and gateways that speak it know the roles
// of a model's inputs.
const VersionRoles = 8

// VersionsOf returns the versions from a message's two fields. newest is 0 in messages of code that
// speaks one version and has no field for the newest, which was before version 3.
func VersionsOf(oldest, newest uint32) Versions {
	return Versions{Oldest: oldest, Newest: max(oldest, newest)}
}

// Versions returns the versions that the agent speaks.
func (m *Member) Versions() Versions { return VersionsOf(m.GetProtocol(), m.GetNewestProtocol()) }

// KnowsRoles reports whether the agent speaks a version of [VersionRoles] or later.
func (m *Member) KnowsRoles() bool { return m.Versions().Newest >= VersionRoles }

// String returns "version 2" or "versions 2 to 3".
func (v Versions) String() string {
	if v.Oldest == v.Newest {
		return fmt.Sprintf("version %d", v.Newest)
	}
	return fmt.Sprintf("versions %d to %d", v.Oldest, v.Newest)
}

// Understands returns nil if v and o have a version in common, else an error that says which side to
// upgrade. The error is for the side that speaks v, and calls the side that speaks o "it".
func (v Versions) Understands(o Versions) error {
	behind, lacks := "it", v.Oldest
	switch {
	case o.Newest < v.Oldest:
	case v.Newest < o.Oldest:
		behind, lacks = "this agent", o.Oldest
	default:
		return nil
	}
	return fmt.Errorf("it speaks %v of the agents' protocol, this agent %v: upgrade %s to a version "+
		"of Muster that speaks version %d", o, v, behind, lacks)
}

// Agreed returns the newest version that all members speak that have described themselves; 0 if
// none has. Features of a later version must wait until all members have it.
func Agreed(members []*Member) (agreed uint32) {
	for _, m := range members {
		if newest := m.Versions().Newest; m.GetLanes() > 0 && (agreed == 0 || newest < agreed) {
			agreed = newest
		}
	}
	return agreed
}
