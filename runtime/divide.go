package runtime

import (
	"slices"
	"time"

	"github.com/muster-serve/muster/runtime/queue"
)

// A divisible model can run on one core of a lane while other queries run on the others.
type divisible interface {
	Model
	// onOneCore returns what runs the model on one core; nil if nothing does. It is closed with the
	// model.
	onOneCore() Model
}

const (
	// loadRuns is the time constant of the average number of busy cores, in runs.
	loadRuns = 8
	// wholeLoad is the share of the time that a lane may be busy, if it is whole, for it not to stay
	// divided.
	wholeLoad = 0.7
	// coreGain is the share of what all cores together take for a query, the product of their number
	// and the time, below which one core serves it better under overload.
	coreGain = 0.9
	// Lanes find out by trying whether one core serves a query as fast as all of them, if it takes at
	// most shortRun on all. A query of a model of which nothing is known for one core runs on one, and
	// each tryEvery-th query the other way than the rest. Of longer ones, which run on one core while
	// others wait, these do so even if merging is expected to save more.
	tryEvery = 128
	// shortRun bounds what a wrong answer costs: one that was true while others used the machine is
	// corrected only by the tries. Longer runs gain from all cores, but for models that cannot use them.
	shortRun = 500 * time.Microsecond
)

// A divided is which lanes are divided: they run several queries at a time, each on one core.
//
// A lane is divided for load when as many queries wait as it has cores. When all its cores are free,
// it becomes whole if the next query has no others beside it, on average, or if the whole lane could
// do the work easily: a lone query takes less time there.
//
// A lane is also divided for a narrow query, which one core serves as fast as all of them: the others
// would only wait for each other, and spin. A query that is not narrow then waits until the lane is
// whole, unless there is load.
type divided struct {
	cores int // of each lane
	// free has the number of a divided lane once for each of its cores that runs no query, unless all
	// of them do not: then the lane is idle.
	free []int
	// stays is, by lane, whether it has been divided for load since it was last whole; forLoad, since it
	// was last idle.
	stays, forLoad []bool
	tried          int         // queries that could run on one core
	ruledOut       int         // queries that triesAgain has looked at
	load           queue.Spare // its share is that of the cores that run no query
	// onCore estimates runs on one core, which the lanes' own estimator does not learn of: others
	// plan with it.
	onCore Estimator
	saved  time.Duration // sum of the waiting turns' saves
	first  []*turn       // scratch
}

func newDivided(lanes, cores int) divided {
	return divided{
		cores: cores, stays: make([]bool, lanes), forLoad: make([]bool, lanes),
		onCore: NewLinearEstimator(),
	}
}

// serveCore gives a core to the query that is next, dividing an idle lane if the query is narrow, if
// there are queries for all its cores, or if it stays divided. It reports whether it did.
func (l *Lanes) serveCore(now time.Duration) bool {
	if l.cores == 1 || len(l.free)+len(l.idle) == 0 {
		return false
	}
	l.first = l.queue.First(l.first[:0], now, 1)
	if len(l.first) == 0 {
		return false
	}
	t, load := l.first[0], l.queue.Len() >= l.cores || l.overloads(now)
	again := load && l.triesAgain(t, now)
	if !again && !suitsCore(t) { // it waits until a lane is whole
		l.hasten(t, now)
		return false
	}
	if n := len(l.free); n > 0 {
		if !t.narrow && !load && !l.forLoad[l.free[n-1]] {
			return false
		}
	} else {
		last := len(l.idle) - 1
		if !load && !l.dividesFor(t, l.idle[last], now) {
			return false
		}
		l.divide(last)
	}
	l.remove(t)
	if again {
		t.single = t.ruledOut
		t.expect(t.whole * time.Duration(l.cores))
	}
	l.startOnCore(t, now)
	close(t.granted)
	return true
}

// hasten has t, which is next but needs a whole lane, stay next if it has waited for long. Else it could
// wait for ever: queries in time go before it, and as long as they overlap on the cores of a lane, the
// lane is never whole.
func (l *Lanes) hasten(t *turn, now time.Duration) {
	if len(l.idle) > 0 || !l.queue.Hasten(t, now) {
		return
	}
	if t.kind != nil && t.kind.Policy.Waits() { // nobody waits for others that it might run with
		l.left(t)
		l.unkind(t)
		l.entered(t)
	}
}

// dividesFor reports whether an idle lane is to be divided for t, which suits it, alone: because t is
// narrow, or the lane stays divided.
func (l *Lanes) dividesFor(t *turn, lane int, now time.Duration) bool {
	switch {
	case t.narrow:
		return true
	case !l.stays[lane]:
		return false
	}
	busy := (1 - l.load.Share(now, loadRuns*t.Estimate)) * float64(l.cores)
	return busy > max(1, wholeLoad*float64(t.Estimate)/float64(t.whole))
}

// noteLoad notes how many cores run a query from now on. t is one that has just started or ended.
func (l *Lanes) noteLoad(t *turn, now time.Duration) {
	if l.cores > 1 {
		all := l.lanes * l.cores
		l.load.Note(now, loadRuns*max(t.Estimate, 1),
			float64(all-len(l.idle)*l.cores-len(l.free))/float64(all))
	}
}

// divide divides the i-th idle lane.
func (l *Lanes) divide(i int) {
	l.forLoad[l.idle[i]] = false
	l.free = append(l.free, slices.Repeat(l.idle[i:i+1], l.cores)...)
	l.idle = slices.Delete(l.idle, i, i+1)
}

// startOnCore gives t a free core.
func (l *Lanes) startOnCore(t *turn, now time.Duration) {
	last := len(l.free) - 1
	t.started, t.lane, t.onCore = now, l.free[last], true
	l.free = l.free[:last]
	if !t.narrow {
		l.stays[t.lane], l.forLoad[t.lane] = true, true
	}
	l.starts(t, now)
}

// freeCores returns how many of a divided lane's cores run no query.
func (l *Lanes) freeCores(lane int) (n int) {
	for _, other := range l.free {
		if other == lane {
			n++
		}
	}
	return n
}

// plan decides whether t may run on one core of a lane: if its target leaves time to wait for a run of
// the whole lane before, also if its own takes longer than most, and it is not late for it yet. It is
// then expected to run on one core, even though the whole lane would take less time for it.
//
// While an overload lasts, its target need only leave time for its own run: others run on one core as
// well, and lanes choose those that can be in time. More of them can if one core takes less than its
// share of what all take.
func (l *Lanes) plan(t *turn, now, target time.Duration) {
	if t.single == nil {
		return
	}
	known := l.onCore.Estimate(t.profile, t.batch)
	onCore, spread := known, max(0, l.onCore.High(t.profile, t.batch)-known)
	most := t.whole * time.Duration(l.cores) // as long as all cores together
	if known == 0 {
		onCore = most
	}
	if t.whole == 0 || now+onCore > t.due() && now+t.whole <= t.due() {
		t.single = nil
		return
	}
	longest := t.whole + onCore + spread
	if (known == 0 || float64(known) < coreGain*float64(most)) && l.missed.lasts(target, now) {
		longest = onCore
	}
	if target > 0 && longest > target {
		t.single, t.ruledOut = nil, t.single
		return
	}
	l.tried++
	t.tries = known == 0 || l.tried%tryEvery == 0
	t.narrow = t.whole <= shortRun && (known > 0 && known <= t.whole) != t.tries
	if t.spread = scaled(t.spread, onCore, t.whole); known > 0 {
		t.spread = spread
	}
	t.expect(onCore)
}

// triesAgain reports whether t, which is next, is to run on one core though what is known of one core
// is against it: each tryEvery-th of those that could still be in time there. Else a first run that
// took long by accident would have no query of the model run there ever again.
func (l *Lanes) triesAgain(t *turn, now time.Duration) bool {
	most := t.whole * time.Duration(l.cores) // as long as all cores together
	if t.ruledOut == nil || len(l.idle) == 0 || now+most > t.due() ||
		t.kind != nil && t.kind.Policy.Waits() {
		return false
	}
	l.ruledOut++
	return l.ruledOut%tryEvery == 0
}

// scaled returns d times a / b, whose product with d may overflow.
func scaled(d, a, b time.Duration) time.Duration {
	return time.Duration(float64(d) * float64(a) / float64(b))
}

// expect has t, which is due when it was, be expected to take d.
func (t *turn) expect(d time.Duration) {
	if t.LatestStart != queue.NoTarget {
		t.LatestStart += t.Estimate - d
	}
	t.Estimate = d
}

// suitsCore reports whether t, which waits, is to run on one core: it may, and would not take less of a
// lane's time if it ran with others as one.
func suitsCore(t *turn) bool {
	return t.single != nil &&
		(t.kind == nil || !t.kind.Policy.Waits() && (t.tries || t.kind.Saved() == 0))
}

// wholly has t, which gets a whole lane, no longer be expected to run on one core.
func (t *turn) wholly() {
	if t.single != nil {
		t.spread = scaled(t.spread, t.whole, t.Estimate)
		t.expect(t.whole)
		t.single, t.narrow = nil, false
	}
}

// widens has t, which waits and has become late for one core, wait for a whole lane instead, and reports
// whether it does: unless there is load, or t is late for that as well.
func (l *Lanes) widens(t *turn, now time.Duration) bool {
	if t.single == nil || now+t.whole > t.due() || l.queue.Len() >= l.cores || !l.remove(t) {
		return false
	}
	t.wholly()
	l.queue.PushAgain(t, now)
	l.entered(t)
	l.serve(now)
	return true
}

// saves returns by how much t is expected to take less of a lane's time than its run takes.
func (l *Lanes) saves(t *turn) time.Duration {
	if t.single == nil {
		return 0
	}
	return t.Estimate - t.Estimate/time.Duration(l.cores)
}

// freeCore notes that a core of a divided lane runs no query any more.
func (l *Lanes) freeCore(lane int) {
	l.free = append(l.free, lane)
	if l.freeCores(lane) == l.cores {
		l.free = slices.DeleteFunc(l.free, func(other int) bool { return other == lane })
		l.idle = append(l.idle, lane)
	}
}

// estimatorOf returns what learns from t's run.
func (l *Lanes) estimatorOf(t *turn) Estimator {
	if t.onCore {
		return l.onCore
	}
	return l.estimator
}

// coresOf returns how many cores t's run has.
func (l *Lanes) coresOf(t *turn) int {
	if t.onCore {
		return 1
	}
	return l.cores
}

// busyWith returns for how long t, which runs, has kept its lane busy.
func (l *Lanes) busyWith(t *turn, now time.Duration) time.Duration {
	return (now - t.started) * time.Duration(l.coresOf(t)) / time.Duration(l.cores)
}
