//go:build fleet

package fleet

import (
	"context"
	"time"

	"github.com/muster-serve/muster/scripts/test/harness"
)

// testPartition runs six agents, each in a network namespace of its own, and cuts three of them
// off for ten seconds. The client stays with the other three, under a load of half of their
// limit. Wanted: no query fails, and afterwards all agents see each other and one leader. The
// short form waits less.
func (r *run) testPartition(ctx context.Context) error {
	if err := harness.Unshare(); err != nil {
		return skip{err}
	}
	const agents = 6
	n, err := harness.NewNetwork(agents)
	if err != nil {
		return err
	}
	r.atEnd = append(r.atEnd, func() {
		if err := n.Remove(); err != nil {
			r.printLine("%v", err)
		}
	})
	f, err := r.newFleet(ctx, "dien")
	if err != nil {
		return err
	}
	f.Network, f.Args = n, append(f.Args, "--insecure")
	// One g4dn.xlarge on each side of the cut.
	types := pool(2, agents-2)
	types[1], types[agents/2] = types[agents/2], types[1]
	if err := r.start(ctx, f, types); err != nil {
		return err
	}
	d, err := r.newDriver(ctx, f, f.Addresses())
	if err != nil {
		return err
	}
	limit, err := r.simulatedLimit(ctx, f, d, types[:agents/2])
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := d.Start(ctx, harness.Load{Rate: limit / 2, Seed: r.seed}); err != nil {
		return err
	}
	if err := r.waitAWhile(ctx, 5*time.Second); err != nil {
		return err
	}
	cut := time.Now()
	if err := n.Cut(3, 4, 5); err != nil {
		return err
	}
	if err := r.waitAWhile(ctx, 10*time.Second); err != nil {
		return err
	}
	healed := time.Now()
	if err := n.Heal(3, 4, 5); err != nil {
		return err
	}
	if err := r.waitAWhile(ctx, 10*time.Second); err != nil {
		return err
	}
	r.printLine("  before: %v\n  cut:    %v\n  healed: %v", d.Between(begin, cut), d.Between(cut,
		healed),
		d.Between(healed, time.Now()))
	if err := r.endLoad(d, begin); err != nil {
		return err
	}
	r.wantNil(f.WaitAgreed(ctx), "all agents see each other again, and one leader")
	return nil
}
