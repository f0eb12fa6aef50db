package models

import (
	"fmt"
	"slices"
	"strings"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/onnx"
)

// largestRanking is the default of LargestBatchSize of a model with roles, in candidates. Rankers
// take some hundred to some thousand.
const largestRanking = 4096

// A SizeDimension names the dimension of an input that counts as the size of a query.
type SizeDimension struct {
	Input string
	Dim   int
}

// String returns s as a model.yaml has it; "" of the zero value.
func (s SizeDimension) String() string {
	if s == (SizeDimension{}) {
		return ""
	}
	return fmt.Sprintf("%s:%d", s.Input, s.Dim)
}

// findRoles returns the roles that the settings say, or else those that the names of dimensions
// tell. It returns nil where these settle nothing, and of settings that complete roles; see
// stateRoles.
func (c *Config) findRoles(s *onnx.Signature) *roles.Roles {
	if c.Batchless || c.NeverSentOnce || c.SaysRoles() {
		return nil
	}
	r, why := inferRoles(s)
	if why != "" {
		c.note("%s", why)
	}
	return r
}

// SaysRoles reports whether the settings say roles.
func (c *Config) SaysRoles() bool {
	return len(c.Ragged) > 0 || c.SizeOf != (SizeDimension{}) || len(c.SentOnce) > 0 ||
		slices.ContainsFunc(slices.Concat(c.Inputs, c.Outputs),
			func(p TensorSpec) bool { return p.Role != "" })
}

func (c *Config) note(format string, args ...any) {
	c.Notes = append(slices.Clone(c.Notes), fmt.Sprintf(format, args...))
}

// useRoles makes r the roles of v, whose ports are set.
func (v *Version) useRoles(r roles.Roles, inferred bool) (err error) {
	if v.Roles, err = roles.Complete(r); err != nil {
		return err
	}
	for i := range v.Inputs {
		v.Inputs[i].Role = v.Roles.RoleOfInput(v.Inputs[i].Name)
	}
	for i := range v.Outputs {
		v.Outputs[i].Role = v.Roles.RoleOfOutput(v.Outputs[i].Name)
	}
	if !v.Config.StatesBatchSize {
		v.Config.LargestBatchSize = largestRanking
	}
	if !v.Roles.CanMerge() && v.Config.RowsIndependent {
		v.Config.Merge = names.MergeNone
	}
	v.inferred = inferred
	return nil
}

// DescribeRoles says in words whose a query's rows are, and what says so; "" without roles.
func (v *Version) DescribeRoles() string {
	if v.Roles == nil {
		return ""
	}
	from := "as its settings say"
	if v.inferred {
		from = "as the names of its dimensions say"
	}
	return fmt.Sprintf("a query is of one user and many candidates, %s: %s", from,
		describeRoles(v.Roles))
}

// FlowRoles returns the roles of inputs as the graph's dimensions are followed by; nil: by shape.
func (v *Version) FlowRoles() map[string]roles.Role {
	if v.Roles == nil {
		return nil
	}
	all := map[string]roles.Role{}
	for _, p := range v.Roles.Inputs {
		all[p.Name] = p.Role
	}
	return all
}

// describeRoles says in words what inputs and outputs are.
func describeRoles(r *roles.Roles) string {
	var parts []string
	for _, role := range []roles.Role{roles.Row, roles.User, roles.Query} {
		var names []string
		for _, p := range r.Inputs {
			if p.Role == role {
				names = append(names, p.Name)
			}
		}
		for _, p := range r.Outputs {
			if p.Role == role && role != roles.Row {
				names = append(names, "output "+p.Name)
			}
		}
		if len(names) > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", role, strings.Join(names, ", ")))
		}
	}
	for _, f := range r.Ragged {
		parts = append(parts, fmt.Sprintf("ragged %s by %s %s per %s", f.Values, f.Form, f.Index,
			f.Per))
	}
	if r.SizeOf != "" {
		parts = append(parts, fmt.Sprintf("size of %s:%d", r.SizeOf, r.SizeDim))
	}
	return strings.Join(parts, "; ")
}

// stateRoles makes the roles that the settings say those of v.
func (v *Version) stateRoles(s *onnx.Signature) error {
	r, err := v.resolveRoles(s)
	if err != nil {
		return err
	}
	return v.useRoles(r, false)
}

// resolveRoles returns the roles that the settings say; ports without any have those that follow
// from their shapes.
func (v *Version) resolveRoles(s *onnx.Signature) (r roles.Roles, err error) {
	c := &v.Config
	known := inferredRolesOf(s)
	r.Ragged = append(slices.Clone(c.Ragged), c.unstatedRagged(s)...)
	for i := range v.Inputs {
		p := &v.Inputs[i]
		role := c.statedRole(p.Name)
		if slices.Contains(c.SentOnce, p.Name) {
			if role != "" && role != roles.User {
				return r, fmt.Errorf("input %q is in sent_once and has the role %s, expected %s",
					p.Name,
					role, roles.User)
			}
			role = roles.User
		}
		for _, f := range r.Ragged {
			if p.Name == f.Values || p.Name == f.Index || p.Name == f.Weights {
				role = roles.Ragged
			}
		}
		switch {
		case role != "":
		case c.SizeOf.Dim > 0: // rows of a list depend on each other
			role = roles.Query
		default:
			role = known(p)
		}
		r.Inputs = append(r.Inputs, roles.NamedRole{Name: p.Name, Role: role})
	}
	for i := range v.Outputs {
		p := &v.Outputs[i]
		role := roles.Row
		switch {
		case p.IsScalar(), c.SizeOf.Dim > 0:
			role = roles.Query
		}
		for _, said := range c.Outputs {
			if said.Name == p.Name && said.Role != "" {
				role = said.Role
			}
		}
		r.Outputs = append(r.Outputs, roles.NamedRole{Name: p.Name, Role: role})
	}
	r.SizeOf, r.SizeDim = c.SizeOf.Input, c.SizeOf.Dim
	for _, name := range slices.Concat(c.SentOnce, []string{r.SizeOf}) {
		if name != "" && !slices.ContainsFunc(v.Inputs,
			func(p TensorSpec) bool { return p.Name == name }) {
			return r, fmt.Errorf("input %q: the model has %s", name, namesOf(v.Inputs))
		}
	}
	for _, f := range r.Ragged {
		for _, name := range []string{f.Values, f.Index, f.Weights} {
			if name != "" && !slices.ContainsFunc(v.Inputs,
				func(p TensorSpec) bool { return p.Name == name }) {
				return r, fmt.Errorf("ragged input %q: the model has %s", name, namesOf(v.Inputs))
			}
		}
	}
	if r.SizeOf != "" {
		for i := range v.Inputs {
			if p := &v.Inputs[i]; p.Name == r.SizeOf && r.SizeDim >= len(p.Shape) {
				return r, fmt.Errorf("size_of is dimension %d of input %q, which has shape %v",
					r.SizeDim,
					r.SizeOf, p.Shape)
			}
		}
		return r, nil
	}
	if !slices.ContainsFunc(r.Inputs,
		func(p roles.NamedRole) bool { return p.Role == roles.Row }) &&
		!slices.ContainsFunc(r.Ragged, func(f roles.Feature) bool { return f.Per == roles.Row }) {
		return r,
			fmt.Errorf("no input has the role %s, so a query has no size: say which counts with "+
				"size_of: INPUT:DIMENSION", roles.Row)
	}
	return r, nil
}

// statedRole returns the role that the settings say of an input itself, "" if they say none.
func (c *Config) statedRole(input string) (role roles.Role) {
	for _, said := range c.Inputs {
		if said.Name == input {
			role = said.Role
		}
	}
	return role
}

// unstatedRagged returns the ragged features that names tell, without those of which the settings say
// something of an input: they are not inferred.
func (c *Config) unstatedRagged(s *onnx.Signature) (all []roles.Feature) {
	inferred, _ := inferRoles(s)
	if inferred == nil || c.SizeOf.Dim > 0 {
		return nil
	}
	for _, f := range inferred.Ragged {
		states := func(input string) bool {
			return c.statedRole(input) != "" || slices.Contains(c.SentOnce, input) ||
				slices.ContainsFunc(c.Ragged, func(o roles.Feature) bool {
					return input == o.Values || input == o.Index || input == o.Weights
				})
		}
		if !states(f.Values) && !states(f.Index) && (f.Weights == "" || !states(f.Weights)) {
			all = append(all, f)
		}
	}
	return all
}

func namesOf(ports []TensorSpec) string {
	var names []string
	for i := range ports {
		names = append(names, ports[i].Name)
	}
	return strings.Join(names, ", ")
}

// inferredRolesOf returns what says the role of an input of which the settings say none: as the
// names of dimensions tell it, else by its shape.
func inferredRolesOf(s *onnx.Signature) func(p *TensorSpec) roles.Role {
	inferred, _ := inferRoles(s)
	return func(p *TensorSpec) roles.Role {
		if inferred != nil {
			for _, known := range inferred.Inputs {
				if known.Name == p.Name && known.Role != roles.Ragged {
					return known.Role
				}
			}
		}
		if len(p.Shape) == 0 || p.Shape[0] != Dynamic || p.Whole {
			return roles.Query
		}
		return roles.Row
	}
}

// nameOf returns the name of a dimension of a port, "" if it has none or a fixed size.
func nameOf(p *onnx.ValueDescription, dim int) string {
	if dim >= len(p.Shape) || p.Shape[dim] != Dynamic || dim >= len(p.Dims) {
		return ""
	}
	return p.Dims[dim]
}

// inferRoles returns the roles that the names of dimensions tell, or nil where they settle nothing:
// then all first dimensions are the batch size, as they are in most models. why says what is
// missing where the model looks as if it had ragged inputs.
//
// The first dimension of the first output is the candidates, and so is that of inputs with the same
// name. Another name is of a ragged feature, if there is an input of lengths, offsets or row splits
// for it, or else of users. A first dimension of 1, and a scalar, belong to the query.
func inferRoles(s *onnx.Signature) (r *roles.Roles, why string) {
	if len(s.Outputs) == 0 {
		return nil, ""
	}
	rows := nameOf(&s.Outputs[0], 0)
	features, why := findRagged(s, rows)
	if rows == "" || why != "" {
		return nil, why
	}
	r = &roles.Roles{Ragged: features}
	sized, special := false, len(features) > 0
	users := map[string]bool{}
	for i := range s.Inputs {
		p := &s.Inputs[i]
		role, name := roles.Role(""), nameOf(p, 0)
		switch {
		case isOfFeature(features, p.Name):
			role = roles.Ragged
		case p.IsScalar():
			role = roles.Query
		case p.FixesFirst():
			if p.Shape[0] != 1 {
				return nil, ""
			}
			role, special = roles.Query, true
		case name == "":
			return nil, ""
		case name == rows:
			role, sized = roles.Row, true
		default:
			role, special, users[name] = roles.User, true, true
		}
		r.Inputs = append(r.Inputs, roles.NamedRole{Name: p.Name, Role: role})
	}
	sized = sized || slices.ContainsFunc(features, func(f roles.Feature) bool {
		return f.Per == roles.Row
	})
	if !sized || !special {
		return nil, ""
	}
	for i := range s.Outputs {
		p := &s.Outputs[i]
		role := roles.Row
		switch {
		case p.IsScalar():
			role = roles.Query
		case users[nameOf(p, 0)], p.FixesFirst() && p.Shape[0] == 1:
			role = roles.User
		}
		r.Outputs = append(r.Outputs, roles.NamedRole{Name: p.Name, Role: role})
	}
	return r, ""
}

// isOfFeature reports whether an input is one of a ragged feature's.
func isOfFeature(features []roles.Feature, input string) bool {
	return slices.ContainsFunc(features, func(f roles.Feature) bool {
		return f.Values == input || f.Index == input || f.Weights == input
	})
}

// indexNames are the ends of names of inputs that say which values are whose.
var indexNames = []struct {
	end  string
	form roles.Form
}{
	{"lengths", roles.Lengths}, {"offsets", roles.Offsets}, {"row_splits", roles.RowSplits},
}

// findRagged returns the ragged features: an input of integers whose name ends like one of
// indexNames, beside one of values with the same beginning and a first dimension that has a name of
// its own. why says which of them the names of dimensions do not settle.
func findRagged(s *onnx.Signature, rows string) (features []roles.Feature, why string) {
	for i := range s.Inputs {
		index := &s.Inputs[i]
		if index.DataType != tensor.Int64 && index.DataType != tensor.Int32 {
			continue
		}
		for _, kind := range indexNames {
			begin, ok := strings.CutSuffix(strings.ToLower(index.Name), kind.end)
			if !ok {
				continue
			}
			values, weights := findInput(s, begin+"values"), findInput(s, begin+"weights")
			if values == nil || len(values.Shape) == 0 {
				break
			}
			name := nameOf(values, 0)
			if name == "" || rows == "" || name == rows {
				if !values.FixesFirst() && name == "" {
					why = fmt.Sprintf("inputs %q and %q look like the values and %s of a ragged feature, but "+
						"the file names no dimensions: if they are, say so in %s: %s", values.Name,
						index.Name, kind.form, ConfigFile, raggedLine(values.Name, kind.form,
							index.Name))
				}
				break
			}
			f := roles.Feature{Values: values.Name, Form: kind.form, Index: index.Name,
				Per: roles.Row}
			if weights != nil && nameOf(weights, 0) == name {
				f.Weights = weights.Name
			}
			if !settleIndex(s, &f, index, rows) {
				why = fmt.Sprintf("the dimensions of input %q do not say of how many features or users its %s "+
					"are: say it in %s: %s", index.Name, kind.form, ConfigFile,
					raggedLine(values.Name, kind.form, index.Name))
				break
			}
			features = append(features, f)
			break
		}
	}
	return features, why
}

// raggedLine is what a model.yaml says of a ragged feature.
func raggedLine(values string, form roles.Form, index string) string {
	return fmt.Sprintf("ragged: [{values: %s, %s: %s, per: row}]", values, form, index)
}

// findInput returns the input of a name in lower case; nil if there is none.
func findInput(s *onnx.Signature, name string) *onnx.ValueDescription {
	for i := range s.Inputs {
		if strings.ToLower(s.Inputs[i].Name) == name {
			return &s.Inputs[i]
		}
	}
	return nil
}

// settleIndex sets whose the values of a feature are, from the shape of its index. It returns false
// if that does not tell it.
func settleIndex(s *onnx.Signature, f *roles.Feature, index *onnx.ValueDescription,
	rows string) bool {
	last := f.Form == roles.RowSplits
	name := nameOf(index, 0)
	// Offsets of several features may have one more than rows, under a name of their own.
	isOffsets := func(input string) bool {
		input = strings.ToLower(input)
		return f.Form != roles.Lengths &&
			(strings.HasSuffix(input, "offsets") || strings.HasSuffix(input, "row_splits"))
	}
	isUsers := func(name string) bool {
		return name != "" && name != rows && slices.ContainsFunc(s.Inputs,
			func(p onnx.ValueDescription) bool {
				return p.Name != index.Name && nameOf(&p, 0) == name && !isOffsets(p.Name)
			})
	}
	if len(index.Shape) == 2 && f.Form == roles.Lengths {
		switch {
		case index.FixesFirst() && nameOf(index, 1) == rows:
			f.Keys, f.KeyMajor = int(index.Shape[0]), true
		case name == rows && index.Shape[1] != Dynamic:
			f.Keys = int(index.Shape[1])
		default:
			return false
		}
		return f.Keys > 0
	}
	if len(index.Shape) != 1 {
		return false
	}
	switch fixed := index.Shape[0]; {
	case fixed == 1 && !last, fixed == 2 && last:
		f.Per = roles.User
	case fixed == 2 && f.Form == roles.Offsets:
		f.Per, f.LastOffset = roles.User, true
	case fixed != Dynamic:
		return false
	case name == rows:
		return !last
	case f.Form == roles.Lengths || isUsers(name):
		if !isUsers(name) { // of users, or of several features of the rows
			return false
		}
		f.Per = roles.User
		return !last
	case name == "":
		return false
	case f.Form == roles.Offsets:
		f.LastOffset = true
	}
	return true
}
