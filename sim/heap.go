package sim

import "time"

// An event is a future event of a run.
type event struct {
	at   time.Duration // since the start of the run
	seq  uint64        // order of scheduling, breaks ties
	kind eventKind
	lane int32
	// The object of the event, depending on its kind: a query's sequence number, a question's id,
	// or an attempt.
	query   uint64
	attempt *attempt
}

func (e *event) before(o *event) bool {
	return e.at < o.at || e.at == o.at && e.seq < o.seq
}

// An eventHeap is a binary heap of events, the earliest first. It replaces container/heap, which
// allocates for every push; pushes and pops take half of the time of a simulated query.
type eventHeap struct {
	events []event
	seq    uint64
}

func (h *eventHeap) push(e event) {
	h.seq++
	e.seq = h.seq
	h.events = append(h.events, e)
	ev := h.events
	i := len(ev) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !e.before(&ev[parent]) {
			break
		}
		ev[i] = ev[parent]
		i = parent
	}
	ev[i] = e
}

func (h *eventHeap) pop() event {
	ev := h.events
	top, last := ev[0], ev[len(ev)-1]
	h.events = ev[:len(ev)-1]
	ev = h.events
	if len(ev) == 0 {
		return top
	}
	i := 0
	for {
		child := 2*i + 1
		if child >= len(ev) {
			break
		}
		if child+1 < len(ev) && ev[child+1].before(&ev[child]) {
			child++
		}
		if !ev[child].before(&last) {
			break
		}
		ev[i] = ev[child]
		i = child
	}
	ev[i] = last
	return top
}
