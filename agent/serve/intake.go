package serve

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

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

	refusing atomic.Int64 // the length of refused

	mu sync.Mutex
	of map[string]int64 // bytes that each client with a name holds
	// refused are the clients that were refused and have not been let in since; "" stands for all
	// without a name.
	refused map[string]refusals
}

// refusals are those of a client since it was let in last.
type refusals struct {
	first, last time.Time
	bytes       int64 // of the smallest query; 0 if it was not known
}

// maxBackOff bounds how long refused clients are told to wait for room. What takes the room may be
// queries that arrive slowly, and those are given up after ReceiveTimeout, 30 s. Chosen: a third of
// that, so that clients use the room soon after it is free.
const maxBackOff = 10 * time.Second

// clients is the part of [Callers] that an intake uses.
type clients interface {
	Client(context.Context) string
	Bytes(ctx context.Context, w secure.Way, bytes int64, first bool) error
}

// minAnswers is the least limit for answers, in bytes: an answer may be larger than its query,
// and an answer without room is lost work.
const minAnswers = 64 << 10

// clientShare is how many bytes one client with a name may hold.
func (i *intake) clientShare() int64 { return i.limit / 2 }

// checkRoom returns an error if there is no room for another query, whose size is not known yet, or
// if it would be late before it has been read.
func (i *intake) checkRoom(ctx context.Context) error {
	held := i.heldBytes()
	if held >= i.limit {
		return i.overloadError(ctx, held, 0)
	}
	if i.lanes.RefusesUnread(i.held.Load()) {
		return i.overloadError(ctx, held, 0).OverloadedError
	}
	if client := i.clients.Client(ctx); client != "" {
		if held := i.clientBytes(client); held >= i.clientShare() {
			return i.overloadError(ctx, held, 0)
		}
	}
	return nil
}

// heldBytes returns the bytes held, those of answers included.
func (i *intake) heldBytes() int64 {
	held := i.held.Load()
	if i.answers != nil {
		held += i.answers.held.Load()
	}
	return held
}

// clientBytes returns the bytes that a client with a name holds, those of its answers included.
func (i *intake) clientBytes(name string) int64 {
	i.mu.Lock()
	held := i.of[name]
	i.mu.Unlock()
	if i.answers != nil {
		held += i.answers.clientBytes(name)
	}
	return held
}

// Take counts n bytes of the query of the call with context ctx, in addition to had bytes counted
// before, until Give. It returns an error if a limit is exceeded, except for a query that is the
// only one: that may have any size.
func (i *intake) Take(ctx context.Context, n, had int64) error {
	if held := i.heldBytes(); n > math.MaxInt64/2-held {
		return i.overloadError(ctx, held, n)
	}
	i.held.Add(n)
	if held := i.heldBytes(); held > i.limit && held > n+had {
		i.held.Add(-n)
		return i.overloadError(ctx, held-n, n+had)
	}
	client := i.clients.Client(ctx)
	if client == "" {
		i.letIn("", n+had)
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
	if held := i.clientBytes(client); held > i.clientShare() && held > n+had {
		i.Give(ctx, n)
		return i.overloadError(ctx, held-n, n+had)
	}
	i.letIn(client, n+had)
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

// overloadError returns the error of a query of n bytes, 0 if that is not known, that is refused
// beside held bytes. The lanes say when they can have served what they hold. That is at once where
// queries that arrive slowly take the room, and nobody knows when those end. So a client is told to
// wait at least as long as it has been refused already: it asks a few times instead of a thousand
// times a second.
func (i *intake) overloadError(ctx context.Context, held, n int64) *noRoomError {
	err := i.lanes.UnreadError(held)
	now, client := time.Now(), i.clients.Client(ctx)
	i.mu.Lock()
	defer i.mu.Unlock()
	r, known := i.refused[client]
	if !known || now.Sub(r.last) > 2*maxBackOff { // the client did not ask when it should have
		r = refusals{first: now, bytes: n}
	}
	r.last, r.bytes = now, min(r.bytes, n)
	if i.refused == nil {
		i.refused = map[string]refusals{}
	}
	i.refused[client] = r
	i.refusing.Store(int64(len(i.refused)))
	err.RetryAfter = max(err.RetryAfter, min(now.Sub(r.first), maxBackOff))
	return &noRoomError{err}
}

// A noRoomError refuses a query because there is no room for its bytes.
type noRoomError struct{ *runtime.OverloadedError }

// Unwrap returns the error as which clients know it.
func (e *noRoomError) Unwrap() error { return e.OverloadedError }

// letIn notes that there was room for a client's query of which n bytes are known: its refusals are
// over, unless all of them were of larger queries.
func (i *intake) letIn(client string, n int64) {
	if i.refusing.Load() == 0 {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if r, known := i.refused[client]; known && n >= r.bytes {
		delete(i.refused, client)
		i.refusing.Store(int64(len(i.refused)))
	}
}
