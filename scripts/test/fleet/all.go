package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// newAllCommand runs every scenario in a process of its own. Short ones run several at a time,
// since they want nothing that needs a quiet machine.
func newAllCommand(r *run) *cobra.Command {
	var beside int
	cmd := &cobra.Command{
		Use: "all", Short: "every scenario, and a table at the end", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !r.short {
				beside = 1
			}
			return r.runAll(cmd.Context(), max(1, beside))
		},
	}
	cmd.Flags().IntVar(&beside, "beside", 4, "with --short, how many scenarios to run at a time")
	return cmd
}

// An scenarioExit is how a scenario ended.
type scenarioExit struct {
	name  string
	index int // in the order of scenarios
	took  time.Duration
	said  string // its last line
	text  []byte
	err   error
}

func (r *run) runAll(ctx context.Context, beside int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	begin := time.Now()
	slots, ended := make(chan struct{}, beside), make(chan scenarioExit)
	go func() {
		for i, s := range scenarios {
			slots <- struct{}{}
			go func() {
				e := r.runInChild(ctx, self, s.name)
				<-slots
				e.index = i
				ended <- e
			}()
		}
	}()
	terminal := term.IsTerminal(int(os.Stderr.Fd()))
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var all []scenarioExit
	for len(all) < len(scenarios) {
		select {
		case e := <-ended:
			all = append(all, e)
			r.printLine("\n--- %s, %.0f s\n%s", e.name, e.took.Seconds(), bytes.TrimSpace(e.text))
		case <-tick.C:
			if terminal {
				fmt.Fprintf(os.Stderr, "\r\x1b[K%d of %d scenarios, %.0f s", len(all),
					len(scenarios), time.Since(begin).Seconds())
			}
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	slices.SortFunc(all, func(a, b scenarioExit) int { return a.index - b.index })
	for i, e := range all {
		if e.err == nil || !r.short || ctx.Err() != nil {
			continue
		}
		// The short forms run beside each other. What is missed alone, too, is not for want of CPU.
		all[i] = r.runInChild(ctx, self, e.name)
		r.printLine("\n--- %s once more, alone, %.0f s\n%s", e.name, all[i].took.Seconds(),
			bytes.TrimSpace(all[i].text))
		all[i].said = "at first it " + e.said + "; alone " + all[i].said
	}
	r.printLine("")
	t := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', 0)
	failed := 0
	fmt.Fprintln(t, "SCENARIO\tSECONDS\tFOUND")
	for _, e := range all {
		if e.err != nil {
			failed++
		}
		fmt.Fprintf(t, "%s\t%.0f\t%s\n", e.name, e.took.Seconds(), e.said)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	r.printLine("%d scenarios in %.0f s", len(all), time.Since(begin).Seconds())
	if failed > 0 {
		return fmt.Errorf("%d of %d scenarios missed something", failed, len(all))
	}
	return nil
}

// runInChild runs a scenario in a process of its own.
func (r *run) runInChild(ctx context.Context, self, name string) scenarioExit {
	args := []string{
		name, "--muster", r.muster, "--dir", r.dir, "--seed", fmt.Sprint(r.seed),
		fmt.Sprintf("--short=%t", r.short),
	}
	cmd := exec.CommandContext(ctx, self, args...)
	// SIGTERM, because the scenario has agents to stop.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	begin := time.Now()
	text, err := cmd.CombinedOutput()
	e := scenarioExit{name: name, took: time.Since(begin), text: text, err: err}
	for line := range strings.Lines(string(text)) {
		for _, how := range []string{asWanted, missed, skipped} {
			if strings.HasPrefix(line, how+": ") {
				e.said = strings.TrimSpace(line)
			}
		}
	}
	if e.said == "" {
		e.err = errors.Join(err, errors.New("it did not run to its end"))
		e.said = fmt.Sprint(e.err)
	}
	return e
}
