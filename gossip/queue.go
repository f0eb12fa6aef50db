package gossip

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"
)

// loadTransmits, times the number of digits of the fleet's size, is how often an agent sends or
// forwards a frame. In a fleet of 50, each member sends a load to 6 others, and two or three
// members in a thousand miss it; they receive the next load a second later.
const loadTransmits = 3

// A queue holds the frames that an agent sends and forwards, at most one of each member. It takes
// the place of memberlist's TransmitLimitedQueue, which loses messages of equal length: that queue
// restarts its numbers whenever it is empty, and takes two messages with the same number for the
// same.
type queue struct {
	members func() int // returns the number of live members; called with mu held

	mu      sync.Mutex
	waiting []*broadcast // fewest sends first, then in order of arrival
	newest  map[memberID]*broadcast
}

// broadcast is a frame in the queue.
type broadcast struct {
	frame frame
	made  time.Time // by this machine's clock
	sends int
}

// add queues b, in place of an older frame of the same member.
func (q *queue) add(b *broadcast) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if before := q.newest[b.frame.member]; before != nil {
		q.remove(before)
	}
	q.newest[b.frame.member] = b
	q.waiting = append(q.waiting, b)
}

// remove removes b from the queue. q.mu is held.
func (q *queue) remove(b *broadcast) {
	q.waiting = slices.DeleteFunc(q.waiting, func(o *broadcast) bool { return o == b })
	delete(q.newest, b.frame.member)
}

// takeMessages returns the messages for one packet: as many as fit into limit bytes, each with
// overhead bytes more, first those sent least often. Each message carries its current age.
func (q *queue) takeMessages(overhead, limit int) [][]byte {
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
