package worker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
)

// A validatedRequest is a request that fits the signature of its model.
type validatedRequest struct {
	inputs    []tensor.Tensor // in the order of the model's signature; zero: left out
	batchSize int             // in [1, the model's largest]
	first     string          // the input that says it
	once      bool            // an input has one row
	// size is what a query of a version with roles has; its Rows may be 0, and inputs have one
	// then.
	size roles.QuerySize
	// positions of the wanted outputs in the signature, in the request's order
	outputs []int
}

// validate checks req against the signature of v: names, types, shapes, one batch size within the
// limit, the length of the contents, and ids within their bounds. A runtime that is given a
// validated query reads no memory outside its tensors and its embedding tables. The error wraps
// outcome.ErrInvalid.
func validate(v *models.Version, req *oip.Request) (validatedRequest, error) {
	q := validatedRequest{inputs: make([]tensor.Tensor, len(v.Inputs))}
	if v.Batchless {
		q.batchSize = 1
	}
	given := make([]bool, len(v.Inputs))
	for i := range req.Inputs {
		t := &req.Inputs[i]
		position := i // most clients keep the order
		if i >= len(v.Inputs) || v.Inputs[i].Name != t.Name {
			position = portIndex(v.Inputs, t.Name)
		}
		if position < 0 {
			return validatedRequest{}, outcome.Invalid("unknown input %q, %s has %s", t.Name, v,
				portNames(v.Inputs))
		}
		if given[position] {
			return validatedRequest{}, outcome.Invalid("input %q is given twice", t.Name)
		}
		given[position] = true
		if err := checkTensor(v, &v.Inputs[position], t); err != nil {
			return validatedRequest{}, err
		}
		if !v.Batchless && v.Roles == nil && v.Inputs[position].HasRows() {
			if err := q.checkBatch(v, t); err != nil {
				return validatedRequest{}, err
			}
		}
		if err := checkContents(t); err != nil {
			return validatedRequest{}, err
		}
		if err := checkIDs(&v.Inputs[position], t); err != nil {
			return validatedRequest{}, err
		}
		q.inputs[position] = *t
	}
	for i := range given {
		if !given[i] && !v.Inputs[i].Optional {
			return validatedRequest{}, outcome.Invalid("input %q is missing, %s takes %s",
				v.Inputs[i].Name, v,
				portNames(v.Inputs))
		}
	}
	if err := q.settleRows(v); err != nil {
		return validatedRequest{}, err
	}
	var err error
	q.outputs, err = chooseOutputs(v, req.Outputs)
	return q, err
}

// settleRows checks the sizes of a query of a version with roles. Of one without, it repeats the
// inputs that have one row for all rows of the others.
func (q *validatedRequest) settleRows(v *models.Version) (err error) {
	r := v.Roles
	if r == nil {
		if q.batchSize > 1 && q.once {
			if q.inputs, err = plainRoles(v).Repeat(q.inputs); err != nil {
				return outcome.Invalid("%w", err)
			}
		}
		return nil
	}
	if rows, largest := r.Measure(q.inputs).Rows, v.Config.LargestBatchSize; rows > largest {
		return outcome.Invalid("batch size %d, want 0 to %d: that is how many candidates %s takes, "+
			"unless largest_batch_size in its model.yaml says another number", rows, largest, v)
	}
	if q.size, err = r.Check(q.inputs); err != nil {
		return outcome.Invalid("%w", err)
	}
	q.batchSize = max(1, q.size.Rows)
	if q.size.Rows == 0 {
		q.inputs, err = r.MakeRow(q.inputs)
	} else if r.CanSplit() {
		q.inputs, err = r.FillRows(q.inputs)
	}
	if err != nil {
		return outcome.Invalid("%w", err)
	}
	return nil
}

// plainRoles returns the roles of a version that has none.
func plainRoles(v *models.Version) *roles.Roles {
	names, shapes := make([]string, len(v.Inputs)), make([][]int64, len(v.Inputs))
	for i := range v.Inputs {
		names[i] = v.Inputs[i].Name
		if v.Inputs[i].HasRows() {
			shapes[i] = v.Inputs[i].Shape
		}
	}
	return roles.OfShapes(names, shapes)
}

// checkBatch checks an input's batch size, and takes it for that of the query if it is the first.
// An input with one row may be for all rows of the others.
func (q *validatedRequest) checkBatch(v *models.Version, t *tensor.Tensor) error {
	batchSize := t.Shape[0]
	if largest := v.Config.LargestBatchSize; batchSize < 1 || batchSize > int64(largest) {
		return outcome.Invalid("input %q: batch size %d, want 1 to %d", t.Name, batchSize, largest)
	}
	if mayBeOnce := !v.Config.NeverSentOnce; mayBeOnce && (batchSize == 1 || q.batchSize == 1) {
		q.once = true
		if batchSize == 1 && q.batchSize > 1 {
			return nil
		}
		q.batchSize = 0
	}
	if q.batchSize == 0 {
		q.batchSize, q.first = int(batchSize), t.Name
	}
	if int(batchSize) != q.batchSize {
		return outcome.Invalid("input %q: batch size %d, but input %q has %d", t.Name, batchSize,
			q.first, q.batchSize)
	}
	return nil
}

// checkTensor checks an input's type and shape, except the batch size.
func checkTensor(v *models.Version, p *models.TensorSpec, t *tensor.Tensor) error {
	if t.DataType != p.DataType {
		return outcome.Invalid("input %q: type %s, want %s", t.Name, t.DataType, p.DataType)
	}
	if p.IsScalar() && isOne(t.Shape) { // clients of Triton, which has no scalars, send [1]
		t.Shape = p.Shape
	}
	if len(t.Shape) != len(p.Shape) {
		return outcome.Invalid("input %q: shape %v has rank %d, want rank %d, shape %s", t.Name,
			t.Shape, len(t.Shape), len(p.Shape), formatShape(v, p))
	}
	first := 1
	if v.Batchless || !p.HasRows() {
		first = 0
	}
	for i := first; i < len(p.Shape); i++ {
		// 0 is a size too: a new user's history is empty.
		if p.Shape[i] == models.Dynamic && t.Shape[i] >= 0 || t.Shape[i] == p.Shape[i] {
			continue
		}
		return outcome.Invalid("input %q: shape %v, want %s (N is the batch size, -1 any size)",
			t.Name, t.Shape, formatShape(v, p))
	}
	return nil
}

// isOne reports whether a shape is that of one element.
func isOne(shape []int64) bool {
	return !slices.ContainsFunc(shape, func(d int64) bool { return d != 1 })
}

// checkContents checks that the length of the data fits the shape.
func checkContents(t *tensor.Tensor) error {
	elements, err := tensor.Elements(t.Shape)
	if err != nil {
		return outcome.Invalid("input %q: %w", t.Name, err)
	}
	if t.DataType != tensor.Bytes {
		// The division detects a product that has overflowed.
		if want := elements * t.DataType.Size(); len(t.Data) != want ||
			want/t.DataType.Size() != elements {
			return outcome.Invalid("input %q: contents of %d bytes, want %d for shape %v of %s",
				t.Name, len(t.Data), want, t.Shape, t.DataType)
		}
		return nil
	}
	rest := t.Data
	for i := range elements {
		if len(rest) < 4 {
			return outcome.Invalid(
				"input %q: contents end at element %d, want %d elements for shape %v", t.Name, i,
				elements, t.Shape)
		}
		n := uint64(binary.LittleEndian.Uint32(rest))
		if rest = rest[4:]; uint64(len(rest)) < n {
			return outcome.Invalid("input %q: element %d of %d bytes ends beyond the contents",
				t.Name, i, n)
		}
		if bytes.IndexByte(rest[:n], 0) >= 0 {
			return outcome.Invalid("input %q: element %d, %.64q, has a zero byte, which ONNX "+
				"Runtime's strings cannot hold", t.Name, i, rest[:n])
		}
		rest = rest[n:]
	}
	if len(rest) > 0 {
		return outcome.Invalid("input %q: %d bytes after the %d elements of shape %v", t.Name,
			len(rest), elements, t.Shape)
	}
	return nil
}

// checkIDs checks that every id of t is in its range. checkContents must have accepted t.
func checkIDs(p *models.TensorSpec, t *tensor.Tensor) error {
	if len(p.IDBounds) == 0 && len(p.InferredBounds) == 0 {
		return nil
	}
	switch t.DataType {
	case tensor.Int64:
		return idsWithin[int64](p, t)
	case tensor.Int32:
		return idsWithin[int32](p, t)
	case tensor.Uint64:
		return idsWithin[uint64](p, t)
	case tensor.Uint32:
		return idsWithin[uint32](p, t)
	case tensor.Int16:
		return idsWithin[int16](p, t)
	case tensor.Uint16:
		return idsWithin[uint16](p, t)
	case tensor.Int8:
		return idsWithin[int8](p, t)
	case tensor.Uint8:
		return idsWithin[uint8](p, t)
	}
	return fmt.Errorf("input %q of type %s has id bounds", p.Name, p.DataType)
}

type integer interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64
	tensor.Element
}

func idsWithin[T integer](p *models.TensorSpec, t *tensor.Tensor) error {
	ids, err := tensor.Values[T](*t)
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return nil
	}
	// Shape [N, tables, ...]: each table has its own bound. In every item, run consecutive ids
	// belong to each table. With a single bound all ids are one run.
	run := len(ids)
	tables := max(len(p.IDBounds), len(p.InferredBounds))
	if tables > 1 {
		run = len(ids) / int(t.Shape[0]) / tables
	}
	var few [64]idRange // most models have fewer tables: nothing is allocated
	ranges := few[:0]
	for table := range tables {
		low, high, ok := p.IDRange(table)
		r := idRange{uint64(low), uint64(high - low)}
		if !ok {
			r.size = math.MaxUint64
		}
		ranges = append(ranges, r)
	}
	for start := 0; start < len(ids); {
		for table := range ranges {
			// As unsigned numbers, an id below the range is further from its begin than any in it,
			// so one comparison tests both ends.
			r := ranges[table]
			for i, id := range ids[start : start+run] {
				if uint64(id)-r.low < r.size {
					continue
				}
				if low, high, ok := p.IDRange(table); ok {
					return idOutside(t, start+i, id, low, high)
				}
			}
			start += run
		}
	}
	return nil
}

// An idRange is the ids from low on, as unsigned numbers.
type idRange struct{ low, size uint64 }

func idOutside[T integer](t *tensor.Tensor, i int, id T, low, high int64) error {
	position := make([]int, len(t.Shape))
	for d := len(t.Shape) - 1; d >= 0; d-- {
		size := int(t.Shape[d])
		position[d], i = i%size, i/size
	}
	return outcome.Invalid("input %q: id %d at position %v, want %d to %d", t.Name, id, position,
		low, high-1)
}

// chooseOutputs returns the positions of the wanted outputs in the signature; all if the request
// names none.
func chooseOutputs(v *models.Version, wanted []oip.RequestedOutput) ([]int, error) {
	positions := make([]int, 0, len(v.Outputs))
	if len(wanted) == 0 {
		for i := range v.Outputs {
			positions = append(positions, i)
		}
		return positions, nil
	}
	for _, w := range wanted {
		position := portIndex(v.Outputs, w.Name)
		if position < 0 {
			return nil, outcome.Invalid("unknown output %q, %s has %s", w.Name, v,
				portNames(v.Outputs))
		}
		if slices.Contains(positions, position) {
			return nil, outcome.Invalid("output %q is asked for twice", w.Name)
		}
		positions = append(positions, position)
	}
	return positions, nil
}

func portIndex(ports []models.TensorSpec, name string) int {
	for i := range ports { // by index: a Port is large, and there are few
		if ports[i].Name == name {
			return i
		}
	}
	return -1
}

// portNames lists the names of ports for error messages: `"dense", "ids"`.
func portNames(ports []models.TensorSpec) string {
	names := make([]string, len(ports))
	for i, p := range ports {
		names[i] = fmt.Sprintf("%q", p.Name)
	}
	return strings.Join(names, ", ")
}

// formatShape formats the shape of an input of v with N as the batch size: [N 4].
func formatShape(v *models.Version, p *models.TensorSpec) string {
	if v.Batchless || !p.HasRows() {
		return fmt.Sprint(p.Shape)
	}
	return strings.Replace(fmt.Sprint(p.Shape), fmt.Sprint(models.Dynamic), "N", 1)
}

// ParseVersion returns the number of the version that a request names; 0, the newest, for "". The
// error wraps outcome.ErrInvalid and names model.
func ParseVersion(model, version string) (int64, error) {
	if version == "" {
		return 0, nil
	}
	number, err := strconv.ParseInt(version, 10, 64)
	if err != nil || number <= 0 {
		return 0, outcome.Invalid("version %q of model %q, want a whole number above 0", version,
			model)
	}
	return number, nil
}
