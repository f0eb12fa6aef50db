package roles

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/muster-serve/muster/api/tensor"
)

// A Role is what the first dimension of an input or output stands for.
type Role string

// The roles.
const (
	// Row: the candidates. A part of a query has some of them, a merged run those of all queries.
	Row Role = "row"
	// User: users, of whom a query has one. Its tensor has 1, or for each row the same again.
	User Role = "user"
	// Query: the whole tensor belongs to the query. Queries with such inputs are never merged.
	Query Role = "query"
	// Ragged: a feature of several values a row or user; see [Feature].
	Ragged Role = "ragged"
)

// A NamedRole is an input or output and its role.
type NamedRole struct {
	Name string `json:"name"`
	Role Role   `json:"role"`
}

// A Form is how a ragged feature says which values are whose.
type Form string

// The forms.
const (
	// Lengths: how many values each has, as TorchRec's jagged tensors say it.
	Lengths Form = "lengths"
	// Offsets: where the values of each begin, as PyTorch's EmbeddingBag takes it.
	Offsets Form = "offsets"
	// RowSplits: where they begin, and at last where all end, as TensorFlow's ragged tensors say
	// it.
	RowSplits Form = "row_splits"
)

// A Feature is a ragged feature: an input with the values of all rows (or users) one after the
// other, and an input of integers that says which values are whose.
type Feature struct {
	Values  string `json:"values"`            // the input with the values
	Form    Form   `json:"form"`              // what the input Index says
	Index   string `json:"index"`             // the input with lengths, offsets or row splits
	Weights string `json:"weights,omitempty"` // the input with a weight for each value; "": none
	Per     Role   `json:"per"`               // Row or User: whose the values are
	// Keys is how many features the values are of; 0 means 1. With KeyMajor the values of the first
	// feature come first, of all rows, as TorchRec has them (lengths [keys x rows]); else those of
	// the first row.
	Keys     int  `json:"keys,omitempty"`
	KeyMajor bool `json:"key_major,omitempty"`
	// LastOffset is whether Offsets end with the number of values, so that there is one more of
	// them than rows. RowSplits always do.
	LastOffset bool `json:"last_offset,omitempty"`
	// Table is the embedding table of the values, for information.
	Table string `json:"table,omitempty"`
}

// keys is the number of features, at least 1.
func (f *Feature) keys() int { return max(1, f.Keys) }

// Roles are those of a model's inputs and outputs. They must not be changed once they are in use,
// and may be used concurrently.
type Roles struct {
	Inputs  []NamedRole `json:"inputs"`  // in the order of the model
	Outputs []NamedRole `json:"outputs"` // in the order of the model
	Ragged  []Feature   `json:"ragged,omitempty"`
	// SizeOf is the input whose dimension SizeDim counts as the size of a query; "": the first
	// dimension of inputs of role Row.
	SizeOf  string `json:"size_of,omitempty"`
	SizeDim int    `json:"size_dim,omitempty"`

	inputs, outputs map[string]Role
}

// Complete returns r, complete: it checks that the parts of r fit together.
func Complete(r Roles) (*Roles, error) {
	r.inputs, r.outputs = map[string]Role{}, map[string]Role{}
	for _, p := range r.Inputs {
		switch p.Role {
		case Row, User, Query, Ragged:
			r.inputs[p.Name] = p.Role
		default:
			return nil, fmt.Errorf("input %q: unknown role %q", p.Name, p.Role)
		}
	}
	for _, p := range r.Outputs {
		switch p.Role {
		case Row, User, Query:
			r.outputs[p.Name] = p.Role
		default:
			return nil, fmt.Errorf("output %q: unknown role %q", p.Name, p.Role)
		}
	}
	for i := range r.Ragged {
		if err := r.checkFeature(&r.Ragged[i]); err != nil {
			return nil, err
		}
	}
	if _, ok := r.inputs[r.SizeOf]; r.SizeOf != "" && (!ok || r.SizeDim < 0 ||
		r.SizeDim >= tensor.MaxRank) {
		return nil, fmt.Errorf("the size is dimension %d of input %q, which there is not",
			r.SizeDim,
			r.SizeOf)
	}
	return &r, nil
}

func (r *Roles) checkFeature(f *Feature) error {
	for _, name := range []string{f.Values, f.Index, f.Weights} {
		if role := r.inputs[name]; role != Ragged && name != "" || name == "" && f.Weights != "" {
			return fmt.Errorf("ragged input %q has role %q, expected %q", name, role, Ragged)
		}
	}
	switch {
	case f.Values == "" || f.Index == "":
		return fmt.Errorf("a ragged feature has values %q and %s %q, expected both", f.Values,
			f.Form,
			f.Index)
	case f.Form != Lengths && f.Form != Offsets && f.Form != RowSplits:
		return fmt.Errorf("ragged input %q has the form %q", f.Values, f.Form)
	case f.Per != Row && f.Per != User:
		return fmt.Errorf("ragged input %q is per %q, expected %q or %q", f.Values, f.Per, Row,
			User)
	case f.Keys < 0 || f.Keys > tensor.MaxCount:
		return fmt.Errorf("ragged input %q has %d keys, expected 1 to %d", f.Values, f.Keys,
			tensor.MaxCount)
	}
	return nil
}

// String returns r as [Parse] reads it.
func (r *Roles) String() string {
	text, err := json.Marshal(r)
	if err != nil { // there is nothing in it that JSON lacks
		panic(err)
	}
	return string(text)
}

// Parse parses the result of String.
func Parse(text string) (*Roles, error) {
	var r Roles
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return nil, fmt.Errorf("roles: %w", err)
	}
	return Complete(r)
}

// OfShapes returns the roles of a model that has none: a first dimension that varies is the rows,
// and an input without one belongs to its query.
func OfShapes(names []string, shapes [][]int64) *Roles {
	r := &Roles{inputs: map[string]Role{}, outputs: map[string]Role{}}
	for i, name := range names {
		role := Row
		if len(shapes[i]) == 0 || shapes[i][0] >= 0 {
			role = Query
		}
		r.inputs[name] = role
		r.Inputs = append(r.Inputs, NamedRole{name, role})
	}
	return r
}

// RoleOfInput returns an input's role, Row of an unknown one.
func (r *Roles) RoleOfInput(name string) Role {
	if role, ok := r.inputs[name]; ok {
		return role
	}
	return Row
}

// RoleOfOutput returns an output's role, Row of an unknown one.
func (r *Roles) RoleOfOutput(name string) Role {
	if role, ok := r.outputs[name]; ok {
		return role
	}
	return Row
}

// HasUsers reports whether an input is of a user.
func (r *Roles) HasUsers() bool {
	return slices.ContainsFunc(r.Inputs, func(p NamedRole) bool { return p.Role == User }) ||
		slices.ContainsFunc(r.Ragged, func(f Feature) bool { return f.Per == User })
}

// NeedsRoles reports whether only agents that know the roles can answer queries of the model: those
// that do not know them take the first dimension of each input for the batch size.
func (r *Roles) NeedsRoles() bool { return len(r.Ragged) > 0 || r.SizeOf != "" && r.SizeDim > 0 }

// CanMerge reports whether queries may run as one, as far as their inputs and outputs say.
func (r *Roles) CanMerge() bool { return r.CanSplit() && !hasRole(r.Inputs, Query) }

// CanSplit reports whether a query may run as parts, as far as its inputs and outputs say.
func (r *Roles) CanSplit() bool {
	return !hasRole(r.Outputs, Query) &&
		(r.SizeOf == "" || r.SizeDim == 0 && r.RoleOfInput(r.SizeOf) == Row)
}

func hasRole(ports []NamedRole, role Role) bool {
	return slices.ContainsFunc(ports, func(p NamedRole) bool { return p.Role == role })
}

// A QuerySize is what a query has.
type QuerySize struct {
	Rows  int // candidates
	Users int // for whom they are: 1, or one for each row; 0: no input is of a user
	// Values are those of the ragged inputs.
	Values int
}

// Measure returns the size of a query with these inputs, in any order, as far as their shapes tell
// it. Inputs that do not fit are for [Roles.Check] to refuse.
func (r *Roles) Measure(inputs []tensor.Tensor) (s QuerySize) {
	s, _ = r.measure(inputs)
	return s
}

// measure is Measure, and returns the name of the input that says the number of rows.
func (r *Roles) measure(inputs []tensor.Tensor) (s QuerySize, by string) {
	rows, found := int64(1), false
	once, users := false, int64(0)
	for i := range inputs {
		t := &inputs[i]
		if t.DataType == "" || len(t.Shape) == 0 {
			continue
		}
		first := t.Shape[0]
		switch r.RoleOfInput(t.Name) {
		case Row:
			if once = once || first == 1; r.SizeOf != "" {
				continue
			}
			if first != 1 && (!found || rows == 1) || !found {
				rows, found, by = first, true, t.Name
			}
		case User:
			users = max(users, first, 1)
		}
	}
	for i := range r.Ragged {
		f := &r.Ragged[i]
		if t := find(inputs, f.Values); t != nil && len(t.Shape) > 0 {
			s.Values += int(t.Shape[0])
		}
		index := find(inputs, f.Index)
		if index == nil {
			continue
		}
		n, ok := f.units(index)
		switch {
		case !ok:
		case f.Per == User:
			users = max(users, int64(n), 1)
		case !found || rows == 1 && n != 1 && r.SizeOf == "":
			rows, found, by = int64(n), true, f.Index
		}
	}
	if t := find(inputs, r.SizeOf); r.SizeOf != "" && t != nil && r.SizeDim < len(t.Shape) {
		rows, by = t.Shape[r.SizeDim], t.Name
	}
	if users == 0 && once && rows != 1 {
		users = 1
	}
	s.Rows, s.Users = int(max(0, rows)), int(users)
	return s, by
}

func find(inputs []tensor.Tensor, name string) *tensor.Tensor {
	for i := range inputs {
		if inputs[i].Name == name && inputs[i].DataType != "" {
			return &inputs[i]
		}
	}
	return nil
}

// Check returns the size of a query with these inputs. It is an error if they do not fit together:
// the error names the input, for a ragged one the row and the value, and what was expected. The
// tensors' data must fit their shapes.
func (r *Roles) Check(inputs []tensor.Tensor) (QuerySize, error) {
	s, by := r.measure(inputs)
	for i := range inputs {
		t := &inputs[i]
		if t.DataType == "" {
			continue
		}
		role := r.RoleOfInput(t.Name)
		if role == Query || role == Ragged {
			continue
		}
		if len(t.Shape) == 0 {
			return s, fmt.Errorf("input %q: a scalar, want a first dimension: its role is %s",
				t.Name,
				role)
		}
		if n := t.Shape[0]; n != 1 && n != int64(s.Rows) && (role == User || r.SizeOf == "" ||
			r.RoleOfInput(r.SizeOf) == Row) {
			if role == User {
				return s,
					fmt.Errorf("input %q: %d users, want 1, or one for each of the %d rows of "+
						"input %q", t.Name, n, s.Rows, by)
			}
			return s, fmt.Errorf("input %q: batch size %d, but input %q has %d", t.Name, n, by,
				s.Rows)
		}
	}
	for i := range r.Ragged {
		b, err := r.Ragged[i].bagsOf(inputs)
		if err != nil {
			return s, err
		}
		if b.n != 1 && b.n != s.Rows {
			f := &r.Ragged[i]
			whose := fmt.Sprintf("for each of the %d rows of input %q", s.Rows, by)
			if f.Per == User {
				whose = "for the user, or " + whose
			}
			return s, fmt.Errorf("input %q: shape %v has %s for %d, want them %s", f.Index,
				b.index.Shape, f.Form, b.n, whose)
		}
	}
	return s, nil
}
