// Command fleet tests fleets of agents, each a process of its own, on this machine. A scenario puts
// load on a fleet, and most of them disturb it: agents are killed, frozen, cut off, replaced or
// sent more queries than they can serve. Each prints what it found beside what is wanted. The exit
// status is 1 if something wanted was not found.
//
//	make build
//	go run ./scripts/test/fleet                   lists the scenarios
//	go run ./scripts/test/fleet failover          one scenario, in minutes
//	go run ./scripts/test/fleet failover --short  the same in seconds; needs no quiet machine
//	go run ./scripts/test/fleet all --short       every scenario, and a table
//
// All traffic stays on loopback, or in the network namespaces that some scenarios make as root.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// A scenario is one test of a fleet.
type scenario struct {
	name, shows string
	long, short string // how long it takes, about
	try         func(*run, context.Context) error
	flags       func(*run, *cobra.Command) // adds flags of its own; may be nil
}

// scenarios are listed and started in this order. Those whose short form takes longest come first.
var scenarios = []scenario{
	{"chaos",
		"at random: agents killed, frozen, cut off and drained, keys changed; three kinds of " +
			"clients",
		"10 min", "20 s", (*run).testChaos, chaosFlags},
	{"upgrade",
		"agents replaced one by one, from the oldest compatible version to this, and back",
		"2 min", "20 s", (*run).testUpgrade, upgradeFlags},
	{"versions", "the memory of an agent whose model is replaced again and again",
		"15 min", "10 s", (*run).testVersions, nil},
	{"live", "queries within QoS at 0.95 and 1.05 times the simulated allowable throughput",
		"5 min", "5 s", (*run).testLive, nil},
	{"failover", "the leader killed, and frozen, ten times each", "7 min", "10 s",
		(*run).testFailover,
		nil},
	{"worker", "workers killed, frozen and drained", "2 min", "15 s", (*run).testWorker,
		nil},
	{"gpu", "agents whose card (of a fake driver) falls off the bus, or faults", "1 min", "15 s",
		(*run).testGPU, nil},
	{"gateway", "a plain client's gateways killed", "1 min", "5 s", (*run).testGateway,
		nil},
	{"proxy", "agents drained behind an nginx that keeps connections to them (needs nginx)",
		"2 min",
		"25 s", (*run).testProxy, nil},
	{"demand", "the plan that a leader proposes after a change of batch sizes or rate", "5 min",
		"15 s",
		(*run).testDemand, nil},
	{"overload", "three times as many queries as a fleet can serve", "2 min", "10 s",
		(*run).testOverload, nil},
	{"alone",
		"three times as many queries as one agent can serve, from clients that wait for outcomes",
		"1 min", "10 s", (*run).testAlone, nil},
	{"metrics", "what a real Prometheus says of agents in an overload, against what clients count",
		"3 min", "20 s", (*run).testMetrics, nil},
	{"partition", "half of the agents cut off and reconnected, in network namespaces (needs root)",
		"1 min", "15 s", (*run).testPartition, nil},
	{"loading", "the latency of a model while another is loaded", "1 min", "10 s",
		(*run).testLoading,
		nil},
	{"families", "the accuracy of a family's answers, and what is late, at rising rates", "3 min",
		"25 s", (*run).testFamilies, nil},
	{"placement",
		"the accuracy of families while the leader changes what agents hold, and is killed",
		"5 min", "90 s", (*run).testPlacement, nil},
	{"rented", "machines rented and returned as the load doubles and falls, and one killed", "3 min",
		"90 s", (*run).testRented, nil},
	{"moving", "the latency of a model while the agent changes another one for its variant",
		"3 min",
		"15 s", (*run).testMoving, nil},
	{"sharing", "lanes that move between two models of an agent when their loads swap", "2 min",
		"5 s", (*run).testSharing, nil},
	{"store", "the bytes that agents fetch of a model store, and the latency of a model meanwhile",
		"10 min", "20 s", (*run).store, storeFlags},
	{"canary",
		"canaries that are slower, answer wrongly, or are as good, by themselves and by a store",
		"8 min", "2 min", (*run).testCanary, nil},
	{"gossip", "the traffic of gossip, and the age of what it says", "1 min", "10 s",
		(*run).testGossip,
		gossipFlags},
}

func main() {
	runtime.LockOSThread() // the kernel stops agents when the thread that started them ends
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	r := &run{out: os.Stdout}
	root := &cobra.Command{
		Use: "fleet",
		Short: "Test a fleet of agents on this machine, one scenario at a time; run " +
			"`make build` first",
		SilenceErrors: true, SilenceUsage: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(&cobra.Command{Hidden: true})
	cobra.EnableCommandSorting = false
	flags := root.PersistentFlags()
	flags.BoolVar(&r.short, "short", false,
		"take seconds, not minutes, and leave out what needs a quiet machine")
	flags.Uint64Var(&r.seed, "seed", 163,
		"seed of all random numbers; 0 draws one. With the default every kind of event happens in "+
			"chaos --short")
	flags.StringVar(&r.muster, "muster", "bin/muster", "the binary to test")
	flags.StringVar(&r.dir, "dir", "build/fleet", "directory for models, state and logs")
	for _, s := range scenarios {
		cmd := &cobra.Command{
			Use: s.name, Short: fmt.Sprintf("%s (%s, short %s)", s.shows, s.long, s.short),
			Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return r.runOne(cmd.Context(), s) },
		}
		if s.flags != nil {
			s.flags(r, cmd)
		}
		root.AddCommand(cmd)
	}
	root.AddCommand(newAllCommand(r))
	if err := root.ExecuteContext(ctx); err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted")
		}
		fmt.Fprintf(os.Stderr, "fleet: %v\n", err)
		os.Exit(1)
	}
}

// A run is one run of one scenario.
type run struct {
	muster, dir string
	short       bool
	seed        uint64
	out         io.Writer
	flags       struct { // those that single scenarios add
		duration  time.Duration
		previous  string
		agents    int
		megabytes int64
	}

	wanted  int
	missed  []string
	atEnd   []func() // called when the scenario has ended, the last one first
	started time.Time
}

// A skip says why a scenario cannot run here.
type skip struct{ error }

// The last line of a scenario says how it ended. It begins with one of these.
const (
	asWanted = "as wanted"
	missed   = "MISSED"
	skipped  = "skipped"
)

// runOne runs a scenario.
func (r *run) runOne(ctx context.Context, s scenario) (err error) {
	if r.muster, err = filepath.Abs(r.muster); err != nil {
		return err
	}
	if r.seed == 0 {
		r.seed = uint64(rand.Uint32())
	}
	if r.dir, err = filepath.Abs(filepath.Join(r.dir, s.name)); err != nil {
		return err
	}
	neighbours := harness.WatchNeighbours()
	r.started = time.Now()
	err = errors.Join(os.RemoveAll(r.dir), os.MkdirAll(r.dir, 0o755))
	if err == nil {
		err = s.try(r, ctx)
	}
	for _, f := range slices.Backward(r.atEnd) {
		f()
	}
	if note := neighbours.Look(); note != "" {
		r.printLine("%s", note)
	}
	var why skip
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &why):
		r.printLine("%s: %v", skipped, why.error)
		return nil
	case err != nil:
		r.printLine("%s: %v", missed, err)
		err = fmt.Errorf("%s did not run to its end; logs are in %s", s.name, r.dir)
	case len(r.missed) > 0:
		r.printLine("%s: %d of %d: %s", missed, len(r.missed), r.wanted, r.missed[0])
		err = fmt.Errorf("%s missed something; logs are in %s", s.name, r.dir)
	default:
		r.printLine("%s: all %d", asWanted, r.wanted)
	}
	return err
}

// printLine prints a line. On a terminal it replaces the line that shows progress.
func (r *run) printLine(format string, args ...any) {
	if term.IsTerminal(int(os.Stderr.Fd())) {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
	}
	fmt.Fprintf(r.out, format+"\n", args...)
}

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
		err = errors.New("no rate is allowable with that: this machine is too busy; try --short")
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
