package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/agent/worker"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
)

// This file answers calls about models that any agent of the fleet holds.

// fleetModel returns the description of a version that some member holds. Number 0 is the newest
// version that a member serves that does not drain. serving is false if all members that hold the
// version drain. The error is that of Members.NoModel.
func (s *Server) fleetModel(model string, number int64) (found *control.Model, serving bool,
	err error) {
	for _, member := range s.config.Members.View().Members {
		for _, m := range member.Models {
			if m.Name != model {
				continue
			}
			if number != 0 && m.Version != number || number == 0 && !m.Newest {
				continue
			}
			serves := !member.Draining
			if found == nil || serves && !serving ||
				serves == serving && m.Version > found.Version {
				found, serving = m, serves
			}
		}
	}
	if found == nil {
		return nil, false, s.config.Members.NoModel(model, number)
	}
	return found, serving, nil
}

// anyMetadata returns the protocol's metadata of a version that this agent or another holds.
func (s *Server) anyMetadata(model, version string) (*inference.ModelMetadataResponse, error) {
	if loaded, err := s.config.Worker.Acquire(model, version); s.alone.Load() ||
		errors.Is(err, outcome.ErrInvalid) {
		if err != nil {
			return nil, err
		}
		defer loaded.Release()
		return s.config.Worker.Metadata(loaded.Version), nil
	} else if err == nil {
		loaded.Release()
	}
	number, err := worker.ParseVersion(model, version)
	if err != nil {
		return nil, err
	}
	found, _, err := s.fleetModel(model, number)
	if err != nil {
		return nil, err
	}
	metadata := proto.CloneOf(found.Metadata)
	metadata.Versions = nil
	for _, v := range s.fleetVersions(model) {
		metadata.Versions = append(metadata.Versions, strconv.FormatInt(v, 10))
	}
	return metadata, nil
}

// fleetVersions returns the versions of a model that members hold, ascending.
func (s *Server) fleetVersions(model string) []int64 {
	var versions []int64
	for _, member := range s.config.Members.View().Members {
		for _, m := range member.Models {
			if m.Name == model {
				versions = append(versions, m.Version)
			}
		}
	}
	slices.Sort(versions)
	return slices.Compact(versions)
}

// anyReady reports whether any agent of the fleet serves a version of a model. Only a malformed
// version is an error.
func (s *Server) anyReady(model, version string) (bool, error) {
	loaded, err := s.config.Worker.Acquire(model, version)
	switch {
	case errors.Is(err, outcome.ErrInvalid):
		return false, err
	case err == nil:
		loaded.Release()
		if !s.config.Draining() {
			return true, nil
		}
	}
	if s.alone.Load() {
		return false, nil
	}
	number, err := worker.ParseVersion(model, version)
	if err != nil {
		return false, err
	}
	_, serving, err := s.fleetModel(model, number)
	return err == nil && serving, nil
}

// anyIndex returns the index of this agent's repository, with the versions that only other agents
// hold. It leaves out models for which sees returns false and, if ready is set, versions that no
// agent serves.
func (s *Server) anyIndex(ready bool,
	sees func(model string) bool) *inference.RepositoryIndexResponse {
	type version struct{ model, number string }
	elsewhere := map[version]bool{}
	for _, member := range s.config.Members.View().Members {
		for _, m := range member.Models {
			if member.AgentName() != s.config.Name {
				elsewhere[version{m.Name, strconv.FormatInt(m.Version, 10)}] = true
			}
		}
	}
	resp := &inference.RepositoryIndexResponse{}
	for _, s := range s.config.Worker.Repository().Index() {
		index := &inference.RepositoryIndexResponse_ModelIndex{
			Name: s.Model, State: string(s.State), Reason: s.Reason,
		}
		if s.Version > 0 {
			index.Version = strconv.FormatInt(s.Version, 10)
		}
		if v := (version{s.Model, index.Version}); elsewhere[v] {
			index.State, index.Reason = string(models.Ready), ""
			delete(elsewhere, v)
		}
		if !ready || index.State == string(models.Ready) {
			resp.Models = append(resp.Models, index)
		}
	}
	for v := range elsewhere {
		resp.Models = append(resp.Models, &inference.RepositoryIndexResponse_ModelIndex{
			Name: v.model, Version: v.number, State: string(models.Ready),
		})
	}
	resp.Models = slices.DeleteFunc(resp.Models,
		func(m *inference.RepositoryIndexResponse_ModelIndex) bool { return !sees(m.Name) })
	slices.SortStableFunc(resp.Models,
		func(a, b *inference.RepositoryIndexResponse_ModelIndex) int {
			return strings.Compare(a.Name, b.Name)
		})
	return resp
}

// portsOf converts the inputs in another agent's description of a model.
func portsOf(metadata []*inference.ModelMetadataResponse_TensorMetadata) []models.Port {
	ports := make([]models.Port, len(metadata))
	for i, m := range metadata {
		ports[i] = models.Port{
			Name: m.GetName(), DataType: tensor.DataType(m.GetDatatype()), Shape: m.GetShape(),
		}
	}
	return ports
}

// agentParameter is the parameter of a load or unload call that names the agent to act on. Its
// value is an agent's name, or everyAgent, which is the default.
const (
	agentParameter = "agent"
	everyAgent     = names.AgentName("all")
)

// chosenAgent removes agentParameter from the parameters of a load or unload call, and returns its
// value or the default.
func chosenAgent(parameters map[string]*inference.ModelRepositoryParameter) (names.AgentName,
	error) {
	p, given := parameters[agentParameter]
	if !given {
		return everyAgent, nil
	}
	delete(parameters, agentParameter)
	if name := p.GetStringParam(); name != "" {
		return names.AgentName(name), nil
	}
	return "", outcome.Invalid("parameter %q, want the name of an agent or %q", agentParameter,
		everyAgent)
}

// onAgents changes a model on the chosen agent, or on every agent that has the model's files. It
// calls local for this agent and remote for each other one, concurrently, and blocks until all have
// answered.
func (s *Server) onAgents(ctx context.Context, chosen names.AgentName,
	model string, local func() error,
	remote func(context.Context, inference.GRPCInferenceServiceClient) error) error {
	if members.IsLocalOnly(ctx) ||
		s.alone.Load() && (chosen == everyAgent || chosen == s.config.Name) {
		return local()
	}
	asked := s.config.Members.View().Members
	if chosen != everyAgent {
		asked = slices.DeleteFunc(slices.Clone(asked),
			func(m *control.Member) bool { return m.AgentName() != chosen })
		if len(asked) == 0 {
			return s.config.Members.NoAgent(chosen)
		}
	}
	outcomes := make([]error, len(asked))
	var asking sync.WaitGroup
	for i, m := range asked {
		asking.Go(func() {
			if m.AgentName() == s.config.Name {
				outcomes[i] = local()
				return
			}
			conn, err := s.config.Members.Dial(m.AgentName())
			if err == nil {
				err = remote(members.LocalOnly(ctx), inference.NewGRPCInferenceServiceClient(conn))
			}
			outcomes[i] = err
		})
	}
	asking.Wait()
	return joinOutcomes(asked, outcomes, model)
}

// joinOutcomes returns the outcome of changing a model on several agents: nil if it succeeded on
// all that have the model's files, and on at least one.
func joinOutcomes(asked []*control.Member, outcomes []error, model string) error {
	var faults []error
	done := 0
	for i, err := range outcomes {
		switch {
		case err == nil:
			done++
		case outcome.Of(err).Code == codes.NotFound && len(asked) > 1:
		default:
			if s, ok := status.FromError(err); ok {
				err = &partialError{asked[i].Name + ": " + s.Message(), s.Code()}
			} else if len(asked) > 1 {
				err = fmt.Errorf("%s: %w", asked[i].Name, err)
			}
			faults = append(faults, err)
		}
	}
	if len(faults) == 0 && done == 0 {
		return fmt.Errorf("%w on any agent: model %.255q", models.ErrNotFound, model)
	}
	if len(faults) > 0 && done > 0 {
		faults = append(faults,
			fmt.Errorf("done on %d of the %d agents that have it", done, done+len(faults)))
	}
	return errors.Join(faults...)
}

// A partialError is the error that another agent returned, with its name and its gRPC code.
type partialError struct {
	message string
	code    codes.Code
}

func (e *partialError) Error() string              { return e.message }
func (e *partialError) GRPCStatus() *status.Status { return status.New(e.code, e.message) }

// largestBody returns the largest body, in bytes, that a REST query of the model may have.
func (s *Server) largestBody(model, version string) (int64, error) {
	loaded, err := s.config.Worker.Acquire(model, version)
	if err == nil {
		defer loaded.Release()
		v := loaded.Version
		return largestQuery(v.Inputs, v.Config.LargestBatchSize, jsonElement,
			s.config.MaxWaitingBytes), nil
	}
	if s.alone.Load() || errors.Is(err, outcome.ErrInvalid) {
		return 0, err
	}
	number, err := worker.ParseVersion(model, version)
	if err != nil {
		return 0, err
	}
	m, _, err := s.fleetModel(model, number)
	if err != nil {
		return 0, s.whileStarting(err)
	}
	return largestQuery(portsOf(m.Metadata.GetInputs()), int(m.LargestBatchSize), jsonElement,
		s.config.MaxWaitingBytes), nil
}
