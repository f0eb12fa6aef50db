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
	"github.com/muster-serve/muster/api/oip"
)

// members indexes one View of a fleet by model and version. It is immutable.
type members struct {
	view   *control.View
	byName map[names.AgentName]*control.Member
	models map[string]*fleetModel
}

// A fleetModel is a model that members hold.
type fleetModel struct {
	newest   int64 // version for queries that name none
	leaving  int64 // the newest version on draining members, which is newest if all drain
	versions map[int64]*fleetVersion
}

// A fleetVersion is a version of a model that members hold.
type fleetVersion struct {
	qosTarget time.Duration
	deadline  time.Duration
	largest   int // largest batch size
	holders   int
	draining  int // how many of the holders drain
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

// next returns the members of v, the view that follows m's. It reuses the parts of m that have not
// changed.
func (m *members) next(v *control.View) *members {
	if slices.Equal(m.view.GetMembers(), v.GetMembers()) {
		return &members{view: v, byName: m.byName, models: m.models}
	}
	return newMembers(v)
}

// overlap reports whether m and other have a member in common.
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

// find returns the version of a model that a query names, and its number, 0 if the query asks for
// the newest.
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
		return nil, 0, oip.Explain(status.Newf(codes.Unavailable,
			"all agents that hold model %q (%d) are draining", name, v.holders), "draining", 0).Err()
	}
	return v, number, nil
}

// newest is the version of a model for queries that name none, 0 if nobody holds the model.
func (m *members) newest(model string) int64 {
	if held := m.models[model]; held != nil {
		return held.newest
	}
	return 0
}

// profileName is the name under which profiles know q's model and version.
func (m *members) profileName(q *query) names.ModelKey {
	version := q.version
	if version == 0 {
		version = m.newest(q.model)
	}
	return names.NewModelKey(q.model, version)
}

// FleetExtension is the extension that an agent of a fleet lists in its server metadata. It means
// that the agent speaks the protocol of package control and knows the other members.
const FleetExtension = "muster_fleet"
