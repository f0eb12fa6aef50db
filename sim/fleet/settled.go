package fleet

import (
	"time"

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

// Schedule calls a function at a time.
func (f *Fleet) Schedule(at time.Duration, what func()) { f.do(at, what) }

// MovedAt is when something last happened to a query.
func (f *Fleet) MovedAt() time.Duration { return f.movedAt }

// Has is how many queries a lane runs or has waiting.
func (f *Fleet) Has(lane int) int { return len(f.agents[lane].held) }

// BusySoFar is how long a lane has run queries.
func (f *Fleet) BusySoFar(lane int) time.Duration {
	a := f.agents[lane]
	busy := a.lane.Busy
	if len(a.running) > 0 {
		busy -= a.freeAt - f.now
	}
	return busy
}

// The functions from here on are for fleets that are settled and led.

// AgentNames are the agents' names, by lane.
func (f *Fleet) AgentNames() (all []names.AgentName) {
	for _, a := range f.agents {
		all = append(all, a.member.Name)
	}
	return all
}

// Hold makes a lane hold these models, as its leader hears at once.
func (f *Fleet) Hold(lane int, models []int) {
	a := f.agents[lane]
	member := *a.member
	member.Models = nil
	for _, m := range models {
		member.Models = append(member.Models, f.cfg.Models[m].describeOn(member.Type))
	}
	member.Revision++
	a.member = &member
	a.link.step(&leader.Event{Kind: leader.Described, Member: a.member})
}

// WaitingLate is how many queries wait that are late already.
func (f *Fleet) WaitingLate() int {
	var g leader.Glance
	f.terms[0].state.Glance(&g)
	return g.WaitingLate
}

// Advise tells the leader what was learned.
func (f *Fleet) Advise(a *leader.Advice) {
	f.terms[0].step(&leader.Event{Kind: leader.Learned, Advice: a})
}
