package queries

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
)

const ms = time.Millisecond

// led is a gateway that a leader has just answered, at time 0.
func led(t *testing.T) *run {
	t.Helper()
	r := newRun(0)
	t.Cleanup(func() {
		if r.fault != nil {
			t.Error(r.fault)
		}
	})
	r.tick()
	r.opened()
	return r
}

// atAgent is a led gateway with query 4, whose first attempt is under way, and that query's caller.
func atAgent(t *testing.T) (*run, *caller) {
	t.Helper()
	r := led(t)
	c := r.arrive()
	r.hears()
	r.assign(4)
	r.hears()
	r.look(c)
	return r, c
}

// hears has all that is under way arrive.
func (r *run) hears() {
	for r.leader != nil && len(r.up)+len(r.down) > 0 {
		r.read()
		for len(r.down) > 0 {
			first := r.down[0]
			r.down = r.down[1:]
			first()
		}
	}
}

// told is what is under way to the leader.
func (r *run) told() (all Message) {
	for _, m := range r.up {
		all.Submit = append(all.Submit, m.Submit...)
		all.Cancel = append(all.Cancel, m.Cancel...)
		all.Unused = append(all.Unused, m.Unused...)
	}
	return all
}

// TestSilence follows when a leader counts as silent, and as heard.
func TestSilence(t *testing.T) {
	s := New(func(*Query, names.AgentName) time.Duration { return 0 })
	s.Learn(Leadership{1, "a", ""})
	s.Try(0, func(names.AgentName) bool { return true })
	s.Opened(0)
	at := func(n int, want linkState) {
		t.Helper()
		if s.Check(time.Duration(n) * ms); s.link != want {
			t.Errorf("at %d ms: link is %d, want %d", n, s.link, want)
		}
	}
	at(149, linkOpen)
	at(151, linkSilent) // not one heartbeat
	s.HandleLeaderMessage(0, 160*ms)
	at(161, linkOpen)
	s.Arrive(&Query{}, 170*ms)
	s.Arrive(&Query{}, 170*ms)
	at(180, linkOpen)
	if wait := s.LookAgain(177 * ms); wait != 3*ms+1 {
		t.Errorf("3 ms before the leader is silent it is looked at again in %v", wait)
	}
	at(181, linkSilent)
	s.HandleLeaderMessage(1, 195*ms) // one of two
	at(195, linkSilent)
	if s.Inquire(195*ms) == nil {
		t.Error("nothing is decided alone")
	}
	s.HandleLeaderMessage(2, 200*ms)
	at(200, linkOpen)
	if s.Inquire(200*ms) != nil {
		t.Error("something is decided alone")
	}
	// One that is usually slow has longer.
	now := 300 * ms
	for range 50 {
		now += 30 * ms
		s.Arrive(&Query{}, now)
		s.HandleLeaderMessage(s.submitted, now+30*ms)
	}
	if got := s.maxSilence().Round(ms); got != 90*ms {
		t.Errorf("the leader has %v, want 90ms", got)
	}
	m, _ := s.Message()
	if !slices.IsSortedFunc(m.Submit,
		func(a, b Submit) int { return int(a.Query.Sequence) - int(b.Query.Sequence) }) {
		t.Error("submits out of order")
	}
	if left := s.Patience(now + 30*ms + lostSilence - 1); left != 1 {
		t.Errorf("1 ns before the leader is lost it has %v", left)
	}
}

// TestTries follows whom a gateway tries, and when it pauses.
func TestTries(t *testing.T) {
	s := New(nil)
	now := time.Duration(0)
	there := func(agent names.AgentName) bool { return agent != "gone" }
	tries := func(want names.AgentName, wantWait time.Duration) {
		t.Helper()
		if got, wait := s.Try(now, there); got != want || wait != wantWait {
			t.Errorf("at %v it tries %q, waits %v; want %q, %v", now, got, wait, want, wantWait)
		}
	}
	hangsUp := func(want bool) {
		t.Helper()
		if a, ok := s.Next(); ok != want || ok && a.Kind != HangUp {
			t.Errorf("at %v it wants %+v, %v, want it to hang up: %v", now, a, ok, want)
		}
	}
	tries("", firstRetry)
	tries("", 2*firstRetry)
	s.Learn(Leadership{1, "a", "b"})
	tries("a", 0)
	s.Tried(now)
	tries("b", 0)
	s.Tried(now)
	tries("", 4*firstRetry)
	tries("a", 0)
	s.Tried(now)
	s.Learn(Leadership{2, "c", "gone"}) // within the round, and so in place of b
	tries("c", 0)
	s.Opened(now)
	s.Learn(Leadership{3, "c", "a"}) // it leads again
	hangsUp(false)
	now += time.Second
	s.Tried(now) // it is lost: its successor is tried first, at once
	tries("a", 0)
	s.Learn(Leadership{4, "d", "c"})
	hangsUp(true)
	s.Tried(now)
	tries("d", 0)
	s.Opened(now)
	s.Tried(now) // at once: it might go on so for ever
	tries("", firstRetry)
	tries("c", 0)
	s.Tried(now)
	tries("d", 0)
	s.Learn(Leadership{5, "gone", "d"}) // who is tried already
	hangsUp(true)
}

// TestOfferedAgain follows one query whose attempts the leader gives up.
func TestOfferedAgain(t *testing.T) {
	r := led(t)
	c := r.arrive()
	r.hears()
	for n := uint32(1); n <= match.MaxAttempts; n++ {
		r.assign(4)
		r.hears()
		if n > 1 && c.tries[0].aborted != (n > 2) {
			t.Fatalf("attempt %d is cut off for attempt %d: %v", c.tries[0].target.Attempt, n,
				c.tries[0].aborted)
		} else if n > 2 { // two go on, and this was the first of them
			r.ends(c, c.tries[0], Elsewhere)
		}
		r.look(c)
		r.offerAgain(r.leader.assigned[n-1])
		r.hears()
		if c.last().aborted || c.last().target.Attempt != n {
			t.Fatalf("attempt %d does not go on although it may yet answer", n)
		}
	}
	r.s.HandleAssignment(Assign{Sequence: 4, Attempt: match.MaxAttempts + 1, Agent: "b"})
	r.carryOut()
	if m := r.told(); len(c.goOn()) != 2 || len(m.Unused) != 1 ||
		!slices.Equal(m.Cancel, []uint64{4}) {
		t.Errorf(
			"after the last attempt: %v go on, told %v; want the last two to go on, one assignment "+
				"unused and query 1 cancelled", c.goOn(), m)
	}
	r.attempted(c, Answered)
	if !c.last().aborted {
		t.Errorf("attempt %d goes on although another has answered", c.last().target.Attempt)
	}
	r.attempted(c, Elsewhere)
	if r.look(c); c.outcomes != 1 || c.q.err != nil {
		t.Errorf("got %d outcomes, error %v; want the answer", c.outcomes, c.q.err)
	}
}

// TestHedge follows a query of which a second attempt is made beside the first: the answer of
// either counts and ends the other, and a failure of either leaves the other.
func TestHedge(t *testing.T) {
	for _, first := range []bool{true, false} {
		for _, o := range []Outcome{Answered, Final, Elsewhere} {
			r, c := atAgent(t)
			r.offerAgain(r.leader.assigned[0])
			r.assign(4)
			r.hears()
			r.look(c)
			if len(c.goOn()) != 2 {
				t.Fatalf("%v go on, want two attempts", c.goOn())
			}
			one, other := c.tries[0], c.tries[1]
			if !first {
				one, other = other, one
			}
			r.ends(c, one, o)
			if other.aborted != (o == Answered) {
				t.Errorf("first %v comes to %d: the other is cut off: %v", first, o, other.aborted)
			}
			if m := r.told(); first && o == Answered && !slices.Equal(m.Cancel, []uint64{4}) {
				t.Errorf("the first attempt has answered, and the leader, which knows the second, is "+
					"told %v", m)
			}
			if o != Answered {
				r.hears()
				r.attempted(c, Answered)
			} else {
				r.attempted(c, Elsewhere)
			}
			if r.look(c); c.outcomes != 1 || c.q.err != nil {
				t.Errorf("first %v comes to %d: %d outcomes, error %v, want the answer", first, o,
					c.outcomes, c.q.err)
			}
		}
	}
}

// TestLeft: an agent answers a query, tells the leader so and is cut off, and the answer is lost.
// When it is no member any more, the query goes elsewhere, with the leader and without one. The
// attempt goes on until then.
func TestLeft(t *testing.T) {
	for _, leads := range []bool{true, false} {
		r, c := atAgent(t)
		at := c.last().target.Agent
		if leads {
			delete(r.leader.rows, 4)
			clear(r.leader.lanes)
		} else {
			r.hangUp("it breaks")
		}
		r.left("another")
		if r.hears(); leads && len(r.waiting()) > 0 {
			t.Fatal("the query is to go elsewhere because another agent has left")
		}
		r.left(at)
		if r.hears(); len(c.goOn()) == 0 {
			t.Fatalf("led %v: the attempt is cut off before there is another target", leads)
		}
		if leads {
			r.assign(4)
			r.hears()
		} else {
			r.now += minSilence
			r.tick()
			r.decide(true)
		}
		if r.look(c); len(c.tries) != 2 || c.last().target.Agent == "" {
			t.Errorf("led %v: the query does not go elsewhere", leads)
		}
	}
}

// TestGivesUp: the error after the last attempt says which that was.
func TestGivesUp(t *testing.T) {
	r := led(t)
	c := r.arrive()
	for n := range match.MaxAttempts {
		r.s.Decided(c.q, Target{Agent: names.AgentName(string(rune('a' + n))), Reservation: 1})
		r.s.inquiries = 0
		r.s.Take(c.q, r.now)
		r.s.Attempted(c.q, uint32(n+1), Elsewhere, errTest, r.now)
	}
	err, done := c.q.Ended()
	var gaveUp *GaveUp
	if !done || !errors.As(err, &gaveUp) ||
		*gaveUp != (GaveUp{
			match.MaxAttempts, names.AgentName(string(rune('a' + match.MaxAttempts - 1))), errTest,
		}) {
		t.Errorf("ended %v, with %v", done, err)
	}
}

// TestFailedAfterOfferedAgain: the leader, who has given the attempt up already, is not asked
// again.
func TestFailedAfterOfferedAgain(t *testing.T) {
	for _, offered := range []bool{true, false} {
		r, c := atAgent(t)
		if offered {
			r.offerAgain(r.leader.assigned[0])
			r.hears()
		}
		r.attempted(c, Elsewhere)
		m := r.told()
		if n := len(m.Submit) + len(m.Unused); offered && n > 0 || !offered && n != 2 {
			t.Errorf("offered again %v: told %v", offered, m)
		}
	}
}

// TestAnsweredUnderNewLeader: a lane that may have told the leader before of the end of an attempt
// is given back to the new one, who knows of the attempt from the gateway alone.
func TestAnsweredUnderNewLeader(t *testing.T) {
	for _, o := range []Outcome{Answered, Final} {
		r := led(t)
		c := r.arrive()
		r.s.HandleLeaderMessage(1, r.now)
		r.s.HandleAssignment(Assign{Sequence: 4, Attempt: 1, Agent: "x", Lane: 2})
		r.carryOut()
		r.look(c)
		r.hangUp("a test")
		r.again = r.now
		r.now += firstRetry
		r.tick()
		r.opened()
		if s := r.told().Submit; len(s) != 1 || s[0].Agent != "x" || s[0].Lane != 2 {
			t.Fatalf("told the new leader %v, want where the query is", s)
		}
		r.hears()
		r.attempted(c, o)
		m := r.told()
		if u := m.Unused; len(u) != 1 ||
			u[0] != (Assign{Sequence: 4, Attempt: 1, Agent: "x", Lane: 2}) ||
			!slices.Equal(m.Cancel, []uint64{4}) {
			t.Errorf("outcome %v: told %v, want query 1 cancelled and its lane given back", o, m)
		}
	}
}

// TestSilenceWithoutQueries: a leader that sends little while there are no queries has all of
// heartbeatSilence to send more once there is one.
func TestSilenceWithoutQueries(t *testing.T) {
	r := led(t)
	r.now += 300 * ms
	c := r.arrive()
	r.hears() // and then nothing
	if r.tick(); len(r.probing) > 0 {
		t.Error("the leader counts as silent because it sent nothing while there was no query")
	}
	r.s.heardAt = 0 // as if its acknowledgement had told nothing of when it was sent
	r.now += heartbeatSilence
	if r.tick(); len(r.probing) > 0 {
		t.Errorf("the leader is silent after %v", heartbeatSilence)
	}
	r.now++
	if r.tick(); len(r.probing) != 1 || r.probing[0] != c.q {
		t.Error("nothing is decided without the leader that is silent")
	}
}

// TestLeaderHeardAgain: a query that was sent elsewhere while the leader was silent goes on when
// the leader is heard again, whatever that one had decided about it before it read so.
func TestLeaderHeardAgain(t *testing.T) {
	for _, taken := range []bool{true, false} { // by its caller, before the leader is heard
		r := led(t)
		c := r.arrive()
		r.hears()
		r.now += heartbeatSilence + 1
		r.tick()
		if len(r.probing) != 1 {
			t.Fatal("nothing is decided without the leader that is silent")
		}
		r.assign(4) // says the leader, and is not heard
		r.assign(4)
		r.decide(true)
		if taken {
			r.look(c)
		}
		r.up = nil // it has read that before
		r.s.HandleLeaderMessage(1, r.now)
		r.carryOut()
		m := r.told()
		if s := m.Submit; len(s) != 1 || s[0].Agent != "agent-9" || s[0].Attempts != 1 ||
			len(m.Cancel) > 0 {
			t.Fatalf("told the leader %v, want where the query is", m)
		}
		r.up, r.heard = r.up[:1], r.now
		for _, crossing := range r.leader.assigned {
			r.s.HandleAssignment(crossing)
			r.carryOut()
		}
		r.look(c)
		if of := c.last(); of.aborted || of.target.Agent != "agent-9" || len(c.tries) > 1 {
			t.Errorf("%d attempts, the last at %q, aborted: %v; want one that goes on at agent-9",
				len(c.tries), of.target.Agent, of.aborted)
		}
		if u := r.told().Unused; !slices.EqualFunc(u, r.leader.assigned,
			func(a, b Assign) bool { return a.Attempt == b.Attempt && a.Agent == b.Agent }) {
			t.Errorf("given back are %v, want the leader's assignments %v", u, r.leader.assigned)
		}
		r.attempted(c, Answered)
		if r.look(c); c.outcomes != 1 || c.attempts != 1 || c.q.err != nil {
			t.Errorf("%d outcomes of %d attempts, error %v; want the answer of the only one",
				c.outcomes, c.attempts, c.q.err)
		}
	}
}

// TestCloses: whoever waits for a query is told that it has ended, and attempts are cut off.
func TestCloses(t *testing.T) {
	r := led(t)
	r.hears()
	for range 2 {
		r.arrive()
	}
	r.hears()
	r.assign(4)
	r.hears()
	r.look(r.callers[0])
	r.callers[0].last().excused = true
	r.s.Close(errTest)
	r.carryOut()
	for _, c := range r.callers {
		if err, done := c.q.Ended(); !done || err != errTest || !c.woken || len(c.goOn()) > 0 {
			t.Errorf("query %d: ended %v with %v, its caller is woken: %v; attempts that go on: %v",
				c.q.Sequence, done, err, c.woken, c.goOn())
		}
	}
	if r.s.pending.Len() > 0 || !r.callers[0].last().aborted {
		t.Error("a query is left, or its attempt goes on")
	}
}

// TestLeftAfterSilence: as TestLeft, of an attempt that the gateway had found overdue while the
// leader was silent, when no lane took the query.
func TestLeftAfterSilence(t *testing.T) {
	r, c := atAgent(t)
	delete(r.leader.rows, 4)
	clear(r.leader.lanes)
	r.now += heartbeatSilence + 1
	if r.tick(); len(r.probing) != 1 {
		t.Fatal("an overdue query is not decided without the leader that is silent")
	}
	r.decide(false)
	r.acknowledge()
	r.hears()
	r.left(c.last().target.Agent)
	r.hears()
	if all := r.waiting(); !slices.Equal(all, []uint64{4}) {
		t.Fatalf("at the leader wait %v, want the query", all)
	}
	r.assign(4)
	r.hears()
	if r.look(c); len(c.tries) != 2 {
		t.Error("the query does not go elsewhere")
	}
}
