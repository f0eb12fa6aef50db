package worker

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/wakeup"
)

const (
	// maxUnsaid is how many ends of attempts may wait to be sent on a link. Beyond it the link
	// ends: the leader opens another, which begins with the attempts that the lanes hold.
	maxUnsaid = 1 << 16
	// maxProfiles is how many profiles are kept from an agent that this agent does not follow
	// (yet).
	maxProfiles = 1 << 12
	// maxReleases is likewise how many releases.
	maxReleases = 1 << 13
)

// A followedLink is the member's end of a Link: the stream of an agent that leads, or stands for
// election.
type followedLink struct {
	from names.AgentName
	wake wakeup.Signal // unsaid has been added to

	mu       sync.Mutex
	unsaid   *control.WorkerMessage // the next message to send; nil: nothing
	overflow bool                   // there were more than maxUnsaid ends of attempts
	// The prices, profiles, dispatch-ahead time, plan, layout and placement from the other end,
	// until this agent follows it and takes them, and its orders; nil: nothing new.
	news *control.LeaderMessage
}

// tellLeader adds to the next message to the leader that this agent follows, on each of its links:
// a link that another has replaced may still be read for a moment. w.mu is held.
func (w *Worker) tellLeader(add func(*control.WorkerMessage)) {
	leader := names.AgentName(w.config.Leading.Leadership().GetLeader())
	for _, k := range w.followed {
		if k.from == leader {
			k.addToMessage(add)
		}
	}
}

// addToMessage calls add with the next message to the other end, and wakes its sender. It does not
// block.
func (k *followedLink) addToMessage(add func(*control.WorkerMessage)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.unsaid == nil {
		k.unsaid = &control.WorkerMessage{}
	}
	if len(k.unsaid.Completed) >= maxUnsaid {
		k.overflow = true
		k.unsaid.Completed = nil
	}
	add(k.unsaid)
	k.wake.Send()
}

// next removes and returns the next message to send; nil if there is none. It returns an error
// after an overflow.
func (k *followedLink) next() (*control.WorkerMessage, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.overflow {
		return nil, fmt.Errorf("the link has not taken %d messages", maxUnsaid)
	}
	m := k.unsaid
	k.unsaid = nil
	return m, nil
}

// storeMessage stores what a message of the other end tells this agent as its leader.
func (k *followedLink) storeMessage(m *control.LeaderMessage) {
	if len(m.Prices)+len(m.Profiles) == 0 && m.AheadNs <= 0 && m.Proposal == nil && m.Plan == nil &&
		m.Layout == nil && m.Placement == nil && m.Fleet == nil && m.Lanes == nil &&
		len(m.Releases) == 0 {
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
	k.news.Profiles = k.news.Profiles[max(0, len(k.news.Profiles)-maxProfiles):]
	if m.AheadNs > 0 {
		k.news.AheadNs = m.AheadNs
	}
	if m.Plan != nil {
		k.news.Plan = m.Plan
	}
	if m.Proposal != nil {
		k.news.Proposal = m.Proposal
	}
	if m.Layout != nil {
		k.news.Layout = m.Layout
	}
	if m.Lanes != nil {
		k.news.Lanes = m.Lanes
	}
	if m.Placement != nil {
		k.news.Placement = m.Placement
	}
	if m.Fleet != nil {
		k.news.Fleet = m.Fleet
	}
	// Many releases come in several messages; of two of a model the newer one counts.
	k.news.Releases = append(k.news.Releases, m.Releases...)
	k.news.Releases = k.news.Releases[max(0, len(k.news.Releases)-maxReleases):]
}

// takeMessage returns, and clears, what told has stored since the last call; nil for nothing.
func (k *followedLink) takeMessage() *control.LeaderMessage {
	k.mu.Lock()
	defer k.mu.Unlock()
	news := k.news
	k.news = nil
	return news
}

// Link serves the member's end of a Link stream, and blocks until it ends. It greets with this
// agent's description and the attempts that its lanes hold. It passes election messages on to
// elections, follows the other end's prices and profiles while that is this agent's leader, and
// tells it the end of each attempt. The result is nil if the stream ended in order.
func (w *Worker) Link(leader control.Stream[control.WorkerMessage, control.LeaderMessage],
	elections control.Elections) error {
	first, err := leader.Recv()
	if err != nil {
		return streamError(err)
	}
	if first.From == "" {
		return outcome.Invalid("the first message of a link names nobody")
	}
	k := &followedLink{from: names.AgentName(first.From), wake: wakeup.New()}
	unlinked := elections.Linked(k.from, func(e *control.Election) {
		k.addToMessage(func(m *control.WorkerMessage) { m.Election = append(m.Election, e) })
	})
	defer unlinked(false)
	// The first message of a leader holds its election claim. This agent accepts the claim before
	// it greets, so that the leader learns of every attempt that ends after the greeting.
	for _, e := range first.Election {
		elections.Elect(e)
	}
	state := w.LayoutState()
	w.mu.Lock()
	greeting := &control.WorkerMessage{
		Member: w.config.Fleet.Own(), RemainingNs: w.remainingByLane(), Layout: state,
	}
	for _, l := range w.listeners {
		l.Greet(greeting)
	}
	for held := range w.held {
		greeting.Held = append(greeting.Held, held)
	}
	// under the same lock: an attempt is in the greeting, or its end is sent after it
	w.followed = append(w.followed, k)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.followed = slices.DeleteFunc(w.followed, func(o *followedLink) bool { return o == k })
	}()
	if err := leader.Send(greeting); err != nil {
		return streamError(err)
	}
	first.Election = nil

	heard := make(chan error, 1)
	go func() {
		m, err := first, error(nil)
		for ; err == nil; m, err = leader.Recv() {
			k.storeMessage(m)
			for _, e := range m.Election {
				elections.Elect(e)
			}
			w.applyMessages(k)
		}
		heard <- err
	}()
	for {
		news := w.config.Leading.Changed()
		w.applyMessages(k)
		m, err := k.next()
		if err != nil {
			return err
		}
		if m != nil {
			if err := leader.Send(m); err != nil {
				return streamError(err)
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
			m, err := k.next() // send the last pending message
			if m != nil {
				err = leader.Send(m)
			}
			return err
		case <-leader.Context().Done():
			return streamError(leader.Context().Err())
		}
	}
}

// streamError returns the error of a stream whose Recv or Send returned err: nil for io.EOF, the
// end in order.
func streamError(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// applyMessages applies the messages from k's other end if that is the leader that this agent
// follows.
func (w *Worker) applyMessages(k *followedLink) {
	if w.config.Leading.Leadership().GetLeader() == string(k.from) {
		if news := k.takeMessage(); news != nil {
			w.config.Fleet.ToldByLeader(news)
			w.estimates.adoptLaws(w.config.Fleet.Own(), news.GetProfiles())
			for _, l := range w.listeners {
				if l.Hear(news) {
					k.addToMessage(l.Greet)
				}
			}
			if w.layouts != nil && news.Layout != nil {
				w.layouts.takeOrder(news.Layout)
			}
			if w.layouts != nil && news.Lanes != nil {
				w.layouts.takeLanesOrder(k.from, news.Lanes)
			}
		}
	}
}

// LayoutState is what this agent holds and could hold; nil if no leader says what it holds.
func (w *Worker) LayoutState() *control.LayoutState {
	if w.layouts == nil {
		return nil
	}
	return w.layouts.stateMessage()
}

// ByLeader returns an error if a leader says what this agent holds, so that nobody else may load or
// unload a model.
func (w *Worker) ByLeader() error {
	if w.layouts == nil || w.layouts.isFixed() {
		return nil
	}
	return fmt.Errorf("%w: the leader says what this agent holds (--model-control leader); "+
		"`muster place pin` decides it for good", outcome.ErrLoad)
}

// TellMember sends this agent's new description on all links, also to agents that only stand for
// election. It does not block. The caller must not change m afterwards.
func (w *Worker) TellMember(m *control.Member) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, k := range w.followed {
		k.addToMessage(func(w *control.WorkerMessage) { w.Member = m })
	}
}
