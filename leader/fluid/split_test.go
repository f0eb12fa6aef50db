package fluid

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestSplitByHand: an auxiliary that serves 10 rows in time serves queries of 20 as two parts, and
// of 30 as three; it is as busy with them as with their parts.
func TestSplitByHand(t *testing.T) {
	ms := time.Millisecond
	p := &Program{
		Types: []Type{{Name: "base", Count: 1}, {Name: "aux", Count: 2}},
		Bins: []Bin{
			{Model: "m", BatchSize: 10, Share: 2, Latency: []time.Duration{4 * ms, 3 * ms}},
			{Model: "m", BatchSize: 20, Share: 1, Latency: []time.Duration{6 * ms, 0}},
			{Model: "m", BatchSize: 30, Share: 1, Latency: []time.Duration{9 * ms, 0}},
			{Model: "m", BatchSize: 40, Share: 0, Latency: []time.Duration{12 * ms, 0}},
		},
	}
	p.Types[0].Count = 0
	var s Solver
	if sol, err := s.Solve(p); err != nil || sol.Rate != 0 {
		t.Errorf("without splitting: got %v, %v; want a rate of 0", sol, err)
	}
	for i := range p.Bins {
		p.Bins[i].Splits = true
	}
	// a query takes (2*3 + 6 + 9)/4 ms
	sol, err := s.Solve(p)
	if err != nil || sol.Rate < 2000/5.25*0.999 || sol.Rate > 2000/5.25*1.001 {
		t.Errorf("got %v, %v; want a rate of %v", sol, err, 2000/5.25)
	}
	if got := sol.Prices[1].Service; got != 3*ms {
		t.Errorf("service of aux is %v, want that of the parts, 3ms", got)
	}
	p.Bins[3].Share = 1 // a query of 40 would need four parts
	if sol, err := s.Solve(p); err != nil || sol.Rate != 0 {
		t.Errorf("with a query of 40: got %v, %v; want a rate of 0", sol, err)
	}
}

// TestSplitIsNoWorse: what may be split may still run whole.
func TestSplitIsNoWorse(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 1))
	var s Solver
	more := 0
	for range 150 {
		p := randomProgram(r)
		whole, err := s.Solve(p)
		if err != nil {
			t.Fatal(err)
		}
		for i := range p.Bins {
			p.Bins[i].Splits = true
		}
		split, err := s.Solve(p)
		if err != nil {
			t.Fatal(err)
		}
		if split.Rate < whole.Rate*(1-1e-9) {
			t.Fatalf("%+v: got %v queries/s with splitting, %v without", p, split.Rate, whole.Rate)
		}
		if split.Rate > whole.Rate*(1+1e-9) {
			more++
		}
		checkDuality(t, p, split)
	}
	if more < 10 {
		t.Errorf("splitting raises the limit of only %d of 150 programs", more)
	}
}
