package match

import (
	"iter"
	"math/rand/v2"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// A Chooser is a policy from outside of this package, such as a baseline with which [Policies] are
// compared. The matcher makes one for each shard by [Config.NewChooser], and calls it where it
// would call its own policy. Everything else stays the matcher's: which queries wait, are late or
// are rejected, what lanes hold, and when a lane is open.
type Chooser interface {
	// QueryArrived is called when a query begins to wait at the shard, also when it does so again.
	// The chooser may queue it at a lane with [View.Enqueue].
	QueryArrived(v View, q WaitingQuery)
	// Choose assigns waiting queries to open lanes with [View.Assign]. It is called when at least
	// one query waits and at least one lane is open.
	Choose(v View)
}

// A View is what a [Chooser] may see of its shard, and change there. A View, and the queries and
// lanes that it returns, are valid until the method of the Chooser that was given the View returns.
type View struct{ s *shard }

// A WaitingQuery is a query without a lane.
type WaitingQuery struct{ q *query }

// A UsableLane is a lane that may be given queries, now or later: it neither drains nor is overdue.
type UsableLane struct{ l *lane }

// Waiting iterates over all waiting queries, roughly the oldest first. The loop may assign the
// query that it was given, and no other.
func (v View) Waiting() iter.Seq[WaitingQuery] {
	return func(yield func(WaitingQuery) bool) {
		v.s.allWaiting(func(q *query) bool { return yield(WaitingQuery{q}) })
	}
}

// UsableLanes iterates over the usable lanes, the fastest types first.
func (v View) UsableLanes() iter.Seq[UsableLane] {
	return func(yield func(UsableLane) bool) {
		for _, l := range v.s.lanes {
			if l.isUsable() && !yield(UsableLane{l}) {
				return
			}
		}
	}
}

// Assign sends a waiting query to a lane, which runs the most accurate variant that is in time
// there, else the fastest. It reports false, without effect, if the lane is not open or does not
// serve the query.
func (v View) Assign(q WaitingQuery, to UsableLane) bool { return v.s.assignInTime(q.q, to.l) }

// Enqueue makes a waiting query wait in a lane's queue, in the order of arrival. The matcher takes
// it out when it is assigned or stops waiting. If the lane goes or stops serving the query, the
// query arrives again.
func (v View) Enqueue(q WaitingQuery, at UsableLane) {
	if q.q.queue != nil {
		q.q.queue.remove(q.q)
	}
	_, latency := at.l.inTime(q.q, v.s.m.remainingTime(q.q)-at.l.start()-at.l.queue.work)
	at.l.queue.push(q.q, latency)
}

// Rand is the matcher's source of randomness.
func (v View) Rand() *rand.Rand { return v.s.m.rng }

// Asked is the model or family that the query names.
func (w WaitingQuery) Asked() names.ModelKey {
	if w.q.family.name != "" {
		return w.q.family.name
	}
	return w.q.shard.m.models[w.q.family.variants[0].model].Name
}

// BatchSize is the query's batch size.
func (w WaitingQuery) BatchSize() int { return w.q.batch }

// QoSTarget is the latency within which the query should be answered, since its arrival.
func (w WaitingQuery) QoSTarget() time.Duration { return fromMs(w.q.family.target) }

// TimeLeft is the time until the query's QoS target; it is negative if that has passed.
func (w WaitingQuery) TimeLeft() time.Duration { return fromMs(w.q.shard.m.remainingTime(w.q)) }

// Waited is the time since the query's arrival.
func (w WaitingQuery) Waited() time.Duration { return fromMs(w.q.shard.m.now - w.q.arrival) }

// IsLate reports whether no lane type can answer the query within its QoS target any more, by the
// mean latency.
func (w WaitingQuery) IsLate() bool { return w.q.isLate }

// ID is the lane's id.
func (u UsableLane) ID() LaneID { return u.l.id }

// Type is the lane's type.
func (u UsableLane) Type() names.LaneType { return u.l.typ.name }

// IsBase reports whether the lane's type is a base type: it meets every model's QoS target at the
// largest batch size.
func (u UsableLane) IsBase() bool { return u.l.typ.base }

// Serves reports whether the lane holds a variant that may answer the query.
func (u UsableLane) Serves(q WaitingQuery) bool { return u.l.canServe(q.q) }

// Outstanding is how many queries the lane has not answered or has queued.
func (u UsableLane) Outstanding() int { return len(u.l.held) + u.l.queue.queries.Len() }

// MeanLatency is [UsableLane.Latency] also on a lane that ends before the query does. The lane must
// serve the query.
func (u UsableLane) MeanLatency(q WaitingQuery, start time.Duration) time.Duration {
	_, latency := u.l.inTime(q.q, u.l.m.remainingTime(q.q)-toMs(start))
	return fromMs(latency)
}

// Coefficient is the type's heterogeneity coefficient C_j (KAIROS, Definition 1), in (0, 1], for
// the variant whose latency [UsableLane.Latency] returns. The lane must serve the query.
func (u UsableLane) Coefficient(q WaitingQuery, start time.Duration) float64 {
	model, _ := u.l.inTime(q.q, u.l.m.remainingTime(q.q)-toMs(start))
	return u.l.typ.coefficient[model]
}

// IsOpen reports whether the lane may be given a query now.
func (u UsableLane) IsOpen() bool { return u.l.open() }

// Start is how long from now a query that the lane is given next would start there: the way to the
// lane, or the expected rest of what the lane holds if that is longer.
func (u UsableLane) Start() time.Duration { return fromMs(u.l.start()) }

// QueuedWork is the sum of the predicted mean latencies of the queries in the lane's queue.
func (u UsableLane) QueuedWork() time.Duration { return fromMs(u.l.queue.work) }

// Queued returns the queries in the lane's queue, the oldest first.
func (u UsableLane) Queued() iter.Seq[WaitingQuery] {
	return func(yield func(WaitingQuery) bool) {
		for q := u.l.queue.queries.First(); q != nil; {
			next := q.inQueue.Next()
			if !yield(WaitingQuery{q}) {
				return
			}
			q = next
		}
	}
}

// Latency is the predicted mean latency of a query that would start on the lane after the given
// time, by the variant that [View.Assign] would choose; ok is false if the lane does not serve the
// query, or very likely ends before the query does.
func (u UsableLane) Latency(q WaitingQuery, start time.Duration) (mean time.Duration, ok bool) {
	ms := toMs(start)
	model, latency := u.l.inTime(q.q, u.l.m.remainingTime(q.q)-ms)
	if model < 0 || !u.l.lastsFrom(ms, u.l.latencyTable(model), q.q.batch) {
		return 0, false
	}
	return fromMs(latency), true
}

// A chooserPolicy is the policy of a shard with a Chooser.
type chooserPolicy struct{ Chooser }

func (c chooserPolicy) enqueueArrival(s *shard, q *query) {
	c.QueryArrived(View{s}, WaitingQuery{q})
}

func (c chooserPolicy) assignQueries(s *shard) {
	s.leaveEndingLanes(c)
	c.Choose(View{s})
}

// maxMoved is how many queries of one queue are offered to other lanes in a round; chosen, so that
// a round stays short.
const maxMoved = 64

// leaveEndingLanes lets the queries arrive again that are in the queue of a lane that is now to end
// before they do.
func (s *shard) leaveEndingLanes(p policy) {
	for _, l := range s.lanes {
		q := l.queue.queries.First()
		for range maxMoved {
			if q == nil || l.endsAfter(q, l.start()) {
				break
			}
			next := q.inQueue.Next()
			l.queue.remove(q)
			p.enqueueArrival(s, q)
			q = next
		}
	}
}
