package oip

import (
	"fmt"

	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/tensor"
)

// Rows returns the batch size of a query whose model is not known: the largest first dimension of
// its inputs, some of which may be the same for all rows; at least 1.
func (r *Request) Rows() int64 {
	rows := int64(1)
	for i := range r.Inputs {
		if shape := r.Inputs[i].Shape; len(shape) > 0 {
			rows = max(rows, shape[0])
		}
	}
	return rows
}

// Split returns queries of the given numbers of rows, in the order of r's rows; see [tensor.Split].
// They share the inputs' memory as with Share: it is freed when all of them and r are released. The
// error names the input whose first dimension is not the sum of rows, or whose form is wrong.
func (r *Request) Split(rows []int) ([]*Request, error) {
	inputs := make([]tensor.Tensor, len(rows)*len(r.Inputs))
	for i := range r.Inputs {
		parts, err := tensor.Split(r.Inputs[i], rows)
		if err != nil {
			return nil, err
		}
		for p := range parts {
			inputs[p*len(r.Inputs)+i] = parts[p]
		}
	}
	queries := make([]*Request, len(rows))
	for p := range queries {
		queries[p] = r.Share()
		queries[p].Inputs = inputs[p*len(r.Inputs) : (p+1)*len(r.Inputs)]
	}
	return queries, nil
}

// SplitBy is Split for a query of a model with the given roles: what belongs to the user or the
// query as a whole is the same of all parts. nil is Split.
func (r *Request) SplitBy(by *roles.Roles, rows []int) ([]*Request, error) {
	if by == nil {
		return r.Split(rows)
	}
	parts, err := by.Split(r.Inputs, rows)
	if err != nil {
		return nil, err
	}
	queries := make([]*Request, len(rows))
	for p := range queries {
		queries[p] = r.Share()
		queries[p].Inputs = parts[p]
	}
	return queries, nil
}

// Join makes the answer to a query of those to its parts, which have the given numbers of rows: the
// outputs' rows in the order of the parts, and all else of the first part. It copies the outputs,
// and does not release the parts. The error names the model, and an output whose first dimension is
// not its part's number of rows.
func Join(parts []*Response, rows []int) (*Response, error) { return JoinBy(nil, parts, rows) }

// JoinBy is Join for a model with the given roles, which may be nil: of an output of the user, the
// parts must agree. The error names the output.
func JoinBy(by *roles.Roles, parts []*Response, rows []int) (*Response, error) {
	ofUser := func(out string) bool { return by != nil && by.RoleOfOutput(out) == roles.User }
	first := parts[0]
	resp := &Response{
		Model: first.Model, Version: first.Version, ID: first.ID, Parameters: first.Parameters,
		Outputs: make([]tensor.Tensor, len(first.Outputs)),
	}
	for p, part := range parts {
		resp.Emulated = resp.Emulated || part.Emulated
		if part.Model != first.Model || part.Version != first.Version ||
			len(part.Outputs) != len(first.Outputs) {
			return nil, fmt.Errorf("parts of a query are answered by model %q, version %s, with "+
				"%d outputs, and by model %q, version %s, with %d: want the same of all",
				first.Model, first.Version, len(first.Outputs), part.Model, part.Version,
				len(part.Outputs))
		}
		for i := range part.Outputs {
			out := &part.Outputs[i]
			switch {
			case out.Name != first.Outputs[i].Name:
				return nil, fmt.Errorf("model %q answers parts of a query with the outputs %q and "+
					"%q in the same place", first.Model, first.Outputs[i].Name, out.Name)
			case ofUser(out.Name):
			case len(out.Shape) == 0 || out.Shape[0] != int64(rows[p]):
				return nil, fmt.Errorf("model %q answers %d rows with output %q of shape %v: its "+
					"rows are not independent, as its model.yaml says; to keep its queries whole, "+
					"set split: false there", first.Model, rows[p], out.Name, out.Shape)
			}
		}
	}
	all := make([]tensor.Tensor, len(parts))
	for i := range resp.Outputs {
		for p, part := range parts {
			all[p] = part.Outputs[i]
		}
		joined, err := all, error(nil)
		if ofUser(all[0].Name) {
			_, err = roles.SameOf(all)
			joined = all[:1]
		}
		if err == nil {
			resp.Outputs[i], err = tensor.Join(joined)
		}
		if err != nil {
			return nil, fmt.Errorf("model %q: join the parts of a query: %w", first.Model, err)
		}
	}
	return resp, nil
}
