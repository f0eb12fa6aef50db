package placement

import (
	"math"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/sim/fleet"
)

// A still fleet does not change.
type still struct{}

func (still) Hold(int, []int)  {}
func (still) Busy(int) bool    { return false }
func (still) WaitingLate() int { return 0 }
func (still) Leader() uint64   { return 1 }
func (still) Agent(int) fleet.AgentState {
	return fleet.AgentState{Present: true}
}
func (still) Advise(*leader.Advice)   {}
func (still) Forecast(int, []float64) {}

// constant latencies.
type constant time.Duration

func (c constant) Mean(int) time.Duration              { return time.Duration(c) }
func (c constant) Quantile(float64, int) time.Duration { return time.Duration(c) }

// TestExpects: where a variant takes 1.5 times as long as known on a type, placements reckon with
// that of another of its family, which no instance has run, and not on another type.
func TestExpects(t *testing.T) {
	variants := []Variant{{Name: "large", Accuracy: 1, Largest: 10},
		{Name: "small", Accuracy: .9, Largest: 10}}
	known := map[names.TableKey]match.Latencies{}
	for i := range variants {
		for _, typ := range []names.LaneType{"x", "y"} {
			known[names.TableKey{Model: variants[i].Key(),
				Type: typ}] = constant(10 * time.Millisecond)
		}
	}
	p, err := New(&Config{}, variants, []Family{{Name: "f", QoSTarget: time.Second}},
		[]AgentLane{{Agent: "a", Type: "x", Holds: []int{0}}}, known, still{})
	if err != nil {
		t.Fatal(err)
	}
	id := leader.ModelID{Name: "large", Version: 1}
	m := &leader.Member{Name: "a", Type: "x", OwnType: names.LaneType("x").Own("a"), Lanes: 1}
	held := leader.HeldModel{
		ModelID: id, Family: "f", QoSTarget: time.Second, Share: .99, Largest: 10,
		Profile: variants[0].Profile("x"),
	}
	m.Models = []leader.HeldModel{held}
	p.Acts(0, &leader.Action{Kind: leader.PoolChanged, Pool: &leader.Pool{
		Members: []leader.PoolMember{{Member: m, Holds: []leader.ModelID{id}}},
		Models:  []leader.HeldModel{held},
	}})
	for range 100 {
		p.Acts(0, &leader.Action{
			Kind: leader.Observed, Member: m, Model: id, BatchSize: 5,
			Duration: 15 * time.Millisecond,
		})
	}
	if _, err := p.Wake(time.Second); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[names.TableKey]float64{
		{Model: variants[0].Key(), Type: "x"}: 1.5, {Model: variants[1].Key(), Type: "x"}: 1.45,
		{Model: variants[0].Key(), Type: "y"}: 1, {Model: variants[1].Key(), Type: "y"}: 1,
	} {
		got := float64(p.snapshot.Latencies[key].Mean(5)) / 1e7
		if math.Abs(got/want-1) > .04 {
			t.Errorf("%s on %s is reckoned to take %.3f times as long as known, want %v", key.Model,
				key.Type, got, want)
		}
	}
}
