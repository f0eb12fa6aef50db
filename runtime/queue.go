package runtime

import (
	"container/heap"
	"math"
	"time"
)

const noLatestStart = math.MinInt64

// A queue holds waiting queries in the order in which they are to start:
// first those still in time, by latest start, then the late and those
// without a QoS target by arrival, then background work by arrival. It is pure: time comes as an
// argument and must not go backwards.
type queue struct {
	inTime     turnHeap
	late       turnHeap
	background turnHeap
	sequence   uint64

	bytes    int64
	estimate time.Duration // of all that wait, background work apart
}

func newQueue() *queue {
	byArrival := func(a, b *turn) bool { return a.sequence < b.sequence }
	return &queue{
		inTime: turnHeap{less: func(a, b *turn) bool {
			if a.latestStart != b.latestStart {
				return a.latestStart < b.latestStart
			}
			return byArrival(a, b)
		}},
		late:       turnHeap{less: byArrival},
		background: turnHeap{less: byArrival},
	}
}

// len is the number of waiting queries, background work apart.
func (q *queue) len() int { return len(q.inTime.turns) + len(q.late.turns) }

func (q *queue) push(t *turn, now int64) {
	q.sequence++
	t.sequence = q.sequence
	to := &q.late
	switch {
	case t.background:
		to = &q.background
	case t.latestStart >= now:
		to = &q.inTime
	}
	t.in = to
	heap.Push(to, t)
	if !t.background {
		q.bytes += t.bytes
		q.estimate += t.estimate
	}
}

// pop takes out the query to start next; nil if none waits.
func (q *queue) pop(now int64) *turn {
	for len(q.inTime.turns) > 0 && q.inTime.turns[0].latestStart < now {
		t := heap.Pop(&q.inTime).(*turn)
		t.in = &q.late
		heap.Push(t.in, t)
	}
	for _, from := range []*turnHeap{&q.inTime, &q.late, &q.background} {
		if len(from.turns) > 0 {
			t := from.turns[0]
			q.remove(t)
			return t
		}
	}
	return nil
}

// remove takes out a query that waits.
func (q *queue) remove(t *turn) {
	heap.Remove(t.in, t.index)
	t.in = nil
	if !t.background {
		q.bytes -= t.bytes
		q.estimate -= t.estimate
	}
}

// turnHeap implements heap.Interface and keeps each turn's index.
type turnHeap struct {
	turns []*turn
	less  func(a, b *turn) bool
}

func (h *turnHeap) Len() int           { return len(h.turns) }
func (h *turnHeap) Less(i, j int) bool { return h.less(h.turns[i], h.turns[j]) }

func (h *turnHeap) Swap(i, j int) {
	h.turns[i], h.turns[j] = h.turns[j], h.turns[i]
	h.turns[i].index, h.turns[j].index = i, j
}

func (h *turnHeap) Push(x any) {
	t := x.(*turn)
	t.index = len(h.turns)
	h.turns = append(h.turns, t)
}

func (h *turnHeap) Pop() any {
	last := len(h.turns) - 1
	t := h.turns[last]
	h.turns[last] = nil
	h.turns = h.turns[:last]
	return t
}
