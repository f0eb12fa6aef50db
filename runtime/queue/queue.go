package queue

import (
	"container/heap"
	"math"
	"time"
)

// NoTarget is the latest start of a query without a QoS target: it waits with those that are late.
const NoTarget time.Duration = math.MinInt64

// LatestStart is when a query must start to meet its QoS target, which counts from its arrival;
// NoTarget if the target is not above 0.
func LatestStart(arrival, qosTarget, estimate time.Duration) time.Duration {
	if qosTarget <= 0 {
		return NoTarget
	}
	return arrival + qosTarget - estimate
}

// An Item is what a [Queue] holds: a pointer to a struct of the caller's that embeds [Place].
type Item interface {
	comparable
	place() *Place
}

// A Place is what a [Queue] knows of a query. The caller owns the exported fields while the query
// does not wait, and leaves them as they are while it does. A query waits in one queue at a time.
type Place struct {
	// LatestStart is when the query becomes late if it still waits. Estimate is of its execution:
	// at the sum of both its answer is due.
	LatestStart, Estimate time.Duration
	// Bytes is of its inputs.
	Bytes int64
	// Background work is taken when nothing else waits, and counts in none of the queue's sums.
	Background bool

	in       class
	index    int           // in the items of its class
	key      time.Duration // what the items of its class are ordered by, then by sequence
	sequence uint64        // order of arrival
}

// Waits reports whether the query is in a queue.
func (p *Place) Waits() bool { return p.in != none }

func (p *Place) place() *Place { return p }

// A class goes before the next one.
type class uint8

const (
	none class = iota
	inTime
	late
	background
	classes
)

// A Queue holds queries that wait for a lane. It takes no query out by itself, not even one that is
// late or that nobody waits for any more: that is for the caller, by Remove. The zero value is
// empty. It is not safe for concurrent use. Push, Pop and Remove take time logarithmic in Len, and
// do not allocate but to grow.
type Queue[T Item] struct {
	of       [classes]items[T]
	sequence uint64
	bytes    int64
	estimate time.Duration
}

// Len is the number of queries that wait, background work apart.
func (q *Queue[T]) Len() int { return len(q.of[inTime]) + len(q.of[late]) }

// Bytes is the sum of those of the queries that count in Len.
func (q *Queue[T]) Bytes() int64 { return q.bytes }

// Estimate is the sum of those of the queries that count in Len.
func (q *Queue[T]) Estimate() time.Duration { return q.estimate }

// Push has a query wait. It panics if the query waits already.
func (q *Queue[T]) Push(item T, now time.Duration) {
	p := item.place()
	if p.Waits() {
		panic("queue: the query waits already")
	}
	q.sequence++
	p.sequence = q.sequence
	switch {
	case p.Background:
		q.enter(background, item)
	case p.LatestStart < now:
		q.enter(late, item)
	default:
		q.enter(inTime, item)
	}
	if !p.Background {
		q.bytes += p.Bytes
		q.estimate += p.Estimate
	}
}

// enter puts item among those of a class.
func (q *Queue[T]) enter(to class, item T) {
	p := item.place()
	p.in, p.key = to, 0
	if to == inTime {
		p.key = p.LatestStart + p.Estimate
	}
	heap.Push(&q.of[to], item)
}

// Pop takes out the query to start now; ok is false if none waits.
func (q *Queue[T]) Pop(now time.Duration) (item T, ok bool) {
	for len(q.of[inTime]) > 0 && q.of[inTime][0].place().LatestStart < now {
		q.enter(late, heap.Pop(&q.of[inTime]).(T))
	}
	for c := range q.of {
		if len(q.of[c]) > 0 {
			item = q.of[c][0]
			return item, q.Remove(item)
		}
	}
	return item, false
}

// Remove takes a query out, and reports whether it was in q.
func (q *Queue[T]) Remove(item T) bool {
	p := item.place()
	waiting := &q.of[p.in]
	if p.index >= len(*waiting) || (*waiting)[p.index] != item {
		return false
	}
	heap.Remove(waiting, p.index)
	p.in = none
	if !p.Background {
		q.bytes -= p.Bytes
		q.estimate -= p.Estimate
	}
	return true
}

// items are those of one class. They implement heap.Interface and keep each one's index.
type items[T Item] []T

func (h items[T]) Len() int { return len(h) }

func (h items[T]) Less(i, j int) bool {
	a, b := h[i].place(), h[j].place()
	if a.key != b.key {
		return a.key < b.key
	}
	return a.sequence < b.sequence
}

func (h items[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place().index, h[j].place().index = i, j
}

func (h *items[T]) Push(x any) {
	item := x.(T)
	item.place().index = len(*h)
	*h = append(*h, item)
}

func (h *items[T]) Pop() any {
	last := len(*h) - 1
	item := (*h)[last]
	(*h)[last] = *new(T)
	*h = (*h)[:last]
	return item
}
