package election

import (
	"flag"
	"slices"
	"testing"
	"time"
)

var (
	schedules = flag.Int("schedules", 1000, "how many random schedules to run")
	seedFlag  = flag.Uint64("seed", 0,
		"the one seed to run and trace; 0: as many as -schedules says")
)

const (
	chaos = 7 * time.Second
	bound = 2 * time.Second // until one leads, once it is quiet
)

// runSchedule lets faults happen to a few agents, then none, and returns how long it
// was quiet until they agreed, or the first broken promise. Everything follows
// from the seed.
func runSchedule(seed uint64, m *mutant, trace func(string, ...any)) (agreed time.Duration,
	fault error) {
	w := newWorld(seed)
	w.mutant, w.trace = m, trace
	r := w.rng
	for range 1 + r.IntN(6) {
		role := []Role{Never, May, May, May, May, May, May, Must}[r.IntN(8)]
		p := w.add(RankOf(role, r.IntN(3) == 0, r.IntN(4)))
		p.rate = 0.9 + 0.2*r.Float64()
		p.disk = uint64(r.IntN(3))
		if r.IntN(4) != 0 {
			p.joinWait = time.Second
		}
		w.after(w.between(0, time.Second), func() { w.start(p) })
	}
	w.wild = r.IntN(4) == 0
	w.loss = []float64{0, 0.02, 0.1, 0.3}[r.IntN(4)]
	w.delay = []time.Duration{
		time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond, 300 * time.Millisecond,
	}[r.IntN(4)]
	for range r.IntN(12) {
		w.after(w.between(time.Second, chaos), w.randomFault)
	}
	for range r.IntN(6) { // the last moment is the hardest
		w.after(w.between(chaos-500*time.Millisecond, chaos), w.randomFault)
	}
	w.run(chaos)

	// Quiet: processes run or are down, and messages get through, also those that are on their way.
	w.heal()
	w.hasten()
	w.loss = []float64{0, 0.1}[r.IntN(2)]
	w.delay = min(w.delay, 50*time.Millisecond)
	w.lastAt = [8][8]time.Duration{}
	everyone := r.IntN(8) == 0 // has lost power
	for _, p := range w.procs {
		w.thaw(p)
		if everyone {
			w.stop(p, false)
		}
		if !p.running && (everyone || r.IntN(2) == 0) {
			w.start(p)
		}
	}
	w.note("quiet")
	const step = 20 * time.Millisecond
	var err error
	for quiet := time.Duration(0); quiet <= bound; quiet += step {
		w.run(chaos + quiet)
		if err = w.agreed(); err != nil {
			agreed = quiet + step
		}
	}
	if err != nil {
		w.failf("%w, %v after quiet", err, bound)
	}
	changes := w.changes
	w.run(chaos + bound + time.Second)
	if err := w.agreed(); err != nil {
		w.failf("%w, though it had been agreed", err)
	}
	if w.changes != changes {
		w.failf("the leader changed while it was quiet")
	}
	if err := w.resubmitted(); err != nil {
		w.failf("%w", err)
	}
	return agreed, w.fault
}

func (w *world) randomFault() {
	r := w.rng
	p := w.procs[r.IntN(len(w.procs))]
	for _, q := range w.procs { // whoever leads is the more interesting victim
		if q.leading && r.IntN(2) == 0 {
			p = q
		}
	}
	left := chaos - w.now
	switch r.IntN(11) {
	case 0, 1:
		w.stop(p, r.IntN(3) != 0)
		if r.IntN(3) != 0 {
			w.after(w.between(0, 2*time.Second), func() {
				if !p.running && w.now < chaos {
					w.start(p)
				}
			})
		}
	case 2, 3:
		w.freeze(p, min(left, w.between(time.Millisecond, 3*time.Second)), r.IntN(2) == 0)
	case 4:
		w.split()
	case 5:
		w.cutLink(r.IntN(len(w.procs)), r.IntN(len(w.procs)))
	case 6:
		w.heal()
	case 7:
		if p.running && !p.frozen && left > 2*time.Second {
			p.leaving = true
			w.note("%s resigns", p.id)
			w.step(p, Event{Kind: Resigned})
		}
	case 8:
		w.cutOneWayLink(r.IntN(len(w.procs)), r.IntN(len(w.procs)))
	case 9:
		into := r.IntN(2) == 0
		w.note("cut %s, into it %v", p.id, into)
		w.cutOneWay(p, into)
	case 10:
		if p.running {
			w.refusing[p.index] = r.IntN(2) == 0
			w.note("streams of %s break, its host refuses others %v", p.id, w.refusing[p.index])
			w.breakStreams(p)
		}
	}
}

// TestSchedules checks after random faults that one agent leads within 2 s.
func TestSchedules(t *testing.T) {
	if *seedFlag != 0 {
		if _, err := runSchedule(*seedFlag, nil, t.Logf); err != nil {
			t.Error(err)
		}
		return
	}
	var agreed []time.Duration
	failed := 0
	for seed := uint64(1); seed <= uint64(*schedules) && failed < 10; seed++ {
		took, err := runSchedule(seed, nil, nil)
		if err != nil {
			t.Errorf("seed %d: %v (-run TestSchedules -seed %d -v shows what happened)", seed, err,
				seed)
			failed++
			continue
		}
		agreed = append(agreed, took)
	}
	if len(agreed) > 0 {
		slices.Sort(agreed)
		n := len(agreed)
		t.Logf("quiet until all agree, of %d: median %v, 99 %% %v, most %v", n, agreed[n/2],
			agreed[n*99/100], agreed[n-1])
	}
}
