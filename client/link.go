package client

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/wakeup"
	"github.com/muster-serve/muster/client/queries"
	"github.com/muster-serve/muster/leader/match"
)

// maxDirect is the most unacknowledged submits with which a caller sends its own submit. With more
// of them the stream's Send could block, which gRPC does at 64 KiB that are not sent. Chosen: so
// many submits of about 1 KiB take half of that.
const maxDirect = 32

// A link is the gateway's stream to one leader.
type link struct {
	stream  MatchStream
	kicked  wakeup.Signal
	sending bool // a goroutine sends; guarded by the gateway's lock
}

// wakeSender makes the link's own goroutine send the pending messages.
func (l *link) wakeSender() {
	l.kicked.Send()
}

// noteLeadership takes news of who leads. The caller holds the lock.
func (g *Gateway) noteLeadership(l *control.Leadership) {
	if l != nil &&
		g.queries.Learn(queries.Leadership{
			Epoch: l.GetEpoch(), Leader: names.AgentName(l.GetLeader()),
			Successor: names.AgentName(l.GetSuccessor()),
		}) {
		g.announceNews()
	}
}

// announceNews tells follow that there is news.
func (g *Gateway) announceNews() {
	g.news.Send()
}

// followLeader keeps a link to the leader until the gateway closes.
func (g *Gateway) followLeader() {
	for g.context.Err() == nil {
		ctx, hangUp := context.WithCancel(g.context)
		known := g.members.Load().byName
		g.mu.Lock()
		now := g.timeNow()
		name, wait := g.queries.Try(now,
			func(name names.AgentName) bool { return known[name] != nil })
		if g.hangUp = hangUp; name != "" {
			g.late.Reset(g.queries.Patience(now))
		}
		g.carryOut()
		unheard := g.queries.Unheard()
		g.mu.Unlock()
		if unheard {
			g.leaderless.wakeWatch()
		}
		if name != "" {
			err := g.serve(ctx, hangUp, known[name])
			g.log.Debug("the link to the leader ended", "leader", name, "error", err)
		} else {
			g.pauseFor(addJitter(wait))
		}
		hangUp()
	}
}

// pauseFor waits for the given time, or until there is news.
func (g *Gateway) pauseFor(wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-g.context.Done():
	case <-g.news:
	case <-timer.C:
	}
}

// endSilentStream ends the stream to a leader, or to a member tried as the leader, that was silent
// for too long.
func (g *Gateway) endSilentStream() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if left := g.queries.Patience(g.timeNow()); left > 0 {
		g.late.Reset(left)
	} else {
		g.hangUp()
	}
}

// serve opens a stream to a member that may lead, and reads from it until it breaks or hangUp is
// called.
func (g *Gateway) serve(ctx context.Context, hangUp func(), to *control.Member) error {
	var written chan struct{}
	defer func() {
		g.late.Stop()
		g.mu.Lock()
		g.link = nil
		g.queries.Tried(g.timeNow())
		g.carryOut()
		g.mu.Unlock()
		g.leaderless.wakeWatch()
		hangUp()
		if written != nil {
			<-written
		}
	}()
	stream, err := g.config.Transport.Match(ctx, to)
	if err != nil {
		return err
	}
	hello := &control.GatewayHello{
		Gateway: g.config.ID, Protocol: control.Spoken.Oldest,
		NewestProtocol: control.Spoken.Newest, Agent: string(g.config.Agent),
	}
	if err := stream.Send(&control.GatewayMessage{Hello: hello}); err != nil {
		_, err = stream.Recv() // Recv returns why the stream broke
		return err
	}
	l := &link{stream: stream, kicked: wakeup.New()}
	written = make(chan struct{})
	go func() {
		defer close(written)
		g.write(ctx, l)
	}()
	for heard := false; ; {
		m, err := stream.Recv()
		if err != nil {
			g.mu.Lock()
			for _, d := range status.Convert(err).Details() {
				if leadership, ok := d.(*control.Leadership); ok {
					g.noteLeadership(leadership)
				}
			}
			g.carryOut()
			g.mu.Unlock()
			return err
		}
		if !heard && (m.GetLeadership() == nil || m.GetLeadership().GetLeader() == to.GetName()) {
			heard = true
			g.log.Debug("the gateway has a leader", "leader", to.GetName(), "epoch",
				m.GetLeadership().GetEpoch())
			g.mu.Lock()
			g.link = l
			if g.hasNews() {
				g.startWatch()
			}
			g.queries.Opened(g.timeNow())
			g.led, _ = g.queries.Linked()
			g.leaveCritical(false)
		}
		g.handleMessage(m)
	}
}

// handleMessage carries out a message from the leader.
func (g *Gateway) handleMessage(m *control.MatchMessage) {
	if len(m.GetProfiles()) > 0 || len(m.GetPrices()) > 0 {
		g.leaderless.applyReports(m.GetPrices(), m.GetProfiles())
	}
	g.mu.Lock()
	if m.GetLeadership() != nil {
		g.noteLeadership(m.GetLeadership())
	}
	g.queries.HandleLeaderMessage(m.GetReceived(), g.timeNow())
	for _, o := range m.GetOfferAgain() {
		if q := g.queries.OfferAgain(o.GetSequence(), o.GetAttempt()); q != nil {
			q.Tag.(*gatewayQuery).trace.offeredAgain(o)
		}
	}
	for _, s := range m.GetSplit() {
		g.split(s)
	}
	for _, a := range m.GetAssign() {
		g.queries.HandleAssignment(queries.Assign{
			Sequence: a.GetSequence(), Attempt: a.GetAttempt(),
			Agent: names.AgentName(a.GetAgent()),
			Lane:  a.GetLane(),
			Took:  time.Duration(a.GetWaitNs() + a.GetExecutionNs()), Waited: waitedOf(a),
			Merge: a.GetMerge(), Merged: a.GetMerged(), ChosenVariant: toChosenVariant(a),
		})
	}
	for _, r := range m.GetReject() {
		g.queries.Reject(r.GetSequence(), rejectionError(r))
	}
	// Do not send from here: if this goroutine stopped reading, the leader would block.
	g.leaveCritical(false)
}

// waitedOf is [queries.Assign]'s Waited.
func waitedOf(a *control.Assign) time.Duration {
	if a.WaitedNs == nil {
		return -1
	}
	return control.Duration(a.GetWaitedNs())
}

// toChosenVariant is the variant that an assignment names, empty for none.
func toChosenVariant(a *control.Assign) queries.ChosenVariant {
	if a.GetModel() == "" {
		return queries.ChosenVariant{}
	}
	return queries.ChosenVariant{
		Model: names.NewModelKey(a.GetModel(), a.GetVersion()), Accuracy: a.GetAccuracy(),
	}
}

// rejectionError is the error of a query that the leader has rejected.
func rejectionError(r *control.Reject) error {
	code, reason, wait := codes.ResourceExhausted, "overloaded", time.Duration(r.GetRetryAfterNs())
	switch r.GetReason() {
	case match.UnknownModel.String(), match.LeastAccuracy.String():
		if code, reason = codes.NotFound, "not_found"; r.GetLoadable() {
			code = codes.FailedPrecondition
		}
	case match.BadBatchSize.String():
		code, reason = codes.InvalidArgument, "invalid"
	case match.DeadlinePassed.String():
		code, reason = codes.DeadlineExceeded, "deadline"
	case match.TooManyAttempts.String():
		code, reason = codes.Unavailable, "unavailable"
	case match.Late.String():
		reason = "late"
	case match.Limit.String():
		reason = "limit"
	}
	message := r.GetMessage()
	if message == "" {
		message = "rejected by the leader: " + r.GetReason()
	}
	if code == codes.ResourceExhausted {
		wait = max(wait, time.Millisecond)
	} else {
		wait = 0
	}
	return oip.Explain(status.New(code, message), reason, wait).Err()
}

// nextMessage takes the next message for the leader, nil if there is none. The caller holds the
// lock.
func (g *Gateway) nextMessage() *control.GatewayMessage {
	from, ok := g.queries.Message()
	if !ok && !g.hasNews() {
		return nil
	}
	m := &control.GatewayMessage{Cancel: slices.Clone(from.Cancel), Compared: g.compared}
	g.compared = nil
	for f, n := range g.failed {
		if len(m.Failed) == maxTold {
			break
		}
		m.Failed = append(m.Failed, &control.Failed{
			Model: f.Model, Version: f.Version, Reason: f.Reason, Count: n,
			BatchSize: proto.Uint32(uint32(f.TrialSize)),
		})
		delete(g.failed, f)
	}
	g.nextMissed(m)
	if len(from.Submit) > 0 {
		m.Submit = make([]*control.Submit, len(from.Submit))
	}
	for i := range from.Submit {
		s := &from.Submit[i]
		q := s.Query.Tag.(*gatewayQuery)
		m.Submit[i] = &control.Submit{
			Sequence: q.Sequence, Model: q.model, Version: q.version, BatchSize: q.batch,
			Bytes:    q.bytes,
			WaitedNs: int64(s.Waited), TimeLeftNs: int64(s.TimeLeft), Attempts: s.Attempts,
			Agent: string(s.Agent), Lane: s.Lane, Splits: !q.unsplittable, LeastAccuracy: q.least,
			LoadShare: q.loadShare, Users: q.users, Values: q.values,
		}
		q.trace.noteSubmit(m.Submit[i])
	}
	for _, a := range from.Unused {
		m.Unused = append(m.Unused, &control.Assign{
			Sequence: a.Sequence, Attempt: a.Attempt, Agent: string(a.Agent), Lane: a.Lane,
		})
	}
	return m
}

// write sends the messages to the leader that callers do not send themselves.
func (g *Gateway) write(ctx context.Context, l *link) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.kicked:
		}
		for {
			g.mu.Lock()
			if g.link != l || l.sending || !g.queries.HasMessage() && !g.hasNews() {
				g.mu.Unlock()
				break
			}
			m := g.nextMessage()
			l.sending = true
			g.mu.Unlock()
			err := l.stream.Send(m)
			g.mu.Lock()
			l.sending = false
			g.mu.Unlock()
			if err != nil { // Recv returns the reason
				break
			}
		}
	}
}
