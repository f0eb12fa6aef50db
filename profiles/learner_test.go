package profiles_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/workload"
)

// A machine answers queries in the measured times of a series.
type machine struct {
	series *profiles.Series
	sizes  *workload.BatchSizes
	r      *rand.Rand
	now    time.Time
}

func newMachine(series *profiles.Series, seed uint64) *machine {
	return &machine{
		series: series, sizes: workload.Trace(), r: rand.New(rand.NewPCG(seed, 1)),
		now: time.Unix(1e9, 0),
	}
}

// query draws one: its batch size, as the series was measured at, and its latency.
func (m *machine) query() (batch int, latency time.Duration) {
	batch = (m.sizes.Draw(m.r) + 9) / 10 * 10
	cell := m.series.At(batch)
	return batch, cell[m.r.IntN(len(cell))]
}

// teach has the learner observe n queries of an agent that takes slowness times as long.
func (m *machine) teach(t testing.TB, l *profiles.Learner, n int, agent string, slowness float64) {
	t.Helper()
	for range n {
		batch, latency := m.query()
		m.observe(t, l, batch, time.Duration(float64(latency)*slowness), agent)
	}
}

func (m *machine) observe(t testing.TB, l *profiles.Learner, batch int, latency time.Duration,
	agent string) {
	t.Helper()
	m.now = m.now.Add(10 * time.Millisecond)
	if err := l.Observe(batch, latency, names.AgentName(agent), m.now); err != nil {
		t.Fatal(err)
	}
}

// errorsOf returns the relative error of the table's mean at every measured batch size.
func errorsOf(table *profiles.Table, series *profiles.Series, slowness float64) []float64 {
	var all []float64
	for _, batch := range series.BatchSizes() {
		all = append(all, math.Abs(ms(table.Mean(batch))/(slowness*ms(series.Mean(batch)))-1))
	}
	return all
}

// eachPair runs f for the five models on the four instance types.
func eachPair(t *testing.T, f func(t *testing.T, series *profiles.Series, noisy bool)) {
	samples := kairosSamples(t)
	pairs := 0
	for _, model := range samples.Models() {
		for _, it := range samples.Types(model) {
			series, err := samples.Series(model, it)
			if err != nil {
				t.Fatal(err)
			}
			pairs++
			t.Run(fmt.Sprintf("%s/%s", model, it),
				func(t *testing.T) { f(t, series, it == "t3.xlarge") })
		}
	}
	if pairs != 20 {
		t.Errorf("%d pairs, want 20", pairs)
	}
}

// The truth is the mean of each cell of the samples, batch sizes 10, 20, ... 1000; the queries
// have the batch sizes of the production trace. An error is the median over those 100 batch
// sizes and the seeds.
func TestLearnerFindsTheMeans(t *testing.T) {
	eachPair(t, func(t *testing.T, series *profiles.Series, noisy bool) {
		limit30, limit2000 := 0.05, 0.02
		if noisy {
			limit30, limit2000 = 0.10, 0.04
		}
		var after30, after2000, claimed []float64
		for seed := range uint64(20) {
			m, l := newMachine(series, seed), profiles.NewLearner(profiles.Key{}, nil)
			m.teach(t, l, 30, "a", 1)
			after30 = append(after30, errorsOf(l.LatencyTable(), series, 1)...)
			if seed >= 5 {
				continue
			}
			m.teach(t, l, 1970, "a", 1)
			table := l.LatencyTable()
			e := errorsOf(table, series, 1)
			if m := median(e); m >= limit2000 {
				t.Errorf("seed %d: median error after 2000 queries is %.2f %%, want under %.0f %%",
					seed, 100*m, 100*limit2000)
			}
			after2000 = append(after2000, e...)
			for _, batch := range series.BatchSizes() {
				claimed = append(claimed, table.Error(batch))
			}
			if l.Changes() != 0 {
				t.Errorf("seed %d: %d changes seen where there was none", seed, l.Changes())
			}
		}
		if m := median(after30); m >= limit30 {
			t.Errorf("median error after 30 queries is %.2f %%, want under %.0f %%", 100*m,
				100*limit30)
		}
		t.Logf(
			"median error after 30 queries %.2f %%, after 2000 %.2f %% (standard error claimed: "+
				"%.2f %%)", 100*median(after30), 100*median(after2000), 100*median(claimed))
		// What it says of its own error: neither idle nor boastful. A median error
		// is 0.67 standard errors.
		if e, s := median(after2000), median(claimed); s < e/3 || s > 12*max(e, 0.0005) {
			t.Errorf("standard error claimed is %.2f %% where the median error is %.2f %%", 100*s,
				100*e)
		}
	})
}

func TestLearnerFindsTheQuantiles(t *testing.T) {
	eachPair(t, func(t *testing.T, series *profiles.Series, noisy bool) {
		truth, err := series.Table(profiles.Key{})
		if err != nil {
			t.Fatal(err)
		}
		m, l := newMachine(series, 1), profiles.NewLearner(profiles.Key{}, nil)
		m.teach(t, l, 5000, "a", 1)
		for _, c := range []struct{ p, limit, noisyLimit float64 }{
			{0.5, 0.03, 0.06}, {0.8, 0.03, 0.08}, {0.9, 0.04, 0.10}, {0.99, 0.05, 0.25},
		} {
			var e []float64
			for _, batch := range series.BatchSizes() {
				e = append(
					e,
					math.Abs(ms(l.LatencyTable().Quantile(c.p, batch))/ms(truth.Quantile(c.p,
						batch))-1))
			}
			limit := c.limit
			if noisy {
				limit = c.noisyLimit
			}
			t.Logf("p%.0f: median error %.1f %%", 100*c.p, 100*median(e))
			if median(e) > limit {
				t.Errorf("median error of p%.0f is %.1f %%, want at most %.0f %%", 100*c.p,
					100*median(e), 100*limit)
			}
		}
	})
}

func TestLearnerShrugsOffOutliers(t *testing.T) {
	eachPair(t, func(t *testing.T, series *profiles.Series, _ bool) {
		for seed := range uint64(3) {
			clean, dirty := profiles.NewLearner(profiles.Key{},
				nil), profiles.NewLearner(profiles.Key{}, nil)
			m, outliers := newMachine(series, seed), rand.New(rand.NewPCG(seed, 2))
			for range 3000 {
				batch, latency := m.query()
				m.observe(t, clean, batch, latency, "a")
				if outliers.Float64() < 0.01 {
					latency *= 10
				}
				m.observe(t, dirty, batch, latency, "a")
			}
			var moved []float64
			for _, batch := range series.BatchSizes() {
				moved = append(moved,
					math.Abs(ms(dirty.LatencyTable().Mean(batch))/ms(clean.LatencyTable().Mean(batch))-1))
			}
			t.Logf(
				"seed %d: 1 %% of the samples ten times too large move the mean by %.2f %% "+
					"(median over batch sizes; at most %.1f %%)", seed, 100*median(moved),
				100*slices.Max(moved))
			if median(moved) > 0.02 {
				t.Errorf("seed %d: the mean moved by %.2f %%, want at most 2 %%", seed,
					100*median(moved))
			}
			if dirty.Changes() != 0 {
				t.Errorf("seed %d: outliers were taken for %d changes", seed, dirty.Changes())
			}
		}
	})
}

func TestLearnerSeesAMachineSlowDown(t *testing.T) {
	eachPair(t, func(t *testing.T, series *profiles.Series, noisy bool) {
		limit := 0.05
		if noisy {
			limit = 0.15
		}
		for seed := range uint64(3) {
			m, l := newMachine(series, seed), profiles.NewLearner(profiles.Key{}, nil)
			m.teach(t, l, 2000, "a", 1)
			seen := 0
			for seen < 100 && l.Changes() == 0 {
				m.teach(t, l, 1, "a", 1.5)
				seen++
			}
			if l.Changes() == 0 {
				t.Fatalf("seed %d: 1.5 times slower, unseen for 100 queries", seed)
			}
			m.teach(t, l, 100-seen, "a", 1.5)
			e := median(errorsOf(l.LatencyTable(), series, 1.5))
			t.Logf("seed %d: seen after %d queries; median error after 100: %.1f %%", seed, seen,
				100*e)
			if e > limit {
				t.Errorf(
					"seed %d: median error 100 queries after the change is %.1f %%, want at most "+
						"%.0f %%", seed, 100*e, 100*limit)
			}
			m.teach(t, l, 300, "a", 1)
			if e := median(errorsOf(l.LatencyTable(), series, 1)); e > limit {
				t.Errorf(
					"seed %d: median error after it recovered is %.1f %%, want at most %.0f %%",
					seed, 100*e, 100*limit)
			}
		}
	})
}

func TestLearnerFollowsADrift(t *testing.T) {
	eachPair(t, func(t *testing.T, series *profiles.Series, noisy bool) {
		limit := 0.04
		if noisy {
			limit = 0.08
		}
		m, l := newMachine(series, 1), profiles.NewLearner(profiles.Key{}, nil)
		m.teach(t, l, 20_000, "a", 1)
		if l.Changes() != 0 {
			t.Errorf("%d changes seen where there was none", l.Changes())
		}
		worst := 0.0
		for slowness := 1.0; slowness < 1.3; slowness += 0.01 {
			m.teach(t, l, 150, "a", slowness)
			worst = max(worst, median(errorsOf(l.LatencyTable(), series, slowness)))
		}
		t.Logf(
			"a machine that slows down by 30 %% over 4,500 queries: the median error is %.1f %% "+
				"at most", 100*worst)
		if worst > limit {
			t.Errorf("the median error is %.1f %%, want at most %.0f %%", 100*worst, 100*limit)
		}
	})
}

func series(t testing.TB, model string, it profiles.InstanceType) *profiles.Series {
	t.Helper()
	s, err := kairosSamples(t).Series(model, it)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestLearnerTellsAgentsApart(t *testing.T) {
	for _, it := range []profiles.InstanceType{"c5n.2xlarge", "t3.xlarge"} {
		s := series(t, "wnd", it)
		m, l := newMachine(s, 4), profiles.NewLearner(profiles.Key{}, nil)
		speed := map[string]float64{"a": 0.9, "b": 1, "c": 1.1}
		check := func(when string, mean float64) {
			t.Helper()
			var sum float64
			for _, a := range l.Agents() {
				sum += a.Factor
				want := speed[string(a.Name)] / mean
				if math.Abs(a.Factor/want-1) > 0.05 || a.Factor != l.Factor(a.Name) {
					t.Errorf("%s, %s: factor of %s is %.3f (± %.3f), want %.3f", it, when, a.Name,
						a.Factor, a.Error, want)
				}
			}
			if math.Abs(sum/float64(len(l.Agents()))-1) > 0.05 {
				t.Errorf("%s, %s: the mean factor is %.3f", it, when, sum/3)
			}
			if e := median(errorsOf(l.LatencyTable(), s, mean)); e > 0.06 {
				t.Errorf("%s, %s: median error of the type's mean is %.1f %%", it, when, 100*e)
			}
		}
		for range 1000 {
			for a, slowness := range speedsInOrder(speed) {
				m.teach(t, l, 1, a, slowness)
			}
		}
		check("at first", 1)

		speed["b"] = 1.5
		for range 100 {
			for a, slowness := range speedsInOrder(speed) {
				m.teach(t, l, 1, a, slowness)
			}
		}
		if got, want := l.Factor("b")/l.Factor("a"), 1.5/0.9; math.Abs(got/want-1) > 0.12 {
			t.Errorf("%s: b is %.2f times as slow as a after 100 queries, want %.2f", it, got, want)
		}
		for range 1000 {
			for a, slowness := range speedsInOrder(speed) {
				m.teach(t, l, 1, a, slowness)
			}
		}
		check("after b slowed down", 3.5/3)
		if got := l.Factor("unknown"); got != 1 {
			t.Errorf("factor of an unknown agent is %v", got)
		}

		// Agents that have gone no longer count.
		m.now = m.now.Add(2 * time.Hour)
		m.teach(t, l, 100, "b", 1.5)
		if a := l.Agents(); len(a) != 1 || a[0].Name != "b" || a[0].Factor != 1 {
			t.Errorf("%s: agents two hours later: %v", it, a)
		}
		if e := median(errorsOf(l.LatencyTable(), s, 1.5)); e > 0.06 {
			t.Errorf("%s: median error with b alone is %.1f %%", it, 100*e)
		}
	}
}

func speedsInOrder(speed map[string]float64) func(func(string, float64) bool) {
	return func(yield func(string, float64) bool) {
		for _, a := range []string{"a", "b", "c"} {
			if !yield(a, speed[a]) {
				return
			}
		}
	}
}

func TestLearnerStartsFromAPrior(t *testing.T) {
	s := series(t, "rm2", "r5n.large")
	key := profiles.Key{Model: "rm2", Version: 7, InstanceType: "r5n.large", Provider: "cpu"}
	shipped, err := profiles.ShippedLibrary().Table("rm2", "r5n.large")
	if err != nil {
		t.Fatal(err)
	}
	l := profiles.NewLearner(key, shipped)
	table := l.LatencyTable()
	if table.Origin() != profiles.Inherited || table.Key() != key {
		t.Errorf("before any query: %s of %s", table.Origin(), table.Key())
	}
	if table.Error(200) < 0.3 {
		t.Errorf("an inherited profile is doubted by %v only", table.Error(200))
	}
	if e := median(errorsOf(table, s, 1)); e > 0.02 {
		t.Errorf("before any query the median error is %.1f %%", 100*e)
	}
	// The new version is three times as fast, and five queries tell.
	m := newMachine(s, 1)
	m.teach(t, l, 5, "a", 1/3.0)
	if e := median(errorsOf(l.LatencyTable(), s, 1/3.0)); e > 0.10 {
		t.Errorf("after 5 queries of a version three times as fast the median error is %.1f %%",
			100*e)
	}
	m.teach(t, l, 2000, "a", 1/3.0)
	if e := median(errorsOf(l.LatencyTable(), s, 1/3.0)); e > 0.02 ||
		l.LatencyTable().Origin() != profiles.Learned {
		t.Errorf("after 2005 queries the median error is %.1f %%", 100*e)
	}
	// Ten times slower, and of another shape.
	other := series(t, "wnd", "g4dn.xlarge")
	l = profiles.NewLearner(key, shipped)
	newMachine(other, 1).teach(t, l, 2000, "a", 1)
	if e := median(errorsOf(l.LatencyTable(), other, 1)); e > 0.05 {
		t.Errorf(
			"started from another model's profile, the median error after 2000 queries is %.1f %%",
			100*e)
	}
}

func TestLearnerFewOrOddObservations(t *testing.T) {
	now := time.Unix(1e9, 0)
	l := profiles.NewLearner(profiles.Key{Model: "m"}, nil)
	if l.LatencyTable() != nil {
		t.Errorf("a table from nothing: %v", l.LatencyTable().Knots())
	}
	for _, c := range []struct {
		batch   int
		latency time.Duration
	}{{0, 1}, {-1, 1}, {profiles.MaxBatchSize + 1, 1}, {1, 0}, {1, -5}, {1, 25 * time.Hour},
		{1, math.MaxInt64}, {1, math.MinInt64}} {
		if err := l.Observe(c.batch, c.latency, "a", now); err == nil {
			t.Errorf("batch size %d, latency %v: no error", c.batch, c.latency)
		}
	}
	if l.Queries() != 0 || len(l.Agents()) != 0 || l.LatencyTable() != nil {
		t.Errorf("rejected observations left a trace: %d queries", l.Queries())
	}
	if err := l.Observe(100, 10*time.Millisecond, "a", now); err != nil {
		t.Fatal(err)
	}
	table := l.LatencyTable()
	if got := ms(table.Mean(100)); math.Abs(got-10) > 0.5 {
		t.Errorf("after one query of 10 ms the mean is %v ms", got)
	}
	if got := ms(table.Mean(200)); got < 12 || got > 20 {
		t.Errorf("after one query of 10 ms at 100, the mean at 200 is %v ms", got)
	}
	if table.Error(1000) < table.Error(100) || table.Error(100) < 0.03 {
		t.Errorf("after one query the error is %v at 100 and %v at 1000", table.Error(100),
			table.Error(1000))
	}
	// The same batch size again and again, and one outlier first.
	l = profiles.NewLearner(profiles.Key{Model: "m"}, nil)
	for i := range 20 {
		d := 10 * time.Millisecond
		if i == 0 {
			d *= 20
		}
		if err := l.Observe(64, d, "a", now); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("after one query of 200 ms and 19 of 10 ms the mean is %v", l.LatencyTable().Mean(64))
	for range 200 {
		if err := l.Observe(64, 10*time.Millisecond, "a", now); err != nil {
			t.Fatal(err)
		}
	}
	if got := ms(l.LatencyTable().Mean(64)); math.Abs(got-10) > 1 {
		t.Errorf("after 219 queries of 10 ms the mean is %v ms", got)
	}
}

func TestLearnerIsDeterministicAndSurvivesJSON(t *testing.T) {
	s := series(t, "ncf", "t3.xlarge")
	shipped, err := profiles.ShippedLibrary().Table("ncf", "t3.xlarge")
	if err != nil {
		t.Fatal(err)
	}
	for name, prior := range map[string]*profiles.Table{"line": nil, "prior": shipped} {
		make := func() *profiles.Learner {
			l := profiles.NewLearner(profiles.Key{Model: "ncf", InstanceType: "t3.xlarge"}, prior)
			m := newMachine(s, 3)
			for i := range 1500 {
				m.teach(t, l, 1, fmt.Sprint("agent", i%3), 1)
			}
			return l
		}
		l, twin := make(), make()
		data, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		other, err := json.Marshal(twin)
		if err != nil {
			t.Fatal(err)
		}
		if string(data) != string(other) {
			t.Errorf("%s: two learners given the same differ", name)
		}
		var back profiles.Learner
		if err := json.Unmarshal(data, &back); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if back.Key() != l.Key() || back.Queries() != l.Queries() ||
			!back.Updated().Equal(l.Updated()) {
			t.Errorf("%s: read back as %s with %d queries", name, back.Key(), back.Queries())
		}
		for batch := 1; batch <= 2000; batch += 7 {
			for _, got := range []float64{
				ms(back.LatencyTable().Mean(batch)) / ms(l.LatencyTable().Mean(batch)),
				ms(back.LatencyTable().Quantile(.9, batch)) / ms(l.LatencyTable().Quantile(.9,
					batch)),
			} {
				if math.Abs(got-1) > 1e-4 {
					t.Errorf("%s: read back, the profile at %d differs by a factor %v", name, batch,
						got)
				}
			}
		}
		for _, a := range l.Agents() {
			if math.Abs(back.Factor(a.Name)/a.Factor-1) > 1e-6 {
				t.Errorf("%s: read back, the factor of %s is %v, was %v", name, a.Name,
					back.Factor(a.Name), a.Factor)
			}
		}
		again, err := json.Marshal(&back)
		if err != nil {
			t.Fatal(err)
		}
		if len(again) < len(data)/2 {
			t.Errorf("%s: written again it has %d bytes, was %d", name, len(again), len(data))
		}
	}
}

func TestLearnerJSONErrors(t *testing.T) {
	l := profiles.NewLearner(profiles.Key{Model: "m", InstanceType: "t"}, nil)
	for i := range 50 {
		if err := l.Observe(100+i%3*50, time.Duration(10+i%3)*time.Millisecond, "a",
			time.Unix(1e9, 0).UTC()); err != nil {
			t.Fatal(err)
		}
	}
	data, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	knots := l.LatencyTable().Knots()
	change := func(f func(map[string]any)) string {
		var v map[string]any
		if err := json.Unmarshal(data, &v); err != nil {
			t.Fatal(err)
		}
		f(v)
		out, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	first := func(v map[string]any, list string) map[string]any {
		return v[list].([]any)[0].(map[string]any)
	}
	for _, c := range []struct{ in, want string }{
		{"", "unexpected end"},
		{string(data[:len(data)/2]), "unexpected end"},
		{"{}", "format is 0, want 1"},
		{`{"format":1,"extra":2}`, "extra"},
		{change(func(v map[string]any) { v["format"] = 9 }), "format is 9, want 1"},
		{change(func(v map[string]any) { v["observed"] = 0 }), "0 queries observed, but 3 bins"},
		{change(func(v map[string]any) { v["observed"] = -1 }), "observed"},
		{change(func(v map[string]any) { v["changes"] = -1 }), "changes is -1"},
		{change(func(v map[string]any) { first(v, "bins")["batch_size"] = 0 }),
			"batch size 0 is not within"},
		{change(func(v map[string]any) { first(v, "bins")["batch_size"] = 150 }), "occurs twice"},
		{change(func(v map[string]any) { first(v, "bins")["queries"] = -1 }), "queries is -1"},
		{change(func(v map[string]any) { first(v, "bins")["queries"] = 1e9 }), "queries is 1e+09"},
		{change(func(v map[string]any) { first(v, "bins")["latency_ms"] = 0 }), "latency_ms is 0"},
		{change(func(v map[string]any) { first(v, "bins")["latency_ms"] = 1e20 }),
			"latency_ms is 1e+20"},
		{change(func(v map[string]any) { first(v, "bins")["noise"] = -1 }), "noise is -1"},
		{change(func(v map[string]any) { first(v, "agents")["factor"] = 0 }),
			`agent "a": factor is 0`},
		{change(func(v map[string]any) { first(v, "agents")["variance"] = -1 }),
			`agent "a": variance is -1`},
		{change(func(v map[string]any) { first(v, "agents")["queries"] = -1 }),
			`agent "a": queries is -1`},
		{change(func(v map[string]any) {
			v["agents"] = append(v["agents"].([]any), v["agents"].([]any)...)
		}), "ascending names"},
		{change(func(v map[string]any) { v["shape"] = []int{1, 2} }), "shape has 2 values"},
		{change(func(v map[string]any) { v["shape"].([]any)[3] = -1 }), "shape value 3 is -1"},
	} {
		err := json.Unmarshal([]byte(c.in), l)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("reading %.100s: %v, want %q", c.in, err, c.want)
		}
		if diff := cmp.Diff(knots, l.LatencyTable().Knots()); diff != "" {
			t.Fatalf("an error changed the learner: %s", diff)
		}
	}
}

func TestObserveAllocatesNothing(t *testing.T) {
	m, l := newMachine(series(t, "wnd", "c5n.2xlarge"), 1), profiles.NewLearner(profiles.Key{}, nil)
	m.teach(t, l, 500, "a", 1)
	m.teach(t, l, 500, "b", 1)
	if n := testing.AllocsPerRun(1000, func() { m.teach(t, l, 1, "a", 1) }); n != 0 {
		t.Errorf("%v allocations an observation", n)
	}
}

func BenchmarkObserve(b *testing.B) {
	m, l := newMachine(series(b, "wnd", "t3.xlarge"), 1), profiles.NewLearner(profiles.Key{}, nil)
	agents := []string{"agent-1", "agent-2", "agent-3", "agent-4"}
	batches, latencies := make([]int, 1024), make([]time.Duration, 1024)
	for i := range batches {
		batches[i], latencies[i] = m.query()
	}
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		l.Observe(batches[i%1024], latencies[i%1024], names.AgentName(agents[i%4]), m.now)
		i++
	}
}

// Whatever is observed, the profile stays a valid one.
func FuzzLearner(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, false)
	f.Add([]byte{0, 0, 255, 255, 255, 255, 0, 0, 128, 0, 63, 1}, true)
	f.Fuzz(func(t *testing.T, data []byte, prior bool) {
		var start *profiles.Table
		if prior {
			start = newTable(t, knot(1, 1, 1, 1, 1), knot(100, 5, 5, 5, 5))
		}
		l := profiles.NewLearner(profiles.Key{}, start)
		now := time.Unix(0, 0)
		for ; len(data) >= 4; data = data[4:] {
			batch := 1 + int(data[0])<<(data[1]%9)
			latency := time.Duration(1+int64(data[2])) << (data[1] / 9 % 40)
			if err := l.Observe(batch, latency, names.AgentName(string(data[3]%4+'a')),
				now); err != nil {
				continue
			}
			now = now.Add(time.Duration(data[3]) * time.Minute)
			last := time.Duration(0)
			for b := 1; b <= profiles.MaxBatchSize; b *= 2 {
				mean := l.LatencyTable().Mean(b)
				if mean < last || mean <= 0 ||
					l.LatencyTable().Quantile(0.99, b) < l.LatencyTable().Quantile(0.5, b) {
					t.Fatalf("mean %v at batch size %d, %v at half of it", mean, b, last)
				}
				last = mean
				if e := l.LatencyTable().Error(b); !(e >= 0) || math.IsInf(e, 1) {
					t.Fatalf("error %v at batch size %d", e, b)
				}
			}
		}
		out, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		var back profiles.Learner
		if err := json.Unmarshal(out, &back); err != nil {
			t.Fatalf("cannot read back %s: %v", out, err)
		}
	})
}
