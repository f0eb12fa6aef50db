package replan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/place"
)

// Holding a variant costs memory, and loading it time, but neither costs capacity: the lanes of an
// agent serve whichever of its variants a query is best answered with. So of all sets of variants
// that fit an agent's memory only the maximal ones, to which no other could be added, need to be
// looked at: none of their subsets serves more. Where memory has room for all variants that is one
// set.

// maxSets bounds the maximal sets of agents with the same memory and disk. Chosen: with 64, plans
// for 12 types and 10 families of 4 variants, 480 sets, take a second of a core and are within .03
// points of the bound; for 4 types and 20 families, 256 sets, within .1 (BenchmarkSolve).
const maxSets = 64

// eachMaximalSet calls do with the maximal sets of variants of the agents that may change, as
// layouts of one partition, in order. Sets of one variant are left out: these are layouts anyway.
func (p *Problem) eachMaximalSet(do func(names.LaneType, place.Layout)) {
	done := map[string]bool{}
	for i := range p.agents {
		a := &p.agents[i]
		if p.only[a.Name] {
			continue
		}
		var useful []int // variants that the agent could answer queries with
		var key strings.Builder
		fmt.Fprintf(&key, "%s|%d|", a.Type, a.Memory)
		for v := range p.variants {
			f, ok := p.family[p.variants[v].Family]
			if !ok || !p.asked[f] && p.fastest(f, a.Type) != v ||
				p.misfitReason(a, place.NewLayout(p.variants[v].Model)) != "" {
				continue
			}
			l := p.latenciesOf(&p.variants[v], a.Type)
			if l == nil || l.Mean(p.sizes[f][0].mean) > p.families[f].QoSTarget {
				continue
			}
			useful = append(useful, v)
			fmt.Fprintf(&key, "%d,", v)
		}
		if done[key.String()] {
			continue
		}
		done[key.String()] = true
		for _, set := range p.widestSets(p.maximalSets(useful, p.memory[i])) {
			models := make([]names.ModelKey, len(set))
			for k, v := range set {
				models[k] = p.variants[v].Model
			}
			if len(models) > 1 {
				do(a.Type, place.NewLayout(models...))
			}
		}
	}
}

// widestSets returns those of the sets that have variants of the most families that are asked for.
// Agents with others would be pools of their own for the families that they have, of which more has
// to be free, and what is rented counts on none.
func (p *Problem) widestSets(sets [][]int) [][]int {
	most, widths := 0, make([]int, len(sets))
	for i, set := range sets {
		var families []int
		for _, v := range set {
			f := p.family[p.variants[v].Family]
			if p.asked[f] && !slices.Contains(families, f) {
				families = append(families, f)
			}
		}
		widths[i] = len(families)
		most = max(most, widths[i])
	}
	var widest [][]int
	for i, set := range sets {
		if widths[i] == most {
			widest = append(widest, set)
		}
	}
	return widest
}

// maxNodes bounds the steps of the search for maximal sets. Chosen: some hundred microseconds.
const maxNodes = 20_000

// maximalSets lists the sets of the variants that fit the memory, 0 for any, and to which no other
// of them could be added. If these are more than maxSets, it lists some: [Problem.greedySets].
func (p *Problem) maximalSets(variants []int, memory int64) [][]int {
	size := func(i int) int64 { return p.variants[variants[i]].Bytes }
	rest := make([]int64, len(variants)+1) // bytes of the variants from an index on
	for i := len(variants) - 1; i >= 0; i-- {
		rest[i] = rest[i+1] + size(i)
	}
	if memory == 0 {
		memory = rest[0]
	}
	var sets [][]int
	var taken []int
	nodes := 0
	// extend extends taken by variants from next on. A set that leaves out one of the size skipped
	// is maximal only if it has no room for that.
	var extend func(next int, bytes, skipped int64)
	extend = func(next int, bytes, skipped int64) {
		nodes++
		if nodes > maxNodes || len(sets) > maxSets || bytes+rest[next]+skipped <= memory {
			return
		}
		if next == len(variants) {
			sets = append(sets, slices.Clone(taken))
			return
		}
		if bytes+size(next) <= memory {
			taken = append(taken, variants[next])
			extend(next+1, bytes+size(next), skipped)
			taken = taken[:len(taken)-1]
		}
		extend(next+1, bytes, min(skipped, size(next)))
	}
	extend(0, 0, memory+1)
	if nodes > maxNodes || len(sets) > maxSets {
		return p.greedySets(variants, memory)
	}
	return sets
}

// greedySets lists, for each of the first maxSets variants, a maximal set that has it: beside it,
// as far as they fit, the most accurate variant of each family, then the smallest, then any. Each
// begins with its own family, so that the sets differ.
func (p *Problem) greedySets(variants []int, memory int64) [][]int {
	var accurate, small []int
	for f := range p.families {
		best, least := -1, -1
		for _, v := range variants {
			if p.variants[v].Family != p.families[f].Name {
				continue
			}
			if best < 0 || accuracyOrBest(&p.variants[v]) > accuracyOrBest(&p.variants[best]) {
				best = v
			}
			if least < 0 || p.variants[v].Bytes < p.variants[least].Bytes {
				least = v
			}
		}
		if best >= 0 {
			accurate, small = append(accurate, best), append(small, least)
		}
	}
	var sets [][]int
	for _, first := range variants[:min(len(variants), maxSets)] {
		from := max(0, slices.IndexFunc(accurate, func(v int) bool {
			return p.variants[v].Family == p.variants[first].Family
		}))
		order := []int{first}
		for _, of := range [][]int{accurate, small} {
			order = append(append(order, of[from:]...), of[:from]...)
		}
		var set []int
		bytes := int64(0)
		for _, v := range append(order, variants...) {
			if with := bytes + p.variants[v].Bytes; with <= memory && !slices.Contains(set, v) {
				set, bytes = append(set, v), with
			}
		}
		slices.Sort(set)
		sets = append(sets, set)
	}
	return sets
}

// memoryFor is how much of an agent's memory a plan fills, 0: any. An agent that cannot hold all
// variants on its disk keeps room for the largest, so that it can load another before it unloads
// one: else it would have to drain first, which it may not while the fleet is busy. But it keeps no
// room that the best variants of the families that are asked for need beside each other: what
// cannot run them all is a pool of its own for some, of which more has to be free. One variant it
// may hold in any case.
func (p *Problem) memoryFor(a *Agent) int64 {
	all, largest := int64(0), int64(0)
	best := map[string]*Variant{} // by family
	for i := range p.variants {
		v := &p.variants[i]
		if !slices.Contains(a.Available, v.Model) {
			continue
		}
		all, largest = all+v.Bytes, max(largest, v.Bytes)
		if f, ok := p.family[v.Family]; ok && p.asked[f] &&
			(best[v.Family] == nil || accuracyOrBest(v) > accuracyOrBest(best[v.Family])) {
			best[v.Family] = v
		}
	}
	if a.Memory == 0 || all <= a.Memory {
		return a.Memory
	}
	beside := int64(0)
	for _, v := range best {
		beside += v.Bytes
	}
	if beside > a.Memory {
		beside = min(a.Memory, largest)
	}
	return max(a.Memory-largest, beside)
}

// fastest is the variant that answers family f the soonest on a type, the first of equals; -1 if it
// has none.
func (p *Problem) fastest(f int, t names.LaneType) int {
	best, least := -1, time.Duration(0)
	for v := range p.variants {
		if p.variants[v].Family != p.families[f].Name {
			continue
		}
		if l := p.latenciesOf(&p.variants[v], t); l != nil {
			if takes := l.Mean(p.sizes[f][len(p.sizes[f])/2].mean); best < 0 || takes < least {
				best, least = v, takes
			}
		}
	}
	return best
}

// unloads reports whether an agent that goes from one layout to another unloads a model, or serves
// any on other lanes.
func (p *Problem) unloads(from, to place.Layout) bool {
	return !from.Equal(to) && (!from.IsOnAllLanes() || !to.IsOnAllLanes() ||
		slices.ContainsFunc(from.Models(), func(m names.ModelKey) bool { return !to.Has(m) }))
}

// canAdd reports whether agent a has the memory for a layout beside what it holds.
func (p *Problem) canAdd(a int, l place.Layout) bool {
	held := p.current[a]
	if !held.IsOnAllLanes() || !l.IsOnAllLanes() {
		return false
	}
	return p.memory[a] == 0 || sumBytes(unionModels(held, l), p.bytes) <= p.memory[a]
}

// extendLayouts lets the agents of a kind hold what else their memory has room for: the best variants
// of the families that they lack and are asked for, what they hold now, and then the variants of the
// maximal set that most of the kind's agents are to hold. choices are the kind's.
func (p *Problem) extendLayouts(plan *Plan, k *kind, counts, choices []int) {
	var set place.Layout
	most := -1
	for _, c := range choices {
		if k.shared[p.choices[c].layout] && counts[c] > most {
			set, most = k.layouts[p.choices[c].layout], counts[c]
		}
	}
	for _, a := range k.agents {
		l := plan.layouts[a]
		if p.only[p.agents[a].Name] || !l.IsOnAllLanes() {
			continue
		}
		models := l.Models()
		need := sumBytes(models, p.bytes)
		more := p.lackedBy(a, models)
		if p.current[a].IsOnAllLanes() {
			more = append(more, p.current[a].Models()...)
		}
		for _, m := range append(more, set.Models()...) {
			with := need + p.bytes(m)
			if !slices.Contains(models, m) && (p.memory[a] == 0 || with <= p.memory[a]) {
				models, need = append(models, m), with
			}
		}
		plan.layouts[a] = place.NewLayout(models...)
	}
}

// lackedBy returns, of each family that is asked for and has none of the models, the best variant that
// agent a could answer it with.
func (p *Problem) lackedBy(a int, models []names.ModelKey) (lacked []names.ModelKey) {
	best := make([]*Variant, len(p.families))
	has := make([]bool, len(p.families))
	for i := range p.variants {
		v := &p.variants[i]
		f, ok := p.family[v.Family]
		if !ok || !p.asked[f] {
			continue
		}
		has[f] = has[f] || slices.Contains(models, v.Model)
		l := p.latenciesOf(v, p.agents[a].Type)
		if l != nil && p.inTime(f, l) >= 0 &&
			p.misfitReason(&p.agents[a], place.NewLayout(v.Model)) == "" &&
			(best[f] == nil || accuracyOrBest(v) > accuracyOrBest(best[f])) {
			best[f] = v
		}
	}
	for f, v := range best {
		if v != nil && !has[f] {
			lacked = append(lacked, v.Model)
		}
	}
	return lacked
}

// dropUnasked takes the variants of families that nobody asks for from agents that would have to
// load them, but for the families' first hosts.
func (p *Problem) dropUnasked(plan *Plan) {
	for f := range p.families {
		if p.asked[f] {
			continue
		}
		of := func(m names.ModelKey) bool {
			v, ok := p.model[m]
			return ok && p.variants[v].Family == p.families[f].Name
		}
		there := 0 // hosts
		for i := range p.agents {
			if slices.ContainsFunc(p.current[i].Models(), of) &&
				slices.ContainsFunc(plan.layouts[i].Models(), of) {
				there++
			}
		}
		for i := range p.agents {
			l := plan.layouts[i]
			if !l.IsOnAllLanes() || !slices.ContainsFunc(l.Models(), of) ||
				slices.ContainsFunc(p.current[i].Models(), of) {
				continue
			}
			if there++; there > hosts {
				plan.layouts[i] = place.NewLayout(slices.DeleteFunc(l.Models(), of)...)
			}
		}
	}
}
