package client

import (
	"context"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
)

// An Own is the agent that owns a gateway. It runs the gateway's queries while it is the only member:
// nobody then chooses among lanes, and nothing is encoded. The method is called concurrently.
type Own interface {
	// InferAlone runs the query that id numbers and that arrived at the given time, or refuses it, and
	// blocks until then. canary is the version that is to run it if the agent serves that; 0: the
	// one that req names, else the newest. It does not release req. It sets req.Tried to the version
	// that was to run the query, and req.TrialSize to the batch size once the inputs are valid.
	InferAlone(ctx context.Context, req *oip.Request, id control.Attempt, arrival time.Time,
		canary int64) (*oip.Response, error)
}

// isAlone reports whether the gateway's agent alone can run queries for a model, and no leader has a
// say in which model answers or who loads it.
func (m *members) isAlone(model string) bool {
	return len(m.view.GetMembers()) <= 1 && m.families[model] == nil && !m.isLoadable(model)
}

// isLoadable reports whether no member that stays holds a model, and the leader may have one load it.
func (m *members) isLoadable(model string) bool {
	known := m.models[model]
	if known == nil {
		return false
	}
	v := known.versions[known.newest]
	return v != nil && v.loadable
}

// Loadable reports whether no member that stays holds a model, and the leader may have one load it.
//
// Deprecated: a gateway asks [GatewayConfig.Own] by itself. It stays for programs that call it.
func (g *Gateway) Loadable(model string) bool { return g.members.Load().isLoadable(model) }

// inferAlone has the gateway's own agent run a query. A canary gets its share, as in a fleet.
func (g *Gateway) inferAlone(ctx context.Context, req *oip.Request, arrival time.Time,
	known *members) (*oip.Response, error) {
	g.mu.Lock()
	id := control.Attempt{Gateway: g.config.ID, Sequence: g.queries.Number(), Attempt: 1}
	g.mu.Unlock()
	r, canary := known.releases[req.Model], int64(0)
	if req.Version == "" && r.Takes(id.Gateway, id.Sequence) {
		canary = r.Canary
	}
	req.Agent = string(g.config.Agent)
	resp, err := g.config.Own.InferAlone(ctx, req, id, arrival, canary)
	if req.Version != "" || !r.OnTrial() {
		req.TrialSize = 0
	}
	return resp, err
}
