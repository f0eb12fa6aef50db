package runtime

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
)

// An ensembleModel runs the steps of an ensemble one after the other, in one run on one lane. The
// outputs of a step are the inputs of others, in the same memory.
type ensembleModel struct {
	name  string
	parts []Model // each once, though it may be the model of several steps
	steps []ensembleStep
	// outputs are the ensemble's, and out the numbers of their tensors.
	outputs []models.TensorSpec
	out     []int
	tensors int // of a run; those of the inputs come first
}

// An ensembleStep is a step with the numbers of its tensors.
type ensembleStep struct {
	model   Model
	inputs  []models.TensorSpec // of the model
	in, out []int               // -1: an input or output that is not a tensor of the ensemble
	// done are the steps whose tensors nobody needs after this one.
	done []int
}

// loadEnsemble loads the models of an ensemble's steps, each once.
func loadEnsemble(ctx context.Context, x Executor, v *models.Version) (_ Model, err error) {
	e := &ensembleModel{name: v.String(), outputs: v.Outputs}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("load %s: %w", v.Path, err), e.Close())
		}
	}()
	numbers := map[string]int{}
	number := func(name string) int {
		if name == "" {
			return -1
		}
		if _, ok := numbers[name]; !ok {
			numbers[name] = len(numbers)
		}
		return numbers[name]
	}
	for _, p := range v.Inputs {
		number(p.Name)
	}
	loaded := map[names.ModelKey]Model{}
	maker, last := map[int]int{}, make([]int, len(v.Steps)) // by tensor, and by step its last user
	for i, s := range v.Steps {
		key := names.NewModelKey(s.Version.Model, s.Version.Number)
		if loaded[key] == nil {
			m, err := x.Load(ctx, s.Version)
			if err != nil {
				return nil, err
			}
			loaded[key] = m
			e.parts = append(e.parts, m)
		}
		step := ensembleStep{model: loaded[key], inputs: s.Version.Inputs}
		last[i] = i
		for _, name := range s.Inputs {
			n := number(name)
			if by, ok := maker[n]; ok {
				last[by] = i
			}
			step.in = append(step.in, n)
		}
		for _, name := range s.Outputs {
			n := number(name)
			if n >= 0 {
				maker[n] = i
			}
			step.out = append(step.out, n)
		}
		e.steps = append(e.steps, step)
	}
	for _, p := range v.Outputs {
		n := number(p.Name)
		e.out = append(e.out, n)
		last[maker[n]] = len(v.Steps)
	}
	for by, i := range last {
		if i < len(e.steps) {
			e.steps[i].done = append(e.steps[i].done, by)
		}
	}
	e.tensors = len(numbers)
	return e, nil
}

// Run runs the steps. The error of one names it, and ends the run.
func (e *ensembleModel) Run(ctx context.Context, inputs []tensor.Tensor) (_ *Result, err error) {
	start := time.Now()
	tensors := make([]tensor.Tensor, e.tensors)
	copy(tensors, inputs)
	results := make([]*Result, len(e.steps))
	release := func() {
		for _, r := range results {
			if r != nil {
				r.Release()
			}
		}
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	var given []tensor.Tensor
	for i := range e.steps {
		s := &e.steps[i]
		given = slices.Grow(given[:0], len(s.in))
		for at, n := range s.in {
			if n < 0 { // optional, and not given
				given = append(given, tensor.Tensor{})
				continue
			}
			t := tensors[n]
			t.Name = s.inputs[at].Name
			given = append(given, t)
		}
		if results[i], err = s.model.Run(ctx, given); err != nil {
			if ctx.Err() != nil || errors.Is(err, ErrClosed) {
				return nil, err
			}
			return nil, fmt.Errorf("run %s, step %d: %w", e.name, i+1, err)
		}
		for at, n := range s.out {
			if n >= 0 {
				tensors[n] = results[i].Outputs[at]
			}
		}
		for _, by := range s.done {
			results[by].Release()
		}
	}
	outputs := make([]tensor.Tensor, len(e.out))
	for i, n := range e.out {
		outputs[i] = tensors[n]
		outputs[i].Name = e.outputs[i].Name
	}
	return &Result{Outputs: outputs, Execution: time.Since(start), release: release}, nil
}

// Close closes the models of the steps.
func (e *ensembleModel) Close() error {
	var errs []error
	for _, m := range e.parts {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}
