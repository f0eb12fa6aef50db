package match

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// TestFamiliesApart: where agents hold one variant each, the lanes of a family are in one shard, so
// that no query waits at a slow lane while a fast one of its family idles; and shards are of like
// size.
func TestFamiliesApart(t *testing.T) {
	const families, lanes = 9, 45
	cfg := Config{}
	for f := range families {
		for v := range 2 {
			cfg.Models = append(cfg.Models, Model{
				Name:   names.ModelKey(fmt.Sprintf("m%d-%d", f, v)),
				Family: names.ModelKey(fmt.Sprintf("f%d", f)), Accuracy: 1 - 0.1*float64(v),
				QoSTarget: time.Second, LargestBatchSize: 10,
			})
		}
	}
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(0, 0)
	step := func(e *Event) {
		t.Helper()
		if _, _, err := m.Step(at, e); err != nil {
			t.Fatal(err)
		}
	}
	for i := range lanes {
		model := cfg.Models[i%len(cfg.Models)].Name
		step(&Event{
			Kind: LaneJoined, Lane: LaneID(i + 1), Agent: names.AgentName(fmt.Sprint(i)),
			Type: names.LaneType(fmt.Sprintf("t%d", i%3)), Models: []names.ModelKey{model},
		})
	}
	step(&Event{Kind: TimePassed})
	if len(m.shards) < 2 {
		t.Fatalf("%d shards of %d lanes, want several", len(m.shards), lanes)
	}
	in := map[names.ModelKey]*shard{}
	for _, s := range m.shards {
		if len(s.lanes) < lanes/len(m.shards)-5 || len(s.lanes) > lanes/len(m.shards)+5 {
			t.Errorf("a shard has %d lanes of %d in %d shards", len(s.lanes), lanes, len(m.shards))
		}
		for _, l := range s.lanes {
			for i, holds := range l.holds {
				if family := m.models[i].Family; holds && in[family] == nil {
					in[family] = s
				} else if holds && in[family] != s {
					t.Errorf("the lanes of %s are in two shards", family)
				}
			}
		}
	}
}

// TestOnePart: lanes that hold what others hold too are dealt as if there were no families.
func TestOnePart(t *testing.T) {
	m, err := New(Config{Models: []Model{
		{Name: "a", QoSTarget: time.Second, LargestBatchSize: 10},
		{Name: "b", QoSTarget: time.Second, LargestBatchSize: 10},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		holds := []names.ModelKey{"a", "b"}
		if i%4 == 0 {
			holds = holds[:1]
		}
		e := Event{Kind: LaneJoined, Lane: LaneID(i + 1), Type: "t", Models: holds}
		if _, _, err := m.Step(time.Unix(0, 0), &e); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := m.Step(time.Unix(0, 0), &Event{Kind: TimePassed}); err != nil {
		t.Fatal(err)
	}
	for _, s := range m.shards {
		both := 0
		for _, l := range s.lanes {
			if l.holds[1] {
				both++
			}
		}
		if both != 30/len(m.shards) || len(m.shards) != 2 {
			t.Errorf("%d of the %d lanes of a shard of %d hold both", both, len(s.lanes),
				len(m.shards))
		}
	}
}

// TestBacklogStaysApart: a model whose lanes have far too much to do keeps no query of another one
// from that one's idle lane, be it in time or lost already.
func TestBacklogStaysApart(t *testing.T) {
	for _, policy := range Policies() {
		for _, waited := range []time.Duration{0, 60 * time.Millisecond} {
			m, err := New(Config{Policy: policy, Models: []Model{
				{Name: "busy", QoSTarget: time.Second, LargestBatchSize: 100},
				{Name: "idle", QoSTarget: 50 * time.Millisecond, LargestBatchSize: 100},
			}})
			if err != nil {
				t.Fatal(err)
			}
			for i, model := range []names.ModelKey{"busy", "idle"} {
				mustStep(t, m, 0, Event{
					Kind: ProfileChanged, Model: model, Type: "x", Table: tableOf(2500, 2500),
				})
				mustStep(t, m, 0, Event{
					Kind: LaneJoined, Lane: LaneID(i + 1), Type: "x", Models: []names.ModelKey{model},
				})
			}
			for i := range uint64(100) {
				mustStep(t, m, 0, Event{
					Kind: Submitted, Query: QueryID{1, i}, Model: "busy", BatchSize: 10,
				})
			}
			all := mustStep(t, m, time.Millisecond, Event{
				Kind: Submitted, Query: QueryID{2, 1}, Model: "idle", BatchSize: 10, Waited: waited,
			})
			if len(all) != 1 || all[0].Action != Assign || all[0].Lane != 2 {
				t.Errorf("%s: a query that has waited %v gets no idle lane: %+v", policy, waited, all)
			}
		}
	}
}

// TestLateBacklogStaysApart: the lost queries of one model do not make the matcher reject one of
// another for lack of time, whose lane idles.
func TestLateBacklogStaysApart(t *testing.T) {
	m, err := New(Config{Models: []Model{
		{Name: "busy", QoSTarget: 50 * time.Millisecond, LargestBatchSize: 100},
		{Name: "idle", QoSTarget: 50 * time.Millisecond, LargestBatchSize: 100},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i, model := range []names.ModelKey{"busy", "idle"} {
		mustStep(t, m, 0, Event{
			Kind: ProfileChanged, Model: model, Type: "x", Table: tableOf(2500, 2500),
		})
		mustStep(t, m, 0, Event{
			Kind: LaneJoined, Lane: LaneID(i + 1), Type: "x", Models: []names.ModelKey{model},
			Remaining: time.Duration(1-i) * time.Hour,
		})
	}
	submit := func(at time.Duration, id QueryID, model names.ModelKey) []Decision {
		t.Helper()
		return mustStep(t, m, at, Event{
			Kind: Submitted, Query: id, Model: model, BatchSize: 10, Waited: 60 * time.Millisecond,
			TimeLeft: 200 * time.Millisecond,
		})
	}
	rejected := 0
	for i := range uint64(100) {
		for _, d := range submit(0, QueryID{1, i}, "busy") {
			if d.Action == Reject && d.Reason == Overloaded {
				rejected++
			}
		}
	}
	if all, _ := m.Waiting(); all == 0 || rejected+all != 100 {
		t.Errorf("%d of 100 lost queries are rejected, and %d wait", rejected, all)
	}
	all := submit(time.Millisecond, QueryID{2, 1}, "idle")
	if len(all) != 1 || all[0].Action != Assign || all[0].Lane != 2 {
		t.Errorf("got %+v, want a lost query assigned to its idle lane", all)
	}
}
