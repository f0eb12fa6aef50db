//go:build fleet

package fleet

import (
	"context"
	"syscall"
	"time"

	"github.com/muster-serve/muster/scripts/test/harness"
)

// testFailover kills the leader ten times, and then freezes it ten times, under a load of 0.7 of
// the fleet's limit. Wanted: another leader within 2 s; no query fails or is refused; of the
// queries of the next two seconds at most 1 % are late. The short form does each once, and wants
// only that another agent leads and that no query fails.
func (r *run) testFailover(ctx context.Context) error {
	f, d, err := r.startLoaded(ctx, 0.7)
	if err != nil {
		return err
	}
	if err := r.waitAWhile(ctx, 6*time.Second); err != nil {
		return err
	}
	begin := time.Now()
	for _, how := range []struct {
		name   string
		signal syscall.Signal
	}{{"kill -9", syscall.SIGKILL}, {"SIGSTOP", syscall.SIGSTOP}} {
		var longest time.Duration
		var before, after harness.Count
		runs := pick(r, 10, 1)
		counted := 0
		// A try during which CPU time was stolen does not count.
		for try := 0; counted < runs && try < 3*runs; try++ {
			leader, at, took, err := r.strikeLeader(ctx, f, how.signal)
			if err != nil {
				return err
			}
			b, a := d.Between(at.Add(-2*time.Second), at), d.Between(at, at.Add(2*time.Second))
			r.printLine(
				"  %v, %s: the next leader after %v; queries of the next 2 s: %v; of the 2 s "+
					"before: %.2f %% on time",
				leader, how.name, took.Round(time.Millisecond), a, b.PercentOnTime())
			if stolen := d.Disturbed(at, at.Add(2*time.Second)); stolen > 0 && !r.short {
				r.printLine(
					"          does not count: for half a second %.0f %% of this machine's CPU "+
						"time was stolen", 100*stolen)
			} else {
				counted++
				longest = max(longest, took)
				before, after = before.Plus(b), after.Plus(a)
			}
			if err := r.waitAWhile(ctx, 3*time.Second); err != nil {
				return err
			}
		}
		r.checkWanted(counted == runs, "%s: %d times without stolen CPU time, want %d",
			how.name, counted, runs)
		r.wantQuiet(longest <= 2*time.Second, "%s: a new leader after %v at most, want 2 s",
			how.name, longest.Round(time.Millisecond))
		r.wantQuiet(after.Refused == 0, "%s: %d of %d queries refused, want none", how.name,
			after.Refused, after.Queries)
		r.wantQuiet(after.PercentLate() <= 1,
			"%s: %.2f %% of the queries of the next two seconds late, want at most 1 %%; of the "+
				"two seconds before %.2f %%",
			how.name, after.PercentLate(), before.PercentLate())
	}
	return r.endLoad(d, begin)
}

// strikeLeader sends the leader a signal, and returns who it was, when it got the signal, and
// how long it took until another led. It returns when the fleet is whole again, two seconds or
// more after the signal.
func (r *run) strikeLeader(ctx context.Context, f *harness.Fleet,
	signal syscall.Signal) (leader *harness.Node, at time.Time, took time.Duration, err error) {
	leader, epoch, err := f.Leader(ctx)
	if err != nil {
		return nil, at, 0, err
	}
	at = time.Now()
	leader.Signal(signal)
	if took, err = f.AwaitLeader(ctx, leader, epoch); err != nil {
		return leader, at, took, err
	}
	if err := harness.Settle(ctx, time.Until(at.Add(pick(r, 3*time.Second, 2*time.Second)))); err !=
		nil {
		return leader, at, took, err
	}
	if signal == syscall.SIGKILL {
		<-leader.Exited()
		f.Remove(leader)
		if _, err := f.Add(ctx, leader.InstanceType); err != nil {
			return leader, at, took, err
		}
	} else {
		leader.Signal(syscall.SIGCONT)
	}
	return leader, at, took, f.WaitComplete(ctx)
}
