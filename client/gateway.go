package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/client/queries"
)

// A Gateway sends queries to a fleet. It owns each from its arrival to its
// answer: it asks the leader for a lane, sends the query there, straight to the
// worker, and sends it elsewhere if that fails. If there is no leader, or it is
// silent, the gateway decides by itself. Each query has exactly one outcome.
//
// It has these goroutines, all of which have ended when Close returns: one that
// keeps the link to the leader, with one that sends what callers do not send
// themselves; one that watches over the leader while there are queries; one
// that watches over what is asked without a leader, and two for each member that was asked.
//
// Its methods may be called concurrently.
type Gateway struct {
	config  GatewayConfig
	log     *slog.Logger
	context context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	members atomic.Pointer[members]

	leaderless *leaderless

	began time.Time     // what the times of queries count from
	news  chan struct{} // has room for one: leadership or members have changed
	start chan struct{} // starts the watch
	late  *time.Timer   // fires when a leader may have been silent for too long

	mu       sync.Mutex
	queries  *queries.State
	link     *link              // nil: none is open
	hangUp   context.CancelFunc // ends the stream to whoever is tried, or linked
	released []queries.Action   // reservations that are not needed
	watching bool
	closed   bool
}

// A query is one that the gateway owns.
type query struct {
	queries.Query
	model   string
	version int64 // 0: the newest
	batch   uint32
	bytes   uint64
	trace   *queryTrace        // nil: it is not traced
	wake    chan struct{}      // has room for one; the caller looks again
	abort   context.CancelFunc // of the attempt under way; nil: none is
	why     string             // nobody took it when there was no leader
}

// A GatewayConfig says who a gateway is and how it reaches the fleet.
type GatewayConfig struct {
	// ID is random and not 0: it tells gateways apart.
	ID uint64
	// Agent is the member whose gateway this is; empty of an SDK.
	Agent names.AgentName
	// Transport reaches the members.
	Transport Transport
	// Logger; nil: none.
	Logger *slog.Logger
}

// NewGateway starts a gateway, which knows nobody before SetView. The caller
// closes it.
func NewGateway(config GatewayConfig) (*Gateway, error) {
	if config.ID == 0 || config.Transport == nil {
		return nil, errors.New("gateway: needs an id that is not 0 and a transport")
	}
	g := &Gateway{
		config: config,
		log:    config.Logger,
		began:  time.Now(),
		news:   make(chan struct{}, 1),
		start:  make(chan struct{}, 1),
		hangUp: func() {},
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	g.members.Store(newMembers(&control.View{}))
	g.context, g.cancel = context.WithCancel(context.Background())
	g.leaderless = newLeaderless(g)
	g.queries = queries.New(g.slow)
	g.late = time.AfterFunc(time.Hour, g.impatient)
	g.late.Stop()
	g.running.Go(g.follow)
	g.running.Go(g.watch)
	g.running.Go(g.leaderless.watch)
	return g, nil
}

// Close ends all queries, with the code Canceled, and all streams.
func (g *Gateway) Close() {
	g.mu.Lock()
	g.closed = true
	g.queries.Close(status.Error(codes.Canceled, "the gateway is closed"))
	g.carryOut()
	g.mu.Unlock()
	g.cancel()
	g.leaderless.close()
	g.running.Wait()
	g.late.Stop()
}

// at is a time as queries have it, and now is the present.
func (g *Gateway) at(t time.Time) time.Duration { return t.Sub(g.began) }
func (g *Gateway) now() time.Duration           { return time.Since(g.began) }

// slow is the 99th percentile of how long a query runs at an agent.
func (g *Gateway) slow(q *queries.Query, agent names.AgentName) time.Duration {
	return g.leaderless.slow(q.Tag.(*query), agent)
}

// SetView says what the fleet is now. The view must not change afterwards; members that are the
// same messages as in the view before have not changed. Its loads are as of now.
func (g *Gateway) SetView(v *control.View) {
	former := g.members.Load()
	now := former.next(v)
	g.members.Store(now)
	g.leaderless.viewed(v)
	g.leaderless.loaded(v.GetLoads())
	g.mu.Lock()
	defer g.leave(false)
	g.settle()
	if !former.overlap(now) { // another fleet, whose epochs count from the beginning
		g.queries.ForgetLeaders()
	}
	g.learn(v.GetLeadership())
	g.announce()
}

// SetLoads says how busy members are, as of now; what it does not say stays as it was.
func (g *Gateway) SetLoads(loads []*control.LaneLoad) { g.leaderless.loaded(loads) }

// Stats counts what a gateway has done since its start.
type Stats = queries.Stats

// Stats counts what the gateway has done.
func (g *Gateway) Stats() Stats {
	g.mu.Lock()
	s := g.queries.Stats()
	g.mu.Unlock()
	s.Probes, s.ProbesUnanswered = g.leaderless.counts()
	return s
}

// Leader is the member that the gateway submits to, or "" if it decides alone
// now.
func (g *Gateway) Leader() names.AgentName {
	g.mu.Lock()
	defer g.mu.Unlock()
	if leader, led := g.queries.Linked(); led {
		return leader
	}
	return ""
}

// Infer has a query answered that arrived at the given time. The answer is the caller's to release.
// The deadline is that of ctx, else req.Timeout after the arrival, else the model's, within the
// bound of [oip.Timeout]. Errors are gRPC's: what a worker or the leader answered, or
//
//   - NotFound: no member holds the model or the version
//   - Unavailable: those that hold it are draining, or attempts have failed
//   - DeadlineExceeded, Canceled: ctx has ended, or the gateway was closed
//
// Infer does not release req. Its inputs must not change until Infer returns,
// and then not before the function given to [oip.Request.OnRelease] is called:
// the connection of an attempt that was given up may still read them.
//
// If ctx has a span of OpenTelemetry's, what the gateway does for the query are its
// children.
func (g *Gateway) Infer(ctx context.Context, req *oip.Request, arrival time.Time) (*oip.Response,
	error) {
	held, version, err := g.members.Load().find(req.Model, req.Version)
	if err != nil {
		return nil, err
	}
	q := &query{
		Query: queries.Query{Arrival: g.at(arrival)}, model: req.Model, version: version, batch: 1,
		wake: make(chan struct{}, 1), trace: newQueryTrace(ctx),
	}
	q.Tag = q
	// A batch size that no lane could take is for the worker to refuse, who
	// says what is wrong with the inputs.
	if len(req.Inputs) > 0 && len(req.Inputs[0].Shape) > 0 {
		q.batch = uint32(min(max(1, req.Inputs[0].Shape[0]), int64(max(1, held.largest))))
	}
	q.bytes = uint64(req.Bytes())
	deadline, given := ctx.Deadline()
	if timeout := oip.Timeout(req.Timeout, given, held.deadline); timeout > 0 && (!given ||
		arrival.Add(timeout).Before(deadline)) {
		deadline = arrival.Add(timeout)
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline)
		defer cancel()
	}
	if !deadline.IsZero() {
		q.Deadline = max(1, g.at(deadline))
	}

	q.trace.wait()
	defer q.trace.end()
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil, status.Error(codes.Canceled, "the gateway is closed")
	}
	g.queries.Arrive(&q.Query, g.now())
	g.awake()
	g.leave(true)
	for {
		select {
		case <-q.wake:
		case <-ctx.Done():
		}
		if resp, err, done := g.advance(ctx, q, req); done {
			return resp, err
		}
	}
}

// advance does what is due for q: nothing, an attempt, or its end.
func (g *Gateway) advance(ctx context.Context, q *query, req *oip.Request) (resp *oip.Response,
	err error, done bool) {
	attemptCtx, abort := context.WithCancel(ctx)
	defer abort()
	now := g.now()
	g.mu.Lock()
	if ctx.Err() != nil {
		g.queries.End(&q.Query, g.lateness(ctx, q, now))
	}
	to, send := g.queries.Take(&q.Query, now)
	if send {
		q.abort = abort
	}
	err, done = q.outcome()
	g.leave(true)
	if done {
		return nil, err, true
	}
	if !send {
		return nil, nil, false
	}

	attemptCtx = q.trace.send(attemptCtx, to)
	attempt := Attempt{
		Attempt: control.Attempt{
			Gateway: g.config.ID, Sequence: q.Sequence, Attempt: to.Attempt, Lane: to.Lane,
			Reservation: to.Reservation,
		},
		Arrival: g.began.Add(q.Arrival),
	}
	if member := g.members.Load().byName[to.Agent]; member == nil {
		err = status.Errorf(codes.Unavailable, "agent %q has left", to.Agent)
	} else {
		resp, err = g.config.Transport.Infer(attemptCtx, member, req, &attempt)
	}
	q.trace.sent(err, attemptCtx.Err() != nil && ctx.Err() == nil)
	if attempt.HasRemaining {
		g.leaderless.heard(to.Agent, attempt.Remaining)
	} else if wait := q.Backoff(); wait > 0 && judge(err) == queries.Elsewhere {
		select {
		case <-time.After(jitter(wait)):
		case <-attemptCtx.Done():
		}
	}

	now = g.now()
	g.mu.Lock()
	q.abort = nil
	if err != nil && ctx.Err() != nil {
		g.queries.End(&q.Query, g.lateness(ctx, q, now))
	}
	g.queries.Attempted(&q.Query, judge(err), err, now)
	if err, done = q.outcome(); err != nil || !done {
		if resp != nil {
			resp.Release()
			resp = nil
		}
	}
	g.leave(true)
	if !done {
		q.trace.wait()
	}
	return resp, err, done
}

// outcome is the query's if it has one: nil for the answer, else gRPC's error.
func (q *query) outcome() (err error, ended bool) {
	err, ended = q.Ended()
	if e, ok := err.(*queries.GaveUp); ok {
		s := status.Convert(e.Err)
		code := s.Code()
		if code == codes.Canceled { // not by the caller
			code = codes.Unavailable
		}
		err = status.Errorf(code, "gave up after %d attempts, the last on agent %q: %s", e.Attempts,
			e.Agent, s.Message())
	}
	return err, ended
}

// lateness is the outcome of q if its caller waits no longer.
func (g *Gateway) lateness(ctx context.Context, q *query, now time.Duration) error {
	s := status.FromContextError(ctx.Err())
	where := "waited for a lane"
	if agent := q.At(); agent != "" {
		where = fmt.Sprintf("was at agent %q", agent)
	}
	if q.why != "" {
		where += "; there was no leader, and " + q.why
	}
	return status.Errorf(s.Code(), "%s %v after the query arrived: it %s", s.Message(),
		(now - q.Arrival).Round(10*time.Microsecond), where)
}

// judge says what the error of an attempt means for the query.
func judge(err error) queries.Outcome {
	if err == nil {
		return queries.Answered
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.NotFound, codes.Canceled:
		return queries.Elsewhere
	}
	return queries.Final
}

// awake has the watch run. The lock is held.
func (g *Gateway) awake() {
	if !g.watching {
		g.watching = true
		g.start <- struct{}{} // there is room: the watch has ended its last one
	}
}

// inquire has the oldest queries be decided without a leader for which it is time. The lock is
// held, but not meanwhile.
func (g *Gateway) inquire() {
	for !g.closed && g.queries.Unheard() {
		q := g.queries.Inquire(g.now())
		if q == nil {
			return
		}
		failed := slices.Clone(q.Failed())
		g.mu.Unlock()
		g.leaderless.begin(q.Tag.(*query), failed)
		g.mu.Lock()
		g.settle()
	}
}

// settle takes what has been decided without a leader. The lock is held.
func (g *Gateway) settle() {
	for d, ok := g.leaderless.next(); ok; d, ok = g.leaderless.next() {
		if d.why == "" {
			g.queries.Decided(&d.query.Query, d.target)
		} else {
			d.query.why = d.why
			g.queries.Undecided(&d.query.Query, g.at(d.again))
		}
	}
	g.carryOut()
}

// carryOut does what the queries want, before the lock, which is held, is free.
func (g *Gateway) carryOut() {
	for a, ok := g.queries.Next(); ok; a, ok = g.queries.Next() {
		switch a.Kind {
		case queries.Wake:
			select {
			case a.Query.Tag.(*query).wake <- struct{}{}:
			default:
			}
		case queries.CutOff:
			if abort := a.Query.Tag.(*query).abort; abort != nil {
				abort()
			}
		case queries.Release:
			g.released = append(g.released, a)
		case queries.HangUp:
			g.hangUp()
		}
	}
}

// leave ends what has begun with the lock held: it begins what is to be decided without a leader,
// unlocks, and sends what the queries have for others. With direct it may send to the leader
// itself, which spares the way through another goroutine.
func (g *Gateway) leave(direct bool) {
	g.carryOut()
	g.inquire()
	released := g.released
	g.released = nil
	l := g.link
	var m *control.GatewayMessage
	switch {
	case l == nil || l.sending || !g.queries.HasMessage():
	case direct && g.queries.Unacknowledged() < mostDirect:
		m = g.message()
		l.sending = true
	default:
		l.kick()
	}
	g.mu.Unlock()
	for _, r := range released {
		g.leaderless.free(r.Agent, r.Reservation)
	}
	if m == nil {
		return
	}
	err := l.stream.Send(m)
	g.mu.Lock()
	l.sending = false
	if err == nil && g.link == l && g.queries.HasMessage() {
		l.kick()
	}
	g.mu.Unlock()
}

// watch finds out when the leader is silent, and has what is then due decided.
func (g *Gateway) watch() {
	timer := time.NewTimer(0)
	timer.Stop()
	defer timer.Stop()
	for {
		select {
		case <-g.context.Done():
			return
		case <-g.start:
			timer.Reset(queries.WatchInterval)
		case <-timer.C:
			g.leaderless.prepare(time.Now())
			g.mu.Lock()
			if g.queries.Idle() {
				g.watching = false
				g.mu.Unlock()
				continue
			}
			now := g.now()
			if g.queries.Check(now) {
				leader, _ := g.queries.Linked()
				g.log.Debug("the leader is silent, deciding alone", "leader", leader, "waiting",
					g.queries.Len())
				g.leaderless.silent(leader)
			}
			timer.Reset(g.queries.LookAgain(now))
			g.leave(false)
		}
	}
}

// jitter is d, give or take a half.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }
