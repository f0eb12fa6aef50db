package fluid

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/optimize/convex/lp"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/profiles"
)

// randomProgram has up to 5 types, some absent, some unable to serve large
// batches, as real ones are, or anything at all.
func randomProgram(r *rand.Rand) *Program {
	p := &Program{Unserved: []float64{0, 0.01, 0.3}[r.IntN(3)]}
	for i := range 1 + r.IntN(5) {
		p.Types = append(p.Types, Type{
			Name: names.LaneType(string(rune('a' + i))), Count: r.IntN(5),
		})
	}
	base, slope, limit := make([]float64, len(p.Types)), make([]float64, len(p.Types)), 50.0
	for i := range base {
		base[i], slope[i] = r.Float64()*10, r.Float64()*2
	}
	models := [][]string{{"m"}, {"m", "n", "o"}}[r.IntN(2)]
	for b := range 1 + r.IntN(30) {
		bin := Bin{
			Model: names.ModelKey(models[r.IntN(len(models))]), BatchSize: b + 1,
			Share: r.Float64(),
		}
		for i := range p.Types {
			ms := 0.1 + base[i] + slope[i]*float64(b)
			if r.IntN(10) == 0 {
				ms = r.Float64() * 60
			}
			if ms > limit {
				ms = 0
			}
			bin.Latency = append(bin.Latency, time.Duration(ms*1e6))
		}
		p.Bins = append(p.Bins, bin)
	}
	return p
}

// plain solves p's linear program as it is written, by gonum's simplex, and
// returns the rate in queries/s.
func plain(t *testing.T, p *Program) float64 {
	// Variables: r, x[b][t], s[b], a slack for each type, for what goes unserved of each model and
	// for what is kept.
	models := []string{"m", "n", "o"}
	n, bins := len(p.Types), len(p.Bins)
	rows := bins + n + len(models) + len(p.Kept)
	vars := 1 + bins*n + bins + n + len(models) + len(p.Kept)
	a, rhs := mat.NewDense(rows, vars, nil), make([]float64, rows)
	sum := 0.0
	for _, b := range p.Bins {
		sum += b.Share
	}
	for b, bin := range p.Bins {
		a.Set(b, 0, -bin.Share/sum)
		a.Set(b, 1+bins*n+b, 1)
		row := bins + n + slices.Index(models, string(bin.Model))
		a.Set(row, 1+bins*n+b, 1)
		a.Set(row, 0, a.At(row, 0)-p.Unserved*bin.Share/sum)
		for i := range n {
			if bin.Latency[i] > 0 {
				a.Set(b, 1+b*n+i, 1)
				a.Set(bins+i, 1+b*n+i, toMs(bin.Latency[i]))
			}
		}
	}
	for m := range models {
		a.Set(bins+n+m, 1+bins*n+bins+n+m, 1)
	}
	for k, kept := range p.Kept {
		row := bins + n + len(models) + k
		a.Set(row, 1+bins*n+bins+n+len(models)+k, 1)
		count := 0
		for _, i := range kept.Types {
			count += p.Types[i].Count
			for b, bin := range p.Bins {
				if over := bin.Latency[i] - kept.Target; over > 0 && bin.Model != kept.Model {
					a.Set(row, 1+b*n+i, toMs(over))
				}
			}
		}
		rhs[row] = max(0, float64(count)-1+p.Unserved)
	}
	for i, typ := range p.Types {
		a.Set(bins+i, 1+bins*n+bins+i, 1)
		rhs[bins+i] = float64(typ.Count)
	}
	c := make([]float64, vars)
	c[0] = -1
	// gonum refuses columns of zeros; leave them out.
	var keep []int
	for j := range vars {
		if mat.Norm(a.ColView(j), 1) > 0 {
			keep = append(keep, j)
		}
	}
	small, cost := mat.NewDense(rows, len(keep), nil), make([]float64, len(keep))
	for k, j := range keep {
		small.SetCol(k, mat.Col(nil, j, a))
		cost[k] = c[j]
	}
	f, _, err := lp.Simplex(cost, small, rhs, 1e-10, nil)
	if err != nil {
		t.Logf("gonum: %v", err)
		return math.NaN()
	}
	return -f * 1000
}

func TestAgainstSimplex(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var s Solver
	compared := 0
	for range 150 {
		p := randomProgram(r)
		got, err := s.Solve(p)
		if err != nil {
			t.Fatal(err)
		}
		checkDuality(t, p, got)
		want := plain(t, p)
		if math.IsNaN(want) { // gonum's simplex stumbles over some degenerate programs
			continue
		}
		compared++
		if math.Abs(got.Rate-want) > 1e-6*(1+want) {
			t.Fatalf("%+v: got %v queries/s, want %v", p, got.Rate, want)
		}
	}
	if compared < 100 {
		t.Errorf("compared only %d of 150 programs", compared)
	}
}

// checkDuality holds the rate against the bound that the prices prove by
// themselves: whatever is served pays its worth, so the rate is at most the
// instances' time at these prices over the worth of an average query.
func checkDuality(t *testing.T, p *Program, sol *Solution) {
	t.Helper()
	if sol.Rate == 0 {
		return
	}
	money, worth, sum := 0.0, 0.0, 0.0
	share, most := map[string]float64{}, map[string]float64{}
	for i, typ := range p.Types {
		money += float64(typ.Count) * sol.PerMs[i] * 1000
		if sol.Busy[i] > float64(typ.Count)*(1+1e-9) {
			t.Fatalf("%+v: %s is busy on %v instances of %d", p, typ.Name, sol.Busy[i], typ.Count)
		}
	}
	for b, bin := range p.Bins {
		w := sol.Worth[b]
		for i, l := range bin.Latency {
			if l > 0 && w > sol.PerMs[i]*toMs(l)*(1+1e-9)+1e-12 {
				t.Fatalf("%+v: batch size %d is worth %v, but %s serves it for %v", p,
					bin.BatchSize, w, p.Types[i].Name, sol.PerMs[i]*toMs(l))
			}
		}
		worth += bin.Share * w
		sum += bin.Share
		share[string(bin.Model)] += bin.Share
		most[string(bin.Model)] = max(most[string(bin.Model)], w)
	}
	// What goes unserved of a model is worth at most the most any of its bins is.
	for m, w := range most {
		worth -= p.Unserved * share[m] * w
	}
	if bound := money / (worth / sum); math.Abs(sol.Rate-bound) > 1e-6*bound {
		t.Fatalf("%+v: got %v queries/s, the prices prove %v", p, sol.Rate, bound)
	}
}

func TestByHand(t *testing.T) {
	ms := time.Millisecond
	// Three of four queries are small. The base type takes 1 and 4 ms, the auxiliary
	// 2 ms and cannot.
	p := &Program{
		Types: []Type{{Name: "base", Count: 1}, {Name: "aux", Count: 1}},
		Bins: []Bin{
			{Model: "m", BatchSize: 1, Share: 3, Latency: []time.Duration{1 * ms, 2 * ms}},
			{Model: "m", BatchSize: 9, Share: 1, Latency: []time.Duration{4 * ms, 0}},
		},
	}
	near := func(got, want float64) bool { return math.Abs(got-want) < 1e-9*want }
	var s Solver
	sol, err := s.Solve(p)
	if err != nil {
		t.Fatal(err)
	}
	// At r queries/ms the auxiliary serves 0.5 small ones a ms and the base the rest: 4 r/4 + (3/4
	// r - 0.5) = 1.
	if !near(sol.Rate, 1500/1.75) {
		t.Errorf("got %v queries/s, want %v", sol.Rate, 1500/1.75)
	}
	if got := sol.Prices; !near(got[0].PerMs, 1/1.75) || !near(got[1].PerMs, 0.5/1.75) ||
		got[1].Service != 2*ms {
		t.Errorf("got prices %+v, want 1/1.75 and 0.5/1.75, service of aux 2ms", got)
	}
	p.Types[0].Count = 0
	if sol, err = s.Solve(p); err != nil || sol.Rate != 0 {
		t.Errorf("without the base type: got %v, %v; want a rate of 0", sol, err)
	}
	p.Types[0].Count, p.Types[1].Count = 1, 0
	if sol, err = s.Solve(p); err != nil || !near(sol.Rate, 1000/1.75) {
		t.Errorf("without the auxiliary type: got %v, %v; want %v", sol, err, 1000/1.75)
	}
	// The first auxiliary instance saves the base half a ms a ms.
	if got := sol.Prices[1].PerMs; !near(got, 0.5/1.75) {
		t.Errorf("price of the absent type: got %v, want %v", got, 0.5/1.75)
	}
}

func TestRefuses(t *testing.T) {
	good := func() *Program {
		return &Program{
			Types: []Type{{Name: "a", Count: 1}}, Bins: []Bin{
				{Model: "m", BatchSize: 1, Share: 1, Latency: []time.Duration{1}},
			},
		}
	}
	for name, spoil := range map[string]func(p *Program){
		"no types":        func(p *Program) { p.Types = nil },
		"no bins":         func(p *Program) { p.Bins = nil },
		"negative count":  func(p *Program) { p.Types[0].Count = -1 },
		"NaN share":       func(p *Program) { p.Bins[0].Share = math.NaN() },
		"infinite share":  func(p *Program) { p.Bins[0].Share = math.Inf(1) },
		"missing latency": func(p *Program) { p.Bins[0].Latency = nil },
		"bad latency":     func(p *Program) { p.Bins[0].Latency[0] = -1 },
		"unserved 1":      func(p *Program) { p.Unserved = 1 },
	} {
		p := good()
		spoil(p)
		if _, err := new(Solver).Solve(p); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if sol, err := new(Solver).Solve(good()); err != nil || sol.Rate <= 0 {
		t.Errorf("smallest program: got %v, %v", sol, err)
	}
}

// The 331 configurations of four types that 2.5 $/hr buys with at least one base instance.
func BenchmarkConfigurations(b *testing.B) {
	prices := []float64{0.526, 0.432, 0.149, 0.1664}
	var counts [][4]int
	for g := 1; float64(g)*prices[0] <= 2.5; g++ {
		for c := 0; c < 6; c++ {
			for r := 0; r < 17; r++ {
				for t := 0; t < 16; t++ {
					if float64(g)*prices[0]+float64(c)*prices[1]+float64(r)*prices[2]+
						float64(t)*prices[3] <= 2.5 {
						counts = append(counts, [4]int{g, c, r, t})
					}
				}
			}
		}
	}
	p := &Program{Unserved: 0.01}
	for _, name := range []string{"g4dn.xlarge", "c5n.2xlarge", "r5n.large", "t3.xlarge"} {
		p.Types = append(p.Types, Type{Name: names.LaneType(name)})
	}
	// wnd
	fixed, slope := [4]float64{2.34, .848, 1.69, 5.49}, [4]float64{.00704, .0318, .0369, .0618}
	for batch := 10; batch <= 1000; batch += 10 {
		bin := Bin{Model: "wnd", BatchSize: batch, Share: 1 / float64(batch)}
		for i := range fixed {
			ms := fixed[i] + slope[i]*float64(batch)
			if ms > 25 {
				ms = 0
			}
			bin.Latency = append(bin.Latency, time.Duration(ms*1e6))
		}
		p.Bins = append(p.Bins, bin)
	}
	var s Solver
	for b.Loop() {
		for _, c := range counts {
			for i := range c {
				p.Types[i].Count = c[i]
			}
			if _, err := s.Solve(p); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(len(counts)), "configurations")
}

// perItem is a latency in proportion to the batch size.
type perItem time.Duration

func (l perItem) Mean(batchSize int) time.Duration {
	return time.Duration(batchSize) * time.Duration(l)
}

// TestBinsEndAtTarget: a type serves the batch sizes that it answers in time, also beside larger
// ones that it does not.
func TestBinsEndAtTarget(t *testing.T) {
	sizes := profiles.Distribution{
		{BatchSize: 1, Share: 0.6}, {BatchSize: 2, Share: 0.3}, {BatchSize: 8, Share: 0.1},
	}
	bins := Bins("m", 1, sizes, 100*time.Millisecond, []Latencies{
		perItem(time.Millisecond), perItem(30 * time.Millisecond), nil,
	})
	if len(bins) != 2 || bins[0].BatchSize != 2 || bins[0].Latency[1] != 40*time.Millisecond ||
		bins[1].BatchSize != 8 || bins[1].Latency[1] != 0 || bins[1].Latency[2] != 0 {
		t.Errorf("got %+v", bins)
	}
}
