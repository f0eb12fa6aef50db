package kernels

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/onnx"
)

// This file finds what PyTorch's exporters make of nn.EmbeddingBag: loops that compute one bag at a
// time. The older one, of TorchScript, gathers the rows of each bag in the loop and collects what
// becomes of them; the newer one, of torch.export, gathers all rows before, and the loop slices them
// and inserts what becomes of each bag into a sequence. What is not recognised stays; and what is, the
// check at load compares with the loop itself, on bags of several lengths (check.go).

// A scope is a graph within a node, and what is around it.
type scope struct {
	m         *matcher
	around    *scope // nil: the main graph
	body      onnx.Body
	producers map[string]onnx.Node
}

func (m *matcher) newScope(around *scope, body onnx.Body) *scope {
	s := &scope{m: m, around: around, body: body, producers: map[string]onnx.Node{}}
	for _, n := range body.Nodes {
		for _, output := range n.Outputs {
			s.producers[output] = n
		}
	}
	return s
}

// producerOf is matcher.producerOf for a value of the scope or around it.
func (s *scope) producerOf(value, op string) (onnx.Node, bool) {
	for at := s; at != nil; at = at.around {
		if n, ok := at.producers[value]; ok {
			return n, n.Op == op && n.Standard() && n.Outputs[0] == value
		}
	}
	return s.m.producerOf(value, op)
}

// ints is matcher.constantInts for a value of the scope or around it.
func (s *scope) ints(value string) []int64 {
	for at := s; at != nil; at = at.around {
		t, ok := at.constant(value)
		if !ok {
			continue
		}
		all, err := s.m.intsOf(t)
		if err != nil {
			return nil
		}
		return all
	}
	all, err := s.m.constantInts(value)
	if err != nil {
		return nil
	}
	return all
}

// constant is Graph.Constant of the scope alone.
func (s *scope) constant(value string) (onnx.Initializer, bool) {
	if n, ok := s.producers[value]; ok && n.Op == "Constant" {
		t, ok := n.Attribute("value").(onnx.Initializer)
		return t, ok
	}
	i := slices.IndexFunc(s.body.Initializers, func(t onnx.Initializer) bool { return t.Name == value })
	if i < 0 {
		return onnx.Initializer{}, false
	}
	return s.body.Initializers[i], true
}

// isInts reports whether a value is a constant list or scalar of one integer.
func (s *scope) isInts(value string, want int64) bool {
	return slices.Equal(s.ints(value), []int64{want})
}

// axis returns the one axis that a node has as an attribute or as input i; false if there is not one.
func (s *scope) axis(n onnx.Node, attribute string, i int) (int64, bool) {
	switch v := n.Attribute(attribute).(type) {
	case int64:
		return v, true
	case []int64:
		if len(v) == 1 {
			return v[0], true
		}
		return 0, false
	}
	if i >= len(n.Inputs) {
		return 0, false
	}
	all := s.ints(n.Inputs[i])
	if len(all) != 1 {
		return 0, false
	}
	return all[0], true
}

// unsqueezed returns the value of which a value is an Unsqueeze along axis.
func (s *scope) unsqueezed(value string, axis int64) (string, bool) {
	n, ok := s.producerOf(value, "Unsqueeze")
	if !ok {
		return "", false
	}
	got, ok := s.axis(n, "axes", 1)
	return n.Inputs[0], ok && got == axis
}

var bagModes = map[string]mode{"ReduceSum": modeSum, "ReduceMean": modeMean, "ReduceMax": modeMax}

// findLoop returns the bag that a Loop computes. It returns false for any other Loop, and notes why
// one does not fit that looks as if it summed bags.
func (m *matcher) findLoop(n onnx.Node) (bag, bool) {
	if n.Op != "Loop" || !n.Standard() || !n.Applies("Slice") && !n.Applies("SequenceInsert") ||
		!n.Applies("ReduceSum") && !n.Applies("ReduceMean") && !n.Applies("ReduceMax") {
		return bag{}, false
	}
	why := "it sums one bag at a time in a way that is not known"
	if body, ok := n.Body("body"); ok {
		s := m.newScope(nil, body)
		b, ok := s.scannedBag(n)
		if !ok {
			b, ok = s.sequencedBag(n)
		}
		if ok {
			if err := m.settle(&b); err == nil {
				return b, true
			} else {
				why = err.Error()
			}
		}
	}
	m.left = append(m.left, fmt.Sprintf("Loop %s: %s; nn.Embedding and a sum over the lookups fit", n.Name,
		why))
	return bag{}, false
}

// scannedBag is the bag of a Loop as the exporter of TorchScript writes it.
func (s *scope) scannedBag(n onnx.Node) (b bag, ok bool) {
	if len(n.Inputs) != 2 || len(n.Outputs) != 1 || len(s.body.Inputs) != 2 || len(s.body.Outputs) != 2 {
		return b, false
	}
	b.value = n.Outputs[0]
	reduce := s.producers[s.body.Outputs[1]]
	if b.mode, ok = bagModes[reduce.Op]; !ok || !s.reducesRows(reduce, 0) {
		return b, false
	}
	rows := reduce.Inputs[0]
	var weights onnx.Node
	if product, ok := s.producerOf(rows, "Mul"); ok {
		column, ok := s.unsqueezed(product.Inputs[1], 1)
		if !ok {
			return b, false
		}
		if weights, ok = s.producerOf(column, "Slice"); !ok {
			return b, false
		}
		rows, b.weights = product.Inputs[0], weights.Inputs[0]
	}
	gather, ok := s.producerOf(rows, "Gather")
	if axis, _ := gather.Attribute("axis").(int64); !ok || axis != 0 {
		return b, false
	}
	b.rows = gather.Inputs[0]
	slice, ok := s.producerOf(gather.Inputs[1], "Slice")
	if !ok || !s.isSliceOfRows(slice) || b.weights != "" && (!s.isSliceOfRows(weights) ||
		!slices.Equal(weights.Inputs[1:3], slice.Inputs[1:3])) {
		return b, false
	}
	b.ids = slice.Inputs[0]
	// The bounds of bag i are element i of the offsets, and of the offsets from the second on.
	element := func(bound string) (of string, ok bool) {
		if bound, ok = s.unsqueezed(bound, 0); !ok {
			return "", false
		}
		n, ok := s.producerOf(bound, "Gather")
		return n.Inputs[0], ok && n.Inputs[1] == s.body.Inputs[0]
	}
	from, ok := element(slice.Inputs[1])
	if !ok {
		return b, false
	}
	to, ok := element(slice.Inputs[2])
	if !ok {
		return b, false
	}
	rest, ok := s.m.producerOf(to, "Slice")
	if !ok || rest.Inputs[0] != from || !s.isSliceOfRows(rest) || !s.isInts(rest.Inputs[1], 1) ||
		!s.isInts(rest.Inputs[2], math.MaxInt64) {
		return b, false
	}
	count, ok := s.m.producerOf(n.Inputs[0], "Gather")
	if !ok || !s.isInts(count.Inputs[1], 0) {
		return b, false
	}
	shape, ok := s.m.producerOf(count.Inputs[0], "Shape")
	b.offsets, b.last = from, true
	return b, ok && shape.Inputs[0] == to
}

// reducesRows reports whether a node reduces over the first axis, and keeps the axis or does not.
func (s *scope) reducesRows(n onnx.Node, keep int64) bool {
	axis, ok := s.axis(n, "axes", 1)
	kept, given := n.Attribute("keepdims").(int64)
	if !given {
		kept = 1
	}
	return ok && axis == 0 && kept == keep
}

// isSliceOfRows reports whether a Slice takes rows, each of them: its axes are the first, or left out.
func (s *scope) isSliceOfRows(n onnx.Node) bool {
	return len(n.Inputs) >= 3 && (len(n.Inputs) < 4 || s.isInts(n.Inputs[3], 0)) &&
		(len(n.Inputs) < 5 || s.isInts(n.Inputs[4], 1))
}

// sequencedOps are the operators of a loop as torch.export writes it.
var sequencedOps = []string{
	"Add", "Cast", "CastLike", "Constant", "Div", "Equal", "Greater", "Identity", "If", "Less",
	"ReduceMax", "ReduceMean", "ReduceSum", "Reshape", "SequenceInsert", "Shape", "Slice", "Sub",
}

// sequencedBag is the bag of a Loop as torch.export writes it. The operators in it say which bag it
// is; how they are connected, only as far as the values around them are concerned.
func (s *scope) sequencedBag(n onnx.Node) (b bag, ok bool) {
	if len(n.Inputs) != 4 || len(n.Outputs) != 2 || len(s.body.Inputs) != 4 || len(s.body.Outputs) != 3 {
		return b, false
	}
	sequence := 0
	insert, ok := s.producerOf(s.body.Outputs[1], "SequenceInsert")
	if !ok {
		sequence = 1
		insert, ok = s.producerOf(s.body.Outputs[2], "SequenceInsert")
	}
	if !ok || insert.Inputs[0] != s.body.Inputs[2+sequence] || len(insert.Inputs) != 2 ||
		!s.isInts(n.Inputs[3-sequence], 0) {
		return b, false
	}
	if _, ok := s.m.producerOf(n.Inputs[2+sequence], "SequenceEmpty"); !ok {
		return b, false
	}
	choice, ok := s.producerOf(insert.Inputs[1], "If")
	if !ok {
		return b, false
	}
	// Equal offsets give zeros; else the rows are reduced.
	equal, ok := s.producerOf(choice.Inputs[0], "Equal")
	if !ok {
		return b, false
	}
	from, ok := s.producerOf(equal.Inputs[0], "Slice")
	to, known := s.producerOf(equal.Inputs[1], "Slice")
	if !ok || !known || from.Inputs[0] != to.Inputs[0] {
		return b, false
	}
	then, ok := choice.Body("then_branch")
	if !ok || len(then.Nodes) > 1 || len(then.Initializers)+len(then.Nodes) != 1 {
		return b, false
	}
	otherwise, ok := choice.Body("else_branch")
	if !ok {
		return b, false
	}
	var rows string
	if b.mode, rows, ok = s.m.reduceIn(s, otherwise); !ok {
		return b, false
	}
	b.zero, b.offsets, b.last = true, from.Inputs[0], true
	less, ok := s.producerOf(s.body.Outputs[0], "Less")
	if !ok || !s.readRows(&b, rows) {
		return b, false
	}
	// With include_last_offset there is one bag less than offsets.
	if minus, ok := s.m.producerOf(less.Inputs[1], "Sub"); ok {
		b.open = b.mode != modeSum
		size, ok := s.m.producerOf(minus.Inputs[0], "Size")
		if !ok || size.Inputs[0] != b.offsets || !s.isInts(minus.Inputs[1], 1) {
			return b, false
		}
	} else if size, ok := s.m.producerOf(less.Inputs[1], "Size"); !ok {
		return b, false
	} else if all, ok := s.m.producerOf(b.offsets, "Concat"); !ok || len(all.Inputs) != 2 ||
		all.Inputs[0] != size.Inputs[0] {
		return b, false
	}
	joined, ok := s.m.onlyUser(n.Outputs[sequence], "ConcatFromSequence")
	if !ok {
		return b, false
	}
	b.value = joined.Outputs[0]
	if cast, ok := s.m.onlyUser(b.value, "Cast"); ok && cast.Attribute("to") == int64(toFloat) {
		b.value = cast.Outputs[0]
	}
	axis, ok := joined.Attribute("axis").(int64)
	return b, ok && axis == 0
}

// reduceIn returns how a graph reduces rows, and which: those that its slices are of, all of one value.
func (m *matcher) reduceIn(around *scope, body onnx.Body) (how mode, rows string, ok bool) {
	s := m.newScope(around, body)
	seen := map[string]bool{}
	ok = true
	var visit func(s *scope)
	visit = func(s *scope) {
		for _, n := range s.body.Nodes {
			seen[n.Op] = true
			if !n.Standard() || !slices.Contains(sequencedOps, n.Op) {
				ok = false
			}
			if n.Op == "Slice" && (len(n.Inputs) != 3 || rows != "" && rows != n.Inputs[0]) {
				ok = false
			} else if n.Op == "Slice" {
				rows = n.Inputs[0]
			}
			if _, reduces := bagModes[n.Op]; reduces && !s.reducesRows(n, 1) {
				ok = false
			}
			for _, branch := range []string{"then_branch", "else_branch"} {
				if inner, has := n.Body(branch); has {
					visit(m.newScope(s, inner))
				}
			}
		}
	}
	visit(s)
	switch {
	case seen["ReduceMean"]: // but for the last bag, of which the sum is divided
		return modeMean, rows, ok && !seen["ReduceMax"] && rows != ""
	case seen["ReduceMax"]:
		return modeMax, rows, ok && !seen["ReduceSum"] && rows != ""
	}
	return modeSum, rows, ok && seen["ReduceSum"] && !seen["If"] && rows != ""
}

// readRows reads of which table, ids and weights the rows are that torch.export gathers before the
// loop.
func (s *scope) readRows(b *bag, rows string) bool {
	if product, ok := s.m.producerOf(rows, "Mul"); ok {
		column, ok := s.unsqueezed(product.Inputs[1], 1)
		if !ok {
			return false
		}
		if !s.isOnes(column) {
			b.weights = column
		}
		rows = product.Inputs[0]
	}
	gather, ok := s.m.producerOf(rows, "Gather")
	if axis, _ := gather.Attribute("axis").(int64); !ok || axis != 0 {
		return false
	}
	b.rows, b.ids = gather.Inputs[0], gather.Inputs[1]
	return true
}

// isOnes reports whether a value is 1 everywhere.
func (s *scope) isOnes(value string) bool {
	n, ok := s.m.producerOf(value, "Expand")
	if !ok {
		return false
	}
	one, ok := s.m.graph.Constant(n.Inputs[0])
	if !ok || one.DataType != tensor.FP32 {
		return false
	}
	all, err := s.m.graph.Floats(one)
	return err == nil && len(all) == 1 && all[0] == 1
}

// onlyUser returns the node that alone uses a value, if it is a standard one of the operator.
func (m *matcher) onlyUser(value, op string) (onnx.Node, bool) {
	if !m.isUsedOnce(value) || len(m.users[value]) != 1 {
		return onnx.Node{}, false
	}
	n := m.graph.Nodes[m.users[value][0]]
	return n, n.Op == op && n.Standard()
}

// settle completes a bag of which a Loop tells the table, ids, offsets and weights. The error says why
// it does not fit.
func (m *matcher) settle(b *bag) error {
	t, ok := m.graph.Constant(b.rows)
	if !ok || t.DataType != tensor.FP32 || len(t.Shape) != 2 || t.Shape[1] < 1 {
		return fmt.Errorf("its table is no constant matrix in FP32")
	}
	b.ids, b.weights = m.unflattened(b.ids), m.unflattened(b.weights)
	if all, ok := m.producerOf(b.offsets, "Concat"); ok && len(all.Inputs) == 2 &&
		m.extentOf(all.Inputs[1], 0).equals(m.sizeOf(b.ids, 0)) {
		b.offsets, b.last = all.Inputs[0], false
	}
	rank, ok := m.rankOf(b.ids, 0)
	if !ok {
		return fmt.Errorf("the number of dimensions of its ids is not known")
	}
	b.form, b.rank, b.source = formFP32, 2, ids{value: b.ids, rank: rank, split: -1}
	if m.areRows(b) { // of a matrix: as many lookups in each bag
		if part, ok := m.sourceOfIDs(b.ids); ok && b.weights == "" {
			b.source = part
		}
		b.lookups = m.dimensionOf(b.ids, 1, 0).fixed()
		b.offsets, b.last, b.open, b.zero = "", false, false, false
		b.reduceOver(1)
	}
	stop := map[string]bool{
		b.ids: true, b.source.value: true, b.offsets: true, b.weights: true,
	}
	if b.nodes, ok = m.nodesFrom(b.value, stop); !ok {
		return fmt.Errorf("it depends on more than its ids, offsets and weights")
	}
	return nil
}

// unflattened returns the value that is reshaped to one dimension, or value itself.
func (m *matcher) unflattened(value string) string {
	for range deepest {
		n, ok := m.producerOf(value, "Reshape")
		if !ok {
			break
		}
		if shape, err := m.constantInts(n.Inputs[1]); err != nil || !slices.Equal(shape, []int64{-1}) {
			break
		}
		value = n.Inputs[0]
	}
	return value
}

// areRows reports whether the bags are the rows of a matrix of ids: the offsets are a Range of its
// elements by its width, as exporters write it.
func (m *matcher) areRows(b *bag) bool {
	n, ok := m.producerOf(b.offsets, "Range")
	if !ok || b.last || b.source.rank != 2 {
		return false
	}
	start, err := m.constantInts(n.Inputs[0])
	return err == nil && slices.Equal(start, []int64{0}) &&
		m.extentOf(n.Inputs[1], 0).equals(m.sizeOf(b.ids, 0)) &&
		m.extentOf(n.Inputs[2], 0).equals(m.dimensionOf(b.ids, 1, 0))
}

// nodesFrom returns the nodes that compute a value from those where to stop and from constants, in the
// order of the graph; false if it depends on others.
func (m *matcher) nodesFrom(value string, stop map[string]bool) ([]onnx.Node, bool) {
	found, ok := map[int]bool{}, true
	var visit func(value string, nested bool)
	visit = func(value string, nested bool) {
		if value == "" || stop[value] || !ok {
			return
		}
		if _, constant := m.graph.Constant(value); constant {
			return
		}
		i, produced := m.producers[value]
		if !produced { // an input of the graph, or a value within a Loop
			isInput := slices.ContainsFunc(m.graph.Signature.Inputs,
				func(p onnx.ValueDescription) bool { return p.Name == value })
			ok = nested && !isInput
			return
		}
		if found[i] {
			return
		}
		found[i] = true
		n := m.graph.Nodes[i]
		for _, input := range n.Inputs {
			visit(input, false)
		}
		for used := range n.NestedUses() {
			visit(used, true)
		}
	}
	visit(value, false)
	var nodes []onnx.Node
	for i, n := range m.graph.Nodes {
		if found[i] {
			nodes = append(nodes, n)
		}
	}
	return nodes, ok
}

// An extent is a number that is a product of a constant and dimensions of values; 0: not known.
type extent struct {
	factor int64
	dims   []dimension
}

type dimension struct {
	value string
	axis  int
}

func (e extent) times(o extent) extent {
	dims := slices.Concat(e.dims, o.dims)
	slices.SortFunc(dims, func(a, b dimension) int {
		return cmp.Or(cmp.Compare(a.value, b.value), cmp.Compare(a.axis, b.axis))
	})
	return extent{e.factor * o.factor, dims}
}

func (e extent) equals(o extent) bool {
	return e.factor != 0 && e.factor == o.factor && slices.Equal(e.dims, o.dims)
}

// fixed is the number if it is a constant, else 0.
func (e extent) fixed() int64 {
	if len(e.dims) > 0 {
		return 0
	}
	return e.factor
}

// extentOf returns what a value of one integer is.
func (m *matcher) extentOf(value string, depth int) extent {
	if all, err := m.constantInts(value); err == nil && len(all) == 1 {
		return extent{factor: all[0]}
	}
	i, ok := m.producers[value]
	if !ok || depth > deepest {
		return extent{}
	}
	n := m.graph.Nodes[i]
	if !n.Standard() || len(n.Inputs) == 0 {
		return extent{}
	}
	switch n.Op {
	case "Cast", "Identity", "Squeeze", "Unsqueeze", "Reshape":
		return m.extentOf(n.Inputs[0], depth+1)
	case "Size":
		return m.sizeOf(n.Inputs[0], depth+1)
	case "Mul":
		return m.extentOf(n.Inputs[0], depth+1).times(m.extentOf(n.Inputs[1], depth+1))
	case "Shape":
		from, _ := n.Attribute("start").(int64)
		to, limited := n.Attribute("end").(int64)
		rank, known := m.rankOf(n.Inputs[0], depth+1)
		if limited && from >= 0 && to == from+1 || !limited && known && int64(rank) == from+1 {
			return m.dimensionOf(n.Inputs[0], int(from), depth+1)
		}
	case "ReduceProd":
		if shape, ok := m.producerOf(n.Inputs[0], "Shape"); ok && len(shape.Attributes) == 0 &&
			len(n.Inputs) == 1 && n.Attribute("axes") == nil {
			return m.sizeOf(shape.Inputs[0], depth+1)
		}
	case "Gather":
		shape, ok := m.producerOf(n.Inputs[0], "Shape")
		axis, err := m.constantInts(n.Inputs[1])
		if ok && len(shape.Attributes) == 0 && err == nil && len(axis) == 1 && axis[0] >= 0 {
			return m.dimensionOf(shape.Inputs[0], int(axis[0]), depth+1)
		}
	}
	return extent{}
}

// dimensionOf returns a dimension of a value.
func (m *matcher) dimensionOf(value string, axis, depth int) extent {
	if size := m.inputDimension(value, axis); size > 0 {
		return extent{factor: size}
	}
	if flat := m.unflattened(value); flat != value && axis == 0 && depth <= deepest {
		return m.sizeOf(flat, depth+1)
	}
	if n, ok := m.producerOf(value, "Gather"); ok && depth <= deepest { // of one index
		at, _ := n.Attribute("axis").(int64)
		if t, constant := m.graph.Constant(n.Inputs[1]); constant && len(t.Shape) == 0 && at >= 0 {
			if int64(axis) >= at {
				axis++
			}
			return m.dimensionOf(n.Inputs[0], axis, depth+1)
		}
	}
	return extent{1, []dimension{{value, axis}}}
}

// sizeOf returns how many elements a value has.
func (m *matcher) sizeOf(value string, depth int) extent {
	value = m.unflattened(value)
	rank, ok := m.rankOf(value, depth)
	if !ok {
		return extent{}
	}
	e := extent{factor: 1}
	for axis := range rank {
		e = e.times(m.dimensionOf(value, axis, depth+1))
	}
	return e
}
