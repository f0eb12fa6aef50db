package agent

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/control"
)

// handOver is how long an agent that is not alone goes on taking queries after it has
// said that it drains, so that others have heard of it when it takes no more.
const handOver = 100 * time.Millisecond

// drain hands over, lets what the agent holds finish, and closes the servers,
// all within the drain timeout. In a fleet the agent goes on serving meanwhile: leadership goes to
// another agent, queries that come to it run on others.
func (a *Agent) drain(ctx context.Context, rest *http.Server) {
	start := time.Now()
	a.draining.Store(true)
	a.members.SelfChanged() // tells the fleet
	a.health.Shutdown()
	a.log.Info("draining", "timeout_ms", a.config.DrainTimeout.Milliseconds(), "alone", a.alone.Load(), eventKey, "draining")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.config.DrainTimeout)
	defer cancel()

	if !a.alone.Load() {
		a.leading.resign(ctx)
		select {
		case <-time.After(handOver):
		case <-ctx.Done():
		}
	}
	// While the lanes drain the servers answer: the queries of a fleet, by other
	// agents; UNAVAILABLE to new ones of an agent that is alone, and "not ready" to those who ask.
	if err := a.worker.Lanes().Drain(ctx); err != nil {
		a.log.Warn("queries were cut off", "error", err)
	}
	a.close()
	a.guard.HangUp() // who says nothing would keep the servers from stopping
	var servers sync.WaitGroup
	servers.Go(func() {
		if err := a.front.stop(ctx); err != nil {
			a.log.Warn("connections were cut off", "server", "grpc", "error", err)
		}
	})
	if err := rest.Shutdown(ctx); err != nil {
		a.log.Warn("connections were cut off", "server", "http", "error", err)
		_ = rest.Close() // says no more than Shutdown did
	}
	servers.Wait()
	a.log.Info("drained", "took_ms", time.Since(start).Milliseconds(), eventKey, "drained")
}

// Drain has agents drain and stop: those named, or this one.
func (s controlService) Drain(ctx context.Context, req *control.DrainRequest) (*control.DrainResponse, error) {
	names := req.GetAgents()
	if len(names) == 0 || members.IsLocalOnly(ctx) {
		names = []string{s.name}
	}
	for _, name := range names { // all or none, where one is misspelt
		if s.members.Member(name) == nil {
			return nil, s.members.NoAgent(name)
		}
	}
	resp := &control.DrainResponse{}
	for _, name := range names {
		if name == s.name {
			s.audit(ctx, "drain", "asked to drain", nil)
			s.askedToStop()
		} else {
			conn, err := s.members.Dial(name)
			if err == nil {
				_, err = control.NewControlClient(conn).Drain(members.LocalOnly(ctx), &control.DrainRequest{})
			}
			s.audit(ctx, "drain", "asked to have another agent drain", err, "agent", name)
			if err != nil {
				return nil, fmt.Errorf("drain %s, after %q: %w", name, resp.Draining, err)
			}
		}
		resp.Draining = append(resp.Draining, name)
	}
	return resp, nil
}

// statusTimeout bounds how long the leader may take to say how the fleet is.
const statusTimeout = 2 * time.Second

// Demand is what planning needs to know of the fleet, which its leader knows.
func (s controlService) Demand(ctx context.Context, req *control.DemandRequest) (*control.FleetDemand, error) {
	view := s.members.View()
	d := &control.FleetDemand{Leadership: view.GetLeadership(), Members: view.GetMembers()}
	leader := view.GetLeadership().GetLeader()
	if leader != "" && leader != s.name && !members.IsLocalOnly(ctx) {
		ctx, cancel := context.WithTimeout(ctx, statusTimeout)
		defer cancel()
		conn, err := s.members.Dial(leader)
		if err != nil {
			return nil, err
		}
		return control.NewControlClient(conn).Demand(members.LocalOnly(ctx), req)
	}
	if !s.leading.demand(d) {
		return nil, status.Error(codes.Unavailable, "the fleet has no leader now, who alone knows its demand")
	}
	return d, nil
}

// Status is the fleet as this agent sees it, with what only the leader knows.
func (s controlService) Status(ctx context.Context, req *control.StatusRequest) (*control.FleetStatus, error) {
	view := s.members.LoadedView()
	status := &control.FleetStatus{View: view}
	leader := view.GetLeadership().GetLeader()
	if leader != "" && leader != s.name && !members.IsLocalOnly(ctx) {
		ctx, cancel := context.WithTimeout(ctx, statusTimeout)
		defer cancel()
		conn, err := s.members.Dial(leader)
		if err == nil {
			var told *control.FleetStatus
			if told, err = control.NewControlClient(conn).Status(members.LocalOnly(ctx), req); err == nil {
				status = told
				status.View = view
			}
		}
		if err != nil {
			s.log.Debug("the leader does not say how the fleet is", "leader", leader, "error", err)
		}
	}
	if leader == s.name {
		s.leading.status(status)
	}
	known := map[string]*control.AgentStatus{}
	for _, a := range status.Agents {
		known[a.Name] = a
	}
	loads := map[string]*control.LaneLoad{}
	for _, l := range view.Loads {
		loads[l.Agent] = l
	}
	status.Agents = nil
	for _, m := range view.Members {
		if req.GetAgent() != "" && req.GetAgent() != m.Name {
			continue
		}
		a := known[m.Name]
		if a == nil {
			a = &control.AgentStatus{Name: m.Name}
		}
		if l := loads[m.Name]; l != nil {
			a.RemainingNs, a.Waiting = l.RemainingNs, l.Waiting
		}
		status.Agents = append(status.Agents, a)
	}
	sees := s.sees(ctx)
	if sees("") { // every model
		return status, nil
	}
	// The leader may know of models that are in nobody's view any more, and decisions tell of all.
	status.View, status.Decisions = members.Visible(view, sees), nil
	status.Models = slices.DeleteFunc(status.Models, func(m *control.ModelStatus) bool { return !sees(m.Model) })
	return status, nil
}
