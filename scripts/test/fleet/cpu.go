package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/scripts/test/harness"
)

func cpuFlags(r *run, cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.flags.profiles, "profiles", "",
		"directory for a CPU profile of each process under load, for `go tool pprof`")
	cmd.Flags().Float64Var(&r.flags.rate, "rate", 300, "queries/s")
}

// measureCPU measures the CPU time that Muster takes beside its models: that of an idle fleet, and
// that of a query. The fleet is that of live, two g4dn.xlarge and nine r5n.large that serve DIEN,
// emulated: their executions take no CPU time. CPU time varies much less than latency on a busy
// machine, so that two binaries can be compared by turns. The short form wants only that no query
// fails.
func (r *run) measureCPU(ctx context.Context) error {
	f, err := r.newFleet(ctx, "dien")
	if err != nil {
		return err
	}
	f.Args = append(f.Args, "--pprof")
	if err := r.start(ctx, f, pick(r, pool(2, 9), pool(1, 2))); err != nil {
		return err
	}
	c, err := r.newClient(f.Addresses())
	if err != nil {
		return err
	}
	d, err := r.driverOf(ctx, f, c)
	if err != nil {
		return err
	}
	leader, _, err := f.Leader(ctx)
	if err != nil {
		return err
	}
	all := []*processes{
		{what: "client", pids: []int{os.Getpid()}}, {what: "leader", pids: []int{leader.PID()}},
		{what: "workers"},
	}
	for _, n := range f.Nodes {
		if n != leader {
			all[2].pids = append(all[2].pids, n.PID())
		}
	}
	if err := r.waitAWhile(ctx, 8*time.Second); err != nil { // the last loads and views are told
		return err
	}
	took, err := during(all, func() error { return r.waitAWhile(ctx, 10*time.Second) })
	if err != nil {
		return err
	}
	r.printLine("idle: %s of a second of one core", took.formatPer(took.passed.Seconds(), 1))

	rate := min(r.flags.rate, pick(r, r.flags.rate, 50))
	load := harness.Load{Rate: rate, Duration: pick(r, 5*time.Second, time.Second), Seed: r.seed}
	if _, err := d.Run(ctx, load); err != nil { // opens connections, and lets buffers grow
		return err
	}
	load.Duration = pick(r, 20*time.Second, 2*time.Second)
	begin, before := time.Now(), c.Gateway().Stats()
	if took, err = during(all, func() error {
		done := r.writeProfiles(ctx, f, load.Duration)
		defer done()
		return ignoreReport(d.Run(ctx, load))
	}); err != nil {
		return err
	}
	sent := d.Between(begin, time.Now()).Queries
	r.printLine("%.0f queries/s: %s of a query", rate, took.formatPer(float64(sent), 1e6))
	r.reportSince(before, c)
	return r.endLoad(d, begin)
}

func ignoreReport(_ any, err error) error { return err }

// A spent is what processes have used of the CPUs.
type spent struct {
	passed time.Duration
	names  []string
	cpu    []time.Duration
}

// during returns the CPU time that each of the processes uses while do runs.
func during(all []*processes, do func() error) (s spent, err error) {
	begin := time.Now()
	for _, sign := range []time.Duration{-1, 1} {
		for i, p := range all {
			t, err := p.cpuTime()
			if err != nil {
				return s, err
			}
			if sign < 0 {
				s.names, s.cpu = append(s.names, p.what), append(s.cpu, 0)
			}
			s.cpu[i] += sign * t
		}
		if sign < 0 {
			if err := do(); err != nil {
				return s, err
			}
			s.passed = time.Since(begin)
		}
	}
	return s, nil
}

// formatPer says what each has used, divided by n; unit is 1 for seconds, 1e6 for microseconds.
func (s *spent) formatPer(n, unit float64) string {
	var parts []string
	sum := 0.0
	show := func(what string, seconds float64) {
		if unit == 1 {
			parts = append(parts, fmt.Sprintf("%s %.4f", what, seconds/n))
		} else {
			parts = append(parts, fmt.Sprintf("%s %.0f us", what, unit*seconds/n))
		}
	}
	for i, t := range s.cpu {
		show(s.names[i], t.Seconds())
		sum += t.Seconds()
	}
	show("all", sum)
	return strings.Join(parts, ", ")
}

// writeProfiles writes CPU profiles of this process and each agent if that was asked for. The
// caller calls done after the duration.
func (r *run) writeProfiles(ctx context.Context, f *harness.Fleet,
	duration time.Duration) (done func()) {
	if r.flags.profiles == "" {
		return func() {}
	}
	if err := os.MkdirAll(r.flags.profiles, 0o755); err != nil {
		r.printLine("no profiles: %v", err)
		return func() {}
	}
	create := func(name string, write func(io.Writer) error) {
		out, err := os.Create(filepath.Join(r.flags.profiles, name+".pprof"))
		if err == nil {
			err = write(out)
		}
		if err != nil {
			r.printLine("profile of %s: %v", name, err)
		}
	}
	create("client", func(w io.Writer) error { return pprof.StartCPUProfile(w) })
	leader, _, _ := f.Leader(ctx)
	var all sync.WaitGroup
	for _, n := range f.Nodes {
		name := fmt.Sprintf("agent-%d", n.Index)
		if n == leader {
			name = "leader"
		}
		all.Go(func() {
			create(name, func(w io.Writer) error {
				answer, err := http.Get(fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d",
					n.Metrics, int(duration.Seconds())))
				if err != nil {
					return err
				}
				defer answer.Body.Close()
				_, err = io.Copy(w, answer.Body)
				return err
			})
		})
	}
	return func() { pprof.StopCPUProfile(); all.Wait() }
}
