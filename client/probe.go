package client

import (
	"context"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader/match"
)

// maxQuestions is how many questions are kept while a member's Probe stream opens. Further ones
// are not asked.
const maxQuestions = 256

// A prober keeps the Probe stream to one member, with two goroutines that end with the stream.
type prober struct {
	leaderless *leaderless
	lane       match.LaneID
	cancel     context.CancelFunc
	requests   chan *control.ProbeRequest
}

// proberOf returns the prober of a lane's member, and starts it if there is none. It returns nil if
// there is no such member or the gateway is closed. The caller holds the lock.
func (l *leaderless) proberOf(lane match.LaneID) *prober {
	if p := l.probers[lane]; p != nil {
		return p
	}
	m := l.g.members.Load().byName[l.agents[lane]]
	if m == nil || l.g.context.Err() != nil {
		return nil
	}
	p := &prober{
		leaderless: l, lane: lane, requests: make(chan *control.ProbeRequest, maxQuestions),
	}
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(l.g.context)
	l.probers[lane] = p
	l.g.running.Go(func() {
		defer p.cancel()
		err := p.run(ctx, l.g.config.Transport, m)
		l.handleLostLane(lane)
		l.g.log.Debug("the probe stream ended", "agent", m.GetName(), "error", err)
	})
	return p
}

func (p *prober) run(ctx context.Context, transport Transport, m *control.Member) error {
	stream, err := transport.Probe(ctx, m)
	if err != nil {
		return err
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		for {
			select {
			case <-ctx.Done():
				return
			case r := <-p.requests:
				if stream.Send(r) != nil {
					return // Recv says why
				}
			}
		}
	}()
	defer func() { p.cancel(); <-written }()
	for {
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		p.leaderless.handleAnswer(p.lane, answer)
	}
}

// send queues a question, and reports false if there is no room for it.
func (p *prober) send(r *control.ProbeRequest) bool {
	select {
	case p.requests <- r:
		return true
	default:
		return false
	}
}
