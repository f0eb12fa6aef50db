package match

import (
	"math"
	"slices"
	"sort"
)

// MostParts is the most parts into which a query is split.
const MostParts = 3

// numbering is the distance between the numbers of a gateway's queries if the gateway can split
// queries; the numbers between are those of parts.
const numbering = MostParts + 1

// Part is the id of part p of the query id, 1..[MostParts].
func (id QueryID) Part(p int) QueryID {
	id.Sequence += uint64(p)
	return id
}

// Whole is the id of the query of which id is a part, or id itself. Like IsPart, it is only about
// queries of gateways that can split.
func (id QueryID) Whole() QueryID {
	id.Sequence -= id.Sequence % numbering
	return id
}

// IsPart reports whether id is that of a part.
func (id QueryID) IsPart() bool { return id.Sequence%numbering != 0 }

// eachPart calls do with each part that the matcher knows of the query id. If id is a part itself,
// there is none.
func (m *Matcher) eachPart(id QueryID, do func(part *query)) {
	for p := 1; p <= MostParts && m.parts > 0 && !id.IsPart(); p++ {
		if part := m.queries[id.Part(p)]; part != nil && part.part {
			do(part)
		}
	}
}

// hasParts reports whether the matcher knows parts of the query id.
func (m *Matcher) hasParts(id QueryID) (any bool) {
	m.eachPart(id, func(*query) { any = true })
	return any
}

// countWaiting adds n to the counts of waiting queries because of q, which begins or ends to wait
// or to be late. The parts of a query count as one.
func (m *Matcher) countWaiting(q *query, n int) {
	first, firstLate := true, true
	if q.part {
		m.eachPart(q.id.Whole(), func(o *query) {
			if o != q && o.waiting {
				first, firstLate = false, firstLate && !o.isLate
			}
		})
	}
	if first {
		m.waiting += n
	}
	if q.isLate && firstLate {
		m.lateWaiting += n
	}
}

// partTaken reports whether q cannot be split because its gateway has used a number of its parts.
func (m *Matcher) partTaken(q *query) bool {
	for p := 1; p <= MostParts; p++ {
		if m.queries[q.id.Part(p)] != nil {
			return true
		}
	}
	return false
}

// split replaces q, which waits at s and may be split, by parts of so many rows, which wait at s. All
// ask for the given variant, so that one answers all rows.
func (s *shard) split(q *query, rows []int, model int) []*query {
	m := s.m
	q.model = model
	m.out = append(m.out, m.bind(q, Decision{
		Action: Split, Waited: fromMs(m.now - q.arrival), Rows: slices.Clone(rows),
	}))
	s.removeWaiting(q)
	parts := make([]*query, len(rows))
	for p, n := range rows {
		part := m.add(query{
			id: q.id.Part(p + 1), family: m.alone[model], model: model, accuracy: q.accuracy,
			batch: q.partWork(n), rows: n, once: q.once,
			arrival: q.arrival, deadline: q.deadline, splits: true, part: true,
			flowKey: q.flowKey, weight: q.weight,
		})
		part.bound = m.computeBound(part)
		s.addLive(part)
		parts[p] = part
	}
	m.deleteQuery(q)
	for _, part := range parts {
		if part.waiting { // none is rejected together with another one
			m.enforceDeadline(part)
		}
	}
	return parts
}

// The costs are those of horizon.
const (
	// A query that is planned is split if its parts cost at most splitGain of what it would cost.
	// Chosen: parts take more work together than the query, and the difference covers errors of the
	// estimates.
	splitGain = 0.7
	// A risky query is split if its parts cost at most splitMost; chosen, between waitPrice and
	// latePrice.
	splitMost = 6
)

// A splitPlan is a way to split a query: the parts' rows, and the slots where they are in
// time.
type splitPlan struct {
	model       int // the variant
	rows, slots [MostParts]int
	n           int
	cost        float64 // of running the parts, and of the answer
	start       float64 // of the last slot
}

// maySplit reports whether q may run as several parts. A query that was ever sent is not split: its
// last attempt may still be answered.
func (m *Matcher) maySplit(q *query) bool {
	return q.splits && !q.part && q.attempt == 0 && q.rows > 1 && q.family.splits
}

// fitsWithin reports whether q has at most so many rows. If so, more work than such rows counts as
// theirs: tables end there.
func (q *query) fitsWithin(largest int) bool {
	if q.rows > largest {
		return false
	}
	if q.batch > largest {
		q.batch = largest
		q.once = min(q.once, largest-q.rows)
	}
	return true
}

// partWork is the batch size of a part of q with so many rows: what each part has again, and its
// share of the rest, rounded up.
func (q *query) partWork(rows int) int {
	if q.rows == q.batch {
		return rows
	}
	return q.once + (rows*(q.batch-q.once)+q.rows-1)/q.rows
}

// rowsWithin is the largest number of q's rows whose partWork is at most work; 0: none.
func (q *query) rowsWithin(work int) int {
	if q.rows == q.batch {
		return work
	}
	return max(0, work-q.once) * q.rows / (q.batch - q.once)
}

// split splits queries into parts that are in time in slots for which nothing is planned: what is
// planned for a slot that begins later, if its parts cost far less; and what is risky, unless it
// could still be in time whole behind the other work.
func (h *horizon) split(s *shard) {
	if !slices.ContainsFunc(h.rows, s.m.maySplit) && !slices.ContainsFunc(h.risky, s.m.maySplit) {
		return
	}
	if len(h.rows) == 0 { // there is no plan
		h.cutSlots(s.m, math.MaxInt)
		h.match = h.match[:0]
	}
	h.taken = slices.Grow(h.taken[:0], len(h.slots))[:len(h.slots)]
	clear(h.taken)
	for _, k := range h.match {
		if k >= 0 {
			h.taken[k] = true
		}
	}
	h.findEarly()
	for i, k := range h.match {
		q := h.rows[i]
		if k < 0 || h.slots[k].start <= s.m.ahead || !s.m.maySplit(q) {
			continue
		}
		g := h.slots[k].group
		grp := &h.groups[g]
		place := slices.Index(grp.rest, int32(i))
		if place < 0 {
			continue // it is risky
		}
		perMs := waitPrice / q.family.target
		whole := h.cellAt(i, g).costWithoutWait() + perMs*h.slots[k].start
		if c, ok := h.cheapestSplit(s, q); ok && c.cost+perMs*c.start <= splitGain*whole {
			grp.rest = slices.Delete(grp.rest, place, place+1)
			h.taken[k] = false
			h.carryOut(s, q, &c)
		}
	}
	h.risky = slices.DeleteFunc(h.risky, func(q *query) bool {
		if !s.m.maySplit(q) || q.class.demand.lacksLanes() || h.waitsWhole(s, q) {
			return false
		}
		c, ok := h.cheapestSplit(s, q)
		if ok = ok && c.cost <= splitMost; ok {
			h.carryOut(s, q, &c)
		}
		return ok
	})
}

// waitsWhole reports whether q could be in time on some type behind all other work there.
func (h *horizon) waitsWhole(s *shard, q *query) bool {
	due := q.arrival + q.family.target - s.m.now
	for g := range h.groups {
		grp := &h.groups[g]
		c := grp.fastestCell(q)
		if max(0, grp.work-c.mean)/float64(len(grp.lanes))+c.safe <= due {
			return true
		}
	}
	return false
}

// findEarly lists, by group, the slots that begin first of those for which nothing is planned.
func (h *horizon) findEarly() {
	h.early = slices.Grow(h.early[:0], len(h.groups)*MostParts)[:len(h.groups)*MostParts]
	for i := range h.early {
		h.early[i] = -1
	}
	for k, slot := range h.slots {
		if h.taken[k] {
			continue
		}
		early := h.early[slot.group*MostParts:][:MostParts]
		for i, o := range early {
			if o < 0 || slot.start < h.slots[o].start {
				copy(early[i+1:], early[i:])
				early[i] = k
				break
			}
		}
	}
}

// cheapestSplit returns the cheapest cutting of q, by one variant; false if there is none.
func (h *horizon) cheapestSplit(s *shard, q *query) (best splitPlan, ok bool) {
	if s.m.partTaken(q) {
		return best, false
	}
	for _, v := range q.allowedVariants() {
		if c, can := h.cuttingBy(s, q, v); can && (!ok || c.cost < best.cost) {
			best, ok = c, true
		}
	}
	return best, ok
}

// cuttingBy returns the cutting of q, to run by a variant, into the fewest parts, of rows in
// proportion to what their slots can serve in time. It returns false if there is none, or q is in
// time whole in such a slot.
func (h *horizon) cuttingBy(s *shard, q *query, v variant) (c splitPlan, ok bool) {
	// The parts ask for the variant, whose target may be shorter while a family's are changed.
	due := q.arrival + s.m.alone[v.model].target - s.m.now
	c.model, c.cost = v.model, v.regret
	// the slots that can serve most
	var most [MostParts]int
	for _, k := range h.early {
		if k < 0 {
			continue
		}
		slot := h.slots[k]
		table := slot.lane.latencyTable(v.model)
		if table == nil {
			continue
		}
		can := q.rowsWithin(table.largestWithin(due-slot.start, q.batch))
		for i, o := range most {
			if can > o {
				copy(most[i+1:], most[i:])
				copy(c.slots[i+1:], c.slots[i:])
				most[i], c.slots[i] = can, k
				break
			}
		}
	}
	room := 0
	for ; room < q.rows; c.n++ {
		if c.n == MostParts || most[c.n] == 0 {
			return c, false
		}
		room += most[c.n]
	}
	if c.n < 2 {
		return c, false
	}
	left := q.rows
	for i := range c.n {
		rows := (left*most[i] + room - 1) / room // at most most[i], and the last is left
		c.rows[i], left, room = rows, left-rows, room-most[i]
		batch := q.partWork(rows)
		slot := h.slots[c.slots[i]]
		grp := &h.groups[slot.group]
		table := slot.lane.latencyTable(v.model)
		if slot.start+table.safe[batch] > due { // the latencies do not rise with the batch size
			return c, false
		}
		mean := table.mean[batch]
		price := grp.fastestCell(q).price * grp.priceDiscount(len(q.allowedVariants()))
		c.cost += price * grp.priceFactor(q.family.target, mean) * mean
		c.start = max(c.start, slot.start)
	}
	return c, true
}

// carryOut splits q as c says and plans its parts.
func (h *horizon) carryOut(s *shard, q *query, c *splitPlan) {
	for i, part := range s.split(q, c.rows[:c.n], c.model) {
		if !part.waiting {
			continue // it was rejected
		}
		slot := h.slots[c.slots[i]]
		h.taken[c.slots[i]] = true
		grp := &h.groups[slot.group]
		grp.rest = append(grp.rest, int32(len(h.rows)))
		h.rows = append(h.rows, part)
		h.due = append(h.due, part.arrival+part.family.target-s.m.now)
		for g := range h.groups {
			grp := &h.groups[g]
			at := grp.fastestCell(part)
			at.price *= grp.priceDiscount(1) * grp.priceFactor(part.family.target, at.mean)
			h.cells = append(h.cells, at)
		}
	}
	h.findEarly()
}

// largestWithin returns the largest batch size up to most whose 80 % quantile is at most ms; 0 if
// there is none. It takes latencies to rise with the batch size.
func (t *LatencyTable) largestWithin(ms float64, most int) int {
	return sort.Search(most, func(i int) bool { return t.safe[i+1] > ms })
}
