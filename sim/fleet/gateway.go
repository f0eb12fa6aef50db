package fleet

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/client/queries"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/election"
	"github.com/muster-serve/muster/leader/inquire"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/runtime/lane"
	"github.com/muster-serve/muster/runtime/queue/merge"
)

// A gateway carries messages between a [queries.State], a [inquire.State] and the fleet's hosts,
// as client.Gateway does.
type gateway struct {
	endpoint
	f     *Fleet
	index int
	id    uint64
	state *queries.State
	calls []*call // calls under way

	to       *agent // agent to which a stream is open or being opened; nil: none
	stream   int    // counts streams and the pauses between them
	link     *term  // the term at the stream's other end; nil: it has not answered
	watching bool

	known    *match.PricedLanes
	decision *inquire.State
	wakeAt   time.Duration
	inquired map[uint64]*gatewayQuery // queries with an open inquiry, by id
}

// gatewayQuery is a query that the gateway owns, or a part of one: a Query with fewer rows.
type gatewayQuery struct {
	ArrivingQuery
	whole *gatewayQuery // the query of which it is a part; nil: it is no part
	state queries.Query
	waits int     // 1 while it waits for a lane; of a query that was split, how many parts wait
	calls []*call // those under way: two while the query is hedged
	sent  int     // calls so far
	timed bool    // events to come name it
	by    *call   // the call that has answered; of a query that was split, the last one
	done  bool
}

// A call carries an attempt to an agent, and its answer back.
type call struct {
	lane.Query
	of                        *gatewayQuery
	model                     int // which runs: the query's, or one of the family that it asks for
	gateway                   *gateway
	number                    int           // 1 for the query's first
	sent                      merge.GroupID // the queries that it is to run with
	merged                    int           // items of its run, if others run with it
	mergedUsers, mergedValues int           // of that run
	joined                    bool          // it runs with another, whose end tells the leader of the run
	over                      bool          // the lane has run it or given it back
	to                        *agent
	reservation               uint64 // id of the reservation; 0: a leader chose the lane
	waited                    time.Duration
	cameAt                    time.Duration
	found                     int // how many others were at the lane then
}

// An attemptExit is how an attempt ended.
type attemptExit uint8

const (
	answered attemptExit = iota
	rejected             // the query is late, and its model rejects late queries
	refused              // another agent may answer
	unheard              // as refused, because the agent was not reached
)

// A fate is the outcome of a query that is not served, as an error.
type fate Outcome

func (fate) Error() string { return "the query is not served" }

func newGateway(f *Fleet, index int) (*gateway, error) {
	g := &gateway{
		endpoint: newHost(), f: f, index: index, id: uint64(index + 1), wakeAt: Never,
		inquired: map[uint64]*gatewayQuery{},
	}
	g.state = queries.New(g.p99Execution)
	if f.cfg.Settled && f.cfg.Candidates >= 0 || f.cfg.Choose != nil {
		return g, nil
	}
	if err := g.knowLanes(); err != nil {
		return nil, err
	}
	if !f.cfg.Settled {
		f.callAt(&g.endpoint, 0, g.seek)
	}
	return g, nil
}

// knowLanes makes the gateway know all lanes, and hear of their loads from now on. A gateway of a
// fleet that is settled and led needs that only for queries that lanes have refused.
func (g *gateway) knowLanes() error {
	f := g.f
	seed := f.cfg.Seed*uint64(f.cfg.Gateways) + uint64(g.index)
	p, err := match.NewPricedLanes(f.cfg.matchModels(), seed)
	if err != nil {
		return err
	}
	g.known, g.decision = p, inquire.New(max(1, f.cfg.Probes), seed)
	for _, a := range f.agents {
		if a.left {
			continue
		}
		if err := g.addLane(a); err != nil {
			return err
		}
	}
	p.SetPrices(f.cfg.Prices)
	g.decision.SetLanes(p)
	if f.cfg.GossipDelay > 0 {
		for i := range f.agents {
			turn := f.cfg.GossipDelay * time.Duration(i) / time.Duration(len(f.agents))
			f.do(f.now+turn, func() { g.reportLoad(f.agents[i]) })
		}
	}
	return nil
}

// p99Execution is the 99th percentile of a query's execution latency at an agent.
func (g *gateway) p99Execution(q *queries.Query, name names.AgentName) time.Duration {
	of := q.Tag.(*gatewayQuery)
	model := of.Model
	if of.Family != "" {
		model = g.f.indexOf[q.Variant()]
	}
	return g.f.named[name].lane.Known[model].Quantile(0.99, g.f.sizeOf(&of.ArrivingQuery))
}

// addLane adds an agent's lane to those that the gateway knows.
func (g *gateway) addLane(a *agent) error {
	l := a.lane
	var models []names.ModelKey
	for m, table := range l.Predicted {
		if table == nil {
			continue
		}
		if a.holdsModel(m) {
			models = append(models, g.f.cfg.Models[m].Name)
		}
		if err := g.known.SetProfile(g.f.cfg.Models[m].Name, l.Type, table); err != nil {
			return err
		}
	}
	g.known.Join(match.LaneID(a.index), l.Type, models)
	return nil
}

// reportLoad reports an agent's load to the gateway, every GossipDelay.
func (g *gateway) reportLoad(a *agent) {
	f := g.f
	if o, is := f.findOutage(&a.endpoint, &g.endpoint); !a.dead && !a.isFrozen() && !(is &&
		o.lastsUntilBroken()) {
		at, busy := epoch.Add(f.now), a.busyTime()
		f.send(&a.endpoint, &g.endpoint, func() {
			g.known.NoteRemaining(match.LaneID(a.index), at,
				busy)
		},
			nil)
	}
	f.do(f.now+f.cfg.GossipDelay, func() { g.reportLoad(a) })
}

func (g *gateway) timeNow() time.Time { return epoch.Add(g.f.now) }

// handleLeft and joined handle that an agent is no longer a member, or is one again.
func (g *gateway) handleLeft(a *agent) {
	g.known.Leave(match.LaneID(a.index))
	g.decision.Lost(g.timeNow(), match.LaneID(a.index))
	g.endPause()
	g.carryOutActions()
}

func (g *gateway) handleJoined(a *agent) {
	if err := g.addLane(a); err != nil {
		g.f.fail(err)
	}
	g.endPause()
}

// takeQuery takes a new query.
func (g *gateway) takeQuery(new ArrivingQuery) {
	f := g.f
	q := f.newQuery(new)
	if d := f.cfg.deadlineOf(new.Model); d > 0 {
		q.timed, q.state.Deadline = true, new.Arrival+d
		f.callAt(&g.endpoint, d, func() { g.endEarly(q, Dropped) })
	}
	if new.CancelAfter > 0 {
		q.timed = true
		f.callAt(&g.endpoint, new.CancelAfter, func() { g.endEarly(q, Cancelled) })
	}
	g.noteWaiting(q, true)
	g.state.Arrive(&q.state, f.now)
	g.carryOutActions()
	g.watch()
}

// endEarly ends a query that may not have its outcome yet.
func (g *gateway) endEarly(q *gatewayQuery, o Outcome) {
	g.state.End(&q.state, fate(o))
	for len(q.calls) > 0 {
		g.abortCall(q.calls[0])
	}
	g.carryOutActions()
}

// noteWaiting notes that a query, or a part, begins or ends to wait for a lane. A query that was
// split waits while one of its parts does.
func (g *gateway) noteWaiting(q *gatewayQuery, begins bool) {
	if begins == (q.waits > 0) {
		return
	}
	n := -1
	if begins {
		n = 1
	}
	q.waits += n
	if q.whole != nil {
		q = q.whole
		q.waits += n
	}
	if !q.done {
		g.f.cfg.Waits(q.Sequence, q.waits > 0)
	}
}

// split carries out a leader's decision to split a query into parts of so many rows.
func (g *gateway) split(sequence uint64, rows []int) {
	split := g.state.ToSplit(sequence)
	if split == nil {
		return
	}
	whole := split.Tag.(*gatewayQuery)
	parts := make([]*queries.Query, len(rows))
	for i, n := range rows {
		part := &gatewayQuery{ArrivingQuery: whole.ArrivingQuery, whole: whole}
		part.BatchSize, part.Work = n, (whole.Work*n+whole.BatchSize-1)/whole.BatchSize
		if whole.Users > 0 { // their work is that of each part
			part.Work = n + max(0, whole.Work-whole.BatchSize)
		}
		if g.f.cfg.Luck != nil {
			g.f.cfg.Luck(&part.ArrivingQuery, i+1)
		}
		part.state.Tag, parts[i] = part, &part.state
	}
	for _, part := range parts {
		g.noteWaiting(part.Tag.(*gatewayQuery), true)
	}
	whole.waits = len(parts)
	g.state.Split(split, parts)
	g.f.cfg.Split(whole.Sequence)
}

// carryOutActions ends the handling of an event: it carries out the actions of the state and of the
// decision.
func (g *gateway) carryOutActions() {
	g.carryOut()
	g.carryOutDecision()
	for q := g.state.Inquire(g.f.now); q != nil; q = g.state.Inquire(g.f.now) {
		g.beginInquiry(q.Tag.(*gatewayQuery))
		g.carryOutDecision()
	}
	for m, ok := g.state.Message(); ok; m, ok = g.state.Message() {
		g.sendToLeader(m)
	}
}

// carryOut carries out the state's actions.
func (g *gateway) carryOut() {
	for do, ok := g.state.Next(); ok; do, ok = g.state.Next() {
		switch do.Kind {
		case queries.Wake:
			g.sendOrEnd(do.Query.Tag.(*gatewayQuery))
		case queries.CutOff:
			q := do.Query.Tag.(*gatewayQuery)
			for _, c := range slices.Clone(q.calls) {
				if c.number == int(do.Attempt) {
					g.abortCall(c)
				}
			}
			g.state.Attempted(&q.state, do.Attempt, queries.Elsewhere, nil, g.f.now)
		case queries.Release:
			g.release(g.f.named[do.Agent], do.Reservation)
		case queries.HangUp:
			g.hangUp()
		}
	}
}

// sendOrEnd sends a query that has a target, and ends one that has its outcome.
func (g *gateway) sendOrEnd(q *gatewayQuery) {
	f := g.f
	if err, ended := q.state.Ended(); ended {
		g.endQuery(q, err)
		return
	}
	t, ok := g.state.Take(&q.state, f.now)
	if !ok {
		return
	}
	c := f.newCall()
	*c = call{
		of: q, gateway: g, to: f.named[t.Agent], number: int(t.Attempt), reservation: t.Reservation,
		waited: f.now - q.Arrival, sent: merge.GroupID{Number: t.Merge, Queries: int(t.Merged)},
		model: q.Model,
	}
	if q.Family != "" {
		c.model = f.indexOf[t.Model]
	}
	q.sent++
	q.calls = append(q.calls, c)
	if !f.cfg.Settled { // otherwise no link breaks
		g.calls = append(g.calls, c)
	}
	f.movedAt = f.now
	g.noteWaiting(q, false)
	if c.to.left {
		f.callAt(&g.endpoint, 0, func() { c.handleEnd(unheard, -1) })
		return
	}
	m := f.newMessage(attempted)
	m.call = c
	f.sendMessage(f.drawJitter(), &g.endpoint, &c.to.endpoint, m)
}

// endQuery handles that a query, or a part, has its outcome.
func (g *gateway) endQuery(q *gatewayQuery, err error) {
	if q.done {
		return
	}
	q.done = true
	f := g.f
	if q.whole != nil {
		g.noteWaiting(q, false)
		return
	}
	o := Served
	if err != nil {
		o = f.outcomeOf(err)
	}
	f.movedAt = f.now
	f.open--
	by := Answer{Lane: -1}
	if o == Served {
		by = q.by.toAnswer()
	}
	f.tallyOutcome(&q.ArrivingQuery, o == Served &&
		f.now-q.Arrival <= f.cfg.Models[q.Model].QoSTarget, o)
	f.cfg.Finish(q.Sequence, o, by)
}

// outcomeOf is that of a query that has ended with an error.
func (f *Fleet) outcomeOf(err error) Outcome {
	o := Lost // it was tried too often
	if why, ok := err.(fate); ok {
		o = Outcome(why)
	}
	if o == Lost && f.cfg.Settled { // lanes have refused it: nothing is lost
		return Rejected
	}
	return o
}

func (c *call) toAnswer() Answer {
	return Answer{
		Lane: c.to.index, Model: c.model, Found: c.found, CameAt: c.cameAt, Start: c.Started(),
	}
}

// The functions from here on handle attempts.

// removeCall removes a call under way.
func (g *gateway) removeCall(c *call) {
	is := func(o *call) bool { return o == c }
	g.calls = slices.DeleteFunc(g.calls, is)
	c.of.calls = slices.DeleteFunc(c.of.calls, is)
}

// abortCall cuts off an attempt under way.
func (g *gateway) abortCall(c *call) {
	g.f.send(&g.endpoint, &c.to.endpoint, func() { c.to.cutOff(c) }, nil)
	g.removeCall(c)
}

// handleEnd tells the gateway how an attempt ended and, unless remaining is negative, how long the
// agent is busy.
func (c *call) handleEnd(how attemptExit, remaining time.Duration) {
	q, g := c.of, c.gateway
	if remaining >= 0 && g.known != nil {
		g.known.NoteRemaining(match.LaneID(c.to.index), g.timeNow(), remaining)
	}
	if !slices.Contains(q.calls, c) { // the query goes elsewhere or has its outcome
		return
	}
	if wait := q.state.Backoff(); how == unheard && wait > 0 {
		g.f.callAt(&g.endpoint, g.f.jitterTime(wait), func() {
			if slices.Contains(q.calls, c) {
				g.noteAttemptOver(c, how)
			}
		})
		return
	}
	if how == answered && g.f.cfg.Answered != nil {
		by := c.toAnswer()
		by.Remaining = remaining
		g.f.cfg.Answered(g.index, &q.ArrivingQuery, by)
	}
	g.noteAttemptOver(c, how)
	g.f.recycleCall(c)
}

// noteAttemptOver tells the state that an attempt is over.
func (g *gateway) noteAttemptOver(c *call, how attemptExit) {
	f, q, attempt := g.f, c.of, uint32(c.number)
	g.removeCall(c)
	switch how {
	case answered:
		q.by = c
		if q.whole != nil {
			q.whole.by = c
		}
		g.state.Attempted(&q.state, attempt, queries.Answered, nil, f.now)
	case rejected:
		g.state.Attempted(&q.state, attempt, queries.Final, fate(Rejected), f.now)
	default:
		g.state.Attempted(&q.state, attempt, queries.Elsewhere, fate(Lost), f.now)
		if len(q.calls) == 0 {
			g.noteWaiting(q, true)
		}
	}
	g.carryOutActions()
}

// handleBrokenConnection handles that the connections to an agent have broken.
func (g *gateway) handleBrokenConnection(a *agent) {
	for _, c := range slices.Clone(g.calls) {
		if c.to == a {
			c.handleEnd(unheard, -1)
		}
	}
	g.decision.Lost(g.timeNow(), match.LaneID(a.index))
	if g.to == a {
		g.hangUp()
	}
	g.carryOutActions()
}

// The functions from here on handle the link to the leader.

// seek opens streams to agents that may lead, one after the other, until one answers.
func (g *gateway) seek() {
	f := g.f
	name, wait := g.state.Try(f.now, func(name names.AgentName) bool { return !f.named[name].left })
	g.stream++
	stream := g.stream
	if name == "" {
		f.callAt(&g.endpoint, f.jitterTime(wait), func() {
			if g.stream == stream {
				g.seek()
			}
		})
		g.carryOutActions()
		return
	}
	to := f.named[name]
	g.to = to
	g.endSilentStream(stream)
	over := func() {
		if g.stream == stream {
			g.handleClosed()
		}
	}
	f.send(&g.endpoint, &to.endpoint, func() {
		if to.term != nil && !to.term.over {
			to.term.connect(g)
			return
		}
		follow, successor := to.follow, to.node.Successor()
		f.send(&to.endpoint, &g.endpoint, func() {
			g.noteLeadership(follow, successor)
			over()
		}, nil)
	}, over)
	g.carryOutActions()
}

// endSilentStream ends the stream if its other end was silent for too long.
func (g *gateway) endSilentStream(stream int) {
	if g.stream != stream {
		return
	}
	if left := g.state.Patience(g.f.now); left > 0 {
		g.f.callAt(&g.endpoint, left, func() { g.endSilentStream(stream) })
		return
	}
	g.hangUp()
}

// hangUp ends the stream.
func (g *gateway) hangUp() {
	to := g.to
	if to == nil {
		return
	}
	g.f.send(&g.endpoint, &to.endpoint, func() {
		if to.term != nil {
			to.term.handleDisconnect(g)
		}
	}, nil)
	g.handleClosed()
}

// handleClosed handles that the stream has ended, and looks for another leader.
func (g *gateway) handleClosed() {
	g.to, g.link = nil, nil
	g.state.Tried(g.f.now)
	g.seek()
}

// handleOpened handles that a leader has answered.
func (g *gateway) handleOpened(t *term, successor names.AgentName) {
	if g.to != t.agent { // the gateway has given this stream up
		g.f.send(&g.endpoint, &t.agent.endpoint, func() { t.handleDisconnect(g) }, nil)
		return
	}
	if g.link != t {
		g.link = t
		g.state.Opened(g.f.now)
		g.carryOutActions()
		g.watch()
	}
	g.noteLeadership(t.claim, successor)
}

// noteLeadership takes news of who leads and who is to lead next.
func (g *gateway) noteLeadership(c election.Claim, successor names.AgentName) {
	if g.state.Learn(queries.Leadership{Epoch: c.Epoch, Leader: c.Leader, Successor: successor}) {
		g.endPause()
	}
	g.carryOutActions()
}

// endPause ends a pause between two rounds.
func (g *gateway) endPause() {
	if g.to == nil {
		g.seek()
	}
}

// numberAtLeader is the number of a query at the leader. In a fleet that is settled queries are
// numbered over all gateways, because a leader that sheds draws by their numbers, and the published
// figures are of such draws.
func (g *gateway) numberAtLeader(sequence uint64) uint64 {
	if !g.f.cfg.Settled {
		return sequence
	}
	n := (sequence/numbering-1)*uint64(len(g.f.gateways)) + uint64(g.index)
	return n*numbering + sequence%numbering
}

// numberHere is the number here of a query whose number at the leader is given.
func (g *gateway) numberHere(sequence uint64) uint64 {
	if !g.f.cfg.Settled {
		return sequence
	}
	return (sequence/numbering/uint64(len(g.f.gateways))+1)*numbering + sequence%numbering
}

// numbering is the distance between the numbers of two queries; parts have those between.
const numbering = match.MostParts + 1

// submit describes a query to the leader.
func (g *gateway) submit(s *queries.Submit) leader.Event {
	q := s.Query.Tag.(*gatewayQuery)
	return leader.Event{
		Kind: leader.Submitted, Gateway: g.id, Sequence: g.numberAtLeader(q.state.Sequence),
		Attempt:   int(s.Attempts),
		Model:     leader.ModelID{Name: string(g.f.cfg.askedName(&q.ArrivingQuery))},
		BatchSize: q.BatchSize, Users: q.Users, Values: q.Values,
		Waited: s.Waited, TimeLeft: s.TimeLeft, Agent: s.Agent, Splits: true,
	}
}

// sendToLeader sends a message of the state to the leader.
func (g *gateway) sendToLeader(m queries.Message) {
	f := g.f
	if len(m.Submit) == 1 && len(m.Cancel)+len(m.Unused) == 0 {
		one := f.newMessage(submitted)
		one.term, one.gateway, one.event = g.link, g, g.submit(&m.Submit[0])
		f.sendMessage(0, &g.endpoint, g.link.host, one)
		return
	}
	var events []leader.Event
	for i := range m.Submit {
		events = append(events, g.submit(&m.Submit[i]))
	}
	for _, sequence := range m.Cancel {
		events = append(events, leader.Event{
			Kind: leader.Cancelled, Gateway: g.id, Sequence: g.numberAtLeader(sequence),
		})
	}
	for _, a := range m.Unused {
		events = append(events, leader.Event{
			Kind: leader.Unused, Gateway: g.id, Sequence: g.numberAtLeader(a.Sequence),
			Attempt: int(a.Attempt),
			Agent:   a.Agent,
		})
	}
	t := g.link
	f.send(&g.endpoint, t.host, func() { t.handleEvents(g, events) }, nil)
}

// handleMessage handles a message of the leader, which has read that many submits.
func (g *gateway) handleMessage(t *term, read uint64) {
	if g.link == t {
		g.state.HandleLeaderMessage(read, g.f.now)
		g.carryOutActions()
	}
}

// handleDecision handles a decision of the leader, which has read that many submits.
func (g *gateway) handleDecision(m *message) {
	if g.link != m.term {
		return
	}
	g.state.HandleLeaderMessage(m.read, g.f.now)
	d := &m.decision
	sequence := g.numberHere(d.Query.Sequence)
	switch m.action {
	case leader.Split:
		g.split(sequence, d.Rows)
	case leader.Assign:
		g.state.HandleAssignment(queries.Assign{
			Sequence: sequence, Attempt: uint32(d.Attempt), Agent: m.name, Took: d.Wait + d.Latency,
			Merge: d.Merge, Merged: uint32(d.Merged),
			ChosenVariant: queries.ChosenVariant{Model: names.ModelKey(m.model)},
		})
	case leader.OfferAgain:
		if q := g.state.OfferAgain(sequence, uint32(d.Attempt)); q != nil {
			g.noteWaiting(q.Tag.(*gatewayQuery), true)
		}
	case leader.Reject:
		why := fate(Rejected)
		switch d.Reason {
		case match.DeadlinePassed:
			why = fate(Dropped)
		case match.TooManyAttempts:
			why = fate(Lost)
		}
		g.state.Reject(sequence, why)
	}
	g.carryOutActions()
}

// watch checks whether the leader is silent while there are queries.
func (g *gateway) watch() {
	f := g.f
	led := f.cfg.Settled && f.cfg.Candidates >= 0 // no leader is silent
	if g.watching || g.state.Idle() || led && !g.state.Unheard() {
		return
	}
	g.watching = true
	wait := queries.WatchInterval
	if !led {
		wait = g.state.LookAgain(f.now)
	}
	f.callAt(&g.endpoint, wait, func() {
		g.watching = false
		if !led && g.state.Check(f.now) {
			g.decision.Avoid(g.timeNow(), match.LaneID(g.to.index))
		}
		g.carryOutActions()
		g.watch()
	})
}

// The functions from here on handle decisions without a leader.

// beginInquiry begins an inquiry for a query.
func (g *gateway) beginInquiry(q *gatewayQuery) {
	f := g.f
	if f.cfg.Choose != nil {
		began := f.readClock()
		lane := f.cfg.Choose(g.index, &q.ArrivingQuery)
		f.countStep(began)
		g.send(q, lane, "")
		return
	}
	if g.known == nil {
		if err := g.knowLanes(); err != nil {
			f.fail(err)
			return
		}
	}
	if f.cfg.GossipDelay == 0 {
		for _, a := range f.agents {
			g.known.NoteRemaining(match.LaneID(a.index), g.timeNow(), a.remainingTime())
		}
	}
	about := match.Inquiry{
		Query: q.state.Sequence, Model: f.cfg.askedName(&q.ArrivingQuery), BatchSize: f.sizeOf(&q.ArrivingQuery),
		Arrival: epoch.Add(q.Arrival),
	}
	for _, name := range q.state.Failed() {
		about.Failed = append(about.Failed, match.LaneID(f.named[name].index))
	}
	if f.cfg.Probes >= 0 {
		g.inquired[q.state.Sequence] = q
		began := f.readClock()
		g.decision.Begin(g.timeNow(), about)
		g.countDecision(began)
		return
	}
	began := f.readClock()
	best := g.known.Rank(g.timeNow(), &about, f.cfg.RTT, 1)
	g.countDecision(began)
	if len(best) == 0 {
		f.fail(fmt.Errorf("query %d: no lane holds %s", q.Sequence, about.Model))
		return
	}
	g.known.Sent(best[0].Lane, g.timeNow(), best[0].Latency)
	g.send(q, int(best[0].Lane), best[0].Model)
}

// countDecision counts a step of the decision in a fleet that is never led: in another, steps are
// leaders'.
func (g *gateway) countDecision(began time.Duration) {
	if g.f.cfg.Candidates < 0 {
		g.f.countStep(began)
	}
}

// send sends a query to a lane that was not asked. It is not sent elsewhere for being overdue.
func (g *gateway) send(q *gatewayQuery, lane int, model names.ModelKey) {
	const notAsked, never = math.MaxUint64, Never / 2
	t := queries.Target{
		Agent: g.f.agents[lane].member.Name, Reservation: notAsked, Took: never,
	}
	if q.Family != "" {
		t.Model = model
	}
	g.state.Decided(&q.state, t)
	g.carryOut()
}

// carryOutDecision carries out the decision's actions.
func (g *gateway) carryOutDecision() {
	f := g.f
	if g.decision == nil {
		return
	}
	for do, ok := g.decision.Next(); ok; do, ok = g.decision.Next() {
		q := g.inquired[do.Query]
		switch do.Kind {
		case inquire.AskLane:
			a, model, batch, id := f.agents[do.Lane], q.Model, f.sizeOf(&q.ArrivingQuery), do.ID
			if q.Family != "" {
				model = f.indexOf[do.Model]
			}
			f.probes++
			f.send(&g.endpoint, &a.endpoint, func() { a.answerProbe(g, id, model, batch) }, func() {
				g.decision.Unasked(g.timeNow(), id)
				g.carryOutActions()
			})
		case inquire.ReleaseLane:
			g.release(f.agents[do.Lane], do.ID)
		case inquire.SendQuery:
			delete(g.inquired, do.Query)
			name := f.agents[do.Lane].member.Name
			t := queries.Target{Agent: name, Reservation: do.ID, Took: do.Finish}
			if q.Family != "" {
				t.Model = do.Model
			}
			g.state.Decided(&q.state, t)
		case inquire.NoLane:
			delete(g.inquired, do.Query)
			g.state.Undecided(&q.state, do.Again.Sub(epoch))
		}
		g.carryOut()
	}
	wake := g.decision.Wake()
	if wake.IsZero() {
		return
	}
	at := max(wake.Sub(epoch), f.now+1) // so that virtual time advances
	if at >= g.wakeAt {
		return
	}
	g.wakeAt = at
	f.callAt(&g.endpoint, at-f.now, func() {
		if g.wakeAt == at {
			g.wakeAt = Never
			g.decision.Pass(g.timeNow())
			g.carryOutActions()
		}
	})
}

func (g *gateway) release(a *agent, id uint64) {
	g.f.send(&g.endpoint, &a.endpoint, func() { a.releasePromise(g, id) }, nil)
}

// handleProbeAnswer handles an agent's answer to a question.
func (g *gateway) handleProbeAnswer(a *agent, id uint64, remaining, finish time.Duration) {
	began := g.f.readClock()
	g.decision.Answered(g.timeNow(), match.LaneID(a.index), id, remaining, finish)
	g.countDecision(began)
	g.carryOutActions()
}
