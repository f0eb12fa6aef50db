package fleet

import (
	"slices"
	"time"
)

// A endpoint is an agent or a gateway, as the network sees it.
type endpoint struct {
	dead     bool
	distance time.Duration // how much longer messages from and to it take
	froze    time.Duration
	thaws    time.Duration // it is frozen until then
	inbox    []func()      // messages that have arrived while the agent was frozen
	cuts     [directions]outage
}

// A direction is that of the messages which a cut keeps from getting through: to the host, from it.
type direction int

const (
	into direction = iota
	outOf
	directions
)

// An outage is a time in which messages do not get through.
type outage struct{ since, until time.Duration }

// lastsUntilBroken reports whether it lasts until connections break.
func (o outage) lastsUntilBroken() bool { return o.until-o.since > connectionTimeout }

func newHost() endpoint {
	h := endpoint{thaws: -warmUp}
	for d := range h.cuts {
		h.cuts[d].until = -warmUp
	}
	return h
}

// cutFor reports whether a cut of the host, in either direction, has lasted for so long.
func (f *Fleet) cutFor(h *endpoint, d time.Duration) bool {
	return slices.ContainsFunc(h.cuts[:], func(o outage) bool {
		return o.until > f.now && f.now-o.since >= d
	})
}

// A delay lengthens the way of messages until a time: those of one host, or all.
type delay struct {
	of     *endpoint // nil: all hosts
	until  time.Duration
	amount time.Duration
}

// jitterTime is a random duration between d/2 and 3d/2.
func (f *Fleet) jitterTime(d time.Duration) time.Duration {
	return d/2 + time.Duration(f.rng.Int64N(int64(d)))
}

func (f *Fleet) isHostFrozen(h *endpoint) bool { return h.thaws > f.now }

func (a *agent) isFrozen() bool { return a.f.isHostFrozen(&a.endpoint) }

// callAt calls what at a host after a time; later if the host is frozen then, never if it is dead.
func (f *Fleet) callAt(h *endpoint, after time.Duration, what func()) {
	f.events.push(event{at: f.now + max(after, 0), host: h, do: what})
}

func (f *Fleet) deliverTo(h *endpoint, what func()) {
	switch {
	case h.dead:
	case f.isHostFrozen(h), len(h.inbox) > 0: // keep the order of arrival
		h.inbox = append(h.inbox, what)
	default:
		what()
	}
}

// deliverMessage is deliver of a message, which has come to its host.
func (f *Fleet) deliverMessage(m *message) {
	switch h := m.to; {
	case h.dead:
		if m.tellsOfEnd() {
			f.callAt(m.from, m.way, m.wasRefused)
		}
	case f.isHostFrozen(h), len(h.inbox) > 0:
		h.inbox = append(h.inbox, func() { f.handle(m) })
	default:
		f.handle(m)
		*m = message{}
		f.spare = append(f.spare, m)
	}
}

// isCalm reports whether every message between two hosts takes half a round trip, and so arrives
// after earlier ones; in a fleet that is settled, queries that are late by jitter are overtaken.
func (f *Fleet) isCalm() bool {
	return len(f.cfg.Faults) == 0 && (f.cfg.Settled || f.cfg.Jitter == 0) &&
		!slices.ContainsFunc(f.cfg.Lanes, func(l LaneConfig) bool { return l.Distance != 0 })
}

// messageTime is how long a message takes.
func (f *Fleet) messageTime(from, to *endpoint) time.Duration {
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

// findOutage returns the outage which keeps messages from one host from getting to another; false
// if none does. Where messages do not get through in one direction, neither do acknowledgements of
// those in the other: their connections break, too, and from then on nothing gets through.
func (f *Fleet) findOutage(from, to *endpoint) (longest outage, is bool) {
	for _, h := range []*endpoint{from, to} {
		for d, o := range h.cuts {
			if from == to || o.until <= f.now {
				continue
			}
			other := (h == from) != (direction(d) == outOf)
			if other && f.now-o.since < connectionTimeout {
				continue
			}
			if !is || o.until > longest.until {
				longest, is = o, true
			}
		}
	}
	return longest, is
}

// send calls what at the host to when a message from the host from has arrived there. If to's
// process has ended, or the connection is known to be broken, refused, unless it is nil, is called
// at from.
func (f *Fleet) send(from, to *endpoint, what, refused func()) {
	m := f.newMessage(function)
	m.do, m.refused = what, refused
	f.sendMessage(0, from, to, m)
}

// drawJitter draws how much longer the way of a query takes than that of other messages.
func (f *Fleet) drawJitter() time.Duration {
	if f.cfg.Jitter == 0 {
		return 0
	}
	return time.Duration(f.rng.ExpFloat64() * float64(f.cfg.Jitter))
}

// sendMessage sends a message, whose way takes longer by jitter.
func (f *Fleet) sendMessage(jitter time.Duration, from, to *endpoint, m *message) {
	m.from, m.to = from, to
	if f.calm && from != to {
		m.way = f.cfg.RTT/2 + jitter
		if e := (event{at: f.now + m.way, message: m}); jitter == 0 {
			f.events.pushUsual(e)
		} else {
			f.events.push(e)
		}
		return
	}
	m.way = f.messageTime(from, to) + jitter
	at := f.now + m.way
	if o, is := f.findOutage(from, to); is {
		if o.lastsUntilBroken() {
			if m.tellsOfEnd() && f.now-o.since >= connectionTimeout {
				f.callAt(from, m.way, m.wasRefused)
			}
			return
		}
		at += o.until - f.now // TCP sends it again until it gets through
	}
	key := [2]*endpoint{from, to}
	if last, ok := f.lastAt[key]; ok {
		at = max(at, last)
	}
	f.lastAt[key] = at
	f.events.push(event{at: at, message: m})
}

// scheduleMessage sends a message of a host to itself, which comes after a time.
func (f *Fleet) scheduleMessage(after time.Duration, to *endpoint, m *message) {
	m.from, m.to = to, to
	f.events.push(event{at: f.now + after, message: m})
}
