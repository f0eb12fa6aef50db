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
	"github.com/muster-serve/muster/runtime/isolate"
	"github.com/muster-serve/muster/runtime/queue"
	"github.com/muster-serve/muster/runtime/queue/merge"
)

// longestBackground is the longest time for which a background query keeps a lane.
const longestBackground = 100 * time.Millisecond

// stuckAfter is how long Drain waits for the runs that it has cancelled.
const stuckAfter = 5 * time.Second

// Errors of a dropped query. A query that was refused because too much waits has an
// [OverloadedError] instead.
var (
	// ErrDeadline is the cause when a query's deadline passed.
	ErrDeadline = fmt.Errorf("runtime: deadline passed: %w", context.DeadlineExceeded)
	// ErrLate is wrapped for a query with RejectLate that can no longer meet its QoS target, by a
	// [LateError].
	ErrLate = errors.New("runtime: query can no longer meet its QoS target")
	// ErrDraining is returned after Drain was called.
	ErrDraining = errors.New("runtime: lanes are draining")
)

// An OverloadedError refuses a query because too much is waiting.
type OverloadedError struct {
	Waiting      int   // queries waiting
	WaitingBytes int64 // bytes of their inputs
	// RetryAfter is when to try again, > 0: when the lanes can have served the queries that wait, and
	// those whose clients were told so before.
	RetryAfter time.Duration
}

func (e *OverloadedError) Error() string {
	return fmt.Sprintf("runtime: overloaded: %d queries (%d bytes) waiting, retry in %v", e.Waiting,
		e.WaitingBytes, e.RetryAfter)
}

// A LateError wraps [ErrLate], and has its text.
type LateError struct {
	RetryAfter time.Duration // as of an [OverloadedError]
}

func (e *LateError) Error() string { return ErrLate.Error() }

// Unwrap returns [ErrLate].
func (e *LateError) Unwrap() error { return ErrLate }

// A CutError says that a query was dropped while it ran, alone on its lane.
type CutError struct {
	After time.Duration // how long it had run
	Err   error         // why
}

func (e *CutError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *CutError) Unwrap() error { return e.Err }

// A Query is one query for [Lanes.Do]. Model, Inputs and BatchSize are required; the other
// fields may be zero.
type Query struct {
	Model     Model
	Inputs    []tensor.Tensor
	BatchSize int
	// Profile is the name under which the estimator keeps execution times: the model and version,
	// such as "ncf/1".
	Profile names.ModelKey
	// Arrival is when the query came in; zero means now.
	Arrival time.Time
	// QoSTarget is the latency, counted from Arrival, within which the query should be answered. 0
	// means that it has none; it then waits with the late queries.
	QoSTarget time.Duration
	// Deadline is when the query is dropped, waiting or running; zero means never.
	Deadline time.Time
	// RejectLate drops the query as soon as it can no longer meet its QoS target, instead of
	// serving it when a lane would otherwise be idle.
	RejectLate bool
	// Lane is the preferred lane, 0 or more: the query gets it if it is idle, else any lane. A
	// number that is no lane means no preference.
	Lane int
	// Merge says how the query may run together with others of the same Model whose inputs have the
	// same shapes but for the batch size; "" means that it runs alone. The rows of the model must
	// be independent. LargestBatch bounds the batch size of such a run.
	Merge        names.MergePolicy
	LargestBatch int
	// Group names the queries with which a leader wants the query to run; the lane waits for them
	// for a moment. It counts only if Merge merges.
	Group merge.GroupID
	// Reservation is the time that Reserve has kept for this query; nil if there is none. Do
	// releases it when it admits or refuses the query.
	Reservation *Reservation
	// Refuse refuses the query as overload as soon as it is expected neither to meet its QoS target
	// nor to start before its deadline, among the late queries that run when a lane would be idle.
	Refuse bool
	// Divide lets a lane of several cores run the query on one of them, beside others, while several
	// wait, or if one core takes no longer for it. While several wait a query then takes longer, and
	// all of them together less: cores that share a run wait for each other. Set it only if nobody
	// plans with the lane's times.
	Divide bool
	// Background runs the query only when a lane is idle and no other query waits, or when it has
	// waited for queue.BackgroundWait. A background query does not count as waiting. If its run
	// takes longer than 100 ms, the lane goes to the next query while the run goes on, so that a
	// run that never ends blocks no lane.
	Background bool
}

// A LanesConfig is the configuration of [Lanes].
type LanesConfig struct {
	// Lanes is how many queries run at a time; 0 means 1. Cores is how many cores each lane has; 0
	// means 1.
	Lanes, Cores int
	// MaxWaiting bounds the number of queries that wait; 0 means 1024.
	MaxWaiting int
	// MaxWaitingBytes bounds the bytes of the inputs of the queries that wait; 0 means 256 MiB.
	MaxWaitingBytes int64
	// Estimator predicts execution times; nil means [NewLinearEstimator]. Lanes owns it from then
	// on.
	Estimator Estimator
	// Pins keeps the thread of a run on its lane's processors. It has one for each lane; nil means
	// that the system may run threads wherever it wants.
	Pins []*isolate.Pin
	// Unpinned is called with the reason, once for each lane, when the system refuses to pin. The
	// lane's queries then run unpinned. It must not block. nil: nobody is told.
	Unpinned func(lane int, err error)
}

// Lanes runs queries, at most one at a time on each lane, or several as one where package merge
// says so, or one on each of its cores ([Query.Divide]). A query runs on the goroutine that calls Do,
// or on that of another query which runs with it; Lanes starts none. Waiting queries are served in
// the order of package queue. The methods may be called concurrently; only Do and Drain block.
type Lanes struct {
	lanes           int
	maxWaiting      int
	maxWaitingBytes int64
	start           time.Time // origin of the times in turns, reservations and the queue
	pins            []*pin    // by lane; nil: none

	mu        sync.Mutex
	estimator Estimator
	queue     queue.Queue[*turn]
	taker     merge.Taker[*turn]
	groups    merge.Groups
	kinds     []*kind
	timer     *time.Timer // calls serveWaiting; nil until a lane waits for more queries to merge
	memory    []memory    // by lane
	idle      []int       // numbers of the lanes that run no query
	divided
	overload
	reserved map[*Reservation]struct{}
	current  map[*turn]struct{} // admitted queries, waiting or running
	busy     time.Duration
	asked    asked
	dropped  Dropped
	draining bool
	drained  chan struct{} // closed when draining and nothing is left
}

// A turn is a query on its way through the lanes. Times count from the lanes' start.
type turn struct {
	queue.Place
	refusable
	spread  time.Duration // the 90 % quantile of the execution time, less Estimate
	inputs  []tensor.Tensor
	batch   int
	profile names.ModelKey
	kind    *kind        // nil: the query runs alone
	group   *merge.Group // that it was sent to run with; nil: none
	single  Model        // runs it on one core; nil: nothing does, or it is not to
	// ruledOut is what would be single but for what is known of runs on one core.
	ruledOut Model
	whole    time.Duration // what it is expected to take on all cores of a lane
	narrow   bool          // whether one core is to run it though there is no load; see divided
	rejects  bool          // whether it is dropped as soon as it is late
	tries    bool          // whether it goes the way that is not expected to be best, to learn of it
	saves    time.Duration // see Lanes.saves; while it waits

	// Guarded by the lanes' mutex.
	granted   chan struct{} // closed when the query gets a lane; nil if it did not have to wait
	merged    *mergedRun    // the run with others that it is part of; nil: none
	result    *Result       // its part of the result of another query's run, once granted
	started   time.Duration // when the query got its lane
	lane      int           // the lane's number
	onCore    bool          // whether it has one core of the lane
	running   bool          // whether the query holds its lane
	abandoned bool          // whether Drain has cancelled it
	timely    bool          // whether it was in time when it started
	refusal   error         // why it was refused while it waited, once granted; nil: it was not
	cancel    context.CancelFunc
}

// NewLanes returns lanes that are idle. They need no Close.
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
	l.divided = newDivided(l.lanes, int(orDefault(int64(cfg.Cores), 1)))
	l.memory = make([]memory, l.lanes)
	for lane, p := range cfg.Pins {
		l.pins = append(l.pins, &pin{Pin: p, lane: lane, told: cfg.Unpinned})
	}
	for lane := range l.lanes {
		l.idle = append(l.idle, lane)
	}
	if l.estimator == nil {
		l.estimator = NewLinearEstimator()
	}
	return l
}

// now returns the time since l.start.
func (l *Lanes) now() time.Duration { return time.Since(l.start) }

// Do waits for a lane and runs the query on it. It blocks until the query is answered or dropped.
// The caller releases the result. Do fails at once with an [*OverloadedError] if too much waits,
// and with [ErrDraining] after Drain. A query that waits or runs is dropped with [ErrLate], with
// [ErrDeadline], or with ctx's cause when ctx ends; if it ran by then, a [CutError] wraps that.
func (l *Lanes) Do(ctx context.Context, q Query) (*Result, error) {
	t := &turn{
		Place: queue.Place{Background: q.Background}, inputs: q.Inputs, batch: q.BatchSize,
		profile: q.Profile, rejects: q.RejectLate && q.QoSTarget > 0,
	}
	if q.Deadline.IsZero() {
		ctx, t.cancel = context.WithCancel(ctx)
	} else {
		ctx, t.cancel = context.WithDeadlineCause(ctx, q.Deadline, ErrDeadline)
	}
	defer t.cancel()
	if m, ok := q.Model.(divisible); ok && q.Divide && l.cores > 1 {
		t.single = m.onOneCore()
	}
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
		if t.result != nil { // another query's run has answered it
			t.result.Queue = t.started - admitted
			return t.result, nil
		}
	}
	var result *Result
	defer func() { l.finish(t, &q, result) }()
	if t.merged != nil {
		result = l.runMerged(ctx, t, &q)
		switch {
		case ctx.Err() != nil:
			if result != nil {
				result.Release()
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			return nil, l.drop(ctx, t)
		case result != nil:
			result.Queue, result.Lane = t.started-admitted, t.lane
			return result, nil
		case t.rejects && t.LatestStart < l.now():
			l.mu.Lock()
			defer l.mu.Unlock()
			return nil, l.late(t, l.now())
		}
	}
	if q.Background {
		timer := time.AfterFunc(longestBackground, func() { l.giveUp(t) })
		defer timer.Stop()
	}
	model := q.Model
	if t.onCore {
		model = t.single
	}
	result, err = l.run(t, model, func(m Model) (*Result, error) {
		return m.Run(ctx, q.Inputs)
	})
	if err != nil {
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			l.mu.Lock()
			defer l.mu.Unlock()
			err := l.drop(ctx, t)
			// What is dropped as it starts tells nothing.
			if ran := l.now() - t.started; ran > 0 && !t.onCore && !q.Background {
				return nil, &CutError{ran, err}
			}
			return nil, err
		}
		return nil, err
	}
	result.Queue, result.Lane = t.started-admitted, t.lane
	result.Queries, result.Items = 1, q.BatchSize
	if t.onCore {
		result.Divided = l.cores
	}
	return result, nil
}

// admit gives the query an idle lane, or queues it, or refuses it with an error. admitted is the
// time, since l.start.
func (l *Lanes) admit(ctx context.Context, t *turn, q *Query) (admitted time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	delete(l.reserved, q.Reservation)
	t.Estimate = l.estimator.Estimate(q.Profile, q.BatchSize)
	t.whole, t.spread = t.Estimate, l.estimator.High(q.Profile, q.BatchSize)-t.Estimate
	arrival := now
	if !q.Arrival.IsZero() {
		arrival = q.Arrival.Sub(l.start)
	}
	t.LatestStart = queue.LatestStart(arrival, q.QoSTarget, t.Estimate)
	t.refusable = l.newRefusable(ctx, q, now)
	l.noteSize(t)
	if !q.Background {
		l.asked.note(now)
	}
	// Others may be awaited even while a lane is idle, and so wait those that come meanwhile.
	waits := q.Merge.Merges() && !q.Background && (q.Merge.Waits() || q.Group.Number != 0)
	switch {
	case l.draining:
		l.dropped.Draining++
		return 0, ErrDraining
	case ctx.Err() != nil:
		return 0, l.outOfTime(ctx, t)
	case t.rejects && t.LatestStart < now:
		return 0, l.late(t, now)
	case len(l.idle) > 0 && l.queue.Len() == 0 && !waits:
		i := max(slices.Index(l.idle, q.Lane), 0)
		l.kindOf(t, q)
		l.plan(t, now, q.QoSTarget)
		if suitsCore(t) && l.dividesFor(t, l.idle[i], now) {
			l.divide(i)
			l.startOnCore(t, now)
			break
		}
		t.wholly()
		t.started, t.lane = now, l.idle[i]
		l.idle = slices.Delete(l.idle, i, i+1)
		l.starts(t, now)
	case !q.Background && (l.queue.Len() >= l.maxWaiting ||
		l.queue.Bytes()+t.Bytes > l.maxWaitingBytes):
		return 0, l.overloaded(t, now)
	default:
		if l.plan(t, now, q.QoSTarget); l.refusesAtOnce(t, now) {
			return 0, l.overloaded(t, now)
		}
		t.granted = make(chan struct{})
		if l.kindOf(t, q); t.kind != nil {
			t.group = l.groups.Arrive(q.Group, now, t.LatestStart)
		}
		l.push(t, now)
	}
	l.current[t] = struct{}{}
	l.serve(now)
	l.refuse(now)
	return now, nil
}

// push makes t wait.
func (l *Lanes) push(t *turn, now time.Duration) {
	l.queue.Push(t, now)
	l.entered(t)
}

// entered notes that t waits.
func (l *Lanes) entered(t *turn) {
	t.saves = l.saves(t)
	l.saved += t.saves
	if t.kind != nil { // beside merging it, what counts is the time that it takes of a lane
		t.kind.Enter(t.batch, t.Estimate-t.saves)
	}
}

// remove makes t wait no more, and reports whether it did.
func (l *Lanes) remove(t *turn) bool {
	if !l.queue.Remove(t) {
		return false
	}
	l.left(t)
	return true
}

// left notes that t waits no more.
func (l *Lanes) left(t *turn) {
	l.saved -= t.saves
	if t.kind != nil {
		t.kind.Leave(t.batch, t.Estimate-t.saves)
	}
}

// serve gives idle lanes, and free cores of divided ones, to queries that wait.
func (l *Lanes) serve(now time.Duration) {
	for {
		if l.serveCore(now) {
			continue
		}
		if len(l.idle) == 0 {
			return
		}
		run, until := l.taker.Take(&l.queue, now)
		if len(run) == 0 {
			l.serveAt(until)
			return
		}
		last := len(l.idle) - 1
		lane := l.idle[last]
		l.idle = l.idle[:last]
		for i, t := range run {
			l.left(t)
			t.wholly()
			t.started, t.lane = now, lane
			if i > 0 { // starts does so for the first
				l.noteMissed(t, now > t.LatestStart, now)
			}
		}
		if len(run) > 1 {
			l.merge(run)
		}
		l.starts(run[0], now)
		close(run[0].granted)
	}
}

// serveAt makes serve be called at a time, if it is not before merge.Never.
func (l *Lanes) serveAt(at time.Duration) {
	switch {
	case at == merge.Never:
	case l.timer == nil:
		l.timer = time.AfterFunc(at-l.now(), l.serveWaiting)
	default:
		l.timer.Reset(at - l.now())
	}
}

// serveWaiting gives idle lanes to queries that waited for others to be merged with.
func (l *Lanes) serveWaiting() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.serve(l.now())
}

// wait blocks until t has a lane, or its answer. If ctx ends or the query becomes late first, it
// takes t out of the queue and returns why. A query whose run has begun with others does not become
// late any more; if its ctx ends, the others go on.
func (l *Lanes) wait(ctx context.Context, t *turn, q *Query) error {
	var timer *time.Timer
	var late <-chan time.Time
	if t.rejects || q.QoSTarget > 0 && q.Divide && l.cores > 1 {
		l.mu.Lock()
		start := t.LatestStart
		l.mu.Unlock()
		timer = time.NewTimer(start - l.now() + 1)
		defer timer.Stop()
		late = timer.C
	}
	for {
		isLate := false
		select {
		case <-t.granted:
			return t.refusal
		case <-ctx.Done():
		case <-late:
			isLate, late = true, nil
		}
		l.mu.Lock()
		if isLate {
			widened := l.widens(t, l.now())
			if widened {
				timer.Reset(t.LatestStart - l.now() + 1)
				late = timer.C
			}
			if widened || !t.rejects {
				l.mu.Unlock()
				continue
			}
		}
		removed, m := l.remove(t), t.merged
		switch {
		case !removed && (t.running || t.result != nil || t.refusal != nil):
			l.mu.Unlock()
			return t.refusal // it got a lane meanwhile; its run checks whether ctx has ended
		case !removed && isLate:
			l.mu.Unlock()
			continue
		}
		l.leave(t)
		var err error
		if isLate {
			err = l.late(t, l.now())
		} else {
			err = l.outOfTime(ctx, t)
		}
		if !removed {
			m.abandon(t)
		}
		l.mu.Unlock()
		if !removed {
			<-m.copied // the run reads t.inputs until then
		}
		return err
	}
}

// drop counts a query whose context has ended, by its cause, and returns the cause. l.mu is held.
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

// outOfTime is drop for a query that has not run.
func (l *Lanes) outOfTime(ctx context.Context, t *turn) error {
	err := l.drop(ctx, t)
	if errors.Is(err, context.DeadlineExceeded) {
		l.noteMissed(t, true, l.now())
	}
	return err
}

// finish reports the run's execution time to the estimator and frees t's lane. result is nil if the
// run failed.
func (l *Lanes) finish(t *turn, q *Query, result *Result) {
	l.mu.Lock()
	if result != nil {
		l.estimatorOf(t).Observe(q.Profile, result.Items, result.Execution)
		if t.Estimate == 0 {
			l.estimateAnew(q.Profile, l.now())
		}
		if t.kind != nil && result.Queries == 1 {
			t.kind.Ran(q.BatchSize, t.due() < l.now())
		}
	}
	l.mu.Unlock()
	l.giveUp(t)
}

// giveUp gives t's lane to the next query. It does nothing if t has no lane any more.
func (l *Lanes) giveUp(t *turn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !t.running {
		return
	}
	now := l.now()
	if t.running = false; t.timely {
		l.timely -= l.coresOf(t)
	}
	l.busy += l.busyWith(t, now)
	if t.onCore {
		l.freeCore(t.lane)
	} else {
		l.idle = append(l.idle, t.lane)
	}
	l.noteLoad(t, now)
	l.preferSafe(now)
	l.serve(now)
	l.leave(t)
	l.refuse(now)
}

// leave takes t off the admitted queries, and ends a Drain after the last one. l.mu is held.
func (l *Lanes) leave(t *turn) {
	delete(l.current, t)
	l.unkind(t)
	if l.draining && len(l.current) == 0 {
		close(l.drained)
	}
}

// Drain makes Do refuse new queries, and blocks until the queries that run or wait are done. If ctx
// ends first, Drain drops them with [ErrDraining], waits for at most 5 s until their runs have
// ended, and returns ctx's error.
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
	Running      int   // queries that run, background queries among them
	Waiting      int   // queries that wait, without background queries
	WaitingBytes int64 // bytes of the inputs of the queries that wait
	// Remaining estimates how long it takes until a lane is free for a new query, with the time
	// that is reserved for others.
	Remaining time.Duration
	// RemainingByLane estimates how long each lane is busy with the queries that run and wait. It
	// leaves reservations out: members that hear of it would not hear that a reservation lapses.
	RemainingByLane []time.Duration
	// Busy is the time queries have spent on lanes, summed over the lanes; of a query on one core of a
	// lane, that core's share of it.
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
	busy, running := l.busy, 0
	for t := range l.current {
		if t.running {
			busy += l.busyWith(t, now)
			running++
		}
	}
	return LanesStats{
		Lanes:        l.lanes,
		Running:      running,
		Waiting:      l.queue.Len(),
		WaitingBytes: l.queue.Bytes(),
		Remaining:    l.remaining(now),

		RemainingByLane: l.remainingByLane(now),
		Busy:            busy,
		Dropped:         l.dropped,
	}
}

// Remaining returns LanesStats.Remaining.
func (l *Lanes) Remaining() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.remaining(l.now())
}

// RemainingByLane returns LanesStats.RemainingByLane.
func (l *Lanes) RemainingByLane() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.remainingByLane(l.now())
}

// Estimate returns the expected execution time of a query; 0 if nothing is known of its profile.
func (l *Lanes) Estimate(profile names.ModelKey, batchSize int) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.estimator.Estimate(profile, batchSize)
}

// A Reservation is time on a lane that is kept for a query that may come.
type Reservation struct {
	// If the query came now, a lane would be free for it after about Remaining, and with a
	// probability of about 90 % the query would be answered within Finish.
	Finish, Remaining time.Duration

	of       *Lanes
	until    time.Duration // when the reservation ends by itself
	estimate time.Duration
}

// Reserve estimates when a query would be answered, and reserves its execution time for the
// duration keep: Remaining counts it as if the query waited. The reservation ends when the query
// comes with it ([Query.Reservation]), by Release, or after keep.
func (l *Lanes) Reserve(profile names.ModelKey, batchSize int, keep time.Duration) *Reservation {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	r := &Reservation{
		Remaining: l.remaining(now), of: l, until: now + keep,
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

// Release ends a reservation. It does nothing if the reservation has already ended.
func (l *Lanes) Release(r *Reservation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.reserved, r)
}

// promised returns the number of reservations and the sum of their estimates. It drops those whose
// time has passed.
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

// remaining returns LanesStats.Remaining: the shortest time until a running query ends, plus one
// lane's share of the queries that wait and of the reservations.
func (l *Lanes) remaining(now time.Duration) time.Duration {
	n, reserved := l.promised(now)
	idle := len(l.idle) + len(l.free)
	if n < idle {
		return 0
	}
	first := time.Duration(-1)
	if idle > 0 {
		first = 0
	}
	for t := range l.current {
		if t.running {
			if rest := t.rest(now); first < 0 || rest < first {
				first = rest
			}
		}
	}
	return max(first, 0) + (l.work()+reserved)/time.Duration(l.lanes)
}

// rest returns how much longer t will run, by its estimate; 0 if it already takes longer.
func (t *turn) rest(now time.Duration) time.Duration { return max(0, t.Estimate-(now-t.started)) }

// remainingByLane returns LanesStats.RemainingByLane.
func (l *Lanes) remainingByLane(now time.Duration) []time.Duration {
	remaining := make([]time.Duration, l.lanes)
	for lane := range remaining {
		remaining[lane] = l.work() / time.Duration(l.lanes)
	}
	for t := range l.current {
		if t.running {
			remaining[t.lane] += t.rest(now) * time.Duration(l.coresOf(t)) / time.Duration(l.cores)
		}
	}
	return remaining
}
