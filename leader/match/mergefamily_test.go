package match

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
)

// A mixture is a matcher of families whose variants merge, with lanes that run what they are given,
// and clients that cancel a few of their queries, or all at once.
type mixture struct {
	t      *testing.T
	seed   uint64
	r      *rand.Rand
	m      *Matcher
	now    time.Duration
	next   time.Duration // when the matcher wants to be stepped; 0: never
	models map[names.ModelKey]Model
	lanes  map[LaneID]*mixedLane
	asks   map[QueryID]*mixedQuery // without an outcome
	last   QueryID
	log    []byte
	// counts of what there was to look at
	merged, variants, storms int
	ended                    map[string]int
}

type mixedLane struct {
	models []names.ModelKey
	runs   [][]Decision // the first one runs
	ends   time.Duration
}

type mixedQuery struct {
	Event
	attempt int
	live    bool
}

func (x *mixture) failf(format string, args ...any) {
	x.t.Helper()
	x.t.Fatalf("seed %d at %v: %s\nafter:\n%s", x.seed, x.now, fmt.Sprintf(format, args...),
		x.log[max(0, len(x.log)-6000):])
}

// step steps the matcher and checks and carries out its decisions.
func (x *mixture) step(e Event) {
	x.t.Helper()
	x.log = append(AppendEvent(x.log, x.now, &e), '\n')
	out, next, err := x.m.Step(time.Unix(0, 0).Add(x.now), &e)
	if err != nil {
		x.failf("%v", err)
	}
	if x.next = 0; !next.IsZero() {
		x.next = max(next.Sub(time.Unix(0, 0)), x.now+1)
	}
	for i := range out {
		x.log = append(AppendDecision(append(x.log, "  "...), &out[i]), '\n')
	}
	for i := range out {
		d := &out[i]
		q := x.asks[d.Query]
		if q == nil && d.Action != Ask {
			x.failf("%+v is of a query that has its outcome", d)
		}
		switch d.Action {
		case Assign:
			x.assign(q, d, out, i)
		case OfferAgain:
			q.live = false
		case Ask:
		case Reject:
			if d.Reason == LeastAccuracy && x.accurate(q.Model, q.LeastAccuracy) {
				x.failf("%+v, and there is such a variant", d)
			}
			x.ended[d.Reason.String()]++
			delete(x.asks, d.Query)
		default:
			x.failf("%+v", d)
		}
	}
}

// accurate reports whether a variant of what a query asks for has the accuracy.
func (x *mixture) accurate(asked names.ModelKey, least float64) bool {
	for _, m := range x.models {
		if (m.Name == asked || m.Family == asked) && m.Accuracy >= least {
			return true
		}
	}
	return false
}

// assign checks an assignment, and gives it to its lane.
func (x *mixture) assign(q *mixedQuery, d *Decision, out []Decision, i int) {
	l, model := x.lanes[d.Lane], x.models[d.Model]
	best := 0.
	for _, m := range x.models {
		if m.Family == q.Model || m.Name == q.Model {
			best = max(best, m.Accuracy)
		}
	}
	switch {
	case q.live || d.Attempt != q.attempt+1:
		x.failf("%+v: the query is assigned already, or has had %d attempts", d, q.attempt)
	case l == nil || !slices.Contains(l.models, d.Model):
		x.failf("%+v: the lane does not hold the variant, it holds %v", d, l)
	case model.Family != q.Model && model.Name != q.Model:
		x.failf("%+v: no variant of %s", d, q.Model)
	case model.Accuracy < q.LeastAccuracy:
		x.failf("%+v: less accurate than %v", d, q.LeastAccuracy)
	case d.Family != "" && d.Model != "" && d.Accuracy != model.Accuracy:
		x.failf("%+v: the accuracy is %v", d, model.Accuracy)
	}
	if model.Family == q.Model && model.Accuracy < best {
		x.variants++
	}
	q.live, q.attempt = true, d.Attempt
	joins := d.Merge != 0 && slices.ContainsFunc(out[:i], func(o Decision) bool {
		return o.Action == Assign && o.Merge == d.Merge
	})
	if d.Merge != 0 && !joins {
		n, sum := 0, 0
		for _, o := range out[i:] {
			if o.Action != Assign || o.Merge != d.Merge {
				continue
			}
			n, sum = n+1, sum+x.asks[o.Query].BatchSize
			if o.Lane != d.Lane || o.Model != d.Model || o.Merged != d.Merged {
				x.failf("%+v and %+v are of one run", d, o)
			}
		}
		if n != d.Merged || n < 2 || sum > 100 || !model.Merge.Merges() {
			x.failf("%+v: a run of %d queries of %d items by %+v", d, n, sum, model)
		}
		x.merged++
	}
	if joins {
		last := len(l.runs) - 1
		l.runs[last] = append(l.runs[last], *d)
		return
	}
	l.runs = append(l.runs, []Decision{*d})
	if len(l.runs) == 1 {
		x.start(l)
	}
}

// start lets a lane run its next run.
func (x *mixture) start(l *mixedLane) {
	took := time.Duration(0)
	for _, d := range l.runs[0] {
		took = max(took, d.Latency)
	}
	l.ends = x.now + took*time.Duration(80+x.r.IntN(60))/100
}

// end ends what a lane runs.
func (x *mixture) end(id LaneID) {
	l := x.lanes[id]
	run := l.runs[0]
	if l.runs = l.runs[1:]; len(l.runs) > 0 {
		x.start(l)
	}
	for _, d := range run {
		kind := Completed
		q := x.asks[d.Query]
		if q == nil || q.attempt != d.Attempt || !q.live {
			kind = Refused // its client has cancelled it
		} else if x.r.IntN(30) == 0 {
			kind, q.live = Refused, false
		} else {
			x.ended["completed"]++
			delete(x.asks, d.Query)
		}
		x.step(Event{Kind: kind, Query: d.Query, Attempt: d.Attempt, Lane: id})
	}
}

// cancel has a client cancel a query.
func (x *mixture) cancel(id QueryID) {
	x.ended["cancelled"]++
	delete(x.asks, id)
	x.step(Event{Kind: Cancelled, Query: id})
}

// sorted are the queries without an outcome.
func (x *mixture) sorted() (all []QueryID) {
	for id := range x.asks {
		all = append(all, id)
	}
	slices.SortFunc(all, lessQuery)
	return all
}

// pass lets time pass.
func (x *mixture) pass(until time.Duration) {
	for {
		at, ends := until, LaneID(0)
		for id := LaneID(1); id < 20; id++ {
			if l := x.lanes[id]; l != nil && len(l.runs) > 0 && l.ends <= at {
				at, ends = l.ends, id
			}
		}
		if x.next > 0 && x.next < at {
			x.now = max(x.now, x.next)
			x.step(Event{Kind: TimePassed})
			continue
		}
		x.now = max(x.now, at)
		if ends == 0 {
			return
		}
		x.end(ends)
	}
}

// change changes one variant: its family, accuracy or how it merges.
func (x *mixture) change(name names.ModelKey) {
	m := x.models[name]
	if m.Name = name; x.r.IntN(3) == 0 || m.LargestBatchSize == 0 {
		m.Family = names.ModelKey([]string{"f", "g"}[x.r.IntN(2)])
	}
	m.Accuracy = 1 - .01*float64(x.r.IntN(8))
	m.Merge = names.MergePolicies()[x.r.IntN(len(names.MergePolicies()))]
	m.LargestBatchSize = 40 + 20*x.r.IntN(3)
	m.QoSTarget = 40 * time.Millisecond
	x.tell(m)
}

// tell tells the matcher what a variant is now.
func (x *mixture) tell(m Model) {
	x.models[m.Name] = m
	x.step(Event{
		Kind: ModelChanged, Model: m.Name, Family: m.Family, Accuracy: m.Accuracy, Merge: m.Merge,
		BatchSize: m.LargestBatchSize, QoSTarget: m.QoSTarget,
	})
}

// runMixture plays one mixture, and returns it.
func runMixture(t *testing.T, seed uint64, policy string) *mixture {
	r := rand.New(rand.NewPCG(seed, 11))
	x := &mixture{
		t: t, seed: seed, r: r, models: map[names.ModelKey]Model{}, lanes: map[LaneID]*mixedLane{},
		asks: map[QueryID]*mixedQuery{}, ended: map[string]int{},
	}
	var err error
	if x.m, err = New(Config{
		Policy: policy, DispatchAhead: []time.Duration{0, time.Millisecond}[r.IntN(2)],
		ShardLanes: []int{0, 2}[r.IntN(2)],
	}); err != nil {
		t.Fatal(err)
	}
	variants := []names.ModelKey{"a", "b", "c", "d"}
	for i, name := range variants {
		x.change(name)
		for k, typ := range []names.LaneType{"x", "y"} {
			x.step(Event{
				Kind: ProfileChanged, Model: name, Type: typ,
				Table: tableOf(1000*(1+i*(1+k)+r.IntN(3)), 500*(1+r.IntN(4))),
			})
		}
	}
	x.step(Event{Kind: PricesChanged, Prices: []fluid.Price{
		{Type: "x", PerMs: .1 * r.Float64(), Service: 5 * time.Millisecond},
		{Type: "y", PerMs: .1 * r.Float64(), Service: 5 * time.Millisecond},
	}})
	join := func(id LaneID) {
		models := slices.Clone(variants)
		r.Shuffle(len(models), func(i, j int) { models[i], models[j] = models[j], models[i] })
		l := &mixedLane{models: models[:1+r.IntN(len(models))]}
		x.lanes[id] = l
		x.step(Event{
			Kind: LaneJoined, Lane: id, Agent: "a", Models: l.models,
			Type: []names.LaneType{"x", "y"}[r.IntN(2)],
		})
	}
	for id := range LaneID(1 + r.IntN(4)) {
		join(id + 1)
	}
	asked := append([]names.ModelKey{"f", "g", "f", "g"}, variants...)
	for range 150 {
		x.pass(x.now + time.Duration(r.IntN(4000))*time.Microsecond)
		switch r.IntN(40) {
		case 0:
			x.change(variants[r.IntN(len(variants))])
		case 1:
			id := LaneID(1 + r.IntN(6))
			if l := x.lanes[id]; l != nil {
				for _, run := range l.runs {
					for _, d := range run {
						if q := x.asks[d.Query]; q != nil && q.attempt == d.Attempt {
							q.live = false
						}
					}
				}
				delete(x.lanes, id)
				x.step(Event{Kind: LaneLost, Lane: id})
			}
		case 2, 3:
			if id := LaneID(7 + r.IntN(12)); x.lanes[id] == nil && len(x.lanes) < 5 {
				join(id)
			}
		case 4: // all clients give up at once
			all := x.sorted()
			r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			if len(all) > 10 {
				x.storms++
			}
			for _, id := range all {
				if x.asks[id] != nil {
					x.cancel(id)
				}
			}
		case 5:
			if all := x.sorted(); len(all) > 0 {
				x.cancel(all[r.IntN(len(all))])
			}
		default:
			for range 1 + r.IntN(8) {
				x.last.Gateway, x.last.Sequence = 1, x.last.Sequence+4
				e := Event{
					Kind: Submitted, Query: x.last, Model: asked[r.IntN(len(asked))],
					BatchSize: 1 + r.IntN(40), LeastAccuracy: .02 * float64(r.IntN(2)*(46+r.IntN(5))),
				}
				if r.IntN(3) == 0 {
					e.TimeLeft = time.Duration(20+r.IntN(100)) * time.Millisecond
				}
				x.asks[x.last] = &mixedQuery{Event: e}
				x.step(e)
			}
		}
	}
	// In the end each family has the best variant, some lane holds all, and every query gets its
	// outcome.
	for i, family := range []names.ModelKey{"f", "g"} {
		m := x.models[variants[i]]
		m.Family, m.Accuracy = family, 1
		x.tell(m)
	}
	id := LaneID(19)
	x.lanes[id] = &mixedLane{models: variants}
	x.step(Event{Kind: LaneJoined, Lane: id, Agent: "a", Models: variants, Type: "x"})
	x.pass(x.now + 20*time.Second)
	if waiting, _ := x.m.Waiting(); len(x.asks) > 0 || waiting > 0 || len(x.m.queries) > 0 {
		x.failf("%d queries have no outcome, %d wait, the matcher knows %d", len(x.asks), waiting,
			len(x.m.queries))
	}
	for id, l := range x.m.lanes {
		if len(l.held) > 0 {
			x.failf("lane %d holds %v", id, l.held)
		}
	}
	return x
}

// TestMixture: whatever merges and may be answered by several variants, a run has one variant, which
// all of its queries may have and its lane holds, and at most its largest batch; no query goes twice;
// and when variants change their family, lanes are lost, or all clients give up at once, each query
// has one outcome, and nothing is left.
func TestMixture(t *testing.T) {
	for _, policy := range Policies() {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			merged, variants, storms, ended := 0, 0, 0, map[string]int{}
			seeds := uint64(15)
			if policy == "horizon" { // the only one that merges
				seeds = 100
			}
			for seed := range seeds {
				x := runMixture(t, seed, policy)
				merged, variants, storms = merged+x.merged, variants+x.variants, storms+x.storms
				for how, n := range x.ended {
					ended[how] += n
				}
			}
			t.Logf("%d runs of several queries, %d queries by a less accurate variant, %d storms, %v",
				merged, variants, storms, ended)
			if variants < 100 || storms < 20 || (merged > 1000) != (policy == "horizon") {
				t.Error("too little to look at")
			}
		})
	}
}

// TestParseMerge: what lanes of earlier agents do is planned for as the default.
func TestParseMerge(t *testing.T) {
	for name, want := range map[string]Merge{
		"": "", "none": "", "of a later release": "", "deadline": names.MergeDeadline,
		"nexus": names.MergeDeadline, "aimd": names.MergeDeadline,
	} {
		if got := ParseMerge(name); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}
