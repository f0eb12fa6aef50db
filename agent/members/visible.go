package members

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
)

// This file removes models that a client may not query from messages to that client.

// Visible returns v without the models for which sees returns false: v itself if it has none, else
// a copy that shares the rest with v.
func Visible(v *control.View, sees func(model string) bool) *control.View {
	hidden := func(m *control.Model) bool { return !sees(m.GetName()) }
	profiles := VisibleProfiles(v.GetProfiles(), sees)
	releases := slices.DeleteFunc(slices.Clone(v.GetReleases()),
		func(r *control.Release) bool { return !sees(r.GetModel()) })
	if len(profiles) == len(v.GetProfiles()) && len(releases) == len(v.GetReleases()) &&
		!slices.ContainsFunc(v.GetMembers(),
			func(m *control.Member) bool {
				return slices.ContainsFunc(m.GetModels(), hidden) ||
					slices.ContainsFunc(m.GetLoadable(), hidden)
			}) {
		return v
	}
	seen := &control.View{
		Leadership: v.Leadership, Prices: v.Prices, Profiles: profiles, Loads: v.Loads,
		AheadNs: v.AheadNs, Releases: releases,
	}
	for _, m := range v.GetMembers() {
		copied := proto.CloneOf(m)
		copied.Models = slices.DeleteFunc(copied.Models, hidden)
		copied.Loadable = slices.DeleteFunc(copied.Loadable, hidden)
		seen.Members = append(seen.Members, copied)
	}
	return seen
}

// VisibleProfiles returns the profiles of models for which sees returns true: profiles itself if
// that is all of them, else a new slice.
func VisibleProfiles(profiles []*control.Profile, sees func(model string) bool) []*control.Profile {
	hidden := func(p *control.Profile) bool {
		name, _ := p.Key().Model.Split()
		return !sees(name)
	}
	if !slices.ContainsFunc(profiles, hidden) {
		return profiles
	}
	return slices.DeleteFunc(slices.Clone(profiles), hidden)
}
