package canary

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func TestPrefer(t *testing.T) {
	for _, tt := range []struct {
		r    Release
		a, b int64
		want int64
	}{
		{Release{}, 3, 4, 4},
		{Release{}, 3, 0, 3},
		{Release{Current: 3}, 3, 4, 3},
		{Release{Current: 3}, 4, 5, 5},
		{Release{Current: 3, Canary: 4, Share: .1}, 4, 3, 3},
		{Release{Current: 3, Canary: 4, Share: .1}, 4, 2, 2}, // the current one is not there yet
		{Release{Current: 3, Canary: 4}, 2, 4, 2},            // taken back
		{Release{Current: 3, Canary: 4}, 4, 0, 4},            // rather than nothing
	} {
		for _, pair := range [][2]int64{{tt.a, tt.b}, {tt.b, tt.a}} {
			if got := tt.r.Prefer(pair[0], pair[1]); got != tt.want {
				t.Errorf("%+v of %v: got %d, want %d", tt.r, pair, got, tt.want)
			}
		}
	}
}

// TestShare: of any queries in a row the canary gets its share, give or take a few, also if only
// each second or each seventh of a gateway's queries is for the model; and each query always goes
// the same way.
func TestShare(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, share := range []float64{.001, .01, .05, .2, .5, .99} {
		release := Release{Current: 3, Canary: 4, Share: share}
		for _, stride := range []uint64{1, 2, 7} {
			gateway, first := r.Uint64(), r.Uint64N(1<<40)
			got, most := 0, 0.
			for n := range 100_000 {
				id := (first + uint64(n)*stride) * Numbering
				if release.Takes(gateway, id) {
					got++
				}
				if release.Takes(gateway, id) != release.Takes(gateway, id+3) {
					t.Fatalf("a part of query %d goes another way than the query", id)
				}
				most = max(most, math.Abs(float64(got)-share*float64(n+1)))
			}
			if most > 12 {
				t.Errorf("share %v, each %d.: off by %.1f queries, want at most 12", share, stride,
					most)
			}
		}
	}
	for _, none := range []Release{{}, {Current: 3}, {Current: 3, Canary: 4}} {
		for id := range uint64(1000) {
			if none.Takes(7, id*Numbering) {
				t.Fatalf("%+v: query %d goes to the canary", none, id)
			}
		}
	}
	yes, no := func(int64) bool { return true }, func(int64) bool { return false }
	all := Release{Current: 3, Canary: 4, Share: .999999}
	if got := all.Version(0, 0, 3, yes); got != 4 {
		t.Errorf("got version %d, want the canary", got)
	}
	if got := all.Version(0, 0, 3, no); got != 3 {
		t.Errorf("a canary that nobody holds: got version %d, want 3", got)
	}
}

func TestBounds(t *testing.T) {
	for _, tt := range []struct {
		k, n      uint64
		low, high float64 // at most, at least
	}{{0, 0, 0, 1}, {0, 10, 0, .3}, {10, 10, .6, 1}, {5, 10, .3, .7}, {10, 1000, .01, .01}} {
		low, high := Bounds(tt.k, tt.n, .01)
		if low > tt.low || high < tt.high || low > high {
			t.Errorf("%d of %d: got [%v, %v], want it to hold [%v, %v]", tt.k, tt.n, low, high,
				tt.low,
				tt.high)
		}
		if tt.n > 0 && high-low > 8/math.Sqrt(float64(tt.n)) {
			t.Errorf("%d of %d: [%v, %v] says nothing", tt.k, tt.n, low, high)
		}
	}
}

// A load puts queries on two versions for the tests of the rule.
type load struct {
	rate, share float64
	// bad, slow and wrong are the shares of the current version's and of the canary's queries.
	bad, slow [2]float64
	wrong     float64
	// profile is how many times as long as its profile says the current version takes; 0: as long.
	profile float64
}

// run judges each second, until the canary's fate is decided or the time is over.
func (l load) run(r *rand.Rand, rule Rule, limit time.Duration) (Verdict, time.Duration) {
	t, release, sequence := Trial{}, Release{Current: 1, Canary: 2, Share: l.share}, uint64(0)
	gateway := r.Uint64()
	for age := time.Second; age <= limit; age += time.Second {
		for range int(l.rate) {
			sequence += Numbering
			c, i := &t.Current, 0
			if release.Takes(gateway, sequence) {
				c, i = &t.Canary, 1
				t.Answers.Compared++
				if r.Float64() < l.wrong {
					t.Answers.Wrong++
				}
			}
			c.Answered++
			if r.Float64() < l.bad[i] {
				c.Late++
			}
			took := time.Duration(max(l.profile, 1) * (.9 + .2*r.Float64()) * 1e9)
			if r.Float64() < l.slow[i] {
				took *= 2
			}
			c.Runs.Add(took)
		}
		if v := rule.Judge(&t, age); v.Decision != Wait {
			return v, age
		}
	}
	return Verdict{}, limit
}

// seeds is how many trials a test runs.
const seeds = 150

// TestFalseAlarms: a canary that is as the current version, at the rule's limits, is hardly ever
// taken back, however often one looks.
func TestFalseAlarms(t *testing.T) {
	rule := DefaultRule()
	alarms := 0
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 1))
		l := load{
			rate: 100, share: .1, bad: [2]float64{.02, .02}, slow: [2]float64{.3, .3},
			wrong: rule.Wrong,
		}
		if v, at := l.run(r, rule, 3*time.Minute); v.Decision != Wait {
			alarms++
			t.Logf("seed %d: after %v: %s", seed, at, v.Why)
		}
	}
	// At 3 % at most in theory, 10 of 150 have a chance of 1 in 100.
	if t.Logf("%d of %d good canaries taken back", alarms, seeds); alarms > 10 {
		t.Errorf("%d of %d good canaries taken back, want at most 10", alarms, seeds)
	}
}

// TestBadCanary: a canary that takes twice as long, fails or answers wrongly is taken back within a
// minute at these rates.
func TestBadCanary(t *testing.T) {
	for _, tt := range []struct {
		what  string
		l     load
		limit time.Duration
		why   string
	}{
		{"runs twice as long, 100/s of which 5 %", load{rate: 100, share: .05,
			slow: [2]float64{.05, .95}}, 30 * time.Second, "are slow"},
		{"the same, of a version that takes 6 times what its profile says",
			load{rate: 100, share: .05, slow: [2]float64{.05, .95}, profile: 6}, 30 * time.Second,
			"are slow"},
		{"late 5 % more, 200/s of which 10 %", load{rate: 200, share: .1,
			bad: [2]float64{.01, .08}}, time.Minute, "late or failed"},
		{"each query fails, 50/s of which 5 %", load{rate: 50, share: .05,
			bad: [2]float64{.01, 1}}, time.Minute, "late or failed"},
		{"1 % wrong, 300/s of which 10 %", load{rate: 300, share: .1, wrong: .01}, time.Minute,
			"answers differ"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			inTime, sum := 0, time.Duration(0)
			for seed := range uint64(seeds) {
				v, at := tt.l.run(rand.New(rand.NewPCG(seed, 2)), DefaultRule(), 2*time.Minute)
				if v.Decision == RollBack && !strings.Contains(v.Why, tt.why) {
					t.Errorf("seed %d: taken back because %s", seed, v.Why)
				}
				if v.Decision == RollBack && at <= tt.limit {
					inTime++
				}
				sum += at
			}
			t.Logf("taken back after %v in the mean; %d of %d within %v", sum/seeds, inTime, seeds,
				tt.limit)
			if inTime < seeds*95/100 {
				t.Errorf("%d of %d taken back within %v", inTime, seeds, tt.limit)
			}
		})
	}
}

func TestPromotion(t *testing.T) {
	good := load{rate: 50, share: .1, bad: [2]float64{.01, .01}}
	for _, tt := range []struct {
		after   time.Duration
		queries uint64
		want    time.Duration
	}{{time.Minute, 0, time.Minute}, {0, 200, 40 * time.Second},
		{time.Minute, 500, 100 * time.Second}} {
		rule := DefaultRule()
		rule.PromoteAfter, rule.PromoteQueries = tt.after, tt.queries
		v, at := good.run(rand.New(rand.NewPCG(1, 3)), rule, 3*time.Minute)
		if v.Decision != Promote || (at-tt.want).Abs() > 2*time.Second {
			t.Errorf("after %v and %d queries: got %+v at %v, want it promoted at %v", tt.after,
				tt.queries, v, at, tt.want)
		}
	}
	// Nothing is promoted that was hardly asked.
	rule := DefaultRule()
	rule.PromoteAfter = time.Second
	if v := rule.Judge(&Trial{}, time.Hour); v.Decision != Wait ||
		!strings.Contains(v.Why, "0 of its") {
		t.Errorf("got %+v", v)
	}
}

func TestTimes(t *testing.T) {
	var times Times
	if got := times.Quantile(.5); got != 0 {
		t.Errorf("of nothing: got %v", got)
	}
	for i := range 1000 {
		times.Add(time.Duration(i+1) * time.Millisecond)
	}
	for _, q := range []float64{.01, .5, .99, 1} {
		want := time.Duration(q*1000) * time.Millisecond
		if got := times.Quantile(q); math.Abs(float64(got-want)) > .05*float64(want) {
			t.Errorf("quantile %v: got %v, want %v", q, got, want)
		}
	}
	times.Add(0)
	times.Add(math.MaxInt64)
	if got := fmt.Sprint(times.Quantile(0)); got != "0s" {
		t.Errorf("got %s", got)
	}
}
