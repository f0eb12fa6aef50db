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

	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// measureCPU measures the CPU time that Muster takes beside its models: that of an idle fleet, and
// that of a query. The fleet is that of the scenario live, two g4dn.xlarge and nine r5n.large that
// serve DIEN, emulated: their executions take no CPU time. CPU time varies much less than latency
// on a busy machine, so that two binaries can be compared by turns. Wanted: no query fails.
func (r *run) measureCPU(ctx context.Context) error {
	f := &harness.Fleet{
		Muster: r.muster, Dir: r.dir, Models: []string{"dien"},
		Args: append(harness.Emulated(), "--pprof"),
	}
	defer f.Stop()
	if err := f.GenerateSmall(ctx); err != nil {
		return err
	}
	for i := range 11 {
		kind := "r5n.large"
		if i < 2 {
			kind = "g4dn.xlarge"
		}
		if _, err := f.Add(ctx, kind); err != nil {
			return err
		}
	}
	if err := f.WaitComplete(ctx); err != nil {
		return err
	}
	c, err := client.New(f.Addresses())
	if err != nil {
		return err
	}
	defer c.Close()
	d, err := harness.NewDriver(ctx, c, map[string]float64{"dien": 1}, harness.Patience)
	if err != nil {
		return err
	}
	leader, _, err := f.Leader(ctx)
	if err != nil {
		return err
	}
	all := []*harness.Processes{
		{What: "client", PIDs: []int{os.Getpid()}}, {What: "leader", PIDs: []int{leader.PID()}},
		{What: "workers"},
	}
	for _, n := range f.Nodes {
		if n != leader {
			all[2].PIDs = append(all[2].PIDs, n.PID())
		}
	}
	// By then the last loads and views are told.
	if err := harness.Settle(ctx, 8*time.Second); err != nil {
		return err
	}
	const idle = 10 * time.Second
	used, err := harness.CPUTimesDuring(all, func() error { return harness.Settle(ctx, idle) })
	if err != nil {
		return err
	}
	fmt.Printf("idle: %s of a second of one core\n", formatPer(all, used, idle.Seconds(), 1))

	load := harness.Load{Rate: r.rate, Duration: r.time / 4, Seed: 163}
	if _, err := d.Run(ctx, load); err != nil { // opens connections, and lets buffers grow
		return err
	}
	load.Duration = r.time
	begin, before := time.Now(), c.Gateway().Stats()
	if used, err = harness.CPUTimesDuring(all, func() error {
		done := r.writeProfiles(ctx, f, load.Duration)
		defer done()
		_, err := d.Run(ctx, load)
		return err
	}); err != nil {
		return err
	}
	sent := d.Between(begin, time.Now())
	fmt.Printf("%.0f queries/s: %s of a query\n", r.rate,
		formatPer(all, used, float64(sent.Queries), 1e6))
	fmt.Printf("  %s\n", harness.DescribeSince(before, c))
	r.want(sent.OnTime+sent.Late == sent.Queries, "%v", sent)
	return nil
}

// formatPer says what the processes have used, divided by n; unit is 1 for seconds, 1e6 for
// microseconds.
func formatPer(all []*harness.Processes, used []time.Duration, n, unit float64) string {
	var parts []string
	sum := time.Duration(0)
	show := func(what string, t time.Duration) {
		if unit == 1 {
			parts = append(parts, fmt.Sprintf("%s %.4f", what, t.Seconds()/n))
		} else {
			parts = append(parts, fmt.Sprintf("%s %.0f us", what, unit*t.Seconds()/n))
		}
	}
	for i, t := range used {
		show(all[i].What, t)
		sum += t
	}
	show("all", sum)
	return strings.Join(parts, ", ")
}

// writeProfiles writes CPU profiles of this process and each agent if that was asked for. The
// caller calls done after the duration.
func (r *run) writeProfiles(ctx context.Context, f *harness.Fleet,
	duration time.Duration) (done func()) {
	if r.profiles == "" {
		return func() {}
	}
	if err := os.MkdirAll(r.profiles, 0o755); err != nil {
		fmt.Println("no profiles:", err)
		return func() {}
	}
	create := func(name string, write func(io.Writer) error) {
		out, err := os.Create(filepath.Join(r.profiles, name+".pprof"))
		if err == nil {
			err = write(out)
		}
		if err != nil {
			fmt.Printf("profile of %s: %v\n", name, err)
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
