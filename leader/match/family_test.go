package match

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
)

// A fixture is a matcher with the models of family "f", m0 being the best, and of others.
type fixture struct {
	t *testing.T
	*Matcher
	now time.Duration
}

func (f *fixture) step(e Event) []Decision {
	f.t.Helper()
	out, _, err := f.Step(time.Unix(0, 0).Add(f.now), &e)
	if err != nil {
		f.t.Fatal(err)
	}
	return slices.Clone(out)
}

func newFixture(t *testing.T, policy string, accuracies ...float64) *fixture {
	t.Helper()
	m, err := New(Config{Policy: policy})
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, Matcher: m}
	for i, a := range accuracies {
		f.step(Event{
			Kind: ModelChanged, Model: modelName(i), Family: "f", Accuracy: a, BatchSize: 100,
			QoSTarget: 100 * time.Millisecond, Splits: true,
		})
	}
	return f
}

func modelName(i int) names.ModelKey { return names.ModelKey(fmt.Sprintf("m%d", i)) }

// profile says that a model takes so many ms at batch sizes above 50, and 3/4 of that below.
func (f *fixture) profile(model int, typ names.LaneType, ms float64) {
	f.t.Helper()
	us := int(1000 * ms)
	f.step(Event{
		Kind: ProfileChanged, Model: modelName(model), Type: typ, Table: tableOf(us/2, us/4),
	})
}

// tableOf is a table of stairs.
func tableOf(base, step int) *LatencyTable {
	table, err := NewTable(stairs{base: base, step: step}, 100)
	if err != nil {
		panic(err)
	}
	return table
}

// TestVariantChoice: of small random rounds, the plan costs as little as the best of all ways to
// match queries to slots and to choose each one's variant.
func TestVariantChoice(t *testing.T) {
	r := rand.New(rand.NewPCG(17, 1))
	several, degraded := 0, 0
	for round := range 3000 {
		accuracies := []float64{1, 1 - .03*r.Float64(), 1 - .2*r.Float64()}[:1+r.IntN(3)]
		f := newFixture(t, "horizon", accuracies...)
		types := []names.LaneType{"a", "b"}
		var prices []fluid.Price
		for _, typ := range types {
			ms := 5 + 40*r.Float64()
			for i := range accuracies {
				f.profile(i, typ, ms)
				ms *= .2 + .8*r.Float64()
			}
			prices = append(prices, fluid.Price{
				Type: typ, PerMs: .3 * r.Float64(),
				Service: time.Duration(30e6 * r.Float64()),
			})
		}
		f.step(Event{Kind: PricesChanged, Prices: prices})
		for l := range 1 + r.IntN(3) {
			var holds []names.ModelKey
			for i := range accuracies {
				if r.IntN(3) > 0 {
					holds = append(holds, modelName(i))
				}
			}
			f.step(Event{
				Kind: LaneJoined, Lane: LaneID(l + 1), Type: types[r.IntN(2)], Models: holds,
				Remaining: time.Duration(1 + r.IntN(60e6)),
			})
		}
		for _, l := range f.all {
			l.idle.share = .2 * r.Float64()
		}
		for q := range 1 + r.IntN(3) {
			f.step(Event{
				Kind: Submitted, Query: QueryID{1, uint64(4 * q)}, Model: "f",
				BatchSize: 1 + r.IntN(100), Waited: time.Duration(r.IntN(70e6)),
				LeastAccuracy: []float64{0, 0, 0, accuracies[r.IntN(len(accuracies))]}[r.IntN(4)],
			})
		}
		s := f.shards[0]
		s.spare.share = r.Float64()
		h := s.policy.(*horizon)
		h.collectGroups(s)
		h.collectRows(s, nil, math.MaxInt)
		if len(h.rows) == 0 {
			continue
		}
		h.planSlots(s)
		got := 0.0
		for i, k := range h.match {
			if k >= 0 {
				got += h.cost[i*len(h.slots)+k]
			}
		}
		cost := make([][]float64, len(h.rows))
		for i, q := range h.rows {
			for k, slot := range h.slots {
				c, model := obviousCost(h, f.Matcher, i, slot)
				cost[i] = append(cost[i], c)
				if len(q.allowedVariants()) > 1 && h.match[i] == k && model >= 0 {
					several++
					if model != q.allowedVariants()[0].model {
						degraded++
					}
					if chosen := h.cellAt(i, slot.group).model; chosen != model {
						t.Fatalf("round %d: row %d runs model %d, want %d", round, i, chosen, model)
					}
				}
			}
		}
		if _, want := cheapestMatch(cost, map[int]bool{}); math.Abs(got-want) > 1e-9*max(1, want) {
			t.Fatalf("round %d: the plan of %d rows on %d slots costs %v, the best %v", round,
				len(h.rows), len(h.slots), got, want)
		}
	}
	if several < 500 || degraded < 100 || several-degraded < 100 {
		t.Errorf("%d choices between variants, %d of them not the best variant: too few", several,
			degraded)
	}
}

// obviousCost is what a row costs in a slot by its best variant, by the definition, and that
// variant; -1 if none is in time.
func obviousCost(h *horizon, m *Matcher, row int, s slot) (least float64, model int) {
	q, g := h.rows[row], &h.groups[s.group]
	best := 0.0
	for _, v := range q.family.variants {
		best = max(best, m.models[v.model].accuracyOrBest())
	}
	cost := func(model int) float64 {
		c := 0.4 * 100 * (best - m.models[model].accuracyOrBest())
		mean := g.typ.tables[model].mean[q.batch]
		scarcity := 1 - h.spare
		if len(q.allowedVariants()) > 1 {
			idle := 0.0
			for _, l := range g.lanes {
				idle += l.idle.share / float64(len(g.lanes))
			}
			scarcity = min(1, max(.001, 1-idle/.15))
		} else {
			c = 0
		}
		c = min(c, 5) + g.lanes[0].price*scarcity*g.priceFactor(q.family.target, mean)*mean
		return c
	}
	least, model = math.Inf(1), -1
	fastest, ms := -1, math.Inf(1)
	for _, v := range q.family.variants {
		tab := g.typ.tables[v.model]
		if !s.lane.holds[v.model] || m.models[v.model].accuracyOrBest() < q.accuracy {
			continue
		}
		if tab.mean[q.batch] < ms {
			fastest, ms = v.model, tab.mean[q.batch]
		}
		if c := cost(v.model); c < least && s.start+tab.safe[q.batch] <= h.due[row] {
			least, model = c, v.model
		}
	}
	// what counts in the choice between slots, and not between variants
	delay := func(model int) float64 {
		return 4 / q.family.target * (s.start + h.spare*g.typ.tables[model].mean[q.batch])
	}
	switch {
	case model >= 0:
		least += delay(model)
	case fastest >= 0:
		late := h.cellAt(row, s.group).model
		least = latePrice + h.dearest + (cost(late)+delay(late))/lateScale
	}
	return least, model
}

// cheapestMatch is the least sum of the costs of rows in different slots, for as many rows as can
// have one, and how many these are.
func cheapestMatch(cost [][]float64, taken map[int]bool) (n int, least float64) {
	if len(cost) == 0 {
		return 0, 0
	}
	n, least = cheapestMatch(cost[1:], taken) // without the first
	for k, c := range cost[0] {
		if taken[k] || math.IsInf(c, 1) {
			continue
		}
		taken[k] = true
		rest, sum := cheapestMatch(cost[1:], taken)
		delete(taken, k)
		if rest+1 > n || rest+1 == n && c+sum < least {
			n, least = rest+1, c+sum
		}
	}
	return n, least
}

// TestUnlimitedCapacity: lanes that idle run the best variant for every query, whatever its size.
func TestUnlimitedCapacity(t *testing.T) {
	f := newFixture(t, "horizon", 1, .999, .9)
	for i, ms := range []float64{45, 12, 3} {
		f.profile(i, "a", ms)
	}
	f.step(Event{Kind: PricesChanged, Prices: []fluid.Price{
		{Type: "a", PerMs: .3, Service: 3 * time.Millisecond},
	}})
	for l := range 20 {
		f.step(Event{
			Kind: LaneJoined, Lane: LaneID(l + 1), Type: "a",
			Models: []names.ModelKey{"m0", "m1", "m2"},
		})
	}
	for q := range 400 {
		f.now += 50 * time.Millisecond
		id := QueryID{1, uint64(4 * q)}
		out := f.step(Event{Kind: Submitted, Query: id, Model: "f", BatchSize: 1 + q%100})
		if len(out) != 1 || out[0].Action != Assign || out[0].Model != "m0" ||
			out[0].Family != "f" || out[0].Accuracy != 1 {
			t.Fatalf("query %d: %+v, want m0", q, out)
		}
		f.step(Event{Kind: Completed, Query: id, Attempt: 1, Lane: out[0].Lane})
	}
}

// TestLeastAccuracy: a query that demands an accuracy never gets less, by any policy, and is
// refused if no variant has it.
func TestLeastAccuracy(t *testing.T) {
	for _, policy := range Policies() {
		f := newFixture(t, policy, 1, .98, .9)
		for i, ms := range []float64{45, 12, 3} {
			f.profile(i, "a", ms)
		}
		f.step(Event{
			Kind: LaneJoined, Lane: 1, Type: "a", Models: []names.ModelKey{"m1", "m2"},
		})
		ask := func(seq int, model names.ModelKey, least float64) *Decision {
			id := QueryID{1, uint64(4 * seq)}
			out := f.step(Event{
				Kind: Submitted, Query: id, Model: model, BatchSize: 60, LeastAccuracy: least,
				Waited: 95 * time.Millisecond, // not even m2 is in time
			})
			if len(out) == 0 { // a lost query waits for a calm moment
				f.now += time.Second
				out = f.step(Event{Kind: TimePassed})
			}
			if len(out) != 1 {
				t.Fatalf("%s: %s of %v: got %+v, want one decision", policy, model, least, out)
			}
			if out[0].Action == Assign {
				f.step(Event{Kind: Completed, Query: id, Attempt: 1, Lane: 1})
			}
			return &out[0]
		}
		for i, tt := range []struct {
			model names.ModelKey
			least float64
			want  names.ModelKey // "": refused
		}{
			{"f", 0, "m2"}, {"f", .9, "m2"}, {"f", .95, "m1"}, {"f", .98, "m1"},
			{"m2", .9, "m2"}, {"m1", 0, "m1"}, {"m2", .95, ""},
		} {
			switch d := ask(i, tt.model, tt.least); {
			case tt.want == "" && (d.Action != Reject || d.Reason != LeastAccuracy),
				tt.want != "" && (d.Action != Assign || d.Model != tt.want):
				t.Errorf("%s: %s of %v: got %+v, want %q", policy, tt.model, tt.least, d, tt.want)
			}
		}
		out := f.step(Event{
			Kind: Submitted, Query: QueryID{2, 0}, Model: "f", BatchSize: 60, LeastAccuracy: .99,
		})
		if len(out) != 0 {
			t.Errorf("%s: only m0 may answer, which no lane holds, and got %+v", policy, out)
		}
		// m0 is a model of another family from now on.
		out = f.step(Event{
			Kind: ModelChanged, Model: "m0", Accuracy: 1, BatchSize: 100,
			QoSTarget: 100 * time.Millisecond,
		})
		if len(out) != 1 || out[0].Reason != LeastAccuracy {
			t.Errorf("%s: the family lost its best variant, and the query that demands it got %+v",
				policy, out)
		}
	}
}

// TestUnknownAccuracy: beside a variant of unknown accuracy, one that is known to be worse is not
// taken on purpose.
func TestUnknownAccuracy(t *testing.T) {
	f := newFixture(t, "horizon", 0, .9999)
	v := f.named["f"].variants
	if v[0].model != 0 || v[0].accuracy != 1 || v[0].regret != 0 || v[1].regret != maxRegret {
		t.Errorf("got %+v, want regrets 0 and %v", v, maxRegret)
	}
}

// TestFamilyChanges: families of which all variants are gone are forgotten when no query asks for
// them, and a query goes on when a variant joins its family.
func TestFamilyChanges(t *testing.T) {
	f := newFixture(t, "horizon", 1)
	f.step(Event{Kind: Submitted, Query: QueryID{1, 0}, Model: "f", BatchSize: 1})
	f.step(Event{Kind: ModelGone, Model: "m0"})
	if out := f.step(Event{Kind: Submitted, Query: QueryID{1, 4}, Model: "f", BatchSize: 1}); len(
		out) != 1 || out[0].Reason != UnknownModel {
		t.Errorf("the family has no variant, and a query for it got %+v", out)
	}
	f.step(Event{
		Kind: ModelChanged, Model: "n", Family: "f", Accuracy: .5, BatchSize: 100,
		QoSTarget: 100 * time.Millisecond,
	})
	f.step(Event{Kind: ProfileChanged, Model: "n", Type: "a", Table: tableOf(1000, 1)})
	out := f.step(Event{
		Kind: LaneJoined, Lane: 1, Type: "a", Models: []names.ModelKey{"n"},
	})
	if len(out) != 1 || out[0].Model != "n" || out[0].Accuracy != .5 {
		t.Errorf("the query that waits got %+v, want n", out)
	}
	f.step(Event{Kind: Completed, Query: QueryID{1, 0}, Attempt: 1, Lane: 1})
	f.step(Event{Kind: LaneLost, Lane: 1})
	f.step(Event{Kind: ModelGone, Model: "n"})
	if len(f.named) != 0 {
		t.Errorf("%d families are kept", len(f.named))
	}
}

// TestOneVariantSplits: all parts of a query ask for one variant.
func TestOneVariantSplits(t *testing.T) {
	f := newFixture(t, "horizon", 1, .98)
	f.profile(0, "a", 200)
	f.profile(1, "a", 104) // half of the query takes 78 ms
	f.profile(0, "b", 80)
	for l, models := range [][]names.ModelKey{{"m1"}, {"m1"}, {"m0"}} {
		f.step(Event{
			Kind: LaneJoined, Lane: LaneID(l + 1), Type: []names.LaneType{"a", "a", "b"}[l],
			Models: models, Remaining: time.Duration(l/2) * 50 * time.Millisecond,
		})
	}
	out := f.step(Event{
		Kind: Submitted, Query: QueryID{1, 0}, Model: "f", BatchSize: 100, Splits: true,
	})
	if len(out) != 3 || out[0].Action != Split || out[0].Model != "m1" || out[0].Family != "f" {
		t.Fatalf("got %+v, want a split for m1", out)
	}
	for _, d := range out[1:] {
		if d.Action != Assign || d.Model != "m1" || d.Accuracy != .98 || d.Lane == 3 {
			t.Errorf("got %+v, want m1", d)
		}
	}
}

// TestSplitsByVariantsTarget: while the QoS targets of a family's variants are changed one after
// the other, a query is split only if the parts, which ask for one variant, can meet that one's
// target.
func TestSplitsByVariantsTarget(t *testing.T) {
	for _, target := range []time.Duration{100 * time.Millisecond, 10 * time.Millisecond} {
		f := newFixture(t, "horizon", 1, .99)
		f.step(Event{
			Kind: ModelChanged, Model: "m1", Family: "f", Accuracy: .99, BatchSize: 100,
			QoSTarget: target, Splits: true, RejectLate: true,
		})
		f.profile(0, "fast", 20)
		f.step(Event{
			Kind: ProfileChanged, Model: "m1", Type: "slow", Table: tableOf(5000, 25000),
		})
		for i, holds := range []names.ModelKey{"m0", "m1", "m1"} {
			e := Event{
				Kind: LaneJoined, Lane: LaneID(i + 1), Type: "slow",
				Models: []names.ModelKey{holds},
			}
			if holds == "m0" {
				e.Type, e.Remaining = "fast", time.Hour
			}
			f.step(e)
		}
		// Whole it takes 66 ms on the lanes that are free, in halves 36 ms, and 50 ms are left.
		out := f.step(Event{
			Kind: Submitted, Query: QueryID{1, 4}, Model: "f", BatchSize: 100, Splits: true,
			Waited: 50 * time.Millisecond,
		})
		split := slices.ContainsFunc(out, func(d Decision) bool { return d.Action == Split })
		if split != (target > 50*time.Millisecond) {
			t.Errorf("with a target of %v for the variant: %+v", target, out)
		}
	}
}

// TestPlanOfFormerRound: what a round plans does not outlive it. The query was planned with a
// variant that has left its family since and serves no batch of that size.
func TestPlanOfFormerRound(t *testing.T) {
	f := newFixture(t, "horizon")
	variant := func(i, largest int, family names.ModelKey) {
		f.step(Event{
			Kind: ModelChanged, Model: modelName(i), Family: family, BatchSize: largest,
			QoSTarget: 100 * time.Millisecond, Merge: names.MergeDeadline,
		})
	}
	submit := func(n uint64, batch int) []Decision {
		return f.step(Event{
			Kind: Submitted, Query: QueryID{1, n}, Model: "f", BatchSize: batch,
		})
	}
	for i, ms := range []float64{40, 20} {
		variant(i, 100, "f")
		f.profile(i, "x", ms)
	}
	f.step(Event{
		Kind: LaneJoined, Lane: 1, Type: "x", Models: []names.ModelKey{"m0", "m1"},
		Remaining: 10 * time.Millisecond,
	})
	submit(1, 100)
	submit(2, 100)
	f.now = 11 * time.Millisecond
	if out := f.step(Event{Kind: TimePassed}); len(out) != 1 || out[0].Model != "m1" {
		t.Fatalf("got %+v, want the first query assigned to m1, and so the second one planned", out)
	}
	variant(1, 10, "")
	short, err := NewTable(stairs{base: 1000}, 10)
	if err != nil {
		t.Fatal(err)
	}
	f.step(Event{Kind: ProfileChanged, Model: "m1", Type: "x", Table: short})
	f.now = 50 * time.Millisecond
	submit(3, 10)
	// The second query could be in time only by the mean, so it is in no plan of this round.
	f.now = 55 * time.Millisecond
	out := f.step(Event{Kind: Completed, Query: QueryID{1, 1}, Attempt: 1, Lane: 1})
	if len(out) != 1 || out[0].Query != (QueryID{1, 3}) || out[0].Model != "m0" {
		t.Errorf("got %+v, want the third query assigned to m0", out)
	}
}

// TestMergedRunsOneVariant: queries that run together have one variant.
func TestMergedRunsOneVariant(t *testing.T) {
	f := newFixture(t, "horizon")
	for i := range 2 {
		f.step(Event{
			Kind: ModelChanged, Model: modelName(i), Family: "f", Accuracy: 1 - .02*float64(i),
			BatchSize: 100, QoSTarget: 100 * time.Millisecond, Merge: "deadline",
		})
		f.step(Event{
			Kind: ProfileChanged, Model: modelName(i), Type: "a",
			Table: tableOf(40_000-20_000*i, 1),
		})
	}
	f.step(Event{
		Kind: LaneJoined, Lane: 1, Type: "a", Models: []names.ModelKey{"m0", "m1"},
		Remaining: 10 * time.Millisecond,
	})
	for q := range 6 {
		f.step(Event{
			Kind: Submitted, Query: QueryID{1, uint64(4 * q)}, Model: "f", BatchSize: 2,
			LeastAccuracy: float64(q % 2), // every other only by m0
		})
	}
	f.now = 10 * time.Millisecond
	out := f.step(Event{Kind: TimePassed})
	if len(out) < 2 || out[0].Merged != len(out) {
		t.Fatalf("got %+v, want a merged run", out)
	}
	for _, d := range out {
		if d.Model != out[0].Model || d.Query.Sequence/4%2 == 1 && d.Model != "m0" {
			t.Errorf("got %+v, in one run with %+v", d, out[0])
		}
	}
}

// TestRankVariants: a gateway without a leader ranks lanes with the variants that they would run.
func TestRankVariants(t *testing.T) {
	models := []Model{
		{Name: "m0", Family: "f", Accuracy: 1, QoSTarget: 100 * time.Millisecond,
			LargestBatchSize: 100},
		{Name: "m1", Family: "f", Accuracy: .98, QoSTarget: 100 * time.Millisecond,
			LargestBatchSize: 100},
	}
	p, err := NewPricedLanes(models, 1)
	if err != nil {
		t.Fatal(err)
	}
	for i, us := range []int{40_000, 10_000} {
		if err := p.SetProfile(modelName(i), "a", tableOf(us, 1)); err != nil {
			t.Fatal(err)
		}
	}
	for l, models := range [][]names.ModelKey{{"m0"}, {"m1"}, {"m0", "m1"}} {
		p.Join(LaneID(l+1), "a", models)
	}
	now := time.Unix(0, 0)
	of := func(least, perMs float64, waited time.Duration) (got string) {
		p.SetPrices([]fluid.Price{{Type: "a", PerMs: perMs}})
		q := Inquiry{Model: "f", BatchSize: 10, LeastAccuracy: least}
		all := slices.Clone(p.Rank(now, &q, waited*time.Millisecond, 5))
		slices.SortFunc(all, func(a, b Candidate) int { return int(a.Lane) - int(b.Lane) })
		for _, c := range all {
			got += fmt.Sprintf("%d %s %v,", c.Lane, c.Model, c.Accuracy)
		}
		return got
	}
	// The regret of m1 is .8, and m0 takes 30 ms longer.
	for _, tt := range []struct {
		least, perMs float64
		waited       time.Duration
		want         string
	}{
		{0, .02, 0, "1 m0 1,2 m1 0.98,3 m0 1,"},
		{0, .03, 0, "1 m0 1,2 m1 0.98,3 m1 0.98,"},
		{0, .02, 70, "1 m0 1,2 m1 0.98,3 m1 0.98,"}, // m0 is late
		{0, .02, 95, "1 m0 1,2 m1 0.98,3 m1 0.98,"}, // all are late: the fastest
		{.99, .03, 0, "1 m0 1,3 m0 1,"},
		{1.5, .03, 0, ""},
	} {
		if got := of(tt.least, tt.perMs, tt.waited); got != tt.want {
			t.Errorf("%+v: got %s", tt, got)
		}
	}
	if p.Target("f") != 100*time.Millisecond || p.Target("m1") != p.Target("f") ||
		p.Target("x") != 0 {
		t.Errorf("targets are %v, %v, %v", p.Target("f"), p.Target("m1"), p.Target("x"))
	}
}
