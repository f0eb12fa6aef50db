package replan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/internal/assign"
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/leader/staffing"
	"github.com/muster-serve/muster/profiles"
)

// A Problem is what a snapshot says of the fleet, with the demand to plan for. It shares nothing
// that changes.
//
// Invariants, once buildProgram has run:
//   - Each agent is in exactly one kind, of its type and number of lanes. current has its layout at
//     the same index as agents.
//   - The classes of family f are first[f] to first[f]+len(classes[f])-1 of program, and as many
//     after them for each of its Classes. classes[f] ascends and has 1 to maxClasses entries; every
//     query of f is of one of these size classes.
//   - choices has the kind and layout of each choice of program, at the same index.
//   - assignLayouts gives an agent the layout that it has, or a layout of its kind and what else
//     the agent has memory for. So what it has to load fits it and is not barred there.
type Problem struct {
	agents   []Agent // without those that leave
	current  []place.Layout
	only     map[names.AgentName]bool // agents that keep their current layout
	variants []Variant
	families []Family
	rate     []float64 // by family, that arrives
	usual    []float64 // by family, that has arrived in the mean of the demand's window
	demand   []float64 // by family, to plan for
	// ofClass is the part of demand, in queries/s, that is of each of the family's Classes, by
	// family; nil: of none.
	ofClass    [][]float64
	latencies  map[names.TableKey]Latencies
	layouts    map[names.LaneType][]place.Layout
	barred     map[bar]time.Time
	calm       bool // only what serves more is worth a change
	generation int
	reason     string
	steps      int
	seed       uint64
	unstaffed  bool // demand is to be served with all of the lanes' time

	memory  []int64                // by agent, that its layout may take: see memoryFor
	asked   []bool                 // by family: queries for it arrive
	model   map[names.ModelKey]int // index in variants
	family  map[string]int
	sizes   [][]bin           // by family
	limit   [][]time.Duration // by family and bin
	classes [][]int           // by family: the largest batch of each class
	first   []int             // by family: its first class
	// parts is which part of a family's queries is planned for each of its Classes, and weights how
	// many queries one of them counts for in the program, by family.
	parts, weights [][]float64
	kinds          []*kind
	program        place.Program
	choices        []option // by choice of program
}

// An option is a layout of a kind.
type option struct {
	kind, layout int
	held         bool // an agent has it now
}

// A kind is agents that can hold the same layouts at the same rates.
type kind struct {
	typ     names.LaneType
	lanes   int
	agents  []int
	layouts []place.Layout
	names   []string
	// shared says of each layout that it is a maximal set of variants: see maximalSets.
	shared []bool
}

// A bin is a narrow range of batch sizes.
type bin struct {
	mean, largest int
	share         float64
}

// A Plan is the solution of a problem, agent by agent.
type Plan struct {
	problem  *Problem
	layouts  []place.Layout // by agent of the problem
	families []place.FamilyForecast
	// Served and Accuracy (points) of the plan's agents and of those there are now, for the demand
	// planned for; and the accuracy that no placement exceeds.
	Served, Accuracy         float64
	KeptServed, KeptAccuracy float64
	Bound                    float64
	Steps                    int
	missing                  []Event
	// unserved is, by family, what the plan's agents do not serve of the usual rate, in queries/s.
	unserved []float64
}

// horizon is the time in which a change must gain more than it costs. Chosen: three periods of the
// replanner, so that a change pays before the demand is likely to be another.
const horizon = 30 * time.Second

// lasting is the time in which a change must gain more than it costs that unloads nothing: no later
// plan has a reason to take it back. Chosen: most loads of a day differ from those ten minutes
// before, and then other variants may be of use.
const lasting = 10 * time.Minute

// disturbance is what an agent's change costs, in points of accuracy of what the agent serves while
// it loads. Chosen. That loads cost something, and this wish for few changes, take .07 points of
// accuracy in the simulation of docs/internals/placement.md.
const disturbance = 10

// usualLoad is how long a model of which nothing is known takes to load. Chosen: models of some
// hundred MB take one to ten seconds.
const usualLoad = 5 * time.Second

// Solve solves the problem. It takes below a second of a core and may run beside a step.
func (p *Problem) Solve() *Plan {
	plan := &Plan{problem: p}
	p.buildProgram(plan)
	sol := p.searchCounts()
	plan.Served, plan.Accuracy, plan.Bound, plan.Steps = sol.Served, sol.Accuracy, sol.Bound,
		sol.Steps
	plan.families = p.forecastFamilies(&p.program, sol)
	p.assignLayouts(plan, sol.Counts)
	_, was := p.evaluate(p.current, p.demand)
	plan.KeptServed, plan.KeptAccuracy = was.Served, was.Accuracy
	if !plan.isWorthChanges() {
		p.keepLayouts(plan)
		var kept *place.Program
		kept, was = p.evaluate(plan.layouts, p.demand)
		plan.Served, plan.Accuracy = was.Served, was.Accuracy
		plan.families = p.forecastFamilies(kept, was)
	}
	p.standBy(plan)
	plan.unserved = p.unservedOf(plan)
	return plan
}

// keepLayouts lets agents hold what they hold. Those that hold nothing get what the plan has for them:
// their loads disturb nothing, and whoever counts on all machines counts on them.
func (p *Problem) keepLayouts(plan *Plan) {
	for i, l := range p.current {
		if len(l.Partitions) > 0 || p.only[p.agents[i].Name] {
			plan.layouts[i] = l
		}
	}
}

// unservedOf returns what the plan does not serve of the usual rates, by family. The demand that it
// is for is several times as much where few queries arrive, as headroom and staffing add to the
// largest rate of a second: a plan that does not serve all of the demand may serve all queries.
func (p *Problem) unservedOf(plan *Plan) []float64 {
	unserved := make([]float64, len(p.families))
	if len(p.usual) == 0 || !slices.ContainsFunc(plan.families, func(f place.FamilyForecast) bool {
		return f.Served < 1-1e-6
	}) {
		return unserved
	}
	program, sol := p.evaluate(plan.layouts, p.usual)
	copy(unserved, p.usual)
	for v, flow := range p.flowByVariant(program, sol) {
		if f, ok := p.family[p.variants[v].Family]; ok {
			unserved[f] -= flow
		}
	}
	return unserved
}

// searchCounts solves the program twice, with the layouts that are maximal sets of variants and
// without, and returns the better solution. The best with them is never worse, but their program is
// harder, and the search of a large one may end before it finds as much.
func (p *Problem) searchCounts() *place.Solution {
	var rest []int // choices that are no maximal sets
	for c, o := range p.choices {
		if !p.kinds[o.kind].shared[o.layout] || o.held {
			rest = append(rest, c)
		}
	}
	if len(rest) == len(p.choices) {
		return solve(&p.program, p.steps)
	}
	best := solve(&p.program, p.steps/2)
	fewer := p.program
	fewer.Choices, fewer.Current = nil, nil
	for _, c := range rest {
		fewer.Choices = append(fewer.Choices, p.program.Choices[c])
		fewer.Current = append(fewer.Current, p.program.Current[c])
	}
	sol := solve(&fewer, p.steps/2)
	if best.Served > sol.Served+negligible ||
		best.Served > sol.Served-negligible && best.Accuracy >= sol.Accuracy {
		return best
	}
	counts, flow := sol.Counts, sol.Flow
	sol.Counts, sol.Flow = make([]int, len(p.choices)), make([][][]float64, len(p.choices))
	for i, c := range rest {
		sol.Counts[c], sol.Flow[c] = counts[i], flow[i]
	}
	sol.Bound = max(sol.Bound, best.Bound)
	return sol
}

// negligible is a share of the demand that rounding may make.
const negligible = 1e-9

// solve solves a program that is valid, as it is made here.
func solve(program *place.Program, steps int) *place.Solution {
	sol, err := place.Solve(program, steps)
	if err != nil {
		panic(err)
	}
	return sol
}

// isWorthChanges reports whether the plan is worth its changes: what it serves more, and more
// accurately, within the horizon is more than what agents lose that load.
func (plan *Plan) isWorthChanges() bool {
	p := plan.problem
	demand := 0.0
	for _, d := range p.demand {
		demand += d
	}
	more := plan.Served - plan.KeptServed
	if p.calm && more < .01 {
		return false
	}
	// Demand is more than what arrives, most of the time, and then more accurate variants may be of
	// use than where all of it does.
	_, now := p.evaluate(plan.layouts, p.rate)
	_, kept := p.evaluate(p.current, p.rate)
	points := max(
		plan.Served*plan.Accuracy-plan.KeptServed*plan.KeptAccuracy+100*more,
		now.Served*now.Accuracy-kept.Served*kept.Accuracy+100*(now.Served-kept.Served),
	)
	cost := 0.0 // in points of accuracy
	for i := range p.agents {
		if plan.layouts[i].Equal(p.current[i]) || len(p.current[i].Partitions) == 0 {
			continue // nothing is disturbed
		}
		within := horizon
		if !p.unloads(p.current[i], plan.layouts[i]) {
			within = lasting
		}
		cost += disturbance * p.load(p.current[i], plan.layouts[i]).Seconds() /
			within.Seconds() / float64(len(p.agents))
	}
	return points > cost
}

// load is how long an agent that holds one layout takes to another.
func (p *Problem) load(from, to place.Layout) time.Duration {
	all := time.Duration(0)
	for _, m := range to.Models() {
		if !from.Has(m) {
			all += usualLoad
			if i, ok := p.model[m]; ok && p.variants[i].Load > 0 {
				all += p.variants[i].Load - usualLoad
			}
		}
	}
	return max(all, 10*time.Millisecond) // new lanes at the least
}

// buildProgram makes the program.
func (p *Problem) buildProgram(plan *Plan) {
	p.model, p.family = map[names.ModelKey]int{}, map[string]int{}
	for i := range p.variants {
		p.model[p.variants[i].Model] = i
	}
	for i := range p.families {
		p.family[p.families[i].Name] = i
		p.sizes = append(p.sizes, toBins(p.families[i].Sizes))
		p.asked = append(p.asked, p.demand[i] > 0)
	}
	for i := range p.agents {
		p.memory = append(p.memory, p.memoryFor(&p.agents[i]))
	}
	p.groupAgents()
	p.setTimeLimits()
	p.cutBatchSizes()
	p.program = place.Program{Seed: p.seed}
	for i := range p.variants {
		v := &p.variants[i]
		p.program.Variants = append(p.program.Variants, place.Variant{
			Model: string(v.Model), Family: v.Family, Accuracy: 100 * accuracyOrBest(v),
		})
	}
	slowest := make([]float64, len(p.families)) // by family: the least that an agent serves
	for k, kind := range p.kinds {
		p.program.Types = append(p.program.Types, place.Type{
			Name: string(kind.typ), Count: len(kind.agents),
		})
		for l := range kind.layouts {
			c := p.choiceOf(k, kind.layouts[l])
			if len(c.Partitions) == 0 {
				continue
			}
			p.program.Choices = append(p.program.Choices, c)
			p.choices = append(p.choices, option{kind: k, layout: l})
			p.lowerToSlowest(&c, slowest)
		}
	}
	total := 0.0
	for _, d := range p.demand {
		total += d
	}
	for f := range p.families {
		// A family with hardly any queries keeps a host all the same.
		asked := max(p.demand[f], min(slowest[f], max(total, 1)/20))
		p.demand[f] = asked
	}
	for f, share := range p.safeShares() {
		p.demand[f] /= share
		p.divideDemand(f, total)
		p.program.Classes = append(p.program.Classes, p.programClasses(f, p.demand[f])...)
	}
	current := make([]int, len(p.choices)) // and those for which it only adds to what they have
	load := 0.0
	now := make([]string, len(p.agents))
	for i := range p.current {
		now[i] = p.current[i].String()
	}
	for c, o := range p.choices {
		for _, a := range p.kinds[o.kind].agents {
			if now[a] == p.kinds[o.kind].names[o.layout] {
				p.choices[c].held = true
				current[c]++
			} else if p.canAdd(a, p.kinds[o.kind].layouts[o.layout]) {
				current[c]++
			}
		}
	}
	for i := range p.variants {
		load += cmp.Or(p.variants[i].Load, usualLoad).Seconds() / float64(len(p.variants))
	}
	p.program.Current = current
	p.program.Change = disturbance * load / horizon.Seconds()
	plan.missing = p.missingEvents()
}

func accuracyOrBest(v *Variant) float64 {
	if v.Accuracy == 0 {
		return 1
	}
	return v.Accuracy
}

// groupAgents makes the kinds.
func (p *Problem) groupAgents() {
	byType := map[names.LaneType][]place.Layout{}
	shared := map[names.LaneType]map[string]bool{} // layouts that are maximal sets of variants
	seen := map[names.LaneType]map[string]bool{}
	add := func(t names.LaneType, l place.Layout) {
		if seen[t] == nil {
			seen[t] = map[string]bool{}
		}
		if name := l.String(); !seen[t][name] && len(l.Partitions) > 0 {
			seen[t][name] = true
			byType[t] = append(byType[t], l)
		}
	}
	for i := range p.agents {
		t := p.agents[i].Type
		if seen[t] == nil {
			for _, v := range p.variants {
				add(t, place.NewLayout(v.Model))
			}
			for _, l := range p.layouts[t] {
				add(t, l)
			}
		}
		add(t, p.current[i])
	}
	p.eachMaximalSet(func(t names.LaneType, l place.Layout) {
		if shared[t] == nil {
			shared[t] = map[string]bool{}
		}
		shared[t][l.String()] = true
		add(t, l)
	})
	index := map[string]*kind{}
	for i := range p.agents {
		a := &p.agents[i]
		var can []place.Layout
		var key strings.Builder
		fmt.Fprintf(&key, "%s|%d|%d|", a.Type, a.Lanes, a.Cores)
		if p.only[a.Name] {
			can = []place.Layout{p.current[i]}
			fmt.Fprintf(&key, "only %s", p.current[i])
		} else {
			for n, l := range byType[a.Type] {
				if p.misfitReason(a, l) == "" || l.Equal(p.current[i]) {
					can = append(can, l)
					fmt.Fprintf(&key, "%d,", n)
				}
			}
		}
		k := index[key.String()]
		if k == nil {
			k = &kind{typ: a.Type, lanes: a.Lanes, layouts: can}
			for _, l := range can {
				k.names = append(k.names, l.String())
				k.shared = append(k.shared, shared[a.Type][l.String()])
			}
			index[key.String()] = k
			p.kinds = append(p.kinds, k)
		}
		k.agents = append(k.agents, i)
	}
}

// misfitReason says why an agent cannot hold a layout, "" if it can.
func (p *Problem) misfitReason(a *Agent, l place.Layout) string {
	return whyUnfit(a, l, p.bytes, func(m names.ModelKey) bool {
		_, barred := p.barred[bar{a.Name, m}]
		return barred
	})
}

func (p *Problem) bytes(m names.ModelKey) int64 {
	if i, ok := p.model[m]; ok {
		return p.variants[i].Bytes
	}
	return 0
}

// sumBytes is the memory that models take together, given what each takes.
func sumBytes(models []names.ModelKey, bytes func(names.ModelKey) int64) (sum int64) {
	for _, m := range models {
		sum += bytes(m)
	}
	return sum
}

func whyUnfit(a *Agent, l place.Layout, bytes func(names.ModelKey) int64,
	barred func(names.ModelKey) bool) string {
	models, cores := l.Models(), 0
	for _, m := range models {
		if !slices.Contains(a.Available, m) && !a.Held.Has(m) {
			return fmt.Sprintf("model %s is not on its disk", m)
		}
		if barred(m) {
			return fmt.Sprintf("loading model %s failed there not long ago", m)
		}
	}
	if need := sumBytes(models, bytes); a.Memory > 0 && need > a.Memory {
		return fmt.Sprintf("%s takes %s, and it has %s for models", l, size(need), size(a.Memory))
	}
	for _, q := range l.Partitions {
		cores += q.Lanes * q.Cores
	}
	if cores > a.Cores && a.Cores > 0 {
		return fmt.Sprintf("%s takes %d cores, and it has %d", l, cores, a.Cores)
	}
	return ""
}

func size(bytes int64) string {
	if bytes < 1e9 {
		return fmt.Sprintf("%.4g MB", float64(bytes)/1e6)
	}
	return fmt.Sprintf("%.4g GB", float64(bytes)/1e9)
}

// toBins is a distribution in few bins.
func toBins(sizes profiles.Distribution) []bin {
	if len(sizes) == 0 {
		return []bin{{1, 1, 1}}
	}
	const most = 24
	var bins []bin
	sum := 0.0
	b := bin{}
	for i, s := range sizes {
		b.share += s.Share
		sum += s.Share * float64(s.BatchSize)
		b.largest = s.BatchSize
		if b.share >= 1./most || i == len(sizes)-1 || s.BatchSize >= 2*sizes[0].BatchSize &&
			i+1 < len(sizes) && sizes[i+1].BatchSize > 2*s.BatchSize {
			if b.share > 0 {
				b.mean = min(b.largest, max(1, int(math.Ceil(sum/b.share))))
				bins = append(bins, b)
			}
			b, sum = bin{}, 0
		}
	}
	return bins
}

// latenciesOf returns the latencies of a variant on a partition, nil if it cannot run there. A
// variant without known latencies counts as slow as the slowest variant of its family that has
// some.
func (p *Problem) latenciesOf(v *Variant, t names.LaneType) Latencies {
	if l := p.latencies[names.TableKey{Model: v.Model, Type: t}]; l != nil {
		return l
	}
	f, ok := p.family[v.Family]
	if !ok {
		return nil
	}
	sizes := p.sizes[f]
	typical := sizes[len(sizes)/2].mean
	var slowest Latencies
	for i := range p.variants {
		if o := &p.variants[i]; o.Family == v.Family {
			l := p.latencies[names.TableKey{Model: o.Model, Type: t}]
			if l != nil && (slowest == nil || l.Mean(typical) > slowest.Mean(typical)) {
				slowest = l
			}
		}
	}
	return slowest
}

// maxClasses is how many size classes a family has at most. Chosen: variants differ in time by size
// mostly between small, usual and large queries, and each class multiplies the program.
const maxClasses = 4

// cutBatchSizes divides the batch sizes of each family into classes. A class ends at the largest
// size that some variant somewhere serves in time.
func (p *Problem) cutBatchSizes() {
	cuts := make([][]bool, len(p.families))
	for f := range cuts {
		cuts[f] = make([]bool, len(p.sizes[f]))
	}
	p.eachPair(func(f int, l Latencies) {
		if b := p.inTime(f, l); b >= 0 {
			cuts[f][b] = true
		}
	})
	p.classes, p.first = make([][]int, len(p.families)), make([]int, len(p.families))
	next := 0
	for f := range p.families {
		for b, is := range cuts[f] {
			if is {
				p.classes[f] = append(p.classes[f], p.sizes[f][b].largest)
			}
		}
		if len(p.classes[f]) == 0 { // nothing is in time
			p.classes[f] = []int{p.sizes[f][len(p.sizes[f])-1].largest}
		}
		for len(p.classes[f]) > maxClasses { // join those of the fewest queries
			least, at := math.Inf(1), 0
			for k := range len(p.classes[f]) - 1 {
				if s := p.classShare(f, k); s < least {
					least, at = s, k
				}
			}
			p.classes[f] = slices.Delete(p.classes[f], at, at+1)
		}
		p.first[f] = next
		next += len(p.classes[f]) * (1 + len(p.families[f].Classes))
	}
}

// inTime is the last bin that latencies serve within the target of family f; -1: none.
func (p *Problem) inTime(f int, l Latencies) int {
	last := -1
	for b, bin := range p.sizes[f] {
		if l == nil || l.Mean(bin.largest) > p.limit[f][b] {
			break
		}
		last = b
	}
	return last
}

// room is the part of the QoS target within which a run should end, where some agent can do that:
// the rest is for waiting. Chosen: at usual loads a query waits for part of a run, and a run that
// takes the whole target is late if it waits at all.
const room = .7

// setTimeLimits sets, by family and bin, the longest run that counts as in time.
func (p *Problem) setTimeLimits() {
	p.limit = make([][]time.Duration, len(p.families))
	for f := range p.families {
		p.limit[f] = make([]time.Duration, len(p.sizes[f]))
		for b := range p.limit[f] {
			p.limit[f][b] = p.families[f].QoSTarget
		}
	}
	p.eachPair(func(f int, l Latencies) {
		for b, bin := range p.sizes[f] {
			short := time.Duration(room * float64(p.families[f].QoSTarget))
			if l.Mean(bin.largest) <= short {
				p.limit[f][b] = short
			}
		}
	})
}

// eachPair calls do with the latencies of each variant on each partition that there may be.
func (p *Problem) eachPair(do func(f int, l Latencies)) {
	done := map[names.TableKey]bool{}
	for _, k := range p.kinds {
		for _, l := range k.layouts {
			for i := range l.Partitions {
				t := l.LaneType(i, k.typ)
				for _, m := range l.Partitions[i].Models {
					v, ok := p.model[m]
					key := names.TableKey{Model: m, Type: t}
					if !ok || done[key] {
						continue
					}
					done[key] = true
					f, ok := p.family[p.variants[v].Family]
					if known := p.latenciesOf(&p.variants[v], t); ok && known != nil {
						do(f, known)
					}
				}
			}
		}
	}
}

// eachBin calls do with the bins of class k of family f. Sizes that no variant serves in time count
// as the largest size that one does.
func (p *Problem) eachBin(f, k int, do func(bin)) {
	low, high := 0, p.classes[f][k]
	if k > 0 {
		low = p.classes[f][k-1]
	}
	for _, b := range p.sizes[f] {
		top := k == len(p.classes[f])-1
		if b.largest > low && (b.largest <= high || top) {
			if b.largest > high {
				b.mean, b.largest = high, high
			}
			do(b)
		}
	}
}

// classShare is the part of family f's queries that are of class k.
func (p *Problem) classShare(f, k int) float64 {
	share := 0.0
	p.eachBin(f, k, func(b bin) { share += b.share })
	return share
}

// divideDemand sets parts and weights of family f, of all families' demand total. A class with hardly
// any queries keeps a host, as a family does, and no class has more than its share of the agents, or
// one. Up to that it goes before the rest: who gave its clients the right wants that served.
func (p *Problem) divideDemand(f int, total float64) {
	classes := p.families[f].Classes
	parts, weights, sum := make([]float64, len(classes)), make([]float64, len(classes)), 0.0
	rest, _ := p.fastestAgent(p.first[f], len(p.classes[f]))
	for d := range classes {
		fastest, services := p.fastestAgent(p.first[f]+(d+1)*len(p.classes[f]), len(p.classes[f]))
		of := min(fastest, max(total, 1)/20)
		if p.ofClass != nil {
			of = max(of, p.ofClass[f][d])
		}
		most := max(1, math.Floor(classes[d].Share*float64(len(p.agents))))
		parts[d], weights[d] = min(of, most*fastest), 1
		if parts[d] > 0 { // more than what the agents could serve of the rest
			weights[d] = max(1, 1.05*rest*math.Ceil(parts[d]/fastest)/parts[d])
		}
		for _, s := range services {
			s.Rate *= weights[d]
		}
		sum += parts[d]
	}
	p.demand[f] = max(p.demand[f], sum)
	for d := range parts {
		parts[d] /= max(p.demand[f], 1e-9)
	}
	p.parts, p.weights = append(p.parts, parts), append(p.weights, weights)
}

// fastestAgent is the highest rate at which an agent serves one of n classes of the program, of which
// it returns all services.
func (p *Problem) fastestAgent(first, n int) (fastest float64, services []*place.Service) {
	for _, c := range p.program.Choices {
		for _, part := range c.Partitions {
			for i := range part {
				if k := part[i].Class - first; k >= 0 && k < n {
					fastest, services = max(fastest, part[i].Rate), append(services, &part[i])
				}
			}
		}
	}
	return fastest, services
}

// weight is how many queries one of a class of the program of family f counts for.
func (p *Problem) weight(f, class int) float64 {
	d := (class-p.first[f])/len(p.classes[f]) - 1
	if d < 0 || f >= len(p.weights) {
		return 1
	}
	return p.weights[f][d]
}

// programClasses are the program's classes of family f at a rate in queries/s.
func (p *Problem) programClasses(f int, rate float64) (all []place.Class) {
	rest := 1.0
	for _, part := range p.parts[f] {
		rest -= part
	}
	for d, part := range slices.Concat([]float64{max(rest, 0)}, p.parts[f]) {
		for k := range p.classes[f] {
			weight := p.weight(f, p.first[f]+d*len(p.classes[f]))
			all = append(all, place.Class{
				Family: p.families[f].Name, Rate: rate * part * p.classShare(f, k) * weight,
			})
		}
	}
	return all
}

// choiceOf is a layout on agents of kind k with its rates; it has no partition if it serves nothing.
func (p *Problem) choiceOf(k int, layout place.Layout) place.Choice {
	c := place.Choice{Type: k, Layout: layout.String()}
	for i, part := range layout.Partitions {
		lanes := cmp.Or(part.Lanes, p.kinds[k].lanes)
		t := layout.LaneType(i, p.kinds[k].typ)
		var services []place.Service
		for _, m := range part.Models {
			v, ok := p.model[m]
			if !ok {
				continue
			}
			f, ok := p.family[p.variants[v].Family]
			if !ok {
				continue
			}
			known := p.latenciesOf(&p.variants[v], t)
			for class := range p.classes[f] {
				rate := p.serviceRate(f, class, &p.variants[v], known)
				if rate == 0 {
					continue
				}
				s := place.Service{
					Class: p.first[f] + class, Variant: v, Rate: rate * float64(lanes),
				}
				services = append(services, s)
				for _, of := range p.families[f].Classes {
					if s.Class += len(p.classes[f]); slices.Contains(of.Models, m) {
						weighted := s
						weighted.Rate *= p.weight(f, s.Class)
						services = append(services, weighted)
					}
				}
			}
		}
		if len(services) > 0 {
			c.Partitions = append(c.Partitions, services)
		}
	}
	return c
}

// serviceRate is how many queries/s of a class one lane serves in time with a variant.
func (p *Problem) serviceRate(f, class int, v *Variant, known Latencies) float64 {
	largest := slices.IndexFunc(p.sizes[f], func(b bin) bool {
		return b.largest >= p.classes[f][class]
	})
	if known == nil || known.Mean(p.classes[f][class]) > p.limit[f][largest] {
		return 0
	}
	sum, share := 0.0, 0.0
	p.eachBin(f, class, func(b bin) {
		least := known.Mean(b.mean).Seconds()
		if v.Merges {
			for n := 2; n*b.mean <= v.Largest; n *= 2 {
				run := known.Mean(n * b.mean)
				if run > p.families[f].QoSTarget/2 {
					break
				}
				least = min(least, run.Seconds()/float64(n))
			}
		}
		sum, share = sum+b.share*least, share+b.share
	})
	if share == 0 {
		return 0
	}
	return 1 / max(sum/share, 1e-9)
}

// safeShares returns, by family, the share of their time that lanes may answer it (package
// staffing). Its pool are the lanes of all agents or, where no agent can hold it beside another
// family on the same lanes, its part of them, by the work that families make.
func (p *Problem) safeShares() []float64 {
	lanes, all := 0.0, 0.0
	for _, k := range p.kinds {
		lanes += float64(k.lanes * len(k.agents))
	}
	work, beside := make([]float64, len(p.families)), make([]float64, len(p.families))
	for f := range p.families {
		if rate := p.bestRate(f); rate > 0 {
			work[f] = p.demand[f] / rate
		}
		all += work[f]
	}
	for f, shares := range p.sharing() {
		for g, is := range shares {
			if is || f == g {
				beside[f] += work[g]
			}
		}
	}
	shares := make([]float64, len(p.families))
	for f := range shares {
		if shares[f] = 1; !p.unstaffed {
			shares[f] = staffing.SafeShare(lanes * beside[f] / max(all, 1e-9))
		}
	}
	return shares
}

// sharing says of each two families whether some choice has both on the same lanes.
func (p *Problem) sharing() [][]bool {
	shares := make([][]bool, len(p.families))
	for f := range shares {
		shares[f] = make([]bool, len(p.families))
	}
	of := make([]int, len(p.variants)) // their families
	for v := range of {
		of[v] = p.family[p.variants[v].Family]
	}
	var here []int
	for _, c := range p.program.Choices {
		for _, part := range c.Partitions {
			here = here[:0]
			for i := range part {
				if f := of[part[i].Variant]; !slices.Contains(here, f) {
					here = append(here, f)
				}
			}
			for _, f := range here {
				for _, g := range here {
					shares[f][g] = true
				}
			}
		}
	}
	return shares
}

// bestRate is the rate at which the fastest agent serves family f with the most accurate variant.
func (p *Problem) bestRate(f int) float64 {
	fastest := make([]float64, len(p.classes[f]))
	accurate := make([]float64, len(p.classes[f]))
	for _, c := range p.program.Choices {
		for _, part := range c.Partitions {
			for _, s := range part {
				k := s.Class - p.first[f]
				if k < 0 || k >= len(fastest) {
					continue
				}
				a := p.program.Variants[s.Variant].Accuracy
				if a > accurate[k] || a == accurate[k] && s.Rate > fastest[k] {
					accurate[k], fastest[k] = a, s.Rate
				}
			}
		}
	}
	time := 0.0
	for k, rate := range fastest {
		if rate > 0 {
			time += p.classShare(f, k) / rate
		}
	}
	if time == 0 {
		return 0
	}
	return 1 / time
}

// lowerToSlowest lowers, by family, the rate at which the slowest agent serves it to c's, if that
// is less.
func (p *Problem) lowerToSlowest(c *place.Choice, to []float64) {
	for _, part := range c.Partitions {
		for _, s := range part {
			f := p.family[p.program.Variants[s.Variant].Family]
			if s.Class == p.first[f] && (to[f] == 0 || s.Rate < to[f]) {
				to[f] = s.Rate
			}
		}
	}
}

// evaluate solves the program of agents that hold the layouts, by family at rates in queries/s. It
// returns the program, too.
func (p *Problem) evaluate(layouts []place.Layout, rates []float64) (*place.Program,
	*place.Solution) {
	program := &place.Program{Variants: p.program.Variants, Seed: p.seed}
	for f, rate := range rates {
		program.Classes = append(program.Classes, p.programClasses(f, rate)...)
	}
	for k, kind := range p.kinds {
		choice := map[string]int{} // by layout
		for _, a := range kind.agents {
			name := layouts[a].String()
			c, ok := choice[name]
			if !ok {
				c = len(program.Types)
				of := p.choiceOf(k, layouts[a])
				of.Type = c
				program.Types = append(program.Types, place.Type{})
				program.Choices = append(program.Choices, of)
				choice[name] = c
			}
			program.Types[c].Count++
		}
	}
	return program, solve(program, 0)
}

// forecastFamilies is what a solution of program expects of the families.
func (p *Problem) forecastFamilies(program *place.Program,
	sol *place.Solution) []place.FamilyForecast {
	flow := p.flowByVariant(program, sol)
	all := make([]place.FamilyForecast, len(p.families))
	for f := range p.families {
		family := place.FamilyForecast{
			Family: p.families[f].Name, Rate: p.rate[f], Demand: p.demand[f],
		}
		served := 0.0
		for v := range p.variants {
			if p.variants[v].Family == family.Family && flow[v] > 0 {
				served += flow[v]
				family.Accuracy += flow[v] * accuracyOrBest(&p.variants[v])
				family.Shares = append(family.Shares,
					place.VariantShare{Model: p.variants[v].Model, Share: flow[v]})
			}
		}
		for i := range family.Shares {
			family.Shares[i].Share /= served
		}
		if served > 0 {
			family.Accuracy /= served
			family.Served = min(1, served/p.demand[f])
		}
		all[f] = family
	}
	return all
}

// flowByVariant is how many queries/s a solution of program has each variant answer.
func (p *Problem) flowByVariant(program *place.Program, sol *place.Solution) []float64 {
	flow := make([]float64, len(p.variants))
	for c := range sol.Flow {
		for i := range sol.Flow[c] {
			for s, rate := range sol.Flow[c][i] {
				of := program.Choices[c].Partitions[i][s]
				f := p.family[p.variants[of.Variant].Family]
				flow[of.Variant] += rate / p.weight(f, of.Class)
			}
		}
	}
	return flow
}

// assignLayouts gives each agent a layout, so that as few models as possible are loaded.
func (p *Problem) assignLayouts(plan *Plan, counts []int) {
	plan.layouts = slices.Clone(p.current)
	byKind := make([][]int, len(p.kinds)) // choices
	for c, o := range p.choices {
		byKind[o.kind] = append(byKind[o.kind], c)
	}
	for k, kind := range p.kinds {
		free := slices.Clone(kind.agents)
		left := map[int]int{}
		for _, c := range byKind[k] {
			left[c] = counts[c]
			// Agents that have the layout keep it: by the triangle inequality of loads no
			// assignment has less to load.
			free = slices.DeleteFunc(free, func(a int) bool {
				keeps := left[c] > 0 && p.current[a].String() == kind.names[p.choices[c].layout]
				if keeps {
					left[c]--
				}
				return keeps
			})
		}
		var slots []int
		for _, c := range byKind[k] {
			for range left[c] {
				slots = append(slots, c)
			}
		}
		p.fill(plan, kind, slots, free)
		p.extendLayouts(plan, kind, counts, byKind[k])
	}
	p.dropUnasked(plan)
}

// maxAssigned bounds the size of an assignment problem, in agents times layouts; larger ones are
// solved in parts. Solving takes time with the cube of the size. Chosen: 1,000 agents and layouts
// at once.
const maxAssigned = 1 << 20

// fill assigns each slot, which is the index of a choice, to one of the free agents, so that
// loading takes the least time in all: the linear assignment problem, solved by package assign.
// There are at least as many free agents as slots.
func (p *Problem) fill(plan *Plan, k *kind, slots, free []int) {
	for len(slots) > 0 {
		n := len(slots)
		if n*len(free) > maxAssigned {
			n = max(1, maxAssigned/len(free))
		}
		cost := make([]float64, 0, n*len(free))
		for _, c := range slots[:n] {
			for _, a := range free {
				cost = append(cost, p.load(p.current[a], k.layouts[p.choices[c].layout]).Seconds())
			}
		}
		match := make([]int, n)
		if _, _, err := new(assign.Solver).Solve(cost, n, len(free), match); err != nil {
			panic(err) // loads are finite
		}
		taken := make([]bool, len(free))
		for s, a := range match {
			plan.layouts[free[a]] = k.layouts[p.choices[slots[s]].layout]
			taken[a] = true
		}
		var rest []int
		for i, a := range free {
			if !taken[i] {
				rest = append(rest, a)
			}
		}
		slots, free = slots[n:], rest
	}
}

// missingEvents tells of families that no agent can hold, and of variants that fit none.
func (p *Problem) missingEvents() []Event {
	var all []Event
	served := make([]bool, len(p.families))
	for _, c := range p.program.Choices {
		for _, part := range c.Partitions {
			for _, s := range part {
				served[p.family[p.program.Variants[s.Variant].Family]] = true
			}
		}
	}
	for i := range p.variants {
		v := &p.variants[i]
		l := place.NewLayout(v.Model)
		var why []string
		can := false
		for a := range p.agents {
			if reason := p.misfitReason(&p.agents[a], l); reason == "" ||
				p.current[a].Has(v.Model) {
				can = true
				break
			} else if slices.Contains(p.agents[a].Available, v.Model) {
				why = append(why, fmt.Sprintf("%s: %s", p.agents[a].Name, reason))
			}
		}
		if !can && len(why) > 0 {
			all = append(
				all, Event{Kind: Unplaced, Model: v.Model, Family: v.Family, Text: fmt.Sprintf(
					"no agent can hold model %s: %s", v.Model, summarizeTexts(why))})
		}
	}
	for f, is := range served {
		name := p.families[f].Name
		if is || len(p.agents) == 0 {
			continue
		}
		on := slices.ContainsFunc(p.agents, func(a Agent) bool {
			return slices.ContainsFunc(a.Available, func(m names.ModelKey) bool {
				v, ok := p.model[m]
				return ok && p.variants[v].Family == name
			})
		})
		text := fmt.Sprintf("family %s: no agent can serve it within its QoS target of %v", name,
			p.families[f].QoSTarget)
		if !on {
			text = fmt.Sprintf("family %s: no agent has a model of it on disk", name)
		}
		all = append(all, Event{Kind: Unplaced, Family: name, Text: text})
	}
	return all
}

// summarizeTexts is the first of the texts.
func summarizeTexts(texts []string) string {
	if len(texts) <= 3 {
		return strings.Join(texts, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(texts[:3], "; "), len(texts)-3)
}
