package fleet

import (
	"slices"
	"time"
)

// A host is an agent or a gateway, as the network sees it.
type host struct {
	dead     bool
	distance time.Duration // how much longer messages from and to it take
	froze    time.Duration
	thaws    time.Duration // it is frozen until then
	inbox    []func()      // what has arrived while it was frozen
	cutSince time.Duration
	cutUntil time.Duration // it and the other hosts cannot reach each other until then
}

func newHost() host { return host{thaws: -warmUp, cutUntil: -warmUp} }

// A delay lengthens the way of messages until a time: those of one host, or all.
type delay struct {
	of     *host // nil: all hosts
	until  time.Duration
	amount time.Duration
}

// jitter is a random duration between d/2 and 3d/2.
func (f *Fleet) jitter(d time.Duration) time.Duration {
	return d/2 + time.Duration(f.rng.Int64N(int64(d)))
}

func (f *Fleet) frozen(h *host) bool { return h.thaws > f.now }

func (a *agent) frozen() bool { return a.f.frozen(&a.host) }

// on calls what at a host after a time; later if the host is frozen then, never if it is dead.
func (f *Fleet) on(h *host, after time.Duration, what func()) {
	f.do(f.now+after, func() { f.deliver(h, what) })
}

func (f *Fleet) deliver(h *host, what func()) {
	switch {
	case h.dead:
	case f.frozen(h), len(h.inbox) > 0: // keep the order of arrival
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
	way := f.cfg.RTT/2 + from.distance + to.distance
	f.delays = slices.DeleteFunc(f.delays, func(d delay) bool { return d.until <= f.now })
	for _, d := range f.delays {
		if d.of == nil || d.of == from || d.of == to {
			way += d.amount
		}
	}
	return way
}

// cut returns the time until which two hosts cannot reach each other, 0 if they can, and whether
// the connections between them break before.
func (f *Fleet) cut(a, b *host) (until time.Duration, breaks bool) {
	for _, h := range []*host{a, b} {
		if a != b && h.cutUntil > f.now {
			until = max(until, h.cutUntil)
			breaks = breaks || h.cutUntil-h.cutSince > connectionTimeout
		}
	}
	return until, breaks
}

// send calls what at the host to when a message from the host from has arrived there. If to's
// process has ended, or the connection is known to be broken, refused, unless it is nil, is called
// at from.
func (f *Fleet) send(from, to *host, what, refused func()) {
	f.sendAfter(0, from, to, what, refused)
}

// drawJitter draws how much longer the way of a query takes than that of other messages.
func (f *Fleet) drawJitter() time.Duration {
	if f.cfg.Jitter == 0 {
		return 0
	}
	return time.Duration(f.rng.ExpFloat64() * float64(f.cfg.Jitter))
}

// sendAfter is send of a message whose way takes longer by jitter.
func (f *Fleet) sendAfter(jitter time.Duration, from, to *host, what, refused func()) {
	way := f.way(from, to) + jitter
	at := f.now + way
	if until, breaks := f.cut(from, to); until > 0 {
		if breaks {
			if since := max(from.cutSince, to.cutSince); refused != nil &&
				f.now-since >= connectionTimeout {
				f.on(from, way, refused)
			}
			return
		}
		at += until - f.now // TCP sends it again until it gets through
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
