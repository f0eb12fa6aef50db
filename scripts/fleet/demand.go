package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/scripts/harness"
	"github.com/muster-serve/muster/sim/workload"
)

// demand changes the load on a fleet that was steady: in five fleets the batch sizes, from the
// trace's to Gaussian ones, and in five others the rate, to 1.5 times. Wanted: the leader proposes
// nothing before the change, and a plan within 25 s after it; no query fails. The short form has
// one fleet, and changes the rate.
func (r *run) demand(ctx context.Context) error {
	gaussian, err := workload.Gaussian(250, 100, workload.LargestBatchSize)
	if err != nil {
		return err
	}
	for _, c := range []struct {
		kind  string
		sizes *workload.BatchSizes
		times float64
	}{{"batch sizes", gaussian, 1}, {"arrival rate", workload.Trace(), 1.5}} {
		if r.short && c.times == 1 {
			continue
		}
		var took []time.Duration
		for seed := range pick[uint64](r, 5, 1) {
			d, err := r.changed(ctx, c.kind, c.sizes, c.times, seed)
			if err != nil {
				return err
			}
			took = append(took, d)
		}
		slices.Sort(took)
		r.say("%s: planned after %.1f s (median), %.1f s (worst) of %d", c.kind,
			took[len(took)/2].Seconds(), took[len(took)-1].Seconds(), len(took))
	}
	return nil
}

// changed starts a fleet under a load, changes the load, and returns how long it takes until the
// leader proposes a plan.
func (r *run) changed(ctx context.Context, kind string, sizes *workload.BatchSizes, times float64,
	seed uint64) (took time.Duration, err error) {
	f, err := r.newFleet(ctx, "dien")
	if err != nil {
		return 0, err
	}
	defer f.Stop() // before the next fleet starts
	if err := r.start(ctx, f, pool(1, 2)); err != nil {
		return 0, err
	}
	c, err := r.client(f.Addresses())
	if err != nil {
		return 0, err
	}
	d, err := harness.NewDriver(ctx, c, map[string]float64{"dien": 1}, harness.Patience)
	if err != nil {
		return 0, err
	}
	limit, err := harness.FluidLimit(ctx, r.muster, harness.Pool(f.Types()), map[string]float64{
		"dien": 1,
	})
	if err != nil {
		return 0, err
	}
	rate, begin := 0.7*limit, time.Now()
	proposal := func() (*control.Proposal, error) {
		conn, err := f.Dial(ctx, f.Nodes[0])
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		s, err := control.NewControlClient(conn).Status(ctx, &control.StatusRequest{})
		return s.GetProposal(), err
	}
	// The first thousand queries after the first second are the reference.
	steady := time.Duration(pick(r, 3000.0, 1300.0) / rate * float64(time.Second))
	if _, err := d.Run(
		ctx, harness.Load{Rate: rate, Duration: steady, Seed: r.seed + 2*seed}); err != nil {
		return 0, err
	}
	p, err := proposal()
	if err != nil {
		return 0, err
	}
	r.want(p == nil, "%s: %.0f s of %.0f queries/s, want no plan: %s", kind, steady.Seconds(), rate,
		p.GetReason())
	changed := time.Now()
	if err := d.Start(
		ctx,
		harness.Load{
			Rate: times * rate, BatchSizes: sizes, Seed: r.seed + 2*seed + 1,
		}); err != nil {
		return 0, err
	}
	for p == nil && time.Since(changed) < 30*time.Second {
		if err := harness.Settle(ctx, 50*time.Millisecond); err != nil {
			return 0, err
		}
		if p, err = proposal(); err != nil {
			return 0, err
		}
	}
	took = time.Since(changed)
	r.want(p.GetKind() == kind && took < 25*time.Second,
		"%s: planned after %.1f s, want at most 25 s: %s", kind, took.Seconds(), describe(p))
	return took, r.account(d, begin)
}

// describe says what changed and what is proposed.
func describe(p *control.Proposal) string {
	if p == nil {
		return "nothing"
	}
	return fmt.Sprintf("%s from %.0f/s of mean %.0f to %.0f/s of mean %.0f; %s", p.GetKind(),
		p.GetBefore().GetRate(), p.GetBefore().GetMeanSize(), p.GetNow().GetRate(),
		p.GetNow().GetMeanSize(), p.GetReason())
}
