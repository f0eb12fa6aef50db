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

	"github.com/muster-serve/muster/agent/capture"
	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/agent/modelstore"
	"github.com/muster-serve/muster/agent/picker"
	"github.com/muster-serve/muster/agent/shadow"
	"github.com/muster-serve/muster/agent/worker"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/models"
)

// Leader is the part of the agent that leads when elected. Its methods may be called concurrently.
type Leader interface {
	control.Elections
	// Match serves the Match stream of a gateway, and blocks until it ends.
	Match(control.Stream[control.MatchMessage, control.GatewayMessage]) error
	// Status adds the figures that only the leader knows; none if this agent does not lead.
	Status(*control.FleetStatus)
	// Demand adds what only the leader knows. It reports false if this agent does not lead.
	Demand(*control.FleetDemand) bool
	// Place does what a person asks of the placement, in by's name, if this agent leads; else it
	// fails with UNAVAILABLE.
	Place(ctx context.Context, req *control.PlaceRequest, by string) (*control.PlaceResponse, error)
}

// Renter is the part of the agent that rents while this agent leads. The errors have the code to
// answer with. Its methods may be called concurrently.
type Renter interface {
	// State returns what this agent rents as the leader, Set changes what is desired of it.
	State() (*control.FleetState, error)
	Set(*control.SetFleetRequest) (*control.FleetState, error)
}

// Releases is the part of the agent that keeps releases. The errors have the code to answer with.
// Its methods may be called concurrently.
type Releases interface {
	// State returns the releases of a model or, for "", of all, and what this agent has counted of
	// canaries if it leads. Set makes a release, or fails with UNAVAILABLE if it does not.
	State(model string) (*control.ReleaseResponse, error)
	Set(context.Context, *control.SetReleaseRequest) (*control.ReleaseResponse, error)
}

// A Config holds what a [Server] serves, and what it needs of the rest of the agent. Functions must
// not block and may be called concurrently.
type Config struct {
	Name    names.AgentName // the agent's name in its fleet
	Members *members.Members
	Keyring *members.Keyring
	Worker  *worker.Worker
	Counts  *QueryCounters
	Leading Leader
	// Leadership tells which leader this agent follows.
	Leadership members.LeadershipSource
	Renting    Renter
	Releases   Releases
	Gateway    *client.Gateway // this agent's gateway
	Shadows    *shadow.Comparer
	Captures   *capture.Recorder // nil: no queries are kept
	Guard      *secure.Guard
	Events     *Events
	Health     *Health
	Local      *Local // this agent's connection to itself; New registers the services with it

	// Note returns a remark about a version that serves, such as that nobody has signed it; "" if
	// there is none. It may be nil. It must not block.
	Note func(model string, version int64) string
	// Refresh brings a model's files to what a model store has, and blocks until then. Without a
	// store it does nothing.
	Refresh func(ctx context.Context, model string) error
	// Files gives other agents files of the model store.
	Files *modelstore.Server

	// MaxWaitingBytes bounds the bytes of all queries in the agent, running ones included.
	MaxWaitingBytes int64
	// ReceiveTimeout is how long a client may take to send a query, SendTimeout how long to read an
	// answer.
	ReceiveTimeout, SendTimeout time.Duration
	// GRPCAddress and MetricsAddress are the addresses of these servers, host:port, for the page at
	// "/".
	GRPCAddress, MetricsAddress string
	Encrypted                   bool // the servers use TLS
	Pprof                       bool // the metrics server also serves Go's profiles
	// Beats serves what agents tell each other for the dashboard.
	Beats   control.DashboardServer
	Version string

	// Lacks says what keeps an agent from being ready that could serve; "" if nothing does. It may
	// change with Leadership only, and may be nil.
	Lacks func() string

	// Closing ends when the servers begin to close.
	Closing context.Context
	// Drain makes the agent drain and stop, and returns at once; Draining reports whether the agent
	// drains.
	Drain    func()
	Draining func() bool

	Registry *prometheus.Registry
	Tracer   trace.Tracer // nil: the server makes no spans
	Log      *slog.Logger
}

// A Server answers clients, other agents and SDKs, by gRPC, REST and in process. Its methods may be
// called concurrently.
type Server struct {
	config Config
	intake intake // bounds the bytes of queries
	// answers bounds the bytes of answers that clients have not read yet.
	answers intake
	// arriving holds the timeouts of queries that arrive by gRPC, sending those of messages that
	// clients are to read.
	arriving, sending timeouts
	largest           atomic.Int64 // the largest query accepted by gRPC, in bytes
	alone             atomic.Bool  // the view has no other agent
	loads             *loads

	// picker answers gateways, and turnstile lets what they send here through.
	picker    *picker.Picker
	turnstile *picker.Turnstile
	// dashboard answers the requests under /dashboard; nil: there is none.
	dashboard     http.Handler
	queries       queryConns
	conns         *httpConns
	grpc          *grpc.Server
	rest, scraped *http.Server
	probe         *http.Server
}

// New returns a Server. Calls through config.Local are served at once, the servers once their
// Serve methods are called.
func New(config Config) *Server {
	s := &Server{config: config, conns: newHTTPConns()}
	s.alone.Store(true)
	s.largest.Store(minLimit)
	clients, lanes := Callers{config.Guard}, config.Worker.Lanes()
	s.answers.limit, s.answers.lanes, s.answers.clients = max(config.MaxWaitingBytes,
		minAnswers), lanes, clients
	s.intake.limit, s.intake.lanes, s.intake.clients = config.MaxWaitingBytes, lanes, clients
	s.intake.answers = &s.answers
	registerMetrics(config.Registry, &s.intake, config.Gateway.Stats, config.Members.Own)
	s.loads = newLoads(config.Worker, s.laneType)
	s.queries = queryConns{
		server: s, stopped: make(chan struct{}), conns: map[*queryConn]struct{}{},
	}
	s.picker, s.turnstile = s.newPicker(), picker.NewTurnstile(config.Name, config.Guard)
	s.grpc = s.newGRPCServer()
	s.rest = s.newHTTPServer(config.Guard.HTTP(s.newREST()))
	s.scraped = s.newHTTPServer(config.Guard.HTTP(s.newMetricsHandler()))
	s.probe = s.newProbeServer()
	config.Worker.OnLoad(s.Loaded)
	config.Local.intercept, config.Local.server = s.interceptUnary, s
	s.register(config.Local)
	return s
}

// ServeGRPC serves gRPC on l. It blocks until Stop, and then returns nil; it returns an error if
// serving failed. It closes l.
func (s *Server) ServeGRPC(l net.Listener) error {
	err := s.grpc.Serve(patientListener{l, s.config.Log})
	if errors.Is(err, grpc.ErrServerStopped) { // Stop was called before
		return nil
	}
	return err
}

// ServeREST serves the inference protocol's REST form on l, until Stop; see ServeGRPC.
func (s *Server) ServeREST(l net.Listener) error {
	return serveHTTP(s.rest, s.config.Guard.Listen(l))
}

// ServeMetrics serves the metrics on l, until Close; see ServeGRPC.
func (s *Server) ServeMetrics(l net.Listener) error {
	return serveHTTP(s.scraped, s.config.Guard.Listen(l))
}

func serveHTTP(server *http.Server, l net.Listener) error {
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Stop stops the gRPC and REST servers: they accept no new calls. It blocks until the calls in
// progress have finished; when ctx ends, it ends them.
func (s *Server) Stop(ctx context.Context) {
	s.config.Guard.HangUp() // connections that have sent nothing would delay the stop
	cutOff := func(server string) {
		s.config.Log.Warn("the server closes connections whose calls have not ended", "server",
			server,
			"error", ctx.Err())
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.grpc.GracefulStop()
		s.queries.stop(ctx)
	}()
	if err := s.rest.Shutdown(ctx); err != nil {
		cutOff("http")
		_ = s.rest.Close() // its error says no more than Shutdown's
	}
	select {
	case <-ended:
	case <-ctx.Done():
		cutOff("grpc")
		s.grpc.Stop()
		<-ended
	}
}

// Close stops the servers of metrics and of probes at once. An interrupted scrape or probe is
// repeated later.
func (s *Server) Close() {
	_ = s.scraped.Close()
	_ = s.probe.Close()
}

// REST returns the handler of REST requests, for tests.
func (s *Server) REST() http.Handler { return s.rest.Handler }

// Sizes calls tell with the amount of each thing that the server keeps, for tests that look for
// leaks.
func (s *Server) Sizes(tell func(what string, n int)) {
	tell("serve: bytes of queries", int(s.intake.held.Load()))
	tell("serve: bytes of answers", int(s.answers.held.Load()))
	s.intake.mu.Lock()
	defer s.intake.mu.Unlock()
	tell("serve: clients with queries", len(s.intake.of))
}

// QueryConns returns how many connections for queries are open, for tests.
func (s *Server) QueryConns() int {
	s.queries.mu.Lock()
	defer s.queries.mu.Unlock()
	return len(s.queries.conns)
}

// Alone reports whether the view has no other agent.
func (s *Server) Alone() bool { return s.alone.Load() }

// ServeDashboard makes h answer the requests under /dashboard. It must be called before ServeREST.
func (s *Server) ServeDashboard(h http.Handler) { s.dashboard = h }

// Loaded raises the limit on a query's size to what the version allows, and makes the version's
// series. It is called before the version serves.
func (s *Server) Loaded(v *models.Version) {
	free := v.Batchless || v.Roles != nil && v.Roles.NeedsRoles()
	s.allowLargest(v.Inputs, v.Config.LargestBatchSize, free)
	s.config.Counts.makeSeries(v.Model, v.Number)
	if s.config.Captures == nil && v.Config.Capture.Share > 0 {
		s.config.Log.Warn("model.yaml says that queries are to be kept; this agent keeps none without "+
			"--capture", "model", v.Model)
	}
}

// Settle makes the agent ready. It must be called once, when the first models have loaded or
// failed.
func (s *Server) Settle() {
	s.config.Health.settle(s.isFit)
	s.config.Guard.KnowModels(s.Knows)
}

// Ready reports whether the agent is to be sent queries: after Settle, before a drain, and while it
// lacks nothing.
func (s *Server) Ready() bool { return s.config.Health.Settled() && s.isFit() }

// isFit reports whether the agent is ready once it has settled.
func (s *Server) isFit() bool {
	return !s.config.Draining() && (s.config.Lacks == nil || s.config.Lacks() == "")
}

func (s *Server) unreadyReason() string {
	switch {
	case s.config.Draining():
		return "draining"
	case !s.config.Health.Settled():
		return "loading models"
	}
	return s.config.Lacks()
}

// newMetricsHandler serves /metrics and, if Config.Pprof is set, Go's profiles.
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
