package lane

import (
	"slices"
	"time"

	"github.com/muster-serve/muster/runtime/queue"
)

const (
	// loadRuns is the time constant of the average number of busy cores, in runs. Chosen: a lane
	// that became whole after any query that had no other beside it lost up to 30 %
	// (docs/internals/lanes.md).
	loadRuns = 8
	// wholeLoad is the share of its time that a lane would be busy if it were whole below which it
	// does not stay divided. Chosen: above it queries would wait for each other at a whole lane,
	// and well below it each runs alone and faster on all cores.
	wholeLoad = 0.7
	// coreGain is the share of what all cores together take for a query, the product of their
	// number and the time, below which one core serves it better under overload. Chosen: the tenth
	// covers errors of the estimates.
	coreGain = 0.9
	// Lanes find out by trying whether one core serves a query as fast as all of them, if it takes
	// at most shortRun on all. A query of a model of which nothing is known for one core runs on
	// one, and each tryEvery-th query the other way than the rest. Of longer ones, which run on one
	// core while others wait, these do so even if merging is expected to save more. Chosen: the
	// tries cost less than 1 % of the runs.
	tryEvery = 128
	// shortRun bounds what a wrong answer costs: one that was true while others used the machine is
	// corrected only by the tries. Longer runs gain from all cores, but for models that cannot use
	// them.
	shortRun = 500 * time.Microsecond
)

// A division is which lanes are divided: they run several queries at a time, each on one core.
//
// A lane is divided for load when as many queries wait as it has cores. When all its cores are
// free, it becomes whole if the next query has no others beside it, on average, or if the whole
// lane could do the work easily: a lone query takes less time there.
//
// A lane is also divided for a narrow query, which one core serves as fast as all of them: the
// others would only wait for each other, and spin. A query that is not narrow then waits until the
// lane is whole, unless there is load.
type division struct {
	// free has the number of a divided lane once for each of its cores that runs no query, unless
	// all of them do not: then the lane is idle.
	free []int
	// staysDivided is, by lane, whether it has been divided for load since it was last whole;
	// dividedForLoad, since it was last idle.
	staysDivided, dividedForLoad []bool
	plannedTries                 int         // queries that could run on one core
	ruledOutTries                int         // queries that triesAgain has looked at
	load                         queue.Spare // its share is that of the cores that run no query
	// coreEstimator predicts runs on one core, which the lanes' own estimator does not learn of:
	// others plan with it.
	coreEstimator Estimator
	saved         time.Duration // the sum of what waiting queries have saved
}

func newDivision(lanes int) division {
	return division{
		staysDivided: make([]bool, lanes), dividedForLoad: make([]bool, lanes),
		coreEstimator: NewLinearEstimator(),
	}
}

// serveOnCore gives a core to the query that is next, dividing an idle lane if the query is narrow,
// if there are queries for all its cores, or if it stays divided. It reports whether it did.
func (s *State) serveOnCore(now time.Duration) bool {
	if s.cores == 1 || len(s.free)+len(s.idle) == 0 {
		return false
	}
	s.next = s.queue.First(s.next[:0], now, 1)
	if len(s.next) == 0 {
		return false
	}
	q, hasLoad := s.next[0], s.queue.Len() >= s.cores || s.isOverloaded(now)
	again := hasLoad && s.triesAgain(q, now)
	if !again && !q.fitsOneCore() { // it waits until a lane is whole
		s.hastenQuery(q, now)
		return false
	}
	if n := len(s.free); n > 0 {
		if !q.narrow && !hasLoad && !s.dividedForLoad[s.free[n-1]] {
			return false
		}
	} else {
		last := len(s.idle) - 1
		if !hasLoad && !s.dividesFor(q, s.idle[last], now) {
			return false
		}
		s.divideLane(last)
	}
	s.removeWaiting(q)
	if again {
		q.suitsOneCore = true
		q.setEstimate(q.wholeEstimate * time.Duration(s.cores))
	}
	s.startOnCore(q, now)
	return true
}

// hastenQuery has q, which is next but needs a whole lane, stay next if it has waited for long.
// Else it could wait for ever: queries in time go before it, and as long as they overlap on the
// cores of a lane, the lane is never whole.
func (s *State) hastenQuery(q *Query, now time.Duration) {
	if len(s.idle) > 0 || !s.queue.Hasten(q, now) {
		return
	}
	if q.class != nil && q.class.Waits() { // no query waits for others to run with
		s.noteNotWaiting(q)
		s.leaveClass(q)
		s.noteWaiting(q)
	}
}

// dividesFor reports whether an idle lane is to be divided for q, which suits it, alone: because q
// is narrow, or the lane stays divided.
func (s *State) dividesFor(q *Query, lane int, now time.Duration) bool {
	switch {
	case q.narrow:
		return true
	case !s.staysDivided[lane]:
		return false
	}
	busy := (1 - s.load.Share(now, loadRuns*q.Estimate)) * float64(s.cores)
	return busy > max(1, wholeLoad*float64(q.Estimate)/float64(q.wholeEstimate))
}

// noteLoad notes how many cores run a query from now on. q is one that has just started or ended.
func (s *State) noteLoad(q *Query, now time.Duration) {
	if s.cores > 1 {
		all := s.lanes * s.cores
		s.load.Note(now, loadRuns*max(q.Estimate, 1),
			float64(all-len(s.idle)*s.cores-len(s.free))/float64(all))
	}
}

// divideLane divides the i-th idle lane.
func (s *State) divideLane(i int) {
	s.dividedForLoad[s.idle[i]] = false
	s.free = append(s.free, slices.Repeat(s.idle[i:i+1], s.cores)...)
	s.idle = slices.Delete(s.idle, i, i+1)
}

// startOnCore gives q a free core.
func (s *State) startOnCore(q *Query, now time.Duration) {
	last := len(s.free) - 1
	q.lane, q.onCore = s.free[last], true
	s.free = s.free[:last]
	if !q.narrow {
		s.staysDivided[q.lane], s.dividedForLoad[q.lane] = true, true
	}
	s.start(q, nil, now)
}

// freeCore notes that a core of a divided lane runs no query any more.
func (s *State) freeCore(lane int) {
	s.free = append(s.free, lane)
	cores := 0
	for _, other := range s.free {
		if other == lane {
			cores++
		}
	}
	if cores == s.cores {
		s.free = slices.DeleteFunc(s.free, func(other int) bool { return other == lane })
		s.idle = append(s.idle, lane)
	}
}

// planDivision decides whether q may run on one core of a lane: if its target leaves time to wait
// for a run of the whole lane before, also if its own takes longer than most, and it is not late
// for it yet. It is then expected to run on one core, even though the whole lane would take less
// time for it.
//
// While an overload lasts, its target need only leave time for its own run: others run on one core
// as well, and lanes choose those that can be in time. More of them can if one core takes less than
// its share of what all take.
func (s *State) planDivision(q *Query, now time.Duration) {
	if !q.suitsOneCore {
		return
	}
	known := s.coreEstimator.Estimate(q.Profile, q.BatchSize)
	onCore, spread := known, max(0, s.coreEstimator.High(q.Profile, q.BatchSize)-known)
	most := q.wholeEstimate * time.Duration(s.cores) // as long as all cores together
	if known == 0 {
		onCore = most
	}
	if due := q.dueTime(); q.wholeEstimate == 0 ||
		now+onCore > due && now+q.wholeEstimate <= due {
		q.suitsOneCore = false
		return
	}
	longest := q.wholeEstimate + onCore + spread
	if (known == 0 || float64(known) < coreGain*float64(most)) && s.missed.isLasting(q.QoSTarget,
		now) {
		longest = onCore
	}
	if q.QoSTarget > 0 && longest > q.QoSTarget {
		q.suitsOneCore, q.ruledOut = false, true
		return
	}
	s.plannedTries++
	q.tries = known == 0 || s.plannedTries%tryEvery == 0
	q.narrow = q.wholeEstimate <= shortRun && (known > 0 && known <= q.wholeEstimate) != q.tries
	if q.spread = scaleDuration(q.spread, onCore, q.wholeEstimate); known > 0 {
		q.spread = spread
	}
	q.setEstimate(onCore)
}

// triesAgain reports whether q, which is next, is to run on one core though what is known of one
// core is against it: each tryEvery-th of those that could still be in time there. Else a first run
// that took long by accident would have no query of the model run there ever again.
func (s *State) triesAgain(q *Query, now time.Duration) bool {
	most := q.wholeEstimate * time.Duration(s.cores) // as long as all cores together
	if !q.ruledOut || len(s.idle) == 0 || now+most > q.dueTime() ||
		q.class != nil && q.class.Waits() {
		return false
	}
	s.ruledOutTries++
	return s.ruledOutTries%tryEvery == 0
}

// scaleDuration returns d times a / b, whose product with d may overflow.
func scaleDuration(d, a, b time.Duration) time.Duration {
	return time.Duration(float64(d) * float64(a) / float64(b))
}

// fitsOneCore reports whether q, which waits, is to run on one core: it may, and would not take
// less of a lane's time if it ran with others as one.
func (q *Query) fitsOneCore() bool {
	return q.suitsOneCore &&
		(q.class == nil || !q.class.Waits() && (q.tries || q.class.Saved() == 0))
}

// expectWholeLane has q, which gets a whole lane, no longer be expected to run on one core.
func (q *Query) expectWholeLane() {
	if q.suitsOneCore {
		q.spread = scaleDuration(q.spread, q.wholeEstimate, q.Estimate)
		q.setEstimate(q.wholeEstimate)
		q.suitsOneCore, q.narrow = false, false
	}
}

// widenQuery has q, which waits and has become late for one core, wait for a whole lane instead,
// and reports whether it does: unless there is load, or q is late for that as well.
func (s *State) widenQuery(q *Query, now time.Duration) bool {
	if !q.suitsOneCore || now+q.wholeEstimate > q.dueTime() || s.queue.Len() >= s.cores ||
		!s.removeWaiting(q) {
		return false
	}
	q.expectWholeLane()
	s.queue.PushAgain(q, now)
	s.noteWaiting(q)
	s.checkWhenLate(q, now)
	s.serve(now)
	return true
}

// savedByDividing returns by how much q is expected to take less of a lane's time than its run
// takes.
func (s *State) savedByDividing(q *Query) time.Duration {
	if !q.suitsOneCore {
		return 0
	}
	return q.Estimate - q.Estimate/time.Duration(s.cores)
}

// estimatorOf returns what learns from q's run.
func (s *State) estimatorOf(q *Query) Estimator {
	if q.onCore {
		return s.coreEstimator
	}
	return s.estimator
}

// coresOf returns how many cores q's run has.
func (s *State) coresOf(q *Query) int {
	if q.onCore {
		return 1
	}
	return s.cores
}

// busyWith returns for how long q, which runs, has kept its lane busy.
func (s *State) busyWith(q *Query, now time.Duration) time.Duration {
	return (now - q.started) * time.Duration(s.coresOf(q)) / time.Duration(s.cores)
}
