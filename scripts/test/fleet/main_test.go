//go:build fleet

package fleet

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-serve/muster/scripts/test/harness"
)

var (
	musterFile = flag.String("muster", "bin/muster", "the binary to test")
	workFolder = flag.String("dir", "build/fleet", "directory for models, state and logs")
	randomSeed = flag.Uint64("seed", 163, "seed of all random numbers; 0 draws one. With the default "+
		"every kind of event happens in TestChaos with -short")
	agentCount = flag.Int("agents", 0, "how many agents there are in TestGossip (default 50, with "+
		"-short 15) and TestStore (default 20, with -short 6)")
	inside = flag.Bool("inside", false, "run the one scenario in this process, and end it: for "+
		"the processes that tests start")
)

// TestMain goes to the repository's root, which paths are relative to.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := harness.EnterRepository(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// The exit statuses of a scenario's process beside 0.
const (
	statusMissed  = 1
	statusSkipped = 4
)

// runScenario runs a scenario in a process of its own: some have their own network namespace, count
// the goroutines of their clients, or change the environment. Short ones run beside each other.
func runScenario(t *testing.T, try func(*run, context.Context) error) {
	name := strings.ToLower(strings.TrimPrefix(t.Name(), "Test"))
	if *inside {
		os.Exit(runInside(name, try))
	}
	if testing.Short() {
		t.Parallel()
	}
	runtime.LockOSThread() // the kernel stops the process when the thread that started it ends
	ctx := t.Context()
	if deadline, ok := t.Deadline(); ok { // go test itself would print nothing of what is found
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-time.Minute))
		defer cancel()
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{
		"-inside", "-test.run=^" + t.Name() + "$", "-test.timeout=0",
		fmt.Sprintf("-test.short=%t", testing.Short()),
	}
	flag.Visit(func(f *flag.Flag) {
		if !strings.HasPrefix(f.Name, "test.") {
			args = append(args, fmt.Sprintf("-%s=%s", f.Name, f.Value))
		}
	})
	cmd := exec.CommandContext(ctx, self, args...)
	// SIGTERM, because the scenario has agents to stop.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	cmd.SysProcAttr = harness.ChildAttributes()
	var said bytes.Buffer
	if cmd.Stdout = t.Output(); testing.Short() { // what others say would come in between
		cmd.Stdout = &said
	}
	cmd.Stderr = cmd.Stdout
	err = cmd.Run()
	if _, failed := t.Output().Write(said.Bytes()); failed != nil {
		t.Error(failed)
	}
	var ended *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &ended) && ended.ExitCode() == statusSkipped:
		t.SkipNow()
	default:
		t.Errorf("the scenario ended with %v; logs are in %s", err, filepath.Join(*workFolder, name))
	}
}

// runInside runs a scenario in this process, and returns its exit status.
func runInside(name string, try func(*run, context.Context) error) int {
	runtime.LockOSThread() // the kernel stops agents when the thread that started them ends
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	r := &run{short: testing.Short(), seed: *randomSeed, out: os.Stdout}
	if r.seed == 0 {
		r.seed = uint64(rand.Uint32())
	}
	var errs [2]error
	r.muster, errs[0] = filepath.Abs(*musterFile)
	r.dir, errs[1] = filepath.Abs(filepath.Join(*workFolder, name))
	neighbours := harness.WatchNeighbours()
	err := errors.Join(errs[0], errs[1])
	if err == nil {
		err = errors.Join(os.RemoveAll(r.dir), os.MkdirAll(r.dir, 0o755))
	}
	if err == nil {
		err = try(r, ctx)
	}
	for _, f := range slices.Backward(r.atEnd) {
		f()
	}
	if note := neighbours.Look(); note != "" {
		r.printLine("%s", note)
	}
	var why skip
	switch {
	case ctx.Err() != nil:
		r.printLine("%s: interrupted", missed)
	case errors.As(err, &why):
		r.printLine("%s: %v", skipped, why.error)
		return statusSkipped
	case err != nil:
		r.printLine("%s: it did not run to its end: %v", missed, err)
	case len(r.missed) > 0:
		r.printLine("%s: %d of %d: %s", missed, len(r.missed), r.wanted, r.missed[0])
	default:
		r.printLine("%s: all %d", asWanted, r.wanted)
		return 0
	}
	return statusMissed
}
