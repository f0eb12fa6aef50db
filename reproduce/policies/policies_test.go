package policies

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/latency"
)

// TestDRS: batch sizes above the threshold go to the base type and the others to the other, and wait
// for it; without a lane of that type all go to the base type.
func TestDRS(t *testing.T) {
	const ms = time.Millisecond
	d := All()[slices.IndexFunc(All(), func(p sim.Policy) bool { return p.Name == "drs" })]
	m, err := match.New(match.Config{
		NewChooser: func() match.Chooser { return d.NewChooser(&sim.Config{Threshold: 10}) },
		Models:     []match.Model{{Name: "a", QoSTarget: 60 * ms, LargestBatchSize: 100}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var sent []uint64 // queries, and the lanes that they went to
	now := time.Unix(0, 0)
	step := func(e match.Event) {
		t.Helper()
		decisions, _, err := m.Step(now, &e)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range decisions {
			if d.Action == match.Assign {
				sent = append(sent, d.Query.Sequence, uint64(d.Lane))
			}
		}
	}
	for lane, typ := range []names.LaneType{"base", "other"} {
		table, err := match.NewTable(latency.Fixed{PerItem: time.Duration(1+lane) * ms / 2}, 100)
		if err != nil {
			t.Fatal(err)
		}
		step(match.Event{Kind: match.ProfileChanged, Model: "a", Type: typ, Table: table})
		step(match.Event{
			Kind: match.LaneJoined, Lane: match.LaneID(lane + 1), Type: typ,
			Models: []names.ModelKey{"a"},
		})
	}
	for i, batch := range []int{10, 5, 11, 12} {
		step(match.Event{
			Kind: match.Submitted, Query: match.QueryID{Gateway: 1, Sequence: uint64(i + 1)},
			Model: "a", BatchSize: batch,
		})
	}
	end := func(lane match.LaneID, query uint64) {
		now = now.Add(5 * ms)
		step(match.Event{
			Kind: match.Completed, Lane: lane, Attempt: 1,
			Query: match.QueryID{Gateway: 1, Sequence: query},
		})
	}
	end(1, 3)
	end(2, 1)
	if want := []uint64{1, 2, 3, 1, 4, 1, 2, 2}; !slices.Equal(sent, want) {
		t.Errorf("queries and lanes %v, want %v", sent, want)
	}
	step(match.Event{Kind: match.LaneLost, Lane: 2}) // its gateway sends query 2 again
	step(match.Event{
		Kind: match.Submitted, Query: match.QueryID{Gateway: 1, Sequence: 5}, Model: "a", BatchSize: 5,
	})
	end(1, 4)
	if last := sent[len(sent)-1]; len(sent) != 10 || last != 1 {
		t.Errorf("without the other lane: queries and lanes %v, want one more at lane 1", sent)
	}
}

func TestThreshold(t *testing.T) {
	calls := 0
	got, best, err := searchThreshold(1000, func(threshold int) (float64, error) {
		calls++
		return 100 - math.Abs(float64(threshold-317))/10, nil
	})
	if err != nil || math.Abs(float64(got-317)) > 10 || best < 99 || calls > 40 {
		t.Errorf("got threshold %d at %v after %d calls, %v; want 317", got, best, calls, err)
	}
	broken := errors.New("broken")
	if _, _, err := searchThreshold(1000,
		func(int) (float64, error) { return 0, broken }); !errors.Is(err, broken) {
		t.Errorf("got error %v, want %v", err, broken)
	}
}
