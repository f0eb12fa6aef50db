package runtime

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/runtime/isolate"
)

// A PartitionConfig says which cores of this machine a [Partition] has.
type PartitionConfig struct {
	// LanesConfig is that of its lanes; NewPartition sets Pins.
	LanesConfig
	// CPUs are the lanes' processors: Cores of them for each lane. nil pins nothing.
	CPUs [][]int
}

// A Partition is some cores of this machine and the lanes on them. A model that is to run there is
// placed there first. Partitions of a process are independent of each other. The methods may be
// called concurrently.
type Partition struct {
	*Lanes
	cores int
	cpus  [][]int
}

// NewPartition returns a partition whose lanes are idle. It needs no Close. The error says which
// processors cannot be used; without CPUs there is none.
func NewPartition(cfg PartitionConfig) (*Partition, error) {
	lanes, cores := max(1, cfg.Lanes), max(1, cfg.Cores)
	if cfg.CPUs != nil && len(cfg.CPUs) != lanes {
		return nil, fmt.Errorf("runtime: %d lanes have processors, want all %d", len(cfg.CPUs),
			lanes)
	}
	cfg.Pins = nil
	for lane, cpus := range cfg.CPUs {
		if len(cpus) != cores {
			return nil, fmt.Errorf("runtime: lane %d has %d processors, want %d", lane, len(cpus),
				cores)
		}
		// One for each thread: the caller's is on the first, ONNX Runtime's on the others.
		pin, err := isolate.NewPin(cpus[:1])
		if err == nil && cores > 1 {
			_, err = isolate.NewPin(cpus)
		}
		if err != nil {
			return nil, fmt.Errorf("runtime: lane %d: %w", lane, err)
		}
		cfg.Pins = append(cfg.Pins, pin)
	}
	return &Partition{Lanes: NewLanes(cfg.LanesConfig), cores: cores, cpus: cfg.CPUs}, nil
}

// Size returns how many lanes there are.
func (p *Partition) Size() int { return p.lanes }

// Cores returns how many cores each lane has.
func (p *Partition) Cores() int { return p.cores }

// CPUs returns the lanes' processors; nil if they are not pinned.
func (p *Partition) CPUs() [][]int { return p.cpus }

// Place returns the model as queries on this partition name it: with a session for each number of
// cores and, where a run has several threads and they are pinned, for each lane. It blocks while
// sessions are made. Where model itself will do, nothing is loaded. [Warm] should follow.
//
// The caller closes the result, before model. That does not close model.
func (p *Partition) Place(ctx context.Context, model Model) (Model, error) {
	resizable, ok := model.(resizable)
	if !ok { // an emulated one takes as long as it is told
		return &placedModel{sessions: []Model{model}}, nil
	}
	each := []threads{{count: p.cores}}
	if p.cores > 1 && p.cpus != nil {
		each = nil
		for _, cpus := range p.cpus {
			each = append(each, threads{count: p.cores, cpus: cpus})
		}
	}
	m := &placedModel{}
	for _, t := range each {
		if resizable.suitsThreads(t) {
			m.sessions = append(m.sessions, model)
			continue
		}
		s, err := resizable.withThreads(ctx, t)
		if err != nil {
			return nil, errors.Join(err, m.Close())
		}
		m.sessions, m.owned = append(m.sessions, s), append(m.owned, s)
	}
	return m, nil
}

// threads are the threads of one run of a model: their number, and the processors of those that
// ONNX Runtime starts, which are all but the caller's.
type threads struct {
	count int
	cpus  []int // by thread, the caller's first; nil: wherever the system wants
	// started are the threads that ONNX Runtime started for the session; nil: none.
	started *startedThreads
}

// A resizable model can run with other threads than it was loaded for.
type resizable interface {
	Model
	// suitsThreads reports whether the model's runs have these threads.
	suitsThreads(t threads) bool
	// withThreads loads the model's version once more, for runs with these threads.
	withThreads(ctx context.Context, t threads) (Model, error)
}

// A placedModel model is a model as it runs on a partition.
type placedModel struct {
	sessions []Model // by lane; a single one holds for all lanes
	owned    []Model
	closing  sync.Once
}

// Run implements [Model].
func (m *placedModel) Run(ctx context.Context, inputs []tensor.Tensor) (*Result, error) {
	return m.sessions[0].Run(ctx, inputs)
}

// Close implements [Model].
func (m *placedModel) Close() (err error) {
	m.closing.Do(func() {
		for _, s := range m.owned {
			err = errors.Join(err, s.Close())
		}
	})
	return err
}

// sessionFor returns the session for a lane's runs.
func (m *placedModel) sessionFor(lane int) Model { return m.sessions[min(lane, len(m.sessions)-1)] }

// A Spread is a model that runs on several partitions of a process, on each with sessions for the
// cores of its lanes. Its methods may be called concurrently.
type Spread struct {
	Model    // as it was loaded: where nothing else was placed
	changing sync.Mutex
	closed   bool // guarded by changing
	on       atomic.Pointer[map[*Partition]Model]
}

// NewSpread returns the model as it is on all partitions. It owns the model.
func NewSpread(model Model) *Spread {
	s := &Spread{Model: model}
	s.on.Store(&map[*Partition]Model{})
	return s
}

// Place makes the sessions for a partition, unless there are some or the model is closed. It blocks
// meanwhile.
func (s *Spread) Place(ctx context.Context, p *Partition) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	on := maps.Clone(*s.on.Load())
	if s.closed || on[p] != nil {
		return nil
	}
	m, err := p.Place(ctx, s.Model)
	if err != nil {
		return err
	}
	on[p] = m
	s.on.Store(&on)
	return nil
}

// On returns the model for queries on a partition's lanes.
func (s *Spread) On(p *Partition) Model {
	if m := (*s.on.Load())[p]; m != nil {
		return m
	}
	return s.Model
}

// Leave closes the sessions of a partition, which must not run the model any more.
func (s *Spread) Leave(p *Partition) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	on := maps.Clone(*s.on.Load())
	m := on[p]
	delete(on, p)
	s.on.Store(&on)
	if m == nil {
		return nil
	}
	return m.Close()
}

// Close closes the sessions of all partitions, and the model.
func (s *Spread) Close() error {
	s.changing.Lock()
	s.closed = true
	s.changing.Unlock()
	var errs []error
	for p := range *s.on.Load() {
		errs = append(errs, s.Leave(p))
	}
	return errors.Join(append(errs, s.Model.Close())...)
}

// A pin keeps the threads of a lane's runs on its processors.
type pin struct {
	*isolate.Pin
	lane   int
	told   func(lane int, err error)
	failed sync.Once
}

// A threadCounter model says how many threads its runs have. One of a partition or an ensemble does
// not.
type threadCounter interface{ threadCount() int }

// worthApart is how long a run takes at least, for each that may run beside it, that is kept on
// another processor than those: that takes about a hundredth of this time.
const worthApart = 100 * time.Microsecond

// apart keeps the runs of all lanes of the process that have one thread on different processors.
var apart = sync.OnceValue(isolate.NewApart)

// runOnLane calls f with the model as it is on c's lane, on whose processors f then runs.
func (l *Lanes) runOnLane(c *caller, model Model, f func(Model) (*Result, error)) (*Result, error) {
	if m, ok := model.(*placedModel); ok {
		model = m.sessionFor(c.Lane())
	}
	s, _ := model.(threadCounter)
	switch {
	case l.pins != nil:
		p := l.pins[c.Lane()]
		if err := p.Enter(); err == nil {
			defer p.Leave()
		} else if p.told != nil {
			p.failed.Do(func() { p.told(p.lane, err) })
		}
	case s != nil && s.threadCount() == 1 &&
		c.Estimate >= worthApart*time.Duration(l.lanes*l.cores):
		thread := apart().Enter()
		defer apart().Leave(thread)
	}
	return f(model)
}

// withThreads implements [resizable].
func (e *ensembleModel) withThreads(ctx context.Context, t threads) (Model, error) {
	other := *e
	other.parts, other.steps = nil, slices.Clone(e.steps)
	for _, part := range e.parts {
		m, err := part.(resizable).withThreads(ctx, t)
		if err != nil {
			return nil, errors.Join(err, other.Close())
		}
		other.parts = append(other.parts, m)
		for i := range other.steps {
			if e.steps[i].model == part {
				other.steps[i].model = m
			}
		}
	}
	return &other, nil
}

// suitsThreads implements [resizable].
func (e *ensembleModel) suitsThreads(t threads) bool {
	return !slices.ContainsFunc(e.parts, func(m Model) bool {
		r, ok := m.(resizable)
		return ok && !r.suitsThreads(t)
	})
}
