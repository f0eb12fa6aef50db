//go:build fleet

package fleet

import (
	"context"
	"time"

	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// testGateway has a client send all queries to three agents, because it does not know the fleet,
// and kills two of them, under a load of half of the fleet's limit. Wanted: no query fails. The
// short form only waits less.
func (r *run) testGateway(ctx context.Context) error {
	f, err := r.newFleet(ctx, "dien")
	if err != nil {
		return err
	}
	if err := r.start(ctx, f, pool(1, 4)); err != nil {
		return err
	}
	d, err := r.newDriver(ctx, f, f.Addresses()[1:4], client.WithoutFleet())
	if err != nil {
		return err
	}
	limit, err := r.simulatedLimit(ctx, f, d, f.Types())
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := d.Start(ctx, harness.Load{Rate: limit / 2, Seed: r.seed}); err != nil {
		return err
	}
	for _, i := range []int{2, 1} {
		if err := r.waitAWhile(ctx, 4*time.Second); err != nil {
			return err
		}
		n, at := f.Nodes[i], time.Now()
		n.Kill()
		f.Remove(n)
		if err := r.waitAWhile(ctx, 4*time.Second); err != nil {
			return err
		}
		r.printLine("  gateway %v killed; queries since: %v", n, d.Between(at, time.Now()))
	}
	return r.endLoad(d, begin)
}
