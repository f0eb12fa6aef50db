package canary

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestPrefer(t *testing.T) {
	for _, tt := range []struct {
		r    Rollout
		a, b int64
		want int64
	}{
		{Rollout{}, 3, 4, 4},
		{Rollout{}, 3, 0, 3},
		{Rollout{Current: 3}, 3, 4, 3},
		{Rollout{Current: 3}, 4, 5, 5},
		{Rollout{Current: 3, Canary: 4, Share: .1}, 4, 3, 3},
		{Rollout{Current: 3, Canary: 4, Share: .1}, 4, 2, 2}, // the current one is not there yet
		{Rollout{Current: 3, Canary: 4}, 2, 4, 2},            // taken back
		{Rollout{Current: 3, Canary: 4}, 4, 0, 4},            // rather than nothing
	} {
		for _, pair := range [][2]int64{{tt.a, tt.b}, {tt.b, tt.a}} {
			if got := tt.r.Prefer(pair[0], pair[1]); got != tt.want {
				t.Errorf("%+v of %v: got %d, want %d", tt.r, pair, got, tt.want)
			}
		}
	}
}

// TestShare: of queries of a gateway with any period the canary gets its share as of independent
// draws, neither more nor less regularly; and each query always goes the same way.
func TestShare(t *testing.T) {
	const queries = 2000 // of each residue class
	r := rand.New(rand.NewPCG(1, 2))
	for _, share := range []float64{.01, .05, .2, .5, .99} {
		release := Rollout{Current: 3, Canary: 4, Share: share}
		classes, sum := 0, 0.
		for _, period := range []uint64{
			1, 2, 3, 4, 5, 7, 8, 10, 13, 16, 21, 34, 50, 55, 60, 64, 89, 100, 128, 144, 233, 256,
			360,
			377, 500, 610, 987, 1000, 1024, 1597, 4096, 10946, 65536, 1 << 20, 1 << 32,
		} {
			gateway, first := r.Uint64(), r.Uint64N(1<<40)
			for residue := range min(period, 20) {
				got := 0
				for n := range uint64(queries) {
					id := (first + residue + n*period) * Numbering
					if release.Takes(gateway, id) {
						got++
					}
					if release.Takes(gateway, id) != release.Takes(gateway, id+3) {
						t.Fatalf("a part of query %d goes another way than the query", id)
					}
				}
				z := (float64(got) - share*queries) / math.Sqrt(share*(1-share)*queries)
				if math.Abs(z) > 5 { // 1 in 10^6 of 3,000, and a little more for small shares
					t.Errorf("share %v, each %d. query from %d on: %d of %d, want about %v", share,
						period, residue, got, queries, share*queries)
				}
				classes, sum = classes+1, sum+z*z
			}
		}
		// The sum of z^2 over so many classes has a standard deviation of sqrt(2 x classes).
		if off := (sum - float64(classes)) / math.Sqrt(2*float64(classes)); math.Abs(off) > 4 {
			t.Errorf("share %v: what %d classes get varies %.3g times as much as independent draws",
				share, classes, sum/float64(classes))
		}
	}
	for _, none := range []Rollout{{}, {Current: 3}, {Current: 3, Canary: 4}} {
		for id := range uint64(1000) {
			if none.Takes(7, id*Numbering) {
				t.Fatalf("%+v: query %d goes to the canary", none, id)
			}
		}
	}
	near, want := 0, .3*.3*10_000
	for id := range uint64(10_000) {
		third := Rollout{Current: 3, Canary: 4, Share: .3}
		if third.Takes(41, id*Numbering) && third.Takes(42, id*Numbering) {
			near++
		}
	}
	if math.Abs(float64(near)-want) > 4*math.Sqrt(want) {
		t.Errorf("of the same queries of two gateways %d of 10000 go to the canary, want about %v",
			near,
			want)
	}
	yes, no := func(int64) bool { return true }, func(int64) bool { return false }
	all := Rollout{Current: 3, Canary: 4, Share: .999999}
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
	// slow is the share of the current version's and of the canary's runs.
	slow [2]float64
	// failed and late are the shares of the queries of each class of batch sizes that do so.
	failed, late [2]chances
	// large is the share of queries of class 3; the others are of class 0.
	large [2]float64
	wrong float64
	// profile is how many times as long as its profile says the current version takes; 0: as long.
	profile float64
	// unsized says that failures come without their batch size.
	unsized bool
	// seldom has peek look only after each query of the canary.
	seldom bool
}

// chances are those of small and of large queries.
type chances [2]float64

// all are equal chances of queries of all sizes.
func all(chance float64) chances { return chances{chance, chance} }

// query ends one query.
func (l *load) query(r *rand.Rand, t *Trial, canary bool) {
	c, i := &t.Current, 0
	if canary {
		c, i = &t.Canary, 1
	}
	size, class := 1, 0
	if r.Float64() < l.large[i] {
		size, class = 100, 1
	}
	if r.Float64() < l.failed[i][class] {
		if l.unsized {
			size = 0
		}
		c.CountFailed(size, 1)
		return
	}
	c.CountAnswered(size, r.Float64() < l.late[i][class])
	if l.slow == [2]float64{} {
		return
	}
	took := time.Duration(max(l.profile, 1) * (.9 + .2*r.Float64()) * 1e9)
	if r.Float64() < l.slow[i] {
		took *= 2
	}
	c.Runs.Add(took)
}

// run judges each second, until the canary's fate is decided or the time is over.
func (l load) run(r *rand.Rand, rule Rule, limit time.Duration) (Verdict, time.Duration) {
	t, release, sequence := Trial{}, Rollout{Current: 1, Canary: 2, Share: l.share}, uint64(0)
	gateway := r.Uint64()
	for age := time.Second; age <= limit; age += time.Second {
		for range int(l.rate) {
			sequence += Numbering
			takes := release.Takes(gateway, sequence)
			if takes {
				t.Answers.Compared++
				if r.Float64() < l.wrong {
					t.Answers.Wrong++
				}
			}
			l.query(r, &t, takes)
		}
		if v := rule.Judge(&t, age); v.Decision != Wait {
			return v, age
		}
	}
	return Verdict{}, limit
}

// peek decides after each query until the canary's fate is decided, or so many of its queries have
// ended. It returns how many that took.
func (l load) peek(r *rand.Rand, rule Rule, queries int) (Decision, int) {
	t, release, sequence := Trial{}, Rollout{Current: 1, Canary: 2, Share: l.share}, uint64(0)
	gateway := r.Uint64()
	for n := 0; n < queries; {
		sequence += Numbering
		takes := release.Takes(gateway, sequence)
		if takes {
			n++
		}
		l.query(r, &t, takes)
		if l.seldom && !takes {
			continue
		}
		if decision, _ := rule.decideOn(rule.compareTrial(&t)); decision != Wait {
			return decision, n
		}
	}
	return Wait, queries
}

// simulated is how many canaries each case simulates to measure an error: 3000 for each kind of
// error.
const simulated = 1000

// errors simulates canaries, each with its seed, and returns how many have each fate, and the
// median of the canary's queries that it took to decide.
func (l load) errors(rule Rule, seed uint64, canaries, queries int) (fates [3]int, median int) {
	type fate struct{ decision, queries int }
	all := make([]fate, canaries)
	var running sync.WaitGroup
	for worker := range 4 {
		running.Go(func() {
			for i := worker; i < canaries; i += 4 {
				d, n := l.peek(rand.New(rand.NewPCG(uint64(i), seed)), rule, queries)
				all[i] = fate{int(d), n}
			}
		})
	}
	running.Wait()
	for _, f := range all {
		fates[f.decision]++
	}
	slices.SortFunc(all, func(a, b fate) int { return a.queries - b.queries })
	return fates, all[canaries/2].queries
}

// ignoring is the rule without its confidence: it decides by the shares as they are counted.
func ignoring() Rule {
	rule := DefaultRule()
	rule.Alpha, rule.Beta = 1e9, 1e9 // so that no bound needs any evidence
	return rule
}

// TestErrors: of canaries at the limits of what the rule may take for good, or for bad, no more
// have the wrong fate than the rule states, however often one looks; and if the rule ignored its
// confidence, this test would see it.
func TestErrors(t *testing.T) {
	for _, tt := range []struct {
		what    string
		l       load
		wrong   Decision
		allowed float64
	}{
		{"rolled back, as good", load{
			failed: [2]chances{all(.002), all(.002)}, late: [2]chances{all(.05), all(.05)},
		}, RollBack, DefaultRule().Alpha},
		{"rolled back, as bad as is tolerated", load{
			failed: [2]chances{all(0), all(.001)}, late: [2]chances{all(.02), all(.03)},
		}, RollBack, DefaultRule().Alpha},
		{"rolled back, as good, with larger batches", load{
			late:  [2]chances{{.01, .3}, {.01, .3}},
			large: [2]float64{.1, .6},
		}, RollBack, DefaultRule().Alpha},
		{"promoted, fails more often by the margin", load{
			failed: [2]chances{all(0), all(.01)},
		}, Promote, DefaultRule().Beta},
		{"promoted, fails more often by the margin, without sizes", load{
			failed: [2]chances{all(.001), all(.011)}, unsized: true,
		}, Promote, DefaultRule().Beta},
		{"promoted, late more often by the margin, with smaller batches", load{
			late:  [2]chances{{0, .1}, {.02, .12}},
			large: [2]float64{.5, .05},
		}, Promote, DefaultRule().Beta},
	} {
		t.Run(tt.what, func(t *testing.T) {
			tt.l.share = .5
			canaries, queries := simulated, 600
			if tt.wrong == Promote {
				queries = 1000 // none is promoted before 800
			}
			if testing.Short() {
				canaries = 200
			}
			fates, _ := tt.l.errors(DefaultRule(), 1, canaries, queries)
			t.Logf("%d of %d canaries wait, %d are rolled back, %d promoted", fates[Wait], canaries,
				fates[RollBack], fates[Promote])
			if got := float64(fates[tt.wrong]) / float64(canaries); got > tt.allowed {
				t.Errorf("%.3g of the canaries have the wrong fate, want at most %v", got,
					tt.allowed)
			}
			fates, _ = tt.l.errors(ignoring(), 1, 200, queries)
			if got := float64(fates[tt.wrong]) / 200; got <= tt.allowed {
				t.Errorf("without confidence %.3g have the wrong fate: this test would not see it",
					got)
			}
		})
	}
}

// TestBoundsHold: bounds hold at all times at once, for draws with equal chances and with chances
// that change.
func TestBoundsHold(t *testing.T) {
	const alpha, runs, draws = .05, 2000, 1000
	outside := 0
	for seed := range uint64(runs) {
		r := rand.New(rand.NewPCG(seed, 4))
		k, sum := uint64(0), 0.
		for n := range uint64(draws) {
			p := .03
			if seed%2 == 1 && n/100%2 == 1 {
				p = .4
			}
			if sum += p; r.Float64() < p {
				k++
			}
			mean := sum / float64(n+1)
			if low, high := Bounds(k, n+1, alpha); low > mean || high < mean {
				outside++
				break
			}
		}
	}
	t.Logf("%d of %d runs were ever outside", outside, runs)
	if float64(outside) > alpha*runs {
		t.Errorf("%d of %d runs were ever outside, want at most %v", outside, runs, alpha*runs)
	}
}

// counted is a trial of so many queries of batch size 1, of which so many failed.
func counted(failed, of, currentFailed, currentOf uint64) *Trial {
	t := &Trial{}
	t.Canary.Classes[0] = Tally{Answered: of - failed, Failed: failed}
	t.Current.Classes[0] = Tally{Answered: currentOf - currentFailed, Failed: currentFailed}
	return t
}

// TestFailingCanary: canaries of which 6 of 50 queries fail, or 26 of 1000, beside a version of
// which none do, are not promoted when that is due, and rolled back as soon as that is beyond
// doubt.
func TestFailingCanary(t *testing.T) {
	rule := DefaultRule()
	rule.PromoteQueries = 50
	v := rule.Judge(counted(6, 50, 0, 950), time.Minute)
	if v.Decision != Wait || !v.Undecided || !strings.HasPrefix(v.Why,
		"undecided: 12 % of 50 queries failed, 0.0 % of the current version's 950: at most 38 points more, "+
			"where a promotion needs less than 1 point; it needs about ") {
		t.Errorf("6 of 50: got %+v", v)
	}
	var more int
	if _, err := fmt.Sscanf(v.Why[strings.Index(v.Why, "about "):], "about %d more",
		&more); err != nil {
		t.Fatal(err)
	}
	factor := uint64(more)/50 + 1 // what it has foretold
	if v := rule.Judge(counted(6+6*factor, 50+50*factor, 0, 950+950*factor),
		time.Minute); v.Decision != RollBack {
		t.Errorf("after %d more queries: got %+v, want what was foretold", more, v)
	}
	v = rule.Judge(counted(26, 1000, 0, 19000), time.Minute)
	if v.Decision != RollBack || !strings.HasPrefix(v.Why,
		"2.6 % of 1000 queries failed, 0.0 % of the current version's 19000: at least 0.89 points more, "+
			"where 0.1 points are tolerated") {
		t.Errorf("26 of 1000: got %+v", v)
	}
	for _, chance := range []float64{.12, .026} {
		l := load{share: .05, failed: [2]chances{all(0), all(chance)}, seldom: true}
		fates, median := l.errors(DefaultRule(), 2, 200, 2000)
		t.Logf("a canary of which %v fail is rolled back after %d of its queries in the median",
			chance,
			median)
		if fates[RollBack] != 200 {
			t.Errorf("of canaries of which %v fail %v waited, were rolled back and promoted",
				chance, fates)
		}
	}
}

// TestGoodCanary: a canary that is as good as the current version is promoted after about as many
// of its queries as docs/internals/canary.md says.
func TestGoodCanary(t *testing.T) {
	for _, tt := range []struct {
		failed, late float64
		want         int
	}{{0, 0, 800}, {.001, .01, 1100}, {.001, .05, 3200}} {
		l := load{
			share: .05, failed: [2]chances{all(tt.failed), all(tt.failed)},
			late: [2]chances{all(tt.late), all(tt.late)}, seldom: true,
		}
		fates, median := l.errors(DefaultRule(), 3, 100, 10_000)
		t.Logf("%v failed and %v late: promoted after %d queries in the median; %v", tt.failed,
			tt.late,
			median, fates)
		if fates[RollBack] > 0 || math.Abs(float64(median-tt.want)) > .1*float64(tt.want) {
			t.Errorf("%v failed and %v late: got %v, promoted after %d, want about %d", tt.failed,
				tt.late, fates, median, tt.want)
		}
	}
}

// TestBadCanary: a canary that takes twice as long, fails, is late or answers wrongly is rolled
// back within a minute at these rates.
func TestBadCanary(t *testing.T) {
	const seeds = 150
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
		{"late 7 points more, 200/s of which 10 %", load{rate: 200, share: .1,
			late: [2]chances{all(.01), all(.08)}}, time.Minute, "late"},
		{"each query fails, 50/s of which 5 %", load{rate: 50, share: .05,
			failed: [2]chances{all(.01), all(1)}}, 20 * time.Second, "failed"},
		{"the same, of gateways that tell no sizes", load{rate: 50, share: .05,
			failed: [2]chances{all(.01), all(1)}, unsized: true}, 20 * time.Second, "failed"},
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

// TestTerms: a canary that is no worse is promoted when its terms are met, and not before.
func TestTerms(t *testing.T) {
	good := counted(0, 1000, 0, 9000)
	for _, tt := range []struct {
		after, age time.Duration
		queries    uint64
		want       Decision
		says       string
	}{
		{0, time.Hour, 0, Wait, "it is no worse, and promoted by hand"},
		{time.Minute, time.Second, 0, Wait, "it is no worse, and promoted in 59s"},
		{time.Minute, time.Minute, 0, Promote,
			"it was no worse in 1000 of its queries and 1m0s; 0.0 % of " +
				"1000 queries failed, 0.0 % of the current version's 9000: at most 0.8"},
		{0, time.Second, 1200, Wait, "promoted after 200 more of its queries"},
		{0, time.Second, 1000, Promote, "it was no worse"},
		{time.Minute, time.Hour, 1200, Wait, "promoted after 200 more"},
	} {
		rule := DefaultRule()
		rule.PromoteAfter, rule.PromoteQueries = tt.after, tt.queries
		if v := rule.Judge(good, tt.age); v.Decision != tt.want || !strings.Contains(v.Why,
			tt.says) ||
			v.Undecided {
			t.Errorf("%+v: got %+v", tt, v)
		}
	}
}

// TestUndecided: a canary that is hardly asked, or of which no answer was compared, waits and says
// so. At the limit it is rolled back, unless a person is to promote it.
func TestUndecided(t *testing.T) {
	rule := DefaultRule()
	rule.PromoteAfter, rule.Compared = time.Minute, true
	limit := rule.PromoteAfter + rule.MaxUndecided
	uncompared := counted(0, 5000, 0, 90_000)
	for _, tt := range []struct {
		what string
		t    *Trial
		says string
	}{
		{"never asked", &Trial{}, "none of its queries has ended yet"},
		{"hardly asked", counted(0, 5, 0, 95), "0.0 % of 5 queries failed"},
		{"not compared", uncompared,
			"0 of 0 compared answers differ: at most 100 points more, where a " +
				"promotion needs less than 1 point; how many more of its queries it needs is not known yet"},
	} {
		if tt.t != uncompared {
			rule.Compared = false
		} else {
			rule.Compared = true
		}
		if v := rule.Judge(tt.t, time.Second); v.Decision != Wait || v.Undecided ||
			!strings.HasPrefix(v.Why, "undecided: ") || !strings.Contains(v.Why, tt.says) {
			t.Errorf("%s: got %+v", tt.what, v)
		}
		if v := rule.Judge(tt.t, limit-1); v.Decision != Wait || !v.Undecided {
			t.Errorf("%s, late: got %+v", tt.what, v)
		}
		if v := rule.Judge(tt.t, limit); v.Decision != RollBack ||
			!strings.HasPrefix(v.Why, "still undecided after 168h1m0s: ") {
			t.Errorf("%s, at the limit: got %+v", tt.what, v)
		}
		byHand := rule
		byHand.PromoteAfter = 0
		if v := byHand.Judge(tt.t, 10*limit); v.Decision != Wait || v.Undecided {
			t.Errorf("%s, by hand: got %+v", tt.what, v)
		}
	}
	rule.Compared = true
	uncompared.Answers.Compared = 2000
	if v := rule.Judge(uncompared, time.Hour); v.Decision != Promote {
		t.Errorf("2000 answers alike: got %+v", v)
	}
}

func TestClassOf(t *testing.T) {
	for size, want := range map[int]int{
		-1: 0, 0: 0, 1: 0, 4: 0, 5: 1, 16: 1, 17: 2, 64: 2, 65: 3, 256: 3, 257: 4, 1024: 4, 1025: 5,
		1 << 16: 5, math.MaxInt: 5,
	} {
		if got := ClassOf(size); got != want {
			t.Errorf("class of %d: got %d, want %d", size, got, want)
		}
	}
	for class := range BatchClasses {
		if got := ClassOf(ClassSize(class)); got != class {
			t.Errorf("the size of class %d is of class %d", class, got)
		}
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
