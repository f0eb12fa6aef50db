package runtime

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/runtime/lane"
)

// A divisible model can run on one core of a lane while other queries run on the others.
type divisible interface {
	Model
	// onOneCore returns what runs the model on one core; nil if nothing does. It is closed with the
	// model.
	onOneCore() Model
}

// A class is the queries that may run together.
type class struct {
	lane.Class
	model  Model
	shapes [][]int64 // of the inputs; the batch sizes do not count
	roles  *roles.Roles
}

// classOf returns the class of a query; nil if it runs alone.
func (l *Lanes) classOf(q *Query) *lane.Class {
	if !q.Merge.Merges() || q.Background {
		return nil
	}
	unused := -1
	for i, c := range l.classes {
		if c.model == q.Model && c.Profile == q.Profile && c.isAlike(q.Inputs) {
			c.Policy, c.Largest = q.Merge, q.LargestBatch
			return &c.Class
		}
		if !c.IsUsed() {
			unused = i
		}
	}
	c := &class{model: q.Model, roles: q.Roles}
	c.Profile, c.Policy, c.Largest = q.Profile, q.Merge, q.LargestBatch
	for _, in := range q.Inputs {
		c.shapes = append(c.shapes, slices.Clone(in.Shape))
	}
	if unused < 0 {
		l.classes = append(l.classes, c)
	} else {
		l.classes[unused] = c
	}
	return &c.Class
}

// isAlike reports whether inputs have the class's shapes but for the batch size.
func (c *class) isAlike(inputs []tensor.Tensor) bool {
	return slices.EqualFunc(inputs, c.shapes, func(in tensor.Tensor, shape []int64) bool {
		if c.roles != nil && c.roles.IsIndex(in.Name) { // a dimension of it may count rows
			return len(in.Shape) == len(shape)
		}
		return len(in.Shape) == len(shape) && len(shape) > 0 &&
			slices.Equal(in.Shape[1:], shape[1:])
	})
}

// A mergedRun is several queries that run as one, on the goroutine of the first.
type mergedRun struct {
	members []*caller // the first may be cancelled as any other: its goroutine goes on
	rows    int
	users   int
	values  int
	work    int
	copied  chan struct{} // closed when the members' inputs are not read any more
	parts   []*Result     // of its result, by member; nil once a member has it
	ctx     context.Context
	cancel  context.CancelFunc // once nobody waits for any member
}

// newMergedRun makes callers, whose queries have just got a lane as one run, its members.
func newMergedRun(run *lane.Run) {
	m := &mergedRun{work: run.Rows, copied: make(chan struct{})}
	m.members = make([]*caller, len(run.Members))
	m.ctx, m.cancel = context.WithCancel(context.Background())
	for i, q := range run.Members {
		c := q.Owner.(*caller)
		m.members[i], c.merged = c, m
		m.rows, m.users, m.values = m.rows+c.rows, m.users+c.users, m.values+c.values
	}
}

// releaseMembers makes the members, whose run has ended, no members any more. The lanes' mutex is
// held.
func (m *mergedRun) releaseMembers() {
	for _, c := range m.members {
		c.merged = nil
	}
}

// runMerged runs c's query, the first of a run, with the others, and hands them their results. It
// returns nil and no error if the run has failed and c's query is to run alone.
func (l *Lanes) runMerged(c *caller, q *Query) (result *Result, err error) {
	m := c.merged
	defer m.cancel()
	stop := context.AfterFunc(c.ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if c.merged == m {
			l.step(l.sinceStart(), lane.Event{
				Kind: lane.Cancelled, Query: &c.Query, Cause: causeOf(c.ctx),
			})
		}
	})
	defer stop()
	whole, err := l.runOnLane(c, q.Model, func(model Model) (*Result, error) {
		if j, ok := model.(joiningModel); ok && j.canJoin() {
			defer close(m.copied)
			return j.runJoined(m.ctx, m.memberInputs())
		}
		inputs := l.memory[c.Lane()].concatenateInputs(m)
		close(m.copied)
		return model.Run(m.ctx, inputs)
	})
	if err == nil {
		if m.parts, err = split(whole, m, c.Lane()); err != nil {
			whole.Release()
		}
	}
	cause := causeOf(c.ctx)
	if err != nil {
		l.fail(c, cause)
		return nil, c.refusal
	}
	result = m.parts[0]
	l.endRun(c, result.Execution, cause)
	for _, part := range m.parts[1:] {
		if part != nil { // nobody waits for it
			part.Release()
		}
	}
	if cause != 0 {
		result.Release()
		return nil, c.refusal
	}
	return result, nil
}

// A joiningModel model may run queries as one without their inputs lying one behind the other.
type joiningModel interface {
	Model
	canJoin() bool
	// runJoined is [Model.Run] for queries whose inputs are alike but for the batch size, if joins
	// returns true.
	runJoined(ctx context.Context, queries [][]tensor.Tensor) (*Result, error)
}

// memberInputs returns the members' inputs.
func (m *mergedRun) memberInputs() (all [][]tensor.Tensor) {
	for _, c := range m.members {
		all = append(all, c.inputs)
	}
	return all
}

// A memory is where a lane puts the inputs of merged queries one behind the other. It is reused.
type memory struct {
	inputs []tensor.Tensor
	shapes []int64
	data   [][]byte // by input
}

// concatenateInputs returns the inputs of m's members as those of one query.
func (b *memory) concatenateInputs(m *mergedRun) []tensor.Tensor {
	first := m.members[0].inputs
	b.inputs, b.shapes = append(b.inputs[:0], first...), b.shapes[:0]
	for len(b.data) < len(first) {
		b.data = append(b.data, nil)
	}
	for i := range first {
		size := 0
		for _, c := range m.members {
			size += len(c.inputs[i].Data)
		}
		data := slices.Grow(b.data[i][:0], size)
		for _, c := range m.members {
			data = append(data, c.inputs[i].Data...)
		}
		b.data[i] = data
		at := len(b.shapes)
		b.shapes = append(append(b.shapes, int64(m.rows)), first[i].Shape[1:]...)
		b.inputs[i].Shape, b.inputs[i].Data = b.shapes[at:len(b.shapes):len(b.shapes)], data
	}
	return b.inputs
}

// split returns each member's part of a result, whose outputs are parts of those of whole. The last
// Release of a part releases whole. The error says which output has not a row for each item.
func split(whole *Result, m *mergedRun, on int) ([]*Result, error) {
	rows := make([]int, len(m.members))
	for k, c := range m.members {
		rows[k] = c.rows
	}
	n := len(whole.Outputs)
	outputs := make([]tensor.Tensor, len(m.members)*n)
	for i, out := range whole.Outputs {
		parts, err := partsOf(m.members[0].roles, out, rows)
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
			Lane: on, Queries: len(m.members), Items: m.rows, Joined: k > 0, release: release,
			Users: m.users, Values: m.values, Work: m.work,
		}
	}
	return parts, nil
}
