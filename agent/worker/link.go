package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
)

const (
	// mostUnsaid bounds the ends of attempts that wait to be told to a leader. One that
	// does not read so many is better served by a new link, which begins with what is held.
	mostUnsaid = 1 << 16
	// mostProfiles bounds the profiles that are kept of one who does not lead, or not yet.
	mostProfiles = 1 << 12
)

// A Stream is one end of a two-way stream of messages, over gRPC or in process. Send and Recv may
// be called concurrently with each other, but neither with itself. A message belongs to the
// receiver once it is sent.
type Stream[Out, In any] interface {
	Send(*Out) error
	// Recv returns io.EOF when the other end has ended the stream in order.
	Recv() (*In, error)
	// Context ends with the stream.
	Context() context.Context
}

// A followedLink is a Link as its member sees it: the stream by which the agent that opened
// it leads, or wants to.
type followedLink struct {
	from names.AgentName
	wake chan struct{} // of size 1: there is something to say

	mu       sync.Mutex
	unsaid   *control.WorkerMessage // nil: nothing
	overflow bool                   // of completions
	// What the other end has said, for when it is followed; nil: nothing new.
	news *control.LeaderMessage
}

// tellLeader tells the leader that this agent follows, on each of its links: one that it gave up
// for another may be served after that, and ends soon. w.mu is held.
func (w *Worker) tellLeader(add func(*control.WorkerMessage)) {
	leader := names.AgentName(w.config.Leading.Leadership().GetLeader())
	for _, k := range w.followed {
		if k.from == leader {
			k.say(add)
		}
	}
}

// say has something added to what the other end is told next. It does not block.
func (k *followedLink) say(add func(*control.WorkerMessage)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.unsaid == nil {
		k.unsaid = &control.WorkerMessage{}
	}
	if len(k.unsaid.Completed) >= mostUnsaid {
		k.overflow = true
		k.unsaid.Completed = nil
	}
	add(k.unsaid)
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// next takes what is to be said, nil if there is nothing.
func (k *followedLink) next() (*control.WorkerMessage, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.overflow {
		return nil, fmt.Errorf("the link has not taken %d messages", mostUnsaid)
	}
	m := k.unsaid
	k.unsaid = nil
	return m, nil
}

// told keeps what the other end says of prices, profiles, the way to lanes and what it proposes.
func (k *followedLink) told(m *control.LeaderMessage) {
	if len(m.Prices)+len(m.Profiles) == 0 && m.AheadNs <= 0 && m.Proposal == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.news == nil {
		k.news = &control.LeaderMessage{}
	}
	if len(m.Prices) > 0 {
		k.news.Prices = m.Prices
	}
	k.news.Profiles = append(k.news.Profiles, m.Profiles...)
	k.news.Profiles = k.news.Profiles[max(0, len(k.news.Profiles)-mostProfiles):]
	if m.AheadNs > 0 {
		k.news.AheadNs = m.AheadNs
	}
	if m.Proposal != nil {
		k.news.Proposal = m.Proposal
	}
}

// take returns what was said and not yet taken, nil for nothing.
func (k *followedLink) take() *control.LeaderMessage {
	k.mu.Lock()
	defer k.mu.Unlock()
	news := k.news
	k.news = nil
	return news
}

// Link serves a Link: it greets, passes on what the election says, obeys if the other end
// leads, and tells it what becomes of its attempts.
func (w *Worker) Link(leader Stream[control.WorkerMessage, control.LeaderMessage]) error {
	first, err := leader.Recv()
	if err != nil {
		return ended(err)
	}
	if first.From == "" {
		return outcome.Invalid("the first message of a link names nobody")
	}
	k := &followedLink{from: names.AgentName(first.From), wake: make(chan struct{}, 1)}
	unlinked := w.config.Leading.Linked(k.from, func(e *control.Election) {
		k.say(func(m *control.WorkerMessage) { m.Election = append(m.Election, e) })
	})
	defer unlinked(false)
	// A leader's first message says that it leads. Who follows it before greeting it
	// tells it all that ends after the greeting.
	for _, e := range first.Election {
		w.config.Leading.Elect(e)
	}
	w.mu.Lock()
	greeting := &control.WorkerMessage{Member: w.config.Own(), RemainingNs: w.remaining()}
	for held := range w.held {
		greeting.Held = append(greeting.Held, held)
	}
	w.followed = append(w.followed, k) // from here on attempts that end are told after the greeting
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.followed = slices.DeleteFunc(w.followed, func(o *followedLink) bool { return o == k })
	}()
	if err := leader.Send(greeting); err != nil {
		return ended(err)
	}
	first.Election = nil

	heard := make(chan error, 1)
	go func() {
		m, err := first, error(nil)
		for ; err == nil; m, err = leader.Recv() {
			k.told(m)
			for _, e := range m.Election {
				w.config.Leading.Elect(e)
			}
			w.obey(k)
		}
		heard <- err
	}()
	for {
		news := w.config.Leading.Changed()
		w.obey(k)
		m, err := k.next()
		if err != nil {
			return err
		}
		if m != nil {
			if err := leader.Send(m); err != nil {
				return ended(err)
			}
			continue
		}
		select {
		case <-k.wake:
		case <-news:
		case err := <-heard:
			if !errors.Is(err, io.EOF) {
				return err
			}
			unlinked(true)
			m, err := k.next() // what was said until now
			if m != nil {
				err = leader.Send(m)
			}
			return err
		case <-leader.Context().Done():
			return ended(leader.Context().Err())
		}
	}
}

// ended is the error of a stream that ended with err, nil if in order.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// obey takes what k's other end says of prices, profiles and the way to lanes if it is the leader
// that this agent follows.
func (w *Worker) obey(k *followedLink) {
	if w.config.Leading.Leadership().GetLeader() == string(k.from) {
		if news := k.take(); news != nil {
			w.config.ToldByLeader(news)
		}
	}
}

// TellMember tells all who lead, or may come to, what this agent is now.
func (w *Worker) TellMember(m *control.Member) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, k := range w.followed {
		k.say(func(w *control.WorkerMessage) { w.Member = m })
	}
}
