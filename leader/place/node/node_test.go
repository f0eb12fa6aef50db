package node_test

import (
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/leader/place/node"
)

// A pair is an agent with two models, whose queries arrive evenly and wait in queues of their own.
type pair struct {
	t       *testing.T
	m       *node.Manager
	layout  place.Layout
	runs    [2]time.Duration
	rates   [2]float64
	arrived [2]uint64
	waits   [2]float64 // queries
	moves   int
}

var modelNames = [2]string{"rm2", "wnd"}

func newPair(t *testing.T, layout string) *pair {
	l, err := place.ParseLayout(layout)
	if err != nil {
		t.Fatal(err)
	}
	return &pair{
		t: t, m: node.New(), layout: l,
		runs: [2]time.Duration{20 * time.Millisecond, 5 * time.Millisecond},
	}
}

const target = 200 * time.Millisecond

// second lets a second pass, of which a part has other rates.
func (p *pair) second(part float64, rates [2]float64) {
	p.t.Helper()
	for i, model := range modelNames {
		came := (1-part)*p.rates[i] + part*rates[i]
		p.arrived[i] += uint64(came)
		serves := float64(p.layout.Partitions[i].Lanes) / p.runs[i].Seconds()
		p.waits[i] += came
		done := min(p.waits[i], serves)
		p.waits[i] -= done
		for range int(done) {
			latency := p.runs[i] + time.Duration(p.waits[i]/serves*float64(time.Second))
			p.m.Answered("eve", model, p.runs[i], latency)
		}
	}
	p.rates = rates
	var families []node.FamilyLoad
	for i, model := range modelNames {
		late := 0
		if serves := float64(p.layout.Partitions[i].Lanes) / p.runs[i].Seconds(); p.waits[i]/serves >
			target.Seconds() {
			late = int(p.waits[i])
		}
		families = append(families, node.FamilyLoad{
			Arrived: p.arrived[i], WaitingLate: late, Models: []string{model}, QoSTarget: target,
			Share: .95,
		})
	}
	agents := []node.SharedAgent{{Name: "eve", Lanes: p.layout}}
	for _, move := range p.m.Step(node.Period, agents, families) {
		if move.Agent != "eve" || !move.From.Equal(p.layout) || move.Why == "" {
			p.t.Errorf("%+v, while the lanes are %s", move, p.layout)
		}
		p.layout = move.To
		p.moves++
	}
}

func (p *pair) want(layout string) {
	p.t.Helper()
	if got := p.layout.String(); got != layout {
		p.t.Fatalf("lanes are %s, want %s", got, layout)
	}
}

// TestSwap: when two models' loads swap, the lanes have moved with the second step after that, and
// with steady loads nothing moves.
func TestSwap(t *testing.T) {
	for _, part := range []float64{.1, .5, 1} { // of the second in which they swap
		p := newPair(t, "rm2:3x1+wnd:1x1")
		for range 10 {
			p.second(1, [2]float64{110, 100})
		}
		p.want("rm2:3x1+wnd:1x1")
		if p.moves > 0 {
			t.Fatalf("%d moves before the loads swap", p.moves)
		}
		p.second(part, [2]float64{20, 500})
		p.second(1, [2]float64{20, 500})
		p.want("rm2:1x1+wnd:3x1")
		before := p.moves
		for range 20 {
			p.second(1, [2]float64{20, 500})
		}
		if p.moves > before {
			t.Errorf("%d moves with steady loads", p.moves-before)
		}
		p.second(part, [2]float64{110, 100})
		p.second(1, [2]float64{110, 100})
		p.want("rm2:3x1+wnd:1x1")
	}
}

// TestOverload: with more than the lanes serve, no model is left without one, and lanes do not go
// back and forth.
func TestOverload(t *testing.T) {
	p := newPair(t, "rm2:2x1+wnd:2x1")
	for range 30 {
		p.second(1, [2]float64{500, 2000})
	}
	for _, of := range p.layout.Partitions {
		if of.Lanes < 1 {
			t.Errorf("lanes are %s", p.layout)
		}
	}
	if p.moves > 6 {
		t.Errorf("%d moves in 30 s of the same load", p.moves)
	}
}

// TestNothingToMove: lanes of unlike cores stay, and so do those of agents with one partition, with
// one lane each, or with three.
func TestNothingToMove(t *testing.T) {
	for _, layout := range []string{
		"rm2:1x1+wnd:1x1", "rm2:1x2+wnd:3x1", "rm2,wnd:4x1", "ncf:1x1+rm2:1x1+wnd:2x1",
	} {
		l, err := place.ParseLayout(layout)
		if err != nil {
			t.Fatal(err)
		}
		m := node.New()
		for n := range 5 {
			m.Answered("eve", "wnd", 5*time.Millisecond, time.Second)
			moves := m.Step(node.Period, []node.SharedAgent{{Name: "eve", Lanes: l}},
				[]node.FamilyLoad{{
					Arrived: uint64(5000 * n), Models: []string{"wnd"}, QoSTarget: target,
					Share: .95,
				}})
			if len(moves) > 0 {
				t.Errorf("%s: %+v", layout, moves)
			}
		}
	}
}

// TestFleetShares: an agent asks for lanes by what it answered itself of a family's queries.
func TestFleetShares(t *testing.T) {
	l, err := place.ParseLayout("rm2:3x1+wnd:1x1")
	if err != nil {
		t.Fatal(err)
	}
	m := node.New()
	agents := []node.SharedAgent{{Name: "ann", Lanes: l}, {Name: "bob", Lanes: l}}
	var arrived uint64
	for range 3 {
		for _, x := range []struct {
			agent names.AgentName
			n     int
		}{{"ann", 20}, {"bob", 180}} {
			for range x.n {
				m.Answered(x.agent, "wnd", 5*time.Millisecond, 20*time.Millisecond)
			}
		}
		arrived += 400 // half of them are answered later
		moves := m.Step(node.Period, agents, []node.FamilyLoad{{
			Arrived: arrived, Models: []string{"wnd"}, QoSTarget: target, Share: .95,
		}})
		for _, move := range moves {
			if move.Agent != "bob" || move.To.Partitions[1].Lanes < 2 {
				t.Errorf("%+v", move)
			}
		}
		if arrived == 1200 && len(moves) != 1 {
			t.Errorf("%d moves", len(moves))
		}
	}
}
