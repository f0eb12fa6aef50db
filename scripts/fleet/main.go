// Command fleet tries a fleet of emulated agents, each a process of its own, on
// this machine: whether it serves what the simulator says it will, and what is
// lost when agents die, freeze, are cut off or are asked for too much. It prints
// what it found beside what was wanted, and exits with 1 if something was missed.
//
//	go run ./scripts/fleet live        what is served at 0.95 and 1.05 of the simulated allowable throughput
//	go run ./scripts/fleet failover    the leader killed, then frozen, again and again
//	go run ./scripts/fleet worker      a worker killed, frozen, drained, and a slow one
//	go run ./scripts/fleet gateway     an agent that answers a plain client is killed
//	go run ./scripts/fleet overload    three times what it can serve
//	go run ./scripts/fleet partition   network namespaces cut in two and healed (as root)
//	go run ./scripts/fleet -previous muster-old upgrade
//	                                   each agent replaced by one of another version, and back
//
// `make build` first. Nothing leaves loopback or the namespaces.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/muster-serve/muster/scripts/process"
)

// An experiment is one run of this command.
type experiment struct {
	muster   string
	previous string
	dir      string
	runs     int
	load     time.Duration
	missed   []string
}

var experiments = map[string]func(*experiment, context.Context) error{
	"live":      (*experiment).live,
	"failover":  (*experiment).failover,
	"worker":    (*experiment).worker,
	"gateway":   (*experiment).gateway,
	"overload":  (*experiment).overload,
	"partition": (*experiment).partition,
	"upgrade":   (*experiment).upgrade,
}

func main() {
	runtime.LockOSThread() // agents are stopped when the thread that started them ends
	var e experiment
	flag.StringVar(&e.muster, "muster", "bin/muster", "the binary to try")
	flag.StringVar(&e.previous, "previous", "", "the binary of the previous version, for upgrade")
	flag.StringVar(&e.dir, "dir", "build/fleet", "directory for models, state and logs")
	flag.IntVar(&e.runs, "runs", 10, "how often the leader is killed, and frozen")
	flag.DurationVar(&e.load, "load", 30*time.Second, "how long each load lasts")
	flag.Usage = func() {
		fmt.Fprintf(os.Stderr, "usage: go run ./scripts/fleet [flags] %s\n", strings.Join(names(), "|"))
		flag.PrintDefaults()
	}
	flag.Parse()
	run := experiments[flag.Arg(0)]
	if run == nil || flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	e.dir = filepath.Join(e.dir, flag.Arg(0))
	err := run(&e, ctx)
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "fleet: %v\n", err)
		os.Exit(1)
	}
	if len(e.missed) > 0 {
		fmt.Printf("\nMissed:\n  %s\n", strings.Join(e.missed, "\n  "))
		os.Exit(1)
	}
	fmt.Println("\nAll as wanted.")
}

func names() (all []string) {
	for name := range experiments {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// want notes whether something that was wanted is so.
func (e *experiment) want(ok bool, format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	mark := "ok    "
	if !ok {
		mark = "MISSED"
		e.missed = append(e.missed, what)
	}
	fmt.Printf("  %s  %s\n", mark, what)
}

// newFleet is a fleet of no agents yet, whose agents will emulate a model.
func (e *experiment) newFleet(ctx context.Context, model string, args ...string) (*process.Fleet, error) {
	f := &process.Fleet{
		Muster: e.muster, Dir: e.dir, Models: []string{model},
		Args: append(args, "--executor", "emulated", "--profile", "shipped"),
	}
	return f, f.GenerateSmall(ctx)
}

// start starts agents of an instance type each, some of which never lead, and waits until all know all.
func (e *experiment) start(ctx context.Context, model string, types []string, neverLead ...string) (*process.Fleet, error) {
	f, err := e.newFleet(ctx, model)
	if err != nil {
		return nil, err
	}
	for _, t := range types {
		var args []string
		if slices.Contains(neverLead, t) {
			args = []string{"--leader", "never"}
		}
		if _, err := f.Add(t, "", "", args...); err != nil {
			f.Stop()
			return nil, err
		}
	}
	if err := f.WaitComplete(ctx); err != nil {
		f.Stop()
		return nil, err
	}
	fmt.Printf("%d emulated agents (%s), each a process, serving %s; logs in %s\n", len(types), summary(types), model, e.dir)
	return f, nil
}

// summary counts types: "g4dn.xlarge=2,r5n.large=9".
func summary(types []string) string {
	var parts []string
	for i, t := range types {
		if slices.Index(types, t) == i {
			n := 0
			for _, o := range types {
				if o == t {
					n++
				}
			}
			parts = append(parts, fmt.Sprintf("%s=%d", t, n))
		}
	}
	return strings.Join(parts, ",")
}

// pool is the types of a pool.
func pool(base, auxiliary int) []string {
	return append(slices.Repeat([]string{"g4dn.xlarge"}, base), slices.Repeat([]string{"r5n.large"}, auxiliary)...)
}
