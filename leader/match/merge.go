package match

import (
	"slices"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/runtime/queue/merge"
)

// Lanes merge the queries that wait there. The matcher gives a lane queries to merge: when horizon
// has chosen a query for a lane, it adds others that wait. Each of them is an attempt of its own.
// Their decisions have one number, by which the lane waits for those that come a little later. The
// lane then decides by the same code, and may add others. What the matcher expects is only its
// account of when the lane will be free, and the lane corrects it with each answer.

// Merge is how lanes run several waiting queries as one.
type Merge = names.MergePolicy

// ParseMerge returns the policy of a name; "", which merges nothing, for a name that it does not
// know, because a later release may know more. Lanes of earlier agents may have a former policy.
func ParseMerge(name string) Merge {
	if p := Merge(name).Current(); p.Merges() && p.Check() == nil {
		return p
	}
	return ""
}

// A mergeBuffer is the memory that horizon reuses to merge queries.
type mergeBuffer struct {
	kind    merge.Kind
	items   []merge.Item
	waiting []*query // the items' queries
}

// fill adds waiting queries to the runs that the decisions from index from on begin. It is called
// when the round has no other lane for them now.
func (h *horizon) fill(s *shard, from int) {
	planned := false
	for i, end := from, len(s.m.out); i < end; i++ {
		d := &s.m.out[i]
		if d.Action != Assign || s.live.Len() == 0 {
			continue
		}
		first, l := s.m.queries[d.Query], s.m.lanes[d.Lane]
		if !s.m.models[first.model].Merge.Merges() {
			continue
		}
		if !planned {
			h.notePlan()
			planned = true
		}
		start := l.freeAt - l.latencyTable(first.model).mean[first.batch]
		h.merging.collectMergeable(s, h.groupOf(l), first, l, start)
		take, _ := h.merging.kind.Choose(0, h.merging.items)
		if len(take) > 1 {
			s.m.merged++
			d.Merge, d.Merged = s.m.merged, len(take)
		}
		run, sum := *d, first.batch
		for _, k := range take[1:] {
			q := h.merging.waiting[k]
			q.model = first.model
			s.joinRun(q, l, start, sum, &run)
			sum += q.batch
		}
	}
	if planned {
		for g := range h.groups {
			h.groups[g].rest = slices.DeleteFunc(h.groups[g].rest,
				func(i int32) bool { return !h.rows[i].waiting })
		}
	}
}

// forgetPlan forgets what notePlan has set: in the next round some of the rows may be none.
func (h *horizon) forgetPlan() {
	for _, q := range h.rows {
		q.plannedFor, q.plannedCost = nil, 0
	}
}

// notePlan sets, for each row, where it is planned and at what cost.
func (h *horizon) notePlan() {
	h.forgetPlan()
	for g := range h.groups {
		for _, i := range h.groups[g].rest {
			// A query may be left at a group that can not run it any more, such as before its lanes
			// end. It is planned nowhere then.
			if c, q := h.cellAt(int(i), g), h.rows[i]; c.model >= 0 {
				q.plannedFor, q.plannedCost, q.model = h.groups[g].typ, c.price*c.mean, c.model
			}
		}
	}
}

// groupOf returns l's group.
func (h *horizon) groupOf(l *lane) *group {
	for g := range h.groups {
		if grp := &h.groups[g]; grp.typ == l.typ && grp.lanes[0].set == l.set {
			return grp
		}
	}
	return nil
}

// collectMergeable collects the queries that could run on l together with first, in a run that
// starts at start, and those that are planned for l's group and would wait for its end. Times of
// the items count from start.
func (b *mergeBuffer) collectMergeable(s *shard, grp *group, first *query, l *lane, start float64) {
	m := s.m
	table := l.typ.tables[first.model]
	b.kind.Policy, b.kind.Latency = m.models[first.model].Merge, table
	b.kind.Largest = table.largestWithin(l.ends-start, table.Largest())
	due := func(q *query) float64 { return q.arrival + q.family.target - start }
	b.items = append(b.items[:0], merge.Item{Batch: first.batch, Due: fromMs(due(first))})
	b.waiting = append(b.waiting[:0], first)
	for q := s.live.First(); q != nil && len(b.items) < merge.Most; q = q.inShard.Next() {
		x := merge.Item{Batch: q.batch, Due: fromMs(due(q))}
		switch {
		case q == first || q.below > first.below:
			continue
		case q.plannedFor != nil && q.model != first.model || !q.allowsModel(first.model):
			of := l.typ.tables[q.model]
			if q.plannedFor != l.typ || of == nil {
				continue
			}
			x.Other, x.Mean, x.P80 = true, of.Mean(q.batch), of.P80(q.batch)
		case q.plannedFor != nil && q.plannedFor != l.typ:
			// Elsewhere it would be in time, too; here it must cost less.
			x.Extra = fromMs(min(q.plannedCost/max(grp.lanes[0].timePrice(q.model), 1e-12), 1e9))
		}
		b.items, b.waiting = append(b.items, x), append(b.waiting, q)
	}
}

// joinRun sends a waiting query to l, to run together with the queries that l got last, whose run
// starts at start, has sum items and began with the decision run.
func (s *shard) joinRun(q *query, l *lane, start float64, sum int, run *Decision) {
	s.removeWaiting(q)
	m, table := s.m, l.typ.tables[q.model]
	total := table.mean[sum+q.batch]
	extra := max(0, total-table.mean[sum])
	waited, wait := m.now-q.arrival, start-m.now
	s.chargeFlow(q, extra)
	q.attempt++
	q.sent, q.lane = true, l
	l.addReservation(reservation{
		query: q.id, attempt: q.attempt, latency: extra, grace: l.overdueGrace(q.model,
			sum+q.batch),
		since: m.now, joined: true,
	})
	l.setDue(l.due.time + extra)
	l.setFree(l.freeAt + extra)
	slack, reason := q.family.target-waited-wait-total, Matched
	if slack < 0 {
		reason = Late
	}
	m.out = append(m.out, m.bind(q, Decision{
		Action: Assign, Reason: reason, Attempt: q.attempt, Lane: l.id,
		Cost: l.timePrice(q.model) * extra, Latency: fromMs(total), Waited: fromMs(waited),
		Wait: fromMs(wait), Slack: fromMs(slack), Merge: run.Merge, Merged: run.Merged,
	}))
}

// countRuns returns how many runs l holds, as far as known.
func (l *lane) countRuns() (n int) {
	for i := range l.held {
		if i == 0 || l.held[i].run != l.held[i-1].run {
			n++
		}
	}
	return n
}
