package leader

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
)

const (
	// worldMean is the mean latency on all lanes of a world, and expected of them.
	worldMean = 10 * time.Millisecond
	// worldTarget is the QoS target; lanes that are behind miss it.
	worldTarget = 30 * time.Millisecond
	// worldDelay is the longest way of a message, unless the network is jammed.
	worldDelay = 5 * time.Millisecond
	// worldDepth is how many queries a lane may have.
	worldDepth = 2
)

// A world is a leader, gateways and members whose lanes run queries, a network between them, and
// virtual time. A referee watches what becomes of each query; the first broken promise is fault.
type world struct {
	rng   *rand.Rand
	now   time.Duration
	heap  items
	count int // of items, to order equal times

	state   *State // nil: nobody leads
	began   time.Duration
	term    int
	splits  int
	wakeAt  time.Duration
	passed  Event // tells the state of time that has passed; most events do only that
	ahead   time.Duration
	config  Config
	latency *Latency

	gateways []*testGateway
	members  []*testMember
	queries  []*testQuery
	bound    int           // messages under way
	jammed   time.Duration // until when messages take up to 30 times as long
	wild     bool          // some messages come twice
	calm     time.Duration // when the last fault was over
	mutant   *mutant
	fault    error
	trace    func(format string, args ...any) // nil: no trace
}

type item struct {
	at    time.Duration
	order int
	do    func()
}

type items []item

func (h items) Len() int { return len(h) }
func (h items) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h items) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *items) Push(x any)   { *h = append(*h, x.(item)) }
func (h *items) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

func (w *world) failf(format string, args ...any) {
	if w.fault == nil {
		w.fault = fmt.Errorf("%v: "+format, append([]any{w.now}, args...)...)
		w.note("%v", w.fault)
	}
}

func (w *world) note(format string, args ...any) {
	if w.trace != nil {
		w.trace("%9.3f ms  %s", float64(w.now)/1e6, fmt.Sprintf(format, args...))
	}
}

func (w *world) after(d time.Duration, do func()) {
	w.count++
	heap.Push(&w.heap, item{w.now + d, w.count, do})
}

// between is a random duration.
func (w *world) between(a, b time.Duration) time.Duration {
	return a + time.Duration(w.rng.Int64N(int64(b-a)+1))
}

func (w *world) one(in int) bool { return w.rng.IntN(in) == 0 }

// run lets time pass until the given time, or something fails.
func (w *world) run(until time.Duration) {
	for w.fault == nil && len(w.heap) > 0 && w.heap[0].at <= until {
		it := heap.Pop(&w.heap).(item)
		w.now = it.at
		it.do()
	}
	w.now = max(w.now, until)
}

// A way is one direction of a stream: it keeps the order, and loses all that is under way when it
// ends.
type way struct {
	last  time.Duration
	ended bool
}

// send has a message arrive, unless its stream ends before.
func (w *world) send(by *way, again bool, arrive func()) {
	d := w.between(50*time.Microsecond, worldDelay)
	if w.now < w.jammed {
		d *= time.Duration(1 + w.rng.IntN(30))
	}
	by.last = max(by.last, w.now+d)
	w.bound++
	w.after(by.last-w.now, func() {
		w.bound--
		if !by.ended {
			arrive()
		}
	})
	if again && w.wild && w.one(10) {
		by.last += w.between(0, 2*worldDelay)
		w.bound++
		w.after(by.last-w.now, func() {
			w.bound--
			if !by.ended {
				arrive()
			}
		})
	}
}

// faulty says that something goes wrong until the given time.
func (w *world) faulty(until time.Duration) { w.calm = max(w.calm, until) }

// A testQuery is one that a gateway owns.
type testQuery struct {
	g                          *testGateway
	sequence                   uint64
	arrived                    time.Duration
	batch                      int
	number, attempts           int
	submitted, waits, rejected bool
	void                       bool
	at                         *call
	outcome                    string // "": none yet
	ran                        int
	places                     []*testMember // where its attempts were
	withdrawn                  bool          // the leader has been told that it has its outcome
	// a lane of its attempts was lost, or something else on its way
	excused bool
	whole   *testQuery   // of which it is a part
	parts   []*testQuery // into which it was split
	offered int          // the last attempt that was offered again
}

func (q *testQuery) String() string { return fmt.Sprintf("%d/%d", q.g.id, q.sequence) }

// A call carries an attempt to a member, and its answer back.
type call struct {
	q       *testQuery
	attempt int
	to      *testMember
	lane    int
	claimed bool
	cut     bool // by the gateway
	way     way
	back    way
	run     *testAttempt // at the member; nil: it is not there (yet)
}

// A testGateway does with queries what a client's gateway does.
type testGateway struct {
	w        *world
	id       uint64
	sequence uint64
	queries  []*testQuery // without an outcome
	stream   *gatewayStream
	message  gatewayMessage
	flushing bool
	dead     bool
	splits   bool          // it can split queries
	shut     time.Duration // it cannot reach the leader until then
}

// A gatewayStream is one to the leader; it has answered when it is in testGateway.stream.
type gatewayStream struct {
	up, down way
	state    *State
}

type gatewayMessage struct {
	submit         []Event
	cancel, unused []Event
}

// A testMember is an agent with lanes.
type testMember struct {
	w      *world
	member *Member
	lanes  [][]*testAttempt // the first runs
	dead   bool
	frozen time.Duration // until then
	link   *testLink
	shut   time.Duration // the leader cannot reach it until then
	slow   int           // how many times as long queries take
	known  bool          // in the view
}

// A testLink is one that a leader has to a member.
type testLink struct {
	state  *State
	m      *testMember
	up     way  // to the leader
	said   bool // the member has greeted
	opened bool // the leader has heard it
}

// A testAttempt is at a lane.
type testAttempt struct {
	call *call
	ends time.Duration
	gone bool
}

func newWorld(seed uint64) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 0))}
	w.latency = worldLatency()
	if w.one(2) {
		w.ahead = 2 * time.Millisecond
	}
	w.wild = w.one(4)
	return w
}

func (w *world) find(gateway, sequence uint64) *testQuery {
	for _, q := range w.queries {
		if q.g.id == gateway && q.sequence == sequence {
			return q
		}
	}
	return nil
}

// The leader.

// lead has a new leader begin, that knows nothing.
func (w *world) lead() {
	w.term++
	w.note("term %d begins", w.term)
	w.config = Config{Self: "leader", Seed: uint64(w.term), Ahead: w.ahead}
	state, err := NewState(w.config)
	if err != nil {
		w.failf("%v", err)
		return
	}
	w.state, w.began = state, w.now
	w.view()
	w.step(&Event{Kind: TimePassed})
	w.step(&Event{Kind: Learned, Advice: &Advice{Latencies: []*Latency{w.latency}}})
	for _, m := range w.members {
		w.open(m)
	}
	for _, g := range w.gateways {
		w.connect(g)
	}
	w.after(settleTime, func() { // whoever has not greeted by then is given up
		for _, m := range w.members {
			if w.state == state && (m.link == nil || !m.link.opened) {
				w.excuse(m)
			}
		}
	})
}

// depose ends the leader; its streams end.
func (w *world) depose() {
	if w.state == nil {
		return
	}
	w.note("term %d ends", w.term)
	w.state = nil
	for _, m := range w.members {
		if m.link != nil {
			m.link.up.ended = true
			m.link = nil
		}
	}
	for _, g := range w.gateways {
		if s := g.stream; s != nil {
			s.up.ended, s.down.ended = true, true
			g.closed()
		}
	}
}

// view tells the leader who the members are.
func (w *world) view() {
	var members []*Member
	for _, m := range w.members {
		if m.known {
			members = append(members, m.member)
		}
	}
	w.step(&Event{Kind: ViewChanged, Members: members})
}

func (w *world) step(e *Event) {
	if w.fault != nil || w.state == nil {
		return
	}
	if q := w.find(e.Gateway, e.Sequence); e.Kind == Cancelled && q != nil {
		for _, q := range append(q.parts, q) {
			q.withdrawn = !w.wild
		}
	}
	cancelled := w.find(e.Gateway, e.Sequence)
	if m := w.mutant; m != nil && m.before != nil && !m.before(w, e) {
		return
	}
	if e.Kind == Submitted && e.Agent != "" {
		// the leader has never had that lane, or has lost it
		if m := w.member(e.Agent); m.link == nil || !m.link.opened {
			w.find(e.Gateway, e.Sequence).excused = true
		}
	}
	if w.trace != nil && e.Kind != TimePassed {
		w.note("-> %s", AppendEvent(nil, w.now-w.began, e))
	}
	actions := w.state.Step(w.now-w.began, e)
	if m := w.mutant; m != nil && m.after != nil {
		actions = m.after(w, actions)
	}
	for i := range actions {
		w.do(&actions[i])
	}
	if g := w.state.gateways[e.Gateway]; e.Kind == Cancelled && cancelled != nil && g != nil {
		for _, part := range cancelled.parts {
			if g.queries[part.sequence] != nil {
				w.failf("the leader knows %v, and was told that %v is cancelled", part, cancelled)
			}
		}
	}
	w.checkQueries()
	if at := w.began + w.state.Next(); at != w.wakeAt {
		w.wakeAt = at
		state := w.state
		w.after(max(0, at-w.now), func() {
			if w.state == state && at == w.wakeAt {
				w.wakeAt = 0
				w.passed = Event{Kind: TimePassed}
				w.step(&w.passed)
			}
		})
	}
}

func (w *world) do(a *Action) {
	d := a.Decision
	switch a.Kind {
	case Assign, Reject, OfferAgain, Split:
		if w.trace != nil {
			w.note("<- %s", AppendAction(nil, a))
		}
		if q := w.find(d.Query.Gateway, d.Query.Sequence); q != nil && a.Kind == OfferAgain {
			if d.Attempt <= q.offered && !w.excuses(q) {
				w.failf("%v is offered again twice after attempt %d", q, d.Attempt)
			}
			q.offered = d.Attempt
		}
		if q := w.find(d.Query.Gateway, d.Query.Sequence); q != nil &&
			d.Reason == match.LaneOverdue {
			q.excused = true
		}
		if a.Kind == Assign {
			if q := w.find(d.Query.Gateway, d.Query.Sequence); q != nil && q.withdrawn &&
				q.outcome != "" {
				w.failf("%v is assigned, and the leader was told that it is %s", q, q.outcome)
			}
			depth := 1
			if w.state.Ahead() > 0 {
				depth = worldDepth
			}
			// until lanes have greeted, gateways may still say what else is there
			if held := w.state.Holds(a.Agent, a.Lane); len(held) > depth &&
				w.now > w.began+settleTime {
				w.failf("%d/%d is assigned to %s, which is believed to hold %v", d.Query.Gateway,
					d.Query.Sequence, a.Agent, held)
			}
		}
		for _, g := range w.gateways {
			if g.id == d.Query.Gateway && g.stream != nil {
				kind, agent, lane := a.Kind, a.Agent, a.Lane
				w.send(&g.stream.down, false, func() { g.told(kind, &d, agent, lane) })
			}
		}
	case AskHeld:
		if m := w.member(a.Agent); m != nil && m.link != nil {
			w.cut(m)
			w.open(m)
		}
	case LanesLost:
		w.note("lanes of %s are lost: %s", a.Agent, a.Message)
		w.excuse(w.member(a.Agent))
	case LaneOverdue:
		w.note("lane %d of %s is overdue", a.Lane, a.Agent)
		w.excuse(w.member(a.Agent))
	case Nonsense:
		w.failf("%s", a.Message)
	}
}

// checkQueries checks the invariants of query in the leader's state.
func (w *world) checkQueries() {
	s, bytes := w.state, map[*account]int{}
	for id, g := range s.gateways {
		if g.id != id {
			w.failf("gateway %d is listed as %d", g.id, id)
		}
		for sequence, q := range g.queries {
			bytes[g.account] += q.weight
			parked := 0
			for agent, all := range s.parked {
				if n := count(all, q); n > 0 && q.agent == agent {
					parked += n
				}
			}
			if q.gateway != g || q.sequence != sequence || q.heardAt > s.now || q.weight <= 0 ||
				parked > 1 || parked == 1 && !q.parked {
				w.failf("query %d/%d is parked %d times, and is %+v", id, sequence, parked, *q)
			}
			if q.isPart() && g.queries[q.matchID().Whole().Sequence] != nil {
				w.failf("query %d/%d is a part, and the whole is there", id, sequence)
			}
		}
	}
	for a, n := range bytes {
		if a.bytes != n {
			w.failf("an account counts %d bytes, want %d", a.bytes, n)
		}
	}
	parked := 0
	for _, all := range s.parked {
		parked += len(all)
	}
	if parked != s.parkings {
		w.failf("%d queries are parked, the state counts %d", parked, s.parkings)
	}
}

func count(all []*query, q *query) (n int) {
	for _, o := range all {
		if o == q {
			n++
		}
	}
	return n
}

// excuse notes that a member's lanes are lost: what they had may run elsewhere.
func (w *world) excuse(m *testMember) {
	for _, q := range w.queries {
		if q.outcome == "" && slices.Contains(q.places, m) {
			q.excused = true
		}
	}
}

// cut ends a member's link. The leader may take what the lanes have answered, and could not tell
// it, for lost, and give it to another before its gateway has the answer.
func (w *world) cut(m *testMember) {
	m.link.up.ended = true
	m.link = nil
	for _, q := range w.queries {
		if q.outcome == "" && q.ran > 0 && slices.Contains(q.places, m) {
			q.excused = true
		}
	}
}

// excuses reports whether a query may run twice, or fail.
func (w *world) excuses(q *testQuery) bool {
	return q.excused || w.jammed > 0 && w.now < w.jammed+30*worldDelay+time.Second
}

func (w *world) member(name names.AgentName) *testMember {
	for _, m := range w.members {
		if m.member.Name == name {
			return m
		}
	}
	return nil
}

// open has the leader open a link to a member, again and again.
func (w *world) open(m *testMember) {
	state := w.state
	w.after(w.between(0, 10*time.Millisecond), func() {
		if w.state != state || m.link != nil || !m.known {
			return
		}
		if m.dead || w.now < m.shut {
			w.step(&Event{Kind: LinkBroken, Agent: m.member.Name, Gone: m.dead, Why: "a test"})
			if w.state == state && m.known {
				w.after(100*time.Millisecond, func() {
					if w.state == state {
						w.open(m)
					}
				})
			}
			return
		}
		link := &testLink{state: state, m: m}
		m.link = link
		m.greet(link)
	})
}

// greet has a member say on a link what it is and what its lanes hold.
func (m *testMember) greet(link *testLink) {
	if m.waits(func() { m.greet(link) }) || link.up.ended {
		return
	}
	e := Event{Kind: Greeted, Agent: m.member.Name}
	for lane, queue := range m.lanes {
		e.Free = append(e.Free, m.remaining(lane))
		for _, a := range queue {
			e.Holds = append(e.Holds, Held{
				Gateway: a.call.q.g.id, Sequence: a.call.q.sequence, Attempt: a.call.attempt,
				Lane: lane, Model: modelM, BatchSize: a.call.q.batch,
			})
		}
	}
	link.said = true
	described := m.member
	m.w.send(&link.up, false, func() {
		m.w.step(&Event{Kind: Described, Member: described, Free: e.Free})
		m.w.step(&e)
		link.opened = true
	})
}

// waits has something done when the member thaws, and reports whether it is frozen.
func (m *testMember) waits(do func()) bool {
	if m.w.now >= m.frozen || m.dead {
		return false
	}
	m.w.bound++
	m.w.after(m.frozen-m.w.now, func() { m.w.bound--; do() })
	return true
}

func (m *testMember) remaining(lane int) (d time.Duration) {
	for i, a := range m.lanes[lane] {
		if i == 0 {
			d += max(0, a.ends-m.w.now)
		} else {
			d += risingLatency{}.Mean(m.lanes[lane][i].call.q.batch)
		}
	}
	return d
}

// tell tells the leader followed of the end of an attempt.
func (m *testMember) tell(c *call, refused bool, took time.Duration) {
	link := m.link
	if link == nil || link.up.ended || !link.said {
		c.q.excused = true // as in cut
		return
	}
	e := Event{Kind: Completed, Agent: m.member.Name, Lane: c.lane, Gateway: c.q.g.id,
		Sequence: c.q.sequence, Attempt: c.attempt,
		Remaining: m.remaining(c.lane), Refused: refused, Model: modelM, BatchSize: c.q.batch,
		Execution: took, Latency: m.w.now - c.q.arrived}
	m.w.send(&link.up, true, func() { m.w.step(&e) })
}

// takes has a member take an attempt.
func (m *testMember) takes(c *call) {
	w := m.w
	if m.waits(func() { m.takes(c) }) {
		return
	}
	switch {
	case m.dead:
		c.q.excused = true
		w.send(&c.back, false, func() { c.ended(false) })
		return
	case c.lane >= len(m.lanes) || len(m.lanes[c.lane]) >= 2*worldDepth:
		m.tell(c, true, 0)
		w.send(&c.back, false, func() { c.ended(false) })
		return
	}
	if held := len(m.lanes[c.lane]); held >= worldDepth && w.now > w.calm+4*time.Second {
		w.failf("%v comes to lane %d of %s, which has %d", c.q, c.lane, m.member.Name, held)
	}
	c.run = &testAttempt{call: c}
	m.lanes[c.lane] = append(m.lanes[c.lane], c.run)
	if len(m.lanes[c.lane]) == 1 {
		m.start(c.lane)
	}
}

// start runs the first attempt of a lane.
func (m *testMember) start(lane int) {
	w := m.w
	if len(m.lanes[lane]) == 0 {
		return
	}
	a := m.lanes[lane][0]
	mean := risingLatency{}.Mean(a.call.q.batch)
	took := w.between(mean/2, mean*3/2) * time.Duration(m.slow)
	a.ends = w.now + took
	w.after(took, func() { m.finish(lane, a, took) })
}

func (m *testMember) finish(lane int, a *testAttempt, took time.Duration) {
	w := m.w
	if m.waits(func() { m.finish(lane, a, took) }) || m.dead || a.gone {
		return
	}
	m.drop(lane, a)
	q := a.call.q
	if q.ran++; q.ran > 1 && !w.excuses(q) && q.outcome != "cancelled" {
		w.failf("%v runs twice, and none of its lanes was lost", q)
	}
	m.tell(a.call, false, took)
	w.send(&a.call.back, false, func() { a.call.ended(true) })
}

// drop takes an attempt from its lane, which goes on with the next.
func (m *testMember) drop(lane int, a *testAttempt) {
	a.gone = true
	first := m.lanes[lane][0] == a
	m.lanes[lane] = slices.DeleteFunc(m.lanes[lane], func(o *testAttempt) bool { return o == a })
	if first {
		m.start(lane)
	}
}

// cutOff has a member learn that a call was given up.
func (m *testMember) cutOff(c *call) {
	a := c.run
	if m.waits(func() { m.cutOff(c) }) || a == nil || a.gone || m.dead {
		return
	}
	if m.lanes[c.lane][0] == a && m.w.one(2) { // it runs on
		return
	}
	m.drop(c.lane, a)
	m.tell(c, true, 0)
}

// Gateways.

// arrive has a query come to the gateway.
func (g *testGateway) arrive() {
	if g.dead {
		return
	}
	g.sequence++
	if g.splits {
		g.sequence += match.MostParts
	}
	q := &testQuery{g: g, sequence: g.sequence, batch: 1 + g.w.rng.IntN(100), arrived: g.w.now}
	g.queries, g.w.queries = append(g.queries, q), append(g.w.queries, q)
	if g.stream != nil {
		g.submit(q)
	}
}

// submit has the leader look for a lane, or reserve the one that the query is on.
func (g *testGateway) submit(q *testQuery) {
	e := Event{
		Kind: Submitted, Gateway: g.id, Sequence: q.sequence, Attempt: q.number,
		Model: ModelID{Name: "m"}, BatchSize: q.batch, Waited: g.w.now - q.arrived,
		Splits: g.splits,
	}
	q.submitted, q.waits = true, true
	if q.at != nil && !q.void {
		e.Agent, e.Lane, e.Attempt, q.waits = q.at.to.member.Name, q.at.lane, q.at.attempt, false
		q.at.claimed = true
	}
	g.message.submit = append(g.message.submit, e)
	g.message.cancel = slices.DeleteFunc(g.message.cancel,
		func(c Event) bool { return c.Sequence == q.sequence })
	g.flush()
}

// flush sends what there is, soon.
func (g *testGateway) flush() {
	if g.stream == nil || g.flushing {
		return
	}
	g.flushing = true
	g.w.bound++
	g.w.after(g.w.between(0, time.Millisecond), func() {
		g.flushing = false
		g.w.bound--
		m := g.message
		if g.message = (gatewayMessage{}); g.stream == nil || g.dead {
			return
		}
		s := g.stream
		g.w.send(&s.up, true, func() {
			for _, all := range [][]Event{m.submit, m.cancel, m.unused} {
				for i := range all {
					e := all[i]
					g.w.step(&e)
				}
			}
		})
	})
}

func (g *testGateway) unused(sequence uint64, attempt int, agent names.AgentName, lane int) {
	if g.stream != nil {
		g.message.unused = append(g.message.unused, Event{
			Kind: Unused, Gateway: g.id, Sequence: sequence, Attempt: attempt, Agent: agent,
			Lane: lane,
		})
		g.flush()
	}
}

func (g *testGateway) cancel(sequence uint64) {
	if g.stream != nil {
		g.message.cancel = append(g.message.cancel, Event{
			Kind: Cancelled, Gateway: g.id, Sequence: sequence,
		})
		g.flush()
	}
}

func (g *testGateway) withdraw(q *testQuery) {
	if q.submitted {
		q.submitted, q.waits = false, false
		g.cancel(q.sequence)
	}
}

// told takes what the leader says.
func (g *testGateway) told(kind ActionKind, d *match.Decision, agent names.AgentName, lane int) {
	w, sequence := g.w, d.Query.Sequence
	i := slices.IndexFunc(g.queries, func(q *testQuery) bool { return q.sequence == sequence })
	if i < 0 {
		if kind != Reject {
			g.cancel(sequence)
		}
		if kind == Assign {
			g.unused(sequence, d.Attempt, agent, lane)
		}
		return
	}
	q := g.queries[i]
	switch {
	case kind == Split && !q.submitted:
		g.cancel(sequence)
	case kind == Split:
		g.split(q, d.Rows)
	case kind == Assign && q.submitted && d.Attempt > q.number && q.attempts >= match.MaxAttempts:
		g.withdraw(q)
		fallthrough
	case kind == Assign && (!q.submitted || d.Attempt <= q.number):
		g.unused(sequence, d.Attempt, agent, lane)
	case !q.submitted:
	case kind == Assign:
		q.waits = false
		g.begin(q, &call{q: q, attempt: d.Attempt, to: w.member(agent), lane: lane})
	case kind == OfferAgain:
		if q.at != nil && q.at.attempt == d.Attempt {
			q.void, q.waits = true, true
		}
	case kind == Reject:
		q.submitted, q.waits = false, false
		if q.rejected = true; q.at == nil {
			g.end(q, "rejected")
		}
	}
}

// split replaces a query by its parts.
func (g *testGateway) split(q *testQuery, rows []int) {
	sum := 0
	for p, batch := range rows {
		sum += batch
		part := &testQuery{
			g: g, sequence: q.sequence + 1 + uint64(p), arrived: q.arrived, batch: batch, whole: q,
			submitted: true, waits: true, withdrawn: q.withdrawn,
		}
		q.parts = append(q.parts, part)
		g.queries, g.w.queries = append(g.queries, part), append(g.w.queries, part)
	}
	g.w.splits++
	if !g.splits || q.whole != nil || q.at != nil || q.number > 0 || len(rows) < 2 ||
		sum != q.batch {
		g.w.failf("%v of %d rows, which can be split: %v, is split into %v", q, q.batch, g.splits,
			rows)
	}
	q.submitted, q.waits = false, false
	g.queries = slices.DeleteFunc(g.queries, func(o *testQuery) bool { return o == q })
}

// joined gives a query its outcome because one of its parts has this one.
func (g *testGateway) joined(q *testQuery, outcome string, excused bool) {
	if q.outcome != "" || outcome == "answered" &&
		slices.ContainsFunc(q.parts, func(p *testQuery) bool { return p.outcome != "answered" }) {
		return
	}
	q.excused = q.excused || excused
	g.end(q, outcome)
}

// begin sends a query to a lane; an attempt under way is cut off.
func (g *testGateway) begin(q *testQuery, c *call) {
	if q.at != nil {
		g.abort(q.at)
	}
	q.at, q.void, q.number = c, false, c.attempt
	q.attempts++
	q.places = append(q.places, c.to)
	g.w.send(&c.way, false, func() { c.to.takes(c) })
}

func (g *testGateway) abort(c *call) {
	c.cut = true
	g.w.send(&c.way, false, func() { c.to.cutOff(c) })
}

// ended has the gateway learn how an attempt ended.
func (c *call) ended(answered bool) {
	q, g := c.q, c.q.g
	if q.at != c || g.dead {
		return
	}
	q.at = nil
	switch {
	case q.outcome != "":
	case answered:
		switch {
		case !q.submitted || q.waits:
		case c.claimed:
			g.unused(q.sequence, c.attempt, c.to.member.Name, c.lane)
		default:
			q.submitted = false
		}
		g.end(q, "answered")
	case q.rejected || q.attempts >= match.MaxAttempts:
		g.end(q, "failed")
	case q.submitted && q.waits:
	default:
		if q.submitted {
			g.unused(q.sequence, c.attempt, c.to.member.Name, c.lane)
		}
		if g.stream != nil {
			g.submit(q)
		}
	}
}

func (g *testGateway) end(q *testQuery, outcome string) {
	if q.outcome != "" {
		g.w.failf("%v is %s and was %s", q, outcome, q.outcome)
	}
	g.w.note("%v is %s", q, outcome)
	q.outcome = outcome
	for _, part := range q.parts {
		if part.outcome != "" {
			continue
		}
		if c := part.at; c != nil {
			part.at = nil
			g.abort(c)
		}
		// one cancel for all
		q.submitted = q.submitted || part.submitted
		part.submitted, part.waits = false, false
		g.end(part, "cancelled")
	}
	if (outcome == "rejected" || outcome == "failed") && !g.w.excuses(q) {
		g.w.failf("%v is %s, and none of its lanes was lost", q, outcome)
	}
	g.withdraw(q)
	g.queries = slices.DeleteFunc(g.queries, func(o *testQuery) bool { return o == q })
	if q.whole != nil {
		g.joined(q.whole, outcome, q.excused)
	}
}

// connect has a gateway open a stream to the leader, as soon as it can.
func (w *world) connect(g *testGateway) {
	state := w.state
	w.after(max(w.between(0, 10*time.Millisecond), g.shut-w.now), func() {
		if w.state != state || state == nil || g.stream != nil || g.dead {
			return
		}
		s := &gatewayStream{state: state}
		g.stream, g.message = s, gatewayMessage{}
		w.send(&s.up, false, func() { w.step(&Event{Kind: GatewayConnected, Gateway: g.id}) })
		for _, q := range g.queries {
			if !q.submitted && !q.rejected {
				g.submit(q)
			}
		}
	})
}

// closed has a gateway go on without the leader.
func (g *testGateway) closed() {
	g.stream, g.message = nil, gatewayMessage{}
	for _, q := range g.queries {
		q.submitted, q.waits = false, false
	}
	w := g.w
	if w.one(2) { // some are decided alone
		w.after(w.between(5*time.Millisecond, 50*time.Millisecond), func() {
			for _, q := range slices.Clone(g.queries) {
				if g.stream == nil && !g.dead && !q.submitted && (q.at == nil || q.void) &&
					q.attempts < match.MaxAttempts {
					g.alone(q)
				}
			}
		})
	}
}

// alone sends a query to a lane that has room.
func (g *testGateway) alone(q *testQuery) {
	for _, m := range g.w.members {
		for lane, queue := range m.lanes {
			if !m.dead && len(queue) < worldDepth && !m.member.Draining {
				g.begin(q, &call{q: q, attempt: q.number + 1, to: m, lane: lane})
				return
			}
		}
	}
}
