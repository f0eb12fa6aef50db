// Command overhead measures what Muster takes beside the models' executions, with agents as
// processes on this machine.
//
//	make build
//	go run ./scripts/bench/overhead hops  the time that it adds to a query, beside bare gRPC relays
//	go run ./scripts/bench/overhead cpu   the CPU time of idle agents, and of a query
//
// Each takes a minute of a quiet machine, or some seconds of any with few --rounds and little
// --time. The exit status is 1 if Muster takes more than is wanted. All traffic stays on loopback.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// A run is one run of the command.
type run struct {
	muster, dir string
	time        time.Duration // of each measurement
	rounds      int
	threads     int
	rate        float64
	profiles    string

	missed bool
}

func main() {
	runtime.LockOSThread() // the kernel stops agents when the thread that started them ends
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	r := &run{}
	root := &cobra.Command{
		Use: "overhead", Short: "Measure what Muster takes beside the models' executions",
		SilenceErrors: true, SilenceUsage: true,
	}
	flags := root.PersistentFlags()
	flags.StringVar(&r.muster, "muster", "bin/muster", "the binary to measure")
	flags.StringVar(&r.dir, "dir", "build/overhead", "directory for models, state and logs")
	hops := &cobra.Command{
		Use: "hops", Short: "The time that Muster adds to a query, compared with bare gRPC relays",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return r.measure(ctx, r.measureHops) },
	}
	hops.Flags().IntVar(&r.threads, "threads", 1, "GOMAXPROCS of each process; 0: as Go chooses")
	hops.Flags().IntVar(&r.rounds, "rounds", 10, "rounds, in which the routes take turns")
	hops.Flags().DurationVar(&r.time, "time", time.Second, "time of each measurement of a rate")
	cpu := &cobra.Command{
		Use: "cpu", Short: "The CPU time of idle agents, and of a query beside its execution",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return r.measure(ctx, r.measureCPU) },
	}
	cpu.Flags().StringVar(&r.profiles, "profiles", "",
		"directory for a CPU profile of each process under load, for `go tool pprof`")
	cpu.Flags().Float64Var(&r.rate, "rate", 300, "queries/s")
	cpu.Flags().DurationVar(&r.time, "time", 20*time.Second, "time of the load")
	root.AddCommand(hops, cpu, newRelayCommand())
	if err := root.Execute(); err != nil {
		fmt.Fprintf(os.Stderr, "overhead: %v\n", err)
		os.Exit(1)
	}
}

// measure measures something in an empty folder.
func (r *run) measure(ctx context.Context, what func(context.Context) error) error {
	var err error
	if r.dir, err = filepath.Abs(r.dir); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(r.dir), os.MkdirAll(r.dir, 0o755)); err != nil {
		return err
	}
	if err := what(ctx); err != nil {
		return fmt.Errorf("%w; logs are in %s", err, r.dir)
	}
	if r.missed {
		return errors.New("the overhead of Muster is above its limit")
	}
	return nil
}

// want prints what was found, and notes if that is not wanted.
func (r *run) want(ok bool, format string, args ...any) {
	mark := "ok"
	if !ok {
		mark, r.missed = "MISSED", true
	}
	fmt.Printf("  %-6s  %s\n", mark, fmt.Sprintf(format, args...))
}
