package members

import (
	"bytes"
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/gossip"
)

// loadInterval is how often an agent gossips its load.
const loadInterval = gossip.LoadInterval

// MostStrangers is how many members of gossip may be strangers, which have not described themselves
// to this agent. With more of them, gossip's messages about real members are slower to arrive; with
// fewer, a new agent takes longer to know a large fleet. Chosen: strangers are described in
// milliseconds, so a thousand agents pass through so many places in a second or two.
const MostStrangers = 128

// Run follows gossip's events and gossips this agent's description and load. It blocks until ctx
// has ended and gossip is closed. It may be called once.
func (ms *Members) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(ms.followGossip)
	running.Go(func() { ms.feed.run(ctx) })
	running.Go(func() { ms.tellLoad(ctx) })
	running.Go(func() { ms.tellSelf(ctx) })
	running.Wait()
}

// followGossip handles gossip's events until gossip is closed.
func (ms *Members) followGossip() {
	for e := range ms.config.Gossip.Events() {
		switch e.Kind {
		case gossip.Joined, gossip.Updated:
			ms.applyMeta(names.AgentName(e.Member.Name), e.Member.Meta, e.Kind == gossip.Joined)
		case gossip.Left:
			ms.removeLost(names.AgentName(e.Member.Name), false)
		case gossip.Failed:
			ms.removeLost(names.AgentName(e.Member.Name), true)
		case gossip.Refused:
			ms.noteRefused(e.Member)
		case gossip.Loaded:
			ms.hearLoad(names.AgentName(e.Load.From), e.Load.Data, e.Load.At)
		}
	}
}

// hearLoad handles a member's load as gossip received it, encoded, at the given time.
func (ms *Members) hearLoad(name names.AgentName, said []byte, at time.Time) {
	if l, ok := ms.heardLoad(name, said, at); ok {
		ms.loads.SetLoads([]*control.LaneLoad{l.Now(time.Now())})
	}
}

// tellLoad gossips this agent's load every loadInterval if it has changed, until ctx ends.
func (ms *Members) tellLoad(ctx context.Context) {
	ticker := time.NewTicker(loadInterval)
	defer ticker.Stop()
	var last []byte
	for {
		waiting, remaining := ms.self.Load()
		l := gossipedLoad{revision: ms.Own().Revision, waiting: uint64(waiting),
			remaining: remaining}
		if said := l.encode(); !bytes.Equal(said, last) {
			last = said
			ms.loads.SetLoads([]*control.LaneLoad{ms.heardOwnLoad(l).Now(time.Now())})
			if err := ms.config.Gossip.SetLoad(said); err != nil {
				ms.config.Log.Warn("cannot gossip this agent's load", "error", err)
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// SelfChanged makes tellSelf compute this agent's description again. It does not block.
func (ms *Members) SelfChanged() {
	ms.selfChanged.Send()
}

// tellSelf gossips this agent's description, with the next revision, whenever it has changed, until
// ctx ends.
func (ms *Members) tellSelf(ctx context.Context) {
	last := ms.Own()
	namesakes := map[string]bool{} // that it has warned of
	ready := ms.config.Gossip.Ready()
	var patience <-chan time.Time
	for {
		changed := ms.Changed()
		ms.joinWhenKnown(ready == nil)
		m, apart := ms.describeThisAgent()
		ms.tellApart(apart)
		ms.tellNamesakes(namesakes)
		m.Revision = last.Revision
		if !proto.Equal(m, last) {
			m.Revision++
			last = m
			ms.update(m)
			ms.self.TellMember(m)
			if err := ms.config.Gossip.SetMeta(MetaOf(m).Encode()); err != nil {
				ms.config.Log.Warn("cannot gossip this agent's description", "error", err)
			}
		}
		select {
		case <-ms.selfChanged:
		case <-changed: // what others hold decides on the families of this agent
		case <-ready:
			ready, patience = nil, time.After(joinPatience)
		case <-patience:
			ms.markJoined()
		case <-ctx.Done():
			return
		}
	}
}
