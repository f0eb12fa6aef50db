package fleet

import (
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/client/queries"
	"github.com/muster-serve/muster/leader"
)

// beginSettled begins the leadership of a fleet that is settled, unless nobody may lead: the leader
// knows all lanes, what runs on them takes, and how long the way to them is, as if a former leader
// had learned it.
func (f *Fleet) beginSettled() error {
	if f.cfg.Candidates < 0 {
		return f.err
	}
	leads := newHost()
	t, err := f.newTerm(&leads, leader.Config{
		Policy: f.cfg.Policy, NewChooser: f.cfg.NewChooser,
		Seed: f.cfg.Seed, Ahead: f.cfg.RTT,
	})
	if err != nil {
		return err
	}
	for _, a := range f.agents {
		a.link = t
		t.step(&leader.Event{Kind: leader.Described, Member: a.member})
	}
	t.tellKnown()
	for _, g := range f.gateways {
		g.link = t
		g.state.Learn(queries.Leadership{Epoch: 1, Leader: settledLeader})
		g.state.Try(f.now, func(names.AgentName) bool { return true })
		g.state.Opened(f.now)
		t.connect(g)
	}
	t.step(&leader.Event{Kind: leader.TimePassed})
	return f.err
}

// settledLeader is the name by which gateways know the leader of a fleet that is settled.
const settledLeader = "leader"
