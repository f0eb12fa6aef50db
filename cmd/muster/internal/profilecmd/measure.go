//go:build linux && cgo

package profilecmd

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/isolate"
)

// A subject is a model under measurement, loaded for runs of one thread.
type subject struct {
	version  *models.Version
	model    runtime.Model
	checksum string
	batches  []int
	inputs   [][][]tensor.Tensor // by batch, several with other values
}

// variety is about how many rows the inputs of a batch size have together, so that lookups of one
// run do not find in the cache what the run before has fetched.
const variety = 4096

// newSubject loads a model, with inputs of the batch sizes. The caller closes the model.
func newSubject(ctx context.Context, x runtime.Executor, v *models.Version,
	batches []int) (*subject,
	error) {
	model, err := x.Load(ctx, v)
	if err != nil {
		return nil, err
	}
	s := &subject{version: v, model: model, batches: batches}
	r := rand.New(rand.NewPCG(1, uint64(v.Number)))
	for _, batch := range batches {
		var several [][]tensor.Tensor
		for range min(64, 1+variety/batch) {
			in, err := runtime.RandomInputs(r, v, batch)
			if err != nil {
				model.Close()
				return nil, err
			}
			several = append(several, in)
		}
		s.inputs = append(s.inputs, several)
	}
	return s, nil
}

// run runs one query of a batch size, which is an index.
func (s *subject) run(ctx context.Context, batch, n int) error {
	result, err := s.model.Run(ctx, s.inputs[batch][n%len(s.inputs[batch])])
	if err != nil {
		return err
	}
	result.Release()
	return nil
}

// A sample is one run.
type sample struct {
	cpu time.Duration // of its thread
	// beside is the least part of the run in which this worker and each other one, also one that is
	// off, had its processor.
	beside float64
}

// A pinnedWorker worker is a thread that stays on a processor and runs queries of a subject, in the
// phases in which it is on.
type pinnedWorker struct {
	subject *subject
	batches int // of the subject's: that many, the smallest
	pin     *isolate.Pin
	cpu     int
	number  int // among the workers
	on      func(phase, round int) bool
	// rounds are the samples by phase, round and batch size. Its thread owns it until all are done.
	rounds [][][][]sample

	thread atomic.Int32 // its id; 0 until it runs
	at     atomic.Int64 // the turn for which it is ready
	done   atomic.Int64 // the turn in which it has run a query, or has none to run
}

// threadTime is the processor time of a thread.
func threadTime(thread int32) time.Duration {
	const perThread, scheduler = 4, 2 // as the kernel's CPUCLOCK_PERTHREAD_MASK and CPUCLOCK_SCHED
	var t unix.Timespec
	if err := unix.ClockGettime(^thread<<3|perThread|scheduler, &t); err != nil {
		return 0 // the thread has ended
	}
	return time.Duration(t.Nano())
}

// A measurement is workers that run side by side.
type measurement struct {
	workers []*pinnedWorker
	phases  int
	least   time.Duration // of a turn
	ended   atomic.Int64  // the last turn that has ended

	watch   *watch
	links   []*link
	apart   atomic.Int64 // the last turn in which processors were found apart
	verdict atomic.Int32 // of the last look
}

// measurePhases lets workers run in phases, rounds times each. In a round each worker runs its
// batch sizes in an order of the round's, and each of them in all phases, one right after the
// other: what else changes on the machine, and on the machine under a virtual one, changes all
// phases alike. A turn (a batch size in a phase) lasts until each worker that is on has run a
// query, and at least least. If processors were apart before or after a batch size, it runs again,
// as long as the watch has time to wait.
//
// Workers that are off keep their processors busy without touching memory. If they slept, the
// processor's frequency and what else the machine has to do there would not be as they are in the
// other phases, and "alone" would be beside that. For the same reason workers wait for each other
// without sleeping. measure blocks until all is done or ctx ends.
func measurePhases(ctx context.Context, workers []*pinnedWorker, phases, rounds int,
	least time.Duration,
	watch *watch) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	m := &measurement{
		workers: workers, phases: phases, least: least, watch: watch, links: watch.linksOf(workers),
	}
	defer context.AfterFunc(ctx, func() { m.ended.Store(math.MaxInt64) })()
	for i, w := range workers {
		w.number = i
		w.at.Store(0)
		w.done.Store(0)
		if w.rounds == nil {
			w.rounds = make([][][][]sample, phases)
		}
	}
	var run sync.WaitGroup
	for _, w := range workers {
		run.Go(func() {
			if err := m.runWorker(ctx, w, rounds); err != nil {
				cancel(err)
			}
		})
	}
	run.Wait()
	return context.Cause(ctx)
}

// runWorker is a worker's thread.
func (m *measurement) runWorker(ctx context.Context, w *pinnedWorker, rounds int) error {
	if err := w.pin.Enter(); err != nil {
		return err
	}
	defer w.pin.Leave()
	w.thread.Store(int32(unix.Gettid()))
	steps := 0
	for _, o := range m.workers {
		steps = max(steps, o.batches)
	}
	turn := int64(0)
	for range rounds {
		round := len(w.rounds[0])
		for phase := range m.phases {
			w.rounds[phase] = append(w.rounds[phase], make([][]sample, w.batches))
		}
		// Each worker has an order and inputs of its own: two that looked up the same rows at the
		// same time would find in the cache what the other has just fetched.
		r := rand.New(rand.NewPCG(uint64(round), uint64(w.number)))
		order := r.Perm(w.batches)
		for step := range steps {
			batch := order[step%w.batches]
			if ok, err := m.step(ctx, w, &turn, round, step, batch, r); err != nil || !ok {
				return err // if there is none, ctx has ended, and the caller tells of it
			}
		}
	}
	return nil
}

// step runs a batch size in all phases, again and again until the processors were together or there
// is no more time to wait for that; false: ctx has ended.
func (m *measurement) step(ctx context.Context, w *pinnedWorker, turn *int64, round, step,
	batch int,
	r *rand.Rand) (bool, error) {
	for {
		before, ok := m.checkProcessors(ctx, w, turn, time.Now())
		if !ok {
			return false, nil
		}
		if before == wait {
			time.Sleep(nap)
			continue
		}
		begun, got := time.Now(), make([][]sample, m.phases)
		for i := range m.phases {
			phase := i
			if (round+step)%2 == 1 { // so that a drift changes the first and the last alike
				phase = m.phases - 1 - i
			}
			if !m.awaitNextTurn(ctx, w, turn) {
				return false, nil
			}
			if !w.on(phase, round) {
				w.done.Store(*turn)
				spin(&m.ended, *turn)
				continue
			}
			var err error
			if got[phase], err = m.runTurn(ctx, w, *turn, batch, r); err != nil {
				return false, err
			}
		}
		after, ok := m.checkProcessors(ctx, w, turn, begun)
		if !ok {
			return false, nil
		}
		if after == wait {
			time.Sleep(nap)
			continue
		}
		for phase, samples := range got {
			of := &w.rounds[phase][round][batch]
			*of = append(*of, samples...)
		}
		if w == m.workers[0] {
			m.watch.countStep(before == unfit || after == unfit)
		}
		return true, nil
	}
}

// awaitNextTurn is the beginning of the next turn: it waits until all workers are ready for it;
// false: ctx has ended.
func (m *measurement) awaitNextTurn(ctx context.Context, w *pinnedWorker, turn *int64) bool {
	*turn++
	w.at.Store(*turn)
	return m.meetWorkers(ctx, *turn)
}

// meetWorkers waits, without sleeping, until all workers are ready for a turn; false: ctx has
// ended.
func (m *measurement) meetWorkers(ctx context.Context, turn int64) bool {
	for _, o := range m.workers {
		for o.at.Load() < turn && ctx.Err() == nil {
		}
	}
	return ctx.Err() == nil
}

// runTurn runs queries of a batch size until every worker has run one and the time is over.
func (m *measurement) runTurn(ctx context.Context, w *pinnedWorker, turn int64, batch int,
	r *rand.Rand) (got []sample, err error) {
	s, began, own := w.subject, time.Now(), w.thread.Load()
	before := make([]time.Duration, len(m.workers)) // the clocks, then what they have gone on
	for {
		start := time.Now() // before the clocks are read, and after: no part is above 1
		for i, o := range m.workers {
			before[i] = threadTime(o.thread.Load())
		}
		cpu := threadTime(own)
		if err := s.run(ctx, batch, r.Int()); err != nil {
			return nil, fmt.Errorf("%s, batch size %d: %w", s.version, s.batches[batch], err)
		}
		one := sample{cpu: threadTime(own) - cpu, beside: 1}
		for i, o := range m.workers {
			before[i] = threadTime(o.thread.Load()) - before[i]
		}
		took := time.Since(start)
		for _, had := range before {
			one.beside = min(one.beside, float64(had)/float64(took))
		}
		if m.ended.Load() >= turn {
			return got, nil // another worker has ended it meanwhile, and did not run to the end
		}
		got = append(got, one)
		w.done.Store(turn)
		if time.Since(began) >= m.least && !slices.ContainsFunc(m.workers,
			func(o *pinnedWorker) bool {
				return o.done.Load() < turn
			}) {
			m.ended.Store(turn)
			return got, nil
		}
	}
}
