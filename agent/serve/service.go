package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/agent/worker"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tracing"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/models"
)

// extensions lists the inference protocol's extensions that the agent supports.
var extensions = []string{
	"binary_tensor_data", "model_configuration", "model_repository", "statistics",
	client.FleetExtension,
}

// A service implements the calls of the inference protocol, for gRPC and REST. It returns plain
// errors; each protocol's server adds the code or status (package outcome).
type service struct{ *Server }

func (s service) ServerLive(context.Context, *inference.ServerLiveRequest) (
	*inference.ServerLiveResponse, error) {
	return &inference.ServerLiveResponse{Live: true}, nil
}

func (s service) ServerReady(context.Context, *inference.ServerReadyRequest) (
	*inference.ServerReadyResponse, error) {
	return &inference.ServerReadyResponse{Ready: s.Ready()}, nil
}

// ModelReady reports false for a model that does not exist, as other servers do. Only a malformed
// version is an error.
func (s service) ModelReady(_ context.Context, req *inference.ModelReadyRequest) (
	*inference.ModelReadyResponse, error) {
	isReady, err := s.anyReady(req.GetName(), req.GetVersion())
	if err != nil {
		return nil, err
	}
	return &inference.ModelReadyResponse{Ready: isReady}, nil
}

func (s service) ServerMetadata(context.Context, *inference.ServerMetadataRequest) (
	*inference.ServerMetadataResponse, error) {
	spoken := extensions
	// names an emulated executor, so that a client does not take its answers for a model's
	if info := s.config.Worker.Info(); info.Executor != "onnx" {
		spoken = append(slices.Clone(spoken), info.Executor)
	}
	return &inference.ServerMetadataResponse{
		Name: "muster", Version: s.config.Version, Extensions: spoken,
	}, nil
}

func (s service) ModelMetadata(_ context.Context, req *inference.ModelMetadataRequest) (
	*inference.ModelMetadataResponse, error) {
	return s.anyMetadata(req.GetName(), req.GetVersion())
}

// ModelInfer answers a query that came by gRPC, and makes its span.
func (s service) ModelInfer(ctx context.Context, req *oip.Request) (*oip.Response, error) {
	arrival := noteArrival(ctx)
	ctx, span := s.traceCall(ctx, req, arrival)
	resp, err := s.modelInfer(ctx, req, arrival)
	if span != nil && err == nil && resp.Variant != "" {
		span.SetAttributes(tracing.Answer(resp)...)
	}
	endCall(span, err)
	return resp, err
}

// makeAttempt has the worker run the attempt that the call's headers name.
// answers counts the bytes of the answer; nil: nobody does.
func (s service) makeAttempt(ctx context.Context, req *oip.Request, arrival time.Time,
	answers *oip.Charge) (*oip.Response, error) {
	req.JSON = req.JSON || firstHeader(ctx, control.JSONHeader) != ""
	compare := s.compareAnswer(req)
	resp, err := s.config.Worker.Attempt(ctx, firstHeader(ctx, control.AttemptHeader),
		firstHeader(ctx, control.PartHeader), firstHeader(ctx, control.MergeHeader), req, arrival,
		answers)
	compare(resp, err)
	return resp, s.hideNames(ctx, err)
}

func (s service) modelInfer(ctx context.Context, req *oip.Request,
	arrival time.Time) (*oip.Response, error) {
	if isLocal(ctx) { // this agent's gateway has counted the query already
		return s.makeAttempt(ctx, req, arrival, nil)
	}
	r := receiptOf(ctx)
	if r == nil {
		r = &receipt{Context: ctx, server: s.Server}
	}
	r.charge = *oip.NewCharge(ctx, &s.answers)
	var resp *oip.Response
	var err error
	if isAttempt(ctx) {
		resp, err = s.makeAttempt(ctx, req, arrival, &r.charge)
	} else {
		resp, err = s.answerQuery(ctx, req, arrival, &r.charge)
		s.loads.toCall(ctx)
	}
	if err != nil {
		return nil, err
	}
	s.countSentBytes(r, resp)
	return resp, nil
}

// ModelStatistics returns the statistics of the queries that this agent's lanes ran, not the
// fleet's; of a family, those of its variants.
func (s service) ModelStatistics(ctx context.Context, req *inference.ModelStatisticsRequest) (
	*inference.ModelStatisticsResponse, error) {
	model, version := req.GetName(), req.GetVersion()
	asked := []string{model}
	if model != "" {
		family := s.config.Gateway.Family(model)
		if family != nil {
			asked = family.Names()
		} else if s.knownModel(model) == "" {
			return nil, fmt.Errorf("model %q: %w", model, models.ErrNotFound)
		}
		if version != "" {
			if _, err := s.anyMetadata(model, version); err != nil {
				return nil, err
			}
		}
	}
	number, err := worker.ParseVersion(model, version)
	if err != nil {
		return nil, err
	}
	resp, sees := &inference.ModelStatisticsResponse{}, s.visibilityOf(ctx)
	for _, status := range s.config.Worker.Repository().Index() {
		if status.State != models.Ready || !sees(status.Model) ||
			model != "" && !slices.Contains(asked, status.Model) ||
			number != 0 && number != status.Version {
			continue
		}
		if stats := s.config.Worker.Statistics(status.Model, status.Version); stats != nil {
			resp.ModelStats = append(resp.ModelStats, stats)
		}
	}
	return resp, nil
}

func (s service) RepositoryIndex(ctx context.Context, req *inference.RepositoryIndexRequest) (
	*inference.RepositoryIndexResponse, error) {
	if err := onlyRepository(req.GetRepositoryName()); err != nil {
		return nil, err
	}
	return s.anyIndex(req.GetReady(), s.visibilityOf(ctx)), nil
}

func (s service) RepositoryModelLoad(ctx context.Context,
	req *inference.RepositoryModelLoadRequest) (*inference.RepositoryModelLoadResponse, error) {
	if err := onlyRepository(req.GetRepositoryName()); err != nil {
		return nil, err
	}
	chosen, err := chosenAgent(req.GetParameters())
	if err != nil {
		return nil, err
	}
	if err := noParameters(req.GetParameters()); err != nil {
		return nil, err
	}
	err = s.onAgents(ctx, chosen, req.GetModelName(),
		func() error { return s.loadHere(ctx, req.GetModelName()) },
		func(ctx context.Context, other inference.GRPCInferenceServiceClient) error {
			_, err := other.RepositoryModelLoad(ctx, &inference.RepositoryModelLoadRequest{
				ModelName: req.GetModelName(),
			})
			return err
		})
	s.logRequest(ctx, "load", "asked to load a model", err, "model", cutName(req.GetModelName()),
		"on",
		cutName(string(chosen)))
	if err != nil {
		return nil, err
	}
	return &inference.RepositoryModelLoadResponse{}, nil
}

// loadHere loads a model on this agent, and blocks until it has loaded.
func (s *Server) loadHere(ctx context.Context, model string) error {
	if err := s.config.Worker.ByLeader(); err != nil {
		return err
	}
	if err := s.config.Refresh(ctx, model); err != nil {
		return fmt.Errorf("%w model %q: %w", outcome.ErrLoad, model, err)
	}
	err := s.config.Worker.Repository().Load(ctx, model)
	if err == nil || errors.Is(err, models.ErrNotFound) || errors.Is(err, models.ErrName) ||
		ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("%w model %q: %w", outcome.ErrLoad, model, err)
}

func (s service) RepositoryModelUnload(ctx context.Context,
	req *inference.RepositoryModelUnloadRequest) (*inference.RepositoryModelUnloadResponse, error) {
	if err := onlyRepository(req.GetRepositoryName()); err != nil {
		return nil, err
	}
	// No model depends on another here, so this parameter has no effect.
	delete(req.GetParameters(), "unload_dependents")
	chosen, err := chosenAgent(req.GetParameters())
	if err != nil {
		return nil, err
	}
	if err := noParameters(req.GetParameters()); err != nil {
		return nil, err
	}
	err = s.onAgents(ctx, chosen, req.GetModelName(),
		func() error {
			if err := s.config.Worker.ByLeader(); err != nil {
				return err
			}
			return s.config.Worker.Repository().Unload(ctx, req.GetModelName())
		},
		func(ctx context.Context, other inference.GRPCInferenceServiceClient) error {
			_, err := other.RepositoryModelUnload(ctx, &inference.RepositoryModelUnloadRequest{
				ModelName: req.GetModelName(),
			})
			return err
		})
	s.logRequest(ctx, "unload", "asked to unload a model", err, "model",
		cutName(req.GetModelName()),
		"on",
		cutName(string(chosen)))
	if err != nil {
		return nil, err
	}
	return &inference.RepositoryModelUnloadResponse{}, nil
}

// onlyRepository returns an error if a request names a repository: an agent has one repository,
// without a name.
func onlyRepository(name string) error {
	if name != "" {
		return outcome.Invalid("repository name %q, want none: an agent has one repository", name)
	}
	return nil
}

// noParameters returns an error if parameters are left in a load or unload call: a model's settings
// are in its model.yaml.
func noParameters(parameters map[string]*inference.ModelRepositoryParameter) error {
	names := make([]string, 0, len(parameters))
	for name := range parameters {
		names = append(names, name)
	}
	slices.Sort(names)
	if len(names) > 0 {
		return outcome.Invalid(
			"unknown parameters %q, want none but %q: a model's settings are in its model.yaml",
			names, agentParameter)
	}
	return nil
}

// Knows reports whether this agent's repository or any member has the model, or a variant of the
// family.
func (s *Server) Knows(model string) bool { return s.knownModel(model) != "" }

// knownModel returns model, or "" if neither this agent's repository nor any member has it.
func (s *Server) knownModel(model string) string {
	if len(s.fleetVersions(model)) > 0 || s.config.Gateway.Family(model) != nil {
		return model
	}
	for _, status := range s.config.Worker.Repository().Index() {
		if status.Model == model {
			return model
		}
	}
	return ""
}
