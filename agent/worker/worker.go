package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/api/tracing"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/runtime"
)

// Leading says whom this agent follows, and takes what the election says. Its methods may be called
// concurrently.
type Leading interface {
	members.Leading
	// Linked tells that the agent named has opened a Link to this one: what the election has to say
	// to that agent goes by send, which must not block, until closed is called, which tells whether
	// the agent has ended the Link in order, or it broke. Only the first call counts.
	Linked(from names.AgentName, send func(*control.Election)) (closed func(inOrder bool))
	// Elect takes an election message that came by such a Link.
	Elect(*control.Election)
}

// Callers are those who make calls, by the contexts of their calls.
type Callers interface {
	// MayQuery says why the caller may not query a model; nil if it may.
	MayQuery(ctx context.Context, model string) error
	// Query counts a query of the caller, of as many bytes as are known yet, or refuses it for the
	// caller's limits.
	Query(ctx context.Context, w secure.Way, bytes int64) error
}

// A Config says what a [Worker] runs models with, and what it needs of the rest of the agent.
// Functions may be called concurrently.
type Config struct {
	// Executor runs the models.
	Executor runtime.Executor
	// Lanes is how many queries run at once, each on its share of Cores; both are > 0.
	Lanes, Cores int
	// MaxWaitingQueries and MaxWaitingBytes bound what waits for the lanes.
	MaxWaitingQueries int
	MaxWaitingBytes   int64
	// ModelDir is the model repository, LoadTimeout bounds the load of one version.
	ModelDir    string
	LoadTimeout time.Duration
	Catalogue   *profiles.Catalogue
	Library     *profiles.Library
	// InstanceType is what the agent runs on, "" as long as that is not known.
	InstanceType func() profiles.InstanceType

	// Gateway is this agent's own, as gateways are named.
	Gateway uint64
	Leading Leading
	// Own is what this agent is; it must not be changed.
	Own func() *control.Member
	// ToldByLeader takes what the leader that this agent follows says.
	ToldByLeader func(*control.LeaderMessage)
	Callers      Callers
	// Full refuses a query of a call whose size is not known yet if there is no room;
	// nil if there is.
	Full func(context.Context) error
	// Draining reports whether the agent takes no new queries.
	Draining func() bool
	// Loaded is told of a version before it serves, Observe of every change of a version's state.
	Loaded  func(*models.Version)
	Observe func(models.Event)

	Registry prometheus.Registerer
	Tracer   trace.Tracer // nil: nothing is traced
	Log      *slog.Logger
}

// A Worker is what an agent does for others: it knows what attempts its lanes hold, keeps
// reservations for gateways that asked, and tells the leader that the agent follows what became of
// each. Its methods may be called concurrently.
type Worker struct {
	config     Config
	metrics    *metrics
	estimates  *estimates
	lanes      *runtime.Lanes
	repository *models.Repository[*Model]
	sums       fileSums
	sequence   atomic.Uint64

	mu           sync.Mutex
	held         map[*control.Held]bool
	followed     []*followedLink
	reservations map[reservationID]*runtime.Reservation
}

// Open reads what models there are; Run loads them.
func Open(config Config) (*Worker, error) {
	w := &Worker{
		config: config, metrics: newMetrics(),
		held: map[*control.Held]bool{}, reservations: map[reservationID]*runtime.Reservation{},
	}
	w.estimates = newEstimates(config.Library, config.Catalogue, w.describeLanes)
	w.lanes = runtime.NewLanes(runtime.LanesConfig{
		Estimator:       w.estimates,
		Lanes:           config.Lanes,
		MaxWaiting:      config.MaxWaitingQueries,
		MaxWaitingBytes: config.MaxWaitingBytes,
	})
	w.metrics.register(config.Registry, config.Executor.Info(), w.lanes)
	var err error
	w.repository, err = models.Open(config.ModelDir, w.load, models.Options{
		LoadTimeout: config.LoadTimeout, Logger: config.Log, OnEvent: w.observe,
	})
	return w, err
}

// Run keeps the repository's models loaded until ctx ends, and returns when all are closed, which
// those that have acquired some keep from.
func (w *Worker) Run(ctx context.Context) error { return w.repository.Run(ctx) }

// Repository holds the models.
func (w *Worker) Repository() *models.Repository[*Model] { return w.repository }

// Lanes run the queries.
func (w *Worker) Lanes() *runtime.Lanes { return w.lanes }

// Info is what runs the models.
func (w *Worker) Info() runtime.Info { return w.config.Executor.Info() }

// Complete adds to a view the profiles that it lacks, as far as this agent has learned them.
func (w *Worker) Complete(v *control.View) { w.estimates.complete(v) }

// Learned is another number each time that Complete may add more.
func (w *Worker) Learned() uint64 { return w.estimates.learnedTimes.Load() }

// observe follows the life of the model versions.
func (w *Worker) observe(e models.Event) {
	w.metrics.observe(e)
	w.config.Observe(e)
}

// Forget forgets what belongs to versions that are gone: held are those of the fleet, as "ncf/1",
// known reports whether a client may ask for a model.
func (w *Worker) Forget(now time.Time, held map[names.ModelKey]bool,
	known func(model string) bool) {
	w.estimates.forget(now, held)
	w.metrics.forget(now, known)
}

// Sizes tells of how many things the worker keeps, for tests that look for what grows.
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

// Attempt runs the attempt that a header names. received is when the headers arrived. It owns req.
func (w *Worker) Attempt(ctx context.Context, header string, req *oip.Request,
	received time.Time) (resp *oip.Response, err error) {
	defer req.Release()
	t, err := w.begin(header, received)
	if err != nil {
		return nil, err
	}
	t.held.Model = req.Model
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(tracing.Attempt.Int(int(t.attempt.Attempt)),
			tracing.Ms(tracing.Waited, t.attempt.Waited))
	}
	defer func() { w.ended(t, err) }()
	resp, err = w.perform(ctx, req, t)
	if t.probed {
		remaining := strconv.FormatInt(int64(w.lanes.Remaining()), 10)
		// only outside of a call does it fail
		_ = grpc.SetTrailer(ctx, metadata.Pairs(control.RemainingTrailer, remaining))
	}
	return resp, err
}

// begin is the attempt that a header names, which was received at the given time. It
// takes the attempt's reservation.
func (w *Worker) begin(header string, received time.Time) (*attempt, error) {
	named, err := control.ParseAttempt(header)
	if err != nil {
		return nil, outcome.Invalid("%w", err)
	}
	t := &attempt{
		attempt: named, receive: time.Since(received), arrival: received,
		held: &control.Held{
			Gateway: named.Gateway, Sequence: named.Sequence, Attempt: named.Attempt,
			Lane: named.Lane,
		},
	}
	if t.probed = named.Reservation != 0; t.probed {
		t.reservation = w.take(reservationID{named.Gateway, named.Reservation})
	}
	w.metrics.attempts.Inc()
	return t, nil
}

// errCutOff ends an attempt whose call has ended before its query was here.
var errCutOff = fmt.Errorf("the call has ended before the query was received: %w", context.Canceled)

// CutOff tells the leader that the attempt that a header names is not run: its call has ended while
// the query was on its way, and the lane is not to be reserved for it any more.
func (w *Worker) CutOff(header string, received time.Time) {
	if t, err := w.begin(header, received); err == nil {
		w.lanes.Release(t.reservation)
		w.ended(t, errCutOff)
	}
}

// An attempt is an attempt on its way through this agent.
type attempt struct {
	attempt     control.Attempt
	held        *control.Held
	arrival     time.Time // of the query at its gateway
	receive     time.Duration
	reservation *runtime.Reservation
	probed      bool // a gateway chose this agent, not a leader
	bytes       int64
	result      *runtime.Result // nil unless it was run
}

// perform validates the query and runs it.
func (w *Worker) perform(ctx context.Context, req *oip.Request, t *attempt) (*oip.Response, error) {
	loaded, err := w.Acquire(req.Model, req.Version)
	if err != nil {
		if !errors.Is(err, outcome.ErrInvalid) {
			err = fmt.Errorf("%w: %w", outcome.ErrRefused, err)
		}
		return nil, err
	}
	defer loaded.Release()
	// Whoever says that a query has waited longer than anybody waits would spoil what is known of
	// latencies.
	t.arrival = t.arrival.Add(-min(t.attempt.Waited, loaded.Version.Config.Deadline))
	q, err := validate(loaded.Version, req)
	if err != nil {
		return nil, err
	}
	t.bytes = req.Bytes()
	t.held.Model, t.held.Version, t.held.BatchSize = loaded.Version.Model, loaded.Version.Number,
		uint32(q.batchSize)
	if deadline, ok := ctx.Deadline(); ok {
		if remaining := w.lanes.Remaining(); t.reservation == nil &&
			time.Until(deadline) < remaining {
			return nil, fmt.Errorf("%w: it would start after its deadline, a lane is free in %v",
				outcome.ErrRefused, remaining)
		}
	}
	w.hold(t, q.batchSize)
	result, err := w.execute(ctx, loaded, q, execution{
		timeout: req.Timeout, arrival: t.arrival, lane: int(t.attempt.Lane),
		reservation: t.reservation,
	})
	if err != nil {
		var overloaded *runtime.OverloadedError
		if errors.As(err, &overloaded) || errors.Is(err, runtime.ErrDraining) ||
			errors.Is(err, runtime.ErrClosed) {
			return nil, fmt.Errorf("%w: %w", outcome.ErrRefused, err)
		}
		loaded.Model.counts.failed(err, time.Since(t.arrival))
		return nil, err
	}
	t.result = result
	loaded.Model.counts.answered(q.batchSize, time.Since(t.arrival), result.Queue, result.Execution,
		loaded.Version.Config.QoSTarget)
	return respond(loaded.Version, req, q, result), nil
}

// hold notes that the lanes are about to have an attempt. If no leader chose it,
// the leader is told how long the lanes are busy.
func (w *Worker) hold(t *attempt, batchSize int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held[t.held] = true
	if !t.probed {
		return
	}
	more := w.lanes.Estimate(names.NewModelKey(t.held.Model, t.held.Version), batchSize) /
		time.Duration(w.config.Lanes)
	w.tellLeader(func(m *control.WorkerMessage) {
		m.RemainingNs = w.remaining()
		for lane := range m.RemainingNs {
			m.RemainingNs[lane] += int64(more)
		}
	})
}

// ended tells the leader what became of an attempt.
func (w *Worker) ended(t *attempt, err error) {
	w.mu.Lock()
	delete(w.held, t.held)
	w.mu.Unlock()
	c := &control.Completed{
		Gateway: t.attempt.Gateway, Sequence: t.attempt.Sequence, Attempt: t.attempt.Attempt,
		Lane:  t.attempt.Lane,
		Model: t.held.Model, Version: t.held.Version, BatchSize: t.held.BatchSize,
		ReceiveNs: int64(t.receive), LatencyNs: int64(time.Since(t.arrival)),
		Bytes: uint64(t.bytes),
	}
	if t.result != nil {
		c.QueueNs, c.ExecutionNs = int64(t.result.Queue), int64(t.result.Execution)
	} else {
		c.Refused = "panic"
		if err != nil {
			f := outcome.Of(err)
			c.Refused = f.Reason
			w.metrics.refused.WithLabelValues(f.Reason).Inc()
		}
	}
	w.completed(c)
}

// completedAlone tells the leader, which is this agent, of a query that it
// served without asking anybody.
func (w *Worker) completedAlone(v *models.Version, batchSize int, bytes int64, arrival time.Time,
	result *runtime.Result) {
	w.completed(&control.Completed{
		Gateway: w.config.Gateway, Sequence: w.sequence.Add(1), Attempt: 1, Model: v.Model,
		Version: v.Number, BatchSize: uint32(batchSize),
		QueueNs: int64(result.Queue), ExecutionNs: int64(result.Execution),
		LatencyNs: int64(time.Since(arrival)), Bytes: uint64(bytes),
	})
}

// completed tells the leader followed of the end of an attempt. Without one
// nobody hears of it, but for this agent's own estimates.
func (w *Worker) completed(c *control.Completed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if remaining := w.lanes.RemainingByLane(); int(c.Lane) < len(remaining) {
		c.RemainingNs = int64(remaining[c.Lane])
	}
	w.tellLeader(func(m *control.WorkerMessage) { m.Completed = append(m.Completed, c) })
}

// remaining is how long until each lane is free.
func (w *Worker) remaining() []int64 {
	byLane := w.lanes.RemainingByLane()
	ns := make([]int64, len(byLane))
	for lane, d := range byLane {
		ns[lane] = int64(d)
	}
	return ns
}
