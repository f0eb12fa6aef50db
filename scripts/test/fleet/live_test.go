//go:build fleet

package fleet

import (
	"context"
	"time"

	"github.com/muster-serve/muster/scripts/test/harness"
)

// testLive compares what fleets serve with what the simulator predicts. Wanted: 99 % of the queries
// are within the QoS target at 0.95 times the simulated allowable throughput, and fewer at 1.05
// times. The short form has one load, and wants that no query fails.
func (r *run) testLive(ctx context.Context) error {
	if r.short {
		return r.liveModel(ctx, "dien", pool(1, 2), 0.8)
	}
	for model, types := range map[string][]string{"dien": pool(2, 9), "rm2": pool(1, 13)} {
		if err := r.liveModel(ctx, model, types, 0.95, 1.05); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) liveModel(ctx context.Context, model string, types []string,
	shares ...float64) error {
	f, err := r.newFleet(ctx, model)
	if err != nil {
		return err
	}
	defer f.Stop() // before the next fleet starts
	if err := r.start(ctx, f, types); err != nil {
		return err
	}
	c, err := r.newClient(f.Addresses())
	if err != nil {
		return err
	}
	d, err := r.driverOf(ctx, f, c)
	if err != nil {
		return err
	}
	limit, err := r.simulatedLimit(ctx, f, d, types)
	if err != nil {
		return err
	}
	for i, share := range shares {
		begin, before := time.Now(), c.Gateway().Stats()
		report, err := d.Run(ctx, harness.Load{
			Rate: share * limit, Duration: pick(r, 30*time.Second, 4*time.Second),
			Seed: r.seed + uint64(i),
		})
		if err != nil {
			return err
		}
		m := report.Models[0]
		r.printLine("  at %.2f x: %.0f queries/s, p50 %.1f ms, p99 %.1f ms", share, share*limit,
			m.LatencyMS.P50, m.LatencyMS.P99)
		r.printLine("  %s", harness.DescribeSince(before, c))
		if r.short {
			return r.endLoad(d, begin)
		}
		satisfied := 100 * m.QoSSatisfaction
		if share < 1 {
			r.checkWanted(satisfied >= 99,
				"%s at %.2f x: %.2f %% within %g ms, want at least 99 %%",
				model, share, satisfied, m.QoSTargetMS)
		} else {
			r.checkWanted(satisfied < 99, "%s at %.2f x: %.2f %% within %g ms, want below 99 %%",
				model,
				share, satisfied, m.QoSTargetMS)
		}
	}
	return nil
}
