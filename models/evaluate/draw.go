package evaluate

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
)

// Draw returns n random rows for models of the signature of v, the same for the same seed: normally
// distributed floats, and ids that are uniform within their bounds. Ids of the tables of a
// generated model whose names end in "user" are the same in a hundred rows, which so are a hundred
// items for one user.
func Draw(v *models.Version, n int, seed uint64) (Rows, error) {
	d := &drawnInputs{version: v, n: n, seed: seed}
	for _, t := range v.Config.Tables {
		d.user = append(d.user, strings.HasSuffix(t.Name, "user"))
	}
	for _, p := range v.Inputs {
		wrong := func(format string, args ...any) (Rows, error) {
			return nil, fmt.Errorf("input %q of %s %s: measure against a file of labelled rows",
				p.Name, v, fmt.Sprintf(format, args...))
		}
		if len(p.Shape) == 0 || slices.Contains(p.Shape[1:], models.Dynamic) {
			return wrong("has shape %v, whose rows cannot be drawn", p.Shape)
		}
		switch p.DataType {
		case tensor.FP32:
		case tensor.Int64, tensor.Int32:
			if len(p.Bounds()) == 0 {
				return wrong("has no id_bounds in %s, and its model does not say them, so ids "+
					"cannot be drawn", models.ConfigFile)
			}
		default:
			return wrong("holds %s, which cannot be drawn", p.DataType)
		}
	}
	return d, nil
}

type drawnInputs struct {
	version *models.Version
	n       int
	seed    uint64
	user    []bool // by table
}

func (d *drawnInputs) Count() int { return d.n }

// Batch draws whole groups of items, so that a row does not depend on the batch that it is in. v is
// of d's signature; its inputs may have another order.
func (d *drawnInputs) Batch(v *models.Version, first, n int) ([]tensor.Tensor, error) {
	byName := map[string]tensor.Tensor{}
	from := first / items * items
	groups := (first + n - from + items - 1) / items
	for _, p := range d.version.Inputs {
		shape := slices.Clone(p.Shape)
		shape[0] = int64(groups * items)
		elements, err := tensor.Elements(shape)
		if err != nil {
			return nil, err
		}
		size := p.DataType.Size()
		byName[p.Name] = tensor.Tensor{Name: p.Name, DataType: p.DataType, Shape: shape,
			Data: make([]byte, 0, elements*size)}
	}
	for g := range groups {
		random := rand.New(rand.NewPCG(d.seed, uint64(from/items+g)))
		for _, p := range d.version.Inputs {
			t := byName[p.Name]
			d.drawGroup(random, p, &t)
			byName[p.Name] = t
		}
	}
	var inputs []tensor.Tensor
	for _, p := range v.Inputs {
		t, ok := byName[p.Name]
		if !ok {
			return nil, fmt.Errorf("%s has input %q, %s does not", v, p.Name, d.version)
		}
		row := len(t.Data) / int(t.Shape[0])
		t.Data = t.Data[(first-from)*row:][:n*row]
		t.Shape[0] = int64(n)
		inputs = append(inputs, t)
	}
	return inputs, nil
}

// drawGroup appends the values of an input for a hundred rows.
func (d *drawnInputs) drawGroup(random *rand.Rand, p models.TensorSpec, t *tensor.Tensor) {
	columns, run := 1, 1 // elements of the second dimension, and of one of them
	for i, s := range p.Shape[1:] {
		if i == 0 {
			columns = int(s)
		} else {
			run *= int(s)
		}
	}
	var shared []uint64
	bounds := p.Bounds()
	for row := range items {
		for c := range columns {
			for r := range run {
				if p.DataType == tensor.FP32 {
					t.Data = binary.LittleEndian.AppendUint32(t.Data,
						math.Float32bits(float32(random.NormFloat64())))
					continue
				}
				bound := bounds[min(c, len(bounds)-1)]
				id := random.Uint64N(uint64(bound))
				if len(d.user) == columns && d.user[c] {
					if row == 0 {
						shared = append(shared, id)
					}
					id = shared[d.userTablesBefore(c)*run+r]
				}
				if p.DataType == tensor.Int32 {
					t.Data = binary.LittleEndian.AppendUint32(t.Data, uint32(id))
				} else {
					t.Data = binary.LittleEndian.AppendUint64(t.Data, id)
				}
			}
		}
	}
}

// userTablesBefore is how many tables before column c are of users.
func (d *drawnInputs) userTablesBefore(c int) (n int) {
	for _, user := range d.user[:c] {
		if user {
			n++
		}
	}
	return n
}
