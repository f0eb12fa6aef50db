package agent

import (
	"sync/atomic"

	"github.com/muster-serve/muster/runtime"
)

// An intake bounds the bytes of the queries in the agent, waiting and running,
// so that overload costs no memory.
type intake struct {
	limit int64
	held  atomic.Int64
	// queue tells how long the wait is, for those refused.
	queue func() runtime.LanesStats
}

// full refuses a query whose size is not known yet if the bound is reached.
func (i *intake) full() error {
	if held := i.held.Load(); held >= i.limit {
		return i.overloaded(held)
	}
	return nil
}

// take counts n bytes until give, or refuses them. A query alone is let in
// whatever its size.
func (i *intake) take(n int64) error {
	if held := i.held.Add(n); held > i.limit && held > n {
		i.held.Add(-n)
		return i.overloaded(held - n)
	}
	return nil
}

func (i *intake) give(n int64) { i.held.Add(-n) }

func (i *intake) overloaded(held int64) error {
	stats := i.queue()
	return &runtime.OverloadedError{Waiting: stats.Waiting, WaitingBytes: held, RetryAfter: stats.Remaining}
}
