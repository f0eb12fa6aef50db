package leader

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles/work"
)

const (
	// maxSubmitted bounds the queries of one gateway that the leader remembers, and the parked
	// queries of all gateways together. It is MostSubmittedBytes by SubmitOverhead.
	maxSubmitted = 1 << 16
	// fullRetryAfter is what a gateway with so many queries is told to wait: in a second a fleet
	// serves thousands of them. Chosen; twice as much either way changes nothing.
	fullRetryAfter = time.Second
	// MostSubmittedBytes bounds the memory that the leader keeps for the queries of one gateway, in
	// bytes of their submits. The gateways of one named client share it.
	MostSubmittedBytes = 16 << 20
	// SubmitOverhead is the memory of a submit without its strings, in bytes.
	SubmitOverhead = 256
	// maxHeld bounds the queries that gateways say a lane holds, without the lane having confirmed
	// it. Chosen: numbers come from other machines, and a lane has at most LaneDepth runs.
	maxHeld = 1 << 10
)

// A gateway that is connected to the leader.
type gateway struct {
	id uint64
	// number says which gateway it was to connect in this term, from 1 on. A status has it in place
	// of the id: who knows a gateway's id could speak for it.
	number  uint64
	queries map[uint64]*query
	parts   int      // how many of queries are parts
	client  string   // the name of its client; "" if that has none, or the gateway is an agent's
	account *account // its client's, or its own if the client has no name
}

// A query is a query that the matcher knows, or one that is parked: its gateway says that it is at
// a member that has not greeted yet.
//
// Invariants, between two steps:
//   - A gateway has a query and its parts never at once: submitting or splitting one replaces the
//     other.
//   - An account's bytes are the sum of the weights of the queries of its gateways.
//   - A query that is parked is listed once, under its agent. It stays there if its gateway cancels
//     it or submits it again; submitParked then drops it. parkings is the length of all these
//     lists.
//   - heardAt is the time as of which waited and timeLeft hold. timeLeft is 0 if there is no
//     deadline, and less than 0 if the gateway says that it has passed.
type query struct {
	gateway  *gateway
	sequence uint64
	asked    ModelID // as its gateway names it
	byFamily bool    // asked is a family
	accuracy float64 // the least that its answer must have
	// loadShare is the share of the agents that may hold a model only because its client asks for
	// it; 0: its client has no right to have models loaded.
	loadShare    float64
	band         int
	tenant       string
	tenantWeight float64
	// model is the version that answers; nil if that is unknown, or open because a family is asked.
	model    *heldModel
	batch    int // rows
	users    int
	values   int
	attempts int
	agent    names.AgentName // where the gateway says that it is; "" means nowhere
	lane     int
	waited   time.Duration // as of heardAt
	timeLeft time.Duration
	heardAt  time.Duration
	tag      any
	tagSize  int
	weight   int    // bytes that it counts in its gateway's account
	parked   bool   // it is parked, or was
	parkedAs uint64 // its number among the parked ones
	splits   bool   // its gateway can split it
	// whole is the batch size of the query of which this is a part, if its release says which
	// version answers it; else 0.
	whole int
}

// An account counts the gateways of one client and the bytes that the state keeps for their
// queries.
type account struct {
	gateways int
	bytes    int
}

// HasQueries reports whether a gateway has queries that the state knows.
func (s *State) HasQueries(gateway uint64) bool {
	g := s.gateways[gateway]
	return g != nil && len(g.queries) > 0
}

// addQuery adds a query of the gateway's to the state. A whole replaces its parts, and a part its
// whole.
func (g *gateway) addQuery(q *query) {
	g.removeQuery(q.sequence)
	if q.isPart() {
		if whole := q.matchID().Whole().Sequence; g.queries[whole] != nil {
			g.removeQuery(whole)
		}
	} else {
		g.eachPart(q.sequence, func(part *query) { g.removeQuery(part.sequence) })
	}
	g.queries[q.sequence] = q
	g.account.bytes += q.weight
	if q.isPart() {
		g.parts++
	}
}

// removeQuery removes a query of the gateway's from the state and returns it, nil if it was not
// there.
func (g *gateway) removeQuery(sequence uint64) *query {
	q := g.queries[sequence]
	if q != nil {
		g.account.bytes -= q.weight
		if q.isPart() {
			g.parts--
		}
		delete(g.queries, sequence)
	}
	return q
}

// recycleQuery keeps the memory of a forgotten query, which may be nil, for a later one.
func (s *State) recycleQuery(q *query) {
	if q != nil && !q.parked { // unpark looks at parked ones once more
		*q = query{}
		s.spares = append(s.spares, q)
	}
}

// newQuery returns memory for a query.
func (s *State) newQuery() *query {
	last := len(s.spares) - 1
	if last < 0 {
		return &query{}
	}
	q := s.spares[last]
	s.spares = s.spares[:last]
	return q
}

func (q *query) matchID() match.QueryID {
	return match.QueryID{Gateway: q.gateway.id, Sequence: q.sequence}
}

// isPart reports whether q is a part of a query that was split.
func (q *query) isPart() bool { return q.splits && q.matchID().IsPart() }

// eachPart calls do with each part that the state knows of the query with the given sequence
// number. If that is a part itself, there is none.
func (g *gateway) eachPart(sequence uint64, do func(part *query)) {
	whole := match.QueryID{Sequence: sequence}
	for p := 1; p <= match.MostParts && g.parts > 0 && !whole.IsPart(); p++ {
		if part := g.queries[whole.Part(p).Sequence]; part != nil && part.splits {
			do(part)
		}
	}
}

// hasParts reports whether the state knows parts of a query.
func (g *gateway) hasParts(sequence uint64) (any bool) {
	g.eachPart(sequence, func(*query) { any = true })
	return any
}

// countSiblings is how many other parts of the same query the state knows.
func (q *query) countSiblings() (n int) {
	if q.isPart() {
		q.gateway.eachPart(q.matchID().Whole().Sequence, func(part *query) {
			if part != q {
				n++
			}
		})
	}
	return n
}

// connect adds a gateway. If it was connected before, its queries are forgotten: it submits all
// again over its new stream.
func (s *State) connect(e *Event) {
	if former := s.gateways[e.Gateway]; former != nil {
		s.disconnectGateway(former)
	}
	s.connected++
	g := &gateway{
		id: e.Gateway, number: s.connected, client: e.Client, queries: map[uint64]*query{},
	}
	g.account = s.accounts[g.client]
	if g.client == "" || g.account == nil {
		g.account = &account{}
	}
	if g.client != "" {
		s.accounts[g.client] = g.account
	}
	g.account.gateways++
	s.gateways[g.id] = g
	s.addAction(Welcome).Gateway = g.id
}

// disconnectGateway forgets a gateway and its queries.
func (s *State) disconnectGateway(g *gateway) {
	delete(s.gateways, g.id)
	for sequence := range g.queries {
		g.removeQuery(sequence)
	}
	if g.account.gateways--; g.account.gateways == 0 && s.accounts[g.client] == g.account {
		delete(s.accounts, g.client)
	}
	s.step(match.Event{Kind: match.GatewayLost, Query: match.QueryID{Gateway: g.id}})
}

func (s *State) handleCancellation(e *Event) {
	g := s.gateways[e.Gateway]
	if g == nil {
		return
	}
	s.forgetQuery(g, e.Sequence)
	s.step(match.Event{Kind: match.Cancelled, Query: e.queryID()})
}

// forgetQuery forgets a query of the gateway's and its parts.
func (s *State) forgetQuery(g *gateway, sequence uint64) {
	s.recycleQuery(g.removeQuery(sequence))
	g.eachPart(sequence, func(part *query) { s.recycleQuery(g.removeQuery(part.sequence)) })
}

func (s *State) handleReturnedAttempt(e *Event) {
	if ln := s.findLane(e.Agent, e.Lane); ln != nil {
		s.stepMatcher(ln, match.Event{
			Kind: match.Unused, Query: e.queryID(), Attempt: e.Attempt, Lane: ln.id,
		})
	}
}

func (s *State) handleSubmit(g *gateway, e *Event) {
	if e.Denied != "" || e.RetryAfter > 0 {
		s.denyQuery(g, e)
		return
	}
	q := s.newQuery()
	*q = query{
		gateway: g, sequence: e.Sequence, asked: e.Model, batch: e.BatchSize, attempts: e.Attempt,
		users: e.Users, values: e.Values,
		agent: e.Agent, lane: e.Lane, waited: e.Waited, timeLeft: e.TimeLeft, tag: e.Tag,
		tagSize: e.TagSize, splits: e.Splits, accuracy: e.LeastAccuracy,
		loadShare: e.LoadShare, band: e.Band, tenant: e.Tenant, tenantWeight: e.Weight,
	}
	s.submit(q)
}

// denyQuery refuses a query that its client may not make, even if an earlier submit of it was
// admitted. Each submit counts for the client's limits, a repeated one too; else a client could
// escape its limits by calling every submit a repetition.
func (s *State) denyQuery(g *gateway, e *Event) {
	s.forgetQuery(g, e.Sequence)
	s.step(match.Event{Kind: match.Cancelled, Query: e.queryID()})
	a := s.addAction(Reject)
	a.Message, a.Tag = e.Denied, e.Tag
	a.Decision = match.Decision{Action: match.Reject, Reason: match.UnknownModel,
		Query: e.queryID()}
	if e.RetryAfter > 0 {
		a.Decision.Reason, a.Decision.Wait = match.Limit, e.RetryAfter
	}
}

// submit passes a query, whose times are as of now, to the matcher.
func (s *State) submit(q *query) {
	g, id := q.gateway, s.resolveModel(q.asked, q.matchID())
	variants := s.families[q.asked.Name]
	q.byFamily = q.asked.Version == 0 && len(variants) > 0
	if q.attempts == 0 && g.hasParts(q.sequence) {
		return // the gateway submitted the whole before it read the split
	}
	q.model, q.heardAt = s.models[id], s.now
	q.weight = SubmitOverhead + len(id.Name) + len(q.agent) + len(q.tenant) + q.tagSize
	if g.queries[q.sequence] == nil &&
		(len(g.queries) >= maxSubmitted || g.account.bytes+q.weight > MostSubmittedBytes) {
		d := match.Decision{
			Action: match.Reject, Reason: match.Overloaded, Query: q.matchID(),
			Wait: fullRetryAfter,
		}
		s.rejectQuery(q, &d)
		return
	}
	if !s.admitLoad(q) {
		return
	}
	if q.attempts == 0 {
		q.agent = ""
		asked := q.model
		if q.byFamily {
			asked = variants[0]
		}
		if asked != nil && !q.isPart() { // the whole of a part has arrived
			s.hasArrived(asked, asked.sizeOf(q.batch, q.users, q.values))
			if q.waited < earlier {
				s.familyCount(asked).Arrived++
			}
		}
	}
	if q.agent != "" {
		greets := s.members[q.agent] == nil && s.view[q.agent] != nil && !s.gone[q.agent]
		if greets && s.now < settleTime && s.parkings < maxSubmitted {
			g.addQuery(q)
			s.parkings++
			s.parkedLast++
			q.parked, q.parkedAs = true, s.parkedLast
			s.parked[q.agent] = append(s.parked[q.agent], q)
			return
		}
	}
	g.addQuery(q)
	e := s.submitEvent(q, id)
	if ln := s.findLane(q.agent, q.lane); ln != nil {
		if holds, _ := s.matcher.Load(ln.id); holds < maxHeld {
			e.Lane = ln.id
		}
	}
	s.step(e)
}

// submitEvent is the matcher's event for a query's submit. The ways of the submit and, later, of
// the answer count as waiting, because no decision avoids them.
func (s *State) submitEvent(q *query, id ModelID) match.Event {
	e := match.Event{
		Kind: match.Submitted, Query: q.matchID(), Attempt: q.attempts,
		BatchSize: min(q.batch, match.MaxBatchSize+1),
		Waited:    q.waited + s.SubmitWay(), TimeLeft: q.timeLeft,
		Splits: q.splits, LeastAccuracy: q.accuracy,
		Band: q.band, Tenant: q.tenant, Weight: q.tenantWeight,
	}
	if q.timeLeft < 0 {
		e.TimeLeft = 1
	}
	s.setWork(&e, q)
	switch {
	case q.byFamily:
		e.Model = names.ModelKey(q.asked.Name)
	case q.model != nil:
		e.Model = q.model.key
	default:
		e.Model = id.Key()
	}
	return e
}

// setWork sets the size of a query for the matcher, if its users and values count. The user's work is
// that of each part of the query, and so are the values of a query with users: the leader does not
// know whose they are. Values of a query without users belong to its rows.
func (s *State) setWork(e *match.Event, q *query) {
	m := q.model
	if all := s.families[q.asked.Name]; q.byFamily && len(all) > 0 {
		m = all[0]
	}
	if m == nil {
		return
	}
	size := m.sizeOf(q.batch, q.users, q.values)
	if size == q.batch {
		return
	}
	if e.Rows, e.BatchSize = q.batch, size; q.users > 0 {
		e.Once = size - q.batch
	}
}

// sizeOf is the size of a query or run in the model's profiles: its work. It is the rows of a model
// without a law, and of a query whose rows are out of bounds.
func (m *heldModel) sizeOf(rows, users, values int) int {
	if m.law == (work.Law{}) || rows < 1 || rows > m.largest {
		return rows
	}
	return min(m.law.Size(rows, users, values), m.largest)
}

// rejectQuery tells a query's gateway that the query is not served. q is nil if the state does not
// know the query.
func (s *State) rejectQuery(q *query, d *match.Decision) {
	message := "the leader refuses the query: " + strings.ReplaceAll(d.Reason.String(), "-", " ")
	switch {
	case d.Reason == match.UnknownModel:
		message = "no member of the fleet holds the model"
	case d.Reason == match.LeastAccuracy && q != nil:
		message = s.tooAccurate(q)
	case d.Reason == match.Late && q != nil && q.model != nil:
		message = fmt.Sprintf(
			"the QoS target of %v can no longer be met, and the model rejects such queries",
			q.model.target)
	case d.Reason == match.Overloaded:
		all, _ := s.matcher.Waiting()
		message = fmt.Sprintf("overloaded: %d queries wait", all)
	case d.Reason == match.TooManyAttempts:
		message = fmt.Sprintf("%d attempts have failed", match.MaxAttempts)
	}
	a := s.addAction(Reject)
	a.Decision, a.Message = *d, message
	if q != nil {
		a.Tag = q.tag
		if q.model != nil {
			a.Model = q.model.ModelID
		}
	}
}

// tooAccurate says that no variant of what q asks for has the accuracy that q demands.
func (s *State) tooAccurate(q *query) string {
	best := q.model
	if all := s.families[q.asked.Name]; q.byFamily && len(all) > 0 {
		best = all[0]
	}
	if best == nil {
		return fmt.Sprintf("no variant of %s is of accuracy %v", q.asked.Name, q.accuracy)
	}
	return fmt.Sprintf("no variant of %s is of accuracy %v; the best that the fleet has is %s of %v",
		q.asked.Name, q.accuracy, best.Name, best.accuracyOrBest())
}

// submitParkedFor submits the queries that are parked for agents for which ready is true.
func (s *State) submitParkedFor(ready func(names.AgentName) bool) {
	var all []*query
	for agent, queries := range s.parked {
		if ready(agent) {
			all = append(all, queries...)
			delete(s.parked, agent)
		}
	}
	slices.SortFunc(all, func(a, b *query) int { return cmp.Compare(a.parkedAs, b.parkedAs) })
	s.submitParked(all)
}

// unparkOf submits the queries that are parked for an agent.
func (s *State) unparkOf(agent names.AgentName) {
	all := s.parked[agent]
	delete(s.parked, agent)
	s.submitParked(all)
}

// submitParked submits queries that are not parked any more, but for those that were cancelled or
// submitted again meanwhile.
func (s *State) submitParked(all []*query) {
	s.parkings -= len(all)
	all = slices.DeleteFunc(all, func(q *query) bool {
		return s.gateways[q.gateway.id] != q.gateway || q.gateway.queries[q.sequence] != q
	})
	for _, q := range all {
		q.ageTo(s.now)
		s.submit(q)
	}
}

// ageTo brings the query's waiting time and time left up to now.
func (q *query) ageTo(now time.Duration) {
	by := now - q.heardAt
	q.heardAt = now
	q.waited += by
	if q.timeLeft > 0 {
		q.timeLeft = max(1, q.timeLeft-by)
	}
}

// split replaces a query by its parts, which have its tag.
func (s *State) split(g *gateway, q *query, d *match.Decision) {
	a := s.addAction(Split)
	a.Decision = *d
	a.Model.Name, a.Model.Version = d.Model.Split()
	if q == nil {
		return
	}
	a.Tag, a.Known = q.tag, s.isReleased(q)
	g.removeQuery(q.sequence)
	for i, rows := range d.Rows {
		part := s.newQuery()
		*part = *q
		part.sequence, part.batch = d.Query.Part(i+1).Sequence, rows
		if a.Known {
			part.whole = q.batch
		}
		if q.byFamily || a.Known {
			part.asked, part.model, part.byFamily = a.Model, s.models[a.Model], false
		}
		g.addQuery(part)
	}
	s.recycleQuery(q)
}
