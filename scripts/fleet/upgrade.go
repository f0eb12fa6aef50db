package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/scripts/process"
)

// upgrade replaces a fleet of the previous binary by one of this, agent by agent and the leader too,
// and then back, under the load of an SDK of either.
func (e *experiment) upgrade(ctx context.Context) error {
	if e.previous == "" {
		return errors.New("previous: name the binary of the previous version with -previous")
	}
	f, err := e.newFleet(ctx, "dien")
	if err != nil {
		return err
	}
	defer f.Stop()
	types := pool(2, 4)
	f.Muster = e.previous
	for _, t := range types {
		if _, err := f.Add(t, "", ""); err != nil {
			return err
		}
	}
	if err := f.WaitComplete(ctx); err != nil {
		return err
	}
	d, err := newDriver(ctx, "dien", f.Addresses())
	if err != nil {
		return err
	}
	defer d.c.Close()
	allowable, err := e.calibrated(ctx, f, d, types)
	if err != nil {
		return err
	}
	begin := time.Now()
	old, err := e.startPrevious(f, allowable/4)
	if err != nil {
		return err
	}
	defer old.stop() //nolint:errcheck // it has been stopped, or something else has failed
	if err := d.drive(ctx, allowable/4, time.Hour, 1); err != nil {
		return err
	}
	for _, way := range []struct{ name, muster string }{{"upgraded", e.muster}, {"downgraded", e.previous}} {
		f.Muster = way.muster
		at := time.Now()
		for _, n := range slices.Clone(f.Nodes) {
			if _, err := f.Add(n.InstanceType, "", ""); err != nil {
				return err
			}
			if err := f.WaitComplete(ctx); err != nil {
				return err
			}
			if err := settle(ctx, 2*time.Second); err != nil {
				return err
			}
			n.Signal(syscall.SIGTERM)
			<-n.Exited()
			f.Remove(n)
			if err := f.WaitComplete(ctx); err != nil {
				return err
			}
		}
		if err := settle(ctx, 2*time.Second); err != nil {
			return err
		}
		c := d.between(at, time.Now().Add(-time.Second), dienTarget)
		fmt.Printf("  all %d agents %s one by one within %v; queries of this SDK meanwhile: %v\n",
			len(f.Nodes), way.name, time.Since(at).Round(time.Second), c)
	}
	d.stop()
	e.account(d, begin)
	report, err := old.stop()
	if err != nil {
		return err
	}
	m := report.Models[0]
	e.want(m.Failed == 0, "%d of %d queries of the previous SDK failed, want none %v; %.2f %% on time", m.Failed, m.Answered+m.Failed, m.Failures, 100*m.QoSSatisfaction)
	return nil
}

// A previousLoad is load by the SDK of the previous version.
type previousLoad struct {
	cmd    *exec.Cmd
	output strings.Builder
	json   string
	report *bench.Report
}

// startPrevious starts load on the fleet's first agents.
func (e *experiment) startPrevious(f *process.Fleet, rate float64) (*previousLoad, error) {
	l := &previousLoad{json: filepath.Join(e.dir, "previous.json")}
	l.cmd = exec.Command(e.previous, "bench", "--model", f.Models[0], "--rate", fmt.Sprint(rate), "--duration", "1h",
		"--server", strings.Join(f.Addresses(), ","), "--json", l.json)
	l.cmd.Stdout, l.cmd.Stderr = &l.output, &l.output
	l.cmd.SysProcAttr = process.ChildAttributes()
	return l, l.cmd.Start()
}

// stop ends the load, and returns what came of it.
func (l *previousLoad) stop() (*bench.Report, error) {
	if l.report != nil {
		return l.report, nil
	}
	if err := l.cmd.Process.Signal(os.Interrupt); err != nil {
		return nil, err
	}
	if err := l.cmd.Wait(); err != nil {
		return nil, fmt.Errorf("run %s: %w\n%s", l.cmd, err, l.output.String())
	}
	text, err := os.ReadFile(l.json)
	if err != nil {
		return nil, err
	}
	l.report = &bench.Report{}
	return l.report, json.Unmarshal(text, l.report)
}
