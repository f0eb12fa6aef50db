package serve

import (
	"sync"

	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/models"
)

// Health is what the agent says of its health by gRPC's own protocol. Its methods may be called
// concurrently.
type Health struct {
	server *health.Server

	mu    sync.Mutex
	serve map[string]map[int64]bool // versions that are ready, by model
}

// NewHealth returns that of an agent that is not ready.
func NewHealth() *Health {
	h := &Health{server: health.NewServer(), serve: map[string]map[int64]bool{}}
	h.server.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	h.server.SetServingStatus(inference.GRPCInferenceService_ServiceDesc.ServiceName,
		healthpb.HealthCheckResponse_NOT_SERVING)
	return h
}

// ready says that the agent takes queries.
func (h *Health) ready() {
	h.server.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
	h.server.SetServingStatus(inference.GRPCInferenceService_ServiceDesc.ServiceName,
		healthpb.HealthCheckResponse_SERVING)
}

// Shutdown says that nothing is served any more.
func (h *Health) Shutdown() { h.server.Shutdown() }

// Observe follows the life of the model versions.
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
