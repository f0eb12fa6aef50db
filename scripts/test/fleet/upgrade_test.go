//go:build fleet

package fleet

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/scripts/test/harness"
)

var previousBinary = flag.String("previous", "",
	"binary of the previous version for TestUpgrade and "+
		"TestUpgradeRented (default: "+oldestCompatible+" is built)")

// oldestCompatible is the commit that this version and all between work together with, until a
// version has a tag.
const oldestCompatible = "958423c3"

// testUpgrade starts six agents of the previous version, and replaces them one by one, the leader
// too, by agents of this version; then back. Every second one keeps its addresses and its state,
// the others are new agents. Meanwhile an SDK of each version sends queries, and the commands of
// each version ask the agents of the other. Wanted: no query of either fails, and each command
// succeeds. The short form has three agents.
func (r *run) testUpgrade(ctx context.Context) error {
	previous, err := r.findPrevious(ctx)
	if err != nil {
		return err
	}
	f, err := r.newFleet(ctx, "dien")
	if err != nil {
		return err
	}
	f.Muster = previous
	if err := r.start(ctx, f, pick(r, pool(2, 4), pool(1, 2))); err != nil {
		return err
	}
	d, err := r.newDriver(ctx, f, f.Addresses())
	if err != nil {
		return err
	}
	limit, err := r.simulatedLimit(ctx, f, d, f.Types())
	if err != nil {
		return err
	}
	begin := time.Now()
	old, err := r.startPrevious(previous, f.Models[0], f, limit/4)
	if err != nil {
		return err
	}
	r.atEnd = append(r.atEnd, func() { _ = old.cmd.Process.Kill() }) // if it still runs
	if err := d.Start(ctx, harness.Load{Rate: limit / 4, Seed: r.seed}); err != nil {
		return err
	}
	for _, way := range []struct{ name, muster, other string }{
		{"upgraded", r.muster, previous}, {"downgraded", previous, r.muster},
	} {
		f.Muster = way.muster
		at := time.Now()
		for i, n := range slices.Clone(f.Nodes) {
			if err := r.replaceAgent(ctx, f, n, i%2 == 1); err != nil {
				return err
			}
		}
		for _, command := range [][]string{
			{"status", "--json"}, {"events"}, {"models", "list"},
			{"infer", f.Models[0], "--batch-size", "2"},
		} {
			_, err := harness.Output(ctx, "", way.other,
				append(command, "--server", f.Addresses()[0])...)
			r.wantNil(err, "muster %s of the other version succeeds with agents that are %s",
				command[0], way.name)
		}
		if err := r.waitAWhile(ctx, 2*time.Second); err != nil {
			return err
		}
		r.printLine("  all %d agents %s one by one within %v; queries of this SDK meanwhile: %v",
			len(f.Nodes), way.name, time.Since(at).Round(time.Second), d.Between(at, time.Now()))
	}
	if err := r.endLoad(d, begin); err != nil {
		return err
	}
	return r.wantNoneFailed(old)
}

// wantNoneFailed ends the load of the previous version, and wants that none of its queries failed.
func (r *run) wantNoneFailed(old *previousLoad) error {
	m, err := old.stop()
	if err != nil {
		return err
	}
	refused := harness.Refusals(m)
	r.checkWanted(m.Failed == refused,
		"%d of %d queries of the previous SDK failed, want none %v; %.2f %% on time, %d refused",
		m.Failed-refused, m.Answered+m.Failed, m.Failures, 100*m.QoSSatisfaction, refused)
	return nil
}

// replaceAgent has an agent of the binary f.Muster take the place of n: a new agent, after whose
// start n drains, or n itself, which drains and starts again with the state that it had.
func (r *run) replaceAgent(ctx context.Context, f *harness.Fleet, n *harness.Node,
	inPlace bool) error {
	if !inPlace {
		if _, err := f.Add(ctx, n.InstanceType); err != nil {
			return err
		}
		if err := f.WaitComplete(ctx); err != nil {
			return err
		}
		if err := r.waitAWhile(ctx, 2*time.Second); err != nil {
			return err
		}
	}
	if err := n.Stop(); err != nil {
		return err
	}
	if inPlace {
		if err := f.Restart(n); err != nil {
			return err
		}
	} else {
		f.Remove(n)
	}
	return f.WaitComplete(ctx)
}

// findPrevious returns the binary of the previous version.
func (r *run) findPrevious(ctx context.Context) (string, error) {
	if *previousBinary != "" {
		return *previousBinary, nil
	}
	return r.buildPrevious(ctx)
}

// buildPrevious returns the binary of the commit oldestCompatible, without ONNX Runtime: its agents
// are emulated. It builds it where no scenario of this folder has yet.
func (r *run) buildPrevious(ctx context.Context) (string, error) {
	git := func(args ...string) (string, error) { return harness.Output(ctx, "", "git", args...) }
	folder := filepath.Dir(r.dir)
	binary := filepath.Join(folder, "muster-"+oldestCompatible)
	// Scenarios run beside each other. The first one builds, the others wait for it.
	lock, err := os.OpenFile(binary+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	source, err := os.MkdirTemp("", "muster-previous-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(source)
	// A clone, not a worktree: a worktree would leave traces in this repository if this is killed.
	if _, err := git("clone", "--quiet", "--shared", "--no-checkout", ".", source); err != nil {
		return "", err
	}
	if _, err := harness.Output(ctx, source, "git", "checkout", "--quiet",
		oldestCompatible); err != nil {
		return "", skip{fmt.Errorf("this clone's history does not reach back to %s",
			oldestCompatible)}
	}
	r.printLine("Building %s", oldestCompatible)
	if _, err := harness.Output(ctx, source, "go", "build", "-trimpath", "-buildvcs=false", "-o",
		binary+".new", "./cmd/muster"); err != nil {
		return "", err
	}
	return binary, os.Rename(binary+".new", binary)
}

// A previousLoad is a load that the previous version's SDK sends, by its `muster bench`.
type previousLoad struct {
	cmd    *exec.Cmd
	output strings.Builder
	json   string
}

// startPrevious starts load on the fleet's agents.
func (r *run) startPrevious(muster, model string, f *harness.Fleet,
	rate float64) (*previousLoad, error) {
	l := &previousLoad{json: filepath.Join(r.dir, "previous.json")}
	l.cmd = exec.Command(muster, "bench", "--model", model, "--rate", fmt.Sprint(rate),
		"--duration", "1h",
		"--timeout", pick(r, time.Duration(0), harness.Patience).String(),
		"--server", strings.Join(f.Addresses(), ","), "--json", l.json)
	l.cmd.Stdout, l.cmd.Stderr = &l.output, &l.output
	l.cmd.SysProcAttr = harness.ChildAttributes()
	return l, l.cmd.Start()
}

// stop ends the load and returns its report.
func (l *previousLoad) stop() (m bench.ModelReport, err error) {
	if err := l.cmd.Process.Signal(os.Interrupt); err != nil {
		return m, err
	}
	const interrupted = 130
	if err := l.cmd.Wait(); l.cmd.ProcessState.ExitCode() != interrupted {
		return m, fmt.Errorf("run %s: %w\n%s", l.cmd, err, l.output.String())
	}
	text, err := os.ReadFile(l.json)
	if err != nil {
		return m, err
	}
	var report bench.Report
	if err := json.Unmarshal(text, &report); err != nil {
		return m, err
	}
	return report.Models[0], nil
}
