package secure

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
)

// rightsWatch holds the open calls, streams among them, of callers who have shown who they are.
// When the API keys or the access file change, the calls end whose callers may make them no more: a
// stream may stay open for ever.
type rightsWatch struct {
	mu    sync.Mutex
	calls map[*watchedCall]struct{}
}

// A watchedCall is an open call.
type watchedCall struct {
	caller caller
	demand requiredRights
	end    func(*refusal) // must not block
}

// followRights has end called when the caller c, who may make a call that needs the rights d, loses
// the right to make it; end may be called at once. The call counts as open until done is called.
func (g *Guard) followRights(c caller, d requiredRights, end func(*refusal)) (done func()) {
	f := &watchedCall{c, d, end}
	g.following.mu.Lock()
	if g.following.calls == nil {
		g.following.calls = map[*watchedCall]struct{}{}
	}
	g.following.calls[f] = struct{}{}
	g.following.mu.Unlock()
	if r := g.stillRefusal(c, d); r != nil { // the files have changed since c was let in
		end(r)
	}
	return func() {
		g.following.mu.Lock()
		delete(g.following.calls, f)
		g.following.mu.Unlock()
	}
}

// stillRefusal returns nil if a caller may still make a call that was let in, else why not. A call
// that anybody may make ends too with its caller's rights, as its answer is one for them.
func (g *Guard) stillRefusal(c caller, d requiredRights) *refusal {
	if c.apiKey {
		if name, known := g.keys.get().ownerOf(c.key); !known || name != c.name {
			return &refusal{
				code: codes.Unauthenticated, reason: "API key removed",
				text: "the API key with which this call began is known no more",
			}
		}
	}
	if c.token != "" {
		if _, err := g.tokens.verify(c.token, c.key, time.Now()); err != nil && !err.later {
			return &refusal{code: codes.Unauthenticated, reason: err.reason, text: err.text}
		}
	}
	d.open = false
	return g.checkRights(c, d)
}

// endLost ends the open calls whose callers may make them no more.
func (g *Guard) endLost() {
	g.following.mu.Lock()
	open := slices.Collect(maps.Keys(g.following.calls))
	g.following.mu.Unlock()
	of := map[string]bool{}
	for _, f := range open {
		if r := g.stillRefusal(f.caller, f.demand); r != nil {
			f.end(r)
			of[f.caller.String()] = true
		}
	}
	if len(of) > 0 {
		g.log.Warn("calls ended: their clients may make them no more", "of",
			strings.Join(slices.Sorted(maps.Keys(of)), ", "), "event", "files")
	}
}

// cancelOnRightLoss returns the context of a gRPC call, which ends when its caller loses the right
// to make it; ended then returns why.
func (g *Guard) cancelOnRightLoss(ctx context.Context, method string) context.Context {
	c, _ := ctx.Value(callerKey{}).(caller)
	// it has nothing to lose, or its connection ends with its certificate
	if c.name == "" || c.agent {
		return ctx
	}
	ctx, cancel := context.WithCancelCause(ctx)
	done := g.followRights(c, demandOf(method), func(r *refusal) { cancel(r) })
	context.AfterFunc(ctx, done)
	return ctx
}

// endingRefusal returns why a call with context ctx was ended because its caller may not make it
// any more; nil if it was not.
func endingRefusal(ctx context.Context) error {
	if ctx.Err() != nil {
		if r, ok := context.Cause(ctx).(*refusal); ok {
			return r
		}
	}
	return nil
}

// Follow has end called, which must not block, when the caller of the call with context ctx loses
// the right to make calls of the method, which may be at once. It is for a connection on which a
// client makes many such calls, and holds until done is called.
func (g *Guard) Follow(ctx context.Context, method string, end func()) (done func()) {
	c, _ := ctx.Value(callerKey{}).(caller)
	if c.name == "" || c.agent {
		return func() {}
	}
	return g.followRights(c, demandOf(method), func(*refusal) { end() })
}
