package match

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
)

// stairs is a latency of base and a step more for every 50 items, in µs; the 80 % quantile
// is a fifth more.
type stairs struct{ base, step int }

func (l stairs) Mean(batchSize int) time.Duration {
	return time.Duration(l.base+l.step*((batchSize+49)/50)) * time.Microsecond
}

func (l stairs) Quantile(_ float64, batchSize int) time.Duration {
	return l.Mean(batchSize) * 6 / 5
}

// A referee follows what a matcher is told and decides, with a memory of its
// own, and fails the test on the first broken promise.
type referee struct {
	t       *rapid.T
	m       *Matcher
	start   Config
	cfg     Config // with the models as they are now
	ahead   bool   // a lane may be given its next query before it is free
	now     time.Duration
	queries map[QueryID]*seenQuery
	lanes   map[LaneID]*seenLane
	splits  *atomic.Int64
	merge   uint64 // the last number of a run
	log     []byte // events and decisions in their serial form
	events  []string
}

type seenQuery struct {
	model    names.ModelKey
	batch    int
	deadline time.Duration // 0: none
	attempt  int
	lane     LaneID // while live
	live     bool   // assigned and unanswered
	outcome  string
	splits   bool // its gateway can split it
	part     bool
}

// parts calls do with the parts of a query that have no outcome.
func (r *referee) parts(whole QueryID, do func(id QueryID, part *seenQuery)) {
	for p := 1; p <= MostParts && !whole.IsPart(); p++ {
		if part := r.queries[whole.Part(p)]; part != nil && part.part && part.outcome == "" {
			do(whole.Part(p), part)
		}
	}
}

// rejected notes that a query is rejected, and with a part all parts.
func (r *referee) rejected(id QueryID) {
	q := r.queries[id]
	q.outcome, q.live = "rejected", false
	if q.part {
		r.parts(id.Whole(),
			func(_ QueryID, o *seenQuery) {
				o.outcome, o.live = "rejected with another part",
					false
			})
	}
}

// split checks a split and notes the parts.
func (r *referee) split(d *Decision) {
	q, sum := r.queries[d.Query], 0
	for p, rows := range d.Rows {
		sum += rows
		id := d.Query.Part(p + 1)
		if known := r.queries[id]; rows < 1 || known != nil && known.outcome == "" {
			r.failf("query %v is split into %v, and %v is %+v", d.Query, d.Rows, id, known)
		}
		r.queries[id] = &seenQuery{
			model: q.model, batch: rows, deadline: q.deadline, splits: true, part: true,
		}
	}
	if n := len(d.Rows); n < 2 || n > MostParts || sum != q.batch || q.live || q.attempt > 0 ||
		q.part || !q.splits || !r.model(q.model).Splits {
		r.failf("query %v, %+v, is split into %v", d.Query, q, d.Rows)
	}
	q.outcome = "split"
	r.splits.Add(1)
}

type seenLane struct {
	models            []names.ModelKey
	held              []reservation
	ends              float64 // 0: never
	draining, overdue bool
}

func (l *seenLane) find(id QueryID, attempt int) int {
	return slices.IndexFunc(l.held,
		func(h reservation) bool { return h.query == id && h.attempt == attempt })
}

func newReferee(t *rapid.T, cfg Config) *referee {
	start := cfg
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Models = slices.Clone(cfg.Models)
	return &referee{
		t: t, m: m, start: start, cfg: cfg, ahead: cfg.DispatchAhead > 0,
		queries: map[QueryID]*seenQuery{}, lanes: map[LaneID]*seenLane{},
	}
}

func (r *referee) cancelled(id QueryID) {
	q := r.queries[id]
	if q.outcome != "" {
		return
	}
	if l := r.lanes[q.lane]; l != nil && q.live {
		l.held = slices.DeleteFunc(l.held,
			func(h reservation) bool {
				return h.claimed && h.query == id && h.attempt == q.attempt
			})
	}
	q.outcome, q.live = "cancelled", false
}

func (r *referee) failf(format string, args ...any) {
	r.t.Helper()
	r.t.Fatalf("%s\nafter:\n%s", fmt.Sprintf(format, args...), r.log)
}

func (r *referee) model(name names.ModelKey) *Model {
	for i := range r.cfg.Models {
		if r.cfg.Models[i].Name == name {
			return &r.cfg.Models[i]
		}
	}
	return nil
}

// room says whether a lane may be given one more query: while it holds none or, ahead, one or up to
// LaneDepth that take less time than it is ahead.
func (r *referee) room(id LaneID) bool {
	l, sum := r.lanes[id], 0.0
	runs := 0
	for _, h := range l.held {
		if !h.joined {
			runs++
		}
	}
	if runs <= 1 && (len(l.held) == 0 || r.ahead) {
		return true
	}
	for _, h := range l.held {
		i := r.m.lanes[id].findReservation(h.query, h.attempt)
		if i < 0 || r.m.lanes[id].held[i].latency == 0 && !h.joined {
			return false
		}
		sum += r.m.lanes[id].held[i].latency
	}
	return runs < LaneDepth && sum <= r.m.ahead
}

// joins reports whether d gives a lane a query to merge with one that the same step gave it before.
func (r *referee) joins(before []Decision, d *Decision) bool {
	model := r.queries[d.Query].model
	return r.model(model).Merge.Merges() && r.cfg.Policy == "horizon" &&
		slices.ContainsFunc(before, func(o Decision) bool {
			return o.Action == Assign && o.Lane == d.Lane && r.queries[o.Query].model == model
		})
}

// numbered reports whether decision i has no number of a run, or that of a run of at least two
// queries of one model, all on one lane, and a higher one than any step before.
func (r *referee) numbered(all []Decision, i int) bool {
	d, n, first := &all[i], 0, true
	for k := range all {
		if o := &all[k]; d.Merge != 0 && o.Merge == d.Merge {
			n, first = n+1, first && k >= i
			if o.Action != Assign || o.Lane != d.Lane || o.Merged != d.Merged ||
				r.queries[o.Query].model != r.queries[d.Query].model {
				return false
			}
		}
	}
	if first && d.Merge != 0 {
		if d.Merge <= r.merge {
			return false
		}
		r.merge = d.Merge
	}
	return n == d.Merged && n != 1
}

// served says whether some lane takes queries of the model.
func (r *referee) served(model names.ModelKey) bool {
	for _, l := range r.lanes {
		if !l.draining && !l.overdue && slices.Contains(l.models, model) {
			return true
		}
	}
	return false
}

func (q *seenQuery) waits() bool { return q.outcome == "" && !q.live }

func (r *referee) waiting() (n int) {
	wholes := map[QueryID]bool{} // of the parts that wait, which count as one
	for id, q := range r.queries {
		if q.waits() && (!q.part || !wholes[id.Whole()]) {
			n++
		}
		if q.waits() && q.part {
			wholes[id.Whole()] = true
		}
	}
	return n
}

func (r *referee) modelNames() (all []names.ModelKey) {
	for _, m := range r.cfg.Models {
		all = append(all, m.Name)
	}
	return all
}

// asked says whether a lane holds the model, or a query without an outcome asks for it.
func (r *referee) asked(model names.ModelKey) bool {
	for _, l := range r.lanes {
		if slices.Contains(l.models, model) {
			return true
		}
	}
	for _, q := range r.queries {
		if q.model == model && q.outcome == "" {
			return true
		}
	}
	return false
}

// step hands the matcher an event that makes sense and checks all it decides.
func (r *referee) step(e Event) []Decision {
	r.t.Helper()
	r.log = append(AppendEvent(r.log, r.now, &e), '\n')
	r.events = append(r.events, string(AppendEvent(nil, r.now, &e)))
	decisions, next, err := r.m.Step(time.Unix(0, 0).Add(r.now), &e)
	if err != nil {
		r.failf("%v", err)
	}
	lost := map[QueryID]bool{} // live on a lane that this event says has failed
	lane := r.lanes[e.Lane]
	switch e.Kind {
	case Submitted:
		if e.Lane == 0 {
			lane = nil
		}
		if known := r.queries[e.Query]; known != nil && known.outcome == "" {
			if lane != nil && e.Attempt > 0 {
				if known.live && (e.Attempt < known.attempt ||
					e.Attempt == known.attempt && e.Lane == known.lane) {
					break
				}
			} else if e.Attempt <= known.attempt {
				break
			}
			r.cancelled(e.Query)
		}
		if sent := lane != nil && e.Attempt > 0; !sent && e.Attempt == 0 &&
			!(e.Splits && e.Query.IsPart()) {
			known := false
			r.parts(e.Query, func(QueryID, *seenQuery) { known = true })
			if known {
				break
			}
		}
		q := &seenQuery{
			model: e.Model, batch: e.BatchSize, attempt: e.Attempt, splits: e.Splits,
			part: e.Splits && e.Query.IsPart(),
		}
		if whole := r.queries[e.Query.Whole()]; !q.part {
			r.parts(e.Query, func(id QueryID, _ *seenQuery) { r.cancelled(id) })
		} else if whole != nil && whole.outcome == "" {
			r.cancelled(e.Query.Whole())
		}
		if e.TimeLeft > 0 {
			q.deadline = r.now + e.TimeLeft
		}
		r.queries[e.Query] = q
		model := r.model(e.Model)
		valid := model != nil && e.BatchSize >= 1 && e.BatchSize <= model.LargestBatchSize
		if lane != nil && e.Attempt > 0 && valid {
			q.live, q.lane = true, e.Lane
			if !slices.ContainsFunc(lane.held,
				func(h reservation) bool { return h.query == e.Query && h.attempt == e.Attempt }) {
				lane.held = append(lane.held, reservation{
					query: e.Query, attempt: e.Attempt, claimed: true, since: toMs(r.now),
				})
			}
			if lane.overdue {
				lost[e.Query] = true
			}
		}
	case LaneHas:
		asked := lane.overdue
		lane.held = slices.DeleteFunc(lane.held, func(h reservation) bool {
			if slices.ContainsFunc(e.Holds,
				func(x Held) bool { return x.Query == h.query && x.Attempt == h.attempt }) ||
				!h.told && toMs(r.now)-h.since <= onTheWay+2*r.m.ahead {
				return false
			}
			if q := r.queries[h.query]; q != nil && q.live && q.lane == e.Lane &&
				q.attempt == h.attempt {
				lost[h.query] = true
			}
			asked = false
			return true
		})
		for _, x := range e.Holds {
			i := lane.find(x.Query, x.Attempt)
			if i < 0 {
				i = len(lane.held)
				lane.held = append(lane.held, reservation{query: x.Query, attempt: x.Attempt})
			}
			lane.held[i].claimed, lane.held[i].told = false, true
		}
		lane.overdue = asked && len(lane.held) > 0
	case Unused:
		if i := lane.find(e.Query, e.Attempt); i >= 0 {
			lane.held = slices.Delete(lane.held, i, i+1)
			lane.overdue = false
			if q := r.queries[e.Query]; q != nil && q.live && q.attempt == e.Attempt &&
				q.lane == e.Lane {
				lost[e.Query] = true
			}
		}
	case Cancelled:
		r.cancelled(e.Query)
		r.parts(e.Query, func(id QueryID, _ *seenQuery) { r.cancelled(id) })
	case GatewayLost:
		for id := range r.queries {
			if id.Gateway == e.Query.Gateway {
				r.cancelled(id)
			}
		}
	case Completed, Refused:
		q := r.queries[e.Query]
		if lane != nil {
			// A gateway that was lost may ask again by the same name; then there are two.
			if i := lane.find(e.Query, e.Attempt); i >= 0 {
				lane.held = slices.Delete(lane.held, i, i+1)
			}
			lane.overdue = false
		}
		switch {
		case q == nil: // only the lane has spoken of it
		case !q.live || q.attempt != e.Attempt || q.lane != e.Lane:
		case e.Kind == Completed:
			q.outcome, q.live = "completed", false
		default:
			lost[e.Query] = true
		}
	case LaneLost:
		for _, h := range lane.held {
			if q := r.queries[h.query]; q != nil && q.live && q.lane == e.Lane &&
				q.attempt == h.attempt {
				lost[h.query] = true
			}
		}
		delete(r.lanes, e.Lane)
	case LaneJoined:
		r.lanes[e.Lane] = &seenLane{models: slices.Clone(e.Models)}
	case LaneDraining:
		lane.draining = true
	case LaneEnds:
		if lane.ends = 0; e.Remaining > 0 {
			lane.ends = toMs(r.now + e.Remaining)
		}
	case LaneModels:
		lane.models = slices.Clone(e.Models)
	case ModelChanged:
		if m := r.model(e.Model); m != nil {
			*m = e.modelSettings()
		} else {
			r.cfg.Models = append(r.cfg.Models, e.modelSettings())
		}
	case ModelGone:
		r.cfg.Models = slices.DeleteFunc(r.cfg.Models,
			func(m Model) bool { return m.Name == e.Model })
	case AheadChanged:
		r.ahead = r.ahead || e.Ahead > 0
	}
	for i := range decisions {
		d := &decisions[i]
		r.log = append(AppendDecision(append(r.log, "  "...), d), '\n')
		q := r.queries[d.Query]
		if d.Action == Ask {
			l := r.lanes[d.Lane]
			if e.Kind != TimePassed || len(l.held) == 0 || l.overdue != (d.Attempt > 1) ||
				d.Waited < 0 {
				r.failf("%+v makes no sense: the lane has %v, overdue %v", d, l.held, l.overdue)
			}
			for i, h := range l.held {
				if i == 0 && toMs(r.now)-h.since < overdueLeast && !h.told {
					r.failf("lane %d is overdue, and has %v", d.Lane, h)
				}
				if q := r.queries[h.query]; q != nil && q.live && q.lane == d.Lane &&
					q.attempt == h.attempt {
					lost[h.query] = true
				}
			}
			l.overdue = true
			continue
		}
		switch {
		case q == nil:
			r.failf("%v of an unknown query", d.Action)
		case q.outcome != "":
			r.failf("%v of query %v, which has its outcome: %s", d.Action, d.Query, q.outcome)
		}
		switch d.Action {
		case Assign:
			l := r.lanes[d.Lane]
			switch {
			case q.live:
				r.failf("query %v is assigned twice at once", d.Query)
			case l == nil || l.draining || l.overdue:
				r.failf("query %v is assigned to lane %d, which is not there or takes nothing",
					d.Query, d.Lane)
			case !slices.Contains(l.models, q.model):
				r.failf("query %v is assigned to lane %d, which holds %v", d.Query, d.Lane,
					l.models)
			case !r.room(d.Lane) && !r.joins(decisions[:i], d):
				r.failf("lane %d is given query %v and holds %v", d.Lane, d.Query, l.held)
			case d.Attempt != q.attempt+1 || d.Attempt > MaxAttempts:
				r.failf("query %v: attempt %d after %d", d.Query, d.Attempt, q.attempt)
			case !r.numbered(decisions, i):
				r.failf("query %v is in run %d of %d queries: %+v", d.Query, d.Merge, d.Merged,
					decisions)
			case l.ends > 0 && toMs(r.now+d.Wait+d.Latency) > l.ends+1e-3:
				r.failf("query %v would run until after lane %d ends, at %v", d.Query, d.Lane,
					fromMs(l.ends))
			case d.Latency <= 0 || d.Wait < 0 || (d.Reason == Matched) != (d.Slack >= 0):
				r.failf("the numbers of %+v make no sense", d)
			}
			q.live, q.lane, q.attempt = true, d.Lane, d.Attempt
			l.held = append(l.held, reservation{
				query: d.Query, attempt: d.Attempt, since: toMs(r.now),
				joined: r.joins(decisions[:i], d),
			})
		case OfferAgain:
			if !lost[d.Query] || d.Attempt != q.attempt || d.Lane != q.lane {
				r.failf("query %v is offered again for no reason", d.Query)
			}
			delete(lost, d.Query)
			q.live = false
		case Reject:
			model := r.model(q.model)
			expired := q.deadline > 0 && q.deadline <= r.now+1
			switch {
			case d.Wait < 0 || d.Wait > 24*time.Hour:
				r.failf("query %v is rejected and would wait %v", d.Query, d.Wait)
			case d.Reason == TooManyAttempts && (lost[d.Query] || e.Kind == Submitted) &&
				q.attempt >= MaxAttempts:
			case q.live && !lost[d.Query]:
				r.failf("query %v is rejected and live", d.Query)
			case d.Reason == DeadlinePassed && expired:
			case d.Reason == Late && model.RejectLate:
			case d.Reason == Overloaded && q.deadline > 0 && d.Wait >= q.deadline-r.now-1 &&
				r.waiting() > 1 && r.served(q.model):
			case (d.Reason == UnknownModel) == (model == nil) && (d.Reason == BadBatchSize ||
				d.Reason == UnknownModel) && e.Kind == Submitted && e.Query == d.Query:
			case d.Reason == BadBatchSize && q.batch > model.LargestBatchSize:
			default:
				r.failf("query %v is rejected as %v", d.Query, d.Reason)
			}
			delete(lost, d.Query)
			if q.part && (d.Reason == UnknownModel || d.Reason == BadBatchSize) &&
				e.Kind == Submitted && e.Query == d.Query { // the others are cancelled
				r.parts(d.Query.Whole(), func(id QueryID, _ *seenQuery) { r.cancelled(id) })
			}
			r.rejected(d.Query)
			if q.part { // a sibling that was lost is not offered again
				for p := 1; p <= MostParts; p++ {
					delete(lost, d.Query.Whole().Part(p))
				}
			}
		case Split:
			r.split(d)
		}
	}
	if len(lost) > 0 {
		r.failf("queries %v should be offered again", lost)
	}
	for id, q := range r.queries {
		// the matcher's arithmetic may be a ns off
		if q.waits() && q.deadline > 0 && q.deadline < r.now {
			r.failf("query %v still waits after its deadline", id)
		}
	}
	if all, _ := r.m.Waiting(); all != r.waiting() {
		r.failf("the matcher says that %d queries wait, want %d", all, r.waiting())
	}
	r.checkQueries()
	r.checkLanes()
	for id, q := range r.m.queries {
		if !q.waiting {
			continue
		}
		if want := r.m.computeBound(q); q.bound != want {
			r.failf("query %v waits by %+v, the pool can do %+v", id, q.bound, want)
		}
		served := slices.ContainsFunc(r.m.shards, func(s *shard) bool { return s.hasLaneFor(q) })
		if served != (q.shard != r.m.nowhere) || served && !q.shard.hasLaneFor(q) {
			r.failf("query %v waits where no lane is for it", id)
		}
		if _, queued := q.shard.policy.(chooserPolicy); queued && served && (q.queue == nil ||
			!slices.Contains(q.shard.lanes, q.queue.lane) || !q.queue.lane.isUsable()) {
			r.failf("query %v is in the queue of no lane of its shard", id)
		}
	}
	if at := next.Sub(time.Unix(0, 0)); !next.IsZero() && at <= r.now && e.Kind == TimePassed {
		r.failf("wants to be stepped at %v, which is not after %v", at, r.now)
	}
	return decisions
}

// checkQueries checks the invariants of query, queryClass and shard.
func (r *referee) checkQueries() {
	m := r.m
	for id, q := range m.queries {
		due := q.deadline
		if !q.isLate {
			due = min(due, q.lostAt)
		}
		switch {
		case q.id != id || q.waiting == q.sent:
			r.failf("query %v: waiting %v, sent %v", id, q.waiting, q.sent)
		case q.sent && (q.lane == nil || m.lanes[q.lane.id] != q.lane || q.class != nil ||
			q.queue != nil || q.timer.at >= 0):
			r.failf("query %v is sent, and is %+v", id, q)
		case q.sent && q.lane.findReservation(id, q.attempt) < 0:
			r.failf("query %v is sent to lane %d, which has no reservation", id, q.lane.id)
		case q.waiting && (q.lane != nil || q.deadline <= m.now || !q.isLate && q.lostAt <= m.now ||
			(q.timer.at >= 0) != !math.IsInf(due, 1) || q.timer.at >= 0 && q.timer.time != due):
			r.failf("query %v waits at %v, and is %+v", id, m.now, q)
		}
	}
	waiting := 0
	for _, s := range append(slices.Clone(m.shards), m.nowhere) {
		var work [2]float64
		lateWork, live, inFlow := 0.0, map[*queryClass]int{}, map[*flow]int{}
		late, lateWorkOf := map[*queryClass]int{}, map[*queryClass]float64{}
		for q := s.live.First(); q != nil; q = q.inShard.Next() {
			if m.queries[q.id] != q || q.shard != s || !q.waiting || q.isLate {
				r.failf("query %v is among the live ones of a shard, and is %+v", q.id, q)
			}
			work[q.sizeClass] += q.waitingWork()
			live[q.class]++
			inFlow[q.flow]++
		}
		for _, f := range s.flows {
			if f.live != inFlow[f] || !(f.tag >= 0) || f.band() < 1 || f.band() > MaxBand {
				r.failf("flow %+v has %d live queries", f, inFlow[f])
			}
			delete(inFlow, f)
		}
		if len(inFlow) > 0 {
			r.failf("live queries are of flows that the shard does not have: %v", inFlow)
		}
		for q := s.late.First(); q != nil; q = q.inShard.Next() {
			if m.queries[q.id] != q || q.shard != s || !q.waiting || !q.isLate {
				r.failf("query %v is among the late ones of a shard, and is %+v", q.id, q)
			}
			lateWork += q.lateWork
			late[q.class]++
			lateWorkOf[q.class] += q.lateWork
		}
		waiting += s.live.Len() + s.late.Len()
		for _, k := range s.classes {
			if k.live.Len() != live[k] || k.late != late[k] || !near(k.lateWork, lateWorkOf[k]) {
				r.failf("a class has %d queries, %d late with %v ms; want %d, %d, %v", k.live.Len(),
					k.late, k.lateWork, live[k], late[k], lateWorkOf[k])
			}
			for q := k.live.First(); q != nil; q = q.inClass.Next() {
				if q.class != k || q.family != k.family ||
					q.flowKey != k.flowKey || q.flow.flowKey != k.flowKey || len(q.allowedVariants()) != k.allowed {
					r.failf("query %v is in the class of others: %+v, %+v", q.id, q, k)
				}
			}
		}
		if !near(work[0], s.work[0]) || !near(work[1], s.work[1]) || !near(lateWork, s.lateWork) {
			r.failf("work of %v and %v late waits, the shard has %v and %v", work, lateWork, s.work,
				s.lateWork)
		}
	}
	for _, q := range m.queries {
		if q.waiting {
			waiting--
		}
	}
	if waiting != 0 {
		r.failf("%d more queries are in lists than wait", waiting)
	}
}

// near reports whether two sums of the same numbers in different orders are equal.
func near(a, b float64) bool { return math.Abs(a-b) <= 1e-6 }

// checkLanes checks the invariants of lane and reservation.
func (r *referee) checkLanes() {
	m := r.m
	if len(m.all) != len(m.lanes) ||
		!slices.IsSortedFunc(m.all, func(a, b *lane) int { return lessLane(a.id, b.id) }) {
		r.failf("%d lanes of %d are in order", len(m.all), len(m.lanes))
	}
	for id, l := range m.lanes {
		switch {
		case l.id != id || l.counted != l.isUsable() || !l.placed ||
			!slices.Contains(l.shard.lanes, l):
			r.failf("lane %d is %+v", id, l)
		case (l.due.at >= 0) != (len(l.held) > 0):
			r.failf("lane %d holds %v, and should answer: %v", id, l.held, l.due.at >= 0)
		case l.overdue != (l.asked > 0) || l.overdue && len(l.held) == 0:
			r.failf("lane %d is overdue: %v, was asked %d times, and holds %v", id, l.overdue,
				l.asked, l.held)
		}
		for i := range l.held {
			h := &l.held[i]
			if h.claimed && h.told || h.latency < 0 || h.since > m.now ||
				i > 0 && h.run < l.held[i-1].run {
				r.failf("lane %d holds %v", id, l.held)
			}
		}
	}
	for _, s := range m.shards {
		usable := 0
		for _, l := range s.lanes {
			if l.shard != s || m.lanes[l.id] != l {
				r.failf("lane %d is in a shard that is not its own", l.id)
			}
			if l.isUsable() {
				usable++
			}
		}
		if usable != s.usable {
			r.failf("a shard counts %d usable lanes of %d", s.usable, usable)
		}
	}
}

// pick draws a key of a map in a reproducible way.
func pick[K comparable, V any](t *rapid.T, of map[K]V, less func(a, b K) int) (k K, ok bool) {
	if len(of) == 0 {
		return k, false
	}
	keys := make([]K, 0, len(of))
	for k := range of {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, less)
	return rapid.SampledFrom(keys).Draw(t, "key"), true
}

func lessLane(a, b LaneID) int { return int(a) - int(b) }

func lessQuery(a, b QueryID) int {
	if a.less(b) {
		return -1
	}
	return 1
}

// TestPromises plays random events to every policy: queries and lanes come and go, profiles and
// prices change, lanes answer early, late, twice or never, refuse and are overdue. The referee
// checks every decision. In the end lanes behave, and every query must get its outcome.
func TestPromises(t *testing.T) {
	for _, policy := range append(Policies(), "chooser") {
		t.Run(policy, func(t *testing.T) {
			var splits atomic.Int64
			rapid.Check(t, func(t *rapid.T) { play(t, policy, &splits) })
			if n := splits.Load(); (n > 10) != (policy == "horizon") {
				t.Errorf("%d queries were split", n)
			}
		})
	}
}

func play(t *rapid.T, policy string, splits *atomic.Int64) {
	types := []names.LaneType{"base", "mid", "slow"}
	speed := map[names.LaneType]int{"base": 10, "mid": 25, "slow": 60}
	config := Config{
		Policy: policy,
		Models: []Model{
			{Name: "a", QoSTarget: 10 * time.Millisecond, LargestBatchSize: 100,
				RejectLate: rapid.Bool().Draw(t, "reject late a"),
				Merge:      rapid.SampledFrom(names.MergePolicies()).Draw(t, "merge a")},
			{Name: "b", QoSTarget: 30 * time.Millisecond, LargestBatchSize: 300,
				RejectLate: rapid.Bool().Draw(t, "reject late b"), Splits: true},
		},
		DispatchAhead: rapid.SampledFrom([]time.Duration{0, time.Millisecond}).Draw(t, "ahead"),
		ShardLanes:    rapid.SampledFrom([]int{0, 2, -1}).Draw(t, "shard lanes"),
	}
	if policy == "chooser" {
		config.Policy, config.NewChooser = "", func() Chooser { return &drawnQueues{} }
	}
	r := newReferee(t, config)
	r.splits = splits
	table := func(model names.ModelKey, typ names.LaneType, percent int) *LatencyTable {
		tab, err := NewTable(stairs{200, speed[typ] * percent}, r.model(model).LargestBatchSize)
		if err != nil {
			t.Fatal(err)
		}
		return tab
	}
	profiles := func(percent int) {
		for _, model := range r.modelNames() {
			for _, typ := range types {
				r.step(Event{
					Kind: ProfileChanged, Model: model, Type: typ,
					Table: table(model, typ, percent),
				})
			}
		}
	}
	someModels := rapid.Custom(func(t *rapid.T) []names.ModelKey {
		if of := rapid.SampledFrom(append(r.modelNames(), "")).Draw(t, "models"); of != "" {
			return []names.ModelKey{of}
		}
		return r.modelNames()
	})
	duration := func(name string, most time.Duration) time.Duration {
		return time.Duration(rapid.Int64Range(0, int64(most)).Draw(t, name))
	}
	lane, sequence := LaneID(1), uint64(0)
	join := func(models []names.ModelKey) {
		r.step(Event{Kind: LaneJoined, Lane: lane, Agent: "x",
			Type: rapid.SampledFrom(types).Draw(t, "type"), Models: models,
			Remaining: rapid.SampledFrom([]time.Duration{0, 5 * time.Millisecond}).Draw(t,
				"remaining")})
		lane++
	}
	tenants, bands := []string{""}, []int{0} // in half of the runs all queries are of one flow
	if rapid.Bool().Draw(t, "tenants") {
		tenants, bands = []string{"", "x", "y"}, []int{0, 1, MaxBand + 1}
	}
	submit := func(sent bool) {
		e := Event{Kind: Submitted, Query: QueryID{
			rapid.Uint64Range(1, 2).Draw(t, "gateway"), sequence,
		},
			Model: rapid.SampledFrom([]names.ModelKey{"a", "a", "a", "b", "b", "b", "c"}).Draw(t,
				"model"),
			BatchSize: rapid.IntRange(0, 110).Draw(t, "batch"),
			Waited: rapid.SampledFrom([]time.Duration{
				0, time.Millisecond, 50 * time.Millisecond,
			}).Draw(t, "waited"),
			TimeLeft: rapid.SampledFrom([]time.Duration{
				0, 20 * time.Millisecond, 100 * time.Millisecond,
			}).Draw(t, "time left"),
			Tenant: tenants[rapid.IntRange(0, len(tenants)-1).Draw(t, "tenant")],
			Band:   bands[rapid.IntRange(0, len(bands)-1).Draw(t, "band")],
			Weight: rapid.SampledFrom([]float64{0, 2}).Draw(t, "weight"),
		}
		if e.Model == "b" {
			e.BatchSize *= 3
		}
		if e.Query.Gateway == 2 { // it can split
			e.Splits, e.Query.Sequence = true, numbering*e.Query.Sequence
			if rapid.IntRange(0, 9).Draw(t, "part") == 0 {
				e.Query = e.Query.Part(rapid.IntRange(1, MostParts).Draw(t, "which"))
			}
		}
		if sent || rapid.IntRange(0, 9).Draw(t, "again") == 0 {
			e.Attempt = rapid.IntRange(0, MaxAttempts).Draw(t, "attempt")
		}
		if id, ok := pick(t, r.lanes, lessLane); ok && sent {
			e.Lane = id
			if rapid.Bool().Draw(t, "greeted") && r.model(e.Model) != nil {
				holds := []Held{{e.Query, e.Attempt, e.Model, e.BatchSize}}
				for _, h := range r.lanes[id].held {
					holds = append(holds, Held{h.query, h.attempt, "a", 1})
				}
				r.step(Event{
					Kind: LaneHas, Lane: id, Holds: holds,
					Remaining: duration("remaining", 10*time.Millisecond),
				})
			}
		}
		sequence++
		if id, ok := pick(t, r.queries, lessQuery); ok &&
			rapid.IntRange(0, 9).Draw(t, "known") == 0 {
			e.Query, e.Attempt = id, r.queries[id].attempt+rapid.IntRange(-1, 1).Draw(t, "attempts")
			e.Attempt = max(0, e.Attempt)
			if e.Splits = id.Gateway == 2; e.Splits && rapid.Bool().Draw(t, "whole") {
				e.Query = id.Whole()
			}
		}
		r.step(e)
	}
	answer := func(kind EventKind) {
		id, ok := pick(t, r.lanes, lessLane)
		if !ok || len(r.lanes[id].held) == 0 {
			return
		}
		h := rapid.SampledFrom(r.lanes[id].held).Draw(t, "held")
		r.step(Event{
			Kind: kind, Query: h.query, Attempt: h.attempt, Lane: id,
			Remaining: duration("remaining", time.Millisecond) / 2,
		})
	}
	onLane := func(kind EventKind) {
		if id, ok := pick(t, r.lanes, lessLane); ok {
			r.step(
				Event{Kind: kind, Lane: id, Remaining: duration("remaining", 10*time.Millisecond),
					Models: someModels.Draw(t, "models"),
					Type:   rapid.SampledFrom(append(types, "")).Draw(t, "type")})
		}
	}
	if rapid.Bool().Draw(t, "profiles first") {
		profiles(rapid.SampledFrom([]int{100, 250}).Draw(t, "percent"))
	}
	if rapid.Bool().Draw(t, "backed up") { // a base type with large queries before it
		profiles(250)
		for _, typ := range []names.LaneType{"base", "mid", "mid", "mid"} {
			r.step(Event{
				Kind: LaneJoined, Lane: lane, Agent: "x", Type: typ, Models: r.modelNames(),
			})
			lane++
		}
		for range rapid.IntRange(1, 6).Draw(t, "large") {
			r.step(Event{
				Kind: Submitted, Query: QueryID{2, numbering * sequence}, Model: "b", Splits: true,
				BatchSize: rapid.IntRange(200, 300).Draw(t, "rows"),
			})
			sequence++
		}
	}
	steps := rapid.IntRange(1, 120).Draw(t, "steps")
	for range steps {
		r.now += duration("gap", 3*time.Millisecond)
		if rapid.IntRange(0, 30).Draw(t, "pause") == 0 {
			r.now += duration("pause", 3*time.Second)
			r.step(Event{Kind: TimePassed})
		}
		switch rapid.IntRange(0, 29).Draw(t, "what") {
		case 0, 1, 2, 3, 4, 5, 6, 7:
			submit(false)
		case 25, 26:
			submit(true)
		case 27:
			name := rapid.SampledFrom([]names.ModelKey{"a", "b", "c"}).Draw(t, "model")
			r.step(Event{Kind: ModelChanged, Model: name,
				QoSTarget:  time.Millisecond + duration("target", 40*time.Millisecond),
				BatchSize:  rapid.IntRange(1, 300).Draw(t, "largest"),
				RejectLate: rapid.Bool().Draw(t, "reject late"),
				Splits:     rapid.Bool().Draw(t, "model splits"),
				Merge:      rapid.SampledFrom(names.MergePolicies()).Draw(t, "merge")})
		case 29:
			name := rapid.SampledFrom([]names.ModelKey{"a", "b", "c"}).Draw(t, "model")
			if r.model(name) != nil && len(r.cfg.Models) > 1 && !r.asked(name) {
				r.step(Event{Kind: ModelGone, Model: name})
			}
		case 28:
			r.step(Event{
				Kind:  AheadChanged,
				Ahead: rapid.SampledFrom([]time.Duration{0, time.Millisecond}).Draw(t, "ahead"),
			})
		case 8, 9, 10, 11, 12, 13:
			answer(Completed)
		case 14:
			answer(rapid.SampledFrom([]EventKind{Refused, Unused}).Draw(t, "kind"))
		case 15, 16:
			join(someModels.Draw(t, "models"))
		case 17:
			onLane(rapid.SampledFrom([]EventKind{
				LaneHas, LaneLost, LaneDraining, LaneModels, LaneRemaining, LaneEnds,
			}).Draw(t, "kind"))
		case 18:
			if id, ok := pick(t, r.queries, lessQuery); ok {
				r.step(Event{Kind: Cancelled, Query: id})
			}
		case 19:
			model, typ := rapid.SampledFrom(r.modelNames()).Draw(t,
				"model"), rapid.SampledFrom(types).Draw(t, "type")
			r.step(Event{
				Kind: ProfileChanged, Model: model, Type: typ,
				Table: table(model, typ, rapid.IntRange(50, 200).Draw(t, "percent")),
			})
		case 20:
			r.step(Event{Kind: PricesChanged, Prices: []fluid.Price{
				{Type: "base", PerMs: rapid.Float64Range(0, 2).Draw(t, "price"),
					Service: duration("service", 10*time.Millisecond)},
				{Type: "mid", PerMs: rapid.Float64Range(0, 2).Draw(t, "price"),
					Service: duration("service", 10*time.Millisecond),
					Classes: []fluid.ClassPrice{
						{Models: r.modelNames(), PerMs: rapid.Float64Range(0, 2).Draw(t, "price")},
						{Models: r.modelNames()[:1]},
					}},
			}})
		case 21: // an answer that comes after the query has gone elsewhere, or of a lane long lost
			if id, ok := pick(t, r.queries, lessQuery); ok && r.queries[id].attempt > 1 {
				r.step(Event{
					Kind:    rapid.SampledFrom([]EventKind{Completed, Refused}).Draw(t, "kind"),
					Query:   id,
					Attempt: 1, Lane: lane + 1,
				})
			}
		case 22:
			if rapid.IntRange(0, 9).Draw(t, "gateway lost") == 0 {
				r.step(Event{Kind: GatewayLost, Query: QueryID{Gateway: 1}})
			}
		default:
			r.step(Event{Kind: TimePassed})
		}
	}

	// Now everything behaves, and machines that were to be taken are.
	for id := range lane + 1 {
		if l := r.lanes[id]; l != nil && l.ends > 0 {
			r.step(Event{Kind: LaneLost, Lane: id})
		}
	}
	profiles(100)
	join(r.modelNames())
	for n := 0; ; n++ {
		open := 0
		for _, q := range r.queries {
			if q.outcome == "" {
				open++
			}
		}
		if open == 0 {
			break
		}
		if n > 20*(len(r.queries)+10) {
			r.failf("%d queries never get an outcome", open)
		}
		r.now += time.Millisecond
		done := false
		for id := range lane + 1 {
			if l := r.lanes[id]; l != nil && len(l.held) > 0 {
				h := l.held[0]
				r.step(Event{Kind: Completed, Query: h.query, Attempt: h.attempt, Lane: id})
				done = true
				break
			}
		}
		if !done {
			r.step(Event{Kind: TimePassed})
		}
	}
	replay(t, r)
}

// replay plays the recorded events again and expects the same decisions to the byte.
func replay(t *rapid.T, r *referee) {
	m, err := New(r.start)
	if err != nil {
		t.Fatal(err)
	}
	var log []byte
	for _, s := range r.events {
		at, e, err := ParseEvent([]byte(s))
		if err != nil {
			t.Fatal(err)
		}
		log = append(AppendEvent(log, at, &e), '\n')
		decisions, _, err := m.Step(time.Unix(0, 0).Add(at), &e)
		if err != nil {
			t.Fatal(err)
		}
		for i := range decisions {
			log = append(AppendDecision(append(log, "  "...), &decisions[i]), '\n')
		}
	}
	if string(log) != string(r.log) {
		t.Fatalf("replayed:\n%s\nrecorded:\n%s", log, r.log)
	}
}

// checkedHorizon is horizon that plans also where nothing can start, and counts what it skipped and
// what it decided there nonetheless.
type checkedHorizon struct {
	horizon
	skipped, decided *atomic.Int64
}

func (h *checkedHorizon) assignQueries(s *shard) {
	skipped, before := !h.prepareRound(s), len(s.m.out)
	h.planRound(s)
	if skipped {
		h.skipped.Add(1)
		h.decided.Add(int64(len(s.m.out) - before))
	}
}

// TestSkippedRounds: horizon decides nothing in a round that it skips because nothing can start.
func TestSkippedRounds(t *testing.T) {
	var splits, skipped, decided atomic.Int64
	was := policies["horizon"]
	policies["horizon"] = func() policy {
		return &checkedHorizon{skipped: &skipped, decided: &decided}
	}
	defer func() { policies["horizon"] = was }()
	rapid.Check(t, func(t *rapid.T) {
		play(t, "horizon", &splits)
		if n := decided.Load(); n > 0 {
			t.Fatalf("%d decisions of rounds in which nothing can start", n)
		}
	})
	if n := skipped.Load(); n < 20 {
		t.Errorf("%d rounds were skipped, want more", n)
	}
}
