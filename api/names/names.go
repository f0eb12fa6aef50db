// Package names has a type for each of the names that the parts of a fleet hand each other, so that
// none is taken for another, and the only code that knows what form they have. It lies below all
// else: protocol, leader, gateways, agents and simulator name things alike. Messages, files and
// records have strings; who reads them converts once, and the names travel typed from there.
package names

import (
	"cmp"
	"strconv"
	"strings"
)

// An AgentName is an agent's name, unique among the members of a fleet: what its settings say, and
// gossip has accepted. It has no form to know; "" is no agent.
type AgentName string

// A ModelKey names a version of a model where one string must do: "ncf/1". [NewModelKey] makes it
// and [ModelKey.Split] takes it apart. A simulation that has no versions has the names alone.
type ModelKey string

// NewModelKey is the key of a version of a model.
func NewModelKey(name string, version int64) ModelKey {
	return ModelKey(name + "/" + strconv.FormatInt(version, 10))
}

// Split returns what NewModelKey was given; a name alone has version 0.
func (k ModelKey) Split() (name string, version int64) {
	if i := strings.LastIndexByte(string(k), '/'); i >= 0 {
		if version, err := strconv.ParseInt(string(k[i+1:]), 10, 64); err == nil {
			return string(k[:i]), version
		}
	}
	return string(k), 0
}

// A LaneType is how prices and profiles name what a lane is: "g4dn.xlarge/cuda/4", for lanes are
// alike where instance type, provider and cores are. A simulation that has one kind of lane for
// each instance type has the type's name alone. An agent whose latency departs from its type's has
// a type of its own, "g4dn.xlarge/cuda/4@alice". [NewLaneType] and [LaneType.Own] make them.
type LaneType string

// NewLaneType is the type of lanes that have so many cores each.
func NewLaneType(instanceType, provider string, cores uint32) LaneType {
	return LaneType(instanceType + "/" + provider + "/" + strconv.FormatUint(uint64(cores), 10))
}

// Own is the type of an agent's lanes alone, that are of type t otherwise.
func (t LaneType) Own(agent AgentName) LaneType { return t + "@" + LaneType(agent) }

// IsOwn reports whether the type is one agent's alone.
func (t LaneType) IsOwn() bool { return strings.Contains(string(t), "@") }

// A TableKey names the latencies of a model on a type of lanes.
type TableKey struct {
	Model ModelKey
	Type  LaneType
}

// Compare orders keys by model, then by type.
func (k TableKey) Compare(o TableKey) int {
	return cmp.Or(cmp.Compare(k.Model, o.Model), cmp.Compare(k.Type, o.Type))
}

// Strings are names as messages and texts have them.
func Strings[Name ~string](all []Name) []string {
	texts := make([]string, len(all))
	for i, name := range all {
		texts[i] = string(name)
	}
	return texts
}
