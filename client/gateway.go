package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/wakeup"
	"github.com/muster-serve/muster/client/queries"
	"github.com/muster-serve/muster/leader/canary"
	"github.com/muster-serve/muster/leader/match"
)

// A Gateway sends queries to a fleet. It owns each query from its arrival to its answer: it asks
// the leader for a lane, sends the query straight to that lane's worker, and sends it to another
// one if that fails. If there is no leader, or the leader is silent, the gateway chooses a lane
// itself. Each query has exactly one outcome.
//
// A Gateway has these goroutines, all of which have ended when Close returns: one that keeps the
// link to the leader; one that sends the messages to the leader that callers do not send
// themselves; one that watches, while there are queries, whether the leader is silent; one that
// drives the decisions without a leader; and two for each member that was asked in one. The caller
// of a query that the leader splits starts one more for each part but the first, and waits for
// them; and for those that make an attempt beside its own while the query is hedged.
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

	began time.Time     // the origin of the queries' times
	news  wakeup.Signal // leadership or members have changed
	start chan struct{} // a value starts the watch
	late  *time.Timer   // fires when the leader may have been silent for too long

	mu       sync.Mutex
	queries  *queries.State
	link     *link                      // nil if none is open
	hangUp   context.CancelFunc         // ends the stream to the member that is tried or linked
	released []queries.Action           // reservations to release
	failed   map[Failure]uint64         // not told to the leader yet
	missed   map[Missed]missedSum       // not told yet
	compared []*control.AnswersCompared // not told yet
	watching bool
	closed   bool
	led      names.AgentName // the leader of the last link that was open
	// standstills are noticed by the watch.
	standstills standstills
}

// A gatewayQuery is a query that the gateway owns.
type gatewayQuery struct {
	queries.Query
	model   string
	version int64 // 0 means the one that was released, else the newest
	tried   int64 // the version of the last attempt, if it was released; else 0
	// family is what the query names, nil for a model. least is the least accuracy that it demands.
	family    *fleetFamily
	least     float64
	loadShare float64 // as [oip.Request.LoadShare]
	// splitFor is the variant that the parts of a query that names a family are for; empty of
	// others.
	splitFor queries.ChosenVariant
	batch    uint32
	users    uint32 // as [roles.QuerySize] has them; so are the values
	// unsplittable is set by [WithoutSplits].
	unsplittable bool
	values       uint64
	roles        *roles.Roles // nil: a query has no batch size
	part         part         // the number of the part; 0: no part
	bytes        uint64
	trace        *queryTrace   // nil: it is not traced
	wake         wakeup.Signal // the caller checks the query again
	why          string        // why no lane took it when there was no leader
	answer       *oip.Response // the outcome, if there is one
	aborts       [match.MaxAttempts]underWay
	busy         bool // the caller makes an attempt, and does not see wake
	spent        spentTime
	// ctx and req are the arguments of run, for the attempts beside the caller's, which hedges
	// counts.
	ctx    context.Context
	req    *oip.Request
	hedges sync.WaitGroup
}

// underWay cancels an attempt under way.
type underWay struct {
	attempt uint32 // 0: there is none
	abort   context.CancelFunc
}

// abortOf is the place for an attempt in aborts, or for another one with 0; nil if there is none.
func (q *gatewayQuery) abortOf(attempt uint32) *underWay {
	for i := range q.aborts {
		if a := &q.aborts[i]; a.attempt == attempt {
			return a
		}
	}
	return nil
}

// A GatewayConfig has a gateway's identity and its access to the fleet.
type GatewayConfig struct {
	// ID identifies the gateway in the fleet. It must be random and not 0.
	ID uint64
	// Agent is the name of the member that owns the gateway; empty for a client's.
	Agent names.AgentName
	// Own runs queries while the view has no member but the gateway's own agent; nil: the gateway
	// asks for a lane in any case.
	Own Own
	// Transport reaches the members.
	Transport Transport
	// Logger receives the gateway's log; nil means no log.
	Logger *slog.Logger
}

// NewGateway starts a gateway. It knows no members before SetView. The caller closes it.
func NewGateway(config GatewayConfig) (*Gateway, error) {
	if config.ID == 0 || config.Transport == nil {
		return nil, errors.New("gateway: needs an id that is not 0 and a transport")
	}
	g := &Gateway{
		config: config,
		log:    config.Logger,
		began:  time.Now(),
		news:   wakeup.New(),
		start:  make(chan struct{}, 1),
		hangUp: func() {},
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	g.members.Store(newMembers(&control.View{}))
	g.context, g.cancel = context.WithCancel(context.Background())
	g.leaderless = newLeaderless(g)
	g.queries = queries.New(g.p99Execution)
	g.late = time.AfterFunc(time.Hour, g.endSilentStream)
	g.late.Stop()
	g.running.Go(g.followLeader)
	g.running.Go(g.watch)
	g.running.Go(g.leaderless.watch)
	return g, nil
}

// errClosed is the error of queries after Close.
var errClosed = oip.Explain(status.New(codes.Canceled, "the gateway is closed"), "draining",
	0).Err()

// Close ends all queries with the code Canceled, ends all streams, and returns when the gateway's
// goroutines have ended.
func (g *Gateway) Close() {
	g.mu.Lock()
	g.closed = true
	g.queries.Close(errClosed)
	g.carryOut()
	g.mu.Unlock()
	g.cancel()
	g.leaderless.close()
	g.running.Wait()
	g.late.Stop()
}

// timeOf converts a time to the queries' times, and now is the present in them.
func (g *Gateway) timeOf(t time.Time) time.Duration { return t.Sub(g.began) }
func (g *Gateway) timeNow() time.Duration           { return time.Since(g.began) }

// p99Execution is the 99th percentile of a query's execution latency at an agent, 0 if unknown.
func (g *Gateway) p99Execution(q *queries.Query, agent names.AgentName) time.Duration {
	return g.leaderless.p99Execution(q.Tag.(*gatewayQuery), agent)
}

// SetView gives the gateway a new view of the fleet. The caller must not change the view
// afterwards. A member that is the same message as in the view before is taken as unchanged. The
// view's loads count as of now.
func (g *Gateway) SetView(v *control.View) {
	former := g.members.Load()
	now := former.next(v)
	g.members.Store(now)
	g.leaderless.applyView(v)
	g.leaderless.applyLoads(v.GetLoads())
	g.mu.Lock()
	defer g.leaveCritical(false)
	g.takeDecisions()
	for name := range former.byName {
		if now.byName[name] == nil {
			g.queries.Left(name, g.timeNow())
		}
	}
	if !former.overlaps(now) { // the view is of another fleet, whose epochs start anew
		g.queries.ForgetLeaders()
	}
	g.noteLeadership(v.GetLeadership())
	g.announceNews()
}

// SetLoads gives the gateway the loads of members as of now. The loads of other members stay as
// they were.
func (g *Gateway) SetLoads(loads []*control.LaneLoad) { g.leaderless.applyLoads(loads) }

// Stats has a gateway's counters since its start.
type Stats = queries.Stats

// Stats returns the gateway's counters.
func (g *Gateway) Stats() Stats {
	g.mu.Lock()
	s := g.queries.Stats()
	g.mu.Unlock()
	s.Probes, s.ProbesUnanswered = g.leaderless.probeCounts()
	return s
}

// A Failure says how a query failed. Its version is 0 if the query reached none, and its model is
// "", too, if that is not known.
type Failure struct {
	Model   string
	Version int64
	Reason  string // one of oip.Reasons
	// TrialSize is the query's batch size, up to its class, if it counts in the trial of a canary:
	// the model has one, and the query names no version; else 0.
	TrialSize int
}

// TrialSize returns the size of a [Failure] for a batch size.
func TrialSize(batchSize int) int {
	if batchSize < 1 {
		return 0
	}
	return canary.ClassSize(canary.ClassOf(batchSize))
}

// maxFailures bounds the kinds of failures that a gateway remembers until it has a leader to tell
// of them, maxTold those of one message: an agent accepts messages of 64 KiB.
const maxFailures, maxTold = 1 << 8, 1 << 5

// hasNews reports whether the leader is to be told of more than queries. The caller holds the lock.
func (g *Gateway) hasNews() bool { return len(g.failed)+len(g.compared)+len(g.missed) > 0 }

// Failed notes that a query of the gateway's owner failed, so that the leader can tell how the
// fleet serves. A Client notes its failures itself.
func (g *Gateway) Failed(f Failure) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failed == nil {
		g.failed = map[Failure]uint64{}
	}
	if _, ok := g.failed[f]; ok || len(g.failed) < maxFailures {
		g.failed[f]++
	}
	if g.link != nil && !g.closed {
		g.startWatch()
	}
}

// failedWith notes that a query of a Client failed with err, a time after it was sent.
func (g *Gateway) failedWith(req *oip.Request, err error, after time.Duration) {
	f := Failure{}
	number, target, ok := g.Version(req.Model, req.Version)
	if ok {
		f.Model, f.Version = req.Model, cmp.Or(req.Tried, number)
		f.TrialSize = TrialSize(req.TrialSize)
	}
	f.Reason = oip.ReasonAfter(oip.Reason(status.Convert(err)), after, target)
	g.Failed(f)
}

// Compared adds to what the leader is to be told of the answers of canaries that were compared.
// Only what agents tell counts.
func (g *Gateway) Compared(c *control.AnswersCompared) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, known := range g.compared {
		if known.Model == c.Model && known.Canary == c.Canary && known.Current == c.Current {
			known.Compared += c.Compared
			known.Wrong += c.Wrong
			known.Sum += c.Sum
			known.Most = max(known.Most, c.Most)
			return
		}
	}
	if len(g.compared) < maxTold {
		g.compared = append(g.compared, c)
	}
	if g.link != nil && !g.closed {
		g.startWatch()
	}
}

// Family returns the family of the given name whose variants members hold; nil if there is none.
// The caller must not change it.
func (g *Gateway) Family(name string) *control.Family {
	if f := g.members.Load().families[name]; f != nil {
		return f.Family
	}
	return nil
}

// Version returns the version of a model that a query gets which names the given one, or "", and
// its QoS target. It reports false if no member that stays holds it. A family has version 0.
func (g *Gateway) Version(model, version string) (number int64, target time.Duration, ok bool) {
	members := g.members.Load()
	held, number, family, err := members.find(model, version, 0)
	if err != nil {
		return 0, 0, false
	}
	if number == 0 && family == nil {
		number = members.models[model].newest
	}
	return number, held.qosTarget, true
}

// A CaptureRule says what is kept of a version's queries, and what else keeping them takes.
type CaptureRule struct {
	*control.Capture              // nil: nothing is kept
	Roles            *roles.Roles // nil: a query is one row
	IDBounds         map[string][]int64
}

// CaptureRule returns what is kept of a query that names a model or family, and a version or "".
func (g *Gateway) CaptureRule(model, version string) CaptureRule {
	held, _, _, err := g.members.Load().find(model, version, 0)
	if err != nil || held == nil {
		return CaptureRule{}
	}
	return CaptureRule{held.capture, held.roles, held.idBounds}
}

// Arm is the side of a comparison on which a version of a model answers: "canary" or "current"; ""
// while no canary is on trial.
func (g *Gateway) Arm(model string, version int64) string {
	switch r := g.members.Load().releases[model]; {
	case !r.OnTrial():
		return ""
	case version == r.Canary:
		return "canary"
	}
	return "current"
}

// Leader is the name of the member to which the gateway submits, or "" while it decides without a
// leader.
func (g *Gateway) Leader() names.AgentName {
	g.mu.Lock()
	defer g.mu.Unlock()
	if leader, led := g.queries.Linked(); led {
		return leader
	}
	return ""
}

// Infer sends a query that arrived at the given time, and blocks until it has its outcome. The
// caller releases the answer. The deadline is that of ctx, else req.Timeout after the arrival, else
// the model's, within the bound of [oip.Timeout]. Errors are gRPC's: those that a worker or the
// leader answered, or
//
//   - NotFound: no member has the model, the version, or a variant of the family that is as
//     accurate as req demands, on its disk
//   - FailedPrecondition: no member holds it, one could load it, and the client has no right to
//     have models loaded
//   - InvalidArgument: the query names a version of a family
//   - Unavailable: the members that hold it are draining, or attempts have failed
//   - DeadlineExceeded, Canceled: ctx has ended, or the gateway was closed
//
// Infer does not release req. The inputs must not change until Infer has returned and the function
// given to [oip.Request.OnRelease] is called: the connection of an abandoned attempt may read them
// until then.
//
// If the leader splits the query, its parts run at the same time, each as a query of its own, and
// the answer has the rows of theirs in the query's order, in new memory. An error of one part is
// that of the query, and ends the others.
//
// If the query names a family, each attempt is for one of its variants, which the leader chooses
// when it chooses the lane. The answer says which it was. All parts of a query have the same.
//
// If ctx has an OpenTelemetry span, the gateway's steps for the query are its child spans.
//
// While the gateway's own agent is the only member, that runs the query, and the errors are what it
// returns.
func (g *Gateway) Infer(ctx context.Context, req *oip.Request, arrival time.Time) (*oip.Response,
	error) {
	req.TrialSize, req.Tried, req.Late, req.Agent = 0, 0, nil, ""
	members := g.members.Load()
	if g.config.Own != nil && members.isAlone(req.Model) {
		return g.inferAlone(ctx, req, arrival, members)
	}
	held, version, family, err := members.find(req.Model, req.Version, req.LeastAccuracy)
	if err != nil {
		return nil, err
	}
	q := &gatewayQuery{
		Query: queries.Query{Arrival: g.timeOf(arrival)}, model: req.Model, version: version,
		batch:  1,
		family: family, least: req.LeastAccuracy, loadShare: req.LoadShare,
		wake: wakeup.New(), trace: newQueryTrace(ctx),
		unsplittable: ctx.Value(withoutSplits{}) != nil,
	}
	q.Tag = q
	// A batch size that no lane could take is left for the worker to refuse: its error says what is
	// wrong with the inputs.
	q.roles = held.roles
	q.measure(req, held.largest)
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
		q.Deadline = max(1, g.timeOf(deadline))
	}

	q.trace.wait()
	defer q.endTrace()
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil, errClosed
	}
	began := g.timeNow()
	g.queries.Arrive(&q.Query, began)
	g.startWatch()
	g.leaveCritical(true)
	resp, err := g.run(ctx, q, req)
	req.Agent = string(q.slowestPart().spent.agent)
	g.recordLate(q, req, began, held.qosTarget, err)
	if known := g.members.Load(); q.version == 0 && q.family == nil &&
		known.releases[q.model].OnTrial() {
		if req.TrialSize = int(q.batch); err != nil {
			if req.Tried = q.tried; q.tried == 0 {
				req.Tried = known.bind(q, g.config.ID)
			}
		}
	}
	return resp, err
}

type withoutSplits struct{}

// WithoutSplits returns a context with which [Gateway.Infer] tells the leader that it cannot split
// the query, because the caller makes the attempts.
func WithoutSplits(ctx context.Context) context.Context {
	return context.WithValue(ctx, withoutSplits{}, true)
}

// measure sets the size of q, whose model takes up to largest rows.
func (q *gatewayQuery) measure(req *oip.Request, largest int) {
	rows := req.Rows()
	if q.roles != nil {
		rows = int64(max(1, q.measureUsers(req).Rows))
	}
	q.batch = uint32(min(rows, int64(max(1, largest))))
}

// measureUsers sets how many users and values q has.
func (q *gatewayQuery) measureUsers(req *oip.Request) (size roles.QuerySize) {
	if q.roles != nil {
		size = q.roles.Measure(req.Inputs)
		q.users, q.values = uint32(min(size.Users, size.Rows)), uint64(size.Values)
	}
	return size
}

// forMember returns the query for an attempt at a member: one that does not know roles gets what
// there is once for each row.
func (q *gatewayQuery) forMember(req *oip.Request, member *control.Member) *oip.Request {
	if q.roles == nil || member.KnowsRoles() {
		return req
	}
	if size := q.roles.Measure(req.Inputs); size.Rows != int(q.batch) ||
		!q.roles.IsOnce(req.Inputs, size) {
		return req
	}
	inputs, err := q.roles.Repeat(req.Inputs)
	if err != nil { // the worker says what is wrong
		return req
	}
	repeated := *req
	repeated.Inputs = inputs
	return &repeated
}

// run carries out q, which may be a part, until q has its outcome.
func (g *Gateway) run(ctx context.Context, q *gatewayQuery, req *oip.Request) (*oip.Response,
	error) {
	g.mu.Lock()
	q.ctx, q.req = ctx, req
	g.mu.Unlock()
	for over := false; !over; {
		select {
		case <-q.wake:
		case <-ctx.Done():
		}
		over = g.makeNextAttempt(q, false)
	}
	q.hedges.Wait()
	g.mu.Lock()
	err, ended := q.outcomeOf()
	g.mu.Unlock()
	if !ended {
		return g.inParts(ctx, q, req)
	}
	return q.answer, err
}

// makeNextAttempt makes the next attempt for q, if it has a target. beside says that the query's
// caller makes one meanwhile, and that this goroutine is not the caller's. It returns whether the
// query has its outcome, or is to run in parts.
func (g *Gateway) makeNextAttempt(q *gatewayQuery, beside bool) (over bool) {
	ctx, trace := q.ctx, q.trace
	attemptCtx, abort := context.WithCancel(ctx)
	defer abort()
	now := g.timeNow()
	g.mu.Lock()
	if ctx.Err() != nil {
		g.queries.End(&q.Query, g.latenessError(ctx, q, now))
	}
	to, send := g.queries.Take(&q.Query, now)
	if send {
		*q.abortOf(0) = underWay{to.Attempt, abort}
		q.busy = q.busy || !beside
		if q.family == nil && to.Model != "" {
			_, q.tried = to.Model.Split()
		}
	}
	over = q.isOver()
	backoff := q.Backoff()
	g.leaveCritical(true)
	if !send {
		return over
	}

	if beside {
		trace = trace.hedgeTrace()
	}
	attemptCtx = trace.send(attemptCtx, to)
	attempt := Attempt{
		Attempt: control.Attempt{
			Gateway: g.config.ID, Sequence: q.Sequence, Attempt: to.Attempt, Lane: to.Lane,
			Reservation: to.Reservation, Part: q.part.number,
			Merge: to.Merge, Merged: to.Merged,
		},
		Arrival: g.began.Add(q.Arrival),
	}
	var resp *oip.Response
	var err error
	if member := g.members.Load().byName[to.Agent]; member == nil {
		err = status.Errorf(codes.Unavailable, "agent %q has left", to.Agent)
	} else if q.roles != nil && q.roles.NeedsRoles() && !member.KnowsRoles() {
		err = status.Errorf(codes.Unavailable,
			"agent %q is of a version that does not know the roles of "+
				"inputs", to.Agent)
	} else {
		resp, err = g.config.Transport.Infer(attemptCtx, member, q.forMember(forVariant(q.req,
			to.ChosenVariant), member), &attempt)
	}
	if resp != nil && q.family != nil {
		resp.AnsweredBy(q.model, to.Accuracy)
	}
	err = q.part.nameRows(err)
	trace.endAttempt(err, attemptCtx.Err() != nil && ctx.Err() == nil)
	if attempt.HasRemaining {
		g.leaderless.noteRemaining(to.Agent, attempt.Remaining)
	} else if backoff > 0 && judgeError(err) == queries.Elsewhere {
		select {
		case <-time.After(addJitter(backoff)):
		case <-attemptCtx.Done():
		}
	}

	now = g.timeNow()
	g.mu.Lock()
	*q.abortOf(to.Attempt) = underWay{}
	q.busy = q.busy && beside
	if err != nil && ctx.Err() != nil {
		if attempt.Unsent {
			g.queries.Unsent(&q.Query, to.Attempt)
		}
		g.queries.End(&q.Query, g.latenessError(ctx, q, now))
	}
	_, before := q.Ended()
	g.queries.Attempted(&q.Query, to.Attempt, judgeError(err), err, now)
	if _, ended := q.Ended(); resp != nil && ended && !before {
		q.answer = resp
	} else if resp != nil { // the answer of another attempt counts
		resp.Release()
	}
	if over = q.isOver(); resp == nil || q.answer == resp {
		q.spent.noteAttempt(&to, now, &attempt, err != nil, g.led)
	}
	g.leaveCritical(true)
	if !over && !beside {
		trace.wait()
	}
	return over
}

// isOver reports whether the query has its outcome, or is to run in parts.
func (q *gatewayQuery) isOver() bool {
	_, ended := q.Ended()
	return ended || q.Parts() != nil
}

// forVariant returns the query for an attempt: req, or if it names a family a copy that names the
// variant. It shares the inputs, which req frees.
func forVariant(req *oip.Request, v queries.ChosenVariant) *oip.Request {
	if v.Model == "" {
		return req
	}
	attempt := *req
	model, version := v.Model.Split()
	attempt.Model, attempt.Version = model, strconv.FormatInt(version, 10)
	attempt.LeastAccuracy = 0
	return &attempt
}

// outcomeOf returns the query's outcome if it has one: nil for an answer, else the gRPC error.
func (q *gatewayQuery) outcomeOf() (err error, ended bool) {
	err, ended = q.Ended()
	if e, ok := err.(*queries.GaveUp); ok {
		s := status.Convert(e.Err)
		code := s.Code()
		if code == codes.Canceled { // the caller has not cancelled it
			code = codes.Unavailable
		}
		err = status.Errorf(code, "gave up after %d attempts, the last on agent %q: %s", e.Attempts,
			e.Agent, s.Message())
	}
	return err, ended
}

// endTrace ends the spans of q's steps, and of parts that were not run.
func (q *gatewayQuery) endTrace() {
	q.trace.endStep()
	for _, part := range q.Parts() {
		part.Tag.(*gatewayQuery).trace.endStep()
	}
}

// latenessError is the error of q, whose ctx has ended; it says where q was.
func (g *Gateway) latenessError(ctx context.Context, q *gatewayQuery, now time.Duration) error {
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

// judgeError says what the error of an attempt means for the query: no member would answer it, or
// another may.
func judgeError(err error) queries.Outcome {
	if err == nil {
		return queries.Answered
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.NotFound, codes.Canceled:
		return queries.Elsewhere
	}
	return queries.Final
}

// startWatch starts the watch if it does not run. The caller holds the lock.
func (g *Gateway) startWatch() {
	if !g.watching {
		g.watching = true
		g.start <- struct{}{} // does not block: the watch has taken the last value
	}
}

// beginInquiries begins the decisions without a leader that are due, the oldest queries first. The
// caller holds the lock; inquire unlocks it in between.
func (g *Gateway) beginInquiries() {
	for !g.closed && g.queries.Unheard() {
		q := g.queries.Inquire(g.timeNow())
		if q == nil {
			return
		}
		failed := slices.Clone(q.Failed())
		g.mu.Unlock()
		g.leaderless.beginInquiry(q.Tag.(*gatewayQuery), failed)
		g.mu.Lock()
		g.takeDecisions()
	}
}

// takeDecisions takes the decisions made without a leader. The caller holds the lock.
func (g *Gateway) takeDecisions() {
	for d, ok := g.leaderless.next(); ok; d, ok = g.leaderless.next() {
		if d.why == "" {
			g.queries.Decided(&d.query.Query, d.target)
		} else {
			d.query.why = d.why
			g.queries.Undecided(&d.query.Query, g.timeOf(d.again))
		}
	}
	g.carryOut()
}

// carryOut carries out the queries' actions. The caller holds the lock.
func (g *Gateway) carryOut() {
	for a, ok := g.queries.Next(); ok; a, ok = g.queries.Next() {
		switch a.Kind {
		case queries.Wake:
			q := a.Query.Tag.(*gatewayQuery)
			q.wake.Send()
			if q.busy && q.IsHedged() {
				q.hedges.Go(func() { g.makeNextAttempt(q, true) })
			}
		case queries.CutOff:
			if cut := a.Query.Tag.(*gatewayQuery).abortOf(a.Attempt); cut != nil {
				cut.abort()
			}
		case queries.Release:
			g.released = append(g.released, a)
		case queries.HangUp:
			g.hangUp()
		}
	}
}

// leaveCritical ends a critical section. It begins the decisions without a leader that are due,
// unlocks, and sends the queries' messages to the leader and to members. With direct it may send to
// the leader on this goroutine, which saves the switch to another one.
func (g *Gateway) leaveCritical(direct bool) {
	g.carryOut()
	g.beginInquiries()
	released := g.released
	g.released = nil
	l := g.link
	var m *control.GatewayMessage
	switch {
	case l == nil || l.sending || !g.queries.HasMessage():
	case direct && g.queries.Unacknowledged() < maxDirect:
		m = g.nextMessage()
		l.sending = true
	default:
		l.wakeSender()
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
		l.wakeSender()
	}
	g.mu.Unlock()
}

// watch notices when the leader is silent, and begins the decisions that are then due.
func (g *Gateway) watch() {
	timer := time.NewTimer(0)
	timer.Stop()
	defer timer.Stop()
	for {
		select {
		case <-g.context.Done():
			return
		case <-g.start:
			g.resetWatch(timer, queries.WatchInterval)
		case <-timer.C:
			g.leaderless.remakeAhead(time.Now())
			g.mu.Lock()
			g.standstills.noteTimer(g.timeNow())
			if l := g.link; l != nil && g.hasNews() {
				l.wakeSender()
			}
			if g.queries.Idle() {
				g.watching = false
				if g.standstills.goesOn(g.timeNow()) {
					timer.Reset(idleWatch)
				}
				g.mu.Unlock()
				continue
			}
			now := g.timeNow()
			if g.queries.Check(now) {
				leader, _ := g.queries.Linked()
				g.log.Debug("the leader is silent; the gateway decides alone", "leader", leader,
					"waiting",
					g.queries.Len())
				g.leaderless.noteSilence(leader)
			}
			again := g.queries.LookAgain(now)
			g.standstills.due, g.standstills.busy = now+again, now
			timer.Reset(again)
			g.leaveCritical(false)
		}
	}
}

// resetWatch has the watch's timer fire after d.
func (g *Gateway) resetWatch(timer *time.Timer, d time.Duration) {
	g.mu.Lock()
	now := g.timeNow()
	g.standstills.noteTimer(now)
	g.standstills.due, g.standstills.busy = now+d, now
	g.mu.Unlock()
	timer.Reset(d)
}

// addJitter is a random duration between d/2 and 3d/2.
func addJitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }
