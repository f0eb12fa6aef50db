package fluid

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// heldProgram has types of several classes, which hold some of the models each.
func heldProgram(r *rand.Rand, types, sets, models, bins int) *Program {
	p := &Program{Unserved: 0.01}
	var holds [][]bool
	var speed []float64
	for t := range types {
		fast := 0.5 + 2*r.Float64()
		for range sets {
			typ := Type{Name: names.LaneType(rune('a' + t)), Count: 1 + r.IntN(8)}
			held := make([]bool, models)
			for range 1 + models/3 {
				held[r.IntN(models)] = true
			}
			for m := range held {
				if held[m] {
					typ.Models = append(typ.Models, names.ModelKey(rune('a'+m)))
				}
			}
			p.Types, holds, speed = append(p.Types, typ), append(holds, held), append(speed, fast)
		}
	}
	for m := range models {
		base, slope := 0.2+5*r.Float64(), 0.1+5*r.Float64()
		for b := range bins {
			bin := Bin{
				Model: names.ModelKey(rune('a' + m)), BatchSize: b + 1,
				Share: 1 / float64(m+1) / float64(b+1),
			}
			for c := range p.Types {
				ms := speed[c] * (base + slope*float64(b))
				if !holds[c][m] || ms > 40 {
					ms = 0
				}
				bin.Latency = append(bin.Latency, time.Duration(ms*1e6))
			}
			p.Bins = append(p.Bins, bin)
		}
	}
	return p
}

// TestClasses: one of ten instances of a type holds m, the others n, and m is asked for ten times as
// often. The limit is that of the one, whose time has a price; that of the others has none.
func TestClasses(t *testing.T) {
	ms := time.Millisecond
	p := &Program{
		Types: []Type{
			{Name: "x", Count: 1, Models: []names.ModelKey{"m"}},
			{Name: "x", Count: 9, Models: []names.ModelKey{"n"}},
			{Name: "y", Count: 1},
		},
		Bins: []Bin{
			{Model: "m", BatchSize: 1, Share: 10, Latency: []time.Duration{10 * ms, 0, 0}},
			{Model: "n", BatchSize: 1, Share: 1, Latency: []time.Duration{0, 10 * ms, 0}},
		},
	}
	sol, err := new(Solver).Solve(p)
	if err != nil || math.Abs(sol.Rate-110) > 1e-6 {
		t.Fatalf("got %+v, %v; want a limit of 110 queries/s", sol, err)
	}
	// A query of m costs 10 ms there, 11 queries in ten of which are worth 1 each.
	if len(sol.Prices) != 2 || len(sol.Prices[0].Classes) != 2 || sol.Prices[1].Classes != nil {
		t.Fatalf("got prices %+v, want one of x with two classes and one of y without", sol.Prices)
	}
	classes := sol.Prices[0].Classes
	if math.Abs(classes[0].PerMs-0.11) > 1e-9 || classes[1].PerMs != 0 ||
		classes[0].Service != 10*ms || classes[1].Service != 10*ms {
		t.Errorf("got prices %+v, want .11 where m is held and 0 elsewhere", classes)
	}
	// The one is busy all the time, the nine a tenth of the time of one.
	if got, want := sol.Prices[0].PerMs, 0.11/1.1; math.Abs(got-want) > 1e-9 {
		t.Errorf("the price of x is %v, want the mean over its busy time, %v", got, want)
	}
}

// TestApproximate: of many types the limit is nearly the exact one and never above it, and the
// prices prove nearly that limit.
func TestApproximate(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	solve := func(p *Program, approximate bool) *Solution {
		var s Solver
		s.approximates = approximate
		sol, err := s.Solve(p)
		if err != nil {
			t.Fatal(err)
		}
		return sol
	}
	worst := 1.0
	for range 60 {
		p := heldProgram(r, 1+r.IntN(4), 1+r.IntN(6), 2+r.IntN(8), 1+r.IntN(8))
		splits := r.IntN(2) == 0
		for i := range p.Bins {
			p.Bins[i].Splits = splits
		}
		p.Unserved = []float64{0, .01}[r.IntN(2)]
		exact, near := solve(p, false), solve(p, true)
		if near.Rate > exact.Rate*(1+1e-9) {
			t.Fatalf("%+v: got %v queries/s, above the limit of %v", p, near.Rate, exact.Rate)
		}
		if exact.Rate == 0 {
			continue
		}
		for i, typ := range p.Types {
			if near.Busy[i] > float64(typ.Count)*(1+1e-9) {
				t.Fatalf("%+v: %v of %d are busy", p, near.Busy[i], typ.Count)
			}
		}
		if !splits && p.Unserved == 0 {
			worst = min(worst, near.Rate/exact.Rate)
		}
		money, worth, sum := 0.0, 0.0, 0.0
		for i, typ := range p.Types {
			money += near.PerMs[i] * float64(typ.Count) * 1000
		}
		for i, bin := range p.Bins {
			worth += bin.Share * near.Worth[i]
			sum += bin.Share
		}
		if bound := money / (worth / sum); p.Unserved == 0 &&
			(bound < exact.Rate*(1-1e-6) || !splits && bound > exact.Rate*1.03) {
			t.Errorf("splits %v: the prices prove %v queries/s, the limit is %v, of %+v", splits, bound, exact.Rate, p)
		}
	}
	t.Logf("the rate is at least %.4f of the limit", worst)
	if worst < 0.97 {
		t.Errorf("the rate is %v of the limit, want .97", worst)
	}
}

// TestManyClasses: 400 sets of models on ten types have a limit and prices.
func TestManyClasses(t *testing.T) {
	p := heldProgram(rand.New(rand.NewPCG(4, 1)), 10, 100, 100, 5)
	sol, err := new(Solver).Solve(p)
	if err != nil || sol.Rate == 0 || len(sol.Prices) != 10 || len(sol.Prices[0].Classes) != 100 {
		t.Fatalf("got %v, %v; want a limit and ten prices", sol, err)
	}
}

// TestUnmet: a model whose target no type meets, or not for all its batch sizes, or that nobody
// holds, takes neither limit nor prices from the others. Its work is load.
func TestUnmet(t *testing.T) {
	ms := time.Millisecond
	solve := func(bins ...Bin) *Solution {
		t.Helper()
		p := &Program{Types: []Type{{Name: "x", Count: 2}}, Bins: bins, Unserved: 0.01}
		sol, err := new(Solver).Solve(p)
		if err != nil {
			t.Fatal(err)
		}
		return sol
	}
	bin := func(model names.ModelKey, share float64, latency, late time.Duration) Bin {
		return Bin{
			Model: model, BatchSize: 1 + int(late/ms), Share: share,
			Latency: []time.Duration{latency}, Late: []time.Duration{late},
		}
	}
	m := bin("m", 99, 10*ms, 10*ms)
	for _, tt := range []struct {
		what  string
		bins  []Bin
		rate  float64 // of all queries
		unmet []Unmet
	}{
		{"m alone", []Bin{m}, 200 / .99, nil},
		// At r queries/s m takes .99 r 10 ms, less what may go unserved, and n .01 r 100 ms.
		{"a slow model", []Bin{m, bin("n", 1, 0, 100*ms)}, 2000 / (.99*.99*10 + 1),
			[]Unmet{{"n", 1}}},
		{"a model that nobody holds", []Bin{m, bin("n", 1, 0, 0)}, 200 / .99 / .99,
			[]Unmet{{"n", 1}}},
		{"large batches", []Bin{m, bin("m", 1.5, 0, 100*ms)}, 2000 / (99*10 + 1.5*100) * 100.5,
			[]Unmet{{"m", 1.5 / 100.5}}},
		{"few large batches", []Bin{m, bin("m", .5, 0, 100*ms)}, 200 * 99.5 / (99 - .495),
			nil},
		{"nothing that is served", []Bin{bin("n", 1, 0, 0)}, 0, []Unmet{{"n", 1}}},
	} {
		sol := solve(tt.bins...)
		if math.Abs(sol.Rate-tt.rate) > 1e-6*tt.rate || !slices.Equal(sol.Unmet, tt.unmet) {
			t.Errorf("%s: got %v queries/s, unmet %v; want %v, %v", tt.what, sol.Rate, sol.Unmet,
				tt.rate, tt.unmet)
		}
		if (sol.Prices[0].PerMs > 0) != (tt.rate > 0) {
			t.Errorf("%s: got prices %v", tt.what, sol.Prices)
		}
	}
	// Without Late nothing is left out.
	n := bin("n", 1, 0, 0)
	m.Late, n.Late = nil, nil
	if sol := solve(m, n); sol.Rate != 0 || sol.Unmet != nil {
		t.Errorf("got %v queries/s, unmet %v; want 0", sol.Rate, sol.Unmet)
	}
}
