package place

import (
	"math"
	"slices"
)

// A region is a part of a program that is solved by itself: its free choices. All others keep their
// counts.
type region struct {
	s        *search
	free     []int // choices
	capacity []int // by type: the agents that the free choices may have
	groups   []int // that the free choices serve
	// fixed is, by group and level, what the choices that are not free offer to greedy groups.
	fixed [][]float64
	// held are the partitions of the other choices that serve other groups, with their counts.
	held []columnPool

	// share, if >= 0, is the part of the demand that is served, no more and no less. Value is
	// accuracy alone then, and agents cost nothing.
	share float64

	classRow, typeRow []int
	total             int // the row of share
	cuts              []cut
	pools             []pool
	paid              [][]float64 // by group and level: what agents that are certain offer
	columns           []column
	x, times          []float64
	agents            []float64 // by free choice: how many the relaxation has
	need              []int     // and how many serve its flow
}

type columnPool struct {
	part *part
	n    int
}

// A pool is what all agents offer, by their layouts of several partitions, to a group at a level.
// One row for all of them keeps the program small.
type pool struct{ group, level, row int }

// A column says what a column of the simplex stands for: agents, and the time that they need; or
// flow to a greedy group.
type column struct {
	free         int // index in region.free
	agents, time float64
	group, level int // of flow alone, if free < 0
}

// newRegion makes the region of the free choices.
func (s *search) newRegion(free []int) *region {
	r := &region{s: s, free: free, share: -1, capacity: make([]int, len(s.m.types))}
	for t, n := range s.m.types {
		r.capacity[t] = n - s.used[t]
	}
	in := make([]bool, len(s.m.groups))
	for _, i := range free {
		c := &s.m.choices[i]
		r.capacity[c.typ] += s.n[i]
		for _, part := range c.parts {
			if !in[part.group] {
				in[part.group] = true
				r.groups = append(r.groups, part.group)
			}
		}
	}
	isFree := make([]bool, len(s.m.choices))
	for _, i := range free {
		isFree[i] = true
	}
	r.fixed, r.paid = make([][]float64, len(s.m.groups)), make([][]float64, len(s.m.groups))
	for _, g := range r.groups {
		group := &s.m.groups[g]
		r.fixed[g] = make([]float64, len(group.levels))
		r.paid[g] = make([]float64, len(group.levels))
		for _, i := range group.choices {
			if s.n[i] == 0 || isFree[i] {
				continue
			}
			for p := range s.m.choices[i].parts {
				part := &s.m.choices[i].parts[p]
				if part.group != g {
					continue
				}
				if group.greedy {
					o := &part.offers[0]
					r.fixed[g][o.level] += o.rate * float64(s.n[i])
				} else {
					r.held = append(r.held, columnPool{part, s.n[i]})
				}
			}
		}
	}
	r.classRow, r.typeRow = make([]int, len(s.m.weight)), make([]int, len(s.m.types))
	r.agents, r.need = make([]float64, len(free)), make([]int, len(free))
	s.work += len(s.m.choices) + 10*len(free)
	return r
}

// solveRelaxation solves the linear relaxation of the region where each free choice has between lo
// and hi agents. It returns what the groups' flow is worth less what the agents cost, and a bound
// of it; ok is false if there are not so many agents.
//
// A choice of one partition has no column for its agents. Those that are certain (lo) serve what
// they can for nothing more, and what is served beyond pays for its part of an agent: of the least
// concave function above min(rate * agents, what is left to serve).
func (r *region) solveRelaxation(lo, hi []int) (value, bound float64, ok bool) {
	s := r.s
	l := &s.lp
	l.Reset()
	r.columns = r.columns[:0]
	left := append([]int(nil), r.capacity...)
	certain := 0.0
	for f, i := range r.free {
		c := &s.m.choices[i]
		left[c.typ] -= lo[f]
		certain += float64(lo[f]) * c.cost
	}
	for t, n := range left {
		if n < 0 {
			return 0, 0, false
		}
		r.typeRow[t] = l.AddRow(float64(n))
	}
	for _, g := range r.groups {
		for _, k := range s.m.groups[g].classes {
			r.classRow[k] = l.AddRow(1)
		}
	}
	for k := range r.cuts {
		c := &r.cuts[k]
		rhs := c.constant
		for f, n := range lo {
			rhs += c.of[f] * float64(n)
		}
		c.row = l.AddRow(rhs)
	}
	if r.share >= 0 {
		r.total = l.AddRow(r.share)
		l.Artificial[r.total] = -served
		certain = 0
	}
	r.addCertainOffers(lo)
	for f := range r.free {
		c := &s.m.choices[r.free[f]]
		switch {
		case c.isSimple() && !s.m.groups[c.parts[0].group].mixed:
			r.addSimple(f, c, lo[f], hi[f])
		case len(c.parts) == 1 && len(c.parts[0].offers) > 1:
			r.addShared(f, c, lo[f], hi[f])
		default:
			r.addLayout(f, c, lo[f], hi[f])
		}
	}
	for _, p := range r.pools {
		l.AddCoefficient(p.row, 1)
		r.greedyFlow(p.group, p.level, 1)
	}
	l.Solve()
	s.work += l.Work + 20*len(r.free)
	l.Work = 0
	r.x = l.Solution(r.x)
	for f := range r.free {
		r.agents[f], r.need[f] = 0, 0
	}
	value = -certain
	r.times = slices.Grow(r.times[:0], len(r.free))[:len(r.free)]
	times := r.times
	clear(times)
	for j, x := range r.x {
		value += x * l.Cost[j]
		if c := r.columns[j]; c.free >= 0 {
			r.agents[c.free] += x * c.agents
			times[c.free] += x * c.time
		}
	}
	for f := range r.free {
		r.agents[f] += float64(lo[f])
		r.need[f] = lo[f] + int(math.Ceil(times[f]-1e-7))
	}
	return value, l.Bound() - certain, true
}

// endFlowColumn ends a column of flow to class k, ub at most.
func (r *region) endFlowColumn(c column, k int, gain, ub float64) {
	l := &r.s.lp
	l.AddCoefficient(r.classRow[k], 1)
	if r.share >= 0 {
		l.AddCoefficient(r.total, r.s.m.weight[k])
		gain -= r.s.m.weight[k] * served
	}
	l.AddColumn(gain, ub)
	r.columns = append(r.columns, c)
}

// greedyFlow ends a column of flow to group g at a level, ub at most.
func (r *region) greedyFlow(g, level int, ub float64) {
	group := &r.s.m.groups[g]
	for k := range r.cuts {
		if r.cuts[k].isBinding(g, level) {
			r.s.lp.AddCoefficient(r.cuts[k].row, 1)
		}
	}
	r.endFlowColumn(column{free: -1, group: g, level: level}, group.classes[0],
		group.levels[level], ub)
}

// agentCost is what an agent of c costs.
func (r *region) agentCost(c *choice) float64 {
	if r.share >= 0 {
		return 0
	}
	return c.cost
}

// addCertainOffers adds what the agents that are certain offer: the fixed ones, and lo of the free
// ones.
func (r *region) addCertainOffers(lo []int) {
	s := r.s
	for _, g := range r.groups {
		if s.m.groups[g].greedy {
			copy(r.paid[g], r.fixed[g])
		}
	}
	r.pools = r.pools[:0]
	for f, i := range r.free {
		if lo[f] == 0 {
			continue
		}
		for p := range s.m.choices[i].parts {
			part := &s.m.choices[i].parts[p]
			if s.m.groups[part.group].greedy {
				o := &part.offers[0]
				r.paid[part.group][o.level] += o.rate * float64(lo[f])
			} else {
				r.addHeld(part, lo[f])
			}
		}
	}
	for _, h := range r.held {
		r.addHeld(h.part, h.n)
	}
	for _, g := range r.groups {
		if !s.m.groups[g].greedy {
			continue
		}
		sum := 0.0
		for level, rate := range r.paid[g] {
			if rate > 0 {
				r.greedyFlow(g, level, min(1, rate))
			}
			sum += rate
			r.paid[g][level] = sum // from here on: at this level or a higher one
		}
	}
}

// addHeld adds a partition of n agents that are certain, which serves a group that is not greedy.
func (r *region) addHeld(p *part, n int) {
	l := &r.s.lp
	row := l.AddRow(float64(n))
	for i := range p.offers {
		o := &p.offers[i]
		l.AddCoefficient(row, 1/o.rate)
		r.endFlowColumn(column{free: -1, group: -1}, o.class, o.gain, 1)
	}
}

// most is the largest number of full agents for which it pays to tell the last one's part apart.
const most = 20

// addSimple adds what choice c, of one variant and one class, may have beyond lo agents.
func (r *region) addSimple(f int, c *choice, lo, hi int) {
	l := &r.s.lp
	o := &c.parts[0].offers[0]
	left := 1.0
	if g := c.parts[0].group; r.s.m.groups[g].greedy {
		left -= r.paid[g][o.level]
	} else {
		left -= o.rate * float64(lo)
	}
	more := float64(hi - lo)
	if left <= 1e-12 || more <= 0 {
		return
	}
	rate := min(o.rate, left)
	full := math.Floor(left/rate + 1e-9)
	last := left - full*rate
	whole := min(left, more*rate)
	if full <= most && full < more && last > 1e-6 {
		whole = full * rate
		l.AddCoefficient(r.typeRow[c.typ], 1/last)
		r.endFlowColumn(column{free: f, agents: 1 / last, time: 1 / o.rate}, o.class,
			o.gain-r.agentCost(c)/last, last)
	}
	l.AddCoefficient(r.typeRow[c.typ], 1/rate)
	r.endFlowColumn(column{free: f, agents: 1 / rate, time: 1 / o.rate}, o.class,
		o.gain-r.agentCost(c)/rate, whole)
}

// addShared adds what choice c, of one partition with several services, may have beyond lo agents.
func (r *region) addShared(f int, c *choice, lo, hi int) {
	if hi <= lo {
		return
	}
	l := &r.s.lp
	offers := c.parts[0].offers
	busy := 0.0 // the part of one agent's time that all of the demand takes, at most 1
	for i := range offers {
		busy += 1 / offers[i].rate
	}
	busy = min(1, busy)
	limit := -1
	if hi < r.capacity[c.typ] { // else the type's row bounds it
		limit = l.AddRow(float64(hi - lo))
	}
	for i := range offers {
		o := &offers[i]
		agents := 1 / (o.rate * busy)
		l.AddCoefficient(r.typeRow[c.typ], agents)
		if limit >= 0 {
			l.AddCoefficient(limit, agents)
		}
		r.endFlowColumn(column{free: f, agents: agents, time: 1 / o.rate}, o.class,
			o.gain-r.agentCost(c)*agents, 1)
	}
}

// addLayout adds what choice c, of several partitions, may have beyond lo agents: a column for the
// agents, and a row for each partition, or each pool, that says how much they serve.
func (r *region) addLayout(f int, c *choice, lo, hi int) {
	if hi <= lo {
		return
	}
	s := r.s
	l := &s.lp
	type supply struct {
		row  int
		rate float64
	}
	var supplies []supply
	scale := 0.0
	for i := range c.parts {
		p := &c.parts[i]
		if !s.m.groups[p.group].greedy {
			row := l.AddRow(0)
			for k := range p.offers {
				o := &p.offers[k]
				l.AddCoefficient(row, 1/o.rate)
				r.endFlowColumn(column{free: -1, group: -1}, o.class, o.gain, 1)
			}
			supplies = append(supplies, supply{row, 1})
			scale = 1
			continue
		}
		o := &p.offers[0]
		// An agent serves no more than what those that are certain leave.
		rate := min(o.rate, 1-r.paid[p.group][o.level])
		if rate <= 1e-12 {
			continue
		}
		supplies = append(supplies, supply{r.poolRow(p.group, o.level), rate})
		scale = max(scale, rate)
	}
	if scale == 0 {
		return
	}
	for _, at := range supplies {
		l.AddCoefficient(at.row, -at.rate/scale)
	}
	for k := range r.cuts {
		if x := r.cuts[k].of[f]; x != 0 {
			l.AddCoefficient(r.cuts[k].row, -x/scale)
		}
	}
	l.AddCoefficient(r.typeRow[c.typ], 1/scale)
	l.AddColumn(-r.agentCost(c)/scale, float64(hi-lo)*scale)
	r.columns = append(r.columns, column{free: f, agents: 1 / scale, time: 1 / scale})
}

// poolRow is the row of a pool.
func (r *region) poolRow(group, level int) int {
	for _, p := range r.pools {
		if p.group == group && p.level == level {
			return p.row
		}
	}
	row := r.s.lp.AddRow(0)
	r.pools = append(r.pools, pool{group, level, row})
	return row
}
