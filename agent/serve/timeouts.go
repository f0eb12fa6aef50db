package serve

import (
	"sync"
	"time"
)

// timeouts end what takes too long, of things that all may take as long: they fall due in the
// order in which they begin, so one list and one timer do for all, and none allocates anything. Its
// methods may be called concurrently.
type timeouts struct {
	mu          sync.Mutex
	first, last *timeout
	timer       *time.Timer // nil before the first
	set         bool        // for the first, or one before it that has ended
}

// A timeout is a part of what may not take too long. It belongs to timeouts while it is begun.
type timeout struct {
	due        time.Time
	expires    expirer // nil: it is not begun
	prev, next *timeout
}

// An expirer ends what has taken too long. It has a goroutine of its own for that.
type expirer interface{ expire() }

// begin has e called after the limit, which is the same for all of t's, unless end comes first.
func (t *timeouts) begin(o *timeout, limit time.Duration, e expirer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o.due, o.expires = time.Now().Add(limit), e
	if o.prev, t.last = t.last, o; o.prev != nil {
		o.prev.next = o
	} else {
		t.first = o
	}
	if t.set {
		return
	}
	t.set = true
	if t.timer == nil {
		t.timer = time.AfterFunc(limit, t.fire)
	} else {
		t.timer.Reset(limit)
	}
}

// end reports whether o was begun and has not expired, and will not any more.
func (t *timeouts) end(o *timeout) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.remove(o)
}

func (t *timeouts) remove(o *timeout) bool {
	if o.expires == nil {
		return false
	}
	if o.prev != nil {
		o.prev.next = o.next
	} else {
		t.first = o.next
	}
	if o.next != nil {
		o.next.prev = o.prev
	} else {
		t.last = o.prev
	}
	o.prev, o.next, o.expires = nil, nil, nil
	return true
}

// fire is the timer's.
func (t *timeouts) fire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for now := time.Now(); t.first != nil; {
		o := t.first
		if wait := o.due.Sub(now); wait > 0 {
			t.timer.Reset(wait)
			return
		}
		go o.expires.expire() // may take a while: to close a connection by TLS does
		t.remove(o)
	}
	t.set = false
}
