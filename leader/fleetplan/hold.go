package fleetplan

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/muster-serve/muster/leader/place"
)

// A ref is a variant of a family.
type ref struct{ family, variant int }

// sharedPools returns one pool for each type, as if machines had memory for all variants, and those
// of its layouts.
func (p *Problem) sharedPools() (pools []pool) {
	for t := range p.Types {
		pools = append(pools, pool{typ: t, only: len(p.Types[t].Layouts) == 0})
	}
	return append(pools, p.layoutPools()...)
}

func (p *Problem) layoutPools() (pools []pool) {
	for t := range p.Types {
		for l := range p.Types[t].Layouts {
			pools = append(pools, pool{typ: t, layout: &p.Types[t].Layouts[l]})
		}
	}
	return pools
}

// isBounded reports whether some pool is for machines that hold some of the variants only.
func isBounded(pools []pool) bool {
	return slices.ContainsFunc(pools, func(p pool) bool { return p.holds != nil })
}

const (
	// fewPools is up to how many pools counts of each are searched from nothing. The placement program
	// has a class for each bin, where this search has columns: with 2 types, 2 variants and 100 bins it
	// takes 30 times as long for the same fleet. Of 120 random capacities with up to so many pools none
	// was worse.
	fewPools = 24
	// manyPools is from how many pools on no search looks at the machines of each: its linear programs
	// have a row for each. With half or four times as many the benchmark's fleet is the same.
	manyPools = 150
	// placeSteps bounds the search for what given machines hold, trialSteps that for what they would
	// hold with one more: some tens of milliseconds, and a few. Of 16 random problems with 24 to 36
	// variants the gap to the bound is 12.8 % in the mean with trials of 2,000 steps, 12.1 % with
	// 5,000 and no less with 10,000; five times the placeSteps change nothing in the benchmark.
	placeSteps, trialSteps = 60_000, 5_000
	// maxTrials bounds the fleets that are tried where memory bounds what machines hold. Twice and five
	// times as many change nothing in the benchmark: the search ends where no trial is better.
	maxTrials = 40
)

// boundMemory finds the fleet where memory bounds what machines hold. shared is the search for
// machines that hold everything, whose bound holds here, too.
// all says that pools are all that there may be, and work bounds the operations.
func (p *Problem) boundMemory(shared *countSearch, pools []pool, all bool,
	work int) (*countSearch, error) {
	h := &holdSearch{shared: shared, m: newMaster(p, pools), steps: place.DefaultSteps}
	if work < maxWork {
		h.steps = trialSteps
	}
	h.m.scale, h.m.weights = shared.m.scale, shared.m.weights
	if all && len(h.m.slots) <= fewPools && !(p.isFixed() && p.isPlacement()) {
		s := newCountSearch(h.m, work)
		s.bound = shared.bound
		s.begin()
		if s.branch(); s.best != nil {
			s.margin = shared.margin
			return s, nil
		}
	}
	if err := h.search(); err != nil {
		return nil, err
	}
	best, placed := h.best, h.best.placed
	best.climb(best.limit)
	if len(h.m.slots) < manyPools {
		s := newCountSearch(h.m, work/2)
		s.bound = max(shared.bound, best.value)
		s.note(h.expand(best), best.value)
		s.begin()
		s.branch()
		if best = s; !all {
			best.bound = shared.bound
		}
	}
	if all {
		best.placed = placed
	}
	best.bound, best.margin = max(best.value, min(best.bound, shared.bound)), shared.margin
	return best, nil
}

// A holdSearch searches for counts of machines by type and what they hold.
type holdSearch struct {
	shared *countSearch
	m      *master // with all pools
	best   *countSearch
	steps  int // of what given machines hold, where these are all that there may be
	trials int
	placed *place.Solution // of the last trial
}

// search begins with the counts that do where all hold everything, lets them grow by what is worth
// most for its price, and then shrink.
func (h *holdSearch) search() (err error) {
	p := h.m.problem
	if p.isFixed() {
		h.best, err = h.try(h.shared.best[:len(p.Types)], h.steps) // all there is to decide
		if err == nil && p.isPlacement() {
			h.best.placed = h.placed
		}
		return err
	}
	if h.best, err = h.try(h.shared.best[:len(p.Types)], placeSteps); err != nil {
		return err
	}
	for _, grows := range []bool{true, false} {
		for better := true; better && h.trials < maxTrials; {
			if better, err = h.step(grows); err != nil {
				return err
			}
		}
	}
	last, err := h.try(h.best.best[:len(p.Types)], placeSteps)
	if err == nil && last.value > h.best.value {
		h.best = last
	}
	return err
}

// isFixed reports whether the machines are given.
func (p *Problem) isFixed() bool {
	return !slices.ContainsFunc(p.Types, func(t Type) bool { return t.Max > t.Min })
}

// isPlacement reports whether the problem's goal is that of a placement program: the share that is
// served, and then accuracy.
func (p *Problem) isPlacement() bool {
	return math.IsInf(p.AccuracyUSDPerHour, 1) && p.MaxMultiple == 0 && p.Unserved == 0 &&
		p.TargetAccuracy == 0 &&
		!slices.ContainsFunc(p.Families, func(f Family) bool { return f.TargetAccuracy > 0 })
}

// step adds machines of a type, or takes one away, and reports whether that is better.
func (h *holdSearch) step(grows bool) (better bool, err error) {
	p := h.m.problem
	counts := h.best.best[:len(p.Types)]
	d := -1
	if grows {
		d = max(1, h.missing(sum(counts)))
	}
	var next *countSearch
	most := 0.0
	for t := range p.Types {
		trial := slices.Clone(counts)
		if trial[t] = min(trial[t]+d, p.Types[t].Max); trial[t] == counts[t] || !p.allows(trial) {
			continue
		}
		s, err := h.try(trial, trialSteps)
		if err != nil {
			return false, err
		}
		gain := s.value - h.best.value
		if grows {
			gain /= max(p.Types[t].PriceUSDPerHour, 1e-9) * float64(trial[t]-counts[t])
		}
		if s.value > h.best.value+worthwhile && gain > most {
			next, most = s, gain
		}
	}
	if next != nil {
		h.best = next
	}
	return next != nil, nil
}

// missing is how many machines more of so many serve what is not served, if each serves as much.
func (h *holdSearch) missing(machines int) int {
	worth := h.m.weights.served
	all := 0.0
	for _, need := range h.m.need {
		all += need
	}
	if most := h.m.problem.MaxMultiple; most > 0 {
		all = most
	}
	return int(max(0, all-(h.best.value+2)/worth) * float64(machines))
}

// try finds what so many machines of each type should hold. The placement program knows no target
// accuracies: so where there are any, it also places only the variants that reach them, and the
// better of the two counts.
func (h *holdSearch) try(counts []int, steps int) (best *countSearch, err error) {
	h.trials++
	for _, accurate := range []bool{false, true} {
		if accurate && !h.hasTargets() {
			continue
		}
		placed, solution, err := h.placeVariants(counts, steps, accurate)
		if err != nil {
			return nil, err
		}
		types := len(counts)
		var used []pool // and those of types that have one
		kept := placed[:types:types]
		for i, n := range placed[types:] {
			if n > 0 || h.m.pools[i].only {
				used, kept = append(used, h.m.pools[i]), append(kept, n)
			}
		}
		m := newMaster(h.m.problem, used)
		m.scale, m.weights = h.m.scale, h.m.weights
		s := newCountSearch(m, maxWork/10)
		if s.try(kept); best == nil || s.value > best.value {
			best, h.placed = s, solution
		}
	}
	return best, nil
}

func (h *holdSearch) hasTargets() bool {
	return h.m.problem.TargetAccuracy > 0 ||
		slices.ContainsFunc(h.m.target, func(target float64) bool { return target > 0 })
}

// reachesTarget reports whether a variant is as accurate as its family's answers are to be, or as
// accurate as they can be.
func (h *holdSearch) reachesTarget(family int, accuracy float64) bool {
	_, most := h.m.problem.answerable(family)
	target := max(h.m.target[family], h.m.problem.TargetAccuracy)
	return accuracy >= min(target, most)-rounding
}

// expand returns the counts of a search of some pools as counts of all pools.
func (h *holdSearch) expand(s *countSearch) []int {
	types := len(h.m.problem.Types)
	all := make([]int, types+len(h.m.pools))
	copy(all, s.best[:types])
	for i, n := range s.best[types:] {
		k := slices.IndexFunc(h.m.pools, func(p pool) bool { return p.equal(&s.m.pools[i]) })
		all[types+k] = n
	}
	return all
}

func (p *pool) equal(q *pool) bool {
	return p.typ == q.typ && p.layout == q.layout && slices.EqualFunc(p.holds, q.holds, slices.Equal)
}

func sum(counts []int) int {
	all := 0
	for _, n := range counts {
		all += n
	}
	return all
}

// placeVariants finds what so many machines of each type should hold, of the pools, as the
// placement program does (leader/place), and returns counts by type and after those by pool.
// accurate leaves out the variants that do not reach the targets.
func (h *holdSearch) placeVariants(counts []int, steps int, accurate bool) ([]int,
	*place.Solution, error) {
	m, p := h.m, h.m.problem
	program := &place.Program{}
	for t := range p.Types {
		program.Types = append(program.Types, place.Type{Name: p.Types[t].Name, Count: counts[t]})
	}
	classes, variants := make([][]int, len(p.Families)), make([]int, len(p.Families))
	for f := range p.Families {
		variants[f] = len(program.Variants)
		for _, v := range p.Families[f].Variants {
			program.Variants = append(program.Variants, place.Variant{
				Model: string(v.Model), Family: p.Families[f].Name, Accuracy: 100 * v.Accuracy,
			})
		}
		for _, b := range p.Families[f].Bins {
			classes[f] = append(classes[f], len(program.Classes))
			program.Classes = append(program.Classes, place.Class{
				Family: p.Families[f].Name, Rate: b.Rate,
			})
		}
	}
	services := make([][]place.Service, len(m.slots))
	for f := range p.Families {
		for b, all := range m.answerers[f] {
			for k := range all {
				if a := &all[k]; a.machines > 0 &&
					(!accurate || h.reachesTarget(f, a.accuracy)) {
					services[a.slot] = append(services[a.slot], place.Service{
						Class: classes[f][b], Variant: variants[f] + int(a.variant),
						Rate: p.Families[f].Bins[b].Rate / a.machines,
					})
				}
			}
		}
	}
	for i, feeds := range m.feeds {
		choice := place.Choice{Type: m.pools[i].typ, Layout: fmt.Sprint(i)}
		for _, f := range feeds {
			part := slices.Clone(services[f.slot])
			for k := range part {
				part[k].Rate *= f.amount
			}
			choice.Partitions = append(choice.Partitions, part)
		}
		program.Choices = append(program.Choices, choice)
	}
	solution, err := place.Solve(program, steps)
	if err != nil {
		return nil, nil, err
	}
	all := slices.Clone(counts)
	left := slices.Clone(all)
	for i, n := range solution.Counts {
		left[m.pools[i].typ] -= n
	}
	for i, n := range solution.Counts { // machines that would serve nothing hold something, too
		all = append(all, n+left[m.pools[i].typ])
		left[m.pools[i].typ] = 0
	}
	return all, solution, nil
}

// makePools returns the pools of all types. A type whose memory has room for all variants is one
// pool. Of another each maximal set of variants that fits is one: a variant more costs no capacity,
// so smaller sets need no pool. Of very many sets some are taken: those that pack what the
// relaxation has machines of the type answer. all says that none is left out.
func (p *Problem) makePools(relaxation *countSearch) (pools []pool, all bool) {
	all = true
	for t := range p.Types {
		useful, bounded := p.usefulOn(t)
		memory := p.Types[t].MemoryBytes * (1 + rounding)
		if !bounded {
			pools = append(pools, pool{typ: t, only: len(p.Types[t].Layouts) == 0})
			continue
		}
		sets, whole := p.maximalSets(useful, memory)
		if all = all && whole; !whole {
			sets = p.newPacker(useful, t, memory, relaxation.workOn(t)).pack()
		}
		for _, set := range sets {
			holds := make([][]bool, len(p.Families))
			for f := range holds {
				holds[f] = make([]bool, len(p.Families[f].Variants))
			}
			for _, r := range set {
				holds[r.family][r.variant] = true
			}
			pools = append(pools, pool{typ: t, holds: holds})
		}
	}
	return append(pools, p.layoutPools()...), all
}

// usefulOn returns the variants with which a machine of type t may answer, and whether its memory
// has no room for all of them.
func (p *Problem) usefulOn(t int) (useful []ref, bounded bool) {
	size := 0.0
	for f := range p.Families {
		for v := range p.Families[f].Variants {
			if p.fits(f, v, t) && slices.ContainsFunc(p.Families[f].Bins, func(b Bin) bool {
				return b.RunTime[v][t] > 0
			}) {
				useful = append(useful, ref{f, v})
				size += p.sizeOf(ref{f, v})
			}
		}
	}
	memory := p.Types[t].MemoryBytes
	return useful, memory > 0 && size > memory*(1+rounding)
}

func (p *Problem) sizeOf(r ref) float64 {
	return p.Families[r.family].Variants[r.variant].SizeBytes
}

// maxSets is up to how many maximal sets of a type all are looked at. With 30 or 300 the benchmark's
// fleet is the same.
const maxSets = 100

// maximalSets lists the sets of variants that fit the memory and to which no other could be added,
// in order. It reports false if these are more than maxSets.
func (p *Problem) maximalSets(useful []ref, memory float64) (sets [][]ref, all bool) {
	var taken []ref
	steps := 0
	var extend func(next int, left float64)
	extend = func(next int, left float64) {
		if steps++; len(sets) > maxSets || steps > 1000*maxSets {
			return
		}
		if next == len(useful) {
			for _, r := range useful {
				if p.sizeOf(r) <= left && !slices.Contains(taken, r) {
					return
				}
			}
			sets = append(sets, slices.Clone(taken))
			return
		}
		if r := useful[next]; p.sizeOf(r) <= left {
			taken = append(taken, r)
			extend(next+1, left-p.sizeOf(r))
			taken = taken[:len(taken)-1]
		}
		extend(next+1, left)
	}
	extend(0, memory)
	return sets, len(sets) <= maxSets && steps <= 1000*maxSets
}

// workOn returns how many machines of the type answer with each variant in the best counts' flows.
func (s *countSearch) workOn(typ int) map[ref]float64 {
	work := map[ref]float64{}
	r, ok := s.m.solve(s.best, s.best)
	if !ok {
		return work
	}
	for j, x := range r.flows {
		c := s.m.columns[j]
		for b, i := range c.answers {
			if i == unanswered {
				continue
			}
			if a := &s.m.answerers[c.family][b][i]; s.m.slots[a.slot].typ == typ {
				work[ref{c.family, int(a.variant)}] += x * a.machines
			}
		}
	}
	return work
}

// A packer packs variants into sets that fit the memory of a type's machines.
type packer struct {
	problem *Problem
	memory  float64
	work    map[ref]float64 // machines
	order   []ref           // by falling work, and without work the quickest of each family first
	sets    [][]ref
}

func (p *Problem) newPacker(useful []ref, typ int, memory float64, work map[ref]float64) *packer {
	k := &packer{problem: p, memory: memory, work: work, order: slices.Clone(useful)}
	time := map[ref]float64{} // of all of a family's queries; +Inf if some cannot be answered
	for _, r := range useful {
		for _, b := range p.Families[r.family].Bins {
			if s := b.RunTime[r.variant][typ]; s > 0 {
				time[r] += b.Rate * s
			} else if b.Rate > 0 {
				time[r] = math.Inf(1)
			}
		}
	}
	slices.SortStableFunc(k.order, func(a, b ref) int {
		return cmp.Or(cmp.Compare(work[b], work[a]), cmp.Compare(time[a], time[b]))
	})
	return k
}

// pack makes sets so that machines with them have time for the work of each variant: that of most
// work first, and with it those that fit, by falling and by rising work. Each variant is in some
// set.
func (k *packer) pack() [][]ref {
	reversed := slices.Clone(k.order)
	slices.Reverse(reversed)
	for _, second := range [][]ref{k.order, reversed} {
		left := map[ref]float64{}
		for r, w := range k.work {
			left[r] = w - max(0, math.Floor(w-1)) // machines that do nothing else apart
		}
		for {
			first := slices.IndexFunc(k.order, func(r ref) bool { return left[r] > 1e-9 })
			if first < 0 {
				break
			}
			k.fill(k.order[first], second, left)
		}
	}
	for _, r := range k.order {
		k.fill(r, k.order, map[ref]float64{})
	}
	return k.sets
}

// fill makes a maximal set with first: those of the order that have work left, while machines have
// time; then variants of other families; then any. It takes their work from left.
func (k *packer) fill(first ref, order []ref, left map[ref]float64) {
	set, room, time := []ref{first}, k.memory-k.problem.sizeOf(first), 1-min(1, left[first])
	left[first] = max(0, left[first]-1)
	families := map[int]bool{first.family: true}
	add := func(order []ref, wanted func(ref) bool) {
		for _, r := range order {
			if k.problem.sizeOf(r) > room || slices.Contains(set, r) || !wanted(r) {
				continue
			}
			set, room, families[r.family] = append(set, r), room-k.problem.sizeOf(r), true
			used := min(time, left[r])
			time, left[r] = time-used, left[r]-used
		}
	}
	add(order, func(r ref) bool { return time > 0 && left[r] > 0 })
	add(k.order, func(r ref) bool { return !families[r.family] })
	add(k.order, func(ref) bool { return true })
	slices.SortFunc(set, func(a, b ref) int {
		return cmp.Or(a.family-b.family, a.variant-b.variant)
	})
	if !slices.ContainsFunc(k.sets, func(o []ref) bool { return slices.Equal(o, set) }) {
		k.sets = append(k.sets, set)
	}
}

// variantsOf returns what the machines of a pool hold, by family.
func (m *master) variantsOf(pool int) [][]int {
	all := make([][]int, len(m.problem.Families))
	if l := m.pools[pool].layout; l != nil {
		for _, part := range l.Partitions {
			for _, s := range part.Services {
				if !slices.Contains(all[s.Family], s.Variant) {
					all[s.Family] = append(all[s.Family], s.Variant)
				}
			}
		}
		return all
	}
	for f := range m.problem.Families {
		for v := range m.problem.Families[f].Variants {
			if m.pools[pool].hasVariant(f, v) && m.problem.fits(f, v, m.pools[pool].typ) {
				all[f] = append(all[f], v)
			}
		}
	}
	return all
}
