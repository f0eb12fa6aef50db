// Command peers measures Muster beside other servers of models on this machine: FastAPI with ONNX
// Runtime, Ray Serve (without and with HAProxy), MLServer, LitServe and BentoML, and ONNX Runtime
// alone. All have the same models, cores and version of ONNX Runtime, and each peer runs with ONNX
// Runtime's threads spinning, as is its default, and not.
//
//	make build
//	go run ./scripts/bench/peers --rounds 9  some seven minutes a round; goes on where it stopped
//	go run ./scripts/bench/peers --table     only prints the tables of what is measured so far
//	go run ./scripts/bench/peers --start     how long servers take to answer, at rest and under load
//	go run ./scripts/bench/peers --sweep     ONNX Runtime's settings for threads that wait
//
// In each round every server starts, is measured and stops; the order changes from round to round.
// One client sends queries one after the other, then eight clients at a time do. The first answers
// of all servers to a query are compared. Results are lines of JSON in build/peers/results.jsonl;
// remove the file to begin anew.
//
// All traffic stays on loopback. The peers are installed from PyPI into build/venv-peers-*.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/scripts/test/harness"
)

// A run is one run of the command.
type run struct {
	muster, dir string
	rounds      int
	time        time.Duration // for each measurement
	only        []string      // parts of the names of servers; none: all
	cases       []string      // likewise

	answers map[string][]byte // by case: ONNX Runtime's
	missing map[string]string // peers that are not installed, and why
}

func main() {
	runtime.LockOSThread() // the kernel stops servers when the thread that started them ends
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	r := &run{answers: map[string][]byte{}, missing: map[string]string{}}
	var table, start, sweep bool
	root := &cobra.Command{
		Use: "peers", Short: "Measure Muster beside other servers of models",
		Args: cobra.NoArgs, SilenceErrors: true, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case table:
				return r.print()
			case start:
				return r.measureStarts(cmd.Context())
			case sweep:
				return r.sweepSpinning(cmd.Context())
			}
			return errors.Join(r.measureRounds(cmd.Context()), r.print())
		},
	}
	flags := root.Flags()
	flags.IntVar(&r.rounds, "rounds", 9, "rounds to have in all")
	flags.DurationVar(&r.time, "time", time.Second, "time of each measurement")
	flags.StringSliceVar(&r.only, "servers", nil,
		"only servers whose names have one of these in them")
	flags.StringSliceVar(&r.cases, "cases", nil, `only such cases, like "wnd 256"`)
	flags.BoolVar(&table, "table", false, "only print the tables")
	flags.BoolVar(&start, "start", false, "measure how long servers take to start instead")
	flags.BoolVar(&sweep, "sweep", false,
		"measure ONNX Runtime's settings for waiting threads instead")
	flags.StringVar(&r.muster, "muster", "bin/muster", "the binary of Muster")
	flags.StringVar(&r.dir, "dir", "build/peers", "directory for models, results and logs")
	if err := root.ExecuteContext(ctx); err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted; the same command goes on")
		}
		fmt.Fprintf(os.Stderr, "peers: %v\n", err)
		os.Exit(1)
	}
}

// has reports whether text contains one of the parts; if there are none, all do.
func has(parts []string, text string) bool {
	for _, p := range parts {
		if strings.Contains(text, p) {
			return true
		}
	}
	return len(parts) == 0
}

// measureRounds makes the rounds that are not there yet.
func (r *run) measureRounds(ctx context.Context) error {
	done, err := readResults(r.resultsPath())
	if err != nil {
		return err
	}
	all, err := r.prepareServers(ctx)
	if err != nil {
		return err
	}
	cases, err := r.makeQueries("all")
	if err != nil {
		return err
	}
	for round := range r.rounds {
		for i := range all {
			s := all[(i+round)%len(all)]
			if has(r.only, s.name) && !done.hasRound(round, s.name, cases) {
				if err := r.measureOne(ctx, round, s, cases); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// measureOne measures a server in a round, and notes the result. A server that fails is named, and
// the others go on.
func (r *run) measureOne(ctx context.Context, round int, s server, cases []query) error {
	fmt.Fprintf(os.Stderr, "round %d of %d: %-36s ", round+1, r.rounds, s.name)
	watch := harness.WatchNeighboursBut(ours)
	got := result{Round: round, Server: s.name, Cases: map[string]figures{}}
	err := func() error {
		if s.loop != nil {
			err := r.measureRuntime(ctx, s, cases, &got)
			got.Others, got.Stolen = watch.TakenShares()
			return err
		}
		p, err := r.start(ctx, s, "all", cases)
		if err != nil {
			return err
		}
		defer p.stop()
		got.Ready = p.ready.Seconds()
		if s.peer == "" {
			if err := p.waitReady(ctx); err != nil {
				return fmt.Errorf("%w; its log is %s", err, p.log)
			}
		}
		for _, q := range cases {
			f, err := r.measureCase(ctx, p, q)
			if err != nil {
				return fmt.Errorf("%s: %w; its log is %s", q.name, err, p.log)
			}
			got.Cases[q.name] = f
		}
		got.Others, got.Stolen = watch.TakenShares() // before the server is gone
		return nil
	}()
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr)
		return ctx.Err()
	case err != nil:
		got.Error = err.Error()
		fmt.Fprintf(os.Stderr, "FAILED: %v\n", err)
	default:
		fmt.Fprintf(os.Stderr, "ready in %.1f s; others took %.0f %%, stolen %.1f %%\n", got.Ready,
			100*got.Others, 100*got.Stolen)
	}
	return appendResult(r.resultsPath(), got)
}

func (r *run) resultsPath() string { return filepath.Join(r.dir, "results.jsonl") }
