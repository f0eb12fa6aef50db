package lead

import (
	"context"
	"math"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/leader"
)

// mostUnread is how many messages' worth of decisions a gateway may leave unread
// before its stream is cut: its queries are then submitted again, or nobody waits for them.
const mostUnread = 1 << 16

// mostTracestate and mostTraceparent bound the context of a query's span, in bytes: longer ones
// are dropped, as W3C Trace Context allows from 512 bytes on.
const mostTracestate, mostTraceparent = 512, 64

// A gateway is one that is connected to the leader by a Match stream.
type gateway struct {
	id uint64
	// mayQuery says why the gateway's client may not query a model; nil: it may query all.
	mayQuery func(model string) error
	client   string // the name of its client; "": it has none, or is an agent
	// count counts a query of the gateway's client, or refuses it; nil: there is no
	// client with a name.
	count func(bytes uint64) error
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

// Match serves the Match stream of a gateway, this agent's own among them. It
// ends at once with FAILED_PRECONDITION and the leadership as it is known if this
// agent does not lead, and so it does when the leadership is lost.
func (l *Leader) Match(s Stream[control.MatchMessage, control.GatewayMessage]) error {
	t := l.leads()
	if t == nil {
		return l.errNotLeading()
	}
	ctx, cut := context.WithCancelCause(s.Context())
	defer cut(nil)
	g := &gateway{wake: make(chan struct{}, 1), cut: cut}
	if who := l.config.Clients; who != nil {
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
	// The reader ends when this function returns, for then the stream does.
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
			if g.mayQuery != nil {
				m.Profiles = members.VisibleProfiles(m.Profiles,
					func(model string) bool { return g.mayQuery(model) == nil })
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

// read gives what a gateway says to the loop, until the stream ends.
func (t *term) read(g *gateway, s Stream[control.MatchMessage, control.GatewayMessage],
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
	g.id = m.GetHello().GetGateway()
	t.post(func() { t.connect(g) })
	defer t.post(func() { t.disconnect(g) })
	hello <- nil
	for err == nil {
		said := m
		for _, submit := range said.GetSubmit() {
			trim(submit)
		}
		t.post(func() { t.told(g, said) })
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
		return status.Error(codes.InvalidArgument,
			"the first message on a Match stream must say hello, with the gateway's id")
	}
	if err := control.Spoken.Understands(
		control.VersionsOf(h.GetProtocol(), h.GetNewestProtocol())); err != nil {
		return status.Errorf(codes.FailedPrecondition, "gateway: %v", err)
	}
	return nil
}

// may counts a query for the limits of the gateway's client, and says why that may not make
// it; nil: it may.
func (g *gateway) may(s *control.Submit) error {
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

// connect takes a gateway in.
func (t *term) connect(g *gateway) {
	if former := t.gateways[g.id]; former != nil {
		former.cut(status.Error(codes.Aborted, "the gateway has opened another stream"))
	}
	t.gateways[g.id] = g
	t.leader.metrics.gateways.Set(float64(len(t.gateways)))
	t.step(leader.Event{Kind: leader.GatewayConnected, Gateway: g.id, Client: g.client})
}

// disconnect forgets a gateway.
func (t *term) disconnect(g *gateway) {
	if t.gateways[g.id] != g {
		return
	}
	delete(t.gateways, g.id)
	t.leader.metrics.gateways.Set(float64(len(t.gateways)))
	t.step(leader.Event{Kind: leader.GatewayLost, Gateway: g.id})
}

// outbox is what goes to a gateway at the next flush.
func (t *term) outbox(g *gateway) *control.MatchMessage {
	if g.out == nil {
		g.out = &control.MatchMessage{}
		t.touched = append(t.touched, g)
	}
	return g.out
}

// flush hands what there is to the gateways' writers.
func (t *term) flush() {
	for i, g := range t.touched {
		t.touched[i] = nil
		m := g.out
		g.out = nil
		m.Received = g.received
		g.mu.Lock()
		g.unread += 1 + len(m.Assign) + len(m.Reject) + len(m.OfferAgain)
		g.pending = join(g.pending, m)
		full := g.unread > mostUnread
		g.mu.Unlock()
		if full {
			g.cut(
				status.Error(codes.ResourceExhausted,
					"the gateway does not read what the leader decides"))
		}
		signal(g.wake)
	}
	t.touched = t.touched[:0]
}

// revoke takes an assignment out of a message that was not sent yet, since in one
// message what is offered again comes before what is assigned.
func revoke(m *control.MatchMessage, sequence uint64, attempt uint32) {
	m.Assign = slices.DeleteFunc(m.Assign,
		func(a *control.Assign) bool { return a.Sequence == sequence && a.Attempt == attempt })
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
func (t *term) told(g *gateway, m *control.GatewayMessage) {
	if t.gateways[g.id] != g {
		return
	}
	for _, s := range m.GetSubmit() {
		g.received++
		t.submit(g, s)
	}
	if len(m.GetSubmit()) > 0 {
		t.outbox(g) // acknowledges
	}
	for _, sequence := range m.GetCancel() {
		t.step(leader.Event{Kind: leader.Cancelled, Gateway: g.id, Sequence: sequence})
	}
	for _, a := range m.GetUnused() {
		t.step(leader.Event{
			Kind: leader.Unused, Gateway: g.id, Sequence: a.GetSequence(),
			Attempt: int(a.GetAttempt()), Agent: names.AgentName(a.GetAgent()),
			Lane: int(a.GetLane()),
		})
	}
}

// submit takes a query.
func (t *term) submit(g *gateway, s *control.Submit) {
	e := leader.Event{
		Kind: leader.Submitted, Gateway: g.id, Sequence: s.GetSequence(),
		Attempt:   int(s.GetAttempts()),
		Model:     leader.ModelID{Name: s.GetModel(), Version: s.GetVersion()},
		BatchSize: int(s.GetBatchSize()),
		Waited:    control.Duration(s.GetWaitedNs()), Agent: names.AgentName(s.GetAgent()),
		Lane:    int(s.GetLane()),
		TagSize: len(s.GetTraceparent()) + len(s.GetTracestate()),
	}
	if e.TimeLeft = -1; s.GetTimeLeftNs() >= 0 {
		e.TimeLeft = control.Duration(s.GetTimeLeftNs())
	}
	if x := t.traced(s); x != nil {
		e.Tag = x
	}
	if err := g.may(s); err != nil {
		e.Denied, e.RetryAfter = status.Convert(err).Message(), outcome.Of(err).RetryAfter
	}
	t.step(e)
}
