package serve

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/runtime"
)

// An intake bounds the bytes of the queries in the agent, arriving, waiting and running, so that
// overload costs no memory; another one those of answers that are still to be sent. A client with a
// name has at most half of it, so that others are served whatever it does. It implements
// [oip.Intake].
type intake struct {
	limit int64
	held  atomic.Int64
	// answers leave the less room for queries the more they are; queries leave answers theirs, or
	// work that is done would be lost under load. It is nil in that of answers.
	answers *intake
	// queue tells how long the wait is, for those refused.
	queue   func() runtime.LanesStats
	clients clients

	mu sync.Mutex
	of map[string]int64 // bytes held, of clients with a name
}

// clients knows who makes a call, as [Callers] do.
type clients interface {
	Client(context.Context) string
	Bytes(ctx context.Context, w secure.Way, bytes int64, first bool) error
}

// leastAnswers is room for answers, in bytes, however few bytes of queries are let in: theirs may
// be larger, and one that finds no room is lost work.
const leastAnswers = 64 << 10

// share is what one client with a name may have, in bytes.
func (i *intake) share() int64 { return i.limit / 2 }

// full refuses a query whose size is not known yet if a bound is reached.
func (i *intake) full(ctx context.Context) error {
	if held := i.all(); held >= i.limit {
		return i.overloaded(held)
	}
	if client := i.clients.Client(ctx); client != "" {
		if held := i.client(client); held >= i.share() {
			return i.overloaded(held)
		}
	}
	return nil
}

// all is what is held, of answers too.
func (i *intake) all() int64 {
	held := i.held.Load()
	if i.answers != nil {
		held += i.answers.held.Load()
	}
	return held
}

// client is what is held of a client with a name, of answers too.
func (i *intake) client(name string) int64 {
	i.mu.Lock()
	held := i.of[name]
	i.mu.Unlock()
	if i.answers != nil {
		held += i.answers.client(name)
	}
	return held
}

// Take counts n bytes until Give, or refuses them. A query alone, which has had so many before, is
// let in whatever its size.
func (i *intake) Take(ctx context.Context, n, had int64) error {
	i.held.Add(n)
	if held := i.all(); held > i.limit && held > n+had {
		i.held.Add(-n)
		return i.overloaded(held - n)
	}
	client := i.clients.Client(ctx)
	if client == "" {
		return nil
	}
	if i.answers != nil { // these are queries
		if err := i.clients.Bytes(ctx, wayOf(isAttempt(ctx)), n, had == 0); err != nil {
			i.held.Add(-n)
			return err
		}
	}
	i.mu.Lock()
	if i.of == nil {
		i.of = map[string]int64{}
	}
	i.of[client] += n
	i.mu.Unlock()
	if held := i.client(client); held > i.share() && held > n+had {
		i.Give(ctx, n)
		return i.overloaded(held - n)
	}
	return nil
}

// Give is for the same call as Take.
func (i *intake) Give(ctx context.Context, n int64) {
	i.held.Add(-n)
	client := i.clients.Client(ctx)
	if client == "" {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.of[client] -= n; i.of[client] <= 0 {
		delete(i.of, client)
	}
}

func (i *intake) overloaded(held int64) error {
	stats := i.queue()
	return &runtime.OverloadedError{
		Waiting: stats.Waiting, WaitingBytes: held, RetryAfter: stats.Remaining,
	}
}
