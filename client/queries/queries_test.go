package queries

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
)

var errTest = errors.New("a test")

// A run drives a State at random, as callers, leaders, workers and a network might, and checks what
// must hold after every step. Everything follows from the seed.
type run struct {
	rng     *rand.Rand
	s       *State
	now     time.Duration
	callers []*caller
	mutant  *mutant
	fault   error // the first broken promise
	log     []string

	splits bool            // leaders split queries often
	known  Leadership      // the newest there is
	lies   bool            // nobody answers as a leader
	stream names.AgentName // to whom one is open, or being opened
	again  time.Duration
	leader *leaderAt       // at its other end; nil: it has not answered as a leader
	up     []Message       // under way to it
	down   []func()        // and from it
	sent   []time.Duration // submits that it has not acknowledged
	acked  uint64
	usual  time.Duration // between a submit and its acknowledgement
	heard  time.Duration // when it was heard last
	busy   time.Duration // when a query came while there was none

	made, hedged int // attempts, and those beside another
	budget       float64

	reserved map[uint64]bool // by probe: true until released or taken
	lastID   uint64
	probing  []*Query // that Inquire has returned
}

// A caller is that of a query, or of a part.
type caller struct {
	q         *Query
	parts     []*caller // those of the query's parts; nil: it was not split
	tries     []*try    // attempts under way, the oldest first
	attempts  int
	failures  int
	passed    bool // so many have failed that it is to be decided alone
	gaveUp    bool
	outcomes  int
	woken     bool
	submitted bool // the leader linked knows of it
	answered  bool // by its own attempt
}

// A try is an attempt.
type try struct {
	target  Target
	aborted bool
	excused bool // somebody has given it up
}

// try is the attempt under way with a number, nil if there is none.
func (c *caller) try(attempt uint32) *try {
	for _, a := range c.tries {
		if a.target.Attempt == attempt {
			return a
		}
	}
	return nil
}

// last is the newest attempt under way, nil if there is none.
func (c *caller) last() *try {
	if len(c.tries) == 0 {
		return nil
	}
	return c.tries[len(c.tries)-1]
}

// goOn are the attempts that are not aborted.
func (c *caller) goOn() (all []uint32) {
	for _, a := range c.tries {
		if !a.aborted {
			all = append(all, a.target.Attempt)
		}
	}
	return all
}

// A leaderAt is what a leader has of the gateway: as leader.State, without anything to decide with.
type leaderAt struct {
	rows     map[uint64]*row // queries without an outcome
	lanes    map[place]bool  // those reserved; true: only the gateway has spoken of it
	assigned []Assign
	read     uint64
}

type row struct {
	attempts uint32
	at       names.AgentName // the agent where it is; "": it waits
}

type place struct {
	sequence uint64
	attempt  uint32
	agent    names.AgentName
}

func newRun(seed uint64) *run {
	r := &run{
		rng: rand.New(rand.NewPCG(seed, 0)), reserved: map[uint64]bool{}, known: Leadership{
			1, "a", "b",
		},
		s:      New(func(*Query, names.AgentName) time.Duration { return 0 }),
		splits: seed%4 >= 2,
	}
	if r.s.Learn(r.known); seed%3 == 1 { // few hedges, so that attempts are cut off for others, too
		r.s.hedges = 1
	}
	r.budget = r.s.hedges
	return r
}

func (r *run) failf(format string, args ...any) {
	if r.fault == nil {
		r.fault = fmt.Errorf("at %v: "+format, append([]any{r.now}, args...)...)
	}
}

func (r *run) note(format string, args ...any) {
	r.log = append(r.log, fmt.Sprintf("%v "+format, append([]any{r.now}, args...)...))
}

func (r *run) one(in int) bool { return r.rng.IntN(in) == 0 }

func (r *run) arrive() *caller {
	r.callers = slices.DeleteFunc(r.callers,
		func(c *caller) bool { return c.outcomes == 1 && len(c.tries) == 0 && !r.one(4) })
	c := &caller{}
	c.q = &Query{Arrival: r.now, Tag: c}
	r.callers = append(r.callers, c)
	if r.s.pending.Len() == 0 {
		r.busy = r.now
	}
	r.s.Arrive(c.q, r.now)
	r.note("%d arrives", c.q.Sequence)
	r.carryOut()
	return c
}

// carryOut does what the state wants after an event.
func (r *run) carryOut() {
	hangUp := false
	for a, ok := r.s.Next(); ok; a, ok = r.s.Next() {
		if m := r.mutant; m != nil && m.action != nil && !m.action(r, &a) {
			continue
		}
		switch a.Kind {
		case Wake:
			a.Query.Tag.(*caller).woken = true
		case CutOff:
			c := a.Query.Tag.(*caller)
			of := c.try(a.Attempt)
			if of == nil {
				r.failf("attempt %d of query %d is cut off, and not under way", a.Attempt,
					c.q.Sequence)
				continue
			}
			if whole := c.q.whole; !of.excused && !c.answered && (whole == nil ||
				whole.stage != ended) {
				r.failf("query %d is cut off on agent %s, and nobody has given it up", c.q.Sequence,
					of.target.Agent)
			}
			of.aborted = true
		case Release:
			if !r.reserved[a.Reservation] {
				r.failf("reservation %d is released twice, or was taken", a.Reservation)
			}
			delete(r.reserved, a.Reservation)
		case HangUp:
			hangUp = true
		}
	}
	for m, ok := r.s.Message(); ok; m, ok = r.s.Message() {
		if r.leader == nil {
			r.failf("there is no leader, and it is told %v", m)
			return
		}
		m = Message{slices.Clone(m.Submit), slices.Clone(m.Cancel), slices.Clone(m.Unused)}
		for _, s := range m.Submit {
			r.sent = append(r.sent, r.now)
			s.Query.Tag.(*caller).submitted = true
		}
		for _, u := range m.Unused {
			if u.Agent == "" || u.Attempt == 0 {
				r.failf("unused is %v", u)
			}
		}
		if r.mutant != nil && r.mutant.message != nil {
			r.mutant.message(&m)
		}
		r.up = append(r.up, m)
	}
	if hangUp && r.stream != "" {
		r.hangUp("another leads")
	}
}

// The link.

func (r *run) hangUp(why string) {
	r.note("the stream to %s ends: %s", r.stream, why)
	r.stream, r.leader, r.up, r.down, r.sent = "", nil, nil, nil, nil
	for _, c := range r.callers {
		c.submitted = false
	}
	r.s.Tried(r.now)
	r.carryOut()
}

func (r *run) opened() {
	r.note("%s answers", r.stream)
	r.leader = &leaderAt{rows: map[uint64]*row{}, lanes: map[place]bool{}}
	r.heard, r.acked, r.up, r.down, r.sent = r.now, 0, nil, nil, nil
	for _, c := range r.callers {
		c.submitted = false
	}
	r.s.Opened(r.now)
	r.carryOut()
}

func (r *run) learn(l Leadership) {
	r.note("%s leads in epoch %d", l.Leader, l.Epoch)
	if r.s.Learn(l) {
		r.again = r.now
	}
	r.carryOut()
}

// read has the leader read a message, and acknowledge it.
func (r *run) read() {
	l := r.leader
	if l == nil || len(r.up) == 0 {
		return
	}
	m := r.up[0]
	r.up = r.up[1:]
	for _, s := range m.Submit {
		r.note("the leader reads that %d is submitted: attempt %d at %q", s.Query.Sequence,
			s.Attempts, s.Agent)
	}
	for _, sequence := range m.Cancel {
		r.note("the leader reads that %d is cancelled", sequence)
	}
	for _, u := range m.Unused {
		r.note("the leader reads that %d is not used: attempt %d at %q", u.Sequence, u.Attempt,
			u.Agent)
	}
	l.read += uint64(len(m.Submit))
	for _, s := range m.Submit {
		switch known := l.rows[s.Query.Sequence]; {
		case known == nil:
		case s.Agent == "" && s.Attempts <= known.attempts:
			continue
		case s.Agent != "" && known.at != "" && (s.Attempts < known.attempts ||
			s.Attempts == known.attempts && s.Agent == known.at):
			continue
		}
		l.cancel(s.Query.Sequence) // its gateway knows better, and knows no parts of it
		l.rows[s.Query.Sequence] = &row{s.Attempts, s.Agent}
		if at := (place{s.Query.Sequence, s.Attempts, s.Agent}); s.Agent != "" {
			if _, reserved := l.lanes[at]; !reserved {
				l.lanes[at] = true
			}
		}
	}
	for _, sequence := range m.Cancel {
		l.cancel(sequence)
	}
	for _, u := range m.Unused {
		if _, reserved := l.lanes[place{u.Sequence, u.Attempt, u.Agent}]; reserved {
			r.offerAgain(u)
			delete(l.lanes, place{u.Sequence, u.Attempt, u.Agent})
		}
	}
	r.acknowledge()
}

// cancel forgets a query and its parts, and a lane that only its gateway has spoken of.
func (l *leaderAt) cancel(sequence uint64) {
	if id := (match.QueryID{Sequence: sequence}); !id.IsPart() {
		for p := range match.MostParts {
			l.cancel(id.Part(p + 1).Sequence)
		}
	}
	if known := l.rows[sequence]; known != nil {
		if at := (place{sequence, known.attempts, known.at}); l.lanes[at] {
			delete(l.lanes, at)
		}
		delete(l.rows, sequence)
	}
}

// acknowledge has the leader say how much it has read, and nothing else.
func (r *run) acknowledge() { r.tell(func() {}) }

// tell has the gateway hear something of the leader, and how much that has read.
func (r *run) tell(what func()) {
	read := r.leader.read
	r.down = append(r.down, func() {
		r.heard = r.now
		if n := int(read - r.acked); n > 0 {
			r.usual += (r.now - r.sent[n-1] - r.usual) / 8
			r.acked, r.sent = read, r.sent[n:]
		}
		r.s.HandleLeaderMessage(read, r.now)
		what()
		r.carryOut()
	})
}

// assign has the leader give a query that waits a lane.
func (r *run) assign(sequence uint64) {
	l := r.leader
	known := l.rows[sequence]
	known.attempts++
	known.at = names.AgentName(fmt.Sprint("agent-", r.rng.IntN(4)))
	a := Assign{
		Sequence: sequence, Attempt: known.attempts, Agent: known.at, Took: time.Millisecond,
	}
	l.lanes[place{sequence, a.Attempt, a.Agent}] = false
	l.assigned = append(l.assigned, a)
	r.tell(func() {
		r.note("%d is assigned to %s as attempt %d", sequence, a.Agent, a.Attempt)
		if r.mutant != nil && r.mutant.assign != nil {
			r.mutant.assign(r, &a)
		}
		r.s.HandleAssignment(a)
	})
}

// split has the leader split a query that waits.
func (r *run) split(sequence uint64) {
	l := r.leader
	delete(l.rows, sequence)
	n := 2 + r.rng.IntN(match.MostParts-1)
	for p := range n {
		l.rows[match.QueryID{Sequence: sequence}.Part(p+1).Sequence] = &row{}
	}
	r.tell(func() {
		r.note("%d is split into %d", sequence, n)
		if r.mutant != nil && r.mutant.split != nil && !r.mutant.split(r, sequence) {
			return
		}
		q := r.s.ToSplit(sequence)
		if q == nil {
			return
		}
		whole := q.Tag.(*caller)
		var parts []*Query
		for range n {
			part := &caller{submitted: true}
			part.q = &Query{Tag: part}
			r.callers, whole.parts = append(r.callers, part), append(whole.parts, part)
			parts = append(parts, part.q)
		}
		r.s.Split(q, parts)
		if r.mutant != nil && r.mutant.parts != nil {
			r.mutant.parts(q)
		}
	})
}

// offerAgain has the leader give up an attempt.
func (r *run) offerAgain(a Assign) {
	known := r.leader.rows[a.Sequence]
	if known == nil || known.attempts != a.Attempt || known.at != a.Agent {
		return
	}
	known.at = ""
	delete(r.leader.lanes, place{a.Sequence, a.Attempt, a.Agent})
	r.tell(func() {
		r.note("%d is offered again after attempt %d", a.Sequence, a.Attempt)
		for _, c := range r.callers {
			if of := c.try(a.Attempt); of != nil && c.q.Sequence == a.Sequence {
				of.excused = true
			}
		}
		r.s.OfferAgain(a.Sequence, a.Attempt)
	})
}

// left has an agent be no member any more.
func (r *run) left(agent names.AgentName) {
	r.note("%s has left", agent)
	for _, c := range r.callers {
		for _, of := range c.tries {
			of.excused = of.excused || of.target.Agent == agent
		}
	}
	r.s.Left(agent, r.now)
	r.carryOut()
}

func (r *run) reject(sequence uint64) {
	delete(r.leader.rows, sequence)
	r.tell(func() {
		r.note("%d is rejected", sequence)
		r.s.Reject(sequence, errTest)
	})
}

// tick does what is due.
func (r *run) tick() {
	if r.mutant == nil || !r.mutant.deaf {
		led := r.s.link == linkOpen
		silent := r.silent()
		if became := r.s.Check(r.now); became != (led && silent) {
			r.failf("the leader counts as silent: %v, and has been silent: %v", became, silent)
		}
	}
	if r.s.link == linkOpen && r.silent() {
		r.failf("the leader has been silent, and does not count so")
	}
	if r.stream != "" && (r.mutant == nil || !r.mutant.patient) && r.s.Patience(r.now) <= 0 {
		r.hangUp("it is lost")
	}
	if r.leader != nil && r.now-r.heard >= lostSilence {
		r.failf("the leader has not been heard for %v, and is not lost", r.now-r.heard)
	}
	if r.stream == "" && r.now >= r.again {
		var wait time.Duration
		// who is not there
		r.stream, wait = r.s.Try(r.now, func(agent names.AgentName) bool { return agent != "c" })
		r.again = r.now + wait
		r.carryOut()
	}
	for q := r.s.Inquire(r.now); q != nil; q = r.s.Inquire(r.now) {
		r.note("%d is to be decided", q.Sequence)
		if of := q.Tag.(*caller).last(); of != nil {
			of.excused = true
		}
		r.probing = append(r.probing, q)
	}
	r.carryOut()
}

// silent finds by the rule whether the leader is.
func (r *run) silent() bool {
	patience := max(minSilence, 3*r.usual)
	return len(r.sent) > 0 && r.now-r.sent[0] > patience ||
		r.now-max(r.heard, r.busy) > max(heartbeatSilence, patience)
}

// The callers.

// look is what a caller does when it is woken.
func (r *run) look(c *caller) {
	if !c.woken {
		return
	}
	if len(c.tries) > 0 && c.q.stage >= divided {
		return // it looks when the attempts have ended
	}
	c.woken = false
	t, ok := r.s.Take(c.q, r.now)
	switch {
	case c.q.stage == ended:
		c.outcomes++
		r.whole(c)
	case ok:
		r.note("%d goes to %s as attempt %d", c.q.Sequence, t.Agent, t.Attempt)
		if r.made++; len(c.goOn()) > 0 {
			r.hedged++
		}
		for _, of := range c.tries {
			if !of.excused {
				r.failf("query %d goes elsewhere from agent %s, and nobody has given it up",
					c.q.Sequence, of.target.Agent)
			}
		}
		if float64(r.hedged) > r.budget+hedgeShare*float64(r.made) {
			r.failf("%d of %d attempts are made beside another", r.hedged, r.made)
		}
		c.tries = append(c.tries, &try{target: t})
		c.attempts++
		if t.Reservation != 0 {
			if !r.reserved[t.Reservation] {
				r.failf("reservation %d is taken twice, or was released", t.Reservation)
			}
			delete(r.reserved, t.Reservation)
		}
	}
	r.carryOut()
}

// whole checks the outcome of a query that was split.
func (r *run) whole(c *caller) {
	if len(c.parts) == 0 || c.answered {
		return
	}
	for _, part := range c.parts {
		switch err := part.q.err; {
		case c.q.err == nil && (err != nil || !part.answered):
			r.failf("query %d is answered, and its part %d is not", c.q.Sequence, part.q.Sequence)
		case part.q.stage != ended:
			r.failf("query %d has ended, and its part %d has not", c.q.Sequence, part.q.Sequence)
		case c.q.err != nil && !c.gaveUp && c.q.err != err && err != nil:
			r.failf("query %d failed with %v, and its part %d with %v", c.q.Sequence, c.q.err,
				part.q.Sequence, err)
		}
	}
}

// attempted ends the newest attempt.
func (r *run) attempted(c *caller, o Outcome) { r.ends(c, c.last(), o) }

func (r *run) ends(c *caller, of *try, o Outcome) {
	if of.aborted && o == Final {
		o = Elsewhere
	}
	c.answered = c.answered || o == Answered && c.q.stage != ended
	r.note("%d: attempt %d comes to %d", c.q.Sequence, of.target.Attempt, o)
	// The worker tells the leader that it follows. Of an attempt that the leader knows from the
	// gateway that may be the one before, unless the attempt was cut off just now.
	if l := r.leader; l != nil {
		at := place{c.q.Sequence, of.target.Attempt, of.target.Agent}
		if claimed, reserved := l.lanes[at]; reserved && (!claimed || of.aborted ||
			o == Elsewhere && r.one(2)) {
			if o == Elsewhere {
				r.offerAgain(Assign{Sequence: at.sequence, Attempt: at.attempt, Agent: at.agent})
			} else if known := l.rows[at.sequence]; known != nil && known.attempts == at.attempt &&
				known.at == at.agent {
				delete(l.rows, at.sequence)
			}
			delete(l.lanes, at)
		}
	}
	current := c.q.underWay() && of.target.Attempt == c.q.at.Attempt
	if o != Answered && (current && !c.q.hasTarget() || of.target.Attempt == c.q.earlier.Attempt) {
		c.failures++
		c.passed = c.passed || current && c.failures >= maxLed && o == Elsewhere
	}
	err := error(nil)
	if o != Answered {
		err = errTest
	}
	if r.mutant != nil && r.mutant.attempted != nil {
		r.mutant.attempted(c)
	}
	r.s.Attempted(c.q, of.target.Attempt, o, err, r.now)
	c.tries = slices.DeleteFunc(c.tries, func(x *try) bool { return x == of })
	r.carryOut()
}

func (r *run) end(c *caller) {
	r.note("the caller of %d gives up", c.q.Sequence)
	c.gaveUp = true
	r.s.End(c.q, errTest)
	r.carryOut()
	for len(c.tries) > 0 {
		c.last().aborted, c.last().excused = true, true
		r.attempted(c, Elsewhere)
	}
}

func (r *run) decide(somebody bool) {
	if len(r.probing) == 0 {
		return
	}
	q := r.probing[0]
	r.probing = r.probing[1:]
	r.note("%d is decided: %v", q.Sequence, somebody)
	if somebody {
		r.lastID++
		r.reserved[r.lastID] = true
		r.s.Decided(q, Target{Agent: "agent-9", Reservation: r.lastID, Took: time.Millisecond})
	} else {
		r.s.Undecided(q, r.now+20*time.Millisecond)
	}
	r.carryOut()
}

// What must hold.

// turn checks from when on q may be decided without a leader, by what it is now.
func (r *run) turn(q *Query) {
	c := q.Tag.(*caller)
	never := r.s.link == linkOpen && !c.passed || q.inquired || q.hasTarget() ||
		q.attempts >= match.MaxAttempts
	due := q.again
	if since := q.since + minSilence; r.s.link == linkOpening && !r.s.lost && since > due {
		due = since
	}
	if overdue := q.at.sent + q.at.Took + minOverdue; q.stage == sent && overdue > due {
		due = overdue
	}
	if never != (q.turns == nil) || !never && q.due != due {
		r.failf("query %d is to be decided alone: %v, due %v; want %v, due %v", q.Sequence,
			q.turns != nil, q.due, !never, due)
	}
}

func (r *run) check() {
	n, turns := 0, 0
	for q := r.s.pending.First(); q != nil; q = q.inPending.Next() {
		n++
		r.turn(q)
		if q.turns != nil {
			turns++
		}
		if r.s.bySequence[q.Sequence] != q || q.stage >= divided {
			r.failf("query %d is in the list but not in the map, or has ended", q.Sequence)
		}
		if next := q.inPending.Next(); next != nil && next.Sequence < q.Sequence {
			r.failf("query %d comes before query %d", q.Sequence, next.Sequence)
		}
		if q.isKnownToLeader() && (r.s.link < linkOpen || !q.Tag.(*caller).submitted) {
			r.failf("query %d counts as submitted, and is not", q.Sequence)
		}
		if l := r.leader; l != nil && len(r.up)+len(r.down) == 0 && q.isKnownToLeader() &&
			l.rows[q.Sequence] == nil {
			r.failf("query %d is submitted, but the leader does not know it", q.Sequence)
		}
	}
	if all := len(r.s.ready.queries) + len(r.s.later.queries); all != turns {
		r.failf("%d queries are to be decided alone, in the heaps are %d", turns, all)
	}
	for _, q := range r.s.bySequence {
		if q.stage != divided {
			continue
		}
		n++
		if !slices.ContainsFunc(q.Tag.(*caller).parts,
			func(part *caller) bool { return part.q.stage != ended }) {
			r.failf("query %d waits for its parts, all of which have ended", q.Sequence)
		}
		if l := r.leader; l != nil && r.s.link == linkOpen && len(r.up)+len(r.down) == 0 &&
			l.rows[q.Sequence] != nil {
			r.failf("query %d is split, and the leader knows the whole", q.Sequence)
		}
	}
	if n != len(r.s.bySequence) {
		r.failf("%d in the list, %d in the map", n, len(r.s.bySequence))
	}
	if r.s.inquiries != len(r.probing) || len(r.probing) > maxInquiries {
		r.failf("%d are being decided, it counts %d", len(r.probing), r.s.inquiries)
	}
	for _, c := range r.callers {
		q := c.q
		if c.attempts > match.MaxAttempts || q.attempts != c.attempts {
			r.failf("query %d: %d attempts were made, the gateway counts %d, the most is %d",
				q.Sequence, c.attempts, q.attempts, match.MaxAttempts)
		}
		if c.outcomes > 1 {
			r.failf("query %d has %d outcomes", q.Sequence, c.outcomes)
		}
		var goOn []uint32
		if q.earlier.Attempt != 0 {
			goOn = append(goOn, q.earlier.Attempt)
		}
		if q.underWay() && !q.aborted {
			goOn = append(goOn, q.at.Attempt)
		}
		if q.stage < divided && !slices.Equal(goOn, c.goOn()) {
			r.failf("query %d: attempts %v go on, the gateway has %v at stage %d", q.Sequence,
				c.goOn(), goOn, q.stage)
		}
		if (q.stage == bound || q.stage == ended && len(c.tries) == 0) && c.outcomes == 0 &&
			!c.woken {
			r.failf("query %d: nobody is told that it has a target or an end", q.Sequence)
		}
		if n := len(c.goOn()); q.stage >= divided && n > 0 || n > 2 || q.hasTarget() && n > 1 {
			r.failf("query %d is split, assigned anew or has ended, but its attempt goes on",
				q.Sequence)
		}
	}
	for _, c := range r.callers {
		r.checkQuery(c.q)
	}
	r.compare()
}

// checkQuery checks the invariants of Query.
func (r *run) checkQuery(q *Query) {
	second := q.stage == bound || q.stage == sent || q.stage == doubted
	open := 0
	for _, part := range q.parts {
		if part.stage != ended {
			open++
		}
	}
	if q.stage != ended && ((q.goesTo.Attempt != 0) != q.hasTarget() ||
		q.underWay() && q.at.Attempt == 0 || q.earlier.Attempt != 0 && !second ||
		q.atLeader == refused && q.stage == held ||
		q.parts != nil && q.open != open || (q.stage == divided) != (q.open > 0) ||
		q.underWay() && q.number < q.at.Attempt) {
		r.failf("query %d has %d open parts, and is %+v", q.Sequence, open, *q)
	}
}

// compare checks, when nothing is under way, that the leader knows where queries are, and holds no
// lane for an attempt that is over.
func (r *run) compare() {
	l := r.leader
	if l == nil || r.s.link != linkOpen || len(r.up)+len(r.down) > 0 {
		return
	}
	expected := map[place]bool{}
	for _, c := range r.callers {
		for _, of := range c.tries {
			at := place{c.q.Sequence, of.target.Attempt, of.target.Agent}
			expected[at] = true
			if _, reserved := l.lanes[at]; c.q.stage == sent && c.q.at.Attempt == at.attempt &&
				c.q.atLeader == assigned && !reserved {
				r.failf("query %d is at %s, and the leader does not know", c.q.Sequence, at.agent)
			}
		}
		if c.q.hasTarget() {
			expected[place{c.q.Sequence, c.q.goesTo.Attempt, c.q.goesTo.Agent}] = true
		}
	}
	for at := range l.lanes {
		if !expected[at] {
			r.failf("the leader holds a lane for attempt %d of query %d, which is over", at.attempt,
				at.sequence)
		}
	}
	for sequence := range l.rows {
		if r.s.bySequence[sequence] == nil {
			r.failf("the leader knows query %d, which has ended", sequence)
		}
	}
}

func (r *run) pick() *caller {
	if len(r.callers) == 0 {
		return nil
	}
	return r.callers[r.rng.IntN(len(r.callers))]
}

// waiting are the queries that wait at the leader, by sequence.
func (r *run) waiting() (all []uint64) {
	for sequence, known := range r.leader.rows {
		if known.at == "" {
			all = append(all, sequence)
		}
	}
	slices.Sort(all)
	return all
}

func (r *run) random() {
	r.now += time.Duration(r.rng.IntN(10)) * time.Millisecond
	if r.one(60) {
		r.now += time.Duration(r.rng.IntN(1500)) * time.Millisecond
	}
	r.tick()
	switch r.rng.IntN(21) {
	case 0, 1:
		if len(r.s.bySequence) < 4 { // few, so that much happens to each
			r.arrive()
		}
	case 2, 3, 4:
		if c := r.pick(); c != nil {
			r.look(c)
		}
	case 5, 6:
		if c := r.pick(); c != nil && len(c.tries) > 0 {
			r.ends(
				c, c.tries[r.rng.IntN(len(c.tries))],
				[]Outcome{
					Answered, Final, Elsewhere, Elsewhere, Elsewhere, Elsewhere,
				}[r.rng.IntN(6)])
		}
	case 7:
		if c := r.pick(); c != nil && c.q.stage != ended && r.one(4) {
			r.end(c)
		}
	case 8:
		if r.stream != "" && r.leader == nil && !r.lies {
			r.opened()
		}
	case 9:
		if r.stream != "" && r.one(4) {
			r.hangUp("it breaks")
		}
	case 10:
		if r.one(6) {
			r.known = Leadership{
				r.known.Epoch + 1, []names.AgentName{"a", "b", "c"}[r.rng.IntN(3)],
				[]names.AgentName{"", "a", "b"}[r.rng.IntN(3)],
			}
			r.learn(r.known)
		}
	case 11, 12, 13:
		r.read()
	case 14, 15, 16:
		if len(r.down) > 0 {
			first := r.down[0]
			r.down = r.down[1:]
			first()
		} else if r.leader != nil {
			r.acknowledge()
		}
	case 17:
		if r.leader == nil {
			break
		}
		if all := r.waiting(); len(all) > 0 {
			switch sequence := all[r.rng.IntN(len(all))]; {
			case r.one(12):
				r.reject(sequence)
			case r.splits && r.one(2) && !(match.QueryID{Sequence: sequence}).IsPart():
				r.split(sequence)
			default:
				r.assign(sequence)
			}
		}
	case 18:
		if l := r.leader; l != nil && len(l.assigned) > 0 {
			r.offerAgain(l.assigned[r.rng.IntN(len(l.assigned))])
		}
	case 19:
		r.decide(!r.one(3))
	case 20:
		if c := r.pick(); c != nil && len(c.tries) > 0 && r.one(4) {
			r.left(c.tries[0].target.Agent)
		}
	}
}

// finish has everybody behave from now on: with or without a leader, every query must have its
// outcome soon, and a leader that is there is found.
func (r *run) finish(led bool) {
	r.note("finish, led %v", led)
	r.lies = !led
	r.known = Leadership{r.known.Epoch + 1, "b", "a"}
	r.learn(r.known)
	for range 200 {
		r.now += 20 * time.Millisecond
		r.tick()
		if r.stream != "" && r.leader == nil {
			if led && r.stream == "b" {
				r.opened()
			} else {
				r.hangUp("it does not lead")
			}
		}
		for led && r.leader != nil && len(r.up)+len(r.down) > 0 {
			r.read()
			for len(r.down) > 0 {
				first := r.down[0]
				r.down = r.down[1:]
				first()
			}
		}
		if led && r.leader != nil {
			for _, sequence := range r.waiting() {
				r.assign(sequence)
			}
			r.acknowledge()
			for len(r.down) > 0 {
				first := r.down[0]
				r.down = r.down[1:]
				first()
			}
		}
		for len(r.probing) > 0 {
			r.decide(true)
		}
		r.check()
		for _, c := range r.callers {
			r.look(c)
			for len(c.tries) > 0 {
				if c.last().aborted {
					r.attempted(c, Elsewhere)
				} else {
					r.attempted(c, Answered)
				}
			}
			r.look(c)
		}
	}
	for _, c := range r.callers {
		if c.outcomes != 1 && !c.gaveUp {
			r.failf("query %d has %d outcomes", c.q.Sequence, c.outcomes)
		}
	}
	if len(r.s.bySequence) > 0 || len(r.reserved) > 0 {
		r.failf("%d queries and reservations %v are left", len(r.s.bySequence), r.reserved)
	}
	if agent, ok := r.s.Linked(); led != ok || led && agent != "b" {
		r.failf("it is linked to %q, answered %v; b leads: %v", agent, ok, led)
	}
	r.compare()
}

// schedule runs a random schedule, and returns the first broken promise.
func schedule(seed uint64, m *mutant) *run {
	r := newRun(seed)
	r.mutant = m
	for i := 0; i < 250 && r.fault == nil; i++ {
		r.random()
		r.check()
	}
	if r.fault == nil {
		r.finish(seed%2 == 0)
	}
	return r
}

// TestSchedules: whatever happens in whatever order, a query has one attempt at a time and at most
// match.MaxAttempts, exactly one outcome, and no attempt is cut off that nobody has given up; a
// query that was split is answered if all of its parts are, and has the first error of one; no
// reservation is forgotten; the leader's picture is the gateway's when nothing is under way; and a
// leader counts as silent, and as lost, when it is.
func TestSchedules(t *testing.T) {
	for seed := range uint64(8000) {
		if r := schedule(seed, nil); r.fault != nil {
			for _, line := range r.log[max(0, len(r.log)-60):] {
				t.Log(line)
			}
			t.Fatalf("seed %d: %v", seed, r.fault)
		}
	}
}

// A mutant is a gateway with a bug, made by tampering with what it is told and what it wants.
type mutant struct {
	name, caught  string // caught: what the fault must say
	action        func(r *run, a *Action) (done bool)
	message       func(m *Message)
	assign        func(r *run, a *Assign)
	split         func(r *run, sequence uint64) (done bool)
	parts         func(whole *Query) // that was split just now
	attempted     func(c *caller)
	deaf, patient bool // it does not look whether the leader is silent, or lost
}

var mutants = []*mutant{
	{
		name: "tells a new leader nothing of where queries are", caught: "nobody has given it up",
		message: func(m *Message) {
			for i := range m.Submit {
				m.Submit[i].Agent = ""
			}
		},
	},
	{
		name: "does not cancel", caught: "which has ended",
		message: func(m *Message) { m.Cancel = nil },
	},
	{
		name: "gives nothing back", caught: "which is over",
		message: func(m *Message) { m.Unused = nil },
	},
	{
		name: "submits nothing a second time", caught: "the leader does not know it",
		message: func(m *Message) {
			m.Submit = slices.DeleteFunc(m.Submit, func(s Submit) bool { return s.Attempts > 0 })
		},
	},
	{
		name: "takes an assignment that an attempt has crossed", caught: "nobody has given it up",
		assign: func(r *run, a *Assign) {
			if q := r.s.bySequence[a.Sequence]; q != nil {
				q.submit, a.Attempt = 0, max(a.Attempt, q.number+1)
			}
		},
	},
	{
		name: "looks at the number of attempts alone", caught: "nobody has given it up",
		assign: func(r *run, a *Assign) {
			if q := r.s.bySequence[a.Sequence]; q != nil {
				q.submit = 0
			}
		},
	},
	{
		name: "does not cut off", caught: "but its attempt goes on",
		action: func(_ *run, a *Action) bool { return a.Kind != CutOff },
	},
	{
		name: "hedges without bound", caught: "are made beside another",
		action: func(r *run, _ *Action) bool { r.s.hedges = hedgeBurst; return true },
	},
	{
		name: "does not wake", caught: "nobody is told",
		action: func(_ *run, a *Action) bool { return a.Kind != Wake || a.Query.Sequence%16 > 0 },
	},
	{
		name: "forgets reservations", caught: "are left",
		action: func(_ *run, a *Action) bool { return a.Kind != Release },
	},
	{
		name: "does not split", caught: "the leader does not know it",
		split: func(*run, uint64) bool { return false },
	},
	{
		name: "splits what an attempt has crossed", caught: "nobody has given it up",
		split: func(r *run, sequence uint64) bool {
			if q := r.s.bySequence[sequence]; q != nil && q.stage < divided {
				q.submit, q.atLeader = 0, waits
			}
			return true
		},
	},
	{
		name: "does not cancel parts", caught: "which has ended",
		message: func(m *Message) {
			m.Cancel = slices.DeleteFunc(m.Cancel, func(sequence uint64) bool {
				return match.QueryID{Sequence: sequence}.IsPart()
			})
		},
	},
	{
		name: "takes the answer of one part", caught: "is answered, and its part",
		parts: func(whole *Query) { whole.open = 1; whole.parts = nil },
	},
	{
		name: "lets the parts go on of a query that has failed", caught: "has not",
		parts: func(whole *Query) { whole.parts = nil },
	},
	{
		name: "forgets that a part belongs to a query", caught: "all of which have ended",
		parts: func(whole *Query) { whole.parts[0].whole = nil },
	},
	{
		name: "stays with who leads no more", caught: "it is linked to",
		action: func(_ *run, a *Action) bool { return a.Kind != HangUp },
	},
	{
		name: "believes a leader that is silent", caught: "does not count so", deaf: true,
	},
	{
		name: "believes that a leader comes back", caught: "is not lost", patient: true,
	},
	{
		name: "believes a leader whose agents it cannot reach", caught: "is to be decided alone",
		attempted: func(c *caller) { c.q.failed = nil },
	},
}

// TestMutants checks that the schedules find the bugs they are there to find.
func TestMutants(t *testing.T) {
	const most = 8000
	for _, m := range mutants {
		t.Run(strings.ReplaceAll(m.name, " ", "-"), func(t *testing.T) {
			others := 0
			for seed := range uint64(most) {
				err := schedule(seed, m).fault
				if err != nil && strings.Contains(err.Error(), m.caught) {
					t.Logf("seed %d, after %d of other faults: %v", seed, others, err)
					return
				}
				if err != nil {
					others++
				}
			}
			t.Errorf("%d schedules do not find a gateway that %s", most, m.name)
		})
	}
}
