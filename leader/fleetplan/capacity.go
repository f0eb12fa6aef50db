package fleetplan

import "slices"

// A Capacity says which multiple of a demand given machines carry: all bins of all families alike,
// at the families' target accuracies. It remembers what makes the next answer quicker, and is not
// safe for concurrent use.
type Capacity struct {
	problem *Problem
	// master is that of machines that hold all variants; bounded says that there are others.
	master  *master
	bounded bool
	planner Planner
}

const (
	// maxMultiple is the largest multiple that a Capacity tells apart.
	maxMultiple = 1e4
	// capacityWork bounds the operations for machines whose memory or partitions bound what they
	// hold: some ten milliseconds.
	capacityWork = 10_000_000
	// manyColumns is how many columns of a family are kept: a solution uses few more than there are
	// types, and those of some neighbouring counts are still there.
	manyColumns = 50
)

// NewCapacity returns the Capacity of machines for the demand of p; how many machines of a type
// there may be, what they cost and what p aims at does not count.
func NewCapacity(p *Problem) (*Capacity, error) {
	q := p.ScaledBy(1)
	q.BudgetUSDPerHour, q.AccuracyUSDPerHour, q.MaxMultiple, q.strict = 0, 0, maxMultiple, true
	for i := range q.Types {
		t := &q.Types[i]
		t.PriceUSDPerHour, t.Min, t.Max = 0, 0, maxMachines
	}
	if err := q.Validate(); err != nil {
		return nil, err
	}
	c := &Capacity{problem: q}
	c.master = newMaster(c.problem, c.problem.sharedPools())
	c.bounded = len(c.master.pools) > len(p.Types) // some have layouts
	for t := range c.problem.Types {
		_, bounded := c.problem.usefulOn(t)
		c.bounded = c.bounded || bounded
	}
	return c, nil
}

// MaxMultiple returns the highest multiple that so many machines of each type carry, at most
// 10,000. What they hold is chosen for it; where memory does not have room for all, it is what a search
// finds, and may be too low by what it does not find.
func (c *Capacity) MaxMultiple(counts []int) float64 {
	m := c.master
	if len(m.columns) > manyColumns*(1+len(c.problem.Families)) {
		m.columns = slices.DeleteFunc(m.columns, func(col *column) bool { return !col.used })
		for _, col := range m.columns {
			col.used = false
		}
	}
	lo, hi := m.limits()
	for t, n := range counts {
		lo[t], hi[t] = n, n
	}
	r, ok := m.solve(lo, hi)
	if !ok || m.demand == 0 {
		return 0
	}
	if multiple := r.multiple; !c.bounded || multiple == 0 {
		return multiple
	}
	// The search looks at this multiple of the demand, which machines that hold all would carry.
	p := c.problem.ScaledBy(r.multiple)
	p.MaxMultiple = 1
	for t, n := range counts {
		p.Types[t].Min, p.Types[t].Max = n, n
	}
	plans, err := c.planner.plan(p, 1, capacityWork)
	if err != nil || len(plans) == 0 {
		return 0
	}
	return r.multiple * plans[0].Multiple
}
