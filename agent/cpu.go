package agent

import (
	"context"
	"log/slog"
	"math"
	"sync/atomic"
	"time"
)

const (
	// cpuEvery is how often a cpuWatch looks, and cpuLooks over how many looks it measures: over a
	// minute, as lateness is.
	cpuEvery = 10 * time.Second
	cpuLooks = 6
	// An agent lacks CPU from lacksCPU on, and no more below hasCPU (hysteresis); the fleet is told
	// again when the share has changed by newsOfCPU. Chosen: with a third of their time in a queue,
	// runs take half as long again; threads of a busy agent that is alone wait for each other for a
	// few percent.
	lacksCPU, hasCPU, newsOfCPU = 0.33, 0.15, 0.15
	// minCPUTime is for how long in a minute threads must run or wait for their share to say
	// anything. Chosen: a twentieth of a core.
	minCPUTime = 3 * time.Second
)

// A cpuWatch measures for which share of the time the agent's threads wait for a processor, which
// other processes or a quota take, and tells the log and the fleet.
type cpuWatch struct {
	read    func() (ran, waited time.Duration, err error)
	changed func() // is called when share returns something else
	log     *slog.Logger

	looks []threadTimes // the last ones, the oldest first
	told  atomic.Uint64 // the share, as its bits
}

// threadTimes are those of [cgroup.ThreadTimes].
type threadTimes struct{ ran, waited time.Duration }

// share is the share of the time that threads wait, as the fleet is told: 0 if the agent has the
// CPU that it needs.
func (w *cpuWatch) share() float64 { return math.Float64frombits(w.told.Load()) }

// run looks until ctx ends. It ends at once where the system does not say how long threads wait.
func (w *cpuWatch) run(ctx context.Context) {
	for {
		if ran, waited, err := w.read(); err != nil {
			w.log.Debug("it is unknown how long threads wait for a processor", "error", err)
			return
		} else if w.noteTimes(threadTimes{ran, waited}) {
			w.changed()
		}
		if !pause(ctx, cpuEvery) {
			return
		}
	}
}

// noteTimes notes what a look has found, and reports whether the fleet is to be told.
func (w *cpuWatch) noteTimes(now threadTimes) bool {
	if n := len(w.looks); n > 0 &&
		(now.ran < w.looks[n-1].ran || now.waited < w.looks[n-1].waited) {
		w.looks = w.looks[:0] // a thread has ended, with its times
	}
	w.looks = append(w.looks, now)
	if len(w.looks) <= cpuLooks {
		return false
	}
	first := w.looks[0]
	w.looks = w.looks[1:]
	share, told := 0.0, w.share()
	ran, waited := now.ran-first.ran, now.waited-first.waited
	if ran+waited >= minCPUTime {
		share = waited.Seconds() / (ran + waited).Seconds()
	}
	switch {
	case told == 0 && share < lacksCPU, told > 0 && share >= hasCPU &&
		math.Abs(share-told) < newsOfCPU:
		return false
	case share < hasCPU:
		share = 0
		w.log.Info("the agent has the CPU that it needs again")
	case told == 0:
		w.log.Warn("the agent lacks CPU: other processes, or a quota, leave its threads waiting",
			"share", share)
	}
	w.told.Store(math.Float64bits(share))
	return true
}
