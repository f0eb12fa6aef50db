package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/models"
)

// extensions are those of the protocol that the agent speaks.
var extensions = []string{"binary_tensor_data", "model_repository", "statistics", client.FleetExtension}

// A service answers the protocol's calls, for gRPC and REST alike. Its errors
// are plain; each protocol's server gives them a code (status.go).
type service struct{ *Agent }

func (s service) ServerLive(context.Context, *inference.ServerLiveRequest) (*inference.ServerLiveResponse, error) {
	return &inference.ServerLiveResponse{Live: true}, nil
}

func (s service) ServerReady(context.Context, *inference.ServerReadyRequest) (*inference.ServerReadyResponse, error) {
	return &inference.ServerReadyResponse{Ready: s.ready()}, nil
}

// ModelReady says no of a model that does not exist, as other servers do; only
// a version that cannot be one is an error.
func (s service) ModelReady(_ context.Context, req *inference.ModelReadyRequest) (*inference.ModelReadyResponse, error) {
	isReady, err := s.anyReady(req.GetName(), req.GetVersion())
	if err != nil {
		return nil, err
	}
	return &inference.ModelReadyResponse{Ready: isReady}, nil
}

func (s service) ServerMetadata(context.Context, *inference.ServerMetadataRequest) (*inference.ServerMetadataResponse, error) {
	spoken := extensions
	if info := s.executor.Info(); info.Executor != "onnx" { // nobody should take its answers for a model's
		spoken = append(slices.Clone(spoken), info.Executor)
	}
	return &inference.ServerMetadataResponse{Name: "muster", Version: Version(), Extensions: spoken}, nil
}

func (s service) ModelMetadata(_ context.Context, req *inference.ModelMetadataRequest) (*inference.ModelMetadataResponse, error) {
	return s.anyMetadata(req.GetName(), req.GetVersion())
}

// modelMetadata is what the protocol says of a version that the agent holds.
func (a *Agent) modelMetadata(v *models.Version) *inference.ModelMetadataResponse {
	resp := &inference.ModelMetadataResponse{
		Name:     v.Model,
		Platform: a.platform(),
		Inputs:   tensorMetadata(v.Inputs),
		Outputs:  tensorMetadata(v.Outputs),
		Properties: oip.Properties{
			QoSTarget:        v.Config.QoSTarget,
			QoSPercentile:    v.Config.QoSPercentile,
			Deadline:         v.Config.Deadline,
			LargestBatchSize: v.Config.LargestBatchSize,
			IDBounds:         idBounds(v.Inputs),
		}.Map(),
	}
	for _, status := range a.repository.Index() {
		if status.Model == v.Model && status.State == models.Ready {
			resp.Versions = append(resp.Versions, strconv.FormatInt(status.Version, 10))
		}
	}
	return resp
}

// platform is what runs the models, by the names other servers use.
func (a *Agent) platform() string {
	if info := a.executor.Info(); info.Executor != "onnx" {
		return info.Executor
	}
	return "onnxruntime_onnx"
}

func tensorMetadata(ports []models.Port) []*inference.ModelMetadataResponse_TensorMetadata {
	metadata := make([]*inference.ModelMetadataResponse_TensorMetadata, len(ports))
	for i, p := range ports {
		metadata[i] = &inference.ModelMetadataResponse_TensorMetadata{
			Name: p.Name, Datatype: string(p.DataType), Shape: p.Shape,
		}
	}
	return metadata
}

func idBounds(ports []models.Port) map[string][]int64 {
	bounds := map[string][]int64{}
	for _, p := range ports {
		if len(p.IDBounds) > 0 {
			bounds[p.Name] = p.IDBounds
		}
	}
	return bounds
}

// ModelInfer takes a query that came by gRPC.
func (s service) ModelInfer(ctx context.Context, req *oip.Request) (*oip.Response, error) {
	arrival := received(ctx)
	ctx, span := s.traceCall(ctx, req, arrival)
	resp, err := s.modelInfer(ctx, req, arrival)
	endCall(span, err)
	return resp, err
}

func (s service) modelInfer(ctx context.Context, req *oip.Request, arrival time.Time) (*oip.Response, error) {
	if isLocal(ctx) { // its gateway has counted it
		return s.station.run(ctx, req, arrival)
	}
	attempt := isAttempt(ctx)
	var resp *oip.Response
	var err error
	if attempt {
		resp, err = s.station.run(ctx, req, arrival)
	} else {
		resp, err = s.infer(ctx, req, arrival)
	}
	if err != nil {
		return nil, err
	}
	if err := s.sent(ctx, resp); err != nil {
		return nil, s.refuseArrival(err, attempt)
	}
	return resp, nil
}

// ModelStatistics are this agent's own: of the queries that its lanes ran.
func (s service) ModelStatistics(ctx context.Context, req *inference.ModelStatisticsRequest) (*inference.ModelStatisticsResponse, error) {
	model, version := req.GetName(), req.GetVersion()
	if model != "" {
		if s.knownModel(model) == "" {
			return nil, fmt.Errorf("model %q: %w", model, models.ErrNotFound)
		}
		if version != "" {
			if _, err := s.anyMetadata(model, version); err != nil {
				return nil, err
			}
		}
	}
	resp, sees := &inference.ModelStatisticsResponse{}, s.sees(ctx)
	for _, status := range s.repository.Index() {
		number := strconv.FormatInt(status.Version, 10)
		if status.State != models.Ready || !sees(status.Model) || model != "" && model != status.Model || version != "" && version != number {
			continue
		}
		resp.ModelStats = append(resp.ModelStats, s.metrics.version(status.Model, status.Version).statistics())
	}
	return resp, nil
}

// statistics are the version's counts in the protocol's form. Queries are not
// merged, so that a query is an execution; inference_count counts items, as
// other servers do.
func (v *versionMetrics) statistics() *inference.ModelStatistics {
	duration := func(count uint64, sum time.Duration) *inference.StatisticDuration {
		return &inference.StatisticDuration{Count: count, Ns: uint64(sum)}
	}
	failed := 0.0
	for _, c := range v.failures {
		failed += total(c)
	}
	requests, requestTime := totals(v.request)
	queued, queueTime := totals(v.queue)
	executed, executionTime := totals(v.execution)
	none := duration(executed, 0) // what copying costs is not told apart
	return &inference.ModelStatistics{
		Name:           v.key.model,
		Version:        strconv.FormatInt(v.key.version, 10),
		LastInference:  uint64(v.lastInference.Load()),
		InferenceCount: uint64(total(v.items)),
		ExecutionCount: executed,
		InferenceStats: &inference.InferStatistics{
			Success:       duration(requests, requestTime),
			Fail:          duration(uint64(failed), time.Duration(total(v.failureSeconds)*float64(time.Second))),
			Queue:         duration(queued, queueTime),
			ComputeInput:  none,
			ComputeInfer:  duration(executed, executionTime),
			ComputeOutput: none,
			CacheHit:      duration(0, 0),
			CacheMiss:     duration(0, 0),
		},
	}
}

func (s service) RepositoryIndex(ctx context.Context, req *inference.RepositoryIndexRequest) (*inference.RepositoryIndexResponse, error) {
	if err := onlyRepository(req.GetRepositoryName()); err != nil {
		return nil, err
	}
	return s.anyIndex(req.GetReady(), s.sees(ctx)), nil
}

func (s service) RepositoryModelLoad(ctx context.Context, req *inference.RepositoryModelLoadRequest) (*inference.RepositoryModelLoadResponse, error) {
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
			_, err := other.RepositoryModelLoad(ctx, &inference.RepositoryModelLoadRequest{ModelName: req.GetModelName()})
			return err
		})
	s.audit(ctx, "load", "asked to load a model", err, "model", short(req.GetModelName()), "on", short(chosen))
	if err != nil {
		return nil, err
	}
	return &inference.RepositoryModelLoadResponse{}, nil
}

// loadHere has this agent load a model.
func (a *Agent) loadHere(ctx context.Context, model string) error {
	err := a.repository.Load(ctx, model)
	if err == nil || errors.Is(err, models.ErrNotFound) || errors.Is(err, models.ErrName) || ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("%w model %q: %w", errLoad, model, err)
}

func (s service) RepositoryModelUnload(ctx context.Context, req *inference.RepositoryModelUnloadRequest) (*inference.RepositoryModelUnloadResponse, error) {
	if err := onlyRepository(req.GetRepositoryName()); err != nil {
		return nil, err
	}
	// Models do not depend on each other here, so this one changes nothing.
	delete(req.GetParameters(), "unload_dependents")
	chosen, err := chosenAgent(req.GetParameters())
	if err != nil {
		return nil, err
	}
	if err := noParameters(req.GetParameters()); err != nil {
		return nil, err
	}
	err = s.onAgents(ctx, chosen, req.GetModelName(),
		func() error { return s.repository.Unload(ctx, req.GetModelName()) },
		func(ctx context.Context, other inference.GRPCInferenceServiceClient) error {
			_, err := other.RepositoryModelUnload(ctx, &inference.RepositoryModelUnloadRequest{ModelName: req.GetModelName()})
			return err
		})
	s.audit(ctx, "unload", "asked to unload a model", err, "model", short(req.GetModelName()), "on", short(chosen))
	if err != nil {
		return nil, err
	}
	return &inference.RepositoryModelUnloadResponse{}, nil
}

// onlyRepository refuses the name of a repository: an agent has one, without a
// name.
func onlyRepository(name string) error {
	if name != "" {
		return invalid("repository name %q, want none: an agent has one repository", name)
	}
	return nil
}

// noParameters refuses parameters of a load or unload: a model's configuration
// is its model.yaml.
func noParameters(parameters map[string]*inference.ModelRepositoryParameter) error {
	names := make([]string, 0, len(parameters))
	for name := range parameters {
		names = append(names, name)
	}
	slices.Sort(names)
	if len(names) > 0 {
		return invalid("unknown parameters %q, want none but %q: a model's settings are in its model.yaml", names, agentParameter)
	}
	return nil
}

// knownModel is model, or "" if neither the repository nor the fleet has one of
// that name.
func (a *Agent) knownModel(model string) string {
	if len(a.fleetVersions(model)) > 0 {
		return model
	}
	for _, status := range a.repository.Index() {
		if status.Model == model {
			return model
		}
	}
	return ""
}
