package fleet

import (
	"slices"
	"time"
)

// A host is an agent or a gateway to the network.
type host struct {
	dead     bool
	froze    time.Duration
	thaws    time.Duration // it stands still until then
	inbox    []func()      // what has come to it meanwhile
	cutSince time.Duration
	cutUntil time.Duration // it and all others do not reach each other until then
}

func newHost() host { return host{thaws: -warmUp, cutUntil: -warmUp} }

// A delay is one of messages that lasts until a time: those of one host, or all.
type delay struct {
	of     *host // nil: all
	until  time.Duration
	amount time.Duration
}

// jitter is d, give or take a half.
func (f *Fleet) jitter(d time.Duration) time.Duration {
	return d/2 + time.Duration(f.rng.Int64N(int64(d)))
}

func (f *Fleet) frozen(h *host) bool { return h.thaws > f.now }

func (a *agent) frozen() bool { return a.f.frozen(&a.host) }

// on has something done at a host after a time: later if it stands still then, never if it is dead.
func (f *Fleet) on(h *host, after time.Duration, what func()) {
	f.do(f.now+after, func() { f.deliver(h, what) })
}

func (f *Fleet) deliver(h *host, what func()) {
	switch {
	case h.dead:
	case f.frozen(h), len(h.inbox) > 0: // what came before comes first
		h.inbox = append(h.inbox, what)
	default:
		what()
	}
}

// way is how long a message takes.
func (f *Fleet) way(from, to *host) time.Duration {
	if from == to {
		return 0
	}
	way := f.cfg.RTT / 2
	f.delays = slices.DeleteFunc(f.delays, func(d delay) bool { return d.until <= f.now })
	for _, d := range f.delays {
		if d.of == nil || d.of == from || d.of == to {
			way += d.amount
		}
	}
	return way
}

// cut is until when two hosts do not reach each other, 0 if they do, and whether the connections
// between them break.
func (f *Fleet) cut(a, b *host) (until time.Duration, breaks bool) {
	for _, h := range []*host{a, b} {
		if a != b && h.cutUntil > f.now {
			until = max(until, h.cutUntil)
			breaks = breaks || h.cutUntil-h.cutSince > connectionTimeout
		}
	}
	return until, breaks
}

// send has something done at another host when a message is there. refused, unless it is nil, is
// done at the first if the other's process has ended, or the connection is known to be broken.
func (f *Fleet) send(from, to *host, what, refused func()) {
	way := f.way(from, to)
	at := f.now + way
	if until, breaks := f.cut(from, to); until > 0 {
		if breaks {
			if since := max(from.cutSince, to.cutSince); refused != nil &&
				f.now-since >= connectionTimeout {
				f.on(from, way, refused)
			}
			return
		}
		at += until - f.now // it is sent again until it gets through
	}
	key := [2]*host{from, to}
	if last, ok := f.lastAt[key]; ok {
		at = max(at, last)
	}
	f.lastAt[key] = at
	f.do(at, func() {
		if to.dead && refused != nil {
			f.on(from, way, refused)
		}
		f.deliver(to, what)
	})
}
