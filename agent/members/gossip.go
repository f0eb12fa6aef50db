package members

import (
	"bytes"
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/gossip"
)

// loadInterval is how often an agent tells how busy it is.
const loadInterval = gossip.LoadInterval

// MostStrangers bounds the members of gossip that have not said what they are. The more there
// are, the longer word takes among the others; the fewer, the longer a new agent takes to
// know a large fleet.
const MostStrangers = 128

// Run keeps the members as gossip says, and tells the fleet of this agent, until ctx ends and
// gossip is closed.
func (ms *Members) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(ms.follow)
	running.Go(func() { ms.feed.run(ctx) })
	running.Go(func() { ms.tellLoad(ctx) })
	running.Go(func() { ms.tellSelf(ctx) })
	running.Wait()
}

// follow keeps the members as gossip says, until gossip ends.
func (ms *Members) follow() {
	for e := range ms.config.Gossip.Events() {
		switch e.Kind {
		case gossip.Joined, gossip.Updated:
			ms.heard(names.AgentName(e.Member.Name), e.Member.Meta, e.Kind == gossip.Joined)
		case gossip.Left:
			ms.lost(names.AgentName(e.Member.Name), false)
		case gossip.Failed:
			ms.lost(names.AgentName(e.Member.Name), true)
		case gossip.Refused:
			ms.refused(e.Member)
		case gossip.Loaded:
			ms.hearLoad(names.AgentName(e.Load.From), e.Load.Data, e.Load.At)
		}
	}
}

// hearLoad takes what gossip says of how busy a member is.
func (ms *Members) hearLoad(name names.AgentName, said []byte, at time.Time) {
	if l, ok := ms.heardLoad(name, said, at); ok {
		ms.config.Loaded(l.Now(time.Now()))
	}
}

// tellLoad tells how busy the agent is, as often as gossip takes it, until ctx ends.
func (ms *Members) tellLoad(ctx context.Context) {
	ticker := time.NewTicker(loadInterval)
	defer ticker.Stop()
	var last []byte
	for {
		waiting, remaining := ms.config.Load()
		l := load{revision: ms.Own().Revision, waiting: uint64(waiting), remaining: remaining}
		if said := l.encode(); !bytes.Equal(said, last) {
			last = said
			ms.config.Loaded(ms.heardOwnLoad(l).Now(time.Now()))
			if err := ms.config.Gossip.SetLoad(said); err != nil {
				ms.config.Log.Warn("tell how busy this agent is", "error", err)
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// SelfChanged notes that this agent is or holds something else than before.
func (ms *Members) SelfChanged() {
	select {
	case ms.selfChanged <- struct{}{}:
	default:
	}
}

// tellSelf tells the fleet what the agent is and holds, whenever that changes,
// until ctx ends.
func (ms *Members) tellSelf(ctx context.Context) {
	last := ms.Own()
	for {
		m := ms.config.Describe()
		m.Revision = last.Revision
		if !proto.Equal(m, last) {
			m.Revision++
			last = m
			ms.update(m)
			ms.config.Described(m)
			if err := ms.config.Gossip.SetMeta(MetaOf(m).Encode()); err != nil {
				ms.config.Log.Warn("tell what this agent is", "error", err)
			}
		}
		select {
		case <-ms.selfChanged:
		case <-ctx.Done():
			return
		}
	}
}
