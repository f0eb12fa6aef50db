package control

import "fmt"

// Versions are the protocol versions that an agent or an SDK speaks, from the oldest to the newest.
// Messages carry the oldest first: code that knows only one version compares that field with its
// own.
type Versions struct{ Oldest, Newest uint32 }

// Spoken are the versions that this code speaks: the newest and at least the one before, so that a
// fleet can be upgraded agent by agent. Raise the newest when a side has to know what the other
// understands, the oldest only when old and new code would misunderstand each other; until then,
// add fields to messages, which older code ignores. What each version brought:
//
//	2  one header for an attempt
//	3  Events, views by changes, versions by range
//	4  queries that run as several parts
//	5  queries that name a family, of whose variants the leader chooses
//	6  layouts: the leader says which models an agent holds; machines that the leader rents; fewer
//	   heartbeats to gateways without queries; queries on a stream
//	7  connections for queries
var Spoken = Versions{Oldest: 3, Newest: 7}

// FamiliesVersion is the first version in which queries may name a family.
const FamiliesVersion = 5

// RestingVersion is the first version whose gateways expect few heartbeats of the leader while they
// have no queries.
const RestingVersion = 6

// StreamVersion is the first version whose agents have Queries.
const StreamVersion = 6

// QueryConnVersion is the first version whose agents accept connections for queries, which package
// queryconn describes.
const QueryConnVersion = 7

// VersionsOf returns the versions from a message's two fields; newest is 0 in messages of older
// code, which speaks one version.
func VersionsOf(oldest, newest uint32) Versions {
	return Versions{Oldest: oldest, Newest: max(oldest, newest)}
}

// Versions returns the versions that the agent speaks.
func (m *Member) Versions() Versions { return VersionsOf(m.GetProtocol(), m.GetNewestProtocol()) }

// String returns "version 2" or "versions 2 to 3".
func (v Versions) String() string {
	if v.Oldest == v.Newest {
		return fmt.Sprintf("version %d", v.Newest)
	}
	return fmt.Sprintf("versions %d to %d", v.Oldest, v.Newest)
}

// Understands returns nil if v and o have a version in common, else an error. The error is for the
// side that speaks v, and calls the side that speaks o "it".
func (v Versions) Understands(o Versions) error {
	if v.Oldest <= o.Newest && o.Oldest <= v.Newest {
		return nil
	}
	return fmt.Errorf(
		"it speaks %v of the agents' protocol, this agent %v: in one fleet there must be one "+
			"that all speak", o, v)
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
