package match

import (
	"math"
	"slices"

	"github.com/muster-serve/muster/leader/internal/assign"
)

// The constants of horizon; costs are in units of what an average query is worth.
const (
	// waitPrice is the cost of starting one QoS target later. Half or twice as much changes
	// throughput by .0005 of the fluid limit (docs/internals/matching.md).
	waitPrice = 4
	// latePrice is the cost of a slot in which a query would be late; it is above the cost of any
	// query of the round. The query's usual cost there, divided by lateScale, is added to it, and
	// so orders such slots.
	latePrice, lateScale = 20, 1000
	// fairPrice is added to latePrice for each share that the query's family has got less than
	// another, up to latePrice. So a slot goes first to a family whose share is .01 smaller. Twice
	// or half of it makes no difference.
	fairPrice = 200
	// fullBacklog is the backlog, in QoS targets, above which prices do not rise. Chosen: what
	// waits longer than .8 of its target has hardly time left to run.
	fullBacklog = 0.8
	// calmWork and calmQueue say when a lost query may start: when the lanes of the type have at
	// most calmWork QoS targets of work. The bound rises by calmWork for each calmQueue lost
	// queries, and for each QoS target since the query was lost; otherwise a lost query would wait
	// in vain in a small pool that is never quite calm, beside an idle lane. Towards the query's
	// deadline, if it has one, the bound rises to a whole QoS target of work. A smaller calmWork
	// gains throughput, .0034 of the limit from .05 to .005, and lets lost queries wait for longer
	// (docs/internals/matching.md).
	calmWork, calmQueue = 0.0002, 20
	// The smallest of the oldest calmChoice lost queries starts first. Chosen: with one, a large
	// query holds up small ones behind it; with many, large ones would wait for ever.
	calmChoice = 4
	// Lost queries start at once if, in the mean, spareLanes lanes or a share spareMost of all
	// lanes are spare. With a smaller share small pools lose: dien on 1 and 4 lanes loses 1 % with
	// a fifth.
	spareLanes, spareMost = 3, 0.75
	// Prices are those of time at the limit. For the choice between variants, time costs the less
	// the more a group idles: its whole price if it does not idle, and minScarcity of that if its
	// lanes have idled for plentyIdle of the last time or more. That time is idleTargets QoS
	// targets of the slowest model. A longer one would see a burst too late: slow variants would
	// fill the lanes first.
	plentyIdle, minScarcity = 0.15, 0.001
	idleTargets             = 0.3
)

// horizon is Muster's own policy; docs/internals/policies.md compares it with kairos. It departs
// from kairos in ten ways. An instance's time costs the fluid program's price, which rises with the
// type's backlog and falls with the spare time of the lanes; the answer's time costs the more
// instead. Above the limit families get fair shares (demand.go), the dearest queries are shed
// (shed.go), and lanes are kept from long runs (reserve.go). Queries are matched to two slots per
// lane. The 80 % quantile of latency, not the mean, is compared with the time left. A query may run
// as several parts (see split.go). The policy chooses which of a type's queries runs first. When
// lanes are scarce, lost queries wait for calm moments. A lane for which nothing is planned does
// not idle while a query could be in time there by the mean latency. And of a family's variants it
// takes the one that costs least, its lack of accuracy included.
type horizon struct {
	solver assign.Solver
	groups []group
	rows   []*query
	risky  []*query // live queries that are in no group's plan
	cells  []cell   // by row and group
	// others has, for each cell of a row that several variants may answer, all that the group
	// holds.
	others  []cell
	due     []float64 // by row: the time left until the QoS target, ms
	dearest float64   // the highest cost of any row on a group that serves it
	slots   []slot
	cost    []float64
	match   []int
	taken   []bool // by slot: something is planned for it
	// early lists, by group, the MostParts slots that begin first of those that are not taken, and
	// -1 for each that is missing.
	early []int
	// largest is the largest share that a family of a row has got, spare the part for which a
	// query's time counts.
	largest, spare float64

	// gathered is the matcher's generation of the groups, and none has a cell without a variant for
	// each group.
	gathered uint64
	none     []cell

	open           []*lane // the open lanes of a group
	planned, order []int32 // rows
	freeAt         []float64
	merging        mergeBuffer
}

// A cell says what a row takes and costs on a group, by the variant that is the best choice there.
type cell struct {
	model      int     // -1 if the group serves no variant; then mean and safe are +Inf
	mean, safe float64 // safe is the 80 % quantile
	price      float64 // of 1 ms
	regret     float64 // what the answer costs for its accuracy
	from, n    int32   // the row's variants in others, if there are several
}

// costWithoutWait is what the row costs there, without waiting.
func (c *cell) costWithoutWait() float64 { return c.price*c.mean + c.regret }

// A group is what a round knows of a group of lanes.
type group struct {
	*laneGroup
	typ   *instanceType
	work  float64 // work of all its lanes and of the queries waiting for them, lane ms
	first float64 // when the first of them is free, ms from now
	// scarcity is the part of the price that time costs in the choice between variants.
	scarcity float64
	// weight is the part of its price that its time costs: 1 without spare time, 0 if all is spare.
	weight    float64
	backlog   backlogFactor
	forgotten bool    // see isForgotten
	rest      []int32 // rows planned for it and not dispatched, the oldest first
	reserved  int     // slots that are planned for queries of flows before
	room      int     // how many more rows are worth looking at because of its lanes
	asked     bool    // it serves some row
	opens     bool    // one of its lanes was open when the round began
}

// isIdle reports whether g has an open lane and nothing is planned for it.
func (g *group) isIdle(m *Matcher) bool { return !g.hasPlan() && g.hasOpen(m) }

// hasPlan reports whether something is planned for g and has not started.
func (g *group) hasPlan() bool { return len(g.rest)+g.reserved > 0 }

// anyIdle reports whether some group is idle.
func (h *horizon) anyIdle(m *Matcher) bool {
	for g := range h.groups {
		if h.groups[g].isIdle(m) {
			return true
		}
	}
	return false
}

// A slot is the next query that a lane runs, or the one after it.
type slot struct {
	group int
	lane  *lane
	start float64 // ms from now
}

func (*horizon) enqueueArrival(*shard, *query) {}

func (h *horizon) assignQueries(s *shard) {
	if h.prepareRound(s) {
		h.planRound(s)
	}
}

// prepareRound brings the groups and the demands up to now, and reports whether some waiting query
// can start, or be split.
func (h *horizon) prepareRound(s *shard) bool {
	h.collectGroups(s)
	for _, k := range s.classes {
		if k.live.Len() > 0 {
			h.decayDemand(s, k)
		}
	}
	return h.mayStartQuery(s)
}

// planRound plans for the waiting queries and starts those whose turn it is: flow by flow, each with
// the lanes and slots that the flows before it leave.
func (h *horizon) planRound(s *shard) {
	flows := s.waitingFlows()
	if len(flows) < 2 {
		h.planFlow(s, nil, math.MaxInt)
		return
	}
	if s.owed > 0 {
		h.planFlow(s, s.firstOfLowestBand(), 1)
		h.reservePlan()
	}
	for _, f := range flows {
		if f.live > 0 {
			h.planFlow(s, f, math.MaxInt)
			h.reservePlan()
		}
	}
}

// reservePlan keeps the slots of what is planned and has not started from the flows that follow.
func (h *horizon) reservePlan() {
	for g := range h.groups {
		grp := &h.groups[g]
		grp.reserved += len(grp.rest)
		grp.rest = grp.rest[:0]
	}
}

// planFlow plans for the waiting queries of a flow, nil for all, at most so many, and starts those
// whose turn it is.
func (h *horizon) planFlow(s *shard, of *flow, most int) {
	h.collectRows(s, of, most)
	if len(h.rows) > 0 {
		h.planSlots(s)
	}
	h.split(s)
	if len(h.rows) > 0 {
		before := len(s.m.out)
		for g := range h.groups {
			h.dispatchGroup(s, g)
		}
		h.fill(s, before)
		h.forgetPlan()
	}
	if !h.anyIdle(s.m) {
		return
	}
	h.serveRisky(s)
	if s.late.Len() > 0 {
		for g := range h.groups {
			h.groups[g].asked = h.groups[g].reserved > 0 || h.servesAnyRow(g)
		}
		for h.serveLost(s) {
		}
	}
	h.serveHopeless(s)
}

// servesAnyRow reports whether group g serves some row.
func (h *horizon) servesAnyRow(g int) bool {
	for i := range h.rows {
		if h.cellAt(i, g).model >= 0 {
			return true
		}
	}
	return false
}

// sparePart is the part for which the time that a query takes counts in the choice of a lane, where
// the given share of lane time is spare; for the rest the price of the lane's time does. With the
// share itself, p99 at half the limit is some 10 % longer, and at the limit it makes no difference.
func sparePart(share float64) float64 { return math.Sqrt(min(1, max(0, share))) }

// collectGroups collects the groups and their work.
func (h *horizon) collectGroups(s *shard) {
	s.spare.updateAverage(s.m.now, s.m.spareOver)
	h.spare = sparePart(s.spare.share)
	if h.gathered != s.m.generation {
		h.gathered = s.m.generation
		h.formGroups(s)
	}
	for g := range h.groups {
		grp := &h.groups[g]
		grp.rest, grp.work, grp.first = grp.rest[:0], 0, math.Inf(1)
		grp.reserved = 0
		grp.weight, grp.opens = 1-h.spare, false
		for i, at := range grp.freeAt {
			grp.work += max(0, at-s.m.now)
			grp.first = min(grp.first, grp.startMs(s.m, i))
		}
		grp.opens = grp.hasOpen(s.m)
		grp.forgotten = grp.isForgotten(s)
	}
	if len(s.m.named) > 0 {
		for g := range h.groups {
			h.groups[g].assessScarcity(s)
		}
	}
}

// formGroups puts the usable lanes into groups.
func (h *horizon) formGroups(s *shard) {
	h.groups = h.groups[:0]
	for k, g := range s.laneGroups() {
		if k == cap(h.groups) {
			h.groups = append(h.groups, group{})
		} else {
			h.groups = h.groups[:k+1]
		}
		h.groups[k].laneGroup, h.groups[k].typ = g, g.spec.typ
	}
	h.none = h.none[:0]
	for range h.groups {
		h.none = append(h.none, cell{model: -1, mean: math.Inf(1), safe: math.Inf(1)})
	}
}

// mayStartQuery reports whether some waiting query can start, or be split. Where lanes hold
// different models, most queries come while those that serve them are busy, and a round would find
// out that it has nothing to do by planning all that waits.
func (h *horizon) mayStartQuery(s *shard) bool {
	for _, k := range s.classes {
		if k.live.Len() == 0 && k.late == 0 {
			continue
		}
		if k.family.splits || slices.ContainsFunc(h.servingGroups(k),
			func(g int) bool { return h.groups[g].opens }) {
			return true
		}
	}
	return false
}

// servingGroups returns the groups that hold a variant which may answer the queries of a class, and
// know how long it takes. Where lanes hold different models they are few.
func (h *horizon) servingGroups(k *queryClass) []int {
	if k.gathered != h.gathered {
		k.gathered, k.serving = h.gathered, k.serving[:0]
		for g := range h.groups {
			l := h.groups[g].lanes[0]
			if slices.ContainsFunc(k.allowedVariants(), func(v variant) bool {
				return l.latencyTable(v.model) != nil
			}) {
				k.serving = append(k.serving, g)
			}
		}
	}
	return k.serving
}

// assessScarcity sets how scarce g's time is.
func (g *group) assessScarcity(s *shard) {
	idle := 0.0
	for _, l := range g.lanes {
		l.idle.updateAverage(s.m.now, s.m.idleOver())
		idle += l.idle.share / float64(len(g.lanes))
	}
	g.scarcity = min(1, max(minScarcity, 1-idle/plentyIdle))
}

// collectRows collects the rows, with their latencies and prices: those of the oldest live queries
// that some lane can still serve in time by the 80 % quantile. The others are risky. There are at
// most roundRows rows for each lane, and each takes the room of a group that serves it. The rows are
// of one flow, or of all if that is nil, and no more than most.
func (h *horizon) collectRows(s *shard, of *flow, most int) {
	room := 0
	for g := range h.groups {
		grp := &h.groups[g]
		grp.room = max(0, roundRows*len(grp.lanes)-grp.reserved)
		room += grp.room
	}
	room = min(room, most)
	h.rows, h.due, h.cells, h.others = h.rows[:0], h.due[:0], h.cells[:0], h.others[:0]
	h.risky = h.risky[:0]
	for q := range s.byShare(2*room, of) {
		if len(h.rows) == room {
			break
		}
		due := q.arrival + q.family.target - s.m.now
		at := len(h.cells)
		possible, cheapest, least, roomy := false, -1, math.Inf(1), -1
		h.cells = append(h.cells, h.none...)
		for _, g := range h.servingGroups(q.class) {
			grp := &h.groups[g]
			c := grp.fastestCell(q)
			h.cells[at+g] = c
			possible = possible || grp.first+c.safe <= due
			if cost := c.price * c.mean; c.mean <= due && cost < least {
				cheapest, least = g, cost
			}
			if c.model >= 0 && grp.room > 0 && (roomy < 0 || grp.room > h.groups[roomy].room) {
				roomy = g
			}
		}
		if possible && roomy < 0 {
			h.cells = h.cells[:at]
			continue
		}
		if cheapest >= 0 {
			h.groups[cheapest].work += h.cells[at+cheapest].mean
		}
		if !possible || q.class.demand.shedsQuery(q) {
			h.cells = h.cells[:at]
			h.risky = append(h.risky, q)
			continue
		}
		h.groups[roomy].room--
		h.rows, h.due = append(h.rows, q), append(h.due, due)
	}
	h.dearest, h.largest = 0, 0
	for i := range h.rows {
		h.largest = max(h.largest, h.rows[i].class.demand.servedShare())
		for g := range h.groups {
			h.priceRow(i, g)
		}
	}
}

// cellAt returns the cell of a row and a group.
func (h *horizon) cellAt(row, group int) *cell { return &h.cells[row*len(h.groups)+group] }

// fastestCell returns what q takes on g by the fastest variant, at the price without backlog.
func (g *group) fastestCell(q *query) cell {
	model, t := g.lanes[0].fastestVariant(q)
	if !g.lanes[0].outlastsRun(t, q.batch) {
		return cell{model: -1, mean: math.Inf(1), safe: math.Inf(1)}
	}
	return cell{
		model: model, mean: t.mean[q.batch], safe: g.typ.safeLatencyMs(model, q),
		price: g.lanes[0].timePrice(model),
	}
}

// priceRow sets what a row costs on a group. Of several variants it takes the one that costs least
// and is in time on the lane of the group that is free first, else the fastest.
func (h *horizon) priceRow(row, group int) {
	q, grp, c := h.rows[row], &h.groups[group], h.cellAt(row, group)
	if c.model < 0 {
		return
	}
	all := q.allowedVariants()
	worth := c.price * grp.priceDiscount(len(all))
	c.price = worth * grp.priceFactor(q.family.target, c.mean)
	if len(all) > 1 {
		c.from = int32(len(h.others))
		for _, v := range all {
			if t := grp.lanes[0].latencyTable(v.model); grp.lanes[0].outlastsRun(t, q.batch) {
				o := cell{
					model: v.model, mean: t.mean[q.batch], safe: grp.typ.safeLatencyMs(v.model, q),
					regret: v.regret,
				}
				o.price = worth * grp.priceFactor(q.family.target, o.mean)
				h.others = append(h.others, o)
				h.dearest = max(h.dearest, o.costWithoutWait())
				if v.model == c.model {
					c.regret = o.regret
				}
			}
		}
		c.n = int32(len(h.others)) - c.from
		if o := h.cheapestInTime(c, h.due[row]-grp.first); o != nil {
			c.replaceChoice(o)
		}
	}
	h.dearest = max(h.dearest, c.costWithoutWait())
}

// priceDiscount returns the part of its price that g's time costs a query that so many variants may
// answer.
func (g *group) priceDiscount(variants int) float64 {
	if variants > 1 {
		return g.scarcity
	}
	return g.weight
}

// cheapestInTime returns the variant that costs least of those of c that are in time after the
// given time, nil if none is.
func (h *horizon) cheapestInTime(c *cell, within float64) (best *cell) {
	for i := range c.n {
		o := &h.others[c.from+i]
		if o.safe <= within && (best == nil || o.costWithoutWait() < best.costWithoutWait()) {
			best = o
		}
	}
	return best
}

// replaceChoice makes another variant the choice.
func (c *cell) replaceChoice(o *cell) {
	c.model, c.mean, c.safe, c.price, c.regret = o.model, o.mean, o.safe, o.price, o.regret
}

// A backlogFactor is exp(a (w - r)), kept because the rows of a round ask for the same one.
type backlogFactor struct{ w, a, factor float64 }

// backlogRise are the numbers a and r by which the price of t rises with its backlog.
func (t *instanceType) backlogRise() (a, r float64) {
	if t.base {
		return 1, 0.1
	}
	return 2, 0.3
}

// priceFactor is the factor by which the price of g's time rises with its backlog for a query of the
// given mean latency: the mean of exp(a (min(y, fullBacklog) - r)) over y from w, the backlog in QoS
// targets, to what it is with the query.
func (g *group) priceFactor(target, mean float64) float64 {
	capacity := float64(len(g.lanes)) * target
	w, d := g.work/capacity, mean/capacity
	a, r := g.typ.backlogRise()
	if base := (backlogFactor{w: min(w, fullBacklog), a: a}); g.backlog.w != base.w ||
		g.backlog.a != a {
		base.factor = math.Exp(a * (base.w - r))
		g.backlog = base
	}
	if w >= fullBacklog {
		return g.backlog.factor
	}
	below := min(d, fullBacklog-w) // the part of d below fullBacklog
	sum := g.backlog.factor * math.Expm1(a*below) / a
	if below < d {
		sum += math.Exp(a*(fullBacklog-r)) * (d - below)
	}
	return sum / d
}

// planSlots matches rows to slots and gives each group the rows that its slots can serve in time.
// The other rows are risky.
func (h *horizon) planSlots(s *shard) {
	h.cutSlots(s.m, h.maxSlots(s.m))
	h.cost = h.cost[:0]
	for i, q := range h.rows {
		perMs := waitPrice / q.family.target
		for _, slot := range h.slots {
			cost := math.Inf(1)
			if c := h.cellAt(i, slot.group); c.model >= 0 {
				cost = c.costWithoutWait() + perMs*h.slotDelayMs(slot, c)
				if slot.start+c.safe > h.due[i] {
					if o := h.cheapestInTime(c, h.due[i]-slot.start); o != nil {
						cost = o.costWithoutWait() + perMs*h.slotDelayMs(slot, o)
					} else {
						cost = latePrice + h.dearest + h.unfairnessCost(q) + cost/lateScale
					}
				}
			}
			h.cost = append(h.cost, cost)
		}
	}
	h.match = slices.Grow(h.match[:0], len(h.rows))[:len(h.rows)]
	if _, _, err := h.solver.Solve(h.cost, len(h.rows), len(h.slots), h.match); err != nil {
		panic(err) // costs are finite or +Inf
	}
	for i, k := range h.match {
		if k >= 0 {
			slot := h.slots[k]
			c := h.cellAt(i, slot.group)
			if slot.start+c.safe > h.due[i] {
				if o := h.cheapestInTime(c, h.due[i]-slot.start); o != nil {
					c.replaceChoice(o)
				}
			}
			if slot.start+c.safe <= h.due[i] {
				grp := &h.groups[slot.group]
				grp.rest = append(grp.rest, int32(i))
				continue
			}
		}
		h.risky = append(h.risky, h.rows[i])
	}
}

// slotDelayMs is the time, in ms, that counts in the choice of a slot: the wait for it, and as far
// as lane time is spare also the run. At the limit a slow lane is as good as a fast one if the
// query is in time there, and leaves the fast one to another; far below it, there is none.
//
// Of an agent that departs from its type nothing is learned while the others idle and are faster.
// So now and then a query goes there as if it were as fast.
func (h *horizon) slotDelayMs(s slot, c *cell) float64 {
	if h.groups[s.group].forgotten {
		return s.start
	}
	return s.start + h.spare*c.mean
}

// tryEvery is how many queries of a shard must have started since an agent that departs from its
// type got one, or any such agent was tried: few enough that p99 hardly sees them.
const tryEvery = 100

// noteLane counts a query that l gets.
func (s *shard) noteLane(l *lane) {
	if l.typ.isOwn && s.starts-l.started >= tryEvery {
		s.tried = s.starts
	}
	s.starts++
	l.started = s.starts
}

// isForgotten reports whether an agent's own type has run nothing for long.
func (g *group) isForgotten(s *shard) bool {
	return g.typ.isOwn && s.starts-s.tried >= tryEvery &&
		!slices.ContainsFunc(g.lanes, func(l *lane) bool { return s.starts-l.started < tryEvery })
}

// unfairnessCost is what it costs beside latePrice if q is late, because its family has got a
// smaller share than another.
func (h *horizon) unfairnessCost(q *query) float64 {
	return min(latePrice, fairPrice*(h.largest-q.class.demand.servedShare()))
}

// maxSlots is how many slots of a group can make a difference. The rows take no more than there are
// rows, and each row prefers those that begin first. That does not hold of a row that a slower
// variant may answer in an earlier slot, nor of one that may be split and so take several.
func (h *horizon) maxSlots(m *Matcher) int {
	if len(h.others) > 0 || slices.ContainsFunc(h.rows, m.maySplit) ||
		slices.ContainsFunc(h.risky, m.maySplit) {
		return math.MaxInt
	}
	return len(h.rows)
}

// cutSlots cuts the lanes' time into slots. Of a group it keeps those that begin first, so many at
// most.
func (h *horizon) cutSlots(m *Matcher, most int) {
	h.slots = h.slots[:0]
	ahead := 2
	if len(h.rows) <= 1 {
		ahead = 1
	}
	for g := range h.groups {
		grp := &h.groups[g]
		from, most := len(h.slots), most
		if most < math.MaxInt-grp.reserved {
			most += grp.reserved
		}
		for i, l := range grp.lanes {
			start := grp.startMs(m, i)
			for k := range ahead {
				if x := (slot{g, l, start + float64(k)*l.service}); len(h.slots)-from < most {
					h.slots = append(h.slots, x)
				} else {
					replaceLast(h.slots[from:], x)
				}
			}
		}
		for range min(grp.reserved, len(h.slots)-from) { // the earliest are taken
			first := from
			for k := from + 1; k < len(h.slots); k++ {
				if h.slots[k].start < h.slots[first].start {
					first = k
				}
			}
			h.slots = slices.Delete(h.slots, first, first+1)
		}
	}
}

// replaceLast puts a slot in the place of the one that begins last, if that begins later.
func replaceLast(slots []slot, x slot) {
	last := 0
	for i := range slots {
		if slots[i].start >= slots[last].start {
			last = i
		}
	}
	if x.start < slots[last].start {
		copy(slots[last:], slots[last+1:]) // keeps the order of the lanes
		slots[len(slots)-1] = x
	}
}

// dispatchGroup starts queries of g's plan on its open lanes: the one that must start first,
// provided that the others can still be in time after it. If not all can be, whichever starts, it
// is the first of the family that has got the smallest share.
func (h *horizon) dispatchGroup(s *shard, g int) {
	grp := &h.groups[g]
	if len(grp.rest) == 0 {
		return
	}
	h.open = h.open[:0]
	for _, l := range grp.lanes {
		if l.open() {
			h.open = append(h.open, l)
		}
	}
	slices.SortStableFunc(h.open, func(a, b *lane) int { return len(a.held) - len(b.held) })
	for _, l := range h.open {
		if len(grp.rest) == 0 {
			return
		}
		h.order = append(h.order[:0], grp.rest...)
		h.byLatestStart(g, h.order)
		chosen := int32(-1)
		for _, i := range h.order {
			if l.start()+h.cellAt(int(i), g).safe > h.due[i] {
				continue
			}
			if chosen < 0 || h.rows[i].family != h.rows[chosen].family &&
				h.familyShare(i) < h.familyShare(chosen) {
				chosen = i
			}
			if h.fitsPlan(g, l, i) {
				chosen = i
				break
			}
		}
		if chosen < 0 {
			continue
		}
		c := h.cellAt(int(chosen), g)
		h.rows[chosen].model = c.model
		if s.holdsBack(h.rows[chosen], l, c.mean) {
			continue
		}
		k := slices.Index(grp.rest, chosen)
		grp.rest = slices.Delete(grp.rest, k, k+1)
		s.assignToLane(h.rows[chosen], l, c.model, c.costWithoutWait())
	}
}

// familyShare is the share that the family of a row has got.
func (h *horizon) familyShare(row int32) float64 { return h.rows[row].class.demand.servedShare() }

// byLatestStart sorts rows by the latest time at which they can start on g and be in time.
func (h *horizon) byLatestStart(g int, rows []int32) {
	latest := func(i int32) float64 { return h.due[i] - h.cellAt(int(i), g).safe }
	for k := 1; k < len(rows); k++ { // an insertion sort: the rows are few, and mostly sorted
		for j := k; j > 0 && latest(rows[j]) < latest(rows[j-1]); j-- {
			rows[j], rows[j-1] = rows[j-1], rows[j]
		}
	}
}

// fitsPlan reports whether g can serve the rest of its plan in time if l runs row first now. Each
// next query goes to the lane that is free first. fits tries two orders of the queries: the oldest
// first, and the earliest latest start first.
func (h *horizon) fitsPlan(g int, l *lane, first int32) bool {
	h.planned = h.planned[:0]
	for _, i := range h.groups[g].rest {
		if i != first {
			h.planned = append(h.planned, i)
		}
	}
	if h.isPlanInTime(g, l, first) {
		return true
	}
	h.byLatestStart(g, h.planned)
	return h.isPlanInTime(g, l, first)
}

// isPlanInTime reports whether all planned rows are in time if they start in the order that they
// have.
func (h *horizon) isPlanInTime(g int, l *lane, first int32) bool {
	lanes := h.groups[g].lanes
	h.freeAt = slices.Grow(h.freeAt[:0], len(lanes))[:len(lanes)]
	for k, o := range lanes {
		h.freeAt[k] = o.start()
		if o == l {
			h.freeAt[k] += h.cellAt(int(first), g).mean
		}
	}
	for _, i := range h.planned {
		next := -1
		for k, t := range h.freeAt {
			if next < 0 || t < h.freeAt[next] {
				next = k
			}
		}
		c := h.cellAt(int(i), g)
		if h.freeAt[next]+c.safe > h.due[i] {
			return false
		}
		h.freeAt[next] += c.mean
	}
	return true
}

// serveRisky starts each risky query on an open lane where it would be in time by the mean and
// nothing else is planned; of several such lanes on the safest. Waiting could only make it later.
// It leaves in h.risky the queries that no lane, busy or not, can serve in time.
func (h *horizon) serveRisky(s *shard) {
	hopeless := h.risky[:0]
	for _, q := range h.risky {
		due := q.arrival + q.family.target - s.m.now
		var safest *lane
		least, hope, model := math.Inf(1), false, -1
		for g := range h.groups {
			grp := &h.groups[g]
			c := grp.fastestCell(q)
			for _, l := range grp.lanes {
				if l.start()+c.mean > due {
					continue
				}
				hope = true
				if safe := l.start() + c.safe; safe < least && l.open() && !grp.hasPlan() &&
					!s.holdsBack(q, l, c.mean) {
					safest, least, model = l, safe, c.model
				}
			}
		}
		if safest != nil {
			s.assignToLane(q, safest, model, 0)
		} else if !hope {
			hopeless = append(hopeless, q)
		}
	}
	h.risky = hopeless
}

// serveHopeless starts, while lanes are plenty, the queries that serveRisky has left, because they
// are almost certainly lost.
func (h *horizon) serveHopeless(s *shard) {
	for _, q := range h.risky {
		for g := range h.groups {
			for _, l := range h.groups[g].lanes {
				if h.groups[g].hasPlan() || !s.hasSpareLanes() {
					continue
				}
				if model, t := l.fastestVariant(q); model >= 0 && !s.holdsBack(q, l,
					t.mean[q.batch]) &&
					s.assignToLane(q, l, model, 0) {
					break
				}
			}
		}
	}
}

// serveLost starts a lost query on a group that serves no row and is calm enough, and reports
// whether it did. It spares the only lane of a type, because the next query may need it, unless no
// other lane can serve the lost query.
func (h *horizon) serveLost(s *shard) bool {
	for _, spare := range []bool{true, false} {
		for g := range h.groups {
			grp := &h.groups[g]
			if grp.asked || spare && len(grp.lanes) == 1 {
				continue
			}
			for _, l := range grp.lanes {
				if !l.open() {
					continue
				}
				if q := h.findLostQuery(s, grp, l, spare); q != nil {
					model, t := l.fastestVariant(q)
					grp.work += t.mean[q.batch]
					return s.assignToLane(q, l, model, 0)
				}
			}
		}
	}
	return false
}

// findLostQuery returns the lost query that may start on l of grp, or nil.
func (h *horizon) findLostQuery(s *shard, grp *group, l *lane, spare bool) (chosen *query) {
	work := grp.work / float64(len(grp.lanes)) / (1 + float64(s.late.Len())/calmQueue)
	if s.hasSpareLanes() {
		work = 0
	}
	n := 0
	for q := s.late.First(); q != nil && n < calmChoice; q = q.inShard.Next() {
		if _, t := l.fastestVariant(q); !l.outlastsRun(t, q.batch) {
			continue
		}
		n++
		target, lost := q.family.target, max(0, s.m.now-q.lostAt)
		calm := max(calmWork*(target+lost), target*lost/(q.deadline-q.lostAt))
		if (spare || !h.isServedBySpareType(q)) && work <= calm && (chosen == nil ||
			q.batch < chosen.batch) {
			chosen = q
		}
	}
	if chosen != nil {
		if _, t := l.fastestVariant(chosen); s.holdsBack(chosen, l, t.mean[chosen.batch]) {
			return nil
		}
	}
	return chosen
}

// isServedBySpareType reports whether some type with more than one lane, which serves no row, can
// serve q.
func (h *horizon) isServedBySpareType(q *query) bool {
	for g := range h.groups {
		if lanes := h.groups[g].lanes; len(lanes) > 1 && !h.groups[g].asked &&
			slices.ContainsFunc(lanes, func(l *lane) bool { return l.canServe(q) }) {
			return true
		}
	}
	return false
}
