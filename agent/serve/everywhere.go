package serve

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	"github.com/muster-serve/muster/api/oip"
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

// anyMetadata returns the protocol's metadata of a version that this agent or another holds, or of
// a family.
func (s *Server) anyMetadata(model, version string) (*inference.ModelMetadataResponse, error) {
	if f := s.config.Gateway.Family(model); f != nil {
		if why, _ := f.Refuses(version, 0); why != "" {
			return nil, outcome.Invalid("%s", why)
		}
		return familyMetadata(f)
	}
	metadata, err := s.modelMetadata(model, version)
	if family := s.config.Members.Family(model); family != "" && err == nil {
		metadata.Properties["family"] = family
	}
	return metadata, err
}

// modelMetadata is anyMetadata for the name of a model.
func (s *Server) modelMetadata(model, version string) (*inference.ModelMetadataResponse, error) {
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
	metadata := metadataOf(found)
	metadata.Versions = nil
	for _, v := range s.fleetVersions(model) {
		metadata.Versions = append(metadata.Versions, strconv.FormatInt(v, 10))
	}
	return metadata, nil
}

// metadataOf returns a copy of the metadata in an agent's description of a model, which may lack
// them or their properties.
func metadataOf(m *control.Model) *inference.ModelMetadataResponse {
	metadata := proto.CloneOf(m.GetMetadata())
	if metadata == nil {
		metadata = &inference.ModelMetadataResponse{Name: m.GetName()}
	}
	if metadata.Properties == nil {
		metadata.Properties = map[string]string{}
	}
	return metadata
}

// familyMetadata returns the metadata of a family: the signature, which its variants agree in, and
// the least of their limits.
func familyMetadata(f *control.Family) (*inference.ModelMetadataResponse, error) {
	metadata := metadataOf(f.Variants[0].Model)
	metadata.Name, metadata.Versions = f.Name, nil
	of, err := oip.ParseProperties(metadata.Properties)
	if err != nil {
		return nil, err
	}
	of.Family, of.Variants, of.LargestBatchSize = f.Name, f.Names(), int(f.LargestBatchSize())
	of.Accuracy, of.Score = map[string]float64{}, map[string]float64{}
	for _, v := range f.Variants {
		its, err := oip.ParseProperties(v.Metadata.GetProperties())
		if err != nil {
			return nil, err
		}
		maps.Copy(of.Accuracy, its.Accuracy)
		maps.Copy(of.Score, its.Score)
		of.IDBounds = minBounds(of.IDBounds, its.IDBounds)
	}
	metadata.Properties = of.Map()
	return metadata, nil
}

// minBounds returns the id bounds that those of two models of the same inputs have in common. A
// single bound holds for all indices.
func minBounds(a, b map[string][]int64) map[string][]int64 {
	least := map[string][]int64{}
	for input, bounds := range a {
		least[input] = slices.Clone(bounds)
	}
	for input, bounds := range b {
		least[input] = models.LeastBounds(least[input], bounds)
	}
	return least
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

// anyReady reports whether any agent of the fleet serves a version of a model, or a variant of a
// family. Only a malformed version is an error, and one of a family.
func (s *Server) anyReady(model, version string) (bool, error) {
	if f := s.config.Gateway.Family(model); f != nil {
		if why, _ := f.Refuses(version, 0); why != "" {
			return false, outcome.Invalid("%s", why)
		}
		return f.Serving(), nil
	}
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
// hold, and with what keeps agents from loading the files that they have. It leaves out models for
// which sees returns false and, if ready is set, versions that no agent serves.
func (s *Server) anyIndex(ready bool,
	sees func(model string) bool) *inference.RepositoryIndexResponse {
	elsewhere := map[indexKey]bool{}
	problems := map[indexKey]*versionProblems{}
	for _, member := range s.config.Members.View().Members {
		if member.AgentName() == s.config.Name {
			continue
		}
		for _, m := range member.Models {
			elsewhere[newIndexKey(m.Name, m.Version)] = true
		}
		for _, p := range member.Problems {
			addProblem(problems, newIndexKey(p.Model, p.Version), p.Reason, member.Name)
		}
	}
	resp, apart, own := &inference.RepositoryIndexResponse{}, s.config.Members.Apart(),
		s.config.Members.Own()
	note := s.config.Note
	for _, state := range s.config.Worker.Repository().Index() {
		key := newIndexKey(state.Model, state.Version)
		index := &inference.RepositoryIndexResponse_ModelIndex{
			Name: key.model, Version: key.version, State: string(state.State), Reason: state.Reason,
		}
		if elsewhere[key] {
			index.State, index.Reason = string(models.Ready), ""
			delete(elsewhere, key)
		}
		if state.Failed && !s.alone.Load() {
			index.Reason = ""
			addProblem(problems, key, state.Reason, string(s.config.Name))
		}
		if note != nil && state.State == models.Ready && index.Reason == "" {
			index.Reason = note(state.Model, state.Version)
		}
		if why := apart[state.Model]; why != "" && index.State == string(models.Ready) {
			index.Reason = why
			if !slices.ContainsFunc(own.Models,
				func(m *control.Model) bool { return m.Name == state.Model }) {
				index.State = string(models.Unavailable)
			}
		}
		index.Reason = problems[key].addTo(index.Reason)
		delete(problems, key)
		if !ready || index.State == string(models.Ready) {
			resp.Models = append(resp.Models, index)
		}
	}
	for key := range elsewhere {
		resp.Models = append(resp.Models, &inference.RepositoryIndexResponse_ModelIndex{
			Name: key.model, Version: key.version, State: string(models.Ready),
			Reason: problems[key].addTo(""),
		})
		delete(problems, key)
	}
	for key, p := range problems { // of versions that only others have, and none of them serves
		if !ready {
			resp.Models = append(resp.Models, &inference.RepositoryIndexResponse_ModelIndex{
				Name: key.model, Version: key.version, State: string(models.Unavailable),
				Reason: p.addTo(""),
			})
		}
	}
	resp.Models = slices.DeleteFunc(resp.Models,
		func(m *inference.RepositoryIndexResponse_ModelIndex) bool { return !sees(m.Name) })
	slices.SortStableFunc(resp.Models,
		func(a, b *inference.RepositoryIndexResponse_ModelIndex) int {
			return strings.Compare(a.Name, b.Name)
		})
	return resp
}

// An indexKey is a version as the index names it: "" for a model that has none.
type indexKey struct{ model, version string }

func newIndexKey(model string, version int64) indexKey {
	key := indexKey{model: model}
	if version > 0 {
		key.version = strconv.FormatInt(version, 10)
	}
	return key
}

// versionProblems is why agents cannot load the files of a version, in words, each reason once and
// with the agents that give it.
type versionProblems struct {
	reasons []string
	agents  map[string][]string // by reason
}

func addProblem(all map[indexKey]*versionProblems, of indexKey, reason, agent string) {
	p := all[of]
	if p == nil {
		p = &versionProblems{agents: map[string][]string{}}
		all[of] = p
	}
	if len(p.agents[reason]) == 0 {
		p.reasons = append(p.reasons, reason)
	}
	p.agents[reason] = append(p.agents[reason], agent)
}

// addTo returns a reason of the index with the problems, one a line. p may be nil.
func (p *versionProblems) addTo(reason string) string {
	if p == nil {
		return reason
	}
	const maxNamed = 3 // agents; of a large fleet the names would hide the reason
	var lines []string
	if reason != "" {
		lines = append(lines, reason)
	}
	slices.Sort(p.reasons)
	for _, r := range p.reasons {
		agents := slices.Sorted(slices.Values(p.agents[r]))
		if more := len(agents) - maxNamed; more > 0 {
			agents = append(agents[:maxNamed:maxNamed], fmt.Sprintf("%d more", more))
		}
		lines = append(lines, strings.Join(agents, ", ")+": "+r)
	}
	return strings.Join(lines, "\n")
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
		var err error
		if chosen, err = s.config.Members.Find(string(chosen)); err != nil {
			return err
		}
		asked = slices.DeleteFunc(slices.Clone(asked),
			func(m *control.Member) bool { return m.AgentName() != chosen })
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

// largestBody returns the largest body, in bytes, that a REST query of the model or family may
// have.
func (s *Server) largestBody(model, version string) (int64, error) {
	if f := s.config.Gateway.Family(model); f != nil {
		if why, _ := f.Refuses(version, 0); why != "" {
			return 0, outcome.Invalid("%s", why)
		}
		return largestQuery(members.PortsOf(f.Variants[0].Metadata.GetInputs()),
			int(f.LargestBatchSize()), isFree(f.Variants[0].Model), jsonElement,
			s.config.MaxWaitingBytes), nil
	}
	loaded, err := s.config.Worker.Acquire(model, version)
	if err == nil {
		defer loaded.Release()
		v := loaded.Version
		free := v.Batchless || v.Roles != nil && v.Roles.NeedsRoles()
		return largestQuery(v.Inputs, v.Config.LargestBatchSize, free, jsonElement,
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
	return largestQuery(members.PortsOf(m.Metadata.GetInputs()), int(m.LargestBatchSize),
		isFree(m), jsonElement, s.config.MaxWaitingBytes), nil
}

// isFree reports whether the first dimensions of a model's inputs may have any size: there is no batch
// dimension, or inputs have several values a row.
func isFree(m *control.Model) bool {
	p, _ := oip.ParseProperties(m.GetMetadata().GetProperties())
	return p.Batchless || p.Roles != nil && p.Roles.NeedsRoles()
}
