// Command fleet tries agents, each a process of its own, on this machine: what they serve, and what
// becomes of queries when agents die, freeze, are cut off, replaced or asked for too much. Each
// scenario prints what it found beside what was wanted, and ends with 1 if something was missed.
//
//	make build
//	go run ./scripts/fleet                   what there is
//	go run ./scripts/fleet failover          one, in minutes
//	go run ./scripts/fleet failover --short  in seconds; wants nothing that a busy machine cannot give
//	go run ./scripts/fleet all --short       each, and a table
//
// Nothing leaves loopback, or the network namespaces that some scenarios make as root.
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
	"github.com/muster-serve/muster/scripts/harness"
)

// A scenario is one thing to try.
type scenario struct {
	name, shows string
	long, short string // how long it takes, about
	try         func(*run, context.Context) error
	flags       func(*run, *cobra.Command) // its own; nil: it has none
}

// scenarios are in the order in which they are listed. Those that take longest begin first where
// all are tried.
var scenarios = []scenario{
	{"chaos",
		"agents killed, frozen, cut off, drained and more, at random, under three kinds of clients",
		"10 min", "20 s", (*run).chaos, chaosFlags},
	{"upgrade", "each agent replaced by one of the previous protocol's version, and back",
		"2 min", "20 s", (*run).upgrade, upgradeFlags},
	{"versions", "what versions of a model that come and go leave in an agent",
		"15 min", "10 s", (*run).versions, nil},
	{"live", "what a fleet serves at 0.95 and 1.05 of what the simulator allows",
		"5 min", "5 s", (*run).live, nil},
	{"failover", "the leader killed and frozen, again and again", "7 min", "10 s", (*run).failover,
		nil},
	{"worker", "agents that do not lead killed, frozen and drained", "2 min", "15 s", (*run).worker,
		nil},
	{"gateway", "the agents that a plain client talks to killed", "1 min", "5 s", (*run).gateway,
		nil},
	{"demand", "what is proposed, and when, once queries are larger or more", "5 min", "15 s",
		(*run).demand, nil},
	{"overload", "three times as many queries as a fleet can serve", "2 min", "10 s",
		(*run).overload, nil},
	{"partition", "half of the agents cut off, and back, in network namespaces (as root)",
		"1 min", "15 s", (*run).partition, nil},
	{"overhead", "what Muster costs a query, beside bare gRPC relays", "1 min", "10 s",
		(*run).overhead, overheadFlags},
	{"loading", "what loading a model does to another that serves", "1 min", "10 s", (*run).loading,
		nil},
	{"gossip", "what gossip costs, and how old its view is", "1 min", "10 s", (*run).gossip,
		gossipFlags},
}

func main() {
	runtime.LockOSThread() // agents are stopped when the thread that started them ends
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	r := &run{out: os.Stdout}
	root := &cobra.Command{
		Use:   "fleet",
		Short: "Try agents as processes on this machine, a scenario at a time; `make build` first",
		Args:  cobra.NoArgs, SilenceErrors: true, SilenceUsage: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(&cobra.Command{Hidden: true})
	cobra.EnableCommandSorting = false
	flags := root.PersistentFlags()
	flags.BoolVar(&r.short, "short", false,
		"seconds in place of minutes, and nothing wanted that needs a quiet machine")
	flags.Uint64Var(&r.seed, "seed", 163,
		"of all that is drawn; by the default all kinds of things happen in chaos --short; 0: "+
			"something new")
	flags.StringVar(&r.muster, "muster", "bin/muster", "the binary to try")
	flags.StringVar(&r.dir, "dir", "build/fleet", "directory for models, state and logs")
	for _, s := range scenarios {
		cmd := &cobra.Command{
			Use: s.name, Short: fmt.Sprintf("%s (%s, short %s)", s.shows, s.long, s.short),
			Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return r.one(cmd.Context(), s) },
		}
		if s.flags != nil {
			s.flags(r, cmd)
		}
		root.AddCommand(cmd)
	}
	root.AddCommand(newAllCommand(r), newRelayCommand())
	if err := root.ExecuteContext(ctx); err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted")
		}
		fmt.Fprintf(os.Stderr, "fleet: %v\n", err)
		os.Exit(1)
	}
}

// A run is one run of a scenario, in a process of its own.
type run struct {
	muster, dir string
	short       bool
	seed        uint64
	out         io.Writer
	flags       struct { // of single scenarios
		duration time.Duration
		previous string
		threads  int
		agents   int
	}

	wanted  int
	missed  []string
	atEnd   []func() // the last one first
	started time.Time
}

// A skip is why a scenario cannot be tried here.
type skip struct{ error }

// The last line says what became of a scenario, and begins with one of these.
const (
	asWanted = "as wanted"
	missed   = "MISSED"
	skipped  = "skipped"
)

// one tries a scenario.
func (r *run) one(ctx context.Context, s scenario) (err error) {
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
		r.say("%s", note)
	}
	var why skip
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &why):
		r.say("%s: %v", skipped, why.error)
		return nil
	case err != nil:
		r.say("%s: %v", missed, err)
	case len(r.missed) > 0:
		r.say("%s: %d of %d: %s", missed, len(r.missed), r.wanted, r.missed[0])
		err = fmt.Errorf("%s: something was missed; logs are in %s", s.name, r.dir)
	default:
		r.say("%s: all %d", asWanted, r.wanted)
	}
	return err
}

// say prints a line, in the place of the progress that a terminal may show.
func (r *run) say(format string, args ...any) {
	if term.IsTerminal(int(os.Stderr.Fd())) {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
	}
	fmt.Fprintf(r.out, format+"\n", args...)
}

// want notes whether something that was wanted is so.
func (r *run) want(ok bool, format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	mark := "ok"
	r.wanted++
	if !ok {
		mark = missed
		r.missed = append(r.missed, what)
	}
	r.say("  %-6s  %s", mark, what)
}

// wantNil is want of something that is so where there is no error.
func (r *run) wantNil(err error, format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	if err != nil {
		what += ": " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	r.want(err == nil, "%s", what)
}

// wantQuiet is want of what only a machine without other work can give: a short run only says it.
func (r *run) wantQuiet(ok bool, format string, args ...any) {
	if r.short {
		r.say("  found   "+format, args...)
	} else {
		r.want(ok, format, args...)
	}
}

// pick is long, or short where the run is.
func pick[T any](r *run, long, short T) T {
	if r.short {
		return short
	}
	return long
}

// settle lets things go on for a while, a fraction of it where the run is short.
func (r *run) settle(ctx context.Context, long time.Duration) error {
	return harness.Settle(ctx, pick(r, long, long/4))
}

// pool is the types of a pool: DIEN needs both, as only the first serves its largest batches in
// time.
func pool(base, auxiliary int) []string {
	return append(slices.Repeat([]string{"g4dn.xlarge"}, base),
		slices.Repeat([]string{"r5n.large"}, auxiliary)...)
}

// newFleet is a fleet of no agents yet, which will emulate models, and stop at the end.
func (r *run) newFleet(ctx context.Context, models ...string) (*harness.Fleet, error) {
	f := &harness.Fleet{Muster: r.muster, Dir: r.dir, Models: models, Args: harness.Emulated()}
	r.atEnd = append(r.atEnd, f.Stop)
	return f, f.GenerateSmall(ctx)
}

// start starts agents of an instance type each, some of which never lead, and waits until all know
// all.
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
	r.say("%d emulated agents (%s), each a process, serve %v; logs in %s", len(types),
		harness.Pool(types), f.Models, r.dir)
	return nil
}

// client is a client of agents, closed at the end.
func (r *run) client(addresses []string, options ...client.Option) (*client.Client, error) {
	c, err := client.New(addresses, options...)
	if err == nil {
		r.atEnd = append(r.atEnd, func() { c.Close() })
	}
	return c, err
}

// driver has the SDK send the fleet's first model. Where the run is short it waits long: what is
// then answered late, on a machine that is short of time, has not failed.
func (r *run) driver(ctx context.Context, f *harness.Fleet, addresses []string,
	options ...client.Option) (*harness.Driver, error) {
	c, err := r.client(addresses, options...)
	if err != nil {
		return nil, err
	}
	return harness.NewDriver(ctx, c, map[string]float64{f.Models[0]: 1},
		pick(r, 0, harness.Patience))
}

// limit is the rate that a pool is to serve, in queries/s: the simulated allowable throughput, with
// the round trip that is measured, and where the run is short the half of the fluid limit, which
// takes no time to find.
func (r *run) limit(ctx context.Context, f *harness.Fleet, d *harness.Driver,
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
	r.say("Beside execution a query takes %v here; with that the simulator allows %.0f queries/s",
		beside.Round(10*time.Microsecond), allowable)
	if err == nil && allowable == 0 {
		err = errors.New("that is too long for any rate: this machine has too much else to do; " +
			"try --short")
	}
	return allowable, err
}

// loaded starts a fleet of DIEN under a share of its limit, until the driver is stopped. One of the
// cheap machines leads: when it dies the others can still serve that.
func (r *run) loaded(ctx context.Context, share float64) (*harness.Fleet, *harness.Driver, error) {
	f, err := r.newFleet(ctx, "dien")
	if err != nil {
		return nil, nil, err
	}
	if err := r.start(ctx, f, pick(r, pool(2, 9), pool(2, 3)), "g4dn.xlarge"); err != nil {
		return nil, nil, err
	}
	d, err := r.driver(ctx, f, f.Addresses())
	if err != nil {
		return nil, nil, err
	}
	limit, err := r.limit(ctx, f, d, f.Types())
	if err != nil {
		return nil, nil, err
	}
	r.say("Load: %.0f queries/s", share*limit)
	return f, d, d.Start(ctx, harness.Load{Rate: share * limit, Seed: r.seed})
}

// account ends the load, and says what became of all queries since begin.
func (r *run) account(d *harness.Driver, begin time.Time) error {
	if err := d.Stop(); err != nil {
		return err
	}
	c := d.Between(begin, time.Now())
	r.say("  all: %v", c)
	r.want(c.Queries > 0 && c.OnTime+c.Late > 0, "%d of %d queries answered, want some",
		c.OnTime+c.Late, c.Queries)
	r.want(c.Failed == 0, "%d of %d queries failed, want none", c.Failed, c.Queries)
	r.want(c.Wrong == 0, "%d answers were wrong, want none", c.Wrong)
	r.want(d.Twice() == 0, "%d queries were answered twice, want none", d.Twice())
	return nil
}
