package members

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/gossip"
	"github.com/muster-serve/muster/models"
)

// This file keeps the names of families and models unambiguous in the fleet. Each agent withdraws
// from its own description what contradicts an agent that joined before it. So the others can rely
// on every description.

// joinPatience is how long an agent that has joined gossip waits for the descriptions of the agents
// that it found, before it counts as joined. Chosen: longer than one Describe call that times out.
const joinPatience = 3 * time.Second

// joinWhenKnown counts this agent as joined once all members of gossip have described themselves;
// ready says that gossip has tried to join.
func (ms *Members) joinWhenKnown(ready bool) {
	if !ready {
		return
	}
	there := ms.config.Gossip.Members()
	ms.mu.Lock()
	known := !slices.ContainsFunc(there, func(m gossip.Member) bool {
		name := names.AgentName(m.Name)
		return name != ms.own.AgentName() && ms.others[name] == nil
	})
	ms.mu.Unlock()
	if known {
		ms.markJoined()
	}
}

// Joined returns a channel that is closed once gossip has tried to join and the members that it found
// have described themselves, or have not for joinPatience. Before that this agent does not know which
// models the fleet has.
func (ms *Members) Joined() <-chan struct{} { return ms.hasJoined }

// markJoined counts this agent as joined, after all members that have described themselves.
func (ms *Members) markJoined() {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.joined != 0 {
		return
	}
	defer close(ms.hasJoined)
	ms.joined = 1
	for _, o := range ms.others {
		// A larger number than any fleet can reach is a lie, and would leave none for later agents.
		if n := o.described.GetJoined(); n < math.MaxInt64 {
			ms.joined = max(ms.joined, n+1)
		}
	}
}

// describeThisAgent returns this agent's description without what contradicts others, and by model
// why it is not served as its model.yaml says.
func (ms *Members) describeThisAgent() (*control.Member, map[string]string) {
	own, apart := ms.self.Describe()
	for model, why := range apart {
		apart[model] = onlyOwnName + why
	}
	ms.mu.Lock()
	defer ms.mu.Unlock()
	own.Joined = ms.joined
	var before, later []*control.Member
	for _, o := range ms.others {
		if compareJoined(o.described, own) < 0 {
			before = append(before, o.described)
		} else {
			later = append(later, o.described)
		}
	}
	slices.SortFunc(before, compareJoined)
	removeContradictions(own, before, later, apart)
	return own, apart
}

// compareJoined orders members by when they joined, and those that joined at the same time by name.
// Those that are still joining come last.
func compareJoined(a, b *control.Member) int {
	order := func(m *control.Member) uint64 {
		if m.GetJoined() == 0 {
			return math.MaxUint64
		}
		return m.GetJoined()
	}
	return cmp.Or(cmp.Compare(order(a), order(b)), cmp.Compare(a.GetName(), b.GetName()))
}

// removeContradictions removes from own what contradicts the members of before, and adds the
// reasons to apart, by model. A family must not have the name of a model, nor a model the name of a
// family; the variants of a family must have the same inputs and outputs. An agent that is still
// joining withholds its variants. A variant that is too inaccurate is withdrawn even if the more
// accurate ones joined later.
func removeContradictions(own *control.Member, before, later []*control.Member,
	apart map[string]string) {
	holders, families := map[string]*control.Member{}, map[string]memberModel{}
	for _, m := range before {
		for _, held := range m.GetModels() {
			if holders[held.GetName()] == nil {
				holders[held.GetName()] = m
			}
		}
		for _, held := range slices.Concat(m.GetModels(), m.GetLoadable()) {
			if f := held.GetFamily(); f != "" && families[f].Model == nil {
				families[f] = memberModel{held, m}
			}
		}
	}
	misfit := func(m *control.Model) string { // why it is no variant of its family
		family := m.GetFamily()
		if holder := holders[family]; family != "" && holder != nil {
			return fmt.Sprintf("family %q has the name of a model of agent %q", family,
				holder.GetName())
		}
		if first, ok := families[family]; ok {
			if differs := first.toVersion().Misfit(versionOf(m)); differs != "" {
				return fmt.Sprintf("does not fit into family %q: %s", family, differs)
			}
		}
		return ""
	}
	if own.Joined == 0 { // others must not see a model with a family later, and without one before
		own.Models = slices.DeleteFunc(own.Models,
			func(m *control.Model) bool { return m.GetFamily() != "" })
		own.Loadable = nil
	}
	own.Models = slices.DeleteFunc(own.Models, func(m *control.Model) bool {
		first, taken := families[m.GetName()]
		if taken {
			apart[m.GetName()] = fmt.Sprintf("not served: agent %q has a family of this name",
				first.holder.GetName())
		}
		return taken
	})
	for _, m := range own.Models {
		if why := misfit(m); why != "" {
			apart[m.GetName()] = onlyOwnName + why
			m.Family = ""
		}
	}
	own.Loadable = slices.DeleteFunc(own.Loadable, func(m *control.Model) bool {
		_, taken := families[m.GetName()]
		return taken
	})
	for _, m := range own.Loadable {
		if misfit(m) != "" {
			m.Family = ""
		}
	}
	best := control.BestVariants(slices.Concat(before, later, []*control.Member{own}))
	for _, m := range own.Models {
		if why := best.Why(m.GetFamily(), m.GetAccuracy()); m.Family != "" && why != "" {
			apart[m.GetName()] = onlyOwnName + why
			m.Family = ""
		}
	}
	for _, m := range own.Loadable { // who asks for that very model may have it loaded
		if best.Excludes(m.GetFamily(), m.GetAccuracy()) {
			m.Family = ""
		}
	}
}

// onlyOwnName begins the reason why a model is not served as the variant of its family.
const onlyOwnName = "served under its own name only: "

// A memberModel is a model that another member holds.
type memberModel struct {
	*control.Model
	holder *control.Member
}

// toVersion describes the variant to package models, whose errors name it.
func (v memberModel) toVersion() *models.Version {
	version := versionOf(v.Model)
	version.Model = fmt.Sprintf("%s of agent %q", v.GetName(), v.holder.GetName())
	return version
}

// versionOf describes a model to package models, as far as variants have to agree.
func versionOf(m *control.Model) *models.Version {
	v := &models.Version{
		Model: m.GetName(), Inputs: PortsOf(m.GetMetadata().GetInputs()),
		Outputs: PortsOf(m.GetMetadata().GetOutputs()),
		Config: models.Config{
			QoSTarget:     time.Duration(m.GetQosTargetNs()),
			QoSPercentile: 100 * m.GetQosPercentile(), Deadline: time.Duration(m.GetDeadlineNs()),
			Late: models.LateServe,
		},
	}
	if m.GetRejectLate() {
		v.Config.Late = models.LateReject
	}
	return v
}

// PortsOf converts the inputs or outputs in a model's metadata.
func PortsOf(metadata []*inference.ModelMetadataResponse_TensorMetadata) []models.TensorSpec {
	ports := make([]models.TensorSpec, len(metadata))
	for i, m := range metadata {
		ports[i] = models.TensorSpec{
			Name: m.GetName(), DataType: tensor.DataType(m.GetDatatype()), Shape: m.GetShape(),
		}
	}
	return ports
}

// tellApart replaces the models that are not served as their model.yaml says, and logs each new
// reason.
func (ms *Members) tellApart(apart map[string]string) {
	ms.mu.Lock()
	before := ms.apart
	ms.apart = apart
	ms.mu.Unlock()
	for model, why := range apart {
		if before[model] != why {
			ms.config.Log.Warn("a model is not served as its model.yaml says", "model", model,
				"why", why, "event", "families")
		}
	}
}

// Apart returns this agent's incompatible models, and for each the reason why the agent does not
// serve it as its model.yaml says: the model or its family contradicts another agent's. The caller
// must not change the map.
func (ms *Members) Apart() map[string]string {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return ms.apart
}
