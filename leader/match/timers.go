package match

import "math"

// A timer belongs to a waiting query or to a lane. A lane has two timers, one in each of the
// matcher's heaps.
type timer struct {
	time  float64
	at    int // index in the heap; -1: not set
	query *query
	lane  *lane
}

func (t *timer) isBefore(o *timer) bool {
	switch {
	case t.time != o.time:
		return t.time < o.time
	case (t.lane == nil) != (o.lane == nil):
		return t.lane != nil
	case t.lane != nil:
		return t.lane.id < o.lane.id
	}
	return t.query.id.less(o.query.id)
}

// timers is a binary heap of the timers that are set, the earliest first.
type timers []*timer

func (h timers) earliestTime() (time float64, ok bool) {
	if len(h) == 0 {
		return 0, false
	}
	return h[0].time, true
}

// set sets or moves t. A time of +Inf means never.
func (h *timers) set(t *timer, time float64) {
	if math.IsInf(time, 1) {
		h.remove(t)
		return
	}
	t.time = time
	if t.at < 0 {
		t.at = len(*h)
		*h = append(*h, t)
	}
	h.fixAt(t.at)
}

func (h *timers) remove(t *timer) {
	if t.at < 0 {
		return
	}
	i, last := t.at, len(*h)-1
	h.swap(i, last)
	(*h)[last] = nil
	*h = (*h)[:last]
	t.at = -1
	if i < last {
		h.fixAt(i)
	}
}

func (h *timers) pop() *timer {
	t := (*h)[0]
	h.remove(t)
	return t
}

func (h timers) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

func (h timers) fixAt(i int) {
	for i > 0 && h[i].isBefore(h[(i-1)/2]) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && h[c+1].isBefore(h[c]) {
			c++
		}
		if !h[c].isBefore(h[i]) {
			return
		}
		h.swap(i, c)
		i = c
	}
}
