package sim

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-serve/muster/sim/fleet"
)

// A Report is the combined result of runs of one configuration with several seeds.
type Report struct {
	Model  string `json:"model"`
	Policy string `json:"policy"`
	Pool   string `json:"pool"`
	// Source says where the latencies come from.
	Source  string  `json:"source"`
	Rate    float64 `json:"rate_qps,omitempty"` // the configured rate
	Queries int     `json:"queries_per_seed"`
	// QoSSatisfaction is the share of queries that met their QoS target, in [0, 1], overall and by
	// size class; nil if there was no run, as for the oracle.
	QoSSatisfaction         *float64   `json:"qos_satisfaction"`
	QoSSatisfactionShared   *float64   `json:"qos_satisfaction_shared"`
	QoSSatisfactionBaseOnly *float64   `json:"qos_satisfaction_base_only"`
	Latency                 *Quantiles `json:"latency_ms"`
	FluidLimit              float64    `json:"fluid_limit_qps"`
	// SplitFluidLimit is the fluid limit with queries split, and SplitShare the share of the
	// queries that were; absent if no model splits, and if none was.
	SplitFluidLimit float64 `json:"split_fluid_limit_qps,omitempty"`
	SplitShare      float64 `json:"split_share,omitempty"`
	// Threshold is the batch size above which the policy drs sends a query to the base type, given
	// or found.
	Threshold int `json:"threshold,omitempty"`
	// EffectiveAccuracy is the mean accuracy of the answers, in (0, 1]; absent if there is no
	// family. Bind is how queries were bound to variants.
	EffectiveAccuracy float64 `json:"effective_accuracy,omitempty"`
	Bind              string  `json:"bind,omitempty"`
	// Found is set by ReportThroughput, which makes the runs at the rate found with each seed.
	*Found
	// DecisionCostUs is the mean wall time of a step of the policy, in µs; absent unless measured.
	// It is the only number that differs from run to run.
	DecisionCostUs float64 `json:"decision_cost_us,omitempty"`
	// Faults are the results of Config.Faults, in the order of their times, over all runs.
	Faults []fleet.Summary `json:"faults,omitempty"`
	// Warnings say which batch sizes the pool cannot serve in time.
	Warnings []string `json:"warnings,omitempty"`
	// Interrupted says that the report has only what was known when its context ended: the runs
	// that were complete, and rates that are known to hold.
	Interrupted bool      `json:"interrupted,omitempty"`
	Runs        []*Result `json:"per_seed"`
}

// Found is the part of a Throughput that a Report shows.
type Found struct {
	Rate          float64 `json:"allowable_throughput_qps"`
	StandardError float64 `json:"standard_error_qps"`
	Share         float64 `json:"share_of_fluid_limit"`
	PerSeed       []Seed  `json:"allowable_throughput_per_seed"`
}

// CheckSeeds returns the fault of a number of runs, or nil.
func CheckSeeds(seeds int) error {
	if seeds < 1 || seeds > 10_000 {
		return fmt.Errorf("number of seeds is %d, want 1..10000", seeds)
	}
	return nil
}

// RunSeeds runs cfg with the seeds cfg.Seed, cfg.Seed+1, ... concurrently. With Log or Record seeds
// must be 1. If the policy has a threshold and cfg.Threshold is 0, the best one is searched first.
// progress, if not nil, is called with the number of queries that have arrived in all runs
// together.
//
// If ctx ends first, it returns the report of the runs that are complete together with ctx's error;
// nil if there are none.
func RunSeeds(ctx context.Context, cfg *Config, seeds int, progress func(arrived int)) (*Report,
	error) {
	if err := CheckSeeds(seeds); err != nil {
		return nil, err
	}
	if seeds > 1 && (cfg.Log != nil || cfg.Record != nil) {
		return nil, fmt.Errorf("a log or recording is of one seed, not %d", seeds)
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	rates := make([]float64, seeds)
	for i := range rates {
		rates[i] = cfg.Rate
	}
	c := *cfg
	if c.tunes() {
		s, err := newRateSearch(&c)
		if err != nil {
			return nil, err
		}
		if _, err := s.tuneThreshold(ctx, 0); err != nil {
			return nil, err
		}
		c.Threshold = s.cfg.Threshold
	}
	r, err := makeReport(ctx, &c, rates, progress)
	if r != nil {
		r.Rate = c.Rate
	}
	return r, err
}

// ReportThroughput finds the allowable throughput with each seed and runs cfg at it. progress, if
// not nil, is called when a seed is done, one call at a time.
//
// If ctx ends first, it returns the rates that are known to hold together with ctx's error; nil if
// there are none.
func ReportThroughput(ctx context.Context, cfg *Config, seeds int, progress func()) (*Report,
	error) {
	t, err := FindThroughput(ctx, cfg, seeds, progress)
	if t == nil {
		return nil, err
	}
	c := *cfg
	c.Log, c.Record, c.Threshold = nil, nil, t.Threshold
	rates := make([]float64, seeds)
	for i, s := range t.PerSeed {
		rates[i] = s.Rate
	}
	var r *Report
	if err == nil && c.Policy != Oracle && t.Rate > 0 {
		r, err = makeReport(ctx, &c, rates, nil)
	}
	if r == nil {
		if err != nil && ctx.Err() == nil {
			return nil, err
		}
		r = newReport(&c)
		r.FluidLimit, r.Interrupted = t.FluidLimit, err != nil
	}
	r.Found = &Found{t.Rate, t.StandardError, t.Share, t.PerSeed}
	return r, err
}

func newReport(cfg *Config) *Report {
	return &Report{
		Model:     modelNames(cfg.Models),
		Policy:    cfg.policyOrDefault(),
		Pool:      cfg.Pool.String(),
		Queries:   cfg.Queries,
		Threshold: cfg.Threshold,
		Warnings:  listWarnings(cfg.Models, cfg.Pool),
		Runs:      []*Result{},
	}
}

// makeReport runs cfg once for each rate above 0, with successive seeds.
func makeReport(ctx context.Context, cfg *Config, rates []float64,
	progress func(arrived int)) (*Report,
	error) {
	r := newReport(cfg)
	caller := ctx
	runs := make([]*Result, len(rates))
	var mu sync.Mutex // guards arrived and progress
	arrived := make([]int, len(rates))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, rate := range rates {
		if rate == 0 {
			continue
		}
		g.Go(func() (err error) {
			if err := ctx.Err(); err != nil {
				return err
			}
			c := *cfg
			c.Rate, c.Seed = rate, cfg.Seed+uint64(i)
			if progress != nil {
				c.Progress = func(n int) {
					mu.Lock()
					defer mu.Unlock()
					arrived[i] = n
					sum := 0
					for _, n := range arrived {
						sum += n
					}
					progress(sum)
				}
			}
			runs[i], err = Run(ctx, &c)
			return err
		})
	}
	err := g.Wait()
	runs = slices.DeleteFunc(runs, func(r *Result) bool { return r == nil })
	if err != nil && (caller.Err() == nil || len(runs) == 0) {
		return nil, err
	}
	r.Interrupted = err != nil
	var all, shared, base OutcomeCounts
	latency := newHistogram()
	var cost time.Duration
	for _, run := range runs {
		r.Runs = append(r.Runs, run)
		r.FluidLimit, r.SplitFluidLimit = run.FluidLimit, run.SplitFluidLimit
		all.add(run.OutcomeCounts)
		shared.add(run.shared)
		base.add(run.baseOnly)
		latency.Merge(run.latency)
		cost += run.DecisionCost / time.Duration(len(rates))
	}
	if all.Queries > 0 {
		r.SplitShare = roundTo(float64(all.Split)/float64(all.Queries), 6)
	}
	answers := 0.0
	for _, run := range r.Runs {
		if run.EffectiveAccuracy > 0 {
			r.Bind = cmp.Or(cfg.Bind, BindByMatcher)
			answers += float64(run.Served)
			r.EffectiveAccuracy += run.EffectiveAccuracy * float64(run.Served)
		}
	}
	r.EffectiveAccuracy = roundTo(r.EffectiveAccuracy/max(answers, 1), 6)
	q := toQuantiles(latency)
	s, sh, b := all.Satisfaction(), shared.Satisfaction(), base.Satisfaction()
	r.QoSSatisfaction, r.QoSSatisfactionShared, r.QoSSatisfactionBaseOnly, r.Latency = &s, &sh, &b,
		&q
	r.DecisionCostUs = roundTo(float64(cost)/1e3, 3)
	for _, run := range r.Runs {
		r.Faults = fleet.Summarize(r.Faults, run.Faults)
	}
	for i := range r.Faults {
		r.Faults[i].WithoutLeaderMS = roundTo(r.Faults[i].WithoutLeaderMS, 6)
	}
	return r, err
}

// listWarnings says which batch sizes no instance of the pool serves within the QoS target.
func listWarnings(models []Model, pool Pool) []string {
	var all []string
	for i := range models {
		m := &models[i]
		largest, cannot := 0, 0.0
		for _, p := range m.BatchSizes.PMF() {
			serves := false
			for _, in := range pool {
				l := m.assumedLatencies(in.Type)
				serves = serves || in.Count > 0 && l != nil && l.Mean(p.BatchSize) <= m.QoSTarget
			}
			if serves {
				largest = p.BatchSize
			} else {
				cannot += p.P
			}
		}
		if cannot > 0 {
			all = append(
				all,
				fmt.Sprintf(
					"no instance of the pool serves %s at batch size %d within its QoS target of "+
						"%v; the largest it does is %d, and %.3g %% of the queries are not "+
						"served in time",
					m.Name, m.BatchSizes.Largest(), m.QoSTarget, largest, 100*cannot))
		}
	}
	return all
}
