package control

import "fmt"

// Versions of the protocol that an agent or an SDK speaks, from the oldest to the newest. One says
// both, first the oldest, for that is the one that code which knows of no range compares with its
// own.
type Versions struct{ Oldest, Newest uint32 }

// Spoken are the versions that this code speaks: its own and the one before, so that a fleet can be
// upgraded agent by agent. Raise both when old and new would misunderstand each other; until then
// messages get new fields only, which the other side does not read. What a version brought:
//
//	2  one header for an attempt
//	3  Events, views by changes, versions by range
var Spoken = Versions{Oldest: 2, Newest: 3}

// VersionsOf are the versions of which a message names the oldest and, unless 0, the newest.
func VersionsOf(oldest, newest uint32) Versions {
	return Versions{Oldest: oldest, Newest: max(oldest, newest)}
}

// Versions are those that the agent speaks.
func (m *Member) Versions() Versions { return VersionsOf(m.GetProtocol(), m.GetNewestProtocol()) }

// String is "version 2" or "versions 2 to 3".
func (v Versions) String() string {
	if v.Oldest == v.Newest {
		return fmt.Sprintf("version %d", v.Newest)
	}
	return fmt.Sprintf("versions %d to %d", v.Oldest, v.Newest)
}

// Understands says why who speaks v and who speaks o do not understand each other, nil if they do.
// The error is told to o's side as "it".
func (v Versions) Understands(o Versions) error {
	if v.Oldest <= o.Newest && o.Oldest <= v.Newest {
		return nil
	}
	return fmt.Errorf(
		"it speaks %v of the agents' protocol, this agent %v: in one fleet there must be one "+
			"that all speak", o, v)
}

// Agreed is the newest version that all the members speak, of those that have said what they are:
// what a later one brought waits until all have it. It is 0 where nobody has.
func Agreed(members []*Member) (agreed uint32) {
	for _, m := range members {
		if newest := m.Versions().Newest; m.GetLanes() > 0 && (agreed == 0 || newest < agreed) {
			agreed = newest
		}
	}
	return agreed
}
