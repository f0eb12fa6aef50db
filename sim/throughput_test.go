package sim

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/sim/latency"
)

// TestThroughput: what is found holds there and no longer a little above, and does not exceed the
// fluid limit by more than three standard errors.
func TestThroughput(t *testing.T) {
	for _, policy := range []string{"kairos", "fcfs"} {
		cfg := reference(t, "rm2")
		cfg.Policy, cfg.Queries = policy, 3000
		found, err := FindThroughput(t.Context(), cfg, 2, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(found.PerSeed) != 2 || found.Rate <= 0 ||
			found.Rate > found.FluidLimit+3*found.StandardError {
			t.Errorf("%s: %+v, want a rate up to the fluid limit", policy, found)
		}
		for _, seed := range found.PerSeed {
			c := *cfg
			c.Seed, c.Rate = seed.Seed, seed.Rate
			if res := mustRun(t, &c); !res.Satisfied {
				t.Errorf("%s: seed %d: QoS satisfaction is %v at the rate found", policy, seed.Seed,
					res.QoSSatisfaction)
			}
			c.Rate += 2 * Tolerance * found.FluidLimit
			if res := mustRun(t, &c); res.Satisfied && policy == "fcfs" {
				t.Errorf("%s: seed %d: QoS satisfaction is %v above the rate found", policy,
					seed.Seed, res.QoSSatisfaction)
			}
		}
	}
}

// TestStopWhenLost: a run that stops early has the fate of the whole one.
func TestStopWhenLost(t *testing.T) {
	cfg := reference(t, "ncf")
	cfg.Queries = 3000
	s, err := newRateSearch(cfg)
	if err != nil {
		t.Fatal(err)
	}
	fates := map[bool]int{}
	for share := 0.3; share < 1.2; share += 0.1 {
		c := *cfg
		c.Rate = share * s.limit
		got, err := s.meetsTargets(t.Context(), cfg.Seed, c.Rate)
		if err != nil {
			t.Fatal(err)
		}
		if want := mustRun(t, &c).Satisfied; got != want {
			t.Errorf("at %.2f of the limit: stopped early says %v, the whole run %v", share, got,
				want)
		}
		fates[got]++
	}
	if len(fates) != 2 {
		t.Errorf("all probes had the same fate: %v", fates)
	}
}

func TestOracle(t *testing.T) {
	cfg := reference(t, "rm2")
	cfg.Policy = Oracle
	found, err := FindThroughput(t.Context(), cfg, 3, nil)
	if err != nil {
		t.Fatal(err)
	}
	// It gives the base type the largest queries only, so the water may do a little better or
	// worse.
	if math.Abs(found.Share-1) > 0.1 {
		t.Errorf("oracle: %+v", found)
	}
	cfg.Pool = Pool{{"t3.xlarge", 10}} // cannot serve the largest
	if found, err = FindThroughput(t.Context(), cfg, 1, nil); err != nil || found.Rate != 0 {
		t.Errorf("pool without a base type: %+v, %v", found, err)
	}
}

// TestFixedThroughput: with one instance and fixed latency, no query may wait longer than the
// slack, so the allowable throughput is near its service rate with generous targets and far below
// it with tight ones.
func TestFixedThroughput(t *testing.T) {
	cfg := reference(t, "rm2")
	cfg.Policy = "fcfs"
	cfg.Models[0].Latencies = map[string]match.Latencies{
		"a": latency.Fixed{Base: cfg.Models[0].QoSTarget / 100},
	}
	cfg.Pool = Pool{{"a", 1}}
	loose, err := FindThroughput(t.Context(), cfg, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Models[0].Latencies = map[string]match.Latencies{
		"a": latency.Fixed{Base: cfg.Models[0].QoSTarget * 9 / 10},
	}
	tight, err := FindThroughput(t.Context(), cfg, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if loose.Share < 0.9 || loose.Share > 1.05 || tight.Share > 0.3 {
		t.Errorf("share of the limit: %v with time for a hundred services, %v with time for one",
			loose.Share, tight.Share)
	}
}

// TestFoundSoFar: what was found until the context ended is returned, with its error.
func TestFoundSoFar(t *testing.T) {
	for name, do := range map[string]func(context.Context, *Config, func()) (*Report, error){
		"throughput": func(ctx context.Context, cfg *Config, cancel func()) (*Report, error) {
			return ReportThroughput(ctx, cfg, 40, cancel)
		},
		"runs": func(ctx context.Context, cfg *Config, cancel func()) (*Report, error) {
			cfg.Queries = 2 * interruptible
			return RunSeeds(ctx, cfg, 40, func(arrived int) {
				if arrived > 3*cfg.Queries { // some of the runs are complete
					cancel()
				}
			})
		},
	} {
		cfg := reference(t, "ncf")
		cfg.Queries, cfg.Rate = 3000, 100
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, err := do(ctx, cfg, cancel)
		if !errors.Is(err, context.Canceled) || r == nil || !r.Interrupted {
			t.Fatalf("%s: got %+v and error %v, want a report that was interrupted", name, r, err)
		}
		found := len(r.Runs)
		if name == "throughput" {
			found = len(r.PerSeed)
			for _, s := range r.PerSeed {
				c := *cfg
				c.Seed, c.Rate = s.Seed, s.Rate
				if res := mustRun(t, &c); s.Rate <= 0 || !res.Satisfied {
					t.Errorf("seed %d: %v queries/s do not hold", s.Seed, s.Rate)
				}
			}
			if !(r.Found.Rate > 0) {
				t.Errorf("found %+v", r.Found)
			}
		}
		if found < 1 || found > 39 {
			t.Errorf("%s: %d of 40 seeds, want some", name, found)
		}
	}
	// Nothing is known yet.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r, err := RunSeeds(ctx, reference(t, "ncf"), 1, nil); r != nil ||
		!errors.Is(err, context.Canceled) {
		t.Errorf("at once: got %+v, %v", r, err)
	}
}
