package roles

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/muster-serve/muster/api/tensor"
)

// Split returns the inputs of parts of a query, which have the given numbers of rows, in the order
// of the query's rows. What belongs to the user or to the query is the same of all parts. The parts
// share the query's memory where they can. The error names the input that does not fit.
func (r *Roles) Split(inputs []tensor.Tensor, rows []int) ([][]tensor.Tensor, error) {
	size, err := r.Check(inputs)
	if err != nil {
		return nil, err
	}
	sum := 0
	for _, n := range rows {
		if n <= 0 {
			return nil, fmt.Errorf("tensor %q: a part of %d rows, want more than 0",
				nameOf(inputs), n)
		}
		sum += n
	}
	if sum != size.Rows {
		return nil, fmt.Errorf("a query of %d rows, want %d for parts of %v rows", size.Rows, sum,
			rows)
	}
	parts := make([][]tensor.Tensor, len(rows))
	for p := range parts {
		parts[p] = slices.Clone(inputs)
	}
	for i := range inputs {
		t := &inputs[i]
		role := r.RoleOfInput(t.Name)
		if t.DataType == "" || role == Query || role == Ragged || t.Shape[0] != int64(size.Rows) {
			continue
		}
		cut, err := tensor.Split(*t, rows)
		if err != nil {
			return nil, err
		}
		for p := range cut {
			parts[p][i] = cut[p]
		}
	}
	for i := range r.Ragged {
		b, err := r.Ragged[i].bagsOf(inputs)
		if err != nil {
			return nil, err
		}
		if b.n != size.Rows {
			continue
		}
		from := 0
		for p, n := range rows {
			if err := b.f.putJoined(parts[p], []piece{{b, from, from + n, 1}}); err != nil {
				return nil, err
			}
			from += n
		}
	}
	return parts, nil
}

// putJoined sets the feature among inputs to that of a query of the pieces.
func (f *Feature) putJoined(inputs []tensor.Tensor, pieces []piece) error {
	values, weights, index, err := f.join(pieces)
	if err != nil {
		return err
	}
	*find(inputs, f.Values), *find(inputs, f.Index) = values, index
	if f.Weights != "" {
		*find(inputs, f.Weights) = weights
	}
	return nil
}

// IsOnce reports whether inputs of a query of the given size have 1 user, or row, beside another
// number of rows.
func (r *Roles) IsOnce(inputs []tensor.Tensor, size QuerySize) bool {
	if size.Rows == 1 || r.SizeOf != "" && r.RoleOfInput(r.SizeOf) != Row {
		return false
	}
	for i := range inputs {
		t := &inputs[i]
		if role := r.RoleOfInput(t.Name); t.DataType != "" && (role == Row || role == User) &&
			len(t.Shape) > 0 && t.Shape[0] == 1 {
			return true
		}
	}
	for i := range r.Ragged {
		if index := find(inputs, r.Ragged[i].Index); index != nil {
			if n, ok := r.Ragged[i].units(index); ok && n == 1 {
				return true
			}
		}
	}
	return false
}

// maxRows bounds the rows of what is repeated: it is the most that a model's largest batch size may
// be.
const maxRows = 1 << 20

// Repeat returns the inputs of a query with what it has once of its user, or of all rows, once for
// each row. They share the memory of inputs where nothing is repeated.
func (r *Roles) Repeat(inputs []tensor.Tensor) ([]tensor.Tensor, error) {
	return r.Join([][]tensor.Tensor{inputs})
}

// RepeatRows is Repeat for all but what belongs to the user, which there is once. It is an error if
// a query has several users: inputs of the same user for each row count as one.
func (r *Roles) RepeatRows(inputs []tensor.Tensor) ([]tensor.Tensor, error) {
	return r.repeatRows(inputs, true)
}

// FillRows returns the inputs with what rows have once, beside other rows, once for each row. It
// leaves what belongs to users as it is.
func (r *Roles) FillRows(inputs []tensor.Tensor) ([]tensor.Tensor, error) {
	return r.repeatRows(inputs, false)
}

// repeatRows is RepeatRows, with oneUser whether users are brought to one.
func (r *Roles) repeatRows(inputs []tensor.Tensor, oneUser bool) ([]tensor.Tensor, error) {
	rows := r.Measure(inputs).Rows
	out := slices.Clone(inputs)
	for i := range out {
		t := &out[i]
		if t.DataType == "" || len(t.Shape) == 0 || rows == 1 {
			continue
		}
		switch r.RoleOfInput(t.Name) {
		case Row:
			if t.Shape[0] == 1 {
				repeated, err := repeat(*t, rows)
				if err != nil {
					return nil, err
				}
				*t = repeated
			}
		case User:
			if t.Shape[0] == 1 || !oneUser {
				continue
			}
			c, err := newCutter(t)
			if err != nil {
				return nil, err
			}
			for k := range t.Shape[0] {
				if !slices.Equal(c.cut(0, 1), c.cut(k, k+1)) {
					return nil,
						fmt.Errorf("input %q: row %d is of another user than row 0, want one user a "+
							"query", t.Name, k)
				}
			}
			if t.Shape[0] > 0 {
				t.Data, t.Shape = c.cut(0, 1), slices.Clone(t.Shape)
				t.Shape[0] = 1
			}
		}
	}
	for i := range r.Ragged {
		b, err := r.Ragged[i].bagsOf(out)
		switch {
		case err != nil:
			return nil, err
		case b.f.Per == User && b.n != 1 && oneUser:
			return nil, fmt.Errorf("input %q: %s of %d users, want one user a query", b.f.Index,
				b.f.Form,
				b.n)
		case b.f.Per == Row && b.n == 1 && rows != 1:
			if err := b.f.putJoined(out, []piece{{b, 0, 1, rows}}); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// repeat returns a tensor with its only row so many times.
func repeat(t tensor.Tensor, rows int) (tensor.Tensor, error) {
	if rows > maxRows || len(t.Data) > 0 && rows > maxBytes/len(t.Data) {
		return t, tooLarge(t.Name)
	}
	t.Shape, t.Data = slices.Clone(t.Shape), bytes.Repeat(t.Data, rows)
	t.Shape[0] = int64(rows)
	return t, nil
}

// Join returns the inputs of one run of several queries: their rows one after the other, and for
// each of them what belongs to its user. Each query must have passed [Roles.Check], in the same
// order of inputs. Inputs of role Query are those of the first query. It is an error if there are
// more than maxRows rows.
func (r *Roles) Join(queries [][]tensor.Tensor) ([]tensor.Tensor, error) {
	sizes := make([]int, len(queries))
	sum := 0
	for q, inputs := range queries {
		sizes[q] = r.Measure(inputs).Rows
		if sum += min(sizes[q], maxRows+1); sum > maxRows {
			return nil, fmt.Errorf("a run of more than %d rows", maxRows)
		}
	}
	joined := slices.Clone(queries[0])
	for i := range joined {
		t := &joined[i]
		role := r.RoleOfInput(t.Name)
		if t.DataType == "" || role == Query || role == Ragged ||
			len(queries) == 1 && t.Shape[0] == int64(sum) {
			continue
		}
		size := 0
		for q, inputs := range queries {
			in := &inputs[i]
			if in.DataType != t.DataType || len(in.Shape) != len(t.Shape) ||
				!slices.Equal(in.Shape[1:], t.Shape[1:]) {
				return nil, fmt.Errorf("input %q: %s %v and %s %v cannot be joined", t.Name,
					t.DataType,
					t.Shape, in.DataType, in.Shape)
			}
			if size += len(in.Data) * timesOf(int(in.Shape[0]), sizes[q]); size > maxBytes {
				return nil, tooLarge(t.Name)
			}
		}
		data := make([]byte, 0, size)
		for q, inputs := range queries {
			for range timesOf(int(inputs[i].Shape[0]), sizes[q]) {
				data = append(data, inputs[i].Data...)
			}
		}
		t.Shape, t.Data = slices.Clone(t.Shape), data
		t.Shape[0] = int64(sum)
	}
	for i := range r.Ragged {
		pieces, same := make([]piece, len(queries)), len(queries) == 1
		for q, inputs := range queries {
			b, err := r.Ragged[i].bagsOf(inputs)
			if err != nil {
				return nil, err
			}
			pieces[q] = piece{b, 0, b.n, timesOf(b.n, sizes[q])}
			same = same && pieces[q].times == 1
		}
		if same {
			continue
		}
		if err := r.Ragged[i].putJoined(joined, pieces); err != nil {
			return nil, err
		}
	}
	return joined, nil
}

// timesOf is how often what has n rows is there in a query of the given number of rows.
func timesOf(n, rows int) int {
	if n == 1 {
		return rows
	}
	return 1
}

// MakeRow returns the inputs of a query of no rows with one row of zeros, so that it can run: an
// output of the user does not depend on rows.
func (r *Roles) MakeRow(inputs []tensor.Tensor) ([]tensor.Tensor, error) {
	inputs = slices.Clone(inputs)
	for i := range inputs {
		t := &inputs[i]
		role := r.RoleOfInput(t.Name)
		if t.DataType == "" || role == Query || role == Ragged || len(t.Shape) == 0 ||
			t.Shape[0] != 0 {
			continue
		}
		t.Shape = slices.Clone(t.Shape)
		t.Shape[0] = 1
		n, err := tensor.Elements(t.Shape)
		size := t.DataType.Size()
		if size == 0 {
			size = 4 // an empty string
		}
		if err != nil || n > maxBytes/size {
			return nil, tooLarge(t.Name)
		}
		t.Data = make([]byte, n*size)
	}
	for i := range r.Ragged {
		f := &r.Ragged[i]
		b, err := f.bagsOf(inputs)
		if err != nil {
			return nil, err
		}
		if b.n == 0 {
			*find(inputs, f.Index) = f.encode(b.index, 1, make([]int64, f.keys()))
		}
	}
	return inputs, nil
}

// nameOf names a query by its first input.
func nameOf(inputs []tensor.Tensor) string {
	if len(inputs) == 0 {
		return ""
	}
	return inputs[0].Name
}
