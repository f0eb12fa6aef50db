package fleet

import (
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
)

// The functions of this file are for what decides about the fleet from outside of it, in virtual
// time: which agents there are, and what they hold.

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

// AgentNames are the agents' names, by lane.
func (f *Fleet) AgentNames() (all []names.AgentName) {
	for _, a := range f.agents {
		all = append(all, a.member.Name)
	}
	return all
}

// Leader is the number of the present leader's term, 0 if no agent leads or the leader stands
// still. A later leader has a higher number.
func (f *Fleet) Leader() uint64 {
	if t := f.currentTerm(); t != nil {
		return max(1, t.claim.Epoch)
	}
	return 0
}

// currentTerm is the term of who leads, nil if nobody does or the leader stands still.
func (f *Fleet) currentTerm() *term {
	if f.cfg.Settled {
		return f.terms[0]
	}
	if a := f.currentLeader(); a != nil && !a.isFrozen() {
		return a.term
	}
	return nil
}

// An AgentState says how an agent is.
type AgentState struct {
	// Present: it is a member. Draining: it gets no more queries, and ends.
	Present, Draining bool
	Leads             bool
	// Ended: its process is over, or has never begun. Lives counts how often it has begun again.
	Ended bool
	Lives int
}

// Agent says how a lane's agent is.
func (f *Fleet) Agent(lane int) AgentState {
	a := f.agents[lane]
	return AgentState{
		Present: !a.left, Draining: a.member.Draining, Leads: a.term != nil, Ended: a.dead,
		Lives: a.lives,
	}
}

// Start starts the process of an agent that has ended, or was absent. Its lane holds these models.
func (f *Fleet) Start(lane int, models []int) {
	a := f.agents[lane]
	a.handleRemoval() // gossip may not have noticed yet that the former process has ended
	a.resetLane()
	f.setModels(a, models)
	a.startAgain()
}

// Drain makes an agent end when its lane has nothing left.
func (f *Fleet) Drain(lane int) { f.agents[lane].beginDrain(0) }

// Kill ends an agent's process at once.
func (f *Fleet) Kill(lane int) { f.agents[lane].killProcess() }

// setModels makes a description of an agent whose lane holds these models.
func (f *Fleet) setModels(a *agent, models []int) {
	member := *a.member
	member.Models = nil
	for _, m := range models {
		member.Models = append(member.Models, f.cfg.Models[m].describeOn(member.Type))
	}
	member.Revision++
	a.member = &member
}

// Hold makes a lane hold these models. The leader of a settled fleet hears of it at once.
func (f *Fleet) Hold(lane int, models []int) {
	a := f.agents[lane]
	f.setModels(a, models)
	if f.cfg.Settled {
		a.link.step(&leader.Event{Kind: leader.Described, Member: a.member})
		return
	}
	if a.left || a.dead {
		return
	}
	f.tellViews()
	for _, g := range f.gateways {
		g.handleJoined(a)
	}
	a.sendToLeader(func(t *term) {
		t.handleDescription(&leader.Event{
			Kind: leader.Described, Member: a.member, Free: []time.Duration{a.busyTime()},
		})
	})
}

// WaitingLate is how many queries wait at the leader that are late already.
func (f *Fleet) WaitingLate() int {
	t := f.currentTerm()
	if t == nil {
		return 0
	}
	var g leader.Glance
	t.state.Glance(&g)
	return g.WaitingLate
}

// Advise tells the leader, if there is one, what was learned.
func (f *Fleet) Advise(a *leader.Advice) {
	if t := f.currentTerm(); t != nil {
		t.step(&leader.Event{Kind: leader.Learned, Advice: a})
	}
}

// holdsModel reports whether an agent's lane holds a model now.
func (a *agent) holdsModel(model int) bool {
	id := a.f.cfg.Models[model].leaderID()
	return slices.ContainsFunc(a.member.Models,
		func(m leader.HeldModel) bool { return m.ModelID == id })
}
