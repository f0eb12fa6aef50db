// Package demo shows Muster at work on one machine, without its sources: the binary starts itself
// as six emulated agents of three instance types. A load is served by a plain load balancer before
// them, then by the same machines as a fleet, and again while the fleet's leader is killed.
//
// The demo fails if the fleet loses a query or answers one wrongly. It never fails because the
// machine is slow: then more queries are late, and the table says so.
package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/runtime/cgroup"
)

const (
	// Model is what the agents serve. Its queries take long, so there are few of them, and this
	// machine's CPUs, which all agents share, have little to do.
	Model = "rm2"
	// RateQPS is the load, in queries/s. By simulation the fleet serves 68 within the QoS target.
	// At 45 it keeps the target even without a g4dn.xlarge, and a balancer that asks all in turn
	// misses it by far.
	RateQPS = 45
)

// Machines are the instance types of the fleet. The first agent leads, and is killed.
var Machines = []profiles.InstanceType{
	"r5n.large", "g4dn.xlarge", "c5n.2xlarge", "g4dn.xlarge", "c5n.2xlarge", "r5n.large",
}

const (
	// patience is how long a client waits for an answer. A query without an answer by then counts
	// as lost, also on a busy machine.
	patience = time.Minute
	// memoryNeeded is what six agents and the load need: 60 MiB each as measured, and a third more.
	memoryNeeded = 512 << 20
)

// A Config says what to show.
type Config struct {
	// Program is the muster binary that runs as agents, and Env its environment.
	Program string
	Env     []string
	// Dir is an empty or missing directory for models, states and logs, which stay there. If it is
	// "", they are in a temporary directory, which is removed, but after a failure.
	Dir string
	// Load is how long the fleet serves a load, once as it is and once without its leader. The
	// plain load balancer has two thirds of that.
	Load time.Duration
	// Keep has the fleet serve its load after the end until ctx ends.
	Keep bool
	// Out gets the story, Status the progress if it is a terminal.
	Out, Status io.Writer
}

// A demo is a run.
type demo struct {
	Config
	rows []row
}

// Run shows everything. When it returns, its agents have ended; should this process be killed, the
// kernel ends them.
func Run(ctx context.Context, c Config) (err error) {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("the demo starts agents, which need Linux; this is %s", runtime.GOOS)
	}
	if free := availableMemory(); free >= 0 && free < memoryNeeded {
		return fmt.Errorf("the demo's agents need %d MiB of memory, %d MiB are available",
			memoryNeeded>>20, free>>20)
	}
	temporary := c.Dir == ""
	if c.Dir, err = makeDir(c.Dir); err != nil {
		return err
	}
	// The kernel ends an agent when the thread that started it ends: this one, which stays.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	d := &demo{Config: c}
	if err = d.runDemo(ctx); err != nil && ctx.Err() != nil {
		err = ctx.Err()
	} else if err != nil {
		return fmt.Errorf("%w\nThe agents' logs are in %s", err, c.Dir)
	}
	if temporary {
		err = errors.Join(err, os.RemoveAll(c.Dir))
	}
	return err
}

// availableMemory is how many bytes the demo can use; -1 if that is not known.
func availableMemory() int64 {
	available := cgroup.AvailableMemory(os.DirFS("/"))
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		kb := cgroup.NumberAfter(string(text), "MemAvailable:")
		if kb >= 0 && (available < 0 || kb<<10 < available) {
			available = kb << 10
		}
	}
	return available
}

// makeDir makes the directory, or a temporary one, and returns its absolute path.
func makeDir(dir string) (string, error) {
	if dir == "" {
		dir, err := os.MkdirTemp("", "muster-demo-")
		if err != nil {
			return "", fmt.Errorf("make a temporary directory (--dir names another place): %w", err)
		}
		return dir, nil
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("dir: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("dir: %w", err)
	}
	if len(entries) > 0 {
		return "", fmt.Errorf("dir: %s is not empty, it has %s", dir, entries[0].Name())
	}
	return dir, nil
}

// printLine prints a line of the story.
func (d *demo) printLine(format string, args ...any) { fmt.Fprintf(d.Out, format+"\n", args...) }

func (d *demo) runDemo(ctx context.Context) error {
	models := filepath.Join(d.Dir, "models")
	if err := generateModel(ctx, models); err != nil {
		return fmt.Errorf("make the model: %w", err)
	}
	price, err := priceOf(Machines)
	if err != nil {
		return err
	}
	d.printLine(`Six machines on this one: %s; rented, they would cost $%.2f/hr.
They are EMULATED: each agent is a process of muster, but it runs no model. For each query it waits
as long as was measured on its instance type.
The load is %d queries/s to the model %s, with the batch sizes of a production trace.`,
		countTypes(Machines), price, RateQPS, Model)

	d.printLine("\n1  A plain load balancer asks the machines in turn, for %.0f s",
		(d.Load * 2 / 3).Seconds())
	if err := d.showBalancer(ctx, models); err != nil {
		return err
	}
	d.printLine("\n2  The same machines as a fleet of Muster, for %.0f s", d.Load.Seconds())
	f := newFleet(ctx, d.Config, "fleet", models)
	defer f.stop()
	if err := d.startAgents(f); err != nil {
		return err
	}
	shows := f.agents[len(f.agents)-1] // one that is not killed
	d.printLine("   Watch it: http://%s/dashboard/", shows.http)
	if err := d.showFleet(f); err != nil {
		return err
	}
	d.printLine("\n3  The same load again. After a third of it the leader's process is killed")
	if err := d.showFailover(f); err != nil {
		return err
	}
	d.printLine("")
	if err := writeTable(d.Out, d.rows); err != nil {
		return err
	}
	d.printLine(`
To go on: muster models generate ncf wnd && muster agent serves two models that run;
muster sim, muster plan and muster bench --help: which machines, and how many.`)
	if d.Keep {
		return d.serveLoad(f, shows)
	}
	return nil
}

// startAgents starts the machines as agents of f, each alone or as a fleet, and waits until they
// serve.
func (d *demo) startAgents(f *fleet) error {
	status := terminal.NewStatusLine(d.Status)
	defer status.Done()
	for _, t := range Machines {
		if err := f.start(t); err != nil {
			return err
		}
	}
	return f.awaitReady(func(ready int) {
		if terminal.IsTerminal(d.Status) {
			status.Show("   %d of %d agents serve", ready, len(Machines))
		}
	})
}

// showBalancer puts the load on agents that know nothing of each other, which are asked in turn.
func (d *demo) showBalancer(ctx context.Context, models string) error {
	f := newFleet(ctx, d.Config, "alone", models)
	f.alone = true
	defer f.stop()
	if err := d.startAgents(f); err != nil {
		return err
	}
	c, err := client.New(f.agentAddresses(), client.WithTimeout(patience), client.WithoutFleet())
	if err != nil {
		return err
	}
	defer c.Close()
	m, _, err := d.sendLoad(f.ctx, c, d.Load*2/3)
	if err != nil {
		return err
	}
	d.printResult(m)
	d.rows = append(d.rows, row{"plain load balancer", m})
	return nil
}

// showFleet puts the load on the fleet.
func (d *demo) showFleet(f *fleet) error {
	m, err := d.loadFleet(f, d.Load)
	if err != nil {
		return err
	}
	d.printResult(m)
	d.rows = append(d.rows, row{"Muster", m})
	return nil
}

// showFailover puts the load on the fleet and kills the leader meanwhile.
func (d *demo) showFailover(f *fleet) error {
	type kill struct {
		story string
		err   error
	}
	killed := make(chan kill, 1)
	killing := time.AfterFunc(d.Load/3, func() {
		story, err := f.killLeader()
		killed <- kill{story, err}
	})
	m, err := d.loadFleet(f, d.Load)
	if err != nil {
		f.cancel(err) // and do not wait for another leader
	}
	if killing.Stop() {
		return err
	}
	k := <-killed
	if err = cmp.Or(err, k.err); err != nil {
		return err
	}
	d.printLine("   %s", k.story)
	d.printResult(m)
	d.printLine("   No query was lost")
	d.rows = append(d.rows, row{"Muster, its leader killed", m})
	return nil
}

func (d *demo) printResult(m bench.ModelReport) {
	d.printLine("   %s of %d queries are answered within %g ms; %g %% should be",
		bench.Percent(m.QoSSatisfaction), m.Queries, m.QoSTargetMS, m.QoSPercentile)
}

// serveLoad has the fleet serve its load until ctx ends.
func (d *demo) serveLoad(f *fleet, shows *agent) error {
	d.printLine(`
The fleet serves its load until Ctrl-C. From another terminal:
  muster top --server %s
  muster status --server %[1]s`, shows.grpc)
	_, err := d.loadFleet(f, 0)
	if f.parent.Err() != nil {
		return nil // it was interrupted, after all that it shows
	}
	return err
}

// loadFleet puts the load on the fleet for a while, or until its context ends. It is an error if
// the fleet loses a query or answers one wrongly.
func (d *demo) loadFleet(f *fleet, duration time.Duration) (bench.ModelReport, error) {
	c, err := client.New(f.agentAddresses(), client.WithTimeout(patience))
	if err != nil {
		return bench.ModelReport{}, err
	}
	defer c.Close()
	m, wrong, err := d.sendLoad(f.ctx, c, duration)
	if err != nil {
		return m, err
	}
	return m, checkNoneLost(m, wrong)
}

// checkNoneLost is an error if a query was lost or answered wrongly. One that was refused because
// too many wait is not lost: its client was told.
func checkNoneLost(m bench.ModelReport, wrong *wrongAnswers) error {
	lost := m.Failed - countRefusals(m) - wrong.count
	if lost+wrong.count == 0 {
		return nil
	}
	err := fmt.Errorf("of %d queries %d were lost and %d answered wrongly", m.Queries, lost,
		wrong.count)
	if wrong.example != nil {
		return fmt.Errorf("%w; the last one: %w", err, wrong.example)
	}
	return err
}

// sendLoad sends Poisson arrivals for a while, or until ctx ends if duration is 0, and reports on
// them.
func (d *demo) sendLoad(ctx context.Context, server bench.Server,
	duration time.Duration) (bench.ModelReport, *wrongAnswers, error) {
	none := bench.ModelReport{}
	sizes := workload.Trace()
	checked := &checkedServer{Server: server}
	model, err := bench.NewTargetModel(ctx, checked, Model, bench.ModelOptions{
		LargestBatchSize: sizes.Largest(), Timeout: patience, Seed: 1,
	})
	if err != nil {
		return none, nil, orCause(ctx, err)
	}
	arrivals, err := workload.ParseArrivals("poisson", RateQPS)
	if err != nil {
		return none, nil, err
	}
	queries, err := workload.Queries(1, arrivals,
		workload.Load{Model: Model, Share: 1, BatchSizes: sizes})
	if err != nil {
		return none, nil, err
	}
	config := bench.Config{Queries: queries, Duration: duration}
	if terminal.IsTerminal(d.Status) {
		show, done := bench.NewProgress(d.Status)
		defer done()
		config.Progress = show
	}
	report, err := bench.Run(ctx, checked, []*bench.TargetModel{model}, config)
	if err := orCause(ctx, err); err != nil {
		return none, nil, err
	}
	return report.Models[0], &checked.wrong, nil
}

// orCause is why ctx has ended if it has, such as an agent that died; else err.
func orCause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// priceOf is what machines of these types cost, in $/hr on demand.
func priceOf(types []profiles.InstanceType) (sum float64, err error) {
	for _, t := range types {
		i, err := profiles.DefaultCatalogue().Lookup(t)
		if err != nil {
			return 0, err
		}
		sum += i.PriceUSDPerHour
	}
	return sum, nil
}

// countTypes writes types as "2 r5n.large, 1 g4dn.xlarge", in the order in which they come first.
func countTypes(types []profiles.InstanceType) string {
	counts := map[profiles.InstanceType]int{}
	var order []profiles.InstanceType
	for _, t := range types {
		if counts[t]++; counts[t] == 1 {
			order = append(order, t)
		}
	}
	var parts []string
	for _, t := range order {
		parts = append(parts, fmt.Sprintf("%d %s", counts[t], t))
	}
	return strings.Join(parts, ", ")
}
