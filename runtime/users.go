//go:build linux && cgo

package runtime

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/onnx"
)

// A userCut is of a session whose graph is cut: what depends on users alone runs once for each of
// them; see onnx.Graph.CutUsers.
type userCut struct {
	isUser, isRow []bool // by input; one that is neither belongs to the query as a whole
}

// cutUsers returns the graph of a version cut in two, and what its runs need to know; nil if the
// version has no inputs of users, or if its graph cannot be cut, which is logged unless quiet.
func (o *ONNX) cutUsers(v *models.Version, quiet bool) (*onnx.Graph, *userCut) {
	if v.Roles == nil || !v.Roles.HasUsers() || o.info.Provider != CPU || v.Batchless {
		return nil, nil
	}
	fail := func(err error) (*onnx.Graph, *userCut) {
		if quiet {
			return nil, nil
		}
		o.log.Info("inputs of users are repeated for each row", "model", v.String(), "reason", err)
		return nil, nil
	}
	for i := range v.Outputs {
		if p := &v.Outputs[i]; p.Role != roles.Row { // a cut graph gives a row for each row
			return fail(fmt.Errorf("output %q has the role %s", p.Name, p.Role))
		}
	}
	cut := &userCut{isUser: make([]bool, len(v.Inputs)), isRow: make([]bool, len(v.Inputs))}
	for i := range v.Inputs {
		p := &v.Inputs[i]
		cut.isUser[i], cut.isRow[i] = p.Role == roles.User, p.HasRows()
		if slices.ContainsFunc(v.Outputs, func(out models.TensorSpec) bool {
			return out.Name == p.Name
		}) {
			return fail(fmt.Errorf("input %q is an output too", p.Name))
		}
		if p.Role == roles.Ragged {
			return fail(fmt.Errorf("input %q is ragged", p.Name))
		}
		if cut.isUser[i] && (p.ModelShape != nil || p.Optional || p.DataType == tensor.Bytes) {
			return fail(fmt.Errorf("input %q is reshaped, optional or of texts", p.Name))
		}
	}
	g, err := onnx.ReadGraph(v.Path)
	if err == nil {
		err = g.CutUsers(v.FlowRoles())
	}
	if err == nil {
		g, err = g.Reread()
	}
	if err != nil {
		return fail(err)
	}
	return g, cut
}

// checkQuery is checkInputs of a session. Inputs of users have one row or one for each row.
func (s *session) checkQuery(inputs []tensor.Tensor) (batch int, err error) {
	if batch, err = checkInputs(s.inputs, inputs, s.batchless); err != nil || s.cut == nil {
		return batch, err
	}
	for i, in := range inputs {
		if s.cut.isUser[i] && in.Shape[0] != 1 && in.Shape[0] != int64(batch) {
			return 0, fmt.Errorf("input %q has batch size %d, want 1 or %d", in.Name, in.Shape[0],
				batch)
		}
	}
	return batch, nil
}

// countUsers returns how many rows the inputs of users of a query have: one, or one for each row if
// one of them has.
func (c *userCut) countUsers(inputs []tensor.Tensor) int {
	n := 1
	for i, in := range inputs {
		if c.isUser[i] {
			n = max(n, int(in.Shape[0]))
		}
	}
	return n
}

// joinQueries returns the inputs of one run of several queries: rows and users one behind the
// other. index is set to the user of each row.
func (c *userCut) joinQueries(queries [][]tensor.Tensor, rows []int, index []int64) (
	[]tensor.Tensor, []int64) {
	joined := slices.Clone(queries[0])
	users := 0
	index = index[:0]
	for q, inputs := range queries {
		n := c.countUsers(inputs)
		for i := range rows[q] {
			index = append(index, int64(users+min(i, n-1)))
		}
		users += n
	}
	for i := range joined {
		if !c.isUser[i] && !c.isRow[i] {
			continue // queries with such an input are not merged
		}
		in := &joined[i]
		first := 0
		for _, inputs := range queries {
			n := 1
			if c.isUser[i] && inputs[i].Shape[0] == 1 {
				n = c.countUsers(inputs)
			}
			first += n * int(inputs[i].Shape[0])
		}
		if len(queries) == 1 && first == int(in.Shape[0]) {
			continue
		}
		var data []byte
		for _, inputs := range queries {
			n := 1
			if c.isUser[i] && inputs[i].Shape[0] == 1 {
				n = c.countUsers(inputs)
			}
			for range n {
				data = append(data, inputs[i].Data...)
			}
		}
		in.Shape, in.Data = slices.Clone(in.Shape), data
		in.Shape[0] = int64(first)
	}
	return joined, index
}

// runUsers runs one query or several as one.
func (s *session) runUsers(ctx context.Context, queries [][]tensor.Tensor) (*Result, error) {
	rows, batch := make([]int, len(queries)), 0
	for q, inputs := range queries {
		n, err := s.checkQuery(inputs)
		if err != nil {
			return nil, fmt.Errorf("run %s: %w", s.name, err)
		}
		rows[q] = n
		batch += n
	}
	r := s.runs.Get().(*run)
	var inputs []tensor.Tensor
	inputs, r.index = s.cut.joinQueries(queries, rows, r.index)
	return s.finish(ctx, r, inputs, nil, batch)
}

// userValue sets the value of an input of users in a run of the rows [row, row+rows) of batch. A
// user for each row is one of the rows.
func (r *run) userRows(in tensor.Tensor, batch, row, rows int) (data []byte, first int64) {
	data, first = in.Data, in.Shape[0]
	if int(first) == batch && r.hasOwnUsers() {
		stride := len(data) / max(batch, 1)
		data, first = data[row*stride:(row+rows)*stride], int64(rows)
	}
	return data, first
}

// hasOwnUsers reports whether each row has a user of its own.
func (r *run) hasOwnUsers() bool {
	n := len(r.index)
	return n > 1 && r.index[n-1] == int64(n-1)
}

// newIndex makes the value that says the user of each of the rows [row, row+rows).
func (r *run) newIndex(row, rows int) (ort.Value, error) {
	r.indexData = r.indexData[:0]
	first := int64(0)
	if r.hasOwnUsers() {
		first = r.index[row]
	}
	for _, user := range r.index[row : row+rows] {
		r.indexData = binary.NativeEndian.AppendUint64(r.indexData, uint64(user-first))
	}
	return r.newValue(tensor.Int64, []int64{int64(rows)}, int64(rows), r.indexData)
}
