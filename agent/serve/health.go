package serve

import (
	"context"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/models"
)

// Health holds the status that gRPC's health service reports: of the agent (""), of the inference
// service, and of each model. Its methods may be called concurrently.
type Health struct {
	server  *health.Server
	settled atomic.Bool // the first models have loaded, or failed to
	// publishing is held from a look at whether the agent is ready until that is published, so that
	// the last look is published last.
	publishing sync.Mutex

	mu    sync.Mutex
	serve map[string]map[int64]bool // the ready versions of each model
	// models are the models that the server keeps a status of: their files have been seen. Callers
	// that may know only some models cannot use the server's own List, which is of all models, and
	// of at most 100.
	models map[string]bool
}

// NewHealth returns the Health of an agent that is not ready.
func NewHealth() *Health {
	h := &Health{server: health.NewServer(), serve: map[string]map[int64]bool{},
		models: map[string]bool{}}
	h.setServing(false)
	return h
}

// settle reports the agent and the inference service as serving if it is fit for that, and then as
// settled: a server that is ready is also healthy.
func (h *Health) settle(isFit func() bool) {
	h.publishing.Lock()
	defer h.publishing.Unlock()
	h.setServing(isFit())
	h.settled.Store(true)
}

// publish reports whether the agent and the inference service serve, if the agent has settled.
func (h *Health) publish(isFit func() bool) {
	h.publishing.Lock()
	defer h.publishing.Unlock()
	if h.settled.Load() {
		h.setServing(isFit())
	}
}

// setServing has no effect after Shutdown.
func (h *Health) setServing(serves bool) {
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if serves {
		status = healthpb.HealthCheckResponse_SERVING
	}
	h.server.SetServingStatus("", status)
	h.server.SetServingStatus(inference.GRPCInferenceService_ServiceDesc.ServiceName, status)
}

// Settled reports whether the first models have loaded, or failed to.
func (h *Health) Settled() bool { return h.settled.Load() }

// Shutdown reports everything as not serving, for good.
func (h *Health) Shutdown() { h.server.Shutdown() }

// Observe updates a model's status after a change of one of its versions.
func (h *Health) Observe(e models.VersionEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.serve[e.Model] == nil {
		h.serve[e.Model] = map[int64]bool{}
	}
	if e.State == models.Ready {
		h.serve[e.Model][e.Version] = true
	} else {
		delete(h.serve[e.Model], e.Version)
	}
	serving := healthpb.HealthCheckResponse_SERVING
	if len(h.serve[e.Model]) == 0 {
		delete(h.serve, e.Model)
		serving = healthpb.HealthCheckResponse_NOT_SERVING
	}
	h.models[e.Model] = true
	h.server.SetServingStatus(e.Model, serving)
}

// serviceNames returns the services with a status that are not models, and the models that sees
// accepts.
func (h *Health) serviceNames(sees func(model string) bool) []string {
	names := []string{"", inference.GRPCInferenceService_ServiceDesc.ServiceName}
	h.mu.Lock()
	defer h.mu.Unlock()
	for model := range h.models {
		if sees(model) {
			names = append(names, model)
		}
	}
	return names
}

// A healthService answers health checks. Anybody may ask for the health of the agent (""), as load
// balancers do, and of the inference service. Of a model, only a caller that may query it learns
// more than of one that does not exist.
type healthService struct {
	healthpb.UnimplementedHealthServer
	*Server
}

// mayKnow reports whether the caller of the call with context ctx may know the status of a service.
func (s healthService) mayKnow(ctx context.Context, service string) bool {
	return service == "" || service == inference.GRPCInferenceService_ServiceDesc.ServiceName ||
		s.visibilityOf(ctx)(service)
}

// Check returns the status of a service.
func (s healthService) Check(ctx context.Context, req *healthpb.HealthCheckRequest) (
	*healthpb.HealthCheckResponse, error) {
	if !s.mayKnow(ctx, req.GetService()) {
		return nil, status.Error(codes.NotFound, "unknown service") // as [health.Server.Check]
	}
	return s.config.Health.server.Check(ctx, req)
}

// List returns the status of each service of which the caller may know.
func (s healthService) List(ctx context.Context, _ *healthpb.HealthListRequest) (
	*healthpb.HealthListResponse, error) {
	all := map[string]*healthpb.HealthCheckResponse{}
	for _, name := range s.config.Health.serviceNames(s.visibilityOf(ctx)) {
		found, err := s.config.Health.server.Check(ctx, &healthpb.HealthCheckRequest{Service: name})
		if err != nil {
			return nil, err
		}
		all[name] = found
	}
	return &healthpb.HealthListResponse{Statuses: all}, nil
}

// Watch streams the status of a service, whenever it changes.
func (s healthService) Watch(req *healthpb.HealthCheckRequest,
	stream healthpb.Health_WatchServer) error {
	return s.config.Health.server.Watch(req, &visibleHealth{
		Health_WatchServer: stream, last: -1,
		knows: func() bool { return s.mayKnow(stream.Context(), req.GetService()) },
	})
}

// A visibleHealth is a Watch stream that tells a caller nothing of a service of which it may not
// know, also not when it changes.
type visibleHealth struct {
	healthpb.Health_WatchServer
	knows func() bool
	last  healthpb.HealthCheckResponse_ServingStatus // that was sent; -1: none
}

// Send implements [healthpb.Health_WatchServer].
func (v *visibleHealth) Send(r *healthpb.HealthCheckResponse) error {
	if !v.knows() {
		r = &healthpb.HealthCheckResponse{
			Status: healthpb.HealthCheckResponse_SERVICE_UNKNOWN,
		}
	}
	if r.GetStatus() == v.last {
		return nil
	}
	v.last = r.GetStatus()
	return v.Health_WatchServer.Send(r)
}
