package regimes

import (
	"cmp"
	"slices"
	"time"

	"github.com/muster-serve/muster/leader/match"
)

// A Policy is a policy under which regimes run: one of production's, or with NewChooser a baseline
// that production does not have.
type Policy struct {
	Name       string
	NewChooser func() match.Chooser
}

// Subject is the name of the policy that is held against the others.
const Subject = match.DefaultPolicy

// Policies are the policies of the benchmark, the subject first.
func Policies() []Policy {
	return []Policy{
		{Name: Subject},
		{Name: "kairos"},
		{Name: "fcfs"},
		{Name: "clockwork-earliest"},
		{Name: "edf", NewChooser: func() match.Chooser { return &edf{} }},
		{Name: "shortest-work", NewChooser: func() match.Chooser {
			return &arrivalQueues{pick: minWork}
		}},
		{Name: "two-choices", NewChooser: func() match.Chooser {
			return &arrivalQueues{pick: ofTwo}
		}},
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
	for l := range v.Lanes() {
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

// arrivalQueues queues each query at a lane when it arrives, and never moves it. The order of a
// lane's queue is that of arrival.
type arrivalQueues struct {
	pick func(v match.View, q match.WaitingQuery, among []match.UsableLane) match.UsableLane
	hold []match.UsableLane
}

func (p *arrivalQueues) QueryArrived(v match.View, q match.WaitingQuery) {
	p.hold = p.hold[:0]
	for l := range v.Lanes() {
		if _, ok := l.Latency(q, work(l)); ok {
			p.hold = append(p.hold, l)
		}
	}
	if len(p.hold) > 0 {
		v.Enqueue(q, p.pick(v, q, p.hold))
	}
}

func (p *arrivalQueues) Choose(v match.View) {
	for l := range v.Lanes() {
		for q := range l.Queued() {
			if !l.IsOpen() {
				break
			}
			v.Assign(q, l)
		}
	}
}

// work is the expected time until a lane has done what it runs and what is queued there.
func work(l match.UsableLane) time.Duration { return l.Start() + l.QueuedWork() }

// minWork is join-the-shortest-queue, by work.
func minWork(_ match.View, _ match.WaitingQuery, among []match.UsableLane) match.UsableLane {
	return slices.MinFunc(among, byWork)
}

func byWork(a, b match.UsableLane) int { return cmp.Compare(work(a), work(b)) }

// ofTwo draws two lanes and takes the one with less work.
func ofTwo(v match.View, _ match.WaitingQuery, among []match.UsableLane) match.UsableLane {
	a, b := among[v.Rand().IntN(len(among))], among[v.Rand().IntN(len(among))]
	return slices.MinFunc([]match.UsableLane{a, b}, byWork)
}
