package match

import (
	"bytes"
	"math"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
)

// classPrices are of lanes of type x: what holds m is scarce, and what holds n alone is not.
func classPrices() []fluid.Price {
	return []fluid.Price{{
		Type: "x", PerMs: 0.5, Service: 10 * time.Millisecond,
		Classes: []fluid.ClassPrice{
			{Models: []names.ModelKey{"m", "n"}, PerMs: 1, Service: 10 * time.Millisecond},
			{Models: []names.ModelKey{"n"}, PerMs: 0.001},
			{PerMs: 0},
		},
	}}
}

func classModels() []Model {
	var all []Model
	for _, name := range []names.ModelKey{"m", "n", "unasked"} {
		all = append(all, Model{
			Name: name, QoSTarget: 100 * time.Millisecond, LargestBatchSize: 10,
		})
	}
	return all
}

// TestClassPrices: a query goes to the lane of its type whose time is worth least by the models
// that the lane holds, also after what lanes hold has changed. Models that no class names do not
// matter.
func TestClassPrices(t *testing.T) {
	m, err := New(Config{Models: classModels()})
	if err != nil {
		t.Fatal(err)
	}
	now := epoch
	step := func(e Event) []Decision {
		t.Helper()
		now = now.Add(time.Second)
		out, _, err := m.Step(now, &e)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	table, err := NewTable(stairs{1000, 1000}, 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, model := range classModels() {
		step(Event{Kind: ProfileChanged, Model: model.Name, Type: "x", Table: table})
	}
	step(Event{
		Kind: LaneJoined, Lane: 1, Type: "x", Models: []names.ModelKey{"m", "n", "unasked"},
	})
	step(Event{Kind: PricesChanged, Prices: classPrices()})
	step(Event{Kind: LaneJoined, Lane: 2, Type: "x", Models: []names.ModelKey{"unasked", "n"}})
	sequence := uint64(0)
	lane := func(model names.ModelKey) LaneID {
		t.Helper()
		sequence++
		query := QueryID{1, sequence}
		for _, d := range step(Event{Kind: Submitted, Query: query, Model: model, BatchSize: 1}) {
			if d.Action == Assign {
				step(Event{Kind: Completed, Query: query, Attempt: 1, Lane: d.Lane})
				return d.Lane
			}
		}
		t.Fatalf("the query of %s is not assigned", model)
		return 0
	}
	want := func(when string, id LaneID, perMs float64) {
		t.Helper()
		if got := m.lanes[id].timePrice(0); got != perMs {
			t.Errorf("%s: 1 ms of lane %d is worth %v, want %v", when, id, got, perMs)
		}
	}
	want("at first", 1, 1)
	want("after it has joined", 2, .001)
	if got := lane("n"); got != 2 {
		t.Errorf("n goes to lane %d, want 2, which m does not need", got)
	}
	if got := lane("m"); got != 1 {
		t.Errorf("m goes to lane %d, want 1, which alone holds it", got)
	}
	step(Event{Kind: LaneModels, Lane: 1, Models: []names.ModelKey{"unasked"}})
	want("when it holds nothing that is asked for", 1, 0)
	step(Event{Kind: LaneModels, Lane: 2, Models: []names.ModelKey{"m"}})
	want("of a class without a price", 2, .5)
	step(Event{Kind: PricesChanged, Prices: []fluid.Price{{Type: "x", PerMs: .25}}})
	want("without classes", 1, .25)
	prices := classPrices()
	prices[0].Classes[1].PerMs = math.NaN()
	if _, _, err := m.Step(now, &Event{Kind: PricesChanged, Prices: prices}); err == nil {
		t.Error("a class's price of NaN is not refused")
	}
	want("after a price that is none", 1, .25)
}

// TestPricedByClass: a gateway without a leader ranks lanes of one type by what they hold.
func TestPricedByClass(t *testing.T) {
	p, err := NewPricedLanes(classModels(), 1)
	if err != nil {
		t.Fatal(err)
	}
	table, err := NewTable(stairs{1000, 1000}, 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, model := range classModels() {
		if err := p.SetProfile(model.Name, "x", table); err != nil {
			t.Fatal(err)
		}
	}
	for id := LaneID(1); id <= 8; id++ {
		models := []names.ModelKey{"m", "n"}
		if id == 5 {
			models = models[1:]
		}
		p.Join(id, "x", models)
	}
	for range 2 {
		p.SetPrices(classPrices())
		if got := p.Rank(epoch, &Inquiry{Model: "n", BatchSize: 1}, 0, 1); len(got) != 1 ||
			got[0].Lane != 5 {
			t.Errorf("got %+v, want lane 5, which m does not need", got)
		}
		p.Join(9, "x", []names.ModelKey{"m"}) // this class has no price; the type has
	}
}

// TestClassPricesText: the serial form has what was told.
func TestClassPricesText(t *testing.T) {
	e := Event{Kind: PricesChanged, Prices: append(classPrices(), fluid.Price{Type: "y", PerMs: 2})}
	text := AppendEvent(nil, 0, &e)
	_, got, err := ParseEvent(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if again := AppendEvent(nil, 0, &got); !bytes.Equal(again, text) ||
		len(got.Prices) != 2 || !got.Prices[0].Equal(e.Prices[0]) ||
		!got.Prices[1].Equal(e.Prices[1]) {
		t.Errorf("got %+v of %s", got.Prices, text)
	}
}
