package agent

import (
	"github.com/muster-serve/muster/agent/dashboard"
	"github.com/muster-serve/muster/api/version"
)

// openDashboard makes the server serve the page that shows the fleet, unless the settings want none.
// The hub is there all the same: other agents' pages may need what it knows.
func (a *Agent) openDashboard() {
	if !a.config.Dashboard {
		return
	}
	a.server.ServeDashboard(dashboard.New(dashboard.Config{
		Hub: a.hub, Guard: a.guard, View: a.members.View, Library: a.library,
		Software:    version.Current(),
		FleetEvents: a.server.FleetEvents, Fleet: a.server.Fleet, SetFleet: a.server.SetFleet,
		Closing: a.closing,
	}))
}
