package runtime_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// A drawnGraph is a random graph of operators that keep rows apart and of such that mix them.
type drawnGraph struct {
	*rand.Rand
	model onnx.Model
	pool  []drawnValue
}

// A drawnValue is a value of [rows, ...dims], or of [1, ...dims] if single is set.
type drawnValue struct {
	name   string
	single bool
	dims   []int64
}

func (g *drawnGraph) node(op string, attributes []onnx.Attribute, inputs ...string) string {
	name := fmt.Sprintf("%s_%d", op, len(g.model.Nodes))
	g.model.Nodes = append(g.model.Nodes, onnx.Node{
		Op: op, Name: name, Inputs: inputs, Outputs: []string{name}, Attributes: attributes,
	})
	return name
}

func (g *drawnGraph) ints(values ...int64) string {
	return g.constant(tensor.Int64, ints(values...), int64(len(values)))
}

func (g *drawnGraph) scalar(value int64) string { return g.constant(tensor.Int64, ints(value)) }

func (g *drawnGraph) constant(kind tensor.DataType, data []byte, shape ...int64) string {
	name := fmt.Sprintf("constant_%d", len(g.model.Initializers))
	if shape == nil {
		shape = []int64{}
	}
	g.model.Initializers = append(g.model.Initializers, onnx.Initializer{
		Name: name, DataType: kind, Shape: shape, Data: data,
	})
	return name
}

func (g *drawnGraph) weight(shape ...int64) string {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(g.NormFloat64())
	}
	return g.constant(tensor.FP32, floats(values...), shape...)
}

func attributes(pairs ...any) (all []onnx.Attribute) {
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, onnx.Attribute{Name: pairs[i].(string), Value: pairs[i+1]})
	}
	return all
}

// draw adds a node or a few to a value of the pool.
func (g *drawnGraph) draw() {
	x := g.pool[g.IntN(len(g.pool))]
	put := func(name string, single bool, dims ...int64) {
		g.pool = append(g.pool, drawnValue{name, single, dims})
	}
	keep := func(name string) { put(name, x.single, x.dims...) }
	last := x.dims[len(x.dims)-1]
	axis := int64(g.IntN(len(x.dims) + 1)) // of all dimensions: 0 is that of rows
	if g.IntN(3) > 0 {
		axis = int64(1 + g.IntN(len(x.dims)))
	}
	along := attributes("axis", axis)
	switch g.IntN(22) {
	case 0:
		keep(g.node([]string{"Relu", "Sigmoid", "Tanh", "Abs"}[g.IntN(4)], nil, x.name))
	case 1:
		keep(g.node("Softmax", along, x.name))
	case 2, 3:
		name := g.node("ReduceMean", attributes("axes", []int64{axis}, "keepdims", int64(1)),
			x.name)
		dims := slices.Clone(x.dims)
		if axis > 0 {
			dims[axis-1] = 1
		}
		put(name, x.single || axis == 0, dims...)
	case 4:
		put(g.node("MatMul", nil, x.name, g.weight(last, 4)), x.single,
			append(slices.Clone(x.dims[:len(x.dims)-1]), 4)...)
	case 5, 6, 7:
		for range 20 {
			y := g.pool[g.IntN(len(g.pool))]
			if slices.Equal(x.dims, y.dims) {
				put(g.node([]string{"Add", "Mul", "Sub"}[g.IntN(3)], nil, x.name, y.name),
					x.single && y.single, x.dims...)
				return
			}
		}
	case 8:
		keep(g.node("CumSum", nil, x.name, g.scalar(axis)))
	case 9:
		if len(x.dims) == 1 && !x.single {
			t := g.node("Transpose", nil, x.name)
			keep(g.node("MatMul", nil, g.node("MatMul", nil, x.name, t), x.name))
		}
	case 10:
		put(g.node("Gather", attributes("axis", int64(0)), x.name, g.ints(0)), true, x.dims...)
	case 11:
		if len(x.dims) == 2 {
			put(g.node("Gather", attributes("axis", int64(1)), x.name, g.scalar(0)), x.single, last)
		}
	case 12: // folded and back
		if len(x.dims) == 2 {
			a := g.node("Reshape", nil, x.name, g.ints(-1, last))
			a = g.node("MatMul", nil, a, g.weight(last, last))
			if g.IntN(3) == 0 {
				a = g.node("Softmax", attributes("axis", int64(0)), a)
			}
			keep(g.node("Reshape", nil, a, g.ints(-1, x.dims[0], last)))
		}
	case 13:
		if len(x.dims) == 2 {
			put(g.node("Flatten", nil, x.name), x.single, x.dims[0]*last)
		}
	case 14: // the number of rows, used as a number or as a shape
		n := g.node("Shape", nil, x.name)
		if g.IntN(2) == 0 {
			count := g.node("Cast", attributes("to", int64(1)),
				g.node("Gather", attributes("axis", int64(0)), n, g.scalar(0)))
			keep(g.node("Div", nil, x.name, count))
		} else {
			keep(g.node("Add", nil, x.name, g.node("Expand", nil, g.weight(last), n)))
		}
	case 15:
		v := func() string { return g.weight(x.dims[0]) }
		variance := g.node("Abs", nil, v())
		keep(g.node("BatchNormalization", attributes("training_mode", int64(g.IntN(2))), x.name,
			v(), v(),
			v(), variance))
		if t, _ := g.model.Nodes[len(g.model.Nodes)-1].Attributes[0].Value.(int64); t != 0 {
			n := &g.model.Nodes[len(g.model.Nodes)-1]
			n.Outputs = append(n.Outputs, n.Name+"_mean", n.Name+"_var")
		}
	case 16:
		keep(g.node("LayerNormalization", along, x.name, g.weight(1), g.weight(1)))
	case 17: // positions of rows
		if !x.single {
			n := g.node("Gather", attributes("axis", int64(0)), g.node("Shape", nil, x.name),
				g.scalar(0))
			p := g.node("Cast", attributes("to", int64(1)),
				g.node("Range", nil, g.scalar(0), n, g.scalar(1)))
			shape := append([]int64{-1}, slices.Repeat([]int64{1}, len(x.dims))...)
			keep(g.node("Add", nil, x.name, g.node("Reshape", nil, p, g.ints(shape...))))
		}
	case 18: // [rows, steps, last], in layout 0
		if len(x.dims) == 2 && !x.single {
			a, rows := x.name, g.IntN(2) == 0
			if rows {
				a = g.node("Transpose", attributes("perm", []int64{1, 0, 2}), a)
			}
			a = g.node("GRU", attributes("hidden_size", int64(3)), a, g.weight(1, 9, last),
				g.weight(1, 9, 3))
			if rows {
				a = g.node("Transpose", attributes("perm", []int64{2, 0, 1, 3}), a)
			}
			put(g.node("Squeeze", nil, a, g.ints(2-int64(map[bool]int{false: 1}[rows]))), false,
				x.dims[0], 3)
		}
	case 19:
		a := g.node("ArgMax", attributes("axis", axis, "keepdims", int64(1)), x.name)
		keep(g.node("Add", nil, x.name, g.node("Cast", attributes("to", int64(1)), a)))
	case 20:
		a := g.node("Concat", attributes("axis", int64(0)), x.name, x.name)
		keep(g.node("Slice", nil, a, g.ints(1), g.ints(-1), g.ints(0)))
		g.pool = g.pool[:len(g.pool)-1] // of other rows than it says: a part only
	case 21:
		a := g.node("Slice", nil, x.name, g.ints(0), g.ints(math.MaxInt64), g.ints(axis))
		keep(g.node("Dropout", nil, a))
	}
}

// drawGraph returns a random graph of inputs "x" [rows, 4] and "s" [rows, 3, 4] and, with users, of
// "user_x" and "user_s" beside them.
func drawGraph(seed uint64, users bool) *drawnGraph {
	g := &drawnGraph{Rand: rand.New(rand.NewPCG(seed, 7))}
	g.model = onnx.Model{Name: "drawn", Inputs: []onnx.ValueDescription{
		{Name: "x", DataType: tensor.FP32, Shape: []int64{onnx.Dynamic, 4}},
		{Name: "s", DataType: tensor.FP32, Shape: []int64{onnx.Dynamic, 3, 4}},
	}}
	if users {
		for _, p := range g.model.Inputs {
			p.Name = "user_" + p.Name
			g.model.Inputs = append(g.model.Inputs, p)
		}
	}
	for _, p := range g.model.Inputs {
		g.pool = append(g.pool, drawnValue{p.Name, false, p.Shape[1:]})
	}
	least := 2
	if users {
		least = 5
	}
	for n := least + g.IntN(4); n > 0 || len(g.pool) == len(g.model.Inputs); n-- {
		g.draw()
	}
	y := g.pool[len(g.pool)-1]
	if users { // columns of both, which a product joins
		columns := []string{y.name}
		width := y.dims[len(y.dims)-1]
		for _, v := range g.pool[:len(g.pool)-1] {
			last := len(v.dims) - 1
			if len(v.dims) == len(y.dims) && slices.Equal(v.dims[:last], y.dims[:last]) &&
				!v.single && !y.single {
				columns = append(columns, v.name)
				width += v.dims[last]
			}
		}
		joined := g.node("Concat", attributes("axis", int64(-1)), columns...)
		if g.IntN(3) == 0 {
			joined = g.node("Relu", nil, joined)
		}
		y.name = g.node("MatMul", nil, joined, g.weight(width, 4))
		if len(y.dims) == 1 && g.IntN(2) == 0 {
			g.model.Nodes = g.model.Nodes[:len(g.model.Nodes)-1]
			y.name = g.node("Gemm", attributes("transB", int64(1), "alpha", float32(.5)), joined,
				g.weight(4, width), g.weight(4))
		}
		y.dims = append(slices.Clone(y.dims[:len(y.dims)-1]), 4)
	}
	shape := append([]int64{onnx.Dynamic}, y.dims...)
	g.node("Identity", nil, y.name)
	g.model.Nodes[len(g.model.Nodes)-1].Outputs[0] = "y"
	g.model.Outputs = []onnx.ValueDescription{{Name: "y", DataType: tensor.FP32, Shape: shape}}
	return g
}

// rowsOf returns rows of both inputs.
func rowsOf(x, s []float32, rows ...int) []tensor.Tensor {
	var a, b []float32
	for _, i := range rows {
		a = append(a, x[4*i:][:4]...)
		b = append(b, s[12*i:][:12]...)
	}
	n := int64(len(rows))
	return []tensor.Tensor{must(tensor.Of("x", a, n, 4)), must(tensor.Of("s", b, n, 3, 4))}
}

// mixesRows tells by ONNX Runtime whether rows of the answers depend on other rows.
func mixesRows(t *testing.T, m runtime.Model, random *rand.Rand) bool {
	t.Helper()
	const n = 6
	x, s := make([]float32, 4*n), make([]float32, 12*n)
	for _, values := range [][]float32{x, s} {
		for i := range values {
			values[i] = float32(random.NormFloat64())
		}
	}
	runRows := func(x, s []float32, rows ...int) [][]float32 {
		r, err := m.Run(context.Background(), rowsOf(x, s, rows...))
		if err != nil {
			return nil
		}
		defer r.Release()
		values := slices.Clone(must(tensor.Values[float32](r.Outputs[0])))
		if len(r.Outputs[0].Shape) == 0 || r.Outputs[0].Shape[0] != int64(len(rows)) {
			return nil
		}
		var all [][]float32
		for i := range rows {
			width := len(values) / len(rows)
			all = append(all, values[i*width:][:width])
		}
		return all
	}
	run := func(rows ...int) [][]float32 { return runRows(x, s, rows...) }
	together := run(0, 1, 2, 3, 4, 5)
	same := func(rows ...int) bool {
		got := run(rows...)
		if got == nil || together == nil {
			return false
		}
		largest := 0.
		for _, row := range together {
			for _, v := range row {
				largest = max(largest, math.Abs(float64(v)))
			}
		}
		for k, i := range rows {
			for j, want := range together[i] {
				if d := math.Abs(float64(got[k][j] - want)); !(d <= 1e-5*largest) {
					return false
				}
			}
		}
		return true
	}
	if !same(5, 3, 1, 0, 2, 4) || !same(0, 1) || !same(2, 3, 4, 5) || !same(3) {
		return true
	}
	for _, poison := range []float32{float32(math.NaN()), 1e20} {
		for _, row := range []int{5, 0} {
			x, s := slices.Clone(x), slices.Clone(s)
			for i := range 4 {
				x[4*row+i] = poison
			}
			for i := range 12 {
				s[12*row+i] = poison
			}
			whole := runRows(x, s, 0, 1, 2, 3, 4, 5)
			if whole == nil || !slices.EqualFunc(whole[1:5], together[1:5], nearRow) ||
				!nearRow(whole[5-row], together[5-row]) {
				return true
			}
		}
	}
	return false
}

func nearRow(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool {
		return math.Abs(float64(x-y)) <= 1e-5*max(1, math.Abs(float64(y)))
	})
}

// TestProofOfIndependence: whatever random graph the proof calls independent is so when ONNX
// Runtime runs its rows together, in another order, apart, and beside poison; and most that are are
// found. A check at load calls none of those dependent, and nearly all others.
func TestProofOfIndependence(t *testing.T) {
	x := runtimetest.Open(t)
	lanes := runtime.NewLanes(runtime.LanesConfig{})
	proven, independent, mixing, checked := 0, 0, 0, 0
	const all = 400
	for seed := range uint64(all) {
		g := drawGraph(seed, false)
		path := filepath.Join(t.TempDir(), "model.onnx")
		if err := os.WriteFile(path, g.model.Marshal(), 0o644); err != nil {
			t.Fatal(err)
		}
		s, err := onnx.ReadSignature(path)
		if err != nil {
			t.Fatal(err)
		}
		why := s.Flow(nil).Independence().Reason
		v, err := models.FileVersion(path)
		if err != nil {
			t.Fatal(err)
		}
		m, err := x.Load(context.Background(), v)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		mixes := mixesRows(t, m, rand.New(rand.NewPCG(seed, 8)))
		seen, err := runtime.CheckRows(context.Background(), lanes, m, v)
		if err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		if seen != "" && !mixes {
			t.Errorf("seed %d: the check at load is wrong: %s", seed, seen)
		} else if seen != "" {
			checked++
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		switch {
		case mixes:
			mixing++
			if why == "" {
				t.Errorf("seed %d: called independent, and is not: %v", seed, g.model.Nodes)
			}
		case why == "":
			independent, proven = independent+1, proven+1
		default:
			independent++
			t.Logf("seed %d is independent: %s", seed, why)
		}
	}
	t.Logf("%d of %d independent graphs are proven; %d mix rows, of which a check at load sees %d",
		proven, independent, mixing, checked)
	if checked < mixing*9/10 {
		t.Errorf("a check at load sees %d of %d graphs that mix rows, want nine of ten", checked, mixing)
	}
	if proven < independent*3/4 || mixing < all/10 {
		t.Errorf("%d of %d independent graphs are proven, %d of %d mix rows; want three of four, and a "+
			"tenth", proven, independent, mixing, all)
	}
}
