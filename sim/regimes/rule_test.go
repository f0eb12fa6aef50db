package regimes

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/latency"
)

// makeResult is a result with so many queries of each model, of which the given shares were
// answered in time, all after the given part of the target.
func makeResult(r *Regime, policy string, part float64, shares ...float64) *Result {
	const queries = 1000
	x := &Result{Policy: policy, Duration: time.Second}
	for i, share := range shares {
		m := ModelResult{Queries: queries, InTime: int(math.Round(share * queries))}
		m.Answered = m.InTime
		for range m.InTime {
			m.latencies = append(m.latencies, scaleDuration(r.Models[i].QoSTarget, part))
		}
		x.Models = append(x.Models, m)
	}
	return x
}

// simpleRegime is a regime of models with a target of 100 ms and runs of 10 ms, on lanes.
func simpleRegime(t *testing.T, load float64, models int, lanes ...Lanes) *Regime {
	t.Helper()
	one, err := workload.Fixed(1)
	if err != nil {
		t.Fatal(err)
	}
	r := &Regime{
		Name: "simple", Lanes: lanes, Load: load, Queries: 2000, Deadline: usualDeadline,
	}
	for i := range models {
		r.Models = append(r.Models, Model{Model: sim.Model{
			Name: modelName(i), QoSTarget: 100 * time.Millisecond, BatchSizes: one,
			Latencies: map[string]match.Latencies{
				"t": latency.Fixed{Base: 10 * time.Millisecond},
			},
		}})
	}
	return r
}

// TestBroken: the rule finds what a baseline does better, and nothing else.
func TestBroken(t *testing.T) {
	lanes := Lanes{Type: "t", Count: 2}
	one, two := simpleRegime(t, .5, 1, lanes), simpleRegime(t, .5, 2, lanes)
	over := simpleRegime(t, 1.5, 2, lanes)
	for _, tt := range []struct {
		name     string
		r        *Regime
		part     float64 // of the target that the subject takes
		ours     []float64
		theirs   []float64
		itsParts float64
		want     []string
	}{
		{"the same", one, .5, []float64{1}, []float64{1}, .5, nil},
		{"worse", one, .5, []float64{1}, []float64{.9}, .6, nil},
		{"a bit less late", one, .5, []float64{.999}, []float64{1}, .5, nil},
		{"less late", one, .5, []float64{.997}, []float64{1}, .5, []string{"late %"}},
		{"more answers", one, .5, []float64{.9}, []float64{.95}, .5,
			[]string{"in time/s", "late %"}},
		{"a bit faster", one, .5, []float64{1}, []float64{1}, .46, nil},
		{"faster", one, .5, []float64{1}, []float64{1}, .44,
			[]string{"p50 / target", "p99 / target"}},
		{"faster, but later", one, .5, []float64{1}, []float64{.99}, .1, nil},
		{"several below the limit", two, .5, []float64{1, 1}, []float64{1, 1}, .4,
			[]string{"p50 / target", "p99 / target"}},
		{"above, less fair", over, .5, []float64{.9, .5}, []float64{.7, .7}, .5,
			[]string{"least of a model"}},
		{"above, a bit less fair", over, .5, []float64{.7, .69}, []float64{.7, .7}, .5, nil},
		{"above, fair but fewer", over, .5, []float64{.5, .5}, []float64{.9, .5}, .5,
			[]string{"in time/s"}},
		{"above, later and slower", over, .5, []float64{.7, .7}, []float64{.72, .71}, .1, nil},
	} {
		broken, err := tt.r.Broken([]*Result{
			makeResult(tt.r, Subject, tt.part, tt.ours...),
			makeResult(tt.r, "x", tt.itsParts, tt.theirs...),
		})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, b := range broken {
			got = append(got, b.Figure)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: the rule is broken in %q, want %q", tt.name, got, tt.want)
		}
	}
	if _, err := one.Broken([]*Result{makeResult(one, "x", .5, 1)}); err == nil {
		t.Error("the rule is held without a result of the subject")
	}
}

// TestLimit: the limit is that of what lanes hold, and so are the shares that models reach alone.
func TestLimit(t *testing.T) {
	both := simpleRegime(t, 1.2, 2, Lanes{Type: "t", Count: 4})
	apart := simpleRegime(t, 1.2, 2, Lanes{Type: "t", Count: 1, Models: []string{"m1"}},
		Lanes{Type: "t", Count: 3, Models: []string{"m2"}})
	for _, tt := range []struct {
		r     *Regime
		limit float64
		alone []float64
	}{
		// 100 queries/s a lane; of each model's, one of a hundred may be late.
		{both, 400 / .99, []float64{1, 1}},
		{apart, 2 * 100 / .99, []float64{1 / 1.2, 1}},
	} {
		limit, err := tt.r.Limit()
		if err != nil {
			t.Fatal(err)
		}
		alone, err := tt.r.sharesAlone()
		if err != nil {
			t.Fatal(err)
		}
		if math.Abs(limit/tt.limit-1) > 1e-6 ||
			fmt.Sprintf("%.6f", alone) != fmt.Sprintf("%.6f", tt.alone) {
			t.Errorf("%v: got the limit %.4f and alone %.6f, want %.4f and %.6f", tt.r.Lanes, limit,
				alone, tt.limit, tt.alone)
		}
	}
}

// TestRun: a run is a function of its seed, loses no query, and serves what the limit allows.
func TestRun(t *testing.T) {
	const half, twice = .5, 2
	for _, load := range []float64{half, twice} {
		r := simpleRegime(t, load, 2, Lanes{Type: "t", Count: 4})
		for _, p := range Policies() {
			a, err := r.Run(t.Context(), &p, &Options{Seeds: []uint64{1}})
			if err != nil {
				t.Fatal(err)
			}
			b, err := r.Run(t.Context(), &p, &Options{Seeds: []uint64{1}})
			if err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(a) != fmt.Sprint(b) {
				t.Errorf("%s: two runs with one seed differ", p.Name)
			}
			n := 0
			for i := range a.Models {
				m := &a.Models[i]
				n += m.Queries
				if m.InTime > m.Answered || m.Answered > m.Queries ||
					len(m.latencies) != m.Answered {
					t.Errorf("%s: %d queries, %d answered, %d in time, %d latencies", p.Name,
						m.Queries, m.Answered, m.InTime, len(m.latencies))
				}
			}
			if n != r.Queries {
				t.Errorf("%s: %d queries count, want %d", p.Name, n, r.Queries)
			}
			if late := a.LateShare(r); load == half && late > .05 || load == twice && late < .4 {
				t.Errorf("%s at %g of the limit: %.3f are late", p.Name, load, late)
			}
		}
	}
}

// TestWarmUp: the first queries of a regime with a warm-up do not count.
func TestWarmUp(t *testing.T) {
	r := simpleRegime(t, .5, 1, Lanes{Type: "t", Count: 4})
	r.WarmUp, r.Learns = .25, true
	x, err := r.Run(t.Context(), &Policies()[0], &Options{Seeds: []uint64{1}})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := x.Models[0].Queries, r.Queries*3/4; got != want {
		t.Errorf("%d queries count, want %d", got, want)
	}
	if x.Models[0].InTimeShare() < .99 {
		t.Errorf("%.3f are in time, want nearly all", x.Models[0].InTimeShare())
	}
}

// TestClients: queries that are cancelled do not count, unless they are tried again: then one that
// is answered at last counts from its first try.
func TestClients(t *testing.T) {
	r := simpleRegime(t, .5, 1, Lanes{Type: "t", Count: 4})
	r.CancelShare, r.CancelAfter = .5, .01 // none is answered so soon
	x, err := r.Run(t.Context(), &Policies()[0], &Options{Seeds: []uint64{1}})
	if err != nil {
		t.Fatal(err)
	}
	if got := x.Models[0].Queries; got < 900 || got > 1100 || x.Models[0].Answered != got {
		t.Errorf("%d of %d queries count, %d are answered, want half, and all of them", got,
			r.Queries, x.Models[0].Answered)
	}
	r = simpleRegime(t, 1.5, 1, Lanes{Type: "t", Count: 1})
	r.CancelShare, r.CancelAfter, r.RetryAfter, r.Retries = 1, 1, 1, 2
	x, err = r.Run(t.Context(), &Policies()[0], &Options{Seeds: []uint64{1}})
	if err != nil {
		t.Fatal(err)
	}
	again := 0 // answered in a later try
	for _, l := range x.Models[0].latencies {
		if l > 2*r.Models[0].QoSTarget {
			again++
		}
	}
	if x.Models[0].Queries != r.Queries || again == 0 || x.Models[0].InTime < again {
		t.Errorf("%d queries count, %d were answered in a later try, %d in time; want %d, some, "+
			"and at least those", x.Models[0].Queries, again, x.Models[0].InTime, r.Queries)
	}
}

// TestLatencies: the means of the laws of run times are those of their quantiles.
func TestLatencies(t *testing.T) {
	usual := latency.Fixed{Base: time.Second}
	for _, l := range []match.Latencies{
		bimodal{usual, .05, 8}, logNormal{usual, .5},
		slowedLatency{usual, func(int) float64 { return 2 }},
	} {
		const n = 100_000
		sum := 0.0
		for i := range n {
			sum += l.Quantile((float64(i)+.5)/n, 1).Seconds() / n
		}
		if mean := l.Mean(1).Seconds(); math.Abs(sum/mean-1) > .001 {
			t.Errorf("%T: the mean is %.4f s, that of the quantiles %.4f", l, mean, sum)
		}
	}
}
