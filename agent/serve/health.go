package serve

import (
	"sync"

	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/models"
)

// Health holds the status that gRPC's health service reports: of the agent (""), of the inference
// service, and of each model. Its methods may be called concurrently.
type Health struct {
	server *health.Server

	mu    sync.Mutex
	serve map[string]map[int64]bool // the ready versions of each model
}

// NewHealth returns the Health of an agent that is not ready.
func NewHealth() *Health {
	h := &Health{server: health.NewServer(), serve: map[string]map[int64]bool{}}
	h.server.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	h.server.SetServingStatus(inference.GRPCInferenceService_ServiceDesc.ServiceName,
		healthpb.HealthCheckResponse_NOT_SERVING)
	return h
}

// ready reports the agent and the inference service as serving.
func (h *Health) ready() {
	h.server.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
	h.server.SetServingStatus(inference.GRPCInferenceService_ServiceDesc.ServiceName,
		healthpb.HealthCheckResponse_SERVING)
}

// Shutdown reports everything as not serving, for good.
func (h *Health) Shutdown() { h.server.Shutdown() }

// Observe updates a model's status after a change of one of its versions.
func (h *Health) Observe(e models.Event) {
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
	status := healthpb.HealthCheckResponse_SERVING
	if len(h.serve[e.Model]) == 0 {
		delete(h.serve, e.Model)
		status = healthpb.HealthCheckResponse_NOT_SERVING
	}
	h.server.SetServingStatus(e.Model, status)
}
