// Command demo shows Muster at work on one machine, in four parts. First an agent serves two real
// models, and their latencies are compared with ONNX Runtime's alone. Then an emulated fleet serves
// a load that none of its members could serve in time. Then the fleet's leader is killed under that
// load. Last a fleet rents and returns machines, as its load doubles and falls. The QoS targets and
// the loads follow from measurements on this machine, so the demo works on slow machines too. `make
// demo` builds the binary and runs it.
//
// The demo fails if a query was lost or answered wrongly. It never fails because the machine is
// slow.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	goruntime "runtime"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// patience is how long a client waits for an answer. A query without an answer by then counts as
// lost, also on a busy machine.
const patience = time.Minute

// A demo holds the settings of one run, and the results that it will print at the end.
type demo struct {
	muster  string        // the binary
	dir     string        // for models, state, logs and picture
	measure time.Duration // how long to measure each model
	load    time.Duration // how long each load lasts

	out        io.Writer
	terminal   bool // stderr is a terminal, which shows what is going on
	neighbours *harness.Neighbours

	rows    []row
	picture bench.Report
}

func main() {
	// The kernel stops an agent when the thread that started it ends. The main thread ends last.
	goruntime.LockOSThread()
	d := &demo{
		measure: 3 * time.Second, load: 15 * time.Second,
		out: os.Stdout, terminal: term.IsTerminal(int(os.Stderr.Fd())),
		picture: bench.Report{
			Workload: bench.Workload{Arrivals: "poisson", BatchSizes: sizes.String()},
		},
	}
	flag.StringVar(&d.muster, "muster", "bin/muster", "the binary to show")
	flag.StringVar(&d.dir, "dir", "build/demo",
		"directory for models, state and results; a second run reuses it")
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
	d.neighbours = harness.WatchNeighbours()
	a, err := d.showModels(ctx)
	if err != nil {
		return err
	}
	if err := d.showFleet(ctx); err != nil {
		return err
	}
	if err := d.showRenting(ctx); err != nil {
		return err
	}
	if err := writePlot(d.picturePath(), &d.picture); err != nil {
		return err
	}
	d.printLine("")
	if err := writeTable(d.out, d.rows); err != nil {
		return err
	}
	d.whereToLook(a)
	return nil
}

// printLine prints a line.
func (d *demo) printLine(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

// showActivity shows on a terminal what is going on. The function that it returns ends that.
func (d *demo) showActivity(format string, args ...any) (done func()) {
	if !d.terminal {
		return func() {}
	}
	fmt.Fprintf(os.Stderr, "   %s ...", fmt.Sprintf(format, args...))
	return func() { fmt.Fprint(os.Stderr, "\r\x1b[K") }
}

// lookAround says, once, if other programs or machines take this machine's CPU time.
func (d *demo) lookAround() {
	if note := d.neighbours.Look(); note != "" {
		d.printLine("   %s", note)
	}
}

// generateModels generates models into a directory.
func (d *demo) generateModels(ctx context.Context, dir string, names ...string) error {
	defer d.showActivity("making the models")()
	for _, name := range names {
		if _, err := zoo.Generate(ctx, dir, name, zoo.Options{}); err != nil {
			return err
		}
	}
	return nil
}

// sendLoad sends Poisson arrivals to the models and reports on each. The rate, in queries/s, is
// that of all models together; shares says how they share it. A query that is lost or answered
// wrongly is an error. A query that is refused because too many wait is not lost: its client was
// told.
func (d *demo) sendLoad(
	ctx context.Context, server bench.Server, numbers bool, rate float64, duration time.Duration,
	shares map[string]float64,
) (*bench.Report, error) {
	driver, err := harness.NewDriver(ctx, server, shares, patience)
	if err != nil {
		return nil, err
	}
	driver.Numbers = numbers
	begin := time.Now()
	report, err := driver.Run(ctx, harness.Load{Rate: rate, Duration: duration, Seed: 1})
	if err := errors.Join(err, ctx.Err()); err != nil {
		return nil, err
	}
	c := driver.Between(begin, time.Now())
	if lost := c.Failed + c.Robbed; lost+c.Wrong+driver.Twice() > 0 {
		return report, fmt.Errorf(
			"of %d queries %d were lost, %d answered wrongly and %d twice, the last one: %w",
			c.Queries, lost, c.Wrong, driver.Twice(), c.Example)
	}
	return report, nil
}

// addResult adds a model's result under a load to the table, and to the picture under the name
// curve.
func (d *demo) addResult(m bench.ModelReport, what, curve string) {
	d.rows = append(d.rows, loadRow(m, what))
	m.Model = curve
	d.picture.Models = append(d.picture.Models, m)
}

func writePlot(path string, r *bench.Report) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(r.WritePlot(f, "png"), f.Close())
}

func (d *demo) picturePath() string { return filepath.Join(d.dir, "latency.png") }

// whereToLook says how to go on.
func (d *demo) whereToLook(a *harness.Node) {
	d.printLine(`
Picture of the latencies: %s; logs: %s, %s
To go on, start the agent again, and ask it from another terminal:
  %s
  a browser at %s shows what it does
  %s infer ncf --server %s
  %s bench --server %s --model wnd --find-throughput`,
		d.picturePath(), a.LogPath, filepath.Join(d.dir, "emulated", "*.log"), a.Command,
		pageURL(a), d.muster, a.GRPC, d.muster, a.GRPC)
}
