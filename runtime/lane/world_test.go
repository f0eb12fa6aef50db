package lane

import (
	"container/heap"
	"fmt"
	"slices"
	"strings"
	"time"
)

const ms = time.Millisecond

// A world runs lanes in virtual time, as package runtime runs them in real time: it makes their
// runs, cancels queries at their deadlines, and checks after each step what must always be so.
type world struct {
	s      *State
	now    time.Duration
	wakeAt time.Duration
	events happenings
	number int
	mutant *mutant
	// takes is how long a run takes, and whether it fails.
	takes func(q *Query, rows int) (took time.Duration, fails bool)
	// outcome, if not nil, is called when a query has its outcome: answered if why is 0.
	outcome func(q *visitor, why Reason, retryAfter time.Duration)
	trace   func(line string)
	stolen  time.Duration // from all runs, by what else the machine has done

	visitors []*visitor // that have no outcome
	lanes    [][]*visitor
	started  int // that are running
	drains   bool
	drained  int
	fault    error
}

// A visitor is a query of a world.
type visitor struct {
	Query
	number  int
	waits   bool
	first   *visitor // of the run that it is part of, if it is not the first; nil: none
	members []*visitor
	runs    int // of its lane, counting
	ends    int
	gone    bool // nobody waits for it
	fails   bool // its runs do
}

// A happening is something that happens at a time.
type happening struct {
	at    time.Duration
	order int
	do    func()
}

type happenings []happening

func (h happenings) Len() int { return len(h) }
func (h happenings) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h happenings) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *happenings) Push(x any)   { *h = append(*h, x.(happening)) }
func (h *happenings) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

func newWorld(cfg Config) *world {
	if cfg.Estimator == nil {
		cfg.Estimator = NewLinearEstimator()
	}
	return &world{s: New(cfg), wakeAt: Never, lanes: make([][]*visitor, cfg.Lanes)}
}

func (w *world) failf(format string, args ...any) {
	if w.fault == nil {
		w.fault = fmt.Errorf("at %v: %s", w.now, fmt.Sprintf(format, args...))
	}
}

// do has something happen at a time.
func (w *world) do(at time.Duration, what func()) {
	w.number++
	heap.Push(&w.events, happening{max(at, w.now), w.number, what})
}

// runUntil lets time pass until then, or until nothing happens any more.
func (w *world) runUntil(end time.Duration) {
	for w.fault == nil {
		next := w.wakeAt
		if len(w.events) > 0 {
			next = min(next, w.events[0].at)
		}
		if next > end || next == Never {
			break
		}
		w.now = max(w.now, next)
		if len(w.events) > 0 && w.events[0].at <= w.now {
			heap.Pop(&w.events).(happening).do()
			continue
		}
		w.step(Event{Kind: TimePassed})
		if w.wakeAt <= w.now {
			w.failf("the lanes are to be stepped again at %v, which has passed", w.wakeAt)
		}
	}
	if end != Never {
		w.now = max(w.now, end)
	}
}

// arrive has a query come now.
func (w *world) arrive(q Query) {
	w.number++
	w.enter(&visitor{Query: q, number: w.number})
}

// enter has a query come now.
func (w *world) enter(v *visitor) {
	v.Owner = v
	w.visitors = append(w.visitors, v)
	v.waits = true
	w.step(Event{Kind: Arrived, Query: &v.Query})
	if v.Deadline > 0 && v.ends == 0 {
		w.do(v.Deadline, func() { w.leave(v, DeadlinePassed) })
	}
}

// leave has nobody wait for v any more.
func (w *world) leave(v *visitor, cause Reason) {
	if v.ends > 0 || v.gone {
		return
	}
	v.gone = true
	w.step(Event{Kind: Cancelled, Query: &v.Query, Cause: cause})
}

// step steps the lanes and carries out their actions.
func (w *world) step(e Event) {
	if m := w.mutant; m != nil && m.before != nil && !m.before(w, &e) {
		return
	}
	if w.trace != nil {
		w.trace(w.now.String() + " " + eventText(&e))
	}
	actions, wakeAt := w.s.Step(w.now, e)
	actions = slices.Clone(actions)
	if m := w.mutant; m != nil && m.after != nil {
		actions = m.after(w, actions)
	}
	w.wakeAt = wakeAt
	for i := range actions {
		if w.trace != nil {
			w.trace("  " + actionText(&actions[i]))
		}
		w.carryOut(&actions[i])
	}
	w.check()
}

func (w *world) carryOut(a *Action) {
	switch a.Kind {
	case Drained:
		w.drained++
		if len(w.s.admitted) > 0 || !w.drains {
			w.failf("the lanes have drained, and %d queries are there", len(w.s.admitted))
		}
		return
	case RefuseUnread:
		return
	}
	if a.Query == nil {
		return
	}
	v := a.Query.Owner.(*visitor)
	switch a.Kind {
	case Start:
		w.start(v, a.Run)
	case Rerun:
		w.begin(v)
	case Refuse:
		w.end(v, a.Reason, a.RetryAfter)
	case Answer:
		if v.first == nil {
			w.failf("%d is answered by a run that it is not part of", v.number)
		}
		w.end(v, 0, 0)
	case CancelRun:
		w.fail(v, causeOf(v))
	case Abandon:
		w.do(w.now, func() { w.leave(v, CallerLeft) })
	}
}

// causeOf is why nobody waits for v.
func causeOf(v *visitor) Reason {
	if v.Deadline > 0 {
		return DeadlinePassed
	}
	return CallerLeft
}

// start has v run, alone or as the first of a run.
func (w *world) start(v *visitor, run *Run) {
	members := []*visitor{v}
	if run != nil {
		members = members[:0]
		for _, q := range run.Members {
			members = append(members, q.Owner.(*visitor))
		}
	}
	rows := 0
	for i, m := range members {
		rows += m.BatchSize
		switch {
		case m.ends > 0:
			w.failf("%d starts, and has ended", m.number)
		case !m.waits:
			w.failf("%d starts twice", m.number)
		case m.gone:
			w.failf("%d starts, and nobody waits for it", m.number)
		case m.Class != v.Class:
			w.failf("%d and %d run as one, and are of other classes", v.number, m.number)
		case m.Background && len(members) > 1:
			w.failf("%d, a background query, runs with others", m.number)
		}
		m.waits = false
		if i > 0 {
			m.first = v
		}
	}
	if len(members) > 1 && (v.Class == nil || rows > v.Class.Largest) {
		w.failf("%d rows run as one", rows)
	}
	v.members = members
	w.lanes[v.lane] = append(w.lanes[v.lane], v)
	w.started++
	w.begin(v)
}

// begin begins a run of v, or of those that it is the first of.
func (w *world) begin(v *visitor) {
	v.runs++
	run, rows := v.runs, 0
	for _, m := range v.members {
		rows += m.BatchSize
	}
	took, fails := w.takes(&v.Query, rows)
	stolen := w.stolen
	var end func()
	end = func() {
		switch longer := w.stolen - stolen; {
		case v.runs != run:
		case longer > 0:
			took, stolen = took+longer, w.stolen
			w.do(w.now+longer, end)
		case fails:
			w.fail(v, 0)
		default:
			w.succeed(v, took)
		}
	}
	w.do(w.now+took, end)
}

// succeed ends v's run with a result.
func (w *world) succeed(v *visitor, took time.Duration) {
	v.runs++
	w.leaveLane(v)
	e := Event{Kind: RunEnded, Query: &v.Query, Execution: took}
	if merged := len(v.members) > 1; v.gone && merged {
		e.Cause = causeOf(v)
	} else {
		w.end(v, 0, 0)
	}
	w.step(e)
}

// fail ends v's run without one.
func (w *world) fail(v *visitor, cause Reason) {
	if !w.runs(v) {
		w.failf("%d is to be stopped, and does not run", v.number)
		return
	}
	v.runs++
	merged := len(v.members) > 1
	if v.gone && cause == 0 {
		cause = causeOf(v)
	}
	for _, m := range v.members[1:] {
		m.first = nil
		m.waits = m.ends == 0
	}
	v.members = v.members[:1]
	if !merged || cause != 0 {
		w.leaveLane(v)
		if cause == 0 {
			w.end(v, Panicked, 0) // stands for an error of the model
		}
	}
	w.step(Event{Kind: RunFailed, Query: &v.Query, Cause: cause})
	if merged && cause == 0 && v.ends > 0 {
		w.leaveLane(v) // it has become late
	}
}

func (w *world) runs(v *visitor) bool { return slices.Contains(w.lanes[v.lane], v) }

// leaveLane takes v off its lane.
func (w *world) leaveLane(v *visitor) {
	i := slices.Index(w.lanes[v.lane], v)
	if i < 0 {
		return // a background query that has given it up
	}
	w.lanes[v.lane] = slices.Delete(w.lanes[v.lane], i, i+1)
	w.started--
}

// end gives v its outcome.
func (w *world) end(v *visitor, why Reason, retryAfter time.Duration) {
	if v.ends++; v.ends > 1 {
		w.failf("%d ends twice", v.number)
	}
	if (why == Overloaded || why == Late) && retryAfter <= 0 {
		w.failf("%d is to try again in %v", v.number, retryAfter)
	}
	if why == Late && !(v.rejectsLate() && v.LatestStart < w.now) {
		w.failf("%d is refused as late, and is not", v.number)
	}
	if why == Overloaded && v.Background {
		w.failf("%d, a background query, is refused as overload", v.number)
	}
	v.waits = false
	w.visitors = slices.DeleteFunc(w.visitors, func(o *visitor) bool { return o == v })
	if w.outcome != nil {
		w.outcome(v, why, retryAfter)
	}
}

// check checks what must be so between two steps.
func (w *world) check() {
	s := w.s
	n := 0
	var bytes int64
	var estimate, saved time.Duration
	for _, v := range w.visitors {
		if !v.waits {
			continue
		}
		if !v.Waits() {
			w.failf("%d waits for nothing", v.number)
		}
		if v.Background {
			continue
		}
		n++
		bytes, estimate, saved = bytes+v.Bytes, estimate+v.Estimate, saved+v.saved
	}
	if s.queue.Len() != n || s.queue.Bytes() != bytes || s.queue.Estimate() != estimate ||
		s.saved != saved {
		w.failf("%d queries of %d bytes wait that take %v less %v, the lanes have %d, %d, %v, %v",
			n, bytes, estimate, saved, s.queue.Len(), s.queue.Bytes(), s.queue.Estimate(), s.saved)
	}
	w.checkQueries()
	busy := 0
	for lane, on := range w.lanes {
		whole := 0
		on = slices.DeleteFunc(slices.Clone(on), func(v *visitor) bool { return !v.running })
		for _, v := range on {
			if !v.onCore {
				whole++
			}
		}
		if whole > 1 || whole == 1 && len(on) > 1 || len(on) > s.cores {
			w.failf("lane %d of %d cores has %d runs, %d of them on all", lane, s.cores, len(on),
				whole)
		}
		if len(on) > 0 {
			busy++
		}
	}
	if busy+len(s.idle) != s.lanes {
		w.failf("%d lanes run, %d are idle", busy, len(s.idle))
	}
	if len(s.idle) > 0 && s.cores == 1 { // nobody waits but for others of its class
		for _, v := range w.visitors {
			if v.waits && v.class == nil && v.group == nil && !w.awaited() {
				w.failf("%d waits, and a lane is idle", v.number)
			}
		}
	}
}

// checkQueries checks the invariants of Query.
func (w *world) checkQueries() {
	s, users, timely, running := w.s, map[*Class]int{}, 0, 0
	for i, q := range s.admitted {
		v := q.Owner.(*visitor)
		progress := 0
		for _, is := range []bool{v.Waits(), q.running, q.run != nil && !q.running} {
			if is {
				progress++
			}
		}
		if int(q.admitted) != i+1 || progress != 1 {
			w.failf("%d is admitted as %d, and is %+v", v.number, i, q)
		}
		if q.class != nil {
			users[q.class]++
		}
		if q.running {
			running++
			if q.timely {
				timely += s.coresOf(q)
			}
		}
		if q.checkIndex > 0 && (q.running && !q.Background || !q.running && !v.Waits()) {
			w.failf("%d is to be checked, and is %+v", v.number, q)
		}
	}
	for i, q := range s.checks {
		if int(q.checkIndex) != i+1 || q.admitted == 0 {
			w.failf("%d is to be checked, and is %+v", q.Owner.(*visitor).number, q)
		}
	}
	for _, c := range s.classes {
		if c.users != users[c] || c.users == 0 {
			w.failf("a class of %s counts %d queries of %d", c.Profile, c.users, users[c])
		}
	}
	if len(s.classes) != len(users) || running != len(s.running) || timely != s.timelyCores {
		w.failf("%d classes of %d, %d run of %d, %d timely cores of %d", len(s.classes), len(users),
			len(s.running), running, s.timelyCores, timely)
	}
}

// awaited reports whether a query waits for others to run with, which late ones do not pass.
func (w *world) awaited() bool {
	return slices.ContainsFunc(w.visitors, func(v *visitor) bool {
		return v.waits && (v.group != nil || v.class != nil && v.class.Waits())
	})
}

// finish lets all that is there end, and checks that nothing is left.
func (w *world) finish() {
	w.runUntil(Never)
	s := w.s
	s.TimeUntilFree(w.now + time.Hour) // drops reservations
	if n := len(w.visitors); n > 0 {
		w.failf("%d queries have no outcome in the end", n)
	}
	if len(s.idle) != s.lanes || len(s.free)+len(s.admitted)+len(s.running)+len(s.checks)+
		len(s.classes)+len(s.reserved)+s.timelyCores != 0 || s.queue.Len() != 0 {
		w.failf("in the end %d lanes are idle, %d cores free, %d queries admitted, %d run, "+
			"%d to be looked at, %d classes, %d reservations, %d timely", len(s.idle), len(s.free),
			len(s.admitted), len(s.running), len(s.checks), len(s.classes), len(s.reserved),
			s.timelyCores)
	}
	if w.drains && w.drained != 1 {
		w.failf("the lanes have drained %d times", w.drained)
	}
}

var eventNames = [...]string{
	Arrived: "arrives", Cancelled: "cancelled", RunEnded: "ended", RunFailed: "failed",
	TimePassed: "time", Reserved: "reserved", Released: "released", ReadBegan: "read",
	UnreadRefused: "unread", DrainBegan: "drain", DrainTimedOut: "drain-timeout",
}

var reasonNames = [...]string{
	"", "overloaded", "late", "deadline", "left", "draining", "panicked",
}

var actionNames = [...]string{
	Start: "start", Rerun: "rerun", Refuse: "refuse", Answer: "answer", CancelRun: "cancel-run",
	Abandon: "abandon", RefuseUnread: "refuse-unread", Drained: "drained",
}

func eventText(e *Event) string {
	text := eventNames[e.Kind]
	if e.Query != nil {
		text += fmt.Sprint(" ", e.Query.Owner.(*visitor).number)
	}
	return strings.TrimSpace(text + " " + reasonNames[e.Cause])
}

// actionText is an action with the numbers behind it.
func actionText(a *Action) string {
	text := actionNames[a.Kind]
	number := func(q *Query) int { return q.Owner.(*visitor).number }
	if a.Query != nil {
		text += fmt.Sprint(" ", number(a.Query))
	}
	switch a.Kind {
	case Start:
		text += fmt.Sprintf(" lane=%d", a.Query.lane)
		if a.Query.onCore {
			text += " core"
		}
		if a.Run != nil {
			text += fmt.Sprintf(" rows=%d with", a.Run.Rows)
			for _, q := range a.Run.Members[1:] {
				text += fmt.Sprint(" ", number(q))
			}
		}
	case Refuse:
		text += " " + reasonNames[a.Reason]
		if a.Reason == Overloaded {
			text += fmt.Sprintf(" waiting=%d bytes=%d", a.Waiting, a.WaitingBytes)
		}
		if a.RetryAfter > 0 {
			text += fmt.Sprint(" retry=", a.RetryAfter.Round(time.Microsecond))
		}
	}
	return text
}
