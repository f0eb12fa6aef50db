package serve

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/agent/worker"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/models"
)

// Leading is the half of the agent that leads, if it does. Its methods may be called concurrently.
type Leading interface {
	members.Leading
	// Match serves the Match stream of a gateway.
	Match(control.Control_MatchServer) error
	// Status fills in what only the leader knows.
	Status(*control.FleetStatus)
	// Demand fills in what only the leader knows, and reports whether this agent is it.
	Demand(*control.FleetDemand) bool
}

// A Config says what a [Server] serves, and what it needs of the rest of the agent. Functions
// may be called concurrently.
type Config struct {
	Name    names.AgentName // of the agent in its fleet
	Members *members.Members
	Keyring *members.Keyring
	Worker  *worker.Worker
	Leading Leading
	Gateway *client.Gateway // of this agent
	Guard   *secure.Guard
	Events  *Events
	Health  *Health
	Local   *Local // the connection of this agent to itself

	// MaxWaitingBytes bounds the bytes of the queries in the agent.
	MaxWaitingBytes int64
	// ReceiveTimeout is how long a client may take to send a query, SendTimeout to read an answer.
	ReceiveTimeout, SendTimeout time.Duration
	// GRPCAddress and MetricsAddress are where these servers listen, for people.
	GRPCAddress, MetricsAddress string
	Encrypted                   bool // the servers
	Pprof                       bool // the metrics server serves profiles, too
	Version                     string

	// Closing ends when the servers close.
	Closing context.Context
	// Drain has the agent drain and stop; Draining reports whether it does.
	Drain    func()
	Draining func() bool

	Registry *prometheus.Registry
	Tracer   trace.Tracer // nil: nothing is traced
	Log      *slog.Logger
}

// A Server answers clients, other agents and SDKs, by gRPC, REST and in process. Its methods may be
// called concurrently.
type Server struct {
	config  Config
	metrics *metrics
	intake  intake // of queries
	answers intake
	// arriving are the timeouts of queries on their way here by gRPC, sending those
	// of what goes out.
	arriving, sending timeouts
	largest           atomic.Int64 // query by gRPC, in bytes
	alone             atomic.Bool  // no other agent is known
	settled           atomic.Bool  // the first models have loaded, or failed to

	grpc          *grpc.Server
	rest, scraped *http.Server
}

// New returns a server of which only the local connection is served yet.
func New(config Config) *Server {
	s := &Server{config: config}
	s.alone.Store(true)
	s.largest.Store(leastLimit)
	clients, lanes := Callers{config.Guard}, config.Worker.Lanes()
	s.answers.limit, s.answers.queue, s.answers.clients = max(config.MaxWaitingBytes,
		leastAnswers), lanes.Stats, clients
	s.intake.limit, s.intake.queue, s.intake.clients = config.MaxWaitingBytes, lanes.Stats, clients
	s.intake.answers = &s.answers
	s.metrics = newMetrics(config.Registry, &s.intake, config.Gateway.Stats)
	s.grpc = s.newGRPCServer()
	s.rest = s.newHTTPServer(config.Guard.HTTP(s.newREST()))
	s.scraped = s.newHTTPServer(config.Guard.HTTP(s.newMetricsHandler()))
	config.Local.intercept = s.interceptUnary
	s.register(config.Local)
	return s
}

// ServeGRPC serves gRPC on a listener until Stop.
func (s *Server) ServeGRPC(l net.Listener) error {
	err := s.grpc.Serve(patientListener{l, s.config.Log})
	if errors.Is(err, grpc.ErrServerStopped) { // Stop came first
		return nil
	}
	return err
}

// ServeREST serves the protocol's REST form on a listener until Stop.
func (s *Server) ServeREST(l net.Listener) error {
	return serveHTTP(s.rest, s.config.Guard.Listen(l))
}

// ServeMetrics serves the metrics on a listener until Close.
func (s *Server) ServeMetrics(l net.Listener) error {
	return serveHTTP(s.scraped, s.config.Guard.Listen(l))
}

func serveHTTP(server *http.Server, l net.Listener) error {
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Stop lets the calls in progress finish until ctx ends, and then ends them.
func (s *Server) Stop(ctx context.Context) {
	s.config.Guard.HangUp() // who says nothing would keep the servers from stopping
	cutOff := func(server string) {
		s.config.Log.Warn("connections were cut off", "server", server, "error", ctx.Err())
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.grpc.GracefulStop()
	}()
	if err := s.rest.Shutdown(ctx); err != nil {
		cutOff("http")
		_ = s.rest.Close() // says no more than Shutdown did
	}
	select {
	case <-ended:
	case <-ctx.Done():
		cutOff("grpc")
		s.grpc.Stop()
		<-ended
	}
}

// Close ends the metrics' server. There is nothing to lose: scrapes come again.
func (s *Server) Close() { _ = s.scraped.Close() }

// REST handles what comes by REST.
func (s *Server) REST() http.Handler { return s.rest.Handler }

// Sizes tells of how much the server keeps, for tests that look for what grows.
func (s *Server) Sizes(tell func(what string, n int)) {
	tell("serve: bytes of queries", int(s.intake.held.Load()))
	tell("serve: bytes of answers", int(s.answers.held.Load()))
	s.intake.mu.Lock()
	defer s.intake.mu.Unlock()
	tell("serve: clients with queries", len(s.intake.of))
}

// Alone reports whether no other agent is known.
func (s *Server) Alone() bool { return s.alone.Load() }

// Full refuses a query of a call whose size is not known yet if there is no room; nil if there is.
func (s *Server) Full(ctx context.Context) error { return s.intake.full(ctx) }

// Loaded has queries of a version accepted, however large its model allows them to be.
func (s *Server) Loaded(v *models.Version) {
	s.allowLargest(v.Inputs, v.Config.LargestBatchSize)
}

// Settle makes the agent ready, once the first models have loaded or failed.
func (s *Server) Settle() {
	if !s.config.Draining() {
		s.config.Health.ready() // first, so that whoever finds the server Ready finds it healthy
	}
	s.settled.Store(true)
	s.config.Guard.KnowModels(s.Knows)
}

// Ready reports whether the agent takes queries.
func (s *Server) Ready() bool { return s.settled.Load() && !s.config.Draining() }

func (s *Server) unreadyReason() string {
	if s.config.Draining() {
		return "draining"
	}
	return "loading models"
}

// newMetricsHandler serves the metrics, and profiles where asked for.
func (s *Server) newMetricsHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, req *http.Request) {
		promhttp.HandlerFor(s.visibleMetrics(req.Context()), promhttp.HandlerOpts{}).ServeHTTP(w,
			req)
	})
	if s.config.Pprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}
