package client

import (
	"context"
	"time"

	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader/election"
)

const (
	// mostDirect is how many submits may be unacknowledged for a caller to send
	// its own: beyond it a stream could block.
	mostDirect = 32
	// mostTogether is how many submits, cancellations and assignments one message has: an agent takes
	// 64 KiB, and the longest of them has about 1 KiB.
	mostTogether = 48
	// firstRetry and lastRetry bound how long the gateway waits before it tries
	// again to reach a leader.
	firstRetry = 5 * time.Millisecond
	lastRetry  = 25 * time.Millisecond
	// firstAnswer is how long one who may lead has to say so.
	firstAnswer = 250 * time.Millisecond
	// lostSilence is how long a leader may say nothing before another is looked for: as long as it takes
	// the agents to elect one.
	lostSilence = time.Second
)

// A link is the stream to one leader.
type link struct {
	leader  string
	stream  MatchStream
	kicked  chan struct{} // has room for one
	sending bool          // somebody sends; by the gateway's lock
}

// kick has the link's own goroutine send what there is.
func (l *link) kick() {
	select {
	case l.kicked <- struct{}{}:
	default:
	}
}

// learn takes news of who leads. The lock is held.
func (g *Gateway) learn(l *control.Leadership) {
	known := g.leadership
	switch {
	case l == nil, l.GetEpoch() == known.GetEpoch() && l.GetLeader() == "" && known.GetLeader() != "":
		return
	case election.Beyond(l.GetEpoch(), known.GetEpoch()) && g.link != nil: // a lie; see package election
		return
	case l.GetEpoch() < known.GetEpoch() && !(l.GetEpoch() > 0 && election.Beyond(known.GetEpoch(), l.GetEpoch())):
		return
	}
	g.leadership = l
	if l.GetLeader() != known.GetLeader() || l.GetEpoch() != known.GetEpoch() {
		g.announce()
	}
}

// announce wakes those who wait for news. The lock is held.
func (g *Gateway) announce() {
	close(g.news)
	g.news = make(chan struct{})
}

// follow keeps the link to whoever leads: to the leader as far as known, and if
// that one is lost to its successor, at once; then to one of the two again and again.
func (g *Gateway) follow() {
	lost, retry := "", firstRetry
	for g.context.Err() == nil {
		g.mu.Lock()
		leadership, news := g.leadership, g.news
		candidates := candidates(leadership, lost)
		g.queries.closed(len(candidates) > 0, time.Now())
		unheard := g.queries.unheard()
		g.mu.Unlock()
		if unheard {
			g.leaderless.kick()
		}

		changed := false
		for _, name := range candidates {
			member := g.members.Load().byName[name]
			if member == nil {
				continue
			}
			began := time.Now()
			heard, err := g.serve(member)
			if g.context.Err() != nil {
				return
			}
			g.log.Debug("link to the leader has ended", "leader", name, "error", err)
			if heard {
				lost, retry = name, firstRetry
				changed = time.Since(began) > firstRetry
				break
			}
			g.mu.Lock()
			changed = g.leadership.GetLeader() != leadership.GetLeader() || g.leadership.GetEpoch() != leadership.GetEpoch()
			g.mu.Unlock()
			if changed {
				break
			}
		}
		if changed {
			continue
		}
		wait := time.NewTimer(jitter(retry))
		select {
		case <-g.context.Done():
		case <-news:
		case <-wait.C:
			retry = min(2*retry, lastRetry)
		}
		wait.Stop()
	}
}

// candidates are those who may lead, the likeliest first: the leader that was lost
// last comes last.
func candidates(l *control.Leadership, lost string) []string {
	leader, successor := l.GetLeader(), l.GetSuccessor()
	var names []string
	if leader != "" && leader != lost {
		names = append(names, leader)
	}
	if successor != "" && successor != leader {
		names = append(names, successor)
	}
	if leader != "" && leader == lost {
		names = append(names, leader)
	}
	return names
}

// serve keeps a stream to a leader until it breaks, or somebody else leads. It
// reports whether the member has answered as a leader.
func (g *Gateway) serve(to *control.Member) (heard bool, err error) {
	ctx, cancel := context.WithCancel(g.context)
	defer cancel()
	// The stream ends when another leads.
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		g.untilOther(ctx, to.GetName())
		cancel()
	}()
	defer func() { cancel(); <-watched }()

	// Who does not answer must not keep the gateway from trying another.
	late := time.AfterFunc(firstAnswer, cancel)
	defer late.Stop()
	stream, err := g.config.Transport.Match(ctx, to)
	if err != nil {
		return false, err
	}
	hello := &control.GatewayHello{
		Gateway: g.config.ID, Protocol: control.Spoken.Oldest, NewestProtocol: control.Spoken.Newest, Agent: g.config.Agent,
	}
	if err := stream.Send(&control.GatewayMessage{Hello: hello}); err != nil {
		_, err = stream.Recv() // says why
		return false, err
	}
	l := &link{leader: to.GetName(), stream: stream, kicked: make(chan struct{}, 1)}
	written := make(chan struct{})
	go func() {
		defer close(written)
		g.write(ctx, l)
	}()
	defer func() { cancel(); <-written }()
	defer func() {
		g.mu.Lock()
		g.link = nil
		g.queries.closed(true, time.Now())
		g.mu.Unlock()
		g.leaderless.kick()
	}()

	for {
		m, err := stream.Recv()
		if err != nil {
			g.mu.Lock()
			for _, d := range status.Convert(err).Details() {
				if leadership, ok := d.(*control.Leadership); ok {
					g.learn(leadership)
				}
			}
			g.mu.Unlock()
			return heard, err
		}
		late.Reset(lostSilence)
		if !heard {
			heard = m.GetLeadership() == nil || m.GetLeadership().GetLeader() == to.GetName()
			if heard {
				g.log.Debug("the gateway has a leader", "leader", to.GetName(), "epoch", m.GetLeadership().GetEpoch())
				g.mu.Lock()
				g.link = l
				g.queries.opened(time.Now())
				g.leave(false)
			}
		}
		g.take(m)
	}
}

// untilOther returns when somebody else than the named member is known to lead,
// or ctx ends. Whoever is to lead next is tried before it is known to.
func (g *Gateway) untilOther(ctx context.Context, name string) {
	g.mu.Lock()
	epoch := g.leadership.GetEpoch()
	g.mu.Unlock()
	for {
		g.mu.Lock()
		l, news := g.leadership, g.news
		g.mu.Unlock()
		if l.GetEpoch() != epoch && l.GetLeader() != name {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-news:
		}
	}
}

// take carries out what the leader says.
func (g *Gateway) take(m *control.MatchMessage) {
	if len(m.GetProfiles()) > 0 || len(m.GetPrices()) > 0 {
		g.leaderless.told(m.GetPrices(), m.GetProfiles())
	}
	g.mu.Lock()
	if m.GetLeadership() != nil {
		g.learn(m.GetLeadership())
	}
	g.queries.heard(m.GetReceived(), time.Now())
	for _, o := range m.GetOfferAgain() {
		g.queries.offerAgain(o)
	}
	for _, a := range m.GetAssign() {
		g.queries.assign(a)
	}
	for _, r := range m.GetReject() {
		g.queries.reject(r)
	}
	// Not directly: this goroutine must go on reading for the leader to go on.
	g.leave(false)
}

// rest leaves in m what may go together, and returns the rest; nil if there is none. Of what m
// cancels nothing goes before what it submits, nor what is unused before either, as the leader reads
// them.
func rest(m *control.GatewayMessage) *control.GatewayMessage {
	if len(m.Submit)+len(m.Cancel)+len(m.Unused) <= mostTogether {
		return nil
	}
	room, later := mostTogether, &control.GatewayMessage{}
	m.Submit, later.Submit = cut(m.Submit, &room)
	m.Cancel, later.Cancel = cut(m.Cancel, &room)
	m.Unused, later.Unused = cut(m.Unused, &room)
	return later
}

// cut divides all after as many as there is room for.
func cut[T any](all []T, room *int) (now, later []T) {
	n := min(len(all), *room)
	*room -= n
	return all[:n:n], all[n:]
}

// write sends what callers do not send themselves.
func (g *Gateway) write(ctx context.Context, l *link) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.kicked:
		}
		for {
			g.mu.Lock()
			m := g.queries.message
			if g.link != l || l.sending || m == nil {
				g.mu.Unlock()
				break
			}
			l.sending, g.queries.message = true, rest(m)
			g.queries.stats.SubmitMessages++
			g.mu.Unlock()
			err := l.stream.Send(m)
			g.mu.Lock()
			l.sending = false
			g.mu.Unlock()
			if err != nil { // Recv says why
				break
			}
		}
	}
}
