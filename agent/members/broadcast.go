package members

import "sync"

// A Broadcast wakes all who wait for the next time that something is told. Its
// zero value is ready.
type Broadcast struct {
	mu sync.Mutex
	ch chan struct{}
}

// Next is closed the next time that something is told.
func (b *Broadcast) Next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

// Tell wakes them.
func (b *Broadcast) Tell() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}
