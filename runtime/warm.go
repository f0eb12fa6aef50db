package runtime

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime/lane"
)

// Warm runs a loaded model until its runs are fast: it runs queries of the batch sizes in the
// version's configuration, with random inputs within the id bounds. It blocks until they are done.
//
// Warm disturbs the models that serve as little as it can. It runs background queries on the lanes.
// If rows are independent, it splits a batch into small queries with pauses between them, and ends
// a batch size after 20 ms of execution. With a context of [Lanes.Considerate] it pauses only while
// queries come.
//
// A run that fails may have failed for a shape that Warm has chosen. Then Warm goes on with the
// next batch size, and its error wraps a [ShapeError] in the end.
func Warm(ctx context.Context, l *Lanes, m Model, v *models.Version) error {
	if err := warmModel(ctx, l, m, v); err != nil {
		return fmt.Errorf("warm %s: %w", v.Path, err)
	}
	return nil
}

const (
	// warmPiece is about how long one of the small queries keeps a lane. Chosen: a query that comes
	// meanwhile hardly waits.
	warmPiece = 250 * time.Microsecond
	// warmPause is the ratio of a pause to the query before it: a warm-up takes a tenth of a lane's
	// time. Chosen: that is less than the spare time of a fleet that is not overloaded, and a model
	// is warm within seconds.
	warmPause = 9
	// warmEnough is the execution time after which a batch size is warm. More random lookups would
	// only touch pages that earlier ones have touched.
	warmEnough = 20 * time.Millisecond
)

// A ShapeError means that a model could not run with inputs of shapes that nobody has said: the
// queries of its clients may have others.
type ShapeError struct {
	// Open are the inputs with dimensions that the model leaves open, other than the batch size.
	Open []string
	Err  error
}

func (e *ShapeError) Error() string { return e.Err.Error() }
func (e *ShapeError) Unwrap() error { return e.Err }

// shapeError returns the error of a warm-up run as a [ShapeError] if it may be for the shapes of
// the inputs; else nil. An index that is out of bounds is not for the batch size.
func shapeError(ctx context.Context, err error, v *models.Version) *ShapeError {
	e := &ShapeError{Err: err}
	for i := range v.Inputs {
		p := &v.Inputs[i]
		row := p.Shape
		if !v.Batchless && p.HasRows() {
			row = row[min(1, len(row)):]
		}
		if !p.Optional && slices.Contains(row, models.Dynamic) {
			e.Open = append(e.Open, p.Name)
		}
	}
	var device *DeviceError
	var index *IndexError
	var cut *CutError
	if ctx.Err() != nil || errors.Is(err, ErrClosed) || errors.Is(err, ErrDraining) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
		errors.As(err, &device) || errors.As(err, &cut) ||
		errors.As(err, &index) && len(e.Open) == 0 {
		return nil
	}
	return e
}

func warmModel(ctx context.Context, l *Lanes, m Model, v *models.Version) error {
	var failed *ShapeError
	r := newRandom(v)
	var speed lane.Line
	for _, batch := range v.Config.WarmUp {
		var spent time.Duration
		for rest := batch; rest > 0 && spent < warmEnough; {
			n := rest
			if v.Config.RowsIndependent {
				n = min(n, max(1, speed.RowsWithin(warmPiece)))
			}
			inputs, err := RandomInputs(r, v, n)
			if err != nil {
				return err
			}
			result, err := l.Do(ctx, Query{
				Model: m, Inputs: inputs, BatchSize: n, Background: true,
			})
			if err != nil {
				err = fmt.Errorf("run batch size %d: %w", n, err)
				e := shapeError(ctx, err, v)
				if e == nil {
					return err
				}
				if failed == nil {
					failed = e
				}
				break
			}
			result.Release()
			speed.Observe(n, result.Execution)
			spent += result.Execution
			rest -= n
			if err := Pause(ctx, warmPause*result.Execution); err != nil {
				return err
			}
		}
	}
	if failed != nil {
		return failed
	}
	return nil
}

// newRandom returns the source of random inputs of a version.
func newRandom(v *models.Version) *rand.Rand {
	return rand.New(rand.NewPCG(uint64(v.Number), 0)) // any fixed seed
}

// servingModels is the key of a context's lanes.
type servingModels struct{}

const (
	// fewQueries is how many queries within calmTime are so few that loads go on at full speed: a
	// load is sooner done then, and disturbs one or two of them.
	fewQueries = 10
	calmTime   = time.Second
)

// An arrivalTimes notes when the last queries came that were not background ones.
type arrivalTimes struct {
	at   [fewQueries]time.Duration // 0: never
	next int                       // the place of the oldest one
}

// noteArrival notes that a query came.
func (a *arrivalTimes) noteArrival(now time.Duration) {
	a.at[a.next] = max(now, 1)
	a.next = (a.next + 1) % len(a.at)
}

// Considerate returns a context with which loads pause between their pieces only while [Lanes.Calm]
// is false: as long as hardly anybody is served, as when an agent starts, hardly anybody is
// disturbed.
func (l *Lanes) Considerate(ctx context.Context) context.Context {
	return context.WithValue(ctx, servingModels{}, l)
}

// Pause blocks for d, or until ctx ends, whose error it then returns. With a context of
// [Lanes.Considerate] it returns at once if these are calm.
func Pause(ctx context.Context, d time.Duration) error {
	if isCalm(ctx) {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// isCalm reports whether a context is one of [Lanes.Considerate], whose lanes are calm.
func isCalm(ctx context.Context) bool {
	l, ok := ctx.Value(servingModels{}).(interface{ Calm() bool })
	return ok && l.Calm()
}

// Calm reports whether less than ten queries came within the last second, not counting background
// queries.
func (l *Lanes) Calm() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	oldest := l.asked.at[l.asked.next]
	return oldest == 0 || l.sinceStart()-oldest > calmTime
}

// RandomInputs returns inputs of v with random values, without optional ones. Dimensions that the
// model leaves open are 1.
func RandomInputs(r *rand.Rand, v *models.Version, batch int) ([]tensor.Tensor, error) {
	var inputs []tensor.Tensor
	if v.Roles != nil {
		return randomRanked(v, batch, func(p models.TensorSpec, first int) (tensor.Tensor, error) {
			p.Shape = slices.Clone(p.Shape)
			if len(p.Shape) > 0 && p.Shape[0] == models.Dynamic {
				p.Shape[0] = int64(first)
			}
			in, err := newZeros(p, first, true)
			if err != nil {
				return in, fmt.Errorf("input %w", err)
			}
			fill(r, p, &in)
			return in, nil
		})
	}
	for _, p := range v.Inputs {
		if p.Optional {
			inputs = append(inputs, tensor.Tensor{})
			continue
		}
		in, err := newZeros(p, batch, v.Batchless)
		if err != nil {
			return nil, fmt.Errorf("input %w", err)
		}
		fill(r, p, &in)
		inputs = append(inputs, in)
	}
	return inputs, nil
}

// fill sets t's elements to random values: integers within the port's id bounds (0 if it has none),
// floats in [0, 1). 16-bit floats and strings stay 0 and empty.
func fill(r *rand.Rand, p models.TensorSpec, t *tensor.Tensor) {
	size := t.DataType.Size()
	if size == 0 {
		return
	}
	// run is how many consecutive elements have the same index in the second dimension.
	run := 1
	if len(t.Shape) > 2 {
		for _, d := range t.Shape[2:] {
			run *= int(d)
		}
	}
	bounds := p.Bounds()
	for i := 0; i < len(t.Data)/size; i++ {
		to := t.Data[i*size:]
		switch t.DataType {
		case tensor.FP32:
			binary.LittleEndian.PutUint32(to, math.Float32bits(r.Float32()))
			continue
		case tensor.FP64:
			binary.LittleEndian.PutUint64(to, math.Float64bits(r.Float64()))
			continue
		case tensor.FP16, tensor.BF16:
			continue
		}
		if len(bounds) == 0 {
			continue
		}
		bound := bounds[(i/run)%len(bounds)]
		if bits := 8*size - 1; bits < 63 {
			bound = min(bound, 1<<bits)
		}
		var id [8]byte
		binary.LittleEndian.PutUint64(id[:], uint64(r.Int64N(max(bound, 1))))
		copy(to[:size], id[:])
	}
}
