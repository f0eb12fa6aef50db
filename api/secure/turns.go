package secure

import (
	"context"
	"net"
	"sync"
	"time"
)

// Handshakes cost the agent more CPU than they cost a stranger that opens connections. So they take
// turns, and use at most this share of the CPUs.
const (
	handshakeShare = 0.25
	// turnsAhead is how much of the turns' time may be used at once after a pause.
	turnsAhead = 250 * time.Millisecond
	// seldom is the time after which a holder without a turn need not wait for the time that others
	// have used; turnsAhead may be overdrawn once more for that.
	seldom = 100 * time.Millisecond
	// turnMemory is how long a holder's last turn is remembered.
	turnMemory = 10 * time.Second
	// maxHolders bounds the holders that are remembered.
	maxHolders = 4096
)

// handshakeSlots bounds how many operations run at a time, and the share of time that they run. The
// next turn goes to the holder whose last turn is longest ago, so that a holder with many waiting
// operations does not delay one with a single operation.
type handshakeSlots struct {
	rate float64 // seconds of turns in a second

	mu      sync.Mutex
	free    int           // how many turns may begin now
	left    time.Duration // the turns' time that was left at the time then
	then    time.Time
	waiting []*handshakeSlot     // in order of arrival
	had     map[string]time.Time // when each holder last had a turn
	timer   bool                 // a timer that calls next runs
}

type handshakeSlot struct {
	holder string
	begin  chan struct{} // closed when the turn has begun
	begun  time.Time     // zero before
}

func newTurns(cpus int) *handshakeSlots {
	return &handshakeSlots{
		rate: handshakeShare * float64(cpus), free: max(1, int(handshakeShare*float64(cpus))),
		left: turnsAhead, then: time.Now(), had: map[string]time.Time{},
	}
}

// beginTurn blocks until a turn of the holder begins, and returns it. The caller must end it. If
// ctx ends first, begin returns its error.
func (t *handshakeSlots) beginTurn(ctx context.Context, holder string) (*handshakeSlot, error) {
	me := &handshakeSlot{holder: holder, begin: make(chan struct{})}
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
	t.finishTurn(me) // the turn has begun meanwhile
	return nil, ctx.Err()
}

// endTurn ends a turn.
func (t *handshakeSlots) endTurn(me *handshakeSlot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.finishTurn(me)
}

// finishTurn is end with t.mu held.
func (t *handshakeSlots) finishTurn(me *handshakeSlot) {
	t.left -= time.Since(me.begun)
	t.free++
	t.next()
}

// next begins as many turns as allowed. t.mu is held.
func (t *handshakeSlots) next() {
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
		if len(t.had) >= maxHolders {
			t.forgetHolders(now)
		}
		t.had[me.holder] = now
		t.free--
		me.begun = now
		close(me.begin)
	}
}

// nextLater starts a timer that calls next when there is time for a turn. t.mu is held.
func (t *handshakeSlots) nextLater() {
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

// forgetHolders removes holders without a turn within turnMemory, or all holders if there are too
// many. t.mu is held.
func (t *handshakeSlots) forgetHolders(now time.Time) {
	for holder, at := range t.had {
		if now.Sub(at) > turnMemory {
			delete(t.had, holder)
		}
	}
	if len(t.had) >= maxHolders {
		clear(t.had)
	}
}

// A turnConn is a connection whose handshake takes turns. A turn lasts from the arrival of bytes
// until the handshake writes, or waits for more.
type turnConn struct {
	net.Conn
	turns  *handshakeSlots
	ctx    context.Context // the handshake's
	holder string
	turn   *handshakeSlot // nil: none. Like done, of the handshake's goroutine until that has ended
	done   bool
}

func (c *turnConn) Read(b []byte) (int, error) {
	if c.done {
		return c.Conn.Read(b)
	}
	c.endCurrentTurn()
	n, err := c.Conn.Read(b)
	if err != nil {
		return n, err
	}
	c.turn, err = c.turns.beginTurn(c.ctx, c.holder)
	return n, err
}

func (c *turnConn) Write(b []byte) (int, error) {
	if !c.done {
		c.endCurrentTurn()
	}
	return c.Conn.Write(b)
}

// endCurrentTurn ends the current turn, if there is one.
func (c *turnConn) endCurrentTurn() {
	if c.turn != nil {
		c.turns.endTurn(c.turn)
		c.turn = nil
	}
}

// finishHandshake must be called when the handshake has ended.
func (c *turnConn) finishHandshake() {
	c.endCurrentTurn()
	c.done, c.ctx = true, nil
}

// CloseWrite closes the writing side; see plainConn.
func (c *turnConn) CloseWrite() error { return closeWrite(c.Conn) }
