package serve

import (
	"sync"
	"time"

	"github.com/muster-serve/muster/api/list"
)

// timeouts calls expire for operations that take too long, where all have the same limit. They
// expire in the order in which they began, so one list and one timer suffice, and beginning one
// allocates nothing. The methods may be called concurrently.
type timeouts struct {
	mu    sync.Mutex
	begun list.List[timeout] // in the order in which they began
	timer *time.Timer        // nil before the first
	set   bool               // timer runs, for the first or for an earlier one that has ended
}

// A timeout is the entry of one operation in the list, embedded in the operation. Only the methods
// of timeouts may touch it while it is begun.
type timeout struct {
	due     time.Time
	expires expirer
	inBegun list.Node[timeout]
}

// An expirer is an operation that expire ends. expire is called on a goroutine of its own, and may
// block.
type expirer interface{ expire() }

// addTimeout adds o to the list: e.expire is called after limit, unless end is called first. limit
// must be the same in all calls on t.
func (t *timeouts) addTimeout(o *timeout, limit time.Duration, e expirer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o.due, o.expires = time.Now().Add(limit), e
	t.begun.Append(o, &o.inBegun)
	if t.set {
		return
	}
	t.set = true
	if t.timer == nil {
		t.timer = time.AfterFunc(limit, t.expireDue)
	} else {
		t.timer.Reset(limit)
	}
}

// removeTimeout removes o from the list. It reports false if o was not begun or has expired
// already.
func (t *timeouts) removeTimeout(o *timeout) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.remove(o)
}

func (t *timeouts) remove(o *timeout) bool {
	if !o.inBegun.InList() {
		return false
	}
	t.begun.Remove(&o.inBegun)
	o.expires = nil
	return true
}

// expireDue handles the timer: it expires all operations that are due.
func (t *timeouts) expireDue() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for o := t.begun.First(); o != nil; o = t.begun.First() {
		if wait := o.due.Sub(now); wait > 0 {
			t.timer.Reset(wait)
			return
		}
		go o.expires.expire() // may block: closing a TLS connection does
		t.remove(o)
	}
	t.set = false
}
