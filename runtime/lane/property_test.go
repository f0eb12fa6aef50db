package lane

import (
	"cmp"
	"flag"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/runtime/queue"
	"github.com/muster-serve/muster/runtime/queue/merge"
	"github.com/muster-serve/muster/runtime/queue/merge/mergetest"
)

var seedFlag = flag.Uint64("seed", 0, "run only the schedule of this seed, and say what happens")

// schedule has random queries come to random lanes, and returns the first thing that must not be.
func schedule(seed uint64, m *mutant, trace func(string)) (counts map[Reason]int, err error) {
	r := rand.New(rand.NewPCG(seed, 53))
	cfg := Config{
		Lanes: 1 + r.IntN(3), Cores: 1 + r.IntN(3)*r.IntN(2), MaxWaiting: 1 << r.IntN(10),
		MaxWaitingBytes: 1 << (10 + r.IntN(10)),
	}
	w := newWorld(cfg)
	w.mutant, w.trace = m, trace
	counts = map[Reason]int{}
	w.outcome = func(_ *visitor, why Reason, _ time.Duration) { counts[why]++ }
	// One row of a model takes so long; on one core of several, longer.
	perRow := []time.Duration{ms / 20, ms, 2 * ms}
	failing := r.IntN(3) * r.IntN(8)
	w.takes = func(q *Query, rows int) (time.Duration, bool) {
		took := ms/2 + time.Duration(rows)*perRow[q.Profile[0]-'a']
		if q.onCore {
			took = took * 3 / 2
		}
		took = time.Duration(float64(took) * (0.8 + 0.4*r.Float64()))
		if r.IntN(50) == 0 {
			took *= 30
		}
		return took, r.IntN(100) < failing
	}
	var classes []*Class
	for range 3 {
		c := &Class{
			Profile: names.ModelKey(string(rune('a' + r.IntN(3)))),
			Kind:    merge.Kind{Policy: names.MergeDeadline, Largest: 10 + r.IntN(40)},
		}
		switch r.IntN(4) {
		case 0:
			c.Policy = names.MergeNone
		case 1:
			c.Rule = &mergetest.Patient{}
		}
		classes = append(classes, c)
	}
	load := time.Duration(1+r.IntN(20)) * ms / 4 // between two queries
	refuses := r.IntN(2) == 0
	at := time.Duration(0)
	for range 20 + r.IntN(200) {
		at += time.Duration(r.ExpFloat64() * float64(load))
		w.do(at, func() { w.arrive(randomQuery(w, r, classes, refuses)) })
		if r.IntN(5) == 0 { // nobody waits for one of them any more
			w.do(at+time.Duration(r.IntN(20))*ms, func() {
				if n := len(w.visitors); n > 0 {
					w.leave(w.visitors[r.IntN(n)], CallerLeft)
				}
			})
		}
		if r.IntN(20) == 0 {
			w.do(at, func() { w.step(Event{Kind: ReadBegan, HeldBytes: 1 << (18 + r.IntN(8))}) })
			w.do(at, func() { w.step(Event{Kind: UnreadRefused}) })
		}
	}
	if w.drains = r.IntN(2) == 0; w.drains {
		w.do(at, func() { w.step(Event{Kind: DrainBegan}) })
		if r.IntN(2) == 0 {
			w.do(at+time.Duration(r.IntN(100))*ms, func() { w.step(Event{Kind: DrainTimedOut}) })
		}
	}
	w.finish()
	return counts, w.fault
}

func randomQuery(w *world, r *rand.Rand, classes []*Class, refuses bool) (q Query) {
	q.Profile = names.ModelKey(string(rune('a' + r.IntN(3))))
	q.BatchSize, q.Bytes, q.Arrival = 1+r.IntN(20), r.Int64N(1000), w.now
	q.Preferred = r.IntN(3)
	q.Divide, q.Background = r.IntN(3) > 0, r.IntN(10) == 0
	if r.IntN(3) > 0 {
		q.QoSTarget = time.Duration(1+r.IntN(60)) * ms
		q.RejectLate, q.Refuse = r.IntN(4) == 0, refuses && r.IntN(4) > 0
	}
	if r.IntN(3) == 0 {
		q.Deadline = w.now + time.Duration(1+r.IntN(200))*ms
	}
	if c := classes[r.IntN(len(classes))]; c.Policy.Merges() && !q.Background {
		q.Class, q.Profile = c, c.Profile
		if r.IntN(4) == 0 {
			q.Group = merge.GroupID{Number: 1 + r.Uint64N(3), Queries: 2 + r.IntN(3)}
		}
	}
	if r.IntN(10) == 0 {
		x := &Reservation{Profile: q.Profile, BatchSize: q.BatchSize, Keep: 10 * ms}
		w.step(Event{Kind: Reserved, Reservation: x})
		if x.Finish < x.Remaining || x.Remaining < 0 {
			w.failf("a reservation is free in %v and done in %v", x.Remaining, x.Finish)
		}
		switch r.IntN(3) {
		case 0:
			q.Reservation = x
		case 1:
			w.step(Event{Kind: Released, Reservation: x})
		}
	}
	return q
}

// TestSchedules: whatever comes, each query ends once and starts once at most, no lane runs more
// than it may, the sums are those of what waits, and nothing is left in the end.
func TestSchedules(t *testing.T) {
	if *seedFlag != 0 {
		if _, err := schedule(*seedFlag, nil, func(line string) { t.Log(line) }); err != nil {
			t.Error(err)
		}
		return
	}
	all := map[Reason]int{}
	for seed := uint64(1); seed <= 2000; seed++ {
		counts, err := schedule(seed, nil, nil)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for why, n := range counts {
			all[why] += n
		}
	}
	t.Logf("outcomes by reason: %v", all)
	for why := Reason(0); why <= Panicked; why++ {
		if all[why] < 100 {
			t.Errorf("%d queries end by %q, want more to look at", all[why], reasonNames[why])
		}
	}
}

// A mutant is lanes with a bug, made by tampering with what they are told and what they answer.
type mutant struct {
	name   string
	caught string // what the fault must say
	before func(w *world, e *Event) (told bool)
	after  func(w *world, actions []Action) []Action
}

// without returns the actions but for those of a kind, now and then.
func without(of ActionKind) func(*world, []Action) []Action {
	return func(w *world, actions []Action) []Action {
		return slices.DeleteFunc(actions, func(a Action) bool { return a.Kind == of && w.number%7 == 0 })
	}
}

// twice repeats the actions of a kind.
func twice(of ActionKind) func(*world, []Action) []Action {
	return func(_ *world, actions []Action) (all []Action) {
		for _, a := range actions {
			if all = append(all, a); a.Kind == of {
				all = append(all, a)
			}
		}
		return all
	}
}

var mutants = []*mutant{
	{
		name: "loses the end of a run", caught: "lanes run",
		before: func(w *world, e *Event) bool { return e.Kind != RunEnded || w.number%7 != 0 },
	},
	{
		name: "loses a cancellation", caught: "nobody waits for it",
		before: func(_ *world, e *Event) bool { return e.Kind != Cancelled },
	},
	{
		name: "lets no time pass", caught: "has passed",
		before: func(_ *world, e *Event) bool { return e.Kind != TimePassed },
	},
	{
		name: "miscounts what dividing saves", caught: "queries of",
		before: func(w *world, e *Event) bool {
			if e.Kind == Arrived && w.number%7 == 0 {
				w.s.saved++
			}
			return true
		},
	},
	{
		name: "gives a lane away that runs", caught: "lanes run",
		after: func(w *world, actions []Action) []Action {
			for _, a := range actions {
				if a.Kind == Start && !a.Query.onCore && w.number%7 == 0 {
					w.s.idle = append(w.s.idle, a.Query.lane)
				}
			}
			return actions
		},
	},
	{
		name: "has others run together than may", caught: "of other classes",
		after: func(w *world, actions []Action) []Action {
			for _, a := range actions {
				if a.Kind != Start || a.Run == nil {
					continue
				}
				for _, v := range w.visitors {
					if v.waits && v.Class != a.Query.Class {
						a.Run.Members = append(a.Run.Members, &v.Query)
						return actions
					}
				}
			}
			return actions
		},
	},
	{
		name: "runs more rows than may", caught: "rows run as one",
		before: func(_ *world, e *Event) bool {
			if e.Kind == Arrived && e.Query.Class != nil {
				e.Query.Class.Largest = 3
				e.Query.Group = merge.GroupID{}
			}
			return true
		},
		after: func(_ *world, actions []Action) []Action {
			for _, a := range actions {
				if a.Kind == Start && a.Run != nil {
					a.Query.Class.Largest = 1
				}
			}
			return actions
		},
	},
	{name: "starts a query twice", caught: "starts twice", after: twice(Start)},
	{name: "answers a query twice", caught: "ends twice", after: twice(Answer)},
	{name: "refuses a query twice", caught: "ends twice", after: twice(Refuse)},
	{name: "drains twice", caught: "have drained 2 times", after: twice(Drained)},
	{name: "loses a refusal", caught: "waits for nothing", after: without(Refuse)},
	{name: "loses a start", caught: "waits for nothing", after: without(Start)},
	{name: "loses an answer", caught: "no outcome", after: without(Answer)},
	{name: "does not say that it has drained", caught: "have drained 0", after: without(Drained)},
}

// TestMutants checks that the schedules find the bugs they are there to find.
func TestMutants(t *testing.T) {
	const seeds = 2000
	for _, m := range mutants {
		t.Run(strings.ReplaceAll(m.name, " ", "-"), func(t *testing.T) {
			for seed := uint64(1); seed <= seeds; seed++ {
				if _, err := schedule(seed, m, nil); err != nil &&
					strings.Contains(err.Error(), m.caught) {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Errorf("%d schedules do not find lanes that %s", seeds, m.name)
		})
	}
}

// A plainLane is the plain definition of a lane that merges, divides and refuses nothing.
type plainLane struct {
	waiting []*visitor // in order of arrival
	came    map[*visitor]time.Duration
}

// next returns what runs next: background queries that have waited for long, then those in time by
// when they are due, then the late ones and then background queries in order of arrival.
func (p *plainLane) next(now time.Duration) *visitor {
	class := func(v *visitor) int {
		switch {
		case v.Background && p.came[v]+queue.BackgroundWait < now:
			return 0
		case v.Background:
			return 3
		case v.LatestStart < now:
			return 2
		}
		return 1
	}
	return slices.MinFunc(p.waiting, func(a, b *visitor) int { // the first of equals
		if c := cmp.Compare(class(a), class(b)); c != 0 || class(a) != 1 {
			return c
		}
		return cmp.Compare(a.LatestStart+a.Estimate, b.LatestStart+b.Estimate)
	})
}

// TestPlainLane compares lanes with the plain definition of which query they run next, and of which
// are refused as late: those that reject it and have not started when they must.
func TestPlainLane(t *testing.T) {
	started, late := 0, 0
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(Config{
			Lanes: 1 + r.IntN(3), Cores: 1, MaxWaiting: 1000, MaxWaitingBytes: 1 << 30,
		})
		w.takes = func(q *Query, rows int) (time.Duration, bool) { return time.Duration(rows) * ms, false }
		plain := &plainLane{came: map[*visitor]time.Duration{}}
		remove := func(v *visitor) {
			plain.waiting = slices.DeleteFunc(plain.waiting, func(o *visitor) bool { return o == v })
		}
		w.mutant = &mutant{after: func(w *world, actions []Action) []Action {
			for _, a := range actions {
				if a.Query == nil {
					continue
				}
				v := a.Query.Owner.(*visitor)
				switch a.Kind {
				case Start:
					if len(plain.waiting) > 0 && slices.Contains(plain.waiting, v) {
						if want := plain.next(w.now); want != v {
							t.Fatalf("seed %d: at %v %d starts, want %d", seed, w.now, v.number, want.number)
						}
						started++
					}
					remove(v)
				case Refuse:
					if a.Reason == Late && plain.came[v] < w.now {
						late++
						if w.now != v.LatestStart+1 {
							t.Fatalf("seed %d: %d is late at %v, and refused at %v", seed, v.number,
								v.LatestStart+1, w.now)
						}
					}
					remove(v)
				}
			}
			return actions
		}}
		w.mutant.before = func(w *world, e *Event) bool {
			if e.Kind == Arrived {
				v := e.Query.Owner.(*visitor)
				plain.came[v] = w.now
				if len(w.s.idle) == 0 {
					plain.waiting = append(plain.waiting, v)
				}
			}
			return true
		}
		for _, p := range []names.ModelKey{"a", "b"} { // so that it is known how long each takes
			for _, rows := range []int{1, 20} {
				w.arrive(Query{Profile: p, BatchSize: rows})
				w.runUntil(Never)
			}
		}
		at := w.now
		for range 100 {
			at += time.Duration(r.ExpFloat64() * float64(6*ms))
			w.do(at, func() {
				q := Query{
					Profile: names.ModelKey(string(rune('a' + r.IntN(2)))), BatchSize: 1 + r.IntN(20),
					Arrival: w.now,
				}
				q.Background = r.IntN(10) == 0
				if r.IntN(3) > 0 {
					q.QoSTarget, q.RejectLate = time.Duration(r.IntN(100))*ms, r.IntN(3) == 0
				}
				w.arrive(q)
			})
		}
		w.finish()
		if w.fault != nil {
			t.Fatalf("seed %d: %v", seed, w.fault)
		}
	}
	if started < 10000 || late < 100 {
		t.Errorf("%d queries have waited and %d become late, want more to look at", started, late)
	}
}
