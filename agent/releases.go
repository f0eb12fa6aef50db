package agent

import (
	"github.com/muster-serve/muster/agent/release"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/models"
)

// openReleases makes the part that keeps releases, and makes the agent follow those on disk.
func (a *Agent) openReleases() {
	var kept release.Store
	if a.config.ModelStore != "" {
		kept = keeper{a}
	}
	a.releases = release.New(release.Config{
		Store: kept,
		Trusts: func(x *control.Release) bool {
			trusted := a.trust.covers(x)
			if !trusted {
				a.stored.Look()
			}
			return trusted
		},
		StateDir: a.config.StateDir, Registry: a.metrics.registry, Log: a.log,
		Apply: func(all []*control.Release) {
			choices := make(map[string]models.Choice, len(all))
			for _, r := range all {
				choices[r.GetModel()] = release.Choice(r)
			}
			a.worker.Repository().Choose(choices)
			a.members.SetReleases(all)
			a.members.SelfChanged()
		},
	})
}
