package querytrace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/api/tensor/npz"
)

// A share says how the arrays of an npz file with inputs are shared out among its queries: their
// first dimension counts the rows, users or values of all queries, or the queries.
type share struct {
	prefix string // of an array's name, before the input's
	of     func(*TracedQuery) int
	key    string // that a record must have for it; "": none
}

var shares = []share{
	{"row/", func(q *TracedQuery) int { return q.Rows }, ""},
	{"user/", func(q *TracedQuery) int { return q.Users }, usersKey},
	{"value/", func(q *TracedQuery) int { return q.Values }, valuesKey},
	{"query/", func(*TracedQuery) int { return 1 }, ""},
}

// shareOf returns the share and the input that the array of that name is for; nil if for none.
func shareOf(name string) (*share, string) {
	for i := range shares {
		if input, ok := strings.CutPrefix(name, shares[i].prefix); ok && input != "" {
			return &shares[i], input
		}
	}
	return nil, ""
}

// readArrays reads an npz file. Its queries are in memory until all are read.
func readArrays(name string, r io.Reader, each func(TracedQuery) error) error {
	data, err := io.ReadAll(io.LimitReader(r, maxFileBytes+1))
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", name, err)
	case len(data) > maxFileBytes:
		return fmt.Errorf("%s: more than %d bytes", name, int64(maxFileBytes))
	}
	queries, err := arraysOf(data)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, q := range queries {
		if err := each(q); err != nil {
			return err
		}
	}
	return nil
}

func arraysOf(data []byte) ([]TracedQuery, error) {
	file, err := npz.NewReader(bytes.NewReader(data), int64(len(data)), maxFileBytes)
	if err != nil {
		return nil, err
	}
	for _, name := range file.Names() {
		if s, _ := shareOf(name); s == nil && fieldOf(name) == nil {
			return nil,
				fmt.Errorf("unknown array %.80q, want %s, or inputs as row/NAME, user/NAME, "+
					"value/NAME or query/NAME", name, strings.Join(names(), ", "))
		}
	}
	var queries []TracedQuery
	for i := range fields {
		f := &fields[i]
		if !slices.Contains(file.Names(), f.key) {
			if f.required {
				return nil, fmt.Errorf("array %q is missing", f.key)
			}
			continue
		}
		array, err := file.Read(f.key)
		if err != nil {
			return nil, err
		}
		if queries == nil { // at_ms is the first field
			queries = make([]TracedQuery, array.Shape[0])
		}
		if len(array.Shape) != 1 || array.Shape[0] != int64(len(queries)) {
			return nil, fmt.Errorf("array %q: shape %v, want [%d], as of %s", f.key, array.Shape,
				len(queries), atKey)
		}
		if err := f.setArray(queries, array); err != nil {
			return nil, err
		}
	}
	var arrivals order
	for i := range queries {
		if err := arrivals.check(queries[i].At); err != nil {
			return nil, fmt.Errorf("query %d: %s: %w", i+1, atKey, err)
		}
	}
	return queries, readInputs(file, queries)
}

// setArray sets the field of all queries.
func (f *field) setArray(queries []TracedQuery, array tensor.Tensor) error {
	texts := map[string]string{}
	rest := array.Data
	for i := range queries {
		var err error
		switch {
		case f.text != nil && array.DataType == tensor.Bytes:
			n := 4 + binary.LittleEndian.Uint32(rest)
			err = f.setText(&queries[i], intern(texts, rest[4:n]))
			rest = rest[n:]
		case f.text != nil:
			return fmt.Errorf("array %q: %s, want strings", f.key, array.DataType)
		default:
			x, ok := numberAt(array, i)
			if !ok {
				return fmt.Errorf("array %q: %s, want INT64, INT32 or FP64", f.key, array.DataType)
			}
			switch {
			case x == 0 && !f.required: // the query does not say
			case f.time != nil:
				err = f.setMs(&queries[i], x)
			case x != math.Trunc(x) || math.Abs(x) > maxValues:
				err = fmt.Errorf("found %v, want %s", x, f.want())
			default:
				err = f.setCount(&queries[i], int64(x))
			}
		}
		if err != nil {
			return fmt.Errorf("query %d: %s: %w", i+1, f.key, err)
		}
	}
	return nil
}

// numberAt returns element i of an array of numbers as NumPy makes them by default, or 32-bit ones.
func numberAt(a tensor.Tensor, i int) (x float64, ok bool) {
	switch a.DataType {
	case tensor.Int64:
		return float64(int64(binary.LittleEndian.Uint64(a.Data[8*i:]))), true
	case tensor.Int32:
		return float64(int32(binary.LittleEndian.Uint32(a.Data[4*i:]))), true
	case tensor.FP64:
		return float64At(a.Data[8*i:]), true
	}
	return 0, false
}

// readInputs reads the inputs, and gives each query its part. All queries must be for one model,
// as others have other inputs.
func readInputs(file *npz.Reader, queries []TracedQuery) error {
	for _, name := range file.Names() {
		s, input := shareOf(name)
		if s == nil {
			continue
		}
		if q := slices.IndexFunc(queries, func(q TracedQuery) bool {
			return q.Model != queries[0].Model
		}); q >= 0 {
			return fmt.Errorf("array %q: inputs are for one model, but there are queries for %q and %q",
				name, queries[0].Model, queries[q].Model)
		}
		if s.key != "" && !slices.Contains(file.Names(), s.key) {
			return fmt.Errorf("array %q needs the array %q", name, s.key)
		}
		array, err := file.Read(name)
		if err != nil {
			return err
		}
		total := 0
		for i := range queries {
			total += s.of(&queries[i])
		}
		if array.Shape[0] != int64(total) {
			return fmt.Errorf("array %q: shape %v, want first dimension %d", name, array.Shape,
				total)
		}
		if array.DataType == tensor.Bytes {
			return fmt.Errorf("array %q: strings, want numbers; JSON lines may have strings", name)
		}
		width := len(array.Data) / max(total, 1)
		rest := array.Data
		for i := range queries {
			n := s.of(&queries[i])
			part := tensor.Tensor{Name: input, DataType: array.DataType,
				Shape: append([]int64{int64(n)}, array.Shape[1:]...),
				Data:  rest[: n*width : n*width]}
			queries[i].Inputs = append(queries[i].Inputs, part)
			rest = rest[n*width:]
		}
	}
	return nil
}

// WriteArrays writes queries as an npz file. If they have inputs, all must be for one model and
// have the same inputs with the same types and dimensions after the first, which counts what
// [ReadFile] shares them out by: rows, users, values or, if always 1, queries.
func WriteArrays(w io.Writer, queries []TracedQuery) error {
	if len(queries) == 0 {
		return errors.New("no queries")
	}
	var arrays []tensor.Tensor
	for i := range fields {
		if f := &fields[i]; f.required || slices.ContainsFunc(queries, func(q TracedQuery) bool {
			return f.isTold(&q)
		}) {
			arrays = append(arrays, f.arrayOf(queries))
		}
	}
	for i := range queries[0].Inputs {
		array, err := inputArray(queries, i)
		if err != nil {
			return fmt.Errorf("input %q: %w", queries[0].Inputs[i].Name, err)
		}
		arrays = append(arrays, array)
	}
	return npz.Write(w, arrays)
}

// arrayOf returns the field of all queries.
func (f *field) arrayOf(queries []TracedQuery) tensor.Tensor {
	t := tensor.Tensor{Name: f.key, DataType: tensor.Int64, Shape: []int64{int64(len(queries))}}
	for i := range queries {
		q := &queries[i]
		switch {
		case f.time != nil:
			t.DataType = tensor.FP64
			t.Data = appendFloat64(t.Data, toMs(*f.time(q)))
		case f.count != nil:
			t.Data = binary.LittleEndian.AppendUint64(t.Data, uint64(*f.count(q)))
		default:
			text := *f.text(q)
			t.DataType = tensor.Bytes
			t.Data = append(binary.LittleEndian.AppendUint32(t.Data, uint32(len(text))), text...)
		}
	}
	return t
}

// inputArray joins input i of all queries.
func inputArray(queries []TracedQuery, i int) (t tensor.Tensor, err error) {
	first := queries[0].Inputs[i]
	t = tensor.Tensor{DataType: first.DataType, Shape: slices.Clone(first.Shape)}
	if len(t.Shape) == 0 {
		return t, errors.New("it has no dimensions, which JSON lines may have")
	}
	t.Shape[0] = 0
	s := slices.IndexFunc(shares, func(s share) bool {
		return !slices.ContainsFunc(queries, func(q TracedQuery) bool {
			return i >= len(q.Inputs) || len(q.Inputs[i].Shape) == 0 ||
				q.Inputs[i].Shape[0] != int64(s.of(&q))
		})
	})
	if s < 0 {
		return t, errors.New(
			"its first dimension is not the rows, the users or the values of all queries")
	}
	t.Name = shares[s].prefix + first.Name
	for n, q := range queries {
		in := q.Inputs[i]
		if q.Model != queries[0].Model || len(q.Inputs) != len(queries[0].Inputs) ||
			in.Name != first.Name || in.DataType != first.DataType ||
			!slices.Equal(in.Shape[1:], first.Shape[1:]) {
			return t,
				fmt.Errorf("query %d has other inputs than the first, which JSON lines may have",
					n+1)
		}
		t.Shape[0] += in.Shape[0]
		t.Data = append(t.Data, in.Data...)
	}
	return t, nil
}

func float64At(b []byte) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(b)) }

func appendFloat64(b []byte, x float64) []byte {
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
}
