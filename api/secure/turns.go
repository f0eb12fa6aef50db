package secure

import (
	"context"
	"net"
	"sync"
	"time"
)

// Handshakes cost CPU, which strangers need not have much of to have an agent take all of its own.
// So they take turns, and no more of the CPUs than this share.
const (
	handshakeShare = 0.25
	// turnsAhead is how much of the turns' time may be taken at once after a while without any.
	turnsAhead = 250 * time.Millisecond
	// seldom is how long who has had no turn need not wait for the time that others took: as much
	// again as turnsAhead may be owed for that.
	seldom = 100 * time.Millisecond
	// turnMemory is how long it counts who had a turn last.
	turnMemory = 10 * time.Second
	// mostHolders bounds those that are remembered.
	mostHolders = 4096
)

// turns lets few do something at a time, and for a share of the time. The next turn is whose holder
// has had none for longest, so that who has many waiting does not keep out who has one.
type turns struct {
	rate float64 // seconds of turns in a second

	mu      sync.Mutex
	free    int           // how many may begin now
	left    time.Duration // of the turns' time, as of then
	then    time.Time
	waiting []*turn              // in order of arrival
	had     map[string]time.Time // when each holder last had a turn
	timer   bool                 // one will look whether a turn may begin
}

type turn struct {
	holder string
	begin  chan struct{} // closed when it has begun
	begun  time.Time     // zero until then
}

func newTurns(cpus int) *turns {
	return &turns{
		rate: handshakeShare * float64(cpus), free: max(1, int(handshakeShare*float64(cpus))),
		left: turnsAhead, then: time.Now(), had: map[string]time.Time{},
	}
}

// begin waits for a turn of the holder's. It must be ended, unless the context ended first.
func (t *turns) begin(ctx context.Context, holder string) (*turn, error) {
	me := &turn{holder: holder, begin: make(chan struct{})}
	t.mu.Lock()
	t.waiting = append(t.waiting, me)
	t.next()
	t.mu.Unlock()
	select {
	case <-me.begin:
		return me, nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, w := range t.waiting {
		if w == me {
			t.waiting = append(t.waiting[:i], t.waiting[i+1:]...)
			return nil, ctx.Err()
		}
	}
	t.finish(me) // it has begun meanwhile
	return nil, ctx.Err()
}

// end ends a turn.
func (t *turns) end(me *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.finish(me)
}

// finish is end with t.mu held.
func (t *turns) finish(me *turn) {
	t.left -= time.Since(me.begun)
	t.free++
	t.next()
}

// next begins as many turns as may be. t.mu is held.
func (t *turns) next() {
	now := time.Now()
	t.left = min(t.left+time.Duration(t.rate*float64(now.Sub(t.then))), turnsAhead)
	t.then = now
	for t.free > 0 && len(t.waiting) > 0 {
		first := 0
		for i, w := range t.waiting {
			if t.had[w.holder].Before(t.had[t.waiting[first].holder]) {
				first = i
			}
		}
		me := t.waiting[first]
		if t.left <= -turnsAhead || t.left <= 0 && now.Sub(t.had[me.holder]) < seldom {
			t.nextLater()
			return
		}
		t.waiting = append(t.waiting[:first], t.waiting[first+1:]...)
		if len(t.had) >= mostHolders {
			t.forget(now)
		}
		t.had[me.holder] = now
		t.free--
		me.begun = now
		close(me.begin)
	}
}

// nextLater has next called when there is time for a turn. t.mu is held.
func (t *turns) nextLater() {
	if t.timer {
		return
	}
	t.timer = true
	time.AfterFunc(min(time.Duration(float64(-t.left)/t.rate)+time.Microsecond, seldom), func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.timer = false
		t.next()
	})
}

// forget forgets those that had no turn lately, or all if they are too many. t.mu is held.
func (t *turns) forget(now time.Time) {
	for holder, at := range t.had {
		if now.Sub(at) > turnMemory {
			delete(t.had, holder)
		}
	}
	if len(t.had) >= mostHolders {
		clear(t.had)
	}
}

// A turnConn is a connection whose handshake takes turns: from when something has come until it
// writes or waits for more.
type turnConn struct {
	net.Conn
	turns  *turns
	ctx    context.Context // the handshake's
	holder string
	turn   *turn // nil: none. Like done, of the handshake's goroutine until that has ended
	done   bool
}

func (c *turnConn) Read(b []byte) (int, error) {
	if c.done {
		return c.Conn.Read(b)
	}
	c.rest()
	n, err := c.Conn.Read(b)
	if err != nil {
		return n, err
	}
	c.turn, err = c.turns.begin(c.ctx, c.holder)
	return n, err
}

func (c *turnConn) Write(b []byte) (int, error) {
	if !c.done {
		c.rest()
	}
	return c.Conn.Write(b)
}

// rest ends the turn, if there is one.
func (c *turnConn) rest() {
	if c.turn != nil {
		c.turns.end(c.turn)
		c.turn = nil
	}
}

// finish is called when the handshake has ended.
func (c *turnConn) finish() {
	c.rest()
	c.done, c.ctx = true, nil
}

// CloseWrite is as that of a plainConn.
func (c *turnConn) CloseWrite() error { return closeWrite(c.Conn) }
