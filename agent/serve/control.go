package serve

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/secure"
)

// A controlService implements the control protocol: the calls of other agents, and of SDKs that
// know the fleet.
type controlService struct {
	control.UnimplementedControlServer
	*Server
}

// Describe returns this agent's description.
func (s controlService) Describe(context.Context, *control.DescribeRequest) (*control.Member,
	error) {
	return s.config.Members.Own(), nil
}

// Watch streams this agent's view of the fleet, with the models that the caller may see.
func (s controlService) Watch(req *control.WatchRequest, stream control.Control_WatchServer) error {
	return s.config.Members.Watch(req, stream, s.visibilityOf(stream.Context()))
}

// Keyring performs one step of a rotation of the gossip keys on this agent.
func (s controlService) Keyring(ctx context.Context, req *control.KeyringRequest) (
	*control.AgentKeys, error) {
	before := s.config.Keyring.Fingerprints()
	keys, err := s.config.Keyring.Step(req)
	if err != nil {
		s.logRequest(ctx, "keys", "gossip keys not changed", err, "step", req.Step)
		return nil, err
	}
	if !slices.Equal(before, keys.Fingerprints) {
		s.logRequest(ctx, "keys", "gossip keys changed", nil, "step", req.Step, "in_use",
			keys.Fingerprints[0], "held", len(keys.Fingerprints), "in_file", keys.InFile)
	}
	return keys, nil
}

// RotateKeys changes the gossip key of the whole fleet, and streams each agent's answer. It blocks
// until the rotation has completed or stopped.
func (s controlService) RotateKeys(req *control.RotateKeysRequest,
	stream control.Control_RotateKeysServer) error {
	// If a report cannot be sent, the call's context ends, and the rotation with it.
	r, err := s.config.Keyring.NewRotation(req,
		func(p *control.KeysProgress) { _ = stream.Send(p) })
	if err != nil {
		return err
	}
	ctx, key := stream.Context(), r.Fingerprint()
	s.logRequest(ctx, "keys", "rotating the gossip key", nil, "key", key)
	if err := r.Run(ctx); err != nil {
		s.logRequest(ctx, "keys", "rotation of the gossip key stopped", err, "key", key)
		return err
	}
	s.logRequest(ctx, "keys", "gossip key rotated", nil, "key", key)
	return nil
}

// ListKeys returns the fingerprints of the gossip keys that each agent holds.
func (s controlService) ListKeys(ctx context.Context, _ *control.ListKeysRequest) (
	*control.ListKeysResponse, error) {
	return &control.ListKeysResponse{Agents: s.config.Keyring.List(ctx)}, nil
}

// Match serves the stream by which a gateway submits queries to this agent as the leader.
func (s controlService) Match(stream control.Control_MatchServer) error {
	return s.config.Leading.Match(stream)
}

// Link serves the stream that an agent opens to this one because it leads, or stands for election.
func (s controlService) Link(stream control.Control_LinkServer) error {
	return s.config.Worker.Link(stream, s.config.Leading)
}

// Probe serves the stream by which a gateway without a leader asks when this agent would finish a
// query.
func (s controlService) Probe(stream control.Control_ProbeServer) error {
	return s.config.Worker.Probe(stream, s.intake.checkRoom)
}

// Drain asks the named agents, or this one if none is named, to drain and stop. It returns once
// they have accepted, not when they have drained.
func (s controlService) Drain(ctx context.Context, req *control.DrainRequest) (
	*control.DrainResponse, error) {
	agents := []names.AgentName{s.config.Name}
	if len(req.GetAgents()) > 0 && !members.IsLocalOnly(ctx) {
		agents = agents[:0]
		for _, name := range req.GetAgents() {
			agent, err := s.config.Members.Find(name)
			if err != nil { // find all first, so that a misspelt name drains none
				return nil, err
			}
			agents = append(agents, agent)
		}
	}
	resp := &control.DrainResponse{}
	for _, name := range agents {
		if name == s.config.Name {
			s.logRequest(ctx, "drain", "asked to drain", nil)
			s.config.Drain()
		} else {
			conn, err := s.config.Members.Dial(name)
			if err == nil {
				_, err = control.NewControlClient(conn).Drain(members.LocalOnly(ctx),
					&control.DrainRequest{})
			}
			s.logRequest(ctx, "drain", "asked to have another agent drain", err, "agent", name)
			if err != nil {
				return nil, fmt.Errorf("drain %s, after %q: %w", name, resp.Draining, err)
			}
		}
		resp.Draining = append(resp.Draining, string(name))
	}
	return resp, nil
}

// statusTimeout bounds the leader's answer to a Status or Demand call of this agent. Chosen: a
// leader answers in milliseconds, and one that is silent for a second loses its office, so nobody
// waits longer in vain.
const statusTimeout = 2 * time.Second

// toLeader returns a client of the leader; nil if the call is for this agent itself.
func (s controlService) toLeader(ctx context.Context) (control.ControlClient, error) {
	leader := names.AgentName(s.config.Members.View().GetLeadership().GetLeader())
	if leader == "" || leader == s.config.Name || members.IsLocalOnly(ctx) {
		return nil, nil
	}
	conn, err := s.config.Members.Dial(leader)
	if err != nil {
		return nil, err
	}
	return control.NewControlClient(conn), nil
}

// passedOn reports whether another agent has passed the call on, which then has written who asked
// into it, and has audited it. A client's call may have the same header, and is the client's.
func (s controlService) passedOn(ctx context.Context) bool {
	return members.IsLocalOnly(ctx) && Callers{s.config.Guard}.Client(ctx) == ""
}

// byLeader has the leader answer a call; here answers it if the call is for this agent itself.
func byLeader[Request, Response any](ctx context.Context, s controlService, req *Request,
	call func(control.ControlClient, context.Context, *Request, ...grpc.CallOption) (*Response,
		error), here func() (*Response, error)) (*Response, error) {
	leader, err := s.toLeader(ctx)
	switch {
	case err != nil:
		return nil, err
	case leader != nil:
		return call(leader, members.LocalOnly(ctx), req)
	}
	return here()
}

// Demand returns what planning needs: each model's demand and the learned profiles. Only the leader
// knows them, so another agent passes the call on.
func (s controlService) Demand(ctx context.Context, req *control.DemandRequest) (
	*control.FleetDemand, error) {
	view := s.config.Members.View()
	d := &control.FleetDemand{Leadership: view.GetLeadership(), Members: view.GetMembers()}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	return byLeader(ctx, s, req, control.ControlClient.Demand, func() (*control.FleetDemand,
		error) {
		if !s.config.Leading.Demand(d) {
			return nil, status.Error(codes.Unavailable,
				"the fleet has no leader now, and only a leader knows its demand")
		}
		return d, nil
	})
}

// Place does what is asked of the placement, or explains it. Only the leader can, so another agent
// passes the call on.
func (s controlService) Place(ctx context.Context, req *control.PlaceRequest) (
	*control.PlaceResponse, error) {
	resp, err := s.changePlacement(ctx, req)
	s.logRequest(ctx, "placement", "asked to "+placeVerb(req), err, "agent",
		cutName(req.GetAgent()),
		"layout",
		cutName(req.GetLayout()), "version", req.GetVersion())
	return resp, err
}

func placeVerb(req *control.PlaceRequest) string {
	if slices.Contains(placeVerbs, req.GetVerb()) {
		return req.GetVerb() + " the placement"
	}
	return "do something unknown with the placement"
}

// placeVerbs are those of a PlaceRequest.
var placeVerbs = []string{"pause", "resume", "pin", "unpin", "rollback", "explain"}

func (s controlService) changePlacement(ctx context.Context, req *control.PlaceRequest) (
	*control.PlaceResponse, error) {
	who, _ := secure.Who(ctx)
	if agent, err := s.config.Members.Find(req.GetAgent()); err == nil {
		req.Agent = string(agent)
	}
	brief, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	return byLeader(brief, s, req, control.ControlClient.Place,
		func() (*control.PlaceResponse, error) { return s.config.Leading.Place(ctx, req, who) })
}

// Status returns the fleet as this agent sees it, with the figures that only the leader knows, if
// the leader answers in time.
func (s controlService) Status(ctx context.Context, req *control.StatusRequest) (
	*control.FleetStatus, error) {
	view := s.config.Members.LoadedView()
	status := &control.FleetStatus{View: view}
	leader := names.AgentName(view.GetLeadership().GetLeader())
	if leader != "" && leader != s.config.Name && !members.IsLocalOnly(ctx) {
		ctx, cancel := context.WithTimeout(ctx, statusTimeout)
		defer cancel()
		conn, err := s.config.Members.Dial(leader)
		if err == nil {
			var told *control.FleetStatus
			if told, err = control.NewControlClient(conn).Status(members.LocalOnly(ctx),
				req); err == nil {
				status = told
				status.View = view
			}
		}
		if err != nil {
			s.config.Log.Debug("the leader does not report the fleet's state", "leader", leader,
				"error", err)
		}
	}
	if leader == s.config.Name {
		status.Missed = &control.MissedQueries{LastNs: req.GetMissedNs()}
		s.config.Leading.Status(status)
	}
	// every agent knows the releases, with or without a leader
	status.Plan, status.Proposal = s.config.Members.Plan(), s.config.Members.Proposal()
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
	sees := s.visibilityOf(ctx)
	if sees("") { // every model
		return status, nil
	}
	// The leader may know models that are not in the view, and decisions and layouts may name any
	// model.
	status.View = s.config.Members.Visible(view, sees)
	status.Decisions, status.Placement, status.Plan = nil, nil, nil
	status.Missed = status.Missed.Visible(sees)
	status.Models = slices.DeleteFunc(status.Models,
		func(m *control.ModelStatus) bool { return !sees(m.Model) })
	status.Families = slices.DeleteFunc(status.Families,
		func(f *control.FamilyStatus) bool { return !sees(f.Family) })
	if !sees(status.Proposal.GetModel()) {
		status.Proposal = nil
	}
	return status, nil
}

// File says what this agent has of a file of the model store.
func (s controlService) File(_ context.Context, req *control.FileRequest) (*control.FileState,
	error) {
	return s.config.Files.DescribeFile(req), nil
}

// ReadFile sends a range of a file of the model store.
func (s controlService) ReadFile(req *control.ReadFileRequest,
	stream control.Control_ReadFileServer) error {
	return s.config.Files.ReadFile(req, stream)
}
