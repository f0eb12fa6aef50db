package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
)

// An answer may depart from the reference's by this share of the value, or by this share of itself
// near 0: a runtime adds numbers in another order for another batch size. Floats of 16 bits, whose
// neighbours are further apart, may depart by one place.
const tolerance = 1e-4

// A Reference answers queries alone, one at a time: its answers are right.
type Reference interface {
	// Infer answers a query. The caller releases the answer.
	Infer(ctx context.Context, req *oip.Request) (*oip.Response, error)
}

// errWrong is the kind of a query's failure that was answered with other values than the
// reference's.
var errWrong = errors.New("wrong answer")

// ServedVersions asks the server for the versions that may answer queries of the model or, of a
// family, those of its variants.
func (m *TargetModel) ServedVersions(ctx context.Context, server Server) ([]names.ModelKey, error) {
	served := []string{m.Name}
	metadata, err := server.ModelMetadata(ctx, m.Name, "")
	if err != nil {
		return nil, fmt.Errorf("metadata of model %q: %w", m.Name, err)
	}
	properties, err := oip.ParseProperties(metadata.GetProperties())
	if err != nil {
		return nil, fmt.Errorf("model %q: %w", m.Name, err)
	}
	if len(properties.Variants) > 0 && properties.Family == m.Name {
		served = properties.Variants
	}
	var keys []names.ModelKey
	for _, model := range served {
		if model != m.Name {
			if metadata, err = server.ModelMetadata(ctx, model, ""); err != nil {
				return nil, fmt.Errorf("metadata of model %q: %w", model, err)
			}
		}
		for _, v := range metadata.GetVersions() {
			keys = append(keys, versionKey(model, v))
		}
	}
	return keys, nil
}

// versionKey names a version whose number is a text, as the protocol has it.
func versionKey(model, version string) names.ModelKey {
	return names.ModelKey(model + "/" + version)
}

// Verify has Run compare each answer of a version of the model, or of a variant of the family, with
// the reference's, row by row; an answer that departs from it is a failed query, and so is one of a
// version without a reference. Each row of the model's outputs must depend on the same row of the
// inputs alone. Verify has the reference answer all rows that queries of the model can have, a few
// queries' worth, and blocks until then.
func (m *TargetModel) Verify(ctx context.Context, version names.ModelKey,
	reference Reference) error {
	if m.batchless {
		return fmt.Errorf("model %q has no batch dimension, so there are no rows to compare",
			m.Name)
	}
	if m.queries != nil || m.recorded != nil {
		return fmt.Errorf("model %q: queries of a file cannot be compared row by row", m.Name)
	}
	var parts []*oip.Response
	var sizes []int
	for from := 0; from < m.rows; from += m.LargestBatchSize {
		n := min(m.LargestBatchSize, m.rows-from)
		resp, err := reference.Infer(ctx, m.rowsFrom(from, n))
		if err != nil {
			return fmt.Errorf("%s: the reference's answer: %w", version, err)
		}
		defer resp.Release()
		parts, sizes = append(parts, resp), append(sizes, n)
	}
	all, err := oip.Join(parts, sizes)
	if err != nil {
		return fmt.Errorf("the reference's answer: %w", err)
	}
	tell := false // whether an answer tells the order of its rows
	var expected []expectedRows
	for _, out := range all.Outputs {
		if out.DataType.Size() == 0 {
			return fmt.Errorf("%s: output %q is %s, want numbers to compare", version, out.Name,
				out.DataType)
		}
		e := expectedRows{out.Name, out.DataType, out.Shape[1:], out.Data, len(out.Data) / m.rows}
		for i := 1; i < m.rows && !tell; i++ {
			tell = firstDifference(e.dataType, e.rowAt(i), e.rowAt(i-1)) >= 0
		}
		expected = append(expected, e)
	}
	if !tell && m.rows > 1 {
		return fmt.Errorf("%s: the reference gives all %d rows the same answer, so rows cannot be "+
			"told apart", version, m.rows)
	}
	if m.expected == nil {
		m.expected = map[names.ModelKey][]expectedRows{}
	}
	m.expected[version] = expected
	return nil
}

// An expectedRows is an output as the reference answers it, for all rows of a model's inputs.
type expectedRows struct {
	name     string
	dataType tensor.DataType
	shape    []int64 // without the first dimension
	data     []byte
	width    int // bytes of a row
}

func (e *expectedRows) rowAt(i int) []byte { return e.data[i*e.width : (i+1)*e.width] }

// check compares an answer to n rows from the row from on with that of the reference of the version
// that has answered. It returns an error that wraps errWrong and names the output, the row and the
// first value that departs.
func (m *TargetModel) check(resp *oip.Response, from, n int) error {
	if m.expected == nil {
		return nil
	}
	answered := versionKey(resp.Model, resp.Version)
	if resp.Variant != "" {
		answered = versionKey(resp.Variant, resp.VariantVersion)
	}
	expected, known := m.expected[answered]
	if !known {
		return fmt.Errorf("%w: %s has answered, which there is nothing to compare with", errWrong,
			answered)
	}
	for i := range expected {
		want := &expected[i]
		out, ok := resp.Output(want.name)
		if !ok || out.DataType != want.dataType || len(out.Shape) != len(want.shape)+1 ||
			out.Shape[0] != int64(n) || !slices.Equal(out.Shape[1:], want.shape) {
			return fmt.Errorf("%w of %s: output %q is %s %v, want %s of %d rows of %v", errWrong,
				answered, want.name, out.DataType, out.Shape, want.dataType, n, want.shape)
		}
		for i := range n {
			got, right := out.Data[i*want.width:(i+1)*want.width], want.rowAt(from+i)
			if at := firstDifference(want.dataType, got, right); at >= 0 {
				return fmt.Errorf("%w of %s: output %q, row %d of %d, value %d is %v, want %v",
					errWrong, answered, want.name, i, n, at, elementAsFloat(want.dataType, got, at),
					elementAsFloat(want.dataType, right, at))
			}
		}
	}
	return nil
}

// firstDifference returns the index of the first element of a that departs from that of b, -1 if
// none does.
func firstDifference(d tensor.DataType, a, b []byte) int {
	for i := range len(a) / d.Size() {
		x, y := elementAsFloat(d, a, i), elementAsFloat(d, b, i)
		if x == y || math.IsNaN(x) && math.IsNaN(y) {
			continue
		}
		near := math.Abs(x-y) <= tolerance*max(math.Abs(y), tolerance)
		if d == tensor.FP16 || d == tensor.BF16 {
			finite := !math.IsInf(x, 0) && !math.IsInf(y, 0) && !math.IsNaN(x-y)
			apart := float16Rank(a, i) - float16Rank(b, i)
			near = finite && -1 <= apart && apart <= 1
		}
		if !near {
			return i
		}
	}
	return -1
}

// float16Rank counts the floats of 16 bits from 0 to element i of data, which is below 0 if that
// is.
func float16Rank(data []byte, i int) int {
	bits := int(binary.LittleEndian.Uint16(data[2*i:]))
	if at := bits &^ (1 << 15); at != bits {
		return -at
	}
	return bits
}

// elementAsFloat returns element i of data, of 64-bit integers the nearest float.
func elementAsFloat(d tensor.DataType, data []byte, i int) float64 {
	at := data[i*d.Size():]
	switch d {
	case tensor.FP32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(at)))
	case tensor.FP64:
		return math.Float64frombits(binary.LittleEndian.Uint64(at))
	case tensor.Int8:
		return float64(int8(at[0]))
	case tensor.Int16:
		return float64(int16(binary.LittleEndian.Uint16(at)))
	case tensor.Int32:
		return float64(int32(binary.LittleEndian.Uint32(at)))
	case tensor.Int64:
		return float64(int64(binary.LittleEndian.Uint64(at)))
	case tensor.FP16, tensor.BF16:
		return tensor.OfHalf(d, binary.LittleEndian.Uint16(at))
	case tensor.Uint16:
		return float64(binary.LittleEndian.Uint16(at))
	case tensor.Uint32:
		return float64(binary.LittleEndian.Uint32(at))
	case tensor.Uint64:
		return float64(binary.LittleEndian.Uint64(at))
	}
	return float64(at[0])
}
