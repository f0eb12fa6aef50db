package lane

import (
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/runtime/queue"
	"github.com/muster-serve/muster/runtime/queue/merge"
)

// A Query is a query for the lanes. Before it comes, the caller fills in the exported fields, and
// those of Place but LatestStart and Estimate; afterwards nobody changes them. Times are since a
// fixed time that the caller chooses.
//
// Invariants, between two steps:
//   - The query is admitted (admitted > 0) from its admission to its outcome. While admitted it
//     either waits in the queue, holds a lane (running), or is another member of a run whose first
//     query holds the lane. A background query may have lost its lane to others; then it is not
//     admitted any more.
//   - checkAt counts only while checkIndex > 0. A query that waits is checked once, when it has
//     become late; one that runs only if it is a background query.
//   - class and group are nil unless the query is admitted.
type Query struct {
	queue.Place
	Owner any // a value of the caller's
	// Profile is the name under which the estimator keeps execution times: the model and version.
	Profile names.ModelKey
	// BatchSize is its work: the batch size of a query with rows alone that takes as long.
	BatchSize int
	Arrival   time.Duration
	// QoSTarget is the latency, counted from Arrival, within which the query should be answered. 0
	// means that it has none; it then waits with the late queries.
	QoSTarget time.Duration
	// Deadline is when the caller cancels the query; 0: never.
	Deadline time.Duration
	// RejectLate refuses the query as soon as it can no longer meet its QoS target, instead of
	// serving it when a lane would otherwise be idle.
	RejectLate bool
	// Refuse refuses the query as overload as soon as it is expected neither to meet its QoS target
	// nor to start before its deadline, among the late queries that run when a lane would be idle.
	Refuse bool
	// Divide lets a lane of several cores run the query on one of them, beside others, while
	// several wait, or if one core takes no longer for it.
	Divide bool
	// Preferred is the lane that the query gets if that is idle, else any lane.
	Preferred int
	// Class has the queries with which this one may run together; nil: it runs alone. A background
	// query has none.
	Class *Class
	// Group names the queries with which a leader wants the query to run; the lane waits for them
	// for a moment. It counts only if Class is set.
	Group merge.GroupID
	// Reservation is the time that is kept for this query; nil: none. It ends when the query comes.
	Reservation *Reservation

	class  *Class        // nil: the query runs alone
	group  *merge.Group  // the group that it was sent with; nil: none
	spread time.Duration // the 90 % quantile of the execution time, less Estimate
	// wholeEstimate is what it is expected to take on all cores of a lane.
	wholeEstimate time.Duration
	saved         time.Duration // see State.savedByDividing; while it waits
	checkAt       time.Duration // when to look at it: it may be late, or have a lane for too long
	run           *Run          // its run with others; nil: it runs alone or waits
	started       time.Duration // when it got its lane
	lane          int           // the lane's number
	// Its index among the admitted queries and among the checks, and one; 0: it is not among them.
	admitted, checkIndex int32
	// suitsOneCore says that one core runs it while others wait. ruledOut says that one core would,
	// but for what is known of runs on one core.
	suitsOneCore, ruledOut bool
	// narrow says that one core runs it even without load. tries says that it runs the way that is
	// not expected to be best, so that the estimator learns of that; see division.
	narrow, tries bool
	onCore        bool // whether it has one core of the lane
	running       bool // whether it holds its lane
	timely        bool // whether it was in time when it started
	abandoned     bool // whether draining has cancelled it
}

// A Class is the queries that may run together: they are of one version of a model, and their
// inputs differ in the batch size only. The caller sets Profile, Policy and Largest, and Latency if
// it is not what the estimator says of Profile; it may change the latter three.
type Class struct {
	merge.Kind
	Profile names.ModelKey
	users   int // admitted queries
}

// IsUsed reports whether a query of the class waits or runs.
func (c *Class) IsUsed() bool { return c.users > 0 }

// estimatedLatency predicts the runs of a class by the estimator.
type estimatedLatency struct {
	estimator Estimator
	profile   names.ModelKey
}

// Mean implements [merge.Latency].
func (e *estimatedLatency) Mean(batch int) time.Duration {
	return e.estimator.Estimate(e.profile, batch)
}

// P80 implements [merge.Latency].
func (e *estimatedLatency) P80(batch int) time.Duration {
	const share = 0.8416 / normal90 // of the way from the mean to the 90 % quantile, where normal
	mean := e.Mean(batch)
	return mean + time.Duration(share*float64(max(0, e.estimator.High(e.profile, batch)-mean)))
}

// Merging implements [merge.Mergeable].
func (q *Query) Merging() (of *merge.Kind, batch int, group *merge.Group) {
	if q.class == nil {
		return nil, q.BatchSize, nil
	}
	return &q.class.Kind, q.BatchSize, q.group
}

// dueTime returns when q's answer is due; Never if it has no target.
func (q *Query) dueTime() time.Duration {
	if q.LatestStart == queue.NoTarget {
		return Never
	}
	return q.LatestStart + q.Estimate
}

// Started returns when q got its lane: from the action Start on, as for Lane and IsOnCore.
func (q *Query) Started() time.Duration { return q.started }

// Lane returns the number of q's lane.
func (q *Query) Lane() int { return q.lane }

// IsOnCore reports whether q has one core of its lane.
func (q *Query) IsOnCore() bool { return q.onCore }

// rejectsLate reports whether q is refused as soon as it is late.
func (q *Query) rejectsLate() bool { return q.RejectLate && q.QoSTarget > 0 }

// isLate reports whether q rejects to be late and is.
func (q *Query) isLate(now time.Duration) bool { return q.rejectsLate() && q.LatestStart < now }

// isRefusable reports whether q may be refused as overload.
func (q *Query) isRefusable() bool { return q.Refuse && !q.Background && q.QoSTarget > 0 }

// remainingRun returns how much longer q will run, by its estimate; 0 if it already takes longer.
func (q *Query) remainingRun(now time.Duration) time.Duration {
	return max(0, q.Estimate-(now-q.started))
}

// setEstimate sets q's expected run time to d and keeps the time when its answer is due.
func (q *Query) setEstimate(d time.Duration) {
	if q.LatestStart != queue.NoTarget {
		q.LatestStart += q.Estimate - d
	}
	q.Estimate = d
}

// joinClass makes q a query of its class, if it has one.
func (s *State) joinClass(q *Query) {
	c := q.Class
	if c == nil {
		return
	}
	if c.Latency == nil {
		c.Latency = &estimatedLatency{s.estimator, c.Profile}
	}
	if c.users++; c.users == 1 {
		s.classes = append(s.classes, c)
	}
	q.class = c
}

// leaveClass makes q a query that runs alone.
func (s *State) leaveClass(q *Query) {
	if c := q.class; c != nil {
		if c.users--; c.users == 0 {
			i, last := slices.Index(s.classes, c), len(s.classes)-1
			s.classes[i] = s.classes[last]
			s.classes = s.classes[:last]
		}
	}
	s.groups.Leave(q.group)
	q.class, q.group = nil, nil
}

// A checkHeap orders queries by when to look at them. It implements heap.Interface.
type checkHeap []*Query

func (h checkHeap) Len() int           { return len(h) }
func (h checkHeap) Less(i, j int) bool { return h[i].checkAt < h[j].checkAt }
func (h checkHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].checkIndex, h[j].checkIndex = int32(i+1), int32(j+1)
}

func (h *checkHeap) Push(x any) {
	q := x.(*Query)
	*h = append(*h, q)
	q.checkIndex = int32(len(*h))
}

func (h *checkHeap) Pop() any {
	last := len(*h) - 1
	q := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	q.checkIndex = 0
	return q
}
