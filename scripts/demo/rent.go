package main

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

const rentedFleet = `fleet: demo
mode: auto
limits:
  max_price_usd_per_hour: 4
  types: {g4dn.xlarge: {max: 3}, r5n.large: {max: 6}, c5n.2xlarge: {max: 2}}
calm: 6s
process: {dir: %q, models: %q, boots: 1s}
`

// showRenting is the fourth part: a fleet that rents what its load needs. Its machines are emulated
// agents, as processes, at the prices of their types.
func (d *demo) showRenting(ctx context.Context) (err error) {
	d.printLine("\n4  An agent that may rent machines, emulated ones, for at most $4/hr. It decides by " +
		"itself (mode auto)")
	dir, err := filepath.Abs(filepath.Join(d.dir, "rented"))
	if err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	f := &harness.Fleet{Muster: d.muster, Dir: dir, Models: []string{fleetModel}}
	if err := f.GenerateSmall(ctx); err != nil {
		return err
	}
	machines := filepath.Join(dir, "machines")
	file := filepath.Join(dir, "fleet.yaml")
	text := fmt.Sprintf(rentedFleet, machines, filepath.Join(dir, "models"))
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	f.Args = append(harness.Emulated(), "--rent", file)
	defer func() {
		f.Stop()
		process.KillAll(machines)
	}()
	if err := d.addAgents(ctx, f, "r5n.large"); err != nil {
		return err
	}
	c, err := client.New(f.Addresses(), client.WithTimeout(patience))
	if err != nil {
		return err
	}
	defer c.Close()
	full, err := harness.AllowableThroughput(ctx, d.muster, fleetModel, fleetPool, 0)
	if err != nil {
		return err
	}
	d.printLine("   Watch it with %s fleet status --server %s", d.muster, f.Nodes[0].GRPC)
	r := rentalDemo{demo: d, fleet: f, client: c}
	while := max(2*d.load, 16*time.Second)
	for _, step := range []struct {
		what  string
		rate  float64
		while time.Duration
		do    func(context.Context) error
	}{
		{"%s are asked for", full / 4, while, nil},
		{"The load doubles: %s", full / 2, while, nil},
		{"One machine is taken back, by SIGKILL, under %s", full / 2, while, r.takeBack},
		// What is known of the load is that of the last 10 s, and nothing is sold in haste.
		{"The load falls to %s", full / 6, while + 14*time.Second, nil},
	} {
		if err := r.step(ctx, fmt.Sprintf(step.what, queriesASecond(step.rate)), step.rate,
			step.while, step.do); err != nil {
			return err
		}
	}
	return r.destroyFleet(ctx)
}

// A rentalDemo is the state of the fourth part.
type rentalDemo struct {
	demo   *demo
	fleet  *harness.Fleet
	client *client.Client
}

// step puts a load on the fleet for a while, does something meanwhile if do is not nil, and says
// what the fleet has become by then.
func (r *rentalDemo) step(ctx context.Context, what string, rate float64, while time.Duration,
	do func(context.Context) error) error {
	r.demo.printLine("   %s", what)
	story := make(chan error, 1)
	if do != nil {
		doing := time.AfterFunc(2*time.Second, func() { story <- do(ctx) })
		defer doing.Stop()
	}
	m, err := r.demo.driveFleet(ctx, r.fleet, rate, while)
	if err != nil {
		return err
	}
	if do != nil {
		if err := <-story; err != nil {
			return err
		}
	}
	s, err := r.client.Fleet(ctx)
	if err != nil {
		return err
	}
	r.demo.printLine("     %s: $%.3f/hr; %d queries, %s in time, none lost", machinesOf(s),
		s.GetPriceUsdPerHour(), m.Queries, percent(m.QoSSatisfaction))
	for _, h := range s.GetHeld() {
		r.demo.printLine("     held: %s: %s", h.GetWhat(), h.GetWhy())
	}
	return nil
}

// destroyFleet returns all that is rented.
func (r *rentalDemo) destroyFleet(ctx context.Context) error {
	if _, err := r.client.SetFleet(ctx, &control.SetFleetRequest{
		Change: &control.SetFleetRequest_Destroy{Destroy: true}}); err != nil {
		return err
	}
	for range 30 {
		s, err := r.client.Fleet(ctx)
		switch {
		case err != nil:
			return err
		case len(s.GetMachines()) == 0:
			r.demo.printLine("   %s fleet destroy: nothing is rented any more", r.demo.muster)
			return nil
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return errors.New("30 s after muster fleet destroy something is rented still")
}

// machinesOf says what is rented and serves.
func machinesOf(s *control.FleetState) string {
	counts := map[string]int{}
	var kinds []string
	for _, m := range s.GetMachines() {
		kind, _, _ := strings.Cut(m.GetSlot(), "/")
		if counts[kind] == 0 {
			kinds = append(kinds, kind)
		}
		counts[kind]++
	}
	var parts []string
	for _, kind := range kinds {
		parts = append(parts, fmt.Sprintf("%d %s", counts[kind], kind))
	}
	if len(parts) == 0 {
		return "nothing is rented"
	}
	return strings.Join(parts, ", ")
}

// takeBack ends the process of a machine that serves.
func (r *rentalDemo) takeBack(ctx context.Context) error {
	s, err := r.client.Fleet(ctx)
	if err != nil {
		return err
	}
	for _, m := range s.GetMachines() {
		if m.GetPhase() == "serving" {
			return process.Signal(filepath.Join(r.fleet.Dir, "machines"), m.GetInstance(),
				syscall.SIGKILL)
		}
	}
	return nil // nothing is rented: the line that follows says so
}
