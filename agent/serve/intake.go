package serve

import (
	"context"
	"math"
	"sync"
	"sync/atomic"

	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/runtime"
)

// An intake bounds the bytes of all queries in the agent (arriving, waiting and running), so that
// overload does not exhaust memory. A second intake bounds the bytes of answers not yet sent. One
// client with a name may use at most half, so that other clients are still served. It implements
// [oip.Intake]; its methods may be called concurrently and do not block.
type intake struct {
	limit int64
	held  atomic.Int64
	// answers is the intake of answers; nil in that intake itself. Its bytes count against the
	// limit of queries, but bytes of queries do not count against answers: under load, finished
	// work would be lost.
	answers *intake
	lanes   *runtime.Partitions
	clients clients

	mu sync.Mutex
	of map[string]int64 // bytes that each client with a name holds
}

// clients is the part of [Callers] that an intake uses.
type clients interface {
	Client(context.Context) string
	Bytes(ctx context.Context, w secure.Way, bytes int64, first bool) error
}

// leastAnswers is the least limit for answers, in bytes: an answer may be larger than its query,
// and an answer without room is lost work.
const leastAnswers = 64 << 10

// share is how many bytes one client with a name may hold.
func (i *intake) share() int64 { return i.limit / 2 }

// full returns an error if there is no room for another query, whose size is not known yet, or if
// it would be late before it has been read.
func (i *intake) full(ctx context.Context) error {
	held := i.all()
	if held >= i.limit || i.lanes.RefusesUnread(i.held.Load()) {
		return i.overloaded(held)
	}
	if client := i.clients.Client(ctx); client != "" {
		if held := i.client(client); held >= i.share() {
			return i.overloaded(held)
		}
	}
	return nil
}

// all returns the bytes held, those of answers included.
func (i *intake) all() int64 {
	held := i.held.Load()
	if i.answers != nil {
		held += i.answers.held.Load()
	}
	return held
}

// client returns the bytes that a client with a name holds, those of its answers included.
func (i *intake) client(name string) int64 {
	i.mu.Lock()
	held := i.of[name]
	i.mu.Unlock()
	if i.answers != nil {
		held += i.answers.client(name)
	}
	return held
}

// Take counts n bytes of the query of the call with context ctx, in addition to had bytes counted
// before, until Give. It returns an error if a limit is exceeded, except for a query that is the
// only one: that may have any size.
func (i *intake) Take(ctx context.Context, n, had int64) error {
	if held := i.all(); n > math.MaxInt64/2-held {
		return i.overloaded(held)
	}
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

// Give takes n bytes back that Take has counted, with a context of the same caller.
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

func (i *intake) overloaded(held int64) error { return i.lanes.UnreadError(held) }
