package leader

import (
	"slices"
	"time"

	"github.com/muster-serve/muster/leader/match"
)

// describe takes what a member says it is and holds, and has its lanes join if they have not.
func (s *State) describe(described *Member, free []time.Duration) {
	m := s.members[described.Name]
	if m == nil {
		m = &member{}
	}
	drained := m.Member != nil && m.Draining
	m.Member, m.lostAt = described, 0
	delete(s.gone, m.Name)
	holds := make([]*model, 0, len(described.Models))
	for _, held := range described.Models {
		holds = append(holds, s.learnModel(held))
	}
	slices.SortFunc(holds, byKey)
	typ := s.typeOf(described)
	changed := typ != m.typ || !slices.Equal(holds, m.holds)
	m.typ, m.holds = typ, holds
	if len(m.lanes) != described.Lanes {
		if len(m.lanes) > 0 {
			s.lose(m, "it has other lanes now")
		}
		a := s.act(LanesJoined)
		a.Agent, a.N = m.Name, described.Lanes
		s.members[m.Name] = m
		for i := range described.Lanes {
			s.lastLane++
			ln := &lane{id: s.lastLane, member: m, index: i}
			m.lanes = append(m.lanes, ln)
			s.lanes[ln.id] = ln
			s.step(&match.Event{Kind: match.LaneJoined, Lane: ln.id, Agent: m.Name, Type: typ, Models: keys(holds), Remaining: at(free, i)})
		}
		drained, changed = false, true
	} else if changed {
		s.retype(m)
	}
	if m.Draining && !drained {
		for _, ln := range m.lanes {
			s.step(&match.Event{Kind: match.LaneDraining, Lane: ln.id})
		}
		changed = true
	}
	if changed {
		s.poolChanged()
	}
}

// typeOf is what a member's lanes are to the matcher.
func (s *State) typeOf(m *Member) string {
	if own := s.slow[m.Name]; own == m.OwnType {
		return own
	}
	return m.Type
}

// retype tells the matcher what a member's lanes are and hold.
func (s *State) retype(m *member) {
	for _, ln := range m.lanes {
		s.step(&match.Event{Kind: match.LaneModels, Lane: ln.id, Type: m.typ, Models: keys(m.holds)})
	}
}

// at is when lane i is free.
func at(free []time.Duration, i int) time.Duration {
	if i < len(free) {
		return free[i]
	}
	return 0
}

// greeted brings what the leader believes a member's lanes hold in line with
// what they say that they hold: what they do not, they have never had, or their answer was lost,
// unless it may still be on its way to them.
func (s *State) greeted(e *Event) {
	m := s.members[e.Agent]
	if m == nil {
		return
	}
	type id struct {
		query  match.QueryID
		number int
	}
	there := map[id]bool{}
	for i := range e.Holds {
		h := &e.Holds[i]
		if h.Lane >= len(m.lanes) {
			continue
		}
		ln := m.lanes[h.Lane]
		a := attempt{query: match.QueryID{Gateway: h.Gateway, Sequence: h.Sequence}, number: h.Attempt, told: true}
		there[id{a.query, a.number}] = true
		known := s.models[h.Model]
		if known == nil {
			continue
		}
		if i := ln.find(a.query, a.number); i >= 0 {
			ln.held[i].told = true
		} else {
			a.grace = s.grace(ln, known, h.BatchSize)
			if len(ln.held) == 0 {
				ln.due = s.now + at(e.Free, h.Lane) + a.grace
			}
			ln.held = append(ln.held, a)
		}
		s.step(&match.Event{Kind: match.Held, Query: a.query, Attempt: a.number, Lane: ln.id, Model: known.key, BatchSize: h.BatchSize})
	}
	for i, ln := range m.lanes {
		for _, a := range slices.Clone(ln.held) {
			onItsWay := !a.told && s.now-a.since <= onTheWay+2*s.aheadSet
			if !there[id{a.query, a.number}] && !onItsWay {
				s.answer(ln, match.Refused, a.query, a.number, at(e.Free, i))
			}
		}
		s.step(&match.Event{Kind: match.LaneRemaining, Lane: ln.id, Remaining: at(e.Free, i)})
	}
	s.unpark(func(q *query) bool { return q.agent == e.Agent })
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
		s.step(&match.Event{Kind: match.LaneRemaining, Lane: ln.id, Remaining: e.Free[i]})
		if len(ln.held) > 0 && !ln.overdue {
			ln.due = s.now + e.Free[i] + ln.held[0].grace
		}
	}
}

func (ln *lane) find(q match.QueryID, number int) int {
	return slices.IndexFunc(ln.held, func(a attempt) bool { return a.query == q && a.number == number })
}

// lane is a member's lane, nil if there is no such one.
func (s *State) lane(agent string, index int) *lane {
	if m := s.members[agent]; m != nil && index >= 0 && index < len(m.lanes) {
		return m.lanes[index]
	}
	return nil
}

// answer tells the matcher that a lane has answered, and returns the attempt if the
// leader knew of it.
func (s *State) answer(ln *lane, kind match.Kind, q match.QueryID, number int, remaining time.Duration) (a attempt, ok bool) {
	if i := ln.find(q, number); i >= 0 {
		a, ok = ln.held[i], true
		ln.held = slices.Delete(ln.held, i, i+1)
	}
	if ln.overdue {
		ln.overdue = false
		if ln.silent {
			ln.silent = false
			note := s.act(LaneAnswers)
			note.Agent, note.Lane = ln.member.Name, ln.index
		}
	}
	if len(ln.held) > 0 {
		var execution, grace time.Duration
		for _, h := range ln.held {
			execution += h.execution
			grace = max(grace, h.grace)
		}
		ln.due = s.now + max(remaining, execution) + grace
	}
	s.step(&match.Event{Kind: kind, Query: q, Attempt: number, Lane: ln.id, Remaining: remaining})
	return a, ok
}

// completed takes the end of an attempt at a lane.
func (s *State) completed(e *Event) {
	ln := s.lane(e.Agent, e.Lane)
	if ln == nil {
		return
	}
	id := match.QueryID{Gateway: e.Gateway, Sequence: e.Sequence}
	if e.Refused {
		s.answer(ln, match.Refused, id, e.Attempt, e.Remaining)
		return
	}
	g := s.gateways[e.Gateway]
	known := g != nil && g.queries[e.Sequence] != nil
	kind := match.Completed
	if known && ln.find(id, e.Attempt) < 0 { // an attempt that was given up: the gateway says if it has the answer
		kind = match.Refused
	}
	a, ours := s.answer(ln, kind, id, e.Attempt, e.Remaining)
	if ours && !a.claimed && a.since > Turmoil {
		s.ahead.observe(s.now-a.since-e.Queue-e.Execution, e.Receive, a.execution-e.Execution, e.Bytes)
	}
	ln.member.busy.add(s.now, float64(e.Execution))
	m := s.models[e.Model]
	if m == nil {
		return
	}
	t := tally{answered: 1}
	if e.Latency > m.target {
		t.late = 1
	}
	m.count(s.now, t)
	if ours && known {
		g.forget(e.Sequence)
	}
	if !known && !ours { // it never came by here
		s.hasArrived(m, e.BatchSize)
	}
	seen := s.act(Observed)
	seen.Member, seen.Model, seen.BatchSize, seen.Duration = ln.member.Member, m.ModelID, e.BatchSize, e.Execution
}

// hasArrived counts a query.
func (s *State) hasArrived(m *model, batch int) {
	s.arrived.add(s.now, 1)
	if m != nil {
		a := s.act(Arrived)
		a.Model, a.BatchSize = m.ModelID, batch
	}
}

// linkBroken takes it that a member's link has broken, and perhaps its process is gone.
func (s *State) linkBroken(e *Event) {
	if e.Gone {
		s.gone[e.Agent] = true
		s.unpark(func(q *query) bool { return q.agent == e.Agent })
	}
	m := s.members[e.Agent]
	switch {
	case m == nil:
	case e.Gone:
		s.lose(m, "its process is gone")
	case m.lostAt == 0:
		m.lostAt, m.broken = s.now+linkGrace, e.Why
	}
}

// lose gives up a member's lanes: what they hold is offered again.
func (s *State) lose(m *member, why string) {
	delete(s.members, m.Name)
	if len(m.lanes) == 0 {
		return
	}
	a := s.act(LanesLost)
	a.Agent, a.N, a.Message, a.Known = m.Name, len(m.lanes), why, m.Draining || s.view[m.Name] == nil
	for _, ln := range m.lanes {
		delete(s.lanes, ln.id)
		s.step(&match.Event{Kind: match.LaneLost, Lane: ln.id})
	}
	m.lanes = nil
	s.poolChanged()
}
