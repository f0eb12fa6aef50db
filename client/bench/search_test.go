package bench

import (
	"context"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/sim/workload"
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
		found, err := findThroughput(t.Context(), s, []*Model{fakeModel(t, s, "m")}, Search{
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
		found, err := findThroughput(t.Context(), s, []*Model{fakeModel(t, s, "m")}, Search{
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

func TestFindThroughputThatIsNotThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{properties: fakeProperties(), answer: after(50 * time.Millisecond)}
		search := Search{
			Queries: func(rate float64, _ uint64) (iter.Seq[workload.Query], error) {
				return steady(t, rate, "m"), nil
			},
			Limit: time.Minute,
		}
		models := []*Model{fakeModel(t, s, "m")}
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
