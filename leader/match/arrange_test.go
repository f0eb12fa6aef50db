package match

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// crowd is a matcher that knows the profiles of four types, with queries waiting for lanes.
func crowd(tb testing.TB, policy string, waiting int) *Matcher {
	tb.Helper()
	m, err := New(Config{Policy: policy, Models: []Model{
		{Name: "a", QoSTarget: 25 * time.Millisecond, LargestBatchSize: 1000},
		{Name: "b", QoSTarget: 25 * time.Millisecond, LargestBatchSize: 1000},
	}})
	if err != nil {
		tb.Fatal(err)
	}
	for typ := range 4 {
		tab, err := NewTable(stairs{2000 + 1000*typ, 200 + 100*typ}, 1000)
		if err != nil {
			tb.Fatal(err)
		}
		for _, model := range []string{"a", "b"} {
			mustStep(tb, m, 0, Event{
				Kind: ProfileChanged, Model: names.ModelKey(model),
				Type: names.LaneType(fmt.Sprint("type", typ)), Table: tab,
			})
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range waiting {
		mustStep(tb, m, 0, Event{
			Kind: Submitted, Query: QueryID{1, uint64(i)}, Model: "a", BatchSize: 1 + r.IntN(1000),
			TimeLeft: time.Minute,
		})
	}
	return m
}

// joins has lanes join that are busy, so that nothing is decided.
func joins(tb testing.TB, m *Matcher, n int) {
	for i := range n {
		mustStep(tb, m, 0, Event{
			Kind: LaneJoined, Lane: LaneID(i), Type: names.LaneType(fmt.Sprint("type", i%4)),
			Models:    []names.ModelKey{"a"},
			Remaining: time.Hour,
		})
	}
}

// TestArrangeLeavesRowsAlone counts how often waiting queries are entered again: when the pool
// can do more or less for them than before, or their shard has changed, and not on every
// change of the pool.
func TestArrangeLeavesRowsAlone(t *testing.T) {
	const waiting = 1000
	for _, policy := range []string{"horizon", "kairos", "fcfs"} {
		m := crowd(t, policy, waiting)
		since := func() (n int) {
			n, m.reentered = m.reentered, 0
			return n
		}
		expect := func(what string, most int) {
			t.Helper()
			if n := since(); n > most {
				t.Errorf("%s: %s: %d queries entered again, want at most %d", policy, what, n, most)
			}
			if all, _ := m.Waiting(); all != waiting {
				t.Errorf("%s: %s: %d wait, want %d", policy, what, all, waiting)
			}
		}
		joins(t, m, 4)
		expect("the first of each type", 3*waiting)
		for i := 4; i < 16; i++ {
			mustStep(t, m, 0, Event{
				Kind: LaneJoined, Lane: LaneID(i), Type: names.LaneType(fmt.Sprint("type", i%4)),
				Models: []names.ModelKey{"a"}, Remaining: time.Hour,
			})
		}
		expect("more of the same types", 0)
		mustStep(t, m, 0, Event{
			Kind: LaneJoined, Lane: 16, Type: "type0", Models: []names.ModelKey{"b"},
			Remaining: time.Hour,
		})
		expect("a lane of another model", 0)
		mustStep(t, m, 0, Event{
			Kind: LaneHas, Lane: 5, Remaining: time.Hour, Holds: []Held{
				{Query: QueryID{9, 9}, Attempt: 1, Model: "a", BatchSize: 1},
			},
		})
		m.askOverdueLane(m.lanes[5], m.now)
		if _, asked := m.Load(5); asked == 0 {
			t.Errorf("%s: the lane is not overdue", policy)
		}
		mustStep(t, m, 0, Event{Kind: Completed, Lane: 5, Remaining: time.Hour})
		mustStep(t, m, 0, Event{Kind: LaneDraining, Lane: 6})
		mustStep(t, m, 0, Event{Kind: LaneLost, Lane: 6})
		expect("one of several lanes overdue, back and lost", 0)
		other, err := NewTable(stairs{1900, 190}, 1000)
		if err != nil {
			t.Fatal(err)
		}
		mustStep(t, m, 0, Event{Kind: ProfileChanged, Model: "b", Type: "type0", Table: other})
		expect("a profile of another model", 0)
		for _, lane := range []LaneID{0, 4, 8} {
			mustStep(t, m, 0, Event{Kind: LaneLost, Lane: lane})
		}
		expect("all but one of the fastest", 0)
		mustStep(t, m, 0, Event{Kind: LaneLost, Lane: 12})
		if n := since(); n != waiting {
			t.Errorf("%s: the last of the fastest is lost: %d queries entered again, want all %d",
				policy, n, waiting)
		}
	}
}

// BenchmarkArrange times 100 joins while 10,000 queries wait.
func BenchmarkArrange(b *testing.B) {
	var reentered int
	for b.Loop() {
		b.StopTimer()
		m := crowd(b, "horizon", 10_000)
		m.reentered = 0
		b.StartTimer()
		joins(b, m, 100)
		reentered += m.reentered
	}
	b.ReportMetric(float64(reentered)/float64(b.N), "re-entries/op")
}
