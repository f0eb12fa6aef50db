package match

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
)

// TestForgets has 200 models and 200 types come, serve and go: the matcher keeps what is there.
func TestForgets(t *testing.T) {
	for _, policy := range Policies() {
		t.Run(policy, func(t *testing.T) {
			m, err := New(Config{Policy: policy})
			if err != nil {
				t.Fatal(err)
			}
			table, err := NewTable(stairs{200, 10}, 10)
			if err != nil {
				t.Fatal(err)
			}
			now := time.Unix(0, 0)
			step := func(e Event) []Decision {
				t.Helper()
				now = now.Add(time.Millisecond)
				decisions, _, err := m.Step(now, &e)
				if err != nil {
					t.Fatal(err)
				}
				return decisions
			}
			sizes := func() string {
				return fmt.Sprintf("%d models (%d names), %d types, %d lanes, %d queries",
					len(m.models), len(m.byName), len(m.types), len(m.all), len(m.queries))
			}
			var first string
			for i := range 200 {
				model, typ, lane := fmt.Sprintf("m/%d", i), fmt.Sprintf("x@%d", i), LaneID(i+1)
				step(Event{
					Kind: ModelChanged, Model: names.ModelKey(model),
					QoSTarget: time.Duration(i+10) * time.Second,
					BatchSize: 10,
				})
				step(Event{
					Kind: ProfileChanged, Model: names.ModelKey(model), Type: names.LaneType(typ),
					Table: table,
				})
				step(Event{
					Kind: LaneJoined, Lane: lane, Type: names.LaneType(typ),
					Models: []names.ModelKey{names.ModelKey(model)},
				})
				step(Event{
					Kind: PricesChanged, Prices: []fluid.Price{
						{Type: names.LaneType(typ), PerMs: 1},
					},
				})
				query := QueryID{1, uint64(i)}
				var sent bool
				for _, d := range step(Event{
					Kind: Submitted, Query: query, Model: names.ModelKey(model), BatchSize: 1,
				}) {
					sent = sent || d.Action == Assign && d.Lane == lane && d.Query == query
				}
				if !sent {
					t.Fatalf("a query of model %s is not given to the lane that holds it", model)
				}
				step(Event{Kind: Completed, Query: query, Attempt: 1, Lane: lane})
				if first == "" {
					first = sizes()
				}
				if got := sizes(); got != first {
					t.Fatalf("with the model %d there are %s, want %s", i+1, got, first)
				}
				step(Event{Kind: LaneLost, Lane: lane})
				if i%2 == 0 { // one at a time, or with the model
					step(Event{
						Kind: ProfileChanged, Model: names.ModelKey(model),
						Type: names.LaneType(typ),
					})
				}
				step(Event{Kind: ModelGone, Model: names.ModelKey(model)})
				step(Event{Kind: PricesChanged})
			}
			if got := sizes(); got != "1 models (0 names), 0 types, 0 lanes, 0 queries" {
				t.Errorf("at the end there are %s", got)
			}
		})
	}
}

// TestForgetsNoModelInUse: a model that a lane holds, or a query asks for, is not forgotten.
func TestForgetsNoModelInUse(t *testing.T) {
	m, err := New(Config{
		Models: []Model{
			{Name: "a", QoSTarget: time.Second, LargestBatchSize: 10}, {
				Name: "b", QoSTarget: time.Second, LargestBatchSize: 10,
			},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		e    Event
		want string
	}{
		{Event{Kind: LaneJoined, Lane: 1, Type: "x", Models: []names.ModelKey{"a"}}, ""},
		{Event{Kind: Submitted, Query: QueryID{1, 2}, Model: "b", BatchSize: 1}, ""},
		{Event{Kind: ModelGone, Model: "a"}, "lane 1 holds it"},
		{Event{Kind: ModelGone, Model: "b"}, "query 1/2 asks for it"},
		{Event{Kind: ModelGone, Model: "c"}, "configured are: a, b"},
		{Event{Kind: Cancelled, Query: QueryID{1, 2}}, ""},
		{Event{Kind: ModelGone, Model: "b"}, ""},
		{Event{Kind: LaneModels, Lane: 1, Models: []names.ModelKey{"b"}}, "configured are: a"},
	} {
		_, _, err := m.Step(time.Unix(0, 0), &x.e)
		if (err == nil) != (x.want == "") || err != nil && !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: got error %v, want %q", AppendEvent(nil, 0, &x.e), err, x.want)
		}
	}
}
