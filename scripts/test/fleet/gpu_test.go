//go:build fleet

package fleet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/muster-serve/muster/runtime/gpu/fakenvidia"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// testGPU has two emulated agents watch cards of a fake driver, under a load of 0.7 of the fleet's
// limit. One card falls off the bus: its agent should leave, and one that is started on it should
// not come up until the card is back. On the other a program faults: its agent should leave, and
// the next one serve. Wanted: no query fails, and each agent ends with status 1 and says why.
func (r *run) testGPU(ctx context.Context) error {
	dir := filepath.Join(r.dir, "driver")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	driver, err := fakenvidia.Build(dir)
	if err != nil {
		return err
	}
	for _, variable := range driver.Environment() { // agents inherit them
		name, value, _ := strings.Cut(variable, "=")
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	state := fakenvidia.State{}
	for i := range 2 {
		state.Cards = append(state.Cards, fakenvidia.Card{
			UUID: fmt.Sprintf("GPU-%d", i), Name: "Fake T4", Memory: 15 << 30,
		})
	}
	if err := driver.Set(state); err != nil {
		return err
	}

	f, err := r.newFleet(ctx, "dien")
	if err != nil {
		return err
	}
	add := func(card int) (*harness.Node, error) {
		return f.Add(ctx, "g4dn.xlarge", "--leader", "never", "--gpu", fmt.Sprintf("GPU-%d", card))
	}
	agents := make([]*harness.Node, len(state.Cards))
	if err := r.start(ctx, f, pool(0, pick(r, 9, 3))); err != nil {
		return err
	}
	for card := range agents {
		if agents[card], err = add(card); err != nil {
			return err
		}
	}
	if err := f.WaitComplete(ctx); err != nil {
		return err
	}
	d, err := r.newDriver(ctx, f, f.Addresses())
	if err != nil {
		return err
	}
	limit, err := r.simulatedLimit(ctx, f, d, f.Types())
	if err != nil {
		return err
	}
	rate := pick(r, 0.7*limit, min(0.7*limit, 50))
	r.printLine("Load: %.0f queries/s", rate)
	begin := time.Now()
	if err := d.Start(ctx, harness.Load{Rate: rate, Seed: r.seed}); err != nil {
		return err
	}

	for card, xid := range []uint64{79, 31} {
		if err := r.waitAWhile(ctx, 4*time.Second); err != nil {
			return err
		}
		state.Cards[card].Xid, state.Cards[card].Lost = xid, xid == 79
		state.Cards[card].Event++
		at := time.Now()
		if err := driver.Set(state); err != nil {
			return err
		}
		if err := r.wantLeft(ctx, f, agents[card], fmt.Sprintf("failed: Xid %d", xid)); err != nil {
			return err
		}
		r.printLine("  %v left %v after Xid %d; queries since: %v", agents[card],
			time.Since(at).Round(time.Millisecond), xid, d.Between(at, time.Now()))
		if state.Cards[card].Lost {
			n, err := add(card)
			if err != nil {
				return err
			}
			if err := r.wantLeft(ctx, f, n, fmt.Sprintf(`no GPU "GPU-%d"`, card)); err != nil {
				return err
			}
			state.Cards[card].Lost = false
			if err := driver.Set(state); err != nil {
				return err
			}
		}
		if _, err := add(card); err != nil {
			return err
		}
		if err := f.WaitComplete(ctx); err != nil {
			return err
		}
	}
	return r.endLoad(d, begin)
}

// wantLeft waits until an agent has ended, and wants that it did with status 1 and says why.
func (r *run) wantLeft(ctx context.Context, f *harness.Fleet, n *harness.Node, why string) error {
	patience := time.NewTimer(time.Minute)
	defer patience.Stop()
	select {
	case <-n.Exited():
	case <-ctx.Done():
		return ctx.Err()
	case <-patience.C:
		return fmt.Errorf("%v still runs a minute after its card failed", n)
	}
	f.Remove(n)
	said := n.Stop().Error() // how it ended, and the end of its log
	r.checkWanted(strings.Contains(said, "exit status 1;") && strings.Contains(said, why),
		"%v ended with status 1 and %q in its log", n, why)
	return nil
}
