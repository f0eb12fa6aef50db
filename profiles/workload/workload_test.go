package workload

import (
	"iter"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func arrivals(t *testing.T, s string, rate float64) Arrivals {
	t.Helper()
	a, err := ParseArrivals(s, rate)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func stream(t *testing.T, seed uint64, a Arrivals, loads ...Load) iter.Seq[Query] {
	t.Helper()
	s, err := Queries(seed, a, loads...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func take(s iter.Seq[Query], n int) []Query {
	var qs []Query
	for q := range s {
		if qs = append(qs, q); len(qs) == n {
			break
		}
	}
	return qs
}

// TestArrivals checks the mean and the coefficient of variation of the gaps.
func TestArrivals(t *testing.T) {
	for s, cv := range map[string]float64{
		"poisson":    1,
		"constant":   0,
		"gamma:0.25": 2,
		"gamma:4":    0.5,
		"artifact":   math.Sqrt(200.0 / 1000), // Poisson of mean 1000/rate ms
	} {
		const rate, n = 200, 100_000
		a := arrivals(t, s, rate)
		if a.String() != s || a.Rate() != rate {
			t.Errorf("%s: is %s at %v queries/s", s, a, a.Rate())
		}
		var sum, squares, last float64
		for _, q := range take(stream(t, 3, a, Load{"m", 1, Trace()}), n) {
			gap := q.At.Seconds() - last
			last = q.At.Seconds()
			sum += gap
			squares += gap * gap
			if s == "artifact" && q.At%time.Millisecond != 0 {
				t.Fatalf("artifact: arrival at %v is no whole millisecond", q.At)
			}
		}
		mean := sum / n
		gotCV := math.Sqrt(max(0, squares/n-mean*mean)) / mean
		if math.Abs(mean*rate-1) > 0.02 || math.Abs(gotCV-cv) > 0.03 {
			t.Errorf("%s: mean gap %.3f ms, coefficient of variation %.3f; want 5 ms and %.3f", s,
				mean*1e3, gotCV, cv)
		}
	}
}

func TestQueriesAreReproducible(t *testing.T) {
	loads := []Load{{"ncf", 3, Trace()}, {"wnd", 1, Trace()}}
	slow := take(stream(t, 5, arrivals(t, "poisson", 100), loads...), 50_000)
	if again := take(stream(t, 5, arrivals(t, "poisson", 100), loads...),
		50_000); !slices.Equal(slow, again) {
		t.Error("the same seed gave other queries")
	}
	if other := take(stream(t, 6, arrivals(t, "poisson", 100), loads...),
		50_000); slices.Equal(slow, other) {
		t.Error("another seed gave the same queries")
	}
	counts := map[string]int{}
	fast := take(stream(t, 5, arrivals(t, "poisson", 1000), loads...), 50_000)
	for i, q := range slow {
		counts[q.Model]++
		if f := fast[i]; f.Model != q.Model || f.BatchSize != q.BatchSize ||
			math.Abs(f.At.Seconds()*10-q.At.Seconds()) > 1e-3 {
			t.Fatalf("query %d: %v at ten times the rate, want %v ten times sooner", i, f, q)
		}
	}
	if share := float64(counts["ncf"]) / 50_000; math.Abs(share-0.75) > 0.01 {
		t.Errorf("ncf has a share of %.3f, want 0.75", share)
	}
}

func TestQueryTrace(t *testing.T) {
	// Times are those of a clock: nothing waits for it, and no time without queries is a part of the
	// run.
	const start = 1700000000000 * time.Millisecond
	want := []Query{
		{Model: "wnd", BatchSize: 5, Number: 1},
		{At: 1500 * time.Microsecond, Model: "ncf", BatchSize: 7, Users: 2, Values: 9, Number: 2},
		{At: 1500 * time.Microsecond, Model: "wnd", BatchSize: 9, Deadline: time.Second, Number: 3},
		{At: time.Second, Model: "ncf", BatchSize: 1, Number: 4},
	}
	f := NewQueryTrace("t")
	if f.Duration() != 0 || f.Rate() != 0 || f.BatchSizes("ncf") != nil {
		t.Error("an empty trace is not empty")
	}
	for _, q := range want {
		q.At += start
		f.Add(q)
	}
	if got := slices.Collect(f.Queries()); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if f.Rate() != 3 || f.Duration() != time.Second || f.Len() != 4 ||
		!slices.Equal(f.Models(), []string{"ncf", "wnd"}) {
		t.Errorf("rate %v, duration %v, models %v", f.Rate(), f.Duration(), f.Models())
	}
	if f.Largest("wnd") != 9 || f.Largest("ncf") != 7 || f.Largest("rm2") != 0 {
		t.Errorf("largest of wnd %d, ncf %d, rm2 %d; want 9, 7, 0", f.Largest("wnd"),
			f.Largest("ncf"), f.Largest("rm2"))
	}
	if got := f.BatchSizes("ncf"); got.Mean() != 4 || f.BatchSizes("rm2") != nil {
		t.Errorf("batch sizes of ncf have mean %v, want 4", got.Mean())
	}
}

func TestBadWorkloads(t *testing.T) {
	for _, rate := range []float64{0, -1, math.NaN(), math.Inf(1), 1e12, 1e-12} {
		if _, err := ParseArrivals("poisson", rate); err == nil ||
			!strings.Contains(err.Error(), "rate") {
			t.Errorf("rate %v: error %v", rate, err)
		}
	}
	for _, s := range []string{
		"", "uniform", "gamma", "gamma:0", "gamma:-1", "gamma:NaN", "gamma:1e9", "poisson:3",
	} {
		if _, err := ParseArrivals(s, 1); err == nil ||
			!strings.Contains(err.Error(), "gamma:SHAPE") {
			t.Errorf("arrivals %q: error %v, want one that names gamma:SHAPE", s, err)
		}
	}
	a := arrivals(t, "poisson", 1)
	for want, loads := range map[string][]Load{
		"at least one model": nil,
		"share 0":            {{"m", 0, Trace()}},
		"share NaN":          {{"m", math.NaN(), Trace()}},
		"share +Inf":         {{"m", math.Inf(1), Trace()}},
		"no batch sizes":     {{"m", 1, nil}},
		"twice":              {{"m", 1, Trace()}, {"m", 1, Trace()}},
	} {
		if _, err := Queries(1, a, loads...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

// TestStreamsNeedNoMemory checks that a query costs no allocation, so that a
// stream of any length fits.
func TestStreamsNeedNoMemory(t *testing.T) {
	for _, s := range []string{"poisson", "constant", "gamma:0.5", "artifact"} {
		next, stop := iter.Pull(stream(t, 1, arrivals(t, s, 100), Load{"a", 1, Trace()}, Load{
			"b", 1, Trace(),
		}))
		defer stop()
		next()
		if n := testing.AllocsPerRun(1000, func() { next() }); n != 0 {
			t.Errorf("%s: %v allocations a query, want 0", s, n)
		}
	}
}

func BenchmarkQueries(b *testing.B) {
	a, err := ParseArrivals("poisson", 100)
	if err != nil {
		b.Fatal(err)
	}
	s, err := Queries(1, a, Load{"m", 1, Trace()})
	if err != nil {
		b.Fatal(err)
	}
	n := 0
	for range s {
		if n++; n == b.N {
			break
		}
	}
}
