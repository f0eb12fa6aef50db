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
	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/leader/canary"
	"github.com/muster-serve/muster/leader/match"
)

// members indexes one View of a fleet by model and version. It is immutable.
type members struct {
	view   *control.View
	byName map[names.AgentName]*control.Member
	models map[string]*fleetModel
	// families are the families that do not have the name of a model.
	families map[string]*fleetFamily
	releases map[string]canary.Rollout // of models
}

// A fleetFamily is a family whose variants members hold. As a version it has what the variants
// agree in, and as its largest batch size one that all of them take.
type fleetFamily struct {
	*control.Family
	fleetVersion
}

// A fleetModel is a model that members hold, or that may be loaded.
type fleetModel struct {
	newest int64 // version for queries that name none
	// leaving is the newest version that only draining members hold, or that members may load. It
	// equals newest if no other member holds one.
	leaving  int64
	versions map[int64]*fleetVersion
}

// A fleetVersion is a version of such a model.
type fleetVersion struct {
	qosTarget time.Duration
	deadline  time.Duration
	largest   int // largest batch size
	holders   int
	draining  int     // how many of the holders drain
	loadable  bool    // the leader may have a member load it that does not drain
	family    string  // "" if it is in none
	accuracy  float64 // in (0, 1]; 0 if unknown
	// roles are those of the inputs of its queries; nil: they have no batch size.
	roles *roles.Roles
	// capture says what is kept of its queries, nil: nothing; idBounds are those of its inputs, if
	// something is kept.
	capture  *control.Capture
	idBounds map[string][]int64
}

func newMembers(v *control.View) *members {
	m := &members{
		view: v, byName: map[names.AgentName]*control.Member{}, models: map[string]*fleetModel{},
		releases: make(map[string]canary.Rollout, len(v.GetReleases())),
	}
	for _, r := range v.GetReleases() {
		m.releases[r.GetModel()] = canary.RolloutOf(r)
	}
	for _, member := range v.GetMembers() {
		m.byName[member.AgentName()] = member
		for _, held := range member.GetModels() {
			m.addHolding(member, held)
		}
	}
	for _, member := range v.GetMembers() {
		for _, could := range member.GetLoadable() {
			held := m.models[could.GetName()]
			if !member.GetDraining() && (held == nil || held.newest == 0) {
				m.versionOf(could).loadable = true
				held = m.models[could.GetName()]
				held.leaving = max(held.leaving, could.GetVersion())
			}
		}
	}
	for _, model := range m.models {
		model.newest = cmp.Or(model.newest, model.leaving)
	}
	for name, r := range m.releases { // members that know of no releases name another version
		if model := m.models[name]; model != nil {
			model.newest = model.bestVersion(r)
		}
	}
	for name, f := range control.Families(v.GetMembers()) {
		if m.families == nil {
			m.families = map[string]*fleetFamily{}
		}
		of := &fleetFamily{Family: f}
		best := &fleetVersion{} // if no member holds a variant
		if held := m.models[f.Variants[0].GetName()]; held != nil {
			best = cmp.Or(held.versions[f.Variants[0].GetVersion()], best)
		}
		best.noteHeld(f.Variants[0].Model)
		of.qosTarget, of.deadline = best.qosTarget, best.deadline
		of.largest, of.roles = int(f.LargestBatchSize()), best.roles
		of.capture, of.idBounds = best.capture, best.idBounds
		m.families[name] = of
	}
	return m
}

// next returns the members of v, the view that follows m's. It reuses the parts of m that have not
// changed.
func (m *members) next(v *control.View) *members {
	if slices.Equal(m.view.GetMembers(), v.GetMembers()) &&
		slices.Equal(m.view.GetReleases(), v.GetReleases()) {
		same := *m
		same.view = v
		return &same
	}
	return newMembers(v)
}

// overlaps reports whether m and other have a member in common.
func (m *members) overlaps(other *members) bool {
	for name := range m.byName {
		if other.byName[name] != nil {
			return true
		}
	}
	return false
}

func (m *members) addHolding(member *control.Member, held *control.Model) {
	v := m.versionOf(held)
	model := m.models[held.GetName()]
	switch {
	case held.GetNewest() && member.GetDraining():
		model.leaving = max(model.leaving, held.GetVersion())
	case held.GetNewest():
		model.newest = max(model.newest, held.GetVersion())
	}
	v.holders++
	if member.GetDraining() {
		v.draining++
	}
}

// versionOf returns the entry of a model's version, which takes what held says.
func (m *members) versionOf(held *control.Model) *fleetVersion {
	model := m.models[held.GetName()]
	if model == nil {
		model = &fleetModel{versions: map[int64]*fleetVersion{}}
		m.models[held.GetName()] = model
	}
	v := model.versions[held.GetVersion()]
	if v == nil {
		v = &fleetVersion{}
		model.versions[held.GetVersion()] = v
	}
	v.noteHeld(held)
	return v
}

// needsRoles reports whether only members that know roles answer queries of a model.
func (m *members) needsRoles(held *control.Model) bool {
	model := m.models[held.GetName()]
	if model == nil || model.versions[held.GetVersion()] == nil {
		return false
	}
	r := model.versions[held.GetVersion()].roles
	return r != nil && r.NeedsRoles()
}

func (v *fleetVersion) noteHeld(held *control.Model) {
	v.qosTarget = max(v.qosTarget, time.Duration(held.GetQosTargetNs()))
	v.deadline = max(v.deadline, time.Duration(held.GetDeadlineNs()))
	v.largest = max(v.largest, int(held.GetLargestBatchSize()))
	v.family = cmp.Or(held.GetFamily(), v.family)
	v.accuracy = cmp.Or(held.GetAccuracy(), v.accuracy)
	if v.roles == nil || held.GetMetadata().GetProperties()[oip.RolesProperty] != "" {
		v.roles = rolesOf(held)
	}
	if c := held.GetCapture(); c != nil {
		v.capture = v.capture.Stricter(c)
		if p, err := oip.ParseProperties(held.GetMetadata().GetProperties()); err == nil {
			v.idBounds = p.IDBounds
		}
	}
}

// rolesOf returns the roles of a model: those that its agent tells, else those that follow from the
// shapes.
func rolesOf(held *control.Model) *roles.Roles {
	p, err := oip.ParseProperties(held.GetMetadata().GetProperties())
	switch {
	case err != nil || p.Batchless:
		return nil
	case p.Roles != nil:
		return p.Roles
	}
	var names []string
	var shapes [][]int64
	for _, in := range held.GetMetadata().GetInputs() {
		names, shapes = append(names, in.GetName()), append(shapes, in.GetShape())
	}
	return roles.OfShapes(names, shapes)
}

// find returns the version of a model that a query names, and its number, 0 if the query asks for
// the newest. If the query names a family, family is that. least is the least accuracy that the
// query demands, 0 for any.
func (m *members) find(name, version string, least float64) (held *fleetVersion, number int64,
	family *fleetFamily, err error) {
	if f := m.families[name]; f != nil {
		if why, invalid := f.Refuses(version, least); invalid {
			return nil, 0, nil, status.Error(codes.InvalidArgument, why)
		} else if why != "" {
			return nil, 0, nil, status.Error(codes.NotFound, why)
		}
		if !f.Serving() && !f.Loadable {
			return nil, 0, nil, oip.Explain(status.Newf(codes.Unavailable,
				"all agents that hold variants of family %q are draining", name), "draining",
				0).Err()
		}
		return &f.fleetVersion, 0, f, nil
	}
	held, number, err = m.findModel(name, version)
	if err == nil && least > 0 && cmp.Or(held.accuracy, 1) < least {
		return nil, 0, nil, status.Errorf(codes.NotFound,
			"model %q has accuracy %v, which does not reach min_accuracy %v", name,
			held.accuracy, least)
	}
	return held, number, nil, err
}

// findModel is find for the name of a model.
func (m *members) findModel(name, version string) (*fleetVersion, int64, error) {
	model := m.models[name]
	if model == nil {
		families := ""
		if len(m.families) > 0 {
			families = "; families: " + strings.Join(slices.Sorted(maps.Keys(m.families)), ", ")
		}
		return nil, 0, status.Errorf(codes.NotFound, "no agent holds model %.255q; they hold: %s%s",
			name, cmp.Or(strings.Join(slices.Sorted(maps.Keys(m.models)), ", "), "none"), families)
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
	if v.draining == v.holders && !v.loadable {
		return nil, 0, oip.Explain(status.Newf(codes.Unavailable,
			"all agents that hold model %q (%d) are draining", name, v.holders), "draining",
			0).Err()
	}
	return v, number, nil
}

// newestVersion is the version of a model for queries that name none, 0 if nobody holds the model.
func (m *members) newestVersion(model string) int64 {
	if held := m.models[model]; held != nil {
		return held.newest
	}
	return 0
}

// profileName is the name under which profiles know q's model and version; of a query that names a
// family, those of the attempt under way, or the family's name if there is none. gateway is q's.
func (m *members) profileName(q *gatewayQuery, gateway uint64) names.ModelKey {
	if q.family != nil {
		return cmp.Or(q.Variant(), names.ModelKey(q.model))
	}
	return names.NewModelKey(q.model, m.bind(q, gateway))
}

// largestOf is the largest batch size of a version of a model; 0 if nobody holds it.
func (m *members) largestOf(model names.ModelKey) int {
	name, version := model.Split()
	if held := m.models[name]; held != nil && held.versions[version] != nil {
		return min(held.versions[version].largest, match.MaxBatchSize)
	}
	return 0
}

// bind is the version that is to answer q, which names no family: the one that it names, else what
// the model's release says, else the newest.
func (m *members) bind(q *gatewayQuery, gateway uint64) int64 {
	if q.version != 0 {
		return q.version
	}
	r := m.releases[q.model]
	return r.Version(gateway, q.Sequence, m.newestVersion(q.model), func(version int64) bool {
		model := m.models[q.model]
		return model != nil && model.servesVersion(version)
	})
}

// servesVersion reports whether a member that does not drain holds the version.
func (f *fleetModel) servesVersion(version int64) bool {
	v := f.versions[version]
	return v != nil && v.draining < v.holders
}

// bestVersion is the version for queries that name none and are not a canary's.
func (f *fleetModel) bestVersion(r canary.Rollout) (best int64) {
	leaving := int64(0)
	for version := range f.versions {
		if f.servesVersion(version) {
			best = r.Prefer(best, version)
		}
		leaving = r.Prefer(leaving, version)
	}
	return cmp.Or(best, leaving)
}

// FleetExtension is the extension that an agent of a fleet lists in its server metadata. It means
// that the agent speaks the protocol of package control and knows the other members.
const FleetExtension = "muster_fleet"
