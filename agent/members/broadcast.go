package members

import "sync"

// A Broadcast announces an event to any number of waiting goroutines. The zero value is ready to
// use. Its methods may be called concurrently and do not block.
type Broadcast struct {
	mu sync.Mutex
	ch chan struct{}
}

// Next returns a channel that is closed by the next call of Tell.
func (b *Broadcast) Next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

// Tell closes the channel that the calls of Next since the last Tell have returned.
func (b *Broadcast) Tell() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}
