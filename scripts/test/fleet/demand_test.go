//go:build fleet

package fleet

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// testDemand changes the load on a fleet that was steady: in five fleets the batch sizes, from the
// trace's to Gaussian ones, and in five others the rate, to 1.5 times. Wanted: the leader proposes
// nothing before the change, and a plan within 25 s after it; no query fails. The short form has
// one fleet, changes the rate, and wants only that no query fails: a leader for which a busy
// machine has no time does not see the load as it is sent, and one that is elected meanwhile not
// what was before. TestDemandChanges wants the plan, in virtual time.
func (r *run) testDemand(ctx context.Context) error {
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
			d, err := r.changeLoad(ctx, c.kind, c.sizes, c.times, seed)
			if err != nil {
				return err
			}
			took = append(took, d)
		}
		slices.Sort(took)
		r.printLine("%s: planned after %.1f s (median), %.1f s (worst) of %d", c.kind,
			took[len(took)/2].Seconds(), took[len(took)-1].Seconds(), len(took))
	}
	return nil
}

// changeLoad starts a fleet under a load, changes the load, and returns how long it takes until the
// leader proposes a plan.
func (r *run) changeLoad(ctx context.Context, kind string, sizes *workload.BatchSizes,
	times float64,
	seed uint64) (took time.Duration, err error) {
	f, err := r.newFleet(ctx, "dien")
	if err != nil {
		return 0, err
	}
	defer f.Stop() // before the next fleet starts
	if err := r.start(ctx, f, pool(1, 2)); err != nil {
		return 0, err
	}
	c, err := r.newClient(f.Addresses())
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
	status := func() (*control.FleetStatus, error) {
		conn, err := f.Dial(ctx, f.Nodes[0])
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		return control.NewControlClient(conn).Status(ctx, &control.StatusRequest{})
	}
	epoch := func(s *control.FleetStatus) uint64 { return s.GetView().GetLeadership().GetEpoch() }
	s, err := status()
	if err != nil {
		return 0, err
	}
	first := epoch(s)
	// The first thousand queries after the first second are the reference. On a busy machine agents
	// decide on some queries without the leader, which does not count those.
	if err := d.Start(ctx, harness.Load{Rate: rate, Seed: r.seed + 2*seed}); err != nil {
		return 0, err
	}
	counted := uint64(0)
	for counted < pick[uint64](r, 3000, 1300) && epoch(s) == first &&
		time.Since(begin) < pick(r, time.Minute, 30*time.Second) {
		if err := harness.Settle(ctx, 50*time.Millisecond); err != nil {
			return 0, err
		}
		if s, err = status(); err != nil {
			return 0, err
		}
		counted = 0
		for _, m := range s.GetModels() {
			counted += m.GetAnswered() + m.GetRefused()
		}
	}
	if err := d.Stop(); err != nil {
		return 0, err
	}
	p := s.GetProposal()
	r.wantQuiet(p == nil, "%s: %d queries at %.0f queries/s, want no plan: %s", kind, counted, rate,
		p.GetReason())
	changed := time.Now()
	if err := d.Start(
		ctx,
		harness.Load{
			Rate: times * rate, BatchSizes: sizes, Seed: r.seed + 2*seed + 1,
		}); err != nil {
		return 0, err
	}
	for p == nil && time.Since(changed) < pick(r, 30*time.Second, 45*time.Second) &&
		!(r.short && epoch(s) != first) {
		if err := harness.Settle(ctx, 50*time.Millisecond); err != nil {
			return 0, err
		}
		if s, err = status(); err != nil {
			return 0, err
		}
		p = s.GetProposal()
	}
	took = time.Since(changed)
	r.wantQuiet(p.GetKind() == kind, "%s: want a plan for it: %s", kind, describe(p))
	r.wantQuiet(took < 25*time.Second, "%s: planned after %.1f s, want at most 25 s", kind,
		took.Seconds())
	return took, r.endLoad(d, begin)
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
