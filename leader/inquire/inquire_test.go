package inquire

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
)

var epoch = time.Unix(1000, 0)

// pricedPool returns a pool of one lane of type gpu and four of type cpu, which hold model m.
func pricedPool(t *testing.T, seed uint64) *match.PricedLanes {
	t.Helper()
	p, err := match.NewPricedLanes(
		[]match.Model{{Name: "m", QoSTarget: 10 * time.Millisecond, LargestBatchSize: 100}}, seed)
	if err != nil {
		t.Fatal(err)
	}
	for typ, l := range map[string]stairs{"gpu": {0, 2000}, "cpu": {-5000, 9000}} {
		tab, err := match.NewTable(l, 100)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.SetProfile("m", names.LaneType(typ), tab); err != nil {
			t.Fatal(err)
		}
	}
	p.SetPrices([]match.Price{{Type: "gpu", PerMs: 0.5}, {Type: "cpu", PerMs: 0.1}})
	p.Join(1, "gpu", []names.ModelKey{"m", "another"})
	for id := match.LaneID(2); id <= 5; id++ {
		p.Join(id, "cpu", []names.ModelKey{"m"})
	}
	return p
}

// stairs is a latency of base and a step more for every 50 items, in µs; the 80 % quantile
// is a fifth more.
type stairs struct{ base, step int }

func (l stairs) Mean(batchSize int) time.Duration {
	return time.Duration(l.base+l.step*((batchSize+49)/50)) * time.Microsecond
}

func (l stairs) Quantile(_ float64, batchSize int) time.Duration {
	return l.Mean(batchSize) * 6 / 5
}

// TestScripts runs the scripts in testdata; -rewrite writes what they answer.
// Lane 1 is a gpu, lanes 2 to 5 are cpus, see [pricedPool]. The commands, each at a time, answer
// with what is to be done:
//
//	begin   at=D query=N batch=N [failed=(LANE,...)]
//	answer  at=D lane=N id=N [remaining=D] [finish=D], without finish it refuses
//	unasked at=D id=N
//	lost    at=D lane=N
//	avoid   at=D lane=N
//	pass    at=D
//	busy    at=D lane=N remaining=D  what a lane says by gossip
//	ranked  at=D batch=N             the lanes by rank, and how long they are believed busy
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		known := pricedPool(t, 1)
		l := New(DefaultProbes, 1)
		l.SetLanes(known)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			duration := func(key string, or time.Duration) time.Duration {
				var text string
				if d.MaybeScanArgs(t, key, &text); text == "" {
					return or
				}
				v, err := time.ParseDuration(text)
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				return v
			}
			var query, id uint64
			var lane match.LaneID
			batch, failed := 50, []match.LaneID(nil)
			for _, arg := range d.CmdArgs {
				switch arg.Key {
				case "query":
					arg.Scan(t, 0, &query)
				case "id":
					arg.Scan(t, 0, &id)
				case "lane":
					var n int
					arg.Scan(t, 0, &n)
					lane = match.LaneID(n)
				case "batch":
					arg.Scan(t, 0, &batch)
				case "failed":
					for i := range arg.Vals {
						var n int
						arg.Scan(t, i, &n)
						failed = append(failed, match.LaneID(n))
					}
				}
			}
			now := epoch.Add(duration("at", 0))
			switch d.Cmd {
			case "begin":
				l.Begin(now, match.Inquiry{
					Query: query, Model: "m", BatchSize: batch, Arrival: now, Failed: failed,
				})
			case "answer":
				l.Answered(now, lane, id, duration("remaining", 0), duration("finish", -1))
			case "unasked":
				l.Unasked(now, id)
			case "lost":
				l.Lost(now, lane)
			case "avoid":
				l.Avoid(now, lane)
			case "pass":
				l.Pass(now)
			case "busy":
				known.NoteRemaining(lane, now, duration("remaining", 0))
			case "ranked":
				var b strings.Builder
				for _, c := range known.Rank(now, &match.Inquiry{Model: "m", BatchSize: batch}, 0,
					5) {
					fmt.Fprintf(&b, "lane %d, busy for %v\n", c.Lane, c.Wait)
				}
				return b.String()
			default:
				return "unknown command " + d.Cmd
			}
			var b strings.Builder
			for do, ok := l.Next(); ok; do, ok = l.Next() {
				fmt.Fprintln(&b, describe(do))
			}
			if at := l.Wake(); !at.IsZero() {
				fmt.Fprintf(&b, "wake at %v\n", at.Sub(epoch))
			}
			return b.String()
		})
	})
}

func describe(do Action) string {
	switch do.Kind {
	case AskLane:
		return fmt.Sprintf("ask lane %d about query %d: question %d", do.Lane, do.Query, do.ID)
	case ReleaseLane:
		return fmt.Sprintf("release %d at lane %d", do.ID, do.Lane)
	case SendQuery:
		return fmt.Sprintf("send query %d to lane %d by reservation %d: %v", do.Query, do.Lane,
			do.ID, do.Finish)
	case NoLane:
		return fmt.Sprintf("no lane for query %d, of %d asked; again at %v", do.Query, do.Asked,
			do.Again.Sub(epoch).Round(time.Millisecond))
	case LaneAnswered:
		if do.Finish < 0 {
			return fmt.Sprintf("lane %d refuses %d for query %d", do.Lane, do.ID, do.Query)
		}
		return fmt.Sprintf("lane %d answers %d for query %d: %v", do.Lane, do.ID, do.Query,
			do.Finish)
	default:
		return fmt.Sprintf("lane %d is silent about %d, query %d", do.Lane, do.ID, do.Query)
	}
}

// answers is an inquiry, some time after the query arrived, with what some lanes have answered.
func answers(waited time.Duration, asked ...lanesAnswer) *inquiry {
	return &inquiry{
		Inquiry: match.Inquiry{Arrival: epoch.Add(-waited)}, target: 10 * time.Millisecond,
		lanes: asked,
		asked: len(asked),
	}
}

// offer is a lane that says that it is free after remaining and would have answered after finish.
func offer(cost float64, wait, remaining, finish time.Duration) lanesAnswer {
	return lanesAnswer{
		Candidate: match.Candidate{Cost: cost, Wait: wait}, state: offered,
		remaining: remaining, freeAt: epoch.Add(remaining), safe: finish - remaining,
	}
}

func TestChooses(t *testing.T) {
	ms := time.Millisecond
	for _, c := range []struct {
		what string
		in   *inquiry
		want int
	}{
		{"none", answers(0), -1},
		{"none that answers", answers(0, lanesAnswer{state: failed}), -1},
		{"cheapest in time",
			answers(0, offer(3, 0, 0, 2*ms), offer(1, 0, 0, 9*ms), offer(2, 0, 0, 5*ms),
				offer(0.5, 0, 0, 11*ms)), 1},
		{"all late", answers(0, offer(1, 0, 0, 15*ms), offer(3, 0, 0, 12*ms)), 1},
		{"equal cost", answers(0, offer(1, 0, 0, 8*ms), offer(1, 0, 0, 7*ms)), 1},
		{"waited for 5 ms", answers(5*ms, offer(1, 0, 0, 9*ms), offer(3, 0, 0, 4*ms)), 1},
	} {
		if got := c.in.chooseLane(epoch); got != c.want {
			t.Errorf("%s: got %d, want %d", c.what, got, c.want)
		}
	}
	// A lane becomes free while others are asked; a query sent to one that is free takes the ways.
	in := answers(0, offer(1, 0, 6*ms, 9*ms))
	in.lanes[0].way = ms / 2
	for at, want := range map[time.Duration]time.Duration{
		0: 9*ms + ms/2, 4 * ms: 5*ms + ms/2, 20 * ms: 4 * ms,
	} {
		if got := in.lanes[0].timeToFinish(epoch.Add(at)); got != want {
			t.Errorf("%v after the answer the query would take %v, want %v", at, got, want)
		}
	}
}

func TestAsks(t *testing.T) {
	ms := time.Millisecond
	none := lanesAnswer{state: failed}
	for _, c := range []struct {
		what  string
		in    *inquiry
		rest  int
		needs time.Duration
		want  int
	}{
		{"the best alone", answers(0), 8, 4 * ms, 1},
		{"no time to ask again", answers(2 * ms), 8, 4 * ms, 4},
		{"late in any case", answers(7 * ms), 8, 4 * ms, 1},
		{"nobody to ask", answers(0), 0, 0, 0},
		{"fewer than are compared", answers(2 * ms), 2, 4 * ms, 2},
		{"as believed", answers(ms, offer(1, 0, 0, 5*ms)), 7, 4 * ms, 0},
		{"busier than believed", answers(ms, offer(1, 0, 3*ms, 8*ms)), 7, 4 * ms, 3},
		{"busier, and no time", answers(5*ms, offer(1, 0, 3*ms, 4*ms)), 7, 4 * ms, 0},
		{"late", answers(ms, offer(1, 6*ms, 6*ms, 11*ms)), 7, 4 * ms, 3},
		{"late, and busier than believed", answers(8*ms, offer(1, 0, 3*ms, 8*ms)), 7, 4 * ms, 3},
		{"late, as others", answers(ms, offer(1, 6*ms, 6*ms, 11*ms)), 7, 8 * ms, 0},
		{"all late", answers(ms, offer(1, 0, 6*ms, 11*ms), offer(1, 0, 7*ms, 12*ms), none, none), 4,
			4 * ms, 4},
		{"one in time", answers(ms, offer(1, 0, 6*ms, 11*ms), offer(1, 0, 2*ms, 6*ms), none, none),
			4, 4 * ms, 0},
		{"no answer", answers(6*ms, none), 7, 4 * ms, 4},
	} {
		for range c.rest {
			c.in.lanes = append(c.in.lanes, lanesAnswer{Candidate: match.Candidate{Needs: c.needs}})
		}
		if got := c.in.countToAsk(epoch, ms, 4); got != c.want {
			t.Errorf("%s: got %d, want %d", c.what, got, c.want)
		}
	}
}

// A run drives a State at random, as callers, lanes and networks might, and checks
// what must hold.
type run struct {
	t     *testing.T
	rng   *rand.Rand
	l     *State
	known *match.PricedLanes
	now   time.Time
	log   []string

	lastQuery uint64
	open      map[uint64]*openInquiry    // by query
	ways      []question                 // questions without an answer, the oldest first
	reserved  map[uint64]match.LaneID    // by question
	avoided   map[match.LaneID]time.Time // until when
	gone      map[match.LaneID]bool      // from the fleet
	frozen    map[match.LaneID]bool      // does not answer
	sends     int
}

type openInquiry struct {
	allowed map[match.LaneID]bool // nil: all
	asked   map[match.LaneID]bool
}

type question struct {
	id    uint64
	lane  match.LaneID
	query uint64
}

func (r *run) fail(format string, args ...any) {
	r.t.Helper()
	r.t.Fatalf("%s\n%s", fmt.Sprintf(format, args...),
		strings.Join(r.log[max(0, len(r.log)-40):], "\n"))
}

func (r *run) note(format string, args ...any) {
	r.log = append(r.log, fmt.Sprintf("%v ", r.now.Sub(epoch))+fmt.Sprintf(format, args...))
}

func (r *run) begin() {
	r.lastQuery++
	in := &openInquiry{asked: map[match.LaneID]bool{}}
	var failed []match.LaneID
	for range r.rng.IntN(3) {
		failed = append(failed, match.LaneID(1+r.rng.IntN(5)))
	}
	allowed := map[match.LaneID]bool{}
	for id := match.LaneID(1); id <= 5; id++ {
		if !r.gone[id] && !slices.Contains(failed, id) && !r.now.Before(r.avoided[id]) {
			allowed[id] = true
		}
	}
	if len(allowed) > 0 {
		in.allowed = allowed
	}
	r.open[r.lastQuery] = in
	r.note("begin %d failed %v", r.lastQuery, failed)
	r.l.Begin(r.now, match.Inquiry{Query: r.lastQuery, Model: "m", BatchSize: 1 + r.rng.IntN(100),
		Arrival: r.now.Add(-time.Duration(r.rng.IntN(8)) * time.Millisecond), Failed: failed})
}

// carryOut does what is to be done, as a gateway does.
func (r *run) carryOut() {
	for do, ok := r.l.Next(); ok; do, ok = r.l.Next() {
		r.note("%s", describe(do))
		in := r.open[do.Query]
		if in == nil && do.Kind != ReleaseLane {
			r.fail("query %d is not open: %s", do.Query, describe(do))
		}
		switch do.Kind {
		case AskLane:
			if r.gone[do.Lane] || in.asked[do.Lane] {
				r.fail("lane %d is asked twice about query %d, or is gone", do.Lane, do.Query)
			}
			if in.allowed != nil && !in.allowed[do.Lane] {
				r.fail(
					"lane %d is asked about query %d though it has failed or is silent, and "+
						"there are others", do.Lane, do.Query)
			}
			in.asked[do.Lane] = true
			if r.rng.IntN(20) == 0 {
				r.l.Unasked(r.now, do.ID)
			} else {
				r.ways = append(r.ways, question{do.ID, do.Lane, do.Query})
			}
		case ReleaseLane, SendQuery:
			if lane, ok := r.reserved[do.ID]; !ok || lane != do.Lane {
				r.fail("reservation %d of lane %d is there: %v; it is used or released twice",
					do.ID, do.Lane, ok)
			}
			delete(r.reserved, do.ID)
			if do.Kind == SendQuery {
				if !in.asked[do.Lane] {
					r.fail("query %d is sent to lane %d, which was not asked", do.Query, do.Lane)
				}
				delete(r.open, do.Query) // another SendQuery of it fails
				r.sends++
			}
		case NoLane:
			if do.Asked != len(in.asked) || !do.Again.After(r.now) {
				r.fail("of %d lanes asked no one takes query %d", len(in.asked), do.Query)
			}
			delete(r.open, do.Query)
		case LaneSilent:
			r.avoided[do.Lane] = r.now.Add(avoidTime)
		}
	}
}

// answer has the lane of the i-th question answer it.
func (r *run) answer(i int) {
	q := r.ways[i]
	r.ways = slices.Delete(r.ways, i, i+1)
	remaining := time.Duration(r.rng.IntN(8)-1) * time.Millisecond
	finish := remaining + time.Duration(r.rng.IntN(8))*time.Millisecond
	if r.rng.IntN(4) == 0 {
		finish = -1
	}
	if finish >= 0 {
		r.reserved[q.id] = q.lane
	}
	delete(r.avoided, q.lane)
	r.note("lane %d answers %d: %v", q.lane, q.id, finish)
	r.l.Answered(r.now, q.lane, q.id, remaining, finish)
}

// lose ends the stream to a lane, which frees what it has reserved.
func (r *run) lose(lane match.LaneID) {
	r.note("lane %d is lost", lane)
	r.ways = slices.DeleteFunc(r.ways, func(q question) bool { return q.lane == lane })
	maps.DeleteFunc(r.reserved, func(_ uint64, at match.LaneID) bool { return at == lane })
	r.avoided[lane] = r.now.Add(avoidTime)
	r.l.Lost(r.now, lane)
}

func (r *run) random() {
	r.now = r.now.Add(time.Duration(r.rng.ExpFloat64() * float64(time.Millisecond)))
	if r.rng.IntN(200) == 0 {
		r.now = r.now.Add(avoidTime)
	}
	lane := match.LaneID(1 + r.rng.IntN(5))
	switch r.rng.IntN(12) {
	case 0, 1:
		r.begin()
	case 2, 3, 4, 5, 6:
		if i := slices.IndexFunc(r.ways,
			func(q question) bool { return !r.frozen[q.lane] }); i >= 0 {
			r.answer(i)
		}
	case 7:
		r.frozen[lane] = r.rng.IntN(4) == 0
	case 8, 9:
		if at := r.l.Wake(); !at.IsZero() {
			if at.After(r.now) {
				r.now = at
			}
			r.l.Pass(r.now)
		}
	case 10:
		switch r.rng.IntN(6) {
		case 0:
			r.lose(lane)
		case 1:
			if !r.gone[lane] {
				r.gone[lane] = true
				r.known.Leave(lane)
				r.lose(lane)
			}
		default:
			if r.gone[lane] {
				delete(r.gone, lane)
				r.known.Join(lane, "cpu", []names.ModelKey{"m"})
			}
		}
	case 11:
		// An answer that nobody has asked for, or that is another lane's.
		id := uint64(1 + r.rng.IntN(1+int(r.lastQuery)))
		if !slices.ContainsFunc(r.ways,
			func(q question) bool { return q.id == id && q.lane == lane }) {
			delete(r.avoided, lane)
			r.note("lane %d answers %d unasked", lane, id)
			r.l.Answered(r.now, lane, id, 0, -1)
		}
	}
	r.carryOut()
	if at := r.l.Wake(); (len(r.open) == 0) != at.IsZero() {
		r.fail("%d inquiries are open, to be woken at %v", len(r.open), at)
	}
}

// TestProperties: whatever happens in whatever order, each inquiry ends once, in one
// SendQuery or NoLane; it asks no lane twice, and none that has failed the query or is silent if
// there are others; and each reservation is used or released, once.
func TestProperties(t *testing.T) {
	sends := 0
	for seed := range uint64(2000) {
		r := &run{
			t: t, rng: rand.New(rand.NewPCG(seed, 0)), l: New(1+int(seed%4), seed),
			known: pricedPool(t, seed), now: epoch,
			open: map[uint64]*openInquiry{}, reserved: map[uint64]match.LaneID{},
			avoided: map[match.LaneID]time.Time{}, gone: map[match.LaneID]bool{},
			frozen: map[match.LaneID]bool{},
		}
		r.l.SetLanes(r.known)
		r.note("seed %d", seed)
		for range 150 {
			r.random()
		}
		// In the end everybody answers who was asked, and the others' time has come.
		clear(r.frozen)
		for len(r.open) > 0 || len(r.ways) > 0 {
			if len(r.ways) > 0 {
				r.answer(0)
			} else {
				r.now = r.l.Wake()
				r.l.Pass(r.now)
			}
			r.carryOut()
		}
		if len(r.reserved) > 0 || len(r.l.questions) > 0 || len(r.l.inquiries) > 0 {
			r.fail("reservations %v are left, and %d questions", r.reserved, len(r.l.questions))
		}
		sends += r.sends
	}
	if sends < 10_000 {
		t.Errorf("only %d queries were sent: this tests little", sends)
	}
}

// TestLearnsFromLateAnswers: where a round trip takes longer than lanes have to answer,
// the first are late, and then they have long enough. One lane that pauses does not change that.
func TestLearnsFromLateAnswers(t *testing.T) {
	p := pricedPool(t, 1)
	l := New(DefaultProbes, 1)
	l.SetLanes(p)
	now := epoch
	one := func(roundTrip time.Duration) (silent int) {
		l.Begin(now, match.Inquiry{Query: 1, Model: "m", BatchSize: 50, Arrival: now})
		type answer struct {
			at   time.Time
			lane match.LaneID
			id   uint64
		}
		var ways []answer
		for open := true; open || len(ways) > 0; {
			for do, ok := l.Next(); ok; do, ok = l.Next() {
				switch do.Kind {
				case AskLane:
					ways = append(ways, answer{now.Add(roundTrip), do.Lane, do.ID})
				case LaneSilent:
					silent++
				case SendQuery, NoLane:
					open = false
				}
			}
			wake := l.Wake()
			if len(ways) > 0 && (wake.IsZero() || !wake.Before(ways[0].at)) {
				a := ways[0]
				ways, now = ways[1:], a.at
				l.Answered(now, a.lane, a.id, 0, time.Millisecond)
			} else if open {
				now = wake
				l.Pass(now)
			}
		}
		return silent
	}
	for _, roundTrip := range []time.Duration{7 * time.Millisecond, 60 * time.Millisecond} {
		first, later := one(roundTrip), 0
		for range 40 {
			one(roundTrip)
		}
		for range 40 {
			later += one(roundTrip)
		}
		if first == 0 || later > 0 {
			t.Errorf(
				"round trips of %v: %d lanes are silent at first, %d later; want some and none",
				roundTrip, first, later)
		}
	}
	before := l.roundTrip
	one(time.Hour)
	if l.roundTrip > 2*before {
		t.Errorf("after lanes that pause a round trip is believed to take %v, before %v",
			l.roundTrip, before)
	}
}

// TestAllocates: an inquiry allocates nothing once there have been some.
func TestAllocates(t *testing.T) {
	l := New(DefaultProbes, 1)
	l.SetLanes(pricedPool(t, 1))
	if n := testing.AllocsPerRun(1000, func() {
		l.Begin(epoch, match.Inquiry{
			Query: 1, Model: "m", BatchSize: 50, Arrival: epoch.Add(-6 * time.Millisecond),
		})
		for do, ok := l.Next(); ok; do, ok = l.Next() {
			if do.Kind == AskLane {
				l.Answered(epoch, do.Lane, do.ID, 0, time.Millisecond)
			}
		}
	}); n > 0 {
		t.Errorf("an inquiry allocates %v times", n)
	}
}
