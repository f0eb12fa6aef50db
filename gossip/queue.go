package gossip

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"
)

// loadTransmits is how often an agent passes on a frame, times the number of
// digits of the cluster's size: of 50 members, each sends a load to 6 others,
// and two or three in a thousand do not get it. They have the next one a second
// later.
const loadTransmits = 3

// A queue is what an agent passes on, at most one frame of each member. It is
// what memberlist's TransmitLimitedQueue is for, but that loses messages of
// equal length: it numbers them anew when it is empty for a moment, and takes
// two with one number for the same.
type queue struct {
	members func() int // live ones; called with mu held

	mu      sync.Mutex
	waiting []*broadcast // in order of arrival but for those sent less often
	newest  map[memberID]*broadcast
}

// broadcast is a frame on its way.
type broadcast struct {
	frame frame
	made  time.Time // by this machine's clock
	sends int
}

// add puts b into the place of what waits of its member.
func (q *queue) add(b *broadcast) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if before := q.newest[b.frame.member]; before != nil {
		q.remove(before)
	}
	q.newest[b.frame.member] = b
	q.waiting = append(q.waiting, b)
}

// remove takes b out. q.mu is held.
func (q *queue) remove(b *broadcast) {
	q.waiting = slices.DeleteFunc(q.waiting, func(o *broadcast) bool { return o == b })
	delete(q.newest, b.frame.member)
}

// take is the messages for one packet, each with overhead, in limit bytes: those
// first that were sent least often. Each message has its age now.
func (q *queue) take(overhead, limit int) [][]byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		return nil
	}
	slices.SortStableFunc(q.waiting,
		func(a, b *broadcast) int { return cmp.Compare(a.sends, b.sends) })
	sends := loadTransmits * int(math.Ceil(math.Log10(float64(q.members()+1))))
	var messages [][]byte
	var finished []*broadcast
	for _, b := range q.waiting {
		b.frame.age = time.Since(b.made)
		message := b.frame.encode()
		if overhead+len(message) > limit {
			continue
		}
		limit -= overhead + len(message)
		messages = append(messages, message)
		if b.sends++; b.sends >= sends {
			finished = append(finished, b)
		}
	}
	for _, b := range finished {
		q.remove(b)
	}
	return messages
}
