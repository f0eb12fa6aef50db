package leader

import (
	"cmp"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
)

// describeMember takes a member's description. Those of its lanes that have not joined yet join.
func (s *State) describeMember(described *Member, free []time.Duration) {
	m := s.members[described.Name]
	if m == nil {
		m = &member{}
	}
	drained := m.Member != nil && m.Draining
	m.Member = described
	s.changedMembers = append(s.changedMembers, m)
	s.mendLink(m)
	delete(s.gone, m.Name)
	holds := make([]*heldModel, 0, len(described.Models))
	for _, held := range described.Models {
		holds = append(holds, s.learnModel(held))
	}
	slices.SortFunc(holds, byKey)
	typ := s.typeOf(described)
	changed := typ != m.typ || !slices.Equal(holds, m.holds)
	m.typ, m.holds = typ, holds
	s.changedMembers = append(s.changedMembers, m)
	if described.Parts == nil && len(m.lanes) != described.Lanes {
		if len(m.lanes) > 0 {
			s.loseMember(m, "it has other lanes now")
		}
		drained = false
	}
	if slices.ContainsFunc(described.Groups(), func(p PartitionLanes) bool { return p.Lanes > 0 }) {
		s.members[m.Name] = m
	}
	changed = s.arrangeLanes(m, free) || changed
	for _, ln := range m.lanes {
		if ln.ends != m.Ends {
			ln.ends = m.Ends
			s.step(match.Event{Kind: match.LaneEnds, Lane: ln.id, Remaining: ln.ends})
		}
	}
	if m.Draining && !drained {
		for _, ln := range m.lanes {
			s.drainLane(ln)
		}
		changed = true
	}
	if changed {
		s.poolChanged()
	}
}

// arrangeLanes makes the member's lanes those that it describes, and reports whether any differs
// from before.
func (s *State) arrangeLanes(m *member, free []time.Duration) (changed bool) {
	var all, joined []*lane
	for _, p := range m.Groups() {
		for i := range p.Lanes {
			ln := m.laneAt(p.First + i)
			if ln == nil {
				ln = &lane{member: m, agent: m.Name, index: p.First + i}
				joined = append(joined, ln)
			}
			all = append(all, ln)
		}
	}
	s.loseLanes(m, func(ln *lane) bool { return !slices.Contains(all, ln) },
		"its layout has changed",
		true)
	if changed = len(all) != len(m.lanes) || len(joined) > 0; len(joined) > 0 {
		a := s.addAction(LanesJoined)
		a.Agent, a.N = m.Name, len(joined)
	}
	for _, ln := range joined {
		s.lastLane++
		ln.id = s.lastLane
	}
	slices.SortFunc(all, func(a, b *lane) int { return cmp.Compare(a.index, b.index) })
	m.lanes = all
	for _, p := range m.Groups() {
		typ, holds := s.typeOfPart(m, &p), m.holdsOf(&p)
		for i := range p.Lanes {
			ln := m.laneAt(p.First + i)
			isNew := slices.Contains(joined, ln)
			if isNew || ln.typ != typ || !slices.Equal(ln.holds, holds) {
				ln.typ, ln.holds, changed = typ, holds, true
				e := match.Event{
					Kind: match.LaneModels, Lane: ln.id, Type: typ, Models: keys(holds),
				}
				if isNew {
					e.Kind, e.Agent = match.LaneJoined, m.Name
					e.Remaining = freeIn(free, slices.Index(m.lanes, ln))
					s.lanes[ln.id] = ln
				}
				s.step(e)
			}
			if p.Draining && !ln.draining {
				s.drainLane(ln)
				changed = true
			}
		}
	}
	return changed
}

// drainLane tells the matcher that a lane takes no more queries.
func (s *State) drainLane(ln *lane) {
	ln.draining = true
	s.step(match.Event{Kind: match.LaneDraining, Lane: ln.id})
}

// laneAt is the member's lane with an index, nil if there is none.
func (m *member) laneAt(index int) *lane {
	if index >= 0 && index < len(m.lanes) && m.lanes[index].index == index {
		return m.lanes[index]
	}
	i, ok := slices.BinarySearchFunc(m.lanes, index,
		func(ln *lane, index int) int { return cmp.Compare(ln.index, index) })
	if !ok {
		return nil
	}
	return m.lanes[i]
}

// holdsOf are the models that a part's lanes hold, by key.
func (m *member) holdsOf(p *PartitionLanes) []*heldModel {
	if m.Parts == nil {
		return m.holds
	}
	return slices.DeleteFunc(slices.Clone(m.holds),
		func(held *heldModel) bool { return !slices.Contains(p.Models, held.ModelID) })
}

// typeOf is the instance type of a member's lanes as the matcher knows it: the member's own, if its
// latencies depart from its type's.
func (s *State) typeOf(m *Member) names.LaneType {
	if own, ok := s.slow[m.Name]; ok && own == m.OwnType {
		return own
	}
	return m.Type
}

// typeOfPart is the same of a part of the member's lanes.
func (s *State) typeOfPart(m *member, p *PartitionLanes) names.LaneType {
	if m.typ == m.Type {
		return p.Type
	}
	return p.OwnType
}

// freeIn is the time from now until lane i is free.
func freeIn(free []time.Duration, i int) time.Duration {
	if i < len(free) {
		return free[i]
	}
	return 0
}

// handleGreeting tells the matcher which attempts a member's lanes hold.
func (s *State) handleGreeting(e *Event) {
	m := s.members[e.Agent]
	if m == nil {
		return
	}
	for i, ln := range m.lanes {
		has := match.Event{Kind: match.LaneHas, Lane: ln.id,
			Remaining: s.remainingNow(freeIn(e.Free,
				i))}
		for j := range e.Holds {
			if h := &e.Holds[j]; h.Lane == ln.index {
				has.Holds = append(has.Holds, match.Held{
					Query:   match.QueryID{Gateway: h.Gateway, Sequence: h.Sequence},
					Attempt: h.Attempt, Model: h.Model.Key(), BatchSize: h.BatchSize,
				})
			}
		}
		s.stepMatcher(ln, has)
	}
	s.unparkOf(e.Agent)
}

func (s *State) lanesFree(e *Event) {
	m := s.members[e.Agent]
	if m == nil {
		return
	}
	for i, ln := range m.lanes {
		if i >= len(e.Free) {
			return
		}
		s.step(match.Event{Kind: match.LaneRemaining, Lane: ln.id,
			Remaining: s.remainingNow(e.Free[i])})
	}
}

// remainingNow is the time from now until a lane is free, of which the member said when it sent its
// message. The message has been on its way for half as long as an assignment and its payload take.
func (s *State) remainingNow(free time.Duration) time.Duration {
	return max(0, free-min(s.ahead.fixed, s.aheadSet)/2)
}

// findLane is a member's lane, nil if the member has no such lane.
func (s *State) findLane(agent names.AgentName, index int) *lane {
	if m := s.members[agent]; m != nil {
		return m.laneAt(index)
	}
	return nil
}

// stepMatcher passes an event about a lane's attempts to the matcher. If the lane had been silent
// and is not overdue any more, a fact for the log says so.
func (s *State) stepMatcher(ln *lane, e match.Event) {
	_, asked := s.matcher.Load(ln.id)
	s.step(e)
	if asked <= 1 {
		return
	}
	if _, still := s.matcher.Load(ln.id); still == 0 {
		note := s.addAction(LaneAnswers)
		note.Agent, note.Lane = ln.member.Name, ln.index
	}
}

// handleCompletion takes the end of an attempt at a lane.
func (s *State) handleCompletion(e *Event) {
	ln := s.findLane(e.Agent, e.Lane)
	if ln == nil {
		return
	}
	id := e.queryID()
	answer := match.Event{
		Kind: match.Completed, Query: id, Attempt: e.Attempt, Lane: ln.id,
		Remaining: s.remainingNow(e.Remaining),
	}
	g := s.gateways[e.Gateway]
	var q *query
	if g != nil {
		q = g.queries[e.Sequence]
	}
	known := q != nil
	siblings := known && q.countSiblings() > 0
	trialSize := s.trialSize(q, e.BatchSize)
	attempt, ours := s.matcher.Has(ln.id, id, e.Attempt)
	m := s.models[e.Model]
	if m != nil && !known && !ours && e.Attempt <= 1 && !e.Shadow { // it never passed this leader
		s.hasArrived(m, m.sizeOf(e.BatchSize, e.Users, e.Values))
		s.familyCount(m).Arrived++
	}
	if e.Refused {
		answer.Kind = match.Refused
		s.stepMatcher(ln, answer)
		if m != nil && e.Execution > 0 {
			cut := s.addAction(ObservedCut)
			cut.Member, cut.Model = ln.member.Member, m.ModelID
			cut.BatchSize, cut.Duration = e.BatchSize, e.Execution
			cut.Users, cut.Values = e.Users, e.Values
		}
		return
	}
	s.stepMatcher(ln, answer)
	if known && attempt.Live {
		s.recycleQuery(g.removeQuery(e.Sequence))
	}
	if ours && !attempt.Claimed && !attempt.Told && attempt.Since.Sub(origin) > Turmoil {
		round := s.matcherTime().Sub(attempt.Since) - e.Queue - e.Execution
		early := attempt.Latency - e.Execution
		if e.Merged > 0 {
			early = s.earlyMerged(ln, m, e)
		}
		s.ahead.observeAnswer(round, e.Receive, early, e.Bytes)
	}
	ln.member.busy.add(s.now, float64(e.Execution))
	if m == nil {
		return
	}
	if e.NonFinite && !e.Shadow {
		m.nonFinite++
	}
	if !siblings && !e.Shadow && !e.NoAnswer { // a query is answered with its last part
		t := tally{answered: 1}
		if e.Latency > m.target {
			t.late = 1
		}
		s.countTally(m, t)
		if m.trial != nil && trialSize > 0 && s.isTried(m.Name) {
			m.trial.CountAnswered(trialSize, t.late > 0)
		}
	}
	if e.Merged > 0 && e.Execution == 0 || e.Divided {
		return // another query's completion tells of the run, or there was none of the whole lane
	}
	if e.Merged == 0 && !e.Shadow {
		s.countTrialRun(m, ln.typ, e)
	}
	seen := s.addAction(Observed)
	seen.Member, seen.Model = ln.member.Member, m.ModelID
	seen.BatchSize, seen.Duration = max(e.BatchSize, e.Merged), e.Execution
	if seen.Users, seen.Values = e.Users, e.Values; e.Merged > 0 {
		seen.Users, seen.Values = e.MergedUsers, e.MergedValues
		if e.Users+e.Values > 0 && e.MergedUsers+e.MergedValues == 0 {
			seen.Users = -1 // the lane does not tell
		}
	}
}

// earlyMerged is how much shorter than predicted a run of several queries was, of which e completes
// one; unknownEarly if another one's completion tells of the run.
func (s *State) earlyMerged(ln *lane, m *heldModel, e *Event) time.Duration {
	if m == nil || e.Execution == 0 {
		return unknownEarly
	}
	known := s.latencies[names.TableKey{Model: m.key, Type: ln.typ}]
	size := m.sizeOf(e.Merged, e.MergedUsers, e.MergedValues)
	if known == nil || size > known.Table.Largest() {
		return unknownEarly
	}
	return known.Table.Mean(size) - e.Execution
}

// hasArrived tells the learning loop of a query that has arrived.
func (s *State) hasArrived(m *heldModel, batch int) {
	a := s.addAction(Arrived)
	a.Model, a.BatchSize = m.ModelID, batch
}

// countFailures counts queries that failed at a gateway, or that the gateway was told were refused.
func (s *State) countFailures(e *Event) {
	m := s.models[e.Model]
	switch {
	case m != nil:
	case e.Model.Version == 0 && s.families[e.Model.Name] != nil:
		if m = s.unbound[e.Model.Name]; m == nil {
			m = &heldModel{ModelID: e.Model}
			s.unbound[e.Model.Name] = m
		}
	default:
		m = &s.nowhere
	}
	t := tally{lost: e.N}
	if e.Excused {
		t = tally{excused: e.N}
	}
	s.countTally(m, t)
	if m.trial != nil && t.lost > 0 && e.BatchSize >= 0 && s.isTried(m.Name) {
		m.trial.CountFailed(e.BatchSize, t.lost)
	}
	if m.refusals == nil {
		m.refusals = map[string]uint64{}
	}
	m.refusals[e.Why] += e.N
}

// linkBroken notes that a member's link has broken and, if the event says so, that its process has
// ended.
func (s *State) linkBroken(e *Event) {
	if e.Gone {
		s.gone[e.Agent] = true
		s.unparkOf(e.Agent)
	}
	m := s.members[e.Agent]
	switch {
	case m == nil:
	case e.Gone:
		s.loseMember(m, "its process is gone")
	case m.lostAt == 0:
		m.lostAt, m.broken = s.now+linkGrace, e.Why
		s.broken = append(s.broken, m)
	}
}

// Gone reports whether the process of an agent that is in the view has ended.
func (s *State) Gone(agent names.AgentName) bool { return s.gone[agent] }

// mendLink clears the fault of a member's link: there is a new link, or the member is given up.
func (s *State) mendLink(m *member) {
	if m.lostAt > 0 {
		m.lostAt = 0
		s.broken = slices.DeleteFunc(s.broken, func(o *member) bool { return o == m })
	}
}

// loseMember gives up a member's lanes. The matcher offers the queries that they hold again.
func (s *State) loseMember(m *member, why string) {
	delete(s.members, m.Name)
	s.changedMembers = append(s.changedMembers, m)
	s.mendLink(m)
	if len(m.lanes) == 0 {
		return
	}
	s.loseLanes(m, func(*lane) bool { return true }, why, m.Draining || s.view[m.Name] == nil)
	m.lanes = nil
	s.poolChanged()
}

// loseLanes gives up those of a member's lanes that are gone; known says that this is no surprise.
func (s *State) loseLanes(m *member, gone func(*lane) bool, why string, known bool) {
	var lost []*lane
	for _, ln := range m.lanes {
		if gone(ln) {
			lost = append(lost, ln)
		}
	}
	if len(lost) == 0 {
		return
	}
	a := s.addAction(LanesLost)
	a.Agent, a.N, a.Message, a.Known = m.Name, len(lost), why, known
	for _, ln := range lost {
		delete(s.lanes, ln.id)
		s.step(match.Event{Kind: match.LaneLost, Lane: ln.id})
	}
}
