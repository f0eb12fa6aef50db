package agent

import (
	"context"
	"net/http"

	"github.com/muster-serve/muster/agent/dashboard"
	"github.com/muster-serve/muster/api/control"
)

// openDashboard makes the page that shows the fleet; nil if the settings want none. The hub is there
// all the same: other agents' pages may need what it knows.
func (a *Agent) openDashboard() http.Handler {
	if !a.config.Dashboard {
		return nil
	}
	return dashboard.New(dashboard.Config{
		Hub: a.hub, Guard: a.guard, View: a.members.View, Library: a.library, Software: Version(),
		FleetEvents: func(ctx context.Context) []*control.Event { return a.server.FleetEvents(ctx) },
		Fleet:       func(ctx context.Context) (*control.FleetState, error) { return a.server.Fleet(ctx) },
		SetFleet: func(ctx context.Context, req *control.SetFleetRequest) (*control.FleetState,
			error) {
			return a.server.SetFleet(ctx, req)
		},
		Closing: a.closing,
	})
}
