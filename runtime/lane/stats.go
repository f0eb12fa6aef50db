package lane

import (
	"math"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// A Reservation is time on a lane that is kept for a query that may come. The caller fills in the
// first three fields; the event Reserved sets the next two.
type Reservation struct {
	Profile   names.ModelKey
	BatchSize int
	Keep      time.Duration // how long after it is made it ends by itself
	// If the query came now, a lane would be free for it after about Remaining, and with a
	// probability of about 90 % the query would be answered within Finish.
	Finish, Remaining time.Duration

	until    time.Duration // when it ends by itself
	estimate time.Duration
}

// reserveTime estimates when a query would be answered, and reserves its execution time: Remaining
// counts it as if the query waited. The reservation ends when the query comes with it, by Released,
// or after Keep.
func (s *State) reserveTime(r *Reservation, now time.Duration) {
	r.Remaining, r.until = s.TimeUntilFree(now), now+r.Keep
	r.estimate = s.estimator.Estimate(r.Profile, r.BatchSize)
	own := float64(s.estimator.High(r.Profile, r.BatchSize) - r.estimate)
	variance := own * own
	if len(s.idle) == 0 {
		for _, q := range s.admitted {
			variance += float64(q.spread) * float64(q.spread)
		}
	}
	r.Finish = r.Remaining + r.estimate + time.Duration(math.Sqrt(variance))
	s.reserved[r] = struct{}{}
}

// HasReserved reports whether a reservation has not ended.
func (s *State) HasReserved(r *Reservation, now time.Duration) bool {
	_, has := s.reserved[r]
	return has && now < r.until
}

// sumReservations returns the number of reservations and the sum of their estimates. It drops those
// whose time has passed.
func (s *State) sumReservations(now time.Duration) (n int, estimate time.Duration) {
	for r := range s.reserved {
		if r.until <= now {
			delete(s.reserved, r)
			continue
		}
		n++
		estimate += r.estimate
	}
	return n, estimate
}

// Stats is a snapshot of the lanes of an agent.
type Stats struct {
	Lanes        int
	Running      int   // queries that run, background queries among them
	Waiting      int   // queries that wait, without background queries
	WaitingBytes int64 // bytes of the inputs of the queries that wait
	// Remaining estimates how long it takes until a lane is free for a new query, with the time
	// that is reserved for others.
	Remaining time.Duration
	// RemainingByLane estimates how long each lane is busy with the queries that run and wait. It
	// leaves reservations out: members that hear of it would not hear that a reservation lapses.
	RemainingByLane []time.Duration
	// Busy is the time queries have spent on lanes, summed over the lanes; of a query on one core
	// of a lane, that core's share of it.
	Busy time.Duration
	// Dropped counts queries that got no answer, by reason.
	Dropped DropCounts
}

// DropCounts counts dropped queries by reason.
type DropCounts struct {
	Deadline   uint64 // deadline passed, waiting or running
	Cancelled  uint64 // the caller's context was cancelled
	Late       uint64 // rejected as late
	Overloaded uint64 // refused on arrival
	Draining   uint64 // refused or dropped while draining
}

// Add adds the sums of o to s. The lanes of s and o need not exist at the same time.
func (s *Stats) Add(o Stats) {
	s.Running += o.Running
	s.Waiting += o.Waiting
	s.WaitingBytes += o.WaitingBytes
	s.Busy += o.Busy
	s.Dropped.Deadline += o.Dropped.Deadline
	s.Dropped.Cancelled += o.Dropped.Cancelled
	s.Dropped.Late += o.Dropped.Late
	s.Dropped.Overloaded += o.Dropped.Overloaded
}

// Stats returns a snapshot.
func (s *State) Stats(now time.Duration) Stats {
	busy := s.busy
	for _, q := range s.running {
		busy += s.busyWith(q, now)
	}
	return Stats{
		Lanes:        s.lanes,
		Running:      len(s.running),
		Waiting:      s.queue.Len(),
		WaitingBytes: s.queue.Bytes(),
		Remaining:    s.TimeUntilFree(now),

		RemainingByLane: s.RemainingByLane(now),
		Busy:            busy,
		Dropped:         s.dropped,
	}
}

// WaitingWork estimates how long all waiting queries take, of one lane.
func (s *State) WaitingWork() time.Duration {
	work := s.queue.Estimate() - s.saved
	for _, c := range s.classes {
		work -= c.Saved()
	}
	return work
}

// TimeUntilFree returns Stats.Remaining: the shortest time until a running query ends, plus one
// lane's share of the queries that wait and of the reservations.
func (s *State) TimeUntilFree(now time.Duration) time.Duration {
	n, reserved := s.sumReservations(now)
	idle := len(s.idle) + len(s.free)
	if n < idle {
		return 0
	}
	first := time.Duration(0)
	if idle == 0 {
		first = Never
		for _, q := range s.running {
			first = min(first, q.remainingRun(now))
		}
	}
	return first + (s.WaitingWork()+reserved)/time.Duration(s.lanes)
}

// LaneRemaining returns Stats.RemainingByLane of one lane.
func (s *State) LaneRemaining(lane int, now time.Duration) time.Duration {
	remaining := s.WaitingWork() / time.Duration(s.lanes)
	for _, q := range s.running {
		if q.lane == lane {
			remaining += s.laneShare(q, now)
		}
	}
	return remaining
}

// RemainingByLane returns Stats.RemainingByLane.
func (s *State) RemainingByLane(now time.Duration) []time.Duration {
	remaining := make([]time.Duration, s.lanes)
	for lane := range remaining {
		remaining[lane] = s.WaitingWork() / time.Duration(s.lanes)
	}
	for _, q := range s.running {
		remaining[q.lane] += s.laneShare(q, now)
	}
	return remaining
}

// laneShare returns for how much longer the lane of q, which runs, would be busy with it alone.
func (s *State) laneShare(q *Query, now time.Duration) time.Duration {
	return q.remainingRun(now) * time.Duration(s.coresOf(q)) / time.Duration(s.cores)
}
