package agent

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader/match"
)

// mostUnread is how many messages' worth of decisions a gateway may leave unread
// before its stream is cut: its queries are then submitted again, or nobody waits for them.
const mostUnread = 1 << 16

const (
	// mostSubmitted bounds the queries of one gateway that the leader remembers, and those
	// parked of all.
	mostSubmitted = 1 << 16
	// mostSubmittedBytes bounds what the leader remembers of one gateway's queries, in bytes of
	// their submits; the gateways of one client with a name share it.
	mostSubmittedBytes = 16 << 20
	// submitOverhead is what a submit takes beside its texts, in bytes.
	submitOverhead = 256
	// mostTracestate and mostTraceparent bound the context of a query's span, in bytes: longer ones
	// are dropped, as W3C Trace Context allows from 512 bytes on.
	mostTracestate, mostTraceparent = 512, 64
	// mostHeld bounds the queries of which the leader believes gateways that a lane has them.
	mostHeld = 1 << 10
	// mostNumbers is how many gateways have a number before those are forgotten that are
	// not connected, and of whose queries no lane has any.
	mostNumbers = 1 << 12
)

// A gateway is one that is connected to the leader by a Match stream.
type gateway struct {
	id      uint64
	number  uint32
	queries map[uint64]*leaderQuery
	// mayQuery says why the gateway's client may not query a model; nil: it may query all.
	mayQuery func(model string) error
	client   string   // the name of its client; "": it has none, or is an agent
	account  *account // of its client; its own where that has no name
	// received counts the submits read from the stream.
	received uint64
	// out is what the loop has for it since the last flush; nil: nothing.
	out *control.MatchMessage

	mu      sync.Mutex
	pending *control.MatchMessage // what is to be sent
	unread  int                   // decisions in pending
	wake    chan struct{}
	cut     context.CancelCauseFunc
}

// A leaderQuery is what the loop remembers of a query that the matcher knows.
type leaderQuery struct {
	model   *leaderModel
	batch   int
	bytes   uint64
	trace   *leaderTrace
	submit  *control.Submit // its attempts and times as of heardAt
	heardAt time.Time
	weight  int // in the account of its gateway, in bytes
}

// An account is what the loop remembers for one client.
type account struct {
	gateways int
	bytes    int
}

// remember has the loop know a query of the gateway's.
func (g *gateway) remember(sequence uint64, q *leaderQuery) {
	g.forget(sequence)
	g.queries[sequence] = q
	g.account.bytes += q.weight
}

// forget has the loop know it no more.
func (g *gateway) forget(sequence uint64) {
	if q := g.queries[sequence]; q != nil {
		g.account.bytes -= q.weight
		delete(g.queries, sequence)
	}
}

// weigh is about how many bytes a submit takes in memory.
func weigh(s *control.Submit) int {
	return submitOverhead + len(s.GetModel()) + len(s.GetAgent()) + len(s.GetTraceparent()) + len(s.GetTracestate())
}

// match implements leading.
func (l *leader) match(s stream[control.MatchMessage, control.GatewayMessage]) error {
	r := l.reigning()
	if r == nil {
		return l.errNotLeading()
	}
	ctx, cut := context.WithCancelCause(s.Context())
	defer cut(nil)
	g := &gateway{
		queries: map[uint64]*leaderQuery{}, wake: make(chan struct{}, 1), cut: cut,
	}
	if who := l.config.Clients; who != nil {
		g.client, g.mayQuery = who.Client(s.Context()), func(model string) error { return who.MayQuery(s.Context(), model) }
	}
	hello := make(chan error, 1)
	// The reader ends when this function returns, for then the stream does.
	go r.read(g, s, hello, cut)
	select {
	case err := <-hello:
		if err != nil {
			return err
		}
	case <-r.ctx.Done():
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
			if g.mayQuery != nil {
				m.Profiles = visibleProfiles(m.Profiles, func(model string) bool { return g.mayQuery(model) == nil })
			}
			if err := s.Send(m); err != nil {
				return err
			}
		case <-r.ctx.Done():
			return l.errNotLeading()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// read gives what a gateway says to the loop, until the stream ends.
func (r *reign) read(g *gateway, s stream[control.MatchMessage, control.GatewayMessage], hello chan<- error, cut context.CancelCauseFunc) {
	m, err := s.Recv()
	if err != nil {
		hello <- err
		return
	}
	if err := checkHello(m.GetHello()); err != nil {
		hello <- err
		return
	}
	g.id = m.GetHello().GetGateway()
	r.post(func() { r.connect(g) })
	defer r.post(func() { r.disconnect(g) })
	hello <- nil
	for err == nil {
		said := m
		for _, submit := range said.GetSubmit() {
			trim(submit)
		}
		r.post(func() { r.told(g, said) })
		m, err = s.Recv()
	}
	cut(err)
}

// trim drops what the leader has no use for, before anything remembers it.
func trim(s *control.Submit) {
	s.ProtoReflect().SetUnknown(nil)
	if len(s.GetTraceparent()) > mostTraceparent {
		s.Traceparent = ""
	}
	if s.GetTraceparent() == "" || len(s.GetTracestate()) > mostTracestate {
		s.Tracestate = ""
	}
}

func checkHello(h *control.GatewayHello) error {
	switch {
	case h == nil || h.GetGateway() == 0:
		return status.Error(codes.InvalidArgument, "the first message on a Match stream must say hello, with the gateway's id")
	case h.GetProtocol() != control.Protocol:
		return status.Errorf(codes.FailedPrecondition, "the gateway speaks version %d of the protocol, this agent %d", h.GetProtocol(), control.Protocol)
	}
	return nil
}

// number numbers gateways for the matcher.
func (r *reign) number(id uint64) uint32 {
	n, ok := r.numbers[id]
	if !ok {
		if len(r.numbers) >= r.mostNumbers {
			r.forgetNumbers()
		}
		r.lastNumber++
		n = r.lastNumber
		r.numbers[id] = n
	}
	return n
}

// forgetNumbers forgets the numbers that nothing has any more.
func (r *reign) forgetNumbers() {
	inUse := map[uint32]bool{}
	for _, ln := range r.lanes {
		for _, a := range ln.held {
			inUse[a.query.Gateway] = true
		}
	}
	maps.DeleteFunc(r.numbers, func(_ uint64, n uint32) bool { return r.byNumber[n] == nil && !inUse[n] })
	r.mostNumbers = max(mostNumbers, 2*len(r.numbers))
}

// connect takes a gateway in; on a new stream it submits everything anew.
func (r *reign) connect(g *gateway) {
	if former := r.gateways[g.id]; former != nil {
		r.disconnect(former)
		former.cut(status.Error(codes.Aborted, "the gateway has opened another stream"))
	}
	g.number = r.number(g.id)
	g.account = r.accounts[g.client]
	if g.client == "" || g.account == nil {
		g.account = &account{}
	}
	if g.client != "" {
		r.accounts[g.client] = g.account
	}
	g.account.gateways++
	r.gateways[g.id], r.byNumber[g.number] = g, g
	r.leader.metrics.gateways.Set(float64(len(r.gateways)))
	out := r.outbox(g)
	out.Leadership = r.leader.leadership()
	out.Prices, out.Profiles = r.prices, r.allProfiles()
}

// disconnect forgets a gateway and its queries.
func (r *reign) disconnect(g *gateway) {
	if r.gateways[g.id] != g {
		return
	}
	delete(r.gateways, g.id)
	delete(r.byNumber, g.number)
	for sequence := range g.queries {
		g.forget(sequence)
	}
	if g.account.gateways--; g.account.gateways == 0 && r.accounts[g.client] == g.account {
		delete(r.accounts, g.client)
	}
	r.leader.metrics.gateways.Set(float64(len(r.gateways)))
	r.takeParked(func(p *parked) bool { return p.gateway == g })
	r.step(&match.Event{Kind: match.GatewayLost, Query: match.QueryID{Gateway: g.number}})
}

// outbox is what goes to a gateway at the next flush.
func (r *reign) outbox(g *gateway) *control.MatchMessage {
	if g.out == nil {
		g.out = &control.MatchMessage{}
		r.touched = append(r.touched, g)
	}
	return g.out
}

// flush hands what there is to the gateways' writers.
func (r *reign) flush() {
	for i, g := range r.touched {
		r.touched[i] = nil
		m := g.out
		g.out = nil
		m.Received = g.received
		g.mu.Lock()
		g.unread += 1 + len(m.Assign) + len(m.Reject) + len(m.OfferAgain)
		g.pending = join(g.pending, m)
		full := g.unread > mostUnread
		g.mu.Unlock()
		if full {
			g.cut(status.Error(codes.ResourceExhausted, "the gateway does not read what the leader decides"))
		}
		signal(g.wake)
	}
	r.touched = r.touched[:0]
}

// revoke takes an assignment out of a message that was not sent yet, since in one
// message what is offered again comes before what is assigned.
func revoke(m *control.MatchMessage, sequence uint64, attempt uint32) {
	m.Assign = slices.DeleteFunc(m.Assign, func(a *control.Assign) bool { return a.Sequence == sequence && a.Attempt == attempt })
}

// join adds a later message to an earlier one that was not sent yet.
func join(earlier, later *control.MatchMessage) *control.MatchMessage {
	if earlier == nil {
		return later
	}
	for _, o := range later.OfferAgain {
		revoke(earlier, o.Sequence, o.Attempt)
	}
	earlier.Received = later.Received
	earlier.OfferAgain = append(earlier.OfferAgain, later.OfferAgain...)
	earlier.Assign = append(earlier.Assign, later.Assign...)
	earlier.Reject = append(earlier.Reject, later.Reject...)
	earlier.Profiles = newest(earlier.Profiles, later.Profiles)
	if later.Leadership != nil {
		earlier.Leadership = later.Leadership
	}
	if later.Prices != nil {
		earlier.Prices = later.Prices
	}
	return earlier
}

// told takes what a gateway says.
func (r *reign) told(g *gateway, m *control.GatewayMessage) {
	if r.gateways[g.id] != g {
		return
	}
	for _, s := range m.GetSubmit() {
		g.received++
		r.submit(g, s)
	}
	if len(m.GetSubmit()) > 0 {
		r.outbox(g) // acknowledges
	}
	for _, sequence := range m.GetCancel() {
		g.forget(sequence)
		r.takeParked(func(p *parked) bool { return p.gateway == g && p.submit.GetSequence() == sequence })
		r.step(&match.Event{Kind: match.Cancelled, Query: match.QueryID{Gateway: g.number, Sequence: sequence}})
	}
	for _, a := range m.GetUnused() {
		w := r.workers[a.GetAgent()]
		if w == nil || int(a.GetLane()) >= len(w.lanes) {
			continue
		}
		ln, query := w.lanes[a.GetLane()], match.QueryID{Gateway: g.number, Sequence: a.GetSequence()}
		if ln.find(query, int(a.GetAttempt())) < 0 {
			continue // a gateway has no say about what is not its own
		}
		var rest time.Duration
		for _, h := range ln.held {
			if h.query != query {
				rest += h.execution
			}
		}
		r.answer(ln, match.Refused, query, int(a.GetAttempt()), rest)
	}
}

// submit takes a query.
func (r *reign) submit(g *gateway, s *control.Submit) {
	version := s.GetVersion()
	if version == 0 {
		version = r.newestOf(s.GetModel())
	}
	key := control.ModelKey(s.GetModel(), version)
	q := &leaderQuery{
		model: r.models[key], batch: int(s.GetBatchSize()), bytes: s.GetBytes(), trace: r.traced(s), submit: s, heardAt: r.now, weight: weigh(s),
	}
	if g.mayQuery != nil {
		if err := g.mayQuery(s.GetModel()); err != nil {
			r.refuse(g, s.GetSequence(), match.UnknownModel, status.Convert(err).Message())
			return
		}
	}
	if g.queries[s.GetSequence()] == nil && (len(g.queries) >= mostSubmitted || g.account.bytes+q.weight > mostSubmittedBytes) {
		r.reject(g, &match.Decision{Reason: match.Overloaded, Query: match.QueryID{Gateway: g.number, Sequence: s.GetSequence()}, Wait: time.Millisecond}, q)
		return
	}
	if s.GetAttempts() == 0 {
		r.arrived.add(r.now, 1)
		r.study.arrived(key, q.batch, r.now)
	}
	if s.GetAgent() != "" && s.GetAttempts() > 0 {
		w := r.workers[s.GetAgent()]
		if w == nil && r.now.Sub(r.start) < settleTime && r.isMember(s.GetAgent()) && !r.gone[s.GetAgent()] && len(r.parked) < mostSubmitted {
			r.parked = append(r.parked, &parked{g, s, r.now, q.weight})
			g.account.bytes += q.weight
			return
		}
		if w != nil && int(s.GetLane()) < len(w.lanes) && len(w.lanes[s.GetLane()].held) < mostHeld {
			g.remember(s.GetSequence(), q)
			r.sent(g, s, q, w.lanes[s.GetLane()], key)
			return
		}
	}
	g.remember(s.GetSequence(), q)
	e := r.submission(match.Submitted, g, s, key)
	r.step(&e)
}

// submission is the event of a submit. The way of the submit and, later, of the answer count as
// waiting, for no decision avoids them.
func (r *reign) submission(kind match.Kind, g *gateway, s *control.Submit, key string) match.Event {
	e := match.Event{
		Kind: kind, Query: match.QueryID{Gateway: g.number, Sequence: s.GetSequence()}, Attempt: int(s.GetAttempts()),
		Model: key, BatchSize: int(min(s.GetBatchSize(), match.MaxBatchSize+1)),
		Waited: control.Duration(s.GetWaitedNs()) + min(r.ahead.fixed, r.aheadSet), TimeLeft: control.Duration(s.GetTimeLeftNs()),
	}
	if s.GetTimeLeftNs() < 0 {
		e.TimeLeft = 1
	}
	return e
}

// sent takes a query that its gateway has sent to a lane already.
func (r *reign) sent(g *gateway, s *control.Submit, q *leaderQuery, ln *lane, key string) {
	e := r.submission(match.Sent, g, s, key)
	e.Lane = ln.id
	if ln.find(e.Query, e.Attempt) < 0 && q.model != nil {
		a := attempt{query: e.Query, number: e.Attempt, since: r.now, claimed: true, bytes: q.bytes, grace: r.grace(ln, key, q.batch)}
		if k := r.tables[tableKey{key, ln.worker.typ}]; k != nil && q.batch >= 1 && q.batch <= k.table.Largest() {
			a.execution = k.table.Mean(q.batch)
		}
		if len(ln.held) == 0 {
			ln.due = r.now.Add(a.execution + a.grace)
		}
		ln.held = append(ln.held, a)
	}
	r.step(&e)
}

// takeParked returns the parked queries of which which is true, and parks them no more.
func (r *reign) takeParked(which func(*parked) bool) (taken []*parked) {
	r.parked = slices.DeleteFunc(r.parked, func(p *parked) bool {
		if !which(p) {
			return false
		}
		p.gateway.account.bytes -= p.weight
		taken = append(taken, p)
		return true
	})
	return taken
}

// unpark has the parked queries of which ready is true considered again.
func (r *reign) unpark(ready func(*parked) bool) {
	for _, p := range r.takeParked(ready) {
		age(p.submit, r.now.Sub(p.heardAt))
		r.submit(p.gateway, p.submit)
	}
}

// age has a submit be one of some time later.
func age(s *control.Submit, by time.Duration) {
	s.WaitedNs += int64(by)
	if s.TimeLeftNs > 0 {
		s.TimeLeftNs = max(1, s.TimeLeftNs-int64(by))
	}
}

// toNewest has the queries that name no version, and wait for one that no lane serves any more, wait for
// the newest.
func (r *reign) toNewest() {
	for _, g := range r.gateways {
		for _, sequence := range slices.Sorted(maps.Keys(g.queries)) {
			// One may have been rejected in favour of another.
			q, id := g.queries[sequence], match.QueryID{Gateway: g.number, Sequence: sequence}
			if q == nil || q.submit.GetVersion() != 0 || q.model == nil || r.served[q.model.key] || !r.matcher.Waits(id) {
				continue
			}
			key := control.ModelKey(q.model.name, r.newestOf(q.model.name))
			if !r.served[key] {
				continue
			}
			age(q.submit, r.now.Sub(q.heardAt))
			q.model, q.heardAt = r.models[key], r.now
			r.step(&match.Event{Kind: match.Cancelled, Query: id})
			e := r.submission(match.Submitted, g, q.submit, key)
			r.step(&e)
		}
	}
}

func (r *reign) isMember(name string) bool {
	return slices.ContainsFunc(r.leader.fleet.view().GetMembers(), func(m *control.Member) bool { return m.GetName() == name })
}

// newestOf is the newest version of a model that a lane holds and does not drain, or else a member has.
func (r *reign) newestOf(model string) int64 {
	if v, ok := r.newest[model]; ok {
		return v
	}
	newest := int64(0)
	for _, m := range r.models {
		if m.name == model {
			newest = max(newest, m.version)
		}
	}
	return newest
}
