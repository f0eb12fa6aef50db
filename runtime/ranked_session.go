//go:build linux && cgo

package runtime

import (
	"context"
	"fmt"
	"slices"

	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/tensor"
)

// A userForm says in which forms a model's graph takes the inputs of users.
type userForm int

const (
	// userPerRow: a user for each row; so the inputs of one user are repeated.
	userPerRow userForm = iota
	// userOnce: one user for all rows. Queries of several users cannot run as one.
	userOnce
	// userEither: both, with the same answers.
	userEither
)

// buildInputs returns the inputs of one run of queries, and its rows. Each user's inputs are repeated
// for the rows of the query, which is right for any graph and gains nothing. A graph that is cut takes
// an index from rows to users instead; see runUsers.
func (s *session) buildInputs(queries [][]tensor.Tensor) (inputs []tensor.Tensor, rows int,
	err error) {
	for _, inputs := range queries {
		size, err := checkRanked(s.version, inputs)
		if err != nil {
			return nil, 0, err
		}
		rows += size.Rows
	}
	r := s.version.Roles
	if len(queries) == 1 && s.users != userPerRow {
		once, err := r.RepeatRows(queries[0])
		if err == nil || s.users == userOnce {
			return once, rows, err
		}
	}
	if len(queries) > 1 && s.users == userOnce {
		return nil, 0, fmt.Errorf("%s takes one user for all rows of a run", s.name)
	}
	inputs, err = r.Join(queries)
	return inputs, rows, err
}

// runRanked runs queries as one.
func (s *session) runRanked(ctx context.Context, queries [][]tensor.Tensor) (*Result, error) {
	inputs, rows, err := s.buildInputs(queries)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", s.name, err)
	}
	return s.run(ctx, s.withDefaults(inputs), nil, rows)
}

// MergesUsers reports whether queries of different users may run as one.
func (s *session) MergesUsers() bool { return s.users != userOnce }

// tryRows is how many rows the trial of a model's forms has: with two, a user for each row differs
// from one for all, and from one row.
const tryRows = 2

// tryForms finds out in which forms the graph takes the inputs of users, with random inputs. Where
// neither can run, as with shapes that the model leaves open, a user for each row stays: that is how
// queries of other models run.
func (s *session) tryForms(ctx context.Context) {
	v := s.version
	if v.Roles == nil || !v.Roles.HasUsers() || s.cut != nil { // which takes any
		return
	}
	inputs, err := RandomInputs(newRandom(v), v, tryRows)
	if err != nil {
		return
	}
	run := func(form userForm) (outputs []tensor.Tensor, ok bool) {
		s.users = form
		result, err := s.Run(ctx, inputs)
		if err != nil {
			return nil, false
		}
		defer result.Release()
		for i, out := range result.Outputs {
			if s.outputs[i].Role != roles.Row {
				continue
			}
			if len(out.Shape) == 0 || out.Shape[0] != tryRows {
				return nil, false
			}
			out.Data = slices.Clone(out.Data)
			outputs = append(outputs, out)
		}
		return outputs, true
	}
	perRow, rowOK := run(userPerRow)
	once, onceOK := run(userOnce)
	switch {
	case onceOK && rowOK && slices.EqualFunc(perRow, once, isSameAnswer):
		s.users = userEither
	case onceOK:
		s.users = userOnce
	default:
		s.users = userPerRow
	}
}

// isSameAnswer reports whether two answers to the same agree.
func isSameAnswer(a, b tensor.Tensor) bool { return tensor.Agree(a, b, tensor.Kernels) }
