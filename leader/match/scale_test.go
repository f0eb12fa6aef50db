package match

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// The fleet of the benchmarks at scale.
const (
	scaleTypes, scaleModels, scaleSets, scaleHeld = 10, 200, 400, 10
	scaleLanes                                    = 2000
)

func scaleType(i int) names.LaneType { return names.LaneType(fmt.Sprintf("type%d", i%scaleTypes)) }

func scaleModel(i int) names.ModelKey { return names.ModelKey(fmt.Sprintf("model%03d", i)) }

// scaleSet is the i-th set of models that lanes hold.
func scaleSet(i int) (all []names.ModelKey) {
	r := rand.New(rand.NewPCG(uint64(i%scaleSets), 3))
	for _, model := range r.Perm(scaleModels)[:scaleHeld] {
		all = append(all, scaleModel(model))
	}
	slices.Sort(all)
	return all
}

func scaleTable(tb testing.TB, model, typ int) *LatencyTable {
	tab, err := NewTable(stairs{1000 + 20*model + 500*typ, 100 + 50*typ}, 200)
	if err != nil {
		tb.Fatal(err)
	}
	return tab
}

// scaleFleet is a matcher with many lanes, of several types, that hold many sets of models.
func scaleFleet(tb testing.TB, lanes int) *Matcher {
	tb.Helper()
	cfg := Config{}
	for i := range scaleModels {
		cfg.Models = append(cfg.Models, Model{
			Name: scaleModel(i), QoSTarget: 100 * time.Millisecond, LargestBatchSize: 200,
		})
	}
	m, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	for model := range scaleModels {
		for typ := range scaleTypes {
			mustStep(tb, m, 0, Event{
				Kind: ProfileChanged, Model: scaleModel(model), Type: scaleType(typ),
				Table: scaleTable(tb, model, typ),
			})
		}
	}
	for i := range lanes {
		mustStep(tb, m, 0, scaleJoin(i))
	}
	return m
}

// scaleJoin is the event with which the i-th lane joins.
func scaleJoin(i int) Event {
	return Event{
		Kind: LaneJoined, Lane: LaneID(i + 1), Type: scaleType(i / 7), Models: scaleSet(i),
	}
}

// TestChangesCostWhatChanges: a change of one lane costs a few looks at each shard and one at each
// set, and one at each query that may have to wait elsewhere: far less than to go through the
// lanes and their sets. A told profile costs the queries of its model.
func TestChangesCostWhatChanges(t *testing.T) {
	m := scaleFleet(t, scaleLanes)
	for _, l := range m.all {
		mustStep(t, m, 0, Event{Kind: LaneRemaining, Lane: l.id, Remaining: time.Hour})
	}
	for i := range 2000 {
		mustStep(t, m, 0, Event{
			Kind: Submitted, Query: QueryID{1, uint64(i)}, Model: scaleModel(i % scaleModels),
			BatchSize: 1 + i%200,
		})
	}
	r := rand.New(rand.NewPCG(1, 2))
	most := 10*len(m.shards) + len(m.sets) + 100
	m.visited = 0
	next := scaleLanes
	for range 200 {
		l := m.all[r.IntN(len(m.all))]
		next++
		for _, e := range []Event{
			{Kind: LaneModels, Lane: l.id, Models: scaleSet(r.IntN(1e6))},
			{Kind: LaneEnds, Lane: l.id, Remaining: time.Hour},
			{Kind: LaneDraining, Lane: l.id},
			{Kind: LaneLost, Lane: l.id},
			scaleJoin(next),
			{
				Kind: ProfileChanged, Model: scaleModel(next % scaleModels), Type: scaleType(next),
				Table: scaleTable(t, r.IntN(scaleModels), next%scaleTypes),
			},
		} {
			mustStep(t, m, 0, e)
			if m.visited > most {
				t.Errorf("%s: %d looks at lanes, sets, shards and queries, want at most %d",
					AppendEvent(nil, 0, &e), m.visited, most)
			}
			m.visited = 0
		}
	}
}

// TestRareModel: a query for a model that one lane holds costs one look at each shard, not at each
// lane.
func TestRareModel(t *testing.T) {
	m := scaleFleet(t, scaleLanes)
	mustStep(t, m, 0, Event{
		Kind: ModelChanged, Model: "rare", QoSTarget: time.Second, BatchSize: 200,
	})
	mustStep(t, m, 0, Event{
		Kind: ProfileChanged, Model: "rare", Type: "type0", Table: scaleTable(t, 0, 0),
	})
	mustStep(t, m, 0, Event{
		Kind: LaneJoined, Lane: 1e6, Type: "type0", Models: []names.ModelKey{"rare"},
	})
	m.visited = 0
	all := mustStep(t, m, 0, Event{
		Kind: Submitted, Query: QueryID{1, 1}, Model: "rare", BatchSize: 1,
	})
	if len(all) != 1 || all[0].Action != Assign || all[0].Lane != 1e6 {
		t.Errorf("got %+v, want the query assigned to the only lane", all)
	}
	if most := 2*len(m.shards) + 100; m.visited > most {
		t.Errorf("%d looks at shards and lanes, want at most %d", m.visited, most)
	}
}

// TestProfilesTogether: profiles that are told together are taken in once.
func TestProfilesTogether(t *testing.T) {
	m := crowd(t, "horizon", 1000)
	joins(t, m, 16)
	m.reentered = 0
	for typ := range 4 {
		for percent := range 5 {
			tab, err := NewTable(stairs{2100 + 1000*typ + percent, 200 + 100*typ}, 1000)
			if err != nil {
				t.Fatal(err)
			}
			mustStep(t, m, 0, Event{
				Kind: ProfileChanged, Model: "a", Type: names.LaneType(fmt.Sprint("type", typ)),
				Table: tab, More: typ < 3 || percent < 4,
			})
		}
	}
	if m.reentered != 1000 {
		t.Errorf("%d queries entered again, want each of 1000 once", m.reentered)
	}
	// A change that is to have more with it is taken in with whatever comes next.
	mustStep(t, m, 0, Event{Kind: ProfileChanged, Model: "a", Type: "type0", More: true})
	mustStep(t, m, 0, Event{Kind: TimePassed})
	if m.reentered != 2000 {
		t.Errorf("%d queries entered again, want each of 1000 once more", m.reentered-1000)
	}
}

// BenchmarkChange times what changes one lane, or what is known of a type, of 2,000 lanes that hold
// 400 sets of 200 models, while 2,000 queries wait for lanes that are busy.
func BenchmarkChange(b *testing.B) {
	m := scaleFleet(b, scaleLanes)
	for _, l := range m.all {
		mustStep(b, m, 0, Event{Kind: LaneRemaining, Lane: l.id, Remaining: time.Hour})
	}
	for i := range 2000 {
		mustStep(b, m, 0, Event{
			Kind: Submitted, Query: QueryID{1, uint64(i)}, Model: scaleModel(i % scaleModels),
			BatchSize: 1 + i%200,
		})
	}
	r := rand.New(rand.NewPCG(1, 2))
	drawn := func() LaneID { return m.all[r.IntN(len(m.all))].id }
	next := scaleLanes
	join := func() {
		e := scaleJoin(next)
		e.Remaining = time.Hour
		mustStep(b, m, 0, e)
		next++
	}
	lose := func() { mustStep(b, m, 0, Event{Kind: LaneLost, Lane: drawn()}) }
	measure := func(name string, prepare, change func()) {
		b.Run(name, func(b *testing.B) {
			var times []time.Duration
			for b.Loop() {
				b.StopTimer()
				prepare()
				b.StartTimer()
				start := time.Now()
				change()
				times = append(times, time.Since(start))
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2])/1e3, "p50-us")
			b.ReportMetric(float64(times[len(times)*99/100])/1e3, "p99-us")
			b.ReportMetric(float64(times[len(times)-1])/1e3, "max-us")
		})
	}
	measure("join", lose, join)
	measure("loss", join, lose)
	measure("drain", func() { join(); lose() }, func() {
		mustStep(b, m, 0, Event{Kind: LaneDraining, Lane: drawn()})
	})
	for _, l := range slices.Clone(m.all) {
		if l.draining {
			mustStep(b, m, 0, Event{Kind: LaneLost, Lane: l.id})
			join()
		}
	}
	var late *lane
	measure("overdue", func() {
		if late != nil {
			mustStep(b, m, 0, Event{Kind: Completed, Lane: late.id, Remaining: time.Hour})
		}
		late = m.lanes[drawn()]
	}, func() { m.askOverdueLane(late, m.now); mustStep(b, m, 0, Event{}) })
	measure("back", func() {
		late = m.lanes[drawn()]
		m.askOverdueLane(late, m.now)
	}, func() {
		mustStep(b, m, 0, Event{Kind: Completed, Lane: late.id, Remaining: time.Hour})
	})
	measure("models", func() {}, func() {
		mustStep(b, m, 0, Event{Kind: LaneModels, Lane: drawn(), Models: scaleSet(r.IntN(1e6))})
	})
	measure("ends", func() {}, func() {
		mustStep(b, m, 0, Event{Kind: LaneEnds, Lane: drawn(), Remaining: time.Hour})
	})
	measure("profile", func() {}, func() {
		model, typ := r.IntN(scaleModels), r.IntN(scaleTypes)
		mustStep(b, m, 0, Event{
			Kind: ProfileChanged, Model: scaleModel(model), Type: scaleType(typ),
			Table: scaleTable(b, model+r.IntN(3), typ),
		})
	})
}

// TestByShare: the heap gives the queries in the order in which they would be found by a look at
// all classes before each.
func TestByShare(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		s := &shard{}
		var demands []*shardDemand
		for range 1 + r.IntN(5) {
			size := float64(20 + r.IntN(30))
			demands = append(demands, &shardDemand{
				arrivals: size, lost: float64(r.IntN(10)), alone: 1 - float64(r.IntN(2))/2,
			})
		}
		for range 1 + r.IntN(8) {
			k := &queryClass{demand: demands[r.IntN(len(demands))]}
			for range r.IntN(6) {
				q := &query{id: QueryID{1, r.Uint64()}, arrival: float64(r.IntN(20)), class: k}
				k.live.InsertSorted(q, &q.inClass, byArrival)
			}
			s.classes = append(s.classes, k)
		}
		most := 1 + r.IntN(6)
		var want []*query
		next, looked := map[*queryClass]*query{}, map[*queryClass]int{}
		for _, k := range s.classes {
			next[k] = k.live.First()
		}
		for {
			byFamily, best, share := map[*shardDemand]int{}, (*queryClass)(nil), 0.0
			for k, n := range looked {
				byFamily[k.demand] += n
			}
			for _, k := range s.classes {
				after := k.demand.shareAfter(byFamily[k.demand])
				if next[k] != nil && looked[k] < most && (best == nil || after < share ||
					after == share && byArrival(next[k], next[best]) < 0) {
					best, share = k, after
				}
			}
			if best == nil {
				break
			}
			want = append(want, next[best])
			next[best] = next[best].inClass.Next()
			looked[best]++
		}
		if got := slices.Collect(s.byShare(most, nil)); !slices.Equal(got, want) {
			t.Fatalf("got %d queries %v, want %d %v", len(got), got, len(want), want)
		}
	}
}
