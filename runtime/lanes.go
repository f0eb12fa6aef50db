package runtime

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/runtime/queue"
)

// longestBackground is how long a background query keeps a lane.
const longestBackground = 100 * time.Millisecond

// stuckAfter is how long Drain waits for runs that it has cancelled.
const stuckAfter = 5 * time.Second

// Why a query was dropped. [OverloadedError] is the one with numbers.
var (
	// ErrDeadline is the cause when a query's deadline passed.
	ErrDeadline = fmt.Errorf("runtime: deadline passed: %w", context.DeadlineExceeded)
	// ErrLate is returned for a query that can no longer meet its QoS target
	// where the model rejects such queries.
	ErrLate = errors.New("runtime: query can no longer meet its QoS target")
	// ErrDraining is returned once the lanes no longer take queries.
	ErrDraining = errors.New("runtime: lanes are draining")
)

// An OverloadedError refuses a query because too much is waiting.
type OverloadedError struct {
	Waiting      int   // queries waiting
	WaitingBytes int64 // bytes of their inputs
	// RetryAfter estimates when what waits now will have been served.
	RetryAfter time.Duration
}

func (e *OverloadedError) Error() string {
	return fmt.Sprintf("runtime: overloaded: %d queries (%d bytes) waiting, retry in %v", e.Waiting,
		e.WaitingBytes, e.RetryAfter)
}

// A Query is one query for [Lanes.Do]. All but Model, Inputs and BatchSize may
// be zero.
type Query struct {
	Model     Model
	Inputs    []tensor.Tensor
	BatchSize int
	// Profile names the (model, version) whose execution times are alike,
	// e.g. "ncf/1"; estimates are kept by it.
	Profile names.ModelKey
	// Arrival is when the query came in; zero means now.
	Arrival time.Time
	// QoSTarget is the latency, counted from Arrival, within which the answer should
	// be there; 0 means there is none, and the query waits with those that are late.
	QoSTarget time.Duration
	// Deadline is when the query is dropped, whether it waits or runs; zero means never.
	Deadline time.Time
	// RejectLate drops the query as soon as it can no longer meet its QoS target, instead of
	// serving it when a lane would otherwise be idle.
	RejectLate bool
	// Lane is the lane that the query gets if that is idle; another one does as
	// well. Anything that is no lane means any.
	Lane int
	// Reservation is the place that was kept for the query, by Reserve; nil where
	// there was none. It is given back when the query takes its place, or is refused.
	Reservation *Reservation
	// Background runs the query only when a lane is idle and nothing else waits. It
	// counts neither as waiting nor in estimates. If it runs for longer than 100 ms, it goes on
	// beside the lanes, so that a run without an end takes none of them away.
	Background bool
}

// A LanesConfig sets up [Lanes].
type LanesConfig struct {
	// Lanes is how many queries run at a time; 0 means 1.
	Lanes int
	// MaxWaiting bounds the queries that wait; 0 means 1024.
	MaxWaiting int
	// MaxWaitingBytes bounds the bytes of their inputs; 0 means 256 MiB.
	MaxWaitingBytes int64
	// Estimator says how long queries will take; nil means [NewLinearEstimator].
	Estimator Estimator
}

// Lanes runs queries, at most one a lane at a time, each on its caller's
// goroutine; it has none of its own. Waiting queries are served in the order of
// package queue. Its methods may be called concurrently.
type Lanes struct {
	lanes           int
	maxWaiting      int
	maxWaitingBytes int64
	start           time.Time // what waiters' times count from

	mu        sync.Mutex
	estimator Estimator
	queue     queue.Queue[*turn]
	idle      []int // lanes
	reserved  map[*Reservation]struct{}
	current   map[*turn]struct{} // admitted queries, waiting or running
	busy      time.Duration
	dropped   Dropped
	draining  bool
	drained   chan struct{} // closed when draining and nothing is left
}

// A turn is a query on its way through the lanes. Times count from the lanes' start.
type turn struct {
	queue.Place
	spread time.Duration // how much longer than Estimate one in ten takes

	// Guarded by the lanes' mutex.
	granted   chan struct{} // closed when a lane is its own; nil where it had not to wait
	started   time.Duration // when that was
	lane      int           // which one that is
	running   bool
	abandoned bool // by Drain
	cancel    context.CancelFunc
}

// NewLanes returns idle lanes.
func NewLanes(cfg LanesConfig) *Lanes {
	orDefault := func(n, d int64) int64 {
		if n <= 0 {
			return d
		}
		return n
	}
	l := &Lanes{
		lanes:           int(orDefault(int64(cfg.Lanes), 1)),
		maxWaiting:      int(orDefault(int64(cfg.MaxWaiting), 1024)),
		maxWaitingBytes: orDefault(cfg.MaxWaitingBytes, 256<<20),
		start:           time.Now(),
		estimator:       cfg.Estimator,
		current:         map[*turn]struct{}{},
		reserved:        map[*Reservation]struct{}{},
		drained:         make(chan struct{}),
	}
	for lane := range l.lanes {
		l.idle = append(l.idle, lane)
	}
	if l.estimator == nil {
		l.estimator = NewLinearEstimator()
	}
	return l
}

func (l *Lanes) now() time.Duration { return time.Since(l.start) }

// Do waits for a lane and runs the query on it. It fails with an
// [*OverloadedError] at once where too much waits, with [ErrDraining] after
// Drain, with [ErrLate] or [ErrDeadline], and with ctx's cause as soon as ctx ends,
// waiting or running.
func (l *Lanes) Do(ctx context.Context, q Query) (*Result, error) {
	t := &turn{Place: queue.Place{Background: q.Background}}
	if q.Deadline.IsZero() {
		ctx, t.cancel = context.WithCancel(ctx)
	} else {
		ctx, t.cancel = context.WithDeadlineCause(ctx, q.Deadline, ErrDeadline)
	}
	defer t.cancel()
	for _, in := range q.Inputs {
		t.Bytes += int64(len(in.Data))
	}
	admitted, err := l.admit(ctx, t, &q)
	if err != nil {
		return nil, err
	}
	if t.granted != nil {
		if err := l.wait(ctx, t, &q); err != nil {
			return nil, err
		}
	}
	var result *Result
	defer func() { l.finish(t, &q, result) }()
	if q.Background {
		timer := time.AfterFunc(longestBackground, func() { l.giveUp(t) })
		defer timer.Stop()
	}
	result, err = q.Model.Run(ctx, q.Inputs)
	if err != nil {
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			l.mu.Lock()
			defer l.mu.Unlock()
			return nil, l.drop(ctx, t)
		}
		return nil, err
	}
	result.Queue, result.Lane = t.started-admitted, t.lane
	return result, nil
}

// admit gives the query a lane or a place in the queue, or refuses it.
func (l *Lanes) admit(ctx context.Context, t *turn, q *Query) (admitted time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	delete(l.reserved, q.Reservation)
	t.Estimate = l.estimator.Estimate(q.Profile, q.BatchSize)
	t.spread = l.estimator.High(q.Profile, q.BatchSize) - t.Estimate
	arrival := now
	if !q.Arrival.IsZero() {
		arrival = q.Arrival.Sub(l.start)
	}
	t.LatestStart = queue.LatestStart(arrival, q.QoSTarget, t.Estimate)
	switch {
	case l.draining:
		l.dropped.Draining++
		return 0, ErrDraining
	case ctx.Err() != nil:
		return 0, l.drop(ctx, t)
	case q.rejects() && t.LatestStart < now:
		l.dropped.Late++
		return 0, ErrLate
	case len(l.idle) > 0:
		i := max(slices.Index(l.idle, q.Lane), 0)
		t.running, t.started, t.lane = true, now, l.idle[i]
		l.idle = slices.Delete(l.idle, i, i+1)
	case !q.Background && (l.queue.Len() >= l.maxWaiting ||
		l.queue.Bytes()+t.Bytes > l.maxWaitingBytes):
		l.dropped.Overloaded++
		return 0, &OverloadedError{
			l.queue.Len(), l.queue.Bytes(), max(l.remaining(now), time.Millisecond),
		}
	default:
		t.granted = make(chan struct{})
		l.queue.Push(t, now)
	}
	l.current[t] = struct{}{}
	return now, nil
}

func (q *Query) rejects() bool { return q.RejectLate && q.QoSTarget > 0 }

// wait returns when a lane is t's, or takes t out of the queue.
func (l *Lanes) wait(ctx context.Context, t *turn, q *Query) error {
	var late <-chan time.Time
	if q.rejects() {
		timer := time.NewTimer(t.LatestStart - l.now() + 1)
		defer timer.Stop()
		late = timer.C
	}
	isLate := false
	select {
	case <-t.granted:
		return nil
	case <-ctx.Done():
	case <-late:
		isLate = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.queue.Remove(t) { // granted just now: the run sees whether ctx has ended
		return nil
	}
	l.leave(t)
	if isLate {
		l.dropped.Late++
		return ErrLate
	}
	return l.drop(ctx, t)
}

// drop counts a query whose context has ended and returns why.
func (l *Lanes) drop(ctx context.Context, t *turn) error {
	cause := context.Cause(ctx)
	switch {
	case t.abandoned:
		l.dropped.Draining++
		return ErrDraining
	case errors.Is(cause, context.DeadlineExceeded):
		l.dropped.Deadline++
	default:
		l.dropped.Cancelled++
	}
	return cause
}

// finish ends t's run.
func (l *Lanes) finish(t *turn, q *Query, result *Result) {
	l.mu.Lock()
	if result != nil {
		l.estimator.Observe(q.Profile, q.BatchSize, result.Execution)
	}
	l.mu.Unlock()
	l.giveUp(t)
}

// giveUp gives t's lane to the next query, unless t has none any more.
func (l *Lanes) giveUp(t *turn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !t.running {
		return
	}
	now := l.now()
	t.running = false
	l.busy += now - t.started
	if next, ok := l.queue.Pop(now); ok {
		next.running, next.started, next.lane = true, now, t.lane
		close(next.granted)
	} else {
		l.idle = append(l.idle, t.lane)
	}
	l.leave(t)
}

// leave ends t's presence.
func (l *Lanes) leave(t *turn) {
	delete(l.current, t)
	if l.draining && len(l.current) == 0 {
		close(l.drained)
	}
}

// Drain refuses new queries and returns when those running and waiting are
// done. When ctx ends first, they are dropped with [ErrDraining], and Drain
// returns ctx's error once the lanes are idle, or five seconds later if a run does not end.
func (l *Lanes) Drain(ctx context.Context) error {
	l.mu.Lock()
	if !l.draining {
		l.draining = true
		if len(l.current) == 0 {
			close(l.drained)
		}
	}
	l.mu.Unlock()
	select {
	case <-l.drained:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	for t := range l.current {
		t.abandoned = true
		t.cancel()
	}
	l.mu.Unlock()
	timer := time.NewTimer(stuckAfter)
	defer timer.Stop()
	select {
	case <-l.drained:
	case <-timer.C:
	}
	return ctx.Err()
}

// A LanesStats is a snapshot of [Lanes].
type LanesStats struct {
	Lanes        int
	Running      int   // background work counts
	Waiting      int   // background work does not count
	WaitingBytes int64 // of the inputs of what waits
	// Remaining estimates how long until a lane is free for a new query, what is
	// reserved included.
	Remaining time.Duration
	// RemainingByLane estimates how long each lane is busy with what runs and waits, for those who
	// hear of it now and then. What is reserved it leaves out: they would not hear that it lapses.
	RemainingByLane []time.Duration
	// Busy is the time queries have spent on lanes, summed over the lanes.
	Busy time.Duration
	// Dropped counts queries that got no answer, by reason.
	Dropped Dropped
}

// Dropped counts dropped queries by reason.
type Dropped struct {
	Deadline   uint64 // deadline passed, waiting or running
	Cancelled  uint64 // the caller's context was cancelled
	Late       uint64 // rejected as late
	Overloaded uint64 // refused on arrival
	Draining   uint64 // refused or dropped while draining
}

// Stats returns a snapshot.
func (l *Lanes) Stats() LanesStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	busy := l.busy
	for t := range l.current {
		if t.running {
			busy += now - t.started
		}
	}
	return LanesStats{
		Lanes:        l.lanes,
		Running:      l.lanes - len(l.idle),
		Waiting:      l.queue.Len(),
		WaitingBytes: l.queue.Bytes(),
		Remaining:    l.remaining(now),

		RemainingByLane: l.remainingByLane(now),
		Busy:            busy,
		Dropped:         l.dropped,
	}
}

// Remaining is LanesStats.Remaining.
func (l *Lanes) Remaining() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.remaining(l.now())
}

// RemainingByLane is LanesStats.RemainingByLane.
func (l *Lanes) RemainingByLane() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.remainingByLane(l.now())
}

// Estimate is how long a query is expected to execute; 0 where nothing is known
// of its profile.
func (l *Lanes) Estimate(profile names.ModelKey, batchSize int) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.estimator.Estimate(profile, batchSize)
}

// A Reservation is a place that is kept for a query which is about to come.
type Reservation struct {
	// Finish estimates, with a certainty of 90 %, when the query would be
	// answered if it came now, and Remaining when a lane would be free for it.
	Finish, Remaining time.Duration

	until    time.Duration // when nobody waits for the query any more
	estimate time.Duration
}

// Reserve says when a query would be answered, and keeps its place for the given
// time: others see it in [LanesStats.Remaining]. The query brings it along
// ([Query.Reservation]); or Release gives it back.
func (l *Lanes) Reserve(profile names.ModelKey, batchSize int, keep time.Duration) *Reservation {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	r := &Reservation{
		Remaining: l.remaining(now), until: now + keep,
		estimate: l.estimator.Estimate(profile, batchSize),
	}
	own := float64(l.estimator.High(profile, batchSize) - r.estimate)
	variance := own * own
	if len(l.idle) == 0 {
		for t := range l.current {
			variance += float64(t.spread) * float64(t.spread)
		}
	}
	r.Finish = r.Remaining + r.estimate + time.Duration(math.Sqrt(variance))
	l.reserved[r] = struct{}{}
	return r
}

// Release gives a reservation back that is not needed. Doing so again, or
// after the query has come, does nothing.
func (l *Lanes) Release(r *Reservation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.reserved, r)
}

// promised is the number of reservations and what they will take in all.
func (l *Lanes) promised(now time.Duration) (n int, estimate time.Duration) {
	for r := range l.reserved {
		if r.until <= now {
			delete(l.reserved, r)
			continue
		}
		n++
		estimate += r.estimate
	}
	return n, estimate
}

// remaining is LanesStats.Remaining: the shortest rest of a running query, and a
// lane's share of what waits and what is reserved.
func (l *Lanes) remaining(now time.Duration) time.Duration {
	n, reserved := l.promised(now)
	if n < len(l.idle) {
		return 0
	}
	first := time.Duration(-1)
	if len(l.idle) > 0 {
		first = 0
	}
	for t := range l.current {
		if t.running {
			if rest := t.rest(now); first < 0 || rest < first {
				first = rest
			}
		}
	}
	return max(first, 0) + (l.queue.Estimate()+reserved)/time.Duration(l.lanes)
}

// rest is how long t will still run, by the estimate.
func (t *turn) rest(now time.Duration) time.Duration { return max(0, t.Estimate-(now-t.started)) }

// remainingByLane is LanesStats.RemainingByLane.
func (l *Lanes) remainingByLane(now time.Duration) []time.Duration {
	remaining := make([]time.Duration, l.lanes)
	for lane := range remaining {
		remaining[lane] = l.queue.Estimate() / time.Duration(l.lanes)
	}
	for t := range l.current {
		if t.running {
			remaining[t.lane] += t.rest(now)
		}
	}
	return remaining
}
