package baselines

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/muster-serve/muster/leader/match"
)

// baselines makes each for a shard.
var baselines = map[string]func() match.Chooser{
	"clockwork-cheapest": queueAt(pickCheapest),
	"clockwork-earliest": queueAt(pickEarliest),
	"edf":                func() match.Chooser { return &edf{} },
	"least-outstanding":  queueAt(pickLeastOutstanding),
	"power-of-two":       queueAt(ofTwo(byOutstanding)),
	"random":             queueAt(pickRandom),
	"round-robin":        func() match.Chooser { return &arrivalQueues{pick: new(roundRobin).pick} },
	"shortest-work":      queueAt(minWork),
	"two-choices":        queueAt(ofTwo(byWork)),
}

// Names lists the baselines, in alphabetical order.
func Names() []string { return slices.Sorted(maps.Keys(baselines)) }

// New returns what makes a baseline for each shard, for [match.Config.NewChooser]; nil if there is
// none of that name.
func New(name string) func() match.Chooser { return baselines[name] }

// NewCapable is New of a baseline that queues each query at a lane as it arrives, in a fair form
// for unlike lanes: it picks among the lanes that would answer the query in time if they were idle,
// if there are any.
func NewCapable(name string) func() match.Chooser {
	return func() match.Chooser {
		queues := baselines[name]().(*arrivalQueues)
		queues.capable = true
		return queues
	}
}

// edf is earliest deadline first: in the order of their QoS targets, each query goes to the lane
// where it would end first, and waits if that is not open yet. Queries that cannot be in time any
// more come last, the oldest first.
type edf struct {
	waiting []match.WaitingQuery
	lanes   []laneSchedule
}

// A laneSchedule is a lane with the work that a round of edf has planned for it.
type laneSchedule struct {
	match.UsableLane
	start time.Duration
	open  bool
}

func (*edf) QueryArrived(match.View, match.WaitingQuery) {}

func (e *edf) Choose(v match.View) {
	e.waiting, e.lanes = e.waiting[:0], e.lanes[:0]
	open := 0
	for l := range v.UsableLanes() {
		e.lanes = append(e.lanes, laneSchedule{l, l.Start(), l.IsOpen()})
		if l.IsOpen() {
			open++
		}
	}
	for q := range v.Waiting() {
		e.waiting = append(e.waiting, q)
	}
	slices.SortStableFunc(e.waiting, func(a, b match.WaitingQuery) int {
		if a.IsLate() != b.IsLate() {
			if b.IsLate() {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.TimeLeft(), b.TimeLeft())
	})
	for _, q := range e.waiting {
		if open == 0 {
			return
		}
		var best *laneSchedule
		var end time.Duration
		for i := range e.lanes {
			l := &e.lanes[i]
			if took, ok := l.Latency(q, l.start); ok && (best == nil || l.start+took < end) {
				best, end = l, l.start+took
			}
		}
		if best == nil {
			continue
		}
		best.start = end
		if best.open {
			v.Assign(q, best.UsableLane)
			best.open = false
			open--
		}
	}
}

// A picker chooses one of the lanes that may have a query.
type picker func(v match.View, q match.WaitingQuery, among []match.UsableLane) match.UsableLane

// arrivalQueues queues each query at a lane when it arrives, and never moves it. The order of a
// lane's queue is that of arrival. Of the lanes that serve a query it picks among those that very
// likely end after it does, if there are any.
type arrivalQueues struct {
	pick picker
	// capable says to pick among the lanes that would answer in time if they were idle.
	capable bool
	among   []match.UsableLane // scratch
}

func queueAt(pick picker) func() match.Chooser {
	return func() match.Chooser { return &arrivalQueues{pick: pick} }
}

// QueryArrived implements [match.Chooser].
func (p *arrivalQueues) QueryArrived(v match.View, q match.WaitingQuery) {
	ends := func(l match.UsableLane) bool { _, ok := l.Latency(q, expectedWork(l)); return ok }
	inTime := func(l match.UsableLane) bool {
		took, ok := l.Latency(q, expectedWork(l))
		return ok && took <= q.QoSTarget()
	}
	if p.capable && p.collectLanes(v, inTime) || p.collectLanes(v, ends) ||
		p.collectLanes(v, func(l match.UsableLane) bool { return l.Serves(q) }) {
		v.Enqueue(q, p.pick(v, q, p.among))
	}
}

// collectLanes sets among to the lanes that may have a query, and reports whether there are any.
func (p *arrivalQueues) collectLanes(v match.View, may func(match.UsableLane) bool) bool {
	p.among = p.among[:0]
	for l := range v.UsableLanes() {
		if may(l) {
			p.among = append(p.among, l)
		}
	}
	return len(p.among) > 0
}

// Choose implements [match.Chooser].
func (p *arrivalQueues) Choose(v match.View) {
	for l := range v.UsableLanes() {
		for q := range l.Queued() {
			if !l.IsOpen() {
				break
			}
			v.Assign(q, l)
		}
	}
}

// expectedWork is the expected time until a lane has finished its run and its queue.
func expectedWork(l match.UsableLane) time.Duration { return l.Start() + l.QueuedWork() }

func byWork(a, b match.UsableLane) int { return cmp.Compare(expectedWork(a), expectedWork(b)) }

func byOutstanding(a, b match.UsableLane) int {
	return cmp.Compare(a.Outstanding(), b.Outstanding())
}

// minWork is join-the-shortest-queue, by work.
func minWork(_ match.View, _ match.WaitingQuery, among []match.UsableLane) match.UsableLane {
	return slices.MinFunc(among, byWork)
}

func pickLeastOutstanding(_ match.View, _ match.WaitingQuery,
	among []match.UsableLane) match.UsableLane {
	return slices.MinFunc(among, byOutstanding)
}

func pickRandom(v match.View, _ match.WaitingQuery, among []match.UsableLane) match.UsableLane {
	return among[v.Rand().IntN(len(among))]
}

// ofTwo draws two lanes and takes the lesser.
func ofTwo(compare func(a, b match.UsableLane) int) picker {
	return func(v match.View, q match.WaitingQuery, among []match.UsableLane) match.UsableLane {
		a, b := pickRandom(v, q, among), pickRandom(v, q, among)
		return slices.MinFunc([]match.UsableLane{a, b}, compare)
	}
}

// roundRobin takes lanes in the order of their ids, in turn.
type roundRobin struct{ last match.LaneID }

func (r *roundRobin) pick(_ match.View, _ match.WaitingQuery,
	among []match.UsableLane) match.UsableLane {
	after := func(l match.UsableLane) uint64 { return uint64(l.ID() - r.last - 1) } // wraps round
	next := slices.MinFunc(among,
		func(a, b match.UsableLane) int { return cmp.Compare(after(a), after(b)) })
	r.last = next.ID()
	return next
}

// pickEarliest and pickCheapest are two variants of Clockwork. Among the lanes where the query
// would meet its QoS target, pickEarliest takes the one that finishes first, and pickCheapest one
// of the cheapest type (least C_j; of these the first to finish). If there is no such lane, both
// take the one that finishes first.
func pickEarliest(_ match.View, q match.WaitingQuery, among []match.UsableLane) match.UsableLane {
	return pickInTime(q, among, false)
}

func pickCheapest(_ match.View, q match.WaitingQuery, among []match.UsableLane) match.UsableLane {
	return pickInTime(q, among, true)
}

func pickInTime(q match.WaitingQuery, among []match.UsableLane,
	cheapest bool) (best match.UsableLane) {
	left := q.TimeLeft()
	finish, cost := time.Duration(math.MaxInt64), math.Inf(1)
	for i, l := range among {
		wait := expectedWork(l)
		f := wait + l.MeanLatency(q, wait)
		c := math.Inf(1)
		if cheapest && f <= left {
			c = l.Coefficient(q, wait)
		}
		if i == 0 || c < cost || c == cost && f < finish {
			best, finish, cost = l, f, c
		}
	}
	return best
}
