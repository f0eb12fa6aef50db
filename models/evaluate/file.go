package evaluate

import (
	"bufio"
	"encoding/binary"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/api/tensor/npz"
	"github.com/muster-serve/muster/models"
)

// labelColumn is the name of the labels in a file.
const labelColumn = "label"

// ReadFile reads labelled rows for models of the signature of v: at most limit, or all if limit is
// 0. labels are by output and row.
//
// An .npz file has an array for each input, named as it, and "label": [rows], or [rows, outputs]. A
// .csv file has a header. An input has a column for each element of a row: named as the input if
// there is one, else the input's name and "_0", "_1", ...; so have the labels of several outputs.
// Other columns are ignored. Labels are 0 or 1.
func ReadFile(path string, v *models.Version, limit int) (rows Rows, labels [][]bool, err error) {
	fail := func(err error) (Rows, [][]bool, error) {
		return nil, nil, fmt.Errorf("read labelled rows %s: %w", path, err)
	}
	for _, p := range v.Inputs {
		if p.DataType == tensor.Bytes {
			return fail(fmt.Errorf("input %q of %s takes strings, which cannot be measured", p.Name,
				v))
		}
	}
	var t *labelledRows
	switch ext := strings.ToLower(filepath.Ext(path)); ext {
	case ".csv":
		t, err = readCSV(path, v, limit)
	case ".npz":
		t, err = readNPZ(path, v)
	default:
		err = fmt.Errorf("the name ends in %q, expected .csv or .npz", ext)
	}
	if err != nil {
		return fail(err)
	}
	if t.rows == 0 {
		return fail(errors.New("it has no rows"))
	}
	if limit > 0 {
		t.rows = min(t.rows, limit)
	}
	if err := t.checkIDs(v); err != nil {
		return fail(err)
	}
	if outputs := len(v.Outputs); t.labels != outputs {
		return fail(fmt.Errorf("it has %d labels a row, %s has %d outputs", t.labels, v, outputs))
	}
	labels = make([][]bool, t.labels)
	for i := range t.rows {
		for o := range t.labels {
			l := t.values[i*t.labels+o]
			if l != 0 && l != 1 {
				return fail(fmt.Errorf("the label of row %d is %v, expected 0 or 1", i, l))
			}
			labels[o] = append(labels[o], l == 1)
		}
	}
	return t, labels, nil
}

// A labelledRows is labelled rows in memory.
type labelledRows struct {
	rows   int
	inputs map[string]tensor.Tensor
	labels int       // a row
	values []float64 // of the labels
}

func (t *labelledRows) Count() int { return t.rows }

func (t *labelledRows) Batch(v *models.Version, first, n int) ([]tensor.Tensor, error) {
	var inputs []tensor.Tensor
	for _, p := range v.Inputs {
		x, ok := t.inputs[p.Name]
		if !ok || x.DataType != p.DataType {
			return nil, fmt.Errorf("the rows were not read for input %q of %s", p.Name, v)
		}
		row := len(x.Data) / int(x.Shape[0])
		x.Shape = append([]int64{int64(n)}, x.Shape[1:]...)
		x.Data = x.Data[first*row:][:n*row]
		inputs = append(inputs, x)
	}
	return inputs, nil
}

// checkIDs checks that ids are within their bounds, as an agent does for queries.
func (t *labelledRows) checkIDs(v *models.Version) error {
	for _, p := range v.Inputs {
		x := t.inputs[p.Name]
		size := x.DataType.Size()
		if len(p.IDBounds) == 0 && len(p.InferredBounds) == 0 || size == 0 {
			continue
		}
		row := len(x.Data) / size / int(x.Shape[0])
		if row == 0 {
			continue
		}
		run := row
		if len(x.Shape) > 1 {
			run = row / int(x.Shape[1])
		}
		for i := range t.rows * row {
			id := elementAsInt(x, i)
			low, high, ok := p.IDRange(i % row / max(run, 1))
			if ok && (id < low || id >= high) {
				return fmt.Errorf(
					"row %d: input %q has id %d, expected at least %d and less than %d",
					i/row, p.Name, id, low, high)
			}
		}
	}
	return nil
}

// elementAsInt returns element i of a tensor of integers.
func elementAsInt(t tensor.Tensor, i int) int64 {
	size := t.DataType.Size()
	b := t.Data[i*size:][:size]
	switch t.DataType {
	case tensor.Int64, tensor.Uint64:
		return int64(binary.LittleEndian.Uint64(b))
	case tensor.Int32:
		return int64(int32(binary.LittleEndian.Uint32(b)))
	case tensor.Uint32:
		return int64(binary.LittleEndian.Uint32(b))
	case tensor.Int16:
		return int64(int16(binary.LittleEndian.Uint16(b)))
	case tensor.Uint16:
		return int64(binary.LittleEndian.Uint16(b))
	case tensor.Int8:
		return int64(int8(b[0]))
	}
	return int64(b[0])
}

func readCSV(path string, v *models.Version, limit int) (*labelledRows, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := csv.NewReader(bufio.NewReaderSize(f, 1<<20))
	r.ReuseRecord = true
	header, err := r.Read()
	header = slices.Clone(header) // r uses its record again
	if err == io.EOF {
		return nil, errors.New("it has no header")
	}
	if err != nil {
		return nil, err
	}
	at := map[string]int{}
	for i, name := range header {
		name = strings.TrimSpace(name)
		if _, twice := at[name]; twice {
			return nil, fmt.Errorf("the header has column %q twice", name)
		}
		at[name] = i
	}
	columns := func(name string, n int) ([]int, error) {
		var list []int
		for i := range n {
			column := name
			if n > 1 {
				column = name + "_" + strconv.Itoa(i)
			}
			c, ok := at[column]
			if !ok {
				return nil, fmt.Errorf("the header has no column %q", column)
			}
			list = append(list, c)
		}
		return list, nil
	}
	t := &labelledRows{inputs: map[string]tensor.Tensor{}, labels: len(v.Outputs)}
	label, err := columns(labelColumn, t.labels)
	if err != nil {
		return nil, err
	}
	inputs := make([]tensor.Tensor, len(v.Inputs))
	from := make([][]int, len(v.Inputs))
	for i, p := range v.Inputs {
		row := p.Shape[min(1, len(p.Shape)):]
		width, err := tensor.Elements(row)
		if len(p.Shape) == 0 || err != nil || slices.Contains(row, models.Dynamic) {
			return nil, fmt.Errorf(
				"input %q has shape %v: rows of a table have a fixed shape, use .npz",
				p.Name, p.Shape)
		}
		if from[i], err = columns(p.Name, width); err != nil {
			return nil, err
		}
		inputs[i] = tensor.Tensor{Name: p.Name, DataType: p.DataType, Shape: slices.Clone(p.Shape)}
	}
	for limit == 0 || t.rows < limit {
		record, err := r.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		line, _ := r.FieldPos(0)
		for _, c := range label {
			value, err := strconv.ParseFloat(strings.TrimSpace(record[c]), 64)
			if err != nil {
				return nil, fmt.Errorf("line %d: label is %q, expected 0 or 1", line, record[c])
			}
			t.values = append(t.values, value)
		}
		for i := range inputs {
			for _, c := range from[i] {
				if inputs[i].Data, err = appendText(inputs[i].Data, inputs[i].DataType,
					strings.TrimSpace(record[c])); err != nil {
					return nil, fmt.Errorf("line %d: %s is %q, expected %s", line, header[c],
						record[c],
						inputs[i].DataType)
				}
			}
		}
		t.rows++
	}
	for _, x := range inputs {
		x.Shape[0] = int64(t.rows)
		t.inputs[x.Name] = x
	}
	return t, nil
}

// appendText appends an element given as text.
func appendText(b []byte, d tensor.DataType, s string) ([]byte, error) {
	switch d {
	case tensor.FP32:
		f, err := strconv.ParseFloat(s, 32)
		return binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(f))), err
	case tensor.FP64:
		f, err := strconv.ParseFloat(s, 64)
		return binary.LittleEndian.AppendUint64(b, math.Float64bits(f)), err
	case tensor.Bool:
		v, err := strconv.ParseBool(s)
		return append(b, byte(labelIndex(v))), err
	case tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64:
		i, err := strconv.ParseInt(s, 10, 8*d.Size())
		return appendInteger(b, d, i), err
	case tensor.Uint8, tensor.Uint16, tensor.Uint32, tensor.Uint64:
		i, err := strconv.ParseUint(s, 10, 8*d.Size())
		return appendInteger(b, d, int64(i)), err
	}
	return b, errors.ErrUnsupported
}

func appendInteger(b []byte, d tensor.DataType, i int64) []byte {
	return append(b, binary.LittleEndian.AppendUint64(nil, uint64(i))[:d.Size()]...)
}

// largest is the most bytes of the arrays of a file. It only keeps a damaged file from filling the
// memory.
const largest = 64 << 30

func readNPZ(path string, v *models.Version) (*labelledRows, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	file, err := npz.NewReader(f, info.Size(), largest)
	if err != nil {
		return nil, err
	}
	label, err := file.Read(labelColumn)
	if err != nil {
		return nil, err
	}
	t := &labelledRows{rows: int(label.Shape[0]), inputs: map[string]tensor.Tensor{}, labels: 1}
	if len(label.Shape) == 2 {
		t.labels = int(label.Shape[1])
	} else if len(label.Shape) > 2 {
		return nil, fmt.Errorf("array %q has shape %v, expected [rows] or [rows, outputs]",
			labelColumn, label.Shape)
	}
	if !isFloat(label.DataType) && !isInteger(label.DataType) {
		return nil, fmt.Errorf("array %q holds %s, expected numbers 0 or 1, or bools", labelColumn,
			label.DataType)
	}
	for i := range t.rows * t.labels {
		t.values = append(t.values, elementAsFloat(label, i))
	}
	for _, p := range v.Inputs {
		x, err := file.Read(p.Name)
		if err != nil {
			return nil, err
		}
		fits := len(x.Shape) == len(p.Shape)
		for i := 1; fits && i < len(p.Shape); i++ {
			fits = p.Shape[i] == models.Dynamic || p.Shape[i] == x.Shape[i]
		}
		if !fits {
			return nil, fmt.Errorf("array %q has shape %v, expected %v", p.Name, x.Shape, p.Shape)
		}
		if x.Shape[0] != int64(t.rows) {
			return nil, fmt.Errorf("array %q has %d rows, but there are %d labels", p.Name,
				x.Shape[0], t.rows)
		}
		if t.inputs[p.Name], err = convertTensor(x, p); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// isFloat and whole say which data types are converted into each other. Those that are in neither,
// 16-bit floats and strings, are not.
func isFloat(d tensor.DataType) bool { return d == tensor.FP32 || d == tensor.FP64 }

func isInteger(d tensor.DataType) bool {
	return d.Size() > 0 && !isFloat(d) && d != tensor.FP16 && d != tensor.BF16
}

// elementAsFloat returns element i of a tensor as a number.
func elementAsFloat(t tensor.Tensor, i int) float64 {
	switch t.DataType {
	case tensor.FP32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:])))
	case tensor.FP64:
		return math.Float64frombits(binary.LittleEndian.Uint64(t.Data[8*i:]))
	}
	return float64(elementAsInt(t, i))
}

// convertTensor returns the tensor with the data type of p: floats become floats, integers
// integers.
func convertTensor(t tensor.Tensor, p models.TensorSpec) (tensor.Tensor, error) {
	from, to := t.DataType, p.DataType
	if from != to && !(isFloat(from) && isFloat(to)) && !(isInteger(from) && isInteger(to)) {
		return tensor.Tensor{}, fmt.Errorf("array %q holds %s, expected %s", p.Name, from, to)
	}
	t.Name, t.DataType = p.Name, to
	if from == to {
		return t, nil
	}
	n, size := len(t.Data)/from.Size(), to.Size()
	old := tensor.Tensor{DataType: from, Data: t.Data}
	t.Data = make([]byte, 0, n*size)
	for i := range n {
		switch p.DataType {
		case tensor.FP32:
			t.Data = binary.LittleEndian.AppendUint32(t.Data,
				math.Float32bits(float32(elementAsFloat(old, i))))
		case tensor.FP64:
			t.Data = binary.LittleEndian.AppendUint64(t.Data, math.Float64bits(elementAsFloat(old,
				i)))
		default:
			v := elementAsInt(old, i)
			t.Data = appendInteger(t.Data, to, v)
			// A number of UINT64 above those of INT64 appears as one below 0.
			if elementAsInt(t, i) != v || v < 0 && (from == tensor.Uint64 || to == tensor.Uint64) ||
				to == tensor.Bool && v > 1 {
				text := strconv.FormatInt(v, 10)
				if from == tensor.Uint64 {
					text = strconv.FormatUint(uint64(v), 10)
				}
				return tensor.Tensor{}, fmt.Errorf("array %q: element %d is %s, which is no %s",
					p.Name, i, text, to)
			}
		}
	}
	return t, nil
}
