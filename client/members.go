package client

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
)

// members is what a gateway knows of a fleet, from one View, by what queries
// ask for. It does not change.
type members struct {
	view   *control.View
	byName map[names.AgentName]*control.Member
	models map[string]*fleetModel
}

// A fleetModel is a model that members hold.
type fleetModel struct {
	newest   int64 // what queries without a version get
	leaving  int64 // the newest of members that drain; newest where all do
	versions map[int64]*fleetVersion
}

// A fleetVersion is a version of a model that members hold.
type fleetVersion struct {
	qosTarget time.Duration
	deadline  time.Duration
	largest   int // batch size
	holders   int
	draining  int // of the holders
}

func newMembers(v *control.View) *members {
	m := &members{
		view: v, byName: map[names.AgentName]*control.Member{}, models: map[string]*fleetModel{},
	}
	for _, member := range v.GetMembers() {
		m.byName[member.AgentName()] = member
		for _, held := range member.GetModels() {
			m.add(member, held)
		}
	}
	for _, model := range m.models {
		model.newest = cmp.Or(model.newest, model.leaving)
	}
	return m
}

// next is what is known from the view v after that of m.
func (m *members) next(v *control.View) *members {
	if slices.Equal(m.view.GetMembers(), v.GetMembers()) {
		return &members{view: v, byName: m.byName, models: m.models}
	}
	return newMembers(v)
}

// overlap reports whether a member is in both.
func (m *members) overlap(other *members) bool {
	for name := range m.byName {
		if other.byName[name] != nil {
			return true
		}
	}
	return false
}

func (m *members) add(member *control.Member, held *control.Model) {
	model := m.models[held.GetName()]
	if model == nil {
		model = &fleetModel{versions: map[int64]*fleetVersion{}}
		m.models[held.GetName()] = model
	}
	switch {
	case held.GetNewest() && member.GetDraining():
		model.leaving = max(model.leaving, held.GetVersion())
	case held.GetNewest():
		model.newest = max(model.newest, held.GetVersion())
	}
	v := model.versions[held.GetVersion()]
	if v == nil {
		v = &fleetVersion{}
		model.versions[held.GetVersion()] = v
	}
	v.qosTarget = max(v.qosTarget, time.Duration(held.GetQosTargetNs()))
	v.deadline = max(v.deadline, time.Duration(held.GetDeadlineNs()))
	v.largest = max(v.largest, int(held.GetLargestBatchSize()))
	v.holders++
	if member.GetDraining() {
		v.draining++
	}
}

// find returns what a query names, and the version in numbers: 0 for the
// newest.
func (m *members) find(name, version string) (*fleetVersion, int64, error) {
	model := m.models[name]
	if model == nil {
		return nil, 0, status.Errorf(codes.NotFound, "no agent holds model %.255q; they hold: %s",
			name, cmp.Or(strings.Join(slices.Sorted(maps.Keys(m.models)), ", "), "none"))
	}
	number := int64(0)
	v := model.versions[model.newest]
	if version != "" {
		var err error
		if number, err = strconv.ParseInt(version, 10, 64); err != nil || number <= 0 {
			return nil, 0, status.Errorf(codes.InvalidArgument,
				"version %q of model %q, want a whole number above 0", version, name)
		}
		v = model.versions[number]
	}
	if v == nil {
		var there []string
		for number := range model.versions {
			there = append(there, strconv.FormatInt(number, 10))
		}
		slices.Sort(there)
		return nil, 0, status.Errorf(codes.NotFound,
			"no agent holds version %q of model %q; there are: %s", version, name,
			strings.Join(there, ", "))
	}
	if v.draining == v.holders {
		return nil, 0, status.Errorf(codes.Unavailable,
			"all agents that hold model %q (%d) are draining", name, v.holders)
	}
	return v, number, nil
}

// profileName is what profiles call what q asks for.
func (m *members) profileName(q *query) names.ModelKey {
	version := q.version
	if model := m.models[q.model]; version == 0 && model != nil {
		version = model.newest
	}
	return names.NewModelKey(q.model, version)
}

// FleetExtension is what an agent of a fleet says of itself in its server
// metadata: it speaks [control], and knows the other members.
const FleetExtension = "muster_fleet"
