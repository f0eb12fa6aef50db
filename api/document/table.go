package document

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// A Table reads a CSV file with a header line row by row and names file, line and column in every
// error.
type Table struct {
	name    string
	r       *csv.Reader
	columns map[string]int
	row     []string
	err     error
}

// NewTable reads the header of a CSV file, which must have the required columns and may have the
// optional ones. name is the file's name in errors. Lines that begin with # are comments.
func NewTable(name string, r io.Reader, required, optional []string) (*Table, error) {
	t := &Table{name: name, r: csv.NewReader(r), columns: map[string]int{}}
	t.r.ReuseRecord = true
	t.r.Comment = '#'
	t.r.TrimLeadingSpace = true
	header, err := t.r.Read()
	if err == io.EOF {
		return nil, fmt.Errorf("%s: empty; want a header line %q", name,
			strings.Join(required, ","))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	for i, c := range header {
		c = strings.TrimSpace(strings.TrimPrefix(c, "\ufeff"))
		line, column := t.r.FieldPos(i)
		_, twice := t.columns[c]
		if twice || !slices.Contains(required, c) && !slices.Contains(optional, c) {
			return nil, fmt.Errorf("%s: line %d, column %d: header %q, want %q once each", name,
				line, column, c, append(slices.Clone(required), optional...))
		}
		t.columns[c] = i
	}
	for _, c := range required {
		if _, ok := t.columns[c]; !ok {
			return nil, fmt.Errorf("%s: line 1: header has no column %q", name, c)
		}
	}
	return t, nil
}

// Next reads a row. It returns false at the end, and on an error, which Err then returns.
func (t *Table) Next() bool {
	t.row, t.err = t.r.Read()
	switch {
	case t.err == io.EOF:
		t.err = nil
		return false
	case errors.Is(t.err, csv.ErrFieldCount):
		line, _ := t.r.FieldPos(0)
		t.err = fmt.Errorf("%s: line %d: %d values, want %d: %s", t.name, line, len(t.row),
			len(t.columns), strings.Join(t.columnNames(), ","))
		return false
	case t.err != nil:
		t.err = fmt.Errorf("%s: %w", t.name, t.err)
		return false
	}
	return true
}

// Err is the error that ended Next; nil at the end of the file.
func (t *Table) Err() error { return t.err }

// columnNames returns the names of the columns in their order.
func (t *Table) columnNames() []string {
	names := make([]string, len(t.columns))
	for name, i := range t.columns {
		names[i] = name
	}
	return names
}

// HasColumn reports whether the file has an optional column.
func (t *Table) HasColumn(column string) bool {
	_, ok := t.columns[column]
	return ok
}

// Text is the row's value in a column, without spaces around it.
func (t *Table) Text(column string) string {
	return strings.TrimSpace(t.row[t.columns[column]])
}

// Errorf makes an error about the row's value in a column.
func (t *Table) Errorf(column, format string, args ...any) error {
	line, pos := t.r.FieldPos(t.columns[column])
	return fmt.Errorf("%s: line %d, column %d (%s): %s", t.name, line, pos, column,
		fmt.Sprintf(format, args...))
}

// Integer is the row's value in a column, which must be an integer from lo to hi.
func (t *Table) Integer(column string, lo, hi int) (int, error) {
	n, err := strconv.Atoi(t.Text(column))
	if err != nil || n < lo || n > hi {
		return 0, t.Errorf(column, "found %q, want an integer in %d..%d", t.Text(column), lo,
			hi)
	}
	return n, nil
}

// Number is the row's value in a column, which must be a finite number.
func (t *Table) Number(column string) (float64, error) {
	x, err := strconv.ParseFloat(t.Text(column), 64)
	if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
		return 0, t.Errorf(column, "found %q, want a number", t.Text(column))
	}
	return x, nil
}
