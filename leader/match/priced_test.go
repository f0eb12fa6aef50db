package match

import (
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
)

// pricedPool has a gpu lane (1) and four cpu lanes (2 to 5). A query of 50 takes 2 or 4 ms, one of
// 100 4 ms or, beyond its target, 13 ms.
func pricedPool(t *testing.T, seed uint64) *PricedLanes {
	t.Helper()
	p, err := NewPricedLanes(
		[]Model{{Name: "m", QoSTarget: 10 * time.Millisecond, LargestBatchSize: 100}}, seed)
	if err != nil {
		t.Fatal(err)
	}
	for typ, l := range map[string]stairs{"gpu": {0, 2000}, "cpu": {-5000, 9000}} {
		tab, err := NewTable(l, 100)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.SetProfile("m", names.LaneType(typ), tab); err != nil {
			t.Fatal(err)
		}
	}
	p.SetPrices([]fluid.Price{{Type: "gpu", PerMs: 0.5}, {Type: "cpu", PerMs: 0.1}})
	p.Join(1, "gpu", []names.ModelKey{"m", "another"})
	for id := LaneID(2); id <= 5; id++ {
		p.Join(id, "cpu", []names.ModelKey{"m"})
	}
	return p
}

func TestPricedRanks(t *testing.T) {
	p := pricedPool(t, 1)
	if got := p.Rank(epoch, &Inquiry{Model: "m", BatchSize: 50}, 0, 5); len(got) != 5 ||
		got[4].Lane != 1 {
		t.Errorf("small query: got %+v, want all lanes, the gpu last", got)
	}
	if got := p.Rank(epoch, &Inquiry{Model: "m", BatchSize: 100}, 0, 2); len(got) != 2 ||
		got[0].Lane != 1 {
		t.Errorf("large query: got %+v, want the gpu first", got)
	}
	for id := LaneID(2); id <= 5; id++ {
		p.NoteRemaining(id, epoch, 9*time.Millisecond)
	}
	if got := p.Rank(epoch, &Inquiry{Model: "m", BatchSize: 50}, 0, 1); len(got) != 1 ||
		got[0].Lane != 1 {
		t.Errorf("busy cpus: got %+v, want the gpu", got)
	}
	// Time passes, and older news than the last does not count.
	p.NoteRemaining(3, epoch.Add(-time.Second), 0)
	p.NoteRemaining(4, epoch.Add(time.Millisecond), 0)
	if got := p.Rank(epoch.Add(time.Millisecond), &Inquiry{Model: "m", BatchSize: 50}, 0,
		1); len(got) != 1 ||
		got[0].Lane != 4 {
		t.Errorf("one cpu is free: got %+v, want lane 4", got)
	}
	if got := p.Rank(epoch.Add(9*time.Millisecond), &Inquiry{Model: "m", BatchSize: 50}, 0,
		5); got[4].Lane != 1 ||
		got[0].Wait != 0 {
		t.Errorf("all are free again: got %+v, want the gpu last", got)
	}
	p.Leave(1)
	p.Leave(1)
	p.Join(2, "cpu", []names.ModelKey{"another"})
	if got := p.Rank(epoch, &Inquiry{Model: "m", BatchSize: 50}, 0, 5); len(got) != 3 {
		t.Errorf("two lanes less: got %+v, want three", got)
	}
	for _, got := range [][]Candidate{
		p.Rank(epoch, &Inquiry{Model: "nope", BatchSize: 50}, 0, 5),
		p.Rank(epoch, &Inquiry{Model: "m", BatchSize: 0}, 0, 5),
		p.Rank(epoch, &Inquiry{Model: "m", BatchSize: 101}, 0, 5),
	} {
		if len(got) != 0 {
			t.Errorf("bad query: got %+v, want none", got)
		}
	}
	if err := p.SetProfile("nope", "cpu", nil); err == nil {
		t.Error("profile of an unknown model: no error")
	}
}

// A lane that seems too late comes last, however dear the others are: where most queries are short,
// a long one is worth many.
func TestPricedLateLast(t *testing.T) {
	p := pricedPool(t, 1)
	p.SetPrices([]fluid.Price{{Type: "gpu", PerMs: 100}, {Type: "cpu", PerMs: 0.1}})
	p.Leave(2)
	p.Leave(3)
	for id := LaneID(4); id <= 5; id++ {
		p.NoteRemaining(id, epoch, 9*time.Millisecond)
	}
	for n := 1; n <= 3; n++ {
		if got := p.Rank(epoch, &Inquiry{Model: "m", BatchSize: 50}, 0, n); len(got) != n ||
			got[0].Lane != 1 {
			t.Errorf("the best of %d: got %+v, want the gpu, which alone is in time", n, got)
		}
	}
}

// Gateways that know the same ask different ones of equal lanes.
func TestPricedSpreads(t *testing.T) {
	first := map[LaneID]int{}
	for seed := range uint64(100) {
		first[pricedPool(t, seed).Rank(epoch, &Inquiry{Model: "m", BatchSize: 50}, 0, 1)[0].Lane]++
	}
	for id := LaneID(2); id <= 5; id++ {
		if first[id] < 10 {
			t.Errorf("of 100 gateways %d ask lane %d first, want about 25: %v", first[id], id,
				first)
		}
	}
}

// What is on its way to a lane makes it busy until it is heard.
func TestPricedSent(t *testing.T) {
	p := pricedPool(t, 1)
	p.Leave(1)
	for id := LaneID(2); id <= 4; id++ {
		p.Sent(id, epoch, 5*time.Millisecond)
	}
	if got := p.Rank(epoch, &Inquiry{Model: "m", BatchSize: 50}, 0, 4); got[0].Lane != 5 ||
		got[3].Wait != 5*time.Millisecond {
		t.Errorf("got %+v, want lane 5 first, the others busy", got)
	}
	p.Sent(5, epoch, 9*time.Millisecond)
	p.NoteRemaining(3, epoch.Add(time.Millisecond), 0)
	if got := p.Rank(epoch.Add(time.Millisecond), &Inquiry{Model: "m", BatchSize: 50}, 0,
		4); got[0].Lane != 3 {
		t.Errorf("got %+v, want lane 3, which is free", got)
	}
}
