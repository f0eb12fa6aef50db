package queries

// A turns is a heap of queries to decide without a leader; see [container/heap]. [State] has two,
// so that it finds the next one without looking at every query in flight: ready has the queries to
// decide now, the oldest first; later has those whose time comes later, the soonest first. A query
// is in one of them or in none.
type turns struct {
	queries []*Query
	soonest bool // order by due time, not by age
}

func (h *turns) Len() int { return len(h.queries) }

func (h *turns) Less(i, j int) bool {
	a, b := h.queries[i], h.queries[j]
	if h.soonest && a.due != b.due {
		return a.due < b.due
	}
	return a.Sequence < b.Sequence
}

func (h *turns) Swap(i, j int) {
	h.queries[i], h.queries[j] = h.queries[j], h.queries[i]
	h.queries[i].index, h.queries[j].index = i, j
}

// Push implements heap.Interface.
func (h *turns) Push(x any) {
	q := x.(*Query)
	q.turns, q.index = h, len(h.queries)
	h.queries = append(h.queries, q)
}

// Pop implements heap.Interface.
func (h *turns) Pop() any {
	last := len(h.queries) - 1
	q := h.queries[last]
	h.queries[last] = nil
	h.queries = h.queries[:last]
	q.turns = nil
	return q
}
