// Command demo shows Muster at work on one machine: it makes two models, starts
// an agent, finds out what the machine can serve, and puts half of that on it
// for a while. `make demo` builds the binary and runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/scripts/process"
	"github.com/muster-serve/muster/sim/workload"
)

var errAgentExited = errors.New("the agent ended by itself")

// A demo is what its flags say.
type demo struct {
	muster string // the binary
	dir    string // for models, state, log and picture
	load   time.Duration
	search time.Duration // for one model's allowable throughput; twice that for two

	progress io.Writer // of load that goes on
}

// The models, in the order they are shown.
var models = []string{"ncf", "wnd"}

func main() {
	// The agent is told when the thread that started it dies, and the main thread
	// lives as long as this process.
	runtime.LockOSThread()
	d := demo{load: 20 * time.Second, search: 2 * time.Second, progress: os.Stderr}
	flag.StringVar(&d.muster, "muster", "bin/muster", "the binary to show")
	flag.StringVar(&d.dir, "dir", "build/demo", "directory for models, state and results; a second run reuses it")
	short := flag.Bool("short", false, "a few seconds of load only")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "demo: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	if *short {
		d.load, d.search = 6*time.Second, time.Second
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := d.run(ctx, os.Stdout)
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(1)
	}
}

func (d demo) run(ctx context.Context, w io.Writer) error {
	a, together, err := d.showAgent(ctx, w)
	if err != nil {
		return err
	}
	if err := d.showPair(ctx, w, together); err != nil {
		return err
	}
	fmt.Fprintln(w)
	if err := d.showFailover(ctx, w); err != nil {
		return err
	}
	d.whereToLook(w, a)
	return nil
}

// showAgent shows what one agent does. It returns the agent, which has ended, and
// the load that it could serve of all models together.
func (d demo) showAgent(ctx context.Context, w io.Writer) (a *process.Agent, together part, err error) {
	modelDir := filepath.Join(d.dir, "models")
	fmt.Fprintf(w, "Making the models %s (once)\n", strings.Join(models, " and "))
	generate := exec.CommandContext(ctx, d.muster, append([]string{"models", "generate", "--out", modelDir}, models...)...)
	generate.Stdout, generate.Stderr = w, os.Stderr
	if err := generate.Run(); err != nil {
		return nil, part{}, fmt.Errorf("run %s: %w", generate, err)
	}

	fmt.Fprintln(w, "\nStarting an agent")
	a, err = process.Start(process.Config{
		Muster: d.muster, Log: filepath.Join(d.dir, "agent.log"), DefaultPorts: true,
		Args: []string{"--model-dir", modelDir, "--state-dir", filepath.Join(d.dir, "state")},
	})
	if err != nil {
		return nil, part{}, err
	}
	defer func() { err = errors.Join(err, a.Stop()) }()
	// What fails because the agent died should say that and no more.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		<-a.Exited()
		cancel(errAgentExited)
	}()
	together, err = d.show(ctx, w, a)
	if errors.Is(context.Cause(ctx), errAgentExited) {
		err = nil // Stop says why
	}
	return a, together, err
}

// A part is one stretch of load.
type part struct {
	name  string
	loads []workload.Load
	rate  float64 // allowable throughput, in queries/s; before calibration where to begin, or 0
}

// show loads the running agent and says how it went; it returns the load of all
// models together.
func (d demo) show(ctx context.Context, w io.Writer, a *process.Agent) (together part, err error) {
	c, err := client.New([]string{a.GRPC})
	if err != nil {
		return part{}, err
	}
	defer c.Close()
	if err := process.WaitReady(ctx, c, models); err != nil {
		return part{}, err
	}
	fmt.Fprintf(w, "Serving after %.1f s: gRPC on %s, REST on http://%s, metrics on http://%s/metrics\n",
		time.Since(a.Started).Seconds(), a.GRPC, a.HTTP, a.Metrics)

	sizes := workload.Trace()
	targets := make([]*bench.Model, len(models))
	for i, name := range models {
		if targets[i], err = bench.NewModel(ctx, c, name, bench.ModelOptions{LargestBatchSize: sizes.Largest(), Seed: 1}); err != nil {
			return part{}, err
		}
	}

	fmt.Fprintln(w, "\nCalibrating: the highest rate that keeps the QoS target, batch sizes from the production trace, Poisson arrivals")
	parts := make([]part, 0, len(models)+1)
	together = part{name: "together"}
	for i, name := range models {
		p := part{name: name + " alone", loads: []workload.Load{{Model: name, Share: 1, BatchSizes: sizes}}}
		if p.rate, err = d.calibrate(ctx, w, c, targets[i:i+1], p); err != nil {
			return part{}, err
		}
		parts = append(parts, p)
		// Together, each model has the part of the queries that it had of the sum
		// of the rates alone. They share the machine, so a start well below that sum.
		together.loads = append(together.loads, workload.Load{Model: name, Share: p.rate, BatchSizes: sizes})
		together.rate += p.rate / 4
	}
	if together.rate, err = d.calibrate(ctx, w, c, targets, together); err != nil {
		return part{}, err
	}
	parts = append(parts, together)

	fmt.Fprintln(w, "\nLoad: half of that")
	all := &bench.Report{Workload: bench.Workload{Arrivals: "poisson", BatchSizes: sizes.String()}, GeneratorOnSchedule: true}
	for i, p := range parts {
		report, err := d.drive(ctx, w, c, targets, p, d.load/time.Duration(len(parts)), uint64(i+1))
		if err != nil {
			return part{}, err
		}
		for _, m := range report.Models {
			if m.Queries == 0 {
				continue
			}
			if m.Answered == 0 {
				return part{}, fmt.Errorf("%s: none of %d queries for %s was answered: %v", p.name, m.Queries, m.Model, m.Failures)
			}
			if len(p.loads) > 1 {
				m.Model += " together"
			} else {
				m.Model += " alone"
			}
			all.Models = append(all.Models, m)
		}
		if !report.GeneratorOnSchedule {
			all.GeneratorOnSchedule, all.GeneratorDelayMS = false, report.GeneratorDelayMS
		}
	}
	fmt.Fprintln(w)
	if err := all.WriteText(w); err != nil {
		return part{}, err
	}
	if all.QoSMet() {
		fmt.Fprintln(w, "Every model kept its QoS target.")
	}
	if err := writePlot(d.picture(), all); err != nil {
		return part{}, err
	}
	return together, d.queryByHand(ctx, w, a)
}

// calibrate searches the allowable throughput of a part, in queries/s, beginning
// at p.rate.
func (d demo) calibrate(ctx context.Context, w io.Writer, c *client.Client, targets []*bench.Model, p part) (float64, error) {
	found, err := bench.FindThroughput(ctx, c, targets, bench.Search{
		Queries:   func(rate float64, seed uint64) (iter.Seq[workload.Query], error) { return queries(p.loads, rate, seed) },
		Limit:     d.search * time.Duration(len(p.loads)),
		FirstRate: p.rate,
		Precision: 0.2,
	})
	if err != nil {
		return 0, fmt.Errorf("calibrate %s: %w", p.name, err)
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	fmt.Fprintf(w, "  %s: %s\n", p.name, found)
	if found.AllowableQPS > 0 {
		return found.AllowableQPS, nil
	}
	if found.FailingQPS == 0 {
		return 0, fmt.Errorf("calibrate %s: there was no time for even one probe", p.name)
	}
	fmt.Fprintf(w, "  This machine, or what else runs on it now, kept the QoS target at no rate; going on from %.1f queries/s.\n",
		found.FailingQPS)
	return found.FailingQPS, nil
}

// drive puts half of a part's allowable throughput on the agent.
func (d demo) drive(ctx context.Context, w io.Writer, c *client.Client, targets []*bench.Model, p part, duration time.Duration, seed uint64) (*bench.Report, error) {
	rate := p.rate / 2
	stream, err := queries(p.loads, rate, seed)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(w, "%s, %.0f queries/s\n", p.name, rate)
	show, done := bench.NewProgress(d.progress)
	defer done()
	report, err := bench.Run(ctx, c, targets, bench.Config{
		Queries:  stream,
		Duration: duration,
		Workload: bench.Workload{Arrivals: "poisson", BatchSizes: "trace", RateQPS: rate, Seed: seed},
		Progress: show,
	})
	if err != nil {
		return nil, err
	}
	return report, ctx.Err()
}

// queries is a Poisson stream.
func queries(loads []workload.Load, rate float64, seed uint64) (iter.Seq[workload.Query], error) {
	arrivals, err := workload.ParseArrivals("poisson", rate)
	if err != nil {
		return nil, err
	}
	return workload.Queries(seed, arrivals, loads...)
}

func writePlot(path string, r *bench.Report) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(r.WritePlot(f), f.Close())
}

func (d demo) picture() string { return filepath.Join(d.dir, "latency.png") }

// queryByHand sends one as a user would.
func (d demo) queryByHand(ctx context.Context, w io.Writer, a *process.Agent) error {
	fmt.Fprintf(w, "\nA query by hand:\n  %s infer ncf --server %s\n", d.muster, a.GRPC)
	infer := exec.CommandContext(ctx, d.muster, "infer", "ncf", "--server", a.GRPC)
	answer, err := infer.CombinedOutput()
	if err != nil {
		return fmt.Errorf("run %s: %w\n%s", infer, err, answer)
	}
	for line := range strings.Lines(string(answer)) {
		fmt.Fprint(w, "    ", line)
	}
	return nil
}

// whereToLook says how to go on.
func (d demo) whereToLook(w io.Writer, a *process.Agent) {
	fmt.Fprintf(w, `
Where to look next
  latencies     %s
  agents' logs  %s and %s
  start the agent again:
    %s
  and while it runs:
    curl http://%s/v2/models/ncf
    curl http://%s/v2/models/ncf/infer -d '{"inputs":[{"name":"ids","datatype":"INT64","shape":[1,4],"data":[1,2,3,4]}]}'
    curl http://%s/metrics
    %s status --server %s
    %s bench --server %s --model wnd --rate 50
`, d.picture(), filepath.Join(d.dir, "*.log"), filepath.Join(d.dir, "emulated", "*.log"), a.Command,
		a.HTTP, a.HTTP, a.Metrics, d.muster, a.GRPC, d.muster, a.GRPC)
}
