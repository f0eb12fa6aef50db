package worker

import (
	"context"
	"math/bits"
	"os"
	goruntime "runtime"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/lateness"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/starvation"
)

// A runBaseline is how long runs of a model take when nothing hinders them, by the powers of two of
// batch sizes. It follows what is faster soon, and what is slower so slowly that a cause which
// lasts for minutes still shows: profiles, which the leader plans by, follow within seconds.
type runBaseline struct {
	mu   sync.Mutex
	mean [18]time.Duration
}

// Chosen: noise of single runs does not lower the mean much, and runs that take twice as long from
// now on are as expected after 2,000 runs.
const fasterWeight, slowerWeight = 16, 2000

// observe takes a run's time without what was lost to known causes, and returns how long it should
// have taken.
func (b *runBaseline) observe(batchSize int, took time.Duration) time.Duration {
	class := min(bits.Len(uint(max(batchSize, 1))), len(b.mean)-1)
	b.mu.Lock()
	defer b.mu.Unlock()
	mean := &b.mean[class]
	if *mean == 0 {
		*mean = took
	}
	expected := *mean
	if took < expected {
		*mean -= (expected - took) / fasterWeight
	} else {
		*mean += (min(took, 2*expected) - expected) / slowerWeight
	}
	return expected
}

// runSeconds sums up what lanes ran in the last seconds, so that waiting for a lane can be laid to
// what kept the lanes.
type runSeconds struct {
	mu   sync.Mutex
	ring [runWindow]runSecond
}

// runWindow is how many seconds count. Chosen: a queue that makes queries late has grown in about
// as long.
const runWindow = 5

type runSecond struct {
	second int64
	spent  [lateness.Components]time.Duration // where the time of the runs went
}

// add counts a run that ended now.
func (r *runSeconds) add(now time.Time, spent *[lateness.Components]time.Duration) {
	second := now.Unix()
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.ring[second%runWindow]
	if s.second != second {
		*s = runSecond{second: second}
	}
	for c := range s.spent {
		s.spent[c] += spent[c]
	}
}

// sum sums up the last seconds.
func (r *runSeconds) sum(now time.Time) (all runSecond) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.ring {
		if now.Unix()-s.second >= runWindow {
			continue
		}
		for c, d := range s.spent {
			all.spent[c] += d
		}
	}
	return all
}

// busyShare is how much of so many lanes' time the last seconds' runs took.
func (s *runSecond) busyShare(lanes int) float64 {
	ran := time.Duration(0)
	for _, d := range s.spent {
		ran += d
	}
	return float64(ran) / float64(runWindow*time.Second) / float64(max(1, lanes))
}

// divideWait divides a wait for one of the lanes: see [lateness.DivideWait].
func divideWait(parts *[lateness.Components]time.Duration, wait time.Duration, recent *runSecond,
	lanes int) {
	lateness.DivideWait(parts, wait, &recent.spent, recent.busyShare(lanes))
}

// CauseOfWait is why a query would wait now for this agent's lanes; "" if they have room.
func (w *Worker) CauseOfWait(now time.Time) lateness.Cause {
	recent := w.measurer.recent.sum(now)
	return lateness.CauseOfWait(&recent.spent, recent.busyShare(w.lanes.Stats().Lanes))
}

// minFaults is how many pages a run must have had read from disk for that to be why it was long.
// Chosen: a page takes .1 ms and more, and a process reads single ones now and then.
const minFaults = 16

// A measurer measures where queries' time at this agent goes.
type measurer struct {
	meter  *starvation.Meter
	recent runSeconds
}

func newMeasurer() *measurer {
	return &measurer{meter: starvation.New(os.DirFS("/"), goruntime.NumCPU())}
}

// divideRun divides a run's time that ended now. hasTroubles is whether the run's card is slowed or
// has faults.
func (m *measurer) divideRun(parts *[lateness.Components]time.Duration, b *runBaseline,
	batchSize int, ran time.Duration, now time.Time, hasTroubles bool) {
	lost := m.meter.Between(now.Add(-ran), now)
	cpu := lost.CPUOf(ran)
	throttled := time.Duration(lost.Throttled * float64(ran))
	rest := ran - cpu - throttled
	excess := max(0, rest-b.observe(batchSize, rest))
	parts[lateness.LackedCPU] += cpu
	parts[lateness.WasThrottled] += throttled
	parts[lateness.RanAsProfiled] += rest - excess
	switch {
	case hasTroubles:
		parts[lateness.AwaitedGPU] += excess
	case lost.MajorFaults >= minFaults:
		parts[lateness.AwaitedPages] += excess
	// Threads that ran have waited for those that did not, which the kernel does not count.
	case throttled >= excess && throttled >= cpu:
		parts[lateness.WasThrottled] += excess
	case cpu >= excess:
		parts[lateness.LackedCPU] += excess
	default:
		parts[lateness.RanLong] += excess
	}
}

// hasTroubles reports whether this agent's card is slowed or has had a fault.
func (w *Worker) hasTroubles() bool {
	g := w.config.Fleet.Own().GetGpu()
	return len(g.GetSlowed()) > 0 || g.GetXid() > 0
}

// noteRun divides the time of a run that has just ended, and counts it for those that wait.
func (w *Worker) noteRun(model *LoadedModel, batchSize int, result *runtime.Result,
	now time.Time) (parts [lateness.Components]time.Duration) {
	if result.Items > 0 {
		batchSize = result.Work
	}
	w.measurer.meter.Touch(now)
	w.measurer.divideRun(&parts, &model.baseline, batchSize, result.Execution, now, w.hasTroubles())
	if !result.Joined {
		spent := parts
		if result.Divided > 1 {
			for c := range spent {
				spent[c] /= time.Duration(result.Divided)
			}
		}
		w.measurer.recent.add(now, &spent)
	}
	return parts
}

// spentOn divides the time since an attempt or a query arrived here: it took receive to come in,
// and has run, or has waited in vain.
func (w *Worker) spentOn(ran *executedRun, cut, receive, within time.Duration,
	now time.Time) (parts [lateness.Components]time.Duration) {
	recent := w.measurer.recent.sum(now)
	lanes := w.lanes.Stats().Lanes
	receive = min(receive, within)
	if ran.result == nil { // it was refused, or its time was over
		parts[lateness.OnTheWay] = receive
		divideWait(&parts, within-receive-min(cut, within-receive), &recent, lanes)
		divideWait(&parts, min(cut, within-receive), &recent, lanes)
		return parts
	}
	parts = ran.spent
	parts[lateness.OnTheWay] += receive
	divideWait(&parts, ran.result.Queue, &recent, lanes)
	sum := time.Duration(0)
	for _, d := range parts {
		sum += d
	}
	// What is left is this process at work on the query, or not at work because it lacks CPU.
	rest := max(0, within-sum)
	lost := w.measurer.meter.Between(now.Add(-within), now)
	cpu := lost.CPUOf(rest)
	throttled := time.Duration(lost.Throttled * float64(rest))
	parts[lateness.LackedCPU] += cpu
	parts[lateness.WasThrottled] += throttled
	parts[lateness.RanAsProfiled] += rest - cpu - throttled
	return parts
}

// tellSpent says in the trailer of an attempt's answer where its time has gone, if it has taken so
// long that it may be late: else nobody asks.
func (w *Worker) tellSpent(ctx context.Context, t *attempt) {
	now := time.Now()
	within := now.Sub(t.received)
	if t.target <= 0 || t.attempt.Waited+within < t.target/4 {
		return
	}
	parts, recent := w.spentOn(&t.ran, t.cut, t.receive, within, now), w.measurer.recent.sum(now)
	// fails only outside a gRPC call
	_ = grpc.SetTrailer(ctx, control.SpentTrailer(&parts, &recent.spent))
}

// moveLost moves from a component what this process did not get in the time between.
func (w *Worker) moveLost(r *lateness.Record, from lateness.Component, begin, end time.Time) {
	d, lost := r.Parts[from], w.measurer.meter.Between(begin, end)
	r.Move(from, lateness.LackedCPU, lost.CPUOf(d))
	r.Move(from, lateness.WasThrottled, time.Duration(lost.Throttled*float64(d)))
}
