package queue

import (
	"math"
	"time"
)

// A Spare measures which share of the lanes' time is left for late queries: the time in which lanes
// run queries that were late when they started. It is a moving average that starts at 1, and again
// at 1 whenever a lane is idle: a lane that had nothing to run shows that late queries get time.
// The zero value is ready for use. It is not safe for concurrent use.
type Spare struct {
	taken float64 // 1 less the average
	held  float64 // share of the lanes that run queries in time since the last Note
	since time.Duration
}

// Note records that from now on queries in time hold the given share of the lanes, in [0, 1]. over
// is the time constant of the average, > 0.
func (s *Spare) Note(now, over time.Duration, held float64) {
	s.taken = 1 - s.Share(now, over)
	s.held, s.since = held, max(s.since, now)
}

// Restart makes the average 1 and records that from now on queries in time hold the given share of
// the lanes.
func (s *Spare) Restart(now time.Duration, held float64) { *s = Spare{held: held, since: now} }

// Share returns the average at a time, in [0, 1].
func (s *Spare) Share(now, over time.Duration) float64 {
	passed := max(0, now-s.since)
	return 1 - (s.taken + (s.taken-s.held)*math.Expm1(-float64(passed)/float64(over)))
}

// Before returns the sum of Place.Estimate of the queries in time whose answers are due no later
// than due: those that would run before a query that is due then. It takes time proportional to the
// number of queries in time.
func (q *Queue[T]) Before(due, now time.Duration) (work time.Duration) {
	q.moveAged(now)
	for _, item := range q.of[inTime] {
		if p := item.place(); p.key <= due && p.LatestStart >= now {
			work += p.Estimate
		}
	}
	return work
}

// Late returns the late query that came before all others, the one that came last, and the sum of
// Place.Estimate of all late ones. ok is false if there is none. It takes time proportional to the
// number of queries that wait.
func (q *Queue[T]) Late(now time.Duration) (first, last T, work time.Duration, ok bool) {
	q.moveAged(now)
	for _, c := range []priority{late, inTime} { // of those in time, the ones that have become late
		for _, item := range q.of[c] {
			p := item.place()
			if c == inTime && p.LatestStart >= now {
				continue
			}
			if work += p.Estimate; !ok || p.sequence < first.place().sequence {
				first = item
			}
			if !ok || p.sequence > last.place().sequence {
				last = item
			}
			ok = true
		}
	}
	return first, last, work, ok
}
