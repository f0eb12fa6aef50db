package members

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
)

// This file leaves out what a client may not see: models that it may not query.

// Visible is v without the models that are not to be seen: v itself if there are none.
func Visible(v *control.View, sees func(model string) bool) *control.View {
	hidden := func(m *control.Model) bool { return !sees(m.GetName()) }
	profiles := VisibleProfiles(v.GetProfiles(), sees)
	if len(profiles) == len(v.GetProfiles()) &&
		!slices.ContainsFunc(v.GetMembers(),
			func(m *control.Member) bool { return slices.ContainsFunc(m.GetModels(), hidden) }) {
		return v
	}
	seen := &control.View{
		Leadership: v.Leadership, Prices: v.Prices, Profiles: profiles, Loads: v.Loads,
		AheadNs: v.AheadNs,
	}
	for _, m := range v.GetMembers() {
		copied := proto.CloneOf(m)
		copied.Models = slices.DeleteFunc(copied.Models, hidden)
		seen.Members = append(seen.Members, copied)
	}
	return seen
}

// VisibleProfiles are those of models that are to be seen.
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
