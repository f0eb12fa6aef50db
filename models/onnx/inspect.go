package onnx

import (
	"fmt"
	"io"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/muster-serve/muster/api/tensor"
)

// Import declares the version of a domain of operators, if the model does not declare it yet.
func (g *Graph) Import(domain string, version int64) {
	if _, ok := g.Signature.Domains[domain]; ok {
		return
	}
	field := opsetImport(domain, version)
	for _, f := range g.model {
		if f.number == modelOpsetImport && string(f.raw) == string(field) {
			return
		}
	}
	g.model = append(g.model, wireField{number: modelOpsetImport, raw: field})
}

// Rank returns how many dimensions the file declares for a value of the main graph: an input, an
// output, a constant, or one with a ValueInfoProto. It returns false if it declares none.
func (g *Graph) Rank(value string) (int, bool) {
	if t, ok := g.Constant(value); ok {
		return len(t.Shape), true
	}
	if g.ranks == nil {
		g.ranks = map[string]int{}
		for _, f := range g.graph {
			if f.number == graphInput || f.number == graphOutput || f.number == graphValueInfo {
				if name, rank := valueRank(f.body); rank >= 0 {
					g.ranks[name] = rank
				}
			}
		}
	}
	rank, ok := g.ranks[value]
	return rank, ok
}

// valueRank returns the name in a ValueInfoProto and its number of dimensions, -1 if it has none.
func valueRank(b []byte) (name string, rank int) {
	name, err := nameOf(b, valueName)
	if err != nil {
		return "", -1
	}
	rank = -1
	_ = eachField(b, valueType, func(kind []byte) error {
		return eachField(kind, typeTensor, func(t []byte) error {
			return eachField(t, tensorTypeShape, func(shape []byte) error {
				rank = 0
				return eachField(shape, shapeDim, func([]byte) error {
					rank++
					return nil
				})
			})
		})
	})
	return name, rank
}

// Undeclare removes what the file says of the types of values within the graph that are of the type
// d: after a change to another type, ONNX Runtime would refuse it.
func (g *Graph) Undeclare(d tensor.DataType) {
	g.ranks = nil
	g.graph = slices.DeleteFunc(g.graph, func(f wireField) bool {
		found := false
		if f.number == graphValueInfo {
			_ = eachField(f.body, valueType, func(kind []byte) error {
				return eachField(kind, typeTensor, func(t []byte) error {
					fields, err := split(t)
					found = found || slices.ContainsFunc(fields, func(f wireField) bool {
						return f.number == tensorTypeElement && elementTypes[f.value] == d
					})
					return err
				})
			})
		}
		return found
	})
}

// Default returns the value of an input that is an initializer too.
func (g *Graph) Default(input string) (tensor.Tensor, error) {
	t, ok := g.Constant(input)
	if !ok {
		return tensor.Tensor{}, fmt.Errorf("input %q has no default", input)
	}
	size, err := t.size()
	if err != nil {
		return tensor.Tensor{}, fmt.Errorf("tensor %q: %w", input, err)
	}
	data, err := g.readData(t, int64(size))
	if err != nil {
		return tensor.Tensor{}, fmt.Errorf("tensor %q: %w", input, err)
	}
	return tensor.Tensor{
		Name: input, DataType: t.DataType, Shape: append([]int64{}, t.Shape...), Data: data,
	}, nil
}

// Externals returns the initializers whose elements are in other files. Their Data is not set.
func (g *Graph) Externals() (all []Initializer, err error) {
	for _, t := range g.initializers {
		fields, err := split(t.raw)
		if err != nil {
			return nil, err
		}
		external, err := readExternal(fields)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		if external != nil {
			t.External = *external
			all = append(all, t)
		}
	}
	return all, nil
}

// Rows returns a constant that holds the first rows, at most n, of the matrix t. A scalar or a list
// is returned whole.
func (g *Graph) Rows(t Initializer, n int64) (Initializer, error) {
	part := Initializer{Name: t.Name, DataType: t.DataType, Shape: append([]int64{}, t.Shape...)}
	if len(t.Shape) > 1 {
		part.Shape[0] = min(n, t.Shape[0])
	}
	size, err := part.size()
	if err != nil {
		return Initializer{}, fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	data, err := g.readData(t, int64(size))
	if err != nil {
		return Initializer{}, fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	part.Data = data
	return part, nil
}

// size returns how many bytes the elements take.
func (t Initializer) size() (int, error) {
	return tensor.Elements(append(slices.Clone(t.Shape), int64(t.DataType.Size())))
}

// readData returns the first n bytes of a tensor's elements; all of them if n is -1.
func (g *Graph) readData(t Initializer, n int64) ([]byte, error) {
	data := t.Data
	if t.raw != nil {
		fields, err := split(t.raw)
		if err != nil {
			return nil, err
		}
		external, err := readExternal(fields)
		if err != nil {
			return nil, err
		}
		if external != nil {
			f, r, err := g.openSection(*external)
			if err != nil {
				return nil, err
			}
			defer f.Close()
			if n < 0 {
				n = r.Size()
			}
			if n > r.Size() {
				return nil, fmt.Errorf("got %d bytes, expected at least %d", r.Size(), n)
			}
			data = make([]byte, n)
			_, err = io.ReadFull(r, data)
			return data, err
		}
		for _, f := range fields {
			switch {
			case f.number == tensorRawData:
				// what a damaged tensor has besides must not go behind it
				data = slices.Clip(f.body)
			case f.number == tensorFloatData && t.DataType == tensor.FP32:
				floats, err := fixedFloats(f)
				if err != nil {
					return nil, err
				}
				data = append(data, floats...)
			case f.number == tensorInt64Data && t.DataType == tensor.Int64,
				f.number == tensorInt32Data && t.DataType.Size() <= 4 && t.DataType != tensor.FP32:
				if data, err = appendVarints(data, f, t.DataType.Size()); err != nil {
					return nil, err
				}
			}
		}
	}
	if n < 0 {
		return data, nil
	}
	if int64(len(data)) < n {
		return nil, fmt.Errorf("got %d bytes, expected at least %d", len(data), n)
	}
	return data[:n], nil
}

// fixedFloats returns the bytes of 32-bit floats, packed or one alone.
func fixedFloats(f wireField) ([]byte, error) {
	if f.body != nil {
		return f.body, nil
	}
	_, kind, n := protowire.ConsumeTag(f.raw) // split has read it before
	if kind != protowire.Fixed32Type {
		return nil, fmt.Errorf("field %d has wire type %d, expected 32-bit floats", f.number, kind)
	}
	return f.raw[n:], nil
}

// appendVarints appends the varints of a field, packed or one alone, in little-endian integers of
// size bytes.
func appendVarints(data []byte, f wireField, size int) ([]byte, error) {
	put := func(v uint64) {
		for i := range size {
			data = append(data, byte(v>>(8*i)))
		}
	}
	if f.body == nil {
		put(f.value)
	}
	for packed := f.body; len(packed) > 0; {
		v, n := protowire.ConsumeVarint(packed)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		put(v)
		packed = packed[n:]
	}
	return data, nil
}

// A Body is a graph within a node: of a Loop, or a branch of an If.
type Body struct {
	Nodes           []Node
	Inputs, Outputs []string
	Initializers    []Initializer
}

// Body returns the graph that is an attribute of a node that was read; false if there is none.
func (n Node) Body(attribute string) (b Body, ok bool) {
	// readNode has split it before, and countUses the graph
	_ = eachField(n.raw, nodeAttribute, func(a []byte) error {
		if name, err := nameOf(a, attributeName); err != nil || name != attribute {
			return err
		}
		return eachField(a, attributeGraph, func(graph []byte) (err error) {
			b, err = readBody(graph)
			ok = err == nil
			return err
		})
	})
	return b, ok
}

func readBody(graph []byte) (b Body, err error) {
	fields, err := split(graph)
	for _, f := range fields {
		switch {
		case f.body == nil || err != nil:
		case f.number == graphNode:
			var n Node
			n, err = readNode(f.body)
			b.Nodes = append(b.Nodes, n)
		case f.number == graphInitializer:
			var t Initializer
			t, err = readInitializer(f.body)
			b.Initializers = append(b.Initializers, t)
		case f.number == graphInput:
			var name string
			name, err = nameOf(f.body, valueName)
			b.Inputs = append(b.Inputs, name)
		case f.number == graphOutput:
			var name string
			name, err = nameOf(f.body, valueName)
			b.Outputs = append(b.Outputs, name)
		}
	}
	return b, err
}

// NestedUses returns how often graphs within a node that was read use each value, their own among
// them.
func (n Node) NestedUses() map[string]int {
	used := map[string]int{}
	_ = nestedUses(n.raw, used, 0) // countUses has done so before
	return used
}

// Applies reports whether a graph within a node that was read applies an operator, at any depth.
func (n Node) Applies(operator string) bool { return appliesOperator(n.raw, operator, 0) }

func appliesOperator(node []byte, operator string, depth int) bool {
	found := false
	if depth > deepest {
		return false
	}
	visit := func(graph []byte) error {
		return eachField(graph, graphNode, func(node []byte) error {
			op, err := nameOf(node, nodeOpType)
			found = found || op == operator || appliesOperator(node, operator, depth+1)
			return err
		})
	}
	// readNode has split it before
	_ = eachField(node, nodeAttribute, func(attribute []byte) error {
		if err := eachField(attribute, attributeGraph, visit); err != nil {
			return err
		}
		return eachField(attribute, attributeGraphs, visit)
	})
	return found
}
