package place

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
)

// A step is about a thousand operations, some microseconds of a core.
const operations = 1000

// DefaultSteps is enough for placements within a hundredth of a point of the best, in the cases
// that Muster is tested with, and takes below a second.
const DefaultSteps = 400_000

// Solve finds counts for p, of which it takes at most steps steps, or somewhat more: what it does
// before it searches it always does. It refuses a program that is not valid.
func Solve(p *Program, steps int) (*Solution, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	m := newScaledProgram(p)
	s := newSearch(m)
	f := &finder{
		search: s, limit: min(steps, 1<<50) * operations,
		rng: rand.New(rand.NewPCG(p.Seed, 0x9E3779B97F4A7C15)),
	}
	f.findCounts()
	return s.makeSolution(p, f), nil
}

// A finder is the order in which a search looks for counts.
type finder struct {
	*search
	limit      int
	rng        *rand.Rand
	bound      float64 // no counts are worth more
	relaxation float64 // the relaxation's value, to which loss refers
	active     []int   // the choices that are looked at
	// all says that no choice that could be part of a better solution is left out of active.
	all    bool
	proven bool
	prices []float64 // of a class's flow and a type's agent, in the relaxation
	class  []float64
	cuts   []cut     // of the relaxation
	lost   []float64 // by choice: loss
	rank   []int     // by choice: how many of its class and type lose less
}

func (f *finder) findCounts() {
	all := make([]int, len(f.m.choices))
	for i := range all {
		all[i] = i
	}
	f.bound = math.Inf(1)
	if len(all) == 0 {
		f.set(f.n)
		f.bound, f.proven = 0, true
		return
	}
	f.set(f.n)
	f.active, f.all = all, true
	root := f.newRegion(all)
	lo, hi := make([]int, len(all)), make([]int, len(all))
	for i := range hi {
		hi[i] = f.m.choices[i].most
	}
	_, f.bound, _ = root.relaxWithCuts(lo, hi)
	f.relaxation = f.bound
	f.prices = make([]float64, len(f.m.types))
	f.class = make([]float64, len(f.m.weight))
	for t, row := range root.typeRow {
		f.prices[t] = f.lp.Price[row]
	}
	for _, g := range root.groups {
		for _, k := range f.m.groups[g].classes {
			f.class[k] = f.lp.Price[root.classRow[k]]
		}
	}
	f.cuts = root.cuts
	for k := range f.cuts {
		f.cuts[k].price = f.lp.Price[f.cuts[k].row]
	}
	f.rankChoices()
	f.narrowActive()
	b := &branchAndBound{region: root, best: math.Inf(-1), trial: make([]int, len(all))}
	b.tryRoundings()
	f.set(b.counts)
	f.climbFrom(f.active, f.limit)
	if !f.isSeparable() {
		f.searchNeighbours(f.limit)
		return
	}
	f.narrowActive()
	// Small programs end with the patterns; in large ones neighbourhoods bring counts so near to
	// the bound that few patterns are left.
	part := f.limit / 20
	p := f.newPatterns(3 * part)
	p.solveMaster(4 * part)
	if f.relaxation < served*(1-1e-9) {
		f.serve(10 * part)
	}
	f.searchNeighbours(5 * part)
	p.proveOptimum(7 * part)
	f.searchNeighbours(13 * part)
	p.proveOptimum(17 * part)
	f.searchNeighbours(f.limit)
}

// serve looks for counts that serve more, where not all can be served, until the work reaches
// limit. For the share alone an agent does best to hold the fastest variant of its class, so it
// looks at no others, and many fewer patterns are left. The accuracy that this costs is for later.
func (f *finder) serve(limit int) {
	if f.proven || f.work >= limit {
		return
	}
	type key struct{ typ, class int }
	fastest := map[key]int{}
	of := func(i int) (key, float64) {
		o := &f.m.choices[i].parts[0].offers[0]
		return key{f.m.choices[i].typ, o.class}, o.rate
	}
	for i := range f.m.choices {
		k, rate := of(i)
		j, ok := fastest[k]
		if ok {
			_, most := of(j)
			ok = rate < most || rate == most && f.m.choices[i].most <= f.m.choices[j].most
		}
		if !ok {
			fastest[k] = i
		}
	}
	active, all, bound := f.active, f.all, f.bound
	was, value := slices.Clone(f.n), f.netValue()
	f.active, f.all = nil, true
	n := make([]int, len(f.n))
	for i := range n {
		k, _ := of(i)
		n[fastest[k]] += was[i]
		if fastest[k] == i {
			f.active = append(f.active, i)
		}
	}
	f.set(n)
	begin := f.work
	part := (limit - begin) / 20
	p := f.newPatterns(begin + 7*part)
	p.solveMaster(begin + 9*part)
	p.proveOptimum(begin + 15*part)
	f.searchNeighbours(limit)
	f.active, f.all, f.bound, f.proven = active, all, bound, false
	if f.netValue() < value {
		f.set(was)
	}
	f.climbFrom(f.active, f.limit)
}

func (f *finder) boundGap() float64 { return f.bound - f.netValue() }

// lossOf returns by how much the cost of one agent of choice i at the relaxation's prices exceeds
// its gain. A solution that has such an agent is worth at most the bound less that.
func (f *finder) lossOf(i int) float64 {
	c := &f.m.choices[i]
	loss := f.prices[c.typ] + c.cost
	for k := range f.cuts {
		loss -= f.cuts[k].price * f.cuts[k].of[i]
	}
	for p := range c.parts {
		gain := 0.0
		for k := range c.parts[p].offers {
			o := &c.parts[p].offers[k]
			worth := o.gain - f.class[o.class]
			for j := range f.cuts {
				if f.cuts[j].isBinding(c.parts[p].group, o.level) {
					worth -= f.cuts[j].price
				}
			}
			gain = max(gain, min(1, o.rate)*worth)
		}
		if len(c.parts[p].offers) > 1 { // at most: each as if it had all of the time
			gain *= float64(len(c.parts[p].offers))
		}
		loss -= gain
	}
	return loss
}

// rankChoices computes the choices' losses, and orders those of one class and type by them.
func (f *finder) rankChoices() {
	type key struct{ typ, class int }
	byKey := map[key][]int{}
	f.lost, f.rank = make([]float64, len(f.m.choices)), make([]int, len(f.m.choices))
	for i := range f.m.choices {
		c := &f.m.choices[i]
		f.lost[i] = f.lossOf(i)
		k := key{c.typ, c.parts[0].offers[0].class}
		byKey[k] = append(byKey[k], i)
	}
	for _, is := range byKey {
		slices.SortStableFunc(is, func(a, b int) int { return cmp.Compare(f.lost[a], f.lost[b]) })
		for k, i := range is {
			f.rank[i] = k
		}
	}
	f.work += 50 * len(f.m.choices)
}

// lowerBound lowers the bound to what no counts of active choices are worth more than.
func (f *finder) lowerBound(bound float64) {
	if f.all {
		f.bound = min(f.bound, bound)
	}
}

// perType is how many choices of each class and type are looked at in a program of many.
const perType = 8

// narrowActive leaves out of active what cannot be part of a solution better than the one at hand;
// and, if very many are left, those that are the least likely to be.
func (f *finder) narrowActive() {
	gap := f.relaxation - f.netValue()
	kept := f.active[:0:0]
	for _, i := range f.active {
		if f.n[i] > 0 || f.lost[i] <= gap {
			kept = append(kept, i)
		}
	}
	f.work += len(f.active)
	f.active = kept
	if len(kept) <= 1500 {
		return
	}
	f.active = kept[:0:0]
	for _, i := range kept {
		if f.rank[i] < perType || f.n[i] > 0 {
			f.active = append(f.active, i)
		}
	}
	f.all = f.all && len(f.active) == len(kept)
}

// searchNeighbours frees the choices of a few groups and finds their best counts by branch and
// bound, again and again, of more groups if that gains nothing. What was searched to its end is not
// searched again before its groups' counts have changed. It ends when the work reaches limit.
func (f *finder) searchNeighbours(limit int) {
	groups := len(f.m.groups)
	size, nodes, failures := min(2, groups), 200, 0
	version := make([]int, groups)
	searched := map[string]bool{}
	fail := func() {
		if failures++; failures <= f.triesOfSize(size) {
			return
		}
		failures = 0
		if size < groups {
			size++
		} else {
			clear(searched)
			nodes *= 4
		}
	}
	for f.work < limit && !f.proven {
		if f.boundGap() <= 10*worthwhile {
			f.proven = true
			return
		}
		f.narrowActive()
		picked := f.rng.Perm(groups)[:size]
		slices.Sort(picked)
		var key []byte
		for _, g := range picked {
			key = binary.AppendUvarint(binary.AppendUvarint(key, uint64(g)), uint64(version[g]))
		}
		free := f.choicesAmong(picked)
		if searched[string(key)] || len(free) == 0 {
			fail()
			f.work += operations
			continue
		}
		r := f.newRegion(free)
		now := 0.0
		for _, g := range r.groups {
			now += f.val[g]
		}
		for _, i := range free {
			now -= float64(f.n[i]) * f.m.choices[i].cost
		}
		counts, _, bound := r.searchCounts(now, nodes, limit)
		whole := size == groups && f.all
		if whole {
			f.bound = min(f.bound, f.netValue()-now+bound)
		}
		if counts == nil {
			if whole && bound <= now+worthwhile {
				f.proven = true
				return
			}
			searched[string(key)] = true
			fail()
			continue
		}
		failures = 0
		was := slices.Clone(f.n)
		for k, i := range free {
			f.changeCount(i, counts[k]-f.n[i])
		}
		for _, g := range r.groups {
			f.refreshGroup(g)
		}
		f.computeCost()
		f.climbFrom(f.active, f.limit)
		for i, n := range f.n {
			if n != was[i] {
				for _, g := range f.m.choices[i].appendGroups(nil) {
					version[g]++
				}
			}
		}
	}
}

// triesOfSize is how many neighbourhoods of so many groups are searched in vain before larger ones
// are.
func (f *finder) triesOfSize(size int) int {
	groups := len(f.m.groups)
	all := 1.0
	for k := range size {
		all *= float64(groups-k) / float64(k+1)
	}
	return int(min(1.5*all, float64(groups*groups)/2))
}

// choicesAmong is the active choices that serve none but the given groups.
func (f *finder) choicesAmong(groups []int) (free []int) {
	in := make([]bool, len(f.m.groups))
	for _, g := range groups {
		in[g] = true
	}
	for _, i := range f.active {
		all := true
		for p := range f.m.choices[i].parts {
			all = all && in[f.m.choices[i].parts[p].group]
		}
		if all {
			free = append(free, i)
		}
	}
	f.work += len(f.active)
	return free
}
