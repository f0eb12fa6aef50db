package runtime

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
)

// A LatencyFunc returns the execution time of a query of the given batch size on a version. It must
// be safe for concurrent use.
type LatencyFunc func(v *models.Version, batchSize int) time.Duration

// Emulated is an executor that runs no model. A run waits for the time that a latency function
// returns and answers with zeros (for BYTES, empty strings) of the right shape; dimensions that
// the model leaves open are 1. It serves tests and the emulation of fleets. Its Info always says
// that it is emulated.
type Emulated struct{ latency LatencyFunc }

// NewEmulated returns an executor whose runs take as long as latency says.
func NewEmulated(latency LatencyFunc) *Emulated { return &Emulated{latency} }

// Info names the executor as emulated.
func (e *Emulated) Info() Info { return Info{Executor: "emulated", Provider: CPU, Threads: 1} }

// Load returns an emulated model; it reads no file.
func (e *Emulated) Load(ctx context.Context, v *models.Version) (Model, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("load %s: %w", v.Path, err)
	}
	return &emulatedModel{version: v, latency: e.latency}, nil
}

// maxOverrun bounds by how much one run shortens the next one. Go's timers wake a sleeping process
// up to a millisecond late; a longer delay means that the machine was busy.
const maxOverrun = 2 * time.Millisecond

type emulatedModel struct {
	version *models.Version
	latency LatencyFunc
	// overrun is by how much, in ns, the last run exceeded its latency. The next run is shorter by
	// this, so that the sum of the runs is right.
	overrun atomic.Int64

	closing sync.RWMutex // held shared by runs
	closed  bool
}

func (m *emulatedModel) Run(ctx context.Context, inputs []tensor.Tensor) (*Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if m.version.Roles != nil {
		return m.runRanked(ctx, [][]tensor.Tensor{inputs})
	}
	batch, err := checkInputs(m.version.Inputs, inputs, m.version.Batchless)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", m.version, err)
	}
	return m.emulate(ctx, batch)
}

// emulate is a run of a batch size.
func (m *emulatedModel) emulate(ctx context.Context, batch int) (*Result, error) {
	m.closing.RLock()
	defer m.closing.RUnlock()
	if m.closed {
		return nil, ErrClosed
	}
	start := time.Now()
	wait := m.latency(m.version, batch) - time.Duration(m.overrun.Swap(0))
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	m.overrun.Store(int64(min(time.Since(start)-wait, maxOverrun)))
	r := &Result{}
	for _, out := range m.version.Outputs {
		t, err := newZeros(out, batch, m.version.Batchless)
		if err != nil {
			return nil, fmt.Errorf("run %s: %w", m.version, err)
		}
		r.Outputs = append(r.Outputs, t)
	}
	r.Execution = time.Since(start)
	r.release = func() { clear(r.Outputs) }
	return r, nil
}

// newZeros returns a tensor for p at a batch size with all elements zero. Dimensions that the model
// leaves open are 1.
func newZeros(p models.TensorSpec, batch int, batchless bool) (tensor.Tensor, error) {
	shape, row := []int64{int64(batch)}, p.Shape[min(1, len(p.Shape)):]
	if batchless && len(p.Shape) > 0 || !p.HasRows() {
		shape, row = nil, p.Shape
	}
	for _, d := range row {
		if d == models.Dynamic {
			d = 1
		}
		shape = append(shape, d)
	}
	n, err := tensor.Elements(shape)
	if err != nil {
		return tensor.Tensor{}, fmt.Errorf("%q: %w", p.Name, err)
	}
	size := p.DataType.Size()
	if p.DataType == tensor.Bytes {
		size = 4 // the length of an empty string
	}
	if n > largestTensor/max(size, 1) {
		return tensor.Tensor{}, fmt.Errorf("%q of shape %v would take more than %d bytes", p.Name,
			shape, largestTensor)
	}
	return tensor.Tensor{
		Name: p.Name, DataType: p.DataType, Shape: shape, Data: make([]byte, n*size),
	}, nil
}

func (m *emulatedModel) Close() error {
	m.closing.Lock()
	defer m.closing.Unlock()
	m.closed = true
	return nil
}
