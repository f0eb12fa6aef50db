//go:build linux && cgo

package profilecmd

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/muster-serve/muster/runtime/isolate"
)

// A hypervisor may run two processors now on cores that share a last-level cache, as it tells the
// virtual machine, and now on cores that do not, for seconds or for minutes. Two lookups of tables
// that took 1.4 times as long side by side on the former took 1.00 times as long on the latter. So
// it is found out, by how long a cache line takes from one processor to the other and back: 75 to
// 100 ns on the former (an AMD EPYC), 300 to 440 on the latter.

// apart is the round trip from which on two processors do not share a cache.
const apart = 200 * time.Nanosecond

// nap is between two looks at processors that are apart. All workers sleep meanwhile.
const nap = 20 * time.Millisecond

// A watch sees to it that what is measured counts only if processors that should share a cache did,
// as long as there is time to wait for it. While workers run, the first of them has it.
type watch struct {
	caches map[int]int // by processor: a number of the last-level cache that it should have
	left   time.Duration
	// roundTrip is how long a cache line takes between the two workers of a link, for the first of
	// them. Both call it.
	roundTrip func(ctx context.Context, l *link, first bool, turn int64) time.Duration

	waited       time.Duration
	steps, apart int // that count, and those of them whose processors were apart
}

// newWatch returns a watch that waits for the caches that a machine says it has.
func newWatch(top *isolate.Topology, patience time.Duration) *watch {
	w := &watch{caches: map[int]int{}, left: patience, roundTrip: roundTrip}
	for _, c := range top.CPUs {
		w.caches[c.Number] = c.Cache
	}
	return w
}

// A link is two workers whose processors should share a cache.
type link struct {
	a, b *pinnedWorker
	_    [128]byte // ball has a cache line of its own
	ball atomic.Int64
	_    [128]byte
}

// linksOf are those of some workers: of each cache the first with all others, which is enough to
// see that one of them is elsewhere.
func (w *watch) linksOf(workers []*pinnedWorker) (links []*link) {
	first := map[int]*pinnedWorker{}
	for _, o := range workers {
		cache, ok := w.caches[o.cpu]
		if !ok {
			continue
		}
		if f := first[cache]; f == nil {
			first[cache] = o
		} else if f.cpu != o.cpu {
			links = append(links, &link{a: f, b: o})
		}
	}
	return links
}

// roundTrip is the least of several measurements: what interrupts them makes them longer only.
func roundTrip(ctx context.Context, l *link, first bool, turn int64) time.Duration {
	const tries, trips = 8, 16
	ball := 2 * tries * trips * turn // the first value, no two turns have the same
	least := time.Duration(math.MaxInt64)
	for range tries {
		start := time.Now()
		for range trips {
			if first {
				l.ball.Store(ball + 1)
				l.awaitValue(ctx, ball+2)
			} else {
				l.awaitValue(ctx, ball+1)
				l.ball.Store(ball + 2)
			}
			ball += 2
		}
		least = min(least, time.Since(start)/trips)
	}
	return least
}

// awaitValue waits for a value of the ball, or until ctx ends.
func (l *link) awaitValue(ctx context.Context, value int64) {
	for n := 1; l.ball.Load() < value; n++ {
		if n%4096 == 0 && ctx.Err() != nil {
			return
		}
	}
}

// What workers do after they have looked where their processors are.
const (
	goOn  int32 = iota
	wait        // they are apart, and there is time to wait
	unfit       // they are apart, and there is no more
)

// checkProcessors lets all workers find out whether their processors are together, and returns what
// all of them do now; false: ctx has ended. begun is when that began which is lost if they are to
// wait.
func (m *measurement) checkProcessors(ctx context.Context, w *pinnedWorker, turn *int64,
	begun time.Time) (int32,
	bool) {
	if len(m.links) == 0 {
		return goOn, true
	}
	if !m.awaitNextTurn(ctx, w, turn) {
		return 0, false
	}
	for _, l := range m.links {
		switch w {
		case l.a:
			if m.watch.roundTrip(ctx, l, true, *turn) >= apart {
				m.apart.Store(*turn)
			}
		case l.b:
			m.watch.roundTrip(ctx, l, false, *turn)
		}
	}
	found := *turn
	if !m.awaitNextTurn(ctx, w, turn) {
		return 0, false
	}
	if w == m.workers[0] { // the others wait for it
		m.verdict.Store(m.watch.decideNext(m.apart.Load() == found, time.Since(begun)))
	}
	if !m.awaitNextTurn(ctx, w, turn) {
		return 0, false
	}
	return m.verdict.Load(), true
}

// decideNext is what workers do whose processors are apart or not, after what took so long and is
// lost if they wait.
func (w *watch) decideNext(apart bool, took time.Duration) int32 {
	switch {
	case !apart:
		return goOn
	case w.left <= 0:
		return unfit
	}
	took += nap
	w.left -= took
	w.waited += took
	return wait
}

// countStep counts a step whose processors were apart or not.
func (w *watch) countStep(apart bool) {
	w.steps++
	if apart {
		w.apart++
	}
}
