package client

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader/match"
)

// A queriesRun drives queries at random, as callers, leaders and workers might, and
// checks what must hold after every step.
type queriesRun struct {
	t        *testing.T
	rng      *rand.Rand
	d        queries
	now      time.Time
	callers  []*queryCaller
	rows     map[uint64]uint32 // what the leader has: the last attempt it knows
	assigned []*control.Assign // by this leader
	lastID   uint64
	reserved map[uint64]bool // by probe: true until released or taken
	probing  []uint64        // queries that inquire has returned
	log      []string
}

// A queryCaller is the caller of a query.
type queryCaller struct {
	q        *query
	attempt  bool // one is under way
	aborted  bool
	target   target
	attempts int
	outcomes int
}

func newQueriesRun(t *testing.T, seed uint64) *queriesRun {
	return &queriesRun{
		t: t, rng: rand.New(rand.NewPCG(seed, 0)), now: time.Unix(0, 0), rows: map[uint64]uint32{}, reserved: map[uint64]bool{},
		d: newQueries(func(*query, string) time.Duration { return leastOverdue }),
	}
}

func (r *queriesRun) step(name string, args ...any) {
	r.log = append(r.log, fmt.Sprintf("%v %s %v", r.now.Sub(time.Unix(0, 0)), name, args))
}

func (r *queriesRun) arrive() {
	r.callers = slices.DeleteFunc(r.callers, func(c *queryCaller) bool { return c.outcomes == 1 && r.rng.IntN(4) > 0 })
	c := &queryCaller{}
	c.q = &query{model: "m", batch: 1, arrival: r.now, wake: make(chan struct{}, 1)}
	r.callers = append(r.callers, c)
	r.d.arrive(c.q, r.now)
	r.step("arrive", c.q.sequence)
}

// look is what a caller does when it is woken.
func (r *queriesRun) look(c *queryCaller) {
	select {
	case <-c.q.wake:
	default:
		return
	}
	if c.attempt {
		r.t.Fatal("a caller was woken that makes an attempt")
	}
	t, ok := r.d.take(c.q, func() { c.aborted = true }, r.now)
	switch {
	case c.q.stage == ended:
		c.outcomes++
	case ok:
		r.step("take", c.q.sequence, t.agent, t.attempt)
		c.attempt, c.aborted, c.target = true, false, t
		c.attempts++
		if t.reservation != 0 {
			if !r.reserved[t.reservation] {
				r.t.Fatalf("reservation %d is taken twice, or was released", t.reservation)
			}
			delete(r.reserved, t.reservation)
		}
	}
}

func (r *queriesRun) attempted(c *queryCaller, v outcome) {
	if c.aborted && v == final {
		v = elsewhere
	}
	err := error(nil)
	if v != answered {
		err = status.Error(codes.Unavailable, "x")
	}
	r.step("attempted", c.q.sequence, v)
	done := r.d.attempted(c.q, v, err, r.now)
	c.attempt = false
	if done != (c.q.stage == ended) {
		r.t.Fatalf("attempted says %v, the query has ended: %v", done, c.q.stage == ended)
	}
	if done {
		c.outcomes++
		select {
		case <-c.q.wake:
		default:
		}
	}
}

// read is the leader reading what the gateway has said.
func (r *queriesRun) read() {
	m := r.d.message
	if m == nil {
		return
	}
	r.d.message = nil
	for _, s := range m.Submit {
		if known, ok := r.rows[s.Sequence]; !ok || s.Attempts > known {
			r.rows[s.Sequence] = s.Attempts
		}
	}
	for _, sequence := range m.Cancel {
		delete(r.rows, sequence)
	}
	for _, a := range m.Unused {
		if a.Agent == "" || a.Attempt == 0 {
			r.t.Fatalf("unused is %v", a)
		}
	}
	for q := r.d.first; q != nil; q = q.nxt {
		if _, known := r.rows[q.sequence]; q.atLeader != unknown && !known {
			r.t.Fatalf("query %d is submitted, but the leader has forgotten it: it was told %v", q.sequence, m)
		}
	}
	r.d.heard(r.d.submitted, r.now)
}

func (r *queriesRun) released() {
	for _, p := range r.d.released {
		if !r.reserved[p.reservation] {
			r.t.Fatalf("reservation %d is released twice, or was taken", p.reservation)
		}
		delete(r.reserved, p.reservation)
	}
	r.d.released = nil
}

// turn checks from when on q may be decided without a leader, as they have it, by what q is now.
func (r *queriesRun) turn(q *query) {
	never := r.d.link == linkOpen && !q.unled || q.inquired || q.hasNext() || q.attempts >= match.MaxAttempts
	due := q.again
	if since := q.since.Add(leastSilence); r.d.link == linkOpening && !r.d.lost && since.After(due) {
		due = since
	}
	if overdue := q.at.sent.Add(q.at.took + leastOverdue); q.stage == sent && overdue.After(due) {
		due = overdue
	}
	if never != (q.turns == nil) || !never && !q.due.Equal(due) {
		r.t.Fatalf("query %d is to be decided alone: %v, due %v; want %v, due %v", q.sequence, q.turns != nil, q.due, !never, due)
	}
}

func (r *queriesRun) check() {
	r.released()
	n, unled, turns := 0, 0, 0
	for q := r.d.first; q != nil; q = q.nxt {
		n++
		r.turn(q)
		if q.turns != nil {
			turns++
		}
		if r.d.bySequence[q.sequence] != q || q.stage == ended {
			r.t.Fatalf("query %d is in the list but not in the map, or has ended", q.sequence)
		}
		if q.atLeader != unknown && (r.d.link < linkOpen || q.unled) {
			r.t.Fatalf("query %d is submitted, to nobody or though it is decided without a leader: %+v", q.sequence, q)
		}
		if q.unled {
			unled++
		}
	}
	if all := len(r.d.ready.queries) + len(r.d.later.queries); all != turns {
		r.t.Fatalf("%d queries are to be decided alone, in the heaps are %d", turns, all)
	}
	if n != len(r.d.bySequence) || unled != r.d.unled {
		r.t.Fatalf("%d in the list, %d in the map; %d unled, counted are %d", n, len(r.d.bySequence), unled, r.d.unled)
	}
	for _, c := range r.callers {
		q := c.q
		if c.attempts > match.MaxAttempts || q.attempts != c.attempts {
			r.t.Fatalf("query %d: %d attempts were made, the gateway counts %d, the most is %d", q.sequence, c.attempts, q.attempts, match.MaxAttempts)
		}
		if c.outcomes > 1 {
			r.t.Fatalf("query %d has %d outcomes", q.sequence, c.outcomes)
		}
		if c.attempt != (q.abort != nil) || q.stage != ended && c.attempt != q.underWay() {
			r.t.Fatalf("query %d: an attempt is under way: %v, the gateway has it at stage %d", q.sequence, c.attempt, q.stage)
		}
		if (q.hasNext() || q.stage == ended) && !c.attempt && c.outcomes == 0 && len(q.wake) == 0 {
			r.t.Fatalf("query %d: nobody is told that it has a place or an end", q.sequence)
		}
		if q.hasNext() && c.attempt && !c.aborted {
			r.t.Fatalf("query %d is assigned anew, but its attempt goes on", q.sequence)
		}
	}
}

func (r *queriesRun) pick() *queryCaller {
	if len(r.callers) == 0 {
		return nil
	}
	return r.callers[r.rng.IntN(len(r.callers))]
}

func (r *queriesRun) assign(sequence uint64) {
	a := &control.Assign{Sequence: sequence, Attempt: r.rows[sequence] + 1, Agent: fmt.Sprint("agent-", r.rng.IntN(4)), ExecutionNs: 1e6}
	r.rows[sequence] = a.Attempt
	r.assigned = append(r.assigned, a)
	r.step("assign", a.Sequence, a.Attempt)
	r.d.assign(a)
}

func (r *queriesRun) random() {
	r.now = r.now.Add(time.Duration(r.rng.IntN(10)) * time.Millisecond)
	switch r.rng.IntN(18) {
	case 0, 1:
		if len(r.d.bySequence) < 4 { // few, so that much happens to each
			r.arrive()
		}
	case 2, 3, 4:
		if c := r.pick(); c != nil {
			r.look(c)
		}
	case 5, 6:
		if c := r.pick(); c != nil && c.attempt {
			r.attempted(c, []outcome{answered, final, elsewhere, elsewhere, elsewhere, elsewhere}[r.rng.IntN(6)])
		}
	case 7: // the caller gives up
		if c := r.pick(); c != nil && c.q.stage != ended && r.rng.IntN(4) == 0 {
			r.step("end", c.q.sequence)
			r.d.end(c.q, status.Error(codes.Canceled, "x"))
			if c.attempt {
				r.attempted(c, elsewhere)
			}
		}
	case 8:
		if r.rng.IntN(2) == 0 {
			return
		}
		r.step("opened")
		r.d.opened(r.now)
		clear(r.rows)
		r.assigned = nil
	case 9:
		if r.rng.IntN(3) == 0 {
			r.step("closed")
			r.d.closed(r.rng.IntN(2) == 0, r.now)
			clear(r.rows)
			r.assigned = nil
		}
	case 10:
		r.d.check(r.now)
	case 11:
		if r.d.link >= linkOpen {
			r.read()
		}
	case 12, 13:
		if c := r.pick(); c != nil && r.d.link >= linkOpen {
			if _, ok := r.rows[c.q.sequence]; ok || r.rng.IntN(10) == 0 { // or one it should not
				r.assign(c.q.sequence)
			}
		}
	case 14:
		if len(r.assigned) > 0 {
			a := r.assigned[r.rng.IntN(len(r.assigned))]
			r.step("offer again", a.Sequence, a.Attempt)
			r.d.offerAgain(&control.OfferAgain{Sequence: a.Sequence, Attempt: a.Attempt})
		}
	case 15:
		if c := r.pick(); c != nil && r.rng.IntN(4) == 0 {
			r.step("reject", c.q.sequence)
			delete(r.rows, c.q.sequence)
			r.d.reject(&control.Reject{Sequence: c.q.sequence, Reason: match.Overloaded.String()})
		}
	case 16:
		if q := r.d.inquire(r.now); q != nil {
			r.step("alone", q.sequence)
			r.probing = append(r.probing, q.sequence)
		}
	case 17:
		r.decide(r.rng.IntN(3) > 0)
	}
}

func (r *queriesRun) decide(somebody bool) {
	if len(r.probing) == 0 {
		return
	}
	sequence := r.probing[0]
	r.probing = r.probing[1:]
	r.step("decided", sequence, somebody)
	if !somebody {
		r.d.undecided(sequence, r.now.Add(20*time.Millisecond), "x")
		return
	}
	r.lastID++
	r.reserved[r.lastID] = true
	r.d.decided(sequence, target{agent: "agent-9", reservation: r.lastID, took: time.Millisecond})
}

// finish has everybody behave from now on: with or without a leader, every
// query must have its outcome soon.
func (r *queriesRun) finish(led bool) {
	r.step("finish", led)
	if led {
		if r.d.link < linkOpen || r.rng.IntN(2) == 0 {
			r.d.opened(r.now)
			clear(r.rows)
		}
	} else {
		r.d.closed(false, r.now)
	}
	for range 50 {
		r.now = r.now.Add(200 * time.Millisecond)
		if led {
			r.read()
			for _, c := range r.callers {
				if q := c.q; q.stage != ended && q.atLeader == waits {
					r.assign(q.sequence)
				}
			}
		}
		for q := r.d.inquire(r.now); q != nil; q = r.d.inquire(r.now) {
			r.probing = append(r.probing, q.sequence)
		}
		for len(r.probing) > 0 {
			r.decide(true)
		}
		r.check()
		for _, c := range r.callers {
			r.look(c)
			if c.attempt {
				if c.aborted {
					r.attempted(c, elsewhere)
				} else {
					r.attempted(c, answered)
				}
			}
			r.look(c)
		}
		r.check()
	}
	for _, c := range r.callers {
		if c.outcomes != 1 {
			r.t.Errorf("query %d has %d outcomes: %+v", c.q.sequence, c.outcomes, c.q)
		}
	}
	if len(r.d.bySequence) > 0 || len(r.reserved) > 0 {
		r.t.Errorf("%d queries and reservations %v are left", len(r.d.bySequence), r.reserved)
	}
}

// TestQueriesProperties: whatever happens in whatever order, a query has one
// attempt at a time and at most match.MaxAttempts, exactly one outcome, and no
// reservation is forgotten.
func TestQueriesProperties(t *testing.T) {
	for seed := range uint64(1500) {
		r := newQueriesRun(t, seed)
		t.Run("", func(t *testing.T) {
			r.t = t
			defer func() {
				if t.Failed() {
					t.Logf("seed %d", seed)
					for _, line := range r.log[max(0, len(r.log)-60):] {
						t.Log(line)
					}
				}
			}()
			for range 150 {
				r.random()
				r.check()
			}
			r.finish(seed%2 == 0)
		})
		if t.Failed() {
			return
		}
	}
}

// TestSilence follows when a leader counts as silent, and as heard.
func TestSilence(t *testing.T) {
	r := newQueriesRun(t, 0)
	ms := func(n int) time.Time { return time.Unix(0, 0).Add(time.Duration(n) * time.Millisecond) }
	at := func(n int, want linkState) {
		t.Helper()
		if r.d.check(ms(n)); r.d.link != want {
			t.Errorf("at %d ms: link is %d, want %d", n, r.d.link, want)
		}
	}
	r.d.opened(ms(0))
	at(149, linkOpen)
	at(151, linkSilent) // not one heartbeat
	r.d.heard(0, ms(160))
	at(161, linkOpen)
	r.now = ms(170)
	r.arrive()
	r.arrive()
	at(180, linkOpen)
	if wait := r.d.lookAgain(ms(177)); wait != 3*time.Millisecond+1 {
		t.Errorf("3 ms before the leader is silent it is looked at again in %v", wait)
	}
	at(181, linkSilent)
	r.d.heard(1, ms(195)) // one of two
	at(195, linkSilent)
	if r.d.inquire(ms(195)) == nil {
		t.Error("nothing is decided alone")
	}
	r.d.heard(2, ms(200))
	at(200, linkOpen)
	if r.d.inquire(ms(200)) != nil {
		t.Error("something is decided alone")
	}
	// One that is usually slow has longer.
	r.now = ms(300)
	for range 50 {
		r.now = r.now.Add(30 * time.Millisecond)
		r.arrive()
		r.d.heard(r.d.submitted, r.now.Add(30*time.Millisecond))
	}
	if got := r.d.silence().Round(time.Millisecond); got != 90*time.Millisecond {
		t.Errorf("the leader has %v, want 90ms", got)
	}
	if !slices.IsSorted(r.d.submitOrder()) {
		t.Error("submits out of order")
	}
}

func (qs *queries) submitOrder() (sequences []uint64) {
	for _, s := range qs.message.GetSubmit() {
		sequences = append(sequences, s.Sequence)
	}
	return sequences
}

// TestQueriesOfferedAgain follows one query whose attempts the leader gives up.
func TestQueriesOfferedAgain(t *testing.T) {
	r := newQueriesRun(t, 0)
	r.d.opened(r.now)
	r.arrive()
	c := r.callers[0]
	for n := uint32(1); n <= match.MaxAttempts; n++ {
		r.d.assign(&control.Assign{Sequence: 1, Attempt: n, Agent: "a"})
		if c.attempt { // the one before
			if !c.aborted {
				t.Fatalf("attempt %d goes on beside attempt %d", n-1, n)
			}
			r.attempted(c, elsewhere)
		}
		r.look(c)
		r.d.offerAgain(&control.OfferAgain{Sequence: 1, Attempt: n})
		if !c.attempt || c.aborted {
			t.Fatalf("attempt %d does not go on although it may yet answer", n)
		}
	}
	r.read()
	r.d.assign(&control.Assign{Sequence: 1, Attempt: match.MaxAttempts + 1, Agent: "b"})
	if m := r.d.message; c.aborted || len(m.GetUnused()) != 1 || !slices.Equal(m.GetCancel(), []uint64{1}) {
		t.Errorf("after the last attempt: aborted %v, told %v; want it to go on, one assignment unused and query 1 cancelled", c.aborted, m)
	}
	r.attempted(c, answered)
	if c.outcomes != 1 || c.q.err != nil {
		t.Errorf("got %d outcomes, error %v; want the answer", c.outcomes, c.q.err)
	}
}

// TestQueriesFailedAfterOfferedAgain: the leader, who has given the attempt up
// already, is not asked again.
func TestQueriesFailedAfterOfferedAgain(t *testing.T) {
	for _, offered := range []bool{true, false} {
		r := newQueriesRun(t, 0)
		r.d.opened(r.now)
		r.arrive()
		r.d.assign(&control.Assign{Sequence: 1, Attempt: 1, Agent: "a"})
		r.look(r.callers[0])
		r.read()
		if offered {
			r.d.offerAgain(&control.OfferAgain{Sequence: 1, Attempt: 1})
		}
		r.attempted(r.callers[0], elsewhere)
		m := r.d.message
		if offered && m != nil || !offered && (len(m.GetSubmit()) != 1 || len(m.GetUnused()) != 1) {
			t.Errorf("offered again %v: told %v", offered, m)
		}
	}
}

// TestQueriesAnsweredUnderNewLeader: a lane that may have told the leader before of the end of an
// attempt is given back to the new one, who knows of the attempt from the gateway alone.
func TestQueriesAnsweredUnderNewLeader(t *testing.T) {
	for _, v := range []outcome{answered, final} {
		r := newQueriesRun(t, 0)
		r.d.opened(r.now)
		r.arrive()
		r.d.assign(&control.Assign{Sequence: 1, Attempt: 1, Agent: "a", Lane: 2})
		r.look(r.callers[0])
		r.d.opened(r.now) // the next leader's link
		if s := r.d.message.GetSubmit(); len(s) != 1 || s[0].Agent != "a" {
			t.Fatalf("told the new leader %v, want where the query is", s)
		}
		r.read()
		r.attempted(r.callers[0], v)
		m := r.d.message
		if u := m.GetUnused(); len(u) != 1 || u[0].Agent != "a" || u[0].Lane != 2 || u[0].Attempt != 1 || !slices.Equal(m.GetCancel(), []uint64{1}) {
			t.Errorf("outcome %v: told %v, want query 1 cancelled and its lane given back", v, m)
		}
	}
}

// TestQueriesLeaderHeardAgain: a query that was sent elsewhere while the leader was silent goes on when the leader is
// heard again, whatever that one had decided about it before it read so.
func TestQueriesLeaderHeardAgain(t *testing.T) {
	for _, taken := range []bool{true, false} { // by its caller, before the leader is heard
		r := newQueriesRun(t, 0)
		r.d.opened(r.now)
		r.arrive()
		r.read()
		r.now = r.now.Add(heartbeatSilence + 1)
		r.d.check(r.now)
		if r.d.link != linkSilent || r.d.inquire(r.now) == nil {
			t.Fatal("nothing is decided without the leader that is silent")
		}
		r.probing = []uint64{1}
		r.decide(true)
		c := r.callers[0]
		if taken {
			r.look(c)
		}
		r.d.heard(1, r.now)
		m := r.d.message
		if s := m.GetSubmit(); len(s) != 1 || s[0].Agent != "agent-9" || s[0].Attempts != 1 || len(m.GetCancel()) > 0 {
			t.Fatalf("told the leader %v, want where the query is", m)
		}
		crossing := &control.Assign{Sequence: 1, Attempt: 1, Agent: "agent-1"}
		r.d.assign(crossing)
		r.look(c)
		if c.aborted || c.target.agent != "agent-9" {
			t.Errorf("the attempt is at %q, aborted: %v; want it to go on at agent-9", c.target.agent, c.aborted)
		}
		if u := m.GetUnused(); len(u) != 1 || u[0] != crossing {
			t.Errorf("given back are %v, want the leader's assignment", u)
		}
		r.read()
		r.attempted(c, answered)
		if c.outcomes != 1 || c.attempts != 1 || c.q.err != nil {
			t.Errorf("%d outcomes of %d attempts, error %v; want the answer of the only one", c.outcomes, c.attempts, c.q.err)
		}
	}
}
