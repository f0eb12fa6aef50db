package fleet

import (
	"time"

	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/election"
	"github.com/muster-serve/muster/runtime/lane"
)

// An agent is a simulated agent: it runs queries on its lane, and may lead.
type agent struct {
	endpoint
	f      *Fleet
	index  int // also its lane's index
	lane   *LaneConfig
	freeAt time.Duration // when its lane ends the query that it runs
	member *leader.Member
	left   bool   // gossip has removed the agent as a member, and all members at the agent
	lives  int    // counts how often its process has started again
	epoch  uint64 // the highest on its disk
	// startsAgainAfter is how long after it has drained its process starts again; 0: never.
	startsAgainAfter time.Duration
	node             *election.Node
	wakeAt           time.Duration  // when to step the node
	follow           election.Claim // zero: it follows nobody
	term             *term          // its own leadership; nil: it does not lead
	link             *term          // the term whose leader the agent has greeted

	lanes       *lane.State
	classes     []lane.Class  // by model, those of what its lane merges
	laneWakesAt time.Duration // when it steps its lane; Never: it need not
	running     []*call       // as one run; none: its lane idles
	ended       []*call       // scratch: those of the run before
	cancelled   *call         // the first of the run that nobody waits for any more
	runs        int           // counts runs, and changes of their ends
	query       ArrivingQuery // scratch
	held        []*call       // the attempts at its lane
	promises    []promise
}

// A promise is a reservation of a lane for a gateway.
type promise struct {
	gateway *gateway
	id      uint64
	of      *lane.Reservation
}

// joinAt starts an agent at a time. It knows all other agents.
func (a *agent) joinAt(at time.Duration) (err error) {
	config := election.Config{ID: a.member.Name, Rank: a.electionRank()}
	if a.node, err = election.New(config); err != nil {
		return err
	}
	a.f.callAt(&a.endpoint, at-a.f.now, func() {
		a.step(&election.Event{Kind: election.TimePassed})
		a.eachOther(func(b *agent) {
			if !b.left {
				a.addMember(b)
			}
		})
	})
	return nil
}

// electionRank is the agent's rank in the election.
func (a *agent) electionRank() election.Rank {
	if n := a.f.cfg.Candidates; n < 0 || n > 0 && a.index >= n || a.lane.NeverLeads {
		return election.RankOf(election.Never, false, 0)
	}
	return election.RankOf(election.May, false, 0)
}

// addMember enters b as a member. Of two that never lead, neither elects the other.
func (a *agent) addMember(b *agent) {
	if a.electionRank() == 0 && b.electionRank() == 0 {
		return
	}
	a.step(&election.Event{Kind: election.MemberUp, ID: b.member.Name, Rank: b.electionRank()})
	if a.term != nil {
		a.term.open(b)
	}
}

// isMember reports whether another agent, or this one, is a member to it.
func (a *agent) isMember(b *agent) bool { return a == b || !a.left && !b.left }

// step steps the agent's election node and carries out its actions.
func (a *agent) step(e *election.Event) {
	f := a.f
	actions, next := a.node.Step(epoch.Add(f.now), e)
	for i := range actions {
		a.carryOut(actions[i])
	}
	at := Never
	if !next.IsZero() {
		at = next.Sub(epoch)
	}
	if at == a.wakeAt {
		return
	}
	if a.wakeAt = at; at == Never {
		return
	}
	f.callAt(&a.endpoint, at-f.now, func() {
		if a.wakeAt == at {
			a.wakeAt = Never
			a.step(&election.Event{Kind: election.TimePassed})
		}
	})
}

func (a *agent) carryOut(act election.Action) {
	f := a.f
	switch act.Kind {
	case election.Send:
		b := f.named[act.To]
		f.send(&a.endpoint, &b.endpoint, func() {
			b.step(&election.Event{
				Kind: election.Received, ID: a.member.Name, Message: act.Message,
			})
		}, func() { a.step(&election.Event{Kind: election.StreamBroken, ID: act.To}) })
	case election.Persist:
		f.callAt(&a.endpoint, persistTime, func() {
			a.epoch = max(a.epoch, act.Claim.Epoch)
			a.step(&election.Event{Kind: election.Persisted, Epoch: act.Claim.Epoch})
		})
	case election.Lead:
		a.beginTerm(act.Claim)
	case election.StepDown:
		a.term.endTerm()
		a.term = nil
		f.callAt(&a.endpoint, 0, a.endIfDrained)
	case election.Follow:
		a.follow = act.Claim
		successor := a.node.Successor()
		for _, g := range f.gateways {
			f.send(&a.endpoint, &g.endpoint, func() { g.noteLeadership(act.Claim, successor) }, nil)
		}
	case election.NoLeader:
		a.follow = election.Claim{}
	case election.Look:
		f.callAt(&a.endpoint, f.cfg.RTT, func() {
			if f.named[act.To].dead {
				a.step(&election.Event{Kind: election.ProcessEnded, ID: act.To})
			}
		})
	}
}

// handleBrokenConnection handles that the connection to another agent has broken. A new connection
// shows whether that agent's process has ended.
func (a *agent) handleBrokenConnection(b *agent) {
	a.step(&election.Event{Kind: election.StreamBroken, ID: b.member.Name})
	a.f.callAt(&a.endpoint, a.f.cfg.RTT, func() {
		if a.term != nil {
			a.term.handleBrokenLink(b)
		}
	})
}
