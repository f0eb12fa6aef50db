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

// checkRanked checks the inputs of a query of a version with roles, as checkInputs does, and
// returns its size.
func checkRanked(v *models.Version, inputs []tensor.Tensor) (roles.QuerySize, error) {
	if _, err := checkInputs(v.Inputs, inputs, true); err != nil {
		return roles.QuerySize{}, err
	}
	return v.Roles.Check(inputs)
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

// partOf returns the members' parts of an output of a merged run whose queries have these numbers
// of rows. An output of users has one for each row, or one for each query.
func partsOf(r *roles.Roles, out tensor.Tensor, rows []int) ([]tensor.Tensor, error) {
	if r != nil && r.RoleOfOutput(out.Name) == roles.User && len(out.Shape) > 0 &&
		out.Shape[0] == int64(len(rows)) {
		each := make([]int, len(rows))
		for k := range each {
			each[k] = 1
		}
		return tensor.Split(out, each)
	}
	return tensor.Split(out, rows)
}

// randomRanked returns random inputs of a version with roles: of one user and so many rows, with
// one value for each row of a ragged feature.
func randomRanked(v *models.Version, rows int,
	zeros func(p models.TensorSpec, first int) (tensor.Tensor,
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
