package client

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
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

	mu         sync.Mutex
	queries    queries
	leadership *control.Leadership // the latest heard of
	news       chan struct{}       // closed when leadership or members change
	link       *link               // nil: none is open
	inquiries  int                 // queries that the leaderless decides about
	watching   bool
	closed     bool
	start      chan struct{} // starts the watch
}

// A GatewayConfig says who a gateway is and how it reaches the fleet.
type GatewayConfig struct {
	// ID is random and not 0: it tells gateways apart.
	ID uint64
	// Agent is the member whose gateway this is; empty of an SDK.
	Agent string
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
		config:     config,
		log:        config.Logger,
		leadership: &control.Leadership{},
		news:       make(chan struct{}),
		start:      make(chan struct{}, 1),
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	g.members.Store(newMembers(&control.View{}))
	g.context, g.cancel = context.WithCancel(context.Background())
	g.leaderless = newLeaderless(g)
	g.queries = newQueries(g.leaderless.grace)
	g.running.Go(g.follow)
	g.running.Go(g.watch)
	g.running.Go(g.leaderless.watch)
	return g, nil
}

// Close ends all queries, with the code Canceled, and all streams.
func (g *Gateway) Close() {
	g.mu.Lock()
	g.closed = true
	g.queries.close()
	g.mu.Unlock()
	g.cancel()
	g.leaderless.close()
	g.running.Wait()
}

// SetView says what the fleet is now. The view must not change afterwards; members that are the same
// messages as in the view before have not changed. Its loads are as of now.
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
		g.leadership = &control.Leadership{}
	}
	g.learn(v.GetLeadership())
	g.announce()
}

// SetLoads says how busy members are, as of now; what it does not say stays as it was.
func (g *Gateway) SetLoads(loads []*control.LaneLoad) { g.leaderless.loaded(loads) }

// Stats counts what the gateway has done.
func (g *Gateway) Stats() Stats {
	g.mu.Lock()
	s := g.queries.stats
	g.mu.Unlock()
	s.Probes, s.ProbesUnanswered = g.leaderless.counts()
	return s
}

// Leader is the member that the gateway submits to, or "" if it decides alone
// now.
func (g *Gateway) Leader() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.queries.link == linkOpen && g.link != nil {
		return g.link.leader
	}
	return ""
}

// Infer has a query answered that arrived at the given time. The answer is the
// caller's to release. The deadline is that of ctx, else req.Timeout after the
// arrival, else the model's, within the bound of [oip.Timeout]. Errors are gRPC's: what a worker or the leader
// answered, or
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
func (g *Gateway) Infer(ctx context.Context, req *oip.Request, arrival time.Time) (*oip.Response, error) {
	held, version, err := g.members.Load().find(req.Model, req.Version)
	if err != nil {
		return nil, err
	}
	q := &query{model: req.Model, version: version, batch: 1, arrival: arrival, wake: make(chan struct{}, 1), trace: newQueryTrace(ctx)}
	// A batch size that no lane could take is for the worker to refuse, who
	// says what is wrong with the inputs.
	if len(req.Inputs) > 0 && len(req.Inputs[0].Shape) > 0 {
		q.batch = uint32(min(max(1, req.Inputs[0].Shape[0]), int64(max(1, held.largest))))
	}
	for i := range req.Inputs {
		q.bytes += uint64(len(req.Inputs[i].Data))
	}
	deadline, given := ctx.Deadline()
	if given {
		q.deadline = deadline
	}
	if timeout := oip.Timeout(req.Timeout, given, held.deadline); timeout > 0 && (q.deadline.IsZero() || arrival.Add(timeout).Before(q.deadline)) {
		q.deadline = arrival.Add(timeout)
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, q.deadline)
		defer cancel()
	}

	q.trace.wait()
	defer q.trace.end()
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil, status.Error(codes.Canceled, "the gateway is closed")
	}
	g.queries.arrive(q, time.Now())
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
func (g *Gateway) advance(ctx context.Context, q *query, req *oip.Request) (resp *oip.Response, err error, done bool) {
	attemptCtx, abort := context.WithCancel(ctx)
	defer abort()
	now := time.Now()
	g.mu.Lock()
	if q.stage != ended && ctx.Err() != nil {
		g.queries.end(q, q.late(ctx, now))
	}
	to, send := g.queries.take(q, abort, now)
	done, err = q.stage == ended, q.err
	g.leave(true)
	if done {
		return nil, err, true
	}
	if !send {
		return nil, nil, false
	}

	attemptCtx = q.trace.send(attemptCtx, to)
	attempt := Attempt{
		Attempt: control.Attempt{Gateway: g.config.ID, Sequence: q.sequence, Attempt: to.attempt, Lane: to.lane, Reservation: to.reservation},
		Arrival: q.arrival,
	}
	if member := g.members.Load().byName[to.agent]; member == nil {
		err = status.Errorf(codes.Unavailable, "agent %q has left", to.agent)
	} else {
		resp, err = g.config.Transport.Infer(attemptCtx, member, req, &attempt)
	}
	q.trace.sent(err, attemptCtx.Err() != nil && ctx.Err() == nil)
	if attempt.HasRemaining {
		g.leaderless.heard(to.agent, attempt.Remaining)
	} else if n := q.attempts; n > 1 && judge(err) == elsewhere {
		// The leader may not know yet that the member is out of reach.
		select {
		case <-time.After(jitter(firstAgain << (2 * (n - 2)))):
		case <-attemptCtx.Done():
		}
	}

	now = time.Now()
	g.mu.Lock()
	if err != nil && ctx.Err() != nil {
		g.queries.end(q, q.late(ctx, now))
	}
	g.queries.attempted(q, judge(err), err, now)
	done = q.stage == ended
	if q.err != nil || !done {
		if resp != nil {
			resp.Release()
			resp = nil
		}
	}
	err = q.err
	g.leave(true)
	if !done {
		q.trace.wait()
	}
	return resp, err, done
}

// firstAgain is how long a query waits whose second member in a row could not be
// reached.
const firstAgain = 10 * time.Millisecond

// judge says what the error of an attempt means for the query.
func judge(err error) outcome {
	if err == nil {
		return answered
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.NotFound, codes.Canceled:
		return elsewhere
	}
	return final
}

// awake has the watch run. The lock is held.
func (g *Gateway) awake() {
	if !g.watching {
		g.watching = true
		g.start <- struct{}{} // there is room: the watch has ended its last one
	}
}

// inquire has the oldest queries be decided without a leader for which it is time. The lock is held,
// but not meanwhile.
func (g *Gateway) inquire() {
	for !g.closed && g.inquiries < mostInquiries && g.queries.unheard() {
		q := g.queries.inquire(time.Now())
		if q == nil {
			return
		}
		g.inquiries++
		failed := slices.Clone(q.failed)
		g.mu.Unlock()
		g.leaderless.begin(q, failed)
		g.mu.Lock()
		g.settle()
	}
}

// settle takes what has been decided without a leader. The lock is held.
func (g *Gateway) settle() {
	for d, ok := g.leaderless.next(); ok; d, ok = g.leaderless.next() {
		g.inquiries--
		if d.target.agent != "" {
			g.queries.decided(d.sequence, d.target)
		} else {
			g.queries.undecided(d.sequence, d.again, d.why)
		}
	}
}

// leave ends what has begun with the lock held: it begins what is to be decided without a leader,
// unlocks, and sends what the queries have for others. With direct it may send to the leader itself,
// which spares the way through another goroutine.
func (g *Gateway) leave(direct bool) {
	g.inquire()
	released := g.queries.released
	g.queries.released = nil
	l := g.link
	var m *control.GatewayMessage
	switch {
	case l == nil || l.sending || g.queries.message == nil:
	case direct && g.queries.submitted-g.queries.acked < mostDirect:
		m = g.queries.message
		g.queries.message = rest(m)
		l.sending = true
		g.queries.stats.SubmitMessages++
	default:
		l.kick()
	}
	g.mu.Unlock()
	for _, t := range released {
		g.leaderless.free(t)
	}
	if m == nil {
		return
	}
	err := l.stream.Send(m)
	g.mu.Lock()
	l.sending = false
	if err == nil && g.link == l && g.queries.message != nil {
		l.kick()
	}
	g.mu.Unlock()
}

// watchInterval is how often at least a gateway with queries looks after its leader.
const watchInterval = 5 * time.Millisecond

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
			timer.Reset(watchInterval)
		case <-timer.C:
			g.leaderless.prepare(time.Now())
			g.mu.Lock()
			if g.queries.first == nil && len(g.queries.unacked) == 0 {
				g.watching = false
				g.mu.Unlock()
				continue
			}
			now := time.Now()
			before := g.queries.link
			g.queries.check(now)
			if g.queries.link == linkSilent && before != linkSilent {
				g.log.Debug("the leader is silent, deciding alone", "leader", g.link.leader, "waiting", len(g.queries.bySequence),
					"unheard_ms", now.Sub(g.queries.heardAt).Milliseconds())
				g.leaderless.silent(g.link.leader)
			}
			timer.Reset(g.queries.lookAgain(now))
			g.leave(false)
		}
	}
}

// jitter is d, give or take a half.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }
