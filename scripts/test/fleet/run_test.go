//go:build fleet

package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// A run is one run of one scenario.
type run struct {
	muster, dir string
	short       bool
	seed        uint64
	out         io.Writer

	wanted int
	missed []string
	atEnd  []func() // called when the scenario has ended, the last one first
}

// A skip says why a scenario cannot run here.
type skip struct{ error }

// The last line of a scenario says how it ended. It begins with one of these.
const (
	asWanted = "as wanted"
	missed   = "MISSED"
	skipped  = "skipped"
)

// printLine prints a line.
func (r *run) printLine(format string, args ...any) { fmt.Fprintf(r.out, format+"\n", args...) }

// checkWanted prints something that is wanted, with what was found, and counts it as missed if
// it is not ok.
func (r *run) checkWanted(ok bool, format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	mark := "ok"
	r.wanted++
	if !ok {
		mark = missed
		r.missed = append(r.missed, what)
	}
	r.printLine("  %-6s  %s", mark, what)
}

// wantNil is want of something that is ok if err is nil.
func (r *run) wantNil(err error, format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	if err != nil {
		what += ": " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	r.checkWanted(err == nil, "%s", what)
}

// wantQuiet is want of something that needs a quiet machine. A short run prints it and wants
// nothing.
func (r *run) wantQuiet(ok bool, format string, args ...any) {
	if r.short {
		r.printLine("  found   "+format+" (not checked in a short run)", args...)
	} else {
		r.checkWanted(ok, format, args...)
	}
}

// pick returns short in a short run, else long.
func pick[T any](r *run, long, short T) T {
	if r.short {
		return short
	}
	return long
}

// waitAWhile waits for long, or for a quarter of it in a short run, while the scenario goes on.
func (r *run) waitAWhile(ctx context.Context, long time.Duration) error {
	return harness.Settle(ctx, pick(r, long, long/4))
}

// pool returns the instance types of a pool, one for each agent. DIEN needs both types: only
// g4dn.xlarge serves its largest batches in time.
func pool(base, auxiliary int) []string {
	return append(slices.Repeat([]string{"g4dn.xlarge"}, base),
		slices.Repeat([]string{"r5n.large"}, auxiliary)...)
}

// newFleet makes a fleet for emulated agents, none of which runs yet. They are stopped at the end.
func (r *run) newFleet(ctx context.Context, models ...string) (*harness.Fleet, error) {
	f := &harness.Fleet{Muster: r.muster, Dir: r.dir, Models: models, Args: harness.Emulated()}
	r.atEnd = append(r.atEnd, f.Stop)
	return f, f.GenerateSmall(ctx)
}

// start starts an agent of each of the types and waits until all see each other. Agents of the
// types in neverLead never lead.
func (r *run) start(ctx context.Context, f *harness.Fleet, types []string,
	neverLead ...string) error {
	for _, t := range types {
		var args []string
		if slices.Contains(neverLead, t) {
			args = []string{"--leader", "never"}
		}
		if _, err := f.Add(ctx, t, args...); err != nil {
			return err
		}
	}
	if err := f.WaitComplete(ctx); err != nil {
		return err
	}
	r.printLine("%d emulated agents (%s), each a process, serve %v; logs in %s", len(types),
		harness.Pool(types), f.Models, r.dir)
	return nil
}

// newClient makes a client of agents. It is closed at the end.
func (r *run) newClient(addresses []string, options ...client.Option) (*client.Client, error) {
	c, err := client.New(addresses, options...)
	if err == nil {
		r.atEnd = append(r.atEnd, func() { c.Close() })
	}
	return c, err
}

// newDriver makes a driver that sends queries to the fleet's first model by the SDK. In a
// short run the SDK waits longer than the model's deadline, so that on a busy machine
// queries are late, not failed.
func (r *run) newDriver(ctx context.Context, f *harness.Fleet, addresses []string,
	options ...client.Option) (*harness.Driver, error) {
	c, err := r.newClient(addresses, options...)
	if err != nil {
		return nil, err
	}
	return r.driverOf(ctx, f, c)
}

// driverOf makes a driver that sends queries to the fleet's first model by c.
func (r *run) driverOf(ctx context.Context, f *harness.Fleet,
	c *client.Client) (*harness.Driver, error) {
	return harness.NewDriver(ctx, c, map[string]float64{f.Models[0]: 1},
		pick(r, 0, harness.Patience))
}

// simulatedLimit is the rate, in queries/s, that a pool should be able to serve: the allowable
// throughput by simulation, with the round trip that is measured here. In a short run it is half of
// the fluid limit, which needs no search.
func (r *run) simulatedLimit(ctx context.Context, f *harness.Fleet, d *harness.Driver,
	types []string) (float64, error) {
	model, pool := f.Models[0], harness.Pool(types)
	if r.short {
		limit, err := harness.FluidLimit(ctx, r.muster, pool, map[string]float64{model: 1})
		return limit / 2, err
	}
	beside, err := d.Beside(ctx, f, model)
	if err != nil {
		return 0, err
	}
	allowable, err := harness.AllowableThroughput(ctx, r.muster, model, pool, beside)
	r.printLine("A query takes %v longer than its execution here; with that the simulator allows "+
		"%.0f queries/s",
		beside.Round(10*time.Microsecond), allowable)
	if err == nil && allowable == 0 {
		err = errors.New("no rate is allowable with that: this machine is too busy; try -short")
	}
	return allowable, err
}

// startLoaded starts a fleet that serves DIEN, and a load of a share of its limit, in a short run
// of 50 queries/s at most, which lasts until the driver is stopped. An r5n.large leads: without one
// of them, the others can still serve the load.
func (r *run) startLoaded(ctx context.Context, share float64) (*harness.Fleet, *harness.Driver,
	error) {
	f, err := r.newFleet(ctx, "dien")
	if err != nil {
		return nil, nil, err
	}
	if err := r.start(ctx, f, pick(r, pool(2, 9), pool(2, 3)), "g4dn.xlarge"); err != nil {
		return nil, nil, err
	}
	d, err := r.newDriver(ctx, f, f.Addresses())
	if err != nil {
		return nil, nil, err
	}
	limit, err := r.simulatedLimit(ctx, f, d, f.Types())
	if err != nil {
		return nil, nil, err
	}
	// A short run loads a busy machine with no more than it may have the CPU time for.
	rate := pick(r, share*limit, min(share*limit, 50))
	r.printLine("Load: %.0f queries/s", rate)
	return f, d, d.Start(ctx, harness.Load{Rate: rate, Seed: r.seed})
}

// endLoad ends the load. It wants that no query since begin failed or was answered wrongly or
// twice.
func (r *run) endLoad(d *harness.Driver, begin time.Time) error {
	if err := d.Stop(); err != nil {
		return err
	}
	c := d.Between(begin, time.Now())
	r.printLine("  all: %v", c)
	r.checkWanted(c.Queries > 0 && c.OnTime+c.Late > 0, "%d of %d queries answered, want some",
		c.OnTime+c.Late, c.Queries)
	r.checkWanted(c.Failed == 0, "%d of %d queries failed, want none", c.Failed, c.Queries)
	r.checkWanted(c.Wrong == 0, "%d answers were wrong, want none", c.Wrong)
	r.checkWanted(d.Twice() == 0, "%d queries were answered twice, want none", d.Twice())
	return nil
}
