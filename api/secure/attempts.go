package secure

import (
	"container/list"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
)

// Wrong API keys, and tokens that no issuer has signed, are limited wherever they are shown: by gRPC,
// by REST and in a login. A certificate and the cookie of a login need no limit: they are signed.
const (
	// An address may show maxAttempts wrong keys in attemptsOver. The same one again shows nothing
	// new, so a client with an old key does not keep others of its address out.
	maxAttempts  = 5
	attemptsOver = time.Minute
	// maxAttempting is of how many addresses wrong keys are remembered, and how many right ones
	// are.
	maxAttempting = 4096
)

var errTooManyAttempts = fmt.Errorf("%d wrong API keys have come from this address within %v: "+
	"no other is looked at before that time has passed", maxAttempts, attemptsOver)

// attempts hold the wrong keys of each address, and right ones, which are taken from an address
// after too many wrong ones too: others behind a load balancer cannot keep its clients out.
type attempts struct {
	wrong atomic.Int32 // the length of order: mostly 0

	mu    sync.Mutex
	by    map[string]*list.Element // of order
	order list.List                // of *failed, the first since the longest time
	right map[shown]struct{}
}

// A failingAddress is one from which wrong keys have come.
type failingAddress struct {
	holder string
	keys   []digest // at most maxAttempts
	since  time.Time
}

// A shown is a key and the address from which it came.
type shown struct {
	holder string
	key    digest
}

// fail notes a wrong key. It returns 0, or how long no key of the address is looked at any more.
func (a *attempts) fail(holder string, key digest, now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if wait := a.waitLocked(holder, now); wait > 0 {
		return wait
	}
	e := a.by[holder]
	if e == nil {
		if len(a.by) == maxAttempting {
			a.remove(a.order.Front())
		}
		e = a.order.PushBack(&failingAddress{holder: holder, since: now})
		if a.by == nil {
			a.by = map[string]*list.Element{}
		}
		a.by[holder] = e
		a.wrong.Store(int32(a.order.Len()))
	}
	f := e.Value.(*failingAddress)
	for _, before := range f.keys {
		if before == key {
			return 0
		}
	}
	f.keys = append(f.keys, key)
	return 0
}

// wait returns how long a key of the address is not looked at; 0: it is.
func (a *attempts) wait(of shown, now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, known := a.right[of]; known {
		return 0
	}
	return a.waitLocked(of.holder, now)
}

// waitLocked is wait of an address. It forgets addresses whose time is over. a.mu is held.
func (a *attempts) waitLocked(holder string, now time.Time) time.Duration {
	for e := a.order.Front(); e != nil &&
		now.Sub(e.Value.(*failingAddress).since) >= attemptsOver; e = a.order.Front() {
		a.remove(e)
	}
	e := a.by[holder]
	if e == nil || len(e.Value.(*failingAddress).keys) < maxAttempts {
		return 0
	}
	return e.Value.(*failingAddress).since.Add(attemptsOver).Sub(now)
}

func (a *attempts) remove(e *list.Element) {
	delete(a.by, a.order.Remove(e).(*failingAddress).holder)
	a.wrong.Store(int32(a.order.Len()))
}

// noteSuccess notes a right key.
func (a *attempts) noteSuccess(of shown) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, known := a.right[of]; known {
		return
	}
	if a.right == nil {
		a.right = map[shown]struct{}{}
	}
	for old := range a.right { // any one
		if len(a.right) < maxAttempting {
			break
		}
		delete(a.right, old)
	}
	a.right[of] = struct{}{}
}

// clear forgets all: what was wrong or right may not be so any more.
func (a *attempts) clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.order.Init()
	clear(a.by)
	clear(a.right)
	a.wrong.Store(0)
}

// ownerOf returns the client of an API key that came from an address, or why there is none.
func (g *Guard) ownerOf(key string, from net.Addr) (name string, sum digest, _ *refusal) {
	sum = digestOf(key)
	name, ok := g.keys.get().ownerOf(sum)
	wait := time.Duration(0)
	switch {
	case !ok:
		wait = g.attempts.fail(holderOf(from), sum, time.Now())
	case g.attempts.wrong.Load() > 0:
		wait = g.attempts.wait(shown{holderOf(from), sum}, time.Now())
	}
	switch {
	case wait > 0:
		return "", sum, tooManyAttempts(wait)
	case !ok:
		return "", sum, &refusal{
			code: codes.Unauthenticated, reason: "unknown API key", text: "unknown API key",
		}
	}
	return name, sum, nil
}

// shownBy notes that a caller has shown a right key, unless it has by its connection before.
func (g *Guard) shownBy(c caller, raw *countedConn, from net.Addr) {
	if (c.apiKey || c.token != "") && !raw.hasShown(c.name) {
		g.attempts.noteSuccess(shown{holderOf(from), c.key})
	}
	raw.proveName(c)
}
