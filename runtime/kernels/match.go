package kernels

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/onnx"
)

// A form is how a table stores its rows, an enum bags_form of bags.h.
type form int64

const (
	formFP32 form = iota
	formFP16
	formInt8
	formInt4
)

// A mode is what becomes of the rows of a bag, an enum bags_mode of bags.h.
type mode int64

const (
	modeSum mode = iota
	modeMean
	modeMax
)

// A table is the rows that a value consists of: those of the constant rows that ids name, in the
// order of ids, as floats.
type table struct {
	rows, scales string // scales is empty without quantisation
	ids          string
	form         form
}

// A bag is a value that reduces rows of a table to one, or holds one row for each id.
type bag struct {
	table
	value  string
	source ids
	// reduce is the axis of source over which rows are reduced; -1 if they are not. keep is whether
	// it stays in the value, with size 1.
	reduce  int
	keep    bool
	mode    mode
	lookups int64       // the size of that axis; 0: not known
	rank    int         // of the value
	nodes   []onnx.Node // that compute the value from ids, which are not among them

	// offsets, if not empty, says where in source bags begin, and if last is set, at last where all
	// end. open and zero are those of bags.h. weights, if not empty, has a factor for each id.
	offsets          string
	last, open, zero bool
	weights          string
}

// inputs are the values that the operator of a bag takes beside its table.
func (b *bag) inputs() (all []string) {
	for _, value := range []string{b.source.value, b.offsets, b.weights} {
		if value != "" {
			all = append(all, value)
		}
	}
	return all
}

// reduceOver has rows summed over an axis of the ids.
func (b *bag) reduceOver(axis int) {
	if b.source.drop && axis >= b.source.split {
		axis++
	}
	if b.source.split > axis { // the lookups of a bag would not be consecutive
		b.source = ids{value: b.ids, rank: b.source.partRank(), split: -1}
	}
	b.reduce = axis
}

// ids are a part of a value: the indices [start, start+size) of its axis split, or all of it if
// split is -1. drop is whether the part, of size 1, lacks that axis.
type ids struct {
	value           string
	rank            int // of value
	split           int
	start, size, of int64 // of is the size of the axis, 0 if it is not known
	drop            bool
}

// A group is consecutive inputs of a Concat along the last axis that are bags, or a bag alone.
type group struct {
	bags   []bag
	concat int    // the index of the Concat; -1 for a bag alone
	first  int    // the first of the Concat's inputs
	output string // what the group's operator computes
}

// A matcher finds groups in a graph.
type matcher struct {
	graph     *onnx.Graph
	producers map[string]int // the node of each value
	users     map[string][]int
	left      []string // why lookups do not fit
}

func newMatcher(g *onnx.Graph) *matcher {
	m := &matcher{graph: g, producers: map[string]int{}, users: map[string][]int{}}
	for i, n := range g.Nodes {
		for _, output := range n.Outputs {
			m.producers[output] = i
		}
		for _, input := range n.Inputs {
			m.users[input] = append(m.users[input], i)
		}
	}
	return m
}

// producerOf returns the node that computes a value, if it is a standard one of the given operator.
func (m *matcher) producerOf(value, op string) (onnx.Node, bool) {
	i, ok := m.producers[value]
	if !ok {
		return onnx.Node{}, false
	}
	n := m.graph.Nodes[i]
	return n, n.Op == op && n.Standard() && len(n.Outputs) > 0 && n.Outputs[0] == value
}

// minJoined is how many single rows, without a sum, a Concat must join for an operator to pay: with
// two tables NCF takes as long with ONNX Runtime's operators.
const minJoined = 3

// findGroups returns the groups of the graph.
func (m *matcher) findGroups() ([]group, error) {
	var all []group
	bags := map[string]bag{}
	var order []string
	for _, n := range m.graph.Nodes {
		if b, ok := m.findLoop(n); ok {
			bags[b.value] = b
			order = append(order, b.value)
		}
		if len(n.Outputs) != 1 {
			continue
		}
		b, ok, err := m.findBag(n)
		if err != nil {
			return nil, err
		}
		if ok {
			bags[b.value] = b
			order = append(order, b.value)
		}
	}
	taken := map[string]bool{}
	for i, n := range m.graph.Nodes {
		if n.Op != "Concat" || !n.Standard() || len(n.Outputs) != 1 {
			continue
		}
		axis, _ := n.Attribute("axis").(int64)
		joins := func(value string) bool {
			b, ok := bags[value]
			return ok && m.isUsedOnce(value) && (axis == -1 || int(axis) == b.rank-1)
		}
		for from := 0; from < len(n.Inputs); {
			to := from
			summed := false
			for to < len(n.Inputs) && joins(n.Inputs[to]) &&
				bags[n.Inputs[to]].rank == bags[n.Inputs[from]].rank {
				summed = summed || bags[n.Inputs[to]].reduce >= 0
				to++
			}
			if to-from >= minJoined || summed {
				g := group{concat: i, first: from}
				for _, value := range n.Inputs[from:to] {
					g.bags = append(g.bags, bags[value])
					taken[value] = true
				}
				all = append(all, g)
			}
			from = max(to, from+1)
		}
	}
	for _, value := range order {
		if b := bags[value]; !taken[value] && b.reduce >= 0 {
			all = append(all, group{bags: []bag{b}, concat: -1})
		}
	}
	return all, nil
}

// isUsedOnce reports whether a value has one use.
func (m *matcher) isUsedOnce(value string) bool {
	return m.graph.Uses(value) == 1
}

// findBag returns the bag that is n's result; false if it is none. If n sums rows in a way that
// does not fit, bag notes why.
func (m *matcher) findBag(n onnx.Node) (bag, bool, error) {
	if !n.Standard() {
		return bag{}, false, nil
	}
	b := bag{value: n.Outputs[0], reduce: -1}
	if n.Op != "ReduceSum" && n.Op != "ReduceMean" {
		var ok bool
		b.table, b.nodes, ok = m.findRows(b.value)
		if !ok {
			return bag{}, false, nil
		}
		if b.source, ok = m.sourceOfIDs(b.ids); !ok {
			return bag{}, false, nil // as part of a sum it is noted there
		}
		b.rank = b.source.partRank() + 1
		return b, true, nil
	}
	var ok bool
	if b.table, b.nodes, ok = m.findRows(n.Inputs[0]); !ok {
		m.noteSum(n)
		return bag{}, false, nil
	}
	fail := func(format string, arguments ...any) (bag, bool, error) {
		m.left = append(m.left, fmt.Sprintf("%s %s: %s", n.Op, n.Name,
			fmt.Sprintf(format, arguments...)))
		return bag{}, false, nil
	}
	if !m.isUsedOnce(n.Inputs[0]) {
		return fail("its rows are used elsewhere too")
	}
	if b.source, ok = m.sourceOfIDs(b.ids); !ok {
		return fail("the number of dimensions of its ids is not known")
	}
	axes, err := m.constantAxes(n)
	if err != nil {
		return bag{}, false, err
	}
	if len(axes) != 1 {
		return fail("it sums over %d axes, expected one that is constant", len(axes))
	}
	rank := b.source.partRank() + 1 // of the rows
	axis := int(axes[0])
	if axis < 0 {
		axis += rank
	}
	if axis == rank-1 {
		return fail("it sums over the elements of a row")
	}
	if axis < 0 || axis >= rank {
		return fail("its axis is %d of %d", axes[0], rank)
	}
	b.reduceOver(axis)
	b.keep = true
	if v, ok := n.Attribute("keepdims").(int64); ok {
		b.keep = v != 0
	}
	b.mode = bagModes[n.Op]
	b.rank = rank
	if !b.keep {
		b.rank--
	}
	b.nodes = append(b.nodes, n)
	return b, true, nil
}

// noteSum notes why a sum of rows of a table does not fit: that of rows which are used elsewhere or
// are computed in another way.
func (m *matcher) noteSum(n onnx.Node) {
	i, ok := m.producers[n.Inputs[0]]
	if !ok {
		return
	}
	p := m.graph.Nodes[i]
	switch {
	case p.Op == "GatherBlockQuantized":
		m.left = append(m.left, fmt.Sprintf("%s %s: rows are looked up by GatherBlockQuantized",
			n.Op, n.Name))
	case p.Op == "Gather" && p.Standard():
		t, ok := m.graph.Constant(p.Inputs[0])
		axis, _ := p.Attribute("axis").(int64)
		switch {
		case !ok || axis != 0: // no table
		case len(t.Shape) != 2:
			m.left = append(m.left, fmt.Sprintf("%s %s: table %s has %d dimensions, expected 2",
				n.Op, n.Name, t.Name, len(t.Shape)))
		default:
			m.left = append(m.left, fmt.Sprintf("%s %s: it sums in %s, expected FP32",
				n.Op, n.Name, t.DataType))
		}
	}
}

// constantAxes returns the constant axes of a node that reduces.
func (m *matcher) constantAxes(n onnx.Node) ([]int64, error) {
	if axes, ok := n.Attribute("axes").([]int64); ok {
		return axes, nil
	}
	if len(n.Inputs) < 2 {
		return nil, nil
	}
	return m.constantInts(n.Inputs[1])
}

// constantInts returns the elements of a constant scalar or list of INT64, nil if value is none.
func (m *matcher) constantInts(value string) ([]int64, error) {
	t, ok := m.graph.Constant(value)
	if !ok {
		return nil, nil
	}
	return m.intsOf(t)
}

// intsOf returns the elements of a scalar or list of INT64, nil if t is none.
func (m *matcher) intsOf(t onnx.Initializer) ([]int64, error) {
	if t.DataType != tensor.Int64 || len(t.Shape) > 1 {
		return nil, nil
	}
	t, err := m.graph.Rows(t, 0)
	if err != nil {
		return nil, err
	}
	values := make([]int64, len(t.Data)/8)
	for i := range values {
		values[i] = int64(binary.LittleEndian.Uint64(t.Data[8*i:]))
	}
	return values, nil
}

// constantFloat returns the value of a constant FP32 scalar, NaN if value is none.
func (m *matcher) constantFloat(value string) float32 {
	t, ok := m.graph.Constant(value)
	if !ok || t.DataType != tensor.FP32 || len(t.Shape) > 1 {
		return float32(math.NaN())
	}
	f, err := m.graph.Floats(t)
	if err != nil || len(f) != 1 {
		return float32(math.NaN())
	}
	return f[0]
}

// findRows returns the table whose rows a value consists of, and the nodes that compute the value.
func (m *matcher) findRows(value string) (table, []onnx.Node, bool) {
	if t, n, ok := m.findGather(value, tensor.FP32); ok {
		t.form = formFP32
		return t, []onnx.Node{n}, true
	}
	if t, nodes, ok := m.findCastGather(value, tensor.FP16); ok {
		t.form = formFP16
		return t, nodes, true
	}
	n, ok := m.producerOf(value, "Mul")
	if !ok || len(n.Inputs) != 2 {
		return table{}, nil, false
	}
	for i := range 2 {
		scales, scale, ok := m.findGather(n.Inputs[i], tensor.FP32)
		if !ok || !m.isUsedOnce(n.Inputs[i]) || !m.isUsedOnce(n.Inputs[1-i]) {
			continue
		}
		c, _ := m.graph.Constant(scales.rows)
		t, nodes, ok := m.findCastGather(n.Inputs[1-i], tensor.Int8)
		t.form = formInt8
		if !ok {
			t, nodes, ok = m.findHalves(n.Inputs[1-i])
			t.form = formInt4
		}
		if !ok || t.ids != scales.ids || c.Shape[1] != 1 {
			continue
		}
		if r, _ := m.graph.Constant(t.rows); r.Shape[0] != c.Shape[0] {
			continue
		}
		t.scales = scales.rows
		return t, append(nodes, scale, n), true
	}
	return table{}, nil, false
}

// findGather returns the table of which value is the rows as they are stored.
func (m *matcher) findGather(value string, kind tensor.DataType) (table, onnx.Node, bool) {
	n, ok := m.producerOf(value, "Gather")
	if !ok || len(n.Inputs) != 2 {
		return table{}, onnx.Node{}, false
	}
	axis, _ := n.Attribute("axis").(int64)
	t, ok := m.graph.Constant(n.Inputs[0])
	if !ok || axis != 0 || t.DataType != kind || len(t.Shape) != 2 || t.Shape[1] < 1 {
		return table{}, onnx.Node{}, false
	}
	return table{rows: t.Name, ids: n.Inputs[1]}, n, true
}

// toFloat is TensorProto.DataType.FLOAT, which Cast's attribute names.
const toFloat = 1

// findCastGather is gather of a value that was converted to FP32.
func (m *matcher) findCastGather(value string, kind tensor.DataType) (table, []onnx.Node, bool) {
	cast, ok := m.producerOf(value, "Cast")
	to, _ := cast.Attribute("to").(int64)
	if !ok || to != toFloat || !m.isUsedOnce(cast.Inputs[0]) {
		return table{}, nil, false
	}
	t, n, ok := m.findGather(cast.Inputs[0], kind)
	return t, []onnx.Node{n, cast}, ok
}

// findHalves returns the table of 4-bit integers, as package variants writes them, of which value
// is the rows without their scale: with b a byte, h = floor(b / 16) and l = b - 16 h, the row is
// concat(l, h) - 8.
func (m *matcher) findHalves(value string) (table, []onnx.Node, bool) {
	none := func() (table, []onnx.Node, bool) { return table{}, nil, false }
	minus, ok := m.producerOf(value, "Sub")
	if !ok || m.constantFloat(minus.Inputs[1]) != 8 || !m.isUsedOnce(minus.Inputs[0]) {
		return none()
	}
	concat, ok := m.producerOf(minus.Inputs[0], "Concat")
	axis, _ := concat.Attribute("axis").(int64)
	if !ok || axis != -1 || len(concat.Inputs) != 2 || !m.isUsedOnce(concat.Inputs[0]) {
		return none()
	}
	low, ok := m.producerOf(concat.Inputs[0], "Sub")
	if !ok {
		return none()
	}
	high := concat.Inputs[1]
	floor, ok := m.producerOf(high, "Floor")
	if !ok || m.graph.Uses(high) != 2 {
		return none()
	}
	shift, ok := m.producerOf(floor.Inputs[0], "Mul")
	if !ok || !m.isUsedOnce(floor.Inputs[0]) || m.constantFloat(shift.Inputs[1]) != 1./16 {
		return none()
	}
	back, ok := m.producerOf(low.Inputs[1], "Mul")
	if !ok || !m.isUsedOnce(low.Inputs[1]) || back.Inputs[0] != high ||
		m.constantFloat(back.Inputs[1]) != 16 {
		return none()
	}
	row := shift.Inputs[0]
	if low.Inputs[0] != row || m.graph.Uses(row) != 2 {
		return none()
	}
	t, nodes, ok := m.findCastGather(row, tensor.Uint8)
	return t, append(nodes, shift, floor, back, low, concat, minus), ok
}

// sourceOfIDs returns the value of which ids are a part, as far as it can be told; false if the
// number of their dimensions is not known.
func (m *matcher) sourceOfIDs(value string) (ids, bool) {
	if i, ok := m.producers[value]; ok {
		n := m.graph.Nodes[i]
		if part, ok := m.split(n, value); ok {
			return part, true
		}
	}
	rank, ok := m.rankOf(value, 0)
	return ids{value: value, rank: rank, split: -1}, ok
}

// split returns the part of its input that n's result value is: n is a Split, or a Gather of one
// constant index.
func (m *matcher) split(n onnx.Node, value string) (ids, bool) {
	if !n.Standard() || len(n.Inputs) == 0 {
		return ids{}, false
	}
	rank, ok := m.rankOf(n.Inputs[0], 0)
	axis, _ := n.Attribute("axis").(int64)
	if axis < 0 {
		axis += int64(rank)
	}
	if !ok || axis < 0 || int(axis) >= rank {
		return ids{}, false
	}
	part := ids{value: n.Inputs[0], rank: rank, split: int(axis)}
	switch n.Op {
	case "Gather":
		index, err := m.constantInts(n.Inputs[1])
		t, _ := m.graph.Constant(n.Inputs[1])
		if err != nil || len(index) != 1 || len(t.Shape) != 0 || index[0] < 0 {
			return ids{}, false
		}
		part.start, part.size, part.drop = index[0], 1, true
		part.of = max(m.inputDimension(n.Inputs[0], part.split), index[0]+1)
		return part, true
	case "Split":
		sizes, _ := n.Attribute("split").([]int64)
		if len(n.Inputs) > 1 {
			var err error
			if sizes, err = m.constantInts(n.Inputs[1]); err != nil {
				return ids{}, false
			}
		}
		if sizes == nil {
			whole, parts := m.inputDimension(n.Inputs[0], part.split), int64(len(n.Outputs))
			if whole <= 0 || whole%parts != 0 {
				return ids{}, false
			}
			sizes = slices.Repeat([]int64{whole / parts}, int(parts))
		}
		if len(sizes) != len(n.Outputs) {
			return ids{}, false
		}
		for i, size := range sizes {
			if n.Outputs[i] == value {
				part.start, part.size = part.of, size
			}
			part.of += size
		}
		return part, true
	}
	return ids{}, false
}

// partRank returns how many dimensions the part has.
func (p ids) partRank() int {
	if p.drop {
		return p.rank - 1
	}
	return p.rank
}

// inputDimension returns the size of an axis of an input of the graph, 0 if it is not known.
func (m *matcher) inputDimension(value string, axis int) int64 {
	for _, p := range m.graph.Signature.Inputs {
		if p.Name == value && axis < len(p.Shape) {
			return max(0, p.Shape[axis])
		}
	}
	return 0
}

// deepest bounds the recursion of rankOf, so that it ends for any file. Chosen: models have a few
// operators between an input and a lookup.
const deepest = 32

// rankOf returns how many dimensions a value has, if the file says so or it follows from the
// operators that prepare ids.
func (m *matcher) rankOf(value string, depth int) (int, bool) {
	if r, ok := m.graph.Rank(value); ok {
		return r, true
	}
	i, ok := m.producers[value]
	if !ok || depth > deepest {
		return 0, false
	}
	n := m.graph.Nodes[i]
	if !n.Standard() || len(n.Inputs) == 0 {
		return 0, false
	}
	rank, ok := m.rankOf(n.Inputs[0], depth+1)
	switch n.Op {
	case "Cast", "Identity", "Slice", "Split", "Clip", "Abs", "Concat":
		return rank, ok
	case "Add", "Sub", "Mod":
		other, known := m.rankOf(n.Inputs[1], depth+1)
		return max(rank, other), ok && known
	case "Gather":
		index, known := m.rankOf(n.Inputs[1], depth+1)
		return rank + index - 1, ok && known
	case "Squeeze", "Unsqueeze":
		axes, err := m.constantAxes(n)
		if err != nil || axes == nil {
			return 0, false
		}
		if n.Op == "Squeeze" {
			return rank - len(axes), ok
		}
		return rank + len(axes), ok
	case "Reshape":
		shape, err := m.constantInts(n.Inputs[1])
		return len(shape), err == nil && shape != nil
	}
	return 0, false
}
