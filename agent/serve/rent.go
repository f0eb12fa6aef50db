package serve

import (
	"context"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/secure"
)

// Fleet returns what the leader rents.
func (s controlService) Fleet(ctx context.Context, req *control.FleetRequest) (
	*control.FleetState, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	return byLeader(ctx, s, req, control.ControlClient.Fleet, s.config.Renting.State)
}

// SetFleet changes what is desired of the fleet.
func (s controlService) SetFleet(ctx context.Context, req *control.SetFleetRequest) (
	*control.FleetState, error) {
	passedOn := s.passedOn(ctx)
	if !passedOn {
		req.By, _ = secure.Who(ctx)
	}
	state, err := byLeader(ctx, s, req, control.ControlClient.SetFleet,
		func() (*control.FleetState, error) { return s.config.Renting.Set(req) })
	if !req.GetDryRun() && !passedOn {
		s.logRequest(ctx, "fleet", "asked to change the fleet", err, "version",
			state.GetDesired().GetVersion(), "why", state.GetDesired().GetWhy())
	}
	return state, err
}

// Fleet returns what the leader rents, for the caller of ctx.
func (s *Server) Fleet(ctx context.Context) (*control.FleetState, error) {
	return controlService{Server: s}.Fleet(ctx, &control.FleetRequest{})
}

// SetFleet changes what is desired of the fleet, for the caller of ctx, whose rights have been
// checked.
func (s *Server) SetFleet(ctx context.Context, req *control.SetFleetRequest) (*control.FleetState,
	error) {
	return controlService{Server: s}.SetFleet(ctx, req)
}
