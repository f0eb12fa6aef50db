package match

import (
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
)

// A model that is overloaded does not keep another's queries from that one's idle lane.
func TestZApartNotStarved(t *testing.T) {
	for _, policy := range Policies() {
		for _, late := range []bool{false, true} {
			m, err := New(Config{Policy: policy, Models: []Model{
				{Name: "a", QoSTarget: time.Second, LargestBatchSize: 100},
				{Name: "b", QoSTarget: 50 * time.Millisecond, LargestBatchSize: 100},
			}})
			if err != nil {
				t.Fatal(err)
			}
			for _, model := range []names.ModelKey{"a", "b"} {
				mustStep(t, m, 0, Event{Kind: ProfileChanged, Model: model, Type: "t", Table: tableOf(2500, 2500)})
			}
			mustStep(t, m, 0, Event{Kind: LaneJoined, Lane: 1, Type: "t", Models: []names.ModelKey{"a"}})
			mustStep(t, m, 0, Event{Kind: LaneJoined, Lane: 2, Type: "t", Models: []names.ModelKey{"b"}})
			for i := range 100 {
				mustStep(t, m, 0, Event{Kind: Submitted, Query: QueryID{1, uint64(4 * i)}, Model: "a", BatchSize: 10})
			}
			e := Event{Kind: Submitted, Query: QueryID{2, 4}, Model: "b", BatchSize: 10}
			if late {
				e.Waited = 60 * time.Millisecond
			}
			got := false
			for _, d := range mustStep(t, m, time.Millisecond, e) {
				got = got || d.Action == Assign && d.Lane == 2
			}
			if !got {
				t.Errorf("%s, late %v: not assigned to the idle lane", policy, late)
			}
		}
	}
}

func TestZPricedLateLast(t *testing.T) {
	p, err := NewPriced([]Model{{Name: "m", QoSTarget: 100 * time.Millisecond, LargestBatchSize: 100}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, typ := range []names.LaneType{"dear", "cheap"} {
		if err := p.SetProfile("m", typ, tableOf(20000, 10000)); err != nil {
			t.Fatal(err)
		}
	}
	p.SetPrices([]fluid.Price{{Type: "dear", PerMs: 1}, {Type: "cheap", PerMs: .01}})
	p.Join(1, "dear", []names.ModelKey{"m"})
	p.Join(2, "cheap", []names.ModelKey{"m"})
	p.Heard(2, epoch, 200*time.Millisecond)
	if got := p.Rank(epoch, &Inquiry{Model: "m", BatchSize: 50}, 0, 2); got[0].Lane != 1 {
		t.Errorf("got %+v", got)
	}
}

type falling struct{}

func (falling) Mean(b int) time.Duration { return time.Duration(1000003 - b*b*b) }
func (l falling) Quantile(_ float64, b int) time.Duration { return l.Mean(b) + 7 }

func TestZTableExact(t *testing.T) {
	tab, err := NewTable(falling{}, 10)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseTable(string(tab.Append([]byte("=")))[1:])
	if err != nil {
		t.Fatal(err)
	}
	for b := range tab.mean {
		if got.mean[b] != tab.mean[b] || got.safe[b] != tab.safe[b] || got.tail[b] != tab.tail[b] {
			t.Fatalf("%d: %v %v", b, got.mean[b], tab.mean[b])
		}
	}
}

func TestZSplitTargets(t *testing.T) {
	f := newFixture(t, "horizon", 1, .99)
	f.step(Event{Kind: ModelChanged, Model: "m1", Family: "f", Accuracy: .99, BatchSize: 100,
		QoSTarget: 10 * time.Millisecond, Splits: true, RejectLate: true})
	// m0 is only on a lane that is busy for long
	f.profile(0, "base", 20)
	f.step(Event{Kind: ProfileChanged, Model: "m1", Type: "a", Table: tableOf(5000, 25000)})
	f.step(Event{Kind: LaneJoined, Lane: 1, Type: "base", Models: []names.ModelKey{"m0"}, Remaining: time.Hour})
	f.step(Event{Kind: LaneJoined, Lane: 2, Type: "a", Models: []names.ModelKey{"m1"}})
	f.step(Event{Kind: LaneJoined, Lane: 3, Type: "a", Models: []names.ModelKey{"m1"}})
	out := f.step(Event{Kind: Submitted, Query: QueryID{1, 4}, Model: "f", BatchSize: 100, Splits: true, Waited: 50 * time.Millisecond})
	for i := range out {
		t.Log(string(AppendDecision(nil, &out[i])))
	}
}

func TestZEnds(t *testing.T) {
	for _, policy := range Policies() {
		m, err := New(Config{Policy: policy, Models: []Model{
			{Name: "a", QoSTarget: time.Second, LargestBatchSize: 100},
		}})
		if err != nil {
			t.Fatal(err)
		}
		mustStep(t, m, 0, Event{Kind: ProfileChanged, Model: "a", Type: "t", Table: tableOf(2500, 2500)})
		mustStep(t, m, 0, Event{Kind: LaneJoined, Lane: 1, Type: "t", Models: []names.ModelKey{"a"}})
		mustStep(t, m, 0, Event{Kind: LaneJoined, Lane: 2, Type: "t", Models: []names.ModelKey{"a"}})
		mustStep(t, m, 0, Event{Kind: LaneEnds, Lane: 1, Remaining: time.Millisecond})
		n := 0
		for i := range 4 {
			for _, d := range mustStep(t, m, 0, Event{Kind: Submitted, Query: QueryID{1, uint64(4 * i)}, Model: "a", BatchSize: 10}) {
				if d.Action == Assign {
					n++
				}
			}
		}
		for i := range 60 {
			at := time.Duration(i+1) * 10 * time.Millisecond
			if l := m.lanes[2]; len(l.held) > 0 {
				h := l.held[0]
				for _, d := range mustStep(t, m, at, Event{Kind: Completed, Lane: 2, Query: h.query, Attempt: h.attempt}) {
					if d.Action == Assign {
						n++
					}
				}
			}
		}
		if n != 4 {
			t.Errorf("%s: %d of 4 assigned", policy, n)
		}
	}
}
