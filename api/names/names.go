// Package names has a type for each of the names that the parts of a fleet hand each other, so that
// none is taken for another, and the only code that knows what form they have. It lies below all
// else: protocol, leader, gateways, agents and simulator name things alike. Messages, files and
// records have strings; who reads them converts once, and the names travel typed from there.
package names

import (
	"cmp"
	"slices"
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
// a type of its own, "g4dn.xlarge/cuda/4@alice". Lanes beside which others of their agent run other
// models are of another type too, "c5n.2xlarge/cpu/2+rm2". [NewLaneType], [LaneType.Beside] and
// [LaneType.Own] make them.
type LaneType string

// NewLaneType is the type of lanes that have so many cores each.
func NewLaneType(instanceType, provider string, cores uint32) LaneType {
	return LaneType(instanceType + "/" + provider + "/" + strconv.FormatUint(uint64(cores), 10))
}

// escaped are a neighbour's name without the characters that have a meaning in a type.
var escaped = strings.NewReplacer("%", "%25", "+", "%2B", "@", "%40", "/", "%2F")

// Beside is the type of lanes like t, which is no agent's own, that share their machine with lanes
// of other models. The order of the models does not matter, nor whether one is named twice.
func (t LaneType) Beside(models ...string) LaneType {
	for _, model := range Neighbours(models) {
		t += "+" + LaneType(escaped.Replace(model))
	}
	return t
}

// IsShared reports whether the type is of lanes that share their machine with other models.
func (t LaneType) IsShared() bool { return strings.Contains(string(t), "+") }

// Neighbours are the models in order, each once.
func Neighbours(models []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(models)))
}

// Own is the type of an agent's lanes alone, that are of type t otherwise.
func (t LaneType) Own(agent AgentName) LaneType { return t + "@" + LaneType(agent) }

// Partition is the type of lanes of so many cores on an agent whose lanes are of type t otherwise,
// beside other models, and with ways of the last-level cache of their own if ways is above 0:
// "c5n.2xlarge/cpu/2+rm2/4w".
func (t LaneType) Partition(cores int, beside []string, ways int) LaneType {
	text, own, owned := strings.Cut(string(t), "@")
	if i := strings.LastIndexByte(text, '/'); i >= 0 {
		text = text[:i]
	}
	of := LaneType(text + "/" + strconv.Itoa(cores)).Beside(beside...)
	if ways > 0 {
		of += LaneType("/" + strconv.Itoa(ways) + "w")
	}
	if owned {
		of += "@" + LaneType(own)
	}
	return of
}

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
