package profiles_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/workload"
)

// A stream feeds queries to a monitor.
type stream struct {
	t        testing.TB
	m        *profiles.Monitor
	r        *rand.Rand
	sizes    *workload.BatchSizes
	arrivals workload.Arrivals
	now      time.Time
}

func newStream(t testing.TB, seed uint64, sizes *workload.BatchSizes, arrivals string,
	rate float64) *stream {
	s := &stream{
		t: t, m: profiles.NewMonitor(), r: rand.New(rand.NewPCG(seed, 5)), sizes: sizes,
		now: time.Unix(1e9, 0),
	}
	s.arrive(arrivals, rate)
	return s
}

func (s *stream) arrive(arrivals string, rate float64) {
	s.t.Helper()
	a, err := workload.ParseArrivals(arrivals, rate)
	if err != nil {
		s.t.Fatal(err)
	}
	s.arrivals = a
}

func (s *stream) send(n int) {
	s.t.Helper()
	for range n {
		s.now = s.now.Add(s.arrivals.Gap(s.r))
		if err := s.m.Observe(s.sizes.Draw(s.r), s.now); err != nil {
			s.t.Fatal(err)
		}
	}
}

// until sends queries until a change is seen, at most n, and returns how many it took.
func (s *stream) until(n int) (int, profiles.Change) {
	s.t.Helper()
	for i := range n {
		s.send(1)
		if c, ok := s.m.Change(); ok {
			return i + 1, c
		}
	}
	return n + 1, profiles.Change{}
}

func gaussian(t testing.TB, mean, sd float64) *workload.BatchSizes {
	t.Helper()
	g, err := workload.Gaussian(mean, sd, 1000)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func fixed(t testing.TB, n int) *workload.BatchSizes {
	t.Helper()
	f, err := workload.Fixed(n)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// The number of suspicions by chance is what it is meant to be. At the rate set here some must be
// seen; hardly any is confirmed by what follows.
func TestMonitorFalseAlarms(t *testing.T) {
	const queries, rate, perHour = 250_000, 300, 432
	for _, c := range []struct {
		sizes    *workload.BatchSizes
		arrivals string
		least    float64 // of the suspicions expected
	}{
		{workload.Trace(), "poisson", 0.3},
		{workload.Trace(), "gamma:0.5", 0.3},
		{workload.Trace(), "constant", 0.1}, // only the batch sizes can raise one
		{gaussian(t, 250, 100), "poisson", 0.3},
		{fixed(t, 100), "poisson", 0.1}, // only the rate
	} {
		t.Run(fmt.Sprintf("%s/%s", c.sizes, c.arrivals), func(t *testing.T) {
			s := newStream(t, 1, c.sizes, c.arrivals, rate)
			s.m.SetFalseAlarms(perHour)
			s.send(20_000)
			s.m.Rebase() // 10,000 queries are the reference
			suspicions, changes := 0, 0
			for range queries / 100 {
				s.send(100)
				if !s.m.Suspicious() {
					continue
				}
				suspicions++
				s.send(1_000)
				if _, ok := s.m.Change(); ok {
					changes++
				}
				s.send(10_000)
				s.m.Rebase()
			}
			expected := float64(perHour) * queries / rate / 3600
			t.Logf("%d suspicions by chance, %.0f expected, %d confirmed", suspicions, expected,
				changes)
			if got := float64(suspicions); got > 1.5*expected || got < c.least*expected {
				t.Errorf("%d suspicions by chance, want %.0f to %.0f", suspicions, c.least*expected,
					1.5*expected)
			}
			if changes > 2 {
				t.Errorf("%d of %d suspicions by chance are confirmed, want one in a thousand",
					changes, suspicions)
			}
		})
	}
}

// TestMonitorSteadyHour: no change is told in an hour of steady load at 20 seeds. The hours are of
// fleets of a hundredth of $2.5/hr, for the rate sets only how many queries they have; with
// MUSTER_SLOW_TESTS they are of whole ones.
func TestMonitorSteadyHour(t *testing.T) {
	part := 0.01
	if os.Getenv("MUSTER_SLOW_TESTS") != "" {
		part = 1
	}
	for model, rate := range map[string]float64{
		"ncf": 5900, "rm2": 120, "wnd": 1300, "mtwnd": 850, "dien": 550,
	} {
		t.Run(model, func(t *testing.T) {
			t.Parallel()
			suspicions, changes := 0, 0
			for seed := range uint64(20) {
				s := newStream(t, 100+seed, workload.Trace(), "poisson", part*rate)
				for end := s.now.Add(time.Hour); s.now.Before(end); {
					s.send(100)
					if s.m.Suspicious() {
						suspicions++
						s.send(1_000)
					}
					if change, ok := s.m.Change(); ok {
						changes++
						t.Errorf("seed %d: %s", seed, change)
						s.m.Rebase()
					}
				}
			}
			t.Logf("%d suspicions in 20 hours, %d of them confirmed", suspicions, changes)
			if suspicions > 1 {
				t.Errorf("%d suspicions in 20 hours, want one in 10,000", suspicions)
			}
		})
	}
}

// TestMonitorSeesChanges: a block of the new kind is suspected within some queries, and so
// many more confirm it.
func TestMonitorSeesChanges(t *testing.T) {
	larger, err := workload.Trace().AtMost(600)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name       string
		sizes      *workload.BatchSizes
		arrivals   string
		rate       float64
		laneFamily profiles.ChangeKind
		within     int
	}{
		{"Gaussian batch sizes", gaussian(t, 250, 100), "poisson", 300, profiles.BatchSizesChanged,
			512},
		{"no large batch sizes", larger, "poisson", 300, profiles.BatchSizesChanged, 10_000},
		{"one batch size", fixed(t, 150), "poisson", 300, profiles.BatchSizesChanged, 512},
		{"twice the rate", workload.Trace(), "poisson", 600, profiles.RateChanged, 512},
		{"half the rate", workload.Trace(), "poisson", 150, profiles.RateChanged, 400},
		{"a fifth more", workload.Trace(), "poisson", 360, profiles.RateChanged, 2*1024 + 4096},
		{"nearly nothing", workload.Trace(), "poisson", 3, profiles.RateChanged, 128},
	} {
		settled, slowest := 1000, 0
		if c.within > 1024 { // it takes the largest block
			settled = 4096
		}
		for seed := range uint64(8) {
			s := newStream(t, seed, workload.Trace(), "poisson", 300)
			s.send(10_000)
			s.m.Rebase()
			s.send(2_000 + int(seed)*37)
			if change, ok := s.m.Change(); ok {
				t.Fatalf("%s, seed %d: before the change: %s", c.name, seed, change)
			}
			s.sizes = c.sizes
			s.arrive(c.arrivals, c.rate)
			n, change := s.until(20_000)
			slowest = max(slowest, n)
			if n > c.within+settled || change.Kind != c.laneFamily {
				t.Errorf("%s, seed %d: told after %d queries, want at most %d: %s", c.name, seed, n,
					c.within+settled, change)
			}
			if !strings.Contains(change.String(), string(c.laneFamily)) || change.P > 1e-3 ||
				change.At.Before(change.Seen) {
				t.Errorf("%s: %s", c.name, change)
			}
			if before, now := change.Before.Rate/300, change.Now.Rate/c.rate; before < 0.95 ||
				before > 1.05 || now < 0.6 || now > 1.5 {
				t.Errorf("%s, seed %d: %s", c.name, seed, change)
			}
			// What is held is of the new kind only, and the reference.
			if s.m.Queries() != change.Queries || s.m.Queries() > settled {
				t.Errorf("%s, seed %d: %d queries are held, want the %d of the change", c.name,
					seed, s.m.Queries(), change.Queries)
			}
			s.m.Rebase()
			if n, change := s.until(10_000); n <= 10_000 {
				t.Errorf("%s, seed %d: a change %d queries after rebasing: %s", c.name, seed, n,
					change)
			}
		}
		t.Logf("%s: told after %d queries at most", c.name, slowest)
	}
}

// TestMonitorPasses: a pause, or a burst of queries that had waited elsewhere, is suspected and
// passes.
func TestMonitorPasses(t *testing.T) {
	strange := map[string]func(*stream){
		"pause": func(s *stream) { s.now = s.now.Add(20 * time.Second) },
		"burst": func(s *stream) {
			s.arrive("constant", 1e6)
			s.send(100)
			s.arrive("poisson", 300)
		},
	}
	for name, strange := range strange {
		for seed := range uint64(20) {
			s := newStream(t, seed, workload.Trace(), "poisson", 300)
			s.send(12_000 + int(seed)*37)
			strange(s)
			suspected := false
			for range 15_000 {
				s.send(1)
				suspected = suspected || s.m.Suspicious()
			}
			if change, ok := s.m.Change(); ok || !suspected {
				t.Errorf("%s, seed %d: suspected %v; %s", name, seed, suspected, change)
			}
		}
	}
	// Where a monitor begins with a burst that is not even suspected, as no reference has it.
	for seed := range uint64(20) {
		s := newStream(t, seed, workload.Trace(), "poisson", 300)
		strange["burst"](s)
		strange["burst"](s)
		strange["burst"](s)
		if n, change := s.until(15_000); n <= 15_000 || s.m.Suspicious() {
			t.Errorf("beginning with a burst, seed %d: after %d queries: %s", seed, n, change)
		}
	}
}

func TestMonitorDistribution(t *testing.T) {
	m := profiles.NewMonitor()
	if m.Distribution() != nil || m.Queries() != 0 || m.Rate(time.Unix(5, 0), time.Second) != 0 {
		t.Error("an empty monitor knows something")
	}
	r := rand.New(rand.NewPCG(1, 1))
	var all []int
	for i := range 25_000 {
		batch := 1 + r.IntN(30)
		if i > 12_000 {
			batch *= 100
		}
		all = append(all, batch)
		if err := m.Observe(batch, time.Unix(int64(i), 0)); err != nil {
			t.Fatal(err)
		}
		if i%2_999 != 0 {
			continue
		}
		last := all[len(all)-m.Queries():]
		counts := map[int]float64{}
		for _, b := range last {
			counts[b]++
		}
		var want profiles.Distribution
		var mean float64
		for b := 1; b <= 3_000; b++ {
			if counts[b] > 0 {
				want = append(want, profiles.Share{
					BatchSize: b, Share: counts[b] / float64(len(last)),
				})
				mean += counts[b] / float64(len(last)) * float64(b)
			}
		}
		if diff := cmp.Diff(want, m.Distribution(), cmpopts.EquateApprox(1e-12, 0)); diff != "" {
			t.Fatalf("after %d queries: %s", i+1, diff)
		}
		if got := m.Distribution().Mean(); math.Abs(got-mean) > 1e-9*mean {
			t.Errorf("mean batch size is %v, want %v", got, mean)
		}
	}
	for _, batch := range []int{0, -1, profiles.MaxBatchSize + 1, math.MaxInt} {
		if err := m.Observe(batch, time.Unix(1e9, 0)); err == nil ||
			!strings.Contains(err.Error(), "batch size") {
			t.Errorf("batch size %d: %v", batch, err)
		}
	}
	if m.Queries() != 10_000 {
		t.Errorf("%d queries held", m.Queries())
	}
}

func TestMonitorRate(t *testing.T) {
	m := profiles.NewMonitor()
	start := time.Unix(1e9, 0)
	at := func(s float64) time.Time { return start.Add(time.Duration(s * 1e9)) }
	observe := func(s float64) {
		t.Helper()
		if err := m.Observe(1, at(s)); err != nil {
			t.Fatal(err)
		}
	}
	check := func(now, over, want float64) {
		t.Helper()
		if got := m.Rate(at(now), time.Duration(over*1e9)); math.Abs(got-want) > 1e-9*max(1, want) {
			t.Errorf("rate at %v s over %v s is %v, want %v", now, over, got, want)
		}
	}
	observe(0)
	check(0, 10, 0)
	for i := 1; i <= 100; i++ {
		observe(float64(i) / 10)
	}
	check(10, 5, 10)
	check(10, 20, 10) // only ten seconds are known
	check(12, 4, 5)
	check(100, 5, 0)
	check(10, 0, 0)
	check(10, -1, 0)
	for i := range 20_000 { // 1,000/s: the ring holds ten seconds
		observe(100 + float64(i+1)/1000)
	}
	check(120, 5, 1000)
	check(120, 60, 1000)
	observe(50) // the clock went back
	check(120, 5, 1000.2)
}

func TestMonitorAllAtOnce(t *testing.T) {
	// Queries without any time between them are no reason to fail.
	m := profiles.NewMonitor()
	now := time.Unix(1e9, 0)
	if err := m.Observe(7, now.Add(-2*time.Second)); err != nil {
		t.Fatal(err)
	}
	for range 30_000 {
		if err := m.Observe(7, now); err != nil {
			t.Fatal(err)
		}
	}
	if change, ok := m.Change(); ok {
		t.Errorf("a change: %s", change)
	}
	for i := range 200 {
		if err := m.Observe(7, now.Add(time.Duration(i)*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	if change, ok := m.Change(); !ok || change.Kind != profiles.RateChanged {
		t.Errorf("no change of the rate: %v", change)
	}
}

func BenchmarkMonitorObserve(b *testing.B) {
	s := newStream(b, 1, workload.Trace(), "poisson", 300)
	s.send(20_000)
	b.ReportAllocs()
	for b.Loop() {
		s.now = s.now.Add(3 * time.Millisecond)
		s.m.Observe(150, s.now)
	}
}

// What people read of demand has no exponent.
func TestDemandString(t *testing.T) {
	for _, tt := range []struct {
		d    profiles.QueryMix
		want string
	}{
		{profiles.QueryMix{Rate: 12_345.6, MeanSize: 45.678, LargeSize: 100},
			"12346 queries/s, mean batch size 45.68, 5 % above 100"},
		{profiles.QueryMix{Rate: .5, MeanSize: 20_000.4, LargeSize: 40_000},
			"0.5 queries/s, mean batch size 20000, 5 % above 40000"},
	} {
		if got := tt.d.String(); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}
