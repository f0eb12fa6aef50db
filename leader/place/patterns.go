package place

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/muster-serve/muster/leader/internal/branch"
)

// Where no layout serves two groups, the groups share nothing but the agents of the types. Then a
// group's pattern, its agents of each type and what they hold, is one column of a program with a
// row for each type and each group (Dantzig and Wolfe, Operations Research 8, 1960). Its
// relaxation is much tighter than that of relax.go: a pattern's counts are whole, and only as many
// groups as there are types have more than one pattern. Patterns are found by depth-first search
// at the types' prices.

// A pattern is counts for one group.
type pattern struct {
	use    []int // agents by type
	counts []count
	value  float64 // of the group's flow, less what the agents cost
}

type count struct{ choice, n int }

// An item is a choice as the depth-first search sees it.
type item struct {
	choice, typ int
	rate        float64
	gain        float64 // of serving all of the group
	cost        float64 // of an agent, with its type's price
	worth       float64 // of a unit of flow, if the agent is full
	// loss is what a full agent is worth less than the same flow by the worthiest choice.
	loss float64
}

type patterns struct {
	*finder
	of     [][]*pattern          // by group
	best   []map[string]*pattern // by group and what they use
	price  []float64             // by type
	x      []float64
	column []*pattern
	group  []int // by column
}

// isSeparable says that no choice serves two groups, and none shares its time.
func (f *finder) isSeparable() bool {
	for i := range f.m.choices {
		c := &f.m.choices[i]
		if !f.isMovable(i) || len(c.parts) != 1 {
			return false
		}
	}
	return len(f.m.groups) > 1
}

// newPatterns generates patterns at prices that fit each other, while the work is below limit.
func (f *finder) newPatterns(limit int) *patterns {
	p := &patterns{
		finder: f, of: make([][]*pattern, len(f.m.groups)),
		best:  make([]map[string]*pattern, len(f.m.groups)),
		price: slices.Clone(f.prices),
	}
	for g := range p.best {
		p.best[g] = map[string]*pattern{}
		p.addPresentPattern(g)
	}
	p.generateColumns(limit)
	return p
}

// proveOptimum looks at the patterns that may be part of a better solution: at first those that
// lose little of what such a solution may lose in all, and in the end all, if they are not too
// many.
func (p *patterns) proveOptimum(limit int) {
	for g := range p.of {
		p.addPresentPattern(g)
	}
	for _, part := range []float64{1. / 32, 1. / 8, 1. / 2, 1} {
		if p.work >= limit || p.boundGap() <= 10*worthwhile || p.proven {
			return
		}
		all := p.enumeratePatterns(part, p.work+(limit-p.work)/4)
		if done := p.solveMaster(p.work + (limit-p.work)/2); done && all {
			p.lowerBound(p.netValue())
			return
		}
	}
}

// addPresentPattern adds the present counts of group g as a pattern.
func (p *patterns) addPresentPattern(g int) {
	q := &pattern{use: make([]int, len(p.m.types)), value: p.val[g]}
	for _, i := range p.m.groups[g].choices {
		if n := p.n[i]; n > 0 {
			c := &p.m.choices[i]
			q.use[c.typ] += n
			q.counts = append(q.counts, count{i, n})
			q.value -= float64(n) * c.cost
		}
	}
	p.add(g, q)
}

// add keeps a pattern if it is the best of those that use the same agents, and reports whether it
// is.
func (p *patterns) add(g int, q *pattern) bool {
	var key []byte
	for _, n := range q.use {
		key = binary.AppendUvarint(key, uint64(n))
	}
	if old := p.best[g][string(key)]; old != nil {
		if old.value >= q.value {
			return false
		}
		*old = *q
		return true
	}
	p.best[g][string(key)] = q
	p.of[g] = append(p.of[g], q)
	return true
}

// itemsAtPrices are the active choices of each group at the present prices, those of the least loss
// first, and what a unit of flow is worth at most.
func (p *patterns) itemsAtPrices() (items [][]item, most []float64) {
	items, most = make([][]item, len(p.m.groups)), make([]float64, len(p.m.groups))
	for _, i := range p.active {
		c := &p.m.choices[i]
		o := &c.parts[0].offers[0]
		it := item{
			choice: i, typ: c.typ, rate: o.rate, gain: o.gain, cost: c.cost + p.price[c.typ],
		}
		it.worth = it.gain - it.cost/it.rate
		g := c.parts[0].group
		items[g], most[g] = append(items[g], it), max(most[g], it.worth)
	}
	for g, of := range items {
		for k := range of {
			of[k].loss = of[k].rate * (most[g] - of[k].worth)
		}
		slices.SortStableFunc(of, func(a, b item) int { return cmp.Compare(a.loss, b.loss) })
	}
	p.work += 30 * len(p.active)
	return items, most
}

// A patternPricer is a search for a group's patterns that are worth more than least at the types'
// prices.
type patternPricer struct {
	p       *patterns
	items   []item
	g       int
	unit    float64 // what a unit of flow is worth at most
	least   float64
	limit   int // of the work
	found   float64
	taken   []int // items, a number of times each
	collect bool  // all patterns worth more than least, not only better and better ones
	added   bool
}

// search extends the taken items by those from index from on, with left of the flow to serve and a
// worth so far. It says whether it was not cut off.
//
// All agents of a pattern are full but one, so it is items taken whole, in the order of their
// losses, and one more. Whatever follows is worth unit for a unit of flow at most.
func (s *patternPricer) search(from int, left, worth float64) bool {
	if s.p.work > s.limit {
		return false
	}
	s.p.work += 8 + 2*len(s.items)
	s.keepPattern(worth, -1)
	for k := range s.items {
		it := &s.items[k]
		if it.rate > left && worth+it.gain*left-it.cost > s.least {
			s.keepPattern(worth+it.gain*left-it.cost, k)
		}
	}
	for k := from; k < len(s.items); k++ {
		it := &s.items[k]
		if worth+left*s.unit-it.loss <= s.least {
			break // the others lose more
		}
		if it.rate > left {
			continue
		}
		s.taken = append(s.taken, k)
		whole := s.search(k, left-it.rate, worth+it.rate*it.worth)
		s.taken = s.taken[:len(s.taken)-1]
		if !whole {
			return false
		}
	}
	return true
}

// maxWorth is the most that a pattern of the group is worth, or, if the search is cut off,
// a bound of it.
func (s *patternPricer) maxWorth() float64 {
	for _, q := range s.p.of[s.g] {
		worth := q.value
		for t, n := range q.use {
			worth -= s.p.price[t] * float64(n)
		}
		s.found = max(s.found, worth)
		s.p.work += len(q.use)
	}
	s.least = s.found
	if s.search(0, 1, 0) {
		return s.found
	}
	return max(s.found, s.unit) // as if agents could be divided
}

// keepPattern keeps the taken items and one more, if last >= 0, as a pattern of that worth.
func (s *patternPricer) keepPattern(worth float64, last int) {
	s.found = max(s.found, worth)
	if worth <= s.least {
		return
	}
	if !s.collect {
		s.least = worth
	}
	p := s.p
	q := &pattern{use: make([]int, len(p.m.types))}
	put := func(k int) {
		it := &s.items[k]
		q.use[it.typ]++
		worth += p.price[it.typ] // back to the value without the types' prices
		for c := range q.counts {
			if q.counts[c].choice == it.choice {
				q.counts[c].n++
				return
			}
		}
		q.counts = append(q.counts, count{it.choice, 1})
	}
	for _, k := range s.taken {
		put(k)
	}
	if last >= 0 {
		put(last)
	}
	q.value = worth
	p.work += 20 * (len(s.taken) + 1)
	s.added = p.add(s.g, q) || s.added
}

// generateColumns adds patterns until none is missing in the relaxation of the master program, and
// lowers the bound.
func (p *patterns) generateColumns(limit int) {
	const rounds = 200
	centre := slices.Clone(p.price) // of the lowest bound so far
	lowest, own := math.Inf(1), false
	for round := 0; round < rounds && p.work < limit; round++ {
		added := false
		bound := 0.0
		for t, y := range p.price {
			bound += y * float64(p.m.types[t])
		}
		items, unit := p.itemsAtPrices()
		for g := range p.of {
			s := patternPricer{
				p: p, items: items[g], g: g, unit: unit[g], limit: p.work + limit/40/len(p.of),
			}
			bound += s.maxWorth()
			added = added || s.added
		}
		if bound < lowest {
			lowest = bound
			copy(centre, p.price)
		}
		p.lowerBound(bound)
		if !added && own {
			break // the prices are the master program's, and no pattern is worth more
		}
		p.solveRelaxation(nil, nil)
		// Between the prices of the master program and the best so far, so that they do not leap.
		if own = !added; !own {
			for t := range p.price {
				p.price[t] = (centre[t] + p.price[t]) / 2
			}
		}
	}
	copy(p.price, centre)
}

// solveRelaxation solves the relaxation of the master program with the patterns that use between lo
// and hi agents of each type, by group and type; nil is any number. It sets the prices.
func (p *patterns) solveRelaxation(lo, hi []int) (value, bound float64) {
	l := &p.lp
	l.Reset()
	types := len(p.m.types)
	for _, n := range p.m.types {
		l.AddRow(float64(n))
	}
	for range p.of {
		l.AddRow(1)
	}
	p.column, p.group = p.column[:0], p.group[:0]
	for g, of := range p.of {
	next:
		for _, q := range of {
			for t, n := range q.use {
				if lo != nil && (n < lo[g*types+t] || n > hi[g*types+t]) {
					continue next
				}
			}
			for t, n := range q.use {
				if n > 0 {
					l.AddCoefficient(t, float64(n))
				}
			}
			l.AddCoefficient(types+g, 1)
			l.AddColumn(q.value, 1)
			p.column, p.group = append(p.column, q), append(p.group, g)
		}
	}
	l.Solve()
	p.x = l.Solution(p.x)
	bound = l.Bound()
	p.work += l.Work
	l.Work = 0
	for j, x := range p.x {
		value += x * p.column[j].value
	}
	copy(p.price, l.Price[:types])
	return value, bound
}

// several is how many patterns of a group are kept if they may not be all that matter. Chosen: the
// program of patterns has a column for each, and its time grows with their square.
const several = 400

// enumeratePatterns finds patterns that could be part of a better solution than the one at hand,
// those that lose at most a part of what that may lose, and drops all that cannot. It says whether
// it found all that could be before the work reached limit.
func (p *patterns) enumeratePatterns(part float64, limit int) bool {
	total := 0.0
	for t, y := range p.price {
		total += y * float64(p.m.types[t])
	}
	items, unit := p.itemsAtPrices()
	most := make([]float64, len(p.of))
	share := func(g int) int { return p.work + (limit-p.work)/(len(p.of)-g) }
	for g := range p.of {
		s := patternPricer{
			p: p, items: items[g], g: g, unit: unit[g],
			limit: p.work + (limit-p.work)/4/(len(p.of)-g),
		}
		most[g] = s.maxWorth()
		total += most[g]
	}
	p.lowerBound(total)
	gap := total - p.netValue()
	all := part == 1
	for g := range p.of {
		s := patternPricer{
			p: p, items: items[g], g: g, unit: unit[g], limit: share(g), least: most[g] - part*gap,
			collect: true,
		}
		all = s.search(0, 1, 0) && all
		loss := func(q *pattern) float64 {
			loss := most[g] - q.value
			for t, n := range q.use {
				loss += p.price[t] * float64(n)
			}
			return loss
		}
		of := slices.DeleteFunc(p.of[g], func(q *pattern) bool { return loss(q) > gap+worthwhile })
		if len(of) > several {
			slices.SortStableFunc(of,
				func(a, b *pattern) int { return cmp.Compare(loss(a), loss(b)) })
			of = of[:several]
			all = false
		}
		p.of[g] = nil
		clear(p.best[g])
		for _, q := range of {
			p.add(g, q)
		}
		p.addPresentPattern(g)
	}
	return all
}

// solveMaster looks for the best choice of one pattern for each group. It says whether it looked at
// all that could be better than what it ends with.
func (p *patterns) solveMaster(limit int) bool {
	types := len(p.m.types)
	root := &branch.Node{
		Lo: make([]int, len(p.of)*types), Hi: make([]int, len(p.of)*types), Bound: math.Inf(1),
	}
	for g := range p.of {
		copy(root.Hi[g*types:], p.m.types)
	}
	prices := slices.Clone(p.price)
	defer func() { copy(p.price, prices) }()
	var open branch.Frontier
	open.Push(root)
	for k := 0; open.Len() > 0; k++ {
		c := open.Pop()
		if c.Bound <= p.netValue()+worthwhile {
			return true
		}
		if p.work >= limit {
			return false
		}
		_, bound := p.solveRelaxation(c.Lo, c.Hi)
		c.Bound = min(c.Bound, bound)
		if c.Bound <= p.netValue()+worthwhile {
			continue
		}
		g, t, n := p.split()
		if k%16 == 0 || g < 0 {
			p.diveOnGroups(c, limit)
		}
		if g < 0 {
			continue
		}
		open.Split(c, g*types+t, n)
	}
	return true
}

// split is where to split a node: the group and type of whose agents the relaxation uses the part
// farthest from whole, rounded down. If all are whole, it is a group that mixes patterns, and the
// fewest agents that these use of a type in which they differ; -1 if none does.
func (p *patterns) split() (group, typ, n int) {
	types := len(p.m.types)
	use := make([]float64, len(p.of)*types)
	least, most := make([]int, len(use)), make([]int, len(use))
	for i := range least {
		least[i] = math.MaxInt
	}
	for j, x := range p.x {
		if x < 1e-6 {
			continue
		}
		for t, n := range p.column[j].use {
			i := p.group[j]*types + t
			use[i] += x * float64(n)
			least[i], most[i] = min(least[i], n), max(most[i], n)
		}
	}
	best, far := -1, 1e-5
	for i, u := range use {
		part := u - math.Floor(u)
		if d := min(part, 1-part); d > far && most[i] > least[i] {
			best, far, n = i, d, int(math.Floor(u))
		}
	}
	if best < 0 {
		spread := 0
		for i := range use {
			if d := most[i] - least[i]; least[i] < math.MaxInt && d > spread {
				best, spread, n = i, d, least[i]
			}
		}
	}
	if best < 0 {
		return -1, 0, 0
	}
	return best / types, best % types, min(n, most[best]-1)
}

// diveOnGroups gives group after group the pattern that the relaxation, which is that of c, has
// most of, and tries the counts that it ends with.
func (p *patterns) diveOnGroups(c *branch.Node, limit int) {
	lo, hi := slices.Clone(c.Lo), slices.Clone(c.Hi)
	chosen := make([]*pattern, len(p.of))
	for range p.of {
		most := make([]float64, len(p.of))
		first := make([]*pattern, len(p.of))
		for j, x := range p.x {
			if g := p.group[j]; x > most[g]+1e-9 {
				most[g], first[g] = x, p.column[j]
			}
		}
		next := -1
		for g := range p.of {
			if chosen[g] != nil || first[g] == nil {
				continue
			}
			if most[g] > 1-1e-6 {
				p.fixPattern(lo, hi, g, first[g], chosen)
			} else if next < 0 || most[g] > most[next] {
				next = g
			}
		}
		if next < 0 {
			break
		}
		p.fixPattern(lo, hi, next, first[next], chosen)
		if p.work >= limit {
			return
		}
		if _, bound := p.solveRelaxation(lo, hi); bound <= p.netValue()+worthwhile {
			return
		}
	}
	p.tryPatterns(chosen)
}

// fixPattern lets group g use what pattern q uses, no more and no less.
func (p *patterns) fixPattern(lo, hi []int, g int, q *pattern, chosen []*pattern) {
	copy(lo[g*len(q.use):], q.use)
	copy(hi[g*len(q.use):], q.use)
	chosen[g] = q
}

// tryPatterns compares the counts of the chosen patterns, after a climb, with those at hand.
func (p *patterns) tryPatterns(chosen []*pattern) {
	was, value := slices.Clone(p.n), p.netValue()
	n := make([]int, len(p.n))
	left := slices.Clone(p.m.types)
	for _, q := range chosen {
		if q == nil {
			continue
		}
		for _, c := range q.counts {
			t := p.m.choices[c.choice].typ
			k := min(c.n, left[t])
			n[c.choice] += k
			left[t] -= k
		}
	}
	p.set(n)
	p.climbFrom(p.active, math.MaxInt)
	if p.netValue() < value {
		p.set(was)
		return
	}
	for g := range p.of {
		p.addPresentPattern(g)
	}
}
