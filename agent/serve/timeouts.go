package serve

import (
	"sync"
	"time"
)

// timeouts calls expire for operations that take too long, where all have the same limit. They
// expire in the order in which they began, so one list and one timer suffice, and beginning one
// allocates nothing. The methods may be called concurrently.
type timeouts struct {
	mu          sync.Mutex
	first, last *timeout
	timer       *time.Timer // nil before the first
	set         bool        // timer runs, for first or for an earlier one that has ended
}

// A timeout is the entry of one operation in the list, embedded in the operation. Only the methods
// of timeouts may touch it while it is begun.
type timeout struct {
	due        time.Time
	expires    expirer // nil: it is not in the list
	prev, next *timeout
}

// An expirer is an operation that expire ends. expire is called on a goroutine of its own, and may
// block.
type expirer interface{ expire() }

// begin adds o to the list: e.expire is called after limit, unless end is called first. limit must
// be the same in all calls on t.
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

// end removes o from the list. It reports false if o was not begun or has expired already.
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

// fire handles the timer: it expires all operations that are due.
func (t *timeouts) fire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for now := time.Now(); t.first != nil; {
		o := t.first
		if wait := o.due.Sub(now); wait > 0 {
			t.timer.Reset(wait)
			return
		}
		go o.expires.expire() // may block: closing a TLS connection does
		t.remove(o)
	}
	t.set = false
}
