package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/muster-serve/muster/scripts/process"
)

// partition has each agent in a network namespace of its own, and cuts half of
// them off for ten seconds. The client stays with the first half.
func (e *experiment) partition(ctx context.Context) (err error) {
	if err := process.Unshare(); err != nil {
		return err
	}
	const agents = 6
	n, err := process.NewNetwork(agents)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Remove()) }()
	types := pool(2, agents-2)
	f, err := e.newFleet(ctx, "dien", "--insecure")
	if err != nil {
		return err
	}
	defer f.Stop()
	// A base instance on each side.
	types[1], types[agents/2] = types[agents/2], types[1]
	for i, t := range types {
		if _, err := f.Add(t, n.Host(i), n.Namespace(i)); err != nil {
			return err
		}
	}
	if err := f.WaitComplete(ctx); err != nil {
		return err
	}
	fmt.Printf("%d emulated agents, each in a network namespace\n", agents)
	d, err := newDriver(ctx, "dien", f.Addresses())
	if err != nil {
		return err
	}
	defer d.c.Close()
	// Half of what the client's side can serve alone.
	allowable, err := e.calibrated(ctx, f, d, types[:agents/2])
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := d.drive(ctx, allowable/2, time.Minute, 1); err != nil {
		return err
	}
	if err := settle(ctx, 5*time.Second); err != nil {
		return err
	}
	cut := time.Now()
	if err := n.Cut(3, 4, 5); err != nil {
		return err
	}
	if err := settle(ctx, 10*time.Second); err != nil {
		return err
	}
	healed := time.Now()
	if err := n.Heal(3, 4, 5); err != nil {
		return err
	}
	if err := settle(ctx, 10*time.Second); err != nil {
		return err
	}
	fmt.Printf("  before: %v\n  cut:    %v\n  healed: %v\n", d.between(begin, cut, dienTarget), d.between(cut, healed, dienTarget), d.between(healed, time.Now(), dienTarget))
	d.stop()
	if err := f.WaitComplete(ctx); err != nil {
		e.want(false, "all see all again: %v", err)
	} else {
		e.want(true, "all see all again, and one leader")
	}
	e.account(d, begin)
	return nil
}
