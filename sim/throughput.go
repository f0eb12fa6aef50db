package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Tolerance is the precision of an allowable throughput, as a share of the fluid limit.
const Tolerance = 0.001

// A Throughput is the allowable throughput of a configuration: the highest
// arrival rate at which every model's QoS target still holds.
type Throughput struct {
	// Rate is the mean over the seeds, StandardError its standard error (0 with one seed), both in
	// queries/s.
	Rate          float64 `json:"allowable_throughput_qps"`
	StandardError float64 `json:"standard_error_qps"`
	PerSeed       []Seed  `json:"per_seed"`
	FluidLimit    float64 `json:"fluid_limit_qps"`
	// Share is Rate as a share of the fluid limit.
	Share float64 `json:"share_of_fluid_limit"`
	// Threshold is the threshold of the policy, given or found; 0 if the policy has none.
	Threshold int `json:"threshold,omitempty"`
}

// Seed is the allowable throughput found with one seed, in queries/s.
type Seed struct {
	Seed uint64  `json:"seed"`
	Rate float64 `json:"allowable_throughput_qps"`
}

// FindThroughput searches for the allowable throughput of cfg with each of the seeds cfg.Seed,
// cfg.Seed+1, ... by bisection. It does not read cfg.Rate, Log, Record and Clock. With one seed,
// all rates and policies get the same queries, with gaps scaled to the rate. The seeds are searched
// concurrently. progress, if not nil, is called when a seed is done, one call at a time.
//
// If ctx ends first, it returns what is known together with ctx's error, unless that is nothing: of
// each seed the highest rate that is known to hold, and none of a seed without one.
func FindThroughput(ctx context.Context, cfg *Config, seeds int, progress func()) (*Throughput,
	error) {
	if err := CheckSeeds(seeds); err != nil {
		return nil, err
	}
	s, err := newRateSearch(cfg)
	if err != nil {
		return nil, err
	}
	if s.cfg.tunes() {
		if _, err := s.tuneThreshold(ctx, 0); err != nil {
			return nil, err
		}
	}
	t := &Throughput{FluidLimit: s.limit, Threshold: s.cfg.Threshold, PerSeed: make([]Seed, seeds)}
	caller := ctx
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	var mu sync.Mutex // guards progress
	for i := range t.PerSeed {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			seed := cfg.Seed + uint64(i)
			rate, err := s.find(ctx, seed, 0)
			t.PerSeed[i] = Seed{seed, roundTo(rate, 6)}
			if progress != nil {
				mu.Lock()
				defer mu.Unlock()
				progress()
			}
			return err
		})
	}
	err = g.Wait()
	if err != nil {
		t.PerSeed = slices.DeleteFunc(t.PerSeed, func(s Seed) bool { return s.Rate == 0 })
		if caller.Err() == nil || len(t.PerSeed) == 0 {
			return nil, err
		}
	}
	rates := make([]float64, len(t.PerSeed))
	for i, s := range t.PerSeed {
		rates[i] = s.Rate
	}
	t.Rate, t.StandardError = meanAndError(rates)
	if s.limit > 0 {
		t.Share = roundTo(t.Rate/s.limit, 6)
	}
	return t, err
}

func meanAndError(values []float64) (mean, standardError float64) {
	n := float64(len(values))
	for _, v := range values {
		mean += v / n
	}
	if len(values) > 1 {
		var squares float64
		for _, v := range values {
			squares += (v - mean) * (v - mean)
		}
		standardError = math.Sqrt(squares / (n - 1) / n)
	}
	return roundTo(mean, 6), roundTo(standardError, 6)
}

// A search simulates one configuration at different rates.
type search struct {
	cfg   Config
	limit float64
}

func newRateSearch(cfg *Config) (*search, error) {
	if len(cfg.Faults) > 0 {
		return nil, errors.New("faults: the allowable throughput is of a fleet in which nothing " +
			"goes wrong; give a rate")
	}
	s := &search{cfg: *cfg}
	s.cfg.Rate, s.cfg.Log, s.cfg.Record, s.cfg.Clock, s.cfg.Progress = 1, nil, nil, nil, nil
	if err := s.cfg.Validate(); err != nil {
		return nil, err
	}
	limit, err := s.cfg.FluidLimit(false, false)
	if err != nil {
		return nil, err
	}
	s.limit = roundTo(limit.Rate, 6)
	return s, nil
}

// meetsTargets reports whether the QoS targets hold at a rate.
func (s *search) meetsTargets(ctx context.Context, seed uint64, rate float64) (bool, error) {
	cfg := s.cfg
	// Round the rate as reports do, because a run may differ if the last digits do.
	cfg.Rate, cfg.Seed = roundTo(rate, 6), seed
	r, err := newRun(&cfg)
	if err != nil {
		return false, err
	}
	r.stopWhenLost = true
	if err := r.simulateAll(ctx); err != nil {
		return false, fmt.Errorf("at %.6g queries/s: %w", rate, err)
	}
	return !r.lost && r.makeResult().Satisfied, nil
}

// find returns the allowable throughput with one seed, in queries/s, or 0 if it is not above
// atLeast, which takes one probe.
func (s *search) find(ctx context.Context, seed uint64, atLeast float64) (float64, error) {
	if s.cfg.Policy == Oracle {
		return oracleRate(&s.cfg, seed)
	}
	if s.limit == 0 || s.limit*maxOvershoot <= atLeast {
		return 0, nil
	}
	step := Tolerance * s.limit
	var err error
	probe := func(rate float64) (ok bool) {
		if err == nil {
			ok, err = s.meetsTargets(ctx, seed, rate)
		}
		return ok
	}
	lo, hi := atLeast+step, s.limit
	if atLeast > 0 {
		if !probe(lo) {
			return 0, err
		}
		hi = max(hi, lo+step)
	} else {
		for lo = s.limit / 2; !probe(lo); lo /= 2 {
			if hi = lo; lo < step || err != nil {
				return 0, err
			}
		}
	}
	for hi >= s.limit && probe(hi) { // a finite run may exceed the limit
		most := 10 * s.limit
		if lo, hi = hi, hi*1.1; s.cfg.Merge.Merges() { // the limit is of queries that run alone
			hi, most = hi*1.2, MaxRate
		}
		if hi > min(most, MaxRate) {
			return 0, fmt.Errorf(
				"%d queries are too few to find the allowable throughput: they are served at "+
					"%.6g queries/s, the fluid limit is %.6g", s.cfg.Queries, lo, s.limit)
		}
	}
	for hi-lo > step && err == nil {
		if mid := (lo + hi) / 2; probe(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo, err
}

// maxOvershoot is the largest factor by which a finite run is assumed to exceed the fluid limit.
const maxOvershoot = 1.05

// tuneThreshold sets the policy's threshold with the highest throughput with the configuration's
// seed, and returns that throughput, 0 if none is above atLeast. A threshold that is no better than
// the best so far takes one probe.
func (s *search) tuneThreshold(ctx context.Context, atLeast float64) (rate float64, err error) {
	largest := 0
	for i := range s.cfg.Models {
		largest = max(largest, s.cfg.Models[i].BatchSizes.Largest())
	}
	best := atLeast
	s.cfg.Threshold, rate, err = s.cfg.findOther().Tune(largest,
		func(threshold int) (float64, error) {
			s.cfg.Threshold = threshold
			found, err := s.find(ctx, s.cfg.Seed, best)
			best = max(best, found)
			return found, err
		})
	return rate, err
}
