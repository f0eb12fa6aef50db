//go:build fleet

package fleet

import (
	"context"
	"time"

	"github.com/muster-serve/muster/scripts/test/harness"
)

// testOverload sends a fleet three times the queries that it can serve. Wanted: at least 0.8 of the
// queries/s on time that there are at 0.95 of the limit; of the refused ones at least 90 % are
// refused within the QoS target, with a time after which to try again; memory does not grow; two
// seconds later 99 % are on time again. The short form wants that some are answered and some
// refused, and that none fails afterwards.
func (r *run) testOverload(ctx context.Context) error {
	f, err := r.newFleet(ctx, "dien")
	if err != nil {
		return err
	}
	if err := r.start(ctx, f, pool(1, 4)); err != nil {
		return err
	}
	c, err := r.newClient(f.Addresses())
	if err != nil {
		return err
	}
	// The model's deadline holds, because queries that may wait for long are not refused.
	d, err := harness.NewDriver(ctx, c, map[string]float64{"dien": 1}, 0)
	if err != nil {
		return err
	}
	limit, err := r.simulatedLimit(ctx, f, d, f.Types())
	if err != nil {
		return err
	}
	load := func(d *harness.Driver, share float64, duration time.Duration) (harness.Count, error) {
		begin := time.Now()
		_, err := d.Run(ctx, harness.Load{Rate: share * limit, Duration: duration, Seed: r.seed})
		c := d.Between(begin, time.Now())
		r.printLine("  at %.2f x for %v: %v", share, duration, c)
		return c, err
	}
	aside, long := pick(r, 10*time.Second, 2*time.Second), pick(r, 30*time.Second, 4*time.Second)
	before, err := load(d, 0.95, aside)
	if err != nil {
		return err
	}
	held, err := memory(ctx, f)
	if err != nil {
		return err
	}
	over, err := load(d, pick(r, 3.0, 6.0), long) // a short run's limit is half the fluid limit
	if err != nil {
		return err
	}
	grown, err := memory(ctx, f)
	if err != nil {
		return err
	}
	was, is := float64(before.OnTime)/aside.Seconds(), float64(over.OnTime)/long.Seconds()
	r.checkWanted(over.OnTime+over.Late > 0 && over.Refused > 0 && over.Wrong == 0 &&
		d.Twice() == 0,
		"%d queries answered, %d refused, %d wrong, %d twice: want some, some, none, none",
		over.OnTime+over.Late, over.Refused, over.Wrong, d.Twice())
	r.wantQuiet(is >= 0.8*was,
		"%.0f queries/s on time at three times the limit, want at least 0.8 of %.0f", is, was)
	r.wantQuiet(over.AtOnce*10 >= over.Refused*9,
		"%d of %d refusals within the QoS target, with Retry-After, want at least 90 %%",
		over.AtOnce, over.Refused)
	r.wantQuiet(over.Failed*50 <= over.Queries,
		"%d of %d queries neither served nor refused, want at most 2 %%", over.Failed, over.Queries)
	r.checkWanted(grown < 2*held+200, "memory of all agents went from %d to %d MB, want it flat",
		held,
		grown)
	if err := r.waitAWhile(ctx, 2*time.Second); err != nil {
		return err
	}
	if r.short {
		if d, err = r.newDriver(ctx, f, f.Addresses()); err != nil {
			return err
		}
	}
	after, err := load(d, 0.7, aside)
	if err != nil {
		return err
	}
	r.wantQuiet(after.PercentOnTime() >= 99, "%.2f %% on time from two seconds after, want 99 %%",
		after.PercentOnTime())
	r.checkWanted(after.Failed+after.Wrong == 0, "%d queries failed after, %d wrong, want none",
		after.Failed, after.Wrong)
	return nil
}

// memory is the resident memory of all agents together, in MiB.
func memory(ctx context.Context, f *harness.Fleet) (total int, err error) {
	usages, err := f.Usages(ctx)
	for _, u := range usages {
		total += u.Memory
	}
	return total, err
}
