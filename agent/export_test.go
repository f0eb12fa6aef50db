package agent

import "time"

// Homeless is how long a rented machine's agent looks for its fleet.
const Homeless = homeless

// DrainTimeout is how long a drain may take now.
func (i Inside) DrainTimeout() time.Duration {
	_, timeout := i.drainTimes()
	return timeout
}

// DrainTimes are the delay and the timeout of a drain now.
func (i Inside) DrainTimes() (delay, timeout time.Duration) { return i.drainTimes() }

// EndIn has the provider say when it takes the machine back.
func (i Inside) EndIn(left time.Duration) { i.ends.Store(&notice{ends: time.Now().Add(left)}) }

// NewHeapLimit returns the follower of limits that calls set.
func NewHeapLimit(set func(int64)) func(limit, foreign int64) {
	return (&heapLimit{set: set}).follow
}
