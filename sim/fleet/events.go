package fleet

import "time"

// An event is what happens at a time: a message that arrives, or a function to call.
type event struct {
	at    time.Duration
	order uint64 // of scheduling; breaks ties
	// host is where the event happens: later if it is frozen then, never if it is dead. nil: it
	// happens in any case.
	host    *endpoint
	do      func()   // nil: message arrives
	message *message // its memory is reused when the event is over
}

func (e *event) isBefore(o *event) bool {
	return e.at < o.at || e.at == o.at && e.order < o.order
}

// An eventQueue has the events to come. Most are messages, and most messages take the same time:
// they are scheduled in the order in which they arrive, and so need no heap.
type eventQueue struct {
	heap      []event // a binary heap, the next event first; container/heap allocates for each
	usual     []event // a ring, of a power of two; those of messages that take the usual time
	first     uint64  // of usual
	next      uint64  // after the last one of usual
	scheduled uint64
}

// peek returns the next event, nil if there is none. It is valid until the queue changes.
func (q *eventQueue) peek() *event {
	var e *event
	if len(q.heap) > 0 {
		e = &q.heap[0]
	}
	if q.first < q.next {
		u := &q.usual[q.first&uint64(len(q.usual)-1)]
		if e == nil || u.isBefore(e) {
			return u
		}
	}
	return e
}

// pop removes the event that peek has returned.
func (q *eventQueue) pop() event {
	if q.first < q.next {
		u := &q.usual[q.first&uint64(len(q.usual)-1)]
		if len(q.heap) == 0 || u.isBefore(&q.heap[0]) {
			q.first++
			e := *u
			*u = event{}
			return e
		}
	}
	return q.popHeap()
}

// pushUsual adds an event that is not before those added by pushUsual earlier.
func (q *eventQueue) pushUsual(e event) {
	q.scheduled++
	e.order = q.scheduled
	if n := uint64(len(q.usual)); q.next-q.first == n {
		ring := make([]event, max(64, 2*n))
		for i := q.first; i < q.next; i++ {
			ring[i&uint64(len(ring)-1)] = q.usual[i&(n-1)]
		}
		q.usual = ring
	}
	q.usual[q.next&uint64(len(q.usual)-1)] = e
	q.next++
}

func (q *eventQueue) push(e event) {
	q.scheduled++
	e.order = q.scheduled
	q.heap = append(q.heap, e)
	all := q.heap
	i := len(all) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !e.isBefore(&all[parent]) {
			break
		}
		all[i] = all[parent]
		i = parent
	}
	all[i] = e
}

func (q *eventQueue) popHeap() event {
	all := q.heap
	top, last := all[0], all[len(all)-1]
	all[len(all)-1] = event{}
	q.heap = all[:len(all)-1]
	if all = q.heap; len(all) == 0 {
		return top
	}
	i := 0
	for {
		child := 2*i + 1
		if child >= len(all) {
			break
		}
		if child+1 < len(all) && all[child+1].isBefore(&all[child]) {
			child++
		}
		if !all[child].isBefore(&last) {
			break
		}
		all[i] = all[child]
		i = child
	}
	all[i] = last
	return top
}
