package onnx

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/muster-serve/muster/api/tensor"
)

// Versions that written models declare. ONNX Runtime reads them since its version 1.12.
const (
	IRVersion = 8
	Opset     = 17
)

// A Model is a model to write. It consists of standard operators, and of those of Domains.
type Model struct {
	// Name is the graph's name.
	Name string
	// Opset is the version of the standard operators; 0 means the constant Opset. Domains holds the
	// versions of other operators by their domain.
	Opset   int64
	Domains map[string]int64
	// Producer and ProducerVersion name the tool that made the model.
	Producer        string
	ProducerVersion string
	Inputs          []ValueDescription
	Outputs         []ValueDescription
	// Nodes are in an order in which they can run: inputs before their users.
	Nodes        []Node
	Initializers []Initializer
}

// A Node applies an operator.
type Node struct {
	Op         string
	Domain     string // of the operator; empty for a standard one
	Name       string // unique in the graph
	Inputs     []string
	Outputs    []string
	Attributes []Attribute

	raw []byte // the NodeProto of a node that was read; it is written as it is
}

// An Attribute of a node. Value is an int64, a []int64, a float32 or a string. In a node that was
// read it may also be an Initializer, and it is nil if it is anything else.
type Attribute struct {
	Name  string
	Value any
}

// An Initializer is a constant tensor, a weight for instance.
type Initializer struct {
	Name     string
	DataType tensor.DataType
	Shape    []int64
	// Data holds the elements, row-major and little-endian; nil if External says where they are.
	Data     []byte
	External External

	raw []byte // the TensorProto of a tensor that was read; it is written as it is
}

// External is the location of an initializer's elements in another file.
type External struct {
	// Location is the file's path relative to the model's folder.
	Location string
	// Offset and Length are in bytes.
	Offset, Length int64
}

// Marshal returns the contents of the model's .onnx file. The same model gives the same bytes.
func (m *Model) Marshal() []byte {
	var g encoder
	for _, n := range m.Nodes {
		g.writeMessage(graphNode, n.encode)
	}
	g.writeText(graphName, m.Name)
	for _, t := range m.Initializers {
		g.writeMessage(graphInitializer, t.encode)
	}
	for _, p := range m.Inputs {
		g.writeMessage(graphInput, p.encode)
	}
	for _, p := range m.Outputs {
		g.writeMessage(graphOutput, p.encode)
	}

	var e encoder
	e.writeInteger(modelIRVersion, IRVersion)
	e.writeText(modelProducerName, m.Producer)
	e.writeText(modelProducerVersion, m.ProducerVersion)
	e.writeMessage(modelGraph, func(e *encoder) { e.b = append(e.b, g.b...) })
	opset := m.Opset
	if opset == 0 {
		opset = Opset
	}
	e.writeMessage(modelOpsetImport, func(e *encoder) { e.writeInteger(opsetVersion, opset) })
	for _, domain := range slices.Sorted(maps.Keys(m.Domains)) {
		e.b = append(e.b, opsetImport(domain, m.Domains[domain])...)
	}
	return e.b
}

// opsetImport returns a model's field that declares the version of a domain.
func opsetImport(domain string, version int64) []byte {
	var e encoder
	e.writeMessage(modelOpsetImport, func(e *encoder) {
		e.writeText(opsetDomain, domain)
		e.writeInteger(opsetVersion, version)
	})
	return e.b
}

func (n Node) encode(e *encoder) {
	if n.raw != nil {
		e.b = append(e.b, n.raw...)
		return
	}
	for _, s := range n.Inputs {
		e.writeText(nodeInput, s)
	}
	for _, s := range n.Outputs {
		e.writeText(nodeOutput, s)
	}
	e.writeText(nodeName, n.Name)
	e.writeText(nodeOpType, n.Op)
	if n.Domain != "" {
		e.writeText(nodeDomain, n.Domain)
	}
	for _, a := range n.Attributes {
		e.writeMessage(nodeAttribute, a.encode)
	}
}

// Values of AttributeProto.AttributeType.
const (
	attributeIsFloat  = 1
	attributeIsInt    = 2
	attributeIsString = 3
	attributeIsInts   = 7
)

func (a Attribute) encode(e *encoder) {
	e.writeText(attributeName, a.Name)
	switch v := a.Value.(type) {
	case int64:
		e.writeInteger(attributeInt, v)
		e.writeInteger(attributeType, attributeIsInt)
	case []int64:
		for _, i := range v {
			e.writeInteger(attributeInts, i)
		}
		e.writeInteger(attributeType, attributeIsInts)
	case float32:
		e.b = protowire.AppendTag(e.b, attributeFloat, protowire.Fixed32Type)
		e.b = protowire.AppendFixed32(e.b, math.Float32bits(v))
		e.writeInteger(attributeType, attributeIsFloat)
	case string:
		e.writeText(attributeString, v)
		e.writeInteger(attributeType, attributeIsString)
	default:
		panic(fmt.Sprintf("onnx: attribute %s is a %T", a.Name, v))
	}
}

func (t Initializer) encode(e *encoder) {
	for _, d := range t.Shape {
		e.writeInteger(tensorDims, d)
	}
	e.writeInteger(tensorDataType, int64(elementNumber(t.DataType)))
	e.writeText(tensorName, t.Name)
	if t.External == (External{}) {
		e.writeText(tensorRawData, string(t.Data))
		return
	}
	t.External.encode(e)
	e.writeInteger(tensorDataLocation, locationExternal)
}

// encode writes the entries of a TensorProto that say where its elements are.
func (x External) encode(e *encoder) {
	entry := func(key, value string) {
		e.writeMessage(tensorExternalData, func(e *encoder) {
			e.writeText(entryKey, key)
			e.writeText(entryValue, value)
		})
	}
	entry("location", x.Location)
	entry("offset", strconv.FormatInt(x.Offset, 10))
	entry("length", strconv.FormatInt(x.Length, 10))
}

// encode writes the port as a ValueInfoProto. Without Dims it names a dynamic first dimension
// "batch", which means that it is equal in all ports.
func (p ValueDescription) encode(e *encoder) {
	e.writeText(valueName, p.Name)
	e.writeMessage(valueType, func(e *encoder) {
		e.writeMessage(typeTensor, func(e *encoder) {
			e.writeInteger(tensorTypeElement, int64(elementNumber(p.DataType)))
			if p.Shape == nil {
				return
			}
			e.writeMessage(tensorTypeShape, func(e *encoder) {
				for i, d := range p.Shape {
					e.writeMessage(shapeDim, func(e *encoder) {
						switch {
						case d != Dynamic:
							e.writeInteger(dimValue, d)
						case p.Dims != nil:
							e.writeText(dimParam, p.Dims[i])
						case i == 0:
							e.writeText(dimParam, "batch")
						}
					})
				}
			})
		})
	})
}

// An encoder appends fields to a message.
type encoder struct{ b []byte }

func (e *encoder) writeInteger(number protowire.Number, v int64) {
	e.b = protowire.AppendTag(e.b, number, protowire.VarintType)
	e.b = protowire.AppendVarint(e.b, uint64(v))
}

func (e *encoder) writeText(number protowire.Number, s string) {
	e.b = protowire.AppendTag(e.b, number, protowire.BytesType)
	e.b = protowire.AppendString(e.b, s)
}

func (e *encoder) writeMessage(number protowire.Number, fill func(*encoder)) {
	var body encoder
	fill(&body)
	e.b = protowire.AppendTag(e.b, number, protowire.BytesType)
	e.b = protowire.AppendBytes(e.b, body.b)
}
