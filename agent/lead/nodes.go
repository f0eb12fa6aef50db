package lead

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/leader/place/node"
)

// nodeManager moves lanes between the models that share an agent, as a [node.Manager] decides. The
// term's loop owns all fields.
type nodeManager struct {
	term    *term
	manager *node.Manager
	last    time.Time // of the manager's last step
	version uint64    // of the last order
}

func newNoding(t *term) *nodeManager { return &nodeManager{term: t, manager: node.New()} }

// run makes the loop step the manager until ctx ends.
func (s *nodeManager) run(ctx context.Context) {
	ticker := time.NewTicker(node.Period)
	defer ticker.Stop()
	for {
		select {
		case now := <-ticker.C:
			s.term.postToLoop(func() { s.step(now) })
		case <-ctx.Done():
			return
		}
	}
}

// countCompletion counts an answer.
func (s *nodeManager) countCompletion(agent names.AgentName, c *control.Completed) {
	if c.GetRefused() == "" {
		s.manager.Answered(agent, c.GetModel(), control.Duration(c.GetExecutionNs()),
			control.Duration(c.GetLatencyNs()))
	}
}

// step steps the manager, and orders agents to move the lanes that it wants to be moved.
func (s *nodeManager) step(now time.Time) {
	t := s.term
	agents := s.movableAgents()
	var families []node.FamilyLoad
	if len(agents) > 0 {
		for _, c := range t.state.FamilyCounts() {
			families = append(families, s.familyOf(&c))
		}
	}
	moves := s.manager.Step(now.Sub(s.last), agents, families)
	s.last = now
	for _, m := range moves {
		s.version++
		t.leader.log.Info("lanes of an agent are to move", "agent", m.Agent, "from",
			m.From.String(), "to", m.To.String(), "why", m.Why, eventKey, "lanes")
		order := &control.LanesOrder{
			Epoch: t.claim.Epoch, Version: s.version, From: m.From.String(), To: m.To.String(),
		}
		t.leader.links.tellOne(t, m.Agent, func(out *control.LeaderMessage) { out.Lanes = order })
	}
}

// movableAgents are the agents whose lanes may move: they let the leader move them, and nobody has
// pinned their layout.
func (s *nodeManager) movableAgents() (all []node.SharedAgent) {
	t := s.term
	for _, name := range slices.Sorted(maps.Keys(t.layouts)) {
		state, m := t.layouts[name], t.described[name]
		if state.GetLanes() == "" || m == nil || m.GetDraining() || t.placing.isPinned(name) ||
			state.GetState() != "reached" {
			continue
		}
		l, err := place.ParseLayout(state.GetLanes())
		if err != nil {
			continue // it is of a later version of Muster
		}
		all = append(all, node.SharedAgent{Name: name, Lanes: l})
	}
	return all
}

// familyOf is what is known of a family: what arrived, and the target of its models.
func (s *nodeManager) familyOf(c *leader.FamilyCount) node.FamilyLoad {
	f := node.FamilyLoad{
		Arrived: c.Arrived, WaitingLate: c.WaitingLate, QoSTarget: c.QoSTarget, Share: .95,
	}
	for _, id := range c.Models {
		if !slices.Contains(f.Models, id.Name) {
			f.Models = append(f.Models, id.Name)
		}
	}
	return f
}
