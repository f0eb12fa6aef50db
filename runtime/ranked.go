package runtime

import (
	"context"
	"fmt"
	"slices"

	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
)

// This file is how queries of a version with roles run: the user's inputs may be there once beside
// many candidates.

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

// checkRanked checks the inputs of a query of a version with roles, as checkInputs does, and returns
// its size.
func checkRanked(v *models.Version, inputs []tensor.Tensor) (roles.Size, error) {
	if _, err := checkInputs(v.Inputs, inputs, true); err != nil {
		return roles.Size{}, err
	}
	return v.Roles.Check(inputs)
}

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
	case onceOK && rowOK && slices.EqualFunc(perRow, once, roles.Agree):
		s.users = userEither
	case onceOK:
		s.users = userOnce
	default:
		s.users = userPerRow
	}
}

// runRanked runs queries of an emulated model as one.
func (m *emulatedModel) runRanked(ctx context.Context, queries [][]tensor.Tensor) (*Result, error) {
	rows := 0
	for _, inputs := range queries {
		size, err := checkRanked(m.version, inputs)
		if err != nil {
			return nil, fmt.Errorf("run %s: %w", m.version, err)
		}
		rows += size.Rows
	}
	return m.emulate(ctx, rows)
}

// canJoin implements [joiningModel].
func (m *emulatedModel) canJoin() bool { return m.version.Roles != nil }

// runJoined implements [joiningModel].
func (m *emulatedModel) runJoined(ctx context.Context, queries [][]tensor.Tensor) (*Result, error) {
	return m.runRanked(ctx, queries)
}

// partOf returns the members' parts of an output of a merged run whose queries have these numbers of
// rows. An output of users has one for each row, or one for each query.
func partsOf(r *roles.Roles, out tensor.Tensor, rows []int) ([]tensor.Tensor, error) {
	if r != nil && r.Output(out.Name) == roles.User && len(out.Shape) > 0 &&
		out.Shape[0] == int64(len(rows)) {
		each := make([]int, len(rows))
		for k := range each {
			each[k] = 1
		}
		return tensor.Split(out, each)
	}
	return tensor.Split(out, rows)
}

// randomRanked returns random inputs of a version with roles: of one user and so many rows, with one
// value for each row of a ragged feature.
func randomRanked(v *models.Version, rows int, zeros func(p models.Port, first int) (tensor.Tensor,
	error)) ([]tensor.Tensor, error) {
	r := v.Roles
	var inputs []tensor.Tensor
	for _, p := range v.Inputs {
		if p.Optional {
			inputs = append(inputs, tensor.Tensor{})
			continue
		}
		first := 1
		if p.Role == roles.Row {
			first = rows
		}
		if p.Name == r.SizeOf && r.SizeDim < len(p.Shape) && p.Shape[r.SizeDim] == models.Dynamic {
			p.Shape = slices.Clone(p.Shape)
			p.Shape[r.SizeDim] = int64(rows)
		}
		in, err := zeros(p, first)
		if err != nil {
			return nil, err
		}
		inputs = append(inputs, in)
	}
	for i := range r.Ragged {
		f := &r.Ragged[i]
		units := 1
		if f.Per == roles.Row {
			units = rows
		}
		for j, p := range v.Inputs {
			switch {
			case p.Optional:
			case p.Name == f.Values || p.Name == f.Weights:
				in, err := zeros(p, units*max(1, f.Keys))
				if err != nil {
					return nil, err
				}
				inputs[j] = in
			case p.Name == f.Index:
				inputs[j] = f.OneEach(tensor.Tensor{
					Name: p.Name, DataType: p.DataType, Shape: make([]int64, len(p.Shape)),
				}, units)
			}
		}
	}
	return inputs, nil
}
