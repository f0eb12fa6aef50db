package agent

import (
	"context"

	"google.golang.org/grpc"

	"github.com/muster-serve/muster/agent/lead"
	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/agent/worker"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/learn"
)

// A fleet implements [lead.Fleet] with the agent's members and its worker.
type fleet struct {
	members *members.Members
	worker  *worker.Worker
}

func (f fleet) Self() names.AgentName       { return f.members.Self() }
func (f fleet) View() *control.View         { return f.members.View() }
func (f fleet) Proposal() *control.Proposal { return f.members.Proposal() }
func (f fleet) Placement() *control.Placement {
	return f.members.Placement()
}
func (f fleet) Changed() <-chan struct{} { return f.members.Changed() }

func (f fleet) Dial(name names.AgentName) (grpc.ClientConnInterface, error) {
	return f.members.Dial(name)
}

func (f fleet) Gone(ctx context.Context, name names.AgentName) bool {
	return f.members.Gone(ctx, name)
}

func (f fleet) Link(leader lead.Stream[control.WorkerMessage, control.LeaderMessage]) error {
	return f.worker.Link(leader)
}

// following gives the other parts access to agent.leading, which is made after them.
type following struct{ agent *Agent }

// Leadership implements [members.Leading].
func (f following) Leadership() *control.Leadership { return f.agent.leadership.Leadership() }

// Changed implements [members.Leading].
func (f following) Changed() <-chan struct{} { return f.agent.leadership.Changed() }

// Linked implements [worker.Leading].
func (f following) Linked(from names.AgentName, send func(*control.Election)) (
	closed func(inOrder bool)) {
	return f.agent.leading.Linked(from, send)
}

// Match implements [serve.Leading].
func (f following) Match(gateway control.Control_MatchServer) error {
	return f.agent.leading.Match(gateway)
}

// Status implements [serve.Leading].
func (f following) Status(s *control.FleetStatus) { f.agent.leading.Status(s) }

// Demand implements [serve.Leading].
func (f following) Demand(d *control.FleetDemand) bool { return f.agent.leading.Demand(d) }

// Place implements [serve.Leading].
func (f following) Place(ctx context.Context, req *control.PlaceRequest, by string) (
	*control.PlaceResponse, error) {
	return f.agent.leading.Place(ctx, req, by)
}

// Fleet implements [serve.Leading].
func (f following) Fleet() (*control.FleetState, error) { return f.agent.renting.State() }

// SetFleet implements [serve.Leading].
func (f following) SetFleet(r *control.SetFleetRequest) (*control.FleetState, error) {
	return f.agent.renting.Set(r)
}

// Release implements [serve.Leading].
func (f following) Release(model string) (*control.ReleaseResponse, error) {
	return f.agent.releases.State(model)
}

// SetRelease implements [serve.Leading].
func (f following) SetRelease(ctx context.Context, r *control.SetReleaseRequest) (
	*control.ReleaseResponse, error) {
	return f.agent.releases.Set(ctx, r)
}

// Elect implements [worker.Leading].
func (f following) Elect(m *control.Election) { f.agent.leading.Elect(m) }

// eventKey is the log attribute that makes a line an event, as in package serve.
const eventKey = "event"

// This does not compile unless members.KeepTold >= learn.KeepTold. Members must keep a profile of
// the leader at least as long as the leader remembers having sent it: only after that does the
// leader send the profile again.
const _ = uint(members.KeepTold - learn.KeepTold)
