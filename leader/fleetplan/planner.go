package fleetplan

import (
	"cmp"
	"math"
	"slices"

	"github.com/muster-serve/muster/leader/staffing"
)

// A Planner plans, and remembers of each plan what makes the next one quicker if the problem has
// changed a little: the ways to answer that were of use, and the counts. It is not safe for
// concurrent use.
type Planner struct {
	ways   []way
	counts []int // by type
}

// A way is a column in terms that hold for another problem of as many families, bins, types and
// layouts.
type way struct {
	family   int
	variants []int32 // by bin; unanswered
	slots    []int32
}

// againWork bounds the operations of a search that begins with what the last one found: about
// thirty milliseconds.
const againWork = 20_000_000

// Plan plans a fleet: the best plan, and up to n-1 others that were found on the way or are a
// machine from it, the better ones first. It returns none if no fleet is within the budget.
func (pl *Planner) Plan(p *Problem, n int) ([]*Plan, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return pl.plan(p, n, maxWork)
}

// plan plans for a valid problem, within so many operations for each search.
func (pl *Planner) plan(p *Problem, n, work int) ([]*Plan, error) {
	m := newMaster(p, p.sharedPools())
	s := newCountSearch(m, work)
	if pl.recall(m) {
		s.limit = min(work, againWork)
		s.tryFormer(pl.counts)
	}
	if slices.ContainsFunc(m.pools, func(p pool) bool { return !p.only }) {
		s.begin()
	}
	s.branch()
	if s.best == nil {
		return nil, nil
	}
	pl.remember(s)
	if pools, all := p.makePools(s); isBounded(pools) {
		var err error
		if s, err = p.boundMemory(s, pools, all, work); err != nil {
			return nil, err
		}
	} else if n > 1 {
		s.tryNeighbours()
	}
	slices.SortStableFunc(s.found, func(a, b candidate) int { return cmp.Compare(b.value, a.value) })
	first := slices.IndexFunc(s.found, func(c candidate) bool {
		return slices.Equal(c.counts, s.best)
	})
	s.found[0], s.found[first] = s.found[first], s.found[0]
	var plans []*Plan
	for _, c := range s.found[:min(n, len(s.found))] {
		plans = append(plans, s.makePlan(c))
	}
	return plans, nil
}

// PlanSafely is Plan for machines of whose Capacity only that share may be planned for which is safe
// for as many lanes as the plan has (package staffing).
func (pl *Planner) PlanSafely(p *Problem, n int) (best []*Plan, err error) {
	// Chosen; another thousandth of a machine's time changes no fleet of less than some hundred.
	const usualLanes, maxTries, exact = 8, 4, 1e-3
	share := staffing.SafeShare(usualLanes)
	for range maxTries {
		plans, err := pl.Plan(p.withCapacity(share), n)
		if err != nil || len(plans) == 0 {
			return plans, err
		}
		safe := staffing.SafeShare(p.lanesOf(plans[0].Counts))
		if best == nil || safe >= share-exact {
			best = plans
		}
		if math.Abs(safe-share) <= exact {
			break
		}
		share = safe
	}
	return best, nil
}

// withCapacity returns a copy of p in which machines have only a share of their capacity.
func (p *Problem) withCapacity(share float64) *Problem {
	q := *p
	q.Types = slices.Clone(p.Types)
	for t := range q.Types {
		of := &q.Types[t]
		of.Capacity *= share
		of.Layouts = slices.Clone(of.Layouts)
		for l := range of.Layouts {
			parts := slices.Clone(of.Layouts[l].Partitions)
			for i := range parts {
				parts[i].Capacity *= share
			}
			of.Layouts[l].Partitions = parts
		}
	}
	return &q
}

func (p *Problem) lanesOf(counts []int) (lanes float64) {
	for t, n := range counts {
		lanes += float64(n) * p.Types[t].Capacity
	}
	return lanes
}

// recall gives m the ways of the last plan, and reports whether there are any that fit.
func (pl *Planner) recall(m *master) bool {
	if len(pl.counts) != len(m.problem.Types) {
		return false
	}
	for i := range pl.ways {
		w := &pl.ways[i]
		if w.family >= len(m.answerers) || len(w.variants) != len(m.answerers[w.family]) {
			continue
		}
		c := &column{family: w.family, answers: make([]int32, len(w.variants))}
		for b := range c.answers {
			c.answers[b] = int32(slices.IndexFunc(m.answerers[w.family][b], func(a answerer) bool {
				return a.variant == w.variants[b] && a.slot == w.slots[b]
			}))
		}
		m.columns = append(m.columns, m.describe(c))
	}
	return len(m.columns) > 0
}

func (pl *Planner) remember(s *countSearch) {
	pl.counts, pl.ways = slices.Clone(s.best[:len(s.m.problem.Types)]), nil
	for _, c := range s.m.columns {
		if !c.used {
			continue
		}
		w := way{c.family, slices.Clone(c.answers), slices.Clone(c.answers)}
		for b, i := range c.answers {
			if i != unanswered {
				a := &s.m.answerers[c.family][b][i]
				w.variants[b], w.slots[b] = a.variant, a.slot
			}
		}
		pl.ways = append(pl.ways, w)
	}
}

// tryFormer tries the counts of the last plan, as far as they are within the limits.
func (s *countSearch) tryFormer(former []int) {
	p := s.m.problem
	counts, x := slices.Clone(former), make([]float64, len(p.Types)+len(s.m.pools))
	for t := range counts {
		counts[t] = min(max(counts[t], p.Types[t].Min), p.Types[t].Max)
	}
	if !p.isTooDear(counts) {
		s.try(s.m.dealMachines(counts, x))
	}
}

// tryNeighbours tries all counts that are one machine from the best: one more, one less, or one of
// another type instead.
func (s *countSearch) tryNeighbours() {
	p := s.m.problem
	best, x := s.best[:len(p.Types)], make([]float64, len(p.Types)+len(s.m.pools))
	for less := -1; less < len(p.Types); less++ {
		for more := -1; more < len(p.Types); more++ {
			if less == more || less >= 0 && best[less] == p.Types[less].Min ||
				more >= 0 && best[more] == p.Types[more].Max {
				continue
			}
			counts := slices.Clone(best)
			if less >= 0 {
				counts[less]--
			}
			if more >= 0 {
				counts[more]++
			}
			if !p.isTooDear(counts) {
				s.try(s.m.dealMachines(counts, x))
			}
		}
	}
	s.bound = math.Max(s.bound, s.value)
}
