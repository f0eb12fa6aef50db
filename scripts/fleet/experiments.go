package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/scripts/process"
)

const (
	dienTarget = 35 * time.Millisecond
	rm2Target  = 350 * time.Millisecond
)

// live holds what a fleet serves against what the simulator says.
func (e *experiment) live(ctx context.Context) error {
	for _, c := range []struct {
		model           string
		base, auxiliary int
		target          time.Duration
	}{{"dien", 2, 9, dienTarget}, {"rm2", 1, 13, rm2Target}} {
		if err := e.liveModel(ctx, c.model, pool(c.base, c.auxiliary), c.target); err != nil {
			return err
		}
	}
	return nil
}

func (e *experiment) liveModel(ctx context.Context, model string, types []string, target time.Duration) error {
	f, err := e.start(ctx, model, types)
	if err != nil {
		return err
	}
	defer f.Stop()
	d, err := newDriver(ctx, model, f.Addresses())
	if err != nil {
		return err
	}
	defer d.c.Close()
	allowable, err := e.calibrated(ctx, f, d, types)
	if err != nil {
		return err
	}
	for i, share := range []float64{0.95, 1.05} {
		if err := d.drive(ctx, share*allowable, e.load, uint64(i+1)); err != nil {
			return err
		}
		report, err := d.wait()
		if err != nil {
			return err
		}
		m := report.Models[0]
		fmt.Printf("  at %.2f x: %.0f queries/s, %d queries, p50 %.1f ms, p99 %.1f ms\n", share, share*allowable, m.Queries, m.LatencyMS.P50, m.LatencyMS.P99)
		satisfied := 100 * m.QoSSatisfaction
		if share < 1 {
			e.want(satisfied >= 99, "%s at %.2f x: %.2f %% within %v, want at least 99 %%", model, share, satisfied, target)
		} else {
			e.want(satisfied < 99, "%s at %.2f x: %.2f %% within %v, want below 99 %%", model, share, satisfied, target)
		}
	}
	return nil
}

// calibrated is the simulated allowable throughput, with the round trip that is
// measured.
func (e *experiment) calibrated(ctx context.Context, f *process.Fleet, d *driver, types []string) (float64, error) {
	overhead, err := d.measureOverhead(ctx, f)
	if err != nil {
		return 0, err
	}
	allowable, err := process.AllowableThroughput(ctx, e.muster, f.Models[0], summary(types), overhead)
	if err != nil {
		return 0, err
	}
	fmt.Printf("Beside execution a query takes %v here; with that the simulator allows %.0f queries/s\n", overhead.Round(10*time.Microsecond), allowable)
	return allowable, nil
}

// executed is how long all queries so far have executed, over the agents.
func executed(ctx context.Context, f *process.Fleet) (total time.Duration, err error) {
	ctx = metadata.AppendToOutgoingContext(ctx, control.LocalHeader, "1")
	for _, n := range f.Nodes {
		conn, err := grpc.NewClient(n.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		resp, err := inference.NewGRPCInferenceServiceClient(conn).ModelStatistics(ctx, &inference.ModelStatisticsRequest{Name: f.Models[0]})
		if err != nil {
			return 0, err
		}
		for _, m := range resp.ModelStats {
			total += time.Duration(m.InferenceStats.ComputeInfer.Ns)
		}
	}
	return total, nil
}

// loaded starts a fleet of DIEN under a share of what it can serve, for the given
// time. One of the cheap machines leads: when it dies the others can still serve that.
func (e *experiment) loaded(ctx context.Context, share float64, duration time.Duration) (*process.Fleet, *driver, error) {
	types := pool(2, 9)
	f, err := e.start(ctx, "dien", types, "g4dn.xlarge")
	if err != nil {
		return nil, nil, err
	}
	d, err := newDriver(ctx, "dien", f.Addresses())
	if err != nil {
		f.Stop()
		return nil, nil, err
	}
	allowable, err := e.calibrated(ctx, f, d, types)
	if err == nil {
		fmt.Printf("Load: %.0f queries/s\n", share*allowable)
		err = d.drive(ctx, share*allowable, duration, 1)
	}
	if err != nil {
		f.Stop()
		return nil, nil, err
	}
	return f, d, nil
}

// settle lets the load run for a while; it is not a wait for something.
func settle(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// failover kills the leader, and then freezes it, again and again.
func (e *experiment) failover(ctx context.Context) error {
	const pause = 6 * time.Second
	tries := 3 * e.runs // of each kind: those that a disturbed machine spoils do not count
	f, d, err := e.loaded(ctx, 0.7, time.Duration(2*tries+2)*pause*2)
	if err != nil {
		return err
	}
	defer f.Stop()
	defer d.c.Close()
	if err := settle(ctx, pause); err != nil {
		return err
	}
	begin := time.Now()
	for _, how := range []struct {
		name   string
		signal syscall.Signal
	}{{"kill -9", syscall.SIGKILL}, {"SIGSTOP", syscall.SIGSTOP}} {
		var longest time.Duration
		var before, after, worst count
		counted := 0
		for try := 0; counted < e.runs && try < tries; try++ {
			leader, epoch, err := f.Leader(ctx)
			if err != nil {
				return err
			}
			at := time.Now()
			leader.Signal(how.signal)
			took, err := f.AwaitLeader(ctx, leader, epoch)
			if err != nil {
				return err
			}
			if err := settle(ctx, 3*time.Second-time.Since(at)); err != nil {
				return err
			}
			c := d.between(at, at.Add(2*time.Second), dienTarget)
			b := d.between(at.Add(-2*time.Second), at, dienTarget)
			fmt.Printf("  leader %d (%s), %s: the next leader after %v; queries of the next 2 s: %v; of the 2 s before: %.2f %% on time\n",
				leader.Index, leader.InstanceType, how.name, took.Round(time.Millisecond), c, b.percentOnTime())
			if stolen := d.stolen.between(at, at.Add(2*time.Second)); stolen > 0 {
				fmt.Printf("          does not count: for half a second %.0f %% of this machine's CPU time were given to others\n", 100*stolen)
			} else {
				counted++
				longest = max(longest, took)
				before.queries, before.onTime = before.queries+b.queries, before.onTime+b.onTime
				after.queries, after.late, after.failed, after.refused = after.queries+c.queries, after.late+c.late, after.failed+c.failed, after.refused+c.refused
				if c.queries-c.onTime > worst.queries-worst.onTime {
					worst = c
				}
			}
			if how.signal == syscall.SIGKILL {
				<-leader.Exited()
				f.Remove(leader)
				if _, err := f.Add(leader.InstanceType, "", ""); err != nil {
					return err
				}
			} else {
				leader.Signal(syscall.SIGCONT)
			}
			if err := f.WaitComplete(ctx); err != nil {
				return err
			}
			if err := settle(ctx, pause/2); err != nil {
				return err
			}
		}
		e.want(counted == e.runs, "%s: %d times on a machine that was not disturbed, want %d", how.name, counted, e.runs)
		e.want(longest <= 2*time.Second, "%s: a new leader within %v at the latest, want 2 s", how.name, longest.Round(time.Millisecond))
		e.want(after.failed+after.refused == 0, "%s: %d of %d queries failed, %d refused, want none", how.name, after.failed, after.queries, after.refused)
		late := 100 * float64(after.late) / float64(max(1, after.queries))
		e.want(late <= 1, "%s: %.2f %% of the queries of the next two seconds late, want at most 1 %% (worst: %v); of the two seconds before %.2f %%",
			how.name, late, worst, 100-before.percentOnTime())
	}
	d.stop()
	e.account(d, begin)
	return nil
}

// account says what became of all queries since begin.
func (e *experiment) account(d *driver, begin time.Time) {
	c := d.between(begin, time.Now().Add(-time.Second), dienTarget)
	fmt.Printf("  all: %v\n", c)
	e.want(c.failed == 0, "%d of %d queries failed, want none", c.failed, c.queries)
	e.want(len(d.wrong) == 0, "%d answers were wrong, want none %v", len(d.wrong), d.wrong[:min(3, len(d.wrong))])
}

// notLeader returns an agent of the type that does not lead.
func notLeader(ctx context.Context, f *process.Fleet, instanceType string) (*process.Node, error) {
	leader, _, err := f.Leader(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(f.Nodes, func(n *process.Node) bool { return n != leader && n.InstanceType == instanceType })
	if i < 0 {
		return nil, fmt.Errorf("no %s but the leader", instanceType)
	}
	return f.Nodes[i], nil
}

// worker does to agents that do not lead what may happen to them.
func (e *experiment) worker(ctx context.Context) error {
	f, d, err := e.loaded(ctx, 0.7, 5*time.Minute)
	if err != nil {
		return err
	}
	defer f.Stop()
	defer d.c.Close()
	begin := time.Now()
	for _, t := range []string{"r5n.large", "g4dn.xlarge"} {
		for _, what := range []string{"killed", "frozen for 3 s", "drained"} {
			n, err := notLeader(ctx, f, t)
			if err != nil {
				return err
			}
			if err := settle(ctx, 2*time.Second); err != nil {
				return err
			}
			at := time.Now()
			switch what {
			case "killed":
				n.Kill()
			case "frozen for 3 s":
				n.Signal(syscall.SIGSTOP)
			case "drained":
				n.Signal(syscall.SIGTERM)
				<-n.Exited()
				fmt.Printf("  agent %d was gone %v after SIGTERM\n", n.Index, time.Since(at).Round(time.Millisecond))
			}
			if err := settle(ctx, 3*time.Second); err != nil {
				return err
			}
			c := d.between(at, at.Add(2*time.Second), dienTarget)
			fmt.Printf("  agent %d (%s) %s; queries of the next 2 s: %v\n", n.Index, t, what, c)
			e.want(c.failed == 0, "%s %s: %d queries failed, want none", t, what, c.failed)
			if what == "frozen for 3 s" {
				n.Signal(syscall.SIGCONT)
			} else {
				f.Remove(n)
				if _, err := f.Add(t, "", ""); err != nil {
					return err
				}
			}
			if err := f.WaitComplete(ctx); err != nil {
				return err
			}
		}
	}
	d.stop()
	e.account(d, begin)
	return nil
}

// gateway kills the agent that a plain client of the Open Inference Protocol
// talks to.
func (e *experiment) gateway(ctx context.Context) error {
	types := pool(1, 4)
	f, err := e.start(ctx, "dien", types)
	if err != nil {
		return err
	}
	defer f.Stop()
	d, err := newDriver(ctx, "dien", f.Addresses()[1:4], client.WithoutFleet())
	if err != nil {
		return err
	}
	defer d.c.Close()
	allowable, err := e.calibrated(ctx, f, d, types)
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := d.drive(ctx, allowable/2, 30*time.Second, 1); err != nil {
		return err
	}
	for _, i := range []int{2, 1} {
		if err := settle(ctx, 4*time.Second); err != nil {
			return err
		}
		n := f.Nodes[i]
		at := time.Now()
		n.Kill()
		f.Remove(n)
		if err := settle(ctx, 3*time.Second); err != nil {
			return err
		}
		fmt.Printf("  gateway %d killed; queries of the next 2 s: %v\n", n.Index, d.between(at, at.Add(2*time.Second), dienTarget))
	}
	d.stop()
	e.account(d, begin)
	return nil
}

// overload asks for three times what the fleet can serve.
func (e *experiment) overload(ctx context.Context) error {
	types := pool(1, 4)
	f, err := e.start(ctx, "dien", types)
	if err != nil {
		return err
	}
	defer f.Stop()
	d, err := newDriver(ctx, "dien", f.Addresses())
	if err != nil {
		return err
	}
	defer d.c.Close()
	allowable, err := e.calibrated(ctx, f, d, types)
	if err != nil {
		return err
	}
	run := func(share float64, duration time.Duration, seed uint64) (count, time.Time, error) {
		at := time.Now()
		if err := d.drive(ctx, share*allowable, duration, seed); err != nil {
			return count{}, at, err
		}
		if err := settle(ctx, duration); err != nil {
			return count{}, at, err
		}
		end := time.Now()
		d.stop()
		c := d.between(at, end, dienTarget)
		fmt.Printf("  at %.2f x for %v: %v\n", share, duration, c)
		return c, end, nil
	}
	before, _, err := run(0.95, 10*time.Second, 1)
	if err != nil {
		return err
	}
	peak := float64(before.onTime) / 10
	held := memory(f)
	over, end, err := run(3, e.load, 2)
	if err != nil {
		return err
	}
	grown := memory(f)
	e.want(float64(over.onTime)/e.load.Seconds() >= 0.8*peak, "%.0f queries/s on time at three times the limit, want at least 0.8 of %.0f", float64(over.onTime)/e.load.Seconds(), peak)
	e.want(over.refused > 0 && over.atOnce*10 >= over.refused*9, "%d of %d refusals within the QoS target, with Retry-After, want at least 90 %%", over.atOnce, over.refused)
	e.want(over.failed*50 <= over.queries, "%d of %d queries neither served nor refused, want at most 2 %%", over.failed, over.queries)
	e.want(grown < 2*held+200<<20, "memory of all agents went from %d to %d MB, want it flat", held>>20, grown>>20)
	if err := settle(ctx, 2*time.Second-time.Since(end)); err != nil {
		return err
	}
	after, _, err := run(0.7, 10*time.Second, 3)
	if err != nil {
		return err
	}
	e.want(after.percentOnTime() >= 99, "%.2f %% on time from two seconds after, want 99 %%", after.percentOnTime())
	return nil
}

// memory is the resident memory of all agents, in bytes.
func memory(f *process.Fleet) (total int64) {
	for _, n := range f.Nodes {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", n.PID()))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(status))
		pages, _ := strconv.ParseInt(fields[1], 10, 64)
		total += pages * int64(os.Getpagesize())
	}
	return total
}
