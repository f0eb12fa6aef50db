package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/api/tracing"
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/isolate"
	"github.com/muster-serve/muster/runtime/queue/merge"
)

// Callers identify the caller of a call by the call's context. The methods may be called
// concurrently and do not block.
type Callers interface {
	// Identity identifies the caller among all; "" if the caller has no name.
	Identity(context.Context) string
	// MayQuery returns nil if the caller may query the model, else an error with the reason.
	MayQuery(ctx context.Context, model string) error
	// Query counts a query of the caller, with the number of its bytes that are known so far. It
	// returns an error if the query exceeds the caller's limits.
	Query(ctx context.Context, w secure.Way, bytes int64) error
	// PartRows counts the rows of an attempt, if it is of a part of a query. It returns an error if
	// the parts have together more rows than largest, the most that a query may have, and the
	// caller may make no further query.
	PartRows(ctx context.Context, a control.Attempt, rows, largest int) error
}

// A Host is the machine and the process that a Worker runs in.
type Host interface {
	// InstanceType returns this machine's instance type; "" until it is known.
	InstanceType() profiles.InstanceType
	// Draining reports whether the agent drains: it then reserves no lanes for gateways.
	Draining() bool
}

// A FleetLink is what a Worker tells the agents of the fleet, and hears of them.
type FleetLink interface {
	// Own returns this agent's description, which the Worker does not change.
	Own() *control.Member
	// Alone reports whether this agent knows of no other.
	Alone() bool
	// SelfChanged is called after each change of what is to be told of this agent.
	SelfChanged()
	// ToldByLeader handles the prices, profiles, dispatch-ahead time and plan of the leader that
	// this agent follows; see members.Members.ToldByLeader.
	ToldByLeader(*control.LeaderMessage)
}

// A Health is told of each change of a version's state.
type Health interface{ Observe(models.VersionEvent) }

// An Admission decides which versions may be loaded.
type Admission interface {
	// Admit returns why a version may not be loaded; nil if it may. See [models.Options].
	Admit(ctx context.Context, v *models.Version) error
}

// A Listener is a part of the agent to which leaders speak on Links, beside the lanes and models.
type Listener interface {
	// Greet adds to a message to a leader what the listener knows. It must not call the Worker.
	Greet(*control.WorkerMessage)
	// Hear takes what the leader says that this agent follows. It reports whether that waits for an
	// answer, which Greet then makes.
	Hear(*control.LeaderMessage) (answers bool)
}

// A Config holds what a [Worker] runs models with, and what it needs of the rest of the agent. The
// methods of its interfaces must not block and may be called concurrently.
type Config struct {
	// Executor runs the models. The Worker does not close it.
	Executor runtime.Executor
	// Lanes is how many queries run at once, each on its share of Cores, until a leader orders
	// other lanes; both are > 0.
	Lanes, Cores int
	// Layout gives each of some models lanes of their own, on processors of their own, and no
	// others; CheckLayout accepts it, and Lanes and Cores are its LanesOf. The empty one gives
	// all models all lanes.
	Layout place.Layout
	// MaxWaitingQueries and MaxWaitingBytes bound the queries that wait for a lane, and the bytes
	// of their inputs.
	MaxWaitingQueries int
	MaxWaitingBytes   int64
	// ModelDir is the directory of the model repository. LoadTimeout bounds the load and warm-up of
	// one version. Catalogue lists the instance types; Library holds the profiles known from the
	// start.
	ModelDir    string
	LoadTimeout time.Duration
	// LoadByCall is whether models load by calls alone; see models.Options.Explicit.
	LoadByCall bool
	// Placed is whether a leader says which models load; with a Layout, only how many lanes each
	// of its partitions has. ModelMemory is how many bytes they may
	// then take in all; 0: what the process may use, less a tenth and what it uses otherwise.
	// StateDir is where the last layout is kept.
	Placed      bool
	ModelMemory int64
	// InMemory is whether models that load are copied to memory.
	InMemory  bool
	StateDir  string
	Catalogue *profiles.Catalogue
	Library   *profiles.Library
	Slowdowns profiles.Slowdowns // measured; nil: none
	Host      Host
	// Price returns what this machine costs now, in USD per hour; 0 if that is not known.
	Price func() float64
	// Leading tells which leader this agent follows.
	Leading members.LeadershipSource
	Fleet   FleetLink
	Health  Health
	Callers Callers

	Registry prometheus.Registerer
	Tracer   trace.Tracer // nil: the worker makes no spans
	Log      *slog.Logger
}

// A Worker runs queries on this agent's lanes: the attempts of gateways and, if the agent is alone,
// its own queries. It stores which attempts its lanes hold and which lanes are reserved for
// gateways, and tells the leader that the agent follows the end of each attempt. Its methods may be
// called concurrently.
type Worker struct {
	config    Config
	metrics   *metrics
	costs     *costs
	estimates *estimates
	lanes     *runtime.Partitions
	layout    atomic.Pointer[place.Layout]   // of the lanes
	coming    atomic.Pointer[[]runtime.Part] // the lanes to change to; nil: no change
	// arranging is held while lanes are replaced, and shared while a load finds those of its model.
	arranging  sync.RWMutex
	spreads    sync.Map         // all models that load or are loaded: *runtime.Spread to the name
	isolator   isolate.Isolator // nil: nothing parts the cache
	repository *models.Repository[*LoadedModel]
	layouts    *layouts // nil: no leader says what this agent holds
	sums       fileSums
	summing    sync.WaitGroup // goroutines of checksums
	oneLate    sync.Mutex     // held by a late checksum while it is computed
	settled    chan struct{}
	measurer   *measurer
	// Set before Run by AdmitBy, Attend and OnLoad.
	admission Admission // nil: all may be loaded
	listeners []Listener
	onLoad    []func(*models.Version)

	mu           sync.Mutex
	held         map[*control.Held]bool
	followed     []*followedLink
	reservations map[reservationID]*runtime.Reservation
}

// Open returns a Worker with the models that ModelDir holds, none of them loaded yet; Run loads
// them. The error says why ModelDir cannot be read, or that the Layout does not fit the memory.
func Open(config Config) (*Worker, error) {
	w := &Worker{
		config: config, metrics: newMetrics(config.Registry),
		settled: make(chan struct{}), measurer: newMeasurer(),
		held: map[*control.Held]bool{}, reservations: map[reservationID]*runtime.Reservation{},
	}
	w.estimates = newEstimates(config.Library, config.Catalogue, w.describeLanes)
	w.estimates.book.SetSlowdowns(config.Slowdowns)
	w.layout.Store(&config.Layout)
	parts, err := w.makePartitions(config.Layout, nil)
	if err != nil {
		return nil, err
	}
	if w.lanes, err = runtime.NewPartitions(parts...); err != nil {
		return nil, err
	}
	w.metrics.register(config.Executor.Info(), w.lanes)
	w.costs = newCosts(config.Price, time.Now())
	config.Registry.MustRegister(w.costs)
	if config.Placed {
		w.layouts = newLayouts(w)
	}
	fixed := len(config.Layout.Partitions) > 0
	w.repository, err = models.Open(config.ModelDir, w.load, models.Options{
		LoadTimeout: config.LoadTimeout, Explicit: config.LoadByCall,
		Placed: config.Placed && !fixed,
		Logger: config.Log, OnEvent: w.observeEvent, Admit: w.admitVersion,
	})
	if err == nil && fixed {
		err = w.checkMemory(cmp.Or(config.ModelMemory, usableMemory(memoryLimit(),
			residentMemory())))
	}
	return w, err
}

// AdmitBy has a decide which versions may be loaded. It must be called before Run.
func (w *Worker) AdmitBy(a Admission) { w.admission = a }

func (w *Worker) admitVersion(ctx context.Context, v *models.Version) error {
	if w.admission == nil {
		return nil
	}
	return w.admission.Admit(ctx, v)
}

// Attend has leaders speak to the listeners, too. It must be called before Run.
func (w *Worker) Attend(listeners ...Listener) { w.listeners = append(w.listeners, listeners...) }

// OnLoad has f called with each version before it serves. It must be called before Run.
func (w *Worker) OnLoad(f func(*models.Version)) { w.onLoad = append(w.onLoad, f) }

// Run loads the repository's models, and keeps them loaded until ctx ends. It blocks until all
// models are closed, which waits for the last Release of each. It may be called once.
func (w *Worker) Run(ctx context.Context) error {
	defer func() {
		if w.isolator == nil {
			return
		}
		if err := w.isolator.Close(); err != nil {
			w.config.Log.Warn("the agent cannot remove the partitions of the cache", "reason", err)
		}
	}()
	var beside sync.WaitGroup
	defer beside.Wait()
	beside.Go(func() { w.awaitSettled(ctx) })
	beside.Go(func() { w.measurer.meter.Run(ctx.Done()) })
	if w.layouts != nil {
		beside.Go(func() { w.layouts.run(ctx) })
	}
	defer w.summing.Wait()
	return w.repository.Run(ctx)
}

// Settled returns a channel that is closed when the repository has settled, and the fleet is told
// of what it has loaded.
func (w *Worker) Settled() <-chan struct{} { return w.settled }

// Repository returns the model repository.
func (w *Worker) Repository() *models.Repository[*LoadedModel] { return w.repository }

// Lanes returns the lanes.
func (w *Worker) Lanes() *runtime.Partitions { return w.lanes }

// Info describes the executor.
func (w *Worker) Info() runtime.Info { return w.config.Executor.Info() }

// Complete adds profiles to a view for models and lanes without one, as far as this agent has
// learned them or they come with the program. The caller must own the view.
func (w *Worker) Complete(v *control.View) { w.estimates.addProfiles(v) }

// Learned returns a number that changes whenever Complete may add other profiles than before.
func (w *Worker) Learned() uint64 { return w.estimates.learnedTimes.Load() }

// observeEvent handles a change of a model version's state.
func (w *Worker) observeEvent(e models.VersionEvent) {
	w.metrics.observeEvent(e)
	w.config.Health.Observe(e)
	w.config.Fleet.SelfChanged()
	if w.layouts != nil {
		w.layouts.wakeRun()
	}
}

// Forget removes estimates and metrics of versions that have long been gone. held names the
// versions that the fleet holds, as "ncf/1". Forget must be called from time to time.
func (w *Worker) Forget(now time.Time, held map[names.ModelKey]bool) {
	w.estimates.dropGone(now, held)
	w.metrics.dropGone(now)
}

// Sizes calls tell with the number of entries of each table that the Worker keeps, for tests that
// look for leaks.
func (w *Worker) Sizes(tell func(what string, n int)) {
	w.metrics.mu.Lock()
	tell("metrics: versions", len(w.metrics.versions))
	tell("metrics: states", len(w.metrics.states))
	w.metrics.mu.Unlock()
	w.estimates.mu.Lock()
	tell("estimates: learned", len(w.estimates.learned))
	tell("estimates: book", len(w.estimates.book.Keys()))
	w.estimates.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	tell("worker: held", len(w.held))
	tell("worker: followed", len(w.followed))
	tell("worker: reservations", len(w.reservations))
}

// Attempt runs a gateway's attempt. header is the value of its control.AttemptHeader, part that of
// its control.PartHeader and merge that of its control.MergeHeader, "" if it has none, and received
// the time when the headers arrived. answers counts the bytes of the answer; an attempt whose
// answer it does not take counts as not run. Attempt owns req, and releases its inputs; the caller
// must release the response. It tells the leader the end of the attempt. An error that wraps
// outcome.ErrRefused means that the attempt was not run and another agent may run the query.
func (w *Worker) Attempt(ctx context.Context, header, part, merge string, req *oip.Request,
	received time.Time, answers *oip.Charge) (resp *oip.Response, err error) {
	defer req.Release()
	t, err := w.beginAttempt(ctx, header, part, merge, received)
	if err != nil {
		return nil, err
	}
	t.held.Model = req.Model
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(tracing.Attempt.Int(int(t.attempt.Attempt)),
			tracing.Ms(tracing.Waited, t.attempt.Waited))
		if t.attempt.Part != 0 {
			span.SetAttributes(tracing.Part.Int(int(t.attempt.Part)))
		}
	}
	defer func() { w.reportEnd(t, err) }()
	resp, err = w.performAttempt(ctx, req, t, answers)
	w.tellSpent(ctx, t)
	if t.probed {
		// fails only outside a gRPC call
		_ = grpc.SetTrailer(ctx, control.RemainingTrailer(w.lanes.Remaining(t.held.Model)))
	}
	return resp, err
}

// beginAttempt returns the attempt that the headers name. It takes the attempt's reservation out of
// w.reservations.
func (w *Worker) beginAttempt(ctx context.Context, header, part, merge string,
	received time.Time) (*attempt, error) {
	named, err := control.ParseAttempt(header, part, merge)
	if err != nil {
		return nil, outcome.Invalid("%w", err)
	}
	t := &attempt{
		attempt: named, receive: time.Since(received), arrival: received, received: received,
		held: &control.Held{
			Gateway: named.Gateway, Sequence: named.Sequence, Attempt: named.Attempt,
			Lane: named.Lane,
		},
	}
	if t.probed = named.Reservation != 0; t.probed {
		t.reservation = w.takeReservation(reservationID{
			w.config.Callers.Identity(ctx), named.Gateway, named.Reservation,
		})
	}
	w.metrics.attempts.Inc()
	return t, nil
}

// errCutOff is the error of an attempt whose call has ended before its query was received.
var errCutOff = fmt.Errorf("the call has ended before the query was received: %w", context.Canceled)

// CutOff ends an attempt whose call has ended before its query was received: it releases the
// attempt's reservation and tells the leader that the attempt was not run. The arguments are those
// of Attempt, for which a part is an attempt like any other.
func (w *Worker) CutOff(ctx context.Context, header string, received time.Time) {
	if t, err := w.beginAttempt(ctx, header, "", "", received); err == nil {
		w.lanes.Release(t.reservation)
		w.reportEnd(t, errCutOff)
	}
}

// An attempt is the state of one attempt in this agent.
type attempt struct {
	attempt     control.Attempt
	held        *control.Held
	arrival     time.Time // when the query arrived at its gateway, by this machine's clock
	received    time.Time // when its headers arrived
	receive     time.Duration
	target      time.Duration // of its model; 0: it has not come so far
	reservation *runtime.Reservation
	probed      bool // the gateway itself chose this agent, without a leader
	bytes       int64
	ran         executedRun
	// how long the run had taken when it was cut off; 0: it was not cut off
	cut  time.Duration
	size roles.QuerySize // of a query of a version with roles
}

// isQuery reports whether the attempt counts for its query in the metrics. Of the parts of a query,
// which may run on several agents, the first one does.
func (t *attempt) isQuery() bool { return t.attempt.Part <= 1 && !t.attempt.Shadow }

// performAttempt validates the attempt's query and runs it.
func (w *Worker) performAttempt(ctx context.Context, req *oip.Request, t *attempt,
	answers *oip.Charge) (*oip.Response, error) {
	loaded, accuracy, err := w.acquireVersion(versionRequest{
		req.Model, req.Version, req.LeastAccuracy, batchSizeOf(req), t.attempt.Waited,
	})
	if err != nil {
		if !errors.Is(err, outcome.ErrInvalid) {
			err = fmt.Errorf("%w: %w", outcome.ErrRefused, err)
		}
		return nil, err
	}
	defer loaded.Release()
	t.target = loaded.Version.Config.QoSTarget
	// Waited comes from outside. A query cannot wait longer than its deadline; a larger value would
	// distort the latency metrics.
	t.arrival = t.arrival.Add(-min(t.attempt.Waited, loaded.Version.Config.Deadline))
	q, err := validate(loaded.Version, req)
	if err != nil {
		return nil, err
	}
	if err := w.config.Callers.PartRows(ctx, t.attempt, q.batchSize,
		loaded.Version.Config.LargestBatchSize); err != nil {
		return nil, fmt.Errorf("%w: %w", outcome.ErrRefused, err)
	}
	t.bytes = req.Bytes()
	t.held.Model, t.held.Version, t.held.BatchSize = loaded.Version.Model, loaded.Version.Number,
		uint32(q.batchSize)
	t.size = q.size
	if deadline, ok := ctx.Deadline(); ok {
		if remaining := w.lanes.Remaining(loaded.Version.Model); t.reservation == nil &&
			time.Until(deadline) < remaining {
			return nil, fmt.Errorf("%w: it would start after its deadline, a lane is free in %v",
				outcome.ErrRefused, remaining)
		}
	}
	if remaining := w.lanes.Remaining(loaded.Version.Model); t.attempt.Shadow && remaining > 0 {
		return nil, fmt.Errorf("%w: it is a shadow, and no lane is idle for %v", outcome.ErrRefused,
			remaining)
	}
	w.noteHeld(t, w.estimates.sizeOf(loaded, q.batchSize, q.size))
	ran, err := w.executeQuery(ctx, loaded, req, q, execution{
		timeout: req.Timeout, arrival: t.arrival, lane: int(t.attempt.Lane),
		reservation: t.reservation, answers: answers,
		group: merge.GroupID{
			Number: t.attempt.Merge, Queries: int(t.attempt.Merged),
		},
	})
	t.ran = ran
	if err != nil {
		var overloaded *runtime.OverloadedError
		var device *runtime.DeviceError
		var cut *runtime.CutError
		if errors.As(err, &cut) {
			t.cut = cut.After
		}
		if errors.As(err, &overloaded) || errors.Is(err, runtime.ErrDraining) ||
			errors.Is(err, runtime.ErrClosed) || errors.As(err, &device) {
			return nil, fmt.Errorf("%w: %w", outcome.ErrRefused, err)
		}
		if t.isQuery() {
			loaded.Model.counts.failedHere(err, time.Since(t.arrival))
		}
		return nil, err
	}
	if t.isQuery() {
		loaded.Model.counts.countAnswered(time.Since(t.arrival), loaded.Version.Config.QoSTarget)
	}
	if !t.attempt.Shadow { // the values of each part count
		loaded.Model.counts.answeredWith(ran.nonFinite)
	}
	if accuracy > 0 {
		ran.resp.AnsweredBy(req.Model, accuracy)
	}
	return ran.resp, nil
}

// batchSizeOf returns the batch size of a query that was not validated yet, at least 1.
func batchSizeOf(req *oip.Request) int {
	return int(min(req.Rows(), math.MaxInt32))
}

// noteHeld notes that the lanes are about to hold an attempt. If a gateway chose the lane without
// the leader, hold tells the leader how long the lanes will be busy.
func (w *Worker) noteHeld(t *attempt, batchSize int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held[t.held] = true
	if !t.probed && !t.attempt.Shadow {
		return
	}
	more := w.lanes.Estimate(names.NewModelKey(t.held.Model, t.held.Version), batchSize)
	w.tellLeader(func(m *control.WorkerMessage) {
		m.RemainingNs = w.remainingByLane()
		more /= time.Duration(max(1, len(m.RemainingNs)))
		for lane := range m.RemainingNs {
			m.RemainingNs[lane] += int64(more)
		}
	})
}

// avoidFor is how long a lane counts as busy after a run that failed of the card. It fails at once,
// so the lane would always be free and get the query again, with others, until an agent that has to
// leave has said so.
const avoidFor = 500 * time.Millisecond

// reportEnd tells the leader that an attempt has ended, with its durations or the reason why it was
// not run.
func (w *Worker) reportEnd(t *attempt, err error) {
	w.mu.Lock()
	delete(w.held, t.held)
	w.mu.Unlock()
	c := &control.Completed{
		Gateway: t.attempt.Gateway, Sequence: t.attempt.Sequence, Attempt: t.attempt.Attempt,
		Lane:  t.attempt.Lane,
		Model: t.held.Model, Version: t.held.Version, BatchSize: t.held.BatchSize,
		ReceiveNs: int64(t.receive), LatencyNs: int64(time.Since(t.arrival)),
		Bytes: uint64(t.bytes), Shadow: t.attempt.Shadow,
		Users: uint32(t.size.Users), Values: uint64(t.size.Values),
	}
	if t.ran.result != nil {
		setDurations(c, t.ran)
	} else {
		c.Refused, c.ExecutionNs = "panic", int64(t.cut)
		if err != nil {
			f := outcome.Of(err)
			c.Refused = f.Reason
			w.metrics.refused.WithLabelValues(f.Reason).Inc()
		}
		var device *runtime.DeviceError
		if errors.As(err, &device) {
			c.RemainingNs = int64(avoidFor)
		}
	}
	w.addCompleted(c)
}

// completedAlone tells the leader, which is this agent, of a query that ran or was refused without
// the leader's decision; ran is empty if it was refused with err.
func (w *Worker) completedAlone(v *models.Version, id control.Attempt, q validatedRequest,
	bytes int64,
	arrival time.Time, ran executedRun, err error) {
	c := &control.Completed{
		Gateway: id.Gateway, Sequence: id.Sequence, Attempt: id.Attempt, Model: v.Model,
		Version: v.Number, BatchSize: uint32(q.batchSize), LatencyNs: int64(time.Since(arrival)),
		Bytes: uint64(bytes), Users: uint32(q.size.Users), Values: uint64(q.size.Values),
	}
	if ran.result != nil {
		setDurations(c, ran)
	} else {
		c.Refused = outcome.Of(err).Reason
	}
	w.addCompleted(c)
}

// setDurations sets the durations of c, which is about ran, so that a run of several queries counts
// once, and one on a core of a divided lane by its share of the lane; and what its answer is.
func setDurations(c *control.Completed, ran executedRun) {
	result := ran.result
	c.NonFinite, c.NoAnswer = ran.nonFinite != tensor.Finite, ran.resp == nil
	c.QueueNs, c.ExecutionNs = int64(result.Queue), int64(result.Execution)
	if result.Queries > 1 {
		c.Merged = uint32(result.Items)
		c.MergedUsers, c.MergedValues = uint32(result.Users), uint64(result.Values)
	}
	if result.Joined {
		c.QueueNs, c.ExecutionNs = c.QueueNs+c.ExecutionNs, 0
	}
	if cores := int64(result.Divided); cores > 0 {
		share := c.ExecutionNs / cores
		c.QueueNs, c.ExecutionNs, c.Divided = c.QueueNs+c.ExecutionNs-share, share, true
	}
}

// addCompleted adds the end of an attempt to the next message to the leader that this agent
// follows. Without a leader it is dropped; this agent's own estimates learn of it in any case.
func (w *Worker) addCompleted(c *control.Completed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if remaining := w.lanes.RemainingByLane(); int(c.Lane) < len(remaining) {
		c.RemainingNs = max(c.RemainingNs, int64(remaining[c.Lane]))
	}
	w.tellLeader(func(m *control.WorkerMessage) { m.Completed = append(m.Completed, c) })
}

// remainingByLane returns the remaining time of each lane, in nanoseconds.
func (w *Worker) remainingByLane() []int64 {
	byLane := w.lanes.RemainingByLane()
	ns := make([]int64, len(byLane))
	for lane, d := range byLane {
		ns[lane] = int64(d)
	}
	return ns
}
