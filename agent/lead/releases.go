package lead

import (
	"github.com/muster-serve/muster/agent/release"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/canary"
)

// releaseTerm is what package release needs of the term.
func (t *term) releaseTerm() release.Term {
	return release.Term{
		Epoch:   t.claim.Epoch,
		Trials:  func() []leader.Trial { return askLoop(t, t.state.Trials) },
		Serving: func() map[string][]int64 { return askLoop(t, t.state.Serving) },
		Tell: func(all []*control.Release) {
			t.leader.links.addToAll(t, func(m *control.LeaderMessage) { m.Releases = all })
			t.released.Send()
		},
	}
}

// followReleases makes the state follow the newest releases. The loop calls it.
func (t *term) followReleases() {
	r := t.leader.config.Releases
	if r == nil {
		return
	}
	all := r.All()
	e := leader.Event{Kind: leader.Released, Rollouts: make([]leader.ModelRollout, len(all))}
	for i, x := range all {
		e.Rollouts[i] = leader.ModelRollout{Model: x.GetModel(), Rollout: canary.RolloutOf(x)}
	}
	if len(all) > 0 {
		t.step(e)
	}
}

// countCompared takes answers that an agent's gateway has compared; what clients say does not
// count.
func (t *term) countCompared(g *gateway, all []*control.AnswersCompared) {
	if r := t.leader.config.Releases; r != nil && len(all) > 0 && !g.sdk {
		r.Compared(all)
	}
}
