package fleetplan

import (
	"math"
	"slices"

	"github.com/muster-serve/muster/leader/internal/simplex"
)

// A pool is machines that are alike: of one type, and of those that hold the same variants, if
// their memory bounds them.
type pool struct {
	typ int
	// holds is by family and variant; nil: the machines hold all of them.
	holds  [][]bool
	layout *Layout // nil: all lanes share what they hold
	only   bool    // the only pool of the type
}

// A slot is machines' time that a set of services share: that of a pool, or of the partitions of
// layouts that hold one service, or of a partition of several.
type slot struct {
	typ      int
	pool     int       // -1: of partitions
	services []Service // of partitions
}

// A feed is how many seconds in a second a machine of a pool adds to a slot; of a pool without a
// layout it counts in machines.
type feed struct {
	slot   int32
	amount float64
}

// fits reports whether a machine of type t has memory for the variant.
func (p *Problem) fits(family, variant, t int) bool {
	memory := p.Types[t].MemoryBytes
	return memory == 0 || p.Families[family].Variants[variant].SizeBytes <= memory*(1+rounding)
}

func (p *pool) hasVariant(family, variant int) bool {
	return p.holds == nil || p.holds[family][variant]
}

// An answerer is a variant on a pool: what may answer a bin.
type answerer struct {
	variant, slot int32
	// machines is what the bin's rate takes of the slot.
	machines float64
	accuracy float64
}

// A column is one way to answer a family: by bin, the index of an answerer, or unanswered.
type column struct {
	family  int
	answers []int32
	// What follows from answers: the machines that they take, the share of all demand that is served,
	// and that share times the mean accuracy.
	uses             []use
	served, accuracy float64
	used             bool // in some solution
}

// A use is time of a slot.
type use struct {
	slot     int32
	machines float64
}

const unanswered = -1

// weights are the objective, in parts of the scale.
type weights struct {
	served   float64 // of all demand
	shortage float64 // of accuracy below its target, of all demand
	accuracy float64 // of all demand
	cost     float64 // of a dollar an hour
}

// Served queries outweigh the target accuracies, and those dollars: each by what the cheapest fleet
// that serves everything costs, so many times. Chosen: the costliest queries cost some hundred
// times what the mean one does, and duals of 1e5 leave ten digits.
const (
	servedWorth   = 1e5
	shortageWorth = 1e3
	// slight is what accuracy is worth where dollars count first, or the other way round: it
	// decides among fleets of like worth only.
	slight = 1e-4
)

// A master is the linear relaxation of a problem on pools.
type master struct {
	problem *Problem
	pools   []pool
	slots   []slot
	feeds   [][]feed // by pool
	demand  float64  // queries/s
	// By family, in parts of the demand: how many queries there are, and how many of them have to be
	// served.
	share, need []float64
	weights     weights
	scale       float64 // $/hr; what the objective is counted in
	// answerers are by family and bin.
	answerers [][][]answerer
	columns   []*column
	lp        simplex.Program

	// Rows of lp; -1 where there is none: of slots without machines. linkRow is by type with several
	// pools: these have no more machines than the type.
	slotRow, linkRow, convexRow, servedRow, targetRow []int
	overallRow, budgetRow                             int
	target                                            []float64 // accuracy, by family
	multipleColumn, firstColumn                       int       // in lp, of the multiple, of columns
	work                                              int
}

func newMaster(p *Problem, pools []pool) *master {
	m := &master{problem: p, pools: pools}
	for f := range p.Families {
		rate := 0.0
		for _, b := range p.Families[f].Bins {
			rate += b.Rate
		}
		need, target := rate*(1-p.Unserved), p.Families[f].TargetAccuracy
		if p.MaxMultiple > 0 {
			answerable, accuracy := p.answerable(f)
			need, target = min(need, answerable), min(target, accuracy)
		}
		m.share, m.need = append(m.share, rate), append(m.need, need)
		m.target = append(m.target, target)
		m.demand += rate
	}
	if m.demand > 0 {
		for f := range m.need {
			m.share[f] /= m.demand
			m.need[f] /= m.demand
		}
	}
	m.setSlots()
	m.setAnswerers()
	m.setWeights()
	return m
}

// answerable is the rate of a family's queries that some type answers, and the highest mean
// accuracy of their answers.
func (p *Problem) answerable(family int) (rate, accuracy float64) {
	of := &p.Families[family]
	for b := range of.Bins {
		best := -1.0
		for v := range of.Variants {
			for t, seconds := range of.Bins[b].RunTime[v] {
				if seconds > 0 && p.fits(family, v, t) {
					best = max(best, of.Variants[v].Accuracy)
				}
			}
		}
		for _, t := range p.Types {
			for _, l := range t.Layouts {
				for _, part := range l.Partitions {
					for _, s := range part.Services {
						if s.Family == family && s.RunTime[b] > 0 {
							best = max(best, of.Variants[s.Variant].Accuracy)
						}
					}
				}
			}
		}
		if best >= 0 {
			rate += of.Bins[b].Rate
			accuracy += of.Bins[b].Rate * best
		}
	}
	if rate > 0 {
		accuracy /= rate
	}
	return rate, accuracy
}

// maxWays is how many columns of one family may be used in sum.
func (m *master) maxWays() float64 {
	if m.problem.MaxMultiple > 0 {
		return m.problem.MaxMultiple
	}
	return 1
}

// setSlots makes the slots and what feeds them.
func (m *master) setSlots() {
	for i := range m.pools {
		p := &m.pools[i]
		if p.layout == nil {
			m.feeds = append(m.feeds, []feed{{int32(len(m.slots)), 1}})
			m.slots = append(m.slots, slot{typ: p.typ, pool: i})
			continue
		}
		var feeds []feed
		for _, part := range p.layout.Partitions {
			k, amount := m.slotOf(p.typ, &part)
			if at := slices.IndexFunc(feeds, func(f feed) bool { return f.slot == k }); at >= 0 {
				feeds[at].amount += amount
			} else {
				feeds = append(feeds, feed{k, amount})
			}
		}
		m.feeds = append(m.feeds, feeds)
	}
}

// slotOf returns the slot of a partition, and how much a machine adds to it. Partitions that hold
// the same service alone have one slot if their run times differ by a factor.
func (m *master) slotOf(typ int, part *Partition) (k int32, amount float64) {
	if len(part.Services) == 1 {
		one := &part.Services[0]
		for k := range m.slots {
			s := &m.slots[k]
			if s.typ != typ || s.pool >= 0 || len(s.services) != 1 ||
				s.services[0].Family != one.Family || s.services[0].Variant != one.Variant {
				continue
			}
			if factor, ok := ratio(one.RunTime, s.services[0].RunTime); ok {
				return int32(k), part.Capacity / factor
			}
		}
	}
	m.slots = append(m.slots, slot{typ: typ, pool: -1, services: part.Services})
	return int32(len(m.slots) - 1), part.Capacity
}

// ratio returns the factor between two lists of run times, if there is one.
func ratio(a, b []float64) (factor float64, ok bool) {
	for i := range a {
		switch {
		case a[i] == 0 && b[i] == 0:
		case a[i] == 0 || b[i] == 0:
			return 0, false
		case factor == 0:
			factor = a[i] / b[i]
		case math.Abs(a[i]-factor*b[i]) > rounding*a[i]:
			return 0, false
		}
	}
	return factor, factor > 0
}

// secondsOf returns how much of the slot a query takes; 0 if its variant does not answer it there.
func (m *master) secondsOf(s *slot, family, variant, bin int) float64 {
	t := &m.problem.Types[s.typ]
	if t.Max == 0 {
		return 0
	}
	if s.pool >= 0 {
		if !m.pools[s.pool].hasVariant(family, variant) || !m.problem.fits(family, variant, s.typ) {
			return 0
		}
		return m.problem.Families[family].Bins[bin].RunTime[variant][s.typ] / t.Capacity
	}
	for i := range s.services {
		if of := &s.services[i]; of.Family == family && of.Variant == variant {
			return of.RunTime[bin]
		}
	}
	return 0
}

// setAnswerers lists what may answer each bin, without those than which the same slot has one as
// fast and as accurate.
func (m *master) setAnswerers() {
	m.answerers = make([][][]answerer, len(m.problem.Families))
	for f := range m.problem.Families {
		family := &m.problem.Families[f]
		m.answerers[f] = make([][]answerer, len(family.Bins))
		for b := range family.Bins {
			bin := &family.Bins[b]
			if bin.Rate == 0 {
				continue
			}
			var all []answerer
			for i := range m.slots {
				first := len(all)
				for v := range family.Variants {
					seconds := m.secondsOf(&m.slots[i], f, v, b)
					if seconds == 0 {
						continue
					}
					a := answerer{
						int32(v), int32(i), bin.Rate * seconds, family.Variants[v].Accuracy,
					}
					if slices.ContainsFunc(all[first:], func(o answerer) bool {
						return o.machines <= a.machines && o.accuracy >= a.accuracy
					}) {
						continue
					}
					kept := slices.DeleteFunc(all[first:], func(o answerer) bool {
						return a.machines <= o.machines && a.accuracy >= o.accuracy
					})
					all = append(all[:first+len(kept)], a)
				}
			}
			m.answerers[f][b] = all
		}
	}
}

// setWeights sets the objective. Its unit is what the cheapest fleet would cost that serves
// everything, if machines could be divided, and one machine of the dearest type more: of few
// machines, the last whole one may cost many times what is used of it.
func (m *master) setWeights() {
	best := 0.0
	prices := make([]float64, len(m.slots)) // of what a whole machine adds, at least
	for k := range prices {
		prices[k] = math.Inf(1)
	}
	for i, feeds := range m.feeds {
		for _, f := range feeds {
			prices[f.slot] = min(prices[f.slot],
				m.problem.Types[m.pools[i].typ].PriceUSDPerHour/f.amount/float64(len(feeds)))
		}
	}
	for f := range m.answerers {
		for _, all := range m.answerers[f] {
			cheapest := math.Inf(1)
			for _, a := range all {
				cheapest = min(cheapest, a.machines*prices[a.slot])
				best = max(best, a.accuracy)
			}
			if len(all) > 0 {
				m.scale += cheapest
			}
		}
	}
	dearest := 0.0
	for _, t := range m.problem.Types {
		if t.Max > t.Min {
			dearest = max(dearest, t.PriceUSDPerHour)
		}
	}
	if m.scale += dearest; m.scale == 0 {
		m.scale = 1
	}
	if best == 0 {
		best = 1
	}
	m.weights = weights{
		served: servedWorth, shortage: shortageWorth / best,
		accuracy: m.problem.AccuracyUSDPerHour / m.scale, cost: 1 / m.scale,
	}
	switch worth := m.problem.AccuracyUSDPerHour; {
	case worth == 0:
		m.weights.accuracy = slight / best
	case math.IsInf(worth, 1):
		// The most accurate answers, and a fleet that is limited by its budget alone, may cost many
		// times the scale.
		dollars := max(m.scale, m.problem.BudgetUSDPerHour)
		if m.problem.BudgetUSDPerHour == 0 {
			dollars = m.accuratePrice(prices)
		}
		m.weights.accuracy, m.weights.cost = 1/best, slight/dollars
	}
}

// accuratePrice is about what a fleet costs whose answers are as accurate as they can be, at the
// prices of slots: if machines could be divided, and a machine of each type more.
func (m *master) accuratePrice(prices []float64) float64 {
	sum := m.scale
	for f := range m.answerers {
		for _, all := range m.answerers[f] {
			best, cheapest := 0.0, 0.0
			for _, a := range all {
				cost := a.machines * prices[a.slot]
				if a.accuracy > best || a.accuracy == best && cost < cheapest {
					best, cheapest = a.accuracy, cost
				}
			}
			sum += cheapest
		}
	}
	for _, t := range m.problem.Types {
		if t.Max > 0 {
			sum += t.PriceUSDPerHour
		}
	}
	return sum
}

// describe computes what follows from a column's answers.
func (m *master) describe(c *column) *column {
	c.uses, c.served, c.accuracy = nil, 0, 0
	for b, i := range c.answers {
		if i == unanswered {
			continue
		}
		a := &m.answerers[c.family][b][i]
		share := m.problem.Families[c.family].Bins[b].Rate / m.demand
		if k := slices.IndexFunc(c.uses, func(u use) bool { return u.slot == a.slot }); k >= 0 {
			c.uses[k].machines += a.machines
		} else {
			c.uses = append(c.uses, use{a.slot, a.machines})
		}
		c.served += share
		c.accuracy += share * a.accuracy
	}
	return c
}

// Counts are whole numbers of machines: by type, and after those by pool.

// limits returns the bounds of the counts.
func (m *master) limits() (lo, hi []int) {
	for _, t := range m.problem.Types {
		lo, hi = append(lo, t.Min), append(hi, t.Max)
	}
	for i := range m.pools {
		p := &m.pools[i]
		lo, hi = append(lo, 0), append(hi, m.problem.Types[p.typ].Max)
		if p.only {
			lo[len(lo)-1] = m.problem.Types[p.typ].Min
		}
	}
	return lo, hi
}

// tighten raises the lower bounds of types to what their pools have at least, and lowers the upper
// bounds of pools to what their types leave. It reports false if nothing is between the bounds.
func (m *master) tighten(lo, hi []int) bool {
	types := len(m.problem.Types)
	least := make([]int, types)
	for i := range m.pools {
		least[m.pools[i].typ] += lo[types+i]
	}
	for t := range least {
		if lo[t] = max(lo[t], least[t]); lo[t] > hi[t] {
			return false
		}
	}
	for i := range m.pools {
		k, t := types+i, m.pools[i].typ
		if m.pools[i].only {
			lo[k], hi[k] = max(lo[k], lo[t]), min(hi[k], hi[t])
			lo[t], hi[t] = lo[k], hi[k]
		}
		if hi[k] = min(hi[k], hi[t]-least[t]+lo[k]); hi[k] < lo[k] {
			return false
		}
	}
	return true
}

// build writes the master program for counts between lo and hi, which are tight. It reports false
// if the budget does not pay for lo.
func (m *master) build(lo, hi []int) bool {
	l := &m.lp
	l.Reset()
	m.slotRow, m.linkRow, m.convexRow, m.servedRow, m.targetRow = m.slotRow[:0], m.linkRow[:0],
		m.convexRow[:0], m.servedRow[:0], m.targetRow[:0]
	types := len(m.problem.Types)
	least := 0.0
	spare := slices.Clone(lo[:types]) // by type: machines of no pool
	there, open := make([]float64, len(m.slots)), make([]bool, len(m.slots))
	for i, feeds := range m.feeds {
		spare[m.pools[i].typ] -= lo[types+i]
		for _, f := range feeds {
			there[f.slot] += float64(lo[types+i]) * f.amount
			open[f.slot] = open[f.slot] || hi[types+i] > 0
		}
	}
	for k := range m.slots {
		row := -1
		if open[k] {
			row = l.AddRow(there[k])
		}
		m.slotRow = append(m.slotRow, row)
	}
	for t := range m.problem.Types {
		row := -1
		if slices.ContainsFunc(m.pools, func(p pool) bool { return p.typ == t && !p.only }) {
			row = l.AddRow(float64(spare[t]))
		}
		m.linkRow = append(m.linkRow, row)
		least += float64(lo[t]) * m.problem.Types[t].PriceUSDPerHour
	}
	ways := 1.0 // beside the multiple
	if m.problem.MaxMultiple > 0 {
		ways = 0
	}
	for f := range m.problem.Families {
		m.convexRow = append(m.convexRow, l.AddRow(ways))
		m.servedRow = append(m.servedRow, l.AddRow(0))
		row := -1
		if m.target[f] > 0 {
			row = l.AddRow(0)
		}
		m.targetRow = append(m.targetRow, row)
	}
	m.overallRow, m.budgetRow = -1, -1
	if m.problem.TargetAccuracy > 0 {
		m.overallRow = l.AddRow(0)
	}
	if budget := m.problem.BudgetUSDPerHour; budget > 0 {
		if least > budget*(1+rounding) {
			return false
		}
		m.budgetRow = l.AddRow(max(0, budget-least) / m.scale)
	}
	for t := range m.problem.Types { // machines beyond lo
		price := m.problem.Types[t].PriceUSDPerHour
		if row := m.linkRow[t]; row >= 0 {
			l.AddCoefficient(row, -1)
		}
		for i := range m.pools {
			if m.pools[i].typ == t && m.pools[i].only {
				m.putFeeds(i)
			}
		}
		if m.budgetRow >= 0 {
			l.AddCoefficient(m.budgetRow, price/m.scale)
		}
		l.AddColumn(-m.weights.cost*price, float64(hi[t]-lo[t]))
	}
	for i := range m.pools {
		if !m.pools[i].only && hi[types+i] > 0 {
			m.putFeeds(i)
			l.AddCoefficient(m.linkRow[m.pools[i].typ], 1)
		}
		l.AddColumn(0, float64(hi[types+i]-lo[types+i]))
	}
	m.putServed()
	if !m.problem.strict {
		m.putShortage()
	}
	m.firstColumn = len(l.Cost)
	for _, c := range m.columns {
		m.put(c)
	}
	return true
}

// putServed puts what counts as served: the queries of each family, or the multiple.
func (m *master) putServed() {
	if most := m.problem.MaxMultiple; most > 0 {
		for f, need := range m.need {
			m.lp.AddCoefficient(m.convexRow[f], -1)
			m.lp.AddCoefficient(m.servedRow[f], need)
		}
		m.multipleColumn = m.lp.AddColumn(m.weights.served, most)
		return
	}
	m.multipleColumn = -1
	for f, need := range m.need {
		m.lp.AddCoefficient(m.servedRow[f], 1)
		m.lp.AddColumn(m.weights.served, need)
	}
}

// putShortage puts by how much the target accuracies are missed.
func (m *master) putShortage() {
	for f := range m.need {
		if row := m.targetRow[f]; row >= 0 {
			m.lp.AddCoefficient(row, -1)
			m.lp.AddColumn(-m.weights.shortage, m.target[f]*m.maxWays())
		}
	}
	if m.overallRow >= 0 {
		m.lp.AddCoefficient(m.overallRow, -1)
		m.lp.AddColumn(-m.weights.shortage, m.problem.TargetAccuracy*m.maxWays())
	}
}

// putFeeds puts what a machine of the pool adds.
func (m *master) putFeeds(pool int) {
	for _, f := range m.feeds[pool] {
		if row := m.slotRow[f.slot]; row >= 0 {
			m.lp.AddCoefficient(row, -f.amount)
		}
	}
}

// rounding is a relative error of sums.
const rounding = 1e-9

func (m *master) put(c *column) {
	l := &m.lp
	for _, u := range c.uses {
		if m.slotRow[u.slot] < 0 {
			l.AddColumn(0, 0) // there are no machines of the slot
			return
		}
	}
	for _, u := range c.uses {
		l.AddCoefficient(m.slotRow[u.slot], u.machines)
	}
	l.AddCoefficient(m.convexRow[c.family], 1)
	l.AddCoefficient(m.servedRow[c.family], -c.served)
	if row := m.targetRow[c.family]; row >= 0 {
		l.AddCoefficient(row, m.target[c.family]*c.served-c.accuracy)
	}
	if m.overallRow >= 0 {
		l.AddCoefficient(m.overallRow, m.problem.TargetAccuracy*c.served-c.accuracy)
	}
	l.AddColumn(m.weights.accuracy*c.accuracy, m.maxWays())
}

// A relaxed is a solution of the relaxation.
type relaxed struct {
	counts []float64 // by type, and after those by pool
	value  float64   // of the objective
	bound  float64   // no solution is worth more
	flows  []float64 // by column
	// multiple is what is served in all; 0 without [Problem.MaxMultiple].
	multiple float64
}

// maxRounds bounds the rounds of column generation. Chosen: 500 random problems need at most 60.
const maxRounds = 400

// solve solves the relaxation with counts between lo and hi. It reports false if there is no
// solution.
func (m *master) solve(lo, hi []int) (*relaxed, bool) {
	lo, hi = slices.Clone(lo), slices.Clone(hi)
	if !m.tighten(lo, hi) || !m.build(lo, hi) {
		return nil, false
	}
	r := &relaxed{bound: math.Inf(1)}
	if m.problem.MaxMultiple > 0 && len(m.columns) == 0 {
		m.addCheapest()
	}
	for round := range maxRounds {
		if round == 0 {
			m.lp.Solve()
		} else {
			m.lp.Resume()
		}
		restricted := m.lp.Bound()
		gain, added := m.generateColumns()
		r.bound = min(r.bound, restricted+gain*m.maxWays())
		if !added {
			break
		}
	}
	x := m.lp.Solution(nil)
	for j, v := range x {
		r.value += v * m.lp.Cost[j]
	}
	for k, n := range lo {
		r.counts = append(r.counts, float64(n)+x[k])
	}
	types := len(m.problem.Types)
	for t := range types {
		cost := m.weights.cost * float64(lo[t]) * m.problem.Types[t].PriceUSDPerHour
		r.value -= cost
		r.bound -= cost
	}
	for i := range m.pools {
		if t := m.pools[i].typ; m.pools[i].only {
			r.counts[types+i] = r.counts[t]
		}
	}
	r.flows = x[m.firstColumn:]
	if m.multipleColumn >= 0 {
		r.multiple = x[m.multipleColumn]
	}
	for j, x := range r.flows {
		m.columns[j].used = m.columns[j].used || x > 0
	}
	m.work += m.lp.Work
	m.lp.Work = 0
	return r, true
}

// generateColumns adds the column of each family that gains most at the present prices, if any
// does, and returns the sum of these gains.
func (m *master) generateColumns() (gain float64, added bool) {
	price := m.lp.Price
	for f := range m.problem.Families {
		served, accuracy := price[m.servedRow[f]], m.weights.accuracy
		if row := m.targetRow[f]; row >= 0 {
			served -= price[row] * m.target[f]
			accuracy += price[row]
		}
		if m.overallRow >= 0 {
			served -= price[m.overallRow] * m.problem.TargetAccuracy
			accuracy += price[m.overallRow]
		}
		c, total := m.bestColumn(f, served, accuracy, func(slot int32) float64 {
			return price[m.slotRow[slot]]
		})
		if total -= price[m.convexRow[f]]; total > enough {
			gain += total
			m.addColumn(c)
			added = true
		}
	}
	return gain, added
}

// addCheapest adds, for each family, the column that takes the fewest machines: where a multiple of
// all counts, no family's column gains anything before all families have one.
func (m *master) addCheapest() {
	const served = 1e9 // of a machine's worth
	for f := range m.problem.Families {
		c, _ := m.bestColumn(f, served, 0, func(int32) float64 { return 1 })
		m.addColumn(c)
	}
}

func (m *master) addColumn(c *column) {
	m.columns = append(m.columns, m.describe(c))
	m.put(c)
}

// bestColumn is the column of a family that is worth most, where so much of all demand is worth
// served and accuracy, and a machine of a slot costs price.
func (m *master) bestColumn(family int, served, accuracy float64,
	price func(slot int32) float64) (c *column, total float64) {
	c = &column{family: family, answers: make([]int32, len(m.answerers[family]))}
	for b, all := range m.answerers[family] {
		share := m.problem.Families[family].Bins[b].Rate / m.demand
		best, most := int32(unanswered), 0.0
		for i := range all {
			a := &all[i]
			if m.slotRow[a.slot] < 0 {
				continue
			}
			worth := share*(served+accuracy*a.accuracy) - a.machines*price(a.slot)
			if worth > most {
				best, most = int32(i), worth
			}
		}
		c.answers[b] = best
		total += most
		m.work += len(all)
	}
	return c, total
}

// enough is the gain of a column, in parts of the scale, from which it matters. The worth of what
// is served has ten digits.
const enough = 1e-7
