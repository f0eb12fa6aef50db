package lead

import (
	"context"
	"errors"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/agent/rent"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/leader/rent/choose"
)

// rentTerm is what package rent needs of the term.
func (t *term) rentTerm() rent.Term {
	l := t.leader
	return rent.Term{
		Self: string(l.fleet.Self()), Epoch: t.claim.Epoch, View: l.fleet.View,
		Changed: l.fleet.Changed,
		Status: func() *control.FleetStatus {
			return askLoop(t, func() *control.FleetStatus {
				s := &control.FleetStatus{}
				t.fillStatus(s)
				return s
			})
		},
		Problem: t.planProblem,
		Drain: func(ctx context.Context, agent string) error {
			conn, err := l.fleet.Dial(names.AgentName(agent))
			if err != nil {
				return err
			}
			_, err = control.NewControlClient(conn).Drain(members.LocalOnly(ctx),
				&control.DrainRequest{})
			return err
		},
		Tell: t.tellDesired,
	}
}

// tellDesired sends all members what is desired of the fleet. It does not block.
func (t *term) tellDesired(d *control.DesiredFleet) {
	t.leader.links.addToAll(t, func(m *control.LeaderMessage) { m.Fleet = d })
}

// noteDesired takes over what a member says is desired of the fleet. If it is newer than what this
// agent knows, it is of a leader that this agent has not followed, and noteDesired tells all
// members.
func (t *term) noteDesired(member names.AgentName, d *control.DesiredFleet) {
	if r := t.leader.config.Rent; r != nil && r.Said(t.claim.Epoch, string(member), d) {
		t.tellDesired(d)
	}
}

// planProblem is the demand with the types that all models with demand have a profile on.
func (t *term) planProblem() (*plan.Problem, []choose.Family, error) {
	l := t.leader
	d := t.demand()
	if d == nil {
		return nil, nil, errors.New("the term has ended")
	}
	problem, _, err := problemOf(d, l.config.Catalogue, l.config.Library)
	return problem, nil, err
}
