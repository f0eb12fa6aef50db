package bench

import (
	"context"
	"iter"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/profiles/workload"
)

// oneAtATime is a server with one lane that takes d for each query.
func oneAtATime(d time.Duration) func(context.Context, *oip.Request) error {
	lane := make(chan struct{}, 1)
	return func(ctx context.Context, _ *oip.Request) error {
		select {
		case lane <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		defer func() { <-lane }()
		return sleep(ctx, d)
	}
}

// TestFindThroughput searches where the answer is known: constant arrivals at a
// server that takes 1 ms a query hold up to 1,000/s.
func TestFindThroughput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{properties: fakeProperties(), answer: oneAtATime(time.Millisecond)}
		start := time.Now()
		var probes []Probe
		found, err := findThroughput(t.Context(), s, []*TargetModel{fakeModel(t, s, "m")}, Search{
			Queries: func(rate float64, _ uint64) (iter.Seq[workload.Query], error) {
				return steady(t, rate, "m"), nil
			},
			Limit:    time.Minute,
			Progress: func(p Probe) { probes = append(probes, p) },
		}, sleepUntil)
		if err != nil {
			t.Fatal(err)
		}
		if !found.Complete || found.AllowableQPS < 930 || found.AllowableQPS > 1010 ||
			found.FailingQPS <= found.AllowableQPS || found.FailingQPS > 1060 {
			t.Errorf("found %+v, want the bracket around 1,000/s", found)
		}
		if took := time.Since(start); took > time.Minute {
			t.Errorf("took %v, want at most the limit", took)
		}
		if len(probes) != len(found.Probes) || found.Workload.RateQPS != found.AllowableQPS {
			t.Errorf("%d probes told of %d; workload %+v", len(probes), len(found.Probes),
				found.Workload)
		}
		for _, p := range found.Probes {
			if p.Held != (p.QoSSatisfaction >= 0.99) && p.DurationS >= 4 {
				t.Errorf("probe %v", p)
			}
		}
	})
}

// TestFindThroughputOfPoisson holds the result for an M/D/1 queue against queueing
// theory: with a service time of 1 ms, 99 % are answered within 10 ms up to
// a load of 0.774, where the Cramér-Lundberg approximation of P(wait > 9 ms) is 0.01.
func TestFindThroughputOfPoisson(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{properties: fakeProperties(), answer: oneAtATime(time.Millisecond)}
		sizes, err := workload.Fixed(1)
		if err != nil {
			t.Fatal(err)
		}
		found, err := findThroughput(t.Context(), s, []*TargetModel{fakeModel(t, s, "m")}, Search{
			Queries: func(rate float64, seed uint64) (iter.Seq[workload.Query], error) {
				a, err := workload.ParseArrivals("poisson", rate)
				if err != nil {
					return nil, err
				}
				return workload.Queries(seed, a, workload.Load{
					Model: "m", Share: 1, BatchSizes: sizes,
				})
			},
			Limit: 2 * time.Minute,
		}, sleepUntil)
		if err != nil {
			t.Fatal(err)
		}
		if found.AllowableQPS < 720 || found.AllowableQPS > 830 {
			t.Errorf("found %v, want about 774/s", found)
		}
	})
}

// TestFindThroughputEndsInTime: a search ends by the time that it has announced, although a server
// takes queries and does not answer them.
func TestFindThroughputEndsInTime(t *testing.T) {
	for _, limit := range []time.Duration{0, 30 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			var asked atomic.Int64
			s := &fakeServer{properties: fakeProperties(), answer: func(ctx context.Context,
				_ *oip.Request) error {
				if asked.Add(1) < 1000 {
					return sleep(ctx, time.Millisecond)
				}
				<-ctx.Done()
				return ctx.Err()
			}}
			m := fakeModel(t, s, "m")
			m.Timeout = time.Hour
			var begun time.Time
			start := time.Now()
			found, err := findThroughput(t.Context(), s, []*TargetModel{m}, Search{
				Queries: func(rate float64, _ uint64) (iter.Seq[workload.Query], error) {
					return steady(t, rate, "m"), nil
				},
				Limit: limit,
				Begun: func(string) { begun = time.Now() },
			}, sleepUntil)
			if err != nil {
				t.Fatal(err)
			}
			most := limit
			if limit == 0 {
				start, most = begun, time.Minute
			}
			if took := time.Since(start); took > most || found.Complete || found.NextS == 0 {
				t.Errorf("took %v of %v: %+v", took, most, found)
			}
		})
	}
}

func TestFindThroughputThatIsNotThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{properties: fakeProperties(), answer: after(50 * time.Millisecond)}
		search := Search{
			Queries: func(rate float64, _ uint64) (iter.Seq[workload.Query], error) {
				return steady(t, rate, "m"), nil
			},
			Limit: time.Minute,
		}
		models := []*TargetModel{fakeModel(t, s, "m")}
		found, err := findThroughput(t.Context(), s, models, search, sleepUntil)
		if err != nil {
			t.Fatal(err)
		}
		if found.AllowableQPS != 0 || !strings.Contains(found.String(), "below") {
			t.Errorf("found %v, want nothing that holds", found)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s.answer = after(time.Millisecond)
		found, err = findThroughput(ctx, s, models, search, sleepUntil)
		if err != nil || !found.Interrupted {
			t.Errorf("interrupted: found %v, error %v", found, err)
		}
	})
}

// TestWithin: a decision is certain where exact sums of the binomial distribution say so.
func TestWithin(t *testing.T) {
	// atMost is the probability of at most k misses among n queries, each with probability miss.
	atMost := func(n, k int, miss float64) (sum float64) {
		p := math.Pow(1-miss, float64(n))
		for i := range k + 1 {
			sum += p
			p *= float64(n-i) / float64(i+1) * miss / (1 - miss)
		}
		return sum
	}
	for _, share := range []float64{0.9, 0.95, 0.99} {
		for _, n := range []int{5, 28, 29, 58, 59, 298, 299, 1000} {
			for k := range min(n, 60) {
				yes, certain := missCounts{int64(n), int64(k)}.isWithin(share)
				if want := float64(n-k) >= share*float64(n)-1e-9; yes != want {
					t.Errorf("%d of %d missed %v: got %v", k, n, share, yes)
				}
				want := atMost(n, k, 1-share) <= 0.05
				if !yes {
					want = 1-atMost(n, k-1, 1-share) <= 0.05
				}
				if certain != want {
					t.Errorf("%d of %d missed %v: got certain %v, want %v", k, n, share, certain,
						want)
				}
			}
		}
		n := minQueries(share)
		if _, certain := (missCounts{int64(n), 0}).isWithin(share); !certain {
			t.Errorf("%v: %d queries are not enough", share, n)
		}
		if _, certain := (missCounts{int64(n - 1), 0}).isWithin(share); certain {
			t.Errorf("%v: %d queries are more than needed", share, n)
		}
	}
	if n := minQueries(0.99); n != 299 {
		t.Errorf("99 %% takes %d queries, want 299", n)
	}
	if yes, certain := (missCounts{5000, 1}).isWithin(1); yes || !certain {
		t.Errorf("one miss of 100 %%: %v, %v", yes, certain)
	}
}

// TestFindThroughputOfFewQueries: a slow model is not decided on the few queries that a minute
// would have. Of these, one in thirty is late at any rate, which eight queries do not show.
func TestFindThroughputOfFewQueries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		properties := oip.Properties{
			QoSTarget: 500 * time.Millisecond, QoSPercentile: 99, LargestBatchSize: 64,
		}.Map()
		var n atomic.Int64
		late := true
		s := &fakeServer{properties: properties,
			answer: func(ctx context.Context, _ *oip.Request) error {
				if k := n.Add(1); late && k%30 == 0 {
					return sleep(ctx, time.Second)
				}
				return sleep(ctx, 200*time.Millisecond)
			}}
		search := Search{
			Queries: func(rate float64, _ uint64) (iter.Seq[workload.Query], error) {
				return steady(t, rate, "m", "other"), nil
			},
			FirstRate: 4,
		}
		var begun []string
		search.Begun = func(text string) { begun = append(begun, text) }
		models := []*TargetModel{fakeModel(t, s, "m"), fakeModel(t, s, "other")}
		found, err := findThroughput(t.Context(), s, models, search, sleepUntil)
		if err != nil {
			t.Fatal(err)
		}
		if found.AllowableQPS != 0 || !(found.FailingQPS > 0) {
			t.Errorf("found %v, want that no rate holds", found)
		}
		if len(begun) != 1 || !strings.Contains(begun[0], "299 to m, 299 to other") ||
			!strings.Contains(begun[0], "s at 4.00/s") {
			t.Errorf("said %q, want how many queries a probe has, and its time", begun)
		}

		// The same without late ones: every rate that holds is told by 299 queries of each model.
		late = false
		search.Precision = 4 // the server has no bound
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		found, err = findThroughput(ctx, s, models, search, sleepUntil)
		if err != nil {
			t.Fatal(err)
		}
		if len(found.Probes) < 2 {
			t.Fatalf("found %v by %d probes", found, len(found.Probes))
		}
		for _, p := range found.Probes {
			if p.Queries < 598 || !p.Held || !p.Certain {
				t.Errorf("probe %v, want one of 598 queries that is certain", p)
			}
		}

		// With a limit that is too short it says what it would have taken.
		search.Limit = time.Minute
		found, err = findThroughput(t.Context(), s, models, search, sleepUntil)
		if err != nil {
			t.Fatal(err)
		}
		if want := "unknown; the search ran out of time: the next probe takes 1"; found.Complete ||
			len(found.Probes) != 0 || !strings.Contains(found.String(), want) {
			t.Errorf("within a minute: found %q, want %q", found, want)
		}
	})
}
