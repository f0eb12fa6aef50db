package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/muster-serve/muster/agent/capture"
	"github.com/muster-serve/muster/agent/dashboard"
	"github.com/muster-serve/muster/agent/lead"
	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/agent/modelstore"
	"github.com/muster-serve/muster/agent/release"
	"github.com/muster-serve/muster/agent/release/stored"
	"github.com/muster-serve/muster/agent/rent"
	"github.com/muster-serve/muster/agent/serve"
	"github.com/muster-serve/muster/agent/shadow"
	"github.com/muster-serve/muster/agent/slowlog"
	"github.com/muster-serve/muster/agent/worker"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/api/tracing"
	"github.com/muster-serve/muster/api/version"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/cloud/policy"
	"github.com/muster-serve/muster/gossip"
	"github.com/muster-serve/muster/leader/election"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/dirlock"
	"github.com/muster-serve/muster/models/store"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/isolate"
)

// An Agent is one node of a fleet. New makes it; Run opens its sockets, serves, drains and stops.
// Addresses, Name, Trace and Run are for the caller that made it.
//
// While Run runs, the agent has these goroutines: those of its servers, with one or more for each
// connection and call; those of the model repository, of gossip, of members.Members and of
// lead.Leader; those of the slow log and of captures; and one each that waits for the first models,
// updates the gateway's view of the fleet, finds out the instance type, watches the card and the
// limits of the process, gathers the dashboard's beats, and forgets what belongs to removed
// versions and agents. All have ended when Run returns.
type Agent struct {
	config  Config
	log     *slog.Logger // its handler also records events for [serve.Events]
	events  *serve.Events
	tracer  trace.Tracer // nil: the agent makes no spans
	metrics *metrics
	health  *serve.Health
	env     Environment

	name      names.AgentName // unique in the fleet
	catalogue *profiles.Catalogue
	library   *profiles.Library  // the profiles that come with the program
	slow      profiles.Slowdowns // measured; nil: none
	// findProvider and rents find and open the provider of a policy; nil: this agent rents nothing.
	findProvider func(*policy.Policy) error
	rents        func(p *policy.Policy, join string) (cloud.Provider, error)
	// openStore opens the model store at a URL; nil: Config.ModelStore must be empty.
	openStore func(ctx context.Context, url string) (*store.Store, error)
	// openBucket opens a bucket for captures; nil: Config.Capture must be a folder or empty.
	openBucket func(ctx context.Context, url string) (store.Bucket, error)
	rented     atomic.Pointer[control.Rented] // this machine; nil: no fleet has rented it
	ends       atomic.Pointer[notice]         // of this machine's end; nil: none has come
	host       host

	// The fields below are set by Run before the agent serves its first call.
	addresses  Addresses
	advertised string // the gRPC address that other agents and SDKs dial
	// advertisedHTTP is where others reach its REST; "": nowhere.
	advertisedHTTP string
	local          *serve.Local
	members        *members.Members
	gossip         *gossip.Gossip
	leadership     members.LeadershipWatch // package lead publishes to it
	leading        *lead.Leader
	renting        *rent.Manager
	releases       *release.Releases    // what versions of models are released
	stored         *modelstore.Follower // nil: there is no model store
	shadows        *shadow.Comparer
	hub            *dashboard.Hub
	worker         *worker.Worker
	gateway        *client.Gateway
	counts         *serve.QueryCounters // of clients' queries
	slowLog        *slowlog.Log         // nil: there is none
	captures       *capture.Recorder    // nil: no queries are kept
	executor       runtime.Executor
	card           *cardWatch // nil without a card
	cpu            cpuWatch
	guard          *secure.Guard
	server         *serve.Server

	stateless bool // nothing can be written to the state directory
	onReady   func(Addresses, []models.Status)
	display   string        // the display name; set by Run
	stateLock *os.File      // the lock of the state directory; nil: there is none
	listening chan struct{} // closed when addresses is set
	// closing ends when the lanes are drained and the servers begin to close.
	closing     context.Context
	close       context.CancelFunc
	askedToStop context.CancelCauseFunc // makes Run drain and return
}

// Addresses are the addresses on which an agent listens, each as host:port with the actual port.
type Addresses struct {
	HTTP    string
	GRPC    string
	Metrics string
	Probe   string // "" if there is none
}

// New checks config, reads the catalogue file if config names one, and allocates. It opens no
// socket and starts no goroutine; Run does. The error lists every fault of config.
func New(config Config, logger *slog.Logger) (*Agent, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	name := newName(config.Name)
	events := serve.NewEvents(name)
	a := &Agent{
		config:    config,
		log:       slog.New(events.Handler(logger.Handler())),
		events:    events,
		metrics:   newMetrics(),
		health:    serve.NewHealth(),
		env:       defaultEnvironment(),
		name:      names.AgentName(name),
		catalogue: profiles.DefaultCatalogue(),
		library:   profiles.ShippedLibrary(),
		listening: make(chan struct{}),
	}
	if config.Catalogue != "" {
		var err error
		if a.catalogue, err = a.catalogue.ExtendFile(config.Catalogue); err != nil {
			return nil, fmt.Errorf("catalogue: %w", err)
		}
	}
	if match.IsFormerPolicy(config.Policy) {
		a.log.Warn("this version has no such policy; the agent uses the default",
			"policy", config.Policy, "default", match.DefaultPolicy)
		a.config.Policy = match.DefaultPolicy
	}
	a.closing, a.close = context.WithCancel(context.Background())
	if config.Rented != "" && config.Rented != rentedEC2 {
		a.rented.Store(rent.ParseRented(config.Rented))
	}
	return a, nil
}

// Trace makes the agent record spans of the queries that it forwards, decides about and runs, with
// a tracer of p. Without Trace the agent forwards a query's trace context unchanged. It must be
// called before Run.
func (a *Agent) Trace(p trace.TracerProvider) { a.tracer = p.Tracer(tracing.Scope) }

// OnReady has f called once, when the agent has loaded what it can at first: with its addresses and
// what became of each version. It must be called before Run, and f must return soon.
func (a *Agent) OnReady(f func(Addresses, []models.Status)) { a.onReady = f }

// Name is the agent's name, unique in its fleet: the host's name and a random suffix. It is set by
// New and never changes.
func (a *Agent) Name() string { return string(a.name) }

// MostLanes is how many queries the agent runs at once at most, and may be ordered to by a leader.
// It never changes.
func (a *Agent) MostLanes() int {
	if a.config.ModelControl == "leader" {
		cores, _ := isolate.Cores()
		return max(a.config.lanesOrDefault(), cores)
	}
	return a.config.lanesOrDefault()
}

// openExecutor opens the executor that config names.
func openExecutor(config Config, logger *slog.Logger) (runtime.Executor, error) {
	if config.Executor == "emulated" {
		return worker.Emulate(profiles.InstanceType(config.InstanceType), config.Profile)
	}
	return runtime.OpenONNX(runtime.Config{
		LibraryPath: config.ONNXRuntimeLib,
		Provider:    runtime.ExecutionProvider(config.Provider),
		GPU:         config.GPU,
		GPUMemory:   config.GPUMemory,
		Cores:       config.coresOrDefault(),
		Lanes:       config.lanesOrDefault(),
		MapData:     config.ModelData == "mapped",
		Kernels:     config.Kernels == "on",
		Divide:      config.Layout == "",
		Logger:      logger,
	})
}

// logCores says on how many cores the agent runs queries, and why on so many.
func (a *Agent) logCores(info runtime.Info) {
	if info.Executor != "onnx" || info.Provider != runtime.CPU {
		return
	}
	allowed, why := isolate.Cores()
	cores := a.config.coresOrDefault()
	log := a.log.Info
	if a.config.Cores > 0 || a.config.Layout != "" {
		if cores > allowed {
			log = a.log.Warn // they stand still together for a part of each period
		}
		why = fmt.Sprintf("they are set; the default is %d: %s", allowed, why)
	}
	log("the agent runs queries on these cores", "cores", cores, "lanes",
		a.config.lanesOrDefault(), "why", why)
}

// Run serves until ctx ends, a call of Drain arrives or a server fails, and then drains. While it
// drains, the agent reports that it is not ready and hands the leadership to another agent. In a
// fleet it passes new queries to other agents; alone it refuses them. Running queries may finish
// within Config.DrainTimeout.
//
// Run returns nil after a drain, ErrRestart if it is to be followed by another start, or the reason
// why the agent could not serve. It may be called once.
func (a *Agent) Run(ctx context.Context) error {
	if a.config.ModelStore != "" {
		if err := os.MkdirAll(a.config.ModelDir, 0o755); err != nil {
			return fmt.Errorf("model-dir: %w", err)
		}
	}
	if err := checkModelDir(a.config.ModelDir); err != nil {
		return err
	}
	if err := a.openGuard(); err != nil {
		return err
	}
	if err := a.lockStateDir(); err != nil {
		return err
	}
	defer a.stateLock.Close() // nil if there is no lock
	a.checkStateDir()
	a.chooseDisplayName()
	if err := a.openSlowLog(); err != nil {
		return err
	}
	defer a.slowLog.Close() // nil if there is none
	if err := a.openCaptures(); err != nil {
		return err
	}
	defer a.captures.Close() // nil if there are none
	listeners, err := a.listen()
	if err != nil {
		return err
	}
	defer listeners.close()
	a.addresses = listeners.boundAddresses()
	if err := a.joinFleet(ctx, listeners); err != nil {
		return err
	}
	defer a.gossip.Close()
	a.log.Info("muster agent", "version", version.Current(), "agent", a.name,
		"http", a.addresses.HTTP, "grpc", a.addresses.GRPC, "metrics", a.addresses.Metrics,
		"name", a.display, "advertised_grpc", a.advertised,
		"model_dir", a.config.ModelDir, eventKey, "started")

	ctx, a.askedToStop = context.WithCancelCause(ctx)
	defer a.askedToStop(nil)
	if err := a.open(); err != nil {
		return err
	}
	close(a.listening)
	err = a.serveUntil(ctx, listeners)
	if err == nil && errors.Is(context.Cause(ctx), ErrRestart) {
		return ErrRestart
	}
	return err
}

// open makes the executor and the parts, in the order in which they need each other: members,
// worker, gateway, leader, server. A part is given those before it. What a part has to tell one
// after it goes to where that has attached itself: see Represent, PublishLoads, Attend, AdmitBy,
// OnLoad, FollowReleases and ServeDashboard, all of which are called before anything runs. The
// leadership is a value that all read and the leader publishes.
func (a *Agent) open() (err error) {
	if a.executor, err = a.env.OpenExecutor(a.config, a.log); err != nil {
		return err
	}
	info := a.executor.Info()
	if info.Executor != "onnx" {
		a.log.Warn("the agent runs no model: its answers are emulated", "executor", info.Executor,
			"instance_type", a.config.InstanceType, "profile", a.config.Profile)
	}
	a.logCores(info)
	a.local = serve.NewLocal(a.closing)
	a.members = members.New(members.Config{
		Closing: a.closing, Spoken: a.env.Spoken, Gossip: a.gossip,
		Connect: a.env.Network.Connect, Queries: a.env.Network.queryDialer(),
		Dial:  a.env.Network.Dial,
		Local: a.local, Leading: &a.leadership, Log: a.log,
	})
	a.cpu.read, a.cpu.changed, a.cpu.log = a.env.ReadThreadTimes, a.members.SelfChanged, a.log
	if a.card, err = a.openCard(); err != nil {
		return err
	}
	if err = a.openWorker(info); err != nil {
		return err
	}
	a.members.Represent(self{a.worker, a})
	a.guard.KnowFamilies(a.members.Family)
	if err = a.openRenting(); err != nil {
		return err
	}
	signatures, err := stored.OpenTrust(a.config.FleetName, a.config.ModelStore,
		a.config.RequireSignature)
	if err != nil {
		return err
	}
	if err = a.openFollower(signatures); err != nil {
		return err
	}
	a.openReleases(signatures)
	a.worker.Attend(a.renting, a.releases)
	transport := serve.NewTransport(a.members)
	a.gateway, err = client.NewGateway(client.GatewayConfig{
		ID: 1 + rand.Uint64N(math.MaxUint64), Agent: a.name, Own: a.local, Transport: transport,
		Logger: a.log,
	})
	if err != nil {
		return err
	}
	a.members.PublishLoads(a.gateway)
	a.counts = serve.NewCounts(a.metrics.registry, serve.CountsConfig{
		Name: a.name, Gateway: a.gateway, Worker: a.worker, Guard: a.guard, Slow: a.slowLog,
	})
	a.shadows = shadow.New(shadow.Config{
		Compares: a.releases.Compares,
		View:     a.members.View, Loads: a.members.Loads, Tell: a.gateway.Compared,
		Transport: transport,
	})
	a.hub = dashboard.NewHub(dashboard.HubConfig{
		Self: a.name, Members: a.members, Leading: &a.leadership, Events: a.events, Log: a.log,
	})
	if a.leading, err = a.newLeading(); err != nil {
		return err
	}
	a.metrics.watchGossip(a.gossip.Stats)
	a.metrics.watchStateDir(a.stateless)
	a.metrics.watchCores(a.config.coresOrDefault(), a.env.ReadCores)
	a.openServer()
	a.openDashboard()
	return nil
}

// openWorker makes the part that runs models.
func (a *Agent) openWorker(info runtime.Info) error {
	layout, err := a.config.parseLayout()
	if err != nil {
		return err // Validate has checked it
	}
	if a.slow, err = a.measuredSlowdowns(); err != nil {
		return err
	}
	a.worker, err = worker.Open(worker.Config{
		Executor: a.executor, Lanes: a.config.lanesOrDefault(), Cores: a.config.coresOrDefault(),
		Layout:            layout,
		MaxWaitingQueries: a.config.MaxWaitingQueries, MaxWaitingBytes: a.config.MaxWaitingBytes,
		ModelDir: a.config.ModelDir, LoadTimeout: a.config.LoadTimeout,
		LoadByCall: a.config.ModelControl == "explicit",
		Placed:     a.config.ModelControl == "leader", ModelMemory: a.config.ModelMemory,
		InMemory: info.Executor == "onnx" && a.config.ModelData == "memory",
		StateDir: a.config.StateDir, Catalogue: a.catalogue, Library: a.library, Slowdowns: a.slow,
		Host: &a.host, Price: a.priceUSDPerHour, Leading: &a.leadership, Fleet: a.members,
		Health:  a.health,
		Callers: serve.Callers{Guard: a.guard}, Registry: a.metrics.registry, Tracer: a.tracer,
		Log: a.log,
	})
	if err != nil {
		return err
	}
	if len(a.worker.Repository().Index()) == 0 && a.config.ModelStore == "" {
		a.log.Warn("the model directory has no model; the agent serves one as soon as it is there",
			"model_dir", a.config.ModelDir, "try", generateHint(a.config.ModelDir))
	}
	return nil
}

// openServer makes the part that clients and other agents speak to.
func (a *Agent) openServer() {
	a.server = serve.New(serve.Config{
		Name: a.name, Members: a.members, Worker: a.worker,
		Keyring: members.NewKeyring(a.members, a.config.gossipKeyFile()),
		Leading: a.leading, Leadership: &a.leadership, Renting: a.renting, Releases: a.releases,
		Gateway: a.gateway, Counts: a.counts, Shadows: a.shadows, Captures: a.captures,
		Guard: a.guard, Events: a.events, Health: a.health, Local: a.local,
		Note: a.stored.Note, Refresh: a.stored.Refresh, Files: modelstore.NewServer(a.stored),
		MaxWaitingBytes: a.config.MaxWaitingBytes, ReceiveTimeout: a.env.ReceiveTimeout,
		SendTimeout: a.env.SendTimeout,
		GRPCAddress: a.addresses.GRPC, MetricsAddress: a.addresses.Metrics,
		Encrypted: a.config.Security.TLS(), Beats: a.hub,
		Pprof: a.config.Pprof, Version: version.Current(),
		Lacks:   a.lacks,
		Closing: a.closing, Drain: func() { a.askedToStop(errDrainCall) },
		Draining: a.host.Draining,
		Registry: a.metrics.registry, Tracer: a.tracer, Log: a.log,
	})
}

// newLeading makes the part that takes part in elections and leads when elected.
func (a *Agent) newLeading() (*lead.Leader, error) {
	config := lead.Config{
		Role: a.electionRole(), Rank: a.electionRank(), StateDir: a.config.StateDir,
		Policy: a.config.Policy, Record: a.config.Record, Catalogue: a.catalogue,
		Library: a.library, Slowdowns: a.slow, Tracer: a.tracer, Replanner: a.env.NewReplanner,
		Clients: serve.Callers{Guard: a.guard}, Fleet: a.members, Worker: a.worker, Beat: a.hub.Led,
		Counts: a.counts, Rent: a.renting, Releases: a.releases, Registry: a.metrics.registry,
		Leadership: &a.leadership, Log: a.log,
	}
	if len(a.config.Join) > 0 {
		config.JoinWait = joinWait
	}
	return lead.New(config)
}

// eventKey is the log attribute that makes a line an event, as in package serve.
const eventKey = "event"

// joinWait is how long an agent with Config.Join set waits to hear of an existing leader before it
// stands for election.
const joinWait = time.Second

// electionRole is the agent's part in elections.
func (a *Agent) electionRole() election.Role {
	role, _ := election.ParseRole(a.config.Leader) // Validate has parsed it before
	return role
}

// electionRank is the agent's rank in elections, which orders candidates.
func (a *Agent) electionRank() election.Rank {
	info := a.executor.Info()
	cores, _ := isolate.Cores()
	return election.RankOf(a.electionRole(), info.Provider != runtime.CPU ||
		info.Executor != "onnx",
		cores-a.config.coresOrDefault())
}

func checkModelDir(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf(
			"model-dir %q does not exist; make a model in it with %q, or name another with "+
				"--model-dir", dir, generateHint(dir))
	case err != nil:
		return fmt.Errorf("model-dir: %w", err)
	case !info.IsDir():
		return fmt.Errorf("model-dir %q is no directory", dir)
	}
	return nil
}

// lockStateDir keeps the state directory to this agent, until stateLock is closed or the process
// has ended. Two agents would write the same epoch file, and each would forget what the other has
// learned. A directory in which nothing can be written needs no lock: see checkStateDir.
func (a *Agent) lockStateDir() (err error) {
	dir := a.config.StateDir
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil
	}
	a.stateLock, err = dirlock.Lock(filepath.Join(dir, "lock"))
	if held := new(dirlock.HeldError); errors.As(err, &held) {
		return fmt.Errorf("state-dir %q is that of another agent that runs: %w; give each agent a "+
			"--state-dir of its own", dir, held)
	}
	return nil
}

// openSlowLog opens the log that Config.SlowLog names, if any.
func (a *Agent) openSlowLog() (err error) {
	if a.config.SlowLog == "" {
		return nil
	}
	if a.slowLog, err = slowlog.Open(a.config.SlowLog, a.log); err != nil {
		return fmt.Errorf("slow-log: %w", err)
	}
	return nil
}

// checkStateDir sets Config.Leader to "never" if the state directory cannot be written. Such an
// agent could not store an epoch, so it could win elections without ever leading, and the fleet
// would wait for a leader in vain.
func (a *Agent) checkStateDir() {
	if a.electionRole() == election.Never {
		return
	}
	if err := checkWritable(a.config.StateDir); err != nil {
		a.log.Error(
			"this agent serves but cannot lead: it cannot write its state directory; make the "+
				"directory writable and restart the agent",
			"state_dir", a.config.StateDir, "error", err, eventKey, "leader")
		a.config.Leader, a.stateless = "never", true
	}
}

// lacks says what keeps the agent from being ready although it serves: it was to be one that may
// lead and cannot be, and nobody leads. A fleet of such agents would look well for ever.
func (a *Agent) lacks() string {
	if a.stateless && a.leadership.Leadership().GetLeader() == "" {
		return "no agent leads, and this one cannot: it cannot write its state directory " +
			a.config.StateDir
	}
	return ""
}

// checkWritable makes the directory if there is none, and reports why a file with 4096 bytes cannot
// be written in it; nil if it can.
func checkWritable(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".writable-*")
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, 4096))
	return errors.Join(err, f.Sync(), f.Close(), os.Remove(f.Name()))
}

func generateHint(dir string) string { return "muster models generate ncf --out " + dir }

// lookGone is the time between two runs of forgetGone's clean-up.
const lookGone = time.Minute

// forgetGone removes, every lookGone until ctx ends, what the members and the worker keep of model
// versions and agents that are gone. The leader and the gateway clean up by themselves.
func (a *Agent) forgetGone(ctx context.Context) {
	ticker := time.NewTicker(lookGone)
	defer ticker.Stop()
	for {
		select {
		case now := <-ticker.C:
			a.members.Forget(now)
			held := map[names.ModelKey]bool{}
			for _, member := range a.members.View().Members {
				for _, m := range member.Models {
					held[m.Key()] = true
				}
			}
			a.worker.Forget(now, held)
			a.counts.Forget(now, held, a.server.Knows, a.worker.Serves)
			a.leading.Forget(now, held)
		case <-ctx.Done():
			return
		}
	}
}

// serveUntil serves until ctx ends or a server fails, and then winds down.
func (a *Agent) serveUntil(ctx context.Context, l *listeners) error {
	// The repository's context does not end with ctx: queries in progress still use its models.
	repositoryCtx, closeRepository := context.WithCancel(context.WithoutCancel(ctx))
	defer closeRepository()
	// Neither does that of gossip, members and leader: the fleet must hear of the agent until it
	// has drained.
	fleetCtx, leaveFleet := context.WithCancel(context.WithoutCancel(ctx))
	defer leaveFleet()
	// failed ends with ctx, or when one of the goroutines below returns an error.
	group, failed := errgroup.WithContext(ctx)
	group.Go(func() error { return a.worker.Run(repositoryCtx) })
	group.Go(func() error { return a.server.ServeREST(l.http) })
	group.Go(func() error { return a.server.ServeMetrics(l.metrics) })
	group.Go(func() error { return a.server.ServeGRPC(l.grpc) })
	if l.probe != nil {
		group.Go(func() error { return a.server.ServeProbe(l.probe) })
	}
	group.Go(func() error { return a.guard.Run(fleetCtx) })
	group.Go(func() error { a.members.Run(fleetCtx); return nil })
	group.Go(func() error { a.server.Follow(fleetCtx); return nil })
	group.Go(func() error { a.learnInstanceType(fleetCtx); return nil })
	group.Go(func() error { a.watchMachine(failed); return nil })
	group.Go(func() error { a.watchLimits(failed); return nil })
	group.Go(func() error { return a.card.run(failed) })
	group.Go(func() error { a.cpu.run(failed); return nil })
	group.Go(func() error { a.forgetGone(fleetCtx); return nil })
	group.Go(func() error { return a.leading.Run(fleetCtx) })
	group.Go(func() error { a.hub.Run(fleetCtx); return nil })
	if a.stored != nil {
		group.Go(func() error { a.runStore(failed); return nil })
	}
	group.Go(func() error { a.settle(failed); return nil })

	<-failed.Done()
	a.drainAll(ctx, context.Cause(failed))
	a.shadows.Close()
	a.gateway.Close()
	leaveFleet()
	a.leaveGossip()
	a.members.Close()
	a.local.Close()
	closeRepository()
	a.server.Close()
	ended := make(chan error, 1)
	go func() { ended <- group.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(stopTimeout):
		return fmt.Errorf("stopped while a query or a model load had not ended %v after the drain",
			stopTimeout)
	}
}

// settle makes the agent ready once its first models have loaded or failed, and it knows which models
// the agents that it joins have: whoever balances over agents sends queries of any of these to one that
// is ready.
func (a *Agent) settle(ctx context.Context) {
	for _, done := range []<-chan struct{}{a.worker.Settled(), a.members.Joined()} {
		select {
		case <-done:
		case <-ctx.Done():
			return
		}
	}
	a.server.Settle()
	a.members.SelfChanged() // it is ready
	if a.onReady != nil {
		a.onReady(a.addresses, a.worker.Repository().Index())
	}
	if !a.host.Draining() {
		a.log.Info("ready", "may_lead", a.electionRole() != election.Never, eventKey, "ready")
	}
}

// stopTimeout is how long Run waits, after the drain, for its goroutines to end. A model closes
// only when its last query has ended, and a query inside ONNX Runtime cannot be forced to end.
// Chosen: longer than any run of the models that Muster is tested with takes, and with the drain's
// 30 s within the 60 s that deploy/muster.service has systemd wait.
const stopTimeout = 10 * time.Second

// listeners are the sockets of the agent's servers.
type listeners struct {
	http, grpc, metrics net.Listener
	probe               net.Listener // nil: there is none
}

// listen opens all listeners, or none and returns which one could not be opened.
func (a *Agent) listen() (*listeners, error) {
	l := &listeners{}
	for _, want := range []struct {
		name    string
		address string
		to      *net.Listener
	}{
		{"http", a.config.HTTPAddress, &l.http},
		{"grpc", a.config.GRPCAddress, &l.grpc},
		{"metrics", a.config.MetricsAddress, &l.metrics},
		{"probe", a.config.ProbeAddress, &l.probe},
	} {
		if want.address == "" {
			continue
		}
		listener, err := a.env.Network.Listen(want.name, want.address)
		if err != nil {
			l.close()
			return nil, fmt.Errorf("%s: %w; choose another address with --%s", want.name, err,
				want.name)
		}
		*want.to = listener
		if want.to != &l.probe { // probes come while clients hold all connections
			*want.to = a.guard.Limit(listener)
		}
	}
	return l, nil
}

func (l *listeners) boundAddresses() Addresses {
	addresses := Addresses{
		HTTP: l.http.Addr().String(), GRPC: l.grpc.Addr().String(),
		Metrics: l.metrics.Addr().String(),
	}
	if l.probe != nil {
		addresses.Probe = l.probe.Addr().String()
	}
	return addresses
}

func (l *listeners) close() {
	for _, listener := range []net.Listener{l.http, l.grpc, l.metrics, l.probe} {
		if listener != nil {
			_ = listener.Close() // a server that ran has closed it already
		}
	}
}
