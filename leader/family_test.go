package leader

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
)

// holder is a member of one lane that holds versions of the family f, written
// name/version=accuracy.
func holder(name string, variants ...string) *Member {
	m := box(name)
	m.Models = nil
	for _, text := range variants {
		key, accuracy, _ := strings.Cut(text, "=")
		v := HeldModel{
			ModelID: parseModel(key), QoSTarget: 100 * time.Millisecond, Share: .99, Largest: 100,
			Family: "f",
		}
		_, _ = fmt.Sscan(accuracy, &v.Accuracy)
		m.Models = append(m.Models, v)
	}
	return m
}

// join has members join, and their models' latencies be known.
func (in *told) join(members ...*Member) {
	in.tell(Event{Kind: ViewChanged, Members: members})
	advice := &Advice{}
	for _, m := range members {
		in.tell(Event{Kind: Described, Member: m})
		in.tell(Event{Kind: Greeted, Agent: m.Name})
		for _, held := range m.Models {
			table, err := match.NewTable(flat(10*time.Millisecond), 100)
			if err != nil {
				in.t.Fatal(err)
			}
			advice.Latencies = append(advice.Latencies, &Latency{
				TableKey: names.TableKey{Model: held.Key(), Type: m.Type}, Table: table,
			})
		}
	}
	in.tell(Event{Kind: Learned, Advice: advice})
}

// ask submits a query and returns what was decided, and for which version.
func (in *told) ask(seq uint64, model ModelID, least float64) *Action {
	in.t.Helper()
	for _, a := range in.tell(Event{
		Kind: Submitted, Gateway: 1, Sequence: seq, Model: model, BatchSize: 10,
		LeastAccuracy: least,
	}) {
		if a.Kind <= Split {
			return &a
		}
	}
	return nil
}

// answer has the lane of an assignment answer it.
func (in *told) answer(a *Action) {
	in.t.Helper()
	in.now += 10 * time.Millisecond
	in.tell(Event{
		Kind: Completed, Agent: a.Agent, Gateway: 1, Sequence: a.Decision.Query.Sequence,
		Attempt: a.Decision.Attempt, Model: a.Model, BatchSize: 10,
		Execution: 10 * time.Millisecond, Latency: 10 * time.Millisecond,
	})
}

// TestFamilyLeavesOut: a variant of less than .8 of the accuracy of the best, as members of before
// announce one, answers for no family, whichever is known first; under its own name it does.
func TestFamilyLeavesOut(t *testing.T) {
	in := newTold(t)
	in.tell(Event{Kind: GatewayConnected, Gateway: 1})
	in.join(holder("w0", "guess/1=.044", "half/1=.8"))
	for i, want := range []string{"half/1", "half/1", "guess/1", "m/1"} {
		asked := ModelID{"f", 0}
		switch want {
		case "guess/1":
			asked.Name = "guess"
		case "m/1":
			in.join(holder("w0", "guess/1=.044", "half/1=.79"), holder("w1", "m/1=1"))
		}
		a := in.ask(uint64(i), asked, 0)
		if a == nil || a.Kind != Assign || string(a.Decision.Model) != want {
			t.Fatalf("query %d, for %v: got %+v, want %s", i, asked, a, want)
		}
		in.answer(a)
	}
	if f := in.Status().Families[0]; len(f.Variants) != 1 || f.Best != 1 {
		t.Errorf("got %+v, want m alone", f)
	}
	// No lane is free of one that answers: the query waits rather than going to another.
	first, second := in.ask(100, ModelID{"f", 0}, 0), in.ask(104, ModelID{"f", 0}, 0)
	if first == nil || first.Agent != "w1" || second != nil && second.Agent != "w1" {
		t.Errorf("got %+v and %+v, want both at w1", first, second)
	}
}

// TestFamilyFloor: a variant below the accuracy that a file states for the family never answers for
// it, whatever the load; who asks for that very model gets it.
func TestFamilyFloor(t *testing.T) {
	in := newTold(t)
	in.tell(Event{Kind: GatewayConnected, Gateway: 1})
	best, fast := holder("w0", "best/1=1"), holder("w1", "fast/1=.98")
	best.Models[0].MinAccuracy = .99
	in.join(best, fast)
	for seq := range uint64(20) {
		if a := in.ask(4*seq, ModelID{Name: "f"}, 0); a != nil && a.Model.Name != "best" {
			t.Fatalf("query %d got %+v, want best or to wait", seq, a)
		}
	}
	if a := in.ask(400, ModelID{Name: "fast"}, 0); a == nil || a.Model.Name != "fast" {
		t.Errorf("a query for fast got %+v", a)
	}
	if f := in.Families(); len(f) != 1 || len(f[0].Variants) != 1 || f[0].Best != 1 {
		t.Errorf("the families are %+v, want best alone", f)
	}
}

// TestFamily: a query for a family gets the newest version of a variant, one for a
// model that model, and the status says what they got. Families need no version, and
// models go before families.
func TestFamily(t *testing.T) {
	in := newTold(t)
	in.tell(Event{Kind: GatewayConnected, Gateway: 1})
	in.join(holder("w0", "m/1=1", "n/1=.9"), holder("w1", "m/2=1", "n/1=.9"))
	for i, tt := range []struct {
		model ModelID
		least float64
		want  ModelID
	}{
		{ModelID{"f", 0}, 0, ModelID{"m", 2}},
		{ModelID{"f", 0}, .95, ModelID{"m", 2}},
		{ModelID{"n", 0}, 0, ModelID{"n", 1}},
		{ModelID{"n", 0}, .9, ModelID{"n", 1}},
		{ModelID{"m", 1}, 1, ModelID{"m", 1}}, // an older version is asked for by name only
	} {
		a := in.ask(uint64(4*i), tt.model, tt.least)
		if a == nil || a.Kind != Assign || a.Model != tt.want ||
			a.Decision.Model != tt.want.Key() {
			t.Fatalf("%v of %v: got %+v, want %v", tt.model, tt.least, a, tt.want)
		}
		in.answer(a)
	}
	status := in.Status()
	if len(status.Families) != 1 {
		t.Fatalf("got families %+v", status.Families)
	}
	// four answers of the versions that answer for the family, two of them by n
	f := status.Families[0]
	if f.Name != "f" || f.Best != 1 || math.Abs(f.Accuracy-.95) > 1e-9 ||
		len(f.Variants) != 2 || f.Variants[0].ModelID != (ModelID{"m", 2}) ||
		f.Variants[1].Share != .5 || f.Variants[1].Accuracy != .9 {
		t.Errorf("got %+v", f)
	}
	for _, tt := range []struct {
		model ModelID
		least float64
		want  string
	}{
		{ModelID{"f", 2}, 0, "no member of the fleet holds the model"},
		{ModelID{"n", 0}, .95, "no variant of n is of accuracy 0.95; the best that the fleet has " +
			"is n of 0.9"},
	} {
		a := in.ask(400, tt.model, tt.least)
		if a == nil || a.Kind != Reject || a.Message != tt.want {
			t.Errorf("%v of %v: got %+v, want %q", tt.model, tt.least, a, tt.want)
		}
	}
	// The members of version 2 and of accuracy 1 leave.
	in.tell(Event{Kind: Described, Member: func() *Member {
		m := holder("w1", "n/1=.9")
		m.Revision = 2
		return m
	}()})
	if a := in.ask(404, ModelID{"f", 0}, .95); a == nil || a.Model != (ModelID{"m", 1}) {
		t.Errorf("m/2 is gone, and a query for the family got %+v, want m/1", a)
	}
	// A model that has the family's name is what a query that names it gets.
	named := holder("w2", "f/1=.5")
	named.Models[0].Family = ""
	in.join(holder("w0", "m/1=1", "n/1=.9"), named)
	if a := in.ask(408, ModelID{"f", 0}, 0); a == nil || a.Model != (ModelID{"f", 1}) {
		t.Errorf("got %+v, want the model f", a)
	}
}

// TestFamilyRefuses: a demand that no variant meets is refused with the best there is.
func TestFamilyRefuses(t *testing.T) {
	in := newTold(t)
	in.tell(Event{Kind: GatewayConnected, Gateway: 1})
	in.join(holder("w0", "m/1=.97", "n/1=.9"))
	a := in.ask(4, ModelID{"f", 0}, .98)
	want := "no variant of f is of accuracy 0.98; the best that the fleet has is m of 0.97"
	if a == nil || a.Kind != Reject || a.Decision.Reason != match.LeastAccuracy ||
		a.Message != want {
		t.Errorf("got %+v, want %q", a, want)
	}
}

// TestFamilyRecords: events and decisions of families replay.
func TestFamilyRecords(t *testing.T) {
	var recording bytes.Buffer
	cfg := Config{Self: "leader"}
	r, err := NewRecorder(&recording, &cfg)
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewState(cfg)
	if err != nil {
		t.Fatal(err)
	}
	table, _ := match.NewTable(flat(10*time.Millisecond), 100)
	for i, e := range []Event{
		{Kind: GatewayConnected, Gateway: 1},
		{Kind: Described, Member: holder("w0", "m/1=1", "n/1=.9")},
		{Kind: Learned, Advice: &Advice{Latencies: []*Latency{
			{TableKey: names.TableKey{Model: "n/1", Type: "box/cpu/1"}, Table: table},
		}}},
		{Kind: Submitted, Gateway: 1, Sequence: 4, Model: ModelID{"f", 0}, BatchSize: 3,
			LeastAccuracy: .5},
		{Kind: Submitted, Gateway: 1, Sequence: 8, Model: ModelID{"f", 0}, BatchSize: 3,
			LeastAccuracy: 1},
	} {
		at := time.Duration(i) * time.Millisecond
		if err := r.Step(at, &e, s.Step(at, &e)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"model=m/1 target=100ms share=0.99 largest=100 family=f accuracy=1",
		"model=f/0 batch=3 least_accuracy=0.5",
		"variant=n/1 accuracy=0.9",
	} {
		if !strings.Contains(recording.String(), want) {
			t.Errorf("the recording has no %q:\n%s", want, recording.String())
		}
	}
	if _, err := Replay(&recording); err != nil {
		t.Error(err)
	}
}

// TestLoadable: a query for a family or a model that no member serves, and one may load, waits, and
// goes to the first lane that holds it. One for a model that nobody has is refused.
func TestLoadable(t *testing.T) {
	in := newTold(t)
	in.tell(Event{Kind: GatewayConnected, Gateway: 1})
	has, serves := holder("a", "x/1=1"), holder("b")
	has.Loadable = holder("", "f-best/1=1", "f-fast/1=.9").Models
	has.Models[0].Family = ""
	lone := holder("", "lone/1=1").Models
	lone[0].Family = ""
	has.Loadable = append(has.Loadable, lone...)
	in.join(has)
	for i, c := range []struct {
		model ModelID
		waits bool
	}{
		{ModelID{Name: "f"}, true}, {ModelID{Name: "lone"}, true}, {ModelID{Name: "none"}, false},
	} {
		if a := in.ask(uint64(4*(i+1)), c.model, 0); (a == nil) != c.waits {
			t.Errorf("%s: got %+v, want that it waits: %v", c.model.Name, a, c.waits)
		}
	}
	for _, c := range in.FamilyCounts() {
		if c.Name == "f" && c.Arrived != 1 {
			t.Errorf("%d queries of f have arrived, want 1", c.Arrived)
		}
	}
	serves.Models = has.Loadable[:1]
	if before, _ := in.Waiting(); before != 2 {
		t.Errorf("%d queries wait, want 2", before)
	}
	in.join(has, serves)
	if after, _ := in.Waiting(); after != 1 {
		t.Errorf("%d queries wait after an agent has come that holds what one asks for, want 1",
			after)
	}
}
