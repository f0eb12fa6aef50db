package runtime

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/runtime/queue"
	"github.com/muster-serve/muster/runtime/queue/merge"
)

// A kind is the admitted queries that may run together.
type kind struct {
	merge.Kind
	model   Model
	profile names.ModelKey
	shapes  [][]int64 // of the inputs; the batch sizes do not count
	users   int       // admitted queries
}

// A latencies predicts the runs of a kind. The lanes' mutex is held during its calls.
type latencies struct {
	estimator Estimator
	profile   names.ModelKey
}

// Mean implements [merge.Latency].
func (e *latencies) Mean(batch int) time.Duration { return e.estimator.Estimate(e.profile, batch) }

// P80 implements [merge.Latency].
func (e *latencies) P80(batch int) time.Duration {
	const share = 0.8416 / normal90 // of the way from the mean to the 90 % quantile, where normal
	mean := e.Mean(batch)
	return mean + time.Duration(share*float64(max(0, e.estimator.High(e.profile, batch)-mean)))
}

// Merging implements [merge.Query].
func (t *turn) Merging() (of *merge.Kind, batch int, group *merge.Group) {
	if t.kind == nil {
		return nil, t.batch, nil
	}
	return &t.kind.Kind, t.batch, t.group
}

// unkind makes t a query that runs alone.
func (l *Lanes) unkind(t *turn) {
	if t.kind != nil {
		t.kind.users--
	}
	l.groups.Leave(t.group)
	t.kind, t.group = nil, nil
}

// kindOf sets t.kind, which stays nil if the query runs alone.
func (l *Lanes) kindOf(t *turn, q *Query) {
	if !q.Merge.Merges() || q.Background {
		return
	}
	unused := -1
	for i, k := range l.kinds {
		if k.model == q.Model && k.profile == q.Profile && k.alike(q.Inputs) {
			k.Policy, k.Largest = q.Merge, q.LargestBatch
			k.users++
			t.kind = k
			return
		}
		if k.users == 0 {
			unused = i
		}
	}
	k := &kind{model: q.Model, profile: q.Profile, users: 1}
	k.Policy, k.Largest = q.Merge, q.LargestBatch
	k.Latency = &latencies{l.estimator, q.Profile}
	for _, in := range q.Inputs {
		k.shapes = append(k.shapes, slices.Clone(in.Shape))
	}
	if unused < 0 {
		l.kinds = append(l.kinds, k)
	} else {
		l.kinds[unused] = k
	}
	t.kind = k
}

// alike reports whether inputs have the kind's shapes but for the batch size.
func (k *kind) alike(inputs []tensor.Tensor) bool {
	return slices.EqualFunc(inputs, k.shapes, func(in tensor.Tensor, shape []int64) bool {
		return len(in.Shape) == len(shape) && len(shape) > 0 &&
			slices.Equal(in.Shape[1:], shape[1:])
	})
}

// work estimates how long all waiting queries take.
func (l *Lanes) work() time.Duration {
	work := l.queue.Estimate() - l.saved
	for _, k := range l.kinds {
		work -= k.Saved()
	}
	return work
}

// due returns when t's answer is due; merge.Never if it has no target.
func (t *turn) due() time.Duration {
	if t.LatestStart == queue.NoTarget {
		return merge.Never
	}
	return t.LatestStart + t.Estimate
}

// A mergedRun is several queries that run as one, on the goroutine of the first.
type mergedRun struct {
	members []*turn // the first may be cancelled as any other: its goroutine goes on
	batch   int
	copied  chan struct{} // closed when the members' inputs are not read any more

	// Guarded by the lanes' mutex. ctx ends when no member is left.
	ctx    context.Context
	cancel context.CancelFunc
	gone   []bool // by member: its caller does not wait any more
	left   int    // members that are not gone
}

// merge makes queries, which have just left the queue, one run.
func (l *Lanes) merge(run []*turn) {
	m := &mergedRun{
		members: slices.Clone(run), copied: make(chan struct{}), gone: make([]bool, len(run)),
		left: len(run),
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	for _, t := range run {
		t.merged = m
		m.batch += t.batch
	}
}

// abandon notes that the caller of a member does not wait any more.
func (m *mergedRun) abandon(t *turn) {
	i := slices.Index(m.members, t)
	if m.gone[i] {
		return
	}
	m.gone[i] = true
	if m.left--; m.left == 0 {
		m.cancel()
	}
}

// runMerged runs t, the first member of a run, with the others, and hands them their results. It
// returns nil if the run failed: the reason may be in one member, so each then runs alone, the
// first one at once by its caller and the others when they get a lane. Those that have become late
// meanwhile, and are to be rejected then, do not.
func (l *Lanes) runMerged(ctx context.Context, t *turn, q *Query) (result *Result) {
	m := t.merged
	defer m.cancel()
	stop := context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		m.abandon(t)
	})
	defer stop()
	alone, spread, due := t.Estimate, t.spread, t.due()
	l.mu.Lock()
	t.Estimate = t.kind.Latency.Mean(m.batch)
	t.spread = l.estimator.High(q.Profile, m.batch) - t.Estimate
	l.mu.Unlock()

	var parts []*Result
	defer func() { // also if the model panics
		l.mu.Lock()
		defer l.mu.Unlock()
		now := l.now()
		t.merged = nil
		late := due < now
		for i, member := range m.members {
			if i > 0 {
				late = late || member.due() < now
			}
			switch {
			case i == 0:
			case parts != nil && m.gone[i]:
				parts[i].Release()
			case parts != nil:
				member.result = parts[i]
				l.leave(member)
				close(member.granted)
			case !m.gone[i]:
				member.merged = nil
				l.unkind(member)
				if member.rejects && member.LatestStart < now {
					l.refuseTurn(member, l.late(member, now))
				} else {
					l.push(member, now)
				}
			}
		}
		if parts == nil {
			t.Estimate, t.spread = alone, spread
			l.serve(now) // another lane may be idle
			return
		}
		t.kind.Ran(m.batch, late)
	}()
	whole, err := l.run(t, q.Model, func(model Model) (*Result, error) {
		if j, ok := model.(joining); ok && j.joins() {
			defer close(m.copied)
			return j.runJoined(m.ctx, m.inputs())
		}
		inputs := l.memory[t.lane].concatenate(m)
		close(m.copied)
		return model.Run(m.ctx, inputs)
	})
	if err != nil {
		return nil
	}
	if parts, err = split(whole, m); err != nil {
		whole.Release()
		return nil
	}
	for _, part := range parts[1:] {
		part.Lane = t.lane
	}
	return parts[0]
}

// A joining model may run queries as one without their inputs lying one behind the other.
type joining interface {
	Model
	joins() bool
	// runJoined is [Model.Run] for queries whose inputs are alike but for the batch size, if joins
	// returns true.
	runJoined(ctx context.Context, queries [][]tensor.Tensor) (*Result, error)
}

// inputs returns the members' inputs.
func (m *mergedRun) inputs() (all [][]tensor.Tensor) {
	for _, t := range m.members {
		all = append(all, t.inputs)
	}
	return all
}

// A memory is where a lane puts the inputs of merged queries one behind the other. It is reused.
type memory struct {
	inputs []tensor.Tensor
	shapes []int64
	data   [][]byte // by input
}

// concatenate returns the inputs of m's members as those of one query.
func (b *memory) concatenate(m *mergedRun) []tensor.Tensor {
	first := m.members[0].inputs
	b.inputs, b.shapes = append(b.inputs[:0], first...), b.shapes[:0]
	for len(b.data) < len(first) {
		b.data = append(b.data, nil)
	}
	for i := range first {
		size := 0
		for _, t := range m.members {
			size += len(t.inputs[i].Data)
		}
		data := slices.Grow(b.data[i][:0], size)
		for _, t := range m.members {
			data = append(data, t.inputs[i].Data...)
		}
		b.data[i] = data
		at := len(b.shapes)
		b.shapes = append(append(b.shapes, int64(m.batch)), first[i].Shape[1:]...)
		b.inputs[i].Shape, b.inputs[i].Data = b.shapes[at:len(b.shapes):len(b.shapes)], data
	}
	return b.inputs
}

// split returns each member's part of a result, whose outputs are parts of those of whole. The last
// Release of a part releases whole. The error says which output has not a row for each item.
func split(whole *Result, m *mergedRun) ([]*Result, error) {
	rows := make([]int, len(m.members))
	for k, t := range m.members {
		rows[k] = t.batch
	}
	n := len(whole.Outputs)
	outputs := make([]tensor.Tensor, len(m.members)*n)
	for i, out := range whole.Outputs {
		parts, err := tensor.Split(out, rows)
		if err != nil {
			return nil, err
		}
		for k, part := range parts {
			outputs[k*n+i] = part
		}
	}
	held := &atomic.Int32{}
	held.Store(int32(len(m.members)))
	release := func() {
		if held.Add(-1) == 0 {
			whole.Release()
		}
	}
	parts := make([]*Result, len(m.members))
	for k := range parts {
		parts[k] = &Result{
			Outputs: outputs[k*n : (k+1)*n : (k+1)*n], Execution: whole.Execution,
			Queries: len(m.members), Items: m.batch, Joined: k > 0, release: release,
		}
	}
	return parts, nil
}
