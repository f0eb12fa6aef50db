package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/scripts/process"
	"github.com/muster-serve/muster/sim/workload"
)

// showPair has two real agents of one core each share the load that one agent
// with all cores had before.
func (d demo) showPair(ctx context.Context, w io.Writer, together part) error {
	fmt.Fprintln(w, "\nTwo agents of one core each find each other and elect a leader, which the client asks where each query goes")
	f := &process.Fleet{Muster: d.muster, Dir: d.dir, Models: models, Args: []string{"--cores", "1"}}
	defer f.Stop()
	for range 2 {
		if _, err := f.Add("", "", ""); err != nil {
			return err
		}
	}
	if err := f.WaitComplete(ctx); err != nil {
		return err
	}
	leader, _, err := f.Leader(ctx)
	if err != nil {
		return err
	}
	for _, n := range f.Nodes {
		role := ""
		if n == leader {
			role = ", which leads"
		}
		fmt.Fprintf(w, "  %s on %s%s\n", n.Name, n.GRPC, role)
	}
	report, err := d.driveFleet(ctx, w, f, together)
	if err != nil {
		return err
	}
	return report.WriteText(w)
}

// driveFleet puts half of a part's allowable throughput on a fleet.
func (d demo) driveFleet(ctx context.Context, w io.Writer, f *process.Fleet, p part) (*bench.Report, error) {
	c, err := client.New(f.Addresses())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var targets []*bench.Model
	for _, load := range p.loads {
		m, err := bench.NewModel(ctx, c, load.Model, bench.ModelOptions{LargestBatchSize: load.BatchSizes.Largest(), Seed: 1})
		if err != nil {
			return nil, err
		}
		targets = append(targets, m)
	}
	return d.drive(ctx, w, c, targets, p, d.load/2, 9)
}

// showFailover kills the leader of an emulated fleet while it is under load.
func (d demo) showFailover(ctx context.Context, w io.Writer) error {
	w, d.progress = &prefixed{w, "emulated |"}, &prefixed{d.progress, "emulated |"}
	fmt.Fprintln(w, "A fleet this machine does not have: 2 g4dn.xlarge and 4 r5n.large serving RM2, each a process that waits")
	fmt.Fprintln(w, "as long as the measured latency profile of its instance type says, and runs no model")
	f := &process.Fleet{
		Muster: d.muster, Dir: filepath.Join(d.dir, "emulated"), Models: []string{"rm2"},
		Args: []string{"--executor", "emulated", "--profile", "shipped"},
	}
	generate := exec.CommandContext(ctx, d.muster, "models", "generate", "rm2", "--scale", "small", "--out", filepath.Join(f.Dir, "models"))
	if out, err := generate.CombinedOutput(); err != nil {
		return fmt.Errorf("run %s: %w\n%s", generate, err, out)
	}
	defer f.Stop()
	for _, t := range []string{"g4dn.xlarge", "g4dn.xlarge", "r5n.large", "r5n.large", "r5n.large", "r5n.large"} {
		if _, err := f.Add(t, "", ""); err != nil {
			return err
		}
	}
	if err := f.WaitComplete(ctx); err != nil {
		return err
	}
	// What the simulator allows all six of them; half of it is well below the 50
	// queries/s that it allows them without one of the g4dn.
	p := part{name: "rm2", rate: 70, loads: []workload.Load{{Model: "rm2", Share: 1, BatchSizes: workload.Trace()}}}
	killed := make(chan error, 1)
	halfway := time.AfterFunc(d.load/4, func() { killed <- killLeader(ctx, w, f) })
	report, err := d.driveFleet(ctx, w, f, p)
	if err != nil {
		halfway.Stop()
		return err
	}
	if err := <-killed; err != nil {
		return err
	}
	if err := report.WriteText(w); err != nil {
		return err
	}
	m := report.Models[0]
	switch {
	case m.Failed > 0 && !report.GeneratorOnSchedule:
		return fmt.Errorf("%d of %d queries were not answered, on a machine that was too busy to tell why: run the demo when it has time", m.Failed, m.Queries)
	case m.Failed > 0:
		return fmt.Errorf("%d of %d queries were not answered when the leader was killed, want all answered", m.Failed, m.Queries)
	}
	_, err = fmt.Fprintf(w, "All %d queries were answered, %d of them late. Lost: nothing.\n", m.Queries, m.Late)
	return err
}

// killLeader ends the leader's process without a warning and waits until another
// leads.
func killLeader(ctx context.Context, w io.Writer, f *process.Fleet) error {
	leader, epoch, err := f.Leader(ctx)
	if err != nil {
		return err
	}
	leader.Signal(syscall.SIGKILL)
	took, err := f.AwaitLeader(ctx, leader, epoch)
	if err != nil {
		return err
	}
	f.Remove(leader)
	next, _, err := f.Leader(ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "Killed the leader, %s (%s); %d ms later %s (%s) leads\n",
		leader.Name, leader.InstanceType, took.Milliseconds(), next.Name, next.InstanceType)
	return err
}

// A prefixed writer begins each line with a word. It is given whole lines.
type prefixed struct {
	w      io.Writer
	prefix string
}

func (p *prefixed) Write(b []byte) (int, error) {
	for line := range bytes.Lines(b) {
		text := append([]byte(p.prefix), line...)
		if len(line) > 1 {
			text = append([]byte(p.prefix+" "), line...)
		}
		if _, err := p.w.Write(text); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}
