package secure

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// An allowance is how much a client with a name may use of one agent, as the access file says. Zero
// of anything is no limit.
type allowance struct {
	queries float64 // a second
	burst   float64 // queries at once after a pause; > 0 if queries is
	bytes   float64 // of queries, a second
	streams int     // calls open at a time
}

// A Way is how a client's query comes to an agent. One query may come by several ways, to one agent
// or to more, so each way has the whole allowance.
type Way uint8

const (
	// Asked: the agent is to have it answered. It is the query itself, or what an SDK
	// submits to the leader.
	Asked Way = iota
	// Attempted: an SDK has it run here.
	Attempted
	// Probed: an SDK asks when it would be answered here.
	Probed

	ways = 3
)

// slack is how much later than its client meant to a query may come, when that was let in
// before: by the leader, or by the SDK that decides without one. So it adds this much to what
// may come at once.
const slack = time.Second

const (
	// mostMeters bounds the clients whose use is known one by one. Beyond them, which takes as many
	// names that are used within seconds, others have one meter together.
	mostMeters = 4096
	// sweepAgain is how often at most it is looked which of them can be forgotten.
	sweepAgain = time.Second
	// mostBytes is as many bytes as no query has: what a client says of a query is not believed
	// beyond.
	mostBytes = 4 << 30
	// streamsAgain is after how long a client may try again that has too many calls open.
	streamsAgain = time.Second
	// longestWait bounds what a client is told to wait.
	longestWait = time.Hour
)

// meters are what clients with an allowance have used.
type meters struct {
	mu    sync.Mutex
	of    map[string]*meter // by client; "" is who finds no room
	swept time.Time
}

// A meter is what one client has used.
type meter struct {
	open           int // calls
	queries, bytes [ways]bucket
}

// A bucket is what is left of a rate. One larger thing than is left is let in and leaves a debt, as
// it would never be otherwise; golang.org/x/time/rate, which is much like it, cannot do that. What
// the rate is it is told each time, for that may change.
type bucket struct {
	left float64
	at   time.Time // zero: nothing was taken yet
}

// A rate is how much a second, and how much at once after a pause; 0 a second is no limit.
type rate struct{ perSecond, burst float64 }

// fill brings what is left up to date.
func (b *bucket) fill(now time.Time, r rate) {
	if b.left += r.perSecond * now.Sub(b.at).Seconds(); b.at.IsZero() || b.left > r.burst {
		b.left = r.burst
	}
	b.at = now
}

// wait is how long until n more are let in, which is when there is one; 0: now.
func (b *bucket) wait(now time.Time, r rate, n float64) time.Duration {
	if r.perSecond == 0 || n == 0 {
		return 0
	}
	if b.fill(now, r); b.left >= 1 {
		return 0
	}
	return time.Duration(min((1-b.left)/r.perSecond*float64(time.Second), float64(longestWait))) + 1
}

// take takes n, whatever is left.
func (b *bucket) take(now time.Time, r rate, n float64) {
	if r.perSecond > 0 {
		b.fill(now, r)
		b.left -= n
	}
}

// full reports whether nothing is missing.
func (b *bucket) full(now time.Time, r rate) bool {
	if r.perSecond > 0 && !b.at.IsZero() {
		b.fill(now, r)
		return b.left == r.burst
	}
	return true
}

// rates are those of queries and bytes that come by a way.
func (a *allowance) rates(w Way) (queries, bytes rate) {
	queries, bytes = rate{a.queries, a.burst}, rate{a.bytes, a.bytes}
	if w != Asked {
		queries.burst += a.queries * slack.Seconds()
		bytes.burst += a.bytes * slack.Seconds()
	}
	return queries, bytes
}

// idle reports whether the meter is as one that was never used.
func (m *meter) idle(now time.Time, a *allowance) bool {
	for w := Way(0); a != nil && w < ways; w++ {
		queries, bytes := a.rates(w)
		if !m.queries[w].full(now, queries) || !m.bytes[w].full(now, bytes) {
			return false
		}
	}
	return m.open == 0
}

// meter is the client's. allowed is what a client may use. The lock is held.
func (s *meters) meter(client string, now time.Time,
	allowed func(client string) *allowance) *meter {
	if m := s.of[client]; m != nil {
		return m
	}
	if s.of == nil {
		s.of = map[string]*meter{}
	}
	if len(s.of) >= mostMeters && now.Sub(s.swept) >= sweepAgain {
		s.swept = now
		for name, m := range s.of {
			if m.idle(now, allowed(name)) {
				delete(s.of, name)
			}
		}
	}
	if len(s.of) >= mostMeters {
		if client = ""; s.of[client] != nil {
			return s.of[client]
		}
	}
	m := &meter{}
	s.of[client] = m
	return m
}

// A LimitError refuses what is beyond a client's limits.
type LimitError struct {
	text       string
	RetryAfter time.Duration // > 0
}

func (e *LimitError) Error() string { return e.text }

// status is the error for grpc.
func (e *LimitError) status() error {
	s := status.New(codes.ResourceExhausted, e.text)
	if detailed, err := s.WithDetails(&errdetails.RetryInfo{
		RetryDelay: durationpb.New(e.RetryAfter),
	}); err == nil {
		s = detailed
	}
	return s.Err()
}

// allowed is what a client may use; nil: there is no limit.
func (g *Guard) allowed(client string) *allowance { return g.access.get().of(client).limits }

// limited is who has made the call that ctx is of, if that is a client with limits; else a is nil.
func (g *Guard) limited(ctx context.Context) (c caller, a *allowance) {
	c, _ = ctx.Value(callerKey{}).(caller)
	if c.name == "" || c.agent {
		return c, nil
	}
	return c, g.allowed(c.name)
}

// Query counts a query of the client whose call ctx is of, or refuses it with a [*LimitError];
// bytes are as many as are known of it yet. An allowance is that of the access file as it is now.
func (g *Guard) Query(ctx context.Context, w Way, bytes int64) error {
	return g.use(ctx, w, 1, bytes, false)
}

// Bytes counts bytes of a query that [Guard.Query] has let in. They are refused only if they are
// the first ones: no query is given up half way.
func (g *Guard) Bytes(ctx context.Context, w Way, bytes int64, first bool) error {
	return g.use(ctx, w, 0, bytes, !first)
}

func (g *Guard) use(ctx context.Context, w Way, queries float64, bytes int64, anyway bool) error {
	c, a := g.limited(ctx)
	if a == nil {
		return nil
	}
	if err := g.meters.use(c.name, a, w, queries, float64(min(max(0, bytes), mostBytes)), anyway,
		g.allowed); err != nil {
		g.overLimit(c, err)
		return err
	}
	return nil
}

// use takes queries and bytes, or neither.
func (s *meters) use(client string, a *allowance, w Way, queries, bytes float64, anyway bool,
	allowed func(string) *allowance) *LimitError {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	m := s.meter(client, now, allowed)
	ofQueries, ofBytes := &m.queries[w], &m.bytes[w]
	queryRate, byteRate := a.rates(w)
	if !anyway {
		if wait := ofQueries.wait(now, queryRate, queries); wait > 0 {
			return overLimit(client, a.queries, "queries a second", wait)
		}
		if wait := ofBytes.wait(now, byteRate, bytes); wait > 0 {
			return overLimit(client, a.bytes, "bytes a second", wait)
		}
	}
	ofQueries.take(now, queryRate, queries)
	ofBytes.take(now, byteRate, bytes)
	return nil
}

func overLimit(client string, limit float64, of string, wait time.Duration) *LimitError {
	return &LimitError{
		fmt.Sprintf("client %q is over its limit of %s %s", client,
			strconv.FormatFloat(limit, 'f', -1, 64), of), wait,
	}
}

// hold counts a call as open until done, or refuses it. done is nil if its client has no limit of
// them.
func (g *Guard) hold(ctx context.Context) (done func(), _ *LimitError) {
	c, a := g.limited(ctx)
	if a == nil || a.streams == 0 {
		return nil, nil
	}
	s := &g.meters
	s.mu.Lock()
	m := s.meter(c.name, time.Now(), g.allowed)
	if m.open >= a.streams {
		s.mu.Unlock()
		err := overLimit(c.name, float64(a.streams), "calls and streams open at a time",
			streamsAgain)
		g.overLimit(c, err)
		return nil, err
	}
	m.open++
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		m.open--
		s.mu.Unlock()
	}, nil
}

// overLimit counts and logs what was refused for a client's limits.
func (g *Guard) overLimit(c caller, err *LimitError) {
	g.observe(ReasonLimit)
	g.refusals.add(c.from, "call refused", "over its client's limit", err)
}
