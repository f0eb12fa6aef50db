//go:build fleet

package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/cloud/process"
	"github.com/muster-serve/muster/scripts/test/harness"
)

const rentedFleet = `fleet: rented
mode: auto
limits:
  max_price_usd_per_hour: 4
  types: {g4dn.xlarge: {max: 3}, r5n.large: {max: 6}, c5n.2xlarge: {max: 2}}
calm: 6s
process: {dir: %q, models: %q, boots: 1s}
`

// testRented has an agent rent machines, which are emulated agents as processes, while the load
// doubles, a machine is killed, and the load falls. Wanted: machines are rented and returned, no
// query fails, and nothing is rented after `muster fleet destroy`. The short form only takes less
// time.
func (r *run) testRented(ctx context.Context) error {
	f, err := r.newFleet(ctx, "rm2")
	if err != nil {
		return err
	}
	machines := filepath.Join(r.dir, "machines")
	r.atEnd = append(r.atEnd, func() { process.KillAll(machines) })
	file := filepath.Join(r.dir, "fleet.yaml")
	text := fmt.Sprintf(rentedFleet, machines, filepath.Join(r.dir, "models"))
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	f.Args = append(f.Args, "--rent", file)
	if err := r.start(ctx, f, pool(0, 1)); err != nil {
		return err
	}
	c, err := r.newClient(f.Addresses())
	if err != nil {
		return err
	}
	d, err := harness.NewDriver(ctx, c, map[string]float64{"rm2": 1}, harness.Patience)
	if err != nil {
		return err
	}
	begin, load := time.Now(), pick(r, 30*time.Second, 16*time.Second)
	// By simulation 2 g4dn.xlarge and 4 r5n.large serve 68 queries/s within the QoS target.
	for _, step := range []struct {
		what string
		rate float64
		load time.Duration
		do   func(context.Context, *client.Client) error
	}{
		{"a load", 17, load, nil},
		{"twice the load", 34, load, nil},
		{"a machine is taken back, by SIGKILL", 34, load, r.takeMachine},
		// What is known of the load is that of the last 10 s, and nothing is sold in haste.
		{"a third of the load", 11, load + 14*time.Second, nil},
	} {
		if err := r.loadRented(ctx, d, c, step.rate, step.load, step.do); err != nil {
			return err
		}
		s, err := c.Fleet(ctx)
		if err != nil {
			return err
		}
		r.printLine("  %s, %.0f queries/s: %s, $%.3f/hr", step.what, step.rate, countMachines(s),
			s.GetPriceUsdPerHour())
		r.checkWanted(len(s.GetMachines()) > 0, "%d machines are rented, want some",
			len(s.GetMachines()))
		r.checkWanted(s.GetPriceUsdPerHour() <= 4, "they cost $%.3f/hr, want 4 at most",
			s.GetPriceUsdPerHour())
	}
	if err := r.destroyRented(ctx, c); err != nil {
		return err
	}
	count := d.Between(begin, time.Now())
	r.printLine("  all: %v", count)
	r.checkWanted(count.Failed == 0, "%d of %d queries failed, want none", count.Failed,
		count.Queries)
	r.checkWanted(count.Wrong == 0, "%d answers were wrong, want none", count.Wrong)
	return nil
}

// loadRented puts a load on the fleet for a while, and does something meanwhile if do is not nil.
func (r *run) loadRented(ctx context.Context, d *harness.Driver, c *client.Client, rate float64,
	while time.Duration, do func(context.Context, *client.Client) error) error {
	if err := d.Start(ctx,
		harness.Load{Rate: rate, Duration: while, Seed: r.seed}); err != nil {
		return err
	}
	var done error
	if do != nil {
		if done = harness.Settle(ctx, 2*time.Second); done == nil {
			done = do(ctx, c)
		}
	}
	_, err := d.Wait()
	return errors.Join(err, done)
}

// takeMachine ends the process of a machine that serves.
func (r *run) takeMachine(ctx context.Context, c *client.Client) error {
	s, err := c.Fleet(ctx)
	if err != nil {
		return err
	}
	for _, m := range s.GetMachines() {
		if m.GetPhase() == "serving" {
			return process.Signal(filepath.Join(r.dir, "machines"), m.GetInstance(),
				syscall.SIGKILL)
		}
	}
	return errors.New("no rented machine serves")
}

// destroyRented returns all that is rented, and wants that nothing is left within 30 s.
func (r *run) destroyRented(ctx context.Context, c *client.Client) error {
	if _, err := c.SetFleet(ctx, &control.SetFleetRequest{
		Change: &control.SetFleetRequest_Destroy{Destroy: true}}); err != nil {
		return err
	}
	left := ""
	for range 30 {
		s, err := c.Fleet(ctx)
		if err != nil {
			return err
		}
		if left = countMachines(s); len(s.GetMachines()) == 0 {
			break
		}
		if err := harness.Settle(ctx, time.Second); err != nil {
			return err
		}
	}
	r.checkWanted(left == "none", "after muster fleet destroy %s is rented, want none", left)
	return nil
}

// countMachines says what is rented.
func countMachines(s *control.FleetState) string {
	counts := map[string]int{}
	var kinds []string
	for _, m := range s.GetMachines() {
		kind, _, _ := strings.Cut(m.GetSlot(), "/")
		if counts[kind]++; counts[kind] == 1 {
			kinds = append(kinds, kind)
		}
	}
	var parts []string
	for _, kind := range kinds {
		parts = append(parts, fmt.Sprintf("%d %s", counts[kind], kind))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
