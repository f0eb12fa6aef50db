package roles

import (
	"fmt"
	"slices"

	"github.com/muster-serve/muster/api/tensor"
)

// Answer brings the outputs of a query's run into the form of an answer: those of role Row have as
// many rows as the query, and those of role User one. The run may have had a row where the query
// has none, and the user once for each row, whose outputs then must agree. outputs is changed. The
// error names the output.
func (r *Roles) Answer(outputs []tensor.Tensor, size QuerySize) error {
	if r.SizeOf != "" && r.RoleOfInput(r.SizeOf) != Row {
		return nil
	}
	for i := range outputs {
		t := &outputs[i]
		role := r.RoleOfOutput(t.Name)
		switch {
		case role == Query:
		case len(t.Shape) == 0:
			return fmt.Errorf("output %q is a scalar, its role is %s", t.Name, role)
		case role == Row && size.Rows == 0:
			t.Shape = slices.Clone(t.Shape)
			t.Shape[0], t.Data = 0, nil
		case role == User && t.Shape[0] > 1:
			each := make([]int, t.Shape[0])
			for k := range each {
				each[k] = 1
			}
			users, err := tensor.Split(*t, each)
			if err != nil {
				return err
			}
			if *t, err = SameOf(users); err != nil {
				return err
			}
		}
	}
	return nil
}

// SameOf returns the first of the answers to a user for several parts, or rows, of a query. It is
// an error that names the output if they do not agree.
func SameOf(parts []tensor.Tensor) (tensor.Tensor, error) {
	for k := 1; k < len(parts); k++ {
		if !tensor.Agree(parts[0], parts[k], tensor.Kernels) {
			return tensor.Tensor{},
				fmt.Errorf("output %q is of the user, but differs between the rows of "+
					"a query: its role is not user, or the query has several users", parts[0].Name)
		}
	}
	return parts[0], nil
}
