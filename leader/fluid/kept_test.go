package fluid

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// keptRate is the rate of p at which long runs do not block models with short targets.
func keptRate(t *testing.T, p *Program, targets map[names.ModelKey]time.Duration) float64 {
	t.Helper()
	p.Kept = p.KeptFor(targets)
	sol, err := new(Solver).Solve(p)
	if err != nil {
		t.Fatal(err)
	}
	return sol.Rate
}

// TestKeptByHand: long runs leave one of the instances that serve a short target in time, but for
// the share of the queries that may be late.
func TestKeptByHand(t *testing.T) {
	ms := time.Millisecond
	targets := map[names.ModelKey]time.Duration{
		"short": 5 * ms, "mid": 50 * ms, "long": 2 * time.Second,
	}
	bin := func(model names.ModelKey, latency ...time.Duration) Bin {
		return Bin{Model: model, BatchSize: 1, Share: 1, Latency: latency}
	}
	one, two := []Type{{Name: "x", Count: 1}}, []Type{{Name: "x", Count: 2}}
	xy := []Type{{Name: "x", Count: 1}, {Name: "y", Count: 1}}
	for _, tt := range []struct {
		what  string
		types []Type
		bins  []Bin
		want  float64 // queries/s
	}{
		// One in a hundred queries of each model may go unserved.
		{"alone", one, []Bin{bin("long", 100*ms)}, 10 / .99},
		{"short runs", one, []Bin{bin("short", ms), bin("mid", 4*ms)}, 2000. / 5 / .99},
		{"one instance", one, []Bin{bin("short", ms), bin("long", 105*ms)}, 2 * .1 / .99},
		{"two", two, []Bin{bin("short", ms), bin("long", 105*ms)}, 2 * 10.1 / .99},
		// A run of mid blocks for 5 of its 10 ms.
		{"three models", two, []Bin{bin("long", 300*ms), bin("short", ms), bin("mid", 10*ms)},
			3 * 1010. / 300 / .99},
		{"another serves it", xy, []Bin{bin("short", ms, ms), bin("long", 100*ms, 0)},
			2000. / 100 / .99},
		// Only x serves large queries, of which there are too few to be blocked too often for certain.
		{"another serves most of it", xy, []Bin{
			{Model: "short", BatchSize: 1, Share: .95, Latency: []time.Duration{ms, ms}},
			{Model: "short", BatchSize: 2, Share: .05, Latency: []time.Duration{ms, 0}},
			bin("long", 105*ms, 0),
		}, 2000 / (.99*105 + .04)},
		{"only one serves it", xy, []Bin{bin("short", ms, 0), bin("long", 105*ms, 100*ms)},
			2 * 10.1 / .99},
		{"late work", two, []Bin{bin("short", ms), {Model: "long", BatchSize: 1, Share: 1,
			Latency: []time.Duration{0}, Late: []time.Duration{5005 * ms}}}, 4 / (5.005 + .99e-3)},
	} {
		p := &Program{Types: tt.types, Bins: tt.bins, Unserved: .01}
		if got := keptRate(t, p, targets); math.Abs(got/tt.want-1) > 1e-6 {
			t.Errorf("%s: got %v queries/s, want %v", tt.what, got, tt.want)
		}
	}
}

// TestKeptAgainstSimplex: the rate is that of the linear program as it is written, is at most that
// without what is kept, and hardly less where there are many instances.
func TestKeptAgainstSimplex(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	less, compared := 0, 0
	for range 150 {
		p := heldProgram(r, 1+r.IntN(3), 1+r.IntN(2), 3, 3)
		for i := range p.Types {
			p.Types[i].Count, p.Types[i].Models = 1+r.IntN(3), nil
		}
		for b := range p.Bins {
			bin := &p.Bins[b]
			m := int(bin.Model[0] - 'a')
			bin.Model = []names.ModelKey{"m", "n", "o"}[m]
			for i := range bin.Latency { // m takes a twentieth
				bin.Latency[i] /= []time.Duration{20, 4, 1}[m]
			}
		}
		targets := map[names.ModelKey]time.Duration{
			"m": time.Millisecond, "n": 10 * time.Millisecond, "o": 40 * time.Millisecond,
		}
		without, err := new(Solver).Solve(p)
		if err != nil {
			t.Fatal(err)
		}
		got := keptRate(t, p, targets)
		if got > without.Rate*(1+1e-9) {
			t.Fatalf("%+v: got %v queries/s, above %v", p, got, without.Rate)
		}
		if got < without.Rate*(1-1e-9) {
			less++
		}
		if want := plain(t, p); !math.IsNaN(want) { // see TestAgainstSimplex
			if compared++; math.Abs(got-want) > 1e-6*(1+want) {
				t.Fatalf("%+v: got %v queries/s, want %v", p, got, want)
			}
		}
		for i := range p.Types {
			p.Types[i].Count *= 1000
		}
		if many := keptRate(t, p, targets); many < 995*without.Rate {
			t.Errorf("%+v: got %v queries/s, want nearly %v", p, many, 1000*without.Rate)
		}
	}
	t.Logf("%d of %d programs are limited by what is kept", less, compared)
	if less < 10 || compared < 100 {
		t.Errorf("%d of 150 programs are limited by what is kept, %d were compared", less, compared)
	}
}
