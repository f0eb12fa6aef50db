//go:build fleet

package fleet

import (
	"context"
	"syscall"
	"time"

	"github.com/muster-serve/muster/scripts/test/harness"
)

// testWorker kills an agent that does not lead, freezes one for 3 s and drains one, of each
// instance type, under a load of 0.7 of the fleet's limit. It starts another agent for each that
// ends. Wanted: no query fails. The short form does this with one type.
func (r *run) testWorker(ctx context.Context) error {
	f, d, err := r.startLoaded(ctx, 0.7)
	if err != nil {
		return err
	}
	begin := time.Now()
	for _, t := range pick(r, []string{"r5n.large", "g4dn.xlarge"}, []string{"r5n.large"}) {
		for _, what := range []string{"killed", "frozen", "drained"} {
			if err := r.waitAWhile(ctx, 2*time.Second); err != nil {
				return err
			}
			n, err := f.NotLeader(ctx, t)
			if err != nil {
				return err
			}
			at := time.Now()
			switch what {
			case "killed":
				n.Kill()
			case "frozen":
				n.Signal(syscall.SIGSTOP)
			case "drained":
				if err := n.Stop(); err != nil {
					return err
				}
				r.printLine("  %v was gone %v after SIGTERM", n,
					time.Since(at).Round(time.Millisecond))
			}
			if err := harness.Settle(ctx,
				pick(r, 3*time.Second, 1500*time.Millisecond)); err != nil {
				return err
			}
			r.printLine("  %v %s; queries since: %v", n, what, d.Between(at, time.Now()))
			if what == "frozen" {
				n.Signal(syscall.SIGCONT)
			} else {
				f.Remove(n)
				if _, err := f.Add(ctx, t); err != nil {
					return err
				}
			}
			if err := f.WaitComplete(ctx); err != nil {
				return err
			}
		}
	}
	return r.endLoad(d, begin)
}
