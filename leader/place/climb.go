package place

import "math"

// climb moves one agent at a time as long as that gains: to a choice from spare, from a choice to
// spare, or from choice to choice of a type. Gains in groups that a move does not share add up, so
// that the best move between groups is the best addition and the best removal; within a group all
// pairs are looked at. What a move does not touch is not computed again.
type climb struct {
	s       *search
	choices []int // that may be moved
	of      []int // by group, the choices that serve it
	start   []int // by group, where they begin in of
	add     []float64
	remove  []float64
	within  []move // by group, the best
	stale   []bool // by group
}

type move struct {
	from, to int
	gain     float64
}

var noMove = move{from: -1, to: -1}

// climbFrom climbs over the given choices, steps moves at most, while the work is below limit.
func (s *search) climbFrom(choices []int, limit int) {
	c := &climb{
		s: s, start: make([]int, len(s.m.groups)+1), add: make([]float64, len(s.m.choices)),
		remove: make([]float64, len(s.m.choices)), within: make([]move, len(s.m.groups)),
		stale: make([]bool, len(s.m.groups)),
	}
	var groups []int
	each := func(do func(i, g int)) {
		for _, i := range c.choices {
			groups = s.m.choices[i].appendGroups(groups[:0])
			for _, g := range groups {
				do(i, g)
			}
		}
	}
	for _, i := range choices {
		if s.isMovable(i) {
			c.choices = append(c.choices, i)
		}
	}
	each(func(_, g int) { c.start[g+1]++ })
	for g := range s.m.groups {
		c.start[g+1] += c.start[g]
		c.stale[g] = true
	}
	c.of = make([]int, c.start[len(s.m.groups)])
	next := append([]int(nil), c.start...)
	each(func(i, g int) { c.of[next[g]] = i; next[g]++ })
	for s.work < limit {
		c.refreshStale()
		best := c.bestMove()
		if best.gain < 1e-9 {
			return
		}
		c.do(best)
	}
}

// isMovable says that choice i serves greedy groups only.
func (s *search) isMovable(i int) bool {
	parts := s.m.choices[i].parts
	for p := range parts {
		if !s.m.groups[parts[p].group].greedy {
			return false
		}
	}
	return len(parts) <= 4
}

// refreshStale computes what is stale.
func (c *climb) refreshStale() {
	s := c.s
	done := map[int]bool{}
	for g, stale := range c.stale {
		if !stale {
			continue
		}
		of := c.of[c.start[g]:c.start[g+1]]
		for _, i := range of {
			if done[i] {
				continue
			}
			if len(s.m.choices[i].parts) > 1 {
				done[i] = true
			}
			c.add[i], c.remove[i] = math.Inf(-1), math.Inf(-1)
			if s.n[i] < s.m.choices[i].most {
				c.add[i] = s.gainOf(-1, i)
			}
			if s.n[i] > 0 {
				c.remove[i] = s.gainOf(i, -1)
			}
		}
	}
	for g, stale := range c.stale {
		of := c.of[c.start[g]:c.start[g+1]]
		if !stale && !c.sharesStaleChoice(g) {
			continue
		}
		c.within[g] = noMove
		for _, from := range of {
			if s.n[from] == 0 {
				continue
			}
			for _, to := range of {
				if to == from || s.m.choices[to].typ != s.m.choices[from].typ ||
					s.n[to] >= s.m.choices[to].most {
					continue
				}
				if gain := s.gainOf(from, to); gain > c.within[g].gain {
					c.within[g] = move{from, to, gain}
				}
			}
		}
	}
	clear(c.stale)
}

// sharesStaleChoice says that group g shares a choice with a group that is stale.
func (c *climb) sharesStaleChoice(g int) bool {
	for _, i := range c.of[c.start[g]:c.start[g+1]] {
		parts := c.s.m.choices[i].parts
		if len(parts) == 1 {
			continue
		}
		for p := range parts {
			if c.stale[parts[p].group] {
				return true
			}
		}
	}
	return false
}

// candidates is how many of the best additions, and of the best removals, of a type are combined;
// chosen, for the work grows with its square.
const candidates = 4

// bestMove is the best move. Of each type it combines the best additions and removals, of as many
// groups.
func (c *climb) bestMove() move {
	s := c.s
	best := noMove
	for _, m := range c.within {
		if m.gain > best.gain {
			best = m
		}
	}
	types := len(s.m.types)
	adds, removes := make([][candidates]move, types), make([][candidates]move, types)
	for t := range adds {
		for k := range candidates {
			adds[t][k] = move{-1, -1, math.Inf(-1)}
			removes[t][k] = adds[t][k]
		}
	}
	s.work += 2 * len(c.choices)
	for _, i := range c.choices {
		t := s.m.choices[i].typ
		s.insert(&adds[t], move{-1, i, c.add[i]})
		s.insert(&removes[t], move{i, -1, c.remove[i]})
	}
	for t := range types {
		if m := adds[t][0]; s.used[t] < s.m.types[t] && m.gain > best.gain {
			best = m
		}
		if m := removes[t][0]; m.gain > best.gain {
			best = m
		}
		for _, a := range adds[t] {
			for _, r := range removes[t] {
				if a.to < 0 || r.from < 0 || a.to == r.from {
					continue
				}
				gain := a.gain + r.gain
				if s.shareGroup(a.to, r.from) {
					gain = s.gainOf(r.from, a.to)
				}
				if gain > best.gain {
					best = move{r.from, a.to, gain}
				}
			}
		}
	}
	return best
}

// shareGroup says that two choices serve a group both.
func (s *search) shareGroup(i, j int) bool {
	a, b := s.m.choices[i].parts, s.m.choices[j].parts
	for p := range a {
		for q := range b {
			if a[p].group == b[q].group {
				return true
			}
		}
	}
	return false
}

// insert keeps the moves with the largest gains, at most one of those whose choices serve first the
// same group.
func (s *search) insert(to *[candidates]move, m move) {
	if !(m.gain > to[candidates-1].gain) {
		return
	}
	group := func(m move) int { return s.m.choices[max(m.from, m.to)].parts[0].group }
	last := candidates - 1
	for k := range to {
		if to[k].from < 0 && to[k].to < 0 {
			last = k
			break
		}
		if group(to[k]) == group(m) {
			if to[k].gain >= m.gain {
				return
			}
			last = k
			break
		}
	}
	k := last
	for ; k > 0 && m.gain > to[k-1].gain; k-- {
		to[k] = to[k-1]
	}
	to[k] = m
}

func (c *climb) do(m move) {
	s := c.s
	var groups []int
	if m.from >= 0 {
		s.changeCount(m.from, -1)
		groups = s.m.choices[m.from].appendGroups(groups)
	}
	if m.to >= 0 {
		s.changeCount(m.to, 1)
		groups = s.m.choices[m.to].appendGroups(groups)
	}
	for _, g := range groups {
		s.refreshGroup(g)
		c.stale[g] = true
	}
}
