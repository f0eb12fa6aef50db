package queries

// A turns is a heap of queries; see [container/heap]. [State] has two, so that it need not look at
// every query in flight to find the one to decide without a leader: of those that are to be decided
// now, the oldest first, and of those that may be later, the soonest first. A query is in one of
// them, or in none.
type turns struct {
	queries []*Query
	soonest bool // first is the one whose time comes first, not the oldest
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
