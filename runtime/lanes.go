package runtime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/runtime/isolate"
	"github.com/muster-serve/muster/runtime/lane"
	"github.com/muster-serve/muster/runtime/queue"
	"github.com/muster-serve/muster/runtime/queue/merge"
)

// stuckAfter is how long Drain waits for the runs that it has cancelled. Chosen: operators end
// within milliseconds, and an agent that ends has 10 s in all, its stopTimeout. Code in ONNX
// Runtime that does not look at the cancellation is left behind.
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
	// RetryAfter is when to try again, > 0: when the lanes can have served the queries that wait,
	// and those whose clients were told so before.
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
	// Work is the batch size that takes as long, by which the lanes plan and the estimator learns, where
	// the query's users and values count; 0: BatchSize. Users and Values are those.
	Work          int
	Users, Values int
	// Roles are those of the model's inputs and outputs; nil: it has none.
	Roles *roles.Roles
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
	// Reservation is the time that Reserve has kept for this query; nil: none. Do releases it when
	// it admits or refuses the query.
	Reservation *Reservation
	// Refuse refuses the query as overload as soon as it is expected neither to meet its QoS target
	// nor to start before its deadline, among the late queries that run when a lane would be idle.
	Refuse bool
	// Divide lets a lane of several cores run the query on one of them, beside others, while
	// several wait, or if one core takes no longer for it. While several wait a query then takes
	// longer, and all of them together less: cores that share a run wait for each other. Set it
	// only if nobody plans with the lane's times.
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
	// Estimator predicts execution times; nil means [lane.NewLinearEstimator]. Lanes owns it
	// from then on.
	Estimator Estimator
	// Pins keeps the thread of a run on its lane's processors. It has one for each lane; nil means
	// that the system may run threads wherever it wants.
	Pins []*isolate.Pin
	// Unpinned is called with the reason, once for each lane, when the system refuses to pin. The
	// lane's queries then run unpinned. It must not block. nil: nobody is told.
	Unpinned func(lane int, err error)
}

// An Estimator predicts execution times; see [lane.Estimator].
type Estimator = lane.Estimator

// A LanesStats is a snapshot of [Lanes].
type LanesStats = lane.Stats

// DropCounts counts dropped queries by reason.
type DropCounts = lane.DropCounts

// Lanes runs queries as a [lane.State] decides: at most one at a time on each lane, or several as
// one where package merge says so, or one on each of its cores ([Query.Divide]). Lanes makes the
// runs, has the goroutines wait that call Do, and tells the state what happens. A query runs on the
// goroutine that calls Do, or on that of another query which runs with it; Lanes starts none. The
// methods may be called concurrently; only Do and Drain block.
type Lanes struct {
	lanes, cores int
	start        time.Time // origin of the state's times
	pins         []*pin    // by lane; nil: none

	mu        sync.Mutex
	state     *lane.State
	estimator Estimator   // the state's
	timer     *time.Timer // has the state look at the time at wakeAt; nil until it is needed
	wakeAt    time.Duration
	classes   []*class
	memory    []memory // by lane
	asked     arrivalTimes
	drained   chan struct{} // closed when draining and nothing is left
	// observe is for tests, and else nil. It is called with each event before the state handles it,
	// and then with the actions.
	observe func(now time.Duration, e *lane.Event, actions []lane.Action)
}

// A caller is a goroutine in Do, and its query.
type caller struct {
	lane.Query
	ctx                 context.Context
	cancel              context.CancelFunc
	inputs              []tensor.Tensor
	roles               *roles.Roles
	rows, users, values int   // of the query: its BatchSize is its work
	single              Model // runs the query on one core; nil: nothing does, or it is not to

	// Guarded by the lanes' mutex until the caller goes on.
	decided   chan struct{} // closed when isDecided; nil if that was so at once
	isDecided bool          // whether the query has a lane, or its answer, or is refused
	refusal   error         // why it is refused
	merged    *mergedRun    // the query's run with others; nil: none
	result    *Result       // its part of the result of another caller's run
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
		lanes:     int(orDefault(int64(cfg.Lanes), 1)),
		cores:     int(orDefault(int64(cfg.Cores), 1)),
		start:     time.Now(),
		estimator: cfg.Estimator,
		wakeAt:    lane.Never,
		drained:   make(chan struct{}),
	}
	if l.estimator == nil {
		l.estimator = lane.NewLinearEstimator()
	}
	l.state = lane.New(lane.Config{
		Lanes: l.lanes, Cores: l.cores, Estimator: l.estimator,
		MaxWaiting:      int(orDefault(int64(cfg.MaxWaiting), 1024)),
		MaxWaitingBytes: orDefault(cfg.MaxWaitingBytes, 256<<20),
	})
	l.memory = make([]memory, l.lanes)
	for lane, p := range cfg.Pins {
		l.pins = append(l.pins, &pin{Pin: p, lane: lane, told: cfg.Unpinned})
	}
	return l
}

// sinceStart returns the time since l.start.
func (l *Lanes) sinceStart() time.Duration { return time.Since(l.start) }

// step tells the state what has happened, and carries out what is to be done. l.mu is held.
func (l *Lanes) step(now time.Duration, e lane.Event) {
	actions, wakeAt := l.stepState(now, e)
	for i := range actions {
		l.carryOut(&actions[i])
	}
	// A timer for an earlier time goes on: when it fires it is set anew.
	if wakeAt >= l.wakeAt {
		return
	}
	if l.wakeAt = wakeAt; l.timer == nil {
		l.timer = time.AfterFunc(wakeAt-now, l.passTime)
	} else {
		l.timer.Reset(wakeAt - now)
	}
}

// stepState tells the state what has happened, and returns what is to be done. l.mu is held.
func (l *Lanes) stepState(now time.Duration, e lane.Event) ([]lane.Action, time.Duration) {
	if l.observe == nil {
		return l.state.Step(now, e)
	}
	observed := e // only an observed event is moved to the heap
	l.observe(now, &observed, nil)
	actions, wakeAt := l.state.Step(now, e)
	l.observe(now, nil, actions)
	return actions, wakeAt
}

// passTime tells the state that time has passed.
func (l *Lanes) passTime() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wakeAt = lane.Never
	l.step(l.sinceStart(), lane.Event{Kind: lane.TimePassed})
}

func (l *Lanes) carryOut(a *lane.Action) {
	if a.Kind == lane.Drained {
		close(l.drained)
		return
	}
	c := a.Query.Owner.(*caller)
	switch a.Kind {
	case lane.Start:
		if a.Run != nil {
			newMergedRun(a.Run)
		}
		c.letGoOn()
	case lane.Refuse:
		c.refusal = c.refusalOf(a)
		c.letGoOn()
	case lane.Answer:
		c.result, c.merged.parts[a.Member] = c.merged.parts[a.Member], nil
		c.letGoOn()
	case lane.CancelRun:
		if c.merged != nil {
			c.merged.cancel()
		} else {
			c.cancel()
		}
	case lane.Abandon:
		c.cancel()
	}
}

// letGoOn lets the caller go on, if it waits.
func (c *caller) letGoOn() {
	if c.isDecided {
		return
	}
	if c.isDecided = true; c.decided != nil {
		close(c.decided)
	}
}

// refusalOf returns the error of the caller's query, which is refused.
func (c *caller) refusalOf(a *lane.Action) error {
	switch a.Reason {
	case lane.Overloaded:
		return overloadedError(a)
	case lane.Late:
		return &LateError{a.RetryAfter}
	case lane.Draining:
		return ErrDraining
	}
	return context.Cause(c.ctx)
}

func overloadedError(a *lane.Action) *OverloadedError {
	return &OverloadedError{a.Waiting, a.WaitingBytes, a.RetryAfter}
}

// causeOf returns why nobody waits for a query any more, whose context has ended; 0 if it has not.
func causeOf(ctx context.Context) lane.Reason {
	switch {
	case ctx.Err() == nil:
		return 0
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return lane.DeadlinePassed
	}
	return lane.CallerLeft
}

// Do waits for a lane and runs the query on it. It blocks until the query is answered or dropped.
// The caller releases the result. Do fails at once with an [*OverloadedError] if too much waits,
// and with [ErrDraining] after Drain. A query that waits or runs is dropped with [ErrLate], with
// [ErrDeadline], or with ctx's cause when ctx ends; if it ran by then, a [CutError] wraps that.
func (l *Lanes) Do(ctx context.Context, q Query) (*Result, error) {
	c := &caller{
		Query: lane.Query{
			Place: queue.Place{Background: q.Background}, Profile: q.Profile,
			BatchSize: cmp.Or(q.Work, q.BatchSize), QoSTarget: q.QoSTarget, RejectLate: q.RejectLate,
			Refuse: q.Refuse, Preferred: q.Lane, Group: q.Group,
		},
		inputs: q.Inputs, roles: q.Roles, rows: q.BatchSize, users: q.Users, values: q.Values,
	}
	c.Owner = c
	if q.Deadline.IsZero() {
		c.ctx, c.cancel = context.WithCancel(ctx)
	} else {
		c.ctx, c.cancel = context.WithDeadlineCause(ctx, q.Deadline, ErrDeadline)
	}
	defer c.cancel()
	if deadline, ok := c.ctx.Deadline(); ok { // the query's, or its client's if that is earlier
		c.Deadline = deadline.Sub(l.start)
	}
	if m, ok := q.Model.(divisible); ok && q.Divide && l.cores > 1 {
		c.single = m.onOneCore()
		c.Divide = c.single != nil
	}
	for _, in := range q.Inputs {
		c.Bytes += int64(len(in.Data))
	}
	if q.Reservation != nil {
		c.Reservation = &q.Reservation.Reservation
	}
	admitted := l.admitQuery(c, &q)
	if c.decided != nil {
		l.wait(c)
	}
	switch {
	case c.refusal != nil:
		return nil, c.refusal
	case c.result != nil: // another query's run has answered it
		c.result.Queue = c.Started() - admitted
		return c.result, nil
	}
	ended := false
	defer func() {
		if !ended {
			l.fail(c, lane.Panicked)
		}
	}()
	var result *Result
	var err error
	if c.merged != nil {
		result, err = l.runMerged(c, &q)
	}
	if result == nil && err == nil { // alone, or the run with others has failed
		result, err = l.runAlone(c, &q)
	}
	ended = true
	if err != nil {
		return nil, err
	}
	result.Queue, result.Lane = c.Started()-admitted, c.Lane()
	return result, nil
}

// admitQuery hands the query to the state. admitted is the time, since l.start.
func (l *Lanes) admitQuery(c *caller, q *Query) (admitted time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.sinceStart()
	c.Arrival = now
	if !q.Arrival.IsZero() {
		c.Arrival = q.Arrival.Sub(l.start)
	}
	c.Class = l.classOf(q)
	if !q.Background {
		l.asked.noteArrival(now)
	}
	l.step(now, lane.Event{Kind: lane.Arrived, Query: &c.Query, Cause: causeOf(c.ctx)})
	if !c.isDecided {
		c.decided = make(chan struct{})
	}
	return now
}

// wait blocks until c's query has a lane, or its answer, or is refused. If its context ends first,
// it is dropped; a run that has begun with others goes on.
func (l *Lanes) wait(c *caller) {
	select {
	case <-c.decided:
		return
	case <-c.ctx.Done():
	}
	l.mu.Lock()
	if c.isDecided { // meanwhile; its run checks whether its context has ended
		l.mu.Unlock()
		return
	}
	run := c.merged
	l.step(l.sinceStart(), lane.Event{Kind: lane.Cancelled, Query: &c.Query, Cause: causeOf(c.ctx)})
	l.mu.Unlock()
	if run != nil {
		<-run.copied // the run reads c.inputs until then
	}
}

// runAlone runs c's query, which has a lane.
func (l *Lanes) runAlone(c *caller, q *Query) (*Result, error) {
	model := q.Model
	if c.IsOnCore() {
		model = c.single
	}
	result, err := l.runOnLane(c, model, func(m Model) (*Result, error) {
		return m.Run(c.ctx, q.Inputs)
	})
	if err == nil {
		result.Queries, result.Items = 1, q.BatchSize
		result.Users, result.Values, result.Work = q.Users, q.Values, c.BatchSize
		if c.IsOnCore() {
			result.Divided = l.cores
		}
		l.endRun(c, result.Execution, 0)
		return result, nil
	}
	if ended := c.ctx.Err(); ended == nil || !errors.Is(err, ended) {
		l.fail(c, 0)
		return nil, err
	}
	// What is dropped as it starts tells nothing.
	ran := l.fail(c, causeOf(c.ctx)) - c.Started()
	if ran > 0 && !c.IsOnCore() && !q.Background {
		return nil, &CutError{ran, c.refusal}
	}
	return nil, c.refusal
}

// endRun tells the state that c's run has a result.
func (l *Lanes) endRun(c *caller, execution time.Duration, cause lane.Reason) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.step(l.sinceStart(), lane.Event{
		Kind: lane.RunEnded, Query: &c.Query, Execution: execution, Cause: cause,
	})
}

// fail tells the state that c's run has none, and returns the time.
func (l *Lanes) fail(c *caller, cause lane.Reason) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.sinceStart()
	if m := c.merged; m != nil {
		m.releaseMembers()
	}
	l.step(now, lane.Event{Kind: lane.RunFailed, Query: &c.Query, Cause: cause})
	return now
}

// Drain makes Do refuse new queries, and blocks until the queries that run or wait are done. If ctx
// ends first, Drain drops them with [ErrDraining], waits for at most 5 s until their runs have
// ended, and returns ctx's error.
func (l *Lanes) Drain(ctx context.Context) error {
	l.mu.Lock()
	l.step(l.sinceStart(), lane.Event{Kind: lane.DrainBegan})
	l.mu.Unlock()
	select {
	case <-l.drained:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	l.step(l.sinceStart(), lane.Event{Kind: lane.DrainTimedOut})
	l.mu.Unlock()
	timer := time.NewTimer(stuckAfter)
	defer timer.Stop()
	select {
	case <-l.drained:
	case <-timer.C:
	}
	return ctx.Err()
}

// Stats returns a snapshot.
func (l *Lanes) Stats() LanesStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.Stats(l.sinceStart())
}

// Remaining returns LanesStats.Remaining.
func (l *Lanes) Remaining() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.TimeUntilFree(l.sinceStart())
}

// RemainingByLane returns LanesStats.RemainingByLane.
func (l *Lanes) RemainingByLane() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.RemainingByLane(l.sinceStart())
}

// Estimate returns the expected execution time of a query; 0 if nothing is known of its profile.
func (l *Lanes) Estimate(profile names.ModelKey, batchSize int) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.estimator.Estimate(profile, batchSize)
}

// A Reservation is time on a lane that is kept for a query that may come.
type Reservation struct {
	lane.Reservation
	of *Lanes
}

// Reserve estimates when a query would be answered, and reserves its execution time for the
// duration keep: Remaining counts it as if the query waited. The reservation ends when the query
// comes with it ([Query.Reservation]), by Release, or after keep.
func (l *Lanes) Reserve(profile names.ModelKey, batchSize int, keep time.Duration) *Reservation {
	r := &Reservation{of: l}
	r.Profile, r.BatchSize, r.Keep = profile, batchSize, keep
	l.mu.Lock()
	defer l.mu.Unlock()
	l.step(l.sinceStart(), lane.Event{Kind: lane.Reserved, Reservation: &r.Reservation})
	return r
}

// Release ends a reservation. It does nothing if the reservation has already ended.
func (l *Lanes) Release(r *Reservation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.step(l.sinceStart(), lane.Event{Kind: lane.Released, Reservation: &r.Reservation})
}

// RefusesUnread reports whether a query that begins to arrive, beside held bytes of others that
// arrive, wait or run, is to be refused unread, and counts it if so. While an overload lasts, so
// many may arrive at once that each of them is late before it has been read.
func (l *Lanes) RefusesUnread(held int64) bool {
	if held <= lane.MinHeldBytes {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	actions, _ := l.stepState(l.sinceStart(), lane.Event{Kind: lane.ReadBegan, HeldBytes: held})
	return len(actions) > 0
}

// UnreadError returns the error of a query that is refused unread, beside held bytes of others.
func (l *Lanes) UnreadError(held int64) *OverloadedError {
	l.mu.Lock()
	defer l.mu.Unlock()
	actions, _ := l.stepState(l.sinceStart(), lane.Event{Kind: lane.UnreadRefused, HeldBytes: held})
	return overloadedError(&actions[0])
}
