package lead

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/lateness"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/api/wakeup"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
)

// maxUnread is how many decisions and messages may wait to be read by a gateway before the leader
// ends its stream. The gateway then submits again those of its queries that a client still waits
// for. Chosen: as many as the queries that a gateway may have.
const maxUnread = 1 << 16

// maxTracestate and maxTraceparent are the longest trace context headers, in bytes, that the
// leader keeps with a query; it drops longer ones. W3C Trace Context allows that for a tracestate
// of more than 512 bytes.
const maxTracestate, maxTraceparent = 512, 64

// A gateway is a gateway that is connected to this leader by a Match stream. The term's loop owns
// the fields above mu.
type gateway struct {
	id  uint64
	sdk bool // nobody scrapes the counts of a gateway that is no agent
	// mayQuery returns nil if the gateway's client may query the model, else the reason. A nil
	// function allows every model.
	mayQuery func(model string) error
	// loadShare is the client's right to have models loaded, as [secure.Guard.LoadShare].
	loadShare func() float64
	client    string // the name of the gateway's client; "": it has no name or is an agent
	owner     string // who has opened the stream, by Clients.Identity; "": it is not known
	// count counts a query of the gateway's client against its limits, or returns why it exceeds
	// them. It is nil if the client has no name.
	count func(bytes uint64) error
	heard time.Time // when its last message came
	told  time.Time // when a message to it was last flushed
	// received is the number of submits read from the stream, which acknowledges them.
	received uint64
	// out gathers what the loop sends to this gateway at the next flush; nil: nothing.
	out *control.MatchMessage
	// knowsRoles is whether the gateway can split queries of models whose inputs have roles. Gateways
	// that can also say why queries were missed.
	knowsRoles bool
	agent      string // the agent whose gateway it says that it is; "" of an SDK

	mu      sync.Mutex
	pending *control.MatchMessage // the next message for Match to send; nil: nothing
	unread  int                   // decisions in pending
	wake    wakeup.Signal
	cut     context.CancelCauseFunc
}

// Match serves the Match stream of a gateway; this agent's own gateway also uses one. It blocks
// until the stream ends or this agent no longer leads. If this agent does not lead, or loses the
// leadership, Match returns FAILED_PRECONDITION with the leadership that this agent knows.
func (l *Leader) Match(s control.Stream[control.MatchMessage, control.GatewayMessage]) error {
	t := l.currentTerm()
	if t == nil {
		return l.errNotLeading()
	}
	ctx, cut := context.WithCancelCause(s.Context())
	defer cut(nil)
	g := &gateway{wake: wakeup.New(), cut: cut, loadShare: func() float64 { return 0 }}
	if who := l.config.Clients; who != nil {
		g.owner = who.Identity(s.Context())
		g.loadShare = func() float64 { return who.LoadShare(s.Context()) }
		g.client, g.mayQuery = who.Client(s.Context()), func(model string) error {
			return who.MayQuery(s.Context(), model)
		}
		if g.client != "" {
			g.count = func(bytes uint64) error {
				return who.Query(s.Context(), secure.Asked, int64(min(bytes, math.MaxInt64)))
			}
		}
	}
	hello := make(chan error, 1)
	// The stream ends when Match returns, and the reader with it.
	go t.read(g, s, hello, cut)
	select {
	case err := <-hello:
		if err != nil {
			return err
		}
	case <-t.ctx.Done():
		return l.errNotLeading()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for {
		select {
		case <-g.wake:
			g.mu.Lock()
			m := g.pending
			g.pending, g.unread = nil, 0
			g.mu.Unlock()
			if m == nil {
				continue
			}
			if len(m.Profiles)+len(m.Prices) > 0 && g.mayQuery != nil &&
				g.mayQuery("") != nil { // its client may not query all models
				members.Hide(m, func(model string) bool { return g.mayQuery(model) == nil })
			}
			if err := s.Send(m); err != nil {
				return err
			}
		case <-t.ctx.Done():
			return l.errNotLeading()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// read passes the messages of a gateway to the loop until the stream ends. It sends one value on
// hello: nil once the gateway has introduced itself, or why it cannot be served.
func (t *term) read(g *gateway, s control.Stream[control.MatchMessage, control.GatewayMessage],
	hello chan<- error, cut context.CancelCauseFunc) {
	m, err := s.Recv()
	if err != nil {
		hello <- err
		return
	}
	if err := checkHello(m.GetHello()); err != nil {
		hello <- err
		return
	}
	// A client with a name may say that its gateway is an agent's.
	g.id, g.sdk = m.GetHello().GetGateway(), m.GetHello().GetAgent() == "" || g.client != ""
	g.agent = m.GetHello().GetAgent()
	g.knowsRoles = control.VersionsOf(m.GetHello().GetProtocol(),
		m.GetHello().GetNewestProtocol()).Newest >= control.VersionRoles
	t.postToLoop(func() { t.connect(g) })
	defer t.postToLoop(func() { t.removeGateway(g) })
	hello <- nil
	for err == nil {
		said := m
		for _, submit := range said.GetSubmit() {
			trim(submit)
		}
		t.postToLoop(func() { t.handleGatewayMessage(g, said) })
		m, err = s.Recv()
	}
	cut(err)
}

// trim removes unknown fields and overlong trace headers from a submit before the leader keeps it,
// so that a client cannot make the leader hold more memory.
func trim(s *control.Submit) {
	s.ProtoReflect().SetUnknown(nil)
	if len(s.GetTraceparent()) > maxTraceparent {
		s.Traceparent = ""
	}
	if s.GetTraceparent() == "" || len(s.GetTracestate()) > maxTracestate {
		s.Tracestate = ""
	}
}

// checkHello returns why the first message of a gateway is not acceptable; nil if it is.
func checkHello(h *control.GatewayHello) error {
	switch {
	case h == nil || h.GetGateway() == 0:
		return status.Error(codes.InvalidArgument,
			"the first message on a Match stream must say hello, with the gateway's id")
	}
	if err := control.Spoken.Understands(
		control.VersionsOf(h.GetProtocol(), h.GetNewestProtocol())); err != nil {
		return status.Errorf(codes.FailedPrecondition, "gateway: %v", err)
	}
	return nil
}

// countAgainstLimits counts a query against the limits of the gateway's client. It returns nil if
// the client may make the query, else the reason.
func (g *gateway) countAgainstLimits(s *control.Submit) error {
	if g.count != nil {
		if err := g.count(s.GetBytes()); err != nil {
			return err
		}
	}
	if g.mayQuery != nil {
		return g.mayQuery(s.GetModel())
	}
	return nil
}

// connect adds a gateway to the term, and ends the stream of an earlier connection with the same
// id. A gateway's id belongs to who has opened the stream: a gateway comes back with its id when
// its stream has broken, before the leader may have noticed, and nobody else can end its stream by
// it. Callers without an identity, as without TLS, cannot be told apart; of them, the id itself
// proves the gateway, as it has 64 random bits and the leader tells it to nobody.
func (t *term) connect(g *gateway) {
	former := t.gateways[g.id]
	if former != nil && former.owner != g.owner {
		g.cut(status.Error(codes.PermissionDenied,
			"the gateway's id is that of another client: want an id of its own, at random"))
		return
	}
	if former != nil {
		former.cut(status.Error(codes.Aborted, "the gateway has opened another stream"))
	}
	t.gateways[g.id] = g
	t.leader.metrics.gateways.Set(float64(len(t.gateways)))
	t.step(leader.Event{Kind: leader.GatewayConnected, Gateway: g.id, Client: g.client})
}

// removeGateway removes a gateway, unless a newer connection has taken its place.
func (t *term) removeGateway(g *gateway) {
	if t.gateways[g.id] != g {
		return
	}
	delete(t.gateways, g.id)
	t.leader.metrics.gateways.Set(float64(len(t.gateways)))
	t.step(leader.Event{Kind: leader.GatewayLost, Gateway: g.id})
}

// A gateway with queries gets a message at least each activeBeat and a heartbeat of the state, one
// without each restingBeat and a heartbeat: the link is there when a query comes. A gateway counts
// as without once nothing has come from it for resting: it may have queries of which the leader
// does not know. Chosen: both well within the 150 ms and more after which a gateway counts a leader
// as silent while it has queries.
const activeBeat, restingBeat, resting = 25 * time.Millisecond, 175 * time.Millisecond, time.Second

// addHeartbeat adds a heartbeat to the next message to a gateway, unless it got a message not long
// ago.
func (t *term) addHeartbeat(g *gateway) {
	often := activeBeat
	if t.now.Sub(g.heard) > resting && !t.state.HasQueries(g.id) {
		often = restingBeat
	}
	if t.now.Sub(g.told) >= often {
		t.nextMessage(g)
	}
}

// nextMessage returns the message that goes to a gateway at the next flush, for the loop to add to.
func (t *term) nextMessage(g *gateway) *control.MatchMessage {
	if g.out == nil {
		g.out = &control.MatchMessage{}
		t.touched = append(t.touched, g)
	}
	return g.out
}

// flush passes the gathered messages to the goroutines that write to the gateways. It does not
// block.
func (t *term) flush() {
	for i, g := range t.touched {
		t.touched[i] = nil
		m := g.out
		g.out, g.told = nil, t.now
		m.Received = g.received
		g.mu.Lock()
		g.unread += 1 + len(m.Assign) + len(m.Reject) + len(m.OfferAgain) + len(m.Split)
		g.pending = mergeMessages(g.pending, m)
		full := g.unread > maxUnread
		g.mu.Unlock()
		if full {
			g.cut(
				status.Error(codes.ResourceExhausted,
					"the gateway does not read what the leader decides"))
		}
		g.wake.Send()
	}
	t.touched = t.touched[:0]
}

// revokeAssignment removes an assignment from a message that was not sent yet. A gateway reads the
// OfferAgain entries of a message before its Assign entries, so it would take the old assignment
// for a new one.
func revokeAssignment(m *control.MatchMessage, sequence uint64, attempt uint32) {
	m.Assign = slices.DeleteFunc(m.Assign,
		func(a *control.Assign) bool { return a.Sequence == sequence && a.Attempt == attempt })
}

// revokeSplit removes the split of a query from a message that was not sent yet; m may be nil. The
// gateway has submitted the query since, which replaces its parts. It would take the old split for
// one that follows the submit, which the message acknowledges.
func revokeSplit(m *control.MatchMessage, sequence uint64) {
	if m != nil {
		m.Split = slices.DeleteFunc(m.Split,
			func(s *control.Split) bool { return s.Sequence == sequence })
	}
}

// mergeMessages merges a later message into an earlier one that was not sent yet, and returns the
// result. It keeps the order of the two messages' effects.
func mergeMessages(earlier, later *control.MatchMessage) *control.MatchMessage {
	if earlier == nil {
		return later
	}
	for _, o := range later.OfferAgain {
		revokeAssignment(earlier, o.Sequence, o.Attempt)
	}
	earlier.Received = later.Received
	earlier.OfferAgain = append(earlier.OfferAgain, later.OfferAgain...)
	earlier.Split = append(earlier.Split, later.Split...)
	earlier.Assign = append(earlier.Assign, later.Assign...)
	earlier.Reject = append(earlier.Reject, later.Reject...)
	earlier.Profiles = mergeProfiles(earlier.Profiles, later.Profiles)
	if later.Leadership != nil {
		earlier.Leadership = later.Leadership
	}
	if later.Prices != nil {
		earlier.Prices = later.Prices
	}
	return earlier
}

// handleGatewayMessage handles a message of a gateway. Only the loop calls it.
func (t *term) handleGatewayMessage(g *gateway, m *control.GatewayMessage) {
	if t.gateways[g.id] != g {
		return
	}
	g.heard = t.now
	for _, s := range m.GetSubmit() {
		g.received++
		t.submit(g, s)
	}
	if len(m.GetSubmit()) > 0 {
		t.nextMessage(g) // flush then sends g.received, which acknowledges the submits
	}
	for _, sequence := range m.GetCancel() {
		t.step(leader.Event{Kind: leader.Cancelled, Gateway: g.id, Sequence: sequence})
	}
	for _, f := range m.GetFailed() {
		t.countFailures(g, f)
	}
	for _, missed := range m.GetMissed() {
		t.missed.count(g, missed)
	}
	t.countCompared(g, m.GetCompared())
	for _, a := range m.GetUnused() {
		t.step(leader.Event{
			Kind: leader.Unused, Gateway: g.id, Sequence: a.GetSequence(),
			Attempt: int(a.GetAttempt()), Agent: names.AgentName(a.GetAgent()),
			Lane: int(a.GetLane()),
		})
	}
}

// maxFailed is how many failures of one kind a gateway may report in one message: a client could
// make the counts meaningless.
const maxFailed = 1 << 20

// countFailures counts queries that failed at a gateway, or that the gateway was told were refused.
func (t *term) countFailures(g *gateway, f *control.Failed) {
	if !slices.Contains(outcome.Reasons(), f.GetReason()) {
		return
	}
	e := leader.Event{
		Kind: leader.Failed, Why: f.GetReason(), N: min(f.GetCount(), maxFailed),
		Excused: outcome.Excuses(f.GetReason()),
	}
	if f.BatchSize != nil {
		// A size of 0 says that the failures count in no trial.
		e.BatchSize = cmp.Or(int(min(f.GetBatchSize(), profiles.MaxBatchSize)), -1)
	}
	if g.mayQuery == nil || g.mayQuery(f.GetModel()) == nil {
		e.Model = leader.ModelID{Name: f.GetModel(), Version: f.GetVersion()}
	}
	t.step(e)
	if !g.knowsRoles {
		t.missed.countUnsaid(g, e.Model.Name, lateness.CauseOfFailure(e.Why, nil), e.N, 0)
	}
	if g.sdk {
		id := t.knownID(e.Model)
		t.leader.config.Counts.CountFailed(id.Name, id.Version, e.Why, e.N)
	}
}

// knownID returns id if the fleet's members hold it, else nothing: clients must not be able to
// create metric series.
func (t *term) knownID(id leader.ModelID) leader.ModelID {
	if t.state.Knows(id) {
		return id
	}
	return leader.ModelID{}
}

// minAccuracy returns the accuracy that a submit demands. A gateway has checked it; a value out of
// range demands nothing.
func minAccuracy(s *control.Submit) float64 {
	if least := s.GetLeastAccuracy(); least > 0 && least <= 1 {
		return least
	}
	return 0
}

// loadShareOf is the share of the agents that may hold models only because clients ask for them that
// have the right of the submit's client; 0: it has no such right. An agent's gateway says what its
// client may; what another gateway says counts for nothing.
func (g *gateway) loadShareOf(s *control.Submit) float64 {
	if g.sdk {
		return g.loadShare()
	}
	if share := s.GetLoadShare(); share > 0 && share <= 1 {
		return share
	}
	return 0
}

// loadTimeOf says how long agents took to load a model; "" if that is not known.
func (t *term) loadTimeOf(id leader.ModelID) string {
	took := time.Duration(0)
	for _, state := range t.layouts {
		for _, m := range state.GetAvailable() {
			if m.GetName() == id.Name && m.GetVersion() == id.Version {
				took = max(took, control.Duration(m.GetLoadNs()))
			}
		}
	}
	if took == 0 {
		return ""
	}
	return fmt.Sprintf("; the load took %v", took.Round(max(time.Millisecond, took/100)))
}

// submit passes a query that a gateway submitted to the state, as a Submitted event.
func (t *term) submit(g *gateway, s *control.Submit) {
	revokeSplit(g.out, s.GetSequence())
	g.mu.Lock()
	revokeSplit(g.pending, s.GetSequence())
	g.mu.Unlock()
	e := leader.Event{
		Kind: leader.Submitted, Gateway: g.id, Sequence: s.GetSequence(),
		Attempt:   int(s.GetAttempts()),
		Model:     leader.ModelID{Name: s.GetModel(), Version: s.GetVersion()},
		BatchSize: int(s.GetBatchSize()), Users: int(min(s.GetUsers(), profiles.MaxBatchSize)),
		Values: countOf(s.GetValues()),
		Waited: control.Duration(s.GetWaitedNs()), Agent: names.AgentName(s.GetAgent()),
		Lane:          int(s.GetLane()),
		Splits:        s.GetSplits() && (g.knowsRoles || !t.ranked.splits[s.GetModel()]),
		LeastAccuracy: minAccuracy(s),
		LoadShare:     g.loadShareOf(s),
		TagSize:       len(s.GetTraceparent()) + len(s.GetTracestate()),
	}
	if e.TimeLeft = -1; s.GetTimeLeftNs() >= 0 {
		e.TimeLeft = control.Duration(s.GetTimeLeftNs())
	}
	if x := t.queryTraceOf(s); x != nil {
		e.Tag = x
	}
	if err := g.countAgainstLimits(s); err != nil {
		e.Denied, e.RetryAfter = status.Convert(err).Message(), outcome.Of(err).RetryAfter
	}
	if g.sdk && e.Attempt == 0 && !(s.GetSplits() && partOf(match.QueryID{Sequence: e.Sequence}) > 0) {
		id := t.knownID(t.state.Newest(e.Model))
		t.leader.config.Counts.Arrived(id.Name, id.Version)
	}
	t.step(e)
}
