package match

// A laneGroup is the usable lanes of a shard that have one type and hold the same models until the
// same time. The times when they are free lie side by side: a look at a shard that read its lanes
// for them would miss the CPU's caches for each lane.
//
// Invariant: freeAt[i] is lanes[i].freeAt, and lanes[i] has the group as its group and i as its
// place there.
type laneGroup struct {
	spec   laneSpec // of its lanes, without the price
	set    *modelSet
	lanes  []*lane
	freeAt []float64
}

// laneGroups returns the groups of s's usable lanes, in the order of s.lanes.
func (s *shard) laneGroups() []*laneGroup {
	if s.grouped == s.m.generation {
		return s.groups
	}
	s.grouped = s.m.generation
	n := 0
	for _, l := range s.lanes { // sorted by type and models held
		if !l.isUsable() {
			continue
		}
		if n == 0 || s.groups[n-1].spec.typ != l.typ || s.groups[n-1].set != l.set {
			if n == len(s.groups) {
				s.groups = append(s.groups, &laneGroup{})
			}
			g := s.groups[n]
			g.spec, g.set = laneSpec{typ: l.typ, holds: l.holds}, l.set
			g.lanes, g.freeAt = g.lanes[:0], g.freeAt[:0]
			n++
		}
		g := s.groups[n-1]
		l.group, l.place = g, len(g.lanes)
		g.lanes, g.freeAt = append(g.lanes, l), append(g.freeAt, l.freeAt)
	}
	s.groups = s.groups[:n]
	return s.groups
}

// leaveGroup takes l out of its group, which the caller's change makes one of before.
func (l *lane) leaveGroup() { l.group = nil }

// mayOpen reports whether the lane at a place of g may be open, as far as its time says.
func (g *laneGroup) mayOpen(m *Matcher, place int) bool {
	return g.freeAt[place] <= m.now+m.ahead
}

// hasOpen reports whether a lane of g is open.
func (g *laneGroup) hasOpen(m *Matcher) bool {
	for i := range g.freeAt {
		if g.mayOpen(m, i) && g.lanes[i].open() {
			return true
		}
	}
	return false
}

// startMs returns lane.start of the lane at a place.
func (g *laneGroup) startMs(m *Matcher, place int) float64 {
	return max(m.ahead, g.freeAt[place]-m.now)
}

// suitsQuery reports whether lanes of a kind may be given q, and can meet q's QoS target if any type
// in the pool can.
func (l *laneSpec) suitsQuery(q *query) bool {
	_, t := l.fastestVariant(q)
	return t != nil && (t.mean[q.batch] <= q.family.target || q.least > q.family.target)
}
