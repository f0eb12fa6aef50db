package lane

import (
	"container/heap"
	"slices"
	"time"

	"github.com/muster-serve/muster/runtime/queue"
	"github.com/muster-serve/muster/runtime/queue/merge"
)

// maxBackgroundRun is the longest time for which a background query keeps a lane. Chosen: a few
// times what a piece of a warm-up takes, and a few QoS targets.
const maxBackgroundRun = 100 * time.Millisecond

// A Config is what the lanes of an agent are. All fields are required.
type Config struct {
	Lanes, Cores    int   // Cores is of each lane
	MaxWaiting      int   // queries that wait
	MaxWaitingBytes int64 // of their inputs
	// Estimator predicts the runs of whole lanes, and learns of them. The State owns it from then
	// on.
	Estimator Estimator
}

// A State is the state of an agent's lanes. It is not safe for concurrent use. See the package
// comment.
type State struct {
	lanes, cores    int
	maxWaiting      int
	maxWaitingBytes int64
	estimator       Estimator

	queue   queue.Queue[*Query]
	taker   merge.Taker[*Query]
	groups  merge.Groups
	classes []*Class // those of admitted queries
	idle    []int    // numbers of the lanes that run no query
	division
	overload
	reserved map[*Reservation]struct{}
	admitted []*Query // waiting or running
	running  []*Query // of those that run as one, the first
	checks   checkHeap
	// serveAt is when an idle lane waits no longer for more queries to merge.
	serveAt  time.Duration
	busy     time.Duration
	dropped  DropCounts
	draining bool

	actions []Action
	next    []*Query // scratch
}

// New returns lanes that are idle.
func New(cfg Config) *State {
	s := &State{
		lanes: cfg.Lanes, cores: cfg.Cores, maxWaiting: cfg.MaxWaiting,
		maxWaitingBytes: cfg.MaxWaitingBytes, estimator: cfg.Estimator, serveAt: Never,
		reserved: map[*Reservation]struct{}{},
		division: newDivision(cfg.Lanes),
	}
	for lane := range s.lanes {
		s.idle = append(s.idle, lane)
	}
	return s
}

// Step takes an event and returns what is to be done, and at which time to step the lanes again at
// the latest, with TimePassed or another event; Never if that need not be. Times do not go
// backwards. The actions are valid until the next step.
func (s *State) Step(now time.Duration, e Event) (actions []Action, wakeAt time.Duration) {
	clear(s.actions)
	s.actions = s.actions[:0]
	switch e.Kind {
	case Arrived:
		s.admitQuery(e.Query, e.Cause, now)
	case Cancelled:
		s.cancel(e.Query, e.Cause, now)
	case RunEnded:
		s.endRun(e.Query, &e, now)
	case RunFailed:
		s.failRun(e.Query, e.Cause, now)
	case TimePassed:
		s.checkQueries(now)
	case Reserved:
		s.reserveTime(e.Reservation, now)
	case Released:
		delete(s.reserved, e.Reservation)
	case ReadBegan:
		if s.refusesUnread(e.HeldBytes, now) {
			s.addAction(Action{Kind: RefuseUnread})
		}
	case UnreadRefused:
		s.addAction(Action{
			Kind: Refuse, Reason: Overloaded, Waiting: s.queue.Len(), WaitingBytes: e.HeldBytes,
			RetryAfter: s.retryAfter(time.Duration(s.meanWork), now),
		})
	case DrainBegan:
		if !s.draining {
			s.draining = true
			s.noteDrained()
		}
	case DrainTimedOut:
		for _, q := range s.admitted {
			q.abandoned = true
			s.addAction(Action{Kind: Abandon, Query: q})
		}
	}
	wakeAt = s.serveAt
	if len(s.checks) > 0 {
		wakeAt = min(wakeAt, s.checks[0].checkAt)
	}
	return s.actions, wakeAt
}

func (s *State) addAction(a Action) { s.actions = append(s.actions, a) }

// refuseQuery tells the caller that q gets no answer.
func (s *State) refuseQuery(q *Query, why Reason) {
	s.addAction(Action{Kind: Refuse, Query: q, Reason: why})
}

// admitQuery gives q an idle lane, or queues it, or refuses it. cause is set if nobody waits for
// it.
func (s *State) admitQuery(q *Query, cause Reason, now time.Duration) {
	delete(s.reserved, q.Reservation)
	q.Estimate = s.estimator.Estimate(q.Profile, q.BatchSize)
	q.wholeEstimate, q.spread = q.Estimate, s.estimator.High(q.Profile, q.BatchSize)-q.Estimate
	q.LatestStart = queue.LatestStart(q.Arrival, q.QoSTarget, q.Estimate)
	q.suitsOneCore = q.Divide && s.cores > 1
	s.noteRefusable(q, now)
	s.noteSize(q)
	// A lane may be idle because it awaits queries to merge; q must not pass the queries that wait
	// for it.
	waits := q.Class != nil && (q.Class.Waits() || q.Group.Number != 0)
	switch {
	case s.draining:
		s.dropped.Draining++
		s.refuseQuery(q, Draining)
		return
	case cause != 0:
		s.refuseOutOfTime(q, cause, now)
		return
	case q.isLate(now):
		s.refuseLate(q, now)
		return
	case len(s.idle) > 0 && s.queue.Len() == 0 && !waits:
		i := max(slices.Index(s.idle, q.Preferred), 0)
		s.joinClass(q)
		s.planDivision(q, now)
		if q.fitsOneCore() && s.dividesFor(q, s.idle[i], now) {
			s.divideLane(i)
			s.startOnCore(q, now)
			break
		}
		q.expectWholeLane()
		q.lane = s.idle[i]
		s.idle = slices.Delete(s.idle, i, i+1)
		s.start(q, nil, now)
	case !q.Background && (s.queue.Len() >= s.maxWaiting ||
		s.queue.Bytes()+q.Bytes > s.maxWaitingBytes):
		s.refuseOverload(q, now)
		return
	default:
		s.planDivision(q, now)
		if s.refusesAtOnce(q, now) {
			s.refuseOverload(q, now)
			return
		}
		if s.joinClass(q); q.class != nil {
			q.group = s.groups.Arrive(q.Group, now, q.LatestStart)
		}
		s.push(q, now)
	}
	s.admitted = append(s.admitted, q)
	q.admitted = int32(len(s.admitted))
	s.serve(now)
	s.refuseHopeless(now)
}

// push makes q wait.
func (s *State) push(q *Query, now time.Duration) {
	s.queue.Push(q, now)
	s.noteWaiting(q)
	s.checkWhenLate(q, now)
}

// noteWaiting counts q, which waits from now on, in the sums.
func (s *State) noteWaiting(q *Query) {
	if q.saved = 0; !q.Background { // which no sum has
		q.saved = s.savedByDividing(q)
	}
	s.saved += q.saved
	if q.class != nil { // beside merging it, what counts is the time that it takes of a lane
		q.class.Enter(q.BatchSize, q.Estimate-q.saved)
	}
}

// removeWaiting makes q wait no more, and reports whether it did.
func (s *State) removeWaiting(q *Query) bool {
	if !s.queue.Remove(q) {
		return false
	}
	s.noteNotWaiting(q)
	return true
}

// noteNotWaiting takes q, which waits no more, out of the sums.
func (s *State) noteNotWaiting(q *Query) {
	s.saved -= q.saved
	if q.class != nil {
		q.class.Leave(q.BatchSize, q.Estimate-q.saved)
	}
}

// serve gives idle lanes, and free cores of divided ones, to queries that wait.
func (s *State) serve(now time.Duration) {
	s.serveAt = Never
	for {
		if s.serveOnCore(now) {
			continue
		}
		if len(s.idle) == 0 {
			return
		}
		run, until := s.taker.Take(&s.queue, now)
		if len(run) == 0 {
			s.serveAt = until
			return
		}
		last := len(s.idle) - 1
		lane := s.idle[last]
		s.idle = s.idle[:last]
		for i, q := range run {
			s.noteNotWaiting(q)
			q.expectWholeLane()
			q.started, q.lane = now, lane
			if i > 0 { // start does so for the first
				s.noteMissed(q, now > q.LatestStart, now)
				s.removeCheck(q)
			}
		}
		var together *Run
		if len(run) > 1 {
			together = newRun(run)
		}
		s.start(run[0], together, now)
	}
}

// serveAwaiting serves the queries that wait if an idle lane waits for more of them. The query that
// has just left may be the one that the lane awaited, and that no other was to pass.
func (s *State) serveAwaiting(now time.Duration) {
	if s.serveAt != Never {
		s.serve(now)
	}
}

// start gives q its lane, or one core of it, alone or as the first of a run.
func (s *State) start(q *Query, run *Run, now time.Duration) {
	s.removeCheck(q)
	q.running, q.started = true, now
	s.running = append(s.running, q)
	if !q.onCore {
		s.staysDivided[q.lane] = false
	}
	s.noteLoad(q, now)
	q.timely = q.Estimate > 0 && now <= q.LatestStart
	s.noteMissed(q, !q.timely, now)
	if q.timely {
		s.timelyCores += s.coresOf(q)
	}
	if q.Background {
		s.check(q, now+maxBackgroundRun)
	}
	if run != nil {
		s.planRun(q, run)
	}
	s.addAction(Action{Kind: Start, Query: q, Run: run})
}

// cancel handles that nobody waits for q any more. Of queries that run together, the others go on.
func (s *State) cancel(q *Query, cause Reason, now time.Duration) {
	switch {
	case q.admitted == 0: // it has ended
	case s.removeWaiting(q):
		s.removeAdmitted(q)
		s.refuseOutOfTime(q, cause, now)
		s.serveAwaiting(now)
	case q.run != nil && !q.running:
		s.removeAdmitted(q)
		s.refuseOutOfTime(q, cause, now)
		s.leaveRun(q)
	case q.run != nil:
		s.leaveRun(q)
	default:
		s.addAction(Action{Kind: CancelRun, Query: q})
	}
}

// dropQuery counts q, for which nobody waits any more, and refuses it.
func (s *State) dropQuery(q *Query, cause Reason) {
	switch {
	case q.abandoned:
		cause = Draining
		s.dropped.Draining++
	case cause == DeadlinePassed:
		s.dropped.Deadline++
	default:
		s.dropped.Cancelled++
	}
	s.refuseQuery(q, cause)
}

// refuseOutOfTime is drop for a query that has not run.
func (s *State) refuseOutOfTime(q *Query, cause Reason, now time.Duration) {
	s.dropQuery(q, cause)
	if cause == DeadlinePassed && !q.abandoned {
		s.noteMissed(q, true, now)
	}
}

// endRun learns from the run of q, or of those that ran together with it, and frees the lane.
func (s *State) endRun(q *Query, e *Event, now time.Duration) {
	rows := q.BatchSize
	if run := q.run; run != nil {
		rows = run.Rows
		s.endMembers(run, now)
	} else if q.class != nil {
		q.class.Ran(rows, q.dueTime() < now)
	}
	s.estimatorOf(q).Observe(q.Profile, rows, e.Execution)
	if q.Estimate == 0 {
		s.estimateAnew(q.Profile, now)
	}
	if e.Cause != 0 {
		s.dropQuery(q, e.Cause)
	}
	s.freeLane(q, now)
}

// failRun frees the lane of q, whose run has failed, or has it run alone now if it ran with others.
func (s *State) failRun(q *Query, cause Reason, now time.Duration) {
	if run := q.run; run != nil {
		s.failMembers(run, now)
		s.serve(now) // another lane may be idle
		switch {
		case cause != 0:
		case q.isLate(now):
			s.refuseLate(q, now)
		default:
			s.addAction(Action{Kind: Rerun, Query: q})
			return
		}
	}
	if cause == DeadlinePassed || cause == CallerLeft {
		s.dropQuery(q, cause)
	}
	s.freeLane(q, now)
}

// freeLane gives q's lane to the next query. It does nothing if q has no lane any more.
func (s *State) freeLane(q *Query, now time.Duration) {
	if !q.running {
		return
	}
	i, last := slices.Index(s.running, q), len(s.running)-1
	s.running[i], s.running[last] = s.running[last], nil
	s.running = s.running[:last]
	if q.running = false; q.timely {
		s.timelyCores -= s.coresOf(q)
	}
	s.busy += s.busyWith(q, now)
	if q.onCore {
		s.freeCore(q.lane)
	} else {
		s.idle = append(s.idle, q.lane)
	}
	s.noteLoad(q, now)
	s.refuseRisky(now)
	s.serve(now)
	s.removeAdmitted(q)
	s.refuseHopeless(now)
}

// removeAdmitted takes q off the admitted queries.
func (s *State) removeAdmitted(q *Query) {
	i, last := int(q.admitted)-1, len(s.admitted)-1
	s.admitted[i] = s.admitted[last]
	s.admitted[i].admitted = q.admitted
	s.admitted[last] = nil
	s.admitted = s.admitted[:last]
	q.admitted = 0
	s.removeCheck(q)
	s.leaveClass(q)
	s.noteDrained()
}

// noteDrained says so if the lanes drain and no query is left.
func (s *State) noteDrained() {
	if s.draining && len(s.admitted) == 0 {
		s.addAction(Action{Kind: Drained})
	}
}

// checkWhenLate schedules a check of q, which waits, for when it has become late, if being late
// changes anything for it.
func (s *State) checkWhenLate(q *Query, now time.Duration) {
	if q.LatestStart >= now && (q.rejectsLate() || q.suitsOneCore) {
		s.check(q, q.LatestStart+1)
	}
}

// check schedules a check of q.
func (s *State) check(q *Query, at time.Duration) {
	s.removeCheck(q)
	q.checkAt = at
	heap.Push(&s.checks, q)
}

// removeCheck cancels q's check.
func (s *State) removeCheck(q *Query) {
	if q.checkIndex > 0 {
		heap.Remove(&s.checks, int(q.checkIndex)-1)
	}
}

// checkQueries handles the checks that are due: of queries that have become late while they waited,
// and of background queries that have had a lane for long. It also serves queries that have waited
// long enough for others to be merged with.
func (s *State) checkQueries(now time.Duration) {
	for len(s.checks) > 0 && s.checks[0].checkAt <= now {
		q := s.checks[0]
		s.removeCheck(q)
		switch {
		case q.running: // a run that never ends blocks no lane
			s.freeLane(q, now)
		case s.widenQuery(q, now):
		case q.rejectsLate():
			s.removeWaiting(q)
			s.removeAdmitted(q)
			s.refuseLate(q, now)
			s.serveAwaiting(now)
		}
	}
	if s.serveAt <= now {
		s.serve(now)
	}
}
