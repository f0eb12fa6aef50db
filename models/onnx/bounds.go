package onnx

import (
	"encoding/binary"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/muster-serve/muster/api/tensor"
)

// This file infers the bounds of ids: which values of an integer input name rows of tables whose
// sizes the file says. It follows the elements of an input through operators that keep their values
// to those that look them up. Where it cannot follow, or a lookup may not run, there is no bound.
// So what it says is out of bounds, ONNX Runtime refuses too.

const (
	// maxInts bounds the elements of a constant or an attribute whose values are read: axes,
	// shapes, indices of columns. Chosen: models select hundreds of columns at most, and 32 KB for
	// each constant is little.
	maxInts = 4 << 10
	// maxSteps and maxElements bound what is kept of a graph's nodes, and of the elements that are
	// followed at a time; a larger model has no bounds. The largest models of recommendation have
	// some thousand nodes, and rows of some thousand ids.
	maxSteps    = 1 << 17
	maxElements = 1 << 18
	// maxFollowed bounds the elements that are followed in all. Chosen: they take some 10 ms,
	// little beside a load.
	maxFollowed = 1 << 23
	// maxRows bounds an inferred bound, so that twice as much is a number too.
	maxRows = 1 << 62
)

// A step is a node of the main graph.
type step struct {
	op, domain      string
	inputs, outputs []string
	nested          []string // values that graphs within the node use
	ints            map[string][]int64
	texts           map[string]string
	value           constant // of a node Constant or ConstantOfShape
}

// A constant is a tensor of the file. Its shape is nil if it is sparse, and its elements are nil
// unless they are few integers.
type constant struct{ shape, ints []int64 }

// A route says which elements of the model's inputs are those of a value, of unchanged values.
type route struct {
	kind tensor.DataType
	// dims are the value's dimensions. A Dynamic one counts as one element, since all elements
	// along it have the same bounds. nil if the places of the elements are unknown.
	dims []int64
	// elements are numbers of elements of inputs, in the order of dims; see follower.first.
	elements []int32
}

// A follower follows the elements of inputs through a graph.
type follower struct {
	steps     []step
	constants map[string]constant
	routes    map[string]route
	shapes    map[string][]int64 // of values; Dynamic is not known
	bounds    []int64            // by element; 0: none
	followed  int                // elements, in all
}

// inferBounds returns Signature.Bounds of a graph with these inputs and outputs.
func inferBounds(inputs, outputs []ValueDescription, steps []step,
	constants map[string]constant) map[string][]int64 {
	f := &follower{steps: steps, constants: constants, routes: map[string]route{},
		shapes: map[string][]int64{}}
	for name, c := range constants {
		f.shapes[name] = c.shape
	}
	first := map[string]int{} // the number of an input's first element
	for _, p := range inputs {
		delete(f.constants, p.Name)
		if p.Shape == nil {
			continue
		}
		f.shapes[p.Name] = p.Shape
		n := countElements(p.Shape)
		if !isInteger(p.DataType) || n <= 0 || n > int64(maxElements-len(f.bounds)) {
			continue
		}
		r := route{kind: p.DataType, dims: p.Shape}
		first[p.Name] = len(f.bounds)
		for range n {
			r.elements = append(r.elements, int32(len(f.bounds)))
			f.bounds = append(f.bounds, 0)
		}
		f.routes[p.Name] = r
	}
	if len(first) == 0 {
		return nil
	}
	live := f.liveSteps(outputs)
	for i := range steps {
		if f.followStep(&steps[i], live[i]); f.followed > maxFollowed {
			return nil
		}
	}
	all := map[string][]int64{}
	for _, p := range inputs {
		if at, ok := first[p.Name]; ok {
			if b := byColumn(p.Shape, f.bounds[at:][:countElements(p.Shape)]); b != nil {
				all[p.Name] = b
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

// byColumn returns Signature.Bounds of an input from those of its elements.
func byColumn(shape, bounds []int64) []int64 {
	columns := int64(1)
	if len(shape) > 1 && shape[1] > 1 {
		columns = shape[1]
	}
	inner := int64(1)
	if len(shape) > 2 {
		inner = countElements(shape[2:])
	}
	list := make([]int64, columns)
	open := make([]bool, columns) // for a column with an element of any value
	for i, b := range bounds {
		c := int64(i) / inner % columns
		open[c] = open[c] || b == 0
		list[c] = max(list[c], b)
	}
	for c := range list {
		if open[c] {
			list[c] = 0
		}
	}
	switch {
	case slices.Max(list) == 0:
		return nil
	case slices.Min(list) == slices.Max(list):
		return list[:1]
	}
	return list
}

// liveSteps reports which steps ONNX Runtime has to run for the outputs.
func (f *follower) liveSteps(outputs []ValueDescription) []bool {
	needed := map[string]bool{}
	for _, p := range outputs {
		needed[p.Name] = true
	}
	live := make([]bool, len(f.steps))
	for i, s := range slices.Backward(f.steps) {
		live[i] = slices.ContainsFunc(s.outputs, func(name string) bool { return needed[name] })
		if !live[i] || s.op == "Shape" || s.op == "Size" { // a shape may be known without the value
			continue
		}
		for _, name := range slices.Concat(s.inputs, s.nested) {
			needed[name] = true
		}
	}
	return live
}

// followStep follows elements from the inputs of a step to its outputs, and notes their bounds if
// the step looks them up and is live.
func (f *follower) followStep(s *step, live bool) {
	if s.domain != "" && s.domain != "ai.onnx" || len(s.outputs) == 0 {
		return
	}
	if s.op == "Constant" {
		c := s.value
		if list, ok := s.ints["value_ints"]; ok {
			c = constant{shape: []int64{int64(len(list))}, ints: list}
		} else if list, ok := s.ints["value_int"]; ok {
			c = constant{shape: []int64{}, ints: list}
		}
		f.constants[s.outputs[0]] = c
		f.shapes[s.outputs[0]] = c.shape
		return
	}
	if len(s.inputs) == 0 {
		return
	}
	if shape := f.shapeOf(s); shape != nil {
		f.shapes[s.outputs[0]] = shape
	}
	if live {
		f.lookUp(s)
	}
	if s.op == "Concat" {
		f.followConcat(s)
		return
	}
	r, ok := f.routes[s.inputs[0]]
	if !ok {
		return
	}
	if s.op == "Split" {
		f.split(s, r)
		return
	}
	if r, ok = f.routeOfOutput(s, r); ok && len(r.elements) > 0 && len(r.elements) <= maxElements {
		f.setRoute(s.outputs[0], r)
	}
}

func (f *follower) setRoute(value string, r route) {
	f.followed += len(r.elements)
	if value != "" { // that of an output which is left out
		f.routes[value] = r
	}
}

// lookUp notes the bounds of the elements that a step takes for indices.
func (f *follower) lookUp(s *step) {
	if len(s.inputs) < 2 {
		return
	}
	data := f.shapes[s.inputs[0]]
	indices, ok := f.routes[s.inputs[1]]
	if !ok || len(data) == 0 {
		return
	}
	switch s.op {
	case "Gather", "GatherElements", "ScatterElements":
		axis := s.intAttribute("axis", 0)
		if axis < 0 {
			axis += int64(len(data))
		}
		if axis >= 0 && axis < int64(len(data)) {
			f.noteBound(indices.elements, data[axis])
		}
	case "GatherND", "ScatterND":
		from := s.intAttribute("batch_dims", 0)
		last := len(indices.dims) - 1
		if last < 0 || indices.dims[last] < 1 || from < 0 ||
			from > int64(len(data))-indices.dims[last] {
			return
		}
		for j := range indices.dims[last] { // which dimension of data the element is an index of
			f.noteBound(pickElements(indices, last, []int64{j}).elements, data[from+j])
		}
	}
}

// noteBound notes that the elements are indices of a dimension of the given size, if that is known.
func (f *follower) noteBound(numbers []int32, size int64) {
	if size < 1 || size > maxRows {
		return
	}
	f.followed += len(numbers)
	for _, e := range numbers {
		if f.bounds[e] == 0 || f.bounds[e] > size {
			f.bounds[e] = size
		}
	}
}

// routeOfOutput returns the route of a step's output, if it consists of elements of the first
// input, whose route is r.
func (f *follower) routeOfOutput(s *step, r route) (route, bool) {
	loose := route{kind: r.kind, elements: r.elements} // all of them, in any order
	switch s.op {
	case "Identity":
		return r, true
	case "Cast":
		to := elementTypes[uint64(s.intAttribute("to", 0))]
		ok := isWidening(r.kind, to)
		r.kind = to
		return r, ok
	case "Unsqueeze", "Squeeze", "Flatten", "Reshape":
		if r.dims == nil {
			return loose, true
		}
		dims := f.reshapedDims(s, r.dims)
		if dims == nil {
			return loose, true
		}
		r.dims = dims
		return r, true
	case "Transpose":
		if r.dims == nil {
			return loose, true
		}
		return transposeRoute(r, s.ints["perm"]), true
	case "Slice":
		return f.routeOfSlice(s, r)
	case "Gather": // of columns
		if r.dims == nil || len(s.inputs) < 2 {
			return route{}, false
		}
		axis := s.intAttribute("axis", 0)
		if axis < 0 {
			axis += int64(len(r.dims))
		}
		c, ok := f.constants[s.inputs[1]]
		if !ok || c.ints == nil || axis < 0 || axis >= int64(len(r.dims)) || r.dims[axis] < 0 {
			return route{}, false
		}
		indices := slices.Clone(c.ints)
		for i := range indices {
			if indices[i] < 0 {
				indices[i] += r.dims[axis]
			}
			if indices[i] < 0 || indices[i] >= r.dims[axis] {
				return route{}, false
			}
		}
		dims := slices.Concat(r.dims[:axis], c.shape, r.dims[axis+1:])
		if len(indices) > maxElements/len(r.elements) {
			return route{}, false
		}
		r = pickElements(r, int(axis), indices)
		r.dims = dims
		return r, true
	}
	return route{}, false
}

// reshapedDims returns the dimensions after a step that keeps the elements and their order; nil if
// it is not known which element is where.
func (f *follower) reshapedDims(s *step, dims []int64) []int64 {
	switch s.op {
	case "Unsqueeze":
		axes, ok := f.list(s, "axes", 1)
		rank := len(dims) + len(axes)
		if !ok {
			return nil
		}
		added := make([]bool, rank)
		for _, a := range axes {
			if a < 0 {
				a += int64(rank)
			}
			if a < 0 || a >= int64(rank) || added[a] {
				return nil
			}
			added[a] = true
		}
		var out []int64
		for i := range rank {
			if added[i] {
				out = append(out, 1)
			} else {
				out, dims = append(out, dims[0]), dims[1:]
			}
		}
		return out
	case "Squeeze":
		axes, ok := f.list(s, "axes", 1)
		if !ok {
			return nil
		}
		gone := make([]bool, len(dims))
		for _, a := range axes {
			if a < 0 {
				a += int64(len(dims))
			}
			if a < 0 || a >= int64(len(dims)) {
				return nil
			}
			gone[a] = true
		}
		out := []int64{}
		for i, d := range dims {
			if !gone[i] {
				out = append(out, d)
			}
		}
		return out
	case "Flatten":
		axis := s.intAttribute("axis", 1)
		if axis < 0 {
			axis += int64(len(dims))
		}
		if axis < 0 || axis > int64(len(dims)) {
			return nil
		}
		before, ok := mergeDims(dims[:axis])
		after, ok2 := mergeDims(dims[axis:])
		if !ok || !ok2 {
			return nil
		}
		return []int64{before, after}
	case "Reshape":
		to, ok := f.list(s, "shape", 1)
		if !ok || s.intAttribute("allowzero", 0) != 0 {
			return nil
		}
		return reshapeDims(dims, to)
	}
	return nil
}

// mergeDims returns the size of some dimensions as one; false if elements of different bounds then
// lie in a Dynamic one.
func mergeDims(dims []int64) (int64, bool) {
	dynamic := slices.Contains(dims, Dynamic)
	n := countElements(dims)
	if !dynamic {
		return n, n >= 0
	}
	return Dynamic, n == 1
}

// reshapeDims returns the dimensions of a value that is reshaped to the constant to; nil if
// elements of different bounds would lie in a Dynamic one.
func reshapeDims(dims, to []int64) []int64 {
	out := slices.Clone(to)
	open := -1
	for i, d := range out {
		if d == 0 { // as it was
			if i >= len(dims) {
				return nil
			}
			out[i] = dims[i]
			if dims[i] == Dynamic && i > 0 {
				return nil
			}
		} else if d < 0 {
			if open >= 0 {
				return nil
			}
			open = i
		}
	}
	rest, have := out, dims
	if len(dims) > 0 && dims[0] == Dynamic { // the batch size stays by itself
		if len(out) == 0 || out[0] != Dynamic {
			return nil
		}
		if open == 0 {
			open = -1
		}
		rest, have = out[1:], dims[1:]
		open--
	}
	if slices.Contains(have, Dynamic) {
		return nil
	}
	size := countElements(have)
	if open >= 0 {
		rest[open] = 1
		n := countElements(rest)
		if n <= 0 || size%n != 0 {
			return nil
		}
		rest[open] = size / n
	}
	if size < 0 || countElements(rest) != size {
		return nil
	}
	return out
}

func transposeRoute(r route, permutation []int64) route {
	rank := len(r.dims)
	if permutation == nil {
		for i := range rank {
			permutation = append(permutation, int64(rank-1-i))
		}
	}
	loose := route{kind: r.kind, elements: r.elements}
	sorted := slices.Sorted(slices.Values(permutation))
	for i, a := range sorted {
		if a != int64(i) {
			return loose
		}
	}
	if len(sorted) != rank {
		return loose
	}
	strides := make([]int64, rank) // in r
	n := int64(1)
	for i := rank - 1; i >= 0; i-- {
		strides[i] = n
		n *= elementsAlong(r.dims[i])
	}
	out := route{kind: r.kind}
	for _, a := range permutation {
		out.dims = append(out.dims, r.dims[a])
	}
	for i := range int64(len(r.elements)) {
		from := int64(0)
		for k := rank - 1; k >= 0; k-- {
			from += i % elementsAlong(out.dims[k]) * strides[permutation[k]]
			i /= elementsAlong(out.dims[k])
		}
		out.elements = append(out.elements, r.elements[from])
	}
	return out
}

// routeOfSlice is pass of a Slice.
func (f *follower) routeOfSlice(s *step, r route) (route, bool) {
	if r.dims == nil {
		return route{}, false
	}
	starts, ok := f.list(s, "starts", 1)
	ends, ok2 := f.list(s, "ends", 2)
	if !ok || !ok2 || len(starts) != len(ends) {
		return route{}, false
	}
	axes, given := f.list(s, "axes", 3)
	if !given {
		if len(s.inputs) > 3 && s.inputs[3] != "" {
			return route{}, false
		}
		for i := range starts {
			axes = append(axes, int64(i))
		}
	}
	steps, given := f.list(s, "steps", 4)
	if !given {
		if len(s.inputs) > 4 && s.inputs[4] != "" {
			return route{}, false
		}
		steps = slices.Repeat([]int64{1}, len(starts))
	}
	if len(axes) != len(starts) || len(steps) != len(starts) {
		return route{}, false
	}
	for i, axis := range axes {
		if axis < 0 {
			axis += int64(len(r.dims))
		}
		if axis < 0 || axis >= int64(len(r.dims)) || steps[i] == 0 {
			return route{}, false
		}
		size := r.dims[axis]
		if size == Dynamic {
			if starts[i] == 0 && ends[i] >= 1<<31-1 && steps[i] == 1 {
				continue // all of it
			}
			return route{}, false
		}
		r = pickElements(r, int(axis), sliceIndices(size, starts[i], ends[i], steps[i]))
	}
	return r, true
}

// sliceIndices returns the indices of a Slice of a dimension.
func sliceIndices(size, start, end, step int64) (indices []int64) {
	if start < 0 {
		start += size
	}
	if end < 0 {
		end = max(end, -size-1) + size
	}
	if step > 0 {
		for i := max(start, 0); i < min(end, size); i += step {
			indices = append(indices, i)
			if step >= size {
				break
			}
		}
		return indices
	}
	for i := min(start, size-1); i > max(end, -1); i += step {
		indices = append(indices, i)
		if step <= -size {
			break
		}
	}
	return indices
}

// split follows the elements of a Split.
func (f *follower) split(s *step, r route) {
	if r.dims == nil {
		return
	}
	axis := s.intAttribute("axis", 0)
	if axis < 0 {
		axis += int64(len(r.dims))
	}
	if axis < 0 || axis >= int64(len(r.dims)) || r.dims[axis] < 0 {
		return
	}
	size, parts := r.dims[axis], int64(len(s.outputs))
	sizes, ok := f.list(s, "split", 1)
	if !ok {
		if len(s.inputs) > 1 && s.inputs[1] != "" {
			return
		}
		each := (size + parts - 1) / parts // the last part may be smaller
		for left := size; len(sizes) < len(s.outputs); left -= each {
			sizes = append(sizes, max(0, min(each, left)))
		}
	}
	if len(sizes) != len(s.outputs) {
		return
	}
	at := int64(0)
	for i, n := range sizes {
		if n < 0 || n > size-at {
			return
		}
		indices := sliceIndices(size, at, at+n, 1)
		if part := pickElements(r, int(axis), indices); len(part.elements) > 0 {
			f.setRoute(s.outputs[i], part)
		}
		at += n
	}
}

// followConcat follows the elements of a Concat.
func (f *follower) followConcat(s *step) {
	var parts []route
	sum := 0
	for _, name := range s.inputs {
		if r, ok := f.routes[name]; ok {
			parts = append(parts, r)
			sum += len(r.elements)
		}
	}
	if len(parts) == 0 || sum > maxElements {
		return
	}
	out := route{kind: parts[0].kind}
	axis := s.intAttribute("axis", 0)
	rank := len(parts[0].dims)
	if axis < 0 {
		axis += int64(rank)
	}
	fits := len(parts) == len(s.inputs) && axis >= 0 && axis < int64(rank)
	size := int64(0)
	for _, p := range parts {
		if !fits || len(p.dims) != rank || p.dims[axis] < 0 {
			fits = false
			break
		}
		size += p.dims[axis]
		same := slices.Clone(p.dims)
		same[axis] = parts[0].dims[axis]
		fits = slices.Equal(same, parts[0].dims)
	}
	if !fits {
		for _, p := range parts {
			out.elements = append(out.elements, p.elements...)
		}
		f.setRoute(s.outputs[0], out)
		return
	}
	out.dims = slices.Clone(parts[0].dims)
	out.dims[axis] = size
	outer := int(countElements(out.dims[:axis]))
	for i := range outer {
		for _, p := range parts {
			n := len(p.elements) / outer
			out.elements = append(out.elements, p.elements[i*n:(i+1)*n]...)
		}
	}
	f.setRoute(s.outputs[0], out)
}

// pickElements returns the elements at some indices of a dimension that is not Dynamic.
func pickElements(r route, axis int, indices []int64) route {
	out := route{kind: r.kind, dims: slices.Clone(r.dims)}
	out.dims[axis] = int64(len(indices))
	inner := countElements(r.dims[axis+1:])
	for outer := range countElements(r.dims[:axis]) {
		for _, i := range indices {
			at := (outer*r.dims[axis] + i) * inner
			out.elements = append(out.elements, r.elements[at:at+inner]...)
		}
	}
	return out
}

// shapeOf returns the shape of a step's first output, as far as tables are computed from constants;
// nil if it is not known.
func (f *follower) shapeOf(s *step) []int64 {
	in := f.shapes[s.inputs[0]]
	if in == nil {
		return nil
	}
	switch s.op {
	case "Identity", "Cast", "DequantizeLinear", "QuantizeLinear":
		return in
	case "Mul", "Add", "Sub", "Div":
		if len(s.inputs) != 2 || f.shapes[s.inputs[1]] == nil {
			return nil
		}
		return broadcastShape(in, f.shapes[s.inputs[1]])
	case "MatMul":
		if len(s.inputs) != 2 || len(in) != 2 || len(f.shapes[s.inputs[1]]) != 2 {
			return nil
		}
		return []int64{in[0], f.shapes[s.inputs[1]][1]}
	case "Unsqueeze", "Squeeze", "Flatten", "Reshape":
		if slices.Contains(in, Dynamic) {
			return nil
		}
		return f.reshapedDims(s, in)
	case "Transpose":
		r := transposeRoute(route{dims: in}, s.ints["perm"])
		return r.dims
	case "Concat":
		out := slices.Clone(in)
		axis := s.intAttribute("axis", 0)
		if axis < 0 {
			axis += int64(len(in))
		}
		if axis < 0 || axis >= int64(len(in)) {
			return nil
		}
		for _, name := range s.inputs[1:] {
			other := f.shapes[name]
			if len(other) != len(in) {
				return nil
			}
			if out[axis] < 0 || other[axis] < 0 || out[axis] > maxRows-other[axis] {
				out[axis] = Dynamic
			} else {
				out[axis] += other[axis]
			}
		}
		return out
	}
	return nil
}

// broadcastShape returns the shape of what an operator makes of each pair of elements.
func broadcastShape(a, b []int64) []int64 {
	if len(a) < len(b) {
		a, b = b, a
	}
	out := slices.Clone(a)
	for i := range b {
		at := len(a) - len(b) + i
		switch {
		case b[i] == a[at] || b[i] == 1:
		case a[at] == 1 || a[at] == Dynamic && b[i] > 1:
			out[at] = b[i]
		case b[i] == Dynamic && a[at] > 1:
		default:
			out[at] = Dynamic
		}
	}
	return out
}

// list returns the integers of an attribute or, in later versions of an operator, of the constant
// that is input i; false if there are none.
func (f *follower) list(s *step, attribute string, i int) ([]int64, bool) {
	if list, ok := s.ints[attribute]; ok {
		return list, true
	}
	if i >= len(s.inputs) || s.inputs[i] == "" {
		return nil, false
	}
	c := f.constants[s.inputs[i]]
	return c.ints, c.ints != nil
}

// intAttribute returns the value of an attribute.
func (s *step) intAttribute(attribute string, otherwise int64) int64 {
	if list := s.ints[attribute]; len(list) == 1 {
		return list[0]
	}
	return otherwise
}

// elementsAlong is the number of elements along a dimension; see route.dims.
func elementsAlong(d int64) int64 {
	if d == Dynamic {
		return 1
	}
	return d
}

// countElements is the number of elements of some dimensions; see route.dims. It is -1 if that is
// more than maxRows.
func countElements(dims []int64) int64 {
	n := int64(1)
	for _, d := range dims {
		if d = elementsAlong(d); d < 0 || d > 0 && n > maxRows/d {
			return -1
		}
		n *= d
	}
	return n
}

// integerBits are the sizes of types of integers, negative if they have no sign.
var integerBits = map[tensor.DataType]int{
	tensor.Int8: 8, tensor.Int16: 16, tensor.Int32: 32, tensor.Int64: 64,
	tensor.Uint8: -8, tensor.Uint16: -16, tensor.Uint32: -32, tensor.Uint64: -64,
}

func isInteger(t tensor.DataType) bool { return integerBits[t] != 0 }

// isWidening reports whether every integer of a type is the same in another.
func isWidening(from, to tensor.DataType) bool {
	f, t := integerBits[from], integerBits[to]
	switch {
	case f == 0 || t == 0:
		return false
	case (f < 0) == (t < 0):
		return max(t, -t) >= max(f, -f)
	}
	return f < 0 && t > -f
}

// readInts returns the integers of a field, packed or one alone; false if they are too many.
func (f field) readInts() ([]int64, bool, error) {
	if f.kind == protowire.VarintType {
		return []int64{int64(f.value)}, true, nil
	}
	m, err := f.readMessage()
	if err != nil || m.end-m.pos > 10*maxInts { // the longest varint has 10 bytes
		return nil, false, err
	}
	var all []int64
	for m.pos < m.end {
		v, err := m.readVarint()
		if err != nil {
			return nil, false, err
		}
		all = append(all, int64(v))
	}
	return all, len(all) <= maxInts, nil
}

// rawInts returns the little-endian integers of a type in a field; nil if they are too many, or of
// another type.
func (f field) rawInts(kind uint64) ([]int64, error) {
	m, err := f.readMessage()
	size := int64(elementTypes[kind].Size())
	if kind != 6 && kind != 7 || err != nil || m.end-m.pos > size*maxInts {
		return nil, err
	}
	text, err := m.readText()
	if err != nil {
		return nil, err
	}
	all := []int64{}
	for b := []byte(text); int64(len(b)) >= size; b = b[size:] {
		if size == 4 {
			all = append(all, int64(int32(binary.LittleEndian.Uint32(b))))
		} else {
			all = append(all, int64(binary.LittleEndian.Uint64(b)))
		}
	}
	return all, nil
}
