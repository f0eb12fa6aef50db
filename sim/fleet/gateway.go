package fleet

import (
	"slices"
	"time"

	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/election"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/runtime/queue"
)

// These are package client's, which says what they mean.
const (
	leastSilence          = 10 * time.Millisecond
	heartbeatSilence      = 150 * time.Millisecond
	lostSilence           = time.Second
	leastOverdue          = 100 * time.Millisecond
	mostLed               = 2
	mostInquiries         = 8
	watchInterval         = 5 * time.Millisecond
	firstAgain            = 10 * time.Millisecond
	firstRetry, lastRetry = 5 * time.Millisecond, 25 * time.Millisecond
	firstAnswer           = 250 * time.Millisecond
)

// A gateway does with its part of the queries what a client's gateway does: it submits them to
// the leader, and decides about them by itself while there is none, or none that answers.
type gateway struct {
	host
	f     *Fleet
	index int
	id    uint64
	asks  []*asked // its queries without an outcome, in the order they arrived
	bySeq map[uint64]*asked

	claim     election.Claim // of the leader as far as known
	successor string
	lost      string // the leader that was lost last
	link      *term  // whose stream is open; nil: none
	silent    bool   // it is, and has not answered in time
	hadLink   bool
	tries     int // of finding a leader, so that answers to former ones are told apart
	unacked   []time.Duration
	submitted uint64
	acked     uint64
	heardAt   time.Duration
	usual     time.Duration // between a submit and its acknowledgement
	watching  bool

	known     *match.Priced
	decision  *match.Leaderless
	wakeAt    time.Duration
	inquiries int
}

// asked is a query at its gateway.
type asked struct {
	Query
	atLeader atLeader
	number   int // of its last attempt
	attempts int
	at       *call // under way; nil: none
	void     bool  // it is given up, until there is another
	refused  bool  // by the leader, while an attempt was under way
	unled    bool  // it is decided without a leader, though there may be one
	inquired bool  // it is being decided so
	ended    bool
	since    time.Duration // when it began to wait unheard
	again    time.Duration // it is not decided without a leader before
	failed   []match.LaneID
}

// atLeader is what the leader knows of a query.
type atLeader uint8

const (
	unknown  atLeader = iota // nothing
	waits                    // that it waits for a lane
	assigned                 // which lane it is on, or on its way to
)

// A call carries an attempt to an agent, and its answer back.
type call struct {
	queue.Place
	of          *asked
	gateway     *gateway
	number      int           // 1 for the first of its query
	start       time.Duration // of its execution
	over        bool          // the lane has run it, or given it back
	to          *agent
	reservation uint64 // the place that was promised; 0: a leader has sent it
	claimed     bool   // the leader knows of it from the gateway
	waited      time.Duration
	sent        time.Duration
	took        time.Duration // as expected
	cameAt      time.Duration
}

// An outcome is what an attempt came to.
type outcome uint8

const (
	answered  outcome = iota
	rejected          // the query is late, and its model is set so
	elsewhere         // another agent may answer
)

func newGateway(f *Fleet, index int) (*gateway, error) {
	seed := f.cfg.Seed*uint64(f.cfg.Gateways) + uint64(index)
	p, err := match.NewPriced(f.cfg.matchModels(), seed)
	if err != nil {
		return nil, err
	}
	g := &gateway{
		host: newHost(), f: f, index: index, id: uint64(index + 1), bySeq: map[uint64]*asked{},
		known: p, decision: match.NewLeaderless(f.cfg.Probes, seed), wakeAt: Never,
	}
	for _, a := range f.agents {
		if err := g.join(a); err != nil {
			return nil, err
		}
	}
	p.SetPrices(f.cfg.Prices)
	g.decision.Know(p)
	if f.cfg.GossipDelay > 0 {
		for i := range f.agents {
			turn := f.cfg.GossipDelay * time.Duration(i) / time.Duration(len(f.agents))
			f.do(f.now+turn, func() { g.gossip(f.agents[i]) })
		}
	}
	return g, nil
}

// join has an agent's lane be known.
func (g *gateway) join(a *agent) error {
	l := a.lane
	var models []string
	for m, table := range l.Predicted {
		if table == nil {
			continue
		}
		models = append(models, g.f.cfg.Models[m].Name)
		if err := g.known.SetProfile(g.f.cfg.Models[m].Name, l.Type, table); err != nil {
			return err
		}
	}
	g.known.Join(match.LaneID(a.index), l.Type, models)
	return nil
}

// gossip has a lane's load come to be known, again and again.
func (g *gateway) gossip(a *agent) {
	f := g.f
	if _, breaks := f.cut(&a.host, &g.host); !a.dead && !a.frozen() && !breaks {
		at, remaining := epoch.Add(f.now), a.remaining()
		f.send(&a.host, &g.host, func() { g.known.Heard(match.LaneID(a.index), at, remaining) }, nil)
	}
	f.do(f.now+f.cfg.GossipDelay, func() { g.gossip(a) })
}

func (g *gateway) now() time.Time { return epoch.Add(g.f.now) }

// left and joined take it that an agent is no member any more, or is one again.
func (g *gateway) left(a *agent) {
	g.known.Leave(match.LaneID(a.index))
	g.decision.Lost(g.now(), match.LaneID(a.index))
	g.carryOut()
}

func (g *gateway) joined(a *agent) {
	if err := g.join(a); err != nil {
		g.f.fail(err)
	}
}

// arrive takes a new query.
func (g *gateway) arrive(new Query) {
	f := g.f
	q := &asked{Query: new, since: f.now}
	g.asks, g.bySeq[q.Sequence] = append(g.asks, q), q
	f.cfg.Waits(q.Sequence, true)
	if g.led() {
		g.submit(q)
	}
	g.inquire()
	g.watch()
	if f.cfg.Deadline > 0 {
		f.on(&g.host, f.cfg.Deadline, func() {
			if q.ended {
				return
			}
			if q.at != nil {
				g.abort(q.at)
			}
			g.end(q, Dropped, nil)
		})
	}
}

// The leader.

func (g *gateway) led() bool { return g.link != nil && !g.silent }

// toLeader has the leader linked do something.
func (g *gateway) toLeader(what func(t *term)) {
	if t := g.link; t != nil {
		g.f.send(&g.host, &t.agent.host, func() {
			if !t.over && t.linked[g.index] {
				what(t)
			}
		}, nil)
	}
}

// submit has the leader look for a lane, or reserve the one that the query is on.
func (g *gateway) submit(q *asked) {
	f := g.f
	e := leader.Event{
		Kind: leader.Submitted, Gateway: g.id, Sequence: q.Sequence, Attempt: q.number,
		Model: leader.ModelID{Name: f.cfg.Models[q.Model].Name}, BatchSize: q.BatchSize, Waited: f.now - q.Arrival,
	}
	if f.cfg.Deadline > 0 {
		e.TimeLeft = max(1, q.Arrival+f.cfg.Deadline-f.now)
	}
	q.atLeader = waits
	if q.at != nil && !q.void {
		e.Agent, e.Attempt, q.atLeader = q.at.to.member.Name, q.at.number, assigned
		q.at.claimed = true
	}
	g.submitted++
	g.unacked = append(g.unacked, f.now)
	g.toLeader(func(t *term) {
		t.read[g.index]++
		t.step(&e)
		read := t.read[g.index]
		t.tell(g, func() { g.heard(t, read) })
	})
}

func (g *gateway) cancel(seq uint64) {
	g.toLeader(func(t *term) {
		t.step(&leader.Event{Kind: leader.Cancelled, Gateway: g.id, Sequence: seq})
	})
}

// withdraw takes a query away from the leader.
func (g *gateway) withdraw(q *asked) {
	if q.atLeader != unknown {
		q.atLeader = unknown
		g.cancel(q.Sequence)
	}
}

// unused gives an assignment back.
func (g *gateway) unused(seq uint64, attempt int, agent string) {
	g.toLeader(func(t *term) {
		t.step(&leader.Event{
			Kind: leader.Unused, Gateway: g.id, Sequence: seq, Attempt: attempt, Agent: agent,
		})
	})
}

// told takes what the leader has decided.
func (g *gateway) told(t *term, kind leader.ActionKind, d *match.Decision, name string) {
	if g.link != t {
		return
	}
	seq := d.Query.Sequence
	q := g.bySeq[seq]
	switch {
	case q == nil:
		if kind != leader.Reject {
			g.cancel(seq)
		}
		if kind == leader.Assign {
			g.unused(seq, d.Attempt, name)
		}
	case kind == leader.Assign && q.atLeader != unknown && d.Attempt > q.number &&
		q.attempts >= match.MaxAttempts:
		g.withdraw(q)
		g.unused(seq, d.Attempt, name)
	case kind == leader.Assign && (q.atLeader == unknown || d.Attempt <= q.number):
		g.unused(seq, d.Attempt, name)
	case q.atLeader == unknown:
	case kind == leader.Assign:
		q.atLeader = assigned
		g.begin(q, g.f.named[name], d.Attempt, 0, d.Wait+d.Latency)
	case kind == leader.OfferAgain:
		if q.at != nil && q.at.number == d.Attempt {
			q.void, q.atLeader = true, waits
			g.f.cfg.Waits(seq, true)
		}
	case kind == leader.Reject:
		q.atLeader = unknown
		if q.refused = true; q.at != nil {
			break
		}
		switch d.Reason {
		case match.DeadlinePassed:
			g.end(q, Dropped, nil)
		case match.TooManyAttempts:
			g.end(q, Lost, nil)
		default:
			g.end(q, Rejected, nil)
		}
	}
}

// heard takes a sign of life of the leader, who has read so many submits.
func (g *gateway) heard(t *term, read uint64) {
	if g.link != t {
		return
	}
	f := g.f
	g.heardAt = f.now
	if n := min(read, g.submitted); n > g.acked {
		took := f.now - g.unacked[n-g.acked-1]
		g.usual += (took - g.usual) / 8
		g.unacked = append(g.unacked[:0], g.unacked[n-g.acked:]...)
		g.acked = n
	}
	if g.silent && len(g.unacked) == 0 {
		g.silent = false
		g.submitAll()
	}
}

func (g *gateway) submitAll() {
	for _, q := range g.asks {
		if q.atLeader == unknown && !q.refused && !q.unled {
			g.submit(q)
		}
	}
}

// learn takes news of who leads, and who will next.
func (g *gateway) learn(c election.Claim, successor string) {
	if c.Compare(g.claim) < 0 {
		return
	}
	if successor != "" {
		g.successor = successor
	}
	if c == g.claim {
		return
	}
	if g.claim = c; successor == "" {
		g.successor = ""
	}
	if g.link != nil && g.link.claim != c {
		g.leave()
	}
	if g.link == nil {
		g.find()
	}
}

// find looks for a leader until one answers: the one known, its successor if that was lost.
func (g *gateway) find() {
	g.tries++
	g.try(g.tries, 0, firstRetry)
}

func (g *gateway) try(tries, n int, retry time.Duration) {
	f := g.f
	if g.tries != tries || g.link != nil {
		return
	}
	var names []string
	if l := g.claim.Leader; l != "" && l != g.lost {
		names = append(names, l)
	}
	if s := g.successor; s != "" && s != g.claim.Leader {
		names = append(names, s)
	}
	if l := g.claim.Leader; l != "" && l == g.lost {
		names = append(names, l)
	}
	if n >= len(names) {
		f.on(&g.host, f.jitter(retry), func() { g.try(tries, 0, min(2*retry, lastRetry)) })
		return
	}
	to := f.named[names[n]]
	over := false
	next := func() {
		if !over {
			over = true
			g.try(tries, n+1, retry)
		}
	}
	f.on(&g.host, firstAnswer, next)
	f.send(&g.host, &to.host, func() {
		if to.term != nil && !to.term.over {
			to.term.connect(g)
			return
		}
		follow := to.follow
		f.send(&to.host, &g.host, func() {
			g.learn(follow, "")
			next()
		}, nil)
	}, next)
}

// opened takes it that a leader has answered on a new stream. All queries go there.
func (g *gateway) opened(t *term) {
	f := g.f
	switch {
	case g.link == t:
		return
	case t.claim.Compare(g.claim) < 0:
		f.send(&g.host, &t.agent.host, func() { t.disconnect(g) }, nil)
		return
	case g.link != nil:
		g.leave()
	}
	g.claim, g.link, g.silent, g.hadLink = t.claim, t, false, true
	g.heardAt, g.submitted, g.acked, g.unacked = f.now, 0, 0, nil
	g.tries++
	g.submitAll()
	g.watch()
}

// leave ends the stream to the leader.
func (g *gateway) leave() {
	t := g.link
	g.f.send(&g.host, &t.agent.host, func() { t.disconnect(g) }, nil)
	g.unlink()
}

// closed takes it that a leader has ended its stream.
func (g *gateway) closed(t *term) {
	t.linked[g.index] = false
	if g.link == t {
		g.unlink()
		g.find()
	}
}

// unlink forgets what belongs to the stream that was.
func (g *gateway) unlink() {
	g.lost = g.link.agent.member.Name
	g.link, g.silent, g.unacked = nil, false, nil
	for _, q := range g.asks {
		q.atLeader, q.since = unknown, g.f.now
	}
	g.inquire()
}

// broken takes it that the connections to an agent have broken.
func (g *gateway) broken(a *agent) {
	for _, q := range slices.Clone(g.asks) {
		if q.at != nil && q.at.to == a {
			q.at.ended(elsewhere)
		}
	}
	g.decision.Lost(g.now(), match.LaneID(a.index))
	g.carryOut()
	if t := g.link; t != nil && t.agent == a {
		g.f.on(&a.host, 0, func() { t.disconnect(g) })
		g.unlink()
		g.find()
	}
}

// watch looks after the leader while there are queries.
func (g *gateway) watch() {
	if g.watching || len(g.asks) == 0 && len(g.unacked) == 0 {
		return
	}
	g.watching = true
	f := g.f
	wait := watchInterval
	if g.led() && len(g.unacked) > 0 {
		wait = min(wait, max(0, g.unacked[0]+g.silence()-f.now))
	}
	f.on(&g.host, wait+1, func() {
		g.watching = false
		g.check()
		g.inquire()
		g.watch()
	})
}

// silence is how long the leader may take to acknowledge a submit.
func (g *gateway) silence() time.Duration { return max(leastSilence, 3*g.usual) }

// check finds out whether the leader is silent.
func (g *gateway) check() {
	f := g.f
	unheard := f.now - g.heardAt
	switch {
	case g.link == nil:
	case unheard > lostSilence:
		g.leave()
		g.find()
	case !g.silent && (len(g.unacked) > 0 && f.now-g.unacked[0] > g.silence() ||
		unheard > max(heartbeatSilence, g.silence())):
		g.silent = true
		g.decision.Avoid(g.now(), match.LaneID(g.link.agent.index))
	}
}

// Attempts.

// begin sends a query to an agent; an attempt under way is cut off.
func (g *gateway) begin(q *asked, to *agent, number int, reservation uint64, took time.Duration) {
	f := g.f
	if q.at != nil {
		g.abort(q.at)
	}
	c := &call{
		of: q, gateway: g, to: to, number: number, reservation: reservation,
		waited: f.now - q.Arrival, sent: f.now, took: took,
	}
	q.at, q.void, q.number = c, false, max(q.number, number)
	q.attempts++
	f.movedAt = f.now
	f.cfg.Waits(q.Sequence, false)
	f.send(&g.host, &to.host, func() { to.takes(c) }, func() { c.ended(elsewhere) })
}

func (g *gateway) abort(c *call) {
	g.f.send(&g.host, &c.to.host, func() { c.to.cutOff(c) }, nil)
}

// ended has the gateway learn how an attempt ended.
func (c *call) ended(how outcome) {
	q, g := c.of, c.gateway
	if q.at != c || q.ended {
		return
	}
	if how == elsewhere && q.attempts > 1 {
		// The leader may not know yet that the agent is out of reach.
		wait := firstAgain << (2 * (q.attempts - 2))
		g.f.on(&g.host, g.f.jitter(wait), func() {
			if q.at == c && !q.ended {
				g.failed(q, c)
			}
		})
		return
	}
	if how == elsewhere {
		g.failed(q, c)
		return
	}
	if q.atLeader == assigned {
		if c.claimed { // the lane may have told another leader
			g.unused(q.Sequence, c.number, c.to.member.Name)
		} else if how == answered { // the leader hears of it from the lane
			q.atLeader = unknown
		}
	}
	if how == answered {
		g.end(q, Served, c)
	} else {
		g.end(q, Rejected, nil)
	}
}

// failed has a query whose attempt has failed be sent elsewhere.
func (g *gateway) failed(q *asked, c *call) {
	f := g.f
	q.at = nil
	q.failed = append(q.failed, match.LaneID(c.to.index))
	switch {
	case q.refused:
		g.end(q, Rejected, nil)
		return
	case q.attempts >= match.MaxAttempts:
		g.end(q, Lost, nil)
		return
	}
	f.cfg.Waits(q.Sequence, true)
	q.since = f.now
	q.unled = q.unled || len(q.failed) >= mostLed
	was := q.atLeader
	if was == assigned { // the lane is not to be reserved for it any more
		g.unused(q.Sequence, c.number, c.to.member.Name)
	}
	switch {
	case q.unled:
		g.withdraw(q)
	case was != waits && g.led():
		g.submit(q)
	}
	g.inquire()
}

// end decides the outcome of a query.
func (g *gateway) end(q *asked, o Outcome, by *call) {
	f := g.f
	q.ended = true
	g.withdraw(q)
	delete(g.bySeq, q.Sequence)
	i := slices.Index(g.asks, q)
	g.asks = slices.Delete(g.asks, i, i+1)
	f.movedAt = f.now
	f.open--
	lane, start := -1, time.Duration(0)
	if by != nil {
		lane, start = by.to.index, by.start
	}
	f.tally(&q.Query, o == Served && f.now-q.Arrival <= f.cfg.Models[q.Model].QoSTarget, o)
	f.cfg.Finish(q.Sequence, o, lane, start)
}

// Without a leader.

// due is from when on a query may be decided without a leader.
func (g *gateway) due(q *asked) time.Duration {
	due := q.again
	if g.link == nil && !g.hadLink {
		due = max(due, q.since+leastSilence)
	}
	if c := q.at; c != nil && !q.void {
		p99 := c.to.lane.Known[q.Model].Quantile(0.99, q.BatchSize)
		due = max(due, c.sent+c.took+max(leastOverdue, 3*p99))
	}
	return due
}

// inquire has the oldest queries be decided without a leader for which it is time.
func (g *gateway) inquire() {
	f := g.f
	for _, q := range slices.Clone(g.asks) {
		if g.inquiries >= mostInquiries {
			return
		}
		if q.ended || q.inquired || q.attempts >= match.MaxAttempts || g.led() && !q.unled ||
			f.now < g.due(q) {
			continue
		}
		q.inquired, q.void = true, q.at != nil
		if f.cfg.GossipDelay == 0 {
			for _, a := range f.agents {
				g.known.Heard(match.LaneID(a.index), g.now(), a.remaining())
			}
		}
		g.inquiries++
		g.decision.Begin(g.now(), match.Inquiry{
			Query: q.Sequence, Model: f.cfg.Models[q.Model].Name, BatchSize: q.BatchSize,
			Arrival: epoch.Add(q.Arrival), Failed: q.failed,
		})
		g.carryOut()
	}
}

// carryOut does what is decided without a leader.
func (g *gateway) carryOut() {
	f := g.f
	for do, ok := g.decision.Next(); ok; do, ok = g.decision.Next() {
		q := g.bySeq[do.Query]
		switch do.Kind {
		case match.AskLane:
			a := f.agents[do.Lane]
			if q == nil { // it has its outcome meanwhile
				g.decision.Unasked(g.now(), do.ID)
				continue
			}
			model, batch, id := q.Model, q.BatchSize, do.ID
			f.send(&g.host, &a.host, func() { a.probed(g, id, model, batch) }, func() {
				g.decision.Unasked(g.now(), id)
				g.carryOut()
			})
		case match.ReleaseLane:
			g.release(f.agents[do.Lane], do.ID)
		case match.SendQuery:
			g.inquiries--
			if q != nil {
				q.inquired = false
			}
			if q == nil || q.at != nil && !q.void || q.attempts >= match.MaxAttempts {
				g.release(f.agents[do.Lane], do.ID)
				continue
			}
			g.withdraw(q)
			g.begin(q, f.agents[do.Lane], q.number+1, do.ID, do.Finish)
		case match.NoLane:
			g.inquiries--
			if q != nil {
				q.inquired, q.again = false, do.Again.Sub(epoch)
			}
		}
	}
	wake := g.decision.Wake()
	if wake.IsZero() {
		return
	}
	at := max(wake.Sub(epoch), f.now+1) // time must pass
	if at >= g.wakeAt {
		return
	}
	g.wakeAt = at
	f.on(&g.host, at-f.now, func() {
		if g.wakeAt == at {
			g.wakeAt = Never
			g.decision.Pass(g.now())
			g.carryOut()
			g.inquire()
		}
	})
}

func (g *gateway) release(a *agent, id uint64) {
	g.f.send(&g.host, &a.host, func() { a.unpromise(g, id) }, nil)
}

// answered takes an agent's answer to a question.
func (g *gateway) answered(a *agent, id uint64, remaining, finish time.Duration) {
	g.decision.Answered(g.now(), match.LaneID(a.index), id, remaining, finish)
	g.carryOut()
	g.inquire()
}
