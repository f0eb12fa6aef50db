package agent

import "sync"

// A broadcast wakes all who wait for the next time that something is told. Its
// zero value is ready.
type broadcast struct {
	mu sync.Mutex
	ch chan struct{}
}

// next is closed the next time that something is told.
func (b *broadcast) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

func (b *broadcast) tell() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}
