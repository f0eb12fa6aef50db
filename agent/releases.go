package agent

import (
	"github.com/muster-serve/muster/agent/release"
	"github.com/muster-serve/muster/agent/release/stored"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader/canary"
	"github.com/muster-serve/muster/models"
)

// openReleases makes the part that keeps releases, and makes the agent follow those on disk and those
// of the model store.
func (a *Agent) openReleases(t *stored.Trust) {
	config := release.Config{
		Trusts: func(x *control.Release) bool {
			trusted := t.Covers(x)
			if !trusted {
				a.stored.Look()
			}
			return trusted
		},
		StateDir: a.config.StateDir, Registry: a.metrics.registry, Log: a.log,
		Apply: func(all []*control.Release) {
			choices := make(map[string]models.Choice, len(all))
			for _, r := range all {
				choices[r.GetModel()] = canary.RolloutOf(r)
			}
			a.worker.Repository().Choose(choices)
			a.members.SetReleases(all)
			a.members.SelfChanged()
		},
	}
	if a.stored != nil {
		config.Store = stored.Store{Trust: t, Open: a.stored.Store}
	}
	a.releases = release.New(config)
	if a.stored != nil {
		a.stored.FollowReleases(stored.Follower{Trust: t, Releases: a.releases})
	}
}
