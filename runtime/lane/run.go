package lane

import (
	"slices"
	"time"
)

// A Run is several queries that run as one, on the lane of the first.
type Run struct {
	Members []*Query
	Rows    int // the sum of their batch sizes

	abandoned []bool // by member: nobody waits for it any more
	left      int    // members that are not abandoned
	// What the first is expected to take alone, and when its answer is due.
	estimate, spread, due time.Duration
}

// newRun makes queries, which have just left the queue, one run.
func newRun(queries []*Query) *Run {
	r := &Run{
		Members: slices.Clone(queries), abandoned: make([]bool, len(queries)), left: len(queries),
	}
	for _, q := range queries {
		q.run = r
		r.Rows += q.BatchSize
	}
	return r
}

// planRun has q, the first of a run, be expected to take as long as that.
func (s *State) planRun(q *Query, r *Run) {
	r.estimate, r.spread, r.due = q.Estimate, q.spread, q.dueTime()
	q.Estimate = q.class.Latency.Mean(r.Rows)
	q.spread = s.estimator.High(q.Profile, r.Rows) - q.Estimate
}

// leaveRun notes that nobody waits for a member of a run any more.
func (s *State) leaveRun(q *Query) {
	r := q.run
	i := slices.Index(r.Members, q)
	if r.abandoned[i] {
		return
	}
	r.abandoned[i] = true
	if r.left--; r.left == 0 {
		s.addAction(Action{Kind: CancelRun, Query: r.Members[0]})
	}
}

// endMembers gives the members of a run their results.
func (s *State) endMembers(r *Run, now time.Duration) {
	late := r.due < now
	for i, q := range r.Members {
		q.run = nil
		if i == 0 {
			continue
		}
		late = late || q.dueTime() < now
		if !r.abandoned[i] {
			s.removeAdmitted(q)
			s.addAction(Action{Kind: Answer, Query: q, Member: i})
		}
	}
	r.Members[0].class.Ran(r.Rows, late)
}

// failMembers has the members of a run, which has failed, wait again, to run alone. Those that have
// become late meanwhile, and are to be rejected then, do not.
func (s *State) failMembers(r *Run, now time.Duration) {
	first := r.Members[0]
	for i, q := range r.Members {
		q.run = nil
		if i == 0 || r.abandoned[i] {
			continue
		}
		s.leaveClass(q)
		if q.isLate(now) {
			s.removeAdmitted(q)
			s.refuseLate(q, now)
		} else {
			s.push(q, now)
		}
	}
	first.Estimate, first.spread = r.estimate, r.spread
}
