package match

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/muster-serve/muster/api/names"
)

// A changingFleet is a matcher without queries, whose lanes, models and profiles change.
type changingFleet struct {
	t   *rapid.T
	m   *Matcher
	cfg Config
	now time.Duration

	next     LaneID
	models   map[names.ModelKey]Event // the last ModelChanged of each
	profiles map[names.TableKey]*LatencyTable
}

func (f *changingFleet) step(m *Matcher, e Event) {
	f.t.Helper()
	text := AppendEvent(nil, f.now, &e)
	_, read, err := ParseEvent(text)
	if err != nil || read.More != e.More {
		f.t.Fatalf("%s is read as %+v, %v", text, read, err)
	}
	if _, _, err := m.Step(time.Unix(0, 0).Add(f.now), &e); err != nil {
		f.t.Fatalf("%s: %v", AppendEvent(nil, f.now, &e), err)
	}
}

func (f *changingFleet) held() []names.ModelKey {
	// few sets of few models, so that sets are shared and components are several
	first := rapid.IntRange(0, len(f.models)-1).Draw(f.t, "first")
	n := rapid.SampledFrom([]int{0, 1, 1, 1, 2, 2, 3}).Draw(f.t, "held")
	all := slices.Sorted(maps.Keys(f.models))
	return all[first:min(len(all), first+n)]
}

// change has something happen.
func (f *changingFleet) change(types []names.LaneType, mostJoin int) {
	t := f.t
	lane := func() *lane {
		if len(f.m.all) == 0 {
			return nil
		}
		return f.m.all[rapid.IntRange(0, len(f.m.all)-1).Draw(t, "lane")]
	}
	typ := func() names.LaneType { return rapid.SampledFrom(types).Draw(t, "type") }
	l := lane()
	what := rapid.IntRange(0, 19).Draw(t, "what")
	switch {
	case what < mostJoin || l == nil:
		f.next++
		f.step(f.m, Event{Kind: LaneJoined, Lane: f.next, Type: typ(), Models: f.held()})
	case what < 12:
		f.step(f.m, Event{Kind: LaneLost, Lane: l.id})
	case what == 12:
		f.step(f.m, Event{Kind: LaneDraining, Lane: l.id})
	case what == 13:
		f.m.askOverdueLane(l, f.m.now)
	case what == 14:
		f.step(f.m, Event{Kind: Completed, Lane: l.id})
	case what == 15:
		f.step(f.m, Event{Kind: LaneModels, Lane: l.id, Type: typ(), Models: f.held()})
	case what == 16:
		f.step(f.m, Event{
			Kind: LaneEnds, Lane: l.id,
			Remaining: rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(t, "ends"),
		})
	case what == 17:
		all := slices.Sorted(maps.Keys(f.models))
		e := f.models[rapid.SampledFrom(all).Draw(t, "model")]
		e.Family = rapid.SampledFrom([]names.ModelKey{"", "f0", "f1"}).Draw(t, "family")
		e.QoSTarget = rapid.SampledFrom([]time.Duration{
			5 * time.Millisecond, time.Second,
		}).Draw(t, "target")
		f.models[e.Model] = e
		f.step(f.m, e)
	default:
		all := slices.Sorted(maps.Keys(f.models))
		key := names.TableKey{
			Model: rapid.SampledFrom(all).Draw(t, "model"), Type: typ(),
		}
		var table *LatencyTable
		if speed := rapid.IntRange(0, 4).Draw(t, "speed"); speed > 0 {
			var err error
			if table, err = NewTable(stairs{1000 * speed, 1000 * speed}, 100); err != nil {
				t.Fatal(err)
			}
		}
		f.profiles[key] = table
		f.step(f.m, Event{
			Kind: ProfileChanged, Model: key.Model, Type: key.Type, Table: table,
			More: rapid.Bool().Draw(t, "more"),
		})
	}
}

// anew is a matcher that learns at once all that the fleet is now, and deals the lanes at last.
func (f *changingFleet) anew() *Matcher {
	m, err := New(f.cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(f.models)) {
		f.step(m, f.models[name])
	}
	for _, l := range f.m.all {
		e := Event{Kind: LaneJoined, Lane: l.id, Type: l.typ.name}
		for i, holds := range l.holds {
			if holds {
				e.Models = append(e.Models, f.m.models[i].Name)
			}
		}
		f.step(m, e)
		if !math.IsInf(l.ends, 1) {
			f.step(m, Event{
				Kind: LaneEnds, Lane: l.id, Remaining: fromMs(l.ends - f.m.now),
			})
		}
		if !l.isUsable() {
			f.step(m, Event{Kind: LaneDraining, Lane: l.id})
		}
	}
	for key, table := range f.profiles {
		f.step(m, Event{
			Kind: ProfileChanged, Model: key.Model, Type: key.Type, Table: table, More: true,
		})
	}
	f.step(m, Event{Kind: TimePassed})
	m.dealAnew()
	m.applyChanges()
	return m
}

// uneven says what is wrong with how the lanes are dealt to shards; "" if nothing is.
func uneven(m *Matcher) string {
	lanes := map[*lane]*shard{}
	for i, s := range m.shards {
		usable, holders := 0, make([]int32, len(m.models))
		for _, l := range s.lanes {
			if lanes[l] != nil || l.shard != s || m.lanes[l.id] != l {
				return fmt.Sprintf("lane %d is in shard %d too", l.id, i)
			}
			lanes[l] = s
			if l.isUsable() {
				usable++
				for _, i := range l.set.models {
					holders[i]++
				}
			}
			if !slices.Contains(l.set.component.shards, s) {
				return fmt.Sprintf("lane %d is in a shard that is not its component's", l.id)
			}
		}
		if n := len(s.holders); n > len(holders) || !slices.Equal(holders[:n], s.holders) ||
			slices.ContainsFunc(holders[n:], func(n int32) bool { return n > 0 }) {
			return fmt.Sprintf("shard %d: by model, %v lanes, want %v", i, s.holders, holders)
		}
		if usable != s.usable {
			return fmt.Sprintf("shard %d: %d usable lanes, want %d", i, s.usable, usable)
		}
		if s.index != i || s.unsorted {
			return fmt.Sprintf("shard %d: index %d, unsorted %v", i, s.index, s.unsorted)
		}
		sorted := slices.Clone(s.lanes)
		s.sortLanes()
		if !slices.Equal(sorted, s.lanes) {
			return fmt.Sprintf("the lanes of shard %d are not in order", i)
		}
	}
	if len(lanes) != len(m.all) {
		return fmt.Sprintf("%d of %d lanes are in shards", len(lanes), len(m.all))
	}
	if n := m.shardsWanted(); n != len(m.shards) {
		return fmt.Sprintf("%d lanes are in %d shards, want %d", len(m.all), len(m.shards), n)
	}
	of := map[names.ModelKey]*component{}
	for _, l := range m.all {
		for _, i := range l.set.models {
			family := cmp.Or(m.models[i].Family, m.models[i].Name)
			if p := of[family]; p != nil && p != l.set.component && len(m.shards) > 1 {
				return fmt.Sprintf("family %s is in two components", family)
			}
			of[family] = l.set.component
		}
	}
	fullest := slices.MaxFunc(m.shards,
		func(a, b *shard) int { return len(a.lanes) - len(b.lanes) })
	emptiest := slices.MinFunc(m.shards,
		func(a, b *shard) int { return len(a.lanes) - len(b.lanes) })
	gap := len(fullest.lanes) - len(emptiest.lanes)
	for k, p := range m.components {
		if m.needsReshard(p) {
			return fmt.Sprintf("component %d has %d lanes in %d shards", k, p.lanes, len(p.shards))
		}
		if gap > max(1, m.cfg.ShardLanes/2) && p.lanes < gap && slices.Equal(p.shards,
			[]*shard{fullest}) {
			return fmt.Sprintf("component %d of %d lanes is in the fullest shard, of %d; one has %d",
				k, p.lanes, len(fullest.lanes), len(emptiest.lanes))
		}
		counts := map[any][]int{}
		for i, s := range p.shards {
			for _, l := range s.lanes {
				if l.set.component != p {
					continue
				}
				for _, kind := range []any{"lanes", l.typ, l.class} {
					if counts[kind] == nil {
						counts[kind] = make([]int, len(p.shards))
					}
					counts[kind][i]++
				}
			}
		}
		for kind, n := range counts {
			if slices.Max(n)-slices.Min(n) > 1 {
				return fmt.Sprintf("component %d has %v of %v", k, n, kind)
			}
		}
	}
	return ""
}

func largestShard(m *Matcher) (n int) {
	for _, s := range m.shards {
		n = max(n, len(s.lanes))
	}
	return n
}

// TestDealing: whatever changes, shards are as even as if all lanes were dealt anew, hardly a lane
// changes its shard, and the facts about types are those that a matcher gets that is told all at
// once. Parts of few lanes may be packed worse than anew, but the largest shard is at most twice as
// large as then.
func TestDealing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{ShardLanes: rapid.SampledFrom([]int{0, 2, 3, 5}).Draw(t, "shard lanes")}
		f := &changingFleet{
			t: t, models: map[names.ModelKey]Event{}, profiles: map[names.TableKey]*LatencyTable{},
		}
		n := rapid.IntRange(1, 9).Draw(t, "models")
		for i := range n {
			m := Model{
				Name: names.ModelKey(fmt.Sprint("m", i)), QoSTarget: 50 * time.Millisecond,
				LargestBatchSize: 100,
			}
			cfg.Models = append(cfg.Models, m)
			f.models[m.Name] = Event{
				Kind: ModelChanged, Model: m.Name, QoSTarget: m.QoSTarget, BatchSize: 100,
			}
		}
		m, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		f.m, f.cfg = m, cfg
		types := []names.LaneType{"a", "b", "c"}
		mostJoin := rapid.IntRange(4, 11).Draw(t, "joins")
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			f.now += time.Millisecond
			before, shards := map[*lane]*shard{}, len(f.m.shards)
			for _, l := range f.m.all {
				before[l] = l.shard
			}
			components := slices.Clone(f.m.components)
			f.change(types, mostJoin)
			if f.m.pending {
				continue // with the next
			}
			if fault := uneven(f.m); fault != "" {
				t.Fatal(fault)
			}
			moved := 0
			for _, l := range f.m.all {
				if was := before[l]; was != nil && was != l.shard {
					moved++
				}
			}
			if shards == len(f.m.shards) && slices.Equal(components, f.m.components) && moved > 7 &&
				len(f.m.components) == 1 {
				t.Fatalf("%d of %d lanes have other shards", moved, len(f.m.all))
			}
		}
		f.step(f.m, Event{Kind: TimePassed})
		anew := f.anew()
		if fault := uneven(anew); fault != "" {
			t.Fatalf("anew: %s", fault)
		}
		if len(anew.shards) == len(f.m.shards) && largestShard(f.m) > 2*largestShard(anew) {
			t.Fatalf("the largest shard has %d lanes, anew %d", largestShard(f.m),
				largestShard(anew))
		}
		for _, was := range f.m.types {
			is := anew.typeByName[was.name]
			if is == nil {
				t.Fatalf("type %s is not forgotten", was.name)
			}
			if is.base != was.base || is.slowness != was.slowness || is.all != was.all ||
				is.known != was.known {
				t.Fatalf("type %s is %+v, anew %+v", was.name, was, is)
			}
			for name := range f.models {
				i, k := f.m.byName[name], anew.byName[name]
				if was.lanes[i] != is.lanes[k] || was.served[i] != is.served[k] ||
					was.coefficient[i] != is.coefficient[k] {
					t.Fatalf("model %s on type %s: %d lanes, C %v; anew %d, %v", name, was.name,
						was.lanes[i], was.coefficient[i], is.lanes[k], is.coefficient[k])
				}
			}
		}
		order := func(m *Matcher) (all []names.LaneType) {
			types := slices.Clone(m.types)
			slices.SortFunc(types, func(a, b *instanceType) int { return a.rank - b.rank })
			for _, t := range types {
				all = append(all, t.name)
			}
			return all
		}
		if was, is := order(f.m), order(anew); !slices.Equal(was, is) {
			t.Fatalf("the types are ranked %v, anew %v", was, is)
		}
	})
}

// TestDrawEvenly: the shards that hold a model are drawn alike for its queries, wherever among the
// shards they are. A shard behind many that do not hold it would else get their share, too.
func TestDrawEvenly(t *testing.T) {
	m, err := New(Config{ShardLanes: 3, Models: []Model{
		{Name: "a", QoSTarget: time.Second, LargestBatchSize: 10},
		{Name: "b", QoSTarget: time.Second, LargestBatchSize: 10},
	}})
	if err != nil {
		t.Fatal(err)
	}
	step := func(e Event) {
		if _, _, err := m.Step(time.Unix(0, 0), &e); err != nil {
			t.Fatal(err)
		}
	}
	table, err := NewTable(stairs{1000, 0}, 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, model := range []names.ModelKey{"a", "b"} {
		step(Event{Kind: ProfileChanged, Model: model, Type: "x", Table: table})
	}
	for id := LaneID(1); id <= 60; id++ {
		models := []names.ModelKey{"a"}
		if id <= 7 {
			models = append(models, "b")
		}
		step(Event{Kind: LaneJoined, Lane: id, Type: "x", Models: models})
	}
	q := &query{family: m.lookupFamily("b"), batch: 1}
	q.bound = m.computeBound(q)
	drawn := map[*shard]int{}
	const n = 20000
	for range n {
		drawn[m.draw(q)]++
	}
	holders := 0
	for _, s := range m.shards {
		if s.hasLaneFor(q) {
			holders++
		}
	}
	if holders < 5 || holders == len(m.shards) {
		t.Fatalf("%d of %d shards hold the model", holders, len(m.shards))
	}
	for s, times := range drawn {
		if share := float64(times) * float64(holders) / n; share < 0.75 || share > 1.35 {
			t.Errorf("shard %d of %d is drawn %.2f times as often as others", s.index, len(m.shards),
				share)
		}
	}
}
