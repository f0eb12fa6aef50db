package match

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/muster-serve/muster/api/names"
)

// A modelSet is a set of models that lanes hold, and the time when these lanes end. It exists while
// a lane has it.
type modelSet struct {
	key    string
	holds  []bool // by model
	models []int  // the models of the set, ascending
	ends   float64
	lanes  int // how many lanes have it
	at     int // its index among the matcher's sets
	// classes are its lanes by type.
	classes   map[*instanceType]*laneClass
	component *component // nil until lanes are dealt
	// seenIn and order are scratch of the order of a shard's lanes.
	seenIn *shard
	order  int
}

// A laneClass is the lanes of one type that have the same set.
type laneClass struct {
	typ    *instanceType
	set    *modelSet
	lanes  int
	in     shardCounts
	ofType *componentType // of its type in its component; nil until one of its lanes is dealt
	all    []*lane        // scratch of dealAnew
}

// A component is sets such that no query may be answered by lanes of two components. Where agents
// hold one variant each, a family has few lanes, and in several shards its queries would wait at
// slow ones while fast ones of another shard idle.
//
// Invariant: lanes of a component are only in its shards, and of any two of these neither has two
// lanes more of the component, of a type in the component, or of a class.
type component struct {
	shards []*shard
	lanes  int
	in     shardCounts
	types  map[*instanceType]*componentType
	// scratch of regroupSets and dealAnew
	root    int
	classes []*laneClass
}

// A componentType is the lanes of one type in a component.
type componentType struct {
	lanes int
	in    shardCounts
}

// A shardCounts is how many lanes of some kind are in each shard, by the shard's index. A shard
// beyond its end has none.
type shardCounts []int32

func (t shardCounts) lanesIn(s *shard) int {
	if s.index < len(t) {
		return int(t[s.index])
	}
	return 0
}

func (t *shardCounts) add(s *shard, n int) {
	for len(*t) <= s.index {
		*t = append(*t, 0)
	}
	(*t)[s.index] += int32(n)
}

// A departure is a lane that has left a shard, or that may get no queries there any more, with its
// former type and set.
type departure struct {
	shard *shard
	lane  *lane
	typ   *instanceType
	set   *modelSet
}

// A layout has the lanes, what they hold, and the shards to which they are dealt.
type layout struct {
	sets       []*modelSet
	byKey      map[string]*modelSet
	components []*component
	// familyOf numbers, by model, the families; a model in no family is one alone. families is how
	// many there are.
	familyOf []int
	families int

	// What has changed since the last arrange:
	regroups bool         // sets, or the families of models
	unplaced []*lane      // lanes without a shard
	uneven   []*laneClass // classes that have lost a lane
	departed []departure
	closed   []*shard // shards that are not needed any more
	dealt    bool     // lanes were dealt anew
	split    bool     // there are more shards

	// visited counts the looks at lanes, sets, shards and queries because of changes, and for a
	// place for a query.
	visited int
	// scratch
	key           []byte
	roots, firsts []int
	order         []*laneClass
}

// setOf returns the set of the given models, in order, that ends at the given time.
func (m *Matcher) setOf(models []int, ends float64) *modelSet {
	m.key = m.key[:0]
	for _, i := range models {
		m.key = binary.AppendUvarint(m.key, uint64(i))
	}
	m.key = binary.BigEndian.AppendUint64(m.key, math.Float64bits(ends))
	if known := m.byKey[string(m.key)]; known != nil {
		return known
	}
	s := &modelSet{
		key: string(m.key), holds: make([]bool, len(m.models)), models: slices.Clone(models),
		ends: ends, at: len(m.sets), classes: map[*instanceType]*laneClass{},
	}
	for _, i := range models {
		s.holds[i] = true
	}
	m.sets, m.byKey[s.key] = append(m.sets, s), s
	m.regroups = true
	return s
}

// enrollLane enters l as a lane of a type that holds a set. arrange then deals it to a shard.
func (m *Matcher) enrollLane(l *lane, typ *instanceType, s *modelSet) {
	l.typ, l.set, l.holds, l.ends = typ, s, s.holds, s.ends
	l.setPrice(m.classModels(typ))
	s.lanes++
	typ.all++
	if l.class = s.classes[typ]; l.class == nil {
		l.class = &laneClass{typ: typ, set: s}
		s.classes[typ] = l.class
	}
	l.class.lanes++
	m.unplaced = append(m.unplaced, l)
	m.countUsable(l, l.isUsable())
}

// withdrawLane undoes enrollLane. l.shard stays, though the shard does not list l any more.
func (m *Matcher) withdrawLane(l *lane) {
	m.countUsable(l, false)
	if l.placed {
		m.displaceLane(l)
		m.uneven = append(m.uneven, l.class)
	} else {
		m.unplaced = slices.DeleteFunc(m.unplaced, func(o *lane) bool { return o == l })
	}
	if l.class.lanes--; l.class.lanes == 0 {
		delete(l.set.classes, l.typ)
	}
	l.typ.all--
	if s := l.set; s.lanes > 1 {
		s.lanes--
	} else {
		s.lanes = 0
		last := m.sets[len(m.sets)-1]
		m.sets[s.at], last.at = last, s.at
		m.sets = m.sets[:len(m.sets)-1]
		delete(m.byKey, s.key)
		m.regroups = true
	}
}

// reclassLane changes what l is, holds or how long it lasts.
func (m *Matcher) reclassLane(l *lane, typ *instanceType, s *modelSet) {
	if l.typ != typ || l.set != s {
		s.lanes++ // withdrawLane must not remove the set
		m.withdrawLane(l)
		m.enrollLane(l, typ, s)
		s.lanes--
	}
}

// countUsable counts l among the usable lanes, or not any more.
func (m *Matcher) countUsable(l *lane, usable bool) {
	if usable == l.counted {
		return
	}
	l.counted = usable
	l.leaveGroup()
	n := -1
	if usable {
		n = 1
	}
	if l.placed {
		l.shard.usable += n
		l.shard.countHolders(l.set, int32(n))
		l.shard.markDirty()
		if !usable {
			m.departed = append(m.departed, departure{l.shard, l, l.typ, l.set})
		}
	}
	for _, i := range l.set.models {
		was := l.typ.lanes[i]
		l.typ.lanes[i] += n
		if was == 0 || was+n == 0 {
			m.markModelChanged(i)
		}
	}
}

// placeLane adds a lane to a shard.
func (m *Matcher) placeLane(l *lane, s *shard) {
	c := l.class
	p := c.set.component
	if c.ofType == nil || c.ofType.lanes == 0 {
		if c.ofType = p.types[c.typ]; c.ofType == nil {
			c.ofType = &componentType{}
			p.types[c.typ] = c.ofType
		}
	}
	l.leaveGroup()
	l.shard, l.placed = s, true
	s.lanes = append(s.lanes, l)
	if l.counted {
		s.usable++
		s.countHolders(c.set, 1)
	}
	c.in.add(s, 1)
	c.ofType.lanes++
	c.ofType.in.add(s, 1)
	p.lanes++
	p.in.add(s, 1)
	s.unsorted = true
	s.markDirty()
}

// displaceLane takes a lane out of its shard.
func (m *Matcher) displaceLane(l *lane) {
	l.leaveGroup()
	c, s := l.class, l.shard
	p := c.set.component
	i := slices.Index(s.lanes, l)
	s.lanes = slices.Delete(s.lanes, i, i+1)
	if l.counted {
		s.usable--
		s.countHolders(c.set, -1)
	}
	c.in.add(s, -1)
	c.ofType.in.add(s, -1)
	if c.ofType.lanes--; c.ofType.lanes == 0 {
		delete(p.types, c.typ)
	}
	p.lanes--
	p.in.add(s, -1)
	s.unsorted = true
	s.markDirty()
	if l.placed = false; l.counted {
		m.departed = append(m.departed, departure{s, l, l.typ, l.set})
	}
}

// assignLanesToShards deals the lanes that have joined or changed to shards, and moves as few
// others as the invariant of components asks for. All lanes are dealt anew only if there are to be
// more or fewer shards, if components join or come apart, or if one is to have more or fewer
// shards.
func (m *Matcher) assignLanesToShards() {
	same := true
	if m.regroups {
		same, m.regroups = m.regroupSets(), false
	}
	if !same || m.shardsWanted() != len(m.shards) {
		m.dealAnew()
	} else {
		for _, l := range m.unplaced {
			m.placeLane(l, m.leastLoadedShard(l))
			m.balanceClass(l.class)
		}
		for _, c := range m.uneven {
			m.balanceClass(c)
		}
		if len(m.shards) > 1 && slices.ContainsFunc(m.components, m.needsReshard) {
			m.dealAnew()
		} else {
			m.packComponents()
		}
	}
	m.unplaced, m.uneven = m.unplaced[:0], m.uneven[:0]
}

// leastLoadedShard is the shard of its component to which l is dealt.
func (m *Matcher) leastLoadedShard(l *lane) (best *shard) {
	c, p := l.class, l.class.set.component
	m.visited += len(p.shards)
	var ofType shardCounts
	if t := p.types[c.typ]; t != nil {
		ofType = t.in
	}
	less := func(a, b *shard) int {
		return cmp.Or(c.in.lanesIn(a)-c.in.lanesIn(b), ofType.lanesIn(a)-ofType.lanesIn(b),
			p.in.lanesIn(a)-p.in.lanesIn(b),
			len(a.lanes)-len(b.lanes))
	}
	for _, s := range p.shards {
		if best == nil {
			best = s
		} else if d := less(s, best); d < 0 || d == 0 && s == l.shard {
			best = s
		}
	}
	return best
}

// extremeShards returns the first of p's shards that has fewest and the first that has most.
func (m *Matcher) extremeShards(p *component, of shardCounts) (fewest, most *shard) {
	m.visited += len(p.shards)
	fewest, most = p.shards[0], p.shards[0]
	for _, s := range p.shards[1:] {
		if of.lanesIn(s) < of.lanesIn(fewest) {
			fewest = s
		}
		if of.lanesIn(s) > of.lanesIn(most) {
			most = s
		}
	}
	return fewest, most
}

// balanceClass restores the invariant of components after lanes of a class have come or gone. Each
// move keeps even what was made even before: it takes a lane of a class, and for the last also of a
// type, of which the one shard has more than the other. There is such a lane, since the sum over
// classes, or types, is more.
func (m *Matcher) balanceClass(c *laneClass) {
	p := c.set.component
	if p == nil || p.lanes == 0 || c.ofType == nil || len(p.shards) == 1 {
		return
	}
	even := func(of *shardCounts, may func(o *laneClass, from, to *shard) bool) {
		for {
			to, from := m.extremeShards(p, *of)
			if of.lanesIn(from)-of.lanesIn(to) < 2 {
				return
			}
			for i := len(from.lanes) - 1; ; i-- {
				m.visited++
				if o := from.lanes[i].class; o.set.component == p &&
					o.in.lanesIn(from) > o.in.lanesIn(to) &&
					may(o, from, to) {
					l := from.lanes[i]
					m.displaceLane(l)
					m.placeLane(l, to)
					break
				}
			}
		}
	}
	even(&c.in, func(o *laneClass, _, _ *shard) bool { return o == c })
	even(&c.ofType.in, func(o *laneClass, _, _ *shard) bool { return o.ofType == c.ofType })
	even(&p.in, func(o *laneClass, from, to *shard) bool {
		return o.ofType.in.lanesIn(from) > o.ofType.in.lanesIn(to)
	})
}

// shardsWanted is how many shards there are to be. It changes only if shards would be a third
// larger or smaller than they should be.
func (m *Matcher) shardsWanted() int {
	return m.targetShards(len(m.all), len(m.shards))
}

// targetShards is how many shards so many lanes are to have that now have the given number of
// shards.
func (m *Matcher) targetShards(lanes, shards int) int {
	want := m.cfg.ShardLanes
	if want <= 0 || 3*lanes <= 4*want*shards && 3*lanes >= 2*want*shards {
		return shards
	}
	return max(1, (lanes+want/2)/want)
}

// needsReshard reports whether a component is to have more or fewer shards.
func (m *Matcher) needsReshard(p *component) bool {
	if len(m.components) == 1 {
		return len(p.shards) != len(m.shards)
	}
	return min(len(m.shards), m.targetShards(p.lanes, len(p.shards))) != len(p.shards)
}

// packComponents moves whole components from the fullest shard to the emptiest while these differ
// by more than half of what a shard should have and a move makes them more alike. The fullest shard
// then has at most twice the lanes that it would have if all were dealt anew.
func (m *Matcher) packComponents() {
	for len(m.components) > 1 && len(m.shards) > 1 {
		most, fewest := m.shards[0], m.shards[0]
		for _, s := range m.shards[1:] {
			if len(s.lanes) > len(most.lanes) {
				most = s
			}
			if len(s.lanes) < len(fewest.lanes) {
				fewest = s
			}
		}
		gap := len(most.lanes) - len(fewest.lanes)
		if gap <= max(1, m.cfg.ShardLanes/2) {
			return
		}
		var best *component
		off := func(p *component) int { return max(gap-2*p.lanes, 2*p.lanes-gap) }
		for _, p := range m.components {
			if len(p.shards) == 1 && p.shards[0] == most && p.lanes > 0 && p.lanes < gap &&
				(best == nil || off(p) < off(best)) {
				best = p
			}
		}
		if best == nil {
			return
		}
		m.visited += len(most.lanes)
		best.shards = []*shard{fewest}
		for _, l := range slices.Clone(most.lanes) {
			if l.set.component == best {
				m.displaceLane(l)
				m.placeLane(l, fewest)
			}
		}
	}
}

// dealAnew deals all lanes to shards anew. The lanes of a component go to as few shards as their
// number asks for, so that each of these has its part of every type and every set. A shard that is
// no longer needed is left without lanes.
func (m *Matcher) dealAnew() {
	count := m.shardsWanted()
	m.dealt, m.split = true, m.split || count > len(m.shards)
	for len(m.shards) < count {
		m.shards = append(m.shards, newShard(m))
	}
	for _, s := range m.shards[count:] {
		s.lanes, s.usable, s.holders = nil, 0, nil
		m.closed = append(m.closed, s)
	}
	m.shards = m.shards[:count:count]
	for i, s := range m.shards {
		s.index, s.lanes, s.usable, s.unsorted = i, s.lanes[:0], 0, true
		s.markDirty()
		clear(s.holders)
	}
	m.makeComponents()
	m.order = m.order[:0]
	for _, l := range m.all { // in the order of their ids
		m.visited++
		c := l.class
		if len(c.all) == 0 {
			m.order = append(m.order, c)
			c.in, c.ofType = c.in[:0], nil
		}
		c.all = append(c.all, l)
		c.set.component.lanes++
	}
	slices.SortStableFunc(m.order,
		func(a, b *laneClass) int { return cmp.Compare(a.typ.rank, b.typ.rank) })
	for _, c := range m.order {
		c.set.component.classes = append(c.set.component.classes, c)
	}
	slices.SortStableFunc(m.components,
		func(a, b *component) int { return cmp.Compare(b.lanes, a.lanes) })
	want := m.cfg.ShardLanes
	for _, p := range m.components {
		p.shards = m.shards
		if len(m.components) > 1 {
			p.shards = m.emptiestShards(min(len(m.shards), max(1, (p.lanes+want/2)/want)))
		}
		p.lanes = 0
		for _, c := range p.classes {
			for _, l := range c.all {
				m.placeLane(l, p.shards[p.lanes%len(p.shards)])
			}
		}
		p.classes = nil
	}
	for _, c := range m.order {
		clear(c.all)
		c.all = c.all[:0]
	}
}

// emptiestShards returns the n shards with the fewest lanes.
func (m *Matcher) emptiestShards(n int) []*shard {
	fewer := func(a, b *shard) int { return len(a.lanes) - len(b.lanes) }
	if n == 1 {
		return []*shard{slices.MinFunc(m.shards, fewer)}
	}
	all := slices.Clone(m.shards)
	slices.SortStableFunc(all, fewer)
	return all[:n:n]
}

// makeComponents makes the components anew, without lanes and shards, in the order of their first
// lanes.
func (m *Matcher) makeComponents() {
	m.components = m.components[:0]
	roots := m.rootsOfSets()
	of := make([]*component, len(roots))
	for _, l := range m.all {
		i := l.set.at
		p := of[roots[i]]
		if p == nil {
			p = &component{types: map[*instanceType]*componentType{}}
			of[roots[i]] = p
			m.components = append(m.components, p)
		}
		l.set.component = p
	}
}

// regroupSets finds the components of new sets, and reports whether the components of the others
// are what they were; if not, all lanes must be dealt anew.
func (m *Matcher) regroupSets() (same bool) {
	roots := m.rootsOfSets()
	of := make([]*component, len(roots))
	for _, p := range m.components {
		p.root = -1
	}
	for i, s := range m.sets {
		p, root := s.component, roots[i]
		if p == nil {
			continue
		}
		if of[root] != nil && of[root] != p || p.root >= 0 && p.root != root {
			return false
		}
		of[root], p.root = p, root
	}
	m.components = slices.DeleteFunc(m.components, func(p *component) bool { return p.root < 0 })
	for i, s := range m.sets {
		if s.component != nil {
			continue
		}
		p := of[roots[i]]
		if p == nil {
			p = &component{shards: m.emptiestShards(1), types: map[*instanceType]*componentType{}}
			of[roots[i]] = p
			m.components = append(m.components, p)
		}
		s.component = p
	}
	return true
}

// rootsOfSets returns, by set, a set of its component, the same for all of the component. With one
// shard there is one component.
func (m *Matcher) rootsOfSets() []int {
	m.visited += len(m.sets)
	m.roots = slices.Grow(m.roots[:0], len(m.sets))[:len(m.sets)]
	clear(m.roots)
	if len(m.shards) == 1 {
		return m.roots
	}
	for i := range m.roots {
		m.roots[i] = i
	}
	find := func(i int) int {
		for m.roots[i] != i {
			m.roots[i] = m.roots[m.roots[i]]
			i = m.roots[i]
		}
		return i
	}
	m.firsts = slices.Grow(m.firsts[:0], m.families)[:m.families]
	for f := range m.firsts {
		m.firsts[f] = -1
	}
	for i, s := range m.sets {
		for _, model := range s.models {
			first := &m.firsts[m.familyOf[model]]
			if *first < 0 {
				*first = i
				continue
			}
			a, b := find(*first), find(i)
			m.roots[max(a, b)] = min(a, b)
		}
	}
	for i := range m.roots {
		m.roots[i] = find(i)
	}
	return m.roots
}

// numberFamilies numbers the families of the models.
func (m *Matcher) numberFamilies() {
	numbers := map[names.ModelKey]int{}
	m.familyOf = m.familyOf[:0]
	for _, model := range m.models {
		family := cmp.Or(model.Family, model.Name)
		n, ok := numbers[family]
		if !ok {
			n = len(numbers)
			numbers[family] = n
		}
		m.familyOf = append(m.familyOf, n)
	}
	if m.families = len(numbers); m.families > 0 {
		m.regroups = true
	}
}

// sortLanes sorts the lanes of s by the rank of their type, then by the set, in the order of the
// sets' first lanes in s, then by id.
func (s *shard) sortLanes() {
	s.unsorted = false
	slices.SortFunc(s.lanes, func(a, b *lane) int { return cmp.Compare(a.id, b.id) })
	n := 0
	for _, l := range s.lanes {
		l.set.seenIn = nil
	}
	for _, l := range s.lanes {
		if l.set.seenIn != s {
			l.set.seenIn, l.set.order = s, n
			n++
		}
	}
	slices.SortStableFunc(s.lanes, func(a, b *lane) int {
		return cmp.Or(cmp.Compare(a.typ.rank, b.typ.rank), cmp.Compare(a.set.order, b.set.order))
	})
}
