package members

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
)

// This file removes models that a client may not query from messages to that client.
//
// Where models share an agent, the names of those beside a model are a part of its lanes' type,
// which the client computes from the agent's parts and looks up in prices and profiles. So such
// names are not removed but replaced by aliases, alike in all of one view. Aliases are of one
// agent: no other agent could tell that client the same ones, so all types that name a neighbour
// come to a client in views alone.

// Visible returns v as a client may see it that may know of the models for which sees returns true;
// sees("") reports whether it may know of all, and then Visible returns v itself. The result has
// only those models, and aliases for the names of others. It lacks prices and profiles for lanes
// that no member has, and prices of classes of lanes. It shares with v what is the same in both.
func (ms *Members) Visible(v *control.View, sees func(model string) bool) *control.View {
	if sees("") {
		return v
	}
	seen := &control.View{
		Leadership: v.Leadership, Loads: v.Loads, AheadNs: v.AheadNs,
		Releases: slices.DeleteFunc(slices.Clone(v.GetReleases()),
			func(r *control.Release) bool { return !sees(r.GetModel()) }),
	}
	// the types of the members' lanes, as they are seen
	types := map[names.LaneType]names.LaneType{}
	for _, m := range v.GetMembers() {
		shown := ms.visibleTo(m, sees)
		seen.Members = append(seen.Members, shown)
		addTypes(types, m, shown)
	}
	for _, p := range v.GetPrices() {
		if to, known := types[names.LaneType(p.GetType())]; known {
			seen.Prices = append(seen.Prices, priceOfType(p, to))
		}
	}
	for _, p := range visibleProfiles(v.GetProfiles(), sees) {
		if to, known := types[p.TableKey().Type]; known {
			if string(to) != p.GetType() {
				p = &control.Profile{Model: p.Model, Type: string(to), Table: p.Table}
			}
			seen.Profiles = append(seen.Profiles, p)
		}
	}
	return seen
}

// priceOfType is p as the price of a type without classes: which models tell those apart, and which
// lanes are of which, only those know who may know of all models.
func priceOfType(p *control.TypePrice, typ names.LaneType) *control.TypePrice {
	if string(typ) == p.GetType() && len(p.GetClasses()) == 0 {
		return p
	}
	return &control.TypePrice{Type: string(typ), PerMs: p.PerMs, ServiceMs: p.ServiceMs}
}

// visibleTo is Visible for a member.
func (ms *Members) visibleTo(m *control.Member, sees func(model string) bool) *control.Member {
	hidden := func(m *control.Model) bool { return !sees(m.GetName()) }
	states := func(a *control.FamilyAccuracy) bool { return !sees(a.GetFamily()) }
	fails := func(p *control.ModelProblem) bool { return !sees(p.GetModel()) }
	hides := func(p *control.Part) bool {
		return slices.ContainsFunc(p.GetModels(), func(model string) bool { return !sees(model) })
	}
	if !slices.ContainsFunc(m.GetModels(), hidden) &&
		!slices.ContainsFunc(m.GetLoadable(), hidden) &&
		!slices.ContainsFunc(m.GetParts(), hides) &&
		!slices.ContainsFunc(m.GetAccuracies(), states) &&
		!slices.ContainsFunc(m.GetProblems(), fails) {
		return m
	}
	shown := proto.CloneOf(m)
	shown.Accuracies = slices.DeleteFunc(shown.Accuracies, states)
	shown.Problems = slices.DeleteFunc(shown.Problems, fails)
	shown.Models = slices.DeleteFunc(shown.Models, hidden)
	shown.Loadable = slices.DeleteFunc(shown.Loadable, hidden)
	for _, p := range shown.Parts {
		for i, model := range p.Models {
			if !sees(model) {
				p.Models[i] = ms.aliasOf(model)
			}
		}
	}
	return shown
}

// aliasOf is the name under which this agent tells clients of a model that they may not query. The
// secret keeps them from finding the name by trying names that it may have.
func (ms *Members) aliasOf(model string) string {
	sum := hmac.New(sha256.New, ms.secret)
	sum.Write([]byte(model))
	return "hidden-" + hex.EncodeToString(sum.Sum(nil)[:8])
}

// addTypes adds the types of m's lanes to types, each with the type that a client sees to whom m is
// shown as shown.
func addTypes(types map[names.LaneType]names.LaneType, m, shown *control.Member) {
	add := func(from, to names.LaneType) {
		types[from] = to
		types[from.Own(m.AgentName())] = to.Own(m.AgentName())
	}
	add(m.LaneType(), shown.LaneType())
	for i, part := range m.GetParts() {
		for j, model := range part.GetModels() {
			add(m.LaneTypeOf(model), shown.LaneTypeOf(shown.Parts[i].Models[j]))
		}
	}
}

// Hide removes from a leader's message to a client what it may not know of: sees is as in
// [Members.Visible], and false for some model. The types of lanes that share an agent may name such
// models. So profiles on them are removed, too, and all prices if one is of such a type: the client
// would take the rest for all that there are. Prices of classes of lanes are removed.
func Hide(m *control.MatchMessage, sees func(model string) bool) {
	m.Profiles = slices.DeleteFunc(visibleProfiles(m.Profiles, sees),
		func(p *control.Profile) bool { return p.TableKey().Type.IsShared() })
	if slices.ContainsFunc(m.Prices, func(p *control.TypePrice) bool {
		return names.LaneType(p.GetType()).IsShared()
	}) {
		m.Prices = nil
	}
	var prices []*control.TypePrice // anew: messages to other gateways have the same slice
	for _, p := range m.Prices {
		prices = append(prices, priceOfType(p, names.LaneType(p.GetType())))
	}
	m.Prices = prices
}

// visibleProfiles returns a new slice of the profiles of models for which sees returns true.
func visibleProfiles(profiles []*control.Profile, sees func(model string) bool) []*control.Profile {
	return slices.DeleteFunc(slices.Clone(profiles), func(p *control.Profile) bool {
		name, _ := p.TableKey().Model.Split()
		return !sees(name)
	})
}
