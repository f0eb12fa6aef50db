package learn

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
)

// TestBeginsFromLearned has a new leader get its first queries, where what it begins
// from is learned already, and where it is not: only then is each of them a reason to
// tell all what it changes.
func TestBeginsFromLearned(t *testing.T) {
	a := member("a", "x", "", m)
	learner := profiles.NewLearner(a.Models[0].Profile, nil)
	w := newWorld(t, 1)
	for i := range 500 {
		if err := learner.Observe(1+i%100, w.latency(1+i%100, 1), "a", w.now); err != nil {
			t.Fatal(err)
		}
	}
	table, err := json.Marshal(learner.LatencyTable())
	if err != nil {
		t.Fatal(err)
	}
	// told is how often a profile was told in the first 40 queries.
	told := func(suggested ...leader.Latency) (n int) {
		w := newWorld(t, 1)
		w.Suggest([]*leader.Member{a}, suggested)
		w.are(a)
		for i := range 40 {
			w.look()
			n += len(w.last.Latencies)
			if i > firstQueries && len(w.last.Latencies) > 0 {
				t.Errorf("query %d of a profile is a reason to tell it at once", i)
			}
			w.runs(a, m, 1+7*i%100, w.latency(1+7*i%100, 1))
			w.now = w.now.Add(time.Millisecond)
		}
		return n
	}
	key := names.TableKey{Model: m.Key(), Type: "x"}
	if n := told(leader.Latency{TableKey: key, Told: table}); n != 1 {
		t.Errorf("a profile that was learned is told %d times, want 1", n)
	}
	own := names.TableKey{Model: m.Key(), Type: "x@a"}
	for what, suggested := range map[string]leader.Latency{
		"nothing":                {},
		"an agent's own profile": {TableKey: own, Told: table},
		"a profile that is none": {TableKey: key, Told: table[1:]},
		"what somebody guessed":  {TableKey: key, Told: guessed(t, a)},
	} {
		if n := told(suggested); n < 10 {
			t.Errorf("from %s, a guess is corrected %d times, want 10 or more", what, n)
		}
	}
}

// TestGuessGivesWay: what the leader before guessed is not begun from where the book knows better.
func TestGuessGivesWay(t *testing.T) {
	a := member("a", "x", "", m)
	w := newWorld(t, 1)
	later := a.Models[0].Profile
	later.Version++
	for i := range 200 {
		if err := w.book.Observe(later, 1+i%100, w.latency(1+i%100, 1), "b", w.now); err != nil {
			t.Fatal(err)
		}
	}
	key := names.TableKey{Model: m.Key(), Type: "x"}
	w.Suggest([]*leader.Member{a}, []leader.Latency{{TableKey: key, Told: guessed(t, a)}})
	w.are(a)
	w.look()
	if got, want := w.advised[key].Profile.Mean(50), linear(50); math.Abs(float64(got)/
		float64(want)-1) > 0.05 {
		t.Errorf("batches of 50 take %v as told, want %v, as another version does", got, want)
	}
}

// guessed is what is told of a member's model before any query has run.
func guessed(t *testing.T, of *leader.Member) []byte {
	w := newWorld(t, 1)
	w.are(of)
	w.look()
	l := w.advised[names.TableKey{Model: m.Key(), Type: of.Type}]
	if l == nil || !l.Doubtful || l.Profile.Mean(largest) != target/2 {
		t.Fatalf("of a model of which nothing is known this is told: %+v", l)
	}
	return l.Told
}

// TestGuessOfAnything: whatever a member says of its model, the guess is a profile of which the
// matcher's table can be made.
func TestGuessOfAnything(t *testing.T) {
	key := member("a", "x", "", m).Models[0].Profile
	for _, target := range []time.Duration{1, 9, time.Hour, math.MaxInt64} {
		for _, most := range []int{1, 2, match.MaxBatchSize, math.MaxInt32} {
			g := Guess(key, target, most)
			if g == nil {
				t.Errorf("target %v, batch sizes up to %d: no guess", target, most)
			} else if _, err := match.NewTable(g, min(most, match.MaxBatchSize)); err != nil {
				t.Errorf("target %v, batch sizes up to %d: %v", target, most, err)
			}
		}
	}
}

// TestOtherFiles: agents of one type hold other files under the same version. What runs at one says
// nothing of the others, nor that it is slow; what is told is of the files that most hold.
func TestOtherFiles(t *testing.T) {
	w := newWorld(t, 1)
	all := []*leader.Member{
		member("a", "x", "new", m), member("b", "x", "old", m), member("c", "x", "old", m),
	}
	w.are(all...)
	for i := range 300 {
		batch, factor := 1+i%100, 1.0
		if i%3 == 0 {
			factor = 3
		}
		w.runs(all[i%3], m, batch, w.latency(batch, factor))
		w.look()
		w.now = w.now.Add(time.Second) // longer in all than a departure by chance lasts
	}
	told := w.advised[names.TableKey{Model: m.Key(), Type: "x"}].Profile
	if got, want := told.Mean(50), linear(50); math.Abs(float64(got)/float64(want)-1) > 0.05 {
		t.Errorf("%v is told of batch size 50, want %v, as the files have that most hold", got,
			want)
	}
	if len(w.slow) > 0 {
		t.Errorf("these are slow: %v, want none", w.slow)
	}
	for i, want := range []uint64{100, 200, 200} {
		if got := w.book.FindLearner(all[i].Models[0].Profile).Queries(); got != want {
			t.Errorf("%d queries are known of the files of %s, want %d", got, all[i].Name, want)
		}
	}
	w.runs(member("d", "x", "new"), m, 50, time.Second) // the version was unloaded meanwhile
	w.look()
	if keys := w.book.Keys(); len(keys) != 2 {
		t.Errorf("is learned of %v, want of two versions of the files", keys)
	}
	if l := w.Learned(); len(l) != 1 || l[0].Key().Checksum != "old" {
		t.Errorf(
			"%d profiles are learned of one version on one type, want 1, of the files that ran "+
				"last", len(l))
	}
}

// TestDemandChanges: what is asked of a model changes, and is told once, as what it was and what it
// is; of a model that stays as it is nothing is.
func TestDemandChanges(t *testing.T) {
	w := newWorld(t, 1)
	w.are(member("a", "x", "", m, n))
	w.look()
	ask := func(queries, largest int) (all []DemandChange) {
		for range queries {
			w.now = w.now.Add(time.Duration(w.random.ExpFloat64() * 5e6))
			w.arrives(n, 1+w.random.IntN(100))
			w.arrives(m, 1+w.random.IntN(largest))
			w.look()
			all = append(all, w.DemandChanges()...)
		}
		return all
	}
	if all := ask(2000, 50); len(all) > 0 {
		t.Fatalf("before anything has changed: %v", all)
	}
	for i, largest := range []int{100, 50} {
		all := ask(3000, largest)
		if len(all) != 1 || all[0].Model != m || all[0].Kind != profiles.BatchSizesChanged ||
			math.Abs(all[0].Now.MeanSize-float64(largest)/2) > 4 {
			t.Fatalf("change %d: got %v", i, all)
		}
	}
}

// TestPricesOfParts: where queries may run as parts, the limit and the prices are those of a
// program that splits them: here no lane serves the large ones whole in time, and if they may not
// run as parts, the model misses its target.
func TestPricesOfParts(t *testing.T) {
	for _, splits := range []bool{false, true} {
		w := newWorld(t, 1)
		a := member("a", "x", "", m)
		a.Models[0].Splits = splits
		w.are(a)
		for i := range 500 {
			batch := 50
			if i%10 == 0 {
				batch = 100
			}
			w.now = w.now.Add(100 * time.Millisecond)
			w.arrives(m, batch)
			w.runs(a, m, batch, w.latency(batch, 1.5))
		}
		w.look()
		// 90 % of the queries take 10.5 ms, the others twice that.
		if l := w.last.Limit; l < 80 || l > 95 || (len(w.last.Unmet) == 0) != splits {
			t.Errorf("splits %v: the limit is %v queries/s, unmet are %v; want about 87, and m "+
				"unless it splits", splits, l, w.last.Unmet)
		}
	}
}

// TestHeldApart: of ten agents of a type one holds m and nine n, and m is asked for ten times as
// often. The limit is what the one can do, whose time has a price.
func TestHeldApart(t *testing.T) {
	w := newWorld(t, 1)
	all := []*leader.Member{member("a0", "x", "", m)}
	for i := range 9 {
		all = append(all, member(names.AgentName(fmt.Sprint("a", i+1)), "x", "", n))
	}
	w.are(all...)
	for i := range 2200 {
		w.now = w.now.Add(10 * time.Millisecond)
		if i%11 == 0 {
			w.arrives(n, 80)
		} else {
			w.arrives(m, 80)
		}
	}
	for _, x := range all {
		for range 20 {
			w.runs(x, x.Models[0].ModelID, 80, linear(80))
		}
	}
	w.look()
	w.now = w.now.Add(interval)
	w.poolIs()
	w.look()
	if l := w.last.Limit; math.Abs(l-110) > 2 {
		t.Errorf("the limit is %v queries/s, want 110", l)
	}
	prices := w.State.prices
	if len(prices) != 1 || len(prices[0].Classes) != 2 {
		t.Fatalf("prices are %v, want those of two classes", prices)
	}
	for i, want := range []leader.ModelID{m, n} {
		c := prices[0].Classes[i]
		if !slices.Equal(c.Models, []names.ModelKey{want.Key()}) || (c.PerMs > 0.1) != (i == 0) {
			t.Errorf("class %d is %v, want that of %v", i, c, want)
		}
	}
}

// TestLimitOfBlocked: of two lanes one must stay free of long runs, for a model whose target is far
// shorter than they are, but for the 1 % of its queries that may be late; prices are as without it.
func TestLimitOfBlocked(t *testing.T) {
	for _, short := range []bool{false, true} {
		w := newWorld(t, 1)
		a, b := member("a", "x", "", m, n), member("b", "x", "", m, n)
		for _, x := range []*leader.Member{a, b} {
			x.Models[1].QoSTarget = 2 * time.Second
		}
		w.are(a, b)
		for i := range 4000 {
			w.now = w.now.Add(10 * time.Millisecond)
			if i%2 == 0 && short {
				w.arrives(m, 40)
			} else if i%2 == 1 {
				w.arrives(n, 40)
			}
			batch := 1 + i%largest
			w.runs(a, m, batch, linear(batch))
			w.runs(b, n, batch, linear(batch)*50)
		}
		w.look()
		w.poolIs()
		w.now = w.now.Add(interval)
		w.look()
		want := 2000 / 300. / .99 // runs of n take 300 ms
		if short {
			want = 2 * 1010 / (300. - 13) / .99
		}
		if l := w.last.Limit; math.Abs(l/want-1) > 0.02 {
			t.Errorf("short %v: the limit is %v queries/s, want %v", short, l, want)
		}
		if p := w.State.prices; len(p) != 1 || !(p[0].PerMs > 0) {
			t.Errorf("short %v: prices are %v", short, p)
		}
	}
}

// TestUnmetTargets: a model that no lane answers in time, one whose holder has left, and large
// queries of a third take neither limit nor prices from the others.
func TestUnmetTargets(t *testing.T) {
	slow := leader.ModelID{Name: "slow", Version: 1}
	for _, tt := range []struct {
		what         string
		asks         leader.ModelID // by 1 of 100 queries; the others are of m and take 9 ms
		batch        int
		rejects      bool
		limit, share float64
	}{
		{"a slow model", slow, 40, false, 1000 / (.99*.99*9 + .01*45), 1},
		{"a slow model whose late queries are rejected", slow, 40, true,
			1000 / (.99 * .99 * 9), 1},
		{"a model that nobody holds any more", n, 40, false, 1000 / (.99 * .99 * 9), 1},
		{"large queries", m, largest, false, 1000 / (.985*9 + .015*18), 0.015},
	} {
		w := newWorld(t, 1)
		a, b := member("a", "x", "", m, slow), member("b", "x", "", n)
		a.Models[1].RejectLate = tt.rejects
		w.are(a, b)
		w.look()
		for i := range 4000 {
			w.now = w.now.Add(10 * time.Millisecond)
			if i%200 == 99 || i%200 == 199 || tt.share < 1 && i%200 == 50 {
				w.arrives(tt.asks, tt.batch)
			} else {
				w.arrives(m, 40)
			}
		}
		for i := range 500 {
			batch := 1 + i%largest
			w.runs(a, m, batch, linear(batch)*3/2)
			w.runs(a, slow, batch, linear(batch)*15/2)
			w.runs(b, n, batch, linear(batch))
		}
		w.look()
		w.are(a)
		w.now = w.now.Add(interval)
		w.look()
		if l := w.last.Limit; math.Abs(l/tt.limit-1) > 0.01 {
			t.Errorf("%s: the limit is %v queries/s, want %v", tt.what, l, tt.limit)
		}
		if u := w.last.Unmet; len(u) != 1 || u[0].Model != tt.asks ||
			math.Abs(u[0].Share/tt.share-1) > 0.02 {
			t.Errorf("%s: unmet are %v, want %v of %v", tt.what, u, tt.share, tt.asks)
		}
		if p := w.State.prices; len(p) == 0 || !(p[0].PerMs > 0) {
			t.Errorf("%s: prices are %v", tt.what, p)
		}
	}
}

// TestRefusedSizes: queries of batch sizes that the model does not take are refused, so they are no
// demand, and keep no prices from being known.
func TestRefusedSizes(t *testing.T) {
	w := newWorld(t, 1)
	a := member("a", "x", "", m)
	w.are(a)
	w.look()
	for i := range 500 {
		batch := 50
		if i%10 == 0 {
			batch = []int{-1, 0, largest + 1, profiles.MaxBatchSize}[i/10%4]
		}
		w.now = w.now.Add(100 * time.Millisecond)
		w.arrives(m, batch)
		w.runs(a, m, 50, w.latency(50, 1))
	}
	w.look()
	if l := w.last.Limit; l < 135 || l > 150 {
		t.Errorf("the limit is %v queries/s, want about 143", l)
	}
	if d := w.Demand(w.now)[0]; len(d.BatchSizes) != 1 || d.BatchSizes[0].BatchSize != 50 {
		t.Errorf("the demand is of %v, want batch size 50 alone", d.BatchSizes)
	}
}

// TestFamilyPrices: of a family whose queries count for its best variant, the fastest variant that
// a type holds says how much the type can serve.
func TestFamilyPrices(t *testing.T) {
	limit := func(family string) float64 {
		w := newWorld(t, 1)
		x := member("a", "x", "s", m, n)
		for i := range x.Models {
			x.Models[i].Family = family
		}
		w.are(x)
		w.look()
		for range 300 {
			w.runs(x, m, 10, 8*time.Millisecond)
			w.runs(x, n, 10, 2*time.Millisecond)
			w.arrives(m, 10)
			w.now = w.now.Add(20 * time.Millisecond)
		}
		w.look()
		a, _, err := w.Look(w.now.Add(interval), Seen{Pool: w.State.pool})
		if err != nil || a == nil || !a.Priced {
			t.Fatalf("family %q: got %+v, %v", family, a, err)
		}
		return a.Limit
	}
	alone, together := limit(""), limit("f")
	if math.Abs(alone-125) > 10 || math.Abs(together-500) > 40 {
		t.Errorf("limits are %v and %v queries/s, want 125 by m alone and 500 by n", alone,
			together)
	}
}

// TestBesideOthers: what a model takes beside others is told as a doubtful multiple of what it
// takes alone, then as it was measured; a new leader does not take it for what it takes alone.
func TestBesideOthers(t *testing.T) {
	alone := member("a", "x", "", m)
	shared := member("b", names.LaneType("x").Beside("n"), "", m)
	shared.Models[0].Profile.InstanceType, shared.Models[0].Profile.Beside = "x", "n"
	w := newWorld(t, 1)
	w.book.SetSlowdowns(profiles.Slowdowns{"m": {"n": 1.5}})
	w.are(alone)
	runs := func(on *leader.Member, queries int, factor float64) {
		for i := range queries {
			w.runs(on, m, 1+i%100, w.latency(1+i%100, factor))
			w.look()
			w.now = w.now.Add(10 * time.Millisecond)
		}
	}
	key := names.TableKey{Model: m.Key(), Type: shared.Type}
	told := func(what string, doubtful bool, factor float64) {
		t.Helper()
		l := w.advised[key]
		if l == nil || l.Doubtful != doubtful || math.Abs(float64(l.Profile.Mean(50))/
			(factor*float64(linear(50)))-1) > 0.07 {
			t.Fatalf("%s: it is not told as %v times as long, doubtful %v", what, factor, doubtful)
		}
	}
	runs(alone, 300, 1)
	w.are(alone, shared)
	w.look()
	told("before any query", true, 1.5)
	runs(shared, 300, 1.2)
	told("after queries", false, 1.2)

	next := newWorld(t, 1)
	next.Suggest(nil, []leader.Latency{{TableKey: key, Told: w.advised[key].Told}})
	if keys := next.book.Keys(); len(keys) > 0 {
		t.Errorf("a leader begins %v from what is known beside others", keys)
	}
}

// TestParts: what a member's lanes of one part hold is told of their type only, and counts for them
// alone in the limit.
func TestParts(t *testing.T) {
	a := member("a", "x", "", m, n)
	a.Lanes = 2
	a.Parts = []leader.PartitionLanes{
		{Lanes: 1, Type: "x+n", OwnType: "x+n@a", Models: []leader.ModelID{m}},
		{First: 1, Lanes: 1, Type: "x+m", OwnType: "x+m@a", Models: []leader.ModelID{n}},
	}
	w := newWorld(t, 1)
	w.are(a)
	for range 300 {
		w.runs(a, m, 10, 10*time.Millisecond)
		w.runs(a, n, 10, 5*time.Millisecond)
		w.arrives(m, 10)
		w.arrives(n, 10)
		w.now = w.now.Add(20 * time.Millisecond)
		w.look()
	}
	told := slices.SortedFunc(maps.Keys(w.advised), names.TableKey.Compare)
	want := []names.TableKey{{Model: m.Key(), Type: "x+n"}, {Model: n.Key(), Type: "x+m"}}
	if !slices.Equal(told, want) {
		t.Errorf("is told of %v, want of %v", told, want)
	}
	a.Parts = slices.Clone(a.Parts)
	w.are(a)
	w.now = w.now.Add(interval)
	w.look()
	if l := w.last.Limit; math.Abs(l-200) > 15 { // 100/s of m, and as many of n
		t.Errorf("the limit is %v queries/s, want 200", l)
	}
	w.are()
	w.now = w.now.Add(keepGone)
	w.look()
	w.forget()
	w.now = w.now.Add(keepGone)
	w.forget()
	if len(w.told) > 0 {
		t.Errorf("%d types are still known", len(w.told))
	}
}

// TestUntried: where what runs on a type takes longer than known before, so do in what is told the
// models there of which no query has run; also by the next leader, and until they run.
func TestUntried(t *testing.T) {
	w := newWorld(t, 1)
	a, b := member("a", "x", "", m, n), member("b", "y", "", n)
	begin := func(w *world) {
		for _, x := range []*leader.Member{a, b} {
			for i := range x.Models {
				key := x.Models[i].Profile
				table, err := profiles.NewTable(key, profiles.Measured, "", []profiles.Knot{
					{BatchSize: 1, Mean: linear(1), P50: linear(1), P90: linear(1), P99: linear(1)},
					{BatchSize: 100, Mean: linear(100), P50: linear(100), P90: linear(100),
						P99: linear(100)},
				})
				if err != nil {
					t.Fatal(err)
				}
				w.book.Begin(key, table)
			}
		}
	}
	begin(w)
	w.are(a, b)
	w.look()
	told := func(w *world, id leader.ModelID, typ names.LaneType, want float64) {
		t.Helper()
		l := w.advised[names.TableKey{Model: id.Key(), Type: typ}]
		if l == nil {
			t.Fatalf("nothing is told of %v on %s", id, typ)
		}
		if got := float64(l.Profile.Mean(50)) / float64(linear(50)); math.Abs(got/want-1) > .07 {
			t.Errorf("%v on %s is told to take %.3f times as long, want %v", id, typ, got, want)
		}
	}
	told(w, n, "x", 1)
	run := func(w *world, id leader.ModelID, factor float64) {
		for i := range 300 {
			w.runs(a, id, 1+i%100, w.latency(1+i%100, factor))
			w.now = w.now.Add(10 * time.Millisecond)
		}
		w.look()
	}
	run(w, m, 1.5)
	told(w, m, "x", 1.5)
	told(w, n, "x", 1.37) // one model of another family has shown it
	told(w, n, "y", 1)

	next := newWorld(t, 2)
	var all []leader.Latency
	for _, l := range w.advised {
		all = append(all, *l)
	}
	next.Suggest([]*leader.Member{a, b}, all)
	next.are(a, b)
	next.look()
	told(next, n, "x", 1.37)
	told(next, n, "y", 1)

	run(w, n, 1.1)
	told(w, n, "x", 1.1)
}
