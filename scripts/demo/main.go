// Command demo shows Muster at work on one machine, whatever that is: what it promises follows from
// what it measures there first. Two real models are served beside ONNX Runtime alone, an emulated
// fleet serves what none of its members could, and its leader is killed under load. `make demo`
// builds the binary and runs it.
//
// It fails where a query was lost or answered wrongly, and never for being slow.
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
	goruntime "runtime"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/scripts/process"
	"github.com/muster-serve/muster/sim/workload"
)

// patience is how long a client waits for an answer. What is not answered by then is lost, also on
// a machine that is short of time.
const patience = time.Minute

// A demo is what its flags say, and what it has shown so far.
type demo struct {
	muster  string        // the binary
	dir     string        // for models, state, logs and picture
	measure time.Duration // how long to measure each model
	load    time.Duration // how long each load lasts

	out        io.Writer
	terminal   bool // stderr is one: what takes long shows there how it goes
	neighbours *neighbours

	rows    []row
	picture bench.Report
}

func main() {
	// The agents are told when the thread that started them dies, and the main thread lives as long
	// as this process.
	goruntime.LockOSThread()
	d := &demo{
		measure: 3 * time.Second, load: 15 * time.Second,
		out: os.Stdout, terminal: term.IsTerminal(int(os.Stderr.Fd())),
		picture: bench.Report{Workload: bench.Workload{Arrivals: "poisson", BatchSizes: sizes.String()}},
	}
	flag.StringVar(&d.muster, "muster", "bin/muster", "the binary to show")
	flag.StringVar(&d.dir, "dir", "build/demo", "directory for models, state and results; a second run reuses it")
	short := flag.Bool("short", false, "the same with a few seconds of load")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "demo: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	if *short {
		d.measure, d.load = time.Second, 4*time.Second
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := d.run(ctx)
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "demo: failed: %v\n", err)
		os.Exit(1)
	}
}

func (d *demo) run(ctx context.Context) error {
	d.neighbours = watchNeighbours()
	a, err := d.showModels(ctx)
	if err != nil {
		return err
	}
	if err := d.showFleet(ctx); err != nil {
		return err
	}
	if err := writePlot(d.picturePath(), &d.picture); err != nil {
		return err
	}
	d.say("")
	if err := writeTable(d.out, d.rows); err != nil {
		return err
	}
	d.whereToLook(a)
	return nil
}

// say prints a line.
func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

// during says on a terminal what is going on, until the function it returns is called.
func (d *demo) during(format string, args ...any) (done func()) {
	if !d.terminal {
		return func() {}
	}
	fmt.Fprintf(os.Stderr, "   %s ...", fmt.Sprintf(format, args...))
	return func() { fmt.Fprint(os.Stderr, "\r\x1b[K") }
}

// lookAround says, the first time that others take the CPUs, that they do.
func (d *demo) lookAround() {
	if note := d.neighbours.look(); note != "" {
		d.say("   %s", note)
	}
}

// generate has the binary make models.
func (d *demo) generate(ctx context.Context, dir string, names ...string) error {
	defer d.during("making the models")()
	cmd := exec.CommandContext(ctx, d.muster, append([]string{"models", "generate", "--out", dir}, names...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run %s: %w\n%s", cmd, err, out)
	}
	return nil
}

// drive puts Poisson arrivals on the models for a while, at a rate in queries/s over all of them, and
// reports on them in the order of the loads. A query that is lost, or answered wrongly, is an error.
func (d *demo) drive(ctx context.Context, server bench.Server, rate float64, duration time.Duration, loads ...workload.Load) (*bench.Report, error) {
	var targets []*bench.Model
	for _, load := range loads {
		m, err := bench.NewModel(ctx, server, load.Model, bench.ModelOptions{
			LargestBatchSize: sizes.Largest(), Timeout: patience, Seed: 1,
		})
		if err != nil {
			return nil, err
		}
		targets = append(targets, m)
	}
	arrivals, err := workload.ParseArrivals("poisson", rate)
	if err != nil {
		return nil, err
	}
	var queries iter.Seq[workload.Query]
	if queries, err = workload.Queries(1, arrivals, loads...); err != nil {
		return nil, err
	}
	config := bench.Config{Queries: queries, Duration: duration, Workload: d.picture.Workload}
	if d.terminal {
		show, done := bench.NewProgress(os.Stderr)
		defer done()
		config.Progress = show
	}
	checked := &checkedServer{Server: server}
	report, err := bench.Run(ctx, checked, targets, config)
	if err := errors.Join(err, ctx.Err()); err != nil {
		return nil, err
	}
	faults := []error{checked.fault()}
	for _, m := range report.Models {
		if n := lost(m); n > 0 {
			faults = append(faults, fmt.Errorf("%d of %d queries to %s were lost: %v", n, m.Queries, m.Model, examples(m)))
		}
	}
	return report, errors.Join(faults...)
}

// lost counts the queries that were not answered. One that was refused at once, as too much waited,
// is not lost: its client was told.
func lost(m bench.ModelReport) int64 { return m.Failed - refused(m) }

// examples are the first message of each kind of failure.
func examples(m bench.ModelReport) (all []string) {
	for _, f := range m.Failures {
		all = append(all, f.Example)
	}
	return all
}

func refused(m bench.ModelReport) (n int64) {
	for _, f := range m.Failures {
		if f.Reason == client.ErrOverloaded.Error() {
			n += f.Count
		}
	}
	return n
}

// show adds a model under load to the table, and to the picture by another name.
func (d *demo) show(m bench.ModelReport, what, curve string) {
	d.rows = append(d.rows, loadRow(m, what))
	m.Model = curve
	d.picture.Models = append(d.picture.Models, m)
}

func writePlot(path string, r *bench.Report) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(r.WritePlot(f), f.Close())
}

func (d *demo) picturePath() string { return filepath.Join(d.dir, "latency.png") }

// whereToLook says how to go on.
func (d *demo) whereToLook(a *process.Agent) {
	d.say(`
Picture of the latencies: %s; logs: %s, %s
To go on, start the agent again, and ask it from another terminal:
  %s
  %s infer ncf --server %s
  %s bench --server %s --model wnd --find-throughput`,
		d.picturePath(), a.LogPath, filepath.Join(d.dir, "emulated", "*.log"), a.Command, d.muster, a.GRPC, d.muster, a.GRPC)
}
