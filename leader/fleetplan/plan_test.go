package fleetplan

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
)

// tries is how many random problems a test makes: few in each change's tests, ten thousand with
// MUSTER_SLOW_TESTS.
func tries(few int) int {
	if os.Getenv("MUSTER_SLOW_TESTS") != "" {
		return 10_000
	}
	return few
}

// randomGoal gives p a goal, and maybe a budget and memory for some of the variants.
func randomGoal(r *rand.Rand, p *Problem) {
	p.AccuracyUSDPerHour = []float64{0, 5, math.Inf(1)}[r.IntN(3)]
	if r.IntN(2) == 0 {
		p.BudgetUSDPerHour = .1 + 3*r.Float64()
	}
	if r.IntN(2) == 0 {
		p.Families[0].TargetAccuracy = .95
	}
	if r.IntN(4) == 0 {
		p.TargetAccuracy = .97
	}
	if r.IntN(2) == 0 {
		for i := range p.Types {
			p.Types[i].Max = min(p.Types[i].Max, 2)
			p.Types[i].MemoryBytes = float64(1 + r.IntN(3))
		}
	}
}

// randomLayouts gives some types layouts of one or two partitions, on which variants are slower or
// quicker than on all lanes.
func randomLayouts(r *rand.Rand, p *Problem) {
	for t := range p.Types {
		for range r.IntN(3) {
			var l Layout
			for range 1 + r.IntN(2) {
				part := Partition{Capacity: .3 + r.Float64()}
				for range 1 + r.IntN(2) {
					s := Service{Family: r.IntN(len(p.Families))}
					family := &p.Families[s.Family]
					s.Variant = r.IntN(len(family.Variants))
					for _, b := range family.Bins {
						s.RunTime = append(s.RunTime, b.RunTime[s.Variant][t]*(.5+r.Float64()))
					}
					part.Services = append(part.Services, s)
				}
				l.Partitions = append(l.Partitions, part)
			}
			p.Types[t].Layouts = append(p.Types[t].Layouts, l)
		}
	}
}

// TestCounts: a plan is the best of all counts and all that machines may hold; what it says that no
// plan exceeds none does, and what is proven is so.
func TestCounts(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	tested, bounded, layouts, proven, multiples := 0, 0, 0, 0, 0
	for k := range tries(400) {
		p := randomProblem(r, 1+r.IntN(3), 1+r.IntN(2), 1+r.IntN(3))
		randomGoal(r, p)
		if r.IntN(4) == 0 {
			p.MaxMultiple = .5 + 2*r.Float64()
		}
		if r.IntN(3) == 0 {
			for i := range p.Types {
				p.Types[i].Max = min(p.Types[i].Max, 2)
			}
			randomLayouts(r, p)
		}
		shared := newMaster(p, p.sharedPools())
		s := newCountSearch(shared, maxWork)
		s.branch()
		if s.best == nil {
			if plan, err := Solve(p); plan != nil || err != nil {
				t.Errorf("%d: plan %+v, error %v, and no counts are within the limits", k, plan, err)
			}
			continue
		}
		pools, _ := p.makePools(s)
		m := newMaster(p, pools)
		m.scale, m.weights = shared.scale, shared.weights
		if len(m.pools) > 7 {
			continue // too many to try
		}
		plan, err := Solve(p)
		if err != nil {
			t.Fatal(err)
		}
		best := m.bestByTrying()
		tested++
		if isBounded(m.pools) {
			bounded++
		}
		if slices.ContainsFunc(m.pools, func(p pool) bool { return p.layout != nil }) {
			layouts++
		}
		for f := range p.Families {
			if p.MaxMultiple > 0 { // rates are of the multiple
				break
			}
			answered, rate := 0.0, 0.0
			for _, h := range plan.Holdings {
				for _, of := range h.Rate[f] {
					answered += of
				}
			}
			for _, b := range p.Families[f].Bins {
				rate += b.Rate
			}
			if want := plan.Families[f].Answered * rate; math.Abs(answered-want) > 1e-6*(1+want) {
				t.Errorf("%d: machines answer %v of family %d, the plan says %v", k, answered, f,
					want)
			}
		}
		if plan.Proven {
			proven++
		}
		tolerance := 2e-6 * m.scale
		if plan.value < best.value-tolerance || plan.bound < best.value-tolerance ||
			plan.Proven && plan.value < best.value-1.1e-6*m.scale {
			t.Errorf("%d: plan worth %.9g, bound %.9g, proven %v; the best is worth %.9g", k,
				plan.value, plan.bound, plan.Proven, best.value)
		}
		if p.MaxMultiple > 0 {
			multiples++
			if plan.Multiple < best.Multiple-1e-4 {
				t.Errorf("%d: %v times the demand, and the best is %v times", k, plan.Multiple,
					best.Multiple)
			}
			continue // what follows is of the share
		}
		if best.Served > plan.MaxServed+1e-9 {
			t.Errorf("%d: no plan serves more than %v, and one serves %v", k, plan.MaxServed,
				best.Served)
		}
		if plan.MinCostUSDPerHour > best.CostUSDPerHour+1e-9 && best.Served > plan.Served-1e-9 &&
			shortage(p, best) < shortage(p, plan)+1e-9 {
			t.Errorf("%d: no plan costs less than %v, and one costs %v", k, plan.MinCostUSDPerHour,
				best.CostUSDPerHour)
		}
		if math.IsInf(p.AccuracyUSDPerHour, 1) && best.Accuracy > plan.MaxAccuracy+1e-9 &&
			best.Served > plan.Served-1e-9 && shortage(p, best) < shortage(p, plan)+1e-9 {
			t.Errorf("%d: no plan is more accurate than %v, and one is %v", k, plan.MaxAccuracy,
				best.Accuracy)
		}
	}
	t.Logf("%d problems, %d with memory for some variants, %d with layouts, %d proven, %d of "+
		"multiples", tested, bounded, layouts, proven, multiples)
	if min(tested/3, bounded, layouts, multiples) < 50 || proven < tested*9/10 {
		t.Error("too few of a kind")
	}
}

// bestByTrying returns the best plan of all counts.
func (m *master) bestByTrying() *Plan {
	lo, hi := m.limits()
	s, counts := newCountSearch(m, maxWork), slices.Clone(lo)
	var try func(i int)
	try = func(i int) {
		if i == len(counts) {
			of := make([]int, len(m.problem.Types))
			for k := range m.pools {
				of[m.pools[k].typ] += counts[len(of)+k]
			}
			if r, ok := m.solve(counts, counts); ok && slices.Equal(of, counts[:len(of)]) &&
				r.value > s.value {
				s.best, s.value = slices.Clone(counts), r.value
			}
			return
		}
		for counts[i] = lo[i]; counts[i] <= hi[i]; counts[i]++ {
			try(i + 1)
		}
	}
	try(0)
	s.bound = s.value
	return s.makePlan(candidate{s.best, s.value})
}

// shortage is by how much a plan misses the target accuracies, weighted by demand.
func shortage(p *Problem, plan *Plan) float64 {
	sum, all, points, answered := 0.0, 0.0, 0.0, 0.0
	for f := range p.Families {
		rate := 0.0
		for _, b := range p.Families[f].Bins {
			rate += b.Rate
		}
		of := &plan.Families[f]
		all, answered = all+rate, answered+rate*of.Answered
		points += rate * of.Answered * of.Accuracy
		sum += rate * of.Answered * max(0, p.Families[f].TargetAccuracy-of.Accuracy)
	}
	if all == 0 {
		return 0
	}
	return (sum + max(0, p.TargetAccuracy*answered-points)) / all
}

// worse says how plan is worse than other by the objective of p, and "" if it is not by more than
// what the weights of the objective's parts confuse.
func worse(p *Problem, plan, other *Plan) string {
	const share = 1e-4
	if other == nil || plan == nil {
		if plan == nil && other != nil {
			return "is none"
		}
		return ""
	}
	switch a, b := shortage(p, plan), shortage(p, other); {
	case plan.Served < other.Served-share:
		return "serves less"
	case plan.Served > other.Served+share:
		return ""
	case a > b+share:
		return "misses targets by more"
	case a < b-share:
		return ""
	}
	points := func(plan *Plan) float64 {
		sum, all := 0.0, 0.0
		for f := range p.Families {
			for _, b := range p.Families[f].Bins {
				sum += b.Rate * plan.Families[f].Answered * plan.Families[f].Accuracy
				all += b.Rate
			}
		}
		if all == 0 {
			return 0
		}
		return sum / all
	}
	if math.IsInf(p.AccuracyUSDPerHour, 1) {
		if points(plan) < points(other)-1e-3 {
			return "is less accurate"
		}
		return ""
	}
	a := plan.CostUSDPerHour - p.AccuracyUSDPerHour*points(plan)
	b := other.CostUSDPerHour - p.AccuracyUSDPerHour*points(other)
	if a > b+1e-3*(1+other.CostUSDPerHour+p.AccuracyUSDPerHour) {
		return "costs more"
	}
	return ""
}

// copyOf is a copy of p of which types and families may be changed.
func copyOf(p *Problem) *Problem {
	c := *p
	c.Types, c.Families = slices.Clone(p.Types), slices.Clone(p.Families)
	return &c
}

// maxWorse is the share of problems whose plans may be worse than another that the same search
// finds: where memory bounds what machines hold, and proofs are beyond it. Of 1,500 problems 1 and
// 2 are.
const maxWorse = 1. / 300

func mustSolve(t *testing.T, p *Problem) *Plan {
	t.Helper()
	plan, err := Solve(p)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// TestMoreIsNoWorse: with more memory, budget or machines a plan is no worse.
func TestMoreIsNoWorse(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	var faults []string
	for k := range tries(60) {
		p := randomProblem(r, 1+r.IntN(3), 1+r.IntN(3), 1+r.IntN(3))
		randomGoal(r, p)
		plan := mustSolve(t, p)
		for what, change := range map[string]func(*Problem){
			"memory": func(q *Problem) {
				for i := range q.Types {
					if q.Types[i].MemoryBytes > 0 {
						q.Types[i].MemoryBytes++
					}
				}
			},
			"budget": func(q *Problem) { q.BudgetUSDPerHour *= 1.3 },
			"machines": func(q *Problem) {
				for i := range q.Types {
					q.Types[i].Max++
				}
			},
		} {
			more := copyOf(p)
			change(more)
			if why := worse(p, mustSolve(t, more), plan); why != "" {
				faults = append(faults, fmt.Sprintf("%d: with more %s the plan %s", k, what, why))
			}
		}
	}
	if float64(len(faults)) > maxWorse*float64(tries(60)) {
		t.Error(strings.Join(faults, "\n"))
	}
}

// TestJointIsNoWorse: a plan is no worse than what is best if machines are chosen alone, for the
// most accurate variants; if what they hold is, one variant each; or if only partitions are used,
// or none.
func TestJointIsNoWorse(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	var faults []string
	for k := range tries(60) {
		p := randomProblem(r, 1+r.IntN(3), 1+r.IntN(3), 1+r.IntN(3))
		randomGoal(r, p)
		if r.IntN(3) == 0 {
			randomLayouts(r, p)
		}
		plan := mustSolve(t, p)
		for what, change := range map[string]func(*Problem){
			"machines without partitions": func(q *Problem) {
				for i := range q.Types {
					q.Types[i].Layouts = nil
				}
			},
			"partitions": func(q *Problem) {
				for f := range q.Families {
					family := &q.Families[f]
					family.Bins = slices.Clone(family.Bins)
					for b := range family.Bins {
						none := make([][]float64, len(family.Variants))
						for v := range none {
							none[v] = make([]float64, len(q.Types))
						}
						family.Bins[b].RunTime = none
					}
				}
			},
			"renting for the most accurate variants": func(q *Problem) {
				for f := range q.Families {
					family := &q.Families[f]
					best := 0
					for v := range family.Variants {
						if family.Variants[v].Accuracy > family.Variants[best].Accuracy {
							best = v
						}
					}
					family.Bins = slices.Clone(family.Bins)
					for b := range family.Bins {
						times := make([][]float64, len(family.Variants))
						for v := range times {
							times[v] = make([]float64, len(q.Types))
						}
						times[best] = family.Bins[b].RunTime[best]
						family.Bins[b].RunTime = times
					}
				}
			},
			"machines of one variant": func(q *Problem) {
				for i := range q.Types {
					q.Types[i].MemoryBytes = 1
				}
			},
			"half of the machines": func(q *Problem) {
				for i := range q.Types {
					q.Types[i].Max = (q.Types[i].Max + 1) / 2
				}
			},
		} {
			alone := copyOf(p)
			change(alone)
			if why := worse(p, plan, mustSolve(t, alone)); why != "" {
				faults = append(faults, fmt.Sprintf("%d: beside %s the plan %s", k, what, why))
			}
		}
	}
	if float64(len(faults)) > maxWorse*float64(tries(60)) {
		t.Error(strings.Join(faults, "\n"))
	}
}

// TestPlanner: a planner that has planned before finds a plan that is about as good as that of one
// that has not, and within its bounds.
func TestPlanner(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	for k := range tries(30) {
		p := randomProblem(r, 1+r.IntN(4), 1+r.IntN(4), 1+r.IntN(3))
		for i := range p.Types {
			p.Types[i].Max *= 10
		}
		p.AccuracyUSDPerHour = []float64{0, 5, math.Inf(1)}[r.IntN(3)]
		var pl Planner
		for range 4 {
			plans, err := pl.Plan(p, 3)
			if err != nil {
				t.Fatal(err)
			}
			fresh := mustSolve(t, p)
			if why := worse(p, plans[0], fresh); why != "" {
				t.Errorf("%d: after another plan, a plan %s: %+v, fresh %+v", k, why, plans[0], fresh)
			}
			if plans[0].bound < fresh.value-1e-6*(1+math.Abs(fresh.value)) {
				t.Errorf("%d: no plan is worth more than %v, and one is worth %v", k,
					plans[0].bound, fresh.value)
			}
			for i, other := range plans[1:] {
				if other.value > plans[0].value || i > 0 && other.value > plans[i].value {
					t.Errorf("%d: plans are not in order", k)
				}
			}
			p = copyOf(p)
			for f := range p.Families {
				p.Families[f].Bins = slices.Clone(p.Families[f].Bins)
				for b := range p.Families[f].Bins {
					p.Families[f].Bins[b].Rate *= .8 + .5*r.Float64()
				}
			}
		}
	}
}

// TestMargin: a little more demand, or accuracy, costs what the margin says, if machines can be
// divided.
func TestMargin(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	compared := 0
	for k := range tries(200) {
		p := randomProblem(r, 1+r.IntN(3), 1+r.IntN(3), 1+r.IntN(3))
		for i := range p.Types {
			p.Types[i].Max = 1000
		}
		p.Unserved = 0
		if r.IntN(2) == 0 {
			p.TargetAccuracy = .9 + .1*r.Float64()
		}
		scale := 0.0
		cost := func(p *Problem) (float64, *Margin) {
			m := newMaster(p, p.sharedPools())
			relaxed, ok := m.solve(m.limits())
			if !ok {
				t.Fatal("no solution")
			}
			margin := m.priceMargin(relaxed)
			scale = m.scale
			sum := 0.0
			for i := range p.Types {
				sum += relaxed.counts[i] * p.Types[i].PriceUSDPerHour
			}
			return sum, margin
		}
		const little = 1e-4
		now, margin := cost(p)
		if margin == nil {
			continue // not all queries can be answered
		}
		compared++
		more, what := copyOf(p), "accuracy"
		price := func(m *Margin) float64 { return m.AccuracyUSDPerHour * little }
		if p.TargetAccuracy > 0 {
			more.TargetAccuracy += little
		} else {
			what = "queries"
			price = func(m *Margin) float64 {
				sum := 0.0
				for f := range p.Families {
					for _, b := range p.Families[f].Bins {
						sum += b.Rate * 3600 * m.QueriesUSDPerMillion[f] / 1e6 * little
					}
				}
				return sum
			}
			for f := range more.Families {
				more.Families[f].Bins = slices.Clone(more.Families[f].Bins)
				for b := range more.Families[f].Bins {
					more.Families[f].Bins[b].Rate *= 1 + little
				}
			}
		}
		then, after := cost(more)
		if after == nil {
			continue // there is no more of it
		}
		// Cost is convex, so it rises by what the margin says before, at least, and by what it says
		// after, at most. Where accuracy is free of charge it is worth up to slight of the scale.
		tolerance := .01*price(margin) + 2*slight*little*scale
		if got := then - now; got < price(margin)-tolerance || got > price(after)+tolerance {
			t.Errorf("%d: a little more %s costs %v, the margin says %v to %v", k, what, got,
				price(margin), price(after))
		}
	}
	if compared < 100 {
		t.Errorf("%d problems compared", compared)
	}
}

// TestPackSets: where very many sets fit a machine's memory, those that are looked at fit it, hold
// every variant, and are maximal.
func TestPackSets(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for range 50 {
		p := &Problem{Types: make([]Type, 1)}
		var useful []ref
		work := map[ref]float64{}
		for f := range 5 + r.IntN(30) {
			p.Families = append(p.Families, Family{Variants: []Variant{
				{SizeBytes: .2 + r.Float64()}, {SizeBytes: .2 + r.Float64()},
			}})
			useful = append(useful, ref{f, 0}, ref{f, 1})
			work[ref{f, r.IntN(2)}] = 3 * r.Float64()
		}
		memory := 1.2 + 3*r.Float64()
		held := map[ref]bool{}
		for _, set := range p.newPacker(useful, 0, memory, work).pack() {
			size := 0.0
			for _, v := range set {
				held[v] = true
				size += p.sizeOf(v)
			}
			for _, v := range useful {
				if size > memory || !slices.Contains(set, v) && size+p.sizeOf(v) <= memory {
					t.Fatalf("%v takes %v of %v, and %v would fit, too", set, size, memory, v)
				}
			}
		}
		if len(held) != len(useful) {
			t.Fatalf("%d of %d variants are in a set", len(held), len(useful))
		}
	}
}

// large is a problem of 12 types and 50 families of 4 variants each, for some ten thousand
// machines.
func large() *Problem {
	r := rand.New(rand.NewPCG(3, 3))
	p := randomProblem(r, 12, 50, 4)
	for i := range p.Types {
		p.Types[i].Max = 100_000
	}
	machines := 0.
	for _, f := range p.Families {
		for _, bin := range f.Bins {
			machines += bin.Rate * .004
		}
	}
	for f := range p.Families {
		for b := range p.Families[f].Bins {
			p.Families[f].Bins[b].Rate *= 100_000 / machines
		}
	}
	return p
}

func report(b *testing.B, plan *Plan) {
	b.ReportMetric(float64(sum(plan.Counts)), "machines")
	b.ReportMetric((plan.bound-plan.value)/plan.CostUSDPerHour*100, "gap-%")
	b.ReportMetric(plan.Served, "served")
}

// BenchmarkLarge plans some ten thousand machines.
func BenchmarkLarge(b *testing.B) {
	p := large()
	for b.Loop() {
		plan, err := Solve(p)
		if err != nil {
			b.Fatal(err)
		}
		report(b, plan)
	}
}

// BenchmarkAgain plans them again after the rates have changed by up to a tenth.
func BenchmarkAgain(b *testing.B) {
	r := rand.New(rand.NewPCG(4, 4))
	p := large()
	var pl Planner
	if _, err := pl.Plan(p, 1); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		for f := range p.Families {
			for k := range p.Families[f].Bins {
				p.Families[f].Bins[k].Rate *= .95 + .1*r.Float64()
			}
		}
		plans, err := pl.Plan(p, 1)
		if err != nil {
			b.Fatal(err)
		}
		report(b, plans[0])
	}
}

// BenchmarkMemory plans some hundred machines that have memory for some of the variants.
func BenchmarkMemory(b *testing.B) {
	r := rand.New(rand.NewPCG(8, 8))
	p := randomProblem(r, 4, 12, 3)
	for i := range p.Types {
		p.Types[i].Max, p.Types[i].MemoryBytes = 1000, 3
	}
	for f := range p.Families {
		for k := range p.Families[f].Bins {
			p.Families[f].Bins[k].Rate *= 40
		}
	}
	for b.Loop() {
		plan, err := Solve(p)
		if err != nil {
			b.Fatal(err)
		}
		report(b, plan)
	}
}

// TestTargetBeforeDollars: a target accuracy is kept though that takes a whole machine more, which
// costs many times what is used of it.
func TestTargetBeforeDollars(t *testing.T) {
	p := &Problem{
		Types: []Type{
			{Name: "small", PriceUSDPerHour: .1, Capacity: 1, Max: 1},
			{Name: "large", PriceUSDPerHour: 5, Capacity: 1, Max: 1},
		},
		Families: []Family{{
			Name: "f", TargetAccuracy: .99,
			Variants: []Variant{{Model: "fast", Accuracy: .98}, {Model: "best", Accuracy: 1}},
			Bins:     []Bin{{BatchSize: 1, Rate: 1, RunTime: [][]float64{{.001, .001}, {0, .002}}}},
		}},
	}
	if plan := mustSolve(t, p); plan.Families[0].Accuracy < .99-1e-9 || plan.Counts[1] != 1 {
		t.Errorf("accuracy %v with %v machines", plan.Families[0].Accuracy, plan.Counts)
	}
}
