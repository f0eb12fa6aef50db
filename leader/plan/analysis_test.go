package plan

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/profiles"
)

// trace is much like the production trace: a body of queries, a part that is large, and few
// that are very large.
func trace() profiles.Distribution {
	var d profiles.Distribution
	for b := 10; b <= 1000; b += 10 {
		share := 0.0
		switch {
		case b < 100:
			share = 0.08 / 9
		case b < 200:
			share = 0.65 / 10
		case b < 600:
			share = 0.22 / 40
		default:
			share = 0.05 / 41
		}
		d = append(d, profiles.Share{BatchSize: b, Share: share})
	}
	return d
}

// rm2 is the problem of RM2 at $2.5/hr by the lines through its published latencies.
func rm2() *Problem {
	us := func(base, perItem float64) line {
		return line{time.Duration(base * 1e6), time.Duration(perItem * 1e6)}
	}
	return &Problem{
		Types: paperTypes(), Budget: 2.5,
		Models: []ModelDemand{{
			Name: "rm2", QoSTarget: 350 * time.Millisecond, BatchSizes: trace(),
			Latencies: []Latencies{
				us(3.70, 0.2575), us(2.60, 0.3866), us(3.91, 0.4009), us(2.83, 0.8827),
			},
		}},
	}
}

// randomProblem has one to three models, two to five types, and a base type in most cases.
func randomProblem(r *rand.Rand) *Problem {
	p := &Problem{Budget: 1 + 2*r.Float64()}
	for i := range 2 + r.IntN(4) {
		t := Type{Name: profiles.InstanceType(fmt.Sprint("type-", i)), Price: 0.2 + r.Float64()}
		if r.IntN(4) == 0 {
			t.Max = 1 + r.IntN(3)
		}
		p.Types = append(p.Types, t)
	}
	for i := range 1 + r.IntN(3) {
		m := ModelDemand{
			Name:      fmt.Sprint("model-", i),
			QoSTarget: time.Duration(20+r.IntN(100)) * time.Millisecond, Weight: 0.5 + r.Float64(),
		}
		sum := 0.0
		for b := 1 + r.IntN(20); b < 400; b += 1 + r.IntN(60) {
			m.BatchSizes = append(m.BatchSizes, profiles.Share{BatchSize: b, Share: r.Float64()})
			sum += m.BatchSizes[len(m.BatchSizes)-1].Share
		}
		for b := range m.BatchSizes {
			m.BatchSizes[b].Share /= sum
		}
		for range p.Types {
			m.Latencies = append(m.Latencies, line{
				time.Duration(1 + r.IntN(8e6)), time.Duration(1e4 + r.IntN(3e5)),
			})
		}
		p.Models = append(p.Models, m)
	}
	return p
}

// TestEq15 holds Eq. 15 against its cases by hand: queries of 1 and 3 items, half each, on a
// base type that takes a second an item and an auxiliary one that takes two and may serve
// queries of 1 only.
func TestEq15(t *testing.T) {
	p := &Problem{
		Types: []Type{{"auxiliary", 1, 0}, {"base", 1, 0}}, Budget: 9,
		Models: []ModelDemand{{
			Name: "m", QoSTarget: 5 * time.Second, BatchSizes: profiles.Distribution{
				{BatchSize: 1, Share: 0.5}, {BatchSize: 3, Share: 0.5},
			},
			Latencies: []Latencies{line{0, 2 * time.Second}, line{0, time.Second}},
		}},
	}
	a, err := Analyse(p)
	if err != nil || a.Base != 1 {
		t.Fatalf("base %d, %v", a.Base, err)
	}
	for _, test := range []struct {
		base, auxiliary int
		want            float64
	}{
		{1, 0, 1 / 2.}, // a mean of two seconds
		// the base is the bottleneck, Eq. 12: 1/3 of large ones a second, which are half
		{1, 4, (1 / 3.) / (1 / 2.)},
		// The auxiliary one is: 1/2 small ones a second, which are half of the queries, so 1; C =
		// 1/2; two base instances serve 2/3 large ones, so they have a quarter left of the one
		// average query a second that they serve.
		{2, 1, 1 + 1/4.},
		{0, 3, 0}, // nobody serves the large ones
	} {
		if got := a.eq15.boundOf(Configuration{test.auxiliary, test.base}); math.Abs(got-
			test.want) > 1e-9 {
			t.Errorf("%d base, %d auxiliary: bound %v, want %v", test.base, test.auxiliary, got,
				test.want)
		}
	}
}

// TestEq15RoundedShares: shares may add up to a little less than 1.
func TestEq15RoundedShares(t *testing.T) {
	p := rm2()
	p.Models[0].BatchSizes = []profiles.Share{{BatchSize: 10, Share: 0.3333333},
		{BatchSize: 20, Share: 0.3333333}, {BatchSize: 30, Share: 0.3333333}}
	a, err := Analyse(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []Configuration{{1, 1, 0, 0}, {2, 0, 3, 1}} {
		if got := a.eq15.boundOf(c); !(got > 0) || math.IsInf(got, 1) {
			t.Errorf("%v: bound %v", c, got)
		}
	}
}

func TestAnalyse(t *testing.T) {
	p := rm2()
	a, err := Analyse(p)
	if err != nil || a.Base != 0 || len(a.Notes) != 0 {
		t.Fatalf("base %d, notes %q, %v", a.Base, a.Notes, err)
	}
	space, err := a.Space()
	if err != nil || len(space) != 331 {
		t.Errorf("%d configurations, %v; want 331", len(space), err)
	}

	// A type too slow for any query is left out, and said so.
	p.Models[0].Latencies[3] = line{time.Second, time.Second}
	a, err = Analyse(p)
	if err != nil || len(a.Notes) != 1 || !strings.Contains(a.Notes[0], "t3.xlarge is left out") ||
		!strings.Contains(a.Notes[0], "1") {
		t.Errorf("notes %q, %v", a.Notes, err)
	}
	if space, err = a.Space(); err != nil ||
		slices.ContainsFunc(space, func(c Configuration) bool { return c[3] > 0 }) {
		t.Errorf("t3 is still there, %v", err)
	}

	// Of two base types it is the one that serves more for its price.
	p = rm2()
	p.Models[0].Latencies[2] = line{0, 300 * time.Microsecond}
	if a, err = Analyse(p); err != nil || a.Base != 2 {
		t.Errorf("base %d, %v; want r5n.large", a.Base, err)
	}

	// A target that the largest queries never meet: planned for the others.
	p = rm2()
	p.Models[0].QoSTarget = 150 * time.Millisecond
	a, err = Analyse(p)
	if err != nil || len(a.Notes) != 1 || !strings.Contains(a.Notes[0], "batch sizes up to 560") ||
		!strings.Contains(a.Notes[0], "261.2ms") {
		t.Fatalf("notes %q, %v", a.Notes, err)
	}
	if sizes := a.Problem.Models[0].BatchSizes; sizes[len(sizes)-1].BatchSize != 560 ||
		a.Problem.Validate() != nil || len(p.Models[0].BatchSizes) != 100 {
		t.Errorf("planned for %v, %v", sizes, a.Problem.Validate())
	}
	if a.eq15.boundOf(Configuration{1, 0, 0, 0}) <= 0 {
		t.Error("no throughput for the others")
	}

	// And one that none meets.
	p.Models[0].QoSTarget = time.Millisecond
	if _, err = Analyse(p); err == nil || !strings.Contains(err.Error(), "6.275ms") ||
		!strings.Contains(err.Error(), "raise") {
		t.Errorf("error %v", err)
	}
	// A budget for auxiliary instances only.
	p = rm2()
	p.Budget = 0.5
	if a, err = Analyse(p); err != nil {
		t.Fatal(err)
	}
	if _, err = a.Space(); err == nil ||
		!strings.Contains(err.Error(), "base type, g4dn.xlarge at 0.526") {
		t.Errorf("error %v", err)
	}
}

// TestRelaxation: what one configuration's prices say of another one's limit holds, and so the
// ranking is that of all limits.
func TestRelaxation(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 15 {
		p := randomProblem(r)
		a, err := Analyse(p)
		if err != nil {
			t.Fatal(err)
		}
		space, err := a.Space()
		if err != nil {
			continue // the base type costs more than the budget
		}
		limit := make([]float64, len(space))
		for i, c := range space {
			sol, err := new(fluid.Solver).Solve(program(a, c))
			if err != nil {
				t.Fatal(err)
			}
			limit[i] = roundBound(sol.Rate)
		}
		relaxed := newRelaxation(a, space)
		highest, err := relaxed.highestLimits(7)
		if err != nil {
			t.Fatal(err)
		}
		sorted := slices.Clone(limit)
		slices.Sort(sorted)
		slices.Reverse(sorted)
		for i, b := range highest {
			if b.bound != sorted[i] {
				t.Errorf("limit %d is %v, want %v", i, b.bound, sorted[i])
			}
		}
		for i := range space {
			if relaxed.limit[i] < limit[i] {
				t.Errorf("%s: bounded by %v, the limit is %v", space[i], relaxed.limit[i], limit[i])
			}
		}

		need := sorted[0] * r.Float64()
		cheapest, err := newRelaxation(a, space).cheapestReaching(1,
			func(Configuration) float64 { return need })
		if err != nil {
			t.Fatal(err)
		}
		frontier, err := newRelaxation(a, space).priceFrontier(need)
		if err != nil {
			t.Fatal(err)
		}
		want := math.Inf(1)
		for i, c := range space {
			if limit[i] >= need {
				want = min(want, roundBound(p.Price(c)))
			}
		}
		if cheapest[0].price != want || frontier[0].price != want ||
			frontier[len(frontier)-1].bound != sorted[0] {
			t.Errorf("cheapest %v, frontier %v; want price %v up to limit %v", cheapest, frontier,
				want, sorted[0])
		}
	}
}

func program(a *Analysis, c Configuration) *fluid.Program {
	p := a.program
	p.Types = slices.Clone(p.Types)
	for i, n := range c {
		p.Types[i].Count = n
	}
	return &p
}

// BenchmarkEq15 bounds 331 configurations, and almost a million, and finds the ten highest.
func BenchmarkEq15(b *testing.B) {
	for _, budget := range []float64{2.5, 19} {
		p := rm2()
		p.Budget = budget
		a, err := Analyse(p)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprint(budget), func(b *testing.B) {
			space := 0
			for b.Loop() {
				if _, space, err = a.firstByOrder(10, byEq15, needFor(0)); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(space), "configurations")
		})
	}
}

// BenchmarkFluid plans from as many, by the fluid limit.
func BenchmarkFluid(b *testing.B) {
	for _, budget := range []float64{2.5, 19} {
		p := rm2()
		p.Budget = budget
		b.Run(fmt.Sprint(budget), func(b *testing.B) {
			for b.Loop() {
				if _, err := (Fluid{}).Plan(b.Context(), p, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Percentages have no exponent: a plan that costs twice as much costs 100 % more.
func TestPercent(t *testing.T) {
	for x, want := range map[float64]string{
		0: "0", 1e-14: "0", .0123: "0.012", 1.25: "1.2", 9.97: "10", 62.5: "62", 99.7: "100",
		100: "100", 123.4: "123", 1e4: "10000",
	} {
		if got := formatPercent(x); got != want {
			t.Errorf("%v: got %s, want %s", x, got, want)
		}
	}
	p := &Problem{
		Types: []Type{{"a", 1, 1}, {"b", 2, 1}}, Objective: LeastCost, Rate: 1,
		Models: []ModelDemand{{
			Name: "m", QoSTarget: time.Second, BatchSizes: profiles.Distribution{{BatchSize: 1,
				Share: 1}},
			Latencies: []Latencies{line{0, time.Millisecond}, line{0, time.Microsecond}},
		}},
	}
	r, err := Fluid{}.Plan(t.Context(), p, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Plans[1].Reason; got != "costs 100 % more than the first" {
		t.Errorf("got reason %q", got)
	}
	if got := servesLess(&Plan{Predicted: .001}, &Plan{Predicted: 1}); got !=
		"serves 100 % less than the first" {
		t.Errorf("got reason %q", got)
	}
}

// TestOnlySharelessAnswered: where types answer only sizes in time that no query has, the error
// names the smallest size that queries have.
func TestOnlySharelessAnswered(t *testing.T) {
	p := rm2()
	p.Models[0].QoSTarget = 5 * time.Millisecond
	p.Models[0].BatchSizes = profiles.Distribution{
		{BatchSize: 1, Share: 0}, {BatchSize: 500, Share: 0.9}, {BatchSize: 900, Share: 0.1},
	}
	_, err := Analyse(p)
	if err == nil || !strings.Contains(err.Error(), "of batch size 500, takes 132.45ms") {
		t.Errorf("got %v, want that queries of 500 take too long", err)
	}
}
