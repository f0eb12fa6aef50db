package onnx

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/muster-serve/muster/api/files"
	"github.com/muster-serve/muster/api/tensor"
)

// largestFile is the most bytes that protobuf allows a model file. Weights beyond that are external
// data.
const largestFile = 1<<31 - 1

// A Graph is the main graph of a model file, to be changed and written to another file. What is not
// changed keeps its bytes, with fields that this package does not know. It is not safe for
// concurrent use.
type Graph struct {
	// Signature is that of the file. Do not change it.
	Signature *Signature
	// Nodes are in an order in which they can run. The caller may insert, remove and replace nodes.
	// To change a node that was read, use SetInput or SetOutput, or replace it.
	Nodes []Node

	dir   string // of the file
	model []wireField
	// graph holds the graph's fields. One without a body stands for all nodes, one for all
	// initializers.
	graph []wireField
	// initializers are in the order of the file, then as added.
	initializers []Initializer
	outputs      []string
	used         map[string]int  // how often each value was used in the file
	names        map[string]bool // of all values and nodes
	ranks        map[string]int  // of values; nil until Rank needs them
}

// A wireField is a field of a message in memory.
type wireField struct {
	number protowire.Number
	raw    []byte // the whole field
	body   []byte // of a field with a length, else nil
	value  uint64 // of a varint
}

// split returns the fields of a message.
func split(b []byte) ([]wireField, error) {
	var all []wireField
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		size := protowire.ConsumeFieldValue(number, kind, b[n:])
		if size < 0 {
			return nil, protowire.ParseError(size)
		}
		f := wireField{number: number, raw: b[:n+size]}
		switch kind {
		case protowire.BytesType:
			f.body, _ = protowire.ConsumeBytes(b[n:])
		case protowire.VarintType:
			f.value, _ = protowire.ConsumeVarint(b[n:])
		}
		all = append(all, f)
		b = b[n+size:]
	}
	return all, nil
}

// ReadGraph reads the model file at path, with the weights that it contains. It reads external data
// when it is asked for. Sequences of maps are tensors, as in the signature. The errors are those of
// ReadSignature.
func ReadGraph(path string) (*Graph, error) {
	s, err := ReadSignature(path)
	if err != nil {
		return nil, err
	}
	g := &Graph{
		Signature: s, dir: filepath.Dir(path), names: map[string]bool{},
	}
	if err := g.read(path); err != nil {
		return nil, fmt.Errorf("read model %s: %w", path, err)
	}
	return g, nil
}

// Reread returns the graph as it is after changes, as if it had been written into the same folder
// and read.
func (g *Graph) Reread() (*Graph, error) {
	b, err := g.Marshal()
	if err != nil {
		return nil, err
	}
	s, err := read(message{source: &source{r: bytes.NewReader(b)}, end: int64(len(b))})
	if err != nil {
		return nil, err
	}
	again := &Graph{Signature: s, dir: g.dir, names: map[string]bool{}}
	return again, again.parse(b)
}

func (g *Graph) read(path string) error {
	f, info, err := files.Open(path)
	if err != nil {
		return withoutPath(err)
	}
	defer f.Close()
	if info.Size() > largestFile {
		return fmt.Errorf("the file has %d bytes, expected at most %d", info.Size(), largestFile)
	}
	b := make([]byte, info.Size())
	if _, err := io.ReadFull(f, b); err != nil {
		return err
	}
	return g.parse(b)
}

// parse reads the model file with the contents b, which the graph keeps.
func (g *Graph) parse(b []byte) (err error) {
	if g.model, err = split(b); err != nil {
		return err
	}
	i := slices.IndexFunc(g.model, func(f wireField) bool { return f.number == modelGraph })
	if i < 0 {
		return errors.New("the model has no graph")
	}
	fields, err := split(g.model[i].body)
	if err != nil {
		return err
	}
	for _, f := range fields {
		if f.body == nil {
			continue // ONNX has no such field
		}
		switch f.number {
		case graphNode:
			g.addPlaceholder(graphNode)
			n, err := readNode(f.body)
			if err != nil {
				return err
			}
			g.Nodes = append(g.Nodes, n)
			g.names[n.Name] = true
			for _, output := range n.Outputs {
				g.names[output] = true
			}
			continue
		case graphInitializer:
			g.addPlaceholder(graphInitializer)
			t, err := readInitializer(f.body)
			if err != nil {
				return err
			}
			g.initializers = append(g.initializers, t)
			g.names[t.Name] = true
			continue
		case graphInput, graphOutput:
			name, err := nameOf(f.body, valueName)
			if err != nil {
				return err
			}
			g.names[name] = true
			if f.number == graphOutput {
				g.outputs = append(g.outputs, name)
			}
		}
		g.graph = append(g.graph, f)
	}
	g.addPlaceholder(graphNode)
	g.addPlaceholder(graphInitializer)
	g.replaceMaps()
	g.used, err = g.countUses()
	return err
}

// addPlaceholder adds a field that stands for all fields number, once.
func (g *Graph) addPlaceholder(number protowire.Number) {
	if !slices.ContainsFunc(g.graph, func(f wireField) bool { return f.number == number }) {
		g.graph = append(g.graph, wireField{number: number})
	}
}

// nameOf returns the text in the field number of a message.
func nameOf(b []byte, number protowire.Number) (string, error) {
	fields, err := split(b)
	for _, f := range fields {
		if f.number == number {
			return string(f.body), nil
		}
	}
	return "", err
}

// readNode decodes a NodeProto. Of its attributes it decodes those that an Attribute can hold, and
// tensors; the value of another is nil.
func readNode(b []byte) (Node, error) {
	fields, err := split(b)
	if err != nil {
		return Node{}, err
	}
	n := Node{raw: b}
	for _, f := range fields {
		switch f.number {
		case nodeInput:
			n.Inputs = append(n.Inputs, string(f.body))
		case nodeOutput:
			n.Outputs = append(n.Outputs, string(f.body))
		case nodeName:
			n.Name = string(f.body)
		case nodeOpType:
			n.Op = string(f.body)
		case nodeDomain:
			n.Domain = string(f.body)
		case nodeAttribute:
			a, err := readAttribute(f.body)
			if err != nil {
				return Node{}, fmt.Errorf("node %q: %w", n.Name, err)
			}
			n.Attributes = append(n.Attributes, a)
		}
	}
	return n, nil
}

func readAttribute(b []byte) (Attribute, error) {
	fields, err := split(b)
	if err != nil {
		return Attribute{}, err
	}
	var a Attribute
	var ints []int64
	for _, f := range fields {
		switch f.number {
		case attributeName:
			a.Name = string(f.body)
		case attributeInt:
			a.Value = int64(f.value)
		case attributeFloat:
			if len(f.raw) >= 4 {
				a.Value = math.Float32frombits(binary.LittleEndian.Uint32(f.raw[len(f.raw)-4:]))
			}
		case attributeString:
			a.Value = string(f.body)
		case attributeInts:
			if f.body == nil {
				ints = append(ints, int64(f.value))
			}
			for packed := f.body; len(packed) > 0; {
				v, n := protowire.ConsumeVarint(packed)
				if n < 0 {
					return Attribute{}, protowire.ParseError(n)
				}
				ints, packed = append(ints, int64(v)), packed[n:]
			}
		case attributeTensor:
			t, err := readInitializer(f.body)
			if err != nil {
				return Attribute{}, err
			}
			a.Value = t
		}
	}
	if ints != nil {
		a.Value = ints
	}
	return a, nil
}

// readInitializer decodes a TensorProto, without its elements.
func readInitializer(b []byte) (Initializer, error) {
	fields, err := split(b)
	if err != nil {
		return Initializer{}, err
	}
	t := Initializer{raw: b}
	for _, f := range fields {
		switch f.number {
		case tensorDims:
			if f.body == nil {
				t.Shape = append(t.Shape, int64(f.value))
			}
			for packed := f.body; len(packed) > 0; {
				v, n := protowire.ConsumeVarint(packed)
				if n < 0 {
					return Initializer{}, protowire.ParseError(n)
				}
				t.Shape, packed = append(t.Shape, int64(v)), packed[n:]
			}
		case tensorDataType:
			t.DataType = elementTypes[uint64(uint32(f.value))] // an int32, as protobuf reads it
		case tensorName:
			t.Name = string(f.body)
		}
	}
	return t, nil
}

// countUses counts the uses of each value: by nodes, by nodes of nested graphs, and as outputs.
func (g *Graph) countUses() (map[string]int, error) {
	used := map[string]int{}
	for _, name := range g.outputs {
		used[name]++
	}
	for _, n := range g.Nodes {
		for _, name := range n.Inputs {
			used[name]++
		}
		if n.raw != nil {
			if err := nestedUses(n.raw, used, 0); err != nil {
				return nil, err
			}
		}
	}
	delete(used, "") // an input that is left out
	return used, nil
}

// nestedUses counts the uses of values by the nodes of graphs within a node.
func nestedUses(node []byte, used map[string]int, depth int) error {
	if depth > deepest {
		return fmt.Errorf("graphs nested deeper than %d", deepest)
	}
	return eachField(node, nodeAttribute, func(attribute []byte) error {
		visit := func(graph []byte) error {
			err := eachField(graph, graphNode, func(node []byte) error {
				if err := eachField(node, nodeInput, func(name []byte) error {
					used[string(name)]++
					return nil
				}); err != nil {
					return err
				}
				return nestedUses(node, used, depth+1)
			})
			if err != nil {
				return err
			}
			return eachField(graph, graphOutput, func(value []byte) error {
				name, err := nameOf(value, valueName)
				used[name]++
				return err
			})
		}
		if err := eachField(attribute, attributeGraph, visit); err != nil {
			return err
		}
		return eachField(attribute, attributeGraphs, visit)
	})
}

// eachField calls visit for the body of each field number of a message.
func eachField(b []byte, number protowire.Number, visit func(body []byte) error) error {
	fields, err := split(b)
	for _, f := range fields {
		if f.number == number && f.body != nil {
			if err := visit(f.body); err != nil {
				return err
			}
		}
	}
	return err
}

// Constant returns the tensor of the given name: an initializer, or the value of a Constant node.
// Its Data is not set; Floats reads it.
func (g *Graph) Constant(name string) (Initializer, bool) {
	for _, t := range g.initializers {
		if t.Name == name {
			return t, true
		}
	}
	for _, n := range g.Nodes {
		if n.Op == "Constant" && n.Standard() && len(n.Outputs) == 1 && n.Outputs[0] == name {
			t, ok := n.Attribute("value").(Initializer)
			t.Name = name
			return t, ok
		}
	}
	return Initializer{}, false
}

// Uses returns how many inputs of nodes, also of nodes in nested graphs, and outputs of the graph
// the value was in the file.
func (g *Graph) Uses(name string) int { return g.used[name] }

// Add adds an initializer with Data. Its elements go into the file with external data if the model
// has one and they take more than 1 KiB.
func (g *Graph) Add(t Initializer) {
	g.initializers = append(g.initializers, t)
	g.names[t.Name] = true
}

// Fresh returns a name like base that no value and no node has yet, and keeps it for the caller.
func (g *Graph) Fresh(base string) string {
	name := base
	for i := 2; g.names[name]; i++ {
		name = base + "_" + strconv.Itoa(i)
	}
	g.names[name] = true
	return name
}

// Standard reports whether the node applies a standard operator.
func (n Node) Standard() bool { return n.Domain == "" || n.Domain == "ai.onnx" }

// Attribute returns the value of an attribute, nil if the node has none of that name. The value of
// a tensor is an Initializer.
func (n Node) Attribute(name string) any {
	for _, a := range n.Attributes {
		if a.Name == name {
			return a.Value
		}
	}
	return nil
}

// SetInput changes the node's input i to the value name.
func (n *Node) SetInput(i int, name string) {
	n.Inputs = slices.Clone(n.Inputs)
	n.Inputs[i] = name
	n.renameField(nodeInput, i, name)
}

// SetOutput changes the name of the node's output i.
func (n *Node) SetOutput(i int, name string) {
	n.Outputs = slices.Clone(n.Outputs)
	n.Outputs[i] = name
	n.renameField(nodeOutput, i, name)
}

// renameField changes the name in the field i of those with the given number, in a node that was
// read.
func (n *Node) renameField(number protowire.Number, i int, name string) {
	if n.raw == nil {
		return
	}
	at := -1
	// readNode has split it before
	n.raw, _ = rewriteFields(n.raw, func(f wireField) ([]byte, error) {
		if f.number == number {
			if at++; at == i {
				return []byte(name), nil
			}
		}
		return nil, nil
	})
}

// rewriteFields returns the message with the bodies of some fields changed: those for which change
// returns one. It returns b itself if it changes none.
func rewriteFields(b []byte, change func(wireField) ([]byte, error)) ([]byte, error) {
	fields, err := split(b)
	if err != nil {
		return nil, err
	}
	var e encoder
	changed := false
	for _, f := range fields {
		body, err := change(f)
		if err != nil {
			return nil, err
		}
		if body == nil || f.body == nil || bytes.Equal(body, f.body) {
			e.b = append(e.b, f.raw...)
			continue
		}
		changed = true
		e.writeText(f.number, string(body))
	}
	if !changed {
		return b, nil
	}
	return e.b, nil
}

// Floats returns the elements of a constant of data type FP32.
func (g *Graph) Floats(t Initializer) ([]float32, error) {
	values, err := g.readFloats(t)
	if err != nil {
		return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	return values, nil
}

func (g *Graph) readFloats(t Initializer) ([]float32, error) {
	if t.DataType != tensor.FP32 {
		return nil, fmt.Errorf("elements are %s, expected %s", t.DataType, tensor.FP32)
	}
	size, err := t.size()
	if err != nil {
		return nil, err
	}
	data, err := g.readData(t, -1)
	if err != nil {
		return nil, err
	}
	if len(data) != size {
		return nil, fmt.Errorf("got %d bytes, expected %d for shape %v", len(data), size, t.Shape)
	}
	values := make([]float32, size/4)
	for i := range values {
		values[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return values, nil
}

// readExternal returns where a TensorProto's elements are if they are external data, else nil. A
// Length of -1 stands for the rest of the file.
func readExternal(fields []wireField) (*External, error) {
	external := false
	e := External{Length: -1}
	for _, f := range fields {
		switch f.number {
		case tensorDataLocation:
			external = isExternal(external, f.value)
		case tensorExternalData:
			key, value, err := splitEntry(f.body)
			if err != nil {
				return nil, err
			}
			switch key {
			case "location":
				e.Location = value
			case "offset":
				e.Offset, err = strconv.ParseInt(value, 10, 64)
			case "length":
				e.Length, err = strconv.ParseInt(value, 10, 64)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	if !external {
		return nil, nil
	}
	return &e, nil
}

func splitEntry(b []byte) (key, value string, err error) {
	fields, err := split(b)
	for _, f := range fields {
		switch f.number {
		case entryKey:
			key = string(f.body)
		case entryValue:
			value = string(f.body)
		}
	}
	return key, value, err
}

// openSection opens external data. The caller closes the file.
func (g *Graph) openSection(e External) (*os.File, *io.SectionReader, error) {
	if !filepath.IsLocal(e.Location) { // ReadSignature has checked it
		return nil, nil, fmt.Errorf("external data in %q", e.Location)
	}
	f, info, err := files.Open(filepath.Join(g.dir, e.Location))
	if err != nil {
		return nil, nil, err
	}
	if e.Length < 0 {
		e.Length = info.Size() - e.Offset
	}
	if e.Offset < 0 || e.Length < 0 || e.Offset > info.Size()-e.Length {
		f.Close()
		return nil, nil, fmt.Errorf("external data %s: got %d bytes, expected %d at offset %d",
			f.Name(), info.Size(), e.Length, e.Offset)
	}
	return f, io.NewSectionReader(f, e.Offset, e.Length), nil
}

// inlineBytes is the size up to which an added tensor stays in the model file.
const inlineBytes = 1 << 10

// dataAlignment of tensors in a data file, in bytes: a page, as the ONNX specification recommends
// for files that are mapped.
const dataAlignment = 4096

// Write writes the model to path. If the model that was read has external data, Write writes it to
// one file beside path, named as path with ".data". Constants that the changes left without a use
// are left out.
func (g *Graph) Write(path string) (err error) {
	w := &dataWriter{graph: g, path: path + ".data", moved: map[External]External{}}
	defer func() {
		if w.file != nil {
			err = errors.Join(err, w.file.Close())
		}
	}()
	b, err := g.marshal(w)
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o644)
}

// Marshal returns the contents of a model file that stands in the folder of the one that was read:
// external data stays where it is, and added tensors are in the file. Constants that the changes
// left without a use are left out.
func (g *Graph) Marshal() ([]byte, error) { return g.marshal(&dataWriter{graph: g}) }

func (g *Graph) marshal(w *dataWriter) ([]byte, error) {
	used, err := g.countUses()
	if err != nil {
		return nil, err
	}
	idle := func(name string) bool { return g.used[name] > 0 && used[name] == 0 }
	var body encoder
	for _, f := range g.graph {
		switch f.number {
		case graphNode:
			err = g.writeNodes(w, &body, idle)
		case graphInitializer:
			err = g.writeInitializers(w, &body, idle)
		case graphInput: // models of IR version 3 declare their initializers as inputs too
			var name string
			name, err = nameOf(f.body, valueName)
			if _, ok := g.Constant(name); !ok || !idle(name) {
				body.b = append(body.b, f.raw...)
			}
		case graphSparseInitializer:
			var b []byte
			b, err = w.moveSparse(f.body)
			body.writeText(f.number, string(b))
		default:
			body.b = append(body.b, f.raw...)
		}
		if err != nil {
			return nil, err
		}
	}
	var e encoder
	for _, f := range g.model {
		switch f.number {
		case modelGraph:
			e.writeText(modelGraph, string(body.b))
		case modelFunctions:
			b, err := w.moveFunction(f.body)
			if err != nil {
				return nil, err
			}
			e.writeText(modelFunctions, string(b))
		default:
			e.b = append(e.b, f.raw...)
		}
	}
	return e.b, nil
}

func (g *Graph) writeNodes(w *dataWriter, e *encoder, idle func(name string) bool) error {
	for _, n := range g.Nodes {
		if n.Op == "Constant" && n.Standard() && len(n.Outputs) == 1 && idle(n.Outputs[0]) {
			continue
		}
		if n.raw == nil {
			e.writeMessage(graphNode, n.encode)
			continue
		}
		b, err := w.moveNode(n.raw)
		if err != nil {
			return err
		}
		e.writeText(graphNode, string(b))
	}
	return nil
}

func (g *Graph) writeInitializers(w *dataWriter, e *encoder, idle func(name string) bool) error {
	for _, t := range g.initializers {
		if idle(t.Name) {
			continue
		}
		write := w.moveTensor
		if t.raw == nil {
			write = func([]byte) ([]byte, error) { return w.encodeAdded(t) }
		}
		b, err := write(t.raw)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		e.writeText(graphInitializer, string(b))
	}
	return nil
}

// A dataWriter moves the external data of a graph to one file. Without a path it moves nothing.
type dataWriter struct {
	graph *Graph
	path  string
	file  *os.File // nil until there is something to write
	end   int64
	moved map[External]External
}

func (w *dataWriter) movesData() bool { return w.path != "" && len(w.graph.Signature.Data) > 0 }

// append writes r to the file and returns where it is.
func (w *dataWriter) append(r io.Reader) (External, error) {
	if w.file == nil {
		f, err := os.Create(w.path)
		if err != nil {
			return External{}, err
		}
		w.file = f
	}
	start := (w.end + dataAlignment - 1) / dataAlignment * dataAlignment
	if _, err := w.file.Seek(start, io.SeekStart); err != nil {
		return External{}, err
	}
	n, err := io.Copy(w.file, r)
	if err != nil {
		return External{}, err
	}
	w.end = start + n
	return External{Location: filepath.Base(w.path), Offset: start, Length: n}, nil
}

// encodeAdded encodes a tensor that was not in the file.
func (w *dataWriter) encodeAdded(t Initializer) ([]byte, error) {
	if w.movesData() && len(t.Data) > inlineBytes {
		at, err := w.append(bytes.NewReader(t.Data))
		if err != nil {
			return nil, err
		}
		t.External, t.Data = at, nil
	}
	var e encoder
	t.encode(&e)
	return e.b, nil
}

// moveTensor returns the TensorProto with its external data moved to the file.
func (w *dataWriter) moveTensor(b []byte) ([]byte, error) {
	if !w.movesData() {
		return b, nil
	}
	fields, err := split(b)
	if err != nil {
		return nil, err
	}
	from, err := readExternal(fields)
	if err != nil || from == nil {
		return b, err
	}
	to, ok := w.moved[*from]
	if !ok {
		f, r, err := w.graph.openSection(*from)
		if err != nil {
			return nil, err
		}
		to, err = w.append(r)
		f.Close()
		if err != nil {
			return nil, err
		}
		w.moved[*from] = to
	}
	var e encoder
	for _, f := range fields {
		if f.number == tensorExternalData {
			key, _, err := splitEntry(f.body)
			if err != nil {
				return nil, err
			}
			if key == "location" || key == "offset" || key == "length" {
				continue
			}
		}
		e.b = append(e.b, f.raw...)
	}
	to.encode(&e)
	return e.b, nil
}

// moveSparse returns the SparseTensorProto with its external data moved to the file.
func (w *dataWriter) moveSparse(b []byte) ([]byte, error) {
	return rewriteFields(b, func(f wireField) ([]byte, error) {
		if f.number == sparseValues || f.number == sparseIndices {
			return w.moveTensor(f.body)
		}
		return nil, nil
	})
}

// moveFunction returns the FunctionProto with its external data moved to the file.
func (w *dataWriter) moveFunction(b []byte) ([]byte, error) {
	return rewriteFields(b, func(f wireField) ([]byte, error) {
		switch f.number {
		case functionNode:
			return w.moveNode(f.body)
		case functionAttribute:
			return w.moveAttribute(f.body)
		}
		return nil, nil
	})
}

// moveNode returns the NodeProto with the external data of its attributes moved to the file.
func (w *dataWriter) moveNode(b []byte) ([]byte, error) {
	return rewriteFields(b, func(f wireField) ([]byte, error) {
		if f.number != nodeAttribute {
			return nil, nil
		}
		return w.moveAttribute(f.body)
	})
}

// moveAttribute returns the AttributeProto with its external data moved to the file.
func (w *dataWriter) moveAttribute(b []byte) ([]byte, error) {
	if !w.movesData() {
		return b, nil
	}
	return rewriteFields(b, func(f wireField) ([]byte, error) {
		switch f.number {
		case attributeTensor, attributeTensors:
			return w.moveTensor(f.body)
		case attributeSparse, attributeSparseTensors:
			return w.moveSparse(f.body)
		case attributeGraph, attributeGraphs:
			return rewriteFields(f.body, func(f wireField) ([]byte, error) {
				switch f.number {
				case graphNode:
					return w.moveNode(f.body)
				case graphInitializer:
					return w.moveTensor(f.body)
				case graphSparseInitializer:
					return w.moveSparse(f.body)
				}
				return nil, nil
			})
		}
		return nil, nil
	})
}
