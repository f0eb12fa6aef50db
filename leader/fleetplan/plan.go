package fleetplan

import (
	"math"
	"slices"

	"github.com/muster-serve/muster/leader/staffing"
)

// A Plan is a fleet, and how its machines answer the demand.
type Plan struct {
	// Counts are machines by type.
	Counts []int
	// Holdings say what the machines hold and answer, by type. Machines that would hold nothing of
	// use are not among them.
	Holdings []Holding
	// CostUSDPerHour is the price of all machines.
	CostUSDPerHour float64
	// Families say how each family fares, in the problem's order.
	Families []FamilyPlan
	// Served is the share of all queries that is served in time, in [0, 1]; 1 if there are none.
	// Queries of the share that may go unserved count as served.
	Served float64
	// Multiple is that of [Problem.MaxMultiple]; 0 without it.
	Multiple float64
	// Accuracy is the mean over what is answered; 0 if nothing is.
	Accuracy float64
	// No plan within the limits serves more than MaxServed. None that serves as much as this plan,
	// and misses the target accuracies by no more, has a higher accuracy than MaxAccuracy, if
	// accuracy counts before dollars, or costs less than MinCostUSDPerHour, if dollars do.
	MaxServed, MaxAccuracy, MinCostUSDPerHour float64
	// Proven says that no plan is better by more than a millionth.
	Proven bool
	// Duals are by type what one machine more would be worth, in $/hr, its price not counted.
	Duals []float64
	// Margin is what a little more would cost; nil if money buys no more, or the plan serves less or
	// less accurately than it is to.
	Margin *Margin
	// value is what the plan is worth, bound what no plan is worth more than, in $/hr.
	value, bound float64
}

// A Holding is machines of a type that hold the same variants.
type Holding struct {
	Type, Count int
	Layout      *Layout // nil: all lanes share what they hold
	// Variants are by family, and Rate in queries/s by family and those variants: what all of these
	// machines together are to answer.
	Variants [][]int
	Rate     [][]float64
}

// A FamilyPlan is how the queries of a family are answered.
type FamilyPlan struct {
	// Answered is the share that is answered, Accuracy its mean accuracy.
	Answered, Accuracy float64
	Rate               []float64 // queries/s by variant
	// BinRate is queries/s by variant and bin.
	BinRate [][]float64
}

// A Margin is what a little more costs: the duals, in dollars, of the relaxation in which machines
// can be divided.
type Margin struct {
	// QueriesUSDPerMillion is, by family, what a million more of its queries cost that are answered
	// as the others; 0 if it has none.
	QueriesUSDPerMillion []float64
	// AccuracyUSDPerHour is what a mean accuracy of 1 more of all answers would cost. Of so much only
	// a small part can be bought.
	AccuracyUSDPerHour float64
}

// priceMargin returns the margin at the present prices of lp; r is the solution.
func (m *master) priceMargin(r *relaxed) *Margin {
	price, served, dollar := m.lp.Price, 0.0, m.dollar()
	margin := &Margin{QueriesUSDPerMillion: make([]float64, len(m.need))}
	answered := make([]float64, len(m.need))
	for j, x := range r.flows {
		c := m.columns[j]
		answered[c.family] += x * c.served
		served += x * c.served
		for _, u := range c.uses {
			if row := m.slotRow[u.slot]; row >= 0 {
				margin.QueriesUSDPerMillion[c.family] += x * u.machines * price[row] / dollar
			}
		}
	}
	open := m.budgetRow >= 0 && price[m.budgetRow] > 0 || !math.IsInf(m.problem.AccuracyUSDPerHour, 1)
	for f, share := range answered {
		open = open && share >= m.need[f]*(1-1e-6)
		if share > 0 {
			const hour = 3600
			margin.QueriesUSDPerMillion[f] *= 1e6 / (share * m.demand * hour)
		}
	}
	for _, row := range append(slices.Clone(m.targetRow), m.overallRow) { // targets that are missed
		open = open && (row < 0 || price[row] < m.weights.shortage*(1-1e-6))
	}
	if !open || m.demand == 0 {
		return nil
	}
	worth := m.weights.accuracy
	if m.overallRow >= 0 {
		worth += price[m.overallRow]
	}
	margin.AccuracyUSDPerHour = worth * served / dollar
	return margin
}

// dollar is what a dollar an hour is worth at the present prices of lp.
func (m *master) dollar() float64 {
	worth := m.weights.cost
	if m.budgetRow >= 0 {
		worth += m.lp.Price[m.budgetRow] / m.scale
	}
	return worth
}

// CostOfChange returns what changed would cost more than p, in $/hr, for as much served as
// accurately and beside a plan of p (see [Planner.PlanSafely]): if machines can be divided, and at
// what a dollar is worth for p. It reports false if money buys no more of one of them.
func (p *Problem) CostOfChange(changed *Problem, plan *Plan) (usdPerHour float64, ok bool) {
	share := staffing.SafeShare(p.lanesOf(plan.Counts))
	now, then := p.withCapacity(share), changed.withCapacity(share)
	m := newMaster(now, now.sharedPools())
	before, ok := m.solve(m.limits())
	if !ok || m.priceMargin(before) == nil {
		return 0, false
	}
	n := newMaster(then, then.sharedPools())
	n.scale, n.weights = m.scale, m.weights
	after, ok := n.solve(n.limits())
	if !ok || n.priceMargin(after) == nil {
		return 0, false
	}
	return (before.value - after.value) / m.dollar(), true
}

// Solve plans a fleet. It returns nil if no fleet is within the budget.
func Solve(p *Problem) (*Plan, error) {
	plans, err := new(Planner).Plan(p, 1)
	if err != nil || len(plans) == 0 {
		return nil, err
	}
	return plans[0], nil
}

// makePlan makes the plan of counts that s has found.
func (s *countSearch) makePlan(c candidate) *Plan {
	m, p := s.m, s.m.problem
	plan := &Plan{
		Counts: c.counts[:len(p.Types):len(p.Types)], Duals: make([]float64, len(p.Types)),
		value: c.value * m.scale, bound: s.bound * m.scale,
		Proven: s.bound <= c.value+worthwhile, Margin: s.margin,
	}
	for t := range p.Types {
		plan.CostUSDPerHour += float64(c.counts[t]) * p.Types[t].PriceUSDPerHour
	}
	parts := make([][]part, len(m.slots)) // of the slot's time
	for i, feeds := range m.feeds {
		n := c.counts[len(p.Types)+i]
		if n == 0 {
			continue
		}
		for _, f := range feeds {
			parts[f.slot] = append(parts[f.slot], part{len(plan.Holdings), float64(n) * f.amount})
		}
		plan.Holdings = append(plan.Holdings, m.newHolding(i, n))
	}
	for _, of := range parts {
		sum := 0.0
		for _, part := range of {
			sum += part.share
		}
		for k := range of {
			of[k].share /= sum
		}
	}
	r, _ := m.solve(c.counts, c.counts) // which the search has solved before
	for i := range m.pools {
		t := m.pools[i].typ
		worth := 0.0
		for _, f := range m.feeds[i] {
			if row := m.slotRow[f.slot]; row >= 0 {
				worth += f.amount * m.lp.Price[row] * m.scale
			}
		}
		plan.Duals[t] = max(plan.Duals[t], worth)
	}
	plan.Families = make([]FamilyPlan, len(p.Families))
	for f := range plan.Families {
		of := &plan.Families[f]
		of.Rate = make([]float64, len(p.Families[f].Variants))
		for range of.Rate {
			of.BinRate = append(of.BinRate, make([]float64, len(p.Families[f].Bins)))
		}
	}
	served, points := make([]float64, len(p.Families)), 0.0
	for j, x := range r.flows {
		if x == 0 {
			continue
		}
		way := m.columns[j]
		family := &plan.Families[way.family]
		served[way.family] += x * way.served
		points += x * way.accuracy
		family.Accuracy += x * way.accuracy
		for b, i := range way.answers {
			if i == unanswered {
				continue
			}
			a := &m.answerers[way.family][b][i]
			rate := x * p.Families[way.family].Bins[b].Rate
			family.Rate[a.variant] += rate
			family.BinRate[a.variant][b] += rate
			for _, part := range parts[a.slot] { // none: a slot without machines, by rounding
				h := &plan.Holdings[part.holding]
				k := slices.Index(h.Variants[way.family], int(a.variant))
				h.Rate[way.family][k] += rate * part.share
			}
		}
	}
	m.summarize(plan, served, points, s.bound-c.value)
	if sol := s.placed; sol != nil && math.Abs(sol.Served-plan.Served) < rounding {
		plan.MaxAccuracy = max(plan.Accuracy, min(plan.MaxAccuracy, sol.Bound/100))
		if sol.Proven && plan.Accuracy >= sol.Accuracy/100-rounding {
			plan.Proven, plan.MaxServed = true, plan.Served
		}
	}
	return plan
}

// A part is the share of a slot's time that a holding's machines give.
type part struct {
	holding int
	share   float64
}

func (m *master) newHolding(pool, count int) Holding {
	h := Holding{
		Type: m.pools[pool].typ, Count: count, Layout: m.pools[pool].layout,
		Variants: m.variantsOf(pool),
	}
	for _, variants := range h.Variants {
		h.Rate = append(h.Rate, make([]float64, len(variants)))
	}
	return h
}

// summarize computes shares, accuracies and bounds: served are the shares of all demand that are
// answered, by family, points those times their accuracies, and gap how much more another plan may
// be worth, in parts of the scale.
func (m *master) summarize(plan *Plan, served []float64, points, gap float64) {
	if m.demand == 0 {
		plan.Served = 1
	}
	answered, counted, best, multiple := 0.0, 0.0, 0.0, m.problem.MaxMultiple
	for f := range plan.Families {
		of := &plan.Families[f]
		of.Answered = 1
		if m.need[f] > 0 {
			plan.Served += min(1, served[f]/m.need[f]) * m.share[f]
			of.Answered = min(1, served[f]/m.share[f]) // but for rounding
			multiple = min(multiple, served[f]/m.need[f])
		}
		if served[f] > 0 {
			of.Accuracy /= served[f]
		}
		answered += served[f]
		counted += min(served[f], m.need[f])
		for _, v := range m.problem.Families[f].Variants {
			best = max(best, v.Accuracy)
		}
	}
	plan.Multiple = multiple
	w, worth := &m.weights, m.problem.AccuracyUSDPerHour
	// What counts least may differ by its whole worth between plans that are else alike.
	plan.Served = min(1, plan.Served)
	plan.MaxServed = min(1, plan.Served+(max(0, gap)+m.leastWorth())/w.served)
	if worth == 0 {
		plan.MinCostUSDPerHour = max(0, plan.CostUSDPerHour-(max(0, gap)+slight)*m.scale)
	}
	if answered > 0 {
		plan.Accuracy = min(best, points/answered)
		if math.IsInf(worth, 1) {
			dearer := w.cost * (m.problem.maxPrice() - plan.CostUSDPerHour)
			plan.MaxAccuracy = min(best, (points+(max(0, gap)+dearer)/w.accuracy)/counted)
		}
	}
}

// leastWorth is by how much plans that serve the same may differ in what they are worth otherwise,
// in parts of the scale.
func (m *master) leastWorth() float64 {
	lowest, highest, shortage := math.Inf(1), 0.0, 0.0
	for _, f := range m.problem.Families {
		low := math.Inf(1)
		for _, v := range f.Variants {
			low, highest = min(low, v.Accuracy), max(highest, v.Accuracy)
		}
		lowest, shortage = min(lowest, low), max(shortage, f.TargetAccuracy-low)
	}
	shortage += max(0, m.problem.TargetAccuracy-lowest)
	return m.weights.accuracy*highest + m.weights.shortage*shortage +
		m.weights.cost*m.problem.maxPrice()
}

// maxPrice is what a fleet may cost at most, in $/hr.
func (p *Problem) maxPrice() float64 {
	all := 0.0
	for _, t := range p.Types {
		all += t.PriceUSDPerHour * float64(t.Max)
	}
	if p.BudgetUSDPerHour > 0 {
		all = min(all, p.BudgetUSDPerHour)
	}
	return all
}
