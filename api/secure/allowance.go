package secure

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
)

// An allowance holds the limits of one client at one agent, as in the access file. Zero of anything
// means no limit.
type allowance struct {
	queries float64 // queries a second
	burst   float64 // queries at once after a pause; > 0 if queries > 0
	bytes   float64 // bytes of queries a second
	streams int     // open calls
}

// A Way is how a client's query comes to an agent. One query may come in several ways, to one agent
// or to several, so a client may use its whole allowance in each way.
type Way uint8

const (
	// Asked: the client asks the agent for the answer. It sends the query itself, or an SDK submits
	// the query to the leader.
	Asked Way = iota
	// Attempted: an SDK sends the query to this agent to run it.
	Attempted
	// Probed: an SDK asks when this agent would answer the query.
	Probed

	ways = 3
)

// A QueryPart is a part of a query that a leader has split, as an attempt's headers name it: what a
// gateway says. The parts of a query that come to one agent count as one query.
type QueryPart struct {
	Gateway uint64
	Query   uint64 // the number of the query at its gateway
	Number  uint   // of the part, from 1 on, below maxParts
}

// maxParts is above the number of any part: a gateway numbers its queries by fours.
const maxParts = control.Numbering

// PartOf returns the part that an attempt is for; ok is false if it is for a whole query.
func PartOf(a control.Attempt) (p QueryPart, ok bool) {
	p = QueryPart{a.Gateway, a.Sequence - a.Sequence%maxParts, uint(a.Sequence % maxParts)}
	return p, a.Part != 0 && p.Number != 0
}

// splitQueries are a client's latest queries that came in parts. The zero value has none.
type splitQueries struct {
	of    map[splitID]*splitQuery
	order []splitID // the oldest first
}

type splitID struct{ gateway, query uint64 }

// A splitQuery is a query that came in parts.
type splitQuery struct {
	parts uint // a bit for each
	rows  int  // theirs together
}

// maxSplit is how many split queries of a client are remembered. Their parts come at about the same
// time; a part that comes too late counts as a query.
const maxSplit = 128

// find returns the query of a part; nil if it is not known.
func (s *splitQueries) find(p QueryPart) *splitQuery { return s.of[splitID{p.Gateway, p.Query}] }

// add adds a part, of a query that may be new.
func (s *splitQueries) add(p QueryPart) {
	q := s.find(p)
	if q == nil {
		if s.of == nil {
			s.of = map[splitID]*splitQuery{}
		}
		if len(s.order) == maxSplit {
			delete(s.of, s.order[0])
			s.order = append(s.order[:0], s.order[1:]...)
		}
		q = &splitQuery{}
		id := splitID{p.Gateway, p.Query}
		s.of[id], s.order = q, append(s.order, id)
	}
	q.parts |= 1 << p.Number
}

// slack is the longest delay between the acceptance of a query, by the leader or by an SDK that
// decides without one, and its arrival here. Queries that were accepted over time may arrive
// together, so slack's worth of queries is added to the burst.
const slack = time.Second

const (
	// maxMeters is how many clients have a meter each. It takes as many names in use within
	// seconds to exceed it; all further clients then share one meter.
	maxMeters = 4096
	// sweepAgain is the least time between two searches for meters that can be removed.
	sweepAgain = time.Second
	// maxBytes is more than any query has: a larger size that a client announces is taken for
	// this.
	maxBytes = 4 << 30
	// streamsAgain is the Retry-After for a client with too many open calls.
	streamsAgain = time.Second
	// longestWait is the longest Retry-After.
	longestWait = time.Hour
)

// meters count the use of clients with limits. The methods may be called concurrently.
type meters struct {
	mu    sync.Mutex
	of    map[string]*meter // by client; "" is shared by clients beyond maxMeters
	swept time.Time
}

// A meter counts the use of one client.
type meter struct {
	open           int // open calls
	queries, bytes [ways]bucket
	split          splitQueries
}

// A bucket is a token bucket. An amount larger than the burst is accepted when the bucket is full,
// and leaves a debt, because it would never be accepted otherwise; golang.org/x/time/rate cannot do
// that. Each method gets the current rate, which may change.
type bucket struct {
	left float64
	at   time.Time // the time of left; zero: nothing was taken yet
}

// A rate is an amount a second, and the amount at once after a pause; 0 a second means no limit.
type rate struct{ perSecond, burst float64 }

// fill adds the tokens since the last call.
func (b *bucket) fill(now time.Time, r rate) {
	if b.left += r.perSecond * now.Sub(b.at).Seconds(); b.at.IsZero() || b.left > r.burst {
		b.left = r.burst
	}
	b.at = now
}

// wait returns how long until n more are accepted; 0: now.
func (b *bucket) wait(now time.Time, r rate, n float64) time.Duration {
	if r.perSecond == 0 || n == 0 {
		return 0
	}
	least := min(n, 1)
	if b.fill(now, r); b.left >= least {
		return 0
	}
	return time.Duration(min((least-b.left)/r.perSecond*float64(time.Second),
		float64(longestWait))) + 1
}

// takeTokens takes n tokens, also if fewer are left.
func (b *bucket) takeTokens(now time.Time, r rate, n float64) {
	if r.perSecond > 0 {
		b.fill(now, r)
		b.left -= n
	}
}

// isFull reports whether the bucket is full.
func (b *bucket) isFull(now time.Time, r rate) bool {
	if r.perSecond > 0 && !b.at.IsZero() {
		b.fill(now, r)
		return b.left == r.burst
	}
	return true
}

// ratesOf returns the rates of queries and of their bytes for a way.
func (a *allowance) ratesOf(w Way) (queries, bytes rate) {
	queries, bytes = rate{a.queries, a.burst}, rate{a.bytes, a.bytes}
	if w != Asked {
		queries.burst += a.queries * slack.Seconds()
		bytes.burst += a.bytes * slack.Seconds()
	}
	return queries, bytes
}

// isIdle reports whether the meter equals an unused one, so that it can be removed.
func (m *meter) isIdle(now time.Time, a *allowance) bool {
	for w := Way(0); a != nil && w < ways; w++ {
		queries, bytes := a.ratesOf(w)
		if !m.queries[w].isFull(now, queries) || !m.bytes[w].isFull(now, bytes) {
			return false
		}
	}
	return m.open == 0
}

// meterOf returns the client's meter, and makes one if there is none. allowed returns a client's
// limits. s.mu is held.
func (s *meters) meterOf(client string, now time.Time,
	allowed func(client string) *allowance) *meter {
	if m := s.of[client]; m != nil {
		return m
	}
	if s.of == nil {
		s.of = map[string]*meter{}
	}
	if len(s.of) >= maxMeters && now.Sub(s.swept) >= sweepAgain {
		s.swept = now
		for name, m := range s.of {
			if m.isIdle(now, allowed(name)) {
				delete(s.of, name)
			}
		}
	}
	if len(s.of) >= maxMeters {
		if client = ""; s.of[client] != nil {
			return s.of[client]
		}
	}
	m := &meter{}
	s.of[client] = m
	return m
}

// A LimitError is the error of a query or call beyond its client's limits.
type LimitError struct {
	text       string
	RetryAfter time.Duration // how long the client should wait, > 0
}

func (e *LimitError) Error() string { return e.text }

// grpcStatus returns the error as a gRPC status.
func (e *LimitError) grpcStatus() error {
	return oip.Explain(status.New(codes.ResourceExhausted, e.text), "limit", e.RetryAfter).Err()
}

// allowanceOf returns the client's limits; nil: none.
func (g *Guard) allowanceOf(client string) *allowance {
	return g.access.get().rightsOf(client).limits
}

// callerLimits returns the caller of the call with context ctx, and its limits; a is nil if it has
// none.
func (g *Guard) callerLimits(ctx context.Context) (c caller, a *allowance) {
	c, _ = ctx.Value(callerKey{}).(caller)
	if c.name == "" || c.agent || c.open {
		return c, nil
	}
	return c, g.allowanceOf(c.name)
}

// Query counts a query of the caller of the call with context ctx, with the number of its bytes
// that are known so far. It returns a [*LimitError] if the query exceeds the caller's limits, which
// are those of the access file now.
func (g *Guard) Query(ctx context.Context, w Way, bytes int64) error {
	return g.countUse(ctx, w, 1, bytes, false)
}

// QueryPart is Query for an attempt at a part of a query. The first part of a query that comes
// counts as an attempt at a query, the others as nothing; but a part that comes again does, as it
// may be another query under the same numbers.
func (g *Guard) QueryPart(ctx context.Context, p QueryPart) error {
	c, a := g.callerLimits(ctx)
	if a == nil {
		return nil
	}
	if err := g.meters.usePart(c.name, a, p, g.allowanceOf); err != nil {
		g.overLimit(c, err)
		return err
	}
	return nil
}

// usePart is QueryPart for a client with limits.
func (s *meters) usePart(client string, a *allowance, p QueryPart,
	allowed func(string) *allowance) *LimitError {
	s.mu.Lock()
	defer s.mu.Unlock()
	split := &s.meterOf(client, time.Now(), allowed).split
	if q := split.find(p); q == nil || q.parts&(1<<p.Number) != 0 {
		if err := s.useLocked(client, a, Attempted, 1, 0, false, allowed); err != nil {
			return err
		}
	}
	split.add(p)
	return nil
}

// PartRows counts the rows of a part that QueryPart has accepted. Parts of one query have together
// no more than largest, the most that a query may have; who sends more has sent several queries, of
// which the last one counts as one of its own.
func (g *Guard) PartRows(ctx context.Context, p QueryPart, rows, largest int) error {
	c, a := g.callerLimits(ctx)
	if a == nil {
		return nil
	}
	s := &g.meters
	s.mu.Lock()
	q := s.meterOf(c.name, time.Now(), g.allowanceOf).split.find(p)
	over := q != nil && q.rows > 0 && q.rows+rows > largest
	if q != nil {
		if q.rows += rows; over {
			q.rows = rows
		}
	}
	s.mu.Unlock()
	if over {
		return g.countUse(ctx, Attempted, 1, 0, false)
	}
	return nil
}

// Bytes counts further bytes of a query that [Guard.Query] has accepted. It returns an error only
// if first is set, which says that these are the first bytes counted: a query is never refused half
// way.
func (g *Guard) Bytes(ctx context.Context, w Way, bytes int64, first bool) error {
	return g.countUse(ctx, w, 0, bytes, !first)
}

func (g *Guard) countUse(ctx context.Context, w Way, queries float64, bytes int64,
	anyway bool) error {
	c, a := g.callerLimits(ctx)
	if a == nil {
		return nil
	}
	if err := g.meters.countUse(c.name, a, w, queries, float64(min(max(0, bytes), maxBytes)),
		anyway,
		g.allowanceOf); err != nil {
		g.overLimit(c, err)
		return err
	}
	return nil
}

// countUse counts queries and bytes of a client, or neither and returns why. If anyway is set it
// counts them in any case.
func (s *meters) countUse(client string, a *allowance, w Way, queries, bytes float64, anyway bool,
	allowed func(string) *allowance) *LimitError {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.useLocked(client, a, w, queries, bytes, anyway, allowed)
}

// useLocked is use with s.mu held.
func (s *meters) useLocked(client string, a *allowance, w Way, queries, bytes float64, anyway bool,
	allowed func(string) *allowance) *LimitError {
	now := time.Now()
	m := s.meterOf(client, now, allowed)
	ofQueries, ofBytes := &m.queries[w], &m.bytes[w]
	queryRate, byteRate := a.ratesOf(w)
	if !anyway {
		if wait := ofQueries.wait(now, queryRate, queries); wait > 0 {
			return overLimit(client, a.queries, "queries a second", wait)
		}
		if wait := ofBytes.wait(now, byteRate, bytes); wait > 0 {
			return overLimit(client, a.bytes, "bytes a second", wait)
		}
	}
	ofQueries.takeTokens(now, queryRate, queries)
	ofBytes.takeTokens(now, byteRate, bytes)
	return nil
}

func overLimit(client string, limit float64, of string, wait time.Duration) *LimitError {
	return &LimitError{
		fmt.Sprintf("client %q is over its limit of %s %s", client,
			strconv.FormatFloat(limit, 'f', -1, 64), of), wait,
	}
}

// holdCall counts a call as open until done is called, or returns why it is refused. done is nil if
// the caller has no limit of open calls.
func (g *Guard) holdCall(ctx context.Context) (done func(), _ *LimitError) {
	c, a := g.callerLimits(ctx)
	if a == nil || a.streams == 0 {
		return nil, nil
	}
	s := &g.meters
	s.mu.Lock()
	m := s.meterOf(c.name, time.Now(), g.allowanceOf)
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

// overLimit counts and logs a refusal because of a client's limits.
func (g *Guard) overLimit(c caller, err *LimitError) {
	g.observe(ReasonLimit)
	g.refusals.add(c.from, "call refused", "over its client's limit", err)
}
