// Package wakeup has the signal by which one goroutine tells another that there is something to do.
package wakeup

// A Signal wakes one goroutine that waits for it, by a receive. Signals that come before it waits
// count as one: it looks at what has changed once, and at all of it. Make one with [New].
type Signal chan struct{}

// New makes a signal that nobody has sent.
func New() Signal { return make(Signal, 1) }

// Send wakes who waits for s, or who waits next. It never blocks, and may be called concurrently.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default: // it is signalled already
	}
}
