package queue

import (
	"container/heap"
	"math"
	"time"
)

// NoTarget is the latest start of a query without a QoS target. Such a query counts as late.
const NoTarget time.Duration = math.MinInt64

// LatestStart returns when a query must start to meet its QoS target, a latency that counts from
// its arrival. It returns NoTarget if the target is 0 or less.
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

// A Place is the part of a query that a [Queue] uses. The caller sets the exported fields
// before Push and must not change them while the query waits. A query may wait in only one
// queue at a time.
type Place struct {
	// LatestStart is when the query becomes late if it still waits, Estimate its expected execution
	// time. Its answer is due at the sum of both.
	LatestStart, Estimate time.Duration
	// Bytes is the size of the query's inputs.
	Bytes int64
	// Background makes the query wait until no other query does, or for BackgroundWait. It counts
	// in none of the queue's sums.
	Background bool

	in       priority      // none while the query does not wait
	index    int           // in the items of its class
	key      time.Duration // orders the items of a class; sequence orders equal keys
	sequence uint64        // order of arrival
	turn     time.Duration // after which a background query goes first
}

// BackgroundWait is how long a background query waits at most while others do; then it goes first.
// Else models would never be warm on lanes that have more to do than they can, which may need them
// most. Chosen: so ten background queries a second at most delay others, each by maxBackgroundRun
// at most.
const BackgroundWait = 100 * time.Millisecond

// Waits reports whether the query is in a queue.
func (p *Place) Waits() bool { return p.in != none }

// Due returns when the answer of a waiting query is due; NoTarget if the query does not wait, or
// not among those that can be in time.
func (p *Place) Due() time.Duration {
	if p.in != inTime {
		return NoTarget
	}
	return p.key
}

func (p *Place) place() *Place { return p }

// PlaceOf returns the place of a query.
func PlaceOf[T Item](item T) *Place { return item.place() }

// A priority of waiting queries. All queries of a class run before those of the next one.
type priority uint8

const (
	none   priority = iota
	waited          // for long enough: background queries, and late ones that Hasten has moved
	inTime
	late
	background
	classes
)

// A Queue holds queries that wait for a lane. It never drops a query, not even a late or
// cancelled one: the caller does that with Remove. The zero value is an empty queue. It is not
// safe for concurrent use. Push, Pop and Remove take time logarithmic in Len; only a Push that
// makes the queue grow allocates.
type Queue[T Item] struct {
	of       [classes]items[T]
	next     []int // scratch of First
	sequence uint64
	len      int
	bytes    int64
	estimate time.Duration
}

// Len returns the number of queries that wait, without background queries.
func (q *Queue[T]) Len() int { return q.len }

// Bytes returns the sum of Place.Bytes of the queries that Len counts.
func (q *Queue[T]) Bytes() int64 { return q.bytes }

// Estimate returns the sum of Place.Estimate of the queries that Len counts.
func (q *Queue[T]) Estimate() time.Duration { return q.estimate }

// Push adds a query to the queue at time now. It panics if the query already waits.
func (q *Queue[T]) Push(item T, now time.Duration) {
	if p := item.place(); !p.Waits() {
		q.sequence++
		p.sequence, p.turn = q.sequence, now+BackgroundWait
	}
	q.PushAgain(item, now)
}

// PushAgain adds a query that Remove took from q, maybe with another estimate. The query keeps its
// place in the order of arrival. PushAgain panics if the query already waits.
func (q *Queue[T]) PushAgain(item T, now time.Duration) {
	p := item.place()
	if p.Waits() {
		panic("queue: the query waits already")
	}
	switch {
	case p.Background:
		q.addToClass(background, item)
	case p.LatestStart < now:
		q.addToClass(late, item)
	default:
		q.addToClass(inTime, item)
	}
	if !p.Background {
		q.len++
		q.bytes += p.Bytes
		q.estimate += p.Estimate
	}
}

// addToClass adds item to the items of a class.
func (q *Queue[T]) addToClass(to priority, item T) {
	p := item.place()
	p.in, p.key = to, 0
	if to == inTime {
		p.key = p.LatestStart + p.Estimate
	}
	heap.Push(&q.of[to], item)
}

// Pop removes and returns the query that should start now. ok is false if the queue is empty.
func (q *Queue[T]) Pop(now time.Duration) (item T, ok bool) {
	q.moveAged(now)
	for c := range q.of {
		if len(q.of[c]) > 0 {
			item = q.of[c][0]
			return item, q.Remove(item)
		}
	}
	return item, false
}

// moveAged moves the queries that have become late by now, and background queries that have waited
// for long enough.
func (q *Queue[T]) moveAged(now time.Duration) {
	for len(q.of[background]) > 0 && q.of[background][0].place().turn < now {
		q.addToClass(waited, heap.Pop(&q.of[background]).(T))
	}
	for len(q.of[inTime]) > 0 && q.of[inTime][0].place().LatestStart < now {
		q.addToClass(late, heap.Pop(&q.of[inTime]).(T))
	}
}

// Hasten moves a late query that has waited for BackgroundWait before all queries that have not
// waited so long, and reports whether it has moved it.
func (q *Queue[T]) Hasten(item T, now time.Duration) bool {
	p := item.place()
	if p.in != late || p.turn >= now {
		return false
	}
	heap.Remove(&q.of[late], p.index)
	q.addToClass(waited, item)
	return true
}

// First appends to into the first queries that Pop would return, in that order, as long as they are
// of the class of the first one, and at most most. It removes none.
func (q *Queue[T]) First(into []T, now time.Duration, most int) []T {
	q.moveAged(now)
	for c := range q.of {
		waiting := q.of[c]
		if len(waiting) == 0 {
			continue
		}
		// q.next is a heap of positions in waiting, of queries whose parents have been appended.
		q.next = append(q.next[:0], 0)
		for len(q.next) > 0 && most > 0 {
			at, last := q.next[0], len(q.next)-1
			if c != int(inTime) || waiting[at].place().LatestStart >= now {
				into = append(into, waiting[at])
				most--
			}
			q.next[0] = q.next[last]
			q.next = q.next[:last]
			waiting.sinkFirst(q.next)
			for child := 2*at + 1; child <= 2*at+2 && child < len(waiting); child++ {
				q.next = append(q.next, child)
				waiting.riseLast(q.next)
			}
		}
		return into
	}
	return into
}

// sinkFirst restores the heap of positions after its first has changed.
func (h items[T]) sinkFirst(positions []int) {
	for i := 0; ; {
		child := 2*i + 1
		if child >= len(positions) {
			return
		}
		if child+1 < len(positions) && h.Less(positions[child+1], positions[child]) {
			child++
		}
		if !h.Less(positions[child], positions[i]) {
			return
		}
		positions[i], positions[child] = positions[child], positions[i]
		i = child
	}
}

// riseLast restores the heap of positions after one was appended.
func (h items[T]) riseLast(positions []int) {
	for i := len(positions) - 1; i > 0; {
		parent := (i - 1) / 2
		if !h.Less(positions[i], positions[parent]) {
			return
		}
		positions[i], positions[parent] = positions[parent], positions[i]
		i = parent
	}
}

// Remove removes a query and reports whether it was in q.
func (q *Queue[T]) Remove(item T) bool {
	p := item.place()
	waiting := &q.of[p.in]
	if p.index >= len(*waiting) || (*waiting)[p.index] != item {
		return false
	}
	heap.Remove(waiting, p.index)
	p.in = none
	if !p.Background {
		q.len--
		q.bytes -= p.Bytes
		q.estimate -= p.Estimate
	}
	return true
}

// items holds the queries of one class. It implements heap.Interface and keeps Place.index.
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
