package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// TestIndexErrors: the run of each operator with an index outside of what it indexes says so, and
// nothing of ONNX Runtime's.
func TestIndexErrors(t *testing.T) {
	x := runtimetest.Open(t)
	for _, tt := range []struct {
		op, domain string
		inputs     []string
		want       runtime.IndexError
	}{
		{"Gather", "", []string{"table", "ids"}, runtime.IndexError{Index: "99", Low: "-10",
			Top: "9"}},
		{"GatherElements", "", []string{"table", "ids"}, runtime.IndexError{}},
		{"GatherND", "", []string{"table", "ids"}, runtime.IndexError{Index: "99"}},
		{"ScatterElements", "", []string{"table", "ids", "rows"},
			runtime.IndexError{Index: "99", Low: "-10", Top: "9"}},
		{"ScatterND", "", []string{"table", "ids", "elements"}, runtime.IndexError{Index: "99"}},
		{"ArrayFeatureExtractor", "ai.onnx.ml", []string{"table", "list"},
			runtime.IndexError{Index: "99"}},
		{"SequenceAt", "", []string{"sequence", "scalar"}, runtime.IndexError{Index: "99"}},
	} {
		nodes := []onnx.Node{
			{Op: "Reshape", Inputs: []string{"ids", "flat"}, Outputs: []string{"list"}},
			{Op: "ReduceMax", Inputs: []string{"ids"}, Outputs: []string{"scalar"},
				Attributes: []onnx.Attribute{{Name: "keepdims", Value: int64(0)}}},
			{Op: "SplitToSequence", Inputs: []string{"table"}, Outputs: []string{"sequence"}},
			{Op: tt.op, Domain: tt.domain, Name: "/secret", Inputs: tt.inputs,
				Outputs: []string{"y"}},
		}
		m := &onnx.Model{
			Inputs: []onnx.ValueDescription{{Name: "ids", DataType: tensor.Int64,
				Shape: []int64{onnx.Dynamic, 2}}},
			Outputs: []onnx.ValueDescription{{Name: "y", DataType: tensor.FP32}},
			Nodes:   nodes,
			Domains: map[string]int64{"ai.onnx.ml": 3},
			Initializers: []onnx.Initializer{
				{Name: "table", DataType: tensor.FP32, Shape: []int64{10, 2}, Data: make([]byte,
					80)},
				{Name: "rows", DataType: tensor.FP32, Shape: []int64{1, 2}, Data: make([]byte, 8)},
				{Name: "elements", DataType: tensor.FP32, Shape: []int64{1}, Data: make([]byte, 4)},
				{Name: "flat", DataType: tensor.Int64, Shape: []int64{1}, Data: ints(-1)},
			},
		}
		model := load(t, x, write(t, m, nil))
		_, err := model.Run(t.Context(), []tensor.Tensor{must(tensor.Of("ids", []int64{99, 1}, 1,
			2))})
		var index *runtime.IndexError
		if !errors.As(err, &index) || *index != tt.want ||
			err.Error() != "run m version 1: "+index.Error() {
			t.Errorf("%s: got %v, want %v", tt.op, err, tt.want)
		}
	}
}

// A drawing draws a model that looks up parts of its ids in tables.
type drawing struct {
	*rand.Rand
	model  onnx.Model
	values []drawn // that were not looked up yet
}

// A drawn value has some dimensions if the batch size is 2.
type drawn struct {
	name string
	dims []int64
}

func (d *drawing) add(op string, inputs []string, outputs int,
	a ...onnx.Attribute) (names []string) {
	for range outputs {
		names = append(names, fmt.Sprintf("v%d.%d", len(d.model.Nodes), len(names)))
	}
	d.model.Nodes = append(d.model.Nodes, onnx.Node{
		Op: op, Name: names[0], Inputs: inputs, Outputs: names, Attributes: a,
	})
	return names
}

func (d *drawing) constant(list ...int64) string {
	name := "c" + strconv.Itoa(len(d.model.Initializers))
	d.model.Initializers = append(d.model.Initializers, onnx.Initializer{
		Name: name, DataType: tensor.Int64, Shape: []int64{int64(len(list))}, Data: ints(list...),
	})
	return name
}

func (d *drawing) axis(v drawn) (int, onnx.Attribute) {
	axis := d.IntN(len(v.dims))
	if axis == 0 && d.IntN(4) > 0 { // the batch is seldom touched
		axis = len(v.dims) - 1
	}
	a := int64(axis)
	if d.IntN(2) == 0 {
		a -= int64(len(v.dims))
	}
	return axis, onnx.Attribute{Name: "axis", Value: a}
}

// step applies an operator to one of the values.
func (d *drawing) step() {
	i := d.IntN(len(d.values))
	v := d.values[i]
	d.values = slices.Delete(d.values, i, i+1)
	keep := func(name string, dims ...int64) { d.values = append(d.values, drawn{name, dims}) }
	axis, attribute := d.axis(v)
	size := v.dims[axis]
	with := func(n int64) []int64 {
		dims := slices.Clone(v.dims)
		dims[axis] = n
		return dims
	}
	switch d.IntN(9) {
	case 0:
		name := d.add("Unsqueeze", []string{v.name, d.constant(int64(axis))}, 1)[0]
		keep(name, slices.Insert(slices.Clone(v.dims), axis, 1)...)
	case 1:
		if size == 1 && len(v.dims) > 1 {
			name := d.add("Squeeze", []string{v.name, d.constant(int64(axis))}, 1)[0]
			keep(name, slices.Delete(slices.Clone(v.dims), axis, axis+1)...)
			return
		}
		keep(v.name, v.dims...)
	case 2:
		before, after := int64(1), int64(1)
		for _, n := range v.dims[:axis] {
			before *= n
		}
		for _, n := range v.dims[axis:] {
			after *= n
		}
		keep(d.add("Flatten", []string{v.name}, 1, attribute)[0], before, after)
	case 3:
		n := int64(1)
		for _, s := range v.dims {
			n *= s
		}
		to := [][]int64{{-1}, {0, -1}, {-1, n / v.dims[0]}, {0, n / v.dims[0], 1}, {1,
			-1}}[d.IntN(5)]
		dims := slices.Clone(to)
		for k, s := range to {
			if s == 0 {
				dims[k] = v.dims[k]
			}
		}
		if k := slices.Index(dims, -1); k >= 0 {
			dims[k] = 1
			for j, s := range dims {
				if j != k {
					n /= s
				}
			}
			dims[k] = n
		}
		keep(d.add("Reshape", []string{v.name, d.constant(to...)}, 1)[0], dims...)
	case 4:
		var permutation, dims []int64
		for _, p := range d.Perm(len(v.dims)) {
			permutation, dims = append(permutation, int64(p)), append(dims, v.dims[p])
		}
		keep(d.add("Transpose", []string{v.name}, 1,
			onnx.Attribute{Name: "perm", Value: permutation})[0], dims...)
	case 5:
		if size < 2 {
			keep(v.name, v.dims...)
			return
		}
		at := 1 + d.Int64N(size-1)
		parts := d.add("Split", []string{v.name, d.constant(at, size-at)}, 2, attribute)
		keep(parts[0], with(at)...)
		keep(parts[1], with(size-at)...)
	case 6:
		start := d.Int64N(size)
		end := start + 1 + d.Int64N(size-start)
		from, to, step := start, end, int64(1)
		if d.IntN(2) == 0 {
			from, to, step = end-1, start-size-1, -1
		}
		keep(d.add("Slice", []string{v.name, d.constant(from), d.constant(to),
			d.constant(int64(axis)), d.constant(step)}, 1)[0], with(end-start)...)
	case 7:
		indices := []int64{d.Int64N(2*size) - size, d.Int64N(size)}
		keep(d.add("Gather", []string{v.name, d.constant(indices...)}, 1, attribute)[0], with(2)...)
	case 8:
		other := v
		if len(d.values) > 0 {
			other = d.values[d.IntN(len(d.values))]
		}
		dims := with(other.dims[min(axis, len(other.dims)-1)])
		if !slices.Equal(dims, other.dims) {
			keep(v.name, v.dims...)
			return
		}
		keep(d.add("Concat", []string{v.name, other.name}, 1, attribute)[0],
			with(size+other.dims[axis])...)
	}
}

// draw draws a model whose input ids has a shape.
func draw(r *rand.Rand, shape []int64, fixed []int64) *onnx.Model {
	d := &drawing{Rand: r, model: onnx.Model{
		Inputs:  []onnx.ValueDescription{{Name: "ids", DataType: tensor.Int64, Shape: shape}},
		Outputs: []onnx.ValueDescription{{Name: "y", DataType: tensor.FP32}},
	}, values: []drawn{{"ids", fixed}}}
	for _, rows := range []int64{3, 5, 7} {
		d.model.Initializers = append(d.model.Initializers, onnx.Initializer{
			Name: "t" + strconv.FormatInt(rows, 10), DataType: tensor.FP32, Shape: []int64{rows},
			Data: make([]byte, 4*rows),
		})
	}
	for range 1 + d.IntN(6) {
		d.step()
	}
	var sums []string
	for i, v := range d.values {
		if i > 0 && d.IntN(4) == 0 {
			continue // it is not looked up
		}
		table := []string{"t3", "t5", "t7"}[d.IntN(3)]
		rows := d.add("Gather", []string{table, v.name}, 1)
		sums = append(sums, d.add("ReduceSum", rows, 1,
			onnx.Attribute{Name: "keepdims", Value: int64(0)})...)
	}
	sum := d.add("Sum", sums, 1)
	d.model.Nodes = append(d.model.Nodes, onnx.Node{Op: "Reshape", Name: "y",
		Inputs: []string{sum[0], d.constant(1)}, Outputs: []string{"y"}})
	return &d.model
}

// TestInferredBounds: an id that the bounds of a random model refuse, ONNX Runtime refuses; and in
// many models they refuse all that it does.
func TestInferredBounds(t *testing.T) {
	x := runtimetest.Open(t)
	bounded, exact, whole := 0, 0, 0
	const n = 200
	for seed := range uint64(n) {
		r := rand.New(rand.NewPCG(seed, 1))
		fixed := [][]int64{{2, 3}, {2, 4}, {2, 2, 3}, {2}}[r.IntN(4)]
		shape := slices.Clone(fixed)
		if r.IntN(4) > 0 { // else it has no batch
			shape[0] = onnx.Dynamic
		}
		if len(shape) > 1 && r.IntN(4) == 0 {
			shape[len(shape)-1] = onnx.Dynamic
		}
		v := write(t, draw(r, shape, fixed), nil)
		p := &v.Inputs[0]
		elements := must(tensor.Elements(fixed))
		inner := elements / 2
		if len(fixed) > 1 {
			inner /= int(fixed[1])
		}
		m, err := x.Load(context.Background(), v)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if len(p.InferredBounds) > 0 {
			bounded++
		}
		ids := make([]int64, elements)
		run := func() error {
			result, err := m.Run(t.Context(), []tensor.Tensor{must(tensor.Of("ids", ids,
				fixed...))})
			if err == nil {
				result.Release()
				return nil
			}
			if index := new(*runtime.IndexError); !errors.As(err, index) {
				t.Fatalf("seed %d: %v", seed, err)
			}
			return err
		}
		agreed := run() == nil
		for i := range ids {
			low, high, ok := p.IDRange(i / inner % max(1, len(p.InferredBounds)))
			for _, id := range []int64{-8, -7, -6, -5, -4, -3, 2, 3, 4, 5, 6, 7} {
				ids[i] = id
				err := run()
				refused := ok && (id < low || id >= high)
				if refused && err == nil {
					t.Fatalf("seed %d: element %d is %d, which is answered, bounds are %v of "+
						"shape %v", seed, i, id, p.InferredBounds, shape)
				}
				agreed = agreed && refused == (err != nil)
			}
			ids[i] = 0
		}
		if agreed {
			exact++
		}
		if len(p.Bounds()) > 0 {
			whole++
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d of %d models have bounds, %d for all ids, %d exact ones", bounded, n, whole, exact)
	if bounded < n/3 || exact < n/4 {
		t.Errorf("%d of %d models have bounds, %d exact ones, want a third and a quarter", bounded,
			n,
			exact)
	}
}
