package profiles_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-serve/muster/profiles"
)

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	if len(v)%2 == 1 {
		return v[len(v)/2]
	}
	return (v[len(v)/2-1] + v[len(v)/2]) / 2
}

var testKey = profiles.Key{
	Model: "wnd", Version: 2, InstanceType: "c5.2xlarge", Provider: "cpu", Cores: 8,
}

func knot(batch int, mean, p50, p90, p99 float64) profiles.Knot {
	d := func(v float64) time.Duration { return time.Duration(v * float64(time.Millisecond)) }
	return profiles.Knot{
		BatchSize: batch, Mean: d(mean), P50: d(p50), P90: d(p90), P99: d(p99), Error: 0.01,
	}
}

func newTable(t testing.TB, knots ...profiles.Knot) *profiles.Table {
	t.Helper()
	table, err := profiles.NewTable(testKey, profiles.Measured, "test", knots)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func TestTable(t *testing.T) {
	three := newTable(t, knot(10, 2, 1.9, 2.5, 4), knot(20, 3, 2.9, 4, 6), knot(40, 7, 6.9, 8, 10))
	for _, c := range []struct {
		name  string
		table *profiles.Table
		batch int
		mean  float64
		p90   float64
	}{
		{"below the first knot", three, 1, 2, 2.5},
		{"zero", three, 0, 2, 2.5},
		{"negative", three, -5, 2, 2.5},
		{"at a knot", three, 20, 3, 4},
		{"between", three, 30, 5, 6},
		{"at the last", three, 40, 7, 8},
		{"beyond the last", three, 60, 11, 8 * 11.0 / 7},
		{"one knot, below", newTable(t, knot(10, 2, 2, 3, 4)), 3, 2, 3},
		{"one knot, beyond", newTable(t, knot(10, 2, 2, 3, 4)), 30, 6, 9},
		{"falling at the end", newTable(t, knot(10, 2, 2, 3, 4), knot(20, 1.5, 1, 2, 3)), 40, 1.5,
			2},
	} {
		if got := ms(c.table.Mean(c.batch)); math.Abs(got-c.mean) > 1e-6 {
			t.Errorf("%s: mean at %d is %v ms, want %v", c.name, c.batch, got, c.mean)
		}
		if got := ms(c.table.Quantile(0.9, c.batch)); math.Abs(got-c.p90) > 1e-5 {
			t.Errorf("%s: p90 at %d is %v ms, want %v", c.name, c.batch, got, c.p90)
		}
	}
	for _, c := range []struct{ within, want int }{
		{1, 0}, {2, 10}, {3, 20}, {7, 40}, {11, 60}, {1000, 100},
	} {
		if got := three.LargestBatchSize(time.Duration(c.within)*time.Millisecond,
			100); got != c.want {
			t.Errorf("largest batch size within %d ms is %d, want %d", c.within, got, c.want)
		}
	}
	if got := ms(three.Scale(1.5).Mean(30)); math.Abs(got-7.5) > 1e-6 {
		t.Errorf("scaled mean is %v, want 7.5", got)
	}
}

func TestQuantileIsOrderedAndHasTheMean(t *testing.T) {
	library := profiles.ShippedLibrary()
	r := rand.New(rand.NewPCG(1, 1))
	for _, model := range library.Models() {
		for _, it := range library.Types(model) {
			table, err := library.Table(model, it)
			if err != nil {
				t.Fatal(err)
			}
			for _, batch := range []int{1, 95, 400, 1000, 1500} {
				last := time.Duration(0)
				for p := 0.0; p <= 1; p += 0.005 {
					q := table.Quantile(p, batch)
					if q < last || q <= 0 {
						t.Fatalf("%s: quantile %v at batch size %d is %v, the one before %v",
							table.Key(), p, batch, q, last)
					}
					last = q
				}
				const n = 5_000
				var sum float64
				for range n {
					sum += ms(table.Quantile(r.Float64(), batch))
				}
				if got, want := sum/n, ms(table.Mean(batch)); math.Abs(got/want-1) > 0.02 {
					t.Errorf("%s: the mean of draws at batch size %d is %v ms, want %v",
						table.Key(), batch, got, want)
				}
			}
		}
	}
}

func TestNewTableErrors(t *testing.T) {
	good := knot(10, 1, 1, 2, 3)
	with := func(change func(*profiles.Knot)) []profiles.Knot {
		k := good
		change(&k)
		return []profiles.Knot{k}
	}
	for name, knots := range map[string][]profiles.Knot{
		"none":       nil,
		"zero batch": with(func(k *profiles.Knot) { k.BatchSize = 0 }),
		"huge batch": with(func(k *profiles.Knot) {
			k.BatchSize = profiles.MaxBatchSize + 1
		}),
		"twice":               {good, good},
		"zero mean":           with(func(k *profiles.Knot) { k.Mean = 0 }),
		"negative mean":       with(func(k *profiles.Knot) { k.Mean = -1 }),
		"zero p50":            with(func(k *profiles.Knot) { k.P50 = 0 }),
		"p90 below p50":       with(func(k *profiles.Knot) { k.P90 = k.P50 - 1 }),
		"p99 below p90":       with(func(k *profiles.Knot) { k.P99 = k.P90 - 1 }),
		"NaN error":           with(func(k *profiles.Knot) { k.Error = math.NaN() }),
		"infinite error":      with(func(k *profiles.Knot) { k.Error = math.Inf(1) }),
		"descending in batch": {knot(20, 1, 1, 1, 1), good},
	} {
		if table, err := profiles.NewTable(testKey, profiles.Learned, "", knots); err == nil {
			t.Errorf("%s: no error, table %v", name, table.Knots())
		}
	}
}

func TestTableJSON(t *testing.T) {
	table := newTable(t, knot(10, 2, 1.9, 2.5, 4), knot(20, 3, 2.9, 4, 6))
	data, err := json.Marshal(table)
	if err != nil {
		t.Fatal(err)
	}
	var back profiles.Table
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(table.Knots(), back.Knots()); diff != "" || back.Key() != table.Key() ||
		back.Origin() != table.Origin() {
		t.Errorf("read back as %s, %s: %s", back.Key(), back.Origin(), diff)
	}
	if err := json.Unmarshal([]byte(`{"model":"x","knots":[]}`), &back); err == nil {
		t.Error("a table without knots was read")
	}
	if back.Key() != table.Key() || len(back.Knots()) != 2 {
		t.Error("an error changed the table")
	}
}

func BenchmarkTableMean(b *testing.B) {
	table, err := profiles.ShippedLibrary().Table("wnd", "t3.xlarge")
	if err != nil {
		b.Fatal(err)
	}
	batch := 1
	for b.Loop() {
		table.Mean(batch)
		batch = batch%1000 + 1
	}
}

func BenchmarkTableQuantile(b *testing.B) {
	table, err := profiles.ShippedLibrary().Table("wnd", "t3.xlarge")
	if err != nil {
		b.Fatal(err)
	}
	batch := 1
	for b.Loop() {
		table.Quantile(0.8, batch)
		batch = batch%1000 + 1
	}
}
